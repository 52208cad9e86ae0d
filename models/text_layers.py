"""The layers of text encoders by their names: which are attention, and what part each number is.

It needs no torch, so that whoever reads a bundle can tell its parts.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ternmesh.errors import TernmeshError

HEAD = "head"
PARTS = ("q", "k", "v", "o", HEAD)
OTHER = "other"

# Where Hugging Face encoders have the four projections of attention.
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "bert": {
        "q": "*.attention.self.query",
        "k": "*.attention.self.key",
        "v": "*.attention.self.value",
        "o": "*.attention.output.dense",
    },
    "distilbert": {
        "q": "*.attention.q_lin",
        "k": "*.attention.k_lin",
        "v": "*.attention.v_lin",
        "o": "*.attention.out_lin",
    },
}


class TextError(TernmeshError):
    """An encoder, or pairs of sentences, that cannot be used; the sentence says why."""


def attention_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """The patterns of q, k, v and o of the family whose layers are among `names`; TextError."""
    known = list(names)
    for parts in FAMILIES.values():
        if all(any(fnmatchcase(name, pattern) for name in known) for pattern in parts.values()):
            return tuple(parts.values())
    raise TextError(
        f"this encoder names its attention in a way that is not known ({', '.join(FAMILIES)} are): "
        "name the layers to adapt"
    )


def part(tensor: str) -> str:
    """What part of the model an adapter tensor changes: one of PARTS, or OTHER."""
    if tensor.startswith(f"{HEAD}."):
        return HEAD
    for parts in FAMILIES.values():
        for name, pattern in parts.items():
            if fnmatchcase(tensor, f"{pattern}.*"):
                return name
    return OTHER
