"""Forcing terms: how accurately each Newton equation is solved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.stopping import check_number


class Forcing(Protocol):
    """Chooses eta for each system of a batch."""

    kind: ClassVar[str]  # "forcing"

    def first(self, systems: int) -> HostArray:
        """Eta of the first step."""
        ...

    def next(self, eta: HostArray, norms: HostArray, previous: HostArray) -> HostArray:
        """Eta after ||F|| went from `previous` to `norms` with `eta`."""
        ...


@dataclass(frozen=True, kw_only=True)
class ConstantForcing:
    """The same eta in every step.

    Parameters
    ----------
    eta : float, optional
        Relative tolerance of the linear solve, in (0, 1). Default 0.1.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> newton = ims.NewtonKrylov(forcing=ims.ConstantForcing(eta=0.01))
    >>> float(ims.root(lambda x: x**2 - 2, 1.0, method=newton).x.round(6))
    1.414214
    """

    kind: ClassVar[str] = "forcing"
    eta: float = 0.1

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fraction("ConstantForcing", "eta", self.eta)

    def first(self, systems: int) -> HostArray:
        """Eta of the first step."""
        return np.full(systems, self.eta)

    def next(self, eta: HostArray, norms: HostArray, previous: HostArray) -> HostArray:
        """Eta of a later step."""
        return np.full(eta.shape, self.eta)


@dataclass(frozen=True, kw_only=True)
class EisenstatWalker:
    """Choice 2 of Eisenstat and Walker: ``eta = gamma (||F|| / ||F_previous||)^alpha``.

    Parameters
    ----------
    eta0 : float, optional
        First eta. Default 0.1.
    eta_max : float, optional
        Largest eta. Default 0.9, as in KINSOL.
    gamma, alpha : float, optional
        Defaults 0.9 and 2, as in KINSOL.

    Notes
    -----
    Safeguards: eta does not fall below ``gamma eta_previous^alpha`` while that exceeds 0.1, and the solver never asks
    for a linear residual smaller than half of what its stopping rule needs.

    References
    ----------
    .. [1] S. C. Eisenstat and H. F. Walker, "Choosing the forcing terms in an inexact Newton method",
           SIAM J. Sci. Comput. 17 (1996) 16-32, (2.6) and section 2.1.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> newton = ims.NewtonKrylov(forcing=ims.EisenstatWalker(eta_max=0.5))
    >>> float(ims.root(lambda x: x**2 - 2, 1.0, method=newton).x.round(6))
    1.414214
    """

    kind: ClassVar[str] = "forcing"
    eta0: float = 0.1
    eta_max: float = 0.9
    gamma: float = 0.9
    alpha: float = 2.0

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("eta0", "eta_max", "gamma"):
            check_fraction("EisenstatWalker", name, getattr(self, name))
        check_number("EisenstatWalker", "alpha", self.alpha)
        if not 1 < self.alpha <= 2:
            raise ValueError(f"EisenstatWalker: `alpha` must lie in (1, 2], got {self.alpha}")

    def first(self, systems: int) -> HostArray:
        """Eta of the first step."""
        return np.full(systems, min(self.eta0, self.eta_max))

    def next(self, eta: HostArray, norms: HostArray, previous: HostArray) -> HostArray:
        """Eta after ||F|| went from `previous` to `norms` with `eta`."""
        with np.errstate(all="ignore"):
            ratio = np.where(previous > 0, norms / previous, 0.0)
            choice = self.gamma * ratio**self.alpha
            guard = self.gamma * eta**self.alpha
        choice = np.where(guard > 0.1, np.maximum(choice, guard), choice)
        return np.where(np.isfinite(choice), np.minimum(choice, self.eta_max), self.eta_max)


def check_fraction(owner: str, name: str, value: float) -> None:
    """Raise unless 0 < value < 1."""
    check_number(owner, name, value)
    if not 0 < value < 1:
        raise ValueError(f"{owner}: `{name}` must lie in (0, 1), got {value}")
