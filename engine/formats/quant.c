#include "engine/formats/quant.h"

#include <assert.h>
#include <string.h>

/* Values of IQ4_NL and IQ4_XS. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

/* Values of MXFP4, doubled. */
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Defines decode_x() for a format whose values blk_value() decodes as fast as code for a whole
 * block would: the compiler moves what the values share out of the loop. */
#define DECODE(name, type, n)                                                                      \
    __attribute__((flatten)) static void decode_##name(const uint8_t *restrict p,                  \
                                                       float *restrict y) {                        \
        for (unsigned i = 0; i < (n); i++)                                                         \
            y[i] = blk_value(type, p, i, &quant_grids);                                            \
    }

DECODE(f32, TENSOR_F32, 1)
DECODE(f16, TENSOR_F16, 1)
DECODE(bf16, TENSOR_BF16, 1)
DECODE(q8_0, TENSOR_Q8_0, 32)
DECODE(q2_k, TENSOR_Q2_K, 256)
DECODE(q3_k, TENSOR_Q3_K, 256)
DECODE(q6_k, TENSOR_Q6_K, 256)
DECODE(nvfp4, TENSOR_NVFP4, 64)

static void decode_q4_0(const uint8_t *p, float *y) {
    float d = blk_half(p);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((p[2 + j] & 15) - 8);
        y[j + 16] = d * (float)((p[2 + j] >> 4) - 8);
    }
}

static void decode_q4_1(const uint8_t *p, float *y) {
    float d = blk_half(p), m = blk_half(p + 2);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(p[4 + j] & 15) + m;
        y[j + 16] = d * (float)(p[4 + j] >> 4) + m;
    }
}

/* Unpacks the 32 five-bit numbers of Q5_0 and Q5_1; @high_bits has their fifth bits. */
static void unpack_q5(const uint8_t *qs, const uint8_t *high_bits, int q[32]) {
    uint32_t high = blk_u16(high_bits) | (uint32_t)blk_u16(high_bits + 2) << 16;

    for (int j = 0; j < 16; j++) {
        q[j] = (qs[j] & 15) | (int)((high >> j) & 1) << 4;
        q[j + 16] = (qs[j] >> 4) | (int)((high >> (j + 16)) & 1) << 4;
    }
}

static void decode_q5_0(const uint8_t *p, float *y) {
    float d = blk_half(p);
    int q[32];

    unpack_q5(p + 6, p + 2, q);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(q[j] - 16);
}

static void decode_q5_1(const uint8_t *p, float *y) {
    float d = blk_half(p), m = blk_half(p + 2);
    int q[32];

    unpack_q5(p + 8, p + 4, q);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)q[j] + m;
}

/* Decodes Q4_K (@high NULL) and Q5_K: 64 values from each 32 bytes, low nibbles first. */
static void decode_k45(const uint8_t *p, const uint8_t *high, const uint8_t *qs, float *y) {
    float d = blk_half(p), dmin = blk_half(p + 2);

    for (unsigned s = 0; s < 8; s++) {
        int scale, min;

        blk_k4_scale(p + 4, s, &scale, &min);
        float ds = d * (float)scale, ms = dmin * (float)min;
        for (unsigned l = 0; l < 32; l++) {
            int q = (qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15;

            if (high)
                q |= ((high[l] >> s) & 1) << 4;
            y[32 * s + l] = ds * (float)q - ms;
        }
    }
}

static void decode_q4_k(const uint8_t *p, float *y) {
    decode_k45(p, NULL, p + 16, y);
}

static void decode_q5_k(const uint8_t *p, float *y) {
    decode_k45(p, p + 16, p + 48, y);
}

/* Returns digit @n, minus one, of the five base-3 digits that a byte has as a fraction of 243. */
static float trit(uint8_t q, unsigned n) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};

    return (float)((uint8_t)(q * power[n]) * 3 >> 8) - 1;
}

static void decode_tq1_0(const uint8_t *p, float *y) {
    float d = blk_half(p + 52);

    for (unsigned i = 0; i < 160; i++)
        y[i] = d * trit(p[i % 32], i / 32);
    for (unsigned i = 0; i < 80; i++)
        y[160 + i] = d * trit(p[32 + i % 16], i / 16);
    for (unsigned i = 0; i < 16; i++)
        y[240 + i] = d * trit(p[48 + i % 4], i / 4);
}

/* Writes 32 values of four bits, which are indices into @values, first the lower halves of all
 * bytes. */
static void put_nibbles(const uint8_t *qs, const int8_t *values, float d, float *y) {
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)values[qs[j] & 15];
        y[j + 16] = d * (float)values[qs[j] >> 4];
    }
}

static void decode_iq4_nl(const uint8_t *p, float *y) {
    put_nibbles(p + 2, iq4_values, blk_half(p), y);
}

static void decode_iq4_xs(const uint8_t *p, float *y) {
    for (unsigned b = 0; b < 8; b++)
        put_nibbles(p + 8 + 16 * b, iq4_values, blk_half(p) * (float)blk_iq4_xs_scale(p, b),
                    y + 32 * b);
}

static void decode_mxfp4(const uint8_t *p, float *y) {
    put_nibbles(p + 1, fp4_values, mx_e8m0_half(p[0]), y);
}

/* Magnitudes of IQ2, IQ3_XXS and IQ3_S by code. */
static const float iq2_sizes[4] = {8, 25, 43}, iq3_xxs_sizes[8] = {4, 12, 20, 28, 36, 44, 52, 62},
                   iq3_s_sizes[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Decodes a format with a grid. Runs of eight values share a scale and their signs; @unit, @sizes:
 * see blk_iq(). @sizes NULL: IQ1. */
static inline void decode_iq(enum tensor_type type, float unit, const float *sizes,
                             const uint8_t *restrict p, float *restrict y) {
    float d = mx_half_to_float(blk_iq_half(type, p)) * unit;
    unsigned values = 8, bits = 2; /* of an entry of the grid */

    if (blk_is_iq3(type)) {
        values = 4;
        bits = 3;
    }
    for (unsigned r = 0; r < 32; r++) {
        unsigned signs = blk_iq_signs(type, p, r);
        float scale = d * (float)(2 * blk_iq_scale(type, p, r) + 1);
        float delta = 0.125f; /* of IQ1 */

        if (signs)
            delta = -delta;
        for (unsigned first = 0; first < 8; first += values) {
            unsigned index = blk_iq_index(type, p, (8 * r + first) / values);
            unsigned entry = blk_iq_grid(type, &quant_grids)[index];

            for (unsigned i = 0; i < values; i++) {
                unsigned code = entry >> (bits * i) & ((1u << bits) - 1);
                float v = (float)code - 1 + delta;

                if (sizes)
                    v = sizes[code];
                if (sizes && signs >> (first + i) & 1)
                    v = -v;
                y[8 * r + first + i] = scale * v;
            }
        }
    }
}

/* Defines decode_x() for such a format. */
#define DECODE_IQ(name, type, unit, sizes)                                                         \
    __attribute__((flatten)) static void decode_##name(const uint8_t *p, float *y) {               \
        decode_iq(type, unit, sizes, p, y);                                                        \
    }

DECODE_IQ(iq1_s, TENSOR_IQ1_S, 1, NULL)
DECODE_IQ(iq1_m, TENSOR_IQ1_M, 1, NULL)
DECODE_IQ(iq2_xxs, TENSOR_IQ2_XXS, 0.125f, iq2_sizes)
DECODE_IQ(iq2_xs, TENSOR_IQ2_XS, 0.125f, iq2_sizes)
DECODE_IQ(iq2_s, TENSOR_IQ2_S, 0.125f, iq2_sizes)
DECODE_IQ(iq3_xxs, TENSOR_IQ3_XXS, 0.25f, iq3_xxs_sizes)
DECODE_IQ(iq3_s, TENSOR_IQ3_S, 1, iq3_s_sizes)

typedef void (*decode_fn)(const uint8_t *block, float *y);

/* Decoders of whole blocks, indexed by tensor type. Types without one are decoded by blk_value(),
 * which is slower. */
static const decode_fn decoders[] = {
    [TENSOR_F32] = decode_f32,         [TENSOR_F16] = decode_f16,
    [TENSOR_BF16] = decode_bf16,       [TENSOR_Q4_0] = decode_q4_0,
    [TENSOR_Q4_1] = decode_q4_1,       [TENSOR_Q5_0] = decode_q5_0,
    [TENSOR_Q5_1] = decode_q5_1,       [TENSOR_Q8_0] = decode_q8_0,
    [TENSOR_Q2_K] = decode_q2_k,       [TENSOR_Q3_K] = decode_q3_k,
    [TENSOR_Q4_K] = decode_q4_k,       [TENSOR_Q5_K] = decode_q5_k,
    [TENSOR_Q6_K] = decode_q6_k,       [TENSOR_IQ2_XXS] = decode_iq2_xxs,
    [TENSOR_IQ4_NL] = decode_iq4_nl,   [TENSOR_IQ4_XS] = decode_iq4_xs,
    [TENSOR_MXFP4] = decode_mxfp4,     [TENSOR_NVFP4] = decode_nvfp4,
    [TENSOR_IQ1_S] = decode_iq1_s,     [TENSOR_IQ1_M] = decode_iq1_m,
    [TENSOR_IQ2_XS] = decode_iq2_xs,   [TENSOR_IQ2_S] = decode_iq2_s,
    [TENSOR_IQ3_XXS] = decode_iq3_xxs, [TENSOR_IQ3_S] = decode_iq3_s,
    [TENSOR_TQ1_0] = decode_tq1_0,
};

/* Decodes the block at @p of a format without a row in decoders[]. */
static void decode_values(const struct tensor_format *f, const uint8_t *p, float *y) {
    for (unsigned i = 0; i < f->block; i++)
        y[i] = blk_value((uint32_t)f->type, p, i, &quant_grids);
}

void quant_decode(enum tensor_type type, const void *src, float *dst, size_t n) {
    const struct tensor_format *f = tensor_format((uint32_t)type);
    const uint8_t *p = src;
    decode_fn decode = NULL;

    assert(f && n % f->block == 0);
    if ((size_t)type < ARRAY_SIZE(decoders))
        decode = decoders[type];
    for (size_t i = 0; i < n; i += f->block, p += f->block_bytes) {
        if (decode)
            decode(p, dst + i);
        else
            decode_values(f, p, dst + i);
    }
}

void quant_decode_row(const struct tensor *t, uint64_t r, float *dst) {
    uint8_t room[4096];
    uint64_t n_blocks = t->ne[0] / t->format->block, n;

    for (uint64_t b = 0; b < n_blocks; b += n) {
        n = MIN(n_blocks - b, sizeof(room) / t->format->block_bytes);
        const uint8_t *blocks = tensor_blocks(t, r, b, n, room);
        quant_decode(t->format->type, blocks, dst + b * t->format->block, n * t->format->block);
    }
    if (!t->scale)
        return;
    float scale;
    memcpy(&scale, t->scale->data + r / t->ne[1] * sizeof(scale), sizeof(scale));
    for (uint64_t i = 0; i < t->ne[0]; i++)
        dst[i] *= scale;
}
