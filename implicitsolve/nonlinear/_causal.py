"""Causal systems: substitution block by block, and Newton's method for all blocks at once, with a bound on a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import SearchResult
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.nonlinear._accuracy import LONG, Lengths
from implicitsolve.nonlinear._convergence import NONFINITE, RUNNING, STAGNATED
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import LoopState, NonlinearMethod, Solution, SolveContext
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_number


@dataclass(frozen=True)
class Substitution(NonlinearMethod):
    """Solve a causal system, each of whose blocks depends on earlier ones only, in one sweep.

    Notes
    -----
    The problem's own `Problem.substitute` does it, for the work of one residual, in T steps that follow each other. The
    residual is then measured. "auto" takes this method for every problem that offers it. Where T is large, and there
    are many cores or a GPU, `BlockNewton` with a `CyclicReduction` needs only log T steps for each Newton step.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = ims.adapters.elman(ims.adapters.elman_parameters(2, 4, rng=rng), rng.standard_normal((3, 50, 2)))
    >>> ims.root(layer, method=ims.Substitution()).iterations
    array([1, 1, 1])
    """

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        if context.evaluator.problem.substitute is None:
            raise ValueError("Substitution: the problem must offer `substitute`, got None")
        return _SubstitutionLoop(self, context, start, rows).run()


class _SubstitutionLoop(IterationLoop[LoopState]):
    """One step, after which every system has ended."""

    def _extend(self, state: LoopState, J: LinearOperator | None) -> LoopState:
        return state

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        evaluator, state, before = self.evaluator, self.state, self.state.x
        state.x, state.norms_before = evaluator.substitute(), state.norms
        state.F = evaluator.residual(state.x)
        with np.errstate(all="ignore"):
            step = state.x - before
        self.measured = Norms(state.F, step, state.x)
        state.measure = self._measured_by_stop(self.measured, state.x, state.rows)
        state.norms = norm2(state.F) if callable(self.stop.norm) else state.measure
        self.solution.iterations[state.rows] += 1
        state.status[:] = np.where(np.isfinite(state.norms), STAGNATED, NONFINITE)
        self._mark_converged(step)
        return {"step_length": np.ones(state.rows.size)}

    def _prediction(self, moved: Array, steps: HostArray, before: HostArray, sizes: HostArray) -> Lengths:
        correction, steps, before, sizes = super()._prediction(moved, steps, before, sizes)
        return correction, np.minimum(steps, LONG * sizes), before, sizes  # no J that a long step could have changed


SCAN_NOISE = 64.0  # units in the last place of G(x): smaller entries of F are rounding, which a scan would amplify


@dataclass(frozen=True, kw_only=True)
class CausalNewton(NonlinearMethod):
    """Newton's method for a causal system x = G(x), all of whose blocks are solved for at once.

    Each step linearizes G and applies the exact inverse of J = I - dG/dx, which the problem's J offers: a scan along
    the blocks. An element of the next iterate is Newton's, x - J^-1 F, where this is at most `bound` times the largest
    magnitude in G(x), and else that of G(x).

    Parameters
    ----------
    bound : float, optional
        Default 2. With ``numpy.inf`` every finite step is Newton's, as in [1]_: where G amplifies changes along the
        blocks for a while, this took four times as many steps.

    Raises
    ------
    ValueError
        If the problem has no `substitute`, or its J no `inverse`.

    Notes
    -----
    Both values of an element are exact once all earlier blocks are: n steps make the first n blocks exact, whatever the
    start and the bound, up to rounding. Where changes of a state fade along the blocks, a few steps solve a system of
    any length; where they grow (a positive Lyapunov exponent) the number of steps grows with T, and `Substitution` does
    less work. By default at most 100 steps are taken; a system ends as STAGNATED after 20 in which the norm of F has
    not fallen by 1 %, nor have more blocks from the first on met the tolerance.

    A step costs one linearization and one product with the inverse, and no line search: ||F|| may grow on the way.
    ``x0`` near the solution, such as that of the training step before, saves steps.

    References
    ----------
    .. [1] Lim, Zhu, Selfridge & Kasim, *Parallelizing non-linear sequential models over the sequence length* (DEER),
       ICLR 2024. A variant damped by a trust region: Gonzalez et al., *Towards scalable and stable parallelization of
       nonlinear RNNs* (ELK), NeurIPS 2024.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.diagonal_gru_parameters(2, 4, scale=1.0, rng=rng)
    >>> network = ims.adapters.diagonal_gru(params, rng.standard_normal((3, 5000, 2)))
    >>> result = ims.root(network, method=ims.CausalNewton())
    >>> result.success, result.iterations.max() < 10
    (array([ True,  True,  True]), np.True_)
    """

    bound: float = 2.0

    def __post_init__(self) -> None:
        check_number("CausalNewton", "bound", self.bound)
        if not self.bound > 0:
            raise ValueError(f"CausalNewton: `bound` must be positive, got {self.bound}")

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        problem = context.evaluator.problem
        if problem.substitute is None or problem.linearize is None:
            raise ValueError("CausalNewton: the problem must offer `substitute` and `linearize`, got None")
        return _CausalLoop(self, context, start, rows).run()


@dataclass
class _State(LoopState):
    """The systems that iterate, J there, and the most blocks from either end that have met the tolerance, (b, 2)."""

    J: LinearOperator | None
    most_solved: HostArray


class _CausalLoop(IterationLoop[_State]):
    """Whole steps, bounded element by element."""

    LIMITED = False  # progress is that of the blocks

    def _first_residual(self, x: Array) -> tuple[Array, LinearOperator | None]:
        return self.evaluator.trial(x)

    def _extend(self, state: LoopState, J: LinearOperator | None) -> _State:
        return _State(**vars(state), J=J, most_solved=np.zeros((state.rows.size, 2), dtype=int))

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        evaluator, state = self.evaluator, self.state
        J = evaluator.jacobian(state.x, state.F) if state.J is None else state.J
        x = self._bound(J)
        F, J_there = evaluator.trial(x)
        with np.errstate(all="ignore"):
            step = x - state.x
            measured = Norms(F, step, x)
            norms = measured.two(0)
        finite = np.isfinite(norms)
        ones = np.ones(norms.shape)
        _, is_still = self._accept(SearchResult(x, F, norms, ones, finite, finite, J_there, measured), step)
        state.J = J_there
        solved = self._solved_blocks(F)
        state.since[(solved > state.most_solved).any(axis=1)] = -1  # counts as progress
        state.most_solved = np.maximum(solved, state.most_solved)
        self._update_status(finite, step, is_still, is_last, np.where(finite, RUNNING, NONFINITE))
        return {"step_length": ones}

    def _bound(self, J: LinearOperator) -> Array:
        state, inverse = self.state, J.approximate_inverse()
        if inverse is None:
            raise ValueError("CausalNewton: J must offer its `inverse`, got None")
        xp = array_namespace(state.x)
        with np.errstate(all="ignore"):
            image = state.x - state.F
            size = xp.max(xp.abs(image), axis=1, keepdims=True)
            is_noise = xp.abs(state.F) <= SCAN_NOISE * eps(xp, state.x.dtype) * size
            newton = state.x - inverse.matvec(xp.where(is_noise, xp.zeros_like(state.F), state.F))
            return xp.where(xp.abs(newton) <= self.method.bound * size, newton, image)

    def _solved_blocks(self, F: Array) -> HostArray:
        """How many blocks from either end have no element of F above the target, (b, 2)."""
        xp, blocks = array_namespace(F), (*self.evaluator.event_shape, 1)[0]
        largest = xp.max(xp.abs(xp.reshape(F, (F.shape[0], blocks, -1))), axis=2)
        holds = to_host(largest) <= self.state.target[:, None]
        return np.stack([np.cumprod(side, axis=1).sum(axis=1) for side in (holds, holds[:, ::-1])], axis=1)
