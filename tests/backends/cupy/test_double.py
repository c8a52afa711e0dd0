"""The double of a GPU is strict where CuPy is, and has what CuPy has."""

import importlib.util
import inspect
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

ASK_CUPY = """
import inspect, json, operator, cupy

def parameters(found):
    if isinstance(found, cupy.ufunc):
        return "ufunc"
    try:
        return list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return "compiled"

found = {}
for name in json.loads(input()):
    try:
        found[name] = parameters(operator.attrgetter(name)(cupy))
    except AttributeError:
        pass
print(json.dumps(found))
"""


@pytest.fixture
def cp(double):
    return sys.modules["cupy"]


def test_what_it_offers_is_in_cupy(cp):
    if importlib.util.find_spec("cupy_backends") is None:
        pytest.skip("CuPy itself is not installed")
    arrays, cuda, functions, linalg = (
        importlib.import_module(f"tests.device_double.{name}") for name in ("arrays", "cuda", "functions", "linalg")
    )
    methods = {name for name in vars(arrays.ndarray) if name.strip("_") == name} | arrays.METHODS
    offered = {**functions.members(), **{f"linalg.{name}": getattr(linalg, name) for name in linalg.__all__}}
    offered |= {f"cuda.{name}": found for name, found in cuda.members().items()}
    asked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK_CUPY],
        input=json.dumps([*offered, *(f"ndarray.{name}" for name in methods)]),
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    real = json.loads(asked.stdout)
    assert sorted(offered.keys() - real.keys()) == []
    assert sorted(f"ndarray.{name}" for name in methods if f"ndarray.{name}" not in real) == []
    assert {name for name, found in real.items() if found == "ufunc"} == functions.UFUNCS
    mine = {
        name: list(inspect.signature(found).parameters)
        for name, found in offered.items()
        if isinstance(real[name], list) and inspect.isfunction(found) and found.__name__ != "by_numpy"
    }
    assert mine == {name: real[name] for name in mine}
    assert len(mine) > 100


REFUSED = {
    "conversion": np.asarray,
    "NumPy's array on the left": lambda x: np.zeros(3) + x,
    "NumPy's array on the right": lambda x: x + np.zeros(3),
    "comparison": lambda x: x < np.zeros(3),
    "index": lambda x: range(x[0]),
    "list": lambda x: x.__setitem__(slice(None), [1, 2, 3]),
    "method of a ufunc": np.add.reduce,
    "output": lambda x: np.add(x, 1.0, out=np.zeros(3)),
    "text": lambda x: x == "text",
    "hash": hash,
    "loop": lambda x: iter(x[0]),
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED)
def test_implicit_transfers_to_the_host_raise(device, use):
    x = device.asarray(np.ones(3))
    with pytest.raises(TypeError):
        use(x)


def test_a_host_array_goes_in_by_set_or_by_an_advanced_key_alone(device):
    x = device.zeros(3)
    with pytest.raises(ValueError, match="fill"):
        x[:2] = np.ones(2)
    x[device.asarray([0, 2])] = np.asarray([1.0, 3.0])
    x.set(x.get() + 1)
    np.testing.assert_array_equal(x.get(), [2, 1, 4])


def test_results_without_axes_are_arrays(device):
    x = device.asarray(np.ones(3))
    for made in (device.sum(x), device.max(x), x[0], x @ x, device.any(x > 0), device.linalg.matrix_norm(x[None, :])):
        assert type(made) is type(x)
        assert made.shape == ()
    part = x[1]
    part[...] = 5  # a view
    assert float(x[1]) == 5


def test_indices_beyond_the_end_begin_anew(device):
    x, i = device.asarray(np.arange(3.0)), device.asarray(np.asarray([1, 3, -1]))
    np.testing.assert_array_equal(device.take(x, i, axis=0).get(), [1, 0, 2])
    np.testing.assert_array_equal(x[i].get(), [1, 0, 2])
    x[i] = device.asarray(np.asarray([5.0, 6.0, 7.0]))
    np.testing.assert_array_equal(x.get(), [6, 5, 7])
    X = device.asarray(np.arange(12.0).reshape(3, 4))
    np.testing.assert_array_equal(X[:, i].get(), X.get()[:, [1, 3, -1]])
    np.testing.assert_array_equal(X[i, :2].get(), X.get()[[1, 0, -1], :2])
    with pytest.raises(IndexError):
        x[3]


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_singular_matrix_gives_what_is_not_finite(device, lead, dtype):
    A = device.asarray(np.broadcast_to([[1.0, 2.0], [2.0, 4.0]], (*lead, 2, 2)), dtype=getattr(device, dtype))
    b = device.ones((*lead, 2, 1), dtype=A.dtype)
    assert not bool(device.all(device.isfinite(device.linalg.solve(A, b))))
    sign, logarithm = device.linalg.slogdet(A)
    np.testing.assert_array_equal(sign.get(), np.zeros(lead))
    np.testing.assert_array_equal(logarithm.get(), np.full(lead, -np.inf))


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (2, 2, 4, 4), (0, 3, 3), (2, 0, 0)])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_matrices_are_solved_and_factored_in_stacks(device, shape, dtype, rng):
    A = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
    A = A if dtype == "complex64" else A.real.astype(np.float64)
    b = A[..., :2] + 1
    x = device.linalg.solve(device.asarray(A), device.asarray(b))
    eps = 1e4 * np.finfo(dtype).eps
    np.testing.assert_allclose(A @ x.get(), b, rtol=eps, atol=eps)
    Q, R = device.linalg.qr(device.asarray(A))
    np.testing.assert_allclose((Q @ R).get(), A, rtol=eps, atol=eps)
    for actual, expected in zip(device.linalg.slogdet(device.asarray(A)), np.linalg.slogdet(A), strict=True):
        np.testing.assert_allclose(actual.get(), expected, rtol=eps, atol=eps)
        assert actual.dtype == expected.dtype
    with pytest.raises(ValueError, match="shape"):
        device.linalg.solve(device.asarray(A), device.ones((shape[-1] + 1, 1), dtype=x.dtype))


def test_transfers_are_counted_with_their_bytes(double, device):
    x = device.asarray(np.ones((2, 3)))
    x.get()
    bool(x[0, 0] > 0)
    x[x > 0]
    float(x[1, 1])
    kinds = [kind for kind, _, _ in double.transfers]
    assert kinds == ["to_device", "to_host", "to_host", "to_host", "to_host"]
    assert [nbytes for _, _, nbytes in double.transfers] == [48, 48, 1, 4, 8]
    assert double.counts["to_host"] == 4
    assert double.counts["to_device"] == 1
    double.reset()
    assert not double.transfers
    assert not double.counts


def test_launches_are_counted_and_views_are_free(double, device):
    x = device.asarray(np.ones((2, 3)))
    double.reset()
    y = device.permute_dims(x, (1, 0))[1:, None]
    assert double.counts["launch"] == 0
    z = y + 1
    z *= 2
    device.matmul(x, x.T)
    assert double.counts["launch"] == 3
    assert double.sites["add"] == 1


def test_memory_is_counted_until_it_is_freed(double, device):
    before = double.peak["now"]
    x = device.zeros((100,))
    y = x + 1
    view = y[10:]
    assert double.peak["now"] - before == 1600
    del y
    assert double.peak["now"] - before == 1600
    del view, x
    assert double.peak["now"] == before
    assert double.peak["most"] - before >= 1600
    double.reset()
    assert double.peak["most"] == before


SCALE = """
extern "C" __global__ void scale(Real* x, Real by, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n + EXTRA) x[i] *= by;
}
extern "C" __global__ void reversed(Real* x) {
    SHARED_MEMORY(Real, row);
    row[threadIdx.x] = x[threadIdx.x];
    BARRIER;
    x[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}
"""


def kernel(cp, name, real="double", extra=0, barrier="__syncthreads()"):
    options = ("-std=c++17", f"-DReal={real}", f"-DEXTRA={extra}", f"-DBARRIER={barrier}")
    return cp.RawModule(code=SCALE, options=options).get_function(name)


def test_kernels_run_on_arrays_of_their_types_alone(cp):
    x = cp.ones(5)
    kernel(cp, "scale")((2,), (3,), (x, np.float64(2), 5))
    np.testing.assert_array_equal(x.get(), 2)
    for arguments in ((x, np.float32(2), 5), (x, 2.0), (cp.ones(5, np.float32), 2.0, 5), (x, 2.0, 5.0), (x, x, 5)):
        with pytest.raises(AssertionError):
            kernel(cp, "scale")((2,), (3,), arguments)


def test_writes_beyond_an_array_are_found(cp):
    with pytest.raises(AssertionError, match="beyond"):
        kernel(cp, "scale", extra=1)((2,), (3,), (cp.ones(5), 2.0, 5))


def test_shared_memory_has_the_requested_size(cp):
    x = cp.asarray(np.arange(64.0))
    kernel(cp, "reversed")((1,), (64,), (x,), shared_mem=512)
    np.testing.assert_array_equal(x.get(), np.arange(64.0)[::-1])
    with pytest.raises(AssertionError, match="shared"):
        kernel(cp, "reversed")((1,), (64,), (x,), shared_mem=504)
    with pytest.raises(AssertionError, match="limit"):
        kernel(cp, "reversed")((1,), (64,), (x,), shared_mem=64 * 1024)


def test_a_missing_barrier_is_found(cp):
    x = cp.asarray(np.arange(64.0))
    kernel(cp, "reversed", barrier="")((1,), (64,), (x,), shared_mem=512)
    assert not np.array_equal(x.get(), np.arange(64.0)[::-1])


@pytest.mark.parametrize(("real", "expected"), [("float", 0.0), ("double", 2.0**-130)])
def test_subnormal_numbers_of_single_precision_are_zero(cp, real, expected):
    dtype = np.dtype({"float": "f", "double": "d"}[real])
    x = cp.asarray(np.full(3, 2.0**-120, dtype))
    kernel(cp, "scale", real)((1,), (3,), (x, dtype.type(2.0**-10), 3))
    np.testing.assert_array_equal(x.get(), expected)


def test_threads_launch_one_after_the_other(cp):
    """Chunks of a batch in a pool of threads once ended the process: a kernel's blocks shared memory with another's."""

    def reversed_often(size):
        x = cp.asarray(np.arange(size, dtype=float))
        for _ in range(40):
            kernel(cp, "reversed")((1,), (size,), (x,), shared_mem=8 * size)
        return x.get()

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(reversed_often, (64, 128, 256)):
            np.testing.assert_array_equal(found, np.arange(float(found.size)))
