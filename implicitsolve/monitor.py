"""Observers of a solve: a monitor is a callable that is called with each accepted step. Solvers print nothing."""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol, TextIO

import numpy as np

from implicitsolve._record import NewtonStep
from implicitsolve._typing import Array, HostArray
from implicitsolve.stopping import check_flag, check_limit

__all__ = ["Monitor", "ProgressBar", "Trace", "collect", "combine", "log_to", "progress_bar", "silent", "table"]
__dir__: Callable[[], list[str]] = __all__.copy


BAR_WIDTH, LINE_WIDTH = 20, 99  # of a bar, and of its line
MANY_STEPS = 1000  # steps from which on an estimate means nothing


class Monitor(Protocol):
    """What a solver calls: once before the first step (`step.iteration` 0), then after each step.

    `x` and `F` are copies. A monitor that returns True ends the solve: systems that still run are STOPPED_BY_MONITOR,
    at the best of their points, and no other method is tried. Other values have no effect. An exception raised here
    ends the solve and reaches its caller unchanged.

    Examples
    --------
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


def observer(caller: str, monitor: Any, *, progress: bool = False, name: str = "monitor") -> Monitor:
    """What a caller's `monitor` and `progress` stand for; raise unless it can be called as ``monitor(step, x, F)``."""
    check_flag(caller, "progress", progress)
    if monitor is None or isinstance(monitor, bool | np.bool_):
        shown: Monitor = table() if monitor else silent
    elif not callable(monitor):
        raise TypeError(f"{caller}: `{name}` must be callable, or True for a table, got {type(monitor).__name__}")
    else:
        check_signature(caller, monitor, f"{name}(step, x, F)", ", with the step's norms and counts in `step`")
        shown = monitor
    if not progress:
        return shown
    return progress_bar() if shown is silent else combine(progress_bar(), shown)


def check_signature(caller: str, function: Callable[..., object], form: str, more: str = "") -> None:
    """Raise unless a function that a caller was given can be called in this form, such as "callback(x, F)"."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled: it does not say
        return
    try:
        signature.bind(*form.split(","))
    except TypeError:
        what = f"{caller}: `{form.partition('(')[0]}` is called as {form}{more}"
        raise TypeError(f"{what}; got a function of {signature}") from None


def map_monitor(monitor: Monitor, change: Callable[[Array, Array], tuple[Array, Array]]) -> Monitor:
    """A monitor that is shown ``change(x, F)``; a silent one costs nothing."""
    if monitor is silent:
        return monitor
    return lambda step, x, F: monitor(step, *change(x, F))


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
        Receives the messages.
    level : int, optional
        Level of the messages. Default ``logging.INFO``.

    Returns
    -------
    Monitor
        For the argument `monitor` of `root`.

    Examples
    --------
    >>> import logging
    >>> monitor = ims.monitor.log_to(logging.getLogger("my model"))
    >>> ims.root(lambda x: x**2 - 2, 1.0, monitor=monitor).status.name
    'CONVERGED'
    """
    if not isinstance(logger, logging.Logger | logging.LoggerAdapter):
        raise TypeError(f"log_to: `logger` must be a logging.Logger, got {type(logger).__name__}")
    check_limit("log_to", "level", level)
    return lambda step, x, F: logger.log(level, "%s", step)


def _writable(caller: str, stream: Any) -> Any:
    """A caller's stream, or None."""
    if not hasattr(stream, "write") and stream is not None:
        raise TypeError(f"{caller}: `stream` must be a text file, got {type(stream).__name__}")
    return stream


def table(stream: TextIO | None = None) -> Monitor:
    """Return a monitor that prints a table, one row per step.

    Parameters
    ----------
    stream : text file, optional
        Where the table is written. Default: standard output.

    Returns
    -------
    Monitor
        For the argument `monitor` of `root`. The columns are the step, the largest norm of F in the batch, the active
        systems, the smallest step length, the largest forcing term, and the residuals and products so far.
        Above them is the sparsity of J that the solve has found, or the reason why it found none.

    Examples
    --------
    >>> import io
    >>> stream = io.StringIO()
    >>> result = ims.root(lambda x: x**2 - 2, 1.0, monitor=ims.monitor.table(stream))
    >>> len(stream.getvalue().splitlines()) == result.iterations + 2  # a head, the start, and the steps
    True
    """
    _writable("table", stream)

    def monitor(step: NewtonStep, x: Array, F: Array) -> None:
        out = sys.stdout if stream is None else stream
        if step.iteration == 0:
            if step.sparsity:
                out.write(f"J: {step.sparsity}\n")
            out.write(f"{'step':>5} {'max norm(F)':>12} {'running':>8} {'step length':>12} {'eta':>9}  products\n")
        length = f"{step.step_length.min():12.3g}" if step.step_length.size else f"{'':>12}"
        eta = f"{step.forcing.max():9.2g}" if step.forcing.size else f"{'':>9}"
        products = step.counts.residuals + step.counts.jvps
        out.write(f"{step.iteration:5d} {step.worst:12.5g} {step.running:8d} {length} {eta} {products:9d}\n")
        out.flush()

    return monitor


class ProgressBar:
    """A monitor that shows how far a solve has come; `progress_bar` makes one."""

    def __init__(self, stream: TextIO | None, label: str) -> None:
        self._stream, self._label = stream, label
        self._solves, self._systems, self._tenths = 0, 1, 0
        self._farthest: list[float] = []  # of the system farthest from its target, after each step

    def __call__(self, step: NewtonStep, x: Array, F: Array) -> None:
        """Show a step."""
        if step.iteration == 0:
            self._solves, self._systems, self._tenths, self._farthest = self._solves + 1, 1, -1, []
        self._systems = max(self._systems, step.running)
        texts = [f"step {step.iteration}", f"norm {step.worst:.2g}"]
        left = float(step.running)
        away = _distances(step)
        if away.size:
            self._farthest.append(float(away.max()))
            unit = max(self._farthest[0], self._farthest[-1]) or 1.0
            left = max(left - step.systems.size, 0.0) + float(np.minimum(away / unit, 1.0).sum())
            i = int(away.argmax())
            if step.target.size:
                texts[-1] = f"norm {step.residual_norm[i]:.2g}, target {step.target[i]:.2g}"
        if self._systems > 1:
            texts.append(f"{step.running} of {self._systems} running")
        steps, is_last = self._steps_left(), step.running == 0 or left <= 0
        if not is_last and 0 < steps < MANY_STEPS:
            texts.append(f"about {steps} step{'s' * (steps > 1)} left")
        self._show(1 - left / self._systems, ", ".join(texts), is_last=is_last)

    def count(self, done: int, total: int) -> None:
        """Show that so many systems are done: for the argument `progress` of `solve_batch`."""
        self._show(done / max(total, 1), f"{done} of {total} systems", is_last=done >= total)

    def _steps_left(self) -> int:
        """At the mean pace of the last steps, 5 at most; 0 where there is none."""
        last = self._farthest[-6:]
        pace = (last[0] - last[-1]) / (len(last) - 1) if len(last) > 1 else 0.0
        return math.ceil(last[-1] / pace) if pace > 0 else 0

    def _show(self, share: float, text: str, *, is_last: bool) -> None:
        out = sys.stderr if self._stream is None else self._stream
        share = min(max(round(share, 9), 0.0), 1.0)  # no rounding errors
        is_terminal = out.isatty() or type(out).__module__.startswith("ipykernel")  # a notebook's
        if not (is_terminal or is_last or int(10 * share) > self._tenths):
            return
        self._tenths = int(10 * share)
        name = f"{self._label} {self._solves}" if self._solves > 1 else self._label
        line = f"{name} [{'#' * int(BAR_WIDTH * share):.<{BAR_WIDTH}}] {int(100 * share):3d} %  {text}"
        out.write(f"\r{line:<{LINE_WIDTH}}" + "\n" * is_last if is_terminal else f"{line}\n")
        out.flush()


def _distances(step: NewtonStep) -> HostArray:
    """What is left of a continuation; else digits by which each norm exceeds its target, 99 if it is not finite."""
    if step.left.size or not step.target.size:
        return step.left
    with np.errstate(all="ignore"):
        return np.clip(np.nan_to_num(np.log10(step.residual_norm / step.target), nan=99.0), 0.0, 99.0)


def progress_bar(stream: TextIO | None = None, *, label: str = "solve") -> ProgressBar:
    """Return a monitor that shows a bar, the norm, and about how many steps are left.

    The bar is the share of systems that have ended; one that still runs counts by how many of the decimal digits that
    its norm must fall are done. The estimate is for the system farthest from its target, at the mean pace of the last 5
    steps: Newton's method ends sooner, once it converges quadratically. The bar of a `continuation` is the way of the
    parameter to its end, or the share of `max_points`, if that is more. No clock is read.

    Parameters
    ----------
    stream : text file, optional
        Where the bar is written. Default: standard error. On a terminal and in a notebook the bar is one line, which is
        overwritten; elsewhere a line for each tenth of the way.
    label : str, optional
        What stands before the bar. Default "solve"; the later ones of several solves are numbered.

    Returns
    -------
    ProgressBar
        For the argument `monitor` of `root`, of one solve or of many in turn; its method `count` is for the argument
        `progress` of `solve_batch`.

    Examples
    --------
    >>> import sys
    >>> bar = ims.monitor.progress_bar(sys.stdout)
    >>> result = ims.root(lambda x: x**2 - 2, 1.0, method="newton-krylov", monitor=bar)
    solve [....................]   0 %  step 0, norm 1, target 1.5e-08
    solve [#####...............]  27 %  step 2, norm 0.0069, target 1.5e-08, about 6 steps left
    solve [##############......]  74 %  step 3, norm 6e-06, target 6e-08, about 2 steps left
    solve [####################] 100 %  step 4, norm ..., target 6e-08
    """
    return ProgressBar(_writable("progress_bar", stream), str(label))


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
    >>> first, second = ims.monitor.collect(), ims.monitor.collect()
    >>> result = ims.root(lambda x: x**2 - 2, 1.0, monitor=ims.monitor.combine(first, second))
    >>> first == second
    True
    """
    return lambda step, x, F: any(map(ends_solve, [each(step, x, F) for each in monitors]))


def ends_solve(answer: Any) -> bool:
    """Whether what a monitor has returned ends the solve."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
