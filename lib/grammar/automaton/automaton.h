#pragma once

/*
 * automaton - the compiled grammar: a pushdown automaton over bytes.
 *
 * A rule is a deterministic automaton whose edges are byte ranges, special tokens, and calls of
 * other rules. A rule never matches the empty text (its callers step around the call instead), its
 * start is never entered again, every state can reach an end, and no rule calls itself before it
 * has read something.
 *
 * A configuration is (state, register, frame). A frame remembers the call to which a rule returns,
 * and how often a repeated call has returned. Frames form a tree that only grows while a text is
 * read. A configuration is therefore three numbers, and a rollback only drops configurations.
 * Several configurations exist at once while the next bytes are ambiguous; equal ones are merged,
 * because equal frames are the same frame.
 *
 * Members of an object in any order are a rule whose register is a set of them (members.h); a frame
 * that was pushed there keeps the register in its count. Items that must differ are such a rule,
 * too; its register is the list of the items read so far (distinct.c).
 *
 * A loop rule repeats one character; its start is entered again and is the border between
 * characters. Its register counts the characters (CALL_COUNTED), or is a place in a trie of names
 * that the text must not equal (CALL_NAMES). So `maxLength: 100000` costs no states, and all
 * strings of all schemas are the same few states, whose token classes are computed once.
 *
 * A rule of a pattern beside a large `maxLength` counts as well (CALL_WITHIN): its register is the
 * number of characters so far, and an edge is allowed while this number plus the fewest characters
 * needed behind the edge is within the limit. The rule therefore has the states of the pattern and
 * not of the product.
 */

#include "grammar/expr/expr.h"
#include "grammar/expr/lang_types.h"
#include "grammar/vocab/vocab.h"

#define NO_STATE UINT32_MAX
#define TOKEN_SYMBOL 256 /* edges from here on are special tokens: TOKEN_SYMBOL + index */

enum state_flags {
    /* the rule may end here */
    STATE_ACCEPT = 1,
    /* in a loop rule */
    STATE_LOOP = 2,
    /* the start of a loop rule; with STATE_WITHIN: a place between characters */
    STATE_BORDER = 4,
    /* accepts and has no edges and no calls */
    STATE_RETURN = 8,
    STATE_TOKENS = 16,
    /* in a rule whose register is the set of members read so far */
    STATE_MEMBERS = 32,
    /* in a rule whose register is the number of characters so far */
    STATE_WITHIN = 64,
};

struct call {
    /* to: state in which the caller continues */
    uint32_t desc, to;
};

enum call_kind {
    CALL_PLAIN,
    CALL_REPEAT,
    CALL_COUNTED,
    CALL_NAMES,
    /* member `min`, behind `max` bytes of key, not when it is in the register's set, to which it is
     * added; or with min NO_MAX another, any number of times */
    CALL_ONCE,
    /* the callee must end with all required members */
    CALL_MEMBERS,
    /* the callee reads at most `max` characters */
    CALL_WITHIN,
};

/* Describes how a rule is called; the meaning of min and max depends on the kind. */
struct call_desc {
    uint32_t rule, min, max;
    uint8_t kind;
    const struct names *names;
};

/* Returns whether @d calls one of the members that a register counts off. */
static inline bool is_member(const struct call_desc *d) {
    return d->kind == CALL_ONCE && d->min != NO_MAX;
}

/* The members lo to hi - 1, or other calls, that a state reaches by edges before a call. */
struct span {
    uint16_t lo, hi;
    bool others;
};

/* Has the edges g->edge[edge, edge + n_edges), sorted by symbol and disjoint, and the calls
 * g->call[call, call + n_calls). */
struct state {
    uint32_t edge, call, rule;
    uint16_t n_edges, n_calls;
    uint8_t flags;
    /* index into tables[], or -1 */
    int32_t dense;
};

/* A set of bytes: bit c % 64 of w[c / 64]. */
struct byte_set {
    uint64_t w[4];
};

/* Returns whether @c is in the set. */
static inline bool byte_set_has(const struct byte_set *s, uint8_t c) {
    return s->w[c >> 6] >> (c & 63) & 1;
}

/* Adds @c, which may be in the set already. */
static inline void byte_set_add(struct byte_set *s, uint8_t c) {
    s->w[c >> 6] |= 1ull << (c & 63);
}

/* @lo to @hi, which may be special tokens: these are left out. */
static inline void byte_set_add_range(struct byte_set *s, unsigned lo, unsigned hi) {
    for (unsigned w = lo / 64; w <= MIN(hi, 255u) / 64; w++) {
        unsigned from = MAX(lo, w * 64) % 64, to = MIN(hi, w * 64 + 63) % 64;

        s->w[w] |= UINT64_MAX >> (63 - (to - from)) << from;
    }
}

/* A rule: states [start, start + n_states); it begins at `start`. */
struct auto_rule {
    uint32_t start, n_states;
    /* index into g->members[], if states of the rule have STATE_MEMBERS */
    uint32_t members;
    /* the largest `need` of its states */
    uint32_t need;
    bool loop;
    /* no members, and calls nothing: with no stack a set is one state */
    bool plain;
    uint8_t shared;
    /* bytes that can begin it; that can come right after it */
    struct byte_set first, follow;
};

/* The tokens at a state, as far as the state alone decides (classify.c). Either bits or ids; items
 * of `after` are less than n_rest. Immutable once it is made. */
struct token_class {
    /* n_words: tokens that stay inside the rule; NULL if the ids are listed */
    uint32_t *bits;
    uint32_t *ids, n_ids;
    /* in bits or ids */
    uint32_t n_allowed;
    struct rest_token {
        /* n_chars: characters of a loop before its end */
        uint32_t id, n_chars;
        /* bytes before the end of the rule */
        uint16_t len;
        /* the first of them */
        uint8_t first;
    } * rest;
    uint32_t n_rest;
    /* trie of the bytes behind the end of the rule; items index rest[] */
    struct trie after;
    size_t bytes;
    bool shared;
};
#define TEXTS_MAX (1u << 24) /* upper bound of the items of a text */

/* A compiled grammar. Immutable, except for token classes and the data of finish.h, which any
 * thread may add later. */
struct grammar {
    const struct grammar_vocab *vocab;
    struct state *state;
    struct edge *edge;
    struct call *call;
    struct call_desc *desc;
    struct auto_rule *rule;
    /* targets by byte, NO_STATE: none */
    uint32_t (*table)[256];
    /* Number of arbitrary characters of each kind of text that each state reads
     * (mask/free_chars.c). */
    uint8_t (*free_chars)[TEXT_KINDS];
    /* Points, for each state, to its token class; NULL until it is known. Entries with `shared`
     * belong to the vocabulary. A class is made when a state is first reached, by any thread, as
     * long as there is room (mask/classify.c). */
    _Atomic(struct token_class *) *cls;
    /* by rule: of the vocabulary (share.h), or NULL */
    _Atomic(struct token_class *) **places;
    /* for each state with STATE_WITHIN: fewest characters to the end; or NULL */
    uint32_t *need;
    /* rules whose characters are counted up to a maximum */
    bool *counted;
    _Atomic size_t class_room;
    /* special tokens of the edges */
    int32_t *token;
    /* own copies */
    struct names *names;
    struct members *members;
    /* one per state; NULL without members */
    struct span *span;
    /* Gives, for each state, a lower bound of the number of texts that lead to the end of its rule,
     * saturated at TEXTS_MAX; in a loop, of those of one character that lead to its border. NULL
     * where no items must differ. */
    uint32_t *n_texts;
    /* tokens that may have two ends of such items (distinct.c) */
    uint32_t *doubles, n_doubles;
    /* finish.h; NULL without a vocabulary */
    struct finish *finish;
    uint32_t n_states, n_edges, n_calls, n_descs, n_rules, n_tables, n_tokens, n_names;
    uint32_t n_members;
    /* rule */
    uint32_t start;
    /* the empty text is allowed */
    bool nullable;
    uint32_t max_stack;
    size_t bytes;
};

/* Compiles rule @root of @b and everything below it (compile.c). */
int automaton_new(struct grammar **out, struct build *b, uint32_t root);
