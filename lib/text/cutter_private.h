#pragma once

/* cutter_private - the program of an expression, sets of characters, and look-ahead. */

#include "text/cutter.h"

/* Most instructions of a program, and most of its sets. */
#define CUTTER_INSTS_MAX 1024u
#define CUTTER_SETS_MAX 256u
/* Most look-aheads of several characters, copies by quantifiers included. */
#define CUTTER_LOOKS_MAX 8u

/* Code points lo to hi. */
struct cutter_range {
    uint32_t lo, hi;
};

/* Code points, as ranges that may overlap until cutter_ranges_sort() is called. */
struct cutter_ranges {
    struct cutter_range *range;
    uint32_t n, cap;
};

/* Return 0 or -ENOMEM. */
int cutter_ranges_add(struct cutter_ranges *r, uint32_t lo, uint32_t hi);
/* Adds the characters of the categories @mask (unicode_property()). */
int cutter_ranges_add_categories(struct cutter_ranges *r, uint32_t mask);
/* Adds the ranges of @other. */
int cutter_ranges_join(struct cutter_ranges *r, const struct cutter_ranges *other);
/* Makes @r its complement. */
int cutter_ranges_invert(struct cutter_ranges *r);
/* Adds the other case of ASCII letters, with the two characters beyond ASCII that fold to one. */
int cutter_ranges_fold(struct cutter_ranges *r);
/* Sorts the ranges and joins those that touch. */
void cutter_ranges_sort(struct cutter_ranges *r);
void cutter_ranges_deinit(struct cutter_ranges *r);

enum cutter_op {
    /* takes a character of the set */
    CUT_CHAR,
    /* goes to x, or else to y */
    CUT_CHOICE,
    /* goes to x */
    CUT_JUMP,
    /* goes on if the next character is of the set; not: if there is none that is */
    CUT_AHEAD,
    /* the same for the character before */
    CUT_BEHIND,
    /* goes to x if what follows it, up to x, matches there; not: if it does not */
    CUT_LOOK,
    /* goes on at the begin or the end of a line, or of the text */
    CUT_LINE_BEGIN,
    CUT_LINE_END,
    CUT_TEXT_BEGIN,
    CUT_TEXT_END,
    /* goes on between a character of the set and one that is none; not: elsewhere */
    CUT_BORDER,
    CUT_MATCH,
};

/* An instruction. Places are relative to it while the program is made, so that blocks can be moved
 * and copied. */
struct cutter_inst {
    uint8_t op;
    bool not ;
    /* number of a set; of a choice and of CUT_LOOK, its bit */
    uint16_t set;
    int32_t x, y;
};

/* A set of characters: bits for ASCII, sorted ranges for all. */
struct cutter_set {
    uint64_t ascii[2];
    struct cutter_ranges ranges;
};

struct cutter {
    struct cutter_inst *inst;
    uint32_t n, cap;
    struct cutter_set *set;
    uint32_t n_sets, sets_cap;
    /* words of a row of bits */
    uint32_t n_words;
    /* instructions of look-aheads of several characters; one inside another follows it */
    struct {
        uint32_t begin, end;
    } look[CUTTER_LOOKS_MAX];
    uint32_t n_looks;
    /* before[before_at[k]] to before[before_at[k + 1]] go on to instruction k at their position;
     * NULL without look-aheads */
    uint32_t *before_at;
    uint16_t *before;
};

/* Returns true if @set has @cp; UNICODE_INVALID counts as U+FFFD. */
bool cutter_set_has(const struct cutter_set *set, uint32_t cp);

/* Returns true if the condition @i, no choice or character, holds at @at. */
bool cutter_holds(const struct cutter_search *f, const struct cutter_inst *i, size_t at);
/* Returns where the character before @at > 0 begins. */
size_t cutter_before(const struct cutter_search *f, size_t at);

/* Fills c->before. Returns 0 or -ENOMEM. */
int cutter_look_prepare(struct cutter *c);
/* Answers the look-aheads of several characters for all positions of the text. Returns 0, -ENOMEM,
 * or -ECANCELED in an abandoned job. */
int cutter_look(struct cutter_search *f);
