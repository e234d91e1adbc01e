#pragma once

/*
 * prewarm - computes the beginning of a chat's next turn ahead when a turn has ended: the
 * conversation including the answer, as the chat template renders it.
 */

#include <stdbool.h>

struct gen;
struct prewarm_job;
struct prompt_job;

/* Returns true if the body of @job, whose prompts are tokens now, is needed again when @g, its only
 * generation, has ended. */
bool prewarm_is_useful(const struct prompt_job *job, const struct gen *g);
/* Moves the data with which the next turn begins out of @job and @g, which is complete. Returns
 * NULL if nothing is computed ahead; nothing is moved then. */
struct prewarm_job *prewarm_detach(struct prompt_job *job, struct gen *g);
/* Begins the computation, once the client has its answer. Takes @t over, which may be NULL. */
void prewarm_start(struct prewarm_job *t);
