#pragma once

/*
 * call - one request of a client, from its header block to the end of its answer. The connection owns
 * the bytes, the call the meaning; when the client leaves first, the call loses its connection, is
 * told so once and ends as soon as nothing of it runs any more.
 *
 *      conn reads head ──> exchange_new ──> routes_check ──> (body) ──> route->serve ──> respond_* ──> exchange_end
 *                                            └── refusal, answered when the body is over ──> exchange_end
 */

#include <stdbool.h>
#include <stdint.h>
#include "api/http/http.h"
#include "api/limits/session.h"
#include "base/err.h"
#include "base/list.h"

struct api;
struct conn;
struct dialect;
struct exchange;

/* What a route whose answer takes time is told. All may be NULL. */
struct exchange_ops {
    void (*gone)(struct exchange *c);    /* the client left: stop, then exchange_end() */
    void (*drained)(struct exchange *c); /* the connection has room again */
    void (*fail)(struct exchange *c,
                 const struct err *err); /* the service stops: answer with @err */
    bool (*alive)(struct exchange *c); /* a stream is silent: says something of its own, or false */
};

struct exchange {
    struct api *api;
    struct conn *conn; /* NULL: the client is gone */
    const struct route *route;
    const struct exchange_ops *ops;
    void *state;                   /* of the route */
    struct err refusal;            /* status != 0: the answer, once the body is read */
    const struct dialect *dialect; /* never NULL */
    char id[64];                   /* x-request-id */
    char method[12];
    char *arg;                   /* the part of the path that names something; NULL: none */
    int64_t started_ns, head_ns; /* receipt; when the answer's head was sent */
    uint32_t tenant, retries;    /* x-stainless-retry-count */
    struct session_key session;  /* of the head alone */
    int64_t timeout_ms;          /* x-stainless-read-timeout, or 0 */
    int status;                  /* of the answer; 0: not sent; 499: the client left first */
    uint32_t retry_ms;           /* for Retry-After */
    bool head_only, http10, stream, chunked, ending;
    uint32_t n_prompt, n_cached, n_output, n_resumed; /* for the log line */
    int64_t queue_ns, ttft_ns;
    const char *finish;
    char code[48]; /* of the error that was the answer, or "" */
};

/* Reads what every route needs from the header block. NULL: out of memory. */
struct exchange *exchange_new(struct api *a, struct conn *conn);
/* The answer is complete (or there is nobody to answer): writes the log line, gives the connection back
 * and frees @x. */
void exchange_end(struct exchange *x);
/* The client left. */
void exchange_gone(struct exchange *x);
/* Fails a call that has not ended: an error answer, or an error event in a stream. */
void exchange_fail(struct exchange *x, const struct err *err);

/* routes.c */
struct route {
    const char *path; /* a "*" in it stands for the argument */
    uint8_t method;   /* HTTP_GET (HEAD too), HTTP_POST or HTTP_DELETE */
    bool open;        /* no key is needed */
    bool generates;   /* refused while starting or draining */
    void (*serve)(struct exchange *c, struct http *h);
};
/* service/health.c: routes that belong to no dialect; ends with one without path. */
extern const struct route service_routes[];
/* Host, origin, route, method, key, encodings, size: @x->route, or -EINVAL with @err. */
int routes_check(struct exchange *x, struct http *h, struct err *err);

void chat_serve(struct exchange *x, struct http *h);
void chat_render_serve(struct exchange *x, struct http *h);
void completions_serve(struct exchange *x, struct http *h);
void completions_render_serve(struct exchange *x, struct http *h);
void anthropic_serve(struct exchange *x, struct http *h);
void anthropic_count_serve(struct exchange *x, struct http *h);
void embeddings_serve(struct exchange *x, struct http *h);
void responses_serve(struct exchange *x, struct http *h);
void responses_count_serve(struct exchange *x, struct http *h);
void responses_get_serve(struct exchange *x, struct http *h);
void responses_delete_serve(struct exchange *x, struct http *h);
void responses_cancel_serve(struct exchange *x, struct http *h);
void responses_items_serve(struct exchange *x, struct http *h);
void anthropic_models_list_serve(struct exchange *x, struct http *h);
void anthropic_models_one_serve(struct exchange *x, struct http *h);
void models_list_serve(struct exchange *x, struct http *h);
void models_one_serve(struct exchange *x, struct http *h);
void health_serve(struct exchange *x, struct http *h);
void version_serve(struct exchange *x, struct http *h);
void root_serve(struct exchange *x, struct http *h);
void metrics_serve(struct exchange *x, struct http *h);
void llamacpp_completion_serve(struct exchange *x, struct http *h);
void llamacpp_infill_serve(struct exchange *x, struct http *h);
void llamacpp_props_serve(struct exchange *x, struct http *h);
void template_serve(struct exchange *x, struct http *h);
void load_serve(struct exchange *x, struct http *h);
void loads_serve(struct exchange *x, struct http *h);
void sleeping_serve(struct exchange *x, struct http *h);
void ollama_chat_serve(struct exchange *x, struct http *h);
void ollama_generate_serve(struct exchange *x, struct http *h);
void ollama_tags_serve(struct exchange *x, struct http *h);
void ollama_ps_serve(struct exchange *x, struct http *h);
void ollama_version_serve(struct exchange *x, struct http *h);
void ollama_show_serve(struct exchange *x, struct http *h);
void ollama_pull_serve(struct exchange *x, struct http *h);
void tokenize_serve(struct exchange *x, struct http *h);
void detokenize_serve(struct exchange *x, struct http *h);
