#pragma once

/*
 * routes - the requests that the API serves: its dialects, the checks before a body is read, and
 * the headers of its answers. For http_server_opts.
 */

#include "api/http/dialect.h"
#include "base/err.h"

extern const struct dialect *const api_dialects[]; /* ends with NULL; the first is OpenAI's */

/* Returns the dialect of a request for @path: the first that has a prefix of it; on paths that
 * several dialects have, the one whose header is in @h; else the first. */
const struct dialect *routes_dialect_of(const char *path, const struct http *h);
/* Checks the head: headers of SDKs, Host and Origin. */
int routes_check_head(struct exchange *x, const struct http *h, struct err *err);
/* Checks the request when its route is known: key and tenant, session, type and size of the body,
 * and whether there is a model. */
int routes_check(struct exchange *x, const struct http *h, struct err *err);
/* Writes Retry-After, the remaining limits of the tenant, and the headers of errors. */
size_t routes_put_headers(const struct exchange *x, int status, const struct err *err, char *out,
                          size_t size);
