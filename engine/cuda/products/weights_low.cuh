#pragma once

/*
 * weights_low - operands of mma from slices of tiles of few bits (engine/formats/tiles_low.h): a
 * part of weights.cuh. The recipe is the same: round(code * s - m), one fused multiply-add.
 *
 * load() takes what a lane needs of a slice of 64 columns; weights(kb) gives a0 .. a3 of block kb
 * (0..3) of it.
 *
 * A vector of a grid is read from memory through the L1 cache, which keeps what is used of the
 * tables (1 to 8 KiB). Constant memory gives one address a cycle, and lanes read up to 32
 * different ones. In shared memory every block of every launch would have to copy a table for each
 * of its matrices' types first, and the ring of weights would have less of it.
 */

/* Computes (2 s + 1) d for blocks of 16 columns; rows g and g + 8 are in two halves. */
struct GridScales {
    uint32_t nibbles, d, base;

    MEMBER void load(uint32_t scales, const uint8_t *halves, uint32_t lane) {
        nibbles = scales;
        d = *(const uint32_t *)(halves + lane / 4 * 4);
        base = mul_halves(d, 0xD000D000u); /* -32 d */
    }
    /* Returns the scale of nibble @i. A mask and an exponent make 32 + 2 s + 1 in half precision
     * from it. */
    MEMBER uint32_t both(int i) const {
        uint32_t v = i < 2 ? nibbles << (6 - 4 * i) : nibbles >> (4 * i - 6);

        return fma_halves((v & 0x03C003C0u) | 0x50205020u, d, base);
    }
};

/* Converts magnitudes of four columns, a byte each, to halves of 2^-24; odd columns go to a[2]. */
DEVICE void spread(uint32_t sizes, uint32_t a[4], int row) {
    a[row] = sizes & 0x00FF00FFu;
    a[2 + row] = byte_permute(sizes, 0, 0x4341u);
}

/* Returns byte @i of the words. */
DEVICE uint32_t weights_low_byte(const uint32_t w[2], int i) {
    return byte_permute(w[i / 4], 0, 0x4440u + (uint32_t)i % 4);
}

/* Shifts @w so that bit @from comes to bit 8. */
DEVICE uint32_t to_bit_8(uint32_t w, int from) {
    return from < 8 ? w << (8 - from) : w >> (from - 8);
}

template <> struct Tile<TILE_IQ1> {
    const uint16_t *run; /* grid entries of the lane's half of a vector */
    uint32_t index[2], high;
    struct GridScales s;

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t slice, const void *grid) {
        const uint8_t *codes = tile + slice * LOW_CODE_BYTES(TILE_IQ1);
        const uint8_t *scales = tile + TILE_SLICES * LOW_CODE_BYTES(TILE_IQ1);

        run = own_pointer((const uint16_t *)grid + lane % 2);
        load8(codes + lane / 2 * 8, index);
        high = *(const uint32_t *)(codes + 128 + lane / 2 * 4);
        s.load(*(const uint32_t *)(scales + slice * LOW_SCALE_BYTES(TILE_IQ1) + lane / 4 * 4),
               scales + TILE_SLICES * LOW_SCALE_BYTES(TILE_IQ1), lane);
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        uint32_t both = s.both(kb), zero = mul_halves(both, 0x80108010u); /* -16 2^-24 */
        const uint32_t scale[2] = {low_twice(both), high_twice(both)};
        const uint32_t min[2] = {low_twice(zero), high_twice(zero)};

        for (int row = 0; row < 2; row++) {
            int c = 2 * kb + row;
            uint32_t at = weights_low_byte(index, c) | (to_bit_8(high, 4 * c) & 0x700u);

            uint32_t sizes = high & 8u << 4 * c ? GRID_IQ1_MORE : GRID_IQ1_LESS;

            spread(pick_bytes(sizes, load_constant(run + (size_t)at * 2)), a, row);
        }
        scale_codes(a, scale, min);
    }
};

/* Signs, then scales. */
DEVICE void sign_and_scale(uint32_t a[4], uint32_t signs, int kb, uint32_t both) {
    const uint32_t scale[2] = {low_twice(both), high_twice(both)};

    for (int i = 0; i < 4; i++) {
        uint32_t sign = signs << (2 * kb + i % 2 + i / 2 * 8) & 0x80008000u;

        a[i] = mul_halves(a[i] ^ sign, scale[i % 2]);
    }
}

template <> struct Tile<TILE_IQ2> {
    const uint16_t *run;
    uint32_t index[2], high, signs;
    struct GridScales s;

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t slice, const void *grid) {
        const uint8_t *codes = tile + slice * LOW_CODE_BYTES(TILE_IQ2);
        const uint8_t *scales = tile + TILE_SLICES * LOW_CODE_BYTES(TILE_IQ2);

        run = own_pointer((const uint16_t *)grid + lane % 2);
        load8(codes + lane / 2 * 8, index);
        high = *(const uint16_t *)(codes + 128 + lane / 2 * 2);
        signs = *(const uint32_t *)(codes + LOW_INDEX_BYTES(TILE_IQ2) + lane * 4);
        s.load(*(const uint32_t *)(scales + slice * LOW_SCALE_BYTES(TILE_IQ2) + lane / 4 * 4),
               scales + TILE_SLICES * LOW_SCALE_BYTES(TILE_IQ2), lane);
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        for (int row = 0; row < 2; row++) {
            int c = 2 * kb + row;
            uint32_t at = weights_low_byte(index, c) | (to_bit_8(high, 2 * c) & 0x300u);

            spread(pick_bytes(GRID_IQ2, load_constant(run + (size_t)at * 2)), a, row);
        }
        sign_and_scale(a, signs, kb, s.both(kb));
    }
};

template <> struct Tile<TILE_IQ3> {
    const uint32_t *run;
    uint32_t index[2], high, signs;
    struct GridScales s;

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t slice, const void *grid) {
        const uint8_t *codes = tile + slice * LOW_CODE_BYTES(TILE_IQ3);
        const uint8_t *scales = tile + TILE_SLICES * LOW_CODE_BYTES(TILE_IQ3);
        const uint8_t *pair = scales + slice * LOW_SCALE_BYTES(TILE_IQ3) + lane / 4 * 2;

        run = (const uint32_t *)grid;
        load8(codes + lane * 8, index);
        high = codes[256 + lane];
        signs = *(const uint32_t *)(codes + LOW_INDEX_BYTES(TILE_IQ3) + lane * 4);
        s.load(byte_permute(*(const uint16_t *)pair, 0, 0x4140u),
               scales + TILE_SLICES * LOW_SCALE_BYTES(TILE_IQ3), lane);
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        for (int row = 0; row < 2; row++) {
            int c = 2 * kb + row;
            uint32_t at = weights_low_byte(index, c) | (to_bit_8(high, c) & 0x100u);

            spread(run[at], a, row);
        }
        sign_and_scale(a, signs, kb, s.both(kb / 2));
    }
};

/* Extracts the two-bit codes of block @kb as halves: 2^-24 times the code for row g, 2^-22 for row
 * g + 8. */
DEVICE void pairs_of_bits(const uint32_t q[2], int kb, uint32_t a[4]) {
    uint32_t w = q[kb / 2] >> (kb % 2 * 8);

    a[0] = w & 0x00030003u;
    a[1] = w & 0x000C000Cu;
    a[2] = w >> 4 & 0x00030003u;
    a[3] = w >> 4 & 0x000C000Cu;
}

template <> struct Tile<TILE_Q2_K> {
    uint32_t q[2], sm[2], dm[2], base[2];

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t slice, const void *) {
        const uint8_t *scales = tile + TILE_SLICES * LOW_CODE_BYTES(TILE_Q2_K);

        load8(tile + slice * LOW_CODE_BYTES(TILE_Q2_K) + lane * 8, q);
        load8(scales + slice * LOW_SCALE_BYTES(TILE_Q2_K) + lane / 4 * 8, sm);
        load8(scales + TILE_SLICES * LOW_SCALE_BYTES(TILE_Q2_K) + lane / 4 * 8, dm);
        base[0] = mul_halves(dm[0], 0xCC00CC00u); /* d * -16 */
        base[1] = mul_halves(dm[1], 0x0C000C00u); /* dmin * 2^-12 */
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        uint32_t two[2];

        for (int i = 0; i < 2; i++) { /* 16 + scale, or -2^-16 (16 + min) */
            uint32_t v = kb < 2 ? sm[i] << (6 - 4 * kb) : sm[i] >> (4 * kb - 6);

            two[i] =
                fma_halves((v & 0x03C003C0u) | (i ? 0x8C008C00u : 0x4C004C00u), dm[i], base[i]);
        }
        const uint32_t scale[2] = {low_twice(two[0]), high_twice(two[0])};
        const uint32_t min[2] = {low_twice(two[1]), high_twice(two[1])};

        pairs_of_bits(q, kb, a);
        scale_codes(a, scale, min);
    }
};

template <> struct Tile<TILE_Q3_K> {
    uint32_t q[2], sc[2], high, d;

    MEMBER void load(const uint8_t *tile, uint32_t lane, uint32_t slice, const void *) {
        const uint8_t *codes = tile + slice * LOW_CODE_BYTES(TILE_Q3_K);
        const uint8_t *scales = tile + TILE_SLICES * LOW_CODE_BYTES(TILE_Q3_K);

        load8(codes + lane * 8, q);
        high = *(const uint32_t *)(codes + LOW_INDEX_BYTES(TILE_Q3_K) + lane * 4);
        load8(scales + slice * LOW_SCALE_BYTES(TILE_Q3_K) + lane / 4 * 8, sc);
        d = *(const uint32_t *)(scales + TILE_SLICES * LOW_SCALE_BYTES(TILE_Q3_K) + lane / 4 * 4);
    }
    MEMBER void weights(int kb, uint32_t a[4]) const {
        const uint32_t zero[2] = {0x80048004u, 0x80108010u}; /* -4 2^-24, -4 2^-22 */
        uint32_t s[2], m[2];

        pairs_of_bits(q, kb, a);
        for (int i = 0; i < 4; i++) { /* the upper bit; row g has it at bit 4 kb + i / 2 */
            int from = 4 * kb + i / 2 - 2;
            uint32_t v = from < 0 ? high << -from : high >> from;

            a[i] |= v & (i % 2 ? 0x00100010u : 0x00040004u);
        }
        for (int row = 0; row < 2; row++) {
            uint32_t two = signed_scales(sc[row], kb / 2 * 2, row ? d >> 16 : d);

            s[row] = half_of(two, kb);
            m[row] = half_of(mul_halves(two, zero[row]), kb);
        }
        scale_codes(a, s, m);
    }
};
