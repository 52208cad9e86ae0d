"""The tree of errors of the core.

    TernmeshError
    ├── WireError           bytes that arrived are not what SPEC.md allows (the peer's fault)
    │   └── SealError       a frame whose seal does not open: nothing in it was believed
    ├── CodecError          a vector that cannot be encoded (NaN, wrong length, out of range)
    ├── BundleError         a model bundle whose description is wrong or does not match its files
    └── TrustError          an identity, code or roster that cannot be used (an operator's input)

ValueError stays for wrong arguments in our own code.
"""


class TernmeshError(Exception):
    """The base of every error that this core raises on bad input."""


class WireError(TernmeshError):
    """Bytes that arrived break SPEC.md; `reason` is a short word that status counts by."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class SealError(WireError):
    """A frame whose tag does not match its bytes."""


class CodecError(TernmeshError):
    """A vector that cannot become a hypervector."""


class BundleError(TernmeshError):
    """A model bundle that cannot be used; the sentence says which file or field is wrong."""


class TrustError(TernmeshError):
    """An identity, a code or a roster that cannot be used; the sentence says what to do."""
