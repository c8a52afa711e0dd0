"""Wrong arguments of `implicitsolve.torch.solve`."""

from importlib import import_module

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

from tests.torch.test_solve import squares  # noqa: E402


@pytest.mark.parametrize(
    ("residual", "error", "message"),
    [
        (lambda x: x.detach().numpy(), TypeError, "must return a torch.Tensor, got ndarray"),
        (lambda x: None, TypeError, "must return a torch.Tensor, got NoneType"),
        (lambda x: x[:1], ValueError, r"of the shape of x, \(2,\), got \(1,\)"),
        (lambda x: x.float(), TypeError, "must have the dtype of x, torch.float64, got torch.float32"),
        (lambda x: torch.ones_like(x), ValueError, "must depend on x by operations of torch"),
        ("no function", TypeError, "must be callable, got str"),
    ],
    ids=["array", "none", "shape", "dtype", "constant", "string"],
)
def test_unusable_residuals(residual, error, message):
    with pytest.raises(error, match=message):
        imt.solve(residual, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("x0", "message"),
    [
        (np.ones(2), "must be a torch.Tensor, got ndarray"),
        (torch.ones(2, dtype=torch.int64), "must have dtype torch.float32 or .* got torch.int64"),
        (torch.ones(2, device="meta"), "must be on the CPU or a CUDA device, got meta"),
        (torch.eye(2).to_sparse(), "must be a dense tensor, got layout torch.sparse_coo"),
    ],
    ids=["array", "integers", "meta", "sparse"],
)
def test_unusable_starts(x0, message):
    with pytest.raises(TypeError, match=f"solve: `x0` {message}"):
        imt.solve(squares, x0, torch.ones(2))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_failure": "cry"}, ValueError, "`on_failure` must be one of"),
        ({"stop": 1e-8}, TypeError, "`stop` must be a NonlinearStop, got float"),
        ({"adjoint_stop": 1e-8}, TypeError, "`adjoint_stop` must be a LinearStop, got float"),
        ({"method": "bisection"}, ValueError, "`method` must be"),
        ({"products": "none"}, ValueError, "`products` must be one of"),
        ({"batch_ndim": 2}, ValueError, "`batch_ndim` is 2"),
    ],
    ids=["on_failure", "stop", "adjoint_stop", "method", "products", "batch_ndim"],
)
def test_unusable_options(options, error, message):
    with pytest.raises(error, match=message):
        imt.solve(squares, torch.ones(2), torch.ones(2), **options)


@pytest.mark.parametrize("name", ["products", "on_failure"])
def test_an_array_is_no_name(name):
    with pytest.raises(ValueError, match=f"`{name}` must be one of"):
        imt.solve(lambda x: x, torch.ones(2), **{name: np.ones(2)})
