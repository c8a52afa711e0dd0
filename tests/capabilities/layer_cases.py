"""A case for each function of `adapters` and `testing`."""

from typing import Any

import numpy as np

import implicitsolve as ims
from implicitsolve import adapters, testing
from tests.capabilities.chain import B, Chain
from tests.capabilities.libraries import Library
from tests.capabilities.solver_cases import Case, Outcome, matrix, right

D, K = 2, 32


def layer(name: str, on: Library, k: int = K, **options: Any) -> ims.Problem:
    """A layer with random parameters on three sequences."""
    rng = np.random.default_rng(7)
    draw = getattr(adapters, f"{name.removeprefix('implicit_')}_parameters")
    sizes = {"offsets": (-2, -1, 1)} if name == "stencil_gru" else {}
    params = {key: on.array(value) for key, value in draw(D, k, rng=rng, **sizes).items()}
    inputs = on.array(rng.standard_normal((B, 5, D)))
    return getattr(adapters, name)(params, inputs, lengths=[5, 2, 4], **sizes, **options)


def trained(problem: ims.Problem, on: Library) -> Outcome:
    """Solution and gradients."""
    result = ims.root(problem, stop=on.stop)
    reverse = ims.pull_back(problem, result, on.xp.ones_like(result.x), stop=on.linear_stop)
    yield from (result.x, bool(np.all(result.success)))
    yield from (reverse.gradients[name] for name in sorted(reverse.gradients))


def layers(name: str) -> Case:
    return lambda on: trained(layer(name, on), on)


def parameters(name: str, **sizes: Any) -> Case:
    """Parameters are drawn as NumPy arrays; `asarray` brings them to other libraries."""

    def case(on: Library) -> Outcome:
        drawn = getattr(adapters, name)(D, 3, rng=np.random.default_rng(8), dtype=on.host_dtype, **sizes)
        yield from (on.xp.asarray(drawn[key]) for key in sorted(drawn))

    return case


def gru_switch(on: Library) -> Outcome:
    problem = layer("implicit_gru", on)
    rng = np.random.default_rng(7)
    params = {key: on.array(value) for key, value in adapters.gru_parameters(D, K, rng=rng).items()}
    inputs = on.array(rng.standard_normal((B, 5, D)))
    H = problem.initial_guess("one-step", None)
    yield adapters.gru_switch(params, inputs, H, lengths=[5, 2, 4])


def initial_guess(on: Library) -> Outcome:
    problem = layer("implicit_gru", on)
    for kind in ("zeros", "one-step", "random"):
        yield adapters.initial_guess(problem, kind, rng=np.random.default_rng(9))


def approximate_fixed_point(on: Library) -> Outcome:
    found = adapters.approximate_fixed_point(layer("elman", on), 3)
    gradients = found.pull_back(on.xp.ones_like(found.x)).gradients
    yield found.x
    yield from (gradients[name] for name in sorted(gradients))


def weights(on: Library, *shapes: tuple[int, int]) -> list[Any]:
    rng = np.random.default_rng(10)
    return [on.array(rng.uniform(-0.3, 0.3, shape)) for shape in shapes]


def lifted_net(on: Library) -> Outcome:
    A, B, u = weights(on, (6, 6), (6, D), (3, D))
    yield from trained(adapters.lifted_net(A, B, u), on)


def built(name: str, *shapes: tuple[int, int], **options: Any) -> Case:
    """A network as a lifted net, and its states."""

    def case(on: Library) -> Outcome:
        given = weights(on, *shapes)
        build = getattr(adapters, name)
        net = build(given, **options) if name == "lifted_feedforward" else build(*given, 3, **options)
        inputs = on.array(np.random.default_rng(11).standard_normal((2, D if name == "lifted_feedforward" else 3 * D)))
        x = adapters.lifted_net(net.A, net.B, inputs).substitute()
        yield from (x, net.outputs(x))

    return case


def lifted_inputs(on: Library) -> Outcome:
    yield adapters.lifted_inputs(on.array(np.arange(12.0).reshape(2, 3, 2)), initial=on.array(np.ones(2)))


def lifted_outputs(on: Library) -> Outcome:
    yield adapters.lifted_outputs(on.array(np.arange(12.0).reshape(2, 6)), 3)


def well_posedness(on: Library) -> Outcome:
    report = adapters.well_posedness(*weights(on, (6, 6)))
    yield from (report.inf_norm, report.perron, report.is_certain)


def project_well_posed(on: Library) -> Outcome:
    yield adapters.project_well_posed(*weights(on, (6, 6)), 0.5)


def dense(on: Library) -> Outcome:
    A = ims.aslinearoperator(*weights(on, (4, 4)))
    yield on.xp.asarray(testing.dense(A, like=on.array([0.0])))


def dot_test(on: Library) -> Outcome:
    yield testing.dot_test(matrix(on), like=right(on)) < 100 * on.eps


def taylor_test(on: Library) -> Outcome:
    cubes = ims.Problem(lambda x: x**3, jvp=lambda x, v: 3 * x**2 * v, batch_ndim=1)
    yield round(testing.taylor_test(cubes, right(on) + 1), 1)


def structure_test(on: Library) -> Outcome:
    chain = Chain(on)
    yield testing.structure_test(chain.problem("blocks"), chain.x0 + 0.3) < 10 * on.eps ** (2 / 3)


CASES: dict[str, Case] = {
    **{f"adapters.{name}": layers(name) for name in ("implicit_gru", "stencil_gru", "implicit_rnn", "implicit_lstm")},
    "adapters.elman": layers("elman"),
    "adapters.diagonal_gru": layers("diagonal_gru"),
    "adapters.diagonal_lstm": layers("diagonal_lstm"),
    "adapters.lifted_net": lifted_net,
    "adapters.initial_guess": initial_guess,
    "adapters.gru_switch": gru_switch,
    "adapters.approximate_fixed_point": approximate_fixed_point,
    "adapters.lifted_feedforward": built("lifted_feedforward", (4, D), (4, 4), (3, 4), format="dense"),
    "adapters.lifted_rnn": built("lifted_rnn", (4, 4), (4, D), (3, 4), format="block-banded"),
    "adapters.lifted_birnn": built(
        "lifted_birnn", (4, 4), (4, D), (3, 4), (4, 4), (4, D), (3, 4), format="block-banded"
    ),
    "adapters.lifted_inputs": lifted_inputs,
    "adapters.lifted_outputs": lifted_outputs,
    "adapters.well_posedness": well_posedness,
    "adapters.project_well_posed": project_well_posed,
    "adapters.gru_parameters": parameters("gru_parameters"),
    "adapters.stencil_gru_parameters": parameters("stencil_gru_parameters", offsets=(-1, 1)),
    "adapters.rnn_parameters": parameters("rnn_parameters"),
    "adapters.lstm_parameters": parameters("lstm_parameters"),
    "adapters.elman_parameters": parameters("elman_parameters"),
    "adapters.diagonal_gru_parameters": parameters("diagonal_gru_parameters"),
    "adapters.diagonal_lstm_parameters": parameters("diagonal_lstm_parameters"),
    "testing.dense": dense,
    "testing.dot_test": dot_test,
    "testing.taylor_test": taylor_test,
    "testing.structure_test": structure_test,
}
