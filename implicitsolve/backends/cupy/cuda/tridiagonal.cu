// Chains of scalar tridiagonal matrices near the identity, (systems, T, k) of them side by side, by A = L D U without
// pivoting: one thread for each chain, so that neighbours in a warp read neighbours in memory.

#include "common.cuh"

#define LEAST_PIVOT ((Real)0.1)
#define LARGEST ((Real)1)

// What stands for a pivot: itself, or a number of its sign that is not too small, or 1 where it is not finite.
__device__ __forceinline__ Real usable(Real pivot) {
    if (!isfinite(pivot)) return 1;
    return pivot < 0 ? least(pivot, -LEAST_PIVOT) : most(pivot, LEAST_PIVOT);
}

__device__ __forceinline__ Real moderate(Real multiplier) {
    return isfinite(multiplier) ? least(most(multiplier, -LARGEST), LARGEST) : (Real)0;
}

extern "C" __global__ void __launch_bounds__(128)
tridiagonal_factor(const Real* __restrict__ lower, const Real* __restrict__ main, const Real* __restrict__ upper,
                   Real* __restrict__ below, Real* __restrict__ scale, Real* __restrict__ above, Index chains, Index T,
                   Index k) {
    const Index chain = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (chain >= chains) return;
    Index place = chain / k * T * k + chain % k;
    Real last_upper = 0, inverse = 0;
#pragma unroll 4
    for (Index t = 0; t < T; ++t, place += k) {
        const Real multiplier = t > 0 ? moderate(lower[place] * inverse) : (Real)0;
        inverse = 1 / usable(t > 0 ? main[place] - multiplier * last_upper : main[place]);
        last_upper = upper[place];
        below[place] = multiplier;
        scale[place] = inverse;
        above[place] = moderate(last_upper * inverse);
    }
}

extern "C" __global__ void __launch_bounds__(128)
tridiagonal_solve(const Real* __restrict__ b, const Real* __restrict__ below, const Real* __restrict__ scale,
                  const Real* __restrict__ above, Real* __restrict__ x, Index chains, Index T, Index k) {
    const Index chain = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (chain >= chains) return;
    Index place = chain / k * T * k + chain % k;
    Real y = b[place];
    x[place] = y * scale[place];
#pragma unroll 4
    for (Index t = 1; t < T; ++t) {
        place += k;
        y = b[place] - below[place] * y;
        x[place] = y * scale[place];
    }
    y = x[place];
#pragma unroll 4
    for (Index t = T - 2; t >= 0; --t) {
        place -= k;
        y = x[place] - above[place] * y;
        x[place] = y;
    }
}
