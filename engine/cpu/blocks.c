/*
 * blocks - ops of block drafters (engine/arch/dflash.c): TAP, FUSE, BLOCK_IN, BLOCK_OUT, SELECT and
 * CHAIN of op_list.h. The convolutions and the selection are those of all host backends
 * (engine/blocks.h).
 */

#include "engine/blocks.h"

#include <errno.h>
#include <string.h>

#include "engine/cpu/state.h"
#include "engine/formats/quant.h"

/* Buffers for the largest batch. */
struct blocks {
    /* [max_rows][n_taps][n_embd] */
    float *tap;
    /* [max_rows][n_embd] x before BLOCK_IN */
    float *saved;
    /* [max_rows][block_values()] dynamic taps */
    float *d;
    /* [max_wants][block.rank] SELECT: g of the scored wants; CHAIN: one row */
    float *g;
    /* [max_wants][block.top_k] */
    struct block_pick *candidate;
};

/* Context of the row functions. */
struct run {
    struct step *step;
    const struct model_op *op;
};

int blocks_open(struct be *b) {
    const struct model_shape *m = &b->shape;

    if (!m->n_taps)
        return 0;
    struct blocks *k = b->drafter = be_alloc(b, 1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    k->tap = be_rows(b, (size_t)m->n_taps * m->n_embd);
    k->saved = be_rows(b, m->block.kernel ? m->n_embd : 0);
    k->d = be_rows(b, block_values(m));
    k->g = be_map(b, (size_t)b->max_wants * m->block.rank * sizeof(float));
    k->candidate = be_alloc(b, (size_t)b->max_wants * m->block.top_k, sizeof(*k->candidate));
    return b->no_memory ? -ENOMEM : 0;
}

/* Returns row @row of the activations of a role. */
static float *blocks_act_row(const struct be *b, enum act_role role, uint32_t row) {
    return b->act[role] + row * b->act_width[role];
}

static void tap_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *r = ctx;
    const struct be *b = r->step->be;
    uint32_t n = b->shape.n_embd;

    memcpy(b->drafter->tap + ((size_t)row * b->shape.n_taps + r->op->part) * n,
           blocks_act_row(b, ACT_X, row), n * sizeof(float));
}

int ops_tap(struct step *s, const struct model_op *op) {
    struct run r = {s, op};

    be_each(s->be, s->n_rows, tap_row, &r);
    return 0;
}

int ops_fuse(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    ops_store(s,
              ops_prepare_rows(s, op->weights, 0, 1, b->drafter->tap,
                               (size_t)b->shape.n_taps * b->shape.n_embd),
              b->act[ACT_X], b->act_width[ACT_X]);
    return 0;
}

static void blocks_norm_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *r = ctx;
    const struct be *b = r->step->be;

    b->kernels->norm(blocks_act_row(b, ACT_X, row), r->op->weights->norm,
                     blocks_act_row(b, ACT_B, row), b->shape.n_embd, b->shape.rms_eps);
}

/* Saves x of a row, and sets x to the convolution before the branch. */
static void convolve_in_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *r = ctx;
    const struct be *b = r->step->be;
    uint32_t n = b->shape.n_embd;
    float *x = blocks_act_row(b, ACT_X, row);

    memcpy(b->drafter->saved + (size_t)row * n, x, n * sizeof(*x));
    block_convolve(&r->step->host, &b->shape, row, 0, b->act[ACT_B], b->drafter->d,
                   r->op->weights->weigh, x);
}

int ops_block_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run r = {s, op};
    ops_store(s, ops_prepare(s, op->weights, 0, 1, ACT_X), b->drafter->d, block_values(&b->shape));
    be_each(b, s->n_rows, blocks_norm_row, &r);
    be_each(b, s->n_rows, convolve_in_row, &r);
    return 0;
}

/* Sets x of a row to the saved x plus the convolution after the branch. */
static void convolve_out_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *r = ctx;
    const struct be *b = r->step->be;
    uint32_t n = b->shape.n_embd;
    float *x = blocks_act_row(b, ACT_X, row), *t = b->row + thread * b->row_width;
    const float *saved = b->drafter->saved + (size_t)row * n;

    block_convolve(&r->step->host, &b->shape, row, 1, b->act[ACT_B], b->drafter->d,
                   r->op->weights->weigh, t);
    if (r->op->weights->post_norm)
        b->kernels->norm(t, r->op->weights->post_norm, t, n, b->shape.rms_eps);
    for (uint32_t i = 0; i < n; i++)
        x[i] = (saved[i] + t[i]) * r->op->scale;
}

int ops_block_out(struct step *s, const struct model_op *op) {
    struct run r = {s, op};

    be_each(s->be, s->n_rows, convolve_out_row, &r);
    return 0;
}

/* Finds the candidates of the @i-th scored want. */
static void candidates_of(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *r = ctx;
    const struct be *b = r->step->be;

    block_candidates(&r->step->host, &b->shape, i, b->logits,
                     b->drafter->candidate + (size_t)i * b->shape.block.top_k);
}

int ops_select(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run r = {s, op};
    uint32_t n = s->host.n_scored;

    if (n == 0)
        return 0;
    ops_store(s, ops_prepare_wanted(s, op->weights), b->drafter->g, b->shape.block.rank);
    be_each(b, n, candidates_of, &r);
    block_select(&s->host, &b->shape, &op->weights->embedding, &op->weights->successor,
                 b->drafter->g, b->drafter->candidate, b->row, b->logits);
    return 0;
}

int ops_chain(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    int32_t before;

    for (uint32_t i = 0; i < s->host.n_scored; i++) {
        if (!block_before(&s->host, &b->shape, i, b->logits, &before))
            continue;
        quant_decode_row(&w->embedding, (uint64_t)before, b->drafter->g);
        struct matmul mm = ops_prepare_row(s, w, b->drafter->g);
        mm.mode = MATMUL_ADD;
        mm.out[0] = b->logits + (size_t)i * b->shape.n_vocab;
        mm.out_stride[0] = b->shape.n_vocab;
        matmul_run(b->pool, &mm, 1);
    }
    return 0;
}
