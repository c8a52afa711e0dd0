"""A family of problems whose Jacobian is known, and its assembly."""

import numpy as np
from array_api_compat import array_namespace
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import BlockBanded, BlockBandedMatrix, LinearOperator, Problem
from implicitsolve._arrays.host import to_host
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator


class Coupled:
    """F(x) = A x + x^2 / 2 with a random block-banded A, for one system or a batch: J = A + diag(x)."""

    def __init__(self, structure, length, batch=(), seed=0, xp=np, dtype="float64"):
        rng = np.random.default_rng(seed)
        k, m = structure.block_size, structure.width
        is_complex = dtype.startswith("complex")

        def random(*shape):
            values = rng.uniform(0.5, 1.5, size=shape) * rng.choice([-1, 1], size=shape)
            return values + 1j * rng.standard_normal(shape) if is_complex else values

        self.structure, self.batch, self.length, self.xp = structure, batch, length, xp
        self.dtype = getattr(xp, dtype)
        self.host_blocks = random(*batch, length, m, k, k)
        self.host_x = random(*batch, length, k)
        self.x = xp.asarray(self.host_x, dtype=self.dtype)
        host_A = ims.BlockBandedMatrix(
            self.host_blocks, lower=structure.lower, upper=structure.upper, periodic=structure.periodic
        )
        self.host_A = np.asarray(host_A.todense())
        self.A = xp.asarray(self.host_A, dtype=self.dtype)
        self.calls = 0

    def _times(self, x, v):
        flat = self.xp.reshape(v, (*self.batch, -1))
        return self.xp.reshape(self.xp.matmul(self.A, flat[..., None])[..., 0], v.shape)

    def residual(self, x):
        self.calls += 1
        return self._times(x, x) + 0.5 * x * x

    def jvp(self, x, v):
        return self._times(x, v) + x * v

    def dense(self, x):
        n = self.host_A.shape[-1]
        return self.A + self.xp.eye(n, dtype=self.dtype) * self.xp.reshape(x, (*self.batch, 1, n))

    def matrix(self, x):
        return BlockBandedMatrix.from_dense(self.dense(x), self.structure)

    def operator(self, x):
        J = self.dense(x)
        xp = self.xp
        return LinearOperator(
            lambda v: xp.matmul(J, v[..., None])[..., 0], in_shape=J.shape[-1], batch_shape=self.batch, dtype=self.dtype
        )

    def expected(self):
        n = self.host_A.shape[-1]
        return self.host_A + np.eye(n) * self.host_x.reshape(*self.batch, 1, n)

    def problem(self, **functions):
        return Problem(self.residual, structure=self.structure, batch_ndim=len(self.batch), **functions)


def assembled(problem, x, *, rows=None, **options):
    """J of some systems as host arrays (b, N, N), and residuals and products that it took."""
    evaluator = Evaluator(problem, x)
    assembler = Assembler(evaluator, **options)
    flat = evaluator.flatten(x)
    if rows is not None:
        evaluator = evaluator.take(rows, flat)
        flat = array_namespace(x).take(flat, array_namespace(x).asarray(rows), axis=0)
    F = evaluator.residual(flat)
    before = evaluator.tally.counts()
    J = assembler.assemble(evaluator, flat, F)
    assert J.structure == problem.structure
    assert J.dtype == x.dtype
    return to_host(J.todense()), evaluator.tally.counts() - before


SOURCES = {
    "blocks": lambda f: {"blocks": lambda x: f.matrix(x).blocks},
    "dense": lambda f: {"jac": f.dense},
    "matrix": lambda f: {"jac": f.matrix},
    "operator": lambda f: {"jac": f.operator},
    "linearize dense": lambda f: {"linearize": lambda x: (f.residual(x), f.dense(x))},
    "linearize matrix": lambda f: {"linearize": lambda x: (f.residual(x), f.matrix(x))},
    "linearize operator": lambda f: {"linearize": lambda x: (f.residual(x), f.operator(x))},
    "jvp": lambda f: {"jvp": f.jvp},
    "differences": lambda f: {},
}
EXACT = [source for source in SOURCES if source != "differences"]


@st.composite
def layouts(draw, periodic=None):
    lower, upper, k = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 3))
    is_periodic = draw(st.booleans()) if periodic is None else periodic
    length = draw(st.integers(lower + upper + 1 if is_periodic else 1, 9))
    return BlockBanded(lower, upper, k, periodic=is_periodic), length


def assembler(structure, length, **functions):
    problem = Problem(lambda x: x, structure=structure, **functions)
    return Assembler(Evaluator(problem, np.ones(length * structure.block_size)))
