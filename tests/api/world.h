#pragma once

/*
 * world - an api on a loop of its own, with a scripted worker behind it and raw sockets before it,
 * all in one thread: a test turns the loop while it waits, so there are no races.
 */

#include <uv.h>

#include "base/buf.h"
#include "fake_port.h"

struct world {
    uv_loop_t loop;
    struct api *api;
    struct api_opts opts;
    struct api_model model;
    struct fake_port port;
    /* of the api; the loop's timers have the real one */
    struct clock *clock;
    int tcp_port;
    /* path of the UNIX socket */
    char path[64];
    /* leaves the service in STARTING */
    bool starting;
    /* the loop may move any number of bytes (base/loop_bytes.h) */
    bool unwatched;
};

struct reply {
    /* 0: the connection was closed without an answer */
    int status;
    char head[4096];
    /* body, unchunked */
    struct buf body;
    /* the server closed the connection after it */
    bool closed;
};

/* sets defaults; w->opts and w->model may be changed before world_start() */
void world_init(struct world *w);
/* Makes the model take pictures, with Qwen's tokens (tiny_seeing_tokenizer()). Called before
 * world_start(). */
void world_see(struct world *w);
void world_start(struct world *w);
/* Reads the file of keys again. Returns as api_read_keys(). */
int world_reload_keys(struct world *w, struct err *err);
void world_stop(struct world *w);   /* also asserts that nothing remains */
void world_deinit(struct world *w); /* for a world that was not started */
void world_turn(struct world *w);   /* runs one turn of the loop and of the script */
void world_turns(struct world *w, int n);
/* Returns the time by uv_hrtime() at which a wait for threads has to end: 10 s from now. */
uint64_t world_limit(void);

int world_connect(struct world *w);
int world_connect_unix(struct world *w);
void world_send(struct world *w, int fd, const char *data, size_t len);
void world_say(struct world *w, int fd, const char *fmt, ...) PRINTF(3, 4);
/* Sends a request with a JSON body. */
void world_post(struct world *w, int fd, const char *path, const char *body);
/* Opens a WebSocket on @path, and sends a message over one. */
int world_websocket(struct world *w, const char *path);
void world_message(struct world *w, int fd, const char *text);
/* Reads until @needle is in @out or the server closes the connection; then returns false. */
bool world_read_until(struct world *w, int fd, struct buf *out, const char *needle);
void world_receive(struct world *w, int fd, struct reply *r); /* reads one answer */
void world_drop(struct world *w, int fd);
void reply_deinit(struct reply *r);

/* connects, posts, receives and closes */
void world_ask(struct world *w, const char *path, const char *body, struct reply *r);
void world_get(struct world *w, const char *path, struct reply *r);
/* Sends @text on a new connection and receives one answer. */
void world_raw(struct world *w, const char *text, struct reply *r);
/* Sends @request on a new connection; the answer must have @status, and @needle in its body unless
 * that is NULL. */
void world_expect(struct world *w, const char *request, int status, const char *needle);
/* Returns the value of a header in @head, "" if absent. */
const char *reply_header(const struct reply *r, const char *name, char *out, size_t size);
/* Returns the source of chat template @name of the data set, malloc'd; skips the test if there is
 * no data set. */
char *world_template(const char *name, size_t *len);
/* Sets another template, whose source must outlive @w, and a model with all tokens. Called before
 * world_start(). */
void world_use_template(struct world *w, const char *source, size_t len);
