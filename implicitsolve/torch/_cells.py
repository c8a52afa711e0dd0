"""The layers' functions in operations of torch, of which derivatives of any order, and `torch.func`, are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid

Tensors = Mapping[str, Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "logistic": torch.sigmoid,
    "relu": torch.relu,
    "identity": lambda x: x,
}


def affine(w: Tensors, gate: str, x: Tensor, h: Tensor) -> Tensor:
    """W x + U h + b of one gate; a vector U stands for a diagonal matrix."""
    U = w["U" + gate]
    return linear(x, w["W" + gate], w["b" + gate]) + (linear(h, U) if U.ndim == 2 else U * h)


def mixed(arguments: Sequence[Tensor], neighbours: Sequence[Tensor]) -> Tensor:
    """The sum of s_j h_j, s_j = sigma(a_j) / sum_l sigma(a_l)."""
    shares = torch.softmax(logsigmoid(torch.stack(list(arguments))), dim=0)
    return (shares * torch.stack(list(neighbours))).sum(dim=0)


def gated(w: Tensors, x: Tensor, hhat: Tensor) -> Tensor:
    """The state of a GRU whose previous state is hhat."""
    z, r = (torch.sigmoid(affine(w, gate, x, hhat)) for gate in "zr")
    return (1 - z) * hhat + z * torch.tanh(affine(w, "", x, r * hhat))


def implicit_gru(w: Tensors, x: Tensor, neighbours: Sequence[Tensor]) -> Tensor:
    """That of `implicitsolve.adapters.implicit_gru`."""
    return gated(w, x, mixed([affine(w, gate, x, h) for gate, h in zip("pn", neighbours, strict=True)], neighbours))


def stencil_gru(w: Tensors, x: Tensor, neighbours: Sequence[Tensor]) -> Tensor:
    """That of `implicitsolve.adapters.stencil_gru`."""
    switch = zip(w["Ws"], w["bs"], w["Us"], neighbours, strict=True)
    return gated(w, x, mixed([linear(x, W, b) + linear(h, U) for W, b, U, h in switch], neighbours))


def implicit_lstm(w: Tensors, x: Tensor, neighbours: Sequence[Tensor]) -> Tensor:
    """That of `implicitsolve.adapters.implicit_lstm`."""
    hidden = [state.chunk(2, dim=-1)[0] for state in neighbours]
    arguments = [torch.cat(2 * [affine(w, gate, x, h)], dim=-1) for gate, h in zip("pn", hidden, strict=True)]
    return lstm(w, x, mixed(arguments, neighbours))


def lstm(w: Tensors, x: Tensor, before: Tensor) -> Tensor:
    """The state (h, c) of an LSTM, and the one before it."""
    hhat, chat = before.chunk(2, dim=-1)
    i, f, o = (torch.sigmoid(affine(w, gate, x, hhat)) for gate in "ifo")
    c = f * chat + i * torch.tanh(affine(w, "g", x, hhat))
    return torch.cat([o * torch.tanh(c), c], dim=-1)


def matrices(w: Tensors, x: Tensor, neighbours: Sequence[Tensor]) -> Tensor:
    """What `implicitsolve.adapters.implicit_rnn` and `elman` apply their activation to."""
    total = linear(x, w["V"], w.get("b"))
    for matrix, h in zip([w["W"]] if "W" in w else [*w["P"], *w["N"]], neighbours, strict=True):
        total = total + linear(h, matrix)
    return total


def edge(parts: Sequence[Tensor | None], depth: int, states: Tensor) -> Tensor:
    """States beyond one end (..., depth, size), side by side where they have parts; None stands for zeros."""
    k = states.shape[-1] // max(1, len(parts))
    wanted = (*states.shape[:-2], depth, k)
    found: list[Tensor] = []
    for part in parts:
        value = states.new_zeros(depth, k) if part is None else part
        value = value if tuple(value.shape[-2:]) == (depth, k) else value.unsqueeze(-2)
        found.append(value.expand(wanted))
    return torch.cat(found, dim=-1) if found else states.new_zeros((*states.shape[:-2], depth, k))


def neighbours(
    states: Tensor, offsets: Sequence[int], before: Tensor, after: Tensor, lengths: Tensor | None
) -> list[Tensor]:
    """The states at each offset from every position, `before` and `after` beyond the ends, nearest first."""
    lower, T = before.shape[-2], states.shape[-2]
    line = torch.cat([before.flip(-2), states, after], dim=-2)
    found: list[Tensor] = []
    for offset in offsets:
        if offset < 0 or lengths is None:
            found.append(line.narrow(-2, lower + offset, T))
            continue
        at, ends = torch.arange(T, device=states.device) + offset, lengths.unsqueeze(-1)
        at = torch.where(at < ends, at, (T + at - ends).clamp(max=line.shape[-2] - lower - 1)) + lower
        found.append(torch.gather(line, -2, at.unsqueeze(-1).expand(states.shape)))
    return found
