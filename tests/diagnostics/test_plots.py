"""Pictures: what is drawn, and where."""

import sys

import numpy as np
import pytest

import implicitsolve as ims

pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def squares(targets, **options):
    targets = np.asarray(targets, dtype=float)[:, None]
    problem = ims.Problem(lambda x: x**2 - targets, jvp=lambda x, v: 2 * x * v, batch_ndim=1)
    return ims.root(problem, np.ones_like(targets), method="newton-krylov", **options)


def one(**options):
    return ims.root(ims.Problem(lambda x: x**2 - 2, jvp=lambda x, v: 2 * x * v), np.array(1.5), **options)


def labels(ax) -> list[str]:
    return ax.get_legend_handles_labels()[1]


def test_one_system_is_its_norms_and_a_dashed_target():
    result = one()
    ax = ims.diagnostics.plot_convergence(result, label="squares")
    curve, target = ax.get_lines()
    np.testing.assert_array_equal(curve.get_xdata(), range(len(result.steps)))
    np.testing.assert_array_equal(curve.get_ydata(), [step.worst for step in result.steps])
    assert target.get_ydata()[0] == result.target
    assert target.get_linestyle() == "--"
    assert labels(ax) == ["squares", "target"]
    assert ax.get_yscale() == "log"


def test_products_are_counted():
    result = one()
    (curve, _) = ims.diagnostics.plot_convergence(result, against="products").get_lines()
    assert curve.get_xdata()[-1] == result.counts.residuals + result.counts.jvps


def test_the_winner_of_a_race_is_plotted_at_its_own_products():
    problem = ims.Problem(lambda x: np.where(x < 100, x**2 - 2, 1 + np.exp(-np.abs(x))))
    result = ims.drivers.race(problem, [np.asarray([200.0]), np.asarray([1.0])])
    start = [i for i, step in enumerate(result.steps) if step.iteration == 0][-1]
    assert result.winner == 1
    assert start > 0
    at = ims.diagnostics.plot_convergence(result, against="products").lines[0].get_xdata()
    assert at.tolist() == [step.counts.residuals for step in result.steps[start:]]


def test_several_results_have_their_labels_and_differ_without_color():
    ax = ims.diagnostics.plot_convergence({"a": one(), "b": one(stop=ims.NonlinearStop(rtol=1e-12))})
    first, second, *_ = ax.get_lines()
    assert labels(ax)[:2] == ["a", "b"]
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()


def test_curves_of_several_calls_share_axes_without_sharing_a_color_or_the_target():
    ax = ims.diagnostics.plot_convergence(one(), label="a")
    ims.diagnostics.plot_convergence(squares([2.0, 3.0]), ax=ax, label="b")
    ims.diagnostics.plot_convergence({"c": one(), "d": one()}, ax=ax)
    curves = [line for line in ax.get_lines() if line.get_marker() != "None"]
    assert len({line.get_color() for line in curves}) == len({line.get_marker() for line in curves}) == 4
    assert labels(ax).count("target") == 1


def test_a_spectrum_is_that_of_j_unless_the_problem_is_a_fixed_point():
    A = np.diag([3.0, 5.0])
    ax = ims.diagnostics.plot_spectrum(lambda x: A @ x, np.zeros(2))
    np.testing.assert_allclose(np.sort(ax.collections[0].get_offsets()[:, 0]), [3, 5], rtol=1e-6)
    assert "unit circle" not in labels(ax)
    assert ax.get_title() == "2 eigenvalues of J: moduli 3 to 5"
    ax = ims.diagnostics.plot_spectrum(ims.Problem(lambda x: A @ x, fixed_point=True), np.zeros(2))
    np.testing.assert_allclose(np.sort(ax.collections[0].get_offsets()[:, 0]), [-4, -2], rtol=1e-6)
    assert "unit circle" in labels(ax)


def test_a_batch_is_a_median_a_band_and_those_that_failed():
    result = squares([2.0, 3.0, -1.0, 5.0])
    ax = ims.diagnostics.plot_convergence(result)
    median, failed, *_ = ax.get_lines()
    at_start = result.steps[0].residual_norm
    assert median.get_ydata()[0] == np.median(at_start)
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == at_start.max()
    assert failed.get_ydata()[0] == at_start[2]
    assert labels(ax)[1].startswith(f"2: {ims.Status(int(result.status[2])).name}")


def test_hundreds_of_failures_are_five_lines():
    ax = ims.diagnostics.plot_convergence(squares(-np.linspace(1, 2, 300), stop=ims.NonlinearStop(max_iterations=3)))
    assert len(ax.get_lines()) <= 1 + 5 + 1
    assert any("and 295 more failed" in label for label in labels(ax))


def test_a_batch_without_any_norm_is_an_empty_plot():
    nothing = np.full(3, np.nan)
    result = ims.root(ims.Problem(lambda x: x * nothing[:, None], batch_ndim=1), np.ones((3, 1)))
    ax = ims.diagnostics.plot_convergence(result)
    ax.figure.canvas.draw()
    assert not any(np.size(line.get_ydata()) for line in ax.lines)


def test_axes_are_used_and_returned():
    ax = pyplot.subplots()[1]
    assert ims.diagnostics.plot_convergence(one(), ax=ax) is ax
    assert ims.diagnostics.plot_spectrum(lambda x: x, np.zeros(2), ax=ax) is ax


def test_the_result_of_scipy_s_entry_and_its_exception():
    _, result = ims.newton_krylov(lambda x: x**2 - 2, [1.0, 2.0], full_output=True)
    assert ims.diagnostics.plot_convergence(result).get_lines()[0].get_ydata()[0] == result.native.initial_norm
    with pytest.raises(ims.NoConvergence) as caught:
        ims.newton_krylov(lambda x: x**2 + 1, [1.0, 2.0])
    assert ims.diagnostics.plot_convergence(caught.value).get_lines()


def test_a_spectrum_has_the_unit_circle_and_open_markers_for_what_is_not_accurate():
    values, errors = np.asarray([0.9, 0.5j, -0.2]), np.asarray([0.0, 1e-6, 0.3])
    ax = ims.diagnostics.plot_spectrum(ims.diagnostics.Spectrum(values.astype(complex), errors, False))
    circle = ax.get_lines()[0]
    np.testing.assert_allclose(np.hypot(circle.get_xdata(), circle.get_ydata()), 1)
    good, poor = ax.collections
    np.testing.assert_allclose(good.get_offsets(), [[0.9, 0], [0, 0.5]])
    np.testing.assert_allclose(poor.get_offsets(), [[-0.2, 0]])
    assert not poor.get_facecolors().size
    assert ax.get_aspect() == 1.0


def drawn(ax) -> np.ndarray:
    """Where the picture of a matrix has entries."""
    return ~np.ma.getmaskarray(np.ma.masked_invalid(ax.get_images()[0].get_array()))


@pytest.mark.parametrize(
    ("structure", "unknowns"),
    [
        (ims.BlockBanded(2, 1, 3), 30),
        (ims.BlockBanded(2, 1, 3, periodic=True), 30),
        (ims.BlockBanded(5, 7), 4),
        (ims.Grid(shape=(5, 4), fields=2), None),
        (ims.Sparse(np.eye(7)), 7),
    ],
    ids=str,
)
def test_a_structure_is_drawn_entry_by_entry(structure, unknowns):
    ax = ims.diagnostics.plot_structure(structure, unknowns)
    if isinstance(structure, ims.BlockBanded):
        T, k = unknowns // structure.block_size, structure.block_size
        d = np.subtract.outer(np.arange(T), np.arange(T))
        if structure.periodic:
            d = (d + structure.upper) % T - structure.upper
        expected = np.kron((d <= structure.lower) & (-d <= structure.upper), np.ones((k, k), dtype=bool))
    else:
        expected = getattr(structure, "sparse", structure).to_scipy().toarray().astype(bool)
    np.testing.assert_array_equal(drawn(ax), expected)
    n = len(expected)
    assert ax.get_title() == f"{n} × {n}, {expected.sum()} entries"


def test_a_large_structure_is_drawn_in_cells_that_share_entries():
    ax = ims.diagnostics.plot_structure(ims.BlockBanded(1, 1), 10_001)
    shown = drawn(ax)
    assert shown.shape == (197, 197)  # of 51 rows
    assert np.array_equal(shown, np.abs(np.subtract.outer(np.arange(197), np.arange(197))) <= 1)
    assert (
        ims.diagnostics.plot_structure(ims.BlockBanded(1, 1, 10_000), 30_000).get_title().endswith(" 700000000 entries")
    )


def test_what_a_solve_detected_is_drawn_with_its_full_rows():
    def F(x):
        y = 3 * x - np.roll(x, 1) ** 2
        y[7] = x.sum() - 1
        return y

    found = ims.detect_structure(F, np.ones(200))
    assert found.full_rows.tolist() == [7]
    shown = drawn(ims.diagnostics.plot_structure(found))
    assert shown[7].all()
    assert shown.sum() == 200 + 199 * 2
    result = ims.root(lambda u: np.diff(u, 2, prepend=0.0, append=0.0) + np.exp(u) / 900, np.zeros(30))
    np.testing.assert_array_equal(
        drawn(ims.diagnostics.plot_structure(result)), np.abs(np.subtract.outer(range(30), range(30))) < 2
    )


def test_a_jacobian_is_drawn_by_the_moduli_of_its_entries():
    targets = np.asarray([[1.0, 2.0], [30.0, 4.0]])
    problem = ims.Problem(lambda x: x**2 - targets, jvp=lambda x, v: -2 * x * v, batch_ndim=1)
    ax = ims.diagnostics.plot_jacobian(problem, targets, system=1)
    np.testing.assert_array_equal(ax.get_images()[0].get_array().filled(0), np.diag([60.0, 8.0]))
    sparse = ims.Problem(problem.residual, jvp=problem.jvp, batch_ndim=1, structure=ims.Sparse(np.eye(2)))
    np.testing.assert_array_equal(drawn(ims.diagnostics.plot_jacobian(sparse, targets, system=0)), np.eye(2) > 0)
    ims.diagnostics.plot_jacobian(lambda x: 0 * x, np.zeros(2)).figure.canvas.draw()  # nothing to be drawn
    with pytest.raises(ValueError, match="plot_jacobian: `system` must be an index of 1 numbers"):
        ims.diagnostics.plot_jacobian(problem, targets)


def test_structures_that_are_none_are_refused():
    with pytest.raises(TypeError, match="a BlockBanded needs `unknowns`"):
        ims.diagnostics.plot_structure(ims.BlockBanded(1, 1))
    with pytest.raises(
        TypeError, match="`structure` must be a BlockBanded, Sparse, Grid, Detection or a result, got int"
    ):
        ims.diagnostics.plot_structure(3)
    with pytest.raises(ValueError, match="a system has 5"):
        ims.diagnostics.plot_structure(ims.Sparse(np.eye(4)), 5)
    with pytest.raises(ValueError, match="looked for no sparsity"):
        ims.diagnostics.plot_structure(one())
    with pytest.raises(ValueError, match="no sparsity was used, since few unknowns"):
        ims.diagnostics.plot_structure(ims.Detection(how="small", evaluations=0, unknowns=3))


def test_the_arguments_are_checked():
    with pytest.raises(ValueError, match="`against` must be one of 'steps', 'products'"):
        ims.diagnostics.plot_convergence(one(), against="time")
    with pytest.raises(ValueError, match="at least one result"):
        ims.diagnostics.plot_convergence({})
    with pytest.raises(TypeError, match="`result` must be the result of `root`, got int"):
        ims.diagnostics.plot_convergence(3)
    with pytest.raises(TypeError, match="`x` is needed"):
        ims.diagnostics.plot_spectrum(lambda x: x)
    with pytest.raises(TypeError, match="neither `x` nor options"):
        ims.diagnostics.plot_spectrum(ims.diagnostics.spectrum(lambda x: x, np.zeros(2)), vectors=2)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"implicitsolve\[plot\]"):
        ims.diagnostics.plot_convergence(one())
    with pytest.raises(ImportError, match=r"plot_spectrum needs matplotlib"):
        ims.diagnostics.plot_spectrum(lambda x: x, np.zeros(2))
