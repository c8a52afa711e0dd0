"""A residual at a point, by the graph that leads there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def recording() -> Generator[None]:
    """Build graphs, whatever the caller's modes are."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def leaf(x: Tensor, *, needs_grad: bool) -> Tensor:
    """The tensor's values at the beginning of a graph of their own."""
    with torch.inference_mode(False):
        x = x.clone() if x.is_inference() else x.detach()
    return x.requires_grad_(needs_grad)


class Linearization:
    """F at x, with the graph that leads there; every product is one backward pass, and none evaluates F again.

    Products with the adjoint are what `torch.autograd.grad` computes. They are linear in w, so the gradient of
    ``<J^H w, v>`` with respect to w is J v: the reverse of the reverse. `torch.func.jvp` would go through F once more
    for each product, and `torch.func.linearize` traces F, which costs more than most solves.

    Attributes
    ----------
    x, F : Tensor
        Point and value.
    """

    def __init__(self, caller: str, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.x = leaf(x, needs_grad=True)
        with recording():
            self.F = function(self.x)
        if not self.F.requires_grad:
            raise ValueError(f"{caller}: `residual` must depend on x by operations of torch, got a value without graph")
        self.reverse: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def pull(self, w: Tensor) -> Tensor:
        """J^H w."""
        return self.pull_parameters(w, [self.x])[0]

    def push(self, v: Tensor) -> Tensor:
        """J v."""
        if self.reverse is None:
            self.reverse = self._reverse([self.x])
        return self._forward(*self.reverse, [v])

    def pull_parameters(self, w: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(dF/dtheta)^H w for each of the parameters, which are leaves of the graph."""
        return torch.autograd.grad(self.F, parameters, w, retain_graph=True, materialize_grads=True)

    def push_parameters(self, tangents: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
        """(dF/dtheta) dtheta, summed over the parameters."""
        return self._forward(*self._reverse(parameters), tangents)

    def _reverse(self, inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A cotangent w, and what reverse mode makes of it: one linear function of w for each input."""
        with recording():
            w = torch.zeros_like(self.F).requires_grad_()
            return w, torch.autograd.grad(self.F, inputs, w, create_graph=True, materialize_grads=True)

    def _forward(self, w: Tensor, pulled: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
        """The transpose of `pulled`, seen as a function of w."""
        pairs = [(g, tangent) for g, tangent in zip(pulled, tangents, strict=True) if g.requires_grad]
        if not pairs:
            return torch.zeros_like(self.F)
        outputs, cotangents = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, w, cotangents, retain_graph=True, materialize_grads=True)[0]


def captured(F: Tensor, known: Sequence[Tensor]) -> Tensor | None:
    """A leaf of F's graph that is none of the known ones, or None."""
    seen: set[Any] = set()
    stack: list[Any] = [F.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad") and not any(node.variable is own for own in known):
            return node.variable
        stack.extend(following for following, _ in node.next_functions)
    return None
