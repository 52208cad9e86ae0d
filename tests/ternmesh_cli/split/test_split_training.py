"""Boards and a host train one small model together, over a loopback transport."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from edge.errors import DataError
from edge.split.node import drawn
from edge.split.part import load_part
from models.split.cut import HOST, load_rest
from ternmesh_cli.status_text import describe
from ternmesh_store.state_file import STATE
from tests.faulty import Faults, FaultyTransport
from tests.ternmesh_cli.split.split_training import BATCH, Training, make_cut, samples
from transports.base import Transport


def test_in_float32_it_is_the_training_of_the_whole_model(train: Callable[..., Training]) -> None:
    training = train(bits_up=32, bits_gradient=32)
    board = training.board("theo")
    training.finish()
    cut = make_cut()
    load_rest(cut.rest, training.parts / HOST)
    trained = [*cut.first.parameters(), *cut.rest.parameters()]
    optimizer = torch.optim.Adam(trained)
    data = samples()
    for number in range(training.plan.micro_batches):
        for group in optimizer.param_groups:
            group["lr"] = training.plan.learning_rate(number)
        chosen = drawn(0, "theo", number, BATCH, len(data["label"]))
        logits = cut.rest(cut.first(torch.from_numpy(data["features"][chosen])))
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits, torch.from_numpy(data["label"][chosen]))
        loss.backward()
        optimizer.step()
    wanted = cut.adapter.join(dict(cut.first.named_parameters()))
    np.testing.assert_allclose(board.part.vector, wanted, atol=1e-4)
    assert np.abs(wanted - cut.adapter.vector()).max() > 0.05
    everything = torch.from_numpy(data["features"])
    theirs = training.service._stage.predict(board.part.forward({"features": data["features"]}))
    expected = cut.rest(cut.first(everything)).detach().numpy()
    np.testing.assert_allclose(theirs, expected, atol=1e-3)


def test_boards_learn_together_in_few_bits(train: Callable[..., Training]) -> None:
    training = train()
    for name in ("theo", "nicolas"):
        training.board(name)
    training.finish()
    for board in training.boards.values():
        assert (board.accuracy or 0) > 0.9
        assert board.counts == {"learned": 40, "samples": 160}
        assert board.status().phase == "finished"
    assert training.service.counts["learned"] == 80
    lines = "\n".join(describe(training.service.status()))
    assert f"finished: {training.service._stage.steps} steps" in lines
    assert "theo: 40 of 40 micro-batches, 0 skipped, heard 0 s ago" in lines
    status = training.boards["theo"].status()
    lines = "\n".join(describe(status))
    assert "40 of 40 micro-batches, finished: 0 lost, 0 diverged" in lines
    assert f"accuracy {status.accuracy:.1%}" in lines


def test_nobody_gets_ahead_of_the_others(train: Callable[..., Training]) -> None:  # R10.3-9
    """A step waits for all boards, but not for ever: one that hangs costs `wait_s` a step."""
    training = train()
    theo, nicolas = training.board("theo"), training.board("nicolas")
    training.until(lambda: theo.board.joined and nicolas.board.joined)
    ahead = theo.board.number - nicolas.board.number
    while nicolas.counts["learned"] < 10:
        training.turn()
        assert abs(theo.board.number - nicolas.board.number) <= max(1, ahead)
    del training.boards["nicolas"]
    before, number = training.clock.now, theo.board.number
    training.until(lambda: theo.board.number == number + 3)
    assert 2.0 <= training.clock.now - before <= 4.0
    training.boards["nicolas"] = nicolas
    training.finish()
    assert nicolas.counts["lost"] <= 1


def test_lost_micro_batches_are_skipped_and_counted(train: Callable[..., Training]) -> None:
    training = train()

    def lossy(transport: Transport) -> Transport:
        rng = np.random.default_rng(4)
        return FaultyTransport(transport, Faults(drop=0.1), rng, training.clock)

    board = training.board("theo", lossy)
    training.finish()
    lost, learned = board.counts["lost"], board.counts["learned"]
    assert (lost + learned, lost > 0) == (40, True)
    # What was lost on its way up the host has never seen; the rest was lost on its way down.
    assert learned <= training.service.counts["learned"] < 40
    assert (board.accuracy or 0) > 0.8


def test_a_host_that_is_killed_goes_on_from_its_checkpoint(train: Callable[..., Training]) -> None:
    # R10.3-14
    training = train()
    board = training.board("theo")
    training.until(lambda: training.service._stage.steps == 17)
    run = training.service.host.run
    service = training.host()
    assert (service.host.run, service._stage.steps) == (run, 15)
    assert service.host.nodes[1].name == "theo"
    training.finish()
    assert board.counts["learned"] + board.counts["lost"] == 40
    assert board.counts["learned"] >= 38
    assert service._stage.steps == 40 - 17 + 15 - board.counts["lost"]
    assert (board.accuracy or 0) > 0.9


def test_a_board_that_is_killed_goes_on_from_its_checkpoint(train: Callable[..., Training]) -> None:
    # R10.3-2
    training = train()
    before = training.board("theo")
    training.until(lambda: before.counts["learned"] == 10)
    kept = before.part.vector
    training.until(lambda: before.counts["learned"] == 13)
    again = training.board("theo")
    assert again.board.number == 10
    np.testing.assert_array_equal(again.part.vector, kept)
    training.finish()
    assert again.counts["lost"] in (3, 4)  # the host had 13 or 14
    assert again.counts["learned"] + again.counts["lost"] == 40
    assert training.service.host.nodes[1].number == 40
    assert (again.accuracy or 0) > 0.9


def test_a_stop_in_the_middle_of_a_micro_batch_is_counted(train: Callable[..., Training]) -> None:
    # R10.3-12
    training = train()
    before = training.board("theo")
    training.until(lambda: before.counts["learned"] == 7 and not before.board.ready)
    before.save()  # as a stop does
    again = training.board("theo")
    training.finish()
    assert again.counts["learned"] + again.counts["lost"] == 40


def test_a_host_of_another_run_makes_boards_begin_anew(train: Callable[..., Training]) -> None:
    training = train()
    board = training.board("theo")
    initial = board.part.vector
    training.until(lambda: board.counts["learned"] == 5)
    (training.folder / "host" / STATE).rename(training.folder / "lost.sqlite")
    training.host()
    training.until(lambda: board.board.run == training.service.host.run)
    np.testing.assert_array_equal(board.part.vector, initial)
    training.finish()
    assert training.service.host.nodes[1].learned == 40


def test_what_is_not_finite_is_skipped_and_counted(train: Callable[..., Training]) -> None:
    training = train()
    board = training.board("theo")
    training.until(lambda: board.counts["learned"] == 3)
    board.part.vector = board.part.vector * np.float32(np.nan)
    training.finish()
    assert board.counts["diverged"] == 37
    assert board.accuracy is None
    assert training.service.counts["diverged"] == 0


@pytest.mark.parametrize("plan", [{"width": 5}, {"batch": 5}, {"classes": 2}])
def test_a_plan_that_does_not_fit_is_refused(train: Callable[..., Training], plan, caplog) -> None:
    """The model's name is the same, so the host may be somebody else: nobody's program ends."""
    training = train(**plan)
    board = training.board("theo")
    training.until(lambda: board.board.refused["plan"] == 2)
    assert not board.board.joined
    assert caplog.text.count("refused from host: plan") == 1


@pytest.mark.parametrize("magnitude", [1e15, 1e25])
def test_no_gradient_spoils_the_boards_adam(parts: Path, magnitude: float) -> None:
    part = load_part(parts)
    back = np.full((BATCH, part.width), magnitude, np.float32)
    part.learn({"features": samples()["features"][:BATCH]}, back, 0.01, 1.0)
    assert float(part._moments.square.sum()) <= 0.0011


def test_labels_count_from_zero(train: Callable[..., Training]) -> None:
    training = train()
    clips = {**samples(), "label": samples()["label"] - 1}
    with pytest.raises(DataError, match="labels count from 0"):
        training.board("theo", clips=clips)


@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 13))
def test_an_epoch_has_each_sample_once(number: int, batch: int, count: int) -> None:
    dealt = np.concatenate([drawn(1, "theo", n, batch, count) for n in range(number + 1)])
    whole = dealt[: len(dealt) // count * count].reshape(-1, count)
    assert all(sorted(epoch) == list(range(count)) for epoch in whole.tolist())
    assert set(dealt.tolist()) <= set(range(count))
