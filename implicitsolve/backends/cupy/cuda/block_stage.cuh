// Numbers of 32 systems, brought into shared memory by their warp and back: systems lie far apart in memory, and each
// thread works on its own. Number e of a system lies `step` numbers after number e - 1.

#include "block_numbers.cuh"

struct Systems {
    Index first, count;      // the warp's first, and how many there are at all
    Index distance, step;    // numbers between two systems, and between two numbers of one
};

__device__ __forceinline__ void fetch(Real* stage, int pitch, const Real* source, Systems of, int numbers) {
    const int systems = of.count - of.first < WARP ? of.count - of.first : WARP;
    __syncwarp();
#pragma unroll 8
    for (int i = 0; i < systems; ++i)
        for (int e = threadIdx.x; e < numbers; e += WARP)
            stage[i * pitch + e] = source[(of.first + i) * of.distance + e * of.step];
    __syncwarp();
}

__device__ __forceinline__ void put_back(Real* target, const Real* stage, int pitch, Systems of, int numbers) {
    const int systems = of.count - of.first < WARP ? of.count - of.first : WARP;
    __syncwarp();
    for (int i = 0; i < systems; ++i)
        for (int e = threadIdx.x; e < numbers; e += WARP)
            target[(of.first + i) * of.distance + e * of.step] = stage[i * pitch + e];
    __syncwarp();
}
