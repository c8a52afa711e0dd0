"""The implicit GRU: a GRU whose hidden state chooses, element by element, between its two neighbours.

One position of the layer, with p and q the states of the previous and the next position::

    a = Wp x + Up p + bp      c = Wn x + Un q + bn      s = sigma(a) / (sigma(a) + sigma(c))
    hhat = s*p + (1-s)*q      z = sigma(Wz x + Uz hhat + bz)      r = sigma(Wr x + Ur hhat + br)
    h = (1-z)*hhat + z*tanh(W x + U (r*hhat) + b)

All positions of a batch are rows of one matrix (`Rows`), so that a product with a weight is one GEMM. What is linear
in the inputs is computed once, at construction. The two gates that are needed are 1-z and r: both are 1/(1 + exp(y))
with y = Wz x + Uz hhat + bz and y = -(Wr x + Ur hhat + br), so what is named "gates" holds Uz and -Ur.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
    check_size,
    device,
    from_host,
    quiet,
    zeros,
)

INPUT_WEIGHTS = ("Wp", "Wn", "Wz", "Wr", "W")  # order of the blocks that are stacked
STATE_WEIGHTS = ("Up", "Un", "Uz", "Ur", "U")
BIASES = ("bp", "bn", "bz", "br", "b")
NAMES = tuple(name for block in zip(INPUT_WEIGHTS, STATE_WEIGHTS, BIASES) for name in block)
EVERYTHING = slice(None)


def gru_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: Any = np.float64
) -> dict[str, np.ndarray[Any, Any]]:
    """Draw the parameters of an implicit GRU, uniformly from [-scale, scale].

    Parameters
    ----------
    d : int
        Inputs of one position.
    k : int
        States of one position.
    scale : float, optional
        Largest magnitude. The default 0.1 is that of [1]_.
    rng : numpy.random.Generator
        Source of the numbers.
    dtype : dtype, optional
        float32 or float64 (default). The numbers drawn are the same up to rounding.

    Returns
    -------
    dict of str to numpy.ndarray
        5 k (d + k + 1) numbers: W, Wz, Wr, Wp, Wn of shape (k, d), U, Uz, Ur, Up, Un (k, k), b, bz, br, bp, bn (k,).

    Raises
    ------
    TypeError
        If `d` or `k` is not an integer, `rng` not a generator, or `dtype` neither of the two.
    ValueError
        If `d`, `k` or `scale` is out of range.

    References
    ----------
    .. [1] Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, section 5.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import gru_parameters
    >>> gru_parameters(3, 2, rng=np.random.default_rng(0))["Wz"].shape
    (2, 3)
    """
    d, k = check_size("gru_parameters", "d", d), check_size("gru_parameters", "k", k)
    check_generator("gru_parameters", rng)
    if not 0 <= scale < np.inf:
        raise ValueError(f"gru_parameters: `scale` must be finite and not negative, got {scale}")
    if np.dtype(dtype).name not in ("float32", "float64"):
        raise TypeError(f"gru_parameters: `dtype` must be float32 or float64, got {dtype}")
    return {name: rng.uniform(-scale, scale, shape).astype(dtype) for name, shape in _shapes(d, k).items()}


def implicit_gru(
    params: Mapping[str, Array], inputs: Array, *, lengths: Any = None, hs: Array = None, he: Array = None
) -> Problem:
    """Return the implicit GRU on a batch of sequences as a problem: residual(H) = H - F(H).

    Block i of F(H) is f(h_{i-1}, h_{i+1}, x_i) with f the function above, h_0 = hs and h_{n+1} = he, where n is the
    length of each sequence. The state H has shape (B, T, k); the problem has exact products, gradients, subsets and
    initial guesses.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `gru_parameters`.
    inputs : Array of shape (B, T, d) or (T, d)
        Float32 or float64; all other arrays must have the same library and dtype. Without B the state is (T, k) and
        the problem is one system, otherwise the sequences are B independent systems.
    lengths : array or list of B integers from 1 to T, optional
        Positions of each sequence; what stands behind them in `inputs` or H has no effect on the rest, whatever it is.
        There residual(H) = H, so that the solution is 0. Default: T for all. For one sequence, an integer.
    hs, he : Array of shape (k,) or (B, k), optional
        States before the first and behind the last position of every, or of each, sequence. Default: zero.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) under the names of `params`, and "inputs", "hs" and "he"; a boundary state
        that is not given counts as zeros of shape (k,). Arrays are copied, later changes of them have no effect.

        ``initial_guess`` knows the kinds "one-step", "zeros" and "random", see `adapters.initial_guess`. `root` without
        x0 takes "one-step", which costs about three residuals and saves a Newton step and five products or more.

    Raises
    ------
    TypeError
        If an argument is no array, or has another library or dtype than `inputs`.
    ValueError
        If a name or a shape is wrong, or a length is not from 1 to T.

    See Also
    --------
    gru_switch : how much each element of the state listens to the previous position.

    Notes
    -----
    A solution exists in the box |h| <= max(1, |hs|, |he|), into which F maps itself; it need not be unique.
    With N = sum(lengths) + B + 1, construction takes 10 N d k operations, and a residual or a product with J or its
    adjoint 10 N k^2 (five GEMMs) plus about 30 and 17 passes over N k numbers. A linearization holds 8 N k numbers.

    The switch is safe at any size of a and c: with S = exp(-a) + exp(-c) + 2, it and its slopes are
    s = (1 + exp(-c))/S, ds/da = s exp(-a)/S and ds/dc = -(1-s) exp(-c)/S, where numerators and denominator are scaled
    by exp(min(0, a, c)), which leaves no exponential above 1 and a denominator of at least 1.

    References
    ----------
    Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017, equation 2.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_gru(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 4), True)
    >>> gradients = ims.pull_back(layer, result, np.ones_like(result.x)).gradients
    >>> gradients["Uz"].shape, gradients["inputs"].shape, gradients["hs"].shape
    ((4, 4), (3, 5, 2), (4,))
    """
    return _build("implicit_gru", params, inputs, lengths, hs, he).problem()


def gru_switch(
    params: Mapping[str, Array],
    inputs: Array,
    states: Array,
    *,
    lengths: Any = None,
    hs: Array = None,
    he: Array = None,
) -> Array:
    """Return the switch s of an implicit GRU at given states: the weight of the previous state, 1 - s of the next.

    Parameters
    ----------
    params, inputs, lengths, hs, he
        As of `implicit_gru`.
    states : Array of shape (B, T, k) or (T, k)
        Usually the solution.

    Returns
    -------
    Array
        In (0, 1), of the shape of `states`; 1/2 at padded positions. The mean of 1 - 2 s over k is above zero where
        information flows from right to left.

    Raises
    ------
    TypeError, ValueError
        As `implicit_gru`.

    References
    ----------
    Kazi, *Implicitly-Defined Neural Networks for Sequence Labeling*, 2016, figures 3 and 4.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import gru_parameters, gru_switch
    >>> params = gru_parameters(2, 4, rng=np.random.default_rng(0))
    >>> params["bp"] += 30.0  # sigma(a) = 1
    >>> params["bn"] -= 30.0  # sigma(c) = 0
    >>> bool((gru_switch(params, np.ones((5, 2)), np.zeros((5, 4))) > 0.999).all())
    True
    """
    layer = _build("gru_switch", params, inputs, lengths, hs, he)
    return layer.switch(check_array("gru_switch", "states", states, layer.shape, layer.weights.b))


# ------------------------------------------------------------------------------------------------------- construction


def _shapes(d: int, k: int) -> dict[str, tuple[int, ...]]:
    return {name: {"W": (k, d), "U": (k, k), "b": (k,)}[name[0]] for name in NAMES}


def _build(caller: str, params: object, inputs: Array, lengths: Any, hs: Array, he: Array) -> _Layer:
    """Check and copy every argument, and compute what is linear in the inputs."""
    xp = check_inputs(caller, inputs)
    is_single = inputs.ndim == 2
    B, T, d = (1, *inputs.shape) if is_single else inputs.shape
    rows = Rows.of(check_lengths(caller, lengths, B, T, is_single), T, inputs)
    given = check_names(caller, params, NAMES)
    k = check_array(caller, "b", given["b"], None, inputs).shape[-1] if np.ndim(given["b"]) else 0
    if k == 0:
        raise ValueError(f"{caller}: `b` must have shape (k,) with k at least 1, got {np.shape(given['b'])}")
    parameters = {name: check_array(caller, name, given[name], shape, inputs) for name, shape in _shapes(d, k).items()}
    parameters["inputs"] = inputs
    for name, state in (("hs", hs), ("he", he)):
        by_system = not is_single and getattr(state, "ndim", 1) == 2
        shape = (B, k) if by_system else (k,)
        parameters[name] = zeros((k,), inputs) if state is None else check_array(caller, name, state, shape, inputs)
    parameters = {name: xp.asarray(value, copy=True) for name, value in parameters.items()}
    weights = _Weights.of(parameters)
    projections = _project(weights.W, weights.b, rows.pack(_batch(parameters["inputs"]))[1:-1, :])
    layer = _Layer(parameters, weights, rows, projections, is_single)
    return replace(
        layer,
        before=None if hs is None else layer.edge(parameters["hs"], rows.first),
        after=None if he is None else layer.edge(parameters["he"], rows.last),
    )


def _batch(x: Array) -> Array:
    """One sequence (T, k) as a batch of one."""
    return x if x.ndim == 3 else array_namespace(x).expand_dims(x, axis=0)


class _Weights(NamedTuple):
    """The parameters in the forms in which they multiply; `_T` are transposed views."""

    W: Array  # (5k, d): Wp, Wn, Wz, Wr, W
    b: Array  # (5k,)
    Up: Array
    Un: Array
    gates: Array  # (2, k, k): Uz and -Ur
    U: Array
    Up_T: Array
    Un_T: Array
    gates_T: Array
    U_T: Array

    @classmethod
    def of(cls, parameters: Mapping[str, Array]) -> _Weights:
        xp = array_namespace(parameters["U"])
        W, b = (xp.concat([parameters[name] for name in names], axis=0) for names in (INPUT_WEIGHTS, BIASES))
        gates = xp.stack([parameters["Uz"], -parameters["Ur"]])
        factors = (parameters["Up"], parameters["Un"], gates, parameters["U"])
        return cls(W, b, *factors, *(xp.matrix_transpose(factor) for factor in factors))


class _Arguments(NamedTuple):
    """What the functions are applied to, row by row: (count, k) each, (2, count, k) of the gates."""

    a: Array
    c: Array
    gates: Array
    candidate: Array

    def part(self, rows: slice) -> _Arguments:
        return _Arguments(self.a[rows, :], self.c[rows, :], self.gates[:, rows, :], self.candidate[rows, :])


def _project(W: Array, b: Array, x: Array) -> _Arguments:
    """W x + b of the five blocks in one GEMM, as contiguous parts."""
    xp = array_namespace(x)
    merged = xp.matmul(x, xp.matrix_transpose(W))
    merged += b
    k = b.shape[0] // 5
    a, c, z, r, candidate = (merged[:, i * k : (i + 1) * k] for i in range(5))
    a, c, candidate = (xp.asarray(block, copy=True) for block in (a, c, candidate))
    return _Arguments(a, c, xp.stack([z, -r]), candidate)


# ---------------------------------------------------------------------------------------------------------- the layer


class _Values(NamedTuple):
    """One application of f to all rows, with what its derivatives need; (count, k) each."""

    p: Array
    q: Array
    difference: Array  # p - q
    exp_a: Array  # the terms of the switch: exp(-a), exp(-c) and their sum plus 2, all scaled
    exp_c: Array
    total: Array
    s: Array
    hhat: Array
    keep: Array  # 1 - z
    r: Array
    reset: Array  # r * hhat
    candidate: Array
    h: Array


@dataclass(frozen=True, eq=False)
class _Layer:
    """The layer at fixed parameters and inputs. Immutable: any number of threads may use it."""

    parameters: dict[str, Array]
    weights: _Weights
    rows: Rows
    projections: _Arguments
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

    def evaluate(self, p: Array, q: Array, part: slice = EVERYTHING) -> _Values:
        """f(p, q, x) for all rows, or those of one part."""
        xp, w, x = array_namespace(p), self.weights, self.projections.part(part)
        a = xp.matmul(p, w.Up_T)
        a += x.a
        c = xp.matmul(q, w.Un_T)
        c += x.c
        scale = xp.minimum(xp.minimum(a, c), 0.0)
        exp_a, exp_c, s = xp.exp(scale - a), xp.exp(scale - c), xp.exp(scale)
        total = s + exp_a
        s += exp_c
        total += s
        s /= total
        difference = p - q
        hhat = s * difference
        hhat += q
        gates = xp.matmul(hhat, w.gates_T)
        gates += x.gates
        gates = xp.exp(gates)
        gates += 1.0
        gates = 1.0 / gates
        keep, r = gates[0, ...], gates[1, ...]
        reset = r * hhat
        candidate = xp.matmul(reset, w.U_T)
        candidate += x.candidate
        candidate = xp.tanh(candidate)
        h = hhat - candidate
        h *= keep
        h += candidate
        return _Values(p, q, difference, exp_a, exp_c, total, s, hhat, keep, r, reset, candidate, h)

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
            for i, factor in enumerate(_factors(values)):
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
        dw = _Weights.of(change)
        x, dx = (self.rows.pack(_batch(inputs))[1:-1, :] for inputs in (self.parameters["inputs"], change["inputs"]))
        v = self.evaluate(*self.neighbours(H))
        extra = _Arguments(*(one + other for one, other in zip(_project(dw.W, dw.b, x), _project(w.W, 0.0 * w.b, dx))))
        for total, state, weight in zip(extra, (v.p, v.q, v.hhat, v.reset), (dw.Up_T, dw.Un_T, dw.gates_T, dw.U_T)):
            total += xp.matmul(state, weight)
        dp, dq = self.edge(change["hs"], self.rows.first), self.edge(change["he"], self.rows.last)
        return -self.unpack(_push(w, _factors(v), dp, dq, extra))

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
            factors = _factors(v)
            g = _pull(weights, factors, w[part, :])
            blocks = (g.a, g.c, g.z, -g.r, g.candidate)
            merged = xp.concat(blocks, axis=1)
            dW += xp.matmul(xp.matrix_transpose(merged), x[part, :])
            db += xp.sum(merged, axis=0)
            for gradient, block, state in zip(dU, blocks, (v.p, v.q, v.hhat, v.hhat, v.reset)):
                gradient += xp.matmul(xp.matrix_transpose(block), state)
            dx[part, :] = xp.matmul(merged, weights.W)
            dp[part, :], dq[part, :] = _to_neighbours(weights, factors, g)
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
        projections = _Arguments(*(xp.take(block, present, axis=-2) for block in self.projections))
        before, after = (None if x is None else xp.take(x, present, axis=0) for x in (self.before, self.after))
        return _Layer(parameters, self.weights, rows, projections, self.is_single, before, after).problem()

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


# --------------------------------------------------------------------------------------------------------- derivatives


class _Factors(NamedTuple):
    """Derivatives of f at one state, (count, k) each: all that a product needs besides the weights."""

    s: Array
    slope_a: Array  # (p - q) ds/da
    slope_c: Array  # (p - q) ds/dc
    keep: Array  # 1 - z
    slope_z: Array  # z (1-z) (candidate - hhat), which is z (candidate - h)
    slope_r: Array  # -r (1-r) hhat
    r: Array
    slope_candidate: Array  # z (1 - candidate^2)


def _views(stacked: Array) -> _Factors:
    return _Factors(*(stacked[i, ...] for i in range(8)))


def _factors(v: _Values) -> _Factors:
    """Derivatives of f at the values, of which some are overwritten: p, q, hhat, reset and h remain."""
    slope = v.difference
    slope /= v.total
    slope_a, slope_c = v.exp_a, v.exp_c
    slope_a *= slope
    slope_a *= v.s
    slope_c *= slope
    slope_c *= v.s - 1.0
    z = 1.0 - v.keep
    slope_z = v.candidate - v.h
    slope_z *= z
    slope_r = v.r - 1.0
    slope_r *= v.reset
    square = v.candidate
    square *= v.candidate
    square *= z
    z -= square
    return _Factors(v.s, slope_a, slope_c, v.keep, slope_z, slope_r, v.r, slope_candidate=z)


class _Cotangents(NamedTuple):
    """What `_pull` finds: of the arguments of the five functions, and of hhat."""

    a: Array
    c: Array
    z: Array
    r: Array
    candidate: Array
    hhat: Array


def _push(w: _Weights, f: _Factors, dp: Array, dq: Array, extra: _Arguments | None = None) -> Array:
    """df for (dp, dq), and for changes `extra` of the arguments of the five functions."""
    xp = array_namespace(dp)
    dh = xp.matmul(dp, w.Up_T)
    dc = xp.matmul(dq, w.Un_T)
    if extra is not None:
        dh += extra.a
        dc += extra.c
    dh *= f.slope_a
    dc *= f.slope_c
    dh += dc
    mixed = dp - dq
    mixed *= f.s
    dh += mixed
    dh += dq  # dhhat
    gates = xp.matmul(dh, w.gates_T)
    if extra is not None:
        gates += extra.gates
    dz, dr = gates[0, ...], gates[1, ...]
    dr *= f.slope_r
    reset = f.r * dh
    reset += dr
    candidate = xp.matmul(reset, w.U_T)
    if extra is not None:
        candidate += extra.candidate
    candidate *= f.slope_candidate
    dz *= f.slope_z
    dh *= f.keep
    dh += candidate
    dh += dz
    return dh


def _pull(weights: _Weights, f: _Factors, w: Array) -> _Cotangents:
    """Cotangents inside f, for the cotangent w of its value."""
    xp = array_namespace(w)
    candidate = f.slope_candidate * w
    reset = xp.matmul(candidate, weights.U)
    r = f.slope_r * reset
    z = f.slope_z * w
    hhat = f.keep * w
    reset *= f.r
    hhat += reset
    hhat += xp.matmul(z, weights.gates[0, ...])
    hhat += xp.matmul(r, weights.gates[1, ...])
    return _Cotangents(f.slope_a * hhat, f.slope_c * hhat, z, r, candidate, hhat)


def _to_neighbours(weights: _Weights, f: _Factors, g: _Cotangents) -> tuple[Array, Array]:
    """Cotangents of p and q, in the rows of the position whose neighbours they are; g.hhat is overwritten."""
    xp = array_namespace(g.hhat)
    dp = xp.matmul(g.a, weights.Up)
    dq = xp.matmul(g.c, weights.Un)
    dq += g.hhat
    share = g.hhat
    share *= f.s
    dp += share
    dq -= share
    return dp, dq


@dataclass(frozen=True, eq=False)
class _Jacobian:
    """J = I - dF/dH at one state."""

    weights: _Weights
    rows: Rows
    is_single: bool
    stacked: Array  # (8, count, k)
    factors: _Factors  # views of it

    @classmethod
    def of(cls, layer: _Layer, stacked: Array) -> _Jacobian:
        factors = _views(stacked)
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
        return replace(self, rows=rows, stacked=stacked, factors=_views(stacked)).operator()

    @quiet
    def matvec(self, v: Array) -> Array:
        packed = self.rows.pack(_batch(v))
        return v - self.shaped(_push(self.weights, self.factors, packed[:-2, :], packed[2:, :]), v)

    @quiet
    def rmatvec(self, w: Array) -> Array:
        g = _pull(self.weights, self.factors, self.rows.pack(_batch(w))[1:-1, :])
        to_previous, to_next = _to_neighbours(self.weights, self.factors, g)
        to_previous[2:, :] += to_next[:-2, :]  # row i + 1 is now the sum of what i + 1 and i - 1 send to i
        return w - self.shaped(to_previous[1:, :], w)

    def shaped(self, rows: Array, like: Array) -> Array:
        x = self.rows.unpack(rows)
        return x if like.ndim == 3 else x[0, :, :]
