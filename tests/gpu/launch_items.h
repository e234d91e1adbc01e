#pragma once

/*
 * launch_items - what the blocks of attention read, by the lists that plan() has made for the last
 * step. Part of layerbench.c, for --dump.
 */

#include "engine/ops/attention/kernels_attention.h"

/* Keys of a sequence in a layer that items have read: @start to @end - 1 of page table @page0. */
struct item_keys {
    const uint8_t *pages;
    uint32_t page0, start, end;
};

static struct {
    struct item_keys *all;
    size_t n, room;
} items_seen;

static void items_fetch(const struct variant *v, void *to, const void *from, size_t n) {
    const struct cuda_api *api = bench.launches->api;

    bench_must(api->copy(to, from, n, CUDA_TO_HOST, v->stream), "copy");
    bench_must(api->stream_wait(v->stream), "copy");
}

/* Returns the keys that an item reads, if no window hides some. */
static struct item_keys item_reads(const struct attend_args *a, const struct attn_item *item) {
    uint32_t last = item->pos0 + (item->q0 + item->n_q - 1) / a->group;
    struct item_keys k = {a->pages, item->page0, item->shared.n_chunks * ATTN_CHUNK, last + 1};

    if (item->chunk < 0)
        return k;
    k.start = (uint32_t)item->chunk * ATTN_CHUNK;
    k.end = MIN(k.end, k.start + item->n_run * ATTN_CHUNK);
    return k;
}

/* Returns how many of an item's keys no item before it has read. Items of a sequence either begin
 * at the same key or read different chunks. */
static uint32_t items_see(const struct item_keys *k) {
    for (size_t i = 0; i < items_seen.n; i++) {
        struct item_keys *s = &items_seen.all[i];
        uint32_t end = s->end;

        if (s->pages != k->pages || s->page0 != k->page0 || s->start != k->start)
            continue;
        s->end = MAX(end, k->end);
        return s->end - end;
    }
    if (items_seen.n == items_seen.room) {
        items_seen.room = 2 * items_seen.room + 64;
        items_seen.all = realloc(items_seen.all, items_seen.room * sizeof(*items_seen.all));
        if (!items_seen.all)
            abort();
    }
    items_seen.all[items_seen.n++] = *k;
    return k->end - k->start;
}

/* Returns true for kernels that take the list of items of many queries. */
static bool items_are_wide(const char *kernel) {
    static const char *const those[] = {"attend_wide_64", "attend_wide_128", "attend_wgmma"};

    for (size_t i = 0; i < ARRAY_SIZE(those); i++)
        if (strncmp(kernel, those[i], strlen(those[i])) == 0)
            return true;
    return false;
}

/* Sets the members of @r that are of attention. */
static void items_note_attend(const struct variant *v, struct launch_record *r) {
    bool wide = items_are_wide(r->name);
    struct attend_args a;
    struct batch_head head;

    memcpy(&a, r->args, sizeof(a));
    items_fetch(v, &head, a.batch, sizeof(head));
    const struct attn_item *from = wide ? head.wide_item : head.item;
    uint64_t bytes = page_head_bytes(&a.shape) / a.shape.page_tokens;
    r->n_items = wide ? head.n_wide_items : head.n_items;
    struct attn_item *item = calloc(r->n_items + 1, sizeof(*item));
    if (!item)
        abort();
    items_fetch(v, item, from, r->n_items * sizeof(*item));
    for (uint32_t i = 0; i < r->n_items; i++) {
        const struct item_keys k = item_reads(&a, &item[i]);
        uint32_t tiles = (k.end + ATTN_TILE - 1) / ATTN_TILE - k.start / ATTN_TILE;
        uint64_t n = (k.end - k.start) * bytes;

        r->item_bytes = MAX(r->item_bytes, n);
        r->item_tiles = MAX(r->item_tiles, tiles);
        r->n_tiles += (uint64_t)tiles * r->grid_y;
        r->read_bytes += n * r->grid_y;
        r->memory_bytes += items_see(&k) * bytes * r->grid_y;
    }
    free(item);
}

/* Sets what merge() reads, and attention has written before: results of the chunks. */
static void items_note_merge(const struct variant *v, struct launch_record *r) {
    struct attend_args a;
    struct batch_head head;

    memcpy(&a, r->args, sizeof(a));
    items_fetch(v, &head, a.batch, sizeof(head));
    struct attn_merge *merge = calloc(head.n_merges + 1, sizeof(*merge));
    if (!merge)
        abort();
    items_fetch(v, merge, head.merge, head.n_merges * sizeof(*merge));
    r->n_items = head.n_merges;
    for (uint32_t i = 0; i < head.n_merges; i++) {
        uint64_t n = (uint64_t)merge[i].n_q * merge[i].n_chunks * a.partial_stride * sizeof(float);

        r->item_bytes = MAX(r->item_bytes, n);
        r->read_bytes += 2 * n * r->grid_y;
    }
    free(merge);
}

/* Completes the records of a step whose launches have all run. */
static void items_note(const struct variant *v) {
    items_seen.n = 0;
    for (uint32_t i = 0; i < v->n_launches; i++) {
        struct launch_record *r = &v->launch[i];
        bool other = strncmp(r->name, "attend_sparse", 13) == 0 ||
                     strncmp(r->name, "attend_compressed", 17) == 0;

        if (strcmp(r->name, "merge") == 0)
            items_note_merge(v, r);
        else if (strncmp(r->name, "attend", 6) == 0 && !other)
            items_note_attend(v, r);
    }
}
