r"""
Give exact products
===================

You will learn what exact Jacobian products change, how to share work between them, and how to find out in one call
whether yours are right. Reading takes fifteen minutes, running a few seconds.

The problem is Chandrasekhar's H-equation, from the theory of light that is scattered in an atmosphere. With the
midpoint rule on :math:`n` points :math:`\mu_i` of (0, 1) it is

.. math:: H_i - \Bigl(1 - \sum_j A_{ij} H_j\Bigr)^{-1} = 0, \qquad A_{ij} = \frac{c}{2n} \frac{\mu_i}{\mu_i + \mu_j} .

The Jacobian is dense, and all work is in products with the matrix A. We count those.
"""

import matplotlib.pyplot as plt
import numpy as np

import implicitsolve as ims

n, c = 400, 0.9999
mu = (np.arange(n) + 0.5) / n
A = 0.5 * c / n * mu[:, None] / (mu[:, None] + mu)
stop = ims.NonlinearStop(atol=1e-10, rtol=0.0)
products_with_A = 0


def times_A(h):
    global products_with_A
    products_with_A += 1
    return A @ h


def solve(problem, start):
    """Solve, and return the result with the products with A that it took."""
    global products_with_A
    products_with_A = 0
    result = ims.root(problem, start, stop=stop)
    return result, products_with_A


# %%
# Differences
# -----------
# With only the residual, a product with the Jacobian is a difference of two residuals. On this problem that works well.


def residual(h):
    return h - 1 / (1 - times_A(h))


result, work = solve(ims.Problem(residual), np.ones(n))
print(f"{result.status.name}: {result.counts.residuals} residuals, {work} products with A")

# %%
# Where differences fail
# ----------------------
# The finite-difference step is one number for all unknowns, computed from the norm of the whole vector. Suppose now
# that every second unknown is kept in a unit in which its value is :math:`10^8` times as large, as happens where a
# model has both pressures in pascal and mole fractions. A step long enough for the large ones swamps the small ones.

unit = np.where(np.arange(n) % 2 == 1, 1e8, 1.0)


def scaled_residual(u):
    return residual(u / unit)


by_differences, work_differences = solve(ims.Problem(scaled_residual), unit)
print(f"{by_differences.status.name}: {by_differences.counts.residuals} residuals, {work_differences} products with A")

# %%
# Give the product
# ----------------
# ``jvp(u, v)`` returns J(u) v. With it there are no finite differences, and units do not matter.


def jvp(u, v):
    return v / unit - times_A(v / unit) / (1 - times_A(u / unit)) ** 2


with_jvp, work_jvp = solve(ims.Problem(scaled_residual, jvp=jvp), unit)
print(f"{with_jvp.status.name}: {with_jvp.counts.residuals} residuals, {with_jvp.counts.jvps} products J v")
print(f"{work_jvp} products with A")

# %%
# Share the work
# --------------
# Our ``jvp`` computes A u again for each v. Put the work that all products at one u share into ``linearize(u)``, which
# returns F(u) and the Jacobian at u as a :class:`implicitsolve.LinearOperator`: its product, and if you have it the
# adjoint product, which gradients need (:doc:`plot_5_differentiate`). The solver calls it once per step, and also uses
# its residual.


def linearize(u):
    s = 1 / (1 - times_A(u / unit))
    return u / unit - s, ims.LinearOperator(
        lambda v: v / unit - s**2 * times_A(v / unit),
        lambda w: (w - A.T @ (s**2 * w)) / unit,
        in_shape=(n,),
    )


with_linearize, work_linearize = solve(ims.Problem(scaled_residual, linearize=linearize), unit)
print(f"{with_linearize.status.name}: {with_linearize.counts.residuals} residuals, {work_linearize} products with A")

# %%
# The figure shows both points. On the left, the relative error of a finite-difference product at the solution,
# against the step relative to the norm of u. In a direction that changes all unknowns by similar fractions of their
# values the library's step, the dotted line, is a good one. In a direction whose entries are of similar size, as those
# of Krylov methods are, it changes the small unknowns by more than their own size, and the product is wrong. On the
# right, the cost of each variant.

u = with_linearize.x
J = linearize(u)[1]
like_fractions, like_sizes = u * mu, mu
fractions = np.logspace(-17, -1, 65)


def difference_error(v):
    exact = J.matvec(v)
    lengths = fractions * np.linalg.norm(u) / np.linalg.norm(v)
    with np.errstate(all="ignore"):
        products = [(scaled_residual(u + h * v) - scaled_residual(u)) / h for h in lengths]
    return [np.linalg.norm(product - exact) / np.linalg.norm(exact) for product in products]


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.loglog(fractions, difference_error(like_fractions), label="like fractions")
left.loglog(fractions, difference_error(like_sizes), label="entries of like size")
left.axvline(np.sqrt(np.finfo(float).eps), color="k", linestyle=":", linewidth=0.8)
left.axhline(1.0, color="0.7", linewidth=0.8)
left.set(xlabel="length of the difference / length of u", ylabel="relative error of J v", ylim=(1e-9, 1e4))
left.legend()
names = ["differences", "jvp", "linearize"]
bars = right.barh(names, [work_differences, work_jvp, work_linearize], color=["C7", "C1", "C0"])
right.bar_label(bars, padding=3)
right.set(xscale="log", xlim=(10, 2e4), xlabel="products with A", title="until max|F| <= 1e-10")
right.invert_yaxis()
plt.show()

# %%
# Check them, in one call
# -----------------------
# :func:`implicitsolve.testing.check_derivatives` checks all derivatives that a problem provides: products against
# finite differences of the residual, adjoint products against products, and others where a problem has them. Its report
# prints as a table, and has ``ok``.

report = ims.testing.check_derivatives(
    ims.Problem(residual, jvp=lambda h, v: v - times_A(v) / (1 - times_A(h)) ** 2), np.ones(n)
)
print(report)
assert report.ok

# %%
# Here is a wrong one: the exponent 2 is missing.

wrong = ims.Problem(residual, jvp=lambda h, v: v - times_A(v) / (1 - times_A(h)))
report = ims.testing.check_derivatives(wrong, np.ones(n))
print(report)
assert not report.ok

# %%
# In your own tests, ``ims.testing.check_derivatives(problem, x).raise_if_wrong()`` is one line that fails with this
# table.
#
# What does the solver do with a wrong product? It never reports a wrong solution as converged, since convergence is
# tested with the residual. It takes more steps, or fails.

misled, _ = solve(wrong, np.ones(n))
print(f"right product: {result.iterations} steps, wrong product: {misled.iterations} steps, {misled.status.name}")
print(f"max|F| {misled.residual_norm:.1e}, difference of the solutions {np.abs(misled.x - result.x).max():.1e}")

# %%
# What next
# ---------
# - :doc:`plot_3_declare_a_structure`, if each equation contains only a few neighbouring unknowns.
# - :doc:`/explanation/how_it_works`: finite-difference steps, and the cost of a Newton step.
# - :doc:`/how_to/read_a_failure`: the symptoms of a wrong product.
# - :class:`implicitsolve.Problem` lists everything that a problem may provide.
