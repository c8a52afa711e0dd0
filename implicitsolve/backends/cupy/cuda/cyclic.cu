// Cyclic reduction of block tridiagonal matrices with small blocks: a level eliminates the rows stride, 3 stride, ...,
// all at once, and leaves the multiples of 2 stride. GROUP lanes work on each row.
//
// Row t of F (B, T, 3, K, K) keeps, of the level that eliminates it, L^-1 P A, the LU of its diagonal block with the
// reciprocals of the pivots on the diagonal, and L^-1 P C; A and C couple it to the rows left and right that stay. The
// rows that stay keep in P (B, all of them level by level, 2, K, K) their multipliers. A row is factored as soon as the
// level before has brought it up to date, so each level is one launch; the last few are one launch of a block.
// The largest magnitudes: entries (B, T), multipliers (B, T, 2) of an eliminated row's neighbours, scale (B, T) of A.

#define LOWER 1
#define UPPER 1
#include "block_lanes.cuh"

struct Job {
    Index b, t, T;
    bool active;
};

// Row t is up to date: factor it.
__device__ __forceinline__ void finish(Row& row, Real* store, Real* F, unsigned char* order, Real* entries, Job job) {
    int position;
    Real size;
    const bool regular = eliminate<0>(row, store, position, size);
    const Index place = job.b * job.T + job.t;
    if (!job.active) return;
    if (position >= 0) order[place * K + position] = lane_of_group();
    for (int e = lane_of_group(); e < NUMBERS; e += GROUP) F[place * NUMBERS + e] = store[e];
    if (lane_of_group() == 0) entries[place] = regular ? size : (Real)-1;
}

__device__ __forceinline__ Row read_row(const Real* A, Job job, bool first, Real* scale) {
    const int lane = lane_of_group() < K ? lane_of_group() : 0;
    const Index place = job.b * job.T + job.t;
    Row row;
    Real size = 0;
#pragma unroll
    for (int j = 0; j < M; ++j) {
        const bool inside = job.t + j > 0 && job.t + j <= job.T;
#pragma unroll
        for (int c = 0; c < K; ++c)
            row.of[j][c] = inside ? A[place * NUMBERS + j * BLOCK + lane * K + c] : (Real)0;
        size = larger(size, largest_of(row.of[j]));
    }
    size = group_largest(size);
    if (first && job.active && lane_of_group() == 0) scale[place] = size;
    return row;
}

// Eliminate the neighbour `side` (0 left, 2 right) of a row that stays.
__device__ __forceinline__ void eliminate_neighbour(Row& row, Real* store, const Real* F, Real* P, Real* multipliers,
                                                    int side, Job job, Index neighbour) {
    const int lane = lane_of_group();
    const Index place = job.b * job.T + neighbour;
    copy_row(store, F + place * NUMBERS);
    Real* x = row.of[side];
    const Real size = group_largest(lane < K ? divide(x, store) : (Real)0);
    if (job.active && lane < K)
#pragma unroll
        for (int c = 0; c < K; ++c) P[(side / 2) * BLOCK + lane * K + c] = x[c];
    if (job.active && lane == 0) multipliers[place * 2 + 1 - side / 2] = size;
    subtract_product(row.of[1], x, store + (2 - side) * BLOCK);
    Real next[K] = {};
    subtract_product(next, x, store + side * BLOCK);
#pragma unroll
    for (int c = 0; c < K; ++c) x[c] = next[c];
}

// Level `stride` for row number e of those that stay.
__device__ __forceinline__ void reduce_row(const Real* A, Real* F, Real* P, unsigned char* order, Real* entries,
                                           Real* multipliers, Real* scale, Real* store, Job job, Index e, Index stride,
                                           Index offset, Index kept) {
    Row row = read_row(A, job, stride == 1, scale);
    Real* own = P + (job.b * kept + offset + e) * 2 * BLOCK;
    if (job.t >= stride) eliminate_neighbour(row, store, F, own, multipliers, 0, job, job.t - stride);
    if (job.t + stride < job.T) eliminate_neighbour(row, store, F, own, multipliers, 2, job, job.t + stride);
    if (e % 2 || job.T <= 2 * stride)
        finish(row, store, F, order, entries, job);
    else if (job.active && lane_of_group() < K)
#pragma unroll
        for (int j = 0; j < M; ++j)
#pragma unroll
            for (int c = 0; c < K; ++c)
                F[(job.b * job.T + job.t) * NUMBERS + j * BLOCK + lane_of_group() * K + c] = row.of[j][c];
}

// The rows that the first level eliminates, or the only one.
extern "C" __global__ void __launch_bounds__(WARP, 8)
cyclic_begin(const Real* __restrict__ A, Real* __restrict__ F, unsigned char* __restrict__ order,
             Real* __restrict__ entries, Real* __restrict__ scale, Index B, Index T) {
    SHARED_MEMORY(Real, shared);
    Real* store = shared + threadIdx.x / GROUP * NUMBERS;
    const Index rows = T > 1 ? T / 2 : 1, i = (Index)blockIdx.x * (WARP / GROUP) + threadIdx.x / GROUP;
    const Index place = i < B * rows ? i : 0;
    const Job job = {place / rows, T > 1 ? place % rows * 2 + 1 : 0, T, i < B * rows};
    Row row = read_row(A, job, true, scale);
    finish(row, store, F, order, entries, job);
}

// One level, from A, which is F but for the first; `offset` rows of P belong to the levels before.
extern "C" __global__ void __launch_bounds__(WARP, 8)
cyclic_reduce(const Real* A, Real* F, Real* P, unsigned char* order, Real* entries, Real* multipliers, Real* scale,
              Index B, Index T, Index stride, Index offset, Index kept) {
    SHARED_MEMORY(Real, shared);
    Real* store = shared + threadIdx.x / GROUP * NUMBERS;
    const Index rows = (T - 1) / (2 * stride) + 1, i = (Index)blockIdx.x * (WARP / GROUP) + threadIdx.x / GROUP;
    const Index place = i < B * rows ? i : 0, e = place % rows;
    const Job job = {place / rows, 2 * stride * e, T, i < B * rows};
    reduce_row(A, F, P, order, entries, multipliers, scale, store, job, e, stride, offset, kept);
}

// All levels from `stride` on, one block for each system.
extern "C" __global__ void __launch_bounds__(END_THREADS, 1)
cyclic_end(const Real* A, Real* F, Real* P, unsigned char* order, Real* entries, Real* multipliers, Real* scale,
           Index B, Index T, Index stride, Index offset, Index kept) {
    SHARED_MEMORY(Real, shared);
    Real* store = shared + threadIdx.x / GROUP * NUMBERS;
    for (; stride < T; stride *= 2) {
        const Index rows = (T - 1) / (2 * stride) + 1;
        for (Index e = threadIdx.x / GROUP; e < rows; e += blockDim.x / GROUP)
            reduce_row(stride == 1 ? A : F, F, P, order, entries, multipliers, scale, store,
                       {(Index)blockIdx.x, 2 * stride * e, T, true}, e, stride, offset, kept);
        offset += rows;
        __syncthreads();
    }
}
