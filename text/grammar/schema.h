#pragma once

/*
 * schema - JSON Schema (draft 2020-12) to expressions.
 *
 * A value must satisfy several schemas at once: a schema and its $ref and allOf, the two schemas that two parts of
 * an allOf give one property. So the unit is a list of parts, all of which apply. anyOf and oneOf are multiplied out: one
 * list of parts per branch. What is left has no applicators of its own value: its keywords are merged into
 * one struct facets, and each type is written as an expression.
 *
 * Narrower is sound, wider is not: where a schema leaves more open than is good for a model (white space, the order
 * of properties, how a character is escaped, properties that were not declared), the expression takes a part of what
 * would be valid. Everything that fits the expression is valid.
 */

#include <yyjson.h>
#include "text/grammar/expr.h"

enum json_type {
    T_NULL = 1,
    T_BOOL = 2,
    T_INT = 4,
    T_REAL = 8,
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127,
};

/* Where a schema stands, for messages. */
struct path {
    const struct path *up;
    const char *key; /* NULL: an index */
    size_t len, index;
};

struct place {
    yyjson_val *v;
    const struct path *path;
};

struct choice {
    struct place at; /* the array */
    bool one;        /* oneOf */
};

struct parts {
    struct place *v;
    struct choice *choice;
    uint32_t n, cap, n_choices, cap_choices;
    uint32_t n_roots; /* schemas that were given for the value; the first is part 0 */
    bool never;
};

/* A decimal number: sign, digits before and after the point without needless zeros. */
#define DECIMAL_DIGITS 64
struct decimal {
    bool negative;
    uint8_t n_int, n_frac; /* n_int 0: zero */
    char digit_int[DECIMAL_DIGITS], digit_frac[DECIMAL_DIGITS];
};

struct bound {
    bool set, strict;
    struct decimal x;
};

/* The keywords of all parts together. */
struct facets {
    const struct parts *parts;
    unsigned types;
    unsigned implied; /* types whose keywords occur */
    bool typed, closed, unique;
    struct place unique_at;
    struct place *value; /* enum arrays and const values */
    bool *value_is_const;
    uint32_t n_values, cap_values;
    struct bound lower, upper;
    uint32_t min_length, max_length, min_items, max_items, min_members, max_members;
    struct place pattern, format, lengths; /* v NULL: none */
};

struct memo;

struct schema {
    struct build *b;
    yyjson_val *root;
    yyjson_val *string_type; /* {"string": {"type": "string"}} */
    const struct path *root_path;
    struct memo **memo; /* hash table */
    uint32_t n_memo, depth;
};

/* Errors: "#/path/keyword: message". */
int schema_invalid(struct schema *s, const struct path *at, const char *fmt, ...) PRINTF(3, 4);
int schema_unsupported(struct schema *s, const struct path *at, const char *fmt, ...) PRINTF(3, 4);
const struct path *schema_path(struct schema *s, const struct path *up, const char *key,
                               size_t len);
const struct path *schema_path_index(struct schema *s, const struct path *up, size_t index);
struct place schema_at(struct schema *s, struct place p, const char *key); /* v NULL: absent */

/* A value that satisfies all of @v, as an expression. */
int schema_value(struct schema *s, const struct place *v, uint32_t n, struct expr **out);
int schema_resolve(struct schema *s, struct place ref, struct place *out);
int parts_expand(struct schema *s, struct parts *out, struct place p);
int places_add(struct schema *s, struct place **v, uint32_t *n, uint32_t *cap, struct place p);

int facets_gather(struct schema *s, const struct parts *parts, struct facets *out);
/* 1: no value satisfies both; 0: not known; -errno. */
int facets_disjoint(struct schema *s, const struct facets *x, const struct facets *y,
                    uint32_t depth);
/* Whether a value of an enum satisfies the other keywords: 1, 0, or unsupported. */
int facets_admit(struct schema *s, const struct facets *f, struct place value);
unsigned value_type(yyjson_val *v);
bool same_value(yyjson_val *x, yyjson_val *y);
int value_expr(struct schema *s, yyjson_val *v, struct expr **out);
/* Schemas of the member @name: from properties, or else additionalProperties. */
int member_places(struct schema *s, const struct parts *parts, const char *name, size_t len,
                  struct place **out, uint32_t *n);

int lower_number(struct schema *s, const struct facets *f, struct expr **out);
int lower_string(struct schema *s, const struct facets *f, struct expr **out);
int lower_array(struct schema *s, const struct facets *f, struct expr **out);
int lower_object(struct schema *s, const struct facets *f, struct expr **out);

int decimal_read(struct decimal *d, const char *s, size_t len); /* -ERANGE: too many digits */
int decimal_compare(const struct decimal *x, const struct decimal *y);
