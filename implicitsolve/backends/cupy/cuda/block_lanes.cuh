// Block rows of K unknowns, one lane for each: GROUP lanes of a warp work on one block row, and each holds its row of
// the blocks in registers. A group shares `store`, M blocks in C order: rows of which all lanes need all numbers.
// The constants are K, GROUP, LOWER, UPPER; a block row is [multipliers, diagonal block at LOWER, blocks right of it].

#include "block_numbers.cuh"

#define M (LOWER + UPPER + 1)
#define BLOCK (K * K)
#define NUMBERS (M * K * K)

struct Row {
    Real of[M][K];
};

__device__ __forceinline__ int lane_of_group() { return threadIdx.x % GROUP; }

// The lanes that work together: groups of a warp may take different paths.
__device__ __forceinline__ unsigned group() {
    return (EVERY_LANE >> (WARP - GROUP)) << (threadIdx.x % WARP / GROUP * GROUP);
}

__device__ __forceinline__ Real group_largest(Real x) {
#pragma unroll
    for (int step = GROUP / 2; step > 0; step /= 2) x = larger(x, __shfl_xor_sync(group(), x, step, GROUP));
    return x;
}

// Copy the numbers of one block row between memory and the store.
__device__ __forceinline__ void copy_row(Real* to, const Real* from) {
    __syncwarp(group());
    for (int e = lane_of_group(); e < NUMBERS; e += GROUP) to[e] = from[e];
    __syncwarp(group());
}

__device__ __forceinline__ Real largest_of(const Real* x) {
    Real found = 0;
#pragma unroll
    for (int c = 0; c < K; ++c) found = larger(found, magnitude(x[c]));
    return found;
}

// x = x U^-1 for the U of a stored row; returns its largest magnitude
__device__ __forceinline__ Real divide(Real* x, const Real* store) {
    const Real* U = store + LOWER * BLOCK;
#pragma unroll
    for (int q = 0; q < K; ++q) {
        x[q] *= U[q * K + q];
#pragma unroll
        for (int c = q + 1; c < K; ++c) x[c] = fma(-x[q], U[q * K + c], x[c]);
    }
    return largest_of(x);
}

// z = z - x Y
__device__ __forceinline__ void subtract_product(Real* z, const Real* x, const Real* Y) {
#pragma unroll
    for (int q = 0; q < K; ++q)
#pragma unroll
        for (int c = 0; c < K; ++c) z[c] = fma(-x[q], Y[q * K + c], z[c]);
}

// The lane of the largest magnitude among those that have not been pivots; all lanes of the group learn both.
__device__ __forceinline__ int largest_lane(Real x, bool candidate, Real& size) {
    int from = lane_of_group();
    size = !candidate ? (Real)-1 : isfinite(x) ? magnitude(x) : 1 / (Real)0;
#pragma unroll
    for (int step = GROUP / 2; step > 0; step /= 2) {
        const Real other = __shfl_xor_sync(group(), size, step, GROUP);
        const int lane = __shfl_xor_sync(group(), from, step, GROUP);
        if (other > size || (other == size && lane < from)) size = other, from = lane;
    }
    return from;
}

// Eliminate inside the diagonal block, and in the blocks from FIRST on: exchanged rows go to the store, each to its
// position. A singular diagonal block becomes the identity. `entries` is the largest magnitude of U and those blocks.
template <int FIRST>
__device__ __forceinline__ bool eliminate(Row& row, Real* store, int& position, Real& entries) {
    const int lane = lane_of_group();
    bool regular = true;
    position = -1;
    entries = 0;
    __syncwarp(group());
#pragma unroll
    for (int r = 0; r < K; ++r) {
        Real size;
        const bool chosen = largest_lane(row.of[LOWER][r], lane < K && position < 0, size) == lane;
        if (chosen) {
            position = r;
            row.of[LOWER][r] = 1 / row.of[LOWER][r];
            entries = larger(entries, size);
#pragma unroll
            for (int j = FIRST < LOWER ? FIRST : LOWER; j < M; ++j)
#pragma unroll
                for (int c = 0; c < K; ++c) {
                    store[j * BLOCK + r * K + c] = row.of[j][c];
                    if (j != LOWER || c > r) entries = larger(entries, magnitude(row.of[j][c]));
                }
        }
        __syncwarp(group());
        const Real* U = store + LOWER * BLOCK + r * K;
        regular = regular && size > 0 && isfinite(size) && isfinite(U[r]);
        if (regular && position < 0) {
            const Real ratio = row.of[LOWER][r] * U[r];
            row.of[LOWER][r] = ratio;
#pragma unroll
            for (int c = r + 1; c < K; ++c) row.of[LOWER][c] = fma(-ratio, U[c], row.of[LOWER][c]);
#pragma unroll
            for (int j = FIRST; j < M; ++j)
                if (j != LOWER)
#pragma unroll
                    for (int c = 0; c < K; ++c)
                        row.of[j][c] = fma(-ratio, store[j * BLOCK + r * K + c], row.of[j][c]);
        }
    }
    entries = group_largest(entries);
    __syncwarp(group());
    if (!regular && position >= 0)
        for (int c = 0; c < K; ++c) store[LOWER * BLOCK + position * K + c] = c == position;
    __syncwarp(group());
    return regular;
}

// Vectors: each lane holds its number, in `COLUMNS` right-hand sides.
struct Vector {
    Real of[COLUMNS];
};

__device__ __forceinline__ Vector from_lane(const Vector& x, int lane) {
    Vector y;
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) y.of[n] = __shfl_sync(group(), x.of[n], lane, GROUP);
    return y;
}

// x = x - a y
__device__ __forceinline__ void subtract(Vector& x, Real a, const Vector& y) {
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) x.of[n] = fma(-a, y.of[n], x.of[n]);
}

__device__ __forceinline__ void scale(Vector& x, Real a) {
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) x.of[n] *= a;
}

// Row `lane` of a block, or of its transpose; lanes beyond K read row 0.
__device__ __forceinline__ Real entry(const Real* block, int c, bool transposed) {
    const int lane = lane_of_group() < K ? lane_of_group() : 0;
    return transposed ? block[c * K + lane] : block[lane * K + c];
}

// x = x - X y, or X^T y
__device__ __forceinline__ void subtract_block(Vector& x, const Real* X, const Vector& y, bool transposed) {
#pragma unroll
    for (int c = 0; c < K; ++c) subtract(x, entry(X, c, transposed), from_lane(y, c));
}

// x = L^-1 P x
__device__ __forceinline__ void solve_lower(Vector& x, const Real* D, const unsigned char* order) {
    const int lane = lane_of_group();
    x = from_lane(x, order[lane < K ? lane : 0]);
#pragma unroll
    for (int c = 0; c < K - 1; ++c) subtract(x, lane > c ? entry(D, c, false) : (Real)0, from_lane(x, c));
}

// x = U^-1 x
__device__ __forceinline__ void solve_upper(Vector& x, const Real* D) {
    const int lane = lane_of_group();
#pragma unroll
    for (int c = K - 1; c >= 0; --c) {
        if (lane == c) scale(x, D[c * K + c]);
        subtract(x, lane < c ? entry(D, c, false) : (Real)0, from_lane(x, c));
    }
}

// x = U^-T x
__device__ __forceinline__ void solve_upper_adjoint(Vector& x, const Real* D) {
    const int lane = lane_of_group();
#pragma unroll
    for (int c = 0; c < K; ++c) {
        if (lane == c) scale(x, D[c * K + c]);
        subtract(x, lane > c ? entry(D, c, true) : (Real)0, from_lane(x, c));
    }
}

// x = P^T L^-T x
__device__ __forceinline__ void solve_lower_adjoint(Vector& x, const Real* D, const unsigned char* order) {
    const int lane = lane_of_group();
#pragma unroll
    for (int c = K - 1; c > 0; --c) subtract(x, lane < c ? entry(D, c, true) : (Real)0, from_lane(x, c));
    int source = 0;
#pragma unroll
    for (int r = 0; r < K; ++r) source = order[r] == lane ? r : source;
    x = from_lane(x, source);
}

// Numbers `lane` of a block of K unknowns in columns first, first + 1, ...
__device__ __forceinline__ Vector read(const Real* x, Index columns, Index first) {
    Vector y;
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n)
        y.of[n] = lane_of_group() < K && first + n < columns ? x[lane_of_group() * columns + first + n] : (Real)0;
    return y;
}

__device__ __forceinline__ void write(Real* x, const Vector& y, Index columns, Index first, bool singular) {
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n)
        if (lane_of_group() < K && first + n < columns)
            x[lane_of_group() * columns + first + n] = singular ? (Real)nan("") : y.of[n];
}
