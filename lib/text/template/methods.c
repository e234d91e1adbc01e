/*
 * methods - the methods of lists and dicts. Methods that change their object are allowed: the
 * values belong to this rendering, so no other code sees the change.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "text/template/builtin.h"

static int dict_get_method(struct render *rd, const struct call *c, struct value *out) {
    *out = c->a[1].type == V_MISSING ? value_none() : c->a[1];
    return MIN(dict_get(rd, c->self.dict, c->a[0], out), 0);
}

/* Makes the keys, values or items of a dict. It is a copy where Python has a view: templates
 * iterate over it at once. */
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

static int dict_update(struct render *rd, const struct call *c, struct value *out) {
    const struct args *a = c->args;

    *out = value_none();
    if (a->n_pos > 1 || (a->n_pos && a->pos[0].type != V_DICT))
        return render_fail(rd, "update() wants a dict");
    return dict_fill(rd, c->self.dict, a);
}

static int list_append(struct render *rd, const struct call *c, struct value *out) {
    *out = value_none();
    return seq_add(rd, c->self.seq, c->a[0]);
}

/* Implements list.extend(). @items stays valid when a list extends itself: the list either moves to
 * a new array or grows behind the old elements. */
static int list_extend(struct render *rd, const struct call *c, struct value *out) {
    struct value *items;
    uint32_t n;

    *out = value_none();
    if (value_items(rd, c->a[0], &items, &n) || render_charge(rd, n))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        TRY(seq_add(rd, c->self.seq, items[i]));
    }
    return 0;
}

/* Gives a list an array of its own before its elements are moved. */
static int list_own(struct render *rd, struct seq *s) {
    if (!s->shared || !s->n)
        return 0;
    struct value *v = render_alloc(rd, s->n, sizeof(*v));

    if (!v || render_charge(rd, s->n / 4))
        return -1;
    memcpy(v, s->v, s->n * sizeof(*v));
    s->v = v;
    s->cap = s->n;
    s->shared = false;
    return 0;
}

static int remove_at(struct render *rd, struct seq *s, int64_t at, struct value *out) {
    assert(at >= 0 && at < s->n);
    *out = s->v[at];
    if (at + 1 < s->n)
        TRY(list_own(rd, s));
    memmove(s->v + at, s->v + at + 1, (s->n - 1 - (size_t)at) * sizeof(*s->v));
    s->n--;
    if (s->shared) /* a list that grows must not overwrite the element that a slice still has */
        s->cap = s->n;
    return render_charge(rd, s->n / 4);
}

static int list_pop(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;
    int64_t at;

    TRY(builtin_int(rd, c->a[0], -1, &at));
    at += at < 0 ? s->n : 0;
    if (at < 0 || at >= s->n)
        return render_fail(rd, s->n ? "pop index out of range" : "pop from empty list");
    return remove_at(rd, s, at, out);
}

/* Finds the first element from @i on that equals @what; s->n: there is none. */
static int list_search(struct render *rd, const struct seq *s, uint32_t i, struct value what,
                       uint32_t *at) {
    for (bool same = false; i < s->n; i++) {
        TRY(value_equal(rd, s->v[i], what, &same));
        if (same)
            break;
    }
    *at = i;
    return 0;
}

static int list_count(struct render *rd, const struct call *c, struct value *out) {
    const struct seq *s = c->self.seq;
    uint32_t n = 0, at;

    TRY(list_search(rd, s, 0, c->a[0], &at));
    for (; at < s->n; n++)
        TRY(list_search(rd, s, at + 1, c->a[0], &at));
    *out = value_int(n);
    return 0;
}

/* Implements index(), and remove(), which takes the element out. */
static int list_index(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;
    struct value removed;
    uint32_t at;

    TRY(list_search(rd, s, 0, c->a[0], &at));
    if (at == s->n)
        return render_fail(rd, "the element is not in the list");
    if (!c->how) {
        *out = value_int(at);
        return 0;
    }
    *out = value_none();
    return remove_at(rd, s, at, &removed);
}

static int list_copy(struct render *rd, const struct call *c, struct value *out) {
    const struct value all[3] = {value_none(), value_none(), value_none()};

    return operator_slice(rd, c->self, all, out);
}

static int list_insert(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;
    int64_t at;

    *out = value_none();
    if (builtin_int(rd, c->a[0], 0, &at) || list_own(rd, s) || seq_add(rd, s, c->a[1]) ||
        render_charge(rd, s->n / 4))
        return -1;
    uint32_t last = s->n - 1;

    at = at < 0 ? MAX(at + last, (int64_t)0) : MIN(at, (int64_t)last);
    memmove(s->v + at + 1, s->v + at, (last - (size_t)at) * sizeof(*s->v));
    s->v[at] = c->a[1];
    return 0;
}

static int list_reverse(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = c->self.seq;

    *out = value_none();
    if (list_own(rd, s) || render_charge(rd, s->n / 4))
        return -1;
    for (uint32_t i = 0; i < s->n / 2; i++) {
        struct value v = s->v[i];

        s->v[i] = s->v[s->n - 1 - i];
        s->v[s->n - 1 - i] = v;
    }
    return 0;
}

static int list_clear(struct render *rd, const struct call *c, struct value *out) {
    (void)rd;
    *out = value_none();
    c->self.seq->v = NULL;
    c->self.seq->n = c->self.seq->cap = 0;
    return 0;
}

static int dict_copy(struct render *rd, const struct call *c, struct value *out) {
    struct value self = c->self;
    const struct args args = {.pos = &self, .n_pos = 1};
    struct dict *d = dict_new(rd, self.dict->n);

    if (!d || dict_fill(rd, d, &args))
        return -1;
    d->user = self.dict->user;
    *out = value_dict(d);
    return 0;
}

static int dict_setdefault(struct render *rd, const struct call *c, struct value *out) {
    struct value v = c->a[1].type == V_MISSING ? value_none() : c->a[1];
    int r = dict_get(rd, c->self.dict, c->a[0], out);

    if (r)
        return MIN(r, 0);
    *out = v;
    return dict_set(rd, c->self.dict, c->a[0], v);
}

/* Implements loop.cycle(): the argument whose turn it is. */
static int loop_cycle(struct render *rd, const struct call *c, struct value *out) {
    if (!c->args->n_pos)
        return render_fail(rd, "no items for cycling given");
    *out = c->args->pos[c->self.loop->i % c->args->n_pos];
    return 0;
}

/* Implements loop.changed(): whether the arguments differ from those of the last call. */
static int loop_changed(struct render *rd, const struct call *c, struct value *out) {
    struct loop *l = c->self.loop;
    struct seq *now = seq_new(rd, SEQ_TUPLE, c->args->n_pos);
    bool same = false;

    for (uint32_t i = 0; now && i < c->args->n_pos; i++)
        now->v[now->n++] = c->args->pos[i];
    if (!now || (l->changed && value_equal(rd, value_seq(l->changed), value_seq(now), &same)))
        return -1;
    if (!same)
        l->changed = now;
    *out = value_bool(!same);
    return 0;
}

/* Each table is sorted by name. */
static const struct builtin LOOP_METHODS[] = {
    {"changed", "*", 0, loop_changed, 0, 0},
    {"cycle", "*", 0, loop_cycle, 0, 0},
};

static const struct builtin DICT_METHODS[] = {
    {"copy", "", 0, dict_copy, 0, 0},
    {"get", "key default", 1, dict_get_method, 0, 0},
    {"items", "", 0, dict_view, SEQ_ITEMS, 0},
    {"keys", "", 0, dict_view, SEQ_KEYS, 0},
    {"pop", "key default", 1, dict_pop, 0, 0},
    {"setdefault", "key default", 1, dict_setdefault, 0, 0},
    {"update", "*", 0, dict_update, 0, 0},
    {"values", "", 0, dict_view, SEQ_VALUES, 0},
};

static const struct builtin LIST_METHODS[] = {
    {"append", "object", 1, list_append, 0, 0},
    {"clear", "", 0, list_clear, 0, 0},
    {"copy", "", 0, list_copy, 0, 0},
    {"count", "value", 1, list_count, 0, 0},
    {"extend", "iterable", 1, list_extend, 0, 0},
    {"index", "value", 1, list_index, 0, 0},
    {"insert", "index object", 2, list_insert, 0, 0},
    {"pop", "index", 0, list_pop, 0, 0},
    {"remove", "value", 1, list_index, 1, 0},
    {"reverse", "", 0, list_reverse, 0, 0},
};

static const struct builtin TUPLE_METHODS[] = {
    {"count", "value", 1, list_count, 0, 0},
    {"index", "value", 1, list_index, 0, 0},
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
        if (self.seq->kind != SEQ_TUPLE)
            return NULL;
        return builtin_find(TUPLE_METHODS, ARRAY_SIZE(TUPLE_METHODS), name);
    default:
        return NULL;
    }
}

bool method_exists(const struct tstr *name) {
    return builtin_find(DICT_METHODS, ARRAY_SIZE(DICT_METHODS), name) ||
           builtin_find(LIST_METHODS, ARRAY_SIZE(LIST_METHODS), name) ||
           builtin_find(LOOP_METHODS, ARRAY_SIZE(LOOP_METHODS), name) || method_find_str(name);
}
