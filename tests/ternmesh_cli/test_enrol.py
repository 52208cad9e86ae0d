"""`ternmesh enrol` as an operator uses it: lines are copied from one end to the other."""

import json
import threading

import pytest

from host.config import read_host_config
from host.service import run_host
from ternmesh.errors import SecurityError
from ternmesh_cli.main import main
from ternmesh_store.state_file import StateFile

HOST = 'state_dir = "host"\nmodel = "keyword"\n[link]\nurl = "mqtt://broker"\nfleet = "garden"\n'
NODE = 'name = "{name}"\nstate_dir = "{name}"\nmodel = "keyword"\n[link]\nfleet = "garden"\n'


@pytest.fixture
def enrol(tmp_path, capsys):
    """Runs the command with --json and returns its answer, or its exit code and sentence."""
    (tmp_path / "host.toml").write_text(HOST)
    for name in ("ada", "bob"):
        (tmp_path / f"{name}.toml").write_text(NODE.format(name=name))

    def run(action, who, *rest):
        arguments = ["enrol", action, "--config", str(tmp_path / f"{who}.toml"), "--json", *rest]
        code = main(arguments)
        shown = capsys.readouterr()
        return json.loads(shown.out) if code == 0 else (code, shown.err)

    return run


def test_no_run_begins_with_keys_that_cannot_sign_it(enrol, tmp_path, caplog):
    enrol("identity", "host")
    config = tmp_path / "host.toml"
    config.write_text(HOST + '[security]\nsigner_files = ["missing"]\n')
    with caplog.at_level("INFO"), pytest.raises(SecurityError, match=r"no identity at .*missing"):
        run_host(read_host_config(config), threading.Event())
    assert "begins" not in caplog.text
    assert StateFile(tmp_path / "host").content().runs == {}
