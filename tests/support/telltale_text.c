#define XXH_INLINE_ALL
#include "tests/support/telltale_text.h"

#include <string.h>
#include <xxhash.h>

#define GREEDY_BELOW 1e-5f /* as in engine/sampler */
#define LOGPROB_STEPS (1u << 20)

static uint64_t bits_of(float f) {
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

void text_rows(float *out, uint32_t width, const uint8_t *rgb, const struct picture_layout *l,
               uint32_t row0, uint32_t n_rows) {
    uint64_t h = XXH3_64bits(rgb, 3 * (size_t)l->width * l->height);

    h = text_mix(h, (uint64_t)l->width << 32 | l->height);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t k = 0; k < width; k++)
            out[(size_t)r * width + k] = text_value(h, row0 + r, k);
}

int32_t text_row(const struct engine_picture *p, const float *values, uint32_t width) {
    uint64_t h = XXH3_64bits(values, width * sizeof(*values));

    h = text_mix(h, (uint64_t)p->n_columns << 32 | p->n_lines);
    h = text_mix(h, (uint64_t)p->n_rows << 32 | p->n_positions);
    return (int32_t)(h | 1u << 31);
}

bool text_penalised(const struct engine_param *p) {
    return p->repetition != 1.0f || p->presence != 0.0f || p->frequency != 0.0f;
}

/* Mixes in the history. The repetition penalty sees the prompt too, the others only the output.
 * Every token is mixed with its position and all are added, so that no operation waits for the one
 * before. */
static uint64_t mix_history(uint64_t h, const struct engine_param *p, const struct history *y) {
    uint32_t from = p->repetition != 1.0f ? 0 : y->n_prompt, n = y->n;
    uint64_t sum = 0;

    for (uint32_t i = from; i < n; i++)
        sum += text_mix(i - from, (uint32_t)y->token[i]);
    for (uint32_t i = 0; i < y->n_more; i++)
        sum += text_mix(MAX(n, from) - from + i, (uint32_t)y->more[i]);
    h = text_mix(h, bits_of(p->repetition));
    h = text_mix(h, bits_of(p->presence) << 32 | bits_of(p->frequency));
    return text_mix(h, sum);
}

static bool allowed(const struct engine_param *p, const struct text_mask *mask, int32_t token) {
    if (mask->bits && !(mask->bits[token / 32] >> (token % 32) & 1))
        return false;
    if (mask->allows && !mask->allows(mask->ctx, token))
        return false;
    for (uint32_t i = 0; i < p->n_bans; i++)
        if (p->bans[i] == token)
            return false;
    return true;
}

/* Draws a token, again if it is forbidden; so a ban changes nothing if it does not forbid the drawn
 * token. */
static int32_t draw(const struct telltale *t, uint64_t h, const struct engine_param *p,
                    const struct text_mask *mask) {
    uint32_t n = (uint32_t)(t->last - t->first) + 1;
    struct rng r = {h};

    for (int i = 0; i < 256; i++) {
        bool end = rng_below(&r, 1024) < t->end_per_1024;
        int32_t token = t->first + (int32_t)rng_below(&r, n);

        if (end)
            token = t->end;
        else if (token == t->end && t->end_per_1024 > 0)
            continue;
        if (allowed(p, mask, token))
            return token;
    }
    int32_t start = (int32_t)rng_below(&r, t->n_vocab);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        int32_t token = (int32_t)(((uint32_t)start + i) % t->n_vocab);

        if (allowed(p, mask, token))
            return token;
    }
    return 0;
}

int32_t text_sample(const struct telltale *t, uint64_t h, const struct engine_param *p,
                    uint32_t out_pos, const struct text_mask *mask, const struct history *history) {
    uint64_t bias = 0; /* the order of the list has no effect */

    h = text_mix(h, 1);
    for (uint32_t i = 0; i < p->n_bias; i++)
        bias += text_mix((uint32_t)p->bias[i].token, bits_of(p->bias[i].bias));
    h = text_mix(h, bias);
    if (text_penalised(p))
        h = mix_history(h, p, history);
    if (p->temperature >= GREEDY_BELOW) {
        h = text_mix(h, bits_of(p->temperature));
        h = text_mix(h, bits_of(p->top_p) << 32 | bits_of(p->min_p));
        h = text_mix(h, (uint64_t)p->top_k << 32 | p->choice);
        h = text_mix(text_mix(h, p->seed), out_pos);
    }
    return draw(t, h, p, mask);
}

int32_t text_other(const struct telltale *t, uint64_t h, const struct engine_param *p,
                   const struct text_mask *mask, int32_t token) {
    uint32_t n = (uint32_t)(t->last - t->first) + 1, start = (uint32_t)(text_mix(h, 6) % n);

    for (uint32_t i = 0; i < n; i++) {
        int32_t other = t->first + (int32_t)((start + i) % n);

        if (other != token && allowed(p, mask, other))
            return other;
    }
    return token;
}

/* @h: mixed with 2. */
static float logprob_of(uint64_t h, int32_t token) {
    return -(float)(text_mix(h, (uint32_t)token) % LOGPROB_STEPS) / (LOGPROB_STEPS / 16);
}

float text_logprob(uint64_t h, int32_t token) {
    return logprob_of(text_mix(h, 2), token);
}

void text_top(const struct telltale *t, uint64_t h, uint32_t n_top, struct engine_top *top) {
    uint64_t all = text_mix(h, 2);
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n_vocab; i++) {
        struct engine_top x = {(int32_t)i, logprob_of(all, (int32_t)i)};
        uint32_t at = n;

        if (n == n_top && (n == 0 || top[n - 1].logprob >= x.logprob))
            continue;
        while (at > 0 && top[at - 1].logprob < x.logprob)
            at--;
        n = MIN(n + 1, n_top);
        memmove(&top[at + 1], &top[at], (n - 1 - at) * sizeof(*top));
        top[at] = x;
    }
    for (; n < n_top; n++)
        top[n] = (struct engine_top){-1, 0.0f};
}

float text_value(uint64_t h, uint32_t what, uint32_t i) {
    return (float)(text_mix(text_mix(h, 4 + what), i) >> 40) * 0x1p-23f - 1.0f;
}
