/*
 * acts - writes rows of floats as activations (enum acts_kind, cpu.h). For BF16 they are rounded to
 * it, and in groups of four stand as 1, 3, 0, 2 (gemm_f.c); the last group is filled up with zeros.
 * The values of a block are rounded to int8:
 *
 *   scale = largest |x| / 127,  q = nearest integer of x (127 / largest |x|), ties to even
 *
 * A row is stored once and multiplied by many panels, so the sums of q that weights with an offset
 * or a minimum need are computed here, in the form in which the kernels load them.
 */

#include <assert.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/vec.h"

/* Rounds @n values, a multiple of 16, to @q. Returns their scale. */
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

/* Returns the sum of 16 values. */
static int32_t sum16(const int8_t *q) {
    int32_t sum = 0;

    for (int i = 0; i < 16; i++)
        sum += q[i];
    return sum;
}

/* Returns two int16 in one word, the first in the lower half. */
static int32_t acts_pair(int32_t first, int32_t second) {
    return (int32_t)((uint32_t)(first & 0xFFFF) | (uint32_t)second << 16);
}

/* Transposes 32 values in place: value 8 i + j moves to 4 j + i. */
static void transpose32(int8_t *q) {
    int8_t t[32];

    for (int i = 0; i < 32; i++)
        t[4 * (i % 8) + i / 8] = q[i];
    memcpy(q, t, 32);
}

/* Writes a row as ACTS_K, or as ACTS_KT if @transposed. @n_in: a multiple of 256. */
INLINE void store_k(const float *x, uint32_t n_in, uint8_t *row, bool transposed) {
    uint8_t *at = row + n_in;

    assert(n_in % 256 == 0);
    for (uint32_t b = 0; b < n_in / 256; b++, at += AK_UNITS * 4) {
        int8_t *q = (int8_t *)row + 256 * b;
        int32_t sum[16], u[AK_UNITS];
        float scale = quantize(x + 256 * b, 256, q);

        for (int s = 0; s < 16; s++) {
            sum[s] = sum16(q + 16 * s);
            u[AK_NEG32_SUM16 + s] = -32 * sum[s];
        }
        for (int s = 0; s < 8; s++) {
            u[AK_NEG128_SUM32 + s] = -128 * (sum[2 * s] + sum[2 * s + 1]);
            u[AK_PAIRS16 + s] = acts_pair(sum[2 * s], sum[2 * s + 1]);
        }
        for (int s = 0; s < 4; s++)
            u[AK_PAIRS32 + s] =
                acts_pair(sum[4 * s] + sum[4 * s + 1], sum[4 * s + 2] + sum[4 * s + 3]);
        memcpy(&u[AK_SCALE], &scale, 4);
        for (int s = 0; s < 2; s++) {
            float sum128 = 0;

            for (int i = 8 * s; i < 8 * s + 8; i++)
                sum128 += (float)sum[i];
            memcpy(&u[AK_SUM128 + s], &sum128, 4);
        }
        for (int s = 0; s < 8 && transposed; s++)
            transpose32(q + 32 * s);
        memcpy(at, u, sizeof(u));
    }
}

void CPU_NAME(acts_store_k)(const float *x, uint32_t n_in, uint8_t *row) {
    store_k(x, n_in, row, false);
}

void CPU_NAME(acts_store_kt)(const float *x, uint32_t n_in, uint8_t *row) {
    store_k(x, n_in, row, true);
}

/* Writes a row as ACTS_B or ACTS_B16. @units: AB_UNITS or AB16_UNITS, the numbers that are stored
 * of each block. @n_in: a multiple of 32. */
INLINE void store_b(const float *x, uint32_t n_in, uint8_t *row, uint32_t units) {
    uint8_t *at = row + n_in;

    assert(n_in % 32 == 0);
    for (uint32_t b = 0; b < n_in / 32; b++, at += units * 4) {
        int8_t *q = (int8_t *)row + 32 * b;
        float scale = quantize(x + 32 * b, 32, q);
        int32_t first = sum16(q), second = sum16(q + 16), u[AB16_UNITS];
        float sum = (float)(first + second);

        u[AB_NEG8_SUM] = -8 * (first + second);
        u[AB_NEG128_SUM] = -128 * (first + second);
        memcpy(&u[AB_SUM], &sum, 4);
        memcpy(&u[AB_SCALE], &scale, 4);
        u[AB_NEG16_SUM16] = -16 * first;
        u[AB_NEG16_SUM16 + 1] = -16 * second;
        memcpy(at, u, units * 4);
    }
}

void CPU_NAME(acts_store_b)(const float *x, uint32_t n_in, uint8_t *row) {
    store_b(x, n_in, row, AB_UNITS);
}

void CPU_NAME(acts_store_b16)(const float *x, uint32_t n_in, uint8_t *row) {
    store_b(x, n_in, row, AB16_UNITS);
}

void CPU_NAME(acts_store_f)(const float *x, uint32_t n_in, uint8_t *row) {
    memcpy(row, x, (size_t)n_in * 4);
}

void CPU_NAME(acts_store_h)(const float *x, uint32_t n_in, uint8_t *row) {
    static const uint8_t order[4] = {1, 3, 0, 2};

    for (uint32_t k = 0; k < n_in; k += 4, row += 16) {
        float group[4] = {0}, *out = (float *)row;

        memcpy(group, x + k, MIN(n_in - k, 4u) * sizeof(float));
        for (int i = 0; i < 4; i++)
            out[i] = mx_bf16_to_float(mx_float_to_bf16(group[order[i]]));
    }
}
