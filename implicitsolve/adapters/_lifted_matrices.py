"""LiftedMatrices: a network's matrices A, B and C, and what leads from their gradients to those of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from implicitsolve.adapters._common import Array, array_namespace, check_array, quiet
from implicitsolve.adapters._lifted_places import Places, block_sum, placed
from implicitsolve.adapters._lifted_weights import Weight, weight


@dataclass(frozen=True, eq=False)
class LiftedMatrices:
    """The matrices of a network as a lifted net: outputs y = C x, where x = phi(A x + B u).

    What `lifted_feedforward`, `lifted_rnn` and `lifted_birnn` return; it unpacks as ``A, B, C = ...``.

    Attributes
    ----------
    A, B, C
        Matrices of shapes (n, n), (n, p) and (q, n).
    weights : mapping of str to Array
        The network's weights, by the names of the builder's arguments.

    Examples
    --------
    One step of training, by hand:

    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from implicitsolve.adapters import lifted_inputs, lifted_net, lifted_outputs, lifted_rnn
    >>> rng = np.random.default_rng(0)
    >>> weights = rng.uniform(-0.3, 0.3, (3, 3)), rng.uniform(-1, 1, (3, 2)), rng.uniform(-1, 1, (1, 3))
    >>> net = lifted_rnn(*weights, 4, outputs="all")
    >>> sequences = rng.standard_normal((5, 4, 2))  # 5 sequences of 4 steps
    >>> problem = lifted_net(net.A, net.B, lifted_inputs(sequences))
    >>> x = problem.substitute()
    >>> y = lifted_outputs(net.outputs(x), 4)
    >>> y.shape
    (5, 4, 1)
    >>> cotangent, dC = net.pull_back_outputs(x, lifted_inputs(y))  # of the loss sum(y**2) / 2
    >>> gradients = ims.pull_back(problem, x, cotangent).gradients
    >>> {name: g.shape for name, g in net.weight_gradients(gradients["A"], gradients["B"], dC).items()}
    {'W_H': (3, 3), 'W_I': (3, 2), 'W_O': (1, 3)}
    """

    A: Any
    B: Any
    C: Any
    weights: Mapping[str, Array] = field(repr=False)
    _places: tuple[Places, Places, Places] = field(repr=False)  # in A, in B, in C

    def __iter__(self) -> Iterator[Any]:
        """Unpack as A, B, C."""
        return iter((self.A, self.B, self.C))

    @quiet
    def outputs(self, x: Array) -> Array:
        """Return C x for states x of shape (batch, n) or (n,), as (batch, q) or (q,)."""
        rows = self._rows("outputs", "x", x, 1)
        return self._wrapped(rows).times(rows) if x.ndim == 2 else self._wrapped(rows).times(rows)[0, :]

    @quiet
    def pull_back_outputs(self, x: Array, g: Array) -> tuple[Array, Any]:
        """Return what a loss's derivative g by the outputs C x becomes at C.

        Parameters
        ----------
        x : Array of shape (batch, n) or (n,)
            States.
        g : Array of shape (batch, q) or (q,)
            d loss / d (C x).

        Returns
        -------
        cotangent : Array
            C^T g, the derivative by x, of the shape of x: what `pull_back` takes.
        dC : Array or sparse matrix
            The derivative by C: the sum of g x^T over the batch, where C stores entries.
        """
        x_rows, g_rows = self._rows("pull_back_outputs", "x", x, 1), self._rows("pull_back_outputs", "g", g, 0)
        if g.ndim != x.ndim or g_rows.shape[0] != x_rows.shape[0]:
            expected = (*x.shape[:-1], self.C.shape[0])
            raise ValueError(f"pull_back_outputs: `g` must have shape {expected}, got {tuple(g.shape)}")
        C = self._wrapped(x_rows)
        cotangent = C.adjoint_times(g_rows)
        return cotangent if x.ndim == 2 else cotangent[0, :], C.outer(g_rows, x_rows)

    def weight_gradients(self, dA: Any, dB: Any, dC: Any) -> dict[str, Array]:
        """Return the gradients of the network's weights, from those of the matrices in which they stand.

        A weight's gradient is the sum of the matrices' gradients over the places where it stands; entries elsewhere are
        not read.

        Parameters
        ----------
        dA, dB, dC : Array, sparse matrix or BlockBandedMatrix
            Derivatives of a loss by A, B and C: of `pull_back` and `pull_back_outputs`, or arrays of the same shapes.

        Returns
        -------
        dict of str to Array
            By the names of `weights`, in their order.

        Raises
        ------
        ValueError
            If a shape is wrong.
        """
        total = {name: array_namespace(value).zeros_like(value) for name, value in self.weights.items()}
        for label, own, given, places in zip("ABC", self, (dA, dB, dC), self._places):
            if tuple(np.shape(given)) != tuple(own.shape):
                shapes = f"{tuple(own.shape)}, got {tuple(np.shape(given))}"
                raise ValueError(f"weight_gradients: `d{label}` must have the shape of {label}, {shapes}")
            for name, corners in places.items():
                total[name] = total[name] + block_sum(given, corners, total[name])
        return total

    def _wrapped(self, like: Array) -> Weight:
        return weight("LiftedMatrices", "C", self.C, tuple(self.C.shape), like, copy=False)

    def _rows(self, caller: str, name: str, x: Array, axis: int) -> Array:
        """Check an array (batch, size) or (size,) of one of C's sizes; give it as rows."""
        check_array(caller, name, x, None, next(iter(self.weights.values())))
        if x.ndim not in (1, 2) or x.shape[-1] != self.C.shape[axis]:
            size = self.C.shape[axis]
            raise ValueError(f"{caller}: `{name}` must have shape (batch, {size}) or ({size},), got {tuple(x.shape)}")
        return x if x.ndim == 2 else array_namespace(x).expand_dims(x, axis=0)


def matrices(
    caller: str,
    weights: dict[str, Array],
    places: tuple[Places, Places, Places],
    sizes: tuple[int, int, int],
    format: str,
) -> LiftedMatrices:
    """Build A, B and C of sizes (n, p, q) from the places of the weights in each."""
    n, p, q = sizes
    like = next(iter(weights.values()))
    other = format
    if format == "block-banded":
        other = "sparse" if isinstance(like, np.ndarray) else "dense"
    A = placed(caller, weights, places[0], (n, n), format)
    B, C = placed(caller, weights, places[1], (n, p), other), placed(caller, weights, places[2], (q, n), other)
    return LiftedMatrices(A, B, C, weights, places)
