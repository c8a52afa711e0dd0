"""Exact derivatives of residuals written in NumPy: traced through NumPy's own dispatch, and differentiated by JAX."""

from __future__ import annotations

from implicitsolve.tracing._residual import TracedResidual, add_derivatives, trace

__all__ = ["TracedResidual", "add_derivatives", "trace"]
