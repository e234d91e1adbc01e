/*
 * object - translates objects.
 *
 * Properties come in the order in which the schema declares them, then those that only `required`
 * names, then additional ones, whose names differ from all declared ones (keys.c).
 *
 * Witnesses. A negation may require that some member exists, of which it knows only a rule for the
 * name and a schema for the value (f->some, logic.c). Any declared member whose name fits the rule
 * may be that member, its witness, or an additional one. choose_witness() makes an alternative for
 * each choice: in it the witness is required, and its value also satisfies the schema.
 */

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "base/json_read.h"
#include "base/try.h"
#include "grammar/automaton/lang.h"
#include "grammar/front/schema/schema.h"

#define INLINE_MAX 16 /* states: a larger value that is written down twice becomes a rule */

struct expr *schema_share(struct schema *s, struct expr *e) {
    uint32_t rule;

    if (!e || e->size <= INLINE_MAX || e->kind == EXPR_CALL)
        return e;
    if (build_rule_of(s->b, e, &rule) < 0)
        return NULL;
    return expr_call(s->b, rule);
}

/* Adds the schemas of those patterns in @all, the patternProperties of one part, that match @name.
 * Sets *@matched if there are any. */
static int match_patterns(struct schema *s, struct place all, const char *name, size_t len,
                          struct place **out, uint32_t *n, uint32_t *cap, bool *matched) {
    size_t n_text;
    uint8_t *text;
    int r = yyjson_obj_size(all.v) ? json_spell(s->b, name, len, &text, &n_text) : 0;

    JSON_MEMBERS(key, v, all.v) {
        const struct path *path = schema_path(s, all.path, json_text(key), json_len(key));
        struct text_rule t = {{key, path}, TEXT_PATTERN};

        if (r < 0)
            return r;
        const struct lang *l = text_lang(s, &t);

        if (!l)
            return s->b->failed;
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
        bool found = false;

        TRY(build_work(s->b, 1 + yyjson_obj_size(all.v) / 4));
        p.v = yyjson_obj_getn(all.v, name, len);
        if (p.v)
            p.path = schema_path(s, all.path, name, len);
        if (patterns.v)
            TRY(match_patterns(s, patterns, name, len, out, n, &cap, &found));
        if (!p.v && !found)
            p = schema_at(s, parts->v[i], "additionalProperties");
        if (p.v)
            TRY(places_add(s, out, n, &cap, p));
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
    /* finds the entries of v[] by name */
    struct hash_index index;
};

static void names_deinit(struct name_list *l) {
    hash_index_deinit(&l->index);
}

static int add_name(struct schema *s, struct name_list *l, yyjson_val *key, const struct path *path,
                    bool required) {
    struct name name = {json_text(key), json_len(key), path, required};
    uint32_t hash = (uint32_t)bytes_hash(name.s, name.len);

    HASH_INDEX_EACH(l->index, hash, i) {
        struct name *n = &l->v[i];

        if (n->len == name.len && memcmp(n->s, name.s, name.len) == 0) {
            n->required = n->required || required;
            return build_work(s->b, 1);
        }
    }
    if (!json_key_fits(s->b, name.s, name.len))
        return schema_unsupported(s, schema_path(s, path, name.s, name.len),
                                  "this name is not supported by the format of the model's calls");
    TRY(build_grow(s->b, &l->v, l->n, &l->cap, 8, sizeof(*l->v)));
    l->v[l->n] = name;
    if (hash_index_add(&l->index, hash, l->n++) < 0)
        return build_no_memory(s->b);
    return build_work(s->b, 1);
}

static int collect_names(struct schema *s, const struct parts *parts, struct name_list *l) {
    for (int required = 0; required < 2; required++) {
        for (uint32_t i = 0; i < parts->n; i++) {
            struct place at = schema_at(s, parts->v[i], required ? "required" : "properties");
            int r;

            if (required) {
                JSON_EACH(value, at.v) {
                    if ((r = add_name(s, l, value, at.path, true)) < 0)
                        return r;
                }
            } else {
                JSON_MEMBERS(key, value, at.v) {
                    if ((r = add_name(s, l, key, at.path, false)) < 0)
                        return r;
                }
            }
        }
    }
    return 0;
}

/* Sorts as Jinja2's dictsort, by which templates write the members of Gemma's notation: then the
 * call is written again as the model wrote it, and its tokens stay in the prefix cache. */
static int by_folded_name(const void *a, const void *b) {
    const struct name *x = a, *y = b;
    size_t n = MIN(x->len, y->len);
    int r = strncasecmp(x->s, y->s, n);

    if (r == 0)
        r = (x->len > y->len) - (x->len < y->len);
    if (r)
        return r;
    return memcmp(x->s, y->s, n);
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

/* Returns a kept trie equal to @t; makes it if there is none. Calls with one trie are equal calls,
 * one symbol of the automaton. */
static const struct names *known_names(struct schema *s, const struct names *t) {
    struct names_list *l = s->names;

    for (; l && build_work(s->b, 1) == 0; l = l->next) {
        if (names_equal(l->names, t))
            return l->names;
    }
    struct names *kept = build_alloc(s->b, 1, sizeof(*kept));
    struct name_node *node = build_alloc(s->b, t->n, sizeof(*node));

    l = build_alloc(s->b, 1, sizeof(*l));
    if (!l || !kept || !node)
        return NULL;
    kept->node = node;
    kept->n = t->n;
    memcpy(kept->node, t->node, t->n * sizeof(*t->node));
    *l = (struct names_list){s->names, kept};
    s->names = l;
    return kept;
}

/* Makes any key, in a notation other than JSON's a call of a rule that all objects share. */
static struct expr *any_key(struct build *b) {
    uint32_t *rule = &b->any_key[b->notation];

    if (b->notation == NOTATION_JSON)
        return json_any_key(b);
    if (*rule == NO_RULE) {
        struct expr *call = expr_rule(b, lang_expr(b, lang_of(b, json_any_key(b))));

        if (!call)
            return NULL;
        *rule = call->id;
    }
    return expr_call(b, *rule);
}

/* Returns a key that differs from all declared names. */
static struct expr *other_key(struct schema *s, const struct name_list *l) {
    struct build *b = s->b;
    struct names t = {.n = 1};
    struct expr *e = expr_empty(b);
    size_t total = 1;

    if (l->n == 0)
        return any_key(b);
    for (uint32_t i = 0; i < l->n; i++)
        total += l->v[i].len * 6;
    CLEANUP(freep) struct name_node *node = t.node = calloc(total, sizeof(*node));

    if (!node || !e)
        return failed(build_no_memory(b));
    for (uint32_t i = 0; i < l->n; i++) {
        uint8_t *text;
        size_t n;

        if (json_escape(b, l->v[i].s, l->v[i].len, &text, &n) < 0 || names_add(s, &t, text, n) < 0)
            return NULL;
    }
    e->kind = EXPR_NAMES;
    e->names = known_names(s, &t);
    if (!e->names)
        return NULL;
    return json_quoted(b, e);
}

/* ---- objects */

/* The witness of a condition that is no declared member. */
#define NO_NAME UINT32_MAX

struct object {
    struct schema *s;
    const struct facets *f;
    const struct keys *keys;
    struct name_list *names;
    /* rules of each name */
    struct name_rules *rules;
    /* for each of f->some: index of a name, or NO_NAME */
    uint32_t witness[64];
    /* additional members: any, or a witness of f->some[i] */
    struct expr *rest, *some[64];
    /* the members of the list, as members_unordered() takes them */
    struct keyed *keyed;
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
        if (!*out && patterns.v)
            TRY(match_patterns(s, patterns, name->s, name->len, &v, &n, &cap, out));
        else
            TRY(build_work(s->b, 1));
    }
    return 0;
}

/* Returns the value of declared name @i, which also satisfies the conditions of f->some whose
 * witness it is. *@chosen: there are such conditions, so the member is required. */
static struct expr *declared_value(struct object *o, uint32_t i, bool *chosen) {
    const struct name *name = &o->names->v[i];
    struct place *v;
    uint32_t n, cap;
    bool allowed = o->rules[i].allowed;

    *chosen = false;
    if (member_places(o->s, o->f->parts, name->s, name->len, &v, &n) < 0)
        return NULL;
    if (allowed && o->f->closed && is_evaluated(o->s, o->f->parts, name, &allowed) < 0)
        return NULL;
    cap = n;
    for (uint32_t k = 0; k < o->f->n_some; k++) {
        if (o->witness[k] != i)
            continue;
        *chosen = true;
        if (places_add(o->s, &v, &n, &cap, schema_at(o->s, o->f->some[k], "value")) < 0)
            return NULL;
    }
    if (allowed)
        return schema_member(o->s, v, n);
    return expr_never(o->s->b);
}

static int add_declared(struct object *o, struct expr_list *list) {
    struct schema *s = o->s;
    uint32_t n_all = o->names->n + o->f->n_some;
    bool counted = o->f->min_members || o->f->max_members < n_all;

    list->member = build_alloc(s->b, n_all, sizeof(*list->member));
    list->optional = build_alloc(s->b, n_all, sizeof(*list->optional));
    o->keyed = build_alloc(s->b, n_all, sizeof(*o->keyed));
    if (!list->member || !list->optional || !o->keyed)
        return s->b->failed;
    for (uint32_t i = 0; i < o->names->n; i++) {
        const struct name *name = &o->names->v[i];
        bool chosen;
        struct expr *x = declared_value(o, i, &chosen), *m;

        if (!x)
            return s->b->failed;
        if (x->kind == EXPR_NEVER && !name->required && !chosen)
            continue;
        x = counted || o->f->n_some ? schema_share(s, x) : x;
        struct expr *key = json_key(s->b, name->s, name->len);
        struct expr *colon = json_colon_space(s->b);

        m = expr_seq3(s->b, key, colon, x);
        if (!m)
            return s->b->failed;
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

/* Returns the members of the object, with the witnesses that were chosen. */
static struct expr *object_members(struct object *o) {
    struct build *b = o->s->b;
    struct expr_list *list = build_alloc(b, 1, sizeof(*list));
    struct expr *e = expr_empty(b);

    if (!list || !e)
        return NULL;
    list->min = o->f->min_members;
    list->max = o->f->max_members;
    list->separator = json_comma(b);
    list->after = json_space(b);
    list->rest = o->rest;
    if (!list->separator || !list->after || add_declared(o, list) < 0)
        return NULL;
    if (list->min > list->max || (!list->rest && list->min > list->n))
        return expr_never(b);
    assert(list->n_needs <= list->n && list->n <= o->names->n + o->f->n_some);
    if (list->n || list->rest) {
        e->kind = EXPR_LIST;
        e->list = list;
        for (uint32_t i = 0; i < list->n; i++)
            e->size = MIN(e->size + list->member[i]->size, 1u << 30);
    }
    if (!(b->flags & GRAMMAR_ANY_ORDER) || list->n == 0 || list->n > MEMBERS_MAX || list->min ||
        list->max != NO_MAX || list->n_needs)
        return e;
    e = expr_seq2(b, members_unordered(o->s, o->keyed, list->n, list->rest), list->after);
    if (!list_nullable(list))
        return e;
    return expr_optional(b, e);
}

/* Adds one alternative for each choice of witnesses of f->some from @k on. */
static int choose_witness(struct object *o, uint32_t k, struct expr_vec *out) {
    TRY(build_work(o->s->b, 64));
    if (k == o->f->n_some)
        return expr_vec_add(o->s->b, out, object_members(o));
    for (uint32_t i = 0; i < o->names->n; i++) {
        if (!(o->rules[i].some >> k & 1))
            continue;
        o->witness[k] = i;
        TRY(choose_witness(o, k + 1, out));
    }
    o->witness[k] = NO_NAME;
    if (o->some[k]->kind == EXPR_NEVER)
        return 0;
    return choose_witness(o, k + 1, out);
}

/* Returns the language of the declared names, as keys. */
static const struct lang *declared_names(struct object *o) {
    struct build *b = o->s->b;
    struct expr_vec v = {0};

    for (uint32_t i = 0; !b->failed && i < o->names->n; i++)
        expr_vec_add(b, &v, json_key(b, o->names->v[i].s, o->names->v[i].len));
    return lang_of(b, expr_alt_of(b, &v));
}

struct expr *lower_object(struct schema *s, const struct facets *f) {
    struct build *b = s->b;
    CLEANUP(names_deinit) struct name_list names = {0};
    struct object o = {.s = s, .f = f, .names = &names};
    CLEANUP(freep) struct keys *keys = NULL;
    struct expr_vec v = {0};

    if (f->n_some > ARRAY_SIZE(o.some))
        return failed(build_too_complex(b, "an object must satisfy too many conditions at once"));
    if (collect_names(s, f->parts, &names) < 0 || keys_new(s, f, &keys) < 0)
        return NULL;
    if (b->notation == NOTATION_GEMMA && names.n)
        qsort(names.v, names.n, sizeof(*names.v), by_folded_name);
    o.keys = keys;
    o.rules = build_alloc(b, MAX(names.n, 1u), sizeof(*o.rules));
    for (uint32_t i = 0; !b->failed && i < names.n; i++)
        keys_name(keys, names.v[i].s, names.v[i].len, &o.rules[i]);
    if (b->failed)
        return NULL;
    if (keys_plain(keys, names.n))
        o.rest = keys_rest(keys, NULL, other_key(s, &names), o.some);
    else
        o.rest = keys_rest(keys, declared_names(&o), NULL, o.some);
    if (b->failed || choose_witness(&o, 0, &v) < 0)
        return NULL;
    struct expr *e = expr_alt_of(b, &v);

    if (b->notation == NOTATION_CALL)
        return e;
    return expr_seq(b, (struct expr *[]){expr_str(b, "{"), json_space(b), e, expr_str(b, "}")}, 4);
}
