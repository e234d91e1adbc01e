#pragma once

/*
 * bench_run - drives engine.h directly: sequences in fixed slots, each with its own pages, greedy
 * sampling, no scheduler and no HTTP.
 */

#include "engine/engine.h"

/* Options of the engine that a run opens; strings outlive the run. */
struct run_opts {
    const char *model, *backend, *isa;
    uint32_t n_threads;
    struct kv_formats kv_type;
    /* largest number of rows of a step; a longer prompt takes several steps */
    uint32_t max_rows;
    /* number of slots */
    uint32_t max_seqs;
    /* largest length of a sequence */
    uint32_t max_tokens;
};

/* The arrays of one step, in use until the step is waited for. */
struct run_batch {
    struct engine_batch b;
    int32_t *token;
    struct engine_seq *seq;
    struct engine_want *want;
    uint32_t *start, *page;
};

/* Invariants: slot s has pages [s, s + 1) * pages_per_seq; at most two steps are under way, and
 * batch[] of both are not touched. */
struct run {
    struct gguf *file;
    struct engine *engine;
    const struct engine_info *info;
    struct run_opts opts;
    uint32_t pages_per_seq;
    /* [max_seqs] number of tokens of each slot that are its prompt */
    uint32_t *n_prompt;
    /* number of the last launched step */
    uint64_t step;
    /* bytes of weights that decoding one token reads */
    uint64_t bytes_per_token;
    /* the batch of step s is batch[s % 2] */
    struct run_batch batch[2];
};

/* Opens the model with room for max_seqs sequences of max_tokens. Returns 0, or -errno with @err
 * and nothing open. */
int run_open(struct run *r, const struct run_opts *opts, struct err *err);
void run_close(struct run *r); /* accepts a zeroed one */

/* Computes the prompt tokens [pos0, pos0 + n) of slot @slot, in steps of max_rows; they end the
 * prompt. *next (may be NULL) is the token that follows them. Returns 0 or -EIO. */
int run_prefill(struct run *r, uint32_t slot, uint32_t pos0, const int32_t *tokens, uint32_t n,
                int32_t *next);

/* Decodes one token of each of @n slots: @tokens[i] at @pos[i] of slot @slots[i]. @next[i] is the
 * token that follows it. */
int run_decode(struct run *r, uint32_t n, const uint32_t *slots, const uint32_t *pos,
               const int32_t *tokens, int32_t *next);

/* Generates @n_tokens greedy tokens in each of slots 0 to @n_seqs - 1 from position @pos0 on,
 * beginning with @first[i]; @last[i] (may be NULL) gets the token that follows them. Steps overlap
 * as far as the engine allows. */
int run_generate(struct run *r, uint32_t n_seqs, uint32_t pos0, uint32_t n_tokens,
                 const int32_t *first, int32_t *last);
