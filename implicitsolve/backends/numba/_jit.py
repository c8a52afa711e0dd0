"""How every kernel here is compiled (without the GIL, IEEE arithmetic), kept on disk, and shared out over threads.

Machine code is found by the content of the sources it was compiled from. Numba keeps one folder for each path of a
source file and discards what is there when that one file changes. So every clone and every environment compiles again,
and machine code outlives a change of a function that was inlined into it from another file. Its setting
``CACHE_LOCATOR_CLASSES`` (environment variable ``NUMBA_CACHE_LOCATOR_CLASSES``) lets others say where the code of a
function is kept. Here it is a folder named after a digest of the function's module and of all modules of this folder
which that one imports, in ``NUMBA_CACHE_DIR`` or else in the user's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import math
import operator
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import llvmlite.ir as ir
import numba
import numba.core.config
import numpy as np
from numba.core import cgutils, config, typed_passes, types, untyped_passes
from numba.core.caching import FunctionCache, UserProvidedCacheLocator, UserWideCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime.nrt import rtsys
from numba.extending import intrinsic

from implicitsolve._typing import Array

STATIC = 8  # block sizes up to this one are compiled for their size; measured: no gain above
ZERO = np.int64(0)  # not a literal: Numba would compile a callee of its own for it


def supports(like: Array, **sizes: Any) -> bool:
    """Which arrays compiled kernels take."""
    return like.dtype.char in "fdFD" and like.dtype.isnative


def supports_real(like: Array, **sizes: Any) -> bool:
    """The same for kernels of real numbers."""
    return like.dtype.char in "fd" and like.dtype.isnative


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` for the types it is called with, and keep the machine code on disk."""
    return compiled(function, nogil=True, error_model="numpy", no_cfunc_wrapper=True, pipeline_class=_Lean)


IDLE = (
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.DeadBranchPrune,
    untyped_passes.RewriteDynamicRaises,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
    typed_passes.NoPythonSupportedFeatureValidation,
)  # kernels have no closures, array expressions, branches on None


class _Part(JITCodeLibrary):
    """LLVM code of a function that only kernels call: it is optimized, and turned into machine code, in these alone."""

    def finalize(self) -> None:
        own = cast("Any", self)
        for library in dict.fromkeys(own._linking_libraries):
            own._reload_init.update(library._reload_init)
            own._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """Numba's, but that no machine code waits for the function's environment."""
        return _NoEnvironment(self._codegen)


class _NoEnvironment:
    def __init__(self, codegen: Any) -> None:
        self.create_library = codegen.create_library

    def set_env(self, name: str, environment: Any) -> None:
        pass


class _Lean(Compiler):
    """Numba's compiler without the passes that change nothing in kernels, but read every statement of each."""

    def define_pipelines(self) -> Any:
        managers = cast("Any", super().define_pipelines())
        for manager in managers:
            manager.passes = [entry for entry in manager.passes if entry[0] not in IDLE]
        return managers


class _Inner(_Lean):
    """The same with a `_Part` as the result."""

    def define_pipelines(self) -> Any:
        state = cast("Any", self).state
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


def inner(function: Callable[..., Any], **options: Any) -> Any:
    """Compile `function` for calls from kernels only: its code becomes part of theirs."""
    options = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True} | options
    return cast("Any", numba.njit)(pipeline_class=_Inner, **options)(function)


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

    return a(a, a, a), complex_ if isinstance(a, types.Complex) else real


@_intrinsic
def reciprocal(typing_context: Any, a: Any) -> Any:
    """``1 / a`` without a branch; not finite where a is zero, for which Numba's complex division raises."""

    def real(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fdiv(ir.Constant(values[0].type, 1.0), values[0])

    def complex_(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, out = context.make_complex(builder, a, value=values[0]), context.make_complex(builder, a)
        largest = llvm(builder, "maxnum", *(llvm(builder, "fabs", part) for part in (x.real, x.imag)))
        unit = real(context, builder, signature, [largest])
        re, im = builder.fmul(x.real, unit), builder.fmul(x.imag, unit)
        scale = builder.fdiv(unit, builder.fadd(builder.fmul(re, re), builder.fmul(im, im)))
        out.real, out.imag = builder.fmul(re, scale), builder.fneg(builder.fmul(im, scale))
        return out._getvalue()

    return a(a), complex_ if isinstance(a, types.Complex) else real


@inner
def magnitude(x: Any) -> Any:
    """|Re x| + |Im x|: what LAPACK compares pivots by, and cheaper than the modulus."""
    return abs(x.real) + abs(x.imag)


LEAST = 2_000_000  # operations below which waking threads costs more than they save
_part: threading.local = threading.local()  # of which thread: whether it runs a slice


def share(
    function: Callable[[slice], Any], items: int, operations: float, pieces: int = 1, most: float = math.inf
) -> list[Any]:
    """Return ``function(slice)`` of slices that make up ``range(items)``: on one thread unless it is much work.

    Each thread gets `pieces` slices, more than one where the cost of items may vary widely. Results do not depend on
    the number of threads, since no item depends on another. NUMBA_NUM_THREADS and `most` limit them, the calling one
    included; what a slice calls uses its thread alone. Of exceptions, that of the first slice is raised: threads
    take slices in order, and finish what they took.
    """
    threads = int(min(getattr(config, "NUMBA_NUM_THREADS", 1), items, most)) if operations >= LEAST else 1
    if threads <= 1 or getattr(_part, "is_running", False):
        return [function(slice(0, items))]

    count = min(items, threads * pieces)
    edges = [items * i // count for i in range(count + 1)]
    waiting, found = enumerate(itertools.pairwise(edges)), [None] * count
    errors: list[tuple[int, BaseException]] = []

    def run() -> None:
        _part.is_running = True
        for i, edge in waiting:
            try:
                found[i] = function(slice(*edge))
            except BaseException as error:  # noqa: BLE001 - the calling thread raises it
                errors.append((i, error))
                break
        _part.is_running = False

    others = [_pool(threads - 1).submit(run) for _ in range(threads - 1)]
    run()
    wait(others)
    if errors:
        raise min(errors, key=operator.itemgetter(0))[1]
    return found


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


if hasattr(os, "register_at_fork"):  # threads stay behind in the parent
    os.register_at_fork(after_in_child=_pool.cache_clear)


# Machine code on disk


LOGGER = logging.getLogger("implicitsolve")
NOTABLE = 1.0  # seconds of compilation in this process after which the log says so, once
ROOT = Path(__file__).parents[3]
IMPORT = re.compile(r"^from (implicitsolve[\w.]*) import", re.MULTILINE)
KEPT = 4  # versions of one module: what a developer with a few branches returns to
MOST = 200  # functions of users, of some 20 kB each


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


class Kept(FunctionCache):
    """Load machine code without what only compilation needs: Numba's tables of types and functions take 0.15 s.

    With a `key` the code of a user's function is found by that alone, and all of it is removed from time to time.
    """

    def __init__(self, function: Any, key: str) -> None:
        super().__init__(function)
        self.key = key
        self.failed = Path(self.cache_path) / f"{key}.nbn"  # is there where the function does not compile

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        own = cast("Any", self)
        with own._guard_against_spurious_io_errors():
            return own._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        files = list(Path(self.cache_path).glob("*.nb?")) if self.key else []
        for file in files if len(files) > MOST else []:
            file.unlink(missing_ok=True)
        super().save_overload(sig, data)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        if self.key:
            return sig, codegen.magic_tuple(), self.key
        return cast("Any", super())._index_key(sig, codegen)


def kept(function: Callable[..., Any], key: str = "") -> Any:
    """Where the machine code of a function is, or None where no folder can be written."""
    config = cast("Any", numba.core.config)
    before = config.CACHE_LOCATOR_CLASSES
    own = ",".join(f"{locator.__module__}.{locator.__name__}" for locator in (InGivenFolder, InUsersFolder))
    config.CACHE_LOCATOR_CLASSES = own
    try:
        return Kept(function, key)
    except RuntimeError:
        return None
    finally:
        config.CACHE_LOCATOR_CLASSES = before


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """``numba.njit`` of `function`, kept on disk where a folder can be written; long compilation is logged."""
    dispatcher = cast("Any", numba.njit(**options)(function))
    dispatcher._cache = kept(function) or dispatcher._cache
    dispatcher.compile = functools.partial(_timed, dispatcher, dispatcher.compile)
    return dispatcher


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


def _timed(dispatcher: Any, compile_for: Callable[[Any], Any], signature: Any) -> Any:
    """Compile for a signature, or load from disk, which is not counted."""
    loaded, start = dispatcher.stats.cache_hits.total(), time.perf_counter()
    entry = compile_for(signature)
    if dispatcher.stats.cache_hits.total() == loaded:
        compilation.add(time.perf_counter() - start)
    return entry
