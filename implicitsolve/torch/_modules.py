"""Modules of the adapters: parameters under the adapter's names, and a forward that solves for the states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

import implicitsolve as ims
from implicitsolve.stopping import check_choice, check_limit
from implicitsolve.torch._layer import EQUATIONS, ImplicitLayer, LayerOptions
from implicitsolve.torch._options import Start


class _Recurrent(ImplicitLayer):
    """A layer of sequences, whose parameters have the shapes of the adapter's, as its ``..._parameters`` draws them."""

    def __init__(
        self,
        d: int,
        k: int,
        *,
        sizes: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        draw = getattr(ims.adapters, f"{self.adapter.removeprefix('implicit_')}_parameters")
        arrays = draw(d, k, **(sizes or {}), scale=0.0, rng=np.random.default_rng(0))
        of = EQUATIONS.recurrence(self.adapter, arrays)
        self.boundaries: tuple[str, ...] = (*of.before, *of.after)  # states beyond the ends, keywords of `forward`
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        super().__init__(shapes, settings or {}, d, len(of.before) * k, **options)

    def forward(
        self,
        inputs: Tensor,
        lengths: Any = None,
        *,
        x0: Tensor | Start | None = None,
        return_result: bool = False,
        **boundaries: Tensor | None,
    ) -> Any:
        """Return the states, with ``return_result=True`` also the `NonlinearResult`."""
        unknown = [name for name in boundaries if name not in self.boundaries]
        if unknown:
            raise TypeError(f"{self.caller}: unexpected keyword argument {unknown[0]!r}, has {self.boundaries}")
        return self.solve(inputs, boundaries, x0, return_result, lengths=lengths)

    def equations(self, states: Tensor, tensors: Mapping[str, Tensor], *, lengths: Any = None, **_: Any) -> Tensor:
        of = EQUATIONS.recurrence(self.adapter, tensors, self.activation, self.settings.get("offsets", ()))
        ends = None if lengths is None else torch.as_tensor(lengths, device=states.device).reshape(states.shape[:-2])
        return of.residual(states, tensors, tensors, ends)


class ImplicitGRU(_Recurrent):
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
        As in torch's modules. In float16 and bfloat16 parameters are stored, and systems are solved in float32.

    Notes
    -----
    ``layer(inputs, lengths=None, *, hs=None, he=None, x0=None, return_result=False)`` returns the states, (B, T, k) for
    inputs (B, T, d) and (T, k) for (T, d). Its arguments are those of the adapter, as tensors of the parameters' dtype
    and device, or in float16 or bfloat16, which are converted; the states have the dtype of the inputs. Gradients flow
    to the parameters, the inputs and the boundary states. `lengths` are integers in a list, an array or a tensor;
    states after a sequence's end are zero.

    `x0` is where the solve starts, such as the detached states of the epoch before, or `WarmStarts` of these samples,
    which are used for the adjoint too; it gets no gradient. With
    ``return_result=True`` the `NonlinearResult` is returned too: its `success` marks the sequences that were solved.

    The parameters are arguments of one autograd function, whose backward pass is one adjoint solve with derivatives
    written by hand. Derivatives of higher order, and solves below `torch.func.vmap`, are by the same equations in
    operations of torch. A call keeps nothing in the module.

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


class ImplicitRNN(_Recurrent):
    """The implicit RNN of `implicitsolve.adapters.implicit_rnn` as a module.

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    lower, upper : int, optional
        Number of neighbours before and after each position. Default 1.
    activation : {"tanh", "logistic", "relu"}, optional
        Default "tanh".
    **options
        As in `ImplicitGRU`.

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


class StencilGRU(_Recurrent):
    """The GRU on any stencil of `implicitsolve.adapters.stencil_gru` as a module.

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    offsets : sequence of int, optional
        Of the neighbours of a position, not 0. Default (-1, 1).
    **options
        As in `ImplicitGRU`.

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

    def __init__(self, d: int, k: int, *, offsets: Sequence[int] = (-1, 1), **options: Unpack[LayerOptions]) -> None:
        super().__init__(d, k, sizes={"offsets": offsets}, settings={"offsets": offsets}, **options)


class ImplicitLSTM(_Recurrent):
    """The implicit LSTM of `implicitsolve.adapters.implicit_lstm` as a module.

    Parameters
    ----------
    d, k, **options
        As in `ImplicitGRU`; k hidden states of one position, and as many cell states.

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


class DiagonalGRU(_Recurrent):
    """The GRU with diagonal recurrent weights of `implicitsolve.adapters.diagonal_gru` as a module.

    Parameters
    ----------
    d, k, **options
        As in `ImplicitGRU`.

    Notes
    -----
    Called as `ImplicitGRU`, with the boundary state h0 of shape (k,) or (B, k). By default the network is run position
    by position; `SolveOptions` with the method "causal-newton" solve for all positions at once, which suits a GPU.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import DiagonalGRU, SolveOptions
    >>> layer = DiagonalGRU(2, 4, solve_options=SolveOptions(method="causal-newton"))
    >>> layer(torch.ones(3, 50, 2)).shape
    torch.Size([3, 50, 4])
    """

    adapter = "diagonal_gru"


class DiagonalLSTM(_Recurrent):
    """The LSTM with diagonal recurrent weights of `implicitsolve.adapters.diagonal_lstm` as a module.

    Parameters
    ----------
    d, k, **options
        As in `ImplicitLSTM`.

    Notes
    -----
    As in `DiagonalGRU`, with the boundary states h0 and c0, and states as in `ImplicitLSTM`.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import DiagonalLSTM
    >>> DiagonalLSTM(2, 4)(torch.ones(3, 50, 2)).shape
    torch.Size([3, 50, 8])
    """

    adapter = "diagonal_lstm"


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
    rho : int, optional
        Return the states after so many iterations from zeros, or from `x0`, in the place of the solution: the network
        with a memory of rho positions, see `implicitsolve.adapters.approximate_fixed_point`. Default None: solve.
    propagation : {"full", "skipped"}, optional
        Gradients with `rho`: of all iterations (default), or of the last one alone, with the state before it constant.
    **options
        solve_options, scale (here 0.05 by default), generator, device and dtype of `ImplicitGRU`.

    Notes
    -----
    Called as `ImplicitGRU`, with the boundary state h0 of shape (k,) or (B, k). With `rho` there is no solve, and so no
    result; autograd keeps all rho states for "full" gradients, one for "skipped" ones.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import Elman
    >>> Elman(2, 4)(torch.ones(3, 5, 2)).shape
    torch.Size([3, 5, 4])
    """

    adapter = "elman"
    initial_scale: float = 0.05

    def __init__(
        self,
        d: int,
        k: int,
        *,
        activation: str = "tanh",
        bias: bool = True,
        rho: int | None = None,
        propagation: str = "full",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(d, k, sizes={"bias": bias}, settings={"activation": activation}, **options)
        if rho is not None:
            check_limit("Elman", "rho", rho, least=1)
        check_choice("Elman", "propagation", propagation, ("full", "skipped"))
        self.rho: int | None = rho
        self.propagation: str = propagation

    def solve(
        self, inputs: Tensor, boundaries: Mapping[str, Tensor | None], x0: Any, return_result: bool, **others: Any
    ) -> Any:
        if self.rho is None:
            return super().solve(inputs, boundaries, x0, return_result, **others)
        if return_result or isinstance(x0, Start):
            raise ValueError("Elman: with `rho` nothing is solved: `return_result` and `WarmStarts` are not available")
        x = inputs.new_zeros(*inputs.shape[:-1], self.state_size) if x0 is None else x0.detach()
        for i in reversed(range(self.rho)):
            with torch.set_grad_enabled(torch.is_grad_enabled() and (i == 0 or self.propagation == "full")):
                x = x - self.residual(x, inputs, **others, **boundaries)
        return x
