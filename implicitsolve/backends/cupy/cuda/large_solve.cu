// Solves with the triangles of many large blocks, COLUMNS right-hand sides at a time.

#include "block_large.cuh"

// L^-1 P X, U^-1 X, U^-T X, or P^T L^-T X for the factors F (n, k, k) and X (k, columns): LOWER says which triangle,
// TRANSPOSED whether its transpose. The X lie as `Places` says, `distance` numbers for each row of a system, and in
// each of them number (r, c) at r * row_step + c * column_step. The second axis of the grid runs over the columns.
// Largest magnitudes go to `largest`, if it has slots.
#define ACROSS (COLUMNS < SIDE ? COLUMNS : SIDE)  // threads along the columns of X
#define DOWN (THREADS / ACROSS)
#define PER_ROW (DOWN < PANEL ? PANEL / DOWN : 1)
#define PER_COLUMN (COLUMNS / ACROSS)
#define PITCH (COLUMNS + 1)
#define RESIDENT (sizeof(Real) == 4)  // so many blocks on a multiprocessor at least, 0: the compiler's choice
#define ASCENDING (LOWER != TRANSPOSED)

__device__ __forceinline__ void stage_triangle(Real* tile, const Real* F, int row, int column, int k) {
    for (int e = threadIdx.x; e < PANEL * PANEL; e += THREADS) {
        const int i = e / PANEL, j = e % PANEL;
        const int r = row + (TRANSPOSED ? j : i), c = column + (TRANSPOSED ? i : j);
        const Real x = r < k && c < k ? F[TRANSPOSED ? (Index)c * k + r : (Index)r * k + c] : (Real)0;
        tile[(r - row) * TILE_PITCH + c - column] = x;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
large_solve(const Real* __restrict__ F, const int* __restrict__ order, const Real* from, Real* to, Real* largest,
            Index k_, Index columns, Index row_step, Index column_step, Index count, Index rows, Index first_row,
            Index every, Index distance, Index T, Index first, Index step, Index slots, Index slot) {
    SHARED_MEMORY(Real, X);
    const int k = k_, panels = (k + PANEL - 1) / PANEL;
    Real* tile = X + panels * PANEL * PITCH;
    const int row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS;
    const Index place = Places{count, rows, first_row, every, distance}.of(blockIdx.x);
    F += (Index)blockIdx.x * k * k;
    order += (Index)blockIdx.x * k;
    from += place;
    to += place;
    for (Index part = blockIdx.y; part * COLUMNS < columns; part += gridDim.y) {
        const int width = columns - part * COLUMNS < COLUMNS ? columns - part * COLUMNS : COLUMNS;
        const Index start = part * COLUMNS * column_step;
        __syncthreads();
        for (int e = threadIdx.x; e < panels * PANEL * COLUMNS; e += THREADS) {
            const int r = row_step == 1 ? e % (panels * PANEL) : e / COLUMNS;
            const int c = row_step == 1 ? e / (panels * PANEL) : e % COLUMNS;
            const int source = LOWER && !TRANSPOSED && r < k ? order[r] : r;
            X[r * PITCH + c] = r < k && c < width ? from[start + source * row_step + c * column_step] : (Real)0;
        }
        for (int i = 0; i < panels; ++i) {
            const int panel = ASCENDING ? i : panels - 1 - i;
            Real sum[PER_ROW][PER_COLUMN] = {};
            for (int j = 0; j < i; ++j) {
                const int done = ASCENDING ? j : panels - 1 - j;
                __syncthreads();
                stage_triangle(tile, F, panel * PANEL, done * PANEL, k);
                __syncthreads();
                for (int q = 0; q < PANEL; ++q)
#pragma unroll
                    for (int a = 0; a < PER_ROW; ++a)
#pragma unroll
                        for (int b = 0; b < PER_COLUMN; ++b)
                            sum[a][b] = fma(tile[(row + a * DOWN) * TILE_PITCH + q],
                                            X[(done * PANEL + q) * PITCH + column + b * ACROSS], sum[a][b]);
            }
            __syncthreads();
#pragma unroll
            for (int a = 0; a < PER_ROW; ++a)
#pragma unroll
                for (int b = 0; b < PER_COLUMN; ++b)
                    X[(panel * PANEL + row + a * DOWN) * PITCH + column + b * ACROSS] -= sum[a][b];
            stage_triangle(tile, F, panel * PANEL, panel * PANEL, k);
            __syncthreads();
            if (threadIdx.x < COLUMNS)
                solve_tile(X + panel * PANEL * PITCH + threadIdx.x, PITCH, tile, ASCENDING, LOWER);
        }
        __syncthreads();
        Real found = 0;
        for (int e = threadIdx.x; e < k * COLUMNS; e += THREADS) {
            const int r = row_step == 1 ? e % k : e / COLUMNS, c = row_step == 1 ? e / k : e % COLUMNS;
            if (c >= width) continue;
            found = larger(found, magnitude(X[r * PITCH + c]));
            to[start + (LOWER && TRANSPOSED ? order[r] : r) * row_step + c * column_step] = X[r * PITCH + c];
        }
        found = block_largest(found, X);
        if (threadIdx.x == 0 && slots > 0)
            largest[Places{count, T, first, step, slots}.of(blockIdx.x) + slot + part] = found;
    }
}
