#pragma once

/*
 * expr - the common form of schemas, regular expressions and EBNF, which nfa.c reads: rules whose
 * bodies are regular expressions over bytes, special tokens and calls of rules. Expressions may be
 * shared (they form a DAG) and live in the arena of their build.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/hash_index.h"
#include "grammar/grammar.h"

#define NO_MAX GRAMMAR_NO_MAX
#define NO_RULE UINT32_MAX
#define ATOM_UNROLL 8 /* a character is repeated by copies up to here, by a counter beyond */

enum expr_kind {
    /* the empty text */
    EXPR_EMPTY,
    /* matches no text */
    EXPR_NEVER,
    /* exactly these bytes */
    EXPR_BYTES,
    /* one code point of a set, in UTF-8 or as JSON strings write it */
    EXPR_CHARS,
    /* children in sequence */
    EXPR_SEQ,
    /* one of the children */
    EXPR_ALT,
    /* min to max times the child */
    EXPR_REPEAT,
    /* a rule */
    EXPR_CALL,
    /* a special token */
    EXPR_TOKEN,
    /* members of an object: struct expr_list */
    EXPR_LIST,
    /* characters of a key that is none of a set of names: struct names */
    EXPR_NAMES,
    /* a text of a language (lang.h) */
    EXPR_LANG,
    /* the empty text at the beginning (id '^') or end ('$') of the whole text; only while a regular
     * expression is read */
    EXPR_ANCHOR,
    /* a rule, at most once: member `min` of those of the rule it is in, behind `max` bytes of its
     * key; min NO_MAX: no member of these, any number of times */
    EXPR_ONCE,
    /* a rule with such members */
    EXPR_MEMBERS,
    /* a rule with `need`, in at most `max` characters */
    EXPR_WITHIN,
};

enum char_mode {
    /* UTF-8 */
    CHARS_TEXT,
    /* inside a JSON string; characters that must be escaped are, in the shortest form */
    CHARS_JSON,
};

/* Code points @lo to @hi. */
struct cp_range {
    uint32_t lo, hi;
};

/* A set of code points, in the arena. */
struct cp_set {
    uint32_t n, cap;
    /* sorted and disjoint after cp_set_normalize() */
    struct cp_range *range;
};

struct expr {
    uint8_t kind, mode;
    /* stands for one character: a prefix code without calls */
    bool atom;
    /* a repetition of any character up to the end of a string, in a rule of nothing but strings:
     * whatever else is being read there ends in what it takes */
    bool open;
    /* number of children or bytes */
    uint32_t n;
    /* approximate number of states that it needs; saturates */
    uint32_t size;
    /* number of a rule or a token */
    uint32_t id;
    uint32_t min, max;
    union {
        const uint8_t *bytes;
        struct expr **child;
        const struct cp_set *set;
        const struct expr_list *list;
        const struct names *names;
        const struct lang *lang;
    };
};

/* Members in this order, each at most once, `separator` between those that are there; then any
 * number of `rest` (NULL: none). The last n_needs members, which are not optional, may stand
 * anywhere among the rest. The others are best sequences that begin with a key (EXPR_BYTES), which
 * is then found in a trie of all keys. In all at least min and at most max of them.
 * `after` comes last, unless there was nothing. */
struct expr_list {
    uint32_t n, min, max, n_needs;
    struct expr **member;
    bool *optional;
    struct expr *separator, *rest, *after;
};

/* A trie over the names that a key must not be, as JSON writes them. Node 0 is the root. */
struct names {
    uint32_t n, cap;
    struct name_node {
        /* 0: none */
        uint32_t child, sibling;
        uint8_t byte;
        /* a name ends here */
        bool end;
    } * node;
};
#define NAMES_NONE UINT32_MAX /* not a prefix of any name */
uint32_t names_step(const struct names *t, uint32_t node, uint8_t byte);
bool names_equal(const struct names *x,
                 const struct names *y); /* made of the same names in order */

/* Members that may come in any order; or, with n = 0, at most `distinct` items that must differ. */
struct members {
    uint32_t n, distinct;
    /* bits: required members */
    uint32_t *must;
    /* while dead ends are searched: members that cannot be written yet */
    uint32_t *left;
};
#define MEMBERS_MAX 4096u

struct rule {
    struct expr *body;
    /* for messages; may be NULL */
    const char *name;
    bool nullable;
    /* the register is the set of members read so far; or NULL */
    const struct members *members;
    /* the body is an atom, repeated once or more; see automaton.h */
    bool loop;
    /* one of enum shared_loop */
    uint8_t shared;
    /* the body may take the place of a call (nfa.c) */
    bool may_copy;
    /* Gives, for each state of the body, an EXPR_LANG of lang_within(), the fewest characters to
     * its end; NULL where the register of the rule does not count characters. */
    const uint32_t *need;
    /* 0: not known yet */
    uint32_t flat_size;
};

/* Loops whose token classes the vocabulary makes once for all grammars. */
enum shared_loop { SHARED_NONE, SHARED_JSON_CHARS, SHARED_JSON_CANONICAL, SHARED_LOOPS };

/* How the values of a schema are written. */
enum notation {
    NOTATION_JSON,
    /* keys without quotes; between two marks, strings without escapes */
    NOTATION_GEMMA,
    /* strings only, without quotes and escapes */
    NOTATION_BARE,
    /* the members of one object, as keyword arguments; their values are JSON */
    NOTATION_CALL,
    NOTATIONS,
};

/* One compilation. */
struct build {
    const struct grammar_vocab *vocab;
    struct grammar_limits limits;
    struct arena arena;
    /* malloc'd */
    struct rule *rule;
    uint32_t n_rules, cap_rules;
    /* build_pause() is called at pause_at */
    uint64_t work, pause_at;
    /* look-ahead that was read */
    uint32_t n_aheads;
    /* parameter of the source that is being read */
    const char *param;
    /* of its schema, or NULL */
    const char *property;
    unsigned flags;
    /* a source is a JSON Schema, or a part is free text: classes may come later */
    bool is_schema;
    struct err *err;
    /* the first error; makers return NULL from then on */
    int failed;
    /* made once; pointers can be compared */
    struct expr *shared_atom[SHARED_LOOPS];
    /* made once; [1]: compact */
    struct expr *space[2], *comma[2], *colon[2];
    /* rules by their bodies */
    struct hash_index bodies;
    /* rules, NO_RULE until needed; 1: compact, 2: Python, 4: Gemma's */
    uint32_t any_value[8], any_object[8];
    /* rules that are made once */
    uint32_t number, integer;
    /* rules made for counted atoms */
    struct loop_rule *loops;
    /* rules made for patterns and formats */
    struct string_rule *strings;
    /* rules made for lengths, not in JSON */
    struct length_rule *lengths;
    /* lang_texts() */
    const struct lang *texts_lang;
    /* lang_keys() */
    const struct lang *keys_lang[NOTATIONS];
    /* rules of it, NO_RULE until needed */
    uint32_t any_key[NOTATIONS];
    /* rules made for ranges and multiples */
    struct number_rule *numbers;
    /* lang_strings() */
    const struct lang *strings_lang[NOTATIONS];
    enum notation notation;
    /* strings that are not JSON's do not contain this text */
    const char *stop;
    /* `stop` as Gemma's quote */
    struct expr *mark;
    /* any string without `stop`; made once */
    struct expr *text;
};

/* Begins a compilation; @v, @l and @err may be NULL, as in grammar_compile(). */
void build_init(struct build *b, const struct grammar_vocab *v, const struct grammar_limits *l,
                struct err *err);
void build_deinit(struct build *b); /* frees expressions and rules, too */
/* Refuses the source: fills the error as grammar_compile() describes it and returns -EINVAL. Once
 * the build has failed it returns the first error. */
int build_fail(struct build *b, const char *code, const char *fmt, ...) PRINTF(3, 4);
#define build_invalid(b, ...) build_fail(b, "grammar_invalid", __VA_ARGS__)
#define build_unsupported(b, ...) build_fail(b, "grammar_unsupported", __VA_ARGS__)
#define build_too_complex(b, ...) build_fail(b, "grammar_too_complex", __VA_ARGS__)
int build_no_memory(struct build *b);
/* Returns NULL instead of an error that the build has kept, at the end of a maker. */
static inline void *failed(int error) {
    return NULL;
}
/* Allocates a zeroed array of @n elements of @size bytes in the arena. NULL: build_no_memory(). */
void *build_alloc(struct build *b, size_t n, size_t size);
/* Makes room for one more element behind the @n elements of the array *@v of the arena, for @first
 * elements at first. Returns 0, or build_no_memory(). */
int build_grow(struct build *b, void *v, uint32_t n, uint32_t *cap, uint32_t first, size_t size);
int build_pause(struct build *b); /* called when work reaches pause_at: 0 or too complex */
/* Adds a rule without a body, which the caller sets; @name, for messages, may be NULL and outlives
 * @b. Returns 0, or an error of build_fail(). */
int build_rule(struct build *b, const char *name, uint32_t *rule);
/* Sets *rule to the rule with the body @body, made if there is none yet. */
int build_rule_of(struct build *b, struct expr *body, uint32_t *rule);

/* Counts @steps of work. Returns 0, or the error of a grammar that is too complex. */
static inline int build_work(struct build *b, uint64_t steps) {
    b->work += steps;
    if (b->work < b->pause_at)
        return 0;
    return build_pause(b);
}

/* Returns a hash of @n bytes. */
static inline uint64_t bytes_hash(const void *bytes, size_t n) {
    const uint8_t *v = bytes;
    uint64_t h = n;

    for (size_t i = 0; i < n; i++)
        h = hash_step(h, v[i]);
    return h;
}

/* Makers return NULL if the build has failed, and accept NULL arguments then. */
struct expr *expr_empty(struct build *b);
struct expr *expr_never(struct build *b);
struct expr *expr_bytes(struct build *b, const void *bytes, size_t n);
struct expr *expr_str(struct build *b, const char *s);
struct expr *expr_chars(struct build *b, const struct cp_set *set, enum char_mode mode);
struct expr *expr_any_char(struct build *b, enum char_mode mode);
struct expr *expr_seq(struct build *b, struct expr *const *child, uint32_t n);
struct expr *expr_seq2(struct build *b, struct expr *x, struct expr *y);
struct expr *expr_seq3(struct build *b, struct expr *x, struct expr *y, struct expr *z);
struct expr *expr_alt(struct build *b, struct expr *const *child, uint32_t n);
struct expr *expr_alt2(struct build *b, struct expr *x, struct expr *y);
struct expr *expr_repeat(struct build *b, struct expr *x, uint32_t min, uint32_t max);
struct expr *expr_optional(struct build *b, struct expr *x);
struct expr *expr_call(struct build *b, uint32_t rule);
struct expr *expr_rule(struct build *b, struct expr *body); /* a call of a rule made for it */
struct expr *expr_within(struct build *b, uint32_t rule, uint32_t max);
struct expr *expr_token(struct build *b, int32_t token);
bool expr_nullable(const struct build *b, const struct expr *e);
bool list_nullable(const struct expr_list *l);
/* Returns whether @x and @y are the same set of characters. */
bool expr_same_chars(const struct expr *x, const struct expr *y);
bool expr_same(const struct expr *x, const struct expr *y); /* written the same */
/* Returns whether two languages made by lang_of() or lang_meet() are equal. */
bool lang_equal(const struct lang *x, const struct lang *y);

/* A growing list of expressions, in the arena. */
struct expr_vec {
    struct expr **v;
    uint32_t n, cap;
};
int expr_vec_add(struct build *b, struct expr_vec *v, struct expr *e); /* @e NULL: it has failed */
struct expr *expr_seq_of(struct build *b, const struct expr_vec *v);
struct expr *expr_alt_of(struct build *b, const struct expr_vec *v);

/* Adds code points @lo to @hi, in any order with others. 0, or build_no_memory(). */
int cp_set_add(struct build *b, struct cp_set *s, uint32_t lo, uint32_t hi);
void cp_set_normalize(struct cp_set *s);              /* sorts and joins the ranges */
int cp_set_invert(struct build *b, struct cp_set *s); /* within all code points but surrogates */

/* JSON pieces (json.c). */
struct expr *json_char(struct build *b); /* one character of a string, in any spelling */
struct expr *
json_char_unshared(struct build *b); /* json_char() for places that more than a quote may follow */
struct expr *json_canonical_char(struct build *b); /* in its shortest spelling */
struct expr *json_any_string(struct build *b, uint32_t min, uint32_t max);
struct expr *json_quoted(struct build *b, struct expr *chars);
/* Makes a string, quoted. EXPR_NEVER: the notation cannot write it. */
struct expr *json_literal(struct build *b, const char *s, size_t len);
/* Makes a member's name as EXPR_BYTES: up to what json_colon_space() makes. */
struct expr *json_key(struct build *b, const char *s, size_t len);
bool json_key_fits(const struct build *b, const char *s, size_t len); /* it can be read back */
struct expr *json_key_of(struct build *b,
                         struct expr *chars); /* the same for a language of names */
/* Makes any name of a member. */
struct expr *json_any_key(struct build *b);
/* Makes the same without a limit of length, in a notation other than JSON's, of which
 * json_any_key() makes those of at most JSON_KEY_MAX characters. */
struct expr *json_long_key(struct build *b);
#define JSON_KEY_MAX 65u /* with the sign that follows the name */
/* Returns the text of a string as the notation writes it, without quotes. */
int json_spell(struct build *b, const char *s, size_t len, uint8_t **out, size_t *n);
/* Returns how the notation writes the characters of a string. */
static inline enum char_mode json_mode(const struct build *b) {
    if (b->notation == NOTATION_JSON)
        return CHARS_JSON;
    return CHARS_TEXT;
}
struct expr *json_space(struct build *b);       /* after `{ [ ,` and before `} ]` */
struct expr *json_colon_space(struct build *b); /* with what may follow it */
struct expr *json_comma(struct build *b);
struct expr *json_any(struct build *b);
struct expr *json_any_object(struct build *b);
struct expr *json_word(struct build *b, const char *word); /* true, false or null */
struct expr *json_number(struct build *b);
struct expr *json_integer(struct build *b);
int json_escape(struct build *b, const char *s, size_t len, uint8_t **out, size_t *n);

/* Readers of the sources. */

enum regex_kind { REGEX_WHOLE, REGEX_SEARCH }; /* matches the whole text, or a part of it */
/* Reads an expression that matches the whole text: regex_read_with() without options. */
struct expr *regex_read(struct build *b, const char *s, size_t len, enum char_mode mode);
enum regex_options {
    /* letters of ASCII match in either case */
    REGEX_ANY_CASE = 1 << 0,
    /* `.` is a line break, too */
    REGEX_DOT_ALL = 1 << 1,
    /* in JSON: what may stand around a match is in its shortest spelling, too */
    REGEX_CANONICAL = 1 << 2,
    /* begins every alternative with `^` */
    REGEX_FROM_START = 1 << 3,
};
/* Makes the texts that the regular expression @s matches, written according to @mode. */
struct expr *regex_read_with(struct build *b, const char *s, size_t len, enum char_mode mode,
                             enum regex_kind kind, unsigned options);
/* Takes the EXPR_ANCHORs out of @e, which matches a whole text. *@counted: one is in what is
 * counted, and the answer means nothing (regex_anchor.c). */
struct expr *regex_resolve_anchors(struct build *b, struct expr *e, bool *counted);
struct expr *expr_anchor(struct build *b, char which);
struct expr *regex_of(struct build *b, const char *s, enum char_mode mode); /* our own: asserts */
struct expr *ebnf_read(struct build *b, const char *s, size_t len);
struct expr *lark_read(struct build *b, const char *s, size_t len, enum char_mode mode);
struct expr *schema_read(struct build *b, const char *s, size_t len);
/* Makes any text that does not contain @stop (text.c). */
struct expr *text_without(struct build *b, const char *stop, size_t len);
