/*
 * schema - from a JSON Schema to expressions: lists of schemas, choices, and lists met before.
 *
 * schema_value() makes the expression for the values that satisfy all schemas of a list. Example:
 *
 *     {"type": "object", "allOf": [A], "anyOf": [{"required": ["x"]}, {"required": ["y"]}]}
 *
 *  1. parts_expand() lists what applies: this schema and A, and all to which they lead by $ref and
 *     allOf. Negations, conditions and dependencies are rewritten (logic.c) and expanded, too. An
 *     anyOf or oneOf is noted as a choice.
 *  2. schema_lower() multiplies the choices out: lower_choice() makes one list for each branch of
 *     the first one, here with {"required": ["x"]} and with {"required": ["y"]} as a third part,
 *     and calls schema_lower() for each. The branches of a oneOf that may both match exclude each
 *     other (exclude_others()).
 *  3. Without a choice left, facets_gather() merges the keywords of all parts, and each type that
 *     they allow is translated: lower_object(), lower_array(), ... These call schema_value() again
 *     for a member or item, with the list of all schemas that the parts have for it.
 *
 * Lists that were met before are found in a hash table (find_memo()). A list that is met while it
 * is in progress refers to itself, which makes the grammar recursive: it becomes a rule, and the
 * reference a call (call_memo()). A list that is met again later becomes a rule, too, so equal
 * parts of a schema are the same states.
 */

#include "grammar/front/schema/schema.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json_value.h"
#include "base/try.h"

#define MEMO_SLOTS 1024
#define PARTS_MORE 4 /* parts that a branch usually adds */

/* A list of schemas that was met before, with its expression. When the list is met again the
 * expression becomes a rule. */
struct memo {
    struct memo *next;
    /* NULL: in progress */
    struct expr *body;
    uint32_t rule, n;
    enum notation notation;
    yyjson_val **key;
    const struct path *path;
};

/* Returns the path equal to @path, and makes it when it is new. Paths are only for messages, so
 * where memory is short the path above serves. */
static const struct path *find_path(struct schema *s, struct path path) {
    uint64_t h = ((uintptr_t)path.up ^ (uintptr_t)path.key << 7) + path.len + (path.index << 17);
    uint32_t hash = (uint32_t)(h * 0x9E3779B97F4A7C15u >> 32);

    HASH_INDEX_EACH(s->path_index, hash, i) {
        const struct path *q = s->paths[i];

        if (q->up == path.up && q->key == path.key && q->len == path.len && q->index == path.index)
            return q;
    }
    struct path *p = arena_alloc(&s->b->arena, sizeof(*p));

    if (!p || !ARRAY_GROW(s->paths, s->n_paths, s->cap_paths, 128) ||
        hash_index_add(&s->path_index, hash, s->n_paths) < 0)
        return path.up;
    *p = path;
    return s->paths[s->n_paths++] = p;
}

const struct path *schema_path(struct schema *s, const struct path *up, const char *key,
                               size_t len) {
    return find_path(s, (struct path){.up = up, .key = key, .len = len});
}

const struct path *schema_path_index(struct schema *s, const struct path *up, size_t index) {
    return find_path(s, (struct path){.up = up, .index = index});
}

struct place schema_at(struct schema *s, struct place p, const char *key) {
    yyjson_val *v = yyjson_obj_get(p.v, key);

    /* The search is linear in the members. If this work exceeds the limit, the build has failed,
     * and the next function that can return an error does. */
    build_work(s->b, yyjson_obj_size(p.v) / 4);
    return (struct place){v, v ? schema_path(s, p.path, key, strlen(key)) : NULL};
}

struct place schema_item(struct schema *s, struct place list, size_t i) {
    build_work(s->b, i / 4); /* items before it may have to be passed one by one */
    return (struct place){yyjson_arr_get(list.v, i), schema_path_index(s, list.path, i)};
}

/* Prints a path from the root down. Of a long path the steps next to the root are left out. */
static void print_path(const struct path *p, char *out, size_t cap) {
    const struct path *step[24];
    size_t n = 0, len = 0;

    for (; p && p->up && n < ARRAY_SIZE(step); p = p->up)
        step[n++] = p;
    len += (size_t)snprintf(out, cap, "%s", p && p->up ? "#..." : "#");
    while (n-- && len < cap) {
        if (step[n]->key)
            len += (size_t)snprintf(out + len, cap - len, "/%.*s",
                                    (int)MIN(step[n]->len, (size_t)64), step[n]->key);
        else
            len += (size_t)snprintf(out + len, cap - len, "/%zu", step[n]->index);
    }
}

/* Writes a path as a JSON pointer; "" if it does not fit. */
static void write_pointer(const struct path *p, char *out, size_t cap) {
    size_t at = cap - 1;
    char number[24];

    /* From the end of @out to its beginning, as the path goes from its end to the root. */
    out[at] = 0;
    for (; p && p->up; p = p->up) {
        const char *key = p->key;
        size_t len = p->len;

        if (!key) {
            len = (size_t)snprintf(number, sizeof(number), "%zu", p->index);
            key = number;
        }
        if (at < 2 * len + 1) {
            *out = 0;
            return;
        }
        while (len--) {
            char c = key[len];

            if (c == '~' || c == '/') {
                out[--at] = c == '~' ? '0' : '1';
                out[--at] = '~';
            } else {
                out[--at] = c;
            }
        }
        out[--at] = '/';
    }
    memmove(out, out + at, cap - at);
}

int schema_fail(struct schema *s, const struct path *at, const char *code, const char *fmt, ...) {
    char place[200], text[200];
    va_list ap;

    print_path(at, place, sizeof(place));
    if (s->b->limits.place && !s->b->failed)
        write_pointer(at, s->b->limits.place, GRAMMAR_PLACE_MAX);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return build_fail(s->b, code, "%s: %s", place, text);
}

int places_add(struct schema *s, struct place **v, uint32_t *n, uint32_t *cap, struct place p) {
    TRY(build_grow(s->b, v, *n, cap, 4, sizeof(**v)));
    (*v)[(*n)++] = p;
    return build_work(s->b, 1);
}

static int schema_add_choice(struct schema *s, struct parts *out, struct place at, bool one,
                             const struct open *open) {
    if (!yyjson_is_arr(at.v) || yyjson_arr_size(at.v) == 0)
        return schema_invalid(s, at.path, "this must be an array of at least one schema");
    int r =
        build_grow(s->b, &out->choice, out->n_choices, &out->cap_choices, 4, sizeof(*out->choice));
    struct open *from = build_alloc(s->b, 1, sizeof(*from));

    if (r < 0 || !from)
        return s->b->failed;
    /* The nesting of its branches counts from 0 here: they are expanded later, by lower_choice().
     * */
    *from = (struct open){open->up, open->v, 0};
    out->choice[out->n_choices++] = (struct choice){at, one, from};
    return 0;
}

static int schema_expand(struct schema *s, struct parts *out, struct place p,
                         const struct open *up);

/* Expands not, if and dependencies, which logic.c rewrites as plainer schemas. */
static int expand_logic(struct schema *s, struct parts *out, struct place p,
                        const struct open *open) {
    struct place not = schema_at(s, p, "not"), d;

    if (not .v && (logic_not(s, not, &d) < 0 || schema_expand(s, out, d, open) < 0))
        return s->b->failed;
    if (yyjson_obj_get(p.v, "if") && (yyjson_obj_get(p.v, "then") || yyjson_obj_get(p.v, "else")) &&
        (logic_if(s, p, &d) < 0 || schema_expand(s, out, d, open) < 0))
        return s->b->failed;
    if ((yyjson_obj_get(p.v, "dependencies") || yyjson_obj_get(p.v, "dependentRequired") ||
         yyjson_obj_get(p.v, "dependentSchemas")) &&
        logic_dependencies(s, p, &d) == 0)
        schema_expand(s, out, d, open);
    return s->b->failed;
}

static int schema_expand(struct schema *s, struct parts *out, struct place p,
                         const struct open *up) {
    struct build *b = s->b;
    struct open *open = build_alloc(b, 1, sizeof(*open));
    struct place ref, all, any, one;
    uint32_t n_open = 0;

    if (build_work(b, 1 + out->n) < 0 || yyjson_is_true(p.v))
        return b->failed;
    if (yyjson_is_false(p.v)) {
        out->never = true;
        return b->failed;
    }
    if (!yyjson_is_obj(p.v))
        return schema_invalid(s, p.path, "a schema must be an object or a boolean");
    if (!open)
        return b->failed;
    *open = (struct open){up, p.v, up ? up->depth + 1 : 1};
    if (open->depth > b->limits.max_depth)
        return build_too_complex(b, "the schema's references are nested more than %u deep",
                                 b->limits.max_depth);
    for (const struct open *o = up; o; o = o->up, n_open++) {
        if (o->v == p.v)
            return schema_invalid(s, p.path, "the schema refers to itself without any progress");
    }
    for (uint32_t i = 0; i < out->n; i++) {
        if (out->v[i].v == p.v)
            return 0;
    }
    build_work(b, n_open);
    if (places_add(s, &out->v, &out->n, &out->cap, p) < 0)
        return b->failed;
    ref = schema_at(s, p, "$ref");
    if (ref.v &&
        (schema_resolve(s, ref, &ref) < 0 || schema_expand(s, out, ref, open) < 0 || s->old_refs))
        return b->failed;
    all = schema_at(s, p, "allOf");
    any = schema_at(s, p, "anyOf");
    one = schema_at(s, p, "oneOf");
    if (all.v && (!yyjson_is_arr(all.v) || yyjson_arr_size(all.v) == 0))
        return schema_invalid(s, all.path, "this must be an array of at least one schema");
    for (size_t i = 0; i < yyjson_arr_size(all.v); i++) {
        if (schema_expand(s, out, schema_item(s, all, i), open) < 0)
            return b->failed;
    }
    if (any.v)
        schema_add_choice(s, out, any, false, open);
    if (one.v)
        schema_add_choice(s, out, one, true, open);
    if (b->failed)
        return b->failed;
    return expand_logic(s, out, p, open);
}

int parts_expand(struct schema *s, struct parts *out, struct place p) {
    return schema_expand(s, out, p, NULL);
}

static int schema_copy_parts(struct schema *s, struct parts *to, const struct parts *from) {
    int r = 0;

    *to = (struct parts){.never = from->never, .n_roots = from->n_roots, .n = from->n};
    to->cap = from->n + PARTS_MORE;
    to->v = build_alloc(s->b, to->cap, sizeof(*to->v));
    if (!to->v)
        return s->b->failed;
    memcpy(to->v, from->v, from->n * sizeof(*to->v));
    r = build_work(s->b, from->n);
    for (uint32_t i = 1; r == 0 && i < from->n_choices; i++)
        r = schema_add_choice(s, to, from->choice[i].at, from->choice[i].one, from->choice[i].open);
    return r;
}

static struct expr *lower_facets(struct schema *s, const struct facets *f) {
    static const struct {
        unsigned types;
        struct expr *(*lower)(struct schema *, const struct facets *);
    } KINDS[] = {{T_INT | T_REAL, lower_number},
                 {T_STRING, lower_string},
                 {T_ARRAY, lower_array},
                 {T_OBJECT, lower_object}};
    struct expr_vec v = {0};

    if (f->types & T_NULL)
        expr_vec_add(s->b, &v, json_word(s->b, "null"));
    if (f->types & T_BOOL)
        expr_vec_add(s->b, &v, expr_alt2(s->b, json_word(s->b, "true"), json_word(s->b, "false")));
    for (size_t i = 0; !s->b->failed && i < ARRAY_SIZE(KINDS); i++) {
        if (f->types & KINDS[i].types)
            expr_vec_add(s->b, &v, KINDS[i].lower(s, f));
    }
    return expr_alt_of(s->b, &v);
}

/* Returns an expression for an object or array of an enum beside other keywords for its type, which
 * its members and items must satisfy. */
static struct expr *lower_constant(struct schema *s, const struct facets *f, struct place value) {
    struct parts parts;
    struct facets both;
    struct place shape;

    if (schema_copy_parts(s, &parts, f->parts) < 0 || logic_const(s, value, &shape) < 0 ||
        places_add(s, &parts.v, &parts.n, &parts.cap, shape) < 0 ||
        facets_gather(s, &parts, &both) < 0)
        return NULL;
    if (yyjson_is_obj(value.v))
        return lower_object(s, &both);
    return lower_array(s, &both);
}

/* Returns an expression for those values of the first enum or const that all other keywords
 * admit. */
static struct expr *lower_values(struct schema *s, const struct facets *f) {
    struct place at = f->value[0];
    bool one = f->value_is_const[0];

    if (s->b->notation == NOTATION_CALL)
        return failed(schema_unsupported(s, at.path, "is not supported for all arguments at once"));
    struct expr_vec v = {0};
    yyjson_arr_iter iter = yyjson_arr_iter_with(one ? NULL : at.v);

    for (size_t i = 0; i < (one ? 1 : yyjson_arr_size(at.v)); i++) {
        struct place value = {one ? at.v : yyjson_arr_iter_next(&iter),
                              one ? at.path : schema_path_index(s, at.path, i)};
        int r = facets_admit(s, f, value);
        bool shape = yyjson_is_ctn(value.v) && (f->implied & value_type(value.v));

        if (r > 0 && shape)
            r = expr_vec_add(s->b, &v, lower_constant(s, f, value));
        else if (r > 0)
            r = expr_vec_add(s->b, &v, value_expr(s, value.v));
        if (r < 0)
            return NULL;
    }
    return expr_alt_of(s->b, &v);
}

static struct expr *schema_lower(struct schema *s, struct parts *parts);

/* Makes the branches of a oneOf exclude each other: where branch i and another one may both match,
 * the negation of the other is added to branch i. */
static int exclude_others(struct schema *s, struct parts *branch, const struct facets *facets,
                          uint32_t n, struct choice c) {
    CLEANUP(freep) bool *meet = calloc((size_t)n * n + 1, sizeof(*meet));

    if (!meet)
        return build_no_memory(s->b);
    TRY(build_work(s->b, (uint64_t)n * n));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = i + 1; k < n; k++) {
            if (branch[i].never || branch[k].never)
                continue;
            int r = facets_disjoint(s, &facets[i], &facets[k], 0);

            if (r < 0)
                return r;
            meet[i * n + k] = meet[k * n + i] = r == 0;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++) {
            struct place other;

            if (!meet[i * n + k])
                continue;
            TRY(logic_not(s, schema_item(s, c.at, k), &other));
            TRY(schema_expand(s, &branch[i], other, c.open));
        }
    }
    return 0;
}

/* Makes branch[i] of each of the @n branches of @c: the parts of the branch, and all of @parts. */
static int make_branches(struct schema *s, const struct parts *parts, struct choice c, uint32_t n,
                         struct parts *branch) {
    CLEANUP(freep) struct facets *facets = c.one ? calloc(n, sizeof(*facets)) : NULL;

    if (c.one && !facets)
        return build_no_memory(s->b);
    for (uint32_t i = 0; i < n; i++) {
        TRY(build_work(s->b, i + parts->n));
        TRY(schema_copy_parts(s, &branch[i], parts));
        TRY(schema_expand(s, &branch[i], schema_item(s, c.at, i), c.open));
        if (c.one)
            TRY(facets_gather(s, &branch[i], &facets[i]));
    }
    if (c.one)
        TRY(exclude_others(s, branch, facets, n, c));
    return 0;
}

/* Multiplies out the first anyOf or oneOf: makes one alternative for each branch, each of which has
 * all the other parts, too. */
static struct expr *lower_choice(struct schema *s, const struct parts *parts) {
    assert(parts->n_choices > 0 && yyjson_arr_size(parts->choice[0].at.v) > 0);
    struct choice c = parts->choice[0];
    uint32_t n = (uint32_t)yyjson_arr_size(c.at.v);
    struct parts *branch = build_alloc(s->b, n, sizeof(*branch));
    struct expr_vec v = {0};

    if (!branch || make_branches(s, parts, c, n, branch) < 0)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        if (expr_vec_add(s->b, &v, schema_lower(s, &branch[i])) < 0)
            return NULL;
    return expr_alt_of(s->b, &v);
}

static struct expr *schema_lower(struct schema *s, struct parts *parts) {
    struct facets f;

    if (parts->never)
        return expr_never(s->b);
    if (facets_gather(s, parts, &f) < 0)
        return NULL;
    if (f.types == 0)
        return expr_never(s->b);
    if (parts->n_choices) {
        /* A branch may have further choices, which recurse: each one counts as a level. */
        if (++s->depth > s->b->limits.max_depth)
            return failed(build_too_complex(s->b, "the schema is nested more than %u deep",
                                            s->b->limits.max_depth));
        struct expr *e = lower_choice(s, parts);

        assert(s->depth > 0);
        s->depth--;
        return e;
    }
    if (f.n_values)
        return lower_values(s, &f);
    if (f.types == T_ALL && !f.implied)
        return json_any(s->b);
    return lower_facets(s, &f);
}

static struct memo **find_memo(struct schema *s, const struct place *v, uint32_t n) {
    uint64_t h = n;

    for (uint32_t i = 0; i < n; i++)
        h = hash_step(h, (uintptr_t)v[i].v);
    struct memo **m = &s->memo[h % MEMO_SLOTS];

    for (; *m; m = &(*m)->next) {
        bool equal = (*m)->n == n && (*m)->notation == s->b->notation;

        for (uint32_t i = 0; equal && i < n; i++)
            equal = (*m)->key[i] == v[i].v;
        if (equal)
            break;
    }
    return m;
}

static const char *rule_name(struct schema *s, const struct path *path) {
    char text[200];

    print_path(path, text, sizeof(text));
    return arena_strndup(&s->b->arena, text, strlen(text));
}

/* Returns a call of the rule of a list that is met again. Its first use stays as it was, inline. A
 * list that is still in progress refers to itself; schema_value() then completes the rule. */
static struct expr *call_memo(struct schema *s, struct memo *m) {
    if (m->rule == NO_RULE) {
        int r;

        if (m->body)
            r = build_rule_of(s->b, m->body, &m->rule);
        else
            r = build_rule(s->b, NULL, &m->rule);

        if (r < 0)
            return NULL;
        if (!s->b->rule[m->rule].name)
            s->b->rule[m->rule].name = rule_name(s, m->path);
    }
    return expr_call(s->b, m->rule);
}

int schema_follow(struct schema *s, struct place *p) {
    for (uint32_t i = 0; yyjson_is_obj(p->v) && yyjson_obj_size(p->v) == 1; i++) {
        struct place ref = schema_at(s, *p, "$ref"), target;

        if (!ref.v)
            return 0;
        if (i > s->b->limits.max_depth)
            return schema_invalid(s, p->path, "the schema refers to itself without any progress");

        TRY(schema_resolve(s, ref, &target));
        *p = target;
    }
    return 0;
}

struct expr *schema_value(struct schema *s, const struct place *given, uint32_t n) {
    struct place *v = build_alloc(s->b, n + 1, sizeof(*v));
    struct memo *m = build_alloc(s->b, 1, sizeof(*m));
    yyjson_val **key = build_alloc(s->b, n + 1, sizeof(*key));
    struct parts parts = {.n_roots = n};

    if (s->b->failed)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        v[i] = given[i];
        if (schema_follow(s, &v[i]) < 0)
            return NULL;
        key[i] = v[i].v;
    }
    struct memo **at = find_memo(s, v, n);

    if (*at)
        return call_memo(s, *at);
    if (++s->depth > s->b->limits.max_depth)
        return failed(build_too_complex(s->b, "the schema is nested more than %u deep",
                                        s->b->limits.max_depth));
    *m = (struct memo){.key = key,
                       .n = n,
                       .rule = NO_RULE,
                       .path = n ? v[0].path : NULL,
                       .notation = s->b->notation};
    *at = m;
    for (uint32_t i = 0; i < n; i++) {
        if (parts_expand(s, &parts, v[i]) < 0)
            return NULL;
    }
    struct expr *e = schema_lower(s, &parts);

    assert(s->depth > 0 && !m->body);
    s->depth--;
    m->body = e;
    if (!e || m->rule == NO_RULE)
        return e;
    s->b->rule[m->rule].body = e; /* the schema refers to itself: call_memo() has made the rule */
    return expr_call(s->b, m->rule);
}

struct expr *schema_member(struct schema *s, const struct place *v, uint32_t n) {
    enum notation own = s->b->notation;

    if (own == NOTATION_CALL)
        s->b->notation = NOTATION_JSON;
    struct expr *e = schema_value(s, v, n);

    s->b->notation = own;
    return e;
}

/* Makes the values of the schema, or of b->property of it. */
static struct expr *read_root(struct schema *s) {
    static const char *const TYPES[NOTATIONS] = {
        [NOTATION_BARE] = "string", [NOTATION_CALL] = "object"};
    const char *type = TYPES[s->b->notation];
    struct place v[2] = {{s->root, s->root_path}};

    if (s->b->property)
        v[0] = schema_at(s, schema_at(s, v[0], "properties"), s->b->property);
    if (type)
        v[1] = (struct place){yyjson_obj_get(s->own_types, type), s->root_path};
    if (!v[0].v)
        return failed(build_invalid(s->b, "the schema has no property \"%s\"", s->b->property));
    return schema_value(s, v, type ? 2 : 1);
}

struct expr *schema_read(struct build *b, const char *text, size_t len) {
    yyjson_read_err why;
    yyjson_doc *doc =
        yyjson_read_opts((char *)(uintptr_t)text, len, YYJSON_READ_NUMBER_AS_RAW, NULL, &why);
    struct path root = {0};
    struct schema s = {.b = b, .root = yyjson_doc_get_root(doc), .root_path = &root};

    if (!doc && why.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return failed(build_no_memory(b));
    if (!doc)
        return failed(
            build_invalid(b, "the schema is not valid JSON: %s at byte %zu", why.msg, why.pos));
    keywords_forget_nulls(s.root, false, 4 * b->limits.max_depth);

    static const char TYPES[] =
        "{\"string\": {\"type\": \"string\"}, \"object\": {\"type\": \"object\"}}";
    yyjson_doc *own = yyjson_read(TYPES, sizeof(TYPES) - 1, 0);

    const char *draft = json_cstr(yyjson_obj_get(s.root, "$schema"));

    for (const char *d = "34567"; draft && *d; d++) {
        char name[] = "/draft-00/";

        name[8] = *d;
        s.old_refs = s.old_refs || strstr(draft, name);
    }
    s.own_types = yyjson_doc_get_root(own);
    b->is_schema = true;
    for (const char *p = text; (p = memmem(p, len - (size_t)(p - text), "\"not\"", 5)); p += 5)
        s.n_nots++;
    s.has_refs = memmem(text, len, "\"$ref\"", 6) || memmem(text, len, "\\u", 2);
    s.memo = calloc(MEMO_SLOTS, sizeof(struct memo *));
    struct expr *e;

    if (s.memo && own)
        e = read_root(&s);
    else
        e = failed(build_no_memory(b));

    logic_deinit(&s);
    free(s.paths);
    hash_index_deinit(&s.path_index);
    free(s.memo);
    yyjson_doc_free(own);
    yyjson_doc_free(doc);
    return e;
}
