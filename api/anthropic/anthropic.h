#pragma once

/* anthropic - the routes of Anthropic's API, for dialect.c. */

struct exchange;
struct http;

/* route.serve */
void anthropic_serve(struct exchange *x, struct http *h);       /* /v1/messages */
void anthropic_count_serve(struct exchange *x, struct http *h); /* counts tokens of its body */
void anthropic_models_list_serve(struct exchange *x, struct http *h); /* /v1/models */
void anthropic_models_one_serve(struct exchange *x, struct http *h);  /* one of these */
