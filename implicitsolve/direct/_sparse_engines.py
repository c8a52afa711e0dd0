"""Factors of one sparse matrix by LAPACK, SuperLU, and libraries that may be installed."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.linalg.lapack
import scipy.sparse
import scipy.sparse.linalg

from implicitsolve._typing import HostArray
from implicitsolve.direct._cudss import Engine
from implicitsolve.direct._elimination import PIVOTS, Elimination
from implicitsolve.errors import require
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.structure._sparse import Sparse


class Plan(Protocol):
    """What `SparsePlan` has found about a pattern."""

    structure: Sparse
    order: HostArray | None
    lower: int
    upper: int
    places: HostArray
    analysis: Any

    @property
    def nbytes(self) -> int: ...


class BandLU:
    """LAPACK's band LU with partial pivoting, in the order of the plan."""

    def __init__(self, plan: Plan, data: HostArray) -> None:
        n, rows = plan.structure.unknowns, 2 * plan.lower + plan.upper + 1
        ab = np.zeros(n * rows, dtype=data.dtype)
        ab[plan.places] = data
        self.is_complex = data.dtype.kind == "c"
        lapack: Any = scipy.linalg.lapack
        gbtrf, self._gbtrs = (lapack.zgbtrf, lapack.zgbtrs) if self.is_complex else (lapack.dgbtrf, lapack.dgbtrs)
        self.factors, self.pivots, info = gbtrf(ab.reshape(n, rows).T, plan.lower, plan.upper, overwrite_ab=1)
        if info > 0:
            raise RuntimeError("singular")
        self.order, self.kl, self.ku, self.nbytes = plan.order, plan.lower, plan.upper, ab.nbytes

    def solve(self, b: HostArray, trans: str) -> HostArray:
        b = b if self.order is None else b[self.order]
        x, _ = self._gbtrs(self.factors, self.kl, self.ku, b, self.pivots, trans="NTH".index(trans))
        if self.order is None:
            return x
        out = np.empty_like(x)
        out[self.order] = x
        return out


class DenseLU:
    """LAPACK's LU of the whole array with partial pivoting."""

    def __init__(self, plan: Plan, data: HostArray) -> None:
        n = plan.structure.unknowns
        array = np.zeros((n, n), dtype=data.dtype, order="F")
        array[plan.structure.indices, plan.structure.columns] = data
        lapack: Any = scipy.linalg.lapack
        self.is_complex: bool = data.dtype.kind == "c"
        getrf, self._getrs = (lapack.zgetrf, lapack.zgetrs) if self.is_complex else (lapack.dgetrf, lapack.dgetrs)
        self.factors, self.pivots, info = getrf(array, overwrite_a=True)
        if info > 0:
            raise RuntimeError("singular")
        self.nbytes: int = array.nbytes

    def solve(self, b: HostArray, trans: str) -> HostArray:
        return self._getrs(self.factors, self.pivots, b, trans="NTH".index(trans))[0]


class Scaled:
    """Factors of R A C, with positive diagonal matrices R and C, as those of A."""

    def __init__(self, engine: Engine, rows: HostArray, columns: HostArray) -> None:
        self.engine, self.rows, self.columns = engine, rows, columns
        self.nbytes: int = engine.nbytes + rows.nbytes + columns.nbytes
        self.is_complex: bool = engine.is_complex

    def solve(self, b: HostArray, trans: str) -> HostArray:
        first, last = (self.rows, self.columns) if trans == "N" else (self.columns, self.rows)
        return (self.engine.solve((first * b.T).T, trans).T * last).T


class Refined:
    """Factors whose solutions are corrected once by their residuals."""

    def __init__(self, engine: Engine, A: SparseMatrix) -> None:
        self.engine, self.A = engine, A
        self.nbytes: int = engine.nbytes
        self.is_complex: bool = engine.is_complex

    def solve(self, b: HostArray, trans: str) -> HostArray:
        x = self.engine.solve(b, trans)
        if trans == "N":
            return x + self.engine.solve(b - self.A.matvec(x), trans)
        product = self.A.rmatvec(x) if trans == "H" else np.conj(self.A.rmatvec(np.conj(x)))
        return x + self.engine.solve(b - product, trans)


class SuperLU:
    """SuperLU, by COLAMD with partial pivoting or with pivots on the diagonal.

    With pivots on the diagonal the fill is that of the pattern; with a threshold of 0.1, diffusion with jumps took
    minutes. Panels of 8 columns, without relaxed supernodes, took 0.7 of the default's time on a grid of 256^2 points.
    """

    def __init__(self, structure: Sparse, data: HostArray, elimination: Elimination | None) -> None:
        self.order: HostArray | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if elimination is None:
                self.lu: Any = scipy.sparse.linalg.splu(structure.with_entries(data), permc_spec="COLAMD")
            else:
                self.order, A = elimination.order, elimination.pattern.with_entries(data[elimination.entries])
                self.lu = scipy.sparse.linalg.splu(A, permc_spec="NATURAL", **PIVOTS)
        self.nbytes, self.is_complex = int(self.lu.nnz) * (data.itemsize + 4), data.dtype.kind == "c"

    def solve(self, b: HostArray, trans: str) -> HostArray:
        if self.order is None:
            return self.lu.solve(b, trans)
        permuted = np.empty_like(b)
        permuted[self.order] = b
        return self.lu.solve(permuted, trans)[self.order]


class Pardiso:
    """MKL's PARDISO, by pypardiso: nested dissection, and MKL's threads."""

    is_complex: bool = False

    def __init__(self, library: ModuleType, plan: Plan, data: HostArray) -> None:
        self._A = plan.structure.with_entries(data)
        self._solver = library.PyPardisoSolver()
        self._solver.factorize(self._A)
        self.nbytes: int = plan.nbytes
        weakref.finalize(self, self._solver.free_memory, everything=True)

    def solve(self, b: HostArray, trans: str) -> HostArray:
        return self._solver.solve(self._A if trans == "N" else self._A.T, b)


class KLU:
    """SuiteSparse's KLU, by PyKLU: block triangular form, for circuits and networks."""

    is_complex: bool = False

    def __init__(self, library: ModuleType, plan: Plan, data: HostArray) -> None:
        self._A = scipy.sparse.csc_matrix(plan.structure.with_entries(data))
        self._library, self._factors = library, library.Klu(self._A)
        self.nbytes: int = plan.nbytes

    @cached_property
    def _of_transpose(self) -> Any:
        return self._library.Klu(scipy.sparse.csc_matrix(self._A.T))

    def solve(self, b: HostArray, trans: str) -> HostArray:
        return (self._factors if trans == "N" else self._of_transpose).solve(b)


class Cholesky:
    """SuiteSparse's CHOLMOD, by scikit-sparse: the symmetric part, which must be positive definite."""

    is_complex: bool = False

    def __init__(self, library: ModuleType, plan: Plan, data: HostArray) -> None:
        A = plan.structure.with_entries(data)
        A = 0.5 * (A + A.T).tocsc()
        if plan.analysis is None:
            plan.analysis = library.analyze(A)
        self._factors = plan.analysis.cholesky(A)
        self.nbytes: int = plan.nbytes

    def solve(self, b: HostArray, trans: str) -> HostArray:
        return self._factors(b)


class Library(NamedTuple):
    """A library that may be installed."""

    module: str
    extra: str
    factors: Callable[[ModuleType, Plan, HostArray], Engine]


ENGINE_LIBRARIES = {
    "pardiso": Library("pypardiso", "pardiso", Pardiso),
    "klu": Library("PyKLU", "klu", KLU),
    "cholmod": Library("sksparse.cholmod", "cholmod", Cholesky),
}


def load(engine: str) -> ModuleType:
    """The module of an engine; raise a `BackendUnavailable` if it is missing."""
    library = ENGINE_LIBRARIES[engine]
    name = library.module.split(".")[0]
    need = f"SparseLU: `engine` {engine!r} needs {name}: pip install 'implicitsolve[{library.extra}]'"
    return require(library.module, need)
