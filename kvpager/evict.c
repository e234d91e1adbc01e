#include "kvpager/evict.h"

#include <assert.h>

void evict_init(struct evict *e) {
    list_init(&e->idle);
}

void evict_add(struct evict *e, struct page *page) {
    assert(list_empty(&page->link));
    list_push_back(&e->idle, &page->link);
}

void evict_add_oldest(struct evict *e, struct page *page) {
    assert(list_empty(&page->link));
    list_push_front(&e->idle, &page->link);
}

void evict_remove(struct evict *e, struct page *page) {
    (void)e;
    assert(!list_empty(&page->link));
    list_remove(&page->link);
}

struct page *evict_pop(struct evict *e) {
    struct list *node = list_pop_front(&e->idle);

    if (!node)
        return NULL;
    return LIST_ENTRY(node, struct page, link);
}
