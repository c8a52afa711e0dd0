"""Machine code on disk, found by the content of the sources it was compiled from.

Numba keeps one folder for each path of a source file and discards what is there when that one file changes. So every
clone and every environment compiles again, and machine code outlives a change of a function that was inlined into it
from another file. Its setting ``CACHE_LOCATOR_CLASSES`` (environment variable ``NUMBA_CACHE_LOCATOR_CLASSES``) lets
others say where the code of a function is kept. Here it is a folder named after a digest of the function's module and
of all modules of this folder which that one imports, in ``NUMBA_CACHE_DIR`` or else in the user's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numba
import numba.core.config
from numba.core.caching import UserProvidedCacheLocator, UserWideCacheLocator

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


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """``numba.njit`` of `function`, kept on disk where a folder can be written; long compilation is logged."""
    config = cast("Any", numba.core.config)
    before = config.CACHE_LOCATOR_CLASSES
    own = ",".join(f"{locator.__module__}.{locator.__name__}" for locator in (InGivenFolder, InUsersFolder))
    config.CACHE_LOCATOR_CLASSES = own
    try:  # locators are chosen in the call of njit
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder can be written
        dispatcher = numba.njit(**options)(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = before
    cast("Any", dispatcher).compile = functools.partial(_timed, dispatcher, dispatcher.compile)
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
