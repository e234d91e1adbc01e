/*
 * conv - short convolutions (OP_CONV): t = b u for every row, then d = c times the convolution of
 * t. The state consists of the last rows of t.
 */

#include <assert.h>

#include "engine/ops/recurrent/cpu.h"

/* Computes t = b u of a row in in[0], in place of b. */
static void enter_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t n = b->shape.state.n_in[0];
    float *t = b->recurrent->in[0] + (size_t)row * n;
    const float *u = b->recurrent->in[2] + (size_t)row * n;

    for (uint32_t i = 0; i < n; i++)
        t[i] *= u[i];
}

/* Computes d of a row. */
static void conv_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    uint32_t n = b->shape.state.n_in[0];
    const float *c = b->recurrent->in[1] + (size_t)row * n, *y = b->recurrent->c + (size_t)row * n;
    float *out = b->act[ACT_D] + row * b->act_width[ACT_D];

    recurrent_convolve(k, row, NULL, false);
    for (uint32_t i = 0; i < n; i++)
        out[i] = c[i] * y[i];
}

int ops_conv(struct step *s, const struct model_op *op) {
    struct recurrent_run k = {s, op};
    const uint32_t *n_in = s->be->shape.state.n_in;

    assert(n_in[0] == n_in[1] && n_in[0] == n_in[2]);
    recurrent_begin(&k);
    be_each(s->be, s->n_rows, enter_row, &k);
    be_each(s->be, s->n_rows, conv_row, &k);
    recurrent_end(&k);
    return 0;
}
