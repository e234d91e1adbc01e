/*
 * work - who does what in attention. Queries (rows x heads of a group) of a sequence are cut into blocks of 16. A
 * block goes over all its chunks of 256 keys, or, when there are too few blocks to fill the device, every chunk
 * becomes an item of its own and a merge follows. Sequences of one row each that stand side by side and begin with the
 * same pages share the items of their common chunks: a block of 16 has queries of several of them, and the keys are
 * read once for all. The result is the same (engine/shared/pages.h), so this is free to look at the batch.
 */

#include "engine/cuda/cuda.h"

#include <string.h>

static uint32_t n_blocks_of(const struct engine_seq *s, uint32_t group) {
    return (s->n_rows * group + ATTN_QUERIES - 1) / ATTN_QUERIES;
}

/* A block of queries of one sequence: its chunks from @n_shared on, as one item or as many. */
static void plan_block(const struct attn_item *block, bool split, const struct attn_merge *shared,
                       struct attn_work *w) {
    struct attn_item item = *block;

    if (!split) {
        item.chunk = -1;
        w->item[w->n_items++] = item;
        return;
    }
    item.merge = w->n_merges;
    item.n_merges = 1;
    struct attn_merge *m = &w->merge[w->n_merges++];
    *m = *shared;
    m->row0 = item.row0;
    m->q0 = item.q0;
    m->n_q = item.n_q;
    m->partial = w->n_partials;
    m->n_chunks = item.n_chunks;
    for (uint32_t c = m->n_shared; c < item.n_chunks; c++) {
        item.chunk = (int32_t)c;
        item.partial = w->n_partials++;
        w->item[w->n_items++] = item;
    }
}

static void plan_seq(const struct engine_batch *b, uint32_t i, const struct attn_limits *l,
                     bool crowded, struct attn_work *w) {
    const struct engine_seq *s = &b->seq[i];
    const struct attn_merge nothing_shared = {0};
    uint32_t n_queries = s->n_rows * l->group;

    for (uint32_t q0 = 0; q0 < n_queries; q0 += ATTN_QUERIES) {
        uint32_t n_q = MIN(n_queries - q0, ATTN_QUERIES);
        uint32_t last = s->pos0 + (q0 + n_q - 1) / l->group, n_chunks = last / ATTN_CHUNK + 1;
        bool split = !crowded && n_chunks > 1 && n_chunks <= l->max_partials - w->n_partials;

        plan_block(&(struct attn_item){s->row0, s->pos0, q0, n_q, b->table[KV_GLOBAL].start[i], -1,
                                       0, n_chunks, 0, 0},
                   split, &nothing_shared, w);
    }
}

/* -- sharing -------------------------------------------------------------------------------------- */

/* Whole chunks, before the last of each, whose pages sequences @i and @k have in common. */
static uint32_t common_chunks(const struct engine_batch *b, uint32_t i, uint32_t k,
                              uint32_t page_tokens) {
    const uint32_t *start = b->table[KV_GLOBAL].start, *page = b->table[KV_GLOBAL].page;
    uint32_t max = MIN(b->seq[i].pos0, b->seq[k].pos0) / ATTN_CHUNK;
    uint32_t per_chunk = ATTN_CHUNK / page_tokens, n = 0;

    while (n < max && memcmp(page + start[i] + n * per_chunk, page + start[k] + n * per_chunk,
                             per_chunk * sizeof(*page)) == 0)
        n++;
    return n;
}

/* How many sequences from @i on share their beginning, and how many chunks of it; 1: none. A sequence that would more
 * than halve what is shared begins a group of its own. */
static uint32_t group_at(const struct engine_batch *b, uint32_t i, const struct attn_limits *l,
                         uint32_t *n_shared) {
    uint32_t n = 1;

    for (; i + n < b->n_seqs && (n + 1) * l->group <= ATTN_QUERIES; n++) {
        const struct engine_seq *s = &b->seq[i + n];

        if (b->seq[i].n_rows != 1 || s->n_rows != 1 || s->row0 != b->seq[i].row0 + n)
            break;
        uint32_t common = common_chunks(b, i, i + n, l->page_tokens);
        if (common == 0 || (n > 1 && common < *n_shared / 2))
            break;
        *n_shared = n > 1 ? MIN(common, *n_shared) : common;
    }
    return n;
}

/* Plans the group of sequences that begins with @i. Returns how many they are; 0: they share nothing, or there is no
 * room for their partial results. */
static uint32_t plan_group(const struct engine_batch *b, uint32_t i, const struct attn_limits *l,
                           struct attn_work *w) {
    uint32_t n_shared = 0, n = l->page_tokens ? group_at(b, i, l, &n_shared) : 1;
    uint64_t partials = n_shared;

    for (uint32_t k = i; k < i + n; k++)
        partials += b->seq[k].pos0 / ATTN_CHUNK + 1 - n_shared;
    if (n < 2 || partials > l->max_partials - w->n_partials)
        return 0;
    struct attn_merge shared = {.shared = w->n_partials, .n_shared = n_shared};
    for (uint32_t c = 0; c < n_shared; c++)
        w->item[w->n_items++] = (struct attn_item){
            b->seq[i].row0, b->seq[i].pos0,  0,        n * l->group, b->table[KV_GLOBAL].start[i],
            (int32_t)c,     w->n_partials++, n_shared, w->n_merges,  n};
    for (uint32_t k = i; k < i + n; k++) {
        const struct engine_seq *s = &b->seq[k];

        shared.shared_q = (k - i) * l->group;
        plan_block(&(struct attn_item){s->row0, s->pos0, 0, l->group, b->table[KV_GLOBAL].start[k],
                                       -1, 0, s->pos0 / ATTN_CHUNK + 1, 0, 0},
                   true, &shared, w);
    }
    return n;
}

void work_plan(const struct engine_batch *b, const struct attn_limits *l, struct attn_work *w) {
    uint64_t n_blocks = 0;

    w->n_items = w->n_merges = w->n_partials = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        n_blocks += n_blocks_of(&b->seq[i], l->group);
    bool crowded = n_blocks * l->n_head_kv >= 8ull * l->n_multiprocessors;
    for (uint32_t i = 0, n; i < b->n_seqs; i += n ? n : 1) {
        n = plan_group(b, i, l, w);
        if (!n)
            plan_seq(b, i, l, crowded, w);
    }
}
