#pragma once

/* audit - one line of the log for each change of the service that an operator asks for, on the
 * admin socket or by a signal: the user, the action and its result. */

#include "base/err.h"

/* Logs that the peer @client of the admin socket ("uid:N") asked for @action on @target (a model, a
 * request; NULL: the service) with @detail (a file; NULL: none); @r < 0: the action was refused
 * because of @err. Returns @r. */
int audit_admin(const char *client, const char *action, const char *target, const char *detail,
                int r, const struct err *err);
/* Logs that a signal asked for @action. */
void audit_signal(const char *action);
/* Warns if every user of the machine can read the file of API keys at @path, which may be "". */
void audit_key_file(const char *path);
