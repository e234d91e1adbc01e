#pragma once

/*
 * gemm_f - code that gemm_f.c and gemm_bf16.c share: the order in which floating-point weights are
 * multiplied.
 *
 * It counts in words. A word of activations has 4 bytes, one float or a pair of BF16, and a word of
 * weights the values of the 16 rows of a panel that belong to it. A group is four values, which are
 * stored together. Every lane, which is a row of the panel, keeps two sums, of the words with even
 * and with odd index; the result is even + odd. With one sum, each multiplication would wait for
 * the one before, and this latency, instead of memory bandwidth, would bound products with a single
 * column.
 *
 * FP8 has such sums for each block of 128 values, which are multiplied by its scale:
 *
 *   acc = fma(scale, even + odd, acc)
 *
 * The file that includes this one defines
 *
 *   WORDS                    words of a group
 *   WORD                     type of a word of weights
 *   WORD_LOAD(format, p, i)  word @i of the group at @p
 *   WORD_UNPACK(p, word)     unpacks a word to 64 bytes
 *   WORD_UNPACKED(p)         a word that was unpacked to @p
 *   WORD_MULTIPLY(sum, word, acts, row, c, i)  sum + the products with word @i of column @c
 */

#include "engine/cpu/kernels.h"

/* Columns that are computed at a time with unpacked weights: the first number as long as there are
 * enough, then the second. */
#if VEC_TILE == 2 /* a vector takes two registers or four */
enum { COLUMNS = 6, COLUMNS_LAST = 4 };
#else
enum { COLUMNS = 24, COLUMNS_LAST = 8 };
#endif
#define UNROLL_COLUMNS _Pragma("GCC unroll 24")

/* Returns the bytes of a group. */
INLINE size_t gemm_f_group(int format) {
    switch (format) {
    case PANEL_F32:
        return 4 * LANES * 4;
    case PANEL_FP8:
        return 4 * LANES;
    default:
        return 4 * LANES * 2;
    }
}

/* Returns the number of words of @n values. Values of ACTS_H come in whole groups. */
INLINE uint32_t gemm_f_words(int format, uint32_t n) {
    if (panel_infos[format].acts == ACTS_F)
        return n;
    return (uint32_t)round_up(n, 4) / 4 * WORDS;
}

/* Returns the address of block @b, which begins a group. */
INLINE const uint8_t *gemm_f_block(int format, const uint8_t *panel, uint32_t b) {
    return panel + (size_t)(b / panel_infos[format].unit) * panel_infos[format].unit_bytes;
}

/* Multiplies word @i of the group at @p by @n columns, and adds to the even or the odd sums. */
INLINE void gemm_f_add(int format, const uint8_t *p, const uint8_t *acts, size_t row, int i, int n,
                       vf *sum) {
    WORD w = WORD_LOAD(format, p, i);

    UNROLL
    for (int c = 0; c < n; c++)
        sum[c] = WORD_MULTIPLY(sum[c], w, acts, row, c, i);
}

/* Computes the sums of @n_words words at @p. */
INLINE void gemm_f_sums(int format, const uint8_t *p, const uint8_t *acts, size_t row,
                        uint32_t n_words, int n, vf *even, vf *odd) {
    const size_t step = gemm_f_group(format);

    UNROLL
    for (int c = 0; c < n; c++)
        even[c] = odd[c] = vf_zero();
    for (uint32_t i = 0; i < n_words / WORDS; i++, p += step, acts += 4 * WORDS) {
        UNROLL
        for (size_t k = 0; k < step; k += 64)
            __builtin_prefetch(p + VEC_AHEAD + k);
        UNROLL
        for (int k = 0; k < WORDS; k += 2) {
            gemm_f_add(format, p, acts, row, k, n, even);
            gemm_f_add(format, p, acts, row, k + 1, n, odd);
        }
    }
    /* the last values of a row in float */
    if (n_words % WORDS > 0)
        gemm_f_add(format, p, acts, row, 0, n, even);
    if (n_words % WORDS > 1)
        gemm_f_add(format, p, acts, row, 1, n, odd);
    if (n_words % WORDS > 2)
        gemm_f_add(format, p, acts, row, 2, n, even);
}

/* Implements gemm.run. */
INLINE void gemm_f_run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *acts,
                       int n, float *out) {
    const struct panel_info *info = &panel_infos[format];
    const size_t row = acts_bytes(info->acts, m->n_in, 1);
    vf even[TILE_MAX], odd[TILE_MAX], acc[TILE_MAX];

    if (format != PANEL_FP8) {
        gemm_f_sums(format, panel, acts, row, gemm_f_words(format, m->n_in), n, even, odd);
        UNROLL
        for (int c = 0; c < n; c++)
            vf_store(out + LANES * c, vf_add(even[c], odd[c]));
        return;
    }
    const uint32_t n_words = gemm_f_words(format, info->block);
    UNROLL
    for (int c = 0; c < n; c++)
        acc[c] = vf_zero();
    for (uint32_t b = 0; b < m->n_blocks; b++, panel += info->unit_bytes, acts += 4 * n_words) {
        gemm_f_sums(format, panel, acts, row, n_words, n, even, odd);
        __builtin_prefetch(panel + VEC_AHEAD + info->quant_bytes);
        vf scale = vf_load((const float *)(panel + info->quant_bytes));
        UNROLL
        for (int c = 0; c < n; c++)
            acc[c] = vf_fma(scale, vf_add(even[c], odd[c]), acc[c]);
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

#define CALL(n, col)                                                                               \
    gemm_f_run(FORMAT, m, panel, acts + acts_bytes(panel_infos[FORMAT].acts, m->n_in, col), n,     \
               acc + LANES * (col))
#define DEFINE(name, format, ...)                                                                  \
    static void gemm_##name(const struct mat *m, const uint8_t *panel, const uint8_t *acts,        \
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {                    \
        enum { FORMAT = format };                                                                  \
        FOR_WIDTH(n, CALL);                                                                        \
    }
#define ROW(name, format, ...) [format] = {gemm_##name},

#ifndef VEC_PLAIN
/* Adds every second of the @n_words unpacked words at @w to @sum. */
INLINE void gemm_f_half(const uint8_t *w, const uint8_t *acts, size_t row, uint32_t n_words, int n,
                        vf *sum) {
    /* an address for eight columns, since a register for each would be too many */
    const uint8_t *a[3] = {acts, acts + 8 * row, acts + 16 * row};

    for (uint32_t i = 0; i < n_words; i += 2, w += 128) {
        WORD v = WORD_UNPACKED(w);

        UNROLL_COLUMNS
        for (int c = 0; c < n; c++)
            sum[c] = WORD_MULTIPLY(sum[c], v, a[c / 8], row, c % 8, 0);
        a[0] += 8;
        a[1] += 8;
        a[2] += 8;
    }
}

/* Adds the @n_words unpacked words at @w to acc[column][even, odd][lane]. The even and the odd sums
 * are computed one after the other, so that more columns fit into the registers. */
INLINE void gemm_f_columns(const uint8_t *w, const uint8_t *acts, size_t row, uint32_t n_words,
                           int n, float *acc) {
    for (uint32_t odd = 0; odd < 2; odd++, acc += LANES) {
        vf sum[COLUMNS];

        UNROLL_COLUMNS
        for (int c = 0; c < n; c++)
            sum[c] = vf_load(acc + 2 * LANES * c);
        gemm_f_half(w + 64 * odd, acts + 4 * odd, row, n_words - odd, n, sum);
        UNROLL_COLUMNS
        for (int c = 0; c < n; c++)
            vf_store(acc + 2 * LANES * c, sum[c]);
    }
}

/* Adds the @n_words unpacked words at @w, multiplied by @scale, to acc[column][lane]. */
INLINE void gemm_f_scaled_columns(const uint8_t *w, const float *scale, const uint8_t *acts,
                                  size_t row, uint32_t n_words, int n, float *acc) {
    float even[COLUMNS * LANES] __attribute__((aligned(64)));
    vf sum[COLUMNS];

    UNROLL_COLUMNS
    for (int c = 0; c < n; c++)
        sum[c] = vf_zero();
    gemm_f_half(w, acts, row, n_words, n, sum);
    UNROLL_COLUMNS
    for (int c = 0; c < n; c++) {
        vf_store(even + LANES * c, sum[c]);
        sum[c] = vf_zero();
    }
    gemm_f_half(w + 64, acts + 4, row, n_words - 1, n, sum);
    UNROLL_COLUMNS
    for (int c = 0; c < n; c++) {
        vf both = vf_add(vf_load(even + LANES * c), sum[c]);

        vf_store(acc + LANES * c, vf_fma(vf_load(scale), both, vf_load(acc + LANES * c)));
    }
}

/* Multiplies @n columns by the unpacked blocks [b0, b1) at @quants. */
INLINE void gemm_f_stretch(int format, const uint8_t *panel, const uint8_t *quants,
                           const uint8_t *acts, size_t row, uint32_t b0, uint32_t b1, int n,
                           float *acc) {
    const struct panel_info *info = &panel_infos[format];
    const uint32_t n_words = gemm_f_words(format, info->block);

    if (format != PANEL_FP8) {
        gemm_f_columns(quants, acts, row, gemm_f_words(format, b1 - b0), n, acc);
        return;
    }
    for (uint32_t b = b0; b < b1; b++, quants += 64 * n_words, acts += 4 * n_words) {
        const uint8_t *scale = gemm_f_block(format, panel, b) + info->quant_bytes;

        gemm_f_scaled_columns(quants, (const float *)scale, acts, row, n_words, n, acc);
    }
}

/* Implements gemm_wide.run. FP8 has one sum for each row and lane at any time; the others have two
 * until the last stretch. */
INLINE void gemm_f_many(int format, const struct mat *m, const uint8_t *panel,
                        const uint8_t *quants, const uint8_t *acts, uint32_t n_tiles, uint32_t b0,
                        uint32_t b1, float *acc) {
    const struct panel_info *info = &panel_infos[format];
    const size_t row = acts_bytes(info->acts, m->n_in, 1);
    const uint32_t n_rows = n_tiles * TILE_MAX, sums = 1 + (format != PANEL_FP8);

    acts += 4 * (size_t)gemm_f_words(format, b0 * info->block);
    if (b0 == 0)
        memset(acc, 0, (size_t)n_rows * sums * LANES * sizeof(*acc));
    for (uint32_t r = 0, n; r < n_rows; r += n) {
        const uint8_t *a = acts + r * row;
        float *to = acc + (size_t)r * sums * LANES;

        n = COLUMNS;
        if (n_rows - r < COLUMNS || n_rows - r == 2 * COLUMNS_LAST)
            n = COLUMNS_LAST;
        if (n == COLUMNS)
            gemm_f_stretch(format, panel, quants, a, row, b0, b1, COLUMNS, to);
        else
            gemm_f_stretch(format, panel, quants, a, row, b0, b1, COLUMNS_LAST, to);
    }
    for (uint32_t r = 0; r < n_rows && sums == 2 && b1 == m->n_blocks; r++)
        vf_store(acc + r * LANES,
                 vf_add(vf_load(acc + r * 2 * LANES), vf_load(acc + (r * 2 + 1) * LANES)));
}

/* Unpacks @n_words words at @p to @out. Prefetches the same, @next bytes further, into the
 * second-level cache. */
INLINE void gemm_f_unpack_words(int format, const uint8_t *p, ptrdiff_t next, uint32_t n_words,
                                uint8_t *out) {
    const size_t step = gemm_f_group(format);

    for (uint32_t i = 0; i < n_words; i += WORDS, p += step) {
        UNROLL
        for (size_t k = 0; k < step; k += 64)
            __builtin_prefetch(p + next + k, 0, 2);
        UNROLL
        for (int k = 0; k < WORDS; k++, out += 64)
            if (i + (uint32_t)k < n_words)
                WORD_UNPACK(out, WORD_LOAD(format, p, k));
    }
}

/* Implements gemm_wide.unpack. */
INLINE void gemm_f_widen(int format, const uint8_t *panel, ptrdiff_t next, uint32_t b0, uint32_t b1,
                         uint8_t *out) {
    const uint32_t block = panel_infos[format].block;
    uint32_t n_words = gemm_f_words(format, (b1 - b0) * block), n = n_words;

    if (format == PANEL_FP8)
        n = gemm_f_words(format, block);
    for (uint32_t i = 0; i < n_words; i += n, out += 64 * n)
        gemm_f_unpack_words(format, gemm_f_block(format, panel, b0++), next, n, out);
}

#define DEFINE_WIDE(name, format, ...)                                                             \
    static void widen_##name(const uint8_t *panel, ptrdiff_t next, uint32_t b0, uint32_t b1,       \
                             uint8_t *out) {                                                       \
        gemm_f_widen(format, panel, next, b0, b1, out);                                            \
    }                                                                                              \
    static void many_##name(const struct mat *m, const uint8_t *panel, const uint8_t *quants,      \
                            const uint8_t *acts, uint32_t n_tiles, uint32_t b0, uint32_t b1,       \
                            float *acc) {                                                          \
        gemm_f_many(format, m, panel, quants, acts, n_tiles, b0, b1, acc);                         \
    }
/* n_planes: bytes of an unpacked value */
#define ROW_WIDE(name, format, ...) [format] = {widen_##name, many_##name, WORDS, 1},
#else
#define DEFINE_WIDE(...)
#define ROW_WIDE(name, format, ...) [format] = {0},
#endif
