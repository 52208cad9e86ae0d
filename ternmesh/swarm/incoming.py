"""What the host checks of a body before it looks at what is in it. Pure."""

from ternmesh.errors import WireError
from ternmesh.plan import Plan
from ternmesh.wire import contributions, control, manifest, share
from ternmesh.wire.control import Hello, Silent


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


def round_of(body: bytes, version: int, plan: Plan, takes_bundles: bool) -> int:
    """The round that a node's body is for; WireError where a host takes no such body."""
    of_bundle = (contributions.KIND, contributions.SHARE_KIND) if takes_bundles else ()
    if body[0] in (manifest.KIND, share.KIND, *of_bundle):
        if len(body) < share.HEAD_SIZE:
            raise WireError("length", "a body of a packet is shorter than its shortest head")
        return share.whole_round(int.from_bytes(body[1:3], "little"), version)
    message = control.read_control(body) if body[0] == control.KIND else None
    if not isinstance(message, Silent) or plan.silence_rounds == 0:
        raise WireError("kind", f"a host takes no such body of kind {body[0]} here")
    return message.round
