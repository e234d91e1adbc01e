/*
 * heads - Mamba-1 whose steps, decays and factors of x are those of heads (OP_SCAN with by_head;
 * op_list.h has the formulas). The products are those of cpu_scan.c, the state is that of
 * cpu_mamba.c: between[0] has B, C and t of all rows, in[2] the steps of their heads.
 */

#include <assert.h>
#include <string.h>

#include "engine/ops/recurrent/cpu.h"

/* Divides a row of in[3], which has z, then u of each head, between in[1] and in[0]. */
static void heads_divide_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    const struct recurrent *d = b->recurrent;
    size_t n = b->shape.state.n_out, dim = b->shape.mamba.dim;
    const float *both = d->in[3] + row * 2 * n;
    float *u = d->in[0] + row * n, *z = d->in[1] + row * n;

    for (size_t at = 0; at < n; at += dim) {
        memcpy(z + at, both + 2 * at, dim * sizeof(*z));
        memcpy(u + at, both + 2 * at + dim, dim * sizeof(*u));
    }
}

/* Computes x of a row. */
static void heads_convolve_row(void *ctx, uint32_t row, uint32_t thread) {
    recurrent_convolve(ctx, row, NULL, true);
}

static void heads_step_row(void *ctx, uint32_t row, uint32_t thread) {
    mamba_step_row(ctx, row);
}

static void heads_advance_item(void *ctx, uint32_t i, uint32_t thread) {
    const struct recurrent_run *k = ctx;
    const struct be *b = k->step->be;
    const struct mamba_parts p = {b->recurrent->between[0], b->shape.state.n_low};

    mamba_advance_head(k, i, &p);
}

int scan_heads(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct state_shape *t = &b->shape.state;
    const struct recurrent *d = b->recurrent;
    const struct scan_shape *m = &b->shape.scan;
    struct recurrent_run k = {s, op};

    assert(t->n_in[0] == t->n_out && t->n_in[3] == 2 * t->n_out);
    assert(t->n_low == m->n_rank + 2 * m->n_state && b->shape.mamba.n_group == 1);
    be_each(b, s->n_rows, heads_divide_row, &k);
    recurrent_begin(&k);
    be_each(b, s->n_rows, heads_convolve_row, &k);
    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, d->c, t->n_in[0]), d->between[0], t->n_low);
    be_each(b, s->n_rows, scan_norm_row, &k);
    const float *low = d->between[0] + 2 * (size_t)m->n_state;
    ops_store(s, ops_prepare_rows(s, op->weights, 1, 1, low, t->n_low), d->in[2], t->n_in[2]);
    be_each(b, s->n_rows, heads_step_row, &k);
    be_each(b, s->host.batch->n_seqs * b->shape.mamba.n_head, heads_advance_item, &k);
    be_each(b, s->n_rows, mamba_finish_row, &k);
    recurrent_end(&k);
    return 0;
}
