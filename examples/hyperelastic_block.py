"""A block of rubber between two plates, compressed by 30 % and then sheared: a bridge bearing, by finite elements.

Displacements u of a compressible neo-Hookean solid [1] on hexahedra with trilinear functions and eight points of
integration. With the deformation gradient F and its determinant D, the energy per volume is

    mu / 2 (tr(F^T F) - 3 - 2 log D) + lambda / 2 (log D)^2.

[1] J. Bonet and R. D. Wood, Nonlinear Continuum Mechanics for Finite Element Analysis, 2nd ed. (2008), section 6.4.3.
See docs/examples/hyperelastic_block.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sps

import implicitsolve as ims

SHEAR_MODULUS, POISSON = 0.4, 0.45  # MPa, -: natural rubber, a little softer in volume
LAME = 2 * SHEAR_MODULUS * POISSON / (1 - 2 * POISSON)
CORNERS = np.array([(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)])


@dataclass(frozen=True)
class Block:
    """A block of 60 x 60 x 30 mm in `cells` by `cells` by half as many hexahedra, bonded to a plate below and above."""

    cells: int = 8

    @cached_property
    def nodes(self) -> Any:
        """Coordinates in mm, (nodes, 3)."""
        n = self.cells
        axes = np.linspace(0, 60, n + 1), np.linspace(0, 60, n + 1), np.linspace(0, 30, n // 2 + 1)
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)

    @cached_property
    def elements(self) -> Any:
        """Nodes of each hexahedron, (elements, 8)."""
        n = self.cells
        number = np.arange((n + 1) ** 2 * (n // 2 + 1)).reshape(n + 1, n + 1, n // 2 + 1)
        ends = [number[a : a + n, b : b + n, c : c + n // 2].ravel() for a, b, c in CORNERS]
        return np.stack(ends, axis=1)

    @cached_property
    def slopes(self) -> tuple[Any, float]:
        """Derivatives of the functions at the points of integration, (points, 8, 3), and the weight of a point."""
        size = self.nodes[self.elements[0, -1]] - self.nodes[self.elements[0, 0]]
        points = 0.5 + (CORNERS - 0.5) / np.sqrt(3)
        factors = np.where(CORNERS, points[:, None], 1 - points[:, None])  # (points, functions, axes)
        signs = np.where(CORNERS, 1.0, -1.0) / size
        each = [signs[:, i] * np.prod(np.delete(factors, i, axis=2), axis=2) for i in range(3)]
        return np.stack(each, axis=2), float(np.prod(size)) / 8

    @cached_property
    def held(self) -> tuple[Any, Any]:
        """Nodes on the lower and on the upper plate."""
        z = self.nodes[:, 2]
        return np.flatnonzero(z == 0), np.flatnonzero(z == 30)

    def gradients(self, u: Any) -> tuple[Any, Any, Any]:
        """F at each point, (elements, points, 3, 3), its inverse, and the logarithm of its determinant."""
        F = np.eye(3) + np.einsum("eai,paj->epij", u[self.elements], self.slopes[0])
        return F, np.linalg.inv(F), np.log(np.linalg.det(F))

    def forces(self, u: Any) -> Any:
        """Forces of the solid on its nodes, in N, (nodes, 3)."""
        F, inverse, log = self.gradients(u)
        stress = SHEAR_MODULUS * F + (LAME * log - SHEAR_MODULUS)[..., None, None] * np.swapaxes(inverse, 2, 3)
        of_elements = self.slopes[1] * np.einsum("epij,paj->eai", stress, self.slopes[0])
        total = np.zeros_like(u)
        np.add.at(total, self.elements, of_elements)
        return total

    def equations(self, u: Any, drop: float, shift: float) -> Any:
        """F(u): no force on a free node; the plate above is moved down and sideways, in mm."""
        F = self.forces(u) / SHEAR_MODULUS
        for nodes, where in zip(self.held, ([0, 0, 0], [shift, 0, -drop]), strict=True):
            F[nodes] = u[nodes] - where
        return F

    def jacobian(self, u: Any, *_: float) -> Any:
        """The tangent stiffness, sparse, with rows of the identity for nodes on the plates."""
        _, inverse, log = self.gradients(u)
        pushed = np.einsum("paj,epji->epai", self.slopes[0], inverse)  # of the functions, by the deformed coordinates
        first = SHEAR_MODULUS * np.einsum("paj,pbj->pab", self.slopes[0], self.slopes[0]).sum(0)
        K = LAME * np.einsum("epai,epbj->eaibj", pushed, pushed)
        K += np.einsum("ep,epaj,epbi->eaibj", SHEAR_MODULUS - LAME * log, pushed, pushed)
        K += np.einsum("ab,ij->aibj", first, np.eye(3))
        places = (3 * self.elements[:, :, None] + np.arange(3)).reshape(len(self.elements), 24)
        rows, columns = np.repeat(places, 24, axis=1), np.tile(places, 24)
        values = K.ravel() * self.slopes[1] / SHEAR_MODULUS
        free = np.ones(u.shape)
        free[np.concatenate(self.held)] = 0
        A = sps.coo_array((values, (rows.ravel(), columns.ravel())), shape=(u.size, u.size)).tocsr()
        return sps.diags_array(free.ravel()) @ A + sps.diags_array(1 - free.ravel())

    def load(self, steps: int) -> list[State]:
        """Compress by 9 mm, then shear by 20 mm: the states behind each step, the start of each the one before."""
        parts = np.linspace(0, 1, steps + 1)[1:]
        path = [*((9 * part, 0.0) for part in parts), *((9.0, 20 * part) for part in parts)]
        states = [State(0.0, 0.0, np.zeros(self.nodes.shape), np.zeros(3), 0)]
        for drop, shift in path:
            result = ims.root(self.equations, states[-1].u, args=(drop, shift), jac=self.jacobian).raise_for_status()
            force = 1e-3 * self.forces(result.x)[self.held[1]].sum(0)
            states.append(State(drop, shift, result.x, force, result.iterations))
        return states


@dataclass(frozen=True)
class State:
    """How far the upper plate is down and sideways in mm, the displacements, the force on it in kN, Newton's steps."""

    drop: float
    shift: float
    u: Any
    force: Any
    iterations: int


def main(arguments: list[str] | None = None) -> None:
    """Load the block, and print the forces."""
    parser = argparse.ArgumentParser(description="A block of rubber between two plates.")
    parser.add_argument("--cells", type=int, default=8, help="hexahedra along each long side, an even number")
    parser.add_argument("--steps", type=int, default=5, help="steps of compression, and as many of shear")
    parser.add_argument("--figure", type=Path, help="file for a picture")
    options = parser.parse_args(arguments)
    block = Block(options.cells)
    states = block.load(options.steps)
    print(f"{states[0].u.size} unknowns, {len(block.elements)} hexahedra")
    for state in states[1:]:
        print(f"{state.drop:4.1f} mm down, {state.shift:4.1f} mm sideways: {-state.force[2]:.3f} kN and", end=" ")
        print(f"{state.force[0]:.3f} kN, {state.iterations} steps of Newton's method")
    if options.figure:
        draw(options.figure, block, states)


def draw(path: Path, block: Block, states: list[State]) -> None:
    """The deformed block, and forces over displacements."""
    import matplotlib.pyplot as plt
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    figure = plt.figure(figsize=(10, 3.6), layout="constrained")
    places, height = block.nodes + states[-1].u, 30 - 9
    sides = [[0, 2, 3, 1], [4, 6, 7, 5], [0, 4, 5, 1], [2, 6, 7, 3], [1, 3, 7, 5]]
    faces = np.concatenate([block.elements[:, side] for side in sides])
    on_side = [np.all(block.nodes[faces][..., axis] == end, axis=1) for axis, end in ((0, 60), (1, 0), (2, 30))]
    shown = places[faces[np.any(on_side, axis=0)]]
    left: Any = figure.add_subplot(1, 2, 1, projection="3d")
    colors = plt.get_cmap("viridis")(shown[..., 2].mean(1) / height)
    left.add_collection3d(Poly3DCollection(shown, facecolors=colors, edgecolors="k", linewidths=0.4))
    left.set(
        xlim=(-5, 85), ylim=(-5, 65), zlim=(0, 30), xlabel="x, mm", ylabel="y, mm", zlabel="z, mm", zticks=(0, 15, 30)
    )
    left.set_box_aspect((90, 70, 30))
    left.view_init(20, -50)
    right = figure.add_subplot(1, 2, 2)
    steps = len(states) // 2
    down, aside = states[: steps + 1], states[steps:]
    right.plot([s.drop for s in down], [-s.force[2] for s in down], "o-", label="down, without shear")
    right.plot([s.shift for s in aside], [s.force[0] for s in aside], "s-", label="sideways, compressed by 9 mm")
    right.set(xlabel="displacement of the upper plate, mm", ylabel="force, kN", xlim=(0, None), ylim=(0, None))
    right.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
