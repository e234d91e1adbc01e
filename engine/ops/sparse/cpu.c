/*
 * sparse - the indexers of sparse attention (OP_INDEX, OP_POOL_KEYS, OP_POOL_INDEX and
 * OP_HEAD_INDEX, op_list.h): they choose the keys that each row sees in the ATTEND op that follows.
 *
 * Positions are divided into blocks of sparse_shape.ratio. A block has one key, the normed and
 * rotated mean of its tokens' keys, which is stored as f16 in the page of its first position, after
 * the keys and values of all layers. Tokens of a block that is not complete are in the state of the
 * sequence.
 *
 *     cpu_sparse_finish_row() queries of a row; the key of the block that ends with it, if one does
 *     cpu_sparse_score_part() scores of the blocks of a row: the sum over heads of max(0, q . key)
 *     cpu_sparse_choose_row() the n_block best blocks of a row, as a bit mask of positions
 *     (sparse.h) cpu_sparse_save_state() tokens of the incomplete block, to the state
 *
 * A long context has many blocks and a prompt has many rows, so the scores of all rows would not
 * fit into memory. CHOOSE_ROWS rows are scored and choose before the next ones are scored. Their
 * blocks are divided into parts, so that all threads have work even with a single row. A score
 * depends only on its row and its block, so the division does not change a bit.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/state.h"
#include "engine/sparse.h"

/* Rows whose blocks are scored at a time; keys of a row that a thread scores at a time; keys that
 * are converted to floats at a time. */
enum { CHOOSE_ROWS = 16, CHOOSE_PART = 1024, CHOOSE_KEYS = 32 };

/* Buffers for the largest batch. */
struct sparse {
    /* [max_rows] queries of the indexer, and w[1] x of each token, or k of POOL_KEYS, or the key of
     * HEAD_INDEX */
    float *q, *k;
    /* [max_rows] g and t of POOL_KEYS; NULL: the model has none */
    float *g, *t;
    /* [threads][part_width] scratch memory for CHOOSE_KEYS keys and their scores by each head;
     * NULL: the model has INDEX */
    float *part;
    size_t part_width;
    /* [CHOOSE_ROWS][sparse_sets()][max_blocks] */
    float *score;
    /* [max_rows][sparse_sets()][words] a bit for each position that the row sees */
    uint32_t *seen;
    /* blocks of the longest context */
    size_t max_blocks;
    uint32_t words;
};

/* Context of the row functions. */
struct run {
    struct step *step;
    const struct model_op *op;
    /* the first of the rows that are scored; parts of each row */
    uint32_t row0, n_parts;
};

int sparse_open(struct be *b, uint32_t max_context) {
    const struct sparse_shape *p = &b->shape.sparse;

    if (!p->n_layer)
        return 0;
    struct sparse *d = b->sparse = be_alloc(b, 1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->words = sparse_words(max_context);
    d->max_blocks = max_context / sparse_block(p) + 1;
    d->q = be_rows(b, (size_t)p->n_head * p->dim);
    d->k = be_rows(b, p->dim);
    if (p->eps > 0) {
        d->g = be_rows(b, p->dim);
        d->t = be_rows(b, p->n_head);
    }
    if (p->eps > 0 || p->block) {
        d->part_width = (size_t)CHOOSE_KEYS * (p->dim + p->n_head);
        d->part = be_map(b, pool_n_threads(b->pool) * d->part_width * sizeof(float));
    }
    d->score = be_map(b, CHOOSE_ROWS * sparse_sets(p) * d->max_blocks * sizeof(float));
    d->seen = be_map(b, (size_t)b->max_rows * sparse_sets(p) * d->words * sizeof(*d->seen));
    if (b->no_memory)
        return -ENOMEM;
    return 0;
}

/* Returns the bits of row @row in set @set (sparse_sets()). */
static uint32_t *cpu_sparse_bits(const struct be *b, uint32_t row, uint32_t set) {
    return b->sparse->seen + ((size_t)row * sparse_sets(&b->shape.sparse) + set) * b->sparse->words;
}

const uint32_t *sparse_seen(const struct be *b, uint32_t row, uint32_t head) {
    if (sparse_sets(&b->shape.sparse) == 1)
        head = 0;
    return cpu_sparse_bits(b, row, head);
}

/* Returns the address of the key of block @i of row @row's sequence; the keys of the next blocks of
 * the page follow it. */
static uint8_t *cpu_sparse_key_at(const struct run *k, uint32_t row, uint32_t i) {
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    uint32_t page = host_page(&k->step->host, KV_GLOBAL, row, i * p->ratio);
    uint32_t slot = i % (b->page_tokens / p->ratio);

    return be_page(b, KV_GLOBAL, page) +
           kv_bytes_both(b->kv_type, b->shape.n_kv_values[KV_GLOBAL] * b->page_tokens) +
           k->op->index * index_bytes(&b->shape, b->page_tokens) + (size_t)slot * p->dim * 2;
}

/* Computes and stores the key of the block that ends with row @row. Tokens of earlier steps are in
 * the state. @mean: room for the key. */
static void cpu_sparse_store_block(const struct run *k, uint32_t row, float *mean) {
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    const struct engine_seq *q = &k->step->host.batch->seq[k->step->host.row_seq[row]];
    const float *state = recurrent_more(b, q->state_slot) + k->op->more;
    uint32_t first = k->step->host.row_pos[row] + 1 - p->ratio;
    uint8_t *key = cpu_sparse_key_at(k, row, first / p->ratio);
    float cs[1024];

    assert(b->shape.rope[0].n_rot <= ARRAY_SIZE(cs) && p->dim <= b->row_width);
    memset(mean, 0, p->dim * sizeof(*mean));
    for (uint32_t i = 0; i < p->ratio; i++)
        b->kernels->add_scaled(
            mean,
            first + i < q->pos0 ? state + (size_t)i * p->dim
                                : b->sparse->k + (size_t)(q->row0 + first + i - q->pos0) * p->dim,
            1.0f / (float)p->ratio, p->dim);
    b->kernels->norm(mean, k->op->weights->k_norm, mean, p->dim, b->shape.rms_eps);
    be_fill_rope(&b->shape.rope[0], first, cs);
    b->kernels->rope(mean, cs, b->shape.rope[0].n_rot, b->shape.rope_type);
    host_store_halves(mean, p->dim, key);
}

/* Norms and rotates the @n vectors of row @row at @x. */
static void cpu_sparse_turn(const struct be *b, uint32_t row, const float *norm, uint32_t n,
                            float *x) {
    uint32_t dim = b->shape.sparse.dim;

    for (uint32_t i = 0; i < n; i++, x += dim) {
        b->kernels->norm(x, norm, x, dim, b->shape.rms_eps);
        b->kernels->rope(x, be_rope_row(b, row, 0), b->shape.rope[0].n_rot, b->shape.rope_type);
    }
}

/* Norms and rotates the queries of a row, and stores the key of the block that ends with it, if one
 * does. */
static void cpu_sparse_finish_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    float *q = b->sparse->q + (size_t)row * p->n_head * p->dim;

    cpu_sparse_turn(b, row, k->op->weights->q_norm, p->n_head, q);
    if ((k->step->host.row_pos[row] + 1) % p->ratio == 0)
        cpu_sparse_store_block(k, row, b->row + thread * b->row_width);
}

/* Scores a part of the blocks of a row; the keys in a page are contiguous and are scored by one
 * call. Rows that see all blocks need no scores. */
static void cpu_sparse_score_part(void *ctx, uint32_t item, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    uint32_t nth = item / k->n_parts, row = k->row0 + nth, first = item % k->n_parts * CHOOSE_PART;
    uint32_t whole = sparse_whole(p, k->step->host.row_pos[row]);
    uint32_t end = MIN(whole, first + CHOOSE_PART), per_page = b->page_tokens / p->ratio;
    float *score = b->sparse->score + nth * b->sparse->max_blocks;

    for (uint32_t i = first, n; i < end && whole > p->n_block; i += n) {
        n = MIN(per_page - i % per_page, end - i);
        b->kernels->index_scores(b->sparse->q + (size_t)row * p->n_head * p->dim, p->n_head, p->dim,
                                 cpu_sparse_key_at(k, row, i), n, score + i);
    }
}

/* Sets the bits of the positions that the @nth scored row sees. */
static void cpu_sparse_choose_row(void *ctx, uint32_t nth, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t row = k->row0 + nth;

    sparse_see(&b->shape.sparse, k->step->host.row_pos[row],
               b->sparse->score + nth * b->sparse->max_blocks, cpu_sparse_bits(b, row, 0));
}

/* Copies w[1] x of the tokens of sequence @i whose block is not complete to its state. */
static void cpu_sparse_save_state(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    const struct engine_seq *q = &k->step->host.batch->seq[i];
    float *state = recurrent_more(b, q->state_slot) + k->op->more;
    uint32_t end = q->pos0 + q->n_rows;

    for (uint32_t pos = MAX(end / p->ratio * p->ratio, q->pos0); pos < end; pos++)
        memcpy(state + (size_t)(pos % p->ratio) * p->dim,
               b->sparse->k + (size_t)(q->row0 + pos - q->pos0) * p->dim, p->dim * sizeof(*state));
}

/* Scores the blocks of all rows by @score, and chooses the best ones of each row by @choose. */
static void cpu_sparse_choose(struct run *k, each_fn score, each_fn choose) {
    struct step *s = k->step;
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape.sparse;

    for (uint32_t n; k->row0 < s->n_rows; k->row0 += n) {
        uint32_t last = 0;

        n = MIN((uint32_t)CHOOSE_ROWS, s->n_rows - k->row0);
        for (uint32_t r = k->row0; r < k->row0 + n; r++)
            last = MAX(last, s->host.row_pos[r]);
        k->n_parts = (sparse_whole(p, last) + CHOOSE_PART - 1) / CHOOSE_PART;
        if (!sparse_sees_all(p, last))
            be_each(b, n * k->n_parts, score, k);
        be_each(b, n, choose, k);
    }
}

int ops_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.step = s, .op = op};

    ops_store_each(s, ops_prepare(s, op->weights, 0, 2, ACT_X),
                   (float *[]){b->sparse->q, b->sparse->k});
    be_each(b, s->n_rows, cpu_sparse_finish_row, &k);
    cpu_sparse_choose(&k, cpu_sparse_score_part, cpu_sparse_choose_row);
    be_each(b, s->host.batch->n_seqs, cpu_sparse_save_state, &k);
    return 0;
}

/* -- pooled keys ------------------------------------------------------------------------------- */

/* Norms k and scales t of a row. */
static void cpu_pool_finish_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    float *t = b->sparse->t + (size_t)row * p->n_head;
    float scale = 1.0f / sqrtf((float)(p->dim * p->n_head));

    b->kernels->layer_norm(b->sparse->k + (size_t)row * p->dim, k->op->weights->k_norm,
                           k->op->weights->norm_bias, p->dim, p->eps);
    for (uint32_t h = 0; h < p->n_head; h++)
        t[h] *= scale;
}

/* Computes and stores the key of the block that ends with row @row, if one does. The state has k
 * and g of the tokens of earlier steps. */
static void cpu_pool_block_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    const struct engine_seq *q = &k->step->host.batch->seq[k->step->host.row_seq[row]];
    const float *state = recurrent_more(b, q->state_slot) + k->op->more;
    uint32_t first = k->step->host.row_pos[row] + 1 - p->ratio;
    float *key = b->row + thread * b->row_width;
    struct sparse_tokens t = {.n = p->ratio};

    if ((k->step->host.row_pos[row] + 1) % p->ratio)
        return;
    for (uint32_t i = 0; i < p->ratio; i++) {
        size_t at = (size_t)(q->row0 + first + i - q->pos0) * p->dim;
        uint32_t kept = (first + i) % pool_rows(&b->shape, k->op);

        t.place[i] = k->op->weights->weigh + (size_t)i * p->dim;
        if (first + i < q->pos0) {
            t.value[i] = state + (size_t)2 * kept * p->dim;
            t.score[i] = t.value[i] + p->dim;
        } else {
            t.value[i] = b->sparse->k + at;
            t.score[i] = b->sparse->g + at;
        }
    }
    sparse_mean(&t, p->dim, key);
    host_store_halves(key, p->dim, cpu_sparse_key_at(k, row, first / p->ratio));
}

/* Copies k and g of the tokens of sequence @i whose block is not complete to its state. */
static void cpu_pool_save_state(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    const struct engine_seq *q = &k->step->host.batch->seq[i];
    uint32_t end = q->pos0 + q->n_rows;

    for (uint32_t pos = MAX(end / p->ratio * p->ratio, q->pos0); pos < end; pos++) {
        size_t at = (size_t)(q->row0 + pos - q->pos0) * p->dim;
        uint32_t kept = pos % pool_rows(&b->shape, k->op);
        float *to = recurrent_more(b, q->state_slot) + k->op->more + (size_t)2 * kept * p->dim;

        memcpy(to, b->sparse->k + at, p->dim * sizeof(*to));
        memcpy(to + p->dim, b->sparse->g + at, p->dim * sizeof(*to));
    }
}

int ops_pool_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.step = s, .op = op};

    ops_store_each(s, ops_prepare(s, op->weights, 0, 3, ACT_X),
                   (float *[]){b->sparse->k, b->sparse->g, b->sparse->t});
    be_each(b, s->n_rows, cpu_pool_finish_row, &k);
    be_each(b, s->n_rows, cpu_pool_block_row, &k);
    be_each(b, s->host.batch->n_seqs, cpu_pool_save_state, &k);
    return 0;
}

/* Returns the products of row @row's queries and @n keys from key @first on, [n_head][CHOOSE_KEYS].
 */
static const float *cpu_sparse_products(const struct run *k, uint32_t row, uint32_t first,
                                        uint32_t n, uint32_t thread) {
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    float *keys = b->sparse->part + thread * b->sparse->part_width;
    float *z = keys + (size_t)CHOOSE_KEYS * p->dim;
    const float *key[CHOOSE_KEYS];

    assert(n <= CHOOSE_KEYS);
    for (uint32_t j = 0; j < n; j++) {
        key[j] = keys + (size_t)j * p->dim;
        b->kernels->halves(cpu_sparse_key_at(k, row, first + j), keys + (size_t)j * p->dim, p->dim);
    }
    b->kernels->dots(b->sparse->q + (size_t)row * p->n_head * p->dim, p->n_head, p->dim, key, n, 1,
                     z, CHOOSE_KEYS);
    return z;
}

/* Scores a part of the blocks of a row by their pooled keys. Rows that see all blocks need no
 * scores. */
static void cpu_pool_score_part(void *ctx, uint32_t item, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    uint32_t nth = item / k->n_parts, row = k->row0 + nth, first = item % k->n_parts * CHOOSE_PART;
    uint32_t whole = sparse_whole(p, k->step->host.row_pos[row]);
    uint32_t end = MIN(whole, first + CHOOSE_PART);
    float *score = b->sparse->score + nth * b->sparse->max_blocks;
    const float *t = b->sparse->t + (size_t)row * p->n_head;

    for (uint32_t i = first, n; i < end && whole > p->n_block; i += n) {
        n = MIN((uint32_t)CHOOSE_KEYS, end - i);
        const float *z = cpu_sparse_products(k, row, i, n, thread);
        memset(score + i, 0, n * sizeof(*score));
        for (uint32_t h = 0; h < p->n_head; h++)
            for (uint32_t j = 0; j < n; j++)
                score[i + j] += t[h] * MAX(z[h * CHOOSE_KEYS + j], 0);
    }
}

int ops_pool_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.step = s, .op = op};

    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, mla_queries_low(b), b->shape.mla.q_rank),
              b->sparse->q, op->weights->m[0].n_out);
    cpu_sparse_choose(&k, cpu_pool_score_part, cpu_sparse_choose_row);
    return 0;
}

/* -- blocks of each key head ------------------------------------------------------------------- */

/* Norms and rotates the queries and the key of a row, and stores the key. */
static void cpu_head_finish_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    float *key = b->sparse->k + (size_t)row * p->dim;

    cpu_sparse_turn(b, row, k->op->weights->q_norm, p->n_head,
                    b->sparse->q + (size_t)row * p->n_head * p->dim);
    cpu_sparse_turn(b, row, k->op->weights->k_norm, 1, key);
    host_store_halves(key, p->dim, cpu_sparse_key_at(k, row, k->step->host.row_pos[row]));
}

/* Scores a part of the blocks of a row by the largest product of each head. Rows that see all
 * blocks need no scores. */
static void cpu_head_score_part(void *ctx, uint32_t item, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    uint32_t nth = item / k->n_parts, row = k->row0 + nth, first = item % k->n_parts * CHOOSE_PART;
    uint32_t pos = k->step->host.row_pos[row], end = MIN(pos + 1, first + CHOOSE_PART);
    float *scores = b->sparse->score + (size_t)nth * p->n_head * b->sparse->max_blocks;

    assert(CHOOSE_PART % p->block == 0 && p->block % CHOOSE_KEYS == 0);
    for (uint32_t i = first, n; i < end && !sparse_sees_all(p, pos); i += n) {
        n = MIN((uint32_t)CHOOSE_KEYS, end - i);
        const float *z = cpu_sparse_products(k, row, i, n, thread);
        for (uint32_t h = 0; h < p->n_head; h++) {
            float *score = scores + h * b->sparse->max_blocks + i / p->block;

            if (i % p->block == 0)
                *score = -INFINITY;
            for (uint32_t j = 0; j < n; j++)
                *score = MAX(*score, z[h * CHOOSE_KEYS + j]);
        }
    }
}

/* Sets the bits of the positions that each head of the @nth scored row sees. */
static void cpu_head_choose_row(void *ctx, uint32_t nth, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    uint32_t row = k->row0 + nth;

    for (uint32_t h = 0; h < p->n_head; h++)
        sparse_see_blocks(p, k->step->host.row_pos[row],
                          b->sparse->score + ((size_t)nth * p->n_head + h) * b->sparse->max_blocks,
                          cpu_sparse_bits(b, row, h));
}

int ops_head_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.step = s, .op = op};

    ops_store_each(s, ops_prepare(s, op->weights, 0, 2, ACT_X),
                   (float *[]){b->sparse->q, b->sparse->k});
    be_each(b, s->n_rows, cpu_head_finish_row, &k);
    cpu_sparse_choose(&k, cpu_head_score_part, cpu_head_choose_row);
    return 0;
}
