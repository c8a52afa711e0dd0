"""Lifted nets: x = phi(A x + B u), every layer or step of a network as one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from implicitsolve import BlockBandedMatrix, LinearOperator, Problem
from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, copy_array, is_array
from implicitsolve._typing import Array, Indices
from implicitsolve.adapters._common import ByFields, Matrix, check_array, check_inputs, quiet, zeros
from implicitsolve.adapters._lifted_matrices import astype, check_matrix, entries, outer, times
from implicitsolve.adapters.kernels import ACTIVATIONS, Activation, check_activation
from implicitsolve.stopping import check_generator


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

        ``substitute`` is available where the graph of A's non-zero entries is acyclic, as for the networks above. It
        returns the solution after one sweep, which costs one product with A. The Jacobian's operator then offers its
        exact inverse, for `pull_back` and others, at the same cost, in as many steps as the graph has levels. The
        unknowns need no particular order.

        ``initial_guess`` offers the kinds "zeros" (default), "one-step", which is phi(B u), and "random", uniform in
        [-1, 1].

    Raises
    ------
    TypeError, ValueError
        If an argument is not an array or matrix of a fitting shape, library and dtype, or the activation is unknown.

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
    check_inputs("lifted_net", inputs, sample="p")
    check_activation("lifted_net", activation)
    A = check_matrix("lifted_net", "A", A, (None, None), inputs)
    if A.shape[1] != A.shape[0]:
        raise ValueError(f"lifted_net: `A` must be square, got shape {tuple(A.shape)}")
    B = check_matrix("lifted_net", "B", B, (A.shape[0], inputs.shape[-1]), inputs)
    with np.errstate(over="ignore", invalid="ignore"):
        constant = times(B, inputs)
    return _Net(A, B, copy_array(inputs), constant, activation, sweep_of(A, inputs)).problem()


@dataclass(frozen=True, eq=False)
class _Net:
    """The net at fixed parameters and inputs. Immutable: any number of threads may use it."""

    A: Matrix
    B: Matrix
    inputs: Array  # (*batch, p)
    constant: Array  # (*batch, n), B u
    activation: str
    sweep: Sweep | None

    def problem(self) -> Problem:
        is_banded, is_batch = isinstance(self.A, BlockBandedMatrix), self.inputs.ndim == 2
        return Problem(
            self.residual,
            jvp=self.jvp,
            vjp=self.vjp,
            linearize=self.linearize,
            structure=self.A.structure if is_banded else None,
            blocks=self.blocks if is_banded else None,
            batch_ndim=int(is_batch),
            parameters={"A": self.A, "B": self.B, "inputs": self.inputs},
            parameter_jvp=self.parameter_jvp,
            parameter_vjp=self.parameter_vjp,
            take=self.take if is_batch else None,
            initial_guess=self.initial_guess,
            fixed_point=True,
            substitute=None if self.sweep is None else self.substitute,
            name="lifted_net",
        )

    @property
    def phi(self) -> Activation:
        return ACTIVATIONS[self.activation]

    def check(self, name: str, x: Array) -> Array:
        return check_array("lifted_net", name, x, tuple(self.constant.shape), self.constant)

    def apply(self, x: Array) -> Array:
        return self.phi.value(times(self.A, self.check("x", x)) + self.constant)

    def slope(self, x: Array) -> Array:
        return self.phi.slope(self.apply(x))

    @quiet
    def residual(self, x: Array) -> Array:
        return x - self.apply(x)

    @quiet
    def linearize(self, x: Array) -> tuple[Array, LinearOperator]:
        value = self.apply(x)
        return x - value, _jacobian(self.A, self.phi.slope(value), self.sweep)

    def jvp(self, x: Array, v: Array) -> Array:
        return self.linearize(x)[1].matvec(v)

    def vjp(self, x: Array, w: Array) -> Array:
        return self.linearize(x)[1].rmatvec(w)

    @quiet
    def blocks(self, x: Array) -> Array:
        """I - D(phi') A by its blocks."""
        xp, A = array_namespace(x), self.A
        slope = xp.reshape(self.slope(x), (*x.shape[:-1], A.length, 1, A.block_size, 1))
        blocks = -slope * A.blocks
        blocks[..., A.lower, :, :] += xp.eye(A.block_size, dtype=x.dtype, device=x.device)
        return blocks

    @quiet
    def parameter_jvp(self, x: Array, tangents: Mapping[str, Any]) -> Array:
        """Return -phi' * (dA x + dB u + B du); what `tangents` does not name stays fixed."""
        total = array_namespace(x).zeros_like(self.check("x", x))
        for name, value in tangents.items():
            if name == "inputs":
                check_array("lifted_net", name, value, tuple(self.inputs.shape), self.constant)
                total = total + times(self.B, value)
            elif name in ("A", "B"):
                own, factor = (self.A, x) if name == "A" else (self.B, self.inputs)
                change = check_matrix("lifted_net", name, value, tuple(own.shape), self.constant, copy=False)
                total = total + times(change, factor)
            else:
                raise ValueError(f"lifted_net: `tangents` has unknown {name}; expected A, B, inputs")
        return -self.slope(x) * total

    @quiet
    def parameter_vjp(self, x: Array, w: Array) -> dict[str, Any]:
        """Return -(dG/dtheta)^T w for G = phi(A x + B u)."""
        y = -self.slope(x) * self.check("w", w)
        return {"A": outer(self.A, y, x), "B": outer(self.B, y, self.inputs), "inputs": times(self.B, y, adjoint=True)}

    def take(self, indices: Indices) -> Problem:
        return replace(self, inputs=gather(self.inputs, indices), constant=gather(self.constant, indices)).problem()

    @quiet
    def substitute(self) -> Array:
        sweep: Any = self.sweep
        return sweep(lambda product, constant: self.phi.value(product + constant), self.constant)

    @quiet
    def initial_guess(self, kind: str, rng: np.random.Generator | None = None) -> Array:
        shape = tuple(self.constant.shape)
        if kind in ("zeros", "default"):
            return zeros(shape, self.constant)
        if kind == "one-step":
            return copy_array(self.phi.value(self.constant))
        if kind == "random":
            return from_host(check_generator("initial_guess", rng).uniform(-1.0, 1.0, shape), self.constant)
        raise ValueError(f"initial_guess: `kind` must be 'zeros', 'one-step' or 'random', got {kind!r}")


def _jacobian(A: Matrix, slope: Array, sweep: Sweep | None) -> LinearOperator:
    """J = I - D(slope) A at one state, slope of shape (*batch, n); with its inverse by substitution."""
    return LinearOperator(
        quiet(lambda v: v - slope * times(A, v)),
        quiet(lambda w: w - times(A, slope * w, adjoint=True)),
        **_shape(slope),
        take=None if slope.ndim == 1 else lambda indices: _jacobian(A, gather(slope, indices), sweep),
        inverse=None if sweep is None else lambda: _inverse(sweep, slope),
        cast=lambda dtype: _jacobian(astype(A, dtype), astype(slope, dtype), sweep),
    )


def _inverse(sweep: Sweep, slope: Array) -> LinearOperator:
    """J^-1: v = slope * (A v) + b, and for the adjoint w = A^T (slope * w) + b, at the cost of a product with A."""
    return LinearOperator(
        quiet(lambda b: sweep(lambda product, slope, b: slope * product + b, slope, b)),
        quiet(lambda b: sweep.T(lambda product, b: product + b, b, factors=slope)),
        **_shape(slope),
        take=None if slope.ndim == 1 else lambda indices: _inverse(sweep, gather(slope, indices)),
    )


def _shape(slope: Array) -> dict[str, Any]:
    return {"in_shape": slope.shape[-1:], "batch_shape": slope.shape[:-1], "dtype": slope.dtype}


# Substitution where the graph is acyclic
#
# x = phi(A x + c) is solved by substitution if the graph of A's nonzero entries, in which x_i depends on x_j where A_ij
# is not zero, is acyclic: for instance if A is strictly triangular. The unknowns of a level depend on those of earlier
# levels only, so that one sweep over the levels takes one product with A.


Update: TypeAlias = Callable[..., Array]


def sweep_of(A: Matrix, like: Array) -> Sweep | None:
    """Return the substitution for a square matrix A, on arrays like `like`, or None where its graph has a cycle."""
    n = A.shape[0]
    if is_array(A) and np.count_nonzero(to_host(A != 0)) > n * (n - 1) // 2:  # more than fit in a triangle
        return None
    matrix, order = entries(A), None
    offsets = matrix.indices - np.repeat(np.arange(n), np.diff(matrix.indptr))
    if not ((offsets > 0).all() or (offsets < 0).all()):
        order = topological_order(matrix)
        if len(order) < n:
            return None
        matrix = matrix[order][:, order]
        matrix.sort_indices()
    return Sweep(matrix, order, like)


@dataclass(frozen=True, eq=False)
class Sweep(ByFields):
    matrix: Any  # A in CSR form, strictly triangular, its indices sorted
    order: Indices | None  # the unknown of each row of `matrix`, if that is not the unknowns' own order
    like: Array  # of the library and dtype of the vectors

    @cached_property
    def T(self) -> Sweep:
        return Sweep(self.matrix.T.tocsr(), self.order, self.like)

    @cached_property
    def levels(self) -> list[tuple[slice, slice, Any]]:
        """For each level its rows, the columns they depend on, and A there: dense, unless most entries are zero."""
        A, n = self.matrix, self.matrix.shape[0]
        filled = np.flatnonzero(np.diff(A.indptr))
        first, last = A.indices[A.indptr[filled]], A.indices[A.indptr[filled + 1] - 1]
        is_upper = filled.size > 0 and first[0] > filled[0]
        latest = np.full(n, -1)
        latest[n - 1 - filled if is_upper else filled] = n - 1 - first if is_upper else last
        starts = [0]
        for i, row in enumerate(latest.tolist()):
            if row >= starts[-1]:
                starts.append(i)
        found: list[tuple[slice, slice, Any]] = []
        for start, stop in pairwise([*starts, n]):
            level = slice(n - stop, n - start) if is_upper else slice(start, stop)
            own = A[level]
            near = slice(own.indices.min(), own.indices.max() + 1) if own.nnz else slice(0, 0)
            own = own[:, near]
            is_sparse = 2 * own.nnz < own.shape[0] * own.shape[1] and isinstance(self.like, np.ndarray)
            found.append((level, near, own if is_sparse else from_host(own.toarray(), self.like)))
        return found

    def __call__(self, update: Update, *given: Array, factors: Array | None = None) -> Array:
        """Return x with x = update(A (factors * x), *given), for (..., n), where `update` acts on each number."""
        xp, like = array_namespace(given[0]), given[-1]
        given, scale = tuple(self._order(x) for x in given), None if factors is None else self._order(factors)
        x = xp.empty_like(like)
        known = x if scale is None else xp.empty_like(x)
        for level, near, rows in self.levels:
            values = update(times(rows, known[..., near]), *(own[..., level] for own in given))
            x[..., level] = xp.astype(values, x.dtype, copy=False)
            if scale is not None:
                known[..., level] = scale[..., level] * x[..., level]
        return self._order(x, back=True)

    def _order(self, x: Array, *, back: bool = False) -> Array:
        if self.order is None:
            return x
        order = np.argsort(self.order) if back else self.order
        return array_namespace(x).take(x, from_host(order, x), axis=-1)


def topological_order(pattern: Matrix) -> Indices:
    """The nodes of a CSR array's graph, each after those that it depends on; without those that depend on a cycle."""
    left, by_column = np.diff(pattern.indptr), pattern.tocsc()
    found = [np.flatnonzero(left == 0)]
    while found[-1].size:
        dependents = by_column[:, found[-1]].indices
        np.subtract.at(left, dependents, 1)
        found.append(np.unique(dependents[left[dependents] == 0]))
    return np.concatenate(found)
