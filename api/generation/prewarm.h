#pragma once

/*
 * prewarm - when a chat's turn has ended, the beginning of the next one is computed ahead: the
 * conversation with the answer in it, as the chat template writes that.
 */

#include <stdbool.h>

struct gen;
struct prewarm_job;
struct prompt_job;

/* Returns true if the body of @job, whose prompts are tokens now, is needed again when @g, its only
 * generation, has ended. */
bool prewarm_keeps(const struct prompt_job *job, const struct gen *g);
/* Moves out of @job and @g, which is complete, what the next turn begins with. NULL: nothing is
 * computed ahead, and nothing was moved. */
struct prewarm_job *prewarm_take(struct prompt_job *job, struct gen *g);
/* Begins, once the client has its answer. Takes @t over, which may be NULL. */
void prewarm_start(struct prewarm_job *t);
