/*
 * How fast the kernels of the cpu backend are.
 *
 * usage: bench_cpu_kernels [ISA [THREADS [FORMAT|groups|fp8|all [KIB]]]]
 *
 * Formats at 1, 4, 8 and 256 rows: a matrix of KIB (64 MiB, larger than the last-level cache). Rows
 * 1 and 8 are bound by reading it (GB/s), 256 by arithmetic (GOP/s, two a multiply-add). Best of
 * several passes: neighbours on the machine only ever make a pass slower.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/engine/cpu/fixture.h"

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct bench {
    const struct cpu_kernels *kernels;
    struct pool *pool;
    struct matmul_scratch *scratch;
    uint64_t bytes;
};

static double best_pass(const struct bench *b, const struct fixture *f, uint32_t n_rows,
                        const uint8_t *acts, float *out) {
    double best = 1e9, end = now() + 0.25;

    for (int pass = 0; pass < 3 || now() < end; pass++) {
        struct matmul mm = {
            .kernels = b->kernels,
            .mode = MATMUL_STORE,
            .n_mats = 1,
            .n_rows = n_rows,
            .m = {&f->m},
            .out = {out},
            .out_stride = {f->m.n_out},
            .scratch = b->scratch,
        };
        double start = now();

        mm.acts[panel_infos[f->m.format].acts] = acts;
        matmul_run(b->pool, &mm, 1);
        best = MIN(best, now() - start);
    }
    return best;
}

/* Measures format @type; @parts: "groups", 4-bit codes in groups of 128, or "fp8", which are made
 * as that type, or NULL. */
static void bench_format(const struct bench *b, enum tensor_type type, uint32_t n_in,
                         const char *parts) {
    static const uint32_t rows[] = {1, 4, 8, 256};
    const struct tensor_format *format = tensor_format(type);
    uint64_t row_bytes = (uint64_t)n_in / format->block * format->block_bytes;
    uint32_t n_out = (uint32_t)(b->bytes / row_bytes / LANES * LANES);
    struct fixture f;

    if (type == TENSOR_BF16 && parts)
        fixture_fp8(&f, n_in, n_out * 2, true);
    else if (parts)
        fixture_groups(&f, n_in, n_out, type == TENSOR_Q5_0);
    else
        fixture_init(&f, type, n_in, n_out, 1);
    n_out = f.m.n_out;
    double bytes = (double)f.m.n_panels * (double)f.m.panel_bytes;
    float *x = malloc((size_t)n_in * 256 * sizeof(float));
    size_t out_size = round_up((size_t)n_out * 256 * sizeof(float), 2 << 20);
    float *out = aligned_alloc(2 << 20, out_size);
    fixture_normal(x, (size_t)n_in * 256, 2);
    madvise(out, out_size, MADV_HUGEPAGE);
    memset(out, 0, out_size);
    printf("%-8s %5u  %5.2f", parts ? parts : format->name, n_in, bytes * 8 / n_in / n_out);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint8_t *acts = fixture_acts(b->kernels, panel_infos[f.m.format].acts, x, n_in, rows[i]);
        double t = best_pass(b, &f, rows[i], acts, out);

        printf("  %8.2f %6.1f %7.0f", t * 1e3, bytes / t / 1e9, 2e-9 * n_in * n_out * rows[i] / t);
        free(acts);
    }
    printf("\n");
    fflush(stdout);
    free(x);
    free(out);
    fixture_deinit(&f);
}

int main(int argc, char **argv) {
    static const enum tensor_type types[] = {
        TENSOR_Q4_K,  TENSOR_Q5_K,    TENSOR_Q6_K,  TENSOR_Q8_0,   TENSOR_Q4_0,   TENSOR_F16,
        TENSOR_BF16,  TENSOR_IQ2_XXS, TENSOR_Q2_K,  TENSOR_IQ4_XS, TENSOR_IQ4_NL, TENSOR_MXFP4,
        TENSOR_NVFP4, TENSOR_IQ1_S,   TENSOR_IQ1_M, TENSOR_IQ2_XS, TENSOR_IQ2_S,  TENSOR_IQ3_XXS,
        TENSOR_IQ3_S, TENSOR_TQ1_0,   TENSOR_TQ2_0, TENSOR_Q4_1,   TENSOR_Q5_1,
    };
    struct err err = {0};
    struct bench b = {.kernels = isa_find(argc > 1 ? argv[1] : "auto", &err)};

    if (!b.kernels || pool_new(&b.pool, argc > 2 ? (uint32_t)atoi(argv[2]) : 0) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    b.bytes = argc > 4 ? strtoull(argv[4], NULL, 10) << 10 : 64 << 20;
    b.scratch = aligned_alloc(64, pool_n_threads(b.pool) * sizeof(*b.scratch));
    printf("%s, %u threads; a column: ms, GB/s, GOP/s\n", b.kernels->name, pool_n_threads(b.pool));
    printf("%-8s %5s  %5s  %23s  %23s  %23s  %23s\n", "format", "in", "bits", "1 row", "4 rows",
           "8 rows", "256 rows");
    const char *only = argc > 3 ? argv[3] : "all";
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        if (strcmp(only, "all") != 0 && strcasecmp(only, tensor_format(types[i])->name) != 0)
            continue;
        bench_format(&b, types[i], 1024, NULL);
        bench_format(&b, types[i], 3072, NULL);
    }
    if (strcmp(only, "all") == 0 || strcmp(only, "groups") == 0)
        bench_format(&b, TENSOR_Q5_0, 3072, "groups");
    if (strcmp(only, "all") == 0 || strcmp(only, "fp8") == 0)
        bench_format(&b, TENSOR_BF16, 3072, "fp8");
    free(b.scratch);
    pool_free(b.pool);
    return 0;
}
