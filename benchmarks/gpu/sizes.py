"""Sizes of the workloads: those that are measured, and tiny ones for a run without a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """See `FULL` for what each one is.

    Attributes
    ----------
    layers : tuple of (B, T, k)
        Implicit GRUs with `width` inputs.
    large : (B, T, k)
        The one that is compared with the CPU.
    blocks : tuple of (T, k, asked)
        Block tridiagonal systems, and the published milliseconds.
    systems : tuple of (B, T, k)
        Many small block tridiagonal systems.
    planes : tuple of int
        Points a side of grids in the plane.
    sequences : tuple of (B, T, k)
        Causal layers.
    has_rivals : bool
        Whether cuDNN and cuSPARSE take part.
    """

    width: int
    layers: tuple[tuple[int, int, int], ...]
    large: tuple[int, int, int]
    blocks: tuple[tuple[int, int, float], ...]
    systems: tuple[tuple[int, int, int], ...]
    planes: tuple[int, ...]
    sequences: tuple[tuple[int, int, int], ...]
    has_rivals: bool = True


FULL = Sizes(
    width=100,
    layers=((20, 40, 200), (20, 25, 448)),
    large=(512, 40, 200),
    blocks=((2048, 64, 7.6), (2048, 128, 21.0), (2048, 256, 80.0)),
    systems=((65536, 64, 1), (65536, 64, 2), (16384, 64, 4), (4096, 64, 8), (1024, 64, 16)),
    planes=(128, 512),
    sequences=((16, 100_000, 1), (16, 100_000, 4), (16, 100_000, 16)),
)
TINY = Sizes(
    width=5,
    layers=((3, 6, 8),),
    large=(4, 6, 8),
    blocks=((9, 20, 1.0),),
    systems=((5, 9, 1), (5, 9, 2), (3, 9, 4)),
    planes=(9,),
    sequences=((2, 40, 1), (2, 40, 4)),
    has_rivals=False,
)
