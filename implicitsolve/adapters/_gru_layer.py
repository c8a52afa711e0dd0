"""The computation behind `implicit_gru`: values, products and gradients, all positions of a batch at once.

All positions of a batch are rows of one matrix (`Rows`), so that a product with a weight is one GEMM. What is linear
in the inputs is computed once, at construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve import LinearOperator, Problem
from implicitsolve.adapters._common import (
    Array,
    HostIndices,
    Rows,
    array_namespace,
    check_array,
    check_generator,
    check_inputs,
    check_lengths,
    check_names,
    device,
    from_host,
    quiet,
    zeros,
)
from implicitsolve.adapters._gru_cell import (
    BIASES,
    INPUT_WEIGHTS,
    NAMES,
    STATE_WEIGHTS,
    Arguments,
    Factors,
    Values,
    Weights,
    evaluate,
    factors_of,
    project,
    pull,
    push,
    to_neighbours,
    views,
)

EVERYTHING = slice(None)


def shapes(d: int, k: int) -> dict[str, tuple[int, ...]]:
    return {name: {"W": (k, d), "U": (k, k), "b": (k,)}[name[0]] for name in NAMES}


def build(caller: str, params: object, inputs: Array, lengths: Any, hs: Array, he: Array) -> Layer:
    """Check and copy every argument, and compute what is linear in the inputs."""
    xp = check_inputs(caller, inputs)
    is_single = inputs.ndim == 2
    B, T, d = (1, *inputs.shape) if is_single else inputs.shape
    rows = Rows.of(check_lengths(caller, lengths, B, T, is_single), T, inputs)
    given = check_names(caller, params, NAMES)
    k = check_array(caller, "b", given["b"], None, inputs).shape[-1] if np.ndim(given["b"]) else 0
    if k == 0:
        raise ValueError(f"{caller}: `b` must have shape (k,) with k at least 1, got {np.shape(given['b'])}")
    parameters = {name: check_array(caller, name, given[name], shape, inputs) for name, shape in shapes(d, k).items()}
    parameters["inputs"] = inputs
    for name, state in (("hs", hs), ("he", he)):
        by_system = not is_single and getattr(state, "ndim", 1) == 2
        shape = (B, k) if by_system else (k,)
        parameters[name] = zeros((k,), inputs) if state is None else check_array(caller, name, state, shape, inputs)
    parameters = {name: xp.asarray(value, copy=True) for name, value in parameters.items()}
    weights = Weights.of(parameters)
    projections = project(weights.W, weights.b, rows.pack(_batch(parameters["inputs"]))[1:-1, :])
    layer = Layer(parameters, weights, rows, projections, is_single)
    return replace(
        layer,
        before=None if hs is None else layer.edge(parameters["hs"], rows.first),
        after=None if he is None else layer.edge(parameters["he"], rows.last),
    )


def _batch(x: Array) -> Array:
    """One sequence (T, k) as a batch of one."""
    return x if x.ndim == 3 else array_namespace(x).expand_dims(x, axis=0)


@dataclass(frozen=True, eq=False)
class Layer:
    """The layer at fixed parameters and inputs. Immutable: any number of threads may use it."""

    parameters: dict[str, Array]
    weights: Weights
    rows: Rows
    projections: Arguments
    is_single: bool
    before: Array = None  # (count, k): hs in the row of each first position, None if it is zero
    after: Array = None

    @property
    def k(self) -> int:
        return self.weights.U.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a state."""
        return (self.rows.blocks, self.k) if self.is_single else (self.rows.systems, self.rows.blocks, self.k)

    def problem(self) -> Problem:
        return Problem(
            self.residual,
            jvp=self.jvp,
            vjp=self.vjp,
            linearize=self.linearize,
            batch_ndim=0 if self.is_single else 1,
            parameters=self.parameters,
            parameter_jvp=self.parameter_jvp,
            parameter_vjp=self.parameter_vjp,
            take=None if self.is_single else self.take,
            initial_guess=self.initial_guess,
            name="implicit_gru",
        )

    def pack(self, name: str, x: Array) -> Array:
        """Check a state, or an array like one, and pack it."""
        if type(x) is not type(self.weights.b) or x.shape != self.shape or x.dtype != self.weights.b.dtype:
            check_array("implicit_gru", name, x, self.shape, self.weights.b)
        return self.rows.pack(_batch(x))

    def unpack(self, rows: Array) -> Array:
        """Positions of a matrix in the shape of a state; perhaps a view."""
        x = self.rows.unpack(rows)
        return x[0, :, :] if self.is_single else x

    def edge(self, state: Array, at: HostIndices) -> Array:
        """Matrix (count, k) with the boundary states (k,) or (B, k) in the rows `at`."""
        xp = array_namespace(state)
        return self.rows.spread(xp.broadcast_to(state, (self.rows.systems, self.k)), at)

    def neighbours(self, H: Array) -> tuple[Array, Array]:
        """States of the previous and of the next position, row by row."""
        packed = self.pack("x", H)
        p, q = packed[:-2, :], packed[2:, :]
        return p if self.before is None else p + self.before, q if self.after is None else q + self.after

    def evaluate(self, p: Array, q: Array, part: slice = EVERYTHING) -> Values:
        """f(p, q, x) for all rows, or those of one part."""
        return evaluate(self.weights, self.projections.part(part), p, q)

    def apply(self, p: Array, q: Array) -> Array:
        """f(p, q, x) alone, part by part."""
        F = array_namespace(p).empty_like(p)
        for part in self.rows.parts(F):
            F[part, :] = self.evaluate(p[part, :], q[part, :], part).h
        return F

    @quiet
    def residual(self, H: Array) -> Array:
        return H - self.unpack(self.apply(*self.neighbours(H)))

    @quiet
    def linearize(self, H: Array) -> tuple[Array, LinearOperator]:
        xp = array_namespace(H)
        p, q = self.neighbours(H)
        F, factors = xp.empty_like(p), xp.empty((8, *p.shape), dtype=p.dtype, device=device(p))
        for part in self.rows.parts(F):
            values = self.evaluate(p[part, :], q[part, :], part)
            F[part, :] = values.h
            for i, factor in enumerate(factors_of(values)):
                factors[i, part, :] = factor
        return H - self.unpack(F), _Jacobian.of(self, factors).operator()

    def jvp(self, H: Array, v: Array) -> Array:
        return self.linearize(H)[1].matvec(v)

    def vjp(self, H: Array, w: Array) -> Array:
        return self.linearize(H)[1].rmatvec(w)

    @quiet
    def parameter_jvp(self, H: Array, tangents: Mapping[str, Array]) -> Array:
        """Return -(dF/dtheta) dtheta; what `tangents` does not name stays fixed."""
        for name, value in tangents.items():
            if name not in self.parameters:
                raise ValueError(f"implicit_gru: `tangents` has unknown {name}; expected {', '.join(self.parameters)}")
            check_array("implicit_gru", name, value, tuple(self.parameters[name].shape), self.weights.b)
        xp, w = array_namespace(H), self.weights
        change = {name: tangents.get(name, xp.zeros_like(value)) for name, value in self.parameters.items()}
        dw = Weights.of(change)
        x, dx = (self.rows.pack(_batch(inputs))[1:-1, :] for inputs in (self.parameters["inputs"], change["inputs"]))
        v = self.evaluate(*self.neighbours(H))
        extra = Arguments(*(one + other for one, other in zip(project(dw.W, dw.b, x), project(w.W, 0.0 * w.b, dx))))
        for total, state, weight in zip(extra, (v.p, v.q, v.hhat, v.reset), (dw.Up_T, dw.Un_T, dw.gates_T, dw.U_T)):
            total += xp.matmul(state, weight)
        dp, dq = self.edge(change["hs"], self.rows.first), self.edge(change["he"], self.rows.last)
        return -self.unpack(push(w, factors_of(v), dp, dq, extra))

    @quiet
    def parameter_vjp(self, H: Array, w: Array) -> dict[str, Array]:
        """Return -(dF/dtheta)^T w for every name of `parameters`."""
        xp, weights, k = array_namespace(H), self.weights, self.k
        p, q = self.neighbours(H)
        x, w = self.rows.pack(_batch(self.parameters["inputs"]))[1:-1, :], -self.pack("w", w)[1:-1, :]
        dx, dp, dq = xp.empty_like(x), xp.empty_like(p), xp.empty_like(p)
        dW, db = xp.zeros_like(weights.W), xp.zeros_like(weights.b)
        dU = [xp.zeros_like(weights.U) for _ in STATE_WEIGHTS]
        for part in self.rows.parts(w):
            v = self.evaluate(p[part, :], q[part, :], part)
            factors = factors_of(v)
            g = pull(weights, factors, w[part, :])
            blocks = (g.a, g.c, g.z, -g.r, g.candidate)
            merged = xp.concat(blocks, axis=1)
            dW += xp.matmul(xp.matrix_transpose(merged), x[part, :])
            db += xp.sum(merged, axis=0)
            for gradient, block, state in zip(dU, blocks, (v.p, v.q, v.hhat, v.hhat, v.reset)):
                gradient += xp.matmul(xp.matrix_transpose(block), state)
            dx[part, :] = xp.matmul(merged, weights.W)
            dp[part, :], dq[part, :] = to_neighbours(weights, factors, g)
        gradients: dict[str, Array] = dict(zip(STATE_WEIGHTS, dU))
        for i, (name, bias) in enumerate(zip(INPUT_WEIGHTS, BIASES)):
            block = slice(i * k, (i + 1) * k)
            gradients |= {name: xp.asarray(dW[block, :], copy=True), bias: xp.asarray(db[block], copy=True)}
        dx = self.rows.unpack(dx)
        gradients["inputs"] = xp.asarray(dx[0, ...] if self.is_single else dx, copy=True)
        for name, rows, at in (("hs", dp, self.rows.first), ("he", dq, self.rows.last)):
            by_system = xp.take(rows, from_host(at, H), axis=0)
            gradients[name] = by_system if self.parameters[name].ndim == 2 else xp.sum(by_system, axis=0)
        return gradients

    def take(self, indices: HostIndices) -> Problem:
        """The problem of some of the sequences, from the same projections."""
        xp = array_namespace(self.weights.b)
        rows, present = self.rows.take(indices, self.weights.b)
        systems = from_host(indices, self.weights.b)
        own = {"inputs"} | {name for name in ("hs", "he") if self.parameters[name].ndim == 2}  # what each sequence has
        parameters = self.parameters | {name: xp.take(self.parameters[name], systems, axis=0) for name in own}
        projections = Arguments(*(xp.take(block, present, axis=-2) for block in self.projections))
        before, after = (None if x is None else xp.take(x, present, axis=0) for x in (self.before, self.after))
        return Layer(parameters, self.weights, rows, projections, self.is_single, before, after).problem()

    @quiet
    def switch(self, H: Array) -> Array:
        """The switch s, 1/2 where H is padded."""
        s = self.evaluate(*self.neighbours(H)).s
        is_padding = 1.0 - self.unpack(array_namespace(s).ones_like(s))
        return self.unpack(s) + 0.5 * is_padding

    # Initial guesses

    def initial_guess(self, kind: str, rng: np.random.Generator | None = None) -> Array:
        if kind == "zeros":
            return zeros(self.shape, self.weights.b)
        if kind == "random":
            positions = self.rows.positions
            values = np.zeros((self.rows.count, self.k))
            drawn = check_generator("initial_guess", rng).uniform(-1.0, 1.0, (len(positions), self.k))
            values[positions] = drawn
            return self.fresh(from_host(values, self.weights.b))
        if kind in ("one-step", "default"):
            return self.one_step()
        raise ValueError(f"initial_guess: `kind` must be 'one-step', 'zeros' or 'random', got {kind!r}")

    def fresh(self, rows: Array) -> Array:
        return array_namespace(rows).asarray(self.unpack(rows), copy=True)

    @quiet
    def one_step(self) -> Array:
        """f of the states of an ordinary GRU with these z, r and candidate, run forwards from hs and backwards from he.

        Both directions, and all sequences, are one batch; each sequence's backward run begins at its own end.
        """
        xp, rows = array_namespace(self.weights.b), self.rows
        B, first, last = rows.systems, rows.first, rows.last
        state = xp.concat([xp.broadcast_to(self.parameters[name], (B, self.k)) for name in ("hs", "he")], axis=0)
        states = [state]
        for t in range(int(rows.lengths.max()) - 1):
            at = np.append(np.minimum(first + t, last), np.maximum(last - t, first))  # beyond its end a run is not used
            state = self.gru(state, from_host(at, state))
            states.append(state)
        system, t = rows.owners
        table = xp.concat(states, axis=0)
        p = xp.take(table, from_host(2 * B * t + system, state), axis=0)
        q = xp.take(table, from_host(2 * B * (rows.lengths[system] - 1 - t) + B + system, state), axis=0)
        return self.fresh(self.apply(p, q))

    def gru(self, h: Array, at: Array) -> Array:
        """One step of the ordinary GRU with the inputs of the rows `at`."""
        xp, w, x = array_namespace(h), self.weights, self.projections
        gates = 1.0 / (1.0 + xp.exp(xp.matmul(h, w.gates_T) + xp.take(x.gates, at, axis=1)))
        keep, r = gates[0, ...], gates[1, ...]
        candidate = xp.tanh(xp.matmul(r * h, w.U_T) + xp.take(x.candidate, at, axis=0))
        return candidate + keep * (h - candidate)


@dataclass(frozen=True, eq=False)
class _Jacobian:
    """J = I - dF/dH at one state."""

    weights: Weights
    rows: Rows
    is_single: bool
    stacked: Array  # (8, count, k)
    factors: Factors  # views of it

    @classmethod
    def of(cls, layer: Layer, stacked: Array) -> _Jacobian:
        factors = views(stacked)
        for factor in factors:
            layer.rows.clear(factor)  # what a neighbour that is not finite left in its separator
        return cls(layer.weights, layer.rows, layer.is_single, stacked, factors)

    def operator(self) -> LinearOperator:
        event = (self.rows.blocks, self.weights.U.shape[0])
        batch = () if self.is_single else (self.rows.systems,)
        take = None if self.is_single else self.take
        dtype = self.weights.U.dtype
        return LinearOperator(self.matvec, self.rmatvec, in_shape=event, batch_shape=batch, dtype=dtype, take=take)

    def take(self, indices: HostIndices) -> LinearOperator:
        xp = array_namespace(self.weights.U)
        rows, present = self.rows.take(indices, self.weights.U)
        stacked = xp.take(self.stacked, present, axis=1)
        return replace(self, rows=rows, stacked=stacked, factors=views(stacked)).operator()

    @quiet
    def matvec(self, v: Array) -> Array:
        packed = self.rows.pack(_batch(v))
        return v - self.shaped(push(self.weights, self.factors, packed[:-2, :], packed[2:, :]), v)

    @quiet
    def rmatvec(self, w: Array) -> Array:
        g = pull(self.weights, self.factors, self.rows.pack(_batch(w))[1:-1, :])
        to_previous, to_next = to_neighbours(self.weights, self.factors, g)
        to_previous[2:, :] += to_next[:-2, :]  # row i + 1 is now the sum of what i + 1 and i - 1 send to i
        return w - self.shaped(to_previous[1:, :], w)

    def shaped(self, rows: Array, like: Array) -> Array:
        x = self.rows.unpack(rows)
        return x if like.ndim == 3 else x[0, :, :]
