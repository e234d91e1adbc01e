/*
 * constraint - compiles the constraint of a request: reads the JSON nodes that it carries
 * (docs/reference/grammars.md) and builds a grammar from them.
 *
 * The front makes the nodes, but what is in them comes from clients, so depth, number and length
 * are limited here as everywhere. Numbers are read as they are written, since the bounds of a
 * schema are exact, and a schema in a node is written as text again, since grammar.h takes sources
 * as text.
 */

#include <errno.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/try.h"
#include "grammar/constraint/private.h"

#define NODE_DEPTH_MAX 32

const struct grammar_limits CONSTRAINT_LIMITS = {
    .max_states = 1000000,
    .max_memory = (size_t)80 << 20,
    .max_bytes = (size_t)96 << 20,
};

struct reader {
    struct grammar_builder *b;
    struct err *err;
};

static int constraint_invalid(struct err *err, const char *what) {
    return err_set_code(err, 400, "grammar_invalid", NULL, "%s", what);
}

static int read_doc(yyjson_doc **out, const char *text, size_t len, size_t max, struct err *err) {
    if (len > max)
        return err_set_code(err, 400, "grammar_too_complex", NULL,
                            "the grammar has %zu bytes; at most %zu are allowed", len, max);
    int r = json_parse(out, text, len, YYJSON_READ_NUMBER_AS_RAW);
    if (r == -EINVAL)
        return constraint_invalid(err, "the grammar is not JSON");
    return r;
}

static const struct source_key {
    const char *key;
    enum grammar_kind kind;
} SOURCES[] = {
    {"json_schema", GRAMMAR_JSON_SCHEMA},
    {"json_object", GRAMMAR_JSON_OBJECT},
    {"regex", GRAMMAR_REGEX},
    {"ebnf", GRAMMAR_EBNF},
    {"choice", GRAMMAR_CHOICE},
    {"lark", GRAMMAR_LARK},
};

static const struct {
    const char *key;
    enum grammar_flags flag;
} FLAGS[] = {
    {"compact", GRAMMAR_COMPACT},     {"any_format", GRAMMAR_ANY_FORMAT},
    {"any_order", GRAMMAR_ANY_ORDER}, {"declared_only", GRAMMAR_DECLARED_ONLY},
    {"python", GRAMMAR_PYTHON},       {"quoted", GRAMMAR_QUOTED},
    {"gemma", GRAMMAR_GEMMA},         {"call", GRAMMAR_CALL},
};

static const struct source_key *constraint_find_source(yyjson_val *node) {
    for (size_t i = 0; i < ARRAY_SIZE(SOURCES); i++) {
        if (yyjson_obj_get(node, SOURCES[i].key))
            return &SOURCES[i];
    }
    return NULL;
}

static int constraint_read_source(struct reader *r, yyjson_val *node, const struct source_key *key,
                                  grammar_part *out) {
    yyjson_val *v = yyjson_obj_get(node, key->key);
    CLEANUP(freep) char *text = NULL;
    struct grammar_source src = {.kind = key->kind,
                                 .param = json_cstr(yyjson_obj_get(node, "param")),
                                 .stop = json_cstr(yyjson_obj_get(node, "stop")),
                                 .property = json_cstr(yyjson_obj_get(node, "property"))};

    for (size_t i = 0; i < ARRAY_SIZE(FLAGS); i++) {
        if (yyjson_is_true(yyjson_obj_get(node, FLAGS[i].key)))
            src.flags |= FLAGS[i].flag;
    }
    if (key->kind == GRAMMAR_JSON_OBJECT) {
        if (!yyjson_is_true(v))
            return constraint_invalid(r->err, "json_object must be true");
    } else if (key->kind == GRAMMAR_JSON_SCHEMA || key->kind == GRAMMAR_CHOICE) {
        src.text = text = yyjson_val_write(v, 0, &src.len);
        if (!text)
            return -ENOMEM;
    } else if (yyjson_is_str(v)) {
        src.text = json_text(v);
        src.len = json_len(v);
    } else {
        return constraint_invalid(r->err, "regex, ebnf and lark must be strings");
    }
    *out = grammar_part_of(r->b, &src);
    return 0;
}

static int read_node(struct reader *r, yyjson_val *node, unsigned depth, grammar_part *out);

static int constraint_read_list(struct reader *r, yyjson_val *list, bool either, unsigned depth,
                                grammar_part *out) {
    size_t n = yyjson_arr_size(list);
    CLEANUP(freep) grammar_part *part = calloc(MAX(n, (size_t)1), sizeof(*part));

    if (!part)
        return -ENOMEM;
    if (!yyjson_is_arr(list) || (either && n == 0))
        return constraint_invalid(r->err, "sequence and either must be arrays of nodes");
    JSON_EACH_AT(i, node, list) {
        TRY(read_node(r, node, depth, &part[i]));
    }
    if (either)
        *out = grammar_either(r->b, part, n);
    else
        *out = grammar_sequence(r->b, part, n);
    return 0;
}

/* Reads a count of a repeat, at most nine digits; *@out stays as it is where there is none. */
static int constraint_read_count(struct reader *r, yyjson_val *v, uint32_t *out) {
    const char *s = json_digits(v);
    size_t n = json_n_digits(v);
    uint32_t x = 0;

    if (!v)
        return 0;
    if (!s || n == 0 || n > 9)
        return constraint_invalid(r->err, "min and max must be whole numbers");
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return constraint_invalid(r->err, "min and max must be whole numbers");
        x = x * 10 + (uint32_t)(s[i] - '0');
    }
    *out = x;
    return 0;
}

static int read_repeat(struct reader *r, yyjson_val *node, unsigned depth, grammar_part *out) {
    yyjson_val *sep = yyjson_obj_get(node, "separator");
    grammar_part part, separator = GRAMMAR_NO_PART;
    uint32_t min = 0, max = GRAMMAR_NO_MAX;

    TRY(constraint_read_count(r, yyjson_obj_get(node, "min"), &min));
    TRY(constraint_read_count(r, yyjson_obj_get(node, "max"), &max));
    if (min > max)
        return constraint_invalid(r->err, "min is greater than max");
    TRY(read_node(r, yyjson_obj_get(node, "repeat"), depth, &part));
    if (sep)
        TRY(read_node(r, sep, depth, &separator));
    *out = grammar_repeat(r->b, part, separator, min, max);
    return 0;
}

static int constraint_read_member(struct reader *r, yyjson_val *node, unsigned depth,
                                  struct grammar_member *out) {
    yyjson_val *key = yyjson_obj_get(node, "key");

    if (!yyjson_is_str(key) || json_len(key) == 0)
        return constraint_invalid(r->err, "a member of a grammar must have a string \"key\"");
    TRY(read_node(r, yyjson_obj_get(node, "value"), depth, &out->value));
    out->key = grammar_literal(r->b, json_text(key), json_len(key));
    out->optional = yyjson_is_true(yyjson_obj_get(node, "optional"));
    return 0;
}

static int read_members(struct reader *r, yyjson_val *node, unsigned depth, grammar_part *out) {
    yyjson_val *list = yyjson_obj_get(node, "members");
    CLEANUP(freep)
    struct grammar_member *m = calloc(MAX(yyjson_arr_size(list), (size_t)1), sizeof(*m));
    grammar_part before = GRAMMAR_NO_PART;

    if (!m)
        return -ENOMEM;
    if (!yyjson_is_arr(list))
        return constraint_invalid(r->err, "members must be an array");
    TRY(read_node(r, yyjson_obj_get(node, "before"), depth, &before));
    JSON_EACH_AT(i, item, list) {
        TRY(constraint_read_member(r, item, depth, &m[i]));
    }
    *out = grammar_members(r->b, m, yyjson_arr_size(list), before);
    return 0;
}

static int read_node(struct reader *r, yyjson_val *node, unsigned depth, grammar_part *out) {
    const struct source_key *source = constraint_find_source(node);
    yyjson_val *v;

    if (!yyjson_is_obj(node))
        return constraint_invalid(r->err, "a node of a grammar must be an object");
    if (depth == NODE_DEPTH_MAX)
        return err_set_code(r->err, 400, "grammar_too_complex", NULL,
                            "the grammar's parts are nested more than %d deep", NODE_DEPTH_MAX);
    if (source)
        return constraint_read_source(r, node, source, out);
    if ((v = yyjson_obj_get(node, "sequence")))
        return constraint_read_list(r, v, false, depth + 1, out);
    if ((v = yyjson_obj_get(node, "either")))
        return constraint_read_list(r, v, true, depth + 1, out);
    if (yyjson_obj_get(node, "members"))
        return read_members(r, node, depth + 1, out);
    if (yyjson_obj_get(node, "repeat"))
        return read_repeat(r, node, depth + 1, out);
    if ((v = yyjson_obj_get(node, "literal")) && yyjson_is_str(v)) {
        *out = grammar_literal(r->b, json_text(v), json_len(v));
        return 0;
    }
    if ((v = yyjson_obj_get(node, "free_text")) && yyjson_is_str(v)) {
        *out = grammar_free_text(r->b, json_text(v), json_len(v));
        return 0;
    }
    return constraint_invalid(r->err, "a node of the grammar has no known key");
}

int constraint_compile(struct grammar **out, const struct grammar_vocab *v, const char *text,
                       size_t len, const struct grammar_limits *limits, struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    CLEANUP(grammar_builder_freep) struct grammar_builder *b = NULL;
    grammar_part root = GRAMMAR_NO_PART;

    TRY(read_doc(&doc, text, len, CONSTRAINT_MAX, err));
    TRY(grammar_builder_new(&b, v, limits));
    TRY(read_node(&(struct reader){b, err}, yyjson_doc_get_root(doc), 0, &root));
    return grammar_build(out, b, root, err);
}
