/*
 * scan - Mamba-1 (OP_SCAN; op_list.h has the formulas). Rows are convolved one by one; two products
 * give t, B and C of all rows and their steps; sixteen channels of a sequence then process its rows
 * in order. The bits of a row do not depend on how a prompt is divided into chunks.
 *
 * Buffers of STATE_IN hold what the products give, because nothing else uses them between the two
 * ops: t, B and C are in between[0], steps in in[2]. The data of a state is, for each sixteen
 * channels, a matrix [n_state][16].
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mathx.h"
#include "base/try.h"
#include "engine/formats/quant.h"
#include "engine/ops/recurrent/cpu.h"

/* Channels that a thread advances at a time: sixteen alone would be too little work. */
enum { SCAN_CHANNELS = 128 };

/* Loads the vectors and the decays of channels. */
static int load_channels(struct be *b, struct weights *w, const struct op_recurrent *r) {
    uint32_t n_state = (uint32_t)r->decay->ne[0], n = (uint32_t)r->decay->ne[1];
    CLEANUP(freep) float *row = malloc(n_state * sizeof(*row));

    TRY(be_vector(b, r->dt, &w->dt));
    TRY(be_vector(b, r->skip, &w->skip));
    TRY(be_vector(b, r->conv_bias, &w->conv_bias));
    w->decay = be_alloc_weights(b, (size_t)n * n_state * sizeof(float));
    if (!w->decay || !row)
        return -ENOMEM;
    for (uint32_t c = 0; c < n && !b->keep.found; c++) {
        float *to = w->decay + (size_t)(c / LANES) * n_state * LANES + c % LANES;

        quant_decode_row(r->decay, c, row);
        for (uint32_t j = 0; j < n_state; j++)
            to[j * LANES] = row[j];
    }
    return recurrent_load_taps(b, w, r, n);
}

int scan_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    for (size_t i = 0; i < ARRAY_SIZE(w->part_norm); i++)
        TRY(be_vector(b, op->recurrent.part_norm[i], &w->part_norm[i]));
    if (op->recurrent.by_head)
        return recurrent_load(b, w, op, err);
    return load_channels(b, w, &op->recurrent);
}

/* Computes x of a row. */
static void scan_convolve_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;

    recurrent_convolve(k, row, k->op->weights->conv_bias, true);
}

void scan_norm_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    const uint32_t *n = b->shape.scan.n_part;
    float *part = b->recurrent->between[0] + (size_t)row * b->shape.state.n_low;

    for (size_t i = 0; i < SCAN_PARTS; i++) {
        b->kernels->norm(part, k->op->weights->part_norm[i], part, n[i], b->shape.rms_eps);
        part += n[i];
    }
}

/* Computes the steps of a row from w[1] t. */
static void scan_step_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t n = b->shape.state.n_out;
    float *step = b->recurrent->in[2] + (size_t)row * n;

    for (uint32_t c = 0; c < n; c++)
        step[c] = mx_softplus(step[c] + k->op->weights->dt[c]);
}

/* Returns the number of items of SCAN_CHANNELS channels. */
static uint32_t scan_items(const struct be *b) {
    return (b->shape.state.n_out + SCAN_CHANNELS - 1) / SCAN_CHANNELS;
}

/* Advances the states of sixteen channels, from @c on, by all rows of sequence @i. */
static void scan_advance_lanes(const struct recurrent_run *k, uint32_t i, uint32_t c) {
    const struct be *b = k->step->be;
    const struct scan_shape *s = &b->shape.scan;
    const struct state_shape *t = &b->shape.state;
    const struct recurrent *d = b->recurrent;
    const struct weights *w = k->op->weights;
    const struct engine_seq *q = &k->step->host.batch->seq[i];
    size_t at = (size_t)c * s->n_state;
    float *state = recurrent_state(k, i) + (size_t)(t->kernel - 1) * t->n_in[0] + at;
    const float *part = d->between[0] + (size_t)q->row0 * t->n_low + s->n_rank;
    const struct scan_channels run = {
        .n_state = s->n_state,
        .n_rows = q->n_rows,
        .x = d->c + (size_t)q->row0 * t->n_in[0] + c,
        .stride = t->n_in[0],
        .step = d->in[2] + (size_t)q->row0 * t->n_in[2] + c,
        .step_stride = t->n_in[2],
        .in = part,
        .out = part + s->n_state,
        .part_stride = t->n_low,
        .decay = w->decay + at,
        .skip = w->skip + c,
        .y = b->act[ACT_D] + q->row0 * b->act_width[ACT_D] + c,
        .y_stride = b->act_width[ACT_D],
    };

    if (q->pos0 == 0)
        memset(state, 0, (size_t)LANES * s->n_state * sizeof(*state));
    b->kernels->scan_advance(&run, state);
}

/* Advances the channels of item @item % n of sequence @item / n. */
static void scan_advance_item(void *ctx, uint32_t item, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t n = scan_items(b), first = item % n * SCAN_CHANNELS;
    uint32_t end = MIN(first + SCAN_CHANNELS, b->shape.state.n_out);

    for (uint32_t c = first; c < end; c += LANES)
        scan_advance_lanes(k, item / n, c);
}

/* Computes d = y silu(z) of a row. */
static void scan_finish_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t n = b->shape.state.n_out;
    float *y = b->act[ACT_D] + row * b->act_width[ACT_D];

    b->kernels->glu[GLU_SILU](b->recurrent->in[1] + (size_t)row * n, y, y, n);
}

int ops_scan(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct state_shape *t = &b->shape.state;
    const struct recurrent *d = b->recurrent;
    struct recurrent_run k = {s, op};

    if (op->recurrent.by_head)
        return scan_heads(s, op);
    assert(t->n_in[0] == t->n_out && t->n_out % LANES == 0);
    assert(t->n_low == b->shape.scan.n_rank + 2 * b->shape.scan.n_state);
    recurrent_begin(&k);
    be_each(b, s->n_rows, scan_convolve_row, &k);
    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, d->c, t->n_in[0]), d->between[0], t->n_low);
    be_each(b, s->n_rows, scan_norm_row, &k);
    ops_store(s, ops_prepare_rows(s, op->weights, 1, 1, d->between[0], t->n_low), d->in[2],
              t->n_in[2]);
    be_each(b, s->n_rows, scan_step_row, &k);
    be_each(b, s->host.batch->n_seqs * scan_items(b), scan_advance_item, &k);
    be_each(b, s->n_rows, scan_finish_row, &k);
    recurrent_end(&k);
    return 0;
}
