#pragma once

/* lookup - answers requests about prompts (render, tokenize) without generating. */

#include "api/generation/prompt_job.h"

struct endpoint;
struct exchange;
struct json;

/* Prepares the prompt of @x's body as @endpoint reads it, and sends the answer that @write makes of
 * it, on any thread. */
void lookup_serve(struct exchange *x, const struct endpoint *endpoint,
                  void (*write)(struct json *j, const struct prompt_job *job));
