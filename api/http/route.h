#pragma once

/*
 * route - finds the route of a request in the tables of dialects. Matching is exact on the decoded
 * path; `.` and `..` have no meaning, so a route has no second spelling to which other rules would
 * apply.
 */

struct err;
struct exchange;
struct http;

/* Sets x->route and x->arg for the request target in @h: 0, -ENOMEM, or -EINVAL with @err: 400 for
 * a malformed target, 404, or 405 with the allowed methods in x->arg. Routes of x->dialect come
 * first, then those of the server that belong to no dialect, then those of other dialects. */
int route_find(struct exchange *x, const struct http *h, struct err *err);
