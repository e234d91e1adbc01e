/*
 * compressed - attention to compressed keys (DeepSeek-V4; struct compressed_shape). The letters are
 * those of the formulas of OP_CSA_IN to OP_CSA_OUT (op_list.h).
 *
 * All heads share one key for each position, which is also the value. A row sees two kinds of keys:
 *
 *     window   the keys of the last positions, as floats: rows of this step in compressed.key,
 *              earlier ones in the state of the sequence (row p % window_rows())
 *     blocks   one compressed key for each complete block of positions, as f16 in the page of the
 *              block's last position
 *
 * The ops of a layer run in this order:
 *
 *     CSA_IN       r (the queries' input), k (keys of the step's rows), t (weights of the indexer)
 *     CSA_Q        q of all heads
 *     COMPRESS     keys of the blocks that end in this step: means over the tokens of the block,
 *                  weighted by a softmax for each channel. Tokens of earlier steps are in the state
 *                  (compressed_save_tokens()).
 *     CSA_INDEX    layers with short blocks: scores all blocks of 16 rows at a time (CHOOSE_ROWS),
 *                  in parts that threads share, and picks the best blocks of each row
 *     CSA_ATTEND   attention; then the last keys are copied to the window (save_window())
 *     CSA_OUT      projections of groups of heads
 *
 * A work item of attention is a row and CSA_HEADS of its heads, which share the conversion of the
 * keys to floats. All scores of the item are computed before any value is added, in an order that
 * depends only on the row's position: the keys of the window from the oldest on, then those of the
 * blocks. The bits of a row therefore do not depend on the other rows of the step.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/compressed.h"
#include "engine/cpu/state.h"
#include "engine/sparse.h"

enum {
    /* heads of a work item */
    CSA_HEADS = 8,
    /* keys that are converted to floats at a time */
    CSA_KEYS = 32,
    /* rows whose blocks are scored at a time */
    CHOOSE_ROWS = 16,
    /* blocks of a row that a thread scores at a time */
    CHOOSE_PART = 1024,
};

/* Buffers for the largest batch, in the order in which the ops fill them. */
struct compressed {
    /* [max_rows] r, k and t of CSA_IN */
    float *r, *key, *t;
    /* [max_rows][2 * widest] u of COMPRESS, and w[1] y */
    float *u, *g;
    /* [max_rows][n_index][index_dim] queries of the indexer */
    float *q;
    /* [CHOOSE_ROWS][max_blocks] */
    float *score;
    /* [max_rows][n_block] picked blocks, [max_rows] their number */
    uint32_t *pick, *n_pick;
    /* [threads][part_width] scratch memory */
    float *part;
    /* most short blocks of a context; most blocks that a row sees */
    size_t max_blocks, max_seen;
    /* values of the widest key; floats of part of a thread */
    size_t widest, part_width;
};

/* Context of the row functions. */
struct run {
    struct step *step;
    const struct model_op *op;
    /* CSA_INDEX: the first of the rows that are scored. CSA_INDEX, CSA_ATTEND: parts, or groups of
     * heads, of each row. */
    uint32_t row0, n_parts;
};

/* Returns the number of floats of a head's scores: those of the window, of blocks and of the sink,
 * rounded up to whole vectors. */
static size_t score_width(const struct be *b) {
    return round_up(b->shape.compressed.window + b->compressed->max_seen + 1, LANES);
}

int compressed_open(struct be *b, uint32_t max_context) {
    const struct compressed_shape *c = &b->shape.compressed;

    if (!c->window)
        return 0;
    struct compressed *d = b->compressed = be_alloc(b, 1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->max_blocks = MAX(max_context / BLOCK_SHORT + 1, c->n_block);
    d->max_seen = MAX(max_context / BLOCK_LONG + 1, c->n_block);
    d->widest = MAX(b->shape.head_dim, c->index_dim);
    /* scratch memory of a thread: converted keys, then the scores of an item's heads or the
     * products of the indexer */
    d->part_width =
        CSA_KEYS * d->widest + MAX(CSA_HEADS * score_width(b), (size_t)c->n_index * CSA_KEYS);
    d->r = be_rows(b, c->q_rank);
    d->key = be_rows(b, b->shape.head_dim);
    d->t = be_rows(b, c->n_index);
    d->u = be_rows(b, 2 * d->widest);
    d->g = be_rows(b, 2 * d->widest);
    d->q = be_rows(b, (size_t)c->n_index * c->index_dim);
    d->score = be_map(b, CHOOSE_ROWS * d->max_blocks * sizeof(float));
    d->pick = be_map(b, (size_t)b->max_rows * MAX(c->n_block, 1u) * sizeof(*d->pick));
    d->n_pick = be_map(b, b->max_rows * sizeof(*d->n_pick));
    d->part = be_map(b, pool_n_threads(b->pool) * d->part_width * sizeof(float));
    if (b->no_memory)
        return -ENOMEM;
    return 0;
}

/* Applies RoPE with @cs to the last n_rot of the @n values of @x. */
static void compressed_turn(const struct be *b, const struct model_op *op, const float *cs,
                            size_t n, float *x) {
    uint32_t n_rot = b->shape.rope[op->rope].n_rot;

    b->kernels->rope(x + n - n_rot, cs, n_rot, b->shape.rope_type);
}

/* Returns the scratch memory of @thread. */
static float *compressed_part(const struct be *b, uint32_t thread) {
    return b->compressed->part + thread * b->compressed->part_width;
}

/* -- keys and queries of tokens ---------------------------------------------------------------- */

/* Finishes r, k and t of a row (CSA_IN). */
static void finish_in(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct compressed_shape *c = &b->shape.compressed;
    const struct weights *w = k->op->weights;
    struct compressed *d = b->compressed;
    float *r = d->r + (size_t)row * c->q_rank, *key = d->key + (size_t)row * b->shape.head_dim;
    float *t = d->t + (size_t)row * c->n_index,
          by = 1.0f / sqrtf((float)(c->n_index * c->index_dim));

    b->kernels->norm(r, w->q_norm, r, c->q_rank, b->shape.rms_eps);
    b->kernels->norm(key, w->k_norm, key, b->shape.head_dim, b->shape.rms_eps);
    compressed_turn(b, k->op, be_rope_row(b, row, k->op->rope), b->shape.head_dim, key);
    for (uint32_t i = 0; i < c->n_index && w->n_mats > 2; i++)
        t[i] *= by;
}

int ops_csa_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct compressed *d = b->compressed;
    struct run k = {.step = s, .op = op};

    ops_store_each(s, ops_prepare(s, op->weights, 0, op->weights->n_mats, ACT_X),
                   (float *[]){d->r, d->key, d->t});
    be_each(b, s->n_rows, finish_in, &k);
    return 0;
}

/* Norms and rotates the queries of a row (CSA_Q). */
static void finish_q(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t dim = b->shape.head_dim;
    float *q = b->act[ACT_Q] + row * b->act_width[ACT_Q];

    for (uint32_t h = 0; h < b->shape.n_head; h++, q += dim) {
        b->kernels->norm(q, NULL, q, dim, b->shape.rms_eps);
        compressed_turn(b, k->op, be_rope_row(b, row, k->op->rope), dim, q);
    }
}

int ops_csa_q(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.step = s, .op = op};
    ops_store(s,
              ops_prepare_rows(s, op->weights, 0, 1, b->compressed->r, b->shape.compressed.q_rank),
              b->act[ACT_Q], b->act_width[ACT_Q]);
    be_each(b, s->n_rows, finish_q, &k);
    return 0;
}

/* -- keys of blocks ---------------------------------------------------------------------------- */

/* Returns the address of the key of block @i, which has @n values, of row @row's sequence. */
static uint8_t *compressed_key_at(const struct run *k, uint32_t row, uint32_t i, uint64_t n) {
    const struct be *b = k->step->be;
    uint32_t last = (i + 1) * k->op->csa.block - 1;

    return be_page(b, KV_GLOBAL, host_page(&k->step->host, KV_GLOBAL, row, last)) +
           compressed_at(&b->shape, b->page_tokens, k->op->csa.block, k->op->csa.first_value, n,
                         last) *
               2;
}

/* Adds the token at @pos of sequence @q to @t: its values from @at on, in the buffers of this step
 * or in the state. */
static void compressed_add_token(const struct run *k, const struct engine_seq *q, uint32_t pos,
                                 size_t at, struct sparse_tokens *t) {
    const struct be *b = k->step->be;
    size_t width = k->op->weights->m[0].n_out;
    uint32_t n_kept = k->op->csa.block;
    const float *state = recurrent_more(b, q->state_slot) + k->op->more;
    size_t row = q->row0 + pos - q->pos0;

    if (k->op->csa.block == BLOCK_SHORT)
        n_kept = 2 * BLOCK_SHORT;
    state += 2 * (pos % n_kept) * width;
    t->value[t->n] = (pos < q->pos0 ? state : b->compressed->u + row * width) + at;
    t->score[t->n] = (pos < q->pos0 ? state + width : b->compressed->g + row * width) + at;
    t->place[t->n++] = k->op->weights->weigh + pos % k->op->csa.block * width + at;
}

/* Computes and stores the key of the block that ends with row @row, if one does. */
static void compress_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct engine_seq *q = &k->step->host.batch->seq[k->step->host.row_seq[row]];
    uint32_t block = k->op->csa.block, pos = k->step->host.row_pos[row], first = pos + 1 - block;
    uint32_t n = (uint32_t)k->op->k_norm->ne[0];
    float *key = compressed_part(b, thread), cs[1024];
    struct sparse_tokens t = {.n = 0};

    assert(b->shape.rope[k->op->rope].n_rot <= ARRAY_SIZE(cs));
    if ((pos + 1) % block)
        return;
    for (uint32_t p = first - block; block == BLOCK_SHORT && first && p < first; p++)
        compressed_add_token(k, q, p, 0, &t);
    for (uint32_t p = first; p <= pos; p++)
        compressed_add_token(k, q, p, block == BLOCK_SHORT ? n : 0, &t);
    sparse_mean(&t, n, key);
    b->kernels->norm(key, k->op->weights->k_norm, key, n, b->shape.rms_eps);
    be_fill_rope(&b->shape.rope[k->op->rope], first, cs);
    compressed_turn(b, k->op, cs, n, key);
    host_store_halves(key, n, compressed_key_at(k, row, pos / block, n));
}

/* Copies u and g of the last tokens of sequence @i to its state. */
static void compressed_save_tokens(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct engine_seq *q = &k->step->host.batch->seq[i];
    size_t width = k->op->weights->m[0].n_out;
    uint32_t n_kept = k->op->csa.block == BLOCK_SHORT ? 2 * BLOCK_SHORT : k->op->csa.block;
    uint32_t end = q->pos0 + q->n_rows;

    for (uint32_t pos = end - MIN(n_kept, q->n_rows); pos < end; pos++) {
        size_t row = q->row0 + pos - q->pos0;
        float *to = recurrent_more(b, q->state_slot) + k->op->more + 2 * (pos % n_kept) * width;

        memcpy(to, b->compressed->u + row * width, width * sizeof(*to));
        memcpy(to + width, b->compressed->g + row * width, width * sizeof(*to));
    }
}

int ops_compress(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.step = s, .op = op};

    ops_store_each(s, ops_prepare(s, op->weights, 0, 2, ACT_X),
                   (float *[]){b->compressed->u, b->compressed->g});
    be_each(b, s->n_rows, compress_row, &k);
    be_each(b, s->host.batch->n_seqs, compressed_save_tokens, &k);
    return 0;
}

/* -- the choice of short blocks ---------------------------------------------------------------- */

/* Rotates the queries of the indexer of a row. */
static void turn_q(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct compressed_shape *c = &b->shape.compressed;
    float *q = b->compressed->q + (size_t)row * c->n_index * c->index_dim;

    for (uint32_t h = 0; h < c->n_index; h++, q += c->index_dim)
        compressed_turn(b, k->op, be_rope_row(b, row, k->op->rope), c->index_dim, q);
}

/* Scores a part of the blocks of a row, CSA_KEYS at a time. Rows that see all blocks need no
 * scores. */
static void compressed_score_part(void *ctx, uint32_t item, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct compressed_shape *c = &b->shape.compressed;
    uint32_t nth = item / k->n_parts, row = k->row0 + nth, first = item % k->n_parts * CHOOSE_PART;
    uint32_t whole = (k->step->host.row_pos[row] + 1) / k->op->csa.block, dim = c->index_dim;
    uint32_t end = MIN(whole, first + CHOOSE_PART);
    float *score = b->compressed->score + nth * b->compressed->max_blocks;
    float *keys = compressed_part(b, thread), *z = keys + CSA_KEYS * b->compressed->widest;
    const float *key[CSA_KEYS], *t = b->compressed->t + (size_t)row * c->n_index;

    for (uint32_t i = first, n; i < end && whole > c->n_block; i += n) {
        n = MIN((uint32_t)CSA_KEYS, end - i);
        for (uint32_t j = 0; j < n; j++) {
            key[j] = keys + (size_t)j * dim;
            b->kernels->halves(compressed_key_at(k, row, i + j, dim), keys + (size_t)j * dim, dim);
        }
        b->kernels->dots(b->compressed->q + (size_t)row * c->n_index * dim, c->n_index, dim, key, n,
                         1, z, CSA_KEYS);
        memset(score + i, 0, n * sizeof(*score));
        for (uint32_t h = 0; h < c->n_index; h++)
            for (uint32_t j = 0; j < n; j++)
                score[i + j] += z[h * CSA_KEYS + j] > 0 ? z[h * CSA_KEYS + j] * t[h] : 0;
    }
}

/* Picks the blocks of the @nth scored row. */
static void compressed_choose_row(void *ctx, uint32_t nth, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t row = k->row0 + nth, n_block = b->shape.compressed.n_block;

    b->compressed->n_pick[row] = sparse_best(b->compressed->score + nth * b->compressed->max_blocks,
                                             (k->step->host.row_pos[row] + 1) / k->op->csa.block,
                                             n_block, b->compressed->pick + (size_t)row * n_block);
}

int ops_csa_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct compressed_shape *c = &b->shape.compressed;
    struct run k = {.step = s, .op = op};
    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, b->compressed->r, c->q_rank),
              b->compressed->q, op->weights->m[0].n_out);
    be_each(b, s->n_rows, turn_q, &k);
    for (uint32_t n; k.row0 < s->n_rows; k.row0 += n) {
        uint32_t most = 0;

        n = MIN((uint32_t)CHOOSE_ROWS, s->n_rows - k.row0);
        for (uint32_t r = k.row0; r < k.row0 + n; r++)
            most = MAX(most, (s->host.row_pos[r] + 1) / op->csa.block);
        k.n_parts = (most + CHOOSE_PART - 1) / CHOOSE_PART;
        if (most > c->n_block)
            be_each(b, n * k.n_parts, compressed_score_part, &k);
        be_each(b, n, compressed_choose_row, &k);
    }
    return 0;
}

/* -- attention --------------------------------------------------------------------------------- */

/* Returns the window of the op's layer in the state of sequence @q. */
static float *compressed_window(const struct run *k, const struct engine_seq *q) {
    struct be *b = k->step->be;

    return (float *)recurrent_slot(b, q->state_slot) + window_at(&b->shape, k->op);
}

/* The n keys that a row sees: those of the n_window positions from first on, then those of
 * blocks. */
struct view {
    const struct run *run;
    const struct engine_seq *seq;
    const float *window;
    uint32_t row, first, n_window, n;
};

/* Sets key[] to the addresses of keys [at, at + n) of @v. Keys of blocks are converted to floats at
 * @room. */
static void compressed_find_keys(const struct view *v, uint32_t at, uint32_t n, float *room,
                                 const float **key) {
    const struct be *b = v->run->step->be;
    const struct compressed_shape *c = &b->shape.compressed;
    const struct engine_seq *q = v->seq;
    uint32_t dim = b->shape.head_dim, n_kept = window_rows(&b->shape, v->run->op);

    for (uint32_t j = 0; j < n; j++, room += dim) {
        uint32_t i = at + j - v->n_window, pos = v->first + at + j;

        if (at + j < v->n_window && pos < q->pos0) {
            key[j] = v->window + (size_t)(pos % n_kept) * dim;
        } else if (at + j < v->n_window) {
            key[j] = b->compressed->key + (size_t)(q->row0 + pos - q->pos0) * dim;
        } else {
            if (v->run->op->csa.block == BLOCK_SHORT)
                i = b->compressed->pick[(size_t)v->row * c->n_block + i];
            b->kernels->halves(compressed_key_at(v->run, v->row, i, dim), room, dim);
            key[j] = room;
        }
    }
}

/* Computes attention of heads [head, head + n_head) of a row. @part: scratch memory. */
static void attend_heads(const struct view *v, uint32_t head, uint32_t n_head, float *part) {
    const struct be *b = v->run->step->be;
    const struct model_op *op = v->run->op;
    const struct rope_set *set = &b->shape.rope[op->rope];
    uint32_t dim = b->shape.head_dim, n_pad = (uint32_t)round_up(v->n + 1, LANES);
    size_t stride = score_width(b);
    float *score = part + CSA_KEYS * b->compressed->widest, back[1024];
    const float *q = b->act[ACT_Q] + v->row * b->act_width[ACT_Q] + (size_t)head * dim;
    const float *cs = be_rope_row(b, v->row, op->rope), *key[CSA_KEYS];
    float *o = b->act[ACT_O] + v->row * b->act_width[ACT_O] + (size_t)head * dim;

    assert(n_pad <= stride && set->n_rot <= ARRAY_SIZE(back));
    for (uint32_t i = 0, n; i < v->n; i += n) {
        n = MIN((uint32_t)CSA_KEYS, v->n - i);
        compressed_find_keys(v, i, n, part, key);
        b->kernels->dots(q, n_head, dim, key, n, b->shape.attn_scale, score + i, stride);
    }
    for (uint32_t h = 0; h < n_head; h++) {
        float *z = score + h * stride;

        z[v->n] = op->weights->sinks[head + h];
        for (uint32_t i = v->n + 1; i < n_pad; i++)
            z[i] = -INFINITY;
        float by = 1.0f / b->kernels->exps(z, n_pad, 1);
        for (uint32_t i = 0; i < v->n; i++)
            z[i] *= by;
    }
    memset(o, 0, (size_t)n_head * dim * sizeof(*o));
    for (uint32_t i = 0, n; i < v->n; i += n) {
        n = MIN((uint32_t)CSA_KEYS, v->n - i);
        compressed_find_keys(v, i, n, part, key);
        b->kernels->weigh_keys(score + i, stride, n_head, dim, key, n, o);
    }
    for (uint32_t i = 0; i < set->n_rot; i++)
        if (i < set->n_rot / 2)
            back[i] = cs[i];
        else
            back[i] = -cs[i];
    for (uint32_t h = 0; h < n_head; h++)
        compressed_turn(b, op, back, dim, o + (size_t)h * dim);
}

/* Computes a work item of attention. */
static void compressed_attend_item(void *ctx, uint32_t item, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t row = item / k->n_parts, head = item % k->n_parts * CSA_HEADS;
    uint32_t pos = k->step->host.row_pos[row], window = b->shape.compressed.window;
    const struct engine_seq *q = &k->step->host.batch->seq[k->step->host.row_seq[row]];
    uint32_t first = pos + 1 > window ? pos + 1 - window : 0;
    struct view v = {k, q, compressed_window(k, q), row, first, pos + 1 - first, pos + 1 - first};

    if (k->op->csa.block)
        v.n += k->op->csa.block == BLOCK_SHORT ? b->compressed->n_pick[row]
                                               : (pos + 1) / k->op->csa.block;
    attend_heads(&v, head, MIN((uint32_t)CSA_HEADS, b->shape.n_head - head),
                 compressed_part(b, thread));
}

/* Copies the keys of the last positions of sequence @i to the window in its state. */
static void save_window(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct engine_seq *q = &k->step->host.batch->seq[i];
    uint32_t end = q->pos0 + q->n_rows, n_kept = window_rows(&b->shape, k->op);
    size_t dim = b->shape.head_dim;

    for (uint32_t pos = end - MIN(n_kept, q->n_rows); pos < end; pos++)
        memcpy(compressed_window(k, q) + pos % n_kept * dim,
               b->compressed->key + (q->row0 + pos - q->pos0) * dim, dim * sizeof(float));
}

int ops_csa_keys(struct step *s, const struct model_op *op) {
    struct run k = {.step = s, .op = op};

    be_each(s->be, s->host.batch->n_seqs, save_window, &k);
    return 0;
}

int ops_csa_attend(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.step = s, .op = op, .n_parts = (b->shape.n_head + CSA_HEADS - 1) / CSA_HEADS};

    be_each(b, s->n_rows * k.n_parts, compressed_attend_item, &k);
    return ops_csa_keys(s, op);
}

int ops_csa_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct mat *m = &op->weights->m[0];
    ops_store(s,
              ops_prepare_rows(s, op->weights, 0, 1, b->act[ACT_O] + (size_t)op->part * m->n_in,
                               b->act_width[ACT_O]),
              b->act[ACT_D] + (size_t)op->part * m->n_out, b->act_width[ACT_D]);
    return 0;
}
