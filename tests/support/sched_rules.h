#pragma once

/*
 * sched_rules - the numbered invariants of the simulated scheduler.
 * docs/design/simulator.md describes how each is checked.
 *
 * Some are checked on the events of clients (sched_sim.c), some on the state of the scheduler after
 * each step (sched_rules.c), some by the pager's own recount (kv_pager_check()) and some by the
 * tell-tale engine when a batch is launched or computed. A broken invariant ends the process with a
 * message that has its number, its name and the text below, behind "must be".
 */

#include <stdbool.h>
#include <stdint.h>

struct sim;
struct sim_client;

#define SIM_RULES(X)                                                                               \
    /* Events of clients, checked after each step. */                                              \
    X(STREAM, "the text that a client was sent is the beginning of what its request gives alone")  \
    X(NUMBERS, "log probabilities, digests and top lists are those that the request gives alone")  \
    X(NO_GAP, "events follow each other without a gap, and no acknowledged event is sent again")   \
    X(ONE_END, "a request has exactly one end, and no event comes after it")                       \
    X(RIGHT_END, "a request ends as it does alone, or for a cause that the simulation has "        \
                 "injected")                                                                       \
    X(ACCEPTED, "ACCEPTED comes once and first; only a request that can never run is refused, "    \
                "with a text")                                                                     \
    X(USAGE, "the counts of cached, drafted and accepted tokens are possible and never fall")      \
    X(NO_ECHO, "once a client has acknowledged all events, none is pending for it")                \
    X(CRASH_PAGE, "the crash page holds the ids of the requests in flight, and no others")         \
    X(ALONE, "a quarantined request is in flight alone")                                           \
    /* State of the scheduler, checked after each step. */                                         \
    X(ONE_PLACE, "a request has one state, is in the list of that state, and is found by its id")  \
    X(NO_STRANGER, "every request of the scheduler belongs to a client that waits for it")         \
    X(QUEUE_ORDER, "each list is in the order of virtual arrival, which is arrival and priority")  \
    X(PAGES, "only running requests hold pages, and they hold as many as their tokens need")       \
    X(KNOWN, "the scheduler has the right tokens of a request, also those that are not sent yet")  \
    X(CHASE, "n_computed follows n_tokens; rows that are missing are in flight; refused drafts "   \
             "are taken back")                                                                     \
    X(IN_FLIGHT, "a step in flight names its requests, and each of these counts the step")         \
    X(PENDING, "a request with events that are not acknowledged is in the list of pending "        \
               "requests")                                                                         \
    X(LIMITS, "a step has no more sequences and rows than are allowed")                            \
    X(BUDGET, "a step is planned to end in time, or has only the rows that every step may have; "  \
              "no prompt waits while time is left")                                                \
    X(DRAFTS, "only requests that allow drafts have them, and at most as many as they allow")      \
    X(BYPASS, "a request that is overtaken counts it, and is overtaken at most max_bypass times")  \
    X(ROWS, "where there are fewer rows than requests that decode, these take turns")              \
    X(PREEMPTION, "the last request in order is preempted first, for one with an earlier "         \
                  "virtual arrival or of another tenant")                                          \
    X(DEADLINE, "no request outlives its deadline by more than one step")                          \
    X(WAKE, "the worker wakes no later than the first deadline")                                   \
    X(CANCEL, "a cancelled request ends at once and holds no pages")                               \
    X(COUNTERS, "the worker's counters are the sums over its requests")                            \
    X(CONTENT, "a shared page holds the tokens of every sequence that has it")                     \
    X(PROGRESS, "while some request can run, some request makes progress")                         \
    X(ALL_END, "once no more faults are injected, every request ends in bounded time")             \
    X(ALL_BACK, "when all requests have ended, every page is free and the crash page is empty")    \
    X(REPEATS, "the same seed gives the same events, whatever ran before it in the process")       \
    X(DRAFT_TOKENS, "the draft model drafts the tokens that it computes for the same text alone")  \
    X(DRAFT_PAGES, "only running requests hold pages of the draft model, and these hold their "    \
                   "tokens")                                                                       \
    X(HOST, "a page of host memory holds the tokens that were saved there, and only waiting "      \
            "jobs hold such pages")                                                                \
    X(RECORDED, "the flight recorder's last records are complete and equal the decisions, also "   \
                "after a death")                                                                   \
    X(AGAIN, "a recorded plan that is computed again decides the same")                            \
    X(CUTS, "no step passes a cut of a prompt, a position for a snapshot, and the state behind "   \
            "the cut is kept")                                                                     \
    X(KEPT, "a snapshot that is being written belongs to a step; every other one is the state "    \
            "behind its page")                                                                     \
    /* kv_pager_check(), after each step. */                                                       \
    X(STATES, "a page has one state and is in the list of that state, and the counts of states "   \
              "add up")                                                                            \
    X(REFERENCES, "a page's reference count is the number of page tables that hold it")            \
    X(PUBLISHED, "only a full page whose tokens are all committed is shared or cached")            \
    X(WRITABLE, "a page that will be written is held by one sequence and is not shared")           \
    X(KEYS, "a page's key is the hash of its parent, tokens and isolation key, and a lookup "      \
            "finds this page")                                                                     \
    X(TABLES, "a page table has page i before page i + 1, and parents before their children")      \
    X(EVICTION, "no list has a page twice, and children are evicted before their parents")         \
    X(SNAPSHOTS, "a snapshot belongs to one published page, or is taken by a caller, or is free")  \
    X(SLOTS, "a state slot belongs to one sequence or is free")                                    \
    /* The tell-tale engine, at each launch and each wait. */                                      \
    X(BATCH, "the rows, wants, samples, feeds, bans and parameters of a batch fit together")       \
    X(WRITERS, "a page that one sequence writes belongs to no other sequence")                     \
    X(READ, "a cell that is read was written for this sequence, after these tokens")               \
    X(UNCHANGED, "a batch does not change while it runs")                                          \
    X(GOES_ON, "a sequence continues at the position of the state in its slot, which is the "      \
               "state behind its tokens")                                                          \
    X(BLOCK, "the keys of the model's own draft block, and the hidden state that it drafts "       \
             "from, belong to the sequence's tokens")                                              \
    /* State of the scheduler, checked after each step. */                                         \
    X(ELSEWHERE, "a tenant's use of other workers counts once, and at most seven times its use "   \
                 "of this one")                                                                    \
    X(HELD, "a snapshot of host memory or of the file is taken or held only for a state that is "  \
            "being copied")                                                                        \
    X(SHORT, "the shortest prompt of a tenant is passed over only a few times, whatever the "      \
             "estimate says")                                                                      \
    X(RATE, "while nothing decodes, a step is as long as allowed, or long enough to compute its "  \
            "rows efficiently")                                                                    \
    X(ESTIMATE, "the estimated speed is the median of the last steps")                             \
    X(PICTURES, "a picture has one entry for each isolation key, which stays while it is held, "   \
                "and its rows are computed from its pixels")                                       \
    X(ASKED, "pixels are requested only of a picture that a running request lacks, and only once") \
    X(PIECES, "pieces of a picture leave most of the time of decode to decode")                    \
    X(HEAD_START, "only for requests of tenants that are behind, each for a quarter of the "       \
                  "target, are others left out of steps, and no longer than that in a row")        \
    X(PROMISES, "a request takes no promised pages, except those promised to other tenants "       \
                "beyond their shares if its tenant is within its own; then it does not wait for "  \
                "them")                                                                            \
    X(TURNS, "while a tenant that is behind is expected back, and only then, rows of others take " \
             "turns in steps that keep most of their rate")                                        \
    X(PINS, "a request of a tenant within its share of the pages does not wait for those that "    \
            "are pinned beyond the shares of other tenants")

enum sim_rule {
#define X(name, text) RULE_##name,
    SIM_RULES(X)
#undef X
        RULES
};

struct sim_rule_text {
    const char *name, *text;
};
extern const struct sim_rule_text sim_rules[RULES];

/* Names the rule and ends the process. */
_Noreturn void rule_broken(const struct sim *s, const struct sim_client *c, enum sim_rule rule,
                           const char *what, const char *file, int line);

#define HOLD(s, c, rule, cond)                                                                     \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            rule_broken(s, c, RULE_##rule, #cond, __FILE__, __LINE__);                             \
    } while (0)

/* Stores the values with which rules_after() compares, before a step. */
void rules_before(struct sim *s);
/* Stores, when simulator @of launches a step, what only holds until it ends. */
void rules_launched(void *of);
/* Checks PIECES, when simulator @of has computed a piece of a picture in @ns. */
void rules_drew(void *of, int64_t ns);
/* Checks the invariants of the scheduler's state after a step, which returned @r. */
void rules_after(struct sim *s, int r);
/* Checks the invariants that hold when all requests have ended. */
void rules_at_end(struct sim *s);
/* Checks CANCEL for a request that has just been cancelled. */
void rules_cancelled(struct sim *s, const struct sim_client *c);
