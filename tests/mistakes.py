"""Lists the small mistakes that a person could make in a Python file, and applies one of them to its source."""

from __future__ import annotations

import ast
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
PAIRS = (("min", "max"), ("amin", "amax"), ("minimum", "maximum"), ("any", "all"))
NAMED = dict([*PAIRS, *((b, a) for a, b in PAIRS)])
NO_SWAP = (
    "isinstance",
    "issubclass",
    "hasattr",
    "getattr",
    "setattr",
    "equal",
    "suppress",
    *NAMED,
)  # functions whose first two arguments are not swapped: that would always fail, or change nothing
SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)  # nodes that compute nothing
UNREAD = ("annotation", "returns", "decorator_list", "type_params")


@dataclasses.dataclass(frozen=True)
class Mistake:
    file: str  # path relative to src/anyformer
    first: int  # lines
    last: int
    start: int  # bytes
    end: int
    old: str
    new: str
    line: str  # the original first line

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.line, self.old, self.new

    def __str__(self) -> str:
        return f"{self.file}:{self.first}: {' '.join(self.old.split())}  ->  {self.new}"

    def put_into(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def function(self, source: bytes, path: Path) -> types.CodeType | None:
        """Return the code of the function that contains the mistake, compiled with it for the module at `path`. None if
        the mistake is not in the body of a function (module level, class level or a default value)."""
        for node in functions(ast.parse(source).body):
            if node.lineno < node.body[0].lineno <= self.first and self.last <= node.end_lineno:
                first = min(each.lineno for each in (node, *node.decorator_list))
                made = codes(compile(self.put_into(source), str(path), "exec"))
                return next(code for code in made if (code.co_name, code.co_firstlineno) == (node.name, first))
        return None

    def definitions(self, source: bytes) -> set[str]:
        """Names of the functions and classes that contain the mistake; for the module of a Part, the Part's name."""
        kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
        around = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
        names = {node.name for node in around if node.lineno <= self.first and self.last <= node.end_lineno}
        return {name.removesuffix("Module") for name in names - {"__init__", "forward"}}


def mistakes(file: str, source: bytes) -> list[Mistake]:
    lines = source.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    found = []
    for node in computing_nodes(ast.parse(source)):
        start, end = begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset
        old, line = source[start:end].decode(), lines[node.lineno - 1].decode().strip()
        for new in replacements(node):
            found.append(Mistake(file, node.lineno, node.end_lineno, start, end, old, new, line))
    return found


def functions(body: list[ast.stmt]) -> Iterator[Any]:
    """Yield the functions of a module and the methods of its classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from codes(each)


def computing_nodes(node: ast.AST) -> Iterator[Any]:
    """Yield the nodes that affect the result: no types, messages or docstrings."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNREAD and not isinstance(child, SILENT):
                if hasattr(child, "lineno"):
                    yield child
                yield from computing_nodes(child)


def replacements(node: Any) -> Iterator[str]:
    """Yield wrong code that could replace a node."""

    def with_values(change: Callable[[Any], Any]) -> str:
        twin = copy.deepcopy(node)
        text = ast.unparse(change(twin) or twin)
        return f"({text})" if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare) else text

    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield with_values(lambda n, i=i, op=op: n.ops.__setitem__(i, COMPARED[type(op)]()))
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        if not any(isinstance(n, ast.JoinedStr) or isinstance(getattr(n, "value", 0), str) for n in ast.walk(node)):
            yield with_values(lambda n: setattr(n, "op", COMPUTED[type(n.op)]()))
    elif isinstance(node, ast.BoolOp):
        yield with_values(lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = node.value
        yield repr(not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2 or 1.0)
    elif isinstance(node, ast.Call):
        where = "id" if isinstance(node.func, ast.Name) else "attr"
        name = getattr(node.func, where, "")
        if name in NAMED:
            yield with_values(lambda n: setattr(n.func, where, NAMED[name]))
        first = [ast.unparse(n) for n in node.args[:2] if not isinstance(n, ast.Starred)]
        if len(set(first)) == 2 and name not in NO_SWAP:
            yield with_values(lambda n: n.args.__setitem__(slice(2), n.args[1::-1]))
    elif isinstance(node, ast.AugAssign | ast.Break | ast.Continue) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "pass"
