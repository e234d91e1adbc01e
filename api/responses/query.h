#pragma once

/* query - functions shared by the routes for stored responses and conversations. */

#include "api/responses/reply.h"

struct exchange;
struct http;
struct stored_parts;

/* Returns a reference to the response that the path names, which the caller releases; NULL: there
 * is none. */
struct stored *responses_named(struct exchange *x);
/* Answers 404 for the response that the path names. Ends the exchange. */
void responses_not_found(struct exchange *x);

/* ---- input_items.c ---- */

/* route.serve */
void responses_items_serve(struct exchange *x, struct http *h);
/* Ends @x with a page of the items of @s, which is taken over, as the query asks. */
void items_serve(struct exchange *x, struct http *h, struct stored *s);
/* stored_write: all items that @s itself has as input; the item with the id query.after (-ENOENT:
 * there is none). */
int items_put_own(const struct stored *s, const struct items_query *q, struct buf *out);
int items_put_one(const struct stored *s, const struct items_query *q, struct buf *out);
/* Returns the approximate number of bytes that these functions read, for stored_reply(). */
size_t items_work(const struct stored *s);
/* Copies the items of @s and of the responses that it continues, except the item with the id @id,
 * to the input of @out. Returns 0, -ENOMEM, -ENOENT, or -ECANCELED. */
int items_copy_without(const struct stored *s, const char *id, struct stored_parts *out);
