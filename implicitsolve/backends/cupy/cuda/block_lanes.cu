// Block LU of block-banded matrices, rows exchanged inside the diagonal blocks; GROUP lanes of a warp for each system.
//
// F (B, T, M, K, K) keeps for each block row its multipliers, the LU of its diagonal block with the reciprocals of the
// pivots on the diagonal, and the rest of the row of U; order (B, T, K) which row stands at each place; found (B, 2)
// the first singular block, or -1, and the growth.

#include "block_lanes.cuh"

#define DEPTH (LOWER > UPPER ? LOWER : UPPER)
#define AT_LEAST_ONE(n) ((n) > 0 ? (n) : 1)
#define KEPT (LOWER + 1)  // block rows of U in the store, the current one included

__device__ __forceinline__ Row read_row(const Real* A, Index t, Index T, int lane) {
    Row row;
#pragma unroll
    for (int j = 0; j < M; ++j) {
        const bool inside = t + j >= LOWER && t + j - LOWER < T;
#pragma unroll
        for (int c = 0; c < K; ++c)
            row.of[j][c] = inside ? A[t * NUMBERS + j * BLOCK + lane * K + c] : (Real)0;
    }
    return row;
}

extern "C" __global__ void __launch_bounds__(WARP, 8)
block_lanes_factor(const Real* __restrict__ A, Real* __restrict__ F, unsigned char* __restrict__ order,
                   double* __restrict__ found, Index B, Index T) {
    SHARED_MEMORY(Real, shared);
    Real* store = shared + threadIdx.x / GROUP * KEPT * NUMBERS;
    const Index system = (Index)blockIdx.x * (WARP / GROUP) + threadIdx.x / GROUP, b = system < B ? system : 0;
    const int lane = lane_of_group() < K ? lane_of_group() : 0;
    const bool active = system < B && lane == lane_of_group();
    Real entries[AT_LEAST_ONE(LOWER)] = {}, multipliers[AT_LEAST_ONE(LOWER)] = {};  // of the last rows, nearest first
    Real scale = 0, largest = 0;
    Index singular = -1;
    A += b * T * NUMBERS;
    F += b * T * NUMBERS;
    for (Index t = 0; t < T; ++t) {
        Row row = read_row(A, t, T, lane);
#pragma unroll
        for (int j = 0; j < M; ++j) scale = larger(scale, largest_of(row.of[j]));
#pragma unroll
        for (int i = LOWER; i > 0; --i) {
            if (t < i) continue;
            const Real* upper = store + (t - i) % KEPT * NUMBERS;
            multipliers[i - 1] = larger(multipliers[i - 1], divide(row.of[LOWER - i], upper));
#pragma unroll
            for (int c = 1; c <= UPPER; ++c)
                subtract_product(row.of[LOWER - i + c], row.of[LOWER - i], upper + (LOWER + c) * BLOCK);
        }
        Real* own = store + t % KEPT * NUMBERS;
        int position;
        Real size;
        const bool regular = eliminate<LOWER + 1>(row, own, position, size);
        if (!regular && singular < 0) singular = t;
        if (active) {
            order[(b * T + t) * K + position] = lane;
#pragma unroll
            for (int j = 0; j < LOWER; ++j)
#pragma unroll
                for (int c = 0; c < K; ++c) F[t * NUMBERS + j * BLOCK + lane * K + c] = row.of[j][c];
        }
        if (system < B)
            for (int e = LOWER * BLOCK + lane_of_group(); e < NUMBERS; e += GROUP) F[t * NUMBERS + e] = own[e];
#if LOWER > 0
        largest = larger(largest, entries[LOWER - 1] * larger((Real)1, group_largest(multipliers[LOWER - 1])));
#pragma unroll
        for (int i = LOWER - 1; i > 0; --i) entries[i] = entries[i - 1], multipliers[i] = multipliers[i - 1];
        entries[0] = size;
        multipliers[0] = 1;
#else
        largest = larger(largest, size);
#endif
    }
#pragma unroll
    for (int i = 0; i < LOWER; ++i)
        largest = larger(largest, entries[i] * larger((Real)1, group_largest(multipliers[i])));
    scale = group_largest(scale);
    if (system < B && lane_of_group() == 0) {
        found[2 * b] = singular;
        found[2 * b + 1] = (double)larger(scale, largest) / scale;
    }
}

__device__ __forceinline__ void remember(Vector* last, const Vector& x) {
#pragma unroll
    for (int i = DEPTH - 1; i > 0; --i) last[i] = last[i - 1];
#if LOWER + UPPER > 0
    last[0] = x;
#endif
}

// The solution (B, T, K, columns) for right-hand sides of that shape; the second axis of the grid runs over columns.
extern "C" __global__ void __launch_bounds__(WARP, 8)
block_lanes_solve(const Real* __restrict__ F, const unsigned char* __restrict__ order,
                  const double* __restrict__ found, const Real* right, Real* solution, Index B, Index T, Index columns,
                  Index adjoint) {
    const Index system = (Index)blockIdx.x * (WARP / GROUP) + threadIdx.x / GROUP, b = system < B ? system : 0;
    const bool singular = found[2 * b] >= 0;
    F += b * T * NUMBERS;
    order += b * T * K;
    right += b * T * K * columns;
    solution += b * T * K * columns;
    for (Index column = blockIdx.y * COLUMNS; column < columns; column += gridDim.y * COLUMNS) {
        Vector last[AT_LEAST_ONE(DEPTH)] = {};
        for (Index t = 0; t < T; ++t) {
            Vector x = read(right + t * K * columns, columns, column);
            const Real* row = F + t * NUMBERS;
            if (adjoint) {
#pragma unroll
                for (int i = UPPER; i > 0; --i)
                    if (t >= i) subtract_block(x, row - i * NUMBERS + (LOWER + i) * BLOCK, last[i - 1], true);
                solve_upper_adjoint(x, row + LOWER * BLOCK);
            } else {
#pragma unroll
                for (int i = LOWER; i > 0; --i)
                    if (t >= i) subtract_block(x, row + (LOWER - i) * BLOCK, last[i - 1], false);
                solve_lower(x, row + LOWER * BLOCK, order + t * K);
            }
            remember(last, x);
            if (system < B) write(solution + t * K * columns, x, columns, column, false);
        }
        for (Index t = T - 1; t >= 0; --t) {
            Vector x = read(solution + t * K * columns, columns, column);
            const Real* row = F + t * NUMBERS;
            if (adjoint) {
#pragma unroll
                for (int i = 1; i <= LOWER; ++i)
                    if (t + i < T) subtract_block(x, row + i * NUMBERS + (LOWER - i) * BLOCK, last[i - 1], true);
                solve_lower_adjoint(x, row + LOWER * BLOCK, order + t * K);
            } else {
#pragma unroll
                for (int i = 1; i <= UPPER; ++i)
                    if (t + i < T) subtract_block(x, row + (LOWER + i) * BLOCK, last[i - 1], false);
                solve_upper(x, row + LOWER * BLOCK);
            }
            remember(last, x);
            if (system < B) write(solution + t * K * columns, x, columns, column, singular);
        }
    }
}
