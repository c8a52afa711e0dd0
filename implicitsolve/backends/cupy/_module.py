"""CUDA sources: read from their files, compiled when a kernel is first launched, once for each set of constants."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import cupy

FOLDER = Path(__file__).parent / "cuda"
INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
REAL = {"f": "float", "d": "double"}
MOST_BLOCKS = 65535  # along the second and third axis of a grid


@cache
def source(name: str) -> str:
    """Text of a file with the files that it includes in their places: CuPy's cache of binaries sees one text."""
    seen: set[str] = set()

    def read(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (FOLDER / name).read_text()
        return INCLUDE.sub(lambda match: read(match.group(1)), text)

    return read(name)


def options(char: str, constants: dict[str, int]) -> tuple[str, ...]:
    """For the compiler: Real is the type of this character, and the constants are macros."""
    return ("-std=c++17", f"-DReal={REAL[char]}", *(f"-D{name}={value}" for name, value in sorted(constants.items())))


@cache
def _module(name: str, char: str, constants: tuple[tuple[str, int], ...]) -> Any:
    return cupy.RawModule(code=source(name), options=options(char, dict(constants)))


@cache
def _kernel(name: str, function: str, char: str, shared: int, constants: tuple[tuple[str, int], ...]) -> Any:
    kernel = _module(name, char, constants).get_function(function)
    if shared > 48 * 1024:  # beyond that only on demand
        kernel.max_dynamic_shared_size_bytes = shared
    return kernel


def launch(
    name: str,
    function: str,
    char: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arguments: tuple[Any, ...],
    shared: int = 0,
    **constants: int,
) -> None:
    """Launch a kernel on the current stream.

    Parameters
    ----------
    name, function : str
        A file of `FOLDER`, and one of its ``extern "C" __global__`` functions.
    char : {"f", "d"}
        Precision, which the source knows as ``Real``.
    grid, block : tuple of int
        Blocks, and threads of each; where a grid is empty there is nothing to do.
    arguments : tuple
        Arrays become pointers, int ``long long``; everything else must be a NumPy scalar of exactly the type.
    shared : int
        Bytes of dynamic shared memory.
    **constants
        Macros of the source, known when it is compiled.
    """
    if all(grid):
        _kernel(name, function, char, shared, tuple(sorted(constants.items())))(
            grid, block, arguments, shared_mem=shared
        )
