"""A chain with a block-banded Jacobian that is known, and a check of its adjoint."""

import numpy as np

from implicitsolve import (
    BlockBanded,
    BlockBandedMatrix,
    LinearStop,
    NonlinearStop,
    Problem,
    pull_back,
    push_forward,
    root,
)
from implicitsolve._arrays.host import to_host

SOLVED, EXACT = NonlinearStop(rtol=1e-13), LinearStop(rtol=1e-12)
LAYOUTS = [
    (BlockBanded(1, 1, 2), 6),
    (BlockBanded(2, 0), 7),
    (BlockBanded(0, 0, 3), 4),
    (BlockBanded(1, 3, 2), 3),
    (BlockBanded(1, 1, 2, periodic=True), 5),
]


class Chain:
    """F(x; b, c) = A x + c x^3 - b with a block-banded A, for one system or a batch with one A and c."""

    def __init__(self, structure, length, batch=(), seed=0, xp=np, dtype="float64", **parameters):
        rng = np.random.default_rng(seed)
        k, m = structure.block_size, structure.width
        is_complex = dtype.startswith("complex")

        def random(*shape):
            values = rng.standard_normal(shape)
            return values + 1j * rng.standard_normal(shape) if is_complex else values

        blocks = random(length, m, k, k) / 3
        blocks[:, structure.lower] += 4 * np.eye(k)
        self.structure, self.batch, self.xp, self.dtype = structure, batch, xp, getattr(xp, dtype)
        self.host_A = BlockBandedMatrix(
            blocks, lower=structure.lower, upper=structure.upper, periodic=structure.periodic
        ).todense()
        self.shape = (length, k)
        self.A = xp.asarray(self.host_A, dtype=self.dtype)
        values = {"b": random(*batch, length, k), "c": 0.2 * random(length, k)}
        self.parameters = {name: xp.asarray(v, dtype=self.dtype) for name, v in values.items()} | parameters
        self.x0 = xp.zeros((*batch, length, k), dtype=self.dtype)
        self.cotangent = xp.asarray(random(*batch, length, k), dtype=self.dtype)
        self.tangents = {name: xp.asarray(random(*v.shape), dtype=self.dtype) for name, v in self.parameters.items()}

    def conj(self, x):
        return self.xp.conj(x) if self.xp.isdtype(x.dtype, "complex floating") else x

    def times(self, A, v):
        n = A.shape[-1]
        flat = self.xp.reshape(v, (*v.shape[: v.ndim - 2], n, 1))
        return self.xp.reshape(self.xp.matmul(A, flat), v.shape)

    def residual(self, x):
        return self.times(self.A, x) + self.parameters["c"] * x**3 - self.parameters["b"]

    def jvp(self, x, v):
        return self.times(self.A, v) + 3 * self.parameters["c"] * x**2 * v

    def vjp(self, x, w):
        return (
            self.times(self.conj(self.xp.matrix_transpose(self.A)), w) + self.conj(3 * self.parameters["c"] * x**2) * w
        )

    def dense(self, x):
        n = self.A.shape[-1]
        slope = self.xp.reshape(3 * self.parameters["c"] * x**2, (*self.batch, 1, n))
        return self.A + self.xp.eye(n, dtype=self.dtype) * slope

    def blocks(self, x):
        return BlockBandedMatrix.from_dense(self.dense(x), self.structure).blocks

    def parameter_vjp(self, x, w):
        c = self.conj(x**3) * w
        for _ in self.batch:
            c = self.xp.sum(c, axis=0)
        return {"b": -w, "c": c}

    def parameter_jvp(self, x, tangents):
        out = self.xp.zeros_like(x)
        if "b" in tangents:
            out = out - tangents["b"]
        if "c" in tangents:
            out = out + tangents["c"] * x**3
        return out

    def problem(self, *names, **functions):
        functions = {name: getattr(self, name) for name in names} | functions
        return Problem(
            self.residual,
            structure=self.structure,
            batch_ndim=len(self.batch),
            parameters=self.parameters,
            parameter_vjp=self.parameter_vjp,
            parameter_jvp=self.parameter_jvp,
            **functions,
        )

    def solution(self):
        return root(self.problem("blocks"), self.x0, stop=SOLVED).raise_for_status()

    def expected(self, x):
        """Adjoint and tangent by dense algebra, on the host."""
        x = to_host(x)
        n = self.host_A.shape[0]
        c = to_host(self.parameters["c"])
        J = self.host_A + np.eye(n) * (3 * c * x**2).reshape(*self.batch, 1, n)
        flat = to_host(self.cotangent).reshape(*self.batch, n, 1)
        adjoint = np.linalg.solve(np.conj(np.swapaxes(J, -1, -2)), flat).reshape(x.shape)
        right = to_host(self.parameter_jvp(self.xp.asarray(x), self.tangents)).reshape(*self.batch, n, 1)
        return adjoint, -np.linalg.solve(J, right).reshape(x.shape)


BATCHES = [(), (3,), (2, 2)]
SOURCES = {
    "residual": (),
    "jvp": ("jvp",),
    "blocks": ("blocks",),
    "vjp": ("vjp",),
    "both products": ("jvp", "vjp"),
}


def check(family, problem, point, atol, **options):
    adjoint, tangent = family.expected(point.x if hasattr(point, "x") else point)
    back = pull_back(problem, point, family.cotangent, **options)
    forward = push_forward(problem, point, family.tangents, **options)
    for result in (back, forward):
        assert np.all(result.success), result.message
    np.testing.assert_allclose(to_host(back.adjoint), adjoint, atol=atol)
    np.testing.assert_allclose(to_host(forward.tangent), tangent, atol=atol)
    # <cotangent, dx> by either mode
    flat = tuple(range(tangent.ndim))
    by_forward = np.sum(np.conj(to_host(family.cotangent)) * tangent, axis=flat)
    by_back = sum(np.sum(np.conj(to_host(back.gradients[n])) * to_host(t)) for n, t in family.tangents.items())
    assert abs(by_forward - by_back) < 10 * atol * tangent.size
    return back, forward
