#pragma once

/*
 * plan_again - a plan of the flight recorder (scheduler/plan_tape.h), read and decided once more.
 * Hashes of pages are others than they were, equal and different in the same places.
 */

#include <stddef.h>
#include "scheduler/plan.h"

struct plan_again {
    struct plan plan; /* as it was told; what it points to belongs to this object */
    struct plan was;  /* what was decided: only what is out, and req */
    uint64_t *id;     /* [plan.n_running + plan.n_waiting] */
    uint64_t step;
    int64_t at_ns;
    struct cost cost; /* plan.cost */
    void *memory;
};

/* 0; -EINVAL: this is no record, or of another version; -ENOMEM. */
int plan_again_read(struct plan_again *out, const void *data, size_t len);
void plan_again_deinit(struct plan_again *t);

/* Decides. NULL: the same was decided then; or a word for what differs. */
const char *plan_again(struct plan_again *t);
