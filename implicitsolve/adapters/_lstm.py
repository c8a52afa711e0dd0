"""The implicit LSTM: an LSTM whose hidden and cell states choose, element by element, between two neighbours.

The gates are 1/(1 + exp(y)), so the blocks of -i, -f, -o and of g are kept. What is done between two matrix products
is in `kernels.lstm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from implicitsolve import Problem
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Arrays, HostArray
from implicitsolve.adapters import kernels
from implicitsolve.adapters._cell import Cotangents, Factors, GatedCell
from implicitsolve.adapters._common import DType, Lengths, draw, read_parameters
from implicitsolve.adapters._layer import build
from implicitsolve.adapters._rows import across, along, as_stack, identity, join_sides


def lstm_parameters(
    d: int, k: int, *, scale: float = 0.1, rng: np.random.Generator, dtype: DType = np.float64
) -> dict[str, HostArray]:
    """Draw the parameters of an implicit LSTM, uniformly from [-scale, scale].

    Parameters
    ----------
    d, k, scale, rng, dtype : int, float, numpy.random.Generator and dtype
        As for `gru_parameters`; there are as many cell states as hidden ones, k.

    Returns
    -------
    dict of str to numpy.ndarray
        6 k (d + k + 1) numbers: Wi, Wf, Wo, Wg, Wp, Wn of shape (k, d), Ui, ..., Un (k, k), bi, ..., bn (k,).

    Examples
    --------
    >>> from implicitsolve.adapters import lstm_parameters
    >>> lstm_parameters(3, 2, rng=np.random.default_rng(0))["Wf"].shape
    (2, 3)
    """
    return draw("lstm_parameters", LSTMCell.shapes, d, k, scale, rng, dtype)


def implicit_lstm(
    params: Mapping[str, Array],
    inputs: Array,
    *,
    lengths: Lengths = None,
    hs: Array | None = None,
    cs: Array | None = None,
    he: Array | None = None,
    ce: Array | None = None,
) -> Problem:
    """Return an implicit LSTM on a batch of sequences as a problem: residual(H) = H - F(H).

    The state of a position is (h, c), 2 k numbers: ``H[..., :k]`` are the hidden states, ``H[..., k:]`` the cell
    states. With p the previous and q the next position, block t of F(H) is (h, c)::

        a = Wp x + Up hp + bp      a' = Wn x + Un hq + bn      s = sigma(a) / (sigma(a) + sigma(a'))
        hhat = s*hp + (1-s)*hq     chat = s*cp + (1-s)*cq
        i, f, o = sigma(W. x + U. hhat + b.)      g = tanh(Wg x + Ug hhat + bg)
        c = f*chat + i*g           h = o*tanh(c)

    With s = 1 this is the ordinary LSTM that runs forwards.

    Parameters
    ----------
    params : mapping of str to Array
        Exactly the names and shapes of `lstm_parameters`.
    inputs, lengths : Array, and integers, optional
        As in `implicit_gru`. The state has shape (B, T, 2 k) or (T, 2 k).
    hs, cs, he, ce : Array of shape (k,) or (B, k), optional
        Hidden and cell states before the first and after the last position, as in `implicit_gru`.

    Returns
    -------
    Problem
        As in `implicit_gru`, with the boundary states "hs", "cs", "he" and "ce" and with blocks of 2 k x 2 k; the guess
        "one-step" is that of an ordinary LSTM.

    Notes
    -----
    A solution exists where the forget gates stay below 1: ``|h| <= max(1, |hs|, |he|)`` and
    ``|c| <= max(sup i/(1 - sup f), |cs|, |ce|)`` is a box into which F maps itself. It need not be unique.

    With N = sum(lengths) + B + 1 rows, construction takes 12 N d k operations, and a residual or a product with J or
    its adjoint 12 N k^2 (six GEMMs). A linearization holds 11 N k numbers.

    References
    ----------
    This project's own; Kazi & Thompson, *Implicitly-Defined Neural Networks for Sequence Labeling*, ACL 2017,
    section 5, announce one. The switch is that of their equation 2, computed from the hidden states.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.lstm_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_lstm(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> result = ims.root(layer)
    >>> result.x.shape, bool(result.success.all())
    ((3, 5, 8), True)
    """
    caller = "implicit_lstm"
    parameters = read_parameters(caller, params, inputs, LSTMCell.shapes, size="bi")
    before, after = {"hs": hs, "cs": cs}, {"he": he, "ce": ce}
    return build(caller, LSTMCell.of(parameters), parameters, inputs, lengths, before=before, after=after).problem()


@dataclass(frozen=True, eq=False)
class LSTMCell(GatedCell):
    """The LSTM of `implicit_lstm`; its weights are Up, Un, -Ui, -Uf, -Uo, Ug.

    The factors are s, ds/da, ds/da', hp - hq, cp - cq, f, o (1 - tanh(c)^2), and the slopes of -i, -f, -o and g in c
    or, for o, in h; see `kernels.lstm`.
    """

    name = "implicit_lstm"
    suffixes = ("p", "n", "i", "f", "o", "g")
    flipped = ("i", "f", "o")

    @classmethod
    def shapes(cls, d: int, k: int, m: int = 1) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name, in the order in which they are documented and drawn."""
        return dict(sorted(super().shapes(d, k).items(), key=lambda item: "ifogpn".index(item[0][1])))

    @cached_property
    def mixing_count(self) -> int:
        return 5

    @property
    def factor_count(self) -> int:
        return 11

    @cached_property
    def size(self) -> int:
        return 2 * self.factor_size

    @cached_property
    def gates(self) -> Array:
        """-Ui, -Uf, -Uo and Ug, (4, k, k)."""
        return self.weights[2:, ...]

    @cached_property
    def gates_transposed(self) -> Array:
        """The gates' weights, transposed, (k, 4 k): they multiply from the right."""
        return join_sides(self.gates)

    @cached_property
    def mixer(self) -> Any:
        return kernels.lstm.select(self.weights, size=self.factor_size)

    @property
    def takes_sequences(self) -> bool:
        return self.mixer.takes_sequences

    def hidden(self, state: Array) -> Array:
        return state[..., : self.factor_size]

    def step(self, x: Arrays, previous: Array) -> Array:
        return self.gate(x[0][2:, ...], (self.hidden(previous), previous[..., self.factor_size :]))

    def gate(self, x: Array, mixture: tuple[Array, Array], factors: Factors = None) -> Array:
        hhat, chat = mixture
        return self.mixer.state(self._gate_products(hhat), x, chat, factors)

    def _gate_products(self, hhat: Array) -> Array:
        return as_stack(self.times(hhat, self.gates_transposed), self.factor_size)

    def push_gates(self, dmixture: tuple[Array, Array], factors: Array, extra: Array | None) -> Array:
        y = self._gate_products(dmixture[0])
        if extra is not None:
            y += extra
        return self.mixer.push_state(y, dmixture[1], factors)

    def pull_sums(self, factors: Array, w: Array) -> Cotangents:
        mixing, gating = self.split(factors)
        gates, chat = self.mixer.pull_state(w, gating)
        hhat = self.product_sum(gates, self.gates)
        switch = self.mixer.pull_mix(hhat, chat, mixing)
        return Cotangents([*switch, *(gates[j, ...] for j in range(4))], (hhat, chat))

    def states(self, neighbours: Arrays, factors: Array) -> list[Array]:
        hp, hq = (self.hidden(state) for state in neighbours)
        return [hp, hq, *[factors[0, ...] * factors[3, ...] + hq] * 4]

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Approximate diagonals: the product of two diagonals takes the place of that of two matrices."""
        xp, (dh, dc, f, slope_h) = array_namespace(factors), (factors[i, ...] for i in range(3, 7))
        gates = factors[7:, ...] * xp.expand_dims(xp.linalg.diagonal(self.gates), axis=1)
        dc_dhhat = gates[0, ...] + gates[1, ...] + gates[3, ...]
        dh_dhhat, dh_dchat = gates[2, ...] + slope_h * dc_dhhat, slope_h * f
        found: list[Array] = []
        for share, slope, U in self._shares(factors):
            ds = slope * xp.linalg.diagonal(U)
            found.append(xp.concat([dh_dhhat * (share + dh * ds) + dh_dchat * dc * ds, f * share], axis=1))
        return tuple(found)

    def blocks(self, factors: Array) -> Array:
        xp, k = array_namespace(factors), self.factor_size
        (dh, dc, f, slope_h), slopes = (factors[i, ...] for i in range(3, 7)), factors[7:, ...]
        dc_dhhat = sum(along(slopes[j, ...]) * self.gates[j, ...] for j in (0, 1, 3))
        dh_dhhat = along(slope_h) * dc_dhhat + along(slopes[2, ...]) * self.gates[2, ...]
        dhhat = xp.concat([dh_dhhat, dc_dhhat], axis=1)  # (n, 2 k, k)
        dchat = xp.concat([slope_h * f, f], axis=1)  # (n, 2 k), of which each half is a diagonal
        one, twice = identity(self.gates[0, ...]), xp.concat([dc, dc], axis=1)
        found: list[Array] = []
        for share, slope, U in self._shares(factors):
            of_h = xp.matmul(dhhat * across(dh * slope), U) + dhhat * across(share)
            of_h += along(dchat * twice * xp.concat([slope, slope], axis=1)) * xp.concat([U, U], axis=0)
            diagonal = along(dchat * xp.concat([share, share], axis=1))
            found.append(xp.concat([of_h, diagonal * xp.concat([one, one], axis=0)], axis=2))
        return xp.reshape(xp.stack(found), (2, -1, 2 * k, 2 * k))

    def _shares(self, factors: Array) -> list[tuple[Array, Array, Array]]:
        """For each neighbour its share in the mixture, the slope of the share, and its weights."""
        s, slope_p, slope_n = (factors[i, ...] for i in range(3))
        return [(s, slope_p, self.Us[0, ...]), (1.0 - s, slope_n, self.Us[1, ...])]
