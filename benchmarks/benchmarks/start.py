"""What a user waits for before the first answer, in a fresh process."""

from __future__ import annotations

import subprocess
import sys

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
