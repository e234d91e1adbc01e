/*
 * Members in any order, each at most once (members.c has what that takes while a text is read).
 */

#include "grammar/front/schema/schema.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int by_key(const void *x, const void *y) {
    const struct keyed *a = x, *b = y;
    int c = memcmp(a->key, b->key, MIN(a->key_len, b->key_len));

    return c ? c : (a->key_len > b->key_len) - (a->key_len < b->key_len);
}

/* @e, which is read as member @number behind @key_len bytes; NO_MAX: as none of the members. */
static struct expr *once(struct build *b, struct expr *e, uint32_t number, uint32_t key_len) {
    uint32_t rule = e->id;

    if (e->kind != EXPR_CALL || b->rule[rule].nullable) {
        if (build_rule(b, NULL, &rule) < 0)
            return NULL;
        b->rule[rule].body = e;
    }
    e = expr_call(b, rule);
    if (e) {
        e->kind = EXPR_ONCE;
        e->min = number;
        e->max = key_len;
    }
    return e;
}

static struct expr *member(struct build *b, const struct keyed *k, uint32_t number) {
    struct expr *key = expr_bytes(b, k->key, k->key_len);
    struct expr *value = once(b, k->value, number, k->key_len + (k->between != NULL));

    assert(number < MEMBERS_MAX && k->value);

    if (!key || !value)
        return NULL;
    return k->between ? expr_seq3(b, key, k->between, value) : expr_seq2(b, key, value);
}

/* One or more of @any, with commas between them. */
static struct expr *joined(struct build *b, struct expr *any) {
    struct expr_list *list = arena_alloc(&b->arena, sizeof(*list));
    struct expr *e = expr_empty(b);

    if (!list || !any || !e)
        return NULL;
    *list = (struct expr_list){.min = 1, .max = NO_MAX, .separator = json_comma(b), .rest = any};
    list->after = expr_empty(b);
    e->kind = EXPR_LIST;
    e->list = list;
    e->size = any->size;
    return list->separator && list->after ? e : NULL;
}

/* A rule of its own for @body, whose register is that of @k. */
static int make_rule(struct build *b, const struct members *k, struct expr *body,
                     struct expr **out) {
    struct members *set = arena_alloc(&b->arena, sizeof(*set));
    uint32_t rule;
    int r = set && body ? build_rule(b, NULL, &rule) : build_no_memory(b);

    if (r < 0)
        return r;
    *set = *k;
    b->rule[rule].body = body;
    b->rule[rule].members = set;
    *out = expr_call(b, rule);
    if (!*out)
        return build_no_memory(b);
    (*out)->kind = EXPR_MEMBERS;
    return 0;
}

int items_distinct(struct schema *s, struct expr *item, uint32_t max, struct expr **out) {
    struct expr *one = once(s->b, item, NO_MAX, 0);

    if (!one)
        return build_no_memory(s->b);
    return make_rule(s->b, &(struct members){.distinct = MIN(max, MEMBERS_MAX)}, joined(s->b, one),
                     out);
}

int members_unordered(struct schema *s, struct keyed *v, uint32_t n, struct expr *rest,
                      struct expr **out) {
    struct build *b = s->b;
    uint32_t *must = arena_alloc_array(&b->arena, (n + 31) / 32, sizeof(*must));
    struct expr_vec item = {0};
    int r = must ? build_work(b, n * 8ull) : build_no_memory(b);

    assert(n > 0 && n <= MEMBERS_MAX);
    if (r < 0)
        return r;
    qsort(v, n, sizeof(*v), by_key);
    memset(must, 0, (n + 31) / 32 * sizeof(*must));
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        must[i / 32] |= (uint32_t)v[i].must << i % 32;
        r = expr_vec_add(b, &item, member(b, &v[i], i));
    }
    if (r == 0 && rest)
        r = expr_vec_add(b, &item, once(b, rest, NO_MAX, 0));
    if (r < 0)
        return r;
    return make_rule(b, &(struct members){.n = n, .must = must},
                     joined(b, expr_alt(b, item.v, item.n)), out);
}
