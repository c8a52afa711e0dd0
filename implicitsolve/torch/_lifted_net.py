"""The module of the lifted net."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

import implicitsolve as ims
from implicitsolve import Problem
from implicitsolve.torch._layer import ImplicitLayer, LayerOptions
from implicitsolve.torch._share import on_device, to_array, to_tensor
from implicitsolve.torch._warm_starts import Start

WELL_POSED = 0.95  # infinity norm of A that no initial A exceeds


class LiftedNet(ImplicitLayer):
    """The lifted net x = phi(A x + B u) of `implicitsolve.adapters.lifted_net` as a module, with dense A and B.

    Parameters
    ----------
    n, p : int
        Numbers in the state x and in the input u.
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi. Default "tanh".
    **options
        solve_options, scale, generator, device and dtype of `ImplicitGRU`. Rows of the initial A are scaled down so
        that ||A||_inf <= 0.95, with which there is exactly one solution for any B and u.

    Notes
    -----
    ``net(u, *, x0=None, return_result=False)`` returns x, of shape (batch, n) for inputs (batch, p), or (n,) for (p,).
    An optimizer may leave the set of well-posed A; `project` brings it back.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import LiftedNet
    >>> net = LiftedNet(6, 2, activation="relu")
    >>> net(torch.ones(5, 2)).shape
    torch.Size([5, 6])
    >>> net.project(0.5)
    >>> bool(net.A.abs().sum(dim=1).max() <= 0.5)
    True
    """

    adapter = "lifted_net"
    event_ndim = 1
    A: Tensor

    def __init__(self, n: int, p: int, *, activation: str = "tanh", **options: Unpack[LayerOptions]) -> None:
        super().__init__({"A": (n, n), "B": (n, p)}, {"activation": activation}, p, **options)

    def reset_parameters(self, scale: float | None = None, generator: torch.Generator | None = None) -> None:
        """Draw A and B uniformly from [-scale, scale], and scale rows of A down to a sum of magnitudes of 0.95."""
        super().reset_parameters(scale, generator)
        with torch.no_grad():
            self.A /= (self.A.abs().sum(dim=1, keepdim=True) / WELL_POSED).clamp(min=1.0)

    def forward(self, inputs: Tensor, *, x0: Tensor | Start | None = None, return_result: bool = False) -> Any:
        """Return the states (batch, n) or (n,), with ``return_result=True`` also the `NonlinearResult`."""
        return self.solve(inputs, {}, x0, return_result)

    def build(
        self, adapter: Callable[..., Problem], parameters: Mapping[str, Any], others: Mapping[str, Any]
    ) -> Problem:
        """The adapter takes A and B as arguments of their own."""
        return adapter(**parameters, **others)

    @torch.no_grad()
    def project(self, kappa: float = 0.95) -> None:
        """Replace A by the nearest matrix with ||A||_inf <= kappa: see `implicitsolve.adapters.project_well_posed`."""
        with on_device(self.A):
            self.A.copy_(to_tensor(ims.adapters.project_well_posed(to_array(self.A), kappa)))
