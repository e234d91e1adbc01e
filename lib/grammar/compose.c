/*
 * compose - the public ways to a grammar: one source, or parts put together.
 *
 * All parts of a builder are expressions of one build: they share its limits, and equal pieces
 * (strings, numbers, patterns) of different sources are the same rules. A source becomes a rule of
 * its own, since its part may be used more than once.
 *
 * Parts that are made of the same text or of the same parts are the same part (part_known()). The
 * tools of a request have many properties of the same type, so a thousand tools have a few hundred
 * different values; each is one rule, whose states and token classes exist once.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <yyjson.h>

#include "base/buf.h"
#include "base/json_read.h"
#include "grammar/automaton/automaton.h"

#define PARTS_MAX (1u << 20)
#define RULE_SIZE 4   /* states; smaller parts are copied */
#define SAME_SIZE 256 /* states: larger parts are not compared, which takes long */

/* What a part is made of. Parts of a source have its enum grammar_kind. */
enum { PART_LITERAL = 64, PART_FREE_TEXT, PART_SEQUENCE, PART_EITHER, PART_REPEAT, PART_MEMBERS };

/* Names what a part was made of: a text, or the numbers of other parts. */
struct part_key {
    const void *bytes;
    size_t len;
    unsigned kind, flags;
    grammar_part part;
};

struct grammar_builder {
    struct build b;
    struct err err;
    struct expr_vec part;
    /* by the order of making; in the arena */
    struct part_key *key;
    uint32_t n_keys, cap_keys;
    /* of key[] */
    struct hash_index known;
    /* of b.rule[], those of small parts */
    struct hash_index rules;
    /* sources have different params */
    bool mixed;
};

/* Reads a JSON array of strings; a text matches if it equals one of them. */
static struct expr *choice_read(struct build *b, const char *s, size_t len) {
    yyjson_doc *doc;
    int r = json_parse(&doc, s, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    struct expr_vec v = {0};

    if (r == -ENOMEM)
        return failed(build_no_memory(b));
    if (!yyjson_is_arr(root) || yyjson_arr_size(root) == 0)
        build_invalid(b, "choice must be a JSON array of at least one string");
    JSON_EACH_AT(i, item, root) {
        if (b->failed)
            break;
        if (!yyjson_is_str(item))
            build_invalid(b, "/%zu: must be a string", i);
        else
            expr_vec_add(b, &v, expr_bytes(b, json_text(item), json_len(item)));
    }
    yyjson_doc_free(doc);
    return expr_alt_of(b, &v);
}

#define GEMMA_MARK "<|\"|>"

/* Makes @text, in which special tokens of the vocabulary are these tokens. */
static struct expr *part_literal(struct build *b, const char *text, size_t len) {
    struct expr_vec v = {0};
    size_t from = 0, i = 0;

    while (!b->failed && b->vocab && i < len) {
        size_t n;
        int32_t token = vocab_special_at(b->vocab, text + i, len - i, &n);

        if (token < 0) {
            i++;
            continue;
        }
        expr_vec_add(b, &v, expr_bytes(b, text + from, i - from));
        expr_vec_add(b, &v, expr_token(b, token));
        from = i += n;
    }
    expr_vec_add(b, &v, expr_bytes(b, text + from, len - from));
    return expr_seq_of(b, &v);
}

/* Sets how the values of @src are written. What was made for another text that ends strings is
 * forgotten. */
static int set_notation(struct build *b, const struct grammar_source *src) {
    const char *stop = src->stop;

    b->notation = stop ? NOTATION_BARE : NOTATION_JSON;
    if (src->flags & GRAMMAR_CALL) {
        b->notation = NOTATION_CALL;
        stop = "=";
    } else if (src->flags & GRAMMAR_GEMMA) {
        b->notation = NOTATION_GEMMA;
        b->flags |= GRAMMAR_COMPACT;
        stop = GEMMA_MARK;
    }
    if (!stop || (b->stop && strcmp(b->stop, stop) == 0))
        return b->failed;
    for (int i = NOTATION_JSON + 1; i < NOTATIONS; i++)
        b->strings_lang[i] = b->keys_lang[i] = NULL;
    b->strings = NULL;
    b->lengths = NULL;
    b->stop = arena_strndup(&b->arena, stop, strlen(stop));
    if (!b->stop)
        return build_no_memory(b);
    if (!*stop)
        return build_invalid(b, "the text that ends a string is empty");
    b->mark = part_literal(b, stop, strlen(stop));
    b->text = text_without(b, stop, strlen(stop));
    return b->failed;
}

static struct expr *part_read(struct build *b, const struct grammar_source *src) {
    enum char_mode mode = src->flags & GRAMMAR_QUOTED ? CHARS_JSON : CHARS_TEXT;

    if (b->failed)
        return NULL;
    b->param = src->param;
    b->property = src->property;
    b->flags = src->flags;
    if (set_notation(b, src) < 0)
        return NULL;
    if (src->len > b->limits.max_source)
        return failed(build_too_complex(b, "the text has %zu bytes; at most %zu are allowed",
                                        src->len, b->limits.max_source));
    switch (src->kind) {
    case GRAMMAR_JSON_SCHEMA:
        return schema_read(b, src->text, src->len);
    case GRAMMAR_JSON_OBJECT:
        return json_any_object(b);
    case GRAMMAR_REGEX:
        return regex_read(b, src->text, src->len, mode);
    case GRAMMAR_EBNF:
        return ebnf_read(b, src->text, src->len);
    case GRAMMAR_CHOICE:
        return choice_read(b, src->text, src->len);
    case GRAMMAR_LARK:
        return lark_read(b, src->text, src->len, mode);
    }
    return failed(build_invalid(b, "unknown kind of grammar"));
}

static int compose_finish(struct grammar **out, struct build *b, struct expr *root) {
    uint32_t rule;

    if (!root || build_rule(b, NULL, &rule) < 0)
        return b->failed;
    b->rule[rule].body = root;
    return automaton_new(out, b, rule);
}

int grammar_compile(struct grammar **out, const struct grammar_vocab *v,
                    const struct grammar_source *src, const struct grammar_limits *limits,
                    struct err *err) {
    struct build b;

    build_init(&b, v, limits, err);
    int r = compose_finish(out, &b, part_read(&b, src));

    build_deinit(&b);
    return r;
}

int grammar_builder_new(struct grammar_builder **out, const struct grammar_vocab *v,
                        const struct grammar_limits *limits) {
    struct grammar_builder *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    build_init(&b->b, v, limits, &b->err);
    *out = b;
    return 0;
}

struct grammar_builder *grammar_builder_free(struct grammar_builder *b) {
    if (b) {
        hash_index_deinit(&b->known);
        hash_index_deinit(&b->rules);
        build_deinit(&b->b);
        free(b);
    }
    return NULL;
}

/* Adds @e to the parts of the builder and returns its number, GRAMMAR_NO_PART for NULL. */
static grammar_part part_add(struct grammar_builder *b, struct expr *e) {
    if (b->part.n >= PARTS_MAX)
        build_too_complex(&b->b, "more than %d parts", PARTS_MAX);
    else
        expr_vec_add(&b->b, &b->part, e);
    if (b->b.failed)
        return GRAMMAR_NO_PART;
    return (grammar_part)b->part.n - 1;
}

static struct expr *compose_part_at(struct grammar_builder *b, grammar_part part) {
    if (b->b.failed)
        return NULL;
    assert(part >= 0 && (uint32_t)part < b->part.n);
    return b->part.v[part];
}

static uint32_t part_hash(const struct part_key *k) {
    uint64_t h = hash_step(k->kind, k->flags);

    return (uint32_t)(hash_step(h, bytes_hash(k->bytes, k->len)) >> 16);
}

/* Looks for a part that was made of @k. Returns true with k->part, which is GRAMMAR_NO_PART after
 * an error. */
static bool part_known(struct grammar_builder *b, struct part_key *k) {
    k->part = GRAMMAR_NO_PART;
    if (build_work(&b->b, 1 + k->len / 8) < 0 || b->b.failed)
        return true;
    HASH_INDEX_EACH(b->known, part_hash(k), i) {
        const struct part_key *q = &b->key[i];

        if (q->kind == k->kind && q->flags == k->flags && q->len == k->len &&
            memcmp(q->bytes, k->bytes, k->len) == 0) {
            k->part = q->part;
            return true;
        }
    }
    return false;
}

/* Adds @e, which was made of @k, to the parts and returns its number. */
static grammar_part part_insert(struct grammar_builder *b, const struct part_key *k,
                                struct expr *e) {
    struct part_key own = *k;
    char *copy = arena_strndup(&b->b.arena, k->bytes, k->len);

    own.part = part_add(b, e);
    own.bytes = copy;
    if (!copy || build_grow(&b->b, &b->key, b->n_keys, &b->cap_keys, 64, sizeof(*b->key)) < 0 ||
        hash_index_add(&b->known, part_hash(k), b->n_keys) < 0)
        build_no_memory(&b->b);
    if (b->b.failed)
        return GRAMMAR_NO_PART;
    b->key[b->n_keys++] = own;
    return own.part;
}

grammar_part grammar_literal(struct grammar_builder *b, const char *text, size_t len) {
    struct part_key k = {.bytes = text, .len = len, .kind = PART_LITERAL};

    if (part_known(b, &k))
        return k.part;
    return part_insert(b, &k, part_literal(&b->b, text, len));
}

/* Hashes @e, or as much of it as *@left parts are; equal expressions have equal hashes. Schemas of
 * tools begin alike, so it looks at all of an expression. */
static uint64_t part_expr_hash(const struct expr *e, uint64_t h, uint32_t *left) {
    bool list = e->kind == EXPR_LIST;
    bool inner = list || e->kind == EXPR_SEQ || e->kind == EXPR_ALT || e->kind == EXPR_REPEAT;
    uint32_t n = inner ? e->n : 0;

    if (list)
        n = e->list->n;
    h = hash_step(h, (uint64_t)e->kind << 32 | e->id);
    h = hash_step(h, (uint64_t)e->n << 32 | e->size);
    if (e->kind == EXPR_BYTES)
        h = hash_step(h, bytes_hash(e->bytes, e->n));
    for (uint32_t i = 0; i<n && * left> 0; i++) {
        --*left;
        h = part_expr_hash(list ? e->list->member[i] : e->child[i], h, left);
    }
    if (list && e->list->rest && *left > 0) {
        --*left;
        h = part_expr_hash(e->list->rest, h, left);
    }
    return h;
}

/* Returns a call of the rule of @e, which equal expressions share, or @e where a copy takes no more
 * states. Expressions that are large are compared by where they lie. */
static struct expr *part_rule(struct grammar_builder *b, struct expr *e) {
    uint32_t rule;

    if (!e || e->kind == EXPR_CALL || e->size < RULE_SIZE || e->kind == EXPR_NEVER)
        return e;
    bool small = e->size <= SAME_SIZE;
    uint32_t left = SAME_SIZE, hash = 0;

    if (small && build_work(&b->b, e->size) == 0)
        hash = (uint32_t)(part_expr_hash(e, 0, &left) >> 16);

    HASH_INDEX_EACH(b->rules, hash, i) {
        if (!small || build_work(&b->b, e->size) < 0)
            break;
        if (expr_same(b->b.rule[i].body, e))
            return expr_call(&b->b, i);
    }
    if (build_rule_of(&b->b, e, &rule) < 0)
        return NULL;
    if (small && hash_index_add(&b->rules, hash, rule) < 0)
        return failed(build_no_memory(&b->b));
    return expr_call(&b->b, rule);
}

/* Writes to *@out what @src is made of: its texts, each with its length. */
static int part_source(struct buf *out, const struct grammar_source *src) {
    const char *const text[] = {src->text, src->stop, src->property};
    const size_t len[] = {src->len, src->stop ? strlen(src->stop) : SIZE_MAX,
                          src->property ? strlen(src->property) : SIZE_MAX};
    int r = buf_add(out, len, sizeof(len));

    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(text); i++) {
        if (text[i])
            r = buf_add(out, text[i], len[i]);
    }
    return r;
}

/* Makes the source a rule of its own, so that its states exist once however often the part is
 * used. */
grammar_part grammar_part_of(struct grammar_builder *b, const struct grammar_source *src) {
    CLEANUP(buf_deinit) struct buf of = {.max = SIZE_MAX};
    const char *before = b->b.param;

    if (part_source(&of, src) < 0)
        build_no_memory(&b->b);
    if (b->b.failed)
        return GRAMMAR_NO_PART;
    struct part_key k = {.bytes = of.data, .len = of.len, .kind = src->kind, .flags = src->flags};

    b->mixed = b->mixed || (before && src->param && strcmp(before, src->param) != 0);
    if (part_known(b, &k))
        return k.part;
    return part_insert(b, &k, part_rule(b, part_read(&b->b, src)));
}

static grammar_part part_combine(struct grammar_builder *b, const grammar_part *part, size_t n,
                                 bool either) {
    struct part_key k = {
        .bytes = part, .len = n * sizeof(*part), .kind = either ? PART_EITHER : PART_SEQUENCE};
    struct expr_vec v = {0};

    if (part_known(b, &k))
        return k.part;
    for (size_t i = 0; i < n && !b->b.failed; i++)
        expr_vec_add(&b->b, &v, compose_part_at(b, part[i]));
    if (either)
        return part_insert(b, &k, expr_alt_of(&b->b, &v));
    return part_insert(b, &k, expr_seq_of(&b->b, &v));
}

grammar_part grammar_sequence(struct grammar_builder *b, const grammar_part *part, size_t n) {
    return part_combine(b, part, n, false);
}

grammar_part grammar_either(struct grammar_builder *b, const grammar_part *part, size_t n) {
    return part_combine(b, part, n, true);
}

static struct expr *part_repeated(struct build *b, struct expr *x, struct expr *sep, uint32_t min,
                                  uint32_t max) {
    if (!sep || max == 0)
        return expr_repeat(b, x, min, max);
    uint32_t more = max == NO_MAX ? NO_MAX : max - 1;
    struct expr *rest = expr_repeat(b, expr_seq2(b, sep, x), min ? min - 1 : 0, more);
    struct expr *all = expr_seq2(b, x, rest);

    if (min)
        return all;
    return expr_optional(b, all);
}

grammar_part grammar_repeat(struct grammar_builder *b, grammar_part part, grammar_part separator,
                            uint32_t min, uint32_t max) {
    const uint32_t of[] = {(uint32_t)part, (uint32_t)separator, min, max};
    struct part_key k = {.bytes = of, .len = sizeof(of), .kind = PART_REPEAT};

    if (part_known(b, &k))
        return k.part;
    struct expr *sep = separator == GRAMMAR_NO_PART ? NULL : compose_part_at(b, separator);

    return part_insert(b, &k, part_repeated(&b->b, compose_part_at(b, part), sep, min, max));
}

/* Makes the text a rule of its own, as that of a source. */
grammar_part grammar_free_text(struct grammar_builder *b, const char *stop, size_t len) {
    struct part_key k = {.bytes = stop, .len = len, .kind = PART_FREE_TEXT};

    if (part_known(b, &k))
        return k.part;
    b->b.is_schema = true; /* classes are made when needed: tools may have many such texts */
    return part_insert(b, &k, part_rule(b, text_without(&b->b, stop, len)));
}

/* ---- members ---- */

/* Makes at least one of the members @m. Optional ones that no text fits are left out. */
static struct expr *members_list(struct grammar_builder *b, const struct grammar_member *m,
                                 size_t n, struct expr *between) {
    struct expr_list *list = build_alloc(&b->b, 1, sizeof(*list));
    struct expr *e = expr_empty(&b->b);

    if (!list || !e || !between)
        return NULL;
    *list = (struct expr_list){.max = NO_MAX, .min = 1, .separator = between, .after = e};
    list->member = build_alloc(&b->b, n, sizeof(*list->member));
    list->optional = build_alloc(&b->b, n, sizeof(*list->optional));
    for (size_t i = 0; i < n && !b->b.failed; i++) {
        struct expr *value = part_rule(b, compose_part_at(b, m[i].value));
        struct expr *one = expr_seq2(&b->b, compose_part_at(b, m[i].key), value);

        if (!one || (one->kind == EXPR_NEVER && m[i].optional))
            continue;
        list->member[list->n] = one;
        list->optional[list->n++] = m[i].optional;
        e->size = MIN(e->size + one->size, 1u << 30);
    }
    if (b->b.failed || list->n == 0)
        return expr_never(&b->b);
    list->after = expr_empty(&b->b);
    e->kind = EXPR_LIST;
    e->list = list;
    if (!list->after)
        return NULL;
    return e;
}

static struct expr *members_make(struct grammar_builder *b, const struct grammar_member *m,
                                 size_t n, grammar_part before) {
    struct expr *first = part_rule(b, compose_part_at(b, before));
    struct expr *all = expr_seq2(&b->b, first, members_list(b, m, n, first));
    bool optional = true;

    for (size_t i = 0; i < n; i++)
        optional = optional && m[i].optional;
    return part_rule(b, optional ? expr_optional(&b->b, all) : all);
}

grammar_part grammar_members(struct grammar_builder *b, const struct grammar_member *m, size_t n,
                             grammar_part before) {
    CLEANUP(freep) int32_t *of = malloc((3 * n + 1) * sizeof(*of));
    struct part_key k = {.bytes = of, .len = (3 * n + 1) * sizeof(*of), .kind = PART_MEMBERS};

    if (!of)
        build_no_memory(&b->b);
    if (b->b.failed)
        return GRAMMAR_NO_PART;
    of[0] = before;
    for (size_t i = 0; i < n; i++) {
        of[3 * i + 1] = m[i].key;
        of[3 * i + 2] = m[i].value;
        of[3 * i + 3] = m[i].optional;
    }
    if (part_known(b, &k))
        return k.part;
    return part_insert(b, &k, members_make(b, m, n, before));
}

int grammar_build(struct grammar **out, struct grammar_builder *b, grammar_part root,
                  struct err *err) {
    if (b->mixed)
        b->b.param =
            NULL; /* what is refused from here on is the whole, and no source in particular */
    int r = compose_finish(out, &b->b, compose_part_at(b, root));

    if (r < 0 && err)
        *err = b->err;
    return r;
}
