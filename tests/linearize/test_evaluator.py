"""The one place that calls the user's functions: shapes, copies, counts, subsets, and what a wrong answer is called."""

import array_api_strict
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from implicitsolve import LinearOperator, Problem, aslinearoperator
from implicitsolve._arrays.host import to_host
from implicitsolve._record import Counts
from implicitsolve.linearize._evaluator import Evaluator


def cubic(x):
    return x**3 - 1


def cubic_jvp(x, v):
    return 3 * x**2 * v


SHAPES = [((), (4,)), ((3,), (4,)), ((2, 3), (2, 2)), ((3,), ()), ((), ())]


def evaluator(problem: Problem, x) -> tuple[Evaluator, object]:
    made = Evaluator(problem, x)
    return made, made.flatten(x)


@pytest.mark.parametrize(("batch", "event"), SHAPES, ids=str)
def test_functions_see_their_own_shape_and_the_solver_sees_rows(xp, any_dtype, rng, batch, event):
    values = rng.standard_normal(batch + event)
    x = xp.asarray(values, dtype=any_dtype)
    seen = []

    def residual(x):
        seen.append(x.shape)
        return cubic(x)

    problem = Problem(residual, jvp=cubic_jvp, vjp=cubic_jvp, batch_ndim=len(batch))
    ev, flat = evaluator(problem, x)
    size = int(np.prod(batch))
    assert flat.shape == (size, int(np.prod(event)))
    F = ev.residual(flat)
    assert seen == [batch + event]
    assert F.shape == flat.shape
    assert F.dtype == any_dtype
    expected = cubic(to_host(x)).reshape(to_host(flat).shape)
    np.testing.assert_allclose(to_host(F), expected, rtol=1e-6)
    J = ev.jacobian(flat, F)
    assert (J.batch_shape, J.in_shape) == ((size,), (int(np.prod(event)),))
    tolerance = 1e-5 if xp.finfo(any_dtype).bits == 32 else 1e-13
    derivative = 3 * to_host(flat) ** 2
    np.testing.assert_allclose(to_host(J.matvec(flat)), derivative * to_host(flat), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(to_host(J.rmatvec(flat)), derivative * to_host(flat), rtol=tolerance, atol=tolerance)
    assert ev.unflatten(F).shape == batch + event


JACOBIANS = {
    "matrix": lambda x: np.diag(3 * x**2),
    "sparse": lambda x: sp.diags_array(3 * x**2),
    "scipy operator": lambda x: spla.aslinearoperator(np.diag(3 * x**2)),
    "ours": lambda x: aslinearoperator(np.diag(3 * x**2)),
    "lists": lambda x: np.diag(3 * x**2).tolist(),
}


@pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
@pytest.mark.parametrize("way", ["jac", "linearize"])
def test_every_form_of_a_jacobian(rng, jacobian, way):
    x, v = rng.standard_normal(4), rng.standard_normal((1, 4))
    given = {"jac": jacobian} if way == "jac" else {"linearize": lambda x: (cubic(x), jacobian(x))}
    ev, flat = evaluator(Problem(cubic, **given), x)
    assert ev.has_exact_products
    J = ev.jacobian(flat, None)
    np.testing.assert_allclose(J.matvec(v), 3 * x**2 * v)
    np.testing.assert_allclose(J.rmatvec(v), 3 * x**2 * v)
    assert ev.tally.counts() == Counts(residuals=int(way == "linearize"), jvps=1, vjps=1, linearizations=1)


def test_the_best_that_the_problem_offers_is_used(rng):
    """`linearize` before `jac`, `jac` before `jvp`, `jvp` before differences."""
    asked = []

    def named(name, value):
        return lambda *arguments: (asked.append(name), value(*arguments))[1]

    functions = {
        "linearize": named("linearize", lambda x: (cubic(x), np.diag(3 * x**2))),
        "jac": named("jac", lambda x: np.diag(3 * x**2)),
        "jvp": named("jvp", cubic_jvp),
    }
    x = rng.standard_normal(3)
    for first in ("linearize", "jac", "jvp"):
        ev, flat = evaluator(Problem(named("residual", cubic), **functions), x)
        asked.clear()
        ev.jacobian(flat, None).matvec(flat)
        assert set(asked) == {first}
        del functions[first]
    ev, flat = evaluator(Problem(named("residual", cubic)), x)
    assert not ev.has_exact_products
    asked.clear()
    ev.jacobian(flat, cubic(flat)).matvec(flat)
    assert set(asked) == {"residual"}


def test_calls_are_counted(rng):
    x = rng.standard_normal((2, 3))
    ev, flat = evaluator(Problem(cubic, jvp=cubic_jvp, vjp=cubic_jvp, batch_ndim=1), x)
    F = ev.residual(flat)
    J = ev.jacobian(flat, F)
    for _ in range(3):
        J.matvec(flat)
    J.rmatvec(flat)
    part = ev.take(np.asarray([1]), flat)
    part.residual(flat[1:])
    J.take(np.asarray([0])).matvec(flat[:1])
    counts = ev.tally.counts()
    assert (counts.residuals, counts.jvps, counts.vjps) == (2, 4, 1)
    assert part.tally is ev.tally


def test_functions_that_write_into_their_arguments_do_no_harm(rng):
    x = rng.standard_normal((2, 3))

    def residual(x):
        F = cubic(x)
        x[...] = np.nan
        return F

    def product(x, v):
        w = cubic_jvp(x, v)
        x[...], v[...] = np.nan, np.nan
        return w

    ev, flat = evaluator(Problem(residual, jvp=product, vjp=product, batch_ndim=1), x)
    before, v = flat.copy(), np.ones((2, 3))
    F = ev.residual(flat)
    J = ev.jacobian(flat, F)
    for apply in (J.matvec, J.rmatvec):
        np.testing.assert_allclose(apply(v), 3 * before**2)
    np.testing.assert_array_equal(flat, before)
    np.testing.assert_array_equal(v, 1)
    np.testing.assert_array_equal(F, cubic(before))


@pytest.mark.parametrize("way", ["jvp", "jac", "linearize"])
def test_functions_that_reuse_one_buffer_do_no_harm(rng, way):
    x, buffer = rng.standard_normal(3), np.empty(3)

    def into_buffer(value):
        buffer[...] = value
        return buffer

    def operator(x):
        d = 3 * x.copy() ** 2
        return LinearOperator(lambda v: into_buffer(d * v), in_shape=3)

    given = {
        "jvp": lambda x, v: into_buffer(cubic_jvp(x, v)),
        "jac": operator,
        "linearize": lambda x: (into_buffer(cubic(x)), operator(x)),
    }
    ev, flat = evaluator(Problem(lambda x: into_buffer(cubic(x)), **{way: given[way]}), x)
    F, _ = ev.trial(flat)
    J = ev.jacobian(flat, F)
    first = J.matvec(np.ones((1, 3)))
    second = J.matvec(2 * np.ones((1, 3)))
    ev.residual(flat + 1)
    np.testing.assert_array_equal(F[0], cubic(x))
    np.testing.assert_allclose(second, 2 * first)
    np.testing.assert_allclose(first[0], 3 * x**2)


def two_ways(x):
    """The same batch with and without `take`; d tells the systems apart."""
    d = np.arange(1.0, 1 + len(x))[:, None]

    def problem(d, take):
        return Problem(
            lambda x: d * cubic(x),
            jvp=lambda x, v: d * cubic_jvp(x, v),
            vjp=lambda x, v: d * cubic_jvp(x, v),
            batch_ndim=1,
            take=(lambda indices: problem(d[indices], True)) if take else None,
        )

    return problem(d, True), problem(d, False)


@pytest.mark.parametrize("with_take", [True, False])
def test_a_subset_is_those_systems(rng, with_take):
    x = rng.standard_normal((5, 3))
    ev, flat = evaluator(two_ways(x)[not with_take], x)
    whole = ev.residual(flat)
    J = ev.jacobian(flat, whole)
    images = J.matvec(flat), J.rmatvec(flat)
    for indices in ([0], [4, 1], [3, 0, 2]):
        indices = np.asarray(indices)
        part = ev.take(indices, flat)
        np.testing.assert_allclose(part.residual(flat[indices]), whole[indices], rtol=1e-14)
        for K in (part.jacobian(flat[indices], whole[indices]), J.take(indices)):
            np.testing.assert_allclose(K.matvec(flat[indices]), images[0][indices], rtol=1e-14)
            np.testing.assert_allclose(K.rmatvec(flat[indices]), images[1][indices], rtol=1e-14)
        again = part.take(np.asarray([len(indices) - 1]), flat[indices])
        last = indices[-1:]
        np.testing.assert_allclose(again.residual(flat[last]), whole[last], rtol=1e-14)
        np.testing.assert_array_equal(again.rows, last)


def test_without_take_the_whole_batch_is_called_with_the_others_where_they_were(rng):
    x = rng.standard_normal((3, 2))
    seen = []
    ev, flat = evaluator(Problem(lambda x: (seen.append(x.copy()), cubic(x))[1], batch_ndim=1), x)
    part = ev.take(np.asarray([2]), flat)
    part.residual(flat[2:] + 1)
    np.testing.assert_array_equal(seen[0], np.concatenate([x[:2], x[2:] + 1]))


def noted_cubics():
    """A problem by its systems, and the systems that were taken."""
    asked = []

    def problem(indices):
        asked.append(list(indices))
        return Problem(cubic, batch_ndim=1, take=problem)

    return problem, asked


def test_the_problem_is_not_reduced_while_most_systems_run(rng):
    problem, asked = noted_cubics()
    ev, flat = evaluator(problem(range(8)), rng.standard_normal((8, 3)))
    seven = ev.take(np.arange(1, 8), flat)
    six = seven.take(np.arange(1, 7), flat[1:])
    np.testing.assert_array_equal(seven.residual(flat[1:]), ev.residual(flat)[1:])
    np.testing.assert_array_equal(six.residual(flat[2:]), ev.residual(flat)[2:])
    assert asked[1:] == [[2, 3, 4, 5, 6, 7]]  # 6 of 8, of the whole batch


def test_problems_of_systems_that_are_not_evaluated_are_not_taken(rng):
    problem, asked = noted_cubics()
    ev, flat = evaluator(problem(range(8)), rng.standard_normal((8, 3)))
    part = ev.take(np.asarray([6, 5, 1, 0]), flat).take(np.asarray([2, 0]), flat[:4])
    np.testing.assert_array_equal(part.residual(flat[[1, 6]]), ev.residual(flat)[[1, 6]])
    assert asked[1:] == [[1, 6]]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [(3, TypeError, ["`take`", "Problem", "int"]), (Problem(cubic), ValueError, ["`take`", "batch_ndim=1", "0"])],
    ids=["number", "no batch"],
)
def test_a_take_that_returns_something_else(rng, given, error, words):
    ev, flat = evaluator(Problem(cubic, batch_ndim=1, take=lambda indices: given), rng.standard_normal((3, 2)))
    with pytest.raises(error) as caught:
        ev.take(np.asarray([0]), flat).residual(flat[:1])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        lambda x: cubic(x).tolist(),
        lambda x: cubic(x).astype(np.float32),
        lambda x: cubic(x).reshape(-1),
        lambda x: np.asfortranarray(cubic(x)),
    ],
    ids=["list", "float32", "flat", "fortran"],
)
def test_what_can_only_mean_one_thing_is_accepted(rng, value):
    x = rng.standard_normal(4)
    ev, flat = evaluator(Problem(value), x)
    np.testing.assert_allclose(ev.residual(flat)[0], cubic(x), rtol=1e-6)


WRONG = {
    "row": (lambda x: cubic(x)[None, :], ValueError, ["residual", "(4,)", "(1, 4)"]),
    "column": (lambda x: cubic(x)[:, None], ValueError, ["residual", "(4,)", "(4, 1)"]),
    "None": (lambda x: None, TypeError, ["residual", "None", "(4,)"]),
    "too short": (lambda x: x[:3], ValueError, ["residual", "(4,)", "(3,)"]),
    "a number": (lambda x: x.sum(), ValueError, ["residual", "(4,)", "()"]),
    "a matrix": (lambda x: np.outer(x, x), ValueError, ["residual", "(4,)", "(4, 4)"]),
    "complex": (lambda x: x * 1j, TypeError, ["residual", "complex", "x0"]),
    "text": (lambda x: "F", TypeError, ["residual", "<U1"]),
    "objects": (lambda x: [None] * x.size, TypeError, ["residual", "NoneType"]),
    "another library": (lambda x: array_api_strict.asarray(x), TypeError, ["residual", "library", "array_api_strict"]),
    "masked": (lambda x: np.ma.masked_array(x), TypeError, ["residual", "masked"]),
    "ragged": (lambda x: [[1.0], [1.0, 2.0]], ValueError, ["residual", "shape"]),
}


@pytest.mark.parametrize(("function", "error", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_residual_is_named_with_what_was_expected(rng, function, error, words):
    ev, flat = evaluator(Problem(function), rng.standard_normal(4))
    with pytest.raises(error) as caught:
        ev.residual(flat)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["jvp", "vjp"])
def test_a_wrong_product_is_named(rng, name):
    problem = Problem(cubic, **{"jvp": cubic_jvp, name: lambda x, v: v[:3]})
    ev, flat = evaluator(problem, rng.standard_normal(4))
    J = ev.jacobian(flat, cubic(flat))
    with pytest.raises(ValueError, match=rf"`{name}`.*\(4,\).*\(3,\)"):
        (J.matvec if name == "jvp" else J.rmatvec)(flat)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"jac": lambda x: np.eye(3)}, ValueError, ["`jac`", "(4, 4)", "(3, 3)"]),
        ({"jac": lambda x: None}, TypeError, ["`jac`", "NoneType"]),
        ({"jac": lambda x: np.ones((2, 4, 4))}, ValueError, ["`jac`", "batch shape ()", "(2,)"]),
        ({"jac": lambda x: [scipy.sparse.eye_array(4)]}, TypeError, ["`jac`", "(4, 4)", "list of 1 sparse matrices"]),
        ({"linearize": lambda x: x}, TypeError, ["`linearize`", "pair", "ndarray"]),
        ({"linearize": lambda x: (x, x, x)}, TypeError, ["`linearize`", "pair"]),
        ({"linearize": lambda x: (x[:3], np.eye(4))}, ValueError, ["`linearize`", "(4,)", "(3,)"]),
        ({"linearize": lambda x: (x, np.eye(3))}, ValueError, ["`linearize`", "(4, 4)", "(3, 3)"]),
    ],
    ids=["shape", "None", "batch", "list", "no pair", "triple", "pair with F", "pair with J"],
)
def test_a_wrong_jacobian_is_named(rng, given, error, words):
    ev, flat = evaluator(Problem(cubic, **given), rng.standard_normal(4))
    with pytest.raises(error) as caught:
        ev.jacobian(flat, None)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_one_preconditioner_serves_every_system_and_a_batched_one_each_its_own(rng, batch):
    x, size = rng.standard_normal((*batch, 4)), int(np.prod(batch))
    ev, flat = evaluator(Problem(cubic, batch_ndim=len(batch)), x)
    one = rng.standard_normal((4, 4))
    M = ev.operator(one, "preconditioner")
    np.testing.assert_allclose(M.matvec(flat), flat @ one.T)
    np.testing.assert_allclose(M.take(np.asarray([size - 1])).matvec(flat[-1:]), flat[-1:] @ one.T)
    if batch:
        own = rng.standard_normal((*batch, 4, 4))
        expected = (own.reshape(-1, 4, 4) @ flat[..., None])[..., 0]
        np.testing.assert_allclose(ev.operator(own, "preconditioner").matvec(flat), expected)


@pytest.mark.parametrize(
    ("M", "error", "words"),
    [
        (np.eye(3), ValueError, ["`M`", "(4, 4)", "(3, 3)"]),
        (np.ones((5, 4, 4)), ValueError, ["`M`", "(2,)", "(5,)"]),
        ("ilu", TypeError, ["`M`", "str"]),
    ],
    ids=["shape", "batch", "name"],
)
def test_a_wrong_preconditioner_is_named(rng, M, error, words):
    ev, _ = evaluator(Problem(cubic, batch_ndim=1), rng.standard_normal((2, 4)))
    with pytest.raises(error) as caught:
        ev.operator(M, "M")
    for word in words:
        assert word in str(caught.value)
