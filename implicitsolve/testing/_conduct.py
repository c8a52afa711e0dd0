"""What solvers take for granted of a problem's functions, beside derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from implicitsolve._namespace import from_host, gather, to_host
from implicitsolve._typing import Array
from implicitsolve.testing._product_tests import Check, Point

SHIFT = 1e-2  # of some systems, relative to x, which the others must not feel


def conduct(point: Point) -> Iterator[Check]:
    """Checks of how the functions behave."""
    yield _leaves_arguments(point)
    yield point.equal("residual: repeated", point.residual(point.x), point.F, "F(x) changes from call to call")
    if point.x.shape[0] > 1:
        yield _independent(point)
    if point.problem.take is not None and point.problem.batch_ndim and point.x.shape[0]:
        yield _taken(point)


def _leaves_arguments(point: Point) -> Check:
    """No function writes into its arguments."""
    problem, evaluator = point.problem, point.evaluator
    x, v = evaluator.unflatten(point.x), evaluator.unflatten(point.directions[0])
    calls: dict[str, tuple[Array, ...]] = {
        "residual": (x,),
        "jvp": (x, v),
        "vjp": (x, v),
        "jac": (x,),
        "linearize": (x,),
        "blocks": (x,),
        "parameter_vjp": (x, v),
    }
    wrong = [name for name, arguments in calls.items() if _writes(point, getattr(problem, name), arguments)]
    hint = f"{', '.join(f'`{name}`' for name in wrong)} wrote into an argument: copy it first" if wrong else ""
    return Check("arguments unchanged", not wrong, float(len(wrong)), 0.0, hint)


def _writes(point: Point, function: Callable[..., Any] | None, arguments: tuple[Array, ...]) -> bool:
    if function is None:
        return False
    given = [point.xp.asarray(argument, copy=True) for argument in arguments]
    with np.errstate(all="ignore"):
        function(*given)
    return any(not np.array_equal(to_host(a), to_host(b), equal_nan=True) for a, b in zip(given, arguments))


def _independent(point: Point) -> Check:
    """Change the systems with a 1, then those with a 0, at each binary place of their number: the others must not."""
    number, x = np.arange(point.x.shape[0]), point.x
    kept, changed = [point.F[:0, ...]], [point.F[:0, ...]]
    for place in range(int(number[-1]).bit_length()):
        for bit in (0, 1):
            is_moved = (number >> place & 1) == bit
            moved = x + from_host(is_moved * SHIFT, x)[:, None] * point.directions[0]
            others = np.flatnonzero(~is_moved)
            kept.append(gather(point.F, others))
            changed.append(gather(point.residual(moved), others))
    a, b = (point.xp.concat(parts, axis=0) for parts in (kept, changed))
    hint = "a system's F changes with the x of others: `batch_ndim` is too large, or the systems are coupled"
    return point.equal("independent systems", point.xp.reshape(a, (1, -1)), point.xp.reshape(b, (1, -1)), hint)


def _taken(point: Point) -> Check:
    """The problem of two systems, in the reverse order."""
    indices = np.unique([0, point.x.shape[0] - 1])[::-1].copy()
    part = point.evaluator.chosen(indices)
    with np.errstate(all="ignore"):
        F = part.residual(gather(point.x, indices))
    a, b = (point.xp.reshape(rows, (1, -1)) for rows in (F, gather(point.F, indices)))
    return point.equal("take", a, b, "`take` gives a problem with another F than those systems have")
