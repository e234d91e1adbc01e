#include "kvpager/disk_room.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/result.h"

#define RETRY_NS INT64_C(60000000000)
#define DAY_NS 86400e9
#define BUCKET_PART 24 /* the bucket holds a day's bytes divided by BUCKET_PART */

static uint32_t disk_room_pages_of_seq(uint32_t page_tokens, uint32_t max_seq_tokens) {
    return MAX(max_seq_tokens / page_tokens, 1u);
}

uint32_t disk_room_seqs(uint32_t n_slots, uint32_t page_tokens, uint32_t max_seq_tokens) {
    return n_slots / disk_room_pages_of_seq(page_tokens, max_seq_tokens) + 1;
}

static double capacity(const struct disk_room *r) {
    return MAX((double)r->opts.daily_bytes / BUCKET_PART, (double)r->opts.slot_bytes);
}

int disk_room_init(struct disk_room *r, const struct disk_room_opts *o) {
    *r = (struct disk_room){.opts = *o};
    r->n_max = 2 * disk_room_seqs(o->n_slots, o->page_tokens, o->max_seq_tokens);
    r->written = calloc((size_t)o->n_slots + o->n_states, sizeof(*r->written));
    r->state = calloc(MAX(o->n_states, 1u), sizeof(*r->state));
    r->held = calloc(r->n_max, sizeof(*r->held));
    r->bytes = capacity(r);
    r->filled_ns = clock_now(o->clock);
    return enomem_unless(r->written && r->held && r->state);
}

static void disk_room_release(struct disk_room *r) {
    while (r->n_held > 0)
        kv_seq_free(r->held[--r->n_held]);
    while (r->n_held_states > 0)
        kv_snapshot_free(r->opts.slots, r->state[--r->n_held_states]);
}

void disk_room_deinit(struct disk_room *r) {
    disk_room_release(r);
    free(r->held);
    free(r->state);
    free(r->written);
    *r = (struct disk_room){0};
}

static void disk_room_fill(struct disk_room *r, int64_t now) {
    r->bytes += (double)(now - r->filled_ns) * (double)r->opts.daily_bytes / DAY_NS;
    r->bytes = MIN(r->bytes, capacity(r));
    r->filled_ns = now;
}

uint32_t disk_room_for(struct disk_room *r, uint32_t n, uint64_t bytes) {
    int64_t now = clock_now(r->opts.clock);

    if (r->retry_ns && now >= r->retry_ns) {
        r->retry_ns = 0;
        r->stopped = false;
        disk_room_release(r);
    }
    if (r->stopped)
        return 0;
    if (r->opts.daily_bytes == 0)
        return n;
    disk_room_fill(r, now);
    return (uint32_t)MIN((double)n, r->bytes / (double)bytes);
}

void disk_room_spend(struct disk_room *r, uint64_t n_bytes) {
    r->bytes -= r->opts.daily_bytes ? (double)n_bytes : 0;
}

void disk_room_written(struct disk_room *r, uint32_t slot) {
    assert(slot < r->opts.n_slots + r->opts.n_states);
    r->written[slot] = true;
}

/* Withholds all free slots of states. */
static void withhold_states(struct disk_room *r) {
    struct kv_stats kv;

    kv_pager_stats(r->opts.slots, &kv);
    for (uint32_t n = kv.n_snapshots + r->n_held_states; n < r->opts.n_states; n++)
        r->state[r->n_held_states++] = kv_snapshot_acquire(r->opts.slots, NULL);
}

/* Withholds all free slots of pages: grown sequences hold them, each as many as the longest
 * sequence may have. */
static void withhold(struct disk_room *r) {
    uint32_t t = r->opts.page_tokens, max = disk_room_pages_of_seq(t, r->opts.max_seq_tokens);
    const struct kv_isolation none = {{0}};
    struct kv_stats kv;

    for (kv_pager_stats(r->opts.slots, &kv); kv.n_free > 0 && r->n_held < r->n_max;
         kv_pager_stats(r->opts.slots, &kv)) {
        uint32_t n = MIN(kv.n_free, max);
        struct kv_seq *s;

        if (kv_seq_new(&s, r->opts.slots, &none) < 0)
            return;
        if (kv_seq_grow(s, MIN(n * t, r->opts.max_seq_tokens)) != 0) {
            kv_seq_free(s);
            return;
        }
        assert(r->n_held < r->n_max);
        r->held[r->n_held++] = s;
    }
}

static bool disk_room_is_full(int error) {
    return error == -ENOSPC || error == -EDQUOT || error == -EFBIG;
}

bool disk_room_failed(struct disk_room *r, uint32_t slot, int error) {
    bool is_page = slot < r->opts.n_slots;
    struct kv_stats kv;

    assert(slot < r->opts.n_slots + r->opts.n_states && error < 0);
    r->retry_ns = clock_now(r->opts.clock) + RETRY_NS;
    r->stopped = !disk_room_is_full(error) || r->written[slot];
    if (r->stopped)
        return false;
    if (is_page)
        withhold(r);
    else
        withhold_states(r);
    kv_pager_stats(r->opts.slots, &kv);
    return (is_page ? kv.n_cached : kv.n_snapshots) > 0; /* slots that can be overwritten */
}

uint32_t disk_room_withheld(const struct disk_room *r) {
    uint32_t n = 0, n_pages;

    for (uint32_t i = 0; i < r->n_held; i++) {
        kv_seq_pages(r->held[i], &n_pages);
        n += n_pages;
    }
    return n;
}
