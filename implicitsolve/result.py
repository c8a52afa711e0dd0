"""What a solve returns. Results are frozen, keep the inner outcomes, and report what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from implicitsolve._arrays import files
from implicitsolve._arrays.host import to_host
from implicitsolve._record import Counts, NewtonStep, Retry
from implicitsolve._summary import Representation, format_arrays, list_entries, summarize
from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.errors import NoConvergence, missing
from implicitsolve.status import Status, StatusArray
from implicitsolve.structure import Detection
from implicitsolve.structure._sparse import from_csc

FORMAT = "a result of format 1"  # of files


def per_system(values: HostArray, batch_shape: tuple[int, ...]) -> Any:
    """Values of the flattened batch in its shape; a plain number where there is no batch."""
    return values.reshape(batch_shape) if batch_shape else np.asarray(values).item()


def status_per_system(codes: HostArray, batch_shape: tuple[int, ...]) -> Any:
    """Status codes of the flattened batch in its shape; a `Status` where there is no batch."""
    return codes.reshape(batch_shape) if batch_shape else Status(int(codes.reshape(-1)[0]))


def fields_per_system(fields: Mapping[str, HostArray], batch_shape: tuple[int, ...]) -> dict[str, Any]:
    """`per_system` of fields of a result, with a `Status` and, where it is not known, no error of a single system."""
    if batch_shape:
        return {name: values.reshape(batch_shape) for name, values in fields.items()}
    found = {name: values.item() for name, values in fields.items()}
    return found | {"status": Status(found["status"]), "error": None if math.isnan(found["error"]) else found["error"]}


class Ending(Representation):
    """What results have in common: one status, or one for each system of a batch."""

    status: Any
    _best: ClassVar[str] = "x"  # where the iterate is that `NoConvergence` carries

    def __post_init__(self) -> None:
        """Give the statuses of a batch their names."""
        if isinstance(self.status, np.ndarray):
            object.__setattr__(self, "status", self.status.view(StatusArray))

    if not TYPE_CHECKING:  # where names that are missing are errors

        def __getattr__(self, name: str) -> Any:
            """Raise, and name the attribute that is meant."""
            raise missing(self, name)

    def __bool__(self) -> bool:
        """Raise: a result of a failed solve is a result too."""
        raise TypeError(f"a {type(self).__name__} has no truth value: use `result.success`, or np.all(result.success)")

    def _entries(self) -> dict[str, str]:
        return list_entries(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{name} {value}' for name, value in self._entries().items())}>"

    def __str__(self) -> str:
        """The line of `repr`, and below it x and F, of at most ten numbers each."""
        arrays = {name: getattr(self, part) for name, part in {"x": "x", "F": "fun"}.items() if hasattr(self, part)}
        return repr(self) + format_arrays(**arrays)

    @property
    def success(self) -> Any:
        """Whether the stopping rule holds: a bool, or an array of the batch shape."""
        if isinstance(self.status, Status):
            return self.status is Status.CONVERGED
        held = np.asarray(self.status) == Status.CONVERGED
        return bool(held) if held.ndim == 0 else held

    @property
    def message(self) -> str:
        """How the solve ended, and what to try where it failed."""
        codes, counts = np.unique(np.asarray(self.status), return_counts=True)
        if codes.size == 0:
            return "the batch is empty"
        lines = [f"{s.name}: {s.message}. {s.hint}".rstrip() for s in map(Status, codes.tolist())]
        if (total := int(counts.sum())) > 1:
            lines = [f"{count} of {total} systems: {line}" for count, line in zip(counts, lines, strict=True)]
        return "\n".join(lines)

    def raise_for_status(self) -> Self:
        """Return self, or raise `NoConvergence` that carries it."""
        if not np.all(self.success):
            raise NoConvergence(attrgetter(self._best)(self), self.message, self)
        return self


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class LinearResult(Ending):
    """Result of `linear_solve`.

    Attributes
    ----------
    x : Array
        Solution, shaped like b.
    status : Status or ndarray of int
        How it ended; one for each system of a batch.
    residual_norm : float or ndarray
        ||b - A x||_2, computed from a product at the returned x.
    target : float or ndarray
        What it had to fall to; NaN after a direct solve.
    iterations : int or ndarray of int
        Krylov iterations.
    matvecs : int
        Products with A, the confirming ones included.
    """

    x: CallersArray
    status: Any
    residual_norm: Any
    iterations: Any
    matvecs: int
    target: Any = math.nan

    def summary(self) -> str:
        """Return a table of the solve; see `NonlinearResult.summary`."""
        return summarize(self)

    def _numbers(self) -> dict[str, Any]:
        return {"norm(b - A x)": self.residual_norm, "target": self.target, "iterations": self.iterations}

    def _facts(self) -> list[tuple[str, str]]:
        return [("products", str(self.matvecs))]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NonlinearResult(Ending):
    """Result of `root`.

    Attributes
    ----------
    x : Array
        Last accepted iterate, of the shape, dtype and library of x0; `parts` has it as a dict, where x0 was one.
    fun : Array
        F(x), measured at x; zero for blocks that `root` has eliminated from a problem with `halves`, and not measured.
    status : Status or ndarray of int
        How it ended; one for each system of a batch.
    residual_norm, initial_norm : float or ndarray
        Norm of F at x and at x0, in the norm of the stopping rule.
    target : float or ndarray
        What the norm had to fall to; where the error of x decides, the norm at which it is expected to be `xtol`. NaN
        where no one method went from x0 to the end.
    error : float, ndarray or None
        Estimated error of x, relative to x, where a system has converged; see `NonlinearStop`. None, or NaN in a batch,
        where it is not known: a solve that ended at x0, or that failed.
    iterations, krylov_iterations : int or ndarray of int
        Accepted Newton steps, and Krylov iterations in all of them.
    counts : Counts
        Calls of the user's functions.
    steps : tuple of NewtonStep
        Every step, the starting point first.
    retries : tuple of Retry
        Further attempts at systems that had failed, in order: `method`, the `iteration` after which it began, its
        `systems`, the `reasons`, and the `status` in which each system ended.
    detection : Detection or None
        The sparsity of J, and how it was found, or why it was not; None where the method looked for none.
    problem : Problem or None
        What was solved, for `pull_back` and `push_forward`; pickles do not have it. Its `derivatives` show whether
        a trace was used, or why not.

    Notes
    -----
    For `previous` of a later `root` a result holds the coloring of J, a few arrays of the size of its entries; after a
    solve with `previous` also the factors, or the recycled Krylov spaces. Pickles, copies and `without_memory` do not.

    Examples
    --------
    >>> ims.root(ims.Problem(lambda x: x**2 - 2), 1.0).raise_for_status().status
    <Status.CONVERGED: 1>
    """

    x: HostArray
    fun: HostArray
    status: Any
    residual_norm: Any
    initial_norm: Any
    iterations: Any
    krylov_iterations: Any
    counts: Counts
    steps: tuple[NewtonStep, ...] = field(repr=False, default=())
    target: Any = math.nan
    error: Any = None
    retries: tuple[Retry, ...] = field(repr=False, default=())
    detection: Detection | None = field(repr=False, default=None)
    problem: CallersArray = field(repr=False, default=None)
    parts: CallersArray = field(repr=False, default=None)
    _memory: Any = field(repr=False, default=None)  # a `SolveMemory`
    _jacobian: Callable[[HostArray], Any] | None = field(repr=False, default=None)

    def __getstate__(self) -> dict[str, Any]:
        """All but what a later solve may start from, and functions: they do not pickle."""
        return vars(self) | {"_memory": None, "_jacobian": None, "problem": None}

    def __getitem__(self, name: str) -> Any:
        """An attribute by its name, as SciPy's results have it: ``result["x"]``."""
        if not isinstance(name, str):
            raise TypeError("a result is not a sequence: the solution is `result.x`")
        if name.startswith("_") or not hasattr(self, name):
            raise KeyError(str(missing(self, name)))
        return getattr(self, name)

    @property
    def nit(self) -> HostArray | int:
        """SciPy's name of `iterations`."""
        return self.iterations

    @property
    def nfev(self) -> int:
        """SciPy's name of ``counts.residuals``."""
        return self.counts.residuals

    @property
    def njev(self) -> int:
        """SciPy's name of ``counts.linearizations``."""
        return self.counts.linearizations

    def jacobian(self) -> Any:
        """Return J at x, assembled: sparse where a pattern is known, as by `implicitsolve.jacobian`.

        Returns
        -------
        SparseMatrix or BlockBandedMatrix
            Both have `todense`, and ``to_sparse("csr")`` for one system.

        Raises
        ------
        TypeError
            If the result was copied, or read from a file, and its problem left behind: ``jacobian(problem, result.x)``.
        """
        if self._jacobian is None:
            raise TypeError("this result does not hold its problem: call implicitsolve.jacobian(problem, result.x)")
        return self._jacobian(self.x)

    def save(self, path: str | Path) -> None:
        """Write arrays and numbers to a file (npz), whole or not at all, which `implicitsolve.load` reads."""
        files.save(path, FORMAT, {**self.__getstate__(), "x": to_host(self.x)[None], "fun": to_host(self.fun)[None]})

    @property
    def plan(self) -> object:
        """The stages of the solve, as `plan` returns them; None after pickling, and of a method of one stage."""
        return getattr(self._memory, "plan", None)

    def without_memory(self) -> NonlinearResult:
        """Return the result without the coloring, factors and spaces that ``root(previous=...)`` starts from."""
        return replace(self, _memory=None, _jacobian=None)

    def summary(self) -> str:
        """Return a table of what is known of the solve, at most about 40 lines of 100 columns.

        One system: how it ended, norms, counts, and a line for each step. A batch: how many ended how, the quantiles of
        norms and counts, the worst systems by their index, and a line for each step with the largest and the median
        norm. The middle of a long history is left out; `steps` has all of it.

        `linear` is the relative residual that the linear solve reached, `eta` its tolerance, `calls` new evaluations.

        Examples
        --------
        >>> problem = ims.Problem(lambda x: x**2 - 2, jvp=lambda x, v: 2 * x * v)
        >>> print(ims.root(problem, np.array(1.5), method="newton-krylov").summary())
        NonlinearResult: CONVERGED: the stopping criterion is met at the returned x, evaluated there
        <BLANKLINE>
        norm(F)         4.51e-12
        target          5.96e-08
        at x0           0.25
        error           1.13e-12
        accepted steps  3
        Krylov          3
        calls           4 residuals, 4 jvps, 0 vjps, 4 linearizations
        x               float64 ()
        <BLANKLINE>
        step   norm(F)  length       eta  linear  Krylov  calls
        0         0.25                                        1
        1      0.00694       1       0.1       0       1      2
        2     6.01e-06       1  0.000694       0       1      2
        3     4.51e-12       1   0.00497       0       1      2
        """
        return summarize(self)

    def _facts(self) -> list[tuple[str, str]]:
        """What is known of the whole solve, by its names in tables."""
        entries = [("calls", str(self.counts))]
        labels = getattr(self.problem, "equations", None)
        if labels is not None and self.success is False:
            F = np.abs(to_host(self.fun)).reshape(-1)
            entries.append(("largest F", f"{labels[F.argmax()]}: {F.max():.3g}"))
        known = {"J": self.detection, "products": getattr(self.problem, "derivatives", None)}
        entries += [(name, str(part)) for name, part in known.items() if part is not None]
        planned = str(self.plan).splitlines() if self.retries and self.plan is not None else []
        entries += [("" if line else "plan", text) for line, text in enumerate(planned)]
        return entries + [("then", str(retry)) for retry in self.retries]

    def _numbers(self) -> dict[str, Any]:
        norms = {"norm(F)": self.residual_norm, "target": self.target, "at x0": self.initial_norm}
        counts = {"accepted steps": self.iterations, "Krylov": self.krylov_iterations}
        return norms | ({} if self.error is None else {"error": self.error}) | counts

    def _norms(self) -> list[float]:
        return [step.worst for step in self.steps]


def load(path: str | Path) -> NonlinearResult:
    """Read a result from a file that `NonlinearResult.save` has written; nothing in it is executed.

    Parameters
    ----------
    path : str or path
        The file. One that `save` has not written, that is damaged, or of another version raises a ValueError.

    Returns
    -------
    NonlinearResult
        As it was saved.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ims.root(lambda x: x**2 - 2, [1.0]).save(f"{folder}/root.npz")
    ...     ims.load(f"{folder}/root.npz").x
    array([1.41421356])
    """
    return files.load(path, FORMAT, _result)


def _result(parts: dict[str, Any]) -> NonlinearResult:
    steps, retries, found = (parts.pop(name, {}) for name in ("steps", "retries", "detection"))
    for part in (parts, *steps.values()):
        part["counts"] = Counts(**part["counts"])
    parts |= {name: parts[name][0, ...] for name in ("x", "fun")}
    patterns = {name: from_csc(**found[name]) for name in ("structure", "large") if name in found}
    parts["detection"] = Detection(**found | patterns) if found else None
    parts["status"] = status_per_system(np.asarray(parts["status"]), np.shape(parts["status"]))
    retries = tuple(Retry(**retry) for retry in retries.values())
    return NonlinearResult(steps=tuple(NewtonStep(**step) for step in steps.values()), retries=retries, **parts)
