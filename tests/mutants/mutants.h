#pragma once

/*
 * mutants - the edits of tests/mutants (apply.py), which are in this program's pager and scheduler and switched off: seeded
 * bugs, and rules of the policy that can be ablated. The environment variable WEFT_MUTANT switches one on at the start.
 */

#include <stdint.h>

/* The scheduler's. */
#define MUTANTS_SCHED(X)                                                                           \
    X(min_tokens_late, "the sample under way does not count for min_tokens")                       \
    X(output_misnumbered, "the sample behind one under way has its number")                        \
    X(prompt_lp_skipped, "prompts whose log probabilities are wanted are found computed")          \
    X(feed_first_want, "a row is fed from its request's first want, not the sample")               \
    X(draft_believed, "drafted tokens are taken without looking")                                  \
    X(draft_kept, "the keys of refused drafts count as computed")                                  \
    X(draft_pages_kept, "pages of refused drafts are kept")                                        \
    X(draft_counted, "one refused draft counts as computed")                                       \
    X(draft_unmarked, "the engine is not told that rows are drafts")                               \
    X(draft_unwanted, "requests that want no drafts have them")                                    \
    X(draft_past_end, "a draft is longer than what may still come")                                \
    X(grammar_not_replayed, "a resumed request begins its grammar again")                          \
    X(masked_ban_too_long, "behind drafts end tokens are banned for too long by masks")            \
    X(draft_rows_unlimited, "drafts have more rows than there are")                                \
    X(draft_pages_not_counted, "drafts have pages that are not there")                             \
    X(event_from_start, "an event's tokens begin at the first output")                             \
    X(event_end_again, "an end that was told is told again")                                       \
    X(event_token_left_out, "after an event of three tokens the next is left out")                 \
    X(accepted_again, "accepted is told with each event")                                          \
    X(told_before_delivery, "what is packed counts as delivered")                                  \
    X(stop_not_replayed, "a resumed request forgets half a stop string")                           \
    X(shares_last_token, "a request may find all its tokens computed")                             \
    X(one_token_more, "max_tokens is passed by one")                                               \
    X(context_unlimited, "a request may grow beyond the context and the pool")                     \
    X(cancel_lost, "cancelling a waiting request does nothing")                                    \
    X(deadline_ignored, "running requests have no deadline")                                       \
    X(deadline_of_last, "the next deadline is that of the latest request")                         \
    X(freed_under_way, "a request is freed while a step has it")                                   \
    X(tenant_never_leaves, "requests that have ended count as their tenant's")                     \
    X(attached_under_way, "pages are attached while a step computes the same")                     \
    X(cached_counted_again, "what is found after a preemption counts as cached")                   \
    X(preempted_still_computed, "a preempted request counts as computed")                          \
    X(preempted_token_lost, "a preempted request loses its last token")                            \
    X(preempted_to_the_back, "a preempted request loses its standing")                             \
    X(crash_page_of_last_step, "only the last of two steps in flight is on the crash page")        \
    X(alone_overlapped, "a step is launched beside one that must be alone")                        \
    X(drafts_overlapped, "a step is launched while drafts are checked")                            \
    X(finished_twice, "a request that has ended takes its sample all the same")                    \
    X(stale_hit, "an old lookup of a prefix is taken for a new one")                               \
    X(all_follow, "of two at the same position each waits for the other")                          \
    X(pending_forgotten, "the plan does not see the sample under way")                             \
    X(page_count_short, "the plan counts pages for half of the rows")                              \
    X(yield_frees_shared, "the plan expects shared pages back, too")                               \
    X(yield_from_the_top, "the highest of those that may yield does first")                        \
    X(yield_of_higher, "pages are taken from those that stand higher")                             \
    X(rows_never_turn, "when rows are short the same ones always wait")                            \
    X(bypass_not_counted, "nobody remembers who was overtaken")                                    \
    X(bypass_endless, "one that does not fit is overtaken for ever")                               \
    X(margin_forgotten, "the cost model's error is not added to its estimate")                     \
    X(decodes_not_seen, "a prefill does not see that others decode")                               \
    X(tie_not_broken, "when nobody can go on nobody yields")                                       \
    X(no_least_chunk, "where steps are slow a prefill gets nothing")                               \
    X(alone_in_company, "who must be alone decodes with the others")                               \
    X(priority_forgotten, "priorities are ignored")                                                \
    X(queue_not_sorted, "a queue is in the order of arrival")

/* The draft model's. */
#define MUTANTS_DRAFT(X)                                                                           \
    X(guess_pages_leak, "who yields or ends keeps the draft model's pages")                        \
    X(guess_believed, "what the draft model has of a refused guess is taken for computed")         \
    X(guess_misnumbered, "guesses behind the first are sampled with its number")                   \
    X(guess_not_penalised, "penalties of guesses do not see the guesses before")                   \
    X(guess_banned_too_long, "guesses before do not count for min_tokens")                         \
    X(guess_stale, "a guess for tokens that have come since is drafted again")                     \
    X(guess_unmasked, "guesses are made without the grammar's mask")                               \
    X(guess_place_moved, "a guess moves its request's place in the grammar")

/* Host memory's. */
#define MUTANTS_HOST(X)                                                                            \
    X(host_job_stays, "the pages of a turn that has been saved stay held")                         \
    X(host_copy_forgotten, "the last of some pages is published there but not copied")             \
    X(host_fetch_forgotten, "the last of some pages is published here but not copied")             \
    X(host_wrong_page, "the page before is brought back")                                          \
    X(host_copies_reversed, "copies are made in the wrong order")

#define MUTANTS(X) MUTANTS_SCHED(X) MUTANTS_DRAFT(X) MUTANTS_HOST(X)

enum mutant_kind { MUTANT_mutant, MUTANT_ablation };

struct mutant {
    enum mutant_kind kind;
    const char *name, *text;
    int *on;
};

extern const struct mutant mutants[];
extern const uint32_t n_mutants;
