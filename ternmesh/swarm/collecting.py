"""What a bundling gateway holds of one round: packets of its boards until they are whole."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ternmesh.plan import Plan
from ternmesh.swarm.intake import Intake
from ternmesh.wire import manifest


@dataclass(slots=True)
class _Held:
    board: str
    intake: Intake
    frames: list[bytes] = field(default_factory=list)  # in case that they must pass as they came


class Collecting:
    """One round. `expected` are the boards that it waits for, besides those that are `heard`."""

    def __init__(
        self, plan: Plan, model_hash: bytes, round_number: int, expected: Collection[str]
    ) -> None:
        self.heard: set[str] = set()
        self.is_over = False  # the bundle is made, or was not worth it
        self._packet = plan, model_hash[: manifest.MODEL_SIZE], round_number
        self._expected = expected
        self._held: dict[int, _Held] = {}  # by context
        self._passed: dict[int, str] = {}  # whose packets pass as they come, or who is silent

    @property
    def next_expected(self) -> Collection[str]:
        """The boards that the next round waits for; where this one just flew by, the same."""
        return self.heard or self._expected

    @property
    def whole(self) -> dict[int, Intake]:
        """The packets that are here, by context."""
        return {c: held.intake for c, held in self._held.items() if held.intake.complete}

    @property
    def is_whole(self) -> bool:
        """Whether all boards have said what they have to say."""
        settled = {self._held[context].board for context in self.whole}
        return settled.union(self._passed.values()) >= self.heard.union(self._expected)

    def passes(self, context: int) -> bool:
        """Whether a node's packet passes as it comes."""
        return context in self._passed

    def hold(self, context: int, board: str, body: bytes, frame: bytes) -> None:
        """Keep a frame; WireError for what does not belong, and then the packet should pass."""
        held = self._held.get(context)
        if held is None:
            held = self._held[context] = _Held(board, Intake(*self._packet))
        if held.intake.add(body):
            held.frames.append(frame)

    def let_pass(self, context: int, board: str) -> list[bytes]:
        """From now on a node's packet passes as it comes; the frames that were held of it."""
        self._passed[context] = board
        held = self._held.pop(context, None)
        return [] if held is None else held.frames

    def end(self, bundled: Iterable[int]) -> list[tuple[str, list[bytes]]]:
        """The round's bundle holds these nodes' packets: what passes of the others, by board."""
        for context in bundled:
            del self._held[context]
        self.is_over = True
        boards = {context: held.board for context, held in self._held.items()}
        return [(board, self.let_pass(context, board)) for context, board in boards.items()]
