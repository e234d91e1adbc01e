#include "api/http/turn.h"

#include <assert.h>

void turn_flow_init(struct turn_flow *f, struct turn_flow *parent, bool is_group, double weight) {
    assert(weight > 0 && (parent ? parent->is_group : is_group));
    *f = (struct turn_flow){.parent = parent, .is_group = is_group, .weight = weight};
    list_init(&f->link);
    list_init(&f->ready);
}

void turn_init(struct turn *t) {
    list_init(&t->link);
}

void turn_want(struct turn *t, struct turn_flow *f) {
    struct list *link = &t->link;

    assert(!f->is_group);
    if (!list_empty(link))
        return;
    for (bool first = true; first && f; f = f->parent) {
        first = list_empty(&f->ready);
        list_push_back(&f->ready, link);
        link = &f->link;
        if (first && f->parent) /* a flow that was absent has earned nothing */
            f->virtual_ns = MAX(f->virtual_ns, f->parent->now_ns);
    }
}

/* Removes @link from the list of @f, and each flow whose list becomes empty from its parent's. */
static void turn_remove(struct list *link, struct turn_flow *f) {
    assert(!list_empty(&f->ready));
    list_remove(link);
    for (; f->parent && list_empty(&f->ready); f = f->parent)
        list_remove(&f->link);
}

void turn_withdraw(struct turn *t, struct turn_flow *f) {
    if (!list_empty(&t->link))
        turn_remove(&t->link, f);
}

static struct turn_flow *turn_least(struct turn_flow *group) {
    struct turn_flow *best = NULL;

    LIST_FOREACH_ENTRY(f, &group->ready, struct turn_flow, link) {
        if (!best || f->virtual_ns < best->virtual_ns)
            best = f;
    }
    return best;
}

struct turn *turn_next(struct turn_flow *root) {
    struct turn_flow *f = root;

    assert(!root->parent);
    if (list_empty(&root->ready))
        return NULL;
    while (f->is_group) { /* root, strangers, address: three levels */
        struct turn_flow *member = turn_least(f);

        assert(member && member->parent == f);
        f->now_ns = MAX(f->now_ns, member->virtual_ns);
        f = member;
    }
    struct list *first = f->ready.next;
    turn_remove(first, f);
    return LIST_ENTRY(first, struct turn, link);
}

void turn_charge(struct turn_flow *f, int64_t ns) {
    for (; f->parent; f = f->parent) {
        assert(f->weight > 0);
        f->virtual_ns += (double)MAX(ns, 0) / f->weight;
    }
}
