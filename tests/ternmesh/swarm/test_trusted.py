"""A fleet with keys: the whole run under suite 1, and what nobody outside it can do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ternmesh.swarm.coordinator import ALL
from ternmesh.swarm.events import BodyAccepted, ReferenceMade, TrustChanged
from ternmesh.swarm.member import HOST
from ternmesh.swarm.records import MemberState
from ternmesh.trust.identity import Role, make_identity
from ternmesh.wire import control, manifest, seal

New = Callable[..., Any]


@pytest.fixture
def bench(new_bench: New) -> Any:
    """An open round of theo and yan, who have keys."""
    made = new_bench(rounds=9, min_peers=2, deadline_s=30, keys=("theo", "yan"))
    made.add("theo")
    made.add("yan")
    settle(made)
    assert made.host.phase == control.OPEN
    return made


def settle(bench: Any) -> None:
    """Time for a first contact: the host asks back whether this is no recording."""
    for _ in range(3):
        bench.exchange()
        bench.wait(2.0)
    bench.exchange()


def work(bench: Any) -> None:
    for seed, node in enumerate(bench.nodes.values()):
        node.submit(node.version, bench.delta(seed), bench.now)
    bench.exchange()


def frames_of(bench: Any, name: str) -> list[bytes]:
    return [frame for _, frame in bench.sent[name]]


def test_a_run_under_seals_and_signatures(bench: Any) -> None:
    for number in range(3):
        work(bench)
        assert bench.host.version == number + 1
        assert {node.version for node in bench.nodes.values()} == {number + 1}
    assert not any(node.fixed.sum() == 0 for node in bench.nodes.values())
    assert all(np.array_equal(node.fixed, bench.host.fixed) for node in bench.nodes.values())
    made = bench.last(HOST, ReferenceMade)
    assert len(made.counted) == 2
    for name in (HOST, "theo", "yan"):
        assert {frame[0] >> 2 & 7 for frame in frames_of(bench, name)} == {1}
    assert not set(bench.host.refused) - {"sync"}
    shares = [b.body for b in bench.events[HOST] if isinstance(b, BodyAccepted)]
    signed = [manifest.read_manifest(body) for body in shares if body[0] == manifest.KIND]
    assert all(item.signature != manifest.UNSIGNED for item in signed)
    assert len(signed) == 6


def test_no_frame_is_taken_twice(bench: Any) -> None:
    work(bench)
    refused = sum(bench.host.refused.values())
    again = [(name, f) for name in ("theo", "yan") for f in frames_of(bench, name)]
    for name, frame in again:
        bench.host.receive_frames(name, [frame], bench.now)
    taken = len(again) - (sum(bench.host.refused.values()) - refused)
    assert taken == 0
    assert bench.host.refused["replay"] > 0
    theo = bench.nodes["theo"]
    before = theo.version, theo.fixed.copy(), sum(theo.refused.values())
    replayed = [frame for peer, frame in bench.sent[HOST] if peer in ("theo", ALL)]
    theo.receive_frames(HOST, replayed, bench.now)
    assert (theo.version, sum(theo.refused.values())) == (before[0], before[2] + len(replayed))
    assert np.array_equal(theo.fixed, before[1])


def test_a_flipped_bit_a_plain_frame_and_anothers_name_are_refused(bench: Any) -> None:
    theo, yan = bench.nodes["theo"], bench.nodes["yan"]
    theo.submit(0, bench.delta(0), bench.now)
    frames = [frame for _, frame in bench.take("theo")]
    for frame in frames:
        for place in (0, 1, 3, 6, len(frame) - 1):
            bent = bytearray(frame)
            bent[place] ^= 0x08
            bench.host.receive_frames("theo", [bytes(bent)], bench.now)
        bench.host.receive_frames("yan", [frame], bench.now)
    hello = control.Hello("theo", bytes(8), bytes(range(8)), bytes(8), 0, bytes(16), 10)
    plain = seal.seal(seal.Header(seal.ENROL, 0), control.write_control(hello))
    bench.host.receive_frames("theo", [plain], bench.now)
    assert bench.host.delivered(theo.context) == "none"
    assert bench.host.delivered(yan.context) == "none"
    assert bench.host.refused["suite"] >= 1
    bench.host.receive_frames("theo", frames, bench.now)
    assert bench.host.delivered(theo.context) == "whole"


def test_a_stranger_gets_nothing_in(bench: Any) -> None:
    eve = make_identity("theo", Role.NODE, np.random.default_rng(99).bytes(64))
    thief = bench.keys.trust("theo", own=eve)
    node = bench.nodes.pop("theo")
    fake = bench.add("theo", trust=thief)
    settle(bench)
    assert not fake.joined
    bench.nodes["theo"] = node
    work(bench)
    assert bench.host.version == 1
    assert bench.host.refused["seal"] >= 1


def test_a_packet_that_its_node_has_not_signed_is_forgotten(bench: Any, monkeypatch: Any) -> None:
    theo = bench.nodes["theo"]
    with monkeypatch.context() as patch:
        patch.setattr(theo._notary, "sign_packet", lambda run, number, item, packet: item)
        theo.submit(0, bench.delta(0), bench.now)
    bench.exchange()
    assert bench.host.refused["signature"] >= 1
    assert bench.host.delivered(theo.context) in ("none", "part")
    assert not theo.received


def test_a_reference_that_the_host_has_not_signed_is_not_applied(bench: Any) -> None:
    yan = bench.nodes["yan"]
    bench.host._notary.certify = lambda run, content: ((0, manifest.UNSIGNED),)
    work(bench)
    assert bench.host.version == 1
    assert yan.version == 0
    assert yan.refused["signature"] >= 1


def test_unsigned_words_of_the_host_are_refused(bench: Any) -> None:
    theo = bench.nodes["theo"]
    bench.host._notary.sign_receipt = lambda node, run, body: body
    theo.submit(0, bench.delta(0), bench.now)
    bench.exchange()
    assert not theo.received
    refused = theo.refused["signature"]
    assert refused >= 1
    bench.host._notary.sign_announce = lambda body: body
    bench.wait(10.0)
    bench.exchange()
    assert theo.refused["signature"] > refused


def test_a_node_that_starts_again_goes_on(bench: Any) -> None:
    work(bench)
    assert all(bench.count(name, TrustChanged) for name in (HOST, "theo", "yan"))
    theo = bench.nodes.pop("theo")
    kept = MemberState(
        fixed=theo.fixed,
        residual=theo.residual,
        run=theo.run,
        context=theo.context,
        plan=theo.plan,
        version=theo.version,
        reference=theo.reference,
        counter=4096,
    )
    bench.add("theo", state=kept)
    settle(bench)
    work(bench)
    assert bench.host.version == 2
    assert {node.version for node in bench.nodes.values()} == {2}
    assert not bench.host.refused["clone"]
