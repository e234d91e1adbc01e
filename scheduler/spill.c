/*
 * spill - how prefixes get to host memory and back.
 *
 * The host's pages have a pager of their own, of the same kind: saving a page is what computing it is on the device.
 * A sequence of the host takes over what is there (attach), grows, and commits what is copied; least recently used
 * prefixes leave when room is needed, leaves before parents. So nothing has to be invented for identity, collisions
 * or eviction, and the device's pager knows nothing of the host.
 *
 * When: a turn that has ended is saved in the steps that follow, some pages in each, as long as the device still has
 * them; so eviction never waits for a copy. A request that yields is saved at once, since its pages are written next.
 * What a request needs and only the host has is copied back in place of being computed: after it has been admitted, and
 * some pages in each step where others decode, all at once where nobody does.
 *
 * The order makes it right. All copies of a step are made before its rows are computed, one after the other in
 * the order in which they were decided (the engine's contract). So a page may be given out again as soon as its copy has
 * been decided, on both sides: whatever overwrites it comes later. A page that is fetched can be published at once:
 * whoever reads it reads it later.
 */

#include "scheduler/spill.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int spill_init(struct spill *p, const struct kv_opts *device, uint32_t n_host_pages) {
    struct kv_opts o = *device;

    *p = (struct spill){.page_tokens = device->page_tokens};
    if (n_host_pages == 0)
        return 0;
    o.n_pages = n_host_pages;
    o.max_seqs = SPILL_JOBS + 1;
    return kv_pager_new(&p->host, &o);
}

static void end_job(struct spill *p) {
    struct spill_job *j = &p->job[p->first % SPILL_JOBS];

    kv_seq_free(j->saved);
    free(j->tokens);
    *j = (struct spill_job){0};
    p->first++;
    p->n_jobs--;
}

void spill_deinit(struct spill *p) {
    while (p->n_jobs > 0)
        end_job(p);
    kv_pager_free(p->host);
    free(p->copy);
    *p = (struct spill){0};
}

/* Room for @n copies more. */
static bool reserve_copies(struct spill *p, uint32_t n) {
    if (p->n_copies + n <= p->cap)
        return true;
    uint32_t cap = MAX(2 * p->cap, p->n_copies + n);
    struct engine_copy *c = realloc(p->copy, cap * sizeof(*c));

    if (!c)
        return false;
    p->copy = c;
    p->cap = cap;
    return true;
}

static void add_copy(struct spill *p, enum engine_copy_dir dir, uint32_t src, uint32_t dst) {
    p->copy[p->n_copies++] = (struct engine_copy){.src = src,
                                                  .dst = dst,
                                                  .n_tokens = (uint16_t)p->page_tokens,
                                                  .cls = KV_GLOBAL,
                                                  .dir = (uint8_t)dir};
}

/* ---- to the host ---- */

/* Saves the next @n pages of @tokens behind what @saved has, from the device's @page. false: the host has no room, or
 * there is no memory. */
static bool save_pages(struct spill *p, struct kv_seq *saved, const int32_t *tokens,
                       const kv_page *page, uint32_t n) {
    uint32_t t = p->page_tokens, from = kv_seq_committed(saved) / t, n_pages;

    if (!reserve_copies(p, n) || kv_seq_grow(saved, (from + n) * t) == KV_FULL)
        return false;
    const kv_page *to = kv_seq_pages(saved, &n_pages);
    for (uint32_t i = 0; i < n; i++)
        add_copy(p, COPY_D2H, page[i], to[from + i]);
    kv_seq_commit(saved, tokens, (from + n) * t);
    p->n_saved_tokens += n * t;
    return true;
}

/* A sequence of the host that has what is there of @tokens. */
static struct kv_seq *open_saved(struct spill *p, const struct kv_share *share,
                                 const int32_t *tokens, uint32_t n_tokens) {
    struct kv_seq *s = NULL;

    if (kv_seq_new(&s, p->host, share) < 0)
        return NULL;
    kv_seq_attach(s, tokens, n_tokens);
    return s;
}

void spill_save(struct spill *p, const struct kv_share *share, const int32_t *tokens,
                uint32_t n_tokens) {
    n_tokens -= n_tokens % p->page_tokens;
    if (!p->host || n_tokens == 0)
        return;
    int32_t *copy = malloc(n_tokens * sizeof(*copy));
    if (!copy)
        return;
    memcpy(copy, tokens, n_tokens * sizeof(*copy));
    if (p->n_jobs == SPILL_JOBS)
        end_job(p);
    p->job[(p->first + p->n_jobs++) % SPILL_JOBS] =
        (struct spill_job){.share = *share, .tokens = copy, .n_tokens = n_tokens};
}

void spill_swap(struct spill *p, const struct kv_seq *seq, const struct kv_share *share,
                const int32_t *tokens) {
    uint32_t n_pages, n = kv_seq_committed(seq) / p->page_tokens;
    struct kv_seq *saved = p->host ? open_saved(p, share, tokens, n * p->page_tokens) : NULL;

    if (!saved)
        return;
    uint32_t from = kv_seq_committed(saved) / p->page_tokens;
    if (n > from)
        save_pages(p, saved, tokens, kv_seq_pages(seq, &n_pages) + from,
                   MIN(n - from, SPILL_SWAP_PAGES));
    kv_seq_free(saved);
}

/* The next pages of the first job. false: it is over. */
static bool work_on(struct spill *p, const struct kv_pager *device, struct spill_job *j,
                    uint32_t *left) {
    kv_page page[SPILL_SAVE_PAGES];
    uint32_t t = p->page_tokens;

    if (!j->saved)
        j->saved = open_saved(p, &j->share, j->tokens, j->n_tokens);
    if (!j->saved)
        return false;
    uint32_t from = kv_seq_committed(j->saved) / t;
    uint32_t n = kv_pager_find(device, &j->share, j->tokens, j->n_tokens, from, page, *left);
    if (n == 0 || !save_pages(p, j->saved, j->tokens, page, n))
        return false;
    *left -= n;
    return (from + n) * t < j->n_tokens;
}

void spill_work(struct spill *p, const struct kv_pager *device) {
    uint32_t left = SPILL_SAVE_PAGES;

    while (p->n_jobs > 0 && left > 0)
        if (!work_on(p, device, &p->job[p->first % SPILL_JOBS], &left))
            end_job(p);
}

/* ---- back to the device ---- */

uint32_t spill_has(const struct spill *p, const struct kv_share *share, const int32_t *tokens,
                   uint32_t n_tokens) {
    return p->host ? kv_pager_match(p->host, share, tokens, n_tokens).n_tokens : 0;
}

uint32_t spill_fetch(struct spill *p, struct kv_pager *device, struct kv_seq *seq,
                     const struct kv_share *share, const int32_t *tokens, uint32_t n_tokens,
                     uint32_t max_pages, uint32_t reserve) {
    uint32_t t = p->page_tokens, from = kv_seq_committed(seq) / t, n_pages, n;
    struct kv_seq *saved = p->host ? open_saved(p, share, tokens, n_tokens) : NULL;

    if (!saved)
        return from * t;
    uint32_t available = kv_pager_available(device), end = kv_seq_committed(saved) / t;
    end = MIN(end, from + MIN(max_pages, available > reserve ? available - reserve : 0));
    if (end > from && reserve_copies(p, end - from) && kv_seq_grow(seq, end * t) == 0) {
        const kv_page *src = kv_seq_pages(saved, &n_pages), *dst = kv_seq_pages(seq, &n);

        for (uint32_t i = from; i < end; i++)
            add_copy(p, COPY_H2D, src[i], dst[i]);
        kv_seq_commit(seq, tokens, end * t);
        p->n_fetched += end - from;
        p->n_fetched_tokens += (end - from) * t;
    }
    kv_seq_free(saved);
    return kv_seq_committed(seq);
}

void spill_take(struct spill *p, struct engine_copy *out) {
    if (p->n_copies > 0)
        memcpy(out, p->copy, p->n_copies * sizeof(*out));
    p->n_copies = p->n_fetched = 0;
}
