/*
 * Tests the work list of attention (engine/ops/attention/plan.cu, on the emulator) against a model
 * that is independent of how it is planned: it executes items and merges, with numbers of chunks in
 * place of their results. For each query, all chunks must be merged once, from left to right, on
 * pages with the same content as its own.
 */

#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "engine/engine.h"
#include "tests/engine/cuda/simt.h"

enum { SEQS = 300, ITEMS = 70000, PLACES = 64000, PAGES = 400 };

/* Output of the kernel for a batch. */
struct plan {
    struct attn_item item[ITEMS], wide_item[ITEMS];
    struct attn_merge merge[ITEMS];
    struct batch_head head;
};

static void run_plan(const struct engine_batch *b, const struct plan_args *limits, struct plan *p) {
    static struct plan_seq seq[SEQS];
    struct plan_args a = *limits;

    p->head = (struct batch_head){
        .n_seqs = b->n_seqs, .seq = seq, .page_table = {b->table[KV_GLOBAL].page}};
    for (uint32_t i = 0; i < b->n_seqs; i++)
        seq[i] = (struct plan_seq){
            b->seq[i].row0, b->seq[i].n_rows, b->seq[i].pos0, b->table[KV_GLOBAL].start[i], 0, 0};
    a.batch = &p->head;
    a.item = p->item;
    a.wide_item = a.shared > a.few || a.wide == ATTN_WIDE ? p->wide_item : NULL;
    a.merge = p->merge;
    simt_launch(kernel_plan, (struct simt_dim){1, 1, 1}, 0, &a);
    cr_assert(p->head.n_items <= ITEMS && p->head.n_wide_items <= ITEMS);
}

/* Content of a place of the partial results: chunks [from, to) of a query; from == to: none. */
struct result {
    uint32_t row, head, from, to;
};

struct model {
    const struct engine_batch *b;
    const struct plan_args *l;
    struct result place[PLACES];
    uint32_t row_seq[SEQS * 100];
    /* number of final results of each row and head */
    uint32_t done[SEQS * 100][32];
    uint64_t n_saved, n_wide, n_gone_on;
};

/* Expects that the keys of chunk @c in the table at @page0 are those of the row's sequence. */
static void check_pages(const struct model *m, uint32_t row, uint32_t page0, uint32_t c) {
    const struct engine_seq *s = &m->b->seq[m->row_seq[row]];
    uint32_t pos = s->pos0 + row - s->row0, per_chunk = ATTN_CHUNK / 16;
    const uint32_t *page = m->b->table[KV_GLOBAL].page;
    uint32_t own = m->b->table[KV_GLOBAL].start[m->row_seq[row]];

    for (uint32_t k = c * per_chunk; k < (c + 1) * per_chunk && k <= pos / 16; k++)
        cr_assert(page0 == own || page[page0 + k] == page[own + k]);
}

/* Adds results @r of the query to @sum, which must end where they begin. */
static void add(struct result *sum, uint32_t from, uint32_t to) {
    cr_assert(sum->to == from && to > from);
    sum->to = to;
}

static void add_shared(const struct model *m, const struct attn_shared *s, uint32_t q,
                       struct result *sum) {
    for (uint32_t r = 0; r < s->n_results; r++) {
        uint32_t index = s->partial + r * s->step + (s->place + q) / m->l->few;
        const struct result *x = &m->place[index * m->l->few + (s->place + q) % m->l->few];

        cr_assert(x->row == sum->row && x->head == sum->head);
        add(sum, x->from, x->to);
    }
    cr_assert(sum->to == s->n_chunks);
    cr_assert(s->n_results <= s->n_chunks);
}

/* Expects that @sum covers all that the query attends to, and that it is final for the first
 * time. */
static void finish(struct model *m, const struct result *sum, uint32_t n_chunks) {
    const struct engine_seq *s = &m->b->seq[m->row_seq[sum->row]];

    cr_assert(sum->from == 0 && sum->to <= n_chunks);
    cr_assert(sum->to == (s->pos0 + sum->row - s->row0) / ATTN_CHUNK + 1);
    cr_assert(m->done[sum->row][sum->head]++ == 0);
}

static void do_item(struct model *m, const struct attn_item *it) {
    const struct plan_args *l = m->l;
    uint32_t units = (it->n_q + l->few - 1) / l->few;

    cr_assert(it->n_q >= 1 && it->n_q <= (it->chunk < 0 ? l->wide : l->shared));
    for (uint32_t q = 0; q < it->n_q; q++) {
        uint32_t n = it->q0 + q, row = it->row0 + n / l->group;
        const struct engine_seq *s = &m->b->seq[m->row_seq[row]];
        struct result sum = {row, n % l->group, 0, 0};

        if (it->chunk < 0) {
            uint32_t n_chunks = (s->pos0 + row - s->row0) / ATTN_CHUNK + 1;

            cr_assert(it->pos0 == s->pos0 && it->n_run == 0);
            add_shared(m, &it->shared, q, &sum);
            m->n_gone_on += it->shared.n_results > 0;
            add(&sum, it->shared.n_chunks, n_chunks);
            for (uint32_t c = it->shared.n_chunks; c < n_chunks; c++)
                check_pages(m, row, it->page0, c);
            finish(m, &sum, it->n_chunks);
            continue;
        }
        cr_assert(it->n_run >= 1 && it->pos0 <= s->pos0 && it->shared.n_chunks == 0);
        m->n_saved += row != it->row0 ? it->n_run : 0;
        for (uint32_t k = 0; k < it->n_run; k++) {
            uint32_t c = (uint32_t)it->chunk + k, result = it->chunk ? k : 0;
            uint32_t index = it->partial + result * units + q / l->few;
            struct result *x = &m->place[index * l->few + q % l->few];

            cr_assert(index < l->max_partials);
            check_pages(m, row, it->page0, c);
            if (x->from == x->to)
                *x = (struct result){row, n % l->group, c, c};
            else
                cr_assert(it->chunk == 0 && k > 0);
            add(x, c, c + 1);
        }
    }
}

static void do_merge(struct model *m, const struct plan *p, uint32_t i) {
    const struct attn_merge *g = &p->merge[i];

    for (uint32_t q = 0; q < g->n_q; q++) {
        uint32_t n = g->q0 + q, row = g->row0 + n / m->l->group;
        const struct engine_seq *s = &m->b->seq[m->row_seq[row]];
        uint32_t n_chunks = (s->pos0 + row - s->row0) / ATTN_CHUNK + 1;
        struct result sum = {row, n % m->l->group, 0, 0};

        add_shared(m, &g->shared, q, &sum);
        for (uint32_t c = g->shared.n_chunks; c < n_chunks; c++) {
            uint32_t index = g->partial + c - g->shared.n_chunks;
            const struct result *x = &m->place[index * m->l->few + q];

            cr_assert(x->row == row && x->head == sum.head);
            add(&sum, x->from, x->to);
        }
        finish(m, &sum, g->n_chunks);
    }
}

static void check_plan(const struct engine_batch *b, const struct plan_args *l, struct model *m) {
    static struct plan p;

    memset(m->place, 0, sizeof(m->place));
    memset(m->done, 0, sizeof(m->done));
    m->b = b;
    m->l = l;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        for (uint32_t r = 0; r < b->seq[i].n_rows; r++)
            m->row_seq[b->seq[i].row0 + r] = i;
    run_plan(b, l, &p);
    for (uint32_t i = 0; i < p.head.n_wide_items; i++) {
        cr_assert(p.wide_item[i].n_q > l->few);
        do_item(m, &p.wide_item[i]);
        m->n_wide += p.wide_item[i].chunk >= 0;
    }
    /* shared results come before items that continue from them */
    for (uint32_t kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < p.head.n_items; i++)
            if (kind == (p.item[i].chunk < 0)) {
                cr_assert(p.item[i].n_q <= l->few || l->wide != ATTN_WIDE);
                do_item(m, &p.item[i]);
            }
    for (uint32_t i = 0; i < p.head.n_merges; i++)
        do_merge(m, &p, i);
    for (uint32_t r = 0; r < b->n_rows; r++)
        for (uint32_t h = 0; h < l->group; h++)
            cr_assert(m->done[r][h] == 1, "row %u, head %u", r, h);
}

struct world {
    struct engine_seq seq[SEQS];
    uint32_t start[SEQS + 1], page[SEQS * PAGES];
    struct engine_batch batch;
};

/* Adds a sequence of @n_rows rows from @pos0 on, whose first @common pages are those of the
 * previous one. */
static void add_seq(struct world *w, uint32_t n_rows, uint32_t pos0, uint32_t common) {
    uint32_t i = w->batch.n_seqs++, n = (pos0 + n_rows - 1) / 16 + 1;

    cr_assert(i < SEQS && n <= PAGES);
    w->seq[i] = (struct engine_seq){.row0 = w->batch.n_rows, .n_rows = n_rows, .pos0 = pos0};
    w->batch.n_rows += n_rows;
    w->start[i + 1] = w->start[i] + n;
    for (uint32_t k = 0; k < n; k++)
        w->page[w->start[i] + k] = i * PAGES + k;
    if (common)
        memcpy(w->page + w->start[i], w->page + w->start[i - 1], common * sizeof(*w->page));
}

static struct world *new_world(void) {
    static struct world w;

    w.batch = (struct engine_batch){.seq = w.seq};
    w.batch.table[KV_GLOBAL].start = w.start;
    w.batch.table[KV_GLOBAL].page = w.page;
    return &w;
}

static struct plan_args random_limits(struct rng *r, uint32_t most_group, uint32_t most_partials) {
    struct plan_args l = {.group = 1 + rng_below(r, most_group),
                          .n_head_kv = 1 + rng_below(r, 8),
                          .n_multiprocessors = 1 + rng_below(r, 140),
                          .max_partials = rng_below(r, most_partials),
                          .page_tokens = 16,
                          .part = 1 + rng_below(r, 8),
                          .long_chunks = 1 + rng_below(r, 12),
                          .wide_worth = 1 + rng_below(r, 6),
                          .few = rng_below(r, 3) ? ATTN_QUERIES : ATTN_LATENT};

    l.wide = rng_below(r, 2) ? l.few : l.few == ATTN_LATENT ? ATTN_LATENT : ATTN_WIDE;
    l.shared = rng_below(r, 2) || l.few == ATTN_LATENT ? l.few : ATTN_WIDE;
    return l;
}

static struct model model;

Test(plan, the_work_of_attention_covers_every_query_and_chunk_once) {
    struct rng r = {3};

    for (int round = 0; round < 300; round++) {
        struct world *w = new_world();
        struct plan_args l = random_limits(&r, 20, 200);

        for (uint32_t i = 1 + rng_below(&r, 8); i > 0; i--)
            add_seq(w, rng_below(&r, 2) ? 1 : 1 + rng_below(&r, 100), rng_below(&r, 5000), 0);
        check_plan(&w->batch, &l, &model);
    }
}

Test(plan, sequences_on_the_same_pages_share_their_chunks) {
    struct rng r = {4};

    for (int round = 0; round < 300; round++) {
        struct world *w = new_world();
        bool many = round % 10 == 0; /* sometimes more than are planned together */
        uint32_t n = !many ? 1 + rng_below(&r, 12) : round % 50 ? 60 : SEQS - 1;
        struct plan_args l = random_limits(&r, many ? 20 : 8, many ? 2000 : 400);

        for (uint32_t i = 0, before = 0; i < n; i++) {
            uint32_t pos0 = many ? 1500 + rng_below(&r, 1500) : rng_below(&r, 3000);
            uint32_t both = MIN(before, pos0 / 16);
            bool most = many && rng_below(&r, 8);

            add_seq(w, 1, pos0,
                    most               ? both - rng_below(&r, both / 8 + 1)
                    : rng_below(&r, 3) ? rng_below(&r, both + 1)
                                       : 0);
            before = pos0 / 16;
        }
        if (rng_below(&r, 4) == 0) /* beside a prompt */
            add_seq(w, 1 + rng_below(&r, 90), rng_below(&r, 3000), 0);
        check_plan(&w->batch, &l, &model);
    }
    cr_expect(model.n_saved > 1000, "%llu", (unsigned long long)model.n_saved);
    cr_expect(model.n_wide > 100, "%llu", (unsigned long long)model.n_wide);
    cr_expect(model.n_gone_on > 1000, "%llu", (unsigned long long)model.n_gone_on);
}

/* A piece of a long prompt beside 70 short sequences, which alone fill an H200: if two blocks of
 * each key head processed all chunks of the prompt, they would run long after the others have
 * ended. */
Test(plan, a_long_prompt_beside_many_sequences_is_split) {
    struct plan_args l = {.group = 4,
                          .n_head_kv = 8,
                          .n_multiprocessors = 132,
                          .max_partials = 2000,
                          .page_tokens = 16,
                          .part = 8,
                          .long_chunks = 8,
                          .wide_worth = 4,
                          .few = ATTN_QUERIES,
                          .wide = ATTN_WIDE,
                          .shared = ATTN_QUERIES};
    static struct plan p;

    for (int prompts = 1; prompts <= 20; prompts += 19) {
        struct world *w = new_world();

        for (uint32_t i = 0; i < 70; i++)
            add_seq(w, 1, 1000, 0);
        for (int i = 0; i < prompts; i++)
            add_seq(w, 64, 6000, 0);
        check_plan(&w->batch, &l, &model);
        run_plan(&w->batch, &l, &p);
        cr_expect(p.head.n_wide_items == (prompts == 1 ? 0 : 40), "%u", p.head.n_wide_items);
        cr_expect(p.head.n_merges == (prompts == 1 ? 16 : 0), "%u", p.head.n_merges);
    }
}

/* 64 sequences of 1,025 tokens on an H200 are 512 blocks of five chunks. A multiprocessor's share
 * are 3.9 of them. */
Test(plan, the_part_of_a_share_decides_what_is_whole) {
    struct plan_args l = {.group = 4,
                          .n_head_kv = 8,
                          .n_multiprocessors = 132,
                          .max_partials = 992,
                          .long_chunks = 8,
                          .wide_worth = 4,
                          .few = ATTN_QUERIES,
                          .wide = ATTN_QUERIES,
                          .shared = ATTN_QUERIES};
    static struct plan p;

    for (l.part = 1; l.part <= 8; l.part++) {
        struct world *w = new_world();

        for (uint32_t i = 0; i < 64; i++)
            add_seq(w, 1, 1024, 0);
        check_plan(&w->batch, &l, &model);
        run_plan(&w->batch, &l, &p);
        cr_expect(p.head.n_items == (l.part <= 3 ? 64 : 320), "%u: %u", l.part, p.head.n_items);
        cr_expect(p.head.n_merges == (l.part <= 3 ? 0 : 64), "%u: %u", l.part, p.head.n_merges);
    }
}

/* 16 sequences of six chunks, which two multiprocessors compute whole, and one of 700 tokens. */
Test(plan, a_sequence_of_more_chunks_than_long_chunks_is_split) {
    struct plan_args l = {.group = 4,
                          .n_head_kv = 8,
                          .n_multiprocessors = 2,
                          .max_partials = 992,
                          .part = 8,
                          .wide_worth = 4,
                          .few = ATTN_QUERIES,
                          .wide = ATTN_QUERIES,
                          .shared = ATTN_QUERIES};
    static struct plan p;

    for (l.long_chunks = 5; l.long_chunks <= 6; l.long_chunks++) {
        struct world *w = new_world();

        for (uint32_t i = 0; i < 16; i++)
            add_seq(w, 1, 5 * ATTN_CHUNK + 7, 0);
        add_seq(w, 1, 700, 0);
        check_plan(&w->batch, &l, &model);
        run_plan(&w->batch, &l, &p);
        cr_expect_eq(p.head.n_items, l.long_chunks == 5 ? 16 * 6 + 1 : 17, "%u", p.head.n_items);
    }
}

/* 128 sequences of 4k on an H200, with the first 3k in common: four blocks of 128 queries for each
 * of four runs of three chunks, and one item for the rest of each sequence. */
Test(plan, a_prefix_of_many_is_read_by_blocks_of_128_queries) {
    struct plan_args l = {.group = 4,
                          .n_head_kv = 8,
                          .n_multiprocessors = 132,
                          .max_partials = 992,
                          .page_tokens = 16,
                          .part = 8,
                          .long_chunks = 8,
                          .wide_worth = 4,
                          .few = ATTN_QUERIES,
                          .wide = ATTN_QUERIES,
                          .shared = ATTN_WIDE};
    static struct plan p;
    struct world *w = new_world();

    for (uint32_t i = 0; i < 128; i++)
        add_seq(w, 1, 4095, i > 0 ? 3072 / 16 : 0);
    check_plan(&w->batch, &l, &model);
    run_plan(&w->batch, &l, &p);
    cr_expect(p.head.n_wide_items == 16 && p.head.n_items == 128 && p.head.n_merges == 0);
    for (uint32_t i = 0; i < p.head.n_wide_items; i++)
        cr_expect(p.wide_item[i].n_q == 128 && p.wide_item[i].n_run == 3);

    /* Blocks of 128 queries that take eight times as long would finish later than small ones. */
    l.wide_worth = 8;
    check_plan(&w->batch, &l, &model);
    run_plan(&w->batch, &l, &p);
    cr_expect_eq(p.head.n_wide_items, 0);
    l.wide_worth = 4;

    /* Four sequences have too few queries to share; small items use the device better. */
    w = new_world();
    for (uint32_t i = 0; i < 4; i++)
        add_seq(w, 1, 4095, i > 0 ? 3072 / 16 : 0);
    check_plan(&w->batch, &l, &model);
    run_plan(&w->batch, &l, &p);
    cr_expect(p.head.n_wide_items == 0 && p.head.n_items == 12 + 4 * 4 && p.head.n_merges == 4);
}
