/*
 * JSON as expressions: strings, numbers, white space, any value; and the notations that some models
 * write calls in instead, which differ in strings and keys alone:
 *
 *      JSON     {"key": "te\"xt", "n": [1]}
 *      Gemma's  {key:<|"|>te"xt<|"|>,n:[1]}     keys as far as they need no quotes
 *      bare     te"xt                          a string, up to a tag that follows it
 *      call     key="te\"xt", n=[1]            members of an object, with values as in JSON
 */

#include <assert.h>
#include <string.h>

#include "grammar/expr/expr.h"

/* The number of digits is bounded: models otherwise write 1.0000... until their budget ends, and
 * most JSON readers take 1e999 for no number. */
#define NUMBER_INT "-?(0|[1-9][0-9]{0,19})"
#define NUMBER NUMBER_INT "(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?"

static const char SIMPLE_ESCAPES[] = "\"\\/bfnrt";

/* Makes one character of a JSON string in any spelling: UTF-8 without quote, backslash and
 * controls, or an escape, where \u of a high surrogate must come before one of a low surrogate. */
static struct expr *any_spelling(struct build *b) {
    struct cp_set *plain = build_alloc(b, 1, sizeof(*plain));

    if (!plain || cp_set_add(b, plain, 0, 0x1f) < 0 || cp_set_add(b, plain, '"', '"') < 0 ||
        cp_set_add(b, plain, '\\', '\\') < 0 || cp_set_invert(b, plain) < 0)
        return NULL;
    struct cp_set *simple = build_alloc(b, 1, sizeof(*simple));

    for (const char *p = SIMPLE_ESCAPES; simple && *p; p++) {
        if (cp_set_add(b, simple, (uint8_t)*p, (uint8_t)*p) < 0)
            return NULL;
    }
    if (!simple)
        return NULL;
    cp_set_normalize(simple);
    struct expr *u = regex_of(b,
                              "u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
                              "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})",
                              CHARS_TEXT);
    struct expr *escape =
        expr_seq2(b, expr_str(b, "\\"), expr_alt2(b, expr_chars(b, simple, CHARS_TEXT), u));

    return expr_alt2(b, expr_chars(b, plain, CHARS_TEXT), escape);
}

struct expr *json_char_unshared(struct build *b) {
    struct expr *e = any_spelling(b);

    if (e)
        e->atom = true;
    return e;
}

struct expr *json_char(struct build *b) {
    struct expr **e = &b->shared_atom[SHARED_JSON_CHARS];

    if (!*e)
        *e = json_char_unshared(b);
    assert(!*e || (*e)->atom);
    return *e;
}

struct expr *json_canonical_char(struct build *b) {
    struct expr **e = &b->shared_atom[SHARED_JSON_CANONICAL];

    if (!*e)
        *e = expr_any_char(b, CHARS_JSON);
    return *e;
}

struct expr *json_quoted(struct build *b, struct expr *chars) {
    switch (b->notation) {
    case NOTATION_BARE:
        return chars;
    case NOTATION_GEMMA:
        return expr_seq3(b, b->mark, chars, b->mark);
    default:
        return expr_seq3(b, expr_str(b, "\""), chars, expr_str(b, "\""));
    }
}

struct expr *json_any_string(struct build *b, uint32_t min, uint32_t max) {
    assert(b->notation == NOTATION_JSON);
    return json_quoted(b, expr_repeat(b, json_char(b), min, max));
}

/* Makes a string of any characters and length. */
static struct expr *any_text(struct build *b) {
    if (b->notation == NOTATION_JSON)
        return json_any_string(b, 0, NO_MAX);
    return json_quoted(b, b->text);
}

int json_escape(struct build *b, const char *s, size_t len, uint8_t **out, size_t *n) {
    static const char HEX[] = "0123456789abcdef";
    size_t k = 0, most = len + 1;

    for (size_t i = 0; i < len; i++)
        most += (uint8_t)s[i] < 0x20 ? 5 : s[i] == '"' || s[i] == '\\';
    uint8_t *p = build_alloc(b, most, 1);

    if (!p)
        return b->failed;
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];
        const char *short_form = c && c < 0x20 ? strchr("\bb\ff\nn\rr\tt", c) : NULL;

        if (c == '"' || c == '\\') {
            p[k++] = '\\';
            p[k++] = c;
        } else if (short_form) {
            p[k++] = '\\';
            p[k++] = (uint8_t)short_form[1];
        } else if (c < 0x20) {
            memcpy(p + k, "\\u00", 4);
            p[k + 4] = (uint8_t)HEX[c >> 4];
            p[k + 5] = (uint8_t)HEX[c & 15];
            k += 6;
        } else {
            p[k++] = c;
        }
    }
    assert(k < most);
    *out = p;
    *n = k;
    return build_work(b, len);
}

int json_spell(struct build *b, const char *s, size_t len, uint8_t **out, size_t *n) {
    if (b->notation == NOTATION_JSON)
        return json_escape(b, s, len, out, n);
    *out = build_alloc(b, len + 1, 1);
    *n = len;
    if (!*out)
        return b->failed;
    memcpy(*out, s, len);
    return build_work(b, len);
}

/* Makes a string that is written as it is. */
static struct expr *plain_literal(struct build *b, const char *s, size_t len) {
    if (memmem(s, len, b->stop, strlen(b->stop)))
        return expr_never(b);
    return json_quoted(b, expr_bytes(b, s, len));
}

struct expr *json_literal(struct build *b, const char *s, size_t len) {
    uint8_t *text, *quoted;
    size_t n;

    if (b->notation != NOTATION_JSON)
        return plain_literal(b, s, len);
    if (json_escape(b, s, len, &text, &n) < 0)
        return NULL;
    quoted = build_alloc(b, n + 2, 1);
    if (!quoted)
        return NULL;
    quoted[0] = quoted[n + 1] = '"';
    memcpy(quoted + 1, text, n);
    return expr_bytes(b, quoted, n + 2);
}

#define PLAIN_KEY_MAX 256

bool json_key_fits(const struct build *b, const char *s, size_t len) {
    const char *never = b->notation == NOTATION_CALL ? "=" : "{}[],:";

    if (b->notation == NOTATION_JSON)
        return true;
    if (len == 0 || len > PLAIN_KEY_MAX || strchr(" \"'<)", s[0]) || s[len - 1] == ' ')
        return false;
    for (size_t i = 0; i < len; i++) {
        if ((uint8_t)s[i] < 0x20 || strchr(never, s[i]))
            return false;
    }
    return true;
}

static const char *colon_of(const struct build *b) {
    if (b->notation == NOTATION_CALL)
        return "=";
    return ":";
}

struct expr *json_key(struct build *b, const char *s, size_t len) {
    if (b->notation == NOTATION_JSON)
        return json_literal(b, s, len);
    uint8_t *text = build_alloc(b, len + 1, 1);

    if (!text)
        return NULL;
    memcpy(text, s, len);
    text[len] = (uint8_t)*colon_of(b);
    return expr_bytes(b, text, len + 1);
}

struct expr *json_key_of(struct build *b, struct expr *chars) {
    if (b->notation == NOTATION_JSON)
        return json_quoted(b, chars);
    return expr_seq2(b, chars, expr_str(b, colon_of(b)));
}

/* Keys of undeclared members, with @more characters behind the first, for Gemma's without the last
 * one. */
#define GEMMA_KEY(more)                                                                            \
    "[^\\x00-\\x20{}\\[\\],:<\"')]([^\\x00-\\x1f{}\\[\\],:<]" more "[^\\x00-\\x20{}\\[\\],:<])?"
#define CALL_KEY(more) "[A-Za-z_][A-Za-z0-9_.-]" more

struct expr *json_any_key(struct build *b) {
    const char *regex = b->notation == NOTATION_CALL ? CALL_KEY("{0,63}") : GEMMA_KEY("{0,62}");

    if (b->notation == NOTATION_JSON)
        return json_any_string(b, 0, NO_MAX);
    return json_key_of(b, regex_of(b, regex, CHARS_TEXT));
}

struct expr *json_long_key(struct build *b) {
    const char *regex = b->notation == NOTATION_CALL ? CALL_KEY("*") : GEMMA_KEY("*");

    assert(b->notation != NOTATION_JSON);
    return json_key_of(b, regex_of(b, regex, CHARS_TEXT));
}

/* Makes white space: nothing, a blank, or one or two newlines with an indent. */
static struct expr *make_space(struct build *b) {
    struct cp_set *blank = build_alloc(b, 1, sizeof(*blank));

    if (!blank || cp_set_add(b, blank, '\t', '\t') < 0 || cp_set_add(b, blank, ' ', ' ') < 0)
        return NULL;
    struct expr *indent = expr_repeat(b, expr_chars(b, blank, CHARS_TEXT), 0, b->limits.max_indent);
    struct expr *lines = expr_repeat(b, expr_str(b, "\n"), 1, 2);

    return expr_optional(b, expr_alt2(b, expr_str(b, " "), expr_seq2(b, lines, indent)));
}

struct expr *json_space(struct build *b) {
    bool compact = b->flags & GRAMMAR_COMPACT;
    struct expr **e = &b->space[compact];

    if (b->notation == NOTATION_CALL)
        return expr_empty(b);
    if (*e)
        return *e;
    if (compact)
        *e = expr_empty(b);
    else
        *e = make_space(b);
    return *e;
}

struct expr *json_colon_space(struct build *b) {
    bool compact = b->flags & GRAMMAR_COMPACT;
    struct expr **e = &b->colon[compact];

    if (b->notation == NOTATION_GEMMA || b->notation == NOTATION_CALL)
        return expr_empty(b);
    if (*e)
        return *e;
    if (compact)
        *e = expr_str(b, ":");
    else
        *e = expr_seq2(b, expr_str(b, ":"), expr_optional(b, expr_str(b, " ")));
    return *e;
}

struct expr *json_comma(struct build *b) {
    struct expr **e = &b->comma[(b->flags & GRAMMAR_COMPACT) != 0];

    if (b->notation == NOTATION_CALL)
        return expr_str(b, ", ");
    if (!*e)
        *e = expr_seq2(b, expr_str(b, ","), json_space(b));
    return *e;
}

/* Returns a call of the rule of @regex, which the first call makes: numbers have more states than
 * most schemas around them, so all numbers of a kind share one rule. */
static struct expr *shared_rule(struct build *b, uint32_t *rule, const char *regex) {
    assert(*rule == NO_RULE || *rule < b->n_rules);
    if (*rule != NO_RULE)
        return expr_call(b, *rule);
    struct expr *call = expr_rule(b, regex_of(b, regex, CHARS_TEXT));

    *rule = call ? call->id : NO_RULE;
    return call;
}

struct expr *json_number(struct build *b) {
    return shared_rule(b, &b->number, NUMBER);
}

struct expr *json_integer(struct build *b) {
    return shared_rule(b, &b->integer, NUMBER_INT);
}

struct expr *json_word(struct build *b, const char *word) {
    const char *python = "None";

    if (*word == 't')
        python = "True";
    else if (*word == 'f')
        python = "False";
    if (b->flags & GRAMMAR_PYTHON)
        return expr_alt2(b, expr_str(b, word), expr_str(b, python));
    return expr_str(b, word);
}

/* Makes an array or object: open (item (comma item)*)? close. */
static struct expr *collection(struct build *b, const char *open, struct expr *item,
                               const char *close) {
    struct expr *more = expr_repeat(b, expr_seq2(b, json_comma(b), item), 0, NO_MAX);
    struct expr *items = expr_seq3(b, item, more, json_space(b));

    return expr_seq(b,
                    (struct expr *[]){expr_str(b, open), json_space(b), expr_optional(b, items),
                                      expr_str(b, close)},
                    4);
}

static struct expr *any_rule(struct build *b, bool object) {
    int k = (b->flags & GRAMMAR_COMPACT ? 1 : 0) + (b->flags & GRAMMAR_PYTHON ? 2 : 0) +
            (b->notation == NOTATION_GEMMA ? 4 : 0);

    if (b->any_value[k] == NO_RULE) {
        uint32_t value, obj;

        if (build_rule(b, NULL, &value) < 0 || build_rule(b, NULL, &obj) < 0)
            return NULL;
        b->any_value[k] = value;
        b->any_object[k] = obj;
        struct expr *pair = expr_seq3(b, json_any_key(b), json_colon_space(b), expr_call(b, value));
        struct expr *object_body = collection(b, "{", pair, "}");
        struct expr *kinds[] = {
            expr_call(b, obj),    collection(b, "[", expr_call(b, value), "]"),
            any_text(b),          json_number(b),
            json_word(b, "true"), json_word(b, "false"),
            json_word(b, "null"),
        };
        struct expr *body = expr_alt(b, kinds, ARRAY_SIZE(kinds));

        if (!body || !object_body)
            return NULL;
        b->rule[obj].body = object_body;
        b->rule[value].body = body;
    }
    return expr_call(b, object ? b->any_object[k] : b->any_value[k]);
}

struct expr *json_any(struct build *b) {
    return any_rule(b, false);
}

struct expr *json_any_object(struct build *b) {
    return any_rule(b, true);
}
