// The solvers' work on vectors: V and other `rows` are (b, m, N), x, y and w (b, N); each with the stride of its systems
// and, where it has several, of its rows, in entries, which stand side by side. Partial sums are (b, parts, count); with
// one part they are the sums. See vectors.cuh for how vectors are cut into parts.
#include "vectors.cuh"

// <rows_i, x>.
extern "C" __global__ void __launch_bounds__(1024, 1)
    project(const Real* rows, Index rows_system, Index rows_stride, Index count, const Real* x, Index x_system,
            Real* partial, Index N, Index parts) {
    SHARED_MEMORY(Real, scratch);
    Part at(N, parts);
    Rows of = {rows + at.system * rows_system, rows_stride, count};
    dots(of, x + at.system * x_system, at, partial + blockIdx.x * count, scratch);
}

// The sums of partial sums (b, parts, count): one block a system.
extern "C" __global__ void __launch_bounds__(1024, 1)
    add_up(const Real* partial, Real* sums, Index parts, Index count) {
    Index system = blockIdx.x;
    add_parts(partial + system * parts * count, parts, count, sums + system * count);
}

// out = sum_i a_i rows_i.
extern "C" __global__ void __launch_bounds__(256)
    combine(const Real* a, Index a_system, const Real* rows, Index rows_system, Index rows_stride, Index count, Real* out,
            Index N, Index size) {
    Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x, system = at / N;
    if (at >= size) return;
    out[at] = combined(a + system * a_system, Rows{rows + system * rows_system, rows_stride, count}, at % N);
}

// out = x - sum_i a_i rows_i.
extern "C" __global__ void __launch_bounds__(256)
    without(const Real* x, Index x_system, const Real* a, Index a_system, const Real* rows, Index rows_system,
            Index rows_stride, Index count, Real* out, Index N, Index size) {
    Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x, system = at / N, e = at % N;
    if (at >= size) return;
    Rows of = {rows + system * rows_system, rows_stride, count};
    out[at] = x[system * x_system + e] - combined(a + system * a_system, of, e);
}

// Classical Gram-Schmidt, twice: into row `count` of V what w has outside the span of the rows before, at length 1. The
// numbers are <V_i, w> and the square of that row's length before it was scaled. For vectors of one part.
extern "C" __global__ void __launch_bounds__(1024, 1)
    orthonormalize(Real* V, Index V_system, Index V_stride, Index count, const Real* w, Index w_system, Real* numbers,
                   Index N, Real low, Real high) {
    SHARED_MEMORY(Real, shared);
    Real *h = shared, *again = h + count, *square = again + count, *scratch = square + 1;
    Part at(N, 1);
    Rows basis = {V + at.system * V_system, V_stride, count};
    Real* y = V + at.system * V_system + count * V_stride;
    dots(basis, w + at.system * w_system, at, h, scratch);
    subtract(basis, h, w + at.system * w_system, y, at);
    dots(basis, y, at, again, scratch);
    Real mine[TILE] = {subtract(basis, again, y, y, at)};
    block_sums(mine, 1, square, scratch);
    scale(y, *square, low, high, at);
    for (Index i = threadIdx.x; i <= count; i += blockDim.x)
        numbers[at.system * (count + 1) + i] = i < count ? h[i] + again[i] : *square;
}

// The same for vectors of many parts, after `project`: y = w - sum_i h_i V_i, and <V_i, y>.
extern "C" __global__ void __launch_bounds__(1024, 1)
    subtract_and_project(Real* V, Index V_system, Index V_stride, Index count, const Real* w, Index w_system,
                         const Real* h_partial, Real* partial, Index N, Index parts) {
    SHARED_MEMORY(Real, shared);
    Real *h = shared, *scratch = h + count;
    Part at(N, parts);
    Rows basis = {V + at.system * V_system, V_stride, count};
    Real* y = V + at.system * V_system + count * V_stride;
    add_parts(h_partial + at.system * parts * count, parts, count, h);
    subtract(basis, h, w + at.system * w_system, y, at);
    dots(basis, y, at, partial + blockIdx.x * count, scratch);
}

// Then y less its own projection, and its square.
extern "C" __global__ void __launch_bounds__(1024, 1)
    subtract_and_square(Real* V, Index V_system, Index V_stride, Index count, const Real* again_partial, Real* partial,
                        Index N, Index parts) {
    SHARED_MEMORY(Real, shared);
    Real *again = shared, *scratch = again + count;
    Part at(N, parts);
    Rows basis = {V + at.system * V_system, V_stride, count};
    Real* y = V + at.system * V_system + count * V_stride;
    add_parts(again_partial + at.system * parts * count, parts, count, again);
    Real mine[TILE] = {subtract(basis, again, y, y, at)};
    block_sums(mine, 1, partial + blockIdx.x, scratch);
}

// And y at length 1, and the numbers.
extern "C" __global__ void __launch_bounds__(1024, 1)
    scale_row(Real* V, Index V_system, Index V_stride, Index count, const Real* h_partial, const Real* again_partial,
              const Real* square_partial, Real* numbers, Index N, Index parts, Real low, Real high) {
    SHARED_MEMORY(Real, shared);
    Real *h = shared, *again = h + count, *square = again + count;
    Part at(N, parts);
    add_parts(square_partial + at.system * parts, parts, 1, square);
    scale(V + at.system * V_system + count * V_stride, *square, low, high, at);
    if (at.part) return;
    add_parts(h_partial + at.system * parts * count, parts, count, h);
    add_parts(again_partial + at.system * parts * count, parts, count, again);
    for (Index i = threadIdx.x; i <= count; i += blockDim.x)
        numbers[at.system * (count + 1) + i] = i < count ? h[i] + again[i] : *square;
}

// out = x at length 1.
extern "C" __global__ void __launch_bounds__(1024, 1)
    normalize(const Real* x, Index x_system, Real* out, Index out_system, Index N) {
    SHARED_MEMORY(Real, shared);
    Real *square = shared, *scratch = square + 1;
    Index system = blockIdx.x;
    x += system * x_system, out += system * out_system;
    Real mine[TILE] = {};
    for (Index e = threadIdx.x; e < N; e += blockDim.x) mine[0] += x[e] * x[e];
    block_sums(mine, 1, square, scratch);
    Real size = sqrt(*square);
    for (Index e = threadIdx.x; e < N; e += blockDim.x) out[e] = x[e] / size;
}

// Sums of squares and largest magnitudes of up to four arrays (b, N0), (b, N1), ...: partial is (b, count, parts, 2).
extern "C" __global__ void __launch_bounds__(1024, 1)
    measure(const Real* x0, const Real* x1, const Real* x2, const Real* x3, Index system0, Index system1, Index system2,
            Index system3, Index N0, Index N1, Index N2, Index N3, Index count, Real* partial, Index parts) {
    SHARED_MEMORY(Real, scratch);
    Index which = blockIdx.x / parts % count, system = blockIdx.x / parts / count, part = blockIdx.x % parts;
    const Real* x = which == 0   ? x0 + system * system0
                    : which == 1 ? x1 + system * system1
                    : which == 2 ? x2 + system * system2
                                 : x3 + system * system3;
    Index N = which == 0 ? N0 : which == 1 ? N1 : which == 2 ? N2 : N3;
    Index end = N < (part + 1) * CHUNK ? N : (part + 1) * CHUNK;
    Real square = 0, largest = 0;
    for (Index e = part * CHUNK + threadIdx.x; e < end; e += blockDim.x) {
        square += x[e] * x[e];
        largest = larger(largest, fabs(x[e]));
    }
    square_and_largest(square, largest, partial + 2 * Index(blockIdx.x), scratch);
}

// The same of all parts: partial (pairs, parts, 2) to numbers (pairs, 2), one block a pair.
extern "C" __global__ void __launch_bounds__(1024, 1) measure_parts(const Real* partial, Real* numbers, Index parts) {
    SHARED_MEMORY(Real, scratch);
    Real square = 0, largest = 0;
    for (Index part = threadIdx.x; part < parts; part += blockDim.x) {
        square += partial[2 * (blockIdx.x * parts + part)];
        largest = larger(largest, partial[2 * (blockIdx.x * parts + part) + 1]);
    }
    square_and_largest(square, largest, numbers + 2 * Index(blockIdx.x), scratch);
}

// A point that is `reach` away from x in the direction of v, and ||v|| over that; v is scaled, so that its square stays
// in range.
extern "C" __global__ void __launch_bounds__(1024, 1)
    nearby(const Real* x, const Real* v, const Real* reach, Real* point, Real* factor, Index N) {
    SHARED_MEMORY(Real, shared);
    Real *sums = shared, *scratch = shared + TILE, largest = 0, square = 0;
    Index system = blockIdx.x, at = system * N;
    for (Index e = threadIdx.x; e < N; e += blockDim.x) largest = larger(largest, fabs(v[at + e]));
    square_and_largest(0, largest, sums, scratch);
    __syncthreads();
    Real size = sums[1] > 0 ? sums[1] : Real(1);
    __syncthreads();
    for (Index e = threadIdx.x; e < N; e += blockDim.x) square += (v[at + e] / size) * (v[at + e] / size);
    square_and_largest(square, 0, sums, scratch);
    __syncthreads();
    Real length = sqrt(sums[0]), h = reach[system] / (length > 0 ? length : Real(1));
    for (Index e = threadIdx.x; e < N; e += blockDim.x) point[at + e] = x[at + e] + h * (v[at + e] / size);
    if (threadIdx.x == 0) factor[system] = size / h;
}

// 1 / (1 - gain / advance) and 1 / advance, or 1 and 0 where one of them is not finite.
extern "C" __global__ void __launch_bounds__(256)
    growth(const Real* gain, const Real* advance, Real* growth, Real* factor, Index size) {
    Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= size) return;
    Real of_z = 1 / (1 - gain[at] / advance[at]), of_w = 1 / advance[at];
    bool usable = isfinite(of_z) && isfinite(of_w);
    growth[at] = usable ? of_z : Real(1), factor[at] = usable ? of_w : Real(0);
}

// Diagonals (B, T, k) of I - second first, whose own are `previous` and `following` (B, T, k) for the second and, for the
// first, (B, own, k) with own T or T + 1, of the eliminated blocks, each before a kept one but perhaps the last.
extern "C" __global__ void __launch_bounds__(256)
    half_diagonals(const Real* previous, const Real* following, const Real* own_previous, const Real* own_following,
                   Real* below, Real* main, Real* above, Index T, Index own, Index k, Index size) {
    Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= size) return;
    Index block = at / k % T, before = (at / k / T * own + block) * k + at % k, after = before + k;
    bool has_after = block + 1 < own;
    below[at] = -previous[at] * own_previous[before];
    main[at] = 1 - (previous[at] * own_following[before] + following[at] * (has_after ? own_previous[after] : Real(0)));
    above[at] = -following[at] * (has_after ? own_following[after] : Real(0));
}

// A step of Anderson's method: -image - sum_i a_i rows_i, and the point that it leads to.
extern "C" __global__ void __launch_bounds__(256)
    mixed(const Real* x, const Real* image, const Real* a, Index a_system, const Real* rows, Index rows_system,
          Index rows_stride, Index count, Real* step, Real* point, Index N, Index size) {
    Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x, system = at / N;
    if (at >= size) return;
    Rows of = {rows + system * rows_system, rows_stride, count};
    Real value = -image[at] - combined(a + system * a_system, of, at % N);
    step[at] = value, point[at] = x[at] + value;
}

// A column and its image to row j of dF and dg; partial holds <dF_i, F>, i < count, and the column's square.
extern "C" __global__ void __launch_bounds__(1024, 1)
    remember(Real* dF, Real* dg, Index system_stride, Index row_stride, Index j, Index count, const Real* column,
             const Real* image, const Real* F, Real* partial, Index N, Index parts) {
    SHARED_MEMORY(Real, scratch);
    Part at(N, parts);
    Index here = at.system * system_stride + j * row_stride;
    Real mine[TILE] = {};
    for (Index e = at.begin + threadIdx.x; e < at.end; e += blockDim.x) {
        Real value = column[at.system * N + e];
        dF[here + e] = value, dg[here + e] = image[at.system * N + e];
        mine[0] += value * value;
    }
    Real* sums = partial + blockIdx.x * (count + 1);
    block_sums(mine, 1, sums + count, scratch);
    dots(Rows{dF + at.system * system_stride, row_stride, count}, F + at.system * N, at, sums, scratch);
}

// F - old_F to row j of dF and step - (image - old_image) to row j of dg. partial (b, parts, count + 7) holds <dF_i, F>,
// i < count, the squares of that row, F, step and x, and the largest magnitudes of the last three.
extern "C" __global__ void __launch_bounds__(1024, 1)
    remember_step(Real* dF, Real* dg, Index system_stride, Index row_stride, Index j, Index count, const Real* F,
            const Real* old_F, const Real* step, const Real* image, const Real* old_image, const Real* x, Real* partial,
            Index N, Index parts) {
    SHARED_MEMORY(Real, scratch);
    Part at(N, parts);
    Index here = at.system * system_stride + j * row_stride, first = at.system * N;
    Real mine[TILE] = {}, largest_F = 0, largest_step = 0, largest_x = 0;
    for (Index e = at.begin + threadIdx.x; e < at.end; e += blockDim.x) {
        Real value = F[first + e], length = step[first + e], place = x[first + e];
        Real change = value - old_F[first + e];
        dF[here + e] = change, dg[here + e] = length - (image[first + e] - old_image[first + e]);
        mine[0] += change * change, mine[1] += value * value, mine[2] += length * length, mine[3] += place * place;
        largest_F = larger(largest_F, fabs(value)), largest_step = larger(largest_step, fabs(length));
        largest_x = larger(largest_x, fabs(place));
    }
    Real* sums = partial + blockIdx.x * (count + 7);
    block_sums(mine, 4, sums + count, scratch);
    block_largest(largest_F, sums + count + 4, scratch);
    block_largest(largest_step, sums + count + 5, scratch);
    block_largest(largest_x, sums + count + 6, scratch);
    dots(Rows{dF + at.system * system_stride, row_stride, count}, F + first, at, sums, scratch);
}

// Its numbers from those of all parts, the last three of `count` as largest ones: one block a system.
extern "C" __global__ void __launch_bounds__(1024, 1)
    step_parts(const Real* partial, Real* numbers, Index parts, Index count) {
    partial += blockIdx.x * parts * count, numbers += blockIdx.x * count;
    for (Index i = threadIdx.x; i < count; i += blockDim.x) {
        Real number = 0;
        for (Index part = 0; part < parts; ++part) {
            Real value = partial[part * count + i];
            number = i < count - 3 ? number + value : larger(number, value);
        }
        numbers[i] = number;
    }
}

// z += amount * w, and <following, z>. For vectors of one part.
extern "C" __global__ void __launch_bounds__(1024, 1)
    rank_one(Real* z, Index z_system, const Real* w, Index w_system, const Real* amount, Index amount_system,
             const Real* following, Index following_system, Real* products, Index N, Index parts) {
    SHARED_MEMORY(Real, scratch);
    Part at(N, parts);
    z += at.system * z_system, w += at.system * w_system, following += at.system * following_system;
    Real a = amount[at.system * amount_system];
    Real mine[TILE] = {};
    for (Index e = at.begin + threadIdx.x; e < at.end; e += blockDim.x) {
        Real value = z[e] + w[e] * a;
        z[e] = value;
        mine[0] += following[e] * value;
    }
    block_sums(mine, 1, products + blockIdx.x, scratch);
}
