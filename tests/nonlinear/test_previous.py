"""`root(previous=...)`: later solves begin with the structure, the factors and the Krylov spaces of earlier ones."""

import copy
import io
import logging
import pickle

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from benchmarks.sparse_problems import planes

SIZE = 24
STOP = ims.NonlinearStop(rtol=1e-8)


def step_from(old):
    """One implicit step of the Allen-Cahn equation."""
    return lambda u: u - old - 2.4 * planes.insulated(u) - 0.5 * (u - u * u * u)


def bump(n=SIZE):
    x = np.linspace(0.0, 1.0, n)
    return np.tanh(20 * (0.3 - np.hypot(x[:, None] - 0.5, x - 0.4)))


def march(steps, *, previous, make=step_from, start=None, **options):
    """Results of time steps; with `previous` each is given the one before."""
    u, results = bump() if start is None else start, [None]
    for _ in range(steps):
        results.append(ims.root(make(u), u, previous=results[-1] if previous else None, stop=STOP, **options))
        assert np.all(results[-1].success)
        u = results[-1].x
    return results[1:]


def residuals(results):
    return [result.counts.residuals for result in results]


def test_later_steps_neither_detect_nor_assemble():
    plain, chain = march(6, previous=False), march(6, previous=True)
    assert np.abs(plain[-1].x - chain[-1].x).max() < 1e-6
    assert chain[0].detection.how == "diagonals"
    assert {result.detection.how for result in chain[1:]} == {"previous"}
    assert all(result.detection.evaluations == 0 for result in chain[1:])
    assert max(residuals(chain)[2:]) <= 0.7 * min(residuals(plain))
    assert not any(step.factorized.any() for result in chain[2:] for step in result.steps)


@pytest.mark.parametrize(
    "strip",
    [copy.copy, lambda r: pickle.loads(pickle.dumps(r)), lambda r: r.without_memory()],
    ids=["copy", "pickle", "on request"],
)
def test_copies_keep_no_factors_but_say_what_was_found(strip):
    *_, last = march(2, previous=True)
    light = strip(last)
    assert light._memory is None
    assert str(light.detection) == str(last.detection)
    assert ims.root(step_from(last.x), last.x, previous=light, stop=STOP).success


def test_factors_are_kept_only_by_solves_that_were_given_a_previous_one():
    first, second = march(2, previous=True)
    assert first._memory.inverse is None
    assert second._memory.inverse is not None


def test_useless_factors_cost_one_evaluation():
    *_, last = march(2, previous=True)

    def other(u):
        return 3 * u**3 + 40 * u - planes.neighbors(u) + 1

    declared = ims.SparseNewton(structure=ims.Grid(shape=(SIZE, SIZE)))
    fresh = ims.root(other, last.x, previous=last.without_memory(), method=declared)
    result = ims.root(other, last.x, previous=last)
    assert result.success
    assert residuals([result])[0] <= residuals([fresh])[0] + 2


def test_jac_was_evaluated_although_earlier_factors_served():
    D = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(80, 80)).tocsc()

    def make(old):
        def jac(u):
            return scipy.sparse.eye_array(80) - D - scipy.sparse.diags_array(0.05 - 0.15 * u**2)

        return ims.Problem(lambda u: u - old - D @ u - 0.05 * (u - u**3), jac=jac)

    chain = march(6, previous=True, make=make, start=np.sin(np.arange(80.0)))
    assert [result.counts.linearizations for result in chain] == [1, 1, 0, 0, 0, 0]


def test_a_dense_jacobian_is_not_searched_again():
    def mean(u):
        return 0.1 * u - np.cos(u).mean()

    first = ims.root(mean, np.linspace(0.0, 1.0, 80))
    second = ims.root(mean, np.linspace(0.1, 1.0, 80), previous=first)
    assert first.detection.how == second.detection.how == "dense"
    assert (first.detection.evaluations, second.detection.evaluations) == (2, 0)


def test_block_newton_keeps_its_factors():
    def make(old):
        return ims.Problem(
            lambda u: 3 * u - np.pad(u, 1)[2:] - np.pad(u, 1)[:-2] + 0.3 * u**3 - old, structure=ims.BlockBanded(1, 1)
        )

    chain = march(4, previous=True, make=make, start=np.sin(np.arange(200.0)), method="block-newton")
    assert not any(step.factorized.any() for result in chain[2:] for step in result.steps)


@pytest.mark.parametrize(
    ("problem", "x0", "match"),
    [
        (step_from(0.0), np.zeros((SIZE, SIZE + 1)), r"shape \(24, 25\).* got \(24, 24\)"),
        (step_from(0.0), np.zeros((SIZE, SIZE), np.float32), "float32.* got float64"),
        (ims.Problem(step_from(0.0), batch_ndim=1), np.zeros((SIZE, SIZE)), r"batch shape \(24,\)"),
        (ims.Problem(step_from(0.0), structure=ims.Sparse(np.eye(SIZE**2))), np.zeros((SIZE, SIZE)), "structure"),
    ],
)
def test_a_result_of_another_problem_raises(problem, x0, match):
    declared = ims.Problem(step_from(0.0), structure=ims.Grid(shape=(SIZE, SIZE)))
    last = ims.root(declared, bump())
    with pytest.raises(ValueError, match=match):
        ims.root(problem, x0, previous=last)
    with pytest.raises(TypeError, match="previous"):
        ims.root(declared, bump(), previous=last.x)


def test_the_sparsity_is_shown_wherever_a_solve_is_shown(caplog):
    stream, logger = io.StringIO(), logging.getLogger("sparsity")
    monitor = ims.monitor.combine(ims.monitor.table(stream), ims.monitor.log_to(logger))
    with caplog.at_level(logging.INFO, "sparsity"):
        _, output = ims.newton_krylov(step_from(bump()), bump(), verbose=False, full_output=True)
        result = ims.root(step_from(bump()), bump(), monitor=monitor)
    text = str(result.detection)
    assert text == str(output.detection)
    assert text.startswith("2784 entries, at most 5 in a row")
    assert text.endswith("colors, by diagonals in 12 evaluations")
    shown = result.summary(), str(ims.diagnostics.explain(result)).replace("\n", " "), stream.getvalue(), caplog.text
    assert all(text in each for each in shown)
    assert result.detection.values is None


def test_the_drop_in_takes_what_it_returned():
    u = bump()
    x, first = ims.newton_krylov(step_from(u), u, full_output=True)
    _, second = ims.newton_krylov(step_from(x), x, full_output=True, previous=first)
    assert second.detection.how == "previous"
    assert second.nfev < first.nfev - first.detection.evaluations + 8


def test_a_single_entry_that_a_pattern_of_previous_misses_is_found():
    """A thousandth of the rows may differ at a kink, but not where a pattern is taken over: a valve is one entry."""
    n, row, column = 2000, 700, 1500

    def F(x, link):
        p = np.pad(x, 1)
        f = 3 * x - p[2:] - p[:-2] + 0.1 * x**3 - 1
        f[row] += link * (2 * x[column] ** 3 - x[row])
        return f

    first = ims.root(lambda x: F(x, 0.0), np.zeros(n))
    fresh = ims.root(lambda x: F(x, 1.0), first.x)
    after = ims.root(lambda x: F(x, 1.0), first.x, previous=first)
    assert after.success
    structure = after.detection.structure
    assert column in structure.columns[structure.rows == row]
    assert after.counts.residuals <= fresh.counts.residuals
    np.testing.assert_allclose(after.x, fresh.x, rtol=1e-6)


@pytest.mark.parametrize("solves", [50, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("way", "most"), [("nothing", 0.5), ("pattern", 1.0), ("jac", 1.2)])
def test_a_chain_with_a_valve_never_fails_and_costs_no_more_than_single_solves(way, most, solves):
    """Loads of a network change in each solve, and now and then which unknowns an equation has."""
    rng, n = np.random.default_rng(0), 80
    a = np.arange(1, n)
    b = np.array([rng.integers(max(0, i - 6), i) for i in a])
    k, base = 10 ** rng.uniform(0, 2, n - 1), rng.uniform(0, 0.02, n)
    pipes = np.arange(n, 2 * n - 1)

    def step(t):
        is_shut = bool(t // 12 % 2)

        def F(x):
            h, q = x[:n], x[n:]
            balance = -base * (1 + 0.3 * np.sin(t / 10))
            np.add.at(balance, a, -q)
            np.add.at(balance, b, q)
            balance[0] = h[0] - 10
            loss = h[b] - h[a] - k * q * np.sqrt(q * q + 1e-4)
            if is_shut:
                loss[40] = h[b[40]] - h[a[40]] - 1e3 * q[40] - 0.1 * h[20]
            return np.append(balance, loss)

        def jac(x):
            q = x[n:]
            J = np.zeros((x.size, x.size))
            J[a, pipes], J[b, pipes], J[pipes, b], J[pipes, a] = -1, 1, 1, -1
            J[pipes, pipes] = -k * (2 * q * q + 1e-4) / np.sqrt(q * q + 1e-4)
            J[0] = np.eye(x.size)[0]
            if is_shut:
                J[n + 40, [n + 40, 20]] = -1e3, J[n + 40, 20] - 0.1
            return scipy.sparse.csc_array(J)

        if way == "pattern":
            valve = scipy.sparse.coo_array(([1.0], ([n + 40], [20])), shape=(2 * n - 1, 2 * n - 1))
            return ims.Problem(F, structure=ims.Sparse(abs(jac(np.ones(2 * n - 1))) + valve))
        return ims.Problem(F, jac=jac) if way == "jac" else F

    last = ims.root(step(0), np.append(np.full(n, 10.0), np.full(n - 1, 0.01)))
    alone = together = 0
    for t in range(1, solves):
        fresh = ims.root(step(t), last.x) if t % (solves // 16) == 0 else None
        last = ims.root(step(t), last.x, previous=last)
        assert last.success
        if fresh is not None:
            alone, together = alone + fresh.counts.residuals, together + last.counts.residuals
    assert together <= most * alone
