#pragma once

/*
 * golden - expected values of the test data (golden/NAME.json and models/NAME.golden.json): logits
 * and greedy continuations of another implementation with exact arithmetic.
 */

#include <stdbool.h>

#include "base/util.h"

enum {
    GOLDEN_CASES = 16,
    GOLDEN_STEPS = 64,
    GOLDEN_SPOTS = 8,
    GOLDEN_BEST = 20,
    GOLDEN_DRAFTS = 3
};

struct golden_step {
    int32_t id, second;
    /* margin: logit of id minus logit of second */
    float logit, margin;
};

struct golden_spot { /* the best of the logits at a position of the prompt */
    uint32_t pos, n;
    int32_t id[GOLDEN_BEST];
    float value[GOLDEN_BEST];
};

struct golden_draft { /* drafts of the model's own block, or of its assistant */
    int32_t id;
    uint32_t n;
    /* [n] */
    float *logits;
};

struct golden_case {
    uint32_t n_prompt, n_last, n_spots, n_greedy;
    int32_t *prompt;
    /* [n_last] all logits after the prompt; n_last 0: not given */
    float *last;
    /* GELU was computed by a table of half precision, except in @last, which is exact. */
    bool from_table;
    struct golden_spot spot[GOLDEN_SPOTS];
    struct golden_step greedy[GOLDEN_STEPS];
    /* Drafts after the prompt and the first greedy token; n_drafts 0: the model has no drafting
     * block. The file of an assistant has only these, the prompt and that token, greedy[0].id. */
    uint32_t n_drafts;
    struct golden_draft draft[GOLDEN_DRAFTS];
};

struct golden_label {
    /* "" for files in models/ */
    char arch[32], type[32];
};

struct golden {
    struct golden_label label;
    uint32_t n_cases;
    struct golden_case cases[GOLDEN_CASES];
};

/* Architecture and format of the model, for a file of golden/. */
struct golden_label golden_label(const char *path);
/* Fails the test if the file is missing or not as described. */
struct golden *golden_load(const char *path);
struct golden *golden_free(struct golden *g);
DEFINE_FREEP(struct golden, golden)
