/* snapshot - which snapshots of recurrent states there are, and of which pages. */

#include <assert.h>
#include "kvpager/private.h"

static void set_free(struct kv_pager *p, uint32_t snapshot) {
    p->snapshot[snapshot] = (struct kv_snapshot){.page = NO_PAGE};
}

static void use(struct kv_pager *p, uint32_t snapshot) {
    p->snapshot[snapshot].used = ++p->n_snapshot_uses;
}

void snapshot_drop(struct kv_pager *p, struct page *page) {
    if (page->snapshot != KV_NO_SNAPSHOT)
        set_free(p, page->snapshot);
    page->snapshot = KV_NO_SNAPSHOT;
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

uint32_t kv_snapshot_take(struct kv_pager *p) {
    uint32_t found = KV_NO_SNAPSHOT;

    for (uint32_t i = 0; i < p->opts.n_snapshots; i++)
        if (!p->snapshot[i].taken &&
            (found == KV_NO_SNAPSHOT || p->snapshot[i].used < p->snapshot[found].used))
            found = i; /* a free one was never used */
    if (found == KV_NO_SNAPSHOT)
        return found;
    if (p->snapshot[found].page != NO_PAGE)
        snapshot_drop(p, &p->pool.page[p->snapshot[found].page]);
    p->snapshot[found].taken = true;
    return found;
}

void kv_snapshot_give(struct kv_pager *p, uint32_t snapshot) {
    assert(snapshot < p->opts.n_snapshots && p->snapshot[snapshot].taken);
    set_free(p, snapshot);
}

void kv_seq_put_snapshot(struct kv_seq *s, uint32_t snapshot) {
    struct kv_pager *p = s->pager;

    assert(s->n_published > 0 && s->n_committed == s->n_published * p->opts.page_tokens);
    kv_page number = s->page[s->n_published - 1];
    struct page *page = &p->pool.page[number];
    kv_snapshot_give(p, snapshot);
    if (page->snapshot == KV_NO_SNAPSHOT) {
        page->snapshot = snapshot;
        p->snapshot[snapshot].page = number;
    }
    use(p, page->snapshot);
}

uint32_t kv_seq_snapshot(struct kv_seq *s) {
    if (s->n_published == 0)
        return KV_NO_SNAPSHOT;
    uint32_t snapshot = s->pager->pool.page[s->page[s->n_published - 1]].snapshot;

    if (snapshot != KV_NO_SNAPSHOT)
        use(s->pager, snapshot);
    return snapshot;
}
