#pragma once

/*
 * routes - which requests the API serves: its dialects, what is checked before a body is read, and
 * the headers of its answers. For http_server_opts.
 */

#include "api/http/dialect.h"
#include "base/err.h"

extern const struct dialect *const api_dialects[]; /* ends with NULL; the first is OpenAI's */

/* The dialect of a request for @path: the first that has a prefix of it; on paths that several have
 * the one whose header @h has; else the first. */
const struct dialect *routes_dialect_of(const char *path, const struct http *h);
/* The head: SDK's headers, Host and Origin. */
int routes_check_head(struct exchange *x, const struct http *h, struct err *err);
/* The route is known: key and tenant, session, the body's type and size, whether there is a
 * model. */
int routes_check(struct exchange *x, const struct http *h, struct err *err);
/* Retry-After, what is left of the tenant's rates, and what goes with errors. */
size_t routes_put_headers(const struct exchange *x, int status, const struct err *err, char *out,
                          size_t size);
