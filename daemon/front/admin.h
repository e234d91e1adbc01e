#pragma once

/*
 * admin - the admin socket: HTTP and JSON on a UNIX socket. Only root, the daemon's own user and
 * members of the socket's group may use it (file mode and peer credentials). weftctl is its client;
 * `curl --unix-socket` works, too.
 *
 *   GET  /stats              state and counters; ?watch=1s: a line of JSON in this interval
 *   GET  /requests           live generations
 *   GET  /requests/ended     the last generations that have ended: ?tenant=NAME, oldest_s and
 *                            newest_s (since their end), order=slowest
 *   POST /requests/ID/cancel
 *   GET  /requests/ID/why    decisions about a request, also after its end; ID or x-request-id
 *   GET  /tenants            use of each tenant
 *   GET  /models             the models that are served, as weftctl ps shows them
 *   POST /models/NAME/load, /models/NAME/unload, /models/NAME/swap[?file=PATH]
 *   POST /pull?name=hf:OWNER/REPO[:QUANT]   into models-dir; lines as of weftctl pull --json
 *   GET  /flight[/NAME]      a worker's flight recorder as a file (proto/flight_file.h); without
 *                            NAME the first model's
 *   POST /reload             as SIGHUP; a 400 has the reason
 *   POST /upgrade            as SIGUSR2, answered when the next daemon serves or has failed
 *   POST /drain              as SIGTERM
 *   GET  /health             state in words
 *
 * Answers come from the state of the front; values that the worker has reported have their age_ms.
 */

#include "daemon/front/admin_opts.h"

struct admin;

/* Creates the admin interface; @o is copied. Returns 0 or -errno. */
int admin_new(struct admin **out, const struct admin_opts *o);
struct admin *admin_free(struct admin *a); /* needs admin_close() and the end of the loop before */
/* Listens at @path with a file of mode 0660, or on the inherited @fd. Returns 0, or a negative
 * value with @err. */
int admin_listen_unix(struct admin *a, const char *path, struct err *err);
int admin_listen_fd(struct admin *a, int fd, struct err *err);
int admin_last_fd(const struct admin *a); /* returns http_server_last_fd() */
/* Answers the request for a reload. @later: the keys of the options that need a restart, [@n], or
 * NULL: it failed for the reason in @err. */
void admin_reload_over(struct admin *a, const char *const *later, uint32_t n,
                       const struct err *err);
/* Answers the request for an upgrade. @why NULL: it succeeded, and process @pid serves. */
void admin_upgrade_over(struct admin *a, int pid, const char *why);
/* Stops accepting because the next daemon listens; the files of the sockets stay. */
void admin_hand_over(struct admin *a);
/* Makes the listening sockets this daemon's own: their files are removed when it closes them. */
void admin_own_paths(struct admin *a);
/* Closes listeners and connections at once, including those of watchers. */
void admin_close(struct admin *a);
