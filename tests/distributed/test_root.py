from __future__ import annotations

import copy
import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import implicitsolve as ims
from implicitsolve import distributed
from implicitsolve.distributed import Counted, PartitionedLU, Serial, threads
from tests.distributed.systems import Chain, same_on_all

SIZES = [1, 2, 4]
TIGHT = ims.NonlinearStop(rtol=1e-13, max_iterations=300)
METHODS = {
    "newton-krylov": ims.NewtonKrylov(),
    "gmres": ims.NewtonKrylov(krylov=ims.GMRES(restart=6)),
    "lgmres": ims.NewtonKrylov(krylov=ims.LGMRES(restart=6)),
    "bicgstab": ims.NewtonKrylov(krylov=ims.BiCGSTAB()),
    "truncated": ims.NewtonKrylov(krylov=ims.TruncatedInverse(order=4), line_search=ims.FullStep()),
    "preconditioned": ims.NewtonKrylov(preconditioner=PartitionedLU()),
    "block jacobi": ims.NewtonKrylov(preconditioner=ims.precondition.BlockJacobi()),
    "neumann": ims.NewtonKrylov(preconditioner=ims.precondition.Neumann()),
    "lagged": ims.NewtonKrylov(preconditioner=ims.Lagged(preconditioner=ims.BlockLU())),
    "single": ims.NewtonKrylov(krylov_dtype="float32"),
    "block-newton": ims.BlockNewton(),
    "block-newton, no updates": ims.BlockNewton(reuse="none", factor=PartitionedLU()),
    "anderson": ims.Anderson(),
    "picard": ims.Picard(damping=0.5),
    "broyden": ims.Broyden(),
    "auto": "auto",
}


def contracting(rng, **options):
    """A chain that fixed-point iterations can solve."""
    chain = Chain(rng, **options)
    chain.W *= 0.25
    chain.b *= 0.3
    return chain


def solved(chain, size, method, functions, stop=TIGHT):
    """The result on ranks, as NumPy arrays, which all ranks agree on."""

    def program(comm):
        result = ims.root(chain.problem(comm, *functions), chain.split(comm), method=method, stop=stop)
        return result.x.gathered(), result.fun.gathered(), result

    results = threads(size, program)
    x = same_on_all([x for x, *_ in results])
    for *_, result in results[1:]:
        for name in ("status", "iterations", "krylov_iterations", "residual_norm", "initial_norm"):
            np.testing.assert_array_equal(getattr(result, name), getattr(results[0][2], name))
        assert result.counts == results[0][2].counts
    return x, *results[0][1:]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one system", "batch"])
class TestSameAsWithoutRanks:
    """The solution to 1e-12, and the same status, with every method."""

    @pytest.mark.parametrize("method", METHODS)
    def test_methods(self, rng, method, size, batch):
        chain = contracting(rng, batch=batch)
        alone = ims.root(chain.whole(), chain.x0, method="newton-krylov", stop=TIGHT)
        x, F, result = solved(chain, size, METHODS[method], ("jvp", "vjp"))
        np.testing.assert_array_equal(result.status, alone.status)
        assert np.all(result.success)
        np.testing.assert_allclose(x, alone.x, rtol=1e-12, atol=1e-12 * np.abs(alone.x).max())
        np.testing.assert_allclose(np.abs(F).max(axis=(-2, -1)), result.residual_norm)

    @pytest.mark.parametrize("functions", [(), ("vjp",), ("blocks",)], ids=["residual alone", "vjp", "blocks"])
    @pytest.mark.parametrize("method", ["newton-krylov", "block-newton", "auto"])
    def test_with_less_than_products(self, rng, method, functions, size, batch):
        chain = Chain(rng, batch=batch)
        alone = ims.root(chain.whole(), chain.x0, stop=TIGHT)
        x, _, result = solved(chain, size, METHODS[method], functions)
        np.testing.assert_array_equal(result.status, alone.status)
        np.testing.assert_allclose(x, alone.x, rtol=1e-12, atol=1e-12 * np.abs(alone.x).max())

    @pytest.mark.parametrize(
        "options",
        [
            {"periodic": True, "lower": 2},
            {"upper": 0},
            {"dtype": "complex128"},
            {"k": 1, "T": 9},
            {"lower": 0, "upper": 0},
        ],
        ids=["circle", "causal", "complex", "scalar", "uncoupled"],
    )
    @pytest.mark.parametrize("method", ["newton-krylov", "block-newton"])
    def test_other_chains(self, rng, method, options, size, batch):
        chain = contracting(rng, batch=batch, **options)  # where J may be singular, rounding errors decide
        alone = ims.root(chain.whole(), chain.x0, method=method, stop=TIGHT)
        x, _, result = solved(chain, size, method, ("jvp", "vjp"))
        assert np.all(alone.success)
        assert np.all(result.success)
        np.testing.assert_allclose(x, alone.x, rtol=1e-12, atol=1e-12 * np.abs(alone.x).max())


@pytest.mark.parametrize("size", SIZES)
class TestEndings:
    def test_single_precision_stays(self, rng, size):
        chain = Chain(rng, dtype="float32")
        x, _, result = solved(chain, size, "auto", ("jvp",), stop=None)
        assert x.dtype == np.float32
        assert result.success

    def test_systems_that_end_at_different_times_and_in_different_ways(self, rng, size):
        chain = Chain(rng, batch=(5,))
        chain.x0[1] = ims.root(chain.whole(), chain.x0, stop=TIGHT).x[1]  # converged at the start
        chain.b[3, 5] = np.nan  # never finite
        chain.x0[4] *= 20
        stop = ims.NonlinearStop(atol=1e-8, rtol=0.0)
        for method in ("newton-krylov", "block-newton"):
            alone = ims.root(chain.whole(), chain.x0, method=method, stop=stop)
            assert len(set(alone.iterations.tolist())) > 2
            _, _, result = solved(chain, size, method, ("jvp", "vjp"), stop)
            np.testing.assert_array_equal(result.status, alone.status)
            assert result.status[3] == ims.Status.NONFINITE
            assert result.success.sum() == 4
            assert result.iterations[1] == 0

    def test_failures_are_the_same_status_everywhere(self, size):
        def program(comm):
            problem = distributed.problem(comm, lambda part, x: x[part.own] ** 2 + 1, length=8, lower=0, upper=0)
            start = distributed.split(comm, np.linspace(0.5, 2, 8)[:, None], axis=0)
            result = ims.root(problem, start, stop=ims.NonlinearStop(max_iterations=15))
            return int(result.status)

        statuses = threads(size, program)
        assert len(set(statuses)) == 1
        assert statuses[0] != ims.Status.CONVERGED

    def test_singular_jacobian(self, size):
        def program(comm):
            problem = distributed.problem(comm, lambda part, x: 0 * x[part.own] + 1, length=8)
            result = ims.root(problem, distributed.split(comm, np.ones((8, 1)), axis=0), method="block-newton")
            return result.status.name

        assert threads(size, program) == ["SINGULAR"] * size

    def test_iteration_limit(self, rng, size):
        chain = Chain(rng)
        stop = ims.NonlinearStop(rtol=1e-13, max_iterations=1)
        assert solved(chain, size, "newton-krylov", ("jvp",), stop)[2].status == ims.Status.ITERATION_LIMIT

    def test_a_norm_of_the_callers(self, rng, size):
        chain = Chain(rng)

        def norm(F):
            xp = F.__array_namespace__()
            return xp.sum(xp.abs(F))

        stop = ims.NonlinearStop(norm=norm, rtol=1e-10)
        _, F, result = solved(chain, size, "newton-krylov", ("jvp",), stop)
        assert result.success
        np.testing.assert_allclose(result.residual_norm, np.abs(F).sum(), rtol=1e-6)

    def test_a_monitor_sees_distributed_arrays(self, rng, size):
        chain, shapes = Chain(rng), set()

        def program(comm):
            def monitor(step, x, F):
                shapes.add((x.shape, x.axis, F.shape))

            ims.root(chain.problem(comm, "jvp"), chain.split(comm), method="newton-krylov", monitor=monitor)

        threads(size, program)
        assert shapes == {((12, 2), 0, (12, 2))}

    @pytest.mark.parametrize(
        "method",
        [
            ims.BlockNewton(factor=ims.CyclicReduction()),
            ims.NewtonKrylov(preconditioner=ims.precondition.BlockILU()),
            ims.NewtonKrylov(krylov=ims.ScipyKrylov(function="gmres")),
        ],
        ids=["cyclic reduction", "ILU", "SciPy"],
    )
    def test_methods_that_cannot_say_so(self, rng, size, method):
        with pytest.raises((IndexError, TypeError), match=r"partitioned across|works on NumPy arrays"):
            solved(Chain(rng), size, method, ("jvp",))

    def test_homotopy_says_that_it_cannot(self, rng, size):
        with pytest.raises(TypeError, match=r"Homotopy does not accept arrays partitioned across ranks"):
            solved(Chain(rng), size, "homotopy", ("jvp",))

    def test_nothing_of_the_callers_is_changed(self, rng, size):
        chain = Chain(rng)

        def program(comm):
            x0 = chain.split(comm)
            ims.root(chain.problem(comm, "jvp"), x0)
            return x0.gathered()

        np.testing.assert_array_equal(same_on_all(threads(size, program)), chain.x0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one system", "batch"])
@pytest.mark.parametrize(
    ("functions", "method"),
    [
        (("jvp", "vjp"), None),
        (("jvp", "vjp"), ims.GMRES()),
        (("jvp", "vjp"), ims.BiCGSTAB()),
        (("jvp",), ims.LGMRES()),
        (("jvp",), PartitionedLU()),
        (("blocks",), ims.BlockLU()),
        ((), None),
    ],
    ids=["default", "GMRES", "BiCGSTAB", "without vjp", "PartitionedLU", "blocks", "residual alone"],
)
class TestDerivatives:
    def test_pull_back(self, rng, functions, method, batch, size):
        chain = Chain(rng, batch=batch)
        x = ims.root(chain.whole(), chain.x0, stop=TIGHT).x
        cotangent = rng.normal(size=x.shape)
        stop = ims.LinearStop(rtol=1e-12)
        expected = ims.pull_back(chain.whole(), x, cotangent, stop=stop)

        def program(comm):
            problem = chain.problem(comm, *functions)
            result = ims.pull_back(
                problem, chain.split(comm, x), chain.split(comm, cotangent), method=method, stop=stop
            )
            assert np.all(result.success)
            return [result.adjoint.gathered(), result.gradients["W"], result.gradients["b"].gathered()]

        tolerance = 1e-10 if functions else 1e-6
        for adjoint, W, b in threads(size, program):
            np.testing.assert_allclose(adjoint, expected.adjoint, atol=tolerance)
            np.testing.assert_allclose(W, expected.gradients["W"], atol=10 * tolerance)
            np.testing.assert_allclose(b, expected.gradients["b"], atol=tolerance)

    def test_push_forward(self, rng, functions, method, batch, size):
        chain = Chain(rng, batch=batch)
        x = ims.root(chain.whole(), chain.x0, stop=TIGHT).x
        dW, db, stop = rng.normal(size=chain.W.shape), rng.normal(size=x.shape), ims.LinearStop(rtol=1e-12)
        expected = ims.push_forward(chain.whole(), x, {"W": dW, "b": db}, stop=stop)

        def program(comm):
            tangents = {"W": dW, "b": chain.split(comm, db)}
            result = ims.push_forward(
                chain.problem(comm, *functions), chain.split(comm, x), tangents, method=method, stop=stop
            )
            assert np.all(result.success)
            return result.tangent.gathered()

        found = same_on_all(threads(size, program))
        np.testing.assert_allclose(found, expected.tangent, atol=1e-9 if functions else 1e-5)


@pytest.mark.parametrize("size", SIZES)
class TestLinearSolve:
    @pytest.mark.parametrize("method", [None, ims.GMRES(), ims.LGMRES(), ims.BiCGSTAB(), PartitionedLU()], ids=str)
    @pytest.mark.parametrize("batch", [(), (2,)], ids=["one system", "batch"])
    def test_a_banded_matrix(self, rng, size, method, batch):
        chain = Chain(rng, batch=batch)
        b = rng.normal(size=chain.x0.shape)
        J = ims.jacobian(chain.whole(), chain.x0)
        stop = ims.LinearStop(rtol=1e-13)

        def program(comm):
            blocks = chain.problem(comm, "blocks").blocks(chain.split(comm))
            A = ims.BlockBandedMatrix(blocks, lower=1, upper=1)
            result = ims.linear_solve(A, chain.split(comm, b), method=method, stop=stop)
            assert np.all(result.success)
            return result.x.gathered()

        found = same_on_all(threads(size, program))
        np.testing.assert_allclose(found, ims.linear_solve(J, b, stop=stop).x, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("size", SIZES)
class TestOtherFields:
    """What a problem gets by `dataclasses.replace`."""

    def test_fixed_point_problems_do_without_a_homotopy(self, size):
        chain = Chain(np.random.default_rng(3))
        chain.W *= 3.0  # which defeats Anderson's method

        def program(comm):
            problem = dataclasses.replace(chain.problem(comm, "jvp"), fixed_point=True)
            return ims.root(problem, chain.split(comm), stop=ims.NonlinearStop(max_iterations=120)).krylov_iterations

        assert min(threads(size, program)) > 0

    def test_take_spares_evaluations_of_systems_that_have_ended(self, rng, size):
        chain, sizes = Chain(rng, batch=(6,)), []
        chain.x0[1:] = ims.root(chain.whole(), chain.x0, stop=TIGHT).x[1:]

        def part_of(comm, indices):
            some = copy.copy(chain)
            some.batch, some.b = (len(indices),), chain.b[indices]
            sizes.append(len(indices))
            return some.problem(comm, "jvp", "vjp")

        def program(comm):
            problem = dataclasses.replace(
                chain.problem(comm, "jvp", "vjp"), take=lambda indices: part_of(comm, indices)
            )
            stop = ims.NonlinearStop(atol=1e-9, rtol=0.0)
            result = ims.root(problem, chain.split(comm), method="newton-krylov", stop=stop)
            assert result.success.all()
            return result.x.gathered()

        found = same_on_all(threads(size, program))
        np.testing.assert_allclose(found, ims.root(chain.whole(), chain.x0, stop=TIGHT).x, atol=1e-8)
        assert set(sizes) == {1}


@st.composite
def chains(draw):
    """A chain, and for how many ranks it is long enough."""
    lower, upper, ranks = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(1, 4))
    T = draw(st.integers(max(2, ranks * max(lower, upper, 1)), 14))
    batch = draw(st.sampled_from([(), (2,)]))
    periodic = draw(st.booleans()) and lower + upper + 1 <= T
    seed, k = draw(st.integers(0, 2**16)), draw(st.integers(1, 3))
    rng = np.random.default_rng(seed)
    chain = Chain(rng, batch=batch, T=T, k=k, lower=lower, upper=upper, periodic=periodic)
    chain.W *= 0.9 / sum(np.linalg.norm(w, 2) for w in chain.W)  # J is the identity and less
    return chain, ranks


@given(chains(), st.sampled_from(["newton-krylov", "block-newton", "auto"]), st.sampled_from([(), ("jvp", "vjp")]))
def test_any_chain_on_any_number_of_ranks(case, method, functions):
    chain, ranks = case
    alone = ims.root(chain.whole(), chain.x0, method=method, stop=TIGHT)
    x, _, result = solved(chain, ranks, method, functions)
    np.testing.assert_array_equal(result.status, alone.status)
    assert np.all(result.success)
    np.testing.assert_allclose(x, alone.x, rtol=1e-12, atol=1e-12 * np.abs(alone.x).max())


class TestMessages:
    """How many, which the pages on scaling build on."""

    def counts(self, chain, method, functions, size=3):
        def program(comm):
            comm = Counted(comm)
            problem, x0 = chain.problem(comm, *functions), chain.split(comm)
            comm.reset()
            result = ims.root(problem, x0, method=method, stop=TIGHT)
            assert np.all(result.success)
            return dict(comm.calls), result

        return threads(size, program)[1]

    def test_newton_gmres(self, rng):
        calls, result = self.counts(Chain(rng), ims.NewtonKrylov(krylov=ims.GMRES(), recycle=0), ("jvp",))
        counts = result.counts
        assert set(calls) == {"exchange", "allreduce"}
        assert calls["exchange"] == counts.residuals + counts.jvps
        # Two for each Krylov vector, and a few for each step: the norms of F, of the right-hand side and of the trial.
        assert calls["allreduce"] <= 2 * counts.jvps + 4 * (len(result.steps) + 1)

    def test_newton_with_a_partitioned_lu(self, rng):
        method = ims.BlockNewton(reuse="none", factor=PartitionedLU(refine=0), line_search=ims.FullStep())
        calls, result = self.counts(Chain(rng), method, ("jvp",))
        steps = int(result.iterations)
        assert calls["exchange"] == result.counts.residuals + steps  # an assembly in each
        assert calls["allgather"] == 2 * steps  # of the factors, and of a solve
        assert calls["allreduce"] <= 3 * (steps + 1)

    def test_one_rank_sends_nothing_to_neighbours(self, rng):
        comm = Counted(Serial())
        chain = Chain(rng)
        ims.root(chain.problem(comm, "jvp"), chain.split(comm))
        assert comm.messages["exchange"] == 0


@pytest.mark.parametrize("scale", [{"x_scale": 2.0}, {"f_scale": "auto"}], ids=str)
def test_scales_of_split_arrays_were_refused_without_their_name(rng, scale):
    chain, comm = Chain(rng), Serial()
    with pytest.raises(TypeError, match="`x_scale`, `f_scale` does not accept arrays partitioned"):
        ims.root(chain.problem(comm), chain.split(comm), **scale)
