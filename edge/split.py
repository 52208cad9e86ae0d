"""The program of a board in a split training: its files, its data, its link, its control socket."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edge.config import npz_settings
from edge.joining import finish_rotation
from edge.sources import open_folder
from edge.split_config import SplitBoardConfig
from edge.split_node import SplitNode, load_parts, with_labels
from ternmesh_store.keyring import Keyring, choose_keyring, hop_keys
from ternmesh_store.radio_stores import RadioStores
from ternmesh_store.split_store import SplitStore
from transports.base import Transport
from transports.bearer import make_transport, pace_of
from transports.control_socket import ControlServer, Relay


def run_split_board(
    config: SplitBoardConfig,
    stop: threading.Event,
    *,
    insecure: bool = False,
    until_finished: bool = False,
    around: Callable[[Transport], Transport] = lambda transport: transport,
) -> dict[str, Any]:
    """Be a board until `stop` is set, or all is done; returns its last status.

    Raises what `edge.runtime.run_node` raises. `around` may wrap the transport, as a simulation
    of a bad link does.
    """
    folder = Path(config.state_dir)
    keyring = choose_keyring(
        folder, config.trust, insecure=insecure, is_loopback=config.link.is_loopback
    )
    parts = load_parts(Path(config.bundle), config.training.threads)
    bundle = with_labels(parts[0].bundle)
    assert config.data.path is not None
    training = open_folder(Path(config.data.path), bundle, npz_settings(config.data))
    held_out = None
    if config.evaluate.path is not None:
        settings = npz_settings(config.evaluate)
        held_out = open_folder(Path(config.evaluate.path), bundle, settings)
    store, relay = SplitStore(config.store_path), Relay()
    keys = hop_keys(keyring, config.name, config.link.gateway)
    transport = make_transport(config.link, config.name, RadioStores(folder), keys)
    keyring.open()
    try:
        keyring.check_fleet(config.link.fleet)
        if isinstance(keyring, Keyring):
            finish_rotation(config.link, config.name, folder, keyring, stop)
        store.open()
        wrapped = around(transport)
        pace = pace_of(transport)
        node = SplitNode(
            config, parts, training, held_out, store, wrapped, keyring=keyring, pace=pace
        )

        def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
            about = {"transport": transport.status(), "trust": keyring.status()}
            return {**node.status(), **about}

        with ControlServer(config.control_path, relay.ask):
            wrapped.open()
            node.start()
            while not stop.is_set() and not (until_finished and node.is_done):
                node.turn()
                relay.serve(answer)
            node.save()
        return node.status()
    finally:
        transport.close()
        store.close()
        keyring.close()
