#pragma once

/*
 * state - where requests of hybrid models begin: the state of recurrent layers behind a position is
 * in no page, so a prefix is found only where a snapshot was made of it (kvpager.h). One is made
 *
 *   at the end of a prompt, less what a chat template puts behind the last message: the next turn
 *   and the other answers to the same prompt begin there;
 *   at the end of the first messages, which are instructions and tools: subagents and new sessions
 *   begin there. Messages end at the special token at which the template's tail begins;
 *   at messages, or anywhere, every so often in what is long: prompts that were changed, and those
 *   that are preempted or whose worker dies, go on there;
 *   where a request has left what others have computed;
 *   in an answer, at the end of a page now and then, in the place of the one before: a turn whose
 *   text has the answer as it was goes on there.
 *
 * A request that comes while another one computes its beginning waits for the snapshot.
 *
 * Chunks of prompts end at these cuts. Snapshots are loaded before a step's rows and saved behind
 * them, in the order in which it was decided, so room may be given out again at once.
 */

#include "scheduler/batch.h"
#include "scheduler/plan.h"
#include "scheduler/view.h"

struct states {
    bool on; /* the model has a state; without snapshots nothing is found, and nothing kept */
    bool keeps;
    const struct sched_view *view;
    uint32_t pages;       /* that a state is as large as */
    uint32_t n_may_draft; /* requests of the next step, since there are so many snapshots for it */
    /* [n_loads] of requests admitted or taken back since the last step, one a slot; behind them
     * room for as many states that are saved before their drafts: the next item's is n_backups. */
    struct engine_copy *load;
    uint32_t n_loads, cap_loads, n_backups;
};

/* 0 or -ENOMEM. */
int states_init(struct states *s, const struct sched_view *view);
void states_deinit(struct states *s); /* accepts a zeroed one */

/* Returns where the next chunk of @r, of which @n_computed tokens are there, must end at the
 * latest; UINT32_MAX: there is no cut behind them. */
uint32_t states_next_cut(const struct states *s, const struct request *r, uint32_t n_computed);
/* Returns what waiting request @r would find; remembers where it leaves the pages that exist. */
struct kv_match states_match(const struct states *s, struct request *r);
/* Returns whether @r, which waits and found r->seen_hit tokens, is to wait for a snapshot with
 * which it begins further on: @o, which runs or is before it in the queue, is about to come to that
 * cut. */
bool states_follows(const struct states *s, const struct request *r, const struct request *o);
/* Bounds @q, the plan's view of @r of which @n_computed tokens are there, by the next cut; takes no
 * pages that others publish meanwhile. */
void states_describe(const struct states *s, const struct request *r, uint32_t n_computed,
                     struct plan_req *q);
/* @r, just admitted, has attached its pages, or got them from host memory: their snapshot is loaded
 * before the next step. false: the last page has none. */
bool states_load(struct states *s, struct request *r);
/* Puts the loads into @t, before its rows, and behind them the copies of states before the drafts
 * of @p. 0 or -ENOMEM. */
int states_build(struct states *s, struct batch *t, const struct plan *p,
                 struct request *const *planned);
/* Before drafts of the next step are asked for. */
void states_begin_drafts(struct states *s);
/* Returns whether one more request of the step may draft. */
bool states_may_draft(struct states *s);
/* The item added to @t last drafts: the next of these copies is its own. */
void states_back_up(struct states *s, struct batch *t);
/* @r has got rows in @t, the last so far, which is expected to take @expect_ns: keeps the state
 * behind them where they end at a cut, or far enough in an answer, and there is room. */
void states_save(struct states *s, struct batch *t, struct request *r, int64_t expect_ns);
/* The step of @it has ended, and its results are not taken yet: the state before its draft, where
 * it is at the end of a page far enough in an answer, is kept as a passing snapshot. */
void states_keep_back_up(struct states *s, struct batch_item *it);
/* The step of @it has ended, and batch_take() was called unless its request is over: goes back
 * before a draft that was wrong, with the next step; its snapshot, if one was made, goes to the
 * page, or back if the request has given its pages up. */
void states_take(struct states *s, struct batch_item *it);
