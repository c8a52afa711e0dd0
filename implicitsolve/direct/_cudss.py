"""Sparse LU of CuPy arrays by cuDSS, through nvmath-python: a pattern is analyzed once for all its matrices."""

from __future__ import annotations

import importlib
import logging
import weakref
from typing import Any, Protocol

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, device, is_complex, is_cupy_array, near_reciprocals
from implicitsolve._typing import Array
from implicitsolve.errors import BackendUnavailable
from implicitsolve.operators._sparse import DevicePattern, SparseMatrix, device_pattern
from implicitsolve.structure._sparse import Sparse

RECOVERED = 1e-3  # error of the solution of A x = A e, whose entries e are about 1, up to which factors are accepted
QUIET = logging.Logger("implicitsolve.cudss", logging.CRITICAL)  # nvmath's default, the root logger, prints warnings


def load_cudss(like: Array) -> tuple[Any, Any]:
    """Return nvmath's interface to cuDSS and its bindings; raise if they cannot be loaded, or `like` is not of CuPy."""
    instead = (
        'structure="none" solves by Krylov methods, without factors; a BlockBanded structure has factors on the '
        "device; arrays of NumPy are factorized by SciPy"
    )
    if not is_cupy_array(like):
        raise TypeError(f"sparse factors need arrays of NumPy or CuPy, got {type(like).__name__}: {instead}")
    try:
        advanced, bindings = map(importlib.import_module, ("nvmath.sparse.advanced", "nvmath.bindings.cudss"))
        bindings.get_property(0)  # loads the library
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            "sparse factors of CuPy arrays need cuDSS, through nvmath-python: pip install "
            f"'implicitsolve[cudss13]', or [cudss12] ({error}). Without it: {instead}"
        ) from error
    return advanced, bindings


class Engine(Protocol):
    """Factors of one matrix."""

    is_complex: bool

    @property
    def nbytes(self) -> int: ...

    def solve(self, b: Any, trans: str) -> Any:
        """Solve A x = b ("N"), A^T x = b ("T") or A^H x = b ("H")."""
        ...


class CuDSSPlan:
    """What depends on the pattern alone: index arrays on the device, and solvers that have analyzed it.

    Rows and columns are scaled by powers of 2: cuDSS replaces pivots below 1e-13, whatever the size of A. After each
    factorization a system with a known solution is solved, for the same reason: a matrix is singular if the solution
    is not recovered. This takes a product, a solve, and two reads by the host for all systems. Large entries are
    matched to the diagonal where the pattern does not hold all of it, and from the first such failure on: cuDSS
    exchanges rows inside its blocks only.
    """

    is_direct: bool = True

    def __init__(self, A: SparseMatrix) -> None:
        advanced, bindings = load_cudss(A.data)
        self.advanced: Any = advanced
        self.bindings: Any = bindings
        self.structure: Sparse = A.structure
        self.pattern: DevicePattern = device_pattern(A.structure, A.data)
        indptr, columns = A.structure.indptr, A.structure.columns
        by_rows = np.argsort(A.structure.indices, kind="stable")
        row_ends = np.concatenate([[0], np.cumsum(A.structure.row_counts)]).astype(np.int32)
        self.order: Array = from_host(by_rows, A.data)
        self.rows: tuple[Array, Array] = from_host(columns[by_rows], A.data), from_host(row_ends, A.data)
        self.rows_of_transpose: tuple[Array, Array] = self.pattern.rows, from_host(indptr, A.data)
        self.matches: bool = int((A.structure.indices == columns).sum()) < A.structure.unknowns
        known = np.random.default_rng(0).uniform(0.5, 1.0, A.structure.unknowns)
        self._known: Array = array_namespace(A.data).asarray(known, device=device(A.data))
        self._idle: dict[tuple[bool, bool, bool], list[_Solver]] = {}

    def engines(self, A: SparseMatrix) -> list[Engine | None]:
        """Factors of each system; None where it is singular."""
        xp, pattern = array_namespace(A.data), self.pattern
        data = xp.astype(A.flat_data, xp.complex128 if is_complex(A.data) else xp.float64)
        with np.errstate(all="ignore"):
            rows = near_reciprocals(pattern.over_rows.largest(xp.abs(data)))
            data = data * xp.take(rows, pattern.rows, axis=1)
            columns = near_reciprocals(pattern.over_columns.largest(xp.abs(data)))
            data = data * xp.take(columns, pattern.columns, axis=1)
            left = np.flatnonzero(to_host(xp.all(xp.isfinite(data), axis=1)))
            found: list[Engine | None] = [None] * data.shape[0]
            while left.size:
                for i, engine in zip(left, self._factors_of(*(gather(part, left) for part in (data, rows, columns)))):
                    found[i] = engine
                if self.matches:
                    break
                left = left[[found[i] is None for i in left]]
                self.matches = left.size > 0
        return found

    def _factors_of(self, data: Array, rows: Array, columns: Array) -> list[Engine | None]:
        """Factors (b) of matrices (b, nnz) scaled by `rows` and `columns`, where they recover the known solution."""
        xp = array_namespace(data)
        known = self._known + xp.zeros_like(rows)
        b = SparseMatrix(data, self.structure).matvec(xp.astype(known, data.dtype))
        found = [self._factors(data[i, :], rows[i, :], columns[i, :]) for i in range(data.shape[0])]
        x = [known[i, :] if engine is None else engine.solve_scaled(b[i, :]) for i, engine in enumerate(found)]
        is_good = to_host(xp.max(xp.abs(xp.stack(x) - known), axis=1) <= RECOVERED)
        return [engine if good else None for engine, good in zip(found, is_good)]

    def _factors(self, *arrays: Array) -> _Factors | None:
        try:
            return _Factors(self, *arrays)
        except self.bindings.cuDSSError:  # of memory, for example
            return None

    def solver_of(self, data: Array, *, transposed: bool) -> _Solver:
        """A solver with the factors of a matrix, or of its transpose; it analyzes the pattern if none is idle."""
        kind = transposed, is_complex(data), self.matches
        idle = self._idle.setdefault(kind, [])
        entries = data if transposed else array_namespace(data).take(data, self.order)
        solver = idle.pop() if idle else _Solver(self, entries, kind)
        solver.factorize(entries)
        return solver

    def release(self, solver: _Solver) -> None:
        """Keep a solver, whose factors are no longer needed, for the next matrix."""
        self._idle[solver.kind].append(solver)


class _Solver:
    """nvmath's solver for one pattern. Its entries are overwritten: new operands would begin with a new analysis."""

    def __init__(self, plan: CuDSSPlan, entries: Array, kind: tuple[bool, bool, bool]) -> None:
        xp, n = array_namespace(entries), plan.structure.unknowns
        self.kind: tuple[bool, bool, bool] = kind  # whether of the transpose, complex, and with matching
        indices = plan.rows_of_transpose if kind[0] else plan.rows
        sparse: Any = importlib.import_module("cupyx.scipy.sparse")
        self._matrix = sparse.csr_matrix((xp.asarray(entries, copy=True), *indices), shape=(n, n))
        b = xp.zeros(n, dtype=entries.dtype, device=device(entries))
        self._solver: Any = plan.advanced.DirectSolver(self._matrix, b, options={"logger": QUIET})
        weakref.finalize(self, self._solver.free).atexit = False
        cudss, solver = plan.bindings, self._solver
        if plan.matches:
            solver.plan_config.matching_algorithm = cudss.MatchingAlg.MAX_DIAG_PRODUCT
        mode = cudss.ConfigParam.DETERMINISTIC_MODE  # the same numbers at every run
        on = np.ones(1, dtype=cudss.get_config_param_dtype(mode))
        cudss.config_set(solver.config_ptr, mode, on.ctypes.data, on.nbytes)
        solver.plan()
        self.nbytes: int = int(solver.plan_info.memory_estimates["permanent_device_memory"])

    def factorize(self, entries: Array) -> None:
        self._matrix.data[...] = entries
        self._solver.factorize()

    def solve(self, b: Array) -> Array:
        self._solver.reset_operands(b=b)
        return self._solver.solve()


class _Factors:
    """Factors of R A C, with diagonal matrices R and C, as those of A; those of its transpose follow when needed."""

    def __init__(self, plan: CuDSSPlan, data: Array, rows: Array, columns: Array) -> None:
        self._plan, self._data, self._scales = plan, data, (rows, columns)
        self._solvers: dict[bool, _Solver] = {}
        self.is_complex: bool = is_complex(data)
        self._solver(False)

    @property
    def nbytes(self) -> int:
        """Bytes of the factors, as estimated by cuDSS."""
        return sum(solver.nbytes for solver in self._solvers.values())

    def solve(self, b: Any, trans: str) -> Any:
        """Solve A x = b ("N"), A^T x = b ("T") or A^H x = b ("H")."""
        first, last = self._scales if trans == "N" else self._scales[::-1]
        return last * self.solve_scaled(first * b, trans)

    def solve_scaled(self, b: Array, trans: str = "N") -> Array:
        xp = array_namespace(b)
        if trans == "H" and self.is_complex:
            return xp.conj(self._solver(True).solve(xp.conj(b)))
        return self._solver(trans != "N").solve(b)

    def _solver(self, transposed: bool) -> _Solver:
        if transposed not in self._solvers:
            solver = self._plan.solver_of(self._data, transposed=transposed)
            weakref.finalize(self, self._plan.release, solver).atexit = False
            self._solvers[transposed] = solver
        return self._solvers[transposed]
