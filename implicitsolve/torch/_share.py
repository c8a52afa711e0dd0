"""The one place where tensors become arrays and arrays tensors, on one memory, and the graphs that lead to tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from implicitsolve.errors import require

P = ParamSpec("P")
R = TypeVar("R")

REAL_DTYPES = (torch.float32, torch.float64)
INEXACT = (*REAL_DTYPES, torch.complex64, torch.complex128)
HALF = (torch.float16, torch.bfloat16)


def widen(x: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The tensor itself, or in another dtype if it is in half precision, in which no system is solved."""
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype in HALF else x


def without_compilation(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which `torch.compile` calls and does not trace: a solve is a loop on arrays, no graph of torch."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # disabled here, since to do so at import loads the compiler
            disable: Any = torch.compiler.disable
            found: R = disable(function)(*args, **kwargs)
            return found
        return function(*args, **kwargs)

    return call


def one_by_one(function: Callable[..., Sequence[Any]], *given: Any) -> Sequence[Any]:
    """Call a function of tensors for each element of the batches of `is_grads_batched` and ``vectorize=True``.

    These are older than `torch.func.vmap`, and no rule of an autograd function applies to them.
    """
    test: Any = vars(torch._C)["_functorch"].is_legacy_batchedtensor
    is_batched = [x is not None and test(x) for x in given]
    if not any(is_batched):
        return function(*given)
    level, own = torch._C._vmapmode_increment_nesting() - 1, vars(torch)
    torch._C._vmapmode_decrement_nesting()
    add, remove = own["_add_batch_dim"], own["_remove_batch_dim"]
    whole = [remove(x, level, 1, 0) if batched else x for x, batched in zip(given, is_batched)]
    size = next(len(x) for x, batched in zip(whole, is_batched) if batched)
    found = [function(*(x[i] if batched else x for x, batched in zip(whole, is_batched))) for i in range(size)]
    return [None if parts[0] is None else add(torch.stack(parts), 0, level) for parts in zip(*found)]


def check_tensor(caller: str, name: str, value: Any, dtypes: tuple[torch.dtype, ...] = INEXACT) -> torch.Tensor:
    """Check that a value is a tensor whose memory an array can share."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{caller}: `{name}` must be a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided:
        raise TypeError(f"{caller}: `{name}` must be a dense tensor, got layout {value.layout}")
    if value.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{caller}: `{name}` must be on the CPU or a CUDA device, got {value.device}")
    if value.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{caller}: `{name}` must have dtype {expected}, got {value.dtype}")
    return value


def check_source(caller: str, generator: Any) -> None:
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(f"{caller}: `generator` must be a torch.Generator, got {type(generator).__name__}")


def check_like(caller: str, name: str, value: torch.Tensor, like: torch.Tensor, what: str) -> None:
    """Check that two tensors have one dtype and one device; `what` is what a message calls the second."""
    if value.dtype != like.dtype:
        raise TypeError(f"{caller}: `{name}` must have the dtype of {what}, {like.dtype}, got {value.dtype}")
    if value.device != like.device:
        raise ValueError(f"{caller}: `{name}` must have the device of {what}, {like.device}, got {value.device}")


def to_array(x: torch.Tensor) -> Any:
    """The tensor's values as an array on the same memory."""
    x = x.detach().resolve_conj().resolve_neg()
    return _cupy().from_dlpack(x) if x.is_cuda else x.numpy()


def to_tensor(x: Any) -> torch.Tensor:
    """The array as a tensor on the same memory; one of which torch allows no view is copied."""
    if not isinstance(x, np.ndarray | np.generic):
        return torch.from_dlpack(x if all(stride >= 0 for stride in x.strides) else x.copy())
    x = np.asarray(x)
    has_view = x.flags.writeable and all(stride >= 0 for stride in x.strides)
    return torch.from_numpy(x if has_view else x.copy())


def full_precision(x: torch.Tensor) -> torch.autocast:
    """Work in the precision of the tensors themselves where x is, whatever the caller's autocast is."""
    return torch.autocast(x.device.type, enabled=False)


@contextmanager
def on_device(x: torch.Tensor) -> Generator[None]:
    """Make CuPy work on the device of x, and on the stream on which torch works there now."""
    if not x.is_cuda:
        yield
        return
    cuda = _cupy().cuda
    stream = torch.cuda.current_stream(x.device)
    with cuda.Device(stream.device.index), cuda.Stream.from_external(_Stream(stream)):
        yield


class _Stream:
    """A stream of torch by CuPy's protocol, which streams of older versions of torch do not implement."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream.cuda_stream


def _cupy() -> Any:
    need = "pip install 'implicitsolve[cuda13]' (or [cuda12]), or move the tensors to the CPU"
    return require("cupy", f"implicitsolve.torch: CUDA tensors go through CuPy, which is not installed: {need}")


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


def find_captured(F: Tensor, known: Sequence[Tensor]) -> Tensor | None:
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
