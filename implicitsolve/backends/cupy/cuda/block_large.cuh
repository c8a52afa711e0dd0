// What the kernels for large blocks share. One block of THREADS threads works on a matrix, in panels of 32.

#include "block_numbers.cuh"

#define PANEL 32
#define TILE_PITCH (PANEL + 1)
#define SIDE 16  // threads along each axis of a tile of 32 x 32 or 32 x COLUMNS
#define THREADS (SIDE * SIDE)

// Where the largest magnitudes of matrix n are kept: `count` matrices for each system, rows first, first + step, ...
struct Places {
    Index count, T, first, step, slots;
    __device__ Index of(Index n) const { return (n / count * T + first + n % count * step) * slots; }
};

__device__ __forceinline__ Real block_largest(Real x, Real* shared) {
    __syncthreads();
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] = larger(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    return shared[0];
}

// Solve with a triangle of a tile for one column of 32 numbers, `pitch` apart; reciprocals stand on the diagonal.
__device__ __forceinline__ void solve_tile(Real* column, int pitch, const Real* tile, bool lower, bool unit) {
    Real x[PANEL];
#pragma unroll
    for (int r = 0; r < PANEL; ++r) x[r] = column[r * pitch];
    if (lower) {
#pragma unroll
        for (int q = 0; q < PANEL; ++q) {
            if (!unit) x[q] *= tile[q * TILE_PITCH + q];
#pragma unroll
            for (int r = q + 1; r < PANEL; ++r) x[r] = fma(-tile[r * TILE_PITCH + q], x[q], x[r]);
        }
    } else {
#pragma unroll
        for (int q = PANEL - 1; q >= 0; --q) {
            if (!unit) x[q] *= tile[q * TILE_PITCH + q];
#pragma unroll
            for (int r = 0; r < q; ++r) x[r] = fma(-tile[r * TILE_PITCH + q], x[q], x[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < PANEL; ++r) column[r * pitch] = x[r];
}
