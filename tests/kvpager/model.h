#pragma once

/*
 * model - compares the pager with a naive model. Every operation is performed on both, and all
 * observable values are compared; a difference prints a line and aborts.
 *
 * The model has no pages, hashes or lists: the published prefixes are an array of token lists (a
 * prefix that ends at a page's end, and its isolation key), a sequence is its tokens and two
 * lengths. A shadow of the pages' contents is written as an engine would write it, drafts included,
 * and read back through the real page tables after each operation.
 *
 * A sequence's tokens are decided when it begins (struct model_seq.token); operations only move the
 * length that is committed.
 */

#include <stdbool.h>

#include "base/rng.h"
#include "kvpager/kvpager.h"

#ifndef MODEL_MAX_TOKENS
#define MODEL_MAX_TOKENS 64
#define MODEL_MAX_SEQS 8
#define MODEL_MAX_PAGES 64
#endif

struct model_entry {
    uint8_t share;
    uint32_t n;
    int32_t token[MODEL_MAX_TOKENS];
    /* time at which its last holder released it */
    uint64_t given_back;
    /* number of its snapshot + 1; 0: none */
    uint32_t snapshot;
    /* it has a window page */
    bool window;
    /* its last holder ended there and did not just move past it */
    bool ended;
    /* time at which its window page became idle */
    uint64_t idle_since;
};

struct model_seq {
    /* NULL: the sequence does not exist */
    struct kv_seq *real;
    uint8_t share;
    int32_t token[MODEL_MAX_TOKENS];
    uint32_t n_committed, n_pages;
    /* as model_entry.snapshot */
    uint32_t passing;
    /* n_behind: pages that it has passed; n_found: tokens that were found for it */
    uint32_t n_behind, n_found;
    uint32_t n_wanted;
    bool pinned;
};

struct model {
    struct kv_opts opts;
    struct kv_pager *pager;
    struct model_seq seq[MODEL_MAX_SEQS];
    struct model_entry entry[MODEL_MAX_PAGES];
    uint32_t n_entries;
    uint64_t now;
    /* counters since the start */
    struct kv_stats count;
    int32_t shadow[MODEL_MAX_PAGES][MODEL_MAX_TOKENS];
    /* contents of window pages */
    int32_t window_shadow[MODEL_MAX_PAGES][MODEL_MAX_TOKENS];
};

void model_init(struct model *m, const struct kv_opts *opts);
void model_deinit(struct model *m);

/* Makes a sequence; @token: MODEL_MAX_TOKENS tokens. Returns false if max_seqs sequences exist. */
bool model_new(struct model *m, uint32_t seq, uint8_t share, const int32_t *token);
void model_want(struct model *m, uint32_t seq, uint32_t n_tokens);
void model_free(struct model *m, uint32_t seq);
void model_attach(struct model *m, uint32_t seq, uint32_t n_tokens);
bool model_grow(struct model *m, uint32_t seq, uint32_t n_tokens); /* returns false for KV_FULL */
void model_commit(struct model *m, uint32_t seq, uint32_t n_tokens);
void model_truncate(struct model *m, uint32_t seq, uint32_t n_tokens);
void model_keep(struct model *m, uint32_t seq);
/* Makes a snapshot behind its tokens, which end at a page's end; or starts from the existing
 * one. */
void model_put_snapshot(struct model *m, uint32_t seq, bool passes);
void model_use_snapshot(struct model *m, uint32_t seq);
void model_drop_cached(struct model *m);
void model_match(struct model *m, uint8_t share, const int32_t *token, uint32_t n_tokens);

/* Compares all observable values, and calls kv_pager_check(). @entries: also looks up every
 * entry. */
void model_check(struct model *m, bool entries);

uint32_t model_available(const struct model *m);

/* Performs @n_ops random operations, with checks after each, on a pool drawn from @seed. *@n_done,
 * if not NULL, counts them. */
void model_random(uint64_t seed, uint32_t n_ops, volatile uint64_t *n_done);
