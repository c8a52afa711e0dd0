"""`root` on batches of independent systems."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NonlinearStop, Problem, root

N = 8
TIGHT = NonlinearStop(rtol=1e-10)


class Bent:
    """F_b(x) = A_b x + c_b x^3 - b_b for each system b, in any array library; counts the rows it evaluates."""

    def __init__(self, xp, systems, dtype="float64", seed=3):
        rng = np.random.default_rng(seed)
        A = np.eye(N) + 0.5 * rng.standard_normal((systems, N, N)) / np.sqrt(N)
        self.xp, dtype = xp, getattr(xp, dtype)
        self.A = xp.asarray(A, dtype=dtype)
        self.b = xp.asarray(rng.standard_normal((systems, N)) * 10.0 ** rng.uniform(-1, 1, (systems, 1)), dtype=dtype)
        self.c = xp.asarray(np.linspace(0.0, 2.0, systems)[:, None], dtype=dtype)
        self.calls: list[int] = []

    def apply(self, A, x):
        return self.xp.matmul(A, x[..., None])[..., 0]

    def problem(self, *, with_take=True, exact=True, A=None, b=None, c=None):
        A, b, c = (own if given is None else given for own, given in zip((self.A, self.b, self.c), (A, b, c)))

        def residual(x):
            assert x.shape == b.shape
            self.calls.append(x.shape[0])
            return self.apply(A, x) + c * x**3 - b

        def take(indices):
            assert isinstance(indices, np.ndarray)
            where = self.xp.asarray(indices)
            parts = [self.xp.take(part, where, axis=0) for part in (A, b, c)]
            return self.problem(with_take=with_take, exact=exact, A=parts[0], b=parts[1], c=parts[2])

        return Problem(
            residual,
            jvp=(lambda x, v: self.apply(A, v) + 3 * c * x**2 * v) if exact else None,
            batch_ndim=1,
            take=take if with_take else None,
        )

    def alone(self, i, exact=True):
        return self.problem(exact=exact, A=self.A[i : i + 1, ...], b=self.b[i : i + 1, ...], c=self.c[i : i + 1, ...])


@pytest.mark.parametrize("krylov", [None, ims.GMRES(restart=4), ims.LGMRES(restart=4), ims.BiCGSTAB()], ids=str)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("with_M", [False, True])
def test_nothing_leaves_its_device(krylov, exact, with_M):
    """array-api-strict refuses to mix devices, and to convert arrays of this one without being asked."""
    xp = pytest.importorskip("array_api_strict")
    device = xp.Device("device1")
    rng = np.random.default_rng(0)
    A = xp.asarray(2 * np.eye(N) + rng.standard_normal((4, N, N)) / N, device=device)
    b = xp.asarray(rng.standard_normal((4, N)) * np.array([[1.0], [9.0], [0.1], [2.0]]), device=device)

    def build(A, b):
        def apply(x, v):
            return xp.matmul(A, v[..., None])[..., 0] + 0.3 * x**2 * v

        def take(indices):
            where = xp.asarray(indices, device=device)
            return build(xp.take(A, where, axis=0), xp.take(b, where, axis=0))

        return Problem(
            lambda x: xp.matmul(A, x[..., None])[..., 0] + 0.1 * x**3 - b,
            jvp=apply if exact else None,
            vjp=lambda x, w: xp.matmul(xp.matrix_transpose(A), w[..., None])[..., 0] + 0.3 * x**2 * w,
            batch_ndim=1,
            take=take,
        )

    M = xp.asarray(np.eye(N) / 2, device=device) if with_M else None
    method = ims.NewtonKrylov(krylov=krylov, preconditioner=M)
    result = root(build(A, b), xp.zeros((4, N), device=device), method=method)
    assert result.success.all()
    assert result.x.device == result.fun.device == device
    adjoint = ims.pull_back(build(A, b), result, xp.ones((4, N), device=device), method=krylov)
    assert adjoint.success.all()
    assert adjoint.adjoint.device == device


def alike(batch, i, alone, tolerance=1e-12):
    """System i of a batch went as it does alone."""
    assert batch.status[i] == alone.status[0]
    assert batch.iterations[i] == alone.iterations[0]
    assert batch.krylov_iterations[i] == alone.krylov_iterations[0]
    np.testing.assert_allclose(batch.x[i], alone.x[0], rtol=tolerance, atol=tolerance)


METHODS = [
    ims.NewtonKrylov(),
    ims.NewtonKrylov(recycle=0),
    ims.NewtonKrylov(max_krylov=3),
    ims.NewtonKrylov(max_krylov=3, recycle=6),
    ims.NewtonKrylov(krylov=ims.GMRES(restart=4)),
    ims.NewtonKrylov(krylov=ims.LGMRES(restart=4, outer_k=2)),
    ims.NewtonKrylov(krylov=ims.BiCGSTAB()),
    ims.NewtonKrylov(krylov=ims.ScipyKrylov(function="gcrotmk")),
]


@pytest.mark.parametrize("with_take", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_system_goes_as_it_does_alone(method, with_take):
    systems = 6
    system = Bent(np, systems)
    x0 = np.zeros((systems, N))
    together = root(system.problem(with_take=with_take), x0, method=method, stop=TIGHT)
    assert together.success.all()
    assert np.unique(together.iterations).size > 1  # else nothing was tested
    for i in range(systems):
        alike(together, i, root(system.alone(i), x0[:1], method=method, stop=TIGHT))


HOPELESS = {
    "no root": lambda x: x**2 + 1 + 0.1 * x[..., ::-1],
    "no root, exactly singular": lambda x: 0 * x + 1,
    "NaN": lambda x: x * np.nan,
    "NaN after the start": lambda x: np.where(x == 1.0, x, np.nan),
    "Inf": lambda x: x + np.inf,
    "huge": lambda x: 1e200 * (x**2 + 1),
    "tiny": lambda x: 1e-200 * (x**2 + 1),
    "slow": lambda x: np.arctan(x) + 1.6,
    "already solved": lambda x: x - 1,
}


@pytest.mark.parametrize("kind", HOPELESS)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("with_take", [False, True])
def test_hopeless_neighbour(kind, exact, with_take):
    """The middle system of three is hopeless; the others do not notice."""
    system = Bent(np, 2)
    hopeless = HOPELESS[kind]

    def build(rows):
        good = [i for i, row in enumerate(rows) if row != 1]
        bad = [i for i, row in enumerate(rows) if row == 1]
        parts = np.array([0 if rows[i] == 0 else 1 for i in good], dtype=int)

        def some(x, F, v=None):
            inner = system.problem(A=system.A[parts], b=system.b[parts], c=system.c[parts])
            out = np.empty_like(x)
            if good:
                out[good] = inner.residual(x[good]) if v is None else inner.jvp(x[good], v[good])
            if bad:
                h = 1e-7
                with np.errstate(all="ignore"):
                    out[bad] = F(x[bad]) if v is None else (F(x[bad] + h * v[bad]) - F(x[bad])) / h
            return out

        return Problem(
            lambda x: some(x, hopeless),
            jvp=(lambda x, v: some(x, hopeless, v)) if exact else None,
            batch_ndim=1,
            take=(lambda indices: build([rows[i] for i in indices])) if with_take else None,
        )

    x0 = np.ones((3, N))
    result = root(build([0, 1, 2]), x0, stop=TIGHT)
    assert result.success.tolist() == [True, kind == "already solved", True]
    for place, row in ((0, 0), (2, 1)):
        alike(result, place, root(system.alone(row, exact), x0[:1], stop=TIGHT), 1e-12 if exact else 1e-7)
    if kind != "already solved":
        assert "1 of 3 systems" in result.message
        with pytest.raises(ims.NoConvergence):
            result.raise_for_status()


def test_finished_systems_stop_costing():
    system = Bent(np, 6)
    x0 = np.zeros((6, N))
    first = root(system.problem(), x0, stop=TIGHT)
    x0[:4] = first.x[:4]  # four start at their roots
    system.calls.clear()
    result = root(system.problem(), x0, stop=NonlinearStop(atol=1e-8, rtol=0.0))
    assert result.success.all()
    assert result.iterations[:4].tolist() == [0] * 4
    assert system.calls[0] == 6
    assert max(system.calls[1:]) <= 2
    assert len(system.calls) == result.counts.residuals


def test_rows_never_grow():
    """With `take`, the rows of successive steps never grow, and the last ones are few."""
    system = Bent(np, 12)
    result = root(system.problem(), np.zeros((12, N)), method="newton-krylov", stop=TIGHT)
    running = [s.systems.size for s in result.steps[1:]]
    assert running == sorted(running, reverse=True)
    assert running[-1] < 12
    for step in result.steps[1:]:
        assert step.residual_norm.shape == step.step_length.shape == step.forcing.shape == (step.systems.size,)


@pytest.mark.parametrize("exact", [False, True])
def test_without_take_the_whole_batch_is_shown(exact):
    system = Bent(np, 6)
    result = root(system.problem(with_take=False, exact=exact), np.zeros((6, N)), stop=TIGHT)
    assert result.success.all()
    assert set(system.calls) == {6}
    assert len(system.calls) == result.counts.residuals


@pytest.mark.parametrize("with_take", [False, True])
def test_jacobians_of_a_batch(with_take):
    """jac and linearize may give a stack of matrices or a batched operator."""
    system = Bent(np, 5)
    expected = root(system.problem(), np.zeros((5, N)), method="newton-krylov", stop=TIGHT)

    def build(kind, rows):
        base = system.problem(A=system.A[rows], b=system.b[rows], c=system.c[rows])

        def matrix(x):
            return system.A[rows] + np.eye(N) * (3 * system.c[rows] * x**2)[:, None, :]

        def operator(x):
            J = matrix(x)
            return ims.LinearOperator(lambda v: system.apply(J, v), in_shape=N, batch_shape=(len(rows),))

        return Problem(
            base.residual,
            jac={"matrix": matrix, "operator": operator}.get(kind),
            linearize={
                "linearize matrix": lambda x: (base.residual(x), matrix(x)),
                "linearize operator": lambda x: (base.residual(x), operator(x)),
            }.get(kind),
            batch_ndim=1,
            take=(lambda indices: build(kind, rows[indices])) if with_take else None,
        )

    for kind in ("matrix", "operator", "linearize matrix", "linearize operator"):
        result = root(build(kind, np.arange(5)), np.zeros((5, N)), method="newton-krylov", stop=TIGHT)
        np.testing.assert_allclose(result.x, expected.x, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(result.krylov_iterations, expected.krylov_iterations)


@pytest.mark.parametrize("with_take", [False, True])
@pytest.mark.parametrize("hopeless", [False, True])
@pytest.mark.parametrize("kind", ["stack", "function", "one for all"])
def test_preconditioners_of_a_batch(with_take, hopeless, kind):
    system = Bent(np, 5)
    inverses = np.linalg.inv(system.A + 0.05 * np.eye(N))
    if hopeless:
        system.A[2], system.c[2] = 0.0, 0.0
    seen = []

    def function(x, F):
        seen.append(x.shape)
        return inverses

    M = {"stack": inverses, "function": function, "one for all": np.eye(N)}[kind]
    method = ims.NewtonKrylov(preconditioner=M)
    result = root(system.problem(with_take=with_take), np.zeros((5, N)), method=method, stop=TIGHT)
    assert result.success.tolist() == [True, True, not hopeless, True, True]
    assert set(seen) <= {(5, N)}  # always the whole batch


def test_several_batch_axes():
    system = Bent(np, 6)
    flat = root(system.problem(), np.zeros((6, N)), stop=TIGHT)
    inner = system.problem()

    def residual(x):
        assert x.shape == (2, 3, 4, 2)
        return inner.residual(x.reshape(6, N)).reshape(x.shape)

    problem = Problem(
        residual,
        jvp=lambda x, v: inner.jvp(x.reshape(6, N), v.reshape(6, N)).reshape(x.shape),
        batch_ndim=2,
    )
    trace = []
    result = root(
        problem, np.zeros((2, 3, 4, 2)), stop=TIGHT, monitor=lambda step, x, F: trace.append((x.shape, F.shape))
    )
    assert result.x.shape == (2, 3, 4, 2)
    for name in ("status", "success", "iterations", "krylov_iterations", "residual_norm", "initial_norm"):
        assert np.shape(getattr(result, name)) == (2, 3)
    np.testing.assert_allclose(result.x.reshape(6, N), flat.x, rtol=1e-12, atol=1e-12)
    assert set(trace) == {((2, 3, 4, 2), (2, 3, 4, 2))}


def test_take_of_several_batch_axes():
    """`take` counts systems in the flattened batch."""
    system = Bent(np, 6)
    flat = root(system.problem(), np.zeros((6, N)), stop=TIGHT)
    inner = system.problem()
    problem = Problem(
        lambda x: inner.residual(x.reshape(6, N)).reshape(x.shape),
        jvp=lambda x, v: inner.jvp(x.reshape(6, N), v.reshape(6, N)).reshape(x.shape),
        batch_ndim=2,
        take=inner.take,
    )
    result = root(problem, np.zeros((2, 3, N)), stop=TIGHT)
    np.testing.assert_array_equal(result.x.reshape(6, N), flat.x)
    np.testing.assert_array_equal(result.iterations.reshape(6), flat.iterations)


def test_batch_of_one_keeps_its_axis():
    result = root(Problem(lambda x: x**2 - 4, batch_ndim=1), np.ones((1, 2)))
    assert np.shape(result.status) == (1,)
    assert result.success.tolist() == [True]


def test_batch_of_scalars():
    c = np.array([1.0, 4.0, 9.0, -1.0])
    result = root(Problem(lambda x: x**2 - c, batch_ndim=1), np.array([3.0, 3.0, 3.0, 3.0]), stop=TIGHT)
    assert result.success.tolist() == [True, True, True, False]
    np.testing.assert_allclose(result.x[:3], [1, 2, 3], atol=1e-8)


def test_limits_belong_to_each_system():
    """A neighbour that fails early does not lend its steps to one that fails late, nor take them."""

    def problem(rows):
        shift = np.array([1.0, 1.0, -2.0])[rows][:, None]
        bend = np.array([0.1, 0.3, 0.0])[rows][:, None]
        return Problem(lambda x: x**2 + shift + bend * x[:, ::-1], batch_ndim=1, take=lambda i: problem(rows[i]))

    x0 = np.random.default_rng(4).standard_normal((3, 4))
    stop = NonlinearStop(max_iterations=20, max_evaluations=10**6)
    together = root(problem(np.arange(3)), x0, stop=stop)
    for i in range(3):
        alone = root(problem(np.array([i])), x0[i : i + 1], stop=stop)
        assert together.status[i] == alone.status[0]
        assert together.iterations[i] == alone.iterations[0] <= 20
