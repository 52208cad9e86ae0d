import argparse
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from ternmesh.federated.refusals import DIVERGED, NO_ANSWER, why
from ternmesh.federated.robust import Influence
from ternmesh_cli import status
from ternmesh_cli.main import main
from ternmesh_cli.status_text import describe
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import (
    AggregatorStatus,
    HistoryEntry,
    InstalledReleases,
    KnowledgeStatus,
    OutboxStatus,
    SecurityStatus,
    TeachingStatus,
    TrainingStatus,
    read_status,
    to_json,
)
from ternmesh_store.host_store import StoredRound
from tests.statuses import (
    DOWN,
    KEYS,
    UP,
    board,
    board_status,
    gateway_status,
    host_status,
    source_status,
)
from transports.base import LinkStatus

THEO = board(
    "theo", heard_s_ago=0.3, delivered="whole", rounds_missed=0, bytes_up=9724, bytes_down=10_500,
    weight=0.95, agreement=-0.0421, influence=Influence(0.71234, 0.5, 0.25),
)  # fmt: skip
YVES = board(
    "yves", samples=40, active=False, heard_s_ago=None, refused={"old round": 2},
    rounds_counted=6, bytes_up=8000, bytes_down=9000, weight=0.95, agreement=None,
)  # fmt: skip
ROUND = StoredRound(
    version=1, counted=("theo", "yves"), missing=(), bytes_up={"theo": 1300, "yves": 1200},
    bytes_down=4000, seconds=1.25,
)  # fmt: skip
HOST = host_status(
    [],
    fleet="garden",
    run="0123456789abcdef",
    version=7,
    rounds=20,
    deadline_s=12.4,
    remark="krum failed: the weighted mean is taken",
    refused={"seal": 30, "old round": 2},
    nodes=(THEO, YVES),
    history=(
        *(replace(ROUND, version=version) for version in range(1, 7)),
        replace(ROUND, version=7, counted=("theo",), missing=("yves",)),
    ),
)
HOST_TEXT = f"""\
host of fleet garden, model keyword, run 0123456789abcdef
keys abababababab, sealed and signed
connected to mqtt://b:1883 with MQTT 5
global adapter 7 of 20 (a1b2c3d4e5f6), open, 12 s left
2 boards, 1 active, a round needs 2
ALARM: yves: silent since this host started: check its power and its link: rounds go on without it
warning: refused old round 2 from yves: {why("old round", on_host=True)}
warning: refused seal 30: {why("seal", on_host=True)}
warning: krum failed: the weighted mean is taken: see [run] aggregation
warning: 1 of the 2 boards that a round needs are here: start boards, or lower run.min_peers

board  state           heard    counted  missed  weight  samples  up      down     trust  to others
theo   update is here  0 s ago  7        0       71%     400      9724 B  10.5 kB  95%    -0.04
yves   not heard yet   never    6        1       -       40       8000 B  9000 B   95%    -
longer than updates usually are, and cut: theo to 25%

version  seconds  counted     missing  up      down
3        1.2      theo, yves  -        2500 B  4000 B
4        1.2      theo, yves  -        2500 B  4000 B
5        1.2      theo, yves  -        2500 B  4000 B
6        1.2      theo, yves  -        2500 B  4000 B
7        1.2      theo        yves     2500 B  4000 B"""

NODE = board_status(
    name="theo",
    fleet="garden",
    training=TrainingStatus(round=7, steps_done=3, steps=8, loss=0.5),
    metric=0.9157,
    outbox=OutboxStatus(round=6, bytes=1250, received=False),
    refused={"seal": 10},
)
NODE_TEXT = f"""\
board theo of fleet garden, model keyword
keys abababababab, sealed and signed
connected to mqtt://b:1883 with MQTT 5
global adapter 7 of 20, open; training, step 3 of 8
400 samples; accuracy 0.916
up 12.3 kB, down 678 B since it started
outbox: the update of round 7, 1250 B, no receipt yet
warning: refused seal 10: {why("seal", on_host=False)}"""
NEW_NODE = replace(
    NODE,
    version=0,
    rounds=None,
    phase="gathering",
    activity="joining",
    training=None,
    metric=None,
    metric_name="mean_absolute_error",
    outbox=None,
    refused={},
    transport=DOWN,
)
NEW_NODE_TEXT = """\
board theo of fleet garden, model keyword
keys abababababab, sealed and signed
not connected to mqtt://b:1883
global adapter 0, no run joined yet, gathering; joining
400 samples; mean absolute error not measured yet
up 12.3 kB, down 678 B since it started
ALARM: the link is down: no route: ask `ternmesh doctor`"""


@pytest.mark.parametrize(
    ("answer", "text"), [(HOST, HOST_TEXT), (NODE, NODE_TEXT), (NEW_NODE, NEW_NODE_TEXT)]
)
def test_text_for_people(answer, text):
    assert "\n".join(describe(answer)) == text
    assert read_status(json.loads(json.dumps(to_json(answer)))) == answer


def test_a_host_that_nobody_has_joined():
    answer = replace(HOST, nodes=(), history=(), deadline_s=None, phase="gathering", refused={})
    assert list(describe(answer))[3:] == [
        "global adapter 7 of 20 (a1b2c3d4e5f6), gathering",
        "0 boards, 0 active, a round needs 2",
        "warning: krum failed: the weighted mean is taken: see [run] aggregation",
        "warning: 0 of the 2 boards that a round needs are here: start boards, or lower "
        "run.min_peers",
    ]


def test_advice_names_the_command_as_it_was_typed(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TERNMESH_PROGRAM", "./run")
    answer = to_json(replace(NEW_NODE, transport=UP))
    monkeypatch.setattr(status, "ask", lambda socket, request: answer)
    status.run(argparse.Namespace(socket=tmp_path, config=None, node=None, json=False, watch=False))
    assert "run `./run enrol add` on the host" in capsys.readouterr().out


def test_after_the_run_no_board_is_called_inactive():
    nodes = tuple(replace(node, active=False) for node in HOST.nodes)
    text = "\n".join(describe(replace(HOST, phase="finished", deadline_s=None, nodes=nodes)))
    assert "2 boards, the run is over" in text
    assert "theo   finished  0 s ago" in text


def test_who_is_trusted_little_or_unlike_the_others_is_named():
    low = {"weight": 0.0, "since": 12, "reason": "excluded: raises the error", "unlike": True}
    lines = list(describe(replace(HOST, nodes=(board("theo", **low), YVES))))
    assert "unlike the others: theo" in lines
    assert (
        "warning: theo: counts 0% since global update 12: excluded: raises the error: look at its "
        "samples and labels; mute or revoke it if it lies"
    ) in lines


def test_fifty_boards_stay_readable():
    names = [f"board-{number:02}" for number in range(50)]
    row = replace(THEO, refused={"suite": 1}, unlike=True)
    nodes = [replace(row, name=name) for name in names]
    nodes[7] = replace(nodes[7], revoked=True, active=False)
    item = replace(ROUND, counted=tuple(names[::-1]), missing=tuple(names))
    shown = replace(HOST, nodes=tuple(nodes), refused={"suite": 50}, history=(item,))
    lines = list(describe(shown))
    some = "board-00, board-01, board-02 and 47 more"
    assert f"warning: refused suite 50 from {some}: {why('suite', on_host=True)}" in lines
    assert "unlike the others: board-00, board-01, board-02 and 46 more" in lines
    assert sum(line.count(some) for line in lines) == 3
    assert [line.split()[:2] for line in lines if "revoked" in line] == [["board-07", "revoked"]]
    assert max(map(len, lines)) < 200


def test_a_board_that_nobody_answers():
    line = f"warning: this board has not joined a run yet: {NO_ANSWER}"
    assert line in list(describe(replace(NEW_NODE, transport=UP)))


@pytest.mark.parametrize(
    ("last", "labels", "shown"),
    [
        (("a\x1b", "stop"), {"stop": 2, "go": 1}, "go 1, stop 2, the last one: 'a\\x1b' is stop"),
        (None, {}, "none"),
    ],
)
def test_a_board_with_a_source_shows_its_samples(last, labels, shown):
    source = source_status(by_label=labels, last_label=last)
    line = f"7 wait for a label; by label: {shown}; 3 refused, 9 made room"
    assert line in list(describe(replace(NODE, source=source)))


def test_a_board_whose_training_diverges():
    (line,) = (line for line in describe(replace(NODE, diverged=3)) if "diverge" in line)
    assert line == f"warning: training diverged in 3 rounds: {DIVERGED}"


LINK = LinkStatus(
    objects_under_way=1, objects_sent=5, objects_lost=0, frames_refused=0, sealed=True, refused={}
)


def test_bytes_that_wait_for_a_modem_are_not_called_sent():
    text = "\n".join(describe(replace(NODE, transport=replace(UP, link=LINK))))
    assert "\nhanded to the link " in text


def test_a_board_without_evaluation_data():
    entry = HistoryEntry(version=7, metric=None, loss=0.5, bytes_up=1, bytes_down=1, seconds=1.0)
    answer = replace(NODE, metric=None, history=(entry,))
    assert "400 samples; accuracy not measured: [evaluate] names" in "\n".join(describe(answer))


def test_the_best_adapter_is_shown_beside_the_newest():
    line = (
        "400 samples; accuracy 0.916, best 0.934 (global adapter 5); s/current.onnx_adapter is the"
    )
    best = (5, 0.934)
    assert f"{line} newest" in list(describe(replace(NODE, best=best)))


def test_a_board_that_waits_says_why_and_where_it_trains():
    held = replace(NODE, activity="paused: too hot", held_back="83 C, waits for 75 C")
    reason = "CPUExecutionProvider, as CUDAExecutionProvider failed: no engine"
    text = "\n".join(describe(replace(held, provider=reason)))
    assert "; paused: 83 C, waits for 75 C, step 3 of 8\n" in text
    assert f"\ntraining runs on {reason}\n" in text
    assert "\n".join(describe(replace(NODE, provider=""))) == NODE_TEXT


def test_a_mixed_fleet_shows_what_is_taught():
    why = "the teacher is worse than this model"
    taught = KnowledgeStatus(samples=390, known=380, number=3, teacher_accuracy=0.9312, remark=why)
    lines = list(describe(replace(NODE, knowledge=taught)))
    shown = "taught by other models: 380 of 390 samples, by a teacher of accuracy 0.931"
    assert f"{shown}; {why}" in lines
    teaching = TeachingStatus(group="keyword", sent=None, less={})
    lines = list(describe(replace(HOST, teaching=teaching)))
    assert "knowledge packets of other groups: none yet" in lines
    teaching = replace(teaching, sent=6, less={"keyword-mlp": why})
    lines = list(describe(replace(HOST, teaching=teaching)))
    assert "knowledge packets of other groups: the last at global adapter 6" in lines
    assert f"keyword-mlp teaches less: {why}" in lines


def without(answer: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != key}


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "satellite"},
        {"said": "hello"},
        without(to_json(HOST), "phase"),
        {**to_json(HOST), "later": 1},
        {**to_json(HOST), "version": "7"},
        {**to_json(HOST), "deadline_s": True},
        {**to_json(HOST), "nodes": [{}]},
        {**to_json(NODE), "source": []},
    ],
)
def test_an_answer_of_another_kind(answer):
    with pytest.raises(ControlError, match="runs another version"):
        read_status(answer)


def test_releases_of_the_model_are_shown():
    releases = InstalledReleases(current=0, last_good=0, attempts=0, bad=(), not_taken=())
    calm = replace(NODE, refused={}, releases=releases)
    assert [*describe(calm)][-1] == "no release: the configured model package"
    bad = ((3, "its loss is 9"),)
    refused = ((4, "not signed"),)
    releases = replace(releases, current=2, bad=bad, not_taken=refused)
    assert [*describe(replace(calm, releases=releases))][-3:] == [
        "release 2 of the model",
        "release 3 was bad: its loss is 9",
        "release 4 is not taken: not signed",
    ]


def test_boards_in_a_partial_aggregate_are_named():
    nodes = tuple(replace(node, partial_aggregate=1) for node in HOST.nodes)
    line = "counted last in a gateway's partial aggregate: theo, yves"
    assert line in list(describe(replace(HOST, nodes=nodes)))
    assert line not in HOST_TEXT


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "4 partial aggregates of 11 updates, 3 counted so far"),
        ({"run": None}, "no board has joined a run since the gateway started"),
        ({"refused": True}, "([run]): updates pass as they are"),
    ],
)
def test_the_partial_aggregates_of_a_gateway(changes, line):
    counts = AggregatorStatus(
        run="01", refused=False, made=4, updates=11,
        counted=3,
    )  # fmt: skip
    counts = replace(counts, **changes)
    assert list(describe(gateway_status(partial_aggregates=counts)))[-1].endswith(line)
    assert "aggregate" not in "".join(describe(gateway_status()))


@pytest.mark.parametrize("answer", [HOST, NODE])
def test_keys_and_copied_disks(answer):
    lines = "\n".join(describe(replace(answer, security=replace(KEYS, clones={"ada": 2}))))
    assert "ALARM: ada: received 2 times: frames from a copied or restored disk of ada" in lines
    lines = "\n".join(describe(replace(answer, security=replace(KEYS, clones={"all": 3}))))
    assert "ALARM: received 3 times: a broadcast that a member has forged" in lines
    lines = "\n".join(describe(replace(answer, security=SecurityStatus())))
    assert "warning: INSECURE: there are no keys" in lines


@pytest.mark.parametrize("answer", [HOST, NODE])
def test_refusals_of_a_link_by_peer(answer):
    link = replace(LINK, refused={"ada": {"suite": 3, "seal": 1}})
    line = "warning: the link refused from or for ada: seal 1, suite 3: see docs/troubleshooting.md"
    assert line in list(describe(replace(answer, transport=replace(UP, link=link))))
    bearer = replace(UP, numbers={"frames_sent": 1})
    both = replace(UP, bearers={"link": bearer}, link=link)
    lines = list(describe(replace(answer, transport=both)))
    assert line in lines
    assert f"link: connected to {UP.end}; 1 frames sent" in lines


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_watched_process_may_restart(options, monkeypatch, capsys, tmp_path):
    answers = [to_json(NODE), ControlError("no process answers"), to_json(NODE)]

    def answer(_socket, _request):
        found = answers.pop(0)
        if isinstance(found, ControlError):
            raise found
        return found

    def sleep(_seconds):
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "ask", answer)
    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["status", "--socket", str(tmp_path / "s"), "--watch", *options]) == 130
    shown = capsys.readouterr().out
    assert "no process answers" in shown
    if options:
        roles = [json.loads(line).get("role") for line in shown.splitlines()]
        assert roles == ["node", None, "node"]
    else:
        assert shown.count("board theo") == 2
