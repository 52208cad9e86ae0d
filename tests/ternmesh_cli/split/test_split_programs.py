"""The programs of a split training: configuration, keys and the pace of the transport."""

import pkgutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from bench.loopback import LoopbackHub
from edge.split.config import read_split_board_config
from host.split.config import read_split_host_config
from host.split.service import SplitService
from host.split.stage import TorchStage
from ternmesh.errors import TernmeshError
from ternmesh.federated.registry import NodeRegistry
from ternmesh.split.host import Board, SplitSettings
from ternmesh.split.messages import ActivationReassembler
from ternmesh.wire.control import FINISHED
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_store.split_store import SplitStore
from ternmesh_store.state_file import StateFile
from tests.ternmesh_cli.split.split_training import PLAN, Clock, make_cut
from transports.link_config import LinkConfig

BOARD_TOML = """
name = "theo"
state_dir = "theo"
model = "parts"
[link]
url = "mqtt://127.0.0.1:1"
[data]
path = "clips.npz"
"""


def test_codes_and_revocations_end_at_a_split_host(tmp_path: Path) -> None:
    enrol_fleet("garden", tmp_path / "host", {n: tmp_path / n for n in ("theo", "nora")})
    files = {name: StateFile(tmp_path / name) for name in ("host", "theo")}
    rings = {name: Keyring(file, SecurityConfig()) for name, file in files.items()}
    hub, store = LoopbackHub(), SplitStore(files["host"])
    with ExitStack() as stack:
        for ring in rings.values():
            ring.state.open()
            stack.callback(ring.state.close)
            ring.open()
        model, transport, clock = bytes(32), hub.host(), Clock()
        stage = TorchStage(make_cut().rest, 1.0)
        ring = rings["host"]
        service = SplitService(
            PLAN, SplitSettings(), model, stage, store, transport, clock, keyring=ring
        )
        transport.open()
        service.start()
        assert len(service.enrol({"enrol": "list"})["members"]) == 2
        assert service.enrol({"enrol": "code", "role": "node", "minutes": 1.0})["code"]

        boards = (
            Board(1, "theo", 40, ActivationReassembler(PLAN), is_done=True),
            Board(2, "nora", 0, ActivationReassembler(PLAN)),
        )
        service.host.nodes = NodeRegistry(boards, new=cast(Any, Board))
        service.host.start(clock.now)
        assert service.status().phase == "open"
        service.enrol({"enrol": "revoke", "name": "nora"})
        assert service.host._phase_told == FINISHED, "the others are told at once"


def test_enrol_reads_a_split_boards_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enrol_fleet("garden", tmp_path / "host", {"theo": tmp_path / "theo"})
    config, asked = tmp_path / "board.toml", []
    config.write_text(BOARD_TOML + "[training]\ncheckpoint = 5\n")
    monkeypatch.setattr("ternmesh.security.enrolment.read_code", lambda _: None)

    def ask(link: LinkConfig, name: str, *_: object) -> None:
        asked.append((link.url, name))
        raise TernmeshError("nobody is there")

    monkeypatch.setattr("edge.enrolment.join", ask)
    main(["enrol", "join", "--config", str(config), "AAAA"])
    assert asked == [("mqtt://127.0.0.1:1", "theo")]


@pytest.mark.parametrize("name", ["host.toml", "board.toml"])
def test_the_examples_are_read(name: str) -> None:
    path = Path(__file__).parents[3] / "examples" / "split" / name
    if name == "host.toml":
        host = read_split_host_config(path)
        assert host.run.min_boards == 3
        assert callable(pkgutil.resolve_name(host.builder))
    else:
        config = read_split_board_config(path)
        assert config.data.path is not None
        assert Path(config.data.path).exists()
