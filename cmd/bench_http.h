#pragma once

/*
 * bench_http - sends many requests to an OpenAI-compatible server at once from one thread
 * (libcurl's multi interface) and records the times at which their pieces arrive.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "cmd/bench_clock.h"
#include "cmd/bench_stats.h"

enum outcome {
    OUTCOME_OK,
    /* 429 or 503: the server refuses because of its load */
    OUTCOME_REJECTED,
    /* another status than 200 */
    OUTCOME_HTTP,
    /* an error event, or the stream ended before the answer did */
    OUTCOME_STREAM,
    /* the response does not follow the API */
    OUTCOME_PROTOCOL,
    /* no connection, reset, timeout */
    OUTCOME_NETWORK,
    OUTCOMES
};

/* Returns the outcome as a word, as the JSON output has it. */
const char *outcome_name(enum outcome o);

struct bench_http;

struct bench_request {
    /* Set by the caller, which keeps the memory until @done. */
    struct buf body;
    bool stream, keep_text;
    /* scheduled time of sending, from which its times count */
    int64_t due_ns;
    /* api_key NULL: the server's key; session NULL: no x-session-id */
    const char *api_key, *session;
    void (*done)(struct bench_request *q);
    void *ctx;

    /* Results, valid in @done. */
    enum outcome outcome;
    /* HTTP status; 0: there was none */
    int status;
    /* reason if the outcome is not OUTCOME_OK */
    char error[200];
    /* Retry-After in seconds; 0: the header is missing */
    double retry_s;
    /* time from sending to the first byte of the response */
    double answer_s;
    /* time of the first text; 0: no text, or not streamed */
    int64_t first_ns;
    int64_t last_ns, end_ns;
    /* seconds between pieces of text */
    struct samples gaps;
    uint64_t n_pieces;
    int64_t prompt_tokens, cached_tokens,
        /* usage that the server reports; -1: not reported */
        output_tokens;
    /* text, if keep_text */
    struct buf text;

    /* private */
    struct http_transfer *transfer;
};

/* Initialises an empty request. */
void bench_request_init(struct bench_request *q);
void bench_request_deinit(struct bench_request *q); /* not allowed while the request runs */
/* prepares @q for another attempt: clears its results */
void bench_request_reset(struct bench_request *q);

struct bench_http_opts {
    /* http://host:port, with or without /v1 */
    const char *url;
    /* NULL: none */
    const char *api_key;
    /* true: chat/completions; false: completions */
    bool chat;
    /* timeout of a request */
    double timeout_s;
};

/* Makes a client of one server. Returns 0, -ENOMEM, or -EINVAL with @err if the URL is not
 * valid. */
int bench_http_new(struct bench_http **out, const struct bench_http_opts *o, struct err *err);
struct bench_http *bench_http_free(struct bench_http *h); /* ends running requests without calling
                                                           * done */
DEFINE_FREEP(struct bench_http, bench_http)

/* Sends @q, whose body and done are set and which stays in place until done is called. Returns 0,
 * -ENOMEM or -EIO; after an error done is not called. */
int bench_http_start(struct bench_http *h, struct bench_request *q);
void bench_http_stop(struct bench_http *h); /* ends running requests without calling done */
/* Waits for events, at most @timeout_ms, and calls done for each request that has ended. */
int bench_http_run(struct bench_http *h, int timeout_ms);
/* Returns the number of requests that were started and are not done. */
uint32_t bench_http_n_running(const struct bench_http *h);

/* Returns the number of tokens that POST /tokenize (weft, vLLM, llama-server) makes of @text. -1:
 * the server has no such route. */
int64_t bench_http_tokenize(struct bench_http *h, const char *model, const char *text);

/* Returns the largest of the series of metric @name in GET /metrics, because the workers of all
 * models report the same device; 0: there is no series. */
double bench_http_metric(struct bench_http *h, const char *name);

/* Writes the id of the first model that GET /v1/models lists to @out. Returns 0 or -errno with
 * @err. */
int bench_http_model(struct bench_http *h, char out[256], struct err *err);
