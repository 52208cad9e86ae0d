"""The voters' messages: golden bytes, a round trip, and bytes of anybody."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.federated.agreement import messages
from ternmesh.federated.agreement.voters import BFT, make_voters
from tests.sim.simagreement import stub_signature, verify

VECTORS = Path(__file__).parents[3] / "vectors" / "agreement.json"
ROWS: dict[str, Any] = json.loads(VECTORS.read_text())
GOLDEN = {name: bytes.fromhex(row["bytes"]) for name, row in ROWS.items() if "bytes" in row}
VOTERS = make_voters(bytes(8), "abcd", BFT)
VOTE = 1, 7, 3, bytes(range(32))  # voter, term, version, digest


def signed(message: Any, key: int | None = None) -> messages.Signed[Any]:
    by = message.voter if key is None else key
    return messages.sign_message(VOTERS, message, lambda data: stub_signature(by, data))


def certificate(
    kind: type[messages.Prepare | messages.Commit], *signers: int
) -> messages.QuorumCertificate:
    votes = [signed(kind(voter, *VOTE[1:])) for voter in signers]
    return messages.QuorumCertificate(
        *VOTE[1:], signers, b"".join(vote.signature for vote in votes)
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_messages_read_and_write(name: str) -> None:  # R13.2-1
    read = messages.read_message(GOLDEN[name])
    again = messages.sign_message(VOTERS, read.message, lambda _: read.signature)
    assert again.data == GOLDEN[name] == read.data
    assert type(read.message).__name__ == ROWS[name]["type"]


def test_a_vote_is_small() -> None:
    assert len(signed(messages.Prepare(2, 70_000, 5_000, bytes(32))).data) <= 111


CERTIFICATES = st.none() | st.builds(
    lambda term, version, digest, signers: messages.QuorumCertificate(
        term, version, digest, tuple(sorted(signers)), bytes(64 * len(signers))
    ),
    st.integers(0, messages.POSITION_MAX),
    st.integers(1, messages.POSITION_MAX),
    st.binary(min_size=32, max_size=32),
    st.sets(st.integers(0, 15), min_size=1),
)
OF_FIELD = {
    "voter": st.integers(0, 15),
    "asker": st.integers(0, 15),
    "nonce": st.binary(min_size=8, max_size=8),
    "seen": st.binary(max_size=400),
    "digest": st.binary(min_size=32, max_size=32),
    "previous": st.binary(min_size=32, max_size=32),
    "lock": CERTIFICATES,
}


def any_message(kind: Any) -> Any:
    numbers = st.integers(0, messages.POSITION_MAX)
    needed = CERTIFICATES.filter(lambda proof: proof is not None)
    parts = {}
    for field in messages._FIELDS[kind]:
        is_needed = field.type is messages.QuorumCertificate
        is_number = field.type is int
        strategy = needed if is_needed else numbers if is_number else CERTIFICATES
        parts[field.name] = OF_FIELD.get(field.name, strategy)
    return st.builds(kind, **parts)


@given(st.sampled_from(messages._TYPES).flatmap(any_message))
def test_each_message_reads_as_it_was_written(message: Any) -> None:  # R13.2-1
    made = messages.sign_message(VOTERS, message, lambda _: bytes(64))
    if len(made.data) <= messages.MESSAGE_MAX:
        assert messages.read_message(made.data) == made


@given(st.binary(max_size=300) | st.sampled_from(sorted(GOLDEN.values())).flatmap(
    lambda data: st.tuples(st.just(data), st.integers(0, len(data) - 1), st.integers(0, 255)).map(
        lambda spoilt: spoilt[0][: spoilt[1]] + bytes([spoilt[2]]) + spoilt[0][spoilt[1] + 1 :]
    )
))  # fmt: skip
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:  # R13.2-1
    read = None
    with suppress(WireError):
        read = messages.read_message(data)
    if read is not None:
        again = messages.sign_message(VOTERS, read.message, lambda _: read.signature)
        assert again.data == data


@pytest.mark.parametrize(
    "content",
    [
        [99, 0, bytes(64)],
        [1, 16, 0, 1, bytes(32), bytes(64)],
        [1, 0, 0xFFFFFFFF, 1, bytes(32), bytes(64)],
        [1, 0, 0, 1, bytes(31), bytes(64)],
        [1, 0, 0, 1, bytes(32), bytes(63)],
        [1, 0, 0, 1, bytes(32), 7, bytes(64)],
        [6, 0, [], bytes(64)],
        [4, 0, 5, 1, [4, 2, bytes(32), [1, 1], bytes(128)], bytes(64)],
        [4, 0, 5, 1, [4, 2, bytes(32), [2, 1], bytes(128)], bytes(64)],
        [4, 0, 5, 1, [4, 2, bytes(32), [1, 2], bytes(127)], bytes(64)],
        [4, 0, 5, 1, [4, 0, bytes(32), [1], bytes(64)], bytes(64)],
        [4, 0, 5, 1, [4, 2, bytes(32), [], b""], bytes(64)],
    ],
)
def test_a_field_out_of_range_is_refused(content: list[Any]) -> None:  # R13.2-1, R13.2-2
    with pytest.raises(WireError) as refused:
        messages.read_message(cbor2.dumps(content, canonical=True))
    assert refused.value.reason == "agreement"


def test_a_signature_is_of_one_voter_message_run_and_fleet() -> None:  # R13.2-3
    made = signed(messages.Prepare(*VOTE))
    messages.check_message(VOTERS, made, verify)
    others = (make_voters(b"another ", "abcd", BFT), make_voters(bytes(8), "abce", BFT))
    for voters in others:
        with pytest.raises(WireError, match="not signed by voter 1"):
            messages.check_message(voters, made, verify)
    for wrong in (
        messages.Commit(*VOTE),
        messages.Prepare(2, *VOTE[1:]),
        messages.Prepare(1, 8, 3, bytes(32)),
        messages.Alive(1, 7, 3),
    ):
        with pytest.raises(WireError, match="not signed"):
            messages.check_message(VOTERS, messages.Signed(wrong, made.signature, b""), verify)
    with pytest.raises(WireError, match="no voter 4"):
        messages.check_message(VOTERS, signed(messages.Alive(4, 7, 3)), verify)


def test_a_certificate_is_a_quorum_of_one_vote() -> None:  # R13.2-2
    for kind, other in ((messages.Prepare, messages.Commit), (messages.Commit, messages.Prepare)):
        messages.check_certificate(VOTERS, kind, certificate(kind, 0, 2, 3), verify)
        with pytest.raises(WireError, match="of a quorum"):
            messages.check_certificate(VOTERS, kind, certificate(kind, 0, 2), verify)
        with pytest.raises(WireError, match="of a quorum"):
            messages.check_certificate(VOTERS, kind, certificate(kind, 0, 2, 4), verify)
        with pytest.raises(WireError, match="wrong signature"):
            messages.check_certificate(VOTERS, other, certificate(kind, 0, 2, 3), verify)
