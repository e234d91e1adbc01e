#pragma once

/*
 * prewarm - when a chat's turn has ended, the beginning of the next one is computed ahead: the conversation with the
 * answer in it, as the chat template writes that.
 */

#include <stdbool.h>
#include <stddef.h>

struct answer;
struct api;
struct prewarm_job;

/* The body of @a, whose prompts are tokens now, is needed again when the turn has ended. */
bool prewarm_keeps(const struct answer *a);
/* What of @a, which is complete and about to be freed, its next turn begins with. NULL: nothing is computed ahead. */
struct prewarm_job *prewarm_take(struct answer *a);
/* Begins, once the client has its answer. Takes @w over, which may be NULL. */
void prewarm_start(struct prewarm_job *w);
