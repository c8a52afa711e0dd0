"""`BlockNewton` for one system of NumPy numbers: differences, factors and updates that take few calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._typing import Array, HostArray
from implicitsolve.direct import BlockLU
from implicitsolve.kernels import Factors
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._assemble_one import OneSystemDifferences
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._block_loop import BlockLoop
from implicitsolve.nonlinear._broyden_inverse import WholeSteps
from implicitsolve.nonlinear._refactor_rule import MAX_ASSEMBLIES

ROW, FRESH = np.zeros(1, dtype=int), np.ones(1, dtype=bool)
for shared in (ROW, FRESH):
    shared.flags.writeable = False


class OneSystemLoop(BlockLoop):
    """A `BlockLoop` for one system without batch axes."""

    @staticmethod
    def suits(evaluator: Evaluator, x0: Array, factor: object) -> bool:
        """Whether the system is alone and real, and the kernels are the library's choice: sums differ in rounding."""
        is_chosen = getattr(factor, "backend", "auto") == "auto"
        return (
            is_chosen
            and not evaluator.batch_shape
            and type(x0) is np.ndarray
            and x0.dtype.char in "fd"
            and x0.dtype.isnative
            and evaluator.box is None
        )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.method.reuse == "broyden":
            self.state.updates = WholeSteps()
        self.differences: OneSystemDifferences | None = None
        factor, assembler = self.method.factor, self.assembler
        if isinstance(factor, BlockLU) and isinstance(assembler, Assembler):
            structure = assembler.structure
            self.factor = factor.for_one(self.whole.size * structure.block_size * structure.width)
            if not factor.refine and OneSystemDifferences.suits(assembler):
                self.differences = OneSystemDifferences(assembler, self.evaluator)

    def _factorize(self, fresh: HostArray) -> None:
        if self.differences is None or not self._factorize_by(self.differences):
            super()._factorize(fresh)

    def _factorize_by(self, differences: OneSystemDifferences) -> bool:
        """Assemble and factorize J; return False, without factors, where a difference must be repeated."""
        structure = differences.assembler.structure
        self.state.updates.reset(FRESH)
        for _ in range(MAX_ASSEMBLIES):
            make = differences.taken(self.state.x, self.state.F, float(self.state.norms[0]))
            if make is None:
                return False
            blocks = make()
            factors = self.factor.factors(blocks, structure.lower, structure.upper, again=make)
            inverse = Inverse(factors, blocks.shape)
            self.state.inverse.parts = [(ROW, inverse)]
            if self.assembler.is_certain(ROW):
                break
            with np.errstate(all="ignore"):
                direction = inverse.negative(self.state.F)
            if not self.assembler.check(ROW, direction).any():
                self.first_direction = direction
                break
        return True


class Inverse:
    """J^-1 of one system by its factors, on arrays (1, N)."""

    def __init__(self, factors: Factors, shape: tuple[int, ...]) -> None:
        self.factors = factors
        self.shape = 1, shape[1], shape[3], 1

    def matvec(self, F: Array) -> Array:
        """J^-1 F."""
        with np.errstate(all="ignore"):
            return self.factors.solve(F.reshape(self.shape)).reshape(F.shape)

    def negative(self, F: Array) -> Array:
        """-J^-1 F."""
        in_place = getattr(self.factors, "solve_in_place", None)
        if in_place is None:
            return -self.factors.solve(F.reshape(self.shape)).reshape(F.shape)
        x = -F
        in_place(x.reshape(self.shape))
        return x
