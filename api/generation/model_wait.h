#pragma once

/*
 * model_wait - finds the model that the body of a prompt job names, and waits until it can be used.
 * If the body names another model than the job has, or one that is not loaded, the job returns to
 * the loop's thread with its body, gets the model there, and begins anew when the model is ready.
 *
 * The wait is bounded by load-wait-ms, and by max-queued requests in all; beyond either the answer
 * is 503 with Retry-After. A stream of events that waits longer than keepalive-ms gets its head,
 * and comments that say how far the loading is; any other answer gets its head as in the queue
 * (respond_wait()).
 */

#include <stdint.h>

#include "base/lib_types.h"

struct gen_env;
struct err;
struct model;
struct prompt_job;

/* Checks that the job can continue with its model, as far as @body tells. On any thread. Returns 0;
 * -EBUSY: model_wait_begin() is to be called; 404 if several models are served and @body names none
 * of them; 400 if the name contains NUL; -ENOMEM. */
int model_wait_check(struct prompt_job *job, yyjson_val *body, struct err *err);
/* Gives the job its model after -EBUSY, on the loop's thread. Returns 0: the model can be used;
 * -EBUSY: the job waits, and job->go_on will be called with 0 or an error in job->result; or an
 * error in job->err. The ninth call for one job returns 503, which bounds every loop of calls. */
int model_wait_begin(struct prompt_job *job);
/* Ends the wait of the job, if it waits. */
void model_wait_cancel(struct prompt_job *job);
/* Resumes or fails the jobs that wait for @m, which is open, READY, or FAILED. */
void model_wait_over(struct model *m);

/* Moves the jobs that wait for @old to @next. */
void model_wait_move(struct model *old, struct model *next);

/* Counts @job among the jobs of @m instead of those of its current model; NULL: among none. */
void model_wait_assign(struct prompt_job *job, struct model *m);

/* Initialises the timer. */
void model_wait_init(struct gen_env *env);
void model_wait_close(struct gen_env *env);
