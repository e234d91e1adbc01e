/*
 * recurrent - the ops of layers with a state: grids and arguments of recurrent.cu, and copies of
 * states. A state consists of the states of all layers, consecutively. Slots and the snapshots on
 * the device are one array, snapshots in host memory another.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/ops/recurrent/kernels_recurrent.h"

static const char *scan_lacks(const struct model_shape *s, const struct model_op *op) {
    uint32_t n = s->scan.n_state;

    if (op->recurrent.by_head && n % 16)
        return "Mamba-1 states of heads of other than 16, 32, 64 or 128 values";
    if (n > 128 || (n & (n - 1)) != 0)
        return "Mamba-1 states of other than 4, 8, 16, .. 128 values";
    return NULL;
}

/* Returns the name of a property of a recurrent op that is not supported, or NULL. */
static const char *recurrent_lacks(const struct model_shape *s, const struct model_op *op) {
    bool mamba = s->mamba.n_head > 0;
    uint32_t dim = mamba ? s->mamba.n_state : s->delta.dim;

    assert(s->state.kernel <= STATE_TAPS);
    if (op->kind == OP_SCAN)
        return scan_lacks(s, op);
    if (op->kind == OP_CONV) /* states of a convolution are copied in units of 16 bytes */
        return s->state.n_floats % 4 == 0 ? NULL
                                          : "short convolutions with states that 4 does not divide";
    if (dim == 16 || dim == 32 || dim == 64 || dim == 128)
        return NULL;
    return mamba ? "Mamba-2 states of other than 16, 32, 64 or 128 values"
                 : "delta nets with heads of other than 16, 32, 64 or 128 values";
}

float *recurrent_part(const struct be *b, uint32_t i) {
    return b->recurrent.in[0] + (size_t)i * b->opts->max_rows * (b->shape->state.n_in[0] / 3);
}

/* Returns the states of the op's layer on the device; sequences are state_floats() apart. */
static float *cuda_recurrent_states(const struct be *b, const struct model_op *op) {
    uint32_t layer = op->recurrent.state - b->recurrent.first;

    assert(layer < b->shape->state.n_layer);
    return b->recurrent.state + layer * b->shape->state.n_floats;
}

float *recurrent_more(const struct be *b, const struct model_op *op) {
    const struct state_shape *t = &b->shape->state;

    return b->recurrent.state + t->n_layer * t->n_floats + op->more;
}

/* Returns what the arguments of delta nets and of Mamba-2 have in common. */
static struct state_args state_args(const struct be *b, const struct model_op *op) {
    const struct state_shape *t = &b->shape->state;
    const struct weights *w = op->weights;
    /* Ranks pack after the exchange; a projection that does not follow at once packs its input. */
    bool packs = b->group.n == 1 && op->links.into;
    struct state_args a = {
        .batch = b->head,
        .taps = w->taps,
        .bias = w->conv_bias,
        .dt = w->dt,
        .decay = w->decay,
        .skip = w->skip,
        .norm = w->norm,
        .c = b->recurrent.c,
        .mix = b->recurrent.mix,
        .out = b->recurrent.out,
        .state = cuda_recurrent_states(b, op),
        .stride = state_floats(t),
        .n_taps = t->kernel,
        .eps = b->shape->rms_eps,
        .unit_eps = b->shape->delta.eps,
        .pack = step_pack_args(b, PACK_PLAIN, b->recurrent.out, NULL, packs ? t->n_out : 0),
    };

    for (int i = 0; i < OP_MATRICES; i++)
        a.in[i] = b->recurrent.in[i];
    return a;
}

/* Returns the blocks of a sequence in the kernels of recurrences. */
static uint32_t cuda_recurrent_parts(const struct state_args *a) {
    return a->n_value_head * ((a->dim + DELTA_VALUES - 1) / DELTA_VALUES);
}

int step_state_in(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    const struct weights *w = op->weights;
    const uint32_t n = b->shape->state.n_low;

    if (op->state_in.low != LOW_UP)
        return step_in(s, op);
    TRY(step_pack(s, PACK_PLAIN, b->recurrent.low[0], NULL, n));
    TRY(step_multiply(s, w, false));
    TRY(step_pack(s, PACK_PLAIN, b->recurrent.low[1], NULL, n));
    return step_multiply(s, w->down, false);
}

/* Computes the layer and packs its output for the projection that follows. */
int step_delta(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct delta_shape *d = &b->shape->delta;
    struct state_args a = state_args(b, op);
    uint32_t n_heads = 2 * d->n_key_head + d->n_value_head, warps = CUDA_THREADS / 32;
    bool kda = op->kind == OP_KDA;

    a.n_key_head = d->n_key_head;
    a.n_value_head = d->n_value_head;
    a.n_key = a.dim = d->dim;
    a.k_at = d->n_key_head * d->dim;
    a.v_at = 2 * a.k_at;
    a.n = a.v_at + d->n_value_head * d->dim;
    a.tiled = d->tiled;
    a.joined = op->recurrent.joined;
    a.sigmoid = op->recurrent.sigmoid || kda;
    if (kda) {
        for (uint32_t i = 0; i < 2; i++)
            a.more[i] = recurrent_part(b, i + 1);
        a.keep = b->recurrent.in[2];
        a.lower = d->lower;
    }
    assert(cuda_recurrent_parts(&a) > 0 && a.n_taps > 0 && a.n_taps <= STATE_TAPS &&
           a.dim <= DELTA_DIM);
    TRY(CUDA_LAUNCH(b, delta_in, s->grid.rows, (n_heads + warps - 1) / warps, CUDA_THREADS, &a));
    if (kda)
        TRY(CUDA_LAUNCH(b, kda, s->grid.seqs, cuda_recurrent_parts(&a), DELTA_THREADS, &a));
    else
        TRY(CUDA_LAUNCH(b, delta, s->grid.seqs, cuda_recurrent_parts(&a), DELTA_THREADS, &a));
    return CUDA_LAUNCH(b, delta_out, s->grid.rows, 1, PACK_THREADS, &a);
}

/* Computes the layer and packs its output for the projection that follows. */
int step_mamba(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct mamba_shape *m = &b->shape->mamba;
    struct state_args a = state_args(b, op);

    a.n_key_head = m->n_group;
    a.n_value_head = m->n_head;
    a.n_key = m->n_state;
    a.dim = m->dim;
    a.k_at = m->n_head * m->dim; /* behind x */
    a.q_at = a.k_at + m->n_group * m->n_state;
    a.n = a.q_at + m->n_group * m->n_state;
    assert(m->n_group > 0 && m->n_head % m->n_group == 0);
    TRY(CUDA_LAUNCH(b, mamba_in, s->grid.rows, (a.n + CUDA_THREADS - 1) / CUDA_THREADS,
                    CUDA_THREADS, &a));
    TRY(CUDA_LAUNCH(b, mamba, s->grid.seqs, cuda_recurrent_parts(&a), DELTA_THREADS, &a));
    return CUDA_LAUNCH(b, mamba_out, s->grid.rows, 1, PACK_THREADS, &a);
}

/* Computes the layer; the projection that follows packs its output. */
int step_conv(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct state_shape *m = &b->shape->state;
    const struct conv_args a = {
        .batch = b->head,
        .in = {b->recurrent.in[0], b->recurrent.in[1], b->recurrent.in[2]},
        .taps = op->weights->taps,
        .out = b->recurrent.out,
        .state = cuda_recurrent_states(b, op),
        .stride = state_floats(m),
        .n = m->n_out,
        .n_taps = m->kernel,
    };
    uint32_t parts = (a.n + CUDA_THREADS - 1) / CUDA_THREADS;

    TRY(CUDA_LAUNCH(b, conv, s->grid.rows, parts, CUDA_THREADS, &a));
    return CUDA_LAUNCH(b, conv_keep, s->grid.seqs, parts, CUDA_THREADS, &a);
}

/* Returns the arguments of Mamba-1; the parts of a row of low are t, B, C, or by head B, C, t. */
static struct scan_args cuda_scan_args(const struct be *b, const struct model_op *op) {
    const struct model_shape *m = b->shape;
    const struct weights *w = op->weights;
    uint32_t in = op->recurrent.by_head ? 0 : 1;

    return (struct scan_args){
        .batch = b->head,
        .u = b->recurrent.in[0],
        .z = b->recurrent.in[1],
        .step = b->recurrent.in[2],
        .low = b->recurrent.low[0],
        .taps = w->taps,
        .bias = w->conv_bias,
        .dt = w->dt,
        .decay = w->decay,
        .skip = w->skip,
        .in_norm = w->part_norm[in],
        .out_norm = w->part_norm[in + 1],
        .c = b->recurrent.c,
        .mix = b->recurrent.mix,
        .out = b->recurrent.out,
        .state = cuda_recurrent_states(b, op),
        .stride = state_floats(&m->state),
        .n = m->state.n_out,
        .n_taps = m->state.kernel,
        .n_state = m->scan.n_state,
        .n_rank = m->scan.n_rank,
        .n_behind = op->recurrent.by_head ? 2 * m->scan.n_state : 0,
        .n_head = m->mamba.n_head,
        .eps = m->rms_eps,
    };
}

/* Computes both products, of x and of t, which is at @t in a row of low and has the norm @norm. */
static int scan_products(struct step *s, const struct model_op *op, const struct scan_args *a,
                         uint32_t t, const float *norm) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    uint32_t parts = (a->n + CUDA_THREADS - 1) / CUDA_THREADS;
    struct pack_args x = step_pack_args(b, PACK_PLAIN, a->c, NULL, a->n);
    struct pack_args low = step_pack_args(b, PACK_NORM, a->low + t, norm, a->n_rank);

    x.x_stride = a->n + a->n_behind;
    low.x_stride = b->shape->state.n_low;
    TRY(CUDA_LAUNCH(b, scan_in, s->grid.rows, parts, CUDA_THREADS, a));
    TRY(step_launch_pack(b, s->grid.rows, &x));
    TRY(step_multiply(s, w, false));
    TRY(step_launch_pack(b, s->grid.rows, &low));
    return step_multiply(s, w->down, false);
}

/* Computes the layer by the recurrence of Mamba-2, with one group. */
static int step_scan_heads(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct mamba_shape *m = &b->shape->mamba;
    const struct scan_args in = cuda_scan_args(b, op);
    struct state_args a = state_args(b, op);

    a.n_key_head = 1;
    a.n_value_head = m->n_head;
    a.n_key = m->n_state;
    a.dim = m->dim;
    a.n = a.k_at = in.n; /* B and C are behind x */
    a.q_at = in.n + m->n_state;
    a.n_behind = in.n_behind;
    TRY(scan_products(s, op, &in, in.n_behind, op->weights->part_norm[2]));
    TRY(CUDA_LAUNCH(b, scan_heads, s->grid.rows, 1, CUDA_THREADS, &in));
    TRY(CUDA_LAUNCH(b, mamba, s->grid.seqs, cuda_recurrent_parts(&a), DELTA_THREADS, &a));
    return CUDA_LAUNCH(b, mamba_out, s->grid.rows, 1, PACK_THREADS, &a);
}

/* Computes the layer; the projection that follows packs its output. */
int step_scan(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct scan_args a = cuda_scan_args(b, op);
    uint32_t lanes = a.n * (a.n_state / 4);

    if (op->recurrent.by_head)
        return step_scan_heads(s, op);
    TRY(scan_products(s, op, &a, 0, op->weights->part_norm[0]));
    return CUDA_LAUNCH(b, scan, s->grid.seqs, (lanes + CUDA_THREADS - 1) / CUDA_THREADS,
                       CUDA_THREADS, &a);
}

/* Returns the address of state @i of the device's layers; pinned memory has the same address on the
 * device. */
static uint8_t *state_at(const struct be *b, uint32_t i) {
    const struct recurrent *t = &b->recurrent;
    const struct state_shape *s = &b->shape->state;
    size_t all = b->group.n * s->n_floats, host = t->n_all * all + s->n_more;

    assert(i < t->n_states);
    return (uint8_t *)(i < t->n_device ? t->state + i * state_floats(s)
                                       : t->host_state + (i - t->n_device) * host + t->first * all);
}

void *step_host_state(struct be *b, uint32_t state) {
    assert(state >= b->recurrent.n_device);
    return state_at(b, state);
}

/* @n floats of a layer's state: offset in the rank's own state, and in a state of all ranks. */
struct piece {
    size_t own, all, n;
};

/* Copies a piece of state @src of all layers to @dst. */
static int copy_piece(struct be *b, uint32_t src, uint32_t dst, const struct piece *p) {
    const struct state_shape *s = &b->shape->state;
    bool from_host = src >= b->recurrent.n_device, to_host = dst >= b->recurrent.n_device;
    size_t own = s->n_floats * sizeof(float), all = b->group.n * own;
    const struct copy_args a = {
        .from = state_at(b, src) + (from_host ? p->all : p->own) * sizeof(float),
        .to = state_at(b, dst) + (to_host ? p->all : p->own) * sizeof(float),
        .from_layer = from_host ? all : own,
        .to_layer = to_host ? all : own,
        .page_bytes = p->n * sizeof(float),
    };

    return cuda_copy_pages(b, &a, s->n_layer);
}

/* Copies a rank's value heads of @each floats: from offset @own in its state, @all in that of all
 * ranks. */
static int copy_value_heads(struct be *b, uint32_t src, uint32_t dst, size_t own, size_t all,
                            size_t each) {
    const struct head_pieces h = rank_value_heads(b);

    for (uint32_t i = 0; i < h.n; i++) {
        const struct piece p = {own + i * h.own * each,
                                all + ((size_t)i * h.stride + b->group.rank * h.own) * each,
                                h.own * each};

        TRY(copy_piece(b, src, dst, &p));
    }
    return 0;
}

/* Copies the parts of a rank's heads. A state in host memory has the layout of a single device, so
 * that it can be loaded by any number of devices. */
static int copy_heads(struct be *b, uint32_t src, uint32_t dst) {
    const struct state_shape *s = &b->shape->state;
    const struct delta_shape *d = &b->shape->delta;
    size_t dim = d->dim, keys = d->n_key_head * dim, n = b->group.n, past = s->kernel - 1;

    for (uint32_t t = 0; t < past; t++) {
        size_t own = t * s->n_in[0], all = n * own;

        for (uint32_t i = 0; i < 2; i++) { /* queries, keys */
            const struct piece p = {own + i * keys, all + (i * n + b->group.rank) * keys, keys};

            TRY(copy_piece(b, src, dst, &p));
        }
        TRY(copy_value_heads(b, src, dst, own + 2 * keys, all + 2 * n * keys, dim));
    }
    return copy_value_heads(b, src, dst, past * s->n_in[0], past * n * s->n_in[0], dim * dim);
}

/* Copies the part of a state after the layers, on a device that has all layers. */
static int copy_more(struct be *b, uint32_t src, uint32_t dst) {
    const struct state_shape *s = &b->shape->state;
    size_t at = s->n_layer * s->n_floats * sizeof(float);
    const struct copy_args a = {
        .from = state_at(b, src) + at,
        .to = state_at(b, dst) + at,
        .page_bytes = s->n_more * sizeof(float),
    };

    assert(a.page_bytes % 16 == 0 && b->recurrent.n_all == s->n_layer && b->group.n == 1);
    return CUDA_LAUNCH(b, copy_page, 32, 1, CUDA_THREADS, &a);
}

/* Copies a state layer by layer, like pages. */
int step_copy_state(struct be *b, uint32_t src, uint32_t dst) {
    const struct piece whole = {0, 0, b->shape->state.n_floats};
    bool here = MAX(src, dst) < b->recurrent.n_device;

    if (src == dst)
        return 0;
    if (here || b->group.n == 1)
        TRY(copy_piece(b, src, dst, &whole));
    else
        TRY(copy_heads(b, src, dst));
    return b->shape->state.n_more > 0 ? copy_more(b, src, dst) : 0;
}

static void memory_recurrent(struct be *b) {
    const struct state_shape *s = &b->shape->state;
    size_t rows = b->opts->max_rows, bytes = state_floats(s) * sizeof(float);
    size_t n_heads = MAX(b->shape->delta.n_value_head, b->shape->mamba.n_head);
    bool convolves = n_heads || b->shape->scan.n_state;
    bool by_head = b->shape->scan.n_state && n_heads;
    size_t n_behind = by_head ? 2 * b->shape->scan.n_state : 0;

    if (is_first_device(b) && b->recurrent.n_all) /* values of all ranks */
        memory_add(b, &b->recurrent.host_state, b->recurrent.n_states - b->recurrent.n_device,
                   (b->group.n * b->recurrent.n_all * s->n_floats + s->n_more) * sizeof(float),
                   "states", true);
    if (s->n_layer == 0)
        return;
    for (int i = 0; i < OP_MATRICES; i++)
        memory_add_words(b, &b->recurrent.in[i], i == 3 && by_head ? 0 : rows * s->n_in[i]);
    for (int i = 0; i < 2; i++)
        memory_add_words(b, &b->recurrent.low[i], rows * s->n_low);
    memory_add_words(b, &b->recurrent.c, convolves ? rows * (s->n_in[0] + n_behind) : 0);
    memory_add_words(b, &b->recurrent.mix, rows * 2 * n_heads);
    memory_add_words(b, &b->recurrent.out, rows * s->n_out);
    memory_add(b, &b->recurrent.state, b->recurrent.n_device, bytes, "states", false);
}

const struct op_family recurrent_family = {.scratch = memory_recurrent, .check = recurrent_check};

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

static const char *delta_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    bool mixed = op->recurrent.joined && s->delta.tiled;

    return mixed ? "delta nets with joined betas and tiled heads" : NULL;
}

/* A device has some key heads, and the value heads that use them, which need not be contiguous.
 * w[0] and conv have a row for each channel: queries and keys of the key heads, then values. Other
 * tensors have some rows for each value head; w[2] has betas and alphas if there is no w[3]. */
static struct op_cuts delta_cuts(const struct be *b, const struct model_op *op, uint32_t i) {
    const struct delta_shape *d = &b->shape->delta;
    uint64_t heads = rank_value_heads(b).stride;

    if (i == 0 || i == OP_MATRICES + 1)
        return (struct op_cuts){
            .n = 2, .first = (uint64_t)d->n_key_head * b->group.n * d->dim, .rest = heads * d->dim};
    if (i == 1)
        return (struct op_cuts){.rest = heads * d->dim};
    if (i == 2 && op->kind == OP_STATE_IN && !op->w[3])
        return (struct op_cuts){.rest = heads * 2};
    return (struct op_cuts){.rest = heads};
}

static float *place_state_in(const struct be *b, const struct model_op *op, int i) {
    if (op->state_in.low == LOW_DOWN)
        return b->recurrent.low[i];
    return op->state_in.parts ? recurrent_part(b, (uint32_t)i)
                              : b->recurrent.in[op->state_in.first + i];
}

/* Loads gates and inputs of Mamba-1 by head, which alternate head by head in one tensor, as two
 * matrices. */
static int load_scan_heads(struct be *b, struct weights *w, const struct model_op *op,
                           struct err *err) {
    const struct mamba_shape *m = &b->shape->mamba;

    assert(m->dim % TILE_ROWS == 0);
    for (uint32_t i = 0; i < 2; i++) {
        const struct parts half = {m->n_head, m->dim, 2 * m->dim, i * m->dim, 0};
        float *to = cuda_counts(b) ? NULL : b->recurrent.in[1 - i];

        TRY(load_parts(b, w, op->w[0], &half, NULL, to, err));
    }
    return 0;
}

static int load_state_in(struct be *b, struct weights *w, const struct model_op *op,
                         struct err *err) {
    if (b->shape->scan.n_state && b->shape->mamba.n_head)
        return load_scan_heads(b, w, op, err);
    if (op->state_in.low == LOW_UP)
        return load_apart(b, w, op, err);
    return load_matrices(b, w, op, err);
}

static int load_recurrent(struct be *b, struct weights *w, const struct model_op *op,
                          struct err *err) {
    const struct op_recurrent *r = &op->recurrent;
    const struct tensor *const conv[] = {r->conv, r->conv_more[0], r->conv_more[1]};

    TRY(load_vector(b, r->dt, &w->dt, err));
    TRY(load_vector(b, r->decay, &w->decay, err));
    TRY(load_vector(b, r->skip, &w->skip, err));
    TRY(load_vector(b, r->conv_bias, &w->conv_bias, err));
    return load_decoded(b, conv, r->conv_more[0] ? 3 : 1, &w->taps, err);
}

static int load_scan(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    for (int i = 0; i < 3; i++)
        TRY(load_vector(b, op->recurrent.part_norm[i], &w->part_norm[i], err));
    TRY(load_recurrent(b, w, op, err));
    return load_apart(b, w, op, err);
}

const struct op_code cuda_op_state_in = {
    .run = step_state_in,
    .load = load_state_in,
    .place = place_state_in,
    .adds = CUDA_ADDITIONS,
    .division = {CUT_ROWS, .cuts = delta_cuts},
};

const struct op_code cuda_op_delta = {
    .run = step_delta,
    .lacks = recurrent_lacks,
    .load = load_recurrent,
    .family = &recurrent_family,
    .division = {CUT_ROWS, .lacks = delta_divided_lacks, .cuts = delta_cuts},
};

const struct op_code cuda_op_kda = {
    .run = step_delta,
    .lacks = recurrent_lacks,
    .load = load_recurrent,
    .family = &recurrent_family,
};

const struct op_code cuda_op_conv = {
    .run = step_conv,
    .lacks = recurrent_lacks,
    .load = load_recurrent,
    .family = &recurrent_family,
};

const struct op_code cuda_op_mamba = {
    .run = step_mamba,
    .lacks = recurrent_lacks,
    .load = load_recurrent,
    .family = &recurrent_family,
};

const struct op_code cuda_op_scan = {
    .run = step_scan,
    .lacks = recurrent_lacks,
    .load = load_scan,
    .out = {BE_AT(recurrent.low[0]), BE_AT(recurrent.in[2])},
    .family = &recurrent_family,
};
