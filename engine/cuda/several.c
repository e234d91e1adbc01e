/*
 * several - the devices that compute one model together: what they do alike, however they divide it
 * (docs/design/cuda-devices.md). One thread enqueues for all.
 */

#include "engine/cuda/several.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"

void several_lose(const struct be *b) {
    const struct ranks *k = b->group.ranks;

    for (uint32_t r = 0; r < k->n; r++) {
        struct be *other = k->be[r];

        if (!other->fault.lost)
            snprintf(other->fault.text, sizeof(other->fault.text), "device %d: %.180s",
                     b->about.number, b->fault.text);
        other->fault.lost = true;
        other->fault.stuck |= b->fault.stuck;
    }
}

int several_use(struct be *b) {
    if (b->group.n > 1 && b->group.first->graphs.replaying)
        return cuda_check(b, 0, "");
    return cuda_check(b, b->api->use(b->about.number), "cudaSetDevice");
}

uint32_t several_list(const struct engine_opts *o, const uint32_t *cut,
                      struct rank rank[ENGINE_DEVICES]) {
    uint32_t number[ENGINE_DEVICES], n = devices_of(o, number);

    for (uint32_t i = 0; i < n; i++) {
        rank[i] = (struct rank){.number = (int)number[i], .rank = i, .n_ranks = n};
        if (cut)
            rank[i] = (struct rank){(int)number[i], 0, 1, {cut[i], cut[i + 1]}};
    }
    return n;
}

/* -- opening ----------------------------------------------------------------------------------- */

/* Creates events, and shares what the first rank has for all. */
static int several_join(struct ranks *k) {
    for (uint32_t i = k->n; i-- > 0;) {
        struct be *b = k->be[i];

        TRY(ON_DEVICE(b, cuda_check(b, b->api->event_new(&b->group.ready), "cudaEventCreate")));
        b->memory.host_pages = k->be[0]->memory.host_pages;
        b->recurrent.host_state = k->be[0]->recurrent.host_state;
        if (b->group.n == 1)
            continue;
        b->experts.host_y = k->be[0]->experts.host_y;
        b->group.first = k->be[0];
    }
    return 0;
}

static int several_open_one(struct ranks *k, const struct be_opts *o, const struct rank *rank,
                            struct err *err) {
    struct be *b;

    TRY(cuda_open(&b, o, rank, err));
    k->be[k->n++] = b;
    b->group.ranks = k;
    size_t at = strlen(b->about.device.name);
    snprintf(b->about.device.name + at, sizeof(b->about.device.name) - at, " (device %d)",
             rank->number);
    return 0;
}

/* Opens all devices; the note of the leader is the first that lists code paths that are off. */
static int several_open_all(struct ranks *k, const struct be_opts *o, const struct rank *rank,
                            uint32_t n, struct err *err) {
    uint32_t noted = 0;

    k->part = calloc(o->engine->max_seqs, sizeof(*k->part));
    if (!k->part)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        TRY(several_open_one(k, o, &rank[i], err));
    while (noted + 1 < n && !*k->be[noted]->about.note)
        noted++;
    if (noted != k->leader)
        memcpy(k->be[k->leader]->about.note, k->be[noted]->about.note,
               sizeof(k->be[noted]->about.note));
    int r = several_join(k);
    if (r < 0)
        err_set(err, 0, NULL, "opening the devices: %s", k->be[0]->fault.text);
    return r;
}

/* Closes all devices, after waiting for all streams, since one device may read another's memory. */
static void several_close_all(struct ranks *k) {
    for (uint32_t i = 0; i < k->n; i++)
        if (!k->be[i]->fault.stuck)
            k->be[i]->api->stream_wait(k->be[i]->queue.stream);
    for (uint32_t i = 0; i < k->n && !k->be[i]->fault.stuck; i++)
        graph_close(k->be[i]);
    for (uint32_t i = k->n; i-- > 0;) {
        struct be *b = k->be[i];

        b->api->use(b->about.number);
        if (b->group.ready && !b->fault.stuck)
            b->api->event_free(b->group.ready);
        cuda_close(b);
    }
    free(k->part);
    free(k);
}

/* Writes the kinds of all devices, which are one or divide the layers: "sm_86 x2", or with the
 * layers of those before another kind "sm_86:20+sm_89". */
static void several_list_kinds(const struct ranks *k, const uint32_t *cut, struct be *leader) {
    char all[sizeof(leader->about.isa)];
    size_t n = (size_t)snprintf(all, sizeof(all), "%s", k->be[0]->about.isa);
    bool same = true;

    for (uint32_t i = 1; i < k->n; i++) {
        if (strcmp(k->be[i]->about.isa, k->be[i - 1]->about.isa) == 0)
            continue;
        same = false;
        n += (size_t)snprintf(all + n, sizeof(all) - n, ":%u+%s", cut[i], k->be[i]->about.isa);
    }
    if (same)
        snprintf(all + n, sizeof(all) - n, " x%u", k->n);
    memcpy(leader->about.isa, all, sizeof(all));
}

int several_open(struct be **out, const struct be_opts *o, struct err *err) {
    struct ranks *k = calloc(1, sizeof(*k));
    const uint32_t *cut = o->shape->cut;
    struct rank rank[ENGINE_DEVICES];

    if (!k)
        return -ENOMEM;
    k->by_layers = cut[1] > 0;
    uint32_t n = several_list(o->engine, k->by_layers ? cut : NULL, rank);
    if (k->by_layers)
        k->leader = n - 1;
    else
        k->leader = 0;
    int r = several_open_all(k, o, rank, n, err);
    if (r < 0) {
        several_close_all(k);
        return r;
    }
    *out = k->be[k->leader];
    several_list_kinds(k, cut, *out);
    return 0;
}

static struct be *several_close(struct be *b) {
    if (b)
        several_close_all(b->group.ranks);
    return NULL;
}

/* -- what all devices do ----------------------------------------------------------------------- */

static int several_load(struct be *b, const struct model_op *op, struct weights **out,
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
static bool several_variant(struct be *b, uint32_t i, bool use, const char **name) {
    bool there = true;

    for (uint32_t r = 0; r < b->group.ranks->n && there; r++)
        there = weft_backend_cuda.variant(b->group.ranks->be[r], i, use, name);
    return there;
}

static bool several_coarse(const struct be *b) {
    bool any = false;

    for (uint32_t r = 0; r < b->group.ranks->n; r++)
        any |= weft_backend_cuda.coarse(b->group.ranks->be[r]);
    return any;
}

static bool several_proving(struct be *b, bool on) {
    const struct ranks *k = b->group.ranks;
    bool wanted = true;

    for (uint32_t i = 0; i < k->n && wanted; i++)
        wanted =
            several_use(several_nth(k, i)) == 0 && weft_backend_cuda.proving(several_nth(k, i), on);
    return wanted;
}

static uint32_t several_warm(struct be *b, uint32_t i, bool *apart) {
    const struct ranks *k = b->group.ranks;
    uint32_t n_rows = 0;

    for (uint32_t j = 0; j < k->n; j++)
        if (several_use(several_nth(k, j)) == 0)
            n_rows = weft_backend_cuda.warm(several_nth(k, j), i, apart);
    return n_rows;
}

/* Devices without a part of the step have not begun it: a draft pass is computed by the last. */
static int several_end(struct step *s, struct engine_result *out) {
    const struct ranks *k = s->be->group.ranks;

    for (uint32_t i = 0; i + 1 < k->n; i++) {
        struct be *b = several_nth(k, i);
        struct step *part = several_step(s, b);

        if (part->batch)
            TRY(ON_DEVICE(b, step_wait(part)));
    }
    return ON_DEVICE(s->be, step_end(s, out));
}

int several_copy(struct be *b, const struct engine_copy *c) {
    const struct ranks *k = b->group.ranks;

    for (uint32_t i = 0; i < k->n; i++)
        TRY(ON_DEVICE(several_nth(k, i), step_copy(several_nth(k, i), c)));
    return 0;
}

static int several_copy_state(struct be *b, uint32_t src, uint32_t dst) {
    const struct ranks *k = b->group.ranks;

    for (uint32_t i = 0; i < k->n; i++)
        TRY(ON_DEVICE(several_nth(k, i), step_copy_state(several_nth(k, i), src, dst)));
    return 0;
}

static void *several_host_state(struct be *b, uint32_t state) {
    return step_host_state(b->group.ranks->be[0], state);
}

/* -- the table --------------------------------------------------------------------------------- */

static const char *several_address(const struct be *b, uint32_t i) {
    if (i >= b->group.ranks->n)
        return "";
    return b->group.ranks->be[i]->about.device.address;
}

/* Finds out whether all devices are of one kind and can access each other's memory.
 * WEFT_CUDA_PEERS=0: they are treated as if they cannot. Returns 0 or an error of the runtime. */
static int several_find_ways(const struct rank *rank, uint32_t n, bool *direct) {
    const struct cuda_api *api = cuda_api();
    struct cuda_device first, d;
    int e = api->describe(rank[0].number, &first);

    *direct = cuda_wants("PEERS");
    for (uint32_t i = n; i-- > 0 && e == 0 && *direct;) {
        e = api->describe(rank[i].number, &d);
        if (e)
            return e;
        e = api->use(rank[i].number);
        *direct = d.major == first.major && d.minor == first.minor;
        for (uint32_t j = 0; j < n && e == 0 && *direct; j++)
            if (j != i)
                e = api->reach(rank[i].number, rank[j].number, direct);
    }
    return e;
}

const struct be_ops *several_ops(const struct engine_opts *o, struct err *err) {
    static struct be_ops all;
    struct rank rank[ENGINE_DEVICES];
    bool direct = false;

    if (weft_backend_cuda.probe(o, err) < 0)
        return NULL;
    int e = several_find_ways(rank, several_list(o, NULL, rank), &direct);
    if (e) {
        err_set(err, 0, NULL, "ways between devices: %s", cuda_api()->text(e));
        return NULL;
    }
    all = weft_backend_cuda;
    all.open = several_open;
    all.close = several_close;
    all.address = several_address;
    all.variant = several_variant;
    all.coarse = several_coarse;
    all.picks = NULL;
    all.load = several_load;
    all.end = several_end;
    all.copy = several_copy;
    all.copy_state = several_copy_state;
    all.host_state = several_host_state;
    all.proving = several_proving;
    all.warm = several_warm;
    all.one = &weft_backend_cuda;
    if (direct)
        ranks_ops(&all);
    else
        layers_ops(&all);
    return &all;
}
