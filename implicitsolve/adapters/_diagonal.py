"""The GRU and the LSTM with diagonal recurrent weights, read as systems for all positions at once.

Each channel is a recurrence of its own, given the inputs: the derivative of a cell is a p x p block of diagonals, where
a state has p parts of k numbers. A linearization keeps these p^2 diagonals first, and then what the arguments'
derivatives need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from implicitsolve import Problem
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Arrays, HostArray
from implicitsolve.adapters import kernels
from implicitsolve.adapters._cell import AffineCell, Cotangents, Distances, Factors
from implicitsolve.adapters._common import DType, Lengths, draw, read_parameters
from implicitsolve.adapters._layer import build
from implicitsolve.adapters._rows import Run, along, identity
from implicitsolve.adapters.kernels._gates import gate, near
from implicitsolve.adapters.kernels._recurrence import block_times


def diagonal_gru_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: DType = np.float64
) -> dict[str, HostArray]:
    """Draw the parameters of a diagonal GRU, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k, scale, rng, dtype : int, float, numpy.random.Generator and dtype
        As for `gru_parameters`.

    Returns
    -------
    dict of str to numpy.ndarray
        3 k (d + 2) numbers: W, Wz, Wr of shape (k, d), U, Uz, Ur (k,), b, bz, br (k,).

    Examples
    --------
    >>> from implicitsolve.adapters import diagonal_gru_parameters
    >>> diagonal_gru_parameters(3, 2, rng=np.random.default_rng(0))["Uz"].shape
    (2,)
    """
    return draw("diagonal_gru_parameters", DiagonalGRUCell.shapes, d, k, scale, rng, dtype)


def diagonal_lstm_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: DType = np.float64
) -> dict[str, HostArray]:
    """Draw the parameters of a diagonal LSTM, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k, scale, rng, dtype : int, float, numpy.random.Generator and dtype
        As for `gru_parameters`; there are as many cell states as hidden ones, k.

    Returns
    -------
    dict of str to numpy.ndarray
        4 k (d + 2) numbers: Wi, Wf, Wg, Wo of shape (k, d), Ui, Uf, Ug, Uo (k,), bi, bf, bg, bo (k,).

    Examples
    --------
    >>> from implicitsolve.adapters import diagonal_lstm_parameters
    >>> diagonal_lstm_parameters(3, 2, rng=np.random.default_rng(0))["Uf"].shape
    (2,)
    """
    return draw("diagonal_lstm_parameters", DiagonalLSTMCell.shapes, d, k, scale, rng, dtype)


def diagonal_gru(
    params: Mapping[str, Array], inputs: Array, *, lengths: Lengths = None, h0: Array | None = None
) -> Problem:
    """Return a GRU with diagonal recurrent weights as a problem: residual(H) = H - F(H).

    Block t of F(H) is h, with p = h_{t-1}, where * and the products with u are element by element::

        z = sigma(Wz x + Uz*p + bz)      r = sigma(Wr x + Ur*p + br)
        h = (1-z)*p + z*tanh(W x + U*(r*p) + b)

    Each of the k channels is a recurrence of its own, given the inputs, so J is lower bidiagonal with diagonal blocks:
    Newton's method solves for all positions at once, and each of its linear systems is one affine scan.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `diagonal_gru_parameters`.
    inputs, lengths : Array, and integers, optional
        As in `implicit_gru`.
    h0 : Array of shape (k,) or (B, k), optional
        State before the first position, as `hs` of `implicit_gru`.

    Returns
    -------
    Problem
        With `parameters` (and so gradients) as in `implicit_gru`, "h0" among them. It is causal: ``substitute`` runs
        the network position by position, and this is what `root` does by default. ``method=CausalNewton()`` solves for
        all positions in parallel; `NewtonKrylov` takes one Krylov iteration per step, since J offers its exact inverse.
        The adjoint system of `pull_back` is one scan backwards in any case.

    Notes
    -----
    The solution exists and is unique, and n Newton steps of full length make the first n states exact, whatever the
    start [1]_. How many steps it takes depends on how predictable the map is: where small changes of a state fade, it
    takes a few for any T [2]_; where they grow, the count grows with T: `CausalNewton`, and
    :doc:`/explanation/parallel_rnn`.

    With N = sum(lengths) + B + 1 rows, construction takes 6 N d k operations, and a residual, a product with J or its
    adjoint, and a product with an inverse of these pass over N k numbers. A linearization holds 5 N k numbers.

    References
    ----------
    .. [1] Lim, Zhu, Selfridge & Kasim, *Parallelizing non-linear sequential models over the sequence length* (DEER),
       ICLR 2024. Diagonal weights are those of Danieli et al., *ParaRNN*, 2025.
    .. [2] Gonzalez, Kozachkov, Zoltowski, Clarkson & Linderman, *Predictability enables parallelization of nonlinear
       state space models*, NeurIPS 2025.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.diagonal_gru_parameters(2, 4, scale=1.0, rng=rng)
    >>> network = ims.adapters.diagonal_gru(params, rng.standard_normal((3, 500, 2)), lengths=[500, 1, 300])
    >>> result = ims.root(network, method=ims.CausalNewton())
    >>> bool(result.success.all()), bool(np.allclose(result.x, network.substitute(), atol=1e-5))
    (True, True)
    """
    parameters = read_parameters("diagonal_gru", params, inputs, DiagonalGRUCell.shapes, size="b")
    cell = DiagonalGRUCell.of(parameters, (-1,))
    return build("diagonal_gru", cell, parameters, inputs, lengths, before={"h0": h0}, after={}).problem()


def diagonal_lstm(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    lengths: Lengths = None,
    h0: Array | None = None,
    c0: Array | None = None,
) -> Problem:
    """Return an LSTM with diagonal recurrent weights as a problem: residual(H) = H - F(H).

    The state of a position is (h, c), 2 k numbers: ``H[..., :k]`` are the hidden states, ``H[..., k:]`` the cell
    states. Block t of F(H) is (h, c), with (p, q) = (h, c)_{t-1}::

        i, f, o = sigma(W. x + U.*p + b.)      g = tanh(Wg x + Ug*p + bg)
        c = f*q + i*g      h = o*tanh(c)

    Each of the k channels is a recurrence of two numbers, given the inputs: J is lower bidiagonal with blocks of four
    diagonals.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `diagonal_lstm_parameters`.
    inputs, lengths : Array, and integers, optional
        As in `implicit_gru`. The state has shape (B, T, 2 k) or (T, 2 k).
    h0, c0 : Array of shape (k,) or (B, k), optional
        States before the first position, as `hs` of `implicit_gru`.

    Returns
    -------
    Problem
        As in `diagonal_gru`, with the boundary states "h0" and "c0".

    Notes
    -----
    As in `diagonal_gru`; construction takes 8 N d k operations, and a linearization holds 9 N k numbers.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.diagonal_lstm_parameters(2, 4, scale=1.0, rng=rng)
    >>> network = ims.adapters.diagonal_lstm(params, rng.standard_normal((3, 500, 2)))
    >>> result = ims.root(network, method=ims.CausalNewton())
    >>> result.x.shape, result.success
    ((3, 500, 8), array([ True,  True,  True]))
    """
    parameters = read_parameters("diagonal_lstm", params, inputs, DiagonalLSTMCell.shapes, size="bi")
    cell, before = DiagonalLSTMCell.of(parameters, (-1,)), {"h0": h0, "c0": c0}
    return build("diagonal_lstm", cell, parameters, inputs, lengths, before=before, after={}).problem()


@dataclass(frozen=True, eq=False)
class DiagonalCell(AffineCell):
    """f(h, x) of the previous position alone, with arguments W x + u*state + b; `weights` are the u, (blocks, k)."""

    is_diagonal = True
    parts: ClassVar[int]  # p
    count: ClassVar[int]  # of the factors

    @cached_property
    def size(self) -> int:
        return self.parts * self.factor_size

    @property
    def factor_count(self) -> int:
        return self.count

    @property
    def takes_sequences(self) -> bool:
        return True

    def linearize(self, x: Arrays, neighbours: Arrays, factors: Factors, distances: Distances = None) -> Array:
        return self.evaluate(x[0], near(neighbours, distances, x[0].shape[-2])[0], factors)

    @abstractmethod
    def evaluate(self, x: Array, state: Array, factors: Factors) -> Array:
        """f for the arguments' projections (blocks, ..., k), and its derivatives unless `factors` is None."""

    @abstractmethod
    def push_arguments(self, factors: Array, dy: Array) -> Array:
        """Change of f for changes dy (blocks, n, k) of the arguments."""

    @abstractmethod
    def pull_arguments(self, factors: Array, w: Array) -> list[Array]:
        """Cotangents of the arguments."""

    def recurrent(self, states: Arrays) -> list[Array]:
        return [self.weights[j, ...] * state for j, state in enumerate(states)]

    def push(self, factors: Array, changes: Arrays, distances: Distances = None, extra: Array | None = None) -> Array:
        change = block_times(factors, near(changes, distances, factors.shape[-2])[0])
        return change if extra is None else change + self.push_arguments(factors, extra)

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        return (block_times(factors, w, transposed=True),)

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        return near(self.pull(factors, w), [-distance for distance in distances], length)[0]

    def pull_sums(self, factors: Array, w: Array) -> Cotangents:
        return Cotangents(self.pull_arguments(factors, w), neighbours=self.pull(factors, w))

    def to_neighbours(self, factors: Array, sums: Cotangents) -> tuple[Array, ...]:
        return sums.neighbours or ()

    def recurrence(self, of: str) -> Run | None:
        """Affine recurrences alone: f itself is evaluated step by step, for all sequences and channels at once."""
        if of not in ("push", "pull"):
            return None
        return partial(kernels.affine_recurrence.select(self.weights, size=self.factor_size), of)

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of the derivatives of every part, which are exact."""
        own = [factors[j * (self.parts + 1), ...] for j in range(self.parts)]
        return (array_namespace(factors).concat(own, axis=-1),)

    def blocks(self, factors: Array) -> Array:
        xp, p, k = array_namespace(factors), self.parts, self.factor_size
        eye = identity(xp.empty((k, k), dtype=factors.dtype, device=factors.device))
        rows = [xp.concat([along(factors[i * p + j, ...]) * eye for j in range(p)], axis=-1) for i in range(p)]
        return xp.expand_dims(xp.concat(rows, axis=-2), axis=0)

    def step(self, x: Arrays, previous: Array) -> Array:
        return self.value(x, (previous,))


@dataclass(frozen=True, eq=False)
class DiagonalGRUCell(DiagonalCell):
    """The GRU of `diagonal_gru`; the factors are df/dh, df/dy of z, r and the candidate, and r."""

    name = "diagonal_gru"
    suffixes = ("z", "r", "")
    parts, count = 1, 5

    def evaluate(self, x: Array, state: Array, factors: Factors) -> Array:
        u, h, tanh = self.weights, state, array_namespace(x).tanh
        keep, r = gate(u[0, :] * h + x[0, ...]), gate(-(u[1, :] * h + x[1, ...]))
        candidate = tanh(u[2, :] * (r * h) + x[2, ...])
        if factors is not None:
            z = 1.0 - keep
            of_z, of_candidate = z * keep * (candidate - h), z * (1.0 - candidate * candidate)
            of_r = of_candidate * (1.0 - r) * (r * h) * u[2, :]
            of_h = keep + of_z * u[0, :] + of_r * u[1, :] + of_candidate * r * u[2, :]
            for j, factor in enumerate((of_h, of_z, of_r, of_candidate, r)):
                factors[j, ...] = factor
        return candidate + keep * (h - candidate)

    def push_arguments(self, factors: Array, dy: Array) -> Array:
        return array_namespace(dy).sum(factors[1:4, ...] * dy, axis=0)

    def pull_arguments(self, factors: Array, w: Array) -> list[Array]:
        return [factors[j, ...] * w for j in range(1, 4)]

    def states(self, neighbours: Arrays, factors: Array) -> list[Array]:
        return [*neighbours, *neighbours, factors[4, ...] * neighbours[0]]


@dataclass(frozen=True, eq=False)
class DiagonalLSTMCell(DiagonalCell):
    """The LSTM of `diagonal_lstm`; the factors are d(h, c)/d(h, c), dc/dy of i, f, g and dh/dy of o, and dh/dc."""

    name = "diagonal_lstm"
    suffixes = ("i", "f", "g", "o")
    parts, count = 2, 9

    def evaluate(self, x: Array, state: Array, factors: Factors) -> Array:
        xp, u, k = array_namespace(x), self.weights, self.factor_size
        h, c = state[..., :k], state[..., k:]
        i, f, o = (gate(-(u[j, :] * h + x[j, ...])) for j in (0, 1, 3))
        g = xp.tanh(u[2, :] * h + x[2, ...])
        following = f * c + i * g
        t = xp.tanh(following)
        if factors is not None:
            slopes = i * (1.0 - i) * g, f * (1.0 - f) * c, i * (1.0 - g * g)
            of_o, of_c = o * (1.0 - o) * t, o * (1.0 - t * t)
            dc_dh = slopes[0] * u[0, :] + slopes[1] * u[1, :] + slopes[2] * u[2, :]
            for j, factor in enumerate((of_c * dc_dh + of_o * u[3, :], of_c * f, dc_dh, f, *slopes, of_o, of_c)):
                factors[j, ...] = factor
        return xp.concat([o * t, following], axis=-1)

    def push_arguments(self, factors: Array, dy: Array) -> Array:
        xp = array_namespace(dy)
        dc = xp.sum(factors[4:7, ...] * dy[:3, ...], axis=0)
        return xp.concat([factors[8, ...] * dc + factors[7, ...] * dy[3, ...], dc], axis=-1)

    def pull_arguments(self, factors: Array, w: Array) -> list[Array]:
        of_h, of_c = w[..., : self.factor_size], w[..., self.factor_size :]
        total = of_c + factors[8, ...] * of_h
        return [*(factors[j, ...] * total for j in (4, 5, 6)), factors[7, ...] * of_h]

    def states(self, neighbours: Arrays, factors: Array) -> list[Array]:
        return [neighbours[0][..., : self.factor_size]] * 4
