r"""
Replace SciPy's newton_krylov
=============================

You will learn how to solve a nonlinear system that you solve with :func:`scipy.optimize.newton_krylov` today: by a
changed import, then with an exact Jacobian product, and with a result that says how the solve went. Reading takes ten
minutes, running a few seconds.

The problem is Bratu's in two dimensions, a model of combustion: find the temperature :math:`u` of a square plate
whose edge is kept at 0,

.. math:: \Delta u + \lambda \mathrm{e}^u = 0 .

It has two solutions for :math:`\lambda < 6.808`, and none beyond. We take :math:`\lambda = 6` on 60 × 60 inner
points: 3600 equations.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize

import implicitsolve as ims

points = 60
h = 1 / (points + 1)
start = np.zeros((points, points))


def laplacian(u):
    p = np.pad(u, 1)
    return (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u) / h**2


def residual(u, strength=6.0):
    return laplacian(u) + strength * np.exp(u)


# %%
# Change the import
# -----------------
# :func:`implicitsolve.newton_krylov` takes every argument of SciPy's function, and each means the same. So the only
# change is where the name comes from. To compare the two we count the evaluations of the residual, and note its norm
# after each step with ``callback``, which both of them have.


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def run(newton_krylov):
    counted, history = Counted(residual), [(0, np.abs(residual(start)).max())]
    began = time.perf_counter()
    u = newton_krylov(
        counted, start, f_tol=1e-8, callback=lambda x, F: history.append((counted.calls, np.abs(F).max()))
    )
    return u, counted.calls, time.perf_counter() - began, np.array(history)


u_scipy, calls_scipy, seconds_scipy, history_scipy = run(scipy.optimize.newton_krylov)
u, calls, seconds, _ = run(ims.newton_krylov)

print(f"SciPy:         {calls_scipy} evaluations, {seconds_scipy:.2f} s")
print(f"implicitsolve: {calls} evaluations, {seconds:.2f} s")
print(f"largest difference of the solutions: {np.abs(u - u_scipy).max():.1e}")

# %%
# Both find the same solution. Ours takes a twelfth of the evaluations: in 13 of them it finds that an equation involves
# at most five unknowns, and it then assembles and factors the Jacobian (:doc:`/how_to/sparse`). The more a residual
# costs, the closer the ratio of times comes to that of evaluations.
#
# Give a product
# --------------
# If the Jacobian is dense, or ``structure="none"`` disables the search as here, a Krylov method solves the linear
# systems. By default both solvers approximate its products by finite differences, each of which is an evaluation of
# the residual. The exact product with a direction :math:`v` is one line. Give it as ``jvp``, which SciPy's function
# does not have. With ``full_output`` the function returns the solution and a :class:`scipy.optimize.OptimizeResult`,
# with our own result in ``native``.


def jvp(u, v):
    return laplacian(v) + 6.0 * np.exp(u) * v


u_exact, info = ims.newton_krylov(residual, start, f_tol=1e-8, jvp=jvp, structure="none", full_output=True)
print(f"residuals {info.nfev}, products {info.njvp}, steps {info.nit}")
print(info.message)

# %%
# The residual is now evaluated once per step and once at the start. All other work is exact products, which have no
# truncation error.
#
# The native result
# -----------------
# ``info.native`` is what :func:`implicitsolve.root` returns: x, F(x), a status, counts, and a record of every step.
# ``summary`` prints it as a table: the norm of F after each step, the step length, the tolerance ``eta`` of the linear
# solve and the accuracy that it reached, its Krylov iterations, and all residuals and products.

print(info.native.summary())

# %%
# :func:`implicitsolve.diagnostics.plot_convergence` draws such records: the norm over the steps, or over their cost
# in residuals and products. SciPy's curve is drawn by hand, from the norms recorded by ``callback``.

_, plain = ims.newton_krylov(residual, start, f_tol=1e-8, full_output=True)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
image = left.imshow(u, extent=(0, 1, 0, 1), origin="lower", cmap="inferno")
left.set_title(f"temperature, at most {u.max():.3f}")
figure.colorbar(image, ax=left)
right.semilogy(*history_scipy.T, "C7x-", label="SciPy")
ours = {"implicitsolve": plain.native, "its Krylov method, with jvp": info.native}
ims.diagnostics.plot_convergence(ours, ax=right, against="products")
right.set_title("each marker is a Newton step")
plt.show()

# %%
# When there is no solution
# -------------------------
# At :math:`\lambda = 7` the plate explodes: there is no stationary temperature. By default the function then raises
# :class:`implicitsolve.NoConvergence`, which is a subclass of SciPy's exception, so that your ``except`` clauses
# still work. With ``full_output`` it does not raise, and you read the status.

with np.errstate(over="ignore"):
    _, failed = ims.newton_krylov(
        lambda u: residual(u, 7.0),
        start,
        f_tol=1e-8,
        maxiter=15,
        jvp=lambda u, v: laplacian(v) + 7.0 * np.exp(u) * v,
        full_output=True,
    )
print(failed.success, failed.native.status.name)
print(ims.diagnostics.explain(failed.native))

# %%
# Leave the interface
# -------------------
# New code can call :func:`implicitsolve.root`. It takes a :class:`implicitsolve.Problem`, which is the residual and
# whatever else you know about it, and returns the result without raising.

problem = ims.Problem(residual, jvp=jvp, name="Bratu")
result = ims.root(problem, start, stop=ims.NonlinearStop(atol=1e-8, rtol=0.0))
result.raise_for_status()
print(result.status.name, f"{result.residual_norm:.1e}", result.counts)

# %%
# What next
# ---------
# - :doc:`plot_2_give_a_jvp`: exact products, and how to find a wrong one.
# - :doc:`plot_3_declare_a_structure`: a declared structure needs no search.
# - :doc:`/reference/migration` has a table of SciPy's names and ours.
# - :doc:`/how_to/choose_a_method`, :doc:`/how_to/precondition`, :doc:`/how_to/read_a_failure`.
