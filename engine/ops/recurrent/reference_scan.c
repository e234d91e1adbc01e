/*
 * scan - Mamba-1 in the reference backend (OP_SCAN). Sums are in index order.
 */

#include <assert.h>

#include "engine/reference/reference.h"

/* Norms the parts of a row, which follow each other. */
static void ref_norm_parts(const struct be *b, const struct model_op *op, float *part) {
    const uint32_t *n = b->shape->scan.n_part;

    for (size_t i = 0; i < SCAN_PARTS; i++) {
        ref_rms_norm(part, op->recurrent.part_norm[i], b->shape->rms_eps, n[i], part);
        part += n[i];
    }
}

/* Advances row @c of the state, [n_state], by one token with input @x and step @step. Returns its
 * output. */
static float ref_scan_channel(const struct be *b, const struct model_op *op, uint32_t c, float x,
                              float step, float *state) {
    uint32_t n = b->shape->scan.n_state;
    const float *in = b->between[0] + b->shape->scan.n_rank, *out = in + n;
    float sum = 0;

    for (uint32_t j = 0; j < n; j++) {
        float decay = ref_vector_at(op->recurrent.decay, (size_t)c * n + j);

        state[j] = mx_expf(step * decay) * state[j] + step * x * in[j];
        sum += state[j] * out[j];
    }
    return sum + ref_vector_at(op->recurrent.skip, c) * x;
}

/* Implements ref_state_fn. A state has kernel - 1 rows of the convolution's input, then M. */
static void ref_scan_row(struct step *s, const struct model_op *op, uint32_t r, float *state) {
    struct be *b = s->be;
    const struct state_shape *t = &b->shape->state;
    uint32_t n = t->n_out, n_state = b->shape->scan.n_state;
    float *y = b->act[ACT_D] + (size_t)r * n, *matrix = state + (size_t)(t->kernel - 1) * n;
    const float *z = b->in[1] + (size_t)r * n;
    float *step = b->in[2] + (size_t)r * n;

    assert(t->n_in[0] == n && t->n_low == b->shape->scan.n_rank + 2 * n_state);
    ref_convolve(b, op, r, state);
    for (uint32_t c = 0; c < n; c++)
        b->channel[c] = mx_silu(b->channel[c] + ref_vector_at(op->recurrent.conv_bias, c));
    ref_linear(b, op->w[0], NULL, b->channel, 1, b->between[0]);
    ref_norm_parts(b, op, b->between[0]);
    ref_linear(b, op->w[1], NULL, b->between[0], 1, step);
    for (uint32_t c = 0; c < n; c++) {
        float by = mx_softplus(step[c] + ref_vector_at(op->recurrent.dt, c));

        y[c] = ref_scan_channel(b, op, c, b->channel[c], by, matrix + (size_t)c * n_state) *
               mx_silu(z[c]);
    }
}

/* Implements ref_state_fn for steps of heads. A state has kernel - 1 rows of the convolution's
 * input, then M of each head, [dim][n_state]. */
static void ref_heads_row(struct step *s, const struct model_op *op, uint32_t r, float *state) {
    struct be *b = s->be;
    const struct state_shape *t = &b->shape->state;
    const struct mamba_shape *m = &b->shape->mamba;
    size_t n = t->n_out, dim = m->dim;
    float *y = b->act[ACT_D] + r * n, *matrix = state + (size_t)(t->kernel - 1) * t->n_in[0];
    const float *both = b->in[3] + r * 2 * n;
    float *u = b->in[0] + r * n, *step = b->in[2] + (size_t)r * m->n_head;

    for (size_t i = 0; i < n; i++)
        u[i] = both[i / dim * 2 * dim + dim + i % dim];
    ref_convolve(b, op, r, state);
    for (size_t i = 0; i < n; i++)
        b->channel[i] = mx_silu(b->channel[i]);
    ref_linear(b, op->w[0], NULL, b->channel, 1, b->between[0]);
    ref_norm_parts(b, op, b->between[0]);
    ref_linear(b, op->w[1], NULL, b->between[0] + 2 * (size_t)m->n_state, 1, step);
    for (uint32_t h = 0; h < m->n_head; h++) {
        float by = mx_softplus(step[h] + ref_vector_at(op->recurrent.dt, h));
        size_t at = h * dim;

        ref_mamba_advance(b, op, h, b->channel + at, b->between[0], by, matrix + at * m->n_state,
                          y + at);
    }
    for (size_t i = 0; i < n; i++)
        y[i] *= mx_silu(both[i / dim * 2 * dim + i % dim]);
}

int ref_scan(struct step *s, const struct model_op *op) {
    if (op->recurrent.by_head)
        return ref_each_state(s, op, ref_heads_row);
    return ref_each_state(s, op, ref_scan_row);
}
