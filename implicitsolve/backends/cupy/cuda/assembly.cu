// Blocks (B, T, m, k, k) of a Jacobian from the differences of some colors, changes (colors, k, B, T, k): each number
// of a block comes from the color of its column, times what one unknown's step counts for.

#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
place_colors(Real* __restrict__ blocks, const Real* __restrict__ changes, const Real* __restrict__ per_length,
             Index colors, Index B, Index T, Index m, Index k, Index first, Index lower) {
    const Index count = B * T * m * k * k;
    for (Index e = (Index)blockIdx.x * blockDim.x + threadIdx.x; e < count; e += (Index)gridDim.x * blockDim.x) {
        const Index r = e % k, c = e / k % k, j = e / (k * k) % m, row = e / (k * k * m);
        const Index b = row / T, t = row % T, s = t + j - lower, color = s % m - first;
        if (s < 0 || s >= T || color < 0 || color >= colors) continue;
        const Real change = changes[(((color * k + c) * B + b) * T + t) * k + r];
        blocks[((row * m + j) * k + r) * k + c] = change * per_length[(b * T + s) * k + c];
    }
}
