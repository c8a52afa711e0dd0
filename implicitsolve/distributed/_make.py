"""What users make: distributed arrays from what all ranks have or each has, and problems from functions of a part."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import is_array, library
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._communicator import Communicator, check_communicator
from implicitsolve.distributed._layout import Runs, layout
from implicitsolve.distributed._system import BlockSystem
from implicitsolve.problem import Problem
from implicitsolve.stopping import check_limit
from implicitsolve.structure import BlockBanded


def replicated(array: Any) -> DistributedArray:
    """Make an array that every rank holds; all must pass the same bits, which is not checked.

    Parameters
    ----------
    array : array_like
        The whole of it. Not copied.

    Returns
    -------
    DistributedArray
        With no split axis.

    Examples
    --------
    >>> from implicitsolve import distributed
    >>> distributed.replicated([1.0, 2.0])
    <DistributedArray (2,), dtype=float64, replicated>
    """
    return DistributedArray(_host("replicated", "array", array), None, None)


def split(comm: Communicator, array: Any, axis: int = -1, block_size: int = 1) -> DistributedArray:
    """Partition an array that every rank has across the ranks; each keeps a copy of its part.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    array : array_like
        The whole.
    axis : int, optional
        The axis to split. Default: the last one.
    block_size : int, optional
        Entries along that axis that stay together on one rank. Default 1.

    Returns
    -------
    DistributedArray
        Contiguous runs of blocks, as equal as possible: see `layout`.

    Raises
    ------
    ValueError
        If `axis` is not an axis of the array, or its length not a multiple of `block_size`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> states = np.arange(12.0).reshape(6, 2)
    >>> distributed.threads(4, lambda comm: distributed.split(comm, states, axis=0).local.shape)
    [(2, 2), (2, 2), (1, 2), (1, 2)]
    """
    check_communicator("split", comm)
    check_limit("split", "block_size", block_size, least=1)
    array = _host("split", "array", array)
    axis = _checked_axis("split", array, axis)
    blocks, rest = divmod(array.shape[axis], block_size)
    if rest:
        raise ValueError(f"split: axis {axis} must be a multiple of `block_size` = {block_size}, got {array.shape}")
    counts = layout(blocks, comm.size)
    counts = counts if block_size == 1 else Runs(block_size * count for count in counts)
    start = counts.starts[comm.rank]
    run = (slice(None),) * axis + (slice(start, start + counts[comm.rank]),)
    return DistributedArray(np.array(array[run]), axis, comm, counts)


def from_local(
    comm: Communicator, local: Any, axis: int = -1, counts: tuple[int, ...] | None = None
) -> DistributedArray:
    """Make an array from the part of every rank.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    local : array_like
        This rank's run. Not copied.
    axis : int, optional
        The split axis. Default: the last one.
    counts : tuple of int, optional
        Its length on every rank. By default found by one allgather, which also checks that the parts have one dtype,
        and one shape but for that length.

    Returns
    -------
    DistributedArray
        Of the whole shape; `local` is this rank's part.

    Raises
    ------
    ValueError
        If `axis` is not an axis of the array, `counts` does not fit, or the parts differ in dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> distributed.threads(3, lambda comm: distributed.from_local(comm, np.ones(comm.rank + 1)).shape)
    [(6,), (6,), (6,)]
    """
    check_communicator("from_local", comm)
    local = _host("from_local", "local", local)
    axis = _checked_axis("from_local", local, axis)
    if counts is None:
        kind = f"{local.dtype} {local.shape[:axis]} {local.shape[axis + 1 :]}"
        own = np.asarray([local.shape[axis], zlib.crc32(kind.encode())], dtype=np.int64)
        everyone = np.stack(comm.allgather(own, [(2,)] * comm.size))
        if (everyone[:, 1] != everyone[0, 1]).any():
            raise ValueError(
                f"from_local: `local` must have one dtype on all ranks, and one shape but for its axis {axis}; "
                f"rank {comm.rank} has {local.dtype} {local.shape}"
            )
        counts = tuple(everyone[:, 0].tolist())
    if not isinstance(counts, tuple | list) or len(counts) != comm.size:
        raise ValueError(f"from_local: `counts` must have a number for each of {comm.size} ranks, got {counts}")
    if counts[comm.rank] != local.shape[axis]:
        raise ValueError(
            f"from_local: `counts` says {counts[comm.rank]} for rank {comm.rank}, which has {local.shape[axis]}"
        )
    return DistributedArray(local, axis, comm, counts)


def _checked_axis(owner: str, array: HostArray, axis: int) -> int:
    if not isinstance(axis, int | np.integer) or not -array.ndim <= axis < array.ndim:
        raise ValueError(f"{owner}: `axis` must be an axis of the array, of shape {array.shape}, got {axis!r}")
    return axis % array.ndim


def _host(owner: str, name: str, array: Any) -> HostArray:
    """The caller's array as a NumPy array; others are not supported."""
    if is_array(array) and not isinstance(array, np.ndarray | np.generic | DistributedArray):
        raise TypeError(f"{owner}: `{name}` must be a NumPy array, got one of {library(array)}: copy it to the host")
    return np.asarray(array)


def problem(
    comm: Communicator,
    residual: Callable[..., Any],
    *,
    length: int,
    block_size: int = 1,
    lower: int = 1,
    upper: int = 1,
    periodic: bool = False,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    linearize: Callable[..., Any] | None = None,
    blocks: Callable[..., Any] | None = None,
    batch_ndim: int = 0,
    parameters: Mapping[str, Any] | None = None,
    parameter_jvp: Callable[..., Any] | None = None,
    parameter_vjp: Callable[..., Any] | None = None,
    name: str = "",
) -> Problem:
    """Make a problem of T blocks that the ranks share, from functions that each rank calls on its own part.

    Every rank has a contiguous run of blocks, as equal as possible (`layout`). Its functions get them with what they
    depend on around them: the last `lower` blocks of the rank before, and the first `upper` ones of the rank after. At
    the two ends there is nothing beyond, so that with one rank the functions are those of the whole.

    Parameters
    ----------
    comm : Communicator
        The ranks: `Serial`, `MPI`, or what `threads` gives.
    residual : callable
        ``residual(part, x)`` returns F of the own blocks, shape ``(*batch, part.count, k)``, for x of shape
        ``(*batch, part.before + part.count + part.after, k)``. `part` is a `Part`, which identifies these blocks.
    length : int
        Number of blocks, T, at least 2.
    block_size : int, optional
        Unknowns of a block, k. Default 1.
    lower, upper : int, optional
        How many blocks before and after it the equations of a block depend on. Default 1.
    periodic : bool, optional
        Whether the first and the last block are neighbours, so that there are no ends. Default False.
    jvp : callable, optional
        ``jvp(part, x, v)`` returns J v of the own blocks; v has the shape of x. Without it products are differences.
    vjp : callable, optional
        ``vjp(part, x, w)`` returns, for w of the own blocks, the cotangent of x in the shape of x: what falls on the
        neighbours' blocks is sent to them. Without it adjoint products are those of the assembled J.
    linearize : callable, optional
        ``linearize(part, x)`` returns ``(F, J)`` of the own blocks, J a `LinearOperator` of ``in_shape`` ``(part.before
        + part.count + part.after, k)`` and ``out_shape`` ``(part.count, k)``: what all products at x share is computed
        once. It is preferred to `jvp` and `vjp`.
    blocks : callable, optional
        ``blocks(part, x)`` returns the own block rows of J, ``(*batch, part.count, lower + upper + 1, k, k)``, as
        `BlockBandedMatrix` stores them. Without it they come from colored products, or differences, of the rank's own
        functions, with no other messages than those of one residual.
    batch_ndim : int, optional
        Number of batch axes. Default 0.
    parameters : mapping of str to array, optional
        What the residual depends on in addition to x: arrays that all ranks hold, or `DistributedArray`.
    parameter_jvp : callable, optional
        ``parameter_jvp(part, x, tangents)`` returns (dF/dtheta) dtheta of the own blocks. Of a split tangent it gets
        this rank's part.
    parameter_vjp : callable, optional
        ``parameter_vjp(part, x, w)`` returns (dF/dtheta)^H w by what the own blocks contribute, as a mapping. These are
        summed over the ranks; of a split parameter it returns this rank's part of the gradient. With an argument `wrt`
        it receives the names of the requested ones.
    name : str, optional
        What traces call it.

    Returns
    -------
    Problem
        For `root`, `pull_back` and `push_forward`, on x of shape ``(*batch, T, k)`` from ``split(comm, x0,
        axis=batch_ndim)``. Its structure is ``BlockBanded(lower, upper, k)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable, or a rank would own fewer than max(lower, upper, 1) blocks.

    Notes
    -----
    Messages to each neighbour: one for a residual, a product or an assembly of J; an adjoint product sends one back.
    Newton-GMRES needs two more collectives per Krylov vector, a direct solve one allgather
    (`PartitionedLU`), and the gradient of all replicated parameters one allreduce.

    An exception that one of these functions raises on one rank ends all ranks with it (`Communicator.abort`).

    Functions may change their arguments, and return the same buffer again and again.

    What else a problem can have goes in by ``dataclasses.replace``, for example ``fixed_point=True`` or a `take` that
    makes the problem of some systems by this function.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from implicitsolve import distributed
    >>> def bratu(part, u):  # u'' + 3 exp(u) = 0 with u = 0 at both ends
    ...     ends = (1 - part.before, 1 - part.after)
    ...     u = np.pad(u, (ends, (0, 0)))
    ...     return u[2:] - 2 * u[1:-1] + u[:-2] + 3 * np.exp(u[1:-1]) / (part.length + 1) ** 2
    >>> def program(comm):
    ...     problem = distributed.problem(comm, bratu, length=100)
    ...     x0 = distributed.split(comm, np.zeros((100, 1)), axis=0)
    ...     result = ims.root(problem, x0, method="newton-krylov").raise_for_status()
    ...     return float(result.x.gathered().max().round(4))
    >>> distributed.threads(2, program)
    [0.6401, 0.6401]
    """
    check_communicator("distributed.problem", comm)
    check_limit("distributed.problem", "length", length, least=2)  # with one block the partitioned axis is ambiguous
    check_limit("distributed.problem", "batch_ndim", batch_ndim)
    structure = BlockBanded(lower, upper, block_size, periodic=periodic)
    structure.check_circle(length)
    counts = layout(length, comm.size)
    if min(counts) < max(lower, upper, 1):
        raise ValueError(
            f"distributed.problem: every rank must own at least max(lower, upper, 1) = {max(lower, upper, 1)} blocks, "
            f"got `length` = {length} for {comm.size} ranks: use fewer ranks"
        )
    given = {
        "residual": residual,
        "jvp": jvp,
        "vjp": vjp,
        "linearize": linearize,
        "blocks": blocks,
        "parameter_jvp": parameter_jvp,
        "parameter_vjp": parameter_vjp,
    }
    system = BlockSystem(comm, counts, structure, batch_ndim, given, parameters)
    return Problem(
        system.residual,
        vjp=system.vjp if jvp is None and linearize is None and vjp is not None else None,
        linearize=system.linearize if system.has_products else None,
        structure=structure,
        blocks=system.blocks,
        blocks_cost=system.blocks_cost,
        blocks_exact=blocks is not None or system.has_products,
        batch_ndim=batch_ndim,
        parameters=parameters,
        **system.parameter_products(),
        pure=True,
        name=name,
    )
