/*
 * Translates objects. Properties come in the order in which the schema declares them, then those
 * that only `required` names, then additional ones, whose names differ from all declared ones
 * (keys.c).
 */

#include "grammar/front/schema/schema.h"
#include "grammar/automaton/lang.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define INLINE_MAX 16 /* states: a larger value that is written down twice becomes a rule */

struct expr *schema_share(struct schema *s, struct expr *e) {
    uint32_t rule;

    if (!e || e->size <= INLINE_MAX || e->kind == EXPR_CALL)
        return e;
    return build_rule_of(s->b, e, &rule) < 0 ? NULL : expr_call(s->b, rule);
}

/* The schemas of the patterns of one part that match @name; whether there are any. */
static int match_patterns(struct schema *s, struct place all, const char *name, size_t len,
                          struct place **out, uint32_t *n, uint32_t *cap, bool *matched) {
    yyjson_val *key, *v;
    size_t i, n_all, n_text;
    uint8_t *text;
    int r = yyjson_obj_size(all.v) ? json_escape(s->b, name, len, &text, &n_text) : 0;

    yyjson_obj_foreach(all.v, i, n_all, key, v) {
        const struct path *path = schema_path(s, all.path, json_text(key), json_len(key));
        struct text_rule t = {{key, path}, TEXT_PATTERN};
        const struct lang *l;

        if (r == 0)
            r = text_lang(s, &t, &l);
        if (r < 0)
            return r;
        if (!lang_matches(l, text, n_text))
            continue;
        *matched = true;
        r = places_add(s, out, n, cap, (struct place){v, path});
    }
    return r;
}

int member_places(struct schema *s, const struct parts *parts, const char *name, size_t len,
                  struct place **out, uint32_t *n) {
    uint32_t cap = 0;

    *out = NULL;
    *n = 0;
    for (uint32_t i = 0; i < parts->n; i++) {
        struct place all = schema_at(s, parts->v[i], "properties"), p = {0};
        struct place patterns = schema_at(s, parts->v[i], "patternProperties");
        int r = build_work(s->b, 1 + yyjson_obj_size(all.v) / 4);
        bool found = false;

        p.v = yyjson_obj_getn(all.v, name, len);
        if (p.v)
            p.path = schema_path(s, all.path, name, len);
        if (r == 0 && patterns.v)
            r = match_patterns(s, patterns, name, len, out, n, &cap, &found);
        if (!p.v && !found)
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
    const char *name = json_text(key);
    size_t len = json_len(key);
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
    assert(l->n < l->cap && l->n * 2 <= l->mask);
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
            int r;

            if (required) {
                yyjson_arr_foreach(at.v, k, n, value) {
                    if ((r = add_name(s, l, value, at.path, true)) < 0)
                        return r;
                }
            } else {
                yyjson_obj_foreach(at.v, k, n, key, value) {
                    if ((r = add_name(s, l, key, at.path, false)) < 0)
                        return r;
                }
            }
        }
    }
    return 0;
}

struct names_list {
    struct names_list *next;
    const struct names *names;
};

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
    assert(at < t->n);
    t->node[at].end = true;
    return build_work(s->b, len * 4);
}

/* A trie that is like @t, and there already: keys that are none of its names are one call. */
static const struct names *known_names(struct schema *s, const struct names *t) {
    struct names_list *l = s->names;

    for (; l && build_work(s->b, 1) == 0; l = l->next) {
        bool same = l->names->n == t->n;

        for (uint32_t i = 0; same && i < t->n; i++) {
            const struct name_node *x = &l->names->node[i], *y = &t->node[i];

            same = x->child == y->child && x->sibling == y->sibling && x->byte == y->byte &&
                   x->end == y->end;
        }
        if (same)
            return l->names;
    }
    struct names *kept = arena_alloc(&s->b->arena, sizeof(*kept));

    l = arena_alloc(&s->b->arena, sizeof(*l));
    if (kept)
        kept->node = arena_alloc_array(&s->b->arena, t->n, sizeof(*t->node));
    if (!l || !kept || !kept->node)
        return NULL;
    kept->n = t->n;
    memcpy(kept->node, t->node, t->n * sizeof(*t->node));
    *l = (struct names_list){s->names, kept};
    s->names = l;
    return kept;
}

/* A key that is none of the declared names. */
static int other_key(struct schema *s, const struct name_list *l, struct expr **out) {
    struct build *b = s->b;
    struct names t = {.n = 1};
    struct expr *e = expr_empty(b);
    size_t total = 1;

    if (l->n == 0) {
        *out = json_any_string(b, 0, NO_MAX);
        return *out ? 0 : build_no_memory(b);
    }
    for (uint32_t i = 0; i < l->n; i++)
        total += l->v[i].len * 6;
    CLEANUP(freep) struct name_node *node = t.node = calloc(total, sizeof(*node));

    if (!node || !e)
        return build_no_memory(b);
    for (uint32_t i = 0; i < l->n; i++) {
        uint8_t *text;
        size_t n;
        int r = json_escape(b, l->v[i].s, l->v[i].len, &text, &n);

        if (r == 0)
            r = names_add(s, &t, text, n);
        if (r < 0)
            return r;
    }
    e->kind = EXPR_NAMES;
    e->names = known_names(s, &t);
    if (!e->names)
        return build_no_memory(b);
    *out = json_quoted(b, e);
    return *out ? 0 : build_no_memory(b);
}

/* ---- objects */

/* Marks a member of f->some that no declared name satisfies. */
#define NO_NAME UINT32_MAX

struct object {
    struct schema *s;
    const struct facets *f;
    const struct keys *keys;
    struct name_list names;
    struct name_rules *rules; /* of each name */
    uint32_t witness[64];
    struct expr *rest, *some[64];
    struct keyed *keyed; /* the members of the list, as members_unordered() takes them */
};

/* Returns whether unevaluatedProperties sees a member of this name, because a schema that holds
 * describes it. Negations (OWN) come from schemas that do not hold. */
static int is_evaluated(struct schema *s, const struct parts *parts, const struct name *name,
                        bool *out) {
    *out = false;
    for (uint32_t i = 0; i < parts->n && !*out; i++) {
        struct place all = schema_at(s, parts->v[i], "properties");
        struct place patterns = schema_at(s, parts->v[i], "patternProperties"), *v = NULL;
        uint32_t n = 0, cap = 0;

        if (yyjson_obj_get(parts->v[i].v, OWN))
            continue;
        *out = yyjson_obj_getn(all.v, name->s, name->len) ||
               schema_at(s, parts->v[i], "additionalProperties").v;
        int r = !*out && patterns.v
                    ? match_patterns(s, patterns, name->s, name->len, &v, &n, &cap, out)
                    : build_work(s->b, 1);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The value of a declared name, which must satisfy those of f->some that chose it. */
static int declared_value(struct object *o, uint32_t i, struct expr **out, bool *chosen) {
    const struct name *name = &o->names.v[i];
    struct place *v;
    uint32_t n, cap;
    int r = member_places(o->s, o->f->parts, name->s, name->len, &v, &n);

    bool allowed = o->rules[i].allowed;
    if (r == 0 && allowed && o->f->closed)
        r = is_evaluated(o->s, o->f->parts, name, &allowed);
    cap = n;
    *chosen = false;
    for (uint32_t k = 0; r == 0 && k < o->f->n_some; k++) {
        if (o->witness[k] != i)
            continue;
        *chosen = true;
        r = places_add(o->s, &v, &n, &cap, schema_at(o->s, o->f->some[k], "value"));
    }
    if (r == 0 && !allowed) {
        *out = expr_never(o->s->b);
        return *out ? 0 : build_no_memory(o->s->b);
    }
    return r < 0 ? r : schema_value(o->s, v, n, out);
}

static int add_declared(struct object *o, struct expr_list *list) {
    struct schema *s = o->s;
    uint32_t n_all = o->names.n + o->f->n_some;
    bool counted = o->f->min_members || o->f->max_members < n_all;

    list->member = arena_alloc_array(&s->b->arena, n_all, sizeof(*list->member));
    list->optional = arena_alloc_array(&s->b->arena, n_all, sizeof(*list->optional));
    o->keyed = arena_alloc_array(&s->b->arena, n_all, sizeof(*o->keyed));
    if (n_all && (!list->member || !list->optional || !o->keyed))
        return build_no_memory(s->b);
    for (uint32_t i = 0; i < o->names.n; i++) {
        const struct name *name = &o->names.v[i];
        struct expr *x = NULL, *m;
        bool chosen;
        int r = declared_value(o, i, &x, &chosen);

        if (r < 0)
            return r;
        if (x->kind == EXPR_NEVER && !name->required && !chosen)
            continue;
        x = counted || o->f->n_some ? schema_share(s, x) : x;
        struct expr *key = json_literal(s->b, name->s, name->len);
        struct expr *colon = json_colon_space(s->b);

        m = expr_seq3(s->b, key, colon, x);
        if (!m)
            return build_no_memory(s->b);
        list->member[list->n] = m;
        o->keyed[list->n] = (struct keyed){key->bytes, key->n, colon, x, name->required || chosen};
        list->optional[list->n++] = !name->required && !chosen;
    }
    for (uint32_t k = 0; k < o->f->n_some; k++) {
        if (o->witness[k] != NO_NAME)
            continue;
        list->member[list->n] = o->some[k];
        list->optional[list->n++] = false;
        list->n_needs++;
    }
    return 0;
}

static bool all_optional(const struct expr_list *list) {
    for (uint32_t i = 0; i < list->n; i++) {
        if (!list->optional[i])
            return false;
    }
    return true;
}

/* The members of the object, with the witnesses that were chosen. */
static int object_members(struct object *o, struct expr **out) {
    struct build *b = o->s->b;
    struct expr_list *list = arena_alloc(&b->arena, sizeof(*list));
    struct expr *e = expr_empty(b);
    int r = list && e ? 0 : build_no_memory(b);

    if (r == 0) {
        list->min = o->f->min_members;
        list->max = o->f->max_members;
        list->separator = json_comma(b);
        list->after = json_space(b);
        list->rest = o->rest;
        r = add_declared(o, list);
    }
    if (r < 0)
        return r;
    if (list->min > list->max || (!list->rest && list->min > list->n)) {
        *out = expr_never(b);
        return *out ? 0 : build_no_memory(b);
    }
    assert(list->n_needs <= list->n && list->n <= o->names.n + o->f->n_some);
    if (list->n || list->rest) {
        e->kind = EXPR_LIST;
        e->list = list;
        for (uint32_t i = 0; i < list->n; i++)
            e->size = MIN(e->size + list->member[i]->size, 1u << 30);
    }
    if (!list->separator || !list->after)
        return build_no_memory(b);
    if ((b->flags & GRAMMAR_ANY_ORDER) && list->n > 0 && list->n <= MEMBERS_MAX && list->min == 0 &&
        list->max == NO_MAX && list->n_needs == 0) {
        r = members_unordered(o->s, o->keyed, list->n, list->rest, &e);
        if (r == 0)
            e = expr_seq2(b, e, list->after);
        if (r == 0 && all_optional(list))
            e = expr_optional(b, e);
        if (r == 0 && !e)
            r = build_no_memory(b);
    }
    *out = e;
    return r;
}

/* One alternative per choice of witnesses. */
static int choose_witness(struct object *o, uint32_t k, struct expr_vec *out) {
    struct expr *e = NULL;
    int r = build_work(o->s->b, 64);

    if (r < 0)
        return r;
    if (k == o->f->n_some) {
        r = object_members(o, &e);
        return r < 0 ? r : expr_vec_add(o->s->b, out, e);
    }
    for (uint32_t i = 0; r == 0 && i < o->names.n; i++) {
        if (!(o->rules[i].some >> k & 1))
            continue;
        o->witness[k] = i;
        r = choose_witness(o, k + 1, out);
    }
    o->witness[k] = NO_NAME;
    if (r == 0 && o->some[k]->kind != EXPR_NEVER)
        r = choose_witness(o, k + 1, out);
    return r;
}

/* Makes the language of the declared names, in quotes, and an expression for all other keys. */
static int declared_names(struct object *o, const struct lang **declared, struct expr **other) {
    struct expr_vec v = {0};
    int r = 0;

    if (keys_plain(o->keys))
        return other_key(o->s, &o->names, other);
    for (uint32_t i = 0; r == 0 && i < o->names.n; i++)
        r = expr_vec_add(o->s->b, &v, json_literal(o->s->b, o->names.v[i].s, o->names.v[i].len));
    return r < 0 ? r : lang_of(o->s->b, expr_alt(o->s->b, v.v, v.n), declared);
}

int lower_object(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct object o = {.s = s, .f = f};
    CLEANUP(freep) struct keys *keys = NULL;
    const struct lang *declared = NULL;
    struct expr *other = NULL;
    struct expr_vec v = {0};
    int r = f->n_some > ARRAY_SIZE(o.some)
                ? build_too_complex(b, "an object must satisfy too many conditions at once")
                : collect_names(s, f->parts, &o.names);

    if (r == 0)
        r = keys_new(s, f, &keys);
    o.keys = keys;
    o.rules = arena_alloc_array(&b->arena, MAX(o.names.n, 1u), sizeof(*o.rules));
    if (r == 0 && !o.rules)
        r = build_no_memory(b);
    for (uint32_t i = 0; r == 0 && i < o.names.n; i++)
        r = keys_name(keys, o.names.v[i].s, o.names.v[i].len, &o.rules[i]);
    if (r == 0)
        r = declared_names(&o, &declared, &other);
    if (r == 0)
        r = keys_rest(keys, declared, other, &o.rest, o.some);
    if (r == 0)
        r = choose_witness(&o, 0, &v);
    if (r < 0)
        return r;
    struct expr *e = expr_alt(b, v.v, v.n);

    *out = expr_seq(b, (struct expr *[]){expr_str(b, "{"), json_space(b), e, expr_str(b, "}")}, 4);
    return *out ? 0 : build_no_memory(b);
}
