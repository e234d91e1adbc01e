#pragma once

/* lookup - answers with what a generation would begin with, without generating. */

#include "api/generation/prompt_job.h"

struct endpoint;
struct exchange;
struct json;

/* Prepares the prompt of @x's body as @endpoint reads it, and answers with what @write makes of
 * it, on any thread. */
void lookup_serve(struct exchange *x, const struct endpoint *endpoint,
                  void (*write)(struct json *j, const struct prompt_job *job));
