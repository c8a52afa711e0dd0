"""The implicit LSTM: an LSTM whose hidden and cell states choose, element by element, between two neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from implicitsolve import Problem
from implicitsolve.adapters._common import Array, check_inputs, check_names, check_size
from implicitsolve.adapters._layer import build, own_parameters
from implicitsolve.adapters._lstm_cell import NAMES, LSTMCell, shapes
from implicitsolve.adapters._parameters import draw, state_size


def lstm_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: Any = np.float64
) -> dict[str, npt.NDArray[Any]]:
    """Draw the parameters of an implicit LSTM, uniformly from [-scale, scale].

    Parameters
    ----------
    d : int
        Inputs of one position.
    k : int
        Hidden states of one position, and as many cell states.
    scale : float, optional
        Largest magnitude. Default 0.1, as in `gru_parameters`.
    rng : numpy.random.Generator
        Source of the numbers.
    dtype : dtype, optional
        float32 or float64 (default). The numbers drawn are the same up to rounding.

    Returns
    -------
    dict of str to numpy.ndarray
        6 k (d + k + 1) numbers: Wi, Wf, Wo, Wg, Wp, Wn of shape (k, d), Ui, ..., Un (k, k), bi, ..., bn (k,).

    Raises
    ------
    TypeError
        If `d` or `k` is not an integer, `rng` not a generator, or `dtype` neither of the two.
    ValueError
        If `d`, `k` or `scale` is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import lstm_parameters
    >>> lstm_parameters(3, 2, rng=np.random.default_rng(0))["Wf"].shape
    (2, 3)
    """
    caller = "lstm_parameters"
    return draw(caller, shapes(check_size(caller, "d", d), check_size(caller, "k", k)), scale, rng, dtype)


def implicit_lstm(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    lengths: Any = None,
    hs: Array = None,
    cs: Array = None,
    he: Array = None,
    ce: Array = None,
) -> Problem:
    """Return an implicit LSTM on a batch of sequences as a problem: residual(H) = H - F(H).

    The state of a position is (h, c), 2 k numbers: ``H[..., :k]`` are the hidden states, ``H[..., k:]`` the cell
    states. With p the previous and q the next position, block t of F(H) is (h, c)::

        a = Wp x + Up hp + bp      a' = Wn x + Un hq + bn      s = sigma(a) / (sigma(a) + sigma(a'))
        hhat = s*hp + (1-s)*hq     chat = s*cp + (1-s)*cq
        i, f, o = sigma(W. x + U. hhat + b.)      g = tanh(Wg x + Ug hhat + bg)
        c = f*chat + i*g           h = o*tanh(c)

    With s = 1 this is the ordinary LSTM that runs forwards.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `lstm_parameters`.
    inputs : Array of shape (B, T, d) or (T, d)
        As of `implicit_gru`. The state has shape (B, T, 2 k) or (T, 2 k).
    lengths : array or list of B integers from 1 to T, optional
        As of `implicit_gru`.
    hs, cs, he, ce : Array of shape (k,) or (B, k), optional
        Hidden and cell states before the first and behind the last position of every, or of each, sequence.
        Default: zero.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs", "hs", "cs", "he" and "ce"; a
        boundary state that is not given counts as zeros of shape (k,). Arrays are copied.

        Declares its structure and offers its blocks (2 k x 2 k) and its `halves`. ``initial_guess`` is as of
        `implicit_gru`, with an ordinary LSTM.

    Raises
    ------
    TypeError
        If an argument is no array, or has another library or dtype than `inputs`.
    ValueError
        If a name, a shape or a length is wrong.

    Notes
    -----
    A solution exists where the forget gates stay below 1: ``|h| <= max(1, |hs|, |he|)`` and
    ``|c| <= max(sup i/(1 - sup f), |cs|, |ce|)`` is a box into which F maps itself. It need not be unique.

    With N = sum(lengths) + B + 1 rows, construction takes 12 N d k operations, and a residual or a product with J or
    its adjoint 12 N k^2 (six GEMMs). A linearization holds 11 N k numbers.

    References
    ----------
    This project's own; Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017,
    section 5, announce one. The switch is that of their equation 2, computed from the hidden states.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.lstm_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_lstm(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 8), True)
    >>> gradients = ims.pull_back(layer, result, np.ones_like(result.x)).gradients
    >>> gradients["Uf"].shape, gradients["cs"].shape
    ((4, 4), (4,))
    """
    caller = "implicit_lstm"
    check_inputs(caller, inputs)
    given = check_names(caller, params, NAMES)
    k = state_size(caller, given, "bi", "(k,)", inputs)
    parameters = own_parameters(caller, given, shapes(inputs.shape[-1], k), inputs)
    before, after = {"hs": hs, "cs": cs}, {"he": he, "ce": ce}
    return build(caller, LSTMCell.of(parameters), parameters, inputs, lengths, before=before, after=after).problem()
