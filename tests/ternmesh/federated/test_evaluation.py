import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.federated.evaluation import (
    ACCURACY,
    VALUE_MAX,
    Evaluation,
    of_fleet,
    read_values,
    with_staleness,
    write_values,
)

some = st.none() | st.floats(0, 60)
shares = st.none() | st.floats(0, 1)


@given(some, shares, st.none() | st.floats(-1, 1))
def test_values_are_those_written(
    loss: float | None, accuracy: float | None, probe: float | None
) -> None:
    values = write_values(Evaluation(loss, accuracy, probe=probe))
    found = read_values(values)
    assert [key for key, _ in values] == sorted({key for key, _ in values})
    assert (found.loss is None, found.accuracy is None) == (loss is None, accuracy is None)
    assert found.loss == pytest.approx(loss, abs=0.0006)
    assert found.accuracy == pytest.approx(accuracy, abs=0.00006)
    assert found.probe == pytest.approx(probe, abs=0.00006)
    assert found.nodes == (1 if values else 0)


def test_a_large_loss_is_the_largest_and_other_keys_are_ignored() -> None:  # R4.2-5
    assert write_values(Evaluation(1e9)) == ((1, 0xFFFF),)
    assert write_values(Evaluation(probe=-1e9)) == ((3, 0),)
    assert write_values(Evaluation(probe=1e9)) == ((3, 0xFFFF),)
    assert read_values([(0, 7), (2, 5000), (200, 1)]) == Evaluation(None, 0.5)


def test_how_late_an_update_is_is_no_evaluation() -> None:  # R4.2-5
    assert with_staleness(((1, 7),), 0) == ((1, 7),)
    assert with_staleness(((1, 7),), 3) == ((1, 7), (4, 3))
    assert read_values(with_staleness((), 3)) == Evaluation(nodes=0, staleness=3)
    assert of_fleet([Evaluation(nodes=0, staleness=3)]) == Evaluation(nodes=0)


def test_the_median_of_a_fleet_is_not_what_one_liar_says() -> None:
    honest = [Evaluation(0.3, 0.9), Evaluation(0.4, 0.8)]
    for lie in (Evaluation(0.0, 1.0), Evaluation(65.0, 0.0)):
        found = of_fleet([*honest, lie])
        assert (found.loss, found.accuracy) in ((0.3, 0.9), (0.4, 0.8))
        assert found.nodes == 3
    assert of_fleet([]) == of_fleet([read_values(())]) == Evaluation(nodes=0)


def test_no_report_says_more_than_all_right() -> None:
    assert read_values([(ACCURACY, VALUE_MAX)]).accuracy == 1.0
