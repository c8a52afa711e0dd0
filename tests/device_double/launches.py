"""CUDA sources compiled by g++, and kernels that run on the CPU, thread by thread."""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import re
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.device_double.account import guards_hold, note
from tests.device_double.arrays import ndarray

HERE = Path(__file__).parent
KERNEL = re.compile(r'extern "C"\s+__global__\s+void\s+(?:__launch_bounds__\(.*?\)\s*)?(\w+)\s*\(')
SCALARS = {bool: "?", int: "q", float: "d"}
launched: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []  # kernel, grid, block since the last reset
shared_sizes: dict[tuple[Any, ...], int] = {}  # limits of functions that have another than the usual one
one_at_a_time = threading.Lock()  # a library's blocks and threads are its own, while ctypes lets other threads go on
seeds = iter(range(1, 1 << 30))  # threads run in another order at each launch


@cache
def build(code: str, options: tuple[str, ...]) -> ctypes.CDLL:
    """A shared library with one entry for each kernel, kept in a folder of the machine."""
    entries = "".join(
        f'extern "C" const char* emulated_{name}(const unsigned* g, const unsigned* b, unsigned long shared, void** a, '
        f"unsigned seed) {{ return emulated::launch({name}, {{g[0], g[1], g[2]}}, {{b[0], b[1], b[2]}}, shared, a, "
        f'seed); }}\nextern "C" const char* signature_{name}() {{ return emulated::signature({name}); }}\n'
        for name in KERNEL.findall(code)
    )
    header = (HERE / "cuda_on_cpu.h").read_text()
    text = f'#include "cuda_on_cpu.h"\n{code}\n{entries}'
    flags = ("-O1", "-ffp-contract=off", "-w", *(option for option in options if not option.startswith("--")))
    key = hashlib.sha256(repr((text, header, flags)).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"implicitsolve-kernels-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "kernels.so"
            command = ["g++", "-x", "c++", "-", *flags, f"-I{HERE}", "-shared", "-fPIC", "-o", str(made)]
            run = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
            if run.returncode:
                raise RuntimeError(run.stderr[:4000])
            made.replace(library)  # at once: another process may build the same
    return ctypes.CDLL(str(library))


class RawModule:
    """`cupy.RawModule`."""

    def __init__(self, *, code: str, options: tuple[str, ...] = (), **keywords: Any):
        self.code, self.options = code, options

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self.code, name, self.options)


class RawKernel:
    """`cupy.RawKernel`, with every argument checked against the kernel's own signature."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = (), **keywords: Any):
        self.name, self._function = name, (code, options, name)
        library = build(code, options)
        self._entry, signature = getattr(library, f"emulated_{name}"), getattr(library, f"signature_{name}")
        self._entry.restype = signature.restype = ctypes.c_char_p
        self._signature = signature().decode()

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Of the function, which all kernels of its name in the same module share."""
        return shared_sizes.get(self._function, 48 * 1024)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        shared_sizes[self._function] = size

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        assert len(args) == len(self._signature) // 2, f"{self.name} takes {len(self._signature) // 2}, got {len(args)}"
        assert shared_mem <= self.max_dynamic_shared_size_bytes, f"{self.name}: shared memory beyond its limit"
        grid, block = ((*map(int, sizes), 1, 1)[:3] for sizes in (grid, block))
        assert max(grid[0] >> 15, *grid[1:]) <= 65535, f"{self.name}: grid {grid} is too large"
        assert block[0] * block[1] * block[2] <= 1024, f"{self.name}: block {block} is too large"
        cells = [self._cell(i, value) for i, value in enumerate(args)]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        sizes = [np.asarray(part, np.uint32) for part in (grid, block)]
        note(self.name)
        launched.append((self.name, grid, block))
        shared = ctypes.c_ulong(shared_mem)
        dimensions = [part.ctypes.data_as(ctypes.c_void_p) for part in sizes]
        with one_at_a_time:
            failure = self._entry(*dimensions, shared, pointers, next(seeds))
        assert failure is None, f"{self.name}: {failure.decode()}"
        for value in args:
            if isinstance(value, ndarray):
                assert guards_hold(value._host), f"{self.name} wrote beyond the end of an array"

    def _cell(self, i: int, value: Any) -> np.ndarray[Any, Any]:
        """The argument's bytes."""
        kind, letter = self._signature[2 * i : 2 * i + 2]
        where = f"{self.name}: argument {i}"
        if isinstance(value, ndarray):
            assert kind == "P", f"{where} is an array, the kernel takes a number"
            char = {"l": "q", "L": "Q"}.get(value.dtype.char, value.dtype.char)
            assert char == letter, f"{where} has dtype {value.dtype}, the kernel takes {letter!r}"
            return np.asarray([value.data.ptr], np.uint64)
        assert kind == " ", f"{where} must be an array"
        char = SCALARS[type(value)] if type(value) in SCALARS else np.asarray(value).dtype.char
        char = {"l": "q"}.get(char, char)
        assert char == letter, f"{where} is {char!r}, the kernel takes {letter!r}"
        return np.asarray([value], np.dtype(char))
