#pragma once

/*
 * buggify - the sites of base/buggify.h: their names, and the effect of each. Linked into programs
 * whose pager and scheduler were compiled with WEFT_BUGGIFY.
 */

#include <stdbool.h>
#include <stdint.h>

#define BUGGIFY_SITES(X)                                                                           \
    X(kv_evicts_early, "an idle page is evicted though there are free ones")                       \
    X(plan_admits_nobody, "no waiting request is admitted in this step")                           \
    X(plan_chunk_short, "a prefill gets half of the rows it could have")                           \
    X(plan_drops_drafts, "no draft of the step gets a row")                                        \
    X(step_not_ahead, "the next step is not launched while this one runs")                         \
    X(step_attaches_late, "pages that a sibling has published are not taken yet")                  \
    X(step_looks_again, "what a lookup found last time is not believed")                           \
    X(step_answers_grow, "answers are expected to be as long as they may be")                      \
    X(draft_no_memory, "there is no memory for a draft")                                           \
    X(draft_source_gone, "a source of drafts cannot be opened")                                    \
    X(draft_no_pages, "the draft model has no pages for a request")                                \
    X(draft_cut, "the draft model stops drafting early")                                           \
    X(draft_holes, "a step that only decodes leaves the block's keys out")                         \
    X(mask_late, "a mask takes too long for the step")                                             \
    X(events_short, "not all pending events fit into a message")                                   \
    X(pin_expires, "pages kept for a session's next turn are given up")                            \
    X(host_no_memory, "there is no memory for copies")                                             \
    X(host_queue_full, "the queue of turns to be saved is full")                                   \
    X(host_fetches_one, "only one page is brought back")                                           \
    X(host_not_swapped, "a preempted request is not saved")                                        \
    X(host_state_gone, "the state behind pages that came back is not there any more")

struct buggify_site {
    const char *name, *text;
    bool on;
    uint64_t n_taken;
};

enum buggify_number {
#define X(name, text) BUGGIFY_##name,
    BUGGIFY_SITES(X)
#undef X
        BUGGIFY_N
};

extern struct buggify_site *const buggify_sites[BUGGIFY_N];

/* Begins a run: bit i of @mask enables site i, which is then taken one time in four. */
void buggify_begin(uint64_t seed, uint32_t mask);
