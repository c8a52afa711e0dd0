"""Families with known branches."""

import numpy as np


def bratu(u, lam):
    """u'' + lam e^u on (0, 1), central differences."""
    return np.diff(u, 2, prepend=0, append=0) * (u.size + 1) ** 2 + lam * np.exp(u)


def bratu_plane(u, lam):
    """The same on the unit square."""
    p = np.pad(u, 1)
    return (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u) * (len(u) + 1) ** 2 + lam * np.exp(u)


def circle(x, lam):
    return x**2 + lam**2 - 1


def pitchfork(x, lam):
    return lam * x - x**3


def arch(x, lam):
    """A shallow von Mises truss under a load: height 1 at rest, snapping through at +-2 / (3 sqrt(3))."""
    return lam + x - x**3


def ends_at(height):
    """An event that ends the branch where max(x) reaches this height."""

    def top(x, lam):
        return float(np.max(x)) - height

    top.terminal = True
    return top


class Brusselator:
    """The Brusselator on a line of length L (the parameter), with its steady state at both ends."""

    A, B, Dx, Dy = 2.0, 5.45, 0.008, 0.004

    def __init__(self, points=31):
        self.h = 1 / (points + 1)
        self.x0 = np.stack([np.full(points, self.A), np.full(points, self.B / self.A)])

    def residual(self, state, L):
        X, Y = state
        edges = self.A, self.B / self.A
        laplacian = [np.diff(v, 2, prepend=e, append=e) / (self.h * L) ** 2 for v, e in zip(state, edges)]
        reaction = X * X * Y
        return np.stack(
            [
                self.Dx * laplacian[0] + reaction - (self.B + 1) * X + self.A,
                self.Dy * laplacian[1] - reaction + self.B * X,
            ]
        )

    def hopf(self, mode):
        """L at which the mode of so many half waves becomes unstable on this grid: the trace of its matrix is zero."""
        mu = 4 / self.h**2 * np.sin(mode * np.pi * self.h / 2) ** 2
        return float(np.sqrt(mu * (self.Dx + self.Dy) / (self.B - 1 - self.A**2)))
