"""First steps of a user who knows SciPy: each works, or a message names the argument and its replacement."""

import math
import pickle
import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sps
import scipy.sparse.linalg as spla

import implicitsolve as ims

N = 30
A = sps.csc_array(sps.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(N, N)))


def cubic(x: Any) -> list[Any]:
    """The example of `scipy.optimize.root`."""
    return [x[0] + 0.5 * (x[0] - x[1]) ** 3 - 1.0, 0.5 * (x[1] - x[0]) ** 3 + x[1]]


def cubic_jacobian(x: Any) -> Any:
    d = 1.5 * (x[0] - x[1]) ** 2
    return np.array([[1 + d, -d], [-d, 1 + d]])


CUBIC_ROOT = [0.8411639, 0.1588361]


def squares(x: Any, a: Any = 2.0) -> Any:
    return x**2 - a


def diffusion(x: Any) -> Any:
    return A @ x + 0.1 * x**3 - 1


def integral(P: Any) -> Any:
    """The large example of `scipy.optimize.root`: an integrodifferential equation on a square, 15 x 15 here."""
    n = P.shape[0]
    h = 1.0 / (n - 1)
    d2x, d2y = np.zeros_like(P), np.zeros_like(P)
    d2x[1:-1] = (P[2:] - 2 * P[1:-1] + P[:-2]) / h / h
    d2x[0] = (P[1] - 2 * P[0]) / h / h
    d2x[-1] = (-2 * P[-1] + P[-2]) / h / h
    d2y[:, 1:-1] = (P[:, 2:] - 2 * P[:, 1:-1] + P[:, :-2]) / h / h
    d2y[:, 0] = (P[:, 1] - 2 * P[:, 0]) / h / h
    d2y[:, -1] = (1 - 2 * P[:, -1] + P[:, -2]) / h / h
    with np.errstate(over="ignore"):  # far from the root, at trial points
        return d2x + d2y + 5 * np.mean(np.cosh(P)) ** 2


WORKS = {
    "root: list from list": lambda: ims.root(cubic, [0, 0]).x - CUBIC_ROOT,
    "root: jac": lambda: ims.root(cubic, [0, 0], jac=cubic_jacobian).x - CUBIC_ROOT,
    "root: jac=True": lambda: ims.root(lambda x: (cubic(x), cubic_jacobian(x)), [0, 0], jac=True).x - CUBIC_ROOT,
    "root: jac=False": lambda: ims.root(cubic, [0, 0], jac=False).x - CUBIC_ROOT,
    "root: args": lambda: ims.root(squares, [1.0, 2.0], args=(9.0,)).x - 3,
    "root: args, not a tuple": lambda: ims.root(squares, 2.0, args=4.0).x - 2,
    "root: args and jac": lambda: ims.root(squares, [1.0], args=(9.0,), jac=lambda x, a: np.diag(2 * x)).x - 3,
    "root: tol": lambda: ims.root(squares, [1.0], tol=1e-13).fun * 1e6,
    "root: tol of a problem": lambda: ims.root(ims.Problem(squares), [1.0], tol=1e-13).fun * 1e6,
    "root: a number": lambda: ims.root(lambda x: x - np.cos(x), 0.5).x - 0.7390851332,
    "root: a number from fsolve's example": lambda: ims.root(lambda x: x + 2 * np.cos(x), 0.3).x + 1.0298665293,
    "root: x0 unchanged": lambda: (x0 := np.ones(2), ims.root(squares, x0), x0)[2] - 1,
    "root: partial": lambda: ims.root(partial(squares, a=4.0), [1.0]).x - 2,
    "root: complex": lambda: ims.root(lambda z: z**2 + 1, 0.5 + 0.5j).x - 1j,
    "drop-in: integers": lambda: ims.newton_krylov(cubic, [0, 0]) - CUBIC_ROOT,
    "drop-in: its example": lambda: ims.newton_krylov(
        lambda x: [x[0] + 0.5 * x[1] - 1.0, 0.5 * (x[1] - x[0]) ** 2], [0, 0], f_tol=1e-12
    ) - 2 / 3,
    "drop-in: xin=, F=": lambda: ims.newton_krylov(F=cubic, xin=[0, 0]) - CUBIC_ROOT,
    "drop-in: 2-D": lambda: integral(ims.newton_krylov(integral, np.zeros((15, 15)), method="lgmres")),
    "drop-in: gmres": lambda: integral(ims.newton_krylov(integral, np.zeros((15, 15)), method="gmres")),
    "drop-in: F as a column": lambda: ims.newton_krylov(lambda x: squares(x)[:, None], [1.0, 2.0]) - 2**0.5,
    "drop-in: OptimizeResult": lambda: ims.newton_krylov(squares, [1.0], full_output=True)[1]["x"] - 2**0.5,
    "drop-in: NoConvergence": lambda: raised(maxiter=1) - 1.5,
    "drop-in: maxiter=0": lambda: raised(maxiter=0) - 1,
    "root: previous without x0": lambda: ims.root(squares, previous=ims.root(squares, [1.0])).x - 2**0.5,
    "root: a bound of None": lambda: ims.root(squares, [1.0], bounds=(0, None)).x - 2**0.5,
    "root: bounds with None in them": lambda: ims.root(squares, [1.0, -1], bounds=([0, None], [None, 0])).x ** 2 - 2,
    "root: monitor=True": lambda: ims.root(squares, [1.0], monitor=True).x - 2**0.5,
    "root: progress=True": lambda: ims.root(squares, [1.0], progress=True).x - 2**0.5,
    "result['x']": lambda: ims.root(squares, [1.0])["x"] - 2**0.5,
    "result.nfev, nit, njev": lambda: (r := ims.root(squares, [1.0]), [r.nfev - r["counts"].residuals,
        r.nit - r.iterations, r.njev - r.counts.linearizations])[1],
    "result.jacobian()": lambda: ims.root(diffusion, np.zeros(N)).jacobian().to_sparse("csr").nnz - A.nnz,
    "result.jacobian() of few": lambda:
        ims.root(squares, [1.0, 2.0], x_scale=2.0).jacobian().todense() - 8**0.5 * np.eye(2),
    "result from a pickle": lambda: pickle.loads(pickle.dumps(ims.root(squares, [1.0]))).x - 2**0.5,
    "F of float32": lambda: ims.root(lambda x: squares(x).astype(np.float32), np.ones(30)).x - 2**0.5,
    "F in float32": lambda: ims.root(lambda x: squares(x.astype(np.float32), np.linspace(1, 2, 30)).astype(float),
        np.ones(30)).x ** 2 - np.linspace(1, 2, 30),
    "drop-in: F in float32": lambda: ims.newton_krylov(lambda x: squares(x.astype(np.float32)), np.ones(3)) - 2**0.5,
    "F of fractions": lambda: ims.root(lambda x: [Fraction(float(v)) ** 2 - 2 for v in x], [1.0, 2.0]).x - 2**0.5,
    "F of Decimals": lambda: ims.root(lambda x: [Decimal(float(v)) ** 2 - 2 for v in x], [1.0, 2.0]).x - 2**0.5,
    "jac: np.matrix": lambda: ims.root(squares, [1.0, 2.0], jac=lambda x: np.diag(2 * x).view(np.matrix)).x - 2**0.5,
    "jac: lists": lambda: ims.root(squares, [1.0, 2.0], jac=lambda x: np.diag(2 * x).tolist()).x - 2**0.5,
    "jac: objects": lambda: ims.root(squares, [1.0, 2.0], jac=lambda x: np.diag(2 * x).astype(object)).x - 2**0.5,
    "jac: a frame": lambda: ims.root(squares, [1.0, 2.0], jac=lambda x: Frame(np.diag(2 * x))).x - 2**0.5,
    "fsolve: a tuple of math": lambda: ims.root(lambda p: (p[0] + p[1] ** 2 - 4, math.exp(p[0]) + p[0] * p[1] - 3),
        (1, 1)).x - [0.6203445, 1.8383839],
    "Kepler's equation": lambda: ims.root(lambda E: E - 0.9 * np.sin(E) - 1.2, 1.2).x - 2.01331023,
    "friction factors": lambda: ims.root(lambda f, Re: f**-0.5 + 2 * np.log10(2.51 / (Re * f**0.5)), np.full(2, 0.01),
        args=(np.array([1e5, 1e6]),), bounds=(1e-6, 1)).x - [0.0179917, 0.0116453],
    "square root of a matrix": lambda: ims.root(lambda X: X @ X - [[2.0, 1], [1, 3]], np.eye(2)).x - [
        [1.3763819, 0.3249197], [0.3249197, 1.7013016]],
    "arrays of one shape": lambda: ims.root(lambda x: x - [[1.0, 2.0], [3.0, 4.0]], (np.zeros(2), np.zeros(2))).x - [
        [1, 2], [3, 4]],
    "F writes into x": lambda: ims.root(lambda x: np.multiply(x, x, out=x) - 2, [1.0, 2.0]).x - 2**0.5,
    "F is rounded": lambda: ims.root(lambda x: (x**2 - 2).round(12), [1.0, 2.0]).x - 2**0.5,
    "float32": lambda: ims.root(squares, np.ones(3, np.float32)).x - 2**0.5,
    "a bool": lambda: ims.root(lambda x: x - 0.5, True).x - 0.5,
    "tiny numbers": lambda: 1e20 * ims.root(lambda x: x**3 - 1e-60, 1e-19).x - 1,
    "a double root": lambda: ims.root(lambda x: [(x[0] - 1) ** 2, x[1] - 2], [3.0, 3.0]).x - [1, 2],
    "an arm of two links": lambda: ims.root(lambda q: [np.cos(q[0]) + 0.8 * np.cos(q.sum()) - 1.2,
        np.sin(q[0]) + 0.8 * np.sin(q.sum()) - 0.7], [0.1, 0.1]).x - [-0.0739532, 1.388539],
    "van der Waals' gas": lambda: 1e3 * ims.root(lambda V: (1e6 + 0.364 / V**2) * (V - 4.27e-5) - 2660.48, 2e-3).x
        - 2.5635547,
    "Cournot's oligopoly": lambda: ims.root(lambda q: 90 - q - q.sum() - [0, 10, 20], np.ones(3)).x - [30, 20, 10],
    "a boundary value problem": lambda: np.diff(ims.newton_krylov(lambda T: np.concatenate([[T[0] - 1],
        np.diff(T, 2), [T[-1]]]), np.zeros(20))) + 1 / 19,
    "bounds of numbers": lambda: ims.root(squares, 1.0, bounds=(0, 5)).x - 2**0.5,
    "derivative by a parameter": lambda: ims.push_forward(ims.root(lambda x, a: x**2 - a, [1.0], parameters={"a": 4.0}),
        {"a": 1.0}).tangent - 0.25,
    "a fold": lambda: ims.continuation(lambda x, lam: x**2 + lam - 1, [1.0], 0.0, 2.0).of_kind("fold")[0].lam - 1,
    "jac: a number": lambda: ims.root(squares, 1.0, jac=lambda x: 2 * x).x - 2**0.5,
    "jac: an array of one": lambda: ims.root(squares, [1.0], jac=lambda x: 2 * x).x - 2**0.5,
    "jac=True: numbers": lambda: ims.root(lambda x: (x**2 - 2, 2 * x), 1.0, jac=True).x - 2**0.5,
}  # fmt: skip


def each(what: str, cases: dict[str, Any], solve: Any) -> dict[str, Any]:
    return {f"{what}: {name}": partial(solve, case) for name, case in cases.items()}


def of_jacobian(jac: Any) -> Any:
    return ims.root(squares, [1.0, 2.0], jac=jac).x - 2**0.5


VALUES = {
    "numbers of float32": lambda F: [np.float32(v) for v in F],
    "a tuple of arrays": lambda F: tuple(map(np.asarray, F)),
    "objects": lambda F: F.astype(object),
    "long double": lambda F: F.astype(np.longdouble),
    "float16": lambda F: F.astype(np.float16),
    "memory": memoryview,
    "records": np.rec.array,
    "every second number": lambda F: np.repeat(F, 2)[::2],
    "read-only": lambda F: np.broadcast_to(F, F.shape),
    "numbers with a unit": lambda F: F.view(Quantity),
}
WORKS |= each("F", VALUES, lambda change: ims.root(lambda x: change(squares(x)), [1.0, 2.0]).x - 2**0.5)
MATRICES = {
    "matrix of mpmath": lambda J: Rows(J.tolist()),
    "rows": sps.csr_matrix,
    "diagonals": sps.dia_array,
    "operator": spla.aslinearoperator,
    "float32": lambda J: J.astype(np.float32),
}
WORKS |= each("jac", MATRICES, lambda change: of_jacobian(lambda x: change(np.diag(2 * x))))
OPTIONS = {
    "monitor: any number": {"monitor": lambda *seen: None},
    "monitor: a default": {"monitor": lambda step, x, F, log=[]: log.append(step)},
    "monitor: partial": {"monitor": partial(lambda tag, step, x, F: None, "tag")},
    "monitor: of NumPy": {"monitor": np.False_, "progress": np.False_},
    "bounds: of SciPy": {"bounds": scipy.optimize.Bounds([0, 0], 2)},
    "bounds: lists": {"bounds": ([0, -1], [2, 3])},
    "bounds: a list": {"bounds": [None, 5]},
}
WORKS |= each("root", OPTIONS, lambda given: ims.root(squares, [1.0, 1.5], **given).x - 2**0.5)


class Frame:
    """Stands for a DataFrame of pandas, or a matrix of SymPy: two axes, converted by NumPy."""

    def __init__(self, values: Any) -> None:
        self.values, self.shape = values, values.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


class Quantity(np.ndarray):
    """Stands for an array with a unit, which refuses to become a number."""

    def __float__(self) -> float:
        raise TypeError("only dimensionless quantities are numbers")


class Rows:
    """Stands for a matrix of mpmath, which NumPy takes for a flat list."""

    def __init__(self, rows: Any) -> None:
        self.tolist = rows.copy


def raised(**options: Any) -> Any:
    """The iterate that SciPy's exception carries, caught as SciPy's."""
    try:
        ims.newton_krylov(squares, [1.0], **options)
    except scipy.optimize.NoConvergence as error:
        return error.args[0]
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("step", WORKS.values(), ids=WORKS)
def test_it_works(step: Any) -> None:
    np.testing.assert_allclose(step(), 0, atol=1e-5)


root, drop_in = partial(ims.root, squares, [1.0]), partial(ims.newton_krylov, squares, [1.0])
NAMES_THE_WAY = {
    # what: (call, exception, words of the message)
    "callback": (partial(root, callback=print), TypeError, "`callback`.*monitor="),
    "bounds": (partial(root, bounds=(2, 3)), ValueError, "`x0` must lie within `bounds`.*np.clip"),
    "options": (partial(root, options={"maxiter": 3}), TypeError, "`options`.*max_iterations"),
    "maxfev": (partial(root, maxfev=3), TypeError, "`maxfev`.*max_evaluations"),
    "xtol": (partial(root, xtol=1e-3), TypeError, r"`xtol`.*NonlinearStop\(xtol="),
    "fprime": (partial(root, fprime=abs), TypeError, "`fprime`.*jac="),
    "full_output": (partial(root, full_output=True), TypeError, "`full_output`.*`counts`"),
    "verbose": (partial(root, verbose=True), TypeError, "`verbose`.*monitor"),
    "structure": (partial(root, structure=ims.BlockBanded(1, 1)), TypeError, r"`structure`.*Problem\(.*structure="),
    "atol": (partial(root, atol=1e-3), TypeError, r"`atol`.*NonlinearStop\(.*atol="),
    "line_search": (partial(root, line_search="wolfe"), TypeError, r"`line_search`.*NewtonKrylov\("),
    "misspelled": (partial(root, monitors=None), TypeError, "`monitors`.*`monitor`"),
    "unknown": (partial(root, nonsense=1), TypeError, "`nonsense`"),
    "tol and stop": (partial(root, tol=1e-3, stop=ims.NonlinearStop()), TypeError, "`tol` or `stop`"),
    "tol of wrong type": (partial(root, tol="tight"), TypeError, "`tol`.*real number"),
    "jac='2-point'": (partial(root, jac="2-point"), TypeError, "`jac`.*2-point"),
    "args of a problem": (partial(ims.root, ims.Problem(squares), [1.0], args=(1,)), TypeError, "`args`.*Problem"),
    "no x0": (partial(ims.root, squares), TypeError, "`x0` is needed"),
    "F is an array": (partial(ims.root, np.eye(2), [1.0]), TypeError, "`residual` must be callable"),
    "a class as method": (partial(root, method=ims.NewtonKrylov), TypeError, r"write NewtonKrylov\(\)"),
    "a Krylov method as method": (partial(root, method=ims.GMRES()), TypeError, r"NewtonKrylov\(krylov=GMRES"),
    "drop-in args": (partial(drop_in, args=(1,)), TypeError, "`args`.*lambda"),
    "drop-in tol": (partial(drop_in, tol=1e-3), TypeError, "`tol`.*f_tol="),
    "drop-in options": (partial(drop_in, options={}), TypeError, "`options`.*keywords"),
    "drop-in method": (partial(drop_in, method="newton"), ValueError, "`method`.*bicgstab"),
    "F as a column": (partial(ims.root, lambda x: x[:, None], np.ones(2)), ValueError, r"`residual`.*\(2,\).*\(2, 1\)"),
    "F returns nothing": (partial(ims.root, lambda x: None, [1.0]), TypeError, "`residual` returned None"),
    "F is too long": (partial(ims.root, lambda x: np.ones(3), np.ones(2)), ValueError, r"`residual`.*\(2,\).*\(3,\)"),
    "too many equations": (partial(ims.root, lambda x: [1.0, *x], [1.0]), ValueError, "`residual`.*least_squares"),
    "F is a generator": (partial(ims.root, lambda x: (v for v in x), [1.0]), TypeError, "`residual`.*got generator"),
    "text": (partial(ims.root, squares, ["a"]), TypeError, "`x0` must hold real or complex numbers"),
    "None": (partial(ims.root, squares, [None]), TypeError, "`x0` must hold real or complex numbers"),
    "ragged": (partial(ims.root, squares, [[1.0], [1.0, 2.0]]), ValueError, "`x0`.*one shape"),
    "masked": (partial(ims.root, squares, np.ma.ones(2)), TypeError, "`x0` must not be a masked array"),
    "arrays of several shapes": (partial(ims.root, squares, [np.ones(2), np.ones(3)]), ValueError, "`x0`.*concatenate"),
    "Decimals as x0": (partial(ims.root, squares, [Decimal(1)]), TypeError, r"`x0`.*Decimal.*dtype=float"),
    "F as a frame": (partial(ims.root, lambda x: Frame(squares(x)[:, None]), np.ones(2)), ValueError,
        r"`residual`.*a Frame of shape \(2, 1\): flatten it by np.ravel"),
    "F of None": (partial(ims.root, lambda x: [None, 1.0], np.ones(2)), TypeError, "`residual`.*NoneType"),
    "monitor of SciPy's form": (partial(root, monitor=lambda x, F: None), TypeError,
        r"monitor\(step, x, F\).*\(x, F\)"),
    "monitor of one argument": (partial(root, monitor=lambda x: None), TypeError, r"`monitor`.*monitor\(step, x, F\)"),
    "monitor of four": (partial(root, monitor=lambda a, b, c, d: None), TypeError, r"`monitor`.*monitor\(step, x, F\)"),
    "pairs of bounds": (partial(root, bounds=[(0, 2)]), TypeError, r"`bounds`.*1 pairs.*zip"),
    "two pairs of bounds": (partial(root, bounds=[(0, 1), (2, 3)]), TypeError, r"`bounds`.*2 pairs.*zip"),
    "pairs of bounds with None": (partial(root, bounds=[(0, None)] * 3), TypeError, r"`bounds`.*3 pairs.*zip"),
    "a tuple of pairs of bounds": (partial(root, bounds=((0, 4), (1, 5))), TypeError, r"`bounds`.*2 pairs.*zip"),
    "jac='cs'": (partial(root, jac="cs"), TypeError, "`jac`.*'cs'.*differences"),
    "jac_sparsity": (partial(root, jac_sparsity=A), TypeError, r"`jac_sparsity`.*structure=Sparse.*detected"),
    "Problem(jacobian=)": (partial(ims.Problem, squares, jacobian=abs), TypeError, "`jacobian`; did you mean jac"),
    "Problem(fprime=)": (partial(ims.Problem, squares, fprime=abs), TypeError, "`fprime`; did you mean jac"),
    "Problem(parameter=)": (partial(ims.Problem, squares, parameter={}), TypeError,
        "`parameter`; did you mean parameters"),
    "stop(tol=)": (partial(ims.NonlinearStop, tol=1e-3), TypeError, "`tol`; did you mean xtol.*atol"),
    "stop(maxiter=)": (partial(ims.NonlinearStop, maxiter=3), TypeError, "`maxiter`; did you mean max_iterations"),
    "stop(ftol=)": (partial(ims.NonlinearStop, ftol=1e-3), TypeError, "`ftol`; did you mean rtol"),
    "linear stop(tol=)": (partial(ims.LinearStop, atoll=1e-3), TypeError, "`atoll`; did you mean atol"),
    "F of a comparison": (partial(ims.root, lambda x: x > 1, np.ones(2)), TypeError, "`residual`.*got dtype bool"),
    "a line search by name": (lambda: ims.NewtonKrylov(line_search="armijo"), TypeError, r"such as Backtracking\(\)"),
    "a preconditioner by name": (partial(root, method=ims.NewtonKrylov(preconditioner="ilu")), TypeError, r"ILU\(\)"),
    "a matrix as structure": (partial(ims.Problem, squares, structure=A), TypeError, r"csc_array: Sparse\(matrix"),
    "a gradient without J^H": (lambda: ims.pull_back(ims.root(squares, [1.0]), [1.0]), TypeError, '="trace"'),
    "SciPy's name of a scalar root": (lambda: ims.root(squares, [1.0]).root, AttributeError, "`result.x` takes"),
    "whether a root has converged": (lambda: ims.root(squares, [1.0]).converged, AttributeError, "result.success"),
    "the flag of fsolve": (lambda: ims.root(squares, [1.0])["ier"], KeyError, "result.status"),
    "J of another library's result": (lambda: ims.root(squares, [1.0]).fjac, AttributeError, r"result.jacobian\(\)"),
    "a name of no library": (lambda: ims.root(squares, [1.0]).colour, AttributeError, "has no attribute 'colour'"),
    "a result as a sequence": (lambda: list(ims.root(squares, [1.0])), TypeError, "result.x"),
    "a key of no result": (lambda: ims.root(squares, [1.0])["y"], KeyError, "y"),
    "J of a copied result": (lambda: pickle.loads(pickle.dumps(ims.root(squares, [1.0]))).jacobian(), TypeError,
        r"implicitsolve.jacobian\(problem, result.x\)"),
    "a branch by mu": (partial(ims.continuation, squares, [1.0], 1, 2, parameter="mu"), TypeError, "got 'mu'"),
    "drop-in callback of one": (partial(drop_in, callback=lambda x: None), TypeError, r"callback\(x, F\).*\(x\)"),
    "F of two arguments": (partial(ims.root, lambda x, a: x - a, [1.0]), TypeError, "missing 1 .*'a': .*`args`"),
    "F of numbers": (partial(ims.root, lambda x, y: [x - y, x], [1.0, 2.0]), TypeError, "the array of all unknowns"),
    "a method without self": (partial(ims.root, type("M", (), {"F": lambda: 1})().F, [1.0]), TypeError, "takes 0.*all"),
    "parameters but one": (partial(ims.root, lambda x, a, b: x - a * b, [1.0], parameters={"a": 1.0}), TypeError,
        "missing 1 .*'b': .*`parameters`"),
    "jac with arguments": (partial(root, jac=lambda x, a: 2 * x), TypeError, "missing 1 .*'a': .*`args`"),
    "jac=True without J": (partial(root, jac=True), TypeError, r"pair \(F, J\), got ndarray"),
    "a branch of two": (lambda: ims.continuation(lambda x, *, a=1, b=2: x, [1.0], 0, 1), TypeError, "parameter='a'"),
}  # fmt: skip


NAMES = {"fsolve": "'fsolve': implicitsolve.root", "fixed_point": "fixed_point=True", "grad": "pull_back",
    "petsc": "import implicitsolve.petsc", "least_squares": "scipy.optimize.least_squares", "gmres": "'GMRES'",
    "Newtonkrylov": "did you mean 'NewtonKrylov'", "explain": "'diagnostics.explain'", "ILU": "'precondition.ILU'",
    "check_derivative": "'testing.check_derivatives'", "Bounds": "scipy.optimize.Bounds"}  # fmt: skip
NAMES_THE_WAY |= {name: (partial(ims.__getattr__, name), AttributeError, way) for name, way in NAMES.items()}
METHODS = {"krylov": '"newton-krylov"', "hybr": '"auto"', "lm": "least_squares", "df-sane": '"newton-krylov"',
    "broyden1": '"broyden"', "newton_krylov": "did you mean 'newton-krylov'", "newton": '"auto", or'}  # fmt: skip
NAMES_THE_WAY |= {name: (partial(root, method=name), ValueError, f"`method`.*{way}") for name, way in METHODS.items()}
GIVEN = {"an array": (np.ones(1), "got ndarray: pass arrays"), "a list": ([1.0], "got list: pass arrays as x0"),
    "a path": ("r.npz", "got str"), "of SciPy": (scipy.optimize.OptimizeResult(x=1), "pass its x as x0")}  # fmt: skip
NAMES_THE_WAY |= {f"previous: {what}": (partial(ims.root, squares, previous=value), TypeError, f"`previous`.*{way}")
    for what, (value, way) in GIVEN.items()}  # fmt: skip
KEYWORDS = dict.fromkeys(["x", "guess", "xin"], ": the start is .*`x0`")
KEYWORDS |= dict.fromkeys(["J", "Dfun", "jacobian"], ": pass jac=f") | {"band": ": pass .*structure=", "rng": "$"}
NAMES_THE_WAY |= {name: (partial(root, **{name: abs}), TypeError, f"`{name}`{way}") for name, way in KEYWORDS.items()}
A_LIST, DOUBLE = "pass an array, or a list of numbers", r"dtype=float"
STARTS = [("text", A_LIST), ({1.0}, A_LIST), (iter("ab"), A_LIST), (A, "toarray"), (np.zeros(2, "M8[D]"), A_LIST),
    ([Fraction(1, 2)], DOUBLE), (np.array([1, 2.5], object), DOUBLE), ([{"u": 1}], "concatenate"),
    (map(abs, [1]), "list"), (np.zeros(2, "f8,f8"), "a dict of its"), (np.ones(2, np.longdouble), DOUBLE)]  # fmt: skip
NAMES_THE_WAY |= {f"x0: {x0!s:.9}": (partial(ims.root, squares, x0), TypeError, f"`x0`.*{way}") for x0, way in STARTS}
NAMES_THE_WAY |= {
    f"{name}: {value!s:.20}": (partial(root, **{name: value}), TypeError, f"`{name}`.*{way}")
    for name, value, way in [("monitor", "table", "True for a table, got str"), ("monitor", 3, "got int"),
        ("monitor", [].append, r"monitor\(step, x, F\)"), ("progress", "bar", "True or False"),
        ("progress", print, "True"), ("bounds", np.array([[0, 2]] * 2), "zip"), ("bounds", {"lower": 0}, "Bounds"),
        ("bounds", (0, 1, 2), "Bounds")]
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), NAMES_THE_WAY.values(), ids=NAMES_THE_WAY)
def test_the_message_names_the_argument_and_the_way(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert re.search(message, str(caught.value)), str(caught.value)


def multigrid() -> Any:
    return pytest.importorskip("pyamg").smoothed_aggregation_solver(sps.csr_matrix(A), max_coarse=5)


LU = spla.splu(A)
INVERSES = {
    "splu": lambda: LU,
    "splu's solve": lambda: LU.solve,
    "spilu": lambda: spla.spilu(A),
    "function of r": lambda: lambda r: LU.solve(r),
    "function of r with defaults": lambda: lambda r, lu=LU: lu.solve(r),
    "function of (x, F)": lambda: lambda x, F: LU,
    "sparse inverse": lambda: sps.csr_array(np.linalg.inv(A.toarray())),
    "array": lambda: np.linalg.inv(A.toarray()),
    "scipy operator": lambda: spla.LinearOperator((N, N), LU.solve),
    "multigrid": multigrid,
    "multigrid operator": lambda: multigrid().aspreconditioner(),
}


@pytest.mark.parametrize("make", INVERSES.values(), ids=INVERSES)
def test_kinds_of_preconditioners_are_distinguished(make: Any) -> None:
    """splu(A).solve was called as (x, F), and splu(A) was refused."""
    M = make()
    plain = ims.root(diffusion, np.zeros(N), method=ims.NewtonKrylov(recycle=0))
    result = ims.root(diffusion, np.zeros(N), method=ims.NewtonKrylov(preconditioner=M, recycle=0))
    assert result.success
    assert result.krylov_iterations < plain.krylov_iterations
    assert np.max(np.abs(diffusion(ims.newton_krylov(diffusion, np.zeros(N), inner_M=M)))) < 6e-6


@pytest.mark.parametrize("kind", ["splu", "splu's solve", "function of r", "multigrid"])
def test_linear_solves_take_them_too(kind: str) -> None:
    b = np.arange(1.0, N + 1)
    result = ims.linear_solve(A, b, M=INVERSES[kind](), method=ims.GMRES())
    assert result.success
    assert result.iterations < ims.linear_solve(A, b, method=ims.GMRES()).iterations


def test_a_preconditioning_function_sees_the_shape_of_x() -> None:
    shapes = set()

    def jacobi(r: Any) -> Any:
        shapes.add(r.shape)
        return r / 4

    problem = ims.Problem(lambda x: 4 * x + x**3 - 1, batch_ndim=1)
    for F, x0 in ((problem, np.zeros((3, 2))), (problem.residual, np.zeros((2, 5)))):
        assert np.all(ims.root(F, x0, method=ims.NewtonKrylov(preconditioner=jacobi)).success)
    assert shapes == {(3, 2), (2, 5)}


def test_factors_solve_with_the_adjoint_too() -> None:
    M = ims.operators._convert.as_inverse(LU, "M", (N,))
    w = np.arange(1.0, N + 1)
    np.testing.assert_allclose(A.T @ M.rmatvec(w), w)


def test_labelled_arrays_become_numpy_arrays() -> None:
    x = ims.root(squares, Frame(np.array([1.0, 2.0]))).x
    assert type(x) is np.ndarray
    np.testing.assert_allclose(x, 2**0.5)


@pytest.mark.parametrize(("library", "way"), [("dask", "compute"), ("sparse", "todense")])
def test_lazy_and_sparse_arrays_are_refused_by_name(library: str, way: str) -> None:
    """They ended in an AttributeError from inside."""
    kind = type("Array", (), {"__module__": f"{library}.array.core"})
    with pytest.raises(TypeError, match=f"`x0` must not be an array of {library}.*{way}"):
        ims.root(squares, kind())


@pytest.mark.parametrize(
    "structure", [None, ims.BlockBanded(1, 1), ims.Sparse(A), ims.Grid(shape=N), "detect"], ids=repr
)
@pytest.mark.parametrize("source", ["differences", "jvp", "jac"])
def test_jacobians_with_and_without_a_structure(structure: Any, source: str) -> None:
    """ims.jacobian needed a BlockBanded."""
    x = np.linspace(1, 2, N)
    exact = A.toarray() + np.diag(0.3 * x**2)
    given = {"jvp": lambda x, v: A @ v + 0.3 * x**2 * v, "jac": lambda x: A + sps.diags_array(0.3 * x**2)}
    problem = ims.Problem(diffusion, structure=structure, **{k: f for k, f in given.items() if k == source})
    np.testing.assert_allclose(ims.jacobian(problem, x).todense(), exact, atol=1e-8)


def test_jacobians_are_sparse_without_a_declaration() -> None:
    """A dense J by 65,537 evaluations, where detection takes 24."""
    calls: list[Any] = []

    def line(u: Any) -> Any:
        calls.append(u)
        return u**3 - np.roll(u, 1)

    J = ims.jacobian(line, np.linspace(1, 2, 200))
    assert (J.structure.nnz, len(calls) < 30) == (400, True)
    A = sps.csr_array(sps.diags_array([1.0, 2.0], offsets=[0, 5], shape=(10**5, 10**5)))
    assert ims.jacobian(ims.Problem(lambda x: A @ x, jac=lambda x: A), np.ones(10**5)).structure.nnz == A.nnz
    assert ims.jacobian(ims.Problem(line, structure="none"), np.linspace(1, 2, 30)).todense().shape == (30, 30)
    x = np.logspace(-12, 0, 30)  # each difference as long as its unknown asks
    exact = np.diag(3 * x**2) - np.roll(np.eye(30), -1, axis=1)
    np.testing.assert_allclose(ims.jacobian(line, x).todense(), exact, atol=1e-9)


def curve(x: Any, a: float = 5.0) -> Any:
    return x**3 - x - a


@pytest.mark.parametrize(
    "F",
    [curve, partial(curve, a=2.0), lambda x, *, lam: curve(x, lam), lambda x, *rest: curve(x, *rest),
     type("Model", (), {"__call__": lambda self, x, a=1.0, b=2.0: curve(x, a)})(),
     lambda a: ims.Problem(partial(curve, a=a)), np.vectorize(curve), lambda x, lam, /: curve(x, lam),
     lambda x, lam, b=2.0: curve(x, lam)],
    ids=["default", "partial", "keyword", "any number", "object", "lam -> Problem", "vectorized", "by place", "two"],
)  # fmt: skip
def test_a_branch_over_a_parameter_that_has_a_default(F: Any) -> None:
    """F(x, lam=5) was taken for a function lam -> Problem."""
    branch = ims.continuation(F, [1.4], 0.5, 3.0, max_points=5)
    np.testing.assert_allclose([curve(x, lam) for x, lam in zip(branch.x, branch.lam)], 0, atol=1e-5)


def test_the_jacobian_of_a_plain_function_and_of_a_batch() -> None:
    np.testing.assert_allclose(
        ims.jacobian(squares, [1.0, 2.0]).to_sparse("csr").toarray(), [[2, 0], [0, 4]], atol=1e-8
    )
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    for structure in (None, ims.Sparse(np.eye(2))):
        J = ims.jacobian(ims.Problem(squares, batch_ndim=1, structure=structure), x)
        np.testing.assert_allclose(J.todense(), [np.diag(2 * row) for row in x], atol=1e-8)


BATCH = ims.Problem(lambda x: x**2 - np.array([[2.0], [-1.0]]), batch_ndim=1)


def shown() -> dict[str, Any]:
    result = ims.root(BATCH, np.ones((2, 500)))
    problem = ims.Problem(lambda x: x - 1, vjp=lambda x, w: w, parameters={"a": np.ones(500)},
                          parameter_vjp=lambda x, w: {"a": -w})  # fmt: skip
    one = ims.root(problem, np.zeros(500))
    return {
        "batch": result,
        "one": one,
        "adjoint": ims.pull_back(problem, one, np.ones(500)),
        "linear": ims.linear_solve(np.eye(500), np.ones(500)),
        "problem": problem,
        "detection": ims.detect_structure(lambda x: x - np.roll(x, 1) ** 2, np.ones(50)),
        "solved": ims.drivers.Solved(index=0, x=one.x, status=one.status, residual_norm=0.0, iterations=1),
        "penalty": ims.derivatives.JacobianPenalty(value=1.0, gradients={"a": np.ones(500)}, cotangent=np.ones(500)),
        "band": ims.BlockBanded(1, 1),
        "grid": ims.Grid(shape=(20, 20)),
        "sparse": ims.Sparse(np.eye(500)),
    }


SHOWN = shown()


@pytest.mark.parametrize("name", SHOWN)
def test_reprs_are_short_and_tables_stand_alone(name: str) -> None:
    """repr printed every array, every default, and lists of None."""
    text, table = repr(SHOWN[name]), SHOWN[name]._repr_html_()
    assert len(text) < 250
    assert "None" not in text
    assert "array(" not in text
    assert table.startswith("<div>")
    assert table.endswith("</div>")
    assert not re.search("http|<script|None|array\\(", table)


def test_a_table_has_the_curve_of_norms_and_escapes_names() -> None:
    result = ims.root(squares, [1.0, 2.0])
    assert result._repr_html_().count("<polyline") == 1
    assert "&lt;lambda&gt;" in ims.Problem(lambda x: x)._repr_html_()


def test_a_result_has_no_truth_value() -> None:
    """`if result:` was true for failures."""
    for result in (SHOWN["one"], SHOWN["batch"], SHOWN["linear"], SHOWN["adjoint"]):
        with pytest.raises(TypeError, match=r"`result\.success`"):
            bool(result)


def test_statuses_print_as_names() -> None:
    """They printed as numbers."""
    status, codes = ims.Status.CONVERGED, SHOWN["batch"].status
    assert (str(status), f"{status}", f"{status:>10}", f"{status:d}", f"{status}: {1}") == (
        "CONVERGED", "CONVERGED", " CONVERGED", "1", "CONVERGED: 1")  # fmt: skip
    assert codes[0] is status
    assert list(codes) == [status, codes[1]]
    assert str(codes) == f"[CONVERGED {codes[1].name}]"
    assert repr(codes) == f"array([CONVERGED, {codes[1].name}])"
    assert type(codes == status) is np.ndarray
    assert (codes == status).tolist() == [True, False]
    assert type(codes[:1] + 1) is np.ndarray


@pytest.mark.parametrize("name", ["", "branches", "diagnostics", "krylov", "monitor", "testing"])
def test_public_names_alone_complete(name: str) -> None:
    """dir() listed importlib, annotations, private modules."""
    module = getattr(ims, name) if name else ims
    assert set(dir(module)) - {"__version__"} == set(module.__all__)


@pytest.mark.slow
def test_batches_of_numba_have_what_other_results_have() -> None:
    pytest.importorskip("numba")
    result = ims.newton_batch(lambda x: x * x - 2, np.ones((3, 2)))
    assert result.success.tolist() == [True] * 3
    assert "CONVERGED (3)" in repr(result)
    assert "3 systems" in result.summary()
    assert "converged" in str(ims.diagnostics.explain(result))


WITHOUT_NUMBA = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else find(name, *rest)
import implicitsolve as ims
assert hasattr(ims, "newton_batch")
from implicitsolve import *
assert root is ims.root
try:
    ims.newton_batch(None, None)
except ImportError as error:
    assert "pip install 'implicitsolve[numba]'" in str(error), error
else:
    raise AssertionError
"""


def test_without_numba_a_star_import_works_and_the_call_says_what_to_install() -> None:
    """The import raised, and so did hasattr."""
    subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], check=True)
