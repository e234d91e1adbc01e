/*
 * Tests the values of blocks against another implementation: random blocks of every IQ, FP4 and
 * ternary format, and of some others, were decoded by ggml's base library (v0.5.0 of llama.cpp, 28
 * September 2026), and a digest of all values is stored here. Grids are compared with those of
 * tests/data, which were determined independently.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/util.h"
#include "engine/formats/quant.h"
#include "tests/support/engine_driver.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

enum { N_VALUES = 65536 };

static const struct {
    enum tensor_type type;
    /* byte of the upper half of a block's scale, whose bit 6 is cleared; -1: none */
    int half;
    uint64_t digest;
} golden[] = {
    {TENSOR_MXFP4, -1, 0x7B3790966D562325},
    {TENSOR_NVFP4, -1, 0xF6159DBD7EFA2325},
    {TENSOR_IQ1_S, 1, 0x61CE46E701AE8B25},
    {TENSOR_IQ1_M, 55, 0xC20FD635DB8EC1C5},
    {TENSOR_IQ2_XXS, 1, 0xF37AFEE7FA52DC15},
    {TENSOR_IQ2_XS, 1, 0x2B3D45266C8CAC4D},
    {TENSOR_IQ2_S, 1, 0x03E46A64C669720D},
    {TENSOR_IQ3_XXS, 1, 0x0EB8428FAB8C35F5},
    {TENSOR_IQ3_S, 1, 0xA29B393560AC81F5},
    {TENSOR_IQ4_NL, 1, 0xF2CABB3B32890765},
    {TENSOR_IQ4_XS, 1, 0x303B4010B256987B},
    {TENSOR_TQ1_0, 53, 0x55368433AE666325},
    {TENSOR_TQ2_0, 65, 0xF23955A190C06325},
    {TENSOR_Q4_0, 1, 0x461BD75E7029AF25},
    {TENSOR_Q5_0, 1, 0x4440213787F9AD25},
    {TENSOR_Q8_0, 1, 0x3532914E54E8DDE5},
    {TENSOR_Q3_K, 109, 0xA2405A8F6DB995A5},
    {TENSOR_Q6_K, 209, 0x30F1E3CBE8071FFF},
    /* computed by weft; models of these formats are in formats/ */
    {TENSOR_Q4_1, 1, 0x76E9FA10CB2A8039},
    {TENSOR_Q5_1, 1, 0x28D478A8E838CBF9},
    {TENSOR_Q4_K, 1, 0xB245DFC94CD56B85},
    {TENSOR_Q5_K, 1, 0x16DF6E8313A4ECD8},
    {TENSOR_Q2_K, 81, 0xBA8C6D151A147B19},
};

/* Returns true if blocks have a factor of minimums, which follows the scale. */
static bool has_minimums(enum tensor_type t) {
    return t == TENSOR_Q4_1 || t == TENSOR_Q5_1 || t == TENSOR_Q2_K || t == TENSOR_Q4_K ||
           t == TENSOR_Q5_K;
}

static uint64_t next(uint64_t *s) { /* splitmix64 */
    uint64_t z = *s += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* FNV-1a by words; the sign of zero does not count. */
static uint64_t digest_of(const float *v, size_t n) {
    uint64_t h = 0xCBF29CE484222325u;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &v[i], 4);
        h = (h ^ (v[i] != 0 ? bits : 0)) * 0x100000001B3u;
    }
    return h;
}

Test(quant, blocks_decode_as_another_implementation_does) {
    static float v[N_VALUES], one[256];

    for (size_t i = 0; i < ARRAY_SIZE(golden); i++) {
        const struct tensor_format *f = tensor_format((uint32_t)golden[i].type);
        size_t n = N_VALUES / f->block * f->block_bytes;
        uint8_t *bytes = malloc(n + 8);
        uint64_t seed = (uint64_t)golden[i].type;

        for (size_t at = 0; at < n; at += 8) {
            uint64_t r = next(&seed);

            memcpy(bytes + at, &r, 8);
        }
        for (size_t at = 0; at < n; at += f->block_bytes) {
            if (golden[i].half >= 0)
                bytes[at + (size_t)golden[i].half] &= 0xBF;
            if (has_minimums(golden[i].type))
                bytes[at + (size_t)golden[i].half + 2] &= 0xBF;
            if (golden[i].type == TENSOR_MXFP4)
                bytes[at] &= 0x7F;
        }
        quant_decode(golden[i].type, bytes, v, N_VALUES);
        cr_expect(digest_of(v, N_VALUES) == golden[i].digest, "%s", f->name);
        /* Kernels and devices that read single values must get the same ones. */
        for (size_t b = 0; b < 64; b++) {
            for (uint32_t k = 0; k < f->block; k++)
                one[k] = blk_value((uint32_t)golden[i].type, bytes + b * f->block_bytes, k,
                                   &quant_grids);
            cr_expect(memcmp(one, v + b * f->block, f->block * sizeof(float)) == 0, "%s block %zu",
                      f->name, b);
        }
        free(bytes);
    }
}

static void check_grid(yyjson_val *root, const char *name, const uint16_t *grid, size_t n,
                       unsigned bits, const int *sizes) {
    yyjson_val *list = yyjson_obj_get(root, name), *entry, *x;
    size_t i, max, j, width;
    unsigned n_wrong = 0;

    cr_assert(yyjson_arr_size(list) == n, "%s", name);
    yyjson_arr_foreach(list, i, max, entry) {
        cr_assert(yyjson_arr_size(entry) == (bits == 2 ? 8 : 4));
        yyjson_arr_foreach(entry, j, width, x) {
            unsigned code = (grid[i] >> (bits * j)) & ((1u << bits) - 1);

            n_wrong += sizes[code] != yyjson_get_int(x);
        }
    }
    cr_expect(n_wrong == 0, "%s: %u magnitudes", name, n_wrong);
}

#define SCALED_ROWS 5u

/* Returns the logits of each row. */
struct logits {
    uint32_t n_vocab;
    float of[SCALED_ROWS][64];
};

static void keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct logits *l = ctx;

    (void)s, (void)out;
    memcpy(l->of[pos], logits, l->n_vocab * sizeof(*logits));
}

static struct logits run(const struct tiny_model *t, const char *backend) {
    static const int32_t prompt[SCALED_ROWS] = {7, 1, 33, 12, 5};
    struct logits l = {.n_vocab = t->n_vocab};
    struct driver_opts o = {.backend = backend, .max_rows = 8, .on_out = keep, .ctx = &l};
    struct driver d;
    struct err err;
    char path[64];

    tiny_model_temp(t, path);
    o.path = path;
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    struct driver_seq *s = driver_add(&d, prompt, SCALED_ROWS, 1, NULL);
    s->every_row = true;
    driver_prefill(&d, s, 0);
    driver_drop(&d, s);
    driver_close(&d);
    unlink(path);
    return l;
}

/* A matrix with a scale beside it equals one whose values have been multiplied by the scale. */
Test(quant, scales_beside_matrices_are_factors_of_their_values) {
    static const char *const archs[] = {"qwen3", "qwen3moe", "qwen35moe", "deepseek2"};

    for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
        struct tiny_model t = {.arch = archs[i], .type = TENSOR_NVFP4, .n_ff = 64, .n_vocab = 64};
        struct logits apart = run(&t, "reference"), cpu = run(&t, "cpu");
        double error = 0, norm = 0;

        t.decoded = true;
        struct logits whole = run(&t, "reference");
        cr_expect(memcmp(&apart, &whole, sizeof(whole)) == 0, "%s", archs[i]);
        for (uint32_t r = 0; r < SCALED_ROWS; r++)
            for (uint32_t k = 0; k < t.n_vocab; k++) {
                double x = (double)whole.of[r][k], y = (double)cpu.of[r][k];

                error += (x - y) * (x - y);
                norm += x * x;
            }
        cr_expect(error < 0.03 * 0.03 * norm, "%s: %g", archs[i], sqrt(error / norm));
    }
}

Test(quant, grids_are_those_found_independently) {
    static const int iq2[] = {8, 25, 43, 0}, iq3_xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
    static const int iq3_s[] = {1, 3, 5, 7, 9, 11, 13, 15};
    char path[TEST_DATA_PATH];
    yyjson_doc *doc =
        yyjson_read_file(test_data_file(path, "formats", "iq-grids", ".json"), 0, NULL, NULL);

    cr_assert(doc, "%s is no JSON", path);
    yyjson_val *root = yyjson_doc_get_root(doc);
    check_grid(root, "iq2_xxs", quant_grids.iq2_xxs, 256, 2, iq2);
    check_grid(root, "iq2_xs", quant_grids.iq2_xs, 512, 2, iq2);
    check_grid(root, "iq2_s", quant_grids.iq2_s, 1024, 2, iq2);
    check_grid(root, "iq3_xxs", quant_grids.iq3_xxs, 256, 3, iq3_xxs);
    check_grid(root, "iq3_s", quant_grids.iq3_s, 512, 3, iq3_s);
    yyjson_doc_free(doc);
}
