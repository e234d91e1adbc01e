#pragma once

/* constraints - where a request gets the constraint of its output (grammar/constraint.h) from. */

#include <stdint.h>
#include "base/err.h"
#include "base/jobs.h"

struct constraint;
struct submit;

/* Work for a constrained request beside the steps. */
struct constrain_job {
    struct job job; /* run, done and tenant are set */
    uint64_t id;    /* the request that is to blame if this kills the process */
};

/* Source of constraints (grammar/constraint.h): the scheduler never compiles. Each one handed out
 * is given back once. */
struct sched_constraints {
    void *ctx;
    /* The constraint of m->grammar and m->triggers. 0: *out; 1: later, by sched_constraint_ready();
     * -EINVAL with @err; -ENOMEM. */
    int (*ask)(void *ctx, const struct submit *m, const struct constraint **out, struct err *err);
    /* Called when the constraint of @id is not needed any more; may be NULL. */
    void (*forget)(void *ctx, uint64_t id);
    /* @tenant's requests hold @more bytes of constraint states, or fewer; NULL: do not care. */
    void (*charge)(void *ctx, uint32_t tenant, int64_t more);
    /* @tenant: that it was asked for. */
    void (*release)(void *ctx, const struct constraint *c, uint32_t tenant);
    /* Runs @j on a thread, and j->job.done() on the scheduler's; -ENOMEM. All are done before ctx
     * ends, those of a scheduler that has ended as well. NULL: there are no threads, and steps wait
     * for their masks. */
    int (*put)(void *ctx, struct constrain_job *j);
};
