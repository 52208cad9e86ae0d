"""The C library: does it answer as Python does, and how large is it on a Cortex-M0?

`python -m bench.firmware PROGRAM SEED COUNT` compares frames of the conformance program and Python.
"""

import json
import random
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.c_cases import FIXED, FUNCTIONS, ROOM, answer, changed, random_case, written
from bench.jobs import Finished, Job, finish
from bench.result import Figure, Result
from tests.firmware_tools.c_library import FOLDER, make

SEMIHOSTING = "-semihosting-config enable=on,target=native -nographic -monitor none -serial none"
M0 = f"qemu-system-arm -machine microbit {SEMIHOSTING} -kernel {{}}"
BOARDS = {  # compiler, flags, target, how it is run
    "x86": ("cc", "-O2", "conformance", "{}"),
    "aarch64": ("aarch64-linux-gnu-gcc", "-O2 -static", "conformance", "qemu-aarch64 {}"),
    "cortex_m0": ("arm-none-eabi-gcc", "-Os -mcpu=cortex-m0 -mthumb", "conformance.elf", M0),
    "cortex_m4": (
        "arm-none-eabi-gcc",
        "-Os -mcpu=cortex-m4 -mthumb",
        "conformance.elf",
        f"qemu-system-arm -machine mps2-an386 {SEMIHOSTING} -kernel {{}}",
    ),
    "riscv32": (  # the instructions of an ESP32-C3
        "riscv64-unknown-elf-gcc",
        "-Os -march=rv32imc -mabi=ilp32",
        "conformance.riscv",
        f"qemu-system-riscv32 -machine virt -bios none {SEMIHOSTING} -kernel {{}}",
    ),
}
PARTS, PART, PART_QUICK = 10, 1_000_000, 5_000  # processes, and frames of each
CASES, CASES_QUICK = 20_000, 500  # on each emulated board, besides the golden vectors
BASES, BATCH = 400, 100_000  # inputs from which others are made; cases of one call
RANDOM = 0.1  # the share of frames that are nothing but random bytes
NOTES = (
    "frames: valid ones with up to three changes, or 10 % random bytes, through tm_plain_open, "
    "tm_chunk_read and tm_chunk_decode, tm_keyed_open; reasons and bytes are compared",
    "Cortex-M0 (microbit), M4 (MPS2) and RISC-V (rv32imc, as an ESP32-C3 has; machine virt) are "
    "emulated by QEMU, aarch64 by qemu-user",
    "flash: bytes of code and constants, gcc -Os for a Cortex-M0, only what is called is linked; "
    "relay: parse, open, seal, the relay with its BLE link and KISS, and the portable AES",
    "RAM: the state of the relay with all buffers, one for the modem, and the deepest stack of its "
    "functions; to open frames oneself takes a session, a window, a frame and a stack",
)


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All; `quick` takes few frames."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder), Finished(resume), quick=quick)


def _measure(folder: Path, finished: Finished, *, quick: bool) -> Result:
    built = {
        name: make(folder / name, target, CC=compiler, CFLAGS=flags)
        for name, (compiler, flags, target, _) in BOARDS.items()
    }
    golden = {name: _failed(name, path, folder, quick=quick) for name, path in built.items()}
    count = PART_QUICK if quick else PART
    jobs = [
        Job(f"frames/{count}/{n}", ("bench.firmware", str(built["x86"]), str(n), str(count)))
        for n in range(PARTS)
    ]
    finish(finished, jobs, lambda value: f"{value['cases']} frames, {value['differ']} differ")
    parts = [finished.values[job.part] for job in jobs]
    figures = {
        "disagreements": Figure(sum(part["differ"] for part in parts), "<=0"),
        "frames": Figure(sum(part["cases"] for part in parts), None if quick else ">=9.9e6"),
        "frames_refused": Figure(sum(part["refused"] for part in parts)),
        **{f"failed_{name}": Figure(failed, "<=0") for name, failed in golden.items()},
        **{name: Figure(value, limit) for name, value, limit in _memory(folder)},
    }
    return Result("firmware", figures, {}, NOTES, quick=quick)


def _failed(name: str, program: Path, folder: Path, *, quick: bool) -> int:
    """How many cases a board answers otherwise: the golden vectors and random ones."""
    cases = folder / "cases.bin"
    cases.write_bytes(written(1, CASES_QUICK if quick else CASES))
    said = _run(BOARDS[name][3].format(program), cases)
    return int(said.rsplit("failed ", 1)[1].split()[0])


def _run(command: str, cases: Path) -> str:
    """What a program prints; semihosting reads `cases.bin` in the present folder."""
    with cases.open("rb") as file:
        done = subprocess.run(
            command.split(), stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=cases.parent, check=False, text=True,
        )  # fmt: skip
    return done.stdout


# Sizes


def _symbols(path: Path) -> list[tuple[str, int, str, str]]:
    """Address, size, kind and name of what a file holds."""
    rows = (row.split() for row in _tool("nm", "-S", str(path)).splitlines())
    return [(row[0], int(row[1], 16), row[2], row[3]) for row in rows if len(row) == 4]


def _tool(name: str, *arguments: str) -> str:
    done = subprocess.run([f"arm-none-eabi-{name}", *arguments], capture_output=True, check=True)
    return done.stdout.decode()


def _compiled(folder: Path, calls: str, sources: list[Path], *flags: str) -> Path:
    """An ELF file with nothing but `calls` and what they need."""
    main = folder / "main.c"
    main.write_text(calls)
    elf = folder / "main.elf"
    compiler, options, *_ = BOARDS["cortex_m0"]
    subprocess.run(
        [
            compiler, *options.split(), "-std=c99", "-ffunction-sections", "-fdata-sections",
            "-Wl,--gc-sections", "-nostartfiles", "-specs=nano.specs", "-specs=nosys.specs",
            "-Wl,-e,main", f"-I{FOLDER / 'include'}", f"-I{FOLDER / 'apps'}", *flags,
            str(main), *map(str, sources), "-o", str(elf),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return elf


def _flash(elf: Path) -> int:
    """Code, constants and initial values."""
    text, data, *_ = _tool("size", str(elf)).splitlines()[1].split()
    return int(text) + int(data)


ONE = """
#include "{}"
void *use[1];
int main(void) {{ use[0] = {}; return 0; }}
"""
RELAY = """
#include "relay.h"
relay own;
tm_traffic traffic; tm_window window; tm_aes128 aes;
void relay_modem_write(const uint8_t *data, size_t size) { (void)data; (void)size; }
void relay_ble_write(const uint8_t *value, size_t size) { (void)value; (void)size; }
void *use[] = {relay_init, relay_ble_connected, relay_ble_disconnected, relay_ble_value,
    relay_modem_byte, relay_work, tm_header_read, tm_plain_open, tm_keyed_open, tm_keyed_seal,
    tm_traffic_init, tm_window_init, tm_aes128_portable, &traffic, &window, &aes};
int main(void) { return use[own.count % 16] != 0; }
"""


def _memory(folder: Path) -> list[tuple[str, float, str | None]]:
    """Flash and RAM for parse, open and relay; the session and its parts."""
    sources = sorted((FOLDER / "src").glob("*.c"))
    relay = [*sources, FOLDER / "apps" / "relay.c"]
    elf = _compiled(folder, RELAY, relay)
    symbols = {name: size for _, size, _, name in _symbols(elf)}
    buffers = sum(v for k, v in symbols.items() if k == "own" or re.match(r"out(\.|$)", k))
    opening = sum(symbols[name] for name in ("traffic", "window", "aes"))
    rows = [
        ("flash_relay_bytes", float(_flash(elf)), "<=16384"),
        ("ram_relay_bytes", float(buffers + deepest(folder, relay, "relay_")), "<=4096"),
        ("ram_open_bytes", float(opening + 255 + deepest(folder, relay, "tm_keyed_open")), None),
    ]
    for name in ("tm_session_secrets", "tm_chunk_decode", "tm_collector_add"):
        alone = _compiled(folder, ONE.format("ternmesh.h", name), sources)
        rows.append((f"flash_{name.removeprefix('tm_')}_bytes", float(_flash(alone)), None))
    return rows


def deepest(folder: Path, sources: list[Path], begin: str) -> int:
    """Bytes of the deepest stack below the functions whose names begin so.

    A call through a pointer is of AES, or of the board, whose own stack is not counted.
    """
    sizes: dict[str, int] = {}
    calls: dict[str, set[str]] = {}
    for source in sources:
        graph = folder / f"{source.stem}.ci"
        compiler, options, *_ = BOARDS["cortex_m0"]
        subprocess.run(
            [
                compiler, *options.split(), "-std=c99", "-fcallgraph-info=su", "-c", str(source),
                f"-I{FOLDER / 'include'}", f"-I{FOLDER / 'apps'}", "-o", f"{source.stem}.o",
                "-dumpdir", "", "-dumpbase", source.stem,
            ],
            check=True, cwd=folder,
        )  # fmt: skip
        text = graph.read_text()
        for title, size in re.findall(r'title: "([^"]+)" label: "[^"]*?(\d+) bytes', text):
            sizes[_bare(title)] = int(size)
        for caller, callee in re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', text):
            calls.setdefault(_bare(caller), set()).add(_bare(callee))
    calls["__indirect_call"] = {"encrypt", "set_key"}

    def depth(name: str) -> int:
        return sizes.get(name, 0) + max(map(depth, calls.get(name, ())), default=0)

    return max(depth(name) for name in sizes if name.startswith(begin))


def _bare(title: str) -> str:
    return title.rsplit(":", 1)[-1]


# Frames through both


def frames(program: str, seed: int, count: int) -> dict[str, int]:
    """The numbers of cases and of those that differ, and how many were refused."""
    found = {"cases": 0, "refused": 0, "differ": 0}
    rows: list[bytes] = []
    for number, (function, data) in enumerate(_inputs(seed, count), 1):
        said = answer(function, data)
        if max(len(data), len(said)) <= ROOM:
            head = struct.pack("<BHH", FUNCTIONS.index(function), len(data), len(said))
            rows.append(head + data + said)
            found["cases"] += 1
            found["refused"] += said[0] > 0
        if number % BATCH == 0 or number == count:
            with tempfile.TemporaryFile() as file:
                file.write(b"".join(rows))
                file.seek(0)
                done = subprocess.run([program], stdin=file, stdout=subprocess.PIPE, check=False)
            found["differ"] += int(done.stdout.rsplit(b"failed ", 1)[1])
            rows.clear()
    return found


def _inputs(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Frames and chunks, each changed at random or all random."""
    rng, own = np.random.default_rng(seed), random.Random(seed)
    bases: list[tuple[str, bytes]] = []
    while len(bases) < BASES:
        function, data = random_case(rng)
        if function in FIXED:
            bases.append((function, data))
    for _ in range(count):
        function, data = own.choice(bases)
        at, is_random = FIXED[function], own.random() < RANDOM
        rest = own.randbytes(own.randrange(80)) if is_random else changed(data[at:], own)
        yield function, data[:at] + rest


if __name__ == "__main__":
    print(json.dumps(frames(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
