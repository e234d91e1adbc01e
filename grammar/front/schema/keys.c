/*
 * keys - the members of an object that it does not declare, by their names.
 *
 * Which schemas hold for such a member depends on its name: those of the patterns that match it,
 * and additionalProperties of each part where none does. All patterns, propertyNames and the
 * declared names are read side by side (lang.h); texts with the same answers form a class, and each
 * class has one list of schemas.
 */

#include "grammar/front/schema/schema.h"
#include "grammar/automaton/lang.h"

#include <assert.h>
#include <string.h>

/* A language beside the others, and what it says of a key. */
struct key_rule {
    const struct lang *lang; /* in quotes */
    enum { KEY_MUST, KEY_MUST_NOT, KEY_PATTERN, KEY_SOME } kind;
    uint32_t part;      /* KEY_PATTERN: that it belongs to; KEY_SOME: the number of the some */
    struct place value; /* KEY_PATTERN */
    bool negated;       /* KEY_SOME: keys that do not match */
};

struct keys {
    struct schema *s;
    const struct facets *f;
    struct key_rule rule[LANG_MAX];
    uint32_t n;
    bool plain; /* nothing but declared names */
};

/* A language in quotes, which are made once. */
struct quoted_lang {
    struct quoted_lang *next;
    const struct lang *from, *lang;
};

static int quoted(struct schema *s, const struct lang *from, const struct lang **out) {
    struct quoted_lang *q = s->quoted;

    while (q && build_work(s->b, 1) == 0 && q->from != from)
        q = q->next;
    if (!q) {
        q = arena_alloc(&s->b->arena, sizeof(*q));
        if (!q)
            return build_no_memory(s->b);
        *q = (struct quoted_lang){.next = s->quoted, .from = from};
        int r = lang_of(s->b, json_quoted(s->b, lang_expr(s->b, from)), &q->lang);

        if (r < 0)
            return r;
        s->quoted = q;
    }
    *out = q->lang;
    return 0;
}

static int add_rule(struct keys *k, struct key_rule rule) {
    if (k->n >= LANG_MAX)
        return build_too_complex(k->s->b, "more than %u patterns for the names of one object",
                                 LANG_MAX - 1);
    assert(rule.lang);
    k->rule[k->n++] = rule;
    return build_work(k->s->b, 1);
}

static int pattern_lang(struct schema *s, struct place at, const struct lang **out) {
    struct text_rule t = {at, TEXT_PATTERN};
    const struct lang *l;
    int r = text_lang(s, &t, &l);

    return r < 0 ? r : quoted(s, l, out);
}

/* Strings that satisfy @names. */
static int names_lang(struct schema *s, struct place names, const struct lang **out) {
    struct place v[2] = {names, {yyjson_obj_get(s->string_type, "string"), names.path}};
    const struct lang *in[2];
    struct expr *e = NULL;
    int r = schema_value(s, v, 2, &e);

    if (r == 0)
        r = lang_of(s->b, e, &in[1]);
    if (r == 0)
        r = lang_strings(s->b, &in[0]);
    if (r == 0)
        r = quoted(s, in[0], &in[0]);
    return r < 0 ? r : lang_meet(s->b, in, 2, NULL, 0, out);
}

/* Declared names of a part, as a list of literals. */
static int declared_lang(struct schema *s, struct place part, const struct lang **out) {
    yyjson_val *key, *v;
    size_t i, n;
    struct expr_vec list = {0};

    yyjson_obj_foreach(yyjson_obj_get(part.v, "properties"), i, n, key, v) {
        int r = expr_vec_add(s->b, &list, json_literal(s->b, json_text(key), json_len(key)));

        if (r < 0)
            return r;
    }
    return lang_of(s->b, expr_alt(s->b, list.v, list.n), out);
}

static int add_some(struct keys *k, uint32_t i) {
    struct place at = k->f->some[i], of, how;
    struct key_rule rule = {.kind = KEY_SOME, .part = i};
    yyjson_val *key, *v;
    size_t j, n;
    int r;

    if ((how = schema_at(k->s, at, "match")).v) {
        r = schema_target(k->s, how, &of);
        if (r == 0)
            r = pattern_lang(k->s, of, &rule.lang);
        return r < 0 ? r : add_rule(k, rule);
    }
    rule.negated = true;
    if ((how = schema_at(k->s, at, "unlike")).v) {
        r = schema_target(k->s, how, &of);
        if (r == 0)
            r = names_lang(k->s, of, &rule.lang);
        return r < 0 ? r : add_rule(k, rule);
    }
    how = schema_at(k->s, at, "outside");
    r = schema_target(k->s, how, &of);
    if (r == 0)
        r = declared_lang(k->s, of, &rule.lang);
    if (r == 0)
        r = add_rule(k, rule);
    yyjson_obj_foreach(yyjson_obj_get(of.v, "patternProperties"), j, n, key, v) {
        if (r == 0)
            r = pattern_lang(k->s, (struct place){key, of.path}, &rule.lang);
        if (r == 0)
            r = add_rule(k, rule);
    }
    return r;
}

static int add_part(struct keys *k, uint32_t i) {
    struct place at = k->f->parts->v[i];
    struct place patterns = schema_at(k->s, at, "patternProperties");
    struct place names = schema_at(k->s, at, "propertyNames");
    yyjson_val *key, *v;
    size_t j, n;
    int r = 0;

    if (patterns.v && !yyjson_is_obj(patterns.v))
        return schema_invalid(k->s, patterns.path, "this must be an object");
    yyjson_obj_foreach(patterns.v, j, n, key, v) {
        const struct path *path = schema_path(k->s, patterns.path, json_text(key), json_len(key));
        struct key_rule rule = {.kind = KEY_PATTERN, .part = i, .value = {v, path}};

        k->plain = false;
        if (r == 0)
            r = pattern_lang(k->s, (struct place){key, path}, &rule.lang);
        if (r == 0)
            r = add_rule(k, rule);
    }
    if (r == 0 && names.v && !yyjson_is_true(names.v)) {
        struct key_rule rule = {.kind = KEY_MUST};

        k->plain = false;
        r = names_lang(k->s, names, &rule.lang);
        if (r == 0)
            r = add_rule(k, rule);
    }
    return r;
}

int keys_new(struct schema *s, const struct facets *f, struct keys **out) {
    struct keys *k = *out = malloc(sizeof(*k));
    struct key_rule all = {.kind = KEY_MUST};
    int r = k ? lang_strings(s->b, &all.lang) : build_no_memory(s->b);

    if (r < 0)
        return r;
    *k = (struct keys){.s = s, .f = f, .plain = f->n_some == 0};
    for (uint32_t i = 0; r == 0 && i < f->parts->n; i++)
        r = add_part(k, i);
    for (uint32_t i = 0; r == 0 && i < f->n_some; i++)
        r = add_some(k, i);
    if (r == 0 && !k->plain)
        r = quoted(s, all.lang, &all.lang);
    if (r == 0 && !k->plain)
        r = add_rule(k, all);
    return r;
}

bool keys_plain(const struct keys *k) {
    return k->plain;
}

/* Returns the answers of all rules about one text, as bits. */
static uint64_t answers(const struct keys *k, const uint8_t *text, size_t n) {
    uint64_t mask = 0;

    assert(k->n <= LANG_MAX);
    for (uint32_t i = 0; i < k->n; i++)
        mask |= (uint64_t)lang_matches(k->rule[i].lang, text, n) << i;
    return mask;
}

static bool key_allowed(const struct keys *k, uint64_t mask) {
    for (uint32_t i = 0; i < k->n; i++) {
        bool match = mask >> i & 1;

        if ((k->rule[i].kind == KEY_MUST && !match) || (k->rule[i].kind == KEY_MUST_NOT && match))
            return false;
    }
    return true;
}

/* Returns whether a key with these answers is one that some @some asks for. */
static bool key_is_some(const struct keys *k, uint64_t mask, uint32_t some) {
    for (uint32_t i = 0; i < k->n; i++) {
        const struct key_rule *r = &k->rule[i];

        if (r->kind == KEY_SOME && r->part == some && (mask >> i & 1) == r->negated)
            return false;
    }
    return true;
}

int keys_name(const struct keys *k, const char *name, size_t len, struct name_rules *out) {
    uint8_t *text, *all;
    size_t n;
    int r = json_escape(k->s->b, name, len, &text, &n);

    *out = (struct name_rules){.allowed = true};
    if (r < 0 || k->n == 0)
        return r;
    all = arena_alloc(&k->s->b->arena, n + 2);
    if (!all)
        return build_no_memory(k->s->b);
    all[0] = all[n + 1] = '"';
    memcpy(all + 1, text, n);
    uint64_t mask = answers(k, all, n + 2);

    out->allowed = key_allowed(k, mask);
    for (uint32_t i = 0; i < k->f->n_some; i++)
        out->some |= (uint64_t)key_is_some(k, mask, i) << i;
    return build_work(k->s->b, (n + 2) * k->n);
}

/* Lists the schemas of a member whose key matches the rules of @mask. *@open false: no keyword
 * mentions such a member, and it is not allowed. */
static int class_places(const struct keys *k, uint64_t mask, struct place **v, uint32_t *n,
                        bool *open) {
    const struct facets *f = k->f;
    bool declares = false, spoken = false;
    uint32_t cap = 0;
    int r = 0;

    *v = NULL;
    *n = 0;
    for (uint32_t p = 0; r == 0 && p < f->parts->n; p++) {
        struct place part = f->parts->v[p];
        bool matched = false;

        for (uint32_t i = 0; r == 0 && i < k->n; i++) {
            if (k->rule[i].kind != KEY_PATTERN || k->rule[i].part != p || !(mask >> i & 1))
                continue;
            matched = true;
            r = places_add(k->s, v, n, &cap, k->rule[i].value);
        }
        struct place more = schema_at(k->s, part, "additionalProperties");

        if (r == 0 && !matched && more.v)
            r = places_add(k->s, v, n, &cap, more);
        spoken = spoken || matched || (more.v && !(f->closed && yyjson_obj_get(part.v, OWN)));
        declares = declares ||
                   (!yyjson_obj_get(part.v, OWN) && (yyjson_obj_get(part.v, "properties") ||
                                                     yyjson_obj_get(part.v, "patternProperties")));
    }
    *open = spoken || !(f->closed || (declares && (k->s->b->flags & GRAMMAR_DECLARED_ONLY)));
    return r;
}

/* key: value of one class; @with: a further schema. NULL: no value fits. */
static int class_member(const struct keys *k, uint64_t mask, struct expr *key, struct place with,
                        struct expr **out) {
    struct place *v;
    struct expr *x = NULL;
    uint32_t n;
    bool open;
    int r = class_places(k, mask, &v, &n, &open);

    *out = NULL;
    if (r == 0 && open && with.v) {
        uint32_t cap = n;

        r = places_add(k->s, &v, &n, &cap, with);
    }
    if (r < 0 || !open)
        return r;
    r = schema_value(k->s, v, n, &x);
    if (r < 0 || x->kind == EXPR_NEVER)
        return r;
    *out = expr_seq3(k->s->b, key, json_colon_space(k->s->b), schema_share(k->s, x));
    return *out ? 0 : build_no_memory(k->s->b);
}

#define CLASSES_MAX 256

/* The classes of keys that are not declared, and the keys of each: they follow from the languages
 * beside each other, which objects of one kind have in common. */
struct key_classes {
    struct key_classes *next;
    const struct lang **in; /* the last one: the declared names */
    uint32_t n_in, n;
    uint64_t must;
    uint64_t *mask;    /* by class: what the languages say */
    struct expr **key; /* NULL: they are not allowed */
};

static bool same_langs(const struct key_classes *c, const struct lang *const *in, uint32_t n,
                       uint64_t must) {
    bool same = c->n_in == n && c->must == must;

    for (uint32_t i = 0; same && i < n; i++)
        same = c->in[i] == in[i] || lang_equal(c->in[i], in[i]);
    return same;
}

/* The answers that keys have, each once. */
static int find_masks(const struct keys *k, const struct lang *product, uint64_t must,
                      uint64_t *mask, uint32_t *n) {
    uint64_t declared = UINT64_C(1) << k->n;
    int r = 0;

    *n = 0;
    for (uint32_t q = 0; r == 0 && q < product->n; q++) {
        uint64_t m = product->state[q].accepts;
        uint32_t i = 0;

        if ((m & must) != must || (m & declared))
            continue;
        while (i < *n && mask[i] != m)
            i++;
        r = build_work(k->s->b, 1 + i / 8);
        if (i == CLASSES_MAX)
            return build_too_complex(k->s->b, "the patterns for the names of one object overlap in "
                                              "too many ways");
        if (i == *n)
            mask[(*n)++] = m;
    }
    return r;
}

static int make_classes(const struct keys *k, const struct lang *const *in, uint64_t must,
                        struct key_classes *c) {
    struct build *b = k->s->b;
    const struct lang *product, *l;
    uint64_t mask[CLASSES_MAX];
    int r = lang_product(b, in, k->n + 1, must, &product);

    if (r == 0)
        r = find_masks(k, product, must, mask, &c->n);
    if (r < 0)
        return r;
    c->n_in = k->n + 1;
    c->must = must;
    c->in = arena_alloc_array(&b->arena, c->n_in, sizeof(struct lang *));
    c->mask = arena_alloc_array(&b->arena, MAX(c->n, 1u), sizeof(*c->mask));
    c->key = arena_alloc_array(&b->arena, MAX(c->n, 1u), sizeof(struct expr *));
    if (!c->in || !c->mask || !c->key)
        return build_no_memory(b);
    assert(c->n <= CLASSES_MAX);
    memcpy(c->in, in, c->n_in * sizeof(struct lang *));
    memcpy(c->mask, mask, c->n * sizeof(*mask));
    for (uint32_t i = 0; r == 0 && i < c->n; i++) {
        r = lang_select(b, product, UINT64_MAX, mask[i], &l);
        if (r < 0 || !key_allowed(k, mask[i]))
            continue;
        c->key[i] = schema_share(k->s, lang_expr(b, l));
        r = c->key[i] ? 0 : build_no_memory(b);
    }
    return r;
}

static int find_classes(const struct keys *k, const struct lang *declared,
                        const struct key_classes **out) {
    struct schema *s = k->s;
    const struct lang *in[LANG_MAX];
    struct key_classes *c = s->key_classes;
    uint64_t must = 0;

    if (k->n >= LANG_MAX)
        return build_too_complex(s->b, "more than %u patterns for the names of one object",
                                 LANG_MAX - 1);
    for (uint32_t i = 0; i < k->n; i++) {
        in[i] = k->rule[i].lang;
        must |= (uint64_t)(k->rule[i].kind == KEY_MUST) << i;
    }
    in[k->n] = declared;
    while (c && build_work(s->b, k->n) == 0 && !same_langs(c, in, k->n + 1, must))
        c = c->next;
    if (c) {
        *out = c;
        return 0;
    }
    c = arena_alloc(&s->b->arena, sizeof(*c));
    int r = c ? make_classes(k, in, must, c) : build_no_memory(s->b);

    if (r < 0)
        return r;
    c->next = s->key_classes;
    s->key_classes = c;
    *out = c;
    return 0;
}

int keys_rest(const struct keys *k, const struct lang *declared, struct expr *plain_key,
              struct expr **out, struct expr **some) {
    struct build *b = k->s->b;
    const struct key_classes *c = NULL;
    struct expr_vec all = {0}, one[LANG_MAX] = {{0}};
    struct expr *m;

    *out = NULL;
    if (k->plain)
        return class_member(k, 0, plain_key, (struct place){0}, out);
    int r = find_classes(k, declared, &c);

    for (uint32_t i = 0; r == 0 && i < c->n; i++) {
        if (!c->key[i])
            continue;
        r = class_member(k, c->mask[i], c->key[i], (struct place){0}, &m);
        if (r == 0 && m)
            r = expr_vec_add(b, &all, m);
        for (uint32_t j = 0; r == 0 && m && j < k->f->n_some; j++) {
            struct place value = schema_at(k->s, k->f->some[j], "value");
            struct expr *x = NULL;

            if (key_is_some(k, c->mask[i], j))
                r = class_member(k, c->mask[i], c->key[i], value, &x);
            if (r == 0 && x)
                r = expr_vec_add(b, &one[j], x);
        }
    }
    if (r == 0 && all.n)
        *out = expr_alt(b, all.v, all.n);
    for (uint32_t j = 0; r == 0 && j < k->f->n_some; j++) {
        some[j] = expr_alt(b, one[j].v, one[j].n);
        r = some[j] ? 0 : build_no_memory(b);
    }
    return r;
}
