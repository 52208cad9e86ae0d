"""Commands in sentences, help and logs as the user types them; the TOML of the demo."""

import io
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ternmesh.config import ConfigError
from ternmesh.timers import RateLimiter
from ternmesh_cli import main
from ternmesh_cli.process import JournalText, LogText, is_due, is_journal, write_toml
from ternmesh_service import commands
from ternmesh_service.commands import CONFIG, PROGRAM, as_run


def test_commands_in_sentences(monkeypatch) -> None:
    text = "use the ternmesh that made it, or `ternmesh enrol identity`\n  ternmesh enrol add FILE"
    monkeypatch.delenv(PROGRAM, raising=False)
    assert as_run(text) == text
    monkeypatch.setenv(PROGRAM, "./run")
    assert as_run(text) == (
        "use the ternmesh that made it, or `./run enrol identity`\n  ./run enrol add FILE"
    )


SENTENCE = (
    "`ternmesh enrol add` on the host with what `ternmesh enrol identity` prints on the board"
)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ("a b.toml", "`ternmesh enrol add` on the host with what `ternmesh enrol identity --config "
         "'a b.toml'` prints on the board"),
        ("h.toml", "`ternmesh enrol add --config h.toml` on the host with what "
         "`ternmesh enrol identity` prints on the board"),
        ("node.toml", SENTENCE),  # it is found by itself
        ("none.toml", SENTENCE),
    ],
)  # fmt: skip
def test_commands_about_this_process_name_its_settings(config, shown, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("a b.toml", "node.toml", "h.toml"):
        Path(name).write_text("" if name == "h.toml" else 'name = "a"\n')
    monkeypatch.setenv(CONFIG, config)
    assert as_run(SENTENCE) == shown


def test_settings_are_found(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "SETTINGS", tmp_path / "etc")
    (tmp_path / "etc").mkdir()
    with pytest.raises(ConfigError, match=r"no node.toml here or in .*etc"):
        commands.find(commands.kinds_of(["label", "last"]))
    for place in ("etc/node.toml", "host.toml"):
        Path(place).touch()
    assert commands.find(commands.kinds_of(["label", "last"])).parent == tmp_path / "etc"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert commands.find(commands.kinds_of(["doctor"])) == Path("host.toml")
    Path("node.toml").touch()
    with pytest.raises(ConfigError, match=r"choose one with --config: node.toml, host.toml"):
        commands.find(commands.kinds_of(["status"]))


def test_help_and_errors(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv(PROGRAM, "../run")
    with pytest.raises(SystemExit):
        main.main(["enrol", "add", "--help"])
    shown = capsys.readouterr().out
    assert "usage: ../run enrol add" in shown
    assert "\n  ../run enrol identity --config host.toml" in shown
    (tmp_path / "host.toml").write_text('state_dir = "."\nmodel = "keyword"\n')
    assert main.main(["enrol", "list", "--config", str(tmp_path / "host.toml")]) == 1
    identity = f"run `../run enrol identity --config {tmp_path}/host.toml`"
    assert identity in capsys.readouterr().err


STOPPED_OFTEN = """
import faulthandler, itertools, os, signal, sys, threading
faulthandler.dump_traceback_later(50, exit=True)  # so that a failure says where it stood
sys.path.insert(0, sys.argv[1])
from ternmesh_cli import process
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup it is ignored
for _ in range(3):
    for count in (2, 3):
        for numbers in itertools.product(SIGNALS, repeat=count):
            stop = process.stop_on_signals()
            pause = threading.Event()
            def send():
                for number in numbers:
                    os.kill(os.getpid(), number)
                    pause.wait(50e-6)
            sender = threading.Thread(target=send)
            sender.start()
            while sender.is_alive() or not stop.is_set():
                stop.wait(0.001)  # it holds the lock of the event again and again
                stop.is_set()
print("stopped")
"""


def test_signals_that_come_together_stop_a_program_and_freeze_none() -> None:
    """As `timeout` sends them, and a terminal that is closed; in any order, many times."""
    command = [sys.executable, "-c", STOPPED_OFTEN, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_logs(monkeypatch) -> None:
    monkeypatch.setenv(PROGRAM, "./run")
    record = logging.LogRecord("x", 20, "x", 1, "see `ternmesh %s`", ("status",), None)
    assert LogText("%(message)s").format(record) == "see `./run status`"


def test_toml_without_what_is_none():
    assert write_toml({"": {"a": 1, "b": None}, "t": {"c": ("x",), "d": True}}) == (
        'a = 1\n[t]\nc = ["x"]\nd = true\n'
    )


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("test", "usage: ./run test"),  # without an installation
        ("host", "set PYTHON to one (tried: python-that-is-not-there)"),
    ],
)
def test_the_script_installs_nothing_where_it_can_know_better(command, shown, tmp_path):
    shutil.copy(Path(__file__).parents[2] / "run", tmp_path)
    env = {**os.environ, "PYTHON": "python-that-is-not-there"}
    done = subprocess.run(
        [tmp_path / "run", command, "--help"], env=env, capture_output=True, text=True, timeout=60
    )
    assert shown in done.stdout + done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("level", "priority"), [(10, 7), (20, 6), (30, 4), (40, 3), (50, 2), (25, 6)]
)
def test_each_line_in_a_journal_has_its_priority(level, priority) -> None:
    record = logging.LogRecord("edge.node", level, "x", 1, "two\nlines of %s", ("x",), None)
    line = JournalText("%(name)s: %(message)s").format(record)
    assert line == f"<{priority}>edge.node: two\n<{priority}>lines of x"


def test_a_journal_is_known_by_its_device_and_inode(monkeypatch, tmp_path) -> None:
    with (tmp_path / "log").open("w") as stream:
        found = os.fstat(stream.fileno())
        for stated, expected in (
            (None, False),
            (f"{found.st_dev}:{found.st_ino}", True),
            (f"{found.st_dev}:{found.st_ino + 1}", False),
        ):
            if stated is not None:
                monkeypatch.setenv("JOURNAL_STREAM", stated)
            assert is_journal(stream) == expected
    assert not is_journal(io.StringIO())


@pytest.mark.parametrize(("journal", "starts"), [(True, "<4>root: x"), (False, "2")])
def test_the_form_follows_the_journal(tmp_path, journal, starts) -> None:
    path = tmp_path / "log"
    script = "import logging; from ternmesh_cli.process import set_up_logging, complain;"
    script += "set_up_logging('INFO'); logging.warning('x'); complain('y')"
    with path.open("w") as log:
        found = os.fstat(log.fileno())
        stream = f"{found.st_dev}:{found.st_ino}" if journal else "1:1"
        environment = {**os.environ, "JOURNAL_STREAM": stream}
        subprocess.run([sys.executable, "-c", script], stderr=log, check=True, env=environment)
    warning, complaint = path.read_text().splitlines()
    assert warning.startswith(starts)
    assert "y" in complaint
    assert complaint.startswith("ternmesh: ") == (not journal)


def test_a_condition_that_lasts_fills_no_log(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("ternmesh_cli.process.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ternmesh_cli.process._said", RateLimiter(60.0, 3600.0))

    def lines(level: int, text: str, *args: object) -> int:
        record = logging.LogRecord("n", level, "", 0, text, args, None)
        return int(is_due(record))

    def an_hour(level: int, text: str, *args: object) -> int:
        count = 0
        for second in range(3600):
            now[0] += 1.0
            count += lines(level, text, *(second if arg is None else arg for arg in args))
        return count

    assert an_hour(logging.WARNING, "lost: %s", OSError("gone")) == 6  # after 1, 3, 7 min, ...
    assert an_hour(logging.WARNING, "round %d has no delta: %s", None, "diverged") == 6
    assert an_hour(logging.INFO, "global adapter %d: %s", None, "0.9") == 3600
    assert an_hour(logging.INFO, "not connected") == 6
    # What is about another board is another line.
    assert lines(logging.WARNING, "%s is silent", "board-1") == 1
    assert lines(logging.WARNING, "%s is silent", "board-2") == 1
    assert lines(logging.WARNING, "%s is silent", "board-1") == 0
    assert lines(logging.WARNING, "%(a)s", {"a": "x"}) == 1  # what the standard library allows


def test_the_log_of_a_program_is_limited() -> None:
    script = "import logging; from ternmesh_cli import process; process.set_up_logging('INFO')"
    script += "\nfor n in range(100): logging.getLogger('a').warning('try %d fails', n)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("try") == 1
