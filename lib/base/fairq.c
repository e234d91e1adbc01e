#include "base/fairq.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

/* A tenant. Tenants are ordered by virtual_ns, equal ones by their places in the list. Invariant:
 * n_running <= n_begun <= n_items. */
struct fairq_flow {
    /* fairq.flows */
    struct list link;
    /* fairq_item.link */
    struct list waiting, ended;
    uint32_t tenant;
    uint32_t n_items, n_begun, n_running;
    double weight, virtual_ns;
};

void fairq_init(struct fairq *q, uint32_t n_places, uint32_t n_slots) {
    assert(n_places > 0 && n_places <= n_slots);
    *q = (struct fairq){.n_places = n_places, .n_slots = n_slots};
    list_init(&q->flows);
}

void fairq_deinit(struct fairq *q) {
    assert(q->n_items == 0);
    LIST_FOREACH(node, &q->flows) {
        free(LIST_ENTRY(node, struct fairq_flow, link));
    }
}

static void fairq_check(const struct fairq *q, const struct fairq_flow *f) {
    assert(f->n_running <= f->n_begun && f->n_begun <= f->n_items);
    assert(q->n_running <= q->n_begun && q->n_begun + q->n_ended <= q->n_items);
    assert(q->n_running <= q->n_places && q->n_begun <= q->n_slots);
}

/* Moves the common virtual time to the least virtual time of a flow with items, or, if no flow has
 * items, to the greatest of all flows. Forgets flows without items that it has passed. */
static void fairq_advance(struct fairq *q) {
    double least = INFINITY, most = q->virtual_ns;

    LIST_FOREACH(node, &q->flows) {
        struct fairq_flow *f = LIST_ENTRY(node, struct fairq_flow, link);

        most = MAX(most, f->virtual_ns);
        if (f->n_items > 0)
            least = MIN(least, f->virtual_ns);
    }
    q->virtual_ns = MAX(q->virtual_ns, isinf(least) ? most : least);
    LIST_FOREACH(node, &q->flows) {
        struct fairq_flow *f = LIST_ENTRY(node, struct fairq_flow, link);

        if (f->n_items > 0 || f->virtual_ns > q->virtual_ns - FAIRQ_CREDIT_NS)
            continue;
        list_remove(&f->link);
        free(f);
    }
}

/* Returns the flow of @tenant. A new flow begins with the whole credit. NULL: no memory. */
static struct fairq_flow *fairq_find(struct fairq *q, uint32_t tenant) {
    LIST_FOREACH(node, &q->flows) {
        struct fairq_flow *f = LIST_ENTRY(node, struct fairq_flow, link);

        if (f->tenant == tenant)
            return f;
    }
    struct fairq_flow *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->tenant = tenant;
    list_init(&f->waiting);
    list_init(&f->ended);
    f->virtual_ns = q->virtual_ns - FAIRQ_CREDIT_NS;
    list_push_back(&q->flows, &f->link);
    return f;
}

int fairq_add(struct fairq *q, struct fairq_item *i, uint32_t tenant, double weight) {
    assert(weight > 0 && !i->flow);
    fairq_advance(q);
    struct fairq_flow *f = fairq_find(q, tenant);

    if (!f)
        return -ENOMEM;
    f->weight = weight;
    if (f->n_items++ == 0)
        f->virtual_ns = MAX(f->virtual_ns, q->virtual_ns - FAIRQ_CREDIT_NS);
    i->flow = f;
    i->used_ns = 0;
    i->begun = i->running = i->ended = false;
    list_push_back(&f->waiting, &i->link);
    q->n_items++;
    return 0;
}

/* Returns true if an item of @f that has not begun may have a slot. */
static bool may_begin(const struct fairq *q, const struct fairq_flow *f) {
    uint32_t n_free = q->n_slots - q->n_begun;

    return n_free > 0 && f->n_begun <= n_free / 4;
}

/* Returns true if @a comes before @b; both belong to one tenant. */
static bool fairq_is_before(const struct fairq_item *a, const struct fairq_item *b) {
    if (a->background != b->background)
        return b->background;
    return a->used_ns / FAIRQ_QUANTUM_NS < b->used_ns / FAIRQ_QUANTUM_NS;
}

/* Returns the item of @f that runs next; NULL: none may run. */
static struct fairq_item *fairq_first(const struct fairq *q, const struct fairq_flow *f) {
    struct fairq_item *best = NULL;

    if (f->n_running >= MAX(q->n_places - 1, 1u))
        return NULL;
    LIST_FOREACH(node, &f->waiting) {
        struct fairq_item *i = LIST_ENTRY(node, struct fairq_item, link);

        if (!i->begun && !may_begin(q, f))
            continue;
        if (!best || fairq_is_before(i, best))
            best = i;
    }
    return best;
}

struct fairq_item *fairq_next(struct fairq *q) {
    struct fairq_item *best = NULL;

    if (q->n_running == q->n_places)
        return NULL;
    LIST_FOREACH(node, &q->flows) {
        struct fairq_item *i = fairq_first(q, LIST_ENTRY(node, struct fairq_flow, link));

        if (i &&
            (!best || i->background < best->background ||
             (i->background == best->background && i->flow->virtual_ns < best->flow->virtual_ns)))
            best = i;
    }
    if (!best)
        return NULL;
    list_remove(&best->link);
    best->running = true;
    best->flow->n_running++;
    q->n_running++;
    if (!best->begun) {
        best->begun = true;
        best->flow->n_begun++;
        q->n_begun++;
    }
    fairq_check(q, best->flow);
    return best;
}

void fairq_charge(struct fairq *q, struct fairq_item *i, int64_t ns) {
    assert(ns >= 0 && (i->begun || i->ended));
    i->used_ns += ns;
    i->flow->virtual_ns += (double)ns / i->flow->weight;
}

/* Takes the place of @i, which runs. */
static void release_place(struct fairq *q, struct fairq_item *i) {
    assert(i->running && q->n_running > 0 && i->flow->n_running > 0);
    i->running = false;
    i->flow->n_running--;
    q->n_running--;
    fairq_check(q, i->flow);
}

void fairq_pause(struct fairq *q, struct fairq_item *i) {
    release_place(q, i);
    /* before equal items, so that it continues first */
    list_push_front(&i->flow->waiting, &i->link);
}

/* Lets @i, which holds neither slot nor place and is in no list, wait for its report. */
static void fairq_wait_for_report(struct fairq *q, struct fairq_item *i) {
    assert(!i->begun && !i->running && !i->ended);
    i->ended = true;
    list_push_back(&i->flow->ended, &i->link);
    q->n_ended++;
    fairq_check(q, i->flow);
}

void fairq_withdraw(struct fairq *q, struct fairq_item *i) {
    assert(i->flow && !i->running);
    list_remove(&i->link);
    if (!i->begun)
        fairq_wait_for_report(q, i);
}

void fairq_end(struct fairq *q, struct fairq_item *i) {
    assert(i->begun && q->n_begun > 0);
    if (i->running)
        release_place(q, i);
    i->begun = false;
    i->flow->n_begun--;
    q->n_begun--;
    fairq_wait_for_report(q, i);
}

struct fairq_item *fairq_next_ended(struct fairq *q) {
    struct fairq_flow *best = NULL;

    LIST_FOREACH_ENTRY(f, &q->flows, struct fairq_flow, link) {
        if (list_empty(&f->ended))
            continue;
        if (!best || f->virtual_ns < best->virtual_ns)
            best = f;
    }
    if (!best)
        return NULL;
    q->n_ended--;
    return CONTAINER_OF(list_pop_front(&best->ended), struct fairq_item, link);
}

void fairq_remove(struct fairq *q, struct fairq_item *i) {
    assert(i->ended && i->flow->n_items > 0 && q->n_items > 0);
    i->flow->n_items--;
    q->n_items--;
    fairq_check(q, i->flow);
    i->flow = NULL;
    fairq_advance(q);
}
