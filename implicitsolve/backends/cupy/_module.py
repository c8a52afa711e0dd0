"""CUDA sources: read from their files, compiled when a kernel is first launched, once for each set of constants."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import cupy

FOLDER = Path(__file__).parent / "cuda"
INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
C_TYPES = {"f": "float", "d": "double"}
WARP = 32  # threads, on every device of NVIDIA
THREADS = 128  # of a block of independent threads: small arrays still reach many multiprocessors
MOST_GRID = 2**20  # blocks along the first axis, whose threads take several entries each where there are more
MOST_BLOCKS = 65535  # along the second and third axis of a grid
SHARED_BYTES = 48 * 1024  # bytes of shared memory that any kernel may have


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
    """Compiler options: Real is the type with this character code, and the constants are macros.

    Products and sums are contracted only where a source says `fma`: one formula rounds alike in every kernel.
    """
    macros = (f"-D{name}={value}" for name, value in sorted(constants.items()))
    return ("-std=c++17", "--fmad=false", f"-DReal={C_TYPES[char]}", *macros)


@cache
def _module(name: str, char: str, constants: tuple[tuple[str, int], ...]) -> Any:
    return cupy.RawModule(code=source(name), options=options(char, dict(constants)))


@cache
def _kernel(
    name: str, function: str, char: str, constants: tuple[tuple[str, int], ...], device: int | None = None
) -> Any:
    """A kernel for any device, or for one device with all the shared memory that is granted only on demand.

    The limit belongs to the function on the device, which later launches share, with more memory or less.
    """
    kernel = _module(name, char, constants).get_function(function)
    if device is not None:
        kernel.max_dynamic_shared_size_bytes = _limits(device)[1]
    return kernel


@cache
def _limits(device: int) -> tuple[int, int]:
    attributes = cupy.cuda.Device(device).attributes
    return attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerBlockOptin"]


def limits() -> tuple[int, int]:
    """Multiprocessors of the present device, and bytes of shared memory that a block may have there."""
    return _limits(cupy.cuda.runtime.getDevice())


Sizes: TypeAlias = int | tuple[int, ...]


def launch(
    name: str, function: str, grid: Sizes, block: Sizes, arguments: tuple[Any, ...], shared: int = 0, **constants: int
) -> None:
    """Launch a kernel on the current stream: one of the ``extern "C" __global__`` functions of a file of `FOLDER`.

    ``Real`` in the source is the precision of the first array of real numbers, and `constants` are its macros. Where a
    grid is empty there is nothing to do. Of the arguments, arrays become pointers, and int ``long long``; everything
    else must be a NumPy scalar of exactly the type. `shared` are bytes of dynamic shared memory.
    """
    grid, block = (size if isinstance(size, tuple) else (size,) for size in (grid, block))
    if not all(grid):
        return
    char = next(x.dtype.char for x in arguments if is_real(x))
    key = name, function, char, tuple(sorted(constants.items()))
    kernel = _kernel(*key) if shared <= SHARED_BYTES else _kernel(*key, cupy.cuda.runtime.getDevice())
    kernel(grid, block, arguments, shared_mem=shared)


def launch_each(name: str, function: str, count: int, arguments: tuple[Any, ...], **constants: int) -> None:
    """Launch a kernel with a thread for each of so many numbers."""
    launch(name, function, -(-count // THREADS), THREADS, arguments, **constants)


def is_real(like: Any, **case: Any) -> bool:
    return isinstance(like, cupy.ndarray) and like.dtype.char in "fd"


def dense(x: Any) -> Any:
    """The array, or a copy, in which the numbers of a row are adjacent."""
    return x if x.shape[-1] <= 1 or x.strides[-1] == x.itemsize else cupy.ascontiguousarray(x)


def strides(x: Any) -> tuple[int, ...]:
    return tuple(stride // x.itemsize for stride in x.strides)


def matrix(x: Any) -> tuple[Any, int, int]:
    """An array of rows: pointer, and the strides of sequences and of positions, in numbers."""
    x = dense(x)
    size, (*steps, _) = x.itemsize, x.strides
    return x, steps[0] // size if len(steps) > 1 else 0, steps[-1] // size
