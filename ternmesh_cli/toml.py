"""The TOML that a host and nodes read, written for them."""

import json
from collections.abc import Mapping


def write_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """TOML text of tables by name, "" for the top; what is None is left out."""
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]"] if table else []
        lines += [f"{key} = {_value(v)}" for key, v in values.items() if v is not None]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)  # A JSON text, number, truth value or list of them is also a TOML one.
