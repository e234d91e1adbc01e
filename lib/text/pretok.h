#pragma once

/*
 * pretok - cuts text into words before merging, as the family of the model does.
 *
 * Files name a list of regular expressions. The first cuts the text into its matches and the parts
 * between them; each later one does the same with every piece of the previous one, as if the piece
 * were the whole text. Here an expression is a stage: a function that gives the length of the first
 * piece, so a cursor with one end per stage finds words from left to right in linear time. An
 * expression that is not known has a cutter in place of a function, which is some times slower.
 */

#include "base/gguf.h"
#include "text/cutter.h"
#include "text/unicode.h"

#define PRETOK_STAGES 6
#define PRETOK_NAMES 18

struct pretok;

/* Returns the length, > 0, of the first piece of @s[0..len), len > 0: the match of the stage's
 * expression at the start, or else all bytes before the first match. */
typedef size_t pretok_cut(const struct pretok *p, const char *s, size_t len);

/* Says what becomes of the matches of an expression and of the gaps between them. */
enum pretok_rule {
    /* each is a piece */
    PRETOK_KEEP_ALL,
    PRETOK_DROP_GAPS,
    PRETOK_DROP_MATCHES,
    /* neighbouring matches are one piece */
    PRETOK_JOIN_MATCHES,
    /* a gap is one piece with the match behind it */
    PRETOK_JOIN_GAP_MATCH,
    /* a match is one piece with the gap behind it */
    PRETOK_JOIN_MATCH_GAP,
    PRETOK_RULES,
};
extern const char *const pretok_rules[PRETOK_RULES]; /* their names in keys */
/* Returns the enum pretok_rule with the name @s, or -EINVAL. */
int pretok_rule_of(struct gguf_str s);

struct pretok {
    /* values of tokenizer.ggml.pre; the first one is shown to users */
    const char *names[PRETOK_NAMES];
    /* stages up to the first that has neither function nor cutter, at least one */
    pretok_cut *stage[PRETOK_STAGES];
    struct cutter *cutter[PRETOK_STAGES];
    /* of stages with a cutter: enum pretok_rule */
    uint8_t rule[PRETOK_STAGES];
    /* classes that count as letters */
    unsigned letter;
    /* most digits in one word */
    unsigned digits;
    /* line breaks behind punctuation do not belong to the word */
    bool no_tail;
    /* a contraction belongs to the word before it */
    bool suffix;
    /* Han characters are words of their own */
    bool han;
    /* a word that is a token is not merged */
    bool whole_words;
    /* value of add_bos if the file has none */
    bool add_bos;
    /* the text is normalised first */
    bool nfc;
};

/* Returns the row with the name @name; NULL: there is none. */
const struct pretok *pretok_find(struct gguf_str name);
/* Returns the first row that cuts as @rules do, whatever its names, whole_words, add_bos and nfc;
 * NULL: there is none. */
const struct pretok *pretok_like(const struct pretok *rules);
/* Writes the first name of each row, separated by commas, to @out, for messages. */
void pretok_list(char *out, size_t size);

/* A match of an expression, or a gap; n == 0: none. */
struct pretok_piece {
    size_t n;
    bool match;
};

/* Describes the words of @s[0..len). Invariant: at <= end[k] <= end[k - 1] <= len for every stage
 * k. */
struct pretok_cursor {
    const struct pretok *p;
    const char *s;
    size_t len, at;
    /* [k] end of the piece that stage k is cutting, and whether it is no word */
    size_t end[PRETOK_STAGES];
    bool dropped[PRETOK_STAGES];
    /* [k] of stages with a cutter; held: a piece that was found and not joined to the one before */
    struct pretok_piece held[PRETOK_STAGES];
    struct cutter_search search[PRETOK_STAGES];
};

/* Begins with the text @s; @p and @s outlive the cursor, which pretok_end() frees. */
void pretok_begin(struct pretok_cursor *c, const struct pretok *p, const char *s, size_t len);
/* Finds the next word, *@n > 0 bytes at *@word. Returns 1; 0: there is none; -ENOMEM or
 * -ECANCELED. */
int pretok_next(struct pretok_cursor *c, const char **word, size_t *n);
void pretok_end(struct pretok_cursor *c); /* accepts a zeroed one */

/* Returns the length in bytes of the run of at most @max characters of the classes @any at the
 * start. */
static inline size_t pretok_run(const char *s, size_t len, unsigned any, size_t max) {
    size_t at = 0;
    unsigned n;

    while (at < len && max-- && unicode_class_at(s + at, s + len, &n) & any)
        at += n;
    return at;
}

/* Cuts white space at the start by the expression \s*[\r\n]+ (only with @breaks) | \s+(?!\S) | \s+
 * . */
size_t pretok_white_space(const char *s, size_t len, bool breaks);
bool pretok_is_han(uint32_t cp);
/* Returns the ranges of Script=Han of Unicode 15, *@n of them. */
const uint32_t (*pretok_han(size_t *n))[2];

/* The stages; the comment above each function has its expression. */
pretok_cut pretok_gpt2, pretok_modern, pretok_cased, pretok_numbers, pretok_lines, pretok_deepseek,
    pretok_deepseek_cjk, pretok_breaks, pretok_llm_letters, pretok_llm_punct, pretok_llm_end,
    pretok_llm_cjk, pretok_coder_letters, pretok_coder_punct, pretok_number_runs,
    pretok_number_heads, pretok_afmoe_scripts, pretok_lone_digits, pretok_digit_heads,
    pretok_digit_threes, pretok_phrases;
