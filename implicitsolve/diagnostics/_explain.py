"""`explain`: what failed, where, and what to try, from what a result holds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from implicitsolve._arrays.host import gather, to_host
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._summary import WIDTH, WORST, order_by_distance, per_system
from implicitsolve._typing import Array, HostArray
from implicitsolve.derivatives import AdjointResult, TangentResult
from implicitsolve.diagnostics._causes import CHECK, Cause, find_cause, find_linear_cause, sentence
from implicitsolve.diagnostics._checks import examine
from implicitsolve.diagnostics._history import ENDED_WELL, MANY_SYSTEMS, STOPPED, Case, read_histories
from implicitsolve.diagnostics._system import System, unwrap
from implicitsolve.drivers._batch import BatchResult
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.structure import Outcome
from implicitsolve.structure._block_triangular import singularity


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
        return f"<Finding: {self}>"

    def __str__(self) -> str:
        options: Any = {"width": WIDTH, "initial_indent": "  ", "subsequent_indent": "  ", "break_long_words": False}
        return "\n".join([f"{self._title}:", *(textwrap.fill(part, **options) for part in self._parts)])

    @property
    def _title(self) -> str:
        names = [str(index[0] if len(index) == 1 else index) for index in self.systems[:WORST] if index]
        more = f" and {len(self.systems) - WORST} more" if len(self.systems) > WORST else ""
        systems = f", system{'s' * (len(self.systems) > 1)} {', '.join(names)}{more}" if names else ""
        return f"{self.status.name}{systems}"

    @property
    def _parts(self) -> list[str]:
        where, advice = self.where and f"Where: {self.where}.", self.advice and f"Try: {self.advice}"
        return [part for part in (self.what, where, advice) if part]


@dataclass(frozen=True, repr=False)
class Explanation:
    """What `explain` found; its text is what to read.

    Attributes
    ----------
    summary : str
        How many systems ended with each status.
    findings : tuple of Finding
        At least one for each status other than CONVERGED, and one for anything suspicious in converged systems.
    notes : tuple of str
        Results of further checks with the problem, and the sparsity of J that the solve has used.
    """

    summary: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        notes = "\n".join(textwrap.fill(line, WIDTH) for note in self.notes for line in note.splitlines())
        return "\n\n".join(part for part in (self.summary, *map(str, self.findings), notes) if part)

    __repr__ = __str__


def explain(result: Any, problem: Problem | Callable[[Array], Array] | None = None) -> Explanation:
    """Find out what failed, where, and what to try.

    Parameters
    ----------
    result : NonlinearResult, LinearResult, AdjointResult, TangentResult, OptimizeResult or NoConvergence
        What `root`, `solve_batch`, `race`, `linear_solve`, `pull_back`, `push_forward`, or `newton_krylov` with
        ``full_output=True`` returned; or the exception that one of them raised.
    problem : Problem or callable, optional
        What `root` solved. Then the system that is farthest from its target is examined at x: its derivatives, the
        rounding error of F, the condition of J, and whether x is a minimum of ||F|| that is not a root.

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
    1000 systems farthest from their targets are examined individually. Without `problem` no user function is called.

    Examples
    --------
    >>> result = ims.root(lambda x: np.where(x > 0, x**2 - 2, np.nan), np.array([4.0, -1.0]))
    >>> ims.diagnostics.explain(result)
    The solve failed: NONFINITE.
    <BLANKLINE>
    NONFINITE:
      F is not finite at the start: 1 of 2 entries, the first [1] = nan, where x is -1.
      Where: step 0, entry of F [1] = nan.
      Try: Start inside the domain of the residual, or extend it there.
    """
    result = unwrap(result)
    if isinstance(result, NonlinearResult):
        return _of_nonlinear(result, problem)
    if not isinstance(result, LinearResult | AdjointResult | TangentResult):
        raise TypeError(f"explain: `result` must be the result of a solve, got {type(result).__name__}")
    if problem is not None:
        raise TypeError(f"explain: `problem` is for results of `root`, got a {type(result).__name__} with it")
    return _of_linear(result)


def _of_nonlinear(result: NonlinearResult, problem: Any) -> Explanation:
    status = np.asarray(result.status)
    codes, shape = status.reshape(-1), status.shape
    order = order_by_distance(codes, per_system(result.residual_norm, status), per_system(result.target, status))
    findings: list[Finding] = []
    cases: dict[int, Case] = {}
    told: dict[int, tuple[Cause, str]] = {}  # the cause of each system, and where
    for code in [*sorted(set(codes.tolist()) - {int(Status.CONVERGED)}), int(Status.CONVERGED)]:
        rows = order[codes[order] == code]
        if code in (Status.LOST, Status.CANCELLED):
            findings += _list_unsolved(result, Status(code), rows, shape)
            continue
        some = _read_cases(result, Status(code), rows[:MANY_SYSTEMS])
        cases |= some
        told |= {row: (cause, case.place) for row, case in some.items() if (cause := find_cause(case)) is not None}
        if code != Status.CONVERGED:
            rest = rows[MANY_SYSTEMS:].tolist()
            what = f"These {len(rest)} have the same status and are closer to their targets; they were not examined."
            told |= dict.fromkeys(rest, (Cause("rest", what, "As above."), ""))
    notes: list[str] = []
    asked = [row for row in order.tolist() if row in cases and cases[row].status not in STOPPED]
    asked = [row for row in asked if np.isfinite(cases[row].norm)] or asked
    if problem is not None and asked:
        notes, told = _examine(result, problem, asked[0], cases[asked[0]], told)
    groups: dict[tuple[int, str], list[int]] = {}
    for row, (cause, _) in told.items():
        groups.setdefault((int(codes[row]), cause.key), []).append(row)
    for (code, _), alike in groups.items():
        cause, where = told[alike[0]]
        findings.append(Finding(Status(code), _indices(alike, shape), cause.what, where, cause.advice))
    return Explanation(_headline(status), tuple(findings), (*notes, *_sparsity(result)))


def _sparsity(result: NonlinearResult) -> list[str]:
    """The sparsity of J that the solve has used, and what to do where the search found none."""
    found = result.detection
    if found is None:
        return []
    is_open = found.how in (Outcome.BUDGET, Outcome.CONTRADICTION)
    advice = " If J is sparse, declare its pattern by `structure`." if is_open else ""
    reason = "" if found.structure is None else singularity(found.structure, result.problem)
    return [f"Sparsity of J: {found}.{advice}", *([f"{reason}."] if reason else [])]


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


def _read_cases(result: NonlinearResult, status: Status, rows: HostArray) -> dict[int, Case]:
    ndim = np.ndim(result.status)

    def select(x: Array) -> HostArray:
        return to_host(gather(array_namespace(x).reshape(x, (math.prod(x.shape[:ndim]), *x.shape[ndim:])), rows))

    x, F = select(result.x), select(result.fun)
    known = (result.residual_norm, result.initial_norm, result.target)
    norms, firsts, targets = (per_system(part, result.status).tolist() for part in known)
    precision, exact = eps(array_namespace(result.x), result.x.dtype), result.counts.jvps > 0
    labels = (getattr(result.problem, "names", None), getattr(result.problem, "equations", None))
    return {
        row: Case(status, history, x[i], F[i], norms[row], firsts[row], targets[row], precision, exact, *labels)
        for i, (row, history) in enumerate(zip(rows.tolist(), read_histories(result, rows.tolist())))
    }


def _examine(
    result: NonlinearResult, problem: Any, row: int, case: Case, told: dict[int, tuple[Cause, str]]
) -> tuple[list[str], dict[int, tuple[Cause, str]]]:
    """Check one system with the problem: notes, and all causes; the one found here replaces the one from its steps."""
    (index,) = _indices([row], np.shape(result.status))
    cause, notes = examine(System("explain", problem, result, index or None), case)
    if cause is not None:
        told.pop(row, None)
        told = {row: (replace(cause, key=f"{cause.key}, examined"), case.place or "at x")} | told
    if row in told:
        said, where = told[row]
        told[row] = replace(said, advice=said.advice.replace(CHECK, "").strip()), where
    return [f"Of system {index[0] if len(index) == 1 else index}:", *notes] if notes and index else notes, told


def _indices(rows: list[int], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in np.unravel_index(row, shape)) if shape else () for row in rows)


def _list_unsolved(
    result: NonlinearResult, status: Status, rows: HostArray, shape: tuple[int, ...]
) -> Iterator[Finding]:
    """Systems of `solve_batch` that were not solved."""
    chunks = result.lost if isinstance(result, BatchResult) and status == Status.LOST else ()
    parts = [(chunk.systems, f": {type(chunk.error).__name__}: {chunk.error}") for chunk in chunks] or [(rows, "")]
    for systems, error in parts if rows.size else ():
        what = f"{sentence(status)}{error}."
        yield Finding(status, _indices(systems.tolist(), shape), what, "", status.hint)


def _of_linear(result: LinearResult | AdjointResult | TangentResult) -> Explanation:
    linear = result if isinstance(result, LinearResult) else result.linear
    status = np.asarray(result.status)
    parts = (linear.residual_norm, linear.target, linear.iterations)
    codes, norms, target, iterations = status.reshape(-1), *(per_system(part, status) for part in parts)
    order = order_by_distance(codes, norms, target)
    findings: list[Finding] = []
    for code in sorted(set(codes.tolist()) - {int(Status.CONVERGED)}):
        rows = order[codes[order] == code].tolist()
        norm, aim, spent = (part[rows[0]].item() for part in (norms, target, iterations))
        what, advice = find_linear_cause(Status(code), norm, aim, spent, result)
        findings.append(Finding(Status(code), _indices(rows, status.shape), what, "", advice))
    return Explanation(_headline(status), tuple(findings))
