/* Tests the kernels that measure a device's limits (tests/gpu/limits.cu) in the interpreter, by
 * what they compute: the words that arrive by bulk copies, with and without multicast, and by
 * loads; the meetings of clusters; the sums of wgmma. WEFT_PTX names the folder of limits.ptx. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathx.h"
#include "base/rng.h"
#include "tests/engine/ptx/ptx.h"
#include "tests/gpu/limits.h"

enum { CHUNKS = 8, BLOCKS = 8, MOST_OUT = 128 * 64 };

static _Alignas(128) uint32_t data[CHUNKS * LIMIT_CHUNK / 4];
static _Alignas(128) uint32_t out[MOST_OUT];

static void limits_run(const char *kernel, uint32_t blocks, uint32_t threads, uint32_t shared,
                       uint64_t order, const void *args, size_t n) {
    static bool is_read;
    uint8_t all[64] = {0};
    const char *folder = getenv("WEFT_PTX");
    struct rng rng = {5};

    if (!is_read) {
        cr_assert(folder, "WEFT_PTX must name the folder of limits.ptx");
        ptx_read_folder(folder);
        ptx_memory_add(data, sizeof(data));
        ptx_memory_add(out, sizeof(out));
        is_read = true;
    }
    for (size_t i = 0; i < CHUNKS * LIMIT_CHUNK / 4; i++)
        data[i] = (uint32_t)rng_next(&rng);
    memset(out, 0, sizeof(out));
    memcpy(all, args, n); /* behind it: how the kernel is launched (KERNEL) */
    ptx_run(ptx_find(kernel), &(struct ptx_launch){.grid_x = blocks,
                                                   .grid_y = 1,
                                                   .n_threads = threads,
                                                   .shared_bytes = shared,
                                                   .args = all,
                                                   .args_bytes = n + sizeof(uint32_t),
                                                   .order = order});
}

/* Returns the exclusive or of the words of a chunk. */
static uint32_t limits_fold(uint32_t chunk) {
    uint32_t sum = 0;

    for (uint32_t i = 0; i < LIMIT_CHUNK / 4; i++)
        sum ^= data[chunk * (LIMIT_CHUNK / 4) + i];
    return sum;
}

/* Rounds of a few lengths: the last one may be in either half of the ring. */
Test(limits, bulk_copies_bring_every_chunk_to_all_blocks_of_a_cluster) {
    static const struct {
        const char *kernel;
        uint32_t cluster;
    } kernels[] = {{"limit_bulk_1", 1}, {"limit_bulk_2", 2}, {"limit_bulk_4", 4}};

    for (size_t k = 0; k < sizeof(kernels) / sizeof(*kernels); k++)
        for (uint32_t n = 1; n <= 4; n++) {
            struct limit_read_args a = {(const uint8_t *)data, out, sizeof(data), n};
            uint32_t cluster = kernels[k].cluster, n_clusters = BLOCKS / cluster;

            limits_run(kernels[k].kernel, BLOCKS, LIMIT_THREADS, 2 * LIMIT_STAGES * LIMIT_CHUNK, n,
                       &a, sizeof(a));
            for (uint32_t b = 0; b < BLOCKS; b++) {
                uint32_t sum = 0;

                for (uint32_t s = 0; s < LIMIT_STAGES; s++)
                    sum ^= limits_fold((((n - 1) * LIMIT_STAGES + s) * n_clusters + b / cluster) %
                                       CHUNKS);
                cr_expect(out[b] == sum, "%s, %u rounds, block %u", kernels[k].kernel, n, b);
            }
        }
}

Test(limits, loads_read_every_word) {
    for (uint32_t n = 1; n <= 2; n++) {
        struct limit_read_args a = {(const uint8_t *)data, out, sizeof(data), n};
        uint32_t sum = 0;

        limits_run("limit_loads", 3, LIMIT_THREADS, 0, 0, &a, sizeof(a));
        for (uint32_t c = 0; c < CHUNKS && n == 1; c++)
            sum ^= limits_fold(c);
        cr_expect_eq(out[0], sum, "%u times", n);
    }
}

Test(limits, clusters_meet) {
    static const struct {
        const char *kernel;
        uint32_t cluster;
    } kernels[] = {{"limit_meet_2", 2}, {"limit_meet_8", 8}};

    for (size_t k = 0; k < sizeof(kernels) / sizeof(*kernels); k++) {
        struct limit_meet_args a = {out, 5};

        limits_run(kernels[k].kernel, 16, LIMIT_THREADS, 0, 3, &a, sizeof(a));
        for (uint32_t i = 0; i < 16 / kernels[k].cluster; i++)
            cr_expect_eq(out[i], 5 * kernels[k].cluster, "%s", kernels[k].kernel);
    }
}

/* Returns half @i of the two that limit_halves(word) has. */
static float limits_half(uint32_t word, uint32_t i) {
    word = (word ^ word >> 16) * 0x7FEB352Du;
    word = (word ^ word >> 15) * 0x846CA68Bu;
    word = ((word ^ word >> 16) & 0x87FF87FFu) | 0x38003800u;
    return mx_half_to_float((uint16_t)(word >> 16 * i));
}

/* Returns element [row][column] of the product of a group of steps. */
static double limits_product(uint32_t row, uint32_t column, uint32_t n) {
    double sum = 0;

    for (uint32_t s = 0; s < LIMIT_STEPS; s++)
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t a = s * 512 + (row / 8 * 2 + k / 8) * 32 + row % 8 * 4 + k % 8 / 2 + 77777;
            uint32_t b = s * n * 8 + (column / 8 * 2 + k / 8) * 32 + column % 8 * 4 + k % 8 / 2;

            sum += (double)limits_half(a, k % 2) * (double)limits_half(b, k % 2);
        }
    return sum;
}

Test(limits, wgmma_of_random_halves_is_their_product) {
    static const struct {
        const char *kernel;
        uint32_t n;
    } kernels[] = {{"limit_registers_64", 64}, {"limit_registers_128", 128}};

    for (size_t k = 0; k < sizeof(kernels) / sizeof(*kernels); k++) {
        uint32_t n = kernels[k].n;
        struct limit_rate_args a = {(float *)out, 3};

        limits_run(kernels[k].kernel, 2, 256, LIMIT_STEPS * (n + 64) * 32, 0, &a, sizeof(a));
        for (uint32_t t = 0; t < 128; t++)
            for (uint32_t i = 0; i < n / 2; i++) {
                uint32_t row = t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8;
                double right = 3 * limits_product(row, i / 4 * 8 + t % 4 * 2 + i % 2, n);
                float got = mx_float_of(out[t * (n / 2) + i]);

                cr_assert(fabs((double)got - right) < 1e-3, "%s: thread %u, sum %u: %g, not %g",
                          kernels[k].kernel, t, i, (double)got, right);
            }
    }
}
