"""What can be changed in a source file, one place at a time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Break: (ast.Continue,),
    ast.Continue: (ast.Break,),
}
NAMES = {"min": "max", "minimum": "maximum", "any": "all", "zeros": "ones", "zeros_like": "ones_like"}
NAMES |= {there: here for here, there in NAMES.items()}
# Functions whose strings appear in error messages only.
NAMES_FOR_MESSAGES = re.compile(
    r"_?check|as_inexact|is_settings|as_operator|guarded|_needs|_returned|_fits|_shape|_apply|halves_of|warn"
)


@dataclass(slots=True)
class Place:
    """Where a node of the tree is: `owner` has it at `key`."""

    owner: Any
    key: Any
    statement: ast.stmt  # the innermost one around it
    in_function: bool = False  # in a function's body, which can be exchanged while the package is loaded
    in_message: bool = False


@dataclass(slots=True)
class Change:
    """Put `new` in the place of what `owner` has at `key`."""

    kind: str
    owner: Any
    key: Any
    new: Any
    place: Place

    def apply(self) -> None:
        """Change the tree."""
        if isinstance(self.owner, list):
            self.owner[self.key] = self.new
        else:
            setattr(self.owner, self.key, self.new)

    def lines(self) -> tuple[int, int]:
        """First and last line of the statement, of its head if it has a body."""
        statement: Any = self.place.statement
        first = min([statement.lineno, *(node.lineno for node in getattr(statement, "decorator_list", []))])
        body = getattr(statement, "body", None)
        return first, max(first, body[0].lineno - 1) if body else statement.end_lineno


def changes(tree: ast.Module) -> Iterator[Change]:
    """Every change of a module, in the order of its lines."""
    for node, place in _walk(tree, Place(None, None, tree.body[0])):
        for kind, owner, key, new in _changes_of(node, place):
            message = place.in_message or (kind == "string" and " " in node.value)
            yield Change("message" if message else kind, owner, key, new, place)


def _walk(node: Any, place: Place) -> Iterator[tuple[Any, Place]]:
    yield node, place
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        listed = isinstance(value, list)
        for key, child in enumerate(value) if listed else [(name, value)]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                inner = Place(
                    owner=value if listed else node,
                    key=key,
                    statement=child if isinstance(child, ast.stmt) else place.statement,
                    in_function=place.in_function or (name == "body" and isinstance(node, ast.FunctionDef)),
                    in_message=place.in_message or _is_message(node, child),
                )
                yield from _walk(child, inner)


def _is_message(node: ast.AST, child: ast.AST) -> bool:
    """Whether a child of `node` serves an error message only."""
    match node:
        case ast.Raise() | ast.JoinedStr():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return (
                isinstance(child, ast.Constant)
                and isinstance(child.value, str)
                and bool(NAMES_FOR_MESSAGES.match(name))
            )
        case _:
            return False


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):  # the last is a docstring
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.ClassDef(bases=[ast.Name(id="Protocol"), *_]):  # nothing of it runs
            return True
        case ast.FunctionDef(name="__repr__" | "__str__") | ast.Call(func=ast.Name(id="cast" | "TypeVar" | "NewType")):
            return True
        case _:
            return False


def _changes_of(node: Any, place: Place) -> Iterator[tuple[str, Any, Any, Any]]:
    """Kind, owner, key and what to put there, for all changes of one node itself."""
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for new in SWAPS[type(operator)]:
                    yield "comparison", node.ops, index, new()
        case ast.BinOp() | ast.BoolOp():
            for new in SWAPS.get(type(node.op), ()):
                yield "operator", node, "op", new()
        case ast.AugAssign():
            yield "deletion", place.owner, place.key, ast.Pass()
            for new in SWAPS.get(type(node.op), ()):
                yield "operator", node, "op", new()
        case ast.UnaryOp():
            yield "sign or not", place.owner, place.key, node.operand
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, (ast.Compare, ast.UnaryOp, ast.BoolOp)):
            yield "condition", node, "test", ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool()):
            yield "constant", node, "value", not node.value
        case ast.Constant(value=int()):
            # x[-1] is x[0] where there is one number, and any negative number is -1 in a shape: these say nothing
            if not (isinstance(place.owner, ast.UnaryOp) and node.value == 1):
                yield "constant", node, "value", node.value + 1
            if not (isinstance(place.owner, ast.Subscript) and node.value == 0):
                yield "constant", node, "value", node.value - 1
        case ast.Constant(value=float()):
            yield "constant", node, "value", node.value + 1
            if node.value:
                yield "constant", node, "value", node.value / 2
        case ast.Constant(value=str()):
            yield "string", node, "value", "warn" if node.value == "ignore" else f"{node.value}X"  # np.errstate
        case ast.Name(id=name) if name in NAMES and isinstance(place.owner, ast.Call) and place.key == "func":
            yield "name", node, "id", NAMES[name]
        case ast.Attribute(attr=name) if name in NAMES and isinstance(place.owner, ast.Call) and place.key == "func":
            yield "name", node, "attr", NAMES[name]
        case ast.Return() if not isinstance(node.value, (ast.Constant, type(None))):
            yield "return", node, "value", None
        case ast.Expr() | ast.Raise():
            yield "deletion", place.owner, place.key, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "deletion", place.owner, place.key, ast.Pass()
        case ast.Break() | ast.Continue():
            yield "jump", place.owner, place.key, SWAPS[type(node)][0]()
        case _:
            pass
