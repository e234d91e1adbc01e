/*
 * The work of attention as the kernel plans it (engine/cuda/plan.cu, on the emulator): every query
 * and chunk exactly once, and sequences on the same pages share their chunks.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include "base/rng.h"
#include "base/util.h"
#include "engine/engine.h"
#include "tests/engine/cuda/simt.h"

enum { SEQS = 300 };

/* What the kernel makes of a batch. */
static struct batch_head run_plan(const struct engine_batch *b, const struct plan_args *limits,
                                  struct attn_item *item, struct attn_merge *merge) {
    static struct plan_seq seq[SEQS];
    struct batch_head head = {
        .n_seqs = b->n_seqs, .seq = seq, .page_table = {b->table[KV_GLOBAL].page}};
    struct plan_args a = *limits;

    for (uint32_t i = 0; i < b->n_seqs; i++)
        seq[i] = (struct plan_seq){
            b->seq[i].row0, b->seq[i].n_rows, b->seq[i].pos0, b->table[KV_GLOBAL].start[i], 0, 0};
    a.batch = &head;
    a.item = item;
    a.merge = merge;
    simt_launch(kernel_plan, (struct simt_dim){1, 1, 1}, 0, &a);
    return head;
}

struct world {
    struct engine_seq seq[8];
    uint32_t start[9];
    struct engine_batch batch;
};

static void check_plan(struct world *w, const struct plan_args *l) {
    static struct attn_item item[20000];
    static struct attn_merge merge[4000];
    uint32_t n = 0, n_partials = 0;
    struct batch_head work = run_plan(&w->batch, l, item, merge);

    uint32_t m = 0;
    for (uint32_t i = 0; i < w->batch.n_seqs; i++) {
        const struct engine_seq *s = &w->seq[i];
        uint32_t n_queries = s->n_rows * l->group, covered = 0;

        while (covered < n_queries) {
            const struct attn_item *it = &item[n];
            uint32_t last = s->pos0 + (it->q0 + it->n_q - 1) / l->group, k = last / ATTN_CHUNK + 1;

            cr_assert(it->row0 == s->row0 && it->pos0 == s->pos0 && it->q0 == covered);
            cr_assert(it->page0 == w->start[i] && it->n_q >= 1);
            cr_assert(it->n_q <= (it->chunk < 0 ? l->wide : l->few));
            cr_assert(it->n_chunks == k);
            covered += it->n_q;
            if (it->chunk < 0) {
                n++;
                continue;
            }
            cr_assert(merge[m].row0 == s->row0 && merge[m].q0 == it->q0 && merge[m].n_q == it->n_q);
            cr_assert(merge[m].partial == n_partials && merge[m].n_chunks == k);
            cr_assert(merge[m].n_shared == 0);
            for (uint32_t c = 0; c < k; c++, n++)
                cr_assert(item[n].chunk == (int32_t)c && item[n].partial == n_partials + c &&
                          item[n].q0 == merge[m].q0 && item[n].n_q == merge[m].n_q &&
                          item[n].merge == m && item[n].n_merges == 1);
            n_partials += k;
            m++;
        }
        cr_assert(covered == n_queries);
    }
    cr_expect(n == work.n_items && m == work.n_merges && n_partials <= l->max_partials);
}

Test(plan, the_work_of_attention_covers_every_query_and_chunk_once) {
    struct rng r = {3};

    for (int round = 0; round < 300; round++) {
        struct world w = {.batch.n_seqs = 1 + rng_below(&r, 8)};
        struct plan_args l = {.group = 1 + rng_below(&r, 20),
                              .n_head_kv = 1 + rng_below(&r, 8),
                              .n_multiprocessors = 1 + rng_below(&r, 140),
                              .max_partials = rng_below(&r, 200),
                              .page_tokens = 0,
                              .few = round % 3 ? ATTN_QUERIES : ATTN_LATENT};

        l.wide = round % 2 ? ATTN_WIDE : l.few;
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

/* Every chunk of every query must be in exactly one item, at the place where its merge looks for
 * it. */
static void check_shared_plan(const struct engine_batch *b, const struct plan_args *l,
                              uint64_t *n_saved) {
    static struct attn_item item[4000];
    static struct attn_merge merge[SEQS];
    uint32_t covered[SEQS] = {0};
    struct batch_head w = run_plan(b, l, item, merge);

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
                cr_assert(it->q0 == 0 && place + l->group <= it->n_q && it->n_q <= l->few);
                cr_assert(it->pos0 / ATTN_CHUNK >= c && partial < l->max_partials);
                cr_assert(it->merge <= m && m < it->merge + it->n_merges);
                cr_assert(it->n_merges == 1 || place == (m - it->merge) * l->group);
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

Test(plan, sequences_on_the_same_pages_share_their_chunks) {
    static uint32_t page[SEQS * 200], start[SEQS + 1];
    static struct engine_seq seq[SEQS];
    struct rng r = {4};
    uint64_t n_saved = 0;

    for (int round = 0; round < 300; round++) {
        bool many = round % 100 == 0; /* more than are planned at a time */
        struct engine_batch b = {.n_seqs = many ? SEQS : 1 + rng_below(&r, 8), .seq = seq};
        struct plan_args l = {.group = 1 + rng_below(&r, 8),
                              .n_head_kv = 1 + rng_below(&r, 8),
                              .n_multiprocessors = 1 + rng_below(&r, 140),
                              .max_partials = rng_below(&r, many ? 2000 : 200),
                              .page_tokens = 16,
                              .few = round % 2 ? ATTN_QUERIES : ATTN_LATENT};

        l.wide = l.few;
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
