/*
 * snapshot - which snapshots of recurrent states there are, and of which pages.
 *
 * When room is needed that one goes which is expected to save least: the tokens between it and the
 * snapshot before it on its chain of pages, which are computed again without it, over the time
 * since it was used, in uses of any. So of a chain that grows the places close together go first,
 * and the end of long instructions that many begin with stays while one turn follows the other.
 */

#include <assert.h>
#include "kvpager/private.h"

/* Uses of others after which half as much is expected of one. Least recently used first: of the
 * prompts of tests/sim/traces/hybrid.trace, with room for 16, 56 % were cached in place of 85 %. */
#define OLD 10.0

static void set_free(struct kv_pager *p, struct kv_snapshot *x) {
    if (x->passing)
        x->passing->passing = KV_NO_SNAPSHOT;
    *x = (struct kv_snapshot){.page = NO_PAGE};
}

static void use(struct kv_pager *p, uint32_t snapshot) {
    p->snapshot[snapshot].used = ++p->n_snapshot_uses;
}

/* It is free afterwards; what begins behind it has more to compute. */
static void drop(struct kv_pager *p, uint32_t snapshot) {
    struct kv_snapshot *x = &p->snapshot[snapshot];

    assert(x->page != NO_PAGE && !x->taken);
    for (uint32_t i = 0; i < p->opts.n_snapshots; i++) {
        struct kv_snapshot *behind = &p->snapshot[i];

        if (behind->page == NO_PAGE || behind->before != x->id)
            continue;
        behind->before = x->before;
        behind->n_saves += x->n_saves;
    }
    p->pool.page[x->page].snapshot = KV_NO_SNAPSHOT;
    p->stats.n_snapshots--;
    set_free(p, x);
}

void snapshot_drop(struct kv_pager *p, struct page *page) {
    if (page->snapshot == KV_NO_SNAPSHOT)
        return;
    drop(p, page->snapshot);
    p->stats.n_snapshots_evicted++;
}

void snapshot_leave(struct kv_seq *s) {
    if (s->passing != KV_NO_SNAPSHOT)
        s->pager->snapshot[s->passing].passing = NULL;
    s->passing = KV_NO_SNAPSHOT;
}

struct kv_match kv_pager_match_state(const struct kv_pager *p, const struct kv_isolation *isolation,
                                     const int32_t *tokens, uint32_t n_tokens) {
    uint32_t t = p->opts.page_tokens, from = 0;
    struct kv_match m = {0}, longest = {0};
    kv_page page[64];
    uint32_t n;

    do {
        n = kv_pager_find(p, isolation, tokens, n_tokens, from, page, ARRAY_SIZE(page));
        for (uint32_t i = 0; i < n; i++) {
            m.n_tokens += t;
            m.n_idle += p->pool.page[page[i]].state == PAGE_CACHED;
            if (p->pool.page[page[i]].snapshot != KV_NO_SNAPSHOT)
                longest = m;
        }
        from += n;
    } while (n == ARRAY_SIZE(page));
    return longest;
}

/* What is expected of it. */
static double worth(const struct kv_pager *p, const struct kv_snapshot *x) {
    return (double)x->n_saves / (OLD + (double)(p->n_snapshot_uses - x->used));
}

/* The one to go; KV_NO_SNAPSHOT: all are taken. */
static uint32_t least(const struct kv_pager *p) {
    uint32_t found = KV_NO_SNAPSHOT;

    for (uint32_t i = 0; i < p->opts.n_snapshots; i++)
        if (!p->snapshot[i].taken &&
            (found == KV_NO_SNAPSHOT || worth(p, &p->snapshot[i]) < worth(p, &p->snapshot[found])))
            found = i;
    return found;
}

uint32_t kv_snapshot_take(struct kv_pager *p, struct kv_seq *s) {
    uint32_t i = 0;

    while (i < p->opts.n_snapshots && (p->snapshot[i].taken || p->snapshot[i].page != NO_PAGE))
        i++;
    if (i == p->opts.n_snapshots && s && s->passing != KV_NO_SNAPSHOT) {
        i = s->passing;
        drop(p, i);
    } else if (i == p->opts.n_snapshots) {
        i = least(p);
        if (i == KV_NO_SNAPSHOT)
            return i;
        drop(p, i);
        p->stats.n_snapshots_evicted++;
    }
    p->snapshot[i].taken = true;
    return i;
}

void kv_snapshot_give(struct kv_pager *p, uint32_t snapshot) {
    assert(snapshot < p->opts.n_snapshots && p->snapshot[snapshot].taken);
    set_free(p, &p->snapshot[snapshot]);
}

/* Whether @page is one of the @n pages before page @from. */
static bool is_before(const struct kv_pager *p, kv_page page, kv_page from, uint32_t n) {
    while (n-- > 0)
        from = p->pool.page[from].parent;
    return from == page;
}

/* Where snapshot @x, of page @i of @s, stands on its chain. */
static void enter(struct kv_seq *s, struct kv_snapshot *x, uint32_t i) {
    struct kv_pager *p = s->pager;
    uint32_t t = p->opts.page_tokens, before = i;

    while (before > 0 && p->pool.page[s->page[before - 1]].snapshot == KV_NO_SNAPSHOT)
        before--;
    x->n_saves = (i + 1 - before) * t;
    x->before = before > 0 ? p->snapshot[p->pool.page[s->page[before - 1]].snapshot].id : 0;
    if (p->pool.page[x->page].n_children == 0)
        return;
    for (uint32_t k = 0; k < p->opts.n_snapshots; k++) {
        struct kv_snapshot *o = &p->snapshot[k];

        if (o->page == NO_PAGE || o->before != x->before || o->n_tokens <= x->n_tokens ||
            !is_before(p, x->page, o->page, (o->n_tokens - x->n_tokens) / t))
            continue;
        o->before = x->id;
        o->n_saves = o->n_tokens - x->n_tokens;
    }
}

void kv_seq_put_snapshot(struct kv_seq *s, uint32_t snapshot, bool passes) {
    struct kv_pager *p = s->pager;
    struct kv_snapshot *x = &p->snapshot[snapshot];

    assert(s->n_published > 0 && s->n_committed == s->n_published * p->opts.page_tokens);
    kv_page number = s->page[s->n_published - 1];
    struct page *page = &p->pool.page[number];
    kv_snapshot_give(p, snapshot);
    if (s->passing != KV_NO_SNAPSHOT && s->passing != page->snapshot)
        drop(p, s->passing);
    snapshot_leave(s);
    if (page->snapshot == KV_NO_SNAPSHOT) {
        x->id = ++p->n_snapshot_ids;
        x->page = number;
        x->n_tokens = s->n_committed;
        enter(s, x, s->n_published - 1);
        page->snapshot = snapshot;
        p->stats.n_snapshots++;
        p->stats.n_snapshots_made++;
        if (passes) {
            s->passing = snapshot;
            x->passing = s;
        }
    }
    use(p, page->snapshot);
}

uint32_t kv_seq_snapshot(struct kv_seq *s) {
    struct kv_pager *p = s->pager;

    if (s->n_published == 0)
        return KV_NO_SNAPSHOT;
    uint32_t snapshot = p->pool.page[s->page[s->n_published - 1]].snapshot;

    if (snapshot == KV_NO_SNAPSHOT)
        return snapshot;
    if (p->snapshot[snapshot].passing)
        snapshot_leave(p->snapshot[snapshot].passing);
    use(p, snapshot);
    p->stats.n_snapshots_used++;
    return snapshot;
}
