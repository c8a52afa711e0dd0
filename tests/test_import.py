"""What `import implicitsolve` loads, and how long it takes."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import implicitsolve

OPTIONAL = ["numba", "cupy", "torch", "jax", "matplotlib", "tqdm", "pooch", "array_api_strict", "hypothesis", "pytest"]
MOST = 0.7  # of what NumPy and SciPy take, in one process: 0.2 to 0.4 measured; 0.6 with the oldest, which load faster
RUNS = 3
ROOT = Path(__file__).parent.parent

TIME_THE_IMPORT = """
import time
start = time.process_time()
import numpy, scipy.linalg, scipy.optimize
between = time.process_time()
import implicitsolve
print((time.process_time() - between) / (between - start))
"""


def run_python(code: str, **variables: str) -> str:
    """Run `code` in a fresh interpreter, with one BLAS thread, and return what it prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def test_import_loads_no_optional_package():
    loaded = json.loads(run_python("import implicitsolve, json, sys; print(json.dumps(sorted(sys.modules)))"))
    assert "implicitsolve" in loaded
    assert [name for name in OPTIONAL if name in loaded] == []


def test_import_takes_less_than_that_of_numpy_and_scipy(tmp_path):
    # Processor time: what the import costs, whatever else the machine is doing; from bytecode, as installed packages.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    _, *ratios = (float(run_python(TIME_THE_IMPORT, **compiled)) for _ in range(RUNS + 1))
    assert min(ratios) < MOST, ratios


@pytest.mark.parametrize(("name", "need"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_a_package_without_its_framework_says_what_to_install(name, need):
    used = f"import sys; sys.modules[{name!r}] = None\ntry: import implicitsolve.{name}"
    out = run_python(f"{used}\nexcept ImportError as error: print(repr(error))")
    assert out.startswith(f'BackendUnavailable("implicitsolve.{name} needs {need}')
    assert f"pip install 'implicitsolve[{name}]'" in out


def test_import_prints_nothing():
    assert run_python("import implicitsolve") == ""


def test_version_is_the_distribution_s():
    assert importlib.metadata.version("implicitsolve") == implicitsolve.__version__


def test_py_typed_is_shipped():
    assert Path(implicitsolve.__file__).with_name("py.typed").is_file()


@pytest.mark.parametrize("name", implicitsolve.__all__)
def test_public_name_exists_and_has_a_docstring(name):
    assert name.startswith("__") or getattr(implicitsolve, name).__doc__
