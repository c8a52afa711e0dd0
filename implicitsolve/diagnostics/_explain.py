"""`explain`: what failed, where, and what to try, from what a result holds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from implicitsolve._arrays.host import gather, to_host
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._arrays.traits import check_whole
from implicitsolve._summary import WIDTH, order_by_distance, per_system
from implicitsolve._typing import Array, HostArray
from implicitsolve.derivatives import AdjointResult, TangentResult
from implicitsolve.diagnostics._causes import cause_of, linear_cause
from implicitsolve.diagnostics._history import ENDED_WELL, STOPPED, Case, Cause, histories, largest, native, warning_of
from implicitsolve.diagnostics._probe import probe
from implicitsolve.drivers._batch import BatchResult
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status

LOOKED_AT = 200  # systems of each status, the worst ones
SHOWN = 6  # indices of systems in the text


@dataclass(frozen=True, repr=False)
class Finding:
    """One cause, and the systems that it holds for.

    Attributes
    ----------
    status : Status
        How they ended.
    systems : tuple of tuple of int
        Their indices in the batch, the worst first; ``((),)`` where there is no batch.
    what : str
        What happened; numbers are those of the first system.
    where : str
        Step, entries of F.
    advice : str
        What to try.
    """

    status: Status
    systems: tuple[tuple[int, ...], ...]
    what: str
    where: str
    advice: str

    def __repr__(self) -> str:
        """The same in brackets."""
        return f"<Finding: {self}>"

    def __str__(self) -> str:
        """Status, systems, cause, place and advice."""
        options: Any = {"width": WIDTH, "initial_indent": "  ", "subsequent_indent": "  ", "break_long_words": False}
        return "\n".join([f"{self._title}:", *(textwrap.fill(part, **options) for part in self._parts)])

    @property
    def _title(self) -> str:
        """Status and systems."""
        names = [str(index[0] if len(index) == 1 else index) for index in self.systems[:SHOWN] if index]
        more = f" and {len(self.systems) - SHOWN} more" if len(self.systems) > SHOWN else ""
        systems = f", system{'s' * (len(self.systems) > 1)} {', '.join(names)}{more}" if names else ""
        return f"{self.status.name}{systems}"

    @property
    def _parts(self) -> list[str]:
        """Cause, place and advice."""
        where, advice = self.where and f"Where: {self.where}.", self.advice and f"Try: {self.advice}"
        return [part for part in (self.what, where, advice) if part]


@dataclass(frozen=True, repr=False)
class Explanation:
    """What `explain` found; its text is what to read.

    Attributes
    ----------
    summary : str
        How many systems ended how.
    findings : tuple of Finding
        At least one for each status other than CONVERGED; anything suspicious about systems that have converged.
    notes : tuple of str
        Results of further checks with the problem, and the sparsity of J that the solve has used.
    """

    summary: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        """The whole text."""
        notes = "\n".join(textwrap.fill(note, WIDTH) for note in self.notes)
        return "\n\n".join(part for part in (self.summary, *map(str, self.findings), notes) if part)

    __repr__ = __str__


def explain(result: Any, problem: Problem | Any = None) -> Explanation:
    """Find out what failed, where, and what to try.

    Parameters
    ----------
    result : NonlinearResult, LinearResult, AdjointResult, TangentResult, OptimizeResult or NoConvergence
        What `root`, `solve_batch`, `race`, `linear_solve`, `pull_back`, `push_forward`, or `newton_krylov` with
        ``full_output=True`` returned; or the exception that one of them raised.
    problem : Problem or callable, optional
        What `root` solved. Then derivatives are checked at x, for the system that is farthest from its target, and the
        condition of J, the rounding error of F, and whether x is a stationary point of ||F||.

    Returns
    -------
    Explanation
        Its text, and the `findings`.

    Raises
    ------
    TypeError
        If `result` is none of these, or `problem` is given for a result of another function than `root`.

    See Also
    --------
    check_derivatives, condition, contraction, spectrum : the checks made with the problem.

    Notes
    -----
    Reads the recorded steps: norms, step lengths, tolerances of linear solves and their residuals. For each status the
    200 systems farthest from their targets are examined individually. Without `problem` no user function is called.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> result = ims.root(lambda x: np.where(x > 0, x**2 - 2, np.nan), np.array([4.0, -1.0]))
    >>> ims.diagnostics.explain(result)
    The solve failed: NONFINITE.
    <BLANKLINE>
    NONFINITE:
      F is not finite at the start: 1 of 2 entries, the first [1] = nan, where x is -1.
      Where: step 0, entry of F [1] = nan.
      Try: Start inside the domain of the residual, or extend it there.
    """
    result = native(result)
    if isinstance(result, NonlinearResult):
        check_whole("explain", result.x, "`result.summary()`")
        return _of_nonlinear(result, problem)
    if not isinstance(result, LinearResult | AdjointResult | TangentResult):
        raise TypeError(f"explain: `result` must be the result of a solve, got {type(result).__name__}")
    if problem is not None:
        raise TypeError(f"explain: `problem` is for results of `root`, got a {type(result).__name__} with it")
    return _of_linear(result)


# ------------------------------------------------------------------------------------------------------------ nonlinear


def _of_nonlinear(result: NonlinearResult, problem: Any) -> Explanation:
    status = np.asarray(result.status)
    codes = status.reshape(-1)
    order = order_by_distance(codes, per_system(result.residual_norm, status), per_system(result.target, status))
    findings: list[Finding] = []
    kinds: dict[int, str] = {}
    for code in [*sorted(set(codes.tolist()) - {int(Status.CONVERGED)}), int(Status.CONVERGED)]:
        rows = order[codes[order] == code]
        if code in (Status.LOST, Status.CANCELLED):
            findings += _unsolved(result, Status(code), rows, status.shape)
        elif rows.size:
            cases = _cases(result, Status(code), rows[:LOOKED_AT])
            kinds |= {row: case.history.kind for row, case in cases.items()}
            findings += _grouped(Status(code), cases, rows, status.shape)
    notes: list[str] = []
    asked = order[~np.isin(codes[order], (Status.LOST, Status.CANCELLED, *STOPPED))]
    finite = asked[np.isfinite(per_system(result.residual_norm, status)[asked])]
    if problem is not None and asked.size:
        row = int((finite if finite.size else asked)[0])
        more, notes = _probed(result, problem, row, status, kinds.get(row, ""))
        findings = more + findings
    return Explanation(_headline(status), tuple(findings), (*notes, *_sparsity(result)))


def _sparsity(result: NonlinearResult) -> list[str]:
    """The sparsity of J that the solve has used, and what to do where the search gave up."""
    found = result.detection
    if found is None:
        return []
    advice = " If J is sparse, declare its pattern by `structure`." if found.how in ("budget", "contradiction") else ""
    return [f"Sparsity of J: {found}.{advice}"]


def _headline(status: HostArray) -> str:
    if not status.size:
        return "The batch is empty."
    if not status.ndim:
        ended = Status(int(status))
        if ended in ENDED_WELL:
            return "The solve was stopped as requested." if ended in STOPPED else "The solve converged."
        return f"The solve failed: {ended.name}."
    stopped, failed = int(np.isin(status, STOPPED).sum()), int((~np.isin(status, ENDED_WELL)).sum())
    asked = f"{stopped} stopped as requested"
    if not failed:
        done = status.size - stopped
        return f"Of {status.size} systems {done} converged, {asked}." if stopped else f"All {done} systems converged."
    return f"{failed} of {status.size} systems did not converge{f', {asked}' if stopped else ''}."


def _cases(result: NonlinearResult, status: Status, rows: HostArray) -> dict[int, Case]:
    """The records of some systems of the flattened batch."""
    shape = np.shape(result.status)
    x, F = (_rows(part, rows, len(shape)) for part in (result.x, result.fun))
    known = (result.residual_norm, result.initial_norm, result.target)
    norm, first, target = (per_system(part, result.status).tolist() for part in known)
    precision = eps(array_namespace(result.x), result.x.dtype)
    exact = result.counts.jvps > 0
    return {
        row: Case(status, history, x[i], F[i], norm[row], first[row], target[row], precision, exact)
        for i, (row, history) in enumerate(zip(rows.tolist(), histories(result, rows.tolist())))
    }


def _rows(x: Array, rows: HostArray, batch_ndim: int) -> HostArray:
    """Some systems of x, on the host."""
    systems = array_namespace(x).reshape(x, (math.prod(x.shape[:batch_ndim]), *x.shape[batch_ndim:]))
    return to_host(gather(systems, rows))


def _grouped(status: Status, cases: dict[int, Case], rows: HostArray, shape: tuple[int, ...]) -> list[Finding]:
    """A finding for each cause; systems beyond those examined make one more."""
    groups: dict[str, tuple[Cause, list[int]]] = {}
    for row, case in cases.items():
        cause = warning_of(case) if status == Status.CONVERGED else cause_of(case)
        if cause is not None:
            groups.setdefault(cause.key, (cause, []))[1].append(row)
    findings = [
        Finding(status, _indices(members, shape), cause.what, _where(cases[members[0]]), cause.advice)
        for cause, members in groups.values()
    ]
    rest = rows[LOOKED_AT:].tolist()
    if rest and status != Status.CONVERGED:
        what = f"These {len(rest)} have the same status and are closer to their targets; they were not examined."
        findings.append(Finding(status, _indices(rest, shape), what, "", "As above."))
    return findings


def _where(case: Case) -> str:
    if case.status == Status.CONVERGED or case.status in STOPPED:
        return ""
    bad = not np.isfinite(case.F).all()
    return f"step {case.history.steps}, {'entry' if bad else 'largest entry'} of F {largest(case.F)}"


def _indices(rows: list[int], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in np.unravel_index(row, shape)) if shape else () for row in rows)


def _unsolved(result: NonlinearResult, status: Status, rows: HostArray, shape: tuple[int, ...]) -> Iterator[Finding]:
    """Systems of `solve_batch` that were not solved."""
    if status == Status.CANCELLED and rows.size:
        what = "`cancel` was set before these systems were started; x is their initial guess."
        yield Finding(status, _indices(rows.tolist(), shape), what, "", "Solve them again: problem.take(indices).")
    if status == Status.LOST and rows.size:
        known = result.lost if isinstance(result, BatchResult) else ()
        for chunk in known:
            systems = _indices(chunk.systems.tolist(), shape)
            what = f"The worker of these systems was lost: {type(chunk.error).__name__}: {chunk.error}"
            advice = "More memory for each worker, or smaller `chunks`; a residual in compiled code may have crashed."
            yield Finding(status, systems, what, "", advice)
        if not known:
            yield Finding(status, _indices(rows.tolist(), shape), f"{status.message}.", "", status.hint)


def _probed(
    result: NonlinearResult, problem: Any, row: int, status: HostArray, kind: str
) -> tuple[list[Finding], list[str]]:
    """Checks of one system with the problem."""
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    (index,) = _indices([row], status.shape)
    ended = Status(int(status.reshape(-1)[row]))
    norm = float(per_system(result.residual_norm, status)[row])
    found = probe(problem, result.x, index or None, ended, kind, norm)
    findings = [Finding(ended, (index,), what, "at x", advice) for what, advice in found.remarks]
    notes = found.notes
    if notes and status.ndim:
        notes = [f"Of system {(index[0] if len(index) == 1 else index)}:", *notes]
    return findings, notes


# --------------------------------------------------------------------------------------------------------------- linear


def _of_linear(result: LinearResult | AdjointResult | TangentResult) -> Explanation:
    linear = result if isinstance(result, LinearResult) else result.linear
    status = np.asarray(result.status)
    codes, norms, target = (
        status.reshape(-1),
        per_system(linear.residual_norm, status),
        per_system(linear.target, status),
    )
    iterations = per_system(linear.iterations, status)
    order = order_by_distance(codes, norms, target)
    findings: list[Finding] = []
    for code in sorted(set(codes.tolist()) - {int(Status.CONVERGED)}):
        rows = order[codes[order] == code].tolist()
        norm, aim, spent = (part[rows[0]].item() for part in (norms, target, iterations))
        what, advice = linear_cause(Status(code), norm, aim, spent, result)
        findings.append(Finding(Status(code), _indices(rows, status.shape), what, "", advice))
    return Explanation(_headline(status), tuple(findings))
