"""A system of blocks in a chain, by functions of a part of it: what the tests of distributed solves share."""

from __future__ import annotations

import numpy as np

import implicitsolve as ims
from implicitsolve import distributed
from implicitsolve.distributed import Part


class Chain:
    """F_t = x_t + x_t^3 / 5 + sum_j W_j tanh(x_{t+j-lower}) - b_t, with zeros beyond the ends or in a circle."""

    def __init__(self, rng, *, batch=(), T=12, k=2, lower=1, upper=1, periodic=False, dtype=np.float64):
        self.batch, self.T, self.k, self.lower, self.upper, self.periodic = batch, T, k, lower, upper, periodic
        self.dtype = np.dtype(dtype)
        self.W = self._numbers(rng, (lower + upper + 1, k, k)) / (2 * k * (lower + upper + 1)) ** 0.5
        self.b = self._numbers(rng, (*batch, T, k))
        self.x0 = 0.1 * self._numbers(rng, (*batch, T, k))

    def _numbers(self, rng, shape):
        numbers = rng.normal(size=shape)
        if self.dtype.kind == "c":
            numbers = numbers + 1j * rng.normal(size=shape)
        return numbers.astype(self.dtype)

    # On a part

    def windows(self, part, x):
        """x_{t+j-lower} of the own blocks t, for each j."""
        beyond = (self.lower - part.before, self.upper - part.after)
        x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [beyond, (0, 0)])
        return [x[..., j : j + part.count, :] for j in range(self.lower + self.upper + 1)]

    def residual(self, part, x):
        own = x[..., part.own, :]
        coupled = sum(np.tanh(y) @ w.T for y, w in zip(self.windows(part, x), self.W))
        return own + own**3 / 5 + coupled - self.b[..., part.first : part.stop, :]

    def jvp(self, part, x, v):
        own, v_own = x[..., part.own, :], v[..., part.own, :]
        pairs = zip(self.windows(part, x), self.windows(part, v), self.W)
        return (1 + 3 * own**2 / 5) * v_own + sum((dy / np.cosh(y) ** 2) @ w.T for y, dy, w in pairs)

    def vjp(self, part, x, w):
        own = x[..., part.own, :]
        out = np.zeros((*x.shape[:-2], self.lower + part.count + self.upper, self.k), x.dtype)
        out[..., self.lower : self.lower + part.count, :] = np.conj(1 + 3 * own**2 / 5) * w
        for j, (y, weights) in enumerate(zip(self.windows(part, x), self.W)):
            out[..., j : j + part.count, :] += (w @ np.conj(weights)) / np.conj(np.cosh(y) ** 2)
        first = self.lower - part.before
        return out[..., first : first + part.seen, :]

    def linearize(self, part, x):
        x = x.copy()
        J = ims.LinearOperator(
            lambda v: self.jvp(part, x, v),
            lambda w: self.vjp(part, x, w),
            in_shape=(part.seen, self.k),
            out_shape=(part.count, self.k),
            batch_shape=self.batch,
            dtype=self.dtype,
        )
        return self.residual(part, x), J

    def blocks(self, part, x):
        own = x[..., part.own, :]
        slopes = [1 / np.cosh(y) ** 2 for y in self.windows(part, x)]
        blocks = np.stack([w * s[..., None, :] for w, s in zip(self.W, slopes)], axis=-3)
        blocks[..., self.lower, :, :] += (1 + 3 * own**2 / 5)[..., None] * np.eye(self.k)
        return blocks

    def parameter_vjp(self, part, x, w):
        gradients = [np.einsum("...ti,...tj->ij", w, np.conj(np.tanh(y)), optimize=True) for y in self.windows(part, x)]
        return {"W": np.stack(gradients), "b": -w}

    def parameter_jvp(self, part, x, tangents):
        out = np.zeros((*x.shape[:-2], part.count, self.k), x.dtype)
        if "W" in tangents:
            out += sum(np.tanh(y) @ dw.T for y, dw in zip(self.windows(part, x), tangents["W"]))
        return out - tangents["b"] if "b" in tangents else out

    # On ranks

    @property
    def axis(self):
        return len(self.batch)

    def split(self, comm, array=None):
        return distributed.split(comm, self.x0 if array is None else array, axis=self.axis)

    def flat(self, comm, array):
        """The same as vectors of all unknowns."""
        split = self.split(comm, array)
        return split.__array_namespace__().reshape(split, (*self.batch, self.T * self.k))

    def problem(self, comm, *functions):
        """The problem with some of "jvp", "vjp" and "blocks", and the derivatives by parameters."""
        return distributed.problem(
            comm,
            self.residual,
            **{name: getattr(self, name) for name in functions},
            length=self.T,
            block_size=self.k,
            lower=self.lower,
            upper=self.upper,
            periodic=self.periodic,
            batch_ndim=self.axis,
            parameters={"W": self.W, "b": self.split(comm, self.b)},
            parameter_jvp=self.parameter_jvp,
            parameter_vjp=self.parameter_vjp,
        )

    # Without ranks

    def whole(self):
        """The same as an ordinary problem on NumPy arrays."""
        before, after = (self.lower, self.upper) if self.periodic else (0, 0)
        part = Part(first=0, stop=self.T, before=before, after=after, length=self.T)

        def around(x):
            pieces = [x[..., self.T - before :, :], x, x[..., :after, :]]
            return np.concatenate(pieces, axis=-2)

        def vjp(x, w):
            out = self.vjp(part, around(x), w)
            own = out[..., before : before + self.T, :].copy()
            own[..., self.T - before :, :] += out[..., :before, :]
            own[..., :after, :] += out[..., before + self.T :, :]
            return own

        return ims.Problem(
            lambda x: self.residual(part, around(x)),
            jvp=lambda x, v: self.jvp(part, around(x), around(v)),
            vjp=vjp,
            structure=ims.BlockBanded(self.lower, self.upper, self.k, periodic=self.periodic),
            batch_ndim=self.axis,
            parameters={"W": self.W, "b": self.b},
            parameter_jvp=lambda x, tangents: self.parameter_jvp(part, around(x), tangents),
            parameter_vjp=lambda x, w: self.parameter_vjp(part, around(x), w),
        )


def same_on_all(results):
    """What all ranks have returned, which must have the same bits."""
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    return results[0]
