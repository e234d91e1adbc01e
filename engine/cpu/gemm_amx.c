/*
 * gemm_amx - multiplies panels by many tiles with AMX, for the formats with blocks of 256. Matrix
 * instructions compute the integer sums of gemm_k.c; the floating-point part is the same code
 * (gemm_k.h), so the bits are the same.
 *
 * An instruction (TDPBSSD) multiplies 16 rows of 64 activations by 64 x 16 weights and adds to 16 x
 * 16 sums. The weights are 16 groups of a panel in the order in which the panel stores them; a row
 * of the result has the 16 lanes of one column of the tile.
 *
 * The sums of a block stay in a tile register until the block ends, so they cannot be multiplied by
 * the scales of sub-blocks. gemm_amx_unpack() therefore multiplies each weight by the scale of its
 * sub-block. The product, whose magnitude is at most 4096, is split into 64 high + low, both
 * signed bytes that lie in separate planes of memory. Then 64 (sum of high x) + (sum of low x) =
 * isum, exactly. Formats whose products fit into a byte have one plane.
 *
 * Two batches of 16 rows share the weights that are loaded. For 16 rows, 16 lanes and a block of
 * 256 values the bound is eight matrix instructions of 16 cycles. The vector instructions of the
 * floating-point part take about 90 cycles and run between the matrix instructions of the next
 * block (run_spans()).
 */

#include <assert.h>
#include <immintrin.h>

#include "engine/cpu/gemm_k.h"

/* ROWS: rows of activations of a tile register. Tile registers 0 to 3 hold sums (low and high of
 * the first 16 rows, then of the second 16), 4 and 5 activations, 6 and 7 weights (low, high). */
enum { ROWS = 16 };

/* number of planes of a format's unpacked weights */
#define PLANES(format)                                                                             \
    (2 - ((format) == PANEL_Q2K || (format) == PANEL_IQ1S || (format) == PANEL_TQ))

/* Subtracts @offset from 64 unsigned bytes, multiplies them by @scale, which has each lane's scale
 * in both of its 16-bit halves, and writes the products to one plane or two. */
INLINE void gemm_amx_split(vb w, __m512i scale, int offset, int planes, uint8_t *low,
                           uint8_t *high) {
    const __m512i bytes = _mm512_set1_epi16(255), z = _mm512_set1_epi16((short)offset);
    const __m512i six = _mm512_set1_epi16(63);
    __m512i even = _mm512_sub_epi16(_mm512_and_si512(w, bytes), z);
    __m512i odd = _mm512_sub_epi16(_mm512_srli_epi16(w, 8), z);

    even = _mm512_mullo_epi16(even, scale);
    odd = _mm512_mullo_epi16(odd, scale);
    if (planes == 1) {
        vb_store(low, _mm512_or_si512(_mm512_and_si512(even, bytes), _mm512_slli_epi16(odd, 8)));
        return;
    }
    vb_store(low, _mm512_or_si512(_mm512_and_si512(even, six),
                                  _mm512_slli_epi16(_mm512_and_si512(odd, six), 8)));
    vb_store(high, _mm512_or_si512(_mm512_and_si512(_mm512_srai_epi16(even, 6), bytes),
                                   _mm512_slli_epi16(_mm512_srai_epi16(odd, 6), 8)));
}

/* Implements gemm_wide.unpack: for each block the plane of low bytes, 64 groups, then the plane of
 * high bytes if there is one. */
INLINE void gemm_amx_unpack(int format, const uint8_t *panel, ptrdiff_t next, uint32_t b0,
                            uint32_t b1, uint8_t *out) {
    const struct shape f = shape_of(format);
    const struct panel_info *info = &panel_infos[format];
    const int planes = PLANES(format);
    uint8_t bytes[LANES * 256] __attribute__((aligned(64)));

    for (uint32_t b = b0; b < b1; b++, out += planes * LANES * 256) {
        const uint8_t *meta = panel + (size_t)b * info->unit_bytes + info->quant_bytes;

        gemm_wide_avx512[format].unpack(panel, next, b, b + 1, bytes);
        for (int g = 0; g < 64; g++) {
            vi s = vi_set1(1);

            if (!f.no_scale)
                s = vi_load_i8(meta + g / f.groups * LANES);
            s = _mm512_or_si512(_mm512_and_si512(s, vi_set1(0xFFFF)), _mm512_slli_epi32(s, 16));
            gemm_amx_split(vb_load(bytes + 64 * g), s, f.offset, planes, out + 64 * g,
                           out + LANES * 256 + 64 * g);
        }
    }
}

/* Computes step @k of the four that add up the integer sums of a block: 64 of its 256 values. For
 * 16 rows of activations at @q, or for 32 if @two. */
INLINE void gemm_amx_multiply(int planes, bool two, const uint8_t *q, size_t row,
                              const uint8_t *quants, int k) {
    _tile_loadd(6, quants + 1024 * k, 64);
    _tile_loadd(4, q + 64 * k, row);
    _tile_dpbssd(0, 4, 6);
    if (planes == 2) {
        _tile_loadd(7, quants + LANES * 256 + 1024 * k, 64);
        _tile_dpbssd(1, 4, 7);
    }
    if (two) {
        _tile_loadd(5, q + ROWS * row + 64 * k, row);
        _tile_dpbssd(2, 5, 6);
        if (planes == 2)
            _tile_dpbssd(3, 5, 7);
    }
}

/* Copies the sums from the tile registers to sums[low, high, low, high][16 rows][16 lanes]. */
INLINE void store_sums(int planes, bool two, int32_t (*sums)[LANES * ROWS]) {
    _tile_stored(0, sums[0], 64);
    if (planes == 2)
        _tile_stored(1, sums[1], 64);
    if (two)
        _tile_stored(2, sums[2], 64);
    if (two && planes == 2)
        _tile_stored(3, sums[3], 64);
}

/* Combines the planes' integer sums of eight columns, and computes the floating-point part of their
 * block. */
INLINE void gemm_amx_finish(struct shape f, int planes, const uint8_t *meta, struct cols a,
                            const int32_t *low, const int32_t *high, float *acc) {
    vi isum[TILE_MAX];
    vf sum[TILE_MAX];

    UNROLL
    for (int c = 0; c < TILE_MAX; c++) {
        isum[c] = vb_load(low + LANES * c);
        if (planes == 2)
            isum[c] = vi_add(isum[c], _mm512_slli_epi32(vb_load(high + LANES * c), 6));
        sum[c] = vf_load(acc + LANES * c);
    }
    gemm_k_add_block(f, meta, a, TILE_MAX, isum, sum);
    UNROLL
    for (int c = 0; c < TILE_MAX; c++)
        vf_store(acc + LANES * c, sum[c]);
}

/* Operand of LDTILECFG: all eight tile registers have 16 rows of 64 bytes. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS},
};

/* A span: two or four consecutive tiles, 16 or 32 rows, that go through the blocks [b0, b1) of a
 * panel together. */
struct span {
    const struct mat *m;
    /* quants: unpacked weights; acts: the first row */
    const uint8_t *panel, *quants, *acts;
    /* bytes from a row of activations to the next */
    size_t row;
    /* sums of the first row */
    float *out;
    uint32_t b0, b1;
};

/* Computes the floating-point part of block @b for tile @i of a span. */
INLINE void finish_tile(int format, const struct span *s, uint32_t b, uint32_t i,
                        int32_t (*sums)[LANES * ROWS]) {
    const struct panel_info *info = &panel_infos[format];
    const uint8_t *meta = s->panel + (size_t)b * info->unit_bytes + info->quant_bytes;
    const uint8_t *at = s->acts + s->m->n_in + (size_t)b * AK_UNITS * 4;
    struct cols a = {NULL, at + i * TILE_MAX * s->row, s->row};
    uint32_t half = i % 2 * TILE_MAX * LANES;

    gemm_amx_finish(shape_of(format), PLANES(format), meta, a, sums[i / 2 * 2] + half,
                    sums[i / 2 * 2 + 1] + half, s->out + i * TILE_MAX * LANES);
}

/* Computes @n consecutive spans, of four tiles if @two, else of two. The floating-point part of a
 * block is placed between the matrix instructions of the next block, one tile after each of the
 * four steps. Out-of-order execution alone does not overlap the two, because a core stops looking
 * ahead when it has no tile register left for renaming. */
INLINE void run_spans(int format, bool two, struct span *s, uint32_t n) {
    const int planes = PLANES(format);
    const uint32_t n_blocks = s->b1 - s->b0, tiles = 2 + 2 * two;
    int32_t sums[4][LANES * ROWS] __attribute__((aligned(64)));
    struct span last = *s; /* the span whose sums of block last_b are ready */
    uint32_t last_b = 0;

    for (uint32_t i = 0; i <= n * n_blocks; i++) {
        uint32_t b = i % n_blocks;

        if (i < n * n_blocks) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        UNROLL
        for (int k = 0; k < 4; k++) {
            if (i < n * n_blocks)
                gemm_amx_multiply(planes, two, s->acts + (size_t)(s->b0 + b) * 256, s->row,
                                  s->quants + (size_t)b * (size_t)(planes * LANES * 256), k);
            if (i > 0 && (uint32_t)k < tiles)
                finish_tile(format, &last, last_b, (uint32_t)k, sums);
        }
        if (i == n * n_blocks)
            return;
        store_sums(planes, two, sums);
        last = *s;
        last_b = s->b0 + b;
        if (b + 1 == n_blocks) {
            s->acts += tiles * TILE_MAX * s->row;
            s->out += tiles * TILE_MAX * LANES;
        }
    }
}

/* Implements gemm_wide.run for an even number of tiles. */
INLINE void gemm_amx_run(int format, const struct mat *m, const uint8_t *panel,
                         const uint8_t *quants, const uint8_t *acts, uint32_t n_tiles, uint32_t b0,
                         uint32_t b1, float *out) {
    struct span s = {m, panel, quants, acts, acts_bytes(ACTS_K, m->n_in, 1), out, b0, b1};

    assert(n_tiles % 2 == 0 && b0 < b1);
    _tile_loadconfig(&config);
    if (n_tiles >= 4)
        run_spans(format, true, &s, n_tiles / 4);
    if (n_tiles % 4)
        run_spans(format, false, &s, 1);
    _tile_release();
}

#define DEFINE(name, format, ...)                                                                  \
    static void unpack_##name(const uint8_t *panel, ptrdiff_t next, uint32_t b0, uint32_t b1,      \
                              uint8_t *out) {                                                      \
        gemm_amx_unpack(format, panel, next, b0, b1, out);                                         \
    }                                                                                              \
    static void run_##name(const struct mat *m, const uint8_t *panel, const uint8_t *quants,       \
                           const uint8_t *acts, uint32_t n_tiles, uint32_t b0, uint32_t b1,        \
                           float *acc) {                                                           \
        gemm_amx_run(format, m, panel, quants, acts, n_tiles, b0, b1, acc);                        \
    }

PANELS_K(DEFINE)

#define ROW(name, format, ...) [format] = {unpack_##name, run_##name, PLANES(format), 2},

const struct gemm_wide gemm_wide_amx[PANEL_FORMATS] = {
    PANELS_K(ROW)[PANEL_G4] = {gemm_g4_unpack_avx512, gemm_g4_unpacked_avx512, 1, 1}};
