#pragma once

/*
 * swarm - a random scenario of the scheduler's simulation. A seed first draws the machine, the
 * kinds of requests and the faults (struct swarm; many features are absent from a given seed, so
 * that the others meet more often), then a list of actions: requests, cancels, a channel that is
 * full, dying engines.
 *
 * An action has a number and draws from a seed of its own, so that it stays the same when others
 * are left out. This lets run_shrink() make a failing scenario small (run.h).
 */

#include "tests/support/buggify.h"
#include "tests/support/sched_sim.h"

#define SWARM_ACTIONS 8192u /* most actions of a scenario */

/* Name, and the expression that draws it; @r is the generator, @w has the fields drawn so far. */
#define SWARM_FIELDS(X)                                                                            \
    X(hungry, one_in(r, 2)) /* answers are short for a while, then long */                         \
    X(page_tokens, 1u << rng_below(r, w->hungry ? 4 : 6)) /* 1 to 32 */                            \
    X(pages, draw_pages(r, w))                                                                     \
    X(context, 60 + rng_below(r, 300)) /* longest sequence */                                      \
    X(seqs, 1 + rng_below(r, 8))                                                                   \
    X(rows, 1 + rng_below(r, one_in(r, 2) ? 12 : 80))                                              \
    X(depth, 1 + rng_below(r, 2))                                                                  \
    X(bypass, rng_below(r, 5))                                                                     \
    X(itl_ms, 5 + rng_below(r, 50))                                                                \
    X(step_ms, 20 + rng_below(r, 200))                                                             \
    X(chunk, one_in(r, 5) ? 1 + rng_below(r, 40) : 0)    /* prefill chunks of this size */         \
    X(hash_bits, one_in(r, 6) ? 3 + rng_below(r, 5) : 0) /* hashes of pages collide */             \
    X(no_sharing, one_in(r, 10))                                                                   \
    X(fixed_us, 500 + rng_below(r, 20000)) /* time of a step */                                    \
    X(row_us, 10 + rng_below(r, 1000))                                                             \
    X(key_ns, rng_below(r, 2000))                                                                  \
    X(noise, one_in(r, 2) ? rng_below(r, 40) : 0) /* percent */                                    \
    X(drafts, rng_below(r, SIM_DRAFTS_KINDS))                                                      \
    X(no_speculation, one_in(r, 6))                                                                \
    X(no_pins, one_in(r, 3))                                                                       \
    X(max_draft, rng_below(r, 40))                                                                 \
    X(force_draft, one_in(r, 2) ? 1 + rng_below(r, 32) : 0)                                        \
    X(tenants, 1 + rng_below(r, 4))                                                                \
    X(classes, one_in(r, 2)) /* tenants have classes and weights */                                \
    X(sessions, 1 + rng_below(r, 6))                                                               \
    X(keys, 1 + rng_below(r, 3))                     /* isolation keys */                          \
    X(families, 1 + rng_below(r, 4))                 /* groups of prompts that begin alike */      \
    X(turns, one_in(r, 2) ? 1 + rng_below(r, 3) : 0) /* of 4 requests, continue a conversation */  \
    X(every, 1u << rng_below(r, w->hungry ? 4 : 6))  /* steps between requests */                  \
    X(burst, w->hungry || one_in(r, 3) ? 2 + rng_below(r, 10) : 1)                                 \
    X(live, one_in(r, 8) ? 48 : 6 + rng_below(r, 20)) /* the front's bound on requests */          \
    X(prompt, 8 + rng_below(r, 120))                  /* most tokens */                            \
    X(output, 2 + rng_below(r, 60))                                                                \
    X(end, one_in(r, 2) ? rng_below(r, 60) : 0) /* probability in 1/1024 */                        \
    X(stops, one_in(r, 2))                      /* stop strings and ids */                         \
    X(sampling, one_in(r, 2))                   /* temperatures, penalties, bias */                \
    X(extras, one_in(r, 3))                     /* log probabilities of the prompt, top lists */   \
    X(priorities, one_in(r, 2) ? 3 : 1)                                                            \
    X(deadlines, one_in(r, 2) ? 1 + rng_below(r, 6) : 0)  /* one request in this many */           \
    X(cancels, one_in(r, 2) ? 10 + rng_below(r, 200) : 0) /* steps between two */                  \
    X(deaf, one_in(r, 2) ? 5 + rng_below(r, 60) : 0)                                               \
    X(deaths, one_in(r, 3) ? 20 + rng_below(r, 200) : 0)                                           \
    X(hangs, one_in(r, 4) ? 20 + rng_below(r, 100) : 0)                                            \
    X(lonely, one_in(r, 6) ? 20 : 0) /* one request in this many runs alone */                     \
    X(constrained, one_in(r, 4) ? 1 + rng_below(r, 4) : 0) /* of 4 requests have a grammar */      \
    X(host_pages, one_in(r, 2) ? rng_below(r, 3 * w->pages) : 0)                                   \
    X(draft_pages, one_in(r, 3) ? 4 + rng_below(r, 100) : 0)                                       \
    X(draft_page_tokens, 1u << rng_below(r, 5))                                                    \
    X(draft_wrong, one_in(r, 3) ? 0 : one_in(r, 6) ? 1024 : rng_below(r, 600)) /* in 1/1024 */     \
    X(draft_us, 50 + rng_below(r, 3000))             /* time of a step of the draft model */       \
    X(warm, one_in(r, 2) ? 2 + rng_below(r, 40) : 0) /* steps between two prewarms */              \
    X(disk_pages, one_in(r, 4) ? rng_below(r, 6 * w->pages) : 0) /* of the file */                 \
    X(states, one_in(r, 4) ? 1 + rng_below(r, 8) : 0) /* slots of a model with recurrent layers */ \
    X(snapshots, one_in(r, 8) ? 0 : one_in(r, 2) ? 1 + rng_below(r, 4) : rng_below(r, 40))         \
    X(buggify, one_in(r, 3) ? (uint32_t)(rng_next(r) & rng_next(r)) : 0) /* bits: rare paths */    \
    X(window,                                                                                      \
      one_in(r, 6) ? 1 + rng_below(r, 100) : 0) /* window of layers; no states, host pages */      \
    X(spare_windows, one_in(r, 2) ? 0 : rng_below(r, 40))                                          \
    X(block, one_in(r, 2)) /* the model's own drafts; no draft model or window */                  \
    X(elsewhere, one_in(r, 4) ? 1 + rng_below(r, 20) : 0) /* steps: tenants ask other models */    \
    X(borrows, one_in(r, 3))                              /* an assistant instead of the block */  \
    X(slower, one_in(r, 3) ? 10 + rng_below(r, 91) : 1)   /* factor by which it is slower */       \
    X(busy, one_in(r, 4) ? 20 + rng_below(r, 200) : 0)    /* steps; half are 10 times slower */    \
    X(wrong,                                                                                       \
      one_in(r, 3)) /* the cost model begins with coefficients that are wrong by 30 times */       \
    X(pictures, one_in(r, 3) ? 1 + rng_below(r, SIM_PICTURES) : 0) /* pictures of the pool */      \
    X(two_way, one_in(r, 3)) /* rows attend to each other; no states */                            \
    X(picture_bytes, one_in(r, 2) ? rng_below(r, 500) : 1u << 20) /* of rows kept */               \
    X(pixel_ns, 1000 + rng_below(r, 100000))                                                       \
    X(broken, one_in(r, 4)) /* one has no pixels */

struct swarm {
#define X(name, draw) uint32_t name;
    SWARM_FIELDS(X)
#undef X
};

/* A scenario: a seed, the set fields, and the actions that are kept. */
struct swarm_case {
    uint64_t seed;
    /* number of steps before the faults end */
    uint32_t n_steps;
    /* as sim_opts.recorder */
    bool recorder;
    /* NULL, or the path of the flight recorder of a failing run */
    const char *flight_file;
    struct swarm set;
    bool is_set[sizeof(struct swarm) / sizeof(uint32_t)];
    /* only the actions marked in `keep` are performed */
    bool some;
    /* 0 or 1 */
    uint8_t keep[SWARM_ACTIONS];
};

#define SWARM_N (sizeof(struct swarm) / sizeof(uint32_t))
extern const char *const swarm_names[SWARM_N];

/* Returns the index of the field @name, or SWARM_N. */
uint32_t swarm_field(const char *name, size_t len);
/* Returns true if the field may have @value. */
bool swarm_allows(uint32_t field, uint32_t value);
void swarm_draw(struct swarm *w, const struct swarm_case *c);

/* Totals of runs. */
struct swarm_total {
    uint64_t n_runs, n_steps, n_requests, n_preemptions, n_cached, n_deaths, n_given_up;
    /* number of times that each rare path was taken, see tests/support/buggify.h */
    uint64_t n_taken[BUGGIFY_N];
    uint64_t n_drafted, n_accepted, n_skipped, n_end[FINISH_ERROR + 1];
    /* hash of the last run's events */
    uint64_t hash;
    /* sum over the hashes of all runs: equal events give an equal sum */
    uint64_t sum;
};

/* Runs the scenario: with faults, then without until all requests have ended. Any violation aborts.
 * *@at, if not NULL, follows the steps. */
void swarm_run(const struct swarm_case *c, struct swarm_total *total, volatile uint64_t *at);

/* Returns the number of actions of the case; writes a line about one of them. */
uint32_t swarm_actions(const struct swarm_case *c);
void swarm_tell(const struct swarm_case *c, uint32_t action, char *out, size_t size);
