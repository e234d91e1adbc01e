/*
 * reference_alt - alternating updates of residual streams in the reference backend, written from
 * the formulas of op_list.h (OP_ALT_BEGIN to OP_ALT_END, OP_LAUREL).
 */

#include <math.h>
#include <string.h>

#include "engine/reference/reference.h"
#include "engine/sinkhorn.h"

static double alt_mean_of_squares(const float *x, size_t n) {
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum / (double)n;
}

/* Returns the factor that scales @y to the length of @x. */
static double alt_scale(const float *x, const float *y, size_t n) {
    return sqrt(alt_mean_of_squares(x, n) / MAX(alt_mean_of_squares(y, n), ALT_LEAST));
}

int ref_alt_begin(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n;
    uint32_t n_rows = s->host.batch->n_rows;

    for (size_t i = 0; i < n_stream; i++) {
        if (i > 0)
            ref_linear(b, op->w[i - 1], NULL, b->act[ACT_X], n_rows, b->mixed);
        for (size_t r = 0; r < n_rows; r++) {
            const float *x = b->act[ACT_X] + r * n, *y = i ? b->mixed + r * n : x;
            float *to = b->act[ACT_S] + (r * n_stream + i) * n;
            double by = 1;

            if (i)
                by = alt_scale(x, y, n);
            for (size_t j = 0; j < n; j++)
                to[j] = (float)((double)y[j] * by);
        }
    }
    return 0;
}

/* Computes r of all rows in b->low from the rows @y, @stride floats apart. */
static void alt_routes(struct step *s, const struct model_op *op, const float *y, size_t stride) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n;
    uint32_t n_rows = s->host.batch->n_rows;

    for (size_t r = 0; r < n_rows; r++)
        ref_rms_norm(y + r * stride, op->norm, b->shape->rms_eps, n, b->normed + r * n);
    ref_linear(b, op->w[0], NULL, b->normed, n_rows, b->low);
    for (size_t i = 0; i < n_rows * n_stream; i++)
        b->low[i] = (float)tanh((double)b->low[i] / (double)n);
}

/* Returns row @i of the coefficients times r of row @row. */
static float alt_times(const struct be *b, const struct model_op *op, size_t i, size_t row) {
    size_t n = b->shape->stream.n;
    float sum = 0;

    for (size_t j = 0; j < n; j++)
        sum += ref_vector_at(op->weigh, i * n + j) * b->low[row * n + j];
    return sum;
}

int ref_alt_predict(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n, width = n * n_stream;

    alt_routes(s, op, b->act[ACT_S], width);
    for (size_t r = 0; r < s->host.batch->n_rows; r++) {
        float *to = b->act[ACT_S] + r * width;

        memcpy(b->mixed, to, width * sizeof(*to));
        for (size_t i = 0; i < n_stream * n_stream; i++) {
            float c = alt_times(b, op, i, r);

            for (size_t j = 0; j < n; j++)
                to[i / n_stream * n + j] += c * b->mixed[i % n_stream * n + j];
        }
        memcpy(b->act[ACT_X] + r * n, to, n * sizeof(*to));
    }
    return 0;
}

int ref_alt_correct(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n, width = n * n_stream;

    alt_routes(s, op, b->act[ACT_X], n);
    for (size_t r = 0; r < s->host.batch->n_rows; r++) {
        float *x = b->act[ACT_X] + r * n, *to = b->act[ACT_S] + r * width;

        for (size_t j = 0; j < n; j++)
            b->mixed[j] = x[j] - to[j];
        for (size_t i = 0; i < n_stream; i++) {
            float c = 1 + alt_times(b, op, i, r);

            for (size_t j = 0; j < n; j++)
                to[i * n + j] += c * b->mixed[j];
            b->stream_weight[r * n_stream + i] = i > 0;
        }
        for (size_t j = 0; j < n; j++)
            x[j] = to[j] * ref_vector_at(op->pick_bias, j);
    }
    return 0;
}

int ref_alt_end(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd, n_stream = b->shape->stream.n;
    uint32_t n_rows = s->host.batch->n_rows;

    for (size_t r = 0; r < n_rows; r++)
        memcpy(b->act[ACT_X] + r * n, b->act[ACT_S] + r * n_stream * n, n * sizeof(float));
    for (size_t i = 1; i < n_stream; i++) {
        for (size_t r = 0; r < n_rows; r++)
            memcpy(b->normed + r * n, b->act[ACT_S] + (r * n_stream + i) * n, n * sizeof(float));
        ref_linear(b, op->w[i - 1], NULL, b->normed, n_rows, b->mixed);
        for (size_t r = 0; r < n_rows; r++) {
            const float *y = b->mixed + r * n;
            double by = alt_scale(b->act[ACT_S] + r * n_stream * n, y, n);

            for (size_t j = 0; j < n; j++)
                b->act[ACT_X][r * n + j] += (float)((double)y[j] * by);
        }
    }
    for (size_t j = 0; j < n_rows * n; j++)
        b->act[ACT_X][j] /= (float)n_stream;
    return 0;
}

int ref_laurel(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n = b->shape->n_embd;
    uint32_t n_rows = s->host.batch->n_rows;

    for (size_t r = 0; r < n_rows; r++)
        ref_rms_norm(b->act[ACT_X] + r * n, op->q_norm, b->shape->rms_eps, n, b->normed + r * n);
    ref_linear(b, op->w[0], NULL, b->normed, n_rows, b->stream_gate);
    ref_linear(b, op->w[1], NULL, b->stream_gate, n_rows, b->mixed);
    for (size_t r = 0; r < n_rows; r++) {
        float *t = b->mixed + r * n;

        ref_rms_norm(t, op->post_norm, b->shape->rms_eps, n, t);
        for (size_t j = 0; j < n; j++)
            b->act[ACT_B][r * n + j] += b->normed[r * n + j] + t[j];
    }
    return 0;
}
