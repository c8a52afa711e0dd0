// Cyclic reduction of block tridiagonal matrices with large blocks. A level of `rows` block rows for each of B systems
// is split into the odd rows, whose diagonal blocks E are factored, and the even rows, which stay. An odd row keeps the
// LU of E with the reciprocals of the pivots on the diagonal, V = L^-1 P [A | C] (k, 2 k), and W = [multipliers of the
// row to its left; of the row to its right] (2 k, k).

#include "block_large.cuh"

// The row of the largest magnitude in column `c` of X, from row `first` on: the first such row, NaN counts as infinite.
__device__ __forceinline__ int largest_row(const Real* X, int c, int first, int k, Real* sizes, int* rows) {
    Real best = -1;
    int row = first;
    for (int r = first + threadIdx.x; r < k; r += THREADS) {
        const Real x = X[r * TILE_PITCH + c], size = isfinite(x) ? magnitude(x) : 1 / (Real)0;
        if (size > best) best = size, row = r;
    }
    for (int step = WARP / 2; step > 0; step /= 2) {
        const Real other = __shfl_xor_sync(EVERY_LANE, best, step);
        const int at = __shfl_xor_sync(EVERY_LANE, row, step);
        if (other > best || (other == best && at < row)) best = other, row = at;
    }
    if (threadIdx.x % WARP == 0) sizes[threadIdx.x / WARP] = best, rows[threadIdx.x / WARP] = row;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; ++w)
        if (sizes[w] > best || (sizes[w] == best && rows[w] < row)) best = sizes[w], row = rows[w];
    return row;
}

// Rows of D do not move while it is factored: `places` says which of them stands where.
__device__ __forceinline__ void stage_rows(Real* tile, const Real* D, const int* places, int row, int column, int k) {
    for (int e = threadIdx.x; e < PANEL * PANEL; e += THREADS) {
        const int r = row + e / PANEL, c = column + e % PANEL;
        tile[e / PANEL * TILE_PITCH + e % PANEL] = r < k && c < k ? D[(Index)places[r] * k + c] : (Real)0;
    }
}

// Bring the panels left of it into panel X, whose first column is `first`.
__device__ __forceinline__ void update_panel(Real* X, Real* tile, const Real* D, const int* places, int first, int k) {
    const int row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
    for (int done = 0; done < first; done += PANEL) {
        stage_rows(tile, D, places, done, done, k);
        __syncthreads();
        if (threadIdx.x < PANEL) solve_tile(X + done * TILE_PITCH + threadIdx.x, TILE_PITCH, tile, true, true);
        for (int below = done + PANEL; below < k; below += PANEL) {
            __syncthreads();
            stage_rows(tile, D, places, below, done, k);
            __syncthreads();
            Real sum[2][2] = {};
            for (int q = 0; q < PANEL; ++q)
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        sum[i][j] = fma(tile[(row + i * SIDE) * TILE_PITCH + q],
                                        X[(done + q) * TILE_PITCH + column + j * SIDE], sum[i][j]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) X[(below + row + i * SIDE) * TILE_PITCH + column + j * SIDE] -= sum[i][j];
        }
        __syncthreads();
    }
}

// Eliminate inside panel X with exchanges of rows; false where a pivot is zero or not finite.
__device__ __forceinline__ bool factor_panel(Real* X, int* places, int first, int k, Real* sizes, int* rows) {
    const int width = k - first < PANEL ? k - first : PANEL;
    for (int c = 0; c < width; ++c) {
        const int top = first + c, pivot = largest_row(X, c, top, k, sizes, rows);
        const Real size = magnitude(X[pivot * TILE_PITCH + c]), reciprocal = 1 / X[pivot * TILE_PITCH + c];
        __syncthreads();
        if (!(size > 0 && isfinite(size) && isfinite(reciprocal))) return false;
        if (pivot != top && threadIdx.x < PANEL) {
            const Real kept = X[top * TILE_PITCH + threadIdx.x];
            X[top * TILE_PITCH + threadIdx.x] = X[pivot * TILE_PITCH + threadIdx.x];
            X[pivot * TILE_PITCH + threadIdx.x] = kept;
        }
        if (pivot != top && threadIdx.x == 0) {
            const int kept = places[top];
            places[top] = places[pivot];
            places[pivot] = kept;
        }
        __syncthreads();
        for (int r = top + 1 + threadIdx.x; r < k; r += THREADS) {
            Real* row = X + r * TILE_PITCH;
            const Real ratio = row[c] * reciprocal;
            row[c] = ratio;
            for (int j = c + 1; j < width; ++j) row[j] = fma(-ratio, X[top * TILE_PITCH + j], row[j]);
        }
        __syncthreads();
    }
    return true;
}

// E (n, k, k), which is used up, becomes F (n, k, k); order (n, k) says which row stands at each place. A singular
// matrix becomes the identity, and its largest entry -1.
extern "C" __global__ void __launch_bounds__(THREADS)
large_factor(Real* E, Real* F, int* order, Real* entries, Index k_, Index count, Index T, Index first_row, Index step,
             Index slots) {
    SHARED_MEMORY(Real, X);
    const int k = k_, padded = (k + PANEL - 1) / PANEL * PANEL;
    Real* tile = X + padded * TILE_PITCH;
    Real* sizes = tile + PANEL * TILE_PITCH;
    int* rows = (int*)(sizes + THREADS / WARP);
    int* places = rows + THREADS / WARP;
    Real* D = E + (Index)blockIdx.x * k * k;
    Real largest = 0;
    bool regular = true;
    for (int r = threadIdx.x; r < k; r += THREADS) places[r] = r;
    __syncthreads();
    for (int first = 0; first < k && regular; first += PANEL) {
        for (int e = threadIdx.x; e < padded * PANEL; e += THREADS) {
            const int r = e / PANEL, c = first + e % PANEL;
            X[r * TILE_PITCH + e % PANEL] = r < k && c < k ? D[(Index)places[r] * k + c] : (Real)0;
        }
        __syncthreads();
        update_panel(X, tile, D, places, first, k);
        regular = factor_panel(X, places, first, k, sizes, rows);
        for (int e = threadIdx.x; e < k * PANEL; e += THREADS) {
            const int r = e / PANEL, c = first + e % PANEL;
            if (c >= k) continue;
            const Real x = X[r * TILE_PITCH + e % PANEL];
            if (r <= c) largest = larger(largest, magnitude(x));
            D[(Index)places[r] * k + c] = r == c ? 1 / x : x;
        }
        __syncthreads();
    }
    for (int e = threadIdx.x; e < k * k; e += THREADS) {
        const int r = e / k, c = e % k;
        F[(Index)blockIdx.x * k * k + e] = regular ? D[(Index)places[r] * k + c] : (Real)(r == c);
    }
    for (int r = threadIdx.x; r < k; r += THREADS) order[(Index)blockIdx.x * k + r] = regular ? places[r] : r;
    largest = block_largest(largest, tile);
    const Places where = {count, T, first_row, step, slots};
    if (threadIdx.x == 0) entries[where.of(blockIdx.x)] = regular ? largest : (Real)-1;
}

__device__ __forceinline__ Real block_entry(const Real* A, Index b, Index t, int j, Index e, Index rows, Index size) {
    return t + j > 0 && t + j <= rows ? A[((b * rows + t) * 3 + j) * size + e] : (Real)0;
}

// Split A (B, rows, 3, k, k) into E, V and W of the odd rows; a single row is odd.
extern "C" __global__ void __launch_bounds__(THREADS)
large_split(const Real* __restrict__ A, Real* __restrict__ E, Real* __restrict__ V, Real* __restrict__ W, Index B,
            Index rows, Index k) {
    const Index odd = rows > 1 ? rows / 2 : 1, size = k * k;
    for (Index i = blockIdx.x; i < B * odd * k; i += gridDim.x) {
        const Index n = i / k, r = i % k, b = n / odd, t = rows > 1 ? n % odd * 2 + 1 : 0;
        for (Index c = threadIdx.x; c < k; c += THREADS) {
            const Index e = r * k + c;
            E[n * size + e] = block_entry(A, b, t, 1, e, rows, size);
            V[(n * k + r) * 2 * k + c] = block_entry(A, b, t, 0, e, rows, size);
            V[(n * k + r) * 2 * k + k + c] = block_entry(A, b, t, 2, e, rows, size);
            W[n * 2 * size + e] = t > 0 ? block_entry(A, b, t - 1, 2, e, rows, size) : (Real)0;
            W[n * 2 * size + size + e] = t + 1 < rows ? block_entry(A, b, t + 1, 0, e, rows, size) : (Real)0;
        }
    }
}

// Largest magnitude of each block row of A (B, rows, 3, k, k).
extern "C" __global__ void __launch_bounds__(THREADS)
large_scale(const Real* __restrict__ A, Real* __restrict__ scale, Index B, Index rows, Index k) {
    SHARED_MEMORY(Real, shared);
    for (Index i = blockIdx.x; i < B * rows; i += gridDim.x) {
        Real found = 0;
        for (int j = 0; j < 3; ++j)
            for (Index e = threadIdx.x; e < k * k; e += THREADS)
                found = larger(found, magnitude(block_entry(A, i / rows, i % rows, j, e, rows, k * k)));
        found = block_largest(found, shared);
        if (threadIdx.x == 0) scale[i] = found;
    }
}
