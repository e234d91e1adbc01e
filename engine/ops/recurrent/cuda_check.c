/*
 * cuda_check - tests Kimi delta attention on made-up inputs: it is compared with double precision
 * on the host, and must give the same bits if its rows come in two steps. No plainer kernel exists,
 * so a device with wrong results is refused.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/cuda/selftest.h"
#include "engine/ops/recurrent/kernels_recurrent.h"

#define FIRST 11u  /* rows of the first of two steps */
#define LIMIT 1e-4 /* largest |got - right| / |right| */

/* Inputs and results: u [3][rows][n], z, raw decays and results [rows][n], beta [rows][heads]. */
struct kda {
    float *u, *z, *raw, *beta, *taps, *dt, *decay, *norm, *at_once, *in_two;
    uint32_t n, n_head, dim, n_taps;
};

static double logistic(double x) {
    return 1 / (1 + exp(-x));
}

/* Returns value @i of part @part of u of row @r after the convolution and silu. */
static double selftest_convolve(const struct selftest_op *t, const struct kda *k, uint32_t part,
                                uint32_t r, uint32_t i) {
    double sum = 0;

    for (uint32_t j = r + 1 >= k->n_taps ? 0 : k->n_taps - 1 - r; j < k->n_taps; j++) {
        uint32_t row = part * t->n_rows + r + j + 1 - k->n_taps;

        sum += (double)k->taps[(size_t)(j * 3 + part) * k->n + i] *
               (double)k->u[(size_t)row * k->n + i];
    }
    return sum * logistic(sum);
}

/* Computes a head's q, k and v of row @r; q and k have unit length, q is also divided by
 * sqrt(dim). */
static void selftest_mix_row(const struct selftest_op *t, const struct kda *k, uint32_t h,
                             uint32_t r, double x[3][DELTA_DIM]) {
    for (uint32_t part = 0; part < 3; part++) {
        double sum = (double)t->b->shape->delta.eps;

        for (uint32_t i = 0; i < k->dim; i++) {
            x[part][i] = selftest_convolve(t, k, part, r, h * k->dim + i);
            sum += x[part][i] * x[part][i];
        }
        for (uint32_t i = 0; i < k->dim && part < 2; i++)
            x[part][i] /= sqrt(sum * (part == 0 ? k->dim : 1));
    }
}

/* Advances the state @m [keys][values] of head @h by row @r, and stores the output in @out. */
static void selftest_advance(const struct selftest_op *t, const struct kda *k, uint32_t h,
                             uint32_t r, double *m, double *out) {
    double x[3][DELTA_DIM], keep[DELTA_DIM], square = 0, lower = (double)t->b->shape->delta.lower;
    double beta = logistic((double)k->beta[r * k->n_head + h]);
    const size_t at = (size_t)r * k->n + h * k->dim;
    uint32_t dim = k->dim;

    selftest_mix_row(t, k, h, r, x);
    for (uint32_t i = 0; i < dim; i++)
        keep[i] = exp(lower * logistic(fabs((double)k->decay[h]) *
                                       (double)(k->raw[at + i] + k->dt[h * dim + i])));
    for (uint32_t j = 0; j < dim; j++) {
        double known = 0;

        for (uint32_t i = 0; i < dim; i++)
            known += x[1][i] * (m[i * dim + j] *= keep[i]);
        out[j] = 0;
        for (uint32_t i = 0; i < dim; i++) {
            m[i * dim + j] += x[1][i] * beta * (x[2][j] - known);
            out[j] += x[0][i] * m[i * dim + j];
        }
        square += out[j] * out[j];
    }
    for (uint32_t j = 0; j < dim; j++)
        out[j] *= (double)k->norm[j] / sqrt(square / dim + (double)t->b->shape->rms_eps) *
                  logistic((double)k->z[at + j]);
}

/* Returns |got - right| / |right| for the rows that were computed in one step. */
static double selftest_ops_error(const struct selftest_op *t, const struct kda *k, double *m) {
    double d = 0, norm = 0, out[DELTA_DIM];

    for (uint32_t h = 0; h < k->n_head; h++) {
        memset(m, 0, (size_t)k->dim * k->dim * sizeof(*m));
        for (uint32_t r = 0; r < t->n_rows; r++) {
            selftest_advance(t, k, h, r, m, out);
            for (uint32_t j = 0; j < k->dim; j++) {
                d += pow((double)k->at_once[(size_t)r * k->n + h * k->dim + j] - out[j], 2);
                norm += out[j] * out[j];
            }
        }
    }
    return sqrt(d / norm);
}

/* Computes rows [from, to) to @out. The buffer of results is filled with NaN first. */
static int run_kda(struct selftest_op *t, const struct kda *k, uint32_t from, uint32_t to,
                   float *out) {
    struct be *b = t->b;
    struct model_op op = *t->of;
    size_t n = (size_t)(to - from) * k->n, first = (size_t)from * k->n;
    struct step *s;

    op.weights = &t->weights;
    TRY(cuda_fill(b, b->recurrent.out, 0xFF, n * sizeof(*out)));
    TRY(selftest_begin(b, &t->step, from, to - from, false, &s));
    for (uint32_t i = 0; i < 3; i++)
        TRY(selftest_send(b, k->u + (size_t)i * t->n_rows * k->n + first, recurrent_part(b, i), n));
    TRY(selftest_send(b, k->z + first, b->recurrent.in[1], n));
    TRY(selftest_send(b, k->raw + first, b->recurrent.in[2], n));
    TRY(selftest_send(b, k->beta + from * k->n_head, b->recurrent.in[3], (to - from) * k->n_head));
    TRY(step_delta(s, &op));
    TRY(selftest_fetch(b, out + first, b->recurrent.out, n * sizeof(*out)));
    selftest_end(b);
    return 0;
}

static int check_kda(struct selftest_op *t, struct err *err) {
    struct be *b = t->b;
    const struct model_shape *m = b->shape;
    struct kda k = {.n = m->state.n_out,
                    .n_head = m->delta.n_value_head,
                    .dim = m->delta.dim,
                    .n_taps = m->state.kernel};
    size_t rows = (size_t)t->n_rows * k.n, n_head = k.n_head;
    float *on = (float *)b->load.buffer[0].device;
    const struct {
        /* device: set for weights */
        float **to, **device;
        size_t n;
        float shift;
    } parts[] = {{&k.u, NULL, 3 * rows, 0},
                 {&k.z, NULL, rows, 0},
                 {&k.raw, NULL, rows, 0},
                 {&k.beta, NULL, t->n_rows * n_head, 0},
                 {&k.taps, &t->weights.taps, (size_t)3 * k.n_taps * k.n, 0},
                 {&k.dt, &t->weights.dt, k.n, -3}, /* shifted so that most of a key's sum is kept */
                 {&k.decay, &t->weights.decay, n_head, 1},
                 {&k.norm, &t->weights.norm, k.dim, 1},
                 {&k.at_once, NULL, rows, 0},
                 {&k.in_two, NULL, rows, 0}};
    size_t n_state = (size_t)k.dim * k.dim, n = 0;

    assert(k.dim <= DELTA_DIM && k.n == k.n_head * k.dim);
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        n += parts[i].n;
    double *state = malloc(n_state * sizeof(*state) + n * sizeof(float));
    t->all = (float *)state;
    if (!state)
        return -ENOMEM;
    float *at = (float *)(state + n_state);
    for (size_t i = 0; i < ARRAY_SIZE(parts); at += parts[i++].n) {
        *parts[i].to = at;
        selftest_fill(at, parts[i].n, 1 + i);
        for (size_t x = 0; x < parts[i].n; x++)
            at[x] += parts[i].shift;
        if (!parts[i].device)
            continue;
        *parts[i].device = on;
        TRY(selftest_send(b, at, on, parts[i].n));
        on += round_up(parts[i].n, 4);
    }
    TRY(run_kda(t, &k, 0, t->n_rows, k.at_once));
    double error = selftest_ops_error(t, &k, state);
    if (!(error <= LIMIT))
        return selftest_refuse(b, err, SELFTEST_OFF, "Kimi delta attention", error, LIMIT);
    uint32_t first = MIN(FIRST, t->n_rows);
    TRY(run_kda(t, &k, 0, first, k.in_two));
    TRY(first < t->n_rows ? run_kda(t, &k, first, t->n_rows, k.in_two) : 0);
    if (memcmp(k.at_once, k.in_two, rows * sizeof(float)) == 0)
        return 0;
    return selftest_refuse(b, err, "Kimi delta attention in two steps gives other bits");
}

int recurrent_check(struct be *b, struct err *err) {
    const struct model_op *op = selftest_next(b, OP_KDA, NULL);

    if (!op)
        return 0;
    return selftest_try(b, op, check_kda, err);
}
