// Rows of k numbers in another order, and without some of them. One thread for each of the `count` numbers of the
// result, which is contiguous.

#include "common.cuh"

#define NUMBER                                                    \
    const Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; \
    if (i >= count) return

// Row i is that at source[i], or zero where this is `none`; `step` is from row to row of x.
extern "C" __global__ void take_rows(Index count, Index k, const Real* x, Index step, const Index* source, Index none,
                                     Real* found) {
    NUMBER;
    const Index from = source[i / k];
    found[i] = from == none ? Real(0) : x[from * step + i % k];
}

// Zero in a stack of matrices of n rows where these are empty.
extern "C" __global__ void clear_rows(Index count, Index k, Index n, const bool* empty, Real* x) {
    NUMBER;
    if (empty[i / k % n]) x[i] = Real(0);
}
