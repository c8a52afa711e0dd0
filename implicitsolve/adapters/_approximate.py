"""Initial guesses, and approximate fixed points: a few iterations x <- G(x), and the gradients of what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from implicitsolve import Problem, aslinearoperator
from implicitsolve._arrays.namespace import array_namespace, copy_array, is_array
from implicitsolve._typing import Array
from implicitsolve.adapters._common import check_array, check_no_grad, quiet
from implicitsolve.stopping import check_choice, check_generator, check_limit

FULL, SKIPPED = "full", "skipped"


def approximate_fixed_point(problem: Problem, rho: int, *, x0: Array | None = None) -> ApproximateFixedPoint:
    """Apply the function G of a fixed-point problem x = G(x) a fixed number of times.

    For a causal network, such as `elman`, the result at every position is that of the network restarted from the
    start's state rho steps before: a model with a memory of rho positions, computed for all positions at once. With
    rho >= T it is the network itself, up to rounding. For another layer it is the result of rho steps of fixed-point
    iteration, which may be far from a solution: this is not checked.

    Parameters
    ----------
    problem : Problem
        With ``fixed_point=True``, so that its residual is x - G(x).
    rho : int
        Number of iterations, at least 1.
    x0 : Array, optional
        Start. Default: zeros of the shape of the problem's `initial_guess`, as in [1]_.

    Returns
    -------
    ApproximateFixedPoint
        All iterates, and gradients of the last one.

    Raises
    ------
    TypeError, ValueError
        If `problem` is not a fixed-point problem, `rho` not a positive integer, or `x0` not an array; or if there is
        no `x0`, and the problem has no initial guess that gives its shape.

    Notes
    -----
    Takes rho residuals; all rho + 1 states are kept for the gradients. G(x) is computed as x - residual(x), accurate to
    the rounding of the larger of x and G(x). An iteration that overflows shows in its states.

    References
    ----------
    .. [1] Wang & Ragni, *Approximate Fixed-Points in Recurrent Neural Networks*, section 3.2, algorithm 1.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.elman_parameters(2, 3, scale=0.5, rng=rng)
    >>> network = ims.adapters.elman(params, rng.standard_normal((4, 2)))
    >>> two, four = (ims.adapters.approximate_fixed_point(network, rho) for rho in (2, 4))
    >>> np.allclose(two.x[:2], four.x[:2]), np.allclose(four.x, network.substitute())
    (True, True)
    >>> exact = ims.pull_back(network, four.x, np.ones((4, 3)), stop=ims.LinearStop(rtol=1e-14)).gradients["W"]
    >>> np.allclose(four.pull_back(np.ones((4, 3))).gradients["W"], exact)
    True
    """
    caller = "approximate_fixed_point"
    if not isinstance(problem, Problem):
        raise TypeError(f"{caller}: `problem` must be a Problem, got {type(problem).__name__}")
    if not problem.fixed_point:
        raise ValueError(f"{caller}: `problem` must be one of a fixed point, with fixed_point=True, got False")
    check_limit(caller, "rho", rho, least=1)
    x = _zeros(caller, problem) if x0 is None else x0
    if not is_array(x):
        raise TypeError(f"{caller}: `x0` must be an array, got {type(x).__name__}")
    check_no_grad(caller, "x0", x)
    iterates = [copy_array(x)]
    for _ in range(rho):
        iterates.append(_difference(iterates[-1], problem.residual(copy_array(iterates[-1]))))
    return ApproximateFixedPoint(problem=problem, iterates=tuple(iterates))


@dataclass(frozen=True, kw_only=True, eq=False)
class ApproximateFixedPoint:
    """What `approximate_fixed_point` computed.

    Attributes
    ----------
    problem : Problem
        The problem whose function was applied.
    iterates : tuple of Array
        The start and the rho states after it.
    """

    problem: Problem
    iterates: tuple[Array, ...] = field(repr=False)

    @property
    def rho(self) -> int:
        """Number of iterations."""
        return len(self.iterates) - 1

    @property
    def x(self) -> Array:
        """The last state."""
        return self.iterates[-1]

    def pull_back(self, cotangent: Array, *, propagation: str = FULL) -> ApproximateGradients:
        """Gradients of a loss of the last state, given d loss / d x as `cotangent`.

        They are d loss / d theta for every parameter of the problem, boundary states among them, under the names and
        with the sign of `implicitsolve.pull_back`; a TypeError says what the problem lacks for that.

        With the `propagation` "full" (default) all iterations are differentiated, by rho products of `parameter_vjp`
        and rho - 1 with the adjoint of J: the gradient of what was computed, which for a causal network and rho >= T is
        backpropagation through time. With "skipped" the last but one state is held constant, so that parameters act
        through the last iteration alone: one product of `parameter_vjp`. In section 3.2 of Wang & Ragni, *Approximate
        Fixed-Points in Recurrent Neural Networks*, this is FPI with the parameters of line 5 held fixed.
        """
        caller = "pull_back"
        check_choice(caller, "propagation", propagation, (FULL, SKIPPED))
        of_parameters = self.problem.parameter_vjp
        if of_parameters is None:
            raise TypeError(f"{caller}: the problem needs `parameter_vjp`")
        lam = check_array(caller, "cotangent", cotangent, tuple(self.x.shape), self.x, "x")
        states = self.iterates[-2::-1]
        total = {name: -value for name, value in of_parameters(copy_array(states[0]), copy_array(lam)).items()}
        if propagation == FULL and self.rho > 1:
            adjoint = _adjoint(caller, self.problem)
            for after, state in pairwise(states):
                lam = _difference(lam, adjoint(copy_array(after), copy_array(lam)))
                for name, value in of_parameters(copy_array(state), copy_array(lam)).items():
                    total[name] = total[name] - value
        return ApproximateGradients(gradients=total, propagation=propagation)


@dataclass(frozen=True, kw_only=True, eq=False)
class ApproximateGradients:
    """Gradients of a loss of an approximate fixed point.

    Attributes
    ----------
    gradients : dict of str to Array
        d loss / d theta for every parameter of the problem.
    propagation : str
        "full" or "skipped".
    """

    gradients: dict[str, Array] = field(repr=False)
    propagation: str


def _zeros(caller: str, problem: Problem) -> Array:
    if problem.initial_guess is None:
        raise TypeError(f"{caller}: `x0` is needed, since `problem` has no initial guess to give its shape")
    guess = problem.initial_guess("zeros", None)
    return array_namespace(guess).zeros_like(guess)


@quiet
def _difference(x: Array, y: Array) -> Array:
    return x - y


def _adjoint(caller: str, problem: Problem) -> Callable[[Array, Array], Array]:
    """Products of J^H at a state."""
    if problem.linearize is not None:
        linearize: Any = problem.linearize

        def product(x: Array, w: Array) -> Array:
            J, xp = aslinearoperator(linearize(x)[1]), array_namespace(w)
            return xp.reshape(J.rmatvec(xp.reshape(w, J.batch_shape + J.out_shape)), w.shape)

        return product
    if problem.vjp is None:
        raise TypeError(f"{caller}: the problem needs `linearize` or `vjp` for propagation={FULL!r}")
    return problem.vjp


def initial_guess(problem: Problem, kind: str = "one-step", rng: np.random.Generator | None = None) -> Array:
    """Return a start for `root`, from the problem's own recipes.

    Parameters
    ----------
    problem : Problem
        Built by an adapter.
    kind : {"one-step", "zeros", "random"}, optional
        "one-step" (default) runs the ordinary recurrence forwards and backwards and applies the layer once to the
        result, for about three residuals; for a layer that depends on one side only, in its own direction.
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
    >>> from implicitsolve.adapters import gru_parameters, implicit_gru, initial_guess
    >>> rng = np.random.default_rng(0)
    >>> layer = implicit_gru(gru_parameters(2, 4, rng=rng), rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> initial_guess(layer, "random", rng).shape
    (3, 5, 4)
    """
    if not isinstance(problem, Problem) or problem.initial_guess is None:
        raise TypeError(f"initial_guess: `problem` must be a Problem with an initial guess, got {problem!r}")
    if not isinstance(kind, str):
        raise TypeError(f"initial_guess: `kind` must be a string, got {type(kind).__name__}")
    return problem.initial_guess(kind, None if rng is None else check_generator("initial_guess", rng))
