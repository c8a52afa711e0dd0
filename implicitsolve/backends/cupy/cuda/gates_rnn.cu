// Recurrent networks without gates: h = phi(a), where a is the sum of M products and x. The only factor is phi'(a).

#include "gates.cuh"

enum Activation { TANH, LOGISTIC, RELU, IDENTITY };

__device__ __forceinline__ Real phi(Index activation, Real a) {
    switch (activation) {
        case TANH: return tanh(a);
        case LOGISTIC: return gate(-a);
        case RELU: return a < Real(0) ? Real(0) : a;
        default: return a;
    }
}

// phi' by the value of phi
__device__ __forceinline__ Real slope(Index activation, Real h) {
    switch (activation) {
        case TANH: return Real(1) - h * h;
        case LOGISTIC: return h - h * h;
        case RELU: return h > Real(0) ? Real(1) : Real(0);
        default: return Real(1);
    }
}

__device__ __forceinline__ Real sum(const Neighbours& products) {
    Real total = products(0);
    for (int j = 1; j < M; ++j) total += products(j);
    return total;
}

extern "C" __global__ void rnn_value(SIZES, NEIGHBOURS(products), DISTANCES, MATRIX(x), STACK(factors), Index keeps,
                                     Index activation, Real* values) {
    PLACE;
    const Real h = phi(activation, sum(NEAR(products)) + AT(x));
    values[i] = h;
    if (keeps) IN(factors, 0) = slope(activation, h);
}

extern "C" __global__ void rnn_push(SIZES, NEIGHBOURS(products), DISTANCES, MATRIX(factors), Real* dh) {
    PLACE;
    dh[i] = AT(factors) * sum(NEAR(products));
}

// The distances are those from a neighbour to the position that it belongs to.
extern "C" __global__ void rnn_gather(SIZES, NEIGHBOURS(products), DISTANCES, Real* total) {
    PLACE;
    total[i] = sum(NEAR(products));
}
