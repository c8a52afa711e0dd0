// Block LU of many block-banded matrices with small blocks, rows exchanged inside the diagonal blocks; one thread for
// each system. The constants are K, LOWER, UPPER.
//
// A (B, T, M, K, K), M = LOWER + UPPER + 1, is read through shared memory. F (T, M, K, K, B) keeps for each block row
// its multipliers, the LU of its diagonal block with the reciprocals of the pivots on the diagonal, and the rest of the
// row of U; pivots (T, B) the rows exchanged, two bits each; found (B, 2) the first singular block, or -1, and
// the growth.

#include "block_stage.cuh"

#define M (LOWER + UPPER + 1)
#define AT_LEAST_ONE(n) ((n) > 0 ? (n) : 1)
#define DEPTH AT_LEAST_ONE(LOWER > UPPER ? LOWER : UPPER)
#define NUMBERS (M * K * K)
#define ROWS AT_LEAST_ONE(32 / NUMBERS)
#define PITCH ((ROWS * NUMBERS) | 1)
#define PARTS (32 / K)
#define PART_PITCH ((PARTS * K) | 1)

typedef Real Block[K][K];

__device__ __forceinline__ Real largest_entry(const Block& X) {
    Real found = 0;
#pragma unroll
    for (int r = 0; r < K; ++r)
#pragma unroll
        for (int c = 0; c < K; ++c) found = larger(found, magnitude(X[r][c]));
    return found;
}

// X = X U^-1
__device__ __forceinline__ void divide(Block& X, const Block& U) {
#pragma unroll
    for (int r = 0; r < K; ++r)
#pragma unroll
        for (int c = 0; c < K; ++c) {
            Real v = X[r][c];
#pragma unroll
            for (int q = 0; q < c; ++q) v = fma(-X[r][q], U[q][c], v);
            X[r][c] = v * U[c][c];
        }
}

// Z = Z - X Y
__device__ __forceinline__ void subtract_product(Block& Z, const Block& X, const Block& Y) {
#pragma unroll
    for (int r = 0; r < K; ++r)
#pragma unroll
        for (int c = 0; c < K; ++c)
#pragma unroll
            for (int q = 0; q < K; ++q) Z[r][c] = fma(-X[r][q], Y[q][c], Z[r][c]);
}

__device__ __forceinline__ void exchange(Real& a, Real& b, bool really) {
    Real kept = a;
    a = really ? b : a;
    b = really ? kept : b;
}

// Eliminate inside the diagonal block row[0], and exchange and eliminate the rows of the blocks right of it.
// Returns the rows exchanged, or -1 where a pivot was zero or not finite.
__device__ __forceinline__ int eliminate(Block* row, Real& entries) {
    int pivots = 0;
    bool regular = true;
#pragma unroll
    for (int r = 0; r < K; ++r) {
        int p = r;
        Real best = magnitude(row[0][r][r]);
#pragma unroll
        for (int i = r + 1; i < K; ++i)
            if (magnitude(row[0][i][r]) > best) p = i, best = magnitude(row[0][i][r]);
        pivots |= p << (2 * r);
#pragma unroll
        for (int i = r + 1; i < K; ++i)
#pragma unroll
            for (int j = 0; j <= UPPER; ++j)
#pragma unroll
                for (int c = 0; c < K; ++c) exchange(row[j][r][c], row[j][i][c], p == i);
        Real reciprocal = 1 / row[0][r][r];
        regular = regular && best > 0 && isfinite(best) && isfinite(reciprocal);
        entries = larger(entries, best);
        row[0][r][r] = reciprocal;
#pragma unroll
        for (int i = r + 1; i < K; ++i) {
            Real ratio = row[0][i][r] * reciprocal;
            row[0][i][r] = ratio;
#pragma unroll
            for (int j = 0; j <= UPPER; ++j)
#pragma unroll
                for (int c = j == 0 ? r + 1 : 0; c < K; ++c) row[j][i][c] = fma(-ratio, row[j][r][c], row[j][i][c]);
        }
#pragma unroll
        for (int c = r + 1; c < K; ++c) entries = larger(entries, magnitude(row[0][r][c]));
    }
#pragma unroll
    for (int j = 1; j <= UPPER; ++j) entries = larger(entries, largest_entry(row[j]));
    return regular ? pivots : -1;
}

extern "C" __global__ void __launch_bounds__(WARP, 8)
block_threads_factor(const Real* __restrict__ A, Real* __restrict__ F, unsigned char* __restrict__ pivots,
                     double* __restrict__ found, Index B, Index T) {
    SHARED_MEMORY(Real, stage);
    Systems systems = {(Index)blockIdx.x * WARP, B, T * NUMBERS, 1};
    const Index b = systems.first + threadIdx.x;
    Block U[AT_LEAST_ONE(LOWER)][UPPER + 1] = {};  // the last block rows of U, the nearest first
    Real entries[AT_LEAST_ONE(LOWER)] = {}, multipliers[AT_LEAST_ONE(LOWER)] = {};
    Real scale = 0, largest = 0;
    Index singular = -1;
    for (Index start = 0; start < T; start += ROWS) {
        const int rows = T - start < ROWS ? T - start : ROWS;
        fetch(stage, PITCH, A + start * NUMBERS, systems, rows * NUMBERS);
        if (b >= B) continue;
        for (Index t = start; t < start + rows; ++t) {
            const Real* own = stage + threadIdx.x * PITCH + (t - start) * NUMBERS;
            Block row[M];
#pragma unroll
            for (int j = 0; j < M; ++j) {
                const bool inside = t + j >= LOWER && t + j - LOWER < T;
#pragma unroll
                for (int e = 0; e < K * K; ++e) row[j][e / K][e % K] = inside ? own[j * K * K + e] : (Real)0;
                scale = larger(scale, largest_entry(row[j]));
            }
#pragma unroll
            for (int i = LOWER; i > 0; --i) {
                divide(row[LOWER - i], U[i - 1][0]);
                multipliers[i - 1] = larger(multipliers[i - 1], largest_entry(row[LOWER - i]));
#pragma unroll
                for (int c = 1; c <= UPPER; ++c) subtract_product(row[LOWER - i + c], row[LOWER - i], U[i - 1][c]);
            }
            Real size = 0;
            const int exchanged = eliminate(row + LOWER, size);
            if (exchanged < 0 && singular < 0) singular = t;
            pivots[t * B + b] = exchanged;
#pragma unroll
            for (int j = 0; j < M; ++j)
#pragma unroll
                for (int e = 0; e < K * K; ++e) F[((t * M + j) * K * K + e) * B + b] = row[j][e / K][e % K];
#if LOWER > 0
            largest = larger(largest, entries[LOWER - 1] * most(1, multipliers[LOWER - 1]));
#pragma unroll
            for (int i = LOWER - 1; i > 0; --i) {
                entries[i] = entries[i - 1];
                multipliers[i] = multipliers[i - 1];
#pragma unroll
                for (int e = 0; e < (UPPER + 1) * K * K; ++e)
                    U[i][e / (K * K)][e / K % K][e % K] = U[i - 1][e / (K * K)][e / K % K][e % K];
            }
            entries[0] = size;
            multipliers[0] = 1;
#pragma unroll
            for (int e = 0; e < (UPPER + 1) * K * K; ++e)
                U[0][e / (K * K)][e / K % K][e % K] = row[LOWER + e / (K * K)][e / K % K][e % K];
#else
            largest = larger(largest, size);
#endif
        }
    }
#pragma unroll
    for (int i = 0; i < LOWER; ++i) largest = larger(largest, entries[i] * most(1, multipliers[i]));
    if (b < B) {
        found[2 * b] = singular;
        found[2 * b + 1] = (double)larger(scale, largest) / scale;
    }
}

// x[0:K] minus block j of row t of F, or its transpose, times y.
__device__ __forceinline__ void subtract_block(Real* x, const Real* F, Index t, int j, const Real* y, bool transposed,
                                               Index B) {
    const Real* block = F + (t * M + j) * K * K * B;
#pragma unroll
    for (int r = 0; r < K; ++r)
#pragma unroll
        for (int c = 0; c < K; ++c) {
            if (transposed)
                x[c] = fma(-block[(r * K + c) * B], y[r], x[c]);
            else
                x[r] = fma(-block[(r * K + c) * B], y[c], x[r]);
        }
}

__device__ __forceinline__ void remember(Real (*last)[K], const Real* x) {
#pragma unroll
    for (int i = DEPTH - 1; i >= 0; --i)
#pragma unroll
        for (int r = 0; r < K; ++r) last[i][r] = i > 0 ? last[i - 1][r] : x[r];
}

// x = L^-1 P (x - multipliers times the rows before)
__device__ __forceinline__ void forward(Real* x, const Real* F, int exchanged, Index t, Real (*last)[K], Index B) {
#pragma unroll
    for (int i = LOWER; i > 0; --i) subtract_block(x, F, t, LOWER - i, last[i - 1], false, B);
    const Real* D = F + (t * M + LOWER) * K * K * B;
#pragma unroll
    for (int r = 0; r < K; ++r) {
#pragma unroll
        for (int i = r + 1; i < K; ++i) exchange(x[r], x[i], (exchanged >> (2 * r) & 3) == i);
    }
#pragma unroll
    for (int r = 1; r < K; ++r)
#pragma unroll
        for (int c = 0; c < r; ++c) x[r] = fma(-D[(r * K + c) * B], x[c], x[r]);
}

// x = U^-1 (x - blocks right of the diagonal times the rows behind)
__device__ __forceinline__ void backward(Real* x, const Real* F, Index t, Real (*last)[K], Index B) {
#pragma unroll
    for (int i = 1; i <= UPPER; ++i) subtract_block(x, F, t, LOWER + i, last[i - 1], false, B);
    const Real* D = F + (t * M + LOWER) * K * K * B;
#pragma unroll
    for (int r = K - 1; r >= 0; --r) {
#pragma unroll
        for (int c = r + 1; c < K; ++c) x[r] = fma(-D[(r * K + c) * B], x[c], x[r]);
        x[r] *= D[(r * K + r) * B];
    }
}

// x = U^-T (x - transposed blocks above the diagonal times the rows before)
__device__ __forceinline__ void forward_adjoint(Real* x, const Real* F, Index t, Real (*last)[K], Index B) {
#pragma unroll
    for (int i = UPPER; i > 0; --i)
        if (t >= i) subtract_block(x, F, t - i, LOWER + i, last[i - 1], true, B);
    const Real* D = F + (t * M + LOWER) * K * K * B;
#pragma unroll
    for (int r = 0; r < K; ++r) {
#pragma unroll
        for (int c = 0; c < r; ++c) x[r] = fma(-D[(c * K + r) * B], x[c], x[r]);
        x[r] *= D[(r * K + r) * B];
    }
}

// x = P^T L^-T (x - transposed multipliers times the rows behind)
__device__ __forceinline__ void backward_adjoint(Real* x, const Real* F, int exchanged, Index t, Real (*last)[K],
                                                 Index B, Index T) {
#pragma unroll
    for (int i = 1; i <= LOWER; ++i)
        if (t + i < T) subtract_block(x, F, t + i, LOWER - i, last[i - 1], true, B);
    const Real* D = F + (t * M + LOWER) * K * K * B;
#pragma unroll
    for (int r = K - 2; r >= 0; --r)
#pragma unroll
        for (int c = r + 1; c < K; ++c) x[r] = fma(-D[(c * K + r) * B], x[c], x[r]);
#pragma unroll
    for (int r = K - 1; r >= 0; --r)
#pragma unroll
        for (int i = r + 1; i < K; ++i) exchange(x[r], x[i], (exchanged >> (2 * r) & 3) == i);
}

// The solution (B, T, K, columns) for right-hand sides of that shape; the second axis of the grid runs over columns.
extern "C" __global__ void __launch_bounds__(WARP, 8)
block_threads_solve(const Real* __restrict__ F, const unsigned char* __restrict__ pivots,
                    const double* __restrict__ found, const Real* right, Real* solution, Index B, Index T,
                    Index columns, Index adjoint) {
    SHARED_MEMORY(Real, stage);
    Systems systems = {(Index)blockIdx.x * WARP, B, T * K * columns, columns};
    const Index b = systems.first + threadIdx.x;
    Real* own = stage + threadIdx.x * PART_PITCH;
    for (Index column = blockIdx.y; column < columns; column += gridDim.y) {
        Real last[DEPTH][K] = {};
        for (Index start = 0; start < T; start += PARTS) {
            const int rows = T - start < PARTS ? T - start : PARTS;
            const Index place = start * K * columns + column;
            fetch(stage, PART_PITCH, right + place, systems, rows * K);
            if (b < B)
                for (int i = 0; i < rows; ++i) {
                    Real x[K];
#pragma unroll
                    for (int r = 0; r < K; ++r) x[r] = own[i * K + r];
                    if (adjoint)
                        forward_adjoint(x, F + b, start + i, last, B);
                    else
                        forward(x, F + b, pivots[(start + i) * B + b], start + i, last, B);
                    remember(last, x);
#pragma unroll
                    for (int r = 0; r < K; ++r) own[i * K + r] = x[r];
                }
            put_back(solution + place, stage, PART_PITCH, systems, rows * K);
        }
        const bool singular = b < B && found[2 * b] >= 0;
        for (int i = 0; i < DEPTH; ++i)
            for (int r = 0; r < K; ++r) last[i][r] = 0;
        for (Index start = (T - 1) / PARTS * PARTS; start >= 0; start -= PARTS) {
            const int rows = T - start < PARTS ? T - start : PARTS;
            const Index place = start * K * columns + column;
            fetch(stage, PART_PITCH, solution + place, systems, rows * K);
            if (b < B)
                for (int i = rows - 1; i >= 0; --i) {
                    Real x[K];
#pragma unroll
                    for (int r = 0; r < K; ++r) x[r] = own[i * K + r];
                    if (adjoint)
                        backward_adjoint(x, F + b, pivots[(start + i) * B + b], start + i, last, B, T);
                    else
                        backward(x, F + b, start + i, last, B);
                    remember(last, x);
#pragma unroll
                    for (int r = 0; r < K; ++r) own[i * K + r] = singular ? (Real)nan("") : x[r];
                }
            put_back(solution + place, stage, PART_PITCH, systems, rows * K);
        }
    }
}
