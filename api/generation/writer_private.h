#pragma once

/* writer_private - the generations of an answer, between writer.c and writer_gens.c. */

#include "api/generation/writer.h"

/* The prompts are tokens: makes one generation for each prompt and choice. Returns 0, -ENOMEM, or
 * -EINVAL with @err. */
int writer_create_gens(struct writer *w, struct err *err);
/* Charges the tenant for the most that each generation may use. Returns 0, or -EINVAL with @err
 * (429): the tenant's minute is used up. */
int writer_charge(struct writer *w, struct err *err);
/* Adds a generation that goes on behind the last one, which has ended, from the prompt that the job
 * has now, and queues it. It may use what the last one left of its tokens. Errors as above. */
int writer_add_round(struct writer *w, struct err *err);

/* writer.c: gen.changed */
void writer_changed(struct gen *g);
