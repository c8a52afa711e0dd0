// Affine recurrences of k channels, each of PARTS numbers that a block D_t couples: h_t = b_t + D_t h_(t-1), or with PULL
// h_t = b_t + s_t and s_(t+1) = D_t^T h_t. One thread for each channel of each chunk of a run, so that neighbours in a
// warp read neighbours in memory.
//
// With ENDS a chunk starts from zeros and from the unit vectors, and returns how its last state depends on its first:
// e, a row of `out`, and the block P, of `products`, in last = e + P first. Else it starts from `begin`, or from the
// state behind the chunk before, a row of `ends`, and returns the h_t.

#include "common.cuh"

#define COLUMNS (ENDS ? PARTS + 1 : 1)

extern "C" __global__ void __launch_bounds__(128)
    affine(Index count, Index k, const Real* __restrict__ b, Index b_row, const Real* __restrict__ D, Index of_matrix,
           Index of_row, const Real* __restrict__ begin, const Real* __restrict__ ends, const Index* __restrict__ table,
           Index runs, Index chunks, Index chunk, Real* __restrict__ out, Real* __restrict__ products) {
    const Index thread = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= count) return;
    const Index i = thread % k, pair = thread / k, run = pair / chunks, first = pair % chunks * chunk;
    const Index left = table[run] - first, steps = left < chunk ? left : chunk, way = table[3 * runs + run];
    if (steps <= 0) return;
    Index source = table[runs + run] + way * first, target = table[2 * runs + run] + way * first;
    Real s[COLUMNS][PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const Index place = p * k + i;
        if (ENDS) {
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) s[c][p] = c == p + 1;
        } else {
            s[0][p] = first == 0 ? begin[run * PARTS * k + place] : ends[(pair - 1) * PARTS * k + place];
        }
    }
#pragma unroll 4
    for (Index t = 0; t < steps; ++t, source += way, target += way) {
        Real d[PARTS][PARTS], own[PARTS], h[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            own[p] = b[source * b_row + p * k + i];
#pragma unroll
            for (int q = 0; q < PARTS; ++q) d[p][q] = D[(p * PARTS + q) * of_matrix + source * of_row + i];
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
            for (int p = 0; p < PARTS; ++p) h[p] = PULL ? s[c][p] + (c == 0 ? own[p] : Real(0)) : s[c][p];
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                Real sum = !PULL && c == 0 ? own[p] : Real(0);
#pragma unroll
                for (int q = 0; q < PARTS; ++q) sum = fma(PULL ? d[q][p] : d[p][q], h[q], sum);
                s[c][p] = sum;
            }
        }
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
            if (!ENDS) out[target * PARTS * k + p * k + i] = PULL ? h[p] : s[0][p];
    }
    if (ENDS) {
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            out[pair * PARTS * k + p * k + i] = s[0][p];
#pragma unroll
            for (int c = 1; c < COLUMNS; ++c)
                products[((p * PARTS + c - 1) * runs * chunks + pair) * k + i] = s[c][p];
        }
    }
}
