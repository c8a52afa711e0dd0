"""PartitionedLU: direct solves of block-banded systems whose block rows are partitioned across ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.direct import BlockLU, Factorization
from implicitsolve.direct._block_lu import check_matrix
from implicitsolve.direct._factorization import BlockSettings, Layout
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._kernels import OwnRows, add, adjoint, as_rows, first, last
from implicitsolve.distributed._layout import Runs
from implicitsolve.distributed._subdomains import Interfaces, Subdomain, gathered, overall
from implicitsolve.operators import BlockBandedMatrix

GROWTH_LIMIT = 1e3  # one step of refinement makes up for as much many times over


@dataclass(frozen=True, kw_only=True)
class PartitionedLU(BlockSettings):
    """LU factorization of a block-banded matrix with block rows partitioned across ranks, by partitions [1]_, [2]_.

    Every rank factors its own block rows by `BlockLU`, as a system that takes the neighbours' blocks as given. What is
    given is then found from a small system of the interfaces, which every rank solves redundantly.

    Parameters
    ----------
    pivoting : {"auto", "block", "band"}, optional
        Which rows of one rank may be exchanged; see `BlockLU`.
    refine : int, optional
        Steps of iterative refinement in each solve: a product with A, and a solve, each. Default 1, which brings the
        backward error to rounding for every `growth` up to 10^6 and more: the partition alone may lose digits that an
        elimination from end to end does not. 0 halves the work and the messages, and suits a preconditioner.
    growth_limit : float, optional
        Where a rank's own rows are singular or their growth exceeds this, they are factored once more, with mixtures
        of the neighbours' blocks and its own ones as given, and the better of both is kept. Default 1000.
    backend : {"auto", "numba", "lapack", "reference"}, optional
        Kernels for the rows of one rank; see `BlockLU`.

    Raises
    ------
    ValueError
        If a setting is not usable.
    BackendUnavailable
        If a backend that was named is not installed.

    Notes
    -----
    Communication, for blocks of k unknowns and m = (lower + upper) k:

    - `factor`: one allgather, of m^2 numbers from each rank;
    - a solve: one allgather of m numbers from each rank;
    - a step of refinement: one message to each neighbour, of lower k or upper k numbers, and a solve.

    Flops of one rank of P for a block tridiagonal matrix of T block rows:

    - `factor`: 50/3 k^3 T/P, of which 12 are for the dependence on what is given (the spikes), and 37 k^3 P for the
      interfaces;
    - a solve: 10 k^2 T/P, and 24 k^2 P.

    So P ranks are at most P / 3.6 times as fast as `BlockLU` on one in factoring, and P / 1.7 in a solve; with about
    ``(T / 2)^(1/2)`` ranks the interfaces take as long as all else. Beside the factors of `BlockLU` a rank holds its
    spikes, T/P k m numbers, and the interfaces' factors, about 4 m^2 numbers for each.

    The growth that is reported is that of the ranks' own rows times the largest entry of the spikes, times that of the
    interfaces: in some thousand random matrices a solve without refinement had at most 1.2 times this scaled residual.

    A rank's rows can be a singular system though A is regular: a tridiagonal matrix with zeros in its diagonal is one,
    if their number is odd. With mixtures (random ones, always the same) no nonsingular matrix was found for which they
    are singular, if `lower` and `upper` are not 0. A triangular band needs none. What remains is a circle with
    one-sided couplings, for example a cyclic shift, for which the status is SINGULAR.

    Solutions depend on the number of ranks within rounding, and not on anything else.

    References
    ----------
    .. [1] E. Polizzi and A. H. Sameh, "A parallel hybrid banded system solver: the SPIKE algorithm", Parallel Comput.
           32 (2006) 177-194.
    .. [2] S. J. Wright, "Stable parallel algorithms for two-point boundary value problems", SIAM J. Sci. Stat. Comput.
           13 (1992) 742-764: why the plain partition may be unstable where A is not.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import BlockBandedMatrix, distributed
    >>> second_difference = np.broadcast_to(np.array([-1.0, 2.0, -1.0])[:, None, None], (6, 3, 1, 1))
    >>> def program(comm):
    ...     A = BlockBandedMatrix(distributed.split(comm, second_difference, axis=0), lower=1, upper=1)
    ...     b = distributed.split(comm, np.array([1.0, 0.0, 0.0, 0.0, 0.0, 1.0]), axis=0)
    ...     return distributed.PartitionedLU().factor(A).solve(b).local.round(12)
    >>> distributed.threads(2, program)
    [array([1., 1., 1.]), array([1., 1., 1.])]
    """

    refine: int = 1
    growth_limit: float = GROWTH_LIMIT

    def factor(self, A: BlockBandedMatrix, *, overwrite: bool = False) -> Factorization:
        """Factor A: a status for each system, the same on every rank, and no exception for a singular one.

        Parameters
        ----------
        A : BlockBandedMatrix
            One system or a batch, whose blocks are a `DistributedArray` split along the block rows. Every rank must
            have at least max(lower, upper) of them. A matrix on NumPy arrays is factored by `BlockLU`.
        overwrite : bool, optional
            Saves nothing here.

        Returns
        -------
        Factorization
            The inverse, for vectors split as A is. `singular_block` counts the blocks of the whole matrix; `nbytes`
            is what this rank holds.
        """
        check_matrix("PartitionedLU", A)
        blocks: Any = A.blocks
        if not isinstance(blocks, DistributedArray):
            return BlockLU(pivoting=self.pivoting, refine=self.refine, backend=self.backend).factor(A)
        return Factorization(A, self.factors(A), Layout(A.lower, A.upper), refine=self.refine)

    @classmethod
    def of(cls, settings: BlockLU) -> PartitionedLU:
        """The direct method with the settings of `BlockLU`."""
        return cls(
            refine=settings.refine,
            growth_limit=settings.growth_limit,
            pivoting=settings.pivoting,
            backend=settings.backend,
        )

    def factors(self, A: BlockBandedMatrix) -> PartitionedFactors:
        """Factor A, whose blocks are partitioned across ranks: what `factor` keeps."""
        blocks: Any = A.blocks
        rows = OwnRows.of("PartitionedLU.factor", blocks, A.lower, A.periodic)
        comm, counts, k, first_blocks = rows.comm, blocks.counts, A.block_size, np.asarray(blocks.counts.starts)
        subdomain = Subdomain.stable(rows, BlockLU(pivoting=self.pivoting, backend=self.backend), self.growth_limit)
        block = np.where(subdomain.singular >= 0, first_blocks[comm.rank] + subdomain.singular, np.inf)
        found = np.stack([block, subdomain.growth, subdomain.mixed], axis=1)
        if rows.couples:
            reach = A.lower * k, A.upper * k
            between = Interfaces.of(comm, reach, A.periodic, _tips(subdomain, rows), found, first_blocks)
            found = between.found
        else:
            between, found = None, overall(gathered(comm, found)[0])
        return PartitionedFactors(comm, counts, (A.lower, A.upper), subdomain, between, found)


@dataclass(eq=False)
class PartitionedFactors:
    """What `PartitionedLU` keeps: this rank's rows factored, and the system of all interfaces."""

    comm: Communicator
    counts: Runs  # block rows of each rank
    bands: tuple[int, int]  # `lower` and `upper`
    subdomain: Subdomain
    between: Interfaces | None  # None where no rank depends on another
    found: HostArray  # (B, 2): where each system is singular (else infinite), and its growth; the same on every rank
    singular: HostArray = field(init=False)
    growth: HostArray = field(init=False)

    def __post_init__(self) -> None:
        """Name what was found as all `Factors` do."""
        self.singular = np.where(np.isfinite(self.found[:, 0]), self.found[:, 0], -1).astype(int)
        self.growth = self.found[:, 1]

    @property
    def nbytes(self) -> int:
        """Bytes that this rank holds."""
        return self.subdomain.nbytes + (0 if self.between is None else self.between.nbytes)

    def take(self, indices: Indices) -> PartitionedFactors:
        between = None if self.between is None else self.between.take(indices)
        parts = self.subdomain.take(indices), between, self.found[indices]
        return PartitionedFactors(self.comm, self.counts, self.bands, *parts)

    def solve(self, b: DistributedArray, adjoint: bool = False) -> DistributedArray:
        """Return A^-1 b or A^-H b for b (B, T, k, K), split as A is."""
        own = _own_part(b, self.comm, self.counts)
        with np.errstate(all="ignore"):
            x = self._solve_adjoint(own) if adjoint else self._solve(own)
        x[self.singular >= 0] = np.nan
        return DistributedArray(x, 1, self.comm, self.counts)

    def _solve(self, f: HostArray) -> HostArray:
        """Solve the own rows, find what they take as given, and add what follows from it."""
        x, (lower, upper) = self.subdomain.solve(f), self.bands
        if self.between is not None:
            given = self.between.given(np.concatenate([as_rows(first(x, upper)), as_rows(last(x, lower))], axis=1))
            add(x, -(self.subdomain.spikes @ given[:, self.subdomain.columns]))
        return x

    def _solve_adjoint(self, f: HostArray) -> HostArray:
        """The same steps, transposed, in reverse."""
        subdomain, (lower, upper) = self.subdomain, self.bands
        if self.between is not None:
            given = np.zeros((f.shape[0], (lower + upper) * f.shape[2], f.shape[3]), dtype=f.dtype)
            given[:, subdomain.columns] = -(adjoint(subdomain.spikes) @ as_rows(f))
            to_first, to_last = self.between.tips(given)
            f = f.copy()
            add(first(f, upper), to_first)
            add(last(f, lower), to_last)
        return subdomain.solve(f, adjoint=True)


def _own_part(b: Any, comm: Communicator, counts: Runs) -> HostArray:
    """The blocks of b (B, T, k, K) that are on this rank."""
    if comm.size == 1:
        return b.local
    if b.axis is None:
        start = counts.starts[comm.rank]
        return b.local[:, start : start + counts[comm.rank]]
    if b.axis != 1 or tuple(b.counts) != tuple(counts):
        raise ValueError(
            f"PartitionedLU: the right-hand side must be split as the matrix is, {counts} along its blocks, got "
            f"{b.counts} along axis {b.axis}"
        )
    return b.local


def _tips(subdomain: Subdomain, rows: OwnRows) -> HostArray:
    """First and last rows of the spikes with all their columns, (B, (upper + lower) k, (lower + upper) k)."""
    B, _, _, k, _ = rows.blocks.shape
    m = (rows.lower + rows.upper) * k
    spikes, u = subdomain.spikes, rows.upper * k
    tips = np.zeros((B, m, m), dtype=spikes.dtype)
    tips[:, :u, subdomain.columns] = spikes[:, :u]
    tips[:, u:, subdomain.columns] = spikes[:, spikes.shape[1] - rows.lower * k :]
    return tips
