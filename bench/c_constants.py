"""Makes ternmesh_constants.h of the C library of the numbers that Python uses.

`python -m bench.c_constants` writes it; a test compares it, and others compare these numbers
with docs/SPEC.md.
"""

from pathlib import Path

from ternmesh.codec import codebook, entropy_coder, scale
from ternmesh.generator import derive_key
from ternmesh.link import erasure_code
from ternmesh.security import key_derivation, session, signatures
from ternmesh.security.primitives import PUBLIC_SIZE
from ternmesh.wire import frame, update
from transports.ble import gatt, values

HEADER = Path(__file__).parents[1] / "firmware_tools/c/include/ternmesh_constants.h"
_KEY = derive_key("codebook")
NAME_MAX = 32  # bytes of a name
CONSTANTS = {
    "WIRE_VERSION": frame.VERSION,
    "HEAD_SIZE": frame.HEAD_SIZE,
    "TAG_SIZE": frame.TAG_SIZE,
    "FRAME_OVERHEAD": frame.FRAME_OVERHEAD,
    "FRAME_MAX": frame.FRAME_MAX,
    "BODY_MAX": frame.BODY_MAX,
    "SUITE_OPEN": frame.SUITE_OPEN,
    "SUITE_END": key_derivation.SUITE_END,
    "SUITE_HOP": key_derivation.SUITE_HOP,
    "UNASSIGNED": frame.UNASSIGNED,
    "BROADCAST": frame.BROADCAST,
    "COUNTER_BITS": frame.COUNTER_BITS,
    "GENERATION_BITS": key_derivation.GENERATION_BITS,
    "WINDOW": session.SIZE,
    "IDENTITY_MIN": 3 + 1 + 2 * PUBLIC_SIZE,  # version, role, length, a name, both keys
    "IDENTITY_MAX": 3 + NAME_MAX + 2 * PUBLIC_SIZE,
    "BLE_WINDOW": values.WINDOW,
    "BLE_VALUE_MAX": gatt.VALUE_MAX,
    "RUN_SIZE": len(signatures.NO_RUN),
    "CHUNK_KIND": update.CHUNK_KIND,
    "CHUNK_HEAD_SIZE": update.CHUNK_HEAD_SIZE,
    "MANTISSA_BITS": scale.MANTISSA_BITS,
    "EXPONENT_MAX": scale.EXPONENT_MAX,
    "RICE_MAX": entropy_coder.RICE_MAX,
    "DENSE": entropy_coder.DENSE,
    "CODEBOOK": entropy_coder.CODEBOOK,
    "SPAN_MAX": codebook.SPAN_MAX,
    "CODEBOOK_KEY_0": _KEY[0],
    "CODEBOOK_KEY_1": _KEY[1],
    "POLYNOMIAL": erasure_code.POLYNOMIAL,
    "GENERATION_MAX": erasure_code.GENERATION_MAX,
    "SOURCES_MAX": erasure_code.SOURCES_MAX,
    "SYMBOL_BYTES_MAX": erasure_code.SYMBOL_BYTES_MAX,
}


def header() -> str:
    """The text of the header file."""
    rows = [f"#define TM_{name} {value:#x}u" for name, value in CONSTANTS.items()]
    return "\n".join(
        [
            "/* Made by `python -m bench.c_constants`: do not edit. */",
            "#ifndef TERNMESH_CONSTANTS_H",
            "#define TERNMESH_CONSTANTS_H",
            *rows,
            "#endif",
            "",
        ]
    )


if __name__ == "__main__":
    HEADER.write_text(header())
