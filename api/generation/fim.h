#pragma once

/*
 * fim - fill in the middle: the tokens by which a model is asked for what stands between two texts,
 * as editors ask. Found by their names; files do not agree on keys for them.
 */

#include "text/tokenizer.h"

#define FIM_ENDS_MAX 8

struct fim {
    int32_t prefix, suffix,
        middle; /* prefix -1: the model has none; middle -1: nothing ends the prompt */
    bool suffix_first;
    int32_t ends[FIM_ENDS_MAX]; /* with which such texts end, besides the usual ones */
    uint32_t n_ends;
};

void fim_init(struct fim *f, const struct tokenizer *t);
/* The prompt for what stands between @before and @after: 0, -ENOMEM, -EMSGSIZE. */
int fim_encode(const struct fim *f, const struct tokenizer *t, const char *before, size_t n_before,
               const char *after, size_t n_after, struct tokens *out);
