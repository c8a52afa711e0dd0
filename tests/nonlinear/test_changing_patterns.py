"""Patterns that change with x, full rows, networks, and matrices that come with F."""

import numpy as np
import pytest
import scipy.sparse
import scipy.spatial

import implicitsolve as ims
from benchmarks.sparse_problems.branches import branched, measure


def shifted(x, k):
    """x at the place k farther on, 0 beyond the ends."""
    y = np.zeros_like(x)
    y[max(0, -k) : x.size - max(0, k)] = x[max(0, k) : x.size - max(0, -k)]
    return y


def upwind(u):
    left, right = shifted(u, -1), shifted(u, 1)
    wave = np.sin(2 * np.pi * np.linspace(0, 1, u.size))
    return np.where(u > 0, u * (u - left), u * (right - u)) + 0.1 * u - 0.1 * wave


@pytest.mark.parametrize("start", [1e-3, 0.5])
def test_other_branches_than_at_x0_are_found(start):
    """The entry on the other side hid in the color of one that is known: 1,041 evaluations, or STAGNATED."""
    result = ims.root(upwind, np.full(400, start))
    assert result.success
    assert result.counts.residuals <= 60


@pytest.mark.parametrize("seed", range(6))
def test_random_branches_vanishing_entries_and_one_sided_ends(seed):
    """Of 1,500 seeds six fail, where an entry of 1e-4 is not found, and 15 take more than 1.5 of the evaluations."""
    found = measure(branched(seed))
    assert found.success, found
    assert found.ratio <= 1.5, found
    assert found.distance <= 1e-6, found
    assert found.gradient <= 1e-6, found


def pipes(joints, more, seed, hub=0):
    """Heads and flows of a tree of pipes, some more between any joints, and from one joint to others."""
    random = np.random.default_rng(seed)
    pairs = [(i, int(random.integers(max(0, i - 6), i))) for i in range(1, joints)]
    pairs += [tuple(random.choice(joints, 2, replace=False)) for _ in range(more)]
    pairs += [(joints // 2, int(j)) for j in random.choice(joints // 2, hub, replace=False)]
    a, b = np.array(pairs).T
    k, demand = 10 ** random.uniform(1, 3, a.size), random.uniform(0, 0.002, joints)

    def F(x, is_closed=True):
        h, q = x[:joints], x[joints:]
        balance = -demand.copy()
        np.add.at(balance, a, -q)
        np.add.at(balance, b, q)
        balance[0] = h[0] - 100
        loss = h[a] - h[b] - k * q * np.abs(q) - 1e-2 * q
        loss[-7] = q[-7] if is_closed else h[a[-7]] - h[b[-7]] - 1e-3 * q[-7]
        return np.r_[balance, loss]

    return F, np.r_[np.full(joints, 100.0), np.full(a.size, 0.01)]


def test_a_valve_that_opens_between_two_solves():
    """The pattern of `previous` lacked entries, J was singular, and no other was sought: 1,300 evaluations."""
    F, x0 = pipes(120, 40, seed=2)
    last = ims.root(F, x0, tol=1e-8)
    for is_closed in (False, True, False, True):
        fresh = ims.root(lambda x, closed=is_closed: F(x, closed), last.x, tol=1e-8)
        last = ims.root(lambda x, closed=is_closed: F(x, closed), last.x, tol=1e-8, previous=last)
        assert last.success
        assert last.counts.residuals <= fresh.counts.residuals


def test_rows_of_many_entries_are_not_full():
    """Rows with more than 48 entries were left out of the coloring, and spread over the columns."""
    F, x0 = pipes(600, 0, seed=0, hub=60)
    found = ims.detect_structure(F, x0)
    assert found.full_rows.size == 0
    assert found.structure.row_counts.max() >= 60
    assert found.evaluations < 300


@pytest.mark.parametrize("kind", ["mean", "dense", "several"])
def test_full_rows_keep_their_local_part(kind):
    """Its entries were spread over the columns of their colors: 12,368 evaluations where products take 36."""
    n, random = 200, np.random.default_rng(0)
    rows = np.array([n - 1]) if kind == "mean" else random.choice(n, 6, replace=False)
    weights = random.normal(size=(rows.size, n)) / n**0.5

    def F(x):
        f = 2.5 * x - shifted(x, -1) - shifted(x, 1) + 0.3 * np.sin(x) - 1
        if kind == "dense":
            f[rows] = weights @ x - 0.3
        else:
            f[rows] += x.mean() - 0.2 if kind == "mean" else weights @ np.tanh(x)
        return f

    result, products = (ims.root(ims.Problem(F, structure=s), np.zeros(n)) for s in (None, "none"))
    assert result.success
    assert result.counts.residuals <= 3 * products.counts.residuals + result.detection.evaluations


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_matrix_that_comes_with_F_is_factored(is_sparse):
    """Products with it took 2,863 evaluations, and STAGNATED, at a condition of 10^6."""
    n = 1000 if is_sparse else 300
    A = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tocsc()
    if not is_sparse:
        U, V = (np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0] for seed in (0, 1))
        A = U @ np.diag(np.geomspace(1, 1e-6, n)) @ V
    b = A @ np.ones(n)
    result = ims.root(ims.Problem(lambda x: A @ x - b, linearize=lambda x: (A @ x - b, A)), np.zeros(n))
    assert result.success
    assert result.counts.jvps <= (0 if is_sparse else 150)
    np.testing.assert_allclose(result.x, 1.0, rtol=0, atol=1e-5)


def test_given_products_assemble_the_first_jacobian_too():
    """J at the start came from the differences of the detection, and served to the end."""
    n = 200

    def jvp(x, v):
        return 3 * v - shifted(v, 1) + 2 * x * v

    problem = ims.Problem(lambda x: 3 * x - shifted(x, 1) + x**2 - 1, jvp=jvp)
    result = ims.root(problem, np.zeros(n))
    assert result.success
    assert result.counts.jvps >= 2


@pytest.mark.parametrize("random_rows", [False, True])
@pytest.mark.parametrize("full", [1, 2, 5])
def test_bands_with_parameters_and_constraints(full, random_rows):
    """A full column hid in the colors of a band: the search found nothing, for up to 650 evaluations."""
    n, random = 1000, np.random.default_rng(full)
    m = n - full
    rows = random.normal(size=(full, m)) / m**0.5 if random_rows else np.ones((full, m)) / m
    columns, b = 0.3 * random.normal(size=(m, full)), random.normal(size=m)

    def F(x):
        f = 3 * x[:m] - shifted(x[:m], 1) - shifted(x[:m], -1) + 0.1 * np.sin(x[:m]) + columns @ x[m:] - b
        return np.concatenate([f, rows @ x[:m] + x[m:] - 0.2])

    search, products = ims.detect_structure(F, np.zeros(n)), ims.root(ims.Problem(F, structure="none"), np.zeros(n))
    result = ims.root(F, np.zeros(n))
    assert result.success
    assert search.structure is not None
    assert result.counts.residuals <= 3 * products.counts.residuals + search.evaluations


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_pattern_of_a_random_network(dtype):
    n, random = 2000, np.random.default_rng(0)
    rows, columns = random.integers(0, n, (2, 3 * n))
    pattern = ims.Sparse((np.r_[rows, columns, np.arange(n)], np.r_[columns, rows, np.arange(n)]), unknowns=n)
    values = random.uniform(0.5, 2.0, pattern.nnz).astype(dtype)
    A = pattern.to_scipy().astype(dtype)
    A.data = values
    found = ims.detect_structure(lambda x: A @ np.sin(x), np.full(n, 0.3, dtype=dtype))
    assert found.structure.union(pattern).nnz == found.structure.nnz <= 1.01 * pattern.nnz
    assert found.evaluations <= 90


def test_meshes_take_some_evaluations_for_each_color():
    """Entries of four decades took 45 evaluations a color."""
    n = 3000
    points = np.random.default_rng(1).random((n, 2))
    pairs = scipy.spatial.Delaunay(points).simplices[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2)
    a, b = np.unique(np.sort(pairs), axis=0).T
    conductance = 10.0 ** np.random.default_rng(2).uniform(-4, 0, a.size)

    def F(u):
        flow = conductance * (u[a] - u[b]) * (1 + u[a] * u[b])
        return u**3 - 1 + np.bincount(a, flow, n) - np.bincount(b, flow, n)

    found = ims.detect_structure(F, np.zeros(n))
    declared = ims.Sparse.from_edges(np.stack([a, b], axis=1))
    assert found.structure.union(declared).nnz - found.structure.nnz <= 3  # a millionth of the largest in their rows
    assert found.evaluations <= 100  # 14 colors


def test_derivatives_beside_a_kink_have_the_entries_of_their_side():
    """The search began a thousandth of x away, on the other side: gradients were wrong by 4e-5."""
    x = np.linspace(-1, 1, 200)
    x[66] = 0.2 - 3e-4

    def F(x):
        return 3 * x + np.where(x > 0.2, (x - 0.2) * shifted(x, 3), 0.7 * (x - 0.2) * shifted(x, -1))

    J = ims.jacobian(ims.Problem(F, structure="detect"), x).todense()
    reference = np.stack([(F(x + 1e-6 * e) - F(x - 1e-6 * e)) / 2e-6 for e in np.eye(200)], axis=1)
    np.testing.assert_allclose(J, reference, rtol=0, atol=1e-7)


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_hub_of_54_pipes_was_taken_for_a_full_row(is_declared):
    """Means stood for its entries: STAGNATED after 930 evaluations, with the pattern after 822; with J 18."""
    count, demand = 54, 0.1 * np.random.default_rng(0).uniform(size=217)
    ends = 1 + np.arange(4 * count)
    begins = np.where(ends % 4 == 1, 0, ends - 1)

    def F(h):
        loss = h[begins] - h[ends]
        flow = loss / np.sqrt(np.abs(loss) + 1e-3)
        balance = np.bincount(begins, flow, h.size) - np.bincount(ends, flow, h.size) + demand
        return np.where(np.arange(h.size) == 3, h - 1, balance)

    around = np.arange(demand.size)
    pattern = ims.Sparse((np.r_[begins, ends, around], np.r_[ends, begins, around]), unknowns=demand.size)
    problem = ims.Problem(F, structure=pattern if is_declared else None)
    assert ims.root(problem, np.linspace(1, 2, demand.size)).success
