"""What a kernel is: one operation, its array-API reference, and the implementations that register from outside."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace, is_cupy_array
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.errors import BackendUnavailable

Function: TypeAlias = Any  # a function, or a class of functions
Supports: TypeAlias = Callable[..., bool]

REFERENCE = "reference"
PLUG_INS = {"numba": "implicitsolve.backends.numba", "cupy": "implicitsolve.backends.cupy"}
INSTALL = {"numba": "pip install 'implicitsolve[numba]'", "cupy": "pip install 'implicitsolve[cuda13]'"}
BACKENDS = ("auto", REFERENCE, "lapack", *PLUG_INS)


class Factors(Protocol):
    """A factored batch of B matrices of T block rows of k unknowns; what every direct kernel returns.

    Attributes
    ----------
    singular : ndarray (B,) of int
        First block in which a pivot was exactly zero, or not finite; -1 where there was none.
    growth : ndarray (B,) of float
        Largest max|U_t| max(1, max|L_t|) of any block step t, over max|A|: the entries that arise when block t is
        eliminated, times its multipliers. The backward error is at most about growth eps ||A||; 1 is ideal. Infinite
        where singular.
    nbytes : int
        Bytes held.
    """

    singular: HostArray
    growth: HostArray

    @property
    def nbytes(self) -> int: ...

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        """Return A^-1 b, or A^-H b, for b (B, T, k, K) of the factors' dtype; NaN for a singular system."""
        ...

    def take(self, indices: Indices) -> Factors:
        """Return the factors of some systems."""
        ...


class StoredFactors:
    """Factors that consist of arrays, each with the systems along its axis in `axes`."""

    axes: ClassVar[Mapping[str, int]] = {}
    singular: HostArray
    growth: HostArray

    def __init__(self, singular: HostArray, growth: HostArray, **arrays: Any) -> None:
        self.singular, self.growth = singular, growth
        self.__dict__.update(arrays)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.axes)

    def take(self, indices: Indices) -> Any:
        other = copy.copy(self)
        other.singular, other.growth = self.singular[indices], self.growth[indices]
        for name, axis in self.axes.items():
            x = getattr(self, name)
            setattr(other, name, array_namespace(x).take(x, from_host(indices, x), axis=axis))
        return other


class Kernel:
    """One operation, defined by its reference; backends register implementations that do the same, faster.

    Parameters
    ----------
    name : str
        For messages.
    reference : callable
        Works on every array library.
    pays : dict of callables, optional
        ``pays[backend](**case)`` is whether a problem of these sizes is worth that backend, without loading it.
        Only sizes decide, so that the same problem always takes the same path. Without an entry all are.
    module : str, optional
        Where our backends implement it: ``backends/numba/_<module>.py`` and ``backends/cupy/_<module>.py``, imported
        when the kernel is first selected for their arrays; a backend without that file does not implement it. The
        default is the kernel's name.

    Attributes
    ----------
    implementations : dict of str to (callable, callable)
        Each backend's function and `supports`, as far as loaded; an entry that is deleted is withdrawn.

    Notes
    -----
    Arithmetic is that of IEEE 754, without ``fastmath``: NaN and infinity are kept, and a product and a sum are
    contracted only where a source requests a fused multiply-add.

    ``select(like, **case)`` takes the first backend that is installed, supports the case and is worth loading for it.
    The order: backends of other names than the library's, the newest first; for NumPy arrays "numba" and "lapack", for
    CuPy arrays "cupy", for others those that their library names; then the reference.

    Examples
    --------
    >>> from implicitsolve.kernels import Kernel
    >>> double = Kernel("double", lambda x: x + x)
    >>> double.implement("mine", lambda x: 2 * x, lambda like, size: isinstance(like, np.ndarray) and size > 3)
    >>> double.select(np.ones(2), size=2) is double.reference, double.select(np.ones(9), size=9) is double.reference
    (True, False)
    """

    def __init__(
        self, name: str, reference: Function, pays: Mapping[str, Supports] | None = None, module: str | None = None
    ) -> None:
        self.name = name
        self.reference = reference
        self.pays: dict[str, Supports] = dict(pays or {})
        self.module: str = f"_{module or name}"
        self.implementations: dict[str, tuple[Function, Supports]] = {}

    def __repr__(self) -> str:
        """Name and implementations that have been loaded."""
        return f"<Kernel {self.name}: {', '.join((REFERENCE, *self.implementations))}>"

    def implement(self, backend: str, function: Function, supports: Supports | None = None) -> None:
        """Register what `backend` offers; ``supports(like, **case)`` tests arrays and sizes.

        A backend may have any name but "auto" and "reference". With a name that is not the library's it comes before
        the library's own, and needs `supports`, which is then called with arrays of every library.
        """
        if backend in BACKENDS[:2]:
            raise ValueError(f"Kernel.implement: `backend` must be none of {BACKENDS[:2]}, got {backend!r}")
        if backend not in BACKENDS and supports is None:
            raise TypeError(f"Kernel.implement: `supports` is needed for a backend of another name, {backend!r}")
        self.implementations[backend] = (function, supports or (lambda like, **case: True))

    def select(self, like: Array, backend: str = "auto", **case: Any) -> Function:
        """Return the function for arrays like `like` and a problem of these sizes.

        Raises
        ------
        ValueError
            If the name is unknown, or the requested backend does not support this case.
        BackendUnavailable
            If the requested backend is not installed.
        ImportError
            If it is installed and broken. "auto" then continues without it, and warns once.
        """
        if backend == REFERENCE:
            return self.reference
        if backend == "auto":
            for name in self._candidates(like):
                pays = self.pays.get(name)
                if (pays is None or pays(**case)) and self._is_sound(name):
                    function, supports = self.implementations[name]
                    if supports(like, **case):
                        return function
            return self.reference
        if backend not in BACKENDS and backend not in self.implementations:
            raise ValueError(f"{self.name}: `backend` must be one of {BACKENDS}, got {backend!r}")
        if backend in PLUG_INS and not is_installed(backend):
            raise BackendUnavailable(f"{self.name}: backend {backend!r} is not installed: {INSTALL[backend]}")
        self.load(backend)
        is_offered = backend in self._candidates(like) and backend in self.implementations
        if not (is_offered and self.implementations[backend][1](like, **case)):
            library = array_namespace(like).__name__
            raise ValueError(f"{self.name}: backend {backend!r} does not support {case} on arrays of {library}")
        return self.implementations[backend][0]

    def load(self, backend: str) -> bool:
        """Import what `backend` offers, and return whether it has an implementation.

        Raises
        ------
        ImportError
            If the backend is installed and broken.
        """
        if backend in PLUG_INS:
            if not is_installed(backend):
                return False
            load(PLUG_INS[backend], self.module)
        return backend in self.implementations

    def _is_sound(self, backend: str) -> bool:
        """Whether "auto" can use a backend; an installed one that cannot be imported is left out, with a warning."""
        try:
            if backend in self.implementations:
                return backend not in PLUG_INS or is_installed(backend)
            return backend not in _broken and self.load(backend)
        except (ImportError, AttributeError, OSError) as error:  # other versions, or a shared library that is missing
            _broken.add(backend)
            message = f"implicitsolve continues without {backend}, which is installed but cannot be imported: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
            return False

    def _candidates(self, like: Array) -> tuple[str, ...]:
        """The backends for arrays of this library, best first."""
        others = [name for name in reversed(self.implementations) if name not in BACKENDS]
        if isinstance(like, np.ndarray):
            return (*others, "numba", "lapack")
        return (*others, "cupy") if is_cupy_array(like) else tuple(others)


_broken: set[str] = set()  # backends whose import has failed


@functools.cache
def is_installed(backend: str) -> bool:
    """Whether the package of a plug-in, and the plug-in, can be imported."""
    return _exists(backend) and _exists(PLUG_INS[backend])


@functools.cache
def load(package: str, module: str) -> None:
    """Import a module of a plug-in, which registers implementations; nothing where there is no such module."""
    spec = importlib.util.find_spec(package)
    if spec is not None and PathFinder.find_spec(f"{package}.{module}", spec.submodule_search_locations) is not None:
        importlib.import_module(f"{package}.{module}")


def _exists(module: str) -> bool:
    """Whether a module can be imported, without importing it (its parents are)."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
