#pragma once

/*
 * weights - decodes tiles of weights in shared memory (engine/formats/tiles.h) to operands of mma.
 * Every format gives a weight as one half precision number,
 *
 *     w = round(code * s - m)
 *
 * by one fused multiply-add, where s and m are the scale and minimum of the weight's group of
 * columns, rounded to half precision. The result is 2^unit times the weight of the file
 * (tile_unit()): the largest scale of a tensor is then near the top of the range of half precision,
 * so that small scales are not subnormal.
 *
 * Codes need no conversion. A mask leaves the bits of a code in the low mantissa of a half, which
 * as a subnormal number is exactly 2^-24 times the code (2^-20 if it is four bits higher); the
 * scale is as many times larger. A byte of a scale becomes a half by a byte_permute that puts it
 * below the exponent of 256: the half is 256 + byte, and the fused multiply-add that applies the
 * scale subtracts the 256 again. On sm_90 the eight weights that a lane has in a word of nibbles
 * take 9 instructions.
 *
 * Codes of G4 have a zero point, which is subtracted first: w = round((code - zero point) * s).
 *
 * Codes of MXFP4 and NVFP4 are small floating point numbers: their fields are moved to where a half
 * has them, and the scale compensates the different exponent bias.
 *
 * Tile<F>: load() reads a lane's part of a tile, or of a part of the tile (struct Parts), into
 * registers; weights_of() returns the operands a0 .. a3 of block kb of 16 columns, counted from the
 * first block of the part. kb is a constant after unrolling.
 */

#include "engine/cuda/device.cuh"

/* Returns the lower (@i even) or the upper half of @v twice. */
DEVICE uint32_t half_of(uint32_t v, int i) {
    if (i % 2)
        return high_twice(v);
    return low_twice(v);
}

/* Returns bytes @i and @i + 1 of @w as low bytes of two halves, whose upper byte is that of @above
 * (all four bytes of @above are equal). */
DEVICE uint32_t weights_below(uint32_t w, int i, uint32_t above) {
    return byte_permute(w, above, 0x4040u | (uint32_t)(i | (i + 1) << 8));
}

/* Extracts the codes of a block from the nibbles in @w and their upper bits in @high; @high_mask:
 * 0x00100010 for one upper bit, 0x00300030 for two. */
DEVICE void weights_nibbles(uint32_t w, uint32_t high, uint32_t high_mask, uint32_t a[4]) {
    uint32_t v = w >> 8, up = high << 4, down = high >> 4;

    a[0] = (w & 0x000F000Fu) | (high & high_mask);
    a[1] = (w & 0x00F000F0u) | (high & high_mask << 4);
    a[2] = (v & 0x000F000Fu) | (up & high_mask);
    a[3] = (v & 0x00F000F0u) | (down & high_mask << 4);
}

/* Returns the values (plus 128) of four nibbles of IQ4; nibble i of the low half of @q gives byte
 * i. */
DEVICE uint32_t iq4_values(uint32_t q) {
    uint32_t pick = q & 0x7777u;
    uint32_t low = byte_permute(0x3F2D1801u, 0x766A5D4Fu, pick);
    uint32_t high = byte_permute(0xA6998D81u, 0xF1D9C5B5u, pick);

    return byte_permute(low, high, 0x3210u | (q & 0x8888u) >> 1);
}

/* Looks up the nibbles of @w in order: columns 4t (rows g and g + 8), 4t + 1, 4t + 2, 4t + 3. */
DEVICE void iq4_codes(uint32_t w, uint32_t a[4]) {
    uint32_t q0 = iq4_values(w & 0xFFFFu), q1 = iq4_values(w >> 16);

    for (uint32_t i = 0; i < 4; i++) /* bytes i of both */
        a[i] = byte_permute(q0, q1, 0x0400u + 0x0101u * i) & 0x00FF00FFu;
}

/* Converts FP4 codes to halves, 2^-15 times their values. */
DEVICE void fp4_codes(uint32_t w, uint32_t a[4]) {
    a[0] = w & 0x8E008E00u;
    a[1] = w << 3 & 0x8E008E00u;
    a[2] = (w << 6 & 0x0E000E00u) | (w << 2 & 0x80008000u);
    a[3] = (w << 9 & 0x0E000E00u) | (w << 1 & 0x80008000u);
}

/* Replaces codes by weights; a[0] and a[2] belong to row g, a[1] and a[3] to row g + 8. */
DEVICE void scale_codes(uint32_t a[4], const uint32_t s[2], const uint32_t m[2]) {
    for (int i = 0; i < 4; i++)
        a[i] = fma_halves(a[i], s[i % 2], m[i % 2]);
}

/* Returns the two signed scales (stored plus 128) in bytes @i and @i + 1 of @w, times @d. */
DEVICE uint32_t signed_scales(uint32_t w, int i, uint32_t d) {
    return mul_halves(sub_halves(weights_below(w, i, 0x64646464u), 0x64806480u), low_twice(d));
}

/* -- formats of tiles -------------------------------------------------------------------------- */

/* Returns the bits of the words above the nibbles. */
DEVICE constexpr uint32_t high_mask(int f) {
    if (TILE_IS(f, FIFTH))
        return 0x00100010u;
    return f == TILE_Q6_K ? 0x00300030u : 0;
}

/* Returns true for formats whose groups have a minimum; the others have a code that means 0. */
DEVICE constexpr bool has_mins(int f) {
    return TILE_IS(f, MINIMA);
}

/* Returns true for codes that are bytes, or nibbles that stand for bytes. */
DEVICE constexpr bool is_of_bytes(int f) {
    return f == TILE_Q8_0 || TILE_IS(f, INDEX);
}

/* Returns true for formats whose rows have zero points, which codes_of() subtracts. */
DEVICE constexpr bool has_zeros(int f) {
    return f == TILE_G4;
}

/* Returns the code of a weight of 0. */
DEVICE constexpr uint32_t zero_code(int f) {
#define ZERO_CASE(format, c, n, s, h, t, kind, upper, zero, ...)                                   \
    case TILE_##format:                                                                            \
        return zero;
    switch (f) {
        TILE_EACH(ZERO_CASE)
    default:
        return 0;
    }
#undef ZERO_CASE
}

/* Scales, or minima, of rows g and g + 8, both groups of 32 columns: [row][2] halves. */
DEVICE void load_pairs(const uint8_t *pairs, uint32_t lane, uint32_t v[2]) {
    v[0] = *(const uint32_t *)(pairs + lane / 4 * 4);
    v[1] = *(const uint32_t *)(pairs + lane / 4 * 4 + 32);
}

/* Operands of a tile, or of a part of one. For most formats load() takes part @part of the tile at
 * @tile, half of 256 columns or all of 64; word() and upper() return the codes of block kb;
 * scales() and mins() return those of two groups, from which scales_of() selects the block's.
 * Formats without a specialisation have nibbles, fifth bits, scales and minima, of 64 columns. */
template <int F> struct Tile {
    static_assert(F < TILE_Q4_K, "the format has tiles of 256 columns");
    struct vec4 v;
    uint32_t high, d[2], m[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t, const void *) {
        const uint8_t *pairs = tile + (high_mask(F) ? 640 : 512);

        v = load16(tile + lane * 16);
        if (high_mask(F))
            high = *(const uint32_t *)(tile + 512 + lane * 4);
        load_pairs(pairs, lane, d);
        if (has_mins(F))
            load_pairs(pairs + 64, lane, m);
    }
    MEMBER uint32_t word(int kb) const {
        return word_of(v, kb);
    }
    MEMBER uint32_t upper(int kb) const {
        return high_mask(F) ? high >> kb : 0;
    }
    MEMBER uint32_t scales(int, int row) const {
        return d[row];
    }
    MEMBER uint32_t mins(int, int row) const {
        return m[row];
    }
};

/* Zero points and scales of rows g and g + 8: [row] bytes, [row] halves. */
template <> struct Tile<TILE_G4> {
    struct vec4 v;
    uint32_t zero[2], d[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t, const void *) {
        v = load16(tile + lane * 16);
        for (uint32_t row = 0; row < 2; row++) {
            uint32_t r = lane / 4 + 8 * row;

            zero[row] = tile[512 + r];
            d[row] = low_twice(*(const uint16_t *)(tile + 528 + r * 2));
        }
    }
    MEMBER uint32_t word(int kb) const {
        return word_of(v, kb);
    }
    MEMBER uint32_t upper(int) const {
        return 0;
    }
    MEMBER uint32_t scales(int, int row) const {
        return d[row];
    }
    /* Returns the zero point as codes_of() has the codes of row g or g + 8, twice. */
    MEMBER uint32_t zeros(int row) const {
        return zero[row] * (row ? 0x00100010u : 0x00010001u);
    }
};

template <> struct Tile<TILE_F16> {
    struct vec4 v[4];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t, const void *) {
        for (int i = 0; i < 4; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        for (int i = 0; i < 4; i++)
            a[i] = word_of(v[kb], i);
    }
};

template <> struct Tile<TILE_Q8_0> {
    struct vec4 v[2];
    uint32_t d[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t, const void *) {
        for (int i = 0; i < 2; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
        load_pairs(tile + 1024, lane, d);
    }
    MEMBER uint32_t scales(int, int row) const {
        return d[row];
    }
};

/* Scales of rows g and g + 8, both groups of 32 columns: [row][2] upper bytes of halves. */
template <> struct Tile<TILE_MXFP4> {
    struct vec4 v;
    uint32_t e[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t, const void *) {
        v = load16(tile + lane * 16);
        for (int row = 0; row < 2; row++)
            e[row] = *(const uint16_t *)(tile + 512 + (lane / 4 + 8 * row) * 2);
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        fp4_codes(word_of(v, kb), a);
        for (int i = 0; i < 4; i++)
            a[i] = mul_halves(a[i], byte_permute(e[i % 2], 0, kb < 2 ? 0x0404u : 0x1414u));
    }
};

/* Scales of rows g and g + 8: [row][4] bytes, lower exponent and upper mantissa bits of a half. */
template <> struct Tile<TILE_NVFP4> {
    struct vec4 v;
    uint32_t d[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t, const void *) {
        v = load16(tile + lane * 16);
        for (int row = 0; row < 2; row++)
            d[row] = *(const uint32_t *)(tile + 512 + (lane / 4 + 8 * row) * 4);
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        uint32_t s[2];

        for (int row = 0; row < 2; row++) /* 2^7 times the scale, for subnormal scales, too */
            s[row] = mul_halves(byte_permute(d[row], 0, 0x4040u + 0x0101u * (uint32_t)kb) << 7,
                                0x78007800u);
        fp4_codes(word_of(v, kb), a);
        for (int i = 0; i < 4; i++)
            a[i] = mul_halves(a[i], s[i % 2]);
    }
};

/* Half of a tile of 256 columns of Q4_K or Q5_K: for each row the bytes of four scales and four
 * minima, which are stored times four, and d and dmin. */
template <int F> struct NestedTile {
    struct vec4 v[2];
    uint32_t high[2], sm[2][2], dm[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t half, const void *) {
        const uint8_t *pairs = tile + (high_mask(F) ? 2560 : 2048), *row = pairs + lane / 4 * 16;

        for (uint32_t i = 0; i < 2; i++) {
            v[i] = load16(tile + (half * 2 + i) * 512 + lane * 16);
            sm[i][0] = *(const uint32_t *)(row + i * 128 + half * 4);
            sm[i][1] = *(const uint32_t *)(row + i * 128 + half * 4 + 8);
            dm[i] = *(const uint32_t *)(pairs + 256 + (lane / 4 + 8 * i) * 4);
        }
        if (high_mask(F))
            load8(tile + 2048 + lane * 16 + half * 8, high);
    }
    MEMBER uint32_t word(int kb) const {
        return word_of(v[kb / 4], kb % 4);
    }
    MEMBER uint32_t upper(int kb) const {
        return high_mask(F) ? high[kb / 4] >> (kb % 4) : 0;
    }
    /* Returns the scales of two groups; mins() returns their minima, negated. weights_below() puts
     * a byte under an exponent, whose share of the product the addend cancels: d * -256, dmin *
     * 2^-12. */
    MEMBER uint32_t scales(int kb, int row) const {
        uint32_t base = mul_halves(dm[row], 0x0C00DC00u);

        return fma_halves(weights_below(sm[row][0], kb / 4 * 2, 0x5C5C5C5Cu), low_twice(dm[row]),
                          low_twice(base));
    }
    MEMBER uint32_t mins(int kb, int row) const {
        uint32_t base = mul_halves(dm[row], 0x0C00DC00u);

        return fma_halves(weights_below(sm[row][1], kb / 4 * 2, 0x8C8C8C8Cu), high_twice(dm[row]),
                          high_twice(base));
    }
    /* Returns the minimum of group t of the half, in lane 4 g + t, as mins() does, twice. */
    MEMBER uint32_t mins_of_lane(int row) const {
        uint32_t base = mul_halves(dm[row], 0x0C00DC00u);
        uint32_t below = byte_permute(sm[row][1], 0x8C8C8C8Cu, 0x4040u + threadIdx.x % 4 * 0x0101u);

        return fma_halves(below, high_twice(dm[row]), high_twice(base));
    }
    /* Returns the scale of group @group of the half, times four, and what it is multiplied by. */
    MEMBER int32_t integer(int group, int row) const {
        return (int32_t)(sm[row][0] >> (8 * group) & 0xFFu);
    }
    MEMBER float step(int row) const {
        return half_to_float((uint16_t)dm[row]) * 0.25f;
    }
};

template <> struct Tile<TILE_Q4_K> : NestedTile<TILE_Q4_K> {};
template <> struct Tile<TILE_Q5_K> : NestedTile<TILE_Q5_K> {};

template <> struct Tile<TILE_Q6_K> {
    struct vec4 v[2], high;
    uint32_t sc[2][2];
    uint16_t d[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t half, const void *) {
        uint32_t g = lane / 4;

        for (uint32_t i = 0; i < 2; i++)
            v[i] = load16(tile + (half * 2 + i) * 512 + lane * 16);
        high = load16(tile + (4 + half) * 512 + lane * 16);
        for (int row = 0; row < 2; row++) {
            load8(tile + 3072 + (g + 8 * row) * 16 + half * 8, sc[row]);
            d[row] = *(const uint16_t *)(tile + 3328 + (g + 8 * row) * 2);
        }
    }
    MEMBER uint32_t word(int kb) const {
        return word_of(v[kb / 4], kb % 4);
    }
    MEMBER uint32_t upper(int kb) const {
        return word_of(high, kb / 2) >> (kb % 2 * 2);
    }
    MEMBER uint32_t scales(int kb, int row) const {
        return signed_scales(sc[row][kb / 4], kb / 2 * 2 % 4, d[row]);
    }
    /* Returns the scale of block @kb, and what it is multiplied by. */
    MEMBER int32_t integer(int kb, int row) const {
        return (int8_t)(uint8_t)((sc[row][kb / 4] ^ 0x80808080u) >> (kb % 4 * 8));
    }
    MEMBER float step(int row) const {
        return half_to_float(d[row]);
    }
};

template <> struct Tile<TILE_IQ4_XS> {
    struct vec4 v[2];
    uint32_t sc[2];
    uint16_t d[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t half, const void *) {
        uint32_t g = lane / 4;

        for (uint32_t i = 0; i < 2; i++) {
            v[i] = load16(tile + (half * 2 + i) * 512 + lane * 16);
            sc[i] = *(const uint32_t *)(tile + 2048 + (g + 8 * i) * 8 + 4 * half);
            d[i] = *(const uint16_t *)(tile + 2176 + (g + 8 * i) * 2);
        }
    }
    MEMBER uint32_t word(int kb) const {
        return word_of(v[kb / 4], kb % 4);
    }
    MEMBER uint32_t scales(int kb, int row) const {
        return signed_scales(sc[row], kb / 4 * 2, d[row]);
    }
    /* Returns the scale of group @group of the half, and what it is multiplied by. */
    MEMBER int32_t integer(int group, int row) const {
        return (int8_t)(uint8_t)((sc[row] ^ 0x80808080u) >> (group * 8));
    }
    MEMBER float step(int row) const {
        return half_to_float(d[row]);
    }
};

#include "engine/cuda/products/weights_low.cuh"

/* -- operands ---------------------------------------------------------------------------------- */

/* Extracts the codes of block @kb, less their zero points, as halves: 2^-24 times the code; 2^-20
 * times it for nibbles that are four bits higher. */
template <int F> DEVICE void codes_of(const struct Tile<F> &t, int kb, uint32_t a[4]) {
    if constexpr (F == TILE_Q8_0) {
        for (int row = 0; row < 2; row++) {
            uint32_t q = word_of(t.v[kb / 2], kb % 2 * 2 + row);

            a[row] = q & 0x00FF00FFu;
            a[2 + row] = byte_permute(q, 0, 0x4341u);
        }
    } else if constexpr (is_of_bytes(F)) {
        iq4_codes(t.word(kb), a);
    } else {
        weights_nibbles(t.word(kb), t.upper(kb), high_mask(F), a);
    }
    if constexpr (has_zeros(F))
        for (int i = 0; i < 4; i++)
            a[i] = sub_halves(a[i], t.zeros(i % 2));
}

/* Returns the scales of block @kb for rows g and g + 8, and the negated minima, as scale_codes()
 * takes them. */
template <int F>
DEVICE void scales_of(const struct Tile<F> &t, int kb, uint32_t s[2], uint32_t m[2]) {
    [[maybe_unused]] constexpr uint32_t higher = is_of_bytes(F) ? 0 : 4;
    int group = F == TILE_Q6_K ? kb : kb / 2;

    for (int row = 0; row < 2; row++) {
        uint32_t two = t.scales(kb, row), low;

        if constexpr (has_mins(F))
            low = t.mins(kb, row);
        else if constexpr (has_zeros(F))
            low = 0;
        else
            low = mul_halves(two, (0x8000u | zero_code(F) << (row ? higher : 0)) * 0x10001u);
        s[row] = half_of(two, group);
        m[row] = half_of(low, group);
    }
}

/* Returns the operands a0 .. a3 of block @kb. */
template <int F> DEVICE void weights_of(const struct Tile<F> &t, int kb, uint32_t a[4]) {
    if constexpr (BYTES_FORMAT(F)) {
        uint32_t s[2], m[2];

        scales_of<F>(t, kb, s, m);
        codes_of<F>(t, kb, a);
        scale_codes(a, s, m);
    } else {
        t.weights(kb, a);
    }
}

/* Number of parts in which a tile is loaded, and of pairs of blocks of 16 columns in a part. */
template <int F> struct Parts {
    static constexpr uint32_t halves = F >= TILE_Q4_K ? 2 : 1; /* parts unless the tile is low */
    static constexpr uint32_t n = F >= TILE_LOW ? TILE_SLICES : halves;
    static constexpr uint32_t pairs = F >= TILE_LOW || F < TILE_Q4_K ? 2 : 4;
};

/* Loads the part of a tile that contains slice @slice of 64 columns. Returns the index in t of the
 * slice's first pair. */
template <int F>
DEVICE int load_slice(struct Tile<F> &t, const uint8_t *tile, uint32_t slice, const void *grid) {
    constexpr uint32_t slices = Parts<F>::pairs / 2; /* slices of a part */

    t.load(tile, threadIdx.x % 32, slice / slices, grid);
    return (int)(slice % slices * 2);
}

/* Sums that a product keeps until the end of a part of a tile, beside its mma accumulators: only
 * struct Integers has any. */
template <int F> struct NoSums {};

/* Operands of 32 columns. */
template <int F> struct Halves {
    uint32_t a[2][4];

    /* Decodes pair @pair of @t. The last argument is only used by struct Bytes. */
    MEMBER void take(const struct Tile<F> &t, int pair, bool) {
        weights_of<F>(t, 2 * pair, a[0]);
        weights_of<F>(t, 2 * pair + 1, a[1]);
    }
    /* Adds the products; @x: the lane's activations of both blocks. */
    MEMBER void add(const struct vec4 &x, float c[4], struct NoSums<F> &) const {
        mma(c, a[0][0], a[0][1], a[0][2], a[0][3], x.x, x.y);
        mma(c, a[1][0], a[1][1], a[1][2], a[1][3], x.z, x.w);
    }
};

/* Returns true if the family multiplies the codes of format @f as bytes. */
DEVICE constexpr bool has_bytes(uint32_t f) {
    return PACK_PLANES == 2 && BYTES_FORMAT(f);
}

/* Returns the bytes of eight rows of activations as halves, which their byte codes follow; a row
 * has @n_blocks blocks of 16 columns. */
DEVICE uint32_t plane_bytes(uint32_t n_blocks) {
    return n_blocks * 256;
}

/* Returns the bytes from eight rows of the activations to the next eight. */
DEVICE size_t weights_group_bytes(uint32_t n_blocks) {
    return (size_t)n_blocks * (256 * PACK_PLANES);
}

#ifdef WEFT_BYTES
#include "engine/cuda/products/weights_bytes.cuh"
#else
template <int F> using Pair = Halves<F>;
template <int F> using PartSums = NoSums<F>;
#endif

/* Pairs of blocks in a slice of 64 columns of the activations, for the kernels of many rows. */
#define SLICE_PAIRS 2u

/* Sizes of a format: slices of a unit, units of a stage, slices of a stage. */
template <int F> struct Steps {
    static constexpr uint32_t slices = F >= TILE_Q4_K ? 4 : 1;
    static constexpr uint32_t units = TILE_STAGE_UNITS(F);
    static constexpr uint32_t of_stage = slices * units;
    static constexpr uint32_t unroll = F >= TILE_LOW ? 1 : slices; /* unrolled slices of a tile */
};

/* Starts a warp's copy of @n bytes, a multiple of 16 and at most 3584, the largest stage. @to (from
 * shared_start() on) and @from are those of the lane, which copies 16 bytes at a time. If @n is a
 * constant, only the last 512 bytes are tested. */
template <int AT = 0> DEVICE void fetch_bytes(uint32_t to, const uint8_t *from, uint32_t n) {
    if (threadIdx.x % 32 * 16 + AT < n)
        copy_async_at<AT>(to, from);
    if constexpr (AT + 512 < 3584)
        fetch_bytes<AT + 512>(to, from, n);
}

/* Copies @n bytes like fetch_bytes(), with less code but more instructions for many bytes. */
DEVICE void fetch_few(uint32_t to, const uint8_t *from, uint32_t n) {
#pragma unroll 1
    for (uint32_t at = threadIdx.x % 32 * 16; at < n; at += 512) {
        copy_async_at<0>(to, from);
        to += 512;
        from += 512;
    }
}

/* Starts copying a stage of format F, or the remaining @n bytes of a row of tiles. */
template <int F> DEVICE void fetch_stage(uint32_t to, const uint8_t *from, uint32_t n) {
    const uint32_t bytes = tile_stage_bytes(F);

    if (TILE_STAGE_UNITS(F) == 1 || n >= bytes)
        fetch_bytes(to, from, bytes);
    else
        fetch_few(to, from, n);
}

/* Calls WALK::of<F>() with F = @format, a number from F on. */
template <class WALK, int F = 0> DEVICE void walk_of(uint32_t format, const WALK &walk) {
    if (format == F)
        return walk.template of<F>();
    if constexpr (F + 1 < TILE_FORMATS)
        walk_of<WALK, F + 1>(format, walk);
}
