#pragma once

/*
 * streams - checks the mixing of residual streams (MIX, HC_OUT) and the table of n-grams (NGRAM)
 * with the sizes of Qwen3.8-Flash-Next against double precision. Part of kernels.c, after
 * compressed.h.
 */

#include "engine/ops/streams/kernels_streams.h"
#include "engine/shape.h"

#define GRAM_TAPS 4u
#define GRAM_N 3u
#define GRAM_PAST ((GRAM_TAPS - 1) * GRAM_N)
#define GRAM_ROWS 16u /* rows of the table that a token reads */

static double stream_logistic(double x) {
    return 1 / (1 + exp(-x));
}

static double stream_silu(double x) {
    return x * stream_logistic(x);
}

/* y = the RMS norm of @n values with weights @weight. */
static void stream_norm(const double *x, const float *weight, uint32_t n, double *y) {
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + 1e-6) * (double)weight[i];
}

/* Returns a copy of @n floats as doubles. */
static double *stream_doubles(const float *x, size_t n) {
    double *y = host_new(n * sizeof(*y));

    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* Checks f, the results of the products, x of MIX, and the streams after HC_OUT. */
static void check_mix(uint32_t n, uint32_t n_stream, uint32_t n_low) {
    size_t width = (size_t)n_stream * n, n_s = CSA_ROWS * width, n_x = (size_t)CSA_ROWS * n;
    size_t lows = (size_t)CSA_ROWS * n_low, weights = (size_t)CSA_ROWS * n_stream;
    float *s = csa_random(n_s), *norm = csa_random(width), *gate = csa_random(n_s);
    float *low = csa_random(lows), *weight = csa_random(weights), *got = host_new(n_s * 4);
    double *from = stream_doubles(s, n_s), *right = host_new(n_s * 8), *f = host_new(n_s * 8);
    struct mix_args a = {.batch = csa_batch(0),
                         .s = device_of(s, n_s * 4),
                         .norm = device_of(norm, width * 4),
                         .gate = device_of(gate, n_s * 4),
                         .f = device_new(n_s * 4),
                         .low = device_of(low, lows * 4),
                         .weight = device_of(weight, weights * 4),
                         .x = device_new(n_x * 4),
                         .b = device_new(n_x * 4),
                         .n = n,
                         .n_stream = n_stream,
                         .n_low = n_low,
                         .eps = 1e-6f};
    uint32_t parts = (n + CUDA_THREADS - 1) / CUDA_THREADS;
    const struct hc_out_args spread = {.batch = a.batch,
                                       .x = a.x,
                                       .weight = a.weight,
                                       .s = (float *)a.s,
                                       .n = n,
                                       .n_stream = n_stream};
    char name[80];

    launch(kernel_mix_norm, CSA_ROWS + 1, n_stream, CUDA_THREADS, &a, "mix_norm");
    launch(kernel_mix_bend, CSA_ROWS + 1, 1, CUDA_THREADS, &a, "mix_bend");
    launch(kernel_mix_mean, CSA_ROWS + 1, parts, CUDA_THREADS, &a, "mix_mean");
    launch(kernel_hc_out, CSA_ROWS + 1, parts, CUDA_THREADS, &spread, "hc_out");
    for (size_t i = 0; i < n_s; i += n)
        stream_norm(from + i, norm + i % width, n, f + i);
    fetch(got, a.f, n_s * 4);
    snprintf(name, sizeof(name), "norms of %u streams of %u", n_stream, n);
    report_check(name, csa_distance(got, f, n_s), 1e-5);
    for (size_t i = 0; i < lows; i++)
        right[i] = stream_silu((double)low[i] / n_stream);
    fetch(got, a.low, lows * 4);
    report_check("what a mix makes of its first product", csa_distance(got, right, lows), 1e-5);
    memset(right, 0, n_x * 8);
    for (size_t i = 0; i < n_s; i++)
        right[i / width * n + i % n] += f[i] * stream_logistic((double)gate[i]) / n_stream;
    fetch(got, a.x, n_x * 4);
    snprintf(name, sizeof(name), "mix of %u streams of %u", n_stream, n);
    report_check(name, csa_distance(got, right, n_x), 1e-5);
    for (size_t i = 0; i < n_s; i++)
        from[i] += 2 * stream_logistic((double)weight[i / n] / n_stream) *
                   (double)got[i / width * n + i % n];
    fetch(got, a.s, n_s * 4);
    snprintf(name, sizeof(name), "mixed spread to %u streams of %u", n_stream, n);
    report_check(name, csa_distance(got, from, n_s), 1e-5);
    void *const held[] = {s, norm, gate, low, weight, got, from, right, f};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Inputs of NGRAM on the host. */
struct gram {
    float *s, *value, *c, *k_norm, *q_norm, *c_norm, *taps, *state;
    uint32_t n, n_stream;
};

/* Computes v and c, in double precision, of the stream of a row that begins at value @at. */
static void gram_weigh(const struct gram *g, size_t at, double *v, double *c) {
    uint32_t n = g->n, first = (uint32_t)(at % ((size_t)n * g->n_stream));
    const float *value = g->value + at / ((size_t)n * g->n_stream) * n;
    double *k = stream_doubles(g->c + at, n), *q = stream_doubles(g->s + at, n), z = 0;

    stream_norm(k, g->k_norm + first, n, k);
    stream_norm(q, g->q_norm + first, n, q);
    for (uint32_t i = 0; i < n; i++)
        z += k[i] * q[i] / sqrt(n);
    double root = sqrt(fmax(fabs(z), 1e-6));
    for (uint32_t i = 0; i < n; i++)
        v[i] = stream_logistic(z > 0 ? root : -root) * (double)value[i];
    stream_norm(v, g->c_norm + first, n, c);
    free(k);
    free(q);
}

/* Checks NGRAM with CSA_ROWS rows at positions @pos0 and on. The token of the first row is the
 * sample of the step before (feed), and c of the rows before is in slot 1. */
static void check_gram(uint32_t n, uint32_t n_stream, uint32_t pos0) {
    size_t width = (size_t)n_stream * n, n_s = CSA_ROWS * width, n_x = (size_t)CSA_ROWS * n;
    size_t stride = NGRAM_STATE + GRAM_PAST * width, n_table = CSA_ROWS * (size_t)n;
    const int32_t tokens[CSA_ROWS] = {-1, 21, 22}, feeds[CSA_ROWS] = {1, -1, -1};
    const int32_t sampled[2] = {-1, 20};
    const struct plan_seq seq = {.n_rows = CSA_ROWS, .pos0 = pos0, .state = 1};
    const uint32_t zero[CSA_ROWS] = {0};
    struct gram g = {csa_random(n_s),
                     csa_random(n_x),
                     csa_random(n_s),
                     csa_random(width),
                     csa_random(width),
                     csa_random(width),
                     csa_random(GRAM_TAPS * width),
                     csa_random(2 * stride),
                     n,
                     n_stream};
    uint16_t *table = host_new(n_table * 2);
    float *got = host_new((n_s + stride) * 4);
    double *v = host_new(n_s * 8), *c = host_new((GRAM_PAST * width + n_s) * 8);
    double *right = host_new((n_s + stride) * 8), *past = c;
    struct ngram_known known;
    char name[80];

    for (int k = 0; k < 2; k++)
        g.state[stride + k] = (float)(18 - k);
    for (size_t i = 0; i < n_table; i++)
        table[i] = mx_float_to_half(g.value[i]);
    const struct batch_head head = {.n_rows = CSA_ROWS,
                                    .n_seqs = 1,
                                    .token = device_of(tokens, sizeof(tokens)),
                                    .feed = device_of(feeds, sizeof(feeds)),
                                    .row_seq = device_of(zero, sizeof(zero)),
                                    .seq = device_of(&seq, sizeof(seq))};
    const struct ngram_ask_args ask = {.batch = device_of(&head, sizeof(head)),
                                       .sampled = device_of(sampled, sizeof(sampled)),
                                       .state = device_of(g.state, 2 * stride * 4),
                                       .stride = stride,
                                       .known = device_new(sizeof(known))};
    const struct ngram_args a = {.batch = ask.batch,
                                 .table = {.data = device_of(table, n_table * 2),
                                           .row_bytes = n / GRAM_ROWS * 2,
                                           .type = TENSOR_F16,
                                           .block = 1,
                                           .block_bytes = 2,
                                           .n_rows = CSA_ROWS * GRAM_ROWS,
                                           .n_in = n / GRAM_ROWS},
                                 .k_norm = device_of(g.k_norm, width * 4),
                                 .q_norm = device_of(g.q_norm, width * 4),
                                 .c_norm = device_of(g.c_norm, width * 4),
                                 .taps = device_of(g.taps, GRAM_TAPS * width * 4),
                                 .sampled = ask.sampled,
                                 .e = device_new(n_x * 4),
                                 .value = device_of(g.value, n_x * 4),
                                 .s = device_of(g.s, n_s * 4),
                                 .v = device_new(n_s * 4),
                                 .c = device_of(g.c, n_s * 4),
                                 .state = (float *)ask.state,
                                 .stride = stride,
                                 .n = n,
                                 .n_stream = n_stream,
                                 .n_rows = GRAM_ROWS,
                                 .n_taps = GRAM_TAPS,
                                 .apart = GRAM_N,
                                 .eos = 7,
                                 .eps = 1e-6f};
    uint32_t parts = (uint32_t)((width + CUDA_THREADS - 1) / CUDA_THREADS);

    launch(kernel_ngram_ask, 1, 1, CUDA_THREADS, &ask, "ngram_ask");
    launch(kernel_ngram_decode, CSA_ROWS + 1, 1, CUDA_THREADS, &a, "ngram_decode");
    launch(kernel_ngram_weigh, CSA_ROWS + 1, n_stream, CUDA_THREADS, &a, "ngram_weigh");
    launch(kernel_ngram_add, CSA_ROWS + 1, parts, CUDA_THREADS, &a, "ngram_add");
    launch(kernel_ngram_keep, 2, parts, CUDA_THREADS, &a, "ngram_keep");
    fetch(&known, ask.known, sizeof(known));
    report_check("tokens before a step",
                 known.fed != 20 || (pos0 && (known.last[0] != 18 || known.last[1] != 17)), 0);
    for (size_t i = 0; i < n_x; i++)
        right[i] = (double)mx_half_to_float(table[i]);
    fetch(got, a.e, n_x * 4);
    report_check("rows of a table of n-grams", csa_distance(got, right, n_x), 0);
    for (size_t i = 0; i < GRAM_PAST * width && pos0; i++)
        past[i] = (double)g.state[stride + NGRAM_STATE + i];
    for (size_t at = 0; at < n_s; at += n)
        gram_weigh(&g, at, v + at, c + GRAM_PAST * width + at);
    for (size_t i = 0; i < n_s; i++) {
        double sum = 0;

        for (uint32_t j = 0; j < GRAM_TAPS; j++)
            sum += (double)g.taps[j * width + i % width] *
                   c[(i / width + j * GRAM_N) * width + i % width];
        right[i] = (double)g.s[i] + v[i] + stream_silu(sum);
    }
    fetch(got, a.s, n_s * 4);
    snprintf(name, sizeof(name), "n-grams to %u streams of %u, position %u", n_stream, n, pos0);
    report_check(name, csa_distance(got, right, n_s), 1e-5);
    fetch(got, a.state + stride, stride * 4);
    report_check("tokens behind a step", got[0] != 22 || got[1] != 21, 0);
    snprintf(name, sizeof(name), "state of n-grams, position %u", pos0);
    report_check(name, csa_distance(got + NGRAM_STATE, c + CSA_ROWS * width, GRAM_PAST * width),
                 1e-5);
    void *const held[] = {g.s,     g.value, g.c, g.k_norm, g.q_norm, g.c_norm, g.taps,
                          g.state, table,   got, v,        c,        right};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Cases: sizes that are and that are not multiples of a block of threads. */
static void check_stream_kernels(const void *arg) {
    bool tiny = *(const bool *)arg;

    open_device();
    check_mix(48, 3, 24);
    check_mix(tiny ? 320 : 2560, 4, 320);
    check_gram(64, 3, 0);
    check_gram(64, 2, 5);
    check_gram(tiny ? 320 : 2560, 4, 40);
}
