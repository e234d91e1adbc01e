/*
 * The orders in which the CUDA backend keeps things, by the headers that the kernels use (engine/shared): blocks
 * decode as engine/quant does, a tile holds every weight exactly once, pages hold every key and value exactly
 * once, attention's work covers every query and chunk exactly once.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include "base/rng.h"
#include "engine/cuda/cuda.h"
#include "engine/quant.h"

static const enum tensor_type types[] = {TENSOR_F32,  TENSOR_F16,     TENSOR_BF16,   TENSOR_Q4_0,
                                         TENSOR_Q4_1, TENSOR_Q5_0,    TENSOR_Q5_1,   TENSOR_Q8_0,
                                         TENSOR_Q2_K, TENSOR_Q3_K,    TENSOR_Q4_K,   TENSOR_Q5_K,
                                         TENSOR_Q6_K, TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS};

enum { ROWS = 21, COLUMNS = 512 };

struct sample {
    uint8_t bytes[ROWS * COLUMNS * 4];
    float value[ROWS][COLUMNS];
    struct tile_source source;
};

/* Random blocks whose scales are finite. */
static void fill(struct sample *s, enum tensor_type type) {
    const struct tensor_format *f = tensor_format((uint32_t)type);
    size_t row = COLUMNS / f->block * f->block_bytes;
    struct rng r = {(uint64_t)type + 1};

    for (size_t i = 0; i < ROWS * row; i++)
        s->bytes[i] = (uint8_t)(rng_next(&r) >> 40);
    for (size_t i = 0; i + 1 < ROWS * row; i++) /* no half with all exponent bits, wherever it is */
        s->bytes[i] &= 0xBB;
    for (uint32_t i = 0; i < ROWS; i++)
        quant_decode(type, s->bytes + i * row, s->value[i], COLUMNS);
    s->source = (struct tile_source){s->bytes, quant_iq2_xxs_grid, row,  (uint32_t)type,
                                     f->block, f->block_bytes,     ROWS, COLUMNS};
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

static void pack_tile(uint32_t f, const struct tile_source *s, uint32_t k0, uint8_t *tile) {
    for (uint32_t i = 0; i < tile_code_bytes(f) / 4; i++) {
        uint32_t w = tile_code_word(f, s, k0, i / 128, i / 4 % 32, i % 4);

        memcpy(tile + 4 * i, &w, 4);
    }
    for (uint32_t i = tile_code_bytes(f); i < tile_bytes(f); i++)
        tile[i] = tile_scale_byte(f, s, k0, i - tile_code_bytes(f));
}

Test(layout, a_tile_holds_the_values_of_the_file) {
    static struct sample s;
    uint8_t tile[4096];

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        uint32_t f = tile_format_of((uint32_t)types[i]);

        fill(&s, types[i]);
        for (uint32_t row = 0; row < ROWS; row += TILE_ROWS)
            for (uint32_t u = 0; u < tile_units(f, COLUMNS); u++) {
                struct tile_source from = s.source;

                from.data += row * from.row_bytes;
                from.n_rows -= row;
                pack_tile(f, &from, u * tile_k(f), tile);
                for (uint32_t r = 0; r < TILE_ROWS; r++)
                    for (uint32_t k = 0; k < tile_k(f); k++) {
                        float v = tile_read(f, tile, r, k);
                        float x = row + r < ROWS ? s.value[row + r][u * tile_k(f) + k] : 0;

                        if (f == TILE_F16)
                            x = mx_half_to_float(mx_float_to_half(x));
                        cr_assert(v == x, "%s row %u column %u: %g, not %g",
                                  tensor_format((uint32_t)types[i])->name, row + r,
                                  u * tile_k(f) + k, (double)v, (double)x);
                    }
            }
    }
}

/* Flipping a bit of a tile changes exactly one weight, or those that share a scale; no bit of the codes is idle. */
Test(layout, every_bit_of_the_codes_is_a_bit_of_one_weight) {
    static struct sample s;
    uint8_t tile[4096];

    for (uint32_t f = TILE_Q8_0; f < TILE_FORMATS; f++) {
        size_t i = 0;

        while (tile_format_of((uint32_t)types[i]) != f)
            i++;
        fill(&s, types[i]);
        pack_tile(f, &s.source, 0, tile);
        uint32_t bits = 0;
        for (uint32_t r = 0; r < TILE_ROWS; r++)
            for (uint32_t k = 0; k < tile_k(f); k++) {
                uint32_t q = (uint32_t)tile_read_code(f, tile, r, k);

                cr_assert(q == tile_code_at(f, &s.source, r, k));
                bits += f == TILE_Q8_0 ? 8 : f == TILE_Q6_K ? 6 : f == TILE_Q5_K ? 5 : 4;
            }
        cr_expect(bits == tile_code_bytes(f) * 8, "format %u", f);
    }
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

    for (int q8 = 0; q8 < 2; q8++) {
        struct page_shape p = {.n_head_kv = 3, .head_dim = 96, .page_tokens = 32, .q8 = q8};
        uint32_t size = q8 ? 1 : 2;

        memset(seen, 0, sizeof(seen));
        for (uint32_t h = 0; h < p.n_head_kv; h++)
            for (uint32_t t = 0; t < p.page_tokens; t++)
                for (uint32_t d = 0; d < p.head_dim; d++) {
                    seen[page_offset(&p, h, PAGE_K) + (t * p.head_dim + d) * size]++;
                    seen[page_offset(&p, h, PAGE_V) + (d * p.page_tokens + t) * size]++;
                    if (q8 && d % 32 == 0) {
                        seen[page_offset(&p, h, PAGE_K_SCALES) + (t * 3 + d / 32) * 2]++;
                        seen[page_offset(&p, h, PAGE_V_SCALES) + (d / 32 * 32 + t) * 2]++;
                    }
                }
        for (size_t i = 0; i < page_layer_bytes(&p); i++)
            cr_assert(seen[i] == 1 || (seen[i] == 0 && seen[i - 1] == 1), "byte %zu", i);
        cr_expect(seen[page_layer_bytes(&p)] == 0);
    }
}

/* The columns of a product of 32 keys: lane 4 g + t holds columns 2 t, 2 t + 1 of four blocks. */
Test(layout, a_lane_holds_the_probabilities_of_the_keys_whose_values_it_loads) {
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t seen = 0;

        for (uint32_t block = 0; block < 4; block++)
            for (uint32_t e = 0; e < 2; e++)
                seen |= 1u << attn_key_of_column(block, 2 * t + e);
        cr_expect(seen == 0xFFu << (8 * t));
    }
}

struct world {
    struct engine_seq seq[8];
    uint32_t start[9];
    struct engine_batch batch;
};

static void check_plan(struct world *w, const struct attn_limits *l) {
    static struct attn_item item[20000];
    static struct attn_merge merge[4000];
    struct attn_work work = {.item = item, .merge = merge};
    uint32_t n = 0, n_partials = 0;

    work_plan(&w->batch, l, &work);
    for (uint32_t i = 0, m = 0; i < w->batch.n_seqs; i++) {
        const struct engine_seq *s = &w->seq[i];
        uint32_t n_queries = s->n_rows * l->group, covered = 0;

        while (covered < n_queries) {
            const struct attn_item *it = &item[n];
            uint32_t last = s->pos0 + (it->q0 + it->n_q - 1) / l->group, k = last / ATTN_CHUNK + 1;

            cr_assert(it->row0 == s->row0 && it->pos0 == s->pos0 && it->q0 == covered);
            cr_assert(it->page0 == w->start[i] && it->n_q >= 1 && it->n_q <= ATTN_QUERIES);
            cr_assert(it->n_chunks == k);
            covered += it->n_q;
            if (it->chunk < 0) {
                n++;
                continue;
            }
            cr_assert(merge[m].row0 == s->row0 && merge[m].q0 == it->q0 && merge[m].n_q == it->n_q);
            cr_assert(merge[m].partial == n_partials && merge[m].n_chunks == k);
            for (uint32_t c = 0; c < k; c++, n++)
                cr_assert(item[n].chunk == (int32_t)c && item[n].partial == n_partials + c &&
                          item[n].q0 == merge[m].q0);
            n_partials += k;
            m++;
        }
        cr_assert(covered == n_queries);
    }
    cr_expect(n == work.n_items && n_partials == work.n_partials && n_partials <= l->max_partials);
}

Test(layout, the_work_of_attention_covers_every_query_and_chunk_once) {
    struct rng r = {3};

    for (int round = 0; round < 300; round++) {
        struct world w = {.batch.n_seqs = 1 + rng_below(&r, 8)};
        struct attn_limits l = {1 + rng_below(&r, 20), 1 + rng_below(&r, 8), 1 + rng_below(&r, 140),
                                rng_below(&r, 200), 0};

        w.batch.seq = w.seq;
        w.batch.table[KV_GLOBAL].start = w.start;
        for (uint32_t i = 0; i < w.batch.n_seqs; i++) {
            uint32_t n = rng_below(&r, 2) ? 1 : 1 + rng_below(&r, 100);

            w.seq[i] = (struct engine_seq){
                .row0 = w.batch.n_rows, .n_rows = n, .pos0 = rng_below(&r, 5000)};
            w.start[i + 1] = w.start[i] + 7;
            w.batch.n_rows += n;
        }
        check_plan(&w, &l);
    }
}

/* Every chunk of every query must be in exactly one item, at the place where its merge looks for it. */
static void check_shared_plan(const struct engine_batch *b, const struct attn_limits *l,
                              uint64_t *n_saved) {
    static struct attn_item item[4000];
    static struct attn_merge merge[100];
    struct attn_work w = {.item = item, .merge = merge};
    uint32_t covered[8] = {0};

    work_plan(b, l, &w);
    cr_assert(w.n_partials <= l->max_partials);
    for (uint32_t m = 0; m < w.n_merges; m++) {
        const struct attn_merge *g = &merge[m];
        uint32_t i = g->row0; /* a row a sequence */

        cr_assert(i < b->n_seqs && g->q0 == 0 && g->n_q == l->group && covered[i]++ == 0);
        cr_assert(g->n_chunks == b->seq[i].pos0 / ATTN_CHUNK + 1 && g->n_shared < g->n_chunks);
        for (uint32_t c = 0; c < g->n_chunks; c++) {
            uint32_t partial = c < g->n_shared ? g->shared + c : g->partial + c - g->n_shared;
            uint32_t place = c < g->n_shared ? g->shared_q : 0, n = 0;

            for (uint32_t k = 0; k < w.n_items; k++) {
                const struct attn_item *it = &item[k];

                if (it->chunk < 0 || it->partial != partial)
                    continue;
                const uint32_t *own = b->table[KV_GLOBAL].page + b->table[KV_GLOBAL].start[i];
                const uint32_t *used = b->table[KV_GLOBAL].page + it->page0;
                cr_assert(it->chunk == (int32_t)c && it->row0 + place / l->group == i);
                cr_assert(it->q0 == 0 && place + l->group <= it->n_q && it->n_q <= ATTN_QUERIES);
                cr_assert(it->pos0 / ATTN_CHUNK >= c);
                for (uint32_t t = c * 16; t < c * 16 + (c < g->n_shared ? 16 : 1); t++)
                    cr_assert(own[t] == used[t]);
                n++;
            }
            cr_assert(n == 1);
        }
        *n_saved += g->n_shared && g->shared_q ? g->n_shared : 0;
    }
    for (uint32_t k = 0; k < w.n_items; k++) {
        if (item[k].chunk < 0)
            covered[item[k].row0]++;
    }
    for (uint32_t i = 0; i < b->n_seqs; i++)
        cr_assert(covered[i] == 1);
}

Test(layout, sequences_on_the_same_pages_share_their_chunks) {
    static uint32_t page[8 * 200];
    struct rng r = {4};
    uint64_t n_saved = 0;

    for (int round = 0; round < 300; round++) {
        struct engine_seq seq[8] = {0};
        uint32_t start[9] = {0};
        struct engine_batch b = {.n_seqs = 1 + rng_below(&r, 8), .seq = seq};
        struct attn_limits l = {1 + rng_below(&r, 8), 1 + rng_below(&r, 8), 1 + rng_below(&r, 140),
                                rng_below(&r, 200), 16};

        b.table[KV_GLOBAL].start = start;
        b.table[KV_GLOBAL].page = page;
        for (uint32_t i = 0; i < b.n_seqs; i++) {
            uint32_t pos0 = rng_below(&r, 3000), n = pos0 / 16 + 1;

            seq[i] = (struct engine_seq){.row0 = i, .n_rows = 1, .pos0 = pos0};
            start[i + 1] = start[i] + n;
            for (uint32_t k = 0; k < n; k++)
                page[start[i] + k] = i * 200 + k;
            if (i > 0 && rng_below(&r, 3)) { /* begins as the one before */
                uint32_t common = rng_below(&r, MIN(n, start[i] - start[i - 1]));

                memcpy(page + start[i], page + start[i - 1], common * sizeof(*page));
            }
        }
        check_shared_plan(&b, &l, &n_saved);
    }
    cr_expect(n_saved > 100, "%llu", (unsigned long long)n_saved);
}
