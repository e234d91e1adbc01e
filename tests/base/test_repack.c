/*
 * Quantised matrices as blocks of GGUF, against a model that keeps codes, scales and zero points as
 * numbers, writes them into the layout of each tool, and computes all values in float64.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/repack.h"
#include "base/rng.h"

#define ROWS_MAX 24u
#define COLUMNS_MAX 192u

/* A layout, and the sides of its matrices. */
struct layout {
    const char *name;
    struct repack how;
    uint32_t n_rows, n_in;
    /* format that the blocks should have */
    enum tensor_type type;
};

#define F32 TENSOR_F32
#define F16 TENSOR_F16
#define BF16 TENSOR_BF16

static const struct layout layouts[] = {
    {"fp8, tensor", {REPACK_FP8, 8, 64, 7, F32, 0, 0, 0, 0}, 7, 64, BF16},
    {"fp8, rows", {REPACK_FP8, 8, 96, 1, BF16, 0, 0, 0, 0}, 5, 96, BF16},
    {"fp8, blocks", {REPACK_FP8, 8, 48, 4, F32, 0, 0, 0, 0}, 11, 130, BF16},
    {"fp8, odd", {REPACK_FP8, 8, 33, 3, F16, 0, 0, 0, 0}, 1, 67, BF16},
    {"mxfp4", {REPACK_MXFP4, 4, 1, 1, F32, 0, 0, 0, 0}, 3, 96, TENSOR_MXFP4},
    {"mxfp4 of two matrices", {REPACK_MXFP4, 4, 1, 1, F32, 0, 0, 1, 0}, 7, 64, TENSOR_MXFP4},
    {"nvfp4", {REPACK_NVFP4, 4, 1, 1, F32, 0, 0, 0, 0}, 5, 192, TENSOR_NVFP4},
    {"gptq", {REPACK_GPTQ, 4, 32, 1, F16, 0, 0, 0, 0}, 9, 96, TENSOR_Q4_0},
    {"gptq, zeros", {REPACK_GPTQ, 4, 64, 1, F16, 1, 0, 0, 0}, 8, 128, TENSOR_Q5_0},
    {"gptq, zeros less one", {REPACK_GPTQ, 4, 32, 1, BF16, 2, 0, 0, 0}, 24, 96, TENSOR_Q5_0},
    {"gptq, odd rows", {REPACK_GPTQ, 4, 32, 1, F16, 2, 0, 0, 0}, 13, 64, TENSOR_Q5_0},
    {"gptq, a short group", {REPACK_GPTQ, 4, 64, 1, F16, 1, 0, 0, 0}, 8, 96, TENSOR_Q5_0},
    {"gptq, whole rows", {REPACK_GPTQ, 4, 160, 1, F16, 0, 0, 0, 0}, 3, 160, TENSOR_Q4_0},
    {"gptq, act-order", {REPACK_GPTQ, 4, 32, 1, F16, 2, 1, 0, 0}, 8, 96, F16},
    {"gptq, groups of 24", {REPACK_GPTQ, 4, 24, 1, F16, 1, 0, 0, 0}, 8, 72, F16},
    {"gptq, 8 bits", {REPACK_GPTQ, 8, 32, 1, F16, 0, 0, 0, 0}, 7, 96, TENSOR_Q8_0},
    {"gptq, 8 bits, zeros", {REPACK_GPTQ, 8, 32, 1, F16, 2, 0, 0, 0}, 6, 64, F16},
    {"awq", {REPACK_AWQ, 4, 32, 1, F16, 1, 0, 0, 0}, 16, 96, TENSOR_Q5_0},
    {"awq, groups of 16", {REPACK_AWQ, 4, 16, 1, F16, 1, 0, 0, 0}, 24, 48, F16},
    {"packed", {REPACK_PACKED, 4, 32, 1, BF16, 0, 0, 0, 0}, 5, 128, TENSOR_Q4_0},
    {"packed, zeros", {REPACK_PACKED, 4, 64, 1, F16, 1, 0, 0, 0}, 13, 128, TENSOR_Q5_0},
    {"packed, act-order", {REPACK_PACKED, 4, 32, 1, F16, 0, 1, 0, 0}, 3, 64, F16},
    {"packed, odd columns", {REPACK_PACKED, 4, 43, 1, F16, 0, 0, 0, 0}, 4, 43, F16},
    {"packed, 8 bits", {REPACK_PACKED, 8, 64, 1, F16, 0, 0, 0, 0}, 3, 64, TENSOR_Q8_0},
    {"int8", {REPACK_INT8, 8, 96, 1, BF16, 0, 0, 0, 0}, 5, 96, TENSOR_Q8_0},
    {"int8, tensor", {REPACK_INT8, 8, 64, 6, F16, 0, 0, 0, 0}, 6, 64, TENSOR_Q8_0},
};

/* A matrix as numbers; scale and zero by row and column. */
struct naive {
    int code[ROWS_MAX][COLUMNS_MAX];
    double scale[ROWS_MAX][COLUMNS_MAX], value[ROWS_MAX][COLUMNS_MAX];
    int zero[ROWS_MAX][COLUMNS_MAX];
    uint8_t *part[REPACK_PARTS];
};

/* Rounds to @bits bits of significand, the last of which is at least 2^@least; to the nearest, of
 * two the even one. */
static double rounded(double v, int bits, int least) {
    int e;

    if (v == 0)
        return v;
    frexp(v, &e);
    double unit = ldexp(1, e - bits > least ? e - bits : least);
    return nearbyint(v / unit) * unit;
}

static double half(double v) {
    return rounded(v, 11, -24);
}

static double bfloat(double v) {
    return rounded(v, 8, -133);
}

static void put16(uint8_t *to, uint64_t i, uint32_t v) {
    to[2 * i] = (uint8_t)v;
    to[2 * i + 1] = (uint8_t)(v >> 8);
}

static uint32_t word_of(float f) {
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

/* Returns the bits of a half, which @v is, with an exponent from -14 to 15. */
static uint32_t half_bits(double v) {
    int e;
    double m = frexp(fabs(v), &e);

    return (v < 0 ? 0x8000u : 0) | (uint32_t)(e + 14) << 10 | (uint32_t)((2 * m - 1) * 1024);
}

/* Writes scale @i, and returns its value. */
static double put_scale(const struct repack *p, uint8_t *to, uint64_t i, struct rng *rng) {
    double v = ldexp(0.5 + (double)rng_below(rng, 1000) / 2000, -(int)rng_below(rng, 6));
    uint32_t word;

    if (p->kind != REPACK_FP8 && rng_below(rng, 4) == 0)
        v = -v;
    switch (p->scale_type) {
    case TENSOR_F16:
        v = half(v);
        put16(to, i, half_bits(v));
        return v;
    case TENSOR_BF16:
        v = bfloat(v);
        put16(to, i, word_of((float)v) >> 16);
        return v;
    default:
        v = (double)(float)v;
        word = word_of((float)v);
        memcpy(to + 4 * i, &word, 4);
        return v;
    }
}

/* Ors @v into bits [at, at + bits) of the words of 32 bits at @to. */
static void put_bits(uint8_t *to, uint64_t word, uint32_t at, uint32_t v) {
    for (uint32_t b = 0; b < 4; b++)
        to[4 * word + b] |= (uint8_t)((uint64_t)v << at >> 8 * b);
}

/* Writes integer @v of row @r and line @c, a column or a group, into words along the rows. */
static void put_along_rows(const struct repack *p, uint8_t *to, uint32_t n_rows, uint32_t r,
                           uint32_t c, uint32_t v) {
    static const uint32_t order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t per = 32 / p->bits, words = (n_rows + per - 1) / per, at = 0;

    if (p->kind != REPACK_AWQ) {
        put_bits(to, c * words + r / per, r % per * p->bits, v);
        return;
    }
    while (order[at] != r % 8)
        at++;
    put_bits(to, c * words + r / 8, 4 * at, v);
}

static void put_code(const struct layout *l, uint8_t *to, uint32_t r, uint32_t k, int code) {
    uint32_t per = 32 / l->how.bits, v = (uint32_t)code, words;

    switch (l->how.kind) {
    case REPACK_FP8:
        to[r * l->n_in + k] = (uint8_t)v;
        return;
    case REPACK_INT8:
        to[r * l->n_in + k] = (uint8_t)(v - 128);
        return;
    case REPACK_MXFP4:
    case REPACK_NVFP4:
        to[(r * (1 + l->how.skip) * l->n_in + k) / 2] |= (uint8_t)(v << k % 2 * 4);
        return;
    case REPACK_AWQ:
        put_along_rows(&l->how, to, l->n_rows, r, k, v);
        return;
    case REPACK_GPTQ:
        put_bits(to, k / per * l->n_rows + r, k % per * l->how.bits, v);
        return;
    default:
        words = (l->n_in + per - 1) / per;
        put_bits(to, r * words + k / per, k % per * l->how.bits, v);
        return;
    }
}

static double e4m3(int x) {
    double v = x >> 3 & 15 ? ldexp(8 + (x & 7), (x >> 3 & 15) - 10) : ldexp(x & 7, -9);

    return x & 128 ? -v : v;
}

static double e2m1(int x) {
    static const double v[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

    return x & 8 ? -v[x & 7] : v[x & 7];
}

/* Fills @m with random scales and zero points, and writes those. */
static void make_groups(struct naive *m, const struct layout *l, struct rng *rng) {
    const struct repack *p = &l->how;
    uint32_t n_groups = (l->n_in + p->group - 1) / p->group, g_of[COLUMNS_MAX];
    double scale[ROWS_MAX][COLUMNS_MAX];
    int zero[ROWS_MAX][COLUMNS_MAX];

    for (uint32_t k = 0; k < l->n_in; k++) {
        g_of[k] = p->indexed ? (uint32_t)rng_below(rng, n_groups) : k / p->group;
        if (p->indexed)
            memcpy(m->part[REPACK_INDEX] + 4 * k, &g_of[k], 4);
    }
    for (uint32_t r = 0; r < l->n_rows; r++)
        for (uint32_t g = 0; g < n_groups; g++) {
            bool turned = p->kind == REPACK_GPTQ || p->kind == REPACK_AWQ;
            uint32_t at = turned ? g * l->n_rows + r : r / p->group_rows * n_groups + g;
            uint32_t stored = (uint32_t)rng_below(rng, 1u << p->bits), per = 32 / p->bits;
            bool first = r % p->group_rows == 0;

            scale[r][g] = first ? put_scale(p, m->part[REPACK_SCALES], at, rng) : scale[r - 1][g];
            zero[r][g] = p->zeros ? (int)(stored + p->zeros - 1) : 1 << (p->bits - 1);
            if (p->zeros && p->kind == REPACK_PACKED)
                put_bits(m->part[REPACK_ZEROS], r / per * n_groups + g, r % per * p->bits, stored);
            else if (p->zeros)
                put_along_rows(p, m->part[REPACK_ZEROS], l->n_rows, r, g, stored);
        }
    for (uint32_t r = 0; r < l->n_rows; r++)
        for (uint32_t k = 0; k < l->n_in; k++) {
            m->scale[r][k] = scale[r][g_of[k]];
            m->zero[r][k] = zero[r][g_of[k]];
        }
}

/* Fills @m with random scales of 32 or 16 values of FP4. */
static void make_fp4_scales(struct naive *m, const struct layout *l, struct rng *rng) {
    uint32_t size = l->how.kind == REPACK_MXFP4 ? 32 : 16;

    for (uint32_t i = 0; i < l->n_rows * l->n_in / size; i++) {
        uint32_t x = (uint32_t)rng_below(rng, 256), r = i / (l->n_in / size);
        double v;

        if (size == 16 && (x & 127) == 127)
            x--;
        if (size == 32)
            x = 100 + x % 50;
        v = size == 32 ? ldexp(1, (int)x - 127) : e4m3((int)x);
        m->part[REPACK_SCALES][i + r * l->how.skip * (l->n_in / size)] = (uint8_t)x;
        for (uint32_t k = i % (l->n_in / size) * size, n = 0; n < size; n++)
            m->scale[r][k + n] = v;
    }
}

/* Makes a random matrix, whose values are those that its blocks should have. */
static struct naive *make(const struct layout *l, struct rng *rng) {
    struct naive *m = calloc(1, sizeof(*m));
    uint64_t bytes[REPACK_PARTS];
    bool fp4 = l->how.kind == REPACK_MXFP4 || l->how.kind == REPACK_NVFP4;

    cr_assert_eq(repack_sizes(&l->how, l->n_rows, l->n_in, bytes), 0, "%s", l->name);
    for (int i = 0; i < REPACK_PARTS; i++)
        m->part[i] = bytes[i] ? calloc(1, bytes[i]) : NULL;
    if (fp4)
        make_fp4_scales(m, l, rng);
    else
        make_groups(m, l, rng);
    for (uint32_t r = 0; r < l->n_rows; r++)
        for (uint32_t k = 0; k < l->n_in; k++) {
            int code = (int)rng_below(rng, fp4 ? 16 : 1u << l->how.bits);
            double *v = &m->value[r][k];

            if (l->how.kind == REPACK_FP8 && (code & 127) == 127)
                code--;
            m->code[r][k] = code;
            put_code(l, m->part[REPACK_CODES], r, k, code);
            if (l->how.kind == REPACK_FP8)
                *v = bfloat(rounded(m->scale[r][k] * e4m3(code), 24, -149));
            else if (fp4)
                *v = m->scale[r][k] * e2m1(code);
            else
                *v = m->scale[r][k] * (code - m->zero[r][k]);
            if (l->type == TENSOR_F16)
                *v = half(*v);
        }
    return m;
}

static void drop(struct naive *m) {
    for (int i = 0; i < REPACK_PARTS; i++)
        free(m->part[i]);
    free(m);
}

static double half_at(const uint8_t *p) {
    uint32_t x = (uint32_t)(p[0] | p[1] << 8), e = x >> 10 & 31;
    double v = e ? ldexp(1024 + (x & 1023), (int)e - 25) : ldexp(x & 1023, -24);

    return x & 0x8000 ? -v : v;
}

/* Returns value @i of the block at @b, by the formulas of GGUF. */
static double decoded(enum tensor_type type, const uint8_t *b, uint32_t i) {
    uint32_t word, q;
    float f;

    switch (type) {
    case TENSOR_F16:
        return half_at(b);
    case TENSOR_BF16:
        word = (uint32_t)(b[0] | b[1] << 8) << 16;
        memcpy(&f, &word, sizeof(f));
        return (double)f;
    case TENSOR_Q8_0:
        return half_at(b) * (int8_t)b[2 + i];
    case TENSOR_Q4_0:
        return half_at(b) * ((b[2 + i % 16] >> i / 16 * 4 & 15) - 8);
    case TENSOR_Q5_0:
        q = (uint32_t)(b[6 + i % 16] >> i / 16 * 4 & 15) | (uint32_t)(b[2 + i / 8] >> i % 8 & 1)
                                                               << 4;
        return half_at(b) * ((int)q - 16);
    case TENSOR_MXFP4:
        return ldexp(e2m1(b[1 + i % 16] >> i / 16 * 4 & 15), b[0] - 127);
    default:
        q = i / 16;
        return e4m3(b[q]) * e2m1(b[4 + 8 * q + i % 8] >> i % 16 / 8 * 4 & 15);
    }
}

/* Sets @t to @n matrices like those of @l, one behind the other. */
static void view(struct tensor *t, const struct layout *l, const uint8_t *const *piece,
                 uint32_t n) {
    const struct tensor_format *f = tensor_format(repack_type(&l->how, l->n_in));

    cr_assert_eq(f->type, l->type, "%s", l->name);
    *t = (struct tensor){.name = l->name,
                         .format = f,
                         .n_dims = 3,
                         .ne = {l->n_in, l->n_rows, n, 1},
                         .row_bytes = l->n_in / f->block * f->block_bytes,
                         .piece = piece,
                         .piece_rows = l->n_rows,
                         .repack = &l->how};
}

/* Compares blocks [first, first + n) of row @r of @t with @m. */
static void check_blocks(const struct tensor *t, const struct naive *m, uint64_t r, uint64_t first,
                         uint64_t n) {
    /* of the size of what is written: a byte more is found by the sanitizer */
    uint8_t *out = malloc(n * t->format->block_bytes);

    repack_blocks(t, r, first, n, out);
    for (uint64_t b = 0; b < n; b++)
        for (uint32_t i = 0; i < t->format->block; i++) {
            uint64_t k = (first + b) * t->format->block + i, row = r % t->piece_rows;
            double v = decoded(t->format->type, out + b * t->format->block_bytes, i);

            cr_assert_eq(v, m->value[row][k], "%s: row %llu, column %llu: %a, not %a", t->name,
                         (unsigned long long)row, (unsigned long long)k, v, m->value[row][k]);
        }
    free(out);
}

Test(repack, blocks_have_the_values_of_float64) {
    for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
        const struct layout *l = &layouts[i];
        const uint8_t *piece[2 * REPACK_PARTS];
        struct rng rng = {i + 1};
        struct naive *m[2] = {make(l, &rng), make(l, &rng)};
        struct tensor t;

        for (int k = 0; k < 2 * REPACK_PARTS; k++)
            piece[k] = m[k / REPACK_PARTS]->part[k % REPACK_PARTS];
        view(&t, l, piece, 2);
        uint64_t n_blocks = l->n_in / t.format->block;
        for (uint64_t r = 0; r < 2 * l->n_rows; r++) {
            uint64_t first = rng_below(&rng, (uint32_t)n_blocks);

            check_blocks(&t, m[r / l->n_rows], r, 0, n_blocks);
            check_blocks(&t, m[r / l->n_rows], r, first, n_blocks - first);
        }
        drop(m[0]);
        drop(m[1]);
    }
}

/* Returns whether the rows of @m are runs of 64 columns with one scale and one zero point each. */
static bool has_runs(const struct layout *l, const struct naive *m) {
    bool same = l->n_in % 64 == 0;

    for (uint32_t r = 0; r < l->n_rows; r++)
        for (uint32_t k = 0; k < l->n_in; k++) {
            uint32_t first = k / 64 * 64;

            same = same && m->scale[r][k] == m->scale[r][first];
            same = same && m->zero[r][k] == m->zero[r][first];
        }
    return same;
}

Test(repack, groups_are_runs_of_columns_with_a_scale) {
    uint32_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
        const struct layout *l = &layouts[i];
        struct rng rng = {i + 1};
        struct naive *m = make(l, &rng);
        bool four = l->type == TENSOR_Q4_0 || l->type == TENSOR_Q5_0;
        struct tensor t;

        view(&t, l, (const uint8_t *const *)m->part, 1);
        bool has = repack_has_groups(&t, 64);
        cr_expect(has == (four && has_runs(l, m)), "%s", l->name);
        n += has;
        drop(m);
    }
    cr_expect(n == 2);
}

/* Compares rows [from, from + n) of @m as a matrix of their own, each part of which ends where the
 * last row ends: what is read behind it is found by the sanitizer. */
static void check_slice(const struct layout *whole, const struct naive *m, uint32_t from,
                        uint32_t n) {
    struct layout l = {whole->name, whole->how, n, whole->n_in, whole->type};
    uint64_t bytes[REPACK_PARTS], at[REPACK_PARTS];
    const uint8_t *piece[REPACK_PARTS] = {0};
    static struct naive rows;
    struct tensor t;

    cr_assert_eq(repack_slice(&whole->how, whole->n_rows, whole->n_in, from, n, &l.how, at), 0,
                 "%s", whole->name);
    cr_assert_eq(repack_sizes(&l.how, n, l.n_in, bytes), 0, "%s", l.name);
    for (int i = 0; i < REPACK_PARTS; i++) {
        if (!bytes[i])
            continue;
        uint8_t *copy = malloc(bytes[i]);

        memcpy(copy, m->part[i] + at[i], bytes[i]);
        piece[i] = copy;
    }
    memcpy(rows.value, m->value[from], n * sizeof(rows.value[0]));
    view(&t, &l, piece, 1);
    for (uint32_t r = 0; r < n; r++)
        check_blocks(&t, &rows, r, 0, l.n_in / t.format->block);
    for (int i = 0; i < REPACK_PARTS; i++)
        free((uint8_t *)piece[i]);
}

Test(repack, rows_of_a_matrix_have_its_values) {
    static const uint32_t slices[][2] = {{0, 1}, {0, 8}, {2, 3}, {3, 1}, {4, 4}, {8, 8}, {16, 8}};
    uint32_t n_checked = 0;

    for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
        const struct layout *l = &layouts[i];
        struct rng rng = {i + 1};
        struct naive *m = make(l, &rng);
        uint64_t at[REPACK_PARTS];
        struct repack how;

        for (size_t k = 0; k < ARRAY_SIZE(slices); k++) {
            uint32_t from = slices[k][0], n = slices[k][1];
            bool words = l->how.zeros && from % (32 / l->how.bits);
            bool whole_words = l->how.kind != REPACK_AWQ || n % 8 == 0;
            bool in_group =
                from % l->how.group_rows == 0 || from % l->how.group_rows + n <= l->how.group_rows;

            if (from + n <= l->n_rows && !l->how.skip && !words && in_group && whole_words) {
                check_slice(l, m, from, n);
                n_checked++;
            } else if (whole_words)
                cr_expect_eq(repack_slice(&l->how, l->n_rows, l->n_in, from, n, &how, at), -EINVAL,
                             "%s: %u rows from %u", l->name, n, from);
        }
        drop(m);
    }
    cr_expect_gt(n_checked, 40);
}

Test(repack, values_are_those_of_float64) {
    for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
        const struct layout *l = &layouts[i];
        struct rng rng = {i + 1};
        struct naive *m = make(l, &rng);
        float value[COLUMNS_MAX];
        struct tensor t;

        view(&t, l, (const uint8_t *const *)m->part, 1);
        for (uint32_t r = 0; r < l->n_rows; r++) {
            repack_values(&t, r, value);
            for (uint32_t k = 0; k < l->n_in; k++) {
                double v = (double)value[k];

                if (l->type == BF16)
                    v = bfloat(v);
                if (l->type == F16)
                    v = half(v);
                cr_assert_eq(v, m->value[r][k], "%s: row %u, column %u: %a, not %a", l->name, r, k,
                             v, m->value[r][k]);
            }
        }
        drop(m);
    }
}

Test(repack, a_group_that_is_not_there_is_the_last_one) {
    const struct layout l = {"index", {REPACK_GPTQ, 4, 32, 1, F16, 1, 1, 0, 0}, 8, 64, F16};
    struct rng rng = {1};
    struct naive *m = make(&l, &rng);
    struct tensor t;
    uint8_t *last = malloc(128), *out = malloc(128);

    view(&t, &l, (const uint8_t *const *)m->part, 1);
    for (uint32_t k = 0; k < 64; k++)
        memcpy(m->part[REPACK_INDEX] + 4 * k, &(uint32_t){1}, 4);
    repack_blocks(&t, 7, 0, 64, last);
    for (uint32_t k = 0; k < 64; k++)
        memcpy(m->part[REPACK_INDEX] + 4 * k, &(uint32_t){0xFFFFFFFFu - k}, 4);
    repack_blocks(&t, 7, 0, 64, out);
    cr_expect_eq(memcmp(last, out, 128), 0);
    free(last);
    free(out);
    drop(m);
}

Test(repack, layouts_that_no_tool_writes_are_refused) {
    static const struct layout bad[] = {
        {"no kind", {REPACK_NONE, 4, 32, 1, F16, 0, 0, 0, 0}, 8, 64, 0},
        {"unknown kind", {REPACK_KINDS, 4, 32, 1, F16, 0, 0, 0, 0}, 8, 64, 0},
        {"3 bits", {REPACK_GPTQ, 3, 32, 1, F16, 0, 0, 0, 0}, 8, 64, 0},
        {"scales of F32", {REPACK_GPTQ, 4, 32, 1, F32, 0, 0, 0, 0}, 8, 64, 0},
        {"scales of Q4_0", {REPACK_FP8, 8, 32, 1, TENSOR_Q4_0, 0, 0, 0, 0}, 8, 64, 0},
        {"no group", {REPACK_GPTQ, 4, 0, 1, F16, 0, 0, 0, 0}, 8, 64, 0},
        {"no rows of a group", {REPACK_FP8, 8, 32, 0, F32, 0, 0, 0, 0}, 8, 64, 0},
        {"zeros 3", {REPACK_GPTQ, 4, 32, 1, F16, 3, 0, 0, 0}, 8, 64, 0},
        {"zeros of FP8", {REPACK_FP8, 8, 32, 1, F32, 1, 0, 0, 0}, 8, 64, 0},
        {"index of FP8", {REPACK_FP8, 8, 32, 1, F32, 0, 1, 0, 0}, 8, 64, 0},
        {"index 2", {REPACK_GPTQ, 4, 32, 1, F16, 0, 2, 0, 0}, 8, 64, 0},
        {"int8 of 4 bits", {REPACK_INT8, 4, 32, 1, F16, 0, 0, 0, 0}, 8, 64, 0},
        {"AWQ of 12 rows", {REPACK_AWQ, 4, 32, 1, F16, 1, 0, 0, 0}, 12, 64, 0},
        {"AWQ without zeros", {REPACK_AWQ, 4, 32, 1, F16, 0, 0, 0, 0}, 8, 64, 0},
        {"AWQ of 8 bits", {REPACK_AWQ, 8, 32, 1, F16, 1, 0, 0, 0}, 8, 64, 0},
        {"MXFP4 of 48 columns", {REPACK_MXFP4, 4, 1, 1, F32, 0, 0, 0, 0}, 8, 48, 0},
        {"NVFP4 of 96 columns", {REPACK_NVFP4, 4, 1, 1, F32, 0, 0, 0, 0}, 8, 96, 0},
        {"two matrices of NVFP4", {REPACK_NVFP4, 4, 1, 1, F32, 0, 0, 1, 0}, 8, 64, 0},
        {"three matrices", {REPACK_MXFP4, 4, 1, 1, F32, 0, 0, 2, 0}, 8, 64, 0},
        {"a stride of FP8", {REPACK_FP8, 8, 32, 1, F32, 0, 0, 0, 16}, 8, 64, 0},
        {"a stride of few rows", {REPACK_GPTQ, 4, 32, 1, F16, 0, 0, 0, 7}, 8, 64, 0},
        {"a stride of 12 rows of AWQ", {REPACK_AWQ, 4, 32, 1, F16, 1, 0, 0, 12}, 8, 64, 0},
        {"no rows", {REPACK_GPTQ, 4, 32, 1, F16, 0, 0, 0, 0}, 0, 64, 0},
        {"no columns", {REPACK_GPTQ, 4, 32, 1, F16, 0, 0, 0, 0}, 8, 0, 0},
    };
    uint64_t bytes[REPACK_PARTS];

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        cr_expect_eq(repack_sizes(&bad[i].how, bad[i].n_rows, bad[i].n_in, bytes), -EINVAL, "%s",
                     bad[i].name);
    const struct repack big = {REPACK_FP8, 8, 1, 1, F32, 0, 0, 0, 0};
    cr_expect_eq(repack_sizes(&big, 1u << 28, 1u << 28, bytes), 0);
    cr_expect_eq(bytes[REPACK_SCALES], 1ull << 58);
    cr_expect_eq(repack_sizes(&big, (1u << 28) + 1, 64, bytes), -EINVAL);
}
