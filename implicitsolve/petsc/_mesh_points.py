"""A grid whose points are partitioned across the ranks of MPI in all directions, by PETSc's DMDA."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._typing import HostArray
from implicitsolve.errors import require
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.petsc._system import check_scalar, petsc
from implicitsolve.stopping import check_flag, check_limit
from implicitsolve.structure._grid import Grid
from implicitsolve.structure._sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Which points of a grid a rank owns, and how many around them its functions get, along each axis.

    Attributes
    ----------
    first, stop : tuple of int
        Its points are first, ..., stop - 1 along each axis.
    before, after : tuple of int
        Points of the neighbours on either side: 0 beyond the ends, unless an axis is periodic.
    shape : tuple of int
        Points of all ranks.

    Examples
    --------
    >>> from implicitsolve.petsc import Patch
    >>> patch = Patch(first=(0, 4), stop=(8, 8), before=(0, 1), after=(0, 0), shape=(8, 8))
    >>> patch.own, patch.own_shape, patch.seen_shape
    ((slice(0, 8, None), slice(1, 5, None)), (8, 4), (8, 5))
    """

    first: tuple[int, ...]
    stop: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Number of points that the rank owns along each axis."""
        return tuple(stop - first for first, stop in zip(self.first, self.stop))

    @property
    def own(self) -> tuple[slice, ...]:
        """Place of the rank's own points in the argument of its functions."""
        return tuple(slice(before, before + count) for before, count in zip(self.before, self.own_shape))

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Number of points of that argument along each axis."""
        return tuple(b + count + a for b, count, a in zip(self.before, self.own_shape, self.after))


class MeshPoints:
    """The points of a mesh: states, halos, sums, and the rows of J; `Mesh` has the parameters."""

    def __init__(
        self,
        shape: Sequence[int],
        *,
        fields: int = 1,
        width: int = 1,
        periodic: bool | Sequence[bool] = False,
        box: bool = False,
        comm: Any = None,
    ) -> None:
        circles = _check(shape, periodic)
        check_limit("Mesh", "fields", fields, least=1)
        check_limit("Mesh", "width", width)
        check_flag("Mesh", "box", box)
        library = petsc()
        kinds = [library.DM.BoundaryType.PERIODIC if circle else library.DM.BoundaryType.NONE for circle in circles]
        kind = library.DMDA.StencilType.BOX if box else library.DMDA.StencilType.STAR
        self.comm: Any = library.COMM_WORLD if comm is None else library.Comm(comm)
        self.rank: int = self.comm.getRank()
        self.size: int = self.comm.getSize()
        self.fields: int = fields
        self.width: int = width
        self.box: bool = box
        self._mpi: Any = None
        if self.size > 1:
            self._mpi = require("mpi4py.MPI", "Mesh needs mpi4py on several ranks: pip install mpi4py")
        self.da: Any = library.DMDA().create(
            dim=len(shape),
            dof=fields,
            sizes=tuple(shape)[::-1],  # PETSc's first axis is contiguous, NumPy's last
            boundary_type=kinds[::-1],
            stencil_type=kind,
            stencil_width=width,
            comm=self.comm,
        )
        first, count = (tuple(part)[::-1] for part in self.da.getCorners())
        ghost_first, ghost_count = (tuple(part)[::-1] for part in self.da.getGhostCorners())
        self.patch: Patch = Patch(
            first=first,
            stop=tuple(f + c for f, c in zip(first, count)),
            before=tuple(f - g for f, g in zip(first, ghost_first)),
            after=tuple(g + gc - f - c for f, c, g, gc in zip(first, count, ghost_first, ghost_count)),
            shape=tuple(shape),
        )
        self._global, self._ghosted = self.da.createGlobalVec(), self.da.createLocalVec()
        self._assembler: SparseAssembler | None = None

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of a state on this rank, ``(*patch.own_shape, fields)``."""
        return (*self.patch.own_shape, self.fields)

    @property
    def colors(self) -> int:
        """Calls of a local function that an assembly of J takes."""
        return self._coloring().cost

    # States

    def zeros(self) -> HostArray:
        """A state of zeros."""
        return np.zeros(self.state_shape)

    def split(self, whole: Any) -> HostArray:
        """Take this rank's points of the whole, ``(*shape, fields)``, that every rank has."""
        places = tuple(slice(first, stop) for first, stop in zip(self.patch.first, self.patch.stop))
        return np.array(np.asarray(whole)[places])

    def gathered(self, x: HostArray) -> HostArray:
        """The whole of a state on every rank, ``(*shape, fields)``."""
        natural = self.da.createNaturalVec()
        self._global.setArray(self.flat("gathered", x))
        self.da.globalToNatural(self._global, natural)
        scatter, whole = petsc().Scatter.toAll(natural)
        scatter.scatter(natural, whole)
        values = whole.getArray().copy().reshape(*self.patch.shape, self.fields)
        for part in (natural, scatter, whole):
            part.destroy()
        return values

    def with_halo(self, x: HostArray) -> HostArray:
        """A state at the own points and those around them, ``(*patch.seen_shape, fields)``."""
        self._global.setArray(self.flat("with_halo", x))
        self.da.globalToLocal(self._global, self._ghosted)
        return self._ghosted.getArray().copy().reshape(*self.patch.seen_shape, self.fields)

    def total(self, values: Any) -> HostArray:
        """The sum over the ranks of an array that each of them has, on every rank. One collective."""
        values = np.array(values, order="C")
        if self._mpi is None:
            return values
        total = np.empty_like(values)
        self.comm.tompi4py().Allreduce(values, total, op=self._mpi.SUM)
        return total

    def flat(self, name: str, x: Any) -> HostArray:
        """A state as PETSc's vectors have it; raise unless it is one."""
        x = np.asarray(x)
        check_scalar(f"Mesh: `{name}`", x.dtype)
        if x.shape != self.state_shape:
            raise ValueError(f"Mesh: `{name}` needs a state of shape {self.state_shape} on this rank, got {x.shape}")
        return x.reshape(-1)

    # The rows of J

    def rows(self, x: HostArray, product: Callable[[HostArray], HostArray]) -> Any:
        """The own rows of J at x, with halo, from products J v at the own points; SciPy's CSR, in PETSc's order."""
        flat = x.reshape(1, -1)
        A = self._coloring().products(lambda v: self._square(product(np.array(v).reshape(x.shape))), flat)
        return self._own_rows(A)

    def difference_rows(self, x: HostArray, residual: Callable[[HostArray], HostArray]) -> Any:
        """J from differences of the residual at the own points."""
        flat = x.reshape(1, -1)
        F = self._square(residual(x.copy()))
        A = self._coloring().differences(lambda y: self._square(residual(np.array(y).reshape(x.shape))), flat, F)
        return self._own_rows(A)

    def _square(self, own: HostArray) -> HostArray:
        """Values at the own points, as an array of all points that the functions get, zero around the own ones."""
        rows = np.zeros((1, int(np.prod(self.patch.seen_shape)) * self.fields), dtype=own.dtype)
        rows[0, self._own_places()] = own.reshape(-1)
        return rows

    def _own_rows(self, A: Any) -> Any:
        """The own rows of a square matrix on the points that the functions get."""
        own = self._own_places()
        place = np.full(A.structure.unknowns, -1)
        place[own] = np.arange(own.size)
        columns = self.da.getLGMap().getIndices()[A.structure.columns]
        entries = A.data[0], (place[A.structure.indices], columns)
        return scipy.sparse.csr_array(entries, shape=(own.size, self._global.getSize()))

    def _own_places(self) -> HostArray:
        """The own unknowns among those that the functions get."""
        seen = np.arange(int(np.prod(self.patch.seen_shape)) * self.fields).reshape(*self.patch.seen_shape, self.fields)
        return seen[self.patch.own].reshape(-1)

    def _coloring(self) -> SparseAssembler:
        """The assembler of the own rows, as a square matrix on the points that the functions get."""
        if self._assembler is None:
            reach: Any = self.width
            if self.box:
                reach = list(itertools.product(range(-self.width, self.width + 1), repeat=len(self.patch.shape)))
            pattern = Grid(shape=self.patch.seen_shape, stencil=reach, fields=self.fields, fields_last=True).sparse
            own = np.isin(pattern.indices, self._own_places())
            pattern = Sparse((pattern.indices[own], pattern.columns[own]), unknowns=pattern.unknowns)
            self._assembler = SparseAssembler(pattern, colors=self._colors())
        return self._assembler

    def _colors(self) -> HostArray | None:
        """Colors in closed form, as few as possible: of boxes, and of stars of width 1; else None."""
        axes = np.indices(self.patch.seen_shape)
        if self.box or len(self.patch.shape) == 1:
            n = 2 * self.width + 1
            points = sum((axis % n) * n**d for d, axis in enumerate(axes))
        elif self.width == 1:
            points = sum((d + 1) * axis for d, axis in enumerate(axes)) % (2 * len(axes) + 1)
        else:
            return None
        return (np.asarray(points)[..., None] * self.fields + np.arange(self.fields)).reshape(-1)


def _check(shape: Any, periodic: Any) -> Any:
    """Which axes are circles; raise unless the shape is that of a grid, and there is one answer for each axis."""
    if not isinstance(shape, tuple | list):
        raise TypeError(f"Mesh: `shape` must be a tuple of integers, got {shape!r}")
    if not 1 <= len(shape) <= 3:
        raise ValueError(f"Mesh: `shape` must have one, two or three axes, got {shape}")
    for points in shape:
        check_limit("Mesh", "shape", points, least=1)
    circles: Any = (periodic,) * len(shape) if isinstance(periodic, bool) else periodic
    if not isinstance(circles, tuple | list) or len(circles) != len(shape):
        raise ValueError(f"Mesh: `periodic` must be one for each axis of {tuple(shape)}, got {periodic!r}")
    return circles
