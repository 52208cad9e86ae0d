"""What an end of a split training finds again."""

from ternmesh_store.split_store import Checkpoint, SplitStore

MODEL, RUN = bytes(range(32)), b"run-id-8"


def test_only_what_was_committed_is_found_again(reopen) -> None:
    store = SplitStore(reopen())
    assert (store.counter(), store.boards(), store.load(("weights",))) == (0, (), None)
    store.reserve(4096)
    store.add_board(2, "theo")
    store.add_board(1, "nicolas")
    first = Checkpoint(MODEL, RUN, {"theo": 20}, {"weights": b"abc"}, {"lost": 2})
    store.save(first)
    store.commit()
    store.save(Checkpoint(MODEL, RUN, {"theo": 40}, {"weights": b"later"}))
    store.reserve(8192)
    store = SplitStore(reopen())
    assert store.counter() == 4096
    assert store.boards() == ((1, "nicolas"), (2, "theo"))
    assert store.load(("weights", "others")) == first


def test_a_run_that_is_given_up_leaves_the_counter(reopen) -> None:
    store = SplitStore(reopen())
    store.reserve(4096)
    store.add_board(1, "theo")
    store.save(Checkpoint(MODEL, RUN))
    store.forget()
    store.commit()
    assert (store.counter(), store.boards(), store.load(())) == (4096, (), None)
