/*
 * pager - sequences and their page tables.
 *
 * Invariants (kv_pager_check() verifies them by recounting, check.c):
 *
 *  1. A page is free, owned, shared or cached; the four counts add up to n_pages.
 *  2. A page's reference count equals the number of page tables that hold it.
 *  3. Only a full page whose tokens are all committed is ever shared or cached, never a page that
 *     holds draft tokens.
 *  4. A shared page is never written. (Only full pages are shared, so nothing is copied on write.)
 *  5. A shared or cached page's key is the hash chain of (parent key, its tokens, isolation key,
 *     model fingerprint). The hash only selects candidates; a hit compares parent page, isolation
 *     key and tokens. So no two published pages have the same parent, isolation key and tokens.
 *     Rows of pictures are in the tokens as numbers, one for each content (media.h).
 *  6. A recurrent state snapshot exists only at a committed, page-aligned position: it belongs to
 *     one published page, which knows it; else it is free, or taken by a caller. Between pagers
 *     that are peers it may belong to a page of each, which have the same prefix, unless it is
 *     passing.
 *  7. A sequence's pages are a prefix-closed list: page i exists before page i + 1. The parent of a
 *     published page in a table is the page before it in that table.
 *  8. Freed and evicted exactly once; eviction takes leaves before parents.
 *  9. A state slot is free or belongs to one sequence. If the pager has slots, every sequence
 *     except pinned ones has one.
 * 10. A window page is free or belongs to one page, which knows it and is not free. Its reference
 *     count is the number of sequences that hold it: sequences, not pinned, whose page table has
 *     the page at or behind their n_behind, the first page that a row behind the published pages
 *     reads. A window page without holders is idle. If the pager has window pages, every page at or
 *     behind n_behind of such a sequence has one.
 *
 * States of a page, and the functions that change them:
 *
 *                  grow                    commit
 *        free ---------------> owned ------------------> shared
 *         ^ ^                    |                        |  ^
 *         | '--------------------'          last holder's |  | attach, commit
 *         |    truncate, free,               truncate or  |  | (an equal page exists)
 *         |    commit (an equal page exists)     free     v  |
 *         '--------------------------------------------- cached
 *                  grow (evicts), drop_cached
 *
 *  free     in pool.free. Its bytes are garbage.
 *  owned    in exactly one page table, which may write it. Unknown to others.
 *  shared   published: in the prefix table, held by one or more page tables, never written.
 *  cached   published, without holders, in evict.idle. The next attach or eviction takes it.
 *
 * A page table is [published pages][owned pages]: the first n_committed / page_tokens pages are
 * published, then come the page that is being filled and room that was grown ahead.
 *
 * Available pages are the free and the cached ones: a cached page never has a held descendant
 * (a sequence that holds a page holds those before it), so all cached pages can be evicted, leaves
 * first. Everything is allocated in kv_pager_new(): sequences come from a fixed array, each with a
 * page table of the greatest length.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/buggify.h"
#include "base/try.h"
#include "kvpager/kvpager.h"
#include "kvpager/private.h"

static int pager_init(struct kv_pager *p, const struct kv_opts *opts) {
    size_t n_tables;

    p->opts = *opts;
    list_init(&p->seqs);
    list_init(&p->unused_seqs);
    evict_init(&p->evict);
    TRY(pool_init(&p->pool, opts->n_pages, opts->page_tokens));
    TRY(prefix_init(&p->prefix, &p->pool, opts->hash_seed, opts->hash_bits));
    if (opts->watch && watch_init(&p->prefix.watch, opts->n_pages) < 0)
        return -ENOMEM;
    if (opts->watch && watch_init(&p->ends, opts->n_pages) < 0)
        return -ENOMEM;
    p->max_seq_pages =
        (uint32_t)(((uint64_t)opts->max_seq_tokens + opts->page_tokens - 1) / opts->page_tokens);
    if (size_mul(opts->max_seqs, p->max_seq_pages, &n_tables))
        return -ENOMEM;
    p->tables = calloc(n_tables, sizeof(*p->tables));
    p->seq = calloc(opts->max_seqs, sizeof(*p->seq));
    p->tally = calloc(opts->n_pages, sizeof(*p->tally));
    p->free_state = calloc(MAX(opts->n_states, 1), sizeof(*p->free_state));
    if (!p->tables || !p->seq || !p->tally || !p->free_state)
        return -ENOMEM;
    for (uint32_t i = 0; i < opts->n_states; i++)
        p->free_state[i] = i;
    for (uint32_t i = 0; i < opts->n_pages; i++)
        p->pool.page[i].snapshot = KV_NO_SNAPSHOT;
    p->snapshot = calloc(MAX(opts->n_snapshots, 1), sizeof(*p->snapshot));
    if (!p->snapshot || windows_init(p) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < opts->n_snapshots; i++)
        p->snapshot[i].page = NO_PAGE;
    if (opts->peer) {
        assert(!opts->peer->peer && opts->peer->opts.n_snapshots == opts->n_snapshots);
        p->peer = opts->peer;
        p->peer->peer = p;
    }
    for (uint32_t i = 0; i < opts->max_seqs; i++) {
        p->seq[i].pager = p;
        p->seq[i].page = p->tables + (size_t)i * p->max_seq_pages;
        list_push_back(&p->unused_seqs, &p->seq[i].link);
    }
    return 0;
}

int kv_pager_new(struct kv_pager **out, const struct kv_opts *opts) {
    uint32_t t = opts->page_tokens;

    if (t == 0 || t > PREFIX_MAX_TOKENS || (t & (t - 1)) != 0)
        return -EINVAL;
    if (opts->n_pages == 0 || opts->n_pages == NO_PAGE || opts->max_seqs == 0 ||
        opts->max_seq_tokens == 0)
        return -EINVAL;
    if (opts->n_windows > 0 && (opts->window == 0 || opts->n_snapshots > 0))
        return -EINVAL;
    CLEANUP(kv_pager_freep) struct kv_pager *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    TRY(pager_init(p, opts));
    *out = STEAL(p);
    return 0;
}

struct kv_pager *kv_pager_free(struct kv_pager *p) {
    if (!p)
        return NULL;
    assert(p->stats.n_seqs == 0);
    if (p->peer)
        p->peer->peer = NULL;
    prefix_deinit(&p->prefix);
    watch_deinit(&p->ends);
    pool_deinit(&p->pool);
    free(p->tables);
    free(p->seq);
    free(p->tally);
    free(p->free_state);
    free(p->snapshot);
    windows_deinit(p);
    free(p);
    return NULL;
}

uint32_t kv_pager_available(const struct kv_pager *p) {
    return p->pool.n_in[PAGE_FREE] + p->pool.n_in[PAGE_CACHED];
}

void kv_pager_stats(const struct kv_pager *p, struct kv_stats *out) {
    *out = p->stats;
    out->n_pages = p->pool.n_pages;
    out->n_free = p->pool.n_in[PAGE_FREE];
    out->n_owned = p->pool.n_in[PAGE_OWNED];
    out->n_shared = p->pool.n_in[PAGE_SHARED];
    out->n_cached = p->pool.n_in[PAGE_CACHED];
    out->n_windows_free = p->windows.n_free;
    out->n_windows_idle = p->windows.n_idle;
    out->n_windows_evicted = p->windows.n_evicted;
}

/* Returns the name of the content of @page that listeners and routers see: never 0. */
static uint64_t pager_block(const struct page *page) {
    if (!page->key.low64)
        return 1;
    return page->key.low64;
}

/* Returns how many tokens right before @page equal its first one, a row of a picture. */
static uint32_t pager_rows_before(const struct kv_pager *p, const struct page *page) {
    const struct pool *pool = &p->pool;
    int32_t row = *pool_tokens(pool, page);
    uint32_t n = 0, t = pool->page_tokens;

    for (kv_page i = page->parent; row < 0 && i != NO_PAGE; i = pool->page[i].parent) {
        const int32_t *tokens = pool_tokens(pool, &pool->page[i]);
        uint32_t k = t;

        while (k > 0 && tokens[k - 1] == row)
            k--;
        n += t - k;
        if (k > 0)
            break;
    }
    return n;
}

bool kv_pager_next_change(struct kv_pager *p, bool ends, struct kv_change *out) {
    struct watch *w = ends ? &p->ends : &p->prefix.watch;

    *out = (struct kv_change){.block = watch_next_gone(w)};
    if (out->block)
        return true;
    kv_page i = watch_next_came(w);
    if (i == NO_PAGE)
        return false;
    const struct page *page = &p->pool.page[i];

    assert(page->state == PAGE_SHARED || page->state == PAGE_CACHED);
    out->block = w->at[i].reported = pager_block(page);
    out->tokens = pool_tokens(&p->pool, page);
    out->isolation = &page->isolation;
    out->n_before = pager_rows_before(p, page);
    if (page->parent == NO_PAGE)
        return true;
    out->parent = pager_block(&p->pool.page[page->parent]);
    assert(ends || w->at[page->parent].reported == out->parent);
    return true;
}

/* Frees the least recently used cached page that has no child. */
static bool evict_one(struct kv_pager *p) {
    struct page *page = evict_pop(&p->evict);

    if (!page)
        return false;
    prefix_remove(&p->prefix, page);
    snapshot_drop(p, page);
    windows_drop(p, page);
    pool_release(&p->pool, page);
    p->stats.n_evicted++;
    return true;
}

void kv_pager_drop_cached(struct kv_pager *p) {
    p->n_changes++;
    while (evict_one(p))
        ;
    windows_drop_idle(p);
}

/* Adds a holder to a published page. A cached one leaves the list of evict.h. */
static void pager_hold(struct kv_pager *p, struct page *page) {
    p->stats.n_pinned -= page->refs > 0 && page->refs == page->pinned;
    if (page->refs++ == 0) {
        evict_remove(&p->evict, page);
        pool_set_state(&p->pool, page, PAGE_SHARED);
    }
}

/* Takes a holder away. An owned page becomes free, the last holder's shared page becomes cached. */
static void pager_release(struct kv_pager *p, struct page *page) {
    assert(page->refs > 0);
    page->refs--;
    if (page->state == PAGE_OWNED) {
        pool_release(&p->pool, page);
    } else if (page->refs > 0 && page->refs == page->pinned) {
        p->stats.n_pinned++;
    } else if (page->refs == 0) {
        pool_set_state(&p->pool, page, PAGE_CACHED);
        evict_add(&p->evict, page);
    }
}

/* A position in the chains of published pages, from which pager_walk_down() continues. */
struct walk {
    const struct kv_isolation *isolation;
    /* key of the page that was reached */
    XXH128_hash_t key;
    /* the page that was reached, NO_PAGE at the root */
    kv_page page;
};

XXH128_hash_t pager_root_key(const struct kv_pager *p, const struct kv_isolation *isolation) {
    struct prefix_root root;

    memcpy(root.fingerprint, p->opts.fingerprint, sizeof(root.fingerprint));
    root.isolation = *isolation;
    return prefix_root_key(&p->prefix, &root);
}

static struct walk walk_start(const struct kv_pager *p, const struct kv_isolation *isolation) {
    return (struct walk){isolation, pager_root_key(p, isolation), NO_PAGE};
}

/* Returns the published page with @tokens that follows the page of @w, and moves @w to it; NULL if
 * there is none. */
static struct page *pager_walk_down(const struct kv_pager *p, struct walk *w,
                                    const int32_t *tokens) {
    XXH128_hash_t key = prefix_key(&p->prefix, w->key, tokens);
    struct page *page = prefix_find(&p->prefix, key, w->page, w->isolation, tokens);

    if (page) {
        w->key = key;
        w->page = pool_number(&p->pool, page);
    }
    return page;
}

struct kv_match kv_pager_match(const struct kv_pager *p, const struct kv_isolation *isolation,
                               const int32_t *tokens, uint32_t n_tokens) {
    uint32_t t = p->opts.page_tokens, run = 0;
    bool has_states = p->opts.n_snapshots > 0;
    struct walk w = walk_start(p, isolation);
    struct kv_match m = {0}, longest = {0};

    while (n_tokens - m.n_tokens >= t) {
        const struct page *page = pager_walk_down(p, &w, tokens + m.n_tokens);

        if (!page)
            break;
        m.n_tokens += t;
        m.n_idle += page->state == PAGE_CACHED;
        run = page->window == NO_PAGE ? 0 : run + 1;
        bool has_state = !has_states || page->snapshot != KV_NO_SNAPSHOT;
        if (has_state && windows_suffice(p, m.n_tokens / t, run))
            longest = m;
    }
    longest.n_found = m.n_tokens;
    return longest;
}

uint32_t kv_pager_find(const struct kv_pager *p, const struct kv_isolation *isolation,
                       const int32_t *tokens, uint32_t n_tokens, uint32_t from, kv_page *out,
                       uint32_t max) {
    uint32_t t = p->opts.page_tokens, end = MIN(n_tokens / t, from + max), i = 0;
    struct walk w = walk_start(p, isolation);

    while (i < end && pager_walk_down(p, &w, tokens + (size_t)i * t)) {
        if (i >= from)
            out[i - from] = w.page;
        i++;
    }
    if (i <= from)
        return 0;
    return i - from;
}

static uint32_t acquire_state(struct kv_pager *p) {
    if (p->opts.n_states == 0)
        return NO_STATE;
    assert(p->stats.n_states < p->opts.n_states);
    return p->free_state[p->opts.n_states - ++p->stats.n_states];
}

static void release_state(struct kv_seq *s) {
    struct kv_pager *p = s->pager;

    if (s->state != NO_STATE)
        p->free_state[p->opts.n_states - p->stats.n_states--] = s->state;
    s->state = NO_STATE;
}

int kv_seq_new(struct kv_seq **out, struct kv_pager *p, const struct kv_isolation *isolation) {
    bool full = p->opts.n_states > 0 && p->stats.n_states == p->opts.n_states;
    struct list *node = full ? NULL : list_pop_front(&p->unused_seqs);

    if (!node)
        return -ENOMEM;
    struct kv_seq *s = LIST_ENTRY(node, struct kv_seq, link);
    s->isolation = *isolation;
    s->root = pager_root_key(p, isolation);
    s->n_pages = s->n_published = s->n_committed = s->n_behind = s->n_found = 0;
    s->n_wanted = 0;
    s->pinned = false;
    s->passing = KV_NO_SNAPSHOT;
    s->state = acquire_state(p);
    list_push_back(&p->seqs, &s->link);
    p->stats.n_seqs++;
    p->n_changes++;
    *out = s;
    return 0;
}

/* Gives back the pages from @n_pages on, the last first: see evict.h. */
static void drop_pages(struct kv_seq *s, uint32_t n_pages) {
    struct kv_pager *p = s->pager;

    p->n_changes += s->n_pages > n_pages;
    for (uint32_t i = s->n_pages; i > n_pages; i--) {
        windows_release(s, i - 1);
        pager_release(p, &p->pool.page[s->page[i - 1]]);
    }
    s->n_pages = MIN(s->n_pages, n_pages);
    s->n_behind = MIN(s->n_behind, n_pages);
}

void kv_seq_pin(struct kv_seq *s) {
    struct kv_pager *p = s->pager;

    assert(!s->pinned);
    drop_pages(s, s->n_published);
    s->n_committed = s->n_published * p->opts.page_tokens;
    for (uint32_t i = s->n_pages; i > s->n_behind; i--)
        windows_release(s, i - 1);
    s->n_behind = s->n_pages;
    s->pinned = true;
    snapshot_stop_passing(s);
    release_state(s);
    p->n_changes++;
    for (uint32_t i = 0; i < s->n_pages; i++) {
        struct page *page = &p->pool.page[s->page[i]];

        page->pinned++;
        p->stats.n_pinned += page->refs == page->pinned;
    }
}

/* Undoes the pinning: the pages are held as by any other sequence. */
static void unpin(struct kv_seq *s) {
    for (uint32_t i = 0; i < s->n_pages && s->pinned; i++) {
        struct page *page = &s->pager->pool.page[s->page[i]];

        s->pager->stats.n_pinned -= page->refs == page->pinned;
        page->pinned--;
    }
    s->pinned = false;
}

struct kv_seq *kv_seq_free(struct kv_seq *s) {
    if (!s)
        return NULL;
    unpin(s);
    snapshot_stop_passing(s);
    release_state(s);
    drop_pages(s, 0);
    list_remove(&s->link);
    list_push_front(&s->pager->unused_seqs, &s->link);
    s->pager->stats.n_seqs--;
    s->pager->n_changes++;
    return NULL;
}

/* Returns a walk whose position is the sequence's last published page. */
static struct walk walk_of(const struct kv_seq *s) {
    if (s->n_published == 0)
        return (struct walk){&s->isolation, s->root, NO_PAGE};
    kv_page last = s->page[s->n_published - 1];
    return (struct walk){&s->isolation, s->pager->pool.page[last].key, last};
}

/* Compares a caller's array with the sequence's tokens where that is cheap: at the last published
 * page. For asserts. */
static bool tokens_agree(const struct kv_seq *s, const int32_t *tokens) {
    const struct pool *pool = &s->pager->pool;
    uint32_t n = s->n_published, t = pool->page_tokens;

    return n == 0 ||
           memcmp(tokens + (size_t)(n - 1) * t, pool_tokens(pool, &pool->page[s->page[n - 1]]),
                  t * sizeof(*tokens)) == 0;
}

uint32_t kv_seq_attach(struct kv_seq *s, const int32_t *tokens, uint32_t n_tokens) {
    struct kv_pager *p = s->pager;
    uint32_t t = p->opts.page_tokens, before = s->n_committed;
    uint32_t first = s->n_pages, n = first, end = first, run = first - s->n_behind;
    struct walk w = walk_of(s);

    assert(s->n_pages * t == s->n_committed && s->n_published == s->n_pages);
    assert(!s->pinned && n_tokens <= p->opts.max_seq_tokens);
    if (n_tokens < before)
        return before;
    assert(tokens_agree(s, tokens));
    while (n_tokens / t > n) {
        const struct page *page = pager_walk_down(p, &w, tokens + (size_t)n * t);

        if (!page)
            break;
        s->page[n++] = w.page;
        run = page->window == NO_PAGE ? 0 : run + 1;
        if (windows_suffice(p, n, run))
            end = n;
    }
    for (uint32_t i = first; i < end; i++) {
        p->n_changes++;
        pager_hold(p, &p->pool.page[s->page[i]]);
        if (i >= windows_first(p, end * t))
            windows_hold(s, i);
    }
    s->n_published = s->n_pages = end;
    s->n_committed = end * t;
    windows_pass(s, first);
    s->n_found = n > first ? n * t : s->n_found;
    /* Counts a lookup once for each sequence, so that hits never exceed lookups. */
    if (before == 0) {
        p->stats.n_lookup_tokens += n_tokens;
        p->stats.n_missed_tokens += (n - end) * t;
    }
    p->stats.n_hit_tokens += s->n_committed - before;
    return s->n_committed;
}

static uint32_t pages_for(const struct kv_pager *p, uint32_t n_tokens) {
    return n_tokens / p->opts.page_tokens + (n_tokens % p->opts.page_tokens != 0);
}

uint32_t kv_seq_need(const struct kv_seq *s, uint32_t n_tokens) {
    uint32_t n = pages_for(s->pager, n_tokens);

    if (n <= s->n_pages)
        return 0;
    return n - s->n_pages;
}

int kv_seq_grow(struct kv_seq *s, uint32_t n_tokens) {
    struct kv_pager *p = s->pager;
    uint32_t need = kv_seq_need(s, n_tokens);

    p->n_changes += need > 0;
    assert(!s->pinned && n_tokens <= p->opts.max_seq_tokens);
    if (need > kv_pager_available(p) || need > windows_available(p))
        return KV_FULL;
    for (; need > 0; need--) {
        if (BUGGIFY(kv_evicts_early))
            evict_one(p);
        if (p->pool.n_in[PAGE_FREE] == 0 && !evict_one(p))
            return KV_FULL;
        s->page[s->n_pages++] = pool_number(&p->pool, pool_acquire(&p->pool));
        windows_acquire(s);
    }
    return 0;
}

/* Publishes the next page of @s: it becomes shared, or if an equal page is published already, the
 * sequence takes that one and its own becomes free. */
static void pager_publish(struct kv_seq *s, const int32_t *tokens) {
    struct kv_pager *p = s->pager;
    uint32_t i = s->n_published;
    struct page *page = &p->pool.page[s->page[i]], *equal;
    struct walk w = walk_of(s);
    kv_page parent = w.page;

    assert(page->state == PAGE_OWNED);
    equal = pager_walk_down(p, &w, tokens);
    if (equal) {
        pager_hold(p, equal);
        s->page[i] = w.page;
        windows_move(p, page, equal);
        pager_release(p, page);
        p->stats.n_deduplicated++;
    } else {
        prefix_add(&p->prefix, page, prefix_key(&p->prefix, w.key, tokens), parent, &s->isolation,
                   tokens);
        pool_set_state(&p->pool, page, PAGE_SHARED);
        if (page->window != NO_PAGE)
            watch_came(&p->ends, pool_number(&p->pool, page));
        p->stats.n_published++;
    }
    s->n_published++;
}

void kv_seq_commit(struct kv_seq *s, const int32_t *tokens, uint32_t n_tokens) {
    uint32_t t = s->pager->opts.page_tokens, full = n_tokens / t;

    assert(!s->pinned && n_tokens >= s->n_committed);
    assert(n_tokens <= (uint64_t)s->n_pages * t);
    assert(s->n_published == full || tokens_agree(s, tokens));
    s->pager->n_changes += s->n_published < full;
    while (s->n_published < full)
        pager_publish(s, tokens + (size_t)s->n_published * t);
    s->n_committed = n_tokens;
    windows_pass(s, s->n_pages);
}

void kv_seq_truncate(struct kv_seq *s, uint32_t n_tokens) {
    uint32_t t = s->pager->opts.page_tokens;

    assert(!s->pinned);
    assert(n_tokens % t == 0 || n_tokens / t >= s->n_published);
    assert(n_tokens == 0 || n_tokens >= s->n_committed || s->pager->opts.n_windows == 0);
    drop_pages(s, pages_for(s->pager, n_tokens));
    s->n_published = MIN(s->n_published, s->n_pages);
    s->n_committed = MIN(s->n_committed, n_tokens);
}

uint32_t kv_seq_committed(const struct kv_seq *s) {
    return s->n_committed;
}

uint32_t kv_seq_exclusive(const struct kv_seq *s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_pages; i++)
        n += s->pager->pool.page[s->page[i]].refs == 1;
    return n;
}

const struct kv_isolation *kv_seq_isolation(const struct kv_seq *s) {
    return &s->isolation;
}

uint32_t kv_seq_state(const struct kv_seq *s) {
    assert(!s->pinned);
    if (s->state == NO_STATE)
        return 0;
    return s->state;
}

const kv_page *kv_seq_pages(const struct kv_seq *s, uint32_t *n_pages) {
    *n_pages = s->n_pages;
    return s->page;
}
