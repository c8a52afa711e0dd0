"""The implicit GRU on any stencil: a state chooses, element by element, among any neighbours."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from implicitsolve import Problem
from implicitsolve.adapters._common import Array, check_inputs, check_names, check_size
from implicitsolve.adapters._layer import build, own_parameters
from implicitsolve.adapters._parameters import draw, state_size
from implicitsolve.adapters._stencil_gru_cell import NAMES, StencilGRUCell, shapes


def stencil_gru_parameters(
    d: int,
    k: int,
    *,
    offsets: Sequence[int] = (-1, 1),
    scale: float = 0.1,
    rng: np.random.Generator,
    dtype: Any = np.float64,
) -> dict[str, npt.NDArray[Any]]:
    """Draw the parameters of a stencil GRU, uniformly from [-scale, scale].

    Parameters
    ----------
    d : int
        Inputs of one position.
    k : int
        States of one position.
    offsets : sequence of int, optional
        Of the neighbours, as in `stencil_gru`; only their number m matters here. Default (-1, 1).
    scale : float, optional
        Largest magnitude. Default 0.1, as in `gru_parameters`.
    rng : numpy.random.Generator
        Source of the numbers.
    dtype : dtype, optional
        float32 or float64 (default). The numbers drawn are the same up to rounding.

    Returns
    -------
    dict of str to numpy.ndarray
        (m + 3) k (d + k + 1) numbers: Ws (m, k, d), Us (m, k, k), bs (m, k), and W, Wz, Wr of shape (k, d), U, Uz, Ur
        (k, k), b, bz, br (k,).

    Raises
    ------
    TypeError
        If a size is not an integer, `rng` not a generator, or `dtype` neither of the two.
    ValueError
        If a size, an offset or `scale` is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import stencil_gru_parameters
    >>> stencil_gru_parameters(3, 2, offsets=(-2, -1, 1), rng=np.random.default_rng(0))["Ws"].shape
    (3, 2, 3)
    """
    caller = "stencil_gru_parameters"
    d, k = check_size(caller, "d", d), check_size(caller, "k", k)
    return draw(caller, shapes(d, k, len(_check_offsets(caller, offsets))), scale, rng, dtype)


def stencil_gru(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    offsets: Sequence[int],
    lengths: Any = None,
    hs: Array = None,
    he: Array = None,
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
    inputs : Array of shape (B, T, d) or (T, d)
        As of `implicit_gru`.
    offsets : sequence of int
        Where the neighbours stand, in the order of Ws, Us and bs; distinct, none of them 0. With (-1, 1) the layer is
        the implicit GRU, with Ws = (Wp, Wn) and so on; with offsets of one sign it is causal or anticausal.
    lengths : array or list of B integers from 1 to T, optional
        As of `implicit_gru`.
    hs : Array of shape (lower, k) or (B, lower, k), optional
        With lower = max(0, -min(offsets)): states before the first position of every, or of each, sequence, nearest
        first: ``hs[j-1]`` is h_{1-j}. If lower is 1 its axis may be left out. Default: zero.
    he : Array of shape (upper, k) or (B, upper, k), optional
        With upper = max(0, max(offsets)): states behind the last position n, ``he[j-1]`` is h_{n+j}.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs", "hs" and "he"; boundary states
        that are not given count as zeros of shape (lower, k) and (upper, k). Arrays are copied.

        Declares its structure and offers its blocks; a causal or anticausal layer offers `substitute`, one with
        offsets (-1, 1) its `halves`. ``initial_guess`` is as of `implicit_gru`.

    Raises
    ------
    TypeError
        If an argument is no array, or has another library or dtype than `inputs`, or an offset is no integer.
    ValueError
        If a name, a shape, a length or an offset is wrong.

    Notes
    -----
    A solution exists in the box ``|h| <= max(1, |hs|, |he|)``, into which F maps itself; it need not be unique. The
    switch is safe at any size of its arguments; where all sigma(a_j) vanish it has the limit exp(a_j)/sum_l exp(a_l).

    With m offsets and N = sum(lengths) + (B + 1) max(lower, upper) rows, a residual or a product with J or its adjoint
    takes 2 N (m + 3) k^2 operations (m + 3 GEMMs). A linearization holds (2 m + 5) N k numbers.

    References
    ----------
    The stencil is footnote 1 of Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017,
    for their equation 2.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng, offsets = np.random.default_rng(0), (-2, -1, 1)
    >>> params = ims.adapters.stencil_gru_parameters(2, 4, offsets=offsets, rng=rng)
    >>> layer = ims.adapters.stencil_gru(params, rng.standard_normal((3, 5, 2)), offsets=offsets, lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 4), True)
    >>> ims.pull_back(layer, result, np.ones_like(result.x)).gradients["Us"].shape
    (3, 4, 4)
    """
    caller = "stencil_gru"
    check_inputs(caller, inputs)
    places = _check_offsets(caller, offsets)
    given = check_names(caller, params, NAMES)
    k = state_size(caller, given, "b", "(k,)", inputs)
    parameters = own_parameters(caller, given, shapes(inputs.shape[-1], k, len(places)), inputs)
    cell = StencilGRUCell.of(parameters, places)
    before, after = {"hs": hs}, {"he": he}
    return build(caller, cell, parameters, inputs, lengths, before=before, after=after, stacked=True).problem()


def _check_offsets(caller: str, offsets: Any) -> tuple[int, ...]:
    """Check that `offsets` are distinct integers other than 0."""
    try:
        found = tuple(operator.index(offset) for offset in offsets)
    except TypeError:
        raise TypeError(f"{caller}: `offsets` must be a sequence of integers, got {offsets!r}") from None
    if not found or 0 in found or len(set(found)) < len(found):
        raise ValueError(f"{caller}: `offsets` must be distinct and not 0, at least one, got {found}")
    return found
