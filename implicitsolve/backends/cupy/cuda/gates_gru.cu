// A gated recurrent unit that starts from hhat: h = keep*hhat + (1-keep)*tanh(x + U (r*hhat)), where keep and r are
// gates of products plus x. The factors are a stack of 5: keep, r, dh/dy of keep, d(r*hhat)/dy of r, and
// dh/d(argument of tanh).

#include "gates.cuh"

extern "C" __global__ void gru_reset(SIZES, STACK(y), STACK(x), MATRIX(hhat), STACK(factors), Index keeps,
                                     Real* product) {
    PLACE;
    const Real keep = gate(IN(y, 0) + IN(x, 0)), r = gate(IN(y, 1) + IN(x, 1)), reset = r * AT(hhat);
    product[i] = reset;
    if (!keeps) {
        IN(y, 0) = keep;
        return;
    }
    IN(factors, 0) = keep;
    IN(factors, 1) = r;
    IN(factors, 3) = (r - Real(1)) * reset;
}

extern "C" __global__ void gru_blend(SIZES, MATRIX(y), MATRIX(x), MATRIX(keep), MATRIX(hhat), STACK(factors),
                                     Index keeps) {
    PLACE;
    const Real candidate = tanh(AT(y) + AT(x)), own = AT(keep), z = Real(1) - own;
    const Real h = mixed(own, AT(hhat), candidate);
    AT(y) = h;
    if (!keeps) return;
    IN(factors, 2) = z * (candidate - h);
    IN(factors, 4) = z * (Real(1) - candidate * candidate);
}

extern "C" __global__ void gru_push_reset(SIZES, STACK(y), MATRIX(dhhat), STACK(factors), Real* product) {
    PLACE;
    product[i] = IN(factors, 1) * AT(dhhat) + IN(factors, 3) * IN(y, 1);
}

extern "C" __global__ void gru_push_blend(SIZES, MATRIX(y), STACK(gates), MATRIX(dhhat), STACK(factors)) {
    PLACE;
    AT(y) = IN(factors, 4) * AT(y) + IN(factors, 2) * IN(gates, 0) + IN(factors, 0) * AT(dhhat);
}

extern "C" __global__ void gru_pull_blend(SIZES, MATRIX(w), STACK(factors), Real* candidate) {
    PLACE;
    candidate[i] = IN(factors, 4) * AT(w);
}

// The arguments of a row stand side by side: (count / k, 2, k).
extern "C" __global__ void gru_pull_reset(SIZES, MATRIX(y), MATRIX(w), STACK(factors), Real* arguments) {
    PLACE;
    const Real of_reset = AT(y), of_h = AT(w);
    const Real keep = IN(factors, 2) * of_h, r = IN(factors, 3) * of_reset;
    AT(y) = IN(factors, 0) * of_h + IN(factors, 1) * of_reset;
    Real* row = arguments + (i - c) * 2 + c;
    row[0] = keep;
    row[k] = r;
}
