/*
 * mamba - Mamba-2 (OP_MAMBA; op_list.h has the formulas). First, rows are convolved one by one.
 * Then every head of every sequence processes the rows of the sequence in order. Last, rows are
 * gated and normed one by one. The bits of a row do not depend on how a prompt is divided into
 * chunks.
 *
 * The data of a state is, for each head, a matrix [dim / 16][n_state][16 values].
 */

#include <assert.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/ops/recurrent/cpu.h"

void mamba_step_row(const struct recurrent_run *k, uint32_t row) {
    const struct recurrent *d = k->step->be->recurrent;
    const struct weights *w = k->op->weights;
    size_t at = (size_t)row * d->n_heads;

    for (uint32_t h = 0; h < d->n_heads; h++) {
        float dt = mx_softplus(d->in[2][at + h] + w->dt[h]);

        d->mix[0][at + h] = mx_expf(dt * w->decay[h]);
        d->mix[1][at + h] = dt;
    }
}

/* Computes x, B and C of a row, and the steps of its heads. */
static void mamba_convolve_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;

    recurrent_convolve(k, row, k->op->weights->conv_bias, true);
    mamba_step_row(k, row);
}

void mamba_advance_head(const struct recurrent_run *k, uint32_t i, const struct mamba_parts *p) {
    const struct be *b = k->step->be;
    const struct mamba_shape *m = &b->shape.mamba;
    const struct state_shape *t = &b->shape.state;
    const struct recurrent *d = b->recurrent;
    uint32_t h = i % m->n_head, group = h / (m->n_head / m->n_group);
    size_t part = (size_t)group * m->n_state;
    const struct engine_seq *q = &k->step->host.batch->seq[i / m->n_head];
    size_t matrix = (size_t)m->dim * m->n_state;
    float *state =
        recurrent_state(k, i / m->n_head) + (size_t)(t->kernel - 1) * t->n_in[0] + h * matrix;
    const float *c = d->c + (size_t)q->row0 * t->n_in[0];
    const float *in = p->in + (size_t)q->row0 * p->stride + part;
    const struct mamba_head head = {
        .dim = m->dim,
        .n_state = m->n_state,
        .n_rows = q->n_rows,
        .x = c + (size_t)h * m->dim,
        .in = in,
        .out = in + (size_t)m->n_group * m->n_state,
        .stride = t->n_in[0],
        .part_stride = p->stride,
        .keep = d->mix[0] + (size_t)q->row0 * m->n_head + h,
        .dt = d->mix[1] + (size_t)q->row0 * m->n_head + h,
        .mix_stride = m->n_head,
        .skip = k->op->weights->skip[h],
        .y = b->act[ACT_D] + q->row0 * b->act_width[ACT_D] + (size_t)h * m->dim,
        .y_stride = b->act_width[ACT_D],
    };

    if (q->pos0 == 0)
        memset(state, 0, matrix * sizeof(*state));
    b->kernels->mamba_advance(&head, state);
}

static void mamba_advance_item(void *ctx, uint32_t i, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct state_shape *t = &k->step->be->shape.state;
    const struct mamba_parts p = {k->step->be->recurrent->c + t->n_out, t->n_in[0]};

    mamba_advance_head(k, i, &p);
}

void mamba_finish_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t inner = b->shape.state.n_out, n = inner / b->shape.mamba.n_group;
    float *y = b->act[ACT_D] + row * b->act_width[ACT_D];

    b->kernels->glu[GLU_SILU](b->recurrent->in[1] + (size_t)row * inner, y, y, inner);
    for (uint32_t at = 0; at < inner && k->op->weights->norm; at += n)
        b->kernels->norm(y + at, k->op->weights->norm + at, y + at, n, b->shape.rms_eps);
}

int ops_mamba(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct recurrent_run k = {s, op};
    const struct mamba_shape *m = &b->shape.mamba;

    assert(b->shape.state.n_in[0] == b->shape.state.n_out + 2 * m->n_group * m->n_state);
    assert(b->shape.state.n_out == m->n_head * m->dim && b->recurrent->n_heads == m->n_head);
    recurrent_begin(&k);
    be_each(b, s->n_rows, mamba_convolve_row, &k);
    be_each(b, s->host.batch->n_seqs * b->shape.mamba.n_head, mamba_advance_item, &k);
    be_each(b, s->n_rows, mamba_finish_row, &k);
    recurrent_end(&k);
    return 0;
}
