"""`Vectors` in CUDA, by one launch or a few where they are long; `place_colors`; the steps of BiCGSTAB."""

# pyright: basic

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from implicitsolve import kernels
from implicitsolve._arrays.namespace import array_namespace, is_safe, safe_range
from implicitsolve.backends.cupy._module import MOST_GRID, THREADS, WARP, dense, is_real, launch, strides
from implicitsolve.krylov._bicgstab import bicgstab
from implicitsolve.linearize._difference_steps import place_colors as colors

CHUNK = 8192  # entries of a vector that one block sums
TILE = 4  # as in vectors.cuh
LONG_VECTOR = 2**20  # entries of a vector up to which one block for each system is faster than many launches
MOST_ARRAYS = 4  # that `measure` takes

Reference: Any = kernels.vectors.reference
ReferenceSteps: Any = bicgstab.reference


def supports(like, **sizes) -> bool:
    """Real vectors that are not empty."""
    return is_real(like) and like.shape[-1] > 0


class Vectors(Reference):
    @staticmethod
    def project(rows, v):
        rows, v, parts = dense(rows), dense(v), parts_of(v)
        b, count, N = rows.shape
        partial = cupy.empty((b, parts, count), v.dtype)
        launch_for("project", parts * b, N, v, (*_rows(rows), count, v, stride_of(v), partial, N, parts), TILE * WARP)
        return sum_parts(partial)

    @staticmethod
    def dot(a, b):
        return Vectors.project(a[:, None, :], b)

    @staticmethod
    def combine(a, rows):
        a, rows = dense(a), dense(rows)
        (b, count, N), out = rows.shape, cupy.empty((rows.shape[0], rows.shape[2]), rows.dtype)
        elementwise("combine", out, (a, stride_of(a), *_rows(rows), count, out, N, b * N))
        return out

    @staticmethod
    def without(x, a, rows):
        x, a, rows = dense(x), dense(a), dense(rows)
        (b, count, N), out = rows.shape, cupy.empty(x.shape, x.dtype)
        elementwise("without", out, (x, stride_of(x), a, stride_of(a), *_rows(rows), count, out, N, b * N))
        return out

    @staticmethod
    def orthonormalize(V, w):
        w, parts = dense(w), parts_of(w)
        (b, rows, N), count = V.shape, V.shape[1] - 1
        low, high = (w.dtype.type(bound) for bound in safe_range(array_namespace(w), w.dtype))
        numbers, basis = cupy.empty((b, rows), w.dtype), (*_rows(V), count)
        if parts == 1:
            shared = 2 * count + 1 + TILE * WARP
            launch_for("orthonormalize", b, N, w, (*basis, w, stride_of(w), numbers, N, low, high), shared)
            return numbers
        h, again, square = (cupy.empty((b, parts, size), w.dtype) for size in (count, count, 1))
        shared, grid = 2 * count + 1 + TILE * WARP, parts * b
        launch_for("project", grid, N, w, (*basis, w, stride_of(w), h, N, parts), shared)
        launch_for("subtract_and_project", grid, N, w, (*basis, w, stride_of(w), h, again, N, parts), shared)
        launch_for("subtract_and_square", grid, N, w, (*basis, again, square, N, parts), shared)
        launch_for("scale_row", grid, N, w, (*basis, h, again, square, numbers, N, parts, low, high), shared)
        return numbers

    @staticmethod
    def start(V, r, norms: np.ndarray, alive: np.ndarray) -> None:
        if not (alive.all() and is_safe(norms, array_namespace(r), r.dtype).all()):
            Reference.start(V, r, norms, alive)
            return
        r, out = dense(r), V[:, 0, :]
        b, N = r.shape
        launch_for("normalize", b, N, r, (r, stride_of(r), out, stride_of(out), N), 1 + TILE * WARP)

    @staticmethod
    def measure(arrays):
        if len(arrays) > MOST_ARRAYS:
            return Reference.measure(arrays)
        given = [dense(x) for x in arrays]
        first, b, count = given[0], len(given[0]), len(given)
        longest, filled = max(given, key=parts_of), given + [first] * (MOST_ARRAYS - count)
        N, parts = longest.shape[1], parts_of(longest)
        partial = cupy.empty((b * count, parts, 2), first.dtype)
        arguments = (*filled, *map(stride_of, filled), *(x.shape[1] for x in filled), count, partial, parts)
        launch_for("measure", b * count * parts, N, first, arguments, 2 * WARP)
        if parts > 1:
            partial, several = cupy.empty((b * count, 1, 2), first.dtype), partial
            launch_for("measure_parts", b * count, parts, first, (several, partial, parts), 2 * WARP)
        return partial.reshape(b, 2 * count)

    @staticmethod
    def mix(x, image, a, rows) -> tuple[Any, Any]:
        x, image, a, rows = cupy.ascontiguousarray(x), cupy.ascontiguousarray(image), dense(a), dense(rows)
        step, point, count, N = cupy.empty_like(x), cupy.empty_like(x), rows.shape[1], x.shape[1]
        elementwise("mixed", x, (x, image, a, stride_of(a), *_rows(rows), count, step, point, N, x.size))
        return step, point

    @staticmethod
    def remember(dF, dg, j: int, m: int, column, image, F):
        column, image, F = (cupy.ascontiguousarray(x) for x in (column, image, F))
        (b, N), parts = F.shape, parts_of(F)
        partial = cupy.empty((b, parts, m + 1), F.dtype)
        arguments = (dF, dg, *strides(dF)[:2], j, m, column, image, F, partial, N, parts)
        launch_for("remember", parts * b, N, F, arguments, TILE * WARP)
        return sum_parts(partial)

    @staticmethod
    def advance(dF, dg, j: int, m: int, *arrays):
        arrays = tuple(map(cupy.ascontiguousarray, arrays))  # F, old_F, step, image, old_image, x
        F = arrays[0]
        (b, N), parts = F.shape, parts_of(F)
        partial = cupy.empty((b, parts, m + 7), F.dtype)
        launch_for(
            "remember_step", parts * b, N, F, (dF, dg, *strides(dF)[:2], j, m, *arrays, partial, N, parts), TILE * WARP
        )
        if parts == 1:
            return partial[:, 0, :]
        numbers = cupy.empty((b, m + 7), F.dtype)
        launch_for("step_parts", b, 4 * (m + 7), F, (partial, numbers, parts, m + 7), 0)
        return numbers

    @staticmethod
    def growth(gain, advance) -> tuple[Any, Any]:
        gain, advance = cupy.ascontiguousarray(gain), cupy.ascontiguousarray(advance)
        growth, factor = cupy.empty_like(gain), cupy.empty_like(gain)
        elementwise("growth", gain, (gain, advance, growth, factor, gain.size))
        return growth, factor

    @staticmethod
    def half_diagonals(previous, *others) -> tuple[Any, Any, Any]:
        previous, following, own_previous, own_following = map(cupy.ascontiguousarray, (previous, *others))
        T, k = previous.shape[-2:]
        below, main, above = (cupy.empty_like(previous) for _ in range(3))
        arrays = previous, following, own_previous, own_following, below, main, above
        elementwise("half_diagonals", main, (*arrays, T, own_previous.shape[-2], k, main.size))
        return below, main, above

    @staticmethod
    def nearby(x, v, reach) -> tuple[Any, Any]:
        if x.shape[1] > LONG_VECTOR:
            return Reference.nearby(x, v, reach)
        x, v, reach = map(cupy.ascontiguousarray, (x, v, reach))
        point, scale = cupy.empty_like(x), cupy.empty((len(x), 1), x.dtype)
        launch_step("vectors.cu", "nearby", x, (x, v, reach, point, scale, x.shape[1]))
        return point, scale


def launch_for(name: str, blocks: int, N: int, like, arguments: tuple[Any, ...], shared: int) -> None:
    """Launch with as many threads as the length of vectors requires, and room for `shared` numbers."""
    _run("vectors.cu", name, like, blocks, WARP * min(32, -(-min(N, CHUNK) // 128)), arguments, shared)


def elementwise(name: str, out, arguments: tuple[Any, ...], file: str = "vectors.cu") -> None:
    """Launch with a thread for each entry."""
    _run(file, name, out, -(-out.size // 256), 256, arguments, 0)


def launch_step(file: str, name: str, like, arguments: tuple[Any, ...]) -> None:
    """Launch one block for each system."""
    b, N = like.shape
    _run(file, name, like, b, WARP * min(32, -(-N // 128)), arguments, TILE + TILE * WARP)


def _run(file: str, name: str, like, blocks: int, threads: int, arguments: tuple[Any, ...], shared: int) -> None:
    """Launch for arrays that all have one dtype, which the kernel cannot see."""
    dtype = like.dtype
    for argument in arguments:
        if isinstance(argument, cupy.ndarray) and argument.dtype != dtype:
            raise TypeError(f"vectors of one dtype are needed, got {dtype} and {argument.dtype}")
    launch(file, name, blocks, threads, arguments, shared * dtype.itemsize, CHUNK=CHUNK)


def sum_parts(partial):
    """The sums of partial sums (b, parts, count)."""
    b, parts, count = partial.shape
    if parts == 1:
        return partial[:, 0, :]
    sums = cupy.empty((b, count), partial.dtype)
    launch_for("add_up", b, 128 * max(count, 1), partial, (partial, sums, parts, count), 0)
    return sums


def parts_of(x) -> int:
    """Number of parts in which a vector (b, N) is summed."""
    return -(-x.shape[-1] // CHUNK)


def stride_of(x) -> int:
    """Entries from one system to the next."""
    return strides(x)[0]


def _rows(x) -> tuple[Any, int, int]:
    """Rows (b, m, N) as the kernels take them."""
    systems, rows, _ = strides(x)
    return x, systems, rows


def rank_one(z, w, amount, following):
    w, other, parts = dense(w), z if following is None else dense(following), parts_of(z)
    b, N = z.shape
    partial = cupy.empty((b, parts, 1), z.dtype)
    vectors = (z, stride_of(z), w, stride_of(w), amount, stride_of(amount), other, stride_of(other))
    launch_for("rank_one", parts * b, N, z, (*vectors, partial, N, parts), TILE * WARP)
    if following is None:
        return None
    return sum_parts(partial)


def _supports(like, **sizes) -> bool:
    return supports(like) and dense(like) is like


def place_colors(blocks, changes, per_length, first: int, lower: int) -> None:
    """Write the blocks of some colors; see `implicitsolve.linearize._difference_steps.place`."""
    if not blocks.flags.c_contiguous:
        colors.reference(blocks, changes, per_length, first, lower)
        return
    arrays = blocks, cupy.ascontiguousarray(changes), cupy.ascontiguousarray(per_length)
    arguments, grid = (*arrays, len(changes), *blocks.shape[:4], first, lower), -(-blocks.size // THREADS)
    launch("assembly.cu", "place_colors", min(grid, MOST_GRID), THREADS, arguments)


class Steps(ReferenceSteps):
    """The steps of BiCGSTAB: one launch for each half of an iteration; see `implicitsolve.krylov._bicgstab`."""

    def first_half(self, shadow, r, v, rho) -> tuple[Any, Any]:
        if r.shape[1] > LONG_VECTOR:
            return super().first_half(shadow, r, v, rho)
        shadow, r, v, rho = map(cupy.ascontiguousarray, (shadow, r, v, rho))
        alpha, s = cupy.empty_like(rho), cupy.empty_like(r)
        launch_step("bicgstab.cu", "first_half", r, (shadow, r, v, rho, alpha, s, r.shape[1]))
        return alpha, s

    def second_half(self, shadow, s, t, alpha, rho) -> tuple[Any, ...]:
        if s.shape[1] > LONG_VECTOR:
            return super().second_half(shadow, s, t, alpha, rho)
        shadow, s, t, rho = map(cupy.ascontiguousarray, (shadow, s, t, rho))
        (omega, new_rho, beta), r = (cupy.empty_like(rho) for _ in range(3)), cupy.empty_like(s)
        numbers = cupy.empty((len(s), 5), s.dtype)
        arguments = shadow, s, t, alpha, rho, omega, r, new_rho, beta, numbers, s.shape[1]
        launch_step("bicgstab.cu", "second_half", s, arguments)
        return omega, r, new_rho, beta, numbers

    def advance(self, dx, p, *parts) -> tuple[Any, Any]:
        dx, p, *rest = map(cupy.ascontiguousarray, (dx, p, *parts))
        new_dx, new_p = cupy.empty_like(dx), cupy.empty_like(p)
        elementwise("moved", dx, (dx, p, *rest, new_dx, new_p, dx.shape[1], dx.size), "bicgstab.cu")
        return new_dx, new_p


kernels.vectors.implement("cupy", Vectors, supports)
kernels.rank_one.implement("cupy", rank_one, _supports)
colors.implement("cupy", place_colors, supports)
bicgstab.implement("cupy", Steps, supports)
