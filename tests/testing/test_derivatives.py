"""`check_derivatives`: passes what is right, and says which function is wrong and how."""

import dataclasses

import numpy as np
import pytest

import implicitsolve as ims
from benchmarks.benchmarks.problems import classic_problems, pde_gallery
from implicitsolve.testing import check_derivatives


def failing(problem: ims.Problem, x=None, **options) -> dict[str, str]:
    """Names of the checks that failed, with their hints."""
    report = check_derivatives(problem, x, **options)
    assert report.ok == all(check.passed for check in report.checks)
    return {check.name: check.hint for check in report.checks if not check.passed}


class Coupled:
    """F(x) = A x + x^3 - p x - q, for matrices A, complex ones too."""

    def __init__(self, A: np.ndarray, rng: np.random.Generator) -> None:
        self.A = A
        size = A.shape[0]
        self.parameters = {"p": rng.standard_normal(size), "q": rng.standard_normal(size)}

    def residual(self, x):
        return x @ self.A.T + x**3 - self.parameters["p"] * x - self.parameters["q"]

    def diagonal(self, x):
        return 3 * x**2 - self.parameters["p"]

    def jvp(self, x, v):
        return v @ self.A.T + self.diagonal(x) * v

    def vjp(self, x, w):
        return w @ self.A.conj() + self.diagonal(x).conj() * w

    def parameter_jvp(self, x, tangents):
        zero = np.zeros_like(x)
        return -tangents.get("p", zero) * x - tangents.get("q", zero)

    def parameter_vjp(self, x, w):
        return {"p": -(x.conj() * w).real, "q": -w.real}

    def problem(self, **changes) -> ims.Problem:
        functions = {
            name: getattr(self, name) for name in ("jvp", "vjp", "parameters", "parameter_jvp", "parameter_vjp")
        }
        return ims.Problem(self.residual, **(functions | changes))


@pytest.fixture
def coupled(rng) -> Coupled:
    return Coupled(rng.standard_normal((5, 5)), rng)


@pytest.fixture
def x(rng):
    return rng.standard_normal(5)


def test_what_is_right_passes_and_says_what_was_checked(coupled, x):
    report = check_derivatives(coupled.problem(), x)
    assert report.ok, str(report)
    assert report.raise_if_wrong() is report
    assert {check.name for check in report.checks} == {
        "arguments unchanged",
        "residual: repeated",
        "jvp",
        "vjp",
        "parameter_jvp['p']",
        "parameter_jvp['q']",
        "parameter_vjp['p']",
        "parameter_vjp['q']",
    }
    assert not report.skipped


def test_a_report_is_a_table_that_can_be_raised(coupled, x):
    report = check_derivatives(coupled.problem(jvp=lambda x, v: -coupled.jvp(x, v)), x)
    row = next(line for line in str(report).splitlines() if line.startswith("jvp"))
    assert row.split()[1] == "WRONG"
    assert float(row.split()[2]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="the sign is wrong"):
        report.raise_if_wrong()


def test_the_sign_of_a_product(coupled, x):
    wrong = failing(coupled.problem(jvp=lambda x, v: -coupled.jvp(x, v)), x)
    assert wrong["jvp"] == "the sign is wrong"


def test_a_factor_in_a_product(coupled, x):
    assert "factor 2" in failing(coupled.problem(jvp=lambda x, v: 2 * coupled.jvp(x, v)), x)["jvp"]


def test_one_wrong_entry_of_a_product_is_named(coupled, x):
    def jvp(x, v):
        Jv = coupled.jvp(x, v)
        Jv[3] += 1e-3 * v[0]
        return Jv

    assert failing(coupled.problem(jvp=jvp), x)["jvp"] == "it differs most at entry [3]"


def test_the_system_of_a_wrong_entry_is_named(coupled, rng):
    def jvp(x, v):
        Jv = coupled.jvp(x, v)
        Jv[1, 0, 2] *= 1.1
        return Jv

    problem = coupled.problem(jvp=jvp, batch_ndim=2, vjp=None, parameter_jvp=None, parameter_vjp=None)
    hint = failing(problem, rng.standard_normal((3, 2, 5)))["jvp"]
    assert hint == "it differs most at entry [2] of system 1, 0"


def test_a_product_with_the_transpose(coupled, x):
    assert failing(coupled.problem(vjp=coupled.jvp), x) == {"vjp": "it returns J w in place of J^H w"}


def test_the_sign_of_an_adjoint_product(coupled, x):
    assert failing(coupled.problem(vjp=lambda x, w: -coupled.vjp(x, w)), x) == {"vjp": "the sign is wrong"}


def test_an_adjoint_product_without_a_jvp_is_held_against_differences(coupled, x):
    assert not failing(coupled.problem(jvp=None), x)
    assert failing(coupled.problem(jvp=None, vjp=coupled.jvp), x).keys() == {"vjp"}


def test_a_missing_conjugate(rng):
    A = rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4))
    coupled, x = Coupled(A, rng), rng.standard_normal(4) + 1j * rng.standard_normal(4)
    assert not failing(coupled.problem(), x)
    wrong = failing(coupled.problem(vjp=lambda x, w: w @ A + coupled.diagonal(x) * w), x)
    assert wrong == {"vjp": "it returns J^T w: conjugate, for J^H w"}


@pytest.mark.parametrize("name", ["p", "q"])
def test_the_parameter_of_a_wrong_gradient_is_named(coupled, x, name):
    def wrong(x, w):
        gradients = coupled.parameter_vjp(x, w)
        return gradients | {name: 1.01 * gradients[name]}

    for parameter_jvp in (coupled.parameter_jvp, None):  # by the dot test, and by differences
        problem = coupled.problem(parameter_vjp=wrong, parameter_jvp=parameter_jvp)
        assert failing(problem, x).keys() == {f"parameter_vjp[{name!r}]"}


def test_both_parameter_derivatives_may_be_wrong_alike(coupled, x):
    problem = coupled.problem(
        parameter_jvp=lambda x, t: -coupled.parameter_jvp(x, t),
        parameter_vjp=lambda x, w: {name: -value for name, value in coupled.parameter_vjp(x, w).items()},
    )
    assert failing(problem, x)["parameter_jvp['p']"] == "the sign is wrong"
    assert failing(problem, x)["parameter_vjp['q']"] == "the sign is wrong"


def test_parameters_are_as_before(coupled, x):
    saved = {name: value.copy() for name, value in coupled.parameters.items()}
    check_derivatives(coupled.problem(parameter_jvp=None), x)
    for name, value in saved.items():
        np.testing.assert_array_equal(coupled.parameters[name], value)


def test_a_residual_that_keeps_its_parameters_needs_build(rng):
    def make(parameters) -> ims.Problem:
        a = 2 * parameters["a"]
        return ims.Problem(
            lambda x: x**3 - a, parameters=parameters, parameter_vjp=lambda x, w: {"a": -w}, batch_ndim=0
        )

    parameters, x = {"a": rng.standard_normal(3)}, rng.standard_normal(3)
    report = check_derivatives(make(parameters), x)
    assert report.ok
    assert "give `build`" in report.skipped[0]
    assert "not checked: parameter_vjp['a']" in str(report)
    assert failing(make(parameters), x, build=make).keys() == {"parameter_vjp['a']"}


def test_a_missing_gradient_and_one_of_another_shape(coupled, x):
    parameter_vjp = lambda x, w: {"p": np.zeros(3)}  # noqa: E731
    wrong = failing(coupled.problem(parameter_vjp=parameter_vjp), x)
    assert wrong == {
        "parameter_vjp['p']": "its shape is (3,), not (5,)",
        "parameter_vjp['q']": "it returns no gradient of 'q'",
    }


@pytest.mark.parametrize(("lower", "upper", "hint"), [(2, 1, "`upper` must be at least 2"), (0, 2, "`lower`")])
def test_a_structure_that_misses_a_diagonal(lower, upper, hint):
    def residual(u):
        padded = np.pad(u, ((2, 2), (0, 0)))
        return u**2 + padded[:-4] + padded[1:-3] - padded[3:-1] + 3 * padded[4:]

    x = np.arange(1.0, 17.0).reshape(8, 2)
    assert not failing(ims.Problem(residual, structure=ims.BlockBanded(2, 2, 2)), x)
    assert hint in failing(ims.Problem(residual, structure=ims.BlockBanded(lower, upper, 2)), x)["structure"]


def test_around_a_period_no_declared_neighbor_is_called_missing():
    problem = ims.Problem(
        lambda x: x**3 + np.roll(x, 1) - np.roll(x, -1),
        blocks=lambda x: np.stack([-np.ones(5), 3 * x**2, 1 * np.ones(5)], axis=-1)[..., None, None],
        structure=ims.BlockBanded(1, 1, periodic=True),
    )
    (wrong,) = [
        check for check in ims.testing.check_derivatives(problem, np.arange(1.0, 6.0)).checks if not check.passed
    ]
    assert wrong.name == "blocks"
    assert "must be at least" not in wrong.hint


def test_blocks_of_another_matrix(coupled, x):
    structure = ims.BlockBanded(4, 4)

    def blocks(x, factor=1.0):
        J = coupled.A + np.diag(factor * coupled.diagonal(x))
        return ims.BlockBandedMatrix.from_dense(J, structure).blocks

    assert not failing(coupled.problem(structure=structure, blocks=blocks), x)
    wrong = failing(coupled.problem(structure=structure, blocks=lambda x: blocks(x, 1.5)), x)
    assert wrong.keys() == {"blocks"}


def test_a_jac_outside_the_declared_structure(coupled, x):
    jac = lambda x: coupled.A + np.diag(coupled.diagonal(x))  # noqa: E731
    wrong = failing(coupled.problem(structure=ims.BlockBanded(1, 1), jac=jac), x)
    assert wrong.keys() == {"structure"}


def test_a_residual_that_writes_into_x(coupled, x):
    def residual(x):
        value = coupled.residual(x)
        x *= 2
        return value

    problem = dataclasses.replace(coupled.problem(), residual=residual, pure=True)
    before = x.copy()
    assert failing(problem, x) == {"arguments unchanged": "`residual` wrote into an argument: copy it first"}
    np.testing.assert_array_equal(x, before)


def test_a_residual_that_changes_from_call_to_call(coupled, x, rng):
    noisy = dataclasses.replace(coupled.problem(), residual=lambda x: coupled.residual(x) + rng.standard_normal(5))
    assert failing(noisy, x).keys() == {"residual: repeated"}
    unsure = next(check for check in check_derivatives(noisy, x).checks if check.name == "jvp")
    assert np.isnan(unsure.measured)
    assert "noisy" in unsure.hint


def test_a_point_where_derivatives_vanish_is_no_error():
    product = lambda x, v: 2 * x * v  # noqa: E731
    problem = ims.Problem(lambda x: x**2 + 1, jvp=product, vjp=product)
    for x in (np.zeros(3), np.full(3, 1e-9), np.asarray([1e-9, 1.0, 0.0])):
        assert not failing(problem, x)
        wrong = dataclasses.replace(problem, jvp=lambda x, v: -2 * x * v)
        assert failing(wrong, x) or not x.any()


@pytest.mark.parametrize("size", [2, 5])
def test_systems_that_are_not_independent(coupled, rng, size):
    def residual(x):
        value = coupled.residual(x)
        value[-1] += 1e-3 * x[-2]
        return value

    x = rng.standard_normal((size, 5))
    assert not failing(ims.Problem(coupled.residual, batch_ndim=1), x)
    assert failing(ims.Problem(residual, batch_ndim=1), x).keys() == {"independent systems"}


def test_take_of_other_systems(rng):
    def cubes(c, shift=0) -> ims.Problem:
        return ims.Problem(lambda x: x**3 - c, batch_ndim=1, take=lambda rows: cubes(np.roll(c, shift, 0)[rows]))

    c, x = rng.standard_normal((4, 2)), rng.standard_normal((4, 2))
    assert not failing(cubes(c), x)
    assert failing(cubes(c, 1), x).keys() == {"take"}


def test_a_linearization_with_another_residual(coupled, x):
    def linearize(x, shift=0.0):
        return coupled.residual(x) + shift, coupled.A + np.diag(coupled.diagonal(x))

    assert not failing(coupled.problem(linearize=linearize), x)
    wrong = failing(coupled.problem(linearize=lambda x: linearize(x, 1e-6)), x)
    assert wrong == {"linearize: residual": "`linearize` returns another F than `residual`"}


def test_a_linearization_with_another_jacobian(coupled, x):
    wrong = failing(coupled.problem(linearize=lambda x: (coupled.residual(x), coupled.A)), x)
    assert wrong.keys() == {"linearize: J v", "linearize: J^H w"}


def test_bad_scales_are_no_errors():
    scale = np.asarray([1e12, 1.0, 1e-12])
    problem = ims.Problem(lambda x: np.log(x / scale) ** 3 - 8, jvp=lambda x, v: 3 * np.log(x / scale) ** 2 * v / x)
    assert not failing(problem, 2.5 * scale)


def test_a_start_outside_the_domain_is_an_error():
    with pytest.raises(ValueError, match=r"F\(x\) must be finite"):
        check_derivatives(ims.Problem(np.log), -np.ones(2))


def test_the_arguments_are_checked():
    with pytest.raises(TypeError, match="`problem` must be a Problem, got function"):
        check_derivatives(lambda x: x, np.ones(2))
    with pytest.raises(TypeError, match="`x` is needed"):
        check_derivatives(ims.Problem(lambda x: x))


def layers(rng: np.random.Generator, dtype: str) -> dict[str, ims.Problem]:
    ad = ims.adapters

    def cast(values):
        return {name: value.astype(dtype) for name, value in values.items()}

    inputs = rng.standard_normal((3, 6, 2)).astype(dtype)
    weights = [(0.3 * rng.standard_normal(shape)).astype(dtype) for shape in [(4, 4), (4, 2), (2, 4)]]
    A, B, _ = ad.lifted_rnn(*weights, 6)
    offsets = (-2, 1)
    return {
        "gru": ad.implicit_gru(cast(ad.gru_parameters(2, 4, rng=rng)), inputs, lengths=[6, 3, 5]),
        "lstm": ad.implicit_lstm(cast(ad.lstm_parameters(2, 4, rng=rng)), inputs),
        "rnn": ad.implicit_rnn(cast(ad.rnn_parameters(2, 4, rng=rng)), inputs),
        "elman": ad.elman(cast(ad.elman_parameters(2, 4, rng=rng)), inputs),
        "stencil": ad.stencil_gru(
            cast(ad.stencil_gru_parameters(2, 4, rng=rng, offsets=offsets)), inputs, offsets=offsets
        ),
        "lifted": ad.lifted_net(A, B, ad.lifted_inputs(inputs)),
    }


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn", "elman", "stencil", "lifted"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_layer_passes(rng, name, dtype):
    layer = layers(rng, dtype)[name]
    x = (0.3 * rng.standard_normal(layer.initial_guess("default", None).shape)).astype(dtype)
    check_derivatives(layer, x).raise_if_wrong()


@pytest.mark.parametrize("entry", pde_gallery() + classic_problems(), ids=str)
def test_every_problem_of_the_gallery_passes(rng, entry):
    size = np.abs(entry.x0).max() or 1.0
    x = entry.x0 + 0.01 * size * rng.standard_normal(entry.x0.shape)
    check_derivatives(ims.Problem(entry.residual, jvp=entry.jvp), x).raise_if_wrong()


def test_no_unknowns_pass():
    report = ims.testing.check_derivatives(ims.Problem(lambda x: x**2, jvp=lambda x, v: 2 * x * v), np.zeros(0))
    assert report.ok


def test_a_direction_that_happens_to_be_short_is_no_error():
    a = np.linspace(0.5, 4, 50_000)[:, None]
    problem = ims.Problem(lambda x: x**2 - a, jvp=lambda x, v: 2 * x * v, batch_ndim=1)
    report = ims.testing.check_derivatives(problem, np.sqrt(a))
    assert report.ok, str(report)
    assert max(check.measured for check in report.checks) < 1e-8


def test_a_product_where_f_does_not_change_is_wrong():
    (wrong,) = [
        check
        for check in ims.testing.check_derivatives(
            ims.Problem(lambda x: 0 * x + 1, jvp=lambda x, v: v), np.ones(3)
        ).checks
        if not check.passed
    ]
    assert wrong.name == "jvp"


def test_a_derivative_of_a_parameter_that_f_does_not_contain_is_wrong():
    a = np.ones(2)
    problem = ims.Problem(
        lambda x: x**2 - 2,
        parameters={"a": a},
        parameter_jvp=lambda x, tangents: tangents["a"],
        parameter_vjp=lambda x, w: {"a": w},
    )
    report = ims.testing.check_derivatives(problem, a, build=lambda parameters: problem)
    assert not report.ok
    assert {check.name for check in report.checks if not check.passed} == {"parameter_jvp['a']", "parameter_vjp['a']"}
    assert all(np.isfinite(check.expected) for check in report.checks)
