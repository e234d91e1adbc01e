/*
 * quota_victim() searches the whole tree each time: it is called only while the resource is full,
 * and the search costs less than freeing the victim. No result is cached that a change of a weight
 * or charge would make wrong.
 */

#include "base/quota.h"

#include <assert.h>

void quota_account_init(struct quota_account *a, struct quota_account *parent, double weight) {
    assert(weight > 0);
    *a = (struct quota_account){.parent = parent, .weight = weight};
    list_init(&a->link);
    list_init(&a->busy);
    list_init(&a->offered);
}

void quota_init(struct quota *q, uint64_t limit, uint64_t reserve) {
    *q = (struct quota){.limit = limit, .reserve = reserve};
    quota_account_init(&q->root, NULL, 1);
}

/* ---- charges ---- */

/* Checks that an account is in its parent's list exactly while something is charged to it. */
static void quota_check(const struct quota_account *a) {
    assert(!a->parent || list_empty(&a->link) == (a->used == 0));
}

/* Charges @n more to @a and all its ancestors; the first unit links an account. */
static void quota_add(struct quota_account *a, uint64_t n) {
    for (; a; a = a->parent) {
        if (a->parent && a->used == 0 && n > 0)
            list_push_back(&a->parent->busy, &a->link);
        a->used += n;
        quota_check(a);
    }
}

/* Charges @n less to @a and all its ancestors; the last unit unlinks an account. */
static void subtract(struct quota_account *a, uint64_t n) {
    for (; a; a = a->parent) {
        assert(a->used >= n);
        a->used -= n;
        if (a->parent && a->used == 0)
            list_remove(&a->link);
        quota_check(a);
    }
}

void quota_charge_init(struct quota_charge *c, struct quota_account *a) {
    *c = (struct quota_charge){.account = a};
    list_init(&c->link);
}

void quota_charge_set(struct quota_charge *c, uint64_t n) {
    if (n == c->n) /* the account of an unchanged charge of 0 may have been freed */
        return;
    if (n > c->n)
        quota_add(c->account, n - c->n);
    else
        subtract(c->account, c->n - n);
    c->n = n;
    if (n == 0)
        list_remove(&c->link);
}

void quota_charge_move(struct quota_charge *c, struct quota_account *a) {
    bool offered = !list_empty(&c->link);
    uint64_t n = c->n;

    if (c->account == a)
        return;
    quota_charge_set(c, 0);
    c->account = a;
    quota_charge_set(c, n);
    if (offered)
        quota_charge_offer(c);
}

void quota_charge_pass(struct quota_charge *from, struct quota_charge *to) {
    assert(from != to);
    quota_charge_init(to, from->account);
    to->n = from->n;
    from->n = 0;
    list_remove(&from->link);
}

void quota_charge_offer(struct quota_charge *c) {
    list_remove(&c->link);
    if (c->n > 0)
        list_push_back(&c->account->offered, &c->link);
}

void quota_charge_withhold(struct quota_charge *c) {
    list_remove(&c->link);
}

/* ---- shares ---- */

/* Parameters of quota_victim()'s search, and the best charge so far. */
struct search {
    const struct quota_account *asker;
    uint64_t n;
    struct quota_charge *found;
    /* charge of the account of `found` divided by its share */
    double most;
};

/* Returns true if @a is @asker or one of its ancestors. */
static bool pays_for(const struct quota_account *a, const struct quota_account *asker) {
    for (; asker; asker = asker->parent)
        if (asker == a)
            return true;
    return false;
}

/* Returns the sum of the weights of the children of @parent that have charges; the child that leads
 * to @asker counts as one of them. */
static double quota_sum_of_weights(const struct quota_account *parent,
                                   const struct quota_account *asker) {
    double sum = 0;

    LIST_FOREACH_ENTRY(a, &parent->busy, const struct quota_account, link) {
        sum += a->weight;
    }
    for (const struct quota_account *a = asker; a; a = a->parent)
        if (a->parent == parent && a->used == 0)
            sum += a->weight;
    return sum;
}

/* Searches the accounts below @parent, whose share is @share. Skips accounts within their
 * shares. */
static void search_below(struct search *s, const struct quota_account *parent, double share) {
    double sum = quota_sum_of_weights(parent, s->asker);

    LIST_FOREACH_ENTRY(a, &parent->busy, const struct quota_account, link) {
        double has = (double)a->used + (double)(pays_for(a, s->asker) ? s->n : 0);
        double part = share * a->weight / sum;

        if (has <= part)
            continue;
        search_below(s, a, part);
        if (!list_empty(&a->offered) && has / part > s->most) {
            s->most = has / part;
            s->found = LIST_ENTRY(a->offered.next, struct quota_charge, link);
        }
    }
}

struct quota_charge *quota_victim(const struct quota *q, const struct quota_account *a,
                                  uint64_t n) {
    struct search s = {.asker = a, .n = n};

    search_below(&s, &q->root, (double)q->limit);
    return s.found;
}

/* Returns the share of @a in the limit, by weight at every account on the way to the root. */
static double share_of(const struct quota *q, const struct quota_account *a,
                       const struct quota_account *asker) {
    if (a->parent)
        return share_of(q, a->parent, asker) * a->weight / quota_sum_of_weights(a->parent, asker);
    return (double)q->limit;
}

bool quota_make_room(struct quota *q, const struct quota_charge *c, uint64_t n,
                     void (*reclaim)(struct quota_charge *victim)) {
    const struct quota_account *a = c->account;

    while (q->root.used + n > q->limit) {
        struct quota_charge *v = quota_victim(q, a, n);

        if (v == c)
            return false;
        if (!v)
            return q->root.used + n <= q->limit + q->reserve &&
                   (double)(a->used + n) <= share_of(q, a, a);
        uint64_t had = v->n;
        reclaim(v);
        assert(v->n < had || list_empty(&v->link)); /* ensures that the loop ends */
    }
    return true;
}
