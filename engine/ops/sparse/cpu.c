/*
 * sparse - the indexer of sparse attention (OP_INDEX, op_list.h): chooses the keys that each row
 * sees in the ATTEND op that follows.
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
#include <string.h>

#include "engine/cpu/state.h"
#include "engine/sparse.h"

/* Rows whose blocks are scored at a time; blocks of a row that a thread scores at a time. */
enum { CHOOSE_ROWS = 16, CHOOSE_PART = 1024 };

/* Buffers for the largest batch. */
struct sparse {
    /* [max_rows] queries of the indexer, and w[1] x of each token */
    float *q, *k;
    /* [CHOOSE_ROWS][max_blocks] */
    float *score;
    /* [max_rows][words] a bit for each position that the row sees */
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
    d->max_blocks = max_context / p->ratio + 1;
    d->q = be_rows(b, (size_t)p->n_head * p->dim);
    d->k = be_rows(b, p->dim);
    d->score = be_map(b, CHOOSE_ROWS * d->max_blocks * sizeof(float));
    d->seen = be_map(b, (size_t)b->max_rows * d->words * sizeof(*d->seen));
    if (b->no_memory)
        return -ENOMEM;
    return 0;
}

const uint32_t *sparse_seen(const struct be *b, uint32_t row) {
    return b->sparse->seen + (size_t)row * b->sparse->words;
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

/* Norms and rotates the queries of a row, and stores the key of the block that ends with it, if one
 * does. */
static void cpu_sparse_finish_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->step->be;
    const struct sparse_shape *p = &b->shape.sparse;
    float *q = b->sparse->q + (size_t)row * p->n_head * p->dim;

    for (uint32_t h = 0; h < p->n_head; h++, q += p->dim) {
        b->kernels->norm(q, k->op->weights->q_norm, q, p->dim, b->shape.rms_eps);
        b->kernels->rope(q, be_rope_row(b, row, 0), b->shape.rope[0].n_rot, b->shape.rope_type);
    }
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
               b->sparse->score + nth * b->sparse->max_blocks,
               b->sparse->seen + (size_t)row * b->sparse->words);
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

int ops_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape.sparse;
    struct run k = {.step = s, .op = op};

    ops_store_each(s, ops_prepare(s, op->weights, 0, 2, ACT_X),
                   (float *[]){b->sparse->q, b->sparse->k});
    be_each(b, s->n_rows, cpu_sparse_finish_row, &k);
    for (uint32_t n; k.row0 < s->n_rows; k.row0 += n) {
        uint32_t most = 0;

        n = MIN((uint32_t)CHOOSE_ROWS, s->n_rows - k.row0);
        for (uint32_t r = k.row0; r < k.row0 + n; r++)
            most = MAX(most, sparse_whole(p, s->host.row_pos[r]));
        k.n_parts = (most + CHOOSE_PART - 1) / CHOOSE_PART;
        if (most > p->n_block)
            be_each(b, n * k.n_parts, cpu_sparse_score_part, &k);
        be_each(b, n, cpu_sparse_choose_row, &k);
    }
    be_each(b, s->host.batch->n_seqs, cpu_sparse_save_state, &k);
    return 0;
}
