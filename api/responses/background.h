#pragma once

/*
 * background - responses that are generated without a client: the request is answered at once, and
 * the response continues even if no client listens. Clients ask for it by its id, read its events
 * from any number on, or cancel it.
 */

#include <stdint.h>

struct buf;
struct err;
struct event_log;
struct exchange;
struct gen_env;
struct responses;
struct splices;
struct writer;

/* endpoint.prepared: answers the client of a request with `background`, and takes the connection
 * from @w's exchange. Others are left as they are. */
int background_begin(struct writer *w, struct err *err);
/* Adds an event of a response in the background, with the parts @in in it, to its log. */
void background_add(struct responses *rs, const char *type, const struct buf *json,
                    const struct splices *in);
/* Closes the log behind the last event; it is kept with the response. */
void background_close(struct responses *rs);
/* Ends all responses in the background with @err, as http_server_close() ends exchanges with a
 * client. */
void background_stop(struct gen_env *env, const struct err *err);
/* Answers @x with the events of @log from number @from on, including later ones. Ends the exchange,
 * now or later. */
void background_follow(struct exchange *x, struct event_log *log, uint32_t from);
