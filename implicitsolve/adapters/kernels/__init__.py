"""The kernels of recurrent layers, declared here for whatever backend implements them; see `implicitsolve.kernels`.

`mixture`, `gru`, `lstm` and `rnn` select objects with the elementwise work around the matrix products, function by
function, and `rnn` a whole recurrence; see their references. They are selected by `size`, the numbers in a row, and
`mixture` also by `neighbours`, the number of states that it mixes.
`gru_recurrence` and `affine_recurrence` are whole recurrences, and `recurrence` runs any step along a `Plan`.
``take_rows(x, source, none)`` reads rows of a matrix in another order, and ``clear_rows(x, empty)`` sets some to zero.

``gru_cell(weights)`` returns all functions of a GRU cell's rows, each in one piece, for as many rows as its
`most_rows`: ``value(x, states, factors, distances)``, ``step(x, previous)``, ``push(factors, dstates, distances)``,
``pull(factors, w)``, ``pull_back(factors, w, distances, length)``, ``gradients(inputs, states, factors, sums, joined)``
and ``diagonals(factors)``, as `StencilGRUCell` composes them of products and of the functions above. Its reference
returns None: callers compose them. It is selected by `size` and `neighbours`.
"""

from __future__ import annotations

from implicitsolve._typing import Array
from implicitsolve.adapters.kernels import _gates, _recurrence
from implicitsolve.adapters.kernels._recurrence import ACTIVATIONS, Activation, Plan, check_activation, recurrence
from implicitsolve.kernels import Kernel

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Plan",
    "affine_recurrence",
    "check_activation",
    "clear_rows",
    "gru",
    "gru_cell",
    "gru_recurrence",
    "lstm",
    "mixture",
    "recurrence",
    "rnn",
    "take_rows",
]


def _long_rows(*, size: int, **others: int) -> bool:
    """Whether rows are long enough to load compiled code, which makes one pass where NumPy makes ten."""
    return size >= 32


def _compose(weights: Array) -> None:
    """Return None: no function runs as a whole."""


mixture: Kernel = Kernel("mixture", _gates.Mixture(), {"numba": _long_rows}, "gates")
gru: Kernel = Kernel("gru", _gates.GRU(), {"numba": _long_rows}, "gates")
lstm: Kernel = Kernel("lstm", _gates.LSTM(), {"numba": _long_rows}, "gates")
rnn: Kernel = Kernel("rnn", _recurrence.RNN(), {"numba": _long_rows}, "gates")
gru_cell: Kernel = Kernel("gru_cell", _compose)
gru_recurrence: Kernel = Kernel("gru_recurrence", _recurrence.gru_recurrence, module="recurrence")
affine_recurrence: Kernel = Kernel("affine_recurrence", _recurrence.affine_recurrence, module="recurrence")
take_rows: Kernel = Kernel("take_rows", _recurrence.take_rows, module="recurrence")
clear_rows: Kernel = Kernel("clear_rows", _recurrence.clear_rows, module="recurrence")
