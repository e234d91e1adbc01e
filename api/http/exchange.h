#pragma once

/*
 * exchange - one request of a client and its response, from the header block to the end of the
 * answer. The connection owns the bytes, the exchange their meaning. If the client leaves first,
 * the exchange loses its connection, is notified once, and ends as soon as none of its work runs
 * any more.
 *
 *  head ──> exchange_new ──> checks ──> (body) ──> route->serve ──> respond_* ──> exchange_end
 *                               └── refusal, answered when the body is over ──> exchange_end
 *
 * Invariants: conn->exchange == x as long as x->conn is set; a refused exchange has no ops; after
 * exchange_end() only the log line reads it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/http/who.h"
#include "base/err.h"

struct conn;
struct dialect;
struct exchange;
struct http_server;
struct route;

/* Callbacks of a route whose answer takes time. All but leave() may be NULL. */
struct exchange_ops {
    /* Called once, when the client has left or the exchange fails: gives up @state, which @x has no
     * more. Work that still runs may free it later, without @x. */
    void (*leave)(struct exchange *x, void *state);
    void (*drained)(struct exchange *x); /* the connection has room again */
    /* Called when the exchange fails, for example because the service stops: answers with @err.
     * NULL: leave() is called, and @err is the answer or ends the stream. */
    void (*fail)(struct exchange *x, const struct err *err);
    /* Called when a stream is silent: sends the route's own event, or returns false. */
    bool (*alive)(struct exchange *x);
};

/* Contents of a client's `traceparent` (W3C Trace Context). */
struct trace_parent {
    uint8_t trace[16], span[8]; /* zeros: the request begins a trace */
    bool unsampled;             /* the client asks for no span */
};

struct exchange {
    struct http_server *server;
    void *ctx;         /* context of the server */
    struct conn *conn; /* NULL: the client is gone */
    const struct route *route;
    const struct dialect *dialect;
    const struct exchange_ops *ops;
    void *state;        /* state of the route's handler */
    struct err refusal; /* status != 0: the answer, once the body is read */
    char id[64];        /* x-request-id */
    uint8_t peer[20];   /* address of the client, in the form of payer.address */
    char method[12];
    char client[WHO_CLIENT], agent[96], path[96]; /* address, user agent, path; "": none */
    char origin[128];    /* origin whose pages may read the answer; "": none */
    bool asks_private;   /* its browser asks for leave to call a private network */
    const char *headers; /* further header lines of the answer, or NULL; not copied */
    char *own_headers;   /* such lines that are freed with the exchange; or NULL */
    char *member; /* "name":value of the next event, in a stream without such a line; or NULL */
    char *arg;    /* argument in the path; NULL: none */
    int64_t started_ns, head_ns; /* times of the receipt, and of sending the answer's head */
    int status;                  /* status of the answer; 0: not sent; 499: the client left first */
    uint32_t retry_ms;           /* for Retry-After */
    bool head_only, http10, stream, chunked, ending;
    bool waits;        /* the answer comes whole, and later: white space may precede it */
    bool blank;        /* head and white space of such an answer were sent */
    bool second;       /* it answers a request that is counted with another exchange */
    bool upgrades;     /* it asks for a WebSocket on its route */
    bool framed;       /* it is a message of a WebSocket, and so is each piece of its answer */
    uint32_t n_silent; /* keep-alive times that it has waited for so far */
    char code[48];     /* code of the error that was sent, or "" */

    /* For the owner's checks and log line; http/ does not read them. */
    uint32_t tenant, key;     /* key: number of the API key's name, from 1; 0: none */
    bool is_operator;         /* its key may see the requests of other tenants */
    uint64_t session;         /* session that the head names; 0: none */
    uint64_t gen;             /* its first generation, of an answer in rounds the last; 0: none */
    const char *session_from; /* the header */
    uint32_t retries;         /* x-stainless-retry-count */
    int64_t timeout_ms;       /* x-stainless-read-timeout, or 0 */
    uint32_t n_prompt, n_cached, n_output, n_resumed;
    uint32_t n_drafted, n_accepted;    /* tokens of speculation: proposed, and kept */
    double prompt_per_s, output_per_s; /* tokens a second; 0: not known */
    int64_t queue_ns, ttft_ns;
    const char *finish;
    struct trace_parent parent;
    char model[64]; /* name of the model; "": not known */
};

/* Makes an exchange on @conn, whose header block may be incomplete. NULL: out of memory. */
struct exchange *exchange_new(struct conn *conn);
/* Moves the connection of @x to a new exchange of the same request, without state, and returns it.
 * @x continues as an exchange without a client. NULL: out of memory. */
struct exchange *exchange_give_conn(struct exchange *x);
/* Ends the exchange when the answer is complete or the client has left: notifies the server's
 * owner, returns the connection and frees @x. */
void exchange_end(struct exchange *x);
/* Notifies the route that the client has left. */
void exchange_gone(struct exchange *x);
/* Gives @x the state of its route, which answers later. */
void exchange_attach(struct exchange *x, const struct exchange_ops *ops, void *state);
/* Takes the state from @x, which may have none: its callbacks are not called any more.
 * exchange_leave() then gives the state up by exchange_ops.leave. */
void *exchange_detach(struct exchange *x);
void exchange_leave(struct exchange *x);
