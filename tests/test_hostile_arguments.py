"""Every public callable refuses values that no argument means, by a message that names the argument."""

import io
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
X, ONES, ZEROS, I3 = RNG.standard_normal((2, 4, 2)), np.ones(6), np.zeros(3), 0.1 * np.eye(3)
TRI = sps.csr_array(sps.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(6, 6)))
BAND = ims.BlockBanded(1, 1)
LAYERS = ("gru", "lstm", "rnn", "elman", "stencil_gru", "diagonal_gru", "diagonal_lstm")
PARAMETERS = {name: getattr(adapters, f"{name}_parameters")(2, 3, rng=RNG) for name in LAYERS}
LAYER = adapters.implicit_gru(PARAMETERS["gru"], X)
SOLVED = ims.root(LAYER)
KNOWN = ims.root(lambda x, a: x**3 + x - a, np.ones(3), parameters={"a": np.ones(3)})
SQUARE = ims.Problem(squares, jvp=lambda x, v: 2 * x * v)
BANDED = ims.Problem(line, structure=BAND)
FIXED_POINT = ims.Problem(lambda x: x - 0.5 * np.cos(x), fixed_point=True)

SETTINGS = (ims.GMRES, ims.LGMRES, ims.Anderson, ims.Broyden, ims.Picard, ims.Backtracking, ims.Dogleg, ims.Wolfe,
    ims.EisenstatWalker, ims.ConstantForcing, ims.BlockLU, ims.CyclicReduction, ims.SparseLU, ims.BlockNewton,
    ims.SparseNewton, ims.CausalNewton, ims.Homotopy, ims.LinearStop, ims.NonlinearStop, ims.TruncatedInverse,
    precondition.AMG, precondition.ILU, precondition.BlockGaussSeidel, precondition.Neumann)  # fmt: skip
TEST = {setting.__name__: partial(refuse_hostile_values, setting) for setting in SETTINGS}


def add(function: Any, /, free: str = "", own: str = "", **good: Any) -> None:
    TEST[f"{function.__name__}: {', '.join(good)}"] = partial(refuse_hostile_values, function, free, own, **good)


add(ims.BlockBanded, lower=1, upper=1)
add(ims.BlockBandedMatrix, blocks=np.ones((4, 3, 2, 2)), lower=1, upper=1)
add(ims.Grid, shape=(3, 3))
add(ims.Sparse, pattern=TRI, unknowns=6)
add(ims.Lagged, preconditioner=precondition.BlockJacobi(), structure=BAND)
add(ims.NewtonKrylov, "preconditioner")
add(ims.Preconditioned, inner=abs)
add(ims.PseudoTransient, "mass", sign=1)
add(ims.ScipyKrylov, function="gmres", options={})
add(ims.LinearOperator, matvec=abs, in_shape=2, batch_shape=())
add(ims.Problem, "jac_approx name blocks_cost", residual=squares, rejects=())
add(ims.aslinearoperator, "name", A=np.eye(2))
add(ims.detect_structure, own="x0", problem=line, x0=ONES)
add(ims.jacobian, own="x", problem=line, x=ONES)
add(ims.plan, problem=line, x0=ONES)
add(ims.linear_solve, A=TRI, b=ONES, method=ims.GMRES())
add(ims.root, own="x0 parameters ramp", problem=squares, x0=[1.0, 1.0], jac=None, tol=1e-8)
add(ims.root, own="parameters ramp", problem=squares, x0=[1.0, 1.0], parameters={"a": 2.0})
add(ims.newton_krylov, own="x0", residual=squares, x0=[1.0, 1.0], rdiff=1e-8, maxiter=10)
add(ims.pull_back, problem=KNOWN.problem, result=KNOWN, cotangent=ZEROS)
add(ims.push_forward, own="result", problem=KNOWN.problem, result=KNOWN, tangents={"a": ZEROS})
add(ims.continuation, problem=lambda x, lam: x**2 + lam - 1, x0=[1.0], start=0.0, stop=0.5, max_points=9)
add(branches.further_solutions, problem=squares, x0=[1.0], known=[], count=1)
add(jacobian_penalty, problem=LAYER, result=SOLVED, rng=RNG)
add(diagnostics.condition, own="x", problem=line, x=ONES)
add(diagnostics.spectrum, own="x", problem=line, x=ONES)
add(diagnostics.contraction, problem=FIXED_POINT, x=ONES)
add(diagnostics.explain, result=KNOWN)
add(drivers.Nested, own="x0", problem=line, groups=[[0]], x0=ONES)
add(drivers.race, problem=squares, starts=[np.ones(2)])
add(drivers.solve_batch, own="x0", problem=cubes(X[0]), x0=X[0], executor=ThreadPoolExecutor(1))
add(drivers.solve_stream, problem=LAYER, batch_size=2)
add(drivers.stream_gradients, problem=LAYER, cotangent=SOLVED.x, batch_size=2)
add(drivers.solve_sequences, build=abs, sequences=list(X), batch_size=2)
add(elimination.even_odd, problem=LAYER)
add(testing.check_derivatives, problem=SQUARE, x=ONES)
add(testing.dense, A=np.eye(2))
add(testing.dot_test, A=np.eye(2))
add(testing.structure_test, own="x", problem=BANDED, x=ONES)
add(testing.taylor_test, problem=SQUARE, x=ONES)
add(monitor.log_to, logger=logging.getLogger())
add(monitor.progress_bar, "label", stream=io.StringIO())
add(monitor.table, stream=io.StringIO())
for layer in LAYERS:
    add(getattr(adapters, f"{layer}_parameters"), d=2, k=3, rng=RNG, dtype=np.float64)
    maker = getattr(adapters, layer, None) or getattr(adapters, f"implicit_{layer}")
    add(maker, params=PARAMETERS[layer], inputs=X, **({"offsets": (-1, 1)} if layer == "stencil_gru" else {}))
add(adapters.approximate_fixed_point, problem=adapters.elman(PARAMETERS["elman"], X), rho=2)
add(adapters.initial_guess, problem=LAYER)
add(adapters.lifted_feedforward, weights=[I3, I3])
add(adapters.lifted_rnn, W_H=I3, W_I=I3, W_O=I3, T=2)
add(adapters.lifted_birnn, W_Hf=I3, W_If=I3, W_Of=I3, W_Hb=I3, W_Ib=I3, W_Ob=I3, T=4)
add(adapters.lifted_inputs, sequences=X)
add(adapters.lifted_net, A=I3, B=np.ones((3, 2)), inputs=np.ones(2))
add(adapters.project_well_posed, A=I3)
add(adapters.well_posedness, A=I3)


@pytest.mark.parametrize("test", TEST.values(), ids=TEST)
def test_foreign_errors_and_silent_acceptance(test: Any) -> None:
    test()


def test_files_and_plots_refuse_them_too(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # a text is the name of a file
    refuse_hostile_values(diagnostics.report, own="path", result=KNOWN, path=tmp_path / "page.html")
    refuse_hostile_values(drivers.checkpointed, own="path", problem=squares, x0=[1.0], path=tmp_path / "state.npz")
    plt = pytest.importorskip("matplotlib.pyplot")
    refuse_hostile_values(diagnostics.plot_convergence, "label", result=KNOWN)
    refuse_hostile_values(diagnostics.plot_structure, structure=BAND, unknowns=6)
    refuse_hostile_values(diagnostics.plot_jacobian, own="x", problem=line, x=ONES)
    refuse_hostile_values(diagnostics.plot_spectrum, own="x", problem=line, x=ONES)
    plt.close("all")


HINTS = {
    r"`restart`; did you mean krylov=GMRES\(restart": lambda: ims.NewtonKrylov(restart=5),
    "got 1: give the others by name, such as krylov=": lambda: ims.NewtonKrylov(ims.GMRES()),
    "by name, such as restart=": lambda: ims.GMRES(30),
    "`tol`; it takes restart": lambda: ims.GMRES(tol=1e-3),
    "`field`; did you mean fields": lambda: ims.Grid((3, 3), field=2),
    r"`args`; did you mean .*lambda x: F\(x, \*args\)": lambda: ims.continuation(squares, [1.0], 1.0, 2.0, args=(3,)),
    "`progress`; did you mean monitor=": lambda: ims.continuation(squares, [1.0], 1.0, 2.0, progress=True),
    "`maxiter`; did you mean max_points": lambda: ims.continuation(squares, [1.0], 1.0, 2.0, maxiter=9),
    r"`rtol`; did you mean stop=LinearStop\(rtol": lambda: ims.linear_solve(TRI, ONES, rtol=1e-3),
    r"`restart`; did you mean method=GMRES\(restart": lambda: ims.linear_solve(TRI, ONES, restart=9),
    "`tol`; did you mean stop": lambda: ims.pull_back(KNOWN, ZEROS, tol=1e-3),
}


@pytest.mark.parametrize(("message", "call"), HINTS.items(), ids=range(len(HINTS)))
def test_unknown_keywords_are_refused_with_a_hint(message: str, call: Any) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_grid_takes_its_shape_without_a_name() -> None:
    assert ims.Grid((3, 3)) == ims.Grid(shape=(3, 3))
