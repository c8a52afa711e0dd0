"""Lagged preconditioners: when they are built and rebuilt, for which systems, and what they save."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import (
    BlockBanded,
    BlockLU,
    CyclicReduction,
    Lagged,
    NewtonKrylov,
    NonlinearStop,
    Problem,
    precondition,
    root,
)
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.precondition._lagged import lagged
from tests.helpers.lines import bratu

TRIDIAGONAL = BlockBanded(1, 1)


class Spy:
    """A preconditioner that keeps what it was built from."""

    kind = "preconditioner"

    def __init__(self):
        self.settings, self.built = BlockLU(), []

    def build(self, A):
        self.built.append(A)
        return self.settings.factor(A)


def state(systems=1, eager=True, spy=None, n=10):
    problem = Problem(bratu, structure=TRIDIAGONAL, batch_ndim=1)
    x = np.full((systems, n), 0.5)
    evaluator = Evaluator(problem, x)
    kept = lagged(Lagged(preconditioner=spy or Spy(), eager=eager), evaluator, systems)
    return kept, evaluator, x, evaluator.residual(x)


def test_built_at_once_and_then_kept_while_products_do_not_rise():
    spy = Spy()
    kept, *point = state(spy=spy)
    for _ in range(5):
        M = kept.operator(*point)
        assert M is not None
        kept.count(np.asarray([4]))
    assert len(spy.built) == 1


def test_rebuilt_when_the_products_beyond_the_first_solve_reach_an_assembly():
    """An assembly takes 3 products here: 4, then 5, 5, 5 sum up to 3 more."""
    spy = Spy()
    kept, *point = state(spy=spy)
    for iterations in (4, 5, 5, 5):
        kept.operator(*point)
        assert len(spy.built) == 1
        kept.count(np.asarray([iterations]))
    kept.operator(*point)
    assert len(spy.built) == 2
    kept.count(np.asarray([9]))  # the new usual number
    kept.operator(*point)
    kept.count(np.asarray([10]))
    kept.operator(*point)
    assert len(spy.built) == 2


def test_not_eager_waits_until_products_have_cost_an_assembly():
    spy = Spy()
    kept, *point = state(eager=False, spy=spy)
    for iterations in (1, 1, 1):
        assert kept.operator(*point) is None
        kept.count(np.asarray([iterations]))
    assert kept.operator(*point) is not None
    assert len(spy.built) == 1


def test_each_system_has_its_own_rule():
    spy = Spy()
    kept, *point = state(systems=3, spy=spy)
    kept.operator(*point)
    assert spy.built[-1].batch_shape == (3,)
    kept.count(np.asarray([2, 2, 2]))
    kept.operator(*point)
    kept.count(np.asarray([2, 9, 2]))
    kept.operator(*point)
    assert [A.batch_shape for A in spy.built] == [(3,), (1,)]
    kept.count(np.asarray([2, 2, 9]))
    kept = kept.take(np.asarray([1, 2]))
    evaluator, x, F = point
    rows = np.asarray([1, 2])
    kept.operator(evaluator.take(rows, x), x[rows], F[rows])
    assert [A.batch_shape for A in spy.built] == [(3,), (1,), (1,)]


def test_the_operator_is_the_inverse_of_each_system_s_own_jacobian():
    kept, evaluator, x, F = state(systems=3, n=6)
    x = x * np.asarray([[1.0], [2.0], [3.0]])
    F = evaluator.residual(x)
    M = kept.operator(evaluator, x, F)
    v = np.random.default_rng(0).normal(size=(3, 6))
    J = np.eye(6, k=1) + np.eye(6, k=-1) - 2 * np.eye(6) + np.eye(6) * (3 * np.exp(x) / 49)[:, None, :]
    np.testing.assert_allclose(M.matvec(v), np.linalg.solve(J, v[..., None])[..., 0], rtol=1e-3)
    for rows in ([2], [0, 2], [2, 0]):
        np.testing.assert_array_equal(M.take(np.asarray(rows)).matvec(v[rows]), M.matvec(v)[rows])


def test_a_neighbour_that_rebuilds_changes_nothing():
    kept, evaluator, x, F = state(systems=2)
    before = kept.operator(evaluator, x, F).matvec(F)
    kept.count(np.asarray([2, 2]))
    kept.operator(evaluator, x, F)
    kept.count(np.asarray([2, 20]))
    later = x.copy()
    later[1] += 0.5
    after = kept.operator(evaluator, later, F).matvec(F)
    np.testing.assert_array_equal(after[0], before[0])
    assert np.abs(after[1] - before[1]).max() > 0


def test_a_start_at_zero_in_small_units():
    """The length of x is not known at zero; J must be right nevertheless."""
    unit = 1e-8

    def F(y):
        with np.errstate(over="ignore"):
            return bratu(y / unit)

    spy = Spy()
    problem = Problem(F, structure=TRIDIAGONAL)
    result = root(problem, np.zeros(30), method=NewtonKrylov(preconditioner=Lagged(preconditioner=spy)))
    assert result.success
    entry = spy.built[0].blocks[0, 10, 1, 0, 0] * unit
    assert entry == pytest.approx(-2 + 3 / 31**2, rel=1e-2)
    assert result.counts.residuals < 60


SETTINGS = [
    BlockLU(),
    CyclicReduction(),
    precondition.BlockJacobi(),
    precondition.BlockGaussSeidel(),
    precondition.BlockILU(),
    precondition.Neumann(),
    Lagged(preconditioner=BlockLU()),
    Lagged(preconditioner=BlockLU(), eager=False),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize("krylov", [None, ims.GMRES(), ims.BiCGSTAB()], ids=["own", "gmres", "bicgstab"])
def test_every_preconditioner(settings, krylov):
    problem = Problem(bratu, structure=TRIDIAGONAL)
    stop = NonlinearStop(rtol=1e-10)
    result = root(problem, np.zeros(30), method=NewtonKrylov(preconditioner=settings, krylov=krylov), stop=stop)
    assert result.success, result.message
    assert np.abs(bratu(result.x)).max() <= 1e-10 * np.abs(bratu(np.zeros(30))).max()


def test_one_build_serves_a_whole_mild_solve():
    spy = Spy()
    result = root(
        Problem(lambda u: bratu(u, 1.0), structure=TRIDIAGONAL),
        np.zeros(50),
        method=NewtonKrylov(preconditioner=Lagged(preconditioner=spy)),
    )
    assert result.success
    assert len(spy.built) == 1
    assert spy.built[0].structure == TRIDIAGONAL


def test_a_batch_in_which_one_system_is_harder():
    lam = np.asarray([0.1, 3.45])[:, None]
    spy = Spy()
    result = root(
        Problem(lambda u: bratu(u, lam), structure=TRIDIAGONAL, batch_ndim=1),
        np.zeros((2, 60)),
        method=NewtonKrylov(preconditioner=Lagged(preconditioner=spy)),
        stop=NonlinearStop(rtol=1e-12, atol=1e-15),
    )
    assert result.success.all()
    assert all(A.batch_shape == (1,) for A in spy.built[1:])


def test_a_structure_is_needed():
    with pytest.raises(
        ValueError, match="NewtonKrylov: this `preconditioner` needs a problem that declares its `structure`"
    ):
        root(Problem(bratu), np.zeros(10), method=NewtonKrylov(preconditioner=BlockLU()))


@pytest.mark.parametrize("wrong", [None, 3, BlockLU, np.eye(3)], ids=["None", "int", "class", "array"])
def test_a_preconditioner_must_be_buildable(wrong):
    with pytest.raises(TypeError, match="Lagged: `preconditioner` must be BlockLU"):
        Lagged(preconditioner=wrong)


@pytest.mark.parametrize("krylov", [None, ims.GMRES(restart=60)], ids=["growing", "gmres"])
def test_an_old_preconditioner_is_given_up_inside_a_solve(krylov):
    """Far from the root each J is e times the last, and at times nothing like it: 2698 residuals, then STAGNATED."""

    def troesch(u, mu=50):
        p = np.concatenate([[0.0], u, [1.0]])
        with np.errstate(over="ignore"):
            return np.diff(p, 2) - mu * np.sinh(mu * u) / (u.size + 1) ** 2

    problem = ims.Problem(troesch, structure=ims.BlockBanded(1, 1))
    method = ims.NewtonKrylov(krylov=krylov, preconditioner=ims.BlockLU())
    result = ims.root(problem, np.linspace(0, 1, 502)[1:-1], method=method, stop=NonlinearStop(rtol=1.5e-8))
    assert result.success
    assert result.counts.residuals < 300


def test_part_of_a_full_jacobian_is_declared_by_its_structure():
    def residual(u):
        return bratu(u) + np.mean(u**2, axis=-1, keepdims=True) / 201**2

    x0 = np.zeros(200)
    line, plain = Lagged(preconditioner=BlockLU(), structure=TRIDIAGONAL), NewtonKrylov()
    found = root(residual, x0, method=NewtonKrylov(preconditioner=line))
    assert found.success
    assert found.counts.residuals <= 0.3 * root(residual, x0, method=plain).counts.residuals
    sparse = Lagged(preconditioner=precondition.ILU(), structure=ims.Grid(shape=(200,)))
    assert root(residual, x0, method=NewtonKrylov(preconditioner=sparse)).success
    with pytest.raises(TypeError, match="Lagged: `structure` must be BlockBanded, Sparse or Grid, got str"):
        Lagged(preconditioner=BlockLU(), structure="detect")
    with pytest.raises(ValueError, match="structure` as BlockBanded"):
        root(
            residual,
            x0,
            method=NewtonKrylov(preconditioner=Lagged(preconditioner=BlockLU(), structure=ims.Grid(shape=(200,)))),
        )
