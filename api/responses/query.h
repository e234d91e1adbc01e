#pragma once

/* query - what the routes about stored responses share (routes.c). */

#include <stdbool.h>
#include <stddef.h>

struct exchange;
struct http;

/* The value of @name in the query, cut to @size, into @out; false: it is not there. */
bool responses_query(const struct http *h, const char *name, char *out, size_t size);
/* 404 for the response that the path names. Ends the exchange. */
void responses_not_found(struct exchange *x);
/* route.serve of input_items.c */
void responses_items_serve(struct exchange *x, struct http *h);
