"""What the modules share: a layer of `implicitsolve.adapters` as an autograd function of named tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, TypeAlias, TypedDict, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

import implicitsolve as ims
from implicitsolve import NonlinearStop, Problem, pull_back, root
from implicitsolve.adapters._equations import Equations
from implicitsolve.adapters.kernels._recurrence import check_activation
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import check_tolerance
from implicitsolve.structure import BlockBanded
from implicitsolve.torch._calls import Call, Root, leading
from implicitsolve.torch._options import SolveOptions, Start
from implicitsolve.torch._share import (
    HALF,
    REAL_DTYPES,
    Linearization,
    check_like,
    check_source,
    check_tensor,
    on_device,
    to_array,
    to_tensor,
    widen,
    without_compilation,
)

ATOL = {torch.float32: 1e-5, torch.float64: 1e-8}
EQUATIONS = Equations(
    torch,
    torch.sigmoid,
    torch.relu,
    linear,
    shares=lambda a: torch.softmax(logsigmoid(a), dim=0),
    zeros=lambda like, shape: like.new_zeros(shape),
    positions=lambda states: torch.arange(states.shape[-2], device=states.device),
    at=lambda line, indices: torch.take_along_dim(line, indices, -2),
)


@dataclass(eq=False)
class LayerCall(Call):
    """One solve of a layer; the tensors are its parameters, inputs and boundary states, in the order of `names`.

    Higher derivatives and transforms use the residual in operations of torch, all else the adapter's functions.
    """

    layer: ImplicitLayer
    names: Sequence[str]
    others: Mapping[str, Any]
    warm: Start | None
    layer_problem: Problem = field(init=False)

    def evaluate(self, x: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        return self.layer.equations(x, dict(zip(self.names, tensors, strict=True)), **self.others)

    def for_batch(
        self, size: int, dims: Sequence[int | None], x0: Any, tensors: Sequence[Tensor]
    ) -> tuple[Call, Any, Sequence[Tensor]]:
        if x0 is None:
            at = self.names.index("inputs")
            x0 = torch.zeros_like(leading(tensors[at], dims[1 + at], size)[0, ..., :1])
            x0 = x0.expand(*x0.shape[:-1], self.layer.state_size)
        return super().for_batch(size, dims, x0, tensors)

    def solve(self, x0: Any, tensors: Sequence[Tensor]) -> Tensor:
        with on_device(tensors[0]):
            self.layer_problem = self.problem(x0, tensors)
            declared = self.layer_problem.structure
            self.structure = declared if isinstance(declared, BlockBanded) else None
            self.result = root(self.layer_problem, self.start(x0), method=self.options.method, stop=self.options.stop)
            x = to_tensor(self.result.x)
            if self.warm is not None:
                self.warm.keep(self.warm.owner.states, x, np.atleast_1d(self.result.success))
            return x

    def start(self, x0: Tensor | None) -> Any:
        """Where `root` starts; None leaves it to the layer."""
        kind = self.options.initial_guess
        if self.warm is not None:
            x0 = self.warm.recall(self.warm.owner.states, self.shape, lambda: self.blank(kind))
        if x0 is None:
            return None if kind == "default" else ims.adapters.initial_guess(self.layer_problem, kind)
        if tuple(x0.shape) != self.shape:
            shapes = f"{self.shape}, got {tuple(x0.shape)}"
            raise ValueError(f"{self.caller}: `x0` must have shape {shapes}")
        return to_array(x0)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(ims.adapters.initial_guess(self.layer_problem, "zeros").shape)

    def blank(self, kind: str) -> Tensor:
        return to_tensor(ims.adapters.initial_guess(self.layer_problem, "one-step" if kind == "default" else kind))

    def plain_gradients(
        self, cotangent: Tensor, x: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor, ...]:
        if not any(wanted):
            return ()
        options = self.options
        method = options.adjoint_method
        is_exact = (method is not None and method.kind == "direct") or self.layer_problem.substitute is not None
        warm = None if is_exact else self.warm  # a direct solve needs no start
        names = list(compress(self.names, wanted))
        with on_device(cotangent):
            start: Any = None
            if warm is not None:
                start = warm.recall(warm.owner.adjoints, tuple(cotangent.shape), lambda: torch.zeros_like(cotangent))
            settings: Any = {"method": method, "stop": options.adjoint_stop, "wrt": names}
            settings["x0"] = None if start is None else to_array(start)
            at = cast(NonlinearResult, self.result).x
            outcome = pull_back(self.layer_problem, at, to_array(cotangent), **settings)
            if warm is not None:
                warm.keep(warm.owner.adjoints, to_tensor(outcome.adjoint), np.atleast_1d(outcome.linear.success))
            gradients: list[Any] = [outcome.gradients[name] for name in names]
            found = tuple(to_tensor(g.data if scipy.sparse.issparse(g) else g) for g in gradients)
        options.report(self.caller, "adjoint solve", outcome)
        return found

    def problem(self, like: Any, tensors: Sequence[Tensor], point: Linearization | None = None) -> Problem:
        others = {name: x.numpy(force=True) if isinstance(x, Tensor) else x for name, x in self.others.items()}
        return self.layer.build(self.by_name(tensors), self.layer.settings | others)

    def tangent_problem(
        self, x: Tensor, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]
    ) -> tuple[Problem, Any, Any]:
        return self.layer_problem, cast(NonlinearResult, self.result).x, self.by_name(tangents)

    def by_name(self, tensors: Sequence[Tensor | None]) -> dict[str, Any]:
        given = zip(self.names, tensors, strict=True)
        return {name: self.layer.wrap(name, to_array(x)) for name, x in given if x is not None}


Boundaries: TypeAlias = "Mapping[str, Tensor | None]"  # not evaluated: the documentation is built without torch


class LayerOptions(TypedDict, total=False):
    """Keyword arguments of every module."""

    solve_options: SolveOptions | None
    scale: float | None
    generator: torch.Generator | None
    device: Any
    dtype: torch.dtype | None


class ImplicitLayer(nn.Module):
    """A module whose states solve a nonlinear system: what `ImplicitGRU` and the others have in common.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Of the parameters, by the adapter's names.
    settings : mapping of str to Any
        Further arguments of the adapter.
    inputs, states : int
        Numbers on the last axis of the inputs and of the states.
    solve_options, scale, generator, device, dtype : optional
        As in `ImplicitGRU`.

    Attributes
    ----------
    solve_options : SolveOptions
        May be replaced between calls.
    """

    adapter: str  # of `implicitsolve.adapters`
    initial_scale: float = 0.1
    event_ndim: int = 2  # axes of one sample's inputs

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        settings: Mapping[str, Any],
        inputs: int,
        states: int,
        *,
        solve_options: SolveOptions | None = None,
        scale: float | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(solve_options, SolveOptions | None):
            raise TypeError(f"{self.caller}: `solve_options` must be SolveOptions, got {type(solve_options).__name__}")
        if "activation" in settings:
            check_activation(self.caller, settings["activation"])
        self.solve_options: SolveOptions = SolveOptions() if solve_options is None else solve_options
        self.settings: dict[str, Any] = dict(settings)
        self.names: tuple[str, ...] = tuple(shapes)
        self.input_size = inputs
        self.state_size = states
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not any(dtype is kind for kind in REAL_DTYPES + HALF):
            raise TypeError(f"{self.caller}: `dtype` must be one of torch's real floating dtypes, got {dtype}")
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters(scale, generator)

    @property
    def caller(self) -> str:
        return type(self).__name__

    def reset_parameters(self, scale: float | None = None, generator: torch.Generator | None = None) -> None:
        """Draw all parameters, uniformly from [-scale, scale], by default the scale of the layer's paper."""
        scale = self.initial_scale if scale is None else scale
        check_tolerance(self.caller, "scale", scale)
        check_source(self.caller, generator)
        for name in self.names:
            nn.init.uniform_(getattr(self, name), -scale, scale, generator=generator)

    def extra_repr(self) -> str:
        shapes = [f"{name}={tuple(getattr(self, name).shape)}" for name in self.names]
        return ", ".join([*shapes, *(f"{name}={value!r}" for name, value in self.settings.items())])

    @without_compilation
    def solve(
        self, inputs: Tensor, boundaries: Boundaries, x0: Tensor | Start | None, return_result: bool, **others: Any
    ) -> Any:
        """The states at the present parameters; what `forward` does in every subclass.

        Nothing is kept in the module, so that threads may share it.
        """
        parameters = {name: widen(getattr(self, name)) for name in self.names}
        wide = parameters[self.names[0]].dtype
        given = {"inputs": inputs} | {name: value for name, value in boundaries.items() if value is not None}
        given = {name: widen(value, wide) for name, value in given.items()}
        warm = x0 if isinstance(x0, Start) else None
        start = None if isinstance(x0, Start) else widen(x0, wide)
        self._check(given if start is None else {**given, "x0": start}, parameters[self.names[0]])
        if warm is not None:
            warm.check(self.caller, inputs, self.event_ndim)
        tensors = self.arguments(parameters | given)
        options = self.solve_options
        if options.stop is None:
            options = replace(options, stop=NonlinearStop(atol=ATOL[wide], rtol=torch.finfo(wide).eps ** 0.5))
        batch_ndim = inputs.ndim - self.event_ndim
        call = LayerCall(self.caller, options, batch_ndim, None, self, tuple(tensors), others, warm)
        x: Any = Root.apply(call, None if start is None else start.detach(), *tensors.values())
        call.options.report(self.caller, "forward solve", call.result)
        x = x.to(inputs.dtype)
        return (x, call.result) if return_result else x

    def arguments(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The adapter's arguments from the parameters, the inputs and the boundary states, by name."""
        return tensors

    def wrap(self, name: str, array: Any) -> Any:
        return array

    def build(self, arrays: Mapping[str, Any], settings: Mapping[str, Any]) -> Problem:
        others = {name: array for name, array in arrays.items() if name not in self.names}
        return getattr(ims.adapters, self.adapter)({name: arrays[name] for name in self.names}, **others, **settings)

    def residual(self, states: Tensor, inputs: Tensor, lengths: Any = None, **boundaries: Tensor | None) -> Tensor:
        """Return states - F(states), of which the module's states are the root, by operations of torch.

        The arguments are those of a call; for a `jacobian_penalty`, or to see how well a state solves the equations.
        """
        given = {name: value for name, value in boundaries.items() if value is not None}
        parameters = {name: getattr(self, name) for name in self.names}
        return self.equations(states, self.arguments(parameters | given | {"inputs": inputs}), lengths=lengths)

    @property
    def activation(self) -> str:
        return self.settings.get("activation", "identity")

    @abstractmethod
    def equations(self, states: Tensor, tensors: Mapping[str, Tensor], **others: Any) -> Tensor:
        """The residual by operations of torch, of parameters, inputs and boundary states by name."""

    def _check(self, given: Mapping[str, Any], like: Tensor) -> None:
        """Check what the adapter would report in its own terms."""
        for name, value in given.items():
            check_like(self.caller, name, check_tensor(self.caller, name, value, REAL_DTYPES), like, "the parameters")
        shape = tuple(given["inputs"].shape)
        if shape[-1:] != (self.input_size,):
            expected = f"{self.input_size} numbers on its last axis"
            raise ValueError(f"{self.caller}: `inputs` must have {expected}, got shape {shape}")
