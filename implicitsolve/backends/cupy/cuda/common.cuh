// What every source needs. `Real` is float or double. A C++ compiler for the CPU takes these files too, with a header
// that stands for CUDA.

typedef long long Index;

#ifdef __CUDACC__
#define SHARED_MEMORY(Type, name)                                          \
    extern __shared__ __align__(16) unsigned char shared_memory_of_block[]; \
    Type* name = reinterpret_cast<Type*>(shared_memory_of_block)
#endif

#define WARP 32
#define EVERY_LANE 0xffffffffu

__device__ __forceinline__ Real least(Real a, Real b) { return a < b ? a : b; }
__device__ __forceinline__ Real most(Real a, Real b) { return a > b ? a : b; }

// Sum over the lanes of a warp, the same in each of them and always in the same order.
__device__ __forceinline__ Real warp_sum(Real x) {
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(EVERY_LANE, x, step);
    return x;
}
