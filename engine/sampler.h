#pragma once

/*
 * sampler - computes a token, its log probabilities and a digest from a row of logits; shared by
 * the backends that compute on the host. A pure function of the job: no state survives a call. One
 * struct per thread; nothing is allocated after sampler_init().
 *
 * NaN counts as -inf and +inf as the largest float. When every token is masked, banned or -inf, the
 * answer is the lowest id that mask and bans allow, else the lowest id that is not banned, else 0.
 */

#include "engine/types.h"

#define SAMPLER_LIST_MAX 256
#define SAMPLER_RECENT_MAX 65536u /* tokens that DRY looks at, at most */

/* Scratch memory of one thread. Invariant: count[] is zero between calls. */
struct sampler {
    uint32_t n_vocab;
    /* the CPU has AVX2 and FMA: use the code compiled for it */
    bool wide;
    /* [n_vocab rounded up to 64] processed logits, -inf at the end */
    float *z;
    /* [n_vocab] of the output tokens */
    uint32_t *count;
    /* [4096] */
    uint64_t *bins;
    uint64_t list[SAMPLER_LIST_MAX];
    /* Scratch of engine/sampler_more.c, which few requests touch. */
    /* [n_vocab] */
    uint64_t *rank;
    /* [SAMPLER_RECENT_MAX] the last tokens, last first */
    int32_t *recent;
    /* [SAMPLER_RECENT_MAX] */
    uint32_t *repeat_length;
};

/* One want; the caller owns all members. */
struct sample_job {
    /* [n_vocab], before all processors */
    const float *logits;
    /* WANT_SAMPLE or WANT_PROMPT_LP */
    const struct engine_want *want;
    /* PROMPT_LP: not read */
    const struct engine_param *param;
    /* NULL: all tokens are allowed */
    const uint32_t *mask;
    /* the token fed by engine_seq.feed, which counts as output although param does not have it; -1:
     * none */
    int32_t fed;
    /* PROMPT_LP: the prompt's next token */
    int32_t target;
    bool digest;
};

/* Allocates scratch memory. Returns 0, or -ENOMEM with nothing to deinit. */
int sampler_init(struct sampler *s, uint32_t n_vocab);
void sampler_deinit(struct sampler *s);

/* Fills *out: the token, its log probability and the digest if they are wanted, and the best tokens
 * in @top, which has room for want->n_top entries. */
void sampler_run(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                 struct engine_top *top);
/* Run the sampler with the code for any CPU or for AVX2; both agree bit for bit (test_sampler). */
void sampler_run_plain(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                       struct engine_top *top);
void sampler_run_wide(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                      struct engine_top *top);

/* -- for sampler_core.c ------------------------------------------------------------------------ */

/* Stages of sampler_more.c; they work on s->z. An excluded token becomes -inf; at least one token
 * remains if any was allowed. @inv_t: 1 / temperature. */
void sampler_dry(struct sampler *s, const struct sample_job *job);
void sampler_top_n_sigma(struct sampler *s, float n_sigma);
void sampler_typical(struct sampler *s, float mass, float inv_t);
void sampler_xtc(struct sampler *s, const struct sample_job *job, float inv_t);

/* Moves the root of a min-heap of @n ranks down to its place, @i being the root. */
static inline void sampler_sift_down(uint64_t *h, uint32_t n, uint32_t i) {
    uint64_t v = h[i];

    for (uint32_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c])
            c++;
        if (h[c] >= v)
            break;
        h[i] = h[c];
    }
    h[i] = v;
}
