"""The errors of the core.

    TernmeshError
    ├── WireError           received bytes break SPEC.md (an error of the peer)
    │   └── SealError       a frame whose tag is wrong; none of its content was used
    ├── CodecError          a vector that cannot be encoded (NaN, wrong length, out of range)
    ├── ModelPackageError   a model package with a wrong description, or with other files
    ├── RuleError           an aggregation rule that cannot be used with these updates
    ├── SecurityError       an identity, code or member list that cannot be used (operator input)
    ├── StateError          a step that the state of a node or a run does not allow (our own error)
    └── ConfigError         a configuration that cannot be used (ternmesh.config)

ValueError is for wrong arguments in our own code.
"""


class TernmeshError(Exception):
    """The base of every error that the core raises for bad input.

    >>> from ternmesh import TernmeshError, WireError
    >>> issubclass(WireError, TernmeshError)
    True
    """


class WireError(TernmeshError):
    """Received bytes break SPEC.md; `reason` is a short word by which status counts refusals.

    >>> from ternmesh.wire.control import read_control
    >>> try:
    ...     read_control(bytes(3))
    ... except WireError as error:
    ...     print(error.reason)
    kind
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class SealError(WireError):
    """A frame's tag does not match its bytes."""


class CodecError(TernmeshError):
    """A vector cannot be encoded."""


class ModelPackageError(TernmeshError):
    """A model package cannot be used; the message names the wrong file or field."""


class RuleError(TernmeshError):
    """An aggregation rule cannot be used: unknown, too few updates, or a wrong result."""


class SecurityError(TernmeshError):
    """An identity, a code or a member list cannot be used; the message says what to do."""


class StateError(TernmeshError):
    """A step that the state of a node or a run does not allow; the message names both."""
