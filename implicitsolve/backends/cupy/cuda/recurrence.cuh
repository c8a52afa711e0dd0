// Recurrences along many runs at once, each of which is cut into chunks that run side by side.
//
// The first sweep starts every chunk but a run's first from zeros. Each later one starts a chunk again where the chunk
// before has ended otherwise than in the sweep before, and runs until the last DEPTH results are those that it found
// there, bit by bit: then so are all that follow. When no end moves any more the results are those of runs in one
// piece. Every step is the same code, whose products are explicit `fma`s, so that its rounding is always the same.
//
// If RESIDUAL, each step takes given states for the earlier ones, and returns the given one minus what it made of them:
// one sweep does that.
//
// A block has THREADS threads, in groups of WIDTH >= K lanes, one for each number of a state. A group runs one chunk.
// What its lanes show each other stands in shared memory, in rows of THREADS numbers: the states of the last steps in
// SLOTS of them, a power of two greater than DEPTH, and SHOWN more; behind them the weights, unless IN_REGISTERS.

#include "gates.cuh"

#define GROUPS (THREADS / WIDTH)
#define PACK (WIDTH * (int)sizeof(Real) < 16 ? WIDTH : 16 / (int)sizeof(Real))  // numbers that are read at once
#define PACKS ((K + PACK - 1) / PACK)
#define SLOT(t) (((t) & (SLOTS - 1)) * THREADS)
#define OWN_GROUP (threadIdx.x / WIDTH * WIDTH)

struct __align__(PACK * sizeof(Real)) Pack {
    Real of[PACK];
};

__device__ __forceinline__ bool same_bits(float a, float b) { return __float_as_int(a) == __float_as_int(b); }
__device__ __forceinline__ bool same_bits(double a, double b) {
    return __double_as_longlong(a) == __double_as_longlong(b);
}

// All threads of a group, and more perhaps, have come here, and see what the others wrote.
__device__ __forceinline__ void meet() {
#if THREADS == WARP
    __syncwarp();
#else
    __syncthreads();
#endif
}

// This lane's columns of matrices (K, K), which multiply states from the right.
template <int COUNT>
struct Columns {
#if IN_REGISTERS
    Real own[COUNT][K];
#else
    const Real* all;
#endif

    // Element [j, i] of a matrix stands at j from + i to.
    __device__ __forceinline__ void read(Real* memory, int lane, int matrix, const Real* W, Index from, Index to) {
#if IN_REGISTERS
#pragma unroll
        for (int j = 0; j < K; ++j) own[matrix][j] = lane < K ? W[j * from + lane * to] : Real(0);
#else
        all = memory;
        for (int e = threadIdx.x; e < K * K; e += THREADS) memory[matrix * K * K + e] = W[e / K * from + e % K * to];
#endif
    }

    __device__ __forceinline__ Real at(int lane, int matrix, int j) const {
#if IN_REGISTERS
        return own[matrix][j];
#else
        return all[(matrix * K + j) * K + (lane < K ? lane : 0)];
#endif
    }

    // Product of a state, which the group's lanes see, and a column.
    __device__ __forceinline__ Real times(const Real* row, int lane, int matrix) const {
        Real sums[PACK] = {};
#pragma unroll
        for (int q = 0; q < PACKS; ++q) {
            const Pack h = reinterpret_cast<const Pack*>(row)[q];
#pragma unroll
            for (int e = 0; e < PACK; ++e)
                if (q * PACK + e < K) sums[e] = fma(h.of[e], at(lane, matrix, q * PACK + e), sums[e]);
        }
#pragma unroll
        for (int half = PACK / 2; half > 0; half /= 2)
#pragma unroll
            for (int e = 0; e < half; ++e) sums[e] += sums[e + half];
        return sums[0];
    }
};

// This lane's numbers in rows that follow each other.
struct Rows {
    const Real* place;
    Index step;

    __device__ __forceinline__ void stand(const Real* start, Index of_row, Index of_column, Index row, int way, int i) {
        place = start + row * of_row + i * of_column;
        step = way * of_row;
    }

    // The number here, if it exists; then go on.
    __device__ __forceinline__ Real next(bool exists) {
        const Real number = exists ? *place : Real(0);
        place += step;
        return number;
    }
};

#define PLAN                                                                                                      \
    const Real *begin, Index begin_run, Index begin_past, Index begin_column, const Index *table, Index runs,      \
        Index chunks, Index chunk, Index sweep, Real *ends, int *moved, const Real *given, Real *out
#define THE_PLAN                                                                                                \
    {begin, begin_run, begin_past, begin_column, table, runs, chunks, (int)chunk, (int)sweep, ends, moved, given, out}

struct Plan {
    const Real* begin;  // states before the first step, the latest first
    Index begin_run, begin_past, begin_column;
    const Index* table;  // (4, runs): steps, rows of the first argument and of the first result, and from row to row
    Index runs, chunks;
    int chunk, sweep;  // steps of a chunk; sweeps count from 1
    Real* ends;        // (2, runs, chunks, DEPTH, K): states behind chunks, of odd and of even sweeps
    int* moved;        // (1 + 2 runs chunks): last sweep in which an end moved, and these ends
    const Real* given;  // states in the places of results; without RESIDUAL the results of the sweep before
    Real* out;
};

// One sweep. A rule can `read` its weights, `stand` at a row, and take a `step` with ARGUMENTS from its `rows`: it
// returns the result, and leaves in the step's slot the state that later steps need.
template <class Rule>
__device__ __forceinline__ void sweep_along(const Plan& plan, Rule& rule) {
    constexpr int AHEAD = 8 >> (Rule::ARGUMENTS > 2) >> (sizeof(Real) > 4 || K > WARP);  // steps that are read early
    const int i = threadIdx.x % WIDTH, chunk = plan.chunk, sweep = plan.sweep;
    const Index pair = (Index)blockIdx.x * GROUPS + threadIdx.x / WIDTH, pairs = plan.runs * plan.chunks;
    const Index run = pair / plan.chunks, first = pair % plan.chunks * chunk;
    const Index left = pair < pairs && i < K ? plan.table[run] - first : 0;
    const bool reruns = sweep > 1;
    const int* before = plan.moved + 1 + (sweep - 1) % 2 * pairs;
    const bool starts = left > 0 && (!reruns || (first > 0 && before[pair - 1] == sweep - 1));
    if (!__syncthreads_or(starts)) return;

    SHARED_MEMORY(Real, slots);
    rule.read(slots + (SLOTS + SHOWN) * THREADS, i);
    const int steps = !starts ? 0 : left < chunk ? (int)left : chunk;
    const Index* table = plan.table + (starts ? run : 0);
    const int way = (int)table[3 * plan.runs];
    const Index target = table[2 * plan.runs] + way * first;
    rule.stand(table[plan.runs] + way * first, way, i);
    Rows former;
    former.stand(plan.given, K, 1, target, way, i);
    Real* result = plan.out + target * K + i;
    const Real* start = plan.ends + ((sweep - 1) % 2 * pairs + pair - 1) * DEPTH * K + i;
#pragma unroll
    for (int past = 0; past < DEPTH; ++past) {
        Real state = 0;
        if (starts && first == 0)
            state = plan.begin[run * plan.begin_run + past * plan.begin_past + i * plan.begin_column];
        else if (starts && RESIDUAL)
            state = former.place[-(1 + past) * former.step];
        else if (starts && reruns)
            state = start[past * K];
        slots[SLOT(-1 - past) + threadIdx.x] = state;
    }

    Real arguments[AHEAD][Rule::ARGUMENTS], following[AHEAD][Rule::ARGUMENTS], found[AHEAD], following_found[AHEAD];
    auto fetch = [&](int from) {
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            const bool exists = from + s < steps;
#pragma unroll
            for (int a = 0; a < Rule::ARGUMENTS; ++a) following[s][a] = rule.rows[a].next(exists);
            following_found[s] = former.next(exists && (reruns || RESIDUAL));
        }
    };
    int agreeing = 0;  // of the last results, those that are what was found in the sweep before
    fetch(0);
    int from = 0;
    do {
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
#pragma unroll
            for (int a = 0; a < Rule::ARGUMENTS; ++a) arguments[s][a] = following[s][a];
            found[s] = following_found[s];
        }
        fetch(from + AHEAD);
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            const Real h = rule.step(arguments[s], from + s, i, slots);
            if (RESIDUAL) slots[SLOT(from + s) + threadIdx.x] = found[s];
            if (from + s < steps) {
                agreeing = reruns && same_bits(h, found[s]) ? agreeing + 1 : 0;
                *result = RESIDUAL ? found[s] - h : h;
            }
            result += former.step;
        }
        from += AHEAD;
    } while (!__syncthreads_and(agreeing >= DEPTH || from >= steps));
    if (!RESIDUAL && steps == chunk && left > chunk) {
        Real* end = plan.ends + (sweep % 2 * pairs + pair) * DEPTH * K + i;
#pragma unroll
        for (int past = 0; past < DEPTH; ++past) end[past * K] = slots[SLOT(chunk - 1 - past) + threadIdx.x];
        if (agreeing < DEPTH) plan.moved[0] = plan.moved[1 + sweep % 2 * pairs + pair] = sweep;
    }
}
