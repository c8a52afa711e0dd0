"""Lifted nets: x = phi(A x + B u), every layer or step of a network as one vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from implicitsolve import LinearOperator, Problem
from implicitsolve.adapters._common import (
    Array,
    DType,
    HostIndices,
    Matrix,
    array_namespace,
    check_array,
    check_generator,
    check_inputs,
    from_host,
    quiet,
    zeros,
)
from implicitsolve.adapters._lifted_sweep import Sweep, sweep_of
from implicitsolve.adapters._lifted_weights import Banded, Weight, weight
from implicitsolve.adapters.kernels import Activation, check_activation

NARROW = 8  # unknowns in a level, on average, below which a sweep takes much longer than a product with A


def lifted_net(A: Matrix, B: Matrix, inputs: Array, *, activation: str = "tanh") -> Problem:
    """Return the lifted net x = phi(A x + B u) as a problem: residual(x) = x - phi(A x + B u).

    Feed-forward and recurrent networks are lifted nets with block triangular A: see `lifted_feedforward`, `lifted_rnn`
    and `lifted_birnn`, which build A, B and the matrix C of the outputs C x.

    Parameters
    ----------
    A : Array, sparse matrix or BlockBandedMatrix, of shape (n, n)
        Dense, or SciPy's in any format (with NumPy inputs), or block banded. A `BlockBandedMatrix` gives the problem a
        structure and the blocks of its Jacobian, and so direct solves.
    B : Array, sparse matrix or BlockBandedMatrix, of shape (n, p)
        Need not have the same form as A.
    inputs : Array of shape (B, p) or (p,)
        u, float32 or float64; A and B must have the same library and dtype. The state has shape (B, n), each row an
        independent system, or (n,).
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi, element by element. Default "tanh". The derivative of "relu" at 0 is taken to be 0.

    Returns
    -------
    Problem
        With exact products, gradients, subsets and initial guesses. Arrays are copied, later changes have no effect.

        `parameters`, and so gradients, are named "A", "B" and "inputs". The gradient of a sparse or block-banded matrix
        has its structure: entries that are not stored are no parameters, stored zeros are. A sparse matrix is kept, and
        its gradient returned, in CSR format, or BSR if it came in BSR; entry i of the gradient's ``data`` belongs to
        entry i of ``problem.parameters["A"].data``.

        ``substitute`` is available where the graph of A's non-zero entries is acyclic, as for the networks above: it
        returns the solution after one sweep, which costs one product with A, and the Jacobian's operator offers its
        exact inverse, for `pull_back` and others, at the same cost (where there are 8 unknowns or more in a level of
        the graph, on average). The unknowns need no particular order.

        ``initial_guess`` offers the kinds "zeros" (default), "one-step", which is phi(B u), and "random", uniform in
        [-1, 1].

    Raises
    ------
    TypeError
        If an argument is no array or matrix, or has another library or dtype than `inputs`.
    ValueError
        If a shape is wrong, or the activation unknown.

    See Also
    --------
    well_posedness : whether there is exactly one solution for any B and u.

    Notes
    -----
    Products with a sparse or block-banded A take 2 operations for each stored entry and system, with a dense one 2 n^2.
    B u is computed once. A linearization holds one number for each unknown, phi'(A x + B u), and a product with J or
    its adjoint takes one product with A::

        J v = v - phi' * (A v)      J^T w = w - A^T (phi' * w)
        y = phi' * lam:   dA = y x^T   dB = y u^T   du = B^T y,   where J^T lam is the loss's derivative by x

    References
    ----------
    Tsai, *Formulate RNN with Implicit Lifted Net Framework*, 2019, equation 1.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.uniform(-0.1, 0.1, (6, 6)), rng.standard_normal((6, 2))
    >>> net = ims.adapters.lifted_net(A, B, rng.standard_normal((5, 2)))
    >>> result = ims.root(net)
    >>> result.x.shape, bool(result.success.all())
    ((5, 6), True)
    >>> gradients = ims.pull_back(net, result, np.ones_like(result.x)).gradients
    >>> gradients["A"].shape, gradients["inputs"].shape
    ((6, 6), (5, 2))
    """
    xp = check_inputs("lifted_net", inputs, sample="p")
    phi = check_activation("lifted_net", activation)
    left = weight("lifted_net", "A", A, (None, None), inputs)
    n = left.value.shape[0]
    if left.value.shape[1] != n:
        raise ValueError(f"lifted_net: `A` must be square, got shape {tuple(left.value.shape)}")
    right = weight("lifted_net", "B", B, (n, inputs.shape[-1]), inputs)
    rows = xp.asarray(_rows(inputs), copy=True)
    with np.errstate(over="ignore", invalid="ignore"):
        constant = right.times(rows)
    is_single = inputs.ndim == 1
    return _Net(left, right, rows, constant, phi, is_single, sweep_of(left)).problem()


@dataclass(frozen=True, eq=False)
class _Net:
    """The net at fixed parameters and inputs. Immutable: any number of threads may use it."""

    A: Weight
    B: Weight
    inputs: Array  # (batch, p), for one system (1, p)
    constant: Array  # (batch, n), B u
    activation: Activation
    is_single: bool
    sweep: Sweep | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a state."""
        return tuple(self.constant.shape[1:]) if self.is_single else tuple(self.constant.shape)

    def problem(self) -> Problem:
        structure = self.A.value.structure if isinstance(self.A, Banded) else None
        return Problem(
            self.residual,
            jvp=self.jvp,
            vjp=self.vjp,
            linearize=self.linearize,
            structure=structure,
            blocks=None if structure is None else self.blocks,
            batch_ndim=0 if self.is_single else 1,
            parameters={"A": self.A.value, "B": self.B.value, "inputs": self.shaped(self.inputs)},
            parameter_jvp=self.parameter_jvp,
            parameter_vjp=self.parameter_vjp,
            take=None if self.is_single else self.take,
            initial_guess=self.initial_guess,
            fixed_point=True,
            substitute=None if self.sweep is None else partial(self.substitute, self.sweep),
            name="lifted_net",
        )

    def rows(self, name: str, x: Array) -> Array:
        """Check a state, or an array like one, and give it as rows."""
        if type(x) is not type(self.constant) or x.shape != self.shape or x.dtype != self.constant.dtype:
            check_array("lifted_net", name, x, self.shape, self.constant)
        return _rows(x)

    def shaped(self, rows: Array) -> Array:
        return _shaped(rows, self.is_single)

    def apply(self, x: Array) -> Array:
        """Return phi(A x + B u) for rows x."""
        return self.activation.value(self.A.times(x) + self.constant)

    def slope(self, x: Array) -> Array:
        """Return phi'(A x + B u) for rows x."""
        return self.activation.slope(self.apply(x))

    @quiet
    def residual(self, x: Array) -> Array:
        return x - self.shaped(self.apply(self.rows("x", x)))

    @quiet
    def linearize(self, x: Array) -> tuple[Array, LinearOperator]:
        value = self.apply(self.rows("x", x))
        return x - self.shaped(value), self.jacobian(self.activation.slope(value)).operator()

    def jacobian(self, slope: Array) -> _Jacobian:
        inverse = None
        if self.sweep is not None and self.sweep.width >= NARROW:
            inverse = _Inverse(self.sweep, slope, self.is_single, slope.dtype)
        return _Jacobian(self.A, slope, self.is_single, inverse)

    def jvp(self, x: Array, v: Array) -> Array:
        return self.linearize(x)[1].matvec(v)

    def vjp(self, x: Array, w: Array) -> Array:
        return self.linearize(x)[1].rmatvec(w)

    @quiet
    def blocks(self, x: Array) -> Array:
        """I - D(phi') A by its blocks."""
        xp, A = array_namespace(x), self.A.value
        slope = xp.reshape(self.slope(self.rows("x", x)), (-1, A.length, 1, A.block_size, 1))
        blocks = -slope * A.blocks
        blocks[:, :, A.lower, :, :] += xp.eye(A.block_size, dtype=x.dtype, device=x.device)
        return blocks[0, ...] if self.is_single else blocks

    @quiet
    def parameter_jvp(self, x: Array, tangents: Mapping[str, Any]) -> Array:
        """Return -phi' * (dA x + dB u + B du); what `tangents` does not name stays fixed."""
        rows = self.rows("x", x)
        total = array_namespace(x).zeros_like(rows)
        for name, value in tangents.items():
            if name == "inputs":
                check_array("lifted_net", name, value, tuple(self.shaped(self.inputs).shape), self.constant)
                total = total + self.B.times(_rows(value))
            elif name in ("A", "B"):
                own, factor = (self.A, rows) if name == "A" else (self.B, self.inputs)
                change = weight("lifted_net", name, value, tuple(own.value.shape), self.constant, copy=False)
                total = total + change.times(factor)
            else:
                raise ValueError(f"lifted_net: `tangents` has unknown {name}; expected A, B, inputs")
        return -self.shaped(self.slope(rows) * total)

    @quiet
    def parameter_vjp(self, x: Array, w: Array) -> dict[str, Any]:
        """Return -(dG/dtheta)^T w for G = phi(A x + B u)."""
        rows = self.rows("x", x)
        y = -self.slope(rows) * self.rows("w", w)
        return {
            "A": self.A.outer(y, rows),
            "B": self.B.outer(y, self.inputs),
            "inputs": self.shaped(self.B.adjoint_times(y)),
        }

    def take(self, indices: HostIndices) -> Problem:
        """The problem of some of the rows."""
        return replace(self, inputs=_some(self.inputs, indices), constant=_some(self.constant, indices)).problem()

    @quiet
    def substitute(self, sweep: Sweep) -> Array:
        """The solution, level after level."""
        value = self.activation.value
        return self.shaped(sweep(lambda product, constant: value(product + constant), self.constant))

    @quiet
    def initial_guess(self, kind: str, rng: np.random.Generator | None = None) -> Array:
        if kind in ("zeros", "default"):
            return zeros(self.shape, self.constant)
        if kind == "one-step":
            return array_namespace(self.constant).asarray(self.shaped(self.activation.value(self.constant)), copy=True)
        if kind == "random":
            return from_host(check_generator("initial_guess", rng).uniform(-1.0, 1.0, self.shape), self.constant)
        raise ValueError(f"initial_guess: `kind` must be 'zeros', 'one-step' or 'random', got {kind!r}")


@dataclass(frozen=True, eq=False)
class _Jacobian:
    """J = I - D(phi') A at one state."""

    A: Weight
    slope: Array  # (batch, n), for one system (1, n)
    is_single: bool
    inverse: _Inverse | None

    def operator(self) -> LinearOperator:
        return LinearOperator(
            self.matvec,
            self.rmatvec,
            **_shape(self.slope, self.is_single),
            take=None if self.is_single else lambda indices: self.part(indices).operator(),
            inverse=None if self.inverse is None else self.inverse.operator,
            cast=self.cast,
        )

    def part(self, indices: HostIndices) -> _Jacobian:
        """That of some systems of the batch."""
        inverse = None if self.inverse is None else self.inverse.part(indices)
        return replace(self, slope=_some(self.slope, indices), inverse=inverse)

    def cast(self, dtype: DType) -> LinearOperator:
        slope = array_namespace(self.slope).astype(self.slope, dtype)
        inverse = None if self.inverse is None else replace(self.inverse, dtype=dtype)
        return replace(self, A=self.A.astype(dtype), slope=slope, inverse=inverse).operator()

    @quiet
    def matvec(self, v: Array) -> Array:
        return v - _shaped(self.slope * self.A.times(_rows(v)), self.is_single)

    @quiet
    def rmatvec(self, w: Array) -> Array:
        return w - _shaped(self.A.adjoint_times(self.slope * _rows(w)), self.is_single)


@dataclass(frozen=True, eq=False)
class _Inverse:
    """J^-1 by substitution: exact, at the cost of a product with A."""

    sweep: Sweep
    slope: Array
    is_single: bool
    dtype: DType  # of the vectors; it computes in that of the slopes

    def operator(self) -> LinearOperator:
        take = None if self.is_single else lambda indices: self.part(indices).operator()
        shape = _shape(self.slope, self.is_single) | {"dtype": self.dtype}
        return LinearOperator(self.matvec, self.rmatvec, **shape, take=take)

    def part(self, indices: HostIndices) -> _Inverse:
        """That of some systems of the batch."""
        return replace(self, slope=_some(self.slope, indices))

    @quiet
    def matvec(self, b: Array) -> Array:
        """Return v with v = phi' * (A v) + b."""
        v = self.sweep(lambda product, slope, right: slope * product + right, self.slope, self.right(b))
        return self.shaped(v)

    @quiet
    def rmatvec(self, b: Array) -> Array:
        """Return w with w = A^T (phi' * w) + b."""
        w = self.sweep.T(lambda product, right: product + right, self.right(b), factors=self.slope)
        return self.shaped(w)

    def right(self, b: Array) -> Array:
        return array_namespace(b).astype(_rows(b), self.slope.dtype, copy=False)

    def shaped(self, rows: Array) -> Array:
        return array_namespace(rows).astype(_shaped(rows, self.is_single), self.dtype, copy=False)


def _shape(slope: Array, is_single: bool) -> dict[str, Any]:
    """Shapes and dtype of the operators at these slopes."""
    batch, n = slope.shape
    return {"in_shape": (n,), "batch_shape": () if is_single else (batch,), "dtype": slope.dtype}


def _some(rows: Array, indices: HostIndices) -> Array:
    return array_namespace(rows).take(rows, from_host(indices, rows), axis=0)


def _rows(x: Array) -> Array:
    """One system (n,) as a batch of one."""
    return x if x.ndim == 2 else array_namespace(x).expand_dims(x, axis=0)


def _shaped(rows: Array, is_single: bool) -> Array:
    """Rows in the shape of a state, or of the inputs."""
    return rows[0, :] if is_single else rows
