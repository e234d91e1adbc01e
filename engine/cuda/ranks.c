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
 * Experts are divided likewise, each of them; all ranks have the router and pick alike, and what is
 * exchanged is h of the pairs.
 *
 * An exchange: each stream records its event and waits for the others'. What packs the rows then
 * reads the others' columns where they lie; where a device does not reach another's memory, copies
 * bring them to its own before. Nothing is written by another device's stream. A rank may overwrite
 * what it gave only when all have read it: that is so once another exchange has begun, since its
 * events lie behind that. So what is exchanged twice in a row needs a meeting in between, which
 * only rounds of logits do. The others wait for nothing when logits go to the first, nor it when
 * it has embedded: with wants all have x by then, and without them it is of no use.
 *
 * Kernels, records and waits are what graphs may be made of (graph.c); copies between devices that
 * do not reach each other are not known to be, so without a way there are none.
 *
 * One thread enqueues for all. Each rank has buffers for whole rows; x is whole on none.
 */

#include "engine/cuda/ranks.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct be_ops *one_device;

struct ranks {
    uint32_t n; /* open */
    struct be *be[RANKS];
    bool direct; /* each device reads the others' memory */
};

static const struct meeting all_meet = {UINT32_MAX, UINT32_MAX};
static const struct meeting to_first = {OTHER_RANKS, FIRST_RANK};
static const struct meeting from_first = {FIRST_RANK, OTHER_RANKS};

/* What is exchanged; E: of pairs of a row and an expert what GATHER_H is of rows. */
enum gathered { GATHER_O, GATHER_H, GATHER_X, GATHER_E, GATHER_LOGITS };

static uint32_t cut(const struct ranks *k, uint64_t n, uint32_t r) {
    return rank_cut(n, r, k->n);
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

/* The thread enqueues for rank @r from now on; nothing, where all of the step is a graph. */
static int use(struct ranks *k, uint32_t r) {
    struct be *b = k->be[r];

    if (b->first->graphs.replaying)
        return b->lost ? -EIO : 0;
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

int ranks_meet(struct ranks *k, const struct meeting *m, struct be **failed) {
    const struct cuda_api *api = k->be[0]->api;
    uint32_t i = k->n;
    int e = 0;

    while (e == 0 && i-- > 0) {
        if (!(m->of >> i & 1))
            continue;
        e = api->use(k->be[i]->number);
        e = e ? e : api->event_record(k->be[i]->ready, k->be[i]->stream);
    }
    if (e == 0)
        i = k->n;
    while (e == 0 && i-- > 0) {
        if (!(m->by >> i & 1))
            continue;
        e = api->use(k->be[i]->number);
        for (uint32_t j = 0; j < k->n && e == 0; j++)
            if (j != i && m->of >> j & 1)
                e = api->event_wait(k->be[j]->ready, k->be[i]->stream);
    }
    if (e && failed)
        *failed = k->be[i];
    return e;
}

static int meet_now(struct ranks *k, const struct meeting *m) {
    struct be *failed = NULL;
    int e = k->be[0]->lost ? 0 : ranks_meet(k, m, &failed);

    for (uint32_t i = 0; i < k->n; i++)
        k->be[i]->met |= m->by >> i & 1;
    if (e)
        cuda_check(failed, e, "cudaEventRecord, cudaStreamWaitEvent");
    return e ? lose(k, failed) : k->be[0]->lost ? -EIO : 0;
}

/* Likewise as a part of the step. */
static int meet(struct ranks *k, const struct meeting *m) {
    struct be *first = k->be[0];

    if (first->graphs.replaying)
        return first->lost ? -EIO : 0;
    if (first->graphs.noting)
        graph_note(first, NOTE_MEETING, NULL, false, m, sizeof(*m));
    return meet_now(k, m);
}

/* Columns of rows in the memory of rank @rank: @n of them, which @first and those behind it
 * become. */
struct columns {
    const float *at;
    uint32_t rank, first, n, n_row;
};

static int copy_columns(struct ranks *k, uint32_t rank, float *to, uint32_t n_to,
                        const struct columns *from, uint32_t n_rows) {
    struct be *b = k->be[rank];
    const struct cuda_rows here = {to + from->first, n_to * sizeof(float), b->number};
    const struct cuda_rows there = {(float *)from->at, from->n_row * sizeof(float),
                                    k->be[from->rank]->number};

    assert(from->first + from->n <= n_to && from->n <= from->n_row);
    if (from->n == 0 || n_rows == 0)
        return 0;
    int e = b->api->copy_rows(&here, &there, from->n * sizeof(float), n_rows, b->stream);
    return cuda_check(b, e, "cudaMemcpy3DPeerAsync") < 0 ? lose(k, b) : 0;
}

static struct shares shares_of(uint32_t n, const struct columns *from, uint32_t n_shares) {
    struct shares all = {.n = n, .n_shares = n_shares};

    assert(n_shares > 0 && n_shares <= RANKS && from[0].first == 0);
    for (uint32_t i = 0; i < n_shares; i++)
        all.share[i] = (struct share){from[i].at, from[i].first, from[i].n_row};
    return all;
}

/* @n columns, in parts, to @to in the memory of rank @rank, in the order of its stream. @count: as
 * in struct gather_args, of at most @n_rows. */
static int take(struct ranks *k, uint32_t rank, float *to, uint32_t n, const struct columns *from,
                uint32_t n_shares, const uint32_t *count, uint32_t n_rows) {
    struct be *b = k->be[rank];
    const struct gather_args a = {count, to, shares_of(n, from, n_shares)};
    const struct launch l = {.kernel = kernel_gather,
                             .grid_x = (n + GATHER_COLUMNS - 1) / GATHER_COLUMNS,
                             .grid_y = n_rows,
                             .n_threads = CUDA_THREADS,
                             .what = "gather"};
    int r = use(k, rank);

    for (uint32_t i = 0; i < n_shares && r == 0 && !k->direct; i++)
        r = copy_columns(k, rank, to, n, &from[i], n_rows);
    if (r < 0 || !k->direct)
        return r;
    return cuda_launch(b, &l, &a, sizeof(a)) < 0 ? lose(k, b) : 0;
}

/* A rank's columns, and where all of them go; logits go to the first one's. */
static float *own_of(const struct be *b, enum gathered what) {
    return what == GATHER_O   ? b->o
           : what == GATHER_H ? b->gate
           : what == GATHER_X ? b->own_x
           : what == GATHER_E ? b->experts.gate
                              : b->z;
}

static float *whole_of(const struct be *b, enum gathered what) {
    assert(what != GATHER_LOGITS || b == b->first);
    return what == GATHER_O   ? b->q /* free behind attention */
           : what == GATHER_H ? b->up
           : what == GATHER_X ? b->x
           : what == GATHER_E ? b->experts.up
                              : b->logits;
}

/* Of @n columns, those that each rank has. */
static void columns_of(const struct ranks *k, enum gathered what, uint32_t n,
                       struct columns out[RANKS]) {
    for (uint32_t j = 0; j < k->n; j++) {
        uint32_t first = cut(k, n, j), n_own = cut(k, n, j + 1) - first;

        out[j] = (struct columns){own_of(k->be[j], what), j, first, n_own, n_own};
    }
}

/* Columns of all ranks, @n in all, to rank @rank. */
static int take_all(struct ranks *k, uint32_t rank, enum gathered what, uint32_t n,
                    const uint32_t *count, uint32_t n_rows) {
    struct columns from[RANKS];

    columns_of(k, what, n, from);
    return take(k, rank, whole_of(k->be[rank], what), n, from, k->n, count, n_rows);
}

/* Rows of the step, as @b's device knows them. */
static const uint32_t *n_rows_of(const struct be *b) {
    return &b->head->n_rows;
}

/* What each rank has may be packed by all; copies are where all columns go. */
static int exchange(struct step *s, enum gathered what, uint32_t n) {
    struct ranks *k = s->be->ranks;
    uint32_t each = what == GATHER_E ? s->be->shape->n_expert_used : 1;
    int r = meet(k, &all_meet);

    for (uint32_t i = k->n; i-- > 0 && r == 0 && !k->direct;)
        r = take_all(k, i, what, n, NULL, s->grid.rows * each);
    return r;
}

int ranks_pack(struct be *b, uint32_t n_rows, const struct pack_args *a) {
    const struct ranks *k = b->ranks;
    const struct launch l = {kernel_pack_shares, n_rows, 1, PACK_THREADS, "pack_shares", 0};
    enum gathered what = GATHER_O;
    struct columns from[RANKS] = {{a->x, b->rank, 0, a->n, a->n}};

    while (what < GATHER_LOGITS && a->x != whole_of(b, what))
        what++;
    assert(what < GATHER_LOGITS && a->kind <= PACK_NORM && !a->x_stride);
    if (k->direct)
        columns_of(k, what, a->n, from);
    const struct pack_shares_args shares = {*a, shares_of(a->n, from, k->direct ? k->n : 1)};
    return cuda_launch(b, &l, &shares, sizeof(shares));
}

int ranks_whole_x(struct step *s) {
    struct be *b = s->be;

    assert(b == b->first);
    return !b->ranks->direct
               ? 0
               : take_all(b->ranks, 0, GATHER_X, b->shape->n_embd, n_rows_of(b), s->batch->n_rows);
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
    case OP_EXPERTS:
        return op->joined || op->branch || op->post_norm || op->norm || op->w[1] == op->w[0]
                   ? "experts of this kind on several devices"
                   : NULL;
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

    k->direct = true;
    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct be *b = k->be[i];

        r = use(k, i);
        if (r == 0)
            r = cuda_check(b, b->api->event_new(&b->ready), "cudaEventCreate");
        for (uint32_t j = 0; j < k->n && r == 0; j++) {
            bool direct = true;

            if (j != i)
                r = cuda_check(b, b->api->reach(b->number, k->be[j]->number, &direct),
                               "cudaDeviceEnablePeerAccess");
            k->direct = k->direct && direct;
        }
        if (r < 0)
            return lose(k, b);
        b->host_pages = k->be[0]->host_pages;
        b->first = k->be[0];
    }
    if (!k->direct)
        graph_close(k->be[0]);
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
    if (k->n > 0 && !k->be[0]->stuck)
        graph_close(k->be[0]);
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

/* Those of one device, on all. */
static bool variant(struct be *b, uint32_t i, bool use, const char **name) {
    bool there = true;

    for (uint32_t r = 0; r < b->ranks->n && there; r++)
        there = one_device->variant(b->ranks->be[r], i, use, name);
    return there;
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

/* Each has the router, and cuts experts itself: a rank has some rows of every one. */
static int load_part(struct ranks *k, const struct model_op *op, uint32_t r, struct weights **out,
                     struct err *err) {
    struct tensor w[OP_MATRICES], bias[OP_MATRICES], sinks;
    struct model_op part = part_of(k, op, r);

    bool whole = op->kind == OP_EMBED || op->kind == OP_ROUTE || op->kind == OP_EXPERTS;
    part.sinks = slice(k, op->sinks, r, &sinks);
    for (int i = 0; i < OP_MATRICES && !whole; i++) {
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
            if (r == 0 && cuda_scale_tiles(k->be[i], matrix,
                                           matrix->n_row_tiles * part[i]->n_experts, most) < 0)
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

/* All of the step as one launch on the first device. */
static int launch_graph(struct ranks *k, struct step *s) {
    struct be *b = s->be;
    int r = meet_now(k, &to_first);

    if (r == 0 && graph_launch(s) < 0)
        r = lose(k, b);
    r = r < 0 ? r : meet_now(k, &from_first);
    if (r == 0 && cuda_check(b, b->api->use(b->number), "cudaSetDevice") < 0)
        r = lose(k, b);
    return r;
}

static int begin_ranks(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct ranks *k = b->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = use(k, i);
        if (r == 0 && step_upload(k->be[i], batch, out) < 0)
            r = lose(k, k->be[i]);
    }
    if (r < 0 || batch->n_rows == 0)
        return r;
    bool graph = graph_begin(*out);
    for (uint32_t i = 1; i < k->n; i++)
        graph_follow(step_of(*out, i), *out);
    if (graph)
        return launch_graph(k, *out);
    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        k->be[i]->met = true; /* uploads, or the beginning of a capture */
        r = use(k, i);
        if (r == 0 && step_start(step_of(*out, i)) < 0)
            r = lose(k, k->be[i]);
    }
    return r;
}

/* Each rank's columns of the first one's x to where its products are added; by copies all of it
 * goes to all. */
static int embed_ranks(struct step *s, const struct model_op *op) {
    struct ranks *k = s->be->ranks;
    uint32_t n = s->be->shape->n_embd, n_rows = s->grid.rows;
    const struct model_op part = part_of(k, op, 0);
    int r = step_embed(s, &part) < 0 ? lose(k, s->be) : meet(k, &from_first);

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct be *b = k->be[i], *at = k->direct ? s->be : b;
        uint32_t first = cut(k, n, i), n_own = cut(k, n, i + 1) - first;
        const struct columns x = {s->be->x, 0, 0, n, n};
        const struct columns own = {at->x + first, at->rank, 0, n_own, n};

        r = i == 0 || k->direct ? 0 : take(k, i, b->x, n, &x, 1, NULL, n_rows);
        r = r < 0 ? r : take(k, i, b->own_x, n_own, &own, 1, n_rows_of(b), n_rows);
    }
    return r < 0 || !k->direct ? r : meet(k, &all_meet);
}

static int qkv_ranks(struct step *s, const struct model_op *op) {
    return each(s, op, step_qkv);
}

static int attend_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, step_attend);

    return r < 0 ? r : exchange(s, GATHER_O, op->heads.n * op->heads.dim);
}

static int proj(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    enum gathered in = op->in == ACT_H ? GATHER_H : GATHER_O;

    assert(!s->packed && !s->held && !s->due);
    int r = step_pack(s, PACK_PLAIN, whole_of(b, in), NULL, op->weights->n_in);

    return r < 0 ? r : step_multiply(s, op->weights, true);
}

static int proj_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, proj);

    return r < 0 ? r : exchange(s, GATHER_X, s->be->shape->n_embd);
}

/* Columns of h, by the product itself where it has both gates and ups. */
static int gate_up(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct launch l = {kernel_glu, s->grid.rows, 1, CUDA_THREADS, "glu", 0};
    int r = step_gate_up(s, op);
    const struct glu_args a = {b->head, b->gate, b->up, op->weights->m[0].n_out, s->ff.kind, 1};

    assert(r < 0 || !s->packed);
    return r < 0 || s->ff.kind == PACK_PLAIN ? r : cuda_launch(b, &l, &a, sizeof(a));
}

static int gate_up_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, gate_up);

    return r < 0 ? r : exchange(s, GATHER_H, (uint32_t)op->w[0]->ne[1]);
}

static int route_ranks(struct step *s, const struct model_op *op) {
    return each(s, op, step_route);
}

/* Columns of each pair's h. */
static int gates(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_used = b->shape->n_expert_used;
    const struct launch l = {kernel_glu, s->grid.rows * n_used, 1, CUDA_THREADS, "glu", 0};
    enum pack_kind kind;
    int r = experts_gates(s, op, &kind);
    const struct glu_args a = {b->head, b->experts.gate, b->experts.up, op->weights->m[0].n_out,
                               kind,    n_used};

    return r < 0 || kind == PACK_PLAIN ? r : cuda_launch(b, &l, &a, sizeof(a));
}

/* Columns of each pair's y, and their sum to those of x. */
static int downs(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_used = b->shape->n_expert_used;
    struct pack_args pack =
        step_pack_args(b, PACK_PLAIN, whole_of(b, GATHER_E), NULL, b->shape->n_ff_expert);

    pack.each = n_used;
    int r = ranks_pack(b, s->grid.rows * n_used, &pack);
    r = r < 0 ? r : experts_downs(s, op);
    b->cores = wgmma_takes(b, s->grid.rows);
    return r < 0 ? r : experts_combine(s, op, NULL, NULL);
}

static int experts_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, gates);

    r = r < 0 ? r : exchange(s, GATHER_E, s->be->shape->n_ff_expert);
    r = r < 0 ? r : each(s, op, downs);
    return r < 0 ? r : exchange(s, GATHER_X, s->be->shape->n_embd);
}

static int logits_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, step_pack_wanted);

    return r < 0 ? r : step_logit_rows(s, 0, MIN(s->grid.wants, LOGIT_ROWS));
}

/* What the round before left in be.z may still be copied. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n) {
    struct ranks *k = s->be->ranks;
    const uint32_t *count = step_wanted(s, first, n).count;
    int r = first > 0 ? meet(k, &from_first) : 0;

    if (n == 0)
        return 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct step *part = step_of(s, i);
        const struct operand x = step_wanted(part, first, n);

        r = use(k, i);
        if (r == 0 && cuda_matmul(k->be[i], part->head, &x, false) < 0)
            r = lose(k, k->be[i]);
    }
    r = r < 0 ? r : meet(k, &to_first);
    return r < 0 ? r : take_all(k, 0, GATHER_LOGITS, s->be->shape->n_vocab, count, n);
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

static const char *address(const struct be *b, uint32_t i) {
    return i < b->ranks->n ? b->ranks->be[i]->device.address : "";
}

static const char *lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = ranks_lack(op);

    return what ? what : one_device->lacks(s, op);
}

const struct be_ops *ranks_ops(const struct be_ops *one) {
    static struct be_ops all;

    one_device = one;
    all = *one;
    all.room = room_ranks;
    all.open = open_ranks;
    all.close = close_ranks;
    all.address = address;
    all.variant = variant;
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
    all.run[OP_ROUTE] = route_ranks;
    all.run[OP_EXPERTS] = experts_ranks;
    all.run[OP_LOGITS] = logits_ranks;
    all.sample = sample_ranks;
    all.end = end_ranks;
    all.copy = copy_ranks;
    all.copy_state = NULL;
    all.host_state = NULL;
    return &all;
}
