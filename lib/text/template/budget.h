#pragma once

/*
 * budget - the state of one rendering and its limits: memory, steps, depth. Every failure fills the
 * caller's err once, where it is detected, and unwinds with a negative return value.
 */

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/util.h"

struct template;
struct value;
struct scope;
struct sink;
struct loop;

/* Invariants: depth <= RENDER_DEPTH_MAX; once `failed` is set, *err holds the first failure. */
struct render {
    const struct template *t;
    struct arena arena;
    /* steps left, which bound every loop, and how many more of them come before job_pause() */
    uint64_t fuel, quantum;
    uint32_t depth, macro_depth;
    /* line of the node under evaluation, for messages */
    uint32_t line;
    int64_t now_unix;
    uint64_t hash_seed;
    struct err *err;
    bool failed;
    /* the failure is that a limit was passed */
    bool overflow;
    /* variables by symbol; V_MISSING: the request has no such variable */
    struct value *globals;
    struct scope *scope;
    /* scopes and loops that ended, to be used again */
    struct scope *free_scopes;
    struct loop *free_loops;
    /* by the logarithm of their room: arrays for seq_build() */
    struct value *free_arrays[32];
    struct sink *out;
    /* input of a block's filter; NULL outside of one */
    const struct value *filter_input;
};

#define RENDER_DEPTH_MAX 1500u /* most levels of nested evaluations, which bounds the C stack */

/* Sets the error, prefixed with the template's line, unless one is set already. Returns a negative
 * value. */
int render_fail(struct render *rd, const char *fmt, ...) PRINTF(2, 3);
/* Fails as render_fail() does, because a limit of the rendering was passed (-E2BIG). */
int render_fail_limit(struct render *rd, const char *reason);
/* Pays for @steps when the quantum is spent: begins the next one. */
int render_charge_slowly(struct render *rd, uint64_t steps);
/* Pays for @steps evaluations. Returns 0, or negative with the error set when the fuel is spent. */
static inline int render_charge(struct render *rd, uint64_t steps) {
    if (steps > rd->quantum)
        return render_charge_slowly(rd, steps);
    rd->quantum -= steps;
    return 0;
}
/* Charges for copying or comparing @bytes: one step for 16 of them, which take about as long as
 * evaluating a node. */
static inline int render_charge_bytes(struct render *rd, size_t bytes) {
    return render_charge(rd, bytes / 16);
}
/* Returns the steps that are left. */
static inline uint64_t render_fuel_left(const struct render *rd) {
    return rd->fuel + rd->quantum;
}
/* Allocates @n zeroed objects of @size bytes, which live until the rendering ends. NULL: the error
 * is set. */
void *render_alloc(struct render *rd, size_t n, size_t size);
/* Allocates @size bytes for text in the same way; they have no value yet. */
char *render_alloc_text(struct render *rd, size_t size);
/* Begins a nested evaluation. Returns 0: render_exit() must follow; or a negative value with the
 * error set. */
static inline int render_enter(struct render *rd) {
    if (rd->depth >= RENDER_DEPTH_MAX)
        return render_fail(rd, "the template is nested too deep");
    rd->depth++;
    return 0;
}
static inline void render_exit(struct render *rd) {
    assert(rd->depth > 0);
    rd->depth--;
}
