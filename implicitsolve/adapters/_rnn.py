"""The implicit RNN: a recurrent network whose states listen to both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from implicitsolve import Problem
from implicitsolve.adapters._activation import ACTIVATIONS
from implicitsolve.adapters._common import Array, check_array, check_inputs, check_names, check_size
from implicitsolve.adapters._layer import build, own_parameters
from implicitsolve.adapters._parameters import draw, state_size
from implicitsolve.adapters._rnn_cell import NAMES, RNNCell, shapes


def rnn_parameters(
    d: int,
    k: int,
    *,
    lower: int = 1,
    upper: int = 1,
    scale: float = 0.1,
    rng: np.random.Generator,
    dtype: Any = np.float64,
) -> dict[str, npt.NDArray[Any]]:
    """Draw the parameters of an implicit RNN, uniformly from [-scale, scale].

    Parameters
    ----------
    d : int
        Inputs of one position.
    k : int
        States of one position.
    lower, upper : int, optional
        How many positions before and after it a position listens to, not both 0. Default 1.
    scale : float, optional
        Largest magnitude. The default 0.1 is that of [1]_.
    rng : numpy.random.Generator
        Source of the numbers.
    dtype : dtype, optional
        float32 or float64 (default). The numbers drawn are the same up to rounding.

    Returns
    -------
    dict of str to numpy.ndarray
        P of shape (lower, k, k), N (upper, k, k), V (k, d) and b (k,).

    Raises
    ------
    TypeError
        If a size is not an integer, `rng` not a generator, or `dtype` neither of the two.
    ValueError
        If a size or `scale` is out of range.

    References
    ----------
    .. [1] Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, section 5.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import rnn_parameters
    >>> rnn_parameters(3, 2, lower=2, rng=np.random.default_rng(0))["P"].shape
    (2, 2, 2)
    """
    caller = "rnn_parameters"
    d, k = check_size(caller, "d", d), check_size(caller, "k", k)
    lower, upper = (0 if n == 0 else check_size(caller, name, n) for name, n in (("lower", lower), ("upper", upper)))
    _check_stencil(caller, lower, upper)
    return draw(caller, shapes(d, k, lower, upper), scale, rng, dtype)


def implicit_rnn(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    activation: str = "tanh",
    lengths: Any = None,
    hs: Array = None,
    he: Array = None,
) -> Problem:
    """Return an implicit RNN on a batch of sequences as a problem: residual(H) = H - F(H).

    Block t of F(H) is::

        phi(sum_{j=1..lower} P_j h_{t-j} + sum_{j=1..upper} N_j h_{t+j} + V x_t + b)

    with ``P_j = P[j-1]``, ``N_j = N[j-1]`` and the boundary states beyond the ends of each sequence.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `rnn_parameters`; the shapes of P and N say how wide the stencil is. With
        lower or upper 0 the layer is causal or anticausal.
    inputs : Array of shape (B, T, d) or (T, d)
        Float32 or float64; all other arrays must have the same library and dtype. Without B the state is (T, k) and
        the problem is one system, otherwise the sequences are B independent systems.
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi. Default "tanh". With the last two there may be no solution. The derivative of "relu" is taken as 0 at 0.
    lengths : array or list of B integers from 1 to T, optional
        Positions of each sequence; what stands behind them in `inputs` or H has no effect on the rest, whatever it is.
        There residual(H) = H, so that the solution is 0. Default: T for all. For one sequence, an integer.
    hs : Array of shape (lower, k) or (B, lower, k), optional
        States before the first position of every, or of each, sequence, nearest first: ``hs[j-1]`` is h_{1-j}. If
        lower is 1 its axis may be left out. Default: zero.
    he : Array of shape (upper, k) or (B, upper, k), optional
        States behind the last position n in the same way: ``he[j-1]`` is h_{n+j}.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs", "hs" and "he"; boundary states
        that are not given count as zeros of shape (lower, k) and (upper, k). Arrays are copied.

        Declares its structure and offers its blocks; a causal or anticausal layer offers `substitute`, one with
        lower = upper = 1 its `halves`. ``initial_guess`` is as of `implicit_gru`, with the ordinary RNN whose only
        recurrent weight is the sum of all P_j and N_j.

    Raises
    ------
    TypeError
        If an argument is no array, or has another library or dtype than `inputs`.
    ValueError
        If a name, a shape, a length or `activation` is wrong, or the stencil is empty.

    Notes
    -----
    With a bounded phi a solution exists; it is unique, and fixed-point iteration finds it, if the largest sum of
    magnitudes in the rows of (P_1, ..., N_1, ...), times the largest slope of phi (1, or 1/4 for the logistic
    function), is below 1. [1]_ found poor convergence of this form.

    With m = lower + upper and N = sum(lengths + max(lower, upper)) rows, a residual and a product with J take
    2 N m k^2 operations in one GEMM, a product with its adjoint as many in m. A linearization holds N k numbers.

    References
    ----------
    .. [1] Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, section 4.4. The wider stencil is
       footnote 1 of Kazi & Thompson under the same title, ACL 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.rnn_parameters(2, 4, lower=2, upper=1, rng=rng)
    >>> layer = ims.adapters.implicit_rnn(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 4), True)
    >>> gradients = ims.pull_back(layer, result, np.ones_like(result.x)).gradients
    >>> gradients["P"].shape, gradients["hs"].shape
    ((2, 4, 4), (2, 4))
    """
    caller = "implicit_rnn"
    check_inputs(caller, inputs)
    check_activation(caller, activation)
    given = check_names(caller, params, NAMES)
    k = state_size(caller, given, "b", "(k,)", inputs)
    lower, upper = (_depth(caller, given, name, k, inputs) for name in ("P", "N"))
    _check_stencil(caller, lower, upper)
    parameters = own_parameters(caller, given, shapes(inputs.shape[-1], k, lower, upper), inputs)
    cell = RNNCell.of(parameters, activation)
    before, after = {"hs": hs}, {"he": he}
    return build(caller, cell, parameters, inputs, lengths, before=before, after=after, stacked=True).problem()


def check_activation(caller: str, activation: object) -> None:
    """Check that `activation` is the name of one."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ValueError(f"{caller}: `activation` must be one of {known}, got {activation!r}")


def _check_stencil(caller: str, lower: int, upper: int) -> None:
    if lower + upper == 0:
        raise ValueError(f"{caller}: `lower` or `upper` must be at least 1, got 0 for both")


def _depth(caller: str, params: Mapping[str, Array], name: str, k: int, like: Array) -> int:
    """Number of neighbours on one side."""
    value = check_array(caller, name, params[name], None, like)
    if value.ndim != 3:
        raise ValueError(f"{caller}: `{name}` must have shape (n, {k}, {k}), got {tuple(value.shape)}")
    return value.shape[0]
