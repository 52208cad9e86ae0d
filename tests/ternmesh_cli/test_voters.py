"""`ternmesh enrol voters`: one host becomes several, each from a folder that is restored."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from host.config import read_host_config
from host.voting import read_own
from ternmesh_cli.main import main
from ternmesh_store.state_file import StateFile
from tests.ternmesh_cli.test_backup import RUN, Host

SECURED = "[security]\nquantum_on_radio = true\n"
LINK = '[link]\nurl = "mqtt://127.0.0.1:1"\n'


class First(Host):
    """A host whose run has begun, and what `enrol voters` says to it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], more: str = "") -> None:
        super().__init__(folder, capsys)
        text = 'state_dir = "state"\nmodel = "keyword"\n' + LINK + more
        self._config.write_text(text)

    def enrol(self, *names: str, mode: str = "crash") -> tuple[int, str]:
        out = str(self.folder.parent / "copies")
        command = ["enrol", "voters", "--config", str(self._config), "--mode", mode, out, *names]
        code = main(command)
        shown = self._capsys.readouterr()
        return code, shown.out + shown.err


@pytest.mark.parametrize(
    ("names", "mode", "version", "more"),
    [
        (("barn", "cellar", "attic"), "crash", 3, ""),
        (("barn", "cellar", "attic", "shed"), "bft", 0, ""),
        (("barn", "cellar", "attic", "shed"), "bft", 0, SECURED),
    ],
)
def test_a_restored_folder_is_a_voter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...], mode: str,
    version: int, more: str,
) -> None:  # fmt: skip
    host = First(tmp_path, capsys, more)
    host.reach(version)
    code, said = host.enrol(*names, mode=mode)
    assert code == 0, said
    keys = set()
    for name in names:
        machine = tmp_path / f"machine-{name}"
        machine.mkdir()
        kit = tmp_path / "copies" / name
        (machine / "host.toml").write_text((kit / "host.toml").read_text())
        code = main(["restore", str(kit), "--config", str(machine / "host.toml")])
        assert code == 0, capsys.readouterr().err
        config = read_host_config(machine / "host.toml")
        own = read_own(config)
        keys.add(own.public.verify)
        assert own.public.name == config.agreement.name == name
        assert StateFile(machine / "state").content().runs == {RUN: version}
        assert config.security.signers == (config.agreement.voters if mode == "bft" else ())
        assert config.security.quantum_on_radio == bool(more)
    assert len(keys) == len(names)
    if mode == "bft":  # what boards need is the same
        shown = said[said.index("[security]") :]
        assert tomllib.loads(shown)["security"]["signers"] == list(config.security.signers)


def test_a_backup_of_a_voter_brings_its_key_back(tmp_path, capsys) -> None:
    host = First(tmp_path, capsys)
    host.reach(3)
    host.enrol("barn", "cellar", "attic")
    assert host.ternmesh("restore", tmp_path / "copies" / "barn")[0] == 0
    assert host.ternmesh("backup", tmp_path / "later")[0] == 0
    key = host.folder / "voter"
    before = key.read_bytes()
    key.unlink()
    assert host.ternmesh("restore", tmp_path / "later")[0] == 0
    assert key.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "names", "mode", "sentence"),
    [
        (lambda host: None, ("barn", "cellar"), "crash", "2 voters bear no more faults"),
        (lambda host: None, ("barn", "barn", "attic"), "crash", "two voters have one name"),
        (lambda host: None, ("barn", "a/b", "attic"), "crash", "'a/b' must be 1 to 32 letters"),
        (lambda host: None, ("a", "b", "c", "d"), "bft", "boards take nothing that one host"),
        (lambda host: (host.folder / "state.sqlite").unlink(), ("a", "b", "c"), "crash",
         "no run yet"),
        (lambda host: host.enrol("a", "b", "c"), ("a", "b", "c"), "crash", "exists"),
        (lambda host: host._config.write_text(host._config.read_text() + "[agreement]\n"),
         ("a", "b", "c"), "crash", "is a voter already"),
        (lambda host: host._config.write_text(
            host._config.read_text() + '[security]\nthreshold = 1\nsigners = ["TM1:"]\n'),
         ("a", "b", "c", "d"), "bft", "without signers and signer_files"),
    ],
)  # fmt: skip
def test_what_makes_no_voters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[First], object],
    names: tuple[str, ...], mode: str, sentence: str,
) -> None:  # fmt: skip
    host = First(tmp_path, capsys)
    host.reach(0 if "signer_files" in sentence else 3)
    change(host)
    code, said = host.enrol(*names, mode=mode)
    assert code != 0
    assert sentence in said
