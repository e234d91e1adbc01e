#include "scheduler/disk_load.h"

#include <string.h>
#include "scheduler/private.h"

#define PATIENCE_NS INT64_C(2000000000) /* a disk that takes longer is not waited for */

static void put_into_queue(struct sched *s, struct request *r) {
    r->loading = r->compiling = false;
    list_remove(&r->queued.link);
    sched_note_news(s, r);
    queue_insert(&s->waiting, &r->queued);
}

static void on_loaded(void *ctx, uint64_t id) {
    struct sched *s = ctx;
    struct request *r = *sched_slot(s, id);

    if (r && r->loading)
        put_into_queue(s, r);
}

/* All that the bytes of a page depend on. */
static void identify(const struct sched *s, struct disk_opts *o) {
    const struct engine_info *i = s->info;
    uint32_t kv_type = i->kv_type;
    struct buf b;

    buf_init(&b, sizeof(o->identity));
    int e = buf_add(&b, i->fingerprint, sizeof(i->fingerprint));
    e = e < 0 ? e : buf_add(&b, i->sources, sizeof(i->sources));
    e = e < 0 ? e : buf_add(&b, &kv_type, sizeof(kv_type));
    e = e < 0 ? e : buf_add(&b, s->opts.disk.identity, sizeof(s->opts.disk.identity));
    e = e < 0 ? e : buf_printf(&b, "%.32s %.32s %.4s", i->backend, i->isa, i->recipe);
    o->n_identity = e < 0 ? 0 : b.len;
    if (e >= 0)
        memcpy(o->identity, b.data, b.len);
    buf_deinit(&b);
}

void disk_load_init(struct sched *s) {
    const struct sched_disk *k = &s->opts.disk;
    struct disk_opts o = {
        .fd = k->fd,
        .n_bytes = k->n_bytes,
        .daily_bytes = k->daily_bytes,
        .clock = s->clock,
        .pager = s->pager_opts,
        .host = s->offload.host,
        .engine = s->engine,
        .in_step = k->in_step,
        .ctx = s,
        .loaded = on_loaded,
        .note_ctx = k->ctx,
        .note = k->note,
    };

    if (k->n_bytes == 0 || s->opts.no_prefix_sharing)
        return;
    identify(s, &o);
    int e = disk_new(&s->disk, &o);
    if (e < 0 && k->note)
        k->note(k->ctx, "the file cannot be used", e);
    s->offload.disk = s->disk;
}

bool disk_load_begin(struct sched *s, struct request *r) {
    uint32_t n = request_shareable(r);

    if (!s->disk)
        return false;
    uint32_t on_disk = disk_has(s->disk, &r->share, r->tokens, n);
    if (on_disk == 0)
        return false;
    uint32_t host = offload_has(&s->offload, &r->share, r->tokens, n);
    uint32_t device = kv_pager_match(s->pager, &r->share, r->tokens, n).n_tokens;
    uint32_t have = MAX(host, device);
    if (on_disk <= have)
        return false;
    double read_ns = disk_read_ns(s->disk, (on_disk - host) / s->rules.page_tokens);
    if (read_ns > (double)PATIENCE_NS || !offload_pays_with(&s->offload, have, on_disk, read_ns)) {
        s->n_disk_left += on_disk - have;
        return false;
    }
    if (disk_load(s->disk, r->id, &r->share, r->tokens, on_disk) < 0)
        return false;
    r->loading = r->compiling = true;
    r->loading_ns = clock_now(s->clock);
    list_push_back(&s->compiling, &r->queued.link);
    return true;
}

void disk_load_cancel(struct sched *s, struct request *r) {
    disk_cancel(s->disk, r->id);
    r->loading = r->compiling = false;
}

void disk_load_step(struct sched *s) {
    if (!s->disk)
        return;
    disk_step(s->disk, s->n_launched + (s->offload.n_copies > 0), s->n_waited);
    if (list_empty(&s->compiling))
        return;
    int64_t now = clock_now(s->clock);
    LIST_FOREACH(node, &s->compiling) {
        struct request *r = LIST_ENTRY(node, struct request, queued.link);

        if (!r->loading || now - r->loading_ns < PATIENCE_NS)
            continue;
        disk_cancel(s->disk, r->id);
        put_into_queue(s, r);
    }
}

int64_t disk_load_wake_ns(const struct sched *s) {
    int64_t wake = INT64_MAX;

    LIST_FOREACH(node, &s->compiling) {
        const struct request *r = LIST_ENTRY(node, const struct request, queued.link);

        if (r->loading)
            wake = MIN(wake, r->loading_ns + PATIENCE_NS);
    }
    return wake;
}

void disk_load_stats(const struct sched *s, struct msg_stats *out) {
    struct disk_stats d = {0};

    if (s->disk)
        disk_stats(s->disk, &d);
    out->n_disk_saved_tokens = d.n_saved_tokens;
    out->n_disk_loaded_tokens = d.n_loaded_tokens;
    out->n_disk_left_tokens = s->n_disk_left;
    out->n_disk_bad = d.n_bad;
    out->n_disk_pages = d.n_pages;
    out->n_disk_used = d.n_used;
}
