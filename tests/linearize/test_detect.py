"""Detection: the true pattern of random sparse functions, an honest answer for all others, few evaluations."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from benchmarks.sparse_problems import awkward, lines, networks, planes
from implicitsolve.linearize._detect import detect
from tests.helpers.kinked import membrane_over_a_hill


def sparse_function(pattern, seed=0):
    """A function whose row i depends on the columns of row i of a pattern, nonlinearly, computed row by row."""
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, pattern.shape) * pattern
    rows = [np.flatnonzero(row) for row in pattern]

    def residual(x):
        out = np.empty_like(x)
        for i, columns in enumerate(rows):
            out[:, i] = (weights[i, columns] * np.sin(x[:, columns] + 0.3 * x[:, columns] ** 2)).sum(axis=1)
        return out

    return residual


def found_pattern(detection):
    return detection.structure.to_scipy().toarray()


@settings(max_examples=40)
@given(
    n=st.integers(16, 90),
    offsets=st.sets(st.integers(-8, 8), min_size=1, max_size=5),
    wraps=st.booleans(),
    boundary=st.sampled_from(["none", "one-sided", "identity"]),
    systems=st.integers(1, 2),
)
@example(64, {2, 3}, False, "one-sided", 1)  # columns 1 and 2 of one color in the second search of row 0
@example(20, {-8, 0, 1, 4, 7}, False, "one-sided", 1)  # columns 11 and 17 of one color, moved by the same length
def test_diagonals_boundaries_and_rings(n, offsets, wraps, boundary, systems):
    pattern = np.zeros((n, n), dtype=bool)
    for offset in offsets:
        pattern |= np.eye(n, k=offset, dtype=bool)
        if wraps:
            pattern |= np.eye(n, k=offset - n, dtype=bool) | np.eye(n, k=offset + n, dtype=bool)
    if boundary != "none":
        pattern[[0, -1]] = False
        pattern[0, 0] = pattern[-1, -1] = True
    if boundary == "one-sided":
        pattern[0, 1:3] = pattern[-1, -3:-1] = True
    x = np.random.default_rng(1).normal(size=(systems, n))
    detection = detect(sparse_function(pattern), x)
    if detection.structure is None:
        assert detection.how == "dense"
        assert pattern.sum(axis=0).max() > 8
        return
    wrong = np.flatnonzero((found_pattern(detection) != pattern).any(axis=1))
    # An entry of a boundary row in another column of its color shows in J d, but for one direction d in a thousand.
    assert not wrong.size or (boundary == "one-sided" and set(wrong) <= {0, n - 1})


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(20, 120), entries=st.integers(1, 4))
def test_random_graphs(seed, n, entries):
    random = np.random.default_rng(seed)
    pattern = np.eye(n, dtype=bool)
    for _ in range(entries):
        pattern[np.arange(n), random.integers(0, n, n)] = True
    detection = detect(sparse_function(pattern), random.normal(size=(1, n)))
    if detection.structure is None:
        assert pattern.sum(axis=0).max() > 8
        return
    missing = pattern & ~found_pattern(detection)
    assert not missing[np.setdiff1d(np.arange(n), detection.full_rows)].any()


def flat(problem, seen=None):
    def residual(x):
        if seen is not None:
            seen.append(1)
        return np.stack([problem.residual(row.reshape(problem.x0.shape)).ravel() for row in x])

    return residual


@pytest.mark.parametrize(
    ("problem", "most"),
    [
        (planes.bratu(1, 1000), 12),
        (planes.bratu(2, 48), 16),
        (planes.bratu(3, 12), 24),
        (planes.brusselator(24), 24),
        (planes.convection_diffusion(31), 16),
        (planes.food_web(24), 22),
        (planes.driven_cavity(24), 110),
        (planes.permuted_bratu(1000), 150),
        (networks.power_network(500), 220),
    ],
    ids=str,
)
@pytest.mark.parametrize("hides_axes", [False, True])
def test_cost_and_entries(problem, most, hides_axes):
    seen, x = [], problem.x0.reshape(1, -1).copy()
    detection = detect(flat(problem, seen), x, shape=() if hides_axes else problem.x0.shape)
    assert detection.structure is not None
    assert detection.evaluations == len(seen) <= most
    d = np.random.default_rng(4).normal(size=x.size)
    x = x + 1e-3 * np.sin(np.arange(x.size))
    step = 1e-6 * d / np.abs(d).max()
    measured = (flat(problem)(x + step) - flat(problem)(x - step))[0] / 2
    bound = 0 * measured
    np.add.at(bound, detection.structure.indices, np.abs(step[detection.structure.columns] * detection.values[0]))
    predicted = detection.structure.to_scipy().astype(float)
    predicted.data = detection.values[0]
    off = np.abs(predicted @ step - measured) > 0.05 * bound + 1e-13
    assert np.count_nonzero(off) <= 0.01 * x.size  # kinks


@pytest.mark.parametrize(
    ("name", "residual", "reason", "most"),
    [
        ("mean", lambda x: 0.01 * x - np.cos(x).mean(axis=1, keepdims=True), "shifts", 8),
        ("random", lambda x: np.sin(x) @ np.random.default_rng(0).standard_normal((200, 200)), "dense", 4),
        ("near the identity", lambda x: x - np.cos(x).mean(axis=1, keepdims=True), "shifts", 8),
        ("fft", lambda x: x + 0.1 * np.fft.ifft(np.fft.fft(x) ** 2).real, "shifts", 8),
        ("not finite", lambda x: np.log(-1 - x * x), "not finite", 4),
    ],
)
def test_dense_functions_cost_few_evaluations(name, residual, reason, most):
    detection = detect(residual, np.ones((1, 200)))
    assert (detection.structure, detection.how) == (None, reason)
    assert detection.evaluations <= most
    assert "no sparsity used" in repr(detection)


def mean_field(u):
    """-laplace(u) in the plane with a source that depends on the mean of all unknowns."""
    p = np.pad(u, 1)
    neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    return (4 * u - neighbors) * u.size - 3 * np.exp(u) * (1 + np.mean(u**2))


@pytest.mark.parametrize("systems", [1, 2])
def test_large_entries_of_a_full_jacobian(systems):
    shape = 24, 24
    flat = lambda x: np.stack([mean_field(row.reshape(shape)).ravel() for row in x])  # noqa: E731
    found = detect(flat, np.ones((systems, 576)) * [[1.0], [0.3]][:systems], shape=shape)
    assert found.how == "full"
    assert found.structure is None
    assert found.evaluations <= 8
    expected = ims.Grid(shape=shape).sparse.to_scipy().toarray() != 0
    assert ((found.large.to_scipy().toarray() != 0) == expected).all()
    assert "precondition" in str(found)


def test_large_entries_that_do_not_lie_on_diagonals_are_no_pattern():
    order = np.random.default_rng(0).permutation(400)

    def residual(x):
        ends = np.diff(x[:, order], n=2, prepend=0.0, append=0.0)
        return ends[:, np.argsort(order)] + 1e-6 * x.mean(axis=1, keepdims=True) ** 2

    found = detect(residual, np.ones((1, 400)))
    assert (found.how, found.structure, found.large) == ("dense", None, None)


def test_random_residual_is_not_believed():
    random = np.random.default_rng(0)
    detection = detect(lambda x: x + 1e-3 * random.normal(size=x.shape), np.ones((1, 200)))
    assert detection.structure is None
    assert detection.evaluations <= 4


def test_budget_is_kept():
    problem = planes.permuted_bratu(600)
    for budget in (0, 1, 5, 25):
        seen = []
        detection = detect(flat(problem, seen), problem.x0[None].copy(), budget=budget)
        assert (detection.structure, detection.how) == (None, "budget")
        assert len(seen) == detection.evaluations <= budget


def test_full_row_and_column_of_a_network():
    line = planes.bratu(1, 400)

    def residual(x):
        out = np.empty_like(x)
        for row, result in zip(x, out):
            result[:-1] = line.residual(row[:-1]) + row[-1] ** 2
            result[-1] = (row[:-1] ** 2).mean() - row[-1]
        return out

    x = np.random.default_rng(0).normal(size=(1, 401))
    detection = detect(residual, x)
    assert detection.full_rows.tolist() == [400]
    assert detection.structure.nnz >= 3 * 400 - 2 + 400
    assert detection.evaluations < 25


@pytest.mark.parametrize("F", [lambda x: np.floor(x) + 0.5, np.ones_like], ids=["steps", "constant"])
def test_a_residual_that_no_unknown_changes_ends_the_search_and_the_solve(F):
    """A pattern without entries could not be reshaped: ValueError from `root`."""
    result = ims.root(F, np.linspace(0.1, 0.9, 30))
    assert not result.success


@pytest.mark.parametrize("power", [-600, 530])
def test_squares_of_very_small_or_large_unknowns_left_the_range(power):
    def chain(v):
        p = np.pad(v, 1)
        return 2 * v - p[2:] - p[:-2] + 0.01 * v**3 - 0.3

    unit, x0 = 2.0**power, np.linspace(1, 2, 200)
    plain, scaled = ims.root(chain, x0), ims.root(lambda u: chain(u / unit), x0 * unit)
    assert scaled.counts == plain.counts
    np.testing.assert_allclose(scaled.x / unit, plain.x, rtol=1e-15)  # beyond the range of squares updates round


def test_rows_with_a_jump_between_the_points_do_not_hide_the_pattern():
    """The Bernoulli function of drift_diffusion jumps at 0: four of 399 rows were "wrong", for 1,889 evaluations."""
    problem = lines.drift_diffusion(133)
    result = ims.root(problem.residual, problem.x0)
    assert result.detection.structure.nnz == 2517
    assert result.counts.residuals <= 60


@pytest.mark.parametrize("rows", [[200], [7, 90, 313, 350]])
def test_rows_with_a_missing_entry_are_not_taken_for_jumps(rows):
    def residual(u):
        p, hidden = np.pad(u, 1), np.zeros_like(u)
        hidden[rows] = u[np.array(rows) - 5]
        return 2 * u - p[2:] - p[:-2] + 0.01 * u**3 - 0.3 + hidden

    found = ims.detect_structure(residual, np.linspace(1.0, 2.0, 400))
    assert found.structure is None or found.structure.nnz == 3 * 400 - 2 + len(rows)


@pytest.mark.slow
def test_slivers_of_a_mesh_do_not_hide_the_pattern():
    """Three of 16,384 rows were misread from sums over groups, and the whole pattern was given up."""
    problem = awkward.delaunay(128)
    found = ims.detect_structure(problem.residual, problem.x0, budget=1000)
    assert found.how == "bisection"
    assert found.structure.nnz <= 7.0 * problem.size


@pytest.mark.parametrize("problem", [lines.drift_diffusion(3000), *map(membrane_over_a_hill, (60, 100))])
def test_kinks_in_many_rows_are_no_contradiction(problem):
    """F is constant where neighbors differ by less than 1e-5, or its entries are hidden at the edge of an obstacle."""
    F, x0 = problem if isinstance(problem, tuple) else (problem.residual, problem.x0)
    assert ims.detect_structure(F, x0, budget=40).structure is not None


def test_fields_without_order_are_found_at_rest():
    """The cavity at rest, whose unknowns have no order, was given up after 500 evaluations."""
    problem = planes.driven_cavity(16)
    order = np.random.default_rng(0).permutation(problem.x0.size)

    def F(y):
        x = np.empty_like(y)
        x[order] = y
        return problem.residual(x.reshape(problem.x0.shape)).ravel()[order]

    found = ims.detect_structure(F, problem.x0.ravel()[order])
    assert found.structure is not None
    assert found.evaluations <= 130


def tree(n, random):
    """Edges from each node to one of the six before it."""
    return np.array([(i, int(random.integers(max(0, i - 6), i))) for i in range(1, n)]).T


def test_entries_as_small_as_rounding_do_not_contradict_the_sums():
    """Demands that hardly depend on the head changed in their last bits: 16 of 27 steps of a water network failed."""
    joints, random = 120, np.random.default_rng(0)
    a, b = tree(joints, random)
    k, demand = 10 ** random.uniform(1, 4, a.size), random.uniform(1e-4, 1e-3, joints)

    def F(x):
        h, q, d = x[:joints], x[joints:-joints], x[-joints:]
        balance = np.bincount(b, q, joints) - np.bincount(a, q, joints) - d
        balance[0] = h[0] - 100
        flow = h[a] - h[b] - k * q * np.abs(q) ** 0.852 - 1e-4 * q
        return np.concatenate([balance, flow, d - demand * (1 + 1e-11 * (h - 20))])

    result = ims.root(F, np.concatenate([np.full(joints, 50.0), np.full(a.size, 0.01), demand]))
    assert result.success
    assert result.counts.residuals <= 200


def test_small_entries_between_full_columns_take_no_halving():
    """Hubs of a power grid hid them from each other: 886 evaluations here, 1,511 on a grid of 9,241 buses."""
    n, hubs, ends, random = 3000, 20, 60, np.random.default_rng(0)
    a, b = tree(n, random)
    centers = random.choice(n, hubs, replace=False)
    c, d = np.repeat(centers, ends), random.choice(n, hubs * ends)
    e, f = centers[np.triu_indices(hubs, 1)[0]], centers[np.triu_indices(hubs, 1)[1]]
    weights = np.concatenate([np.ones(n - 1), random.uniform(0.5, 2, c.size), np.full(e.size, 1e-6)])
    W = scipy.sparse.coo_array((weights, (np.concatenate([a, c, e]), np.concatenate([b, d, f]))), (n, n)).tocsr()
    W = (W + W.T).tocsr()
    diagonal = 2 * W.sum(axis=1)
    found = ims.detect_structure(lambda x: diagonal * x + x**3 - W @ x - 1, np.zeros(n), budget=1000)
    assert found.structure is not None
    assert found.evaluations <= 350


def test_a_mean_beside_full_columns_shows_by_few_groups():
    """Its row was halved down to single columns: 575 evaluations, and more than are allowed for 50,000 unknowns."""
    n = 1000
    wave = np.cos(2 * np.pi * np.arange(n) / n)

    def bordered(v):
        u, (a, b, c) = v[:n], v[n:]
        inner = np.roll(u, 1) - 2 * u + np.roll(u, -1) - 0.01 * (u**3 - a * u) + b * wave - c
        return np.concatenate([inner, [u.mean() - 0.3, (u * wave).mean() - 0.2, a - 1 - 0.1 * u[0]]])

    found = ims.detect_structure(bordered, np.concatenate([0.3 + 0.1 * wave, [1.0, 0.0, 0.0]]), budget=3000)
    assert found.full_rows.tolist() == [n, n + 1]
    assert found.evaluations <= 250


def test_entries_of_a_ten_thousandth_of_their_row_were_missed():
    rng, n = np.random.default_rng(1), 400
    A, weak = (scipy.sparse.random_array((n, n), density=d / n, rng=rng, format="csr") for d in (5, 1))
    weak.data[:] = 4e-4

    def F(x):
        return 4.0 * x + x**3 + A @ np.tanh(x) + weak @ np.sin(x) - 1.0

    is_found = found_pattern(ims.detect_structure(ims.Problem(F), np.zeros(n)))[weak.nonzero()]
    assert np.count_nonzero(~is_found) <= 0.01 * n
