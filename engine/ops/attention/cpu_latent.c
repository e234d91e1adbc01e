/*
 * cpu_latent - multi-head latent attention in absorbed form (OP_MLA_IN to OP_MLA_OUT, op_list.h).
 *
 * All heads share one latent key of mla.rank values with n_rot rotary values, which is also the
 * value. A head's up projections of keys and values are multiplied into its query and its output
 * instead of every cached key: each head has a matrix before attention (MLA_KV) and one after it
 * (MLA_OUT). The products of all heads run in one round of the thread pool, each with the head's
 * part of every row. Attention itself is that of cpu.c, with one kv head.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "engine/cpu/state.h"

/* Buffers for the largest batch; acts[] grow while weights are loaded. */
struct mla {
    /* [max_rows]: keys of head_dim values, r of q_rank values, queries of
     * [n_head][mla_query_width()] */
    float *latent, *r, *q;
    /* [n_head] */
    struct matmul *mm;
    /* activations: the tiles of head 0, then those of head 1, ... */
    uint8_t *acts[ACTS_KINDS];
    size_t acts_size[ACTS_KINDS];
};

/* Returns the number of values of a head's query before the absorbed product. */
static uint32_t mla_query_width(const struct model_shape *m) {
    return m->mla.n_nope + m->head_dim - m->mla.rank;
}

int mla_open(struct be *b) {
    const struct model_shape *m = &b->shape;

    if (!m->mla.rank)
        return 0;
    struct mla *a = b->mla = be_alloc(b, 1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->latent = be_rows(b, m->head_dim);
    a->r = be_rows(b, m->mla.q_rank);
    a->q = be_rows(b, (size_t)m->n_head * mla_query_width(m));
    a->mm = be_alloc(b, m->n_head, sizeof(*a->mm));
    if (b->no_memory)
        return -ENOMEM;
    return 0;
}

const float *mla_queries_low(const struct be *b) {
    return b->mla->r;
}

/* Returns the bytes of the activations of one head for the largest batch, in whole tiles. */
static size_t head_acts(const struct be *b, enum acts_kind kind, uint32_t n_in) {
    return round_up(b->max_rows, TILE_MAX) * acts_bytes(kind, n_in, 1);
}

int mla_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    const struct tensor *t = op->w[0];
    uint32_t n = b->shape.n_head;
    struct mla *a = b->mla;

    assert(a && t->ne[2] == n);
    w->head = calloc(n, sizeof(*w->head));
    int r = -ENOMEM;

    if (w->head)
        r = be_vector(b, t->scale, &w->scale[0]);
    if (r)
        return r;
    for (uint32_t h = 0; h < n; h++) {
        struct tensor one = *t;

        one.ne[2] = 1;
        one.n_bytes = t->ne[1] * t->row_bytes;
        tensor_skip_rows(&one, h * t->ne[1]);
        r = be_pack(b, &w->head[h], &one, err);
        if (r)
            return r;
        if (w->scale[0])
            w->head[h].scale = w->scale[0] + h;
        else
            w->head[h].scale = NULL;
    }
    enum acts_kind kind = panel_infos[w->head[0].format].acts;
    return be_grow(b, &a->acts[kind], &a->acts_size[kind],
                   n * head_acts(b, kind, (uint32_t)t->ne[0]));
}

/* Context of the threads. The input of head h of row r is at in + r * stride + h * in_step. */
struct work {
    struct step *step;
    const struct model_op *op;
    const float *in;
    size_t stride, in_step;
};

/* Converts head i % n_head of row i / n_head to the tiles of its head. */
static void store_part(void *ctx, uint32_t i, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    uint32_t row = i / b->shape.n_head, h = i % b->shape.n_head;
    const struct mat *m = &k->op->weights->head[h];
    enum acts_kind kind = panel_infos[m->format].acts;

    b->kernels->acts_store[kind](k->in + row * k->stride + h * k->in_step, m->n_in,
                                 b->mla->acts[kind] + h * head_acts(b, kind, m->n_in) +
                                     row * acts_bytes(kind, m->n_in, 1));
}

/* Multiplies every head's matrix by the head's part of the rows. The results of head h begin at
 * value h * @out_step of the rows of @out. */
static void multiply_heads(struct work *k, enum act_role out, size_t out_step) {
    struct step *s = k->step;
    struct be *b = s->be;
    uint32_t n = b->shape.n_head;

    be_each(b, s->n_rows * n, store_part, k);
    for (uint32_t h = 0; h < n; h++) {
        const struct mat *m = &k->op->weights->head[h];
        enum acts_kind kind = panel_infos[m->format].acts;

        b->mla->mm[h] = (struct matmul){
            .kernels = b->kernels,
            .mode = MATMUL_STORE,
            .n_mats = 1,
            .n_rows = s->n_rows,
            .m = {m},
            .out = {b->act[out] + h * out_step},
            .out_stride = {b->act_width[out]},
            .scratch = b->scratch,
        };
        b->mla->mm[h].acts[kind] = b->mla->acts[kind] + h * head_acts(b, kind, m->n_in);
    }
    matmul_run(b->pool, b->mla->mm, n);
}

int ops_mla_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    float *queries = b->mla->q;

    if (b->shape.mla.q_rank)
        queries = b->mla->r;
    ops_store_each(s, ops_prepare(s, op->weights, 0, 2, ACT_X),
                   (float *[]){b->mla->latent, queries});
    return 0;
}

int ops_mla_q(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, b->mla->r, b->shape.mla.q_rank), b->mla->q,
              op->weights->m[0].n_out);
    return 0;
}

/* Norms the key of a row, applies RoPE to it and stores it in its page as key and as value; copies
 * the rotary parts of the row's queries to ACT_Q and applies RoPE to them, and to the queries the
 * temperature. */
static void mla_finish_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    const struct model_shape *m = &b->shape;
    const struct kv_view view = be_view(b, &k->op->heads);
    const float *cs = be_rope_row(b, row, k->op->rope);
    uint32_t n_rot = m->head_dim - m->mla.rank, width = mla_query_width(m);
    uint32_t pos = k->step->host.row_pos[row];
    uint8_t *keys = be_keys(k->step, k->op, row);
    float *key = b->mla->latent + (size_t)row * m->head_dim;

    b->kernels->norm(key, k->op->weights->norm, key, m->mla.rank, m->rms_eps);
    b->kernels->rope(key + m->mla.rank, cs, m->rope[k->op->rope].n_rot, m->rope_type);
    b->kernels->kv_write(&view, keys, keys + view.k_head, pos % view.page_tokens, key, key);
    for (uint32_t h = 0; h < m->n_head; h++) {
        float *q =
            b->act[ACT_Q] + row * b->act_width[ACT_Q] + (size_t)h * m->head_dim + m->mla.rank;

        memcpy(q, b->mla->q + ((size_t)row * m->n_head + h) * width + m->mla.n_nope,
               n_rot * sizeof(*q));
        b->kernels->rope(q, cs, m->rope[k->op->rope].n_rot, m->rope_type);
        ops_temper(&k->op->temper, pos, q - m->mla.rank, m->head_dim);
    }
}

int ops_mla_kv(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t width = mla_query_width(&b->shape);
    struct work k = {s, op, b->mla->q, (size_t)b->shape.n_head * width, width};

    multiply_heads(&k, ACT_Q, b->shape.head_dim);
    be_each(b, s->n_rows, mla_finish_row, &k);
    return 0;
}

int ops_mla_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct work k = {s, op, b->act[ACT_O], b->act_width[ACT_O], b->shape.head_dim};

    multiply_heads(&k, ACT_D, b->shape.mla.n_value);
    return 0;
}
