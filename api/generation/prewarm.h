#pragma once

/*
 * prewarm - when a chat's turn has ended, the beginning of the next one is computed ahead: the conversation with the
 * answer in it, as the chat template writes that.
 */

#include <stdbool.h>
#include <stddef.h>

struct writer;
struct api;
struct prewarm_job;

/* The body of @w, whose prompts are tokens now, is needed again when the turn has ended. */
bool prewarm_keeps(const struct writer *w);
/* What of @w, which is complete and about to be freed, its next turn begins with. NULL: nothing is computed ahead. */
struct prewarm_job *prewarm_take(struct writer *w);
/* Begins, once the client has its answer. Takes @t over, which may be NULL. */
void prewarm_start(struct prewarm_job *w);
