r"""
Declare a structure
===================

You will learn how to say which unknowns are coupled, what that saves, how the Jacobian's blocks are found or given,
and what happens where the declaration is wrong. Reading takes fifteen minutes, running a few seconds.

The problem: in a flat pellet an enzyme turns a substrate s into a product p, which slows the enzyme down. Both
diffuse. In the depth x, from the symmetric middle at 0 to the surface at 1,

.. math:: s'' = r, \quad p'' = -\tfrac{1}{2} r, \quad r = \frac{50\, s}{1 + s + 4 p}, \qquad
          s'(0) = p'(0) = 0, \quad s(1) = 1, \; p(1) = 0 .

On T points it has T blocks of two unknowns, and the equations of a block contain the two neighbouring blocks.
"""

import matplotlib.pyplot as plt
import numpy as np

import implicitsolve as ims

stop = ims.NonlinearStop(rtol=1e-8)
surface = np.array([[1.0, 0.0]])


def residual(y):  # y[t] = (s, p) at x = t / T
    T = y.shape[0]
    s, p = y[:, 0], y[:, 1]
    extended = np.concatenate([y[1:2], y, surface])
    rate = 50 / T**2 * s / (1 + s + 4 * p)
    return extended[2:] - 2 * y + extended[:-2] + np.stack([-rate, 0.5 * rate], axis=1)


def start(T):
    return np.tile(surface, (T, 1))


# %%
# Without a structure
# -------------------
# With the search for sparsity disabled, by ``structure="none"``, a Krylov method solves the linear systems, and each of
# its products is a residual. A product carries information only from a point to its neighbours, so a finer grid
# takes more of them.

T = 400
plain = ims.root(ims.Problem(residual, structure="none"), start(T), stop=stop)
print(f"{plain.status.name}: {plain.counts.residuals} residuals")

# %%
# With a structure
# ----------------
# :class:`implicitsolve.BlockBanded` declares how many blocks before and after its own the equations of a block contain,
# and how many unknowns a block has. The blocks are in the order of the flattened state, so y has the shape (T, 2), not
# (2, T).

structure = ims.BlockBanded(lower=1, upper=1, block_size=2)
problem = ims.Problem(residual, structure=structure)
result = ims.root(problem, start(T), stop=stop)
print(f"{result.status.name}: {result.counts.residuals} residuals")
print(f"largest difference of the solutions: {np.abs(result.x - plain.x).max():.1e}")

# %%
# With a structure :func:`implicitsolve.root` assembles the Jacobian, factors it, and reuses the factors while
# convergence is good, with Broyden updates. In the column ``calls`` of the summary, 7 is an assembly and the step after
# it; 1 is a step with a stale Jacobian.

print(result.summary())

# %%
# Coloring
# --------
# An assembly takes ``block_size * (lower + upper + 1)`` = 6 residuals, however many points there are: blocks that are
# three apart have no equation in common, so that one difference perturbs all blocks of a color at once.

print(structure.colors(10))
J = ims.jacobian(problem, result.x)
print(J)

# %%
# The number of residuals does not grow with T. With a Krylov method it does, and beyond 100 points faster than T.
# (A plain call finds this structure automatically, in a few more residuals than the declaration takes.)

sizes = [25, 50, 100, 200, 400]
large = [*sizes, 1600, 6400, 25_600]
without = [ims.root(ims.Problem(residual, structure="none"), start(T), stop=stop).counts.residuals for T in sizes]
declared = [ims.root(problem, start(T), stop=stop) for T in large]
assert all(solved.success for solved in declared)
print(f"no structure, T = {sizes}: {without} residuals")
print(f"declared, T = {large}: {[solved.counts.residuals for solved in declared]} residuals")

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
x = np.arange(T) / T
left.plot(x, result.x[:, 0], label="substrate s")
left.plot(x, result.x[:, 1], label="product p")
left.set(xlabel="depth x", ylabel="concentration")
left.legend()
colors = np.full((20, 20), np.nan)  # of the columns, where the Jacobian of 10 blocks has entries
for row in range(10):
    for column in range(max(row - 1, 0), min(row + 2, 10)):
        for unknown in range(2):
            colors[2 * row : 2 * row + 2, 2 * column + unknown] = 2 * (column % 3) + unknown
middle.imshow(colors, cmap="tab10", vmin=0, vmax=9)
middle.set(xlabel="unknowns", ylabel="equations", title="one residual for each color")
right.loglog(sizes, without, "C7s-", label="no structure")
right.loglog(large, [solved.counts.residuals for solved in declared], "C0o-", label="structure declared")
right.set(xlabel="points T", ylabel="residuals of a solve", ylim=(10, 3000))
right.legend()
plt.show()

# %%
# Give the blocks
# ---------------
# Where you can write the derivatives down, ``blocks(y)`` returns them: an array (T, 3, 2, 2) whose entry ``[t, j]``
# is the derivative of the equations t with respect to the block ``t + j - 1``. An assembly is then one call, and exact.


def blocks(y):
    T = y.shape[0]
    s, p = y[:, 0], y[:, 1]
    B = np.zeros((T, 3, 2, 2))
    B[:, 0] = B[:, 2] = np.eye(2)
    B[0, 2] = 2 * np.eye(2)  # the middle of the pellet is a mirror
    by_s, by_p = 50 / T**2 * np.array([1 + 4 * p, -4 * s]) / (1 + s + 4 * p) ** 2
    B[:, 1, 0] = np.stack([-2 - by_s, -by_p], axis=1)
    B[:, 1, 1] = np.stack([0.5 * by_s, -2 + 0.5 * by_p], axis=1)
    return B


exact = ims.Problem(residual, structure=structure, blocks=blocks)
solved = ims.root(exact, start(T), stop=stop)
print(f"{solved.status.name}: {solved.counts.residuals} residuals, {solved.counts.linearizations} calls of blocks")
print(ims.testing.check_derivatives(exact, result.x).raise_if_wrong())

# %%
# A wrong structure
# -----------------
# Suppose that we forget the block after, or that the state is stored with all s first and then all p, so that the two
# unknowns of a point are far apart. :func:`implicitsolve.testing.structure_test` compares the assembled Jacobian with a
# difference of the residual in a random direction. If the declaration is right the mismatch is below about 1e-6.


def all_s_first(z):
    return residual(z.reshape(2, -1).T).T.reshape(-1)


flat = result.x.T.reshape(-1)
declarations = {
    "right": (problem, result.x),
    "block after forgotten": (ims.Problem(residual, structure=ims.BlockBanded(1, 0, block_size=2)), result.x),
    "wrong order": (ims.Problem(all_s_first, structure=structure), flat),
    "wider than needed": (ims.Problem(residual, structure=ims.BlockBanded(2, 2, block_size=2)), result.x),
}
for name, (declared_problem, point) in declarations.items():
    mismatch = ims.testing.structure_test(declared_problem, point)
    solved = ims.root(declared_problem, start(T) if point is result.x else start(T).T.reshape(-1), stop=stop)
    print(f"{name:21} mismatch {mismatch:.0e}, {solved.status.name}, {solved.counts.residuals} residuals")

# %%
# A wrong structure costs many residuals, or makes the solve fail, and never gives a wrong answer: convergence is
# tested with the residual. Here the direct method failed, and :func:`implicitsolve.root` fell back to the Krylov
# method. A structure that is wider than needed is correct, and takes more residuals per assembly.
#
# What next
# ---------
# - :doc:`plot_5_differentiate` fits the constants of this pellet to measurements.
# - :doc:`/explanation/block_banded`: the direct methods, how the Jacobian is obtained, and periodic systems
#   (``periodic=True``).
# - :doc:`/how_to/precondition`: for blocks that are too large to be assembled.
# - :class:`implicitsolve.BlockNewton`, :class:`implicitsolve.BlockLU`, :class:`implicitsolve.CyclicReduction`.
