"""Modules of the recurrent adapters: parameters under the adapter's names, and a forward that solves for the states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from torch import Tensor

import implicitsolve as ims
from implicitsolve.torch._layer import ImplicitLayer, LayerOptions, host_lengths
from implicitsolve.torch._warm_starts import Start


class _Recurrent(ImplicitLayer):
    """A layer of sequences, whose parameters have the shapes of those that the function `drawn_by` returns."""

    drawn_by: str  # of `implicitsolve.adapters`

    def __init__(
        self,
        d: int,
        k: int,
        *,
        sizes: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        draw = getattr(ims.adapters, self.drawn_by)
        arrays = draw(d, k, **(sizes or {}), scale=0.0, rng=np.random.default_rng(0))
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        super().__init__(shapes, settings or {}, d, **options)


class _TwoSided(_Recurrent):
    """One whose neighbours beyond both ends are hs and he."""

    def forward(
        self,
        inputs: Tensor,
        lengths: Any = None,
        *,
        hs: Tensor | None = None,
        he: Tensor | None = None,
        x0: Tensor | Start | None = None,
        return_result: bool = False,
    ) -> Any:
        """Return the states (B, T, k) or (T, k), with ``return_result=True`` also the `NonlinearResult`."""
        boundaries = {"hs": hs, "he": he}
        return self.solve(inputs, boundaries, x0, return_result, lengths=host_lengths(lengths))


class ImplicitGRU(_TwoSided):
    """The implicit GRU of `implicitsolve.adapters.implicit_gru` as a module.

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    solve_options : SolveOptions, optional
        Methods, tolerances, the start, and what follows a failure. Kept as an attribute, which may be replaced.
    scale, generator : float and torch.Generator, optional
        Parameters are drawn uniformly from [-scale, scale]. Default 0.1, as in the paper, by torch's own generator.
    device, dtype : optional
        As of torch's modules; float32 or float64.

    Notes
    -----
    ``layer(inputs, lengths=None, *, hs=None, he=None, x0=None, return_result=False)`` returns the states, (B, T, k) for
    inputs (B, T, d) and (T, k) for (T, d). Its arguments are those of the adapter, as tensors of the parameters' dtype
    and device; gradients flow to the parameters, the inputs and the boundary states. `lengths` are integers in a list,
    an array or a tensor; states behind a sequence's end are zero.

    `x0` is where the solve starts, such as the detached states of the epoch before, or `WarmStarts` of these samples,
    which serve the adjoint too; it gets no gradient. With
    ``return_result=True`` the `NonlinearResult` is returned too: its `success` says which sequences were solved.

    The parameters are arguments of one autograd function, whose backward pass is one adjoint solve with derivatives
    written by hand. First derivatives only, in reverse and forward mode. A call keeps nothing in the module.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import ImplicitGRU
    >>> layer = ImplicitGRU(2, 4, generator=torch.Generator().manual_seed(0))
    >>> states = layer(torch.ones(3, 5, 2), lengths=[5, 1, 3])
    >>> states.shape
    torch.Size([3, 5, 4])
    >>> states.sum().backward()
    >>> layer.Uz.grad.shape
    torch.Size([4, 4])
    """

    adapter = "implicit_gru"
    drawn_by = "gru_parameters"


class ImplicitRNN(_TwoSided):
    """The implicit RNN of `implicitsolve.adapters.implicit_rnn` as a module.

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    lower, upper : int, optional
        How many positions before and after it a position listens to. Default 1.
    activation : {"tanh", "logistic", "relu"}, optional
        Default "tanh".
    **options
        solve_options, scale, generator, device and dtype of `ImplicitGRU`.

    Notes
    -----
    Called as `ImplicitGRU`, with hs of shape (lower, k) or (B, lower, k) and he (upper, k) or (B, upper, k).

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import ImplicitRNN
    >>> ImplicitRNN(2, 4, lower=2)(torch.ones(3, 5, 2)).shape
    torch.Size([3, 5, 4])
    """

    adapter = "implicit_rnn"
    drawn_by = "rnn_parameters"

    def __init__(
        self,
        d: int,
        k: int,
        *,
        lower: int = 1,
        upper: int = 1,
        activation: str = "tanh",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(d, k, sizes={"lower": lower, "upper": upper}, settings={"activation": activation}, **options)


class StencilGRU(_TwoSided):
    """The GRU on any stencil of `implicitsolve.adapters.stencil_gru` as a module.

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    offsets : sequence of int, optional
        Of the neighbours that a position listens to, not 0. Default (-1, 1).
    **options
        solve_options, scale, generator, device and dtype of `ImplicitGRU`.

    Notes
    -----
    Called as `ImplicitGRU`, with hs of shape (lower, k) or (B, lower, k) and he (upper, k) or (B, upper, k), where
    lower and upper are the largest offsets to either side.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import StencilGRU
    >>> StencilGRU(2, 4, offsets=(-2, -1, 1))(torch.ones(3, 5, 2)).shape
    torch.Size([3, 5, 4])
    """

    adapter = "stencil_gru"
    drawn_by = "stencil_gru_parameters"

    def __init__(self, d: int, k: int, *, offsets: Sequence[int] = (-1, 1), **options: Unpack[LayerOptions]) -> None:
        super().__init__(d, k, sizes={"offsets": offsets}, settings={"offsets": offsets}, **options)


class ImplicitLSTM(_Recurrent):
    """The implicit LSTM of `implicitsolve.adapters.implicit_lstm` as a module.

    Parameters
    ----------
    d, k : int
        Inputs of one position; hidden states of one position, and as many cell states.
    **options
        solve_options, scale, generator, device and dtype of `ImplicitGRU`.

    Notes
    -----
    Called as `ImplicitGRU`, with the boundary states hs, cs, he and ce. The states (B, T, 2 k) are the hidden ones,
    ``states[..., :k]``, and the cell states, ``states[..., k:]``.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import ImplicitLSTM
    >>> ImplicitLSTM(2, 4)(torch.ones(3, 5, 2)).shape
    torch.Size([3, 5, 8])
    """

    adapter = "implicit_lstm"
    drawn_by = "lstm_parameters"

    def forward(
        self,
        inputs: Tensor,
        lengths: Any = None,
        *,
        hs: Tensor | None = None,
        cs: Tensor | None = None,
        he: Tensor | None = None,
        ce: Tensor | None = None,
        x0: Tensor | Start | None = None,
        return_result: bool = False,
    ) -> Any:
        """Return the states (B, T, 2 k) or (T, 2 k), with ``return_result=True`` also the `NonlinearResult`."""
        boundaries = {"hs": hs, "cs": cs, "he": he, "ce": ce}
        return self.solve(inputs, boundaries, x0, return_result, lengths=host_lengths(lengths))


class Elman(_Recurrent):
    """The Elman network of `implicitsolve.adapters.elman`, solved for all positions at once, as a module.

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    activation : {"tanh", "logistic", "relu"}, optional
        Default "tanh".
    bias : bool, optional
        Whether there is a parameter b. Default True.
    **options
        solve_options, scale (here 0.05 by default), generator, device and dtype of `ImplicitGRU`.

    Notes
    -----
    Called as `ImplicitGRU`, with the boundary state h0 of shape (k,) or (B, k).

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import Elman
    >>> Elman(2, 4)(torch.ones(3, 5, 2)).shape
    torch.Size([3, 5, 4])
    """

    adapter = "elman"
    drawn_by = "elman_parameters"
    initial_scale: float = 0.05

    def __init__(
        self, d: int, k: int, *, activation: str = "tanh", bias: bool = True, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(d, k, sizes={"bias": bias}, settings={"activation": activation}, **options)

    def forward(
        self,
        inputs: Tensor,
        lengths: Any = None,
        *,
        h0: Tensor | None = None,
        x0: Tensor | Start | None = None,
        return_result: bool = False,
    ) -> Any:
        """Return the states (B, T, k) or (T, k), with ``return_result=True`` also the `NonlinearResult`."""
        return self.solve(inputs, {"h0": h0}, x0, return_result, lengths=host_lengths(lengths))
