"""The patterns of JAX's primitives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.sparse
from jax import lax

from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.structure._sparse import Sparse, compressed
from implicitsolve.tracing._functions import UntraceableError
from implicitsolve.tracing._pattern import (
    MOST_ENTRIES,
    MOST_SMALL,
    RULES,
    Rows,
    Step,
    UnknownPatternError,
    nothing,
    rows_at,
    union,
    walk,
)

ENTRYWISE = """abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp complex conj cos
cosh digamma div erf erf_inv erfc exp exp2 expm1 igamma igammac integer_pow lgamma log log1p logistic max min mul neg
nextafter pow regularized_incomplete_beta rem rsqrt select_n sin sinh sqrt square sub tan tanh zeta"""
SAME = "convert_element_type copy copy_p expand_dims imag real reduce_precision reshape squeeze"  # in this order
SUMS = "reduce_sum reduce_max reduce_min reduce_prod"
FULL = 0.3  # part of its places that a J has entries in, from which on it is dense
PREFIXES = "cumsum cumprod cummax cummin cumlogsumexp"


def rule(names: str) -> Callable[[Callable[[Step], Rows]], Callable[[Step], Rows]]:
    """Enter a rule for these primitives."""

    def enter(function: Callable[[Step], Rows]) -> Callable[[Step], Rows]:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return enter


@rule(ENTRYWISE)
def entrywise(step: Step) -> Rows:
    """Arrays are broadcast against each other; a choice by constants takes one case at each entry."""
    count, parts = math.prod(step.shape), []
    is_choice = step.name == "select_n" and step.constants[0] is not None
    which = np.broadcast_to(step.value(0), step.shape).astype(int).reshape(-1) if is_choice else None
    for i, rows in enumerate(step.given):
        if rows is not None and step.shapes[i] != step.shape:
            rows = step.pick(np.broadcast_to(step.places(i), step.shape), i)
        if rows is not None and which is not None:
            rows = rows_at(rows, np.where(which == i - 1, np.arange(1, count + 1), 0))
        parts.append(rows)
    return union(*parts)


RULES.update(dict.fromkeys(SAME.split(), lambda step: step.given[0]))


@rule("slice transpose rev broadcast_in_dim concatenate stack pad dynamic_slice dynamic_update_slice")
def move(step: Step) -> Rows:
    """What moves entries does so with their numbers; those of a further argument follow those of the first."""
    params, count = step.params, 1
    places: CallersArray = step.places()
    ends = np.cumsum([0, *map(math.prod, step.shapes)]).tolist()
    match step.name:
        case "slice":
            begins, steps = params["start_indices"], params["strides"]
            places = places[tuple(map(slice, begins, params["limit_indices"], steps or (1,) * len(begins)))]
        case "transpose":
            places = places.transpose(params["permutation"])
        case "rev":
            places = np.flip(places, params["dimensions"])
        case "broadcast_in_dim":
            shape = [1] * len(step.shape)
            for axis, n in zip(params["broadcast_dimensions"], step.shapes[0]):
                shape[axis] = n
            places = np.broadcast_to(places.reshape(shape), step.shape)
        case "pad":
            places, count = lax.pad(places, step.places(1, ends[1]), params["padding_config"]), 2
        case "dynamic_slice":
            places = places[step.window(1, step.shape)]
        case "dynamic_update_slice":
            places[step.window(2, step.shapes[1])], count = step.places(1, ends[1]), 2
        case _:
            parts, count = [step.places(i, ends[i]) for i in range(len(step.shapes))], len(step.shapes)
            axis = params.get("dimension", params.get("axis"))
            places = np.stack(parts, axis) if step.name == "stack" else np.concatenate(parts, axis)
    return step.pick(places, *range(count))


@rule("gather")
def gather(step: Step) -> Rows:
    if step.given[0] is None:
        return None
    params = {**step.params, "fill_value": 0}
    return step.pick(step.primitive.bind(step.places(), step.value(1), **params), 0)


@rule("scatter")
def scatter(step: Step) -> Rows:
    keys = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    new = step.places(2, math.prod(step.shapes[0]))
    params = {key: step.params[key] for key in keys}
    return step.pick(lax.scatter(step.places(), step.value(1), new, **params), 0, 2)


@rule("scatter-add scatter_add scatter-mul scatter_mul scatter-sub scatter_sub scatter_max scatter_min")
def scatter_add(step: Step) -> Rows:
    """Each update goes where a gather with the same indices would find it."""
    numbers, count = step.params["dimension_numbers"], math.prod(step.shapes[0])
    window = iter(numbers.update_window_dims)
    aside = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    sizes = tuple(1 if axis in aside else step.shapes[2][next(window)] for axis in range(len(step.shapes[0])))
    there = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    base = np.arange(1, count + 1, dtype=np.int32).reshape(step.shapes[0])
    places = np.asarray(lax.gather(base, step.value(1), there, sizes, mode="fill", fill_value=0)).reshape(-1)
    inside = np.flatnonzero(places)
    return union(step.given[0], step.unite(2, inside, places[inside] - 1))


@rule(SUMS)
def reduce(step: Step) -> Rows:
    kept = [1 if i in step.params["axes"] else n for i, n in enumerate(step.shapes[0])]
    places = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), step.shapes[0])
    return step.unite(0, np.arange(places.size), places)


@rule(f"{PREFIXES} sort")
def along_axis(step: Step) -> Rows:
    """Entries that depend on all, or all that come before, along an axis."""
    axis = step.params.get("axis", step.params.get("dimension"))
    index = np.moveaxis(np.arange(math.prod(step.shape)).reshape(step.shape), axis, -1)
    n = index.shape[-1]
    if n * index.size > MOST_SMALL:
        raise UnknownPatternError("J is dense")
    later = np.ones((n, n), bool) if step.name == "sort" else np.tri(n, dtype=bool)
    i, j = np.nonzero(later.T if step.params.get("reverse") else later)
    return union(*(step.unite(k, index[..., j], index[..., i]) for k in range(len(step.given))))


@rule("dot_general")
def product(step: Step) -> Rows:
    """Entries (b, i, j) from (b, i, c) and (b, j, c), where the other factor is not a constant zero."""
    contracted, batch = step.params["dimension_numbers"]
    (left, there), (right, here) = (_arrange(step, k, contracted[k], batch[k]) for k in (0, 1))
    if math.prod(left.shape) * right.shape[1] > MOST_SMALL + MOST_ENTRIES * step.unknowns:
        raise UnknownPatternError("J is dense")
    b, i, j, c = np.nonzero(there[:, :, None, :] & here[:, None, :, :])
    places = (b * left.shape[1] + i) * right.shape[1] + j
    return union(step.unite(0, left[b, i, c], places), step.unite(1, right[b, j, c], places))


def _arrange(step: Step, k: int, contracted: tuple[int, ...], batch: tuple[int, ...]) -> tuple[HostArray, HostArray]:
    """Numbers of a factor's entries as (batch, rest, contracted), and whether they may differ from zero."""
    shape, constant = step.shapes[k], step.constants[k]
    rest = [axis for axis in range(len(shape)) if axis not in contracted and axis not in batch]
    sizes = [math.prod(shape[axis] for axis in axes) for axes in (batch, rest, contracted)]
    is_there = np.ones(shape, bool) if constant is None else np.asarray(constant()) != 0
    numbers = np.arange(math.prod(shape)).reshape(shape)
    order = [*batch, *rest, *contracted]
    return numbers.transpose(order).reshape(sizes), is_there.transpose(order).reshape(sizes)


def structure_of(program: CallersArray, unknowns: int, size: int) -> Sparse | None:
    """One system's pattern of J by the first input of a closed jaxpr, that of all systems; None where J is dense."""
    start = scipy.sparse.eye_array(unknowns, dtype=bool, format="csr")
    others = [None] * (len(program.jaxpr.invars) - 1)
    try:
        (rows,) = walk(program, [start, *others], [None, *others], unknowns)
    except UnknownPatternError:
        return None
    whole = Sparse(nothing(unknowns, unknowns) if rows is None else rows)
    if size != unknowns:
        rows, columns = whole.rows, whole.columns
        if (rows // size != columns // size).any():
            raise UntraceableError("the systems of the batch depend on one another")
        whole = Sparse((rows % size, columns % size), unknowns=size)
    return None if whole.nnz > FULL * size**2 else compressed(whole.indptr, whole.indices)
