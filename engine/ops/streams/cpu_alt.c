/*
 * cpu_alt - alternating updates of residual streams (OP_ALT_BEGIN to OP_ALT_END) and the low-rank
 * branch beside attention (OP_LAUREL), with the letters of op_list.h. Everything except the
 * products is computed row by row, so the bits of a row do not depend on the other rows.
 */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/ops/streams/cpu.h"
#include "engine/sinkhorn.h"

/* Context of the row functions. */
struct alt {
    struct be *be;
    const struct model_op *op;
};

static float *alt_streams(const struct alt *k, uint32_t row) {
    return k->be->act[ACT_S] + row * streams_width(k->be);
}

static float *alt_mixed(const struct alt *k, uint32_t row) {
    return k->be->streams->mixed + row * streams_width(k->be);
}

static float *alt_x(const struct alt *k, uint32_t row) {
    return k->be->act[ACT_X] + (size_t)row * k->be->shape.n_embd;
}

static double alt_mean_square(const float *x, uint32_t n) {
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum / n;
}

/* Scales @y to the length of a vector with the mean square @want. */
static void alt_match(float *y, uint32_t n, double want) {
    float by = (float)sqrt(want / MAX(alt_mean_square(y, n), ALT_LEAST));

    for (uint32_t i = 0; i < n; i++)
        y[i] *= by;
}

/* Runs @fn for each row of the step. Returns 0. */
static int alt_rows(struct step *s, const struct model_op *op, each_fn fn) {
    be_each(s->be, s->n_rows, fn, &(struct alt){s->be, op});
    return 0;
}

/* Sets s of a row from x, and from the products in the other streams. */
static void alt_begin_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct alt *k = ctx;
    uint32_t n = k->be->shape.n_embd;
    float *s = alt_streams(k, row);
    const float *x = alt_x(k, row);
    double want = alt_mean_square(x, n);

    memcpy(s, x, n * sizeof(*s));
    for (uint32_t i = 1; i < k->be->shape.stream.n; i++)
        alt_match(s + (size_t)i * n, n, want);
}

int ops_alt_begin(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_more = b->shape.stream.n - 1;
    struct matmul mm = ops_prepare(s, op->weights, 0, n_more, ACT_X);

    mm.mode = MATMUL_STORE;
    for (uint32_t i = 0; i < n_more; i++) {
        mm.out[i] = b->act[ACT_S] + (size_t)(i + 1) * b->shape.n_embd;
        mm.out_stride[i] = streams_width(b);
    }
    matmul_run(b->pool, &mm, 1);
    return alt_rows(s, op, alt_begin_row);
}

/* Computes r of a row from the products in low[]. */
static void alt_route(const struct alt *k, uint32_t row, float *r) {
    uint32_t n = k->be->shape.stream.n;
    const float *low = k->be->streams->low + (size_t)row * n;

    for (uint32_t i = 0; i < n; i++)
        r[i] = mx_soft_cap(low[i] / (float)k->be->shape.n_embd, 1);
}

/* Returns row @i of the coefficients times r. */
static float alt_coefficient(const struct alt *k, uint32_t i, const float *r) {
    uint32_t n = k->be->shape.stream.n;
    const float *of = k->op->weights->weigh + (size_t)i * n;
    float sum = 0;

    for (uint32_t j = 0; j < n; j++)
        sum += of[j] * r[j];
    return sum;
}

static void alt_predict_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct alt *k = ctx;
    uint32_t n = k->be->shape.n_embd, n_stream = k->be->shape.stream.n;
    float *s = alt_streams(k, row), *was = alt_mixed(k, row), r[MAX_STREAMS];

    alt_route(k, row, r);
    memcpy(was, s, streams_width(k->be) * sizeof(*s));
    for (uint32_t i = 0; i < n_stream; i++)
        for (uint32_t j = 0; j < n_stream; j++)
            k->be->kernels->add_scaled(s + (size_t)i * n, was + (size_t)j * n,
                                       alt_coefficient(k, i * n_stream + j, r), n);
    memcpy(alt_x(k, row), s, n * sizeof(*s));
}

int ops_alt_predict(struct step *s, const struct model_op *op) {
    struct be *b = s->be;

    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, b->act[ACT_S], streams_width(b)),
              b->streams->low, b->shape.stream.n);
    return alt_rows(s, op, alt_predict_row);
}

static void alt_correct_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct alt *k = ctx;
    uint32_t n = k->be->shape.n_embd, n_stream = k->be->shape.stream.n;
    float *s = alt_streams(k, row), *change = alt_mixed(k, row), *x = alt_x(k, row);
    float *weight = k->be->streams->weight + (size_t)row * n_stream, r[MAX_STREAMS];

    alt_route(k, row, r);
    for (uint32_t i = 0; i < n; i++)
        change[i] = x[i] - s[i];
    for (uint32_t i = 0; i < n_stream; i++) {
        k->be->kernels->add_scaled(s + (size_t)i * n, change, 1 + alt_coefficient(k, i, r), n);
        weight[i] = i > 0;
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] = s[i] * k->op->weights->pick_bias[i];
}

int ops_alt_correct(struct step *s, const struct model_op *op) {
    struct be *b = s->be;

    ops_store(s, ops_prepare(s, op->weights, 0, 1, ACT_X), b->streams->low, b->shape.stream.n);
    return alt_rows(s, op, alt_correct_row);
}

/* Computes x of a row from the first stream and the products in mixed[]. */
static void alt_end_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct alt *k = ctx;
    uint32_t n = k->be->shape.n_embd, n_stream = k->be->shape.stream.n;
    float *x = alt_x(k, row), *more = alt_mixed(k, row), part = 1.0f / (float)n_stream;
    double want = alt_mean_square(alt_streams(k, row), n);

    memcpy(x, alt_streams(k, row), n * sizeof(*x));
    for (uint32_t i = 1; i < n_stream; i++) {
        alt_match(more + (size_t)i * n, n, want);
        k->be->kernels->add_scaled(x, more + (size_t)i * n, 1, n);
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] *= part;
}

int ops_alt_end(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t width = streams_width(b);

    for (uint32_t i = 1; i < b->shape.stream.n; i++) {
        size_t at = (size_t)i * b->shape.n_embd;

        ops_store(s, ops_prepare_rows(s, op->weights, i - 1, 1, b->act[ACT_S] + at, width),
                  b->streams->mixed + at, width);
    }
    return alt_rows(s, op, alt_end_row);
}

/* Computes y of a row in mixed[]. */
static void laurel_norm_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct alt *k = ctx;

    k->be->kernels->norm(alt_x(k, row), k->op->weights->q_norm, alt_mixed(k, row),
                         k->be->shape.n_embd, k->be->shape.rms_eps);
}

/* Adds y and the normed product, which follows y in mixed[], to b of a row. */
static void laurel_add_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct alt *k = ctx;
    uint32_t n = k->be->shape.n_embd;
    float *y = alt_mixed(k, row), *t = y + n, *to = k->be->act[ACT_B] + (size_t)row * n;

    k->be->kernels->norm(t, k->op->weights->post_norm, t, n, k->be->shape.rms_eps);
    for (uint32_t i = 0; i < n; i++)
        to[i] += y[i] + t[i];
}

int ops_laurel(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct streams *d = b->streams;
    uint32_t rank = op->weights->m[0].n_out;
    size_t width = streams_width(b);

    assert(b->shape.stream.n >= 2 && rank <= width && d->gate);
    alt_rows(s, op, laurel_norm_row);
    ops_store(s, ops_prepare_rows(s, op->weights, 0, 1, d->mixed, width), d->gate, rank);
    ops_store(s, ops_prepare_rows(s, op->weights, 1, 1, d->gate, rank), d->mixed + b->shape.n_embd,
              width);
    return alt_rows(s, op, laurel_add_row);
}
