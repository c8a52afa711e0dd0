"""Array-API references of what solvers do with vectors: `Vectors`, and a rank-one update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from implicitsolve._arrays.host import empty_vectors, from_host
from implicitsolve._arrays.namespace import array_namespace, is_complex, numpy_namespace, quotient, safe_range
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._contract import Kernel

CANCELS = 0.01  # of ||w||^2, left by Gram-Schmidt, below which it needs a second pass


def rank_one(z: Array, w: Array, amount: Array, following: Array | None) -> Array | None:
    """Add ``amount (b, 1) * w`` to z in place, and return ``following^H z`` (b, 1), or None without `following`."""
    z += w * amount
    return None if following is None else array_namespace(z).vecdot(following, z)[:, None]


class Vectors:
    """Work on the vectors of each system, (b, N) and (b, q, N); what the host needs of it is in one array."""

    @staticmethod
    def project(rows: Array, v: Array) -> Array:
        """<rows_i, v> for each system: (b, q, N), (b, N) -> (b, q)."""
        xp = array_namespace(v)
        if is_complex(v):
            return xp.conj(xp.matmul(rows, xp.conj(v)[:, :, None]))[:, :, 0]
        return xp.matmul(rows, v[:, :, None])[:, :, 0]

    @staticmethod
    def dot(a: Array, b: Array) -> Array:
        """<a, b> for each system, as a column."""
        return array_namespace(a).vecdot(a, b)[:, None]

    @staticmethod
    def dots(*pairs: tuple[Array, Array]) -> list[Array]:
        """<a, b> of several pairs, as columns."""
        return [Vectors.dot(a, b) for a, b in pairs]

    @staticmethod
    def coefficient(t: Array, s: Array) -> tuple[Array, Array]:
        """<t, s> / <t, t>, 0 where t is 0, and the largest magnitude of t, as columns; no square leaves the range."""
        xp = array_namespace(t)
        size = xp.max(xp.abs(t), axis=1, keepdims=True)
        unit = t / xp.where(size > 0, size, xp.ones_like(size))
        gain = Vectors.dot(unit, s) / (Vectors.dot(unit, unit) * size)
        return xp.where(size > 0, gain, xp.zeros_like(gain)), size

    @staticmethod
    def combine(a: Array, rows: Array) -> Array:
        """sum_i a_i rows_i for each system: (b, q), (b, q, N) -> (b, N)."""
        xp = array_namespace(rows)
        return xp.matmul(a[:, None, :], rows)[:, 0, :]

    @staticmethod
    def without(x: Array, a: Array, rows: Array) -> Array:
        """x - sum_i a_i rows_i for each system."""
        return x - Vectors.combine(a, rows)

    @staticmethod
    def orthonormalize(V: Array, w: Array) -> Array:
        """Orthogonalize w (b, N) against all rows of V (b, j + 1, N) but the last, and write it into the last.

        Classical Gram-Schmidt, twice. The row is scaled to length 1 unless its squares overflow or underflow.
        Return <V_i, w>, and the square of the row's length before it was scaled, (b, j + 1).
        """
        xp, basis, has_phase = array_namespace(w), V[:, :-1, :], is_complex(w)
        parts: list[Array] = []
        for _ in range(2):
            h = xp.matmul(basis, (xp.conj(w) if has_phase else w)[:, :, None])
            h = xp.matrix_transpose(xp.conj(h) if has_phase else h)
            w = w - xp.matmul(h, basis)[:, 0, :]
            parts.append(h[:, 0, :])
        square = xp.vecdot(w, w)[:, None]
        size = xp.sqrt(xp.real(square) if has_phase else square)
        low, high = safe_range(xp, w.dtype)
        V[:, -1, :] = w / xp.where((size > low) & (size < high), size, xp.ones_like(size))
        return xp.concat([parts[0] + parts[1], xp.astype(square, w.dtype)], axis=1)

    @staticmethod
    def start(V: Array, r: Array, norms: HostArray, alive: HostArray) -> None:
        """Write r (b, N), divided by these norms, into the first row of V; zeros where a system is not alive."""
        xp, good = array_namespace(r), alive & (norms > 0)
        unit = quotient(r, from_host(np.where(good, norms, 1.0), r)[:, None])
        V[:, 0, :] = unit if good.all() else xp.where(from_host(good, r)[:, None], unit, xp.zeros_like(r))

    @staticmethod
    def measure(arrays: Sequence[Array]) -> Array:
        """For each of some arrays (b, any) sums of squares and largest magnitudes of its rows, (b, 2 * arrays)."""
        xp = array_namespace(*arrays)
        numbers: list[Array] = []
        for x in arrays:
            squares, magnitudes = xp.vecdot(x, x), xp.abs(x)
            squares = xp.real(squares) if is_complex(x) else squares
            numbers += [squares, xp.max(magnitudes, axis=1) if x.shape[1] else squares]
        return xp.stack(numbers, axis=1)

    # The steps of Anderson's method

    @staticmethod
    def mix(x: Array, image: Array, a: Array, rows: Array) -> tuple[Array, Array]:
        """The step -image - sum_i a_i rows_i, and the point x that it leads to."""
        step = -image - Vectors.combine(a, rows)
        return step, x + step

    @staticmethod
    def remember(dF: Array, dg: Array, j: int, m: int, column: Array, image: Array, F: Array) -> Array:
        """Write column and image at place j of dF, dg (b, M, N); return m <dF_i, F>, and the column's square."""
        xp = array_namespace(F)
        dF[:, j, :], dg[:, j, :] = column, image
        return xp.concat([Vectors.project(dF[:, :m, :], F), xp.vecdot(column, column)[:, None]], axis=1)

    @staticmethod
    def advance(dF: Array, dg: Array, j: int, m: int, *arrays: Array) -> Array:
        """Remember how F and the point that it leads to have changed: F - old_F, and step - (image - old_image).

        The arrays are F, old_F, step, image, old_image and x. Return (b, m + 7) numbers: what `remember` returns, the
        squares of F, the step and x, and their largest magnitudes.
        """
        F, old_F, step, image, old_image, x = arrays
        xp = array_namespace(F)
        numbers = Vectors.remember(dF, dg, j, m, F - old_F, step - (image - old_image), F)
        measured = xp.astype(Vectors.measure((F, step, x)), numbers.dtype)
        return xp.concat([numbers, measured[:, 0::2], measured[:, 1::2]], axis=1)

    @staticmethod
    def nearby(x: Array, v: Array, reach: Array) -> tuple[Array, Array]:
        """The point at the distance `reach` (b,) from x in the direction of v, and ||v|| / `reach` as a column."""
        xp = array_namespace(v)
        size = xp.max(xp.abs(v), axis=1, keepdims=True)
        one = xp.ones_like(size)  # in the place of zeros; NaN remain
        size = xp.where(size == 0, one, size)
        direction = quotient(v, size)
        length = xp.linalg.vector_norm(direction, axis=1, keepdims=True)
        h = reach[:, None] / xp.where(length == 0, one, length)
        return x + h * direction, size / h

    @staticmethod
    def growth(gain: Array, advance: Array) -> tuple[Array, Array]:
        """1 / (1 - gain / advance) and 1 / advance, for Broyden's update; 1 and 0 where one of them is not finite."""
        xp = array_namespace(gain)
        growth, factor = 1 / (1 - gain / advance), 1 / advance  # advance - gain is s^H H y
        usable = xp.isfinite(growth) & xp.isfinite(factor)
        return xp.where(usable, growth, xp.ones_like(growth)), xp.where(usable, factor, xp.zeros_like(factor))

    @staticmethod
    def half_diagonals(
        previous: Array, following: Array, own_previous: Array, own_following: Array
    ) -> tuple[Array, Array, Array]:
        """Diagonals (..., T, k) of I - second first: below, main and above; arguments `own_...` are of the first."""
        xp, T = array_namespace(previous), previous.shape[-2]
        before, at = own_previous[..., :T, :], own_following[..., :T, :]  # of the eliminated block before each kept one
        blank = xp.zeros_like(previous[..., : T + 1 - own_previous.shape[-2], :])
        after_at = xp.concat([own_previous[..., 1:, :], blank], axis=-2)[..., :T, :]
        after = xp.concat([own_following[..., 1:, :], blank], axis=-2)[..., :T, :]
        return -previous * before, 1.0 - (previous * at + following * after_at), -following * after


class Row(Vectors):
    """Vectors of one real system on NumPy, with the fewest calls and passes over memory."""

    @staticmethod
    def supports(like: Array) -> bool:
        """Whether `like` holds one system of real numbers."""
        return type(like) is np.ndarray and like.shape[0] == 1 and like.dtype.char in "fd"

    @staticmethod
    def project(rows: Array, v: Array) -> Array:
        return rows[0].dot(v[0])[None]

    @staticmethod
    def combine(a: Array, rows: Array) -> Array:
        return a[0].dot(rows[0])[None]

    @staticmethod
    def orthonormalize(V: Array, w: Array) -> Array:
        """See `Vectors`; the second pass is left out where the first one cancels little."""
        basis, rest = V[0, :-1], w[0]
        numbers = np.empty((1, len(V[0])), V.dtype)
        h = numbers[0, :-1]
        basis.dot(rest, out=h)
        rest = rest - h.dot(basis)
        square = rest.dot(rest)
        if not square > CANCELS * h.dot(h):
            again = basis.dot(rest)
            rest -= again.dot(basis)
            h += again
            square = rest.dot(rest)
        numbers[0, -1] = square
        (low, high), size = safe_range(numpy_namespace, V.dtype), math.sqrt(square)
        V[0, -1] = rest / size if low < size < high else rest
        return numbers

    @staticmethod
    def nearby(x: Array, v: Array, reach: Array) -> tuple[Array, Array]:
        size, (low, high) = math.sqrt(v[0].dot(v[0])), safe_range(numpy_namespace, v.dtype)
        if not low < size < high:
            return Vectors.nearby(x, v, reach)
        return x + (reach[0] / size) * v, size / reach


vectors: Kernel = Kernel("vectors", Vectors)


def vectors_like(x: Array) -> Any:
    """The functions for vectors like those of x: `Row` for one real NumPy system, without a search among backends."""
    return Row if Row.supports(x) else vectors.select(x, size=x.shape[-1])


def room(like: Array, systems: int, columns: int) -> Array:
    """Array (systems, columns, N) for a basis; on a device the vectors of one column lie in one piece."""
    if isinstance(like, np.ndarray):
        return np.empty((systems, columns, like.shape[-1]), dtype=like.dtype)
    return array_namespace(like).permute_dims(empty_vectors(like, columns, systems), (1, 0, 2))


def resize(V: Array, columns: int) -> Array:
    """The vectors in a new array with room for `columns`."""
    other = room(V, V.shape[0], columns)
    other[:, : V.shape[1], :] = V
    return other
