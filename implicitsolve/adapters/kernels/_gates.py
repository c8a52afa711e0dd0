"""Array-API references of the elementwise work of gated layers, between one matrix product and the next.

For n positions with k numbers each, and m neighbours; a stack (i, n, k) holds i matrices. All functions may overwrite
the matrix products that they get, named `y` or `products`, and return new arrays or those. Functions of values fill
`factors`, if they get any, with what the functions of derivatives read from them: `push` in their names marks
products with a direction, `pull` for those with a cotangent.

Positions may also have two axes, as T positions of B sequences, (B, T, k). What belongs to neighbours may then come
in the places of the neighbours themselves, with `distances`, one for each: the value at [b, t + distance] belongs to
position [b, t], and zeros where there is none. There may be other numbers of these positions, even and odd ones say.
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

Distances: TypeAlias = Sequence[int] | None
Factors: TypeAlias = Array | None
"""What is filled, if it is there."""


class Mixture:
    """The states of m neighbours, mixed: hhat = sum_j s_j*h_j with s_j = sigma(a_j) / sum_l sigma(a_l).

    The arguments a_j are matrix products, of h_j, plus x_j. The factors are a stack of 2 m - 1: s_1, ..., s_(m-1), and
    dhhat/da_j for all j.
    """

    takes_sequences: ClassVar[bool] = False

    @staticmethod
    def value(
        products: Arrays, x: Array, states: Arrays, factors: Factors = None, distances: Distances = None
    ) -> Array:
        """Return hhat for the products of the h_j, x (m, n, k), and the h_j."""
        products, states = (near(part, distances, x.shape[-2]) for part in (products, states))
        for j, product in enumerate(products):
            product += x[j, ...]
        return (_mixture_of_two if len(states) == 2 else _mixture)(products, states, factors)

    @staticmethod
    def push(products: Arrays, dstates: Arrays, factors: Array, distances: Distances = None) -> Array:
        """Return dhhat for the products of the dh_j, and the dh_j."""
        products, dstates = (near(part, distances, factors.shape[-2]) for part in (products, dstates))
        m, last = len(products), dstates[-1]
        for j, product in enumerate(products):
            product *= factors[m - 1 + j, ...]
        dhhat = total(products)
        for j, dh in enumerate(dstates[:-1]):
            dhhat += factors[j, ...] * (dh - last)
        dhhat += last
        return dhhat

    @staticmethod
    def pull(y: Array, hhat: Array, factors: Array) -> tuple[Array, tuple[Array, ...]]:
        """Return the cotangents of hhat, the sum of the product y and what is known of it, and of the a_j."""
        m = (factors.shape[0] + 1) // 2
        y += hhat
        return y, tuple(factors[m - 1 + j, ...] * y for j in range(m))

    @staticmethod
    def share(products: Arrays, hhat: Array, factors: Array) -> tuple[Array, ...]:
        """Return the cotangents of the h_j: the products, with those of the a_j, plus s_j times that of hhat."""
        last = products[-1]
        last += hhat
        for j, product in enumerate(products[:-1]):
            part = factors[j, ...] * hhat
            product += part
            last -= part
        return tuple(products)

    @staticmethod
    def gather(products: Arrays, hhat: Array, factors: Array, distances: Sequence[int], length: int) -> Array:
        """Return the sum of these that each of the neighbours gets, (B, length, k)."""
        return total(near(Mixture.share(products, hhat, factors), [-distance for distance in distances], length))


class GRU:
    """An ordinary GRU that starts from hhat: h = keep*hhat + (1-keep)*tanh(x + U (r*hhat)).

    The gates keep and r have arguments y, matrix products of hhat, plus x. The factors are a stack of 5: keep, r, dh/dy
    of keep, d(r*hhat)/dy of r, and dh/d(argument of tanh).
    """

    @staticmethod
    def reset(y: Array, x: Array, hhat: Array, factors: Factors = None) -> tuple[Array, Array]:
        """Return keep and r*hhat for stacks y and x of 2."""
        y += x
        gates = gate(y)
        keep, r = gates[0, ...], gates[1, ...]
        product = r * hhat
        if factors is not None:
            factors[:2, ...] = gates
            factors[3, ...] = (r - 1.0) * product
        return keep, product

    @staticmethod
    def blend(y: Array, x: Array, keep: Array, hhat: Array, factors: Factors = None) -> Array:
        """Return h for the product y of r*hhat, and what else `reset` got and returned."""
        y += x
        candidate = array_namespace(y).tanh(y)
        h = hhat - candidate
        h *= keep
        h += candidate
        if factors is not None:
            z = 1.0 - keep
            factors[2, ...] = z * (candidate - h)
            factors[4, ...] = z * (1.0 - candidate * candidate)
        return h

    @staticmethod
    def push_reset(y: Array, dhhat: Array, factors: Array) -> Array:
        """Return d(r*hhat) for the products y (2, n, k) of dhhat; the first of them stays."""
        return factors[1, ...] * dhhat + factors[3, ...] * y[1, ...]

    @staticmethod
    def push_blend(y: Array, gates: Array, dhhat: Array, factors: Array) -> Array:
        """Return dh for the product y of d(r*hhat), and the products `gates` (2, n, k) that `push_reset` left."""
        y *= factors[4, ...]
        y += factors[2, ...] * gates[0, ...]
        y += factors[0, ...] * dhhat
        return y

    @staticmethod
    def pull_blend(w: Array, factors: Array) -> Array:
        """Return the cotangent of the argument of tanh, for that of h."""
        return factors[4, ...] * w

    @staticmethod
    def pull_reset(y: Array, w: Array, factors: Array) -> tuple[Array, Array]:
        """Return the cotangents of hhat, as far as it is known, and of the gates' arguments, for the product y."""
        hhat = factors[0, ...] * w
        hhat += factors[1, ...] * y
        return hhat, array_namespace(y).stack([factors[2, ...] * w, factors[3, ...] * y])


class LSTM:
    """The states (h, c) of two neighbours, p and q, mixed by one switch, and an ordinary LSTM that starts from there.

    A state is a matrix (n, 2 k), h beside c. The switch is that of `Mixture`. The gates i, f and o have arguments y,
    matrix products of hhat, plus x; g = tanh(y + x). The factors are

    - of the mixture, a stack of 5: s, ds/da, ds/dc for the arguments a and c of the switch, and the differences of the
      neighbours' h and c,
    - of the rest, a stack of 6: f, o (1 - tanh(c)^2), and the derivatives by the arguments of i, f and g, of c, and by
      that of o, of h; in the order i, f, o, g.
    """

    takes_sequences: ClassVar[bool] = False

    @staticmethod
    def value(
        products: Arrays, x: Array, states: Arrays, factors: Factors = None, distances: Distances = None
    ) -> tuple[Array, Array]:
        """Return hhat and chat for the products of both neighbours' h, x (2, n, k), and both states."""
        (a, c), states = (near(part, distances, x.shape[-2]) for part in (products, states))
        a += x[0, ...]
        c += x[1, ...]
        s = switch(a, c, None if factors is None else factors[1:3, ...])
        (hp, cp), (hq, cq) = halves(states[0]), halves(states[1])
        hhat, chat = hp - hq, cp - cq
        if factors is not None:
            factors[0, ...], factors[3, ...], factors[4, ...] = s, hhat, chat
        for hat, last in ((hhat, hq), (chat, cq)):
            hat *= s
            hat += last
        return hhat, chat

    @staticmethod
    def state(y: Array, x: Array, chat: Array, factors: Factors = None) -> Array:
        """Return the state (n, 2 k) for stacks y and x of 4."""
        xp = array_namespace(y)
        y += x
        sigmas, g = gate(y[:3, ...]), xp.tanh(y[3, ...])
        i, f, o = (sigmas[j, ...] for j in range(3))
        c = i * g
        c += f * chat
        tanh_c = xp.tanh(c)
        if factors is not None:
            factors[0, ...] = f
            factors[1, ...] = o * (1.0 - tanh_c * tanh_c)
            factors[2, ...] = (i - 1.0) * i * g
            factors[3, ...] = (f - 1.0) * f * chat
            factors[4, ...] = (o - 1.0) * o * tanh_c
            factors[5, ...] = i * (1.0 - g * g)
        return join(o * tanh_c, c)

    @staticmethod
    def push(products: Arrays, dstates: Arrays, factors: Array, distances: Distances = None) -> tuple[Array, Array]:
        """Return dhhat and dchat for the products of both neighbours' dh, and both dstates."""
        (ds, other), dstates = (near(part, distances, factors.shape[-2]) for part in (products, dstates))
        ds *= factors[1, ...]
        other *= factors[2, ...]
        ds += other
        (dhp, dcp), (dhq, dcq) = halves(dstates[0]), halves(dstates[1])
        dhhat, dchat = dhp - dhq, dcp - dcq
        for hat, last, difference in ((dhhat, dhq, factors[3, ...]), (dchat, dcq, factors[4, ...])):
            hat *= factors[0, ...]
            hat += last
            hat += difference * ds
        return dhhat, dchat

    @staticmethod
    def push_state(y: Array, dchat: Array, factors: Array) -> Array:
        """Return the change of the state for the products y (4, n, k) of dhhat."""
        y *= factors[2:6, ...]
        dc = factors[0, ...] * dchat
        for j in (0, 1, 3):
            dc += y[j, ...]
        dh = factors[1, ...] * dc
        dh += y[2, ...]
        return join(dh, dc)

    @staticmethod
    def pull_state(w: Array, factors: Array) -> tuple[Array, Array]:
        """Return the cotangents of the arguments of i, f, o and g (4, n, k) and of chat, for that of the state."""
        wh, wc = halves(w)
        c = factors[1, ...] * wh
        c += wc
        arguments = factors[2:6, ...] * array_namespace(w).expand_dims(c, axis=0)
        arguments[2, ...] = factors[4, ...] * wh
        c *= factors[0, ...]
        return arguments, c

    @staticmethod
    def pull_mix(hhat: Array, chat: Array, factors: Array) -> tuple[Array, Array]:
        """Return the cotangents of both arguments of the switch, for those of hhat and chat."""
        s = hhat * factors[3, ...]
        s += chat * factors[4, ...]
        return s * factors[1, ...], s * factors[2, ...]

    @staticmethod
    def share(products: Arrays, hhat: Array, chat: Array, factors: Array) -> tuple[Array, Array]:
        """Return the cotangents of both neighbours' states; the products have those of the switch's arguments."""
        p, q = products
        share, cp = factors[0, ...] * hhat, factors[0, ...] * chat
        p += share
        q += hhat
        q -= share
        return join(p, cp), join(q, chat - cp)

    @staticmethod
    def gather(
        products: Arrays, hhat: Array, chat: Array, factors: Array, distances: Sequence[int], length: int
    ) -> Array:
        """Return the sum of these that each of the neighbours gets, (B, length, 2 k)."""
        p, q = near(LSTM.share(products, hhat, chat, factors), [-distance for distance in distances], length)
        p += q
        return p


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
    return found


def total(parts: Arrays) -> Array:
    """The sum, in the first of the parts."""
    return reduce(operator.iadd, parts)


def gate(y: Array) -> Array:
    """1/(1 + exp(y)), which is sigma(-y)."""
    y = array_namespace(y).exp(y)  # infinite where the gate is 0
    y += 1.0
    return 1.0 / y


def halves(state: Array) -> tuple[Array, Array]:
    """h and c of states (n, 2 k): views."""
    k = state.shape[-1] // 2
    return state[..., :k], state[..., k:]


def join(h: Array, c: Array) -> Array:
    """h and c side by side."""
    return array_namespace(h).concat([h, c], axis=-1)


def switch(a: Array, c: Array, slopes: Array | None = None) -> Array:
    """s = sigma(a) / (sigma(a) + sigma(c)), safe at any a and c; `slopes` (2, n, k) receives ds/da and ds/dc.

    That is (1 + exp(-c)) / (2 + exp(-a) + exp(-c)), with numerator and denominator scaled by exp(min(a, c, 0)): then
    the largest of the exponentials is 1.
    """
    xp = array_namespace(a)
    scale = xp.minimum(xp.minimum(a, c), 0.0)
    exp_a, exp_c, s = xp.exp(scale - a), xp.exp(scale - c), xp.exp(scale)
    total = s + exp_a
    s += exp_c
    total += s
    s /= total
    if slopes is not None:
        slopes[0, ...] = exp_a * s / total
        slopes[1, ...] = exp_c * (s - 1.0) / total
    return s


def _mixture_of_two(arguments: Arrays, states: Arrays, factors: Factors) -> Array:
    (a, c), (p, q) = arguments, states
    difference, s = p - q, switch(a, c, None if factors is None else factors[1:, ...])
    if factors is not None:
        factors[0, ...] = s
        factors[1:, ...] *= difference
    difference *= s
    difference += q
    return difference


def _mixture(arguments: Arrays, states: Arrays, factors: Factors) -> Array:
    """Mix any number of states.

    Numerators and denominator are scaled by exp(-m), with m = min(0, max_j a_j). The scaled sigma(a_j) is
    1/(exp(m) + exp(m - a_j)): at most one exponential in the sum is above 1, where its quotient
    is about to vanish anyhow, and the largest quotient is at least 1/2.
    """
    xp, m = array_namespace(arguments[0]), len(arguments)
    largest = xp.minimum(reduce(xp.maximum, arguments), 0.0)
    scale, exponentials = xp.exp(largest), [xp.exp(largest - a) for a in arguments]
    weights = [1.0 / (scale + e) for e in exponentials]
    whole = sum(weights[1:], start=weights[0])
    weights = [weight / whole for weight in weights]
    hhat = total([weight * h for weight, h in zip(weights, states)])
    if factors is not None:
        most = float(xp.finfo(scale.dtype).max) / 4
        for j, (weight, e, h) in enumerate(zip(weights, exponentials, states)):
            if j < m - 1:
                factors[j, ...] = weight
            e = xp.minimum(e, most)  # infinity over infinity is no number
            factors[m - 1 + j, ...] = weight * (e / (e + scale)) * (h - hhat)
    return hhat
