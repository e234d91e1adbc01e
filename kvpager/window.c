/*
 * window - pages of the layers whose attention has a window.
 *
 * Those layers read only the last opts.window keys. So their keys lie in pages of their own, window
 * pages, of which a sequence needs a few, however long it is. A window page belongs to a page and
 * holds the same positions: the page knows the tokens, the key and the parent for both. The window
 * page can be evicted alone, and the page stays. Example, pages of 4 tokens, a window of 6, and a
 * sequence of 16 tokens whose pages are all published:
 *
 *     page             0        1        2        3
 *     window page      evicted  passed   held     held      the row at position 16 reads 11 to 16
 *
 * A row at position p reads the window pages from windows_first(p) on. No row at a committed
 * position is computed again. So a sequence holds the window pages that rows behind its published
 * pages read, including pages of drafts and of room grown ahead, and releases earlier window pages
 * when it commits (windows_pass()). The held window pages are those that another sequence needs to
 * begin behind the published pages.
 *
 * A prefix is found up to the last position for which all window pages exist that the next row
 * reads: behind it, the keys of the other layers are of no use (kv_pager_match()). The tokens from
 * there on are computed again, and pages that had lost their window page get one again.
 *
 * Eviction. Window pages that a sequence has passed go first (`passed`), the oldest before the
 * others. Window pages that a next turn is likely to begin with stay longer (`ended`): pages before
 * the position where a sequence ended or began, before the end of a prefix that was found without
 * them, since it was requested twice, and before the position that the caller has named
 * (kv_seq_want()).
 */

#include <assert.h>
#include <errno.h>

#include "kvpager/private.h"

/* in pages: a turn that begins at the end of a prompt often begins a little before it */
#define WANTED_BEFORE 2u

int windows_init(struct kv_pager *p) {
    struct windows *w = &p->windows;

    list_init(&w->free);
    list_init(&w->passed);
    list_init(&w->ended);
    w->at = calloc(MAX(p->opts.n_windows, 1), sizeof(*w->at));
    if (!w->at)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->opts.n_windows; i++) {
        w->at[i].page = NO_PAGE;
        list_push_back(&w->free, &w->at[i].link);
    }
    w->n_free = p->opts.n_windows;
    for (uint32_t i = 0; i < p->pool.n_pages; i++)
        p->pool.page[i].window = NO_PAGE;
    return 0;
}

void windows_deinit(struct kv_pager *p) {
    free(p->windows.at);
}

uint32_t windows_available(const struct kv_pager *p) {
    if (!p->opts.n_windows)
        return UINT32_MAX;
    return p->windows.n_free + p->windows.n_idle;
}

uint32_t windows_first(const struct kv_pager *p, uint32_t n_tokens) {
    if (p->opts.n_windows == 0 || n_tokens < p->opts.window)
        return 0;
    return (n_tokens + 1 - p->opts.window) / p->opts.page_tokens;
}

bool windows_suffice(const struct kv_pager *p, uint32_t n, uint32_t run) {
    return p->opts.n_windows == 0 || n - windows_first(p, n * p->opts.page_tokens) <= run;
}

/* Frees a window page that was idle, or that was held for a page which is not published. */
static void windows_set_free(struct kv_pager *p, struct window_page *w) {
    assert(w->refs == 0 && list_empty(&w->link));
    p->pool.page[w->page].window = NO_PAGE;
    if (p->pool.page[w->page].state != PAGE_OWNED)
        watch_went(&p->ends, w->page);
    w->page = NO_PAGE;
    list_push_front(&p->windows.free, &w->link);
    p->windows.n_free++;
}

static void remove_idle(struct kv_pager *p, struct window_page *w) {
    assert(p->windows.n_idle > 0);
    list_remove(&w->link);
    p->windows.n_idle--;
}

static bool evict_idle(struct kv_pager *p) {
    struct windows *x = &p->windows;
    struct list *from = list_empty(&x->passed) ? &x->ended : &x->passed;

    if (list_empty(from))
        return false;
    struct window_page *w = LIST_ENTRY(from->next, struct window_page, link);
    remove_idle(p, w);
    windows_set_free(p, w);
    x->n_evicted++;
    return true;
}

void windows_drop_idle(struct kv_pager *p) {
    while (evict_idle(p))
        ;
}

void windows_acquire(struct kv_seq *s) {
    struct kv_pager *p = s->pager;
    kv_page page = s->page[s->n_pages - 1];

    if (p->opts.n_windows == 0)
        return;
    assert(s->n_pages > s->n_behind);
    if (p->windows.n_free == 0)
        evict_idle(p);
    struct list *node = list_pop_front(&p->windows.free);
    assert(node);
    struct window_page *w = LIST_ENTRY(node, struct window_page, link);
    p->windows.n_free--;
    w->page = page;
    w->refs = 1;
    p->pool.page[page].window = (kv_page)(w - p->windows.at);
}

void windows_hold(struct kv_seq *s, uint32_t i) {
    struct kv_pager *p = s->pager;

    if (p->opts.n_windows == 0)
        return;
    assert(p->pool.page[s->page[i]].window < p->opts.n_windows);
    struct window_page *w = &p->windows.at[p->pool.page[s->page[i]].window];
    assert(w->page == s->page[i]);
    if (w->refs++ == 0)
        remove_idle(p, w);
}

static void windows_let_go(struct kv_seq *s, uint32_t i, struct list *to) {
    struct kv_pager *p = s->pager;
    const struct page *page = &p->pool.page[s->page[i]];

    assert(page->window < p->opts.n_windows);
    struct window_page *w = &p->windows.at[page->window];
    assert(w->page == s->page[i] && w->refs > 0);
    if (--w->refs > 0)
        return;
    if (page->state == PAGE_OWNED) {
        windows_set_free(p, w);
        return;
    }
    list_push_back(to, &w->link);
    p->windows.n_idle++;
}

void windows_release(struct kv_seq *s, uint32_t i) {
    if (s->pager->opts.n_windows > 0 && i >= s->n_behind)
        windows_let_go(s, i, &s->pager->windows.ended);
}

/* Returns true if page @i is read at @n_tokens, or at @before pages before it. */
static bool is_read(const struct kv_pager *p, uint32_t i, uint32_t n_tokens, uint32_t before) {
    return i + before >= windows_first(p, n_tokens) && i < n_tokens / p->opts.page_tokens;
}

void windows_pass(struct kv_seq *s, uint32_t n) {
    struct kv_pager *p = s->pager;
    uint32_t end = windows_first(p, s->n_published * p->opts.page_tokens);

    for (uint32_t i = s->n_behind; i < MIN(end, n); i++) {
        bool wanted = is_read(p, i, s->n_found, 0) || is_read(p, i, s->n_wanted, WANTED_BEFORE);

        windows_let_go(s, i, wanted ? &p->windows.ended : &p->windows.passed);
    }
    s->n_behind = MAX(s->n_behind, end);
}

void kv_seq_want(struct kv_seq *s, uint32_t n_tokens) {
    s->n_wanted = n_tokens;
}

void windows_move(struct kv_pager *p, struct page *own, struct page *equal) {
    if (own->window == NO_PAGE)
        return;
    struct window_page *w = &p->windows.at[own->window];
    assert(w->refs == 1);
    if (equal->window == NO_PAGE) {
        equal->window = own->window;
        own->window = NO_PAGE;
        w->page = pool_number(&p->pool, equal);
        watch_came(&p->ends, w->page);
        return;
    }
    w->refs = 0;
    windows_set_free(p, w);
    w = &p->windows.at[equal->window];
    if (w->refs++ == 0)
        remove_idle(p, w);
}

void windows_drop(struct kv_pager *p, struct page *page) {
    if (page->window == NO_PAGE)
        return;
    struct window_page *w = &p->windows.at[page->window];
    remove_idle(p, w);
    windows_set_free(p, w);
}

void kv_seq_windows(const struct kv_seq *s, kv_page *out) {
    assert(s->pager->opts.n_windows > 0 && !s->pinned);
    for (uint32_t i = 0; i < s->n_pages; i++)
        out[i] = i < s->n_behind ? NO_PAGE : s->pager->pool.page[s->page[i]].window;
}
