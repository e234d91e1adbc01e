#include "api/limits/pending.h"

#include <assert.h>

void pending_init(struct pending *q) {
    list_init(&q->firsts);
}

void pending_account_init(struct pending_account *a) {
    list_init(&a->firsts);
}

void pending_item_init(struct pending_item *i, uint64_t number) {
    *i = (struct pending_item){.number = number};
    list_init(&i->link);
    list_init(&i->behind);
    list_init(&i->of_account);
}

static struct pending_item *first_of(const struct pending *q, const struct pending_account *a) {
    LIST_FOREACH_ENTRY(i, &a->firsts, struct pending_item, of_account) {
        if (i->queue == q)
            return i;
    }
    return NULL;
}

static void make_first(struct pending_item *i) {
    list_push_back(&i->queue->firsts, &i->link);
    list_push_back(&i->account->firsts, &i->of_account);
}

/* Moves what is behind @from behind @to, which has nothing there. */
static void move_behind(struct pending_item *to, struct pending_item *from) {
    list_insert_before(&from->behind, &to->behind);
    list_remove(&from->behind);
}

void pending_add(struct pending *q, struct pending_item *i, struct pending_account *a) {
    struct pending_item *first = first_of(q, a);

    assert(!i->queue && list_empty(&i->behind));
    i->queue = q;
    i->account = a;
    if (first && i->number > first->number) {
        list_push_back(&first->behind, &i->link);
        return;
    }
    if (first) {
        list_remove(&first->of_account);
        list_remove(&first->link);
        move_behind(i, first);
        list_push_front(&i->behind, &first->link);
    }
    make_first(i);
}

void pending_withdraw(struct pending_item *i) {
    if (!i->queue)
        return;
    list_remove(&i->of_account);
    list_remove(&i->link);
    struct list *second = list_pop_front(&i->behind);
    if (second) {
        struct pending_item *next = LIST_ENTRY(second, struct pending_item, link);

        move_behind(next, i);
        make_first(next);
    }
    i->queue = NULL;
}

double pending_begins(const struct pending_account *a, double now) {
    return MAX(a->virtual_bytes, now);
}

bool pending_before(const struct pending_item *a, const struct pending_item *b, double now) {
    double of_a = pending_begins(a->account, now), of_b = pending_begins(b->account, now);

    if (of_a != of_b)
        return of_a < of_b;
    return a->number < b->number;
}

struct pending_item *pending_next(const struct pending *q, double now) {
    struct pending_item *best = NULL;

    LIST_FOREACH_ENTRY(i, &q->firsts, struct pending_item, link) {
        if (!best || pending_before(i, best, now))
            best = i;
    }
    return best;
}
