import argparse
import json
import time
from typing import Any

import pytest

from ternmesh.federated.refusals import DIVERGED, NO_ANSWER, why
from ternmesh_cli import status
from ternmesh_cli.main import main
from ternmesh_cli.status import describe
from ternmesh_service.control_socket import ControlError

LINK = {"broker": "mqtt://b:1883", "connected": True, "protocol": "5", "last_error": None}
STANDING = {
    "weight": 0.95,
    "reason": "",
    "since": 0,
    "agreement": -0.0421,
    "uptime": 1.0,
    "harm": 0.0,
    "unlike": False,
}
HOST: dict[str, Any] = {
    "role": "host",
    "fleet": "garden",
    "model": "keyword",
    "run": "0123456789abcdef",
    "version": 7,
    "rounds": 20,
    "phase": "open",
    "deadline_s": 12.4,
    "behind": None,
    "aggregation": {"rule": "krum", "remark": "krum failed: the weighted mean is taken"},
    "min_peers": 2,
    "global_hash": "a1b2c3d4e5f60718293a4b5c6d7e8f90",
    "refused": {"seal": 30, "old round": 2},
    "transport": LINK,
    "nodes": [
        {
            "name": "theo",
            "context": 1,
            "samples": 400,
            "active": True,
            "revoked": False,
            "heard_s_ago": 0.3,
            "delivered": "whole",
            "refused": {},
            "rounds_counted": 7,
            "rounds_missed": 0,
            "bytes_up": 9724,
            "bytes_down": 10_500,
            "standing": STANDING,
            "influence": {"share": 0.71234, "norm": 0.5, "clipped": 0.25},
        },
        {
            "name": "yves",
            "context": 2,
            "samples": 40,
            "active": False,
            "revoked": False,
            "heard_s_ago": None,
            "delivered": "none",
            "refused": {"old round": 2},
            "rounds_counted": 6,
            "rounds_missed": 1,
            "bytes_up": 8000,
            "bytes_down": 9000,
            "standing": {**STANDING, "agreement": None},
        },
    ],
    "history": [
        {
            "version": version,
            "counted": ["theo", "yves"] if version < 7 else ["theo"],
            "missing": [] if version < 7 else ["yves"],
            "bytes_up": {"theo": 1300, "yves": 1200},
            "bytes_down": 4000,
            "seconds": 1.25,
        }
        for version in range(1, 8)
    ],
}
HOST_TEXT = f"""\
host of fleet garden, model keyword, run 0123456789abcdef
connected to mqtt://b:1883 with MQTT 5
global adapter 7 of 20 (a1b2c3d4e5f6), open, 12 s left
2 nodes, 1 active, a round needs 2
krum failed: the weighted mean is taken
refused old round 2 from yves: {why("old round", on_host=True)}
refused seal 30: {why("seal", on_host=True)}

node  active  heard    update  counted  missed  weight  samples  up      down     trust  to others
theo  yes     0 s ago  whole   7        0       71%     400      9724 B  10.5 kB  95%    -0.04
yves  no      never    none    6        1       -       40       8000 B  9000 B   95%    -
longer than updates usually are, and cut: theo to 25%

version  seconds  counted     missing  up      down
3        1.2      theo, yves  -        2500 B  4000 B
4        1.2      theo, yves  -        2500 B  4000 B
5        1.2      theo, yves  -        2500 B  4000 B
6        1.2      theo, yves  -        2500 B  4000 B
7        1.2      theo        yves     2500 B  4000 B"""

NODE = {
    "role": "node",
    "diverged": 0,
    "name": "theo",
    "fleet": "garden",
    "model": "keyword",
    "version": 7,
    "rounds": 20,
    "phase": "open",
    "activity": "training",
    "training": {"round": 7, "steps_done": 3, "steps": 8, "loss": 0.5},
    "samples": 400,
    "metric_name": "accuracy",
    "metric": 0.9157,
    "outbox": {"round": 6, "bytes": 1250, "received": False},
    "bytes_up": 12_345,
    "bytes_down": 678,
    "refused": {"seal": 10},
    "transport": LINK,
    "source": None,
    "history": [],
}
NODE_TEXT = f"""\
node theo of fleet garden, model keyword
connected to mqtt://b:1883 with MQTT 5
global adapter 7 of 20, open; training, step 3 of 8
400 samples; accuracy 0.916
up 12.3 kB, down 678 B since it started
refused seal 10: {why("seal", on_host=False)}
outbox: the update of round 7, 1250 B, no receipt yet"""
NEW_NODE = {
    **NODE,
    "version": 0,
    "rounds": None,
    "phase": "gathering",
    "activity": "joining",
    "training": None,
    "metric": None,
    "metric_name": "mean_absolute_error",
    "outbox": None,
    "refused": {},
    "transport": {**LINK, "connected": False, "protocol": None, "last_error": "cannot reach it"},
}
NEW_NODE_TEXT = """\
node theo of fleet garden, model keyword
not connected to mqtt://b:1883: cannot reach it
global adapter 0, no run joined yet, gathering; joining
400 samples; mean absolute error not measured yet
up 12.3 kB, down 678 B since it started"""


@pytest.mark.parametrize(
    ("answer", "text"), [(HOST, HOST_TEXT), (NODE, NODE_TEXT), (NEW_NODE, NEW_NODE_TEXT)]
)
def test_text_for_people(answer, text):
    assert "\n".join(describe(answer)) == text


def test_a_host_that_nobody_has_joined():
    answer = {**HOST, "nodes": [], "history": [], "deadline_s": None, "phase": "gathering"}
    assert list(describe(answer))[2:] == [
        "global adapter 7 of 20 (a1b2c3d4e5f6), gathering",
        "0 nodes, 0 active, a round needs 2",
        "krum failed: the weighted mean is taken",
        f"refused old round 2: {why('old round', on_host=True)}",
        f"refused seal 30: {why('seal', on_host=True)}",
    ]


def test_the_first_refusals_after_a_start_are_not_shown():
    assert not [line for line in describe({**HOST, "refused": {"seal": 9}}) if "seal " in line]


def test_advice_names_the_command_as_it_was_typed(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TERNMESH_PROGRAM", "./run")
    monkeypatch.setattr(status, "ask", lambda socket, request: {**NEW_NODE, "transport": LINK})
    status.run(argparse.Namespace(socket=tmp_path, config=None, node=None, json=False, watch=False))
    assert "run `./run enrol add` on the host" in capsys.readouterr().out


def test_after_the_run_no_node_is_called_inactive():
    nodes = [{**node, "active": False} for node in HOST["nodes"]]
    text = "\n".join(describe({**HOST, "phase": "finished", "deadline_s": None, "nodes": nodes}))
    assert "2 nodes, the run is over" in text
    assert "theo  -       0 s ago" in text


def test_who_is_trusted_little_or_unlike_the_others_is_named():
    low = {**STANDING, "weight": 0.0, "since": 12, "reason": "excluded: raises the error"}
    theo = {**HOST["nodes"][0], "standing": {**low, "unlike": True}}
    lines = list(describe({**HOST, "nodes": [theo, HOST["nodes"][1]]}))
    assert "unlike the others: theo" in lines
    assert "theo counts 0% since global update 12: excluded: raises the error" in lines


def test_fifty_boards_stay_readable():
    names = [f"board-{number:02}" for number in range(50)]
    row = {**HOST["nodes"][0], "refused": {"suite": 1}, "standing": {**STANDING, "unlike": True}}
    nodes = [{**row, "name": name} for name in names]
    nodes[7] |= {"revoked": True, "active": False}
    item = {**HOST["history"][0], "counted": names[::-1], "missing": names}
    shown = {**HOST, "nodes": nodes, "refused": {"suite": 50}, "history": [item]}
    lines = list(describe(shown))
    some = "board-00, board-01, board-02 and 47 more"
    assert f"refused suite 50 from {some}: {why('suite', on_host=True)}" in lines
    assert f"unlike the others: {some}" in lines
    assert sum(line.count(some) for line in lines) == 4
    assert [line.split()[:2] for line in lines if "revoked" in line] == [["board-07", "revoked"]]
    assert max(map(len, lines)) < 200


def test_a_node_that_nobody_answers():
    assert NO_ANSWER in list(describe({**NEW_NODE, "transport": LINK}))


@pytest.mark.parametrize(
    ("last", "labels", "shown"),
    [
        (["a\x1b", "stop"], {"stop": 2, "go": 1}, "go 1, stop 2, the last one: 'a\\x1b' is stop"),
        (None, {}, "none"),
    ],
)
def test_a_node_with_a_source_shows_its_samples(last, labels, shown):
    source = {"waiting": 7, "by_label": labels, "last_label": last, "refused": 3}
    answer = {**NODE, "source": {**source, "evicted": 4, "expired": 5}}
    assert f"7 wait for a label; by label: {shown}; 3 refused, 9 made room" in list(
        describe(answer)
    )


def test_a_node_whose_training_diverges():
    (line,) = (line for line in describe({**NODE, "diverged": 3}) if "diverge" in line)
    assert line.endswith(f"diverged: 3; {DIVERGED}")


def test_bytes_that_wait_for_a_modem_are_not_called_sent():
    link = {"objects_under_way": 1, "objects_lost": 0, "refused": {}}
    text = "\n".join(describe({**NODE, "transport": {**LINK, "link": link}}))
    assert "\nhanded to the link " in text


def test_a_node_without_evaluation_data():
    answer = {**NODE, "metric": None, "history": [{"version": 7, "metric": None}]}
    assert "400 samples; accuracy not measured: [evaluate] names" in "\n".join(describe(answer))


def test_the_best_adapter_is_shown_beside_the_newest():
    best = {"version": 5, "metric": 0.934}
    answer = {**NODE, "best": best, "use": "newest", "adapter": "s/current.onnx_adapter"}
    line = (
        "400 samples; accuracy 0.916, best 0.934 (global adapter 5); s/current.onnx_adapter is the"
    )
    assert f"{line} newest" in list(describe(answer))


def test_a_board_that_waits_says_why_and_where_it_trains():
    training = {"round": 7, "steps_done": 3, "steps": 8, "loss": None}
    held: dict[str, Any] = {"activity": "paused: too hot", "held_back": "83 C, waits for 75 C"}
    held["training"] = training
    reason = "CPUExecutionProvider, as CUDAExecutionProvider failed: no engine"
    text = "\n".join(describe({**NODE, **held, "provider": reason}))
    assert "; paused: 83 C, waits for 75 C, step 3 of 8\n" in text
    assert f"\ntraining runs on {reason}\n" in text
    for provider in ("CPUExecutionProvider", ""):
        assert "\n".join(describe({**NODE, "held_back": "", "provider": provider})) == NODE_TEXT


def test_a_mixed_fleet_shows_what_is_taught():
    why = "the teacher is worse than this model"
    taught = {"samples": 390, "known": 380, "teacher_accuracy": 0.9312, "remark": why}
    lines = list(describe({**NODE, "knowledge": taught}))
    shown = "taught by other models: 380 of 390 samples, by a teacher of accuracy 0.931"
    assert f"{shown}; {why}" in lines
    teaching: dict[str, Any] = {"group": "keyword", "sent": None, "less": {}}
    assert "knowledge packets of other groups: none yet" in list(
        describe({**HOST, "teaching": teaching})
    )
    teaching |= {"sent": 6, "less": {"keyword-mlp": why}}
    lines = list(describe({**HOST, "teaching": teaching}))
    assert "knowledge packets of other groups: the last at global adapter 6" in lines
    assert f"keyword-mlp teaches less: {why}" in lines


def test_an_answer_of_another_kind():
    with pytest.raises(ControlError, match="neither a host nor a node"):
        describe({"role": "satellite"})


def test_releases_of_the_model_are_shown():
    releases = {"current": 0, "last_good": 0, "bad": [], "not_taken": []}
    assert [*describe({**NODE, "releases": releases})][
        -1
    ] == "no release: the configured model package"
    bad = [{"version": 3, "reason": "its loss is 9"}]
    refused = [{"version": 4, "reason": "not signed"}]
    releases |= {"current": 2, "bad": bad, "not_taken": refused}
    assert [*describe({**NODE, "releases": releases})][-3:] == [
        "release 2 of the model",
        "release 3 was bad: its loss is 9",
        "release 4 is not taken: not signed",
    ]
    assert "\n".join(describe({**NODE, "releases": None})) == NODE_TEXT


def test_nodes_in_a_partial_aggregate_are_named():
    nodes = [{**node, "partial_aggregate": 1} for node in HOST["nodes"]]
    line = "counted last in a gateway's partial aggregate: theo, yves"
    assert line in list(describe({**HOST, "nodes": nodes}))
    assert line not in HOST_TEXT


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "4 partial aggregates of 11 updates, 3 counted so far"),
        ({"run": None}, "no board has joined a run since the gateway started"),
        ({"refused": True}, "([run] partial_aggregates): updates pass as they are"),
    ],
)
def test_the_partial_aggregates_of_a_gateway(changes, line):
    counts = {"run": "01", "refused": False, "made": 4, "updates": 11}
    counts |= {"counted": 3, **changes}
    gateway = {"role": "gateway", "transport": LINK, "network": {"ada": LINK}, "frames_up": 1}
    gateway |= {
        "frames_down": 2,
        "frames_refused": 0,
        "frames_lost": 0,
        "partial_aggregates": counts,
    }
    assert list(describe(gateway))[-1].endswith(line)
    assert "aggregate" not in "".join(describe({**gateway, "partial_aggregates": None}))


def test_keys_and_copied_disks():
    for answer in (HOST, NODE):
        keys = {"mode": "keys", "fingerprint": "ab" * 16, "fleet": "cd" * 16, "clones": {}}
        assert "keys abababababab, sealed and signed" in list(
            describe({**answer, "security": keys})
        )
        lines = list(describe({**answer, "security": {**keys, "clones": {"ada": 2}}}))
        assert any(
            "2 times: frames from a copied or restored disk of ada" in line for line in lines
        )
        lines = list(describe({**answer, "security": {**keys, "clones": {"all": 3}}}))
        assert any("3 times: a broadcast that a member has forged" in line for line in lines)
        lines = list(describe({**answer, "security": {"mode": "insecure"}}))
        assert any(line.startswith("INSECURE") for line in lines)


@pytest.mark.parametrize("answer", [HOST, NODE])
def test_refusals_of_a_link_by_peer(answer):
    link = {"objects_under_way": 1, "objects_lost": 0, "refused": {"ada": {"suite": 3, "seal": 1}}}
    radio = {"dialect": "rnode", "port": "/dev/x", "connected": True, "airtime_us": 5, "link": link}
    lines = list(describe({**answer, "transport": radio}))
    found = "the link refused from or for ada: seal 1, suite 3 (docs/troubleshooting.md)"
    assert found in lines
    both: dict[str, Any] = {
        "bearers": {"link": {**radio, "frames_sent": 1, "link": {}}},
        "link": link,
    }
    radio.pop("link")
    both["bearers"]["link"].pop("link")
    assert found in list(describe({**answer, "transport": both}))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_watched_process_may_restart(options, monkeypatch, capsys, tmp_path):
    answers = [NODE, ControlError("no process answers"), NODE]

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
        assert shown.count("node ") >= 2
