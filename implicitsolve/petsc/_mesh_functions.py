"""The caller's functions of one rank's points: what they return is checked, and their errors end all ranks."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.petsc._library import from_rows, petsc
from implicitsolve.petsc._mesh_points import MeshPoints
from implicitsolve.petsc._parts import PETScLU, PETScPreconditioner

W_CYCLES = PETScPreconditioner(options={"pc_mg_cycle_type": "w"})


class MeshFunctions:
    """F, J and the inverse that PETSc uses with J."""

    def __init__(
        self,
        mesh: MeshPoints,
        functions: Mapping[str, Callable[..., Any] | None],
        inverse: Any,
        parameters: Mapping[str, Any] | None,
        name: str,
    ) -> None:
        for key, function in functions.items():
            if not callable(function) and (function is not None or key == "residual"):
                raise TypeError(f"Mesh.problem: `{key}` must be callable, got {type(function).__name__}")
        if inverse is None:
            is_line = len(mesh.patch.shape) == 1 and PETScLU().packages(mesh.size)
            inverse = PETScLU() if is_line else W_CYCLES
        if not isinstance(inverse, PETScLU | PETScPreconditioner):
            raise TypeError(f"Mesh.problem: `inverse` must be PETScPreconditioner() or PETScLU(), got {inverse!r}")
        self.mesh: MeshPoints = mesh
        self.inverse: PETScLU | PETScPreconditioner = inverse
        self.parameters: dict[str, Any] = dict(parameters or {})
        self.name: str = name
        self._functions: Mapping[str, Any] = functions

    def residual(self, x: HostArray) -> HostArray:
        """F(x). One message to each neighbour."""
        return self._call("residual", self.mesh.with_halo(x))

    def jacobian(self, x: HostArray) -> Any:
        """J(x) as a PETSc matrix. One message to each neighbour, and those that build it."""
        mesh = self.mesh
        return from_rows(self.rows(x), mesh.comm, mesh.fields)

    def rows(self, x: HostArray) -> Any:
        """Assemble this rank's rows of J(x), SciPy's CSR, by colors. One message to each neighbour."""
        with_halo = self.mesh.with_halo(x)
        if self._functions["linearize"] is not None:
            with self._ends_all_ranks():
                _, product = self._functions["linearize"](self.mesh.patch, with_halo.copy())
            return self.mesh.rows(with_halo, lambda v: self._check("linearize", lambda: product(v)))
        if self._functions["jvp"] is not None:
            return self.mesh.rows(with_halo, lambda v: self._call("jvp", with_halo.copy(), v))
        return self.mesh.difference_rows(with_halo, lambda y: self._call("residual", y))

    def _call(self, name: str, *arguments: Any) -> HostArray:
        """What one of the functions returns at the own points."""
        return self._check(name, lambda: self._functions[name](self.mesh.patch, *arguments))

    def _check(self, name: str, function: Callable[[], Any]) -> HostArray:
        """Call a function without arguments, and check the shape of its result."""
        expected = self.mesh.state_shape
        with self._ends_all_ranks():
            value = np.asarray(function())
            if value.shape != expected:
                raise ValueError(f"Mesh.problem: `{name}` must return an array of shape {expected}, got {value.shape}")
            if value.dtype.kind not in "biuf" and np.dtype(petsc().ScalarType).kind != "c":
                raise TypeError(f"Mesh.problem: `{name}` must return real numbers, got dtype {value.dtype}")
            return value.astype(petsc().ScalarType)

    @contextmanager
    def _ends_all_ranks(self) -> Generator[None]:
        """Print an exception of one of several ranks, and end all: the others would wait for it."""
        try:
            yield
        except Exception as error:
            if self.mesh.size > 1:
                text = "".join(traceback.format_exception(error))
                sys.stderr.write("".join(f"[rank {self.mesh.rank}] {line}\n" for line in text.splitlines()))
                sys.stderr.flush()
                self.mesh.comm.tompi4py().Abort(1)
            raise

    def linear_options(self) -> dict[str, Any]:
        """PETSc's options of linear solves: GMRES with the inverse from the right, whose residual is the true one."""
        right = {"ksp_type": "gmres", "ksp_pc_side": "right"}
        return right | self.inverse.pc_options(self.mesh.size)
