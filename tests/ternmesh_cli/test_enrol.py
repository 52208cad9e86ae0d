"""`ternmesh enrol` and a run that asks for more keys than there are."""

import threading

import pytest

from host.config import read_host_config
from host.service import run_host
from ternmesh.errors import SecurityError
from ternmesh_cli.main import main
from ternmesh_store.state_file import StateFile

HOST = 'state_dir = "host"\nmodel = "keyword"\n[link]\nurl = "mqtt://broker"\nfleet = "garden"\n'


def test_no_run_begins_with_keys_that_cannot_sign_it(tmp_path, caplog):
    config = tmp_path / "host.toml"
    config.write_text(HOST)
    assert main(["enrol", "identity", "--config", str(config)]) == 0
    config.write_text(HOST + '[security]\nsigner_files = ["missing"]\n')
    with caplog.at_level("INFO"), pytest.raises(SecurityError, match=r"no identity at .*missing"):
        run_host(read_host_config(config), threading.Event())
    assert "begins" not in caplog.text
    assert StateFile(tmp_path / "host").content().runs == {}
