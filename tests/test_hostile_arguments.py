"""Every public callable refuses values that no argument means, by a message that names the argument."""

from __future__ import annotations

import io
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import implicitsolve as ims
from implicitsolve import adapters, branches, diagnostics, drivers, elimination, monitor, precondition, testing
from implicitsolve.derivatives import jacobian_penalty
from tests.helpers.hostile import refuse_hostile_values


def squares(x: Any, a: Any = 2.0) -> Any:
    return x**2 - a


def line(u: Any) -> Any:
    padded = np.pad(u, 1)
    return 2 * u - padded[2:] - padded[:-2] + 0.1 * u**3 - 0.1


def cubes(c: Any) -> ims.Problem:
    return ims.Problem(lambda x: x**3 - c, batch_ndim=1, take=lambda rows: cubes(c[rows]))


RNG = np.random.default_rng(0)
X, ONES, TWO = RNG.standard_normal((2, 4, 2)), np.ones(6), np.zeros(3)
TRI = sps.csr_array(sps.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(6, 6)))
BAND = ims.BlockBanded(1, 1)
PARAMETERS = {
    name: getattr(adapters, f"{name}_parameters")(2, 3, rng=RNG)
    for name in ("gru", "lstm", "rnn", "elman", "stencil_gru", "diagonal_gru", "diagonal_lstm")
}
LAYER = adapters.implicit_gru(PARAMETERS["gru"], X)
SOLVED = ims.root(LAYER)
KNOWN = ims.root(lambda x, a: x**3 + x - a, np.ones(3), parameters={"a": np.ones(3)})
FIXED_POINT = ims.Problem(lambda x: x - 0.5 * np.cos(x), fixed_point=True)
SQUARE = ims.Problem(squares, jvp=lambda x, v: 2 * x * v)
DIRECT = {"pivoting": "auto", "refine": 0, "growth_limit": 16.0, "backend": "auto"}
MIXING = {"memory": 5, "damping": 1.0, "growth_limit": 10.0, "patience": 50, "preconditioned": True}
SOLVE = {"method": "auto", "stop": None, "monitor": None}
SIZES = {"d": 2, "k": 3, "scale": 0.1, "rng": RNG, "dtype": np.float64}
AT = {"problem": line, "x": ONES}
WEIGHTS = {name: 0.1 * np.ones((3, 3)) for name in ("W_Hf", "W_If", "W_Of", "W_Hb", "W_Ib", "W_Ob")}

# function, good arguments, those that take any object, and those that reach a function with errors of its own
CASES: list[tuple[Any, ...]] = [
    (ims.GMRES, {"restart": 3}),
    (ims.LGMRES, {"restart": 3, "outer_k": 2}),
    (ims.Anderson, MIXING | {"regularization": 1e-10}),
    (ims.Broyden, MIXING),
    (ims.Picard, {"damping": 1.0}),
    (ims.Backtracking, {"max_trials": 3, "growth_limit": 1e3}),
    (ims.Dogleg, {"max_trials": 3}),
    (ims.Wolfe, {"max_trials": 3}),
    (ims.EisenstatWalker, {"eta0": 0.1, "eta_max": 0.9, "gamma": 0.9, "alpha": 2.0}),
    (ims.ConstantForcing, {"eta": 0.1}),
    (ims.BlockBanded, {"lower": 1, "upper": 1, "block_size": 1, "periodic": False}),
    (ims.BlockBandedMatrix, {"blocks": np.ones((4, 3, 2, 2)), "lower": 1, "upper": 1, "periodic": False}),
    (ims.Grid, {"shape": (3, 3), "stencil": 1, "periodic": False, "fields": 1, "fields_last": False}),
    (ims.Sparse, {"pattern": TRI, "unknowns": 6}),
    (ims.BlockLU, DIRECT),
    (ims.CyclicReduction, DIRECT),
    (ims.SparseLU, {"engine": "auto"}),
    (ims.BlockNewton, {"factor": ims.BlockLU(), "reuse": "chord", "line_search": ims.FullStep(), "rdiff": 1e-7}),
    (ims.SparseNewton, {"structure": None, "budget": 9, "bisection": True, "line_search": ims.Wolfe()}),
    (ims.CausalNewton, {"bound": 2.0}),
    (ims.Homotopy, {"first_step": 0.2, "max_krylov": 20, "linear_rtol": 1e-3}),
    (ims.Lagged, {"preconditioner": precondition.BlockJacobi(), "eager": True, "structure": BAND}),
    (ims.LinearStop, {"rtol": 1e-6, "atol": 0.0, "max_iterations": 5}),
    (ims.NonlinearStop, {"atol": 1e-6, "rtol": 1e-3, "max_iterations": 9, "max_seconds": 3.0, "norm": "max"}),
    (ims.Preconditioned, {"inner": abs, "outer": ims.Anderson(), "side": "left", "sweeps": 1}),
    (ims.PseudoTransient, {"sign": 1, "mass": None, "first_step": 0.1, "increment": 2.0, "newton": None}, "mass"),
    (ims.TruncatedInverse, {"order": 1, "damping": 1.0}),
    (ims.ScipyKrylov, {"function": "gmres", "options": {}}),
    (ims.NewtonKrylov, {"krylov": None, "max_krylov": 5, "recycle": 20, "forcing": ims.ConstantForcing(),
        "preconditioner": None, "rdiff": 1e-7, "krylov_dtype": None, "retry": True}, "preconditioner"),
    (ims.LinearOperator, {"matvec": abs, "rmatvec": None, "in_shape": 2, "out_shape": 2, "batch_shape": (),
        "dtype": float}),
    (ims.Problem, {"residual": squares, "jvp": None, "vjp": None, "jac": None, "linearize": None, "structure": None,
        "blocks": None, "batch_ndim": 0, "parameters": None, "rejects": (), "fixed_point": False, "pure": False,
        "derivatives": None, "jac_approx": None, "bounds": None, "x_scale": None},
        "jac_approx"),
    (ims.aslinearoperator, {"A": np.eye(2)}),
    (ims.detect_structure, {"problem": line, "x0": ONES, "budget": 400, "bisection": True}, "", "x0"),
    (ims.jacobian, AT, "", "x"),
    (ims.plan, {"problem": line, "x0": ONES, "method": "auto", "bounds": None}),
    (ims.linear_solve, {"A": TRI, "b": ONES, "method": ims.GMRES(), "M": None, "x0": ONES, "stop": None}),
    (ims.root, {"problem": squares, "x0": [1.0, 1.0], "progress": False, "previous": None, "bounds": None,
        "x_scale": None, "f_scale": None, "jac_approx": None, "jac": None, "tol": 1e-8, **SOLVE}, "", "x0"),
    (ims.root, {"problem": squares, "x0": [1.0, 1.0], "parameters": {"a": 2.0}, "derivatives": None}, "", "parameters"),
    (ims.newton_krylov, {"residual": squares, "x0": [1.0, 1.0], "iter": None, "rdiff": 1e-8, "method": "lgmres",
        "inner_maxiter": 20, "outer_k": 10, "verbose": False, "maxiter": 10, "f_tol": 1e-6, "line_search": "armijo",
        "callback": None, "jvp": None, "jac": None, "structure": None, "batch_ndim": 0, "full_output": False,
        "inner_M": None}, "", "x0"),
    (ims.pull_back, {"problem": KNOWN.problem, "result": KNOWN, "cotangent": TWO, "method": None, "M": None, "x0": None,
        "stop": None, "wrt": ["a"]}),
    (ims.push_forward, {"problem": KNOWN.problem, "result": KNOWN, "tangents": {"a": TWO}, "method": None,
        "M": None, "x0": None, "stop": None}, "", "result"),
    (ims.continuation, {"problem": lambda x, lam: x**2 + lam - 1, "x0": [1.0], "start": 0.0, "stop": 0.5,
        "parameter": "lam", "interval": (0, 1), "direction": None, "step": 0.05, "max_step": 0.2, "max_points": 9,
        "max_evaluations": 99, "atol": 0.0, "branch_points": True, "eigenvalues": 0, "events": None}),
    (branches.further_solutions, {"problem": squares, "x0": [1.0], "known": [], "count": 1, "max_iterations": 9}),
    (jacobian_penalty, {"problem": LAYER, "result": SOLVED, "samples": 1, "rng": RNG}),
    (diagnostics.condition, AT | {"system": None}, "", "x"),
    (diagnostics.spectrum, AT | {"vectors": None, "system": None, "rng": RNG}, "", "x"),
    (diagnostics.contraction, {"problem": FIXED_POINT, "x": ONES, "vectors": None, "system": None, "rng": RNG}),
    (diagnostics.explain, {"result": KNOWN, "problem": None}),
    (diagnostics.report, {"result": KNOWN, "problem": None}),
    (drivers.checkpointed, {"problem": squares, "x0": [1.0], "every": 9, **SOLVE}, "", "path"),
    (drivers.race, {"problem": squares, "starts": [np.ones(2)], "rng": RNG, **SOLVE}),
    (drivers.solve_batch, {"problem": cubes(X[0]), "x0": X[0], "executor": ThreadPoolExecutor(1), "chunks": 1,
        "progress": None, "cancel": None, "previous": None, "method": "auto", "stop": None}, "", "x0"),
    (drivers.solve_stream, {"problem": LAYER, "x0": None, "batch_size": 2, **SOLVE}),
    (drivers.stream_gradients, {"problem": LAYER, "cotangent": SOLVED.x, "batch_size": 2, "adjoint_method": None,
        "adjoint_stop": None, "wrt": None, "failed": "count", "adjoint_monitor": None, **SOLVE}),
    (drivers.solve_sequences, {"build": abs, "sequences": list(X), "batch_size": 2, "window": 4, **SOLVE}),
    (elimination.even_odd, {"problem": LAYER}),
    (precondition.AMG, {"coarsening": "aggregation", "fields": 1, "fields_last": False, "coarsest": 9}),
    (precondition.ILU, {"drop_tolerance": 0.01, "fill": 4.0}),
    (precondition.BlockGaussSeidel, {"sweeps": 1, "order": "symmetric"}),
    (precondition.Neumann, {"order": 1, "scaled": True}),
    (testing.check_derivatives, {"problem": SQUARE, "x": ONES, "rng": RNG, "build": None}),
    (testing.dense, {"A": np.eye(2), "like": None}),
    (testing.dot_test, {"A": np.eye(2), "like": None, "rng": RNG}),
    (testing.structure_test, {"problem": ims.Problem(line, structure=BAND), "x": ONES, "rng": RNG}, "", "x"),
    (testing.taylor_test, {"problem": SQUARE, "x": ONES, "rng": RNG}),
    (monitor.log_to, {"logger": logging.getLogger(), "level": 20}),
    (monitor.progress_bar, {"stream": io.StringIO(), "label": ""}, "label"),
    (monitor.table, {"stream": io.StringIO()}),
    (adapters.gru_parameters, SIZES),
    (adapters.elman_parameters, SIZES | {"bias": True}),
    (adapters.rnn_parameters, SIZES | {"lower": 1, "upper": 1}),
    (adapters.stencil_gru_parameters, SIZES | {"offsets": (-1, 1)}),
    (adapters.approximate_fixed_point, {"problem": adapters.elman(PARAMETERS["elman"], X), "rho": 2, "x0": None}),
    (adapters.initial_guess, {"problem": LAYER, "kind": "one-step", "rng": RNG}),
    (adapters.lifted_feedforward, {"weights": [np.ones((3, 3))] * 2, "biases": None, "format": "sparse"}),
    (adapters.lifted_rnn, {"W_H": np.eye(3), "W_I": np.eye(3), "W_O": np.eye(3), "T": 2, "b": None, "outputs": "last",
        "initial": "zero", "format": "sparse"}),
    (adapters.lifted_birnn, WEIGHTS | {"T": 4, "bf": None, "initial": "zero", "format": "sparse"}),
    (adapters.lifted_inputs, {"sequences": X, "initial": None, "constant": False}),
    (adapters.lifted_net, {"A": np.zeros((3, 3)), "B": np.ones((3, 2)), "inputs": np.ones(2), "activation": "tanh"},
        ""),
    (adapters.project_well_posed, {"A": 0.1 * np.ones((3, 3)), "kappa": 0.95}),
    (adapters.well_posedness, {"A": 0.1 * np.ones((3, 3)), "lipschitz": 1.0}),
    *[(getattr(adapters, name), {"params": PARAMETERS[name.removeprefix("implicit_")], "inputs": X, "lengths": None,
        **others}) for name, others in [("implicit_gru", {"hs": TWO}), ("implicit_lstm", {"cs": TWO}),
        ("implicit_rnn", {"activation": "tanh"}), ("elman", {"h0": TWO}), ("stencil_gru", {"offsets": (-1, 1)}),
        ("diagonal_gru", {"h0": TWO}), ("diagonal_lstm", {"c0": TWO})]],
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0].__name__}: {', '.join(case[1])}" for case in CASES])
def test_foreign_errors_and_silent_acceptance(case: tuple[Any, ...], tmp_path: Any) -> None:
    function, good, *others = case
    path = {"path": tmp_path / "file"} if function in (diagnostics.report, drivers.checkpointed) else {}
    refuse_hostile_values(function, good | path, *others)


@pytest.mark.parametrize("name", ["plot_convergence", "plot_jacobian", "plot_spectrum", "plot_structure"])
def test_plots_refuse_them_too(name: str) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    first = {"plot_convergence": {"result": KNOWN, "against": "steps"}, "plot_structure": {"structure": BAND,
        "unknowns": 6}}.get(name, AT)  # fmt: skip
    refuse_hostile_values(getattr(diagnostics, name), first | {"ax": None}, own="x")
    plt.close("all")


def test_newton_batch_names_parameters_that_are_no_numbers() -> None:
    pytest.importorskip("numba")
    with pytest.raises(TypeError, match="`parameters` must hold numbers"):
        ims.newton_batch(lambda x, p: x**2 - p, np.ones((3, 1)), ["a", "b", "c"])


HINTS = [
    (lambda: ims.NewtonKrylov(restart=5), r"`restart`; did you mean krylov=GMRES\(restart"),
    (lambda: ims.NewtonKrylov(ims.GMRES()), "got 1: give the others by name, such as krylov="),
    (lambda: ims.GMRES(30), "by name, such as restart="),
    (lambda: ims.GMRES(tol=1e-3), "`tol`; it takes restart"),
    (lambda: ims.Grid((3, 3), fileds=2), "`fileds`; did you mean fields"),
    (lambda: ims.continuation(squares, [1.0], 1.0, 2.0, args=(3,)), r"`args`; did you mean .*lambda x: F\(x, \*args\)"),
    (lambda: ims.continuation(squares, [1.0], 1.0, 2.0, progress=True), "`progress`; did you mean monitor="),
    (lambda: ims.continuation(squares, [1.0], 1.0, 2.0, maxiter=9), "`maxiter`; did you mean max_points"),
    (lambda: ims.linear_solve(TRI, ONES, rtol=1e-3), r"`rtol`; did you mean stop=LinearStop\(rtol"),
    (lambda: ims.linear_solve(TRI, ONES, restart=9), r"`restart`; did you mean method=GMRES\(restart"),
    (lambda: ims.pull_back(KNOWN, TWO, tol=1e-3), "`tol`; did you mean stop"),
]


@pytest.mark.parametrize(("call", "message"), HINTS)
def test_unknown_keywords_are_refused_with_a_hint(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_grid_takes_its_shape_without_a_name() -> None:
    assert ims.Grid((3, 3)) == ims.Grid(shape=(3, 3))
