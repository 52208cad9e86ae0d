"""Global updates that two of three keys sign, and an ML-DSA-44 key in addition."""

from typing import Any

import pytest

from ternmesh.errors import SecurityError
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostSettings, new_host_state
from ternmesh.security.authenticator import make_security_layer
from ternmesh.security.identity import identity_text, quantum_text
from ternmesh.security.session import SealingState
from ternmesh.security.signatures import QUANTUM_SIZE, choose_signers, quantum_key
from ternmesh.wire import fragments
from ternmesh.wire.global_update import split_certificate

RUN = b"run-id-8"


@pytest.fixture
def start(new_bench):
    """A host and the node theo, under a rule for each; the host holds so many of the keys."""

    def begin(needed=2, *, quantum=False, held=2, node_quantum=None):
        bench = new_bench(keys=("theo",), min_peers=1)
        keys = bench.keys
        others = [keys.identity(name) for name in ("ann", "ben")]
        lines = [identity_text(one.public) for one in (keys.host, *others)]
        key = quantum_text(quantum_key(keys.host).public)

        def security(own, instance, lines, line):
            signers = choose_signers(keys.host.public, lines, needed, line)
            model = bench.host._model_hash
            state, cosigners = SealingState(), others[: held - 1]
            return make_security_layer(
                own, keys.member_list(), model, instance, 0, state, signers, cosigners
            )

        told = key if quantum else ""
        bench.host = HostProtocol(
            plan=bench.plan,
            settings=HostSettings(min_peers=1),
            model_hash=bench.host._model_hash,
            run=RUN,
            state=new_host_state(bench.plan.dimension),
            security=security(keys.host, bytes(range(32)), lines, told),
        )
        bench.host.start(bench.now)
        wanted = told if node_quantum is None else key if node_quantum else ""
        bench.add(
            "theo",
            security=security(keys.members["theo"], bytes(range(1, 33)), lines[::-1], wanted),
        )
        return bench

    return begin


def learn(bench):
    """One round of theo; whether the node has its global update in the end."""
    bench.settle(40, 0.5)
    node = bench.nodes["theo"]
    node.submit(0, bench.delta(1), bench.now)
    bench.settle(100, 0.5)
    assert bench.host.version == 1
    return node.version == 1


def test_two_of_three_keys_sign_what_a_node_applies(start):  # R4.5-8, R9.7-4
    bench = start()
    assert learn(bench)
    made = bench.last("host", GlobalUpdateMade)
    rows = split_certificate(made.content)[1]
    assert len(rows) == 2
    assert [index for index, _ in rows] == sorted({index for index, _ in rows})


def test_a_host_with_too_few_of_the_keys_does_not_start(start):
    with pytest.raises(SecurityError, match=r"2 of 3 signers.*signer_files"):
        start(held=1)


def test_a_signature_against_quantum_computers_comes_first_and_is_asked_for(start):  # R9.7-5
    bench = start(quantum=True)
    assert learn(bench)
    assert bench.nodes["theo"].refused["signature"] == 0


def test_without_that_signature_nothing_is_applied(start):  # R9.7-5
    bench = start(quantum=False, node_quantum=True)
    assert not learn(bench)
    assert bench.nodes["theo"].refused["signature"] > 0


def test_an_object_whose_signature_was_lost_is_caught_up_with(start):
    bench = start(quantum=True)
    cut, lost = bench.host.channel.outgoing.push_objects, list[Any]()

    def without_the_first(peer, address, objects, frame_mtu):
        if not lost:
            lost.append(objects.pop(0))
        cut(peer, address, objects, frame_mtu)

    bench.host.channel.outgoing.push_objects = without_the_first
    assert learn(bench)
    assert len(lost[0]) == QUANTUM_SIZE
    assert bench.nodes["theo"].refused["signature"] == 1


def test_only_a_few_signatures_wait_for_their_objects(start):
    bench = start(quantum=True)
    bench.settle(40, 0.5)
    reassembler = bench.nodes["theo"]._reassembler
    for number in range(20):
        junk = b"\x03\0" + bytes([number]) * (QUANTUM_SIZE - 2)
        for body in fragments.split(junk, bench.plan.frame_mtu):
            assert reassembler.add(body, True, lambda *_, **__: None) is None
    assert sum(map(len, reassembler._beside.values())) == 4
    assert learn(bench)
