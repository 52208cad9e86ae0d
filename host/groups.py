"""Groups of boards with models of other architectures, hosted by one process.

Each group is a fleet of its own: settings file, folder, keys, run and protocol. So every command
for a fleet works for it. Groups run in threads that share nothing but what they teach each other.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from host.config import HostConfig, HostKnowledgeConfig, read_host_config
from host.knowledge import KnowledgeExchange, Predictions, Teaching
from host.service import run_host
from ternmesh.config import ConfigError
from ternmesh_service.config_file import load_model_package, package_folder
from ternmesh_service.notify import PartManager, PartsState

# Opens a probe set for the model package in a folder; ConfigError.
OpenPredictions = Callable[[Path, HostKnowledgeConfig], Predictions]

_log = logging.getLogger(__name__)


def read_groups(config: HostConfig) -> dict[str, HostConfig]:
    """The group of the settings themselves, and those that `run.groups` names; ConfigError.

    They go by the names of their models.
    """
    configs = [config, *(read_host_config(Path(path)) for path in config.run.groups)]
    for one in configs[1:]:
        if one.run.groups:
            raise ConfigError("a file that run.groups names must not name groups itself")
        if one.knowledge.path is None:
            raise ConfigError("each file of run.groups needs [knowledge] with the path of a file")
    names = [load_model_package(one.model).name for one in configs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"two groups have the model {min(twice)}: put their boards in one group")
    keys = [one.security.path(Path(one.state_dir)).resolve() for one in configs]
    for what, values in (
        ("state_dir", [Path(one.state_dir).resolve() for one in configs]),
        ("link", [(one.link.url, one.link.fleet, str(one.link.serial)) for one in configs]),
        ("security.identity_file", keys),
    ):
        if len(set(values)) < len(values):
            raise ConfigError(f"two groups have the same {what}: give each its own")
    return dict(zip(names, configs, strict=True))


def run_groups(
    config: HostConfig, stop: threading.Event, open_predictions: OpenPredictions, **options: Any
) -> None:
    """Host all groups until `stop` is set, or until all runs are over; `options` as `run_host`.

    Where one group cannot go on, all end, and its error is raised.
    """
    groups, exchange = read_groups(config), KnowledgeExchange()
    _check_probe_sets(groups, open_predictions)
    parts = PartsState([*groups])
    errors: list[Exception] = []

    def host(name: str, config: HostConfig) -> None:
        settings, manager = config.knowledge, PartManager(name, parts)

        def make_teaching(model: Path) -> Teaching | None:
            try:
                predictions = open_predictions(model, settings)
            except ConfigError as error:
                # A released model, as the others were checked. It must not end the other groups.
                _log.error("this group is not taught and does not teach from now on: %s", error)
                exchange.forget(name)
                return None
            return Teaching(name, exchange, predictions, settings.every_rounds, manager.beat)

        try:
            run_host(config, stop, make_teaching=make_teaching, manager=manager, **options)
        except Exception as error:  # noqa: BLE001  (raised again in the main thread)
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=host, args=row, name=row[0]) for row in groups.items()]
    with _names_in_log(groups):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


@contextmanager
def _names_in_log(names: Collection[str]) -> Iterator[None]:
    """Begin each line of the log with the name of the group in whose thread it was written."""

    def add_name(record: logging.LogRecord) -> bool:
        if record.threadName in names:
            record.msg, record.args = f"{record.threadName}: {record.getMessage()}", None
        return True

    handlers = logging.getLogger().handlers[:1]
    for handler in handlers:
        handler.addFilter(add_name)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(add_name)


def _check_probe_sets(groups: Mapping[str, HostConfig], open_predictions: OpenPredictions) -> None:
    """ConfigError unless all groups have the same probe set and classes."""
    topics = {}
    for name, config in groups.items():
        try:
            topics[name] = open_predictions(package_folder(config.model), config.knowledge).topic
        except ConfigError as error:
            raise ConfigError(f"group {name}: {error}") from error
    first = next(iter(topics))
    for name, topic in topics.items():
        if topic != topics[first]:
            is_probe = topic.probe != topics[first].probe
            what = "probe set in [knowledge]" if is_probe else "classes"
            raise ConfigError(f"group {name} has other {what} than group {first}")
