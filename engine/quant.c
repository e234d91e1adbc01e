#include "engine/quant.h"

#include <assert.h>
#include <string.h>
#include "base/mathx.h"

const int8_t quant_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

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

/* The 32 five-bit numbers of Q5_0 and Q5_1: @high holds their fifth bits. */
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

/* Q4_K (@high NULL) and Q5_K: 64 values from each 32 bytes, low nibbles first. */
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

/* Eight values at a time: a byte chooses magnitudes from the grid, seven bits their signs. */
static void decode_iq2_xxs(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (unsigned k = 0; k < 8; k++) {
        const uint8_t *index = p + 2 + 8 * k;
        uint32_t a = get_u32(index + 4);
        float db = d * (0.5f + (float)(a >> 28)) * 0.25f;

        for (unsigned l = 0; l < 4; l++) {
            uint64_t grid = quant_iq2_xxs_grid[index[l]];
            uint8_t signs = quant_iq2_signs((a >> (7 * l)) & 127);

            for (unsigned j = 0; j < 8; j++) {
                float v = db * (float)((grid >> (8 * j)) & 255);

                y[32 * k + 8 * l + j] = (signs >> j) & 1 ? -v : v;
            }
        }
    }
}

static void decode_iq4_nl(const uint8_t *p, float *y) {
    float d = get_half(p);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)quant_iq4_values[p[2 + j] & 15];
        y[j + 16] = d * (float)quant_iq4_values[p[2 + j] >> 4];
    }
}

/* Scales of 32 values have 6 bits, in two places; values are indices into quant_iq4_values. */
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

/* By number of the type; bytes 0: not a type we read. */
static const struct {
    uint16_t n, bytes;
    void (*decode)(const uint8_t *block, float *y);
} formats[] = {
    [TENSOR_F32] = {1, 4, decode_f32},         [TENSOR_F16] = {1, 2, decode_f16},
    [TENSOR_BF16] = {1, 2, decode_bf16},       [TENSOR_Q4_0] = {32, 18, decode_q4_0},
    [TENSOR_Q4_1] = {32, 20, decode_q4_1},     [TENSOR_Q5_0] = {32, 22, decode_q5_0},
    [TENSOR_Q5_1] = {32, 24, decode_q5_1},     [TENSOR_Q8_0] = {32, 34, decode_q8_0},
    [TENSOR_Q2_K] = {256, 84, decode_q2_k},    [TENSOR_Q3_K] = {256, 110, decode_q3_k},
    [TENSOR_Q4_K] = {256, 144, decode_q4_k},   [TENSOR_Q5_K] = {256, 176, decode_q5_k},
    [TENSOR_Q6_K] = {256, 210, decode_q6_k},   [TENSOR_IQ2_XXS] = {256, 66, decode_iq2_xxs},
    [TENSOR_IQ4_NL] = {32, 18, decode_iq4_nl}, [TENSOR_IQ4_XS] = {256, 136, decode_iq4_xs},
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
}
