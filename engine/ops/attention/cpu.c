/*
 * cpu - attention over pages: divides the work among threads and merges partial results in a
 * fixed order.
 *
 * Attention of one query is a softmax over all keys that it sees, which need not be computed at
 * once. A state (m, l, o) has, for some of the keys, the largest score m, the sum l of exp(s - m)
 * and the sum o of exp(s - m) v. The states of two sets of keys merge into the state of all these
 * keys by rescaling to the larger m (the online softmax of FlashAttention, Dao et al. 2022):
 *
 *     M = max(m1, m2)    l = l1 exp(m1 - M) + l2 exp(m2 - M)    o = o1 exp(m1 - M) + o2 exp(m2 - M)
 *     result = o / l
 *
 * So a long context can be divided among threads. But floating-point addition is not associative,
 * and a request must get the same bits alone, in a batch and after a preemption. The division
 * therefore depends on positions only, never on the batch or the number of threads. Every query has
 * this reduction tree:
 *
 *     position  0       256      512      768   query
 *               |chunk 0 |chunk 1 |chunk 2 |chunk 3|
 *     tiles     |32|32|..|        |        |..|32|.|      inside a chunk: tile after tile
 *     merge      ((chunk 0 + chunk 1) + chunk 2) + chunk 3
 *
 * cpu_tiles.c computes one tile of 32 keys for up to four queries.
 *
 * Items of work. Decode is bound by memory bandwidth, so a pass over keys and values should serve
 * as many queries as possible. An item is one kv head of a block of rows; its queries go through
 * the pages together:
 *
 *     the query heads that share the kv head (grouped-query attention)
 *     x neighbouring rows of a prompt
 *     x rows of neighbouring sequences, if they begin with the same page: a shared prefix is read
 *       once for all of them, page by page, as long as their page tables agree (same_pages())
 *
 * do_tile() groups consecutive queries that see the same keys of the same pages. A query that sees
 * fewer keys of a tile (because of its position or a window) goes through it alone; its bits are
 * the same, because the result of a tile for a query does not depend on other queries.
 *
 * Parallelism. With many rows there are enough items, and threads take whole items
 * (attend_do_item()). With few rows and long contexts there would be fewer items than threads. Then
 * each chunk of each item is an item (split-K: do_part()), its state goes to be.partial, and a
 * second round merges the states of each item from left to right (merge_item()): the same tree,
 * hence the same bits. If be.partial has no room for all items, this is repeated for as many as
 * fit. Blocks are as large as possible while every thread gets at least SPLIT_BELOW items.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/state.h"

/* SPLIT_BELOW: items for each thread below which an op's items are split into chunks.
 * PARTIAL_BYTES: most memory of be.partial, unless one item needs more. */
enum { SPLIT_BELOW = 4, PARTIAL_BYTES = 256 << 20, TILE_KEYS = ATTEND_TILE };

/* Context of the threads for one op. */
struct run {
    struct step *step;
    const struct model_op *op;
    struct kv_view view;
    /* offset of the layer in a page, in bytes */
    size_t layer_at;
    const float *q;
    float *o;
    /* floats from a row of q and o to the next */
    size_t stride;
    /* query heads that share a kv head */
    uint32_t group;
    /* size of the Hadamard matrix of values; 0: values are not transformed */
    uint32_t run_v;
    /* blocks in be.attend_blocks */
    uint32_t n_blocks;
    /* chunks of an item if items are split, else 0 */
    uint32_t n_chunks;
    /* first item whose chunks are in be.partial */
    uint32_t item0;
};

/* An item of work: the queries of one kv head of a block of rows. Query i is head i % group of row
 * i / group. */
struct item {
    const struct run *run;
    struct be *be;
    /* positions of its rows */
    const uint32_t *pos;
    uint32_t row0, head, n_queries;
    /* range of the positions that at least one query sees */
    uint32_t begin, end;
};

/* Returns the number of floats of attn_state.o: the widest head, rounded up to whole vectors. */
static size_t attend_padded(const struct be *b) {
    return round_up(b->shape.widest.head, LANES);
}

/* Resets a state to that of no keys. */
static void state_clear(struct attn_state *s, size_t width) {
    s->m = -INFINITY;
    memset(s->l, 0, sizeof(s->l));
    memset(s->o, 0, width * sizeof(float));
}

static void state_copy(struct attn_state *to, const struct attn_state *from, size_t width) {
    to->m = from->m;
    memcpy(to->l, from->l, sizeof(to->l));
    memcpy(to->o, from->o, width * sizeof(float));
}

/* Returns the page of position @pos of row @row's sequence. */
static uint32_t page_at(const struct run *r, uint32_t row, uint32_t pos) {
    return host_page(&r->step->host, r->op->kv.cls, row, pos);
}

/* Sets group @g of tile @t to the 16 positions of row @row's sequence from @pos, a multiple of 16,
 * on. */
static void find_group(const struct item *it, uint32_t row, uint32_t pos, struct attn_tile *t,
                       int g) {
    const struct be *b = it->be;
    const struct kv_view *v = &it->run->view;
    uint8_t cls = it->run->op->kv.cls;
    uint32_t page = page_at(it->run, row, pos);
    const uint8_t *layer = be_page(b, cls, page) + it->run->layer_at;
    uint32_t slot = pos % v->page_tokens;
    const uint8_t *head = layer + it->run->op->heads.n_kv * v->k_head + it->head * v->v_head;
    size_t value = kv_codes(v->type.v, v->value_dim);

    assert(pos % LANES == 0);
    t->k[g] = layer + it->head * v->k_head + slot / LANES * v->k_group;
    t->v[g] = head + slot * value;
    t->v_scale[g] = head + v->page_tokens * value + (size_t)slot * (v->value_dim / 32) * 2;
}

/* Copies the item's queries, multiplied by the scale of the scores, to @q in the layout of
 * cpu_kernels.attend: dimension d of query i at d * n_queries + i. */
static void gather_queries(const struct item *it, float *q) {
    const struct run *r = it->run;
    uint32_t hd = r->op->heads.dim;

    for (uint32_t i = 0; i < it->n_queries; i++) {
        const float *src = r->q + (it->row0 + i / r->group) * r->stride +
                           (size_t)(it->head * r->group + i % r->group) * hd;

        for (uint32_t d = 0; d < hd; d++)
            q[d * it->n_queries + i] = src[d] * r->op->attn.scale;
    }
}

/* Returns the end of the positions that row @row sees: after its own position (before it with
 * attn.before), after the last row of its picture, or after the last key within its reach. */
static uint32_t attend_end_key(const struct run *r, uint32_t row) {
    const struct host_step *host = &r->step->host;
    uint32_t pos = host->row_pos[row], reach = r->op->attn.reach;

    if (reach)
        return MIN(host_end(host, row), pos + reach + 1);
    if (r->op->attn.whole)
        return host_end(host, row);
    if (r->op->attn.two_way)
        return host->row[row].end;
    return pos + !r->op->attn.before;
}

/* The keys [first, n) of a tile; none if first == n. */
struct range {
    uint32_t first, n;
};

/* Returns the range of keys that query @i sees of the tile that begins at position @at. */
static struct range visible(const struct item *it, uint32_t i, uint32_t at) {
    uint32_t pos = it->pos[i / it->run->group], first = attn_first(&it->run->op->attn, pos);
    uint32_t row = it->row0 + i / it->run->group;
    uint32_t end = attend_end_key(it->run, row);

    if (end <= at || first >= at + TILE_KEYS)
        return (struct range){0, 0};
    return (struct range){first > at ? first - at : 0, MIN(end - at, TILE_KEYS)};
}

/* Returns true if the keys of rows @a and @b at the @n positions from @at on, at most 32, are in
 * the same pages. */
static bool same_pages(const struct run *r, uint32_t a, uint32_t b, uint32_t at, uint32_t n) {
    const uint32_t *seq = r->step->host.row_seq;

    return seq[a] == seq[b] ||
           (page_at(r, a, at) == page_at(r, b, at) &&
            (n <= LANES || page_at(r, a, at + LANES) == page_at(r, b, at + LANES)));
}

/* Sets the addresses of @t to the tile at position @at of row @row's sequence. @n: number of its
 * keys that are needed. */
static void find_tile(const struct item *it, uint32_t row, uint32_t at, uint32_t n,
                      struct attn_tile *t) {
    find_group(it, row, at, t, 0);
    if (n > LANES) {
        find_group(it, row, at + LANES, t, 1);
    } else { /* the kernel loads the second group too, although its weights are zero */
        t->k[1] = t->k[0];
        t->v[1] = t->v[0];
        t->v_scale[1] = t->v_scale[0];
    }
}

/* Adds the tile at position @at to the states of all queries of an item. Up to four consecutive
 * queries that see the same keys of the same pages are computed together. With sparse attention
 * these are queries of one row, which see the keys in the row's bit mask (sparse_seen()). */
static void do_tile(const struct item *it, uint32_t at, const float *q, struct attn_state *states) {
    const struct run *r = it->run;
    /* t has the addresses of n_found keys of row `found` */
    uint32_t n = it->n_queries, found = 0, n_found = 0;
    struct attn_tile t = {
        .cap = r->op->attn.cap, .alibi = r->op->attn.slope != NULL, .holes = r->op->attn.holes};
    float hide[TILE_KEYS];

    for (uint32_t i = 0, take; i < n; i += take) {
        struct attn_state *state[4];
        struct range keys = visible(it, i, at), next;
        uint32_t row = it->row0 + i / r->group;

        take = 1;
        if (keys.n == 0)
            continue;
        const uint32_t *seen = r->op->attn.sparse ? sparse_seen(it->be, row, it->head) : NULL;
        if (seen && !seen[at / 32])
            continue;
        while (take < 4 && i + take < n && (!seen || (i + take) / r->group == i / r->group) &&
               (next = visible(it, i + take, at), next.first == keys.first && next.n == keys.n) &&
               same_pages(r, row, it->row0 + (i + take) / r->group, at, keys.n))
            take++;
        if (keys.n > n_found || !same_pages(r, found, row, at, keys.n)) {
            find_tile(it, row, at, keys.n, &t);
            found = row;
            n_found = keys.n;
        }
        t.first = keys.first;
        t.n = keys.n;
        for (uint32_t j = 0; j < TILE_KEYS && seen; j++)
            if (seen[at / 32] >> j & 1)
                hide[j] = 0;
            else
                hide[j] = -INFINITY;
        if (seen)
            t.hide = hide;
        else
            t.hide = NULL;
        for (uint32_t j = 0; j < take; j++) {
            state[j] = &states[i + j];
            t.at[j] = (float)it->pos[(i + j) / r->group] - (float)at;
            if (t.alibi)
                t.slope[j] = r->op->attn.slope[it->head * r->group + (i + j) % r->group];
        }
        it->be->kernels->attend(&r->view, &t, q + i, n, take, state);
    }
}

/* Clears @states, and adds the keys of a chunk that the item's queries see. */
static void do_chunk(const struct item *it, uint32_t chunk, const float *q,
                     struct attn_state *states) {
    uint32_t end = MIN((chunk + 1) * ATTEND_CHUNK, it->end);

    for (uint32_t i = 0; i < it->n_queries; i++)
        state_clear(&states[i], attend_padded(it->be));
    uint32_t from = MAX(chunk * ATTEND_CHUNK, it->begin / TILE_KEYS * TILE_KEYS);
    for (uint32_t at = from; at < end; at += TILE_KEYS)
        do_tile(it, at, q, states);
}

/* Writes the results of an item's queries to their rows of o. */
static void attend_write_results(const struct item *it, struct attn_state *states) {
    const struct run *r = it->run;
    const float *sinks = NULL;
    uint32_t hd = heads_value(&r->op->heads);

    if (r->op->weights)
        sinks = r->op->weights->sinks;
    for (uint32_t i = 0; i < it->n_queries; i++) {
        uint32_t head = it->head * r->group + i % r->group;
        float *o = r->o + (it->row0 + i / r->group) * r->stride + (size_t)head * hd;

        if (sinks)
            it->be->kernels->attend_sink(&states[i], sinks[head], hd);
        it->be->kernels->attend_finish(&states[i], o, hd);
        if (r->run_v)
            it->be->kernels->hadamard(o, hd, r->run_v);
    }
}

/* Returns item @i: kv head i % n_kv of block i / n_kv. */
static struct item make_item(const struct run *r, uint32_t i) {
    struct be *b = r->step->be;
    const struct attend_block *block = &b->attend_blocks[i / r->op->heads.n_kv];
    const struct host_step *host = &r->step->host;
    struct item it = {
        .run = r,
        .be = b,
        .pos = host->row_pos + block->row0,
        .row0 = block->row0,
        .head = i % r->op->heads.n_kv,
        .n_queries = block->n_rows * r->group,
        .begin = UINT32_MAX,
    };

    for (uint32_t k = 0; k < block->n_rows; k++) {
        it.begin = MIN(it.begin, attn_first(&r->op->attn, it.pos[k]));
        it.end = MAX(it.end, attend_end_key(r, it.row0 + k));
    }
    assert(it.begin <= it.end && it.end > 0 && block->n_rows > 0);
    return it;
}

/* Merges the state of a chunk into @total. With sparse attention either may be without keys (m is
 * -inf); it then does not take part, so that skipped chunks do not change bits. */
static void attend_merge_chunk(const struct item *it, struct attn_state *total,
                               const struct attn_state *chunk) {
    if (it->run->op->attn.sparse && chunk->m == -INFINITY)
        return;
    if (it->run->op->attn.sparse && total->m == -INFINITY)
        state_copy(total, chunk, attend_padded(it->be));
    else
        it->be->kernels->attend_merge(total, chunk, heads_value(&it->run->op->heads));
}

/* Computes all chunks of an item in one thread, merged from left to right. */
static void do_whole(const struct item *it, struct attend_scratch *s) {
    uint32_t last = (it->end - 1) / ATTEND_CHUNK;
    uint32_t first = it->begin / ATTEND_CHUNK;
    const struct be *b = it->be;

    gather_queries(it, s->q);
    do_chunk(it, first, s->q, s->total);
    for (uint32_t c = first + 1; c <= last; c++) {
        do_chunk(it, c, s->q, s->chunk);
        for (uint32_t i = 0; i < it->n_queries; i++) {
            uint32_t pos = it->pos[i / it->run->group];

            if (attend_end_key(it->run, it->row0 + i / it->run->group) <= c * ATTEND_CHUNK)
                continue;
            /* the query sees no key before the chunk */
            if (attn_first(&it->run->op->attn, pos) / ATTEND_CHUNK == c)
                state_copy(&s->total[i], &s->chunk[i], attend_padded(b));
            else
                attend_merge_chunk(it, &s->total[i], &s->chunk[i]);
        }
    }
    attend_write_results(it, s->total);
}

/* Implements each_fn: computes a whole item. */
static void attend_do_item(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *r = ctx;
    struct item it = make_item(r, i);

    do_whole(&it, &r->step->be->attend[thread]);
}

/* Returns the number of chunks of @it before its last one. */
static uint32_t chunks_before(const struct item *it) {
    return (it->end - 1) / ATTEND_CHUNK - it->begin / ATTEND_CHUNK;
}

/* Implements each_fn, the first round of a split run: computes a chunk of an item to b->partial. */
static void do_part(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *r = ctx;
    struct be *b = r->step->be;
    struct item it = make_item(r, r->item0 + i / r->n_chunks);
    uint32_t nth = i % r->n_chunks;

    if (nth > chunks_before(&it))
        return;
    gather_queries(&it, b->attend[thread].q);
    do_chunk(&it, it.begin / ATTEND_CHUNK + nth, b->attend[thread].q, &b->partial[i * r->group]);
}

/* Implements each_fn, the second round of a split run: merges the chunks of an item from left to
 * right, as do_whole() does. */
static void merge_item(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *r = ctx;
    struct be *b = r->step->be;
    struct item it = make_item(r, r->item0 + i);
    struct attn_state *total = b->attend[thread].total;

    for (uint32_t c = 0; c <= chunks_before(&it); c++)
        for (uint32_t g = 0; g < r->group; g++) {
            const struct attn_state *part = &b->partial[(i * r->n_chunks + c) * r->group + g];

            if (c == 0)
                state_copy(&total[g], part, attend_padded(b));
            else
                attend_merge_chunk(&it, &total[g], part);
        }
    attend_write_results(&it, total);
}

/* Returns true if a block may extend from sequence @i - 1 of the batch to sequence @i, because both
 * begin with the same page. */
static bool attend_shares(const struct run *r, uint32_t i) {
    const struct engine_seq *a = &r->step->host.batch->seq[i - 1], *b = a + 1;

    return !r->op->attn.whole && !r->op->attn.window && b->row0 == a->row0 + a->n_rows &&
           page_at(r, a->row0, 0) == page_at(r, b->row0, 0);
}

/* Divides the rows of the batch into blocks of at most @most rows. */
static void cut_blocks(struct run *r, uint32_t most) {
    struct attend_block *blocks = r->step->be->attend_blocks;
    const struct engine_batch *batch = r->step->host.batch;
    uint32_t n = 0;

    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *s = &batch->seq[i];
        uint32_t done = 0;

        if (i > 0 && blocks[n - 1].n_rows < most && attend_shares(r, i)) {
            done = MIN(most - blocks[n - 1].n_rows, s->n_rows);
            blocks[n - 1].n_rows += done;
        }
        for (; done < s->n_rows; done += blocks[n++].n_rows)
            blocks[n] = (struct attend_block){s->row0 + done, MIN(most, s->n_rows - done)};
    }
    r->n_blocks = n;
    assert(n > 0 && n <= r->step->be->max_rows); /* a block has at least one row */
}

void attend_run(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_threads = pool_n_threads(b->pool), before = 0;
    struct run r = {
        .step = s,
        .op = op,
        .view = be_view(b, &op->heads),
        .layer_at = kv_bytes_both(b->kv_type, op->kv.at * b->page_tokens),
        .q = b->act[ACT_Q],
        .o = b->act[ACT_O],
        .stride = b->act_width[ACT_Q],
        .group = op->heads.n / op->heads.n_kv,
        .run_v = hadamard_runs(&b->shape, b->kv_type, op->heads.dim).v,
    };
    /* The largest blocks that fit the scratch memory and leave enough items for the threads. */
    uint32_t most = s->n_rows * op->heads.n_kv / (SPLIT_BELOW * n_threads);

    most = MAX(MIN(most, ATTEND_QUERIES / r.group), 1);
    assert(b->act_width[ACT_Q] == b->act_width[ACT_O]);
    cut_blocks(&r, most);
    uint32_t n_items = r.n_blocks * op->heads.n_kv;
    if (most == 1 && n_threads > 1 && n_items < SPLIT_BELOW * n_threads)
        for (uint32_t i = 0; i < r.n_blocks; i++) {
            struct item it = make_item(&r, i * op->heads.n_kv);

            before = MAX(before, chunks_before(&it));
        }
    if (before == 0) {
        pool_each(b->pool, n_items, attend_do_item, &r);
        return;
    }
    r.n_chunks = before + 1;
    uint32_t most_items = b->n_partial / (r.n_chunks * r.group);
    assert(most_items > 0);
    for (; r.item0 < n_items; r.item0 += most_items) {
        uint32_t n = MIN(most_items, n_items - r.item0);

        pool_each(b->pool, n * r.n_chunks, do_part, &r);
        pool_each(b->pool, n, merge_item, &r);
    }
}

int attend_open(struct be *b, uint32_t max_context) {
    uint32_t n_threads = pool_n_threads(b->pool), group = b->shape.widest.group;
    uint32_t n_queries = MAX(ATTEND_QUERIES, group);
    size_t width = attend_padded(b), per_thread = n_queries * (width + 2 * width);
    uint64_t item = (uint64_t)group * ((max_context + ATTEND_CHUNK - 1) / ATTEND_CHUNK);
    uint64_t most = PARTIAL_BYTES / (sizeof(*b->partial) + width * sizeof(float));

    assert(group > 0 && max_context > 0);
    b->n_partial =
        n_threads > 1 ? (uint32_t)MIN(MAX(item, most), SPLIT_BELOW * n_threads * item) : 0;
    b->attend_blocks = be_alloc(b, b->max_rows, sizeof(*b->attend_blocks));
    b->attend = be_alloc(b, n_threads, sizeof(*b->attend));
    b->partial = be_alloc(b, b->n_partial + 2u * n_threads * n_queries, sizeof(*b->partial));
    size_t n = n_threads * per_thread + b->n_partial * width;
    float *memory = be_map(b, n * sizeof(*memory)), *end = memory + n;
    if (b->no_memory)
        return -ENOMEM;
    struct attn_state *state = b->partial;
    for (uint32_t i = 0; i < b->n_partial; i++, memory += width)
        (state++)->o = memory;
    for (uint32_t t = 0; t < n_threads; t++) {
        b->attend[t] = (struct attend_scratch){.total = state, .chunk = state + n_queries};
        for (uint32_t i = 0; i < 2 * n_queries; i++, memory += width)
            (state++)->o = memory;
        b->attend[t].q = memory;
        memory += n_queries * width;
    }
    assert(memory == end);
    return 0;
}
