"""What each refusal means: the likely cause and what to do, on a board and on the host.

SPEC.md 6.6 lists the reasons, docs/troubleshooting.md shows this table.
"""

from collections import Counter
from collections.abc import Iterable

from ternmesh.federated.events import FIRST_CONTACT, FRAME_SIZE, OTHER

NAMES_SHOWN = 3  # of a long list
LOGGED_MAX = 1024  # pairs of peer and reason that get a line in the log
NORMAL_UP_TO = 10  # refusals for one of these reasons come with first contacts and restarts
NORMAL = (FIRST_CONTACT, "seal")


def _both(sentence: str) -> tuple[str, str]:
    """The sentence for both sides."""
    return sentence, sentence


_VERSION = "the ends have different versions of ternmesh: install the same one everywhere"
_DAMAGED = f"damaged on the way (a few are normal), or {_VERSION}"
_BEARER = f"damaged by the bearer (a few are normal): check its cable or signal; or {_VERSION}"
_MODEL = "the model packages differ: copy the host's (`model`) to every board"
_NAMES = "two boards have one name or radio address: give each its own"
_TWO = f"a board lost its state_dir in mid-round, which mends itself; or {_NAMES}"
_NEW_IDENTITY = (
    "to take it back, rename the file `identity` of the board, run `ternmesh enrol identity` "
    "there, and `ternmesh enrol add` on the host"
)
_SPLIT = "the board and the host of a split training differ: export the parts again, copy both"
_LATE = "the update came too late; a later one carries it. If it is so each round, raise deadline_s"
_FRAMES = (
    "its bearer does not carry frames as long as this run's: give [link] of host and boards the "
    "same service, and start the host once with --new-run if it asks for that"
)

# By reason: the sentence for a board, then that for the host ("-": never seen there)
SENTENCES: dict[str, tuple[str, str]] = {
    "seal": (
        "it does not open, which is normal for a while after a start. If it lasts, the host does "
        "not know this board's key: run `ternmesh enrol add` there with the line that "
        "`ternmesh enrol identity` prints here",
        "it does not open, which is normal for a while after a start. If it lasts, the board has "
        "another key than `ternmesh enrol list` shows, or is still in a run before this one",
    ),
    FIRST_CONTACT: (
        "normal after each start. If it lasts, the host's answers do not arrive here",
        "normal after each start. If it lasts, this host's answers do not reach the board",
    ),
    "suite": _both("one end runs with --insecure, the other with keys: start both in the same way"),
    "unknown key": (
        "the host does not know this board's key: run `ternmesh enrol add` there with the line "
        "that `ternmesh enrol identity` prints here",
        "this host does not know the board: run `ternmesh enrol add` here with the line that "
        "`ternmesh enrol identity` prints on the board",
    ),
    "revoked": (
        f"the host has revoked this board's key, and it takes part no more: {_NEW_IDENTITY}",
        f"its key was revoked: {_NEW_IDENTITY}",
    ),
    "unknown node": (
        "the host has begun another run: this board says hello and joins it by itself",
        "the board is still in another run: it says hello and joins this one by itself",
    ),
    "wrong peer": _both(_NAMES),
    "context": (f"it is for another board: {_NAMES}", "-"),
    "clone": (
        "two programs use the identity of one end, or a disk was copied or restored: see "
        "SECURITY.md, and stop one of them",
        "two programs use this board's identity, or its disk was copied or restored: stop one of "
        "them, or revoke the key if you know of no copy",
    ),
    "replay": (
        "it was here before, or is of a program that has ended: a few are normal, many mean that "
        "somebody repeats old messages",
        "it was here before, or is of a program that has ended: a few are normal, many mean that "
        "somebody repeats old messages in the board's name",
    ),
    "role": (
        "this identity has a role that may not do this, or the code is for another role: make a "
        "code with `ternmesh enrol code --role`",
        "the identity of the board has a role that may not do this, or its code is for another: "
        "make a code with `ternmesh enrol code --role`",
    ),
    "signature": _both(
        "it is not signed with the key that counts: one end has another identity than the other "
        "end has enrolled (`ternmesh enrol list`, `ternmesh enrol identity`), or it is forged"
    ),
    "wrong model": _both(_MODEL),
    "vector length": _both(_MODEL),
    "samples": (
        "this board has no training samples, or too many: check [data]",
        "the board has no training samples, or too many: check its [data]",
    ),
    FRAME_SIZE: _both(_FRAMES),
    "plan": (f"the host's plan does not fit this board: {_MODEL}; or {_VERSION}", _VERSION),
    "full": (
        "the host takes no more boards (run.nodes_max); or this board has changed its keys as "
        "often as is allowed: if `ternmesh enrol list` on the host still shows its present "
        "fingerprint, stop it and rename identity.next, else enrol it under another name",
        "there are as many boards as run.nodes_max: raise it; or a name has changed its keys as "
        "often as it may",
    ),
    "ahead": (
        "this board holds a newer global update of the run than the host: was the host's "
        "state_dir restored from an old copy? See the host's log",
        "the board holds a newer global update of this run than this host: was the host's "
        "state_dir restored from an old copy? Restore a newer one; or give this run up: change a "
        "value of [run] and start the host once with --new-run, which keeps keys and boards",
    ),
    "old round": _both(_LATE),
    "future round": (
        "the host is behind this board: was its state_dir restored from an old copy?",
        "this host is behind the board: was its state_dir restored from an old copy?",
    ),
    "kind": _both(f"a message that is not for this program: check link.fleet; or {_VERSION}"),
    "bundle": (
        "the host takes no partial aggregates: set partial_aggregates alike on gateway and host",
        "a gateway adds updates up, and this host takes none: set run.partial_aggregates, or "
        "switch it off on the gateway",
    ),
    "conflict": _both(_TWO),
    "digest": _both(_TWO),
    "reference": (f"a global update that breaks the rules: {_VERSION}", "-"),
    "code": (
        "this code is not valid: it has expired, was used, or is of another host: make another "
        "with `ternmesh enrol code` there",
        "the code is not valid: it has expired, was used, or is of another host: make another "
        "with `ternmesh enrol code`",
    ),
    "early": _both("its keys were changed within the last hour: try again later"),
    "enrolment": (
        "an enrolment or new keys that break a rule: see the host's log",
        "an enrolment or new keys that break a rule: a name keeps its key until it is rotated or "
        "revoked",
    ),
    "shape": _both(_SPLIT),
    "payload": _both(f"a number is not finite: lower learning_rate; or {_VERSION}"),
    "stale": _both("it came too late and is skipped: raise answer_s if this is often so"),
    "scale": _both(f"a number is beyond the plan: lower learning_rate; or {_VERSION}"),
    "duplicate": _both("nothing to do: it was here already"),
    OTHER: _both("further reasons, too many to count apart"),
    **dict.fromkeys(
        ("length", "version", "control", "manifest", "coding", "trits", "bitmap", "piece"),
        _both(_DAMAGED),
    ),
    **dict.fromkeys(
        ("link", "symbol", "damaged object", "batch", "crc", "frame", "probe", "protobuf"),
        _both(_BEARER),
    ),
    **dict.fromkeys(("radio", "session", "size", "state"), _both(_BEARER)),
}

NO_ANSWER = (
    "no answer from the host yet. If this lasts: is it running, with the same bearer and "
    "link.fleet? If its log says `unknown key`, run `ternmesh enrol add` there with the line that "
    "`ternmesh enrol identity` prints here"
)


def why(reason: str, *, on_host: bool) -> str:
    """The likely cause of a refusal and what to do, as one sentence without its full stop."""
    return SENTENCES.get(reason, _both(f"a reason that is unknown here: {_VERSION}"))[on_host]


def shortened(names: Iterable[str]) -> str:
    """The names in order, cut to the first few where there are many more."""
    known = sorted(names)
    rest = len(known) - NAMES_SHOWN
    if rest <= 1:  # "and 1 more" is no shorter than the name
        return ", ".join(known)
    return f"{', '.join(known[:NAMES_SHOWN])} and {rest} more"


class RefusalLog:
    """Which refusals get a line in a log: one for each peer and reason.

    Those of first contacts, which are normal, get it only when they do not end.
    """

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def is_news(self, peer: str, reason: str) -> bool:
        """Count a refusal; whether it should be logged."""
        pair = (peer, reason)
        if pair not in self._seen and len(self._seen) >= LOGGED_MAX:
            return False
        self._seen[pair] += 1
        return self._seen[pair] == (NORMAL_UP_TO if reason in NORMAL else 1)
