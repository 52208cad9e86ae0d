"""A host with boards and its page: `python -m bench.page_worker FOLDER BOARDS`.

Host, store and page are the product's, the boards are in memory. Two rounds are real. Then the
boards rest, so that what the process does is what a page costs: a tenth of the boards is heard each
second, and each ten seconds a round is added to the history. It prints the port, and runs until its
standard input ends.
"""

import select
import sys
from dataclasses import replace
from pathlib import Path

from host.report import HISTORY_CELLS_MAX, HISTORY_MAX
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import WorkReady
from ternmesh_service.control_socket import ControlServer, Relay
from ternmesh_service.page.config import PageConfig, served_page
from ternmesh_store.state_file import StateFile
from tests.host.test_service import Bench
from tests.mosquitto import free_port

ROUND_S, POLL_S = 10.0, 0.1


class Fleet(Bench):
    """Boards that report loss and accuracy with each update."""

    def work(self, driver, event) -> None:  # type: ignore[no-untyped-def]
        if isinstance(event, WorkReady):
            driver.endpoint.evaluation = write_values(Evaluation(0.5, 0.8))
            super().work(driver, event)


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    fleet = Fleet(StateFile(folder))
    service = fleet.service
    service.protocol.settings = replace(service.protocol.settings, min_peers=count)
    for number in range(count):
        fleet.join(f"b-{number:04}")
    fleet.settle()
    rounds = min(HISTORY_MAX, HISTORY_CELLS_MAX // count)
    for _ in range(rounds):
        add_round(fleet)
    config, relay = PageConfig(free_port()), Relay()

    def answer(request: dict[str, int]) -> dict[str, object]:
        about = {"fleet": "bench", "model": "keyword", "security": {"mode": "keys", "clones": {}}}
        transport = {"connected": True, "broker": "mqtt://127.0.0.1:1883"}
        return {**service.status(request.get("since", 0)), **about, "transport": transport}

    with (
        ControlServer(folder / "control.sock", relay.ask),
        served_page(config, folder / "control.sock", folder),
    ):
        print(config.port, flush=True)
        began, step = fleet.now, 0
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            relay.serve(answer)
            step += 1
            fleet.now = began + POLL_S * step
            if step % round(1 / POLL_S) == 0:
                for node in list(service.protocol.nodes.values())[step // 10 % 10 :: 10]:
                    node.heard_at = fleet.now
            if step % round(ROUND_S / POLL_S) == 0:
                add_round(fleet)


def add_round(fleet: Fleet) -> None:
    """A round like the last one, a little better."""
    history, host = fleet.service._history, fleet.service.protocol
    last = history[-1]
    better = {
        name: (round(loss * 0.98, 3), round(min(1.0, accuracy + 0.003), 4))
        for name, (loss, accuracy) in last.reports.items()
    }
    host.version = last.version + 1
    history.append(replace(last, version=last.version + 1, reports=better))


if __name__ == "__main__":
    main()
