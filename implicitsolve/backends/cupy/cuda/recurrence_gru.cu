// Recurrences of ordinary GRUs with the state DEPTH steps ago, and of their derivatives: h_t = f(x_t, h_(t - DEPTH)),
// h_t = x_t + df h_(t - DEPTH) ("push"), and h_t = x_t + df^T h_(t - DEPTH) with the derivatives of the step that made
// that ("pull"). The stack holds the arguments' x of keep, r and the candidate, or the five factors.

#include "recurrence.cuh"

enum { VALUE, PUSH, PULL };
enum { KEEP, RESET, CANDIDATE };

struct GRU {
    static constexpr int ARGUMENTS = RULE == VALUE ? 3 : 6;
    const Real *gates, *U;
    Index from, to;
    const Real* x;
    Index x_row, x_column;
    const Real* stack;
    Index of_matrix, of_row, of_column;
    Columns<3> W;
    Rows rows[6];

    __device__ __forceinline__ void read(Real* memory, int i) {
        W.read(memory, i, KEEP, gates, from, to);
        W.read(memory, i, RESET, gates + K * K, from, to);
        W.read(memory, i, CANDIDATE, U, from, to);
    }

    __device__ __forceinline__ void stand(Index row, int way, int i) {
        constexpr int others = RULE == VALUE ? 0 : 1;
        rows[0].stand(x, x_row, x_column, row, way, i);
#pragma unroll
        for (int a = others; a < ARGUMENTS; ++a)
            rows[a].stand(stack + (a - others) * of_matrix, of_row, of_column, row, way, i);
    }

    __device__ __forceinline__ Real step(const Real (&arguments)[ARGUMENTS], int t, int i, Real* slots) const {
        const Real* before = slots + SLOT(t - DEPTH);
        Real *own = slots + SLOT(t) + threadIdx.x, *shown = slots + SLOTS * THREADS;
        if (RULE == VALUE) return *own = value(arguments, i, before, shown);
        if (RULE == PUSH) return *own = arguments[0] + push(arguments + 1, i, before, shown);
        const Real h = arguments[0] + before[threadIdx.x];
        *own = pull(arguments + 1, i, h, shown);
        return h;
    }

    __device__ __forceinline__ Real value(const Real* x, int i, const Real* before, Real* shown) const {
        const Real hhat = before[threadIdx.x];
        meet();
        const Real keep = gate(W.times(before + OWN_GROUP, i, KEEP) + x[KEEP]);
        const Real r = gate(W.times(before + OWN_GROUP, i, RESET) + x[RESET]);
        shown[threadIdx.x] = r * hhat;
        meet();
        const Real candidate = tanh(W.times(shown + OWN_GROUP, i, CANDIDATE) + x[CANDIDATE]);
        return fma(keep, hhat - candidate, candidate);
    }

    __device__ __forceinline__ Real push(const Real* factors, int i, const Real* before, Real* shown) const {
        const Real dhhat = before[threadIdx.x];
        meet();
        const Real keep = W.times(before + OWN_GROUP, i, KEEP), r = W.times(before + OWN_GROUP, i, RESET);
        shown[threadIdx.x] = fma(factors[3], r, factors[1] * dhhat);
        meet();
        const Real candidate = W.times(shown + OWN_GROUP, i, CANDIDATE);
        return fma(factors[4], candidate, fma(factors[2], keep, factors[0] * dhhat));
    }

    __device__ __forceinline__ Real pull(const Real* factors, int i, Real w, Real* shown) const {
        shown[threadIdx.x] = factors[4] * w;
        meet();
        const Real reset = W.times(shown + OWN_GROUP, i, CANDIDATE);
        shown[THREADS + threadIdx.x] = factors[2] * w;
        shown[2 * THREADS + threadIdx.x] = factors[3] * reset;
        meet();
        const Real keep = W.times(shown + THREADS + OWN_GROUP, i, KEEP);
        const Real r = W.times(shown + 2 * THREADS + OWN_GROUP, i, RESET);
        return fma(factors[0], w, factors[1] * reset) + (keep + r);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    recurrence_gru(const Real* gates, const Real* U, Index from, Index to, const Real* x, Index x_row, Index x_column,
                   const Real* stack, Index of_matrix, Index of_row, Index of_column, PLAN) {
    GRU rule{gates, U, from, to, x, x_row, x_column, stack, of_matrix, of_row, of_column};
    sweep_along(THE_PLAN, rule);
}
