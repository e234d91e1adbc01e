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
#include "base/json_read.h"

#define PARTS_MAX 65536

struct grammar_builder {
    struct build b;
    struct err err;
    struct expr_vec part;
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
static struct expr *literal(struct build *b, const char *text, size_t len) {
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
        b->strings_lang[i] = NULL;
    b->strings = NULL;
    b->stop = arena_strndup(&b->arena, stop, strlen(stop));
    if (!b->stop)
        return build_no_memory(b);
    if (!*stop)
        return build_invalid(b, "the text that ends a string is empty");
    b->mark = literal(b, stop, strlen(stop));
    b->text = text_without(b, stop, strlen(stop));
    return b->failed;
}

static struct expr *read_source(struct build *b, const struct grammar_source *src) {
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

static int finish(struct grammar **out, struct build *b, struct expr *root) {
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
    int r = finish(out, &b, read_source(&b, src));

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

/* Adds @e to the parts of the builder and returns its number, GRAMMAR_NO_PART for NULL. */
static grammar_part add_part(struct grammar_builder *b, struct expr *e) {
    if (b->part.n >= PARTS_MAX)
        build_too_complex(&b->b, "more than %d parts", PARTS_MAX);
    else
        expr_vec_add(&b->b, &b->part, e);
    return b->b.failed ? GRAMMAR_NO_PART : (grammar_part)b->part.n - 1;
}

static struct expr *part_at(struct grammar_builder *b, grammar_part part) {
    if (b->b.failed)
        return NULL;
    assert(part >= 0 && (uint32_t)part < b->part.n);
    return b->part.v[part];
}

grammar_part grammar_literal(struct grammar_builder *b, const char *text, size_t len) {
    return add_part(b, literal(&b->b, text, len));
}

/* Makes the source a rule of its own, so that its states exist once however often the part is
 * used. */
grammar_part grammar_part_of(struct grammar_builder *b, const struct grammar_source *src) {
    return add_part(b, expr_rule(&b->b, read_source(&b->b, src)));
}

static grammar_part combine(struct grammar_builder *b, const grammar_part *part, size_t n,
                            bool either) {
    struct expr_vec v = {0};

    for (size_t i = 0; i < n && !b->b.failed; i++)
        expr_vec_add(&b->b, &v, part_at(b, part[i]));
    return add_part(b, either ? expr_alt_of(&b->b, &v) : expr_seq_of(&b->b, &v));
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

    if (separator == GRAMMAR_NO_PART || max == 0)
        return add_part(b, expr_repeat(&b->b, x, min, max));
    sep = part_at(b, separator);
    uint32_t more = max == NO_MAX ? NO_MAX : max - 1;
    struct expr *rest = expr_repeat(&b->b, expr_seq2(&b->b, sep, x), min ? min - 1 : 0, more);
    struct expr *all = expr_seq2(&b->b, x, rest);

    return add_part(b, min ? all : expr_optional(&b->b, all));
}

grammar_part grammar_free_text(struct grammar_builder *b, const char *stop, size_t len) {
    if (b->b.failed)
        return GRAMMAR_NO_PART;
    b->b.is_schema = true; /* classes are made when needed: tools may have many such texts */
    return add_part(b, text_without(&b->b, stop, len));
}

int grammar_build(struct grammar **out, struct grammar_builder *b, grammar_part root,
                  struct err *err) {
    int r = finish(out, &b->b, part_at(b, root));

    if (r < 0 && err)
        *err = b->err;
    return r;
}
