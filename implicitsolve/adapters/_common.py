"""What every adapter needs: checks that name the culprit, and ragged batches as tall matrices."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, is_array_api_obj, is_cupy_array

from implicitsolve import Problem

Array: TypeAlias = Any
Namespace: TypeAlias = Any
HostIndices: TypeAlias = npt.NDArray[np.intp]

PART_ROWS = 192  # enough for fast GEMMs, while temporaries stay in the cache and in memory that malloc keeps
# A state that is not finite gives a residual that is not finite, and no warning: the solver sees it and backs off.
quiet = np.errstate(over="ignore", invalid="ignore")


def initial_guess(problem: Problem, kind: str = "one-step", rng: np.random.Generator | None = None) -> Array:
    """Return a start for `root`, from the problem's own recipes.

    Parameters
    ----------
    problem : Problem
        Built by an adapter.
    kind : {"one-step", "zeros", "random"}, optional
        "one-step" (default) runs the ordinary recurrence forwards and backwards and applies the layer once to what
        comes out, for about three residuals. "zeros" costs nothing. "random" is uniform in [-1, 1].
    rng : numpy.random.Generator, optional
        Source of the numbers of "random", which needs it; the other kinds ignore it.

    Returns
    -------
    Array
        Of the state's shape and dtype; zero at padded positions.

    Raises
    ------
    TypeError
        If the problem has no initial guess, or `rng` is not a generator where one is needed.
    ValueError
        If `kind` is none of the above.

    References
    ----------
    Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017, section 2.6.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import gru_parameters, implicit_gru, initial_guess
    >>> rng = np.random.default_rng(0)
    >>> layer = implicit_gru(gru_parameters(2, 4, rng=rng), rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> initial_guess(layer, "random", rng).shape
    (3, 5, 4)
    """
    if problem.initial_guess is None:
        raise TypeError(f"initial_guess: `problem` {problem.name!r} has no initial guess of its own")
    return problem.initial_guess(kind, rng)


# ------------------------------------------------------------------------------------------------------------- checks


def check_names(caller: str, params: object, expected: Sequence[str]) -> Mapping[str, Array]:
    """Check that `params` is a mapping with exactly the expected names."""
    if not isinstance(params, Mapping):
        raise TypeError(f"{caller}: `params` must be a mapping of names to arrays, got {type(params).__name__}")
    missing = [name for name in expected if name not in params]
    unknown = [str(name) for name in params if name not in expected]
    if missing or unknown:
        found = {"lacks": missing, "has unknown": unknown}
        wrong = " and ".join(f"{what} {', '.join(names)}" for what, names in found.items() if names)
        raise ValueError(f"{caller}: `params` {wrong}; expected {', '.join(expected)}")
    return params


def check_inputs(caller: str, inputs: Array) -> Namespace:
    """Check that `inputs` is a real floating-point array (B, T, d) or (T, d); return its namespace."""
    if not is_array(inputs):
        raise TypeError(f"{caller}: `inputs` must be an array, got {type(inputs).__name__}")
    if inputs.ndim not in (2, 3) or 0 in inputs.shape:
        raise ValueError(f"{caller}: `inputs` must have shape (B, T, d) or (T, d), none of them 0, got {inputs.shape}")
    xp = array_namespace(inputs)
    if inputs.dtype not in (xp.float32, xp.float64):
        raise TypeError(f"{caller}: `inputs` must have dtype float32 or float64, got {inputs.dtype}")
    return xp


def check_array(caller: str, name: str, value: Array, shape: tuple[int, ...] | None, like: Array) -> Array:
    """Check an array's library, shape (unless None) and dtype against those of `like`, which messages call inputs."""
    if not is_array(value):
        raise TypeError(f"{caller}: `{name}` must be an array, got {type(value).__name__}")
    if array_namespace(value) is not array_namespace(like):
        expected, got = (array_namespace(x).__name__ for x in (like, value))
        raise TypeError(f"{caller}: `{name}` must be an array of the library of the inputs, {expected}, got {got}")
    if shape is not None and tuple(value.shape) != shape:
        raise ValueError(f"{caller}: `{name}` must have shape {shape}, got {tuple(value.shape)}")
    if value.dtype != like.dtype:
        raise TypeError(f"{caller}: `{name}` must have the dtype of the inputs, {like.dtype}, got {value.dtype}")
    return value


def check_lengths(caller: str, lengths: Any, B: int, T: int, is_single: bool) -> HostIndices:
    """Lengths of B sequences on the host, each from 1 to T; None means T for all. A single one has an integer."""
    if lengths is None:
        return np.full(B, T, dtype=np.intp)
    host = to_host(lengths)
    if host.dtype.kind not in "iu":
        raise TypeError(f"{caller}: `lengths` must be integers, got dtype {host.dtype}")
    expected = () if is_single else (B,)
    if host.shape != expected:
        raise ValueError(f"{caller}: `lengths` must have shape {expected}, one for each sequence, got {host.shape}")
    host = host.reshape(B)
    wrong = np.flatnonzero((host < 1) | (host > T))
    if wrong.size:
        b = int(wrong[0])
        raise ValueError(f"{caller}: `lengths` must be from 1 to T = {T}, got {int(host[b])} for sequence {b}")
    return host.astype(np.intp)


def check_generator(caller: str, rng: object) -> np.random.Generator:
    """Check that `rng` is a NumPy generator."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"{caller}: `rng` must be a numpy.random.Generator, got {type(rng).__name__}")
    return rng


def check_size(caller: str, name: str, value: object) -> int:
    """Check that `value` is an integer of at least 1."""
    try:
        size = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{caller}: `{name}` must be an integer, got {type(value).__name__}") from None
    if size < 1:
        raise ValueError(f"{caller}: `{name}` must be at least 1, got {size}")
    return size


# --------------------------------------------------------------------------------------------------------- namespaces


def is_array(x: object) -> bool:
    """Whether `x` is an array of a library that follows the array API standard."""
    return bool(is_array_api_obj(x))


def to_host(x: Any) -> npt.NDArray[Any]:
    """Copy a short array, or a list of numbers, to NumPy."""
    if is_cupy_array(x):
        return x.get()
    if is_array(x) and not isinstance(x, (np.ndarray, np.generic)):
        return np.from_dlpack(x)
    return np.asarray(x)


def from_host(values: npt.NDArray[Any], like: Array) -> Array:
    """Bring a host array to the library and device of `like`: integers as they are, the rest in its dtype."""
    xp = array_namespace(like)
    dtype = None if values.dtype.kind in "iub" else like.dtype
    return xp.asarray(values, dtype=dtype, device=device(like))


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Zeros of the library, dtype and device of `like`."""
    return array_namespace(like).zeros(shape, dtype=like.dtype, device=device(like))


# --------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, eq=False)
class Rows:
    """Places of a ragged batch's positions in one tall matrix, in which a neighbour is the next row.

    The matrix holds sequence after sequence, each followed by one separator row, and one spare row at the end:
    ``count = sum(lengths + 1) + 1`` rows, of which padding takes none. Products with a weight matrix are then single
    GEMMs, and the states of all previous (next) positions are the same matrix, shifted by one row: `pack` returns it
    with one row more on either side, so that ``packed[:-2]`` and ``packed[2:]`` are views of them.

    Attributes
    ----------
    lengths : numpy.ndarray of intp, shape (B,)
        Positions of each sequence.
    blocks : int
        T, the length of the padded sequences.
    source, place, separators : Array
        Where a row comes from, where a position goes (both None where nothing is padded), and which rows separate.
    """

    lengths: HostIndices
    blocks: int
    source: Array
    place: Array
    separators: Array

    @classmethod
    def of(cls, lengths: HostIndices, blocks: int, like: Array) -> Rows:
        """Lay out sequences of these lengths, padded to `blocks`, with index arrays beside `like`."""
        if (lengths == blocks).all():
            return cls(lengths, blocks, None, None, None)
        start = _starts(lengths)
        valid = np.arange(blocks) < lengths[:, None]
        positions = np.flatnonzero(valid)
        rows = (start[:, None] + np.arange(blocks))[valid]
        count = int(start[-1] + lengths[-1]) + 2
        place = np.full(valid.size, count - 2)  # a padded position reads the last separator, see `unpack`
        place[positions] = rows
        source = np.zeros(count + 2, dtype=np.intp)
        source[rows + 1] = positions
        separators = np.ones(count + 2, dtype=bool)
        separators[rows + 1] = False
        return cls(lengths, blocks, *(from_host(index, like) for index in (source, place, separators)))

    @property
    def systems(self) -> int:
        """B, the number of sequences."""
        return len(self.lengths)

    @property
    def count(self) -> int:
        """Rows of the matrix."""
        return int(self.lengths.sum()) + self.systems + 1

    @property
    def first(self) -> HostIndices:
        """Row of each sequence's first position."""
        return _starts(self.lengths)

    @property
    def last(self) -> HostIndices:
        """Row of each sequence's last position."""
        return self.first + self.lengths - 1

    @property
    def owners(self) -> tuple[HostIndices, HostIndices]:
        """Sequence and position of each row; a separator is given the position before it."""
        rows = np.append(np.arange(self.count - 1), self.count - 2)
        system = np.repeat(np.arange(self.systems), self.lengths + 1)[rows]
        return system, np.minimum(rows - self.first[system], self.lengths[system] - 1)

    @property
    def positions(self) -> HostIndices:
        """Rows that hold a position, in order."""
        return np.delete(np.arange(self.count - 1), self.last + 1)

    def parts(self, like: Array) -> list[slice]:
        """Equal blocks of at most PART_ROWS rows; on a GPU all rows at once."""
        parts = 1 if is_cupy_array(like) else -(-self.count // PART_ROWS)
        size = -(-self.count // parts)
        return [slice(start, min(start + size, self.count)) for start in range(0, self.count, size)]

    def pack(self, x: Array) -> Array:
        """Matrix (count + 2, k) of the positions of x (B, T, k); all other rows are zero."""
        xp = array_namespace(x)
        B, T, k = x.shape
        if self.place is not None:
            rows = xp.take(xp.reshape(x, (B * T, k)), self.source, axis=0)
            rows[self.separators] = 0.0
            return rows
        rows = xp.empty((self.count + 2, k), dtype=x.dtype, device=device(x))
        rows[0, :] = 0.0
        rows[-2:, :] = 0.0
        body = xp.reshape(rows[1:-2, :], (B, T + 1, k))  # a view
        body[:, :T, :] = x
        body[:, T, :] = 0.0
        return rows

    def unpack(self, rows: Array) -> Array:
        """Positions (B, T, k) of a matrix, zero where padded; perhaps a view, and the matrix may be changed."""
        xp = array_namespace(rows)
        B, T, k = self.systems, self.blocks, rows.shape[1]
        if self.place is not None:
            rows[self.count - 2, :] = 0.0
            return xp.reshape(xp.take(rows, self.place, axis=0), (B, T, k))
        return xp.reshape(rows[: B * (T + 1), :], (B, T + 1, k))[:, :T, :]

    def clear(self, rows: Array) -> None:
        """Set the separators of a matrix (count, k) to zero."""
        if self.place is not None:
            rows[self.separators[1:-1]] = 0.0
            return
        xp = array_namespace(rows)
        xp.reshape(rows[:-1, :], (self.systems, self.blocks + 1, -1))[:, self.blocks, :] = 0.0
        rows[-1:, :] = 0.0

    def spread(self, values: Array, at: HostIndices) -> Array:
        """Matrix (count, k) with row b of `values` (B, k) at row ``at[b]``, zero elsewhere."""
        xp = array_namespace(values)
        owner = np.full(self.count, self.systems)
        owner[at] = np.arange(self.systems)
        padded = xp.concat([values, zeros((1, values.shape[1]), values)], axis=0)
        return xp.take(padded, from_host(owner, values), axis=0)

    def take(self, indices: HostIndices, like: Array) -> tuple[Rows, Array]:
        """Layout of some of the sequences, and the present rows of which it consists."""
        part = Rows.of(self.lengths[indices], self.blocks, like)
        shift = np.repeat(self.first[indices] - part.first, part.lengths + 1)
        rows = np.append(np.arange(part.count - 1) + shift, self.count - 1)
        return part, from_host(rows, like)


def _starts(lengths: HostIndices) -> HostIndices:
    return np.cumsum(lengths + 1) - lengths - 1
