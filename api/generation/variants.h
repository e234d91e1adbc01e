#pragma once

/* variants - several prompts of one chat that differ in one place: the chat is rendered once, and
 * all prompts share the tokens before that place in the prefix cache. */

#include <stddef.h>

struct prompt_job;

/* Makes a prompt of the job's rendered chat for each of request.variants. Returns 0, -ENOMEM,
 * -EAGAIN where the job is quick and they have more than @quick bytes, or an error of the job. */
int variants_spread(struct prompt_job *job, size_t quick);
