/*
 * delta - gated delta nets and Kimi delta attention in the reference backend (OP_DELTA, OP_KDA).
 * Sums are in index order.
 */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/reference/reference.h"

/* Inputs of one token for one value head. */
struct head {
    const float *q, *k, *v;
    /* e^g; sigmoid of the product for beta */
    float keep, beta;
    /* e^g for each element of the key; NULL: all are keep */
    const float *keeps;
};

/* Scales @x to unit length, with @eps under the root. */
static void normalize(float *x, size_t n, float eps) {
    float scale = 1.0f / sqrtf(host_dot(x, x, n) + eps);

    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* Returns the inputs of value head @h in row @r, whose channels are in b->channel. */
static struct head ref_delta_head(const struct be *b, const struct model_op *op, uint32_t r,
                                  uint32_t h) {
    const struct delta_shape *d = &b->shape->delta;
    uint32_t n = d->n_value_head, per = n / d->n_key_head;
    uint32_t key = d->tiled ? h % d->n_key_head : h / per;
    const float *q = b->channel + (size_t)key * d->dim;
    float beta = op->recurrent.joined ? b->in[2][(size_t)r * 2 * n + h / per * 2 * per + h % per]
                                      : b->in[2][(size_t)r * n + h];
    float alpha = op->recurrent.joined
                      ? b->in[2][(size_t)r * 2 * n + h / per * 2 * per + per + h % per]
                      : b->in[3][(size_t)r * n + h];
    float x = alpha + ref_vector_at(op->recurrent.dt, h);

    return (struct head){
        .q = q,
        .k = q + (size_t)d->n_key_head * d->dim,
        .v = b->channel + (size_t)(2 * d->n_key_head + h) * d->dim,
        .keep = mx_expf(ref_vector_at(op->recurrent.decay, h) * mx_softplus(x)),
        .beta = mx_sigmoid(beta),
    };
}

/* Advances the state M of a value head, [dim keys][dim values], by one token: M = e^g M + k (beta
 * (v - e^g M^T k))^T, out = M^T q / sqrt(dim). */
static void ref_delta_advance(const struct be *b, const struct head *t, float *m, float *out) {
    uint32_t n = b->shape->delta.dim;

    memset(b->recall, 0, n * sizeof(float));
    memset(out, 0, n * sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++) {
            m[(size_t)i * n + j] *= t->keeps ? t->keeps[i] : t->keep;
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

/* Computes q, k and v of row @r in b->channel; q and k of each head get unit length. @past: the
 * rows before it. */
static void ref_delta_mix_row(struct be *b, const struct model_op *op, uint32_t r, float *past) {
    const struct delta_shape *d = &b->shape->delta;
    uint32_t n = b->shape->state.n_in[0];

    assert(n == d->dim * (2 * d->n_key_head + d->n_value_head));
    ref_convolve(b, op, r, past);
    for (uint32_t c = 0; c < n; c++)
        b->channel[c] = mx_silu(b->channel[c]);
    for (uint32_t h = 0; h < 2 * d->n_key_head; h++)
        normalize(b->channel + (size_t)h * d->dim, d->dim, d->eps);
}

/* Implements ref_state_fn for OP_DELTA. A state has kernel - 1 rows of the convolution's input,
 * then M of each value head. */
static void ref_delta_row(struct step *s, const struct model_op *op, uint32_t r, float *state) {
    struct be *b = s->be;
    const struct delta_shape *d = &b->shape->delta;
    uint32_t n = b->shape->state.n_in[0];
    float *m = state + (size_t)(b->shape->state.kernel - 1) * n;

    ref_delta_mix_row(b, op, r, state);
    for (uint32_t h = 0; h < d->n_value_head; h++) {
        struct head head = ref_delta_head(b, op, r, h);
        size_t at = ((size_t)r * d->n_value_head + h) * d->dim;
        float *out = b->act[ACT_D] + at;

        ref_delta_advance(b, &head, m + (size_t)h * d->dim * d->dim, out);
        ref_rms_norm(out, op->norm, b->shape->rms_eps, d->dim, out);
        for (uint32_t j = 0; j < d->dim; j++) {
            if (op->recurrent.sigmoid)
                out[j] *= mx_sigmoid(b->in[1][at + j]);
            else
                out[j] *= mx_silu(b->in[1][at + j]);
        }
    }
}

int ref_delta(struct step *s, const struct model_op *op) {
    return ref_each_state(s, op, ref_delta_row);
}

/* Returns the logarithm of a decay of OP_KDA, from the raw value with its bias. */
static float kda_decay(float by, float lower, float x) {
    if (lower < 0)
        return lower * mx_sigmoid(fabsf(by) * x);
    return by * mx_softplus(x);
}

/* Implements ref_state_fn for OP_KDA, which has as many key heads as value heads. Overwrites the
 * raw decays in in[2] by the decays. */
static void run_kda_row(struct step *s, const struct model_op *op, uint32_t r, float *state) {
    struct be *b = s->be;
    const struct delta_shape *d = &b->shape->delta;
    uint32_t n = d->dim, n_head = d->n_value_head;
    float *m = state + (size_t)(b->shape->state.kernel - 1) * b->shape->state.n_in[0];

    ref_delta_mix_row(b, op, r, state);
    for (uint32_t h = 0; h < n_head; h++) {
        size_t at = ((size_t)r * n_head + h) * n;
        float *keep = b->in[2] + at, *out = b->act[ACT_D] + at,
              by = ref_vector_at(op->recurrent.decay, h);

        for (uint32_t i = 0; i < n; i++) {
            float x = keep[i] + ref_vector_at(op->recurrent.dt, (size_t)h * n + i);

            keep[i] = mx_expf(kda_decay(by, d->lower, x));
        }
        const struct head head = {
            .q = b->channel + (size_t)h * n,
            .k = b->channel + (size_t)(n_head + h) * n,
            .v = b->channel + (size_t)(2 * n_head + h) * n,
            .keeps = keep,
            .beta = mx_sigmoid(b->in[3][(size_t)r * n_head + h]),
        };
        ref_delta_advance(b, &head, m + (size_t)h * n * n, out);
        ref_rms_norm(out, op->norm, b->shape->rms_eps, n, out);
        for (uint32_t j = 0; j < n; j++)
            out[j] *= mx_sigmoid(b->in[1][at + j]);
    }
}

int ref_kda(struct step *s, const struct model_op *op) {
    return ref_each_state(s, op, run_kda_row);
}
