// Sums over the entries of vectors. A vector is cut into parts of CHUNK entries, a block works on one of them, and its
// threads on entries that stand blockDim.x apart; what is summed first depends on the vector's length alone.
#include "common.cuh"

#define TILE 4  // dot products that share one pass over a vector

// A part of a system's vectors, from `begin` to `end`.
struct Part {
    Index system, part, parts, begin, end;

    __device__ Part(Index N, Index parts) : parts(parts) {
        system = blockIdx.x / parts, part = blockIdx.x % parts;
        begin = part * CHUNK, end = N < begin + CHUNK ? N : begin + CHUNK;
    }
};

// Rows of one system, `stride` apart.
struct Rows {
    const Real* first;
    Index stride, count;

    __device__ const Real* operator[](Index i) const { return first + i * stride; }
};

// The sum of TILE numbers of every thread, each written to sums by one of them; `scratch` holds TILE * WARP numbers.
__device__ void block_sums(const Real* mine, Index count, Real* sums, Real* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
#pragma unroll
    for (int i = 0; i < TILE; ++i) {
        Real sum = warp_sum(mine[i]);
        if (lane == 0) scratch[i * WARP + warp] = sum;
    }
    __syncthreads();
    for (int i = warp; i < TILE && i < count; i += warps) {
        Real sum = warp_sum(lane < warps ? scratch[i * WARP + lane] : Real(0));
        if (lane == 0) sums[i] = sum;
    }
    __syncthreads();
}

// sums[i] = <rows_i, x> over a part.
__device__ void dots(Rows rows, const Real* x, Part at, Real* sums, Real* scratch) {
    for (Index first = 0; first < rows.count; first += TILE) {
        Real mine[TILE] = {};
        for (Index e = at.begin + threadIdx.x; e < at.end; e += blockDim.x) {
            Real value = x[e];
#pragma unroll
            for (int i = 0; i < TILE; ++i)
                if (first + i < rows.count) mine[i] += rows[first + i][e] * value;
        }
        block_sums(mine, rows.count - first, sums + first, scratch);
    }
}

// sum_i a_i rows_i at one entry.
__device__ Real combined(const Real* a, Rows rows, Index e) {
    Real sum = 0;
    for (Index i = 0; i < rows.count; ++i) sum += a[i] * rows[i][e];
    return sum;
}

// y = x - sum_i a_i rows_i on a part; the sum of its squares in every thread's own entries.
__device__ Real subtract(Rows rows, const Real* a, const Real* x, Real* y, Part at) {
    Real square = 0;
    for (Index e = at.begin + threadIdx.x; e < at.end; e += blockDim.x) {
        Real value = x[e] - combined(a, rows, e);
        y[e] = value;
        square += value * value;
    }
    return square;
}

// The sums over all parts of a system, for partial sums (parts, count); the same in every block.
__device__ void add_parts(const Real* partial, Index parts, Index count, Real* sums) {
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (Index i = threadIdx.x / WARP; i < count; i += warps) {
        Real sum = 0;
        for (Index part = lane; part < parts; part += WARP) sum += partial[part * count + i];
        sum = warp_sum(sum);
        if (lane == 0) sums[i] = sum;
    }
    __syncthreads();
}

// Bring a part to length 1 where the square of that can be trusted.
__device__ void scale(Real* y, Real square, Real low, Real high, Part at) {
    Real size = sqrt(square);
    if (!(size > low && size < high)) return;
    for (Index e = at.begin + threadIdx.x; e < at.end; e += blockDim.x) y[e] /= size;
}

// The larger magnitude; NaN stays.
__device__ __forceinline__ Real larger(Real a, Real b) { return b > a || b != b ? b : a; }

__device__ __forceinline__ Real warp_largest(Real x) {
    for (int step = WARP / 2; step > 0; step /= 2) x = larger(x, __shfl_xor_sync(EVERY_LANE, x, step));
    return x;
}

// The block's sum of squares and largest magnitude.
__device__ void square_and_largest(Real square, Real largest, Real* pair, Real* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    square = warp_sum(square), largest = warp_largest(largest);
    if (lane == 0) scratch[warp] = square, scratch[WARP + warp] = largest;
    __syncthreads();
    if (warp) return;
    square = warp_sum(lane < warps ? scratch[lane] : Real(0));
    largest = warp_largest(lane < warps ? scratch[WARP + lane] : Real(0));
    if (lane == 0) pair[0] = square, pair[1] = largest;
}

// The block's largest magnitude.
__device__ void block_largest(Real x, Real* largest, Real* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_largest(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_largest(lane < warps ? scratch[lane] : Real(0));
        if (lane == 0) *largest = x;
    }
    __syncthreads();
}
