"""Sequences in the order of a lifted recurrent net, whose last step comes first, and back."""

from __future__ import annotations

from implicitsolve.adapters._common import Array, array_namespace, check_array, check_size, is_array


def lifted_inputs(sequences: Array, *, initial: Array = None) -> Array:
    """Return sequences as the inputs of a lifted recurrent net, the last step first.

    Parameters
    ----------
    sequences : Array of shape (batch, T, d) or (T, d)
        u_1, ..., u_T of each sequence.
    initial : Array of shape (batch, k) or (k,), optional
        h_0, for nets built with ``initial="input"``; (k,) is the same for all sequences.

    Returns
    -------
    Array of shape (batch, T d) or (T d,), with `initial` k numbers more
        (u_T, ..., u_1) or (u_T, ..., u_1, h_0).

    Raises
    ------
    TypeError
        If an argument is no array, or `initial` has another library or dtype than `sequences`.
    ValueError
        If a shape is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import lifted_inputs
    >>> lifted_inputs(np.array([[1.0, 2.0], [3.0, 4.0]]), initial=np.zeros(1))
    array([3., 4., 1., 2., 0.])
    """
    if not is_array(sequences):
        raise TypeError(f"lifted_inputs: `sequences` must be an array, got {type(sequences).__name__}")
    if sequences.ndim not in (2, 3):
        raise ValueError(f"lifted_inputs: `sequences` must have shape (batch, T, d) or (T, d), got {sequences.shape}")
    xp, lead = array_namespace(sequences), tuple(sequences.shape[:-2])
    flat = xp.reshape(xp.flip(sequences, axis=-2), (*lead, sequences.shape[-2] * sequences.shape[-1]))
    if initial is None:
        return flat
    check_array("lifted_inputs", "initial", initial, None, sequences)
    if initial.ndim not in (1, sequences.ndim - 1) or tuple(initial.shape[:-1]) not in ((), lead):
        wanted = "(k,)" if not lead else f"({lead[0]}, k) or (k,)"
        raise ValueError(f"lifted_inputs: `initial` must have shape {wanted}, got {tuple(initial.shape)}")
    return xp.concat([flat, xp.broadcast_to(initial, (*lead, initial.shape[-1]))], axis=-1)


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
    TypeError
        If `values` is no array, or `T` no integer.
    ValueError
        If a shape is wrong, or T is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import lifted_outputs
    >>> lifted_outputs(np.array([3.0, 4.0, 1.0, 2.0]), 2)
    array([[1., 2.],
           [3., 4.]])
    """
    T = check_size("lifted_outputs", "T", T)
    if not is_array(values):
        raise TypeError(f"lifted_outputs: `values` must be an array, got {type(values).__name__}")
    if values.ndim not in (1, 2) or values.shape[-1] % T:
        wanted = f"(batch, {T} q) or ({T} q,)"
        raise ValueError(f"lifted_outputs: `values` must have shape {wanted}, got {tuple(values.shape)}")
    xp = array_namespace(values)
    return xp.flip(xp.reshape(values, (*values.shape[:-1], T, values.shape[-1] // T)), axis=-2)
