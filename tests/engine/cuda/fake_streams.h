#pragma once

/*
 * fake_streams - streams, events and graphs of the fake runtime (fake_api.h). Enqueued work runs as
 * late as the rules of the runtime allow.
 */

#include "tests/engine/cuda/fake_api.h"
#include "tests/engine/cuda/simt.h"

#define ARGS_MAX 1024

/* Error of a capture that the runtime does not allow. */
#define CAPTURE_INVALID 901

enum op_kind { OP_COPY, OP_FILL, OP_LAUNCH, OP_RECORD, OP_WAIT, OP_FORK, OP_JOIN, OP_UPLOAD };

struct op { /* enqueued work that has not run */
    struct op *next;
    enum op_kind kind;
    /* of an op in a graph: the stream in which it was captured */
    struct stream *stream;
    void *to;
    const void *from;
    /* copy of pageable memory, which the runtime reads immediately */
    void *snapshot;
    /* stream_sum() of pinned memory, which must not change until the copy */
    uint64_t sum;
    size_t n;
    /* number of the record that is waited for */
    uint64_t number;
    int byte;
    struct simt_dim grid;
    uint32_t shared;
    /* enum launch_how */
    uint32_t how;
    bool was_ahead;
    struct simt_ahead ahead;
    _Alignas(16) uint8_t args[ARGS_MAX];
};

/* Invariant: op and end are a queue; op is the next to run. */
struct stream {
    struct op *op, **end;
    /* list of all streams */
    struct stream *next;
    int device;
    /* the current capture includes it */
    bool captured;
    /* the next op follows a wait for another stream's event */
    bool waits;
    /* Number of its ops in the capture, and how many of these the stream that began the capture
     * waits for. */
    uint32_t n_captured, n_joined;
};

struct event {
    /* time in microseconds at which it was reached */
    float at;
    /* how often it was recorded and reached */
    uint64_t recorded, reached;
    /* stream of the last record */
    struct stream *stream;
    int device;
    /* a query has answered "not ready" once since the last record */
    bool asked;
    /* made by timer_new(), so that it keeps times */
    bool has_time;
    /* if the last record was captured: the event of the graph that stands for it */
    struct event *captured;
    /* of a captured record: its index among the stream's captured ops */
    uint32_t place;
};

/* A captured graph, in the order of capture. A launch enqueues the ops of other streams in streams
 * of the graph's own. Invariant: of events outside the graph, these wait only for `begun`. */
struct graph {
    struct op *op, **end;
    /* the stream that began the capture */
    struct stream *first;
    struct branch {
        struct stream *of;
        struct stream own;
    } branch[FAKE_DEVICES];
    uint32_t n_branches;
    struct event begun;
};

/* Content of op.args of an OP_FORK. */
struct fake_call {
    void (*fn)(void *ctx);
    void *ctx;
};

extern struct stream *fake_streams;
extern struct graph *fake_capture;         /* the current capture, or NULL */
extern _Thread_local bool fake_calls_host; /* the thread runs a host call */
extern _Thread_local int fake_used;        /* the thread's current device */

/* Ends the process because of a mistake in the code under test. */
_Noreturn void fake_refuse(const char *what);

/* Appends an op to the stream, or to the graph if the stream is being captured; stream_enqueue()
 * appends to the stream in any case. */
struct op *stream_capture(struct stream *s, enum op_kind kind);
struct op *stream_enqueue(struct stream *s, enum op_kind kind);
/* Returns the stream of a call, which must belong to the current device. */
struct stream *stream_of(void *stream);
/* Removes a stream from the list of all. */
void stream_drop(struct stream *s);
/* Returns a checksum, never 0, that tells whether memory was changed. */
uint64_t stream_sum(const void *p, size_t n);
/* Runs the enqueued ops of a stream (NULL: of all), up to the last record of @until (NULL: all
 * ops). fake_cuda.ahead names the device that runs first. */
void streams_drain(struct stream *only, const struct event *until);
/* Runs all enqueued ops of a stream (NULL: of all) and the pending host call. Refused if the device
 * hangs. */
void streams_wait(struct stream *only);
/* Returns true if events are no longer reached. */
bool streams_hang(void);
void streams_sampled(void); /* counts an enqueued sampling */
/* Makes later work of the stream wait for the event's last record so far. */
void stream_wait_for(struct event *e, struct stream *s);

/* Begin a capture in @s, capture a record or a wait, and end the capture. Return 0 with the graph,
 * or CAPTURE_INVALID. */
void capture_start(struct stream *s);
void capture_record(struct event *e, struct stream *s);
int capture_wait(struct event *e, struct stream *s);
int capture_stop(struct graph **out);
/* Enqueues all ops of a graph; @launched takes the place of its first stream. */
void graph_enqueue(struct graph *g, struct stream *launched);
/* Waits for all streams and frees what @g holds, but not @g itself. */
void graph_drop(struct graph *g);
