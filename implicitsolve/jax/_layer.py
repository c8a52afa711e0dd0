"""`layer`: a layer of `implicitsolve.adapters` as a JAX function, solved on the host by the adapter's own products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

import implicitsolve as ims
from implicitsolve._typing import HostArray
from implicitsolve.adapters._approximate import FULL, SKIPPED
from implicitsolve.adapters._equations import Equations, Recurrence
from implicitsolve.jax._exchange import Packing
from implicitsolve.jax._root import RootResult
from implicitsolve.jax._solves import Settings, outcome, solution_map
from implicitsolve.problem import Problem
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop, check_choice, check_limit

HostArrays: TypeAlias = Sequence[HostArray]
ARRAYS = (jax.Array, np.ndarray)  # tracers are among the first

EQUATIONS = Equations(
    jnp,
    jax.nn.sigmoid,
    jax.nn.relu,
    linear=lambda x, W, b=0.0: x @ W.T + b,
    shares=lambda a: jax.nn.softmax(jax.nn.log_sigmoid(a), axis=0),
    zeros=lambda like, shape: jnp.zeros(shape, like.dtype),
    positions=lambda states: jnp.arange(states.shape[-2]),
    at=lambda line, indices: jnp.take_along_axis(line, indices, axis=-2),
)


ADAPTERS = "implicit_gru stencil_gru implicit_rnn implicit_lstm elman diagonal_gru diagonal_lstm lifted_net"
BOUNDARIES = ("hs", "cs", "he", "ce", "h0", "c0")


def _recurrence(adapter: Callable[..., Problem], weights: Any, options: Mapping[str, Any]) -> Recurrence:
    name, offsets = getattr(adapter, "__name__", ""), options.get("offsets", ())
    return EQUATIONS.recurrence(name, weights, options.get("activation", "tanh"), offsets)


def layer(
    adapter: Callable[..., Problem],
    params: Mapping[str, Any],
    inputs: Any,
    *,
    lengths: Any = None,
    method: Any = "auto",
    stop: NonlinearStop | None = None,
    adjoint_method: Any = None,
    adjoint_stop: LinearStop | None = None,
    **options: Any,
) -> RootResult:
    """Solve a layer of `implicitsolve.adapters`, under `jax.jit`, `grad`, `jvp`, `vmap` and their compositions.

    Parameters
    ----------
    adapter : callable
        `implicit_gru`, `stencil_gru`, `implicit_rnn`, `implicit_lstm`, `elman`, `diagonal_gru`, `diagonal_lstm` or
        `lifted_net` of `implicitsolve.adapters`.
    params : mapping of str to Array
        As in the adapter; for `lifted_net` the dense matrices A and B.
    inputs : Array of shape (B, T, d) or (T, d)
        As in the adapter, float32 or float64; for `lifted_net` (B, p) or (p,).
    lengths : array or list of B integers from 1 to T, optional
        As in the adapter; may be traced.
    method, stop, adjoint_method, adjoint_stop : optional
        As in `root`.
    **options
        What else the adapter takes: boundary states, such as hs and he, which are differentiated too, and `offsets` or
        `activation`.

    Returns
    -------
    RootResult
        As in `root`; x are the states, and everything else has the axis of the batch, if there is one.

    Raises
    ------
    TypeError, ValueError
        As the adapter, at once, whether or not anything is traced; or if `adapter` is none of these.

    Notes
    -----
    A callback runs the adapter's kernels on NumPy arrays: for the solve, and for the linear systems of its derivatives.
    The rest of the derivatives, of any order, comes from JAX and implicit differentiation, as in `root`: one linear
    solve for each tangent or cotangent; NaN where it fails. Under `jax.vmap` one batch is solved, unless parameters are
    mapped too: then one for each of them. Vectors pass through the host's memory.

    Examples
    --------
    >>> import jax
    >>> import implicitsolve.jax as imj
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng, dtype=np.float32)
    >>> inputs = rng.standard_normal((3, 5, 2)).astype(np.float32)
    >>> @jax.jit
    ... def loss(params):
    ...     return (imj.layer(ims.adapters.implicit_gru, params, inputs, lengths=[5, 1, 3]).x ** 2).sum()
    >>> jax.grad(loss)(params)["Wz"].shape
    (4, 2)
    """
    settings = Settings(method, stop, adjoint_method, adjoint_stop).check("layer")
    arrays, shape, fixed, is_single = _arrange("layer", adapter, params, inputs, lengths, options)
    solve = _solver(_Host(adapter, tuple(fixed.items()), settings), shape)
    x, status, *numbers = solve(*arrays)
    found = RootResult(x, status == int(Status.CONVERGED), status, *numbers)
    return RootResult(*(part[0] for part in found)) if is_single else found


def approximate_fixed_point(
    adapter: Callable[..., Problem],
    params: Mapping[str, Any],
    inputs: Any,
    rho: int,
    *,
    lengths: Any = None,
    propagation: str = "full",
    **options: Any,
) -> jax.Array:
    """Apply the function of a layer `rho` times from zero, as `adapters.approximate_fixed_point`, where JAX runs.

    Parameters
    ----------
    adapter, params, inputs : callable, mapping and Array
        As in `layer`.
    rho : int
        Number of iterations, at least 1.
    lengths : array or list of B integers from 1 to T, optional
        As in `layer`.
    propagation : {"full", "skipped"}, optional
        "full" (default): derivatives go through all iterations. "skipped": through the last one alone.
    **options
        As in `layer`.

    Returns
    -------
    jax.Array
        The states, of the shape of those of `layer`. No solver and no callback takes part.

    Raises
    ------
    TypeError, ValueError
        As `layer`; or if `rho` is not a positive integer, or `propagation` neither of the two.

    Examples
    --------
    >>> import implicitsolve.jax as imj
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.elman_parameters(2, 3, rng=rng, dtype=np.float32)
    >>> inputs = rng.standard_normal((4, 2)).astype(np.float32)
    >>> imj.approximate_fixed_point(ims.adapters.elman, params, inputs, 2).shape
    (4, 3)
    """
    caller = "approximate_fixed_point"
    check_limit(caller, "rho", rho, least=1)
    check_choice(caller, "propagation", propagation, (FULL, SKIPPED))
    (weights, sequences, ends), shape, fixed, is_single = _arrange(caller, adapter, params, inputs, lengths, options)
    cell = _recurrence(adapter, weights, fixed)

    def iterate(_: Any, x: Any) -> Any:
        x = lax.stop_gradient(x) if propagation == SKIPPED else x
        return x - cell.residual(x, weights, sequences, ends)

    x = lax.fori_loop(0, rho, iterate, jnp.zeros(shape, sequences["inputs"].dtype))
    return x[0] if is_single else x


def _arrange(
    caller: str, adapter: Callable[..., Problem], params: Mapping[str, Any], inputs: Any, lengths: Any, options: Any
) -> tuple[tuple[Any, Any, Any], tuple[int, ...], dict[str, Any], bool]:
    """Weights, sequences and lengths of a batch, its states' shape, other options, and whether it is one sequence."""
    if not any(adapter is getattr(ims.adapters, name) for name in ADAPTERS.split()):
        names = ", ".join(ADAPTERS.split())
        raise TypeError(f"{caller}: `adapter` must be one of implicitsolve.adapters: {names}; got {adapter!r}")
    if not isinstance(params, Mapping):
        raise TypeError(f"{caller}: `params` must be a mapping of names to arrays, got {type(params).__name__}")
    given = {name: options[name] for name in BOUNDARIES if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in given}
    shape, is_single = _shape(adapter, params, inputs, lengths, given | others)
    fixed = {name: value if isinstance(value, str) else tuple(value) for name, value in others.items()}
    cell = _recurrence(adapter, params, fixed)
    lower, upper = cell.depths()
    sequences = {"inputs": jnp.asarray(inputs)[None] if is_single else jnp.asarray(inputs)}
    for name, value in given.items():
        value = jnp.asarray(value)
        form = lower if name in cell.before else upper, value.shape[-1]
        each = value[:, None, :] if value.ndim == 2 and value.shape != form else value  # of a depth of 1
        sequences[name] = jnp.broadcast_to(each, (shape[0], *form))
    ends = jnp.full(shape[0], shape[1]) if lengths is None else jnp.asarray(lengths).reshape(shape[0])
    return (jax.tree.map(jnp.asarray, dict(params)), sequences, ends.astype(np.int32)), shape, fixed, is_single


def _shape(
    adapter: Callable[..., Problem], params: Any, inputs: Any, lengths: Any, options: Mapping[str, Any]
) -> tuple[tuple[int, ...], bool]:
    """Shape of the states of the batch, and whether it is one sequence; raises what is wrong with the arguments."""
    is_known = lengths is not None and not isinstance(lengths, Tracer)
    extra = {"lengths": np.asarray(lengths)} if is_known else {}
    weights, others = ({name: _stand_in(x) for name, x in part.items()} for part in (dict(params), options))
    problem = _problem(adapter, weights, _stand_in(inputs), extra | others)
    shape = tuple(ims.adapters.initial_guess(problem, "zeros").shape)
    return (shape if problem.batch_ndim else (1, *shape)), not problem.batch_ndim


def _problem(adapter: Callable[..., Problem], weights: Any, inputs: Any, options: Any) -> Problem:
    if adapter is ims.adapters.lifted_net:
        return adapter(**weights, inputs=inputs, **options)
    return adapter(weights, inputs, **options)


def _stand_in(value: Any) -> Any:
    """An array of NumPy for one whose values may not be known."""
    return np.broadcast_to(np.zeros((), value.dtype), value.shape) if isinstance(value, ARRAYS) else value


@dataclass(frozen=True)
class _Host:
    """What callbacks run: the adapter's problem of a batch, on arrays of NumPy."""

    adapter: Callable[..., Problem]
    options: tuple[tuple[str, Any], ...]
    settings: Settings

    def problem(self, weights: Mapping[str, Any], sequences: Mapping[str, Any], lengths: Any) -> Problem:
        given = dict(sequences)
        inputs = given.pop("inputs")
        extra = {"lengths": lengths} if inputs.ndim == 3 else {}
        if "offsets" not in dict(self.options) and "P" not in weights:  # states beyond an end have no axis of depth
            given = {name: value[:, 0] for name, value in given.items()}
        return _problem(self.adapter, weights, inputs, extra | given | dict(self.options))

    def solve_root(self, weights: Any, sequences: Any, lengths: Any) -> tuple[Any, ...]:
        return self.settings.solve_root(self.problem(weights, sequences, lengths))

    def forward(self, weights: Any, sequences: Any, lengths: Any, x: Any, b: Any) -> tuple[Any, ...]:
        return (self.settings.tangent(self.problem(weights, sequences, lengths), x, b),)

    def backward(self, weights: Any, sequences: Any, lengths: Any, x: Any, b: Any) -> tuple[Any, ...]:
        return (self.settings.adjoint(self.problem(weights, sequences, lengths), x, b),)


@lru_cache(maxsize=256)
def _solver(host: _Host, shape: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
    options = dict(host.options)

    def F(x: Any, arrays: Any) -> Any:
        weights, sequences, lengths = arrays
        return _recurrence(host.adapter, weights, options).residual(x, weights, sequences, lengths)

    def linear(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda b, x, arrays: _call(run, (*arrays, x, b), (b,))[0]

    solution = solution_map(F, linear(host.forward), linear(host.backward))

    @jax.jit
    def solve(weights: Any, sequences: Any, lengths: Any) -> tuple[Any, ...]:
        arguments = lax.stop_gradient((weights, sequences, lengths))
        x, *rest = _call(host.solve_root, arguments, outcome(shape, shape[:1], sequences["inputs"].dtype))
        return solution(x, (weights, sequences, lengths)), *rest

    return solve


def _call(run: Callable[..., tuple[Any, ...]], arguments: Any, outcome: Sequence[Any]) -> list[Any]:
    """A callback of (weights, *others) with results like `outcome`; all but the weights have the batch's axis first."""
    leaves, form = jax.tree.flatten(arguments)
    words = [Packing(leaf.shape, leaf.dtype) for leaf in leaves]
    results = [Packing(like.shape, like.dtype) for like in outcome]
    shared = len(jax.tree.leaves(arguments[0]))

    def on_host(*packed: Any) -> tuple[Any, ...]:
        lead, found = _run_mapped(lambda leaves: run(*jax.tree.unflatten(form, leaves)), words, packed, shared)
        return tuple(_over(part, lead).pack_host(value) for part, value in zip(results, found))

    inner = [part.pack(leaf) for part, leaf in zip(words, leaves)]
    outer = jax.pure_callback(on_host, tuple(part.words for part in results), *inner, vmap_method="expand_dims")
    return [part.unpack(value) for part, value in zip(results, outer)]


def _run_mapped(
    run: Callable[[HostArrays], HostArrays], words: Sequence[Packing], packed: HostArrays, shared: int
) -> tuple[tuple[int, ...], HostArrays]:
    """The axes that `jax.vmap` has put first, and the results: of one batch where the weights are shared."""
    axes = [value.ndim - len(part.words.shape) for part, value in zip(words, packed)]
    mapped = [value.shape[:n] for value, n in zip(packed, axes)]
    lead = np.broadcast_shapes(*mapped)
    values = [_over(part, own).unpack_host(value) for part, own, value in zip(words, mapped, packed)]
    spread = [np.broadcast_to(value, lead + part.shape) for value, part in zip(values, words)]
    if all(math.prod(own) == 1 for own in mapped[:shared]):
        one = [value[(0,) * n] for value, n in zip(values[:shared], axes)]
        return lead, run(one + [x.reshape(-1, *part.shape[1:]) for x, part in zip(spread[shared:], words[shared:])])
    each = [run([value[i] for value in spread]) for i in np.ndindex(*lead)]
    return lead, [np.concatenate(parts) for parts in zip(*each)]


def _over(part: Packing, lead: tuple[int, ...]) -> Packing:
    """The words of an array of such arrays, with the axes `lead` in front."""
    return Packing((*lead, *part.shape), part.dtype)
