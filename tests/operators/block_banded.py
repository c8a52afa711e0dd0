"""Random block-banded matrices with their dense matrices, which are the definition."""

from dataclasses import dataclass
from typing import Any

import array_api_strict
import numpy as np
from hypothesis import strategies as st

from implicitsolve._arrays.host import from_host
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.structure import BlockBanded

# Small integers make every sum and product exact in float32 and float64 alike: equality needs no tolerance.
REALS, COMPLEX = ["float32", "float64"], ["complex64", "complex128"]


def integers(seed: int, shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, shape).astype(np.float64)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-3, 4, shape)
    return values.astype(dtype)


def dense_of(blocks: np.ndarray, structure: BlockBanded) -> np.ndarray:
    """The definition, block by block."""
    *batch, length, width, k, _ = blocks.shape
    dense = np.zeros((*batch, length, k, length, k), blocks.dtype)
    for t in range(length):
        for j in range(width):
            s = t + j - structure.lower
            s = s % length if structure.periodic else s
            if 0 <= s < length:
                dense[..., t, :, s, :] = blocks[..., t, j, :, :]
    return dense.reshape(*batch, length * k, length * k)


def with_garbage(blocks: np.ndarray, structure: BlockBanded, garbage: float) -> np.ndarray:
    """The same matrix, with garbage where blocks are outside."""
    length, width = blocks.shape[-4:-2]
    column = np.arange(length)[:, None] + np.arange(width) - structure.lower
    outside = (column < 0) | (column >= length)
    return blocks if structure.periodic else np.where(outside[:, :, None, None], blocks.dtype.type(garbage), blocks)


@dataclass(frozen=True)
class Case:
    blocks: np.ndarray
    structure: BlockBanded

    def matrix(self, xp=np) -> BlockBandedMatrix:
        s = self.structure
        return BlockBandedMatrix(xp.asarray(self.blocks), lower=s.lower, upper=s.upper, periodic=s.periodic)

    @property
    def dense(self) -> np.ndarray:
        return dense_of(self.blocks, self.structure)


@st.composite
def cases(draw: st.DrawFn, batches=((), (1,), (3,), (2, 2), (0,)), dtypes=(*REALS, *COMPLEX), periodic=None) -> Case:
    lower, upper, k = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 3))
    is_periodic = draw(st.booleans()) if periodic is None else periodic
    length = draw(st.integers(lower + upper + 1 if is_periodic else 0, 8))
    structure = BlockBanded(lower, upper, k, periodic=is_periodic)
    shape = (*draw(st.sampled_from(batches)), length, structure.width, k, k)
    blocks = integers(draw(st.integers(0, 2**20)), shape, draw(st.sampled_from(dtypes)))
    return Case(with_garbage(blocks, structure, draw(st.sampled_from([0.0, 7.0, np.nan, np.inf]))), structure)


LIBRARIES = st.sampled_from([np, array_api_strict])
SEEDS = st.integers(0, 2**20)


def cut(A: Any, structure: BlockBanded) -> BlockBandedMatrix:
    """The part of a dense matrix inside a structure."""
    k = structure.block_size
    ones = np.ones((A.shape[0] // k, structure.width, k, k))
    inside = BlockBandedMatrix(ones, lower=structure.lower, upper=structure.upper).todense()
    return BlockBandedMatrix.from_dense(A * from_host(inside, A), structure)
