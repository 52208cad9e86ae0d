"""Without flwr a sentence names the extra."""

import subprocess
import sys
from pathlib import Path

import pytest

CALLS = "from edge.flower_app import client_app; client_app(None)", "import host.flower_strategy"


@pytest.mark.parametrize("call", CALLS)
def test_without_flwr_a_sentence_names_the_extra(call: str) -> None:
    code = f"import sys; sys.modules['flwr'] = None; {call}"
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    error = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root).stderr
    assert "MissingExtra" in error
    assert "pip install 'ternmesh[flower]'" in error
