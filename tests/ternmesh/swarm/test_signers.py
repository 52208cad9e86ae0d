"""References that two of three keys sign, and an ML-DSA-44 key besides."""

import pytest

from ternmesh.errors import TrustError
from ternmesh.swarm import records
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import ReferenceMade
from ternmesh.swarm.records import Settings
from ternmesh.trust.identity import identity_text, quantum_text
from ternmesh.trust.notary import make_trust
from ternmesh.trust.session import SealingState
from ternmesh.trust.signers import QUANTUM_SIZE, choose_signers, quantum_key
from ternmesh.wire import pieces
from ternmesh.wire.reference import split_certificate

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

        def trust(own, instance, lines, line):
            signers = choose_signers(keys.host.public, lines, needed, line)
            model = bench.host._model_hash
            state, cosigners = SealingState(), others[: held - 1]
            return make_trust(own, keys.roster(), model, instance, 0, state, signers, cosigners)

        told = key if quantum else ""
        bench.host = Coordinator(
            bench.plan,
            Settings(min_peers=1),
            bench.host._model_hash,
            RUN,
            records.new_state(bench.plan.dimension),
            trust(keys.host, b"Instance", lines, told),
        )
        bench.host.start(bench.now)
        wanted = told if node_quantum is None else key if node_quantum else ""
        bench.add("theo", trust=trust(keys.members["theo"], b"instance", lines[::-1], wanted))
        return bench

    return begin


def settle(bench, turns=40):
    for _ in range(turns):
        bench.exchange()
        bench.wait(0.5)


def learn(bench):
    """One round of theo's; whether the node holds its reference in the end."""
    settle(bench)
    node = bench.nodes["theo"]
    node.submit(0, bench.delta(1), bench.now)
    settle(bench, 100)
    assert bench.host.version == 1
    return node.version == 1


def test_two_of_three_keys_sign_what_a_node_applies(start):
    bench = start()
    assert learn(bench)
    made = bench.last("host", ReferenceMade)
    rows = split_certificate(made.content)[1]
    assert len(rows) == 2
    assert [index for index, _ in rows] == sorted({index for index, _ in rows})


def test_a_host_with_too_few_of_the_keys_does_not_start(start):
    with pytest.raises(TrustError, match=r"2 of 3 signers.*signer_files"):
        start(held=1)


def test_a_signature_against_quantum_computers_comes_first_and_is_asked_for(start):
    bench = start(quantum=True)
    assert learn(bench)
    assert bench.nodes["theo"].refused["signature"] == 0


def test_without_that_signature_nothing_is_applied(start):
    bench = start(quantum=False, node_quantum=True)
    assert not learn(bench)
    assert bench.nodes["theo"].refused["signature"] > 0


def test_a_node_that_asks_for_none_passes_it_over(start):
    assert learn(start(quantum=True, node_quantum=False))


def test_an_object_whose_signature_was_lost_is_caught_up_with(start):
    bench = start(quantum=True)
    cut, lost = bench.host._outgoing.cut, []

    def without_the_first(peer, context, objects, frame_mtu):
        if not lost:
            lost.append(objects.pop(0))
        cut(peer, context, objects, frame_mtu)

    bench.host._outgoing.cut = without_the_first
    assert learn(bench)
    assert len(lost[0]) == QUANTUM_SIZE
    assert bench.nodes["theo"].refused["signature"] == 1


def test_only_a_few_signatures_wait_for_their_objects(start):
    bench = start(quantum=True)
    settle(bench)
    arriving = bench.nodes["theo"]._arriving
    for number in range(20):
        junk = b"\x03\0" + bytes([number]) * (QUANTUM_SIZE - 2)
        for body in pieces.cut(junk, bench.plan.frame_mtu):
            assert arriving.add(body, True, lambda *_, **__: None) is None
    assert sum(map(len, arriving._beside.values())) == 4
    assert learn(bench)
