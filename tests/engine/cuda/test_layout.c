/*
 * Tests the layouts of the CUDA backend by the headers that kernels use (engine/shared): blocks
 * decode as in engine/formats/quant; a tile holds every weight exactly once; pages hold every key
 * and value exactly once; the work of attention covers every query and chunk exactly once.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "engine/cuda/cuda.h"
#include "engine/cuda/pace.h"
#include "engine/cuda/products/matvec_way.h"
#include "engine/formats/quant.h"
#include "tests/support/few.h"

static const enum tensor_type types[] = {
    TENSOR_F32,   TENSOR_F16,     TENSOR_BF16,   TENSOR_Q4_0,   TENSOR_Q4_1,  TENSOR_Q5_0,
    TENSOR_Q5_1,  TENSOR_Q8_0,    TENSOR_Q2_K,   TENSOR_Q3_K,   TENSOR_Q4_K,  TENSOR_Q5_K,
    TENSOR_Q6_K,  TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4, TENSOR_IQ2_XS,
    TENSOR_IQ2_S, TENSOR_IQ3_XXS, TENSOR_IQ3_S,  TENSOR_IQ1_S,  TENSOR_IQ1_M, TENSOR_TQ1_0,
    TENSOR_TQ2_0, TENSOR_NVFP4};

enum { ROWS = 21, COLUMNS = 512 };

struct sample {
    uint8_t bytes[ROWS * COLUMNS * 4];
    float value[ROWS][COLUMNS];
    struct tile_source source;
};

/* Fills random blocks whose scales are finite. */
static void fill(struct sample *s, enum tensor_type type) {
    const struct tensor_format *f = tensor_format((uint32_t)type);
    size_t row = COLUMNS / f->block * f->block_bytes;
    struct rng r = {(uint64_t)type + 1};

    for (size_t i = 0; i < ROWS * row; i++)
        s->bytes[i] = (uint8_t)(rng_next(&r) >> 40);
    for (size_t i = 0; i < ROWS * row; i++) /* halves below 2, at any place */
        s->bytes[i] &= 0xBB;
    for (size_t i = 0; i < ROWS * row && type == TENSOR_MXFP4; i += f->block_bytes)
        /* all scales of a tensor fit in half precision */
        s->bytes[i] = (uint8_t)(112 + s->bytes[i] % 30);
    if (type == TENSOR_NVFP4)
        memcpy(s->bytes, "\x7F\xFF\x05", 3); /* NaN, negative, subnormal */
    for (uint32_t i = 0; i < ROWS; i++)
        quant_decode(type, s->bytes + i * row, s->value[i], COLUMNS);
    s->source = (struct tile_source){s->bytes, &quant_grids,   row,  (uint32_t)type,
                                     f->block, f->block_bytes, ROWS, COLUMNS};
}

/* Fills blocks of Q5_0 that are made of 4-bit codes: each 64 columns of a row have a scale and a
 * zero point, of which each value occurs. In some groups codes do not reach 0, or all are alike. */
static void fill_groups(struct sample *s) {
    struct rng r = {3};

    fill(s, TENSOR_Q5_0);
    for (uint32_t group = 0; group < ROWS * COLUMNS / 64; group++) {
        uint8_t *b = s->bytes + group * 44;
        uint32_t zero = group % 17, least = group % 3 ? 0 : rng_below(&r, 16);

        memcpy(b + 22, b, 2);
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t code = least + rng_below(&r, 16 - least) + 16 - zero, k = i % 32;
            uint8_t *block = b + i / 32 * 22, *nibble = block + 6 + k % 16;

            block[2 + k / 8] &= ~(1u << k % 8);
            block[2 + k / 8] |= code >> 4 << k % 8;
            *nibble = k < 16 ? (*nibble & 0xF0) | (code & 15) : (*nibble & 15) | code << 4;
        }
    }
    for (uint32_t i = 0; i < ROWS; i++)
        quant_decode(TENSOR_Q5_0, s->bytes + i * s->source.row_bytes, s->value[i], COLUMNS);
}

/* Sources of tiles: the types, and groups of 64 columns. */
enum { SAMPLES = ARRAY_SIZE(types) + 1 };

static enum tile_format format_of_sample(size_t i) {
    return i < ARRAY_SIZE(types) ? tile_format_of((uint32_t)types[i]) : TILE_G4;
}

static void fill_sample(struct sample *s, size_t i) {
    if (i < ARRAY_SIZE(types))
        fill(s, types[i]);
    else
        fill_groups(s);
}

Test(layout, blocks_decode_as_quant_does) {
    static struct sample s;

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        fill(&s, types[i]);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t k = 0; k < COLUMNS; k++) {
                float v = tile_value_at(&s.source, r, k);

                cr_assert(memcmp(&v, &s.value[r][k], 4) == 0, "%s row %u column %u: %g, not %g",
                          tensor_format((uint32_t)types[i])->name, r, k, (double)v,
                          (double)s.value[r][k]);
            }
    }
}

/* The largest scale of all tiles determines the unit. */
static int unit_of(uint32_t f, const struct tile_source *s) {
    float most = 0;

    for (uint32_t row = 0; row < ROWS; row += TILE_ROWS)
        for (uint32_t u = 0; u < tile_units(f, COLUMNS); u++)
            for (uint32_t i = 0; i < TILE_SCALES(f); i++) {
                struct tile_source from = *s;

                from.data += row * from.row_bytes;
                from.n_rows -= row;
                most = MAX(most, tile_scale_size(f, &from, u * tile_k(f), i));
            }
    return tile_unit(f, most);
}

static void pack_tile(uint32_t f, const struct tile_source *s, uint32_t k0, int unit,
                      uint8_t *tile) {
    uint8_t *exponents = tile + tile_code_bytes(f);

    for (uint32_t i = 0; i < tile_code_bytes(f) / 4; i++) {
        uint32_t w = tile_code_word(f, s, k0, i / 128, i / 4 % 32, i % 4);

        memcpy(tile + 4 * i, &w, 4);
    }
    for (uint32_t i = tile_code_bytes(f); i < tile_bytes(f); i++)
        tile[i] = tile_scale_byte(f, s, k0, i - tile_code_bytes(f));
    for (uint32_t i = 0; i < tile_n_halves(f); i++) {
        uint16_t *half = (uint16_t *)(tile + tile_half_at(f, i));

        *half = tile_scaled_half(f, i, *half, unit);
    }
    for (uint32_t i = 0; i < 2 * TILE_ROWS && f == TILE_MXFP4; i++)
        exponents[i] = tile_scaled_exponent(exponents[i], unit);
}

Test(layout, a_tile_holds_the_values_of_the_file) {
    static struct sample s;
    _Alignas(16) uint8_t tile[4096];

    for (size_t i = 0; i < SAMPLES; i++) {
        uint32_t f = format_of_sample(i);

        if (f >= TILE_LOW)
            continue;
        fill_sample(&s, i);
        int unit = unit_of(f, &s.source);
        for (uint32_t row = 0; row < ROWS; row += TILE_ROWS)
            for (uint32_t u = 0; u < tile_units(f, COLUMNS); u++) {
                struct tile_source from = s.source;

                from.data += row * from.row_bytes;
                from.n_rows -= row;
                pack_tile(f, &from, u * tile_k(f), unit, tile);
                for (uint32_t r = 0; r < TILE_ROWS; r++)
                    for (uint32_t k = 0; k < tile_k(f); k++) {
                        float v = tile_read(f, tile, r, k, tile_power_of_two(-unit));
                        float x = row + r < ROWS ? s.value[row + r][u * tile_k(f) + k] : 0;

                        if (f == TILE_F16)
                            x = mx_half_to_float(mx_float_to_half(x));
                        /* half of the last bit of the smallest minimum */
                        float off = tile_has_minima(f) ? tile_power_of_two(-25 - unit) : 0;
                        cr_assert(fabsf(v - x) <= off, "format %u row %u column %u: %g, not %g", f,
                                  row + r, u * tile_k(f) + k, (double)v, (double)x);
                    }
            }
    }
}

static uint32_t half_word(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8;
}

static const struct tile_grids *grids(void) {
    static struct tile_grids all;

    tile_grids_fill(&all, &quant_grids);
    return &all;
}

/* Returns weight [r][k] by the table of tiles_low.h, divided by d; @half: the first of the row's
 * halves. */
static float low_value(uint32_t type, uint32_t r, uint32_t k, const uint8_t *codes,
                       const uint8_t *scales, const float *half) {
    uint32_t f = tile_format_of(type), j = k % 64 / 16, t = k % 16 / 4, e = k % 4, high = r / 8;
    uint32_t g = r % 8, lane = 4 * g + t, c = 2 * j + high, pair = lane / 2, eight = k % 8 / 4;
    const uint8_t *upper = codes + LOW_INDEX_BYTES(f) + lane * 4;

    if (f == TILE_Q2_K || f == TILE_Q3_K) {
        uint32_t at = e / 2 * 16 + 8 * (j % 2) + 4 * (e % 2) + 2 * high;
        uint32_t q = tile_word(codes + lane * 8 + j / 2 * 4) >> at & 3;

        if (f == TILE_Q3_K) {
            q |= (tile_word(upper) >> (e / 2 * 16 + 4 * j + e % 2 + 2 * high) & 1) << 2;
            return half[0] * (float)(scales[8 * g + 4 * high + j] - 128) * ((float)q - 4);
        }
        uint32_t s = half_word(scales + 8 * g + 2 * high) >> (4 * j) & 15;
        uint32_t m = half_word(scales + 8 * g + 4 + 2 * high) >> (4 * j) & 15;
        float scaled = half[0] * (float)s * (float)q;
        return scaled - half[2] * (float)m;
    }
    bool minus = f != TILE_IQ1 && tile_word(upper) >> tile_sign_bit(e, c) & 1;
    uint32_t s = f == TILE_IQ3 ? (uint32_t)scales[2 * g + high] >> (j / 2 * 4)
                               : half_word(scales + 4 * g + 2 * high) >> (4 * j);
    float d = half[0] * (float)(2 * (s & 15) + 1), v;
    if (f == TILE_IQ3) {
        uint32_t at = codes[lane * 8 + c] | (codes[256 + lane] >> c & 1u) << 8;

        v = (float)(((const uint32_t *)tile_grid_of(type, grids()))[at] >> (8 * e) & 255) / 2;
    } else {
        uint32_t more = f == TILE_IQ1 ? tile_word(codes + 128 + pair * 4) >> (4 * c) & 15
                                      : half_word(codes + 128 + pair * 2) >> (2 * c) & 3;
        uint32_t at = codes[pair * 8 + c] | (more & 7) << 8;
        uint32_t n = ((const uint16_t *)tile_grid_of(type, grids()))[2 * at + eight] >> (4 * e) & 3;
        uint32_t sizes = f == TILE_IQ2 ? GRID_IQ2 : more & 8 ? GRID_IQ1_MORE : GRID_IQ1_LESS;

        v = ((float)(sizes >> (8 * n) & 255) - (f == TILE_IQ1 ? 16 : 0)) / 8;
    }
    return minus ? -(d * v) : d * v;
}

/* Reads the tile as kernels do. */
static float low_read(uint32_t type, const uint8_t *tile, uint32_t r, uint32_t k, int unit) {
    uint32_t f = tile_format_of(type), slice = k / 64, n = f == TILE_Q2_K ? 4 : 2;
    const uint8_t *scales = tile + tile_code_bytes(f) + slice * LOW_SCALE_BYTES(f);
    uint32_t first = r % 8 * n + r / 8;
    float half[4] = {0};

    for (uint32_t i = 0; i < n; i += 2) {
        float h = blk_half(tile + tile_half_at(f, first + i));
        int power = tile_half_power(f, first + i);

        half[i] = h * tile_power_of_two(-unit - power);
    }
    return low_value(type, r, k, tile + slice * LOW_CODE_BYTES(f), scales, half);
}

Test(layout, a_tile_of_few_bits_holds_the_values_of_the_file) {
    static struct sample s;
    _Alignas(16) uint8_t tile[4096];

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        uint32_t type = (uint32_t)types[i], f = tile_format_of(type);

        if (f < TILE_LOW)
            continue;
        fill(&s, types[i]);
        int unit = unit_of(f, &s.source);
        for (uint32_t row = 0; row < ROWS; row += TILE_ROWS)
            for (uint32_t u = 0; u < COLUMNS / 256; u++) {
                struct tile_source from = s.source;

                from.data += row * from.row_bytes;
                from.n_rows -= row;
                pack_tile(f, &from, u * 256, unit, tile);
                for (uint32_t at = 0; at < TILE_ROWS * 256; at += FEWER(1, 9)) {
                    uint32_t r = at / 256, k = at % 256;
                    float v = low_read(type, tile, r, k, unit);
                    float x = row + r < ROWS ? s.value[row + r][u * 256 + k] : 0;

                    cr_assert(v == x, "%s row %u column %u: %g, not %g", tensor_format(type)->name,
                              row + r, u * 256 + k, (double)v, (double)x);
                }
            }
    }
}

/* Flipping a bit of a tile must change exactly one weight, or those that share a scale; every bit
 * of the codes must have an effect. */
Test(layout, every_bit_of_the_codes_is_a_bit_of_one_weight) {
    static struct sample s;
    _Alignas(16) uint8_t tile[4096];

    for (uint32_t f = TILE_Q8_0; f < TILE_LOW; f++) {
        size_t i = 0;

        while (format_of_sample(i) != f)
            i++;
        fill_sample(&s, i);
        pack_tile(f, &s.source, 0, unit_of(f, &s.source), tile);
        uint32_t bits = 0;
        for (uint32_t r = 0; r < TILE_ROWS; r++)
            for (uint32_t k = 0; k < tile_k(f); k++) {
                uint32_t q = (uint32_t)tile_read_code(f, tile, r, k);

                cr_assert(q == tile_code_at(f, &s.source, r, k));
                bits += f == TILE_Q8_0                                       ? 8
                        : f == TILE_Q6_K                                     ? 6
                        : f == TILE_Q5_K || f == TILE_Q5_0 || f == TILE_Q5_1 ? 5
                                                                             : 4;
            }
        cr_expect(bits == tile_code_bytes(f) * 8, "format %u", f);
    }
}

/* A group of 4-bit codes has the same weights in both formats, with a fifth of the bits less. */
Test(layout, groups_have_the_weights_of_q5_0) {
    static struct sample s;
    _Alignas(16) uint8_t tile[2][1024];

    fill_groups(&s);
    int unit = unit_of(TILE_G4, &s.source);
    cr_expect(unit == unit_of(TILE_Q5_0, &s.source));
    cr_expect(5 * tile_bytes(TILE_G4) < 4 * tile_bytes(TILE_Q5_0));
    for (uint32_t u = 0; u < COLUMNS / 64; u++) {
        pack_tile(TILE_G4, &s.source, u * 64, unit, tile[0]);
        pack_tile(TILE_Q5_0, &s.source, u * 64, unit, tile[1]);
        for (uint32_t at = 0; at < TILE_ROWS * 64; at++) {
            float inverse = tile_power_of_two(-unit);
            float v = tile_read(TILE_G4, tile[0], at / 64, at % 64, inverse);
            float x = tile_read(TILE_Q5_0, tile[1], at / 64, at % 64, inverse);

            cr_assert(memcmp(&v, &x, 4) == 0, "row %u column %u", at / 64, u * 64 + at % 64);
        }
    }
}

Test(layout, formats_of_256_columns_are_the_last) {
    for (uint32_t f = 0; f < TILE_FORMATS; f++)
        cr_expect(tile_k(f) == tile_sizes(f).columns, "format %u", f);
}

Test(layout, segments_cover_every_tile_once) {
    for (uint32_t n = 1; n < 300; n++) {
        cr_expect(tile_segment(n, 0) == 0 && tile_segment(n, TILE_SEGMENTS) == n);
        for (uint32_t s = 0; s < TILE_SEGMENTS; s++) {
            uint32_t width = tile_segment(n, s + 1) - tile_segment(n, s);

            cr_expect(tile_segment(n, s) <= tile_segment(n, s + 1));
            cr_expect(width <= n / TILE_SEGMENTS + 1, "%u, %u", n, s);
        }
    }
}

Test(layout, pages_hold_every_key_and_value_once) {
    static uint8_t seen[1 << 20];

    static const uint32_t widths[] = {16, 8, 4};

    for (int i = 0; i < 18; i++) {
        bool latent = i >= 9;
        struct page_shape p = {.n_head_kv = 3,
                               .head_dim = 96,
                               .page_tokens = 32,
                               .k = widths[i % 3],
                               .v = widths[latent ? i % 3 : i / 3],
                               .latent = latent};
        uint32_t k_size = p.k / 8, v_size = p.v / 8; /* 0: half a byte for each */

        memset(seen, 0, sizeof(seen));
        for (uint32_t h = 0; h < p.n_head_kv; h++)
            for (uint32_t t = 0; t < p.page_tokens; t++)
                for (uint32_t d = 0; d < p.head_dim; d++) {
                    size_t k = k_size ? (t * p.head_dim + d) * k_size
                                      : t * p.head_dim / 2 + page_key_byte(d);
                    size_t v = v_size ? (d * p.page_tokens + t) * v_size
                                      : page_value_row(d) * p.page_tokens + t;

                    seen[page_offset(&p, h, PAGE_K) + k] += k_size ? 16 : d % 8 < 4 ? 1 : 15;
                    if (!latent)
                        seen[page_offset(&p, h, PAGE_V) + v] += v_size ? 16 : d % 16 < 8 ? 1 : 15;
                    if (p.k < 16 && d % 32 == 0)
                        seen[page_offset(&p, h, PAGE_K_SCALES) + (t * 3 + d / 32) * 2] += 16;
                    if (p.v < 16 && d % 32 == 0 && !latent)
                        seen[page_offset(&p, h, PAGE_V_SCALES) + (d / 32 * 32 + t) * 2] += 16;
                }
        for (size_t at = 0; at < page_layer_bytes(&p); at++)
            cr_assert(seen[at] == 16 || (seen[at] == 0 && seen[at - 1] == 16), "byte %zu", at);
        cr_expect(seen[page_layer_bytes(&p)] == 0);
    }
}

/* The result of a product with 32 keys: lane 4 g + t has columns 2 t and 2 t + 1 of four blocks. */
Test(layout, a_lane_holds_the_probabilities_of_the_keys_whose_values_it_loads) {
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t seen = 0;

        for (uint32_t block = 0; block < 4; block++)
            for (uint32_t e = 0; e < 2; e++)
                seen |= 1u << attn_key_of_column(block, 2 * t + e);
        cr_expect(seen == 0xFFu << (8 * t));
    }
}

/* Numbers of blocks of matvec by registers, shared memory and row tiles; rings have two stages only
 * where that makes room for one more block. */
Test(layout, matvec_has_as_many_blocks_as_fit) {
    static const struct {
        int made_for, n_multiprocessors;
        uint32_t shared_kib, n_rows, n_tiles, n_blocks, n_stages;
        uint32_t format;
    } cases[] = {
        {90, 132, 196, 1, 768, 396, 3, TILE_Q4_K},  {90, 132, 196, 1, 768, 396, 2, TILE_Q6_K},
        {90, 132, 196, 1, 256, 256, 3, TILE_Q6_K},  {90, 132, 196, 1, 384, 384, 3, TILE_Q4_K},
        {90, 132, 196, 16, 768, 264, 3, TILE_Q4_K}, {90, 132, 196, 1, 100, 100, 3, TILE_Q6_K},
        {86, 82, 100, 1, 768, 164, 2, TILE_Q4_K},   {86, 82, 100, 1, 768, 82, 3, TILE_Q6_K}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct cuda_device d = {.made_for = cases[i].made_for,
                                .n_multiprocessors = cases[i].n_multiprocessors,
                                .shared_bytes = (size_t)cases[i].shared_kib << 10};
        uint32_t stage = tile_stage_bytes(cases[i].format);
        struct matvec_way way = matvec_way(&d, cases[i].n_rows, stage, cases[i].n_tiles, 0);

        cr_expect(way.n_blocks == cases[i].n_blocks && way.n_stages == cases[i].n_stages,
                  "%zu: %u blocks, %u stages", i, way.n_blocks, way.n_stages);
        cr_expect(way.shared == matvec_shared(stage, way.n_stages), "%zu", i);
    }
}

/* On every family a block of matvec_norm has room for its rings and the largest rows. */
Test(layout, norms_have_room_in_a_block) {
    static const struct {
        int made_for;
        uint32_t shared_kib, block_kib;
    } cases[] = {{80, 164, 163}, {86, 100, 99}, {89, 100, 99}, {90, 196, 227}, {120, 100, 99}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct cuda_device d = {.made_for = cases[i].made_for,
                                .n_multiprocessors = 100,
                                .shared_bytes = (size_t)cases[i].shared_kib << 10};
        uint32_t planes = BYTES_FAMILY(cases[i].made_for) ? 2 : 1, limit = cases[i].block_kib << 10;

        for (uint32_t f = 0; f < TILE_FORMATS; f++) {
            uint32_t most = matvec_norm_most(&d, tile_stage_bytes(f), planes);

            /* the driver's part of MATVEC_STATIC is not the block's */
            cr_expect(most + MATVEC_STATIC - 1024 <= limit, "%d, format %u: %u bytes",
                      cases[i].made_for, f, most);
        }
    }
}

/* Steps of 2.4 ms whose time then falls to 1.2 ms and rises to 4 ms. Sleeps last 60 us longer than
 * asked. Soon no step is seen late, and the host polls for at most a fifth of the time. */
Test(layout, the_host_sleeps_for_most_of_a_step) {
    static const int64_t times[] = {2400000, 1200000, 4000000};
    int64_t took = 0, now = 0;

    for (uint32_t i = 0; i < 60; i++) {
        int64_t time = times[i / 20], start = now, came = now + 30000;
        int64_t sleep = pace_sleep(took, start, came);

        came += sleep > 0 ? sleep + 60000 : 0;
        now = MAX(start + time, came + 1000);
        took = pace_took(took, start, came, now, sleep > 0);
        if (i % 20 < 10)
            continue;
        cr_expect(now == start + time, "step %u is seen %" PRId64 " ns late", i,
                  now - start - time);
        cr_expect(now - came <= time / 5, "step %u: polls for %" PRId64 " ns", i, now - came);
    }
    cr_expect(pace_sleep(0, 0, 0) == 0, "nothing is known of the first step");
    cr_expect(pace_sleep(INT64_MAX / 2, 0, 0) == PACE_MOST_NS);
    cr_expect(pace_took(5000, 0, 9000, 9001, false) == 5000, "it ended before the host came");
}
