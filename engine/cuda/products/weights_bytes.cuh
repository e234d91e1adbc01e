#pragma once

/*
 * weights_bytes - products of bytes: a part of weights.cuh for families that multiply halves at
 * half rate (BYTES_FAMILY). Activations are codes of eight bits with a scale for 128 columns
 * (pack_args). A weight is code * s - m as in weights.cuh, but is not rounded itself:
 *
 *     y += x_scale * (s * sum of code * x_code) - m * sum of x
 *
 * The sum of a product of 32 columns is an integer, exact in any order. Lane 4 g + t has scale and
 * sum of row g of x, and gets those of its sums' columns, rows 2t and 2t + 1, from their lanes: an
 * expert's rows lie anywhere.
 *
 * Integers   Formats whose s is d times an integer: the sums of a part of 128 columns, times those
 *     integers, are added up as integers, below 2^28. At the end of the part they are converted and
 *     multiplied by d and x_scale. The minima of the part's four groups are one product of halves,
 *     in front of that: m * 32 by the means of x, each as the sum of two halves.
 * Bytes      Formats with a scale of their own for 32 columns. The integer starts at TO_INTEGER, so
 *     that its bits are a float and no conversion is needed; one fused multiply-add takes
 *     TO_INTEGER off and multiplies by s.
 *
 * Other formats are multiplied as halves, as on other families.
 */

/* Extracts the nibbles of @w, combined with their upper bits in @high (see weights_nibbles()), as
 * bytes. */
DEVICE void nibble_bytes(uint32_t w, uint32_t high, uint32_t high_mask, uint32_t a[2]) {
    a[0] = (w & 0x0F0F0F0Fu) | (high & high_mask) | (high << 12 & high_mask << 8);
    a[1] = (w >> 4 & 0x0F0F0F0Fu) | (high >> 4 & high_mask) | (high & high_mask << 8);
}

/* Returns the code of a weight of 0 in row g (@row 0) or g + 8. */
template <int F> DEVICE uint32_t zero_of_row(const struct Tile<F> &t, int row) {
    if constexpr (has_zeros(F))
        return t.zero[row];
    else
        return zero_code(F);
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
        nibble_bytes(t.word(kb), t.upper(kb), high_mask(F), a);
    if constexpr (TILE_IS(F, NIBBLE) && (zero_code(F) || has_zeros(F)))
        for (int row = 0; row < 2; row++)
            a[row] = (a[row] + (0x80u - zero_of_row<F>(t, row)) * 0x01010101u) ^ 0x80808080u;
}

/* Returns the lower half of @v. */
DEVICE float low_half(uint32_t v) {
    return half_to_float((uint16_t)v);
}

/* Returns what undoes the scaling of d, or of s, of row g (@row 0) or g + 8, which codes_of()
 * needs: 2^-24, or 2^-20 for nibbles that are four bits higher. */
template <int F> DEVICE constexpr float code_unit(int row) {
    return !is_of_bytes(F) && row ? 0x1p-20f : 0x1p-24f;
}

/* Returns word @word of the row of one of the lane's two columns of a product, @column 0 or 1:
 * that of lane @at of the row's four. */
DEVICE float column_float(uint32_t word, uint32_t at, uint32_t column) {
    return mx_float_of(lane_from(word, threadIdx.x % 4 * 8 + at + 4 * column));
}

/* Operands of 32 columns with codes of 8 bits and a scale. */
template <int F> struct Bytes {
    uint32_t a[4];
    struct integers z;
    /* shift: -TO_INTEGER times s */
    float s[2], shift[2], m[2];

    MEMBER void take(const struct Tile<F> &t, int pair, bool many) {
        uint32_t h[2], low[2];

        z.set(many);
        weights_bytes<F>(t, 2 * pair, a);
        weights_bytes<F>(t, 2 * pair + 1, a + 2);
        scales_of<F>(t, 2 * pair, h, low);
        for (int row = 0; row < 2; row++) {
            s[row] = low_half(h[row]) * code_unit<F>(row);
            shift[row] = s[row] * -TO_INTEGER;
            if (has_mins(F))
                m[row] = low_half(low[row]);
        }
    }
    /* Adds the products; @x: the lane's activations of both blocks. */
    MEMBER void add(const struct vec4 &x, float c[4], struct NoSums<F> &) const {
        float v[4], scale[2], total[2];

        for (uint32_t column = 0; column < 2; column++) {
            scale[column] = column_float(x.z, 0, column);
            if (has_mins(F))
                total[column] = column_float(x.z, 1, column);
        }
        mma_bytes(v, z, a, x.x, x.y);
        for (int j = 0; j < 4; j++) {
            c[j] = fmaf(fmaf(v[j], s[j / 2], shift[j / 2]), scale[j % 2], c[j]);
            if (has_mins(F))
                c[j] = fmaf(m[j / 2], total[j % 2], c[j]);
        }
    }
};

/* Returns true for formats whose scales are integers times d: all with tiles of 256 columns. */
DEVICE constexpr bool has_integers(int f) {
    return BYTES_FORMAT(f) && f >= TILE_Q4_K;
}

/* A lane's integers of a part of a tile: the sums of its products times their scales. */
template <int F> struct IntegerSums { int32_t v[4]; };

/* Operands of 32 columns with codes of 8 bits and integer scales, and what ends a part. */
template <int F> struct Integers {
    static_assert(Parts<F>::pairs == 4, "a part has the 128 columns of a scale of activations");
    static constexpr int n_scales = F == TILE_Q6_K ? 2 : 1; /* scales of a row */

    uint32_t a[4];
    int32_t s[n_scales][2];
    /* the pair begins, or ends, its part */
    bool begins, ends;
    /* of the part: d; minima times 32 of group t, twice, negated */
    float d[2] = {};
    uint32_t m[2] = {};

    MEMBER void take(const struct Tile<F> &t, int pair, bool) {
        begins = pair == 0;
        ends = pair + 1 == (int)Parts<F>::pairs;
        weights_bytes<F>(t, 2 * pair, a);
        weights_bytes<F>(t, 2 * pair + 1, a + 2);
        for (int row = 0; row < 2; row++) {
            for (int i = 0; i < n_scales; i++)
                s[i][row] = t.integer(n_scales * pair + i, row);
            if (ends)
                d[row] = t.step(row) * code_unit<F>(row);
            if constexpr (has_mins(F))
                if (ends)
                    m[row] = mul_halves(t.mins_of_lane(row), 0x50005000u);
        }
    }
    /* Adds the products to @sums, and those of the whole part to c at its end. */
    MEMBER void add(const struct vec4 &x, float c[4], struct IntegerSums<F> &sums) const {
        int32_t v[n_scales][4];

        if constexpr (n_scales == 1) {
            mma_integers(v[0], a, x.x, x.y);
        } else {
            mma_integers_16(v[0], a, x.x);
            mma_integers_16(v[1], a + 2, x.y);
        }
        for (int j = 0; j < 4; j++) {
            int32_t sum = begins ? 0 : sums.v[j];

            for (int i = 0; i < n_scales; i++)
                sum += v[i][j] * s[i][j / 2];
            sums.v[j] = sum;
        }
        if (ends)
            finish(x, c, sums);
    }
    MEMBER void finish(const struct vec4 &x, float c[4], const struct IntegerSums<F> &sums) const {
        float scale[2] = {column_float(x.z, 0, 0), column_float(x.z, 0, 1)};

        if constexpr (has_mins(F))
            mma_8(c, m[0], m[1], x.w);
        for (int j = 0; j < 4; j++)
            c[j] = fmaf((float)sums.v[j] * d[j / 2], scale[j % 2], c[j]);
    }
};

enum { AS_HALVES, AS_BYTES, AS_INTEGERS };

/* Returns how the family multiplies format @f. */
DEVICE constexpr int multiplied_as(int f) {
    if (has_integers(f))
        return AS_INTEGERS;
    return has_bytes((uint32_t)f) ? AS_BYTES : AS_HALVES;
}

template <int F, int AS> struct PairOf {
    using type = struct Halves<F>;
    using sums = struct NoSums<F>;
};

template <int F> struct PairOf<F, AS_BYTES> {
    using type = struct Bytes<F>;
    using sums = struct NoSums<F>;
};

template <int F> struct PairOf<F, AS_INTEGERS> {
    using type = struct Integers<F>;
    using sums = struct IntegerSums<F>;
};

template <int F> using Pair = typename PairOf<F, multiplied_as(F)>::type;
template <int F> using PartSums = typename PairOf<F, multiplied_as(F)>::sums;
