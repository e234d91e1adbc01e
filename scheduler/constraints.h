#pragma once

/* constraints - source of the constraints of outputs (grammar/constraint.h). */

#include <stdint.h>
#include "base/err.h"
#include "base/jobs.h"

struct constraint;
struct submit;

/* Work for a constrained request beside the steps. */
struct constrain_job {
    struct job job; /* with run, done and tenant set */
    uint64_t id;    /* the request to blame if the job kills the process */
};

/* Source of constraints; the scheduler never compiles. Each constraint handed out is released
 * once. */
struct sched_constraints {
    void *ctx;
    /* Asks for the constraint of m->grammar and m->triggers. Returns 0 with *out; 1: it comes with
     * sched_constraint_ready(); -EINVAL with @err; -ENOMEM. */
    int (*ask)(void *ctx, const struct submit *m, const struct constraint **out, struct err *err);
    /* Tells that request @id does not need its constraint any more; may be NULL. */
    void (*forget)(void *ctx, uint64_t id);
    /* Tells that constraint states of @tenant's requests take @more bytes more (less if negative);
     * may be NULL. */
    void (*charge)(void *ctx, uint32_t tenant, int64_t more);
    /* Releases @c, which was asked for by a request of @tenant. */
    void (*release)(void *ctx, const struct constraint *c, uint32_t tenant);
    /* Runs @j on a thread and j->job.done() on the scheduler's thread; -ENOMEM. All jobs are done
     * before ctx ends, also those of a scheduler that was freed. NULL: there are no threads, and
     * steps wait for their masks. */
    int (*put)(void *ctx, struct constrain_job *j);
};
