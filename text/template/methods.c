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

static int remove_at(struct render *rd, struct seq *s, int64_t at, struct value *out) {
    assert(at >= 0 && at < s->n);
    *out = s->v[at];
    if (s->shared && at + 1 < s->n) {
        struct value *v = render_alloc(rd, s->n, sizeof(*v));

        if (!v)
            return -1;
        memcpy(v, s->v, s->n * sizeof(*v));
        s->v = v;
        s->cap = s->n;
        s->shared = false;
    }
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
    {"changed", "*", 0, loop_changed, 0},
    {"cycle", "*", 0, loop_cycle, 0},
};

static const struct builtin DICT_METHODS[] = {
    {"get", "key default", 1, dict_get_method, 0},
    {"items", "", 0, dict_view, SEQ_ITEMS},
    {"keys", "", 0, dict_view, SEQ_KEYS},
    {"pop", "key default", 1, dict_pop, 0},
    {"update", "*", 0, dict_update, 0},
    {"values", "", 0, dict_view, SEQ_VALUES},
};

static const struct builtin LIST_METHODS[] = {
    {"append", "object", 1, list_append, 0},
    {"extend", "iterable", 1, list_extend, 0},
    {"pop", "index", 0, list_pop, 0},
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
        return self.seq->kind == SEQ_LIST
                   ? builtin_find(LIST_METHODS, ARRAY_SIZE(LIST_METHODS), name)
                   : NULL;
    default:
        return NULL;
    }
}

bool method_exists(const struct tstr *name) {
    return builtin_find(DICT_METHODS, ARRAY_SIZE(DICT_METHODS), name) ||
           builtin_find(LIST_METHODS, ARRAY_SIZE(LIST_METHODS), name) ||
           builtin_find(LOOP_METHODS, ARRAY_SIZE(LOOP_METHODS), name) || method_find_str(name);
}
