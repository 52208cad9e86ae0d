"""`ternmesh release`, and a running node that takes a good release and leaves a bad one."""

import errno
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from models.zoo import fsdd_path, package_path
from ternmesh_cli import main
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.control_socket import ControlError, ask

RUN = "import sys; from ternmesh_cli.main import main; sys.exit(main(sys.argv[1:]))"
CONFIG = """
name = "ada"
state_dir = "state"
model = "keyword"
[link]
url = "mqtt://127.0.0.1:9"
[data]
path = "{data}"
arrays = {{ features = "x", target = "y" }}
where = {{ speaker = "theo" }}
divide_by = 255
[evaluate]
path = "{data}"
arrays = {{ features = "x", target = "y" }}
where = {{ speaker = "theo" }}
divide_by = 255
samples_max = 32
"""
RELEASES = '[releases]\ndir = "releases"\ninsecure = true\n'


def ternmesh(*arguments: object) -> int:
    return main.main(["release", *map(str, arguments)])


def make(out: Path, version: int, loss_max: float = 100.0) -> Path:
    limits = ("--loss-max", loss_max, "--latency-max-ms", 60_000)
    assert ternmesh("make", "keyword", "--out", out, "--version", version, *limits) == 0
    return out


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(CONFIG.format(data=fsdd_path("dev")) + RELEASES)
    return path


def test_make_check_install_list(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = make(tmp_path / "one", 1)
    assert "version 1 of keyword, not signed" in capsys.readouterr().out
    assert ternmesh("check", release) == 0
    shown = capsys.readouterr()
    assert "a step takes" in shown.out
    assert "a loss of 100 is allowed" in shown.out
    assert "is not checked" in shown.err
    assert ternmesh("install", release, "--config", config) == 0
    assert ternmesh("install", release, "--config", config) == 1
    assert "is installed here already" in capsys.readouterr().err
    assert ternmesh("list", "--config", config) == 0
    assert capsys.readouterr().out.splitlines() == [
        "   0  the model package keyword, current, last good",
        "   1  not tried yet",
    ]
    assert ternmesh("list", "--config", config, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["installed"], answer["passed_over"]) == ([1], [])


def test_a_folder_that_is_no_release_is_shown_as_not_taken(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "releases" / "20251122").mkdir(parents=True)
    assert ternmesh("list", "--config", config) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("20251122  not taken: ")
    assert ternmesh("list", "--config", config, "--json") == 0
    assert json.loads(capsys.readouterr().out)["not_taken"][0][0] == 20251122


def test_a_releases_folder_that_is_none_is_a_sentence(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "releases").write_bytes(b"")
    assert ternmesh("list", "--config", config) == 1
    shown = capsys.readouterr().err
    assert "releases" in shown
    assert "check the disk" in shown


def test_a_release_that_replaces_another_is_above_it(tmp_path: Path) -> None:
    one, limits = make(tmp_path / "one", 4), ("--loss-max", 1, "--latency-max-ms", 1)
    package, out = package_path("keyword"), tmp_path / "two"
    more = ("--previous", one, *limits)
    assert ternmesh("make", package, "--out", out, "--version", 4, *more) == 1
    assert ternmesh("make", package, "--out", out, "--version", 5, *more) == 0


def test_a_changed_release_is_refused_with_1(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = make(tmp_path / "one", 1)
    whole = (release / "forward.onnx").read_bytes()
    (release / "forward.onnx").write_bytes(whole[:-1])
    assert ternmesh("check", release) == 1
    assert ternmesh("install", release, "--config", config) == 1
    assert "forward.onnx is not what model.json describes" in capsys.readouterr().err


def test_a_node_that_takes_none_says_so_with_2(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace(RELEASES, ""))
    assert ternmesh("list", "--config", config) == 2
    assert "takes no releases" in capsys.readouterr().err
    config.write_text(config.read_text() + RELEASES.replace("insecure = true", ""))
    assert ternmesh("list", "--config", config) == 1
    assert "no identity" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["make", "check", "install", "list"])
def test_help_tells_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        ternmesh(command, "--help")
    assert caught.value.code == 0
    assert "1  a release or a model package is refused" in capsys.readouterr().out


def test_a_running_node_takes_a_good_release_and_leaves_a_bad_one(
    tmp_path: Path, config: Path, eventually: Callable[..., None]
) -> None:
    def status() -> dict | None:
        try:
            return ask(tmp_path / "state" / "control.sock", {"command": "status"})
        except ControlError:
            return None

    def stands(current: int, bad: list[int]) -> Callable[[], bool]:
        def condition() -> bool:
            answer = status()
            if answer is None:
                return False
            found = answer["releases"]
            refused = [version for version, _ in found["bad"]]
            return (found["current"], found["last_good"], refused) == (current, current, bad)

        return condition

    command = [sys.executable, "-c", RUN, "node", "--insecure", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(stands(0, []), 60)
            ternmesh("install", make(tmp_path / "one", 1), "--config", config)
            eventually(stands(1, []), 60)
            ternmesh("install", make(tmp_path / "two", 2, loss_max=1e-6), "--config", config)
            eventually(stands(1, [2]), 60)
            answer = status()
            assert answer is not None
            assert "its loss on this board's held-out data" in answer["releases"]["bad"][0][1]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_a_board_takes_what_its_host_has_signed(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace("insecure = true", ""))
    name = tomllib.loads(config.read_text())["name"]
    for host in ("host", "stranger"):
        (tmp_path / f"{host}.toml").write_text(f'state_dir = "{host}"\nmodel = "keyword"\n')
    enrol_fleet("ternmesh", tmp_path / "host", {name: tmp_path / "state"})
    enrol_fleet("ternmesh", tmp_path / "stranger", {})
    one = make(tmp_path / "one", 1)
    assert ternmesh("install", one, "--config", config) == 1
    assert "not signed by the host" in capsys.readouterr().err
    assert ternmesh("sign", one, "--config", tmp_path / "stranger.toml") == 0
    assert ternmesh("install", one, "--config", config) == 1
    assert ternmesh("sign", one, "--config", tmp_path / "host.toml") == 0
    assert "is signed by host" in capsys.readouterr().out
    signed = (one / "signatures").read_bytes()
    assert ternmesh("check", one, "--config", tmp_path / "host.toml") == 0
    assert "have signed it" in capsys.readouterr().out
    assert ternmesh("check", one, "--config", tmp_path / "stranger.toml") == 1
    (one / "signatures").write_bytes(signed[:-2] + bytes([signed[-2] ^ 1, signed[-1]]))
    assert ternmesh("install", one, "--config", config) == 1
    (one / "signatures").write_bytes(signed)
    assert ternmesh("install", one, "--config", config) == 0
    two = make(tmp_path / "two", 2)
    (two / "signatures").write_bytes(signed)  # of another manifest
    assert ternmesh("install", two, "--config", config) == 1
    assert ternmesh("sign", two, "--config", config) == 2


def test_signatures_that_cannot_be_written_are_a_sentence_and_the_old_ones_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = tmp_path / "host.toml"
    host.write_text('state_dir = "host"\nmodel = "keyword"\n')
    enrol_fleet("ternmesh", tmp_path / "host", {})
    release = make(tmp_path / "one", 1)
    path = release / "signatures"
    assert ternmesh("sign", release, "--config", host) == 0
    signed = path.read_bytes()

    def fill(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ternmesh_store.files.os.fsync", fill)
    assert ternmesh("sign", release, "--config", host) == 1
    shown = capsys.readouterr().err
    assert f"cannot write {path} (No space left on device)" in shown
    assert shown.count("\n") == 1
    assert path.read_bytes() == signed


def test_two_of_three_signers_and_a_quantum_key_sign_a_release(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    enrol_fleet("ternmesh", tmp_path / "host", {"ada": tmp_path / "state"})
    host = tmp_path / "host.toml"
    host.write_text('state_dir = "host"\nmodel = "keyword"\n[link]\nurl = "mqtt://127.0.0.1:9"\n')
    lines, signers = [], {}
    for name in ("ann", "ben"):
        end = tmp_path / f"{name}.toml"
        end.write_text(f'name = "{name}"\nstate_dir = "{name}"\n')
        assert main.main(["enrol", "identity", "--config", str(end), "--json"]) == 0
        lines.append(json.loads(capsys.readouterr().out)["identity"])
        signers[name] = tmp_path / name / "identity"
    command = ["enrol", "identity", "--config", str(host), "--quantum", "--json"]
    assert main.main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    rule = {"signers": [shown["identity"], *lines], "threshold": 2, "quantum": shown["quantum"]}
    table = "[security]\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in rule.items()
    )
    host.write_text(host.read_text() + table)
    config.write_text(config.read_text().replace("insecure = true", "") + table)
    release = make(tmp_path / "one", 1)
    assert ternmesh("sign", release, "--config", config, "--identity", signers["ann"]) == 0
    assert ternmesh("install", release, "--config", config) == 1
    assert "not signed by 2 of the 3 signers" in capsys.readouterr().err
    assert ternmesh("sign", release, "--config", config, "--identity", signers["ben"]) == 0
    assert "2 of 3 signers have signed" in capsys.readouterr().out
    assert ternmesh("install", release, "--config", config) == 1
    assert "ML-DSA-44" in capsys.readouterr().err
    assert ternmesh("sign", release, "--config", host) == 0
    assert ternmesh("install", release, "--config", config) == 0
    stranger = tmp_path / "state" / "identity"
    assert ternmesh("sign", release, "--config", config, "--identity", stranger) == 1
    assert "none of security.signers" in capsys.readouterr().err


def test_one_file_is_packed_and_installed(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "release-1.ternmesh"
    assert ternmesh("pack", make(tmp_path / "one", 1), file) == 0
    assert ternmesh("install", file, "--config", config) == 0
    assert "version 1 of keyword is installed" in capsys.readouterr().out
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    assert ternmesh("install", file, "--config", config) == 1
    assert "release" in capsys.readouterr().err


def test_a_release_waits_for_the_host_to_start(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    enrol_fleet("ternmesh", tmp_path / "host-state", {"ada": tmp_path / "state"})
    host = tmp_path / "host.toml"
    host.write_text(
        'state_dir = "host-state"\nmodel = "keyword"\n[link]\nurl = "mqtt://127.0.0.1:9"\n'
    )
    release = make(tmp_path / "one", 1)
    assert ternmesh("publish", release, "--config", host) == 1
    assert "not signed by the host" in capsys.readouterr().err
    assert ternmesh("sign", release, "--config", host) == 0
    assert ternmesh("publish", release, "--config", host) == 0
    assert "waits for the next start" in capsys.readouterr().out
    assert ternmesh("progress", "--config", host) == 1
    assert ternmesh("publish", release, "--config", config) == 2


def test_a_host_with_radios_publishes_only_what_they_can_carry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = tmp_path / "host.toml"
    enrol_fleet("garden", tmp_path / "host", {})
    host.write_text(
        'state_dir = "host"\nmodel = "keyword"\n[link]\nurl = "mqtt://127.0.0.1:9"\n'
        'fleet = "garden"\nradios = true\n'
    )
    release = make(tmp_path / "one", 1)
    assert ternmesh("sign", release, "--config", host) == 0
    assert ternmesh("publish", release, "--config", host) == 2
    assert "releases.radio_bytes_s is missing" in capsys.readouterr().err
    assert not (tmp_path / "host" / "release").exists()
    host.write_text(host.read_text() + "[releases]\nradio_bytes_s = 20.0\n")
    assert ternmesh("publish", release, "--config", host) == 0
    assert "waits for the next start" in capsys.readouterr().out
