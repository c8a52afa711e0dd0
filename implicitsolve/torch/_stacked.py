"""Stacks of implicit layers with the arguments and the outputs of `torch.nn.GRU` and `torch.nn.LSTM`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from implicitsolve.stopping import check_flag, check_limit, check_number
from implicitsolve.torch._layer import ImplicitLayer
from implicitsolve.torch._modules import ImplicitGRU, ImplicitLSTM
from implicitsolve.torch._options import SolveOptions
from implicitsolve.torch._share import check_tensor

RECURRENT_NORM = 0.5  # spectral norm of the initial recurrent matrices


class _Stacked(nn.Module):
    """Layers one upon the other; a state has `parts`, of which the first is the output."""

    kind: type[ImplicitLayer]
    parts: tuple[str, ...]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        solve_options: SolveOptions | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for size, number in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            check_limit(name, size, number, least=1)
        for flag, value in (("bias", bias), ("batch_first", batch_first), ("bidirectional", bidirectional)):
            check_flag(name, flag, value)
        if not bias:
            raise ValueError(f"{name}: `bias` must be True: the implicit layers have biases, got {bias!r}")
        check_number(name, "dropout", dropout, least=0)
        if not dropout <= 1:
            raise ValueError(f"{name}: `dropout` must be from 0 to 1, got {dropout!r}")
        self.input_size: int = input_size
        self.hidden_size: int = hidden_size
        self.num_layers: int = num_layers
        self.batch_first: bool = batch_first
        self.dropout: float = dropout
        self.bidirectional: bool = bidirectional
        k = hidden_size * (2 if bidirectional else 1)
        options: Any = {"solve_options": solve_options, "device": device, "dtype": dtype}
        kind: Any = self.kind
        layers = [kind(d, k, **options) for d in [input_size, *([k] * (num_layers - 1))]]
        self.layers: nn.ModuleList = nn.ModuleList(layers)
        self._boundaries: tuple[str, ...] = layers[0].boundaries
        for i in range(num_layers):
            for part in self._boundaries:
                self.register_parameter(f"{part}_l{i}", nn.Parameter(torch.empty(k, device=device, dtype=dtype)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw contractive layers: see the notes of the class."""
        for name, parameter in self.named_parameters():
            own = name.rpartition(".")[2]
            if own[0] == "W":
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            elif own[0] == "U":
                nn.init.normal_(parameter)
                parameter.mul_(RECURRENT_NORM / torch.linalg.matrix_norm(parameter.float(), 2).to(parameter.dtype))
            else:
                nn.init.constant_(parameter, 1.0 if own == "bz" else 0.0)

    def flatten_parameters(self) -> None:
        """Do nothing: the method exists because `torch.nn`'s layers have it."""

    def extra_repr(self) -> str:
        names = ("input_size", "hidden_size", "num_layers", "batch_first", "dropout", "bidirectional")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    def forward(self, input: Any, hx: Any = None, *, return_result: bool = False) -> Any:
        """Return the outputs and the final states, with ``return_result=True`` also the results, one per layer."""
        x, lengths, ends = input, None, None
        if isinstance(input, PackedSequence):
            x, lengths = pad_packed_sequence(input, batch_first=True)
            ends = lengths.to(x.device) - 1
        elif check_tensor(type(self).__name__, "input", input).ndim == 3 and not self.batch_first:
            x = input.transpose(0, 1)
        given = self._given_values(hx, x)
        finals: list[list[Tensor]] = [[] for _ in self.parts]
        results: list[Any] = []
        for i, layer in enumerate(self.layers):
            x = dropout(x, self.dropout, self.training) if i else x
            states, result = layer(x, lengths, **self._edges(i, given), return_result=True)
            results.append(result)
            pieces = states.chunk(len(self.parts), dim=-1)
            for found, piece in zip(finals, pieces, strict=True):
                found += self._final(piece, ends)
            x = pieces[0]
        last = [torch.stack(found) for found in finals]
        outcome = (self._like(x, input, lengths), last[0] if len(last) == 1 else tuple(last))
        return (*outcome, results) if return_result else outcome

    def _given_values(self, hx: Any, x: Tensor) -> list[Tensor | None]:
        if hx is None:
            return [None] * len(self.parts)
        values = [hx] if len(self.parts) == 1 else list(hx) if isinstance(hx, tuple | list) else []
        for value in values:
            check_tensor(type(self).__name__, "hx", value)
        shape = (self.num_layers * (1 + self.bidirectional), *x.shape[:-2], self.hidden_size)
        if len(values) != len(self.parts) or any(tuple(value.shape) != shape for value in values):
            got = [tuple(value.shape) for value in values]
            raise ValueError(f"{type(self).__name__}: `hx` must have {len(self.parts)} tensor(s) of {shape}, got {got}")
        return values

    def _edges(self, i: int, given: list[Tensor | None]) -> dict[str, Tensor]:
        """The states beyond the ends of a layer: its parameters, or what the caller gave in their place."""
        edges = {name: getattr(self, f"{name}_l{i}") for name in self._boundaries}
        for part, value in zip(self.parts, given, strict=True):
            if value is not None and not self.bidirectional:
                edges[part + "s"] = value[i]
            elif value is not None:
                size, (before, after) = self.hidden_size, value[2 * i : 2 * i + 2]
                own = (edges[part + side].expand(*before.shape[:-1], 2 * size) for side in "se")
                ahead, behind = (edge.to(value.dtype) for edge in own)
                edges[part + "s"] = torch.cat([before, ahead[..., size:]], dim=-1)
                edges[part + "e"] = torch.cat([behind[..., :size], after], dim=-1)
        return edges

    def _final(self, states: Tensor, ends: Tensor | None) -> list[Tensor]:
        """The states at the last position; if bidirectional, their first half, and the second at the first position."""
        if ends is None:
            last = states[..., -1, :]
        else:
            last = states[torch.arange(len(ends), device=ends.device), ends]
        if not self.bidirectional:
            return [last]
        return [last[..., : self.hidden_size], states[..., 0, self.hidden_size :]]

    def _like(self, x: Tensor, input: Any, lengths: Tensor | None) -> Any:
        """The outputs (B, T, k) in the form of the inputs."""
        if lengths is None:
            return x if self.batch_first or x.ndim == 2 else x.transpose(0, 1)
        order = input.sorted_indices
        if order is not None:
            x, lengths = x[order], lengths[order.cpu()]
        return input._replace(data=pack_padded_sequence(x, lengths, batch_first=True).data)


class GRU(_Stacked):
    """Implicit GRUs in the place of `torch.nn.GRU`: the same arguments, inputs and outputs.

    Parameters
    ----------
    input_size, hidden_size : int
        Numbers of one position's input, and of its output.
    num_layers : int, optional
        Layers, each of which has the states of the one before for inputs. Default 1.
    bias : bool, optional
        True, which is the default: the layers have biases.
    batch_first : bool, optional
        Whether inputs and outputs are (B, T, ...) and not (T, B, ...). Default False.
    dropout : float, optional
        Part of the states between two layers that is zeroed in training. Default 0.
    bidirectional : bool, optional
        Which form the outputs have (see the notes); the states depend on both sides in any case. Default False.
    solve_options : SolveOptions, optional
        As in `ImplicitGRU`, for all layers.
    device, dtype : optional
        As in torch's modules.

    Raises
    ------
    ValueError
        If `num_layers`, `bias` or `dropout` has another value; in a call, if `hx` has another shape.

    Notes
    -----
    ``layer(input, hx=None, *, return_result=False)`` returns ``output, h_n`` for an input (T, B, d), (B, T, d) with
    `batch_first`, (T, d), or a `PackedSequence`, which makes the output one too, in the same order. With
    ``return_result=True`` the list of the layers' `NonlinearResult` follows.

    A state depends on the whole sequence. Its number of elements k is hidden_size, or twice that if `bidirectional`, so
    that the output has the width of torch's layer:

    - not bidirectional: h_n[i] is layer i's state at the last position, and hx[i] its state before the first one.
    - bidirectional: h_n[2i] is the first half of layer i's state at the last position, h_n[2i+1] the second half of
      that at the first, as in torch. hx[2i] replaces the first half of its state before the first position, hx[2i+1]
      the second half of that after the last.

    The states beyond both ends are parameters, ``hs_l0`` and ``he_l0`` of the first layer and so on, initially zero,
    where `hx` does not replace them. The other parameters are those of ``layers[i]``, an `ImplicitGRU`.

    Initially input matrices are normal with variance 1 / d, recurrent ones normal, scaled to a spectral norm of 0.5,
    and biases 0 but bz = 1. At states and inputs of zero each layer's function then contracts, by a factor of at most
    0.46 (`LSTM`: 0.63). Training may leave that; `result.success` marks the sequences that were solved.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import GRU
    >>> layer = GRU(3, 8, num_layers=2, batch_first=True)
    >>> output, h_n = layer(torch.ones(4, 7, 3))
    >>> output.shape, h_n.shape
    (torch.Size([4, 7, 8]), torch.Size([2, 4, 8]))
    >>> torch.equal(h_n[-1], output[:, -1])
    True
    """

    kind: type[ImplicitLayer] = ImplicitGRU
    parts: tuple[str, ...] = ("h",)


class LSTM(_Stacked):
    """Implicit LSTMs in the place of `torch.nn.LSTM`: the same arguments, inputs and outputs.

    Parameters
    ----------
    input_size, hidden_size : int
        As in `GRU`.
    num_layers, bias, batch_first, dropout, bidirectional, solve_options, device, dtype : optional
        As in `GRU`. There is no `proj_size`.

    Notes
    -----
    As `GRU`, with ``output, (h_n, c_n)`` and ``hx = (h_0, c_0)``. The states beyond both ends are ``hs_l0``, ``cs_l0``,
    ``he_l0`` and ``ce_l0`` of the first layer and so on, and ``layers[i]`` is an `ImplicitLSTM`.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import LSTM
    >>> output, (h_n, c_n) = LSTM(3, 8, bidirectional=True)(torch.ones(7, 4, 3))
    >>> output.shape, c_n.shape
    (torch.Size([7, 4, 16]), torch.Size([2, 4, 8]))
    """

    kind: type[ImplicitLayer] = ImplicitLSTM
    parts: tuple[str, ...] = ("h", "c")
