/*
 * tier - opens, leaves and flushes the disk tier. A request waits for pages in the file if the file
 * has more of them than device and host memory, and if reading is faster than computing. Meanwhile
 * the request is in `compiling` and not in the queue.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>
#include "base/clock.h"
#include "base/try.h"
#include "scheduler/disk.h"
#include "scheduler/scheduler_private.h"

#define PATIENCE_NS INT64_C(2000000000) /* longest wait for reads from the disk */
#define FLUSH_SLEEP_MS 50
#define LEAVE_LOOK_NS 10000000 /* time between two checks whether the disk tier can be left */

/* ---- requests that wait for the disk ---- */

static void put_into_queue(struct sched *s, struct request *r) {
    assert(r->loading && r->state == REQUEST_WAITING);
    r->loading = r->compiling = false;
    list_remove(&r->queued.link);
    request_note_pending(r, &s->pending);
    queue_insert(&s->waiting, &r->queued);
}

/* disk_opts.loaded */
static void on_loaded(void *ctx, uint64_t id) {
    struct request *r = *sched_slot(ctx, id);

    if (r && r->loading)
        put_into_queue(ctx, r);
}

bool tier_begin_load(struct sched *s, struct request *r) {
    struct offload *o = &s->offload;
    uint32_t n = request_shareable(r);
    uint32_t on_disk = o->disk ? disk_has(o->disk, &r->share, request_keys(r), n) : 0;

    if (on_disk == 0)
        return false;
    uint32_t host = offload_has(o, &r->share, request_keys(r), n);
    uint32_t device = request_match(r, s->pager, n, s->view.page_tokens).n_tokens;
    uint32_t have = MAX(host, device);
    if (on_disk <= have)
        return false;
    double read_ns = disk_read_ns(o->disk, (on_disk - host) / s->view.page_tokens);
    if (read_ns > (double)PATIENCE_NS || !offload_pays_with(o, have, on_disk, read_ns)) {
        s->stats.n_disk_left_tokens += on_disk - have;
        disk_left(o->disk);
        return false;
    }
    if (disk_load(o->disk, r->id, &r->share, request_keys(r), on_disk) < 0)
        return false;
    assert(!r->loading && !r->compiling && list_empty(&r->queued.link));
    r->loading = r->compiling = true;
    r->loading_ns = clock_now(s->clock);
    list_push_back(&s->compiling, &r->queued.link);
    return true;
}

void tier_cancel_load(struct sched *s, struct request *r) {
    assert(s->offload.disk && r->loading);
    disk_cancel(s->offload.disk, r->id);
    r->loading = r->compiling = false;
}

/* Counts the tokens of @r that are in the file and were not read. */
static void count_left(struct sched *s, const struct request *r) {
    const struct offload *o = &s->offload;
    uint32_t n = request_shareable(r);
    uint32_t on_disk = disk_has(o->disk, &r->share, request_keys(r), n);
    uint32_t host = offload_has(o, &r->share, request_keys(r), n);
    uint32_t device = request_match(r, s->pager, n, s->view.page_tokens).n_tokens;

    s->stats.n_disk_left_tokens += on_disk - MIN(on_disk, MAX(host, device));
}

/* Lets requests that have waited since @since_ns or longer continue without the disk. */
static void end_loads(struct sched *s, int64_t since_ns) {
    LIST_FOREACH_ENTRY(r, &s->compiling, struct request, queued.link) {
        if (!r->loading || r->loading_ns > since_ns)
            continue;
        count_left(s, r);
        disk_cancel(s->offload.disk, r->id);
        put_into_queue(s, r);
    }
}

/* ---- copies of a step ---- */

static double tier_compute_ns(void *ctx, uint32_t from, uint32_t to) {
    const struct cost *cost = ctx;
    const struct cost_shape none = {0};
    struct cost_shape all = none;

    cost_add(&all, from, to - from);
    return (double)(cost_expect_ns(cost, &all) - cost_expect_ns(cost, &none));
}

static double tier_copy_ns(void *ctx, uint32_t n_pages) {
    return (double)cost_copies_ns(ctx, n_pages);
}

struct kv_prices tier_prices(struct cost *cost) {
    return (struct kv_prices){cost, tier_compute_ns, tier_copy_ns};
}

/* Adds @c to @t. Returns 0 or -ENOMEM. */
static int tier_add_copy(const struct sched *s, struct batch *t, const struct kv_copy *c) {
    const struct engine_copy copy = {
        .src = c->src,
        .dst = c->dst,
        .n_tokens = (uint16_t)s->info->page_tokens,
        .cls = KV_GLOBAL,
        .dir = c->to_host ? COPY_D2H : COPY_H2D,
    };

    return batch_copy(t, &copy, 1);
}

int tier_build(struct sched *s, struct batch *t, bool idle) {
    struct offload *o = &s->offload;

    offload_work(o, s->pager, idle, s->n_launched + 1);
    for (uint32_t i = 0; i < o->n_copies; i++)
        TRY(tier_add_copy(s, t, &o->copy[i]));
    t->shape.copies = o->n_copies;
    offload_taken(o);
    return 0;
}

/* ---- life ---- */

/* Adds everything that the bytes of a page depend on. Returns 0 or a negative errno. */
static int add_identity(struct buf *b, const struct sched *s) {
    const struct engine_info *i = s->info;
    uint32_t kv_type = (uint32_t)i->kv_type.k | (uint32_t)i->kv_type.v << 8,
             blocks = i->n_slots > 0;

    TRY(buf_add(b, i->fingerprint, sizeof(i->fingerprint)));
    TRY(buf_add(b, i->sources, sizeof(i->sources)));
    TRY(buf_add(b, &kv_type, sizeof(kv_type)));
    TRY(buf_add(b, &blocks, sizeof(blocks)));
    TRY(buf_add(b, s->opts.disk.identity, sizeof(s->opts.disk.identity)));
    /* The number of devices after the isa is left out: pages are the same on any number. */
    return buf_printf(b, "%.32s %.*s", i->backend, (int)strcspn(i->isa, " "), i->isa);
}

static void identify(const struct sched *s, struct disk_opts *o) {
    struct buf b = {.max = sizeof(o->identity)};

    if (add_identity(&b, s) == 0) {
        memcpy(o->identity, b.data, b.len);
        o->n_identity = b.len;
    }
    buf_deinit(&b);
}

static void *tier_page(void *ctx, uint32_t page) {
    return engine_host_page(ctx, page);
}

static void *tier_snapshot(void *ctx, uint32_t snapshot) {
    return engine_host_snapshot(ctx, snapshot);
}

static void tier_set_snapshot(void *ctx, uint32_t snapshot, uint32_t n_tokens) {
    engine_set_snapshot(ctx, snapshot, n_tokens);
}

void tier_init(struct sched *s, bool use) {
    const struct sched_disk *k = &s->opts.disk;
    bool off = !use || s->opts.no_prefix_sharing;
    struct disk_opts d = {
        .fd = k->fd,
        .n_bytes = k->n_bytes,
        .daily_bytes = k->daily_bytes,
        .clock = s->clock,
        .pager = s->pager_opts,
        .host = s->offload.host,
        .media = s->info->picture_width > 0 ? &s->media : NULL,
        .memory =
            {
                .ctx = s->engine,
                .page_bytes = s->info->page_bytes,
                .state_bytes = s->info->state_bytes,
                .page = tier_page,
                .snapshot = tier_snapshot,
                .set_snapshot = tier_set_snapshot,
            },
        .in_step = k->in_step,
        .counts = &s->disk_counts,
        .ctx = s,
        .loaded = on_loaded,
        .note_ctx = k->ctx,
        .note = k->note,
    };

    assert(!s->offload.disk);
    if (off || k->n_bytes == 0)
        return;
    identify(s, &d);
    int e = disk_new(&s->offload.disk, &d);
    if (e < 0 && k->note)
        k->note(k->ctx, "the file cannot be used", e);
}

void tier_deinit(struct sched *s) {
    s->offload.disk = disk_free(s->offload.disk);
}

static void take(struct sched *s) {
    bool waits = s->offload.n_copies + s->states.n_loads > 0; /* copies for the next step */

    if (!s->offload.disk)
        return;
    disk_step(s->offload.disk, s->n_launched + waits, s->n_waited);
    if (!list_empty(&s->compiling))
        end_loads(s, clock_now(s->clock) - PATIENCE_NS);
}

static bool has_written(const struct sched *s) {
    return !offload_has_work(&s->offload) && !disk_is_saving(s->offload.disk);
}

/* Leaves the disk tier if that was requested and everything is written. */
static void leave(struct sched *s) {
    const struct sched_disk *k = &s->opts.disk;

    if (s->leave_disk_ns == INT64_MAX)
        return;
    bool late = sched_uses_disk(s) && !has_written(s);
    if (late && clock_now(s->clock) < s->leave_disk_ns)
        return;
    if (late && k->note)
        k->note(k->ctx, "the file was left before all pages were written", 0);
    if (s->offload.disk)
        end_loads(s, INT64_MAX);
    tier_deinit(s);
    s->leave_disk_ns = INT64_MAX;
}

void tier_step(struct sched *s) {
    take(s);
    leave(s);
}

int64_t tier_wake_ns(const struct sched *s) {
    int64_t at = s->leave_disk_ns == INT64_MAX ? INT64_MAX : clock_now(s->clock) + LEAVE_LOOK_NS;

    LIST_FOREACH_ENTRY(r, &s->compiling, const struct request, queued.link) {
        at = r->loading ? MIN(at, r->loading_ns + PATIENCE_NS) : at;
    }
    return at;
}

void sched_flush(struct sched *s, int64_t until_ns) {
    int r = s->offload.disk ? sched_settle(s) : -ENODEV;

    while (r >= 0 && clock_now(s->clock) < until_ns) {
        r = step_copies(s);
        if (r == 0)
            r = sched_settle(s);
        take(s);
        if (has_written(s))
            return;
        if (r == 1)
            disk_sleep(s->offload.disk, FLUSH_SLEEP_MS);
    }
}

void sched_use_disk(struct sched *s) {
    s->leave_disk_ns = INT64_MAX;
    if (!sched_uses_disk(s))
        tier_init(s, true);
}

void sched_leave_disk(struct sched *s, int64_t until_ns) {
    s->leave_disk_ns = until_ns;
    if (!sched_uses_disk(s))
        return;
    LIST_FOREACH_ENTRY(r, &s->running, struct request, queued.link) {
        offload_save(&s->offload, &r->share, request_keys(r), kv_seq_committed(r->seq),
                     pin_returns(&s->pins, r->session, r->tenant));
    }
}

bool sched_uses_disk(const struct sched *s) {
    return s->offload.disk != NULL;
}

static void tier_disk_pages(const struct disk *d, struct msg_stats *out) {
    struct kv_stats kv;

    kv_pager_stats(disk_pages(d), &kv);
    out->n_disk_pages = disk_n_pages(d);
    out->n_disk_used = kv.n_shared + kv.n_cached;
    out->n_disk_snapshots = kv.n_snapshots;
}

void tier_stats(const struct sched *s, struct msg_stats *out) {
    const struct offload_counts *h = &s->offload.counts;
    const struct disk_counts *c = &s->disk_counts;

    out->n_saved_tokens = h->n_saved_tokens;
    out->n_fetched_tokens = h->n_fetched_tokens;
    out->n_swapped = h->n_swapped;
    out->n_not_swapped = h->n_not_swapped;
    out->n_disk_bad = c->n_bad;
    out->n_disk_saved_tokens = c->n_saved_tokens;
    out->n_disk_loaded_tokens = c->n_loaded_tokens;
    out->n_disk_saved_snapshots = c->n_saved_snapshots;
    out->n_disk_loaded_snapshots = c->n_loaded_snapshots;
    if (s->offload.disk)
        tier_disk_pages(s->offload.disk, out);
}

int sched_fd(const struct sched *s) {
    return s->offload.disk ? disk_fd(s->offload.disk) : -1;
}
