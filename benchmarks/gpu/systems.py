"""Many small block tridiagonal systems: block LU, beside cuSPARSE's solver for tridiagonal ones with pivoting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import implicitsolve as ims
from benchmarks.gpu.blocks import backward_error, random_system
from benchmarks.gpu.layers import on_device, on_host
from benchmarks.gpu.rows import Row, timed
from benchmarks.gpu.sizes import Sizes

LAST_COMPARED = 4  # unknowns of a block up to which cuSPARSE's rate is asked for
LU = 1  # cuSPARSE's number for LU with pivoting


def rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """The rate is that of the numbers that must be read and written: blocks, right-hand side and solution."""
    rate: float | None = None
    for B, T, k in sizes.systems:
        matrix, b = random_system(B, T, k)
        A, right = ims.BlockBandedMatrix(on_device(matrix), lower=1, upper=1), on_device(b)
        needed = 4.0 * (matrix.size + 2 * b.size)
        if k == 1 and sizes.has_rivals:
            solve = gtsv(matrix, b)
            error = backward_error(matrix, on_host(solve()).T, b)
            ms = timed(solve, seconds)
            rate = needed / ms
            yield Row(
                f"{B} systems T={T} k=1 float32", "cuSPARSE gtsv, LU", ms, error, 1e-3, None, {"GB/s": rate / 1e6}
            )

        def own(A: Any = A, right: Any = right) -> Any:
            return ims.direct.BlockLU(pivoting="block").factor(A).solve(right)

        error, ms = backward_error(matrix, on_host(own()), b), timed(own, seconds)
        asked = None if rate is None or k > LAST_COMPARED else needed / rate
        name = f"{B} systems T={T} k={k} float32"
        yield Row(name, "block LU, factor and solve", ms, error, 1e-3, asked, {"GB/s": needed / ms / 1e6})


def gtsv(blocks: Any, b: Any) -> Callable[[], Any]:
    """A call of cuSPARSE's interleaved solver; it overwrites what it gets, so that each call copies first."""
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse

    B, T, _ = b.shape
    parts = [blocks[:, :, j, 0, 0].T for j in range(3)]
    lower, main, upper = (cupy.ascontiguousarray(cupy.asarray(part)) for part in parts)
    lower[0], upper[-1] = 0, 0
    right = cupy.ascontiguousarray(cupy.asarray(b[..., 0].T))
    handle = device.get_cusparse_handle()
    pointers = [part.data.ptr for part in (lower, main, upper, right)]
    bytes_needed = cusparse.sgtsvInterleavedBatch_bufferSizeExt(handle, LU, T, *pointers, B)
    work = cupy.empty(bytes_needed, cupy.int8)

    def solve() -> Any:
        own = [part.copy() for part in (lower, main, upper, right)]
        cusparse.sgtsvInterleavedBatch(handle, LU, T, *(part.data.ptr for part in own), B, work.data.ptr)
        return own[3]

    return solve
