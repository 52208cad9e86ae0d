import ast

from bench.house import attributes_set, counted_lines, import_circles, methods_defined


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


def test_lines_of_comments_and_examples_do_not_count() -> None:
    text = '''"""Text.

>>> 1 + 1
2
"""

# A comment.
VALUE = "# not a comment"  # beside code
'''
    assert counted_lines(text) == text.count("\n") - 3


def test_a_class_has_what_its_bases_set_and_define() -> None:
    text = """
class Base:
    field: int = 0
    def __init__(self):
        self.first, self.second = 1, 2
class Machine(Base):
    def step(self):
        self.first += 1
        self.third: int = 3
        self.part.other = other.fourth = 4
"""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    assert attributes_set(classes["Base"], classes) == {"first", "second"}
    assert attributes_set(classes["Machine"], classes) == {"first", "second", "third"}
    assert methods_defined(classes["Machine"], classes) == {"__init__", "step"}
