#pragma once

/*
 * engine_driver - drives engine.h without a scheduler, for tests and benchmarks: opens a model,
 * gives out pages in a shuffled order, runs steps with any mix of sequences and rows, and keeps the
 * results. Mistakes of the caller abort.
 */

#include "engine/engine.h"

struct driver_out {
    int32_t token;
    float logprob;
    uint64_t digest;
};

/* A sequence: n_tokens are known, n_computed of them are in its pages. */
struct driver_seq {
    /* [cap] prompt, then outputs */
    int32_t *token;
    uint32_t n_prompt, n_tokens, n_computed, cap;
    uint32_t *page;
    /* the first n_shared belong to another sequence */
    uint32_t n_pages, n_shared;
    /* [cap - n_prompt] samples; n_out of them */
    struct driver_out *out;
    uint32_t state_slot;
    /* [n_pictures] owned by the caller, set after driver_add() */
    const struct engine_picture *picture;
    uint32_t n_pictures;
    /* launched: n_computed, including the rows of steps in flight */
    uint32_t n_out, launched;
    struct engine_param param;
    /* [cap - n_prompt] if set: the tokens that follow, whatever was sampled */
    const int32_t *forced;
    /* allowed tokens, or NULL */
    const uint32_t *mask;
    /* draft of driver_draft() */
    int32_t draft[ENGINE_DRAFT_MAX];
    /* samples at every row, for on_out */
    bool every_row;
    /* returns the hidden vector of every row, for on_out */
    bool vectors;
    uint8_t n_top;
};

struct driver_opts {
    /* NULL: reference, auto */
    const char *backend, *isa, *path;
    /* 0: 1, 64, 16, 512, 32 */
    uint32_t n_threads, n_pages, page_tokens, max_rows, max_seqs;
    struct kv_formats kv_type;
    /* seed of the order of the pages */
    uint64_t shuffle;
    /* 0: max_rows */
    uint32_t max_wants;
    /* pages in all page tables of a step, shared pages counted each time; 0: n_pages */
    uint32_t n_listed;
    uint32_t n_host_pages;
    /* as in engine_opts, and the next member */
    int keep_fd;
    char *devices;
    uint32_t host_experts, device_layers;
    int experts_fd;
    bool keeps_place, fetches_experts;
    /* opens the model's own block */
    bool drafts;
    /* path of the block's file; NULL: it is in the model's file */
    const char *block;
    /* a path, or NULL */
    const char *projector;
    /* as in engine_opts */
    uint32_t picture_rows;
    /* snapshots of recurrent states, in host memory if host_kv_bytes is not 0 */
    uint32_t n_snapshots;
    uint64_t host_kv_bytes;
    /* as in engine_opts */
    uint64_t *step_progress;
    void (*on_out)(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                   /* logits is NULL if the backend does not return them */
                   const float *logits);
    void *ctx;
};

/* Rows [n_computed, n_computed + n_rows) of a sequence in a step. If they reach n_tokens, a token
 * is sampled and added. */
struct driver_part {
    struct driver_seq *seq;
    uint32_t n_rows;
};

struct driver_batch;

struct driver {
    struct gguf *file, *block, *projector;
    struct engine *engine;
    const struct engine_info *info;
    struct driver_opts opts;
    uint32_t *free_page, n_free, *free_state, n_free_states;
    struct driver_batch *batch[2];
    /* numbers of the last launched step and of the last one waited for */
    uint64_t step, waited;
    /* engine_batch.holes of the next steps */
    bool holes;
};

int driver_open(struct driver *d, const struct driver_opts *opts, struct err *err);
void driver_close(struct driver *d);

/* A sequence that may grow to n_prompt + n_max tokens. @param: sampling; tokens and counts are
 * filled in by the driver; NULL: greedy. Returns NULL if there are not enough pages. */
struct driver_seq *driver_add(struct driver *d, const int32_t *prompt, uint32_t n_prompt,
                              uint32_t n_max, const struct engine_param *param);
struct driver_seq *driver_drop(struct driver *d, struct driver_seq *s); /* returns NULL */
/* Lets @s continue from the first @shared tokens of @first: replaces its pages of these tokens by
 * those of @first, which must live as long as @s. */
void driver_share(struct driver *d, struct driver_seq *s, const struct driver_seq *first,
                  uint32_t shared);

/* Runs one step, from launch to wait. */
void driver_step(struct driver *d, const struct driver_part *part, uint32_t n);
/* Computes the prompt in chunks of at most @chunk rows (0: as many as a batch takes); the last one
 * samples. */
void driver_prefill(struct driver *d, struct driver_seq *s, uint32_t chunk);
/* Decodes @n more tokens of every sequence, all in each batch. With @overlap a step is launched
 * before the one before is waited for. */
void driver_decode(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs, uint32_t n,
                   bool overlap);

/* Runs a row of the model's own block, or of number n_ahead of several, for every sequence,
 * @n_ahead positions beyond the last known token: draft[n_ahead] follows draft[n_ahead - 1], and
 * draft[0] the last known token, whose row is the only one that the sequence lacks. on_out gets the
 * position of the row. */
void driver_draft(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs,
                  uint32_t n_ahead);

/* Runs the block of every sequence behind its last known token (engine_info.n_block), whose row is
 * the only one that the sequence lacks: draft[i] is the sample of row first_draft + i. on_out is
 * called for all rows. */
void driver_block(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs);

/* Copy the state of @s, which no step in flight has, to snapshot @i, and back; afterwards @n_tokens
 * are computed. */
void driver_save(struct driver *d, const struct driver_seq *s, uint32_t i);
void driver_load(struct driver *d, struct driver_seq *s, uint32_t i, uint32_t n_tokens);

/* Run a step in two halves; at most two are launched. A part whose last token is still being
 * sampled by the step before has n_rows 1 and takes it by `feed`. */
void driver_launch(struct driver *d, const struct driver_part *part, uint32_t n);
void driver_wait(struct driver *d);
