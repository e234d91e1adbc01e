/*
 * Tests products of panels and activations: every format gives the same bits with every instruction
 * set, for every number of rows and threads, and is as close to exact arithmetic as rounding the
 * activations to 8 bits allows.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/formats/quant.h"
#include "tests/engine/cpu/fixture.h"

enum { MAX_ROWS = 300, OUT = 40 };

static const enum tensor_type types[] = {
    TENSOR_F32,   TENSOR_F16,     TENSOR_BF16,   TENSOR_Q4_0,    TENSOR_Q4_1,  TENSOR_Q5_0,
    TENSOR_Q5_1,  TENSOR_Q8_0,    TENSOR_Q2_K,   TENSOR_Q3_K,    TENSOR_Q4_K,  TENSOR_Q5_K,
    TENSOR_Q6_K,  TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS,  TENSOR_MXFP4, TENSOR_IQ1_S,
    TENSOR_IQ1_M, TENSOR_IQ2_XS,  TENSOR_IQ2_S,  TENSOR_IQ3_XXS, TENSOR_IQ3_S, TENSOR_TQ1_0,
    TENSOR_TQ2_0, TENSOR_NVFP4,
};
static const char *const isas[] = {"generic", "avx2", "avx512",  "avx512bf16",
                                   "amx",     "neon", "dotprod", "i8mm"};

static struct matmul_scratch scratch[3];

/* A width for the special cases: odd, an odd number of blocks, several runs of unpacked quants. */
static uint32_t width_of(enum tensor_type type) {
    uint32_t block = tensor_format(type)->block;

    return block == 1 ? 601 : block < 256 ? block * 9 : 5 * 256;
}

/* out[mode][row][OUT] of @n_rows rows. */
static void multiply(const struct cpu_kernels *k, struct pool *pool, enum matmul_mode mode,
                     const struct fixture *f, const struct fixture *second, const float *x,
                     uint32_t n_rows, float *out) {
    enum acts_kind kind = panel_infos[f->m.format].acts;
    uint8_t *acts = fixture_acts(k, kind, x, f->m.n_in, n_rows);
    struct matmul mm = {
        .kernels = k,
        .mode = mode,
        .n_mats = second ? 2 : 1,
        .n_rows = n_rows,
        .m = {&f->m, second ? &second->m : NULL},
        .out = {out},
        .out_stride = {OUT},
        .scratch = scratch,
    };

    mm.acts[kind] = acts;
    matmul_run(pool, &mm, 1);
    free(acts);
}

/* Returns the largest change of a product by rounding the activation @x, of whose block @most is
 * the largest: half a step of the block's scale, or of BF16. */
static double rounding(enum acts_kind kind, float w, float x, double most) {
    if (kind == ACTS_F)
        return 0;
    return fabs((double)w) * (kind == ACTS_H ? fabs((double)x) / 256 : most / 254);
}

/* Exact sums with the file's weights, and the largest change by rounding the activations. */
static void check_close(const struct fixture *f, const float *x, const float *got, uint32_t row) {
    const struct panel_info *info = &panel_infos[f->m.format];
    uint32_t n = f->m.n_in, block = info->acts == ACTS_B || info->acts == ACTS_B16 ? 32 : 256;
    double most[1280 / 32] = {0}; /* of each block of activations */
    float w[1280];

    for (uint32_t i = 0; i < n; i++)
        most[i / block] = fmax(most[i / block], fabs((double)x[i]));
    for (uint32_t o = 0; o < OUT; o++) {
        double sum = 0, bound = 0, size = 0;

        quant_decode_row(&f->t, o, w);
        for (uint32_t i = 0; i < n; i++) {
            double term = (double)w[i] * (double)x[i];

            sum += term;
            size += fabs(term);
            bound += rounding(info->acts, w[i], x[i], most[i / block]);
        }
        double diff = fabs(sum - (double)got[o]);
        cr_expect(diff <= bound + 2e-5 * size + 1e-6, "%s row %u out %u: %g, exact %g, bound %g",
                  f->t.format->name, row, o, (double)got[o], sum, bound);
    }
}

/* Results of all rows, one row at a time in plain C, to which all others must be equal. */
static void reference_bits(const struct fixture *f, struct pool *pool, const float *x, float *out) {
    const struct cpu_kernels *k = isa_find("generic", NULL);

    for (uint32_t r = 0; r < MAX_ROWS; r++)
        multiply(k, pool, MATMUL_STORE, f, NULL, x + (size_t)r * f->m.n_in, 1,
                 out + (size_t)r * OUT);
}

static void check_isa(const struct cpu_kernels *k, struct pool *const pools[2],
                      const struct fixture *f, const float *x, const float *expect) {
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 8, 9, 17, 64, MAX_ROWS};
    static float got[MAX_ROWS * OUT];

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        for (int t = 0; t < 2; t++) {
            size_t bytes = rows[i] * OUT * sizeof(float);

            memset(got, 0xFF, bytes);
            multiply(k, pools[t], MATMUL_STORE, f, NULL, x, rows[i], got);
            cr_expect(memcmp(got, expect, bytes) == 0, "%s, %s, %u rows, %u threads",
                      f->t.format->name, k->name, rows[i], pool_n_threads(pools[t]));
        }
}

static void check_format(enum tensor_type type) {
    static float x[MAX_ROWS * 1280], expect[MAX_ROWS * OUT];
    struct pool *pools[2];
    struct fixture f;

    cr_assert(pool_new(&pools[0], 1) == 0 && pool_new(&pools[1], 3) == 0);
    fixture_init(&f, type, width_of(type), OUT, 7 + (uint64_t)type);
    fixture_normal(x, MAX_ROWS * f.m.n_in, 3);
    memset(x, 0, 40 * sizeof(float)); /* a block of zeros */
    x[f.m.n_in + 5] = 300;            /* an outlier */
    reference_bits(&f, pools[0], x, expect);
    for (uint32_t r = 0; r < 3; r++)
        check_close(&f, x + r * f.m.n_in, expect + r * OUT, r);
    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        struct err err;
        const struct cpu_kernels *k = isa_find(isas[i], &err);

        if (k)
            check_isa(k, pools, &f, x, expect);
        else
            printf("# %s\n", err.message);
    }
    fixture_deinit(&f);
    pool_free(pools[0]);
    pool_free(pools[1]);
}

Test(cpu_matmul, same_bits_everywhere_floats) {
    for (size_t i = 0; i < 3; i++)
        check_format(types[i]);
}

/* Checks a matrix that is made of parts, of PARTS_IN columns: panels of @format. */
enum { PARTS_IN = 768 };

static void check_parts(struct fixture *f, enum panel_format format) {
    static float x[MAX_ROWS * PARTS_IN], expect[MAX_ROWS * OUT];
    struct pool *pools[2];

    cr_assert(pool_new(&pools[0], 1) == 0 && pool_new(&pools[1], 3) == 0);
    fixture_normal(x, MAX_ROWS * PARTS_IN, 3);
    cr_assert(f->m.format == format);
    reference_bits(f, pools[0], x, expect);
    for (uint32_t r = 0; r < 3; r++)
        check_close(f, x + r * PARTS_IN, expect + r * OUT, r);
    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        const struct cpu_kernels *k = isa_find(isas[i], NULL);

        if (k)
            check_isa(k, pools, f, x, expect);
    }
    fixture_deinit(f);
    pool_free(pools[0]);
    pool_free(pools[1]);
}

Test(cpu_matmul, same_bits_everywhere_groups_of_128) {
    for (int way = 0; way < 4; way++) {
        bool zeros = way % 2;
        struct fixture f;

        cpu_shuffles_beside = way / 2;
        fixture_groups(&f, PARTS_IN, OUT, zeros);
        check_parts(&f, PANEL_G4);
    }
}

Test(cpu_matmul, same_bits_everywhere_fp8) {
    for (int blocks = 0; blocks < 2; blocks++) {
        struct fixture f;

        fixture_fp8(&f, PARTS_IN, OUT, blocks);
        check_parts(&f, PANEL_FP8);
    }
}

/* Each code is multiplied as its value, of which the table of gemm_bf16.c has both bytes. */
Test(cpu_matmul, each_code_of_fp8_is_its_value) {
    static float x[256], got[OUT];
    struct pool *pool;
    struct fixture f;

    cr_assert(pool_new(&pool, 1) == 0);
    fixture_fp8(&f, 256, OUT, true);
    uint8_t *codes = (uint8_t *)f.part[REPACK_CODES];
    float *scale = (float *)f.part[REPACK_SCALES];
    scale[0] = scale[1] = 0.75f;
    for (uint32_t i = 0; i < 256; i++)
        codes[3 * 256 + i] = (uint8_t)i;
    codes[3 * 256 + 0x7F] = codes[3 * 256 + 0xFF] = 0;
    codes[5 * 256 + 9] = 0xFF;
    fixture_pack(&f);
    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        const struct cpu_kernels *k = isa_find(isas[i], NULL);

        for (uint32_t j = 0; k && j < 256; j++) {
            float value = mx_e4m3_to_float((uint8_t)j) * 0.75f;

            memset(x, 0, sizeof(x));
            x[j] = 1;
            multiply(k, pool, MATMUL_STORE, &f, NULL, x, 1, got);
            cr_expect(got[3] == (j % 128 == 127 ? 0 : value), "%s code %u", k->name, j);
            cr_expect(isnan(got[5]) && !isnan(got[4]), "%s: a code that is no number", k->name);
        }
    }
    fixture_deinit(&f);
    pool_free(pool);
}

Test(cpu_matmul, same_bits_everywhere_blocks_of_32) {
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (tensor_format(types[i])->block % 256 && tensor_format(types[i])->block > 1)
            check_format(types[i]);
}

Test(cpu_matmul, same_bits_everywhere_blocks_of_256) {
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (tensor_format(types[i])->block == 256)
            check_format(types[i]);
}

enum { MORE = 500 };

/* out[row][OUT + MORE]: the products of rows [first, first + n) with two matrices of OUT and of
 * MORE rows. */
static void multiply_two(const struct cpu_kernels *k, struct pool *pool, const struct fixture *two,
                         const float *x, uint32_t first, uint32_t n, float *out) {
    struct matmul mm = {
        .kernels = k,
        .n_mats = 2,
        .n_rows = n,
        .m = {&two[0].m, &two[1].m},
        .out = {out + first * (OUT + MORE), out + first * (OUT + MORE) + OUT},
        .out_stride = {OUT + MORE, OUT + MORE},
        .scratch = scratch,
    };
    uint8_t *acts[2];

    for (int i = 0; i < 2; i++) {
        enum acts_kind kind = panel_infos[two[i].m.format].acts;

        acts[i] = fixture_acts(k, kind, x + first * two[i].m.n_in, two[i].m.n_in, n);
        mm.acts[kind] = acts[i];
    }
    matmul_run(pool, &mm, 1);
    for (int i = 0; i < 2; i++)
        free(acts[i]);
}

/* There are so many panels that an item has several, of which some are the last of a matrix. */
Test(cpu_matmul, panels_that_share_pieces_have_the_same_bits) {
    enum { ROWS = 76 };
    static const enum tensor_type pairs[][2] = {{TENSOR_Q4_K, TENSOR_Q6_K},
                                                {TENSOR_IQ2_S, TENSOR_Q4_K},
                                                {TENSOR_F16, TENSOR_F32},
                                                {TENSOR_BF16, TENSOR_BF16}};
    static float x[ROWS * 1280], expect[ROWS * (OUT + MORE)], got[ROWS * (OUT + MORE)];
    struct pool *pool;

    cr_assert(pool_new(&pool, 1) == 0);
    fixture_normal(x, ROWS * 1280, 3);
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        struct fixture two[2];

        fixture_init(&two[0], pairs[i][0], width_of(pairs[i][0]), OUT, 7);
        fixture_init(&two[1], pairs[i][1], width_of(pairs[i][1]), MORE, 8);
        for (size_t j = 0; j < ARRAY_SIZE(isas); j++) {
            const struct cpu_kernels *k = isa_find(isas[j], NULL);

            if (!k)
                continue;
            for (uint32_t r = 0; r < ROWS; r++)
                multiply_two(k, pool, two, x, r, 1, expect);
            memset(got, 0xFF, sizeof(got));
            multiply_two(k, pool, two, x, 0, ROWS, got);
            cr_expect(memcmp(got, expect, sizeof(got)) == 0, "%s, %s", two[1].t.format->name,
                      k->name);
        }
        fixture_deinit(&two[0]);
        fixture_deinit(&two[1]);
    }
    pool_free(pool);
}

/* The largest sums of a format, with all numbers at their limits, must not overflow. */
Test(cpu_matmul, extreme_weights_do_not_overflow) {
    static float x[1280], expect[OUT], got[OUT];
    struct pool *pool;

    cr_assert(pool_new(&pool, 1) == 0);
    for (size_t i = 3; i < ARRAY_SIZE(types); i++)
        for (int fill = 0x7F; fill <= 0xFF; fill += 0x80) {
            struct fixture f;
            uint32_t n = width_of(types[i]);

            fixture_init(&f, types[i], n, OUT, 1);
            fixture_extreme(&f, (uint8_t)fill);
            for (uint32_t j = 0; j < n; j++)
                x[j] = 1;
            multiply(isa_find("generic", NULL), pool, MATMUL_STORE, &f, NULL, x, 1, expect);
            check_close(&f, x, expect, 0);
            for (size_t k = 0; k < ARRAY_SIZE(isas); k++) {
                const struct cpu_kernels *kernels = isa_find(isas[k], NULL);

                if (!kernels)
                    continue;
                multiply(kernels, pool, MATMUL_STORE, &f, NULL, x, 1, got);
                cr_expect(memcmp(got, expect, sizeof(got)) == 0, "%s %s fill %x", f.t.format->name,
                          isas[k], fill);
            }
            fixture_deinit(&f);
        }
    pool_free(pool);
}

Test(cpu_matmul, bias_residual_and_silu) {
    enum { IN = 512, ROWS = 20 };
    static float x[ROWS * IN], a[ROWS * OUT], b[ROWS * OUT], got[ROWS * OUT], first[ROWS * OUT];
    struct pool *pool;
    struct fixture f, g;
    float bias[OUT];

    cr_assert(pool_new(&pool, 2) == 0);
    fixture_init(&f, TENSOR_Q4_K, IN, OUT, 1);
    fixture_init(&g, TENSOR_Q4_K, IN, OUT, 2);
    fixture_normal(x, ROWS * IN, 3);
    fixture_normal(bias, OUT, 4);
    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        const struct cpu_kernels *k = isa_find(isas[i], NULL);

        if (!k)
            continue;
        f.m.bias = g.m.bias = NULL;
        multiply(k, pool, MATMUL_STORE, &f, NULL, x, ROWS, a);
        multiply(k, pool, MATMUL_STORE, &g, NULL, x, ROWS, b);
        f.m.bias = bias;
        fixture_normal(got, ROWS * OUT, 5);
        memcpy(first, got, sizeof(got));
        multiply(k, pool, MATMUL_ADD, &f, NULL, x, ROWS, got);
        for (uint32_t j = 0; j < ROWS * OUT; j++)
            cr_expect(got[j] == first[j] + (a[j] + bias[j % OUT]));
        multiply(k, pool, MATMUL_GLU, &f, &g, x, ROWS, got);
        for (uint32_t j = 0; j < ROWS * OUT; j++) {
            double gate = (double)(a[j] + bias[j % OUT]);
            double exact = gate / (1 + exp(-gate)) * (double)b[j];

            cr_expect(fabs((double)got[j] - exact) <= 1e-6 * (1 + fabs(exact)));
        }
        if (i == 0)
            memcpy(first, got, sizeof(got));
    }
    fixture_deinit(&f);
    fixture_deinit(&g);
    pool_free(pool);
}
