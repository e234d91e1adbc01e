/*
 * reference_latent - latent attention in the reference backend, in absorbed form (OP_MLA_IN to
 * OP_MLA_OUT).
 */

#include <assert.h>
#include <string.h>

#include "engine/formats/quant.h"
#include "engine/reference/reference.h"

/* Returns the number of values of a head's query before the absorbed product. */
static size_t ref_mla_query_width(const struct model_shape *m) {
    return m->mla.n_nope + m->head_dim - m->mla.rank;
}

int ref_mla_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_rows = s->host.batch->n_rows;

    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], NULL, b->normed, n_rows, b->latent);
    ref_linear(b, op->w[1], NULL, b->normed, n_rows,
               b->shape->mla.q_rank ? b->latent_q : b->latent_heads);
    return 0;
}

int ref_mla_q(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->mla.q_rank;

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++)
        ref_rms_norm(b->latent_q + r * n, op->norm, b->shape->rms_eps, n, b->latent_q + r * n);
    ref_linear(b, op->w[0], NULL, b->latent_q, s->host.batch->n_rows, b->latent_heads);
    return 0;
}

/* Computes y = w[h] x. */
static void multiply_head(struct be *b, const struct tensor *w, uint32_t h, const float *x,
                          float *y) {
    assert(h < w->ne[2] && w->ne[0] <= b->row_width);
    for (uint64_t o = 0; o < w->ne[1]; o++) {
        quant_decode_row(w, h * w->ne[1] + o, b->row);
        y[o] = host_dot(b->row, x, w->ne[0]);
    }
}

int ref_mla_kv(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    const struct rope_set *rope = &m->rope[op->rope];
    size_t dim = m->head_dim, rank = m->mla.rank, nope = m->mla.n_nope,
           width = ref_mla_query_width(m);

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        float *key = b->kv[0] + r * dim;

        ref_rms_norm(b->latent + r * dim, op->norm, m->rms_eps, rank, key);
        memcpy(key + rank, b->latent + r * dim + rank, (dim - rank) * sizeof(*key));
        ref_set_rope(b, rope, r);
        ref_rotate(b, rope, key + rank);
        memcpy(b->kv[1] + r * dim, key, dim * sizeof(*key));
        for (uint32_t h = 0; h < m->n_head; h++) {
            const float *from = b->latent_heads + (r * m->n_head + h) * width;
            float *q = b->act[ACT_Q] + (r * m->n_head + h) * dim;

            multiply_head(b, op->w[0], h, from, q);
            memcpy(q + rank, from + nope, (dim - rank) * sizeof(*q));
            ref_rotate(b, rope, q + rank);
            ref_temper(&op->temper, s->host.row_pos[r], q, dim);
        }
    }
    ref_store_rows(s, op);
    return 0;
}

int ref_mla_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    size_t n = (size_t)s->host.batch->n_rows * m->n_head;

    for (size_t i = 0; i < n; i++)
        multiply_head(b, op->w[0], (uint32_t)(i % m->n_head), b->act[ACT_O] + i * m->head_dim,
                      b->act[ACT_D] + i * m->mla.n_value);
    return 0;
}
