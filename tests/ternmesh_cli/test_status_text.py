import json
from dataclasses import replace
from typing import Any

import pytest

from ternmesh.federated.refusals import DIVERGED, NO_ANSWER, why
from ternmesh.federated.reputation import ALIKE
from ternmesh.federated.robust import Influence
from ternmesh_cli.main import main
from ternmesh_cli.status_text import describe
from ternmesh_service import status
from ternmesh_service.control_socket import ControlError, ControlServer
from ternmesh_store.host_store import StoredRound
from tests.statuses import DOWN, KEYS, UP, VOTERS, board, board_status, host_status, source_status
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
ALARM: yves: silent since this host started: check its power and its link: no round ends \
until enough boards are here
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
    training=status.TrainingStatus(round=7, steps_done=3, steps=8, loss=0.5),
    metric=0.9157,
    outbox=status.OutboxStatus(round=6, bytes=1250, received=False),
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
    assert status.read_status(json.loads(json.dumps(status.to_json(answer)))) == answer


LOW = board("theo", weight=0.0, since=12, reason="excluded: raises the error", unlike=True)
LINK = LinkStatus(
    objects_under_way=1, objects_sent=5, objects_lost=0, frames_refused=0, sealed=True,
    refused={"ada": {"suite": 3, "seal": 1}},
)  # fmt: skip
ENTRY = status.HistoryEntry(version=7, metric=None, loss=0.5, bytes_up=1, bytes_down=1, seconds=1.0)
RELEASES = status.InstalledReleases(
    current=2, last_good=2, attempts=0, bad=((3, "its loss is 9"),), not_taken=((4, "not signed"),)
)
WORSE = "the teacher is worse than this model"
TAUGHT = status.KnowledgeStatus(
    samples=390, known=380, number=3, teacher_accuracy=0.9312, remark=WORSE
)
TEACHING = status.TeachingStatus(group="keyword", sent=6, less={"keyword-mlp": WORSE})
LINK_REFUSES = "the link refused from or for ada: seal 1, suite 3: see docs/troubleshooting.md"


@pytest.mark.parametrize(
    ("answer", "changes", "line"),
    [
        (HOST, {"nodes": ()}, "0 boards, 0 active, a round needs 2"),
        (HOST, {"phase": "finished", "deadline_s": None}, "2 boards, the run is over"),
        (HOST, {"nodes": (LOW, YVES)}, "unlike the others: theo"),
        (HOST, {"nodes": (LOW, YVES)},
         "warning: theo: counts 0% since global update 12: excluded: raises the error: look at its "
         "samples and labels; mute or revoke it if it lies"),
        (HOST, {"nodes": (board("theo", weight=0.2, reason="often absent"), YVES)},
         "warning: theo: counts 20%: often absent: check its power and its link"),
        (HOST, {"nodes": (board("theo", weight=0.33, reason=ALIKE), YVES)},
         f"warning: theo: counts 33%: {ALIKE}: no fault where they hear the same"),
        (HOST, {"teaching": TEACHING},
         "knowledge packets of other groups: the last at global adapter 6"),
        (HOST, {"teaching": TEACHING}, f"keyword-mlp teaches less: {WORSE}"),
        (HOST, {"teaching": replace(TEACHING, sent=None)},
         "knowledge packets of other groups: none yet"),
        (HOST, {"nodes": (replace(YVES, members=30), LOW)}, "aggregators: yves of 30 boards"),
        (NEW_NODE, {"transport": UP},
         f"warning: this board has not joined a run yet: {NO_ANSWER}"),
        (NODE, {"source": source_status(by_label={"stop": 2, "go": 1}, last_label=("a\x1b", "go"))},
         "7 wait for a label; by label: go 1, stop 2, the last one: 'a\\x1b' is go; 3 refused, "
         "2 labels without a sample, 9 made room"),
        (NODE, {"source": source_status(
            live=status.LiveStatus(open=True, left_out={}, first={}, behind=9000))},
         "the source is behind: 9000 B are not read yet"),
        (NODE, {"source": source_status()},
         "7 wait for a label; by label: none; 3 refused, "
         "2 labels without a sample, 9 made room"),
        (NODE, {"transport": replace(UP, numbers={"malformed": 255, "frames_in": 900})},
         "warning: mqtt://b:1883 with MQTT 5: 255 arrivals are malformed: another program sends "
         "here, or they are damaged: see docs/troubleshooting.md"),
        (NODE, {"transport": replace(UP, numbers={"foreign": 134, "frames_in": 0})},
         "warning: mqtt://b:1883 with MQTT 5: 134 frames are for others, and none is for this end: "
         "check the addresses: see docs/troubleshooting.md"),
        (NODE, {"diverged": 3}, f"warning: training diverged in 3 rounds: {DIVERGED}"),
        (NODE, {"transport": replace(UP, link=LINK)},
         "handed to the link 12.3 kB, down 678 B since it started"),
        (NODE, {"metric": None, "history": (ENTRY,)},
         "400 samples; accuracy not measured: [evaluate] names the data for that"),
        (NODE, {"activity": "paused: too hot", "held_back": "83 C, waits for 75 C"},
         "global adapter 7 of 20, open; paused: 83 C, waits for 75 C, step 3 of 8"),
        (NODE, {"provider": "CPU, as CUDA failed"}, "training runs on CPU, as CUDA failed"),
        (NODE, {"knowledge": TAUGHT},
         "taught by other models: 380 of 390 samples, by a teacher of accuracy 0.931; " + WORSE),
        (NODE, {"releases": replace(RELEASES, current=0)},
         "no release: the configured model package"),
        (NODE, {"releases": RELEASES}, "release 2 of the model"),
        (NODE, {"releases": RELEASES}, "release 3 was bad: its loss is 9"),
        (NODE, {"releases": RELEASES}, "release 4 is not taken: not signed"),
        (HOST, {"agreement": VOTERS}, "voter barn of attic, barn, loft: attic leads"),
        (HOST, {"agreement": replace(VOTERS, missing=("attic", "loft"))},
         "voter barn of attic, barn, loft: nobody leads"),
        *(
            (answer, changes, line)
            for answer in (HOST, NODE)
            for changes, line in (
                ({"security": replace(KEYS, clones={"ada": 2})},
                 "ALARM: ada: received 2 times: frames from a copied or restored disk of ada"),
                ({"security": replace(KEYS, clones={"all": 3})},
                 "ALARM: received 3 times: a broadcast that a member has forged"),
                ({"security": replace(KEYS, clones={getattr(answer, "name", "host"): 2})},
                 f"ALARM: {getattr(answer, 'name', 'host')}: its disk was copied or restored"),
                ({"security": status.SecurityStatus()}, "warning: INSECURE: there are no keys"),
                ({"transport": replace(UP, link=LINK)}, f"warning: {LINK_REFUSES}"),
                ({"transport": replace(
                    UP, bearers={"l": replace(UP, numbers={"frames_sent": 1})}, link=LINK)},
                 f"warning: {LINK_REFUSES}"),
            )
        ),
    ],
)  # fmt: skip
def test_what_is_special_is_a_line(answer: Any, changes: dict[str, Any], line: str) -> None:
    found = list(describe(replace(answer, **changes)))
    assert [shown for shown in found if shown.startswith(line)], found
    assert line not in list(describe(answer))


def test_advice_names_the_command_as_it_was_typed(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TERNMESH_PROGRAM", "./run")
    with ControlServer(tmp_path / "s", lambda _: status.to_json(replace(NEW_NODE, transport=UP))):
        assert main(["status", "--socket", str(tmp_path / "s")]) == 0
    assert "run `./run enrol add` on the host" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes", [{"role": "satellite"}, {"phase": None}, {"later": 1}, {"version": "7"},
                {"deadline_s": True}, {"nodes": [{}]}]
)  # fmt: skip
def test_an_answer_of_another_kind(changes):
    with pytest.raises(ControlError, match="runs another version"):
        status.read_status({**status.to_json(HOST), **changes})
