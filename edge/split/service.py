"""The program of a board in a split training: its files, its data, its link, its control socket."""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.config import warn_of_shared
from edge.data.sources import open_folder
from edge.split.config import SplitBoardConfig
from edge.split.node import SplitNode, with_labels
from edge.split.part import load_parts
from ternmesh_service.config_file import control_path
from ternmesh_service.control_socket import ControlServer, Relay
from ternmesh_service.keyring import choose_keyring, hop_keys, opened
from ternmesh_service.status import SplitBoardStatus, to_json
from ternmesh_store.split_store import SplitStore
from ternmesh_store.state_file import StateFile
from transports.base import Transport
from transports.factory import make_transport, pace_of


def run_split_board(
    config: SplitBoardConfig,
    stop: threading.Event,
    *,
    insecure: bool = False,
    until_finished: bool = False,
    around: Callable[[Transport], Transport] = lambda transport: transport,
) -> SplitBoardStatus:
    """Run a board until `stop` is set, or until all is done; its last status.

    Raises what `edge.service.run_node` raises. `around` may wrap the transport, for example to
    simulate a bad link.
    """
    state = StateFile(Path(config.state_dir))
    keyring = choose_keyring(state, config.security, config.link, insecure=insecure)
    parts = load_parts(Path(config.model), config.training.threads)
    package = with_labels(parts[0].package)
    assert config.data.path is not None
    warn_of_shared(config.data, config.evaluate)
    training = open_folder(Path(config.data.path), package, config.data)
    held_out = None
    if config.evaluate.path is not None:
        held_out = open_folder(Path(config.evaluate.path), package, config.evaluate)
    store, relay = SplitStore(state), Relay()
    keys = hop_keys(keyring, config.name, config.link.gateway)
    transport = make_transport(config.link, config.name, state, keys)
    with opened(state, keyring, config.link.fleet), closing(transport):
        wrapped = around(transport)
        pace = pace_of(transport)
        node = SplitNode(
            config, parts, training, held_out, store, wrapped, keyring=keyring, pace=pace
        )

        def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
            status = replace(node.status(), transport=transport.status(), security=keyring.status())
            return to_json(status)

        with ControlServer(control_path(config.state_dir, config.control_socket), relay.ask):
            wrapped.open()
            node.start()
            while not stop.is_set() and not (until_finished and node.is_done):
                node.turn()
                relay.serve(answer)
            node.save()
        return node.status()
