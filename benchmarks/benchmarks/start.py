"""What a user waits for before the first answer, in a fresh process.

``python -m benchmarks.benchmarks.start`` prints, for a first solve of each kind, CPU seconds of compiling with an empty
cache and of loading from a full one: those of the first call, less those of the second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from .tools import unit

IMPORT = "import implicitsolve"
SCALAR = "import implicitsolve as ims; ims.root(lambda x: x * x - 2, 1.0).raise_for_status()"
BANDED = """
import numpy as np
import implicitsolve as ims

def residual(u):
    return np.diff(u, 2, prepend=0.0, append=0.0) + 1e-4 * np.exp(u)

ims.root(ims.Problem(residual, structure=ims.BlockBanded(1, 1)), np.zeros(99)).raise_for_status()
"""
LAYER = """
import numpy as np
import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru

rng = np.random.default_rng(0)
problem = implicit_gru(gru_parameters(8, 8, rng=rng), rng.standard_normal((2, 10, 8)))
ims.root(problem).raise_for_status()
"""


class Start:
    """Time of the first lines of a fresh interpreter, its own start not included."""

    def timeraw_import_numpy_scipy(self) -> str:
        """What the package needs, by itself."""
        return "import numpy, scipy.linalg, scipy.sparse.linalg"

    def timeraw_import(self) -> str:
        """The package."""
        return IMPORT

    def timeraw_first_solve(self) -> str:
        """The package and one equation."""
        return SCALAR

    def timeraw_first_structured_solve(self) -> str:
        """The package and a tridiagonal system; its kernels come from Numba's cache, where they are there."""
        return BANDED

    def timeraw_first_layer(self) -> str:
        """The package and a small layer."""
        return LAYER

    @unit("modules")
    def track_modules(self) -> int:
        """Modules of the package that its import loads."""
        code = f"{IMPORT}, sys; print(sum(name.split('.')[0] == 'implicitsolve' for name in sys.modules))"
        return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)


LINE = """
k, T = {k}, {T}
rng = np.random.default_rng(0)
lower, middle, upper = rng.uniform(-0.3, 0.3, (3, k, k))

def residual(u):
    v = np.pad(u, ((1, 1), (0, 0)))
    return 3 * u + 0.1 * u**3 - v[:-2] @ lower - u @ middle - v[2:] @ upper - 1

problem = ims.Problem(residual, structure=ims.BlockBanded(1, 1, k))

def solve():
    ims.root(problem, np.zeros((T, k))).raise_for_status()
"""
RECURRENT = """
rng = np.random.default_rng(0)
parameters = adapters.{name}_parameters(8, 100, scale=0.1, rng=rng)
layer = adapters.{make}(parameters, rng.standard_normal((1, 100, 8)))

def solve():
    result = ims.root(layer).raise_for_status()
    ims.pull_back(layer, result, np.ones_like(result.x)).raise_for_status()
"""
SMALL = """
def residual(x, p, out):
    out[0] = x[0] ** 2 + x[1] ** 2 - p[0]
    out[1] = x[0] - x[1]

def solve():
    ims.newton_batch(residual, np.tile([1.0, 3.0], (100, 1)), np.linspace(1, 9, 100)[:, None])
"""
KINDS = {
    **{f"k = {k}": LINE.format(k=k, T=40_000 // k**2) for k in (1, 2, 4, 8, 16, 20)},
    **{
        f"{make}, with gradients": RECURRENT.format(name=name, make=make)
        for name, make in (
            ("gru", "implicit_gru"),
            ("lstm", "implicit_lstm"),
            ("rnn", "implicit_rnn"),
            ("elman", "elman"),
        )
    },
    "newton_batch": SMALL,
}
TWICE = """
import time
import numpy as np
import implicitsolve as ims
from implicitsolve import adapters
{kind}
times = [time.process_time()]
for _ in range(2):
    solve()
    times.append(time.process_time())
print(2 * times[1] - times[0] - times[2])
"""


def main() -> None:
    """Print the table."""
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"NUMBA_CACHE_DIR": folder}
            command = [sys.executable, "-c", TWICE.format(kind=kind)]
            runs = [
                subprocess.run(command, env=environment, capture_output=True, check=True, text=True) for _ in range(3)
            ]
        cold, *warm = (float(run.stdout) for run in runs)
        print(f"{name:30} empty cache {cold:5.2f} s, full {min(warm):5.2f} s", flush=True)


if __name__ == "__main__":
    main()
