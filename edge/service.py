"""The program on the board: a node with its state file, data, transport and control socket.

One thread runs the node. The threads of the transport and the control socket only pass messages to
it.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from edge.config import NodeConfig, check_config, warn_of_shared
from edge.data.replay import Feed, ReplayBuffer
from edge.data.sources import make_source, open_folder
from edge.enrolment import finish_rotation
from edge.errors import DataError
from edge.node import Node, NodeData
from edge.onnx.session import LoadedModel, load_model
from edge.releases.rollout import settle
from edge.releases.store import Releases
from edge.releases.watch import ReleaseWatch, release_check
from edge.report import status, summary, values
from ternmesh.model_package import ModelPackage
from ternmesh_service.backup import answer_backup
from ternmesh_service.config_file import control_path, package_folder
from ternmesh_service.control_socket import BACKUP, ControlServer, Relay
from ternmesh_service.keyring import Keyring, NoKeyring, choose_keyring, hop_keys, opened
from ternmesh_service.notify import ServiceManager
from ternmesh_service.wipe import wiping
from ternmesh_store.database import Database
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.factory import make_transport, pace_of

_log = logging.getLogger(__name__)


def open_data(config: NodeConfig, package: ModelPackage, database: Database) -> NodeData:
    """The data that the configuration names, checked; DataError."""
    held_out = None
    if config.evaluate.path is not None:
        with _about("evaluate"):
            held_out = open_folder(Path(config.evaluate.path), package, config.evaluate)
    data = config.data
    if data.source is None:
        assert data.path is not None
        with _about("data"):
            training = open_folder(Path(data.path), package, data)
        if len(training) < config.training.samples_min:
            raise DataError(
                f"{data.path} holds {len(training)} samples: "
                f"training.samples_min is {config.training.samples_min}"
            )
        return NodeData(training, held_out)
    folder = None if data.source_path is None else Path(data.source_path)
    with _about("data"):
        source = make_source(data.source, data.options, folder)
    buffer = ReplayBuffer(database, package, data.replay_samples_max, data.replay_bytes_max)
    if buffer.capacity < config.training.samples_min:
        raise DataError(
            f"the replay buffer has room for {buffer.capacity} samples, and training.samples_min "
            f"is {config.training.samples_min}: raise data.replay_samples_max or "
            "data.replay_bytes_max"
        )
    buffer.load()
    return NodeData(buffer, held_out, Feed(source, buffer, data.poll_s))


@contextmanager
def _about(table: str) -> Iterator[None]:
    """Add the configuration's table to the message of a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"[{table}]: {error}") from error


def run_node(config: NodeConfig, stop: threading.Event, *, insecure: bool = False) -> None:
    """Run a node until `stop` is set, with the newest good release of its model.

    `insecure` runs it without keys. Raises ConfigError, SecurityError, ModelError, DataError,
    StoreError, TransportError or ControlError if the node cannot start or continue.
    """
    check_config(config)
    warn_of_shared(config.data, config.evaluate)
    state = StateFile(Path(config.state_dir))
    keyring = choose_keyring(state, config.security, config.link, insecure=insecure)
    manager = ServiceManager()
    identity = config.security.path(state.folder)
    with wiping(state.folder, identity, config.name), opened(state, keyring, config.link.fleet):
        if isinstance(keyring, Keyring):
            finish_rotation(config.link, config.name, keyring, stop, manager.beat)
        _run_releases(config, state, keyring, stop, manager)


def _run_releases(
    config: NodeConfig,
    state: StateFile,
    keyring: Keyring | NoKeyring,
    stop: threading.Event,
    manager: ServiceManager,
) -> None:
    if config.releases.dir is None:
        loaded = load_model(package_folder(config.model))
        _serve(config, loaded, state, keyring, stop, manager, None)
        return
    if config.releases.insecure:
        _log.warning("releases are installed without signatures: [releases] insecure = true")
    releases = Releases(Path(config.releases.dir), release_check(config, keyring))
    while not stop.is_set():
        loaded = settle(config, releases, manager.beat)
        _serve(config, loaded, state, keyring, stop, manager, releases)


def _serve(
    config: NodeConfig,
    loaded: LoadedModel,
    state: StateFile,
    keyring: Keyring | NoKeyring,
    stop: threading.Event,
    manager: ServiceManager,
    releases: Releases | None,
) -> None:
    """Run a node with one model, until `stop` is set or a new release is installed."""
    package = loaded.package
    keys = hop_keys(keyring, config.name, config.link.gateway)
    transport = make_transport(config.link, config.name, state, keys)
    store, relay = NodeStore(state), Relay()
    watch = None if releases is None else ReleaseWatch(releases)
    try:
        last = store.load(package.model_hash(), package.dimension)
        data = open_data(config, package, state)
        with ControlServer(control_path(config.state_dir, config.control_socket), relay.ask):
            pace = pace_of(transport)
            node = Node(
                config,
                loaded,
                data,
                store,
                last,
                transport,
                pace=pace,
                keyring=keyring,
                beat=manager.beat,
            )
            node.management.values = partial(values, node, time.monotonic())

            def answer(request: Mapping[str, Any]) -> dict[str, Any]:
                if BACKUP in request:
                    return answer_backup(state, config.security.path(state.folder), request)
                return {
                    **status(node),
                    "transport": transport.status(),
                    "security": keyring.status(),
                    "releases": None if watch is None else watch.report,
                }

            transport.open()
            node.start()
            manager.ready()
            _log.info("%s is ready: %d samples", config.name, len(data.training))
            while not stop.is_set():
                if watch is not None and watch.sees_new_release():
                    _log.info("a release was installed: %s restarts with it", config.name)
                    break
                node.turn()
                relay.serve(answer)
                manager.turn(partial(summary, node), lambda: [transport.status()])
            if stop.is_set():
                manager.stopping()
    finally:
        transport.close()
