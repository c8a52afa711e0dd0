"""Differences for one system of NumPy numbers with small blocks: as `Assembler` takes them, in few calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve._namespace import eps, numpy_namespace
from implicitsolve._typing import HostArray
from implicitsolve.kernels import place_colors
from implicitsolve.linearize._assemble import LEAST_CHANGE, TOGETHER, Assembler
from implicitsolve.linearize._evaluator import Evaluator

ALL = slice(None)


class OneSystemDifferences:
    """Blocks of J by one difference for each unknown of each color, as long as none must be taken again.

    Parameters
    ----------
    assembler : Assembler
        Its step lengths are used and updated.
    evaluator : Evaluator
        Of the system.
    """

    def __init__(self, assembler: Assembler, evaluator: Evaluator) -> None:
        structure, self.length = assembler.structure, assembler.length
        self.assembler, self.evaluator = assembler, evaluator
        self.lower, self.k = structure.lower, structure.block_size
        self.shape = structure.width, self.k, 1, self.length, self.k
        self.colors = [color for color in assembler.colors for _ in range(self.k)]
        self.unknowns = [*range(self.k)] * len(assembler.colors)

    @staticmethod
    def suits(assembler: Assembler) -> bool:
        """Whether J comes from differences, and all of them are few enough to be kept."""
        structure = assembler.structure
        is_plain = not structure.periodic and len(assembler.colors) == structure.width
        return assembler.uses_differences and is_plain and (assembler.length == 1 or structure.block_size <= TOGETHER)

    def taken(self, x: HostArray, F: HostArray, norm: float) -> Callable[[], HostArray] | None:
        """Take the differences at x (1, N); what makes the blocks of them, or None where a length must be adjusted.

        `F` is F(x), and `norm` ||F||_2.
        """
        steps, k = self.assembler.steps, self.k
        states = x.reshape((1, self.length, k))
        steps.follow(ALL, states)
        h, relative = self.evaluator.inward(x, steps.lengths(ALL, states)), steps.relative(states)
        changes = np.empty(self.shape, dtype=x.dtype)
        least, largest = LEAST_CHANGE * eps(numpy_namespace, x.dtype) * norm, 0.0
        for color, c, change in zip(self.colors, self.unknowns, changes.reshape((-1, *x.shape))):
            point = x.copy()
            with np.errstate(all="ignore"):
                point.reshape((self.length, k))[color, c] += h[0, color, c]
            there = self.evaluator.residual(point, keep=False)
            with np.errstate(all="ignore"):
                np.subtract(there, F, out=change)
                size = math.sqrt(change[0].dot(change[0]))
            if not least < size < math.inf:
                return None
            largest = max(largest, size)
        steps.has_changed[:] = True
        self.assembler.sensitivity[0] = largest / relative
        with np.errstate(all="ignore"):
            np.divide(1, h, out=h)
        self.evaluator.tally.add("linearizations")
        return lambda: self._placed(changes, h)

    def _placed(self, changes: HostArray, per_length: HostArray) -> HostArray:
        """Blocks (1, T, m, k, k) from the changes (m, k, 1, T, k) of F; undefined outside the matrix."""
        blocks = np.empty((1, self.length, self.shape[0], self.k, self.k), dtype=changes.dtype)
        place: Any = place_colors.select(blocks, length=self.length, block_size=self.k)
        with np.errstate(all="ignore"):
            place(blocks, changes, per_length, 0, self.lower)
        return blocks
