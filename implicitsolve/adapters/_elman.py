"""The Elman network, read as a fixed point: a recurrent network whose states are all solved for at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from implicitsolve import Problem
from implicitsolve.adapters._common import (
    Array,
    array_namespace,
    check_inputs,
    check_names,
    check_size,
    zeros,
)
from implicitsolve.adapters._layer import build, own_parameters
from implicitsolve.adapters._parameters import draw, state_size
from implicitsolve.adapters._rnn import check_activation
from implicitsolve.adapters._rnn_cell import RNNCell


def elman_parameters(
    d: int, k: int, *, bias: bool = True, scale: float = 0.05, rng: np.random.Generator, dtype: Any = np.float64
) -> dict[str, npt.NDArray[Any]]:
    """Draw the parameters of an Elman network, uniformly from [-scale, scale].

    Parameters
    ----------
    d : int
        Inputs of one position.
    k : int
        States of one position.
    bias : bool, optional
        Whether there is a b. Default True.
    scale : float, optional
        Largest magnitude. The default 0.05 is that of [1]_.
    rng : numpy.random.Generator
        Source of the numbers.
    dtype : dtype, optional
        float32 or float64 (default). The numbers drawn are the same up to rounding.

    Returns
    -------
    dict of str to numpy.ndarray
        W of shape (k, k), V (k, d) and, with `bias`, b (k,).

    Raises
    ------
    TypeError
        If `d` or `k` is not an integer, `rng` not a generator, or `dtype` neither of the two.
    ValueError
        If `d`, `k` or `scale` is out of range.

    References
    ----------
    .. [1] Wang & Ragni, *Approximate Fixed-Points in Recurrent Neural Networks*, section 4.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import elman_parameters
    >>> elman_parameters(3, 2, rng=np.random.default_rng(0))["V"].shape
    (2, 3)
    """
    caller = "elman_parameters"
    d, k = check_size(caller, "d", d), check_size(caller, "k", k)
    return draw(caller, _shapes(d, k, bias), scale, rng, dtype)


def elman(
    params: Mapping[str, Array], inputs: Array, *, activation: str = "tanh", lengths: Any = None, h0: Array = None
) -> Problem:
    """Return an Elman network on a batch of sequences as a problem: residual(H) = H - F(H).

    The states h_1, ..., h_T of ``h_t = phi(W h_{t-1} + V x_{t-1} + b)`` are the unknowns, h_0 is a boundary state:
    ``H[..., t-1, :]`` is h_t, and ``inputs[..., t-1, :]`` the input that makes it out of h_{t-1}.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `elman_parameters`; b may be absent.
    inputs : Array of shape (B, T, d) or (T, d)
        As of `implicit_gru`.
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi. Default "tanh". The derivative of "relu" is taken as 0 at 0.
    lengths : array or list of B integers from 1 to T, optional
        As of `implicit_gru`.
    h0 : Array of shape (k,) or (B, k), optional
        State before the first of every, or of each, sequence. Default: zero.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs" and "h0"; an h0 that is not given
        counts as zeros of shape (k,). Arrays are copied.

        It is causal: ``substitute`` runs the network, and the initial guess "one-step" is the same. ``structure`` and
        ``blocks`` describe the block-bidiagonal J, by which all positions can be solved for in parallel. The adjoint
        system of `pull_back` is backpropagation through time.

    Raises
    ------
    TypeError
        If an argument is no array, or has another library or dtype than `inputs`.
    ValueError
        If a name, a shape, a length or `activation` is wrong.

    See Also
    --------
    approximate_fixed_point : the network cut off after a few steps, in parallel over all positions.

    Notes
    -----
    The solution always exists and is unique: J - I is nilpotent, and n iterations H <- F(H) make the first n states
    exact, whatever the start. With N = sum(lengths) + B + 1 rows, a residual or a product with J or its adjoint takes
    2 N k^2 operations in one GEMM. A linearization holds N k numbers.

    The papers' block form has h_0 as its first unknown, with an identity row; that system is singular there, so h_0 is
    a boundary state here.

    References
    ----------
    Wang & Ragni, *Approximate Fixed-Points in Recurrent Neural Networks*, equations 1 and 8 to 17.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.elman_parameters(2, 4, rng=rng)
    >>> network = ims.adapters.elman(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> H = network.substitute()
    >>> H.shape, float(abs(network.residual(H)).max()) < 1e-15
    ((3, 5, 4), True)
    """
    caller = "elman"
    check_inputs(caller, inputs)
    check_activation(caller, activation)
    has_bias = isinstance(params, Mapping) and "b" in params
    given = check_names(caller, params, ("W", "V", "b") if has_bias else ("W", "V"))
    k = state_size(caller, given, "W", "(k, k)", inputs)
    parameters = own_parameters(caller, given, _shapes(inputs.shape[-1], k, has_bias), inputs)
    cell = ElmanCell.of(parameters, activation)
    return build(caller, cell, parameters, inputs, lengths, before={"h0": h0}, after={}).problem()


def _shapes(d: int, k: int, has_bias: bool) -> dict[str, tuple[int, ...]]:
    return {"W": (k, k), "V": (k, d)} | ({"b": (k,)} if has_bias else {})


@dataclass(frozen=True, eq=False)
class ElmanCell(RNNCell):
    """An RNN of the previous position alone, with other names for its parameters."""

    has_bias: bool = True

    @classmethod
    def of(cls, parameters: Mapping[str, Array], activation: str) -> ElmanCell:  # type: ignore[override]
        """Take W, V and perhaps b."""
        rnn = RNNCell.of(_as_rnn(parameters), activation)
        return cls(rnn.W, rnn.V, rnn.b, 1, 0, activation, name="elman", has_bias="b" in parameters)

    def parameter_push(
        self,
        inputs: Array,
        x: tuple[Array, ...],
        neighbours: Sequence[Array],
        change: Mapping[str, Array],
        dinputs: Array,
        dneighbours: Sequence[Array],
    ) -> Array:
        """df for a change of everything."""
        return super().parameter_push(inputs, x, neighbours, _as_rnn(change), dinputs, dneighbours)

    def to_weights(self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: Array) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows."""
        found = super().to_weights(inputs, neighbours, factors, sums)
        gradients = {"W": found["P"][0, ...], "V": found["V"]}
        return gradients | ({"b": found["b"]} if self.has_bias else {})


def _as_rnn(parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Elman's parameters under the names of the implicit RNN."""
    W, V = parameters["W"], parameters["V"]
    k = W.shape[0]
    b = parameters["b"] if "b" in parameters else zeros((k,), W)
    return {"P": array_namespace(W).expand_dims(W, axis=0), "N": zeros((0, k, k), W), "V": V, "b": b}
