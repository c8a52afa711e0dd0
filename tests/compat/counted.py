"""A cubic system that counts its calls."""

import numpy as np

N = 10
RNG = np.random.default_rng(5)
A = np.eye(N) + 0.4 * RNG.standard_normal((N, N)) / np.sqrt(N)
B = RNG.standard_normal(N)


class Counted:
    """F(x) = A x + 0.1 x^3 - b, which counts its calls and keeps the shapes it saw."""

    def __init__(self, matrix=A, right=B):
        self.matrix, self.right, self.calls, self.shapes = matrix, right, 0, set()

    def __call__(self, x):
        self.calls += 1
        self.shapes.add(x.shape)
        flat = np.reshape(x, -1)
        return np.reshape(self.matrix @ flat + 0.1 * flat**3 - self.right, x.shape)

    def jacobian(self, x):
        return self.matrix + np.diag(0.3 * np.reshape(x, -1) ** 2)

    def norm(self, x):
        return np.max(np.abs(Counted(self.matrix, self.right)(x)))


ZERO = np.zeros(N)
