/*
 * streams - residual streams and the table of n-grams in the reference backend (OP_HC_OUT, OP_MIX,
 * OP_HC_IN, OP_NGRAM).
 */

#include "engine/reference/reference.h"

#include <string.h>

#include "engine/formats/quant.h"
#include "engine/ngram.h"
#include "engine/sinkhorn.h"

/* y = the RMS norm of each stream of @x with its part of @norm; y may be x. */
static void ref_streams_norm(const struct be *b, const float *x, const struct tensor *norm,
                             float *y) {
    size_t n = b->shape->n_embd;

    for (size_t i = 0; i < b->shape->stream.n; i++)
        ref_rms_norm(x + i * n, NULL, b->shape->rms_eps, n, y + i * n);
    for (size_t i = 0; i < b->shape->stream.n * n; i++)
        y[i] *= ref_vector_at(norm, i);
}

/* Mixes the streams of row @r by their shares, and adds the weighted branch b (HC_OUT after
 * HC_IN). */
static void ref_streams_share_row(struct be *b, size_t r) {
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n;
    const float *weight = b->stream_weight + r * n_stream * (n_stream + 1);
    float *to = b->act[ACT_S] + r * n * n_stream, *was = b->mixed;

    memcpy(was, to, n * n_stream * sizeof(*was));
    for (size_t i = 0; i < n_stream; i++)
        for (size_t k = 0; k < n; k++) {
            float sum = weight[i] * b->act[ACT_B][r * n + k];

            for (size_t j = 0; j < n_stream; j++)
                sum += weight[n_stream + j * n_stream + i] * was[j * n + k];
            to[i * n + k] = sum;
        }
}

int ref_hc_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_rows = s->host.batch->n_rows, n_stream = b->shape->stream.n;
    size_t n = b->shape->n_embd, width = n * n_stream, n_out = op->w[0]->ne[1];
    bool ends = n_out == n_stream;
    float scale[3], base[MAX_STREAMS * (MAX_STREAMS + 2)], in[MAX_STREAMS];

    assert(n_stream <= MAX_STREAMS);
    for (size_t i = 0; i < op->weigh->ne[0]; i++)
        scale[i] = ref_vector_at(op->weigh, i);
    for (size_t i = 0; i < n_out; i++)
        base[i] = ref_vector_at(op->pick_bias, i);
    for (size_t r = 0; r < n_rows; r++)
        ref_rms_norm(b->act[ACT_S] + r * width, NULL, b->shape->rms_eps, width,
                     b->mixed + r * width);
    ref_linear(b, op->w[0], NULL, b->mixed, n_rows, b->low);
    memset(b->act[ACT_B], 0, n_rows * n * sizeof(float));
    for (size_t r = 0; r < n_rows; r++) {
        float *x = b->act[ACT_X] + r * n;

        sinkhorn_weights(&b->shape->stream, b->low + r * n_out, scale, base, in,
                         ends ? NULL : b->stream_weight + r * n_stream * (n_stream + 1));
        for (size_t j = 0; j < n; j++) {
            float sum = 0;

            for (size_t i = 0; i < n_stream; i++)
                sum += in[i] * b->act[ACT_S][r * width + i * n + j];
            x[j] = sum;
        }
    }
    return 0;
}

int ref_hc_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n;

    if (b->shape->stream.rounds && !op->begins) {
        for (size_t r = 0; r < s->host.batch->n_rows; r++)
            ref_streams_share_row(b, r);
        return 0;
    }

    for (size_t i = 0; i < s->host.batch->n_rows * n_stream; i++) {
        float *to = b->act[ACT_S] + i * n;
        const float *x = b->act[op->begins ? ACT_X : ACT_B] + i / n_stream * n;

        for (size_t j = 0; j < n; j++)
            if (op->begins)
                to[j] = x[j];
            else
                to[j] = to[j] + b->stream_weight[i] * x[j];
    }
    return 0;
}

int ref_hc_mean(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n;

    for (size_t r = 0; r < s->host.batch->n_rows; r++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0;

            for (size_t i = 0; i < n_stream; i++)
                sum += b->act[ACT_S][(r * n_stream + i) * n + j];
            b->act[ACT_X][r * n + j] = sum / (float)n_stream;
        }
    return 0;
}

int ref_mix(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_rows = s->host.batch->n_rows, n_stream = b->shape->stream.n;
    size_t n = b->shape->n_embd, width = n * n_stream;
    float part = 1.0f / (float)n_stream;

    for (size_t r = 0; r < n_rows; r++)
        ref_streams_norm(b, b->act[ACT_S] + r * width, op->q_norm, b->mixed + r * width);
    ref_linear(b, op->w[1], NULL, b->mixed, n_rows, b->low);
    for (size_t i = 0; i < (size_t)n_rows * b->shape->stream.n_low; i++)
        b->low[i] = mx_silu(b->low[i] * part);
    ref_linear(b, op->w[0], NULL, b->low, n_rows, b->stream_gate);
    if (op->w[2])
        ref_linear(b, op->w[2], NULL, b->mixed, n_rows, b->stream_weight);
    for (size_t i = 0; i < (size_t)n_rows * n_stream && op->w[2]; i++)
        b->stream_weight[i] = 2 * mx_sigmoid(b->stream_weight[i] * part);
    memset(b->act[ACT_B], 0, n_rows * n * sizeof(float));
    for (size_t r = 0; r < n_rows; r++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0;

            for (size_t at = r * width + j; at < (r + 1) * width; at += n)
                sum += b->mixed[at] * mx_sigmoid(b->stream_gate[at]);
            b->act[ACT_X][r * n + j] = sum * part;
        }
    return 0;
}

/* Computes v, in b->mixed, and c, in b->stream_gate, of the streams of row @r from w[0] e, in
 * b->stream_gate, and w[1] e, in ACT_B. */
static void ref_streams_weigh_row(struct be *b, const struct model_op *op, uint32_t r) {
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n, at = r * n * n_stream;
    float *k = b->stream_gate + at, *v = b->mixed + at;

    ref_streams_norm(b, k, op->k_norm, k);
    ref_streams_norm(b, b->act[ACT_S] + at, op->q_norm, v);
    for (size_t i = 0; i < n_stream; i++) {
        float z = host_dot(k + i * n, v + i * n, n) / sqrtf((float)n), root = sqrtf(fabsf(z));

        root = MAX(root, 1e-3F);
        for (size_t j = 0; j < n; j++)
            v[i * n + j] =
                mx_sigmoid(z > 0 || z < 0 ? copysignf(root, z) : 0) * b->act[ACT_B][r * n + j];
    }
    ref_streams_norm(b, v, op->post_norm, k);
}

/* Adds v and the silu of the convolution of c to the streams of row @nth of sequence @q. @past: c
 * of the rows of earlier steps. */
static void ref_streams_convolve(struct be *b, const struct model_op *op,
                                 const struct engine_seq *q, uint32_t nth, const float *past) {
    const struct ngram_shape *g = &b->shape->ngram;
    size_t width = (size_t)b->shape->n_embd * b->shape->stream.n;
    uint32_t n_past = (g->kernel - 1) * g->n;
    const float *c = b->stream_gate + q->row0 * width;
    float *to = b->act[ACT_S] + (q->row0 + nth) * width;

    for (size_t i = 0; i < width; i++) {
        float tap[8], sum = 0;

        quant_decode_row(op->ngram.conv, i, tap);
        for (uint32_t j = 0; j < g->kernel; j++) {
            /* index of the row in the n_past rows of earlier steps and the rows of this step */
            uint32_t at = nth + j * g->n;

            sum += tap[j] * (at < n_past ? past[at * width + i] : c[(at - n_past) * width + i]);
        }
        to[i] += b->mixed[(q->row0 + nth) * width + i] + mx_silu(sum);
    }
}

/* Updates the state of a sequence to that after the rows of this step. */
static void ref_streams_save_state(struct be *b, const struct engine_batch *batch,
                                   const struct engine_seq *q, float *state) {
    const struct ngram_shape *g = &b->shape->ngram;
    size_t width = (size_t)b->shape->n_embd * b->shape->stream.n;
    uint32_t n_past = (g->kernel - 1) * g->n, fresh = MIN(n_past, q->n_rows);
    float *past = state + NGRAM_STATE;

    ngram_keep(g, batch, q, state);
    memmove(past, past + fresh * width, (n_past - fresh) * width * sizeof(float));
    memcpy(past + (n_past - fresh) * width, b->stream_gate + (q->row0 + q->n_rows - fresh) * width,
           fresh * width * sizeof(float));
}

int ref_ngram(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->host.batch;
    const struct ngram_shape *g = &b->shape->ngram;
    size_t width = (size_t)b->shape->n_embd * b->shape->stream.n;
    uint32_t n_table = (g->n - 1) * g->n_head;

    for (uint32_t i = 0; i < batch->n_seqs; i++)
        for (uint32_t k = 0; k < batch->seq[i].n_rows; k++) {
            const struct engine_seq *q = &batch->seq[i];
            int32_t token[NGRAM_TOKENS];
            uint64_t row[NGRAM_HEADS];

            ngram_tokens(g, batch, q, k, ref_more(b, op, q), token);
            ngram_rows(g, token, row);
            for (uint32_t h = 0; h < n_table; h++)
                quant_decode_row(op->ngram.table, row[h],
                                 b->act[ACT_X] + ((q->row0 + k) * n_table + h) * g->width);
        }
    ref_linear(b, op->w[0], NULL, b->act[ACT_X], batch->n_rows, b->stream_gate);
    ref_linear(b, op->w[1], NULL, b->act[ACT_X], batch->n_rows, b->act[ACT_B]);
    for (uint32_t r = 0; r < batch->n_rows; r++)
        ref_streams_weigh_row(b, op, r);
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *q = &batch->seq[i];
        float *state = ref_more(b, op, q), *past = state + NGRAM_STATE;

        if (q->pos0 == 0)
            memset(past, 0, (g->kernel - 1) * g->n * width * sizeof(float));
        for (uint32_t k = 0; k < q->n_rows; k++)
            ref_streams_convolve(b, op, q, k, past);
        ref_streams_save_state(b, batch, q, state);
    }
    return 0;
}
