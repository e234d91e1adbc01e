/*
 * Methods of lists, dicts and loops. Methods that change their object work: the values belong to
 * this render, so no other code sees it.
 */

#include <assert.h>
#include <string.h>
#include "text/template/builtin.h"

static int dict_get_method(struct render *rd, const struct call *c, struct value *out) {
    *out = c->a[1].type == V_MISSING ? value_none() : c->a[1];
    return MIN(dict_get(rd, c->self.dict, c->a[0], out), 0);
}

/* A copy, where Python has a view: templates iterate it at once. */
static int dict_view(struct render *rd, const struct call *c, struct value *out) {
    const struct dict *d = c->self.dict;
    uint8_t kind = (uint8_t)c->how;
    struct seq *s = seq_new(rd, kind, d->n);

    assert(kind >= SEQ_KEYS && kind <= SEQ_ITEMS);
    if (!s || render_charge(rd, d->n))
        return -1;
    for (; s->n < d->n; s->n++) {
        const struct dict_entry *e = &d->e[s->n];

        if (kind == SEQ_KEYS)
            s->v[s->n] = e->key;
        else if (kind == SEQ_VALUES)
            s->v[s->n] = e->value;
        else if (value_pair(rd, e->key, e->value, &s->v[s->n]))
            return -1;
    }
    *out = value_seq(s);
    return 0;
}

static int dict_pop(struct render *rd, const struct call *c, struct value *out) {
    int r = dict_remove(rd, c->self.dict, c->a[0], out);

    if (r)
        return MIN(r, 0);
    if (c->a[1].type == V_MISSING)
        return render_fail(rd, "pop(): the key is missing");
    *out = c->a[1];
    return 0;
}

static int dict_setdefault(struct render *rd, const struct call *c, struct value *out) {
    int r = dict_get(rd, c->self.dict, c->a[0], out);

    if (r)
        return MIN(r, 0);
    *out = c->a[1].type == V_MISSING ? value_none() : c->a[1];
    return dict_set(rd, c->self.dict, c->a[0], *out);
}

static int dict_update(struct render *rd, const struct call *c, struct value *out) {
    const struct args *a = c->args;

    *out = value_none();
    if (a->n_pos > 1 || (a->n_pos && a->pos[0].type != V_DICT))
        return render_fail(rd, "update() wants a dict");
    for (uint32_t i = 0; a->n_pos && i < a->pos[0].dict->n; i++) {
        const struct dict_entry *e = &a->pos[0].dict->e[i];

        if (dict_set(rd, c->self.dict, e->key, e->value))
            return -1;
    }
    for (uint32_t i = 0; i < a->n_kw; i++) {
        if (dict_set(rd, c->self.dict, value_str(a->kw[i].name), a->kw[i].v))
            return -1;
    }
    return 0;
}

static int dict_copy(struct render *rd, const struct call *c, struct value *out) {
    const struct dict *from = c->self.dict;
    struct dict *d = dict_new(rd, from->n);

    if (!d)
        return -1;
    for (uint32_t i = 0; i < from->n; i++) {
        if (dict_set(rd, d, from->e[i].key, from->e[i].value))
            return -1;
    }
    d->user = from->user;
    *out = value_dict(d);
    return 0;
}

static int dict_clear(struct render *rd, const struct call *c, struct value *out) {
    struct dict *d = c->self.dict;

    d->n = 0;
    d->index = NULL;
    *out = value_none();
    return 0;
}

static int list_append(struct render *rd, const struct call *c, struct value *out) {
    *out = value_none();
    return seq_add(rd, c->self.seq, c->a[0]);
}

/* @items stays valid when the list extends itself: it grows into a new array or behind them. */
static int list_extend(struct render *rd, const struct call *c, struct value *out) {
    struct value *items;
    uint32_t n;

    *out = value_none();
    if (value_items(rd, c->a[0], &items, &n) || render_charge(rd, n))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        if (seq_add(rd, c->self.seq, items[i]))
            return -1;
    }
    return 0;
}

/* Positions outside of the list are its ends. */
static int list_insert(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;
    int64_t at;

    *out = value_none();
    if (builtin_int(rd, c->a[0], 0, &at) || seq_add(rd, s, c->a[1]) || render_charge(rd, s->n / 4))
        return -1;
    at = at < 0 ? MAX(at + s->n - 1, (int64_t)0) : MIN(at, (int64_t)s->n - 1);
    assert(at >= 0 && at < s->n); /* the new element is there already */
    memmove(s->v + at + 1, s->v + at, (s->n - 1 - (size_t)at) * sizeof(*s->v));
    s->v[at] = c->a[1];
    return 0;
}

static int remove_at(struct render *rd, struct seq *s, int64_t at, struct value *out) {
    assert(at >= 0 && at < s->n);
    *out = s->v[at];
    memmove(s->v + at, s->v + at + 1, (s->n - 1 - (size_t)at) * sizeof(*s->v));
    s->n--;
    return render_charge(rd, s->n / 4);
}

static int list_pop(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;
    int64_t at;

    if (builtin_int(rd, c->a[0], -1, &at))
        return -1;
    at += at < 0 ? s->n : 0;
    if (at < 0 || at >= s->n)
        return render_fail(rd, s->n ? "pop index out of range" : "pop from empty list");
    return remove_at(rd, s, at, out);
}

/* The place of an equal element, or n. */
static int position(struct render *rd, const struct call *c, uint32_t *at) {
    const struct seq *s = c->self.seq;
    bool same = false;

    for (*at = 0; *at < s->n; ++*at) {
        if (value_equal(rd, s->v[*at], c->a[0], &same))
            return -1;
        if (same)
            return 0;
    }
    return 0;
}

static int list_remove(struct render *rd, const struct call *c, struct value *out) {
    uint32_t at;
    struct value gone;

    if (position(rd, c, &at))
        return -1;
    if (at == c->self.seq->n)
        return render_fail(rd, "list.remove(x): x not in list");
    *out = value_none();
    return remove_at(rd, c->self.seq, at, &gone);
}

static int list_index(struct render *rd, const struct call *c, struct value *out) {
    uint32_t at;

    if (position(rd, c, &at))
        return -1;
    *out = value_int(at);
    return at == c->self.seq->n ? render_fail(rd, "the value is not in the list") : 0;
}

static int list_count(struct render *rd, const struct call *c, struct value *out) {
    int64_t n = 0;

    for (uint32_t i = 0; i < c->self.seq->n; i++) {
        bool same;

        if (value_equal(rd, c->self.seq->v[i], c->a[0], &same))
            return -1;
        n += same;
    }
    *out = value_int(n);
    return 0;
}

static int list_copy(struct render *rd, const struct call *c, struct value *out) {
    const struct value bound[3] = {value_none(), value_none(), value_none()};

    return operator_slice(rd, c->self, bound, out);
}

static int list_clear(struct render *rd, const struct call *c, struct value *out) {
    c->self.seq->n = 0;
    *out = value_none();
    return 0;
}

static int list_reverse(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;

    for (uint32_t i = 0; i < s->n / 2; i++) {
        struct value v = s->v[i];

        s->v[i] = s->v[s->n - 1 - i];
        s->v[s->n - 1 - i] = v;
    }
    *out = value_none();
    return render_charge(rd, s->n / 4);
}

static int list_sort(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;

    *out = value_none();
    return value_sort(rd, s->v, s->v, s->n, value_truth(c->a[0]));
}

/* One argument after the other, from turn to turn. */
static int loop_cycle(struct render *rd, const struct call *c, struct value *out) {
    if (!c->args->n_pos)
        return render_fail(rd, "no items for cycling given");
    *out = c->args->pos[c->self.loop->i % c->args->n_pos];
    return 0;
}

/* Returns whether the arguments differ from those of the turn before; true in the first turn. */
static int loop_changed(struct render *rd, const struct call *c, struct value *out) {
    struct loop *l = c->self.loop;
    struct seq *now = seq_new(rd, SEQ_TUPLE, c->args->n_pos);
    bool same = false;

    if (!now)
        return -1;
    for (uint32_t i = 0; i < c->args->n_pos; i++)
        now->v[now->n++] = c->args->pos[i];
    if (value_equal(rd, l->changed, value_seq(now), &same))
        return -1;
    l->changed = value_seq(now);
    *out = value_bool(!same);
    return 0;
}

/* Each sorted by name. */
static const struct builtin DICT_METHODS[] = {
    {"clear", "", 0, dict_clear, 0},
    {"copy", "", 0, dict_copy, 0},
    {"get", "key default", 1, dict_get_method, 0},
    {"items", "", 0, dict_view, SEQ_ITEMS},
    {"keys", "", 0, dict_view, SEQ_KEYS},
    {"pop", "key default", 1, dict_pop, 0},
    {"setdefault", "key default", 1, dict_setdefault, 0},
    {"update", "*", 0, dict_update, 0},
    {"values", "", 0, dict_view, SEQ_VALUES},
};

static const struct builtin LIST_METHODS[] = {
    {"append", "object", 1, list_append, 0},
    {"clear", "", 0, list_clear, 0},
    {"copy", "", 0, list_copy, 0},
    {"count", "value", 1, list_count, 0},
    {"extend", "iterable", 1, list_extend, 0},
    {"index", "value", 1, list_index, 0},
    {"insert", "index object", 2, list_insert, 0},
    {"pop", "index", 0, list_pop, 0},
    {"remove", "value", 1, list_remove, 0},
    {"reverse", "", 0, list_reverse, 0},
    {"sort", "reverse", 0, list_sort, 0},
};

static const struct builtin TUPLE_METHODS[] = {
    {"count", "value", 1, list_count, 0},
    {"index", "value", 1, list_index, 0},
};

static const struct builtin LOOP_METHODS[] = {
    {"changed", "*", 0, loop_changed, 0},
    {"cycle", "*", 0, loop_cycle, 0},
};

const struct builtin *method_find(struct value self, const struct tstr *name) {
    switch (self.type) {
    case V_STR:
        return method_find_str(name);
    case V_DICT:
        return builtin_find(DICT_METHODS, ARRAY_SIZE(DICT_METHODS), name);
    case V_LOOP:
        return builtin_find(LOOP_METHODS, ARRAY_SIZE(LOOP_METHODS), name);
    case V_SEQ:
        if (self.seq->kind == SEQ_LIST)
            return builtin_find(LIST_METHODS, ARRAY_SIZE(LIST_METHODS), name);
        if (self.seq->kind <= SEQ_RANGE)
            return builtin_find(TUPLE_METHODS, ARRAY_SIZE(TUPLE_METHODS), name);
        return NULL;
    default:
        return NULL;
    }
}
