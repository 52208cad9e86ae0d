"""The page without a browser: alarms, the feed, and who may read and do what."""

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ternmesh.config import ConfigError
from ternmesh.federated.robust import Influence
from ternmesh_cli import main
from ternmesh_cli.broker.certificates import SERVER_DAYS, make_authority, make_server
from ternmesh_cli.upgrade import ends_of
from ternmesh_service.alarms import BAD, WARN, alarms
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.fair_listener import FairListener
from ternmesh_service.machine import Machine
from ternmesh_service.metrics import MetricsConfig, served_metrics
from ternmesh_service.page import server
from ternmesh_service.page.config import PageConfig, check_page, read_token, served_page
from ternmesh_service.page.parts import parts
from ternmesh_service.page.server import ROUNDS_MAX, PageFeed
from ternmesh_service.servers import TRY_S, Servers
from ternmesh_service.status import MachineStatus, PublishedRelease, to_json
from ternmesh_store.state_file import StateFile
from tests.mosquitto import free_port
from tests.statuses import (
    DOWN,
    MACHINE,
    VOTERS,
    board,
    board_status,
    host_status,
    made_round,
    source_status,
)
from transports.link_config import LinkConfig

NAMES = ["ada", "bob", "eve"]
MUTE = {"boards": "ada", "mute": True}


# Alarms


def told(rounds: list[Any] | None = None, **changes: Any) -> list[Any]:
    found = alarms(host_status(NAMES, **changes), rounds)
    return [(alarm.level, alarm.about, alarm.text) for alarm in found]


@pytest.mark.parametrize(
    ("changes", "alarm"),
    [
        ({"active": False, "heard_s_ago": 1500.0}, (BAD, "bob", "silent for 25 min")),
        ({"active": False, "heard_s_ago": None}, (BAD, "bob", "silent since this host started")),
        (
            {"weight": 0.1, "reason": "raises the error", "since": 4},
            (WARN, "bob", "counts 10% since global update 4: raises the error"),
        ),
        (
            {"managed": {"report": {"disk_free_mb": 80}, "reported_s_ago": 9000.0}},
            (WARN, "bob", "80 MB of its disk were free at its last report"),
        ),
        (
            {"managed": {"report": {"activity": "paused: too hot", "temperature_c": 83.5}}},
            (WARN, "bob", "too hot: 83.5 °C"),
        ),
        ({"influence": Influence(0.5, 0.0, 1.0)}, (WARN, "bob", "sends empty updates")),
    ],
)
def test_a_board_that_needs_its_owner_is_an_alarm(changes: Any, alarm: Any) -> None:
    bob = board("bob", **changes)
    assert told(nodes=(board("ada"), bob, board("eve"))) == [alarm]
    assert told(nodes=(board("ada"), replace(bob, revoked=True), board("eve"))) == []


def test_a_host_that_just_started_waits_with_alarms() -> None:
    assert told() == []
    muted = board("bob", weight=0.0, reason="muted by the owner")
    assert told(nodes=(muted, board("ada"))) == []
    nodes = tuple(board(name, active=False, heard_s_ago=None) for name in NAMES)
    few = (WARN, "", "0 of the 2 boards that a round needs are here")
    assert told(machine=replace(MACHINE, up_s=5.0), nodes=nodes, transport=DOWN) == []
    assert told(machine=replace(MACHINE, up_s=200.0), nodes=nodes) == [few]
    assert len(told(nodes=nodes)) == 4
    assert len(told(nodes=(), phase="finished")) == 1


def test_a_board_has_alarms_of_its_own() -> None:
    joining = board_status(activity="joining")
    assert [alarm.text for alarm in alarms(joining)] == ["this board has not joined a run yet"]
    assert alarms(replace(joining, machine=replace(MACHINE, up_s=5.0))) == []
    hot = board_status(activity="paused: too hot", held_back="84 C, waits for 75 C")
    assert [alarm.text for alarm in alarms(hot)] == ["training is paused: too hot"]
    source = source_status(last_failure="no device")
    revoked = board_status(activity="revoked by the host", diverged=3, source=source)
    assert [alarm.level for alarm in alarms(revoked)] == [BAD, WARN, WARN]
    assert not any("doctor" in alarm.advice for alarm in alarms(revoked))  # which asks alarms


def test_what_is_refused_is_an_alarm_unless_it_is_normal() -> None:
    assert told(refused={"seal": 9}) == []
    bob = board("bob", refused={"old round": 2})
    harmless = {"old round": 160, "duplicate": 12, "replay": 50}
    assert told(refused={"seal": 10, **harmless}, nodes=(board("ada"), bob)) == [
        (WARN, "", "refused seal 10")
    ]
    assert told(
        refused={"digest": 2}, nodes=(board("ada"), board("bob", refused={"digest": 2}))
    ) == [(WARN, "", "refused digest 2 from bob")]


def test_strangers_rejected_releases_and_the_end_of_a_run_are_alarms() -> None:
    knocking = {"eve": "unknown key", "bob": "other host"}
    assert told(refused={"unknown key": 3, "other host": 1}, knocking=knocking) == [
        (WARN, "bob", "asks to take part: other host"),
        (WARN, "eve", "asks to take part: unknown key"),
    ]
    rejected = PublishedRelease(version=3, stage="withdrawn", reason="ada: its loss is 9")
    assert told(release=rejected) == [(WARN, "", "release 3 was rejected: ada: its loss is 9")]
    assert told(release=replace(rejected, reason="withdrawn by the owner")) == []
    assert told(phase="finished") == [(WARN, "", "the run is over: nothing more is learned")]


def test_accuracy_that_falls_is_an_alarm_once_it_is_no_noise() -> None:
    good = [made_round(version, NAMES, 0.9) for version in range(1, 11)]
    bad = [made_round(version, NAMES, 0.8) for version in range(11, 16)]
    assert told(rounds=[*good, *bad[:2]]) == [], "two rounds say nothing"
    fallen = told(rounds=[*good, *bad])
    assert fallen == [(BAD, "", "the accuracy of the fleet fell from 90.0% to 80.0%")]
    more = [replace(row, evaluations=row.evaluations + 1) for row in bad]
    assert told(rounds=[*good, *more]) == [], "one more board has other samples"


def test_a_board_whose_own_accuracy_falls_is_named() -> None:
    rounds = [made_round(version, NAMES, 0.9) for version in range(1, 13)]
    worse = {**rounds[0].reports, "eve": (2.0, 0.5)}
    rounds = [*rounds[:6], *(replace(row, reports=worse) for row in rounds[6:])]
    assert [about for _, about, _ in told(rounds=rounds)] == ["eve"]
    gone = (board("ada"), board("bob"), board("eve", revoked=True))
    assert told(rounds=rounds, nodes=gone) == []
    silent = [replace(row, reports={}) for row in rounds[-5:]]
    assert told(rounds=[*rounds[:-5], *silent]) == [], "it reports no longer"


def test_the_machine_has_alarms_of_its_own() -> None:
    certificates = {"a.pem": 10 * 86_400.0, "b.pem": -5.0, "c.pem": 1e8}
    machine = MachineStatus(up_s=600.0, disk_free_mb=100.0, certificates=certificates)
    assert told(machine=machine, transport=DOWN) == [
        (BAD, "", "the link is down: no route"),
        (BAD, "", "only 100 MB are free here"),
        (BAD, "", "the certificate b.pem has ended"),
        (WARN, "", "the certificate a.pem ends in 10 days"),
    ]


# The feed


def parts_of(answer: Any, now: float = 1000.0) -> Any:
    return parts(answer, answer.history, now)


def test_a_reader_gets_what_is_new_since_it_read() -> None:
    feed, answer = PageFeed(), host_status(NAMES, 3)
    feed.take_rounds(answer)
    assert feed.take(parts_of(answer))
    first = json.loads(feed.since(0))
    assert first["anew"]
    assert {"fleet", "alarms", "board ada", "round 3"} < first["parts"].keys()
    assert not feed.take(parts_of(answer, 1003.0)), "what is measured anew is no news"
    assert feed.since(first["number"]) == ""
    bob = board("bob", delivered="whole")
    answer = replace(answer, nodes=(answer.nodes[0], bob, answer.nodes[2]))
    assert feed.take(parts_of(answer))
    answer = replace(answer, history=(*answer.history, made_round(4, NAMES)))
    assert feed.take(parts_of(answer))
    news = json.loads(feed.since(first["number"]))
    assert not news["anew"]
    assert news["parts"].keys() == {"board bob", "round 4"}, "both changes at once"


def test_readers_begin_anew_where_something_is_gone_or_was_missed() -> None:
    feed, answer = PageFeed(), host_status(NAMES, 3)
    feed.take_rounds(answer)
    feed.take(parts_of(answer))
    number = feed.number
    answer = replace(answer, nodes=answer.nodes[:-1])
    assert feed.take({**parts_of(answer), "fleet": {}})
    assert json.loads(feed.since(number))["anew"]
    assert "board eve" not in feed.since(number)
    number = feed.number
    later = host_status(NAMES, 40)
    later = replace(later, history=later.history[20:])
    feed.take_rounds(later)
    feed.take(parts_of(later))
    news = json.loads(feed.since(number))
    assert news["anew"]
    assert next(name for name in news["parts"] if name.startswith("round")) == "round 21"
    feed.take_rounds(host_status(NAMES, 1, run="other"))
    assert list(feed.rounds) == [1]


def test_rounds_are_bounded_and_sliding_is_no_new_beginning() -> None:
    feed = PageFeed()
    for version in range(1, ROUNDS_MAX + 20):
        answer = host_status(NAMES, version, history=(made_round(version, NAMES),))
        feed.take_rounds(answer)
        feed.take(parts(answer, [feed.rounds[v] for v in sorted(feed.rounds)], 0.0))
    assert len(feed.rounds) == ROUNDS_MAX
    assert not json.loads(feed.since(feed.number - 1))["anew"]


# Settings


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (PageConfig(80, "0.0.0.0"), "without TLS"),
        (PageConfig(80, "192.168.1.2"), "without TLS"),
        (PageConfig(80, "::"), "without TLS"),
        (PageConfig(80, "board.local"), "must be an IP address"),
        (PageConfig(80, certificate_file="a"), "belong together"),
        (PageConfig(80, "0.0.0.0", certificate_file="a", key_file="b"), None),
        (PageConfig(80, "0.0.0.0", behind_proxy=True), None),
        (PageConfig(80, "::1"), None),
        (PageConfig(0, "0.0.0.0"), None),
    ],
)
def test_a_page_is_open_with_tls_or_a_proxy_only(config: PageConfig, sentence: str | None) -> None:
    if sentence is None:
        check_page(config)
    else:
        with pytest.raises(ConfigError, match=sentence):
            check_page(config)


def test_a_port_in_use_is_an_alarm_and_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = MetricsConfig(port)
        makers = {
            "page": partial(served_page, PageConfig(port), tmp_path, tmp_path),
            "metrics": partial(served_metrics, config, tmp_path),
        }
        servers = Servers(makers)
        servers.turn(0.0)
        assert [*servers.failed] == ["page", "metrics"]
        assert re.search(r"metrics\.port .* choose another", servers.failed["metrics"])
        state, link = StateFile(tmp_path), LinkConfig("mqtt://localhost")
        machine = Machine(state, PageConfig(), link, servers).status()
        assert any("cannot be served" in text for _, _, text in told(machine=machine))
    with pytest.raises(ConfigError, match=f"port {port}: certificate_file none.pem and key_file"):
        served_page(
            PageConfig(port, certificate_file="none.pem", key_file="k"), tmp_path, tmp_path
        ).__enter__()
    servers.turn(1.0)
    assert servers.failed, "not yet"
    with servers:
        servers.turn(TRY_S)
        assert [*servers.failed] == ["metrics"], "the page has the port now"


# Requests


class Site:
    """A page with a process behind it that answers what a test says."""

    def __init__(self, folder: Path, config: PageConfig) -> None:
        self.folder, self.config = folder, config
        self.answer: Any = to_json(host_status(NAMES))
        self.asked: list[Any] = []
        self.polls = 0
        self.token = read_token(folder)

    def handle(self, request: Any) -> Any:
        if request.get("command") == "status":
            self.polls += 1
            since = request.get("since", 0)
            rounds = [row for row in self.answer["history"] if row["version"] > since]
            return {**self.answer, "history": rounds}
        self.asked.append(request)
        return {"said": "done"}

    def open(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.config.address, self.config.port, timeout=5)
        own = {"Host": f"127.0.0.1:{self.config.port}"}
        if method == "POST":
            own["Origin"] = f"http://{own['Host']}"
        if token is not None:
            own["Authorization"] = f"Bearer {token}"
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {**own, **names})
        return connection.getresponse()

    def act(self, ask: Any, **options: Any) -> tuple[int, Any]:
        answer = self.open("POST", "/act", json.dumps(ask), **{"token": self.token, **options})
        return answer.status, json.load(answer)

    def news(self, response: http.client.HTTPResponse) -> Any:
        """The next message of a stream."""
        while True:
            line = response.readline()
            if line.startswith(b"data: "):
                return json.loads(line[6:])
            assert line, "the stream has ended"


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Site]:
    site, path = Site(folder, PageConfig(free_port(), **settings)), folder / "control.sock"
    with ControlServer(path, site.handle), served_page(site.config, path, folder):
        yield site


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(tmp_path, **settings))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("page")) as site:
        yield site


@pytest.fixture
def site(shared: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(server, "POLL_S", 0.02)
    shared.answer, shared.polls = to_json(host_status(NAMES)), 0
    shared.asked.clear()
    return shared


def test_all_may_read_on_this_machine_and_only_the_token_acts(site: Site) -> None:
    assert site.open("GET", "/").status == 200
    assert "board ada" in site.news(site.open("GET", "/events"))["parts"]
    for token in (None, "", "wrong", site.token[:-1]):
        assert site.open("POST", "/act", "{}", token=token).status == 401
    assert site.open("GET", "/events", token="wrong").status == 401, "a page with an old token"
    assert site.asked == []


def test_behind_a_proxy_nothing_is_read_without_the_token(start: Any) -> None:
    site = start(behind_proxy=True, names=("fleet.example",))
    assert site.open("GET", "/events").status == 401
    stream = site.open("GET", "/events", token=site.token, Host="fleet.example")
    assert site.news(stream)["parts"]


def test_an_ingress_alone_gets_the_page_and_with_it_the_token(start: Any) -> None:
    site = start(ingress="127.0.0.1", address="0.0.0.0")
    check_page(site.config)
    name = {"Host": "home.example:8123"}
    answer = site.open("GET", "/", **name)
    assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]
    assert f'name="token" content="{site.token}"' in answer.read().decode()
    assert site.open("GET", "/events", **name).status == 401
    assert site.act(MUTE, **name, Origin="http://evil.example")[0] == 403
    origin = {"Origin": "https://home.example:8123"}
    assert site.act(MUTE, **name, **origin)[0] == 200
    other = {"Host": "inner", "X-Forwarded-Host": "home.example:8123"}
    assert site.act(MUTE, **other, **origin)[0] == 200
    assert site.asked == [MUTE, MUTE]


def test_others_than_the_ingress_get_nothing(start: Any) -> None:
    site = start(ingress="172.30.32.2")
    forged = {"X-Forwarded-For": "172.30.32.2"}
    for path in ("/", "/static/page.js", "/events", "/none"):
        answer = site.open("GET", path, token=site.token, **forged)
        assert answer.status == 403, path
        assert site.token not in answer.read().decode()
    assert site.act(MUTE, **forged)[0] == 403
    assert b'name="token" content=""' in (server.STATIC / "index.html").read_bytes()


def test_an_ingress_that_is_none_or_not_alone_is_refused() -> None:
    for wrong in ({"ingress": "ha"}, {"ingress": "172.30.32.2", "behind_proxy": True}):
        with pytest.raises(ConfigError, match=r"page\.ingress"):
            check_page(PageConfig(1, **wrong))


def test_an_action_reaches_the_process(site: Site) -> None:
    ask = {"boards": "ada", "set": {"pause": 1}}
    assert site.act(ask) == (200, {"said": "done"})
    assert site.asked == [ask]


NO_ACTIONS: list[Any] = [
    {"command": "status"},
    {"backup": "/tmp/x"},
    {"return_to": 3},
    {"enrol": "revoke", "name": "ada"},
    {"boards": "ada", "backup": "/tmp/x"},
    {"published": "publish"},
    {"data": "forget", "keys": ["a"]},
    {},
    [],
    None,
    "boards",
]


@pytest.mark.parametrize(
    ("ask", "headers", "code"),
    [
        (MUTE, {"Origin": "http://evil.example"}, 403),
        (MUTE, {"Origin": "null"}, 403),
        (MUTE, {"Host": "evil.example:80"}, 403),
        (MUTE, {"Host": "127.0.0.1.evil.example"}, 403),
        (MUTE, {"Host": ""}, 403),
        *((ask, {}, 400) for ask in NO_ACTIONS),
    ],
)
def test_another_site_or_what_is_no_action_is_refused(site: Site, ask, headers, code) -> None:
    status, answer = site.act(ask, **headers)
    assert status == code
    assert "page" in answer["error"]
    if "Host" in headers:
        assert site.open("GET", "/events", **headers).status == 403, "a name that points here"
    assert site.asked == []


def test_answers_say_what_a_browser_may_do_with_them(site: Site) -> None:
    body = b"[" * (server.REQUEST_MAX + 1)
    assert site.open("POST", "/act", body, token=site.token).status == 413
    for answer in (site.open("GET", "/"), site.open("GET", "/static/page.js")):
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in answer.headers
    assert site.open("GET", "/static/..%2Fserver.py").status == 404
    assert site.open("GET", "/static/none.js").status == 404
    for path in ("/etc/passwd", "/static/" + "a" * 3000, "/act/"):
        answer = site.open("GET", path)
        assert answer.status == 404
        assert "Content-Security-Policy" in answer.headers
        assert json.load(answer) == {"error": "there is no such page"}


def test_a_hostile_name_is_text(site: Site) -> None:
    name = '<img src=x onerror="alert(1)">'
    site.answer = to_json(host_status([name]))
    stream = site.open("GET", "/events")
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    while (part := site.news(stream)["parts"].get(f"board {name}")) is None:
        pass
    assert part["name"] == name
    for path in (Path(server.__file__).parent / "static").glob("*.js"):
        text = path.read_text()
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert risky not in text, path


def test_a_slow_reader_holds_up_nobody_and_gets_the_newest(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "POLL_LONGEST_S", 0.02)
    site = start()
    site.answer = to_json(host_status([f"board-{n:03}" for n in range(300)], 60))
    slow, quick = site.open("GET", "/events"), site.open("GET", "/events")
    site.news(quick)
    for version in range(61, 66):
        site.answer = {**site.answer, "version": version}
        assert site.news(quick)["parts"]["fleet"]["version"] == version
    seen = [site.news(slow)["parts"]["fleet"]["version"]]
    while seen[-1] < 65:
        seen.append(site.news(slow)["parts"]["fleet"]["version"])
    assert seen == sorted(seen)


def test_pages_without_the_token_leave_room_for_the_owner(start: Any, monkeypatch: Any) -> None:
    site = start()
    monkeypatch.setattr(server, "READERS_MAX", 3)
    monkeypatch.setattr(server, "KEPT", 1)
    assert site.polls == 0, "without a page nobody asks"
    guests = [site.open("GET", "/events") for _ in range(2)]
    assert all(site.news(guest) for guest in guests)
    assert site.polls >= 1
    assert site.open("GET", "/events").status == 503
    owner = site.open("GET", "/events", token=site.token)
    assert site.news(owner)["parts"]
    assert site.open("GET", "/events", token=site.token).status == 503


def test_a_status_of_another_kind_is_trouble_that_ends(site: Site) -> None:
    stream = site.open("GET", "/events")
    site.answer = {"role": "host", "history": []}
    while "trouble" not in (news := site.news(stream))["parts"]:
        pass
    assert news["parts"]["trouble"].startswith("no news")
    site.answer = to_json(host_status(NAMES))
    while not site.news(stream)["anew"]:
        pass


HEAD = b"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        HEAD + b"X-Slow: ",
        HEAD + b"Content-Length: 9\r\n\r\nx",
        HEAD + b"Authorization: Bearer TOKEN\r\nContent-Length: 9\r\n\r\nx",
        HEAD + b"Authorization: Bearer TOKEN\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        b"GET /static/page.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /",
    ],
)
def test_a_connection_ends_where_a_request_does_not(start: Any, monkeypatch, sent: bytes) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    site = start()
    with socket.create_connection((site.config.address, site.config.port), 10) as slow:
        slow.sendall(sent.replace(b"TOKEN", site.token.encode()))
        with suppress(ConnectionResetError):
            while slow.recv(65_536):
                pass


def test_the_newest_connection_is_served_however_many_wait(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    site = start()
    address = site.config.address, site.config.port
    owner = site.open("GET", "/events", token=site.token)
    idle = [socket.create_connection(address, 10) for _ in range(6)]
    for one in idle:
        with suppress(OSError):
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127")
    assert site.open("GET", "/").status == 200
    assert site.act(MUTE)[0] == 200
    assert [one.recv(1) for one in idle[:4]] == [b""] * 4
    assert site.news(owner), "what the owner has open stays"


def test_a_reader_that_takes_nothing_is_left(start: Any, monkeypatch: Any, eventually: Any) -> None:
    monkeypatch.setattr(server, "STALL_S", 0.3)
    monkeypatch.setattr(server, "READERS_MAX", 1)
    monkeypatch.setattr(server, "KEPT", 0)
    site = start()
    site.answer = to_json(host_status([f"board-{n:03}" for n in range(300)]))
    accept = FairListener.accept

    def tight(self: FairListener) -> Any:
        client, address = accept(self)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return client, address

    monkeypatch.setattr(FairListener, "accept", tight)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((site.config.address, site.config.port))
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        eventually(lambda: site.polls > 0)
        eventually(lambda: site.open("GET", "/events").status == 200)


@pytest.mark.parametrize(
    "text",
    [
        r'{"boards": "\ud800", "mute": true}',
        r'{"boards": "ada", "mute": "\udfff"}',
        r'{"data": "label", "keys": ["\ud800"], "label": "\udcff"}',
        '{"boards": NaN, "mute": 1e999}',
        '{"boards": ' + "[" * 900 + "]" * 900 + "}",
        '[["boards", "ada"]]',
    ],
)
def test_any_text_of_an_action_gets_an_answer(site: Site, monkeypatch: Any, text: str) -> None:
    monkeypatch.setattr(site, "handle", lambda request: {"said": request.get("boards")})
    answer = site.open("POST", "/act", text, token=site.token)
    assert answer.status in (200, 400, 502)
    assert answer.read().isascii()


def test_its_end_does_not_wait_for_readers_nor_for_the_process(tmp_path: Path) -> None:
    site = Site(tmp_path, PageConfig(free_port()))
    path = tmp_path / "other.sock"
    with served_page(site.config, path, tmp_path):
        with ControlServer(path, site.handle):
            stream = site.open("GET", "/events")
            site.news(stream)
        status, answer = site.act(MUTE)
        assert (status, "is it running" in answer["error"]) == (502, True)
    stream.read()  # the end of the stream


# TLS and the command


def certificate(folder: Path) -> tuple[str, ...]:
    """A certificate for localhost that ends in 5 days, its key, and its authority."""
    then = datetime.now(UTC) - timedelta(days=SERVER_DAYS - 5)
    authority = make_authority("page", then)
    made = make_server(["localhost"], authority, then)
    files = {"page.pem": made.public, "page.key": made.key, "authority.pem": authority.public}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return tuple(str(folder / name) for name in files)


def test_over_tls_the_token_is_needed(start: Any, tmp_path: Path) -> None:
    chain, key, authority = certificate(tmp_path)
    site = start(certificate_file=chain, key_file=key, address="0.0.0.0")
    check_page(site.config)
    trust = ssl.create_default_context(cafile=authority)
    connection = http.client.HTTPSConnection("localhost", site.config.port, context=trust)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.status == 401, "others reach this address"
    answer.read()
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {site.token}"})
    assert "board ada" in site.news(connection.getresponse())["parts"]


def test_a_machine_tells_when_its_certificates_end(tmp_path: Path) -> None:
    chain, *_ = certificate(tmp_path)
    machine = Machine(
        StateFile(tmp_path),
        PageConfig(certificate_file=chain),
        LinkConfig("mqtt://localhost", ca_file=str(tmp_path / "none.pem")),
        Servers({}),
    ).status()
    assert told(machine=machine) == [(WARN, "", "the certificate page.pem ends in 5 days")]


def test_the_command_prints_the_address_with_the_token(tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "host.toml"
    head = f'state_dir = "{tmp_path}"\nmodel = "keyword"\n[link]\nurl = "mqtt://127.0.0.1"\n'
    config.write_text(head)
    assert main.main(["page", "--config", str(config)]) == 2
    assert "set port in [page]" in capsys.readouterr().err
    above = 'aggregator = "attic"\n[upstream]\nurl = "mqtt://127.0.0.1"\n'  # an aggregator
    config.write_text(f"{head}{above}[page]\nport = 8080\n")
    assert [*ends_of([config])] == ["ternmesh-host.service"]
    assert main.main(["page", "--config", str(config)]) == 0
    printed = capsys.readouterr().out.strip()
    token = read_token(tmp_path)
    assert printed == f"http://127.0.0.1:8080/#token={token}"
    assert (tmp_path / "page.token").stat().st_mode & 0o777 == 0o600
    assert main.main(["page", "--config", str(config), "--new-token"]) == 0
    assert token not in capsys.readouterr().out
    behind = replace(PageConfig(1), names=("a.example",), behind_proxy=True)
    assert behind.url == "https://a.example/"


def test_the_page_shows_who_leads() -> None:
    found = parts(host_status(NAMES, agreement=VOTERS), [], 0.0)
    seats = {"leader": "attic", "follows": True, "all": 3, "missing": ["loft"]}
    assert found["fleet"]["voters"] == seats
    assert "voters" not in parts(host_status(NAMES), [], 0.0)["fleet"]
