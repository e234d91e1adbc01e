/*
 * streams - grids and arguments of the kernels of a mix (kernels_streams.h). A grid depends only on
 * the numbers of rows and sequences, so steps with these ops can be recorded as graphs.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/ngram.h"
#include "engine/ops/streams/kernels_streams.h"

/* Computes OP_MIX: two products of f, and a product of the low-rank result of the first. */
int step_mix(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    const struct model_shape *m = b->shape;
    const struct mix_args a = {
        .batch = b->head,
        .s = b->compressed.s,
        .norm = w->q_norm,
        .gate = b->streams.gate,
        .f = b->streams.f,
        .low = b->compressed.low,
        .weight = op->w[2] ? b->compressed.weight : NULL,
        .x = b->act.x,
        .b = b->act.q,
        .n = m->n_embd,
        .n_stream = m->stream.n,
        .n_low = m->stream.n_low,
        .eps = m->rms_eps,
    };

    assert(w->n_in == a.n * a.n_stream && w->down->n_in == a.n_low);
    assert(a.n_stream <= CUDA_THREADS);
    TRY(CUDA_LAUNCH(b, mix_norm, s->grid.rows, a.n_stream, CUDA_THREADS, &a));
    TRY(step_pack(s, PACK_PLAIN, a.f, NULL, w->n_in));
    TRY(step_multiply(s, w, false));
    TRY(CUDA_LAUNCH(b, mix_bend, s->grid.rows, 1, CUDA_THREADS, &a));
    TRY(step_pack(s, PACK_PLAIN, a.low, NULL, a.n_low));
    TRY(step_multiply(s, w->down, false));
    return CUDA_LAUNCH(b, mix_mean, s->grid.rows, (a.n + CUDA_THREADS - 1) / CUDA_THREADS,
                       CUDA_THREADS, &a);
}

static void memory_streams(struct be *b) {
    const struct stream_shape *s = &b->shape->stream;
    size_t rows = b->opts->max_rows, all = rows * s->n * b->shape->n_embd;

    if (s->n == 0)
        return;
    memory_add_words(b, &b->compressed.s, all);
    memory_add_words(b, &b->compressed.low, rows * s->n_low);
    memory_add_words(b, &b->compressed.weight, rows * s->n * (s->rounds ? s->n + 1 : 1));
    if (s->rounds)
        return;
    memory_add_words(b, &b->streams.f, all);
    memory_add_words(b, &b->streams.gate, all);
    const struct model_op *op = ngram_op(b->shape);
    size_t row = op ? ngram_n_rows(b->shape) * op->ngram.table->row_bytes : 0;
    if (!op)
        return;
    memory_add(b, &b->streams.rows, rows, row, "activations", false);
    for (int i = 0; i < 2; i++)
        memory_add(b, &b->streams.host_rows[i], rows, row, "uploads", true);
    memory_add(b, &b->streams.find, rows * ngram_n_rows(b->shape), sizeof(*b->streams.find),
               "uploads", true);
    memory_add(b, &b->streams.known, b->opts->max_seqs, sizeof(*b->streams.known), "uploads", true);
}

const struct op_family streams_family = {.scratch = memory_streams};

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

/* Loads a MIX: w[1] and w[2] multiply the streams; w[0] multiplies the low-rank result of w[1], and
 * becomes @w->down. */
static int load_mix(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    w->down = load_weights_new(b);
    if (!w->down)
        return -ENOMEM;
    TRY(load_matrix(b, w->down, op->w[0], NULL, load_place(b, op, 0), err));
    for (int i = 1; i < 3; i++)
        TRY(op->w[i] ? load_matrix(b, w, op->w[i], NULL, load_place(b, op, i), err) : 0);
    return 0;
}

const struct op_code cuda_op_mix = {
    .run = step_mix,
    .load = load_mix,
    .out = {BE_AT(streams.gate), BE_AT(compressed.low), BE_AT(compressed.weight)},
    .family = &streams_family,
};
