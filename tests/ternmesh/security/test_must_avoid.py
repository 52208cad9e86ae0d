"""What others got wrong, as tests of this layer. The numbers are those of the must-avoid list."""

import ast
import inspect
import json
from pathlib import Path

import pytest

import ternmesh.security
from ternmesh.errors import SecurityError, WireError
from ternmesh.security import enrolment, membership
from ternmesh.security.identity import Role, identity_text, make_identity, parse_identity
from ternmesh.security.primitives import statement
from ternmesh.security.signatures import Signers, SigningContext, sign_content, verify_certificate
from ternmesh.wire.frame import Header, seal_open
from tests.ternmesh.security.trust_ends import (
    ALL,
    DOWN,
    UP,
    entropy,
    hail,
    make_fleet,
    met,
    someone,
)

SOURCES = sorted(Path(inspect.getfile(ternmesh.security)).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


def test_must_avoid_01_nothing_here_can_load_code() -> None:
    unpicklers = {"pickle", "joblib", "shelve", "marshal", "yaml", "torch", "importlib"}
    assert not [path.name for path in SOURCES if imported(path) & unpicklers]


def test_must_avoid_02_no_memory_by_a_claimed_length() -> None:  # R1-2
    """A membership list that claims 65,535 members in 6 bytes, signed by the host."""
    host = someone("greenhouse", Role.HOST)
    fleet = membership.MemberList(membership.found_fleet("tomatoes", host.public))
    content = b"\x01\0\0\0\xff\xff"
    data = content + host.sign(statement("members", fleet.fleet, content))
    with pytest.raises(SecurityError, match="not signed"):
        fleet.learn(data)


def test_must_avoid_02_strangers_leave_no_trace() -> None:
    host, node = met()
    for number in range(2000):
        assert host.hear(f"stranger-{number}", node.say("host", 0, b"x")) == "unknown key"
    assert set(host.sealing._sessions) == {"theo"}


def test_must_avoid_03_signed_things_have_one_form() -> None:
    public = someone("theo").public
    text = identity_text(public)
    for other in (text.lower(), text + "A", text + "=", text.replace("TM1:", "TM1: ")):
        with pytest.raises(SecurityError):
            parse_identity(other)
    spare = identity_text(someone("dora1").public)  # two bits of its last letter carry nothing
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".index(spare[-1])
    with pytest.raises(SecurityError):
        parse_identity(spare[:-1] + "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[last + 1])


def test_must_avoid_07_a_key_that_comes_first_is_not_believed() -> None:
    """The sender cannot choose its key: who is not enrolled is nobody, whatever it says."""
    host, _ = make_fleet("theo")
    impostor = make_fleet("theo")[1]
    impostor.identity = make_identity("theo", Role.NODE, entropy("impostor"))
    impostor.boot()
    assert host.hear("theo", impostor.say("host", 0, b"x")) == "seal"


def test_must_avoid_07_a_known_key_is_overwritten_only_by_its_owner() -> None:
    host, node = make_fleet("theo")
    other = make_identity("theo", Role.NODE, entropy("other"))
    with pytest.raises(SecurityError, match="only a rotation signed by that key"):
        host.member_list.enrol(other.public)
    forged = membership.write_rotation(other, other, host.member_list.fleet)
    with pytest.raises(WireError):
        host.member_list.rotate(node.identity.public.fingerprint + forged[16:])
    assert host.member_list.find("theo") == node.identity.public


def test_must_avoid_07_no_way_down_to_the_open_suite() -> None:  # R3-9, R3-13
    """A frame of suite 0 is refused, also for enrolment and to all; so are suites to come."""
    host, node = met()
    for address in (0, UP, DOWN, ALL):
        frame = seal_open(Header(address, 9), b"\x01hello")
        assert (host.hear("theo", frame), node.hear("host", frame)) == ("suite", "suite")
        for suite in range(2, 8):
            other = bytes((1 << 5 | suite << 2,)) + frame[1:]
            assert host.hear("theo", other) == "suite"


def test_must_avoid_07_an_end_without_a_key_sends_no_plain_text() -> None:  # R3-9
    host, _ = make_fleet("theo")
    with pytest.raises(WireError, match="not enrolled"):
        host.sealing.seal("stranger", DOWN, 1, b"secret")
    node = make_fleet("theo")[1]
    with pytest.raises(WireError, match="only the hub"):
        node.sealing.seal("all", ALL, 1, b"secret")


def test_must_avoid_07_the_header_cannot_be_changed() -> None:  # R3-10
    """Context, counter, suite and key phase are under the tag."""
    host, node = met()
    frame = node.say("host", UP, b"x")
    for at in range(6):
        for bit in range(8):
            wrong = bytearray(frame)
            wrong[at] ^= 1 << bit
            assert not isinstance(host.hear("theo", bytes(wrong)), bytes)


def test_must_avoid_09_no_frame_is_taken_twice_over_a_reboot() -> None:  # R9.4-2
    """A new process has new keys: nothing that was sealed for the one before opens again."""
    host, node = met()
    frames = [node.say("host", UP, b"%d" % number) for number in range(50)]
    assert [host.hear("theo", frame) for frame in frames[:40]] == [b"%d" % n for n in range(40)]
    host.boot()
    assert {host.hear("theo", frame) for frame in frames} == {"seal"}


def test_must_avoid_09_a_broadcast_is_not_heard_twice_over_a_reboot() -> None:
    host, node = met()
    frame = host.say("all", ALL, b"announce")
    assert node.hear("host", frame) == b"announce"
    node.boot()
    assert node.hear("host", frame) == "replay"


def test_must_avoid_09_the_window_moves_only_behind_the_tag() -> None:  # R9.4-2
    host, node = met()
    before = host.sealing._sessions["theo"].state("theo")
    for counter in range(0, 1 << 24, 1 << 16):
        head = bytes((0x26,)) + UP.to_bytes(2, "little") + counter.to_bytes(3, "little")
        assert host.hear("theo", head + bytes(30)) == "seal"
    assert host.sealing._sessions["theo"].state("theo") == before
    assert host.hear("theo", node.say("host", UP, b"x")) == b"x"


def test_must_avoid_10_every_frame_has_8_bytes_of_tag() -> None:
    """All 64 bits of it count."""
    host, node = met()
    frame = node.say("host", UP, b"")
    assert len(frame) == 14
    frame = node.say("host", UP, b"x")
    for bit in range(64):
        wrong = bytearray(frame)
        wrong[-1 - bit // 8] ^= 1 << bit % 8
        assert host.hear("theo", bytes(wrong)) == "seal"


def test_must_avoid_10_no_secret_is_compared_with_equals() -> None:
    """The one tag that Python compares is that of an enrolment."""
    source = inspect.getsource(enrolment)
    assert source.count("hmac.compare_digest(proof") == 2
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            text = ast.unparse(node)
            assert "proof" not in text.lower().replace("proof_size", ""), text


def test_must_avoid_10_the_same_body_never_looks_the_same() -> None:
    _, node = met()
    frames = {node.say("host", UP, bytes(32))[6:] for _ in range(64)}
    assert len(frames) == 64
    assert not any(frame[:16] == frame[16:32] for frame in frames)


def test_must_avoid_12_a_group_key_does_not_speak_for_the_host() -> None:  # R9.3-14
    """A member can forge a broadcast, but not the certificate of what is in it."""
    host, theo, dora = make_fleet("theo", "dora")
    for node in (theo, dora):
        hail(node, host)
    thief = theo.sealing._listener
    assert thief is not None
    assert thief._keys is not None
    low = (host.counter + 1).to_bytes(3, "little")
    head = bytes((0x26,)) + b"\xff\xff" + low
    nonce = b"\xff\xff" + (host.counter + 1).to_bytes(8, "little") + bytes(3)
    forged = head + thief._keys.cipher(host.counter + 1).seal(nonce, head, b"lies")
    assert dora.hear("host", forged) == b"lies"
    place = SigningContext(host.member_list.fleet, bytes(8), bytes(32))
    row = sign_content(theo.identity, 0, place, b"lies")
    with pytest.raises(WireError, match="signature"):
        verify_certificate(Signers((host.identity.public,)), place, b"lies", (row,))


def test_must_avoid_13_no_error_of_the_library_comes_through() -> None:
    """Whatever bytes arrive, from whom: a body or a WireError, and the end goes on."""
    host, node = met()
    vectors = json.loads((Path(__file__).parents[2] / "vectors" / "keyed.json").read_text())
    for case in vectors.values():
        frame = bytes.fromhex(case["bytes"])
        for length in range(len(frame)):
            assert isinstance(host.hear("theo", frame[:length]), str)
    assert host.hear("theo", node.say("host", UP, b"x")) == b"x"


def test_must_avoid_13_no_key_is_shown() -> None:
    _, node = met()
    said = repr(node.identity) + repr(node.sealing) + repr(node.sealing._sessions["host"])
    assert repr(node.identity.seeds)[2:20] not in said
    assert repr(node.disk[""]).count("secret=") == 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_must_avoid_14_one_library_in_one_file(path: Path) -> None:
    assert not imported(path) & {"oqs", "liboqs", "pycose", "nacl", "ecdsa", "os", "secrets"}
    assert ("cryptography" in imported(path)) == (path.name == "primitives.py")
