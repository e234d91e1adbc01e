#pragma once

/* lookup - answers requests about prompts (render, tokenize) without generating. */

struct exchange;
struct http;

/* Implements route.serve: prepares the prompt of @x's body, as the route's endpoint reads it, and
 * sends the answer that the endpoint writes. */
void lookup_serve(struct exchange *x, struct http *h);
