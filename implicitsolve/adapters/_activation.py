"""Activation functions by name: the function of each number, and its derivative."""

from __future__ import annotations

from implicitsolve.kernels import ACTIVATIONS, Activation

__all__ = ["ACTIVATIONS", "Activation"]
