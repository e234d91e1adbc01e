#include "engine/ops/recurrent/cpu.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "engine/formats/quant.h"

/* Returns the number of heads of a recurrent op, 0 if it has no heads. */
static uint32_t heads_of(const struct be *b) {
    return MAX(b->shape.delta.n_value_head, b->shape.mamba.n_head);
}

int recurrent_open(struct be *b, uint32_t n_states) {
    const struct state_shape *s = &b->shape.state;

    if (!s->n_layer)
        return 0;
    struct recurrent *d = b->recurrent = be_alloc(b, 1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->n_states = n_states;
    d->n_heads = heads_of(b);
    for (int i = 0; i < OP_MATRICES; i++)
        d->in[i] = be_rows(b, s->n_in[i]);
    for (size_t i = 0; i < ARRAY_SIZE(d->between); i++)
        d->between[i] = be_rows(b, s->n_low);
    d->c = be_rows(b, s->n_in[0]);
    d->n_keep = d->n_heads * (b->shape.delta.elementwise ? b->shape.delta.dim : 1);
    d->mix[0] = be_rows(b, d->n_keep);
    d->mix[1] = be_rows(b, d->n_heads);
    d->state = be_map(b, n_states * state_floats(s) * sizeof(float));
    if (b->no_memory)
        return -ENOMEM;
    return 0;
}

void *recurrent_slot(struct be *b, uint32_t state) {
    const struct recurrent *d = b->recurrent;

    assert(state < d->n_states);
    return d->state + state * state_floats(&b->shape.state);
}

int recurrent_copy(struct be *b, uint32_t src, uint32_t dst) {
    size_t n = state_floats(&b->shape.state);

    memmove(recurrent_slot(b, dst), recurrent_slot(b, src), n * sizeof(float));
    return 0;
}

float *recurrent_more(const struct be *b, uint32_t state) {
    const struct state_shape *s = &b->shape.state;

    assert(state < b->recurrent->n_states && s->n_more > 0);
    return b->recurrent->state + state * state_floats(s) + s->n_layer * s->n_floats;
}

int recurrent_load_taps(struct be *b, struct weights *w, const struct op_recurrent *r, uint32_t n) {
    uint32_t kernel = (uint32_t)r->conv->ne[0];
    float tap[8];

    assert(kernel <= ARRAY_SIZE(tap));
    w->conv = be_alloc_weights(b, (size_t)kernel * n * sizeof(float));
    if (!w->conv)
        return -ENOMEM;
    for (uint32_t c = 0; c < n && !b->keep.found; c++) {
        uint64_t row = c;
        const struct tensor *taps = op_taps(r, &row);
        quant_decode_row(taps, row, tap);
        for (uint32_t j = 0; j < kernel; j++)
            w->conv[(size_t)j * n + c] = tap[j];
    }
    return 0;
}

int recurrent_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    TRY(be_vector(b, op->recurrent.dt, &w->dt));
    TRY(be_vector(b, op->recurrent.decay, &w->decay));
    TRY(be_vector(b, op->recurrent.skip, &w->skip));
    TRY(be_vector(b, op->recurrent.conv_bias, &w->conv_bias));
    return recurrent_load_taps(b, w, &op->recurrent, b->shape.state.n_in[0]);
}

/* Computes in[first + i] = w[i] l[i]. */
static int recurrent_up(struct step *s, const struct model_op *op) {
    const struct recurrent *d = s->be->recurrent;
    const struct weights *w = op->weights;
    uint32_t n_low = s->be->shape.state.n_low;

    for (uint32_t i = 0; i < w->n_mats; i++)
        ops_store(s, ops_prepare_rows(s, w, i, 1, d->between[i], n_low),
                  d->in[op->state_in.first + i], w->m[i].n_out);
    return 0;
}

int ops_state_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_mats = op->weights->n_mats;

    if (op->state_in.low == LOW_DOWN) {
        ops_store_each(s, ops_prepare(s, op->weights, 0, n_mats, ACT_X), b->recurrent->between);
        return 0;
    }
    if (op->state_in.low == LOW_UP)
        return recurrent_up(s, op);
    struct matmul mm = ops_prepare(s, op->weights, 0, n_mats, ACT_X);

    assert(b->recurrent && n_mats > 0);
    mm.mode = MATMUL_STORE;
    for (uint32_t i = 0; i < n_mats; i++) {
        uint32_t n_out = op->weights->m[i].n_out,
                 to = op->state_in.parts ? 0 : op->state_in.first + i;

        mm.out[i] = b->recurrent->in[to] + (op->state_in.parts ? (size_t)i * n_out : 0);
        if (op->state_in.parts)
            mm.out_stride[i] = (size_t)n_mats * n_out;
        else
            mm.out_stride[i] = n_out;
        assert(mm.out_stride[i] <= b->shape.state.n_in[to]);
    }
    matmul_run(b->pool, &mm, 1);
    return 0;
}

float *recurrent_state(const struct recurrent_run *k, uint32_t i) {
    const struct be *b = k->step->be;
    const struct recurrent *d = b->recurrent;
    const struct state_shape *s = &b->shape.state;
    uint32_t slot = k->step->host.batch->seq[i].state_slot;

    assert(slot < d->n_states && k->op->recurrent.state < s->n_layer);
    return d->state + slot * state_floats(s) + k->op->recurrent.state * s->n_floats;
}

void recurrent_convolve(const struct recurrent_run *k, uint32_t row, const float *bias, bool silu) {
    const struct be *b = k->step->be;
    const struct recurrent *d = b->recurrent;
    uint32_t n = b->shape.state.n_in[0], before = b->shape.state.kernel - 1;
    uint32_t seq = k->step->host.row_seq[row];
    uint32_t nth = row - k->step->host.batch->seq[seq].row0;
    const float *past = recurrent_state(k, seq), *u[8];

    assert(before < ARRAY_SIZE(u) && row < k->step->n_rows);
    for (uint32_t j = 0; j <= before; j++)
        if (nth + j >= before)
            u[j] = d->in[0] + (size_t)(row + j - before) * n;
        else
            u[j] = past + (size_t)(nth + j) * n;
    b->kernels->convolve(k->op->weights->conv, u, before + 1, bias, silu, d->c + (size_t)row * n,
                         n);
}

void recurrent_begin(const struct recurrent_run *k) {
    const struct be *b = k->step->be;
    const struct engine_batch *batch = k->step->host.batch;
    size_t past = (size_t)(b->shape.state.kernel - 1) * b->shape.state.n_in[0];

    assert(b->recurrent && b->act_width[ACT_D] >= b->shape.state.n_out);
    for (uint32_t i = 0; i < batch->n_seqs; i++)
        if (batch->seq[i].pos0 == 0)
            memset(recurrent_state(k, i), 0, past * sizeof(float));
}

/* Shifts the last kernel - 1 rows of in[0] of sequence @i into its state, where rows of earlier
 * steps may remain. */
static void recurrent_save_inputs(void *ctx, uint32_t i, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    const struct engine_seq *q = &k->step->host.batch->seq[i];
    uint32_t n = b->shape.state.n_in[0], before = b->shape.state.kernel - 1;
    uint32_t fresh = MIN(q->n_rows, before);
    float *past = recurrent_state(k, i);

    memmove(past, past + (size_t)fresh * n, (size_t)(before - fresh) * n * sizeof(*past));
    memcpy(past + (size_t)(before - fresh) * n,
           b->recurrent->in[0] + (size_t)(q->row0 + q->n_rows - fresh) * n,
           (size_t)fresh * n * sizeof(*past));
}

void recurrent_end(const struct recurrent_run *k) {
    be_each(k->step->be, k->step->host.batch->n_seqs, recurrent_save_inputs, (void *)k);
}
