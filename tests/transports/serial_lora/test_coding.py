from base64 import b85encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from transports.serial_lora.coding import (
    HALVES,
    PROBE_GAP_S,
    PROBES_MAX,
    PrefixCoding,
    ProvenCoding,
    RadioMessage,
)

HOST, ADA, BOB, ALL = 0, 1, 2, 255
FRAME = b"\0a frame\r\n\xff"


def host(assume: str = "auto") -> ProvenCoding:
    return ProvenCoding(HOST, frozenset({ADA, BOB}), assume)


def node(address: int = ADA, assume: str = "auto") -> ProvenCoding:
    return ProvenCoding(address, frozenset({HOST}), assume)


def test_a_prefix_of_receiver_and_sender() -> None:
    coding = PrefixCoding(ADA)
    assert coding.encode(HOST, FRAME) == b"\x00\x01" + FRAME
    assert coding.decode(b"\xff\x02" + FRAME, 0.0) == RadioMessage(ALL, BOB, FRAME)
    assert (coding.frame_max(255), coding.size(HOST, 10), coding.text(HOST)) == (253, 12, False)
    for short in (b"", b"\0", b"\0\1"):
        with pytest.raises(WireError):
            coding.decode(short, 0.0)


def test_text_until_it_is_proven() -> None:  # R7.3-10
    payload = host().encode(ADA, FRAME)
    assert payload.isascii()
    assert not set(payload) & set(b",\r\n\0")
    assert node().decode(payload, 0.0) == RadioMessage(ADA, HOST, FRAME)
    assert host().frame_max(240) == 190
    assert len(host().encode(ADA, b"x" * 190)) == 240
    assert host("yes").frame_max(240) == 237
    assert len(host("yes").encode(ALL, b"x" * 237)) == 240


@given(st.binary(min_size=1, max_size=237), st.booleans())
def test_frames_survive_both_forms_and_sizes_are_told(frame: bytes, binary: bool) -> None:
    coding = host("yes" if binary else "no")
    payload = coding.encode(ADA, frame)
    assert len(payload) == coding.size(ADA, len(frame))
    assert node().decode(payload, 0.0) == RadioMessage(ADA, HOST, frame)


@given(st.binary(max_size=240))
def test_any_payload_is_a_frame_or_nothing_or_a_wire_error(payload: bytes) -> None:
    for coding in (host(), PrefixCoding(HOST)):
        try:
            message = coding.decode(payload, 0.0)
        except WireError:
            continue
        assert message is None or message.frame


def talk(a: ProvenCoding, b: ProvenCoding, now: float) -> None:
    """Hand over what both want to say until they are silent."""
    for _ in range(5):
        for speaker, listener in ((a, b), (b, a)):
            for payload in speaker.to_send():
                assert listener.decode(payload, now) is None


def probed() -> tuple[ProvenCoding, ProvenCoding, list[bytes]]:
    """A host, a node that it has heard, and the probe that the host sends it."""
    base, ada = host(), node()
    base.decode(ada.encode(HOST, b"hello"), 0.0)
    return base, ada, base.to_send()


def test_both_directions_are_proven_once_the_ends_hear_each_other() -> None:  # R7.3-9, R7.3-10
    base, ada, probe = probed()
    assert set(b"".join(HALVES)) == set(range(256))
    assert b"\r\n" in HALVES[0]
    assert max(map(len, probe)) <= 190  # it fits any REYAX payload
    assert ada.decode(probe[0], 0.0) is None
    assert ada.to_send() == []
    assert ada.decode(probe[1], 0.0) is None
    (verdict,) = ada.to_send()
    assert verdict.isascii()
    assert base.decode(verdict, 0.0) is None
    assert (base.text(ADA), base.text(BOB), base.text(ALL)) == (False, True, True)
    assert ada.text(HOST)  # It has heard probes, but no frame yet.
    ada.decode(base.encode(ADA, b"welcome"), 1.0)
    talk(base, ada, 1.0)
    assert not ada.text(HOST)
    assert base.encode(ADA, FRAME) == b"\x01\x01\x00" + FRAME
    bob = node(BOB)
    base.decode(bob.encode(HOST, b"hello"), 0.0)
    talk(base, bob, 0.0)
    assert not base.text(ALL)


def test_a_lost_probe_is_repeated_a_few_times_and_later_each_time() -> None:  # R7.3-8
    base, ada = host(), node()
    sent = []
    for second in range(2000):
        base.decode(ada.encode(HOST, b"data"), float(second))
        if base.to_send():
            sent.append(second)
    assert sent == [0, 30, 90, 210]
    assert len(sent) == PROBES_MAX


def test_probes_do_not_make_an_end_talk_all_day() -> None:  # R7.3-9
    _, ada, probe = probed()
    verdicts = 0
    for second in range(100):
        for half in probe:
            ada.decode(half, float(second))
        verdicts += len(ada.to_send())
    assert verdicts == 1 + 99 // (PROBE_GAP_S / 2)


def test_what_is_mangled_or_for_others_proves_nothing() -> None:
    base, ada, probe = probed()
    bob = node(BOB)
    for half in probe:
        with pytest.raises(WireError):
            ada.decode(half.replace(b"\x0d", b"").replace(b"\xff", b"?"), 0.0)
        assert bob.decode(half, 0.0) is None
    bob.decode(base.encode(ADA, b"for ada"), 0.0)
    assert ada.to_send() == bob.to_send() == []
    base.decode(b":" + b85encode(bytes([BOB, ADA])), 0.0)  # for bob, not for the host
    base.decode(b":" + b85encode(bytes([HOST, 9])), 0.0)  # from nobody we know
    assert base.text(ADA)


def test_a_modem_that_refuses_binary_gets_no_more_of_it() -> None:  # R7.3-11
    base, ada, probe = probed()
    for half in probe:
        ada.decode(half, 0.0)
    talk(base, ada, 0.0)
    base.refused(base.encode(BOB, FRAME))  # text: says nothing about binary
    base.refused(base.encode(ADA, FRAME))
    assert not base.text(ADA)  # once may be noise
    base.refused(base.encode(ADA, FRAME))
    assert base.text(ADA)
    base.decode(ada.encode(HOST, b"hello"), 1e6)
    assert base.to_send() == []


def test_without_auto_there_are_no_probes() -> None:
    for assume in ("yes", "no"):
        base = host(assume)
        base.decode(node().encode(HOST, b"hello"), 0.0)
        assert base.to_send() == []
        assert base.text(ADA) == (assume == "no")
    ada = node()  # It still answers those of others: their path may be a better one.
    ada.decode(base.encode(ADA, b"hello"), 0.0)
    talk(ada, base, 0.0)
    assert not ada.text(HOST)
