from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import implicitsolve as ims
from implicitsolve import distributed
from implicitsolve.distributed import Counted, Part, Serial, threads
from implicitsolve.distributed._layout import folded, halos, padded
from tests.distributed.systems import Chain, same_on_all

CHAINS = {
    "tridiagonal": {},
    "scalar": {"k": 1, "T": 9},
    "batch": {"batch": (3,)},
    "two batch axes": {"batch": (2, 2), "T": 8},
    "causal": {"upper": 0, "lower": 2},
    "anticausal": {"lower": 0, "upper": 1},
    "block diagonal": {"lower": 0, "upper": 0},
    "wide": {"lower": 2, "upper": 1, "T": 11},
    "circle": {"periodic": True},
    "wide circle": {"periodic": True, "lower": 1, "upper": 2, "batch": (2,), "T": 9},
    "complex": {"dtype": "complex128"},
    "single": {"dtype": "float32"},
}
SIZES = [1, 2, 3]


@pytest.fixture(params=CHAINS)
def chain(request, rng):
    return Chain(rng, **CHAINS[request.param])


def vectors(rng, chain, count):
    return [chain._numbers(rng, chain.x0.shape) for _ in range(count)]


def close(found, expected, dtype):
    tolerance = 2e-5 if np.finfo(dtype).eps > 1e-10 else 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


class TestHalo:
    @given(
        st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.booleans(), st.lists(st.integers(1, 3), max_size=2)
    )
    def test_folding_is_the_adjoint_of_padding(self, ranks, before, after, periodic, batch):
        axis, counts = len(batch), [max(before, after, 1) + rank % 2 for rank in range(ranks)]

        def program(comm):
            rng = np.random.default_rng(comm.rank)
            x = rng.normal(size=(*batch, counts[comm.rank], 2))
            around = padded(comm, x, axis, before, after, periodic=periodic)
            w = rng.normal(size=around.shape)
            back = folded(comm, w, axis, before, after, periodic=periodic)
            assert back.shape == x.shape
            return float(np.sum(around * w)), float(np.sum(x * back)), around.shape[axis]

        results = threads(ranks, program)
        np.testing.assert_allclose(sum(r[0] for r in results), sum(r[1] for r in results), rtol=1e-12, atol=1e-12)
        if not periodic:
            assert results[0][2] == counts[0] + after * (ranks > 1)

    def test_blocks_of_the_neighbours(self):
        def program(comm):
            first = 3 * comm.rank
            return padded(comm, np.arange(first, first + 3), 0, 2, 1).tolist(), halos(comm, 2, 1, False)

        assert threads(3, program) == [
            ([0, 1, 2, 3], (0, 1)),
            ([1, 2, 3, 4, 5, 6], (2, 1)),
            ([4, 5, 6, 7, 8], (2, 0)),
        ]

    def test_a_circle_of_one(self):
        assert padded(Serial(), np.arange(4), 0, 2, 1, periodic=True).tolist() == [2, 3, 0, 1, 2, 3, 0]
        assert folded(Serial(), np.ones(7), 0, 2, 1, periodic=True).tolist() == [2, 1, 2, 2]


@pytest.mark.parametrize("size", SIZES)
class TestFunctions:
    """What the distributed problem's functions return, against the ordinary problem of the whole."""

    @pytest.mark.parametrize("functions", [("jvp", "vjp"), ("linearize",)], ids="+".join)
    def test_residual_and_products(self, rng, chain, size, functions):
        whole = chain.whole()
        x, v, w = vectors(rng, chain, 3)

        def program(comm):
            problem = chain.problem(comm, *functions)
            F, J = problem.linearize(chain.split(comm, x))
            products = [J.matvec(chain.flat(comm, v)), J.rmatvec(chain.flat(comm, w))]
            same = problem.residual(chain.split(comm, x)).gathered()
            np.testing.assert_array_equal(same, F.gathered())
            return [F.gathered(), *(y.gathered() for y in products)]

        expected = [whole.residual(x), whole.jvp(x, v), whole.vjp(x, w)]
        for found, right in zip(threads(size, program)[-1], expected, strict=True):
            close(found, right.reshape(found.shape), chain.dtype)

    def test_vjp_alone(self, rng, chain, size):
        x, w = vectors(rng, chain, 2)
        problem = [chain.problem(Serial(), "vjp")]
        assert problem[0].linearize is None
        found = same_on_all(
            threads(
                size,
                lambda comm: chain.problem(comm, "vjp").vjp(chain.split(comm, x), chain.split(comm, w)).gathered(),
            )
        )
        close(found, chain.whole().vjp(x, w), chain.dtype)

    @pytest.mark.parametrize("source", ["blocks", "jvp", "linearize", "differences"])
    def test_blocks(self, rng, chain, size, source):
        if source == "differences" and chain.dtype == np.float32:
            pytest.skip("three digits")
        (x,) = vectors(rng, chain, 1)
        given_functions = () if source == "differences" else (source,)

        def program(comm):
            comm = Counted(comm)
            problem = chain.problem(comm, *given_functions)
            comm.reset()
            blocks = problem.blocks(chain.split(comm, x))
            assert comm.calls.total() == bool(chain.lower or chain.upper)
            assert problem.has_exact_blocks == (source != "differences")
            return blocks.gathered(), problem.blocks_cost

        for blocks, cost in threads(size, program):
            bands = {"lower": chain.lower, "upper": chain.upper, "periodic": chain.periodic}
            J = ims.BlockBandedMatrix(blocks, **bands).todense()
            expected = ims.jacobian(chain.whole(), x).todense()
            tolerance = 1e-8 if source == "differences" else 1e-12 if chain.dtype != np.float32 else 1e-5
            np.testing.assert_allclose(J, expected, rtol=tolerance, atol=tolerance)
            products = (chain.lower + chain.upper + 1) * chain.k
            assert cost == {"blocks": 1, "differences": 2 * products}.get(source, products)

    @pytest.mark.parametrize("source", ["blocks", "jvp"])
    def test_adjoint_products_without_vjp(self, rng, chain, size, source):
        x, w = vectors(rng, chain, 2)

        def program(comm):
            problem = chain.problem(comm, *{"jvp", source})
            _, J = problem.linearize(chain.split(comm, x))
            return J.rmatvec(chain.flat(comm, w)).gathered()

        found = same_on_all(threads(size, program))
        close(found.reshape(x.shape), chain.whole().vjp(x, w), chain.dtype)

    def test_products_with_the_matrix(self, rng, chain, size):
        x, v, w = vectors(rng, chain, 3)

        def program(comm):
            bands = {"lower": chain.lower, "upper": chain.upper, "periodic": chain.periodic}
            J = ims.BlockBandedMatrix(chain.problem(comm, "blocks").blocks(chain.split(comm, x)), **bands)
            v_split, w_split = chain.split(comm, v), chain.split(comm, w)
            return [y.gathered() for y in (J.matvec(v_split), J.rmatvec(w_split), J.H.matvec(w_split))]

        whole = chain.whole()
        expected = [whole.jvp(x, v), whole.vjp(x, w), whole.vjp(x, w)]
        for found, right in zip(threads(size, program)[0], expected, strict=True):
            close(found, right, chain.dtype)

    def test_parameters(self, rng, chain, size):
        x, w, db = vectors(rng, chain, 3)
        dW = chain._numbers(rng, chain.W.shape)
        whole = chain.whole()

        def program(comm):
            comm = Counted(comm)
            problem = chain.problem(comm)
            comm.reset()
            gradients = problem.parameter_vjp(chain.split(comm, x), chain.split(comm, w))
            assert comm.calls["allreduce"] == 1
            tangents = {"W": dW, "b": chain.split(comm, db)}
            moved = problem.parameter_jvp(chain.split(comm, x), tangents)
            assert type(gradients["W"]) is np.ndarray
            return gradients["W"], gradients["b"].gathered(), moved.gathered()

        expected = whole.parameter_vjp(x, w)
        for W, b, moved in threads(size, program):
            close(W, expected["W"], chain.dtype)
            close(b, expected["b"], chain.dtype)
            close(moved, whole.parameter_jvp(x, {"W": dW, "b": db}), chain.dtype)


class TestPart:
    def test_who_sees_what(self):
        def program(comm):
            parts = []
            problem = distributed.problem(
                comm, lambda part, x: (parts.append(part), x[part.own])[1], length=7, lower=2, upper=1
            )
            problem.residual(distributed.split(comm, np.zeros((7, 1)), axis=0))
            return parts[0]

        assert threads(3, program) == [
            Part(first=0, stop=3, before=0, after=1, length=7),
            Part(first=3, stop=5, before=2, after=1, length=7),
            Part(first=5, stop=7, before=2, after=0, length=7),
        ]

    def test_properties(self):
        part = Part(first=3, stop=5, before=2, after=1, length=7)
        assert (part.count, part.seen, part.own, part.is_first, part.is_last) == (2, 5, slice(2, 4), False, False)


class TestWishes:
    def test_gradients_of_some(self, rng):
        chain, wanted = Chain(rng), []

        def parameter_vjp(part, x, w, wrt=("W", "b")):
            wanted.append(sorted(wrt))
            return {name: gradient for name, gradient in chain.parameter_vjp(part, x, w).items() if name in wrt}

        problem = distributed.problem(
            Serial(),
            chain.residual,
            jvp=chain.jvp,
            vjp=chain.vjp,
            length=chain.T,
            block_size=chain.k,
            parameters={"W": chain.W, "b": chain.b},
            parameter_vjp=parameter_vjp,
        )
        result = ims.pull_back(problem, chain.split(Serial()), chain.split(Serial()), wrt=["W"])
        assert list(result.gradients) == ["W"]
        assert wanted == [["W"]]
        ims.pull_back(problem, chain.split(Serial()), chain.split(Serial()))
        assert wanted[-1] == ["W", "b"]

    def test_functions_may_change_what_they_get_and_reuse_what_they_return(self, rng):
        chain = Chain(rng)
        buffers = {}

        def spoiling(function, name):
            def spoiled(part, *arrays):
                value = function(part, *(array.copy() for array in arrays))
                for array in arrays:
                    array[...] = np.nan
                buffers.setdefault(name, np.empty_like(value))[...] = value
                return buffers[name]

            return spoiled

        functions = {name: spoiling(getattr(chain, name), name) for name in ("jvp", "vjp", "blocks")}
        problem = distributed.problem(
            Serial(), spoiling(chain.residual, "residual"), length=chain.T, block_size=chain.k, **functions
        )
        for method in ("newton-krylov", "block-newton"):
            result = ims.root(problem, chain.split(Serial()), method=method)
            assert result.success
            found = result.x.gathered()
            np.testing.assert_allclose(found, ims.root(chain.whole(), chain.x0).x, atol=1e-6)


class TestMistakes:
    def test_too_many_ranks(self):
        with pytest.raises(
            ValueError, match=r"at least max\(lower, upper, 1\) = 2 blocks, got `length` = 5 for 3 ranks"
        ):
            threads(3, lambda comm: distributed.problem(comm, lambda part, x: x, length=5, lower=2))

    def test_arguments(self):
        for wrong, match in [
            ({"length": 1}, "`length` must be at least 2, got 1"),
            ({"length": 4, "batch_ndim": -1}, "`batch_ndim` must be at least 0"),
            ({"length": 4, "block_size": 0}, "`block_size` must be at least 1"),
            ({"length": 2, "periodic": True}, "periodic structure must have at least"),
        ]:
            with pytest.raises(ValueError, match=match):
                distributed.problem(Serial(), lambda part, x: x, **wrong)
        with pytest.raises(TypeError, match="`jvp` must be callable, got int"):
            distributed.problem(Serial(), lambda part, x: x, length=4, jvp=1)
        with pytest.raises(TypeError, match="`residual` must be callable, got NoneType"):
            distributed.problem(Serial(), None, length=4)

    def test_a_state_that_is_split_otherwise(self):
        problem = distributed.problem(Serial(), lambda part, x: x, length=4)
        match = r"whose axis 0 is split by \(4,\), as `distributed.split\(comm, x0, axis=0\)` makes them, got"
        wrong_shapes = (distributed.split(Serial(), np.ones(shape), axis=0) for shape in ((4,), (4, 2), (4, 1, 1)))
        for wrong in (distributed.split(Serial(), np.ones((4, 1)), axis=1), np.ones((4, 1)), *wrong_shapes):
            with pytest.raises(ValueError, match=match):
                problem.residual(wrong)
        with pytest.raises(ValueError, match=r"whose axis 0 is split by"):
            ims.root(problem, np.ones((4, 1)))

    @pytest.mark.parametrize(
        ("value", "error", "match"),
        [
            (None, TypeError, r"`residual` returned None; it must return an array of shape \(2, 1\)"),
            (np.ones(2), ValueError, r"`residual` must return an array of shape \(2, 1\) for Part\(.*\), got \(2,\)"),
            (np.ones((2, 1)) * 1j, TypeError, "`residual` returned complex numbers for a real x"),
            (np.full((2, 1), "x"), TypeError, "`residual` must return numbers, got dtype <U1"),
        ],
        ids=["None", "shape", "complex", "text"],
    )
    def test_what_a_function_returns_on_one_rank(self, value, error, match):
        def program(comm):
            problem = distributed.problem(comm, lambda part, x: value if part.first else x[part.own], length=4)
            ims.root(problem, distributed.split(comm, np.ones((4, 1)), axis=0))

        with pytest.raises(error, match=match):
            threads(2, program)

    @pytest.mark.parametrize(
        "name", ["residual", "jvp", "vjp", "linearize", "blocks", "parameter_vjp", "parameter_jvp"]
    )
    def test_an_error_of_a_function_on_one_rank_is_what_the_caller_sees(self, rng, name):
        chain = Chain(rng)

        def failing(part, *arrays):
            if part.first:
                raise ArithmeticError(f"in {name}")
            return original(part, *arrays)

        original = getattr(chain, name)
        setattr(chain, name, failing)

        def program(comm):
            x = chain.split(comm)
            problem = chain.problem(comm, "jvp", "vjp", *({name} & {"blocks", "linearize"}))
            ims.root(problem, x)
            ims.pull_back(problem, x, x, method=ims.GMRES())
            ims.push_forward(problem, x, {"W": chain.W})

        with pytest.raises(ArithmeticError, match=f"in {name}"):
            threads(3, program)

    def test_what_linearize_returns(self, rng):
        chain = Chain(rng)
        for J, error, match in [
            (None, TypeError, r"`linearize` must return a pair \(F, J\), got NoneType"),
            (np.eye(24), TypeError, "`linearize` must return J as a LinearOperator, got ndarray"),
            (ims.aslinearoperator(np.eye(24)), ValueError, "`linearize` must return J of batch_shape, in_shape"),
        ]:
            linearize = lambda part, x, J=J: None if J is None else (chain.residual(part, x), J)  # noqa: E731
            problem = distributed.problem(
                Serial(), chain.residual, linearize=linearize, length=chain.T, block_size=chain.k
            )
            with pytest.raises(error, match=match):
                problem.linearize(chain.split(Serial()))
