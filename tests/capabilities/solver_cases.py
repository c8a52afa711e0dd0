"""A case for each solver, method and setting of the core: what it gives for the chain, on arrays of a library."""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import precondition
from tests.capabilities.chain import B, Chain, K, T
from tests.capabilities.libraries import Library

Outcome = Iterator[Any]
Case = Callable[[Library], Outcome]
EXACT = ("jvp", "vjp")


def newton_krylov(on: Library) -> Outcome:
    chain = Chain(on)
    problem = chain.problem("jvp")
    yield ims.newton_krylov(problem.residual, chain.x0, f_tol=1e3 * on.eps, jvp=problem.jvp, batch_ndim=1)


def by(method: Any) -> Case:
    """The chain solved by a method."""

    def case(on: Library) -> Outcome:
        chain = Chain(on)
        result = ims.root(chain.problem("jvp", "blocks"), chain.x0, method=method, stop=on.stop)
        yield from (result.x, bool(result.success.all()))

    return case


def wolfe(on: Library) -> Outcome:
    chain = Chain(on, np.arange(1))  # one system, as it asks
    method = ims.NewtonKrylov(line_search=ims.Wolfe())
    yield ims.root(chain.problem("jvp"), chain.x0, method=method, stop=on.stop).x


def substitution(on: Library) -> Outcome:
    layer = elman(on)
    yield ims.root(layer, method="substitution").x


def causal_newton(on: Library) -> Outcome:
    result = ims.root(elman(on), method="causal-newton", stop=on.stop)
    yield from (result.x, bool(result.success.all()))


def elman(on: Library) -> ims.Problem:
    rng = np.random.default_rng(0)
    params = {name: on.array(value) for name, value in ims.adapters.elman_parameters(2, 32, rng=rng).items()}
    return ims.adapters.elman(params, on.array(rng.standard_normal((2, 5, 2))))


def continuation(on: Library) -> Outcome:
    branch = ims.continuation(lambda x, lam: x + 0.1 * x**3 - lam, Chain(on).x0, 0, 1)
    return [on.array(branch.x[-1])]  # which is float64 whatever x0 is


def further_solutions(on: Library) -> Outcome:
    x0 = Chain(on).x0
    return [on.array(result.x) for result in ims.branches.further_solutions(lambda x: (x - 1) ** 3 + x - 1, x0)]


def jacobian(on: Library) -> Outcome:
    yield matrix(on).blocks


def detect_structure(on: Library) -> Outcome:
    chain = Chain(on)
    found = ims.detect_structure(chain.problem(), chain.x0 + 0.3)
    assert found.structure is not None
    yield found.structure.nnz


def plan(on: Library) -> Outcome:
    chain = Chain(on)
    yield len(ims.plan(chain.problem(), chain.x0).stages)


def trace(on: Library) -> Outcome:
    pytest.importorskip("jax", reason="JAX is not installed")
    x = Chain(on).x0 + 0.3
    yield ims.trace(lambda x: x**3 - 0.5 * np.roll(x, 1), x).jvp(x, x)


def matrix(on: Library) -> ims.BlockBandedMatrix:
    chain = Chain(on)
    return ims.jacobian(chain.problem("blocks"), chain.x0 + 0.3)


def linear(method: Any = None, M: Any = None) -> Case:
    """A system with the chain's Jacobian."""

    def case(on: Library) -> Outcome:
        A, b = matrix(on), right(on)
        result = ims.linear_solve(A, b, method=method, M=M, stop=on.linear_stop)
        yield from (result.x, bool(result.success.all()))

    return case


def right(on: Library) -> Any:
    return on.array(np.random.default_rng(2).standard_normal((B, T, K)))


def linear_operator(on: Library) -> Outcome:
    A, v = matrix(on), right(on)
    operator = 2.0 * ims.LinearOperator(A.matvec, A.rmatvec, in_shape=(T, K), batch_shape=(B,), dtype=A.dtype)
    yield from (operator @ v, operator.H @ v, (operator + A).matvec(v), operator.rmatvec(v))


def block_banded_matrix(on: Library) -> Outcome:
    A, v = matrix(on), right(on)
    yield from (A @ v, A.H @ v, (A + A.T).matvec(v), (2.0 * A - A).blocks)


def as_linear_operator(on: Library) -> Outcome:
    rng = np.random.default_rng(3)
    A = ims.aslinearoperator(on.array(rng.standard_normal((B, 4, 4))))
    v = on.array(rng.standard_normal((B, 4)))
    yield from (A @ v, A.H @ v)


def factorization(method: Any) -> Case:
    """A direct method by itself."""

    def case(on: Library) -> Outcome:
        A, b = matrix(on), right(on)
        inverse = method.factor(A)
        yield from (inverse.solve(b), inverse.H @ b, bool((inverse.status == ims.Status.CONVERGED).all()))

    return case


def preconditioner(settings: Any) -> Case:
    """A preconditioner by itself, and in a Krylov method."""

    def case(on: Library) -> Outcome:
        A, b = matrix(on), right(on)
        M = settings.build(A)
        result = ims.linear_solve(A, b, M=M, method=ims.GMRES(), stop=on.linear_stop)
        yield from (M @ b, M.H @ b, result.x)

    return case


def pull_back(on: Library) -> Outcome:
    chain = Chain(on)
    problem, x = chain.problem(*EXACT), chain.x0 + 0.3
    reverse = ims.pull_back(problem, x, right(on), stop=on.linear_stop)
    yield from (reverse.gradients["a"], reverse.adjoint)


def push_forward(on: Library) -> Outcome:
    chain = Chain(on)
    problem, x = chain.problem(*EXACT), chain.x0 + 0.3
    yield ims.push_forward(problem, x, {"a": on.array([1.0, -2.0])}, stop=on.linear_stop).tangent


def jacobian_penalty(on: Library) -> Outcome:
    chain = Chain(on)
    problem = replace(chain.problem(*EXACT), fixed_point=True)
    penalty = ims.derivatives.jacobian_penalty(problem, chain.x0 + 0.3, samples=2, rng=np.random.default_rng(4))
    yield from (penalty.value, penalty.cotangent)


def gru(on: Library, k: int = 32) -> ims.Problem:
    rng = np.random.default_rng(5)
    params = {name: on.array(value) for name, value in ims.adapters.gru_parameters(2, k, rng=rng).items()}
    return ims.adapters.implicit_gru(params, on.array(rng.standard_normal((3, 5, 2))), lengths=[5, 2, 4])


def even_odd(on: Library) -> Outcome:
    yield ims.root(ims.elimination.even_odd(gru(on)), stop=on.stop).x


def expand(on: Library) -> Outcome:
    layer = gru(on)
    yield ims.elimination.expand(layer, ims.root(ims.elimination.even_odd(layer), stop=on.stop).x)


def nested(on: Library) -> Outcome:
    parts = ims.drivers.Nested(lambda x: x**3 + x - 0.5 * x[::-1] - 1, [[0, 1]], Chain(on).x0)
    return [on.array(parts.expand(ims.root(parts.problem, stop=on.stop).x))]


def race(on: Library) -> Outcome:
    chain = Chain(on)
    result = ims.drivers.race(chain.problem("jvp"), [chain.x0, chain.x0 + 0.1], stop=on.stop)
    yield from (result.x, bool(result.success.all()))


def solve_stream(on: Library) -> Outcome:
    chain = Chain(on)
    yield ims.drivers.solve_stream(chain.problem("jvp"), chain.x0, batch_size=2, stop=on.stop).x


def stream_gradients(on: Library) -> Outcome:
    chain = Chain(on)
    options: dict[str, Any] = {"batch_size": 2, "stop": on.stop, "adjoint_stop": on.linear_stop}
    found = ims.drivers.stream_gradients(chain.problem(*EXACT), right(on), chain.x0, **options)
    yield from (found.gradients["a"], found.adjoint)


def solve_sequences(on: Library) -> Outcome:
    rng = np.random.default_rng(6)
    params = {name: on.array(value) for name, value in ims.adapters.gru_parameters(2, 3, rng=rng).items()}
    sequences = [rng.standard_normal((length, 2)) for length in (3, 5, 1)]

    def build(batch: list[np.ndarray]) -> ims.Problem:
        inputs = np.zeros((len(batch), len(batch[0]), 2))
        for row, sequence in zip(inputs, batch):
            row[: len(sequence)] = sequence
        return ims.adapters.implicit_gru(params, on.array(inputs), lengths=[len(sequence) for sequence in batch])

    found = ims.drivers.solve_sequences(build, sequences, batch_size=2, stop=on.stop)
    yield from (solved.x for solved in sorted(found, key=lambda solved: solved.index))


def solve_batch(on: Library) -> Outcome:
    chain = Chain(on)
    with ThreadPoolExecutor(1) as executor:
        yield ims.drivers.solve_batch(chain.problem("jvp"), chain.x0, executor=executor, stop=on.stop).x


def checkpointed(on: Library) -> Outcome:
    chain = Chain(on)
    with tempfile.TemporaryDirectory() as folder:
        yield ims.drivers.checkpointed(chain.problem("jvp"), chain.x0, Path(folder) / "file", every=1, stop=on.stop).x


def newton_batch(on: Library) -> Outcome:
    result = ims.newton_batch(cubes, on.array(np.ones((4, 2))), on.array(np.arange(1.0, 9.0).reshape(4, 2)))
    yield from (result.x, bool(result.success.all()))


def cubes(x: Any, p: Any, out: Any) -> None:
    out[0] = x[0] ** 3 - p[0]
    out[1] = x[1] ** 3 + x[1] - p[1]


METHODS: dict[str, Any] = {
    "NewtonKrylov": ims.NewtonKrylov(),
    "BlockNewton": ims.BlockNewton(),
    "SparseNewton": ims.SparseNewton(),
    "Anderson": ims.Anderson(),
    "Picard": ims.Picard(),
    "Broyden": ims.Broyden(),
    "Homotopy": ims.Homotopy(),
    "Preconditioned": ims.Preconditioned(inner=ims.Picard()),
    "PseudoTransient": ims.PseudoTransient(sign=-1),
    "Backtracking": ims.NewtonKrylov(line_search=ims.Backtracking()),
    "Dogleg": ims.NewtonKrylov(line_search=ims.Dogleg()),
    "FullStep": ims.NewtonKrylov(line_search=ims.FullStep()),
    "EisenstatWalker": ims.NewtonKrylov(forcing=ims.EisenstatWalker()),
    "ConstantForcing": ims.NewtonKrylov(forcing=ims.ConstantForcing(eta=1e-3)),
    "Lagged": ims.NewtonKrylov(preconditioner=ims.Lagged(preconditioner=ims.BlockLU())),
    "SparseLU": ims.SparseNewton(factor=ims.SparseLU()),
    "TruncatedInverse": ims.NewtonKrylov(krylov=ims.TruncatedInverse(order=4), line_search=ims.FullStep()),
}
LINEAR: dict[str, Any] = {
    "GMRES": ims.GMRES(),
    "LGMRES": ims.LGMRES(restart=5),
    "BiCGSTAB": ims.BiCGSTAB(),
    "ScipyKrylov": ims.ScipyKrylov(function="gmres"),
}
DIRECT: dict[str, Any] = {"BlockLU": ims.BlockLU(), "CyclicReduction": ims.CyclicReduction()}
PRECONDITIONERS: dict[str, Any] = {
    "precondition.BlockJacobi": precondition.BlockJacobi(),
    "precondition.Neumann": precondition.Neumann(),
    "precondition.BlockGaussSeidel": precondition.BlockGaussSeidel(),
    "precondition.BlockILU": precondition.BlockILU(),
    "precondition.ILU": precondition.ILU(),
    "precondition.AMG": precondition.AMG(),
}
CASES: dict[str, Case] = {
    "root": by("auto"),
    "newton_krylov": newton_krylov,
    "linear_solve": linear(),
    "pull_back": pull_back,
    "push_forward": push_forward,
    "continuation": continuation,
    "branches.further_solutions": further_solutions,
    "jacobian": jacobian,
    "detect_structure": detect_structure,
    "trace": trace,
    "plan": plan,
    "derivatives.jacobian_penalty": jacobian_penalty,
    "elimination.even_odd": even_odd,
    "elimination.expand": expand,
    "drivers.Nested": nested,
    "drivers.race": race,
    "drivers.solve_stream": solve_stream,
    "drivers.stream_gradients": stream_gradients,
    "drivers.solve_sequences": solve_sequences,
    "drivers.solve_batch": solve_batch,
    "drivers.checkpointed": checkpointed,
    "newton_batch": newton_batch,
    "CausalNewton": causal_newton,
    "Substitution": substitution,
    "Wolfe": wolfe,
    "LinearOperator": linear_operator,
    "BlockBandedMatrix": block_banded_matrix,
    "aslinearoperator": as_linear_operator,
    **{name: by(method) for name, method in METHODS.items()},
    **{name: linear(method) for name, method in LINEAR.items()},
    **{name: factorization(method) for name, method in DIRECT.items()},
    **{name: preconditioner(settings) for name, settings in PRECONDITIONERS.items()},
}
