/*
 * offload - copies prefixes to host memory and back. docs/design/prefix-tiers.md, "Host memory",
 * describes which ones, and when copying pays.
 *
 * The pages of host memory have a pager of the same kind as the device: saving a page there is what
 * computing it is here. A sequence of the host's pager attaches the pages that exist, grows, and
 * commits the copied ones; least recently used prefixes are evicted, leaves before parents. So
 * identity, collisions and eviction need no second mechanism, and the device's pager knows nothing
 * of the host.
 *
 * The order of copies makes this correct. The engine makes all copies of a step before its rows, in
 * the order in which they were decided. So a page may be given out again, on both sides, as soon as
 * its copy is decided, because whatever overwrites it comes later; and a page that is fetched can
 * be published at once, because every reader reads it later.
 *
 * Hybrid models: the snapshots of their states are always in host memory, and a page there has the
 * same snapshot as the page on the device (kvpager/snapshot.c), so snapshots are never copied.
 * Pages after the last snapshot of a prefix are of no use, and neither saved nor fetched.
 */

#include "kvpager/offload.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buggify.h"
#include "kvpager/disk.h"

int offload_init(struct offload *p, const struct kv_prices *prices, const struct kv_opts *device,
                 uint32_t n_host_pages, uint32_t state_pages) {
    struct kv_opts o = *device;

    *p = (struct offload){
        .prices = *prices, .page_tokens = o.page_tokens, .state_pages = state_pages};
    if (n_host_pages == 0)
        return 0;
    p->states = o.peer;
    o.n_states = 0; /* host memory computes nothing */
    o.n_pages = n_host_pages;
    o.max_seqs = OFFLOAD_JOBS + DISK_SAVES + DISK_LOADS + 1;
    return kv_pager_new(&p->host, &o);
}

static void offload_end_job(struct offload *p, uint32_t i) {
    assert(i < p->n_jobs);
    kv_seq_free(p->job[i].saved);
    free(p->job[i].tokens);
    memmove(&p->job[i], &p->job[i + 1], (--p->n_jobs - i) * sizeof(p->job[i]));
}

void offload_deinit(struct offload *p) {
    while (p->n_jobs > 0)
        offload_end_job(p, p->n_jobs - 1);
    kv_pager_free(p->host);
    free(p->copy);
    *p = (struct offload){0};
}

/* ---- gain of copies ---- */

bool offload_pays_with(const struct offload *p, uint32_t from, uint32_t to, double ns) {
    uint32_t n_pages = (to - from) / p->page_tokens + p->state_pages;

    assert(from <= to);
    return ns + p->prices.copy_ns(p->prices.ctx, n_pages) <
           p->prices.compute_ns(p->prices.ctx, from, to);
}

bool offload_pays(const struct offload *p, uint32_t from, uint32_t to) {
    return offload_pays_with(p, from, to, 0);
}

/* Makes room for @n more copies. Returns false without memory. */
static bool reserve_copies(struct offload *p, uint32_t n) {
    if (BUGGIFY(host_no_memory))
        return false;
    if (p->n_copies + n <= p->cap)
        return true;
    uint32_t cap = MAX(2 * p->cap, p->n_copies + n);
    struct kv_copy *c = realloc(p->copy, cap * sizeof(*c));

    if (!c)
        return false;
    p->copy = c;
    p->cap = cap;
    return true;
}

static void add_copy(struct offload *p, enum kv_copy_kind kind, kv_page src, kv_page dst) {
    assert(p->n_copies < p->cap);
    p->copy[p->n_copies++] = (struct kv_copy){src, dst, kind};
}

/* ---- to the host ---- */

/* Saves the next @n pages of @tokens after those of @saved, from the device's pages @page. Returns
 * false if host memory is full or memory is short. */
static bool save_pages(struct offload *p, struct kv_seq *saved, const int32_t *tokens,
                       const kv_page *page, uint32_t n) {
    uint32_t t = p->page_tokens, from = kv_seq_committed(saved) / t, n_pages;

    if (!reserve_copies(p, n) || kv_seq_grow(saved, (from + n) * t) == KV_FULL)
        return false;
    const kv_page *to = kv_seq_pages(saved, &n_pages);
    for (uint32_t i = 0; i < n; i++)
        add_copy(p, KV_PAGE_SAVE, page[i], to[from + i]);
    kv_seq_commit(saved, tokens, (from + n) * t);
    for (uint32_t i = 0; p->states && i < n; i++)
        kv_seq_share_snapshot(saved, from + i, page[i]);
    p->counts.n_saved_tokens += n * t;
    return true;
}

/* Returns how many of @tokens[0, n_tokens) are a usable prefix in host memory; hybrid models
 * continue only at a snapshot. */
static uint32_t useful(const struct offload *p, const struct kv_isolation *share,
                       const int32_t *tokens, uint32_t n_tokens) {
    if (!p->states)
        return n_tokens;
    return kv_pager_match(p->states, share, tokens, n_tokens).n_tokens;
}

/* Returns a sequence of the host's pager with the pages of @tokens that it has; NULL: no memory. */
static struct kv_seq *open_saved(struct offload *p, const struct kv_isolation *share,
                                 const int32_t *tokens, uint32_t n_tokens) {
    struct kv_seq *s = NULL;

    if (kv_seq_new(&s, p->host, share) < 0)
        return NULL;
    kv_seq_attach(s, tokens, n_tokens);
    return s;
}

/* Returns open_saved() after giving pages in host memory the snapshots that the device's pages have
 * by now. */
static struct kv_seq *open_to_save(struct offload *p, const struct kv_isolation *share,
                                   const int32_t *tokens, uint32_t n_tokens) {
    struct kv_seq *s = open_saved(p, share, tokens, n_tokens);
    uint32_t n = 64, from = 0;
    kv_page page[64];

    for (; s && p->states && n == ARRAY_SIZE(page); from += n) {
        n = kv_pager_find(p->states, share, tokens, kv_seq_committed(s), from, page, n);
        for (uint32_t i = 0; i < n; i++)
            kv_seq_share_snapshot(s, from + i, page[i]);
    }
    return s;
}

void offload_save(struct offload *p, const struct kv_isolation *share, const int32_t *tokens,
                  uint32_t n_tokens, bool returns) {
    n_tokens -= n_tokens % p->page_tokens;
    if (!p->host || n_tokens == 0)
        return;
    int32_t *copy = malloc(n_tokens * sizeof(*copy));
    if (!copy)
        return;
    memcpy(copy, tokens, n_tokens * sizeof(*copy));
    if (p->n_jobs == OFFLOAD_JOBS || (p->n_jobs > 0 && BUGGIFY(host_queue_full)))
        offload_end_job(p, 0);
    p->job[p->n_jobs++] = (struct offload_job){
        .share = *share, .tokens = copy, .n_tokens = n_tokens, .returns = returns};
}

/* Saves the first @n pages of @seq that host memory lacks. Returns false if that is no gain. */
static bool offload_save_now(struct offload *p, const struct kv_seq *seq,
                             const struct kv_isolation *share, const int32_t *tokens, uint32_t n) {
    uint32_t room = OFFLOAD_SWAP_PAGES - MIN(OFFLOAD_SWAP_PAGES, p->n_copies), t = p->page_tokens;
    struct kv_seq *saved = open_to_save(p, share, tokens, n * t);
    uint32_t n_pages, from = saved ? kv_seq_committed(saved) / t : n;
    uint32_t more = MIN(n - from, room);
    bool pays = offload_pays(p, from * t, (from + more) * t);

    if (pays && more > 0)
        save_pages(p, saved, tokens, kv_seq_pages(seq, &n_pages) + from, more);
    kv_seq_free(saved);
    return pays || n == from;
}

void offload_swap(struct offload *p, const struct kv_seq *seq, const struct kv_isolation *share,
                  const int32_t *tokens) {
    uint32_t n_tokens = kv_seq_committed(seq) / p->page_tokens * p->page_tokens;
    uint32_t n = useful(p, share, tokens, n_tokens) / p->page_tokens;

    if (n_tokens == 0)
        return;
    if (p->host && n > 0 && !BUGGIFY(host_not_swapped) &&
        offload_save_now(p, seq, share, tokens, n))
        p->counts.n_swapped++;
    else
        p->counts.n_not_swapped++;
}

/* Saves the next pages of @j. Returns false when the job is finished. */
static bool work_on(struct offload *p, const struct kv_pager *device, struct offload_job *j,
                    uint32_t *left) {
    kv_page page[OFFLOAD_IDLE_PAGES];
    uint32_t t = p->page_tokens;

    if (!j->saved) {
        j->n_tokens = useful(p, &j->share, j->tokens, j->n_tokens);
        j->saved = open_to_save(p, &j->share, j->tokens, j->n_tokens);
    }
    if (!j->saved)
        return false;
    uint32_t from = kv_seq_committed(j->saved) / t;
    uint32_t n = kv_pager_find(device, &j->share, j->tokens, j->n_tokens, from, page, *left);
    if (n == 0 || !save_pages(p, j->saved, j->tokens, page, n))
        return false;
    *left -= n;
    return (from + n) * t < j->n_tokens;
}

/* Ends @j and gives its pages in host memory to the disk, unless its session is unlikely to
 * return. */
static void pass_on(struct offload *p, struct offload_job *j, uint64_t step) {
    if (!p->disk || !j->saved || !j->returns || kv_seq_committed(j->saved) == 0)
        return;
    /* Step @step, if any, copies the last pages. */
    disk_save(p->disk, STEAL(j->saved), STEAL(j->tokens), j->n_tokens, step - (p->n_copies == 0));
}

void offload_work(struct offload *p, const struct kv_pager *device, bool idle, uint64_t step) {
    uint32_t left = idle ? OFFLOAD_IDLE_PAGES : OFFLOAD_SAVE_PAGES;

    while (p->n_jobs > 0 && left > 0)
        if (!work_on(p, device, &p->job[0], &left)) {
            pass_on(p, &p->job[0], step);
            offload_end_job(p, 0);
        }
}

/* ---- back to the device ---- */

uint32_t offload_has(const struct offload *p, const struct kv_isolation *share,
                     const int32_t *tokens, uint32_t n_tokens) {
    if (!p->host)
        return 0;
    return kv_pager_match(p->host, share, tokens, n_tokens).n_tokens;
}

uint32_t offload_fetch(struct offload *p, struct kv_pager *device, struct kv_seq *seq,
                       const struct kv_isolation *share, const int32_t *tokens, uint32_t n_tokens,
                       uint32_t max_pages, uint32_t reserve) {
    uint32_t t = p->page_tokens, from = kv_seq_committed(seq) / t, n_pages, n;
    struct kv_seq *saved = p->host ? open_saved(p, share, tokens, n_tokens) : NULL;

    if (!saved)
        return from * t;
    uint32_t available = kv_pager_available(device), end = kv_seq_committed(saved) / t;
    max_pages = BUGGIFY(host_fetches_one) ? MIN(max_pages, 1) : max_pages;
    end = MIN(end, from + MIN(max_pages, available > reserve ? available - reserve : 0));
    if (end > from && reserve_copies(p, end - from) && kv_seq_grow(seq, end * t) == 0) {
        const kv_page *src = kv_seq_pages(saved, &n_pages), *dst = kv_seq_pages(seq, &n);

        for (uint32_t i = from; i < end; i++)
            add_copy(p, KV_PAGE_FETCH, src[i], dst[i]);
        kv_seq_commit(seq, tokens, end * t);
        for (uint32_t i = from; p->states && i < end; i++)
            kv_seq_share_snapshot(seq, i, src[i]);
        p->n_fetched += end - from;
        p->counts.n_fetched_tokens += (end - from) * t;
    }
    kv_seq_free(saved);
    return kv_seq_committed(seq);
}

uint32_t offload_fetch_room(const struct offload *p) {
    return OFFLOAD_FETCH_PAGES - MIN(OFFLOAD_FETCH_PAGES, p->n_fetched);
}

void offload_taken(struct offload *p) {
    assert(p->n_fetched <= p->n_copies);
    p->n_copies = p->n_fetched = 0;
}
