#pragma once

/*
 * trace - requests as spans of OpenTelemetry, in OTLP's JSON: one of kind SERVER for each request
 * that generates, and below it queue, prefill and decode. Names are those of the semantic
 * conventions for HTTP and generative AI; weft's own begin with "weft.". A span has names, numbers
 * and times, and never text of prompts or answers.
 */

#include <stdint.h>

#include "api/http/exchange.h"
#include "base/buf.h"

struct http;

/* A request that has ended. Times: start by the wall clock, the others from it; 0: not reached. */
struct trace_span {
    struct trace_parent parent;
    /* static; finish "-": none */
    const char *path, *finish, *method;
    /* model "": none was found yet */
    char request_id[64], model[64], tenant[64];
    /* the code of the error, or "" */
    char error[48];
    /* see exchange.status */
    int status;
    uint32_t n_prompt, n_cached, n_output, n_resumed;
    int64_t start_unix_ns, queue_ns, ttft_ns, total_ns;
};

/* Source of the spans. */
struct trace_origin {
    char host[256];
    /* 0: not known */
    int port;
    int pid;
};

/* Reads `traceparent`; a malformed one is ignored. */
void trace_read_head(struct trace_parent *p, const struct http *h);
/* Fills @s from exchange @x of the tenant ("": none), which generated and has ended at @now by the
 * api's clock. */
void trace_span_init(struct trace_span *s, const struct exchange *x, const char *tenant,
                     int64_t now);
/* Appends an ExportTraceServiceRequest of @n spans, whose ids are drawn here. Returns 0 or
 * -errno. */
int trace_write(struct buf *out, const struct trace_origin *from, const struct trace_span *spans,
                uint32_t n);
