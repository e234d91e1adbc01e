/*
 * array - translates arrays: items by position, items that satisfy `contains`, items that must
 * differ.
 *
 * `contains`. Some item must fit a further schema. With one such schema the array is: any items,
 * one that fits, any items (array_containing()). With several the expression is built from the left
 * and remembers which of the schemas are still to be met, a bit set `left`: the next item may fit
 * any subset of them, and the rest of the array has the others left (array_item()). Rests are
 * shared by their `left`, so there are 2^n of them.
 *
 * `uniqueItems`. A few listed values become all orders of different ones (differing()), or members
 * in any order (members.c); other items are compared while the text is read (machine/distinct.c).
 */

#include <assert.h>

#include "base/json_read.h"
#include "grammar/automaton/lang.h"
#include "grammar/front/schema/schema.h"

/* Returns the list of schemas by position: prefixItems, or in old drafts items. */
static struct place prefix_of(struct schema *s, struct place part) {
    struct place items = schema_at(s, part, "items");

    if (yyjson_is_arr(items.v))
        return items;
    return schema_at(s, part, "prefixItems");
}

/* Returns an expression for item @i, which satisfies the schemas by position or `items`, and of
 * f->contains those whose bit is in @with. */
static struct expr *item_value(struct schema *s, const struct facets *f, uint32_t i,
                               uint32_t with) {
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
            p = schema_item(s, prefix, i);
        else
            p = schema_at(s, parts->v[k], old ? "additionalItems" : "items");
        if (p.v)
            r = places_add(s, &v, &n, &cap, p);
    }
    if (r != 0)
        return NULL;
    return schema_value(s, v, n);
}

/* Returns the items with the commas between them, without an optional around the whole. */
static struct expr *array_items(struct schema *s, const struct facets *f, uint32_t n_prefix) {
    struct build *b = s->b;
    struct expr *tail, *comma = json_comma(b);
    struct expr *x = schema_share(s, item_value(s, f, n_prefix, 0));
    uint32_t min = f->min_items, max = f->max_items;
    uint32_t more = min > n_prefix ? min - n_prefix : 0;
    uint32_t room = max > n_prefix ? max - n_prefix : 0;

    if (max == NO_MAX)
        room = NO_MAX;
    if (n_prefix == 0) {
        tail = expr_repeat(b, expr_seq2(b, comma, x), more ? more - 1 : 0,
                           room == NO_MAX ? NO_MAX : room - 1);
        return expr_seq2(b, x, tail);
    }
    tail = expr_repeat(b, expr_seq2(b, comma, x), more, room);
    for (uint32_t i = MIN(n_prefix, max); tail && i-- > 0;) {
        x = item_value(s, f, i, 0);
        if (i)
            tail = expr_seq3(b, comma, x, tail);
        else
            tail = expr_seq2(b, x, tail);
        if (i && i >= min)
            tail = expr_optional(b, tail);
    }
    return tail;
}

/* Makes arrays of any items, one item that satisfies `contains`, and any items. With minItems or
 * maxItems there is an alternative for each place of that item, since the numbers of items before
 * and behind it then follow. */
static struct expr *array_containing(struct schema *s, const struct facets *f) {
    struct build *b = s->b;
    struct expr *comma = json_comma(b);
    struct expr_vec v = {0};
    uint32_t min = MAX(f->min_items, 1u), max = f->max_items, last = max == NO_MAX ? min : max;
    struct expr *any = item_value(s, f, 0, 0), *one = item_value(s, f, 0, 1);

    any = schema_share(s, any);
    one = schema_share(s, one);

    if (last > 64)
        return failed(schema_unsupported(
            s, f->contains[0].path, "is not supported together with a large minItems or maxItems"));
    struct expr *before = expr_seq2(b, any, comma), *after = expr_seq2(b, comma, any);

    for (uint32_t i = 0; i < last; i++) {
        bool open = max == NO_MAX && i + 1 == last;
        uint32_t least = min > i + 1 ? min - i - 1 : 0;

        expr_vec_add(b, &v,
                     expr_seq3(b, expr_repeat(b, before, i, open ? NO_MAX : i), one,
                               expr_repeat(b, after, least, max == NO_MAX ? NO_MAX : max - i - 1)));
    }
    return expr_alt_of(b, &v);
}

#define CONTAINS_MAX 4 /* per array: an item may have to fit any subset */

struct containing {
    struct schema *s;
    const struct facets *f;
    /* item[set] fits the schemas of `set` */
    struct expr *any, *item[1 << CONTAINS_MAX];
    struct expr
        *made[1 << CONTAINS_MAX]; /* the rest of the array, by the set of schemas still to be met */
};

static struct expr *items_behind(struct containing *c, uint32_t left);

/* Returns one item that fits at least one schema of @left, and the items behind it. */
static struct expr *array_item(struct containing *c, uint32_t left) {
    struct build *b = c->s->b;
    struct expr_vec v = {0};

    for (uint32_t set = left; set && !b->failed; set = (set - 1) & left) {
        if (!c->item[set])
            c->item[set] = item_value(c->s, c->f, 0, set);
        c->item[set] = schema_share(c->s, c->item[set]);
        expr_vec_add(b, &v, expr_seq2(b, c->item[set], items_behind(c, left & ~set)));
    }
    return expr_alt_of(b, &v);
}

/* Returns further items, each with a comma before it, that together meet the schemas of @left. */
static struct expr *items_behind(struct containing *c, uint32_t left) {
    struct build *b = c->s->b;
    assert(left < 1u << CONTAINS_MAX);
    struct expr *comma = json_comma(b);
    struct expr *others = expr_repeat(b, expr_seq2(b, comma, c->any), 0, NO_MAX);

    if (c->made[left] || b->failed)
        return c->made[left];
    if (left)
        others = schema_share(c->s, expr_seq3(b, others, comma, array_item(c, left)));
    return c->made[left] = others;
}

/* Makes arrays as array_containing() does, with several `contains`; one item may satisfy some of
 * them. */
static struct expr *array_containing_all(struct schema *s, const struct facets *f) {
    struct build *b = s->b;
    struct containing c = {.s = s, .f = f};

    if (f->n_contains > CONTAINS_MAX || f->min_items > 1 || f->max_items != NO_MAX)
        return failed(schema_unsupported(
            s, f->contains[f->n_contains - 1].path,
            f->n_contains > CONTAINS_MAX
                ? "at most four contains are supported for one array"
                : "two contains are not supported together with minItems or maxItems"));
    c.any = schema_share(s, item_value(s, f, 0, 0));
    struct expr *one = array_item(&c, (1u << f->n_contains) - 1);

    return expr_seq2(b, expr_repeat(b, expr_seq2(b, c.any, json_comma(b)), 0, NO_MAX), one);
}

/* ---- items that must differ (uniqueItems), of a few values */

#define LISTED_MAX 1024
#define FEW_VALUES 8 /* with counts there are 2^8 sets of values */

/* Lists in *v[n] all values that an item can have, each once, as they are written. Returns 1, or 0
 * when they are too many to be listed. */
static int few_values(struct schema *s, const struct facets *f, struct expr_vec *v) {
    yyjson_val *seen[LISTED_MAX];
    struct place value = f->n_values ? f->value[0] : (struct place){0};
    size_t n = f->n_values ? 1 : 0;
    static const struct {
        unsigned type;
        const char *text;
    } plain[] = {{T_NULL, "null"}, {T_BOOL, "false"}, {T_BOOL, "true"}};
    if (n && !f->value_is_const[0])
        n = yyjson_arr_size(value.v);

    if (f->n_values == 0 && (f->types & ~(unsigned)(T_NULL | T_BOOL)))
        return 0;
    for (size_t i = 0; f->n_values == 0 && i < ARRAY_SIZE(plain); i++) {
        if (f->types & plain[i].type)
            expr_vec_add(s->b, v, expr_str(s->b, plain[i].text));
    }
    yyjson_val *at = f->n_values && f->value_is_const[0] ? value.v : yyjson_arr_get_first(value.v);
    for (size_t i = 0; i < n; i++, at = json_next(at)) {
        struct place p = {at, value.path};
        int r = facets_admit(s, f, p);
        bool new = r > 0;

        if (r < 0 || build_work(s->b, 1 + v->n) < 0)
            return s->b->failed;
        for (uint32_t k = 0; new &&k < v->n; k++)
            new = !same_value(seen[k], p.v);
        if (!new)
            continue;
        if (yyjson_is_ctn(p.v) || v->n == LISTED_MAX)
            return 0;
        seen[v->n] = p.v;
        /* A number has only the spelling of the schema, so that equal values are equal texts. */
        if (yyjson_is_raw(p.v))
            expr_vec_add(s->b, v, expr_bytes(s->b, json_digits(p.v), json_n_digits(p.v)));
        else
            expr_vec_add(s->b, v, value_expr(s, p.v));
    }
    if (!s->b->failed)
        return 1;
    return s->b->failed;
}

/* Returns @n to @m more of the values that are not in the set @had, with a comma before each but
 * the first. What may follow depends on the set alone, not on its order, so it is made once for
 * each set: made[had]. */
static struct expr *differing(struct build *b, const struct expr_vec *v, uint32_t had, uint32_t n,
                              uint32_t m, struct expr **made) {
    struct expr_vec alt = {0};

    assert(v->n <= FEW_VALUES && had < 1u << v->n && n <= m);
    if (made[had] || b->failed)
        return made[had];
    for (uint32_t i = 0; m > 0 && i < v->n; i++) {
        struct expr *comma;

        if (had)
            comma = json_comma(b);
        else
            comma = expr_empty(b);

        if (had >> i & 1)
            continue;
        expr_vec_add(b, &alt,
                     expr_seq3(b, comma, v->v[i],
                               differing(b, v, had | 1u << i, n ? n - 1 : 0, m - 1, made)));
    }
    if (n == 0)
        expr_vec_add(b, &alt, expr_empty(b));
    struct expr *e = expr_alt_of(b, &alt), *call = expr_rule(b, e);

    return made[had] = alt.n == 1 && n == 0 ? e : call;
}

/* Returns an item that must differ from other items, each value in one spelling. NULL: the build
 * has failed, or such an item cannot be expressed. */
static struct expr *distinct_item(struct schema *s, const struct facets *f) {
    static const char INTEGER[] = "0|-?[1-9][0-9]{0,18}";
    struct build *b = s->b;
    struct expr_vec v = {0};

    if (f->n_values || (f->types & ~(unsigned)(T_NULL | T_BOOL | T_STRING | T_INT)))
        return NULL;
    if ((f->types & T_STRING) && b->notation != NOTATION_JSON)
        return NULL;
    if (f->types & T_INT) {
        bool bounds = f->lower.set || f->upper.set;

        if (f->n_multiples || (bounds && (!f->lower.set || f->lower.x.negative)))
            return NULL; /* with negative numbers, -0 would be a second spelling of 0 */
        if (bounds)
            expr_vec_add(b, &v, number_range(b, f));
        else
            expr_vec_add(b, &v, regex_of(b, INTEGER, CHARS_TEXT));
    }
    if ((f->types & T_STRING) && f->min_length <= f->max_length) {
        struct expr *e;

        if (f->n_text)
            e = lang_expr(b, facets_lang(s, f));
        else
            e = expr_repeat(b, json_canonical_char(b), f->min_length, f->max_length);

        expr_vec_add(b, &v, json_quoted(b, e));
    }
    if (f->types & T_NULL)
        expr_vec_add(b, &v, expr_str(b, "null"));
    if (f->types & T_BOOL)
        expr_vec_add(b, &v, expr_alt2(b, expr_str(b, "true"), expr_str(b, "false")));
    return expr_alt_of(b, &v);
}

static bool has_strings(const struct facets *item) {
    bool found = false;

    JSON_EACH(v, item->n_values && !item->value_is_const[0] ? item->value[0].v : NULL) {
        found = found || yyjson_is_str(v);
    }
    return found;
}

/* Makes items as array_items() does, each different from the others. */
static struct expr *array_unique(struct schema *s, const struct facets *f, uint32_t n_prefix) {
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

        b->flags &= ~(unsigned)GRAMMAR_PYTHON; /* True beside true would be one value twice */
        r = facets_gather(s, &parts, &item);
        if (r == 0)
            few = few_values(s, &item, &v);
        b->flags = flags;
    }
    if (r < 0 || few < 0)
        return NULL;
    uint32_t min = MAX(f->min_items, 1u), max = MIN(f->max_items, v.n);
    /* Items that end with a mark have no last byte. */
    bool marked = b->notation != NOTATION_JSON && few && has_strings(&item);
    bool counted = (min > 1 && min < v.n) || max < v.n || marked;

    if (marked && v.n > FEW_VALUES)
        return failed(schema_unsupported(s, f->unique_at.path,
                                         "is not supported for strings in this format of calls"));
    if (!few && listed)
        one = distinct_item(s, &item);
    else if (few && counted && v.n > FEW_VALUES)
        one = expr_alt_of(b, &v);
    if (one && min == 1)
        return items_distinct(s, one, f->max_items);
    if (one)
        return failed(schema_unsupported(
            s, f->unique_at.path,
            "is not supported for these items together with minItems of 2 or more"));
    if (!few)
        return failed(schema_unsupported(s, f->unique_at.path,
                                         "is supported for strings, integers and few values only"));
    if (min > max || v.n == 0)
        return expr_never(b);
    if (counted) {
        struct expr *made[1 << FEW_VALUES] = {NULL};

        return differing(b, &v, 0, min, max, made);
    }
    struct keyed *keyed = build_alloc(b, v.n, sizeof(*keyed));

    for (uint32_t i = 0; keyed && i < v.n; i++) {
        const struct expr *e = v.v[i];
        struct expr *last = expr_bytes(b, e->bytes + e->n - 1, 1);

        assert(e->kind == EXPR_BYTES);
        if (!last)
            return NULL;
        keyed[i] = (struct keyed){e->bytes, e->n - 1, NULL, last, min == v.n};
    }
    if (!keyed)
        return NULL;
    return members_unordered(s, keyed, v.n, NULL);
}

struct expr *lower_array(struct schema *s, const struct facets *f) {
    struct build *b = s->b;
    struct expr *items = NULL;
    uint32_t min = MAX(f->min_items, f->n_contains ? 1u : 0u), n_prefix = 0;

    for (uint32_t i = 0; i < f->parts->n; i++) {
        size_t n = yyjson_arr_size(prefix_of(s, f->parts->v[i]).v);

        n_prefix = MAX(n_prefix, (uint32_t)n);
    }
    if (n_prefix > 4096)
        return failed(build_too_complex(b, "more than 4096 prefixItems"));
    if (min > f->max_items)
        return expr_never(b);
    if (f->unique && f->max_items > 1)
        items = array_unique(s, f, n_prefix);
    else if (f->n_contains && n_prefix)
        return failed(schema_unsupported(s, f->contains[0].path,
                                         "is not supported together with schemas by position"));
    else if (f->n_contains > 1)
        items = array_containing_all(s, f);
    else if (f->n_contains)
        items = array_containing(s, f);
    else if (f->max_items)
        items = array_items(s, f, n_prefix);
    if (items)
        items = expr_seq2(b, items, json_space(b));
    else
        items = expr_empty(b);
    if (min == 0)
        items = expr_optional(b, items);
    return expr_seq(b, (struct expr *[]){expr_str(b, "["), json_space(b), items, expr_str(b, "]")},
                    4);
}
