"""Implicit layers as PyTorch functions: forward by `implicitsolve.root`, backward by one adjoint solve.

`solve` is a differentiable root of any residual written in torch; the modules are the layers of
`implicitsolve.adapters`. Tensors on the CPU share their memory with NumPy, tensors on CUDA with CuPy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from implicitsolve.errors import BackendUnavailable

if importlib.util.find_spec("torch") is None:
    raise BackendUnavailable(
        "implicitsolve.torch needs PyTorch, which is not installed: pip install 'implicitsolve[torch]'"
    )

from implicitsolve.torch._layer import ImplicitLayer
from implicitsolve.torch._lifted import LiftedNet
from implicitsolve.torch._modules import (
    DiagonalGRU,
    DiagonalLSTM,
    Elman,
    ImplicitGRU,
    ImplicitLSTM,
    ImplicitRNN,
    StencilGRU,
)
from implicitsolve.torch._options import ConvergenceWarning, SolveOptions, WarmStarts
from implicitsolve.torch._solve import jacobian_penalty, solve
from implicitsolve.torch._stacked import GRU, LSTM

__all__ = [
    "GRU",
    "LSTM",
    "ConvergenceWarning",
    "DiagonalGRU",
    "DiagonalLSTM",
    "Elman",
    "ImplicitGRU",
    "ImplicitLSTM",
    "ImplicitLayer",
    "ImplicitRNN",
    "LiftedNet",
    "SolveOptions",
    "StencilGRU",
    "WarmStarts",
    "jacobian_penalty",
    "solve",
]
__dir__: Callable[[], list[str]] = __all__.copy
