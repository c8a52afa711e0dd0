"""Observers of a solve: a monitor is a callable that is called with each accepted step. Solvers print nothing."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any, Protocol, TextIO

import numpy as np

from implicitsolve._typing import Array
from implicitsolve.result import NewtonStep

__all__ = ["Monitor", "Trace", "collect", "combine", "log_to", "progress_bar", "silent", "table"]


class Monitor(Protocol):
    """What a solver calls: once before the first step (`step.iteration` 0), then after each step.

    `x` and `F` are copies. A monitor that returns True ends the solve: systems that still run are STOPPED_BY_MONITOR,
    at the best of their points, and no other method is tried; ranks end together when one of them returns True. Other
    values have no effect. An exception raised here ends the solve and reaches its caller unchanged.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> def good_enough(step, x, F):
    ...     return step.worst < 1e-3
    >>> result = ims.root(lambda x: x**2 - 2, 1.0, monitor=good_enough)
    >>> result.status.name, bool(result.residual_norm < 1e-3)
    ('STOPPED_BY_MONITOR', True)
    """

    def __call__(self, step: NewtonStep, x: Array, F: Array) -> Any:
        """See one step."""
        ...


def silent(step: NewtonStep, x: Array, F: Array) -> None:
    """Do nothing."""


class Trace(list[NewtonStep]):
    """A list that is a monitor: it keeps every step, without x and F. `collect` makes an empty one."""

    def __call__(self, step: NewtonStep, x: Array, F: Array) -> None:
        """Keep the step."""
        self.append(step)


def collect() -> Trace:
    """Return a monitor that is the list of the steps it has seen.

    Returns
    -------
    Trace
        Empty; the solver appends a `NewtonStep` for the start and for each step.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> trace = ims.monitor.collect()
    >>> solution = ims.root(ims.Problem(lambda x: x**2 - 2), 1.0, monitor=trace)
    >>> len(trace) == solution.iterations + 1
    True
    """
    return Trace()


def log_to(logger: logging.Logger, level: int = logging.INFO) -> Monitor:
    """Return a monitor that writes one line per step to `logger`.

    Parameters
    ----------
    logger : logging.Logger
        Where to.
    level : int, optional
        Level of the messages. Default ``logging.INFO``.

    Returns
    -------
    Monitor
        For the argument `monitor` of `root`.

    Examples
    --------
    >>> import logging
    >>> import implicitsolve as ims
    >>> monitor = ims.monitor.log_to(logging.getLogger("my model"))
    >>> ims.root(lambda x: x**2 - 2, 1.0, monitor=monitor).status.name
    'CONVERGED'
    """

    def monitor(step: NewtonStep, x: Array, F: Array) -> None:
        logger.log(level, "%s", step)

    return monitor


def table(stream: TextIO | None = None) -> Monitor:
    """Return a monitor that prints a table, one row per step.

    Parameters
    ----------
    stream : text file, optional
        Where to. Default: standard output.

    Returns
    -------
    Monitor
        For the argument `monitor` of `root`. The columns are the step, the largest norm of F in the batch, the systems
        that still run, the smallest step length, the largest forcing term, and the residuals and products so far;
        above them stands the sparsity of J that the solve has found, or why none.

    Examples
    --------
    >>> import io
    >>> import implicitsolve as ims
    >>> stream = io.StringIO()
    >>> result = ims.root(lambda x: x**2 - 2, 1.0, monitor=ims.monitor.table(stream))
    >>> len(stream.getvalue().splitlines()) == result.iterations + 2  # a head, the start, and the steps
    True
    """

    def monitor(step: NewtonStep, x: Array, F: Array) -> None:
        out = sys.stdout if stream is None else stream
        if step.iteration == 0:
            if step.sparsity:
                out.write(f"J: {step.sparsity}\n")
            out.write(
                f"{'step':>5} {'max norm(F)':>12} {'running':>8} {'step length':>12} {'eta':>9} {'products':>9}\n"
            )
        length = f"{step.step_length.min():12.3g}" if step.step_length.size else f"{'':>12}"
        eta = f"{step.forcing.max():9.2g}" if step.forcing.size else f"{'':>9}"
        products = step.counts.residuals + step.counts.jvps
        out.write(f"{step.iteration:5d} {step.worst:12.5g} {step.running:8d} {length} {eta} {products:9d}\n")
        out.flush()

    return monitor


def progress_bar(**options: Any) -> Monitor:
    """Return a monitor that shows a bar through tqdm, or a `table` on standard error without tqdm.

    The bar counts accepted steps; it has no end, since their number is unknown.

    Parameters
    ----------
    **options : Any
        Keyword arguments of ``tqdm.auto.tqdm``.

    Returns
    -------
    Monitor
        For the argument `monitor` of `root`.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> monitor = ims.monitor.progress_bar(desc="my model")
    """
    try:
        tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return table(sys.stderr)
    bar: Any = None

    def monitor(step: NewtonStep, x: Array, F: Array) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(**{"unit": "step", "desc": "Newton", **options})
        if step.iteration:
            bar.update(1)
        bar.set_postfix(norm=f"{step.worst:.3g}", running=step.running, refresh=False)
        if step.running == 0:
            bar.close()
            bar = None

    return monitor


def combine(*monitors: Callable[[NewtonStep, Array, Array], Any]) -> Monitor:
    """Return a monitor that calls several, in order; it ends the solve where one of them does.

    Parameters
    ----------
    *monitors : callable
        Monitors; each is called with the same copies of x and F.

    Returns
    -------
    Monitor
        For the argument `monitor` of `root`.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> first, second = ims.monitor.collect(), ims.monitor.collect()
    >>> result = ims.root(lambda x: x**2 - 2, 1.0, monitor=ims.monitor.combine(first, second))
    >>> first == second
    True
    """

    def monitor(step: NewtonStep, x: Array, F: Array) -> bool:
        answers = [each(step, x, F) for each in monitors]
        return any(map(wants_end, answers))

    return monitor


def wants_end(answer: Any) -> bool:
    """Whether what a monitor has returned ends the solve."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
