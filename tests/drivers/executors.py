"""An executor that works at once, and what its tests share."""

import os
import subprocess
import sys
from concurrent.futures import Executor, Future

import numpy as np


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
