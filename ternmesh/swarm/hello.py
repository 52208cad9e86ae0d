"""What the host checks of a hello before it takes a node in. Pure."""

from ternmesh.errors import WireError
from ternmesh.wire import control, manifest
from ternmesh.wire.control import Hello


def read_hello(body: bytes, peer: str, model: bytes) -> Hello:
    """The hello that `peer` says in its own name, about this model (8 bytes); WireError."""
    hello = control.read_control(body) if body[0] == control.KIND else None
    if not isinstance(hello, Hello):
        raise WireError("kind", "only a hello may come before a node has its context")
    if hello.name != peer:
        raise WireError("wrong peer", "a hello in another node's name")
    if hello.model != model:
        raise WireError("wrong model", f"{hello.name} runs another model")
    if not 0 < hello.samples <= manifest.SAMPLES_MAX:
        raise WireError("samples", f"{hello.name} has no samples, or too many")
    return hello
