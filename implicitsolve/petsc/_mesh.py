"""A grid whose points are partitioned across ranks in all directions, by PETSc's DMDA, and problems on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._sparse_structure import Grid, Sparse
from implicitsolve._typing import HostArray
from implicitsolve.distributed import Communicator, DistributedArray, from_local
from implicitsolve.distributed._system import LocalSystem
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.petsc._library import PETScMatrix, check_scalar, from_rows, petsc, petsc_communicator
from implicitsolve.petsc._parts import PETScPreconditioner
from implicitsolve.precondition._parts import takes_sparse
from implicitsolve.problem import Problem
from implicitsolve.stopping import check_flag, check_limit

W_CYCLES = PETScPreconditioner(options={"pc_mg_cycle_type": "w"})


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
        """Their place in the argument of its functions."""
        return tuple(slice(before, before + count) for before, count in zip(self.before, self.own_shape))

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Number of points of that argument along each axis."""
        return tuple(b + count + a for b, count, a in zip(self.before, self.own_shape, self.after))


class Mesh:
    """A grid of points with some unknowns at each, partitioned across ranks in all directions.

    Parameters
    ----------
    comm : Communicator
        `distributed.MPI` or `distributed.Serial`.
    shape : tuple of int
        Points along each of one, two or three axes.
    fields : int, optional
        Unknowns at a point. Default 1.
    width : int, optional
        How far the equations at a point reach along an axis, in points. Default 1.
    periodic : bool or tuple of bool, optional
        Whether an axis is a circle. Default False.
    box : bool, optional
        Whether the equations reach to diagonal neighbours too; without that these are not exchanged. Default False.

    Attributes
    ----------
    patch : Patch
        This rank's points.
    colors : int
        Calls of a local function that an assembly of J takes.

    Notes
    -----
    A state is a `DistributedArray` of shape ``(N,)``: each rank's run are the unknowns of its patch. `array`, `local`
    and `gathered` convert. PETSc's DMDA chooses the patches and exchanges halos, one message to each neighbour.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from implicitsolve import distributed
    >>> from implicitsolve.petsc import Mesh
    >>> def bratu(patch, u):
    ...     p = np.pad(u[..., 0], [(1 - b, 1 - a) for b, a in zip(patch.before, patch.after)])
    ...     neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    ...     own = p[1:-1, 1:-1]
    ...     return (4 * own - neighbors - 5 * np.exp(own) / 65**2)[..., None]
    >>> mesh = Mesh(distributed.Serial(), (64, 64))
    >>> result = ims.root(mesh.problem(bratu), mesh.zeros())
    >>> result.success, mesh.gathered(result.x).shape, float(mesh.gathered(result.x).max().round(4))
    (True, (64, 64, 1), 0.5566)
    """

    def __init__(
        self,
        comm: Communicator,
        shape: Sequence[int],
        *,
        fields: int = 1,
        width: int = 1,
        periodic: bool | Sequence[bool] = False,
        box: bool = False,
    ) -> None:
        if not isinstance(shape, tuple | list):
            raise TypeError(f"Mesh: `shape` must be a tuple of integers, got {shape!r}")
        shape = tuple(shape)
        if not 1 <= len(shape) <= 3:
            raise ValueError(f"Mesh: `shape` must have one, two or three axes, got {shape}")
        for points in shape:
            check_limit("Mesh", "shape", points, least=1)
        check_limit("Mesh", "fields", fields, least=1)
        check_limit("Mesh", "width", width)
        check_flag("Mesh", "box", box)
        circles: Any = (periodic,) * len(shape) if isinstance(periodic, bool) else periodic
        if not isinstance(circles, tuple | list) or len(circles) != len(shape):
            raise ValueError(f"Mesh: `periodic` must be one for each axis of {shape}, got {periodic!r}")
        library = petsc()
        kinds = [library.DM.BoundaryType.PERIODIC if circle else library.DM.BoundaryType.NONE for circle in circles]
        kind = library.DMDA.StencilType.BOX if box else library.DMDA.StencilType.STAR
        self.comm: Communicator = comm
        self.fields: int = fields
        self.width: int = width
        self.box: bool = box
        self.da: Any = library.DMDA().create(
            dim=len(shape),
            dof=fields,
            sizes=shape[::-1],  # PETSc's first axis is contiguous, NumPy's last
            boundary_type=kinds[::-1],
            stencil_type=kind,
            stencil_width=width,
            comm=petsc_communicator(comm),
        )
        first, count = (tuple(part)[::-1] for part in self.da.getCorners())
        ghost_first, ghost_count = (tuple(part)[::-1] for part in self.da.getGhostCorners())
        self.patch: Patch = Patch(
            first=first,
            stop=tuple(f + c for f, c in zip(first, count)),
            before=tuple(f - g for f, g in zip(first, ghost_first)),
            after=tuple(g + gc - f - c for f, c, g, gc in zip(first, count, ghost_first, ghost_count)),
            shape=shape,
        )
        self._global, self._ghosted = self.da.createGlobalVec(), self.da.createLocalVec()
        self._counts = from_local(comm, np.zeros(math.prod(count) * fields), axis=0).counts
        self._assembler: SparseAssembler | None = None

    @property
    def colors(self) -> int:
        """Calls of a local function that an assembly of J takes."""
        return self._coloring().cost

    # States

    def array(self, local: Any) -> DistributedArray:
        """A state from this rank's points, ``(*patch.own_shape, fields)``."""
        local = np.asarray(local, dtype=np.result_type(np.asarray(local).dtype, np.float64))
        check_scalar("Mesh", local.dtype)
        expected = (*self.patch.own_shape, self.fields)
        if local.shape != expected:
            raise ValueError(f"Mesh.array: `local` must have shape {expected} on this rank, got {local.shape}")
        return from_local(self.comm, local.reshape(-1).copy(), axis=0, counts=self._counts)

    def zeros(self) -> DistributedArray:
        """A state of zeros."""
        return self.array(np.zeros((*self.patch.own_shape, self.fields)))

    def split(self, whole: Any) -> DistributedArray:
        """A state from the whole, ``(*shape, fields)``, that every rank has."""
        places = tuple(slice(first, stop) for first, stop in zip(self.patch.first, self.patch.stop))
        return self.array(np.asarray(whole)[places])

    def local(self, x: DistributedArray) -> HostArray:
        """Return this rank's points of a state, ``(*patch.own_shape, fields)``: a view."""
        return x.local.reshape(*self.patch.own_shape, self.fields)

    def gathered(self, x: DistributedArray) -> HostArray:
        """The whole of a state on every rank, ``(*shape, fields)``."""
        natural = self.da.createNaturalVec()
        self._global.setArray(x.local)
        self.da.globalToNatural(self._global, natural)
        scatter, whole = petsc().Scatter.toAll(natural)
        scatter.scatter(natural, whole)
        values = whole.getArray().copy().reshape(*self.patch.shape, self.fields)
        for part in (natural, scatter, whole):
            part.destroy()
        return values

    # Problems

    def problem(
        self,
        residual: Callable[..., Any],
        *,
        jvp: Callable[..., Any] | None = None,
        inverse: Any = None,
        parameters: Mapping[str, Any] | None = None,
        parameter_jvp: Callable[..., Any] | None = None,
        parameter_vjp: Callable[..., Any] | None = None,
        name: str = "",
    ) -> Problem:
        """Make a problem on the grid, from functions that each rank calls on its own points.

        Parameters
        ----------
        residual : callable
            ``residual(patch, x)`` returns F at the own points, ``(*patch.own_shape, fields)``, for x at these and the
            points around them, ``(*patch.seen_shape, fields)``.
        jvp : callable, optional
            ``jvp(patch, x, v)`` returns J v at the own points; v has the shape of x. Without it J is assembled from
            differences of the residual.
        inverse : PETScPreconditioner or PETScLU, optional
            What Krylov methods use with the assembled J. Default: W-cycles of PETSc's algebraic multigrid, whose
            iterations grow less with the grid than those of V-cycles: for a Brusselator of 64^2 points 11 in place of
            12, of 512^2 points 13 in place of 17. hypre's multigrid takes 7 for both.
        parameters, parameter_jvp, parameter_vjp : optional
            As of `distributed.problem`.
        name : str, optional
            What traces call it.

        Returns
        -------
        Problem
            For `root`, `pull_back` and `push_forward` on states of this mesh. J is assembled at every Newton step, each
            rank its own rows by `colors` calls of its own function, without messages; `Counts` has them as one
            linearization.

        Raises
        ------
        TypeError
            If a function is not callable, or `inverse` is no settings of PETSc's.
        """
        inverse = W_CYCLES if inverse is None else inverse
        if not takes_sparse(inverse):
            raise TypeError(f"Mesh.problem: `inverse` must be PETScPreconditioner() or PETScLU(), got {inverse!r}")
        given = {"residual": residual, "jvp": jvp, "parameter_jvp": parameter_jvp, "parameter_vjp": parameter_vjp}
        system = _MeshSystem(self, given, parameters, inverse)
        return Problem(
            system.residual,
            jac=system.jacobian,
            structure="none",
            parameters=parameters,
            **system.parameter_products(),
            pure=True,
            name=name,
        )

    # The pattern of J

    def _own_places(self) -> HostArray:
        """The own unknowns among those that the functions get."""
        seen = np.arange(int(np.prod(self.patch.seen_shape)) * self.fields).reshape(*self.patch.seen_shape, self.fields)
        return seen[self.patch.own].reshape(-1)

    def _coloring(self) -> SparseAssembler:
        """The assembler of the own rows, as a square matrix on the points that the functions get."""
        if self._assembler is None:
            pattern = self._grid().sparse
            own = np.isin(pattern.indices, self._own_places())
            pattern = Sparse((pattern.indices[own], pattern.columns[own]), unknowns=pattern.unknowns)
            self._assembler = SparseAssembler(pattern, colors=self._colors())
        return self._assembler

    def _grid(self) -> Grid:
        """The stencil on the points that the functions get."""
        reach: Any = self.width
        if self.box:
            reach = list(itertools.product(range(-self.width, self.width + 1), repeat=len(self.patch.shape)))
        return Grid(shape=self.patch.seen_shape, stencil=reach, fields=self.fields, fields_last=True)

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


class _MeshSystem(LocalSystem):
    """F and J on the states of a mesh."""

    def __init__(
        self, mesh: Mesh, given: Mapping[str, Any], parameters: Mapping[str, Any] | None, inverse: Any
    ) -> None:
        super().__init__("Mesh.problem", mesh.comm, mesh.patch, 0, given, parameters)
        self.mesh = mesh
        self.inverse = inverse

    def with_halo(self, x: DistributedArray) -> HostArray:
        """A state at the own points and those around them. One message to each neighbour."""
        mesh = self.mesh
        if not isinstance(x, DistributedArray) or x.ndim != 1 or not mesh._counts.is_same(x.counts):
            raise ValueError(f"a problem on a mesh needs states of `Mesh.array`, split by {mesh._counts}, got {x!r}")
        mesh._global.setArray(x.local)
        mesh.da.globalToLocal(mesh._global, mesh._ghosted)
        return mesh._ghosted.getArray().copy().reshape(*mesh.patch.seen_shape, mesh.fields)

    def whole(self, local: HostArray) -> DistributedArray:
        """A state from the own points, of any shape."""
        return DistributedArray(local.reshape(-1), 0, self.comm, self.mesh._counts)

    def own_shape(self, with_halo: HostArray) -> tuple[int, ...]:
        """Shape of the own points."""
        return (*self.mesh.patch.own_shape, self.mesh.fields)

    def jacobian(self, x: DistributedArray) -> PETScMatrix:
        """J(x), assembled by colors. One message to each neighbour, and those that build the matrix."""
        mesh, with_halo = self.mesh, self.with_halo(x)
        shape, own, assembler = self.own_shape(with_halo), mesh._own_places(), mesh._coloring()
        flat = with_halo.reshape(1, -1)

        def square(name: str, *arguments: HostArray) -> HostArray:
            rows = np.zeros_like(flat)
            copies = (part.reshape(with_halo.shape).copy() for part in arguments)
            rows[0, own] = self.array(name, shape, *copies).reshape(-1)
            return rows

        if self.has("jvp"):
            A = assembler.products(lambda v: square("jvp", flat, v), flat)
        else:
            A = assembler.differences(lambda y: square("residual", y), flat, square("residual", flat))
        place = np.full(flat.size, -1)
        place[own] = np.arange(own.size)
        columns = mesh.da.getLGMap().getIndices()[A.structure.columns]
        entries = A.data[0], (place[A.structure.indices], columns)
        rows = scipy.sparse.csr_array(entries, shape=(own.size, x.size))
        mat = from_rows(rows, mesh.da.getComm(), mesh.fields)
        return PETScMatrix(mat, mesh.zeros(), inverse=self.inverse)
