#pragma once

/*
 * sched_rules - the invariants of the simulated scheduler, numbered. docs/simulator.md tells how
 * each is checked.
 *
 * Some are seen in what a client is sent (sched_sim.c), some by looking inside after each step
 * (sched_rules.c), some by the pager's own recount (kv_pager_check()) and by the tell-tale engine
 * when a batch is launched or computed. Whatever is broken ends the process with a line that names
 * it.
 */

#include <stdbool.h>
#include <stdint.h>

struct sim;
struct sim_client;

#define SIM_RULES(X)                                                                               \
    /* What clients are sent: after each step. */                                                  \
    X(STREAM, "what a client has been sent is the beginning of what it would get alone")           \
    X(NUMBERS, "log probabilities, digests and top lists are those it would get alone")            \
    X(NO_GAP, "events follow each other, nothing is left out and nothing delivered comes again")   \
    X(ONE_END, "exactly one end, and nothing after it")                                            \
    X(RIGHT_END, "the end is the one it would have alone, or its cause has been given")            \
    X(ACCEPTED, "accepted once and first; refused, with a text, is only what can never run")       \
    X(USAGE, "cached, drafted and accepted tokens are possible numbers that never fall")           \
    X(NO_ECHO, "once everything is delivered no event is pending")                                 \
    X(CRASH_PAGE, "the crash page holds the ids in flight and no others")                          \
    X(ALONE, "a quarantined request is alone in flight")                                           \
    /* The scheduler from inside: after each step. */                                              \
    X(ONE_PLACE, "a request is in one state, in the list of that state, and found by its id")      \
    X(NO_STRANGER, "there is no request but those that clients wait for")                          \
    X(QUEUE_ORDER, "lists are in order of virtual arrival, which is arrival and priority")         \
    X(PAGES, "only running requests hold pages, as many as their tokens need")                     \
    X(KNOWN, "the tokens that it has are those that it should have")                               \
    X(CHASE, "n_computed follows n_tokens; what is pending is under way; drafts are taken back")   \
    X(IN_FLIGHT, "a step in flight is counted in its requests, and the other way round")           \
    X(PENDING, "a request with unacked events is in the list of pending ones")                     \
    X(LIMITS, "no more sequences and rows than allowed")                                           \
    X(BUDGET, "a step is planned to end in time, but for rows that are always given, and is used") \
    X(DRAFTS, "only requests that allow drafts have them, and no more than allowed")               \
    X(BYPASS, "overtaken requests count it, none is overtaken more than max_bypass times")         \
    X(ROWS, "when there are fewer rows than decode all have their turn")                           \
    X(PREEMPTION, "the last in order is preempted first, for another with an earlier virtual "     \
                  "arrival or another tenant")                                                     \
    X(DEADLINE, "no request outlives its deadline by more than a step")                            \
    X(WAKE, "the worker wakes no later than the first deadline")                                   \
    X(CANCEL, "a cancelled request is over at once and holds nothing")                             \
    X(COUNTERS, "the worker's counters are the sums over its requests")                            \
    X(CONTENT, "a shared page holds the tokens of every sequence that has it")                     \
    X(PROGRESS, "while a request can run, one makes progress")                                     \
    X(ALL_END, "without new faults every request ends in bounded time")                            \
    X(ALL_BACK, "when all have ended every page is back and the crash page is empty")              \
    X(REPEATS, "the same seed gives the same events again, whatever ran before it")                \
    X(DRAFT_TOKENS, "what the draft model drafts is what it says of these tokens alone")           \
    X(DRAFT_PAGES, "only running requests hold pages of the draft model, with their tokens")       \
    X(HOST, "host pages hold what was saved, and are held by waiting jobs only")                   \
    X(RECORDED, "the flight recorder has what was decided last, whole, also after a death")        \
    X(AGAIN, "a recorded plan, made again, is what it was")                                        \
    X(CUTS, "no step passes a cut of a prompt, and the state behind it is kept")                   \
    X(KEPT, "a snapshot that is being written is a step's, and all others are of their pages")     \
    /* kv_pager_check(): after each step. */                                                       \
    X(STATES, "a page is in one state and its list; the counts add up")                            \
    X(REFERENCES, "a page is held as often as tables have it")                                     \
    X(PUBLISHED, "shared or cached are only full pages of committed tokens")                       \
    X(WRITABLE, "a page that will be written is held once and not shared")                         \
    X(KEYS, "a key is the hash of parent, tokens and isolation key; a lookup finds its page")      \
    X(TABLES, "tables are closed: page i before page i + 1, parents before children")              \
    X(EVICTION, "lists have no page twice; children are evicted before parents")                   \
    X(SNAPSHOTS, "a snapshot is one published page's, or taken, or free")                          \
    X(SLOTS, "a state slot is one sequence's or free")                                             \
    /* The tell-tale engine: at each launch and each wait. */                                      \
    X(BATCH, "a batch is well formed: rows, wants, samples, feeds, bans, parameters")              \
    X(WRITERS, "a page that one sequence writes is no other's")                                    \
    X(READ, "a position that is read was written for this sequence, after these tokens")           \
    X(UNCHANGED, "a batch does not change while it runs")                                          \
    X(GOES_ON, "a sequence goes on where the state in its slot is, of its tokens")                 \
    X(BLOCK, "the keys of the block, and the hidden state from which it drafts, are of its "       \
             "tokens")                                                                             \
    /* The scheduler from inside: after each step. */                                              \
    X(ELSEWHERE, "what a tenant had at other workers counts once, and leaves it a part here")      \
    X(HELD, "snapshots of host memory and of the file are taken and held for states under way")    \
    X(SHORT, "the shortest prompt is not passed over for long, whatever the estimate says")        \
    X(RATE, "where nothing decodes a step is long enough to compute its rows efficiently")         \
    X(ESTIMATE, "the estimate follows the machine")                                                \
    X(PICTURES, "a picture is there once for a key, as long as it is held or there is room, and "  \
                "its rows are those of its pixels")                                                \
    X(ASKED, "only who needs a picture that is neither there nor asked for is asked for it")       \
    X(PIECES, "pieces of a picture leave decode its time")

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

/* What is to be remembered from before a step. */
void rules_before(struct sim *s);
/* Looks inside after a step that said @r. */
void rules_after(struct sim *s, int r);
/* All have ended: what only then can be said. */
void rules_at_end(struct sim *s);
/* A request has just been cancelled. */
void rules_cancelled(struct sim *s, const struct sim_client *c);
