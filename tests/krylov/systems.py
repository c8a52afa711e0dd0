"""Dense systems of several kinds for the methods of the GMRES family."""

import numpy as np

from implicitsolve import GMRES, LGMRES

FAMILY = [GMRES, LGMRES]
KINDS = ["regular", "singular", "singular, consistent", "nilpotent"]


def systems(rng: np.random.Generator, kind: str, batch: int, n: int, is_complex: bool) -> tuple[np.ndarray, np.ndarray]:
    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)

    if kind == "regular":
        return random(batch, n, n) + 3 * np.eye(n), random(batch, n)
    if kind == "nilpotent":
        return np.triu(random(batch, n, n), 1), random(batch, n)
    A = random(batch, n, n // 2) @ random(batch, n // 2, n)
    return A, random(batch, n) if kind == "singular" else (A @ random(batch, n, 1))[..., 0]


def product(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (A @ v[..., None])[..., 0]


def norms_of(v: np.ndarray) -> np.ndarray:
    return np.linalg.norm(v, axis=1).astype(np.float64)
