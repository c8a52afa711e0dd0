"""A small nonlinear layer with dense derivatives, in any array library."""

import numpy as np

from implicitsolve import LinearStop, NonlinearStop, Problem, root

SOLVED = NonlinearStop(rtol=1e-13)
EXACT = LinearStop(rtol=1e-12)


class Layer:
    """R(x; A, b, c) = A x + c sin(x) - b, for one system or a batch that shares A and c; in any array library."""

    def __init__(self, seed=0, n=7, batch=(), xp=np, dtype="float64", parameters=None):
        rng = np.random.default_rng(seed)
        is_complex = dtype.startswith("complex")

        def random(*shape):
            values = rng.standard_normal(shape)
            return values + 1j * rng.standard_normal(shape) if is_complex else values

        self.xp, self.n, self.batch, self.dtype = xp, n, batch, getattr(xp, dtype)
        values = {"A": 2 * np.eye(n) + 0.4 * random(n, n) / np.sqrt(n), "b": random(*batch, n), "c": random(n) * 0.3}
        self.parameters = {k: xp.asarray(v, dtype=self.dtype) for k, v in values.items()} | (parameters or {})
        self.x0 = xp.zeros((*batch, n), dtype=self.dtype)
        self.cotangent = xp.asarray(random(*batch, n), dtype=self.dtype)
        self.tangents = {k: xp.asarray(random(*v.shape), dtype=self.dtype) for k, v in self.parameters.items()}

    def conj(self, x):
        return self.xp.conj(x) if self.xp.isdtype(self.dtype, "complex floating") else x

    def apply(self, A, x):
        return self.xp.matmul(A, x[..., None])[..., 0]

    def residual(self, x):
        p = self.parameters
        return self.apply(p["A"], x) + p["c"] * self.xp.sin(x) - p["b"]

    def jvp(self, x, v):
        return self.apply(self.parameters["A"], v) + self.parameters["c"] * self.xp.cos(x) * v

    def vjp(self, x, w):
        adjoint = self.conj(self.xp.matrix_transpose(self.parameters["A"]))
        return self.apply(adjoint, w) + self.conj(self.parameters["c"] * self.xp.cos(x)) * w

    def jacobian(self, x):
        p = self.parameters
        return p["A"] + np.eye(self.n) * (p["c"] * np.cos(x))[..., None, :]

    def parameter_jvp(self, x, tangents):
        out = self.xp.zeros_like(x)
        if "A" in tangents:
            out = out + self.apply(tangents["A"], x)
        if "c" in tangents:
            out = out + tangents["c"] * self.xp.sin(x)
        return out - tangents["b"] if "b" in tangents else out

    def parameter_vjp(self, x, w):
        over = tuple(range(len(self.batch)))
        A = w[..., :, None] * self.conj(x)[..., None, :]
        c = w * self.conj(self.xp.sin(x))
        if over:
            A, c = self.xp.sum(A, axis=over), self.xp.sum(c, axis=over)
        return {"A": A, "b": -w, "c": c}

    def problem(self, **functions):
        functions = functions or {"jvp": self.jvp, "vjp": self.vjp}
        return Problem(
            self.residual,
            parameters=self.parameters,
            parameter_jvp=self.parameter_jvp,
            parameter_vjp=self.parameter_vjp,
            batch_ndim=len(self.batch),
            **functions,
        )

    def solved(self, **functions):
        problem = self.problem(**functions)
        return problem, root(problem, self.x0, stop=SOLVED)

    def dense_adjoint(self, x):
        return np.linalg.solve(np.conj(np.swapaxes(self.jacobian(x), -1, -2)), self.cotangent[..., None])[..., 0]
