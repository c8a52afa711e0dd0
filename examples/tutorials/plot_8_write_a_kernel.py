r"""
Write your own kernel
=====================

You will learn what a kernel is in this library, how to register an implementation of your own from outside, how to
test it against the reference, and how to see that it is used. Reading takes twenty minutes, running a few seconds. It
needs the extra ``numba``.

The kernel is ``block_lu``, the factorization behind direct solves. Ours does one case of it, tridiagonal matrices
with blocks of one number, by the algorithm of Thomas: elimination without interchanges.
"""

import matplotlib.pyplot as plt
import numba
import numpy as np

import implicitsolve as ims
from implicitsolve.kernels import block_lu

# %%
# The contract
# ------------
# A kernel is one operation with a name, ``implicitsolve.kernels.Kernel``. It has
#
# - a ``reference``, written with the array API, which works on every library's arrays and defines what the operation
#   is;
# - implementations, which do the same faster for some arrays and sizes, each under the name of a backend;
# - ``select(like, **case)``, which the solvers call with an array and the sizes of one system, and which returns the
#   first function that supports them, or else the reference.
#
# ``case`` never includes the number of systems in a batch: a system is solved by the same code in any batch. What it
# contains for each kernel, and the arguments of the kernel's function, are in :mod:`implicitsolve.kernels`.

case = {"length": 1000, "block_size": 1, "lower": 1, "upper": 1, "pivoting": "block"}
print(block_lu, block_lu.select(np.ones(1), **case).__module__)

# %%
# ``block_lu(blocks, lower, upper, *, pivoting, overwrite)`` takes the blocks (B, T, lower + upper + 1, k, k) of B
# matrices, where ``blocks[:, t, j]`` is the block in row t and column t + j - lower; those outside the matrix are
# never read. It returns ``Factors``, an object with
#
# - ``solve(b, adjoint=False)`` for b of shape (B, T, k, K), NaN for a singular system,
# - ``singular``, the first row with a pivot that is zero or not finite, -1 where there is none,
# - ``growth``, the element growth during elimination times the largest multiplier,
# - ``take(indices)``, the factors of some systems, and ``nbytes``.
#
# Growth is what makes elimination without interchanges usable: its error is about growth times the unit roundoff, and
# the caller factors a system again with interchanges where growth exceeds 16. A kernel may be fast and limited, but
# must report its limits.
#
# The arithmetic
# --------------
# Two loops for Numba: A = L U, with multipliers below the diagonal of L and pivots on that of U; and the two sweeps
# of a solve, with the factors transposed for the adjoint.


@numba.njit(error_model="numpy")
def eliminate(blocks, multipliers, pivots, singular, growth):
    B, T = blocks.shape[:2]
    for b in range(B):
        largest = arisen = size = 0.0  # of A, of the elimination, of the row of U above
        for t in range(T):
            pivot, multiplier = blocks[b, t, 1, 0, 0], 0.0
            upper = abs(blocks[b, t, 2, 0, 0]) if t < T - 1 else 0.0
            largest = max(largest, abs(pivot), upper)
            if t:
                lower = blocks[b, t, 0, 0, 0]
                largest = max(largest, abs(lower))
                multiplier = lower / pivots[b, t - 1]
                pivot -= multiplier * blocks[b, t - 1, 2, 0, 0]
            multipliers[b, t], pivots[b, t] = multiplier, pivot
            arisen = max(arisen, size * max(1.0, abs(multiplier)))
            size = max(abs(pivot), upper)
            if singular[b] < 0 and (pivot == 0 or not np.isfinite(pivot)):
                singular[b] = t
        growth[b] = max(largest, arisen, size) / largest if singular[b] < 0 else np.inf


@numba.njit(error_model="numpy")
def sweep(multipliers, pivots, upper, x, adjoint):
    B, T, K = x.shape
    for b in range(B):
        for t in range(T):
            for i in range(K):
                if not adjoint:
                    if t:
                        x[b, t, i] -= multipliers[b, t] * x[b, t - 1, i]
                else:
                    if t:
                        x[b, t, i] -= upper[b, t - 1] * x[b, t - 1, i]
                    x[b, t, i] /= pivots[b, t]
        for t in range(T - 1, -1, -1):
            for i in range(K):
                if not adjoint:
                    if t < T - 1:
                        x[b, t, i] -= upper[b, t] * x[b, t + 1, i]
                    x[b, t, i] /= pivots[b, t]
                elif t < T - 1:
                    x[b, t, i] -= multipliers[b, t + 1] * x[b, t + 1, i]


# %%
# The factors, and the function that makes them. It counts its calls, for later.


class ThomasFactors:
    def __init__(self, multipliers, pivots, upper, singular, growth):
        self.multipliers, self.pivots, self.upper = multipliers, pivots, upper
        self.singular, self.growth = singular, growth

    @property
    def nbytes(self):
        return self.multipliers.nbytes + self.pivots.nbytes + self.upper.nbytes

    def solve(self, b, adjoint=False):
        x = b[:, :, 0, :].copy()
        sweep(self.multipliers, self.pivots, self.upper, x, adjoint)
        x[self.singular >= 0] = np.nan
        return x[:, :, None, :]

    def take(self, indices):
        parts = self.multipliers, self.pivots, self.upper, self.singular, self.growth
        return ThomasFactors(*(part[indices] for part in parts))


calls = 0


def thomas(blocks, lower, upper, *, pivoting="block", overwrite=False):
    global calls
    calls += 1
    B, T = blocks.shape[:2]
    multipliers, pivots = (np.empty((B, T), blocks.dtype) for _ in range(2))
    singular, growth = np.full(B, -1), np.empty(B)
    eliminate(blocks, multipliers, pivots, singular, growth)
    return ThomasFactors(multipliers, pivots, blocks[:, :, 2, 0, 0].copy(), singular, growth)


# %%
# Register it
# -----------
# ``implement`` takes a name, the function, and ``supports``, a test of the arrays and sizes for which it may be called.
# Ours is for real NumPy arrays, tridiagonal matrices of single numbers, and without interchanges beyond a block, that
# is ``pivoting="block"``: pivoting over the band is left to others. A backend registered under a new name has priority
# over the library's, which remain for all other cases.


def supports(like, *, length, block_size, lower, upper, pivoting):
    is_real = isinstance(like, np.ndarray) and like.dtype.char in "fd"
    return is_real and block_size == lower == upper == 1 and pivoting == "block"


block_lu.implement("thomas", thomas, supports)
assert block_lu.select(np.ones(1), **case) is thomas
assert block_lu.select(np.ones(1), **{**case, "pivoting": "band"}) is not thomas
print(block_lu)

# %%
# Test it against the reference
# -----------------------------
# On random matrices: the same solutions, for A and for its adjoint, in both precisions and for several right-hand
# sides; the same growth; the same first singular row; and systems of a batch that do not affect each other.

rng = np.random.default_rng(0)
blocks = rng.standard_normal((50, 30, 3, 1, 1))
blocks[:, :, 1] += 4 * np.sign(blocks[:, :, 1])
b = rng.standard_normal((50, 30, 1, 2))
for dtype, tolerance in ((np.float64, 1e-13), (np.float32, 1e-4)):
    some, right = blocks.astype(dtype), b.astype(dtype)
    ours, reference = thomas(some, 1, 1), block_lu.reference(some, 1, 1)
    for adjoint in (False, True):
        expected = reference.solve(right, adjoint)
        error = np.abs(ours.solve(right, adjoint) - expected).max() / np.abs(expected).max()
        print(f"{np.dtype(dtype).name}, adjoint {adjoint}: differs from the reference by {error:.0e}")
        assert error < tolerance
    assert np.allclose(ours.growth, reference.growth, rtol=tolerance)
    assert np.array_equal(ours.take(np.array([3, 1])).solve(right[[3, 1]]), ours.solve(right)[[3, 1]])

singular = blocks.copy()
singular[7, 0, 1] = 0.0  # a zero pivot at once
singular[8, 4, 1] = np.nan
ours, reference = thomas(singular, 1, 1), block_lu.reference(singular, 1, 1)
assert np.array_equal(ours.singular, reference.singular)
assert np.isnan(ours.solve(b)[7:9]).all()
assert np.isfinite(ours.solve(b)[:7]).all()
print(f"singular rows of systems 7 and 8: {ours.singular[7:9]}")

# %%
# Use it
# ------
# The one-dimensional Bratu problem on 20,000 points, with its structure declared. Nothing in the call names our kernel.
# (One system with fewer than 30,000 entries in J goes to LAPACK directly, so that nothing is compiled for it.)


def bratu(u):
    h = 1 / (u.size + 1)
    return np.diff(u, n=2, prepend=0.0, append=0.0) + 3 * h**2 * np.exp(u)


problem = ims.Problem(bratu, structure=ims.BlockBanded(lower=1, upper=1))
stop = ims.NonlinearStop(atol=1e-13, rtol=0.0)
calls = 0
result = ims.root(problem, np.zeros(20_000), stop=stop)
print(f"{result.status.name} after {result.iterations} steps, {calls} factorizations by our kernel")
assert calls > 0

lapack = ims.root(problem, np.zeros(20_000), stop=stop, method=ims.BlockNewton(factor=ims.BlockLU(backend="lapack")))
print(f"with LAPACK's kernel: the solutions differ by {np.abs(result.x - lapack.x).max():.0e}")

# %%
# Why growth is part of the contract
# ----------------------------------
# Matrices with ever smaller diagonals force ever larger multipliers on an elimination without interchanges. The figure
# has the backward error of a solve, :math:`\|b - A x\| / (\|A\| \|x\| + \|b\|)` in units of roundoff, against the
# growth that our kernel reports. Used alone, its error may be as large as the growth. :class:`implicitsolve.BlockLU`
# reads the growth: up to 16 it keeps our factors, beyond it has LAPACK or Numba factor the system again, with
# interchanges over the band.

hard = rng.standard_normal((400, 100, 3, 1, 1))
hard[:, :, 1] *= 10 ** rng.uniform(-6, 1, (400, 1, 1, 1))
right = rng.standard_normal((400, 100, 1, 1))
A = ims.BlockBandedMatrix(hard, lower=1, upper=1)
factors = thomas(hard, 1, 1)


def backward_error(x):
    rest = np.abs(right - A.matmat(x.reshape(400, 100, 1)).reshape(right.shape)).max(axis=(1, 2, 3))
    size = np.abs(hard).sum(axis=2).max(axis=(1, 2, 3)) * np.abs(x).max(axis=(1, 2, 3))
    return rest / (size + np.abs(right).max(axis=(1, 2, 3))) / np.finfo(float).eps


alone = backward_error(factors.solve(right))
through_block_lu = backward_error(ims.BlockLU().factor(A).solve(right[..., 0])[..., None])
print(f"largest backward error: {alone.max():.0e} alone, {through_block_lu.max():.1f} through BlockLU")
assert through_block_lu.max() < 16

figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
axes.loglog(factors.growth, alone, "C7.", label="the kernel alone")
axes.loglog(factors.growth, through_block_lu, "C0.", label="BlockLU, which uses the kernel")
axes.axvline(16, color="k", linestyle=":", linewidth=0.8)
axes.set(xlabel="growth that the kernel reports", ylabel="backward error / rounding unit")
axes.legend()
plt.show()

# %%
# Withdraw it
# -----------
# A kernel is registered for the whole process. ``implementations`` holds them by name; deleting an entry unregisters
# it.

del block_lu.implementations["thomas"]
assert block_lu.select(np.ones(1), **case) is not thomas

# %%
# What next
# ---------
# - Your package registers its kernels when it is imported. To select by size, test in ``supports`` whether they are
#   worthwhile.
# - :doc:`/explanation/block_banded`: which kernel is chosen when, and the pivoting.
# - :doc:`/how_to/gpu`: the kernels for CuPy's arrays.
# - :doc:`/performance/index`: the measured gain of compiled kernels.
