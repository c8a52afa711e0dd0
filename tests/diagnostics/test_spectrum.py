"""Eigenvalues of I - J, and the contraction of fixed-point iterations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims


def linear(A: np.ndarray, **functions) -> ims.Problem:
    """F(x) = A x."""
    return ims.Problem(lambda x: x @ A.T, jvp=lambda x, v: v @ A.T, vjp=lambda x, w: w @ A.conj(), **functions)


def matrix(seed: int, size: int, is_complex: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, size)) + (1j * rng.standard_normal((size, size)) if is_complex else 0)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest distance between the values of two sets that are paired greedily."""
    a, rest, worst = list(a), list(b), 0.0
    assert len(a) == len(rest)
    for value in a:
        nearest = int(np.argmin(np.abs(np.asarray(rest) - value)))
        worst = max(worst, abs(rest.pop(nearest) - value))
    return worst


@given(seed=st.integers(0, 2**20), size=st.integers(1, 12), is_complex=st.booleans())
def test_all_vectors_give_all_eigenvalues(seed, size, is_complex):
    A = matrix(seed, size, is_complex)
    found = ims.diagnostics.spectrum(linear(A), np.zeros(size, dtype=A.dtype), vectors=size)
    expected = np.linalg.eigvals(np.eye(size) - A)
    assert found.exact
    assert found.values.dtype == complex
    assert not found.errors.any()
    assert distance(found.values, expected) < 1e-6 * (1 + np.abs(expected).max())
    assert (np.diff(np.abs(found.values)) <= 1e-12).all()
    assert found.radius == pytest.approx(np.abs(expected).max(), rel=1e-6)


@given(seed=st.integers(0, 2**20), vectors=st.integers(1, 15))
def test_residual_bounds_hold_for_normal_matrices(seed, vectors):
    Q = np.linalg.qr(matrix(seed, 20, True))[0]
    eigenvalues = np.random.default_rng(seed).standard_normal(20) * np.exp(1j * np.arange(20))
    A = np.eye(20) - Q @ np.diag(eigenvalues) @ Q.conj().T
    found = ims.diagnostics.spectrum(linear(A), np.zeros(20, dtype=complex), vectors=vectors)
    assert not found.exact
    assert found.values.size == vectors
    gaps = np.abs(found.values[:, None] - eigenvalues[None, :]).min(axis=1)
    assert (gaps <= found.errors + 1e-12).all()
    assert found.errors.max() > 0


def test_multiple_eigenvalues_are_found_as_often_as_they_occur():
    A = np.diag([0.5, 0.5, 0.5, 2.0, 2.0, 1.0])
    found = ims.diagnostics.spectrum(linear(A), np.zeros(6))
    assert found.exact
    np.testing.assert_allclose(np.sort(found.values.real), [-1, -1, 0, 0.5, 0.5, 0.5], atol=1e-12)


def test_a_singular_map_keeps_its_other_eigenvalues():
    found = ims.diagnostics.spectrum(linear(np.eye(2) - np.diag([0.0, 1.0])), np.zeros(2))
    np.testing.assert_allclose(np.sort(np.abs(found.values)), [0, 1], atol=1e-12)


def test_one_system_of_a_batch_must_be_chosen():
    scales = np.asarray([[0.1, 0.2], [0.3, 0.4]])[..., None]
    problem = ims.Problem(lambda x: x - scales * x, batch_ndim=2)
    for index in np.ndindex(2, 2):
        found = ims.diagnostics.spectrum(problem, np.ones((2, 2, 3)), system=index)
        np.testing.assert_allclose(found.values, scales[index][0], atol=1e-7)
    for wrong in (None, 1, (2, 0, 0)):
        with pytest.raises(ValueError, match="`system` must be an index of 2 numbers"):
            ims.diagnostics.spectrum(problem, np.ones((2, 2, 3)), system=wrong)
    with pytest.raises(ValueError, match="`system` must be None"):
        ims.diagnostics.spectrum(lambda x: x, np.ones(3), system=0)
    with pytest.raises(ValueError, match="`system` must lie in the batch"):
        ims.diagnostics.spectrum(problem, np.ones((2, 2, 3)), system=(0, 2))


def test_a_result_is_accepted_in_place_of_its_x():
    problem = ims.Problem(lambda x: x - 0.5 * np.sin(x))
    result = ims.root(problem, np.ones(3), stop=ims.NonlinearStop(atol=1e-12))
    np.testing.assert_allclose(ims.diagnostics.spectrum(problem, result).values, 0.5, atol=1e-6)


def test_the_contraction_of_a_linear_map(rng):
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    G = Q @ np.diag(np.linspace(-0.1, 0.8, 30)) @ Q.T
    found = ims.diagnostics.contraction(linear(np.eye(30) - G), np.zeros(30))
    assert found.radius == pytest.approx(0.8, rel=1e-10)
    assert found.steps_per_digit == pytest.approx(-1 / np.log10(0.8), rel=1e-8)


@given(seed=st.integers(0, 2**20), size=st.integers(1, 10), is_complex=st.booleans())
def test_the_norm_is_that_of_the_dense_matrix(seed, size, is_complex):
    A = matrix(seed, size, is_complex)
    found = ims.diagnostics.contraction(linear(A), np.zeros(size, dtype=A.dtype))
    assert found.norm == pytest.approx(np.linalg.norm(np.eye(size) - A, 2), rel=1e-8)


def test_the_norm_needs_adjoint_products():
    assert ims.diagnostics.contraction(lambda x: x - 0.5 * x, np.ones(3)).norm is None
    structured = ims.Problem(lambda x: x - 0.5 * x, structure=ims.BlockBanded(0, 0))
    assert ims.diagnostics.contraction(structured, np.ones(3)).norm == pytest.approx(0.5, abs=1e-6)


def test_a_map_that_expands_takes_for_ever_and_one_that_vanishes_no_time():
    assert ims.diagnostics.contraction(linear(-np.eye(2)), np.zeros(2)).steps_per_digit == np.inf
    assert ims.diagnostics.contraction(linear(np.eye(2)), np.zeros(2)).steps_per_digit == 0


def test_picard_takes_the_steps_that_contraction_says():
    problem = ims.Problem(lambda x: x - 0.7 * np.cos(x), fixed_point=True)
    result = ims.root(problem, np.zeros(4), method="picard", stop=ims.NonlinearStop(rtol=1e-12))
    measured = result.iterations / np.log10(result.initial_norm / result.residual_norm)
    assert ims.diagnostics.contraction(problem, result).steps_per_digit == pytest.approx(measured, rel=0.05)


def test_the_arguments_are_checked():
    with pytest.raises(ValueError, match="`vectors` must be at least 1"):
        ims.diagnostics.spectrum(lambda x: x, np.ones(3), vectors=0)
    with pytest.raises(ValueError, match="at least one unknown"):
        ims.diagnostics.spectrum(lambda x: x, np.ones(0))


def test_what_is_found_reads_as_one_short_line():
    problem = ims.Problem(lambda x: x - 0.3 * np.roll(x, 1), jvp=lambda x, v: v - 0.3 * np.roll(v, 1))
    assert str(ims.diagnostics.spectrum(problem, np.ones(4))) == "<Spectrum of I - J: 4 eigenvalues, radius 0.3>"
    expected = "Contraction(radius=0.3, norm=None, steps_per_digit=1.91)"
    assert repr(ims.diagnostics.contraction(problem, np.ones(4))) == expected
    assert repr(ims.diagnostics.condition(problem, np.ones(4))).startswith("Condition(number=1.8")
    assert len(repr(ims.diagnostics.condition(problem, np.ones(4)))) < 80


def test_an_error_names_the_function_that_was_called():
    for function in (ims.diagnostics.spectrum, ims.diagnostics.contraction):
        with pytest.raises(ValueError, match=f"{function.__name__}: a product with J is not finite"):
            function(lambda x: x * np.nan, np.ones(2))
