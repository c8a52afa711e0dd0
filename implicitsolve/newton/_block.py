"""BlockNewton: Newton's method with a factorized block-banded Jacobian, kept while it serves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from implicitsolve._assemble import Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import eps, gather, norm2, norm_max, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import BlockLU, DirectMethod
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._broyden import BroydenInverse
from implicitsolve.newton._line_search import SUFFICIENT_DECREASE, Backtracking, LineSearch, Searched
from implicitsolve.newton._loop import HALVED, NewtonLoop, Solution
from implicitsolve.newton._pieces import Pieces
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_part, check_rdiff

DIGITS = 1.5  # decimal digits of ||F|| that a new Jacobian is expected to bring
KEPT_DECREASE = 0.9  # of ||F||, short of which a step with a kept J is not taken: it may lead astray
OLDEST = 20  # steps after which J is assembled anew in any case: each update costs a vector and two passes over it
ROUNDING = 0.5  # F's change between neighbouring numbers, over F, from which on F is rounding error
FAR = 1e6  # times the change that J predicts between neighbouring numbers: an F above it is no rounding error
GUESSES = 5  # assemblies at most at one point, while the length of differences is a guess
# As integers: an attribute of an enumeration costs a call.
RUNNING, CONVERGED, STAGNATED = int(Status.RUNNING), int(Status.CONVERGED), int(Status.STAGNATED)
NONFINITE, LINE_SEARCH_FAILED, SINGULAR = (
    int(Status.NONFINITE),
    int(Status.LINE_SEARCH_FAILED),
    int(Status.SINGULAR),
)
REUSES = ("broyden", "chord", "none")


@dataclass(frozen=True, kw_only=True)
class BlockNewton:
    """Newton's method for problems with a declared structure: J is assembled, factorized, and kept while it serves.

    Parameters
    ----------
    factor : BlockLU or CyclicReduction, optional
        The direct method.
    reuse : {"broyden", "chord", "none"}, optional
        What happens between assemblies. "broyden" (the default) corrects the factorized J by Broyden's rank-one updates
        [1]_, which costs no evaluation; "chord" uses it as it is; "none" assembles J in every step, which is Newton's
        method.
    line_search : Backtracking or FullStep, optional
        How far to go along a direction from a new J.
    rdiff : float, optional
        Relative step of the differences, for problems without products or blocks. Default: eps^(1/4), 1.2e-4 in
        float64; ``sqrt(eps) T``, up to 1e-3, for more than 8000 blocks.

    Notes
    -----
    An assembly takes c = k (lower + upper + 1) products or residuals (1 where the problem has a matrix), a step with
    a kept J one residual. J is assembled anew where the last two steps with the old one brought ||F|| down by less
    than a factor 10^(-1.5/(c+1)) each in the mean: a new J should bring 1.5 digits for c + 1 evaluations. So it is
    where a step with a kept J reduced ||F|| by less than a tenth, which is not taken, and after 20 steps. A direction
    from a new J goes through the line search.

    Differences are longer than the sqrt(eps) that suits one product: all entries of J pass through a direct solve,
    where rounding errors are multiplied by the condition of J (10^9 and more on fine grids), and truncation is not.

    Memory per system, in vectors of T k numbers: k (lower + upper + 1) for J and the factors' (`BlockLU`), and one for
    each step since the last assembly.

    References
    ----------
    .. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), chapters 5 and 7.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 101**2
    >>> problem = ims.Problem(bratu, structure=ims.BlockBanded(1, 1))
    >>> result = ims.root(problem, np.zeros(100), method=ims.BlockNewton())
    >>> result.success, float(result.x.max().round(4)), result.counts.residuals < 12
    (True, 0.6401, True)
    """

    factor: DirectMethod = BlockLU()
    reuse: str = "broyden"
    line_search: LineSearch = Backtracking()
    rdiff: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.reuse not in REUSES:
            raise ValueError(f"BlockNewton: `reuse` must be one of {REUSES}, got {self.reuse!r}")
        check_rdiff("BlockNewton", self.rdiff)
        check_part("BlockNewton", "factor", self.factor, "factor")
        check_part("BlockNewton", "line_search", self.line_search, "search")

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        if evaluator.problem.structure is None:
            raise ValueError("BlockNewton: the problem must declare its `structure`, got None")
        return _BlockLoop(self, evaluator, Solution.at(x0), stop, monitor).run()


class _BlockLoop(NewtonLoop):
    """A Newton loop whose directions come from a factorized J and the updates since."""

    PER_SYSTEM = (*NewtonLoop.PER_SYSTEM, "is_stale", "age", "rate", "is_exhausted")

    def __init__(
        self,
        method: BlockNewton,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        super().__init__(evaluator, solution, stop, monitor, rows)
        self.method = method
        self.assembler = Assembler(evaluator, method.rdiff, certifies=False)
        self.inverse = Pieces()
        self.updates = BroydenInverse()
        self.first_direction: Array | None = None  # -J^-1 F, where the check of a new J has computed it for all
        size = self.rows.size
        self.is_stale = np.ones(size, dtype=bool)
        self.age = np.zeros(size, dtype=int)  # steps since the last assembly
        self.is_exhausted = np.zeros(size, dtype=bool)  # F(x) is rounding error
        self.rate = np.ones(size)  # ||F|| over ||F|| one step before, of the last step

    def _step(self, iteration: int, is_last: HostArray) -> None:
        fresh = self.is_stale.copy()
        if fresh.any():
            self._factorize(fresh)
        with np.errstate(all="ignore"):
            direction = self._direction()
            new_x = self.x + direction
        new_F = self.evaluator.residual(new_x)
        new_norms = norm2(new_F)
        if self.solution.status.size == 1 and new_norms[0] <= HALVED * self.norms[0] and not is_last[0]:
            self._take(new_x, new_F, new_norms, direction, bool(fresh[0]))
            length = np.ones(1)
        else:
            previous = self.norms
            finite = np.isfinite(new_norms)
            whole = Searched(new_x, new_F, new_norms, np.ones(fresh.size), finite.copy(), finite, None)
            found = self._search(whole, direction, fresh)
            moved, is_still = self._move(found, direction)
            self.updates.step(moved, direction, found.length)
            self._judge(found, moved, is_still & fresh, is_last, self._failed(found, direction, fresh, previous))
            self._age(fresh, found.accepted, previous)
            length = found.length
        self._report(iteration, step_length=length, factorized=fresh)

    def _take(self, x: Array, F: Array, norms: HostArray, direction: Array, fresh: bool) -> None:
        """Take over a whole step of one system that halved ||F||: few of the rules have anything to decide."""
        norm = float(norms[0])
        rate = norm / float(self.norms[0])
        self.x, self.F, self.norms = x, F, norms
        self.measure = self.stop.measure(F, self.whole.event_shape)
        self.solution.iterations[self.rows[0]] += 1
        if norm == 0 or self.stop.holds(self.measure, self.target, x, direction)[0]:
            self.code[0] = CONVERGED
            return
        self.updates.step(direction, direction)
        if self.measure[0] < self.NEW_BEST * self.best[0]:
            self.since[0], self.best[0] = 0, self.measure[0]
        else:
            self.since[0] += 1
        if self.since[0] >= self.PATIENCE:
            self.code[0] = STAGNATED
        age = 1 if fresh else int(self.age[0]) + 1
        mean = math.sqrt(rate * float(self.rate[0])) if age > 2 else rate
        self.age[0], self.rate[0] = age, rate
        self.is_stale[0] = not mean <= self._slowest() or age >= OLDEST or self.method.reuse == "none"
        self.updates.forget(age)

    def _failed(self, found: Searched, direction: Array, fresh: HostArray, previous: HostArray) -> HostArray:
        """Status of systems for which even a new J did not help."""
        failed = np.full(fresh.size, RUNNING)
        lost = fresh & ~found.accepted
        if lost.any():
            failed[lost] = np.where(found.finite, LINE_SEARCH_FAILED, NONFINITE)[lost]
            failed[lost & ~np.isfinite(norm_max(direction))] = SINGULAR
            failed[lost & self.is_exhausted] = STAGNATED
        idle = np.flatnonzero(fresh & (found.length == 1.0) & ~(found.norms < HALVED * previous))
        if idle.size:
            failed[idle[self._is_rounding(idle)]] = STAGNATED
        return failed

    def _direction(self) -> Array:
        """-J^-1 F with what is kept of J."""
        direction = self.inverse.negative(self.F) if self.first_direction is None else self.first_direction
        self.first_direction = None
        return self.updates.corrected(direction) if self.method.reuse == "broyden" else direction

    def _factorize(self, fresh: HostArray) -> None:
        """Assemble and factorize J of some systems."""
        self.updates.reset(fresh)
        rows = np.flatnonzero(fresh)
        for _ in range(GUESSES):
            if not rows.size:
                break
            part, x, F = self._part(rows)
            assembler = self.assembler
            J = assembler.assemble(part, x, F)
            inverse = self.method.factor.factor(J)
            self.inverse.replace(rows, inverse)
            if assembler.is_certain(part.rows):
                break
            with np.errstate(all="ignore"):
                direction = inverse.negative(F)
            again = assembler.check(part.rows, direction)
            self.first_direction = None if again.any() or rows.size < self.rows.size else direction
            rows = rows[again]

    def _part(self, rows: Indices) -> tuple[Evaluator, Array, Array]:
        """Evaluator, x and F of some of the running systems."""
        if rows.size == self.rows.size:
            return self.evaluator, self.x, self.F
        return self.evaluator.take(rows, self.x), gather(self.x, rows), gather(self.F, rows)

    def _search(self, found: Searched, direction: Array, fresh: HostArray) -> Searched:
        """Take whole steps where they reduce ||F||; search along new directions, and drop old ones, that do not."""
        x, F, norms = self.x, self.F, self.norms
        least = np.where(fresh, 1 - SUFFICIENT_DECREASE, KEPT_DECREASE)
        with np.errstate(invalid="ignore"):
            found.accepted = found.norms <= least * norms
        if found.accepted.all():
            return found
        rejected = np.flatnonzero(~found.accepted)
        rows = rejected[fresh[rejected] & np.isfinite(norm_max(direction))[rejected]]
        rows = rows[~self._is_rounding(rows)] if rows.size else rows
        whole = found.take(rows)
        scatter(found.x, rejected, gather(x, rejected))
        scatter(found.F, rejected, gather(F, rejected))
        found.norms[rejected], found.length[rejected] = norms[rejected], 0.0
        if rows.size:
            part, x, F = self._part(rows)
            exact, inverse = np.zeros(rows.size), self.inverse.take(rows)
            again = self.method.line_search.search(
                part, x, F, norms[rows], gather(direction, rows), exact, inverse.matvec, whole
            )
            scatter(found.x, rows, again.x)
            scatter(found.F, rows, again.F)
            for name in ("norms", "length", "accepted", "finite"):
                getattr(found, name)[rows] = getattr(again, name)
        found.jacobian = None
        return found

    def _is_rounding(self, rows: Indices) -> HostArray:
        """Whether F(x) is no larger than its change between neighbouring floating-point numbers."""
        with np.errstate(invalid="ignore"):
            precision = eps(self.evaluator.xp, self.x.dtype)
            is_far = self.norms[rows] > FAR * precision * self.assembler.sensitivity[self.evaluator.rows[rows]]
        if is_far.all():
            return ~is_far
        part, x, F = self._part(rows)
        xp = part.xp
        sign = xp.asarray(1 - 2 * (np.arange(x.shape[1]) % 2), dtype=x.dtype, device=x.device)
        neighbour = part.residual(x * (1 + eps(xp, x.dtype) * sign), keep=False)
        is_rounding = norm2(neighbour - F) >= ROUNDING * self.norms[rows]
        self.is_exhausted[rows] = is_rounding
        return is_rounding

    def _age(self, fresh: HostArray, accepted: HostArray, previous: HostArray) -> None:
        """Decide which systems need a new J."""
        with np.errstate(all="ignore"):
            rate = np.where(accepted, self.norms / previous, 1.0)
        self.age = np.where(fresh, 1, self.age + 1)
        mean = np.where(self.age > 2, np.sqrt(rate * self.rate), rate)
        slow = ~(mean <= self._slowest())
        self.rate = rate
        self.is_stale = slow | ~accepted | (self.age >= OLDEST)
        if self.method.reuse == "none":
            self.is_stale[:] = True
        self.updates.forget(int(self.age.max()))

    def _slowest(self) -> float:
        """Rate at which a kept J still pays."""
        return 0.1 ** (DIGITS / (self.assembler.cost + 1))

    def _keep(self, keep: Indices) -> None:
        self.inverse = self.inverse.take(keep)
        self.updates.take(keep)
