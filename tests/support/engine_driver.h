#pragma once

/*
 * engine_driver - drives engine.h without a scheduler: opens a model, hands out pages in a shuffled
 * order, runs steps with whatever mix of sequences and rows the caller wants, and keeps what came
 * out. For tests and benchmarks. What can only go wrong through a mistake of the caller aborts.
 */

#include "engine/engine.h"

struct driver_out {
    int32_t token;
    float logprob;
    uint64_t digest;
};

/* A sequence: n_tokens are known, n_computed of them are in its pages. */
struct driver_seq {
    int32_t *token; /* [cap] prompt, then outputs */
    uint32_t n_prompt, n_tokens, n_computed, cap;
    uint32_t *page;
    uint32_t n_pages;
    struct driver_out *out; /* [cap - n_prompt] samples; n_out of them */
    uint32_t state_slot;
    const struct engine_picture *picture; /* [n_pictures] the caller's, set behind driver_add() */
    uint32_t n_pictures;
    uint32_t n_out, launched; /* launched: rows of steps not yet waited for included */
    struct engine_param param;
    const int32_t *forced; /* [cap - n_prompt] when set: what follows whatever was sampled */
    const uint32_t *mask;  /* allowed tokens, or NULL */
    int32_t draft[ENGINE_DRAFT_MAX]; /* of driver_draft() */
    bool every_row;                  /* ask for a sample at every row, for on_out */
    bool vectors;                    /* ask for the hidden vector of every row, for on_out */
    uint8_t n_top;
};

struct driver_opts {
    const char *backend, *isa, *path;                             /* NULL: reference, auto */
    uint32_t n_threads, n_pages, page_tokens, max_rows, max_seqs; /* 0: 1, 64, 16, 512, 32 */
    struct kv_formats kv_type;
    uint64_t shuffle;   /* seed of the order of the pages */
    uint32_t max_wants; /* 0: max_rows */
    uint32_t n_listed;  /* pages in all page tables of a step, shared ones each time; 0: n_pages */
    uint32_t n_host_pages;
    int keep_fd; /* as engine_opts has it, and the next */
    char *devices;
    uint32_t host_experts, device_layers;
    int experts_fd;
    bool keeps_place, fetches_experts;
    bool drafts;           /* with the model's own block */
    const char *block;     /* a path: where that is in a file of its own */
    const char *projector; /* a path, or NULL */
    uint32_t picture_rows; /* as engine_opts has it */
    uint32_t n_snapshots;  /* of recurrent states; in host memory where host_kv_bytes is not 0 */
    uint64_t host_kv_bytes;
    uint64_t *step_progress; /* as engine_opts has it */
    void (*on_out)(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                   const float *logits); /* logits NULL when the backend does not show them */
    void *ctx;
};

/* Rows [n_computed, n_computed + n_rows) of a sequence in a step. When they reach n_tokens, a token
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
    uint64_t step, waited; /* last launched, last waited for */
    bool holes;            /* engine_batch.holes of the next steps */
};

int driver_open(struct driver *d, const struct driver_opts *opts, struct err *err);
void driver_close(struct driver *d);

/* A sequence that may grow to n_prompt + n_max tokens. @param: sampling; tokens and counts are
 * filled in by the driver; NULL: greedy. Returns NULL when the pages are not enough. */
struct driver_seq *driver_add(struct driver *d, const int32_t *prompt, uint32_t n_prompt,
                              uint32_t n_max, const struct engine_param *param);
struct driver_seq *driver_drop(struct driver *d, struct driver_seq *s); /* returns NULL */

/* One step, from launch to wait. */
void driver_step(struct driver *d, const struct driver_part *part, uint32_t n);
/* Computes the prompt in chunks of at most @chunk rows (0: as many as a batch takes); the last one
 * samples. */
void driver_prefill(struct driver *d, struct driver_seq *s, uint32_t chunk);
/* @n more tokens for every sequence, all in each batch. With @overlap a step is launched before the
 * one before is waited for. */
void driver_decode(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs, uint32_t n,
                   bool overlap);

/* A row of the model's own block, or of the n_ahead-th of several, for every sequence, @n_ahead
 * positions beyond the last known token: draft[n_ahead] follows draft[n_ahead - 1], and draft[0]
 * the last known token, whose row is all that the sequence lacks. on_out is told, with the position
 * of the row. */
void driver_draft(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs,
                  uint32_t n_ahead);

/* The block of every sequence behind its last known token (engine_info.n_block), whose row is all
 * that the sequence lacks: draft[i] is the sample of row first_draft + i. on_out is told of all
 * rows. */
void driver_block(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs);

/* The state of @s, which no step in flight has, to snapshot @i, and back: it then has @n_tokens
 * computed. */
void driver_save(struct driver *d, const struct driver_seq *s, uint32_t i);
void driver_load(struct driver *d, struct driver_seq *s, uint32_t i, uint32_t n_tokens);

/* The step, in its two halves: at most two launched. A part whose last token is still being sampled
 * by the step before has n_rows 1 and takes it by `feed`. */
void driver_launch(struct driver *d, const struct driver_part *part, uint32_t n);
void driver_wait(struct driver *d);
