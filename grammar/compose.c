/*
 * compose - the public ways to a grammar: one source, or parts put together.
 *
 * All parts of a builder are expressions of one build: they share its limits, and equal pieces
 * (strings, numbers, patterns) of different sources are the same rules. A source becomes a rule of
 * its own, since its part may be used more than once.
 */

#include "grammar/automaton/automaton.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <yyjson.h>
#include "base/json_value.h"

#define PARTS_MAX 65536

struct grammar_builder {
    struct build b;
    struct err err;
    struct expr_vec part;
    int failed; /* the first error */
};

/* A JSON array of strings. */
int choice_read(struct build *b, const char *s, size_t len, struct expr **out) {
    yyjson_doc *doc;
    int r = json_parse(&doc, s, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *item;
    struct expr_vec v = {0};
    size_t i, n;

    if (r == -ENOMEM)
        return r;
    r = 0;
    if (!yyjson_is_arr(root) || yyjson_arr_size(root) == 0)
        r = build_invalid(b, "choice must be a JSON array of at least one string");
    yyjson_arr_foreach(root, i, n, item) {
        if (r == 0 && !yyjson_is_str(item))
            r = build_invalid(b, "/%zu: must be a string", i);
        if (r == 0)
            r = expr_vec_add(b, &v, expr_bytes(b, json_text(item), json_len(item)));
    }
    yyjson_doc_free(doc);
    if (r == 0) {
        *out = expr_alt(b, v.v, v.n);
        r = *out ? 0 : build_no_memory(b);
    }
    return r;
}

static int read_source(struct build *b, const struct grammar_source *src, struct expr **out) {
    enum char_mode mode = src->flags & GRAMMAR_QUOTED ? CHARS_JSON : CHARS_TEXT;

    b->param = src->param;
    b->flags = src->flags;
    if (src->len > b->limits.max_source)
        return build_too_complex(b, "the text has %zu bytes; at most %zu are allowed", src->len,
                                 b->limits.max_source);
    switch (src->kind) {
    case GRAMMAR_JSON_SCHEMA:
        return schema_read(b, src->text, src->len, out);
    case GRAMMAR_JSON_OBJECT:
        *out = json_any_object(b);
        return *out ? 0 : build_no_memory(b);
    case GRAMMAR_REGEX:
        return regex_read(b, src->text, src->len, mode, REGEX_WHOLE, out);
    case GRAMMAR_EBNF:
        return ebnf_read(b, src->text, src->len, out);
    case GRAMMAR_CHOICE:
        return choice_read(b, src->text, src->len, out);
    case GRAMMAR_LARK:
        return lark_read(b, src->text, src->len, mode, out);
    }
    return build_invalid(b, "unknown kind of grammar");
}

static int finish(struct grammar **out, struct build *b, struct expr *root) {
    uint32_t rule;
    int r = build_rule(b, NULL, &rule);

    if (r < 0)
        return r;
    b->rule[rule].body = root;
    return automaton_new(out, b, rule);
}

int grammar_compile(struct grammar **out, const struct grammar_vocab *v,
                    const struct grammar_source *src, const struct grammar_limits *limits,
                    struct err *err) {
    struct build b;
    struct expr *root = NULL;

    build_init(&b, v, limits, err);
    int r = read_source(&b, src, &root);

    if (r == 0)
        r = finish(out, &b, root);
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
        build_deinit(&b->b);
        free(b);
    }
    return NULL;
}

/* Gives @e a number. NULL: the build has failed. */
static grammar_part add_part(struct grammar_builder *b, struct expr *e) {
    if (b->failed)
        return GRAMMAR_NO_PART;
    if (e && b->part.n >= PARTS_MAX)
        b->failed = build_too_complex(&b->b, "more than %d parts", PARTS_MAX);
    else
        b->failed = expr_vec_add(&b->b, &b->part, e);
    return b->failed ? GRAMMAR_NO_PART : (grammar_part)b->part.n - 1;
}

static struct expr *part_at(struct grammar_builder *b, grammar_part part) {
    if (b->failed)
        return NULL;
    assert(part >= 0 && (uint32_t)part < b->part.n);
    return b->part.v[part];
}

grammar_part grammar_literal(struct grammar_builder *b, const char *text, size_t len) {
    struct expr_vec v = {0};
    size_t from = 0, i = 0;

    while (!b->failed && b->b.vocab && i < len) {
        size_t n;
        int32_t token = vocab_special_at(b->b.vocab, text + i, len - i, &n);

        if (token < 0) {
            i++;
            continue;
        }
        b->failed = expr_vec_add(&b->b, &v, expr_bytes(&b->b, text + from, i - from));
        if (!b->failed)
            b->failed = expr_vec_add(&b->b, &v, expr_token(&b->b, token));
        from = i += n;
    }
    if (!b->failed)
        b->failed = expr_vec_add(&b->b, &v, expr_bytes(&b->b, text + from, len - from));
    return add_part(b, b->failed ? NULL : expr_seq(&b->b, v.v, v.n));
}

/* A source is a rule of its own, however often its part is used. */
grammar_part grammar_part_of(struct grammar_builder *b, const struct grammar_source *src) {
    struct expr *e = NULL;
    uint32_t rule;

    if (b->failed)
        return GRAMMAR_NO_PART;
    b->failed = read_source(&b->b, src, &e);
    if (!b->failed)
        b->failed = build_rule(&b->b, NULL, &rule);
    if (b->failed)
        return GRAMMAR_NO_PART;
    b->b.rule[rule].body = e;
    return add_part(b, expr_call(&b->b, rule));
}

static grammar_part combine(struct grammar_builder *b, const grammar_part *part, size_t n,
                            bool either) {
    struct expr_vec v = {0};

    for (size_t i = 0; i < n && !b->failed; i++)
        b->failed = expr_vec_add(&b->b, &v, part_at(b, part[i]));
    if (b->failed)
        return GRAMMAR_NO_PART;
    return add_part(b, either ? expr_alt(&b->b, v.v, v.n) : expr_seq(&b->b, v.v, v.n));
}

grammar_part grammar_sequence(struct grammar_builder *b, const grammar_part *part, size_t n) {
    return combine(b, part, n, false);
}

grammar_part grammar_either(struct grammar_builder *b, const grammar_part *part, size_t n) {
    return combine(b, part, n, true);
}

grammar_part grammar_repeat(struct grammar_builder *b, grammar_part part, grammar_part separator,
                            uint32_t min, uint32_t max) {
    struct expr *x = part_at(b, part), *sep;

    if (b->failed)
        return GRAMMAR_NO_PART;
    if (separator == GRAMMAR_NO_PART || max == 0)
        return add_part(b, expr_repeat(&b->b, x, min, max));
    sep = part_at(b, separator);
    uint32_t more = max == NO_MAX ? NO_MAX : max - 1;
    struct expr *rest = expr_repeat(&b->b, expr_seq2(&b->b, sep, x), min ? min - 1 : 0, more);
    struct expr *all = expr_seq2(&b->b, x, rest);

    return add_part(b, min ? all : expr_optional(&b->b, all));
}

grammar_part grammar_free_text(struct grammar_builder *b, const char *stop, size_t len) {
    struct expr *e;

    if (b->failed)
        return GRAMMAR_NO_PART;
    b->b.is_schema = true; /* many such texts may be in the calls of tools */
    b->failed = text_without(&b->b, stop, len, &e);
    return add_part(b, b->failed ? NULL : e);
}

int grammar_build(struct grammar **out, struct grammar_builder *b, grammar_part root,
                  struct err *err) {
    struct grammar *g = NULL;

    if (!b->failed)
        b->failed = finish(&g, &b->b, part_at(b, root));
    if (b->failed) {
        if (err)
            *err = b->err;
        return b->failed;
    }
    *out = g;
    return 0;
}
