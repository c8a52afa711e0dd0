"""Arguments that hold tensors: tuples, lists and dicts, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, lists and mappings, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)


def replaced(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The same tree with other tensors."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, Mapping):
        return {name: replaced(value, tensors) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        values = [replaced(value, tensors) for value in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*values)
        return tuple(values) if isinstance(tree, tuple) else values
    return tree
