r"""
Write your own adapter
======================

You will learn how to make a :class:`implicitsolve.Problem` of a layer that the library does not have: its residual,
its products with the Jacobian and with the adjoint, the gradients of its parameters, and what a batch needs. Then we
check it in one call and train it a little. Reading takes twenty minutes, running a few seconds.

The layer is a gated diffusion. The state of a position is mixed from its two neighbours, and a gate decides, number
by number, how much of it is renewed by the input:

.. math::

    m_t = \tfrac{1}{2} (h_{t-1} + h_{t+1}), \quad
    z_t = \sigma(W_z x_t + U_z m_t + b_z), \quad
    c_t = \tanh(W x_t + U m_t + b), \quad
    h_t = (1 - z_t) * m_t + z_t * c_t .

Beyond the ends the states are 0. The states of a sequence are defined by each other, so they are the unknowns of one
nonlinear system, :math:`h - G(h) = 0`.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

import implicitsolve as ims

# %%
# The mathematics
# ---------------
# Three functions are enough. The mixture is linear and self-adjoint. The cell maps mixtures to states, position by
# position. Its derivative with respect to the mixture is a diagonal, plus two products with U and Uz; with the
# elementwise derivatives s (by the input of the gate) and r (by the input of the candidate),
#
# .. math:: dh = (1 - z) * dm + s * (U_z dm) + r * (U dm), \qquad s = (c - m) z (1 - z), \quad r = z (1 - c^2) .


def mixed(h):
    """Mean of the two neighbours, (..., T, k), with zeros beyond the ends."""
    m = np.zeros_like(h)
    m[..., 1:, :] += 0.5 * h[..., :-1, :]
    m[..., :-1, :] += 0.5 * h[..., 1:, :]
    return m


def cell(params, x, m):
    """States, and the factors of their derivatives: 1 - z, s and r."""
    z = expit(x @ params["Wz"].T + m @ params["Uz"].T + params["bz"])
    c = np.tanh(x @ params["W"].T + m @ params["U"].T + params["b"])
    return (1 - z) * m + z * c, (1 - z, (c - m) * z * (1 - z), z * (1 - c**2))


# %%
# The problem
# -----------
# An adapter is a function that returns a :class:`implicitsolve.Problem`. Here it is a class whose methods are the
# functions: they can be pickled, so that processes can solve parts of a batch. The purpose of each:
#
# - ``residual`` is the system, and sufficient to solve it.
# - ``linearize`` returns F and the Jacobian at h as a :class:`implicitsolve.LinearOperator`: the factors are computed
#   once for all products. ``matvec`` is for Newton's method and ``push_forward``, ``rmatvec`` for ``pull_back``;
#   ``take`` selects systems of the batch.
# - ``parameters`` and ``parameter_vjp`` give gradients: the derivative of F, not of h, by each parameter, transposed.
#   Summed over batch and positions, since all share them. ``parameter_jvp`` would add forward mode.
# - ``batch_ndim=1`` and ``take`` declare that the first axis holds independent systems, and how to select some of them.
# - ``fixed_point=True`` declares that F(h) = h - G(h), so that :func:`implicitsolve.root` may iterate G
#   (:doc:`/explanation/fixed_points`).
# - ``initial_guess`` returns an initial guess where the caller gives none.


class GatedDiffusion:
    """The layer on inputs (B, T, d), with states (B, T, k)."""

    def __init__(self, params, x):
        self.params, self.x = params, x

    def problem(self):
        return ims.Problem(
            self.residual,
            linearize=self.linearize,
            batch_ndim=1,
            parameters={**self.params, "inputs": self.x},
            parameter_vjp=self.parameter_vjp,
            take=self.take,
            initial_guess=self.initial_guess,
            fixed_point=True,
            name="gated diffusion",
        )

    def residual(self, h):
        return h - cell(self.params, self.x, mixed(h))[0]

    def linearize(self, h):
        value, factors = cell(self.params, self.x, mixed(h))
        return h - value, self.jacobian(factors)

    def jacobian(self, factors):
        keep, s, r = factors
        U, Uz = self.params["U"], self.params["Uz"]

        def matvec(v):
            dm = mixed(v)
            return v - (keep * dm + s * (dm @ Uz.T) + r * (dm @ U.T))

        def rmatvec(w):
            return w - mixed(keep * w + (s * w) @ Uz + (r * w) @ U)

        return ims.LinearOperator(
            matvec,
            rmatvec,
            in_shape=keep.shape[1:],
            batch_shape=keep.shape[:1],
            dtype=keep.dtype,
            take=lambda indices: self.selected(indices).jacobian(tuple(factor[indices] for factor in factors)),
        )

    def parameter_vjp(self, h, w):
        m = mixed(h)
        _, (_, s, r) = cell(self.params, self.x, m)
        gate, candidate = -s * w, -r * w  # F is h minus the cell

        def outer(a, b):
            return np.einsum("bti,btj->ij", a, b, optimize=True)

        return {
            "Wz": outer(gate, self.x),
            "Uz": outer(gate, m),
            "bz": gate.sum(axis=(0, 1)),
            "W": outer(candidate, self.x),
            "U": outer(candidate, m),
            "b": candidate.sum(axis=(0, 1)),
            "inputs": gate @ self.params["Wz"] + candidate @ self.params["W"],
        }

    def selected(self, indices):
        return GatedDiffusion(self.params, self.x[indices])

    def take(self, indices):
        return self.selected(indices).problem()

    def initial_guess(self, kind, rng):
        shape = (*self.x.shape[:2], self.params["b"].size)
        return np.zeros(shape) if rng is None else rng.uniform(-1, 1, shape)


def draw(d, k, rng):
    """Parameters of the layer, named as in the formulas."""
    shapes = {"W": (k, d), "U": (k, k), "b": (k,)}
    return {name + gate: 0.4 * rng.standard_normal(shape) for gate in ("z", "") for name, shape in shapes.items()}


# %%
# Check it
# --------
# One call checks all of this numerically. Do it first, on a small problem with random states: with wrong derivatives a
# solver merely takes more steps, and an optimizer finds a worse fit.

rng = np.random.default_rng(0)
small = GatedDiffusion(draw(3, 4, rng), rng.standard_normal((2, 6, 3))).problem()
print(ims.testing.check_derivatives(small, rng.standard_normal((2, 6, 4))).raise_if_wrong())

# %%
# Use it
# ------
# From here on the layer is a problem like those of :mod:`implicitsolve.adapters`. Data to train on: a hidden signal
# jumps between -1 and 1 about every twelve positions, and is observed through noise of standard deviation 1. The layer
# is to predict which of the two it was, at each position of 48 sequences.


def telegraph(count, length, rng):
    jumps = rng.random((count, length)) < 1 / 12
    signal = np.where((np.cumsum(jumps, axis=1) + rng.integers(2, size=(count, 1))) % 2 == 1, 1.0, -1.0)
    return signal, signal + rng.standard_normal(signal.shape)


length, states = 50, 6
signal, observed = telegraph(48, length, rng)
params = draw(1, states, rng) | {"out": 0.4 * rng.standard_normal(states)}
stop = ims.NonlinearStop(atol=1e-6, rtol=0.0)


def forward(params, observed):
    layer = {name: value for name, value in params.items() if name != "out"}
    problem = GatedDiffusion(layer, observed[..., None]).problem()
    return problem, ims.root(problem, stop=stop)


problem, result = forward(params, observed)
print(f"{result.success.sum()} sequences solved by {result.counts.residuals} evaluations")

# %%
# Train it
# --------
# The loss is the logistic one of ``h @ out``. :func:`implicitsolve.pull_back` turns its derivative with respect to the
# states into gradients of the layer's parameters; that of ``out`` is the loss's own. A sequence whose system was not
# solved is excluded: its cotangent is zero, and we count it.
#
# Large weights make a layer hard to solve. :func:`implicitsolve.derivatives.jacobian_penalty` measures how far G is
# from a constant, and returns gradients to add to those of the loss. It needs nothing further from the problem. Thirty
# steps of Adam:


def loss_and_gradients(params):
    problem, result = forward(params, observed)
    margin = signal * (result.x @ params["out"])
    slope = np.where(result.success[:, None], -signal * expit(-margin) / margin.size, 0.0)
    penalty = ims.derivatives.jacobian_penalty(problem, result, rng=rng)
    cotangent = slope[..., None] * params["out"] + 0.1 * penalty.cotangent
    adjoint = ims.pull_back(problem, result, cotangent, stop=ims.LinearStop(rtol=1e-3), wrt=set(params) - {"out"})
    gradients = {name: value + 0.1 * penalty.gradients[name] for name, value in adjoint.gradients.items()}
    gradients["out"] = np.einsum("bt,btk->k", slope, result.x)
    return np.logaddexp(0, -margin).mean(), gradients, np.count_nonzero(~result.success)


def accuracy(params, signal, observed):
    _, result = forward(params, observed)
    return np.mean(np.sign(result.x @ params["out"]) == signal), result


losses, unsolved, mean, square = [], 0, dict.fromkeys(params, 0.0), dict.fromkeys(params, 0.0)
for step in range(1, 31):
    loss, gradients, failed = loss_and_gradients(params)
    losses.append(loss)
    unsolved += failed
    for name, gradient in gradients.items():
        mean[name] = 0.9 * mean[name] + 0.1 * gradient
        square[name] = 0.99 * square[name] + 0.01 * gradient**2
        change = (mean[name] / (1 - 0.9**step)) / (np.sqrt(square[name] / (1 - 0.99**step)) + 1e-8)
        params[name] = params[name] - 0.04 * change

new_signal, new_observed = telegraph(48, length, rng)
trained, solved = accuracy(params, new_signal, new_observed)
alone = np.mean(np.sign(new_observed) == new_signal)
print(f"loss {losses[0]:.3f} before, {losses[-1]:.3f} after training; {unsolved} of {30 * 48} solves failed")
print(f"right on new sequences: {trained:.3f}; by the sign of the observation alone: {alone:.3f}")

# %%
# The layer uses both neighbours' states, and so, through them, the whole sequence. On the right is a new sequence,
# which was not used in training.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained", width_ratios=[1, 2])
left.plot(range(1, 31), losses)
left.set(xlabel="step of Adam", ylabel="loss")
right.plot(new_observed[0], "C7.", label="observed")
right.step(range(length), new_signal[0], "k", where="mid", linewidth=0.8, label="signal")
right.plot(2 * expit(solved.x[0] @ params["out"]) - 1, "C0", label="layer: P(1) - P(-1)")
right.set(xlabel="position")
right.legend(loc="upper right", fontsize="small")
plt.show()

# %%
# Is the trained layer harder to solve than the initial one? :func:`implicitsolve.diagnostics.contraction` estimates
# the contraction rate of G, here for the first sequence: the spectral radius of the derivative of G, and its norm. As
# long as the radius is below 1 iterating G converges near the solution, and the penalty has kept it there. The
# eigenvalues, by :func:`implicitsolve.diagnostics.plot_spectrum`, before training and after it, within the unit circle:

after_problem, after = forward(params, observed)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
for (name, layer, solved), ax in zip(
    [("before training", problem, result), ("after training", after_problem, after)], axes, strict=True
):
    ims.diagnostics.plot_spectrum(layer, solved, system=0, ax=ax)
    ax.set_title(f"{name}: {solved.counts.residuals} evaluations")
    estimate = ims.diagnostics.contraction(layer, solved, system=0)
    print(f"{name}: {estimate}")
    assert estimate.radius < 1
plt.show()

# %%
# What next
# ---------
# - ``halves`` (:class:`implicitsolve.elimination.Halves`): no block of this layer depends on itself, which is why its
#   eigenvalues come in pairs of opposite sign. Every second block can be eliminated, which squares them
#   (:doc:`/explanation/fixed_points`).
# - ``structure`` and ``blocks``, for direct solves where contraction is poor: :doc:`plot_3_declare_a_structure`.
# - :doc:`/explanation/layers`: the existing layers and their features.
# - :doc:`plot_8_write_a_kernel`, if the elementwise work is worth compiling.
