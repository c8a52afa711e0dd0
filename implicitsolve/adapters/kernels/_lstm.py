"""Array-API reference of the elementwise work of the implicit LSTM; see `_gates` for what all of these share."""

from __future__ import annotations

from collections.abc import Sequence

from implicitsolve.adapters._common import Array, array_namespace
from implicitsolve.adapters.kernels._gates import Terms, gate, near


class LSTM:
    """The states (h, c) of two neighbours, p and q, mixed by one switch, and an ordinary LSTM that starts from there.

    A state is a matrix (n, 2 k), h beside c. The switch is that of `Mixture`. The gates i, f and o have arguments y,
    matrix products of hhat, plus x; g = tanh(y + x). The factors are

    - of the mixture, a stack of 5: s, ds/da, ds/dc for the arguments a and c of the switch, and the differences of the
      neighbours' h and c,
    - of the rest, a stack of 6: f, o (1 - tanh(c)^2), and the derivatives by the arguments of i, f and g, of c, and by
      that of o, of h; in the order i, f, o, g.
    """

    @staticmethod
    def mix(
        products: Sequence[Array],
        x: Array,
        states: Sequence[Array],
        factors: Array = None,
        distances: Sequence[int] | None = None,
    ) -> tuple[Array, Array]:
        """Return hhat and chat for the products of both neighbours' h, x (2, n, k), and both states."""
        products, states = (near(part, distances, x.shape[-2]) for part in (products, states))
        a, c = products
        a += x[0, ...]
        c += x[1, ...]
        terms, (hp, cp), (hq, cq) = Terms.of(a, c), halves(states[0]), halves(states[1])
        hhat, chat = hp - hq, cp - cq
        if factors is not None:
            for i, factor in enumerate((terms.s, *terms.slopes(), hhat, chat)):
                factors[i, ...] = factor
        hhat *= terms.s
        hhat += hq
        chat *= terms.s
        chat += cq
        return hhat, chat

    @staticmethod
    def state(y: Array, x: Array, chat: Array, factors: Array = None) -> Array:
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
        return joined(o * tanh_c, c)

    @staticmethod
    def push_mix(
        products: Sequence[Array], dstates: Sequence[Array], factors: Array, distances: Sequence[int] | None = None
    ) -> tuple[Array, Array]:
        """Return dhhat and dchat for the products of both neighbours' dh, and both dstates."""
        products, dstates = (near(part, distances, factors.shape[-2]) for part in (products, dstates))
        s, slope_a, slope_c, difference_h, difference_c = (factors[i, ...] for i in range(5))
        ds, other = products
        ds *= slope_a
        other *= slope_c
        ds += other
        mixed = []
        for dp, dq, difference in zip(halves(dstates[0]), halves(dstates[1]), (difference_h, difference_c)):
            total = dp - dq
            total *= s
            total += dq
            total += difference * ds
            mixed.append(total)
        return mixed[0], mixed[1]

    @staticmethod
    def push_state(y: Array, dchat: Array, factors: Array) -> Array:
        """Return the change of the state for the products y (4, n, k) of dhhat."""
        y *= factors[2:6, ...]
        dc = factors[0, ...] * dchat
        for j in (0, 1, 3):
            dc += y[j, ...]
        dh = factors[1, ...] * dc
        dh += y[2, ...]
        return joined(dh, dc)

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
    def share(products: Sequence[Array], hhat: Array, chat: Array, factors: Array) -> tuple[Array, Array]:
        """Return the cotangents of both neighbours' states; the products have those of the switch's arguments."""
        p, q = products
        share, cp = factors[0, ...] * hhat, factors[0, ...] * chat
        p += share
        q += hhat
        q -= share
        return joined(p, cp), joined(q, chat - cp)

    @staticmethod
    def gather(
        products: Sequence[Array], hhat: Array, chat: Array, factors: Array, distances: Sequence[int], length: int
    ) -> Array:
        """Return the sum of these that each of the neighbours gets, (B, length, 2 k)."""
        p, q = near(LSTM.share(products, hhat, chat, factors), [-distance for distance in distances], length)
        p += q
        return p


def halves(state: Array) -> tuple[Array, Array]:
    """h and c of states (n, 2 k): views."""
    k = state.shape[-1] // 2
    return state[..., :k], state[..., k:]


def joined(h: Array, c: Array) -> Array:
    """h and c side by side."""
    return array_namespace(h).concat([h, c], axis=-1)
