"""CUDA kernels for CuPy arrays; loaded by name when a kernel is first selected, and registered by the import."""

from __future__ import annotations

from implicitsolve.backends.cupy import (
    _blocks,
    _gates,
    _gates_lstm,
    _gates_rnn,
    _gru_cell,
    _recurrence,
    _rows,
    _tridiagonal,
    _vectors,
)

for _part in (_blocks, _gates, _gates_lstm, _gates_rnn, _gru_cell, _recurrence, _rows, _tridiagonal, _vectors):
    _part.register()
