"""Recurrent layers that the experiments compare: torch's, and implicit ones, all called in one way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import implicitsolve as ims
from implicitsolve.torch import ImplicitGRU, ImplicitLSTM, ImplicitRNN, SolveOptions

EXACT = SolveOptions(
    stop=ims.NonlinearStop(atol=1e-3, rtol=0.0), adjoint_stop=ims.LinearStop(rtol=1e-2), on_failure="ignore"
)
"""States lie in [-1, 1], and the gradient is that of a random batch: its noise is far above these bounds."""


def truncated(order: int) -> SolveOptions:
    """P_n in the place of (I - J)^-1, in Newton's method with full steps and in the gradients (Kazi 2016, 4.2, 4.3)."""
    inverse = ims.TruncatedInverse(order=order)
    return SolveOptions(
        method=ims.NewtonKrylov(krylov=inverse, line_search=ims.FullStep(), retry=False),
        stop=ims.NonlinearStop(atol=1e-3, rtol=0.0, max_iterations=40),
        adjoint_method=inverse,
        on_failure="ignore",
    )


class Explicit(nn.Module):
    """One of torch's recurrent layers, on packed sequences; its weights are drawn by torch's own generator."""

    def __init__(self, kind: Callable[..., Any], both: bool, d: int, k: int, _seed: int = 0) -> None:
        super().__init__()
        self.layer = kind(d, k, bidirectional=both, batch_first=True)
        self.size = 2 * k if both else k

    def forward(self, inputs: Tensor, lengths: Any) -> tuple[Tensor, Any]:
        """States, and no result."""
        packed = nn.utils.rnn.pack_padded_sequence(inputs, torch.from_numpy(lengths), True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], True, total_length=inputs.shape[1])[0], None


class Implicit(nn.Module):
    """One of the implicit layers, with trainable states beyond both ends."""

    def __init__(self, kind: Callable[..., Any], options: SolveOptions, d: int, k: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layer = kind(d, k, generator=generator, solve_options=options)
        with torch.no_grad():  # states of order one, and a layer that is easily solved
            for name, parameter in self.layer.named_parameters():
                deviation = d**-0.5 if name[0] in "WV" else 0.3 * k**-0.5 if name[0] in "UPN" else 0.0  # else a bias
                parameter.copy_(deviation * torch.randn(parameter.shape, generator=generator))
            if kind is ImplicitGRU:
                self.layer.bz.fill_(1.0)  # with z = 0 a state is the mean of its neighbours, and I - J nearly singular
        names = ("hs", "cs", "he", "ce") if kind is ImplicitLSTM else ("hs", "he")
        self.edges = nn.ParameterDict({name: nn.Parameter(torch.zeros(k)) for name in names})
        self.size = 2 * k if kind is ImplicitLSTM else k

    def forward(self, inputs: Tensor, lengths: Any) -> tuple[Tensor, Any]:
        """States, and how the solve went."""
        return self.layer(inputs, lengths, **self.edges, return_result=True)  # type: ignore[no-any-return]


LAYERS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "gru": partial(Explicit, nn.GRU, False),
    "lstm": partial(Explicit, nn.LSTM, False),
    "bigru": partial(Explicit, nn.GRU, True),
    "blstm": partial(Explicit, nn.LSTM, True),
    "implicit-gru": partial(Implicit, ImplicitGRU, EXACT),
    "implicit-lstm": partial(Implicit, ImplicitLSTM, EXACT),
    "implicit-rnn": partial(Implicit, ImplicitRNN, EXACT),
}
"""Called with the inputs' width d, the states k and a seed."""


def add_work(work: dict[str, int], result: ims.NonlinearResult) -> None:
    """Count the products of a solve, and the sequences that it left unsolved."""
    work["products"] += result.counts.residuals + result.counts.jvps
    work["unsolved"] += int(np.sum(~result.success))


def parameters_of(layer: nn.Module) -> int:
    """How many numbers."""
    return sum(p.numel() for p in layer.parameters())


def of_equal_size(name: str, d: int, wanted: int) -> int:
    """The k with which a layer has about so many parameters."""
    low, high = 1, 4096
    while low < high:
        middle = (low + high) // 2
        with torch.device("meta" if not name.startswith("implicit") else "cpu"):
            count = parameters_of(LAYERS[name](d, middle, 0))
        low, high = (middle + 1, high) if count < wanted else (low, middle)
    return low
