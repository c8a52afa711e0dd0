"""The system of the cases: a batch of chains of blocks, on arrays of any library."""

from typing import Any

import numpy as np
from array_api_compat import array_namespace

import implicitsolve as ims
from tests.capabilities.libraries import Library

B, T, K = 3, 12, 2
ALL = np.arange(B)


class Chain:
    """F_t = x_t + L tanh(x_{t-1}) + U tanh(x_{t+1}) - f_t - a, zeros beyond the ends: a contraction."""

    def __init__(self, on: Library, rows: Any = ALL) -> None:
        rng = np.random.default_rng(1)
        self.on, self.rows = on, rows
        self.L, self.U = (on.array(rng.uniform(-0.3, 0.3, (K, K))) for _ in range(2))
        self.a = on.array(rng.standard_normal(K))
        force = rng.standard_normal((B, T, K))
        self.force = on.array(force[self.rows])
        self.x0 = on.array(np.zeros((len(self.rows), T, K)))

    def problem(self, *names: str) -> ims.Problem:
        """The problem with the functions of these names, its parameter and `take`."""
        given = {name: getattr(self, name) for name in (*names, "parameter_jvp", "parameter_vjp")}
        take = lambda rows: Chain(self.on, self.rows[rows]).problem(*names)  # noqa: E731
        structure = ims.BlockBanded(1, 1, K)
        return ims.Problem(
            self.residual, structure=structure, batch_ndim=1, parameters={"a": self.a}, take=take, **given
        )

    def residual(self, x: Any) -> Any:
        before, own, after = windows(x)
        xp = array_namespace(x)
        coupled = xp.tanh(before) @ self.L.T + xp.tanh(after) @ self.U.T
        return own + coupled - self.force - self.a

    def jvp(self, x: Any, v: Any) -> Any:
        (before, _, after), (dbefore, dv, dafter) = windows(x), windows(v)
        return dv + (slope(before) * dbefore) @ self.L.T + (slope(after) * dafter) @ self.U.T

    def vjp(self, x: Any, w: Any) -> Any:
        xp = array_namespace(x)
        before, _, after = windows(x)
        edge = xp.zeros_like(w[:, :1, :])
        lower = xp.concat([xp.conj(slope(before)) * (w @ xp.conj(self.L)), edge, edge], axis=1)
        upper = xp.concat([edge, edge, xp.conj(slope(after)) * (w @ xp.conj(self.U))], axis=1)
        whole = lower + xp.concat([edge, w, edge], axis=1) + upper
        return whole[:, 1:-1, :]

    def blocks(self, x: Any) -> Any:
        xp = array_namespace(x)
        before, own, after = windows(x)
        eye = xp.eye(K, dtype=x.dtype) + 0 * own[..., None]
        return xp.stack([self.L * slope(before)[..., None, :], eye, self.U * slope(after)[..., None, :]], axis=2)

    def linearize(self, x: Any) -> tuple[Any, ims.LinearOperator]:
        J = ims.LinearOperator(
            lambda v: self.jvp(x, v),
            lambda w: self.vjp(x, w),
            in_shape=(T, K),
            batch_shape=(x.shape[0],),
            dtype=x.dtype,
        )
        return self.residual(x), J

    def parameter_jvp(self, x: Any, tangents: Any) -> Any:
        return 0 * x - tangents["a"]

    def parameter_vjp(self, x: Any, w: Any) -> Any:
        return {"a": -array_namespace(w).sum(w, axis=(0, 1))}


def slope(y: Any) -> Any:
    return 1 - array_namespace(y).tanh(y) ** 2


def windows(x: Any) -> tuple[Any, Any, Any]:
    """x_{t-1}, x_t and x_{t+1} for all t."""
    xp = array_namespace(x)
    edge = xp.zeros_like(x[:, :1, :])
    padded = xp.concat([edge, x, edge], axis=1)
    return padded[:, :-2, :], x, padded[:, 2:, :]
