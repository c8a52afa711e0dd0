"""What the modules of `implicitsolve.torch` do where a solve fails, and with wrong arguments."""

from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

from tests.torch.test_modules import B, D, K, T, generator  # noqa: E402


def stuck(on_failure: str):
    stop = ims.NonlinearStop(atol=1e-300, rtol=0.0, max_iterations=1)
    options = imt.SolveOptions(stop=stop, on_failure=on_failure)
    return imt.ImplicitGRU(D, K, solve_options=options, generator=generator(0), scale=1.0)


def test_failure_warns_by_default():
    layer = stuck("warn")
    with pytest.warns(imt.ConvergenceWarning, match="ImplicitGRU: forward solve: 3 of 3 systems: ITERATION_LIMIT"):
        states = layer(torch.ones(B, T, D))
    states.sum().backward()  # one warning is enough: the adjoint solve succeeds
    assert layer.U.grad.isfinite().all()


def test_failure_of_the_adjoint():
    never = imt.SolveOptions(adjoint_stop=ims.LinearStop(max_iterations=0), adjoint_method=ims.GMRES())
    layer = imt.ImplicitGRU(D, K, solve_options=never, generator=generator(0), scale=1.0)
    states = layer(torch.ones(B, T, D))
    with pytest.warns(imt.ConvergenceWarning, match="ImplicitGRU: adjoint solve: .*ITERATION_LIMIT"):
        states.sum().backward()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (np.ones((B, T, D)), TypeError, "`inputs` must be a torch.Tensor, got ndarray"),
        (torch.ones(B, T, D, dtype=torch.float64), TypeError, "have the dtype of the parameters, torch.float32, got"),
        (torch.ones(B, T, D, dtype=torch.int64), TypeError, "must have dtype torch.float32 or torch.float64, got"),
        (torch.ones(B, T, D, device="meta"), TypeError, "`inputs` must be on the CPU or a CUDA device"),
        (torch.ones(B, T, D + 1), ValueError, r"must have 2 numbers on its last axis, got shape \(3, 4, 3\)"),
        (torch.tensor(1.0), ValueError, r"must have 2 numbers on its last axis, got shape \(\)"),
    ],
    ids=["array", "dtype", "integers", "device", "width", "scalar"],
)
def test_unusable_inputs(inputs, error, message):
    with pytest.raises(error, match=f"ImplicitGRU: .*{message}"):
        imt.ImplicitGRU(D, K)(inputs)


def test_unusable_boundaries_starts_and_lengths():
    layer, inputs = imt.ImplicitGRU(D, K), torch.ones(B, T, D)
    with pytest.raises(TypeError, match="ImplicitGRU: `hs` must have the dtype of the parameters"):
        layer(inputs, hs=torch.ones(K, dtype=torch.float64))
    with pytest.raises(ValueError, match="implicit_gru: `he` must have shape"):
        layer(inputs, he=torch.ones(K + 1))
    with pytest.raises(ValueError, match=r"ImplicitGRU: `x0` must have shape \(3, 4, 3\), got \(3, 4, 4\)"):
        layer(inputs, x0=torch.ones(B, T, K + 1))
    with pytest.raises(TypeError, match=r"ImplicitGRU: `x0` must be a .*Tensor, got ndarray"):
        layer(inputs, x0=np.ones((B, T, K)))
    with pytest.raises(ValueError, match="implicit_gru: `lengths` must be from 1 to T = 4, got 0"):
        layer(inputs, [0, 1, 2])


def test_unusable_settings():
    with pytest.raises(TypeError, match=r"ImplicitGRU: `dtype` must be one of .* got torch\.complex64"):
        imt.ImplicitGRU(D, K, dtype=torch.complex64)
    with pytest.raises(ValueError, match="ImplicitGRU: `scale` must be finite and not negative, got -1"):
        imt.ImplicitGRU(D, K, scale=-1.0)
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        imt.ImplicitGRU(D, 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bias'"):
        imt.ImplicitGRU(D, K, bias=True)
    with pytest.raises(ValueError, match="`initial_guess` must be"):
        imt.ImplicitGRU(D, K, solve_options=imt.SolveOptions(initial_guess="warm"))(torch.ones(B, T, D))


def test_a_boundary_state_that_a_layer_does_not_have_is_named():
    with pytest.raises(TypeError, match="ImplicitGRU: unexpected keyword argument 'h0'"):
        imt.ImplicitGRU(D, K)(torch.ones(B, T, D), h0=torch.ones(K))
