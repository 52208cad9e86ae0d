"""An aggregator's session with the host above it, where it is a node that trains nothing.

What its boards' updates come to is its own update there. Each global update that it gets goes on to
its boards as it came, with a proof of which of their updates it counts. Its state there has a file
of its own, in the folder `upstream` of the state folder: a program that starts again compares both.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from host.config import HostConfig
from ternmesh.federated.aggregation import older_adapter
from ternmesh.federated.audit import Shown, is_drawn, write_shown
from ternmesh.federated.events import AddedUp, NodeEvent
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.open_round import Count
from ternmesh.federated.state import ChainLink, HostSettings
from ternmesh.model_package import ModelPackage
from ternmesh.plan import Plan
from ternmesh.security.membership import HOST
from ternmesh.types import ModelQ24
from ternmesh.wire.global_update import GlobalUpdate, read_object, split_certificate
from ternmesh.wire.proof import Leaf, RoundRows, proved_rows, read_proof
from ternmesh.wire.update import AGGREGATOR_FRAME_MIN, write_manifest
from ternmesh_service.keyring import Keyring, NoKeyring
from ternmesh_service.member_list import MemberListClient
from ternmesh_service.notify import ServiceManager
from ternmesh_service.status import UpstreamStatus
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.base import StatusTransport
from transports.driver import Driver
from transports.factory import frame_max, make_transport, pace_of

FOLDER = "upstream"  # of the state folder
INSTANCE_SIZE = 8
POLL_S = 0.1

_log = logging.getLogger(__name__)


def settings_below(settings: HostSettings) -> HostSettings:
    """The settings of a host that adds up: only the host above probes boards and goes back."""
    rule = replace(settings.aggregation, guard=0.0, probes=False)
    return replace(settings, aggregation=rule, is_aggregator=True)


class Upstream:
    """The node of an aggregator; to its driver, the endpoint that gets the list of members, too."""

    def __init__(
        self,
        *,
        node: NodeProtocol,
        store: NodeStore,
        keyring: Keyring | NoKeyring,
        members: MemberListClient | None,
        transport: StatusTransport,
        clock: Callable[[], float],
    ) -> None:
        self.node = node
        self.transport = transport
        self.handle_timeout = node.handle_timeout
        self.next_event = node.next_event
        self.next_timeout = node.next_timeout
        self._store = store
        self._keyring = keyring
        self._members = members
        self._list_number = -1  # of the list whose revoked members are shut out
        self._driver: Driver[NodeEvent] = Driver(self, transport, clock)
        self._added_up: AddedUp | None = None
        self._shown: Shown | None = None  # of the round under way, if the host above asks for it
        self._owes = True  # it may not have shown a round that was audited
        self.has_other_run = False  # than its boards have: the program begins anew

    # Of its driver

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        if self._members is not None:
            frames = self._members.receive(frames, now)
        self.node.receive_frames(peer, frames, now)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        request = None if self._members is None else self._members.request(now)
        return self.node.frames_to_send(now) + ([] if request is None else [(HOST, [request])])

    # Of the program

    def poll(self, wait_s: float = 0.0) -> None:
        """Serve what comes from the host above."""
        self._driver.poll(wait_s, self._note, self._store.commit)

    def take(self, made: AddedUp) -> None:
        """Take what the boards' updates of a round come to."""
        self._added_up = made

    def resume(self, host: HostProtocol) -> None:
        """Before the boards' host starts again: what was added up takes no further updates."""
        pending = self.node.pending
        is_sent = pending is not None and pending.round == host.version
        if is_sent or self.node.version > host.version:
            host.added_up = host.round.count()

    def turn(self, host: HostProtocol, now: float) -> None:
        """Give the host above what waits for it, and the boards what came from it."""
        self.poll()
        self.has_other_run = host.run != self.node.run
        if self.has_other_run:
            return
        made = self._added_up
        if made is not None:
            had_pending = self.node.pending is not None
            self.node.submit_for_others(made, now)
            if self.node.pending is not None or made.round < self.node.version:
                self._added_up = None
            if self.node.pending is not None and not had_pending:
                bodies = _bodies_of(host)
                self._shown = Shown(made.round, self.node.residual, bodies) if bodies else None
        while host.version < self.node.version and self._pass_on(host, now):
            pass
        self._shut_out(host, now)

    @property
    def run(self) -> tuple[bytes, Plan]:
        """The run of the host above, and its plan."""
        assert self.node.plan is not None
        return self.node.run, self.node.plan

    def status(self) -> UpstreamStatus:
        return UpstreamStatus(
            transport=self.transport.status(), joined=self.node.joined, version=self.node.version
        )

    def _note(self, event: NodeEvent) -> None:
        self._store.record(event)
        self._keyring.record(event)

    def _pass_on(self, host: HostProtocol, now: float) -> bool:
        """Give the boards the global update after theirs, or the newest adapter where it is gone.

        False where they have to wait for the next one.
        """
        link = self.node.chain.link_of(host.version + 1)
        model_q24 = None if link is None else self._model_of(link.version)
        if link is None or model_q24 is None:
            link, model_q24 = self.node.chain.link_of(self.node.version), self.node.model_q24
        if link is None:
            return False
        step = read_object(split_certificate(link.content)[0], model_q24.size)
        assert isinstance(step, GlobalUpdate)
        rows = self._rows(step, link, host)
        host.take_step(step, link, model_q24, rows, now)
        shown, self._shown = self._shown, None
        if rows.rows is not None:
            is_drawn_now = is_drawn(step.version - 1, self.node.address, link.content)
            if shown is not None and (is_drawn_now or self._owes):
                self.show(write_shown(shown))
            self._owes = shown is None and (is_drawn_now or self._owes)
        return True

    def _model_of(self, version: int) -> ModelQ24 | None:
        node = self.node
        if version == node.version:
            return node.model_q24
        assert node.plan is not None
        links, model_hash = node.chain.newest_first(), node.settings.model_hash
        return older_adapter(node.model_q24, links, version, model_hash, node.plan)

    def show(self, data: bytes) -> None:
        """Show the host above what the newest update was made of."""
        mtu = self.run[1].frame_mtu
        self.node.channel.outgoing.push_objects(HOST, self.node.address, [data], mtu)

    def _rows(self, step: GlobalUpdate, link: ChainLink, host: HostProtocol) -> RoundRows:
        """What proves to the boards which of their updates a global update counts."""
        address = self.node.address
        via: tuple[int, ...] = (address,)
        above: tuple[Leaf, ...] = ()
        own = tuple(row for row in step.counted if row.address == address)
        if link.rows:
            proof = read_proof(link.rows)
            via, above = (*proof.via, address), proof.leaves
            own = proved_rows(step, proof, address)
        if not own or own[0].round != step.version - 1:
            return RoundRows(step.version, via, above)
        count = Count() if host.added_up is None else host.added_up
        known = RoundRows(step.version, via, above, tuple(count.rows.values()))
        if known.root != own[0].root:
            _log.warning("what counted in round %d is not known any more", step.version)
            return replace(known, rows=())
        return known

    def _shut_out(self, host: HostProtocol, now: float) -> None:
        """Drop boards that the newest list of members does not have any more."""
        number = host.channel.authenticator.list_number
        if number != self._list_number:
            self._list_number = number
            for name in [node.name for node in host.nodes.values() if host.is_excluded(node.name)]:
                host.exclude(name, now)


def _bodies_of(host: HostProtocol) -> dict[int, tuple[str, tuple[bytes, ...]]]:
    """Names and updates of the boards that were added up, by address; nothing if one is gone."""
    found = {}
    for address in () if host.added_up is None else host.added_up.rows:
        update = host.round.updates.get(address)
        if update is None or update.manifest is None:
            return {}  # its board was revoked in between
        bodies = write_manifest(update.manifest), *update.chunks
        found[address] = host.nodes[address].name, bodies
    return found


@contextmanager
def opened_upstream(
    config: HostConfig,
    package: ModelPackage,
    keyring: Keyring | NoKeyring,
    stop: threading.Event,
    manager: ServiceManager,
) -> Iterator[Upstream | None]:
    """The session with the host above, once it has a run; None where there is none, or `stop`."""
    if not config.upstream.url:
        yield None
        return
    manager.ready()
    with closing(StateFile(Path(config.state_dir, FOLDER))) as state:
        state.open(keep=())
        keys, model_hash, name = keyring.twin(state), package.model_hash(), config.link.aggregator
        store = NodeStore(state)
        stored = store.load(model_hash, package.dimension, package.adapter_key())
        link = replace(config.upstream, fleet=config.link.fleet)
        transport = make_transport(link, name, state)
        node = NodeProtocol(
            NodeSettings(
                name=name,
                model_hash=model_hash,
                instance=os.urandom(INSTANCE_SIZE),
                pace=pace_of(transport),
                frame_max=lambda: frame_max(transport),
                frame_min=AGGREGATOR_FRAME_MIN,
                has_aggregator=bool(link.aggregator),
            ),
            stored,
            samples=1,  # until boards have said how many they have
            rng=np.random.default_rng(),
            security=keys.security(name, model_hash, stored.counter, aggregator=link.aggregator),
        )
        made = Upstream(
            node=node,
            store=store,
            keyring=keys,
            # A newer list is for the boards' session, too.
            members=MemberListClient(keyring) if isinstance(keyring, Keyring) else None,
            transport=transport,
            clock=time.monotonic,
        )
        with closing(transport):
            transport.open()
            node.start(time.monotonic())
            _log.info("%s waits for the run of the host above", name)
            while node.plan is None and not stop.is_set():
                made.poll(POLL_S)
                manager.beat()
            yield None if node.plan is None else made
