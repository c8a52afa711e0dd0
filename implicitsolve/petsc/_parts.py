"""PETSc's direct solvers and preconditioners in the places of `BlockLU` and of the library's preconditioners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from implicitsolve._typing import Array, HostArray
from implicitsolve.direct._factorization import FactoredInverse
from implicitsolve.errors import BackendUnavailable
from implicitsolve.krylov import LinearMethod
from implicitsolve.petsc._system import checked_options, matrices, petsc, product, solve_with_options
from implicitsolve.precondition._parts import Preconditioner
from implicitsolve.stopping import check_limit

PARALLEL = ("mumps", "superlu_dist")  # direct solvers for matrices on several ranks, the preferred one first


@dataclass(frozen=True, kw_only=True)
class PETScLU(LinearMethod):
    """A direct solver of PETSc's: its own LU, or MUMPS or SuperLU_DIST where PETSc was built with them.

    It takes the place of `BlockLU`: ``BlockNewton(factor=...)``, ``SparseNewton(factor=...)``,
    ``NewtonKrylov(preconditioner=...)``, and the `method` of `linear_solve`, `pull_back` and `push_forward`.

    Parameters
    ----------
    package : str, optional
        PETSc's name: "mumps", "superlu_dist", "petsc", ... The default "auto" is the first of MUMPS and SuperLU_DIST
        that this PETSc has, since these factor the matrices of a `Mesh` on several ranks too, and else "petsc".
    options : mapping, optional
        PETSc's options by their names, such as ``{"mat_mumps_icntl_14": 50}``. Default: none.

    Raises
    ------
    BackendUnavailable
        From `factor`, if petsc4py or the package is missing.
    ValueError
        From `factor`, if PETSc does not use one of the options.

    Notes
    -----
    It factors a `BlockBandedMatrix` and a sparse matrix (`SparseNewton`'s, SciPy's); with ``Mesh.problem(inverse=...)``
    the J of all ranks. Systems of a batch are factored one after the other. Zeros inside blocks are not passed on. Work
    and fill are those of sparse LU with nested dissection or minimum degree.

    Examples
    --------
    >>> from implicitsolve.petsc import PETScLU
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 101**2
    >>> problem = ims.Problem(bratu, structure=ims.BlockBanded(1, 1))
    >>> ims.root(problem, np.zeros(100), method=ims.BlockNewton(factor=PETScLU())).success
    True
    """

    package: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    kind: ClassVar[str] = "direct"
    takes_sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_options("PETScLU", self.options)

    def factor(self, A: Any, *, overwrite: bool = False) -> PETScInverse:
        """Factor each system of A; a singular one gets a status and does not raise. `overwrite` saves nothing here."""
        return inverse("PETScLU", A, matrices("PETScLU", A), self.pc_options(1))

    def pc_options(self, ranks: int) -> dict[str, Any]:
        """The settings as PETSc's options."""
        return {"pc_type": "lu", "pc_factor_mat_solver_type": self.package_for(ranks), **self.options}

    def package_for(self, ranks: int) -> str:
        """The direct solver; raise if this PETSc does not have it."""
        known = self.packages(ranks)
        if self.package == "auto" and known:
            return known[0]
        is_other = self.package not in (*PARALLEL, "auto", "petsc") and petsc().Sys.hasExternalPackage(self.package)
        if self.package in known or is_other:
            return self.package
        raise BackendUnavailable(
            f"PETScLU: this PETSc has no direct solver {self.package!r} for {ranks} ranks, but {known}: configure it "
            "with --download-mumps --download-scalapack"
        )

    @staticmethod
    def packages(ranks: int) -> list[str]:
        """The direct solvers of this PETSc for matrices on so many ranks, the preferred one first."""
        has = petsc().Sys.hasExternalPackage
        return [*(name for name in PARALLEL if has(name)), *(["petsc"] if ranks == 1 else [])]


@dataclass(frozen=True, kw_only=True)
class PETScPreconditioner(Preconditioner):
    """A preconditioner of PETSc's: algebraic multigrid, additive Schwarz, incomplete LU, and every other `PC`.

    It takes the place of `BlockILU` and the others: ``NewtonKrylov(preconditioner=...)``, `Lagged`, and the `M` of
    `linear_solve`, `pull_back` and `push_forward`.

    Parameters
    ----------
    type : str, optional
        PETSc's name: "gamg" (the default), "hypre" for BoomerAMG, "asm", "ilu", "bjacobi", ... "ilu" is for one rank.
    options : mapping, optional
        PETSc's options by their names, such as ``{"pc_gamg_threshold": 0.02}``. Default: none. With ``"ksp_type"`` the
        product is an iterative solve, which a fixed Krylov method does not expect unless it is flexible.
    fields : int, optional
        Unknowns at a point, interleaved, for sparse matrices, which do not hold this number. The blocks of a
        `BlockBandedMatrix`, and the fields of a `Mesh`, are known. Default 1.

    Raises
    ------
    BackendUnavailable
        From `build`, if petsc4py or hypre is missing.
    ValueError
        From `build`, if PETSc does not use one of the options.

    Notes
    -----
    It is built from the same matrices as `PETScLU`. Adjoint products are `KSPSolveTranspose`'s.

    Examples
    --------
    >>> from implicitsolve.petsc import PETScPreconditioner
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    ...     return 4 * u - neighbors - 5 * np.exp(u) / 65**2
    >>> problem = ims.Problem(bratu, structure=ims.Grid(shape=(64, 64)))
    >>> method = ims.NewtonKrylov(preconditioner=PETScPreconditioner())
    >>> result = ims.root(problem, np.zeros((64, 64)), method=method)
    >>> result.success, result.krylov_iterations < 30
    (True, True)
    """

    type: str = "gamg"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fields: int = 1

    takes_sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_options("PETScPreconditioner", self.options)
        check_limit("PETScPreconditioner", "fields", self.fields, least=1)

    def build(self, A: Any) -> PETScInverse:
        """Return the approximate inverse of each system of A."""
        owner = "PETScPreconditioner"
        return inverse(owner, A, matrices(owner, A, self.fields), self.pc_options(1))

    def pc_options(self, ranks: int) -> dict[str, Any]:
        """The settings as PETSc's options."""
        if self.type == "hypre" and not petsc().Sys.hasExternalPackage("hypre"):
            raise BackendUnavailable("PETScPreconditioner: this PETSc was built without hypre: use type='gamg'")
        return {"pc_type": self.type, **self.options}


def inverse(owner: str, A: Any, mats: Sequence[Any], options: Mapping[str, Any]) -> PETScInverse:
    """The inverse of each system by the `PC` that the options describe."""
    solvers: list[Solver] = []
    for mat in mats:
        ksp = petsc().KSP().create(comm=mat.getComm())
        ksp.setOperators(mat)
        ksp.setType("preonly")
        vectors = mat.createVecs()
        vectors[0].set(0.0)
        mat.mult(*vectors)
        is_finite = bool(np.isfinite(vectors[1].sum()))  # of all entries times 0: NaN if one is not finite

        steps = (ksp.setUp, ksp.setUpOnBlocks) if is_finite else ()
        solve_with_options(owner, options, ksp, lambda: [step() for step in steps], lambda: len(steps))  # noqa: B023
        solvers.append(Solver(ksp, vectors, is_finite and ksp.pc.getFailedReason() == 0))
    return PETScInverse(A, solvers)


class Solver(NamedTuple):
    """PETSc's solver of one system, vectors for it, and whether it could be set up."""

    ksp: Any
    vectors: tuple[Any, Any]
    is_ready: bool

    def solve(self, b: HostArray, name: str) -> HostArray:
        """Return A^-1 b by "solve", A^-H b by "solveTranspose"."""
        if not self.is_ready:
            return np.full_like(b, np.nan)
        return product(getattr(self.ksp, name), self.vectors, b, adjoint=name != "solve")


class PETScInverse(FactoredInverse):
    """The inverse of a matrix, or an approximation of it, by PETSc's `KSP`, for one system or each of a batch.

    Made by `PETScLU` and `PETScPreconditioner`. An operator like any other: `matvec` is `KSPSolve`, `rmatvec`
    `KSPSolveTranspose`.

    Attributes
    ----------
    solvers : list of petsc4py.PETSc.KSP
        One for each system.
    status : Status, or ndarray of int
        CONVERGED, or SINGULAR where PETSc could not set it up: then every product with that system's inverse is NaN.
    """

    def __init__(self, A: Any, solvers: Sequence[Solver]) -> None:
        self.solvers: list[Any] = [solver.ksp for solver in solvers]
        batch_shape = tuple(getattr(A, "batch_shape", ()))
        super().__init__(
            lambda b: _each(solvers, "solve", b),
            lambda b: _each(solvers, "solveTranspose", b),
            in_shape=getattr(A, "in_shape", A.shape[:1]),
            batch_shape=batch_shape,
            dtype=A.dtype,
            take=(lambda rows: PETScInverse(A.take(rows), [solvers[i] for i in rows])) if batch_shape else None,
        )
        self._mark(np.asarray([-1 if solver.is_ready else 0 for solver in solvers]))


def _each(solvers: Sequence[Solver], name: str, b: Array) -> Array:
    if not solvers:
        return b
    rows = np.reshape(b, (len(solvers), -1))
    solved = np.stack([solver.solve(row, name) for solver, row in zip(solvers, rows)])
    return solved.reshape(b.shape).astype(b.dtype, copy=False)
