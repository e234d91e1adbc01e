#pragma once

/*
 * world - an api on a loop of its own, a scripted worker behind it and raw sockets before it, all
 * in one thread: a test turns the loop while it waits, so nothing races.
 */

#include "fake_port.h"
#include "base/buf.h"

struct world {
    uv_loop_t loop;
    struct api *api;
    struct api_opts opts;
    struct api_model model;
    struct fake_port port;
    int tcp_port;
    char path[64]; /* of the UNIX socket */
    bool starting; /* leave the service in STARTING */
};

struct reply {
    int status; /* 0: the connection was closed without an answer */
    char head[4096];
    struct buf body; /* unchunked */
    bool closed;     /* the server closed after it */
};

void world_init(struct world *w); /* defaults; change w->opts and w->model, then: */
/* Before world_start(): the model sees, with Qwen's tokens (tiny_seeing_tokenizer()). */
void world_see(struct world *w);
void world_start(struct world *w);
void world_stop(struct world *w);   /* also asserts that nothing is left */
void world_deinit(struct world *w); /* of one that was not started */
void world_turn(struct world *w);   /* one turn of the loop and of the script */
void world_turns(struct world *w, int n);

int world_connect(struct world *w);
int world_connect_unix(struct world *w);
void world_send(struct world *w, int fd, const char *data, size_t len);
void world_say(struct world *w, int fd, const char *fmt, ...) PRINTF(3, 4);
/* A request with a JSON body. */
void world_post(struct world *w, int fd, const char *path, const char *body);
/* Reads what has arrived until @want bytes are in @out or the server closes; returns false when
 * closed. */
bool world_read_until(struct world *w, int fd, struct buf *out, const char *needle);
void world_receive(struct world *w, int fd, struct reply *r); /* one answer */
void world_drop(struct world *w, int fd);
void reply_deinit(struct reply *r);

/* connect, post, receive, close */
void world_ask(struct world *w, const char *path, const char *body, struct reply *r);
void world_get(struct world *w, const char *path, struct reply *r);
/* Sends @text on a connection of its own and receives one answer. */
void world_raw(struct world *w, const char *text, struct reply *r);
/* Sends @request likewise; the answer has @status, and @needle in its body if it has one. */
void world_expect(struct world *w, const char *request, int status, const char *needle);
/* Value of a header in @head, "" when absent. */
const char *reply_header(const struct reply *r, const char *name, char *out, size_t size);
/* The source of chat template @name of the data set, malloc'd; skips the test where there is no
 * data set. */
char *world_template(const char *name, size_t *len);
/* Before world_start(): another template, whose source must live as long as @w, and a model with
 * all tokens. */
void world_use_template(struct world *w, const char *source, size_t len);
