// The steps of BiCGSTAB between its products, on vectors (b, N) that lie in one piece, one block a system, and
// with numbers of each system (b,).
#include "vectors.cuh"

// <a, b> over a whole vector.
__device__ Real dot(const Real* a, const Real* b, Index N, Real* shared) {
    Real mine[TILE] = {};
    for (Index e = threadIdx.x; e < N; e += blockDim.x) mine[0] += a[e] * b[e];
    block_sums(mine, 1, shared, shared + 1);
    Real sum = shared[0];
    __syncthreads();
    return sum;
}

// alpha = rho / <shadow, v>, or 0, and s = r - alpha v.
extern "C" __global__ void __launch_bounds__(1024, 1)
    first_half(const Real* shadow, const Real* r, const Real* v, const Real* rho, Real* alpha, Real* s,
               Index N) {
    SHARED_MEMORY(Real, shared);
    Index system = blockIdx.x, at = system * N;
    Real slope = dot(shadow + at, v + at, N, shared);
    Real length = fabs(slope) > 0 ? rho[system] / slope : Real(0);
    bool moves = isfinite(length);
    for (Index e = threadIdx.x; e < N; e += blockDim.x) s[at + e] = moves ? r[at + e] - length * v[at + e] : r[at + e];
    if (threadIdx.x == 0) alpha[system] = length;
}

// omega = <t, s> / <t, t>, or 0, for t scaled so that its square stays in range; r = s - omega t, its rho, and beta.
// numbers (b, 5): the magnitudes of rho, omega and alpha, the largest of t, and the square of r.
extern "C" __global__ void __launch_bounds__(1024, 1)
    second_half(const Real* shadow, const Real* s, const Real* t, const Real* alpha, const Real* rho, Real* omega, Real* r, Real* new_rho, Real* beta, Real* numbers, Index N) {
    SHARED_MEMORY(Real, shared);
    Index system = blockIdx.x, at = system * N;
    Real *sums = shared, *scratch = shared + TILE, largest = 0;
    for (Index e = threadIdx.x; e < N; e += blockDim.x) largest = larger(largest, fabs(t[at + e]));
    square_and_largest(0, largest, sums, scratch);
    __syncthreads();
    Real size = sums[1], unit = size > 0 ? size : Real(1);
    __syncthreads();
    Real mine[TILE] = {};
    for (Index e = threadIdx.x; e < N; e += blockDim.x) {
        Real value = t[at + e] / unit;
        mine[0] += value * s[at + e], mine[1] += value * value;
    }
    block_sums(mine, 2, sums, scratch);
    Real length = size > 0 ? sums[0] / (sums[1] * size) : Real(0);
    __syncthreads();
    mine[0] = mine[1] = 0;
    for (Index e = threadIdx.x; e < N; e += blockDim.x) {
        Real value = s[at + e] - length * t[at + e];
        r[at + e] = value;
        mine[0] += shadow[at + e] * value, mine[1] += value * value;
    }
    block_sums(mine, 2, sums, scratch);
    if (threadIdx.x) return;
    omega[system] = length, new_rho[system] = sums[0];
    beta[system] = (sums[0] / rho[system]) * (alpha[system] / length);
    numbers += 5 * system;
    numbers[0] = fabs(sums[0]), numbers[1] = fabs(length), numbers[2] = fabs(alpha[system]);
    numbers[3] = size, numbers[4] = sums[1];
}

// The next correction, dx + alpha p_hat + omega s_hat, and direction, r + beta (p - omega v).
extern "C" __global__ void __launch_bounds__(256)
    moved(const Real* dx, const Real* p, const Real* alpha, const Real* p_hat, const Real* omega, const Real* s_hat,
          const Real* r, const Real* beta, const Real* v, Real* new_dx, Real* new_p, Index N, Index size) {
    Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x, system = at / N;
    if (at >= size) return;
    new_dx[at] = dx[at] + alpha[system] * p_hat[at] + omega[system] * s_hat[at];
    new_p[at] = r[at] + beta[system] * (p[at] - omega[system] * v[at]);
}
