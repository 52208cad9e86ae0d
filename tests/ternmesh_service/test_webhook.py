"""Alarms that are posted: to a real HTTP server, once when they begin and once when they end."""

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from ternmesh.config import ConfigError
from ternmesh_service import webhook
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.metrics import MetricsConfig
from ternmesh_service.page.config import PageConfig
from ternmesh_service.servers import servers_of
from ternmesh_service.status import to_json
from ternmesh_service.webhook import AlarmsConfig, check_alarms
from tests.statuses import board_status


class Hook:
    """A web server that answers `code` and keeps what it takes, and a process with an alarm."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Any]] = []
        self.code, self.tries, self.asked, self.loss = 204, 0, 0, ""
        self.failed: dict[str, str] = {}  # what the machine's status shows
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.tries += 1
                if hook.code == 204:
                    hook.posted.append((self.path, json.loads(body)))
                self.send_response(hook.code)
                self.end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_port}/hook?token=secret"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, _request: object) -> dict[str, Any]:
        self.asked += 1
        status = board_status()
        return to_json(replace(status, machine=replace(status.machine, loss=self.loss)))


@pytest.fixture
def hook(tmp_path, monkeypatch) -> Iterator[Hook]:
    for name, seconds in (("LOOK_S", 0.02), ("FIRST_S", 0.02), ("LONGEST_S", 0.05)):
        monkeypatch.setattr(webhook, name, seconds)
    made, socket = Hook(), tmp_path / "c.sock"
    posts = AlarmsConfig(made.url)
    servers = servers_of(PageConfig(), MetricsConfig(), posts, socket, tmp_path)
    with ControlServer(socket, made.answer), servers:
        servers.turn(0.0)
        made.failed = servers.failed
        yield made
    made.server.shutdown()
    made.server.server_close()


def test_an_alarm_is_posted_once_when_it_begins_and_once_when_it_ends(hook, eventually) -> None:
    eventually(lambda: hook.asked > 3)
    before = len(hook.posted)
    hook.loss = "the disk is gone, 3 times"
    eventually(lambda: len(hook.posted) == before + 1)
    hook.loss = "the disk is gone, 4 times"
    asked = hook.asked
    eventually(lambda: hook.asked > asked + 5)
    hook.loss = ""
    eventually(lambda: len(hook.posted) >= before + 2)
    (path, first), (_, second) = hook.posted[before:]
    assert [one["text"] for one in first["began"]] == ["the disk is gone, 3 times"]
    assert [one["text"] for one in second["ended"]] == ["the disk is gone, 4 times"]
    assert first["ended"] == second["began"] == []
    assert (path, first["name"]) == ("/hook?token=secret", "ada")
    assert first["began"][0] in first["alarms"]
    assert set(first["began"][0]) == {"level", "about", "text", "advice"}


def test_a_failing_webhook_is_tried_again_said_once_and_shown(hook, eventually, caplog) -> None:
    hook.code = 500
    with caplog.at_level(logging.WARNING):
        hook.loss = "the disk is gone"
        eventually(lambda: hook.tries > 4)
        [shown] = hook.failed.values()
        assert "localhost fails: it answers 500" in shown
        assert "secret" not in shown + caplog.text
        assert caplog.text.count("it is tried again") == 1
        hook.code = 204
        eventually(lambda: hook.posted)
        eventually(lambda: not hook.failed)
    assert hook.posted[-1][1]["began"][-1]["text"] == "the disk is gone"


def test_an_address_of_ipv6_needs_no_port(monkeypatch) -> None:
    connect = Mock(side_effect=OSError("no route"))
    monkeypatch.setattr("socket.create_connection", connect)
    assert webhook._post(urlsplit("http://[fd00::abcd]/hook"), b"") == "no route"
    assert connect.call_args[0][0] == ("fd00::abcd", 80)


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "https://?key=1", "http://user:word@host", "http://ho st/", "http://h:99999/"],
)
def test_a_url_that_cannot_work_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"alarms\.url must be like https") as caught:
        check_alarms(AlarmsConfig(url))
    assert url not in str(caught.value)
