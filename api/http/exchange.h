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
    void (*abandon)(struct exchange *x, void *state);
    /* the connection has room again */
    void (*drained)(struct exchange *x);
    /* Called when the exchange fails, for example because the service stops: answers with @err.
     * NULL: leave() is called, and @err is the answer or ends the stream. */
    void (*fail)(struct exchange *x, const struct err *err);
    /* Called when a stream is silent: sends the route's own event, or returns false. */
    bool (*alive)(struct exchange *x);
};

/* Contents of a client's `traceparent` (W3C Trace Context). */
struct trace_parent {
    /* zeros: the request begins a trace */
    uint8_t trace[16], span[8];
    /* the client asks for no span */
    bool unsampled;
};

struct exchange {
    struct http_server *server;
    /* context of the server */
    void *ctx;
    /* NULL: the client is gone */
    struct conn *conn;
    const struct route *route;
    const struct dialect *dialect;
    const struct exchange_ops *ops;
    /* state of the route's handler */
    void *state;
    /* status != 0: the answer, once the body is read */
    struct err refusal;
    /* x-request-id */
    char id[64];
    /* address of the client, in the form of payer.address */
    uint8_t peer[20];
    char method[12];
    /* address, user agent, path; "": none */
    char client[WHO_CLIENT], agent[96], path[96];
    /* origin whose pages may read the answer; "": none */
    char origin[128];
    /* its browser asks for leave to call a private network */
    bool asks_private;
    /* further header lines of the answer, or NULL; not copied */
    const char *headers;
    /* such lines that are freed with the exchange; or NULL */
    char *own_headers;
    /* "name":value of the next event, in a stream without such a line; or NULL */
    char *member;
    /* argument in the path; NULL: none */
    char *arg;
    /* times of the receipt, and of sending the answer's head */
    int64_t started_ns, head_ns;
    /* status of the answer; 0: not sent; 499: the client left first */
    int status;
    /* for Retry-After */
    uint32_t retry_ms;
    bool head_only, http10, stream, chunked, ending;
    /* respond_wait() was called; the answer that comes later is a stream */
    bool waits, streams;
    /* head and white space of such an answer were sent */
    bool blank;
    /* its status 503 is what the client asks about, and no failure */
    bool tells_state;
    /* it answers a request that is counted with another exchange */
    bool second;
    /* it asks for a WebSocket on its route */
    bool upgrades;
    /* it is a message of a WebSocket, and so is each piece of its answer */
    bool framed;
    /* keep-alive times that it has waited for so far */
    uint32_t n_silent;
    /* code of the error that was sent, or "" */
    char code[48];

    /* For the owner's checks and log line; http/ does not read them. */
    /* key: number of the API key's name, from 1; 0: none */
    uint32_t tenant, key;
    /* its key may see the requests of other tenants */
    bool is_operator;
    /* session that the head names; 0: none */
    uint64_t session;
    /* its first generation, of an answer in rounds the last; 0: none */
    uint64_t gen;
    /* the header */
    const char *session_from;
    /* x-stainless-retry-count */
    uint32_t retries;
    /* x-stainless-read-timeout, or 0 */
    int64_t timeout_ms;
    uint32_t n_prompt, n_cached, n_output, n_resumed;
    /* tokens of speculation: proposed, and kept */
    uint32_t n_drafted, n_accepted;
    /* tokens a second; 0: not known */
    double prompt_per_s, output_per_s;
    int64_t queue_ns, ttft_ns;
    const char *finish;
    struct trace_parent parent;
    /* name of the model; "": not known */
    char model[64];
};

/* Makes an exchange on @conn, whose header block may be incomplete. NULL: out of memory. */
struct exchange *exchange_new(struct conn *conn);
/* Moves the connection of @x to a new exchange of the same request, without state, and returns it.
 * @x continues as an exchange without a client. NULL: out of memory. */
struct exchange *exchange_separate_conn(struct exchange *x);
/* Ends the exchange when the answer is complete or the client has left: notifies the server's
 * owner, returns the connection and frees @x. */
void exchange_end(struct exchange *x);
/* Notifies the route that the client has left. */
void exchange_gone(struct exchange *x);
/* Gives @x the state of its route, which answers later. */
void exchange_attach(struct exchange *x, const struct exchange_ops *ops, void *state);
/* Takes the state from @x, which may have none: its callbacks are not called any more.
 * exchange_abandon() then gives the state up by exchange_ops.abandon. */
void *exchange_detach(struct exchange *x);
void exchange_abandon(struct exchange *x);
