// CUDA's language on the CPU, for tests: the threads of a block are contexts that take turns at barriers.
//
// Between two barriers threads run one after the other, in an order that changes with `order_seed`: a result that
// depends on it tells of a missing barrier. Blocks run one after the other. Shared memory holds NaN at first. As CuPy
// has all sources compiled, subnormal numbers of single precision are zero.
#pragma once
#ifdef __x86_64__
#include <xmmintrin.h>
#else
#include <ucontext.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __shared__ static
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __ldg(pointer) (*(pointer))

using std::exp;
using std::fma;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::tanh;

// As CUDA's, of two types and past NaN.
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) return std::fmin(a, b);
    return a < b ? a : b;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) return std::fmax(a, b);
    return a > b ? a : b;
}

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace emulated {

constexpr size_t STACK = 256 * 1024, SHARED = 228 * 1024, GUARD = 64, MOST_THREADS = 1024;
enum Wait { RUNNING, AT_BLOCK_BARRIER, AT_WARP_BARRIER, ENDED };

// Where a thread is, and how another goes on.
#ifdef __x86_64__
extern "C" __attribute__((visibility("hidden"))) void emulated_switch(void** from, void* to);
asm(R"(
    .text
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

struct Context {
    void* place = nullptr;

    void begin(char* stack, void (*function)()) {
        void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + STACK) / 16 * 16) - 8;
        std::memset(top, 0, 8 * sizeof *top);  // what is popped: six registers, and the place
        top[6] = reinterpret_cast<void*>(function);
        place = top;
    }
    void leave_for(Context& other) { emulated_switch(&place, other.place); }
};
#else
struct Context {
    ucontext_t place;

    void begin(char* stack, void (*function)()) {
        getcontext(&place);
        place.uc_stack.ss_sp = stack;
        place.uc_stack.ss_size = STACK;
        place.uc_link = nullptr;
        makecontext(&place, function, 0);
    }
    void leave_for(Context& other) { swapcontext(&place, &other.place); }
};
#endif

struct Thread {
    Context context;
    char* stack = nullptr;
    Wait state = RUNNING;
    dim3 index;
    unsigned warp_mask = 0;
    int vote = 0;
};

inline Thread threads[MOST_THREADS];
inline Context scheduler;
inline size_t current = 0, thread_count = 0, order[MOST_THREADS];
inline unsigned order_seed = 0;
inline dim3 block_index, block_size, grid_size;
inline unsigned char shared_bytes[SHARED + GUARD];
inline double lanes[64][2][32][2];  // values that lanes show each other: 16 bytes each, two sets in turn
inline void (*body)() = nullptr;
inline void* kernel = nullptr;
inline void** kernel_arguments = nullptr;
inline const char* failure = nullptr;
inline int votes_any = 0, votes_all = 1, votes_count = 0;

inline Thread& self() { return threads[current]; }

inline void entry() {
    body();
    self().state = ENDED;
    self().context.leave_for(scheduler);
}

inline void yield_as(Wait state) {
    self().state = state;
    self().context.leave_for(scheduler);
}

inline int rank_of(const dim3& t) { return t.x + block_size.x * (t.y + block_size.y * t.z); }

inline void shuffle_order() {
    for (size_t i = thread_count; order_seed && i > 1; --i) {
        order_seed = order_seed * 1664525u + 1013904223u | 1u;
        std::swap(order[i - 1], order[(order_seed >> 8) % i]);
    }
}

inline void run_block() {
    for (size_t i = 0; i < thread_count; ++i) {
        Thread& t = threads[i];
        t.state = RUNNING;
        t.index = {unsigned(i % block_size.x), unsigned(i / block_size.x % block_size.y),
                   unsigned(i / (size_t(block_size.x) * block_size.y))};
        if (!t.stack) t.stack = new char[STACK];
        t.context.begin(t.stack, entry);
    }
    while (true) {
        for (size_t n = 0; n < thread_count; ++n) {
            size_t i = order[n];
            if (threads[i].state != RUNNING) continue;
            current = i;
            scheduler.leave_for(threads[i].context);
        }
        bool advanced = false;
        size_t ended = 0, at_block = 0;
        for (size_t i = 0; i < thread_count; ++i) {
            ended += threads[i].state == ENDED;
            at_block += threads[i].state == AT_BLOCK_BARRIER;
        }
        if (ended == thread_count) return;
        for (size_t first = 0; first < thread_count; first += 32) {
            size_t last = min(first + 32, thread_count);
            unsigned waiting = 0, wanted = 0;
            for (size_t i = first; i < last; ++i)
                if (threads[i].state == AT_WARP_BARRIER) waiting |= 1u << (i - first), wanted |= threads[i].warp_mask;
            unsigned present = last - first == 32 ? 0xffffffffu : (1u << (last - first)) - 1;
            if (waiting && waiting == (wanted & present)) {
                for (size_t i = first; i < last; ++i)
                    if (threads[i].state == AT_WARP_BARRIER) threads[i].state = RUNNING;
                advanced = true;
            }
        }
        if (at_block && at_block + ended == thread_count) {
            if (ended) failure = "a barrier of the block that some threads never reach";
            votes_any = 0, votes_all = 1, votes_count = 0;
            for (size_t i = 0; i < thread_count; ++i)
                if (threads[i].state == AT_BLOCK_BARRIER) {
                    votes_any |= threads[i].vote != 0, votes_all &= threads[i].vote != 0;
                    votes_count += threads[i].vote != 0;
                    threads[i].state = RUNNING;
                }
            advanced = true;
        }
        if (!advanced) {
            failure = "threads wait for each other at different barriers";
            return;
        }
    }
}

inline void run(dim3 grid, dim3 block, size_t shared) {
    grid_size = grid, block_size = block;
    thread_count = size_t(block.x) * block.y * block.z;
    failure = nullptr;
    if (thread_count > MOST_THREADS) failure = "more than 1024 threads in a block";
    if (shared > SHARED - 1024) failure = "more than 227 KB of shared memory";
    for (size_t i = 0; i < thread_count && !failure; ++i) order[i] = i;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x && !failure; ++x) {
                block_index = {x, y, z};
                std::memset(shared_bytes, 0xff, shared + GUARD);  // NaN
                shuffle_order();
                run_block();
                for (size_t i = shared; i < shared + GUARD; ++i)
                    if (shared_bytes[i] != 0xff) failure = "a write beyond the shared memory that was asked for";
            }
}

inline int lane() { return rank_of(self().index) % 32; }
inline int warp() { return rank_of(self().index) / 32; }

inline void sync_warp(unsigned mask) {
    self().warp_mask = mask;
    yield_as(AT_WARP_BARRIER);
}

template <class T>
T shuffle(unsigned mask, T value, int from, bool valid = true) {
    static_assert(sizeof(T) <= 16, "shuffles move at most 16 bytes here");
    std::memcpy(lanes[warp()][0][lane()], &value, sizeof(T));
    sync_warp(mask);
    T found = value;
    if (valid && from >= 0 && from < 32) std::memcpy(&found, lanes[warp()][0][from], sizeof(T));
    sync_warp(mask);
    return found;
}

template <class T> struct Letter { static constexpr char value = '?'; };
template <> struct Letter<float> { static constexpr char value = 'f'; };
template <> struct Letter<double> { static constexpr char value = 'd'; };
template <> struct Letter<int> { static constexpr char value = 'i'; };
template <> struct Letter<long long> { static constexpr char value = 'q'; };
template <> struct Letter<bool> { static constexpr char value = '?'; };
template <> struct Letter<unsigned char> { static constexpr char value = 'B'; };

// "Pf" for a pointer to float, " f" for a float, and so on, argument by argument
template <class... A>
const char* signature(void (*)(A...)) {
    static char text[2 * sizeof...(A) + 1];
    char* end = text;
    ((*end++ = std::is_pointer_v<A> ? 'P' : ' ', *end++ = Letter<std::remove_cv_t<std::remove_pointer_t<A>>>::value), ...);
    return text;
}

template <class... A, size_t... I>
void call(void (*function)(A...), std::index_sequence<I...>) {
    function(*static_cast<std::remove_reference_t<A>*>(kernel_arguments[I])...);
}

// What holds while a kernel of single precision runs: -ftz=true.
struct FlushToZero {
#if defined(__x86_64__) && defined(Real)
    unsigned before = _mm_getcsr();
    FlushToZero() { _mm_setcsr(before | (sizeof(Real) == 4 ? 0x8040u : 0u)); }
    ~FlushToZero() { _mm_setcsr(before); }
#endif
};

template <class... A>
const char* launch(void (*function)(A...), dim3 grid, dim3 block, size_t shared, void** arguments, unsigned seed) {
    FlushToZero guard;
    order_seed = seed;
    kernel = reinterpret_cast<void*>(function), kernel_arguments = arguments;
    body = [] { call(reinterpret_cast<void (*)(A...)>(kernel), std::index_sequence_for<A...>{}); };
    run(grid, block, shared);
    return failure;
}

}  // namespace emulated

#define threadIdx (emulated::self().index)
#define blockIdx (emulated::block_index)
#define blockDim (emulated::block_size)
#define gridDim (emulated::grid_size)
#define SHARED_MEMORY(Type, name) Type* name = reinterpret_cast<Type*>(emulated::shared_bytes)

inline int __float_as_int(float x) {
    int bits;
    return std::memcpy(&bits, &x, sizeof bits), bits;
}
inline long long __double_as_longlong(double x) {
    long long bits;
    return std::memcpy(&bits, &x, sizeof bits), bits;
}
inline void __syncthreads() { emulated::self().vote = 0, emulated::yield_as(emulated::AT_BLOCK_BARRIER); }
inline int __syncthreads_or(int vote) {
    emulated::self().vote = vote, emulated::yield_as(emulated::AT_BLOCK_BARRIER);
    return emulated::votes_any;
}
inline int __syncthreads_and(int vote) {
    emulated::self().vote = vote, emulated::yield_as(emulated::AT_BLOCK_BARRIER);
    return emulated::votes_all;
}
inline int __syncthreads_count(int vote) {
    emulated::self().vote = vote, emulated::yield_as(emulated::AT_BLOCK_BARRIER);
    return emulated::votes_count;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated::sync_warp(mask); }
template <class T> T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
    return emulated::shuffle(mask, v, emulated::lane() / width * width + from % width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32) {
    int lane = emulated::lane(), from = lane ^ with;
    return emulated::shuffle(mask, v, from, from / width == lane / width || from < lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, int by, int width = 32) {
    int lane = emulated::lane();
    return emulated::shuffle(mask, v, lane + by, lane % width + by < width);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, int by, int width = 32) {
    int lane = emulated::lane();
    return emulated::shuffle(mask, v, lane - by, lane % width >= by);
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
    unsigned found = 0;
    for (int from = 0; from < 32; ++from)
        found |= (mask >> from & 1 && emulated::shuffle(mask, vote, from)) ? 1u << from : 0u;
    return found;
}
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(unsigned mask, int vote) { return (__ballot_sync(mask, vote) & mask) == mask; }
