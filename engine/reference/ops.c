/*
 * ops - the ops of the reference backend that have no file of their own, written from the formulas
 * of op_list.h. Dot products are those of host_dot(); all other sums are in index order. A row does
 * not depend on the other rows of the batch.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/formats/quant.h"
#include "engine/reference/reference.h"

float ref_vector_at(const struct tensor *t, size_t i) {
    float f;

    memcpy(&f, t->data + 4 * i, 4);
    return f;
}

void ref_rms_norm(const float *x, const struct tensor *weight, float eps, size_t n, float *y) {
    float scale = 1.0f / sqrtf(host_dot(x, x, n) / (float)n + eps);

    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * scale;
        if (weight)
            y[i] *= ref_vector_at(weight, i);
    }
}

void ref_layer_norm(float *x, const struct tensor *norm, const struct tensor *bias, float eps,
                    size_t n) {
    float mean = 0, square = 0;

    for (size_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (float)n;
    for (size_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf(square / (float)n + eps);
    for (size_t i = 0; i < n; i++) {
        x[i] = (x[i] - mean) * scale * ref_vector_at(norm, i);
        if (bias)
            x[i] += ref_vector_at(bias, i);
    }
}

int ref_norm(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    size_t n = b->shape->n_embd;

    for (size_t r = 0; r < s->host.batch->n_rows; r++) {
        float *x = b->act[ACT_X] + r * n;

        if (op->norm && !op->rms)
            ref_layer_norm(x, op->norm, op->norm_bias, b->shape->rms_eps, n);
        else
            ref_rms_norm(x, op->norm, b->shape->rms_eps, n, x);
    }
    return 0;
}

int ref_keep(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = op->width;
    uint32_t n_rows = s->host.batch->n_rows;

    for (size_t r = 0; r < n_rows; r++) {
        float *x = b->act[ACT_X] + r * n;

        assert(!op->keep.streams || (!op->norm && !op->w[0]));
        if (op->keep.centred)
            ref_layer_norm(x, op->norm, NULL, b->shape->rms_eps, n);
        else if (op->norm)
            ref_rms_norm(x, op->norm, b->shape->rms_eps, n, x);
    }
    if (op->w[0])
        ref_linear(b, op->w[0], NULL, b->act[ACT_X], n_rows, s->host.hidden);
    else
        memcpy(s->host.hidden, b->act[op_hidden(op)],
               (size_t)n_rows * s->host.n_hidden * sizeof(float));
    return 0;
}

/* y = the RMS norm of x with weights @norm; NULL: y = x. */
static void ref_norm_or_copy(const float *x, const struct tensor *norm, float eps, size_t n,
                             float *y) {
    if (norm)
        ref_rms_norm(x, norm, eps, n, y);
    else
        memcpy(y, x, n * sizeof(*y));
}

int ref_draft_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd;
    uint32_t n_rows = s->host.batch->n_rows, n_stream = 1;
    float *out = b->act[op_hidden(op)];

    if (op->keep.streams)
        n_stream = b->shape->stream.n;
    memset(b->pair, 0, (size_t)n_rows * n_stream * 2 * n * sizeof(float));
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *before = host_step_before(&s->host, r);

        for (uint32_t i = 0; i < n_stream; i++) {
            float *to = b->pair + ((size_t)r * n_stream + i) * 2 * n;

            ref_norm_or_copy(b->act[ACT_X] + r * n, op->q_norm, b->shape->rms_eps, n, to);
            if (before)
                ref_norm_or_copy(before + i * n, op->k_norm, b->shape->rms_eps, n, to + n);
        }
    }
    ref_linear(b, op->w[0], NULL, b->pair, n_rows * n_stream, out);
    return 0;
}

/* y = the norm of x with the op's weights, an RMS norm or a layer norm; without weights y = x. */
static void norm_input(const struct be *b, const struct model_op *op, const float *x, float *y) {
    size_t n = op->width;
    float eps = b->shape->rms_eps;

    if (!op->norm || !b->shape->layer_norm) {
        ref_norm_or_copy(x, op->norm, eps, n, y);
        return;
    }
    memcpy(y, x, n * sizeof(*y));
    ref_layer_norm(y, op->norm, op->norm_bias, eps, n);
}

void ref_norm_rows(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = op->width;

    for (size_t r = 0; r < s->host.batch->n_rows; r++)
        norm_input(b, op, b->act[ACT_X] + r * n, b->normed + r * n);
}

void ref_glu(enum glu glu, float limit, float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i];

        if (glu == GLU_CUT) {
            u = MAX(MIN(u, limit), -limit);
            gate[i] = mx_silu(MIN(g, limit)) * u;
        } else if (glu == GLU_SILU && limit > 0) {
            u = MAX(MIN(u, limit), -limit);
            gate[i] = MIN(mx_silu(g), limit) * u;
        } else if (glu == GLU_SILU) {
            gate[i] = mx_silu(g) * u;
        } else if (glu == GLU_GELU) {
            gate[i] = mx_gelu(g) * u;
        } else if (glu == GLU_RELU) {
            gate[i] = (g > 0 ? g : 0) * u;
        } else {
            g = MIN(g, 7);
            u = MAX(MIN(u, 7), -7);
            gate[i] = g * mx_sigmoid(1.702f * g) * (u + 1);
        }
    }
}

int ref_embed(struct step *s, const struct model_op *op) {
    const struct engine_batch *batch = s->host.batch;
    uint32_t n = s->be->shape->n_embd;

    assert(op->w[0]->ne[0] == n && batch->n_rows > 0);
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        float *x = s->be->act[ACT_X] + (size_t)r * n;

        if (s->host.row[r].values) {
            memcpy(x, s->host.row[r].values, n * sizeof(*x));
            continue;
        }
        quant_decode_row(op->w[0], (uint64_t)batch->token[r], x);
        for (size_t i = 0; i < n; i++)
            x[i] *= op->scale;
    }
    for (int k = 1; k < 3; k++)
        for (uint32_t r = 0; r < batch->n_rows && op->w[k]; r++) {
            quant_decode_row(op->w[k], k == 1 ? s->host.row_pos[r] : 0, s->be->row);
            for (uint32_t i = 0; i < n; i++)
                s->be->act[ACT_X][(size_t)r * n + i] += s->be->row[i];
        }
    return 0;
}

int ref_deep(struct step *s, const struct model_op *op) {
    uint32_t n = s->be->shape->n_embd;

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        const float *values = s->host.row[r].values;

        for (uint32_t i = 0; i < n && values; i++)
            s->be->act[ACT_X][(size_t)r * n + i] += values[(size_t)op->part * n + i];
    }
    return 0;
}

int ref_layer_input(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    size_t n = m->n_layer_input, width = n * m->n_layer;
    float scale = 1.0f / sqrtf((float)m->n_embd), own = sqrtf((float)n), half = sqrtf(0.5f);

    ref_linear(b, op->w[0], NULL, b->act[ACT_X], s->host.batch->n_rows, b->act[ACT_P]);
    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        float *p = b->act[ACT_P] + r * width;

        for (size_t i = 0; i < width; i++)
            p[i] *= scale;
        for (uint32_t l = 0; l < m->n_layer; l++)
            ref_rms_norm(p + l * n, op->post_norm, m->rms_eps, n, p + l * n);
        uint64_t token = s->host.row[r].values ? 0 : (uint64_t)s->host.batch->token[r];
        quant_decode_row(op->w[1], token, b->row);
        for (size_t i = 0; i < width; i++)
            p[i] = (p[i] + own * b->row[i]) * half;
    }
    return 0;
}

/* -- branches, FFNs, experts, logits ----------------------------------------------------------- */

int ref_gate(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t dim = op->heads.dim, n = (size_t)s->host.batch->n_rows * op->heads.n;

    if (op->w[0]) { /* stores the gates in place of the queries, which are not needed any more */
        size_t per = op->heads.n * dim / op->w[0]->ne[1];

        ref_norm_rows(s, op);
        ref_linear(b, op->w[0], NULL, b->normed, s->host.batch->n_rows, b->act[ACT_Q]);
        for (size_t i = 0; i < n * dim; i++) {
            float x = b->act[ACT_Q][i / per];

            if (op->sigmoid)
                b->act[ACT_O][i] *= mx_sigmoid(x);
            else
                b->act[ACT_O][i] *= mx_softplus(x);
        }
        return 0;
    }
    for (size_t h = 0; h < n; h++)
        for (size_t i = 0; i < dim; i++)
            b->act[ACT_O][h * dim + i] *= mx_sigmoid(b->gated[(2 * h + 1) * dim + i]);
    return 0;
}

/* Computes x = (x + gain post_norm(t)) * scale for all rows; overwrites @t by its norm. */
static void ref_add_branch(struct step *s, const struct model_op *op, float *t) {
    struct be *b = s->be;
    size_t n = op->width, n_all = s->host.batch->n_rows * n;
    float eps = b->shape->rms_eps;

    if (op->post_eps > 0)
        eps = op->post_eps;
    for (size_t at = 0; at < n_all && op->post_norm; at += n)
        ref_rms_norm(t + at, op->post_norm, eps, n, t + at);
    for (size_t i = 0; i < n_all; i++)
        b->act[ACT_X][i] = (b->act[ACT_X][i] + op->gain * t[i]) * op->scale;
}

int ref_proj(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = op->width;
    uint32_t n_rows = s->host.batch->n_rows;

    assert(op->in == ACT_O || op->in == ACT_H || op->in == ACT_D);
    float *to = b->act[ACT_B];
    ref_linear(b, op->w[0], op->bias[0], b->act[op->in], n_rows, to);
    if (!op->branch)
        ref_add_branch(s, op, to);
    for (size_t r = 0; r < n_rows && op->branch && op->post_norm; r++)
        ref_rms_norm(to + r * n, op->post_norm, b->shape->rms_eps, n, to + r * n);
    return 0;
}

int ref_join(struct step *s, const struct model_op *op) {
    ref_add_branch(s, op, s->be->act[ACT_B]);
    return 0;
}

/* Applies op_ffn.sparsity to the @n gates of a row. */
static void ref_thin_gates(float *gate, size_t n, double sparsity) {
    double sum = 0, squares = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)gate[i];
    for (size_t i = 0; i < n; i++)
        squares += pow((double)gate[i] - sum / (double)n, 2);
    double least = sum / (double)n + sparsity * sqrt(squares / (double)(n - 1));
    for (size_t i = 0; i < n; i++)
        gate[i] = (float)MAX((double)gate[i] - least, 0);
}

int ref_gate_up(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_rows = s->host.batch->n_rows;
    float *gate = b->act[ACT_H];

    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], op->bias[0], b->normed, n_rows, gate);
    if (op->w[1])
        ref_linear(b, op->w[1], op->bias[1], b->normed, n_rows, b->up);
    for (size_t i = 0; i < n_rows * op->w[0]->ne[1] && !op->w[1]; i++)
        b->up[i] = 1;
    for (size_t r = 0; r < n_rows && op->ffn.sparsity > 0; r++)
        ref_thin_gates(gate + r * op->w[0]->ne[1], op->w[0]->ne[1], (double)op->ffn.sparsity);
    if (op->ffn.glu != GLU_XIELU)
        ref_glu(op->ffn.glu, op->ffn.limit, gate, b->up, n_rows * op->w[0]->ne[1]);
    for (size_t i = 0; i < n_rows * op->w[0]->ne[1] && op->ffn.glu == GLU_XIELU; i++)
        gate[i] = xielu_at(&op->ffn.xielu, gate[i]);
    return 0;
}

int ref_gate_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_layer_input, width = n * b->shape->n_layer;

    ref_linear(b, op->w[0], NULL, b->act[ACT_X], s->host.batch->n_rows, b->act[ACT_H]);
    for (size_t r = 0; r < s->host.batch->n_rows; r++)
        ref_glu(op->ffn.glu, 0, b->act[ACT_H] + r * n, b->act[ACT_P] + r * width + op->layer * n,
                n);
    return 0;
}

/* Writes the normed row of a WANT_HIDDEN to its result, those of the other wants to b->normed. */
int ref_logits(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->host.batch;
    uint32_t n = op->width;

    for (uint32_t i = 0; i < batch->n_wants; i++) {
        bool hidden = batch->want[i].what == WANT_HIDDEN;
        float *to = b->normed + (size_t)s->host.logits_of[i] * n;

        if (hidden)
            to = host_step_vector(&s->host, i);

        const float *x = b->act[ACT_X] + (size_t)batch->want[i].row * n;
        norm_input(b, op, x, to);
    }
    if (!op->w[0])
        return 0;
    ref_linear(b, op->w[0], op->bias[0], b->normed, s->host.n_scored, b->logits);
    for (size_t i = 0; i < (size_t)s->host.n_scored * b->shape->n_vocab; i++) {
        b->logits[i] *= op->scale;
        if (op->cap)
            b->logits[i] = mx_soft_cap(b->logits[i], op->cap);
    }
    return 0;
}
