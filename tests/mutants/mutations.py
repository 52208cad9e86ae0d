"""Small changes of a module's syntax tree, each a bug that tests should notice.

A mutant is named by its file, function, operator, the text before and after, and by how many like
it come before it in that function. So it stays the same mutant when other lines move.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

OPERATORS: dict[str, type[ast.AST]] = {
    **dict(Lt=ast.LtE, LtE=ast.Lt, Gt=ast.GtE, GtE=ast.Gt, Eq=ast.NotEq, NotEq=ast.Eq),
    **dict(Is=ast.IsNot, IsNot=ast.Is, In=ast.NotIn, NotIn=ast.In, And=ast.Or, Or=ast.And),
    **dict(Add=ast.Sub, Sub=ast.Add, Mult=ast.FloorDiv, Div=ast.Mult, FloorDiv=ast.Mult),
    **dict(Mod=ast.FloorDiv, LShift=ast.RShift, RShift=ast.LShift),
    **dict(BitAnd=ast.BitOr, BitOr=ast.BitAnd, BitXor=ast.BitAnd),
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What does not change behaviour, or is promised to nobody: types and the wording of errors.
SKIPPED = ("annotation", "returns", "decorator_list", "exc", "msg")
REMOVED = (ast.Raise, ast.Delete, ast.Break, ast.Continue, ast.AugAssign)


class Mutant(NamedTuple):
    path: str
    function: str
    operator: str
    before: str
    after: str
    nth: int


class Site(NamedTuple):
    """Where a mutant is in a tree: a child of `parent`, and what replaces it."""

    parent: ast.AST
    field: str
    place: int | None  # in a list of children
    new: ast.AST
    lines: range  # of the statement; of a compound statement its head

    def swap(self) -> "Site":
        """Put the change into the tree; the result puts back what stood there."""
        children = getattr(self.parent, self.field)
        if self.place is None:
            setattr(self.parent, self.field, self.new)
            return self._replace(new=children)
        old, children[self.place] = children[self.place], self.new
        return self._replace(new=old)


def find_mutants(path: str, tree: ast.Module) -> dict[Mutant, Site]:
    """Every mutant of the module at `path`, also those that leave the bytecode as it is."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    mutants = {}
    for function, operator, site in list(_walk(tree, "", range(0))):
        original = site.swap()
        is_part = isinstance(site.new, ast.operator | ast.cmpop | ast.boolop)  # of an expression
        after = _head(site.parent if is_part else site.new)
        original.swap()
        before = _head(site.parent if is_part else original.new)
        name = (function, operator, before, after)
        mutants[Mutant(path, *name, nth=counts[name])] = site
        counts[name] += 1
    return mutants


def bytecode(tree: ast.Module) -> object:
    """What a module does, without its line numbers; None where it is no program."""
    try:
        return _comparable(compile(ast.unparse(tree), "", "exec"))
    except SyntaxError:
        return None


def _comparable(code: CodeType) -> object:
    constants = [_comparable(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames


def _head(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _walk(node: ast.AST, scope: str, lines: range) -> Iterator[tuple[str, str, Site]]:
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if field in SKIPPED or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            child_lines, child_scope = lines, scope
            if isinstance(child, ast.stmt):
                body = getattr(child, "body", None)
                last = body[0].lineno - 1 if body else child.end_lineno or child.lineno
                child_lines = range(child.lineno, max(child.lineno, last) + 1)
            for operator, new in _changes(child):
                yield scope, operator, Site(node, field, index, new, child_lines)
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                child_scope = f"{scope}.{child.name}" if scope else child.name
            yield from _walk(child, child_scope, child_lines)


def _changes(node: Any) -> Iterator[tuple[str, ast.AST]]:
    if (kind := type(node).__name__) in OPERATORS:
        yield "operator", OPERATORS[kind]()
    match node:
        case ast.UnaryOp(operand=operand):
            yield "unary", operand
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in CALLS:
            yield "call", ast.Call(ast.Name(CALLS[name]), arguments, keywords)
        case ast.Call(function, [first, second, *others], keywords):
            yield "arguments", ast.Call(function, [second, first, *others], keywords)
        case ast.IfExp(test, body, orelse):
            yield "condition", ast.IfExp(test, orelse, body)
        case ast.If(test, body, orelse):
            yield "condition", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Return(value) if value is not None:
            yield "return", ast.Return(None)
        case ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
    if isinstance(node, REMOVED):
        yield "statement", ast.Pass()
