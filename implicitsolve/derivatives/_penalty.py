"""Penalties that keep a fixed-point problem easy to solve while its parameters are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import as_inexact, eps
from implicitsolve._summary import Representation
from implicitsolve._typing import Array, CallersArray
from implicitsolve.derivatives._systems import gradients_of
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import check_generator, check_limit


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class JacobianPenalty(Representation):
    """Value and derivatives of `jacobian_penalty`.

    Attributes
    ----------
    value : float
        The estimate.
    gradients : dict of str to Array
        Its gradient with respect to each parameter, at fixed x.
    cotangent : Array
        Its gradient with respect to x: add it, times the penalty's weight, to the loss's before `pull_back`.
    """

    value: float
    gradients: dict[str, CallersArray]
    cotangent: Array


def jacobian_penalty(
    problem: Problem, result: NonlinearResult | Any, *, samples: int = 1, rng: np.random.Generator
) -> JacobianPenalty:
    """Estimate ``||dG/dx||_F^2 / N``, the mean over the systems of a fixed-point problem x = G(x), with its gradient.

    The penalty of [1]_: where it is small so is the spectral radius of dG/dx, on which iterations and gradients depend.

    Parameters
    ----------
    problem : Problem
        With residual x - G(x) (`fixed_point`), products with J^H, and `parameter_vjp` if it has parameters.
    result : NonlinearResult or array_like
        The point: what `root` returned, or a state.
    samples : int, optional
        Random vectors of Hutchinson's estimate [2]_. Default 1, which suits stochastic training; the relative error
        is inversely proportional to the square root of their number.
    rng : numpy.random.Generator
        Source of the vectors.

    Returns
    -------
    JacobianPenalty
        The value, and gradients that hold for the same random vectors.

    Raises
    ------
    TypeError
        If `problem` is not a fixed-point problem or lacks products with J^H, or `rng` is not a generator.
    ValueError
        If `samples` is less than 1.

    Notes
    -----
    With u = (dG/dx)^T e the estimate is ||u||^2. Its derivative 2 e^T d(dG/dx) u is a second derivative along u, by a
    central difference of first derivatives, with an error of about eps^(2/3). Cost per sample: three linearizations
    with an adjoint product each, and two parameter products.

    References
    ----------
    .. [1] S. Bai, V. Koltun and J. Z. Kolter, "Stabilizing equilibrium models by Jacobian regularization", ICML (2021).
    .. [2] M. F. Hutchinson, "A stochastic estimator of the trace of the influence matrix for Laplacian smoothing
           splines", Commun. Stat. Simul. Comput. 18 (1989) 1059-1076.

    Examples
    --------
    >>> a = np.asarray(0.5)
    >>> problem = ims.Problem(
    ...     lambda x: x - a * np.sin(x),
    ...     vjp=lambda x, w: w - a * np.cos(x) * w,
    ...     parameters={"a": a},
    ...     parameter_vjp=lambda x, w: {"a": -np.sum(np.sin(x) * w)},
    ...     fixed_point=True,
    ... )
    >>> penalty = ims.derivatives.jacobian_penalty(problem, np.zeros(1000), samples=20, rng=np.random.default_rng(0))
    >>> round(penalty.value, 2), round(float(penalty.gradients["a"]), 1)
    (0.25, 1.0)
    """
    if not isinstance(problem, Problem) or not problem.fixed_point:
        raise TypeError("jacobian_penalty: `problem` must be a Problem with `fixed_point`")
    check_generator("jacobian_penalty", rng)
    check_limit("jacobian_penalty", "samples", samples, least=1)
    x = as_inexact(result.x if isinstance(result, NonlinearResult) else result, "result")
    evaluator = Evaluator(problem, x)
    flat = evaluator.flatten(x)
    weight = 1.0 / (samples * max(1, math.prod(x.shape)))
    value, cotangent, gradients = 0.0, evaluator.xp.zeros_like(flat), dict[str, Array]()
    for _ in range(samples):
        e = evaluator.xp.zeros_like(flat) + from_host(rng.standard_normal(tuple(flat.shape)), flat)  # split as x is
        u = e - evaluator.jacobian(flat, None).rmatvec(e)
        sizes = norm2(u)
        value += weight * float(np.sum(sizes**2))
        for sign in (1.0, -1.0):  # -F in place of G: what does not depend on x cancels
            length = eps(evaluator.xp, flat.dtype) ** (1 / 3) * np.where(norm2(flat) > 0, norm2(flat), 1.0)
            inside = np.where(sizes > 0, sizes, 1.0)
            at = flat + u * from_host(sign * length / inside, flat)[:, None]
            w = e * from_host(-sign * weight * inside / length, e)[:, None]
            cotangent = cotangent + evaluator.jacobian(at, None).rmatvec(w)
            more = _parameters(evaluator, at, -w)
            gradients = {name: gradients[name] + value if gradients else value for name, value in more.items()}
    return JacobianPenalty(value=value, gradients=gradients, cotangent=evaluator.unflatten(cotangent))


def _parameters(evaluator: Evaluator, x: Array, w: Array) -> dict[str, Array]:
    """-(dF/dtheta)^H w, nothing where the problem has no parameters."""
    problem, xp = evaluator.problem, evaluator.xp
    if problem.parameter_vjp is None:
        if problem.parameters:
            raise TypeError("jacobian_penalty: the problem has parameters but no `parameter_vjp`")
        return {}
    raw: Any = problem.parameter_vjp(evaluator.unflatten(xp.asarray(x, copy=True)), evaluator.unflatten(w))
    return gradients_of("jacobian_penalty", problem, raw)
