/*
 * sparse - the indexers of sparse attention in the reference backend (OP_INDEX, OP_POOL_KEYS,
 * OP_POOL_INDEX, OP_HEAD_INDEX).
 */

#include "engine/reference/reference.h"

#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/formats/quant.h"
#include "engine/sparse.h"

/* Applies RoPE for text position @pos to @x. */
static void ref_sparse_turn(struct be *b, uint32_t pos, float *x) {
    const struct rope_set *set = &b->shape->rope[0];

    for (uint32_t i = 0; i < set->n_rot / 2; i++)
        mx_sincos(pos * set->freq[i], &b->rope[2 * i + 1], &b->rope[2 * i]);
    ref_rotate(b, set, x);
}

/* Returns the address of the key of block @i of row @row's sequence. */
static uint8_t *ref_sparse_key_at(struct step *s, const struct model_op *op, uint32_t row,
                                  uint32_t i) {
    const struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    uint32_t per_page = b->page_tokens / p->ratio;
    size_t page = host_page(&s->host, KV_GLOBAL, row, i * p->ratio);
    uint64_t at = kv_bytes_both(b->kv_type, b->shape->n_kv_values[KV_GLOBAL] * b->page_tokens) +
                  op->index * index_bytes(b->shape, b->page_tokens) +
                  (uint64_t)(i % per_page) * p->dim * 2;

    return b->pages[KV_GLOBAL] + page * b->page_bytes[KV_GLOBAL] + at;
}

/* Computes and stores the key of the block that ends with row @row. Tokens of earlier steps are
 * read from @state. */
static void ref_sparse_store_block(struct step *s, const struct model_op *op,
                                   const struct engine_seq *q, uint32_t row, const float *state) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    uint32_t pos = s->host.row_pos[row], first = pos + 1 - p->ratio;
    uint8_t *key = ref_sparse_key_at(s, op, row, first / p->ratio);
    float *mean = b->row;

    memset(mean, 0, p->dim * sizeof(*mean));
    for (uint32_t k = 0; k < p->ratio; k++) {
        const float *raw = first + k < q->pos0
                               ? state + (size_t)k * p->dim
                               : b->index_k + (size_t)(q->row0 + first + k - q->pos0) * p->dim;

        for (uint32_t i = 0; i < p->dim; i++)
            mean[i] += raw[i];
    }
    for (uint32_t i = 0; i < p->dim; i++)
        mean[i] /= (float)p->ratio;
    ref_rms_norm(mean, op->k_norm, b->shape->rms_eps, p->dim, mean);
    ref_sparse_turn(b, first, mean);
    host_store_halves(mean, p->dim, key);
}

/* Scores the blocks of row @row, whose keys are in the pages, and sets the bits of the positions
 * that the row sees. */
static void ref_sparse_choose(struct step *s, const struct model_op *op, uint32_t row) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    uint32_t pos = s->host.row_pos[row], n = sparse_whole(p, pos);
    float *q = b->index_q + (size_t)row * p->n_head * p->dim, *key = b->row;

    for (uint32_t h = 0; h < p->n_head; h++) {
        ref_rms_norm(q + h * p->dim, op->q_norm, b->shape->rms_eps, p->dim, q + h * p->dim);
        ref_sparse_turn(b, pos, q + h * p->dim);
    }
    for (uint32_t i = 0; i < n; i++) {
        quant_decode(TENSOR_F16, ref_sparse_key_at(s, op, row, i), key, p->dim);
        b->block_score[i] = 0;
        for (uint32_t h = 0; h < p->n_head; h++) {
            float z = host_dot(q + h * p->dim, key, p->dim);

            b->block_score[i] += MAX(z, 0);
        }
    }
    sparse_see(p, pos, b->block_score, b->seen + (size_t)row * b->seen_words);
}

int ref_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->host.batch;
    const struct sparse_shape *p = &b->shape->sparse;

    ref_linear(b, op->w[0], NULL, b->act[ACT_X], batch->n_rows, b->index_q);
    ref_linear(b, op->w[1], NULL, b->act[ACT_X], batch->n_rows, b->index_k);
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *q = &batch->seq[i];
        uint32_t end = q->pos0 + q->n_rows, first = MAX(end / p->ratio * p->ratio, q->pos0);
        float *state = ref_more(b, op, q);

        for (uint32_t r = q->row0; r < q->row0 + q->n_rows; r++)
            if ((s->host.row_pos[r] + 1) % p->ratio == 0)
                ref_sparse_store_block(s, op, q, r, state);
        for (uint32_t r = q->row0; r < q->row0 + q->n_rows; r++)
            ref_sparse_choose(s, op, r);
        for (uint32_t pos = first; pos < end; pos++)
            memcpy(state + (size_t)(pos % p->ratio) * p->dim,
                   b->index_k + (size_t)(q->row0 + pos - q->pos0) * p->dim, p->dim * sizeof(float));
    }
    return 0;
}

/* -- pooled keys ------------------------------------------------------------------------------- */

/* Returns k (@which 0) or g (1) of position @pos of sequence @q, computed in this step or kept in
 * the state. */
static const float *ref_pool_at(const struct be *b, const struct model_op *op,
                                const struct engine_seq *q, uint32_t pos, uint32_t which) {
    const struct sparse_shape *p = &b->shape->sparse;
    const float *fresh = b->index_k;

    if (which)
        fresh = b->index_g;
    if (pos < q->pos0)
        return ref_more(b, op, q) + (size_t)(2 * (pos % pool_rows(b->shape, op)) + which) * p->dim;
    return fresh + (size_t)(q->row0 + pos - q->pos0) * p->dim;
}

/* Computes and stores the key of the block that ends with row @row. */
static void ref_pool_block(struct step *s, const struct model_op *op, const struct engine_seq *q,
                           uint32_t row) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    uint32_t pos = s->host.row_pos[row], first = pos + 1 - p->ratio;
    float *key = b->index_key, *place = b->row;

    for (uint32_t i = 0; i < p->dim; i++) {
        float score[32], max = -INFINITY, sum = 0, mean = 0;

        for (uint32_t j = 0; j < p->ratio; j++) {
            quant_decode_row(op->weigh, j, place);
            score[j] = ref_pool_at(b, op, q, first + j, 1)[i] + place[i];
            max = MAX(max, score[j]);
        }
        for (uint32_t j = 0; j < p->ratio; j++) {
            float weight = mx_expf(score[j] - max);

            sum += weight;
            mean += weight * ref_pool_at(b, op, q, first + j, 0)[i];
        }
        key[i] = mean / sum;
    }
    host_store_halves(key, p->dim, ref_sparse_key_at(s, op, row, first / p->ratio));
}

int ref_pool_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->host.batch;
    const struct sparse_shape *p = &b->shape->sparse;
    float scale = 1.0f / sqrtf((float)(p->dim * p->n_head));
    uint32_t n_kept = pool_rows(b->shape, op);

    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], NULL, b->normed, batch->n_rows, b->index_k);
    ref_linear(b, op->w[1], NULL, b->normed, batch->n_rows, b->index_g);
    ref_linear(b, op->w[2], NULL, b->normed, batch->n_rows, b->index_t);
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        ref_layer_norm(b->index_k + (size_t)r * p->dim, op->k_norm, op->norm_bias, p->eps, p->dim);
        for (uint32_t h = 0; h < p->n_head; h++)
            b->index_t[(size_t)r * p->n_head + h] *= scale;
    }
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *q = &batch->seq[i];
        uint32_t end = q->pos0 + q->n_rows, first = MAX(end / p->ratio * p->ratio, q->pos0);
        float *state = ref_more(b, op, q);

        for (uint32_t r = q->row0; r < q->row0 + q->n_rows; r++)
            if ((s->host.row_pos[r] + 1) % p->ratio == 0)
                ref_pool_block(s, op, q, r);
        for (uint32_t pos = first; pos < end; pos++)
            for (uint32_t which = 0; which < 2; which++)
                memcpy(state + (size_t)(2 * (pos % n_kept) + which) * p->dim,
                       ref_pool_at(b, op, q, pos, which), p->dim * sizeof(float));
    }
    return 0;
}

int ref_pool_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    uint32_t n_rows = s->host.batch->n_rows;
    size_t rank = b->shape->mla.q_rank, width = (size_t)p->n_head * p->dim;
    float *key = b->index_key;

    for (uint32_t r = 0; r < n_rows; r++)
        ref_rms_norm(b->latent_q + r * rank, op->norm, b->shape->rms_eps, rank,
                     b->index_r + r * rank);
    ref_linear(b, op->w[0], NULL, b->index_r, n_rows, b->index_q);
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *q = b->index_q + r * width, *t = b->index_t + (size_t)r * p->n_head;
        uint32_t pos = s->host.row_pos[r], n = sparse_whole(p, pos);

        for (uint32_t i = 0; i < n; i++) {
            quant_decode(TENSOR_F16, ref_sparse_key_at(s, op, r, i), key, p->dim);
            b->block_score[i] = 0;
            for (uint32_t h = 0; h < p->n_head; h++) {
                float z = host_dot(q + h * p->dim, key, p->dim);

                b->block_score[i] += t[h] * MAX(z, 0);
            }
        }
        sparse_see(p, pos, b->block_score, b->seen + (size_t)r * b->seen_words);
    }
    return 0;
}

/* -- blocks of each key head ------------------------------------------------------------------- */

/* Scores the blocks of row @row for head @h, and sets the bits of the positions that the head
 * sees. */
static void ref_head_choose(struct step *s, const struct model_op *op, uint32_t row, uint32_t h) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    uint32_t pos = s->host.row_pos[row];
    size_t set = (size_t)row * p->n_head + h;
    float *q = b->index_q + set * p->dim, *key = b->index_key;

    ref_rms_norm(q, op->q_norm, b->shape->rms_eps, p->dim, q);
    ref_sparse_turn(b, pos, q);
    for (uint32_t i = 0; i <= pos; i++) {
        float *score = &b->block_score[i / p->block];

        quant_decode(TENSOR_F16, ref_sparse_key_at(s, op, row, i), key, p->dim);
        if (i % p->block == 0)
            *score = -INFINITY;
        *score = MAX(*score, host_dot(q, key, p->dim));
    }
    sparse_see_blocks(p, pos, b->block_score, b->seen + set * b->seen_words);
}

int ref_head_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    uint32_t n_rows = s->host.batch->n_rows;

    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], NULL, b->normed, n_rows, b->index_q);
    ref_linear(b, op->w[1], NULL, b->normed, n_rows, b->index_k);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *key = b->index_k + (size_t)r * p->dim;

        ref_rms_norm(key, op->k_norm, b->shape->rms_eps, p->dim, key);
        ref_sparse_turn(b, s->host.row_pos[r], key);
        host_store_halves(key, p->dim, ref_sparse_key_at(s, op, r, s->host.row_pos[r]));
    }
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = 0; h < p->n_head; h++)
            ref_head_choose(s, op, r, h);
    return 0;
}
