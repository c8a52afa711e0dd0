// LU of many scalar tridiagonal matrices with exchanges of neighbouring rows, as LAPACK's gttrf does it; one thread for
// each system. A (B, T, 3) is read through shared memory. F (T, 4, B) keeps the multiplier below each pivot, the
// reciprocal of the pivot, and the two numbers of U right of it; exchanged (T, B) whether the row changed places with
// the next; found (B, 2) the first singular row or -1, and the growth.

#include "block_stage.cuh"

#define ROWS 10
#define PITCH 31
#define PART 32
#define PART_PITCH 33

struct Row {
    Real pivot, right, far;  // entries at the diagonal, and one and two places right of it
};

extern "C" __global__ void __launch_bounds__(WARP, 8)
band_factor(const Real* __restrict__ A, Real* __restrict__ F, unsigned char* __restrict__ exchanged,
            double* __restrict__ found, Index B, Index T) {
    SHARED_MEMORY(Real, stage);
    const Systems systems = {(Index)blockIdx.x * WARP, B, T * 3, 1};
    const Index b = systems.first + threadIdx.x;
    Row upper = {0, 0, 0};  // the row that waits for its exchange with the next
    Real scale = 0, largest = 0;
    Index singular = -1;
    for (Index start = 0; start < T; start += ROWS) {
        const int rows = T - start < ROWS ? T - start : ROWS;
        fetch(stage, PITCH, A + start * 3, systems, rows * 3);
        if (b >= B) continue;
        for (Index t = start; t < start + rows + (start + rows == T); ++t) {
            const Real* own = stage + threadIdx.x * PITCH + (t - start) * 3;
            const Real below = t > 0 && t < T ? own[0] : (Real)0;
            Row lower = {t < T ? own[1] : (Real)0, t + 1 < T ? own[2] : (Real)0, 0};
            scale = larger(larger(scale, magnitude(below)), larger(magnitude(lower.pivot), magnitude(lower.right)));
            if (t > 0) {
                const bool exchange = magnitude(below) > magnitude(upper.pivot);
                const Row pivotal = exchange ? Row{below, lower.pivot, lower.right} : upper;
                const Row other = exchange ? upper : Row{below, lower.pivot, lower.right};
                const Real size = magnitude(pivotal.pivot), reciprocal = 1 / pivotal.pivot;
                if (singular < 0 && !(size > 0 && isfinite(size) && isfinite(reciprocal))) singular = t - 1;
                const Real ratio = other.pivot * reciprocal;
                Real* kept = F + (t - 1) * 4 * B + b;
                kept[0] = ratio;
                kept[B] = reciprocal;
                kept[2 * B] = pivotal.right;
                kept[3 * B] = pivotal.far;
                exchanged[(t - 1) * B + b] = exchange;
                largest = larger(larger(largest, size), larger(magnitude(pivotal.right), magnitude(pivotal.far)));
                lower = {fma(-ratio, pivotal.right, other.right), fma(-ratio, pivotal.far, other.far), 0};
            }
            upper = lower;
        }
    }
    if (b < B) {
        found[2 * b] = singular;
        found[2 * b + 1] = (double)larger(scale, largest) / scale;
    }
}

// Row t of U^T z = b, which needs the two rows before.
__device__ __forceinline__ Real forward_adjoint(const Real* F, Real x, Index t, Index B, Real near, Real far) {
    if (t > 0) x = fma(-F[((t - 1) * 4 + 2) * B], near, x);
    if (t > 1) x = fma(-F[((t - 2) * 4 + 3) * B], far, x);
    return x * F[(t * 4 + 1) * B];
}

// Row t of U x = y, which needs the two rows behind.
__device__ __forceinline__ Real backward(const Real* F, Real x, Index t, Index B, Real near, Real far) {
    x = fma(-F[(t * 4 + 2) * B], near, x);
    x = fma(-F[(t * 4 + 3) * B], far, x);
    return x * F[(t * 4 + 1) * B];
}

// Rows t and t + 1, or t and t - 1, by the multiplier between them: the first is returned, the second waits.
__device__ __forceinline__ Real pass(Real& waiting, Real next, Real multiplier, bool exchange) {
    const Real first = exchange ? next : waiting;
    waiting = fma(-multiplier, first, exchange ? waiting : next);
    return first;
}

__device__ __forceinline__ Real pass_adjoint(Real& waiting, Real next, Real multiplier, bool exchange) {
    const Real combined = fma(-multiplier, waiting, next), first = exchange ? combined : waiting;
    waiting = exchange ? waiting : combined;
    return first;
}

// The solution (B, T, columns) for right-hand sides of that shape; the second axis of the grid runs over columns.
extern "C" __global__ void __launch_bounds__(WARP, 8)
band_solve(const Real* __restrict__ factors, const unsigned char* __restrict__ exchanged,
           const double* __restrict__ found, const Real* right, Real* solution, Index B, Index T, Index columns,
           Index adjoint) {
    SHARED_MEMORY(Real, stage);
    const Systems systems = {(Index)blockIdx.x * WARP, B, T * columns, columns};
    const Index b = systems.first + threadIdx.x;
    const Real* F = factors + b;
    Real* own = stage + threadIdx.x * PART_PITCH;
    const bool singular = b < B && found[2 * b] >= 0;
    for (Index column = blockIdx.y; column < columns; column += gridDim.y) {
        Real near = 0, far = 0;
        for (Index start = 0; start < T; start += PART) {
            const int rows = T - start < PART ? T - start : PART, more = start + rows < T;
            fetch(stage, PART_PITCH, right + start * columns + column, systems, rows + more);
            if (b < B) {
                if (start == 0 && !adjoint) near = own[0];
                for (int i = 0; i < rows; ++i) {
                    const Index t = start + i;
                    Real x = near;
                    if (adjoint) {
                        x = forward_adjoint(F, own[i], t, B, near, far);
                        far = near;
                        near = x;
                    } else if (t + 1 < T)
                        x = pass(near, own[i + 1], F[t * 4 * B], exchanged[t * B + b]);
                    own[i] = x;
                }
            }
            put_back(solution + start * columns + column, stage, PART_PITCH, systems, rows);
        }
        far = 0;
        if (!adjoint) near = 0;
        for (Index start = (T - 1) / PART * PART; start >= 0; start -= PART) {
            const int rows = T - start < PART ? T - start : PART, more = start > 0;
            fetch(stage + 1 - more, PART_PITCH, solution + (start - more) * columns + column, systems, rows + more);
            if (b < B)
                for (int i = rows; i > 0; --i) {
                    const Index t = start + i - 1;
                    Real x = near;
                    if (!adjoint) {
                        x = backward(F, own[i], t, B, near, far);
                        far = near;
                        near = x;
                    } else if (t > 0)
                        x = pass_adjoint(near, own[i - 1], F[(t - 1) * 4 * B], exchanged[(t - 1) * B + b]);
                    own[i] = singular ? (Real)nan("") : x;
                }
            put_back(solution + start * columns + column, stage + 1, PART_PITCH, systems, rows);
        }
    }
}
