#pragma once

/*
 * admin - the admin socket: HTTP and JSON on a UNIX socket. Only root, the daemon's own user and
 * members of the socket's group are heard (file mode and peer credentials). `curl --unix-socket`
 * works, weftctl is its pleasant form.
 *
 *   GET  /stats              everything at once; ?watch=1s: one JSON object per line, that often
 *   GET  /requests           live generations
 *   POST /requests/ID/cancel
 *   GET  /requests/ID/why    what was decided about it, also when it has ended; ID or x-request-id
 *   GET  /tenants            who uses what
 *   GET  /models             the models that are served, as weftctl ps shows them
 *   POST /models/NAME/load, /models/NAME/unload, /models/NAME/swap[?file=PATH]
 *   POST /pull?name=hf:OWNER/REPO[:QUANT]   into models-dir; lines as of weftctl pull --json
 *   GET  /flight[/NAME]      a worker's flight recorder as a file (proto/flight_file.h); without
 *                            NAME the first model's
 *   POST /reload             as SIGHUP; 400 says what is wrong
 *   POST /upgrade            as SIGUSR2, answered when the next daemon serves or has failed
 *   POST /drain              as SIGTERM
 *   GET  /health             state in words
 *
 * Everything is answered from what the front holds; what the worker reported carries its age_ms.
 */

#include "daemon/front/admin_opts.h"

struct admin;

/* Creates the admin interface; @o is copied. Returns 0 or -errno. */
int admin_new(struct admin **out, const struct admin_opts *o);
struct admin *admin_free(struct admin *a); /* after admin_close() and the loop has run out */
/* Listens at @path with a file of mode 0660, or on the inherited @fd. 0, or a negative value with
 * @err. */
int admin_listen_unix(struct admin *a, const char *path, struct err *err);
int admin_listen_fd(struct admin *a, int fd, struct err *err);
int admin_last_fd(const struct admin *a); /* http_server_last_fd() */
/* Answers the request for an upgrade. @why NULL: it succeeded, and process @pid serves. */
void admin_upgrade_over(struct admin *a, int pid, const char *why);
/* Stops accepting because the next daemon listens; the files of the sockets stay. */
void admin_hand_over(struct admin *a);
/* Makes the listening sockets this daemon's own: their files are removed when it closes them. */
void admin_own_paths(struct admin *a);
/* Closes listeners and connections at once; watchers too. */
void admin_close(struct admin *a);
