#include "engine/cpu/vec.h"

#include "engine/cpu/kernels.h"

/*
 * Activations: rounded to int8 block by block, scale = the largest magnitude / 127, and stored
 * interleaved with the other columns of the tile (cpu.h). The sums that formats with an offset or
 * with minimums need are made here, once, in the form in which the kernels take them.
 */

/* Rounds @n (a multiple of 16) values to @q and returns the scale. */
static float quantize(const float *x, uint32_t n, int8_t *q) {
    vf most = vf_zero();

    for (uint32_t i = 0; i < n; i += LANES)
        most = vf_max(vf_abs(vf_load(x + i)), most);
    float max = vf_reduce_max(most);
    vf inverse = vf_set1(max > 0.0f ? 127.0f / max : 0.0f);
    vf limit = vf_set1(127.0f);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v = vf_min(vf_mul(vf_load(x + i), inverse), limit);

        vf_store_i8(q + i, vf_round(vf_max(v, vf_neg(limit))));
    }
    return max / 127.0f;
}

static int32_t sum16(const int8_t *q) {
    int32_t sum = 0;

    for (int i = 0; i < 16; i++)
        sum += q[i];
    return sum;
}

static int32_t pair(int32_t first, int32_t second) {
    return (int32_t)((uint32_t)(first & 0xFFFF) | (uint32_t)second << 16);
}

/* Stores @units numbers of 4 bytes as column @col. */
static void put_column(uint8_t *tile, uint32_t n, uint32_t col, const void *src, uint32_t units) {
    const uint8_t *s = src;

    tile += 4 * col;
    for (uint32_t i = 0; i < units; i++)
        memcpy(tile + (size_t)i * n * 4, s + 4 * i, 4);
}

static void transpose32(int8_t *q) {
    int8_t t[32];

    for (int i = 0; i < 32; i++)
        t[4 * (i % 8) + i / 8] = q[i];
    memcpy(q, t, 32);
}

INLINE void store_k(const float *x, uint32_t n_in, uint8_t *tile, uint32_t n, uint32_t col,
                    bool transposed) {
    union {
        int8_t q[256];
        int32_t i[AK_UNITS];
        float f[AK_UNITS];
    } u;

    for (uint32_t b = 0; b < n_in / 256; b++, x += 256, tile += (size_t)AK_UNITS * n * 4) {
        int32_t sum[16];

        u.f[AK_SCALE] = quantize(x, 256, u.q);
        for (int s = 0; s < 16; s++) {
            sum[s] = sum16(u.q + 16 * s);
            u.i[AK_NEG32_SUM16 + s] = -32 * sum[s];
        }
        for (int s = 0; s < 8; s++) {
            u.i[AK_NEG128_SUM32 + s] = -128 * (sum[2 * s] + sum[2 * s + 1]);
            u.i[AK_PAIRS16 + s] = pair(sum[2 * s], sum[2 * s + 1]);
        }
        for (int s = 0; s < 4; s++)
            u.i[AK_PAIRS32 + s] =
                pair(sum[4 * s] + sum[4 * s + 1], sum[4 * s + 2] + sum[4 * s + 3]);
        if (transposed)
            for (int s = 0; s < 8; s++)
                transpose32(u.q + 32 * s);
        put_column(tile, n, col, &u, AK_UNITS);
    }
}

void CPU_NAME(acts_store_k)(const float *x, uint32_t n_in, uint8_t *tile, uint32_t n,
                            uint32_t col) {
    store_k(x, n_in, tile, n, col, false);
}

void CPU_NAME(acts_store_kt)(const float *x, uint32_t n_in, uint8_t *tile, uint32_t n,
                             uint32_t col) {
    store_k(x, n_in, tile, n, col, true);
}

void CPU_NAME(acts_store_b)(const float *x, uint32_t n_in, uint8_t *tile, uint32_t n,
                            uint32_t col) {
    union {
        int8_t q[32];
        int32_t i[AB_UNITS];
        float f[AB_UNITS];
    } u;

    for (uint32_t b = 0; b < n_in / 32; b++, x += 32, tile += (size_t)AB_UNITS * n * 4) {
        u.f[AB_SCALE] = quantize(x, 32, u.q);
        int32_t sum = sum16(u.q) + sum16(u.q + 16);
        u.i[AB_NEG8_SUM] = -8 * sum;
        u.i[AB_NEG128_SUM] = -128 * sum;
        u.f[AB_SUM] = (float)sum;
        put_column(tile, n, col, &u, AB_UNITS);
    }
}

void CPU_NAME(acts_store_f)(const float *x, uint32_t n_in, uint8_t *tile, uint32_t n,
                            uint32_t col) {
    put_column(tile, n, col, x, n_in);
}
