"""What each refusal means: the likely cause and what to do, on a board and on the host.

SPEC.md 6.6 lists the reasons, docs/troubleshooting.md shows this table.
"""

from collections import Counter
from collections.abc import Iterable

from ternmesh.federated.events import FIRST_CONTACT, FRAME_SIZE, OLD_MEMBERS, OTHER

NAMES_SHOWN = 3  # of a long list
LOGGED_MAX = 1024  # pairs of peer and reason that get a line in the log
NORMAL_UP_TO = 10  # refusals for one of these reasons come with first contacts and restarts
NORMAL = (FIRST_CONTACT, "seal")
# Busy links and restarts bring these, and nothing is lost: no owner has to look
HARMLESS = ("duplicate", "old round", "replay", "unheard", "unknown node")

_VERSION = "the ends have different versions of ternmesh: install the same one everywhere"
_ENROL = (
    "run `ternmesh enrol add` on the host with the line that `ternmesh enrol identity` prints on "
    "the board"
)
_BEARER = f"damaged by the bearer (a few are normal): check cable and signal; or {_VERSION}"
_DAMAGED = f"damaged on the way (a few are normal), or {_VERSION}"
_MODEL = "the model packages differ: copy the host's (`model`) to every board"
_NAMES = "two boards have one name or radio address: give each its own"
_TWO = f"a board lost its state_dir in mid-round, which mends itself; or {_NAMES}"
_SPLIT = f"a number is not finite: lower learning_rate; or {_VERSION}"
# The log says it of a board, the status of all that are ahead, by their names
AHEAD = (
    "holds a newer global update of this run than this host, and does not give back all those in "
    "between: was the host's state_dir restored from an old copy? Restore a newer one (`ternmesh "
    "restore`); or give this run up: change a value of [run] and start the host once with "
    "--new-run, which keeps keys and boards"
)

# Sentences that are the same on both sides
_ALIKE = {
    FIRST_CONTACT: "normal after each start. If it lasts, the host's answers do not arrive",
    "suite": "one end runs with --insecure, the other with keys: start both in the same way",
    "unknown key": f"the host does not know this key of the board: {_ENROL}",
    "other host": (
        "the board trusts another host than the one that answers: give it that host's line (run "
        "`ternmesh enrol host` on the board, with what `ternmesh enrol identity` prints on the "
        "host)"
    ),
    "unknown node": "the board is still in another run: it says hello and joins by itself",
    "unheard": "normal after a restart of the host: the board says hello",
    "wrong peer": _NAMES,
    "context": f"a frame for another board: {_NAMES}",
    "clone": "two programs use one identity, or a disk was copied or restored: see SECURITY.md",
    "replay": "it was here before, or its sender has ended: normal, unless there are ever more",
    "role": "frames come back to their sender, or it needs another `ternmesh enrol code --role`",
    "signature": (
        "another key has signed it: compare `ternmesh enrol list` with what `ternmesh enrol "
        "identity` shows on both"
    ),
    "wrong model": _MODEL,
    "vector length": _MODEL,
    "plan": f"the host's plan does not fit the board: {_MODEL}; or {_VERSION}",
    "samples": "the board has no training samples, or too many: check its [data]",
    FRAME_SIZE: (
        "the board's bearer does not carry frames as long as this run's: give [link] of host and "
        "boards the same service, and start them again"
    ),
    "future round": "the host is behind the board: was its state_dir restored from an old copy?",
    "old round": (
        "it came too late, and a later update carries it: normal; where a board misses most "
        "rounds, raise run.deadline_s"
    ),
    "kind": f"it is not for this program: check link.fleet; or {_VERSION}",
    "conflict": _TWO,
    "digest": _TWO,
    "reference": f"a global update breaks the rules: {_VERSION}",
    "probe set": (
        "the packet is about another probe set: give host and boards the same file in [knowledge]"
    ),
    "label space": f"the packet is about other classes: {_MODEL}",
    "code": "this code is not valid: it has expired, was used, or is from another host",
    "shape": "the parts of a split training differ: export them again, and copy both",
    "payload": _SPLIT,
    "scale": _SPLIT,
    "stale": "it came too late and is skipped: if often so, raise answer_s",
    "duplicate": "nothing to do: it was here already",
    OTHER: "further reasons, too many to count apart",
    **dict.fromkeys(("length", "version", "control", "manifest", "coding", "trits"), _DAMAGED),
    **dict.fromkeys(("audit", "bitmap", "piece", "knowledge", "agreement"), _DAMAGED),
    **dict.fromkeys(
        ("batch", "crc", "damaged object", "frame", "link", "protobuf", "radio"), _BEARER
    ),
    **dict.fromkeys(("session", "size", "state", "symbol"), _BEARER),
}
# By reason: the sentence for a board, then that for the host
SENTENCES = {reason: (sentence, sentence) for reason, sentence in _ALIKE.items()} | {
    "seal": (
        "it does not open, which is normal for a while after a start. If it lasts, another program "
        f"uses this identity (SECURITY.md), or the host does not know this key: {_ENROL}",
        "it does not open, which is normal for a while after a start. If it lasts, two boards have "
        "this name, or it has another key than `ternmesh enrol list` shows, or an earlier run",
    ),
    "revoked": (
        "the host has revoked this board's key, and it takes part no more: to come back, stop "
        f"it, rename its file `identity`, make another with `ternmesh enrol identity`, {_ENROL}, "
        "and start it",
        "the key of this board was revoked: to take it back, make it a new identity and enrol that",
    ),
    "full": (
        "the host takes no more boards (run.nodes_max)",
        "there are as many boards as run.nodes_max: raise it",
    ),
    "ahead": (
        "this board holds a newer global update than the host: see the host's log",
        f"the board {AHEAD}",
    ),
    OLD_MEMBERS: (
        "the host's membership list is older than before, so a revoked board may count again: "
        "tell the host's owner",
        "this host's membership list is older than one that the board knows: was its state_dir "
        "restored from an old copy? Compare `ternmesh enrol list` with your boards, then revoke "
        "and enrol again what is missing; the message ends with the next change",
    ),
    "settings": (
        "the host may not set this here: see [remote] in node.toml; or the value is out of bounds",
        "the board does not take these settings, or some: `ternmesh settings` shows what is in "
        "force; see [remote] in its node.toml",
    ),
    "release": (
        "the release is older than what this board has had, or too large for its disk, or damaged: "
        "`ternmesh status` says which",
        "a status of a release that has ended or was replaced: normal for a while",
    ),
    "enrolment": (
        "the host has this name with another key. A second board: give it a `name` of its own. "
        "One that was made anew: run `ternmesh enrol revoke` on the host, then enrol it again",
        "this name has another key here. A second board: give it a `name` of its own. One that "
        "was made anew: `ternmesh enrol revoke` it, then enrol it again",
    ),
}
NO_ANSWER = (
    "no answer from the host yet. If this lasts: is it running, with the same bearer and "
    f"link.fleet? If its log says `unknown key`, {_ENROL}"
)
DIVERGED = (
    "its update holds only what earlier rounds left over: lower run.learning_rate on the host, or "
    "check and scale the samples ([data] divide_by)"
)


def why(reason: str, *, on_host: bool) -> str:
    """The likely cause of a refusal and what to do, as one sentence without its full stop."""
    return SENTENCES[reason][on_host] if reason in SENTENCES else _VERSION


def is_normal(reason: str, count: int) -> bool:
    """Whether an owner need not look at so many refusals for one reason."""
    return reason in HARMLESS or (reason in NORMAL and count < NORMAL_UP_TO)


def shortened(names: Iterable[str]) -> str:
    """The names in order, cut to the first few where there are many more."""
    known = sorted(names)
    hidden = len(known) - NAMES_SHOWN
    if hidden <= 1:  # "and 1 more" is no shorter than the name
        return ", ".join(known)
    return f"{', '.join(known[:NAMES_SHOWN])} and {hidden} more"


class RefusalLog:
    """Which refusals get a line in a log: one for each peer and reason.

    Those of first contacts, which are normal, get it only when they do not end.
    """

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def is_news(self, peer: str, reason: str) -> bool:
        """Count a refusal; whether it should be logged."""
        pair = (peer, reason)
        if reason in HARMLESS:
            return False
        if pair not in self._seen and len(self._seen) >= LOGGED_MAX:
            return False
        self._seen[pair] += 1
        return self._seen[pair] == (NORMAL_UP_TO if reason in NORMAL else 1)
