#pragma once

/* query - what the routes about stored responses share (routes.c). */

struct exchange;
struct http;

/* 404 for the response that the path names. Ends the exchange. */
void responses_not_found(struct exchange *x);
/* route.serve of input_items.c */
void responses_items_serve(struct exchange *x, struct http *h);
