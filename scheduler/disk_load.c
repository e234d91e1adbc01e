#include "scheduler/disk_load.h"

#include <assert.h>
#include "base/clock.h"
#include "kvpager/kvpager.h"
#include "scheduler/disk.h"
#include "scheduler/offload.h"

#define PATIENCE_NS INT64_C(2000000000) /* a disk that takes longer is not waited for */

static void put_into_queue(struct disk_load *l, struct request *r) {
    assert(r->loading && r->state == REQUEST_WAITING);
    r->loading = r->compiling = false;
    list_remove(&r->queued.link);
    l->opts.note_pending(l->opts.ctx, r);
    queue_insert(l->opts.waiting, &r->queued);
}

static void on_loaded(void *ctx, uint64_t id) {
    struct disk_load *l = ctx;
    struct request *r = l->opts.find(l->opts.ctx, id);

    if (r && r->loading)
        put_into_queue(l, r);
}

void disk_load_init(struct disk_load *l, const struct disk_load_opts *opts,
                    struct disk_opts *disk) {
    *l = (struct disk_load){.opts = *opts};
    if (disk->n_bytes == 0)
        return;
    disk->ctx = l;
    disk->loaded = on_loaded;
    int e = disk_new(&l->disk, disk);
    if (e < 0 && disk->note)
        disk->note(disk->note_ctx, "the file cannot be used", e);
    l->opts.offload->disk = l->disk;
}

void disk_load_deinit(struct disk_load *l) {
    l->disk = disk_free(l->disk);
}

void disk_load_leave(struct disk_load *l) {
    LIST_FOREACH(node, l->opts.compiling) {
        struct request *r = LIST_ENTRY(node, struct request, queued.link);

        if (r->loading)
            put_into_queue(l, r);
    }
    l->opts.offload->disk = NULL;
    l->disk = disk_free(l->disk);
}

bool disk_load_begin(struct disk_load *l, struct request *r) {
    uint32_t n = request_shareable(r);

    if (!l->disk)
        return false;
    uint32_t on_disk = disk_has(l->disk, &r->share, r->tokens, n);
    if (on_disk == 0)
        return false;
    uint32_t host = offload_has(l->opts.offload, &r->share, r->tokens, n);
    uint32_t device = kv_pager_match(l->opts.pager, &r->share, r->tokens, n).n_tokens;
    uint32_t have = MAX(host, device);
    if (on_disk <= have)
        return false;
    double read_ns = disk_read_ns(l->disk, (on_disk - host) / l->opts.page_tokens);
    if (read_ns > (double)PATIENCE_NS ||
        !offload_pays_with(l->opts.offload, have, on_disk, read_ns)) {
        l->n_left_tokens += on_disk - have;
        return false;
    }
    if (disk_load(l->disk, r->id, &r->share, r->tokens, on_disk) < 0)
        return false;
    assert(!r->loading && !r->compiling && list_empty(&r->queued.link));
    r->loading = r->compiling = true;
    r->loading_ns = clock_now(l->opts.clock);
    list_push_back(l->opts.compiling, &r->queued.link);
    return true;
}

void disk_load_cancel(struct disk_load *l, struct request *r) {
    assert(l->disk && r->loading);
    disk_cancel(l->disk, r->id);
    r->loading = r->compiling = false;
}

void disk_load_step(struct disk_load *l, uint64_t n_decided, uint64_t n_waited) {
    if (!l->disk)
        return;
    disk_step(l->disk, n_decided, n_waited);
    if (list_empty(l->opts.compiling))
        return;
    int64_t now = clock_now(l->opts.clock);
    LIST_FOREACH(node, l->opts.compiling) {
        struct request *r = LIST_ENTRY(node, struct request, queued.link);

        if (!r->loading || now - r->loading_ns < PATIENCE_NS)
            continue;
        disk_cancel(l->disk, r->id);
        put_into_queue(l, r);
    }
}

int64_t disk_load_wake_ns(const struct disk_load *l) {
    int64_t wake = INT64_MAX;

    LIST_FOREACH(node, l->opts.compiling) {
        const struct request *r = LIST_ENTRY(node, const struct request, queued.link);

        if (r->loading)
            wake = MIN(wake, r->loading_ns + PATIENCE_NS);
    }
    return wake;
}
