// The states of M neighbours, mixed: hhat = sum_j s_j*h_j with s_j = sigma(a_j) / sum_l sigma(a_l), where a_j is a
// product plus x_j. The factors are a stack of 2 M - 1: s_1, ..., s_(M-1), and dhhat/da_j for all j.

#include "gates.cuh"

struct Mixture {
    Real hhat, weight[M], slope[M];
};

#if M == 2

__device__ __forceinline__ Mixture mixture_of(const Real* a, const Real* h) {
    const Switch of = switch_of(a[0], a[1]);
    const Real difference = h[0] - h[1];
    return {of.s * difference + h[1], {of.s, Real(1) - of.s}, {of.slope_a * difference, of.slope_c * difference}};
}

#else

// Numerators and denominator are scaled by exp(-m), with m = min(0, max_j a_j): the scaled sigma(a_j) is
// 1 / (exp(m) + exp(m - a_j)), and the largest is at least 1/2.
__device__ __forceinline__ Mixture mixture_of(const Real* a, const Real* h) {
    Real largest = a[0], exponential[M], total = 0;
    for (int j = 1; j < M; ++j) largest = most(largest, a[j]);
    largest = least(largest, Real(0));
    const Real scale = exp(largest);
    Mixture found = {};
    for (int j = 0; j < M; ++j) {
        exponential[j] = exp(largest - a[j]);
        found.weight[j] = Real(1) / (scale + exponential[j]);
        total += found.weight[j];
    }
    for (int j = 0; j < M; ++j) {
        found.weight[j] /= total;
        found.hhat += found.weight[j] * h[j];
    }
    for (int j = 0; j < M; ++j) {
        const Real one_minus_sigma = Real(1) / (Real(1) + scale / exponential[j]);
        found.slope[j] = found.weight[j] * one_minus_sigma * (h[j] - found.hhat);
    }
    return found;
}

#endif

extern "C" __global__ void mixture_value(SIZES, NEIGHBOURS(products), STACK(x), NEIGHBOURS(states), DISTANCES,
                                         STACK(factors), Index keeps, Real* hhat) {
    PLACE;
    const Neighbours product = NEAR(products), state = NEAR(states);
    Real a[M], h[M];
    for (int j = 0; j < M; ++j) a[j] = product(j) + IN(x, j), h[j] = state(j);
    const Mixture found = mixture_of(a, h);
    hhat[i] = found.hhat;
    if (!keeps) return;
    for (int j = 0; j < M - 1; ++j) IN(factors, j) = found.weight[j];
    for (int j = 0; j < M; ++j) IN(factors, M - 1 + j) = found.slope[j];
}

extern "C" __global__ void mixture_push(SIZES, NEIGHBOURS(products), NEIGHBOURS(dstates), DISTANCES, STACK(factors),
                                        Real* dhhat) {
    PLACE;
    const Neighbours product = NEAR(products), dh = NEAR(dstates);
    const Real last = dh(M - 1);
    Real total = 0;
    for (int j = 0; j < M; ++j) total += IN(factors, M - 1 + j) * product(j);
    for (int j = 0; j < M - 1; ++j) total += IN(factors, j) * (dh(j) - last);
    dhhat[i] = total + last;
}

extern "C" __global__ void mixture_pull(SIZES, MATRIX(y), MATRIX(hhat), STACK(factors), Real* arguments) {
    PLACE;
    const Real sum = AT(y) + AT(hhat);
    Real argument[M];
    for (int j = 0; j < M; ++j) argument[j] = IN(factors, M - 1 + j) * sum;
    AT(y) = sum;
    for (int j = 0; j < M; ++j) arguments[j * count + i] = argument[j];
}

// s_j times the cotangent of hhat, for all j
#define SHARES(share, t)                                                    \
    Real share[M];                                                          \
    share[M - 1] = ROW(hhat, t)[c];                                         \
    for (int l = 0; l < M - 1; ++l) {                                       \
        share[l] = ROW(factors, t)[l * factors_j + c] * ROW(hhat, t)[c];    \
        share[M - 1] -= share[l];                                           \
    }

extern "C" __global__ void mixture_share(SIZES, NEIGHBOURS(products), DISTANCES, MATRIX(hhat), STACK(factors),
                                         Real* cotangents) {
    PLACE;
    const Neighbours product = NEAR(products);
    SHARES(share, t)
    for (int j = 0; j < M; ++j) share[j] += product(j);
    for (int j = 0; j < M; ++j) cotangents[j * count + i] = share[j];
}

// The distances are those from a neighbour to the position that it belongs to.
extern "C" __global__ void mixture_gather(SIZES, NEIGHBOURS(products), DISTANCES, MATRIX(hhat), STACK(factors),
                                          Real* total) {
    PLACE;
    const Neighbours product = NEAR(products);
    const Distances places = PLACES;
    Real sum = 0;
    for (int j = 0; j < M; ++j) {
        if (!places.reach(j, t)) continue;
        SHARES(share, t + places.distance[j])
        sum += product(j) + share[j];
    }
    total[i] = sum;
}
