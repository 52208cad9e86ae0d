"""The names of layers in text encoders; needs no torch."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ternmesh.errors import TernmeshError

HEAD = "head"

# Names of the four projections of attention in Hugging Face encoders.
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
    """An encoder or sentence pairs cannot be used."""


def attention_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """The patterns of q, k, v and o of the family whose layers are among `names`; TextError."""
    names = list(names)
    for parts in FAMILIES.values():
        if all(any(fnmatchcase(name, pattern) for name in names) for pattern in parts.values()):
            return tuple(parts.values())
    raise TextError(
        "the attention layers of this encoder have unknown names (known are those of "
        f"{', '.join(FAMILIES)}): name the layers to adapt"
    )
