"""What has arrived on the host for the open round, of all nodes."""

from ternmesh.plan import Plan
from ternmesh.swarm.intake import Intake
from ternmesh.wire import control
from ternmesh.wire.control import Receipt, Silent


class OpenRound:
    """Packets on their way in, and who has said that none is coming; nodes by their context."""

    def __init__(self, plan: Plan, model: bytes, number: int) -> None:
        self.number = number
        self.intakes: dict[int, Intake] = {}
        self.silent: set[int] = set()
        self._plan, self._model = plan, model

    def add(self, context: int, body: bytes) -> bool:
        """Take a share, a manifest or a `Silent`; False if it is here already. WireError."""
        if body[0] == control.KIND:
            is_new = context not in self.silent
            self.silent.add(context)
            return is_new
        intake = self.intakes.get(context)
        if intake is None:
            intake = self.intakes[context] = Intake(self._plan, self._model, self.number)
        return intake.add(body)

    def forget(self, context: int) -> None:
        """What is here of a node does not add up: it is as if it had said nothing."""
        self.intakes.pop(context, None)
        self.silent.discard(context)

    def delivered(self, context: int) -> str:
        """How much of a node's packet is here: none, part or whole; or silent.

        Of a node that has said both, the packet is believed: it has lost its disk in between.
        """
        intake = self.intakes.get(context)
        if intake is None or not intake.bodies:
            return "silent" if context in self.silent else "none"
        return "whole" if intake.complete else "part"

    def present(self) -> set[int]:
        """The nodes of which nothing more is to come."""
        whole = {context for context, intake in self.intakes.items() if intake.complete}
        return whole | {c for c in self.silent if self.delivered(c) == "silent"}

    def usable(self) -> dict[int, Intake]:
        """The packets that a reference can count, in the order of their contexts."""
        return {c: intake for c, intake in sorted(self.intakes.items()) if intake.usable}

    def answers(self, context: int) -> list[control.Control]:
        """What tells a node that it need not repeat what is on disk here."""
        answers: list[control.Control] = [Silent(self.number)] if context in self.silent else []
        intake = self.intakes.get(context)
        if intake is not None and intake.manifest is not None:
            answers.append(Receipt(self.number, intake.manifest.digest, intake.have))
        return answers
