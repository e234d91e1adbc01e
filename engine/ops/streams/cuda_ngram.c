/*
 * ngram - the table of n-grams (OP_NGRAM). It stays in the file, of which the host reads the few
 * rows that a step's tokens have; they come to the device as the file has them, before the step's
 * launches, and a kernel decodes them. Which rows these are depends on the tokens before the step,
 * which the state of the sequence on the device has, so that copies of states need no other care;
 * and, where a token is a sample of the step before, on that. The host therefore asks the device
 * for both, behind all that was enqueued, and waits for the answer. Most rows of a prompt depend on
 * tokens of the step alone; they are read before, while the device computes the step before.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/ngram.h"
#include "engine/ops/streams/kernels_streams.h"

_Static_assert(NGRAM_TOKENS == NGRAM_KNOWN && NGRAM_KNOWN <= NGRAM_STATE, "");
_Static_assert(NGRAM_STATE == 16, "STATE of streams.cu");

const struct model_op *ngram_op(const struct model_shape *s) {
    for (uint32_t i = 0; i < s->n_ops && s->ngram.n; i++)
        if (s->op[i].kind == OP_NGRAM)
            return &s->op[i];
    return NULL;
}

uint32_t ngram_n_rows(const struct model_shape *s) {
    if (!s->ngram.n)
        return 0;
    return (s->ngram.n - 1) * s->ngram.n_head;
}

/* Asks the device for the tokens before the step and those that the previous step sampled, and
 * waits. */
static int ngram_ask_device(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct ngram_ask_args a = {
        .batch = b->head,
        .sampled = b->sampling.sampled,
        .state = recurrent_more(b, op),
        .stride = state_floats(&b->shape->state),
        .known = b->streams.known,
    };

    TRY(CUDA_LAUNCH(b, ngram_ask, (s->batch->n_seqs + CUDA_THREADS - 1) / CUDA_THREADS, 1,
                    CUDA_THREADS, &a));
    TRY(cuda_check(b, b->api->event_record(s->event, b->queue.stream), "cudaEventRecord"));
    return cuda_wait_event(b, s->event, "the tokens before a step");
}

/* Returns true if the host knows all tokens of row @nth of @q. */
static bool ngram_is_known(const struct ngram_shape *g, const struct engine_seq *q, uint32_t nth) {
    return nth >= g->n || (nth + 1 == g->n && q->feed < 0);
}

/* Computes the numbers of the rows of the table for row @nth of sequence @i. */
static void ngram_rows_of(const struct step *s, uint32_t i, uint32_t nth, uint64_t *row) {
    const struct ngram_shape *g = &s->be->shape->ngram;
    const struct engine_seq *q = &s->batch->seq[i];
    const struct ngram_known *k = &s->be->streams.known[i];
    int32_t token[NGRAM_TOKENS];

    ngram_tokens(g, s->batch, q, nth, k->last, token);
    if (q->feed >= 0 && nth < g->n)
        token[nth] = k->fed;
    ngram_rows(g, token, row);
}

/* Reads the rows of the table for the rows of the step whose tokens are @known, or for the others.
 * Returns false if one cannot be read. */
static bool ngram_read_rows(const struct step *s, const struct model_op *op, bool known,
                            uint8_t *to) {
    const struct be *b = s->be;
    uint32_t n = ngram_n_rows(b->shape);
    struct ngram_find *find = b->streams.find;
    uint64_t row[NGRAM_HEADS];
    size_t n_find = 0;

    for (uint32_t i = 0; i < s->batch->n_seqs; i++)
        for (uint32_t k = 0; k < s->batch->seq[i].n_rows; k++) {
            if (ngram_is_known(&b->shape->ngram, &s->batch->seq[i], k) != known)
                continue;
            ngram_rows_of(s, i, k, row);
            for (uint32_t h = 0; h < n; h++)
                find[n_find++] =
                    (struct ngram_find){.row = row[h], .to = (s->batch->seq[i].row0 + k) * n + h};
        }
    return ngram_read_all(b->opts->file, op->ngram.table, find, n_find, to);
}

/* Uploads the rows of the table that the step's tokens have. Fails if a row cannot be read or the
 * file has changed, so that no token comes from it. The rows of the step before may still be
 * copied from the other buffer. Returns 0 or -EIO. */
int ngram_bring(struct step *s) {
    struct be *b = s->be;
    const struct model_op *op = ngram_op(b->shape);

    if (!op)
        return 0;
    assert(!s->batch->model && !s->batch->holes);
    uint8_t *to = b->streams.host_rows[b->streams.turn++ % 2];
    bool good = ngram_read_rows(s, op, true, to);
    TRY(ngram_ask_device(s, op));
    good &= ngram_read_rows(s, op, false, to);
    if (!good || gguf_has_changed(b->opts->file))
        return cuda_lose(b, "the table of n-grams cannot be read, or the model's file has changed");
    return cuda_copy(b, b->streams.rows, to,
                     (size_t)s->batch->n_rows * ngram_n_rows(b->shape) * op->ngram.table->row_bytes,
                     CUDA_TO_DEVICE);
}

/* Computes OP_NGRAM. The table of @w is the buffer that ngram_bring() has filled; the buffers of
 * gates and b hold the products. */
int step_ngram(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    const struct model_shape *m = b->shape;
    const struct ngram_args a = {
        .batch = b->head,
        .table = w->raw,
        .k_norm = w->k_norm,
        .q_norm = w->q_norm,
        .c_norm = w->post_norm,
        .taps = w->taps,
        .e = b->act.x,
        .value = b->act.q,
        .s = b->compressed.s,
        .v = b->streams.f,
        .c = b->streams.gate,
        .state = recurrent_more(b, op),
        .stride = state_floats(&m->state),
        .n = m->n_embd,
        .n_stream = m->stream.n,
        .n_rows = ngram_n_rows(m),
        .n_taps = m->ngram.kernel,
        .apart = m->ngram.n,
        .eos = m->ngram.eos,
        .sampled = b->sampling.sampled,
        .eps = m->rms_eps,
    };
    uint32_t parts = (a.n * a.n_stream + CUDA_THREADS - 1) / CUDA_THREADS;

    assert(w->n_mats == 2 && w->n_in == a.n);
    TRY(CUDA_LAUNCH(b, ngram_decode, s->grid.rows, 1, CUDA_THREADS, &a));
    TRY(step_pack(s, PACK_PLAIN, a.e, NULL, a.n));
    TRY(step_multiply(s, w, false));
    TRY(CUDA_LAUNCH(b, ngram_weigh, s->grid.rows, a.n_stream, CUDA_THREADS, &a));
    TRY(CUDA_LAUNCH(b, ngram_add, s->grid.rows, parts, CUDA_THREADS, &a));
    return CUDA_LAUNCH(b, ngram_keep, s->grid.seqs, parts, CUDA_THREADS, &a);
}

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

/* Uses the buffer of rows that a step copies as the table, which stays in the file. */
static void ngram_name_table(const struct be *b, struct weights *w, const struct model_op *op) {
    uint32_t n = b->opts->max_rows * ngram_n_rows(b->shape);

    w->raw = load_source(b, op->ngram.table, b->streams.rows, n);
}

static int ngram_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    TRY(load_decoded(b, &op->ngram.conv, 1, &w->taps, err));
    ngram_name_table(b, w, op);
    return load_matrices(b, w, op, err);
}

const struct op_code cuda_op_ngram = {
    .run = step_ngram,
    .load = ngram_load,
    .out = {BE_AT(streams.gate), BE_AT(act.q)},
    .family = &recurrent_family,
};
