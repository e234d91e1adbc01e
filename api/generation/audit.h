#pragma once

/* audit - logs a line for each change of the service that a client asks for: the client, the change
 * and its result. The admin socket and signals log theirs in daemon/front/audit.h. */

#include "base/err.h"

struct exchange;
struct tenant;

/* Tells that the client of @x asked for @action on @target (a model, a response); @r < 0: it was
 * refused because of @err. A client causes no more lines than log-requests allows. Returns @r. */
int audit_client(const struct exchange *x, const char *action, const char *target, int r,
                 const struct err *err);
/* Tells that a request of @t needs @model, which is therefore loaded. */
void audit_load(const struct tenant *t, const char *model);
