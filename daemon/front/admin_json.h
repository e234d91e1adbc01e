#pragma once

/*
 * admin_json - the answers of the admin socket as JSON text. The fields are an interface: weftctl
 * and users' scripts read them.
 */

#include "daemon/front/admin_opts.h"

/* Return the answers to GET /stats, /models, /requests, /requests/ID/why, /tenants and /health as
 * malloc'ed text without a newline; NULL: no memory. */
char *admin_json_stats(const struct admin_opts *o);
char *admin_json_models(const struct admin_opts *o);
char *admin_json_requests(const struct admin_opts *o);
/* Returns the answer to GET /requests/ended; *r: at least 0, -ENOENT if there is no such tenant,
 * -ENOMEM. */
char *admin_json_ended(const struct admin_opts *o, const struct api_ended_filter *f, int *r);
/* *known: false, with NULL, if no worker has a record of @id and it does not wait for one. */
char *admin_json_why(const struct admin_opts *o, uint64_t id, bool *known);
char *admin_json_tenants(const struct admin_opts *o);
char *admin_json_usage(const struct admin_opts *o);
char *admin_json_health(const struct admin_opts *o);
