#pragma once

/*
 * drafter - a small model that drafts what the large one will say. It has an engine and pages of
 * its own, and keeps up with the requests that may use it; its drafts are one more source of
 * drafts (draft/model.c), which the large model checks like all others. Or it is the large model's
 * own block of multi-token prediction, pass 1 of its engine, whose keys are in the requests' pages.
 * How it decides is told in docs/design/speculation.md.
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
    struct engine *engine; /* engine of the small model; not taken over */
    /* The large model's own block: its engine is @engine, and this its pager. Steps of both passes
     * are counted in *step. NULL: a small model. */
    struct kv_pager *block;
    uint64_t *step;
    struct clock *clock;
    uint32_t max_seqs, max_rows; /* limits of the scheduler */
    uint32_t n_vocab;            /* tokens of a mask */
    int64_t catch_up_ns;         /* time of a step that catching up may take */
    float size;                  /* size of the small model relative to the large one */
    uint32_t force; /* tests: drafts of so many tokens, whatever they cost; 0: if it pays */
};

/* A request's part. */
struct drafter_seq {
    struct draft_tokens drafted; /* follow token drafted.at - 1 */
    struct kv_seq *kv;           /* NULL: it has no pages, or they are the request's */
    uint32_t n_computed;         /* positions, drafted ones included */
    uint32_t n_asked;            /* tokens to draft in this step */
};

/* The engine and the clock of @opts outlive it. 0 or -ENOMEM. */
int drafter_new(struct drafter **out, const struct drafter_opts *opts);
struct drafter *drafter_free(struct drafter *d);

/* Chooses the drafts of the step that is planned next: for whom and how many tokens each, from
 * @spec's estimates, what the block's pass takes and what @p says of the step. @running:
 * request.queued. Returns how many requests want some: with none under way, drafter_run() computes
 * them. */
uint32_t drafter_choose(struct drafter *d, struct spec *spec, const struct plan *p,
                        const struct list *running);
/* Returns whether the model's own block drafts nothing in the next steps, as far as is known: its
 * keys of what is decoded meanwhile may be left out (engine_batch.holes). @turn: the step's, as of
 * spec_begin_step(). */
bool drafter_rests(const struct drafter *d, uint64_t turn);
/* Computes what was chosen, as far as it has caught up with the requests. Their last tokens must
 * be known. Returns the time it took (>= 0), -ENOMEM, or -EIO: the engine is lost. */
int64_t drafter_run(struct drafter *d, const struct list *running);

/* The request gives its pages back, here too. */
void drafter_drop(struct request *r);
/* The request is freed: likewise, and its part is gone. */
void drafter_forget(struct request *r);
/* For checks; NULL: it has none of its own. */
const struct kv_pager *drafter_pager(const struct drafter *d);
