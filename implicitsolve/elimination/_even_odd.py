"""Even-odd elimination: a system whose blocks couple to their nearest neighbours only, in half the unknowns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, DType, HostArray, Indices
from implicitsolve.kernels._vectors import vectors_like
from implicitsolve.monitor import Monitor, map_monitor
from implicitsolve.operators import LinearOperator
from implicitsolve.precondition._parts import tridiagonal_inverse
from implicitsolve.problem import Problem
from implicitsolve.stopping import NonlinearStop
from implicitsolve.structure import BlockBanded, Coupling, Halves


def even_odd(problem: Problem) -> Problem:
    """Eliminate every second block of a system x = G(x) that couples nearest neighbours only.

    Blocks 0, 2, 4, ... are explicit functions of blocks 1, 3, 5, ...; substituted into the equations of the
    latter, they leave a problem in half the unknowns, ``R(e) = e - G_kept(G_eliminated(e))``. Its Jacobian is I minus
    a product of two couplings: the eigenvalues mu of dG/dx become mu^2, and fixed-point and Krylov methods need about
    half the iterations. `root`, `pull_back` and `push_forward` do this automatically; `expand` gives the whole state.

    Parameters
    ----------
    problem : Problem
        With `halves`, as the adapters with nearest-neighbour coupling have.

    Returns
    -------
    Problem
        On states of T // 2 blocks, with the parameters and gradients of `problem`. J offers an approximate inverse,
        made of the diagonals of its blocks.

    Raises
    ------
    TypeError
        If `problem` is not a Problem.
    ValueError
        If it has no `halves`.

    Notes
    -----
    One residual, or product with J or its adjoint, costs two halves, that is one of `problem`. The half of a residual
    with which `root` expands the solution is not counted.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = ims.adapters.implicit_gru(ims.adapters.gru_parameters(2, 4, rng=rng), rng.standard_normal((3, 5, 2)))
    >>> half = ims.elimination.even_odd(layer)
    >>> result = ims.root(half)
    >>> result.x.shape, bool(np.allclose(ims.elimination.expand(layer, result.x), ims.root(layer).x, atol=1e-6))
    ((3, 2, 4), True)
    """
    halves_of("even_odd", problem)
    return EvenOdd(problem).problem


def expand(problem: Problem, kept: Array) -> Array:
    """Return the whole state of a problem whose every second block was eliminated.

    Parameters
    ----------
    problem : Problem
        What was given to `even_odd`.
    kept : Array
        State of the problem that it returned, ``batch_shape + (T // 2, k)``.

    Returns
    -------
    Array
        State of `problem`: blocks 1, 3, 5, ... from `kept`, the others computed from them by half a residual.

    Raises
    ------
    ValueError
        If `problem` has no `halves`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = ims.adapters.implicit_gru(ims.adapters.gru_parameters(2, 4, rng=rng), rng.standard_normal((5, 2)))
    >>> ims.elimination.expand(layer, np.zeros((2, 4))).shape
    (5, 4)
    """
    return merge(halves_of("expand", problem).eliminated.apply(kept), kept, problem.batch_ndim)


@dataclass(frozen=True, eq=False)
class EvenOdd:
    """A problem without its eliminated blocks, as `root` solves it, and the recovery of the whole state."""

    whole: Problem
    length: int = 0  # of the whole states in blocks, for the way back
    latest: list[tuple[HostArray, HostArray]] = field(default_factory=list)  # kept and eliminated blocks of all systems

    @classmethod
    def of(cls, problem: Problem, x0: Array) -> EvenOdd:
        """The elimination for states like `x0` of a problem with `halves`."""
        expected = problem.halves.shape  # type: ignore[union-attr]
        if expected is not None and tuple(x0.shape) != expected:
            raise ValueError(
                f"root: `x0` must have the shape {expected} of the problem's states, got {tuple(x0.shape)}"
            )
        return cls(problem, x0.shape[problem.batch_ndim])

    @property
    def axis(self) -> int:
        return self.whole.batch_ndim

    @property
    def halves(self) -> Halves:
        return self.whole.halves  # type: ignore[return-value]

    @property
    def problem(self) -> Problem:
        """The problem of the kept blocks, with what the whole one offers."""
        whole = self.whole
        k = None if whole.block_structure is None else whole.block_structure.block_size
        return Problem(
            self.residual,
            linearize=self.linearize,
            structure=None if k is None else BlockBanded(1, 1, k),
            blocks=None if whole.blocks is None else self.blocks,
            blocks_cost=whole.blocks_cost,
            blocks_exact=whole.blocks_exact,
            batch_ndim=self.axis,
            parameters=whole.parameters,
            parameter_jvp=None if whole.parameter_jvp is None else self.parameter_jvp,
            parameter_vjp=None if whole.parameter_vjp is None else self.parameter_vjp,
            take=None if whole.take is None else self.take,
            initial_guess=None if whole.initial_guess is None else self.initial_guess,
            fixed_point=True,
            pure=whole.pure,
            name=f"even_odd({whole.name})",
        )

    def residual(self, e: Array) -> Array:
        eliminated = self.halves.eliminated.apply(e)
        self._remember(e, eliminated)
        return e - self.halves.kept.apply(eliminated)

    def linearize(self, e: Array) -> tuple[Array, LinearOperator]:
        eliminated, first = self.halves.eliminated.linearize(e)
        self._remember(e, eliminated)
        value, second = self.halves.kept.linearize(eliminated)
        shape = tuple(e.shape)
        return e - value, reduced_jacobian(self.halves, first, second, shape[self.axis :], shape[: self.axis], e.dtype)

    def blocks(self, e: Array) -> Array:
        J: Any = self.whole.blocks(self.whole_state(e))  # type: ignore[misc]
        return reduced_blocks(*split(J, self.axis))

    def parameter_jvp(self, e: Array, tangents: Mapping[str, Array]) -> Array:
        eliminated, _ = self.halves.eliminated.linearize(e)
        change: Any = self.whole.parameter_jvp(merge(eliminated, e, self.axis), tangents)  # type: ignore[misc]
        _, second = self.halves.kept.linearize(eliminated)
        from_eliminated, direct = split(change, self.axis)
        return direct + second.matvec(from_eliminated)

    def parameter_vjp(self, e: Array, w: Array) -> Mapping[str, Array]:
        eliminated = self.halves.eliminated.apply(e)
        _, second = self.halves.kept.linearize(eliminated)
        x, whole_w = merge(eliminated, e, self.axis), merge(second.rmatvec(w), w, self.axis)
        return self.whole.parameter_vjp(x, whole_w)  # type: ignore[misc]

    def take(self, indices: Indices) -> Problem:
        return EvenOdd(self.whole.take(indices)).problem  # type: ignore[misc]

    def initial_guess(self, kind: str, rng: np.random.Generator | None) -> Array:
        return split(self.whole.initial_guess(kind, rng), self.axis)[1]  # type: ignore[misc]

    def start(self, x0: Array) -> Array:
        """The kept blocks of a start."""
        return split(x0, self.axis)[1]

    def stop(self, stop: NonlinearStop) -> NonlinearStop:
        """The criterion for the residual of the kept blocks; a user's norm is applied to all blocks."""
        norm: Any = stop.norm
        if not callable(norm):
            return stop
        return replace(stop, norm=lambda F: norm(self.pad(F, 0)))

    def monitor(self, monitor: Monitor) -> Monitor:
        """A monitor that shows all blocks."""
        return map_monitor(monitor, lambda x, F: (expand(self.whole, x), self.pad(F, self.axis)))

    def _remember(self, e: Array, eliminated: Array) -> None:
        """Keep the eliminated blocks of the latest point, which usually is the solution, for `whole_state`."""
        if self.length and isinstance(e, np.ndarray):  # on a device the host would have to wait for a comparison
            own = np.require(eliminated, requirements="W") if self.whole.pure else np.array(eliminated)
            self.latest[:] = [(e.copy(), own)]

    def whole_state(self, e: Array) -> Array:
        """All blocks; the eliminated ones cost half a residual, unless this is the latest point."""
        for kept, eliminated in self.latest:
            if kept.shape == e.shape and (kept == e).all():
                return merge(eliminated, e, self.axis)
        return expand(self.whole, e)

    def pad(self, R: Array, axis: int) -> Array:
        """The residual of all blocks."""
        xp = array_namespace(R)
        shape = list(R.shape)
        shape[axis] = self.length - R.shape[axis]
        return merge(xp.zeros(tuple(shape), dtype=R.dtype, device=R.device), R, axis)


def split(x: Array, axis: int) -> tuple[Array, Array]:
    """Blocks 0, 2, 4, ... and blocks 1, 3, 5, ... along an axis, as views."""
    before = (slice(None),) * axis
    return x[(*before, slice(0, None, 2), ...)], x[(*before, slice(1, None, 2), ...)]


def merge(eliminated: Array, kept: Array, axis: int) -> Array:
    """The array whose blocks `split` gives back."""
    xp = array_namespace(eliminated)
    shape = list(eliminated.shape)
    shape[axis] += kept.shape[axis]
    x = xp.empty(tuple(shape), dtype=eliminated.dtype, device=eliminated.device)
    before = (slice(None),) * axis
    x[(*before, slice(0, None, 2), ...)] = eliminated
    x[(*before, slice(1, None, 2), ...)] = kept
    return x


Shape: TypeAlias = tuple[int, ...]


def reduced_jacobian(
    halves: Halves, first: Coupling, second: Coupling, in_shape: Shape, batch_shape: Shape, dtype: DType
) -> LinearOperator:
    """I - second first, on states of a batch."""

    def take(indices: Indices) -> LinearOperator:
        return reduced_jacobian(halves, first.take(indices), second.take(indices), in_shape, (len(indices),), dtype)

    def cast(dtype: DType) -> LinearOperator:
        return reduced_jacobian(halves, first.astype(dtype), second.astype(dtype), in_shape, batch_shape, dtype)

    return LinearOperator(
        lambda v: v - second.matvec(first.matvec(v)),
        lambda w: w - first.rmatvec(second.rmatvec(w)),
        in_shape=in_shape,
        batch_shape=batch_shape,
        dtype=dtype,
        take=take if batch_shape else None,
        inverse=(lambda: _inverse(first, second)) if halves.nearly_diagonal else None,
        cast=cast,
    )


def reduced_blocks(eliminated: Array, kept: Array) -> Array:
    """Blocks (..., T // 2, 3, k, k) of the Schur complement, from the rows of J; their diagonal blocks are I."""
    xp, n = array_namespace(kept), kept.shape[-4]
    previous, following = kept[..., 0, :, :], kept[..., 2, :, :]
    before, behind = eliminated[..., :n, :, :, :], eliminated[..., 1:, :, :, :]
    within = behind.shape[-4]  # less than n where a kept block is the last one
    blocks = xp.zeros_like(kept)
    blocks[..., 0, :, :] = -(previous @ before[..., 0, :, :])
    blocks[..., 1, :, :] = kept[..., 1, :, :] - previous @ before[..., 2, :, :]
    blocks[..., :within, 1, :, :] -= following[..., :within, :, :] @ behind[..., 0, :, :]
    blocks[..., :within, 2, :, :] = -(following[..., :within, :, :] @ behind[..., 2, :, :])
    return blocks


def _inverse(first: Coupling, second: Coupling) -> LinearOperator:
    """Inverse of I - second first, with each block replaced by its diagonal."""
    previous, following = second.diagonals()
    own_previous, own_following = first.diagonals()
    work: Any = vectors_like(previous)
    return tridiagonal_inverse(*work.half_diagonals(previous, following, own_previous, own_following))


def halves_of(caller: str, problem: Any) -> Halves:
    """The halves of a problem that must have them."""
    if not isinstance(problem, Problem):
        raise TypeError(f"{caller}: `problem` must be a Problem, got {type(problem).__name__}")
    if problem.halves is None:
        raise ValueError(f"{caller}: `problem` {problem.name!r} must have `halves`, got None")
    return problem.halves
