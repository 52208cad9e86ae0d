"""The C library answers as Python does, on this machine and on emulated boards."""

import ctypes
import shutil
import struct
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import firmware
from bench.c_cases import REASONS, written
from bench.c_cases import cases as made
from bench.c_constants import HEADER, header
from ternmesh.codec.scale import decode_scale
from ternmesh.errors import WireError
from ternmesh.link.erasure_code import Decoder, Layout, encode_symbols
from ternmesh.security.identity import Role, make_identity
from ternmesh.security.key_derivation import nonce, session_secrets, traffic_key
from ternmesh.security.primitives import Ccm, exchange_key
from ternmesh.security.session import Verdict, Window, whole_counter
from ternmesh.wire.frame import BODY_MAX, Header, seal_open
from tests.firmware_tools.c_library import FOLDER, CCollector, CLibrary, CTraffic, CUnframer, make
from transports.serial_lora.framing import CobsUnframer, KissUnframer, cobs_frame, kiss_frame

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed")
CASES, SEED = 1500, 24
SANITIZERS = "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
DAILY = ("x86", "cortex_m0")  # the others by night
BOARDS = firmware.BOARDS | {"clang": ("clang", SANITIZERS, "conformance", "{}")}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> CLibrary:
    return CLibrary(make(tmp_path_factory.mktemp("c"), "libternmesh.so"))


@pytest.fixture(scope="module")
def cases() -> bytes:
    return written(SEED, CASES)


def outcome(call):
    """What a call gives, or the reason of its refusal."""
    try:
        return call()
    except WireError as error:
        return error.reason


def test_the_constants_are_those_of_python() -> None:
    assert HEADER.read_text() == header(), "run `python -m bench.c_constants`"


@pytest.mark.parametrize(
    "board",
    [pytest.param(board, marks=() if board in DAILY else pytest.mark.nightly) for board in BOARDS],
)
def test_a_board_answers_every_case_as_python_does(board: str, cases: bytes, tmp_path) -> None:
    compiler, flags, target, command = BOARDS[board]
    for name in (compiler, command.split()[0]):
        if name != "{}" and not shutil.which(name):
            pytest.skip(f"{name} is not installed")
    program = make(tmp_path, target, CC=compiler, CFLAGS=flags)
    ran = run(command.format(program), cases, tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert f"cases {count(cases)}\nfailed 0\n".encode() in ran.stdout


def count(cases: bytes) -> int:
    """How many cases there are in a file."""
    at = number = 0
    while at < len(cases):
        size, answer = struct.unpack_from("<HH", cases, at + 1)
        at, number = at + 5 + size + answer, number + 1
    return number


def test_each_refusal_has_a_case() -> None:
    """Every reason of each function, and that function's success."""
    found = {(function, REASONS[answer[0]]) for function, _, answer in made(SEED, CASES)}
    plain = {"length", "version", "suite", "seal"}
    wanted = {
        "plain_open": plain,
        "keyed_open": plain | {"replay", "role"},
        "chunk_decode": {"length", "scale", "coding", "trits"},
        "symbol_make": {"symbol"},
    }
    missing = {
        (function, reason)
        for function, reasons in wanted.items()
        for reason in reasons | {""}
        if (function, reason) not in found
    }
    assert not missing


def test_a_wrong_answer_is_found(cases: bytes, tmp_path) -> None:
    program = make(tmp_path, "conformance")
    ran = run(str(program), cases[:-1] + bytes([cases[-1] ^ 1]), tmp_path)
    assert ran.returncode == 1
    assert b"failed 1" in ran.stdout


def run(command: str, cases: bytes, folder) -> subprocess.CompletedProcess[bytes]:
    (folder / "cases.bin").write_bytes(cases)
    with (folder / "cases.bin").open("rb") as file:
        return subprocess.run(
            command.split(),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # where QEMU prints
            cwd=folder,
            timeout=120,
        )


def test_the_sources_have_no_known_defects() -> None:
    if not shutil.which("cppcheck"):
        pytest.skip("cppcheck is not installed")
    subprocess.run(["make", "-s", "-C", str(FOLDER), "check"], check=True)


def test_all_scales(library: CLibrary) -> None:
    for code in range(1 << 16):
        found = (outcome(partial(scale, code)) for scale in (library.scale, decode_scale))
        assert len(set(found)) == 1, code


@given(st.integers(0, (1 << 64) - 1) | st.integers(0, 1 << 25), st.integers(0, (1 << 24) - 1))
def test_whole_counters(library: CLibrary, near: int, low: int) -> None:
    assert library.whole_counter(near, low) == whole_counter(near, low)


@pytest.mark.parametrize("seed", range(3))
def test_a_session_opens_replays_and_clones_as_python_does(library: CLibrary, seed: int) -> None:
    rng = np.random.default_rng(seed)
    highest = int(rng.integers(1 << 40)) if seed else (1 << 64) - 1500
    highest = (9 << 20) - 100 if seed == 1 else highest  # the key changes in the window
    secret, run = rng.bytes(32), rng.bytes(8) if seed % 2 else None
    ours, window = CTraffic(library, secret, highest), Window(highest)
    sender = CTraffic(library, secret, 0)
    seen: list[bytes] = []
    results = set()
    for _ in range(800):
        counter = max(0, window.highest + int(rng.integers(-1100, 200)))
        counter = min(counter, (1 << 64) - 1)
        frame = sender.seal(1, 5, counter, run, rng.bytes(int(rng.integers(1, 9))))
        if seen and rng.random() < 0.3:
            frame = seen[int(rng.integers(len(seen)))]
        seen.append(frame)

        def by_python(frame: bytes = frame) -> bytes:
            whole = window.whole(int.from_bytes(frame[3:6], "little"))
            cipher = Ccm(traffic_key(secret, whole))
            body = cipher.open(nonce(5, whole), frame[:6] + (run or b""), frame[6:])
            verdict = window.take(whole, frame[-8:][:4])
            if verdict is not Verdict.NEW:
                raise WireError(verdict.value, "")
            return body

        found = outcome(lambda frame=frame: ours.open(1, run, frame))
        assert found == outcome(by_python)
        results.add(found if isinstance(found, str) else "new")
    assert results >= {"new", "replay", "clone"}


def test_what_has_keys_of_its_own_and_what_fits_no_frame_is_not_sealed(library: CLibrary) -> None:
    traffic = CTraffic(library, bytes(32), 0)
    for address, body in ((0, b"x"), (0xFFFF, b"x"), (1, b""), (1, bytes(4083))):
        assert traffic.seal(1, address, 1, None, body) == b""
    assert len(traffic.seal(1, 1, 1, None, bytes(4082))) == 4096
    with pytest.raises(WireError, match="length"):
        library.plain_open(bytes(4097))


@given(
    st.integers(0, 0xFFFF),
    st.integers(0, (1 << 24) - 1),
    st.integers(0, 1),
    st.binary(min_size=1, max_size=99),
)
def test_plain_frames(library: CLibrary, address: int, counter: int, phase: int, body) -> None:
    expected = seal_open(Header(address, counter, 0, phase), body)
    assert library.plain_seal(address, counter, phase, body) == expected


@pytest.mark.parametrize("suite", [1, 2])
def test_the_secrets_of_a_session_and_none_with_a_weak_key(library: CLibrary, suite: int) -> None:
    rng = np.random.default_rng(suite)
    a, b = (make_identity(name, Role.NODE, rng.bytes(64)) for name in ("ann", "bob-of-a-gateway"))
    for own, other in ((a, b), (b, a)):
        ephemeral, theirs = rng.bytes(32), exchange_key(rng.bytes(32))
        ends = own, other.public, bytes(range(16)), suite, ephemeral, theirs
        assert library.session_secrets(*ends) == session_secrets(*ends)
        with pytest.raises(WireError, match="unknown key"):
            library.session_secrets(*ends, is_zero=True)


@pytest.mark.parametrize(("size", "symbol_bytes"), [(400, 1), (1000, 7), (2083, 16), (5, 9)])
def test_an_object_of_several_generations(library: CLibrary, size: int, symbol_bytes: int) -> None:
    rng = np.random.default_rng(size)
    layout, name, data = Layout(size, symbol_bytes), rng.bytes(4), rng.bytes(size)
    ours, theirs = CCollector(library, size, symbol_bytes, name), Decoder(layout, name)
    while not theirs.is_complete:
        index = int(rng.integers(2 * layout.count + 4))
        [symbol] = encode_symbols(layout, name, data, [index])
        assert ours.add(index, symbol) == theirs.add(index, symbol)
        assert ours.missing == theirs.missing
    assert ours.data() == data


@pytest.mark.parametrize(
    ("size", "symbol_bytes"), [(0, 4), (5, 0), (5, 4080), ((1 << 32) - 1, 255)]
)
def test_layouts_that_cannot_be(library: CLibrary, size: int, symbol_bytes: int) -> None:
    with pytest.raises(WireError, match="symbol"):
        CCollector(library, size, symbol_bytes, bytes(4))


@given(st.integers(1, 1 << 24), st.integers(0, 4096), st.integers(0, 0xFFFF))
def test_slices(library: CLibrary, dimension: int, span: int, index: int) -> None:
    found = outcome(lambda: library.slice_size(dimension, span, index))
    exists = span and index * span < dimension
    assert found == (min(span, dimension - index * span) if exists else "vector length")


@pytest.mark.nightly
def test_the_fuzz_target_finds_nothing_in_what_it_once_kept_and_in_a_short_run(tmp_path) -> None:
    """The corpus is of 10^8 executions: rows of target (u8), size (u16) and input."""
    if not shutil.which("clang"):
        pytest.skip("clang is not installed")
    program = make(tmp_path, "fuzz", CC="clang", CFLAGS="-O1")
    corpus, at = tmp_path / "corpus", 0
    corpus.mkdir()
    kept = Path(__file__).with_name("fuzz_corpus.bin").read_bytes()
    while at < len(kept):
        target, size = struct.unpack_from("<BH", kept, at)
        (corpus / str(at)).write_bytes(bytes([target]) + kept[at + 3 : at + 3 + size])
        at += 3 + size
    options = ["-runs=3000", "-max_len=300", "-seed=1", str(corpus)]
    subprocess.run([program, *options], check=True, cwd=tmp_path, stderr=subprocess.DEVNULL)


def test_a_chunk_that_is_longer_than_any_frame_is_refused(library: CLibrary) -> None:
    body = bytes([2, *bytes(8)])
    for size in (BODY_MAX, BODY_MAX + 1):
        chunk = ctypes.create_string_buffer(64)
        data = body + bytes(size - len(body))
        found = library.c.tm_chunk_read(chunk, data, ctypes.c_size_t(size))
        assert REASONS[found] == ("" if size == BODY_MAX else "length")


STREAM = st.lists(
    st.sampled_from([b"\0", b"\xc0", b"\xdb", b"\xdc", b"\xdd", b"\1", b"\2a"])
    | st.binary(max_size=20)
    | st.builds(cobs_frame, st.binary(min_size=1, max_size=300))
    | st.builds(kiss_frame, st.integers(0, 255), st.binary(max_size=300))
    | st.binary(min_size=500, max_size=650),
    max_size=8,
)


@given(STREAM)
def test_streams_hold_the_same_frames(library: CLibrary, parts: list[bytes]) -> None:
    cobs, kiss = CobsUnframer(), KissUnframer()
    in_c = CUnframer(library, "cobs", cobs.bytes_max), CUnframer(library, "kiss", kiss.bytes_max)
    for part in parts:
        assert in_c[0].feed(part) == cobs.feed(part)
        assert in_c[1].feed(part) == [bytes([kind]) + data for kind, data in kiss.feed(part)]
    assert (in_c[0].malformed, in_c[1].malformed) == (cobs.malformed, kiss.malformed)


@given(st.integers(0, 255), st.binary(max_size=300))
def test_kiss_frames(library: CLibrary, command: int, data: bytes) -> None:
    assert library.kiss_frame(command, data) == kiss_frame(command, data)
