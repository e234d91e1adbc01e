#pragma once

/* timings - how long prompt and output of a generation took, as clients of llama-server read it. */

struct gen;
struct json;

/* Writes the member "timings". The step that ends the prompt makes the first output token, so the
 * output's rate counts the tokens after it. */
void timings_put(struct json *j, const struct gen *g);
