"""What every public function moves between a device and the host: little, and rarely."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import adapters, precondition

pytestmark = pytest.mark.gpu

CHECK = 8  # reads by which a derivative compares its equation with differences of F

SMALL = 4096  # bytes: numbers of each system, never a vector
B, T, K, D = 16, 48, 8, 3  # a state has 24 KB in float32, every second block of it 12 KB
METHODS = ["auto", "newton-krylov", "anderson", "picard", "broyden", "homotopy"]
KRYLOV = [ims.GMRES(), ims.GMRES(restart=5), ims.LGMRES(restart=6), ims.BiCGSTAB()]
N = 1200


@pytest.fixture
def xp(device):
    return device


@pytest.fixture
def layer(xp, rng):
    """An implicit GRU on the device."""
    params = adapters.gru_parameters(D, K, rng=rng)
    params = {name: xp.asarray(value.astype(np.float32)) for name, value in params.items()}
    return adapters.implicit_gru(params, xp.asarray(rng.standard_normal((B, T, D)).astype(np.float32)))


@pytest.fixture
def counted(double):
    """Run a function; what came to the host, after checking that nothing long has."""

    def run(function):
        double.reset()
        result = function()
        long = [entry for entry in double.transfers if entry[0] == "to_host" and entry[2] > SMALL]
        assert long == []
        return result, double.counts["to_host"]

    return run


def is_device(x, xp):
    return isinstance(x, type(xp.zeros(1)))


@pytest.mark.parametrize("method", METHODS)
def test_root(layer, counted, xp, method):
    result, reads = counted(lambda: ims.root(layer, method=method))
    assert result.success.all()
    assert is_device(result.x, xp)
    assert is_device(result.fun, xp)
    steps = len(result.steps)  # and the start
    if method == "newton-krylov":
        products = sum(step.krylov_iterations.max() for step in result.steps if step.iteration)
        assert reads <= products + steps + 4  # two show that F is rounding error, one looks for ignored equations
    elif method in ("auto", "anderson", "picard"):
        assert reads <= steps + 2  # the last ones look for what is not finite, and for ignored equations
    else:
        assert reads <= (2 if method == "broyden" else 14) * steps + 1


@pytest.mark.parametrize("method", KRYLOV, ids=repr)
@pytest.mark.parametrize("batched", [False, True])
def test_linear_solve(counted, xp, rng, method, batched):
    shape = (3, N) if batched else (N,)
    diagonal = xp.asarray(rng.uniform(1, 3, shape))
    coupling = xp.asarray(rng.uniform(-0.4, 0.4, shape))

    def matvec(v):
        return diagonal * v + coupling * xp.roll(v, 1, axis=-1)

    A = ims.LinearOperator(matvec, in_shape=N, batch_shape=shape[:-1], dtype=xp.float64, take=None)
    b = xp.asarray(rng.standard_normal(shape))
    if batched:
        A = _takeable(diagonal, coupling, xp)
    result, reads = counted(lambda: ims.linear_solve(A, b, method=method))
    assert np.all(result.success)
    assert is_device(result.x, xp)
    iterations = int(np.max(result.iterations))
    restarts = iterations // getattr(method, "restart", iterations) + 1
    assert reads <= iterations + restarts + 3


def _takeable(diagonal, coupling, xp):
    return ims.LinearOperator(
        lambda v: diagonal * v + coupling * xp.roll(v, 1, axis=-1),
        in_shape=N,
        batch_shape=(diagonal.shape[0],),
        dtype=xp.float64,
        take=lambda indices: _takeable(diagonal[indices], coupling[indices], xp),
    )


def _banded(xp, rng, dtype="float64", systems=3, length=40, k=3):
    """A batch of well-conditioned block tridiagonal matrices, and right-hand sides."""
    blocks = 0.2 * rng.standard_normal((systems, length, 3, k, k))
    blocks[:, :, 1] += 3 * np.eye(k)
    A = ims.BlockBandedMatrix(xp.asarray(blocks.astype(dtype)), lower=1, upper=1)
    return A, xp.asarray(rng.standard_normal((systems, length, k)).astype(dtype))


@pytest.mark.parametrize(
    "M",
    [
        precondition.BlockJacobi(),
        precondition.Neumann(),
        precondition.BlockGaussSeidel(),
        precondition.BlockILU(),
        ims.BlockLU(),
    ],
    ids=lambda M: type(M).__name__,
)
def test_preconditioners(counted, xp, rng, M):
    A, b = _banded(xp, rng)
    result, reads = counted(lambda: ims.linear_solve(A, b, method=ims.GMRES(), M=M))
    assert result.success.all()
    assert is_device(result.x, xp)
    assert reads <= result.iterations.max() + 8  # the preconditioner says whether it is singular


@pytest.mark.parametrize("method", [ims.BlockLU(), ims.CyclicReduction()], ids=lambda method: type(method).__name__)
def test_direct_solves(counted, xp, rng, method):
    A, b = _banded(xp, rng)
    result, reads = counted(lambda: ims.linear_solve(A, b, method=method))
    assert result.success.all()
    assert is_device(result.x, xp)
    assert reads <= 8


def test_products_with_a_block_banded_matrix_read_nothing(counted, xp, rng):
    A, b = _banded(xp, rng)
    product, reads = counted(lambda: A.matvec(b) + A.rmatvec(b))
    assert is_device(product, xp)
    assert reads == 0


@pytest.mark.parametrize("method", ["tfqmr", "cgs"])
def test_scipy_s_methods_refuse_arrays_of_a_device(xp, rng, method):
    A, b = _banded(xp, rng)
    with pytest.raises(TypeError, match="NumPy"):
        ims.linear_solve(A, b, method=ims.ScipyKrylov(function=method))
    with pytest.raises(TypeError, match="NumPy"):
        ims.newton_krylov(lambda x: x + 0.1 * x**2 - 1, xp.zeros(20), method=method)


def test_pull_back(layer, counted, xp):
    solution = ims.root(layer)
    result, reads = counted(lambda: ims.pull_back(layer, solution, xp.ones_like(solution.x)))
    assert np.all(result.status == ims.Status.CONVERGED)
    assert all(is_device(gradient, xp) for gradient in (result.adjoint, *result.gradients.values()))
    assert reads <= result.linear.iterations.max() + CHECK + 3


def test_push_forward(layer, counted, xp):
    solution = ims.root(layer)
    tangents = {"inputs": xp.ones_like(layer.parameters["inputs"])}
    result, reads = counted(lambda: ims.push_forward(layer, solution, tangents))
    assert np.all(result.status == ims.Status.CONVERGED)
    assert is_device(result.tangent, xp)
    assert reads <= result.linear.iterations.max() + CHECK + 4


def _problem(name, xp, rng):
    inputs = xp.asarray(rng.standard_normal((B, T, D)).astype(np.float32))

    def on_device(params):
        return {name: xp.asarray(value.astype(np.float32)) for name, value in params.items()}

    if name == "implicit_rnn":
        return adapters.implicit_rnn(on_device(adapters.rnn_parameters(D, K, rng=rng)), inputs)
    if name == "implicit_lstm":
        return adapters.implicit_lstm(on_device(adapters.lstm_parameters(D, K, rng=rng)), inputs)
    if name == "stencil_gru":
        params = adapters.stencil_gru_parameters(D, K, offsets=(-1, 1, 2), rng=rng)
        return adapters.stencil_gru(on_device(params), inputs, offsets=(-1, 1, 2))
    if name == "elman":
        return adapters.elman(on_device(adapters.elman_parameters(D, K, rng=rng)), inputs)
    A, C = (xp.asarray(rng.uniform(-1, 1, (60, n)).astype(np.float32) / 120) for n in (60, 5))
    return adapters.lifted_net(A, C, xp.asarray(rng.standard_normal((B, 5)).astype(np.float32)))


@pytest.mark.parametrize("name", ["implicit_rnn", "implicit_lstm", "stencil_gru", "elman", "lifted_net"])
def test_problems_of_the_adapters(counted, xp, rng, name):
    problem = _problem(name, xp, rng)
    solution, reads = counted(lambda: ims.root(problem))
    assert solution.success.all()
    assert is_device(solution.x, xp)
    assert reads <= 2 * len(solution.steps) + 4
    result, reads = counted(lambda: ims.pull_back(problem, solution, xp.ones_like(solution.x)))
    assert np.all(result.status == ims.Status.CONVERGED)
    assert all(is_device(gradient, xp) for gradient in result.gradients.values())
    assert reads <= result.linear.iterations.max() + CHECK + 5


@pytest.mark.parametrize("reuse", ["broyden", "chord", "none"])
def test_block_newton(counted, xp, rng, reuse):
    b = xp.asarray(rng.uniform(0.5, 1, (3, 1200)))

    def residual(x):
        shifted = xp.zeros_like(x)
        shifted[..., 1:] = x[..., :-1]
        return x + 0.1 * x**2 + 0.2 * shifted - b

    problem = ims.Problem(residual, structure=ims.BlockBanded(1, 0), batch_ndim=1)
    result, reads = counted(lambda: ims.root(problem, xp.zeros_like(b), method=ims.BlockNewton(reuse=reuse)))
    assert result.success.all()
    assert is_device(result.x, xp)
    assert reads <= 12 * len(result.steps)


def test_steps_that_are_not_taken_after_all(xp, rng):
    """On a device Anderson's method remembers a step before it knows whether the step is good enough to be taken."""
    A = rng.standard_normal((6, 12, 12)) * np.linspace(0.3, 0.8, 6)[:, None, None]
    b = rng.standard_normal((6, 12))
    method, stop = ims.Anderson(growth_limit=1.0, memory=6), ims.NonlinearStop(rtol=1e-9, max_iterations=200)
    results = []
    for module in (np, xp):
        weights, offsets = module.asarray(A), module.asarray(b)
        results.append(
            ims.root(_fixed_point(weights, offsets, module), module.zeros((6, 12)), method=method, stop=stop)
        )
    ours, theirs = results[1], results[0]
    assert any((step.step_length == 0).any() for step in ours.steps if step.iteration)
    np.testing.assert_array_equal(ours.success, theirs.success)
    assert ours.success.sum() >= 3
    good = np.flatnonzero(ours.success)
    np.testing.assert_allclose(ours.x.get()[good], theirs.x[good], atol=1e-6)


def _fixed_point(A, b, xp):
    """Systems x = tanh(A x + b)."""

    def take(indices):
        places = xp.asarray(indices)
        return _fixed_point(xp.take(A, places, axis=0), xp.take(b, places, axis=0), xp)

    def residual(x):
        return x - xp.tanh(xp.matmul(A, x[..., None])[..., 0] + b)

    return ims.Problem(residual, fixed_point=True, batch_ndim=1, take=take)


def _sequences(layer, xp):
    inputs = layer.parameters["inputs"]
    weights = {name: value for name, value in layer.parameters.items() if name[0] in "WUb"}
    chosen = [inputs[i, :length, ...] for i, length in enumerate((9, 48, 30, 12))]

    def build(sequences):
        padded = xp.zeros((len(sequences), max(len(x) for x in sequences), D), dtype=xp.float32)
        for row, x in enumerate(sequences):
            padded[row, : len(x), :] = x
        return adapters.implicit_gru(weights, padded, lengths=[len(x) for x in sequences])

    return [solved.x for solved in ims.drivers.solve_sequences(build, chosen, batch_size=2)]


OTHERS = {
    "expand": lambda layer, xp: ims.elimination.expand(layer, ims.root(ims.elimination.even_odd(layer)).x),
    "jacobian": lambda layer, xp: ims.jacobian(layer, xp.zeros((B, T, K), dtype=xp.float32)).blocks,
    "jacobian of differences": lambda layer, xp: (
        ims.jacobian(
            ims.Problem(layer.residual, structure=layer.structure, batch_ndim=1), xp.zeros((B, T, K), dtype=xp.float32)
        ).blocks
    ),
    "initial_guess": lambda layer, xp: adapters.initial_guess(layer, "one-step"),
    "gru_switch": lambda layer, xp: adapters.gru_switch(
        {name: value for name, value in layer.parameters.items() if name[0] in "WUb"},
        layer.parameters["inputs"],
        xp.zeros((B, T, K), dtype=xp.float32),
    ),
    "approximate_fixed_point": lambda layer, xp: adapters.approximate_fixed_point(layer, 5).x,
    "its gradients": lambda layer, xp: (
        adapters.approximate_fixed_point(layer, 3).pull_back(xp.ones((B, T, K), dtype=xp.float32)).gradients["Uz"]
    ),
    "jacobian_penalty": lambda layer, xp: ims.derivatives.jacobian_penalty(
        layer, ims.root(layer), rng=np.random.default_rng(0)
    ).gradients["Uz"],
    "race": lambda layer, xp: ims.drivers.race(layer, ["zeros", "one-step"]).x,
    "solve_stream": lambda layer, xp: ims.drivers.solve_stream(layer, batch_size=6).x,
    "solve_sequences": lambda layer, xp: _sequences(layer, xp)[1],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(layer, counted, xp, name):
    found, _ = counted(lambda: OTHERS[name](layer, xp))
    assert is_device(found, xp)
    assert bool(xp.all(xp.isfinite(found)))
