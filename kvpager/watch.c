#include "kvpager/watch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int watch_init(struct watch *w, uint32_t n_pages) {
    w->at = calloc(n_pages, sizeof(*w->at));
    if (!w->at)
        return -ENOMEM;
    list_init(&w->gone);
    list_init(&w->came);
    for (uint32_t i = 0; i < n_pages; i++) {
        list_init(&w->at[i].gone);
        list_init(&w->at[i].came);
    }
    return 0;
}

void watch_deinit(struct watch *w) {
    free(w->at);
    *w = (struct watch){0};
}

void watch_came(struct watch *w, kv_page page) {
    if (!w->at)
        return;
    assert(list_empty(&w->at[page].came));
    list_push_back(&w->came, &w->at[page].came);
}

void watch_went(struct watch *w, kv_page page) {
    if (!w->at)
        return;
    struct watched *x = &w->at[page];

    if (!list_empty(&x->came)) { /* the content of the page was not reported yet */
        list_remove(&x->came);
        return;
    }
    assert(x->reported != 0 && list_empty(&x->gone));
    list_push_back(&w->gone, &x->gone);
}

uint64_t watch_next_gone(struct watch *w) {
    assert(w->at);
    if (list_empty(&w->gone))
        return 0;
    struct watched *x = LIST_ENTRY(list_pop_front(&w->gone), struct watched, gone);
    uint64_t block = x->reported;

    x->reported = 0;
    return block;
}

kv_page watch_next_came(struct watch *w) {
    assert(w->at && list_empty(&w->gone));
    if (list_empty(&w->came))
        return NO_PAGE;
    struct watched *x = LIST_ENTRY(list_pop_front(&w->came), struct watched, came);

    assert(x->reported == 0);
    return (kv_page)(x - w->at);
}
