"""Sequences in the order of a lifted net's inputs and unknowns, the last step first."""

from __future__ import annotations

from implicitsolve._arrays.namespace import array_namespace, is_array
from implicitsolve._typing import Array
from implicitsolve.adapters._common import check_array
from implicitsolve.stopping import check_flag, check_limit


def lifted_inputs(sequences: Array, *, initial: Array | None = None, constant: bool = False) -> Array:
    """Return sequences as the inputs of a lifted recurrent net, the last step first.

    Parameters
    ----------
    sequences : Array of shape (batch, T, d) or (T, d)
        u_1, ..., u_T of each sequence.
    initial : Array of shape (batch, k) or (k,), optional
        h_0, for nets built with ``initial="input"``; (k,) is the same for all sequences. For `lifted_birnn` h_0 and g_0
        in one array.
    constant : bool, optional
        Whether a last input of 1 follows, for nets built with biases. Default False.

    Returns
    -------
    Array of shape (batch, T d) or (T d,), with `initial` k numbers more, with `constant` one more
        (u_T, ..., u_1), (u_T, ..., u_1, h_0), (u_T, ..., u_1, 1) or (u_T, ..., u_1, h_0, 1).

    Raises
    ------
    TypeError, ValueError
        If an argument is not an array, has a wrong shape, or another library or dtype than `sequences`.

    Examples
    --------
    >>> from implicitsolve.adapters import lifted_inputs
    >>> lifted_inputs(np.array([[1.0, 2.0], [3.0, 4.0]]), initial=np.zeros(1))
    array([3., 4., 1., 2., 0.])
    """
    if not is_array(sequences):
        raise TypeError(f"lifted_inputs: `sequences` must be an array, got {type(sequences).__name__}")
    if sequences.ndim not in (2, 3):
        raise ValueError(f"lifted_inputs: `sequences` must have shape (batch, T, d) or (T, d), got {sequences.shape}")
    check_flag("lifted_inputs", "constant", constant)
    xp, lead = array_namespace(sequences), tuple(sequences.shape[:-2])
    flat = xp.reshape(xp.flip(sequences, axis=-2), (*lead, sequences.shape[-2] * sequences.shape[-1]))
    one = [xp.ones_like(flat[..., :1])] if constant else []
    if initial is None:
        return xp.concat([flat, *one], axis=-1) if one else flat
    check_array("lifted_inputs", "initial", initial, None, sequences)
    if initial.ndim not in (1, sequences.ndim - 1) or tuple(initial.shape[:-1]) not in ((), lead):
        expected = "(k,)" if not lead else f"({lead[0]}, k) or (k,)"
        raise ValueError(f"lifted_inputs: `initial` must have shape {expected}, got {tuple(initial.shape)}")
    return xp.concat([flat, xp.broadcast_to(initial, (*lead, initial.shape[-1])), *one], axis=-1)


def lifted_outputs(values: Array, T: int) -> Array:
    """Return what a lifted recurrent net holds for T steps, the last first, as sequences in the order of time.

    Parameters
    ----------
    values : Array of shape (batch, T q) or (T q,)
        Outputs (y_T, ..., y_1), or a part of the state or of a gradient in that order.
    T : int
        Number of steps.

    Returns
    -------
    Array of shape (batch, T, q) or (T, q)
        The inverse of `lifted_inputs`.

    Raises
    ------
    TypeError, ValueError
        If `values` is not an array of such a shape, or `T` is not a positive integer.

    Examples
    --------
    >>> from implicitsolve.adapters import lifted_outputs
    >>> lifted_outputs(np.array([3.0, 4.0, 1.0, 2.0]), 2)
    array([[1., 2.],
           [3., 4.]])
    """
    check_limit("lifted_outputs", "T", T, least=1)
    if not is_array(values):
        raise TypeError(f"lifted_outputs: `values` must be an array, got {type(values).__name__}")
    if values.ndim not in (1, 2) or values.shape[-1] % T:
        expected = f"(batch, {T} q) or ({T} q,)"
        raise ValueError(f"lifted_outputs: `values` must have shape {expected}, got {tuple(values.shape)}")
    xp = array_namespace(values)
    return xp.flip(xp.reshape(values, (*values.shape[:-1], T, values.shape[-1] // T)), axis=-2)
