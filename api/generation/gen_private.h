#pragma once

/* gen_private - the functions of gen_output.c for gen.c, the life of a generation. */

#include "api/generation/gen.h"

/* Takes the new tokens of @e. Returns 0, -ENOMEM, or -EPROTO for a gap or a foreign token. After an
 * error the output has the tokens before it. */
int gen_add_tokens(struct gen *g, const struct event *e);
/* Feeds the text up to `ready` to `output`, if there is one. Returns 0 or -ENOMEM. */
int gen_feed_output(struct gen *g);
/* Returns true if its reasoning exceeds its budget or repeats, and there is room to end it. */
bool gen_closes_reasoning(const struct gen *g);
/* Adds the tokens that end its reasoning, once. Returns as gen_add_output(). */
int gen_end_reasoning(struct gen *g);
