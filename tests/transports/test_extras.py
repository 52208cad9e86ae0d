"""Optional packages: each module that needs one says how to install it."""

import subprocess
import sys
from pathlib import Path

import pytest

from ternmesh.extras import how_to_install

NEEDED = {
    "mqtt.transport": ("paho", "mqtt"),
    "mqtt.embedded_broker": ("amqtt", "demo"),
    "serial_lora.transport": ("serial", "serial"),
    "ble.bleak_client": ("bleak", "ble"),
    "ble.bumble_ends": ("bumble", "ble-bridge"),
    "ble.simulated": ("bumble", "ble-bridge"),
}


def import_without(packages: list[str], module: str) -> str:
    code = f"import sys; sys.modules |= dict.fromkeys({packages}); import transports.{module}"
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root).stderr


@pytest.mark.parametrize("module", NEEDED)
def test_without_its_package_a_sentence_names_the_extra(module: str) -> None:
    package, extra = NEEDED[module]
    error = import_without([package], module)
    assert "MissingExtra" in error
    assert how_to_install(extra) in error


@pytest.mark.parametrize("module", ["ble.transport", "serial_lora.emulator.radios"])
def test_what_needs_no_package_imports_without_all(module: str) -> None:
    assert import_without([package for package, _ in NEEDED.values()], module) == ""
