#pragma once

/*
 * compressed - checks blending of residual streams (HC_IN), the choice of blocks (CSA_INDEX) and
 * attention to compressed keys (CSA_ATTEND) with the sizes of DeepSeek V4 against double
 * precision. Part of kernels.c.
 */

#include "engine/ops/compressed/kernels_compressed.h"
#include "engine/sinkhorn.h"
#include "engine/sparse.h"

#define CSA_ROWS 3u
#define CSA_PAGE 16u /* tokens of a page */

/* Returns |got - right| / |right|. */
static double csa_distance(const float *got, const double *right, size_t n) {
    double d = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        d += pow((double)got[i] - right[i], 2);
        norm += right[i] * right[i];
    }
    return sqrt(d / norm);
}

static float *csa_random(size_t n) {
    float *x = host_new(n * 4);

    fill_floats(x, n);
    return x;
}

/* Returns a batch of CSA_ROWS rows of one sequence at positions @pos0 and on. Its state is in slot
 * 1, and its pages are in descending order. */
static const struct batch_head *csa_batch(uint32_t pos0) {
    const struct plan_seq seq = {.n_rows = CSA_ROWS, .pos0 = pos0, .state = 1};
    uint32_t n_pages = (pos0 + CSA_ROWS) / CSA_PAGE + 1, pos[CSA_ROWS], zero[CSA_ROWS] = {0};
    uint32_t *page = host_new(n_pages * 4);

    for (uint32_t i = 0; i < n_pages; i++)
        page[i] = n_pages - 1 - i;
    for (uint32_t i = 0; i < CSA_ROWS; i++)
        pos[i] = pos0 + i;
    const struct batch_head head = {.n_rows = CSA_ROWS,
                                    .n_seqs = 1,
                                    .pos = device_of(pos, sizeof(pos)),
                                    .row_seq = device_of(zero, sizeof(zero)),
                                    .seq = device_of(&seq, sizeof(seq)),
                                    .page_table = {device_of(page, n_pages * 4)}};
    free(page);
    return device_of(&head, sizeof(head));
}

/* Returns random keys of @n values for the complete blocks of @block positions up to @end, in half
 * precision in pages. Sets *host to the rounded keys, [blocks][n]. */
static struct block_keys csa_keys(uint32_t end, uint32_t block, uint32_t n, float **host) {
    struct block_keys k = {.page_tokens = CSA_PAGE, .block = block, .n = n, .at = 64};
    uint32_t n_blocks = end / block, n_pages = end / CSA_PAGE + 1;
    uint32_t slots = (CSA_PAGE + block - 1) / block;

    k.page_bytes = (k.at + (size_t)slots * n) * 2;
    uint16_t *pages = host_new(n_pages * k.page_bytes);
    *host = csa_random((size_t)n_blocks * n);
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t last = (i + 1) * block - 1, page = n_pages - 1 - last / CSA_PAGE;
        uint16_t *to =
            pages + page * k.page_bytes / 2 + k.at + (size_t)(last % CSA_PAGE / block) * n;

        for (uint32_t j = 0; j < n; j++) {
            float *x = *host + (size_t)i * n + j;

            to[j] = mx_float_to_half(*x);
            *x = mx_half_to_float(to[j]);
        }
    }
    k.pages = device_of(pages, n_pages * k.page_bytes);
    free(pages);
    return k;
}

/* Checks x of HC_IN, the streams after HC_OUT with the weights of HC_IN, and their mean. */
static void check_streams(uint32_t n, uint32_t n_stream) {
    const struct stream_shape shape = {
        .n = n_stream, .n_low = n_stream * (n_stream + 2), .rounds = 20, .eps = 1e-6f};
    uint32_t n_weights = n_stream * (n_stream + 1);
    size_t n_s = (size_t)CSA_ROWS * n_stream * n, n_x = (size_t)CSA_ROWS * n;
    float *s = csa_random(n_s), *low = csa_random((size_t)CSA_ROWS * shape.n_low);
    float *base = csa_random(shape.n_low), *branch = csa_random(n_x), scale[3] = {1, 0.5f, 2};
    float *x = host_new(n_x * 4), *after = host_new(n_s * 4), in[MAX_STREAMS];
    float weight[MAX_STREAMS * (MAX_STREAMS + 1)], *m = host_new(shape.n_low * 4);
    double *right_x = host_new(n_x * 8), *right = host_new(n_s * 8), *mean = host_new(n_x * 8);
    struct hc_in_args a = {.batch = csa_batch(0),
                           .s = device_of(s, n_s * 4),
                           .low = device_of(low, (size_t)CSA_ROWS * shape.n_low * 4),
                           .scale = device_of(scale, sizeof(scale)),
                           .base = device_of(base, shape.n_low * 4),
                           .x = device_new(n_x * 4),
                           .b = device_new(n_x * 4),
                           .weight = device_new((size_t)CSA_ROWS * n_weights * 4),
                           .n = n,
                           .n_stream = n_stream,
                           .rounds = shape.rounds,
                           .n_low = shape.n_low,
                           .eps = shape.eps,
                           .rms_eps = 1e-6f};
    const struct hc_out_args spread = {.batch = a.batch,
                                       .x = device_of(branch, n_x * 4),
                                       .weight = a.weight,
                                       .s = (float *)a.s,
                                       .mean = device_new(n_x * 4),
                                       .n = n,
                                       .n_stream = n_stream,
                                       .shares = true};

    launch(kernel_hc_in, CSA_ROWS + 1, 1, CUDA_THREADS, &a, "hc_in");
    launch(kernel_hc_out, CSA_ROWS + 1, (n + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS,
           &spread, "hc_out");
    launch(kernel_hc_mean, CSA_ROWS + 1, (n + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS,
           &spread, "hc_mean");
    fetch(x, a.x, n_x * 4);
    fetch(after, a.s, n_s * 4);
    for (uint32_t r = 0; r < CSA_ROWS; r++) {
        const float *from = s + (size_t)r * n_stream * n;
        double sum = 0;

        for (uint32_t i = 0; i < n_stream * n; i++)
            sum += (double)from[i] * (double)from[i];
        for (uint32_t i = 0; i < shape.n_low; i++)
            m[i] = (float)((double)low[r * shape.n_low + i] / sqrt(sum / (n_stream * n) + 1e-6));
        sinkhorn_weights(&shape, m, scale, base, in, weight);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t d = 0; d < n_stream; d++) {
                double *to = right + ((size_t)r * n_stream + d) * n + i;

                right_x[(size_t)r * n + i] += (double)in[d] * (double)from[(size_t)d * n + i];
                *to = (double)weight[d] * (double)branch[(size_t)r * n + i];
                for (uint32_t j = 0; j < n_stream; j++)
                    *to += (double)weight[n_stream + j * n_stream + d] *
                           (double)from[(size_t)j * n + i];
                mean[(size_t)r * n + i] += *to / n_stream;
            }
    }
    char name[80];
    snprintf(name, sizeof(name), "hc_in of %u streams of %u", n_stream, n);
    report_check(name, csa_distance(x, right_x, n_x), 1e-5);
    snprintf(name, sizeof(name), "spread to %u streams of %u", n_stream, n);
    report_check(name, csa_distance(after, right, n_s), 1e-5);
    fetch(x, spread.mean, n_x * 4);
    snprintf(name, sizeof(name), "mean of %u streams of %u", n_stream, n);
    report_check(name, csa_distance(x, mean, n_x), 1e-5);
    void *const held[] = {s, low, base, branch, x, after, m, right_x, right, mean};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Checks the scores of short blocks, and that the device chooses the blocks that the host chooses
 * by the same scores. */
static void check_pick(uint32_t n_head, uint32_t dim, uint32_t n_best, uint32_t pos0) {
    uint32_t end = pos0 + CSA_ROWS, n = end / 4, *pick = host_new((size_t)CSA_ROWS * n_best * 4);
    uint32_t *best = host_new(n_best * 4), n_pick[CSA_ROWS], n_wrong = 0;
    float *q = csa_random((size_t)CSA_ROWS * n_head * dim), *keys;
    float *weight = csa_random(CSA_ROWS * n_head), *score = host_new((size_t)CSA_ROWS * n * 4);
    double *right = host_new(n * 8), worst = 0;
    struct pick_args a = {.batch = csa_batch(pos0),
                          .q = device_of(q, (size_t)CSA_ROWS * n_head * dim * 4),
                          .weight = device_of(weight, CSA_ROWS * n_head * 4),
                          .score = device_new((size_t)CSA_ROWS * n * 4),
                          .pick = device_new((size_t)CSA_ROWS * n_best * 4),
                          .n_pick = device_new(sizeof(n_pick)),
                          .keys = csa_keys(end, 4, dim, &keys),
                          .n_head = n_head,
                          .n_best = n_best,
                          .stride = n,
                          .block = 4,
                          .n_set = 1,
                          .by = 0.25f};
    char name[100];

    launch(kernel_score_blocks, PICK_ROWS, 2, CUDA_THREADS, &a, "score_blocks");
    launch(kernel_choose_blocks, PICK_ROWS, 1, CUDA_THREADS, &a, "choose_blocks");
    fetch(score, a.score, (size_t)CSA_ROWS * n * 4);
    fetch(pick, a.pick, (size_t)CSA_ROWS * n_best * 4);
    fetch(n_pick, a.n_pick, sizeof(n_pick));
    for (uint32_t r = 0; r < CSA_ROWS; r++) {
        uint32_t whole = (pos0 + r + 1) / 4;

        for (uint32_t i = 0; i < whole; i++) {
            right[i] = 0;
            for (uint32_t h = 0; h < n_head; h++) {
                const float *query = q + ((size_t)r * n_head + h) * dim;
                double z = 0;

                for (uint32_t k = 0; k < dim; k++)
                    z += (double)query[k] * (double)keys[(size_t)i * dim + k];
                right[i] += z > 0 ? z * (double)weight[r * n_head + h] * 0.25 : 0;
            }
        }
        worst = fmax(worst, csa_distance(score + (size_t)r * n, right, whole));
        n_wrong += sparse_best(score + (size_t)r * n, whole, n_best, best) != n_pick[r] ||
                   memcmp(best, pick + (size_t)r * n_best, n_pick[r] * 4) != 0;
    }
    snprintf(name, sizeof(name), "scores of %u blocks by %u heads of %u", n, n_head, dim);
    report_check(name, worst, 1e-3);
    snprintf(name, sizeof(name), "choice of %u of %u blocks", n_best, n);
    report_check(name, n_wrong, 0);
    void *const held[] = {pick, best, q, keys, weight, score, right};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Checks attention, without RoPE, to the keys of the window, in the state and in the step, and to
 * all complete blocks. */
static void check_csa(uint32_t n_head, uint32_t dim, uint32_t window, uint32_t pos0) {
    const uint32_t block = 4, end = pos0 + CSA_ROWS, n = CSA_ROWS * n_head * dim;
    const uint32_t n_kept = window + 8; /* an MTP block keeps more keys than it sees */
    float *q = csa_random(n), *key = csa_random(CSA_ROWS * dim), *keys, *o = host_new(n * 4);
    float *sinks = csa_random(n_head), *state = csa_random(2ull * n_kept * dim);
    double *right = host_new(n * 8), *z = host_new((window + end) * 8);
    struct csa_args a = {.batch = csa_batch(pos0),
                         .q = device_of(q, n * 4),
                         .key = device_of(key, CSA_ROWS * dim * 4),
                         .sinks = device_of(sinks, n_head * 4),
                         .state = device_of(state, 2ull * n_kept * dim * 4),
                         .rope = device_new(64),
                         .o = device_new(n * 4),
                         .stride = (size_t)n_kept * dim,
                         .keys = csa_keys(end, block, dim, &keys),
                         .turn = {.dim = dim},
                         .n_head = n_head,
                         .window = window,
                         .n_kept = n_kept,
                         .scale = 0.05f};
    char name[100];

    launch(kernel_attend_compressed, CSA_ROWS + 1, (n_head + CSA_HEADS - 1) / CSA_HEADS,
           CUDA_THREADS, &a, "attend_compressed");
    fetch(o, a.o, n * 4);
    for (uint32_t i = 0; i < CSA_ROWS * n_head; i++) {
        uint32_t r = i / n_head, pos = pos0 + r, first = pos + 1 > window ? pos + 1 - window : 0;
        uint32_t n_window = pos + 1 - first, n_keys = n_window + (pos + 1) / block;
        double sum = exp((double)sinks[i % n_head]);

        for (uint32_t k = 0; k < n_keys; k++) {
            uint32_t p = first + k;
            const float *from = k >= n_window ? keys + (size_t)(k - n_window) * dim
                                : p < pos0    ? state + (n_kept + p % n_kept) * dim
                                              : key + (p - pos0) * dim;
            double score = 0;

            for (uint32_t j = 0; j < dim; j++)
                score += (double)q[i * dim + j] * (double)from[j];
            sum += z[k] = exp(score * 0.05);
            for (uint32_t j = 0; j < dim; j++)
                right[i * dim + j] += z[k] * (double)from[j];
        }
        for (uint32_t j = 0; j < dim; j++)
            right[i * dim + j] /= sum;
    }
    snprintf(name, sizeof(name), "attention to compressed keys, %u heads of %u, position %u",
             n_head, dim, pos0);
    report_check(name, csa_distance(o, right, n), 1e-3);
    void *const held[] = {q, key, keys, o, sinks, state, right, z};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Cases: few and many positions; sizes that are and that are not multiples of a kernel's tiles. */
static void check_compressed_kernels(const void *arg) {
    bool tiny = *(const bool *)arg;

    open_device();
    check_streams(40, 4);
    check_streams(tiny ? 300 : 4096, tiny ? 8 : 4);
    check_pick(6, 64, 5, 30);
    check_pick(64, 128, 512, tiny ? 2100 : 70000);
    check_csa(4, 32, 8, 3);
    check_csa(9, 512, 128, 130);
    check_csa(64, 512, 128, tiny ? 5 : 2000);
}
