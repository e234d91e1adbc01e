#pragma once

/*
 * draft - sources of drafts: each one predicts how a sequence continues from tokens alone. A
 * drafted token costs a row of the step, and the model checks it; scheduler/spec.h decides whether
 * it is worth that. A source works incrementally: it reads the tokens added since the last call, in
 * time proportional to their number. A source that finds no match drafts nothing.
 */

#include <stdbool.h>
#include <stdint.h>

struct constraint_state;
struct tokenizer;

#define DRAFT_MAX 32u        /* most tokens of a draft */
#define DRAFT_SOURCES_MAX 6u /* most sources of a table */
#define DRAFT_CATCH_UP 8192u /* most tokens that a source reads in one call */

struct draft_source;

/* Tokens that the draft model, or the model's own block, has drafted after tokens[at - 1]. */
struct draft_tokens {
    /* draft_model or draft_mtp */
    const struct draft_source *by;
    int32_t token[DRAFT_MAX];
    uint32_t n, at;
};

/* Text as a source sees it. Counts and the address of tokens change between calls. */
struct draft_text {
    /* prompt of n_prompt tokens, then output */
    const int32_t *tokens;
    uint32_t n_prompt, n_tokens;
    /* expected output given by the request, or NULL */
    const int32_t *prediction;
    uint32_t n_prediction;
    /* drafts of the small model or the block; NULL: none */
    const struct draft_tokens *drafted;
    /* state of the constraint after the last token, read only; NULL: none */
    struct constraint_state *matcher;
    /* NULL: there is none */
    const struct tokenizer *tokenizer;
    /* [16] drafts may only use outputs under the same key */
    const uint8_t *isolation_key;
};

struct draft_source {
    const char *name;
    /* prior probability that a drafted token is right */
    float prior;

    /* Makes the state that all sequences share; may be NULL. Returns 0 or -ENOMEM. */
    int (*share)(void **common);
    void (*unshare)(void *common);
    /* Begins a sequence; *state NULL: this source drafts nothing for it. Returns 0 or -ENOMEM. */
    int (*begin)(void **state, void *common, const struct draft_text *t);
    void (*end)(void *state);
    /* Writes at most @max tokens that may follow to @out; returns their number. */
    uint32_t (*propose)(void *state, const struct draft_text *t, int32_t *out, uint32_t max);
    /* Notes that a sequence has ended, for whatever reason; may be NULL. */
    void (*finish)(void *common, const struct draft_text *t);
};

extern const struct draft_source draft_forced;     /* tokens that the constraint forces */
extern const struct draft_source draft_prediction; /* the request's expected output */
extern const struct draft_source draft_suffix;     /* the sequence's own history */
extern const struct draft_source draft_model;      /* drafts of a small model */
extern const struct draft_source draft_mtp;        /* drafts of the model's own block */
extern const struct draft_source draft_recent;     /* recent outputs under the same isolation key */
