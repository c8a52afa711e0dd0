"""The implicit RNN, whose states depend on neighbours at both sides, and the Elman network, read as a fixed point."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from implicitsolve import Problem
from implicitsolve._typing import Array, HostArray
from implicitsolve.adapters._common import DType, Lengths, check_array, check_inputs, check_names, draw, read_parameters
from implicitsolve.adapters._layer import build
from implicitsolve.adapters._stencil_cells import WEIGHT_NAMES, ElmanCell, RNNCell, shapes
from implicitsolve.adapters.kernels import check_activation
from implicitsolve.stopping import check_flag, check_limit


def rnn_parameters(
    d: int,
    k: int,
    *,
    scale: float = 0.1,
    rng: np.random.Generator,
    dtype: DType = np.float64,
    lower: int = 1,
    upper: int = 1,
) -> dict[str, HostArray]:
    """Draw the parameters of an implicit RNN, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k, scale, rng, dtype : int, float, numpy.random.Generator and dtype
        As for `gru_parameters`.
    lower, upper : int, optional
        Neighbours before and after each position, not both 0. Default 1.

    Returns
    -------
    dict of str to numpy.ndarray
        P of shape (lower, k, k), N (upper, k, k), V (k, d) and b (k,).

    Raises
    ------
    TypeError, ValueError
        As `gru_parameters`; or if `lower` or `upper` is not an integer, or out of range.

    Examples
    --------
    >>> from implicitsolve.adapters import rnn_parameters
    >>> rnn_parameters(3, 2, lower=2, rng=np.random.default_rng(0))["P"].shape
    (2, 2, 2)
    """
    caller = "rnn_parameters"
    check_limit(caller, "lower", lower)
    check_limit(caller, "upper", upper)
    _check_stencil(caller, lower, upper)
    return draw(caller, lambda d, k: shapes(d, k, lower, upper), d, k, scale, rng, dtype)


def implicit_rnn(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    lengths: Lengths = None,
    activation: str = "tanh",
    hs: Array | None = None,
    he: Array | None = None,
) -> Problem:
    """Return an implicit RNN on a batch of sequences as a problem: residual(H) = H - F(H).

    Block t of F(H) is::

        phi(sum_{j=1..lower} P_j h_{t-j} + sum_{j=1..upper} N_j h_{t+j} + V x_t + b)

    with ``P_j = P[j-1]``, ``N_j = N[j-1]`` and the boundary states beyond the ends of each sequence.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `rnn_parameters`; the shapes of P and N determine the width of the stencil. With
        lower or upper 0 the layer is causal or anticausal.
    inputs, lengths : Array, and integers, optional
        As in `implicit_gru`.
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi. Default "tanh". With the last two there may be no solution. The derivative of "relu" is taken as 0 at 0.
    hs, he : Array of shape (lower, k) or (B, lower, k), and (upper, k) or (B, upper, k), optional
        States before the first and after the last position, as in `stencil_gru`.

    Returns
    -------
    Problem
        As in `stencil_gru`; "one-step" is the ordinary RNN whose only recurrent weight is the sum of all P_j and N_j.

    Raises
    ------
    TypeError, ValueError
        As `implicit_gru`; or if `activation` is unknown, or the stencil empty.

    Notes
    -----
    With a bounded phi a solution exists; it is unique, and fixed-point iteration finds it, if the largest sum of
    magnitudes in the rows of (P_1, ..., N_1, ...), times the largest slope of phi (1, or 1/4 for the logistic
    function), is below 1. [1]_ found poor convergence of this form.

    With m = lower + upper and N = sum(lengths + max(lower, upper)) rows, a residual and a product with J take
    2 N m k^2 operations in one GEMM, a product with its adjoint as many in m GEMMs. A linearization holds N k numbers.

    References
    ----------
    .. [1] Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, section 4.4. The wider stencil is
       footnote 1 of Kazi & Thompson under the same title, ACL 2017.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.rnn_parameters(2, 4, lower=2, upper=1, rng=rng)
    >>> layer = ims.adapters.implicit_rnn(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 4), True)
    """
    caller = "implicit_rnn"
    check_inputs(caller, inputs)
    check_activation(caller, activation)
    lower, upper = (_depth(caller, check_names(caller, params, WEIGHT_NAMES), name, inputs) for name in ("P", "N"))
    _check_stencil(caller, lower, upper)
    parameters = read_parameters(caller, params, inputs, lambda d, k: shapes(d, k, lower, upper), size="b")
    cell = RNNCell.of(parameters, activation)
    before, after = {"hs": hs}, {"he": he}
    return build(caller, cell, parameters, inputs, lengths, before=before, after=after, stacked=True).problem()


def _check_stencil(caller: str, lower: int, upper: int) -> None:
    if lower + upper == 0:
        raise ValueError(f"{caller}: `lower` or `upper` must be at least 1, got 0 for both")


def _depth(caller: str, params: Mapping[str, Array], name: str, like: Array) -> int:
    value = check_array(caller, name, params[name], None, like)
    if value.ndim != 3:
        raise ValueError(f"{caller}: `{name}` must have shape (n, k, k), got {tuple(value.shape)}")
    return value.shape[0]


def elman_parameters(
    d: int, k: int, *, scale: float = 0.05, rng: np.random.Generator, dtype: DType = np.float64, bias: bool = True
) -> dict[str, HostArray]:
    """Draw the parameters of an Elman network, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k, scale, rng, dtype : int, float, numpy.random.Generator and dtype
        As for `gru_parameters`, but that the default scale 0.05 is that of [1]_.
    bias : bool, optional
        Whether there is a b. Default True.

    Returns
    -------
    dict of str to numpy.ndarray
        W of shape (k, k), V (k, d) and, with `bias`, b (k,).

    References
    ----------
    .. [1] Wang & Ragni, *Approximate Fixed-Points in Recurrent Neural Networks*, section 4.

    Examples
    --------
    >>> from implicitsolve.adapters import elman_parameters
    >>> elman_parameters(3, 2, rng=np.random.default_rng(0))["V"].shape
    (2, 3)
    """
    check_flag("elman_parameters", "bias", bias)
    return draw("elman_parameters", lambda d, k: _elman_shapes(d, k, bias), d, k, scale, rng, dtype)


def elman(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    lengths: Lengths = None,
    activation: str = "tanh",
    h0: Array | None = None,
) -> Problem:
    """Return an Elman network on a batch of sequences as a problem: residual(H) = H - F(H).

    The states h_1, ..., h_T of ``h_t = phi(W h_{t-1} + V x_{t-1} + b)`` are the unknowns, h_0 is a boundary state:
    ``H[..., t-1, :]`` is h_t, and ``inputs[..., t-1, :]`` the input that leads from h_{t-1} to it.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `elman_parameters`; b may be absent.
    inputs, lengths : Array, and integers, optional
        As in `implicit_gru`.
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi. Default "tanh". The derivative of "relu" is taken as 0 at 0.
    h0 : Array of shape (k,) or (B, k), optional
        State before the first position, as `hs` of `implicit_gru`.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) as in `implicit_gru`, "h0" among them. It is causal: ``substitute`` runs
        the network, and the initial guess "one-step" is the same. ``structure`` and ``blocks`` describe the
        block-bidiagonal J, by which all positions can be solved for in parallel. The adjoint system of `pull_back` is
        backpropagation through time.

    Raises
    ------
    TypeError, ValueError
        As `implicit_gru`; or if `activation` is unknown.

    See Also
    --------
    approximate_fixed_point : the network cut off after a few steps, in parallel over all positions.

    Notes
    -----
    The solution always exists and is unique: J - I is nilpotent, and n iterations H <- F(H) make the first n states
    exact, whatever the start. With N = sum(lengths) + B + 1 rows, a residual or a product with J or its adjoint takes
    2 N k^2 operations in one GEMM. A linearization holds N k numbers.

    In the papers' block form h_0 is the first unknown, with an identity row, which makes the system singular; here h_0
    is a boundary state.

    References
    ----------
    Wang & Ragni, *Approximate Fixed-Points in Recurrent Neural Networks*, equations 1 and 8 to 17.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.elman_parameters(2, 4, rng=rng)
    >>> network = ims.adapters.elman(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> H = network.substitute()
    >>> H.shape, float(abs(network.residual(H)).max()) < 1e-15
    ((3, 5, 4), True)
    """
    caller = "elman"
    check_activation(caller, activation)
    has_bias = isinstance(params, Mapping) and "b" in params
    parameters = read_parameters(caller, params, inputs, lambda d, k: _elman_shapes(d, k, has_bias), size="W")
    cell = ElmanCell.of(parameters, activation)
    return build(caller, cell, parameters, inputs, lengths, before={"h0": h0}, after={}).problem()


def _elman_shapes(d: int, k: int, has_bias: bool) -> dict[str, tuple[int, ...]]:
    return {"W": (k, k), "V": (k, d)} | ({"b": (k,)} if has_bias else {})
