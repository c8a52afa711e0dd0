r"""
Differentiate through a solution
================================

You will learn how to compute derivatives of a solution by the parameters of its equations, in both directions, and
how to fit a boundary value problem to measurements with them. Reading takes fifteen minutes, running a few seconds.

The problem is the pellet of :doc:`plot_3_declare_a_structure`: an enzyme turns a substrate s into a product p, which
slows it down. In the depth x, from the symmetric middle at 0 to the surface at 1,

.. math:: s'' = r, \quad p'' = -\tfrac{1}{2} r, \quad r = \frac{V s}{1 + s + K p} .

How fast the enzyme works, V, and how strongly the product slows it down, K, are not known. Measured were
concentrations at twelve depths.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize

import implicitsolve as ims

T = 200
surface = np.array([[1.0, 0.0]])
stop = ims.NonlinearStop(atol=1e-14, rtol=0.0)

# %%
# The parameters of a problem
# ---------------------------
# With the implicit function theorem a derivative of the solution takes one linear system with the Jacobian. For it the
# solver needs the dependence of F on the parameters: ``parameters`` by name, ``parameter_vjp`` for reverse mode, and
# ``parameter_jvp`` for forward mode. Both are the derivatives of F alone, at a fixed state. The solver itself is not
# differentiated, and nothing is recorded while it runs.
#
# The Jacobian itself is assembled here from finite differences, since the problem declares its structure. :math:`V` and
# :math:`K` are positive, so we take their logarithms as parameters.


def diffusion(y):
    extended = np.concatenate([y[1:2], y, surface])
    return extended[2:] - 2 * y + extended[:-2]


def reaction(y, theta):
    """The rate, and its derivatives with respect to log V and log K."""
    V, K = np.exp(theta)
    s, p = y[:, 0], y[:, 1]
    below = 1 + s + K * p
    rate = V / T**2 * s / below
    return rate, rate, -rate * K * p / below


def pellet(theta):
    both = np.array([-1.0, 0.5])  # what a unit of reaction adds to s and to p
    return ims.Problem(
        lambda y: diffusion(y) + reaction(y, theta)[0][:, None] * both,
        structure=ims.BlockBanded(lower=1, upper=1, block_size=2),
        parameters={"theta": theta},
        parameter_jvp=lambda y, tangents: (
            (np.stack(reaction(y, theta)[1:], axis=1) @ tangents["theta"])[:, None] * both
        ),
        parameter_vjp=lambda y, w: {"theta": np.stack(reaction(y, theta)[1:]) @ (w @ both)},
    )


# %%
# One call checks hand-written derivatives numerically (:doc:`plot_2_give_a_jvp`). For those with respect to
# parameters it needs a function that builds the problem for other parameters: ``build``.

guess = np.log([10.0, 1.0])
start = np.tile(surface, (T, 1))
first = ims.root(pellet(guess), start, stop=stop).raise_for_status()
print(
    ims.testing.check_derivatives(
        pellet(guess), first.x, build=lambda parameters: pellet(parameters["theta"])
    ).raise_if_wrong()
)

# %%
# Measurements
# ------------
# They are made up: the solution for V = 50 and K = 4 at every sixteenth point, with errors of standard deviation
# 0.01.

truth = np.log([50.0, 4.0])
rng = np.random.default_rng(0)
places, deviation = np.arange(8, T, 16), 0.01
exact = ims.root(pellet(truth), start, stop=stop).raise_for_status()
data = exact.x[places] + deviation * rng.standard_normal((places.size, 2))
print(f"{data.size} numbers measured at {places.size} depths")

# %%
# Reverse mode
# ------------
# The loss is half the sum of squared errors. :func:`implicitsolve.pull_back` takes its derivative with respect to the
# solution, the cotangent, solves one system with the transposed Jacobian, and returns the gradient for all parameters
# at once, two here or a million.


def loss_and_gradient(theta, stop=stop):
    problem = pellet(theta)
    result = ims.root(problem, start, stop=stop).raise_for_status()
    errors = (result.x[places] - data) / deviation
    cotangent = np.zeros((T, 2))
    cotangent[places] = errors / deviation
    adjoint = ims.pull_back(problem, result, cotangent, stop=ims.LinearStop(rtol=1e-10)).raise_for_status()
    return 0.5 * (errors**2).sum(), adjoint.gradients["theta"]


loss, gradient = loss_and_gradient(guess)
print(f"loss {loss:.1f}, gradient {gradient.round(3)}")

# %%
# Check it against finite differences of the loss. These need two solves per parameter, and their accuracy depends on
# the step and on how accurately the system was solved: with too short a step a difference is dominated by the error of
# the solver. The figure at the end shows it for two tolerances.

lengths = np.logspace(-9, -0.5, 18)


def difference_errors(stop):
    errors = []
    for h in lengths:
        ahead, behind = (
            loss_and_gradient(guess + step, stop=stop)[0] for step in (h * np.eye(2)[0], -h * np.eye(2)[0])
        )
        errors.append(abs((ahead - behind) / (2 * h) - gradient[0]) / abs(gradient[0]))
    return np.array(errors)


by_tolerance = {
    "max|F| <= 1e-14": difference_errors(stop),
    "max|F| <= 1e-8": difference_errors(ims.NonlinearStop(atol=1e-8, rtol=0.0)),
}
best = by_tolerance["max|F| <= 1e-14"].min()
print(f"the gradient agrees with the best difference to {best:.0e}")
assert best < 1e-7

# %%
# Fit
# ---
# With ``jac=True``, :func:`scipy.optimize.minimize` expects the pair of loss and gradient.

fit = scipy.optimize.minimize(loss_and_gradient, guess, jac=True, method="BFGS")
print(f"V = {np.exp(fit.x[0]):.1f}, K = {np.exp(fit.x[1]):.2f} after {fit.nfev} solves and as many gradients")
print(f"loss {fit.fun:.2f}; expected of {data.size} numbers and two parameters: {(data.size - 2) / 2:.0f}")

# %%
# Forward mode
# ------------
# :func:`implicitsolve.push_forward` answers the other question: how does the whole solution change with one parameter?
# One linear solve per parameter gives the sensitivities of all concentrations. They give the covariance of the
# estimate, and the uncertainty of the fitted curves.

problem = pellet(fit.x)
best_fit = ims.root(problem, start, stop=stop).raise_for_status()
sensitivity = np.stack(
    [ims.push_forward(problem, best_fit, {"theta": direction}).raise_for_status().tangent for direction in np.eye(2)],
    axis=-1,
)
J = sensitivity[places].reshape(-1, 2) / deviation
covariance = np.linalg.inv(J.T @ J)
sigma = np.sqrt(np.diag(covariance))
print(f"standard deviations of log V and log K: {sigma.round(3)}, correlation {covariance[0, 1] / sigma.prod():.2f}")
print(f"errors of the estimates in these units: {((fit.x - truth) / sigma).round(2)}")

# %%
# Both modes apply one linear map, so they must agree: a cotangent times a tangent is a gradient times a direction.

cotangent, direction = rng.standard_normal((T, 2)), rng.standard_normal(2)
tight = ims.LinearStop(rtol=1e-12)
forward = np.vdot(cotangent, ims.push_forward(problem, best_fit, {"theta": direction}, stop=tight).tangent)
reverse = np.vdot(ims.pull_back(problem, best_fit, cotangent, stop=tight).gradients["theta"], direction)
print(f"forward {forward:.10f}, reverse {reverse:.10f}")
assert abs(forward - reverse) < 1e-6 * abs(forward)

# %%
# The figure: the fit with a band of two standard deviations, which is narrow where the data are informative; the
# sensitivities, which have nearly the same shape, so that V and K are hard to separate; and the error of
# finite-difference gradients.

band = 2 * np.sqrt(np.einsum("tui,ij,tuj->tu", sensitivity, covariance, sensitivity))
x = np.arange(T) / T
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for i, name in enumerate(["substrate", "product"]):
    left.plot(x, best_fit.x[:, i], f"C{i}", label=name)
    left.fill_between(x, *(best_fit.x[:, i] + sign * band[:, i] for sign in (-1, 1)), color=f"C{i}", alpha=0.3)
    left.plot(x[places], data[:, i], f"C{i}o", markersize=3)
    for j, style in enumerate(["-", "--"]):
        middle.plot(x, sensitivity[:, i, j], f"C{i}{style}", label=f"{name} by log {'VK'[j]}")
left.set(xlabel="depth x", ylabel="concentration", title="fit")
middle.set(xlabel="depth x", title="sensitivities")
for (name, errors), style in zip(by_tolerance.items(), ["C0o-", "C7s-"], strict=True):
    right.loglog(lengths, errors, style, markersize=3, label=name)
right.set(xlabel="length of the difference", title="relative error of difference gradients")
for axes in (left, middle, right):
    axes.legend(fontsize="small")
plt.show()

# %%
# What next
# ---------
# - :doc:`plot_6_train_a_tagger`: the same for a network with thousands of parameters.
# - :doc:`/explanation/adjoints`: the equations, and the accuracy of the gradients.
# - :func:`implicitsolve.pull_back` has ``wrt`` for only some of the gradients, and ``x0`` for a warm start.
# - :doc:`/how_to/torch`, if the rest of your program is written in PyTorch.
