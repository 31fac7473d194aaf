// y = x W^T in float32 for few rows, where a product reads its weights once and does little with them.
//
// Weights come in blocks of COLUMNS outputs, each block with its inputs in order: w[block][input][column]. One pass over a block
// serves up to ROWS rows: their sums stay in registers, so five rows cost what one costs as long as memory is what is waited for.
// A sum adds its inputs one after the other whatever the number of rows, so a row comes out the same alone or among others.
//
// Two threads share no output. Compiled for the machine it runs on; vectors are those of GCC and Clang.

#if defined(__AVX512F__)
enum { LANES = 16, VECTORS = 2 };
#elif defined(__AVX__)
enum { LANES = 8, VECTORS = 2 };
#else
enum { LANES = 4, VECTORS = 4 };
#endif
enum { COLUMNS = LANES * VECTORS, ROWS = 6, AHEAD = 512 };  // AHEAD: floats of the block that are asked for in advance

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

template <int N>
static inline void block(const float* w, const float* x, float* y, long inputs, long outputs, int live) {
    Vector sum[N][VECTORS] = {};
    for (long i = 0; i < inputs; i++, w += COLUMNS) {
        __builtin_prefetch(w + AHEAD);
#pragma GCC unroll 6
        for (int n = 0; n < N; n++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[n][v] += *(const Vector*)(w + v * LANES) * x[n * inputs + i];
    }
#pragma GCC unroll 6
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            if (live == COLUMNS)
                *(Vector*)(y + n * outputs + v * LANES) = sum[n][v];
            else
                for (int lane = 0; lane < LANES && v * LANES + lane < live; lane++)
                    y[n * outputs + v * LANES + lane] = sum[n][v][lane];
}

static void rows_of_block(const float* w, const float* x, float* y, long rows, long inputs, long outputs, int live) {
    for (; rows >= ROWS; rows -= ROWS, x += ROWS * inputs, y += ROWS * outputs) block<ROWS>(w, x, y, inputs, outputs, live);
    switch (rows) {
        case 5: block<5>(w, x, y, inputs, outputs, live); break;
        case 4: block<4>(w, x, y, inputs, outputs, live); break;
        case 3: block<3>(w, x, y, inputs, outputs, live); break;
        case 2: block<2>(w, x, y, inputs, outputs, live); break;
        case 1: block<1>(w, x, y, inputs, outputs, live); break;
    }
}

extern "C" int columns() { return COLUMNS; }

extern "C" void product(const float* w, const float* x, float* y, long rows, long inputs, long outputs, int threads) {
    const long blocks = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long b = 0; b < blocks; b++) {
        const long left = outputs - b * COLUMNS;
        rows_of_block(w + b * COLUMNS * inputs, x, y + b * COLUMNS, rows, inputs, outputs, left < COLUMNS ? left : COLUMNS);
    }
}
