// What a cyclic reduction found, (B, 2): the first singular block row or -1, and the growth. Row t was eliminated at
// the level of the lowest bit of t that is set. Its largest entry is among `entry_count` numbers of entries (B, T, :),
// negative where it was singular; those of its neighbours' multipliers and of A in `multipliers` and `scale` alike.

#include "block_numbers.cuh"

__device__ double block_largest(double x, double* shared) {
    __syncthreads();
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] = larger(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    return shared[0];
}

// Over the rows first, first + step, ... of a system.
__device__ double largest_of_rows(const Real* x, Index count, Index first, Index step, Index T, double* shared) {
    Real found = 0;
    for (Index t = first + threadIdx.x * step; t < T; t += blockDim.x * step)
        for (Index i = 0; i < count; ++i) found = larger(found, x[t * count + i]);
    return block_largest(found, shared);
}

extern "C" __global__ void __launch_bounds__(256)
cyclic_found(const Real* __restrict__ entries, const Real* __restrict__ multipliers, const Real* __restrict__ scale,
             Index entry_count, Index multiplier_count, Index scale_count, double* __restrict__ found, Index T) {
    SHARED_MEMORY(double, shared);
    const Index b = blockIdx.x;
    entries += b * T * entry_count;
    multipliers += b * T * multiplier_count;
    const double scale_of_all = largest_of_rows(scale + b * T * scale_count, scale_count, 0, 1, T, shared);
    double largest = scale_of_all;
    for (Index stride = 1; stride < 2 * T; stride *= 2) {
        const Index first = stride < T ? stride : 0, step = stride < T ? 2 * stride : T;
        const double size = largest_of_rows(entries, entry_count, first, step, T, shared);
        const double ratio = largest_of_rows(multipliers, multiplier_count, first, step, T, shared);
        largest = larger(largest, size * larger(1.0, ratio));
    }
    Index singular = T;
    for (Index t = threadIdx.x; t < T && singular == T; t += blockDim.x)
        for (Index i = 0; i < entry_count; ++i)
            if (entries[t * entry_count + i] < 0) singular = t;
    const double first = -block_largest(-(double)singular, shared);
    if (threadIdx.x == 0) {
        found[2 * b] = first < T ? first : -1.0;
        found[2 * b + 1] = largest / scale_of_all;
    }
}
