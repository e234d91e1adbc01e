#include "tests/engine/cpu/fixture.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mathx.h"

static uint64_t next(uint64_t *s) { /* splitmix64 */
    uint64_t z = *s += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double uniform(uint64_t *s) {
    return ((double)(next(s) >> 11) + 0.5) * 0x1p-53;
}

void fixture_normal(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(sqrt(-2 * log(uniform(&seed))) * cos(2 * M_PI * uniform(&seed)));
}

/* Offsets of the halves in a block; -1: none. */
static const struct {
    enum tensor_type type;
    int first, second;
} halves[] = {
    {TENSOR_Q4_0, 0, -1},   {TENSOR_Q4_1, 0, 2},     {TENSOR_Q5_0, 0, -1},
    {TENSOR_Q5_1, 0, 2},    {TENSOR_Q8_0, 0, -1},    {TENSOR_Q2_K, 80, 82},
    {TENSOR_Q3_K, 108, -1}, {TENSOR_Q4_K, 0, 2},     {TENSOR_Q5_K, 0, 2},
    {TENSOR_Q6_K, 208, -1}, {TENSOR_IQ2_XXS, 0, -1}, {TENSOR_IQ4_NL, 0, -1},
    {TENSOR_IQ4_XS, 0, -1}, {TENSOR_IQ1_S, 0, -1},   {TENSOR_IQ2_XS, 0, -1},
    {TENSOR_IQ2_S, 0, -1},  {TENSOR_IQ3_XXS, 0, -1}, {TENSOR_IQ3_S, 0, -1},
    {TENSOR_TQ1_0, 52, -1}, {TENSOR_TQ2_0, 64, -1},
};

static void put_half(uint8_t *p, uint64_t *s) {
    uint16_t h = mx_float_to_half((float)(0.02 * (uniform(s) - 0.3)));

    memcpy(p, &h, 2);
}

static void fill_scales(enum tensor_type type, uint8_t *p, uint64_t *s) {
    if (type == TENSOR_MXFP4)
        *p = (uint8_t)(115 + next(s) % 9);
    if (type == TENSOR_NVFP4)
        for (int i = 0; i < 4; i++)
            p[i] = (uint8_t)next(s); /* any byte is a scale */
    if (type == TENSOR_IQ1_M) {
        uint8_t h[2];

        put_half(h, s);
        for (int i = 0; i < 4; i++)
            p[49 + 2 * i] = (uint8_t)((p[49 + 2 * i] & 15) | (h[i / 2] >> (i % 2 * 4)) << 4);
    }
    for (size_t i = 0; i < ARRAY_SIZE(halves); i++)
        if (halves[i].type == type) {
            put_half(p + halves[i].first, s);
            if (halves[i].second >= 0)
                put_half(p + halves[i].second, s);
        }
}

static void fill_block(enum tensor_type type, uint8_t *p, size_t n_bytes, uint64_t *s) {
    float x = (float)(uniform(s) - 0.5);
    uint16_t h = mx_float_to_half(x), b = (uint16_t)(mx_bits_of(x) >> 16);

    if (type == TENSOR_F32) {
        memcpy(p, &x, 4);
        return;
    }
    if (type == TENSOR_F16 || type == TENSOR_BF16) {
        memcpy(p, type == TENSOR_F16 ? &h : &b, 2);
        return;
    }
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t r = next(s);

        memcpy(p + i, &r, MIN(8, n_bytes - i));
    }
    fill_scales(type, p, s);
}

/* Plans the panels of f->t and packs them. */
static void fixture_plan(struct fixture *f) {
    struct err err;
    int r = panel_plan(&f->m, &f->t, &err);
    assert(r == 0);
    size_t size = round_up(f->m.n_panels * f->m.panel_bytes, 2 << 20);
    f->m.data = aligned_alloc(2 << 20, size);
    assert(f->m.data);
    madvise(f->m.data, size, MADV_HUGEPAGE);
    fixture_pack(f);
}

void fixture_init(struct fixture *f, enum tensor_type type, uint32_t n_in, uint32_t n_out,
                  uint64_t seed) {
    const struct tensor_format *format = tensor_format(type);
    size_t row_bytes = (size_t)n_in / format->block * format->block_bytes;
    uint8_t *data = malloc(row_bytes * n_out);

    assert(data);
    for (size_t at = 0; at < row_bytes * n_out; at += format->block_bytes)
        fill_block(type, data + at, format->block_bytes, &seed);
    *f = (struct fixture){0};
    f->t = (struct tensor){
        .name = "fixture",
        .format = format,
        .n_dims = 2,
        .ne = {n_in, n_out, 1, 1},
        .row_bytes = row_bytes,
        .n_bytes = row_bytes * n_out,
        .data = data,
    };
    fixture_plan(f);
}

/* Makes a matrix of the layout f->how, whose bytes @fill makes. */
static void fixture_parts(struct fixture *f, const char *name, uint32_t n_in, uint32_t n_out,
                          void (*fill)(int part, uint8_t *p, uint64_t n, uint64_t *seed)) {
    uint64_t bytes[REPACK_PARTS], seed = 1;
    int r = repack_sizes(&f->how, n_out, n_in, bytes);
    assert(r == 0);
    for (int i = 0; i < REPACK_PARTS; i++) {
        uint8_t *p = bytes[i] ? malloc(bytes[i]) : NULL;

        assert(p || !bytes[i]);
        fill(i, p, bytes[i], &seed);
        f->part[i] = p;
    }
    f->t = (struct tensor){
        .name = name,
        .format = tensor_format(repack_type(&f->how, n_in)),
        .n_dims = 2,
        .ne = {n_in, n_out, 1, 1},
        .piece = f->part,
        .piece_rows = n_out,
        .repack = &f->how,
    };
    fixture_plan(f);
}

static void fill_groups(int part, uint8_t *p, uint64_t n, uint64_t *seed) {
    for (uint64_t k = 0; k < n; k++)
        p[k] = (uint8_t)next(seed);
    for (uint64_t k = 0; part == REPACK_SCALES && k < n; k += 2)
        put_half(p + k, seed);
}

void fixture_groups(struct fixture *f, uint32_t n_in, uint32_t n_out, bool zeros) {
    *f = (struct fixture){.how = {.kind = REPACK_PACKED,
                                  .bits = 4,
                                  .group = 128,
                                  .group_rows = 1,
                                  .scale_type = TENSOR_F16,
                                  .zeros = zeros}};
    fixture_parts(f, "groups", n_in, n_out, fill_groups);
}

static void fill_fp8(int part, uint8_t *p, uint64_t n, uint64_t *seed) {
    for (uint64_t k = 0; part == REPACK_CODES && k < n; k++) {
        p[k] = (uint8_t)next(seed);
        if ((p[k] & 0x7F) == 0x7F)
            p[k] ^= 1;
    }
    for (uint64_t k = 0; part == REPACK_SCALES && k < n; k += 4) {
        float scale = (float)(8 + next(seed) % 8) * 0x1p-12f;

        memcpy(p + k, &scale, 4);
    }
}

void fixture_fp8(struct fixture *f, uint32_t n_in, uint32_t n_out, bool blocks) {
    *f = (struct fixture){.how = {.kind = REPACK_FP8,
                                  .bits = 8,
                                  .group = 128,
                                  .group_rows = 128,
                                  .scale_type = TENSOR_F32}};
    if (!blocks) {
        f->how.group = n_in;
        f->how.group_rows = 1;
    }
    fixture_parts(f, "fp8", n_in, n_out, fill_fp8);
}

void fixture_pack(struct fixture *f) {
    for (uint32_t i = 0; i < f->m.n_panels; i++)
        panel_pack(&f->m, &f->t, i, f->m.data + i * f->m.panel_bytes);
}

void fixture_extreme(struct fixture *f, uint8_t fill) {
    uint8_t *data = (uint8_t *)f->t.data;
    uint64_t seed = 1;

    memset(data, fill, f->t.n_bytes);
    for (size_t at = 0; at < f->t.n_bytes; at += f->t.format->block_bytes)
        fill_scales(f->t.format->type, data + at, &seed);
    fixture_pack(f);
}

void fixture_deinit(struct fixture *f) {
    free((void *)f->t.data);
    for (int i = 0; i < REPACK_PARTS; i++)
        free((void *)f->part[i]);
    free(f->m.data);
}

uint8_t *fixture_acts(const struct cpu_kernels *k, enum acts_kind kind, const float *x,
                      uint32_t n_in, uint32_t n_rows) {
    size_t size = acts_bytes(kind, n_in, (uint32_t)round_up(n_rows, TILE_MAX));
    uint8_t *acts = aligned_alloc(64, round_up(size, 64));

    assert(acts);
    memset(acts, 0, size);
    for (uint32_t r = 0; r < n_rows; r++)
        k->acts_store[kind](x + (size_t)r * n_in, n_in, acts + acts_bytes(kind, n_in, r));
    return acts;
}
