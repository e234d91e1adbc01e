#pragma once

/* gen_private - what gen.c, the life of a generation, has of gen_output.c. */

#include "api/generation/gen.h"

/* Takes the new tokens of @e. Returns 0, -ENOMEM, or -EPROTO for a gap or a foreign token. After an
 * error the output has the tokens before it. */
int gen_take_tokens(struct gen *g, const struct event *e);
/* Feeds `output`, where there is one, up to `ready`. Returns 0 or -ENOMEM. */
int gen_take_apart(struct gen *g);
/* Returns true if its reasoning exceeds its budget or repeats, and there is room to end it. */
bool gen_closes_reasoning(const struct gen *g);
/* Adds what ends its reasoning, once. As gen_add_output(). */
int gen_end_reasoning(struct gen *g);
