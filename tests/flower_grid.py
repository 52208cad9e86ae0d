"""A Flower fleet in one process: its apps, strategies and messages, without its network.

`python -m tests.flower_grid FOLDER SETTINGS` runs the app in a folder with three nodes; SETTINGS
are JSON in place of those in its pyproject.toml.
"""

import importlib
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):  # type: ignore[misc]
    """Nodes whose ClientApp answers at once; an error of it is an error reply, as in Flower."""

    run = None

    def __init__(self, app: ClientApp, nodes: int, config: Mapping[str, Any]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # the server
        self._app = app
        self._contexts = {
            number + 2: Context(1, number + 2, {"partition-id": number}, RecordDict(), dict(config))
            for number in range(nodes)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001  (what Flower does with any error of an app)
            return Message(Error(code=0, reason=str(error)), reply_to=message)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    def create_message(self, *parts: Any, **named: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def run_app(app: Any, settings: Mapping[str, Any], nodes: int = 3) -> None:
    """A whole run of a module with `client` and `server`."""
    grid = LocalGrid(app.client, nodes, settings)
    app.server(grid, Context(1, 0, {}, RecordDict(), dict(settings)))


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    project = tomllib.loads(Path(sys.argv[1], "pyproject.toml").read_text())
    usual = project["tool"]["flwr"]["app"]["config"]
    run_app(importlib.import_module("keyword_fleet"), usual | json.loads(sys.argv[2]))
