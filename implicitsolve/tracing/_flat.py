"""Functions of JAX as lists of operations, evaluated by NumPy one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np

from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.tracing._numpy import double_precision, on_numpy

CALLS = "jit pjit closed_call core_call checkpoint remat remat2 custom_jvp_call custom_vjp_call"
INNER = "jaxpr", "call_jaxpr", "fun_jaxpr"  # programs within an equation


def inner_program(equation: CallersArray) -> CallersArray:
    """The program that an equation calls; None where it is a primitive."""
    if equation.primitive.name not in CALLS.split():
        return None
    inner = next(part for key in INNER if (part := equation.params.get(key)) is not None)
    return inner if hasattr(inner, "consts") else jex.ClosedJaxpr(inner, ())


class Operation(NamedTuple):
    """An equation on values in numbered places; those in `ended` have no use after it."""

    equation: CallersArray
    function: CallersArray
    arguments: list[int]
    results: list[int]
    ended: list[int]


class FlatProgram:
    """A function's operations that its outputs need, in order; what depends on constants alone is a constant."""

    def __init__(self, function: CallersArray, *args: CallersArray) -> None:
        self.constants: list[HostArray | None] = []
        operations: list[Operation] = []
        with double_precision(), np.errstate(all="ignore"):
            closed, outcome = jax.make_jaxpr(function, return_shape=True)(*args)
            self.outcome: Any = outcome
            self.inputs: list[int] = [self._place() for _ in closed.jaxpr.invars]
            self.outputs: list[int] = self._enter(closed, self.inputs, operations)
        self.function: CallersArray = jex.jaxpr_as_fun(closed)
        self.operations: list[Operation] = [*_needed(operations, self.outputs)][::-1]

    def _place(self, constant: CallersArray = None, kind: CallersArray = None) -> int:
        self.constants.append(constant if kind is None else np.asarray(constant, kind.dtype))
        return len(self.constants) - 1

    def _enter(self, closed: CallersArray, inputs: Sequence[int], operations: list[Operation]) -> list[int]:
        """Add the operations of a program whose inputs are in these places; the places of its outputs."""
        jaxpr = closed.jaxpr
        at = dict(zip(jaxpr.invars, inputs))
        at |= {var: self._place(np.asarray(value)) for var, value in zip(jaxpr.constvars, closed.consts)}

        def places(atoms: Sequence[CallersArray]) -> list[int]:
            return [self._place(a.val, a.aval) if isinstance(a, jex.Literal) else at[a] for a in atoms]

        for equation in jaxpr.eqns:
            arguments, inner = places(equation.invars), inner_program(equation)
            if inner is not None:
                results = self._enter(inner, arguments, operations)
            else:
                results = self._add(equation, arguments, operations)
            at.update(zip(equation.outvars, results))
        return places(jaxpr.outvars)

    def _add(self, equation: CallersArray, arguments: list[int], operations: list[Operation]) -> list[int]:
        function, known = on_numpy(equation.primitive, equation.params), [self.constants[i] for i in arguments]
        if all(value is not None for value in known):
            found = function(*known)
            return [self._place(value) for value in (found if equation.primitive.multiple_results else [found])]
        results = [self._place() for _ in equation.outvars]
        operations.append(Operation(equation, function, arguments, results, []))
        return results

    def __call__(self, *inputs: HostArray) -> list[HostArray]:
        """The outputs, in memory of their own."""
        values = self.constants.copy()
        for i, value in zip(self.inputs, inputs, strict=True):
            values[i] = value
        with np.errstate(all="ignore"):
            for operation in self.operations:
                found = operation.function(*[values[i] for i in operation.arguments])
                found = found if operation.equation.primitive.multiple_results else (found,)
                for i, value in zip(operation.results, found):
                    values[i] = value
                for i in operation.ended:
                    values[i] = None
        return [np.array(values[i]) for i in self.outputs]


def _needed(operations: list[Operation], outputs: list[int]) -> Iterator[Operation]:
    """The operations that others or the outputs need, from the last one on."""
    needed = set(outputs)
    for operation in reversed(operations):
        if not needed.isdisjoint(operation.results):
            ended = [i for i in {*operation.arguments, *operation.results} if i not in needed]
            needed.update(operation.arguments)
            yield operation._replace(ended=ended)
