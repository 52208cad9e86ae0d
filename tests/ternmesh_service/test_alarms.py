"""The alarms about samples and their source."""

import pytest

from ternmesh_service.alarms import alarms
from ternmesh_service.status import UNOPENED, AsideStatus, LiveStatus, UpstreamStatus
from tests.statuses import board_status, host_status, source_status


@pytest.mark.parametrize(
    ("in_files", "advice"),
    [(2, "repair that file, or remove it"), (1, "look at them with `ternmesh data list`")],
)
def test_what_to_do_with_samples_that_are_set_aside(in_files, advice) -> None:
    aside = AsideStatus(count=2, in_files=in_files, newest=(("a.npz", "is damaged"),))
    [alarm] = alarms(board_status(aside=aside))
    assert advice in alarm.advice


def test_a_source_of_which_nothing_can_be_used() -> None:
    live = LiveStatus(open=True, left_out={"file of another kind": 7}, first={})
    counters = {"samples": 0, "repeated": 0}
    [alarm] = alarms(board_status(source=source_status(live=live, counters=counters)))
    assert "no sample has come from the source" in alarm.text
    assert "7 file of another kind" in alarm.text
    assert not alarms(board_status(source=source_status(live=live)))


def test_an_aggregator_says_what_the_host_above_does() -> None:
    above = UpstreamStatus(transport=UNOPENED, joined=False, version=3)
    caught = {"barn": "it lies"}
    status = host_status(("ada",), upstream=above, phase="finished", caught=caught)
    said = {alarm.text: alarm.advice for alarm in alarms(status)}
    assert "next run of the host above" in said["the run is over: nothing more is learned"]
    assert any("the host above is not reached" in text for text in said)
    assert any("barn has lied: it lies" in text for text in said)
