/*
 * filters_seq - filters on lists, dicts and other values that can be iterated. Jinja evaluates map,
 * select, items and others lazily; here they are computed at once. Their result still behaves as a
 * generator: it has no length and no items, is always true, and can be iterated once.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "text/template/builtin.h"

static int filters_items_of(struct render *rd, const struct call *c, struct value **v,
                            uint32_t *n) {
    if (value_items(rd, c->self, v, n) || render_charge(rd, *n))
        return -1;
    return 0;
}

/* Makes a list or generator of a copy of @n values. */
static int as_seq(struct render *rd, uint8_t kind, const struct value *v, uint32_t n,
                  struct value *out) {
    struct seq *s = seq_new(rd, kind, n);

    if (!s)
        return -1;
    assert(s->cap >= n);
    if (n)
        memcpy(s->v, v, n * sizeof(*v));
    s->n = n;
    *out = value_seq(s);
    return 0;
}

/* Sets the items of @v for map and the select family, which take any false value, also None, as an
 * empty list. */
static int items_or_none(struct render *rd, const struct call *c, struct value **v, uint32_t *n) {
    *n = 0;
    if (!value_truth(c->self))
        return 0;
    return filters_items_of(rd, c, v, n);
}

/* Implements default(): stands in for an undefined value, and with a true second argument for any
 * false one: '', None, 0. */
static int filter_default(struct render *rd, const struct call *c, struct value *out) {
    bool use = c->self.type == V_UNDEFINED || (value_truth(c->a[1]) && !value_truth(c->self));

    *out = c->self;
    if (use)
        *out = c->a[0].type == V_MISSING ? value_str(TSTR_STATIC("")) : c->a[0];
    return 0;
}

static int filter_length(struct render *rd, const struct call *c, struct value *out) {
    int64_t n;

    TRY(value_length(rd, c->self, &n));
    *out = value_int(n);
    return 0;
}

/* Gets an attribute of @v by its path, like `a.b.0`, where a number names an item. */
int builtin_attribute(struct render *rd, struct value v, struct value path, struct value *out) {
    *out = v;
    if (path.type == V_MISSING || path.type == V_NONE)
        return 0;
    if (path.type != V_STR)
        return operator_item(rd, v, path, out);
    for (size_t i = 0; i <= path.s->len;) {
        size_t end = i;
        wide number;

        while (end < path.s->len && path.s->data[end] != '.')
            end++;
        const struct tstr *name = tstr_slice(rd, path.s, i, end);

        if (!name)
            return -1;
        struct value key = value_str(name);

        if (name->len && name->data[0] >= '0' && name->data[0] <= '9' &&
            text_to_int(name, 10, &number))
            key = value_int((int64_t)number);
        TRY(operator_item(rd, *out, key, out));
        i = end + 1;
    }
    return 0;
}

static int filter_first(struct render *rd, const struct call *c, struct value *out) {
    struct value v = c->self, *items;
    uint32_t n;

    if (v.type == V_SEQ && v.seq->n) {
        *out = seq_at(v.seq, 0);
        if (v.seq->kind == SEQ_GENERATOR) { /* takes one item of the generator */
            assert(v.seq->n <= v.seq->cap);
            v.seq->v++;
            v.seq->n--;
            v.seq->cap--;
        }
        return 0;
    }
    TRY(value_items(rd, c->self, &items, &n));
    *out = n ? items[0] : value_undefined(NULL, V_MISSING);
    return 0;
}

static int filter_last(struct render *rd, const struct call *c, struct value *out) {
    struct value v = c->self, *items;
    uint32_t n;

    if (value_is_seq(v, SEQ_GENERATOR))
        return render_fail(rd, "'generator' object is not reversible");
    if (v.type == V_SEQ) {
        *out = value_undefined(NULL, V_MISSING);
        if (v.seq->n)
            *out = seq_at(v.seq, v.seq->n - 1);
        return 0;
    }
    TRY(value_items(rd, v, &items, &n));
    *out = n ? items[n - 1] : value_undefined(NULL, V_MISSING);
    return 0;
}

/* Implements join(), which takes values of all types, unlike str.join(). */
static int filter_join(struct render *rd, const struct call *c, struct value *out) {
    struct value *items, *parts;
    const struct tstr *sep;
    uint32_t n;

    if (filters_items_of(rd, c, &items, &n))
        return -1;
    parts = items;
    if (c->a[1].type != V_MISSING && !(parts = render_alloc(rd, n, sizeof(*parts))))
        return -1;
    if (c->a[0].type == V_MISSING)
        sep = TSTR_STATIC("");
    else if (format_to_str(rd, c->a[0], &sep))
        return -1;
    for (uint32_t i = 0; i < n && parts != items; i++) {
        TRY(builtin_attribute(rd, items[i], c->a[1], &parts[i]));
    }
    return text_join(rd, sep, parts, n, false, out);
}

/* Implements items(): the pairs of a dict; an undefined value has none. */
static int filters_dict_items(struct render *rd, const struct call *c, struct value *out) {
    const struct dict *d = c->self.dict;
    struct seq *s;

    if (c->self.type == V_UNDEFINED)
        return as_seq(rd, SEQ_GENERATOR, NULL, 0, out);
    if (c->self.type != V_DICT)
        return render_fail(rd, "Can only get item pairs from a mapping.");
    s = seq_new(rd, SEQ_GENERATOR, d->n);
    if (!s || render_charge(rd, d->n))
        return -1;
    for (; s->n < d->n; s->n++) {
        TRY(value_pair(rd, d->e[s->n].key, d->e[s->n].value, &s->v[s->n]));
    }
    *out = value_seq(s);
    return 0;
}

/* Implements list(). A generator, which is used up, gives its array away. */
static int filter_list(struct render *rd, const struct call *c, struct value *out) {
    struct value *items;
    uint32_t n;

    if (value_is_seq(c->self, SEQ_GENERATOR)) {
        struct seq *from = c->self.seq, *s = seq_new(rd, SEQ_LIST, 0);

        if (!s)
            return -1;
        *s = (struct seq){.v = from->v, .n = from->n, .cap = from->cap, .kind = SEQ_LIST};
        *from = (struct seq){.kind = SEQ_GENERATOR};
        *out = value_seq(s);
        return 0;
    }
    if (value_items(rd, c->self, &items, &n) || render_charge(rd, n / 4))
        return -1;
    return as_seq(rd, SEQ_LIST, items, n, out);
}

/* Implements reverse(). A string stays a string. */
static int filter_reverse(struct render *rd, const struct call *c, struct value *out) {
    const struct value bound[3] = {value_none(), value_none(), value_int(-1)};
    struct value *items;
    uint32_t n;

    if (c->self.type == V_STR)
        return operator_slice(rd, c->self, bound, out);
    if (filters_items_of(rd, c, &items, &n) || as_seq(rd, SEQ_GENERATOR, items, n, out))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        out->seq->v[i] = items[n - 1 - i];
    return 0;
}

/* Makes the key by which values are sorted and compared: without case unless asked otherwise. */
static int filters_fold(struct render *rd, struct value v, bool sensitive, struct value *out) {
    *out = v;
    if (v.type != V_STR || sensitive)
        return 0;
    return text_case(rd, v.s, CASE_LOWER, out);
}

int builtin_keys(struct render *rd, const struct value *items, uint32_t n, struct value path,
                 bool sensitive, struct value **out) {
    struct value *keys = render_alloc(rd, n, sizeof(*keys));

    *out = keys;
    for (uint32_t i = 0; keys && i < n; i++) {
        if (builtin_attribute(rd, items[i], path, &keys[i]) ||
            filters_fold(rd, keys[i], sensitive, &keys[i]))
            return -1;
    }
    if (!keys)
        return -1;
    return 0;
}

/* Sorts stably; strings regardless of case unless case_sensitive is set. */
static int filter_sort(struct render *rd, const struct call *c, struct value *out) {
    struct value *items, *keys;
    uint32_t n;

    if (filters_items_of(rd, c, &items, &n) || as_seq(rd, SEQ_LIST, items, n, out) ||
        builtin_keys(rd, items, n, c->a[2], value_truth(c->a[1]), &keys))
        return -1;
    return value_sort(rd, out->seq->v, keys, n, value_truth(c->a[0]));
}

static int filter_dictsort(struct render *rd, const struct call *c, struct value *out) {
    bool by_value = c->a[1].type == V_STR && tstr_is(c->a[1].s, "value");
    struct value pairs, *keys;

    if (c->self.type != V_DICT)
        return render_fail(rd, "dictsort wants a dict, not '%s'", value_type_name(c->self));
    TRY(filters_dict_items(rd, c, &pairs));
    pairs.seq->kind = SEQ_LIST;
    TRY(builtin_keys(rd, pairs.seq->v, pairs.seq->n, value_int(by_value), value_truth(c->a[0]),
                     &keys));
    *out = pairs;
    return value_sort(rd, pairs.seq->v, keys, pairs.seq->n, value_truth(c->a[2]));
}

/* Implements min and max: the first of the smallest or largest values; undefined if there is
 * none. */
static int filter_extreme(struct render *rd, const struct call *c, struct value *out) {
    struct value *items, *keys;
    uint32_t n, best = 0;

    if (filters_items_of(rd, c, &items, &n) ||
        builtin_keys(rd, items, n, c->a[1], value_truth(c->a[0]), &keys))
        return -1;
    for (uint32_t i = 1; i < n; i++) {
        bool better;

        if (c->how)
            TRY(value_less(rd, keys[best], keys[i], ">", &better));
        else
            TRY(value_less(rd, keys[i], keys[best], "<", &better));
        if (better)
            best = i;
    }
    *out = n ? items[best] : value_undefined(NULL, V_MISSING);
    return 0;
}

/* Implements map('filter', args...) and map(attribute='x', default=y). */
static int filter_map(struct render *rd, const struct call *c, struct value *out) {
    struct args rest = *c->args;
    struct value *items, path = {0}, def = {0}, v;
    uint32_t n;

    for (uint32_t i = 0; i < rest.n_kw && !rest.n_pos; i++) {
        if (tstr_is(rest.kw[i].name, "attribute"))
            path = rest.kw[i].v;
        else if (tstr_is(rest.kw[i].name, "default"))
            def = rest.kw[i].v;
        else
            return render_fail(rd, "map: unexpected keyword argument");
    }
    if (path.type == V_MISSING && (!rest.n_pos || rest.pos[0].type != V_STR))
        return render_fail(rd, "map requires a filter argument");
    bool by_path = path.type != V_MISSING;
    const struct builtin *b = by_path ? NULL : filter_find(rest.pos[0].s);

    if (items_or_none(rd, c, &items, &n) || as_seq(rd, SEQ_GENERATOR, NULL, 0, out))
        return -1;
    if (rest.n_pos) {
        rest.pos++;
        rest.n_pos--;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (by_path)
            TRY(builtin_attribute(rd, items[i], path, &v));
        else
            TRY(call_named(rd, "filter", b, c->args->pos[0].s, items[i], &rest, &v));
        if (v.type == V_UNDEFINED && def.type != V_MISSING)
            v = def;
        TRY(seq_build(rd, out->seq, v));
    }
    return 0;
}

enum { KEEP = 1, BY_ATTR = 2 };

/* Implements select, reject, selectattr and rejectattr: for the latter two the attribute comes
 * first, then a test with its arguments. */
static int filter_choose(struct render *rd, const struct call *c, struct value *out) {
    bool by_attr = c->how & BY_ATTR, keep = c->how & KEEP;
    struct args rest = *c->args;
    struct value *items, path = {0}, v;
    const struct tstr *test = NULL;
    uint32_t n;

    if (by_attr) {
        if (!rest.n_pos)
            return render_fail(rd, "Missing parameter for attribute name");
        path = *rest.pos++;
        rest.n_pos--;
    }
    if (rest.n_pos) {
        if (rest.pos[0].type != V_STR)
            return render_fail(rd, "the name of a test must be a string");
        test = rest.pos++->s;
        rest.n_pos--;
    }
    const struct builtin *b = test ? test_find(test) : NULL;

    if (items_or_none(rd, c, &items, &n) || as_seq(rd, SEQ_GENERATOR, NULL, 0, out))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        TRY(builtin_attribute(rd, items[i], path, &v));
        if (test && call_named(rd, "test", b, test, v, &rest, &v))
            return -1;
        if (value_truth(v) == keep && seq_build(rd, out->seq, items[i]))
            return -1;
    }
    return 0;
}

/* Sorted by name. */
const struct builtin FILTERS_SEQ[] = {
    {"count", "", 0, filter_length, 0, BUILTIN_READS_SEQ},
    {"d", "default_value boolean", 0, filter_default, 0, 0},
    {"default", "default_value boolean", 0, filter_default, 0, 0},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, 0, BUILTIN_MAKES_SEQ},
    {"first", "", 0, filter_first, 0, BUILTIN_READS_SEQ},
    {"items", "", 0, filters_dict_items, 0, BUILTIN_MAKES_SEQ},
    {"join", "d attribute", 0, filter_join, 0, BUILTIN_READS_SEQ},
    {"last", "", 0, filter_last, 0, BUILTIN_READS_SEQ},
    {"length", "", 0, filter_length, 0, BUILTIN_READS_SEQ},
    {"list", "", 0, filter_list, 0, BUILTIN_MAKES_SEQ},
    {"map", "*", 0, filter_map, 0, BUILTIN_MAKES_SEQ},
    {"max", "case_sensitive attribute", 0, filter_extreme, true, 0},
    {"min", "case_sensitive attribute", 0, filter_extreme, 0, 0},
    {"reject", "*", 0, filter_choose, 0, BUILTIN_MAKES_SEQ},
    {"rejectattr", "*", 0, filter_choose, BY_ATTR, BUILTIN_MAKES_SEQ},
    {"reverse", "", 0, filter_reverse, 0, BUILTIN_MAKES_SEQ},
    {"select", "*", 0, filter_choose, KEEP, BUILTIN_MAKES_SEQ},
    {"selectattr", "*", 0, filter_choose, KEEP | BY_ATTR, BUILTIN_MAKES_SEQ},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, 0, BUILTIN_MAKES_SEQ},
};
const size_t N_FILTERS_SEQ = ARRAY_SIZE(FILTERS_SEQ);

const struct builtin *filter_find(const struct tstr *name) {
    const struct builtin *f = builtin_find(FILTERS_SEQ, N_FILTERS_SEQ, name);

    f = f ? f : builtin_find(FILTERS_TEXT, N_FILTERS_TEXT, name);
    if (f)
        return f;
    return filter_find_more(name);
}
