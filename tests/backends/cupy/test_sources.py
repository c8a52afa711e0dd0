"""NVIDIA's own compiler takes every CUDA source as CuPy hands it over, with constants that the backend launches."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import kernels
from tests.adapters.layers import ADAPTERS, make
from tests.backends.cupy import nvrtc

FOLDER = Path(ims.__file__).parent / "backends" / "cupy" / "cuda"
SOURCES = sorted(path.name for path in FOLDER.glob("*.cu"))
MAIN, OTHERS, MOST = 90, (75, 100), 2  # compute capabilities, and sets of constants of a source
MOST_SPILLED = 32  # bytes of a thread; compilers differ a little
RESOURCES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
METHODS = ("auto", "newton-krylov", "broyden", ims.NewtonKrylov(krylov=ims.krylov.BiCGSTAB()))

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def compiler(device):
    """Skip where there is none."""
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")


@cache
def launched(xp) -> dict[str, set[tuple[str, tuple]]]:
    """Precision and constants of what small problems of all kinds launch, by source."""
    module = import_module("implicitsolve.backends.cupy._module")
    found: dict[str, set] = {name: set() for name in SOURCES}
    kernel, runs = module._kernel, True

    def recorded(name, function, char, constants, *demands):
        found[name].add((char, constants))
        return kernel(name, function, char, constants, *demands) if runs else lambda *arguments, **keywords: None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_kernel", recorded)
        for dtype in (xp.float32, xp.float64):
            solve_layers(xp, dtype)
        runs = False  # what direct solvers launch does not depend on what they find
        for dtype in (xp.float32, xp.float64):
            with np.errstate(all="ignore"):
                solve_bands(xp, dtype)
    return found


def solve_layers(xp, dtype) -> None:
    """A root and its gradients by several methods, for each adapter."""
    for name in ADAPTERS:
        problem = make(name).layer(xp, dtype)
        for method in METHODS:
            result = ims.root(problem, method=method, stop=ims.NonlinearStop(rtol=1e-2, max_iterations=3))
            ims.pull_back(problem, result, xp.ones_like(result.x))
    for name in ("diagonal_gru", "diagonal_lstm"):  # long enough for chunks
        problem = make(name, T=40, lengths=None).layer(xp, dtype)
        result = ims.root(problem, method="causal-newton", stop=ims.NonlinearStop(rtol=0.5))
        ims.pull_back(problem, result, xp.ones_like(result.x))
    chain = ims.Problem(lambda x: x**3 + x - 1, structure=ims.BlockBanded(1, 1), batch_ndim=1)
    ims.root(chain, xp.zeros((2, 6), dtype=dtype), method="block-newton")


def solve_bands(xp, dtype) -> None:
    """Factors of blocks of many sizes, and their solves."""
    row = xp.ones((1, 5, 3), dtype=dtype)
    scalars = kernels.scalar_tridiagonal.select(row, size=3)
    scalars.solve(row, *scalars.factor(row, row, row))
    band = xp.ones((1, 5, 3, 1, 1), dtype=dtype)
    factor = kernels.block_lu.select(band, length=5, block_size=1, lower=1, upper=1, pivoting="band")
    factor(band, 1, 1, pivoting="band").solve(xp.ones((1, 5, 1, 1), dtype=dtype))
    bands = {"block_lu": [(1, 1), (2, 1), (0, 1), (2, 0)], "cyclic_reduction": [(1, 1)]}
    for name, widths in bands.items():
        for lower, upper in widths:
            for k in (3, 6, 48):
                case = {"length": 5, "block_size": k, "lower": lower, "upper": upper}
                extra = {"pivoting": "block"} if name == "block_lu" else {}
                blocks = xp.ones((1, 5, lower + upper + 1, k, k), dtype=dtype)
                factor = getattr(kernels, name).select(blocks, **case, **extra)
                factors = (
                    factor(blocks, **extra) if name == "cyclic_reduction" else factor(blocks, lower, upper, **extra)
                )
                for columns in (1, 9):
                    factors.solve(xp.ones((1, 5, k, columns), dtype=dtype))
                    factors.solve(xp.ones((1, 5, k, columns), dtype=dtype), adjoint=True)


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_compiles_and_keeps_its_numbers_in_registers(device, name):
    module = import_module("implicitsolve.backends.cupy._module")
    cases = launched(device)[name]
    assert cases, f"nothing here launches {name}"
    for char, constants in sorted(cases)[:: -(-len(cases) // MOST)]:
        options = (*module.options(char, dict(constants)), f"-arch=sm_{MAIN}", "--ptxas-options=-v")
        log = nvrtc.compile_source(module.source(name), options)
        assert "warning" not in log, (constants, log)
        used = RESOURCES.findall(log)
        assert used, log
        assert max(int(nbytes) for function in used for nbytes in function) <= MOST_SPILLED, (char, constants, log)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_compiles_for_every_generation(device, name):
    module = import_module("implicitsolve.backends.cupy._module")
    char, constants = min(launched(device)[name])
    for architecture in set(OTHERS) & set(nvrtc.architectures()):
        nvrtc.compile_source(module.source(name), (*module.options(char, dict(constants)), f"-arch=sm_{architecture}"))


def test_an_error_comes_with_the_log():
    with pytest.raises(RuntimeError, match="undefined"):
        nvrtc.compile_source('extern "C" __global__ void f(float* x) { x[0] = undefined_name; }', ("-arch=sm_90",))
