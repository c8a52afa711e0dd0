"""The penalty that keeps a fixed-point problem easy to solve while its parameters are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from implicitsolve.stopping import check_limit


def jacobian_penalty(
    residual: Callable[..., Tensor],
    x: Tensor,
    *args: Any,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimate ``||dG/dx||_F^2 / N``, the mean over the systems of x = G(x), for the loss of a training step.

    That of `implicitsolve.derivatives.jacobian_penalty`, differentiable by everything, by exact derivatives.

    Parameters
    ----------
    residual : callable
        ``residual(x, *args)`` returns x - G(x), such as that of `solve`, or the `residual` of a module.
    x : Tensor
        Where: what `solve` or a module returned. Gradients flow through it to the parameters on which it depends.
    *args
        Of the residual.
    samples : int, optional
        Random vectors of Hutchinson's estimate. Default 1, which suits stochastic training; the relative error falls as
        their square root.
    generator : torch.Generator, optional
        Source of the vectors. Default: torch's own.

    Returns
    -------
    Tensor
        A scalar.

    Raises
    ------
    ValueError
        If `samples` is less than 1.

    Notes
    -----
    Costs one residual with its graph, one backward pass per sample, and for the gradient one through each of them, so
    that the residual's operations must have second derivatives.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import ImplicitGRU, jacobian_penalty
    >>> layer, inputs = ImplicitGRU(2, 4), torch.ones(3, 5, 2)
    >>> states = layer(inputs)
    >>> loss = states.pow(2).mean() + 0.1 * jacobian_penalty(layer.residual, states, inputs)
    >>> loss.backward()
    """
    check_limit("jacobian_penalty", "samples", samples, least=1)
    pull: Any = torch.func.vjp(lambda x: residual(x, *args), x)[1]
    total = x.new_zeros(())
    for _ in range(samples):
        e = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        total = total + (e - pull(e)[0]).pow(2).sum()
    return total / (samples * max(1, x.numel()))
