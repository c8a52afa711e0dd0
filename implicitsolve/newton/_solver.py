"""NewtonKrylov: the outer loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import eps, gather, norm2, norm_max, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov._base import KrylovMethod
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._direction import FixedMethod, GrowingSpace
from implicitsolve.newton._forcing import EisenstatWalker, Forcing
from implicitsolve.newton._line_search import Backtracking, LineSearch
from implicitsolve.result import NewtonStep
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop


@dataclass(frozen=True, kw_only=True)
class NewtonKrylov:
    krylov: KrylovMethod | None = None
    forcing: Forcing = EisenstatWalker()
    line_search: LineSearch = Backtracking()
    space: int = 20
    largest: int = 400
    recycle: int = 60
    preconditioner: Any = None
    rdiff: float | None = None

    def solve(self, evaluator: Evaluator, x: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Any:
        return _Run(self, evaluator, x, stop, monitor).run()


class _Run:
    def __init__(self, method, evaluator, x, stop, monitor):
        self.method, self.evaluator, self.stop, self.monitor = method, evaluator, stop, monitor
        self.B = x.shape[0]
        self.x_all = evaluator.xp.asarray(x, copy=True)
        self.x = self.x_all

    def run(self):
        m, ev, stop = self.method, self.evaluator, self.stop
        xp = ev.xp
        x = xp.asarray(self.x_all, copy=True)
        B = x.shape[0]
        rows = np.arange(B)
        F, J = ev.trial(x)
        F_all = xp.asarray(F, copy=True)
        status = np.zeros(B, dtype=int)
        norms = norm2(F)
        measure = stop.measure(F, ev.event_shape)
        first = measure.copy()
        meas_all = measure.copy()
        target = stop.target(first, F)
        its = np.zeros(B, dtype=int)
        kits = np.zeros(B, dtype=int)
        eta = m.forcing.first(B)
        steps = []
        direction = GrowingSpace(m.space, m.largest, m.recycle) if m.krylov is None else FixedMethod(krylov=m.krylov, max_iterations=m.space)
        done = stop.holds(measure, target, x, None)
        code = np.where(done, int(Status.CONVERGED), np.where(np.isfinite(norms), 0, int(Status.NONFINITE)))
        best = measure.copy(); since = np.zeros(B, dtype=int)
        def emit(i, **kw):
            st = NewtonStep(iteration=i, systems=rows.copy(), residual_norm=measure.copy(), running=int((code == 0).sum()), counts=ev.tally.counts(), **kw)
            steps.append(st)
            self.monitor(st, x, F)
        root_ev = ev
        emit(0)
        it = 0
        while True:
            # leave
            fin = np.flatnonzero(code != 0)
            if fin.size:
                scatter(self.x_all, rows[fin], gather(x, fin)); scatter(F_all, rows[fin], gather(F, fin))
                status[rows[fin]] = code[fin]; meas_all[rows[fin]] = measure[fin]; 
                keep = np.flatnonzero(code == 0)
                if keep.size == 0: break
                ev = ev.take(keep, x)
                x, F = gather(x, keep), gather(F, keep)
                J = None if J is None else J.take(keep)
                if isinstance(direction, GrowingSpace): direction.take(keep)
                rows, norms, measure, target, eta, best, since, code = (a[keep] for a in (rows, norms, measure, target, eta, best, since, code))
            if it >= stop.max_iterations:
                code[:] = Status.ITERATION_LIMIT
                continue
            it += 1
            ev.length.follow(ev.rows, norm2(x))
            if J is None:
                J = ev.jacobian(x, F)
            floor = np.where(measure > 0, 0.5 * target / measure, 0)
            eta_k = np.minimum(np.maximum(eta, floor), 0.9)
            out = direction.direction(J, F, norms, eta_k, None)
            kits[rows] += out.iterations
            lin = out.residual_norm / norms
            found = m.line_search.search(ev, x, F, norms, out.x, lin)
            prev = norms
            step_norm = norm_max(found.x - x); x_norm = norm_max(found.x)
            x, F, norms, J = found.x, found.F, found.norms, found.jacobian
            measure = stop.measure(F, ev.event_shape)
            its[rows] += found.accepted
            eta = m.forcing.next(np.maximum(eta_k, 0), norms, prev)
            done = stop.holds(measure, target, x, None)
            since = np.where(measure < 0.99 * best, 0, since + 1); best = np.minimum(best, measure)
            code = np.where(done, int(Status.CONVERGED), 0)
            open_ = ~done
            code = np.where(open_ & ~found.accepted, np.where(found.finite, int(Status.LINE_SEARCH_FAILED), int(Status.NONFINITE)), code)
            code = np.where(open_ & found.accepted & (step_norm <= eps(xp, x.dtype) * x_norm), int(Status.STAGNATED), code)
            code = np.where(open_ & (since >= 20), int(Status.STAGNATED), code)
            emit(it, step_length=found.length, forcing=eta_k, linear_residual=lin, krylov_iterations=out.iterations, linear_status=out.status)
        return self.x_all, F_all, status, meas_all, first, its, kits, steps, root_ev.tally.counts()
