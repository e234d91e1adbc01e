#pragma once

/* anthropic - the routes of Anthropic's API, for dialect.c. */

struct endpoint;
struct exchange;
struct http;

/* route.serve */
extern const struct endpoint anthropic_messages; /* /v1/messages */
extern const struct endpoint anthropic_count;    /* counts tokens of its body */
void anthropic_models_list_serve(struct exchange *x, struct http *h); /* /v1/models */
void anthropic_models_one_serve(struct exchange *x, struct http *h);  /* one of these */
