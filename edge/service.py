"""The program on the board: a node with its state file, data, transport and control socket.

One thread runs the node. The threads of the transport and the control socket only pass messages to
it.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edge.config import NodeConfig, check_config, warn_of_shared
from edge.data.front import front_of
from edge.data.labels import PresentModel, answer_data, finish_data
from edge.data.node_data import NodeData, open_data
from edge.node import Node
from edge.onnx.session import LoadedModel, load_model
from edge.regions import Regions
from edge.releases.incoming import Incoming
from edge.releases.rollout import settle
from edge.releases.store import Releases, release_check
from edge.report import status, summary, values
from ternmesh_service.backup import answer_backup
from ternmesh_service.config_file import control_path, package_folder
from ternmesh_service.control_socket import BACKUP, DATA, INSTALLED, RELOAD, ControlServer, Relay
from ternmesh_service.keyring import Keyring, NoKeyring, choose_keyring, hop_keys, opened
from ternmesh_service.machine import Machine
from ternmesh_service.mqtt_health import served_health
from ternmesh_service.notify import ServiceManager
from ternmesh_service.servers import servers_of
from ternmesh_service.status import to_json
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.base import StatusTransport
from transports.factory import make_transport, pace_of

_log = logging.getLogger(__name__)


def run_node(config: NodeConfig, stop: threading.Event, *, insecure: bool = False) -> None:
    """Run a node until `stop` is set, with the newest good release of its model.

    `insecure` runs it without keys. Raises ConfigError, SecurityError, ModelError, DataError,
    StoreError, TransportError or ControlError if the node cannot start or continue.

    >>> from tempfile import TemporaryDirectory
    >>> import edge
    >>> from models.zoo import fsdd_path
    >>> stop = threading.Event()
    >>> stop.set()  # so that this example ends at once
    >>> with TemporaryDirectory() as folder:
    ...     link = edge.LinkConfig(url="mqtt://127.0.0.1:1", fleet="attic")
    ...     names = {"features": "x", "target": "y"}
    ...     clips = edge.DataConfig(path=str(fsdd_path("train")), arrays=names, divide_by=255)
    ...     config = edge.NodeConfig("theo", str(Path(folder, "state")), "keyword", link, clips)
    ...     edge.run_node(config, stop, insecure=True)
    """
    check_config(config)
    warn_of_shared(config.data, config.evaluate)
    state = StateFile(Path(config.state_dir))
    keyring = choose_keyring(state, config.security, config.link, insecure=insecure)
    manager = ServiceManager()
    with opened(state, keyring, config.link.fleet):
        regions = Regions(config, keyring) if config.link.aggregators else None
        if config.releases.dir is None:
            loaded = load_model(package_folder(config.model))
            while True:
                _serve(config, loaded, state, keyring, stop, manager, None, regions)
                if stop.is_set():
                    return
        if config.releases.insecure:
            _log.warning("releases are installed without signatures: [releases] insecure = true")
        releases = Releases(Path(config.releases.dir), release_check(config, keyring))
        while not stop.is_set():
            loaded = settle(config, releases, manager.beat)
            _serve(config, loaded, state, keyring, stop, manager, releases, regions)


def _answer(
    state: StateFile,
    node: Node,
    incoming: Incoming | None,
    parts: Mapping[str, Callable[[], Any]],
    reload: threading.Event,
    request: Mapping[str, Any],
) -> dict[str, Any]:
    """The answer to a request over the control socket; `parts` is more of the status."""
    if BACKUP in request:
        return answer_backup(state, node.config.security.path(state.folder), request)
    if {INSTALLED, DATA} & set(request) and state.loss:
        return {"error": state.loss}
    if INSTALLED in request and incoming is not None:
        incoming.survey()
        return {"waits": incoming.waits}
    if RELOAD in request:
        reload.set()
        return {RELOAD: True}
    if DATA in request:
        feed = node.data.feed
        buffer = None if feed is None else feed.buffer
        return answer_data(buffer, request, present_model(node), feed)
    whole = replace(status(node), **{name: read() for name, read in parts.items()})
    return to_json(whole)


def present_model(node: Node) -> PresentModel:
    """What requests about labels need of the model."""
    held_out, settings, front = node.data.held_out, node.config, node.package.front
    scored = [entry for entry in node.evaluation.history if entry.metric is not None]
    return PresentModel(
        scores=node.scores,
        held_out_count=0 if held_out is None else min(len(held_out), settings.evaluate.samples_max),
        score=scored[-1].metric if scored else None,
        clip_s=front.length / front.rate if front and front.rate else 0.0,
    )


def _intake(
    node: Node, loaded: LoadedModel, keyring: Keyring | NoKeyring, releases: Releases
) -> Incoming:
    """What takes releases that come over the link."""
    check = release_check(node.config, keyring)
    made = Incoming(node.config, releases, check, loaded.folder, random.Random())
    made.send = node.protocol.send_release_status
    made.open(loaded.package.name, time.monotonic())
    node.protocol.take_release = made.take
    return made


def _parts(
    machine: Machine,
    transport: StatusTransport,
    keyring: Keyring | NoKeyring,
    incoming: Incoming | None,
    data: NodeData,
    regions: Regions | None,
) -> dict[str, Callable[[], Any]]:
    """What a board's status has beside its run, by the name of the field."""
    return {
        "machine": machine.status,
        "transport": transport.status,
        "security": keyring.status,
        "releases": lambda: incoming and incoming.installed,
        "incoming": lambda: incoming and incoming.report(),
        "knowledge": lambda: data.knowledge and data.knowledge.status(),
        **({} if regions is None else regions.parts),
    }


def _serve(
    config: NodeConfig,
    loaded: LoadedModel,
    state: StateFile,
    keyring: Keyring | NoKeyring,
    stop: threading.Event,
    manager: ServiceManager,
    releases: Releases | None,
    regions: Regions | None,
) -> None:
    """Run a node with one model, until `stop` is set, a release is installed, or it moves."""
    package, reload = loaded.package, threading.Event()
    store, relay, link = NodeStore(state), Relay(), config.link
    last = store.load(package.model_hash(), package.dimension, package.adapter_key())
    if regions is not None:
        link, last = regions.begin(store, last)
    keys = hop_keys(keyring, config.name, link.gateway or link.aggregator)
    transport = make_transport(link, config.name, state, keys)
    with closing(transport):
        data = open_data(config, package, state, front_of(config, loaded, manager.beat))
        path = control_path(config.state_dir, config.control_socket)
        server = ControlServer(path, lambda request: finish_data(relay.ask(request)))
        with closing(data), server, ExitStack() as stack:
            served = servers_of(config.page, config.metrics, config.alarms, path, state.folder)
            servers = stack.enter_context(served)
            stack.enter_context(served_health(config.health, path, config.link.fleet, config.name))
            made = partial(Node, replace(config, link=link), loaded, data, store, last, transport)
            node = made(pace=pace_of(transport), keyring=keyring, beat=manager.beat)
            node.management.values = partial(values, node, time.monotonic(), transport.status)
            incoming = None if releases is None else _intake(node, loaded, keyring, releases)
            transport.open()
            node.start()
            machine = Machine(state, config.page, config.link, servers)
            parts = _parts(machine, transport, keyring, incoming, data, regions)
            if config.predict.enabled:
                from edge.predict.server import predicting  # with asyncio, which takes memory

                parts["predict"] = stack.enter_context(predicting(config, loaded, node))
            answer = partial(_answer, state, node, incoming, parts, reload)
            servers.turn(time.monotonic())
            manager.ready()
            _log.info("%s is ready: %d samples", config.name, data.count)
            while not (stop.is_set() or reload.is_set()):
                if incoming is not None and incoming.waits:
                    _log.info("a release was installed: %s restarts with it", config.name)
                    break
                node.turn()
                if regions is not None and regions.turn(node):
                    break
                servers.turn(time.monotonic())
                if incoming is not None:
                    incoming.poll(time.monotonic())
                relay.serve(answer)
                manager.turn(partial(summary, node), lambda: [transport.status()])
            if stop.is_set():
                manager.stopping()
