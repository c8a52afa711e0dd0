// States (h, c) of two neighbours, mixed by one switch s, and an ordinary LSTM that starts from hhat and chat:
// c = f*chat + i*g and h = o*tanh(c). A row of states has 2 k numbers, h beside c. The factors are
//
// - of the mixture, a stack of 5: s, ds/da, ds/dc, and the differences of the neighbours' h and c,
// - of the rest, a stack of 6: f, o (1 - tanh(c)^2), and the derivatives by the arguments of i, f and g, of c, and by
//   that of o, of h; in the order i, f, o, g.

#include "gates.cuh"

extern "C" __global__ void lstm_mix(SIZES, NEIGHBOURS(products), STACK(x), NEIGHBOURS(states), DISTANCES,
                                    STACK(factors), Index keeps, Real* hats) {
    PLACE;
    const Neighbours product = NEAR(products), state = NEAR(states);
    const Switch of = switch_of(product(0) + IN(x, 0), product(1) + IN(x, 1));
    const Real hp = state(0), hq = state(1), cp = state(0, k), cq = state(1, k);
    hats[i] = mixed(of.s, hp, hq);
    hats[count + i] = mixed(of.s, cp, cq);
    if (!keeps) return;
    IN(factors, 0) = of.s;
    IN(factors, 1) = of.slope_a;
    IN(factors, 2) = of.slope_c;
    IN(factors, 3) = hp - hq;
    IN(factors, 4) = cp - cq;
}

extern "C" __global__ void lstm_state(SIZES, STACK(y), STACK(x), MATRIX(chat), STACK(factors), Index keeps,
                                      Real* state) {
    PLACE;
    const Real in = gate(IN(y, 0) + IN(x, 0)), f = gate(IN(y, 1) + IN(x, 1)), o = gate(IN(y, 2) + IN(x, 2));
    const Real g = tanh(IN(y, 3) + IN(x, 3)), carried = AT(chat);
    const Real now = in * g + f * carried, tanh_c = tanh(now);
    Real* row = state + (i - c) * 2 + c;
    row[0] = o * tanh_c;
    row[k] = now;
    if (!keeps) return;
    IN(factors, 0) = f;
    IN(factors, 1) = o * (Real(1) - tanh_c * tanh_c);
    IN(factors, 2) = (in - Real(1)) * in * g;
    IN(factors, 3) = (f - Real(1)) * f * carried;
    IN(factors, 4) = (o - Real(1)) * o * tanh_c;
    IN(factors, 5) = in * (Real(1) - g * g);
}

extern "C" __global__ void lstm_push_mix(SIZES, NEIGHBOURS(products), NEIGHBOURS(dstates), DISTANCES, STACK(factors),
                                         Real* hats) {
    PLACE;
    const Neighbours product = NEAR(products), dstate = NEAR(dstates);
    const Real s = IN(factors, 0), ds = IN(factors, 1) * product(0) + IN(factors, 2) * product(1);
    const Real dhhat = mixed(s, dstate(0), dstate(1)) + IN(factors, 3) * ds;
    const Real dchat = mixed(s, dstate(0, k), dstate(1, k)) + IN(factors, 4) * ds;
    hats[i] = dhhat;
    hats[count + i] = dchat;
}

extern "C" __global__ void lstm_push_state(SIZES, STACK(y), MATRIX(dchat), STACK(factors), Real* dstate) {
    PLACE;
    Real dc = IN(factors, 0) * AT(dchat);
    dc += IN(factors, 2) * IN(y, 0) + IN(factors, 3) * IN(y, 1) + IN(factors, 5) * IN(y, 3);
    const Real dh = IN(factors, 1) * dc + IN(factors, 4) * IN(y, 2);
    Real* row = dstate + (i - c) * 2 + c;
    row[0] = dh;
    row[k] = dc;
}

// The arguments of a row stand side by side: (count / k, 4, k).
extern "C" __global__ void lstm_pull_state(SIZES, MATRIX(w), STACK(factors), Real* arguments, Real* chat) {
    PLACE;
    const Real of_h = AT(w), of_c = IN(factors, 1) * of_h + ROW(w, t)[c + k];
    const Real in = IN(factors, 2) * of_c, f = IN(factors, 3) * of_c, o = IN(factors, 4) * of_h;
    const Real g = IN(factors, 5) * of_c, carried = IN(factors, 0) * of_c;
    Real* row = arguments + (i - c) * 4 + c;
    row[0] = in;
    row[k] = f;
    row[2 * k] = o;
    row[3 * k] = g;
    chat[i] = carried;
}

extern "C" __global__ void lstm_pull_mix(SIZES, MATRIX(hhat), MATRIX(chat), STACK(factors), Real* arguments) {
    PLACE;
    const Real of_s = AT(hhat) * IN(factors, 3) + AT(chat) * IN(factors, 4);
    const Real a = of_s * IN(factors, 1), other = of_s * IN(factors, 2);
    arguments[i] = a;
    arguments[count + i] = other;
}

extern "C" __global__ void lstm_share(SIZES, NEIGHBOURS(products), DISTANCES, MATRIX(hhat), MATRIX(chat),
                                      STACK(factors), Real* states) {
    PLACE;
    const Neighbours product = NEAR(products);
    const Real h = IN(factors, 0) * AT(hhat), carried = IN(factors, 0) * AT(chat);
    const Real p = product(0) + h, q = product(1) + (AT(hhat) - h), rest = AT(chat) - carried;
    Real *row = states + (i - c) * 2 + c, *other = row + 2 * count;
    row[0] = p;
    row[k] = carried;
    other[0] = q;
    other[k] = rest;
}

// The distances are those from a neighbour to the position that it belongs to.
extern "C" __global__ void lstm_gather(SIZES, NEIGHBOURS(products), DISTANCES, MATRIX(hhat), MATRIX(chat),
                                       STACK(factors), Real* states) {
    PLACE;
    const Neighbours product = NEAR(products);
    const Distances places = PLACES;
    Real h = 0, carried = 0;
    for (int j = 0; j < 2; ++j) {
        if (!places.reach(j, t)) continue;
        const Index from = t + places.distance[j];
        const Real s = ROW(factors, from)[c], of_h = ROW(hhat, from)[c], of_c = ROW(chat, from)[c];
        h += product(j) + (j == 0 ? s * of_h : of_h - s * of_h);
        carried += j == 0 ? s * of_c : of_c - s * of_c;
    }
    Real* row = states + (i - c) * 2 + c;
    row[0] = h;
    row[k] = carried;
}
