/* blocks - ops of block drafters in the reference backend (engine/arch/dflash.c). */

#include "engine/blocks.h"

#include <string.h>

#include "engine/formats/quant.h"
#include "engine/reference/reference.h"

void ref_blocks_alloc(struct be *b, const struct be_opts *o) {
    const struct model_shape *s = o->shape;
    size_t rows = o->engine->max_rows, wants = o->engine->max_wants;

    if (!s->n_taps)
        return;
    b->tap = ref_alloc(b, rows * s->n_taps, s->n_embd * sizeof(float));
    b->saved = ref_alloc(b, rows, s->n_embd * sizeof(float));
    b->dynamic = ref_alloc(b, rows * block_values(s) + 1, sizeof(float));
    b->base = ref_alloc(b, (size_t)2 * s->block.kernel, s->n_embd * sizeof(float));
    b->select = ref_alloc(b, wants + 2, s->block.rank * sizeof(float));
    b->candidate = ref_alloc(b, wants, s->block.top_k * sizeof(*b->candidate));
}

int ref_tap(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd;

    for (size_t r = 0; r < s->host.batch->n_rows; r++)
        memcpy(b->tap + (r * b->shape->n_taps + op->part) * n, b->act[ACT_X] + r * n,
               n * sizeof(float));
    return 0;
}

int ref_fuse(struct step *s, const struct model_op *op) {
    struct be *b = s->be;

    ref_linear(b, op->w[0], NULL, b->tap, s->host.batch->n_rows, b->act[ACT_X]);
    return 0;
}

int ref_block_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_rows = s->host.batch->n_rows;

    quant_decode_row(op->weigh, 0, b->base);
    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], NULL, b->normed, (uint32_t)n_rows, b->dynamic);
    memcpy(b->saved, b->act[ACT_X], n_rows * n * sizeof(float));
    for (uint32_t r = 0; r < n_rows; r++)
        block_convolve(&s->host, b->shape, r, 0, b->normed, b->dynamic, b->base,
                       b->act[ACT_X] + r * n);
    return 0;
}

int ref_block_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd;

    quant_decode_row(op->weigh, 0, b->base);
    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        float *x = b->act[ACT_X] + r * n, *t = b->sum;

        block_convolve(&s->host, b->shape, r, 1, b->act[ACT_B], b->dynamic, b->base, t);
        if (op->post_norm)
            ref_rms_norm(t, op->post_norm, b->shape->rms_eps, n, t);
        for (size_t i = 0; i < n; i++)
            x[i] = (b->saved[r * n + i] + t[i]) * op->scale;
    }
    return 0;
}

/* Uses the normed rows of the scored wants, which LOGITS left in b->normed. */
int ref_select(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n = s->host.n_scored;

    ref_linear(b, op->w[0], NULL, b->normed, n, b->select);
    for (uint32_t i = 0; i < n; i++)
        block_candidates(&s->host, b->shape, i, b->logits,
                         b->candidate + (size_t)i * b->shape->block.top_k);
    block_select(&s->host, b->shape, op->w[1], op->w[2], b->select, b->candidate,
                 b->select + (size_t)n * b->shape->block.rank, b->logits);
    return 0;
}

int ref_chain(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n = b->shape->n_vocab, rank = b->shape->block.rank;
    int32_t before;

    for (uint32_t i = 0; i < s->host.n_scored; i++) {
        float *logits = b->logits + (size_t)i * n;

        if (!block_before(&s->host, b->shape, i, b->logits, &before))
            continue;
        quant_decode_row(op->w[1], (uint64_t)before, b->select);
        for (uint32_t t = 0; t < n; t++) {
            quant_decode_row(op->w[0], t, b->row);
            logits[t] += host_dot(b->row, b->select, rank);
        }
    }
    return 0;
}
