"""Settings of a differentiable solve, and what happens when it fails."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve.stopping import LinearStop, NonlinearStop

ON_FAILURE = ("warn", "raise", "ignore")


class ConvergenceWarning(UserWarning):
    """A forward or an adjoint solve ended without meeting its stopping rule: the states or gradients are inexact."""


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """How a layer is solved, forwards and backwards.

    Parameters
    ----------
    method : solver or str, optional
        That of `implicitsolve.root`. Default "auto".
    stop : NonlinearStop, optional
        When the forward solve has converged. The default None is `root`'s own rule or an absolute residual of 1e-8
        (1e-5 in float32), whichever is met first: the states of a layer are of size 1, and a warm start leaves a
        residual that no relative tolerance can be asked of.
    adjoint_method : Krylov or direct method, optional
        That of `implicitsolve.pull_back`. Default: its own choice.
    adjoint_stop : LinearStop, optional
        When the adjoint solve has converged. Default: that of `pull_back`, 1e-6 relative (1.2e-5 in float32).
    initial_guess : str, optional
        Where a forward solve starts that is given no `x0`: "one-step", "zeros", or "default", which is what the layer
        takes to be best.
    on_failure : {"warn", "raise", "ignore"}, optional
        What follows when a solve ends without meeting its rule. "warn" (default) is a `ConvergenceWarning`, "raise" an
        `implicitsolve.NoConvergence`.

    Raises
    ------
    TypeError
        If a stopping rule is not one.
    ValueError
        If `on_failure` is none of the three.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> from implicitsolve.torch import SolveOptions
    >>> SolveOptions(stop=ims.NonlinearStop(atol=1e-3), on_failure="raise").on_failure
    'raise'
    """

    method: Any = "auto"
    stop: NonlinearStop | None = None
    adjoint_method: Any = None
    adjoint_stop: LinearStop | None = None
    initial_guess: str = "default"
    on_failure: str = "warn"

    def __post_init__(self) -> None:
        """Check what is not checked where it is used."""
        given = (("stop", self.stop, NonlinearStop), ("adjoint_stop", self.adjoint_stop, LinearStop))
        for name, value, kind in given:
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"SolveOptions: `{name}` must be a {kind.__name__}, got {type(value).__name__}")
        if self.on_failure not in ON_FAILURE:
            raise ValueError(f"SolveOptions: `on_failure` must be one of {ON_FAILURE}, got {self.on_failure!r}")

    def report(self, caller: str, what: str, result: Any) -> None:
        """Do what `on_failure` asks for where some system of a result did not converge."""
        if self.on_failure == "ignore" or np.all(result.success):
            return
        if self.on_failure == "raise":
            result.raise_for_status()
        warnings.warn(f"{caller}: {what}: {result.message}", ConvergenceWarning, stacklevel=2)
