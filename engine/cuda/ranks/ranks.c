/*
 * ranks - a model on several devices of one machine: which part each has, and why
 * (docs/design/cuda-devices.md).
 *
 *     embed (rank 0) --x--> all: norm, pack, q k v, attend --o--> pack, output --t--> x, norm,
 *     pack, gate, up, glu --h--> pack, down --t--> x, norm, pack ... logits --> rank 0: sampling
 *
 * In an exchange, each stream records its event and waits for the others' events. The next kernel
 * then reads the columns of other ranks in their memory; no stream writes to another device. A rank
 * may overwrite its columns once all ranks have read them, that is, after the next exchange, whose
 * events follow the reads. If the same buffer is exchanged twice in succession, a meeting must come
 * in between; only rounds of logits do this. When the first device gets the logits, the other ranks
 * do not wait.
 *
 * One thread enqueues for all. Each rank has buffers for whole rows.
 */

#include "engine/cuda/ranks/ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"

void ranks_lose(const struct be *b) {
    const struct ranks *k = b->group.ranks;

    for (uint32_t r = 0; r < k->n; r++) {
        struct be *other = k->be[r];

        if (!other->fault.lost)
            snprintf(other->fault.text, sizeof(other->fault.text), "device %d: %.180s", b->number,
                     b->fault.text);
        other->fault.lost = true;
        other->fault.stuck |= b->fault.stuck;
    }
}

int ranks_use(struct be *b) {
    if (b->group.n > 1 && b->group.first->graphs.replaying)
        return cuda_check(b, 0, "");
    return cuda_check(b, b->api->use(b->number), "cudaSetDevice");
}

struct model_op ranks_part_of(const struct be *b, const struct model_op *op) {
    struct model_op part = *op;

    part.heads.n /= b->group.n;
    part.heads.n_kv /= cuda_page_ranks(b);
    part.weights = op->weights ? op->weights->rank[b->group.rank] : NULL;
    return part;
}

/* -- opening ----------------------------------------------------------------------------------- */

const char *ranks_lack(const struct model_shape *s, const struct model_op *op) {
    const struct op_division *division = &cuda_code[op->kind].division;
    const char *what = NULL;

    if (division->lacks)
        what = division->lacks(s, op);
    return what ? what : be_lacks(&weft_backend_cuda, s, op);
}

/* Checks that key heads, or heads that share one key, can be divided. Returns 0 or -EINVAL. */
static int check_heads(const struct model_shape *s, uint32_t n, struct err *err) {
    uint32_t n_kv = s->mla.rank ? s->n_head : s->n_head_kv;
    uint32_t n_heads = n_kv % n ? n_kv : s->delta.n_key_head;

    if (n_heads % n == 0)
        return 0;
    return err_set(err, 0, "devices",
                   "%u devices do not divide the %u %sheads of the model: name fewer", n, n_heads,
                   s->mla.rank ? "" : "key ");
}

/* Returns the room for pages: the least room of a rank, times the ranks that divide a page. */
static int room_ranks(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                      struct err *err) {
    uint32_t number[ENGINE_DEVICES], n = devices_of(o, number);
    uint64_t least = UINT64_MAX, room[ENGINE_DEVICES];
    struct rank rank[ENGINE_DEVICES];

    TRY(check_heads(shape, n, err));
    for (uint32_t i = 0; i < n; i++)
        rank[i] = (struct rank){(int)number[i], i, n, {0, 0}};
    TRY(cuda_rooms(shape, o, rank, n, room, err));
    for (uint32_t i = 0; i < n; i++)
        least = MIN(least, room[i]);
    *bytes = (shape->mla.rank ? 1 : n) * least;
    return 0;
}

/* Creates events, and shares what the first rank has for all. */
static int ranks_join(struct ranks *k) {
    for (uint32_t i = k->n; i-- > 0;) {
        struct be *b = k->be[i];

        TRY(ON_DEVICE(b, cuda_check(b, b->api->event_new(&b->group.ready), "cudaEventCreate")));
        b->host_pages = k->be[0]->host_pages;
        b->recurrent.host_state = k->be[0]->recurrent.host_state;
        if (b->group.n == 1)
            continue;
        b->experts.host_y = k->be[0]->experts.host_y;
        b->group.first = k->be[0];
    }
    return 0;
}

/* Opens the @i-th of @n devices. */
static int open_one(struct ranks *k, const struct be_opts *o, uint32_t i, struct err *err) {
    uint32_t number[ENGINE_DEVICES], n = devices_of(o->engine, number);
    const uint32_t *cut = o->shape->cut;
    struct rank rank = {(int)number[i], i, n, {cut[i], cut[i + 1]}};
    struct be *b;

    if (k->by_layers) {
        rank.rank = 0;
        rank.n_ranks = 1;
    }
    TRY(cuda_open(&b, o, &rank, err));
    k->be[k->n++] = b;
    b->group.ranks = k;
    size_t at = strlen(b->device.name);
    snprintf(b->device.name + at, sizeof(b->device.name) - at, " (device %u)", number[i]);
    return 0;
}

/* Opens all devices; the note of the leader is the first that lists code paths that are off. */
static int open_all(struct ranks *k, const struct be_opts *o, struct err *err) {
    uint32_t number[ENGINE_DEVICES], n = devices_of(o->engine, number), noted = 0;

    k->part = calloc(o->engine->max_seqs, sizeof(*k->part));
    if (!k->part)
        return -ENOMEM;
    if (!k->by_layers)
        TRY(check_heads(o->shape, n, err));
    for (uint32_t i = 0; i < n; i++)
        TRY(open_one(k, o, i, err));
    while (noted + 1 < n && !*k->be[noted]->note)
        noted++;
    if (noted != k->leader)
        memcpy(k->be[k->leader]->note, k->be[noted]->note, sizeof(k->be[noted]->note));
    int r = ranks_join(k);
    if (r < 0)
        err_set(err, 0, NULL, "opening the devices: %s", k->be[0]->fault.text);
    return r;
}

/* Closes all devices, after waiting for all streams, since one device may read another's memory. */
static void ranks_close_all(struct ranks *k) {
    for (uint32_t i = 0; i < k->n; i++)
        if (!k->be[i]->fault.stuck)
            k->be[i]->api->stream_wait(k->be[i]->stream);
    for (uint32_t i = 0; i < k->n && !k->be[i]->fault.stuck; i++)
        graph_close(k->be[i]);
    for (uint32_t i = k->n; i-- > 0;) {
        struct be *b = k->be[i];

        b->api->use(b->number);
        if (b->group.ready && !b->fault.stuck)
            b->api->event_free(b->group.ready);
        cuda_close(b);
    }
    free(k->part);
    free(k);
}

/* Writes the kinds of all devices, which are one or divide the layers: "sm_86 x2", or with the
 * layers of those before another kind "sm_86:20+sm_89". */
static void list_kinds(const struct ranks *k, const uint32_t *cut, struct be *leader) {
    char all[sizeof(leader->isa)];
    size_t n = (size_t)snprintf(all, sizeof(all), "%s", k->be[0]->isa);
    bool same = true;

    for (uint32_t i = 1; i < k->n; i++) {
        if (strcmp(k->be[i]->isa, k->be[i - 1]->isa) == 0)
            continue;
        same = false;
        n += (size_t)snprintf(all + n, sizeof(all) - n, ":%u+%s", cut[i], k->be[i]->isa);
    }
    if (same)
        snprintf(all + n, sizeof(all) - n, " x%u", k->n);
    memcpy(leader->isa, all, sizeof(all));
}

static int open_ranks(struct be **out, const struct be_opts *o, struct err *err) {
    struct ranks *k = calloc(1, sizeof(*k));
    uint32_t number[ENGINE_DEVICES], n = devices_of(o->engine, number);

    if (!k)
        return -ENOMEM;
    k->by_layers = o->shape->cut[n] > 0;
    k->leader = k->by_layers ? n - 1 : 0;
    int r = open_all(k, o, err);
    if (r < 0) {
        ranks_close_all(k);
        return r;
    }
    *out = k->be[k->leader];
    list_kinds(k, o->shape->cut, *out);
    return 0;
}

static struct be *close_ranks(struct be *b) {
    if (b)
        ranks_close_all(b->group.ranks);
    return NULL;
}

/* -- what all devices do ----------------------------------------------------------------------- */

static int load_ranks(struct be *b, const struct model_op *op, struct weights **out,
                      struct err *err) {
    struct ranks *k = b->group.ranks;
    int r;

    if (k->by_layers)
        r = layers_load(k, op, out, err);
    else
        r = ranks_load(k, op, out, err);
    if (r == -EIO)
        err_set(err, 0, NULL, "loading weights: %s", b->fault.text);
    return r;
}

/* Turns a variant on or off on all devices. */
static bool ranks_variant(struct be *b, uint32_t i, bool use, const char **name) {
    bool there = true;

    for (uint32_t r = 0; r < b->group.ranks->n && there; r++)
        there = weft_backend_cuda.variant(b->group.ranks->be[r], i, use, name);
    return there;
}

static bool ranks_coarse(const struct be *b) {
    bool any = false;

    for (uint32_t r = 0; r < b->group.ranks->n; r++)
        any |= weft_backend_cuda.coarse(b->group.ranks->be[r]);
    return any;
}

static bool ranks_proving(struct be *b, bool on) {
    const struct ranks *k = b->group.ranks;
    bool wanted = true;

    for (uint32_t i = 0; i < k->n && wanted; i++)
        wanted = ranks_use(ranks_nth(k, i)) == 0 && weft_backend_cuda.proving(ranks_nth(k, i), on);
    return wanted;
}

static uint32_t ranks_warm(struct be *b, uint32_t i, bool *apart) {
    const struct ranks *k = b->group.ranks;
    uint32_t n_rows = 0;

    for (uint32_t j = 0; j < k->n; j++)
        if (ranks_use(ranks_nth(k, j)) == 0)
            n_rows = weft_backend_cuda.warm(ranks_nth(k, j), i, apart);
    return n_rows;
}

/* Devices without a part of the step have not begun it: a draft pass is computed by the last. */
static int end_ranks(struct step *s, struct engine_result *out) {
    const struct ranks *k = s->be->group.ranks;

    for (uint32_t i = 0; i + 1 < k->n; i++) {
        struct be *b = ranks_nth(k, i);
        struct step *part = ranks_step_of(s, b);

        if (part->batch)
            TRY(ON_DEVICE(b, step_wait(part)));
    }
    return ON_DEVICE(s->be, step_end(s, out));
}

static int ranks_copy_state(struct be *b, uint32_t src, uint32_t dst) {
    const struct ranks *k = b->group.ranks;

    for (uint32_t i = 0; i < k->n; i++)
        TRY(ON_DEVICE(ranks_nth(k, i), step_copy_state(ranks_nth(k, i), src, dst)));
    return 0;
}

static void *ranks_host_state(struct be *b, uint32_t state) {
    return step_host_state(b->group.ranks->be[0], state);
}

/* Copies a page, or a device's part of one. A page that every rank has completely exists once in
 * host memory, where the first rank writes it and all ranks read it. Meetings order the copies: all
 * reads of the old contents come before the write, and the write before later reads. */
static int copy_ranks(struct be *b, const struct engine_copy *c) {
    struct ranks *k = b->group.ranks;
    bool whole = b->group.n > 1 && cuda_page_ranks(b) == 1;

    if (whole && c->dir == COPY_D2H) {
        TRY(ranks_meet_now(k, &to_first));
        return ON_DEVICE(b, step_copy(b, c));
    }
    if (whole && c->dir == COPY_H2D)
        TRY(ranks_meet_now(k, &from_first));
    for (uint32_t i = 0; i < k->n; i++)
        TRY(ON_DEVICE(ranks_nth(k, i), step_copy(ranks_nth(k, i), c)));
    return 0;
}

/* -- the table --------------------------------------------------------------------------------- */

static const char *ranks_address(const struct be *b, uint32_t i) {
    return i < b->group.ranks->n ? b->group.ranks->be[i]->device.address : "";
}

/* Finds out whether all devices are of one kind and can access each other's memory.
 * WEFT_CUDA_PEERS=0: they are treated as if they cannot. Returns 0 or an error of the runtime. */
static int ranks_find_ways(const uint32_t *number, uint32_t n, bool *direct) {
    const struct cuda_api *api = cuda_api();
    struct cuda_device first, d;
    int e = api->describe((int)number[0], &first);

    *direct = cuda_wants("PEERS");
    for (uint32_t i = n; i-- > 0 && e == 0 && *direct;) {
        e = api->describe((int)number[i], &d);
        if (e)
            return e;
        e = api->use((int)number[i]);
        *direct = d.major == first.major && d.minor == first.minor;
        for (uint32_t j = 0; j < n && e == 0 && *direct; j++)
            e = j == i ? 0 : api->reach((int)number[i], (int)number[j], direct);
    }
    return e;
}

const struct be_ops *ranks_several(const struct engine_opts *o, struct err *err) {
    static struct be_ops all;
    uint32_t number[ENGINE_DEVICES], n = devices_of(o, number);
    bool direct = false;
    int e = weft_backend_cuda.probe(o, err);

    if (e < 0)
        return NULL;
    e = ranks_find_ways(number, n, &direct);
    if (e) {
        err_set(err, 0, NULL, "ways between devices: %s", cuda_api()->text(e));
        return NULL;
    }
    all = weft_backend_cuda;
    all.open = open_ranks;
    all.close = close_ranks;
    all.address = ranks_address;
    all.variant = ranks_variant;
    all.coarse = ranks_coarse;
    all.picks = NULL;
    all.load = load_ranks;
    all.end = end_ranks;
    all.copy = copy_ranks;
    all.copy_state = ranks_copy_state;
    all.host_state = ranks_host_state;
    all.proving = ranks_proving;
    all.warm = ranks_warm;
    all.one = &weft_backend_cuda;
    if (!direct) {
        layers_ops(&all);
        return &all;
    }
    all.room = room_ranks;
    ranks_step_ops(&all);
    return &all;
}
