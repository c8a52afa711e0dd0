"""How every kernel here is compiled (without the GIL, IEEE arithmetic), kept on disk, and shared out over threads.

Machine code is found by the content of the sources it was compiled from. Numba keeps one folder for each path of a
source file and discards what is there when that one file changes. So every clone and every environment compiles again,
and machine code outlives a change of a function that was inlined into it from another file. Its setting
``CACHE_LOCATOR_CLASSES`` (environment variable ``NUMBA_CACHE_LOCATOR_CLASSES``) lets others say where the code of a
function is kept. Here it is a folder named after a digest of the function's module and of all modules of this folder
which that one imports, in ``NUMBA_CACHE_DIR`` or else in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import llvmlite.ir as ir
import numba
import numba.core.config
from numba.core import cgutils, config
from numba.core.caching import FunctionCache, UserProvidedCacheLocator, UserWideCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys
from numba.extending import intrinsic

from implicitsolve._typing import Array

STATIC = 8  # block sizes up to this one are compiled for their size; measured: no gain above


def supports(like: Array, **sizes: Any) -> bool:
    """Which arrays compiled kernels take."""
    return like.dtype.char in "fdFD" and like.dtype.isnative


def supports_real(like: Array, **sizes: Any) -> bool:
    """The same for kernels of real numbers."""
    return like.dtype.char in "fd" and like.dtype.isnative


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` for the types it is called with, and keep the machine code on disk."""
    return compiled(function, nogil=True, error_model="numpy", no_cfunc_wrapper=True)


def kernel_of_lanes(function: Callable[..., Any]) -> Any:
    """Compile `function` without unrolling its loops: it compiles in 0.85 of the time and runs in 0.9 to 1.0."""
    return compiled(function, _Short, nogil=True, error_model="numpy", no_cfunc_wrapper=True)


def inner(function: Callable[..., Any], **options: Any) -> Any:
    """Compile `function` for calls from kernels only: its machine code becomes part of theirs."""
    njit: Any = numba.njit  # its stubs lack the last two options
    return njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile `function` into its callers, so that loops with bounds known there unroll: up to 40 % of a block LU."""
    return inner(function, forceinline=True)


_intrinsic: Any = intrinsic  # what it decorates takes one argument less


def static_size(k: int) -> tuple[int, ...]:
    """Block size as the length of a tuple, known at compile time; () is a size known only at run time."""
    return (0,) * k if k <= STATIC else ()


def llvm(builder: Any, name: str, *values: Any) -> Any:
    """Call LLVM's intrinsic `name` on numbers, or vectors of them, of one type."""
    kind = values[0].type
    is_vector = isinstance(kind, ir.VectorType)
    suffix = f"v{kind.count}{kind.element.intrinsic_name}" if is_vector else kind.intrinsic_name
    function = ir.FunctionType(kind, [kind] * len(values))
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.{suffix}"), values)


@_intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` for three numbers of one type, or lanes, in one instruction where the processor has it."""

    def fused(builder: Any, *values: Any) -> Any:
        return llvm(builder, "fmuladd", *values)

    def real(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return fused(builder, *values)

    def complex_(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y, z = (context.make_complex(builder, a, value=value) for value in values)
        out = context.make_complex(builder, a)
        out.real = fused(builder, builder.fneg(x.imag), y.imag, fused(builder, x.real, y.real, z.real))
        out.imag = fused(builder, x.imag, y.real, fused(builder, x.real, y.imag, z.imag))
        return out._getvalue()

    return a(a, a, a), complex_ if isinstance(a, numba.types.Complex) else real


@inner
def magnitude(x: Any) -> Any:
    """|Re x| + |Im x|: what LAPACK compares pivots by, and cheaper than the modulus."""
    return abs(x.real) + abs(x.imag)


@_intrinsic
def borrowed(typing_context: Any, array: Any) -> Any:
    """The same array without a reference count, for arguments of a kernel: the caller keeps them.

    Never for an array that the kernel itself made: it would be freed after its last use under its own name.

    Counts are atomic, and every call and every row of an array changes one. Threads that share an array would wait for
    each other: measured 20 % of a Newton solve on one thread, and all that the second thread gains.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out = context.make_array(array)(context, builder, value=values[0])
        out.meminfo = ir.Constant(out.meminfo.type, None)
        out.parent = ir.Constant(out.parent.type, None)
        return out._getvalue()

    return array(array), generate


@_intrinsic
def row_pointer(typing_context: Any, array: Any, row: Any) -> Any:
    """C pointer to a row of a C-contiguous matrix, without the view and the checks of ``array[row].ctypes``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        matrix = context.make_array(array)(context, builder, value=values[0])
        columns = builder.extract_value(matrix.shape, 1)
        return builder.gep(matrix.data, [builder.mul(values[1], columns)])

    return numba.types.CPointer(array.dtype)(array, numba.types.intp), generate


LEAST = 2_000_000  # operations below which starting threads costs more than they save


def share(function: Callable[[slice], Any], items: int, operations: float, pieces: int = 1) -> None:
    """Call ``function(slice)`` for slices that make up ``range(items)``: on one thread unless it is much work.

    Each thread gets `pieces` slices, more than one where the cost of items may vary widely. Results do not depend on
    the number of threads, since no item depends on another. NUMBA_NUM_THREADS limits them.
    """
    threads = min(getattr(config, "NUMBA_NUM_THREADS", 1), items) if operations >= LEAST else 1
    if threads <= 1:
        function(slice(0, items))
        return
    count = min(items, threads * pieces)
    edges = [items * i // count for i in range(count + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, map(slice, edges[:-1], edges[1:])))


# Machine code on disk


LOGGER = logging.getLogger("implicitsolve")
NOTABLE = 1.0  # seconds of compilation in this process after which the log says so, once
ROOT = Path(__file__).parents[3]
IMPORT = re.compile(r"^from (implicitsolve[\w.]*) import", re.MULTILINE)
KEPT = 4  # versions of one module: what a developer with a few branches returns to


def sources(file: Path, root: Path = ROOT) -> set[Path]:
    """`file`, the modules of its folder that it imports, directly or not, and the others that these import directly.

    The latter matter for their constants, which Numba compiles in.
    """
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if path.parent == file.parent:
            modules = (root.joinpath(*name.split(".")) for name in IMPORT.findall(path.read_text(encoding="utf-8")))
            waiting += (m / "__init__.py" if m.is_dir() else m.with_suffix(".py") for m in modules)
    return found


@functools.cache
def digest(file: Path, root: Path = ROOT) -> str:
    """Digest of all that the machine code of the functions in `file` depends on, wherever the package is installed."""
    state = hashlib.sha256(numba.__version__.encode())
    for path in sorted(sources(file, root)):
        content = path.read_bytes()
        state.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return state.hexdigest()[:16]


class _ByContent:
    """The part of one of Numba's locators that names a function's folder, and what must not have changed."""

    _py_file: str

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        file = Path(py_file)
        return f"implicitsolve/{file.stem}-{digest(file)}"

    def get_source_stamp(self) -> bytes:
        return digest(Path(self._py_file)).encode()

    def ensure_cache_path(self) -> None:
        locator = cast("Any", super())
        folder = Path(cast("Any", self).get_cache_path())
        is_new = not folder.exists()
        locator.ensure_cache_path()
        if is_new:
            versions = folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*")
            for old in sorted(versions, key=lambda path: path.stat().st_mtime)[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)


class InGivenFolder(_ByContent, UserProvidedCacheLocator):
    """Where ``NUMBA_CACHE_DIR`` says."""


class InUsersFolder(_ByContent, UserWideCacheLocator):
    """In the user's cache folder."""


class _Kept(FunctionCache):
    """Load machine code without what only compilation needs: Numba's tables of types and functions take 0.15 s."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        own = cast("Any", self)
        with own._guard_against_spurious_io_errors():
            return own._load_overload(sig, target_context)


def compiled(function: Callable[..., Any], library: Any = None, **options: Any) -> Any:
    """``numba.njit`` of `function`, kept on disk where a folder can be written; long compilation is logged."""
    dispatcher = cast("Any", numba.njit(**options)(function))
    config = cast("Any", numba.core.config)
    before = config.CACHE_LOCATOR_CLASSES
    own = ",".join(f"{locator.__module__}.{locator.__name__}" for locator in (InGivenFolder, InUsersFolder))
    config.CACHE_LOCATOR_CLASSES = own
    with contextlib.suppress(RuntimeError):  # no folder can be written
        dispatcher._cache = _Kept(function)
    config.CACHE_LOCATOR_CLASSES = before
    dispatcher.compile = functools.partial(_timed, dispatcher, library or _Linked, dispatcher.compile)
    return dispatcher


# Compilation of what is linked


class _Linked(JITCodeLibrary):
    """Code that is optimized and turned into machine code where it is called from outside, else as part of its callers.

    Numba does both for every function, and then again in each of its callers: half of the time that `newton_batch` took
    to compile.
    """

    def finalize(self) -> None:
        """Link, and no more."""
        own = cast("Any", self)
        own._raise_if_finalized()
        for library in dict.fromkeys(own._linking_libraries):
            own._reload_init.update(library._reload_init)
            own._final_module.link_in(library._get_module_for_linking(), preserve=True)
        own._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Address of a function that Python calls, and 0 for others."""
        own = cast("Any", self)
        own._ensure_finalized()
        if not self._has_machine_code(name):
            if not any(function.name == name for function in own._final_module.functions):
                return 0
            own._optimize_final_module()
            own._final_module.verify()
            own._finalize_final_module()
        return own._codegen._engine.get_function_address(name)

    @property
    def codegen(self) -> Any:
        """What `set_env` is called on."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Tell the machine code, if there is any, its environment."""
        if self._has_machine_code(name):
            cast("Any", self)._codegen.set_env(name, environment)

    def _has_machine_code(self, name: str) -> bool:
        return cast("Any", self)._codegen._engine.is_symbol_defined(name)


class _Short(_Linked):
    """The same without unrolled loops."""

    def add_ir_module(self, ir_module: Any) -> None:
        """Have LLVM prefer short code."""
        for function in ir_module.functions:
            if not function.is_declaration:
                function.attributes.add("optsize")
        cast("Any", super()).add_ir_module(ir_module)


@dataclass
class Compilation:
    """What this process has compiled."""

    kernels: int = 0
    seconds: float = 0.0
    is_logged: bool = False

    def add(self, seconds: float) -> None:
        """Count a kernel; the first time that they took long, log it."""
        self.kernels, self.seconds = self.kernels + 1, self.seconds + seconds
        if self.seconds > NOTABLE and not self.is_logged:
            self.is_logged = True
            LOGGER.warning(
                "implicitsolve compiles kernels, %.1f s so far: once for each dtype and block size, then they are kept "
                "on disk. `python -m implicitsolve compile` does it in advance.",
                self.seconds,
            )


compilation: Compilation = Compilation()


def _timed(dispatcher: Any, library: Any, compile_for: Callable[[Any], Any], signature: Any) -> Any:
    """Compile for a signature, or load from disk, which is not counted."""
    loaded, start = dispatcher.stats.cache_hits.total(), time.perf_counter()
    codegen = dispatcher.targetctx.codegen()
    with global_compiler_lock:
        before, collects = codegen._library_class, gc.isenabled()
        codegen._library_class = library
        gc.disable()  # saves an eighth of the time: a compiler's data live until it is done
        try:
            entry = compile_for(signature)
        finally:
            codegen._library_class = before
            if collects:
                gc.enable()
    if dispatcher.stats.cache_hits.total() == loaded:
        compilation.add(time.perf_counter() - start)
    return entry
