#pragma once

/*
 * sampler - from a row of logits to a token, its log probabilities and the row's digest; shared by
 * the backends that compute on the host. A pure function of the job: no state survives a call. One
 * struct per thread; nothing is allocated after sampler_init().
 *
 * NaN counts as -inf and +inf as the largest float. When every token is masked, banned or -inf, the
 * answer is the lowest id that mask and bans allow, else the lowest id that is not banned, else 0.
 */

#include "engine/types.h"

#define SAMPLER_LIST_MAX 256

struct sampler {
    uint32_t n_vocab;
    bool wide;       /* this CPU has AVX2 and FMA: use the copy of the code compiled for it */
    float *z;        /* [n_vocab rounded up to 64] processed logits, -inf at the end */
    uint32_t *count; /* [n_vocab] of the output tokens; zero between calls */
    uint64_t *bins;  /* [4096] */
    uint64_t list[SAMPLER_LIST_MAX];
};

struct sample_job {
    const float *logits;              /* [n_vocab], before all processors */
    const struct engine_want *want;   /* WANT_SAMPLE or WANT_PROMPT_LP */
    const struct engine_param *param; /* PROMPT_LP: not read */
    const uint32_t *mask;             /* NULL: all tokens are allowed */
    int32_t fed; /* the token that `feed` put in front of the row, to be added to the outputs; -1 */
    int32_t target; /* PROMPT_LP: the prompt's next token */
    bool digest;
};

/* 0 or -ENOMEM, then there is nothing to deinit. */
int sampler_init(struct sampler *s, uint32_t n_vocab);
void sampler_deinit(struct sampler *s);

/* Fills *out for a want of samples or of a prompt's log probabilities: the token, its log
 * probability if it is wanted, the digest if it is, the best tokens to @top, which has room for
 * want->n_top entries. */
void sampler_run(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                 struct engine_top *top);
/* The same with the code for any CPU or for AVX2; they agree bit for bit (test_sampler). */
void sampler_run_plain(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                       struct engine_top *top);
void sampler_run_wide(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                      struct engine_top *top);
