import ast

from bench.house import import_circles


def test_circles_of_imports_are_found_and_chains_are_not() -> None:
    sources = {
        "a": "import b",
        "b": "from a import c\nfrom p import x",
        "a.c": "import numpy",
        "p": "from p.x import y",
        "p.x": "from p import z",
        "p.z": "def later() -> None:\n    import p.x",
    }
    circles = import_circles({name: ast.parse(text) for name, text in sources.items()})
    assert circles == []
    sources["p.z"] = "import p.x"
    circles = import_circles({name: ast.parse(text) for name, text in sources.items()})
    assert circles == [{"p.x", "p.z"}]
