#pragma once

/*
 * drafter - drafts by a small model, which has its own engine and pages and computes the tokens of
 * the requests that may use it; or by the large model's block for multi-token prediction, which is
 * pass 1 of its engine and has its keys in the requests' pages. The drafts are one more source
 * (draft/model.c), and the large model verifies them like all other drafts.
 * docs/design/speculation.md describes the decisions.
 */

#include "base/clock.h"
#include "engine/engine.h"
#include "scheduler/cost.h"
#include "scheduler/draft/draft.h"

struct drafter;
struct list;
struct plan;
struct request;
struct spec;

struct drafter_opts {
    /* engine of the small model; not taken over */
    struct engine *engine;
    /* Pager of the large model if its own block drafts; then `engine` is the engine of the large
     * model, and *step counts the steps of both passes. NULL: a small model drafts. */
    struct kv_pager *block;
    uint64_t *step;
    struct clock *clock;
    /* limits of the scheduler */
    uint32_t max_seqs, max_rows;
    /* tokens of a mask */
    uint32_t n_vocab;
    /* most time of a step for catching up */
    int64_t catch_up_ns;
    /* size of the small model divided by that of the large one */
    float size;
    /* tests: drafts of this many tokens at any cost; 0: by gain */
    uint32_t force;
};

/* State of a request in the drafter. */
struct drafter_seq {
    /* tokens behind token drafted.at - 1 */
    struct draft_tokens drafted;
    /* NULL: no pages, or the block uses those of the request */
    struct kv_seq *kv;
    /* computed positions, with drafted ones */
    uint32_t n_computed;
    /* tokens to draft in this step */
    uint32_t n_asked;
};

/* Makes a drafter; the engine and the clock of @opts outlive it. Returns 0 or -ENOMEM. */
int drafter_new(struct drafter **out, const struct drafter_opts *opts);
struct drafter *drafter_free(struct drafter *d);

/* Chooses the requests of @running (request.queued) for which the drafter drafts in the next step,
 * and the number of tokens for each, from @spec's estimates, the time of a pass and plan @p.
 * Returns the number of these requests; drafter_run() computes the drafts once no step is in
 * flight. */
uint32_t drafter_choose(struct drafter *d, struct spec *spec, const struct plan *p,
                        const struct list *running);
/* Returns whether the model's own block will draft nothing in the next steps, so that its keys of
 * tokens decoded meanwhile may be left out (engine_batch.holes). @turn: see spec_begin_step(). */
bool drafter_rests(const struct drafter *d, uint64_t turn);
/* Computes the chosen drafts for the requests with which the drafter has caught up; the last tokens
 * of these requests must be known. Returns the time it took in ns (>= 0), -ENOMEM, or -EIO: the
 * engine is lost. */
int64_t drafter_run(struct drafter *d, const struct list *running);

/* Frees the pages of @r in the drafter. */
void drafter_drop(struct request *r);
/* Frees the drafter's part of @r, pages included. */
void drafter_forget(struct request *r);
/* Returns the drafter's pager, for checks; NULL: it has none of its own. */
const struct kv_pager *drafter_pager(const struct drafter *d);
