/*
 * work - who does what in attention. Queries (rows x heads of a group) of a sequence are cut into blocks of 16. A
 * block goes over all its chunks of 256 keys, or, when there are too few blocks to fill the device, every chunk
 * becomes an item of its own and a merge follows. The result is the same (engine/shared/pages.h), so this
 * is free to look at the batch.
 */

#include "engine/cuda/cuda.h"

static uint32_t n_blocks_of(const struct engine_seq *s, uint32_t group) {
    return (s->n_rows * group + ATTN_QUERIES - 1) / ATTN_QUERIES;
}

void work_plan(const struct engine_batch *b, const struct attn_limits *l, struct attn_work *w) {
    uint64_t n_blocks = 0;

    w->n_items = w->n_merges = w->n_partials = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        n_blocks += n_blocks_of(&b->seq[i], l->group);
    bool crowded = n_blocks * l->n_head_kv >= 8ull * l->n_multiprocessors;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct engine_seq *s = &b->seq[i];
        uint32_t n_queries = s->n_rows * l->group;

        for (uint32_t q0 = 0; q0 < n_queries; q0 += ATTN_QUERIES) {
            uint32_t n_q = MIN(n_queries - q0, ATTN_QUERIES);
            uint32_t last = s->pos0 + (q0 + n_q - 1) / l->group, n_chunks = last / ATTN_CHUNK + 1;
            bool split = !crowded && n_chunks > 1 && n_chunks <= l->max_partials - w->n_partials;
            struct attn_item item = {
                .row0 = s->row0,
                .pos0 = s->pos0,
                .q0 = q0,
                .n_q = n_q,
                .page0 = b->table[KV_GLOBAL].start[i],
                .chunk = -1,
                .n_chunks = n_chunks,
            };
            if (split)
                w->merge[w->n_merges++] =
                    (struct attn_merge){s->row0, q0, n_q, w->n_partials, n_chunks};
            for (uint32_t c = 0; c < (split ? n_chunks : 1); c++) {
                item.chunk = split ? (int32_t)c : -1;
                item.partial = split ? w->n_partials++ : 0;
                w->item[w->n_items++] = item;
            }
        }
    }
}
