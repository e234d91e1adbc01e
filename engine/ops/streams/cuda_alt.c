/*
 * cuda_alt - grids and arguments of the kernels of alternating updates of residual streams, and of
 * the low-rank branch beside attention (kernels_streams.h). The products of the streams behind the
 * first lie one behind the other in the buffers of a mix.
 */

#include <assert.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"
#include "engine/cuda/load.h"
#include "engine/ops/streams/kernels_streams.h"

/* Returns the values from the product of a stream to that of the next. */
static size_t alt_apart(const struct be *b) {
    return (size_t)b->opts->max_rows * b->shape->n_embd;
}

/* Returns the buffer of product @i of an op of alternating updates, of max_rows rows. */
static float *alt_place(const struct be *b, const struct model_op *op, int i) {
    if (op->kind == OP_LAUREL)
        return i ? b->streams.f : b->streams.gate;
    return b->streams.f + (size_t)i * alt_apart(b);
}

static struct alt_args alt_args(const struct be *b, const struct weights *w) {
    static_assert(ALT_STREAMS == OP_MATRICES + 1, "streams that an op has matrices for");
    return (struct alt_args){
        .batch = b->head,
        .f = b->streams.f,
        .apart = alt_apart(b),
        .low = b->compressed.low,
        .weigh = w->weigh,
        .scale = w->pick_bias,
        .s = b->compressed.s,
        .x = b->act.x,
        .weight = b->compressed.weight,
        .n = b->shape->n_embd,
        .n_stream = b->shape->stream.n,
    };
}

/* Returns the number of blocks that have the columns of a row. */
static uint32_t alt_parts(const struct alt_args *a) {
    return (a->n + CUDA_THREADS - 1) / CUDA_THREADS;
}

/* Packs rows of @x, @stride values apart, or their norm with the weights @norm. */
static int alt_pack(struct step *s, const float *x, uint32_t stride, const float *norm) {
    struct be *b = s->be;
    struct pack_args a =
        step_pack_args(b, norm ? PACK_NORM : PACK_PLAIN, x, norm, b->shape->n_embd);

    a.x_stride = stride;
    return step_launch_pack(b, s->grid.rows, &a);
}

int step_alt_begin(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct alt_args a = alt_args(b, op->weights);

    assert(op->weights->n_mats == a.n_stream - 1);
    TRY(alt_pack(s, a.x, a.n, NULL));
    TRY(step_multiply(s, op->weights, false));
    return CUDA_LAUNCH(b, alt_begin, s->grid.rows, a.n_stream, CUDA_THREADS, &a);
}

int step_alt_predict(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct alt_args a = alt_args(b, op->weights);

    TRY(alt_pack(s, a.s, a.n * a.n_stream, op->weights->norm));
    TRY(step_multiply(s, op->weights, false));
    return CUDA_LAUNCH(b, alt_predict, s->grid.rows, alt_parts(&a), CUDA_THREADS, &a);
}

int step_alt_correct(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct alt_args a = alt_args(b, op->weights);

    TRY(alt_pack(s, a.x, a.n, op->weights->norm));
    TRY(step_multiply(s, op->weights, false));
    return CUDA_LAUNCH(b, alt_correct, s->grid.rows, alt_parts(&a), CUDA_THREADS, &a);
}

int step_alt_end(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct alt_args a = alt_args(b, op->weights);
    const struct weights *w = op->weights;

    for (uint32_t i = 1; i < a.n_stream; i++, w = w->down) {
        TRY(alt_pack(s, a.s + (size_t)i * a.n, a.n * a.n_stream, NULL));
        TRY(step_multiply(s, w, false));
    }
    return CUDA_LAUNCH(b, alt_end, s->grid.rows, 1, CUDA_THREADS, &a);
}

/* Adds to b, which the output of attention has begun. */
int step_laurel(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    const struct laurel_args a = {
        .batch = b->head,
        .x = b->act.x,
        .t = b->streams.f,
        .norm = w->q_norm,
        .post_norm = w->post_norm,
        .b = b->act.q,
        .n = b->shape->n_embd,
        .eps = b->shape->rms_eps,
    };

    TRY(alt_pack(s, a.x, a.n, w->q_norm));
    TRY(step_multiply(s, w, false));
    TRY(step_pack(s, PACK_PLAIN, b->streams.gate, NULL, w->down->n_in));
    TRY(step_multiply(s, w->down, false));
    return CUDA_LAUNCH(b, laurel, s->grid.rows, 1, CUDA_THREADS, &a);
}

const struct op_code cuda_op_alt_begin = {
    .run = step_alt_begin,
    .place = alt_place,
    .family = &streams_family,
};

const struct op_code cuda_op_alt_predict = {
    .run = step_alt_predict,
    .out = {BE_AT(compressed.low)},
    .family = &streams_family,
};

const struct op_code cuda_op_alt_correct = {
    .run = step_alt_correct,
    .out = {BE_AT(compressed.low)},
    .family = &streams_family,
};

const struct op_code cuda_op_alt_end = {
    .run = step_alt_end,
    .load = load_apart,
    .place = alt_place,
    .family = &streams_family,
};

const struct op_code cuda_op_laurel = {
    .run = step_laurel,
    .load = load_apart,
    .place = alt_place,
    .family = &streams_family,
};
