"""What docs/reference/determinism_and_tolerances.md promises, for every method, with Numba and without."""

import hashlib
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import LinearStop, NonlinearStop, Problem, Status, root
from implicitsolve.kernels import _contract

pytestmark = pytest.mark.rounding

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "determinism_and_tolerances.md").read_text(encoding="utf-8")
METHODS = {
    "auto": "auto",
    "newton-krylov": "newton-krylov",
    "gmres": ims.NewtonKrylov(krylov=ims.GMRES(restart=10)),
    "bicgstab": ims.NewtonKrylov(krylov=ims.BiCGSTAB()),
    "block-newton": "block-newton",
    "sparse-newton": "sparse-newton",
    "pseudo-transient": "pseudo-transient",
    "picard": "picard",
    "anderson": "anderson",
    "broyden": "broyden",
    "homotopy": "homotopy",
    "substitution": "substitution",
}
NEWTON = [name for name in METHODS if "newton" in name or name in ("gmres", "bicgstab")]
every_method = pytest.mark.parametrize("method", METHODS)
few = settings(
    max_examples=max(1, settings().max_examples // 5), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 10**6)


@pytest.fixture(params=["numpy", "numba"])
def backend(request, monkeypatch):
    """The kernels of NumPy arrays: without Numba, and with it."""
    if request.param == "numpy":
        monkeypatch.setattr(_contract, "is_installed", lambda backend: False)
    elif find_spec("numba") is None:
        pytest.skip("Numba is not installed")
    return request.param


class Chain:
    """x_t = tanh(p_t x_{t-1} + q_t x_{t+1} + c_t), x_0 = x_{T+1} = 0, for each system of a batch; q = 0 if causal."""

    def __init__(self, p, q, c):
        self.p, self.q, self.c = p, q, c

    @classmethod
    def drawn(cls, seed, systems=3, T=24, dtype=np.float64, is_causal=False):
        rng = np.random.default_rng(seed)
        p, q, c = rng.uniform(-0.45, 0.45, (3, systems, T))
        if np.dtype(dtype).kind == "c":
            p, c = p * np.exp(0.3j), 0.3 * (c + 0.5j)
        return cls(p.astype(dtype), (0.0 if is_causal else 1.0) * q.astype(dtype), c.astype(dtype))

    def residual(self, x):
        before, after = np.zeros_like(x), np.zeros_like(x)
        before[:, 1:], after[:, :-1] = x[:, :-1], x[:, 1:]
        return x - np.tanh(self.p * before + self.q * after + self.c)

    def sweep(self):
        x = np.zeros_like(self.c)
        for t in range(self.c.shape[1]):
            x[:, t] = np.tanh(self.p[:, t] * (x[:, t - 1] if t else 0) + self.c[:, t])
        return x

    def take(self, indices):
        return Chain(self.p[indices], self.q[indices], self.c[indices])

    def problem(self, method):
        return Problem(
            self.residual,
            batch_ndim=1,
            structure=ims.BlockBanded(1, 1),
            fixed_point=True,
            take=lambda indices: self.take(indices).problem(method),
            substitute=self.sweep if method == "substitution" else None,
        )

    def solve(self, method, **options):
        return root(self.problem(method), np.zeros_like(self.c), method=METHODS[method], **options)


def chain(method, seed=0, **options):
    return Chain.drawn(seed, is_causal=method == "substitution", **options)


def same(one, other):
    """Bit for bit, the course included."""
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.fun, other.fun)
    np.testing.assert_array_equal(one.status, other.status)
    np.testing.assert_array_equal(one.residual_norm, other.residual_norm)
    assert one.counts == other.counts
    assert [step.residual_norm.tolist() for step in one.steps] == [step.residual_norm.tolist() for step in other.steps]


@few
@given(seed=seeds, systems=st.integers(1, 5), dtype=st.sampled_from(["float32", "float64", "complex128"]))
@every_method
def test_the_same_solve_gives_the_same_bits(method, backend, seed, systems, dtype):
    same(*(chain(method, seed, systems=systems, dtype=dtype).solve(method) for _ in range(2)))


PROGRAM = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from tests.test_policy import digest
print(digest())
"""


def digest():
    """Of the solutions of every method."""
    return hashlib.sha256(b"".join(chain(method, 7).solve(method).x.tobytes() for method in METHODS)).hexdigest()


def test_another_process_gives_the_same_bits():
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(ROOT)]
    asked = [subprocess.run(command, capture_output=True, text=True, env=environment, check=True) for _ in range(2)]
    assert asked[0].stdout == asked[1].stdout
    assert len(asked[0].stdout.strip()) == 64


@few
@given(seed=seeds, systems=st.integers(2, 6))
@every_method
def test_a_system_alone_gives_the_same_answer_up_to_rounding(method, backend, seed, systems):
    whole, stop = chain(method, seed, systems=systems), NonlinearStop(rtol=1e-11)
    together = whole.solve(method, stop=stop)
    for i in range(systems):
        alone = whole.take(np.asarray([i])).solve(method, stop=stop)
        assert alone.status[0] == together.status[i]
        np.testing.assert_allclose(alone.x[0], together.x[i], rtol=0, atol=1e-9)


@every_method
def test_a_neighbour_that_fails_changes_no_status(method, backend):
    whole, stop = chain(method, 3, systems=4), NonlinearStop(rtol=1e-11)
    clean = whole.solve(method, stop=stop)
    whole.c[2, 5] = np.nan
    result = whole.solve(method, stop=stop)
    others = [0, 1, 3]
    assert clean.success.all()
    assert result.status[2] == Status.NONFINITE
    np.testing.assert_array_equal(result.status[others], clean.status[others])
    np.testing.assert_allclose(result.x[others], clean.x[others], rtol=0, atol=1e-9)


@pytest.mark.skipif(find_spec("numba") is None, reason="Numba is not installed")
@every_method
def test_backends_agree_within_the_tolerance(method, monkeypatch):
    stop = NonlinearStop(rtol=1e-12)
    compiled = chain(method, 5).solve(method, stop=stop)
    monkeypatch.setattr(_contract, "is_installed", lambda backend: False)
    plain = chain(method, 5).solve(method, stop=stop)
    np.testing.assert_array_equal(plain.status, compiled.status)
    np.testing.assert_allclose(plain.x, compiled.x, rtol=0, atol=1e-10)


def scaled(problem, F_scale, x_scale):
    """F_scale F(x / x_scale), with what goes with it."""
    return replace(
        problem,
        residual=lambda x: F_scale * problem.residual(x / x_scale),
        take=lambda indices: scaled(problem.take(indices), F_scale, x_scale),
        substitute=None if problem.substitute is None else lambda: x_scale * problem.substitute(),
        fixed_point=F_scale == x_scale,
    )


def check_scaling(method, seed, F_scale, x_scale):
    system = chain(method, seed)
    problem = replace(system.problem(method), fixed_point=F_scale == x_scale)
    x0 = np.random.default_rng(seed).standard_normal(system.c.shape)
    plain = root(problem, x0, method=METHODS[method])
    other = root(scaled(problem, F_scale, x_scale), x_scale * x0, method=METHODS[method])
    np.testing.assert_array_equal(other.x, x_scale * plain.x)
    np.testing.assert_array_equal(other.status, plain.status)
    np.testing.assert_array_equal(other.iterations, plain.iterations)
    assert other.counts == plain.counts


@few
@given(seed=seeds, power=st.sampled_from([-300, -30, 1, 30, 300]))
@every_method
def test_a_power_of_two_on_F_and_x_changes_no_bit(method, backend, seed, power):
    check_scaling(method, seed, 2.0**power, 2.0**power)


@few
@given(seed=seeds, F_power=st.sampled_from([-300, 0, 100]), x_power=st.sampled_from([-100, 0, 30]))
@pytest.mark.parametrize("method", NEWTON)
def test_of_newton_s_methods_on_either_alone(method, backend, seed, F_power, x_power):
    check_scaling(method, seed, 2.0**F_power, 2.0**x_power)


@few
@given(
    seed=seeds,
    dtype=st.sampled_from(["float32", "float64", "complex64", "complex128"]),
    norm=st.sampled_from(["max", "2"]),
)
@every_method
def test_converged_means_that_a_fresh_evaluation_meets_the_inequality(method, backend, seed, dtype, norm):
    eps = np.finfo(dtype).eps
    system, stop = chain(method, seed, dtype=dtype), NonlinearStop(norm=norm, rtol=math.sqrt(eps))
    result = system.solve(method, stop=stop)
    assert result.x.dtype == dtype
    size = (lambda F: np.abs(F).max(axis=1)) if norm == "max" else (lambda F: np.linalg.norm(F, axis=1))
    first, last = size(system.residual(np.zeros_like(result.x))), size(system.residual(result.x))
    target = math.sqrt(eps) * first
    slack = 1 + 8 * eps * (norm == "2")  # the order of a sum
    rounding = 16 * eps * size(1 + np.abs(result.x))  # of x - tanh(...), which may depend on the batch
    assert result.success.any() or method == "homotopy"  # whose paths may turn back: complex, from seed 100,000
    assert (last <= slack * target + rounding)[result.success].all()
    np.testing.assert_array_equal(result.success, result.residual_norm <= slack * target)
    assert (np.abs(result.residual_norm - last) <= rounding).all()


@pytest.mark.parametrize("method", NEWTON)
def test_what_cannot_be_reached_is_not_claimed(method, backend):
    """No number of float64 has the square 2, so that no x has a residual below its own rounding error."""
    problem = Problem(lambda x: x * x - 2, batch_ndim=1, structure=ims.BlockBanded(0, 0), take=lambda indices: problem)
    x0 = np.linspace(1.0, 2.0, 15).reshape(3, 5)
    result = root(problem, x0, method=METHODS[method], stop=NonlinearStop(rtol=0.0, atol=1e-30))
    assert not result.success.any()
    assert (np.abs(result.fun).max(axis=1) > 1e-30).all()
    np.testing.assert_array_equal(result.fun, result.x * result.x - 2)


def table(title):
    """Rows of the page's table below a heading, by their first cell."""
    text = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_the_default_tolerances_are_those_of_the_page(dtype):
    like, one = np.ones(1, dtype=dtype), np.ones(1)
    nonlinear, linear, step = table("Default tolerances")[dtype]
    assert f"{NonlinearStop().target(one, like)[0]:.1e}" == nonlinear
    assert f"{LinearStop().target(one, like)[0]:.1e}" == linear
    assert f"{math.sqrt(np.finfo(dtype).eps):.1e}" == step


def test_the_default_limits_are_those_of_the_page():
    limits = table("Default limits")
    assert limits["`LinearStop`"][0] == str(LinearStop().max_iterations)
    assert (NonlinearStop().atol, LinearStop().atol) == (0.0, 0.0)
    hopeless = NonlinearStop(rtol=0.0)
    problem = Problem(lambda x: x**2 + 1e-4, fixed_point=True)
    for method, name in (("newton-krylov", "Newton's methods"), ("picard", "fixed-point methods")):
        spent = root(problem, 0.9, method=method, stop=hopeless).iterations
        assert spent <= int(limits[name][0])


def test_every_test_that_the_page_names_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) >= 10
    for path, function in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in source, f"{path}::{function}"
