"""The programs under a service manager: signs of life, refusals, hangs, clocks, secrets."""

import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.zoo import fsdd_path
from ternmesh_cli.process import ExitCode
from tests.mosquitto import free_port
from tests.supervisor import PATIENCE_S, Supervisor
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

ROUNDS = 2
PASSWORD = "correct-horse-battery"
IN_1970, IN_2099 = 0.0, 4_102_444_000.0
LINK = 'log_level = "DEBUG"\n[link]\nurl = "{url}"\nfleet = "attic"\n'
RUN = f"[run]\nrounds = {ROUNDS}\nannounce_s = 1\nmin_peers = 1\n"
HOST = f'state_dir = "state"\nmodel = "keyword"\n{LINK}{RUN}'
NODE = f"""name = "theo"
state_dir = "state"
model = "keyword"
{LINK}[data]
path = '{fsdd_path("train")}'
divide_by = 255.0
arrays = {{{{features = "x", target = "y"}}}}
where = {{{{speaker = "theo"}}}}
"""


def write(folder: Path, text: str, url: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.toml"
    path.write_text(text.format(url=url))
    return path


GATEWAY = """state_dir = "state"
[radio]
region = "unregulated"
serial = {{ port = "PORT", dialect = "ebyte", addresses = {{ theo = 1 }} }}
[network]
url = "{url}"
[security]
insecure = true
"""


def run_of(log: str) -> set[str]:
    return set(re.findall(r"run ([0-9a-f]{16})", log))


def test_a_gateway_with_its_radio(tmp_path: Path) -> None:
    radios = EmulatedRadios([new_modem("ebyte", 0)], speed=400.0, seed=7)
    radios.start()
    text = GATEWAY.replace("PORT", radios.paths[0])
    config = write(tmp_path, text, f"mqtt://127.0.0.1:{free_port()}")
    try:
        with Supervisor(tmp_path, "gateway", "--insecure", "--config", config) as gateway:
            gateway.listen("READY=1")
            gateway.listen("STATUS=0 frames up, 0 down, 0 lost; link down (1 of 2): cannot reach")
            gateway.listen("WATCHDOG=1")
            assert gateway.stop() == ExitCode.DONE
    finally:
        radios.close()


def test_why_a_program_does_not_start_is_its_status(tmp_path: Path) -> None:
    config = write(tmp_path, HOST, f"mqtt://127.0.0.1:{free_port()}")
    with Supervisor(tmp_path, "host", "--config", config) as host:
        assert "enrol identity" in host.listen("STATUS=no identity")
        assert host.process.wait(PATIENCE_S) == ExitCode.REFUSED


def test_a_hang_is_not_hidden_and_the_run_goes_on(tmp_path: Path) -> None:
    """The threads of the transport and the control socket run on."""
    config = write(tmp_path, HOST, f"mqtt://127.0.0.1:{free_port()}")
    command = ("host", "--insecure", "--config", config)
    with Supervisor(tmp_path, *command, watchdog_s=2.0) as host:
        host.listen("READY=1")
        for _ in range(2):
            host.listen("WATCHDOG=1")
        host.process.send_signal(signal.SIGUSR1)
        host.end_a_hang()
        assert host.process.returncode in (-signal.SIGKILL, -signal.SIGABRT)
        assert "Fatal Python error: Aborted" in host.log
        host.start()
        host.listen("READY=1")
        host.listen("WATCHDOG=1")
    assert len(run_of(host.log)) == 1
    assert "goes on at global update 0" in host.log


@dataclass(frozen=True)
class Fleet:
    """What was written while a board enrolled with a code and a run was done."""

    logs: dict[str, str]
    secrets: dict[str, str]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A host in 1970 and a board in 2099 enrol with a code, and finish a run, at level DEBUG."""
    folder = tmp_path_factory.mktemp("fleet")
    with EmbeddedBroker() as broker:
        url = broker.url.replace("//", f"//user:{PASSWORD}@")
        host_config, config = write(folder / "host", HOST, url), write(folder / "theo", NODE, url)

        def enrol(action: str, path: Path, *rest: str) -> subprocess.CompletedProcess[str]:
            words = [sys.executable, "-m", "ternmesh_cli", "enrol", action, "--config", str(path)]
            return subprocess.run([*words, *rest], capture_output=True, text=True, check=True)

        for path in (host_config, config):
            enrol("identity", path)
        command = ("host", "--config", host_config)
        with Supervisor(folder / "host", *command, clock=IN_1970) as host:
            host.listen("READY=1")
            found = re.search(r"^code +(\S+)", enrol("code", host_config).stdout, re.MULTILINE)
            assert found is not None
            joined = enrol("join", config, *found[1].split("-"))  # typed with blanks
            board = ("node", "--profile", folder / "profile", "--config", config)
            with Supervisor(folder / "theo", *board, clock=IN_2099) as node:
                node.listen(f"STATUS=finished; global adapter {ROUNDS}")
                node.stop()
            host.stop()
    logs = {"host": host.log, "node": node.log, "join": joined.stderr}
    logs["profile"] = (folder / "profile").read_text()
    secrets = {"password": PASSWORD, "code": found[1], "short code": found[1].replace("-", "")}
    for name in ("host", "theo"):
        secrets[f"identity of {name}"] = (folder / name / "state" / "identity").read_text().strip()
    return Fleet(logs, secrets)


def test_clocks_of_1970_and_2099_change_nothing(fleet: Fleet) -> None:
    assert "1970-01-01 " in fleet.logs["host"]
    assert "2099-12-31 " in fleet.logs["node"]
    assert "the run is finished" in fleet.logs["host"]


def test_a_profile_has_calls_and_operators(fleet: Fleet) -> None:
    assert "cumtime" in fleet.logs["profile"]
    assert "  Gemm [[" in fleet.logs["profile"]


def test_no_secret_is_logged(fleet: Fleet) -> None:
    assert " DEBUG " in fleet.logs["host"]
    for name, secret in fleet.secrets.items():
        assert len(secret) >= 16, name
        for part in {secret, *secret.split(":")}:
            for log in fleet.logs.values():
                assert len(part) < 16 or part.lower() not in log.lower(), name
