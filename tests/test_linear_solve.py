"""The public call: what it accepts, what it returns, what it refuses. Properties are in krylov/test_properties.py."""

import array_api_strict
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import implicitsolve as ims
from implicitsolve import GMRES, LinearOperator, LinearResult, LinearStop, Status
from implicitsolve._arrays.host import to_host


def system(rng: np.random.Generator, n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((n, n)) + 2 * n**0.5 * np.eye(n), rng.standard_normal(n)


@pytest.mark.parametrize(
    "form",
    [
        lambda A: A,
        lambda A: A.tolist(),
        sp.csr_array,
        sp.coo_matrix,
        spla.aslinearoperator,
        ims.aslinearoperator,
        lambda A: LinearOperator(lambda v: A @ v, in_shape=len(A)),
    ],
    ids=["array", "list", "csr", "coo matrix", "scipy operator", "ours", "function"],
)
def test_forms_of_a(rng, form):
    A, b = system(rng)
    result = ims.linear_solve(form(A), b, stop=LinearStop(rtol=1e-12))
    assert isinstance(result, LinearResult)
    np.testing.assert_allclose(result.x, np.linalg.solve(A, b), rtol=1e-10)


@pytest.mark.parametrize(
    "form", [list, tuple, lambda b: b.astype(np.float32), lambda b: b], ids=["list", "tuple", "f4", "f8"]
)
def test_forms_of_b(rng, form):
    A, b = system(rng)
    assert ims.linear_solve(A, form(b)).success


@pytest.mark.parametrize(
    ("A", "b", "expected"),
    [
        (np.float64, np.float64, np.float64),
        (np.float32, np.float32, np.float32),
        (np.float64, np.float32, np.float32),
        (np.float32, np.float64, np.float64),
        (np.complex128, np.float64, np.complex128),
        (np.complex64, np.float32, np.complex64),
        (np.float64, np.complex128, np.complex128),
        (np.float64, np.int64, np.float64),
        (np.int64, np.float64, np.float64),
        (np.int64, np.bool_, np.float64),
        (np.float16, np.float16, np.float32),
    ],
)
def test_x_has_the_precision_of_b_and_is_complex_where_anything_is(A, b, expected):
    result = ims.linear_solve(np.asarray([[4, 1], [0, 3]], dtype=A), np.asarray([1, 1], dtype=b))
    assert result.success
    assert result.x.dtype == expected
    np.testing.assert_allclose(result.x, [1 / 6, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize("name", ["M", "x0"])
def test_a_complex_preconditioner_or_start_makes_the_solve_complex(rng, name):
    A, b = system(rng)
    given = {"M": np.linalg.inv(A) * (1 + 1j), "x0": 1j * b}[name]
    result = ims.linear_solve(A, b, **{name: given})
    assert result.success
    assert result.x.dtype == np.complex128
    assert np.linalg.norm(A @ result.x - b) <= 1e-6 * np.linalg.norm(b)


def test_an_imaginary_part_is_never_dropped(rng):
    _, b = system(rng)
    for name, part in (("A", lambda v: (2 + 1j) * v), ("M", lambda v: 1j * v)):
        operators = {"A": 2 * np.eye(5), name: LinearOperator(part, in_shape=5)}
        with pytest.raises(TypeError, match=f"`{name}`.*complex"):
            ims.linear_solve(operators.pop("A"), b, **operators)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("event", [(6,), (2, 3), (1, 6, 1)], ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_states_of_any_shape_flat_or_not(xp, rng, batch, event, flat):
    A = rng.standard_normal((*batch, 6, 6)) + 6 * np.eye(6)
    b = rng.standard_normal((*batch, *((6,) if flat else event)))

    def matvec(v):
        product = A @ to_host(v).reshape(*batch, 6, 1)
        return xp.asarray(product.reshape(batch + event))

    operator = LinearOperator(matvec, in_shape=event, batch_shape=batch)
    M = LinearOperator(lambda v: v / 6, in_shape=6, batch_shape=batch)  # flat beside states
    result = ims.linear_solve(operator, xp.asarray(b), M=M, x0=xp.asarray(0.1 * b), stop=LinearStop(rtol=1e-10))
    assert np.all(result.success)
    assert result.x.shape == b.shape
    np.testing.assert_allclose(
        to_host(result.x).reshape(*batch, 6), np.linalg.solve(A, b.reshape(*batch, 6, 1))[..., 0]
    )
    for values in (result.status, result.residual_norm, result.iterations, result.success):
        assert np.shape(values) == batch
    assert isinstance(result.matvecs, int)


def test_a_system_without_batch_has_plain_numbers(rng):
    result = ims.linear_solve(*system(rng))
    assert result.status is Status.CONVERGED
    assert type(result.residual_norm) is float
    assert type(result.iterations) is int
    assert type(result.success) is bool


def test_x_lives_in_the_domain_and_b_in_the_range():
    transpose = LinearOperator(lambda v: 2 * v.T, in_shape=(2, 3), out_shape=(3, 2))
    b = np.arange(6.0).reshape(3, 2)
    result = ims.linear_solve(transpose, b, x0=np.ones((2, 3)), stop=LinearStop(rtol=1e-12))
    np.testing.assert_allclose(result.x, b.T / 2, atol=1e-12)
    flat = ims.linear_solve(transpose, b.ravel(), stop=LinearStop(rtol=1e-12))
    np.testing.assert_allclose(flat.x, (b.T / 2).ravel(), atol=1e-12)


def test_a_scalar_state():
    result = ims.linear_solve(LinearOperator(lambda v: 4 * v, in_shape=()), np.asarray(2.0))
    assert result.x.shape == ()
    assert result.x == 0.5


@pytest.mark.parametrize("x0", [False, True])
@pytest.mark.parametrize(("batch", "n"), [((), 0), ((0,), 3), ((2,), 0), ((2, 0), 4)], ids=str)
def test_nothing_to_solve(xp, batch, n, x0):
    b = xp.zeros((*batch, n))
    result = ims.linear_solve(xp.zeros((*batch, n, n)), b, x0=b if x0 else None)
    assert result.x.shape == b.shape
    assert np.all(result.success)
    assert np.shape(result.status) == batch
    result.raise_for_status()


def test_a_limit_of_zero_measures_the_start(rng):
    A, b = system(rng)
    x0 = np.ones(5)
    result = ims.linear_solve(A, b, x0=x0, stop=LinearStop(max_iterations=0))
    assert (result.status, result.iterations, result.matvecs) == (Status.ITERATION_LIMIT, 0, 1)
    np.testing.assert_array_equal(result.x, x0)
    assert result.residual_norm == pytest.approx(np.linalg.norm(b - A @ x0))


def test_the_default_is_lgmres_to_one_in_a_million(rng):
    A, b = system(rng, 40)
    default = ims.linear_solve(A, b)
    named = ims.linear_solve(A, b, method=ims.LGMRES(), stop=LinearStop(rtol=1e-6, atol=0, max_iterations=500))
    np.testing.assert_array_equal(default.x, named.x)


def test_failure_is_a_status_and_an_exception_only_on_demand():
    result = ims.linear_solve(np.zeros((2, 2)), np.ones(2))
    assert not result.success
    with pytest.raises(ims.NoConvergence, match="BREAKDOWN") as caught:
        result.raise_for_status()
    assert caught.value.result is result
    assert caught.value.x is result.x


A, B = np.eye(3), np.ones(3)
STRICT = array_api_strict.asarray

REFUSED = {
    "A is None": ((None, B), {}, TypeError, ["`A`", "NoneType"]),
    "A is a name": (("poisson", B), {}, TypeError, ["`A`", "str"]),
    "A is not square": ((np.ones((3, 4)), B), {}, ValueError, ["`A`", "square", "(3, 4)"]),
    "A is a vector": ((B, B), {}, ValueError, ["`A`", "two axes", "(3,)"]),
    "A is ragged": (([[1], [1, 2]], B), {}, ValueError, ["`A`"]),
    "A holds objects": ((A.astype(object), B), {}, TypeError, ["`A`", "object"]),
    "b is None": ((A, None), {}, TypeError, ["`b`", "numbers", "NoneType"]),
    "b is a string": ((A, "abc"), {}, TypeError, ["`b`", "<U3"]),
    "b is too short": ((A, B[:2]), {}, ValueError, ["`b`", "(3,)", "(2,)"]),
    "b is a column": ((A, B[:, None]), {}, ValueError, ["`b`", "(3,)", "(3, 1)"]),
    "b is a batch": ((A, np.ones((2, 3))), {}, ValueError, ["`b`", "(3,)", "(2, 3)"]),
    "A is a batch": ((np.ones((2, 3, 3)), B), {}, ValueError, ["`b`", "(2, 3)", "(3,)"]),
    "b is ragged": ((A, [[1], [1, 2]]), {}, ValueError, ["`b`"]),
    "b is masked": ((A, np.ma.masked_array(B, [0, 0, 1])), {}, TypeError, ["`b`", "masked"]),
    "x0 is too short": ((A, B), {"x0": B[:2]}, ValueError, ["`x0`", "(3,)", "(2,)"]),
    "x0 is a string": ((A, B), {"x0": "zero"}, TypeError, ["`x0`", "<U4"]),
    "M has another shape": ((A, B), {"M": np.eye(2)}, ValueError, ["`M`", "(3, 3)", "(2, 2)"]),
    "M has no batch": ((np.ones((2, 3, 3)), np.ones((2, 3))), {"M": A}, ValueError, ["`M`", "(2,)", "()"]),
    "M is a name": ((A, B), {"M": "jacobi"}, TypeError, ["`M`", "str"]),
    "method is a name": ((A, B), {"method": "gmres"}, TypeError, ["`method`", "gmres"]),
    "method is a class": ((A, B), {"method": GMRES}, TypeError, ["`method`", "GMRES"]),
    "stop is a number": ((A, B), {"stop": 1e-6}, TypeError, ["`stop`", "LinearStop", "float"]),
    "stop is of the other kind": ((A, B), {"stop": ims.NonlinearStop()}, TypeError, ["`stop`", "NonlinearStop"]),
    "unknown option": ((A, B), {"tol": 1e-6}, TypeError, ["tol"]),
    "a product is None": ((LinearOperator(lambda v: None, in_shape=3), B), {}, TypeError, ["`A`", "None"]),
    "a product is short": ((LinearOperator(lambda v: v[:2], in_shape=3), B), {}, ValueError, ["`A`", "3", "2"]),
    "M's product is short": ((A, B), {"M": LinearOperator(lambda v: v[:2], in_shape=3)}, ValueError, ["`M`", "3", "2"]),
}


@pytest.mark.parametrize(("arguments", "keywords", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_named_with_what_was_expected_and_what_came(arguments, keywords, error, words):
    with pytest.raises(error) as caught:
        ims.linear_solve(*arguments, **keywords)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [((STRICT(A), B), {}), ((A, STRICT(B)), {}), ((A, B), {"x0": STRICT(B)}), ((A, B), {"M": STRICT(A)})],
    ids=["A", "b", "x0", "M"],
)
def test_arrays_of_two_libraries_are_a_type_error(arguments, keywords):
    with pytest.raises(TypeError):
        ims.linear_solve(*arguments, **keywords)


def test_nothing_is_multiplied_before_the_arguments_are_checked():
    calls = []
    operator = LinearOperator(lambda v: calls.append(None), in_shape=3)
    for keywords in ({"x0": np.ones(4)}, {"M": np.eye(4)}, {"method": "gmres"}, {"stop": 3}):
        with pytest.raises((TypeError, ValueError)):
            ims.linear_solve(operator, B, **keywords)
    assert not calls
