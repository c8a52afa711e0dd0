"""The truncated inverse against its polynomial written out, alone, in Newton's place, and as a gradient."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import FullStep, LinearOperator, LinearStop, NewtonKrylov, NonlinearStop, Problem, TruncatedInverse
from implicitsolve.status import Status
from tests.adapters.layers import make
from tests.helpers.compare import host


def polynomial(A: Any, b: Any, order: int, damping: float = 1.0, M: Any = None) -> Any:
    """tau sum_i (I - tau M A)^i M b for one system, term by term."""
    M = np.eye(len(b)) if M is None else M
    term = total = damping * (M @ b)
    for _ in range(order):
        term = term - damping * (M @ (A @ term))
        total = total + term
    return total


def operator(A: Any, xp: Any = np, dtype: Any = None) -> tuple[LinearOperator, dict[str, int]]:
    """Matrices (B, N, N) as an operator that counts its products."""
    calls = {"matvec": 0, "rmatvec": 0}
    A = xp.asarray(A, dtype=xp.float64 if dtype is None else dtype)

    def counting(name, matrix):
        def product(v):
            calls[name] += 1
            return xp.matmul(matrix, v[..., None])[..., 0]

        return product

    matvec, rmatvec = counting("matvec", A), counting("rmatvec", xp.matrix_transpose(A))
    shape = tuple(A.shape[:-2])
    return LinearOperator(matvec, rmatvec, in_shape=A.shape[-1], batch_shape=shape, dtype=A.dtype), calls


@pytest.mark.parametrize("order", [0, 1, 2, 7])
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_it_is_the_polynomial(order, damping, xp, dtype, rng):
    A = np.eye(4) - 0.4 * rng.standard_normal((3, 4, 4)) / 2
    b = rng.standard_normal((3, 4))
    counted, calls = operator(A, xp, dtype)
    given = xp.asarray(b, dtype=dtype)
    result = ims.linear_solve(counted, given, method=TruncatedInverse(order=order, damping=damping))
    expected = np.stack([polynomial(*one, order, damping) for one in zip(A, b)])
    tolerance = 64 * float(xp.finfo(dtype).eps)
    assert result.x.dtype == dtype
    np.testing.assert_allclose(host(result.x), expected, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(host(given), host(xp.asarray(b, dtype=dtype)))
    norms = np.linalg.norm(b - np.einsum("bij,bj->bi", A, expected), axis=1)
    np.testing.assert_allclose(result.residual_norm, norms, atol=10 * tolerance)
    assert (result.status == Status.STOPPED).all()
    assert (result.iterations == order).all()
    assert calls == {"matvec": order + 1, "rmatvec": 0}
    assert result.matvecs == order + 1


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 6), st.sampled_from([1.0, 0.3]), st.booleans())
def test_the_polynomial_of_any_matrix(seed, n, order, damping, has_start):
    """Far from the identity as well, and from a start: the error of the start is multiplied by (I - tau A)^(n + 1)."""
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    start = rng.standard_normal(n) if has_start else None
    x = ims.linear_solve(A, b, x0=start, method=TruncatedInverse(order=order, damping=damping)).x
    expected = polynomial(A, b, order, damping)
    if start is not None:
        expected = start + polynomial(A, b - A @ start, order, damping)
    np.testing.assert_allclose(x, expected, rtol=1e-11, atol=1e-11 * max(1.0, np.abs(expected).max()))


def test_damping_converges_where_the_plain_series_does_not():
    """An eigenvalue of I - A at -3: tau < 1/2 brings I - tau A below one."""
    A, b = np.diag([4.0, 0.5]), np.ones(2)
    plain = ims.linear_solve(A, b, method=TruncatedInverse(order=60)).x
    damped = ims.linear_solve(A, b, method=TruncatedInverse(order=200, damping=0.3)).x
    assert np.abs(plain).max() > 1e20
    np.testing.assert_allclose(damped, [0.25, 2.0], rtol=1e-12)


def test_a_preconditioner_that_is_given(rng):
    """The polynomial of M A."""
    A = np.diag([2.0, 10.0, 50.0]) + 0.3 * rng.standard_normal((3, 3))
    M, b = np.diag(1 / np.diag(A)), rng.standard_normal(3)
    for order in (0, 1, 4):
        result = ims.linear_solve(A, b, M=M, method=TruncatedInverse(order=order, damping=0.8))
        np.testing.assert_allclose(result.x, polynomial(A, b, order, 0.8, M), rtol=1e-12)
        assert np.linalg.norm(b - A @ result.x) == pytest.approx(result.residual_norm, abs=1e-12)
    assert ims.linear_solve(A, b, M=M, method=TruncatedInverse(order=40)).success


def test_what_is_on_offer_is_left():
    A = LinearOperator(lambda v: 0.9 * v, in_shape=3, inverse=lambda: pytest.fail("not to be asked for"))
    result = ims.linear_solve(A, np.ones(3), method=TruncatedInverse(order=1))
    np.testing.assert_allclose(result.x, 1.1)
    assert not TruncatedInverse().may_transform


def test_what_the_rule_holds_for_has_converged(rng):
    A, b = np.stack([np.eye(3), 2 * np.eye(3), 0.9 * np.eye(3)]), rng.standard_normal((3, 3))
    result = ims.linear_solve(A, b, method=TruncatedInverse(order=3), stop=LinearStop(rtol=1e-3))
    assert result.status.tolist() == [Status.CONVERGED, Status.STOPPED, Status.CONVERGED]
    assert result.success.tolist() == [True, False, True]


@pytest.mark.parametrize("order", [0, 3])
def test_a_zero_right_hand_side(order):
    for start in (None, np.ones((2, 3))):
        method = TruncatedInverse(order=order)
        result = ims.linear_solve(np.stack([2 * np.eye(3)] * 2), np.zeros((2, 3)), x0=start, method=method)
        assert result.success.all()
        assert (result.x == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("order", [0, 2])
def test_numbers_that_are_not_finite_stay_in_their_system(bad, order):
    b = np.ones((3, 2))
    b[1, 0] = bad
    A = np.stack([0.5 * np.eye(2)] * 3)
    result = ims.linear_solve(A, b, method=TruncatedInverse(order=order))
    assert result.status.tolist() == [Status.STOPPED, Status.NONFINITE, Status.STOPPED]
    np.testing.assert_array_equal(result.x[0], np.full(2, 2 - 0.5**order))
    np.testing.assert_array_equal(result.x[2], result.x[0])


def test_a_series_that_overflows_is_reported():
    result = ims.linear_solve(-1e200 * np.eye(2), np.ones(2), method=TruncatedInverse(order=5))
    assert result.status == Status.NONFINITE


@pytest.mark.parametrize("limit", [0, 1, 2, 9])
def test_the_limit_of_iterations_cuts_the_polynomial(limit, rng):
    A, b = np.eye(3) - 0.3 * rng.standard_normal((3, 3)), rng.standard_normal(3)
    stop = LinearStop(max_iterations=limit)
    result = ims.linear_solve(A, b, method=TruncatedInverse(order=4), stop=stop)
    np.testing.assert_allclose(result.x, polynomial(A, b, min(4, limit)), rtol=1e-12)
    assert result.iterations == min(4, limit)


def test_without_confirmation_a_product_is_saved():
    counted, calls = operator(0.5 * np.eye(3)[None])
    outcome = TruncatedInverse(order=2).solve(
        counted, np.ones((1, 3)), target=np.full(1, 10.0), max_iterations=100, confirm=False
    )
    assert calls["matvec"] == 2
    np.testing.assert_array_equal(outcome.x, 1.75)
    assert outcome.status.tolist() == [Status.STOPPED]  # what was not measured has not converged
    assert outcome.residual_norm[0] == pytest.approx(0.25 * 3**0.5)  # that of a term fewer


def full(order: int, damping: float = 1.0) -> NewtonKrylov:
    krylov = TruncatedInverse(order=order, damping=damping)
    return NewtonKrylov(krylov=krylov, line_search=FullStep(), retry=False)


def iterates(problem: Problem, method: NewtonKrylov, count: int, x0: Any = None) -> list[Any]:
    seen: list[Any] = []
    stop = NonlinearStop(atol=0.0, rtol=0.0, max_iterations=count)
    result = ims.root(problem, x0, method=method, stop=stop, monitor=lambda step, x, F: seen.append(x))
    assert (result.counts.jvps, len(seen)) == (count * method.krylov.order, count + 1)  # type: ignore[union-attr]
    return seen


@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_order_0_is_picards_iteration(damping):
    case = make("implicit_gru", T=5, lengths=(5, 1, 4), scale=0.6)
    layer = case.layer()
    seen = iterates(layer, full(0, damping), 6, case.H)
    expected = case.H
    for x in seen:
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-14)
        expected = expected - damping * layer.residual(expected)
    stop = NonlinearStop(atol=1e-10, rtol=0.0, max_iterations=400)
    solved = ims.root(layer, case.H, method=full(0, damping), stop=stop)
    assert solved.success.all()
    assert (solved.krylov_iterations == 0).all()


@pytest.mark.parametrize("name", ["implicit_gru", "elman"])
def test_higher_orders_are_the_papers_iteration(name):
    """x - P_n(dG/dx) F(x), on all blocks: neither elimination, nor the causal inverse that J offers."""
    case = make(name, T=4, lengths=(4, 1, 3), scale=0.6)
    layer, n = case.layer(), 2
    expected = case.H
    for x in iterates(layer, full(n), 4, case.H):
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-13)
        J = type(case)(case.adapter, case.P, case.lengths, expected, case.weights).jacobian()
        step = polynomial(J, layer.residual(expected).ravel(), n)
        expected = expected - step.reshape(expected.shape)


@pytest.mark.parametrize("order", [0, 1, 4])
@pytest.mark.parametrize("damping", [1.0, 0.5, 0.1])
def test_the_phantom_gradient(order, damping, rng):
    """Geng et al. (2021), (8): tau sum_i (tau dG/dx + (1 - tau) I)^i, i = 0 ... n, between cotangent and dG/dtheta."""
    case = make("implicit_gru", T=3, lengths=None, B=2, scale=0.7)
    layer = case.layer()
    result = ims.root(layer, method="newton-krylov", stop=NonlinearStop(atol=1e-13, rtol=0.0))
    cotangent = rng.standard_normal(result.x.shape)
    D = np.eye(result.x.size) - type(case)(case.adapter, case.P, case.lengths, result.x, case.weights).jacobian()
    mixed, total, power = damping * D + (1 - damping) * np.eye(len(D)), np.zeros_like(D), np.eye(len(D))
    for _ in range(order + 1):
        total, power = total + damping * power, power @ mixed
    lam = (total.T @ cotangent.ravel()).reshape(cotangent.shape)
    back = ims.pull_back(layer, result, cotangent, method=TruncatedInverse(order=order, damping=damping))
    np.testing.assert_allclose(back.adjoint, lam, atol=1e-12)
    for name, value in layer.parameter_vjp(result.x, lam).items():
        np.testing.assert_allclose(back.gradients[name], -value, atol=1e-12)
    assert (back.status == Status.STOPPED).all()
    assert back.linear.matvecs == order + 1


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"order": -1}, ValueError, "`order` must be at least 0"),
    ({"order": 1.0}, TypeError, "`order` must be an integer"),
    ({"order": True}, TypeError, "`order` must be an integer"),
    ({"damping": 0.0}, ValueError, r"`damping` must be in \(0, 1\]"),
    ({"damping": 1.1}, ValueError, r"`damping` must be in \(0, 1\]"),
    ({"damping": np.nan}, ValueError, r"`damping` must be in \(0, 1\]"),
    ({"damping": "1"}, TypeError, "`damping` must be a real number"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), WRONG, ids=[str(wrong[0]) for wrong in WRONG])
def test_wrong_settings_are_named(arguments, error, words):
    with pytest.raises(error, match=f"TruncatedInverse: {words}"):
        TruncatedInverse(**arguments)
