#pragma once

/*
 * recurrent - checks the kernels of gated delta nets, Kimi delta attention and short convolutions
 * against double precision, with new and with continued sequences in one step; the same rows in
 * several steps must give the same bits. Part of kernels.c.
 */

#include "engine/ops/recurrent/kernels_recurrent.h"

#define DELTA_SEQS 3u
#define KDA_LOWER (-5.0f)

struct delta_case {
    uint32_t n_key_head, n_value_head, dim, n_taps;
    bool joined, tiled, kda;
    uint32_t n_rows[DELTA_SEQS], pos0[DELTA_SEQS];
};

/* A layer, its inputs and states, on the host and (a) on the device. */
struct delta_scene {
    const struct delta_case *c;
    /* n_both: values of the third product of a row */
    uint32_t n_rows, channels, n_out, n_both;
    /* u is [n_parts][n_rows][n_u] */
    uint32_t n_parts, n_u;
    size_t n_state;
    /* both: betas (and alphas) of a delta net, raw decays of Kimi delta attention; alpha: alphas
     * of a delta net, betas of Kimi delta attention */
    float *u, *z, *both, *alpha, *taps, *dt, *decay, *norm, *state;
    struct state_args a;
};

static float *random_floats(size_t n, float scale, float shift) {
    float *x = host_new(n * sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = gauss() * scale + shift;
    return x;
}

static struct delta_scene make_delta(const struct delta_case *c) {
    struct delta_scene s = {.c = c,
                            .channels = c->dim * (2 * c->n_key_head + c->n_value_head),
                            .n_out = c->dim * c->n_value_head,
                            .n_parts = c->kda ? 3 : 1};
    uint32_t n_dt = c->kda ? s.n_out : c->n_value_head;

    s.n_both = c->kda ? s.n_out : c->n_value_head * (c->joined ? 2 : 1);
    s.n_u = s.channels / s.n_parts;
    for (uint32_t i = 0; i < DELTA_SEQS; i++)
        s.n_rows += c->n_rows[i];
    s.n_state = (size_t)(c->n_taps - 1) * s.channels + (size_t)s.n_out * c->dim;
    s.u = random_floats((size_t)s.n_rows * s.channels, 1, 0);
    s.z = random_floats((size_t)s.n_rows * s.n_out, 1, 0);
    s.both = random_floats((size_t)s.n_rows * s.n_both, 1, 0);
    s.alpha = random_floats((size_t)s.n_rows * c->n_value_head, 1, 0);
    s.taps = random_floats((size_t)c->n_taps * s.channels, 0.5f, 0);
    s.dt = random_floats(n_dt, 1, c->kda ? -3 : 0);
    s.decay = random_floats(c->n_value_head, 0.05f, c->kda ? 1 : -0.3f);
    s.norm = random_floats(c->dim, 0.2f, 1);
    s.state = random_floats(DELTA_SEQS * s.n_state, 0.5f, 0);
    size_t padded = ((size_t)s.n_rows + 7) / 8 * 8 * ((s.n_out + 63) / 64 * 64);
    s.a = (struct state_args){
        .in = {device_of(s.u, (size_t)s.n_rows * s.channels * 4),
               device_of(s.z, (size_t)s.n_rows * s.n_out * 4),
               device_of(s.both, (size_t)s.n_rows * s.n_both * 4),
               device_of(s.alpha, (size_t)s.n_rows * c->n_value_head * 4)},
        .taps = device_of(s.taps, (size_t)c->n_taps * s.channels * 4),
        .dt = device_of(s.dt, n_dt * 4),
        .decay = device_of(s.decay, c->n_value_head * 4),
        .norm = device_of(s.norm, c->dim * 4),
        .c = device_new((size_t)s.n_rows * s.channels * 4),
        .mix = device_new((size_t)s.n_rows * c->n_value_head * 2 * 4),
        .out = device_new((size_t)s.n_rows * s.n_out * 4),
        .state = device_new(DELTA_SEQS * s.n_state * 4),
        .stride = s.n_state,
        .n_key_head = c->n_key_head,
        .n_value_head = c->n_value_head,
        .n = s.channels,
        .n_key = c->dim,
        .dim = c->dim,
        .k_at = c->n_key_head * c->dim,
        .v_at = 2 * c->n_key_head * c->dim,
        .n_taps = c->n_taps,
        .tiled = c->tiled,
        .joined = c->joined,
        .sigmoid = c->kda,
        .lower = KDA_LOWER,
        .eps = 1e-6f,
        .pack = {.packed = device_new(padded * 2 * planes()),
                 .scale = device_new((s.n_rows + 7) / 8 * 8 * 4),
                 .kind = PACK_PLAIN,
                 .n = s.n_out,
                 .n_padded = (s.n_out + 63) / 64 * 64},
    };
    s.a.pack.x = s.a.pack.up = s.a.out;
    for (uint32_t i = 0; i + 1 < s.n_parts; i++)
        s.a.more[i] = s.a.in[0] + (size_t)(i + 1) * s.n_rows * s.n_u;
    s.a.keep = c->kda ? (float *)s.a.in[2] : NULL;
    return s;
}

static void drop_delta(struct delta_scene *s) {
    const void *const on[] = {s->a.in[0], s->a.in[1], s->a.in[2],       s->a.in[3],     s->a.taps,
                              s->a.dt,    s->a.decay, s->a.norm,        s->a.c,         s->a.mix,
                              s->a.out,   s->a.state, s->a.pack.packed, s->a.pack.scale};
    float *const here[] = {s->u,  s->z,     s->both, s->alpha, s->taps,
                           s->dt, s->decay, s->norm, s->state};

    for (size_t i = 0; i < ARRAY_SIZE(on); i++)
        api->release((void *)on[i]);
    for (size_t i = 0; i < ARRAY_SIZE(here); i++)
        free(here[i]);
}

/* Runs a step of @n sequences, whose @n_rows rows are those of the scene from @row0 on. */
static void step_delta(const struct delta_scene *s, const struct plan_seq *seq, uint32_t n,
                       uint32_t row0, uint32_t n_rows) {
    uint32_t *row_seq = host_new(n_rows * 4), heads = 2 * s->c->n_key_head + s->c->n_value_head;
    uint32_t parts = (s->c->dim + DELTA_VALUES - 1) / DELTA_VALUES;
    struct state_args a = s->a;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < seq[i].n_rows; r++)
            row_seq[seq[i].row0 + r] = i;
    struct batch_head head = {.n_rows = n_rows,
                              .n_seqs = n,
                              .row_seq = device_of(row_seq, n_rows * 4),
                              .seq = device_of(seq, n * sizeof(*seq))};

    a.batch = device_of(&head, sizeof(head));
    a.in[0] += (size_t)row0 * s->n_u;
    for (uint32_t i = 0; i + 1 < s->n_parts; i++)
        a.more[i] += (size_t)row0 * s->n_u;
    a.in[1] += (size_t)row0 * s->n_out;
    a.in[2] += (size_t)row0 * s->n_both;
    a.in[3] += (size_t)row0 * s->c->n_value_head;
    a.keep = s->c->kda ? (float *)a.in[2] : NULL;
    a.out += (size_t)row0 * s->n_out;
    a.pack.x = a.pack.up = a.out;
    launch(kernel_delta_in, n_rows + 1, (heads + 7) / 8, CUDA_THREADS, &a, "delta_in");
    launch(s->c->kda ? kernel_kda : kernel_delta, n + 1, s->c->n_value_head * parts, DELTA_THREADS,
           &a, "delta");
    launch(kernel_delta_out, n_rows + 1, 1, PACK_THREADS, &a, "delta_out");
    must(api->stream_wait(stream), "delta");
    api->release((void *)head.row_seq);
    api->release((void *)head.seq);
    api->release((void *)a.batch);
    free(row_seq);
}

/* Computes all rows, with @chunk 0 in one step, else @chunk rows of one sequence in each step.
 * Copies outputs to @out and states to @state. Sequence i has slot DELTA_SEQS - 1 - i. */
static void run_delta(struct delta_scene *s, uint32_t chunk, float *out, float *state) {
    const struct delta_case *c = s->c;
    struct plan_seq seq[DELTA_SEQS];
    uint32_t row0 = 0;

    must(api->copy(s->a.state, s->state, DELTA_SEQS * s->n_state * 4, CUDA_TO_DEVICE, stream),
         "copy");
    if (c->kda) /* the last run has overwritten the raw decays by the decays */
        must(api->copy(s->a.keep, s->both, (size_t)s->n_rows * s->n_both * 4, CUDA_TO_DEVICE,
                       stream),
             "copy");
    for (uint32_t i = 0; i < DELTA_SEQS; row0 += c->n_rows[i++]) {
        seq[i] = (struct plan_seq){row0, c->n_rows[i], c->pos0[i], 0, DELTA_SEQS - 1 - i, 0};
        for (uint32_t at = 0; chunk && at < c->n_rows[i]; at += chunk) {
            struct plan_seq part = {
                0, MIN(chunk, c->n_rows[i] - at), c->pos0[i] + at, 0, seq[i].state, 0};

            step_delta(s, &part, 1, row0 + at, part.n_rows);
        }
    }
    if (!chunk)
        step_delta(s, seq, DELTA_SEQS, 0, s->n_rows);
    fetch(out, s->a.out, (size_t)s->n_rows * s->n_out * 4);
    fetch(state, s->a.state, DELTA_SEQS * s->n_state * 4);
}

static double logistic(double x) {
    return 1 / (1 + exp(-x));
}

static double silu(double x) {
    return x * logistic(x);
}

/* Returns channel @i of u of row @r. */
static float u_right(const struct delta_scene *s, uint32_t r, uint32_t i) {
    return s->u[((size_t)(i / s->n_u) * s->n_rows + r) * s->n_u + i % s->n_u];
}

/* Computes c of row @r in double precision. Its sequence begins at row @row0; @past: the state
 * before that row, NULL for a new sequence. */
static void convolve_right(const struct delta_scene *s, uint32_t r, uint32_t row0,
                           const float *past, double *c) {
    uint32_t before = s->c->n_taps - 1, dim = s->c->dim;

    for (uint32_t i = 0; i < s->channels; i++) {
        c[i] = 0;
        for (uint32_t j = 0; j <= before; j++) {
            uint32_t k = r - row0 + j;
            float u = k >= before ? u_right(s, r + j - before, i)
                      : past      ? past[(size_t)k * s->channels + i]
                                  : 0.0f;

            c[i] += (double)s->taps[(size_t)j * s->channels + i] * (double)u;
        }
        c[i] = silu(c[i]);
    }
    for (uint32_t h = 0; h < 2 * s->c->n_key_head; h++) {
        double sum = 1e-6;

        for (uint32_t i = 0; i < dim; i++)
            sum += c[h * dim + i] * c[h * dim + i];
        for (uint32_t i = 0; i < dim; i++)
            c[h * dim + i] /= sqrt(sum) * (h < s->c->n_key_head ? sqrt(dim) : 1);
    }
}

/* Advances the state @m of head @h, [keys][values], by row @r, and computes the output. */
static void advance_right(const struct delta_scene *s, uint32_t r, uint32_t h, const double *c,
                          double *m, double *out) {
    const struct delta_case *d = s->c;
    uint32_t n = d->n_value_head, per = n / d->n_key_head, dim = d->dim;
    uint32_t at = h / per * 2 * per + h % per, key = d->tiled ? h % d->n_key_head : h / per;
    const float *both = s->both + (size_t)r * s->n_both, *z = s->z + (size_t)r * s->n_out + h * dim;
    double alpha = (double)(d->joined ? both[at + per] : s->alpha[(size_t)r * n + h]);
    double beta = d->kda ? alpha : (double)(d->joined ? both[at] : both[h]), square = 0;
    double keep[DELTA_DIM], by = (double)s->decay[h];
    const double *q = c + key * dim, *k = q + d->n_key_head * dim;
    const double *v = c + (2 * d->n_key_head + h) * dim;

    for (uint32_t i = 0; i < dim; i++)
        keep[i] = d->kda ? exp((double)KDA_LOWER *
                               logistic(by * (double)(both[h * dim + i] + s->dt[h * dim + i])))
                         : exp(by * log1p(exp(alpha + (double)s->dt[h])));
    for (uint32_t j = 0; j < dim; j++) {
        double known = 0;

        for (uint32_t i = 0; i < dim; i++)
            known += k[i] * keep[i] * m[i * dim + j];
        out[j] = 0;
        for (uint32_t i = 0; i < dim; i++) {
            m[i * dim + j] = keep[i] * m[i * dim + j] + k[i] * (v[j] - known) * logistic(beta);
            out[j] += q[i] * m[i * dim + j];
        }
        square += out[j] * out[j];
    }
    for (uint32_t j = 0; j < dim; j++)
        out[j] *= (double)s->norm[j] / sqrt(square / dim + 1e-6) *
                  (d->kda ? logistic((double)z[j]) : silu((double)z[j]));
}

/* Returns |got - right| / |right| of the outputs. */
static double delta_error(const struct delta_scene *s, const float *got) {
    uint32_t dim = s->c->dim, row0 = 0;
    double *c = host_new(s->channels * sizeof(*c)), *out = host_new(dim * sizeof(*out));
    double *m = host_new((size_t)s->n_out * dim * sizeof(*m)), d = 0, norm = 0;

    for (uint32_t q = 0; q < DELTA_SEQS; row0 += s->c->n_rows[q++]) {
        const float *past = s->c->pos0[q] ? s->state + (DELTA_SEQS - 1 - q) * s->n_state : NULL;
        const float *from = past + (size_t)(s->c->n_taps - 1) * s->channels;

        for (uint32_t x = 0; x < s->n_out * dim; x++) {
            uint32_t h = x / dim / dim, at = delta_place(dim, x / dim % dim, x % dim);

            m[x] = past ? (double)from[h * dim * dim + at] : 0;
        }
        for (uint32_t r = row0; r < row0 + s->c->n_rows[q]; r++) {
            convolve_right(s, r, row0, past, c);
            for (uint32_t h = 0; h < s->c->n_value_head; h++) {
                advance_right(s, r, h, c, m + (size_t)h * dim * dim, out);
                for (uint32_t j = 0; j < dim; j++) {
                    d += pow((double)got[(size_t)r * s->n_out + h * dim + j] - out[j], 2);
                    norm += out[j] * out[j];
                }
            }
        }
    }
    free(c);
    free(out);
    free(m);
    return sqrt(d / norm);
}

static void check_delta(const struct delta_case *c) {
    struct delta_scene s = make_delta(c);
    size_t n = (size_t)s.n_rows * s.n_out, n_state = DELTA_SEQS * s.n_state;
    float *out[2] = {host_new(n * 4), host_new(n * 4)};
    float *state[2] = {host_new(n_state * 4), host_new(n_state * 4)};
    char name[100], same[120];

    snprintf(name, sizeof(name), "%s, %u of %u heads of %u, %u taps%s%s",
             c->kda ? "Kimi delta attention" : "delta net", c->n_value_head, c->n_key_head, c->dim,
             c->n_taps, c->joined ? ", joined" : "", c->tiled ? ", tiled" : "");
    run_delta(&s, 0, out[0], state[0]);
    report_check(name, delta_error(&s, out[0]), 1e-5);
    for (uint32_t chunk = 1; chunk <= 9; chunk += 8) {
        run_delta(&s, chunk, out[1], state[1]);
        snprintf(same, sizeof(same), "%s: by %u", name, chunk);
        report_check(same, differs(same, out[1], out[0], s.n_rows, s.n_out), 0);
        snprintf(same, sizeof(same), "%s: states by %u", name, chunk);
        report_check(same, differs(same, state[1], state[0], DELTA_SEQS, (uint32_t)s.n_state), 0);
    }
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(state[i]);
    }
    drop_delta(&s);
}

/* Cases: new sequences, continued sequences, and sequences shorter than the convolution. */
static void check_delta_kernels(const void *arg) {
    static const struct delta_case cases[] = {
        {2, 4, 16, 4, false, true, false, {1, 11, 2}, {5, 0, 0}},
        {1, 3, 32, 2, true, false, false, {9, 1, 8}, {0, 0, 1}},
        {2, 2, 64, 8, false, false, false, {3, 1, 17}, {2, 7, 0}},
        {1, 2, 128, 4, true, true, false, {1, 10, 1}, {0, 3, 9}},
        {3, 3, 16, 4, false, false, true, {1, 11, 2}, {5, 0, 0}},
        {2, 2, 128, 4, false, false, true, {9, 1, 8}, {0, 7, 1}},
        {16, 48, 128, 4, false, true, false, {700, 1, 33}, {0, 3000, 9}},
        {16, 32, 128, 4, true, false, false, {1, 1, 1}, {100, 300, 0}},
        {32, 32, 128, 4, false, false, true, {300, 1, 33}, {0, 3000, 9}},
    };
    size_t n = *(const bool *)arg ? 6 : ARRAY_SIZE(cases);

    open_device();
    for (size_t i = 0; i < n; i++)
        check_delta(&cases[i]);
}

/* -- short convolutions ------------------------------------------------------------------------ */

#define CONV_ROWS 6u
#define CONV_TAPS 3u

/* Computes two sequences, of which the first continues a state, in one step and row by row. Checks
 * that outputs and states have the same bits, and the outputs against double precision. */
static void check_conv(uint32_t n) {
    const struct plan_seq seq[2] = {{0, 4, 5, 0, 1, 0}, {4, 2, 0, 0, 0, 0}};
    const uint32_t row_seq[CONV_ROWS] = {0, 0, 0, 0, 1, 1}, before = CONV_TAPS - 1;
    size_t rows = (size_t)CONV_ROWS * n, n_state = (size_t)2 * before * n;
    float *in[3], *taps = host_new((size_t)CONV_TAPS * n * 4), *state = host_new(n_state * 4);
    float *out[2], *end[2];
    struct batch_head head = {.seq = device_of(seq, sizeof(seq)),
                              .row_seq = device_of(row_seq, sizeof(row_seq))};
    struct conv_args a = {.out = device_new(rows * 4),
                          .state = device_new(n_state * 4),
                          .stride = (size_t)before * n,
                          .n = n,
                          .n_taps = CONV_TAPS};
    double d = 0, norm = 0;
    char name[80];

    for (int i = 0; i < 3; i++) {
        in[i] = host_new(rows * 4);
        fill_floats(in[i], rows);
        a.in[i] = device_of(in[i], rows * 4);
    }
    fill_floats(taps, (size_t)CONV_TAPS * n);
    fill_floats(state, n_state);
    a.taps = device_of(taps, (size_t)CONV_TAPS * n * 4);
    for (int way = 0; way < 2; way++) {
        out[way] = host_new(rows * 4);
        end[way] = host_new(n_state * 4);
        must(api->copy(a.state, state, n_state * 4, CUDA_TO_DEVICE, stream), "copy");
        for (uint32_t k = 0; k < (way ? CONV_ROWS : 1); k++) {
            const struct plan_seq *q = &seq[row_seq[k]];
            const struct plan_seq one = {0, 1, q->pos0 + k - q->row0, 0, q->state, 0};
            struct batch_head part = {.n_rows = 1,
                                      .n_seqs = 1,
                                      .seq = device_of(&one, sizeof(one)),
                                      .row_seq = device_of(row_seq, 4)};
            struct conv_args step = a;

            head.n_rows = CONV_ROWS;
            head.n_seqs = 2;
            step.batch = device_of(way ? &part : &head, sizeof(head));
            for (int i = 0; i < 3; i++)
                step.in[i] += way ? (size_t)k * n : 0;
            step.out += way ? (size_t)k * n : 0;
            launch(kernel_conv, CONV_ROWS + 1, (n + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS,
                   &step, "conv");
            launch(kernel_conv_keep, 3, (n + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS, &step,
                   "conv_keep");
            must(api->stream_wait(stream), "conv");
            const void *done[] = {part.seq, part.row_seq, step.batch};
            for (size_t i = 0; i < ARRAY_SIZE(done); i++)
                api->release((void *)done[i]);
        }
        fetch(out[way], a.out, rows * 4);
        fetch(end[way], a.state, n_state * 4);
    }
    for (uint32_t r = 0; r < CONV_ROWS; r++)
        for (uint32_t i = 0; i < n; i++) {
            const struct plan_seq *q = &seq[row_seq[r]];
            double sum = 0;

            for (uint32_t j = 0; j < CONV_TAPS; j++) {
                uint32_t k = r - q->row0 + j; /* index of the input, where the state's come first */
                size_t at = (size_t)(q->row0 + k - before) * n + i;
                double u = k >= before ? (double)in[0][at] * (double)in[2][at]
                           : q->pos0   ? (double)state[(q->state * before + k) * n + i]
                                       : 0;

                sum += (double)taps[(size_t)j * n + i] * u;
            }
            sum *= (double)in[1][(size_t)r * n + i];
            d += pow((double)out[0][(size_t)r * n + i] - sum, 2);
            norm += sum * sum;
        }
    snprintf(name, sizeof(name), "short convolution of %u", n);
    report_check(name, sqrt(d / norm), 1e-5);
    snprintf(name, sizeof(name), "short convolution of %u: row by row", n);
    report_check(name, differs(name, out[1], out[0], CONV_ROWS, n), 0);
    snprintf(name, sizeof(name), "short convolution of %u: states row by row", n);
    report_check(name, differs(name, end[1], end[0], 2 * before, n), 0);
    const void *done[] = {head.seq, head.row_seq, a.out,   a.state,
                          a.taps,   a.in[0],      a.in[1], a.in[2]};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release((void *)done[i]);
    float *const held[] = {in[0], in[1], in[2], taps, state, out[0], out[1], end[0], end[1]};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

static void check_conv_kernels(const void *arg) {
    open_device();
    check_conv(48);
    if (!*(const bool *)arg)
        check_conv(2048);
}
