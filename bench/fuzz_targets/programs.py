"""What programs read: bundles, their own notes, and the messages of M3a and M3b."""

import json
import re
from collections.abc import Callable

import numpy as np

from bench.fuzz_targets.target import Target, same
from edge.history import KEY, Entry, History
from ternmesh.bundle import FILES, Bundle, TensorSpec, read_bundle, write_bundle
from ternmesh.errors import BundleError
from ternmesh_cli.broker import texts
from ternmesh_cli.experiment import payload
from ternmesh_cli.experiment.errors import PayloadError
from ternmesh_cli.experiment.settings import JSON, TERNARY
from transports.credentials import Credentials, parse_credentials, write_credentials

_ACCOUNTS_TRIED = 32
# Values that JSON allows and readers forget.
_ODD = (b"1e999", b"-1e999", b"NaN", b"[[[]]]", b"null", b'"\\ud800"', b"9" * 40, b"true", b"{}")


_HISTORY_END = b'"bytes_up": 1, "bytes_down": 2, "seconds": 3.0'


def odd(good: bytes) -> list[bytes]:
    """A JSON text, and the same with each of its numbers as something else."""
    found = list(re.finditer(rb"-?[0-9.]+", good))
    places = found[:: max(1, len(found) // 8)]
    odd = [good[: p.start()] + value + good[p.end() :] for p in places for value in _ODD]
    return [good, *odd, b"[" * 1024, b'{"a":' * 200]


def _bundle() -> Bundle:
    one, batch = TensorSpec("x", "float32", (-1, 4)), TensorSpec("x", "float32", (8, 4))
    adapter = (TensorSpec("a", "float32", (2, 3)), TensorSpec("b", "float32", (4,)))
    files = dict.fromkeys(FILES, "0" * 64)
    return Bundle("tiny", 1, (one,), (one,), (batch,), adapter, "accuracy", files)


def _check_bundle(data: bytes) -> None:
    found = read_bundle(data)
    same(read_bundle(write_bundle(found)), found, "a bundle's description")
    found.model_hash()
    if found.dimension < 1 or found.batch < 1:
        raise AssertionError("a bundle without numbers")


class _Notes(dict[str, bytes]):
    """A node's store as far as a history needs it."""

    def put(self, key: str, value: bytes) -> None:
        self[key] = value


def _check_history(data: bytes) -> None:
    history = History(_Notes({KEY: data}))
    history.load()
    history.append(Entry(1, None, None, 0, 0, 0.0))
    json.dumps([item.version for item in history])


def _arm(codec: str) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        message = payload.decode(codec, _bundle(), data)
        if message.vector.shape != (_bundle().dimension,) or not np.isfinite(message.vector).all():
            raise AssertionError("a state that is no vector of finite numbers")
        again = payload.decode(codec, _bundle(), payload.encode(codec, _bundle(), message).data)
        same((again.sender, again.version), (message.sender, message.version), "a message's head")

    return check


def _state(codec: str) -> bytes:
    vector = np.linspace(-1, 1, _bundle().dimension, dtype=np.float32)
    return payload.encode(codec, _bundle(), payload.Message("ada", 3, vector)).data


def _check_credentials(data: bytes) -> None:
    own = parse_credentials(data, "ada")
    text = write_credentials({"ada": own}) if _is_plain(own) else ""
    same(parse_credentials(text.encode(), "ada") if text else own, own, "credentials")


def _is_plain(own: Credentials) -> bool:
    """Whether our writer would write it: its names and passwords need no escapes."""
    both = f"{own.username}{own.password}"
    return both.isascii() and both.isprintable() and not set(both) & {'"', "\\"}


def _check_accounts(data: bytes) -> None:
    text = data.decode()
    for account in texts.accounts(text)[:_ACCOUNTS_TRIED]:
        if account in texts.accounts(texts.without_line(text, account)):
            raise AssertionError("an account that cannot be removed")
        texts.without_block(text, account)


TARGETS = (
    Target("bundle", _check_bundle, lambda: odd(write_bundle(_bundle())), (BundleError,), 2048),
    Target(
        "history",
        _check_history,
        lambda: odd(b'[{"version": 1, "metric": 0.5, "loss": null, %b}]' % _HISTORY_END),
    ),
    Target(
        "credentials",
        _check_credentials,
        lambda: [write_credentials({"ada": Credentials("attic~ada", "secret")}).encode()],
        (ValueError,),
        length_max=256,
    ),
    Target(
        "accounts",
        _check_accounts,
        lambda: [b"attic~ada:$7$101$c2FsdA==$aGFzaA==\nadmin:x\n"],
        (UnicodeDecodeError,),
        length_max=256,
    ),
    Target("m3a_message", _arm(JSON), lambda: odd(_state(JSON)), (PayloadError,)),
    Target("m3b_message", _arm(TERNARY), lambda: odd(_state(TERNARY)), (PayloadError,)),
)
