"""Networks as lifted nets: the places of the weights in A, B and C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, copy_array, is_array
from implicitsolve._typing import Array
from implicitsolve.adapters._common import check_array
from implicitsolve.adapters._lifted_matrices import LiftedMatrices, Places, matrices
from implicitsolve.stopping import check_choice, check_limit

Named: TypeAlias = dict[str, Array]
FORMATS = ("sparse", "block-banded", "dense")
INITIAL = ("zero", "input")


def lifted_feedforward(
    weights: Sequence[Array], *, biases: Sequence[Array] | None = None, format: str = "sparse"
) -> LiftedMatrices:
    """Return a feed-forward network y = W_L x_L, x_{l+1} = phi(W_l x_l + b_l), x_0 = u, as a lifted net.

    The state is x = (x_L, ..., x_1). W_1 to W_{L-1} are above the diagonal of A, W_0 at the end of B's last block
    row, W_L at the beginning of C.

    Parameters
    ----------
    weights : sequence of Arrays
        W_0, ..., W_L, at least two, of shapes (n_1, p), (n_2, n_1), ..., (q, n_L). Float32 or float64.
    biases : sequence of Arrays, optional
        b_0, ..., b_{L-1} of shapes (n_1,), ..., (n_L,): the last column of B, of a constant input, so that the inputs
        are (u, 1), in the order of the columns of B. Default: none.
    format : {"sparse", "block-banded", "dense"}, optional
        "sparse" (default; NumPy only): BSR where all blocks of a matrix have one shape, else CSR. "block-banded": A is
        a `BlockBandedMatrix`, which needs layers of one size and offers direct solves; B and C are sparse, or dense
        where the weights are not NumPy's. "dense": arrays, of any library.

    Returns
    -------
    LiftedMatrices
        Unpacks as A, B, C. Its `weights` and their gradients are named "W_0", "W_1", ..., and "b_0", "b_1", ...

    Raises
    ------
    TypeError
        If a weight is not an array, or has another library or dtype than the first one.
    ValueError
        If shapes do not fit, there are fewer than two weights, or an option is unknown.

    References
    ----------
    Tsai, *Formulate RNN with Implicit Lifted Net Framework*, 2019, equations 2 and 3.

    Examples
    --------
    >>> from implicitsolve.adapters import lifted_feedforward, lifted_net
    >>> A, B, C = lifted_feedforward([np.ones((3, 2)), np.ones((2, 3)), np.ones((1, 2))])
    >>> A.toarray()
    array([[0., 0., 1., 1., 1.],
           [0., 0., 1., 1., 1.],
           [0., 0., 0., 0., 0.],
           [0., 0., 0., 0., 0.],
           [0., 0., 0., 0., 0.]])
    >>> lifted_net(A, B, np.array([0.5, -1.0]), activation="relu").substitute()
    array([0., 0., 0., 0., 0.])
    """
    caller = "lifted_feedforward"
    if is_array(weights) or not isinstance(weights, Sequence) or len(weights) < 2:
        raise ValueError(f"{caller}: `weights` must be a sequence of at least two matrices W_0, ..., W_L")
    if biases is not None and (not isinstance(biases, Sequence) or len(biases) != len(weights) - 1):
        raise ValueError(f"{caller}: `biases` must be a sequence of {len(weights) - 1} vectors, got {biases!r}")
    given = {f"b_{i}": value for i, value in enumerate(biases or ())}
    named, own = _check(caller, {f"W_{i}": value for i, value in enumerate(weights)}, format, given)
    for (before, first), (after, second) in zip(named.items(), list(named.items())[1:]):
        if second.shape[1] != first.shape[0]:
            shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
            raise ValueError(f"{caller}: `weights` must follow each other, got {before} and {after} of shapes {shapes}")
    sizes = [value.shape[0] for value in weights[:-1]]  # n_1, ..., n_L
    starts = (sum(sizes) - np.cumsum(sizes)).tolist()  # where x_1, ..., x_L begin
    L = len(sizes)
    in_A = {f"W_{i}": np.array([[starts[i], starts[i - 1]]]) for i in range(1, L)}
    p = weights[0].shape[1]
    in_B, in_C = {"W_0": np.array([[starts[0], 0]])}, {f"W_{L}": np.array([[0, 0]])}
    for i, name in enumerate(own):
        _check_size(caller, own, name, 0, sizes[i], f"W_{i}")
        in_B[name] = np.array([[starts[i], p]])
    places, shape = (in_A, in_B, in_C), (sum(sizes), p + bool(own), weights[-1].shape[0])
    return matrices(caller, named | own, places, shape, format)


def lifted_rnn(
    W_H: Array,
    W_I: Array,
    W_O: Array,
    T: int,
    *,
    b: Array | None = None,
    outputs: str = "last",
    initial: str = "zero",
    format: str = "sparse",
) -> LiftedMatrices:
    """Return T steps of a recurrent network h_t = phi(W_H h_{t-1} + W_I u_t + b), y_t = W_O h_t, as a lifted net.

    The state is x = (h_T, ..., h_1, h_0), the inputs u = (u_T, ..., u_1), the last step first: see `lifted_inputs`.

    Parameters
    ----------
    W_H, W_I, W_O : Array of shapes (k, k), (k, d) and (q, k)
        Float32 or float64.
    T : int
        Number of steps.
    b : Array of shape (k,), optional
        A bias: the last column of B, of a constant input that follows the others, as
        ``lifted_inputs(..., constant=True)`` appends it. It is no part of h_0. Default: none.
    outputs : {"last", "all"}, optional
        "last" (default): C x = y_T. "all": C x = (y_T, ..., y_1), see `lifted_outputs`.
    initial : {"zero", "input"}, optional
        "zero" (default): the rows of h_0 in A and B are zero, so that h_0 = phi(0): 0 for "tanh" and "relu", 1/2 for
        "logistic". "input": h_0 is no part of the state but the last k inputs, u = (u_T, ..., u_1, h_0).
    format : {"sparse", "block-banded", "dense"}, optional
        As in `lifted_feedforward`; A can always be block banded.

    Returns
    -------
    LiftedMatrices
        Unpacks as A, B, C. Its `weights` and their gradients are named "W_H", "W_I" and "W_O", and "b".

    Raises
    ------
    TypeError, ValueError
        As `lifted_feedforward`; or if `T` is not a positive integer.

    Notes
    -----
    A holds T copies of W_H. With `elman`, which holds one, a sweep or product costs the same operations and less memory
    traffic; the lifted net is for what is done with A and B as matrices.

    References
    ----------
    Tsai, *Formulate RNN with Implicit Lifted Net Framework*, 2019, equations 5 to 7; the row of h_0 is missing there.

    Examples
    --------
    >>> from implicitsolve.adapters import lifted_inputs, lifted_net, lifted_rnn
    >>> A, B, C = lifted_rnn(np.array([[2.0]]), np.array([[1.0]]), np.array([[1.0]]), 3)
    >>> u = lifted_inputs(np.array([[1.0], [0.0], [0.0]]))  # an impulse, doubled by every step
    >>> lifted_net(A, B, u, activation="identity").substitute()
    array([4., 2., 1., 0.])
    """
    caller = "lifted_rnn"
    check_limit(caller, "T", T, least=1)
    check_choice(caller, "outputs", outputs, ("last", "all"))
    check_choice(caller, "initial", initial, INITIAL)
    named, own = _check(caller, {"W_H": W_H, "W_I": W_I, "W_O": W_O}, format, {} if b is None else {"b": b})
    k = _check_sizes(caller, named, "W_H", "W_I", "W_O")
    d, q, n = W_I.shape[1], W_O.shape[0], T if initial == "input" else T + 1
    for name in own:
        _check_size(caller, own, name, 0, k, "W_H", "k = ")
    p = T * d + k * (initial == "input")
    places = _steps(("W_H", "W_I", "W_O", "b"), (T, k, d, q), 0, (T * d, p), n == T, is_backward=False)
    in_C = places[2] if outputs == "all" else {"W_O": places[2]["W_O"][:1]}
    in_B = {name: at for name, at in places[1].items() if name in named | own}
    sizes = n * k, p + bool(own), q * (T if outputs == "all" else 1)
    return matrices(caller, named | own, (places[0], in_B, in_C), sizes, format)


def lifted_birnn(
    W_Hf: Array,
    W_If: Array,
    W_Of: Array,
    W_Hb: Array,
    W_Ib: Array,
    W_Ob: Array,
    T: int,
    *,
    bf: Array | None = None,
    bb: Array | None = None,
    initial: str = "zero",
    format: str = "sparse",
) -> LiftedMatrices:
    """Return T steps of a bidirectional recurrent network as a lifted net.

    For t = 1, ..., T::

        h_t = phi(W_Hf h_{t-1} + W_If u_t + b_f)
        g_s = phi(W_Hb g_{s-1} + W_Ib u_{T+1-s} + b_b)    s = 1, ..., T counts the steps of the backward recursion
        y_t = W_Of h_t + W_Ob g_{T+1-t}

    The state is x = (h_T, ..., h_0, g_T, ..., g_0), the inputs are u = (u_T, ..., u_1) and the outputs (y_T, ..., y_1).

    Parameters
    ----------
    W_Hf, W_If, W_Of : Array of shapes (k, k), (k, d) and (q, k)
        Weights of the forward recursion.
    W_Hb, W_Ib, W_Ob : Array of shapes (m, m), (m, d) and (q, m)
        Weights of the backward recursion.
    T : int
        Number of steps.
    bf, bb, initial, format : Array of shapes (k,) and (m,), and str, optional
        As `b` and the others of `lifted_rnn`: with "input" the inputs are (u_T, ..., u_1, h_0, g_0), and "block-banded"
        needs m = k.

    Returns
    -------
    LiftedMatrices
        As `lifted_rnn`, under the names of the arguments.

    Raises
    ------
    TypeError, ValueError
        As `lifted_rnn`.

    References
    ----------
    Tsai, *Formulate RNN with Implicit Lifted Net Framework*, 2019, equations 8 to 12; in (9) the backward recursion is
    read as indexed by its own steps.

    Examples
    --------
    >>> from implicitsolve.adapters import lifted_birnn, lifted_inputs, lifted_net, lifted_outputs
    >>> one, two = np.array([[1.0]]), np.array([[2.0]])
    >>> net = lifted_birnn(two, one, one, two, one, one, 3)
    >>> u = lifted_inputs(np.array([[1.0], [0.0], [0.0]]))
    >>> lifted_outputs(net.outputs(lifted_net(net.A, net.B, u, activation="identity").substitute()), 3)[:, 0]
    array([2., 2., 4.])
    """
    caller = "lifted_birnn"
    check_limit(caller, "T", T, least=1)
    check_choice(caller, "initial", initial, INITIAL)
    given = {"W_Hf": W_Hf, "W_If": W_If, "W_Of": W_Of, "W_Hb": W_Hb, "W_Ib": W_Ib, "W_Ob": W_Ob}
    biases = {name: value for name, value in {"bf": bf, "bb": bb}.items() if value is not None}
    named, own = _check(caller, given, format, biases)
    k, m = _check_sizes(caller, named, "W_Hf", "W_If", "W_Of"), _check_sizes(caller, named, "W_Hb", "W_Ib", "W_Ob")
    for forward, backward, axis in (("W_If", "W_Ib", 1), ("W_Of", "W_Ob", 0)):
        _check_size(caller, named, backward, axis, named[forward].shape[axis], forward)
    d, q, is_input = W_If.shape[1], W_Of.shape[0], initial == "input"
    for name in own:
        size, recurrent = (k, "W_Hf") if name == "bf" else (m, "W_Hb")
        _check_size(caller, own, name, 0, size, recurrent)
    n, u = T if is_input else T + 1, T * d
    p = u + (k + m) * is_input
    ahead = _steps(("W_Hf", "W_If", "W_Of", "bf"), (T, k, d, q), 0, (u, p), is_input, is_backward=False)
    back = _steps(("W_Hb", "W_Ib", "W_Ob", "bb"), (T, m, d, q), n * k, (u + k, p), is_input, is_backward=True)
    in_A, in_B, in_C = (one | other for one, other in zip(ahead, back))
    in_B = {name: at for name, at in in_B.items() if name in named | own}
    return matrices(caller, named | own, (in_A, in_B, in_C), (n * (k + m), p + bool(own), T * q), format)


def _steps(
    names: tuple[str, ...],
    sizes: tuple[int, int, int, int],
    start: int,
    columns: tuple[int, int],
    is_input: bool,
    *,
    is_backward: bool,
) -> tuple[Places, Places, Places]:
    """Corners of the weights of one recursion in A, B and C, whose states begin at `start`, the last one first.

    `sizes` are T, k, d and q, `columns` those of B for h_0, if that is an input, and for a constant input. Step s of a
    backward recursion takes the input, and adds to the output, of T + 1 - s.
    """
    (recurrent, inputs, outputs, bias), (T, k, d, q) = names, sizes
    steps = np.arange(T)  # T - t for t = T, ..., 1
    rows, times = start + steps * k, steps[::-1] if is_backward else steps
    inner = rows[:-1] if is_input else rows
    in_B = {inputs: np.stack([rows, times * d], axis=1), bias: np.stack([rows, np.full(T, columns[1])], axis=1)}
    if is_input:
        in_B[recurrent] = np.array([[start + (T - 1) * k, columns[0]]])
    in_A = {recurrent: np.stack([inner, inner + k], axis=1)}
    return in_A, in_B, {outputs: np.stack([times * q, rows], axis=1)}


def _check(caller: str, weights: Named, format: str, biases: Named) -> tuple[Named, Named]:
    """Check a network's weights, matrices of one library and dtype, its biases and the format; copy the arrays."""
    check_choice(caller, "format", format, FORMATS)
    first, like = next(iter(weights.items()))
    if not is_array(like):
        raise TypeError(f"{caller}: `{first}` must be an array, got {type(like).__name__}")
    xp = array_namespace(like)
    if like.dtype not in (xp.float32, xp.float64):
        raise TypeError(f"{caller}: `{first}` must have dtype float32 or float64, got {like.dtype}")
    for name, value in weights.items():
        check_array(caller, name, value, None, like)
        if value.ndim != 2 or 0 in value.shape:
            raise ValueError(f"{caller}: `{name}` must be a matrix, not empty, got shape {tuple(value.shape)}")
    if format == "sparse" and not isinstance(like, np.ndarray):
        raise TypeError(f'{caller}: `format` must be "block-banded" or "dense", since the weights are not NumPy arrays')
    for name, value in biases.items():
        check_array(caller, name, value, None, like)
        if value.ndim != 1:
            raise ValueError(f"{caller}: `{name}` must be a vector, got shape {tuple(value.shape)}")
    copies = ({name: copy_array(value) for name, value in given.items()} for given in (weights, biases))
    return next(copies), next(copies)


def _check_sizes(caller: str, weights: Named, recurrent: str, inputs: str, outputs: str) -> int:
    k = weights[recurrent].shape[0]
    for name, axis in ((recurrent, 1), (inputs, 0), (outputs, 1)):
        _check_size(caller, weights, name, axis, k, recurrent, "k = ")
    return k


def _check_size(caller: str, weights: Named, name: str, axis: int, size: int, other: str, label: str = "") -> None:
    if weights[name].shape[axis] != size:
        got = tuple(weights[name].shape)
        raise ValueError(f"{caller}: `{name}` must have {label}{size} on axis {axis}, as `{other}` has, got {got}")
