/*
 * ranks - a model on several devices of one machine (docs/cuda-kernels.md, Several devices).
 *
 * Every matrix is divided by its rows, so that each value of a product is computed by one device
 * exactly as one device alone computes it: rank r has heads [r n / N, (r + 1) n / N) of queries,
 * keys and values, with their part of every page, and the like columns of the FFN, of x and of the
 * logits. What takes a whole row needs the columns of all ranks: they are exchanged behind
 * attention, behind both projections and behind the FFN's gates, as single precision, before the
 * row is packed.
 *
 *     embed (rank 0) --x--> all: norm, pack, q k v, attend --o--> pack, output --x--> norm, pack,
 *     gate, up, glu --h--> pack, down --x--> ... norm, pack, logits --> rank 0: sampling
 *
 * An exchange: each stream records its event, waits for the others', and copies what the others
 * have to its own memory. Nothing is written by another device's stream. A rank may overwrite what
 * it gave only when all have copied it: that is so once another exchange has begun, since its
 * events lie behind those copies. So what is exchanged twice in a row needs a meeting in between,
 * which only rounds of logits do.
 *
 * One thread enqueues for all. Each rank has the whole of every vector, and buffers for whole rows.
 */

#include "engine/cuda/ranks.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranks {
    uint32_t n; /* open */
    struct be *be[RANKS];
};

/* What is exchanged. */
enum gathered { GATHER_O, GATHER_H, GATHER_X, GATHER_LOGITS };

/* The first of @n columns, or rows of a matrix, that are rank @r's. */
static uint32_t cut(const struct ranks *k, uint64_t n, uint32_t r) {
    return (uint32_t)(n * r / k->n);
}

/* All are lost as @b is. */
static int lose(struct ranks *k, const struct be *b) {
    for (uint32_t r = 0; r < k->n && b->lost; r++) {
        struct be *other = k->be[r];

        if (!other->lost)
            snprintf(other->error, sizeof(other->error), "device %d: %.180s", b->number, b->error);
        other->lost = true;
        other->stuck |= b->stuck;
    }
    return -EIO;
}

/* The thread enqueues for rank @r from now on. */
static int use(struct ranks *k, uint32_t r) {
    struct be *b = k->be[r];

    return cuda_check(b, b->api->use(b->number), "cudaSetDevice") < 0 ? lose(k, b) : 0;
}

static struct step *step_of(const struct step *s, uint32_t r) {
    return &s->be->ranks->be[r]->step[s->batch->step % 2];
}

/* Rank @r's part of an op. */
static struct model_op part_of(const struct ranks *k, const struct model_op *op, uint32_t r) {
    struct model_op part = *op;

    part.heads.n /= k->n;
    part.heads.n_kv /= k->n;
    part.kv.at /= k->n;
    part.weights = op->weights ? op->weights->rank[r] : NULL;
    return part;
}

/* Each rank's part of @op by @run, the first one's last. */
static int each(struct step *s, const struct model_op *op,
                int (*run)(struct step *s, const struct model_op *op)) {
    struct ranks *k = s->be->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        const struct model_op part = part_of(k, op, i);

        r = use(k, i);
        if (r == 0 && run(step_of(s, i), &part) < 0)
            r = lose(k, k->be[i]);
    }
    return r;
}

/* -- exchanges --------------------------------------------------------------------------------- */

/* What follows on any device waits for all that was enqueued so far. */
static int meet(struct ranks *k) {
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct be *b = k->be[i];

        r = use(k, i);
        if (r == 0 &&
            cuda_check(b, b->api->event_record(b->ready, b->stream), "cudaEventRecord") < 0)
            r = lose(k, b);
    }
    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct be *b = k->be[i];

        r = use(k, i);
        for (uint32_t j = 0; j < k->n && r == 0; j++)
            if (j != i && cuda_check(b, b->api->event_wait(k->be[j]->ready, b->stream),
                                     "cudaStreamWaitEvent") < 0)
                r = lose(k, b);
    }
    return r;
}

/* Columns from @column on, of rows of @n_row values in the memory of rank @rank. */
struct columns {
    float *at;
    uint32_t column, n_row, rank;
};

/* @n columns of @n_rows rows, in the order of the stream of the rank that takes them. */
static int copy_columns(struct ranks *k, const struct columns *to, const struct columns *from,
                        uint32_t n, uint32_t n_rows) {
    struct be *b = k->be[to->rank];
    const struct cuda_rows here = {to->at + to->column, to->n_row * sizeof(float), b->number};
    const struct cuda_rows there = {from->at + from->column, from->n_row * sizeof(float),
                                    k->be[from->rank]->number};

    assert(to->column + n <= to->n_row && from->column + n <= from->n_row);
    if (n == 0 || n_rows == 0)
        return 0;
    int e = b->api->copy_rows(&here, &there, n * sizeof(float), n_rows, b->stream);
    return cuda_check(b, e, "cudaMemcpy3DPeerAsync") < 0 ? lose(k, b) : 0;
}

/* A rank's columns, and where all of them go. */
static float *own_of(const struct be *b, enum gathered what) {
    return what == GATHER_O   ? b->o
           : what == GATHER_H ? b->gate
           : what == GATHER_X ? b->own_x
                              : b->z;
}

static float *whole_of(const struct be *b, enum gathered what) {
    return what == GATHER_O   ? b->q /* free behind attention */
           : what == GATHER_H ? b->up
           : what == GATHER_X ? b->x
                              : b->logits;
}

/* Columns of all ranks, @n in all, to each rank; logits to the first. */
static int gather(struct ranks *k, enum gathered what, uint32_t n, uint32_t n_rows) {
    int r = meet(k);

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = use(k, i);
        for (uint32_t j = 0; j < k->n && r == 0 && (i == 0 || what != GATHER_LOGITS); j++) {
            uint32_t first = cut(k, n, j), n_own = cut(k, n, j + 1) - first;
            const struct columns to = {whole_of(k->be[i], what), first, n, i};
            const struct columns from = {own_of(k->be[j], what), 0, n_own, j};

            r = copy_columns(k, &to, &from, n_own, n_rows);
        }
    }
    return r;
}

/* -- opening ----------------------------------------------------------------------------------- */

/* What of an op whose kind is in the table several devices do not compute, in words, or NULL. */
static const char *ranks_lack(const struct model_op *op) {
    bool plain = !op->post_norm && !op->branch && op->gain == 1 && op->scale == 1;

    switch (op->kind) {
    case OP_EMBED:
        return op->w[1] || op->w[2] ? "embeddings of this kind on several devices" : NULL;
    case OP_QKV:
        return !op->w[1] || op->gated || op->norm_all
                   ? "queries, keys and values of this kind on several devices"
                   : NULL;
    case OP_ATTEND:
        return op->sinks || op->attn.window ? "windows and sinks on several devices" : NULL;
    case OP_PROJ:
        return !plain || (op->in != ACT_O && op->in != ACT_H)
                   ? "norms and factors behind branches on several devices"
                   : NULL;
    case OP_GATE_UP:
        return op->w[1] == op->w[0] || !op->w[1] ? "FFNs of this kind on several devices" : NULL;
    default:
        return NULL;
    }
}

/* -EINVAL where key heads do not divide. */
static int check_heads(const struct model_shape *s, uint32_t n, struct err *err) {
    if (s->n_head_kv % n == 0)
        return 0;
    return err_set(err, 0, "devices", "%u devices do not divide the %u key heads of the model", n,
                   s->n_head_kv);
}

/* The least of a rank's room, for each. */
static int room_ranks(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                      struct err *err) {
    uint32_t number[ENGINE_DEVICES], n = devices_of(o, number);
    uint64_t least = UINT64_MAX, room = 0;
    int r = check_heads(shape, n, err);

    for (uint32_t i = n; i-- > 0 && r == 0;) {
        const struct rank rank = {(int)number[i], i, n};

        r = cuda_room(shape, o, &rank, &room, err);
        least = MIN(least, room);
    }
    *bytes = n * least;
    return r;
}

/* Of two families results differ. */
static int check_family(const struct ranks *k, struct err *err) {
    for (uint32_t i = 1; i < k->n; i++)
        if (strcmp(k->be[i]->isa, k->be[0]->isa) != 0)
            return err_set(err, 0, "devices", "devices of two kinds, %s and %s: results differ",
                           k->be[0]->isa, k->be[i]->isa);
    return 0;
}

/* The ways between devices, events, and what the first has for all. */
static int join(struct ranks *k) {
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct be *b = k->be[i];

        r = use(k, i);
        if (r == 0)
            r = cuda_check(b, b->api->event_new(&b->ready), "cudaEventCreate");
        for (uint32_t j = 0; j < k->n && r == 0; j++)
            if (j != i)
                r = cuda_check(b, b->api->reach(b->number, k->be[j]->number),
                               "cudaDeviceEnablePeerAccess");
        if (r < 0)
            return lose(k, b);
        b->host_pages = k->be[0]->host_pages;
    }
    return r;
}

/* From the last to the first, which says what is left out. */
static int open_all(struct ranks *k, const struct be_opts *o, struct err *err) {
    uint32_t number[ENGINE_DEVICES], n = devices_of(o->engine, number);
    int r = check_heads(o->shape, n, err);

    for (uint32_t i = 0; i < n && r == 0; i++) {
        const struct rank rank = {(int)number[i], i, n};
        struct be *b;

        r = cuda_open(&b, o, &rank, err);
        if (r < 0)
            return r;
        k->be[k->n++] = b;
        b->ranks = k;
        if (!k->be[0]->note[0])
            memcpy(k->be[0]->note, b->note, sizeof(b->note));
        size_t at = strlen(b->device.name);
        snprintf(b->device.name + at, sizeof(b->device.name) - at, " (device %u)", number[i]);
    }
    r = r < 0 ? r : check_family(k, err);
    r = r < 0 ? r : join(k);
    if (r == -EIO)
        err_set(err, 0, NULL, "opening the devices: %s", k->be[0]->error);
    return r;
}

/* All streams come to their end before memory that another copies from is given back. */
static void close_all(struct ranks *k) {
    for (uint32_t i = 0; i < k->n; i++)
        if (!k->be[i]->stuck)
            k->be[i]->api->stream_wait(k->be[i]->stream);
    for (uint32_t i = k->n; i-- > 0;) {
        struct be *b = k->be[i];

        b->api->use(b->number);
        if (b->ready && !b->stuck)
            b->api->event_free(b->ready);
        cuda_close(b);
    }
    free(k);
}

static int open_ranks(struct be **out, const struct be_opts *o, struct err *err) {
    struct ranks *k = calloc(1, sizeof(*k));

    if (!k)
        return -ENOMEM;
    int r = open_all(k, o, err);
    if (r < 0) {
        close_all(k);
        return r;
    }
    *out = k->be[0];
    snprintf(k->be[0]->isa + strlen(k->be[0]->isa), 4, " x%u", k->n);
    return 0;
}

static struct be *close_ranks(struct be *b) {
    if (b)
        close_all(b->ranks);
    return NULL;
}

/* None: they are those of few rows, which several devices compute as they do many. */
static bool variant(struct be *b, uint32_t i, bool use, const char **name) {
    return false;
}

/* -- loading ----------------------------------------------------------------------------------- */

/* Rank @r's rows of a matrix, or values of a vector; NULL stays NULL. */
static const struct tensor *slice(const struct ranks *k, const struct tensor *t, uint32_t r,
                                  struct tensor *out) {
    if (!t)
        return NULL;
    int d = t->n_dims > 1 ? 1 : 0;
    size_t each = t->n_bytes / t->ne[d];
    uint32_t first = cut(k, t->ne[d], r);

    *out = *t;
    out->ne[d] = cut(k, t->ne[d], r + 1) - first;
    out->data += first * each;
    out->n_bytes = out->ne[d] * each;
    return out;
}

static int load_part(struct ranks *k, const struct model_op *op, uint32_t r, struct weights **out,
                     struct err *err) {
    struct tensor w[OP_MATRICES], bias[OP_MATRICES];
    struct model_op part = part_of(k, op, r);

    for (int i = 0; i < OP_MATRICES && op->kind != OP_EMBED; i++) {
        part.w[i] = slice(k, op->w[i], r, &w[i]);
        part.bias[i] = slice(k, op->bias[i], r, &bias[i]);
    }
    int e = use(k, r);
    e = e < 0 ? e : cuda_load(k->be[r], &part, out, err);
    return e == -EIO ? lose(k, k->be[r]) : e;
}

/* The tiles of a matrix have one unit, which the largest scale of all ranks decides. */
static int scale_parts(struct ranks *k, struct weights *const part[RANKS]) {
    int r = 0;

    for (uint32_t m = 0; m < part[0]->n_mats; m++) {
        float most = 0;

        for (uint32_t i = 0; i < k->n; i++)
            most = MAX(most, part[i]->most[m]);
        for (uint32_t i = k->n; i-- > 0 && r == 0;) {
            struct matrix *matrix = &part[i]->m[m];

            r = use(k, i);
            if (r == 0 && cuda_scale_tiles(k->be[i], matrix, matrix->n_row_tiles, most) < 0)
                r = lose(k, k->be[i]);
        }
    }
    return r;
}

/* The embedding is the first one's alone. */
static int load_ranks(struct be *b, const struct model_op *op, struct weights **out,
                      struct err *err) {
    struct weights *part[RANKS] = {NULL};
    struct ranks *k = b->ranks;
    int r = 0;

    for (uint32_t i = op->kind == OP_EMBED ? 1 : k->n; i-- > 0 && r == 0;)
        r = load_part(k, op, i, &part[i], err);
    r = r < 0 || op->kind == OP_EMBED ? r : scale_parts(k, part);
    if (r == -EIO)
        err_set(err, 0, NULL, "loading weights: %s", b->error);
    if (r < 0)
        return r;
    memcpy(part[0]->rank, part, sizeof(part));
    *out = part[0];
    return 0;
}

/* -- steps ------------------------------------------------------------------------------------- */

static int begin_ranks(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct ranks *k = b->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = use(k, i);
        if (r == 0 && step_begin(k->be[i], batch, out) < 0)
            r = lose(k, k->be[i]);
    }
    return r;
}

/* x of the first to the others, and each rank's columns where its products are added. */
static int embed_ranks(struct step *s, const struct model_op *op) {
    struct ranks *k = s->be->ranks;
    uint32_t n = s->be->shape->n_embd, n_rows = s->grid.rows;
    const struct model_op part = part_of(k, op, 0);
    const struct columns first = {s->be->x, 0, n, 0};
    int r = step_embed(s, &part) < 0 ? lose(k, s->be) : meet(k);

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct be *b = k->be[i];
        uint32_t at = cut(k, n, i), n_own = cut(k, n, i + 1) - at;
        const struct columns x = {b->x, 0, n, i}, from = {b->x, at, n, i};
        const struct columns own = {b->own_x, 0, n_own, i};

        r = use(k, i);
        if (r == 0 && i > 0)
            r = copy_columns(k, &x, &first, n, n_rows);
        r = r < 0 ? r : copy_columns(k, &own, &from, n_own, n_rows);
    }
    return r;
}

static int qkv_ranks(struct step *s, const struct model_op *op) {
    return each(s, op, step_qkv);
}

static int attend_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, step_attend);

    return r < 0 ? r : gather(s->be->ranks, GATHER_O, op->heads.n * op->heads.dim, s->grid.rows);
}

static int proj(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    enum gathered in = op->in == ACT_H ? GATHER_H : GATHER_O;

    assert(!s->packed && !s->held && !s->due && s->be->fuse == 0);
    int r = step_pack(s, PACK_PLAIN, whole_of(b, in), NULL, op->weights->n_in);

    return r < 0 ? r : step_multiply(s, op->weights, true);
}

static int proj_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, proj);

    return r < 0 ? r : gather(s->be->ranks, GATHER_X, s->be->shape->n_embd, s->grid.rows);
}

static int gate_up(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct launch l = {kernel_glu, s->grid.rows, 1, CUDA_THREADS, "glu", 0};
    int r = step_gate_up(s, op);
    const struct glu_args a = {b->head, b->gate, b->up, op->weights->m[0].n_out, s->ff.kind};

    assert(r < 0 || (s->ff.kind >= PACK_SILU && !s->packed));
    return r < 0 ? r : cuda_launch(b, &l, &a, sizeof(a));
}

static int gate_up_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, gate_up);

    return r < 0 ? r : gather(s->be->ranks, GATHER_H, (uint32_t)op->w[0]->ne[1], s->grid.rows);
}

static int logits_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, step_pack_wanted);

    return r < 0 ? r : step_logit_rows(s, 0, MIN(s->grid.wants, LOGIT_ROWS));
}

/* What the round before left in be.z may still be copied. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n) {
    struct ranks *k = s->be->ranks;
    int r = first > 0 ? meet(k) : 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct step *part = step_of(s, i);
        const struct operand x = step_wanted(part, first, n);

        r = use(k, i);
        if (r == 0 && cuda_matmul(k->be[i], part->head, &x, false) < 0)
            r = lose(k, k->be[i]);
    }
    return r < 0 ? r : gather(k, GATHER_LOGITS, s->be->shape->n_vocab, n);
}

static int sample_ranks(struct step *s) {
    struct ranks *k = s->be->ranks;
    int r = step_sample(s) < 0 ? lose(k, s->be) : 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = use(k, i);
        if (r == 0 && i > 0 && step_record(step_of(s, i)) < 0)
            r = lose(k, k->be[i]);
    }
    return r;
}

static int end_ranks(struct step *s, struct engine_result *out) {
    struct ranks *k = s->be->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 1 && r == 0;) {
        r = use(k, i);
        if (r == 0 && step_wait(step_of(s, i)) < 0)
            r = lose(k, k->be[i]);
    }
    r = r < 0 ? r : use(k, 0);
    return r == 0 && step_end(s, out) < 0 ? lose(k, s->be) : r;
}

static int copy_ranks(struct be *b, const struct engine_copy *c) {
    struct ranks *k = b->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = use(k, i);
        if (r == 0 && step_copy(k->be[i], c) < 0)
            r = lose(k, k->be[i]);
    }
    return r;
}

/* -- the table --------------------------------------------------------------------------------- */

static const struct be_ops *one_device;

static const char *lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = ranks_lack(op);

    return what ? what : one_device->lacks(s, op);
}

static bool proving(struct be *b, bool on) {
    return cuda_selftest_wanted();
}

const struct be_ops *ranks_ops(const struct be_ops *one) {
    static struct be_ops all;

    one_device = one;
    all = *one;
    all.room = room_ranks;
    all.open = open_ranks;
    all.close = close_ranks;
    all.variant = variant;
    all.proving = proving;
    all.picks = NULL;
    all.lacks = lacks;
    all.load = load_ranks;
    all.begin = begin_ranks;
    memset(all.run, 0, sizeof(all.run));
    all.run[OP_EMBED] = embed_ranks;
    all.run[OP_QKV] = qkv_ranks;
    all.run[OP_ATTEND] = attend_ranks;
    all.run[OP_PROJ] = proj_ranks;
    all.run[OP_GATE_UP] = gate_up_ranks;
    all.run[OP_LOGITS] = logits_ranks;
    all.sample = sample_ranks;
    all.end = end_ranks;
    all.copy = copy_ranks;
    all.copy_state = NULL;
    all.host_state = NULL;
    return &all;
}
