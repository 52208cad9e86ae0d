"""`ternmesh enrol` as an operator uses it: lines are copied from one end to the other."""

import io
import json
import threading

import pytest

from host.config import read_host_config
from host.service import run_host
from ternmesh.config import ConfigError
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


def test_two_lines_make_a_member(enrol):
    host = enrol("identity", "host")
    ada = enrol("identity", "ada")
    assert enrol("identity", "ada") == ada, "an identity is made once"
    assert ada["identity"].startswith("TM1:")
    answer = enrol("host", "ada", host["identity"])
    assert answer["host"] == host["fingerprint"]
    listed = enrol("add", "host", ada["identity"])
    assert [(row["name"], row["role"]) for row in listed["members"]] == [("ada", "node")]
    assert listed["members"][0]["fingerprint"] == ada["fingerprint"]
    assert enrol("add", "host", ada["identity"]) == listed, "twice is once"
    assert enrol("list", "host") == listed


def test_a_line_may_come_from_a_file(enrol, tmp_path):
    enrol("identity", "host")
    (tmp_path / "ada.txt").write_text(enrol("identity", "ada")["identity"] + "\n")
    assert len(enrol("add", "host", str(tmp_path / "ada.txt"))["members"]) == 1
    code, sentence = enrol("add", "host", str(tmp_path / "nothing.txt"))
    assert code == 2
    assert "no file" in sentence


@pytest.mark.parametrize("name", ["", "host", "all", ".", "..", "-rf", "../x", "#", "a" * 33])
def test_a_name_that_topics_files_or_commands_misread_is_refused(enrol, tmp_path, name):
    (tmp_path / "ada.toml").write_text(NODE.format(name=name))
    code, sentence = enrol("identity", "ada")
    assert code == 2
    assert "ada.toml: " in sentence
    assert "name" in sentence


def test_what_is_wrong_with_a_line_or_a_key_is_said_with_its_place(enrol, tmp_path):
    (tmp_path / "note.txt").write_text("hello")
    for given, sentence in (
        ("", "'' does not begin with TM1:, and is no file"),
        (str(tmp_path / "note.txt"), "note.txt holds no word that begins with TM1:"),
    ):
        code, shown = enrol("host", "ada", given)
        assert code == 2
        assert sentence in shown
    code, shown = enrol("add", "host", "TM1:" + "A" * 400)  # no file can have so long a name
    assert "File name too long" not in shown, shown
    (tmp_path / "ada" / "identity").write_text("junk")
    assert (
        f"{tmp_path / 'ada' / 'identity'}: this is not a valid private"
        in enrol("identity", "ada")[1]
    )


def test_a_key_is_never_replaced_by_another(enrol, tmp_path):
    host = enrol("identity", "host")
    enrol("host", "ada", host["identity"])
    enrol("add", "host", enrol("identity", "ada")["identity"])
    (tmp_path / "ada" / "identity").unlink()
    (tmp_path / "host" / "identity").rename(tmp_path / "host" / "old")
    (tmp_path / "host" / "old").rename(tmp_path / "host" / "identity")
    code, sentence = enrol("add", "host", enrol("identity", "ada")["identity"])
    assert code == 1
    assert "another key" in sentence
    (tmp_path / "bob.toml").write_text(HOST.replace('"host"', '"bob"'))
    other = enrol("identity", "bob")
    code, sentence = enrol("host", "ada", other["identity"])
    assert code == 1
    assert "trusts another host" in sentence


def test_who_is_revoked_stays_out(enrol):
    enrol("identity", "host")
    ada = enrol("identity", "ada")["identity"]
    enrol("add", "host", ada)
    assert enrol("revoke", "host", "ada")["members"][0]["revoked"]
    code, sentence = enrol("add", "host", ada)
    assert code == 1
    assert "revoked" in sentence
    assert enrol("revoke", "host", "bob")[0] == 1


def test_wrong_ends_and_lines_are_sentences(enrol):
    assert enrol("list", "host")[0] == 1
    assert "no identity yet" in enrol("list", "host")[1]
    assert enrol("list", "ada")[0] == 2
    ada = enrol("identity", "ada")["identity"]
    assert enrol("host", "host", ada)[0] == 2
    code, sentence = enrol("host", "ada", ada)
    assert code == 1
    assert "not a host" in sentence
    code, sentence = enrol("host", "ada", ada[:-3])
    assert code == 1
    assert "copy it again" in sentence


def test_a_line_may_have_small_letters_and_spaces(enrol, tmp_path):
    host = enrol("identity", "host")
    line = enrol("identity", "ada")["identity"].lower()
    assert len(enrol("add", "host", f" {line[:9]} {line[9:]} ")["members"]) == 1
    (tmp_path / "line.txt").write_text(host["identity"].lower())
    assert enrol("host", "ada", str(tmp_path / "line.txt"))["host"] == host["fingerprint"]


def test_a_name_that_nobody_may_have_is_not_revoked(enrol):
    enrol("identity", "host")
    code, sentence = enrol("revoke", "host", "")
    assert code == 2
    assert "name ''" in sentence


def test_a_list_replaces_no_other_file(enrol, tmp_path):
    enrol("identity", "host")
    before = (tmp_path / "host" / "identity").read_bytes()
    for name in ("identity", "state.sqlite"):
        code, sentence = enrol("export", "host", str(tmp_path / "host" / name))
        assert code == 1
        assert "name another file" in sentence
    assert (tmp_path / "host" / "identity").read_bytes() == before
    for _ in range(2):
        enrol("export", "host", str(tmp_path / "list.txt"))
    assert (tmp_path / "list.txt").read_text().startswith("TM1-FLEET:")
    (tmp_path / "shed.toml").write_text(GATEWAY)
    code, sentence = enrol("import", "shed", "/bin/true")
    assert code == 1
    assert "codec" not in sentence


def test_a_host_that_lost_its_identity_gets_no_other(enrol, tmp_path):
    enrol("identity", "host")
    (tmp_path / "host" / "identity").rename(tmp_path / "kept")
    code, sentence = enrol("identity", "host")
    assert code == 1
    assert "bring that identity back (docs/backup.md)" in sentence
    assert not (tmp_path / "host" / "identity").exists()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('state_dir = ""', "state_dir is ''"),
        ('state_dir = "~/x"', "state_dir is '~/x': write a path"),
        (f'state_dir = "{"x" * 120}"', "state_dir: "),
        (f'control_socket = "{"x" * 120}"\nstate_dir = "x"', "control_socket: "),
        ('state_dir = "x"\n[security]\nidentity_file = "~/key"', "security.identity_file is "),
    ],
)
def test_a_path_that_means_something_else_is_refused_by_its_name(
    enrol, tmp_path, setting, sentence
):
    (tmp_path / "host.toml").write_text(setting)
    code, said = enrol("identity", "host")
    assert code == 2
    assert sentence in said
    if "security" not in setting:
        (tmp_path / "host.toml").write_text(f"{setting}\n{HOST.partition(chr(10))[2]}")
        with pytest.raises(ConfigError, match=sentence):
            read_host_config(tmp_path / "host.toml")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_no_run_begins_with_keys_that_cannot_sign_it(enrol, tmp_path, caplog):
    enrol("identity", "host")
    config = tmp_path / "host.toml"
    config.write_text(HOST + '[security]\nsigner_files = ["missing"]\n')
    with caplog.at_level("INFO"), pytest.raises(SecurityError, match=r"no identity at .*missing"):
        run_host(read_host_config(config), threading.Event())
    assert "begins" not in caplog.text
    assert StateFile(tmp_path / "host").content().runs == {}


def test_a_qr_code_can_be_shown_where_there_is_only_ascii(tmp_path, monkeypatch):
    (tmp_path / "ada.toml").write_text(NODE.format(name="ada"))
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, "ascii", write_through=True))
    assert main(["enrol", "identity", "--config", str(tmp_path / "ada.toml"), "--qr"]) == 0
    assert out.getvalue().count(b"\n") > 10


def test_a_qr_code_can_be_shown(tmp_path, capsys):
    (tmp_path / "ada.toml").write_text(NODE.format(name="ada"))
    assert main(["enrol", "identity", "--config", str(tmp_path / "ada.toml"), "--qr"]) == 0
    shown = capsys.readouterr().out
    assert "TM1:" in shown
    assert shown.count("\n") > 10


GATEWAY = 'name = "shed"\nstate_dir = "shed"\n[radio]\n[network]\nfleet = "garden"\n'


def test_gateway_and_boards_know_each_other_by_the_hosts_list(enrol, tmp_path):
    (tmp_path / "shed.toml").write_text(GATEWAY)
    host = enrol("identity", "host")
    for name in ("ada", "bob", "shed"):
        enrol("host", name, host["identity"])
        listed = enrol("add", "host", enrol("identity", name)["identity"])
    roles = {row["name"]: row["role"] for row in listed["members"]}
    assert roles == {"ada": "node", "bob": "node", "shed": "gateway"}
    file = str(tmp_path / "fleet.txt")
    assert enrol("export", "host", file) == listed
    for name in ("ada", "shed"):
        assert enrol("import", name, file)["members"] == listed["members"]
    enrol("revoke", "host", "bob")
    enrol("export", "host", file)
    shown = {row["name"]: row["revoked"] for row in enrol("import", "shed", file)["members"]}
    assert shown == {"ada": False, "bob": True, "shed": False}


def test_a_list_is_the_hosts_own(enrol, tmp_path):
    (tmp_path / "shed.toml").write_text(GATEWAY)
    (tmp_path / "bob.toml").write_text(HOST.replace('"host"', '"bob"'))
    enrol("identity", "bob")
    file = str(tmp_path / "fleet.txt")
    enrol("export", "bob", file)
    enrol("host", "shed", enrol("identity", "host")["identity"])
    assert "not signed by this end's host" in enrol("import", "shed", file)[1]
    assert enrol("import", "host", file)[0] == 2
    assert "cannot read" in enrol("import", "shed", str(tmp_path / "nothing"))[1]
    assert "cannot write" in enrol("export", "host", str(tmp_path / "none" / "x"))[1]
    assert enrol("export", "shed", file)[0] == 2


def test_a_host_with_new_keys_begins_a_new_fleet_as_security_says(enrol, tmp_path):
    """The steps of SECURITY.md; boards keep their own keys."""
    first = enrol("identity", "host")
    enrol("host", "ada", first["identity"])
    ada = enrol("identity", "ada")
    enrol("add", "host", ada["identity"])
    for name in ("identity", "state.sqlite"):
        (tmp_path / "host" / name).rename(tmp_path / name)
    (tmp_path / "ada" / "state.sqlite").unlink()
    host = enrol("identity", "host")
    assert host["fingerprint"] != first["fingerprint"]
    assert enrol("host", "ada", host["identity"])["host"] == host["fingerprint"]
    listed = enrol("add", "host", enrol("identity", "ada")["identity"])
    assert [row["fingerprint"] for row in listed["members"]] == [ada["fingerprint"]]
