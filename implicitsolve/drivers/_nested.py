"""Nested systems: groups of unknowns are solved for inside each residual of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._root import NonlinearMethod, check_settings, root
from implicitsolve._typing import ArrayArgument, HostArray
from implicitsolve.direct import SparseLU
from implicitsolve.linearize._jacobian import assemble_jacobian, detect_structure
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._convert import aslinearoperator
from implicitsolve.problem import Problem, with_derivatives
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import NonlinearStop
from implicitsolve.structure import Sparse
from implicitsolve.structure._names import few_names

INNER = NonlinearStop(xtol=1e-10)  # errors of the inner unknowns are errors of the outer residual
UNSOLVED = 0.01  # of an unknown, or of a mean one, that a step changes after a caller's solver


class Nested:
    """A system in its outer unknowns alone: those in groups are solved for inside each residual.

    With the unknowns x = (e, y), the groups y follow from F_i(e, y) = 0, one group after the other, and Newton's method
    is left with R(e) = F_o(e, y(e)): nonlinear elimination [1]_, which often converges where it fails on all of F.
    The Jacobian of R is a Schur complement of J(x): its products are exact, and its inverse is a block of J^-1.

    Parameters
    ----------
    problem : Problem or callable
        The whole system, of NumPy arrays, no batch. Its `linearize`, `jac` or `jvp` are used, else differences by the
        colors of its pattern, which is sought once.
    groups : sequence of (array_like of int)
        The unknowns of each group, as indices into the flattened state. A group may depend on those before it, not on
        those after it; all unknowns in no group are outer ones.
    x0 : array_like
        Start of all unknowns.
    equations : sequence of (array_like of int), optional
        The equations that determine each group. Default: those with the indices of its unknowns.
    inner : str, solver or callable, optional
        The method that solves each group, as for `root`; or a function ``inner(x)`` that returns x with all groups
        solved, for programs whose components have solvers of their own. Default "auto".
    stop : NonlinearStop, optional
        Stopping rule of the group solves. Default: ``NonlinearStop(xtol=1e-10)``.

    Attributes
    ----------
    problem : Problem
        R(e) = 0, with its start from x0. Where a group cannot be solved, R is NaN, and a line search steps back.
    outer : ndarray of int
        The indices of the outer unknowns.
    results : list of NonlinearResult
        Of the last solves of the groups: where one failed, its message says why.
    evaluations : int
        Calls of F so far, inside the groups and outside.

    Raises
    ------
    TypeError
        If indices are not integers.
    ValueError
        If a group is empty, an index is out of range or in two groups, no unknown is left outside, there are not as
        many equations as unknowns, or the problem is a batch. During the solve of `problem`: if J shows that a group
        depends on a later one, or that a function `inner` leaves one unsolved.

    See Also
    --------
    Preconditioned : an inner solver without declared groups, and without its derivatives.

    Notes
    -----
    Each group starts from its last solution and, if that fails, from x0. One residual costs those of the group solves,
    each a call of the whole F; one Jacobian costs that of F and two factorizations. The stopping rule of `root` holds
    for R and e. ``root(problem, nested.expand(result.x))`` judges all of F and x; it succeeds only if the inner solves
    are as accurate as its own rule requires, which those of another program may not be.

    References
    ----------
    .. [1] P. J. Lanzkron, D. J. Rose and J. T. Wilkes, "An analysis of approximate nonlinear elimination", SIAM J. Sci.
           Comput. 17 (1996) 538-559.

    Examples
    --------
    >>> def F(x):  # the last two unknowns follow from the first one
    ...     return np.array([x[2] - 5, x[1] ** 3 + x[1] - x[0], x[2] - np.exp(x[1])])
    >>> nested = ims.drivers.Nested(F, [[1], [2]], [1.0, 0.0, 0.0])
    >>> result = ims.root(nested.problem)
    >>> result.success, nested.expand(result.x).round(4)
    (True, array([5.7783, 1.6094, 5.    ]))
    """

    def __init__(
        self,
        problem: Problem | Callable[..., Any],
        groups: Sequence[ArrayArgument],
        x0: ArrayArgument,
        *,
        equations: Sequence[ArrayArgument] | None = None,
        inner: NonlinearMethod | str | Callable[[HostArray], ArrayArgument] = "auto",
        stop: NonlinearStop | None = None,
    ) -> None:
        problem = problem if isinstance(problem, Problem) else Problem(problem)
        if problem.batch_ndim:
            raise ValueError(f"Nested: `problem` must be one system, got batch_ndim={problem.batch_ndim}")
        x0 = as_inexact(x0, "x0")
        if not isinstance(x0, np.ndarray):
            raise TypeError(f"Nested: groups are solved on NumPy arrays, got {type(x0).__name__} as `x0`")
        self.x0: HostArray = x0.copy()
        self.groups: list[HostArray] = _indices("groups", groups, self.x0.size)
        given = groups if equations is None else equations
        self.equations: list[HostArray] = _indices("equations", given, self.x0.size)
        sizes, others = ([part.size for part in parts] for parts in (self.groups, self.equations))
        if sizes != others:
            raise ValueError(f"Nested: `equations` must be as many as each group's unknowns, {sizes}, got {others}")
        self.outer: HostArray = np.setdiff1d(np.arange(self.x0.size), np.concatenate(self.groups))
        self.left: HostArray = np.setdiff1d(np.arange(self.x0.size), np.concatenate(self.equations))
        if not self.outer.size:
            raise ValueError("Nested: `groups` must leave an unknown outside of all groups, got all of them")
        self.solves_all: bool = callable(inner)
        self.inner: Any = inner if callable(inner) else check_settings("Nested", inner, None, None)[0]
        self.stop: NonlinearStop = check_settings("Nested", "auto", INNER if stop is None else stop, None)[1]
        self.evaluations: int = 0
        self.results: list[NonlinearResult] = []
        problem = with_derivatives(problem, self.x0)

        def count_evaluation(x: Any) -> Any:
            self.evaluations += 1
            return problem.residual(x)

        self.whole: Problem = replace(problem, residual=count_evaluation)
        self._latest: HostArray = self.x0  # the last point whose groups are solved
        self._is_solved = False
        self._detection: Any = None

    @property
    def problem(self) -> Problem:
        """R(e) = 0, with its start from x0."""
        of_unknowns = {name: self._part(name, self.outer) for name in ("bounds", "x_scale", "names")}
        of_equations = {name: self._part(name, self.left) for name in ("f_scale", "equations")}
        return Problem(
            self.residual,
            linearize=self.linearize,
            initial_guess=lambda kind, rng: self.x0.reshape(-1)[self.outer],
            rejects=self.whole.rejects,
            name=f"nested({self.whole.name})",
            **of_unknowns,
            **of_equations,
        )

    def expand(self, e: ArrayArgument) -> HostArray:
        """Return the whole state for given outer unknowns: groups solved, or at their last solution if that fails."""
        x = self._solve_groups(np.asarray(e))
        return _replace_at(self._latest, self.outer, np.asarray(e)) if x is None else x

    def residual(self, e: HostArray) -> HostArray:
        """Return R(e), NaN where a group cannot be solved."""
        x = self._solve_groups(e)
        return np.full_like(e, np.nan) if x is None else self._flat(x)[self.left]

    def linearize(self, e: HostArray) -> tuple[HostArray, LinearOperator]:
        """Return R(e) and its Jacobian, with its inverse by the factors of J."""
        x, i, o = self._solve_groups(e), np.concatenate(self.groups), self.outer
        J = self._jacobian(self._latest)
        F = np.full(self.x0.size, np.nan) if x is None else self._flat(x)
        rows, left = J[np.concatenate(self.equations)], J[self.left]
        self._check_order(rows)
        inner: Any = SparseLU().factor(rows[:, i])
        if self.solves_all:
            self._check_solved(inner.matvec(F[np.concatenate(self.equations)]), i)
        J_oo, J_oi, J_io = map(aslinearoperator, (left[:, o], left[:, i], rows[:, o]))
        schur = J_oo - J_oi @ inner @ J_io

        def inverse() -> LinearOperator:  # a part of J^-1
            unit = scipy.sparse.eye_array(self.x0.size, format="csr", dtype=J.dtype)
            return aslinearoperator(unit[o]) @ SparseLU().factor(J) @ aslinearoperator(unit[:, self.left])

        return F[self.left], schur._alike(schur.matvec, schur.rmatvec, inverse=inverse)

    def _check_order(self, rows: Any) -> None:
        """Raise where a group depends on a later one, as the rows of J for the groups show."""
        owner = np.full(self.x0.size, -1)
        for number, group in enumerate(self.groups):
            owner[group] = number
        entries = scipy.sparse.coo_array(rows)
        own = np.repeat(np.arange(len(self.groups)), [group.size for group in self.groups])[entries.row]
        later = np.flatnonzero((owner[entries.col] > own) & (entries.data != 0))
        if later.size:
            raise ValueError(
                f"Nested: `groups` must depend on groups before them alone, but groups[{own[later[0]]}] depends on "
                f"groups[{owner[entries.col[later[0]]]}]: put that one first, or join them"
            )

    def _check_solved(self, step: HostArray, unknowns: HostArray) -> None:
        """Raise where the caller's solver leaves a group unsolved: Newton's step there is not small."""
        size = np.abs(self._latest.reshape(-1))
        left = np.flatnonzero(np.abs(step) > UNSOLVED * np.maximum(size[unknowns], size.mean()))
        if left.size:
            names = few_names("x", self.whole.names, unknowns[left], self.x0.shape)
            raise ValueError(
                f"Nested: `inner` must return x with all groups solved, but a Newton step would change {names}: "
                "what it does not solve belongs outside of the groups"
            )

    def _solve_groups(self, e: HostArray) -> HostArray | None:
        """The whole state, with the groups solved; None where one cannot be."""
        if self._is_solved and np.array_equal(self._latest.reshape(-1)[self.outer], e):
            return self._latest
        x = _replace_at(self._latest, self.outer, e)
        if self.solves_all:
            x = _replace_at(np.asarray(self.inner(x.copy()), dtype=x.dtype).reshape(x.shape), self.outer, e)
            if not np.isfinite(x).all():
                return None
        else:
            self.results = []
            for group, equations in zip(self.groups, self.equations):
                self.results.append(self._solve_group(group, equations, x))
                if not self.results[-1].success:
                    return None
                x = _replace_at(x, group, self.results[-1].x)
        self._latest, self._is_solved = x, True
        return x

    def _solve_group(self, group: HostArray, equations: HostArray, x: HostArray) -> NonlinearResult:
        """The solution of a group with the others fixed; the solve starts from the last one, or else from x0."""
        whole, pattern = self.whole, self.whole.structure

        def jac(z: HostArray) -> Any:
            return self._jacobian(_replace_at(x, group, z))[equations][:, group]

        def jvp(z: HostArray, v: HostArray) -> HostArray:
            product: Any = whole.jvp(_replace_at(x, group, z), _replace_at(np.zeros_like(x), group, v))  # type: ignore[misc]
            return np.asarray(product).reshape(-1)[equations]

        has_own = whole.jac is not None or whole.linearize is not None
        part = Problem(
            lambda z: self._flat(_replace_at(x, group, z))[equations],
            jac=jac if has_own else None,
            jvp=None if has_own or whole.jvp is None else jvp,
            structure=Sparse(pattern.to_scipy().tocsr()[equations][:, group]) if isinstance(pattern, Sparse) else None,
            bounds=self._part("bounds", group),
            rejects=whole.rejects,
        )
        for start in (x, self.x0):
            result = root(part, start.reshape(-1)[group], method=self.inner, stop=self.stop)
            if result.success:
                break
        return result

    def _jacobian(self, x: HostArray) -> Any:
        """J(x) as a sparse matrix in rows."""
        whole = self.whole
        if not (whole.structure or whole.jac or whole.linearize or whole.jvp) and self._detection is None:
            self._detection = detect_structure(whole, x)
        return assemble_jacobian(whole, x, known=self._detection).to_sparse("csr")

    def _flat(self, x: HostArray) -> HostArray:
        return np.asarray(self.whole.residual(x.copy())).reshape(-1)

    def _part(self, name: str, part: HostArray) -> Any:
        """A declaration of the whole problem, restricted to some of its unknowns or equations."""
        given = getattr(self.whole, name)
        if given is None or isinstance(given, str):
            return given

        def chosen(values: Any) -> HostArray:
            values = np.asarray(values)
            return (values if values.size == self.x0.size else np.broadcast_to(values, self.x0.shape)).reshape(-1)[part]

        return tuple(map(chosen, given)) if name == "bounds" else chosen(given)


def _replace_at(x: HostArray, part: HostArray, values: HostArray) -> HostArray:
    """A copy of x with other values at some indices of the flattened state."""
    x = x.copy()
    x.reshape(-1)[part] = values
    return x


def _indices(name: str, parts: Any, size: int) -> list[HostArray]:
    """Disjoint sets of indices, checked."""
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise TypeError(f"Nested: `{name}` must be a sequence of index arrays, got {parts!r}")
    found = [np.asarray(part).reshape(-1) for part in parts]
    for number, part in enumerate(found):
        if not part.size:
            raise ValueError(f"Nested: `{name}` must hold indices, got none in {name}[{number}]")
        if part.dtype.kind not in "iu":
            raise TypeError(f"Nested: `{name}` must be integers, got {part.dtype} in {name}[{number}]")
        if part.min() < 0 or part.max() >= size:
            raise ValueError(f"Nested: `{name}` must be from 0 to {size - 1}, got {part.min()} to {part.max()}")
    if not found:
        raise ValueError(f"Nested: `{name}` must hold at least one group, got none")
    values, times = np.unique(np.concatenate(found), return_counts=True)
    if times.max() > 1:
        raise ValueError(f"Nested: `{name}` must not overlap, got {values[times.argmax()]} more than once")
    return found
