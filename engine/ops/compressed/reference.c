/*
 * compressed - attention to compressed keys in the reference backend (OP_CSA_IN to OP_CSA_OUT).
 * engine/ops/compressed/cpu.c explains where keys are stored.
 */

#include "engine/reference/reference.h"

#include <assert.h>
#include <string.h>

#include "engine/compressed.h"
#include "engine/formats/quant.h"
#include "engine/sparse.h"

/* Buffers, in the order in which the ops fill them. */
struct ref_compressed {
    /* [max_rows] r, k and t of CSA_IN */
    float *r, *key, *weight;
    /* [max_rows][2 * width] u of COMPRESS, and w[1] y */
    float *value, *gate;
    /* [max_rows][n_index][index_dim] queries of the indexer */
    float *q;
    /* [blocks of the longest context, and the window] */
    float *score;
    /* [max_rows][n_block] picked blocks, [max_rows] their number */
    uint32_t *pick, *n_pick;
    /* [width] one key */
    float *line;
    /* values of the widest key */
    size_t width;
};

void ref_compressed_open(struct be *b, const struct be_opts *o) {
    const struct compressed_shape *c = &o->shape->compressed;
    size_t n = o->engine->max_rows, width = MAX(o->shape->head_dim, c->index_dim);

    if (!c->window)
        return;
    struct ref_compressed *d = b->compressed = ref_alloc(b, 1, sizeof(*d));
    if (!d)
        return;
    d->width = width;
    d->r = ref_alloc(b, n, c->q_rank * sizeof(float));
    d->key = ref_alloc(b, n, o->shape->head_dim * sizeof(float));
    d->weight = ref_alloc(b, n, c->n_index * sizeof(float));
    d->value = ref_alloc(b, n, 2 * width * sizeof(float));
    d->gate = ref_alloc(b, n, 2 * width * sizeof(float));
    d->q = ref_alloc(b, n, c->n_index * width * sizeof(float));
    d->score = ref_alloc(b, c->window + o->engine->max_context / BLOCK_SHORT + 1, sizeof(float));
    d->pick = ref_alloc(b, n, c->n_block * sizeof(uint32_t));
    d->n_pick = ref_alloc(b, n, sizeof(uint32_t));
    d->line = ref_alloc(b, width, sizeof(float));
}

/* Applies RoPE for position @pos to the last n_rot of the @n values of @x; @back: undoes it. */
static void ref_compressed_turn(struct be *b, const struct model_op *op, uint32_t pos, bool back,
                                size_t n, float *x) {
    const struct rope_set *set = &b->shape->rope[op->rope];

    for (uint32_t i = 0; i < set->n_rot / 2; i++) {
        mx_sincos(pos * set->freq[i], &b->rope[2 * i + 1], &b->rope[2 * i]);
        if (back)
            b->rope[2 * i + 1] = -b->rope[2 * i + 1];
    }
    ref_rotate(b, set, x + n - set->n_rot);
}

int ref_csa_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct compressed_shape *c = &b->shape->compressed;
    struct ref_compressed *d = b->compressed;
    uint32_t n_rows = s->host.batch->n_rows;
    size_t dim = b->shape->head_dim;
    float scale = 1.0f / sqrtf((float)(c->index_dim * c->n_index));

    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], NULL, b->normed, n_rows, d->r);
    ref_linear(b, op->w[1], NULL, b->normed, n_rows, d->key);
    if (op->w[2])
        ref_linear(b, op->w[2], NULL, b->normed, n_rows, d->weight);
    for (size_t i = 0; op->w[2] && i < (size_t)n_rows * c->n_index; i++)
        d->weight[i] *= scale;
    for (size_t r = 0; r < n_rows; r++) {
        float *low = d->r + r * c->q_rank, *key = d->key + r * dim;

        ref_rms_norm(low, op->q_norm, b->shape->rms_eps, c->q_rank, low);
        ref_rms_norm(key, op->k_norm, b->shape->rms_eps, dim, key);
        ref_compressed_turn(b, op, s->host.row_pos[r], false, dim, key);
    }
    return 0;
}

/* Returns the window of @op's layer in the state of @q. */
static float *ref_compressed_window(const struct be *b, const struct model_op *op,
                                    const struct engine_seq *q) {
    return b->state + q->state_slot * state_floats(&b->shape->state) + window_at(b->shape, op);
}

/* Copies k of the last rows of each sequence to the window in its state. */
int ref_csa_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->host.batch;
    uint32_t n_kept = window_rows(b->shape, op);
    size_t dim = b->shape->head_dim;

    for (uint32_t k = 0; k < batch->n_seqs; k++) {
        const struct engine_seq *q = &batch->seq[k];
        uint32_t end = q->pos0 + q->n_rows;

        for (uint32_t pos = end - MIN(n_kept, q->n_rows); pos < end; pos++)
            memcpy(ref_compressed_window(b, op, q) + pos % n_kept * dim,
                   b->compressed->key + (q->row0 + pos - q->pos0) * dim, dim * sizeof(float));
    }
    return 0;
}

int ref_csa_q(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_rows = s->host.batch->n_rows, n_head = b->shape->n_head;
    size_t dim = b->shape->head_dim;

    ref_linear(b, op->w[0], NULL, b->compressed->r, n_rows, b->act[ACT_Q]);
    for (size_t i = 0; i < (size_t)n_rows * n_head; i++) {
        float *q = b->act[ACT_Q] + i * dim;

        ref_rms_norm(q, NULL, b->shape->rms_eps, dim, q);
        ref_compressed_turn(b, op, s->host.row_pos[i / n_head], false, dim, q);
    }
    return 0;
}

/* Returns the address of the key of block @i, which has @n values, of row @row's sequence. */
static uint8_t *ref_compressed_key_at(struct step *s, const struct model_op *op, uint32_t row,
                                      uint32_t i, uint64_t n) {
    const struct be *b = s->be;
    uint32_t last = (i + 1) * op->csa.block - 1;
    size_t page = host_page(&s->host, KV_GLOBAL, row, last);

    return b->pages[KV_GLOBAL] + page * b->page_bytes[KV_GLOBAL] +
           compressed_at(b->shape, b->page_tokens, op->csa.block, op->csa.first_value, n, last) *
               compressed_value(b->kv_type);
}

/* Returns the key of block @i of row @row's sequence as floats, which the next call overwrites. */
static const float *ref_compressed_read_key(struct step *s, const struct model_op *op, uint32_t row,
                                            uint32_t i, uint64_t n) {
    struct be *b = s->be;
    bool floats = compressed_value(b->kv_type) == sizeof(float);

    quant_decode(floats ? TENSOR_F32 : TENSOR_F16, ref_compressed_key_at(s, op, row, i, n),
                 b->compressed->line, (uint32_t)n);
    return b->compressed->line;
}

/* Stores a key of @n values in the format of compressed keys. */
static void store_key(const struct be *b, const float *x, size_t n, uint8_t *to) {
    if (compressed_value(b->kv_type) == sizeof(float))
        memcpy(to, x, n * sizeof(*x));
    else
        host_store_halves(x, n, to);
}

/* A sequence whose blocks are compressed. Its state has u and w[1] y of the last tokens. */
struct source {
    const struct engine_seq *seq;
    float *state;
    /* number of values of u */
    size_t width;
    /* number of tokens that the state has */
    uint32_t n_kept;
};

/* Returns u (@which 0) or w[1] y (1) of position @pos. */
static const float *source_at(const struct be *b, const struct source *from, uint32_t pos,
                              int which) {
    const struct ref_compressed *d = b->compressed;
    const float *fresh = d->value;

    if (which)
        fresh = d->gate;
    if (pos < from->seq->pos0)
        return from->state + (2 * (size_t)(pos % from->n_kept) + (size_t)which) * from->width;
    return fresh + (from->seq->row0 + pos - from->seq->pos0) * from->width;
}

/* Returns channel @i of the key of the block that begins at @first: a weighted mean over its
 * tokens, and for a short block also over those of the block before it. */
static float compress(const struct be *b, const struct model_op *op, const struct source *from,
                      uint32_t first, size_t i) {
    bool is_short = op->csa.block == BLOCK_SHORT;
    size_t n = op->k_norm->ne[0], own = is_short ? n : 0;
    uint32_t before = is_short && first ? op->csa.block : 0, end = before + op->csa.block;
    float score[BLOCK_LONG + BLOCK_SHORT], value[BLOCK_LONG + BLOCK_SHORT], max = -INFINITY;
    float sum = 0, out = 0;

    for (uint32_t k = 0; k < end; k++) {
        size_t at = i;
        uint32_t pos = first - before + k;

        if (k >= before)
            at = own + i;
        quant_decode_row(op->weigh, pos % op->csa.block, b->row);
        value[k] = source_at(b, from, pos, 0)[at];
        score[k] = source_at(b, from, pos, 1)[at] + b->row[at];
        max = MAX(score[k], max);
    }
    for (uint32_t k = 0; k < end; k++) {
        float weight = mx_expf(score[k] - max);

        sum += weight;
        out += weight * value[k];
    }
    return out / sum;
}

int ref_compress(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct ref_compressed *d = b->compressed;
    const struct engine_batch *batch = s->host.batch;
    size_t n = op->k_norm->ne[0], width = op->w[0]->ne[1];
    uint32_t n_kept = op->csa.block;

    if (op->csa.block == BLOCK_SHORT)
        n_kept = 2 * op->csa.block;
    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], NULL, b->normed, batch->n_rows, d->value);
    ref_linear(b, op->w[1], NULL, b->normed, batch->n_rows, d->gate);
    for (uint32_t k = 0; k < batch->n_seqs; k++) {
        const struct engine_seq *q = &batch->seq[k];
        struct source from = {q, ref_more(b, op, q), width, n_kept};
        uint32_t end = q->pos0 + q->n_rows;

        for (uint32_t r = q->row0; r < q->row0 + q->n_rows; r++) {
            uint32_t pos = s->host.row_pos[r], first = pos + 1 - op->csa.block;

            if ((pos + 1) % op->csa.block)
                continue;
            for (size_t i = 0; i < n; i++)
                d->line[i] = compress(b, op, &from, first, i);
            ref_rms_norm(d->line, op->k_norm, b->shape->rms_eps, n, d->line);
            ref_compressed_turn(b, op, first, false, n, d->line);
            store_key(b, d->line, n, ref_compressed_key_at(s, op, r, pos / op->csa.block, n));
        }
        for (uint32_t pos = end - MIN(n_kept, q->n_rows); pos < end; pos++)
            for (int which = 0; which < 2; which++)
                memcpy(from.state + (2 * (size_t)(pos % n_kept) + (size_t)which) * width,
                       source_at(b, &from, pos, which), width * sizeof(float));
    }
    return 0;
}

int ref_csa_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct compressed_shape *c = &b->shape->compressed;
    struct ref_compressed *d = b->compressed;
    size_t dim = c->index_dim, width = c->n_index * dim;

    ref_linear(b, op->w[0], NULL, d->r, s->host.batch->n_rows, d->q);
    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        uint32_t pos = s->host.row_pos[r], n = (pos + 1) / op->csa.block;

        for (uint32_t h = 0; h < c->n_index; h++)
            ref_compressed_turn(b, op, pos, false, dim, d->q + r * width + h * dim);
        for (uint32_t i = 0; i < n; i++) {
            const float *key = ref_compressed_read_key(s, op, r, i, dim);

            d->score[i] = 0;
            for (uint32_t h = 0; h < c->n_index; h++) {
                float z = host_dot(d->q + r * width + h * dim, key, dim);

                d->score[i] += (z > 0 ? z : 0) * d->weight[(size_t)r * c->n_index + h];
            }
        }
        d->n_pick[r] = sparse_best(d->score, n, c->n_block, d->pick + (size_t)r * c->n_block);
    }
    return 0;
}

/* The n keys that a row sees: those of the n_window positions from first on, then those of
 * blocks. */
struct view {
    struct step *step;
    const struct model_op *op;
    const struct engine_seq *seq;
    /* keys of the window */
    const float *state;
    uint32_t row, first, n_window, n;
};

/* Returns key @k of @v; the next call may overwrite it. */
static const float *view_key(const struct view *v, uint32_t k) {
    const struct be *b = v->step->be;
    const struct compressed_shape *c = &b->shape->compressed;
    uint32_t pos = v->first + k, i = k - v->n_window;
    size_t dim = b->shape->head_dim;

    if (k < v->n_window && pos < v->seq->pos0)
        return v->state + pos % window_rows(b->shape, v->op) * dim;
    if (k < v->n_window)
        return b->compressed->key + (v->seq->row0 + pos - v->seq->pos0) * dim;
    if (v->op->csa.block == BLOCK_SHORT)
        i = b->compressed->pick[(size_t)v->row * c->n_block + i];
    return ref_compressed_read_key(v->step, v->op, v->row, i, dim);
}

/* Computes attention of head @h of a row. */
static void ref_compressed_attend(const struct view *v, uint32_t h) {
    const struct be *b = v->step->be;
    size_t dim = b->shape->head_dim, at = ((size_t)v->row * b->shape->n_head + h) * dim;
    float *score = b->compressed->score, *o = b->act[ACT_O] + at;
    float sink = ref_vector_at(v->op->sinks, h), max = sink, sum;

    for (uint32_t k = 0; k < v->n; k++) {
        score[k] = host_dot(b->act[ACT_Q] + at, view_key(v, k), dim) * b->shape->attn_scale;
        max = MAX(score[k], max);
    }
    sum = mx_expf(sink - max);
    memset(o, 0, dim * sizeof(*o));
    for (uint32_t k = 0; k < v->n; k++) {
        const float *key = view_key(v, k);
        float weight = mx_expf(score[k] - max);

        sum += weight;
        for (size_t i = 0; i < dim; i++)
            o[i] += weight * key[i];
    }
    for (size_t i = 0; i < dim; i++)
        o[i] /= sum;
    ref_compressed_turn(v->step->be, v->op, v->step->host.row_pos[v->row], true, dim, o);
}

int ref_csa_attend(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct compressed_shape *c = &b->shape->compressed;
    const struct state_shape *t = &b->shape->state;
    const struct engine_batch *batch = s->host.batch;

    assert(t->n_floats == (uint64_t)c->window * b->shape->head_dim && op->csa.state <= t->n_layer);
    for (uint32_t k = 0; k < batch->n_seqs; k++) {
        const struct engine_seq *q = &batch->seq[k];
        const float *state = ref_compressed_window(b, op, q);

        for (uint32_t r = q->row0; r < q->row0 + q->n_rows; r++) {
            uint32_t pos = s->host.row_pos[r],
                     first = pos + 1 > c->window ? pos + 1 - c->window : 0;
            struct view v = {s, op, q, state, r, first, pos + 1 - first, pos + 1 - first};

            if (op->csa.block)
                v.n += op->csa.block == BLOCK_SHORT ? b->compressed->n_pick[r]
                                                    : (pos + 1) / op->csa.block;
            for (uint32_t h = 0; h < b->shape->n_head; h++)
                ref_compressed_attend(&v, h);
        }
    }
    return ref_csa_keys(s, op);
}

int ref_csa_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n_in = op->w[0]->ne[0], n_out = op->w[0]->ne[1];
    size_t in_width = n_in * b->shape->compressed.n_group, out_width = b->shape->state.n_out;

    assert(in_width == b->shape->widest.q && n_out * b->shape->compressed.n_group == out_width);
    for (uint64_t o = 0; o < n_out; o++) {
        quant_decode_row(op->w[0], o, b->row);
        for (uint32_t r = 0; r < s->host.batch->n_rows; r++)
            b->act[ACT_D][r * out_width + op->part * n_out + o] =
                host_dot(b->row, b->act[ACT_O] + r * in_width + op->part * n_in, n_in);
    }
    return 0;
}
