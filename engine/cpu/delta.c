#include "engine/cpu/state.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include "base/mathx.h"
#include "engine/quant.h"

/*
 * Gated delta nets. DELTA_IN is one round of products. DELTA convolves row by row, then every value
 * head of every sequence goes through its rows, one after the other: the recurrence of backend.h in
 * the same order for prompts and for single tokens, so that a row's bits do not depend on how the
 * rows came. A form that takes many tokens at once would have to cut them on absolute positions;
 * it would not be faster here: beside the products, which do take many rows at once, the recurrence
 * is a few per cent (docs/cpu-kernels.md).
 *
 * The state of a sequence, layer by layer: the last kernel - 1 rows of u, the oldest first; then
 * for each value head [dim / 16][dim keys][16 values].
 */

struct delta {
    float *u, *z, *c;    /* [max_rows]: channels, values, channels after the convolution */
    float *mix[2];       /* [max_rows][2 * n_value_head] raw betas and alphas */
    float *keep, *beta;  /* [max_rows][n_value_head]: e^g, sigmoid of the raw beta */
    float *state;        /* [n_states][layers] */
    size_t state_floats; /* of a layer */
    uint32_t n_states;
};

static size_t inner_of(const struct be *b) {
    return (size_t)b->shape.delta.n_value_head * b->shape.delta.dim;
}

int delta_open(struct be *b, uint32_t n_states) {
    const struct delta_shape *s = &b->shape.delta;
    size_t n = b->max_rows * sizeof(float), mix = n * s->n_value_head;

    if (!s->n_layer)
        return 0;
    struct delta *d = b->delta = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->n_states = n_states;
    d->state_floats = delta_state_floats(s);
    d->u = be_map(n * delta_channels(s));
    d->z = be_map(n * inner_of(b));
    d->c = be_map(n * delta_channels(s));
    d->mix[0] = be_map(2 * mix);
    d->mix[1] = be_map(2 * mix);
    d->keep = be_map(mix);
    d->beta = be_map(mix);
    d->state = be_map(n_states * b->shape.delta.n_layer * d->state_floats * sizeof(float));
    return d->u && d->z && d->c && d->mix[0] && d->mix[1] && d->keep && d->beta && d->state
               ? 0
               : -ENOMEM;
}

void delta_close(struct be *b) {
    const struct delta_shape *s = &b->shape.delta;
    size_t n = b->max_rows * sizeof(float), mix = n * s->n_value_head;
    struct delta *d = b->delta;

    if (!d)
        return;
    be_unmap(d->u, n * delta_channels(s));
    be_unmap(d->z, n * inner_of(b));
    be_unmap(d->c, n * delta_channels(s));
    be_unmap(d->mix[0], 2 * mix);
    be_unmap(d->mix[1], 2 * mix);
    be_unmap(d->keep, mix);
    be_unmap(d->beta, mix);
    be_unmap(d->state, d->n_states * s->n_layer * d->state_floats * sizeof(float));
    free(d);
}

int delta_copy(struct be *b, uint32_t src, uint32_t dst) {
    struct delta *d = b->delta;
    size_t n = b->shape.delta.n_layer * d->state_floats;

    assert(src < d->n_states && dst < d->n_states);
    memmove(d->state + dst * n, d->state + src * n, n * sizeof(float));
    return 0;
}

/* The taps as the kernels read them: [kernel][channels]. */
int delta_load(struct be *b, struct weights *w, const struct model_op *op) {
    const struct delta_shape *s = &b->shape.delta;
    uint32_t n = delta_channels(s);
    float tap[8];
    int r = be_vector(b, op->dt, &w->dt);

    r = r ? r : be_vector(b, op->decay, &w->decay);
    w->conv = be_take(b, (size_t)s->kernel * n * sizeof(float));
    if (r || !w->conv)
        return r ? r : -ENOMEM;
    assert(s->kernel <= ARRAY_SIZE(tap));
    for (uint32_t c = 0; c < n; c++) {
        quant_decode_row(op->conv, c, tap);
        for (uint32_t j = 0; j < s->kernel; j++)
            w->conv[(size_t)j * n + c] = tap[j];
    }
    return 0;
}

int ops_delta_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct delta *d = b->delta;
    uint32_t n_mats = op->weights->n_mats;
    struct matmul mm = ops_prepare(s, op->weights, 0, n_mats, ACT_X);

    assert(d && n_mats >= 3);
    mm.mode = MATMUL_STORE;
    for (uint32_t i = 0; i < n_mats; i++) {
        float *const to[OP_MATRICES] = {d->u, d->z, d->mix[0], d->mix[1]};

        mm.out[i] = to[i];
        mm.out_stride[i] = op->weights->m[i].n_out;
    }
    matmul_run(b->pool, &mm, 1);
    return 0;
}

/* What the threads see. */
struct work {
    struct step *step;
    const struct model_op *op;
};

/* The state of sequence @i of the batch in the op's layer. */
static float *state_of(const struct work *k, uint32_t i) {
    const struct be *b = k->step->be;
    const struct delta *d = b->delta;
    uint32_t slot = k->step->host.batch->seq[i].state_slot;

    assert(slot < d->n_states && k->op->state < b->shape.delta.n_layer);
    return d->state + ((size_t)slot * b->shape.delta.n_layer + k->op->state) * d->state_floats;
}

/* e^g and sigmoid(beta) of the value heads of a row. */
static void mix_row(const struct work *k, uint32_t row) {
    const struct be *b = k->step->be;
    const struct delta *d = b->delta;
    uint32_t n = b->shape.delta.n_value_head, per = n / b->shape.delta.n_key_head;
    const float *beta = d->mix[0] + (size_t)row * n, *alpha = d->mix[1] + (size_t)row * n;

    if (k->op->joined)
        beta = d->mix[0] + (size_t)row * 2 * n;
    for (uint32_t h = 0; h < n; h++) {
        uint32_t at = h / per * 2 * per + h % per; /* joined: of the beta; the alpha is behind */
        float x = (k->op->joined ? beta[at + per] : alpha[h]) + k->op->weights->dt[h];
        float softplus = x > 20 ? x : (float)mx_log(1.0 + (double)mx_expf(x));

        d->keep[(size_t)row * n + h] = mx_expf(k->op->weights->decay[h] * softplus);
        d->beta[(size_t)row * n + h] =
            1.0f / (1.0f + mx_expf(-(k->op->joined ? beta[at] : beta[h])));
    }
}

/* A row's channels: of the rows before it those that are not in the batch are in the state. */
static void convolve_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    const struct delta_shape *s = &b->shape.delta;
    const struct delta *d = b->delta;
    uint32_t n = delta_channels(s), before = s->kernel - 1, seq = k->step->host.row_seq[row];
    uint32_t nth = row - k->step->host.batch->seq[seq].row0;
    const float *past = state_of(k, seq), *u[8];
    float *c = d->c + (size_t)row * n, root = sqrtf((float)s->dim);

    for (uint32_t j = 0; j <= before; j++)
        u[j] = nth + j >= before ? d->u + (size_t)(row + j - before) * n
                                 : past + (size_t)(nth + j) * n;
    b->kernels->delta_convolve(k->op->weights->conv, u, s->kernel, c, n);
    for (uint32_t h = 0; h < 2 * s->n_key_head; h++)
        b->kernels->delta_unit(c + (size_t)h * s->dim, s->dim, b->shape.rms_eps,
                               h < s->n_key_head ? 1.0f / root : 1.0f);
    mix_row(k, row);
}

/* The rows of one value head of a sequence: through its state, then normed and gated. */
static void advance_head(void *ctx, uint32_t i, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    const struct delta_shape *s = &b->shape.delta;
    const struct delta *d = b->delta;
    uint32_t n = s->n_value_head, h = i % n, channels = delta_channels(s);
    const struct engine_seq *q = &k->step->host.batch->seq[i / n];
    uint32_t key = s->tiled ? h % s->n_key_head : h / (n / s->n_key_head);
    size_t width = b->act_width[ACT_D], matrix = (size_t)s->dim * s->dim;
    float *m = state_of(k, i / n) + (size_t)(s->kernel - 1) * channels + h * matrix;
    const float *c = d->c + (size_t)q->row0 * channels;
    const struct delta_head head = {
        .dim = s->dim,
        .n_rows = q->n_rows,
        .q = c + (size_t)key * s->dim,
        .k = c + (size_t)(s->n_key_head + key) * s->dim,
        .v = c + (size_t)(2 * s->n_key_head + h) * s->dim,
        .stride = channels,
        .keep = d->keep + (size_t)q->row0 * n + h,
        .beta = d->beta + (size_t)q->row0 * n + h,
        .mix_stride = n,
        .out = b->act[ACT_D] + q->row0 * width + (size_t)h * s->dim,
        .out_stride = width,
    };

    if (q->pos0 == 0)
        memset(m, 0, matrix * sizeof(*m));
    b->kernels->delta_advance(&head, m);
    for (uint32_t r = 0; r < q->n_rows; r++) {
        float *o = head.out + r * width;

        b->kernels->norm(o, k->op->weights->norm, o, s->dim, b->shape.rms_eps);
        b->kernels->silu_mul(d->z + (q->row0 + r) * width + (size_t)h * s->dim, o, o, s->dim);
    }
}

/* The last rows of u, also of steps before, are what the next step's first rows need. */
static void keep_inputs(void *ctx, uint32_t i, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    const struct engine_seq *q = &k->step->host.batch->seq[i];
    uint32_t n = delta_channels(&b->shape.delta), before = b->shape.delta.kernel - 1;
    uint32_t fresh = MIN(q->n_rows, before);
    float *past = state_of(k, i);

    memmove(past, past + (size_t)fresh * n, (size_t)(before - fresh) * n * sizeof(*past));
    memcpy(past + (size_t)(before - fresh) * n,
           b->delta->u + (size_t)(q->row0 + q->n_rows - fresh) * n,
           (size_t)fresh * n * sizeof(*past));
}

int ops_delta(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->host.batch;
    size_t past = (size_t)(b->shape.delta.kernel - 1) * delta_channels(&b->shape.delta);
    struct work k = {s, op};

    assert(b->delta && b->act_width[ACT_D] == inner_of(b));
    for (uint32_t i = 0; i < batch->n_seqs; i++)
        if (batch->seq[i].pos0 == 0)
            memset(state_of(&k, i), 0, past * sizeof(float));
    be_each(b, s->n_rows, convolve_row, &k);
    be_each(b, batch->n_seqs * b->shape.delta.n_value_head, advance_head, &k);
    be_each(b, batch->n_seqs, keep_inputs, &k);
    return 0;
}
