"""Where to start: initial guesses of layers."""

from __future__ import annotations

import numpy as np

from implicitsolve import Problem
from implicitsolve.adapters._common import Array


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
        raise TypeError(f"initial_guess: `problem` {problem.name!r} has no initial guess")
    return problem.initial_guess(kind, rng)
