#pragma once

/* writer_private - functions for the generations of an answer, shared by writer.c and
 * writer_gens.c. */

#include "api/generation/writer.h"

/* Makes one generation for each prompt and choice; the prompts are tokens now. Returns 0, -ENOMEM,
 * or -EINVAL with @err. */
int writer_create_gens(struct writer *w, struct err *err);
/* Charges the tenant for the most that each generation may use. Returns 0, or -EINVAL with @err
 * (429): the tenant's limit per minute is used up. */
int writer_charge(struct writer *w, struct err *err);
/* Adds a generation for the current prompt of the job, which continues the last generation, and
 * queues it. It may use the tokens that the last one has not used. Returns as writer_charge(). */
int writer_add_round(struct writer *w, struct err *err);

/* writer.c: gen.changed */
void writer_changed(struct gen *g);
