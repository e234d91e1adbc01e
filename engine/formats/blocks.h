#pragma once

/*
 * blocks - the value of one weight in a block of a GGUF tensor, for host and device.
 * engine/formats/quant decodes whole blocks, by these functions or by faster ones that round in the
 * same places (tests/engine/test_quant.c, tests/engine/cuda/test_layout.c). It is slow, and meant
 * for repacking at load and for single rows of the embedding.
 */

#include "base/gguf.h"
#include "base/mathx.h"

/* Grids of the IQ formats: each entry is a vector of magnitudes, the first one in the lowest bits.
 * IQ1 and IQ2 have eight of two bits (8, 25, 43 in IQ2; value + 1 in IQ1), IQ3 four of three bits
 * (4, 12, ..., 52, 62 in IQ3_XXS; 1, 3, ..., 15 in IQ3_S). */
struct blk_grids {
    uint16_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq3_xxs[256], iq3_s[512], iq1[2048];
};

/* Returns the little-endian number at @p, which need not be aligned. */
MX_FN uint16_t blk_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Returns the half at @p as a float. */
MX_FN float blk_half(const uint8_t *p) {
    return mx_half_to_float(blk_u16(p));
}

/* Returns nibble @i of the 32 in the 16 bytes at @q (Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL): first the
 * lower halves of all bytes, then the upper ones. */
MX_FN int blk_nibble(const uint8_t *q, unsigned i) {
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

/* Sets scale and minimum of sub-block @j of Q4_K and Q5_K from the 12 bytes at @s. */
MX_FN void blk_k4_scale(const uint8_t *s, unsigned j, int *scale, int *min) {
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

/* Returns the code of value @i of a Q4_K (0..15) or Q5_K block (0..31). */
MX_FN int blk_k45_code(const uint8_t *b, bool five, unsigned i) {
    const uint8_t *qs = b + (five ? 48 : 16);
    int q = (qs[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15;

    return five ? q | ((b[16 + i % 32] >> (i / 32)) & 1) << 4 : q;
}

/* Returns the code of value @i of a Q6_K block, 0..63. */
MX_FN int blk_q6_code(const uint8_t *b, unsigned i) {
    unsigned half = i / 128, quarter = i / 32 % 4, l = i % 32;
    int low = b[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2));
    int high = b[128 + 32 * half + l] >> (2 * quarter);

    return (low & 15) | (high & 3) << 4;
}

/* Returns the scale of sub-block @j (0..7) of an IQ4_XS block, -32..31. */
MX_FN int blk_iq4_xs_scale(const uint8_t *b, unsigned j) {
    return (((b[4 + j / 2] >> (4 * (j % 2))) & 15) | ((blk_u16(b + 2) >> (2 * j)) & 3) << 4) - 32;
}

/* Returns the value of code @q of IQ4_NL and IQ4_XS. The table is in constants that a device
 * encodes in instructions. */
MX_FN int blk_iq4_value(int q) {
    const uint64_t low = 0xF6EADDCFBFAD9881u, high = 0x7159453526190D01u;

    return (int8_t)((q < 8 ? low : high) >> (8 * (q & 7)));
}

/* Returns the value of code @q of MXFP4 and NVFP4, doubled, so that it is an integer. */
MX_FN int blk_fp4_value(int q) {
    const uint64_t low = 0x0C08060403020100u, high = 0xF4F8FAFCFDFEFF00u;

    return (int8_t)((q < 8 ? low : high) >> (8 * (q & 7)));
}

/* Returns the code of value @i of a Q2_K block, 0..3. */
MX_FN int blk_q2_code(const uint8_t *b, unsigned i) {
    return b[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
}

/* Returns value @i of a Q2_K block: d s q - dmin m, where s and m belong to its 16 values. */
MX_FN float blk_q2_k(const uint8_t *b, unsigned i) {
    int s = b[i / 16];
    float scaled = blk_half(b + 80) * (float)(s & 15) * (float)blk_q2_code(b, i);

    return scaled - blk_half(b + 82) * (float)(s >> 4);
}

/* Returns the code of value @i of a Q3_K block, 0..7, where 4 is zero. */
MX_FN int blk_q3_code(const uint8_t *b, unsigned i) {
    unsigned half = i / 128, pair = i / 32 % 4, l = i % 32;
    int low = b[32 + 32 * half + l] >> (2 * pair) & 3;

    return low | (b[l] >> (4 * half + pair) & 1) << 2;
}

/* Returns the scale of sub-block @j (0..15) of a Q3_K block, -32..31. */
MX_FN int blk_q3_scale(const uint8_t *b, unsigned j) {
    const uint8_t *s = b + 96;
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, high = s[8 + j % 4] >> (2 * (j / 4)) & 3;

    return (low | high << 4) - 32;
}

/* Returns value @i of a Q3_K block: d s (q - 4). */
MX_FN float blk_q3_k(const uint8_t *b, unsigned i) {
    return blk_half(b + 108) * (float)blk_q3_scale(b, i / 16) * (float)(blk_q3_code(b, i) - 4);
}

/* The IQ formats with grids have a common form: value = d (2 s + 1) unit v. The scale s belongs to
 * 16 or 32 values. v is an element of a vector of the grid, which has four elements in IQ3 and
 * eight in the others; it has a sign in IQ2 and IQ3. All products but the last are exact in single
 * precision. */

/* Returns true if the vectors of the grid of @type have four elements. */
MX_FN bool blk_is_iq3(uint32_t type) {
    return type == TENSOR_IQ3_XXS || type == TENSOR_IQ3_S;
}

/* Returns the bits of d, which IQ1_M has in pieces, in the upper bits of its scales. */
MX_FN uint16_t blk_iq_half(uint32_t type, const uint8_t *b) {
    if (type == TENSOR_IQ1_M)
        return (uint16_t)(b[49] >> 4 | (b[51] & 0xF0) | (b[53] & 0xF0) << 4 | (b[55] & 0xF0) << 8);
    return blk_u16(b);
}

/* Returns the magnitude of code @c of IQ2. */
MX_FN int blk_iq2_size(unsigned c) {
    return (int)(8 + 17 * c + c / 2);
}

/* Returns the scale s of the eight values of group @r (0..31). */
MX_FN unsigned blk_iq_scale(uint32_t type, const uint8_t *b, unsigned r) {
    switch (type) {
    case TENSOR_IQ1_S:
        return b[35 + r / 4 * 2] >> 4 & 7;
    case TENSOR_IQ1_M:
        return blk_u16(b + 48 + r / 8 * 2) >> (r / 2 % 4 * 3) & 7;
    case TENSOR_IQ2_XXS:
        return b[9 + r / 4 * 8] >> 4;
    case TENSOR_IQ2_XS:
        return b[66 + r / 4] >> (r % 4 / 2 * 4) & 15;
    case TENSOR_IQ2_S:
        return b[74 + r / 4] >> (r % 4 / 2 * 4) & 15;
    case TENSOR_IQ3_XXS:
        return b[69 + r / 4 * 4] >> 4;
    default: /* IQ3_S */
        return b[106 + r / 8] >> (r / 4 % 2 * 4) & 15;
    }
}

/* Returns the index in the grid of the vector of group @r: of four values in IQ3 (0..63), else of
 * eight (0..31). */
MX_FN unsigned blk_iq_index(uint32_t type, const uint8_t *b, unsigned r) {
    switch (type) {
    case TENSOR_IQ1_S:
        return b[2 + r] | (blk_u16(b + 34 + r / 4 * 2) >> (3 * (r % 4)) & 7u) << 8;
    case TENSOR_IQ1_M:
        return b[r] | (b[32 + r / 2] >> (r % 2 * 4) & 7u) << 8;
    case TENSOR_IQ2_XXS:
        return b[2 + 8 * (r / 4) + r % 4];
    case TENSOR_IQ2_XS:
        return blk_u16(b + 2 + 2 * r) & 511u;
    case TENSOR_IQ2_S:
        return b[2 + r] | (b[66 + r / 4] >> (2 * (r % 4)) & 3u) << 8;
    case TENSOR_IQ3_XXS:
        return b[2 + r];
    default: /* IQ3_S */
        return b[2 + r] | (b[66 + r / 8] >> (r % 8) & 1u) << 8;
    }
}

/* Returns eight sign bits from a 7-bit code: bit 7 makes the number of set bits even. */
MX_FN unsigned blk_iq_even(unsigned code) {
    unsigned parity = code ^ code >> 4;

    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return code | (parity & 1) << 7;
}

/* Returns a bit for each of the eight values of group @r: set if the value is negative (IQ2, IQ3).
 * In IQ1 all bits are equal, and set if an eighth is subtracted from each value, not added. */
MX_FN unsigned blk_iq_signs(uint32_t type, const uint8_t *b, unsigned r) {
    uint32_t a;

    switch (type) {
    case TENSOR_IQ1_S:
        return b[35 + r / 4 * 2] & 0x80 ? 0xFF : 0;
    case TENSOR_IQ1_M:
        return b[32 + r / 2] >> (r % 2 * 4) & 8 ? 0xFF : 0;
    case TENSOR_IQ2_XS:
        return blk_iq_even(b[3 + 2 * r] >> 1);
    case TENSOR_IQ2_S:
        return b[34 + r];
    case TENSOR_IQ3_S:
        return b[74 + r];
    default: /* IQ2_XXS, IQ3_XXS: four codes of seven bits in a word */
        b += type == TENSOR_IQ2_XXS ? 6 + 8 * (r / 4) : 66 + 4 * (r / 4);
        a = blk_u16(b) | (uint32_t)blk_u16(b + 2) << 16;
        return blk_iq_even(a >> (7 * (r % 4)) & 127);
    }
}

/* Returns the grid of @type, which must have one. */
MX_FN const uint16_t *blk_iq_grid(uint32_t type, const struct blk_grids *g) {
    switch (type) {
    case TENSOR_IQ2_XXS:
        return g->iq2_xxs;
    case TENSOR_IQ2_XS:
        return g->iq2_xs;
    case TENSOR_IQ2_S:
        return g->iq2_s;
    case TENSOR_IQ3_XXS:
        return g->iq3_xxs;
    case TENSOR_IQ3_S:
        return g->iq3_s;
    default:
        return g->iq1;
    }
}

/* Returns value @i of a block of a type with a grid. */
MX_FN float blk_iq(uint32_t type, const uint8_t *b, unsigned i, const struct blk_grids *g) {
    bool minus = blk_iq_signs(type, b, i / 8) >> (i % 8) & 1;
    float d =
        mx_half_to_float(blk_iq_half(type, b)) * (float)(2 * blk_iq_scale(type, b, i / 8) + 1);
    unsigned values = blk_is_iq3(type) ? 4 : 8, bits = blk_is_iq3(type) ? 3 : 2;
    unsigned entry = blk_iq_grid(type, g)[blk_iq_index(type, b, i / values)];
    unsigned c = entry >> (i % values * bits) & ((1u << bits) - 1);
    float v;

    if (type == TENSOR_IQ1_S || type == TENSOR_IQ1_M)
        return d * ((float)c - 1 + (minus ? -0.125f : 0.125f));
    if (type == TENSOR_IQ3_S)
        v = d * (float)(1 + 2 * c);
    else if (type == TENSOR_IQ3_XXS)
        v = d * 0.25f * (float)(4 + 8 * c + c / 7 * 2);
    else
        v = d * 0.125f * (float)blk_iq2_size(c);
    return minus ? -v : v;
}

/* Returns the code of value @i of TQ1_0, 0 to 2. A byte holds five base-3 digits as a fraction of
 * 243, scaled to 256. */
MX_FN int blk_tq1_code(const uint8_t *b, unsigned i) {
    unsigned at = 48 + i % 4, n = (i - 240) / 4, power = 1;

    if (i < 160) {
        at = i % 32;
        n = i / 32;
    } else if (i < 240) {
        at = 32 + i % 16;
        n = (i - 160) / 16;
    }
    for (unsigned k = 0; k < n; k++)
        power *= 3;
    return (int)(((b[at] * power) & 255) * 3 >> 8);
}

/* Returns the code of value @i of TQ2_0, 0 to 2; a byte holds four. */
MX_FN int blk_tq2_code(const uint8_t *b, unsigned i) {
    return (b[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
}

/* Returns the code of value @i of an NVFP4 block (64 values), 0..15. */
MX_FN int blk_nvfp4_code(const uint8_t *b, unsigned i) {
    uint8_t q = b[4 + i / 16 * 8 + i % 8];

    return i % 16 < 8 ? q & 15 : q >> 4;
}

/* Returns value @i of an NVFP4 block: the scale of its 16 values times the value of its code. */
MX_FN float blk_nvfp4(const uint8_t *b, unsigned i) {
    return mx_ue4m3_half(b[i / 16]) * (float)blk_fp4_value(blk_nvfp4_code(b, i));
}

/* Returns value @i of a Q4_K or (@five) Q5_K block: d s q - dmin m, where s and m belong to its 32
 * values. */
MX_FN float blk_k45(const uint8_t *b, bool five, unsigned i) {
    int scale, min;

    blk_k4_scale(b + 4, i / 32, &scale, &min);
    float scaled = blk_half(b) * (float)scale * (float)blk_k45_code(b, five, i);
    return scaled - blk_half(b + 2) * (float)min;
}

/* Returns value @i of an IQ4_XS block: d s v, where s belongs to its 32 values. */
MX_FN float blk_iq4_xs(const uint8_t *b, unsigned i) {
    int q = blk_nibble(b + 8 + 16 * (i / 32), i % 32);

    return blk_half(b) * (float)blk_iq4_xs_scale(b, i / 32) * (float)blk_iq4_value(q);
}

/* Returns the code of value @i of Q5_0 and Q5_1, 0..31. The fifth bits are at @high, followed by
 * the nibbles. */
MX_FN int blk_q5_code(const uint8_t *high, unsigned i) {
    return blk_nibble(high + 4, i) | ((high[i / 8] >> (i % 8)) & 1) << 4;
}

/* Returns value @i of a Q5_1 block (@with_min: d q + m) or a Q5_0 block (d (q - 16)). */
MX_FN float blk_q5(const uint8_t *b, unsigned i, bool with_min) {
    int q = blk_q5_code(b + (with_min ? 4 : 2), i);

    if (with_min)
        return blk_half(b) * (float)q + blk_half(b + 2);
    return blk_half(b) * (float)(q - 16);
}

/* Returns value @i of the block at @b, for every type that weft reads; @g is used by types with a
 * grid. */
MX_FN float blk_value(uint32_t type, const uint8_t *b, unsigned i, const struct blk_grids *g) {
    switch (type) {
    case TENSOR_F32:
        return mx_float_of(blk_u16(b) | (uint32_t)blk_u16(b + 2) << 16);
    case TENSOR_F16:
        return blk_half(b);
    case TENSOR_BF16:
        return mx_bf16_to_float(blk_u16(b));
    case TENSOR_Q4_0:
        return blk_half(b) * (float)(blk_nibble(b + 2, i) - 8);
    case TENSOR_Q4_1:
        return blk_half(b) * (float)blk_nibble(b + 4, i) + blk_half(b + 2);
    case TENSOR_Q5_0:
        return blk_q5(b, i, false);
    case TENSOR_Q5_1:
        return blk_q5(b, i, true);
    case TENSOR_Q8_0:
        return blk_half(b) * (float)(int8_t)b[2 + i];
    case TENSOR_Q2_K:
        return blk_q2_k(b, i);
    case TENSOR_Q3_K:
        return blk_q3_k(b, i);
    case TENSOR_Q4_K:
        return blk_k45(b, false, i);
    case TENSOR_Q5_K:
        return blk_k45(b, true, i);
    case TENSOR_Q6_K:
        return blk_half(b + 208) * (float)(int8_t)b[192 + i / 16] * (float)(blk_q6_code(b, i) - 32);
    case TENSOR_IQ1_S:
    case TENSOR_IQ1_M:
    case TENSOR_IQ2_XXS:
    case TENSOR_IQ2_XS:
    case TENSOR_IQ2_S:
    case TENSOR_IQ3_XXS:
    case TENSOR_IQ3_S:
        return blk_iq(type, b, i, g);
    case TENSOR_TQ1_0:
        return blk_half(b + 52) * (float)(blk_tq1_code(b, i) - 1);
    case TENSOR_TQ2_0:
        return blk_half(b + 64) * (float)(blk_tq2_code(b, i) - 1);
    case TENSOR_NVFP4:
        return blk_nvfp4(b, i);
    case TENSOR_IQ4_NL:
        return blk_half(b) * (float)blk_iq4_value(blk_nibble(b + 2, i));
    case TENSOR_IQ4_XS:
        return blk_iq4_xs(b, i);
    case TENSOR_MXFP4:
        return mx_e8m0_half(b[0]) * (float)blk_fp4_value(blk_nibble(b + 1, i));
    default:
        return 0;
    }
}
