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
"""``ask(kind, *vectors)`` evaluates the function of that number."""
DONE = -1


class HostSolve(ABC):
    """A solve of one system, or of a batch: its functions in JAX, and what the host does with them.

    Each function takes two vectors of shape `shape` and the parameters; `batched` adds a leading axis to everything.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, settings: Any) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.settings = settings
        self._batched: dict[Any, HostSolve] = {}

    @property
    @abstractmethod
    def functions(self) -> Sequence[Callable[..., Any]]:
        """What `ask` can be asked for, ``function(u, v, *parameters)``."""

    @property
    @abstractmethod
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes of what `run` returns."""

    @abstractmethod
    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """Solve on the host."""

    @abstractmethod
    def over(self, size: int, axes: tuple[int | None, ...]) -> HostSolve:
        """The same solve for a batch of so many, where parameters have these batch axes."""

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
        return tuple(to_jax(value, like.dtype) for value, like in zip(outcome, self.outcome, strict=True))

    def _calls(self, parameters: tuple[Any, ...]) -> Ask:
        """Evaluate by calls of compiled functions."""
        compiled = self._compiled

        def ask(kind: int, *vectors: Any) -> Any:
            u, v = vectors if len(vectors) == 2 else (vectors[0], vectors[0])
            return to_array(compiled[kind](to_jax(u), to_jax(v), *parameters))

        return ask

    @cached_property
    def _compiled(self) -> list[Callable[..., Any]]:
        return [jax.jit(function) for function in self.functions]

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

        @jax.jit
        def loop(start: Any, *parameters: Any) -> tuple[Any, ...]:
            def body(state: Any) -> Any:
                token, kind, u, v, _ = state
                value = lax.switch(kind, self.functions, vector.unpack(u), vector.unpack(v), *parameters)
                return jax.pure_callback(self._answered, shapes, token, packed, vector.pack(value))

            packed = vector.pack(start)
            empty = tuple(jnp.zeros(part.words.shape, jnp.uint32) for part in outcome)
            first = (jnp.int32(0), jnp.int32(0), packed, packed, empty)
            found = lax.while_loop(lambda state: state[1] != DONE, body, first)[-1]
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
        self.requests.put((kind, vectors, None))
        return self.answers.get()

    def _run(self, run: Callable[[Ask], tuple[Any, ...]]) -> None:
        try:
            outcome = run(self.ask)
        except BaseException as error:  # noqa: BLE001 - raised again where the program waits
            self.requests.put(error)
        else:
            self.requests.put((DONE, (), outcome))


_numbers = itertools.count(1)
_sessions: dict[int, Session] = {}


def is_traced(*arrays: Any) -> bool:
    """Whether some array is not known yet, or a program is being traced, to which all calls of JAX now belong."""
    return any(isinstance(x, Tracer) for x in (*arrays, jnp.zeros(())))
