#pragma once

/*
 * ctl_chat - code shared by the parts of `weftctl chat`: requests to weftd's HTTP API, over TCP or
 * a UNIX socket, and the conversation. Private to weftctl.
 */

#include <signal.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/lib_types.h"

/* ---- the server: ctl_chat_http.c ---- */

#define CHAT_REPLY_MAX (64u << 20)

struct chat_server;

/* @url: without a path; @unix_path: NULL, or the socket to connect to instead of its host; @key:
 * NULL or an API key. Returns 0 or -ENOMEM. */
int chat_server_new(struct chat_server **out, const char *url, const char *unix_path,
                    const char *key);
struct chat_server *chat_server_free(struct chat_server *s);
DEFINE_FREEP(struct chat_server, chat_server)

/* Receives an answer as it arrives. Any member may be NULL. */
struct chat_sink {
    void (*text)(void *ctx, bool reasoning, const char *text, size_t len);
    void *ctx;
    /* becomes nonzero when the answer is to end */
    volatile sig_atomic_t *stop;
};

/* An answer, or the part of it that arrived. */
struct chat_answer {
    /* freed by chat_answer_deinit() */
    struct buf text, reasoning;
    /* last chunk with a member `usage`, or NULL */
    yyjson_doc *usage;
    char finish[24];
    /* the server ended it, because it only repeated itself */
    bool loop_ended;
    /* seconds since the request was sent; first_s 0: no text arrived */
    double first_s, total_s;
    bool stopped;
};

void chat_answer_deinit(struct chat_answer *a); /* accepts a zeroed one */

/* Gets @path and parses its JSON to *out. Returns an exit code (ctl.h), with the reason of a
 * failure in @err. */
int chat_get(struct chat_server *s, const char *path, yyjson_doc **out, struct err *err);
/* Streams a chat completion of @body. Returns an exit code, with @err; @out has the text that
 * arrived. */
int chat_ask(struct chat_server *s, const char *body, size_t len, const struct chat_sink *sink,
             struct chat_answer *out, struct err *err);

/* ---- the conversation: ctl_chat_talk.c ---- */

/* The conversation so far; doc and its two members exist from chat_talk_init() on. */
struct chat_talk {
    yyjson_mut_doc *doc;
    /* in doc: array of {role, content, reasoning_content?} */
    yyjson_mut_val *messages;
    /* in doc: parameters that /set has set */
    yyjson_mut_val *params;
    /* model, system: NULL if they are not set */
    char *model, *system;
};

/* Returns 0 or -ENOMEM, as do all functions below. */
int chat_talk_init(struct chat_talk *t);
void chat_talk_deinit(struct chat_talk *t);
void chat_talk_clear(struct chat_talk *t); /* removes the messages */
int chat_talk_add(struct chat_talk *t, const char *role, const char *text, size_t len,
                  const struct buf *reasoning);
/* Removes the last message if it is @role's; otherwise returns false. */
bool chat_talk_drop(struct chat_talk *t, const char *role);
/* Sets a parameter: @text is JSON, or else a string; empty: removes the parameter. */
int chat_talk_set(struct chat_talk *t, const char *name, const char *text);
/* Makes the body of the request for the next answer; the caller frees it. Returns 0, -ENOMEM, or
 * -EILSEQ if a text is not UTF-8. */
int chat_talk_body(const struct chat_talk *t, char **out, size_t *len);
/* Write the conversation to @path as JSON, mode 0600, and read it back. Return 0 or -errno; reading
 * also -EBADMSG, and then @t is unchanged. */
int chat_talk_save(const struct chat_talk *t, const char *path);
int chat_talk_load(struct chat_talk *t, const char *path);

/* ---- the command: ctl_chat.c ---- */

/* Finds the API key: the first line of @file, else $WEFT_API_KEY, else NULL. *out may point to
 * @key. Returns CLI_OK, or an exit code after an error message. */
int chat_find_key(const char *file, char *key, size_t size, const char **out);
int ctl_chat(int argc, char **argv, bool json);
