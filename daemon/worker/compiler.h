#pragma once

/*
 * compiler - compiles grammars on threads of the worker, beside the step loop, and keeps them for
 * the next request with the same text and isolation key. All functions are for the step thread.
 *
 *     ask ----> queued ----> with a thread ------> ready: n_refs requests use it; at 0 it may be
 *                 |                |               evicted, the least recently used one first '--
 *                 cancelled    |-- refused: the waiting requests get the error, and it is dropped
 *
 * One grammar is compiled at a time. Tenants take turns of some milliseconds, also in the middle of
 * a compilation, so that a tenant with a hundred large schemas does not delay another tenant's
 * small one. A compilation ends when no request waits for it any more. A grammar whose request was
 * present when a worker died is quarantined: compiled while nothing else runs, so that another
 * death is blamed on it alone.
 *
 * Memory: unused grammars are kept up to max_bytes. Grammars in use, with the matcher states of
 * their requests, may take COMPILER_USED_FACTOR times as much; each tenant has its share of it by
 * weight (base/quota.h). Beyond that a request waits until other requests of its tenant have ended;
 * running requests continue. A grammar in use is charged to the tenant whose request used it first,
 * and after that tenant's last request to the tenant with the most requests.
 */

#include "base/err.h"
#include "proto/crash_page.h"
#include "proto/messages.h"
#include "scheduler/scheduler.h"

struct compiler;

struct compiler_stats {
    /* numbers of grammars: all; not begun; on a thread */
    uint32_t n_entries, n_queued, n_away;
    /* requests that wait for memory */
    uint32_t n_held;
    /* Memory in bytes. bytes: all grammars; used: charged to tenants; state_bytes: matchers of
     * requests; shared_bytes: token classes that grammars share. */
    size_t bytes, used, state_bytes, shared_bytes;
    /* ns: time of compiling */
    uint64_t n_hits, n_compiled, n_prepared, n_refused, ns;
};

#define COMPILER_USED_FACTOR 2

/* Prepares the vocabulary of @t, which outlives the compiler, and starts the threads. @max_bytes
 * limits the grammars that no request uses. @crash_page may be NULL. Returns 0 or -errno. */
int compiler_new(struct compiler **out, const struct tokenizer *t, size_t max_bytes,
                 struct crash_page *crash_page);
/* Ends the compilations under way and frees all grammars. No grammar may be in use. */
struct compiler *compiler_free(struct compiler *c);
DEFINE_FREEP(struct compiler, compiler)

/* Returns the functions for sched_opts; they live as long as the compiler. */
const struct sched_constraints *compiler_source(struct compiler *c);
/* Returns a descriptor that is readable when results can be delivered. */
int compiler_fd(const struct compiler *c);
/* Delivers its constraint, or the error @why, to request @id. Returns false if no such request
 * waits; the constraint is then not taken. */
typedef bool (*compiler_ready_fn)(void *ctx, uint64_t id, const struct constraint *constraint,
                                  const struct err *why);
/* Calls @ready once for each waiting request whose result has arrived. Returns true if tasks came
 * back, including abandoned ones, whose results are dropped. */
bool compiler_deliver(struct compiler *c, compiler_ready_fn ready, void *ctx);
/* Returns whether a queued grammar must be compiled while nothing else runs. */
bool compiler_has_quarantined(const struct compiler *c);
/* Compiles one such grammar and waits for it, while no step is under way; calls @ready as
 * compiler_deliver() does. */
void compiler_run_quarantined(struct compiler *c, compiler_ready_fn ready, void *ctx);
/* Sets @out to counters since compiler_new() and current gauges. */
void compiler_stats(const struct compiler *c, struct compiler_stats *out);
