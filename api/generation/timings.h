#pragma once

/* timings - how long prompt and output of a generation took, as clients of llama-server read it. */

struct gen;
struct json;

/* The member "timings". The first output token is made by the step that ends the prompt, so that
 * the output's rate is over the others. */
void timings_put(struct json *j, const struct gen *g);
