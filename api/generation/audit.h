#pragma once

/* audit - logs a line for each change of the service that a client asks for: the client, the change
 * and its result. The admin socket and signals log theirs in daemon/front/audit.h. */

#include "base/err.h"

struct exchange;
struct tenant;

/* Logs that the client of @x asked for @action on @target (a model, a response); @r < 0: the action
 * was refused because of @err. log-requests limits the lines of a client. Returns @r. */
int audit_client(const struct exchange *x, const char *action, const char *target, int r,
                 const struct err *err);
/* Logs that @model is loaded because a request of @t needs it. */
void audit_load(const struct tenant *t, const char *model);
