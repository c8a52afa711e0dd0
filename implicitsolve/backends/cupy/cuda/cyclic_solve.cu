// Solves with the factors of cyclic.cu, in the order of their levels; COLUMNS right-hand sides at a time.
// x (B, T, K, columns); the second axis of the grid runs over the columns, COLUMNS at a time.

#define LOWER 1
#define UPPER 1
#include "block_lanes.cuh"

struct Factors {
    const Real *F, *P;
    const unsigned char* order;
    Index T, kept, columns;
    bool adjoint;

    __device__ const Real* block(Index b, Index t, int j) const { return F + ((b * T + t) * M + j) * BLOCK; }
    __device__ const Real* multipliers(Index b, Index row, int side) const {
        return P + ((b * kept + row) * 2 + side) * BLOCK;
    }
    __device__ const unsigned char* places(Index b, Index t) const { return order + (b * T + t) * K; }
    __device__ Index place(Index b, Index t) const { return (b * T + t) * K * columns; }
};

// The first half of row t's own solve.
__device__ __forceinline__ void begin(Vector& y, const Factors& of, Index b, Index t) {
    if (of.adjoint)
        solve_upper_adjoint(y, of.block(b, t, 1));
    else
        solve_lower(y, of.block(b, t, 1), of.places(b, t));
}

__device__ __forceinline__ void end(Vector& y, const Factors& of, Index b, Index t) {
    if (of.adjoint)
        solve_lower_adjoint(y, of.block(b, t, 1), of.places(b, t));
    else
        solve_upper(y, of.block(b, t, 1));
}

// Row number e of those that stay at this level, of which `offset` rows of P belong to the levels before.
__device__ __forceinline__ void reduce(const Factors& of, const Real* from, Real* x, Index b, Index e, Index stride,
                                       Index offset, Index column, bool active) {
    const Index t = 2 * stride * e;
    Vector y = read(from + of.place(b, t), of.columns, column);
#pragma unroll 1
    for (int side = 0; side < 2; ++side) {
        const Index s = side ? t + stride : t - stride;
        if (s < 0 || s >= of.T) continue;
        const Real* block = of.adjoint ? of.block(b, s, 2 - 2 * side) : of.multipliers(b, offset + e, side);
        subtract_block(y, block, read(x + of.place(b, s), of.columns, column), of.adjoint);
    }
    if (e % 2 || of.T <= 2 * stride) begin(y, of, b, t);
    if (active) write(x + of.place(b, t), y, of.columns, column, false);
}

// Row number i of those that the level eliminates.
__device__ __forceinline__ void expand(const Factors& of, Real* x, Index b, Index i, Index stride, Index offset,
                                       Index column, bool singular, bool active) {
    const Index t = stride * (2 * i + 1);
    Vector y = read(x + of.place(b, t), of.columns, column);
#pragma unroll 1
    for (int side = 0; side < 2; ++side) {
        const Index s = side ? t + stride : t - stride;
        if (s >= of.T) continue;
        const Real* block = of.adjoint ? of.multipliers(b, offset + i + side, 1 - side) : of.block(b, t, 2 * side);
        subtract_block(y, block, read(x + of.place(b, s), of.columns, column), of.adjoint);
    }
    end(y, of, b, t);
    if (active) write(x + of.place(b, t), y, of.columns, column, singular);
}

extern "C" __global__ void __launch_bounds__(WARP, 8)
cyclic_solve_begin(const Real* F, const Real* P, const unsigned char* order, const Real* right, Real* x, Index B,
                   Index T, Index kept, Index columns, Index adjoint) {
    const Factors of = {F, P, order, T, kept, columns, adjoint != 0};
    const Index rows = T > 1 ? T / 2 : 1, i = (Index)blockIdx.x * (WARP / GROUP) + threadIdx.x / GROUP;
    const bool active = i < B * rows;
    const Index b = active ? i / rows : 0, t = active && T > 1 ? i % rows * 2 + 1 : T > 1;
    for (Index column = blockIdx.y * COLUMNS; column < columns; column += gridDim.y * COLUMNS) {
        Vector y = read(right + of.place(b, t), columns, column);
        begin(y, of, b, t);
        if (active) write(x + of.place(b, t), y, columns, column, false);
    }
}

// One level, from `right`, which is x but for the first.
extern "C" __global__ void __launch_bounds__(WARP, 8)
cyclic_solve_reduce(const Real* F, const Real* P, const unsigned char* order, const Real* right, Real* x, Index B,
                    Index T, Index kept, Index columns, Index adjoint, Index stride, Index offset) {
    const Factors of = {F, P, order, T, kept, columns, adjoint != 0};
    const Index rows = (T - 1) / (2 * stride) + 1, i = (Index)blockIdx.x * (WARP / GROUP) + threadIdx.x / GROUP;
    const Index place = i < B * rows ? i : 0;
    for (Index column = blockIdx.y * COLUMNS; column < columns; column += gridDim.y * COLUMNS)
        reduce(of, right, x, place / rows, place % rows, stride, offset, column, i < B * rows);
}

extern "C" __global__ void __launch_bounds__(WARP, 8)
cyclic_solve_expand(const Real* F, const Real* P, const unsigned char* order, const double* found, Real* x, Index B,
                    Index T, Index kept, Index columns, Index adjoint, Index stride, Index offset) {
    const Factors of = {F, P, order, T, kept, columns, adjoint != 0};
    const Index rows = ((T - 1) / stride + 1) / 2, i = (Index)blockIdx.x * (WARP / GROUP) + threadIdx.x / GROUP;
    const Index place = i < B * rows ? i : 0, b = place / rows;
    for (Index column = blockIdx.y * COLUMNS; column < columns; column += gridDim.y * COLUMNS)
        expand(of, x, b, place % rows, stride, offset, column, found[2 * b] >= 0, i < B * rows);
}

// All levels from `stride` on, and back; one block for each system.
extern "C" __global__ void __launch_bounds__(END_THREADS, 1)
cyclic_solve_end(const Real* F, const Real* P, const unsigned char* order, const double* found, const Real* right,
                 Real* x, Index B, Index T, Index kept, Index columns, Index adjoint, Index first, Index first_offset) {
    const Factors of = {F, P, order, T, kept, columns, adjoint != 0};
    const Index b = blockIdx.x, own = threadIdx.x / GROUP, groups = blockDim.x / GROUP;
    const bool singular = found[2 * b] >= 0;
    for (Index column = blockIdx.y * COLUMNS; column < columns; column += gridDim.y * COLUMNS) {
        Index stride = first, offset = first_offset;
        for (; stride < T; stride *= 2) {
            const Index rows = (T - 1) / (2 * stride) + 1;
            for (Index e = own; e < rows; e += groups)
                reduce(of, stride == 1 ? right : x, x, b, e, stride, offset, column, true);
            offset += rows;
            __syncthreads();
        }
        if (own == 0) {
            Vector y = read(x + of.place(b, 0), columns, column);
            end(y, of, b, 0);
            write(x + of.place(b, 0), y, columns, column, singular);
        }
        __syncthreads();
        while (stride > first) {
            stride /= 2;
            offset -= (T - 1) / (2 * stride) + 1;
            const Index rows = ((T - 1) / stride + 1) / 2;
            for (Index i = own; i < rows; i += groups)
                expand(of, x, b, i, stride, offset, column, singular, true);
            __syncthreads();
        }
    }
}
