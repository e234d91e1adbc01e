#pragma once

/*
 * telltale_text - from what was read to what comes out; shared by the engine and its oracle. Private
 * to the tell-tale engine.
 */

#include "tests/support/telltale.h"

/* What a page holds of a position. */
struct cell {
    uint64_t context; /* hash of all positions before it, when it was written */
    uint64_t
        after; /* and of those up to it, right in all classes: reading what is right hashes nothing */
    int32_t token;
    uint32_t pos;
};

uint64_t text_mix(uint64_t h, uint64_t v);
uint64_t text_begin(void); /* nothing read yet */

/* What belongs in a cell after @h. */
static inline uint64_t text_context(uint64_t h, uint32_t cls) {
    return h + cls + 1;
}

uint64_t text_read(uint64_t h, const struct cell *c);
/* The hash after one more position that is right in all classes. */
uint64_t text_next(const struct telltale *t, uint64_t h, int32_t token, uint32_t pos);

/* Tokens before the sample: @n of a sequence, then @n_more (a fed token, drafts). */
struct history {
    const int32_t *token, *more;
    uint32_t n_prompt, n, n_more;
};

bool text_penalised(const struct engine_param *p);
int32_t text_sample(const struct telltale *t, uint64_t h, const struct engine_param *p,
                    uint32_t out_pos, const uint32_t *mask, const struct history *history);
float text_logprob(uint64_t h, int32_t token);
uint64_t text_digest(uint64_t h);
void text_top(const struct telltale *t, uint64_t h, uint32_t n_top, struct engine_top *top);
float text_value(uint64_t h, uint32_t what, uint32_t i); /* element i of a vector */
