"""What an end stores of its fleet, and what it must not keep."""

from dataclasses import replace
from pathlib import Path

import pytest

from ternmesh.security.session import GroupState
from ternmesh_store.security_store import SecurityStore
from ternmesh_store.state_file import StateFile
from ternmesh_store.store import END, HOP

OLD = GroupState(b"f" * 16, 1, b"0123456789abcdef", b"e" * 32, 5)
NEW = replace(OLD, secret=b"fedcba9876543210", given=b"g" * 32)


def traces(folder: Path, secret: bytes) -> list[str]:
    return [path.name for path in folder.iterdir() if secret in path.read_bytes()]


@pytest.mark.parametrize("layer", [END, HOP])
def test_a_broadcast_key_that_was_replaced_leaves_the_disk(tmp_path: Path, layer: str) -> None:
    state = StateFile(tmp_path)
    state.open()
    store = SecurityStore(state)
    for highest in range(100):
        store.record(layer, [replace(OLD, highest=highest)])
        store.commit()
    assert traces(tmp_path, OLD.secret), "while it is in force"
    store.record(layer, [NEW])
    store.commit()
    assert store.sealing(layer).group == NEW
    assert traces(tmp_path, OLD.secret) == []
    store.forget_peers()
    store.commit()
    assert traces(tmp_path, NEW.secret) == []
    state.close()
