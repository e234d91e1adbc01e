#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "kvpager/tier_private.h"

#define TIER_PATIENCE_NS INT64_C(2000000000) /* longest wait for reads from the file */

/* ---- life ---- */

int kv_tier_new(struct kv_tier **out, const struct kv_tier_opts *opts) {
    struct kv_tier *t = calloc(1, sizeof(*t));
    const struct kv_memory *m = &opts->memory;

    if (!t)
        return -ENOMEM;
    t->opts = *opts;
    list_init(&t->tickets);
    uint64_t state_pages = (m->state_bytes + m->page_bytes - 1) / MAX(m->page_bytes, 1u);
    int e = offload_init(&t->offload, &opts->prices, &opts->pager, opts->n_host_pages,
                         (uint32_t)state_pages);
    t->state = calloc(2 * (size_t)opts->pager.n_states + 1, sizeof(*t->state));
    if (e == 0 && !t->state)
        e = -ENOMEM;
    if (e < 0) {
        kv_tier_free(t);
        return e;
    }
    *out = t;
    return 0;
}

static void tier_drop_ticket(struct tier_ticket *x) {
    list_remove(&x->link);
    free(x);
}

struct kv_tier *kv_tier_free(struct kv_tier *t) {
    if (!t)
        return NULL;
    LIST_FOREACH_ENTRY(x, &t->tickets, struct tier_ticket, link) {
        tier_drop_ticket(x);
    }
    kv_tier_close(t);
    offload_deinit(&t->offload);
    free(t->state);
    free(t);
    return NULL;
}

static struct tier_ticket *tier_find(const struct kv_tier *t, kv_ticket id) {
    LIST_FOREACH_ENTRY(x, &t->tickets, struct tier_ticket, link) {
        if (x->id == id)
            return x;
    }
    return NULL;
}

/* disk_opts.loaded */
static void tier_on_loaded(void *ctx, uint64_t id) {
    struct tier_ticket *x = tier_find(ctx, id);

    if (x)
        x->read = true;
}

int kv_tier_open(struct kv_tier *t, const struct kv_tier_file *file) {
    struct disk_opts d = {
        .file = *file,
        .clock = t->opts.clock,
        .pager = t->opts.pager,
        .host = t->offload.host,
        .media = t->opts.media,
        .memory = t->opts.memory,
        .counts = &t->disk_counts,
        .ctx = t,
        .loaded = tier_on_loaded,
        .note_ctx = t->opts.note_ctx,
        .note = t->opts.note,
    };

    assert(!t->offload.disk);
    /* The slots have neither sequences that compute nor windows, and snapshots of their own. */
    d.pager.n_states = d.pager.n_windows = d.pager.window = 0;
    d.pager.peer = NULL;
    return disk_new(&t->offload.disk, &d);
}

void kv_tier_close(struct kv_tier *t) {
    assert(list_empty(&t->tickets));
    t->offload.disk = disk_free(t->offload.disk);
}

bool kv_tier_has_file(const struct kv_tier *t) {
    return t->offload.disk != NULL;
}

/* ---- the file ---- */

static uint32_t tier_on_disk(const struct kv_tier *t, const struct kv_keys *k) {
    if (!t->offload.disk)
        return 0;
    return disk_has(t->offload.disk, k->isolation, k->tokens, k->n_tokens);
}

static bool tier_add_ticket(struct kv_tier *t, kv_ticket id) {
    struct tier_ticket *x = calloc(1, sizeof(*x));

    assert(!tier_find(t, id));
    if (!x)
        return false;
    x->id = id;
    x->since_ns = clock_now(t->opts.clock);
    list_push_back(&t->tickets, &x->link);
    return true;
}

bool kv_tier_want(struct kv_tier *t, const struct kv_keys *k, uint32_t n_device, kv_ticket ticket) {
    struct offload *o = &t->offload;
    uint32_t on_disk = tier_on_disk(t, k);

    if (on_disk == 0)
        return false;
    uint32_t host = kv_tier_in_host(t, k);
    uint32_t have = MAX(host, n_device);
    if (on_disk <= have)
        return false;
    double read_ns = disk_read_ns(o->disk, (on_disk - host) / o->page_tokens);
    if (read_ns > (double)TIER_PATIENCE_NS || !offload_pays_with(o, have, on_disk, read_ns)) {
        t->n_left_tokens += on_disk - have;
        disk_left(o->disk);
        return false;
    }
    if (disk_load(o->disk, ticket, k->isolation, k->tokens, on_disk) < 0)
        return false;
    if (tier_add_ticket(t, ticket))
        return true;
    disk_cancel(o->disk, ticket);
    return false;
}

bool kv_tier_poll(struct kv_tier *t, kv_ticket *ticket, bool *late) {
    LIST_FOREACH_ENTRY(x, &t->tickets, struct tier_ticket, link) {
        *late = !x->read;
        if (*late && x->since_ns > clock_now(t->opts.clock) - TIER_PATIENCE_NS)
            continue;
        *ticket = x->id;
        if (*late)
            disk_cancel(t->offload.disk, x->id);
        tier_drop_ticket(x);
        return true;
    }
    return false;
}

void kv_tier_save(struct kv_tier *t, const struct kv_keys *k, bool returns) {
    offload_save(&t->offload, k->isolation, k->tokens, k->n_tokens, returns);
}

void kv_tier_cancel(struct kv_tier *t, kv_ticket ticket) {
    struct tier_ticket *x = tier_find(t, ticket);

    assert(x);
    disk_cancel(t->offload.disk, ticket);
    tier_drop_ticket(x);
}

void kv_tier_note_left(struct kv_tier *t, const struct kv_keys *k, uint32_t n_device) {
    uint32_t on_disk = tier_on_disk(t, k), host = kv_tier_in_host(t, k);

    t->n_left_tokens += on_disk - MIN(on_disk, MAX(host, n_device));
}

void kv_tier_end_reads(struct kv_tier *t) {
    LIST_FOREACH_ENTRY(x, &t->tickets, struct tier_ticket, link) {
        x->since_ns = INT64_MIN;
    }
}

void kv_tier_step(struct kv_tier *t, uint64_t launched, uint64_t waited) {
    bool waits = t->offload.n_copies + t->n_states > 0; /* copies for the next step */

    if (t->offload.disk)
        disk_step(t->offload.disk, launched + waits, waited);
}

int64_t kv_tier_wake_ns(const struct kv_tier *t) {
    int64_t at = INT64_MAX;

    LIST_FOREACH_ENTRY(x, &t->tickets, const struct tier_ticket, link) {
        at = MIN(at, x->since_ns + TIER_PATIENCE_NS);
    }
    return at;
}

bool kv_tier_is_saving(const struct kv_tier *t) {
    return offload_has_work(&t->offload) || (t->offload.disk && disk_is_saving(t->offload.disk));
}

void kv_tier_sleep(const struct kv_tier *t, int ms) {
    disk_sleep(t->offload.disk, ms);
}

int kv_tier_fd(const struct kv_tier *t) {
    if (!t->offload.disk)
        return -1;
    return disk_fd(t->offload.disk);
}

/* ---- host memory ---- */

uint32_t kv_tier_in_host(const struct kv_tier *t, const struct kv_keys *k) {
    return offload_has(&t->offload, k->isolation, k->tokens, k->n_tokens);
}

bool kv_tier_pays(const struct kv_tier *t, uint32_t from, uint32_t to) {
    return offload_pays(&t->offload, from, to);
}

uint32_t kv_tier_fetch(struct kv_tier *t, struct kv_seq *seq, const struct kv_keys *k,
                       uint32_t max_pages, uint32_t reserve) {
    return offload_fetch(&t->offload, t->opts.device, seq, k->isolation, k->tokens, k->n_tokens,
                         max_pages, reserve);
}

uint32_t kv_tier_fetch_room(const struct kv_tier *t) {
    return offload_fetch_room(&t->offload);
}

uint32_t kv_tier_fetch_more(struct kv_tier *t) {
    uint32_t n = t->offload.n_fetched;

    t->offload.n_fetched = 0;
    return n;
}

void kv_tier_swap(struct kv_tier *t, const struct kv_seq *seq, const struct kv_keys *k) {
    offload_swap(&t->offload, seq, k->isolation, k->tokens);
}

bool kv_tier_has_copies(const struct kv_tier *t) {
    return offload_has_work(&t->offload);
}

void kv_tier_work(struct kv_tier *t, uint64_t step, bool idle) {
    offload_work(&t->offload, t->opts.device, idle, step);
}

const struct kv_copy *kv_tier_consume_pages(struct kv_tier *t, uint32_t *n) {
    *n = t->offload.n_copies;
    offload_taken(&t->offload);
    return t->offload.copy;
}

/* ---- recurrent states ---- */

void kv_tier_load_state(struct kv_tier *t, uint32_t snapshot, uint32_t slot) {
    uint32_t i = 0;

    while (i < t->n_states && t->state[i].dst != slot)
        i++;
    assert(i < t->opts.pager.n_states && snapshot != KV_NO_SNAPSHOT);
    t->state[i] = (struct kv_copy){snapshot, slot, KV_STATE_LOAD};
    t->n_states = MAX(t->n_states, i + 1);
}

void kv_tier_save_state(struct kv_tier *t, uint32_t slot, uint32_t snapshot) {
    assert(t->n_states < 2 * t->opts.pager.n_states && snapshot != KV_NO_SNAPSHOT);
    t->state[t->n_states++] = (struct kv_copy){slot, snapshot, KV_STATE_SAVE};
}

const struct kv_copy *kv_tier_consume_states(struct kv_tier *t, uint32_t *n) {
    *n = t->n_states;
    t->n_states = 0;
    return t->state;
}

/* ---- what there is ---- */

struct kv_pager *kv_tier_host_pages(const struct kv_tier *t) {
    return t->offload.host;
}

struct kv_pager *kv_tier_file_pages(const struct kv_tier *t) {
    return disk_pages(t->offload.disk);
}

static void tier_host_gauges(const struct kv_pager *host, struct kv_tier_stats *out) {
    struct kv_stats kv;

    kv_pager_stats(host, &kv);
    out->n_host_pages = kv.n_pages;
    out->n_host_used = kv.n_pages - kv.n_free;
    out->n_host_held = kv.n_owned + kv.n_shared;
}

static void tier_file_gauges(const struct disk *d, struct kv_tier_stats *out) {
    struct kv_stats kv;

    kv_pager_stats(disk_pages(d), &kv);
    out->n_disk_pages = disk_n_pages(d);
    out->n_disk_used = kv.n_shared + kv.n_cached;
    out->n_disk_snapshots = kv.n_snapshots;
}

void kv_tier_stats(const struct kv_tier *t, struct kv_tier_stats *out) {
    const struct offload_counts *h = &t->offload.counts;
    const struct disk_counts *d = &t->disk_counts;

    *out = (struct kv_tier_stats){
        .n_saved_tokens = h->n_saved_tokens,
        .n_fetched_tokens = h->n_fetched_tokens,
        .n_swapped = h->n_swapped,
        .n_not_swapped = h->n_not_swapped,
        .n_bad = d->n_bad,
        .n_disk_saved_tokens = d->n_saved_tokens,
        .n_disk_loaded_tokens = d->n_loaded_tokens,
        .n_disk_saved_snapshots = d->n_saved_snapshots,
        .n_disk_loaded_snapshots = d->n_loaded_snapshots,
        .n_left_tokens = t->n_left_tokens,
    };
    if (t->offload.host)
        tier_host_gauges(t->offload.host, out);
    if (t->offload.disk)
        tier_file_gauges(t->offload.disk, out);
}
