/*
 * recurrent - code that the recurrent layers of the reference backend share: the products of their
 * input, the convolution, and the loop over the rows of each sequence.
 */

#include "engine/reference/reference.h"

#include <assert.h>
#include <string.h>

#include "engine/formats/quant.h"

/* Computes the products of STATE_IN with LOW_DOWN or LOW_UP. */
static int ref_low_products(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_rows = s->host.batch->n_rows;

    if (op->state_in.low == LOW_DOWN)
        ref_norm_rows(s, op);
    for (size_t i = 0; i < ARRAY_SIZE(b->between) && op->w[i]; i++) {
        if (op->state_in.low == LOW_DOWN)
            ref_linear(b, op->w[i], NULL, b->normed, n_rows, b->between[i]);
        else
            ref_linear(b, op->w[i], NULL, b->between[i], n_rows, b->in[op->state_in.first + i]);
    }
    return 0;
}

int ref_state_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t n_rows = s->host.batch->n_rows;

    if (op->state_in.low)
        return ref_low_products(s, op);
    ref_norm_rows(s, op);
    for (int i = 0; i < OP_MATRICES && op->w[i]; i++) {
        size_t n = op->w[i]->ne[1];
        /* parts: uses in[1] as scratch memory, which a later STATE_IN overwrites */
        int to = 1;

        if (!op->state_in.parts)
            to = op->state_in.first + i;
        assert(to < OP_MATRICES && n <= m->state.n_in[to]);
        ref_linear(b, op->w[i], NULL, b->normed, n_rows, b->in[to]);
        for (size_t r = 0; r < n_rows && op->state_in.parts; r++)
            memcpy(b->in[0] + (3 * r + (size_t)i) * n, b->in[1] + r * n, n * sizeof(float));
    }
    return 0;
}

void ref_convolve(struct be *b, const struct model_op *op, uint32_t r, float *past) {
    uint32_t n = b->shape->state.n_in[0], before = b->shape->state.kernel - 1;
    const float *u = b->in[0] + (size_t)r * n;

    for (uint32_t c = 0; c < n; c++) {
        float tap[8], sum = 0;

        assert(before < ARRAY_SIZE(tap));
        uint64_t row = c;
        const struct tensor *taps = op_taps(&op->recurrent, &row);
        quant_decode_row(taps, row, tap);
        for (uint32_t j = 0; j < before; j++)
            sum += tap[j] * past[(size_t)j * n + c];
        b->channel[c] = sum + tap[before] * u[c];
    }
    memmove(past, past + n, (size_t)(before - 1) * n * sizeof(*past));
    memcpy(past + (size_t)(before - 1) * n, u, n * sizeof(*u));
}

float *ref_more(const struct be *b, const struct model_op *op, const struct engine_seq *q) {
    const struct state_shape *t = &b->shape->state;

    assert(q->state_slot < b->n_states && op->more < t->n_more);
    return b->state + q->state_slot * state_floats(t) + t->n_layer * t->n_floats + op->more;
}

int ref_each_state(struct step *s, const struct model_op *op, ref_state_fn fn) {
    struct be *b = s->be;
    const struct state_shape *t = &b->shape->state;
    const struct engine_batch *batch = s->host.batch;

    assert(op->recurrent.state < t->n_layer);
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *q = &batch->seq[i];
        float *state =
            b->state + q->state_slot * state_floats(t) + op->recurrent.state * t->n_floats;

        assert(q->state_slot < b->n_states);
        if (q->pos0 == 0)
            memset(state, 0, t->n_floats * sizeof(*state));
        for (uint32_t r = q->row0; r < q->row0 + q->n_rows; r++)
            fn(s, op, r, state);
    }
    return 0;
}
