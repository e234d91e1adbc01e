#include "tests/engine/cuda/fake_streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/cuda/fake_ptx.h"

/* Launches in a row whose accesses are looked at: a step of a small model and more. */
#define LOOK_LAUNCHES 64
/* LOOK_EVERY: of so many such rows, one is looked at, the first among them. */
#ifndef LOOK_EVERY
#define LOOK_EVERY 1
#endif
/* LOOK_BLOCKS: number of blocks of a launch that are looked at. */
#ifndef LOOK_BLOCKS
#define LOOK_BLOCKS UINT32_MAX
#endif

/* Launches that begin before an earlier one has run. */
#define LAUNCHES_AHEAD 3

#define UPLOAD_US 100 /* time of the upload of a graph, in us of the clock */

struct stream *fake_streams;
struct graph *fake_capture;
_Thread_local int fake_used;
_Thread_local bool fake_calls_host;
static uint32_t n_samplings; /* enqueued so far */

void fake_refuse(const char *what) {
    fprintf(stderr, "fake cuda: %s\n", what);
    abort();
}

/* -- streams ----------------------------------------------------------------------------------- */

static struct op *append(struct op ***end, enum op_kind kind) {
    struct op *o = calloc(1, sizeof(*o));

    if (!o)
        abort();
    o->kind = kind;
    **end = o;
    *end = &o->next;
    return o;
}

struct op *stream_enqueue(struct stream *s, enum op_kind kind) {
    return append(&s->end, kind);
}

struct op *stream_capture(struct stream *s, enum op_kind kind) {
    if (fake_capture && !s->captured)
        fake_refuse("a call for a stream that is not captured, beside one that is");
    struct op *o = append(fake_capture ? &fake_capture->end : &s->end, kind);

    o->stream = s;
    s->n_captured += fake_capture != NULL;
    return o;
}

uint64_t stream_sum(const void *p, size_t n) {
    const uint8_t *b = p;
    uint64_t sum = n, word = 0;

    for (; n >= 8; n -= 8, b += 8) {
        memcpy(&word, b, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
        sum ^= sum >> 29;
    }
    word = 0;
    memcpy(&word, b, n);
    return ((sum ^ word) * 0x9E3779B97F4A7C15u) | 1;
}

static struct fake_call beside; /* host call that has not run yet; fn NULL: none */

static void run_beside(void) {
    fake_calls_host = true;
    if (beside.fn)
        beside.fn(beside.ctx);
    fake_calls_host = false;
    beside.fn = NULL;
}

static void step(struct stream *s);

/* Runs the stream of an event until the event is reached. */
static void run_wait(const struct op *o) {
    const struct event *e = o->to;

    while (e->reached < o->number)
        step(e->stream);
}

/* Returns how many blocks of launch @number of the process are looked at. */
static uint32_t look_for(uint64_t number) {
    bool looks = number / LOOK_LAUNCHES % LOOK_EVERY == 0;

    return looks && !getenv("FAKE_CUDA_BLIND") ? LOOK_BLOCKS : 0;
}

/* Runs launches that follow @o ahead, before @o itself: their blocks may start as soon as those of
 * all launches between have started. Not for tests that change arguments as kernels run. */
static void run_ahead(const struct op *o) {
    struct op *next = o->next;

    if (fake_cuda.on_launch)
        return;
    for (uint32_t i = 1; i <= LAUNCHES_AHEAD && next; i++, next = next->next) {
        if (next->kind != OP_LAUNCH || !(next->how & LAUNCH_EARLY))
            return;
        simt_look(look_for(fake_cuda.n_launches + i));
        if (!next->was_ahead)
            simt_run_ahead(next->from, next->grid, next->shared, next->args, &next->ahead);
        next->was_ahead = true;
        if (next->how & LAUNCH_LATE) /* those behind it start only when it has waited */
            return;
    }
}

static void run_launch(struct op *o, int device) {
    const struct simt_kernel *k = o->from;

    fake_cuda.n_launches++;
    fake_cuda.n_early += o->how & LAUNCH_EARLY ? 1 : 0;
    fake_cuda.n_late += o->how & LAUNCH_LATE ? 1 : 0;
    if (!(o->how & LAUNCH_EARLY))
        simt_settled();
    fake_cuda.now_us += fake_cuda.us_of ? fake_cuda.us_of(k->name, o->args) : 0;
    if (fake_cuda.on_launch)
        fake_cuda.on_launch(k->name, fake_cuda.n_launches, o->args);
    bool runs = !fake_cuda.idle || (fake_cuda.not_idle && strcmp(fake_cuda.not_idle, k->name) == 0);
    if (!runs || (fake_cuda.broken && strcmp(fake_cuda.broken, k->name) == 0))
        return;
    if (fake_ptx_launch(o))
        return;
    simt_device(device);
    if (fake_cuda.order)
        simt_order(fake_cuda.order + fake_cuda.n_launches);
    run_ahead(o);
    simt_look(look_for(fake_cuda.n_launches));
    simt_expect(&o->ahead);
    simt_wgmma_other(fake_cuda.other_wgmma);
    simt_launch(k, o->grid, o->shared, o->args);
    simt_device(fake_used);
}

static void run(struct op *o, int device) {

    switch (o->kind) {
    case OP_COPY:
        if (o->sum && o->sum != stream_sum(o->from, o->n))
            fake_refuse("pinned memory was changed before its copy was done");
        memcpy(o->to, o->snapshot ? o->snapshot : o->from, o->n);
        free(o->snapshot);
        break;
    case OP_FILL:
        memset(o->to, o->byte, fake_cuda.idle ? MIN(o->n, 4096u) : o->n);
        break;
    case OP_LAUNCH:
        run_launch(o, device);
        break;
    case OP_WAIT:
        run_wait(o);
        break;
    case OP_FORK:
        if (fake_cuda.beside)
            fake_refuse("a host call before the last one was joined");
        fake_cuda.beside = true;
        memcpy(&beside, o->args, sizeof(beside));
        if (fake_cuda.order % 2)
            run_beside();
        break;
    case OP_JOIN:
        if (!fake_cuda.beside)
            fake_refuse("no host call to be joined");
        run_beside();
        fake_cuda.beside = false;
        break;
    case OP_UPLOAD:
        fake_cuda.now_us += UPLOAD_US;
        break;
    case OP_RECORD:
        ((struct event *)o->to)->reached++;
        ((struct event *)o->to)->at = fake_cuda.now_us;
        break;
    }
}

/* Runs the first op of a stream. */
static void step(struct stream *s) {
    struct op *o = s->op;

    if (!o)
        fake_refuse("a wait for an event that nothing leads to");
    s->op = o->next;
    if (!s->op)
        s->end = &s->op;
    run(o, s->device);
    free(o);
}

static bool is_blocked(const struct stream *s) {
    const struct op *o = s->op;

    return o->kind == OP_WAIT && ((struct event *)o->to)->reached < o->number;
}

/* Runs the streams of a device as far as possible. Streams of other devices run only as far as this
 * device's wait for them, and only when nothing else is left to do. */
static void run_device(int device) {
    struct stream *waits;

    do {
        bool any = false;

        waits = NULL;
        for (struct stream *s = fake_streams; s; s = s->next) {
            for (; s->device == device && s->op && !is_blocked(s); any = true)
                step(s);
            waits = s->device == device && s->op ? s : waits;
        }
        if (waits && !any)
            step(waits);
    } while (waits);
}

/* Returns a device that is chosen pseudo-randomly, but equally in each run. */
static int any_device(void) {
    return (int)((fake_cuda.n_drained * 2654435761u >> 16) % (uint32_t)fake_cuda.n_devices);
}

void streams_drain(struct stream *only, const struct event *until) {
    bool any = false;

    for (struct stream *s = fake_streams; s; s = s->next)
        any |= s->op != NULL;
    fake_cuda.n_drained += any;
    if (fake_cuda.ahead && (!fake_cuda.now_and_then || fake_cuda.n_drained / 2 % 2))
        run_device(fake_cuda.ahead < 0 ? any_device() : fake_cuda.ahead - 1);
    while (until && until->reached < until->recorded)
        step(until->stream);
    for (struct stream *s = until ? NULL : fake_streams; s; s = s->next)
        while (s->op && (!only || s == only))
            step(s);
    if (any)
        simt_settled();
}

bool streams_hang(void) {
    return (fake_cuda.hang_after && n_samplings >= fake_cuda.hang_after) ||
           (fake_cuda.hang_records && fake_cuda.n_records >= fake_cuda.hang_records);
}

void streams_sampled(void) {
    n_samplings++;
}

struct stream *stream_of(void *stream) {
    struct stream *s = stream;

    if (s->device != fake_used)
        fake_refuse("a call for a stream of another device");
    return s;
}

void streams_wait(struct stream *only) {
    if (streams_hang())
        fake_refuse("a call that waits for a device that hangs");
    streams_drain(only, NULL);
    run_beside(); /* runs even if no stream joins it, as after a failure */
    fake_cuda.beside = false;
}

void stream_drop(struct stream *stream) {
    for (struct stream **s = &fake_streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            break;
        }
}

static void record(struct event *e, struct stream *s) {
    e->recorded++;
    e->stream = s;
    stream_enqueue(s, OP_RECORD)->to = e;
}

void stream_wait_for(struct event *e, struct stream *s) {
    struct op *o = stream_enqueue(s, OP_WAIT);

    o->to = e;
    o->number = e->recorded;
}

/* -- graphs ------------------------------------------------------------------------------------ */

void capture_start(struct stream *s) {
    fake_capture = calloc(1, sizeof(*fake_capture));
    if (!fake_capture)
        abort();
    fake_capture->end = &fake_capture->op;
    fake_capture->first = s;
    s->captured = true;
}

void capture_record(struct event *e, struct stream *s) {
    struct op *o = stream_capture(s, OP_RECORD);

    o->to = e->captured = calloc(1, sizeof(*e));
    e->captured->stream = s;
    e->captured->place = s->n_captured;
}

/* A stream that waits for a captured event becomes part of the capture. */
int capture_wait(struct event *event, struct stream *s) {
    if (!event->captured)
        return CAPTURE_INVALID;
    s->captured = true;
    stream_capture(s, OP_WAIT)->to = event->captured;
    if (s == fake_capture->first)
        event->captured->stream->n_joined = event->captured->place;
    return 0;
}

/* Ends the capture; all streams work as before. */
int capture_stop(struct graph **out) {
    const struct stream *first = fake_capture->first;
    int r = 0;

    for (struct stream *s = fake_streams; s; s = s->next) {
        r = s != first && s->n_joined < s->n_captured ? CAPTURE_INVALID : r;
        s->waits = s->waits && !s->captured; /* waits of a capture belong to the graph */
        s->captured = false;
        s->n_captured = s->n_joined = 0;
    }
    *out = fake_capture;
    fake_capture = NULL;
    return r;
}

/* Returns the stream in which ops captured in @of run: for the graph's first stream the one it is
 * launched in, else a stream of the graph's own. */
static struct stream *branch_of(struct graph *g, struct stream *of, struct stream *launched) {
    uint32_t i = 0;

    if (of == g->first)
        return launched;
    while (i < g->n_branches && g->branch[i].of != of)
        i++;
    struct stream *own = &g->branch[i].own;
    if (i == g->n_branches) {
        g->branch[g->n_branches++].of = of;
        own->end = &own->op;
        own->device = of->device;
        /* appended last, so that work enqueued after the graph may run first */
        struct stream **last = &fake_streams;
        while (*last)
            last = &(*last)->next;
        *last = own;
    }
    return own;
}

void graph_enqueue(struct graph *g, struct stream *launched) {
    if (launched->device != g->first->device)
        fake_refuse("a graph is launched on another device than that which it begins on");
    record(&g->begun, launched);
    for (uint32_t i = 0; i < g->n_branches; i++)
        stream_wait_for(&g->begun, &g->branch[i].own);
    for (const struct op *from = g->op; from; from = from->next) {
        uint32_t n_branches = g->n_branches;
        struct stream *s = branch_of(g, from->stream, launched);

        if (g->n_branches > n_branches)
            stream_wait_for(&g->begun, s);
        if (from->kind == OP_RECORD)
            record(from->to, s);
        else if (from->kind == OP_WAIT)
            stream_wait_for(from->to, s);
        else {
            struct op *o = stream_enqueue(s, from->kind), *next = o->next;

            *o = *from;
            o->next = next;
        }
    }
}

void graph_drop(struct graph *g) {
    streams_wait(NULL);
    for (uint32_t i = 0; i < g->n_branches; i++)
        stream_drop(&g->branch[i].own);
    while (g->op) {
        struct op *o = g->op;

        g->op = o->next;
        if (o->kind == OP_RECORD)
            free(o->to);
        free(o);
    }
}
