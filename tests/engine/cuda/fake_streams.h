#pragma once

/*
 * fake_streams - the streams, events and graphs of the runtime without a device (fake_api.h): what
 * is enqueued and when it is done, which is as late as may be.
 */

#include "tests/engine/cuda/fake_api.h"
#include "tests/engine/cuda/simt.h"

#define ARGS_MAX 1024

/* The error of a capture that is not what the runtime allows. */
#define CAPTURE_INVALID 901

enum op_kind { OP_COPY, OP_FILL, OP_LAUNCH, OP_RECORD, OP_WAIT, OP_FORK, OP_JOIN, OP_UPLOAD };

struct op { /* what has been enqueued and not been done */
    struct op *next;
    enum op_kind kind;
    struct stream *stream; /* of a graph: where it was captured */
    void *to;
    const void *from;
    void *snapshot; /* of pageable memory, which the runtime copies at once */
    uint64_t sum;   /* of pinned memory */
    size_t n;
    uint64_t number; /* of the record that is waited for */
    int byte;
    struct simt_dim grid;
    uint32_t shared;
    bool early;
    _Alignas(16) uint8_t args[ARGS_MAX];
};

/* Invariant: op and end are a list, of which the first is done next. */
struct stream {
    struct op *op, **end;
    struct stream *next; /* of all */
    int device;
    bool captured; /* the capture has it */
    bool waits;    /* what comes next is behind another stream's event */
    /* What it has of it, and so much of that the stream which began it waits for. */
    uint32_t n_captured, n_joined;
};

struct event {
    float at;                   /* microseconds, when it was reached */
    uint64_t recorded, reached; /* how often */
    struct stream *stream;      /* of the last record */
    int device;
    bool asked;             /* not ready is said once */
    bool has_time;          /* made by timer_new() */
    struct event *captured; /* where the last record was captured: as the graph has it */
    uint32_t place;         /* of that, in what was captured of its stream */
};

/* What was captured, in its order. Invariant: what the other streams had, a launch enqueues in
 * streams of the graph's own, which wait for nothing but `begun`. */
struct graph {
    struct op *op, **end;
    struct stream *first; /* that began the capture */
    bool is_uploaded;     /* it was launched before */
    struct branch {
        struct stream *of;
        struct stream own;
    } branch[FAKE_DEVICES];
    uint32_t n_branches;
    struct event begun;
};

/* What OP_FORK has in args. */
struct fake_call {
    void (*fn)(void *ctx);
    void *ctx;
};

extern struct stream *fake_streams;
extern struct graph *fake_capture;         /* NULL: nothing is captured */
extern _Thread_local bool fake_calls_host; /* the thread is that of a host call */
extern _Thread_local int fake_used;        /* the thread's device */

/* A mistake of the caller's ends the process. */
_Noreturn void fake_refuse(const char *what);

/* An op at the end of the stream, or of the graph which it is a part of; only of the stream. */
struct op *stream_capture(struct stream *s, enum op_kind kind);
struct op *stream_enqueue(struct stream *s, enum op_kind kind);
/* The stream of a call, which is that of the device which is used. */
struct stream *stream_of(void *stream);
/* Out of the list of all. */
void stream_drop(struct stream *s);
/* A number that says whether memory was changed. */
uint64_t stream_sum(const void *p, size_t n);
/* Does what is enqueued in a stream (NULL: in all), up to the last record of @until; NULL: all. The
 * device that is to be ahead of the others does all first. */
void streams_drain(struct stream *only, const struct event *until);
/* All of that, and the host's call; what a device does that never ends its work. */
void streams_wait(struct stream *only);
/* Whether events are never reached any more. */
bool streams_hang(void);
void streams_sampled(void); /* one more sampling is enqueued */
/* What follows in the stream waits for the event's last record so far. */
void stream_wait_for(struct event *e, struct stream *s);

/* A capture by @s begins, takes a record or a wait, ends: 0 or CAPTURE_INVALID, with the graph. */
void capture_start(struct stream *s);
void capture_record(struct event *e, struct stream *s);
int capture_wait(struct event *e, struct stream *s);
int capture_stop(struct graph **out);
/* Enqueues all of a graph, whose first stream is @launched. */
void graph_enqueue(struct graph *g, struct stream *launched);
/* Waits for all streams and frees it, but for @g itself. */
void graph_drop(struct graph *g);
