"""`ternmesh completion` in a real bash."""

import subprocess
import sys

import pytest

from ternmesh_cli.main import main


def complete(script: str, *words: str) -> set[str]:
    """What bash offers for the last word."""
    asked = " ".join(f"'{word}'" for word in words)
    text = f"{script}\nCOMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}\n_shtab_ternmesh\n"
    text += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_choices(capsys):
    pytest.importorskip("shtab", reason="shtab is not installed: pip install 'ternmesh[dev]'")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert complete(script, "ternmesh", "do") == {"doctor"}
    assert complete(script, "ternmesh", "enrol", "re") == {"revoke"}
    assert "--trust" in complete(script, "ternmesh", "setup", "--t")
    assert complete(script, "ternmesh", "logs", "-p", "war") == {"warning"}
    assert "_shtab_ternmesh_node___config_COMPGEN=_shtab_compgen_files" in script


def test_without_the_package_a_sentence_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "zsh"]) == 1
    assert "pip install 'ternmesh[node]'" in capsys.readouterr().err
