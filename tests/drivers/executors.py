"""An executor that works at once, and what the tests of the drivers share."""

import os
import subprocess
import sys
from concurrent.futures import Executor, Future

import numpy as np

import implicitsolve as ims


class Roots:
    """x**2 = c for each system, with the number of rows of each evaluation."""

    def __init__(self, c):
        self.c, self.rows = np.asarray(c, dtype=float).reshape(-1, 1), []

    def problem(self, c=None):
        c = self.c if c is None else c

        def residual(x):
            self.rows.append(x.shape[0])
            return x * x - c

        return ims.Problem(residual, jvp=lambda x, v: 2 * x * v, batch_ndim=1, take=lambda rows: self.problem(c[rows]))


class Here(Executor):
    """Works at once, in this thread; says what it was given."""

    def __init__(self, trouble=None, at=()):
        self.calls, self.trouble, self.at = 0, trouble, at

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if self.calls in self.at:
            future.set_exception(self.trouble)
        else:
            future.set_result(fn(*args, **kwargs))
        self.calls += 1
        return future


def numbers(size, *bad):
    c = np.arange(1.0, size + 1)[:, None]
    c[list(bad)] *= -1
    return c


def run(command):
    """Run a command with the modules that this process finds."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)
