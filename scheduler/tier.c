/*
 * tier - the scheduler's side of host memory and of the file behind it (kvpager/tier.h): what steps
 * cost, copies as the engine makes them, and requests that wait for pages of the file. Meanwhile a
 * request is in `compiling` and not in the queue.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/try.h"
#include "scheduler/scheduler_private.h"

#define TIER_IDENTITY 256u /* bytes, at most */
#define FLUSH_SLEEP_MS 50
#define LEAVE_LOOK_NS 10000000 /* time between two checks whether the disk tier can be left */

/* ---- requests that wait for the disk ---- */

static void enqueue_loaded(struct sched *s, struct request *r) {
    assert(r->loading && r->state == REQUEST_WAITING);
    r->loading = r->grammar.compiling = false;
    list_remove(&r->queued.link);
    request_note_pending(r, &s->pending);
    queue_insert(&s->waiting, &r->queued);
}

/* Returns the tokens that @r could take from pages of the device. */
static uint32_t tier_on_device(const struct sched *s, const struct request *r) {
    return request_match(r, s->pager, request_shareable(r), s->view.page_tokens).n_tokens;
}

bool tier_begin_load(struct sched *s, struct request *r) {
    struct kv_keys k = request_prefix(r, request_shareable(r));

    if (!kv_tier_has_file(s->tier) || !kv_tier_want(s->tier, &k, tier_on_device(s, r), r->id))
        return false;
    assert(!r->loading && !r->grammar.compiling && list_empty(&r->queued.link));
    r->loading = r->grammar.compiling = true;
    list_push_back(&s->compiling, &r->queued.link);
    return true;
}

void tier_cancel_load(struct sched *s, struct request *r) {
    assert(r->loading);
    kv_tier_cancel(s->tier, r->id);
    r->loading = r->grammar.compiling = false;
}

/* Queues the requests that need not wait any longer. */
static void tier_end_loads(struct sched *s) {
    kv_ticket id;
    bool late;

    while (kv_tier_poll(s->tier, &id, &late)) {
        struct request *r = *sched_slot(s, id);
        struct kv_keys k = request_prefix(r, request_shareable(r));

        if (late)
            kv_tier_note_left(s->tier, &k, tier_on_device(s, r));
        enqueue_loaded(s, r);
    }
}

/* ---- copies ---- */

void tier_swap(struct sched *s, const struct request *r) {
    struct kv_keys k = request_prefix(r, r->n_tokens);

    kv_tier_swap(s->tier, r->seq, &k);
}

bool tier_look(struct sched *s, struct request *r, uint32_t n_hit) {
    struct kv_keys k = request_prefix(r, request_shareable(r));

    r->n_host = request_cut(r, kv_tier_in_host(s->tier, &k), s->view.page_tokens);
    if (r->n_host > n_hit && !kv_tier_pays(s->tier, n_hit, r->n_host)) {
        s->stats.n_left_tokens += r->n_host - n_hit;
        r->n_host = 0;
    }
    if (r->n_host <= n_hit)
        r->n_host = 0;
    return r->n_host > 0;
}

bool tier_has_copies(const struct sched *s) {
    return kv_tier_has_copies(s->tier);
}

uint32_t tier_fetch_more(struct sched *s) {
    return kv_tier_fetch_more(s->tier);
}

void tier_work(struct sched *s, bool idle) {
    kv_tier_work(s->tier, s->n_launched + 1, idle);
}

/* Adds @c to @t. Returns 0 or -ENOMEM. */
static int tier_add_copy(const struct sched *s, struct batch *t, const struct kv_copy *c) {
    static const uint8_t dir[] = {
        [KV_PAGE_SAVE] = COPY_D2H,
        [KV_PAGE_FETCH] = COPY_H2D,
        [KV_STATE_LOAD] = COPY_STATE_LOAD,
        [KV_STATE_SAVE] = COPY_STATE_SAVE,
    };
    const struct engine_copy copy = {
        .src = c->src,
        .dst = c->dst,
        .n_tokens = (uint16_t)s->info->page_tokens,
        .cls = KV_GLOBAL,
        .dir = dir[c->kind],
    };

    return batch_copy(t, &copy, 1);
}

static int tier_build_pages(struct sched *s, struct batch *t) {
    uint32_t n;
    const struct kv_copy *page = kv_tier_consume_pages(s->tier, &n);

    for (uint32_t i = 0; i < n; i++)
        TRY(tier_add_copy(s, t, &page[i]));
    t->shape.copies += n;
    return 0;
}

static int tier_build_states(struct sched *s, struct batch *t) {
    uint32_t n;
    const struct kv_copy *state = kv_tier_consume_states(s->tier, &n);

    for (uint32_t i = 0; i < n; i++)
        TRY(tier_add_copy(s, t, &state[i]));
    t->shape.copies += n * s->states.pages;
    return 0;
}

int tier_build(struct sched *s, struct batch *t) {
    TRY(tier_build_pages(s, t));
    return tier_build_states(s, t);
}

/* ---- prices and memory ---- */

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

static void *tier_page(void *ctx, uint32_t page) {
    return engine_host_page(ctx, page);
}

static void *tier_snapshot(void *ctx, uint32_t snapshot) {
    return engine_host_snapshot(ctx, snapshot);
}

static void tier_set_snapshot(void *ctx, uint32_t snapshot, uint32_t n_tokens) {
    engine_set_snapshot(ctx, snapshot, n_tokens);
}

/* ---- life ---- */

int tier_init(struct sched *s, const struct kv_opts *device) {
    struct kv_tier_opts o = {
        .device = s->pager,
        .pager = *device,
        .n_host_pages = s->info->n_host_pages,
        .prices = {&s->cost, tier_compute_ns, tier_copy_ns},
        .memory =
            {
                .ctx = s->engine,
                .page_bytes = s->info->page_bytes,
                .state_bytes = s->info->state_bytes,
                .page = tier_page,
                .snapshot = tier_snapshot,
                .set_snapshot = tier_set_snapshot,
            },
        .media = s->info->picture_width > 0 ? &s->media : NULL,
        .clock = s->clock,
        .note_ctx = s->opts.disk.ctx,
        .note = s->opts.disk.note,
    };

    TRY(kv_tier_new(&s->tier, &o));
    s->view.tier = s->tier;
    return 0;
}

void tier_deinit(struct sched *s) {
    s->tier = kv_tier_free(s->tier);
}

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

static int open_file(struct sched *s) {
    const struct sched_disk *k = &s->opts.disk;
    CLEANUP(buf_deinit) struct buf id = {.max = TIER_IDENTITY};
    struct kv_tier_file file = {
        .fd = k->fd,
        .n_bytes = k->n_bytes,
        .daily_bytes = k->daily_bytes,
        .in_step = k->in_step,
    };

    TRY(add_identity(&id, s));
    file.identity = id.data;
    file.n_identity = id.len;
    return kv_tier_open(s->tier, &file);
}

void tier_open(struct sched *s) {
    const struct sched_disk *k = &s->opts.disk;

    if (s->opts.no_prefix_sharing || k->n_bytes == 0)
        return;
    int e = open_file(s);
    if (e < 0 && k->note)
        k->note(k->ctx, "the file cannot be used", e);
}

static void tier_advance(struct sched *s) {
    kv_tier_step(s->tier, s->n_launched, s->n_waited);
    tier_end_loads(s);
}

/* Leaves the disk tier if that was requested and everything is written. */
static void tier_end_disk(struct sched *s) {
    const struct sched_disk *k = &s->opts.disk;

    if (s->leave_disk_ns == INT64_MAX)
        return;
    bool late = sched_uses_disk(s) && kv_tier_is_saving(s->tier);
    if (late && clock_now(s->clock) < s->leave_disk_ns)
        return;
    if (late && k->note)
        k->note(k->ctx, "the file was left before all pages were written", 0);
    kv_tier_end_reads(s->tier);
    tier_end_loads(s);
    kv_tier_close(s->tier);
    s->leave_disk_ns = INT64_MAX;
}

void tier_step(struct sched *s) {
    tier_advance(s);
    tier_end_disk(s);
}

int64_t tier_wake_ns(const struct sched *s) {
    int64_t at = s->leave_disk_ns == INT64_MAX ? INT64_MAX : clock_now(s->clock) + LEAVE_LOOK_NS;

    return MIN(at, kv_tier_wake_ns(s->tier));
}

void sched_flush(struct sched *s, int64_t until_ns) {
    if (!sched_uses_disk(s) || sched_settle(s) < 0)
        return;
    while (clock_now(s->clock) < until_ns) {
        int copies = step_copies(s);

        if (copies < 0 || (copies == 0 && sched_settle(s) < 0))
            return;
        tier_advance(s);
        if (!kv_tier_is_saving(s->tier))
            return;
        if (copies == 1)
            kv_tier_sleep(s->tier, FLUSH_SLEEP_MS);
    }
}

void sched_use_disk(struct sched *s) {
    s->leave_disk_ns = INT64_MAX;
    if (!sched_uses_disk(s))
        tier_open(s);
}

void sched_release_disk(struct sched *s, int64_t until_ns) {
    s->leave_disk_ns = until_ns;
    if (!sched_uses_disk(s))
        return;
    LIST_FOREACH_ENTRY(r, &s->running, struct request, queued.link) {
        pin_save(&s->view, r, request_n_stored(r));
    }
}

bool sched_uses_disk(const struct sched *s) {
    return kv_tier_has_file(s->tier);
}

int sched_fd(const struct sched *s) {
    return kv_tier_fd(s->tier);
}

/* ---- statistics ---- */

void tier_stats(const struct sched *s, struct msg_stats *out) {
    struct kv_tier_stats t;

    kv_tier_stats(s->tier, &t);
    out->n_host_pages = t.n_host_pages;
    out->n_host_used = t.n_host_used;
    out->n_host_held = t.n_host_held;
    out->n_saved_tokens = t.n_saved_tokens;
    out->n_fetched_tokens = t.n_fetched_tokens;
    out->n_swapped = t.n_swapped;
    out->n_not_swapped = t.n_not_swapped;
    out->n_disk_pages = t.n_disk_pages;
    out->n_disk_used = t.n_disk_used;
    out->n_disk_snapshots = t.n_disk_snapshots;
    out->n_disk_bad = t.n_bad;
    out->n_disk_saved_tokens = t.n_disk_saved_tokens;
    out->n_disk_loaded_tokens = t.n_disk_loaded_tokens;
    out->n_disk_saved_snapshots = t.n_disk_saved_snapshots;
    out->n_disk_loaded_snapshots = t.n_disk_loaded_snapshots;
    out->n_disk_left_tokens = t.n_left_tokens;
}
