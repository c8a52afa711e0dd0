"""Problems for the workers of `solve_batch`: what a process loads must stand in a module."""

import os
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import implicitsolve as ims


def die():
    """End this process, as the system does where memory is short."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


@dataclass(frozen=True)
class Cubes:
    """x^3 = c, one number for each system; what happens at negative c is for subclasses."""

    c: np.ndarray

    def problem(self, batch_ndim=1):
        return ims.Problem(self.residual, jvp=self.jvp, batch_ndim=batch_ndim, take=self.take)

    def residual(self, x):
        if (self.c < 0).any():
            self.fail()
        return x**3 - self.c

    def jvp(self, x, v):
        return 3 * x**2 * v

    def take(self, indices):
        return replace(self, c=self.c.reshape(-1, 1)[indices]).problem()

    def fail(self):
        """Nothing happens."""


@dataclass(frozen=True)
class Slow(Cubes):
    """Each evaluation takes a while."""

    def residual(self, x):
        time.sleep(0.01)
        return super().residual(x)


@dataclass(frozen=True)
class Deadly(Cubes):
    """The process dies, as by a fault of compiled code, or by the system when memory is short."""

    def fail(self):
        die()


@dataclass(frozen=True)
class DeadlyOnce(Cubes):
    """The process dies, but for the first time only."""

    mark: Path

    def fail(self):
        if not self.mark.exists():
            self.mark.touch()
            die()


class Wrong(Exception):  # noqa: N818
    """An exception of a caller's own."""


class Unsendable(Exception):  # noqa: N818
    """One that does not survive pickling."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


@dataclass(frozen=True)
class Raising(Cubes):
    error: Exception

    def fail(self):
        raise self.error


def made(c, indices):
    """The problem of some of the systems, made where it is solved."""
    return Cubes(c[indices]).problem()


def guessed(c, indices):
    """The same with an initial guess."""
    return replace(made(c, indices), initial_guess=partial(ones, indices.size))


def ones(size, kind, rng):
    return np.ones((size, 1))


def not_a_problem(indices):
    return np.ones((indices.size, 1))


def forget():
    """An initializer of workers."""
    os.environ["IMPLICITSOLVE_TEST"] = "begun"


@dataclass(frozen=True)
class Begun(Deadly):
    """Wants workers that `forget` has begun."""

    def residual(self, x):
        if os.environ.get("IMPLICITSOLVE_TEST") != "begun":
            raise Wrong("no initializer was called")
        return super().residual(x)
