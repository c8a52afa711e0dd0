"""The GRU and the LSTM with diagonal recurrent weights, read as systems for all positions at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from implicitsolve import Problem
from implicitsolve._typing import Array, HostArray
from implicitsolve.adapters._common import DType, Lengths, draw, read_parameters
from implicitsolve.adapters._diagonal_cell import DiagonalGRUCell, DiagonalLSTMCell
from implicitsolve.adapters._layer import build


def diagonal_gru_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: DType = np.float64
) -> dict[str, HostArray]:
    """Draw the parameters of a diagonal GRU, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k : int
        Inputs and states of one position.
    scale, rng, dtype : float, numpy.random.Generator, dtype
        As for `gru_parameters`.

    Returns
    -------
    dict of str to numpy.ndarray
        3 k (d + 2) numbers: W, Wz, Wr of shape (k, d), U, Uz, Ur (k,), b, bz, br (k,).

    Raises
    ------
    TypeError, ValueError
        As `gru_parameters`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import diagonal_gru_parameters
    >>> diagonal_gru_parameters(3, 2, rng=np.random.default_rng(0))["Uz"].shape
    (2,)
    """
    return draw("diagonal_gru_parameters", DiagonalGRUCell.shapes, d, k, scale, rng, dtype)


def diagonal_lstm_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: DType = np.float64
) -> dict[str, HostArray]:
    """Draw the parameters of a diagonal LSTM, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k : int
        Inputs and hidden states of one position; there are as many cell states.
    scale, rng, dtype : float, numpy.random.Generator, dtype
        As for `gru_parameters`.

    Returns
    -------
    dict of str to numpy.ndarray
        4 k (d + 2) numbers: Wi, Wf, Wg, Wo of shape (k, d), Ui, Uf, Ug, Uo (k,), bi, bf, bg, bo (k,).

    Raises
    ------
    TypeError, ValueError
        As `gru_parameters`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import diagonal_lstm_parameters
    >>> diagonal_lstm_parameters(3, 2, rng=np.random.default_rng(0))["Uf"].shape
    (2,)
    """
    return draw("diagonal_lstm_parameters", DiagonalLSTMCell.shapes, d, k, scale, rng, dtype)


def diagonal_gru(params: Mapping[str, Array], inputs: Array, *, lengths: Lengths = None, h0: Array = None) -> Problem:
    """Return a GRU with diagonal recurrent weights as a problem: residual(H) = H - F(H).

    Block t of F(H) is h, with p = h_{t-1}, where * and the products with u are element by element::

        z = sigma(Wz x + Uz*p + bz)      r = sigma(Wr x + Ur*p + br)
        h = (1-z)*p + z*tanh(W x + U*(r*p) + b)

    Each of the k channels is a recurrence of its own, given the inputs, so J is lower bidiagonal with diagonal blocks:
    Newton's method solves for all positions at once, and each of its linear systems is one affine scan.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `diagonal_gru_parameters`.
    inputs : Array of shape (B, T, d) or (T, d)
        As of `implicit_gru`.
    lengths : array or list of B integers from 1 to T, optional
        As of `implicit_gru`.
    h0 : Array of shape (k,) or (B, k), optional
        State before the first of every, or of each, sequence. Default: zero.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs" and "h0"; an h0 that is not given
        counts as zeros of shape (k,). Arrays are copied.

        It is causal: ``substitute`` runs the network position by position, and this is what `root` does by default.
        ``method=CausalNewton()`` solves for all positions in parallel; `NewtonKrylov` takes one Krylov iteration per
        step, since J offers its exact inverse. The adjoint system of `pull_back` is one scan backwards in any case.

    Raises
    ------
    TypeError, ValueError
        As `implicit_gru`.

    See Also
    --------
    diagonal_lstm : with 2 x 2 blocks.

    Notes
    -----
    The solution exists and is unique, and n Newton steps of full length make the first n states exact, whatever the
    start [1]_. How many steps it takes depends on how predictable the map is: where small changes of a state fade, it
    takes a few for any T [2]_; where they grow, the count grows with T: `CausalNewton`, and
    :doc:`/explanation/parallel_rnn`.

    With N = sum(lengths) + B + 1 rows, construction takes 6 N d k operations, and a residual, a product with J or its
    adjoint, and a product with an inverse of these pass over N k numbers. A linearization holds 5 N k numbers.

    References
    ----------
    .. [1] Lim, Zhu, Selfridge & Kasim, *Parallelizing non-linear sequential models over the sequence length* (DEER),
       ICLR 2024. Diagonal weights are those of Danieli et al., *ParaRNN*, 2025.
    .. [2] Gonzalez, Kozachkov, Zoltowski, Clarkson & Linderman, *Predictability enables parallelization of nonlinear
       state space models*, NeurIPS 2025.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.diagonal_gru_parameters(2, 4, scale=1.0, rng=rng)
    >>> network = ims.adapters.diagonal_gru(params, rng.standard_normal((3, 500, 2)), lengths=[500, 1, 300])
    >>> result = ims.root(network, method=ims.CausalNewton())
    >>> bool(result.success.all()), bool(np.allclose(result.x, network.substitute(), atol=1e-5))
    (True, True)
    >>> gradients = ims.pull_back(network, result, np.ones_like(result.x)).gradients
    >>> gradients["Uz"].shape, gradients["h0"].shape
    ((4,), (4,))
    """
    caller = "diagonal_gru"
    parameters = read_parameters(caller, params, inputs, DiagonalGRUCell.shapes, size="b")
    cell = DiagonalGRUCell.of(parameters)
    return build(caller, cell, parameters, inputs, lengths, before={"h0": h0}, after={}).problem()


def diagonal_lstm(
    params: Mapping[str, Array], inputs: Array, *, lengths: Lengths = None, h0: Array = None, c0: Array = None
) -> Problem:
    """Return an LSTM with diagonal recurrent weights as a problem: residual(H) = H - F(H).

    The state of a position is (h, c), 2 k numbers: ``H[..., :k]`` are the hidden states, ``H[..., k:]`` the cell
    states. Block t of F(H) is (h, c), with (p, q) = (h, c)_{t-1}::

        i, f, o = sigma(W. x + U.*p + b.)      g = tanh(Wg x + Ug*p + bg)
        c = f*q + i*g      h = o*tanh(c)

    Each of the k channels is a recurrence of two numbers, given the inputs: J is lower bidiagonal with blocks of four
    diagonals.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `diagonal_lstm_parameters`.
    inputs : Array of shape (B, T, d) or (T, d)
        As of `implicit_gru`. The state has shape (B, T, 2 k) or (T, 2 k).
    lengths : array or list of B integers from 1 to T, optional
        As of `implicit_gru`.
    h0, c0 : Array of shape (k,) or (B, k), optional
        States before the first position of every, or of each, sequence. Default: zero.

    Returns
    -------
    Problem
        As of `diagonal_gru`, with the boundary states "h0" and "c0".

    Raises
    ------
    TypeError, ValueError
        As `implicit_gru`.

    See Also
    --------
    diagonal_gru : with diagonal blocks; what both have in common.

    Notes
    -----
    As of `diagonal_gru`; construction takes 8 N d k operations, and a linearization holds 9 N k numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.diagonal_lstm_parameters(2, 4, scale=1.0, rng=rng)
    >>> network = ims.adapters.diagonal_lstm(params, rng.standard_normal((3, 500, 2)))
    >>> result = ims.root(network, method=ims.CausalNewton())
    >>> result.x.shape, result.success
    ((3, 500, 8), array([ True,  True,  True]))
    """
    caller = "diagonal_lstm"
    parameters = read_parameters(caller, params, inputs, DiagonalLSTMCell.shapes, size="bi")
    cell = DiagonalLSTMCell.of(parameters)
    return build(caller, cell, parameters, inputs, lengths, before={"h0": h0, "c0": c0}, after={}).problem()
