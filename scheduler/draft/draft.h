#pragma once

/*
 * draft - where drafts come from: a table of sources, each of which drafts what a sequence goes
 * on with from tokens alone. A drafted token costs a row of the step and is checked by the model;
 * whether it is worth that is not decided here (scheduler/spec.h).
 *
 * A source works incrementally: it is asked now and then, sees what has been added since, and
 * takes time in proportion to that. No match, no draft.
 */

#include <stdbool.h>
#include <stdint.h>

struct constraint_state;
struct tokenizer;

#define DRAFT_MAX 32u        /* tokens of a draft */
#define DRAFT_SOURCES_MAX 6u /* rows of a table */
#define DRAFT_CATCH_UP 8192u /* tokens that a source reads at most in one call */

struct draft_source;

/* Tokens that the draft model, or the model's own block, drafts behind tokens[at - 1]. */
struct draft_tokens {
    const struct draft_source *by; /* draft_model or draft_mtp */
    int32_t token[DRAFT_MAX];
    uint32_t n, at;
};

/* Text as a source sees it. tokens and its counts change between calls, and may be elsewhere. */
struct draft_text {
    const int32_t *tokens; /* n_prompt of the prompt, the rest output */
    uint32_t n_prompt, n_tokens;
    const int32_t *prediction; /* expected output, from the request; or NULL */
    uint32_t n_prediction;
    const struct draft_tokens *drafted; /* NULL: there is neither */
    struct constraint_state *matcher;   /* after the last token; looked at, not moved; or NULL */
    const struct tokenizer *tokenizer;  /* or NULL */
    const uint8_t *isolation_key; /* [16] only outputs under the same key may show in a draft */
};

struct draft_source {
    const char *name;
    float prior; /* probability that a drafted token is right, before anything is known */

    /* Makes what all sequences have in common; may be NULL. Returns 0 or -ENOMEM. */
    int (*share)(void **common);
    void (*unshare)(void *common);
    /* A sequence begins. *state stays NULL: this source has nothing for it. 0 or -ENOMEM. */
    int (*begin)(void **state, void *common, const struct draft_text *t);
    void (*end)(void *state);
    /* At most @max tokens that may follow; returns how many. */
    uint32_t (*propose)(void *state, const struct draft_text *t, int32_t *out, uint32_t max);
    /* A sequence has ended, well or not; NULL: does not care. */
    void (*finish)(void *common, const struct draft_text *t);
};

extern const struct draft_source draft_forced;     /* tokens that the constraint forces */
extern const struct draft_source draft_prediction; /* the request's expected output */
extern const struct draft_source draft_suffix;     /* the sequence's own history */
extern const struct draft_source draft_model;      /* drafts of a small model */
extern const struct draft_source draft_mtp;        /* drafts of the model's own block */
extern const struct draft_source draft_recent;     /* recent outputs under the same isolation key */
