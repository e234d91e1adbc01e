/*
 * delta - gated delta nets (OP_DELTA) and Kimi delta attention (OP_KDA); op_list.h has the
 * formulas.
 *
 * First, rows are convolved one by one. Then every value head of every sequence processes the rows
 * of the sequence one after the other; these pairs of a head and a sequence are the work items of
 * the threads. Prompts and single tokens take the same path, so the bits of a row do not depend on
 * how a prompt is divided into chunks.
 *
 * The chunked form (Yang et al. 2024), which processes many tokens at once by matrix products,
 * would have to be divided at absolute positions to have this property. It would not be faster
 * here: the recurrence takes a few per cent of the time of a layer, and the products of the layer
 * process many rows at once anyway (docs/design/cpu-kernels.md).
 *
 * The data of a state is, for each value head, a matrix [dim / 16][dim keys][16 values].
 */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/ops/recurrent/cpu.h"

/* Computes e^g and sigmoid(beta) of the value heads of a row of OP_DELTA. */
static void delta_mix_row(const struct recurrent_run *k, uint32_t row) {
    const struct be *b = k->step->be;
    const struct recurrent *d = b->recurrent;
    uint32_t n = b->shape.delta.n_value_head, per = n / b->shape.delta.n_key_head;
    const float *beta = d->in[2] + (size_t)row * n, *alpha = d->in[3] + (size_t)row * n;

    if (k->op->recurrent.joined)
        beta = d->in[2] + (size_t)row * 2 * n;
    for (uint32_t h = 0; h < n; h++) {
        /* joined: index of beta; the alphas follow the betas of the key head */
        uint32_t at = h / per * 2 * per + h % per;
        float x = (k->op->recurrent.joined ? beta[at + per] : alpha[h]) + k->op->weights->dt[h];

        d->mix[0][(size_t)row * n + h] = mx_expf(k->op->weights->decay[h] * mx_softplus(x));
        d->mix[1][(size_t)row * n + h] = mx_sigmoid(k->op->recurrent.joined ? beta[at] : beta[h]);
    }
}

/* Computes e^g of a head whose decays have no lower bound. The products with its state cost @n
 * times as much, so that plain loops suffice. */
static void keep_unbounded(const float *x, const float *dt, float by, float *keep, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        keep[i] = mx_expf(by * mx_softplus(x[i] + dt[i]));
}

/* Computes e^g, for each element of the key, and sigmoid(beta) of the value heads of a row of
 * OP_KDA. */
static void mix_kda_row(const struct recurrent_run *k, uint32_t row) {
    const struct be *b = k->step->be;
    const struct recurrent *d = b->recurrent;
    const struct delta_shape *s = &b->shape.delta;
    const struct weights *w = k->op->weights;
    uint32_t n = s->n_value_head;

    for (uint32_t h = 0; h < n; h++) {
        size_t at = ((size_t)row * n + h) * s->dim, i = (size_t)row * n + h;

        if (s->lower < 0)
            b->kernels->kda_keep(d->in[2] + at, w->dt + (size_t)h * s->dim, fabsf(w->decay[h]),
                                 s->lower, d->mix[0] + at, s->dim);
        else
            keep_unbounded(d->in[2] + at, w->dt + (size_t)h * s->dim, w->decay[h], d->mix[0] + at,
                           s->dim);
        d->mix[1][i] = mx_sigmoid(d->in[3][i]);
    }
}

/* Computes c of a row, whose queries and keys get unit length per head, and its decays and
 * betas. */
static void delta_convolve_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    const struct delta_shape *s = &b->shape.delta;
    float *c = b->recurrent->c + (size_t)row * b->shape.state.n_in[0], root = sqrtf((float)s->dim);

    recurrent_convolve(k, row, NULL, true);
    for (uint32_t h = 0; h < 2 * s->n_key_head; h++)
        b->kernels->delta_unit(c + (size_t)h * s->dim, s->dim, s->eps,
                               h < s->n_key_head ? 1.0f / root : 1.0f);
    if (k->op->kind == OP_KDA)
        mix_kda_row(k, row);
    else
        delta_mix_row(k, row);
}

/* Advances the state of value head i % n of sequence i / n by all its rows, and norms and gates the
 * outputs. */
static void delta_advance_head(void *ctx, uint32_t i, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    const struct delta_shape *s = &b->shape.delta;
    const struct recurrent *d = b->recurrent;
    uint32_t n = s->n_value_head, h = i % n, channels = b->shape.state.n_in[0];
    const struct engine_seq *q = &k->step->host.batch->seq[i / n];
    uint32_t key = s->tiled ? h % s->n_key_head : h / (n / s->n_key_head);
    bool kda = k->op->kind == OP_KDA;
    size_t width = b->act_width[ACT_D], matrix = (size_t)s->dim * s->dim;
    float *m =
        recurrent_state(k, i / n) + (size_t)(b->shape.state.kernel - 1) * channels + h * matrix;
    const float *c = d->c + (size_t)q->row0 * channels;
    const struct delta_head head = {
        .dim = s->dim,
        .n_rows = q->n_rows,
        .q = c + (size_t)key * s->dim,
        .k = c + (size_t)(s->n_key_head + key) * s->dim,
        .v = c + (size_t)(2 * s->n_key_head + h) * s->dim,
        .stride = channels,
        .keep = d->mix[0] + ((size_t)q->row0 * n + h) * (kda ? s->dim : 1),
        .keep_stride = (size_t)n * s->dim,
        .beta = d->mix[1] + (size_t)q->row0 * n + h,
        .mix_stride = n,
        .out = b->act[ACT_D] + q->row0 * width + (size_t)h * s->dim,
        .out_stride = width,
    };

    if (q->pos0 == 0)
        memset(m, 0, matrix * sizeof(*m));
    (kda ? b->kernels->kda_advance : b->kernels->delta_advance)(&head, m);
    for (uint32_t r = 0; r < q->n_rows; r++) {
        float *o = head.out + r * width;
        const float *z = d->in[1] + (q->row0 + r) * (size_t)n * s->dim + (size_t)h * s->dim;

        b->kernels->norm(o, k->op->weights->norm, o, s->dim, b->shape.rms_eps);
        if (kda || k->op->recurrent.sigmoid)
            b->kernels->gate(o, z, s->dim);
        else
            b->kernels->glu[GLU_SILU](z, o, o, s->dim);
    }
}

int ops_delta(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct recurrent_run k = {s, op};
    const struct delta_shape *d = &b->shape.delta;

    assert(b->shape.state.n_in[0] == d->dim * (2 * d->n_key_head + d->n_value_head));
    assert(b->shape.state.n_out == d->dim * d->n_value_head && b->recurrent);
    recurrent_begin(&k);
    be_each(b, s->n_rows, delta_convolve_row, &k);
    be_each(b, s->host.batch->n_seqs * b->shape.delta.n_value_head, delta_advance_head, &k);
    recurrent_end(&k);
    return 0;
}

int ops_kda(struct step *s, const struct model_op *op) {
    return ops_delta(s, op);
}
