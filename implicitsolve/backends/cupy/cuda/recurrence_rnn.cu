// Recurrences of networks without gates: y_t = sum_j h_(t - lag j) W_j, and by a rule h_t = phi(x_t + y_t),
// h_t = x_t + f_t*y_t ("push"), or h_t = x_t + y_t with f_t*h_t for later products ("pull"). Bit l of LAGS is set where
// l + 1 is one of the lags.

#include "recurrence.cuh"

enum { TANH, LOGISTIC, RELU, IDENTITY, PUSH, PULL };

struct RNN {
    static constexpr int ARGUMENTS = RULE >= PUSH ? 2 : 1;
    const Real* weights;
    Index of_matrix, from, to;
    const Real* x;
    Index x_row, x_column;
    const Real* f;
    Index f_row, f_column;
    Columns<MATRICES> W;
    Rows rows[2];

    __device__ __forceinline__ void read(Real* memory, int i) {
#pragma unroll
        for (int j = 0; j < MATRICES; ++j) W.read(memory, i, j, weights + j * of_matrix, from, to);
    }

    __device__ __forceinline__ void stand(Index row, int way, int i) {
        rows[0].stand(x, x_row, x_column, row, way, i);
        rows[1].stand(f, f_row, f_column, row, way, i);
    }

    __device__ __forceinline__ Real step(const Real (&arguments)[ARGUMENTS], int t, int i, Real* slots) const {
        const Real x = arguments[0], f = arguments[ARGUMENTS - 1];
        Real y = 0;
        int matrix = 0;
        meet();
#pragma unroll
        for (int lag = 1; lag <= DEPTH; ++lag)
            if (LAGS >> (lag - 1) & 1) y += W.times(slots + SLOT(t - lag) + OWN_GROUP, i, matrix++);
        const Real h = RULE == PUSH ? fma(f, y, x) : value(y + x);
        slots[SLOT(t) + threadIdx.x] = RULE == PULL ? f * h : h;
        return h;
    }

    __device__ __forceinline__ static Real value(Real a) {
        if (RULE == TANH) return tanh(a);
        if (RULE == LOGISTIC) return gate(-a);
        if (RULE == RELU) return a < Real(0) ? Real(0) : a;
        return a;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    recurrence_rnn(const Real* weights, Index of_matrix, Index from, Index to, const Real* x, Index x_row,
                   Index x_column, const Real* f, Index f_row, Index f_column, PLAN) {
    RNN rule{weights, of_matrix, from, to, x, x_row, x_column, f, f_row, f_column};
    sweep_along(THE_PLAN, rule);
}
