/*
 * streams - residual streams (hyper-connections) and the n-gram table. The letters are those of the
 * formulas of OP_HC_OUT, OP_MIX, OP_HC_IN and OP_NGRAM (op_list.h). Everything except the products
 * is computed row by row, so the bits of a row do not depend on the other rows.
 *
 * The n-gram table is not loaded. It may have tens of gigabytes, of which a token reads a few
 * kilobytes; its rows are read from the file in each step, and the system's page cache keeps those
 * that are used often. Weights that were loaded do not depend on the file any more, but this table
 * does: a step fails if the file has changed, so that no token is computed from another model.
 * Renaming another file over it does no harm, because the old file stays open.
 */

#include "engine/ops/streams/cpu.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/mathx.h"
#include "engine/formats/quant.h"
#include "engine/ngram.h"
#include "engine/sinkhorn.h"

/* Context of the row functions. */
struct run {
    struct be *be;
    const struct model_op *op;
    const struct engine_batch *batch;
    const uint32_t *row_seq;
    /* a row of the table could not be read */
    _Atomic bool failed;
};

/* Returns the number of weights of a row: one for each stream, and for HC_IN the shares of the
 * streams in each other. */
static size_t n_weights(const struct stream_shape *s) {
    if (s->rounds)
        return (size_t)s->n * (s->n + 1);
    return s->n;
}

int streams_open(struct be *b) {
    const struct stream_shape *s = &b->shape.stream;

    if (!s->n)
        return 0;
    struct streams *d = b->streams = be_alloc(b, 1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->mixed = be_rows(b, streams_width(b));
    if (s->rounds)
        d->gate = NULL;
    else
        d->gate = be_rows(b, streams_width(b));
    d->low = be_rows(b, s->n_low);
    d->weight = be_rows(b, n_weights(s));
    if (b->no_memory)
        return -ENOMEM;
    return 0;
}

/* y = the RMS norm of each stream of @x with its part of @norm; y may be x. */
static void streams_norm(const struct be *b, const float *x, const float *norm, float *y) {
    uint32_t n = b->shape.n_embd;

    for (size_t at = 0; at < streams_width(b); at += n)
        b->kernels->norm(x + at, norm + at, y + at, n, b->shape.rms_eps);
}

/* Adds the branch b to the streams of a row, or sets the streams to x (HC_OUT after MIX). */
static void hc_out_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    uint32_t n = b->shape.n_embd, n_stream = b->shape.stream.n;
    float *to = b->act[ACT_S] + row * streams_width(b);

    for (uint32_t i = 0; i < n_stream; i++, to += n)
        if (k->op->begins)
            memcpy(to, b->act[ACT_X] + (size_t)row * n, n * sizeof(*to));
        else
            b->kernels->add_scaled(to, b->act[ACT_B] + (size_t)row * n,
                                   b->streams->weight[row * n_stream + i], n);
}

/* Mixes the streams of a row by their shares, and adds the branch b (HC_OUT after HC_IN). */
static void streams_share_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    uint32_t n = b->shape.n_embd, n_stream = b->shape.stream.n;
    const float *weight = b->streams->weight + row * n_weights(&b->shape.stream);
    float *to = b->act[ACT_S] + row * streams_width(b),
          *was = b->streams->mixed + row * streams_width(b);

    memcpy(was, to, streams_width(b) * sizeof(*was));
    memset(to, 0, streams_width(b) * sizeof(*to));
    for (uint32_t i = 0; i < n_stream; i++, to += n) {
        b->kernels->add_scaled(to, b->act[ACT_B] + (size_t)row * n, weight[i], n);
        for (uint32_t j = 0; j < n_stream; j++)
            b->kernels->add_scaled(to, was + (size_t)j * n, weight[n_stream + j * n_stream + i], n);
    }
}

/* Computes the RMS norm of all streams of a row together in mixed[]. */
static void norm_together(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;

    b->kernels->norm(b->act[ACT_S] + row * streams_width(b), NULL,
                     b->streams->mixed + row * streams_width(b), (uint32_t)streams_width(b),
                     b->shape.rms_eps);
}

/* Computes x of a row, and the weights for the next HC_OUT, from m in low[] (HC_IN). */
static void hc_in_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    const struct stream_shape *s = &b->shape.stream;
    const struct weights *w = k->op->weights;
    uint32_t n = b->shape.n_embd, n_out = w->m[0].n_out;
    float in[MAX_STREAMS], *x = b->act[ACT_X] + (size_t)row * n;

    assert(s->n <= MAX_STREAMS && n_out <= s->n_low);
    sinkhorn_weights(s, b->streams->low + (size_t)row * n_out, w->weigh, w->pick_bias, in,
                     n_out == s->n ? NULL : b->streams->weight + row * n_weights(s));
    memset(x, 0, n * sizeof(*x));
    for (uint32_t i = 0; i < s->n; i++)
        b->kernels->add_scaled(x, b->act[ACT_S] + row * streams_width(b) + (size_t)i * n, in[i], n);
    memset(b->act[ACT_B] + (size_t)row * n, 0, n * sizeof(float));
}

int ops_hc_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct run k = {.be = b, .op = op};

    be_each(b, s->n_rows, norm_together, &k);
    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, b->streams->mixed, streams_width(b)),
              b->streams->low, op->weights->m[0].n_out);
    be_each(b, s->n_rows, hc_in_row, &k);
    return 0;
}

/* Computes x of a row: the mean of its streams. */
static void streams_mean_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    uint32_t n = b->shape.n_embd, n_stream = b->shape.stream.n;
    float *x = b->act[ACT_X] + (size_t)row * n;

    memset(x, 0, n * sizeof(*x));
    for (uint32_t i = 0; i < n_stream; i++)
        b->kernels->add_scaled(x, b->act[ACT_S] + row * streams_width(b) + (size_t)i * n,
                               1.0f / (float)n_stream, n);
}

int ops_hc_mean(struct step *s, const struct model_op *op) {
    struct run k = {.be = s->be, .op = op};

    be_each(s->be, s->n_rows, streams_mean_row, &k);
    return 0;
}

/* Computes f of a row in mixed[] (MIX). */
static void streams_norm_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;

    streams_norm(b, b->act[ACT_S] + row * streams_width(b), k->op->weights->q_norm,
                 b->streams->mixed + row * streams_width(b));
}

/* Applies silu to w[1] f of a row in low[], and the sigmoid to the weights of its streams (MIX). */
static void bend_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    uint32_t n_stream = b->shape.stream.n, n_low = b->shape.stream.n_low;
    float part = 1.0f / (float)n_stream, *low = b->streams->low + (size_t)row * n_low;
    float *weight = b->streams->weight + (size_t)row * n_stream;

    for (uint32_t i = 0; i < n_low; i++)
        low[i] = mx_silu(low[i] * part);
    for (uint32_t i = 0; i < n_stream && k->op->w[2]; i++)
        weight[i] = 2 / (1.0f + mx_expf(-weight[i] * part));
}

/* Computes x of a row, the mean of its normed streams multiplied by their gates, and b = 0
 * (MIX). */
static void mean_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    uint32_t n = b->shape.n_embd;
    float *f = b->streams->mixed + row * streams_width(b), *x = b->act[ACT_X] + (size_t)row * n;
    float part = 1.0f / (float)b->shape.stream.n;

    b->kernels->gate(f, b->streams->gate + row * streams_width(b), (uint32_t)streams_width(b));
    memset(x, 0, n * sizeof(*x));
    for (size_t at = 0; at < streams_width(b); at += n)
        b->kernels->add_scaled(x, f + at, part, n);
    memset(b->act[ACT_B] + (size_t)row * n, 0, n * sizeof(float));
}

int ops_hc_out(struct step *s, const struct model_op *op) {
    struct run k = {.be = s->be, .op = op};

    be_each(s->be, s->n_rows,
            s->be->shape.stream.rounds && !op->begins ? streams_share_row : hc_out_row, &k);
    return 0;
}

int ops_mix(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct streams *d = b->streams;
    struct run k = {.be = b, .op = op};

    be_each(b, s->n_rows, streams_norm_row, &k);
    ops_store_each(
        s, ops_prepare_rows(s, op->weights, 1, op->weights->n_mats - 1, d->mixed, streams_width(b)),
        (float *[]){d->low, d->weight});
    be_each(b, s->n_rows, bend_row, &k);
    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, d->low, b->shape.stream.n_low), d->gate,
              streams_width(b));
    be_each(b, s->n_rows, mean_row, &k);
    return 0;
}

/* -- the table of n-grams ---------------------------------------------------------------------- */

/* Returns the part of the state of sequence @q that belongs to the op. */
static float *streams_state(const struct run *k, const struct engine_seq *q) {
    return recurrent_more(k->be, q->state_slot) + k->op->more;
}

/* Reads row @at of the table and decodes it to @out. @bytes: room for the row in the format of the
 * file. Returns false if it cannot be read. */
static bool read_table(const struct run *k, uint64_t at, uint8_t *bytes, float *out) {
    struct tensor row = *k->op->ngram.table;

    if (!ngram_read(k->be->file, k->op->ngram.table, at, bytes))
        return false;
    row.data = bytes;
    quant_decode_row(&row, 0, out);
    return true;
}

/* Computes e of a row in ACT_X: the table's rows for its n-grams. */
static void streams_read_row(void *ctx, uint32_t row, uint32_t thread) {
    struct run *k = ctx;
    const struct be *b = k->be;
    const struct ngram_shape *g = &b->shape.ngram;
    const struct engine_seq *q = &k->batch->seq[k->row_seq[row]];
    int32_t token[NGRAM_TOKENS];
    uint64_t at[NGRAM_HEADS];

    ngram_tokens(g, k->batch, q, row - q->row0, streams_state(k, q), token);
    ngram_rows(g, token, at);
    for (uint32_t h = 0; h < (g->n - 1) * g->n_head; h++)
        if (!read_table(k, at[h], (uint8_t *)(b->row + thread * b->row_width),
                        b->act[ACT_X] + (size_t)row * b->shape.n_embd + (size_t)h * g->width))
            atomic_store(&k->failed, true);
}

/* Computes v, in mixed[], and c, in gate[], of the streams of a row from w[0] e, in gate[], and
 * w[1] e, in ACT_B. */
static void streams_weigh_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    const struct weights *w = k->op->weights;
    uint32_t n = b->shape.n_embd;
    float *c = b->streams->gate + row * streams_width(b),
          *v = b->streams->mixed + row * streams_width(b);
    const float *value = b->act[ACT_B] + (size_t)row * n;

    streams_norm(b, c, w->k_norm, c);
    streams_norm(b, b->act[ACT_S] + row * streams_width(b), w->q_norm, v);
    for (size_t at = 0; at < streams_width(b); at += n) {
        float z = 0;

        for (uint32_t i = 0; i < n; i++)
            z += c[at + i] * v[at + i];
        z /= sqrtf((float)n);
        float root = sqrtf(fabsf(z) > 1e-6F ? fabsf(z) : 1e-6F);
        float by = mx_sigmoid(z > 0 || z < 0 ? copysignf(root, z) : 0);
        for (uint32_t i = 0; i < n; i++)
            v[at + i] = by * value[i];
    }
    streams_norm(b, v, w->post_norm, c);
}

/* Adds v and the silu of the convolution of c to the streams of a row. */
static void streams_add_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    const struct ngram_shape *g = &b->shape.ngram;
    const struct engine_seq *q = &k->batch->seq[k->row_seq[row]];
    size_t width = streams_width(b);
    uint32_t n_past = (g->kernel - 1) * g->n;
    const float *past = streams_state(k, q) + NGRAM_STATE, *u[8];
    float *y = b->row + thread * b->row_width, *to = b->act[ACT_S] + row * width;

    for (uint32_t j = 0; j < g->kernel; j++) {
        /* index of the row in the n_past rows of earlier steps and the rows of this step */
        uint32_t at = row - q->row0 + j * g->n;

        if (at < n_past)
            u[j] = past + at * width;
        else
            u[j] = b->streams->gate + (q->row0 + at - n_past) * width;
    }
    b->kernels->convolve(k->op->weights->conv, u, g->kernel, NULL, true, y, (uint32_t)width);
    b->kernels->add_scaled(to, b->streams->mixed + row * width, 1, (uint32_t)width);
    b->kernels->add_scaled(to, y, 1, (uint32_t)width);
}

/* Updates the state of sequence @i to that after the rows of this step. */
static void streams_save_state(void *ctx, uint32_t i, uint32_t thread) {
    const struct run *k = ctx;
    const struct be *b = k->be;
    const struct ngram_shape *g = &b->shape.ngram;
    const struct engine_seq *q = &k->batch->seq[i];
    size_t width = streams_width(b);
    uint32_t n_past = (g->kernel - 1) * g->n, fresh = MIN(n_past, q->n_rows);
    float *state = streams_state(k, q), *past = state + NGRAM_STATE;

    ngram_keep(g, k->batch, q, state);
    memmove(past, past + fresh * width, (n_past - fresh) * width * sizeof(*past));
    memcpy(past + (n_past - fresh) * width,
           b->streams->gate + (q->row0 + q->n_rows - fresh) * width, fresh * width * sizeof(*past));
}

int ops_ngram(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct ngram_shape *g = &b->shape.ngram;
    struct run k = {b, op, s->host.batch, s->host.row_seq, false};

    for (uint32_t i = 0; i < k.batch->n_seqs; i++)
        if (k.batch->seq[i].pos0 == 0)
            memset(streams_state(&k, &k.batch->seq[i]), 0,
                   (NGRAM_STATE + (g->kernel - 1) * g->n * streams_width(b)) * sizeof(float));
    be_each(b, s->n_rows, streams_read_row, &k);
    if (k.failed || gguf_has_changed(b->file))
        return -EIO;
    ops_store_each(s, ops_prepare(s, op->weights, 0, 2, ACT_X),
                   (float *[]){b->streams->gate, b->act[ACT_B]});
    be_each(b, s->n_rows, streams_weigh_row, &k);
    be_each(b, s->n_rows, streams_add_row, &k);
    be_each(b, k.batch->n_seqs, streams_save_state, &k);
    return 0;
}
