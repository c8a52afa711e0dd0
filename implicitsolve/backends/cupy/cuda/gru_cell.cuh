// Matrix products of a few rows inside a block, for functions of a row that consist of several of them.
//
// A block computes ROWS rows, with a thread for each of `width` columns and each of `slices` parts of the sums. The
// states stand in shared memory, as matrices (ROWS, width) that are zero beyond column k. Weights (k, k) are read from
// L2, by consecutive threads from consecutive addresses, AHEAD of them at a time. Row r of a product is the same sum
// in the same order whatever the other rows are.

#define AHEAD 8

struct __align__(16) Quad {
    Real of[4];
};

// Elements from a system to the next, and from a position.
struct Strides {
    Index system, position;
};

struct Tile {
    int k, width, column, slice, slices;
    Index first, rows, length;
    Real *memory, *partial;

    __device__ __forceinline__ Tile(Real* memory, int matrices, Index rows, Index length, Index k)
        : k((int)k), width((int)blockDim.x), column((int)threadIdx.x), slice((int)threadIdx.y),
          slices((int)blockDim.y), first((Index)blockIdx.x * ROWS), rows(rows), length(length), memory(memory),
          partial(memory + matrices * ROWS * (int)blockDim.x) {}

    // Whether this thread's column of a row is to be computed.
    __device__ __forceinline__ bool has(int r) const { return column < k && first + r < rows; }

    // Where a row's number of this thread's column stands.
    __device__ __forceinline__ Index at(int r, Strides strides) const {
        const unsigned row = (unsigned)(first + r), own = (unsigned)length, system = row / own;
        return system * strides.system + (row - system * own) * strides.position + column;
    }

    // The same of a neighbour in sequences of some length, or -1 where there is none.
    __device__ __forceinline__ Index near(int r, Strides strides, Index distance, Index source) const {
        const unsigned row = (unsigned)(first + r), own = (unsigned)length, system = row / own;
        const Index position = (Index)(row - system * own) + distance;
        if (position < 0 || position >= source) return -1;
        return system * strides.system + position * strides.position + column;
    }

    __device__ __forceinline__ Real* matrix(int i) const { return memory + i * ROWS * width; }
    __device__ __forceinline__ int place(int r) const { return r * width + column; }

    // States times weights (k, k), matrix by matrix, as parts that `product` sums. Begins with a barrier and ends with
    // one: afterwards the states may be overwritten.
    template <int COUNT>
    __device__ __forceinline__ void multiply(const Real* const (&states)[COUNT], const Real* const (&weights)[COUNT]) {
        const int share = (k + AHEAD * slices - 1) / (AHEAD * slices) * AHEAD;
        const int end = min((slice + 1) * share, k), nearest = min(column, k - 1);
        Real sums[COUNT][ROWS] = {};
        __syncthreads();
#pragma unroll 1
        for (int i = slice * share; i < end; i += AHEAD) {
            Real w[COUNT][AHEAD];
#pragma unroll
            for (int n = 0; n < COUNT; ++n)
#pragma unroll
                for (int j = 0; j < AHEAD; ++j)
                    w[n][j] = i + j < k ? __ldg(weights[n] + (Index)(i + j) * k + nearest) : (Real)0;
#pragma unroll
            for (int j = 0; j < AHEAD; j += 4)
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
#pragma unroll
                    for (int n = 0; n < COUNT; ++n) {
                        const Quad quad = *reinterpret_cast<const Quad*>(states[n] + r * width + i + j);
#pragma unroll
                        for (int q = 0; q < 4; ++q) sums[n][r] = fma(quad.of[q], w[n][j + q], sums[n][r]);
                    }
        }
#pragma unroll
        for (int n = 0; n < COUNT; ++n)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) partial[((n * slices + slice) * ROWS + r) * width + column] = sums[n][r];
        __syncthreads();
    }

    // A number of the n-th product.
    __device__ __forceinline__ Real product(int n, int r) const {
        Real sum = partial[(n * slices * ROWS + r) * width + column];
        for (int part = 1; part < slices; ++part) sum += partial[((n * slices + part) * ROWS + r) * width + column];
        return sum;
    }
};

// Rows of a tile are shared out among the slices between two products.
#define FOR_ROWS(tile, r) for (int r = (tile).slice; r < ROWS; r += (tile).slices)
