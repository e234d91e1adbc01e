#pragma once

/* timings - the times of prompt and output of a generation, in the form of llama-server. */

struct gen;
struct json;

/* Writes the member "timings". The step that ends the prompt makes the first output token, so the
 * output's rate counts the tokens after it. */
void timings_put(struct json *j, const struct gen *g);
/* Writes the times of a generation of which nothing was computed. */
void timings_put_begin(struct json *j);
