import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.wire import manifest

manifests = st.builds(
    manifest.Manifest,
    round_low=st.integers(0, 0xFFFF),
    model=st.binary(min_size=8, max_size=8),
    samples=st.integers(1, manifest.SAMPLES_MAX),
    digest=st.binary(min_size=4, max_size=4),
    shares=st.integers(0, 0xFFFF),
    contributors=st.sets(st.integers(0, 0xFFFF), max_size=32).map(lambda s: tuple(sorted(s))),
    signature=st.binary(min_size=64, max_size=64),
)


@given(manifests)
def test_a_manifest_reads_as_written(item: manifest.Manifest) -> None:
    body = manifest.write_manifest(item)
    assert len(body) == 22 + 2 * len(item.contributors) + 64
    assert manifest.read_manifest(body) == item


@given(st.binary(max_size=200) | st.binary(max_size=160).map(lambda data: b"\x03" + data))
def test_any_bytes_are_a_manifest_or_a_wire_error(data: bytes) -> None:
    try:
        item = manifest.read_manifest(data)
    except WireError:
        return
    assert manifest.write_manifest(item) == data


def damaged(at: int, data: bytes) -> bytes:
    item = manifest.Manifest(1, b"modelmod", 10, b"abcd", 3, (4, 5, 6))
    body = manifest.write_manifest(item)
    return body[:at] + data + body[at + len(data) :]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "length"),
        (damaged(0, b"\x02"), "length"),
        (damaged(0, b"")[:-1], "length"),
        (damaged(0, b"") + b"\x00", "length"),
        (damaged(21, b"\x04"), "length"),  # another count of contributors
        (damaged(11, bytes(4)), "manifest"),  # no samples
        (damaged(11, b"\x01\x00\x10\x00"), "manifest"),  # 2**20 + 1 samples
        (damaged(22, b"\x05"), "manifest"),  # a contributor twice
        (damaged(22, b"\x09"), "manifest"),  # out of order
        (b"\x03" + bytes(20) + b"\x21" + bytes(66 + 64), "manifest"),  # 33 of them
    ],
)
def test_why_a_manifest_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        manifest.read_manifest(body)
    assert caught.value.reason == reason


def test_the_digest_depends_on_every_share_and_their_order() -> None:
    shares = [b"a", b"bc", b""]
    rows = b"".join(hashlib.sha256(body).digest() for body in shares)
    assert manifest.packet_hash(shares) == hashlib.sha256(rows).digest()
    others = [[b"ab", b"c", b""], [b"bc", b"a", b""], [b"a", b"bc"], [b"a", b"bd", b""]]
    assert len({manifest.packet_digest(each) for each in [shares, *others]}) == 5
