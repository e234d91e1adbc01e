/*
 * check - recounts everything that pager.c states as an invariant. It uses the structures but none
 * of the counters that it verifies, and allocates nothing: it also runs in production, when idle.
 */

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "kvpager/private.h"

static _Noreturn void kv_broken(int invariant, const char *what, uint32_t page) {
    fprintf(stderr, "kv_pager_check: invariant %d broken: %s", invariant, what);
    if (page != NO_PAGE)
        fprintf(stderr, " (page %u)", page);
    fputc('\n', stderr);
    abort();
}

/* Checks invariants 1 and 8 for @node, the node with number @n of its list: it is a page of @state.
 * Returns the page. */
static const struct page *check_node(const struct kv_pager *p, const struct list *node,
                                     enum page_state state, uint32_t n) {
    const struct page *page = LIST_ENTRY(node, const struct page, link);

    if (page < p->pool.page || page >= p->pool.page + p->pool.n_pages)
        kv_broken(8, "a list holds something else", NO_PAGE);
    if (page->state != state || node->next->prev != node || node->prev->next != node)
        kv_broken(8, "a page in the wrong list", pool_number(&p->pool, page));
    if (n >= p->pool.n_in[state])
        kv_broken(8, "a list does not hold all pages of its state", NO_PAGE);
    return page;
}

/* Checks that the list of free pages has each free page once. */
static void check_free(const struct kv_pager *p) {
    uint32_t n = 0;

    for (const struct list *node = p->pool.free.next; node != &p->pool.free; node = node->next)
        check_node(p, node, PAGE_FREE, n++);
    if (n != p->pool.n_in[PAGE_FREE])
        kv_broken(8, "a list does not hold all pages of its state", NO_PAGE);
}

/* Checks that the list of idle pages has each cached page once, and that in the order of eviction
 * every page comes after its children. The list is walked backwards: the parent of a page must be
 * held or have been visited before. */
static void check_idle(const struct kv_pager *p) {
    const struct list *idle = &p->evict.idle;
    uint32_t n = 0;

    for (const struct list *node = idle->prev; node != idle; node = node->prev) {
        const struct page *page = check_node(p, node, PAGE_CACHED, n++);

        if (page->parent != NO_PAGE && p->pool.page[page->parent].state == PAGE_CACHED &&
            !p->tally[page->parent].seen)
            kv_broken(8, "a parent would be evicted before its child", page->parent);
        p->tally[pool_number(&p->pool, page)].seen = 1;
    }
    if (n != p->pool.n_in[PAGE_CACHED])
        kv_broken(8, "a list does not hold all pages of its state", NO_PAGE);
}

/* Checks invariants 3, 4 and 7: a page table is chained published pages, then owned ones. Counts
 * references. */
static void kv_check_seq(const struct kv_pager *p, const struct kv_seq *s) {
    uint32_t t = p->opts.page_tokens;

    if (s->n_pages > p->max_seq_pages || s->n_committed > (uint64_t)s->n_pages * t)
        kv_broken(7, "a sequence is longer than its pages", NO_PAGE);
    if (s->n_published != s->n_committed / t)
        kv_broken(3, "published is not what is committed and full", NO_PAGE);
    if (s->pinned && s->n_pages != s->n_published)
        kv_broken(3, "a pinned sequence has pages of its own", NO_PAGE);
    if (p->opts.n_windows > 0 &&
        s->n_behind != (s->pinned ? s->n_pages : windows_first(p, s->n_published * t)))
        kv_broken(10, "a sequence holds others than the window pages that it reads", NO_PAGE);
    for (uint32_t i = 0; i < s->n_pages; i++) {
        kv_page number = s->page[i];

        if (number >= p->pool.n_pages)
            kv_broken(7, "no such page in a table", number);
        const struct page *page = &p->pool.page[number];
        p->tally[number].refs++;
        p->tally[number].pinned += s->pinned;
        p->tally[number].windows += p->opts.n_windows > 0 && i >= s->n_behind;
        if (i >= s->n_published) {
            if (page->state != PAGE_OWNED)
                kv_broken(4, "a page that will be written is not owned", number);
            continue;
        }
        if (page->state != PAGE_SHARED)
            kv_broken(3, "a committed full page is not shared", number);
        if (page->parent != (i > 0 ? s->page[i - 1] : NO_PAGE))
            kv_broken(7, "a page's parent is not the page before it", number);
        if (memcmp(&page->isolation, &s->isolation, sizeof(s->isolation)) != 0)
            kv_broken(5, "a page of another isolation key", number);
    }
}

/* Checks invariant 9: slot counts add up, and each slot is free or belongs to one sequence. */
static void check_states(const struct kv_pager *p) {
    uint32_t n = p->opts.n_states, n_free = n - p->stats.n_states, n_used = 0;

    for (const struct list *node = p->seqs.next; node != &p->seqs; node = node->next) {
        const struct kv_seq *s = LIST_ENTRY(node, const struct kv_seq, link);

        if ((s->state != NO_STATE) != (n > 0 && !s->pinned) ||
            (n > 0 && !s->pinned && s->state >= n))
            kv_broken(9, "a sequence with a wrong state slot", NO_PAGE);
        if (s->state == NO_STATE)
            continue;
        n_used++;
        for (uint32_t i = 0; i < n_free; i++)
            if (p->free_state[i] == s->state)
                kv_broken(9, "a sequence's state slot is free", NO_PAGE);
        for (const struct list *o = node->next; o != &p->seqs; o = o->next)
            if (LIST_ENTRY(o, const struct kv_seq, link)->state == s->state)
                kv_broken(9, "two sequences have one state slot", NO_PAGE);
    }
    if (n_used != p->stats.n_states)
        kv_broken(9, "state slots do not add up", NO_PAGE);
}

/* Checks invariant 6: a snapshot saves the tokens since the snapshot before it. */
static void check_chain(const struct kv_pager *p, const struct kv_snapshot *x) {
    uint32_t n = 1;
    kv_page at = p->pool.page[x->page].parent;

    while (at != NO_PAGE && p->pool.page[at].snapshot == KV_NO_SNAPSHOT) {
        at = p->pool.page[at].parent;
        n++;
    }
    if (x->n_saves != n * p->opts.page_tokens ||
        x->before != (at == NO_PAGE ? 0 : p->snapshot[p->pool.page[at].snapshot].id))
        kv_broken(6, "a snapshot that does not know the one before it", x->page);
}

/* Checks invariant 6: a snapshot that a page of the peer has is of the same prefix, and is neither
 * taken nor passing. */
static void check_peer(const struct kv_pager *p, uint32_t i) {
    const struct kv_snapshot *x = &p->snapshot[i];
    kv_page other = p->peer ? p->peer->snapshot[i].page : NO_PAGE;

    if (other == NO_PAGE)
        return;
    if (x->taken || x->passing)
        kv_broken(6, "a snapshot that is taken, or passes, and a page's of the peer", other);
    if (x->page != NO_PAGE &&
        !XXH128_isEqual(p->pool.page[x->page].key, p->peer->pool.page[other].key))
        kv_broken(6, "a snapshot of two prefixes", x->page);
}

/* Checks invariant 6: a snapshot and its page refer to each other, and the page is published. */
static void check_snapshots(const struct kv_pager *p) {
    uint32_t n = 0, n_all;

    for (uint32_t i = 0; i < p->pool.n_pages; i++) {
        const struct page *page = &p->pool.page[i];

        if (page->snapshot == KV_NO_SNAPSHOT)
            continue;
        n++;
        if (!pool_is_published(page) || page->snapshot >= p->opts.n_snapshots ||
            p->snapshot[page->snapshot].page != i)
            kv_broken(6, "a page with a snapshot that is not its own", i);
    }
    n_all = n;
    for (uint32_t i = 0; i < p->opts.n_snapshots; i++) {
        const struct kv_snapshot *x = &p->snapshot[i];

        if (x->taken && x->page != NO_PAGE)
            kv_broken(6, "a snapshot that is taken and a page's", NO_PAGE);
        if (x->n_held > 0 && x->page == NO_PAGE)
            kv_broken(6, "a snapshot that is held and no page's", NO_PAGE);
        if (x->passing && (x->page == NO_PAGE || x->passing->passing != i))
            kv_broken(6, "a passing snapshot that no sequence knows", NO_PAGE);
        check_peer(p, i);
        n -= x->page != NO_PAGE;
        if (x->page != NO_PAGE)
            check_chain(p, x);
    }
    if (n != 0 || n_all != p->stats.n_snapshots)
        kv_broken(6, "snapshots do not add up", NO_PAGE);
    for (const struct list *node = p->seqs.next; node != &p->seqs; node = node->next) {
        const struct kv_seq *s = LIST_ENTRY(node, const struct kv_seq, link);

        if (s->passing != KV_NO_SNAPSHOT && p->snapshot[s->passing].passing != s)
            kv_broken(6, "a sequence's passing snapshot is not its own", NO_PAGE);
    }
}

/* Checks every sequence in use and counts the pages of its page table in p->tally. */
static void check_seqs(const struct kv_pager *p) {
    uint32_t n = 0;

    for (const struct list *node = p->seqs.next; node != &p->seqs; node = node->next, n++)
        kv_check_seq(p, LIST_ENTRY(node, const struct kv_seq, link));
    if (n != p->stats.n_seqs)
        kv_broken(7, "sequences do not add up", NO_PAGE);
}

/* Checks invariant 5: keys are right, and a lookup finds exactly this page. */
static void check_key(const struct kv_pager *p, const struct page *page) {
    const int32_t *tokens = pool_tokens(&p->pool, page);
    struct prefix_root root = {.isolation = page->isolation};
    XXH128_hash_t key;

    if (page->parent == NO_PAGE) {
        memcpy(root.fingerprint, p->opts.fingerprint, sizeof(root.fingerprint));
        key = prefix_root_key(&p->prefix, &root);
    } else {
        const struct page *parent = &p->pool.page[page->parent];

        if (!pool_is_published(parent))
            kv_broken(7, "a published page without its parent", pool_number(&p->pool, page));
        if (memcmp(&parent->isolation, &page->isolation, sizeof(page->isolation)) != 0)
            kv_broken(5, "a parent of another isolation key", pool_number(&p->pool, page));
        key = parent->key;
    }
    key = prefix_key(&p->prefix, key, tokens);
    if (key.low64 != page->key.low64 || key.high64 != page->key.high64)
        kv_broken(5, "a key is not the hash of parent and tokens", pool_number(&p->pool, page));
    if (prefix_find(&p->prefix, key, page->parent, &page->isolation, tokens) != page)
        kv_broken(5, "a published page is not found", pool_number(&p->pool, page));
}

/* Checks invariants 1 and 2: a page's state, and its references against those that check_seqs()
 * has counted. */
static void check_page(const struct kv_pager *p, uint32_t i) {
    const struct page *page = &p->pool.page[i];
    bool held = page->state == PAGE_OWNED || page->state == PAGE_SHARED;

    if (page->state >= PAGE_STATES)
        kv_broken(1, "no such state", i);
    if (page->state != PAGE_FREE && page->state != PAGE_CACHED && !list_empty(&page->link))
        kv_broken(1, "held, but in a list", i);
    if (page->refs != p->tally[i].refs)
        kv_broken(2, "references do not add up", i);
    if (held != (page->refs > 0) || (page->state == PAGE_OWNED && page->refs != 1))
        kv_broken(2, "references do not fit the state", i);
    if (page->pinned != p->tally[i].pinned)
        kv_broken(2, "pinned references do not add up", i);
}

/* Checks invariant 10 for the window pages of @list, all free or all idle. Returns their number. */
static uint32_t check_windows_in(const struct kv_pager *p, const struct list *list, bool free) {
    const struct windows *x = &p->windows;
    uint32_t n = 0;

    for (const struct list *node = list->next; node != list; node = node->next, n++) {
        const struct window_page *w = LIST_ENTRY(node, const struct window_page, link);

        if (w < x->at || w >= x->at + p->opts.n_windows || n >= p->opts.n_windows)
            kv_broken(10, "a list of window pages holds something else", NO_PAGE);
        if (node->next->prev != node || w->refs > 0 || (w->page == NO_PAGE) != free)
            kv_broken(10, "a window page in the wrong list", w->page);
    }
    return n;
}

/* Checks invariant 10: window pages and their pages refer to each other, and are held by the
 * sequences that read them. */
static void kv_check_windows(const struct kv_pager *p) {
    uint32_t n = 0, n_held = 0;

    for (uint32_t i = 0; i < p->pool.n_pages; i++) {
        const struct page *page = &p->pool.page[i];

        if (page->window == NO_PAGE) {
            if (p->tally[i].windows > 0)
                kv_broken(10, "a window page that is read is not there", i);
            continue;
        }
        n++;
        if (page->window >= p->opts.n_windows || p->windows.at[page->window].page != i ||
            page->state == PAGE_FREE)
            kv_broken(10, "a page with a window page that is not its own", i);
        if (p->windows.at[page->window].refs != p->tally[i].windows)
            kv_broken(10, "references of a window page do not add up", i);
        n_held += p->tally[i].windows > 0;
    }
    if (p->windows.n_free != check_windows_in(p, &p->windows.free, true) ||
        p->windows.n_free + n != p->opts.n_windows)
        kv_broken(10, "free window pages do not add up", NO_PAGE);
    if (p->windows.n_idle != check_windows_in(p, &p->windows.passed, false) +
                                 check_windows_in(p, &p->windows.ended, false) ||
        p->windows.n_idle + n_held != n)
        kv_broken(10, "idle window pages do not add up", NO_PAGE);
}

/* Checks invariants 1, 2, 5 and 8 for every page, and compares counts with those of the pager. */
static void check_pages(const struct kv_pager *p, uint32_t part, uint32_t n_parts) {
    uint32_t n_in[PAGE_STATES] = {0}, n_pinned = 0;

    for (uint32_t i = 0; i < p->pool.n_pages; i++) {
        const struct page *page = &p->pool.page[i];

        check_page(p, i);
        n_in[page->state]++;
        n_pinned += page->pinned > 0 && page->pinned == page->refs;
        if (pool_is_published(page) && page->parent != NO_PAGE)
            p->tally[page->parent].children++;
    }
    for (uint32_t i = part; i < p->pool.n_pages; i += n_parts)
        if (pool_is_published(&p->pool.page[i]))
            check_key(p, &p->pool.page[i]);
    if (memcmp(n_in, p->pool.n_in, sizeof(n_in)) != 0)
        kv_broken(1, "counts of states do not add up", NO_PAGE);
    if (n_pinned != p->stats.n_pinned)
        kv_broken(2, "pinned pages do not add up", NO_PAGE);
    for (uint32_t i = 0; i < p->pool.n_pages; i++)
        if (pool_is_published(&p->pool.page[i]) &&
            p->pool.page[i].n_children != p->tally[i].children)
            kv_broken(8, "children do not add up", i);
}

void kv_pager_check_part(const struct kv_pager *p, uint32_t part, uint32_t n_parts) {
    assert(part < n_parts);
    memset(p->tally, 0, p->pool.n_pages * sizeof(*p->tally));
    check_seqs(p);
    check_states(p);
    check_snapshots(p);
    kv_check_windows(p);
    check_pages(p, part, n_parts);
    check_free(p);
    check_idle(p);
}

void kv_pager_check(const struct kv_pager *p) {
    kv_pager_check_part(p, 0, 1);
}
