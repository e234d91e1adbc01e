/*
 * Gated delta nets in the reference backend: the recurrence of backend.h, one token after the
 * other, in index order.
 */

#include <assert.h>
#include <string.h>
#include "engine/quant.h"
#include "engine/reference/reference.h"

int ref_delta_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t n_rows = s->host.batch->n_rows;
    float *to[OP_MATRICES] = {b->u, b->z, b->mix[0], b->mix[1]};

    for (uint32_t r = 0; r < n_rows; r++)
        ref_rms_norm(b->act[ACT_X] + (size_t)r * m->n_embd, op->norm, m->rms_eps, m->n_embd,
                     b->normed + (size_t)r * m->n_embd);
    for (int i = 0; i < OP_MATRICES && op->w[i]; i++)
        ref_linear(b, op->w[i], NULL, b->normed, n_rows, false, to[i]);
    return 0;
}

/* What a token is for one value head. */
struct head {
    const float *q, *k, *v;
    float keep, beta; /* e^g, sigmoid of the raw beta */
};

/* Makes @x of unit length. */
static void normalize(float *x, size_t n, float eps) {
    float scale = 1.0f / sqrtf(ref_dot(x, x, n) + eps);

    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* b->channel = the channels of row @r after the convolution, whose last inputs are @past; then the
 * row is the last of these. */
static void convolve(struct be *b, const struct model_op *op, uint32_t r, float *past) {
    const struct delta_shape *d = &b->shape->delta;
    uint32_t n = delta_channels(d), before = d->kernel - 1;
    const float *u = b->u + (size_t)r * n;

    for (uint32_t c = 0; c < n; c++) {
        float tap[8], sum = 0;

        quant_decode_row(op->conv, c, tap);
        for (uint32_t j = 0; j < before; j++)
            sum += tap[j] * past[(size_t)j * n + c];
        b->channel[c] = mx_silu(sum + tap[before] * u[c]);
    }
    memmove(past, past + n, (size_t)(before - 1) * n * sizeof(*past));
    memcpy(past + (size_t)(before - 1) * n, u, n * sizeof(*u));
    for (uint32_t h = 0; h < 2 * d->n_key_head; h++)
        normalize(b->channel + (size_t)h * d->dim, d->dim, b->shape->rms_eps);
}

/* Row @r as value head @h sees it. */
static struct head head_of(const struct be *b, const struct model_op *op, uint32_t r, uint32_t h) {
    const struct delta_shape *d = &b->shape->delta;
    uint32_t n = d->n_value_head, per = n / d->n_key_head;
    uint32_t key = d->tiled ? h % d->n_key_head : h / per;
    const float *q = b->channel + (size_t)key * d->dim;
    float beta = op->joined ? b->mix[0][(size_t)r * 2 * n + h / per * 2 * per + h % per]
                            : b->mix[0][(size_t)r * n + h];
    float alpha = op->joined ? b->mix[0][(size_t)r * 2 * n + h / per * 2 * per + per + h % per]
                             : b->mix[1][(size_t)r * n + h];
    float x = alpha + ref_vector_at(op->dt, h);
    float softplus = x > 20 ? x : (float)mx_log(1.0 + (double)mx_expf(x));

    return (struct head){
        .q = q,
        .k = q + (size_t)d->n_key_head * d->dim,
        .v = b->channel + (size_t)(2 * d->n_key_head + h) * d->dim,
        .keep = mx_expf(ref_vector_at(op->decay, h) * softplus),
        .beta = ref_sigmoid(beta),
    };
}

/* One token of a value head: M = e^g M + k (beta (v - e^g M^T k))^T, out = M^T q / sqrt(dim). */
static void advance(const struct be *b, const struct head *t, float *m, float *out) {
    uint32_t n = b->shape->delta.dim;

    memset(b->recall, 0, n * sizeof(float));
    memset(out, 0, n * sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++) {
            m[(size_t)i * n + j] *= t->keep;
            b->recall[j] += t->k[i] * m[(size_t)i * n + j];
        }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++) {
            m[(size_t)i * n + j] += t->k[i] * t->beta * (t->v[j] - b->recall[j]);
            out[j] += t->q[i] * m[(size_t)i * n + j];
        }
    for (uint32_t j = 0; j < n; j++)
        out[j] /= sqrtf((float)n);
}

static void run_row(struct step *s, const struct model_op *op, uint32_t r, float *state) {
    struct be *b = s->be;
    const struct delta_shape *d = &b->shape->delta;
    float *m = state + (size_t)(d->kernel - 1) * delta_channels(d);

    convolve(b, op, r, state);
    for (uint32_t h = 0; h < d->n_value_head; h++) {
        struct head head = head_of(b, op, r, h);
        size_t at = ((size_t)r * d->n_value_head + h) * d->dim;
        float *out = b->act[ACT_D] + at;

        advance(b, &head, m + (size_t)h * d->dim * d->dim, out);
        ref_rms_norm(out, op->norm, b->shape->rms_eps, d->dim, out);
        for (uint32_t j = 0; j < d->dim; j++)
            out[j] *= mx_silu(b->z[at + j]);
    }
}

int ref_delta(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct delta_shape *d = &b->shape->delta;
    const struct engine_batch *batch = s->host.batch;
    size_t n = delta_state_floats(d);

    assert(op->state < d->n_layer);
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *q = &batch->seq[i];
        float *state = b->state + ((size_t)q->state_slot * d->n_layer + op->state) * n;

        if (q->pos0 == 0)
            memset(state, 0, n * sizeof(*state));
        for (uint32_t r = q->row0; r < q->row0 + q->n_rows; r++)
            run_row(s, op, r, state);
    }
    return 0;
}
