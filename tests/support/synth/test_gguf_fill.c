#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/formats/quant.h"
#include "tests/support/synth/gguf_fill.h"

enum { N_VALUES = 256 * 1024 };

static const enum tensor_type all_types[] = {
    TENSOR_F32,   TENSOR_F16,    TENSOR_BF16,   TENSOR_Q4_0,    TENSOR_Q4_1,    TENSOR_Q5_0,
    TENSOR_Q5_1,  TENSOR_Q8_0,   TENSOR_Q2_K,   TENSOR_Q3_K,    TENSOR_Q4_K,    TENSOR_Q5_K,
    TENSOR_Q6_K,  TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_IQ2_XXS, TENSOR_MXFP4,   TENSOR_NVFP4,
    TENSOR_IQ1_S, TENSOR_IQ1_M,  TENSOR_IQ2_XS, TENSOR_IQ2_S,   TENSOR_IQ3_XXS, TENSOR_IQ3_S,
    TENSOR_TQ1_0, TENSOR_TQ2_0,
};

static void make(enum tensor_type type, double std, uint64_t seed, float *values) {
    const struct tensor_format *f = tensor_format(type);
    size_t n_blocks = N_VALUES / f->block;
    uint8_t *bytes = malloc(n_blocks * f->block_bytes);
    struct gguf_fill fill;

    gguf_fill_init(&fill, f, std, seed);
    gguf_fill_blocks(&fill, bytes, n_blocks);
    quant_decode(type, bytes, values, N_VALUES);
    free(bytes);
}

/* The engine's decoder says what the bytes mean. The scale of a row of 14336 inputs is the smallest
 * that models have: half-float scales become subnormal there. */
static void check_moments(enum tensor_type type, double std) {
    static float v[N_VALUES];
    const char *name = tensor_format(type)->name;
    double sum = 0, square = 0;

    make(type, std, 7, v);
    for (size_t i = 0; i < N_VALUES; i++) {
        cr_assert(isfinite(v[i]), "%s: value %zu", name, i);
        sum += (double)v[i];
        square += (double)v[i] * (double)v[i];
    }
    double mean = sum / N_VALUES, measured = sqrt(square / N_VALUES);
    cr_expect(fabs(measured / std - 1) < 0.03, "%s: std %g instead of %g", name, measured, std);
    cr_expect(fabs(mean / std) < 0.03, "%s: mean %g of a std of %g", name, mean, std);
}

Test(gguf_fill, weights_have_the_wanted_mean_and_deviation) {
    for (size_t i = 0; i < ARRAY_SIZE(all_types); i++) {
        check_moments(all_types[i], 1 / sqrt(256.0));
        check_moments(all_types[i], 1 / sqrt(14336.0));
    }
}

Test(gguf_fill, same_seed_gives_same_weights_and_another_seed_others) {
    static float a[N_VALUES], b[N_VALUES], c[N_VALUES];

    for (size_t i = 0; i < ARRAY_SIZE(all_types); i++) {
        make(all_types[i], 0.1, 1, a);
        make(all_types[i], 0.1, 1, b);
        make(all_types[i], 0.1, 2, c);
        cr_expect(memcmp(a, b, sizeof(a)) == 0);
        size_t n_equal = 0;
        for (size_t k = 0; k < N_VALUES; k++)
            n_equal += a[k] == c[k];
        /* Of FP4 there are 15 values times few scales; of three values one, or half of them, is
         * 0. */
        bool fp4 = all_types[i] == TENSOR_MXFP4 || all_types[i] == TENSOR_NVFP4;
        bool ternary = all_types[i] == TENSOR_TQ1_0 || all_types[i] == TENSOR_TQ2_0;
        cr_expect(n_equal < N_VALUES / (fp4       ? 10
                                        : ternary ? 3
                                                  : 20),
                  "%s", tensor_format(all_types[i])->name);
    }
}

/* Every byte of a block takes many values: no field is left constant, so no decoder can ignore
 * one. */
Test(gguf_fill, every_byte_of_a_block_varies) {
    for (size_t i = 3; i < ARRAY_SIZE(all_types); i++) {
        const struct tensor_format *f = tensor_format(all_types[i]);
        struct gguf_fill fill;
        uint8_t *bytes = malloc(4096ul * f->block_bytes);

        gguf_fill_init(&fill, f, 0.05, 3);
        gguf_fill_blocks(&fill, bytes, 4096);
        for (size_t at = 0; at < f->block_bytes; at++) {
            bool seen[256] = {false};
            int n = 0;

            for (size_t b = 0; b < 4096; b++)
                seen[bytes[b * f->block_bytes + at]] = true;
            for (int k = 0; k < 256; k++)
                n += seen[k];
            cr_expect(n >= 4, "%s: byte %zu takes %d values", f->name, at, n);
        }
        free(bytes);
    }
}
