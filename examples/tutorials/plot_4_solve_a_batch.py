r"""
Solve a batch, with a status for each system
============================================

You will learn how to solve many systems in one call, how to read what became of each, why some fail and what to do
with them, and how to use all cores. Reading takes fifteen minutes, running a few seconds. It needs the extra ``numba``.

The systems are small and hard: the two equations of Freudenstein and Roth,

.. math:: x + ((5 - y) y - 2) y = 13, \qquad x + ((y + 1) y - 14) y = 29,

with one solution, (5, 4). Between many starts and this solution lie points where the Jacobian is singular, and there
Newton's method has no way on.
"""

from concurrent.futures import ThreadPoolExecutor

import matplotlib.pyplot as plt
import numba
import numpy as np

import implicitsolve as ims

# %%
# One call
# --------
# The residual works on arrays: the last axis is a system's two unknowns, all axes before it index systems.
# ``batch_ndim`` is the number of these axes. Here it is two, since the systems differ only in their initial guess, and
# the initial guesses are a grid of 24 × 24 points. Each system is a full 2 × 2 one, which we declare as a structure of
# one block (:doc:`plot_3_declare_a_structure`).


def residual(x):
    a, b = x[..., 0], x[..., 1]
    return np.stack([a + ((5 - b) * b - 2) * b - 13, a + ((b + 1) * b - 14) * b - 29], axis=-1)


structure = ims.BlockBanded(lower=0, upper=0, block_size=2)
stop = ims.NonlinearStop(atol=1e-10, rtol=0.0)
horizontal, vertical = np.linspace(-10, 20, 24), np.linspace(-6, 6, 24)
starts = np.stack(np.meshgrid(horizontal, vertical), axis=-1)

problem = ims.Problem(residual, structure=structure, batch_ndim=2)
result = ims.root(problem, starts, stop=stop)
print(f"x {result.x.shape}, status {result.status.shape}")
print(f"{result.success.sum()} of {result.success.size} converged")
print(f"largest error of those: {np.abs(result.x[result.success] - [5, 4]).max():.1e}")

# %%
# A system that fails does not affect the others, and nothing is raised. Every system has its own
# :class:`implicitsolve.Status`, norm and number of steps; ``converged`` means that F was evaluated at the returned x
# and met the stopping criterion. The summary counts the statuses, and lists the worst systems.

print(result.summary())

# %%
# Why some fail
# -------------
# :func:`implicitsolve.diagnostics.explain` reports how the systems failed, where, and what to try. With the problem it
# also checks the derivatives at the worst one, and estimates the condition of its Jacobian.

print(ims.diagnostics.explain(result, problem))

# %%
# The derivatives are right, and the condition number, in its last line, is large: the Jacobian is nearly singular
# there. Here we can check that by hand. The determinant is :math:`6 y^2 - 8 y - 12`, which is zero on two lines,
# whatever x is.

lines = np.roots([6, -8, -12])
failed = ~result.success
distance = np.abs(result.x[failed][:, 1, None] - lines).min(axis=1)
print(f"singular at y = {lines.round(4)}")
print(f"failed systems that ended within 0.01 of a line: {(distance < 0.01).sum()} of {failed.sum()}")
assert (distance < 0.01).mean() > 0.95

# %%
# In the figure every point is an initial guess, on the left in the color of its status. Above the upper line all
# converge, below it many run into the lower line. On the right, :func:`implicitsolve.diagnostics.plot_convergence`
# draws a batch as a median with a band from the smallest norm to the largest, and some of the systems that failed, one
# by one: they stagnate.

above = starts[..., 1] > lines.max()
print(f"converged: {result.success[above].mean():.0%} of the starts above, {result.success[~above].mean():.0%} below")
assert result.success[above].all()

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
extent = (horizontal[0], horizontal[-1], vertical[0], vertical[-1])
for status, color in zip(np.unique(result.status), ["C0", "C2", "C1", "C4"], strict=False):
    is_here = result.status == status
    left.scatter(*starts[is_here].T, s=7, color=color, label=f"{ims.Status(status).name}: {is_here.sum()}")
left.hlines(lines, *extent[:2], color="k", linewidth=0.8)
left.plot(5, 4, "k*", markersize=12)
left.set(xlabel="x", ylabel="y", title="statuses, the solution, singular lines")
left.legend(loc="lower left", fontsize="small", framealpha=1.0)
ims.diagnostics.plot_convergence(result, ax=right)
right.set_title("convergence")
right.legend(loc="center right", fontsize="x-small")
plt.show()

# %%
# Start the rest elsewhere
# ------------------------
# Which systems failed is known, so we start those again, from other points, until none is left.

x, rng = result.x.copy(), np.random.default_rng(0)
rounds = 0
while failed.any():
    again = ims.root(
        ims.Problem(residual, structure=structure, batch_ndim=1),
        rng.uniform([-10, -6], [20, 6], size=(failed.sum(), 2)),
        stop=stop,
    )
    x[failed] = again.x
    failed[failed] = ~again.success
    rounds += 1
print(f"all solved after {rounds} more rounds; largest error {np.abs(x - [5, 4]).max():.1e}")

# %%
# :func:`implicitsolve.drivers.race` does this in one call: it takes several initial guesses per system, of which the
# first to converge wins. Skip the systems that have ended
# --------------------------------
# Systems end after different numbers of steps. ``take(indices)`` returns the problem of some systems of the flattened
# batch; with it those that have ended are left out of the evaluations once they are a quarter. These systems have no
# individual data, so the residual works for any number of them. Where they have, ``take`` selects it:
# ``data[indices]``.

evaluated = 0


def counted_residual(x):
    global evaluated
    evaluated += x[..., 0].size
    return residual(x)


for take in (None, lambda indices: ims.Problem(counted_residual, structure=structure, batch_ndim=1)):
    evaluated = 0
    batch = ims.Problem(counted_residual, structure=structure, batch_ndim=2, take=take)
    same = ims.root(batch, starts, stop=stop)
    print(f"{'without' if take is None else 'with'} take: {evaluated} evaluations of one system's residual")

# %%
# All cores
# ---------
# :func:`implicitsolve.drivers.solve_batch` divides the batch into chunks, each solved by a worker. With threads nothing
# is copied, and the GIL lets only one of them interpret at a time: they suit residuals that spend their time in NumPy
# or compiled code. ``executor=4`` starts four processes instead, for which the functions must be importable by name
# from a module, and the script needs ``if __name__ == "__main__":`` (:doc:`/how_to/batches`).

with ThreadPoolExecutor(2) as executor:
    by_threads = ims.drivers.solve_batch(batch, starts, executor=executor, stop=stop)
print(f"{by_threads.success.sum()} of {by_threads.success.size} converged, {len(by_threads.lost)} chunks lost")
print(f"{(by_threads.status != result.status).sum()} statuses differ from those above")

# %%
# A status may differ where a system passes close to a singular line: the rounding of sums depends on how many
# systems are solved together, and there the last bit decides where a step leads. A system that is reported as converged
# has converged.
#
# Compiled
# --------
# For many small systems the overhead of Python outweighs the arithmetic. :func:`implicitsolve.newton_batch` takes the
# residual of one system, compiled by Numba, and solves all of them in one compiled loop. Method and statuses are those
# of `BlockNewton`. The first call on a machine compiles the loop, which may take a minute; it is kept on disk. Here are
# 160,000 starts.


@numba.njit
def one(x, p, out):
    out[0] = x[0] + ((5 - x[1]) * x[1] - 2) * x[1] - p[0]
    out[1] = x[0] + ((x[1] + 1) * x[1] - 14) * x[1] - p[1]


many = rng.uniform([-10, -6], [20, 6], size=(160_000, 2))
compiled = ims.newton_batch(one, many, np.array([13.0, 29.0]), structure=structure, stop=stop)
converged = compiled.status == ims.Status.CONVERGED
print(f"{converged.sum()} of {converged.size} converged, after {np.median(compiled.iterations[converged]):.0f} steps")
print(f"largest error of those: {np.abs(compiled.x[converged] - [5, 4]).max():.1e}")

# %%
# What next
# ---------
# - :doc:`/how_to/read_a_failure`: every status, and what to try.
# - :doc:`/how_to/batches`: processes, clusters, what happens when a worker dies.
# - :doc:`/how_to/streaming`: races, and batches that are kept full from a stream of systems.
# - :doc:`plot_5_differentiate`: gradients have a status per system too.
