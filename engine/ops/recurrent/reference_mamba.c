/*
 * mamba - Mamba-2 in the reference backend (OP_MAMBA). Sums are in index order.
 */

#include <assert.h>

#include "engine/reference/reference.h"

void ref_mamba_advance(const struct be *b, const struct model_op *op, uint32_t h, const float *x,
                       const float *parts, float dt, float *state, float *y) {
    const struct mamba_shape *m = &b->shape->mamba;
    uint32_t n = m->n_state, group = h / (m->n_head / m->n_group);
    const float *in = parts + (size_t)group * n;
    const float *out = in + (size_t)m->n_group * n;
    float keep = mx_expf(dt * ref_vector_at(op->recurrent.decay, h)),
          skip = ref_vector_at(op->recurrent.skip, h);

    for (uint32_t p = 0; p < m->dim; p++) {
        float *s = state + (size_t)p * n, sum = 0;

        for (uint32_t j = 0; j < n; j++) {
            s[j] = keep * s[j] + dt * x[p] * in[j];
            sum += s[j] * out[j];
        }
        y[p] = sum + skip * x[p];
    }
}

/* Computes y = norm(y silu(z)), with a norm for each group of heads if the op has one. */
static void gate_and_norm(const struct be *b, const struct model_op *op, const float *z, float *y) {
    const struct mamba_shape *m = &b->shape->mamba;
    size_t inner = (size_t)m->n_head * m->dim, n = inner / m->n_group;

    for (size_t i = 0; i < inner; i++)
        y[i] *= mx_silu(z[i]);
    for (size_t at = 0; at < inner && op->norm; at += n) {
        float scale = 1.0f / sqrtf(host_dot(y + at, y + at, n) / (float)n + b->shape->rms_eps);

        for (size_t i = at; i < at + n; i++)
            y[i] = y[i] * scale * ref_vector_at(op->norm, i);
    }
}

/* Implements ref_state_fn. A state has kernel - 1 rows of the convolution's input, then M of each
 * head, [dim][n_state]. */
static void ref_mamba_row(struct step *s, const struct model_op *op, uint32_t r, float *state) {
    struct be *b = s->be;
    const struct mamba_shape *m = &b->shape->mamba;
    const struct state_shape *t = &b->shape->state;
    float *y = b->act[ACT_D] + (size_t)r * t->n_out;
    float *matrix = state + (size_t)(t->kernel - 1) * t->n_in[0];

    assert(t->n_in[0] == t->n_out + 2 * m->n_group * m->n_state && t->n_in[2] == m->n_head);
    ref_convolve(b, op, r, state);
    for (uint32_t c = 0; c < t->n_in[0]; c++)
        b->channel[c] =
            mx_silu(b->channel[c] +
                    (op->recurrent.conv_bias ? ref_vector_at(op->recurrent.conv_bias, c) : 0));
    for (uint32_t h = 0; h < m->n_head; h++) {
        float dt =
            mx_softplus(b->in[2][(size_t)r * m->n_head + h] + ref_vector_at(op->recurrent.dt, h));
        size_t at = (size_t)h * m->dim;

        ref_mamba_advance(b, op, h, b->channel + at, b->channel + t->n_out, dt,
                          matrix + at * m->n_state, y + at);
    }
    gate_and_norm(b, op, b->in[1] + (size_t)r * t->n_out, y);
}

int ref_mamba(struct step *s, const struct model_op *op) {
    return ref_each_state(s, op, ref_mamba_row);
}
