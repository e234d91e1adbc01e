#pragma once

/* constraints - source of the constraints of outputs (grammar/constraint.h). */

#include <stdint.h>

#include "base/err.h"
#include "base/jobs.h"

struct constraint;
struct submit;

/* Work for a constrained request that a thread does beside the steps. */
struct constrain_job {
    /* with run, done and tenant set */
    struct job job;
    /* the request to blame if the job kills the process */
    uint64_t id;
};

/* Source of constraints; the scheduler never compiles. Each constraint handed out is released
 * once. */
struct sched_constraints {
    void *ctx;
    /* Asks for the constraint of m->grammar and m->triggers. Returns 0 with *out; 1:
     * sched_constraint_ready() delivers it later; -EINVAL with @err; -ENOMEM. */
    int (*ask)(void *ctx, const struct submit *m, const struct constraint **out, struct err *err);
    /* Reports that request @id does not need its constraint any more; may be NULL. */
    void (*forget)(void *ctx, uint64_t id);
    /* Charges @tenant @more bytes (negative: returns them) for the constraint states of its
     * requests; may be NULL. */
    void (*charge)(void *ctx, uint32_t tenant, int64_t more);
    /* Releases @c, which was asked for by a request of @tenant. */
    void (*release)(void *ctx, const struct constraint *c, uint32_t tenant);
    /* Runs @j on a thread, then j->job.done() on the scheduler's thread. Returns 0 or -ENOMEM. All
     * jobs are done before ctx ends, including the jobs of a scheduler that was freed. NULL: there
     * are no threads, and steps wait for their masks. */
    int (*submit)(void *ctx, struct constrain_job *j);
};
