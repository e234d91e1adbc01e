/*
 * Objects and arrays. Properties come in the order in which the schema declares them, those that are only `required` after
 * them, then the additional ones. Properties that are not declared are generated only when the schema says so
 * (additionalProperties) or declares none at all; their names are none of the declared ones.
 */

#include "text/grammar/schema.h"

#include <string.h>

#define INLINE_MAX 16 /* states: a larger value that is written down twice becomes a rule */

/* @e, or a call of it when it is large: for expressions that are used more than once. */
static struct expr *share(struct schema *s, struct expr *e) {
    uint32_t rule;

    if (!e || e->size <= INLINE_MAX || e->kind == EXPR_CALL)
        return e;
    if (build_rule(s->b, NULL, &rule) < 0)
        return NULL;
    s->b->rule[rule].body = e;
    return expr_call(s->b, rule);
}

int member_places(struct schema *s, const struct parts *parts, const char *name, size_t len,
                  struct place **out, uint32_t *n) {
    uint32_t cap = 0;

    *out = NULL;
    *n = 0;
    for (uint32_t i = 0; i < parts->n; i++) {
        struct place all = schema_at(s, parts->v[i], "properties"), p = {0};
        int r = build_work(s->b, 1 + yyjson_obj_size(all.v) / 4);

        p.v = yyjson_obj_getn(all.v, name, len);
        if (p.v)
            p.path = schema_path(s, all.path, name, len);
        else
            p = schema_at(s, parts->v[i], "additionalProperties");
        if (r == 0 && p.v)
            r = places_add(s, out, n, &cap, p);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- names */

struct name {
    const char *s;
    size_t len;
    const struct path *path;
    bool required;
};

struct name_list {
    struct name *v;
    uint32_t n, cap;
    uint32_t *slot, mask; /* hash table: index + 1 */
};

static uint32_t hash_of(const char *s, size_t len) {
    uint64_t h = len;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)s[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 32;
    return (uint32_t)h;
}

static int grow_names(struct schema *s, struct name_list *l) {
    uint32_t cap = l->cap ? l->cap * 2 : 8;
    struct name *v = arena_alloc_array(&s->b->arena, cap, sizeof(*v));
    uint32_t *slot = arena_alloc_array(&s->b->arena, cap * 2, sizeof(*slot));

    if (!v || !slot)
        return build_no_memory(s->b);
    if (l->n)
        memcpy(v, l->v, l->n * sizeof(*v));
    *l = (struct name_list){.v = v, .n = l->n, .cap = cap, .slot = slot, .mask = cap * 2 - 1};
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t h = hash_of(v[i].s, v[i].len) & l->mask;

        while (slot[h])
            h = (h + 1) & l->mask;
        slot[h] = i + 1;
    }
    return 0;
}

static int add_name(struct schema *s, struct name_list *l, yyjson_val *key, const struct path *path,
                    bool required) {
    const char *name = yyjson_get_str(key);
    size_t len = yyjson_get_len(key);
    int r = l->n == l->cap ? grow_names(s, l) : 0;

    if (r < 0)
        return r;
    uint32_t h = hash_of(name, len) & l->mask;

    for (; l->slot[h]; h = (h + 1) & l->mask) {
        struct name *n = &l->v[l->slot[h] - 1];

        if (n->len == len && memcmp(n->s, name, len) == 0) {
            n->required = n->required || required;
            return build_work(s->b, 1);
        }
    }
    l->v[l->n] = (struct name){name, len, path, required};
    l->slot[h] = ++l->n;
    return build_work(s->b, 1);
}

static int collect_names(struct schema *s, const struct parts *parts, struct name_list *l) {
    for (int required = 0; required < 2; required++) {
        for (uint32_t i = 0; i < parts->n; i++) {
            struct place at = schema_at(s, parts->v[i], required ? "required" : "properties");
            yyjson_val *key, *value;
            size_t k, n;
            int r = 0;

            if (required) {
                yyjson_arr_foreach(at.v, k, n, value) {
                    r = r < 0 ? r : add_name(s, l, value, at.path, true);
                }
            } else {
                yyjson_obj_foreach(at.v, k, n, key, value) {
                    r = r < 0 ? r : add_name(s, l, key, at.path, false);
                }
            }
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static int names_add(struct schema *s, struct names *t, const uint8_t *name, size_t len) {
    uint32_t at = 0;

    for (size_t i = 0; i < len; i++) {
        uint32_t c = names_step(t, at, name[i]);

        if (c == NAMES_NONE) {
            c = t->n++;
            t->node[c] = (struct name_node){.byte = name[i], .sibling = t->node[at].child};
            t->node[at].child = c;
        }
        at = c;
    }
    t->node[at].end = true;
    return build_work(s->b, len * 4);
}

/* A key that is none of the declared names. */
static int other_key(struct schema *s, const struct name_list *l, struct expr **out) {
    struct build *b = s->b;
    struct names *t = arena_alloc(&b->arena, sizeof(*t));
    struct expr *e = expr_empty(b);
    size_t total = 1;

    if (l->n == 0) {
        *out = json_any_string(b, 0, NO_MAX);
        return *out ? 0 : build_no_memory(b);
    }
    for (uint32_t i = 0; i < l->n; i++)
        total += l->v[i].len * 6;
    if (t)
        t->node = arena_alloc_array(&b->arena, total, sizeof(*t->node));
    if (!t || !t->node || !e)
        return build_no_memory(b);
    t->n = 1;
    for (uint32_t i = 0; i < l->n; i++) {
        uint8_t *text;
        size_t n;
        int r = json_escape(b, l->v[i].s, l->v[i].len, &text, &n);

        if (r == 0)
            r = names_add(s, t, text, n);
        if (r < 0)
            return r;
    }
    e->kind = EXPR_NAMES;
    e->names = t;
    *out = json_quoted(b, e);
    return *out ? 0 : build_no_memory(b);
}

/* ---- objects */

/* Keys under propertyNames: strings that satisfy it. Beside declared names that would take the difference of two
 * languages, so those must be closed. *@out NULL: there is no propertyNames that says more than "a string". */
static int constrained_key(struct schema *s, const struct facets *f, const struct name_list *l,
                           bool open, struct expr **out) {
    struct place *v = NULL, at = {0};
    uint32_t n = 0, cap = 0;
    struct parts parts = {0};
    struct facets key;
    int r = 0;

    *out = NULL;
    for (uint32_t i = 0; r == 0 && i < f->parts->n; i++) {
        struct place names = schema_at(s, f->parts->v[i], "propertyNames");

        if (names.v)
            r = places_add(s, &v, &n, &cap, at = names);
    }
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = parts_expand(s, &parts, v[i]);
    if (r == 0 && n)
        r = facets_gather(s, &parts, &key);
    if (r < 0 || n == 0)
        return r;
    bool any = !parts.never && !parts.n_choices && !key.n_values && (key.types & T_STRING) &&
               !key.pattern.v && !key.format.v && !key.lengths.v;

    if (any)
        return 0;
    if (l->n || !open)
        return schema_unsupported(s, at.path, "beside declared properties this is not supported");
    yyjson_val *type = yyjson_obj_get(s->string_type, "string");

    r = places_add(s, &v, &n, &cap, (struct place){type, at.path});
    return r < 0 ? r : schema_value(s, v, n, out);
}

static int add_declared(struct schema *s, const struct facets *f, const struct name_list *l,
                        struct expr_list *list) {
    bool counted = f->min_members || f->max_members < l->n;

    list->member = arena_alloc_array(&s->b->arena, l->n, sizeof(*list->member));
    list->optional = arena_alloc_array(&s->b->arena, l->n, sizeof(*list->optional));
    if (l->n && (!list->member || !list->optional))
        return build_no_memory(s->b);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct name *name = &l->v[i];
        struct place *v;
        uint32_t n;
        struct expr *x = NULL, *m;
        int r = member_places(s, f->parts, name->s, name->len, &v, &n);

        if (r == 0)
            r = schema_value(s, v, n, &x);
        if (r < 0)
            return r;
        if (x->kind == EXPR_NEVER && !name->required)
            continue;
        m = expr_seq3(s->b, json_literal(s->b, name->s, name->len), json_colon_space(s->b),
                      counted ? share(s, x) : x);
        if (!m)
            return build_no_memory(s->b);
        list->member[list->n] = m;
        list->optional[list->n++] = !name->required;
    }
    return 0;
}

/* Whether members that are not declared are generated, and their schemas. */
static int other_members(struct schema *s, const struct facets *f, const struct name_list *l,
                         struct expr **out) {
    struct place *v = NULL;
    uint32_t n = 0, cap = 0;
    bool declares = false;

    *out = NULL;
    for (uint32_t i = 0; i < f->parts->n; i++) {
        struct place more = schema_at(s, f->parts->v[i], "additionalProperties");
        int r = 0;

        declares = declares || yyjson_obj_get(f->parts->v[i].v, "properties");
        if (more.v)
            r = places_add(s, &v, &n, &cap, more);
        if (r < 0)
            return r;
    }
    struct expr *x = NULL, *key = NULL;
    bool open = !f->closed && !(n == 0 && declares);
    int r = constrained_key(s, f, l, open, &key);

    if (r < 0 || !open)
        return r;
    r = schema_value(s, v, n, &x);
    if (r == 0 && x->kind == EXPR_NEVER)
        return 0;
    if (r == 0 && !key)
        r = other_key(s, l, &key);
    if (r < 0)
        return r;
    *out = expr_seq3(s->b, key, json_colon_space(s->b), share(s, x));
    return *out ? 0 : build_no_memory(s->b);
}

int lower_object(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct name_list names = {0};
    struct expr_list *list = arena_alloc(&b->arena, sizeof(*list));
    struct expr *e = expr_empty(b);
    int r = list && e ? collect_names(s, f->parts, &names) : build_no_memory(b);

    if (r == 0) {
        list->min = f->min_members;
        list->max = f->max_members;
        list->separator = json_comma(b);
        list->after = json_space(b);
        r = add_declared(s, f, &names, list);
    }
    if (r == 0)
        r = other_members(s, f, &names, &list->rest);
    if (r < 0)
        return r;
    if (list->min > list->max || (!list->rest && list->min > list->n)) {
        *out = expr_never(b);
        return *out ? 0 : build_no_memory(b);
    }
    if (list->n || list->rest) {
        e->kind = EXPR_LIST;
        e->list = list;
        for (uint32_t i = 0; i < list->n; i++)
            e->size = MIN(e->size + list->member[i]->size, 1u << 30);
    }
    if (!list->separator || !list->after)
        return build_no_memory(b);
    *out = expr_seq(b, (struct expr *[]){expr_str(b, "{"), json_space(b), e, expr_str(b, "}")}, 4);
    return *out ? 0 : build_no_memory(b);
}

/* ---- arrays */

/* Schemas of item @i: by position, or `items`. */
static int item_value(struct schema *s, const struct parts *parts, uint32_t i, struct expr **out) {
    struct place *v = NULL;
    uint32_t n = 0, cap = 0;

    for (uint32_t k = 0; k < parts->n; k++) {
        struct place prefix = schema_at(s, parts->v[k], "prefixItems"), p;
        int r = 0;

        if (i < yyjson_arr_size(prefix.v))
            p = (struct place){yyjson_arr_get(prefix.v, i), schema_path_index(s, prefix.path, i)};
        else
            p = schema_at(s, parts->v[k], "items");
        if (p.v)
            r = places_add(s, &v, &n, &cap, p);
        if (r < 0)
            return r;
    }
    return schema_value(s, v, n, out);
}

/* The items with the commas between them, without an optional around all of them. */
static int array_items(struct schema *s, const struct facets *f, uint32_t n_prefix,
                       struct expr **out) {
    struct build *b = s->b;
    struct expr *x = NULL, *tail, *comma = json_comma(b);
    uint32_t min = f->min_items, max = f->max_items;
    int r = item_value(s, f->parts, n_prefix, &x);

    if (r < 0 || !(x = share(s, x)))
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
        r = item_value(s, f->parts, i, &x);
        if (r < 0)
            return r;
        tail = i ? expr_seq3(b, comma, x, tail) : expr_seq2(b, x, tail);
        if (i && i >= min)
            tail = expr_optional(b, tail);
    }
    *out = tail;
    return tail ? 0 : build_no_memory(b);
}

int lower_array(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct expr *items = NULL;
    size_t n_prefix = 0;

    if (f->unique && f->max_items > 1)
        return schema_unsupported(s, f->unique_at.path, "this keyword is not supported");
    for (uint32_t i = 0; i < f->parts->n; i++)
        n_prefix = MAX(n_prefix, yyjson_arr_size(yyjson_obj_get(f->parts->v[i].v, "prefixItems")));
    if (n_prefix > 4096)
        return build_too_complex(b, "more than 4096 prefixItems");
    if (f->min_items > f->max_items) {
        *out = expr_never(b);
        return *out ? 0 : build_no_memory(b);
    }
    int r = f->max_items ? array_items(s, f, (uint32_t)n_prefix, &items) : 0;

    if (r < 0)
        return r;
    items = items ? expr_seq2(b, items, json_space(b)) : expr_empty(b);
    if (f->min_items == 0)
        items = expr_optional(b, items);
    *out =
        expr_seq(b, (struct expr *[]){expr_str(b, "["), json_space(b), items, expr_str(b, "]")}, 4);
    return *out ? 0 : build_no_memory(b);
}
