/*
 * members - makes expressions for members in any order, each at most once, and for items that must
 * differ. machine/members.c and machine/distinct.c have the registers that this takes while a text
 * is read.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/front/schema/schema.h"

static int members_by_key(const void *x, const void *y) {
    const struct keyed *a = x, *b = y;
    int c = memcmp(a->key, b->key, MIN(a->key_len, b->key_len));

    if (c)
        return c;
    return (a->key_len > b->key_len) - (a->key_len < b->key_len);
}

/* Makes a call of @e that is read as member @number, behind a key of @key_len bytes. NO_MAX: it is
 * none of the numbered members and may come any number of times. */
static struct expr *once(struct build *b, struct expr *e, uint32_t number, uint32_t key_len) {
    if (e->kind == EXPR_CALL && !b->rule[e->id].nullable)
        e = expr_call(b, e->id);
    else
        e = expr_rule(b, e);
    if (e) {
        e->kind = EXPR_ONCE;
        e->min = number;
        e->max = key_len;
    }
    return e;
}

static struct expr *members_nth(struct build *b, const struct keyed *k, uint32_t number) {
    struct expr *key = expr_bytes(b, k->key, k->key_len);
    struct expr *value = once(b, k->value, number, k->key_len + (k->between != NULL));

    assert(number < MEMBERS_MAX && k->value);

    if (!key || !value)
        return NULL;
    if (k->between)
        return expr_seq3(b, key, k->between, value);
    return expr_seq2(b, key, value);
}

/* Makes one or more of @any, with commas between them. */
static struct expr *joined(struct build *b, struct expr *any) {
    struct expr_list *list = build_alloc(b, 1, sizeof(*list));
    struct expr *e = expr_empty(b);

    if (!list || !any || !e)
        return NULL;
    *list = (struct expr_list){.min = 1, .max = NO_MAX, .separator = json_comma(b), .rest = any};
    list->after = expr_empty(b);
    e->kind = EXPR_LIST;
    e->list = list;
    e->size = any->size;
    if (!list->separator || !list->after)
        return NULL;
    return e;
}

/* Makes a rule of its own for @body, whose register is a set as @k describes it. */
static struct expr *make_rule(struct build *b, const struct members *k, struct expr *body) {
    struct members *set = build_alloc(b, 1, sizeof(*set));
    struct expr *call = set ? expr_rule(b, body) : NULL;

    if (!call)
        return NULL;
    *set = *k;
    b->rule[call->id].members = set;
    call->kind = EXPR_MEMBERS;
    return call;
}

struct expr *items_distinct(struct schema *s, struct expr *item, uint32_t max) {
    struct expr *one = once(s->b, item, NO_MAX, 0);

    return make_rule(s->b, &(struct members){.distinct = MIN(max, MEMBERS_MAX)}, joined(s->b, one));
}

struct expr *members_unordered(struct schema *s, struct keyed *v, uint32_t n, struct expr *rest) {
    struct build *b = s->b;
    uint32_t *must = build_alloc(b, (n + 31) / 32, sizeof(*must));
    struct expr_vec item = {0};

    assert(n > 0 && n <= MEMBERS_MAX);
    if (!must || build_work(b, n * 8ull) < 0)
        return NULL;
    qsort(v, n, sizeof(*v), members_by_key);
    for (uint32_t i = 0; !b->failed && i < n; i++) {
        must[i / 32] |= (uint32_t)v[i].must << i % 32;
        expr_vec_add(b, &item, members_nth(b, &v[i], i));
    }
    if (rest)
        expr_vec_add(b, &item, once(b, rest, NO_MAX, 0));
    return make_rule(b, &(struct members){.n = n, .must = must}, joined(b, expr_alt_of(b, &item)));
}
