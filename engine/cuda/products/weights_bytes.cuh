#pragma once

/*
 * weights_bytes - products of bytes: a part of weights.cuh for families that multiply halves at
 * half rate (BYTES_FAMILY). Activations are codes of eight bits with a scale for 32 columns
 * (pack_args). A weight is code * s - m as in weights.cuh, but is not rounded itself:
 *
 *     y += x_scale * (s * sum of code * x_code) - m * sum of x
 *
 * The sum of a product of 32 columns is an integer, exact in any order. It starts at TO_INTEGER, so
 * that its bits are a float and no conversion is needed; one fused multiply-add takes TO_INTEGER
 * off and multiplies by s. Lane 4 g + t has scale and sum of row g of x, and gets those of its
 * sums' columns, rows 2t and 2t + 1, from their lanes: an expert's rows lie anywhere.
 * Q6_K has two scales in 32 columns: then the second multiply-add takes off what the first has left
 * of TO_INTEGER times both, within one unit of the larger scale.
 *
 * Other formats are multiplied as halves, as on other families.
 */

/* Extracts the nibbles of @w, combined with their upper bits in @high (see nibbles()), minus @zero,
 * as bytes. */
DEVICE void nibble_bytes(uint32_t w, uint32_t high, uint32_t high_mask, uint32_t zero,
                         uint32_t a[2]) {
    a[0] = (w & 0x0F0F0F0Fu) | (high & high_mask) | (high << 12 & high_mask << 8);
    a[1] = (w >> 4 & 0x0F0F0F0Fu) | (high >> 4 & high_mask) | (high & high_mask << 8);
    for (int row = 0; row < 2 && zero; row++)
        a[row] = (a[row] + (0x80u - zero) * 0x01010101u) ^ 0x80808080u;
}

/* Converts the nibbles @w of a block of IQ4 to the values of rows g and g + 8. */
DEVICE void iq4_bytes(uint32_t w, uint32_t a[2]) {
    uint32_t q0 = iq4_values(w & 0xFFFFu), q1 = iq4_values(w >> 16);

    a[0] = byte_permute(q0, q1, 0x6420u) ^ 0x80808080u;
    a[1] = byte_permute(q0, q1, 0x7531u) ^ 0x80808080u;
}

/* Extracts the codes of rows g and g + 8 of block @kb of 16 columns, one byte for each. */
template <int F> DEVICE void weights_bytes(const struct Tile<F> &t, int kb, uint32_t a[2]) {
    if constexpr (F == TILE_Q8_0)
        for (int row = 0; row < 2; row++)
            a[row] = word_of(t.v[kb / 2], kb % 2 * 2 + row) ^ 0x80808080u;
    else if constexpr (is_of_bytes(F))
        iq4_bytes(t.word(kb), a);
    else
        nibble_bytes(t.word(kb), t.upper(kb), high_mask(F), zero_code(F), a);
}

/* Returns the lower half of @v. */
DEVICE float low_half(uint32_t v) {
    return half_to_float((uint16_t)v);
}

/* Operands of 32 columns with codes of 8 bits. */
template <int F> struct Bytes {
    static constexpr int n_scales = F == TILE_Q6_K ? 2 : 1; /* scales of a row */

    uint32_t a[4];
    struct integers z;
    /* shift: -TO_INTEGER times s, or times the sum of both s */
    float s[n_scales][2], shift[2], m[2];

    MEMBER void take(const struct Tile<F> &t, int pair, bool many) {
        z.set(many);
        weights_bytes<F>(t, 2 * pair, a);
        weights_bytes<F>(t, 2 * pair + 1, a + 2);
        for (int i = 0; i < n_scales; i++) {
            uint32_t h[2], low[2];

            scales_of<F>(t, 2 * pair + i, h, low);
            /* the codes are scaled as by codes_of(): 2^-24, 2^-20 */
            for (int row = 0; row < 2; row++) {
                s[i][row] = low_half(h[row]) * (!is_of_bytes(F) && row ? 0x1p-20f : 0x1p-24f);
                shift[row] = i ? fmaf(s[i][row], -TO_INTEGER, shift[row]) : s[i][row] * -TO_INTEGER;
                if (has_mins(F))
                    m[row] = low_half(low[row]);
            }
        }
    }
    /* Adds the products; @x: the lane's activations of both blocks. */
    MEMBER void add(const struct vec4 &x, float c[4]) const {
        uint32_t from = threadIdx.x % 4 * 8;
        float v[n_scales][4], scale[2], total[2];

        for (uint32_t column = 0; column < 2; column++) {
            scale[column] = mx_float_of(lane_from(x.z, from + 4 * column));
            if (has_mins(F))
                total[column] = mx_float_of(lane_from(x.w, from + 4 * column));
        }

        if constexpr (n_scales == 1) {
            mma_bytes(v[0], z, a, x.x, x.y);
        } else {
            mma_bytes_16(v[0], z, a, x.x);
            mma_bytes_16(v[1], z, a + 2, x.y);
        }
        for (int j = 0; j < 4; j++) {
            float sum = shift[j / 2];

            for (int i = 0; i < n_scales; i++)
                sum = fmaf(v[i][j], s[i][j / 2], sum);
            c[j] = fmaf(sum, scale[j % 2], c[j]);
            if (has_mins(F))
                c[j] = fmaf(m[j / 2], total[j % 2], c[j]);
        }
    }
};

template <int F, bool B> struct PairOf { using type = struct Halves<F>; };

template <int F> struct PairOf<F, true> { using type = struct Bytes<F>; };

template <int F> using Pair = typename PairOf<F, has_bytes(F)>::type;
