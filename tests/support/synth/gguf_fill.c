#include "tests/support/synth/gguf_fill.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"

/*
 * A block of a quantised format is filled with random bits, then its scale (and minimum) is set. So
 * every bit of a layout varies independently, and a decoder that swaps two fields is detected. The
 * scale s = base * u has u uniform in [0.5, 1.5) and, where the format is symmetric, a random sign,
 * which takes the mean of the weights to 0. With q the random number times its random sub-scale,
 * the variance is
 *
 *     symmetric      E[u^2] E[q^2]                              E[u^2] = 13/12
 *     with minimum   E[u^2] (E[q^2] + c^2 E[m^2]) - 2 (E[q])^2  minimum = c * base * u', mean 0
 *
 * where m is the sub-block's random factor of the minimum and c the mean of the bare number.
 * `square` below is that variance at base 1. Bits are uniform, so all of it is arithmetic on the
 * ranges: for Q4_K, q is 0..15 and the sub-scales 0..63, E[q^2] = 77.5 * 1333.5, E[m^2] = 1333.5, c
 * = 7.5, E[q] = 7.5 * 31.5. The test measures every one with the engine's decoder.
 */
#define U2 (13.0 / 12.0)

static const struct fill_recipe {
    enum tensor_type type;
    /* offsets of the half floats in a block; min 0: symmetric */
    uint16_t scale, min;
    double square, centre;
    enum {
        SCALE_HALF,
        /* one byte, a power of two */
        SCALE_E8M0,
        /* four bytes */
        SCALE_UE4M3,
        /* a half in four pieces */
        SCALE_IQ1_M,
        /* a half; the code 3, which quantisers do not write, becomes 1 */
        SCALE_TQ2,
    } kind;
} recipes[] = {
    {TENSOR_Q4_0, 0, 0, U2 * 21.5, 0, SCALE_HALF},
    {TENSOR_Q4_1, 0, 2, U2 *(77.5 + 56.25) - 2 * 56.25, -7.5, SCALE_HALF},
    {TENSOR_Q5_0, 0, 0, U2 * 85.5, 0, SCALE_HALF},
    {TENSOR_Q5_1, 0, 2, U2 *(325.5 + 240.25) - 2 * 240.25, -15.5, SCALE_HALF},
    {TENSOR_Q8_0, 0, 0, U2 * 5461.5, 0, SCALE_HALF},
    {TENSOR_Q2_K, 80, 82, U2 *(77.5 * 3.5 + 2.25 * 77.5) - 2 * 2.25 * 56.25, 1.5, SCALE_HALF},
    {TENSOR_Q3_K, 108, 0, U2 * 341.5 * 5.5, 0, SCALE_HALF},
    {TENSOR_Q4_K, 0, 2, U2 *(1333.5 * (77.5 + 56.25)) - 2 * 56.25 * 992.25, 7.5, SCALE_HALF},
    {TENSOR_Q5_K, 0, 2, U2 *(1333.5 * (325.5 + 240.25)) - 2 * 240.25 * 992.25, 15.5, SCALE_HALF},
    {TENSOR_Q6_K, 208, 0, U2 * 5461.5 * 341.5, 0, SCALE_HALF},
    {TENSOR_IQ2_XXS, 0, 0, U2 * 85.25 / 16 * 534.43017578125, 0, SCALE_HALF},
    {TENSOR_IQ4_NL, 0, 0, U2 * 4548.0, 0, SCALE_HALF},
    {TENSOR_IQ4_XS, 0, 0, U2 * 341.5 * 4548.0, 0, SCALE_HALF},
    {TENSOR_MXFP4, 0, 0, 34.25, 0, SCALE_E8M0},
    {TENSOR_NVFP4, 0, 0, 34.25, 0, SCALE_UE4M3},
    {TENSOR_IQ1_S, 0, 0, U2 * 85 * (0.59417724609375 + 1.0 / 64), 0, SCALE_HALF},
    {TENSOR_IQ1_M, 0, 0, U2 * 85 * (0.59417724609375 + 1.0 / 64), 0, SCALE_IQ1_M},
    {TENSOR_IQ2_XS, 0, 0, U2 * 85.25 / 16 * 586.47607421875, 0, SCALE_HALF},
    {TENSOR_IQ2_S, 0, 0, U2 * 85.25 / 16 * 596.8416748046875, 0, SCALE_HALF},
    {TENSOR_IQ3_XXS, 0, 0, U2 * 85.25 / 4 * 951.640625, 0, SCALE_HALF},
    {TENSOR_IQ3_S, 0, 0, U2 * 341 * 57.671875, 0, SCALE_HALF},
    {TENSOR_TQ1_0, 52, 0, U2 * 171 / 256, 0, SCALE_HALF},
    {TENSOR_TQ2_0, 64, 0, U2 * 0.5, 0, SCALE_TQ2},
};

static const struct fill_recipe *find_recipe(enum tensor_type type) {
    for (size_t i = 0; i < ARRAY_SIZE(recipes); i++)
        if (recipes[i].type == type)
            return &recipes[i];
    return NULL;
}

/* The values of a uniform distribution on 4096 levels, at equal distances. */
static void set_levels(struct gguf_fill *f) {
    double step = f->std * sqrt(12.0) / FILL_LEVELS;

    for (int i = 0; i < FILL_LEVELS; i++) {
        float v = (float)((i - (FILL_LEVELS - 1) / 2.0) * step);

        f->level[i] = f->format->type == TENSOR_BF16
                          ? (uint16_t)((mx_bits_of(v) + 0x7FFF + ((mx_bits_of(v) >> 16) & 1)) >> 16)
                          : mx_float_to_half(v);
    }
}

/* Powers of two around @base with its mean square: mostly its two neighbours, and two smaller ones,
 * so that four values occur. */
static void set_exponents(struct gguf_fill *f, double base) {
    int k = (int)floor(log2(base));
    int n_large = (int)lround((base * base / exp2(2 * k) - 252.625 / 256) * 256 / 3);
    assert(n_large >= 0 && n_large <= 252);
    for (int i = 0; i < 256; i++)
        f->scale[i] = (uint16_t)(128 + k + (i < 2 ? -2 : i < 4 ? -1 : i < 4 + n_large ? 1 : 0));
}

/* Chooses scales from 0.5 to 1.5 of @base, each so that the sum of squares stays as intended. */
static void set_ue4m3(struct gguf_fill *f, double base) {
    double wanted = 0, sum = 0;

    for (int i = 0; i < 256; i++) {
        double u = 0.5 + (i + 0.5) / 256, v = 0;

        wanted += base * base * u * u / U2;
        for (uint8_t e = 1; e < 0x7F && (e == 1 || sum + v * v < wanted); e++) {
            f->scale[i] = e;
            v = (double)mx_ue4m3_half(e);
        }
        sum += v * v;
    }
}

void gguf_fill_init(struct gguf_fill *f, const struct tensor_format *format, double std,
                    uint64_t seed) {
    *f = (struct gguf_fill){
        .format = format, .recipe = find_recipe(format->type), .std = std, .rng = {seed}};
    assert(std > 0);
    if (!f->recipe) {
        set_levels(f);
        return;
    }
    assert(f->recipe->scale + (f->recipe->kind == SCALE_E8M0 ? 1u : 2u) <= format->block_bytes);
    assert(f->recipe->min + 2u <= format->block_bytes);
    double base = std / sqrt(f->recipe->square);
    if (f->recipe->kind == SCALE_E8M0) {
        set_exponents(f, base);
        return;
    }
    if (f->recipe->kind == SCALE_UE4M3) {
        set_ue4m3(f, base);
        return;
    }
    for (int i = 0; i < 256; i++) {
        double u = 0.5 + (i + 0.5) / 256;

        f->scale[i] = mx_float_to_half((float)(base * u));
        f->min[i] = mx_float_to_half((float)(base * u * f->recipe->centre));
    }
}

/* Writes @n random bytes. */
static void random_bytes(struct rng *r, uint8_t *dst, size_t n) {
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        uint64_t v = rng_next(r);

        memcpy(dst + i, &v, 8);
    }
    if (i < n) {
        uint64_t v = rng_next(r);

        memcpy(dst + i, &v, n - i);
    }
}

/* Writes values of mean 0 and the requested standard deviation. */
static void fill_f32(struct gguf_fill *f, uint8_t *dst, size_t n) {
    float step = (float)(f->std * sqrt(3.0) * 0x1p-31);

    for (size_t i = 0; i < n; i += 2) {
        uint64_t v = rng_next(&f->rng);
        float pair[2] = {(float)(int32_t)v * step, (float)(int32_t)(v >> 32) * step};

        memcpy(dst + 4 * i, pair, i + 1 < n ? 8 : 4);
    }
}

static void fill_16(struct gguf_fill *f, uint8_t *dst, size_t n) {
    assert(f->format->block_bytes == 2); /* F16 or BF16: all other formats have a recipe */
    for (size_t i = 0; i < n; i += 4) {
        uint64_t v = rng_next(&f->rng);
        uint16_t quad[4];

        for (int j = 0; j < 4; j++)
            quad[j] = f->level[(v >> (16 * j)) % FILL_LEVELS];
        memcpy(dst + 2 * i, quad, 2 * MIN(n - i, (size_t)4));
    }
}

/* Writes the scale of a block, from the random number @v. */
static void put_scale(const struct gguf_fill *f, uint8_t *block, uint64_t v) {
    const struct fill_recipe *c = f->recipe;
    assert(c);
    uint16_t scale = f->scale[v & 255], min = f->min[(v >> 8) & 255];

    if (!c->min)
        scale ^= (uint16_t)(v >> 48) & 0x8000;
    switch (c->kind) {
    case SCALE_E8M0:
        block[c->scale] = (uint8_t)scale;
        break;
    case SCALE_UE4M3:
        for (int i = 0; i < 4; i++)
            block[i] = (uint8_t)f->scale[(v >> (8 * i)) & 255];
        break;
    case SCALE_IQ1_M:
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (scale >> (4 * i) & 15) << 4);
        break;
    case SCALE_TQ2:
        for (int i = 0; i < 64; i++)
            block[i] &= (uint8_t) ~(block[i] & block[i] << 1 & 0xAA);
        memcpy(block + c->scale, &scale, 2);
        break;
    case SCALE_HALF:
        memcpy(block + c->scale, &scale, 2);
        if (c->min)
            memcpy(block + c->min, &min, 2);
        break;
    }
}

static void fill_quantised(struct gguf_fill *f, uint8_t *dst, size_t n) {
    size_t size = f->format->block_bytes;

    random_bytes(&f->rng, dst, n * size);
    for (size_t i = 0; i < n; i++, dst += size)
        put_scale(f, dst, rng_next(&f->rng));
}

void gguf_fill_blocks(struct gguf_fill *f, void *dst, size_t n) {
    if (f->recipe)
        fill_quantised(f, dst, n);
    else if (f->format->type == TENSOR_F32)
        fill_f32(f, dst, n);
    else
        fill_16(f, dst, n);
}
