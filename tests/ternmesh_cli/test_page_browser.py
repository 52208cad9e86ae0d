"""The page of a live fleet, in a real browser: three boards of the demo learn meanwhile."""

import base64
import http.client
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ternmesh_cli.demo import fleet as demo
from ternmesh_service.control_socket import BOARDS, ControlServer, ask
from ternmesh_service.page.config import PageConfig, read_token, served_page
from ternmesh_service.status import LiveStatus, RecordingStatus, WordsStatus, to_json
from tests.mosquitto import free_port, listens
from tests.statuses import board, board_status, host_status, source_status

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
axe = pytest.importorskip("axe_core_python.selenium", reason="axe-core-python is not installed")
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium is not installed")

WIDE, NARROW = 1400, 390
SOURCE = '''
import numpy as np
from edge.data.sources import Label, Sample
from models.zoo import rooms_path


class Clips:
    """Clips of another voice: 40 wait for a label, 20 have one."""

    def __init__(self, **options):
        self.clips = []

    def poll(self, now):
        if self.clips:
            return []
        with np.load(rooms_path()) as data:
            x, y = data["x"][5:365:6] / np.float32(32), data["y"][5:365:6]
        self.clips = [Sample(f"<b>{i}</b>", {"features": clip}) for i, clip in enumerate(x)]
        named = range(40, 60)
        return self.clips + [Label(f"<b>{i}</b>", {"target": np.array(int(y[i]))}) for i in named]
'''


class Fleet:
    """The processes of a fleet, and the addresses of its pages."""

    def __init__(self, folder: Path, processes: demo.Fleet, ports: dict[str, int]) -> None:
        self.folder, self.processes, self.ports = folder, processes, ports

    def url(self, name: str, token: bool = True) -> str:
        fragment = f"#token={read_token(self.folder / name)}" if token else ""
        return f"http://127.0.0.1:{self.ports[name]}/{fragment}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "clips.py").write_text(SOURCE)
    ports = {"host": free_port(), "theo": free_port()}
    node_config = demo._node_config

    def with_page(settings: Any, link: Any, name: str) -> Any:
        tables = node_config(settings, link, name)
        if name != "theo":
            return tables
        source = {"source": "clips:Clips", "source_path": str(folder), "poll_s": 1}
        return {**tables, "data": {**source, **tables["data"]}, "page": {"port": ports[name]}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_node_config", with_page)
        patch.setattr("ternmesh_cli.demo.fleet.BOARDS", ("theo", "nicolas"))
        settings = demo.DemoSettings(folder, rounds=100_000, page=ports["host"])
        with demo.fleet(settings) as processes:
            for port in ports.values():
                wait_for(port)
            paced = {BOARDS: "all", "set": {"pace_s": 1}}  # or they take all of the machine
            assert ask(folder / "host" / "control.sock", paced)["boards"] is not None
            yield Fleet(folder, processes, ports)


def wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while not listens(port):
        assert time.monotonic() < end
        time.sleep(0.1)


class Browser:
    """A browser with one page at a time."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        flags = "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"
        for flag in (*flags, f"window-size={WIDE},1000"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))

    def open(self, url: str, width: int = WIDE, *, dark: bool = False) -> "Browser":
        """Open a page in a tab of its own, which remembers nothing."""
        old = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        new = self.driver.current_window_handle
        self.driver.switch_to.window(old)
        self.driver.close()
        self.driver.switch_to.window(new)
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width == NARROW}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.troubles()  # what the page before has logged
        self.driver.get(url)
        return self

    def until(self, found: Callable[[], Any], why: str = "") -> Any:
        return WebDriverWait(self.driver, 60, 0.1).until(lambda _: found(), why)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> Any:
        return self.until(lambda: next(iter(self.all(selector)), None), selector)

    def text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return self.driver.execute_script(script, selector)

    def curve(self) -> str:
        """The path of the fleet's accuracy; the chart may be drawn anew at any moment."""
        script = "return document.querySelector('#accuracy .fleet-line')?.getAttribute('d') ?? ''"
        return self.driver.execute_script(script)

    def button(self, text: str, within: str = "body") -> Any:
        rows = [row for row in self.all(f"{within} button") if text in row.text]
        assert rows, text
        return rows[0]

    def click(self, text: str, within: str = "body") -> None:
        """Press a button, which may be drawn anew meanwhile."""

        def pressed() -> bool:
            self.button(text, within).click()
            return True

        again = (StaleElementReferenceException,)
        WebDriverWait(self.driver, 60, 0.1, again).until(lambda _: pressed())

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, selector: str) -> None:
        """Move the focus with the keyboard alone."""
        target = self.one(selector)
        for _ in range(80):
            if self.driver.switch_to.active_element == target:
                return
            self.press(Keys.TAB)
        raise AssertionError(f"the keyboard does not reach {selector}")

    def troubles(self) -> list[Any]:
        return [row for row in self.driver.get_log("browser") if row["level"] == "SEVERE"]

    def serious(self) -> list[tuple[str, str]]:
        """What axe-core finds that is serious or worse."""
        found = axe.Axe().run(self.driver)["violations"]
        return [
            (row["id"], node["html"])
            for row in found
            if row["impact"] in ("serious", "critical")
            for node in row["nodes"]
        ]


@pytest.fixture(scope="module")
def browse() -> Iterator[Callable[..., Browser]]:
    browser = Browser()
    yield browser.open
    browser.driver.quit()


@pytest.mark.parametrize(
    ("width", "dark"), [(WIDE, False), pytest.param(NARROW, True, marks=pytest.mark.nightly)]
)
def test_the_page_of_a_fleet_shows_it_live_and_all_can_read_it(
    fleet: Fleet, browse: Any, width: int, dark: bool
) -> None:
    page = browse(fleet.url("host"), width, dark=dark)
    page.until(lambda: len(page.all("#rows tr")) == 2)
    page.until(lambda: "L" in page.curve())
    before, version = page.curve(), page.text("#phase")
    page.until(lambda: page.text("#phase").split(":")[0] != version.split(":")[0])
    page.until(lambda: page.curve() != before, "the curve moves")
    assert "good" in page.one("[data-board=theo] .state").get_attribute("class")
    assert page.text("#alarms") == "None: all is well."
    assert len(page.all("#map circle.spot")) == 3
    wide = page.driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width, "nothing is cut off"
    assert page.serious() == []
    assert page.troubles() == []


def test_an_action_needs_the_token(fleet: Fleet, browse: Any) -> None:
    page = browse(fleet.url("host", token=False))
    page.until(lambda: page.all("#rows tr"))
    assert not page.button("Pause all").is_enabled()
    assert "Read only" in page.text("#foot")
    refused = page.driver.execute_async_script(
        """
        const done = arguments[arguments.length - 1];
        fetch("/act", {method: "POST", body: JSON.stringify({nonce: "", ask: {boards: "all"}})})
          .then((answer) => done(answer.status));
        """
    )
    assert refused == 401
    assert page.driver.execute_script("return document.cookie + localStorage.length") == "0"
    page.driver.get(fleet.url("host"))  # only the fragment differs
    page.until(lambda: page.all("#rows tr") and page.button("Pause all").is_enabled())


def test_the_keyboard_alone_pauses_a_board_and_starts_it_again(fleet: Fleet, browse: Any) -> None:
    page = browse(fleet.url("host"))
    assert "token" not in page.driver.current_url, "it stays in no history"
    page.until(lambda: page.all("[data-board=nicolas] .state.good"))
    page.tab_to("[data-board=nicolas] button.name")
    page.press(Keys.ENTER)
    page.until(lambda: page.one("#detail").is_displayed())
    page.until(lambda: page.all("#detail-acts button"))
    assert page.serious() == []
    page.tab_to("#detail-acts button")
    page.press(Keys.ENTER)
    page.until(lambda: "Pause it: done" in page.text("#toast"))
    page.press(Keys.ESCAPE)
    page.until(lambda: page.text("[data-board=nicolas] .state") == "paused")
    last = "#all-acts button:last-child"
    for selector in ("#find", "#over", "#one", last):
        page.tab_to(selector)
    page.tab_to("#all-acts button:nth-child(2)")
    page.press(Keys.ENTER)
    page.until(lambda: "good" in page.one("[data-board=nicolas] .state").get_attribute("class"))


def test_samples_are_labelled_with_one_key_and_undone(fleet: Fleet, browse: Any) -> None:
    page = browse(fleet.url("theo"))
    page.until(lambda: "40 wait, 20 labelled" in page.text("#label-figures"))
    key = page.text(".sample b")
    assert key.startswith("<b>"), "a hostile key is text"
    page.press("2")
    page.until(lambda: f"{key}: two" in page.text("#toast"))
    page.until(lambda: "39 wait, 21 labelled" in page.text("#label-figures"))
    page.press("u")
    page.until(lambda: "40 wait, 20 labelled" in page.text("#label-figures"))
    page.until(lambda: page.text(".sample b") == key)
    for box in page.all(".thumb input")[:3]:
        box.click()
    page.all(".labels")[1].find_element(By.CSS_SELECTOR, "[data-label=six]").click()
    page.until(lambda: "37 wait, 23 labelled" in page.text("#label-figures"))
    page.click("Which samples hurt?")
    page.until(lambda: "loss" in page.text(".thumb small"))
    assert page.serious() == []
    assert page.troubles() == []


def test_words_are_recorded_and_what_was_heard_is_seen_and_answered(browse: Any, tmp_path) -> None:
    recording = RecordingStatus(label="hello", left=7, said="too quiet: come nearer", level=0.3)
    live = LiveStatus(open=True, left_out={}, first={}, recording=recording)
    words = WordsStatus(hours=20.0, heard=9, right=3, false=1, missed=1)
    status = board_status(source=source_status(live=live, words=words))
    wave = base64.b64encode(bytes(100 + 70 * (at % 3) for at in range(800))).decode()
    sound = {"key": "heard:hello:1-0", "age_s": 3.0, "guesses": [["hello", 0.9]], "certainty": 0.9}
    queue = {
        "rows": [{**sound, "shape": [800], "image": wave}],
        "labels": ["other", "hello"], "waiting": 1, "labelled": 0, "score": None, "held_out": 0,
        "clip_s": 0.1,
    }  # fmt: skip
    asked: list[Any] = []

    def answer(request: Any) -> Any:
        if request.get("command") == "status":
            return to_json(status)
        asked.append(request)
        return {"data": queue if request["data"] == "queue" else {"before": {}}}

    config, path = PageConfig(free_port()), tmp_path / "control.sock"
    with ControlServer(path, answer), served_page(config, path, tmp_path):
        page = browse(f"{config.url}#token={read_token(tmp_path)}")
        page.until(lambda: "hello: 7 to go. too quiet" in page.text("#recorded"))
        assert "recall 75%" in page.text("#words")
        page.click("hello", "#record-labels")
        record = {"data": "record", "label": "hello", "count": 10}
        page.until(lambda: record in asked)
        page.click("Play", ".sample")
        width = page.driver.execute_script("return document.querySelector('.sample canvas').width")
        assert width == 200, "a wave, no stripe"
        page.click("other", ".sample")
        page.until(lambda: {"data": "label", "keys": [sound["key"]], "label": "other"} in asked)
        assert page.serious() == []
        assert page.troubles() == []


def test_a_board_that_is_silent_is_an_alarm_with_what_to_do(browse: Any, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    silent = board(name, active=False, heard_s_ago=4000.0)
    answer = to_json(host_status(["ada"], nodes=(board("ada"), silent)))
    config, path = PageConfig(free_port()), tmp_path / "control.sock"
    with ControlServer(path, lambda _: answer), served_page(config, path, tmp_path):
        page = browse(config.url, NARROW)
        page.until(lambda: page.all("#alarms .bad"))
        assert page.text("#alarms .bad").startswith(f"{name}: silent for 67 min")
        assert "check its power" in page.text("#alarms .advice")
        assert page.text("#rows tr:first-child .state") in ("silent", "at work")
        assert page.all("img") == []
        assert page.troubles() == []


def test_a_page_begins_with_starting_and_ends_with_what_is_next(browse: Any, tmp_path) -> None:
    boards = ["theo", "nicolas", "yweweler"]
    waiting = host_status(boards[:1], 0, phase="gathering", min_peers=3)
    answers = [waiting, host_status(boards, 20, phase="finished")]
    config, path = PageConfig(free_port()), tmp_path / "control.sock"
    with ExitStack() as stack:
        stack.enter_context(served_page(config, path, tmp_path))
        page = browse(config.url, NARROW)
        assert page.text("#phase") == "Starting …"
        assert not page.one("#alarm-section").is_displayed(), "an empty box says nothing"
        stack.enter_context(ControlServer(path, lambda _: to_json(answers[0])))
        page.until(lambda: page.text("#phase").startswith("Starting: 1 of the 3 boards"))
        page.until(lambda: page.all("#rows tr"))
        del answers[0]
        page.until(lambda: page.text("#phase").startswith("Finished after 20 rounds. Next:"))
        page.until(lambda: len(page.all("#round-rows tr")) == 8)
        assert page.driver.execute_script("return document.documentElement.scrollHeight") < 2000
        assert page.serious() == []
    page.until(lambda: page.text("#connection").startswith("ended"))
    assert page.all("#rows tr"), "what was there stays"


class Ingress(BaseHTTPRequestHandler):
    """What Home Assistant does: it shows the page in a frame, below a path of its own."""

    PATH, port = "/api/hassio_ingress/x", 0

    def do_GET(self) -> None:
        if not self.path.startswith(self.PATH):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<iframe src="{self.PATH}/" width=900 height=900>'.encode())
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        inner = http.client.HTTPConnection("127.0.0.1", self.port)
        inner.request(self.command, self.path[len(self.PATH) :], body, dict(self.headers))
        answer = inner.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() != "transfer-encoding":
                self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            while data := answer.read1(65_536):
                self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


def test_in_the_frame_of_home_assistant_the_owner_may_act(browse: Any, tmp_path: Path) -> None:
    asked: list[Any] = []

    def answer(request: Any) -> Any:
        if request.get("command") == "status":
            return to_json(host_status(["ada", "bob"]))
        asked.append(request)
        return {"boards": {"ada": {}}}

    config, path = PageConfig(free_port(), ingress="127.0.0.1"), tmp_path / "control.sock"
    handler = type("Handler", (Ingress,), {"port": config.port})
    with (
        ControlServer(path, answer),
        served_page(config, path, tmp_path),
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy,
    ):
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        page = browse(f"http://127.0.0.1:{proxy.server_port}/")
        page.driver.switch_to.frame(page.one("iframe"))
        page.until(lambda: len(page.all("#rows tr")) == 2)
        page.click("Pause all")
        page.until(lambda: asked)
        assert page.driver.execute_script("return sessionStorage.length") == 0
        assert page.troubles() == []
        browse("about:blank")
        proxy.shutdown()
