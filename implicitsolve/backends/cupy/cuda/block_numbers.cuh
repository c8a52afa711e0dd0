// Magnitudes, and the largest of them.

#include "common.cuh"

__device__ __forceinline__ Real magnitude(Real x) { return x < 0 ? -x : x; }

// The larger, or NaN if one of them is.
template <class Number>
__device__ __forceinline__ Number larger(Number a, Number b) { return b > a || isnan(b) ? b : a; }
