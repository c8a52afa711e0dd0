"""Solves on the host whose functions are evaluated by JAX: by calls, or in a loop inside a traced program.

A callback must not call JAX, which may wait for the thread that the callback occupies. So a traced solve is a loop in
the program: it evaluates what the solver requests, and a callback passes the value to the solver, which waits in a
separate thread, and returns its next request.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
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
from implicitsolve.errors import require

Ask: TypeAlias = Callable[..., HostArray]
"""``ask(Request.VALUE, x)`` is F(x), ``ask(Request.PUSH, x, v)`` J(x) v, ``ask(Request.PULL, x, w)`` J(x)^H w."""


class Request(IntEnum):
    """What the solver requests; a product at the point of the one before has a code of its own."""

    DONE = -1
    VALUE = 0
    PUSH = 1
    PULL = 2
    PUSH_AGAIN = 3
    PULL_AGAIN = 4


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
        """The solve of a batch of `size` systems, where parameters have these batch axes."""
        return type(self)(jax.vmap(self.function, in_axes=(0, *axes)), (size, *self.shape), self.dtype, self.settings)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.shape[:-1]

    def for_batch(self, size: int, axes: tuple[int | None, ...]) -> HostSolve:
        """`over`, made once: what is compiled for it is kept."""
        if (size, axes) not in self._batched:
            self._batched[size, axes] = self.over(size, axes)
        return self._batched[size, axes]

    def __call__(self, start: Any, *parameters: Any) -> tuple[Any, ...]:
        """Solve: at once where all arrays are known, else as part of the program that is being traced."""
        if is_traced(start, *parameters):
            return self._stage(start, *parameters)
        outcome = self.run(self._calls(parameters), to_array(start))
        return tuple(jax.device_put([to_jax(x, like.dtype) for x, like in zip(outcome, self.outcome, strict=True)]))

    def _calls(self, parameters: tuple[Any, ...]) -> Ask:
        """Evaluate by calls of compiled functions; products at one point share its linearization."""
        point, tangent = None, None

        def ask(kind: int, x: Any, v: Any = None) -> Any:
            nonlocal point, tangent
            if kind == Request.VALUE:
                return to_array(self._value(to_jax(x), *parameters))
            if point is None or not (self.is_linear or bool((point == x).all())):
                point = x.copy()
                tangent = self._linearize(to_jax(point), *parameters)
            return to_array((_push if kind == Request.PUSH else _pull)(tangent, to_jax(v)))

        return ask

    @cached_property
    def _value(self) -> Callable[..., Any]:
        return jax.jit(self.function)

    @cached_property
    def _linearize(self) -> Callable[..., Any]:
        return jax.jit(lambda x, *parameters: jax.linearize(lambda x: self.function(x, *parameters), x)[1])

    @cached_property
    def _stage(self) -> Callable[..., tuple[Any, ...]]:
        """The solve as a part of a program; `jax.vmap` makes it the solve of a batch."""

        @custom_vmap
        def stage(start: Any, *parameters: Any) -> tuple[Any, ...]:
            return self._loop(start, *parameters)

        @stage.def_vmap
        def rule(size: int, is_batched: Any, start: Any, *parameters: Any) -> tuple[Any, Any]:
            first, *rest = is_batched
            start = start if first else jnp.broadcast_to(start, (size, *start.shape))
            solve = self.for_batch(size, tuple(0 if part else None for part in rest))
            return solve(start, *parameters), (True,) * len(self.outcome)

        return stage

    @cached_property
    def _loop(self) -> Callable[..., tuple[Any, ...]]:
        vector, outcome = self._words
        count = jax.ShapeDtypeStruct((), np.int32)
        shapes = (count, count, vector.words, vector.words, tuple(part.words for part in outcome))

        def answer(state: Any, start: Any, value: Any) -> Any:
            return jax.pure_callback(self._answer, shapes, state[0], start, vector.pack(value))

        @jax.jit
        def loop(start: Any, *parameters: Any) -> tuple[Any, ...]:
            def product(tangent: Any, state: Any) -> Any:
                v = vector.unpack(state[3])
                return answer(state, packed, lax.cond(state[1] % 2 == Request.PUSH, _push, _pull, tangent, v))

            def value(state: Any) -> Any:
                return answer(state, packed, self.function(vector.unpack(state[2]), *parameters))

            def products(state: Any) -> Any:
                tangent = self._linearize(vector.unpack(state[2]), *parameters)
                again = product(tangent, state)
                return lax.while_loop(lambda state: state[1] > Request.PULL, partial(product, tangent), again)

            packed = vector.pack(start)
            empty = tuple(jnp.zeros(part.words.shape, jnp.uint32) for part in outcome)
            state = (jnp.int32(0), jnp.int32(Request.VALUE), packed, packed, empty)

            def evaluate(state: Any) -> Any:
                return lax.cond(state[1] == Request.VALUE, value, products, state)

            body = partial(product, self._linearize(start, *parameters)) if self.is_linear else evaluate
            found = lax.while_loop(lambda state: state[1] != Request.DONE, body, state)[-1]
            return tuple(part.unpack(words) for part, words in zip(outcome, found, strict=True))

        return loop

    @cached_property
    def _words(self) -> tuple[Packing, tuple[Packing, ...]]:
        return Packing(self.shape, self.dtype), tuple(Packing(part.shape, part.dtype) for part in self.outcome)

    def _answer(self, token: Any, start: Any, value: Any) -> tuple[Any, ...]:
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
        if kind == Request.DONE:
            del _sessions[number]
        empty = np.zeros(self.shape, self.dtype)
        asked = [vector.pack_host(part) for part in (*vectors, empty, empty)[:2]]
        found = found or [np.zeros(part.shape) for part in outcome]
        packed = tuple(part.pack_host(value) for part, value in zip(outcome, found, strict=True))
        return np.int32(number), np.int32(kind), *asked, packed


class Session:
    """A solver in its own thread, which is blocked until an answer comes."""

    def __init__(self, run: Callable[[Ask], tuple[Any, ...]]) -> None:
        self.point: Any = None  # of the last product
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.requests: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._run, args=(run,), name="implicitsolve.jax", daemon=True).start()

    def next_request(self) -> tuple[int, Sequence[Any], Any]:
        request = self.requests.get()
        if isinstance(request, BaseException):
            raise request
        return request

    def ask(self, kind: int, *vectors: Any) -> HostArray:
        if kind == Request.VALUE:
            self.point = None
        elif self.point is not None and np.array_equal(self.point, vectors[0]):
            kind += 2
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
            self.requests.put((Request.DONE, (), outcome))


@jax.jit
def _push(tangent: Callable[[Any], Any], v: Any) -> Any:
    """J v."""
    return tangent(v)


@jax.jit
def _pull(tangent: Callable[[Any], Any], w: Any) -> Any:
    """J^H w."""
    return jax.linear_transpose(tangent, w)(w.conj())[0].conj()


_numbers = itertools.count(1)
_sessions: dict[int, Session] = {}


def is_traced(*arrays: Any) -> bool:
    """Whether some array is not known yet, or a program is being traced, to which all calls of JAX now belong."""
    return any(isinstance(x, Tracer) for x in (*arrays, jnp.zeros(())))


# Arrays of JAX as those of NumPy or CuPy, and back


def to_array(x: Any) -> Any:
    """The array's values on the same memory: NumPy on the CPU, CuPy on CUDA."""
    if not isinstance(x, jax.Array):
        return np.asarray(x)
    platforms = {device.platform for device in x.devices()}
    if platforms == {"cpu"}:
        return np.asarray(x)
    if platforms == {"gpu"} and len(x.devices()) == 1:
        return _cupy().from_dlpack(x)
    raise TypeError(f"root: arrays must be on the CPU or on one CUDA device, got {sorted(map(str, x.devices()))}")


def to_jax(x: Any, dtype: Any = None) -> Any:
    """Numbers or an array of CuPy as what compiled functions take: an array of NumPy, or of JAX."""
    if isinstance(x, np.ndarray | np.generic | int | float):
        return np.asarray(x, dtype)
    found = jax.dlpack.from_dlpack(x)
    return found if dtype is None else found.astype(dtype)


class Packing:
    """Numbers as the 32-bit words that callbacks exchange.

    In the thread of a callback JAX makes 64-bit numbers single where `jax.enable_x64` was set for another thread alone.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.is_complex = self.dtype.kind == "c"
        self.real: Any = np.finfo(self.dtype).dtype if self.dtype.kind in "fc" else self.dtype
        pairs = self.is_complex + (self.real.itemsize == 8)
        self.words = jax.ShapeDtypeStruct((*shape, *(2,) * pairs), np.uint32)

    def pack(self, x: Any) -> Any:
        if self.is_complex:
            x = jnp.stack([x.real, x.imag], axis=-1)
        return lax.bitcast_convert_type(x, jnp.uint32)

    def unpack(self, words: Any) -> Any:
        x = lax.bitcast_convert_type(words, self.real)
        return lax.complex(x[..., 0], x[..., 1]) if self.is_complex else x

    def pack_host(self, x: Any) -> Any:
        return np.asarray(x, self.dtype).reshape(-1).view(np.uint32).reshape(self.words.shape)

    def unpack_host(self, words: Any) -> Any:
        return np.array(words).reshape(-1).view(self.dtype).reshape(self.shape)


def _cupy() -> Any:
    need = "pip install 'implicitsolve[cuda13]' (or [cuda12]), or put them on a device of jax.devices('cpu')"
    return require("cupy", f"implicitsolve.jax: arrays on CUDA go through CuPy, which is not installed: {need}")
