#pragma once

/*
 * scan - checks the kernels of Mamba-1: outputs against double precision, and that rows one by one
 * give the bits of one step, outputs and states. Part of kernels.c.
 */

#include "engine/ops/recurrent/kernels_recurrent.h"
#include "tests/gpu/matrices.h"

#define SCAN_ROWS 6u
#define SCAN_TAPS 4u

/* Two sequences, of which the first continues a state. */
static const struct plan_seq scan_seq[2] = {{0, 4, 5, 0, 1, 0}, {4, 2, 0, 0, 0, 0}};
static const uint32_t scan_row_seq[SCAN_ROWS] = {0, 0, 0, 0, 1, 1};

/* Inputs of the kernels, on the host; n_state numbers for each of n channels. */
struct scan_scene {
    uint32_t n, n_state, n_rank;
    float *u, *z, *step, *low, *taps, *bias, *dt, *decay, *skip, *in_norm, *out_norm, *state;
};

static float *scan_floats(size_t n) {
    float *v = host_new(n * sizeof(*v));

    fill_floats(v, n);
    return v;
}

static size_t scan_state_floats(const struct scan_scene *s) {
    return (size_t)(SCAN_TAPS - 1 + s->n_state) * s->n;
}

static struct scan_scene scan_begin(uint32_t n, uint32_t n_state, uint32_t n_rank) {
    size_t n_low = n_rank + 2 * n_state, rows = (size_t)SCAN_ROWS * n;
    struct scan_scene s = {
        .n = n,
        .n_state = n_state,
        .n_rank = n_rank,
        .u = scan_floats(rows),
        .z = scan_floats(rows),
        .step = scan_floats(rows),
        .low = scan_floats(SCAN_ROWS * n_low),
        .taps = scan_floats((size_t)SCAN_TAPS * n),
        .bias = scan_floats(n),
        .dt = scan_floats(n),
        .decay = scan_floats((size_t)n * n_state),
        .skip = scan_floats(n),
        .in_norm = scan_floats(n_state),
        .out_norm = scan_floats(n_state),
    };

    s.state = scan_floats(2 * scan_state_floats(&s));
    for (size_t i = 0; i < (size_t)n * n_state; i++)
        s.decay[i] = -fabsf(s.decay[i]);
    return s;
}

/* Returns the input of channel @c at row @k of sequence @q, counted from SCAN_TAPS - 1 rows before
 * the step. */
static double scan_input(const struct scan_scene *s, const struct plan_seq *q, uint32_t k,
                         uint32_t c) {
    uint32_t before = SCAN_TAPS - 1;

    if (k >= before)
        return (double)s->u[(size_t)(q->row0 + k - before) * s->n + c];
    return q->pos0 ? (double)s->state[q->state * scan_state_floats(s) + (size_t)k * s->n + c] : 0;
}

static double scan_inverse(const float *v, uint32_t n) {
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    return 1 / sqrt(sum / n + 1e-6);
}

/* Computes the outputs of channel @c of sequence @q to @out, [SCAN_ROWS][n]. */
static void scan_right(const struct scan_scene *s, const struct plan_seq *q, uint32_t c,
                       double *out) {
    double m[128] = {0};
    const float *from = s->state + q->state * scan_state_floats(s) +
                        (size_t)(SCAN_TAPS - 1) * s->n + (size_t)c * s->n_state;

    for (uint32_t j = 0; j < s->n_state && q->pos0; j++)
        m[j] = (double)from[j];
    for (uint32_t i = 0; i < q->n_rows; i++) {
        size_t at = (size_t)(q->row0 + i) * s->n + c;
        const float *in = s->low + (size_t)(q->row0 + i) * (s->n_rank + 2 * s->n_state) + s->n_rank;
        double of_in = scan_inverse(in, s->n_state);
        double of_out = scan_inverse(in + s->n_state, s->n_state);
        double step = log1p(exp((double)s->step[at] + (double)s->dt[c])), x = s->bias[c], y = 0;

        for (uint32_t t = 0; t < SCAN_TAPS; t++)
            x += (double)s->taps[(size_t)t * s->n + c] * scan_input(s, q, i + t, c);
        x /= 1 + exp(-x);
        for (uint32_t j = 0; j < s->n_state; j++) {
            m[j] = exp(step * (double)s->decay[(size_t)c * s->n_state + j]) * m[j] +
                   step * x * (double)in[j] * of_in * (double)s->in_norm[j];
            y += m[j] * (double)in[s->n_state + j] * of_out * (double)s->out_norm[j];
        }
        double z = (double)s->z[at];
        out[at] = (y + (double)s->skip[c] * x) * z / (1 + exp(-z));
    }
}

/* Launches both kernels for rows [@row, @row + batch->n_rows) of the scene. */
static void scan_launch(const struct scan_args *of, const struct batch_head *batch, uint32_t row) {
    struct scan_args a = *of;
    struct batch_head *on = device_of(batch, sizeof(*batch));

    a.batch = on;
    a.u += (size_t)row * a.n;
    a.z += (size_t)row * a.n;
    a.step += (size_t)row * a.n;
    a.low += (size_t)row * (a.n_rank + 2 * a.n_state);
    a.c += (size_t)row * a.n;
    a.out += (size_t)row * a.n;
    launch(kernel_scan_in, SCAN_ROWS + 1, (a.n + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS, &a,
           "scan_in");
    launch(kernel_scan, 3, (a.n * (a.n_state / 4) + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS,
           &a, "scan");
    must(api->stream_wait(stream), "scan");
    api->release(on);
}

/* Launches the rows one by one. */
static void scan_one_by_one(const struct scan_args *a) {
    for (uint32_t k = 0; k < SCAN_ROWS; k++) {
        const struct plan_seq *q = &scan_seq[scan_row_seq[k]];
        const struct plan_seq one = {0, 1, q->pos0 + k - q->row0, 0, q->state, 0};
        struct plan_seq *seq = device_of(&one, sizeof(one));
        uint32_t *row_seq = device_of(scan_row_seq, 4);
        const struct batch_head part = {.n_rows = 1, .n_seqs = 1, .seq = seq, .row_seq = row_seq};

        scan_launch(a, &part, k);
        api->release(seq);
        api->release(row_seq);
    }
}

static void scan_compare(const struct scan_scene *s, float *const out[2], float *const end[2]) {
    size_t rows = (size_t)SCAN_ROWS * s->n;
    double *right = host_new(rows * sizeof(*right)), d = 0, norm = 0;
    char name[80];

    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t c = 0; c < s->n; c++)
            scan_right(s, &scan_seq[k], c, right);
    for (size_t i = 0; i < rows; i++) {
        d += pow((double)out[0][i] - right[i], 2);
        norm += right[i] * right[i];
    }
    snprintf(name, sizeof(name), "Mamba-1 of %u channels, states of %u", s->n, s->n_state);
    report_check(name, sqrt(d / norm), 1e-5);
    snprintf(name, sizeof(name), "Mamba-1 of %u channels: row by row", s->n);
    report_check(name, differs(name, out[1], out[0], SCAN_ROWS, s->n), 0);
    snprintf(name, sizeof(name), "Mamba-1 of %u channels: states row by row", s->n);
    report_check(name, differs(name, end[1], end[0], 2, (uint32_t)scan_state_floats(s)), 0);
    free(right);
}

static void check_scan(uint32_t n, uint32_t n_state, uint32_t n_rank) {
    struct scan_scene s = scan_begin(n, n_state, n_rank);
    size_t n_all = 2 * scan_state_floats(&s), rows = (size_t)SCAN_ROWS * n;
    struct scan_args a = {
        .u = device_of(s.u, rows * 4),
        .z = device_of(s.z, rows * 4),
        .step = device_of(s.step, rows * 4),
        .low = device_of(s.low, SCAN_ROWS * (size_t)(n_rank + 2 * n_state) * 4),
        .taps = device_of(s.taps, (size_t)SCAN_TAPS * n * 4),
        .bias = device_of(s.bias, n * 4),
        .dt = device_of(s.dt, n * 4),
        .decay = device_of(s.decay, (size_t)n * n_state * 4),
        .skip = device_of(s.skip, n * 4),
        .in_norm = device_of(s.in_norm, n_state * 4),
        .out_norm = device_of(s.out_norm, n_state * 4),
        .c = device_new(rows * 4),
        .out = device_new(rows * 4),
        .state = device_new(n_all * 4),
        .stride = scan_state_floats(&s),
        .n = n,
        .n_taps = SCAN_TAPS,
        .n_state = n_state,
        .n_rank = n_rank,
        .eps = 1e-6f,
    };
    const struct batch_head all = {.n_rows = SCAN_ROWS,
                                   .n_seqs = 2,
                                   .seq = device_of(scan_seq, sizeof(scan_seq)),
                                   .row_seq = device_of(scan_row_seq, sizeof(scan_row_seq))};
    float *out[2], *end[2];

    for (int way = 0; way < 2; way++) {
        out[way] = host_new(rows * 4);
        end[way] = host_new(n_all * 4);
        must(api->copy(a.state, s.state, n_all * 4, CUDA_TO_DEVICE, stream), "copy");
        if (way)
            scan_one_by_one(&a);
        else
            scan_launch(&a, &all, 0);
        fetch(out[way], a.out, rows * 4);
        fetch(end[way], a.state, n_all * 4);
    }
    scan_compare(&s, out, end);
    const void *on[] = {a.u,   a.z,     a.step,  a.low,      a.taps,     a.bias,
                        a.dt,  a.decay, a.skip,  a.in_norm,  a.out_norm, a.c,
                        a.out, a.state, all.seq, all.row_seq};
    for (size_t i = 0; i < ARRAY_SIZE(on); i++)
        api->release((void *)on[i]);
    float *const here[] = {s.u,    s.z,       s.step,     s.low,   s.taps, s.bias, s.dt,   s.decay,
                           s.skip, s.in_norm, s.out_norm, s.state, out[0], out[1], end[0], end[1]};
    for (size_t i = 0; i < ARRAY_SIZE(here); i++)
        free(here[i]);
}

/* Checks, for steps of heads, B and C behind the @n channels of c, and the decays and steps. */
static void check_scan_heads(uint32_t n, uint32_t n_state, uint32_t n_rank, uint32_t n_head) {
    uint32_t n_low = n_rank + 2 * n_state, n_c = n + 2 * n_state, n_mix = SCAN_ROWS * 2 * n_head;
    float *low = random_floats((size_t)SCAN_ROWS * n_low, 1, 0), *c = host_new(SCAN_ROWS * n_c * 4);
    float *step = random_floats((size_t)SCAN_ROWS * n_head, 1, 0), *mix = host_new(n_mix * 4);
    float *dt = random_floats(n_head, 1, 0), *decay = random_floats(n_head, 0.2f, -0.5f);
    float *norm = random_floats(2ull * n_state, 0.2f, 1);
    const struct batch_head all = {.n_rows = SCAN_ROWS};
    const struct scan_args a = {
        .batch = device_of(&all, sizeof(all)),
        .low = device_of(low, (size_t)SCAN_ROWS * n_low * 4),
        .step = device_of(step, (size_t)SCAN_ROWS * n_head * 4),
        .dt = device_of(dt, n_head * 4),
        .decay = device_of(decay, n_head * 4),
        .in_norm = device_of(norm, n_state * 4),
        .out_norm = device_of(norm + n_state, n_state * 4),
        .c = device_of(c, (size_t)SCAN_ROWS * n_c * 4),
        .mix = device_new(n_mix * 4),
        .n = n,
        .n_state = n_state,
        .n_rank = n_rank,
        .n_behind = 2 * n_state,
        .n_head = n_head,
        .eps = 1e-6f,
    };
    double worst = 0;
    char name[80];

    launch(kernel_scan_heads, SCAN_ROWS + 1, 1, CUDA_THREADS, &a, "scan_heads");
    fetch(c, a.c, (size_t)SCAN_ROWS * n_c * 4);
    fetch(mix, a.mix, n_mix * 4);
    for (uint32_t i = 0; i < SCAN_ROWS * 2 * n_state; i++) {
        uint32_t r = i / (2 * n_state), j = i % (2 * n_state), half = j / n_state;
        const float *part = low + (size_t)r * n_low + half * n_state;
        double right = (double)part[j % n_state] * scan_inverse(part, n_state) * (double)norm[j];

        worst = fmax(worst, fabs((double)c[(size_t)r * n_c + n + j] - right));
    }
    for (uint32_t i = 0; i < SCAN_ROWS * n_head; i++) {
        double s = log1p(exp((double)step[i] + (double)dt[i % n_head]));

        worst = fmax(worst, fabs((double)mix[2 * i + 1] - s));
        worst = fmax(worst, fabs((double)mix[2 * i] - exp(s * (double)decay[i % n_head])));
    }
    snprintf(name, sizeof(name), "Mamba-1 of %u heads, states of %u", n_head, n_state);
    report_check(name, worst, 1e-5);
    float *const here[] = {low, c, step, mix, dt, decay, norm};
    for (size_t i = 0; i < ARRAY_SIZE(here); i++)
        free(here[i]);
}

/* Cases: channels that do not fill a block; parts that are not aligned; as in Jamba Mini. */
static void check_scan_kernels(const void *arg) {
    open_device();
    check_scan(48, 16, 5);
    check_scan(80, 4, 8);
    check_scan(16, 128, 3);
    check_scan_heads(48, 16, 5, 3);
    check_scan_heads(32, 64, 64, 300);
    if (!*(const bool *)arg)
        check_scan(8192, 16, 256);
}
