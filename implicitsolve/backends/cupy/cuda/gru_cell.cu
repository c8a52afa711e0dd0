// The GRU on a stencil of one or two neighbours, its derivative and the adjoint of that, each for a row at once.
//
// With neighbours p and q and the switch s of their arguments (one neighbour: hhat = p),
//
//     hhat = s*p + (1-s)*q                   s = sigma(a) / (sigma(a) + sigma(c))
//     h = keep*hhat + (1-keep)*tanh(x + U (r*hhat))
//
// States, results and everything else of a row stand in stacks (any, B, T, k) whose last axis has no gaps. Weights are
// a stack (M + 3, k, k): of the switch, of keep and r, and U; `value` and `push` take them transposed. Factors
// are those of `kernels.mixture` and `kernels.gru`: s, dhhat/da, dhhat/dc (one neighbour: a zero alone), keep, r,
// dh/dy of keep, d(r*hhat)/dy of r, dh/d(argument of tanh).

#include "common.cuh"
#include "gru_cell.cuh"
#include "gates.cuh"

#define MIXING (2 * M - 1)

// The neighbours' numbers of a tile as its first two matrices, zero where there is no neighbour.
__device__ __forceinline__ void load(const Tile& tile, const Real* p, const Real* q, Strides near, Index source,
                                     Index p_distance, Index q_distance) {
    FOR_ROWS(tile, r) {
        Real of_p = 0, of_q = 0;
        if (tile.has(r)) {
            const Index at_p = tile.near(r, near, p_distance, source), at_q = tile.near(r, near, q_distance, source);
            if (at_p >= 0) of_p = p[at_p];
            if (M == 2 && at_q >= 0) of_q = q[at_q];
        }
        tile.matrix(0)[tile.place(r)] = of_p;
        tile.matrix(1)[tile.place(r)] = of_q;
    }
}

extern "C" __global__ void __launch_bounds__(LARGEST_BLOCK)
value(const Real* p, const Real* q, Index near_b, Index near_t, Index source, Index p_distance,
      Index q_distance, const Real* x, Index x_j, Index x_b, Index x_t, const Real* weights,
      Real* factors, Index f_j, Index f_b, Index f_t, Index keeps_factors, Real* h, Index rows,
      Index length, Index size) {
    SHARED_MEMORY(Real, memory);
    Tile tile(memory, 3, rows, length, size);
    const Strides of_x = {x_b, x_t}, of_f = {f_b, f_t}, of_h = {length * size, size};
    const Index square = size * size;
    Real *hhat = tile.matrix(0), *reset = tile.matrix(1), *keeps = tile.matrix(2);
    load(tile, p, q, {near_b, near_t}, source, p_distance, q_distance);
#if M == 2
    tile.multiply<2>({hhat, reset}, {weights, weights + square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const int here = tile.place(r);
        const Real* own = x + tile.at(r, of_x);
        const Real difference = hhat[here] - reset[here];
        const Switch s = switch_of(tile.product(0, r) + own[0], tile.product(1, r) + own[x_j]);
        hhat[here] = mixed(s.s, hhat[here], reset[here]);
        if (keeps_factors) {
            Real* factor = factors + tile.at(r, of_f);
            factor[0] = s.s;
            factor[f_j] = s.slope_a * difference;
            factor[2 * f_j] = s.slope_c * difference;
        }
    }
#endif
    tile.multiply<2>({hhat, hhat}, {weights + M * square, weights + (M + 1) * square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const int here = tile.place(r);
        const Real* own = x + tile.at(r, of_x) + M * x_j;
        const Real keep = gate(tile.product(0, r) + own[0]), open = gate(tile.product(1, r) + own[x_j]);
        keeps[here] = keep;
        reset[here] = open * hhat[here];
        if (keeps_factors) {
            Real* factor = factors + tile.at(r, of_f) + MIXING * f_j;
            if (M == 1) *(factor - f_j) = hhat[here] - hhat[here];
            factor[0] = keep;
            factor[f_j] = open;
            factor[3 * f_j] = (open - 1) * reset[here];
        }
    }
    tile.multiply<1>({reset}, {weights + (M + 2) * square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const int here = tile.place(r);
        const Real candidate = tanh(tile.product(0, r) + x[tile.at(r, of_x) + (M + 2) * x_j]);
        const Real new_h = fma(keeps[here], hhat[here] - candidate, candidate);
        h[tile.at(r, of_h)] = new_h;
        if (keeps_factors) {
            Real* factor = factors + tile.at(r, of_f) + MIXING * f_j;
            const Real z = 1 - keeps[here];
            factor[2 * f_j] = z * (candidate - new_h);
            factor[4 * f_j] = z * fma(-candidate, candidate, (Real)1);
        }
    }
}

extern "C" __global__ void __launch_bounds__(LARGEST_BLOCK)
push(const Real* p, const Real* q, Index near_b, Index near_t, Index source, Index p_distance,
     Index q_distance, const Real* factors, Index f_j, Index f_b, Index f_t, const Real* weights,
     Real* dh, Index rows, Index length, Index size) {
    SHARED_MEMORY(Real, memory);
    Tile tile(memory, 3, rows, length, size);
    const Strides of_f = {f_b, f_t}, of_h = {length * size, size};
    const Index square = size * size;
    Real *dhhat = tile.matrix(0), *reset = tile.matrix(1), *sum = tile.matrix(2);
    load(tile, p, q, {near_b, near_t}, source, p_distance, q_distance);
#if M == 2
    tile.multiply<2>({dhhat, reset}, {weights, weights + square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const int here = tile.place(r);
        const Real* factor = factors + tile.at(r, of_f);
        const Real changed = fma(factor[f_j], tile.product(0, r), factor[2 * f_j] * tile.product(1, r));
        dhhat[here] = changed + mixed(factor[0], dhhat[here], reset[here]);
    }
#endif
    tile.multiply<2>({dhhat, dhhat}, {weights + M * square, weights + (M + 1) * square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const int here = tile.place(r);
        const Real* factor = factors + tile.at(r, of_f) + MIXING * f_j;
        sum[here] = fma(factor[0], dhhat[here], factor[2 * f_j] * tile.product(0, r));
        reset[here] = fma(factor[f_j], dhhat[here], factor[3 * f_j] * tile.product(1, r));
    }
    tile.multiply<1>({reset}, {weights + (M + 2) * square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const Real slope = factors[tile.at(r, of_f) + (MIXING + 4) * f_j];
        dh[tile.at(r, of_h)] = fma(slope, tile.product(0, r), sum[tile.place(r)]);
    }
}

// A number of argument j's cotangents: these stand in `sums` as a stack (M + 3, rows, k), and once more side by side.
__device__ __forceinline__ void keep(Real* sums, const Tile& tile, int r, int j, Real cotangent) {
    const Index row = tile.first + r;
    sums[(j * tile.rows + row) * tile.k + tile.column] = cotangent;
    sums[((M + 3) * (tile.rows + row) + j) * tile.k + tile.column] = cotangent;
}

// From the cotangents w of h those of the neighbours, `sent` (M, B, T, k), in the place of the row whose neighbours they
// are, and, if wanted, those of all arguments.
extern "C" __global__ void __launch_bounds__(LARGEST_BLOCK)
pull(const Real* w, Index w_b, Index w_t, const Real* factors, Index f_j, Index f_b,
     Index f_t, const Real* weights, Real* sent, Real* sums, Index keeps_sums, Index rows, Index length,
     Index size) {
    SHARED_MEMORY(Real, memory);
    Tile tile(memory, 3, rows, length, size);
    const Strides of_f = {f_b, f_t}, of_w = {w_b, w_t}, of_h = {length * size, size};
    const Index square = size * size;
    Real *one = tile.matrix(0), *other = tile.matrix(1), *hhat = tile.matrix(2);
    FOR_ROWS(tile, r) {
        const int here = tile.place(r);
        Real candidate = 0;
        if (tile.has(r)) {
            const Real* factor = factors + tile.at(r, of_f) + MIXING * f_j;
            const Real own = w[tile.at(r, of_w)];
            candidate = factor[4 * f_j] * own;
            hhat[here] = factor[0] * own;
            if (keeps_sums) keep(sums, tile, r, M + 2, candidate);
        }
        one[here] = candidate;
        other[here] = 0;
    }
    tile.multiply<1>({one}, {weights + (M + 2) * square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const int here = tile.place(r);
        const Real* factor = factors + tile.at(r, of_f) + MIXING * f_j;
        const Real reset = tile.product(0, r);
        hhat[here] = fma(factor[f_j], reset, hhat[here]);
        one[here] = factor[2 * f_j] * w[tile.at(r, of_w)];
        other[here] = factor[3 * f_j] * reset;
        if (keeps_sums) keep(sums, tile, r, M, one[here]), keep(sums, tile, r, M + 1, other[here]);
    }
    tile.multiply<2>({one, other}, {weights + M * square, weights + (M + 1) * square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const int here = tile.place(r);
        const Real* factor = factors + tile.at(r, of_f);
        hhat[here] += tile.product(0, r) + tile.product(1, r);
#if M == 2
        one[here] = factor[f_j] * hhat[here];
        other[here] = factor[2 * f_j] * hhat[here];
        if (keeps_sums) keep(sums, tile, r, 0, one[here]), keep(sums, tile, r, 1, other[here]);
#else
        sent[tile.at(r, of_h)] = hhat[here];
        if (keeps_sums) keep(sums, tile, r, 0, factor[0] * hhat[here]);
#endif
    }
#if M == 2
    tile.multiply<2>({one, other}, {weights, weights + square});
    FOR_ROWS(tile, r) {
        if (!tile.has(r)) continue;
        const Real whole = hhat[tile.place(r)], part = factors[tile.at(r, of_f)] * whole;
        Real* found = sent + tile.at(r, of_h);
        found[0] = tile.product(0, r) + part;
        found[rows * size] = tile.product(1, r) + (whole - part);
    }
#endif
}

// What the rows of B sequences (of `length`) sent to their neighbours, summed for each of these (B, source, k).
extern "C" __global__ void gather(const Real* sent, Index p_distance, Index q_distance, Real* total, Index count,
                                  Index length, Index source, Index size) {
    const Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count * size) return;
    const Index row = i / size, system = row / source, position = row - system * source;
    const Index of_p = position - p_distance, of_q = position - q_distance;
    const Real *p = sent + system * length * size + (i - row * size), *q = p + count / source * length * size;
    Real sum = 0;
    if (of_p >= 0 && of_p < length) sum = p[of_p * size];
    if (M == 2 && of_q >= 0 && of_q < length) sum += q[of_q * size];
    total[i] = sum;
}

// Diagonals of dh by each of the neighbours, (M, count), with the product of two diagonals for that of a product.
extern "C" __global__ void diagonals(SIZES, STACK(factors), const Real* weights, Real* found) {
    PLACE;
    const Index square = k * k;
    const Real* own = weights + c * (k + 1);
    const Real of_reset = IN(factors, MIXING + 1) + IN(factors, MIXING + 3) * own[(M + 1) * square];
    const Real of_hhat = IN(factors, MIXING) + IN(factors, MIXING + 2) * own[M * square] +
                         IN(factors, MIXING + 4) * own[(M + 2) * square] * of_reset;
    const Real s = M == 2 ? IN(factors, 0) : (Real)1;
    found[i] = of_hhat * (s + IN(factors, M - 1) * own[0]);
    if (M == 2) found[count + i] = of_hhat * (1 - s + IN(factors, M) * own[square]);
}

// hhat and r*hhat, (2, count), from the factors.
extern "C" __global__ void states(SIZES, STACK(factors), MATRIX(p), MATRIX(q), Real* found) {
    PLACE;
    const Real hhat = M == 2 ? mixed(IN(factors, 0), AT(p), AT(q)) : AT(p);
    found[i] = hhat;
    found[count + i] = IN(factors, MIXING + 1) * hhat;
}
