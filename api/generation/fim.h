#pragma once

/* fim - fill in the middle: the special tokens with which an editor asks a model for the text
 * between two texts. The file names them by keys; in other files they are found by their names. */

#include "text/tokenizer.h"

#define FIM_ENDS_MAX 8

/* The tokens of one model: prefix BEFORE suffix AFTER middle, or with suffix_first suffix AFTER
 * prefix BEFORE middle. */
struct fim {
    /* -1: the model has none */
    int32_t prefix;
    /* middle -1: nothing ends the prompt */
    int32_t suffix, middle;
    bool suffix_first;
    /* with which such texts end, besides the usual ones */
    int32_t ends[FIM_ENDS_MAX];
    uint32_t n_ends;
};

/* Looks the tokens of @t up. */
void fim_init(struct fim *f, const struct tokenizer *t);
/* Adds to @out the prompt for the text between @before and @after, of a model that has a prefix
 * token. Returns 0, -ENOMEM or -EMSGSIZE. Runs on any thread. */
int fim_encode(const struct fim *f, const struct tokenizer *t, const char *before, size_t n_before,
               const char *after, size_t n_after, struct tokens *out);
