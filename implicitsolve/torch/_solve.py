"""`solve`: a root of any residual written in torch, as a differentiable function of the residual's arguments.

`jacobian_penalty` keeps the problem easy to solve while its parameters are trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from implicitsolve.stopping import LinearStop, NonlinearStop, check_choice, check_flag, check_limit
from implicitsolve.structure import BlockBanded
from implicitsolve.torch._calls import ResidualCall, Root
from implicitsolve.torch._options import SolveOptions
from implicitsolve.torch._share import check_source, check_tensor, widen, without_compilation

PRODUCT_KINDS = ("exact", "differences")


@without_compilation
def solve(
    residual: Callable[..., Tensor],
    x0: Tensor,
    *args: Any,
    method: Any = None,
    stop: NonlinearStop | None = None,
    adjoint_method: Any = None,
    adjoint_stop: LinearStop | None = None,
    batch_ndim: int = 0,
    structure: BlockBanded | None = None,
    fixed_point: bool = False,
    products: str = "exact",
    on_failure: str = "warn",
    return_result: bool = False,
) -> Any:
    """Return the root x of ``residual(x, *args) = 0``, differentiable with respect to `args`.

    The forward part is `implicitsolve.root` with exact Jacobian products; the backward part is one adjoint solve at the
    root, however the root was found.

    Parameters
    ----------
    residual : callable
        ``residual(x, *args)`` returns a tensor of the shape, dtype and device of x, by operations of torch.
    x0 : Tensor
        Start: float32, float64, complex64 or complex128 (then the residual must be holomorphic in x). It gets no
        gradient, since the root does not depend on it. For a start in float16 or bfloat16 the system is solved in
        float32, and the root converted.
    *args
        What else the residual is given: tensors, tuples, lists and dicts with tensors (the parameters of a module, for
        `torch.func.functional_call`), and anything else. A tensor that requires grad must be here: a residual that
        takes it from an enclosing scope is an error, since that gradient would be lost. The residual gets those in
        float16 or bfloat16 in the precision of the solve.
    method, stop, adjoint_method, adjoint_stop : optional
        As in `SolveOptions`, but by default `stop` is that the estimated error of x is at most sqrt(eps) of x.
    batch_ndim : int, optional
        The first `batch_ndim` axes of x index independent systems. Default 0.
    structure : BlockBanded, optional
        What is known of the Jacobian, as in `implicitsolve.Problem`.
    fixed_point : bool, optional
        Whether the residual is x - G(x), whose G "auto" iterates by `Anderson`. Default False.
    products : {"exact", "differences"}, optional
        Jacobian products of the forward solve. "exact" (default) ones are the reverse of reverse mode, so that the
        residual's operations must have second derivatives in torch; for those that have none, such as fused attention,
        there are "differences" of the residual. Gradients are exact either way, and need first derivatives.
    on_failure : {"warn", "raise", "ignore"}, optional
        As in `SolveOptions`, for tangent solves too.
    return_result : bool, optional
        Whether to return ``(x, result)`` with the `NonlinearResult` of `root`, whose status shows which systems of a
        batch converged. Default False.

    Returns
    -------
    Tensor
        The root, on the memory of ``result.x``.

    Raises
    ------
    TypeError, ValueError
        If an argument, or what the residual returns, is not usable.
    NoConvergence
        If ``on_failure="raise"`` and a solve failed; from ``backward()`` if it was the adjoint one.

    Notes
    -----
    Derivatives of any order are exact to the solves' tolerances: the adjoint is itself a root, and so is the tangent of
    forward mode (`torch.autograd.forward_ad`, `torch.func.jvp`). `torch.func.vmap` makes one batch of all systems, and
    `torch.func`'s transforms compose in any order. Beyond first order, and below the transforms, the residual must suit
    `torch.func.vjp`, or `jvp` after forward mode; under `vmap`, what differs between systems must be in `args` or `x0`.
    Autocast is off inside the residual. `torch.compile` does not trace a solve: it breaks the graph
    there, so that ``fullgraph=True`` is an error.

    A linearization costs one residual with its graph, and a product with J or J^H one backward pass.

    Examples
    --------
    >>> import torch
    >>> import implicitsolve.torch as imt
    >>> a = torch.tensor([4.0, 9.0], dtype=torch.float64, requires_grad=True)
    >>> x = imt.solve(lambda x, a: x**2 - a, torch.ones(2, dtype=torch.float64), a)
    >>> x.detach().numpy().round(6)
    array([2., 3.])
    >>> x.sum().backward()
    >>> a.grad.numpy().round(6)
    array([0.25    , 0.166667])
    """
    if not callable(residual):
        raise TypeError(f"solve: `residual` must be callable, got {type(residual).__name__}")
    check_choice("solve", "products", products, PRODUCT_KINDS)
    check_flag("solve", "return_result", return_result)
    options = SolveOptions(
        method="auto" if method is None else method,
        stop=stop,
        adjoint_method=adjoint_method,
        adjoint_stop=adjoint_stop,
        on_failure=on_failure,
    )
    wide = check_tensor("solve", "x0", widen(x0)).detach()
    own, is_unchecked = ("solve", options, batch_ndim, structure), torch.is_grad_enabled()
    call = ResidualCall(*own, residual, args, products=products, is_unchecked=is_unchecked, fixed_point=fixed_point)
    tensors = (widen(leaf, wide.dtype) for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
    x: Any = Root.apply(call, wide, *tensors)
    options.report("solve", "forward solve", call.result)
    x = x.to(x0.dtype)
    return (x, call.result) if return_result else x


def jacobian_penalty(
    residual: Callable[..., Tensor], x: Tensor, *args: Any, samples: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Estimate ``||dG/dx||_F^2 / N``, the mean over the systems of x = G(x), for the loss of a training step.

    This is `implicitsolve.derivatives.jacobian_penalty`, differentiable with respect to everything, by exact
    derivatives.

    Parameters
    ----------
    residual : callable
        ``residual(x, *args)`` returns x - G(x), such as that of `solve`, or the `residual` of a module.
    x : Tensor
        Where: what `solve` or a module returned. Gradients flow through it to the parameters on which it depends.
    *args
        Of the residual.
    samples : int, optional
        Number of random vectors. Default 1.
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
    if not callable(residual):
        raise TypeError(f"jacobian_penalty: `residual` must be callable, got {type(residual).__name__}")
    check_tensor("jacobian_penalty", "x", x)
    check_limit("jacobian_penalty", "samples", samples, least=1)
    check_source("jacobian_penalty", generator)
    pull: Any = torch.func.vjp(lambda x: residual(x, *args), x)[1]
    total = x.new_zeros(())
    for _ in range(samples):
        e = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        total = total + (e - pull(e)[0]).pow(2).sum()
    return total / (samples * max(1, x.numel()))
