#include "engine/quant.h"

#include <assert.h>
#include <string.h>

const int8_t quant_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

const int8_t quant_fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static uint16_t get_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get_u32(const uint8_t *p) {
    return get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

static float get_half(const uint8_t *p) {
    return mx_half_to_float(get_u16(p));
}

static void decode_f32(const uint8_t *p, float *y) {
    memcpy(y, p, 4);
}

static void decode_f16(const uint8_t *p, float *y) {
    *y = get_half(p);
}

static void decode_bf16(const uint8_t *p, float *y) {
    *y = mx_bf16_to_float(get_u16(p));
}

static void decode_q4_0(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((p[2 + j] & 15) - 8);
        y[j + 16] = d * (float)((p[2 + j] >> 4) - 8);
    }
}

static void decode_q4_1(const uint8_t *p, float *y) {
    float d = get_half(p), m = get_half(p + 2);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(p[4 + j] & 15) + m;
        y[j + 16] = d * (float)(p[4 + j] >> 4) + m;
    }
}

/* Unpacks the 32 five-bit numbers of Q5_0 and Q5_1; @high has their fifth bits. */
static void unpack_q5(const uint8_t *qs, uint32_t high, int q[32]) {
    for (int j = 0; j < 16; j++) {
        q[j] = (qs[j] & 15) | (int)((high >> j) & 1) << 4;
        q[j + 16] = (qs[j] >> 4) | (int)((high >> (j + 16)) & 1) << 4;
    }
}

static void decode_q5_0(const uint8_t *p, float *y) {
    float d = get_half(p);
    int q[32];

    unpack_q5(p + 6, get_u32(p + 2), q);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(q[j] - 16);
}

static void decode_q5_1(const uint8_t *p, float *y) {
    float d = get_half(p), m = get_half(p + 2);
    int q[32];

    unpack_q5(p + 8, get_u32(p + 4), q);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)q[j] + m;
}

static void decode_q8_0(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)p[2 + j];
}

static void decode_q2_k(const uint8_t *p, float *y) {
    const uint8_t *qs = p + 16;
    float d = get_half(p + 80), dmin = get_half(p + 82);

    for (int i = 0; i < 256; i++) {
        int half = i / 128, pair = i / 32 % 4, l = i % 32;
        uint8_t s = p[i / 16];
        int q = (qs[32 * half + l] >> (2 * pair)) & 3;

        y[i] = d * (float)(s & 15) * (float)q - dmin * (float)(s >> 4);
    }
}

static void decode_q3_k(const uint8_t *p, float *y) {
    const uint8_t *hmask = p, *qs = p + 32, *scales = p + 96;
    float d = get_half(p + 108);

    for (int i = 0; i < 256; i++) {
        int half = i / 128, pair = i / 32 % 4, l = i % 32;
        int q = (qs[32 * half + l] >> (2 * pair)) & 3;

        q -= (hmask[l] >> (4 * half + pair)) & 1 ? 0 : 4;
        y[i] = d * (float)quant_q3k_scale(scales, (unsigned)i / 16) * (float)q;
    }
}

/* Decodes Q4_K (@high NULL) and Q5_K: 64 values from each 32 bytes, low nibbles first. */
static void decode_k45(const uint8_t *p, const uint8_t *high, const uint8_t *qs, float *y) {
    float d = get_half(p), dmin = get_half(p + 2);

    for (unsigned s = 0; s < 8; s++) {
        uint8_t scale, min;

        quant_k4_scale(p + 4, s, &scale, &min);
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

static void decode_q6_k(const uint8_t *p, float *y) {
    float d = get_half(p + 208);

    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i / 32 % 4, l = i % 32;
        int low = p[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2));
        int high = p[128 + 32 * half + l] >> (2 * quarter);
        int q = ((low & 15) | (high & 3) << 4) - 32;

        y[i] = d * (float)(int8_t)p[192 + i / 16] * (float)q;
    }
}

/* Writes eight values of an IQ2 format; the grid's @entry has two bits for each magnitude. */
static void put_iq2(float *y, float d, unsigned entry, unsigned signs) {
    static const float size[4] = {8, 25, 43};

    for (unsigned j = 0; j < 8; j++) {
        float v = d * size[(entry >> (2 * j)) & 3];

        y[j] = (signs >> j) & 1 ? -v : v;
    }
}

/* Writes four values of an IQ3 format, three bits each. */
static void put_iq3(float *y, float d, const float size[8], unsigned entry, unsigned signs) {
    for (unsigned j = 0; j < 4; j++) {
        float v = d * size[(entry >> (3 * j)) & 7];

        y[j] = (signs >> j) & 1 ? -v : v;
    }
}

/* Writes eight values of an IQ1 format: -1, 0 or 1, plus @delta. */
static void put_iq1(float *y, float d, unsigned entry, float delta) {
    for (unsigned j = 0; j < 8; j++)
        y[j] = d * ((float)((entry >> (2 * j)) & 3) - 1 + delta);
}

/* In the decoders of IQ formats, r is the number of one of the 32 runs of 8 values. */
static void decode_iq2_xxs(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (unsigned r = 0; r < 32; r++) {
        const uint8_t *index = p + 2 + 8 * (r / 4);
        uint32_t a = get_u32(index + 4);

        put_iq2(y + 8 * r, d * (0.5f + (float)(a >> 28)) * 0.25f, quant_grids.iq2_xxs[index[r % 4]],
                quant_iq_signs((a >> (7 * (r % 4))) & 127));
    }
}

static void decode_iq2_xs(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (unsigned r = 0; r < 32; r++) {
        unsigned q = get_u16(p + 2 + 2 * r), s = (p[66 + r / 4] >> (r % 4 / 2 * 4)) & 15;

        put_iq2(y + 8 * r, d * (0.5f + (float)s) * 0.25f, quant_grids.iq2_xs[q & 511],
                quant_iq_signs(q >> 9));
    }
}

static void decode_iq2_s(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (unsigned r = 0; r < 32; r++) {
        unsigned high = (p[66 + r / 4] >> (2 * (r % 4))) & 3;
        unsigned s = (p[74 + r / 4] >> (r % 4 / 2 * 4)) & 15;

        put_iq2(y + 8 * r, d * (0.5f + (float)s) * 0.25f, quant_grids.iq2_s[p[2 + r] | high << 8],
                p[34 + r]);
    }
}

static void decode_iq3_xxs(const uint8_t *p, float *y) {
    static const float size[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    float d = get_half(p);

    for (unsigned r = 0; r < 32; r++) {
        uint32_t a = get_u32(p + 66 + r / 4 * 4);
        float db = d * (0.5f + (float)(a >> 28)) * 0.5f;
        unsigned signs = quant_iq_signs((a >> (7 * (r % 4))) & 127);

        put_iq3(y + 8 * r, db, size, quant_grids.iq3_xxs[p[2 + 2 * r]], signs);
        put_iq3(y + 8 * r + 4, db, size, quant_grids.iq3_xxs[p[3 + 2 * r]], signs >> 4);
    }
}

static void decode_iq3_s(const uint8_t *p, float *y) {
    static const float size[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    float d = get_half(p);

    for (unsigned r = 0; r < 32; r++) {
        unsigned high = p[66 + r / 4] >> (2 * (r % 4)),
                 s = (p[106 + r / 8] >> (r / 4 % 2 * 4)) & 15;
        float db = d * (float)(1 + 2 * s);

        put_iq3(y + 8 * r, db, size, quant_grids.iq3_s[p[2 + 2 * r] | (high & 1) << 8], p[74 + r]);
        put_iq3(y + 8 * r + 4, db, size, quant_grids.iq3_s[p[3 + 2 * r] | (high & 2) << 7],
                p[74 + r] >> 4);
    }
}

static void decode_iq1_s(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (unsigned r = 0; r < 32; r++) {
        unsigned qh = get_u16(p + 34 + r / 4 * 2), high = (qh >> (3 * (r % 4))) & 7;

        put_iq1(y + 8 * r, d * (float)(2 * ((qh >> 12) & 7) + 1),
                quant_grids.iq1[p[2 + r] | high << 8], qh & 0x8000 ? -0.125f : 0.125f);
    }
}

static void decode_iq1_m(const uint8_t *p, float *y) {
    float d = mx_half_to_float(blk_iq_half(TENSOR_IQ1_M, p));

    for (unsigned r = 0; r < 32; r++) {
        unsigned high = p[32 + r / 2] >> (r % 2 * 4);
        unsigned s = (get_u16(p + 48 + r / 8 * 2) >> (r / 2 % 4 * 3)) & 7;

        put_iq1(y + 8 * r, d * (float)(2 * s + 1), quant_grids.iq1[p[r] | (high & 7) << 8],
                high & 8 ? -0.125f : 0.125f);
    }
}

/* Returns digit @n, minus one, of the five base-3 digits that a byte has as a fraction of 243. */
static float trit(uint8_t q, unsigned n) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};

    return (float)((uint8_t)(q * power[n]) * 3 >> 8) - 1;
}

static void decode_tq1_0(const uint8_t *p, float *y) {
    float d = get_half(p + 52);

    for (unsigned i = 0; i < 160; i++)
        y[i] = d * trit(p[i % 32], i / 32);
    for (unsigned i = 0; i < 80; i++)
        y[160 + i] = d * trit(p[32 + i % 16], i / 16);
    for (unsigned i = 0; i < 16; i++)
        y[240 + i] = d * trit(p[48 + i % 4], i / 4);
}

static void decode_tq2_0(const uint8_t *p, float *y) {
    float d = get_half(p + 64);

    for (unsigned i = 0; i < 256; i++)
        y[i] = d * ((float)((p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3) - 1);
}

static void decode_iq4_nl(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)quant_iq4_values[p[2 + j] & 15];
        y[j + 16] = d * (float)quant_iq4_values[p[2 + j] >> 4];
    }
}

/* Decodes IQ4_XS: scales of 32 values have 6 bits in two places; values are indices into
 * quant_iq4_values. */
static void decode_iq4_xs(const uint8_t *p, float *y) {
    float d = get_half(p);
    uint16_t high = get_u16(p + 2);

    for (int b = 0; b < 8; b++) {
        int scale = ((p[4 + b / 2] >> (4 * (b % 2))) & 15) | ((high >> (2 * b)) & 3) << 4;
        float ds = d * (float)(scale - 32);

        for (int j = 0; j < 16; j++) {
            uint8_t q = p[8 + 16 * b + j];

            y[32 * b + j] = ds * (float)quant_iq4_values[q & 15];
            y[32 * b + 16 + j] = ds * (float)quant_iq4_values[q >> 4];
        }
    }
}

static void decode_mxfp4(const uint8_t *p, float *y) {
    float d = mx_e8m0_half(p[0]);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)quant_fp4_values[p[1 + j] & 15];
        y[j + 16] = d * (float)quant_fp4_values[p[1 + j] >> 4];
    }
}

/* Decodes NVFP4 without the scale of the tensor, which is another tensor (tensor.scale). */
static void decode_nvfp4(const uint8_t *p, float *y) {
    for (int i = 0; i < 64; i++) {
        uint8_t q = p[4 + i / 16 * 8 + i % 8];

        y[i] = mx_ue4m3_half(p[i / 16]) * (float)quant_fp4_values[i % 16 < 8 ? q & 15 : q >> 4];
    }
}

/* Indexed by tensor type; bytes 0: the type is not supported. */
static const struct {
    uint16_t n, bytes;
    void (*decode)(const uint8_t *block, float *y);
} formats[] = {
    [TENSOR_F32] = {1, 4, decode_f32},
    [TENSOR_F16] = {1, 2, decode_f16},
    [TENSOR_BF16] = {1, 2, decode_bf16},
    [TENSOR_Q4_0] = {32, 18, decode_q4_0},
    [TENSOR_Q4_1] = {32, 20, decode_q4_1},
    [TENSOR_Q5_0] = {32, 22, decode_q5_0},
    [TENSOR_Q5_1] = {32, 24, decode_q5_1},
    [TENSOR_Q8_0] = {32, 34, decode_q8_0},
    [TENSOR_Q2_K] = {256, 84, decode_q2_k},
    [TENSOR_Q3_K] = {256, 110, decode_q3_k},
    [TENSOR_Q4_K] = {256, 144, decode_q4_k},
    [TENSOR_Q5_K] = {256, 176, decode_q5_k},
    [TENSOR_Q6_K] = {256, 210, decode_q6_k},
    [TENSOR_IQ2_XXS] = {256, 66, decode_iq2_xxs},
    [TENSOR_IQ4_NL] = {32, 18, decode_iq4_nl},
    [TENSOR_IQ4_XS] = {256, 136, decode_iq4_xs},
    [TENSOR_MXFP4] = {32, 17, decode_mxfp4},
    [TENSOR_NVFP4] = {64, 36, decode_nvfp4},
    [TENSOR_IQ1_S] = {256, 50, decode_iq1_s},
    [TENSOR_IQ1_M] = {256, 56, decode_iq1_m},
    [TENSOR_IQ2_XS] = {256, 74, decode_iq2_xs},
    [TENSOR_IQ2_S] = {256, 82, decode_iq2_s},
    [TENSOR_IQ3_XXS] = {256, 98, decode_iq3_xxs},
    [TENSOR_IQ3_S] = {256, 110, decode_iq3_s},
    [TENSOR_TQ1_0] = {256, 54, decode_tq1_0},
    [TENSOR_TQ2_0] = {256, 66, decode_tq2_0},
};

void quant_decode(enum tensor_type type, const void *src, float *dst, size_t n) {
    const uint8_t *p = src;

    assert((size_t)type < ARRAY_SIZE(formats) && formats[type].bytes);
    assert(n % formats[type].n == 0);
    for (size_t i = 0; i < n; i += formats[type].n, p += formats[type].bytes)
        formats[type].decode(p, dst + i);
}

void quant_decode_row(const struct tensor *t, uint64_t r, float *dst) {
    quant_decode(t->format->type, t->data + r * t->row_bytes, dst, t->ne[0]);
    if (!t->scale)
        return;
    float scale;
    memcpy(&scale, t->scale->data + r / t->ne[1] * sizeof(scale), sizeof(scale));
    for (uint64_t i = 0; i < t->ne[0]; i++)
        dst[i] *= scale;
}
