/*
 * keys - the members of an object that are not declared in `properties`, by their names.
 *
 * Which schemas hold for such a member depends on its name: those of the patternProperties that
 * match it, and additionalProperties of each part in which none matches. So the possible names are
 * divided into classes. Example:
 *
 *     "patternProperties": {"^a": A, "z$": Z}, "additionalProperties": X
 *
 *     class of names           schemas of the value
 *     matches ^a and z$        A and Z
 *     matches ^a alone         A
 *     matches z$ alone         Z
 *     matches neither          X
 *
 * The product of the automata of all patterns, of propertyNames and of the declared names (lang.h)
 * knows for each name which of them match: that set of bits is the class (`mask`). find_masks()
 * lists the classes that exist, lang_select() makes the language of names of each, and
 * class_member() its member with the schemas that hold.
 *
 * Negations need more: that an object does not fit `patternProperties` means that *some* member has
 * a name that matches and a value that does not fit. logic.c writes such a condition as an OWN
 * "some"; its names are rules of kind KEY_SOME here.
 */

#include <assert.h>

#include "base/json_read.h"
#include "base/try.h"
#include "grammar/automaton/lang.h"
#include "grammar/front/schema/schema.h"

/* A language of names, and its rule for keys that match it. */
struct key_rule {
    /* as keys */
    const struct lang *lang;
    /* KEY_FORM is for undeclared keys: their spelling in the notation. */
    enum { KEY_MUST, KEY_FORM, KEY_PATTERN, KEY_SOME } kind;
    /* KEY_PATTERN: its part; KEY_SOME: the index in f->some[] */
    uint32_t part;
    /* KEY_PATTERN */
    struct place value;
    /* KEY_SOME: keys that do not match */
    bool negated;
};

struct keys {
    struct schema *s;
    const struct facets *f;
    struct key_rule rule[LANG_MAX];
    uint32_t n;
    /* no keyword is about names */
    bool unruled;
    /* so only declared names exclude a key: object.c makes the others */
    bool plain;
};

/* A language `from` and the same texts as keys, which are made once. */
struct quoted_lang {
    struct quoted_lang *next;
    const struct lang *from, *lang;
};

static const struct lang *keys_quoted(struct schema *s, const struct lang *from) {
    struct quoted_lang *q = s->quoted;

    while (q && build_work(s->b, 1) == 0 && q->from != from)
        q = q->next;
    if (q)
        return q->lang;
    q = build_alloc(s->b, 1, sizeof(*q));
    if (!q)
        return NULL;
    *q = (struct quoted_lang){.next = s->quoted, .from = from};
    q->lang = lang_of(s->b, json_key_of(s->b, lang_expr(s->b, from)));
    if (q->lang)
        s->quoted = q;
    return q->lang;
}

static int keys_add_rule(struct keys *k, struct key_rule rule) {
    if (k->n >= LANG_MAX)
        return build_too_complex(k->s->b, "more than %u patterns for the names of one object",
                                 LANG_MAX - 1);
    if (!rule.lang)
        return k->s->b->failed;
    k->rule[k->n++] = rule;
    return build_work(k->s->b, 1);
}

static const struct lang *pattern_lang(struct schema *s, struct place at) {
    const struct lang *l = text_lang(s, &(struct text_rule){at, TEXT_PATTERN});

    if (!l)
        return NULL;
    return keys_quoted(s, l);
}

/* Returns an expression for the names that satisfy the @n schemas @v, as keys. */
static struct expr *names_value(struct schema *s, const struct place *v, uint32_t n) {
    struct build *b = s->b;
    enum notation notation = b->notation;

    if (notation == NOTATION_JSON)
        return schema_value(s, v, n);
    b->notation = NOTATION_BARE;
    struct expr *text = b->text;

    b->text = lang_expr(b, lang_strings(b)); /* languages are made without recursive rules */
    struct expr *e = schema_value(s, v, n);

    b->text = text;
    b->notation = notation;
    return json_key_of(b, e);
}

/* Returns the strings that satisfy the schema @names, as keys. */
static const struct lang *names_lang(struct schema *s, struct place names) {
    struct place v[2] = {names, {yyjson_obj_get(s->own_types, "string"), names.path}};
    const struct lang *keys = lang_of(s->b, names_value(s, v, 2));
    const struct lang *all = keys ? lang_strings(s->b) : NULL;
    const struct lang *in[2] = {all ? keys_quoted(s, all) : NULL, keys};

    return lang_meet(s->b, in, 2, NULL, 0);
}

/* Returns the language of the declared names of a part, as keys. */
static const struct lang *declared_lang(struct schema *s, struct place part) {
    struct expr_vec list = {0};

    JSON_MEMBERS(key, v, yyjson_obj_get(part.v, "properties")) {
        if (expr_vec_add(s->b, &list, json_key(s->b, json_text(key), json_len(key))) < 0)
            break;
    }
    return lang_of(s->b, expr_alt_of(s->b, &list));
}

static int keys_add_some(struct keys *k, uint32_t i) {
    struct schema *s = k->s;
    struct place at = k->f->some[i], of, match = schema_at(s, at, "match"),
                 unlike = schema_at(s, at, "unlike");
    struct key_rule rule = {.kind = KEY_SOME, .part = i, .negated = !match.v};
    struct place how = match;

    if (!match.v)
        how = unlike.v ? unlike : schema_at(s, at, "outside");
    if (schema_target(s, how, &of) < 0)
        return s->b->failed;
    if (match.v)
        rule.lang = pattern_lang(s, of);
    else if (unlike.v)
        rule.lang = names_lang(s, of);
    else
        rule.lang = declared_lang(s, of);
    if (keys_add_rule(k, rule) < 0 || match.v || unlike.v)
        return s->b->failed;
    JSON_MEMBERS(key, v, yyjson_obj_get(of.v, "patternProperties")) {
        rule.lang = pattern_lang(s, (struct place){key, of.path});
        if (keys_add_rule(k, rule) < 0)
            break;
    }
    return s->b->failed;
}

static int keys_add_part(struct keys *k, uint32_t i) {
    struct place at = k->f->parts->v[i];
    struct place patterns = schema_at(k->s, at, "patternProperties");
    struct place names = schema_at(k->s, at, "propertyNames");

    JSON_MEMBERS(key, v, patterns.v) {
        const struct path *path = schema_path(k->s, patterns.path, json_text(key), json_len(key));

        k->plain = false;
        struct key_rule rule = {.lang = pattern_lang(k->s, (struct place){key, path}),
                                .kind = KEY_PATTERN,
                                .part = i,
                                .value = {v, path}};
        TRY(keys_add_rule(k, rule));
    }
    if (!names.v || yyjson_is_true(names.v))
        return 0;
    k->plain = false;
    return keys_add_rule(k, (struct key_rule){.lang = names_lang(k->s, names), .kind = KEY_MUST});
}

int keys_new(struct schema *s, const struct facets *f, struct keys **out) {
    struct keys *k = *out = malloc(sizeof(*k));
    const struct lang *all = lang_strings(s->b);

    if (!k || !all)
        return build_no_memory(s->b);
    *k = (struct keys){.s = s, .f = f, .plain = f->n_some == 0};
    for (uint32_t i = 0; i < f->parts->n; i++)
        TRY(keys_add_part(k, i));
    for (uint32_t i = 0; i < f->n_some; i++)
        TRY(keys_add_some(k, i));
    k->unruled = k->plain;
    if (s->b->notation != NOTATION_JSON) {
        k->plain = false;
        all = lang_keys(s->b);
    } else if (!k->plain) {
        all = keys_quoted(s, all);
    }
    if (k->plain)
        return 0;
    return keys_add_rule(k, (struct key_rule){.lang = all, .kind = KEY_FORM});
}

/* Returns whether undeclared keys are at most JSON_KEY_MAX characters. Then a register counts them:
 * their languages have no limit, which would multiply their states by it. */
static bool keys_counted(const struct keys *k) {
    return k->s->b->notation != NOTATION_JSON;
}

bool keys_plain(const struct keys *k, uint32_t n_declared) {
    return k->plain || (k->unruled && n_declared == 0);
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
        if (k->rule[i].kind <= KEY_FORM && !(mask >> i & 1))
            return false;
    }
    return true;
}

/* Returns whether a key with these answers is one that the condition f->some[@some] is about. */
static bool key_is_some(const struct keys *k, uint64_t mask, uint32_t some) {
    for (uint32_t i = 0; i < k->n; i++) {
        const struct key_rule *r = &k->rule[i];

        if (r->kind == KEY_SOME && r->part == some && (mask >> i & 1) == r->negated)
            return false;
    }
    return true;
}

int keys_name(const struct keys *k, const char *name, size_t len, struct name_rules *out) {
    *out = (struct name_rules){.allowed = true};
    if (k->n == 0)
        return k->s->b->failed;
    const struct expr *key = json_key(k->s->b, name, len);

    if (!key)
        return k->s->b->failed;
    uint64_t mask = answers(k, key->bytes, key->n);

    for (uint32_t i = 0; i < k->n; i++)
        mask |= (uint64_t)(k->rule[i].kind == KEY_FORM) << i;
    out->allowed = key_allowed(k, mask);
    for (uint32_t i = 0; i < k->f->n_some; i++)
        out->some |= (uint64_t)key_is_some(k, mask, i) << i;
    return build_work(k->s->b, (uint64_t)key->n * k->n);
}

/* Lists the schemas of a member whose key matches the rules of @mask. *@open false: no keyword
 * mentions such a member, and it is not allowed. */
static int class_places(const struct keys *k, uint64_t mask, struct place **v, uint32_t *n,
                        bool *open) {
    const struct facets *f = k->f;
    bool declares = false, spoken = false;
    uint32_t cap = 0;

    *v = NULL;
    *n = 0;
    for (uint32_t p = 0; p < f->parts->n; p++) {
        struct place part = f->parts->v[p];
        bool matched = false;

        for (uint32_t i = 0; i < k->n; i++) {
            if (k->rule[i].kind != KEY_PATTERN || k->rule[i].part != p || !(mask >> i & 1))
                continue;
            matched = true;
            TRY(places_add(k->s, v, n, &cap, k->rule[i].value));
        }
        struct place more = schema_at(k->s, part, "additionalProperties");

        if (!matched && more.v)
            TRY(places_add(k->s, v, n, &cap, more));
        spoken = spoken || matched || (more.v && !(f->closed && yyjson_obj_get(part.v, OWN)));
        declares = declares ||
                   (!yyjson_obj_get(part.v, OWN) && (yyjson_obj_get(part.v, "properties") ||
                                                     yyjson_obj_get(part.v, "patternProperties")));
    }
    *open = spoken || !(f->closed || (declares && (k->s->b->flags & GRAMMAR_DECLARED_ONLY)));
    return 0;
}

/* Returns the member `key: value` of one class, whose value also satisfies @with, if that is given.
 * NULL: no value fits, or the build has failed. */
static struct expr *class_member(const struct keys *k, uint64_t mask, struct expr *key,
                                 struct place with) {
    struct build *b = k->s->b;
    struct place *v;
    uint32_t n;
    bool open;

    if (class_places(k, mask, &v, &n, &open) < 0 || !open)
        return NULL;
    uint32_t cap = n;

    if (with.v && places_add(k->s, &v, &n, &cap, with) < 0)
        return NULL;
    struct expr *x = schema_member(k->s, v, n);

    if (!x || x->kind == EXPR_NEVER)
        return NULL;
    return expr_seq3(b, key, json_colon_space(b), schema_share(k->s, x));
}

#define CLASSES_MAX 256

/* The classes of keys that are not declared, and the keys of each. They depend on the languages
 * alone, so objects with the same patterns and declared names share them. */
struct key_classes {
    struct key_classes *next;
    /* those of the rules, the declared names, lang_texts() where keys are counted */
    const struct lang **in;
    uint32_t n_in, n;
    uint64_t must;
    /* by class: which of the languages match */
    uint64_t *mask;
    /* NULL: they are not allowed */
    struct expr **key;
};

static bool same_langs(const struct key_classes *c, const struct lang *const *in, uint32_t n,
                       uint64_t must) {
    bool same = c->n_in == n && c->must == must;

    for (uint32_t i = 0; same && i < n; i++)
        same = c->in[i] == in[i] || lang_equal(c->in[i], in[i]);
    return same;
}

/* Lists in @mask the different answers that undeclared keys can have. */
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

/* Makes the keys of one class. NULL: there are none, since all are too long, or the build has
 * failed. */
static struct expr *class_key(const struct keys *k, const struct lang *product, uint64_t mask) {
    struct build *b = k->s->b;
    uint64_t border = keys_counted(k) ? UINT64_C(2) << k->n : 0;
    const struct lang *l = lang_select(b, product, UINT64_MAX, mask, border);

    if (!border)
        return schema_share(k->s, lang_expr(b, l));
    struct expr *e = lang_within(b, l, JSON_KEY_MAX);

    if (!e || e->kind == EXPR_NEVER)
        return NULL;
    return e;
}

static int make_classes(const struct keys *k, const struct lang *const *in, uint32_t n,
                        uint64_t must, struct key_classes *c) {
    struct build *b = k->s->b;
    const struct lang *product = lang_product(b, in, n, must);
    uint64_t mask[CLASSES_MAX];

    if (!product || find_masks(k, product, must, mask, &c->n) < 0)
        return b->failed;
    c->n_in = n;
    c->must = must;
    c->in = build_alloc(b, c->n_in, sizeof(struct lang *));
    c->mask = build_alloc(b, MAX(c->n, 1u), sizeof(*c->mask));
    c->key = build_alloc(b, MAX(c->n, 1u), sizeof(struct expr *));
    if (!c->in || !c->mask || !c->key)
        return b->failed;
    assert(c->n <= CLASSES_MAX);
    memcpy(c->in, in, c->n_in * sizeof(struct lang *));
    memcpy(c->mask, mask, c->n * sizeof(*mask));
    for (uint32_t i = 0; !b->failed && i < c->n; i++) {
        if (key_allowed(k, mask[i]))
            c->key[i] = class_key(k, product, mask[i]);
    }
    return b->failed;
}

/* Returns the classes of @k and @declared, and makes them when they are new. NULL: the build has
 * failed. */
static const struct key_classes *keys_find_classes(const struct keys *k,
                                                   const struct lang *declared) {
    struct schema *s = k->s;
    const struct lang *in[LANG_MAX];
    struct key_classes *c = s->key_classes;
    uint64_t must = 0;
    uint32_t n = k->n;

    if (!declared)
        return NULL;
    if (n + 1 + keys_counted(k) > LANG_MAX)
        return failed(build_too_complex(s->b, "more than %u patterns for the names of one object",
                                        LANG_MAX - 1));
    for (uint32_t i = 0; i < k->n; i++) {
        in[i] = k->rule[i].lang;
        must |= (uint64_t)(k->rule[i].kind <= KEY_FORM) << i;
    }
    in[n++] = declared;
    if (keys_counted(k) && !(in[n++] = lang_texts(s->b)))
        return NULL;
    while (c && build_work(s->b, k->n) == 0 && !same_langs(c, in, n, must))
        c = c->next;
    if (c)
        return c;
    c = build_alloc(s->b, 1, sizeof(*c));
    if (!c || make_classes(k, in, n, must, c) < 0)
        return NULL;
    c->next = s->key_classes;
    return s->key_classes = c;
}

/* Returns whether a name for which there is no rule is allowed, as far as its schemas are not
 * looked into. */
static bool allows_undeclared(const struct keys *k) {
    struct place *v;
    uint32_t n;
    bool open = false;

    if (class_places(k, 0, &v, &n, &open) < 0)
        return false;
    for (uint32_t i = 0; i < n; i++)
        open = open && !yyjson_is_false(v[i].v);
    return open;
}

struct expr *keys_rest(const struct keys *k, const struct lang *declared, struct expr *plain_key,
                       struct expr **some) {
    struct build *b = k->s->b;
    struct expr_vec all = {0}, one[LANG_MAX] = {{0}};

    if (plain_key)
        return class_member(k, 0, plain_key, (struct place){0});
    if (k->unruled && !allows_undeclared(k))
        return NULL;
    const struct key_classes *c = keys_find_classes(k, declared);

    for (uint32_t i = 0; c && !b->failed && i < c->n; i++) {
        struct expr *m =
            c->key[i] ? class_member(k, c->mask[i], c->key[i], (struct place){0}) : NULL;

        if (m)
            expr_vec_add(b, &all, m);
        for (uint32_t j = 0; m && j < k->f->n_some; j++) {
            struct place value = schema_at(k->s, k->f->some[j], "value");
            struct expr *x = key_is_some(k, c->mask[i], j)
                                 ? class_member(k, c->mask[i], c->key[i], value)
                                 : NULL;

            if (x)
                expr_vec_add(b, &one[j], x);
        }
    }
    for (uint32_t j = 0; j < k->f->n_some; j++)
        some[j] = expr_alt_of(b, &one[j]);
    if (!all.n)
        return NULL;
    return expr_alt_of(b, &all);
}
