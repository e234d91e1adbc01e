#pragma once

/*
 * state - where requests of hybrid models begin: the state of recurrent layers behind a position is
 * in no page, so a prefix is found only where a snapshot was made of it (kvpager.h). One is made
 *
 *   at the end of a prompt, less what a chat template puts behind the last message: the next turn
 *   and the other answers to the same prompt begin there;
 *   where a request has left what others have computed: the third that comes along, as subagents
 *   do with their instructions, begins there.
 *
 * Chunks of prompts end at these cuts. Snapshots are loaded before a step's rows and saved behind
 * them, in the order in which it was decided, so room may be given out again at once.
 */

#include "scheduler/batch.h"
#include "scheduler/plan.h"

struct states {
    bool on; /* the model has a state; without snapshots nothing is found, and nothing kept */
    bool keeps;
    struct kv_pager *pager;
    uint32_t page_tokens;
    struct engine_copy *load; /* [n_loads] of requests admitted since the last step, one a slot */
    uint32_t n_loads, cap_loads;
};

/* @o: the options of @pager. 0 or -ENOMEM. */
int states_init(struct states *s, struct kv_pager *pager, const struct kv_opts *o);
void states_deinit(struct states *s); /* accepts a zeroed one */

/* What waiting request @r would find; remembers where it leaves the pages that exist. */
struct kv_match states_match(const struct states *s, struct request *r);
/* Bounds @q, the plan's view of @r of which @n_computed tokens are there, by the next cut; takes no
 * pages that others publish meanwhile. */
void states_describe(const struct states *s, const struct request *r, uint32_t n_computed,
                     struct plan_req *q);
/* @r, just admitted, has attached its pages: their snapshot is loaded before the next step. */
void states_load(struct states *s, struct request *r);
/* Puts the loads into @t, before its rows. 0 or -ENOMEM. */
int states_build(struct states *s, struct batch *t);
/* Whether the tokens of @r computed now, steps under way included, end at a cut. */
bool states_is_cut(const struct states *s, const struct request *r);
/* Keeps the state behind the rows that were added to @t last, where there is room. */
void states_save(struct states *s, struct batch *t);
/* The step of @it has ended: its snapshot, if one was made, goes to the page, or back if the
 * request has given its pages up. */
void states_take(struct states *s, struct batch_item *it);
