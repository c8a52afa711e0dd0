"""Bounds of the Perron root against eigenvalues, and the projection against its optimality conditions."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import implicitsolve as ims
from implicitsolve.adapters import lifted_net, project_well_posed, well_posedness
from tests.adapters import lifted
from tests.adapters.lifted import N, dense

KAPPAS = st.floats(1e-3, 0.999)
ENTRIES = st.floats(-1e3, 1e3) | st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, -1e300])
MATRICES = stn.arrays(np.float64, stn.array_shapes(min_dims=2, max_dims=2, max_side=7), elements=ENTRIES)


def spectral_radius(A):
    return np.abs(np.linalg.eigvals(np.abs(A))).max()


def full_band(A):
    return ims.BlockBandedMatrix.from_dense(A, ims.BlockBanded(A.shape[0] // 2 - 1, A.shape[0] // 2 - 1, 2))


FORMS = lifted.FORMS | {"banded": full_band}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def test_norm_and_root_in_every_form(form, rng):
    A = rng.uniform(-1, 1, (N, N)) * (rng.random((N, N)) < 0.4)
    report = well_posedness(form(A))
    assert report.inf_norm == pytest.approx(np.abs(A).sum(axis=1).max(), rel=1e-14)
    assert report.perron_lower <= report.perron <= report.perron_lower * (1 + 3e-12)
    assert report.perron == pytest.approx(spectral_radius(A), rel=1e-11)
    assert not report.is_acyclic


@given(st.integers(0, 2**32 - 1), st.integers(1, 15), st.floats(0, 0.6), st.sampled_from([1.0, 1e-200, 1e200]))
def test_properties_bounds_hold(seed, n, density, scale):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n)) * (rng.random((n, n)) < density)
    report = well_posedness(scale * A)
    assert report.perron_lower <= report.perron <= report.perron_lower * (1 + 3e-12)
    assert report.is_acyclic == (not np.linalg.matrix_power(A != 0, n).any())
    assert (report.perron == 0) == report.is_acyclic
    if not report.is_acyclic:  # computed eigenvalues of a nilpotent matrix are far from 0
        assert report.perron / scale == pytest.approx(spectral_radius(A), rel=1e-6)


@pytest.mark.parametrize("weights", [[1e-300, 1.0, 1e300], [1e-200, 1.0], [1e150, 1e-150, 1.0, 1e200, 1e-200]])
def test_bounds_hold_where_products_underflow(weights):
    A = np.roll(np.diag(weights), 1, axis=0)
    root = np.exp(np.mean(np.log(weights)))
    report = well_posedness(A)
    assert report.perron_lower * (1 - 1e-12) <= root <= report.perron * (1 + 1e-12)


def test_the_root_is_that_of_the_largest_component(rng):
    blocks = [0.3 * np.ones((2, 2)), rng.uniform(0, 0.2, (3, 3)), np.array([[0.9]]), np.zeros((2, 2))]
    A = scipy.sparse.block_diag(blocks).toarray()
    A += np.triu(rng.uniform(5, 6, A.shape), 3)  # large, but in no circle
    report = well_posedness(A)
    assert report.perron == report.perron_lower == 0.9  # of a single unknown, exact
    assert report.is_certain
    assert report.inf_norm > 5


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_no_circle_has_root_zero_exactly(form, rng):
    order = rng.permutation(30)
    A = np.tril(rng.uniform(1, 2, (30, 30)), -1)[np.ix_(order, order)]
    report = well_posedness(form(A))
    assert (report.perron, report.perron_lower, report.is_acyclic, report.is_certain) == (0.0, 0.0, True, True)
    assert well_posedness(form(np.zeros((3, 3)))).is_acyclic


def test_a_matrix_of_certain_fate(rng):
    A = np.array([[0.0, 1.9], [0.5, 0.0]])  # |A| has norm 1.9 and root 0.97
    assert well_posedness(A).is_certain
    assert not well_posedness(1.1 * A).is_certain
    assert well_posedness(4.0 * A, lipschitz=0.25).is_certain  # the logistic function
    net = lifted_net(A, rng.standard_normal((2, 3)), rng.standard_normal((5, 3)))
    x = rng.standard_normal((5, 2))
    for _ in range(2000):
        x = x - net.residual(x)
    np.testing.assert_allclose(net.residual(x), 0, atol=1e-14)


def check_projection(A, projected, kappa):
    """Row by row: feasible, and nearest by the optimality conditions of the l1 ball."""
    eps = 8 * np.finfo(A.dtype).eps
    for a, x in zip(A.astype(np.float64), projected.astype(np.float64), strict=True):
        if np.abs(a).sum() <= kappa:
            np.testing.assert_array_equal(x, a)
            continue
        assert np.abs(x).sum() <= kappa
        assert np.abs(x).sum() >= kappa * (1 - (len(a) + 8) * eps)
        assert (x * a >= 0).all()
        is_kept = x != 0
        theta = np.abs(a) - np.abs(x)  # the same for all that stay, at least the magnitude of those that vanish
        slack = eps * max(kappa, np.abs(a).max())
        assert np.ptp(theta[is_kept]) <= slack
        assert (np.abs(a[~is_kept]) <= theta[is_kept].max() + slack).all()


@given(MATRICES, KAPPAS, st.sampled_from([np.float32, np.float64]))
def test_properties_projection(A, kappa, dtype):
    with np.errstate(over="ignore"):
        A = A.astype(dtype)
    A[~np.isfinite(A)] = 1e30
    before = A.copy()
    projected = project_well_posed(A, kappa)
    np.testing.assert_array_equal(A, before)
    assert projected.dtype == dtype
    check_projection(A, projected, kappa)
    np.testing.assert_array_equal(project_well_posed(projected, kappa), projected)
    assert (np.abs(projected[:, ::-1]).astype(np.float64).cumsum(axis=1)[:, -1] <= kappa).all()  # in any order


def test_the_projection_is_exact_for_huge_entries():
    A = np.array([[1e300, 1e300, -1e300, 3.0]])
    np.testing.assert_allclose(project_well_posed(A, 0.9), [[0.3, 0.3, -0.3, 0.0]], rtol=1e-13)
    A = np.array([[2.0**60 + 2.0**8, 2.0**60]])
    np.testing.assert_allclose(project_well_posed(A, 0.5), [[0.5, 0.0]], rtol=1e-13)


def test_the_projection_keeps_form_and_pattern(form, rng):
    A = rng.uniform(-1, 1, (N, N)) * (rng.random((N, N)) < 0.4)
    given_form = form(A)
    projected = project_well_posed(given_form)
    np.testing.assert_allclose(dense(projected), project_well_posed(A), rtol=1e-14)
    assert well_posedness(projected).inf_norm <= 0.95
    if scipy.sparse.issparse(given_form):
        assert projected.format == given_form.format
        assert projected.nnz == given_form.nnz
    else:
        assert type(projected) is type(given_form)
    np.testing.assert_array_equal(dense(given_form), A)


def test_blocks_outside_the_matrix_are_not_projected(rng):
    blocks = rng.uniform(-1, 1, (4, 3, 2, 2))
    A = ims.BlockBandedMatrix(blocks, lower=1, upper=1)
    blocks[0, 0] = np.nan
    np.testing.assert_allclose(project_well_posed(A).todense(), project_well_posed(A.todense()), rtol=1e-14)
    assert well_posedness(A) == well_posedness(A.todense())


A = np.eye(3)


@pytest.mark.parametrize("function", [well_posedness, project_well_posed])
@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        (A.tolist(), TypeError, "`A` must be an array, a sparse or a block-banded matrix, got list"),
        (A.astype(int), TypeError, "`A` must have dtype float32 or float64, got int64"),
        (scipy.sparse.eye_array(3, dtype=complex), TypeError, "`A` must have dtype float32 or float64"),
        (A[0], ValueError, r"`A` must have shape \(m, n\), none of them 0, got \(3,\)"),
        (A[:0], ValueError, r"`A` must have shape \(m, n\), none of them 0"),
        (np.nan * A, ValueError, "`A` must be finite"),
        (scipy.sparse.csr_array(np.inf * np.ones((2, 2))), ValueError, "`A` must be finite"),
        (ims.BlockBandedMatrix(np.ones((2, 3, 1, 1, 1)), lower=0, upper=0), ValueError, "`A` must be one matrix"),
    ],
)
def test_a_wrong_matrix_is_named(function, matrix, error, message):
    with pytest.raises(error, match=f"{function.__name__}: {message}"):
        function(matrix)


@pytest.mark.parametrize("kappa", [0, 1, -0.5, 1.5, np.nan, "0.9", True])
def test_a_wrong_kappa_is_named(kappa):
    with pytest.raises(ValueError, match="`kappa` must be between 0 and 1"):
        project_well_posed(A, kappa)


@pytest.mark.parametrize("lipschitz", [0, -1.0, np.inf, np.nan, None])
def test_a_wrong_lipschitz_constant_is_named(lipschitz):
    with pytest.raises(ValueError, match="`lipschitz` must be a positive number"):
        well_posedness(A, lipschitz=lipschitz)


def test_an_oblong_matrix_has_no_root():
    with pytest.raises(ValueError, match=r"well_posedness: `A` must be square, got shape \(2, 3\)"):
        well_posedness(A[:2])
