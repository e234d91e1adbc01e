/* tier - the scheduler's use of the disk tier: opened, left to another process, flushed. */

#include <errno.h>
#include <string.h>
#include "base/clock.h"
#include "scheduler/disk.h"
#include "scheduler/scheduler_private.h"

#define FLUSH_SLEEP_MS 50
#define LEAVE_LOOK_NS 10000000 /* between two looks whether the disk tier can be left */

static void note(void *ctx, struct request *r) {
    sched_note_pending(ctx, r);
}

static struct request *find(void *ctx, uint64_t id) {
    return *sched_slot(ctx, id);
}

/* All that the bytes of a page depend on. */
static void identify(const struct sched *s, struct disk_opts *o) {
    const struct engine_info *i = s->info;
    uint32_t kv_type = i->kv_type, blocks = i->n_slots > 0;
    struct buf b;

    buf_init(&b, sizeof(o->identity));
    int e = buf_add(&b, i->fingerprint, sizeof(i->fingerprint));
    e = e < 0 ? e : buf_add(&b, i->sources, sizeof(i->sources));
    e = e < 0 ? e : buf_add(&b, &kv_type, sizeof(kv_type));
    e = e < 0 ? e : buf_add(&b, &blocks, sizeof(blocks));
    e = e < 0 ? e : buf_add(&b, s->opts.disk.identity, sizeof(s->opts.disk.identity));
    e = e < 0 ? e : buf_printf(&b, "%.32s %.32s", i->backend, i->isa);
    o->n_identity = e < 0 ? 0 : b.len;
    if (e >= 0)
        memcpy(o->identity, b.data, b.len);
    buf_deinit(&b);
}

void tier_init(struct sched *s, bool use) {
    const struct sched_disk *k = &s->opts.disk;
    bool off = !use || s->opts.no_prefix_sharing;
    struct disk_load_opts o = {
        .page_tokens = s->rules.page_tokens,
        .clock = s->clock,
        .pager = s->pager,
        .offload = &s->offload,
        .waiting = &s->waiting,
        .compiling = &s->compiling,
        .find = find,
        .note_pending = note,
        .ctx = s,
    };
    struct disk_opts d = {
        .fd = k->fd,
        .n_bytes = off ? 0 : k->n_bytes,
        .daily_bytes = k->daily_bytes,
        .clock = s->clock,
        .pager = s->pager_opts,
        .host = s->offload.host,
        .engine = s->engine,
        .in_step = k->in_step,
        .note_ctx = k->ctx,
        .note = k->note,
    };

    if (d.n_bytes > 0)
        identify(s, &d);
    disk_load_init(&s->disk_load, &o, &d);
}

static void take(struct sched *s) {
    bool waits = s->offload.n_copies + s->states.n_loads > 0; /* to be copied by the next step */

    disk_load_step(&s->disk_load, s->n_launched + waits, s->n_waited);
}

static bool has_written(const struct sched *s) {
    return !offload_has_work(&s->offload) && !disk_is_saving(s->disk_load.disk);
}

/* Leaves the disk tier when that was asked for and nothing is left to be written. */
static void leave(struct sched *s) {
    if (s->leave_disk_ns == INT64_MAX ||
        (sched_uses_disk(s) && !has_written(s) && clock_now(s->clock) < s->leave_disk_ns))
        return;
    disk_load_leave(&s->disk_load);
    s->leave_disk_ns = INT64_MAX;
}

void tier_step(struct sched *s) {
    take(s);
    leave(s);
}

int64_t tier_wake_ns(const struct sched *s) {
    int64_t look = s->leave_disk_ns == INT64_MAX ? INT64_MAX : clock_now(s->clock) + LEAVE_LOOK_NS;

    return MIN(look, disk_load_wake_ns(&s->disk_load));
}

void sched_flush(struct sched *s, int64_t until_ns) {
    int r = s->disk_load.disk ? sched_settle(s) : -ENODEV;

    while (r >= 0 && clock_now(s->clock) < until_ns) {
        r = step_copies(s);
        if (r == 0)
            r = sched_settle(s);
        take(s);
        if (has_written(s))
            return;
        if (r == 1)
            disk_sleep(s->disk_load.disk, FLUSH_SLEEP_MS);
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
    LIST_FOREACH(node, &s->running) {
        struct request *r = LIST_ENTRY(node, struct request, queued.link);

        offload_save(&s->offload, &r->share, r->tokens, kv_seq_committed(r->seq),
                     pin_chance(&s->pins, r->session, r->tenant), false);
    }
}

bool sched_uses_disk(const struct sched *s) {
    return s->disk_load.disk != NULL;
}

int sched_fd(const struct sched *s) {
    return s->disk_load.disk ? disk_fd(s->disk_load.disk) : -1;
}

void tier_stats(const struct sched *s, struct msg_stats *out) {
    struct disk_stats d = {0};

    if (s->disk_load.disk)
        disk_stats(s->disk_load.disk, &d);
    out->n_disk_saved_tokens = d.n_saved_tokens;
    out->n_disk_loaded_tokens = d.n_loaded_tokens;
    out->n_disk_left_tokens = s->disk_load.n_left_tokens;
    out->n_disk_bad = d.n_bad;
    out->n_disk_pages = d.n_pages;
    out->n_disk_used = d.n_used;
    out->n_disk_snapshots = d.n_snapshots;
    out->n_disk_saved_snapshots = d.n_saved_snapshots;
    out->n_disk_loaded_snapshots = d.n_loaded_snapshots;
}
