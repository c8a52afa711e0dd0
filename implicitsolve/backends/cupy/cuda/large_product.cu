// Products of large blocks: what a level of cyclic reduction subtracts from the rows that stay, and its solves from
// right-hand sides. A block of threads computes 64 rows and COLUMNS columns of a result. V and W as in large_factor.cu.

#include "block_large.cuh"

#define HEIGHT 64
#define ACROSS (COLUMNS < SIDE ? COLUMNS : SIDE)  // threads along the columns
#define DOWN (THREADS / ACROSS)
#define PER_ROW (HEIGHT / DOWN)
#define PER_COLUMN (COLUMNS / ACROSS)
#define LEFT_PITCH (PANEL + 1)
#define RIGHT_PITCH (COLUMNS + 1)

struct Matrix {
    const Real* numbers;
    Index row, column;  // steps
};

struct Tile {
    Real of[PER_ROW][PER_COLUMN];
    int row, column;    // of the result, the thread's first
};

// Add X Y to a tile of the result that begins at (top, left); both factors have `depth` numbers in common.
__device__ __forceinline__ void add_product(Tile& tile, Real* shared, Matrix X, Matrix Y, Index top, Index left,
                                            Index rows, Index columns, Index depth) {
    Real *own = shared, *other = shared + HEIGHT * LEFT_PITCH;
    for (Index start = 0; start < depth; start += PANEL) {
        __syncthreads();
        for (int e = threadIdx.x; e < HEIGHT * PANEL; e += THREADS) {
            const int r = X.column == 1 ? e / PANEL : e % HEIGHT, q = X.column == 1 ? e % PANEL : e / HEIGHT;
            const bool inside = top + r < rows && start + q < depth;
            own[r * LEFT_PITCH + q] = inside ? X.numbers[(top + r) * X.row + (start + q) * X.column] : (Real)0;
        }
        for (int e = threadIdx.x; e < PANEL * COLUMNS; e += THREADS) {
            const int q = e / COLUMNS, c = e % COLUMNS;
            const bool inside = start + q < depth && left + c < columns;
            other[q * RIGHT_PITCH + c] = inside ? Y.numbers[(start + q) * Y.row + (left + c) * Y.column] : (Real)0;
        }
        __syncthreads();
#pragma unroll 8
        for (int q = 0; q < PANEL; ++q)
#pragma unroll
            for (int a = 0; a < PER_ROW; ++a)
#pragma unroll
                for (int b = 0; b < PER_COLUMN; ++b)
                    tile.of[a][b] = fma(own[(tile.row + a * DOWN) * LEFT_PITCH + q],
                                        other[q * RIGHT_PITCH + tile.column + b * ACROSS], tile.of[a][b]);
    }
}

// The even rows (B, (rows + 1) / 2, 3, k, k) of A that stay. The grid runs over them and the tiles of three blocks.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
large_reduce(const Real* __restrict__ A, const Real* __restrict__ V, const Real* __restrict__ W,
             Real* __restrict__ next, Index B, Index rows, Index k) {
    SHARED_MEMORY(Real, shared);
    const Index odd = rows / 2, even = rows - odd, size = k * k;
    const Index high = (k + HEIGHT - 1) / HEIGHT, wide = (k + COLUMNS - 1) / COLUMNS;
    const Index n = blockIdx.x / (3 * high * wide), part = blockIdx.x % (3 * high * wide);
    const Index place = part / (high * wide), top = part / wide % high * HEIGHT, left = part % wide * COLUMNS;
    const Index b = n / even, j = n % even, before = b * odd + j - 1, behind = before + 1;
    Tile tile = {{}, (int)threadIdx.x / ACROSS, (int)threadIdx.x % ACROSS};
    if (j > 0 && place < 2)
        add_product(tile, shared, {W + before * 2 * size + size, k, 1}, {V + before * 2 * size + place * k, 2 * k, 1},
                    top, left, k, k, k);
    if (j < odd && place > 0)
        add_product(tile, shared, {W + behind * 2 * size, k, 1}, {V + behind * 2 * size + (place - 1) * k, 2 * k, 1},
                    top, left, k, k, k);
#pragma unroll
    for (int i = 0; i < PER_ROW; ++i)
#pragma unroll
        for (int c = 0; c < PER_COLUMN; ++c) {
            const Index r = top + tile.row + i * DOWN, e = r * k + left + tile.column + c * ACROSS;
            if (r >= k || e >= (r + 1) * k) continue;
            const Real whole = place == 1 ? A[((b * rows + 2 * j) * 3 + 1) * size + e] : (Real)0;
            next[(n * 3 + place) * size + e] = whole - tile.of[i][c];
        }
}

// Subtract from the rows first, first + 2 stride, ... (`count` in each system) of x (B, T, k, columns) what belongs to
// their neighbours `stride` away, which are the level's odd rows if first is 0, and else its even rows.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
large_subtract(const Real* __restrict__ V, const Real* __restrict__ W, const Real* from, Real* x, Index T, Index k,
               Index columns, Index first, Index stride, Index count, Index odd, Index adjoint) {
    SHARED_MEMORY(Real, shared);
    const Index high = (k + HEIGHT - 1) / HEIGHT, n = blockIdx.x / high, top = blockIdx.x % high * HEIGHT;
    const Index b = n / count, i = n % count, t = first + 2 * stride * i;
    for (Index left = blockIdx.y * COLUMNS; left < columns; left += gridDim.y * COLUMNS) {
        Tile tile = {{}, (int)threadIdx.x / ACROSS, (int)threadIdx.x % ACROSS};
        for (int side = 0; side < 2; ++side) {
            const Index s = side ? t + stride : t - stride;
            if (s < 0 || s >= T) continue;
            // the half of V or W that couples the odd row to its neighbour on that side
            const Index own = b * odd + (first == 0 ? i - 1 + side : i), half = first == 0 ? 1 - side : side;
            const Real* v = V + own * 2 * k * k + half * k;
            const Real* w = W + own * 2 * k * k + half * k * k;
            const Matrix X = first == 0 ? (adjoint ? Matrix{v, 1, 2 * k} : Matrix{w, k, 1})
                                        : (adjoint ? Matrix{w, 1, k} : Matrix{v, 2 * k, 1});
            add_product(tile, shared, X, {x + (b * T + s) * k * columns, columns, 1}, top, left, k, columns, k);
        }
#pragma unroll
        for (int a = 0; a < PER_ROW; ++a)
#pragma unroll
            for (int c = 0; c < PER_COLUMN; ++c) {
                const Index r = top + tile.row + a * DOWN, column = left + tile.column + c * ACROSS;
                const Index place = ((b * T + t) * k + r) * columns + column;
                if (r < k && column < columns) x[place] = from[place] - tile.of[a][c];
            }
    }
}
