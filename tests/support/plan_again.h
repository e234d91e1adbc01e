#pragma once

/*
 * plan_again - reads a plan of the flight recorder (scheduler/plan_tape.h) and decides it again.
 * Hashes of pages have other values, equal and different in the same places.
 */

#include <stddef.h>

#include "scheduler/plan.h"

struct plan_again {
    /* the input of the plan; this object owns its arrays */
    struct plan plan;
    /* the recorded decision: only output members and req are set */
    struct plan was;
    /* [plan.n_running + plan.n_waiting] */
    uint64_t *id;
    uint64_t step;
    int64_t at_ns;
    /* plan.cost */
    struct cost cost;
    void *memory;
};

/* Reads a record. Returns 0; -EINVAL: it is not a record, or of another version; -ENOMEM. */
int plan_again_read(struct plan_again *out, const void *data, size_t len);
void plan_again_deinit(struct plan_again *t);

/* Decides again. Returns NULL if the decision is the recorded one, else a word for the
 * difference. */
const char *plan_again(struct plan_again *t);
