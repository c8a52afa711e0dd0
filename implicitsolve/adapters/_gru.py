"""The implicit GRU, whose hidden state chooses, element by element, between its neighbours, and one on any stencil."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from implicitsolve import Problem
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, HostArray
from implicitsolve.adapters._common import DType, Lengths, check_array, draw, read_parameters
from implicitsolve.adapters._layer import Layer, build
from implicitsolve.adapters._stencil_cells import GRUCell, StencilGRUCell


def gru_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: DType = np.float64
) -> dict[str, HostArray]:
    """Draw the parameters of an implicit GRU, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    scale : float, optional
        Largest magnitude. The default 0.1 is that of [1]_.
    rng : numpy.random.Generator
        Source of the numbers.
    dtype : dtype, optional
        float32 or float64 (default). The numbers drawn are the same up to rounding.

    Returns
    -------
    dict of str to numpy.ndarray
        5 k (d + k + 1) numbers: W, Wz, Wr, Wp, Wn of shape (k, d), U, Uz, Ur, Up, Un (k, k), b, bz, br, bp, bn (k,).

    References
    ----------
    .. [1] Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, section 5.

    Examples
    --------
    >>> from implicitsolve.adapters import gru_parameters
    >>> gru_parameters(3, 2, rng=np.random.default_rng(0))["Wz"].shape
    (2, 3)
    """
    return draw("gru_parameters", GRUCell.shapes, d, k, scale, rng, dtype)


def implicit_gru(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    lengths: Lengths = None,
    hs: Array | None = None,
    he: Array | None = None,
) -> Problem:
    """Return the implicit GRU on a batch of sequences as a problem: residual(H) = H - F(H).

    Block i of F(H) is h, with p = h_{i-1} and q = h_{i+1}, h_0 = hs and h_{n+1} = he, where n is the length of each
    sequence::

        a = Wp x + Up p + bp      c = Wn x + Un q + bn      s = sigma(a) / (sigma(a) + sigma(c))
        hhat = s*p + (1-s)*q      z = sigma(Wz x + Uz hhat + bz)      r = sigma(Wr x + Ur hhat + br)
        h = (1-z)*hhat + z*tanh(W x + U (r*hhat) + b)

    The state H has shape (B, T, k); the problem has exact products, gradients, subsets and initial guesses.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `gru_parameters`.
    inputs : Array of shape (B, T, d) or (T, d)
        Float32 or float64; all other arrays must have the same library and dtype. Without B the state is (T, k) and
        the problem is one system, otherwise the sequences are B independent systems.
    lengths : array or list of B integers from 1 to T, optional
        Positions of each sequence; what follows them in `inputs` or H has no effect on the rest, whatever it is.
        There residual(H) = H, so that the solution is 0. Default: T for all. For one sequence, an integer.
    hs, he : Array of shape (k,) or (B, k), optional
        States before the first and after the last position: one for all sequences, or one for each. Default: zero.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs", "hs" and "he"; a boundary state
        that is not given counts as zeros of shape (k,). Arrays are copied, later changes of them have no effect.

        It declares its structure and gives the blocks of J, for small k, and its even and odd positions as functions of
        each other (`halves`).

        ``initial_guess`` offers "one-step", "zeros" and "random", see `adapters.initial_guess`. `root` without x0
        takes "one-step", which costs about three residuals and saves a Newton step and five products or more.

    Raises
    ------
    TypeError
        If an argument is not an array, or has another library or dtype than `inputs`.
    ValueError
        If a name or a shape is wrong, or a length is not from 1 to T.

    See Also
    --------
    gru_switch : how much each element of the state takes from the previous position.

    Notes
    -----
    A solution exists in the box ``|h| <= max(1, |hs|, |he|)``, into which F maps itself; it need not be unique.
    With N = sum(lengths) + B + 1, construction takes 10 N d k operations, and a residual or a product with J or its
    adjoint 10 N k^2 (five GEMMs) plus about 30 and 17 passes over N k numbers. A linearization holds 8 N k numbers.

    The switch cannot overflow for any a and c: it is (1 + exp(-c)) / (2 + exp(-a) + exp(-c)), with numerator and
    denominator scaled by exp(min(0, a, c)).

    References
    ----------
    Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017, equation 2.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_gru(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 4), True)
    >>> gradients = ims.pull_back(layer, result, np.ones_like(result.x)).gradients
    >>> gradients["Uz"].shape, gradients["inputs"].shape, gradients["hs"].shape
    ((4, 4), (3, 5, 2), (4,))
    """
    return _layer("implicit_gru", params, inputs, lengths, hs, he)[0].problem()


def gru_switch(
    params: Mapping[str, Array],
    inputs: Array,
    states: Array,
    *,
    lengths: Lengths = None,
    hs: Array | None = None,
    he: Array | None = None,
) -> Array:
    """Return the switch s of an implicit GRU at given states: the weight of the previous state, 1 - s of the next.

    Parameters
    ----------
    params, inputs : Mapping and Array
        As in `implicit_gru`.
    states : Array of shape (B, T, k) or (T, k)
        Usually the solution.
    lengths, hs, he : optional
        As in `implicit_gru`.

    Returns
    -------
    Array
        In (0, 1), of the shape of `states`; 1/2 at padded positions. The mean of 1 - 2 s over k is above zero where
        information flows from right to left.

    References
    ----------
    Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, figures 3 and 4.

    Examples
    --------
    >>> from implicitsolve.adapters import gru_parameters, gru_switch
    >>> params = gru_parameters(2, 4, rng=np.random.default_rng(0))
    >>> params["bp"] += 30.0  # sigma(a) = 1
    >>> params["bn"] -= 30.0  # sigma(c) = 0
    >>> bool((gru_switch(params, np.ones((5, 2)), np.zeros((5, 4))) > 0.999).all())
    True
    """
    layer, cell = _layer("gru_switch", params, inputs, lengths, hs, he)
    check_array("gru_switch", "states", states, layer.shape, inputs)
    with np.errstate(over="ignore", invalid="ignore"):
        s = cell.switch(layer.transition.x, layer.transition.rows_of(states))
    is_position = layer.map.unpack(layer.rows, array_namespace(s).ones_like(s))
    return layer.map.unpack(layer.rows, s) + 0.5 * (1.0 - is_position)


def _layer(
    caller: str, params: object, inputs: Array, lengths: Lengths, hs: Array | None, he: Array | None
) -> tuple[Layer, GRUCell]:
    """Check and copy every argument, and compute what is linear in the inputs."""
    parameters = read_parameters(caller, params, inputs, GRUCell.shapes, size="b")
    cell = GRUCell.of(parameters)
    return build(caller, cell, parameters, inputs, lengths, before={"hs": hs}, after={"he": he}), cell


def stencil_gru_parameters(
    d: int,
    k: int,
    *,
    scale: float = 0.1,
    rng: np.random.Generator,
    dtype: DType = np.float64,
    offsets: Sequence[int] = (-1, 1),
) -> dict[str, HostArray]:
    """Draw the parameters of a stencil GRU, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k, scale, rng, dtype : int, float, numpy.random.Generator and dtype
        As for `gru_parameters`.
    offsets : sequence of int, optional
        Of the neighbours, as in `stencil_gru`; only their number m matters here. Default (-1, 1).

    Returns
    -------
    dict of str to numpy.ndarray
        (m + 3) k (d + k + 1) numbers: Ws (m, k, d), Us (m, k, k), bs (m, k), and W, Wz, Wr of shape (k, d), U, Uz, Ur
        (k, k), b, bz, br (k,).

    Raises
    ------
    TypeError, ValueError
        As `gru_parameters`; or if `offsets` are not distinct integers other than 0.

    Examples
    --------
    >>> from implicitsolve.adapters import stencil_gru_parameters
    >>> stencil_gru_parameters(3, 2, offsets=(-2, -1, 1), rng=np.random.default_rng(0))["Ws"].shape
    (3, 2, 3)
    """
    caller = "stencil_gru_parameters"
    m = len(_check_offsets(caller, offsets))
    return draw(caller, partial(StencilGRUCell.shapes, m=m), d, k, scale, rng, dtype)


def stencil_gru(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    lengths: Lengths = None,
    offsets: Sequence[int],
    hs: Array | None = None,
    he: Array | None = None,
) -> Problem:
    """Return a GRU on any stencil, on a batch of sequences, as a problem: residual(H) = H - F(H).

    With h_j the state of the position at ``offsets[j]`` from t, block t of F(H) is h::

        a_j = Ws_j x + Us_j h_j + bs_j      s_j = sigma(a_j) / sum_l sigma(a_l)      hhat = sum_j s_j*h_j
        z = sigma(Wz x + Uz hhat + bz)      r = sigma(Wr x + Ur hhat + br)
        h = (1-z)*hhat + z*tanh(W x + U (r*hhat) + b)

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `stencil_gru_parameters`.
    inputs, lengths : Array, and integers, optional
        As in `implicit_gru`.
    offsets : sequence of int
        Where the neighbours are, in the order of Ws, Us and bs; distinct, none of them 0. With (-1, 1) the layer is
        the implicit GRU, with Ws = (Wp, Wn) and so on; with offsets of one sign it is causal or anticausal.
    hs : Array of shape (lower, k) or (B, lower, k), optional
        With lower = max(0, -min(offsets)): states before the first position, for all sequences or for each, nearest
        first: ``hs[j-1]`` is h_{1-j}. If lower is 1 its axis may be left out. Default: zero.
    he : Array of shape (upper, k) or (B, upper, k), optional
        With upper = max(0, max(offsets)): states after the last position n, ``he[j-1]`` is h_{n+j}.

    Returns
    -------
    Problem
        As in `implicit_gru`, but that boundary states count as zeros of shape (lower, k) and (upper, k), only a layer
        with offsets (-1, 1) has `halves`, and a causal or anticausal one offers `substitute`.

    Raises
    ------
    TypeError, ValueError
        As `implicit_gru`; or if `offsets` are not distinct integers other than 0.

    Notes
    -----
    A solution exists as for `implicit_gru`. The switch is safe at any size of its arguments; where all sigma(a_j)
    vanish it has the limit exp(a_j)/sum_l exp(a_l).

    With m offsets and N = sum(lengths) + (B + 1) max(lower, upper) rows, a residual or a product with J or its adjoint
    takes 2 N (m + 3) k^2 operations (m + 3 GEMMs). A linearization holds (2 m + 5) N k numbers.

    References
    ----------
    The stencil is footnote 1 of Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017,
    for their equation 2.

    Examples
    --------
    >>> rng, offsets = np.random.default_rng(0), (-2, -1, 1)
    >>> params = ims.adapters.stencil_gru_parameters(2, 4, offsets=offsets, rng=rng)
    >>> layer = ims.adapters.stencil_gru(params, rng.standard_normal((3, 5, 2)), offsets=offsets, lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 4), True)
    """
    caller = "stencil_gru"
    places = _check_offsets(caller, offsets)
    parameters = read_parameters(caller, params, inputs, partial(StencilGRUCell.shapes, m=len(places)), size="b")
    cell = StencilGRUCell.of(parameters, places)
    before, after = {"hs": hs}, {"he": he}
    return build(caller, cell, parameters, inputs, lengths, before=before, after=after, stacked=True).problem()


def _check_offsets(caller: str, offsets: Any) -> tuple[int, ...]:
    given: Any = "a set, without an order" if isinstance(offsets, set) else offsets
    try:
        found = tuple(operator.index(offset) for offset in given)
    except TypeError:
        raise TypeError(f"{caller}: `offsets` must be a sequence of integers, got {offsets!r}") from None
    if not found or 0 in found or len(set(found)) < len(found):
        raise ValueError(f"{caller}: `offsets` must be distinct and not 0, at least one, got {found}")
    return found
