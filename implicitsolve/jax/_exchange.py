"""Solves on the host whose functions are evaluated by JAX: by calls, or in a loop inside a traced program.

A callback must not call JAX, which may wait for the thread that the callback occupies. So a traced solve is a loop in
the program: it evaluates what the solver asks for, and a callback hands the value to the solver, which waits in a
thread of its own, and returns with its next request.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.custom_batching import custom_vmap

from implicitsolve._typing import HostArray
from implicitsolve.jax._share import Words, to_array, to_jax

Ask: TypeAlias = Callable[..., HostArray]
"""``ask(VALUE, x)`` is F(x), ``ask(PUSH, x, v)`` J(x) v, ``ask(PULL, x, w)`` J(x)^H w."""
DONE, VALUE, PUSH, PULL, AGAIN = -1, 0, 1, 2, 2  # AGAIN is added to a product at the point of the one before


class HostSolve(ABC):
    """A solve of one system, or of a batch, on arrays of one shape: a function in JAX, and what the host does with it.

    The function takes a vector and the parameters. `is_linear` says that it is linear in the vector.
    """

    is_linear = False

    def __init__(self, function: Callable[..., Any], shape: tuple[int, ...], dtype: Any, settings: Any) -> None:
        self.function = function
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.settings = settings
        self._batched: dict[Any, HostSolve] = {}

    @property
    @abstractmethod
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes of what `run` returns."""

    @abstractmethod
    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """Solve on the host."""

    def over(self, size: int, axes: tuple[int | None, ...]) -> HostSolve:
        """The same solve for a batch of so many, where parameters have these batch axes."""
        return type(self)(jax.vmap(self.function, in_axes=(0, *axes)), (size, *self.shape), self.dtype, self.settings)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch."""
        return self.shape[:-1]

    def batched(self, size: int, axes: tuple[int | None, ...]) -> HostSolve:
        """`over`, made once: what is compiled for it is kept."""
        if (size, axes) not in self._batched:
            self._batched[size, axes] = self.over(size, axes)
        return self._batched[size, axes]

    def __call__(self, start: Any, *parameters: Any) -> tuple[Any, ...]:
        """Solve: at once where all arrays are known, else as part of the program that is being traced."""
        if is_traced(start, *parameters):
            return self._staged(start, *parameters)
        outcome = self.run(self._calls(parameters), to_array(start))
        return tuple(jax.device_put([to_jax(x, like.dtype) for x, like in zip(outcome, self.outcome, strict=True)]))

    def _calls(self, parameters: tuple[Any, ...]) -> Ask:
        """Evaluate by calls of compiled functions; products at one point share its linearization."""
        point, tangent = None, None

        def ask(kind: int, x: Any, v: Any = None) -> Any:
            nonlocal point, tangent
            if kind == VALUE:
                return to_array(self._value(to_jax(x), *parameters))
            if point is None or not (self.is_linear or bool((point == x).all())):
                point = x.copy()
                tangent = self._linearized(to_jax(point), *parameters)
            return to_array((_pushed if kind == PUSH else _pulled)(tangent, to_jax(v)))

        return ask

    @cached_property
    def _value(self) -> Callable[..., Any]:
        return jax.jit(self.function)

    @cached_property
    def _linearized(self) -> Callable[..., Any]:
        return jax.jit(lambda x, *parameters: jax.linearize(lambda x: self.function(x, *parameters), x)[1])

    @cached_property
    def _staged(self) -> Callable[..., tuple[Any, ...]]:
        """The solve as a part of a program; `jax.vmap` makes it the solve of a batch."""

        @custom_vmap
        def staged(start: Any, *parameters: Any) -> tuple[Any, ...]:
            return self._loop(start, *parameters)

        @staged.def_vmap
        def rule(size: int, is_batched: Any, start: Any, *parameters: Any) -> tuple[Any, Any]:
            first, *rest = is_batched
            start = start if first else jnp.broadcast_to(start, (size, *start.shape))
            solve = self.batched(size, tuple(0 if part else None for part in rest))
            return solve(start, *parameters), (True,) * len(self.outcome)

        return staged

    @cached_property
    def _loop(self) -> Callable[..., tuple[Any, ...]]:
        vector, outcome = self._words
        count = jax.ShapeDtypeStruct((), np.int32)
        shapes = (count, count, vector.words, vector.words, tuple(part.words for part in outcome))

        def answer(state: Any, start: Any, value: Any) -> Any:
            return jax.pure_callback(self._answered, shapes, state[0], start, vector.pack(value))

        @jax.jit
        def loop(start: Any, *parameters: Any) -> tuple[Any, ...]:
            def product(tangent: Any, state: Any) -> Any:
                v = vector.unpack(state[3])
                return answer(state, packed, lax.cond(state[1] % 2 == PUSH, _pushed, _pulled, tangent, v))

            def value(state: Any) -> Any:
                return answer(state, packed, self.function(vector.unpack(state[2]), *parameters))

            def products(state: Any) -> Any:
                tangent = self._linearized(vector.unpack(state[2]), *parameters)
                again = product(tangent, state)
                return lax.while_loop(lambda state: state[1] > AGAIN, partial(product, tangent), again)

            packed = vector.pack(start)
            empty = tuple(jnp.zeros(part.words.shape, jnp.uint32) for part in outcome)
            state = (jnp.int32(0), jnp.int32(VALUE), packed, packed, empty)

            def evaluate(state: Any) -> Any:
                return lax.cond(state[1] == VALUE, value, products, state)

            body = partial(product, self._linearized(start, *parameters)) if self.is_linear else evaluate
            found = lax.while_loop(lambda state: state[1] != DONE, body, state)[-1]
            return tuple(part.unpack(words) for part, words in zip(outcome, found, strict=True))

        return loop

    @cached_property
    def _words(self) -> tuple[Words, tuple[Words, ...]]:
        return Words(self.shape, self.dtype), tuple(Words(part.shape, part.dtype) for part in self.outcome)

    def _answered(self, token: Any, start: Any, value: Any) -> tuple[Any, ...]:
        """Give the solver a value, or start it, and return its next request."""
        number = int(token)
        vector, outcome = self._words
        if not number:
            number = next(_numbers)
            _sessions[number] = Session(partial(self.run, start=vector.unpack_host(start)))
        else:
            _sessions[number].answers.put(vector.unpack_host(value))
        try:
            kind, vectors, found = _sessions[number].next_request()
        except BaseException:
            del _sessions[number]
            raise
        if kind == DONE:
            del _sessions[number]
        empty = np.zeros(self.shape, self.dtype)
        asked = [vector.pack_host(part) for part in (*vectors, empty, empty)[:2]]
        found = found or [np.zeros(part.shape) for part in outcome]
        packed = tuple(part.pack_host(value) for part, value in zip(outcome, found, strict=True))
        return np.int32(number), np.int32(kind), *asked, packed


class Session:
    """A solver in its own thread, which stands still while it waits for an answer."""

    def __init__(self, run: Callable[[Ask], tuple[Any, ...]]) -> None:
        self.point: Any = None  # of the last product
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.requests: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._run, args=(run,), name="implicitsolve.jax", daemon=True).start()

    def next_request(self) -> tuple[int, Sequence[Any], Any]:
        """What the solver asks for next; its exceptions."""
        request = self.requests.get()
        if isinstance(request, BaseException):
            raise request
        return request

    def ask(self, kind: int, *vectors: Any) -> HostArray:
        """Ask and wait."""
        if kind == VALUE:
            self.point = None
        elif self.point is not None and np.array_equal(self.point, vectors[0]):
            kind += AGAIN
        else:
            self.point = vectors[0].copy()
        self.requests.put((kind, vectors, None))
        return self.answers.get()

    def _run(self, run: Callable[[Ask], tuple[Any, ...]]) -> None:
        try:
            outcome = run(self.ask)
        except BaseException as error:  # noqa: BLE001 - raised again where the program waits
            self.requests.put(error)
        else:
            self.requests.put((DONE, (), outcome))


@jax.jit
def _pushed(tangent: Callable[[Any], Any], v: Any) -> Any:
    """J v."""
    return tangent(v)


@jax.jit
def _pulled(tangent: Callable[[Any], Any], w: Any) -> Any:
    """J^H w."""
    return jax.linear_transpose(tangent, w)(w.conj())[0].conj()


_numbers = itertools.count(1)
_sessions: dict[int, Session] = {}


def is_traced(*arrays: Any) -> bool:
    """Whether some array is not known yet, or a program is being traced, to which all calls of JAX now belong."""
    return any(isinstance(x, Tracer) for x in (*arrays, jnp.zeros(())))
