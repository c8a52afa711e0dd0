"""The elementwise work of gated layers between one matrix product and the next, by the formulas of `_formulas`.

For n positions with k numbers each, and m neighbours; a stack (i, n, k) holds i matrices. All methods may overwrite the
matrix products that they get, named `y` or `products`, and return new arrays or those. Functions of values fill
`factors`, if they get any, with what the functions of derivatives read from them: `push` in their names marks
products with a direction, `pull` for those with a cotangent.

Positions may also have two axes, as T positions of B sequences, (B, T, k). What belongs to neighbours may then come
in the places of the neighbours themselves, with `distances`, one for each: the value at [b, t + distance] belongs to
position [b, t], and zeros where there is none. There may be more or fewer places than T, as for even and odd positions.
Layers use this where `takes_sequences`, that is on a GPU, where it saves launches; on the host it saved at most 4 %.

The layers' definitions are in the adapters; a gate is 1/(1 + exp(y)), which is sigma(-y).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import ClassVar, TypeAlias

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Arrays
from implicitsolve.adapters.kernels import _formulas as formulas
from implicitsolve.adapters.kernels._formulas import Factors, OnArrays, functions_of

Distances: TypeAlias = Sequence[int] | None


class Mixture:
    """The states of m neighbours, mixed: hhat = sum_j s_j*h_j with s_j = sigma(a_j) / sum_l sigma(a_l).

    The arguments a_j are matrix products, of h_j, plus x_j. The factors are a stack of 2 m - 1: s_1, ..., s_(m-1), and
    dhhat/da_j for all j.
    """

    takes_sequences: ClassVar[bool] = False

    def __init__(self, work: type[OnArrays] = OnArrays) -> None:
        self.work = work

    def value(
        self, products: Arrays, x: Array, states: Arrays, factors: Factors = None, distances: Distances = None
    ) -> Array:
        """Return hhat for the products of the h_j, x (m, n, k), and the h_j."""
        products, states = near(products, distances, x.shape[-2]), near(states, distances, x.shape[-2])
        return self.work.fill(formulas.mix, products[:1], (products, x, states), factors)[0]

    def push(self, products: Arrays, dstates: Arrays, factors: Array, distances: Distances = None) -> Array:
        """Return dhhat for the products of the dh_j, and the dh_j."""
        length = factors.shape[-2]
        products, dstates = near(products, distances, length), near(dstates, distances, length)
        return self.work.run(formulas.push_mix, products[:1], (products, factors, dstates))[0]

    def pull(self, y: Array, hhat: Array, factors: Array) -> tuple[Array, tuple[Array, ...]]:
        """Return the cotangents of hhat (the product y plus the part already known) and of the a_j."""
        arguments = tuple(self.work.new(y) for _ in range(factors.shape[0] // 2 + 1))
        return tuple(self.work.run(formulas.pull_mix, (y, arguments), (arguments, y, hhat, factors)))

    def share(self, products: Arrays, hhat: Array, factors: Array) -> tuple[Array, ...]:
        """Return the cotangents of the h_j: the products with those of the a_j, plus s_j times that of hhat."""
        return self.work.run(formulas.share, (products,), (products, hhat, factors))[0]

    def gather(self, products: Arrays, hhat: Array, factors: Array, distances: Sequence[int], length: int) -> Array:
        """Return the sum of the cotangents that each neighbour gets, (B, length, k)."""
        return total(near(self.share(products, hhat, factors), [-distance for distance in distances], length))


class GRU:
    """An ordinary GRU that starts from hhat: h = keep*hhat + (1-keep)*tanh(x + U (r*hhat)).

    The gates keep and r have arguments y, matrix products of hhat, plus x. The factors are a stack of 5: keep, r, dh/dy
    of keep, d(r*hhat)/dy of r, and dh/d(argument of tanh).
    """

    def __init__(self, work: type[OnArrays] = OnArrays) -> None:
        self.work = work

    def reset(self, y: Array, x: Array, hhat: Array, factors: Factors = None) -> Sequence[Array]:
        """Return keep and r*hhat for stacks y and x of 2."""
        return self.work.fill(formulas.reset, (y[0, ...], y[1, ...]), (y, x, hhat), factors)

    def blend(self, y: Array, x: Array, keep: Array, hhat: Array, factors: Factors = None) -> Array:
        """Return h for the product y of r*hhat and the other arguments and results of `reset`."""
        return self.work.fill(formulas.blend, (y,), (y, x, keep, hhat), factors)[0]

    def push_reset(self, y: Array, dhhat: Array, factors: Array) -> Array:
        """Return d(r*hhat) for the products y (2, n, k) of dhhat; the first of them is kept."""
        return self.work.run(formulas.push_reset, (y[1, ...],), (dhhat, y, factors))[0]

    def push_blend(self, y: Array, gates: Array, dhhat: Array, factors: Array) -> Array:
        """Return dh for the product y of d(r*hhat), and the products `gates` (2, n, k) that `push_reset` left."""
        return self.work.run(formulas.push_blend, (y,), (y, gates, dhhat, factors))[0]

    def pull_blend(self, w: Array, factors: Array) -> Array:
        """Return the cotangent of the argument of tanh, for that of h."""
        return factors[4, ...] * w

    def pull_reset(self, y: Array, w: Array, factors: Array) -> Sequence[Array]:
        """Return the part of hhat's cotangent known so far, and those of the gates' arguments, for the product y."""
        return self.work.run(formulas.pull_reset, (y, self.work.stack(2, y)), (y, w, factors))


class LSTM:
    """The states (h, c) of two neighbours, p and q, mixed by one switch, and an ordinary LSTM that starts from there.

    A state is a matrix (n, 2 k), h beside c. The switch is that of `Mixture`. The gates i, f and o have arguments y,
    matrix products of hhat, plus x; g = tanh(y + x). The factors are

    - of the mixture, a stack of 5: s, ds/da, ds/dc for the arguments a and c of the switch, and the differences of the
      neighbours' h and c,
    - of the rest, a stack of 6: f, o (1 - tanh(c)^2), and the derivatives of c by the arguments of i, f and g, and
      of h by that of o; in the order i, f, o, g.
    """

    takes_sequences: ClassVar[bool] = False

    def __init__(self, work: type[OnArrays] = OnArrays) -> None:
        self.work = work

    def value(
        self, products: Arrays, x: Array, states: Arrays, factors: Factors = None, distances: Distances = None
    ) -> Sequence[Array]:
        """Return hhat and chat for the products of both neighbours' h, x (2, n, k), and both states."""
        products, states = near(products, distances, x.shape[-2]), near(states, distances, x.shape[-2])
        return self.work.fill(formulas.mix_states, products, (products, x, *zip(*map(halves, states))), factors)

    def state(self, y: Array, x: Array, chat: Array, factors: Factors = None) -> Array:
        """Return the state (n, 2 k) for stacks y and x of 4."""
        return self.work.join(self.work.fill(formulas.state, self.work.state(chat), (y, x, chat), factors))

    def push(self, products: Arrays, dstates: Arrays, factors: Array, distances: Distances = None) -> Sequence[Array]:
        """Return dhhat and dchat for the products of both neighbours' dh, and both dstates."""
        length = factors.shape[-2]
        products, dstates = near(products, distances, length), near(dstates, distances, length)
        return self.work.run(formulas.push_mix_states, products, (products, factors, *zip(*map(halves, dstates))))

    def push_state(self, y: Array, dchat: Array, factors: Array) -> Array:
        """Return the change of the state for the products y (4, n, k) of dhhat."""
        return self.work.join(self.work.run(formulas.push_state, self.work.state(dchat), (dchat, y, factors)))

    def pull_state(self, w: Array, factors: Array) -> Sequence[Array]:
        """Return the cotangents of the arguments of i, f, o and g (4, n, k) and of chat, for that of the state."""
        wh, wc = halves(w)
        return self.work.run(formulas.pull_state, (self.work.stack(4, wh), self.work.new(wh)), (wh, wc, factors))

    def pull_mix(self, hhat: Array, chat: Array, factors: Array) -> Sequence[Array]:
        """Return the cotangents of both arguments of the switch, for those of hhat and chat."""
        places = self.work.new(hhat), self.work.new(hhat)
        return self.work.run(formulas.pull_mix_states, places, (hhat, chat, factors))

    def share(self, products: Arrays, hhat: Array, chat: Array, factors: Array) -> Sequence[Array]:
        """Return the cotangents of both neighbours' states, for the products with those of the switch's arguments."""
        work = self.work
        places = *work.state(hhat), *work.state(hhat)
        hp, cp, hq, cq = work.run(formulas.share_states, places, (products, hhat, chat, factors))
        return work.join((hp, cp)), work.join((hq, cq))

    def gather(
        self, products: Arrays, hhat: Array, chat: Array, factors: Array, distances: Sequence[int], length: int
    ) -> Array:
        """Return the sum of the cotangents that each neighbour gets, (B, length, 2 k)."""
        return total(near(self.share(products, hhat, chat, factors), [-distance for distance in distances], length))


def near(parts: Arrays, distances: Distances, length: int) -> Arrays:
    """Bring arrays (B, any, k) from the places of neighbours to those of B sequences of this length."""
    if distances is None:
        return parts
    found: list[Array] = []
    for part, distance in zip(parts, distances):
        B, count, k = part.shape
        here = array_namespace(part).zeros((B, length, k), dtype=part.dtype, device=part.device)
        begin, end = max(0, -distance), min(length, count - distance)
        if begin < end:
            here[:, begin:end, :] = part[:, begin + distance : end + distance, :]
        found.append(here)
    return tuple(found)


def total(parts: Arrays) -> Array:
    return reduce(operator.iadd, parts)


def gate(y: Array) -> Array:
    """1/(1 + exp(y)), which is sigma(-y)."""
    return functions_of(y).gate(y)


def halves(state: Array) -> tuple[Array, Array]:
    """h and c of states (n, 2 k): views."""
    k = state.shape[-1] // 2
    return state[..., :k], state[..., k:]
