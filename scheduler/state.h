#pragma once

/*
 * state - decides where requests of hybrid models can begin. No page holds the state of recurrent
 * layers, so a prefix is usable only where a snapshot of the state was made (kvpager.h). One is
 * made
 *
 *  - at the end of a prompt, less the template's tail after the last message: the next turn and
 *    other answers to the same prompt begin there;
 *  - at the end of the first messages, which hold instructions and tools: subagents and new
 *    sessions begin there. Messages end at the special token with which the template's tail begins;
 *  - at other messages, or anywhere, at certain distances in long prompts: changed prompts and
 *    requests that were preempted or lost their worker continue there;
 *  - where a request has diverged from pages that others have computed;
 *  - in an answer, at the end of a page now and then, replacing the one before: a turn that repeats
 *    the answer unchanged continues there.
 *
 * A request that arrives while another one computes its beginning waits for the snapshot.
 *
 * Chunks of prompts end at these cuts. Snapshots are loaded before a step's rows and saved after
 * them, in the order of the decisions, so their memory may be given out again at once.
 */

#include "scheduler/batch.h"
#include "scheduler/plan.h"
#include "scheduler/view.h"

struct states {
    /* the model has recurrent states */
    bool on;
    bool keeps;
    const struct sched_view *view;
    /* size of a state in pages */
    uint32_t pages;
    /* requests that may still draft in the next step: one for each free snapshot */
    uint32_t n_may_draft;
    /* snapshots for the states before the drafts of the next step, in order of its items;
     * n_backups: number of those that its items have */
    uint32_t *backup;
    uint32_t n_backups;
};

/* Initialises @s. Returns 0 or -ENOMEM. */
int states_init(struct states *s, const struct sched_view *view);
void states_deinit(struct states *s); /* accepts a zeroed one */

/* Returns the position where the next chunk of @r, of which @n_computed tokens are computed, must
 * end at the latest; UINT32_MAX: no cut follows. */
uint32_t states_next_cut(const struct states *s, const struct request *r, uint32_t n_computed);
/* Returns the cached prefix of waiting request @r, and remembers where @r leaves the existing
 * pages. */
struct kv_match states_match(const struct states *s, struct request *r);
/* Returns whether @r, which waits and found r->seen_hit tokens, should wait for a snapshot further
 * on in its prompt that @o, which runs or is earlier in the queue, is about to make. */
bool states_follows(const struct states *s, const struct request *r, const struct request *o);
/* Bounds @q, the plan's view of @r of which @n_computed tokens are computed, by the next cut, and
 * keeps @r from following other requests. */
void states_describe(const struct states *s, const struct request *r, uint32_t n_computed,
                     struct plan_req *q);
/* Loads, before the next step, the snapshot of the last page that @r, just admitted, has attached
 * or got from host memory. Returns false if that page has none. */
bool states_load(struct states *s, struct request *r);
/* Saves, before the next step, the states before the drafts of @p. */
void states_build(struct states *s, const struct plan *p, struct request *const *planned);
/* Counts the snapshots for drafts of the next step; called before drafts are asked for. */
void states_begin_drafts(struct states *s);
/* Returns whether one more request of the step may draft, and counts it. */
bool states_may_draft(struct states *s);
/* Gives the next backup copy to the item last added to @t, which drafts. */
void states_back_up(struct states *s, struct batch *t);
/* Saves the state after the rows of @r, the last ones in @t, if they end at a cut or far enough in
 * an answer and a snapshot is available. @expect_ns: expected time of @t. */
void states_save(struct states *s, struct batch *t, struct request *r, int64_t expect_ns);
/* Keeps the state before the draft of @it as a passing snapshot if it is at the end of a page and
 * far enough in an answer. The step has ended, and its results are not taken yet. */
void states_retain_backup(struct states *s, struct batch_item *it);
/* Restores, with the next step, the state before a wrong draft of @it. Gives the snapshot of @it,
 * if one was made, to its page, or frees it if the request has lost its pages. The step has ended
 * and, unless its request has ended too, batch_handle() was called. */
void states_finish(struct states *s, struct batch_item *it);
