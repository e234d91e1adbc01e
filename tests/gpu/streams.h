#pragma once

/*
 * streams - residual streams that are mixed, at the sizes of Qwen3.8-Flash-Next, against double
 * precision. Part of kernels.c, behind condensed.h.
 */

#include "engine/cuda/streams/kernels_streams.h"

static double stream_logistic(double x) {
    return 1 / (1 + exp(-x));
}

static double stream_silu(double x) {
    return x * stream_logistic(x);
}

/* y = the rms norm of @n values times @weight. */
static void stream_norm(const double *x, const float *weight, uint32_t n, double *y) {
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + 1e-6) * (double)weight[i];
}

/* Copies floats to doubles. */
static double *stream_doubles(const float *x, size_t n) {
    double *y = host_new(n * sizeof(*y));

    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* f, what products become, x, and what comes back to the streams. */
static void check_mix(uint32_t n, uint32_t n_stream, uint32_t n_low) {
    size_t width = (size_t)n_stream * n, n_s = LEAN_ROWS * width, n_x = (size_t)LEAN_ROWS * n;
    size_t lows = (size_t)LEAN_ROWS * n_low, weights = (size_t)LEAN_ROWS * n_stream;
    float *s = lean_random(n_s), *norm = lean_random(width), *gate = lean_random(n_s);
    float *low = lean_random(lows), *weight = lean_random(weights), *got = host_new(n_s * 4);
    double *from = stream_doubles(s, n_s), *right = host_new(n_s * 8), *f = host_new(n_s * 8);
    struct mix_args a = {.batch = lean_batch(0),
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
    const struct spread_args spread = {.batch = a.batch,
                                       .x = a.x,
                                       .weight = a.weight,
                                       .s = (float *)a.s,
                                       .n = n,
                                       .n_stream = n_stream};
    char name[80];

    launch(kernel_mix_norm, LEAN_ROWS + 1, n_stream, CUDA_THREADS, &a, "mix_norm");
    launch(kernel_mix_bend, LEAN_ROWS + 1, 1, CUDA_THREADS, &a, "mix_bend");
    launch(kernel_mix_mean, LEAN_ROWS + 1, parts, CUDA_THREADS, &a, "mix_mean");
    launch(kernel_spread, LEAN_ROWS + 1, parts, CUDA_THREADS, &spread, "spread");
    for (size_t i = 0; i < n_s; i += n)
        stream_norm(from + i, norm + i % width, n, f + i);
    fetch(got, a.f, n_s * 4);
    snprintf(name, sizeof(name), "norms of %u streams of %u", n_stream, n);
    report_check(name, lean_distance(got, f, n_s), 1e-5);
    for (size_t i = 0; i < lows; i++)
        right[i] = stream_silu((double)low[i] / n_stream);
    fetch(got, a.low, lows * 4);
    report_check("what a mix makes of its first product", lean_distance(got, right, lows), 1e-5);
    memset(right, 0, n_x * 8);
    for (size_t i = 0; i < n_s; i++)
        right[i / width * n + i % n] += f[i] * stream_logistic((double)gate[i]) / n_stream;
    fetch(got, a.x, n_x * 4);
    snprintf(name, sizeof(name), "mix of %u streams of %u", n_stream, n);
    report_check(name, lean_distance(got, right, n_x), 1e-5);
    for (size_t i = 0; i < n_s; i++)
        from[i] += 2 * stream_logistic((double)weight[i / n] / n_stream) *
                   (double)got[i / width * n + i % n];
    fetch(got, a.s, n_s * 4);
    snprintf(name, sizeof(name), "mixed spread to %u streams of %u", n_stream, n);
    report_check(name, lean_distance(got, from, n_s), 1e-5);
    void *const held[] = {s, norm, gate, low, weight, got, from, right, f};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Sizes that fill blocks, and those that do not. */
static void check_stream_kernels(const void *arg) {
    bool tiny = *(const bool *)arg;

    open_device();
    check_mix(48, 3, 24);
    check_mix(tiny ? 320 : 2560, 4, 320);
}
