#pragma once

/*
 * telltale_text - computes samples from what was read; shared by the engine and its oracle. Private
 * to the tell-tale engine.
 */

#include "base/rng.h"
#include "tests/support/telltale.h"

/* Content of a page for a position. */
struct cell {
    /* hash of all positions before it, when it was written */
    uint64_t context;
    /* hash of the positions up to this one, if it is right in all classes: then reading needs no
     * hashing */
    uint64_t after;
    /* key of the block (telltale_block.h) */
    uint64_t block;
    int32_t token;
    uint32_t pos;
};

/* A bijection of each argument when the other is fixed: equal hashes mean equal inputs, with a
 * negligible probability of error. */
static inline uint64_t text_mix(uint64_t h, uint64_t v) {
    struct rng r = {h ^ v * 0xD6E8FEB86659FD93u};

    return rng_next(&r);
}

/* Returns the hash before anything was read. */
static inline uint64_t text_begin(void) {
    return text_mix(0, 0x74656C6C74616C65u);
}

/* Returns the context of a cell after @h. */
static inline uint64_t text_context(uint64_t h, uint32_t cls) {
    return h + cls + 1;
}

static inline uint64_t text_read(uint64_t h, const struct cell *c) {
    return text_mix(text_mix(h, c->context), (uint64_t)(uint32_t)c->token << 32 | c->pos);
}

/* Returns the hash after one more position that is right in all classes. */
static inline uint64_t text_next(const struct telltale *t, uint64_t h, int32_t token,
                                 uint32_t pos) {
    uint64_t before = h;

    for (uint32_t cls = 0; cls < KV_CLASSES; cls++) {
        struct cell c = {.context = text_context(before, cls), .token = token, .pos = pos};

        if (t->classes >> cls & 1)
            h = text_read(h, &c);
    }
    return h;
}

#define TEXT_WIDTH_MAX 64u /* most values of a row of a picture */

/* Writes rows [row0, row0 + n_rows) of a picture, of @width values each. */
void text_rows(float *out, uint32_t width, const uint8_t *rgb, const struct picture_layout *l,
               uint32_t row0, uint32_t n_rows);
/* Returns the number that is read for a row with these values of picture @p, which is negative. */
int32_t text_row(const struct engine_picture *p, const float *values, uint32_t width);

/* Tokens before the sample: @n of a sequence, then @n_more (a fed token, drafts). */
struct history {
    const int32_t *token, *more;
    uint32_t n_prompt, n, n_more;
};

/* Tokens that may be sampled: as bits, or by a function; neither: all. */
struct text_mask {
    const uint32_t *bits;
    bool (*allows)(void *ctx, int32_t token);
    void *ctx;
};

bool text_penalised(const struct engine_param *p);
int32_t text_sample(const struct telltale *t, uint64_t h, const struct engine_param *p,
                    uint32_t out_pos, const struct text_mask *mask, const struct history *history);
/* Returns another token that may be sampled; @token if there is none. */
int32_t text_other(const struct telltale *t, uint64_t h, const struct engine_param *p,
                   const struct text_mask *mask, int32_t token);
float text_logprob(uint64_t h, int32_t token);

static inline uint64_t text_digest(uint64_t h) {
    return text_mix(h, 3);
}

void text_top(const struct telltale *t, uint64_t h, uint32_t n_top, struct engine_top *top);
float text_value(uint64_t h, uint32_t what, uint32_t i); /* returns element i of a vector */
