#pragma once

/*
 * schema - JSON Schema (draft 2020-12) to expressions.
 *
 * A value must often satisfy several schemas: a schema with its $ref and allOf, or the schemas that
 * two parts of an allOf give one property. The unit is therefore a list of parts, which all apply.
 * anyOf and oneOf are multiplied out: one list of parts per branch. The resulting lists have no
 * applicators for the value itself: their keywords are merged into one struct facets, and each type
 * is written as an expression.
 *
 * An expression may be narrower than its schema, but never wider: every text that fits the
 * expression is valid. Where a schema leaves more freedom than is good for a model (white space,
 * the order of properties, escapes of characters, undeclared properties), the expression allows a
 * part of the valid texts.
 */

#include "base/hash_index.h"
#include "base/lib_types.h"
#include "grammar/expr/expr.h"

#define OWN "\x01" /* begins words that only logic.c writes */

/* Bits of sets of types; an integer is T_INT, another number T_REAL. */
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

/* Names the place of a schema, for messages. */
struct path {
    const struct path *up;
    /* NULL: an index */
    const char *key;
    size_t len, index;
};

/* A value in a schema and its place. */
struct place {
    /* NULL: there is none */
    yyjson_val *v;
    const struct path *path;
};

/* A schema that is being expanded, linked to the schemas around it, so that circles are found. */
struct open {
    const struct open *up;
    yyjson_val *v;
    uint32_t depth;
};

/* An anyOf or oneOf that is not multiplied out yet. */
struct choice {
    /* the array */
    struct place at;
    /* oneOf */
    bool one;
    const struct open *open;
};

/* List of schemas that all apply to one value. */
struct parts {
    struct place *v;
    struct choice *choice;
    uint32_t n, cap, n_choices, cap_choices;
    /* schemas that were given for the value; the first is part 0 */
    uint32_t n_roots;
    bool never;
};

/* A decimal number: sign, digits before and after the point without needless zeros. */
#define DECIMAL_DIGITS 64
struct decimal {
    bool negative;
    /* n_int 0: zero */
    uint8_t n_int, n_frac;
    char digit_int[DECIMAL_DIGITS], digit_frac[DECIMAL_DIGITS];
};

/* minimum or maximum, strict: exclusive. */
struct bound {
    bool set, strict;
    struct decimal x;
};

/* The keywords of all parts together. */
struct facets {
    const struct parts *parts;
    /* the part that is being read */
    struct place part;
    unsigned types;
    /* types whose keywords occur */
    unsigned implied;
    bool typed, closed, unique;
    struct place unique_at;
    /* enum arrays and const values */
    struct place *value;
    bool *value_is_const;
    uint32_t n_values, cap_values, cap_consts;
    struct bound lower, upper;
    uint32_t min_length, max_length, min_items, max_items, min_members, max_members;
    struct text_rule {
        struct place at;
        enum { TEXT_PATTERN, TEXT_FORMAT, TEXT_NOT_PATTERN, TEXT_NOT_ENUM, TEXT_NOT_FORMAT } kind;
    } * text; /* patterns and formats that strings must match, or with NOT_ must not */
    uint32_t n_text, cap_text;
    /* members that must be there, by a description of their names (keys.c) */
    struct place *some;
    uint32_t n_some, cap_some;
    struct multiple {
        struct place at;
        bool negated;
    } * multiple; /* divisors, required or excluded */
    uint32_t n_multiples, cap_multiples;
    struct place *contains;
    uint32_t n_contains, cap_contains;
};

struct memo;

/* The reading of one schema. */
struct schema {
    struct build *b;
    yyjson_val *root;
    /* {"string": {"type": "string"}, ..} */
    yyjson_val *own_types;
    const struct path *root_path;
    /* hash table */
    struct memo **memo;
    const struct path **paths;
    /* of paths[] */
    struct hash_index path_index;
    uint32_t n_paths, cap_paths;
    uint32_t depth;
    struct lang_memo *langs;
    /* cache of object keys (keys.c) */
    struct key_classes *key_classes;
    /* tries of declared names (object.c) */
    struct names_list *names;
    /* cache of quoted languages (keys.c) */
    struct quoted_lang *quoted;
    /* somewhere there is the word "$ref" */
    bool has_refs;
    /* occurrences of the word "not" */
    uint32_t n_nots;
    /* drafts up to 7: words beside a $ref mean nothing */
    bool old_refs;
    /* targets of references in derived schemas (logic.c) */
    struct place *target;
    uint32_t n_targets, cap_targets;
    struct schema_doc {
        struct schema_doc *next;
        yyjson_doc *doc;
    } * docs;
    struct derived *derived;
};

/* Errors: "#/path/keyword: message". */
int schema_fail(struct schema *s, const struct path *at, const char *code, const char *fmt, ...)
    PRINTF(4, 5);
#define schema_invalid(s, at, ...) schema_fail(s, at, "grammar_invalid", __VA_ARGS__)
#define schema_unsupported(s, at, ...) schema_fail(s, at, "grammar_unsupported", __VA_ARGS__)
const struct path *schema_path(struct schema *s, const struct path *up, const char *key,
                               size_t len);
const struct path *schema_path_index(struct schema *s, const struct path *up, size_t index);
struct place schema_at(struct schema *s, struct place p, const char *key); /* v NULL: absent */
struct place schema_item(struct schema *s, struct place list, size_t i);   /* i < its size */

/* Returns an expression for the values that satisfy all of @v. */
struct expr *schema_value(struct schema *s, const struct place *v, uint32_t n);
/* Does so for the value of a member of an object. */
struct expr *schema_member(struct schema *s, const struct place *v, uint32_t n);
/* Finds the target of the $ref at @ref; -EINVAL when there is none in this schema. */
int schema_resolve(struct schema *s, struct place ref, struct place *out);
/* Returns whether the word "$ref" occurs anywhere in @v. */
bool schema_has_refs(struct schema *s, yyjson_val *v);
/* Replaces *@p by its target while it is a mere reference. */
int schema_follow(struct schema *s, struct place *p);
/* Adds @p, and the schemas that apply with it by $ref and allOf, to @out; collects its choices. */
int parts_expand(struct schema *s, struct parts *out, struct place p);
/* Appends to a list in the arena. 0, or build_no_memory(). */
int places_add(struct schema *s, struct place **v, uint32_t *n, uint32_t *cap, struct place p);

/* Merges the keywords of @parts, which have no choices left, into @out. */
int facets_gather(struct schema *s, const struct parts *parts, struct facets *out);
/* Returns 1 if no value satisfies both, 0 if that is not known, or -errno. */
int facets_disjoint(struct schema *s, const struct facets *x, const struct facets *y,
                    uint32_t depth);
/* Returns whether a value of an enum satisfies the other keywords: 1, 0, or an error of
 * schema_unsupported(). */
int facets_admit(struct schema *s, const struct facets *f, struct place value);
unsigned value_type(yyjson_val *v); /* the bit of enum json_type */
/* Compares as JSON Schema does: 1 and 1.0 are equal, and so are objects in any order. */
bool same_value(yyjson_val *x, yyjson_val *y);
/* Returns an expression for exactly this value. */
struct expr *value_expr(struct schema *s, yyjson_val *v);
/* Finds the schemas of the member @name: from properties, or else additionalProperties. */
int member_places(struct schema *s, const struct parts *parts, const char *name, size_t len,
                  struct place **out, uint32_t *n);

/* Make equivalent schemas without not, if and dependencies (logic.c). */
int logic_not(struct schema *s, struct place p, struct place *out);
int logic_if(struct schema *s, struct place p, struct place *out);
int logic_dependencies(struct schema *s, struct place p, struct place *out);
int logic_const(struct schema *s, struct place value, struct place *out); /* an object or array */
void logic_deinit(struct schema *s);
/* Finds the place that the number @at in a derived schema refers to. */
int schema_target(struct schema *s, struct place at, struct place *out);
int types_read(struct schema *s, struct place at, unsigned *types); /* the value of `type` */
int count_read(struct schema *s, struct place at, uint32_t *out);
bool keyword_constrains(const char *key); /* in some draft */
/* Renames the keywords of schema @v, and of those in it, whose value is null to a word without
 * meaning: generators write null for "not given". `const` keeps its null. @is_map: the members of
 * @v are schemas. Goes @depth levels deep; deeper schemas are refused. */
void keywords_forget_nulls(yyjson_val *v, bool is_map, uint32_t depth);
/* Returns @e, or a call of a rule with it if @e is large; for expressions that are used more than
 * once. */
struct expr *schema_share(struct schema *s, struct expr *e);

/* A member of an object, or an item of an array whose items differ. */
struct keyed {
    /* identity of the rule */
    const uint8_t *key;
    uint32_t key_len;
    /* behind the key; between may be NULL */
    struct expr *between, *value;
    bool must;
};
/* At least one of v[@n], each at most once, and any number of @rest (NULL: none), in any order with
 * commas between them. Sorts @v, whose keys differ. n is 1 to MEMBERS_MAX. */
struct expr *members_unordered(struct schema *s, struct keyed *v, uint32_t n, struct expr *rest);
/* One to @max (at most MEMBERS_MAX) of @item with commas between them, no two the same text. Texts
 * of @item are scalars, and none has another spelling that @item allows. */
struct expr *items_distinct(struct schema *s, struct expr *item, uint32_t max);

struct lang;
struct keys;
/* Makes the rules for the names of members of @f; the caller frees *out, which may be NULL on
 * errors. */
int keys_new(struct schema *s, const struct facets *f, struct keys **out);
/* Returns true if every name but the @n_declared declared ones is allowed by other_key(), and none
 * has a rule of its own. */
bool keys_plain(const struct keys *k, uint32_t n_declared);
struct name_rules {
    bool allowed;
    /* bit i: the name can be the one that f->some[i] requires */
    uint64_t some;
};
/* Collects the rules that apply to the member @name. Returns 0 or -errno. */
int keys_name(const struct keys *k, const char *name, size_t len, struct name_rules *out);
/* A member with a name that is not in @declared (in quotes; @plain_key is the same for
 * keys_plain()). NULL: there is none, or the build has failed. @some[i]: one that satisfies
 * f->some[i]. */
struct expr *keys_rest(const struct keys *k, const struct lang *declared, struct expr *plain_key,
                       struct expr **some);

/* Returns the strings that satisfy everything that @f says of strings, as JSON writes them in their
 * shortest spelling, without quotes. */
const struct lang *facets_lang(struct schema *s, const struct facets *f);
static inline bool text_is_negated(const struct text_rule *t) {
    return t->kind >= TEXT_NOT_PATTERN;
}

/* Makes the language of a pattern, a format or a list of strings (TEXT_NOT_ENUM), or for
 * TEXT_NOT_FORMAT a superset of what any reading of the format matches; never the complement. */
const struct lang *text_lang(struct schema *s, const struct text_rule *t);
/* Returns 1 if the strings that are not of format @name can be described, -1 if not, and 0 if the
 * format does not concern strings. */
int format_contrary(yyjson_val *name);
/* Returns 1 if weft can describe the strings of this format, 0 if it is an annotation, or the error
 * of an unsupported format. */
int format_known(struct schema *s, struct place at);
/* Returns whether a number satisfies f->multiple: 1; 0, also when that cannot be decided; or
 * -errno. */
int multiples_admit(struct schema *s, const struct facets *f, yyjson_val *v);
/* Make all values of one type that @f allows, as JSON. */
struct expr *lower_number(struct schema *s, const struct facets *f);
/* Makes the numbers in the range of @f, without multiples, and not as a rule. */
struct expr *number_range(struct build *b, const struct facets *f);
struct expr *lower_string(struct schema *s, const struct facets *f);
struct expr *lower_array(struct schema *s, const struct facets *f);
struct expr *lower_object(struct schema *s, const struct facets *f);

int decimal_read(struct decimal *d, const char *s, size_t len); /* -ERANGE: too many digits */
int decimal_compare(const struct decimal *x, const struct decimal *y); /* negative, 0, positive */
