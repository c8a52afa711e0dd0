"""Where to start: initial guesses of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from implicitsolve import Problem
from implicitsolve.adapters._common import Array, array_namespace, check_generator, from_host, quiet, zeros
from implicitsolve.adapters._sweep import sweep

if TYPE_CHECKING:
    from implicitsolve.adapters._layer import Layer


def initial_guess(problem: Problem, kind: str = "one-step", rng: np.random.Generator | None = None) -> Array:
    """Return a start for `root`, from the problem's own recipes.

    Parameters
    ----------
    problem : Problem
        Built by an adapter.
    kind : {"one-step", "zeros", "random"}, optional
        "one-step" (default) runs the ordinary recurrence forwards and backwards and applies the layer once to what
        comes out, for about three residuals; for a layer that depends on one side only, in its own direction.
        "zeros" costs nothing. "random" is uniform in [-1, 1].
    rng : numpy.random.Generator, optional
        Source of the numbers of "random", which needs it; the other kinds ignore it.

    Returns
    -------
    Array
        Of the state's shape and dtype; zero at padded positions.

    Raises
    ------
    TypeError
        If the problem has no initial guess, or `rng` is not a generator where one is needed.
    ValueError
        If `kind` is none of the above.

    References
    ----------
    Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017, section 2.6.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import gru_parameters, implicit_gru, initial_guess
    >>> rng = np.random.default_rng(0)
    >>> layer = implicit_gru(gru_parameters(2, 4, rng=rng), rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> initial_guess(layer, "random", rng).shape
    (3, 5, 4)
    """
    if problem.initial_guess is None:
        raise TypeError(f"initial_guess: `problem` {problem.name!r} has no initial guess of its own")
    return problem.initial_guess(kind, rng)


def guess(layer: Layer, kind: str, rng: np.random.Generator | None) -> Array:
    """One of the guesses above for a layer; "default" is "one-step", and zeros where that would be the solution."""
    if kind == "zeros" or (kind == "default" and layer.direction):
        return zeros(layer.shape, layer.inputs)
    if kind == "random":
        return random(layer, check_generator("initial_guess", rng))
    if kind in ("one-step", "default"):
        return one_step(layer)
    raise ValueError(f"initial_guess: `kind` must be 'one-step', 'zeros' or 'random', got {kind!r}")


def random(layer: Layer, rng: np.random.Generator) -> Array:
    """Numbers that do not depend on how far the sequences are padded."""
    positions = layer.rows.positions
    values = np.zeros((layer.rows.count, layer.cell.size))
    values[positions] = rng.uniform(-1.0, 1.0, (len(positions), layer.cell.size))
    return array_namespace(layer.inputs).asarray(
        layer.map.unpack(layer.rows, from_host(values, layer.inputs)), copy=True
    )


@quiet
def one_step(layer: Layer) -> Array:
    """The layer's function of the states of an ordinary recurrence with these weights, forwards and backwards.

    Earlier neighbours are those of the forward run, later ones those of the backward run, which begins at each
    sequence's own end. Both runs, and all sequences, are one batch; a causal layer has only one of them.
    """
    rows, offsets = layer.rows, layer.cell.offsets
    directions = sorted({-1 if offset > 0 else 1 for offset in offsets}, reverse=True)
    starts = {direction: layer.starts(direction, 1) for direction in directions}
    step = layer.cell.recurrence("step") or (lambda x, states: layer.cell.step(x, states[0]))
    runs = sweep(step, layer.transition.x, rows, (1,), starts)
    packed = {direction: rows.pack(run) for direction, run in runs.items()}
    near = [rows.shifted(packed[-1 if offset > 0 else 1], offset) for offset in offsets]
    edges = layer.transition.edges
    neighbours = tuple(p if edge is None else p + edge for p, edge in zip(near, edges))
    values = layer.map.unpack(rows, layer.transition.values(neighbours))
    return array_namespace(values).asarray(values, copy=True)
