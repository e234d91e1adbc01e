/*
 * conv - short convolutions in the reference backend (OP_CONV).
 */

#include "engine/reference/reference.h"

/* Implements ref_state_fn: computes t = b u in place of b, then d. */
static void ref_conv_row(struct step *s, const struct model_op *op, uint32_t r, float *state) {
    struct be *b = s->be;
    size_t n = b->shape->state.n_out, at = r * n;

    for (size_t i = at; i < at + n; i++)
        b->in[0][i] *= b->in[2][i];
    ref_convolve(b, op, r, state);
    for (size_t i = 0; i < n; i++)
        b->act[ACT_D][at + i] = b->in[1][at + i] * b->channel[i];
}

int ref_conv(struct step *s, const struct model_op *op) {
    return ref_each_state(s, op, ref_conv_row);
}
