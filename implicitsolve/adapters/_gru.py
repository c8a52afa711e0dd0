"""The implicit GRU: a GRU whose hidden state chooses, element by element, between its two neighbours.

One position of the layer, with p and q the states of the previous and the next position::

    a = Wp x + Up p + bp      c = Wn x + Un q + bn      s = sigma(a) / (sigma(a) + sigma(c))
    hhat = s*p + (1-s)*q      z = sigma(Wz x + Uz hhat + bz)      r = sigma(Wr x + Ur hhat + br)
    h = (1-z)*hhat + z*tanh(W x + U (r*hhat) + b)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from implicitsolve import Problem
from implicitsolve.adapters._common import Array, check_array, check_inputs, check_names, check_size
from implicitsolve.adapters._gru_cell import NAMES, GRUCell, shapes
from implicitsolve.adapters._layer import Layer, build, own_parameters
from implicitsolve.adapters._parameters import draw, state_size


def gru_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: Any = np.float64
) -> dict[str, np.ndarray[Any, Any]]:
    """Draw the parameters of an implicit GRU, uniformly from [-scale, scale].

    Parameters
    ----------
    d : int
        Inputs of one position.
    k : int
        States of one position.
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

    Raises
    ------
    TypeError
        If `d` or `k` is not an integer, `rng` not a generator, or `dtype` neither of the two.
    ValueError
        If `d`, `k` or `scale` is out of range.

    References
    ----------
    .. [1] Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, section 5.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import gru_parameters
    >>> gru_parameters(3, 2, rng=np.random.default_rng(0))["Wz"].shape
    (2, 3)
    """
    d, k = check_size("gru_parameters", "d", d), check_size("gru_parameters", "k", k)
    return draw("gru_parameters", shapes(d, k), scale, rng, dtype)


def implicit_gru(
    params: Mapping[str, Array], inputs: Array, *, lengths: Any = None, hs: Array = None, he: Array = None
) -> Problem:
    """Return the implicit GRU on a batch of sequences as a problem: residual(H) = H - F(H).

    Block i of F(H) is f(h_{i-1}, h_{i+1}, x_i) with f the function above, h_0 = hs and h_{n+1} = he, where n is the
    length of each sequence. The state H has shape (B, T, k); the problem has exact products, gradients, subsets and
    initial guesses.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `gru_parameters`.
    inputs : Array of shape (B, T, d) or (T, d)
        Float32 or float64; all other arrays must have the same library and dtype. Without B the state is (T, k) and
        the problem is one system, otherwise the sequences are B independent systems.
    lengths : array or list of B integers from 1 to T, optional
        Positions of each sequence; what stands behind them in `inputs` or H has no effect on the rest, whatever it is.
        There residual(H) = H, so that the solution is 0. Default: T for all. For one sequence, an integer.
    hs, he : Array of shape (k,) or (B, k), optional
        States before the first and behind the last position of every, or of each, sequence. Default: zero.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs", "hs" and "he"; a boundary state
        that is not given counts as zeros of shape (k,). Arrays are copied, later changes of them have no effect.

        It declares its structure and gives the blocks of J, for small k, and its even and odd positions as functions of
        each other (`halves`).

        ``initial_guess`` knows the kinds "one-step", "zeros" and "random", see `adapters.initial_guess`. `root` without
        x0 takes "one-step", which costs about three residuals and saves a Newton step and five products or more.

    Raises
    ------
    TypeError
        If an argument is no array, or has another library or dtype than `inputs`.
    ValueError
        If a name or a shape is wrong, or a length is not from 1 to T.

    See Also
    --------
    gru_switch : how much each element of the state listens to the previous position.

    Notes
    -----
    A solution exists in the box ``|h| <= max(1, |hs|, |he|)``, into which F maps itself; it need not be unique.
    With N = sum(lengths) + B + 1, construction takes 10 N d k operations, and a residual or a product with J or its
    adjoint 10 N k^2 (five GEMMs) plus about 30 and 17 passes over N k numbers. A linearization holds 8 N k numbers.

    The switch is safe at any size of a and c: with S = exp(-a) + exp(-c) + 2, it and its slopes are
    s = (1 + exp(-c))/S, ds/da = s exp(-a)/S and ds/dc = -(1-s) exp(-c)/S, where numerators and denominator are scaled
    by exp(min(0, a, c)), which leaves no exponential above 1 and a denominator of at least 1.

    References
    ----------
    Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017, equation 2.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
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
    lengths: Any = None,
    hs: Array = None,
    he: Array = None,
) -> Array:
    """Return the switch s of an implicit GRU at given states: the weight of the previous state, 1 - s of the next.

    Parameters
    ----------
    params, inputs : Mapping and Array
        As of `implicit_gru`.
    states : Array of shape (B, T, k) or (T, k)
        Usually the solution.
    lengths, hs, he : optional
        As of `implicit_gru`.

    Returns
    -------
    Array
        In (0, 1), of the shape of `states`; 1/2 at padded positions. The mean of 1 - 2 s over k is above zero where
        information flows from right to left.

    Raises
    ------
    TypeError, ValueError
        As `implicit_gru`.

    References
    ----------
    Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, figures 3 and 4.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import gru_parameters, gru_switch
    >>> params = gru_parameters(2, 4, rng=np.random.default_rng(0))
    >>> params["bp"] += 30.0  # sigma(a) = 1
    >>> params["bn"] -= 30.0  # sigma(c) = 0
    >>> bool((gru_switch(params, np.ones((5, 2)), np.zeros((5, 4))) > 0.999).all())
    True
    """
    layer, cell = _layer("gru_switch", params, inputs, lengths, hs, he)
    check_array("gru_switch", "states", states, layer.shape, inputs)
    return layer.evaluate(cell.switch, states, padding=0.5)


def _layer(caller: str, params: object, inputs: Array, lengths: Any, hs: Array, he: Array) -> tuple[Layer, GRUCell]:
    """Check and copy every argument, and compute what is linear in the inputs."""
    check_inputs(caller, inputs)
    k = state_size(caller, check_names(caller, params, NAMES), "b", "(k,)", inputs)
    parameters = own_parameters(caller, params, shapes(inputs.shape[-1], k), inputs)
    cell = GRUCell.of(parameters)
    return build(caller, cell, parameters, inputs, lengths, before={"hs": hs}, after={"he": he}), cell
