"""The program on the board: a node with its files, its data, its broker and its control socket.

One thread owns everything; those of the transport and of the control socket only hand things over.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edge.config import NodeConfig, bundle_folder, check_config, npz_settings
from edge.errors import DataError
from edge.feed import Feed
from edge.joining import finish_rotation
from edge.node import Node, NodeData
from edge.release_trust import release_check
from edge.release_watch import ReleaseWatch
from edge.releases import Releases
from edge.replay import ReplayBuffer
from edge.report import status
from edge.rollout import settle
from edge.session import LoadedBundle, load_bundle
from edge.sources import make_source, open_folder
from ternmesh.bundle import Bundle
from ternmesh_store.keyring import Keyring, NoKeyring, choose_keyring, hop_keys
from ternmesh_store.node_store import NodeStore
from ternmesh_store.radio_stores import RadioStores
from transports.bearer import make_transport, pace_of
from transports.control_socket import ControlServer, Relay

_log = logging.getLogger(__name__)


@contextmanager
def open_data(config: NodeConfig, bundle: Bundle) -> Iterator[NodeData]:
    """The data that a config names, ready to use; DataError with a sentence."""
    held_out = None
    if config.evaluate.path is not None:
        with _about("evaluate"):
            path = Path(config.evaluate.path)
            held_out = open_folder(path, bundle, npz_settings(config.evaluate))
    data = config.data
    if data.source is None:
        assert data.path is not None
        with _about("data"):
            training = open_folder(Path(data.path), bundle, npz_settings(data))
        if len(training) < config.training.samples_min:
            raise DataError(
                f"{data.path} holds {len(training)} samples: "
                f"training.samples_min asks for {config.training.samples_min}"
            )
        yield NodeData(training, held_out)
        return
    folder = None if data.source_path is None else Path(data.source_path)
    with _about("data"):
        source = make_source(data.source, data.options, folder)
    buffer = ReplayBuffer(
        config.replay_path, bundle, data.replay_samples_max, data.replay_bytes_max
    )
    if buffer.capacity < config.training.samples_min:
        raise DataError(
            f"the replay buffer has room for {buffer.capacity} samples, so that the "
            f"{config.training.samples_min} of training.samples_min never come together: raise "
            "data.replay_samples_max or data.replay_bytes_max"
        )
    buffer.open()
    try:
        yield NodeData(buffer, held_out, Feed(source, buffer, data.poll_s))
    finally:
        buffer.close()


@contextmanager
def _about(table: str) -> Iterator[None]:
    """Errors about data name the table of the config that leads to it."""
    try:
        yield
    except DataError as error:
        raise DataError(f"[{table}]: {error}") from error


def run_node(config: NodeConfig, stop: threading.Event, *, insecure: bool = False) -> None:
    """Be a node until `stop` is set, with the newest release of its model that is good.

    Raises ConfigError, TrustError, ModelError, DataError, StoreError, TransportError or
    ControlError where the node cannot start or go on. `insecure`: without keys.
    """
    check_config(config)
    keyring = choose_keyring(
        Path(config.state_dir),
        config.trust,
        insecure=insecure,
        is_loopback=config.link.is_loopback,
    )
    keyring.open()
    try:
        keyring.check_fleet(config.link.fleet)
        if isinstance(keyring, Keyring):
            finish_rotation(config.link, config.name, Path(config.state_dir), keyring, stop)
        _run_releases(config, keyring, stop)
    finally:
        keyring.close()


def _run_releases(config: NodeConfig, keyring: Keyring | NoKeyring, stop: threading.Event) -> None:
    if config.releases.dir is None:
        _serve(config, load_bundle(bundle_folder(config)), keyring, stop, None)
        return
    if config.releases.insecure:
        _log.warning("nothing checks who made a release: [releases] insecure = true")
    releases = Releases(Path(config.releases.dir), release_check(config, keyring))
    while not stop.is_set():
        _serve(config, settle(config, releases), keyring, stop, releases)


def _serve(
    config: NodeConfig,
    loaded: LoadedBundle,
    keyring: Keyring | NoKeyring,
    stop: threading.Event,
    releases: Releases | None,
) -> None:
    """Be a node with one bundle, until `stop` is set or a new release is installed."""
    bundle = loaded.bundle
    stores = RadioStores(Path(config.state_dir))
    keys = hop_keys(keyring, config.name, config.link.gateway)
    transport = make_transport(config.link, config.name, stores, keys)
    store, relay = NodeStore(config.store_path), Relay()
    watch = None if releases is None else ReleaseWatch(releases)
    store.open()
    try:
        state = store.load(bundle.model_hash(), bundle.dimension)
        with open_data(config, bundle) as data, ControlServer(config.control_path, relay.ask):
            pace = pace_of(transport)
            node = Node(config, loaded, data, store, state, transport, pace=pace, keyring=keyring)

            def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
                told = None if watch is None else watch.told
                about = {"transport": transport.status(), "trust": keyring.status()}
                return {**status(node), **about, "releases": told}

            transport.open()
            node.start()
            _log.info("%s is ready: %d samples", config.name, len(data.training))
            while not stop.is_set():
                if watch is not None and watch.is_news():
                    _log.info("a release was installed: %s begins again", config.name)
                    break
                node.turn()
                relay.serve(answer)
    finally:
        transport.close()
        store.close()
