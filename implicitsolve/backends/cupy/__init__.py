"""CUDA kernels for CuPy arrays; loaded by name when a kernel is first selected, and registered by the import."""

from __future__ import annotations

from importlib import import_module

for _name in ("_gates", "_gates_lstm", "_gates_rnn", "_recurrence", "_blocks", "_tridiagonal", "_vectors", "_gru_cell"):
    try:
        import_module(f"implicitsolve.backends.cupy.{_name}").register()
    except ModuleNotFoundError as error:  # while the backend is being built
        if error.name is None or not error.name.startswith("implicitsolve.backends.cupy"):
            raise
