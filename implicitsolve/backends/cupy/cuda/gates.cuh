// Functions of single numbers that recurrent layers are made of, safe at any argument, and places in their arrays.
//
// Kernels have one thread for each of the `count` numbers of B sequences of T positions with k numbers, in C order; it
// stands at number i, the place (b, t, c). An array comes with the strides of b and t, a stack of them with its own
// before; the numbers of a row stand side by side. Results without strides are contiguous. Each thread reads all that it
// needs before it writes: an array may be argument and result.

#include "common.cuh"

#define SIZES Index count, Index T, Index k
#define MATRIX(x) Real *x, Index x##_b, Index x##_t
#define STACK(x) Real *x, Index x##_j, Index x##_b, Index x##_t
#define PLACE                                                     \
    const Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; \
    if (i >= count) return;                                       \
    const Index c = i % k, t = i / k % T, b = i / k / T
#define ROW(x, t) (x + b * x##_b + (t) * x##_t)
#define AT(x) ROW(x, t)[c]
#define IN(x, j) ROW(x, t)[(j) * x##_j + c]

// Matrices of neighbours, all with the same strides: neighbour j of [b, t] stands at [b, t + distance_j], if that is one
// of `length` positions; otherwise it is zero.
#define MOST_NEIGHBOURS 4
#define NEIGHBOURS(x) const Real *x##0, const Real *x##1, const Real *x##2, const Real *x##3, Index x##_b, Index x##_t
#define DISTANCES Index length, Index distance0, Index distance1, Index distance2, Index distance3
#define PLACES Distances{{distance0, distance1, distance2, distance3}, length}
#define NEAR(x) Neighbours{{x##0, x##1, x##2, x##3}, PLACES, b * x##_b + c, t, x##_t}

struct Distances {
    Index distance[MOST_NEIGHBOURS], length;

    __device__ __forceinline__ bool reach(int j, Index t) const {
        return t + distance[j] >= 0 && t + distance[j] < length;
    }
};

struct Neighbours {
    const Real* start[MOST_NEIGHBOURS];
    Distances places;
    Index offset, t, of_t;

    __device__ __forceinline__ Real operator()(int j, Index further = 0) const {
        const Index at = offset + further + (t + places.distance[j]) * of_t;
        return places.reach(j, t) ? start[j][at] : Real(0);
    }
};

// sigma(-y)
__device__ __forceinline__ Real gate(Real y) { return Real(1) / (Real(1) + exp(y)); }

// s = sigma(a) / (sigma(a) + sigma(c)), ds/da and ds/dc. That is (1 + exp(-c)) / (2 + exp(-a) + exp(-c)), with both
// scaled by exp(min(a, c, 0)): then the largest of the exponentials is 1.
struct Switch {
    Real s, slope_a, slope_c;
};

__device__ __forceinline__ Switch switch_of(Real a, Real c) {
    const Real scale = least(least(a, c), Real(0));
    const Real of_a = exp(scale - a), of_c = exp(scale - c), of_zero = exp(scale);
    const Real total = of_zero + of_a + (of_zero + of_c), s = (of_zero + of_c) / total;
    return {s, of_a * s / total, of_c * (s - Real(1)) / total};
}

__device__ __forceinline__ Real mixed(Real s, Real p, Real q) { return s * (p - q) + q; }
