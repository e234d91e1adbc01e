/*
 * Arrays: items by position, an item that satisfies `contains`, items that must differ.
 */

#include "grammar/front/schema/schema.h"
#include "grammar/automaton/lang.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Returns the list of schemas by position: prefixItems, or in old drafts items. */
static struct place prefix_of(struct schema *s, struct place part) {
    struct place items = schema_at(s, part, "items");

    return yyjson_is_arr(items.v) ? items : schema_at(s, part, "prefixItems");
}

/* Schemas of item @i: by position, or `items`; and those of f->contains in @with, bits. */
static int item_value(struct schema *s, const struct facets *f, uint32_t i, uint32_t with,
                      struct expr **out) {
    const struct parts *parts = f->parts;
    struct place *v = NULL;
    uint32_t n = 0, cap = 0;
    int r = 0;

    assert(f->n_contains >= 32 || with >> f->n_contains == 0);
    for (uint32_t k = 0; r == 0 && k < f->n_contains; k++) {
        if (with >> k & 1)
            r = places_add(s, &v, &n, &cap, f->contains[k]);
    }

    for (uint32_t k = 0; r == 0 && k < parts->n; k++) {
        struct place prefix = prefix_of(s, parts->v[k]), p;
        bool old = yyjson_is_arr(yyjson_obj_get(parts->v[k].v, "items"));

        if (i < yyjson_arr_size(prefix.v))
            p = (struct place){yyjson_arr_get(prefix.v, i), schema_path_index(s, prefix.path, i)};
        else
            p = schema_at(s, parts->v[k], old ? "additionalItems" : "items");
        if (p.v)
            r = places_add(s, &v, &n, &cap, p);
    }
    return r < 0 ? r : schema_value(s, v, n, out);
}

/* The items with the commas between them, without an optional around all of them. */
static int array_items(struct schema *s, const struct facets *f, uint32_t n_prefix,
                       struct expr **out) {
    struct build *b = s->b;
    struct expr *x = NULL, *tail, *comma = json_comma(b);
    uint32_t min = f->min_items, max = f->max_items;
    int r = item_value(s, f, n_prefix, 0, &x);

    if (r < 0 || !(x = schema_share(s, x)))
        return r < 0 ? r : build_no_memory(b);
    uint32_t more = min > n_prefix ? min - n_prefix : 0;
    uint32_t room = max == NO_MAX ? NO_MAX : max > n_prefix ? max - n_prefix : 0;

    if (n_prefix == 0) {
        tail = expr_repeat(b, expr_seq2(b, comma, x), more ? more - 1 : 0,
                           room == NO_MAX ? NO_MAX : room - 1);
        *out = expr_seq2(b, x, tail);
        return *out ? 0 : build_no_memory(b);
    }
    tail = expr_repeat(b, expr_seq2(b, comma, x), more, room);
    for (uint32_t i = MIN(n_prefix, max); i-- > 0;) {
        r = item_value(s, f, i, 0, &x);
        if (r < 0)
            return r;
        tail = i ? expr_seq3(b, comma, x, tail) : expr_seq2(b, x, tail);
        if (i && i >= min)
            tail = expr_optional(b, tail);
    }
    *out = tail;
    return tail ? 0 : build_no_memory(b);
}

/* Any items, one that satisfies `contains`, any items; counts are kept by numbering the place of
 * that one. */
static int array_containing(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct expr *any = NULL, *one = NULL, *comma = json_comma(b);
    struct expr_vec v = {0};
    uint32_t min = MAX(f->min_items, 1u), max = f->max_items, last = max == NO_MAX ? min : max;
    int r = item_value(s, f, 0, 0, &any);

    if (r == 0)
        r = item_value(s, f, 0, 1, &one);
    if (r < 0)
        return r;
    any = schema_share(s, any);
    one = schema_share(s, one);
    if (last > 64)
        return schema_unsupported(s, f->contains[0].path, "beside a large minItems or maxItems");
    struct expr *before = expr_seq2(b, any, comma), *after = expr_seq2(b, comma, any);

    for (uint32_t i = 0; i < last; i++) {
        bool open = max == NO_MAX && i + 1 == last;
        uint32_t least = min > i + 1 ? min - i - 1 : 0;
        struct expr *e =
            expr_seq3(b, expr_repeat(b, before, i, open ? NO_MAX : i), one,
                      expr_repeat(b, after, least, max == NO_MAX ? NO_MAX : max - i - 1));

        if ((r = expr_vec_add(b, &v, e)) < 0)
            return r;
    }
    *out = expr_alt(b, v.v, v.n);
    return *out ? 0 : build_no_memory(b);
}

#define CONTAINS_MAX 4 /* of one array: an item may be what any set of them asks for */

struct containing {
    struct schema *s;
    const struct facets *f;
    uint32_t n_prefix; /* items by position, before those of which any number may be */
    struct expr *any, *item[1 << CONTAINS_MAX]; /* by the set that it is what they ask for */
    struct expr *made[1 << CONTAINS_MAX];       /* what comes behind items, by what is left */
};

/* Items behind others, with the commas before them, among which are what @left ask for. */
static int items_behind(struct containing *c, uint32_t left, struct expr **out);

/* One item that some of @left ask for, and those behind it. */
static int item_of(struct containing *c, uint32_t left, struct expr **out) {
    struct build *b = c->s->b;
    struct expr_vec v = {0};

    for (uint32_t set = left; set; set = (set - 1) & left) {
        struct expr *rest = NULL;
        int r = c->item[set] ? 0 : item_value(c->s, c->f, c->n_prefix, set, &c->item[set]);

        c->item[set] = r == 0 ? schema_share(c->s, c->item[set]) : NULL;
        if (r < 0 || (r = items_behind(c, left & ~set, &rest)) < 0 ||
            (r = expr_vec_add(b, &v, expr_seq2(b, c->item[set], rest))) < 0)
            return r;
    }
    *out = expr_alt(b, v.v, v.n);
    return *out ? 0 : build_no_memory(b);
}

static int items_behind(struct containing *c, uint32_t left, struct expr **out) {
    struct build *b = c->s->b;
    assert(left < 1u << CONTAINS_MAX);
    struct expr *comma = json_comma(b), *one = NULL;
    struct expr *others = expr_repeat(b, expr_seq2(b, comma, c->any), 0, NO_MAX);

    if (c->made[left]) {
        *out = c->made[left];
        return 0;
    }
    int r = left ? item_of(c, left, &one) : 0;

    if (r < 0)
        return r;
    others = left ? schema_share(c->s, expr_seq3(b, others, comma, one)) : others;
    *out = c->made[left] = others;
    return others ? 0 : build_no_memory(b);
}

/* Items from position @i on, with a comma before each but the first of all, among which are what
 * @left ask for. */
static int items_from(struct containing *c, uint32_t i, uint32_t left, struct expr **out) {
    const struct facets *f = c->f;
    struct build *b = c->s->b;
    struct expr *comma = i ? json_comma(b) : expr_empty(b), *x = NULL, *rest = NULL;
    struct expr_vec v = {0};
    uint32_t set = left;
    int r = build_work(b, 16);

    if (i == c->n_prefix && i < f->max_items && left) {
        if (c->any->kind != EXPR_NEVER && (f->max_items != NO_MAX || f->min_items > i + 1))
            return schema_unsupported(c->s, f->contains[0].path,
                                      "beside schemas by position and minItems or maxItems");
        return items_behind(c, left, out);
    }
    if (i == c->n_prefix && i < f->max_items) {
        *out = expr_repeat(b, expr_seq2(b, comma, c->any), f->min_items > i ? f->min_items - i : 0,
                           f->max_items == NO_MAX ? NO_MAX : f->max_items - i);
        return *out ? 0 : build_no_memory(b);
    }
    do { /* this item is what @set ask for */
        set = i < f->max_items ? set : 0;
        if (r == 0 && i < f->max_items)
            r = item_value(c->s, f, i, set, &x);
        if (r == 0 && i < f->max_items && x->kind != EXPR_NEVER)
            r = items_from(c, i + 1, left & ~set, &rest);
        if (r == 0 && rest)
            r = expr_vec_add(b, &v, expr_seq3(b, comma, x, rest));
        rest = NULL;
    } while (r == 0 && set && (set = (set - 1) & left, true));
    if (r == 0 && left == 0 && i > 0 && i >= f->min_items)
        r = expr_vec_add(b, &v, expr_empty(b));
    *out = r == 0 ? expr_alt(b, v.v, v.n) : NULL;
    return r < 0 ? r : *out ? 0 : build_no_memory(b);
}

#define PLACES_MAX 64 /* items by position beside `contains` */

/* Items by position, and others behind them; one of all is what each `contains` asks for. */
static int array_containing_placed(struct schema *s, const struct facets *f, uint32_t n_prefix,
                                   struct expr **out) {
    struct containing c = {.s = s, .f = f, .n_prefix = n_prefix};

    if (f->n_contains > CONTAINS_MAX || n_prefix > PLACES_MAX)
        return schema_unsupported(s, f->contains[f->n_contains - 1].path,
                                  "beside many schemas by position");
    int r = item_value(s, f, n_prefix, 0, &c.any);

    c.any = r == 0 ? schema_share(s, c.any) : NULL;
    return r < 0 ? r : items_from(&c, 0, (1u << f->n_contains) - 1, out);
}

/* Makes arrays as array_containing() does, with several `contains`; one item may satisfy some of
 * them. */
static int array_containing_all(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct containing c = {.s = s, .f = f};
    struct expr *one = NULL;

    if (f->n_contains > CONTAINS_MAX || f->min_items > 1 || f->max_items != NO_MAX)
        return schema_unsupported(s, f->contains[f->n_contains - 1].path,
                                  f->n_contains > CONTAINS_MAX
                                      ? "more than four times"
                                      : "twice, beside minItems or maxItems");
    int r = item_value(s, f, 0, 0, &c.any);

    c.any = r == 0 ? schema_share(s, c.any) : NULL;
    if (r == 0)
        r = item_of(&c, (1u << f->n_contains) - 1, &one);
    if (r < 0)
        return r;
    *out = expr_seq2(b, expr_repeat(b, expr_seq2(b, c.any, json_comma(b)), 0, NO_MAX), one);
    return *out ? 0 : build_no_memory(b);
}

/* ---- items that must differ (uniqueItems), of a few values */

#define LISTED_MAX 1024
#define FEW_VALUES 8 /* where they are counted, too: 2^8 sets of them */

/* Lists in *v[n] all values that an item can have, each once, as they are written. Returns 1, or 0
 * when they are too many to be listed. */
static int few_values(struct schema *s, const struct facets *f, struct expr_vec *v) {
    yyjson_val *seen[LISTED_MAX];
    struct place value = f->n_values ? f->value[0] : (struct place){0};
    size_t n = f->n_values == 0 ? 0 : f->value_is_const[0] ? 1 : yyjson_arr_size(value.v);
    static const struct {
        unsigned type;
        const char *text;
    } plain[] = {{T_NULL, "null"}, {T_BOOL, "false"}, {T_BOOL, "true"}};

    if (f->n_values == 0 && (f->types & ~(unsigned)(T_NULL | T_BOOL)))
        return 0;
    for (size_t i = 0; f->n_values == 0 && i < ARRAY_SIZE(plain); i++) {
        if ((f->types & plain[i].type) && expr_vec_add(s->b, v, expr_str(s->b, plain[i].text)) < 0)
            return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        struct place p = {f->value_is_const[0] ? value.v : yyjson_arr_get(value.v, i), value.path};
        struct expr *x = NULL;
        int r = facets_admit(s, f, p);
        bool new = r > 0;

        if (r >= 0 && build_work(s->b, v->n) < 0)
            return -EINVAL;

        for (uint32_t k = 0; new &&k < v->n; k++)
            new = !same_value(seen[k], p.v);
        if (new && (yyjson_is_ctn(p.v) || v->n == LISTED_MAX))
            return 0;
        if (new)
            r = 0;
        if (new &&yyjson_is_raw(p.v)) /* one text for each */
            x = expr_bytes(s->b, json_digits(p.v), json_n_digits(p.v));
        else if (new)
            r = value_expr(s, p.v, &x);
        if (new &&r == 0) {
            seen[v->n] = p.v;
            r = expr_vec_add(s->b, v, x);
        }
        if (r < 0)
            return r;
    }
    return 1;
}

/* @n to @m more of the values that are not in @had, with a comma before each but the first. What
 * follows a set is made once: made[had]. */
static int differing(struct build *b, const struct expr_vec *v, uint32_t had, uint32_t n,
                     uint32_t m, struct expr **made, struct expr **out) {
    struct expr_vec alt = {0};
    uint32_t rule;

    assert(v->n <= FEW_VALUES && had < 1u << v->n && n <= m);
    if (made[had]) {
        *out = made[had];
        return 0;
    }
    for (uint32_t i = 0; m > 0 && i < v->n; i++) {
        struct expr *rest = NULL, *comma = had ? json_comma(b) : expr_empty(b);

        if (had >> i & 1)
            continue;
        int r = differing(b, v, had | 1u << i, n ? n - 1 : 0, m - 1, made, &rest);

        if (r == 0)
            r = expr_vec_add(b, &alt, comma ? expr_seq3(b, comma, v->v[i], rest) : NULL);
        if (r < 0)
            return r;
    }
    if (n == 0 && expr_vec_add(b, &alt, expr_empty(b)) < 0)
        return -ENOMEM;
    struct expr *e = expr_alt(b, alt.v, alt.n);

    if (!e || build_rule(b, NULL, &rule) < 0)
        return -ENOMEM;
    b->rule[rule].body = e;
    *out = made[had] = alt.n == 1 && n == 0 ? e : expr_call(b, rule);
    return *out ? 0 : build_no_memory(b);
}

/* An item that must differ from others, each value in one spelling. 1: not known how. */
static int distinct_item(struct schema *s, const struct facets *f, struct expr **out) {
    static const char INTEGER[] = "0|-?[1-9][0-9]{0,18}";
    struct build *b = s->b;
    struct expr_vec v = {0};
    const struct lang *l = NULL;
    struct expr *e = NULL;
    int r = 0;

    if (f->n_values || (f->types & ~(unsigned)(T_NULL | T_BOOL | T_STRING | T_INT)))
        return 1;
    if (f->types & T_INT) {
        bool bounds = f->lower.set || f->upper.set;

        if (f->n_multiples || (bounds && (!f->lower.set || f->lower.x.negative)))
            return 1; /* -0 is 0 */
        e = bounds ? number_range(b, f) : regex_of(b, INTEGER, CHARS_TEXT);
        if ((r = expr_vec_add(b, &v, e)) < 0)
            return r;
    }
    if ((f->types & T_STRING) && f->min_length <= f->max_length) {
        if (f->n_text && (r = facets_lang(s, f, &l)) < 0)
            return r;
        e = l ? lang_expr(b, l)
              : expr_repeat(b, json_canonical_char(b), f->min_length, f->max_length);
        if ((r = expr_vec_add(b, &v, json_quoted(b, e))) < 0)
            return r;
    }
    if (r == 0 && (f->types & T_NULL))
        r = expr_vec_add(b, &v, expr_str(b, "null"));
    if (r == 0 && (f->types & T_BOOL))
        r = expr_vec_add(b, &v, expr_alt2(b, expr_str(b, "true"), expr_str(b, "false")));
    *out = r == 0 ? expr_alt(b, v.v, v.n) : NULL;
    return r < 0 ? r : *out ? 0 : build_no_memory(b);
}

/* Makes items as array_items() does, each different from the others. */
static int array_unique(struct schema *s, const struct facets *f, uint32_t n_prefix,
                        struct expr **out) {
    struct build *b = s->b;
    struct parts parts = {0};
    struct facets item;
    struct expr_vec v = {0};
    struct expr *one = NULL;
    bool listed = false;
    int r = 0, few = 0;

    for (uint32_t k = 0; r == 0 && k < f->parts->n; k++) {
        struct place p = schema_at(s, f->parts->v[k], "items");

        if (p.v)
            r = parts_expand(s, &parts, p);
    }
    listed = n_prefix == 0 && parts.n_choices == 0 && !parts.never && f->n_contains == 0;
    if (r == 0 && listed) {
        unsigned flags = b->flags;

        b->flags &= ~(unsigned)GRAMMAR_PYTHON; /* a value is one text here */
        r = facets_gather(s, &parts, &item);
        few = r < 0 ? r : few_values(s, &item, &v);
        b->flags = flags;
    }
    if (r < 0 || few < 0)
        return r < 0 ? r : few;
    uint32_t min = MAX(f->min_items, 1u), max = MIN(f->max_items, v.n);
    bool counted = (min > 1 && min < v.n) || max < v.n;

    if (!few && listed) {
        r = distinct_item(s, &item, &one);
        if (r < 0)
            return r;
    } else if (few && counted && v.n > FEW_VALUES) {
        one = expr_alt(b, v.v, v.n);
        if (!one)
            return build_no_memory(b);
    }
    if (one && min == 1)
        return items_distinct(s, one, f->max_items, out);
    if (one)
        return schema_unsupported(s, f->unique_at.path, "beside minItems of 2 or more");
    if (!few)
        return schema_unsupported(s, f->unique_at.path, "only of strings, integers and few values");
    if (min > max || v.n == 0) {
        *out = expr_never(b);
        return *out ? 0 : build_no_memory(b);
    }
    if (counted) {
        struct expr *made[1 << FEW_VALUES] = {NULL};

        return differing(b, &v, 0, min, max, made, out);
    }
    struct keyed *keyed = arena_alloc_array(&b->arena, v.n, sizeof(*keyed));

    for (uint32_t i = 0; keyed && i < v.n; i++) {
        const struct expr *e = v.v[i];
        struct expr *last = expr_bytes(b, e->bytes + e->n - 1, 1);

        assert(e->kind == EXPR_BYTES);
        if (!last)
            return build_no_memory(b);
        keyed[i] = (struct keyed){e->bytes, e->n - 1, NULL, last, min == v.n};
    }
    return keyed ? members_unordered(s, keyed, v.n, NULL, out) : build_no_memory(b);
}

int lower_array(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct expr *items = NULL;
    size_t n_prefix = 0;
    uint32_t min = MAX(f->min_items, f->n_contains ? 1u : 0u);
    int r = 0;

    for (uint32_t i = 0; i < f->parts->n; i++)
        n_prefix = MAX(n_prefix, yyjson_arr_size(prefix_of(s, f->parts->v[i]).v));
    if (n_prefix > 4096)
        return build_too_complex(b, "more than 4096 prefixItems");
    if (min > f->max_items) {
        *out = expr_never(b);
        return *out ? 0 : build_no_memory(b);
    }
    if (f->unique && f->max_items > 1)
        r = array_unique(s, f, (uint32_t)n_prefix, &items);
    else if (f->n_contains && n_prefix)
        r = array_containing_placed(s, f, (uint32_t)n_prefix, &items);
    else if (f->n_contains)
        r = f->n_contains > 1 ? array_containing_all(s, f, &items) : array_containing(s, f, &items);
    else if (f->max_items)
        r = array_items(s, f, (uint32_t)n_prefix, &items);
    if (r < 0)
        return r;
    items = items ? expr_seq2(b, items, json_space(b)) : expr_empty(b);
    if (min == 0)
        items = expr_optional(b, items);
    *out =
        expr_seq(b, (struct expr *[]){expr_str(b, "["), json_space(b), items, expr_str(b, "]")}, 4);
    return *out ? 0 : build_no_memory(b);
}
