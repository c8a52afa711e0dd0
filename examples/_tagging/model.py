"""The tagger: embeddings, an implicit GRU over the whole sentence, softmax on every state.

The hidden states of a sentence solve h_i = f(h_{i-1}, h_{i+1}, xi_i) for all its words at once
(`implicitsolve.adapters.implicit_gru`); gradients come from one adjoint solve (`implicitsolve.pull_back`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import implicitsolve as ims
from implicitsolve import adapters

from .batches import Batch
from .features import AFFIXES, FLAG_COUNT, TABLES, Encoder

__all__ = ["Forward", "Sizes", "SolverOptions", "SparseRows", "Tagger", "Work"]

Floats = NDArray[np.float32]

LAYER = tuple(kind + gate for gate in ("", "z", "r", "p", "n") for kind in ("W", "U", "b"))
"""Parameters of the implicit GRU; the candidate's are W, U and b."""
BOUNDARIES = ("hs", "he")


@dataclass(frozen=True)
class Sizes:
    """Widths of the features and of the state. The default input is 32 + 6 * 4 + 8 = 64 wide."""

    word: int = 32
    affix: int = 4
    state: int = 96

    @property
    def input(self) -> int:
        """Width of xi, the concatenated features."""
        return self.word + len(AFFIXES) * self.affix + FLAG_COUNT

    def of_table(self, name: str) -> int:
        """Width of one embedding table."""
        return self.word if name == "word" else self.affix


@dataclass(frozen=True)
class SolverOptions:
    """How exactly the layer is solved while training.

    Parameters
    ----------
    forward : float
        Stop when max|H - F(H)| of a sentence is at most this. States lie in [-1, 1] and the gradient is
        that of a random batch, so 1e-3 is far below its noise.
    adjoint : float
        Stop when the adjoint's residual is this fraction of the loss cotangent.
    method, adjoint_method : optional
        Of `implicitsolve.root` and of `implicitsolve.pull_back`. Default: what these choose.
    max_steps : int
        Steps after which the solve of a sentence ends.
    """

    forward: float = 1e-3
    adjoint: float = 1e-2
    method: Any = "auto"
    adjoint_method: Any = None
    max_steps: int | None = None

    @property
    def nonlinear(self) -> ims.NonlinearStop:
        """The stopping rule of the forward solve."""
        return ims.NonlinearStop(atol=self.forward, rtol=0.0, max_iterations=self.max_steps)

    @property
    def linear(self) -> ims.LinearStop:
        """The stopping rule of the adjoint solve."""
        return ims.LinearStop(rtol=self.adjoint)


@dataclass
class Work:
    """What the solves of some batches took, and how many of their sentences were not solved."""

    batches: int = 0
    sentences: int = 0
    steps: int = 0
    products: int = 0
    adjoint_products: int = 0
    unsolved: int = 0
    unsolved_adjoint: int = 0

    def __add__(self, other: Work) -> Work:
        """Sum, entry by entry."""
        return Work(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def per_batch(self) -> dict[str, float]:
        """Averages over batches: steps and products of the forward solve, products of the adjoint solve."""
        names = ("steps", "products", "adjoint_products")
        return {name: getattr(self, name) / max(self.batches, 1) for name in names}


@dataclass(frozen=True)
class SparseRows:
    """Gradient of a table: `values` (m, width) in the rows `rows` (m,), zero in all others."""

    rows: NDArray[np.int64]
    values: Floats

    def dense(self, shape: tuple[int, ...]) -> Floats:
        """The whole table."""
        table = np.zeros(shape, dtype=self.values.dtype)
        table[self.rows] = self.values
        return table


@dataclass(frozen=True)
class Forward:
    """States and tag probabilities of one batch; the last three run over its words, not over padding.

    Attributes
    ----------
    numbers : (B, T, 7) int
        Table entries as used, after word dropout.
    keep : (B, T, d) float32 or None
        Dropout mask that multiplied the inputs.
    problem : Problem
        The layer as an implicitsolve problem.
    result : NonlinearResult
        Its solution.
    states : (words, k) float32
    log_probabilities : (words, tags) float32
    tags : (words,) int
        -1 where the tag is unknown to the model.
    """

    batch: Batch
    numbers: NDArray[np.int32]
    keep: Floats | None
    problem: ims.Problem
    result: ims.NonlinearResult
    states: Floats
    log_probabilities: Floats
    tags: NDArray[np.int32]

    @property
    def correct(self) -> int:
        """Number of words tagged rightly."""
        return int((self.log_probabilities.argmax(axis=1) == self.tags).sum())

    @property
    def loss(self) -> float:
        """Sum over words of -log P(tag); a tag that the model does not know counts as the least likely one."""
        chosen = np.take_along_axis(self.log_probabilities, np.maximum(self.tags, 0)[:, None], axis=1)[:, 0]
        return -float(np.where(self.tags < 0, self.log_probabilities.min(axis=1), chosen).sum(dtype=np.float64))

    @property
    def work(self) -> Work:
        """What the forward solve took."""
        counts = self.result.counts
        return Work(
            batches=1,
            sentences=len(self.batch.lengths),
            steps=int(np.max(self.result.iterations)),
            products=counts.residuals + counts.jvps,
            unsolved=int(np.sum(~self.result.success)),
        )


@dataclass(frozen=True)
class Tagger:
    """Encoder, sizes and parameters.

    Attributes
    ----------
    parameters : dict of str to float32 array
        ``embed_word``, ``embed_prefix2`` ... (entries, width); the layer's W U b, Wz Uz bz, ...; the boundary
        states hs and he (k,); ``out_W`` (tags, k) and ``out_b`` (tags,).
    """

    encoder: Encoder
    sizes: Sizes
    parameters: dict[str, Floats]

    @classmethod
    def initial(cls, encoder: Encoder, sizes: Sizes, rng: np.random.Generator) -> Tagger:
        """Draw parameters: normal with deviations that keep states of order one; zero boundaries and outputs."""
        shapes = parameter_shapes(encoder, sizes)
        deviations = {"W": sizes.input**-0.5, "U": 0.3 * sizes.state**-0.5, "b": 0.0}
        parameters = {}
        for name, shape in shapes.items():
            deviation = 0.3 if name.startswith("embed_") else deviations[name[0]] if name in LAYER else 0.0
            parameters[name] = (deviation * rng.standard_normal(shape)).astype(np.float32)
        return cls(encoder, sizes, parameters)

    def forward(
        self,
        batch: Batch,
        solver: SolverOptions,
        *,
        start: Floats | str = "one-step",
        numbers: NDArray[np.int32] | None = None,
        keep: Floats | None = None,
    ) -> Forward:
        """Solve the layer for one batch.

        Parameters
        ----------
        start : (B, T, k) array, or {"one-step", "zeros"}, optional
            Where the solver starts.
        numbers, keep
            Table entries and input mask that dropout has changed; by default none is.
        """
        numbers = batch.numbers if numbers is None else numbers
        inputs = self._inputs(batch, numbers)
        if keep is not None:
            inputs = inputs * keep
        p = self.parameters
        layer = {name: p[name] for name in LAYER}
        problem = adapters.implicit_gru(layer, inputs, lengths=batch.lengths, hs=p["hs"], he=p["he"])
        x0 = adapters.initial_guess(problem, start) if isinstance(start, str) else start
        result = ims.root(problem, x0, method=solver.method, stop=solver.nonlinear)
        is_word = batch.is_word
        states = result.x[is_word]
        scores = states @ p["out_W"].T + p["out_b"]
        log_probabilities = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        return Forward(batch, numbers, keep, problem, result, states, log_probabilities, batch.tags[is_word])

    def gradient(self, forward: Forward, solver: SolverOptions) -> tuple[dict[str, Floats | SparseRows], Work]:
        """Gradient of the mean loss over the words of a batch, for every parameter, and what the adjoint took.

        Sentences that were not solved are left out of it, and so are words whose tag is unknown.
        """
        is_word = forward.batch.is_word
        is_solved = np.broadcast_to(forward.result.success[:, None], is_word.shape)[is_word]
        is_used = is_solved & (forward.tags >= 0)
        errors = np.exp(forward.log_probabilities)
        errors[np.flatnonzero(is_used), forward.tags[is_used]] -= 1.0
        errors[~is_used] = 0.0
        errors /= max(int(is_used.sum()), 1)
        cotangent = np.zeros_like(forward.result.x)
        cotangent[is_word] = errors @ self.parameters["out_W"]
        adjoint = ims.pull_back(
            forward.problem, forward.result, cotangent, method=solver.adjoint_method, stop=solver.linear
        )
        layer = adjoint.gradients
        inputs = layer["inputs"] if forward.keep is None else layer["inputs"] * forward.keep
        gradients: dict[str, Floats | SparseRows] = {name: layer[name] for name in (*LAYER, *BOUNDARIES)}
        gradients["out_W"] = errors.T @ forward.states
        gradients["out_b"] = errors.sum(axis=0)
        gradients |= self._table_gradients(forward.numbers[is_word], inputs[is_word])
        unsolved = int(np.sum(~np.asarray(adjoint.linear.success)))
        return gradients, Work(adjoint_products=adjoint.linear.matvecs, unsolved_adjoint=unsolved)

    def _inputs(self, batch: Batch, numbers: NDArray[np.int32]) -> Floats:
        parts = [self.parameters[f"embed_{name}"][numbers[..., i]] for i, name in enumerate(TABLES)]
        return np.concatenate([*parts, batch.flags], axis=2) * batch.is_word[:, :, None]

    def _table_gradients(self, numbers: NDArray[np.int32], inputs: Floats) -> Mapping[str, SparseRows]:
        """Sum the cotangents of the inputs (words, d) over the words that share a table entry."""
        gradients = {}
        start = 0
        for i, name in enumerate(TABLES):
            width = self.sizes.of_table(name)
            order = np.argsort(numbers[:, i], kind="stable")
            rows, first = np.unique(numbers[order, i], return_index=True)
            sums = np.add.reduceat(inputs[order, start : start + width], first, axis=0)
            gradients[f"embed_{name}"] = SparseRows(rows, sums)
            start += width
        return gradients


def parameter_shapes(encoder: Encoder, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all parameters."""
    k, d, tags = sizes.state, sizes.input, len(encoder.tags)
    shapes: dict[str, tuple[int, ...]] = {
        f"embed_{name}": (len(encoder.tables[name]), sizes.of_table(name)) for name in TABLES
    }
    shapes |= {name: {"W": (k, d), "U": (k, k), "b": (k,)}[name[0]] for name in LAYER}
    return shapes | {"hs": (k,), "he": (k,), "out_W": (tags, k), "out_b": (tags,)}
