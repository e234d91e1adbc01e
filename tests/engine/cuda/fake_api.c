#include "tests/engine/cuda/fake_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "base/util.h"
#include "engine/cuda/cuda_api.h"
#include "tests/engine/cuda/simt.h"

#define OUT_OF_MEMORY 2
#define FAILURE 700
#define ARGS_MAX 1024
#define LOOK_LAUNCHES                                                                              \
    64 /* in a row whose accesses are looked at: a step of a small model and more */
#ifndef LOOK_EVERY
#define LOOK_EVERY 1 /* of so many such rows, one is looked at, the first among them */
#endif

struct fake_cuda fake_cuda = {
    .n_devices = 1, .major = 9, .minor = 0, .n_multiprocessors = 4, .bytes = (size_t)1 << 32};

enum op_kind { OP_COPY, OP_FILL, OP_LAUNCH, OP_RECORD, OP_WAIT, OP_ROWS, OP_FORK, OP_JOIN };

struct op { /* what has been enqueued and not been done */
    struct op *next;
    enum op_kind kind;
    void *to;
    const void *from;
    void *snapshot; /* of pageable memory, which the runtime copies at once */
    uint64_t sum;   /* of pinned memory */
    size_t n;
    uint64_t number;             /* of the record that is waited for */
    size_t to_pitch, from_pitch; /* of @byte rows */
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
};

struct event {
    float at;                   /* microseconds, when it was reached */
    uint64_t recorded, reached; /* how often */
    struct stream *stream;      /* of the last record */
    int device;
    bool asked; /* not ready is said once */
};

struct block { /* an allocation, with its size in front */
    size_t n, device, pad[6];
};

struct graph {
    struct op *op, **end;
};

static struct {
    const void *kernel;
    uint32_t bytes;
} allowance[64];
static uint32_t n_allowances;
static struct graph *capturing;
static uint32_t n_samplings; /* enqueued */
static struct stream *streams;
static int used; /* the thread's device */
static size_t n_used[FAKE_DEVICES];

static void refuse(const char *what) {
    fprintf(stderr, "fake cuda: %s\n", what);
    abort();
}

/* @kept: allowed while launches are captured. */
static int call_while(bool kept) {
    if (capturing && !kept)
        refuse("a call that is not allowed while launches are captured");
    fake_cuda.n_calls++;
    if (fake_cuda.n_calls == fake_cuda.fail_at)
        fake_cuda.failed_capture = capturing != NULL;
    if (fake_cuda.fail_at && (fake_cuda.n_calls == fake_cuda.fail_at ||
                              (fake_cuda.sticky && fake_cuda.n_calls > fake_cuda.fail_at)))
        return FAILURE;
    return 0;
}

static int call(void) {
    return call_while(false);
}

/* -- streams -------------------------------------------------------------------------------- */

static struct op *append(struct op ***end, enum op_kind kind) {
    struct op *o = calloc(1, sizeof(*o));

    if (!o)
        abort();
    o->kind = kind;
    **end = o;
    *end = &o->next;
    return o;
}

static struct op *enqueue(struct stream *s, enum op_kind kind) {
    return append(&s->end, kind);
}

static uint64_t sum_of(const void *p, size_t n) {
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

struct host_call {
    void (*fn)(void *ctx);
    void *ctx;
};
static struct host_call beside; /* that is to be done until it is joined, or fn is NULL */

static void run_beside(void) {
    if (beside.fn)
        beside.fn(beside.ctx);
    beside.fn = NULL;
}

static void step(struct stream *s);

/* Of another stream, as far as needed. */
static void run_wait(const struct op *o) {
    const struct event *e = o->to;

    while (e->reached < o->number)
        step(e->stream);
}

static void run(struct op *o, int device) {
    const struct simt_kernel *k = o->from;

    switch (o->kind) {
    case OP_COPY:
        if (o->sum && o->sum != sum_of(o->from, o->n))
            refuse("pinned memory was changed before its copy was done");
        memcpy(o->to, o->snapshot ? o->snapshot : o->from, o->n);
        free(o->snapshot);
        break;
    case OP_FILL:
        memset(o->to, o->byte, o->n);
        break;
    case OP_LAUNCH:
        fake_cuda.n_launches++;
        fake_cuda.now_us += o->early ? fake_cuda.early_us : fake_cuda.plain_us;
        simt_device(device);
        if (fake_cuda.on_launch)
            fake_cuda.on_launch(k->name, fake_cuda.n_launches, o->args);
        if (fake_cuda.order)
            simt_order(fake_cuda.order + fake_cuda.n_launches);
        simt_look(fake_cuda.n_launches / LOOK_LAUNCHES % LOOK_EVERY == 0);
        simt_wgmma_other(fake_cuda.other_wgmma);
        if (!fake_cuda.broken || strcmp(fake_cuda.broken, k->name) != 0)
            simt_launch(k, o->grid, o->shared, o->args);
        simt_device(used);
        break;
    case OP_WAIT:
        run_wait(o);
        break;
    case OP_ROWS:
        for (int i = 0; i < o->byte; i++)
            memcpy((uint8_t *)o->to + (size_t)i * o->to_pitch,
                   (const uint8_t *)o->from + (size_t)i * o->from_pitch, o->n);
        break;
    case OP_FORK:
        if (fake_cuda.beside)
            refuse("a host call before the last one was joined");
        fake_cuda.beside = true;
        memcpy(&beside, o->args, sizeof(beside));
        if (fake_cuda.order % 2)
            run_beside();
        break;
    case OP_JOIN:
        if (!fake_cuda.beside)
            refuse("no host call to be joined");
        run_beside();
        fake_cuda.beside = false;
        break;
    case OP_RECORD:
        ((struct event *)o->to)->reached++;
        ((struct event *)o->to)->at = fake_cuda.now_us;
        break;
    }
}

/* The first op of a stream that has one. */
static void step(struct stream *s) {
    struct op *o = s->op;

    if (!o)
        refuse("a wait for an event that nothing leads to");
    s->op = o->next;
    if (!s->op)
        s->end = &s->op;
    run(o, s->device);
    free(o);
}

/* Streams of a device as far as they go; those of others as far as they are waited for. */
static void run_device(int device) {
    for (struct stream *s = streams; s; s = s->next)
        while (s->device == device && s->op)
            step(s);
}

/* Does what is enqueued in a stream (NULL: in all), up to the last record of @until; NULL: all. The
 * device that is to be ahead of the others does all first. */
static void drain(struct stream *only, const struct event *until) {
    bool any = false;

    for (struct stream *s = streams; s; s = s->next)
        any |= s->op != NULL;
    if (fake_cuda.ahead)
        run_device(fake_cuda.ahead - 1);
    while (until && until->reached < until->recorded)
        step(until->stream);
    for (struct stream *s = until ? NULL : streams; s; s = s->next)
        while (s->op && (!only || s == only))
            step(s);
    if (any)
        simt_settled();
}

/* What the kernels compute is checked elsewhere, and what early launch brings: not at each of the
 * hundreds of times that tests open the device. */
__attribute__((constructor)) static void without_selftest(void) {
    setenv("WEFT_CUDA_CHECK", "0", 0);
    setenv("WEFT_CUDA_EARLY", "0", 0);
    /* For programs that know nothing of the fake. */
    fake_cuda.faulty = getenv("FAKE_CUDA_FAULTY");
    if (getenv("WEFT_CUDA_FAKE_DEVICES"))
        fake_cuda.n_devices = atoi(getenv("WEFT_CUDA_FAKE_DEVICES"));
}

static bool is_hanging(void) {
    return fake_cuda.hang_after && n_samplings >= fake_cuda.hang_after;
}

/* The stream of a call, which is that of the device which is used. */
static struct stream *stream_of(void *stream) {
    struct stream *s = stream;

    if (s->device != used)
        refuse("a call for a stream of another device");
    return s;
}

/* What a device does that never ends its work. NULL: for all streams. */
static void wait_for_streams(struct stream *only) {
    if (is_hanging())
        refuse("a call that waits for a device that hangs");
    drain(only, NULL);
    run_beside(); /* the other stream; after a failure nothing joins it */
    fake_cuda.beside = false;
}

/* -- the table --------------------------------------------------------------------------------- */

static int count(int *n) {
    *n = fake_cuda.n_devices;
    return call();
}

static int versions(int *driver, int *runtime) {
    *driver = fake_cuda.driver;
    *runtime = 13000;
    return 0;
}

static int describe(int device, struct cuda_device *out) {
    bool other = fake_cuda.other_kind && device == fake_cuda.n_devices - 1;

    *out = (struct cuda_device){
        .name = "fake device",
        .address = "0000:17:00.0",
        .major = fake_cuda.major,
        .minor = fake_cuda.minor + other,
        .n_multiprocessors = fake_cuda.n_multiprocessors,
        .bytes = fake_cuda.bytes,
        .shared_bytes = 196 << 10,
        .cache_bytes = 50 << 20,
    };
    return call();
}

static int use(int device) {
    int r = call();

    if (device < 0 || device >= fake_cuda.n_devices)
        refuse("a device that is not there");
    if (r == 0) {
        used = device;
        simt_device(device);
    }
    return r;
}

static int memory(size_t *n_free, size_t *n_total) {
    *n_total = fake_cuda.bytes;
    *n_free = fake_cuda.bytes - n_used[used];
    if (fake_cuda.others_stay && fake_cuda.others_stay--)
        *n_free -= fake_cuda.others;
    return call();
}

#define LARGE (1u << 20)

/* Large ones take no memory before they are written, whatever malloc() does. */
static struct block *block_new(size_t n) {
    size_t all = (sizeof(struct block) + n + 63) / 64 * 64;

    if (n < LARGE)
        return aligned_alloc(64, all);
    void *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void block_free(struct block *b) {
    if (b->n < LARGE)
        free(b);
    else
        munmap(b, (sizeof(*b) + b->n + 63) / 64 * 64);
}

/* Sizes are exact, so that the next byte belongs to no allocation. */
static int alloc_any(void **p, size_t n, enum simt_space space) {
    int r = call();
    struct block *b = NULL;

    if (r)
        return r;
    if (n > fake_cuda.bytes - n_used[used])
        return OUT_OF_MEMORY;
    b = block_new(n);
    if (!b)
        return OUT_OF_MEMORY;
    b->n = n;
    b->device = (size_t)used;
    *p = b + 1;
    memset(*p, 0xFF, MIN(n, LARGE)); /* NaN: nothing may be read before it is written */
    simt_memory_add(*p, n, space);
    fake_cuda.n_live++;
    return 0;
}

static int alloc(void **d, size_t n) {
    int r = alloc_any(d, n, SIMT_DEVICE);

    if (r)
        return r;
    fake_cuda.n_bytes += n;
    n_used[used] += n;
    if (fake_cuda.n_bytes > fake_cuda.peak_bytes)
        fake_cuda.peak_bytes = fake_cuda.n_bytes;
    return 0;
}

static int alloc_host(void **p, size_t n) {
    return alloc_any(p, n, SIMT_PINNED);
}

static int release_host(void *p) {
    wait_for_streams(NULL);
    simt_memory_drop(p);
    block_free((struct block *)p - 1);
    fake_cuda.n_live--;
    return 0;
}

static int release(void *d) {
    wait_for_streams(NULL);
    const struct block *b = (struct block *)d - 1;

    fake_cuda.n_bytes -= b->n;
    n_used[b->device] -= b->n;
    return release_host(d);
}

static int new_object(void **out, size_t n) {
    int r = call();

    if (r)
        return r;
    *out = calloc(1, n);
    if (!*out)
        abort();
    fake_cuda.n_live++;
    return 0;
}

static int free_object(void *p) {
    wait_for_streams(NULL);
    free(p);
    fake_cuda.n_live--;
    return 0;
}

static int stream_new(void **out) {
    int r = new_object(out, sizeof(struct stream));
    struct stream *s = r ? NULL : *out;

    if (r)
        return r;
    s->end = &s->op;
    s->device = used;
    s->next = streams;
    streams = s;
    return 0;
}

static int stream_free(void *stream) {
    wait_for_streams(NULL);
    for (struct stream **s = &streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = (*s)->next;
            break;
        }
    return free_object(stream);
}

static int stream_wait(void *stream) {
    struct stream *s = stream;

    wait_for_streams(s);
    return call();
}

static int event_new(void **e) {
    int r = new_object(e, sizeof(struct event));

    if (r == 0)
        ((struct event *)*e)->device = used;
    return r;
}

static int event_record(void *e, void *stream) {
    struct event *event = e;
    int r = call();

    if (r)
        return r;
    if (event->device != used)
        refuse("an event of another device is recorded");
    event->recorded++;
    event->asked = false;
    event->stream = stream_of(stream);
    enqueue(event->stream, OP_RECORD)->to = e;
    return 0;
}

/* An event that was never recorded is waited for by nothing. */
static int event_wait(void *e, void *stream) {
    struct event *event = e;
    int r = call();

    if (r || event->recorded == 0)
        return r;
    if (++fake_cuda.n_waits == fake_cuda.forget_wait)
        return 0;
    struct op *o = enqueue(stream_of(stream), OP_WAIT);
    o->to = e;
    o->number = event->recorded;
    return 0;
}

static int event_query(void *e) {
    struct event *event = e;
    int r = call();

    if (r)
        return r;
    if ((is_hanging() && event->device == fake_cuda.hang_device) || !event->asked) {
        event->asked = true;
        return CUDA_NOT_READY;
    }
    drain(NULL, event);
    return 0;
}

static int elapsed(void *from, void *to, float *us) {
    *us = ((struct event *)to)->at - ((struct event *)from)->at;
    return call();
}

static int copy(void *to, const void *from, size_t n, enum cuda_direction dir, void *stream) {
    int r = call();

    if (r)
        return r;
    int to_space = simt_memory_space(to), from_space = simt_memory_space(from);

    if (n == 0)
        return 0;
    if (dir == CUDA_TO_DEVICE ? to_space != SIMT_DEVICE || from_space == SIMT_DEVICE
                              : from_space != SIMT_DEVICE || to_space == SIMT_DEVICE)
        refuse("a copy in the wrong direction");
    int device = simt_memory_device(dir == CUDA_TO_DEVICE ? to : from);
    if (device != used)
        refuse("a copy of another device's memory");
    struct op *o = enqueue(stream_of(stream), OP_COPY);
    o->to = to;
    o->from = from;
    o->n = n;
    if (from_space == SIMT_PINNED)
        o->sum = sum_of(from, n);
    else if (dir == CUDA_TO_DEVICE)
        o->snapshot = memcpy(malloc(n), from, n);
    else
        memset(to, 0xA5, n); /* what is read there before it is waited for is wrong */
    return 0;
}

static int fill(void *d, int byte, size_t n, void *stream) {
    int r = call();

    if (r)
        return r;
    if (simt_memory_device(d) != used)
        refuse("another device's memory is filled");
    struct op *o = enqueue(stream_of(stream), OP_FILL);
    o->to = d;
    o->byte = byte;
    o->n = n;
    return 0;
}

static int reach(int device, int other) {
    if (device != used || other == device || other < 0 || other >= fake_cuda.n_devices)
        refuse("a way from a device that is not used, or to none");
    return call();
}

/* Both ends are inside an allocation of the device that is named. */
static int copy_rows(const struct cuda_rows *to, const struct cuda_rows *from, size_t width,
                     size_t n, void *stream) {
    const struct cuda_rows *const ends[2] = {to, from};
    int r = call();

    for (int i = 0; i < 2 && n; i++) {
        const uint8_t *first = ends[i]->at, *last = first + (n - 1) * ends[i]->pitch + width - 1;

        if (simt_memory_device(first) != ends[i]->device ||
            simt_memory_device(last) != ends[i]->device || width > ends[i]->pitch)
            refuse("rows that are not where they are said to be");
    }
    if (r)
        return r;
    if (to->device != used)
        refuse("a copy to a device that is not used");
    struct op *o = enqueue(stream_of(stream), OP_ROWS);
    o->to = to->at;
    o->to_pitch = to->pitch;
    o->from = from->at;
    o->from_pitch = from->pitch;
    o->n = width;
    o->byte = (int)n;
    fake_cuda.n_exchanged += to->device != from->device ? n * width : 0;
    return 0;
}

static int allow_shared(const void *kernel, uint32_t bytes) {
    int r = call();

    if (r)
        return r;
    uint32_t i = 0;
    while (i < n_allowances && allowance[i].kernel != kernel)
        i++;
    bool servers = kernel == kernel_matmul_m128 || kernel == kernel_matmul_wgmma ||
                   kernel == kernel_matmul_wgmma_64;
    if (bytes > (servers ? SIMT_DYNAMIC_MAX : SIMT_DYNAMIC_LEAST) || i == ARRAY_SIZE(allowance))
        return 1;
    n_allowances += i == n_allowances;
    allowance[i].kernel = kernel;
    allowance[i].bytes = bytes;
    return 0;
}

static int launch(const void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t n_threads,
                  uint32_t shared, const void *args, bool early, void *stream) {
    const struct simt_kernel *k = kernel;
    int r = call_while(true);

    if (r)
        return r;
    if (fake_cuda.faulty && strcmp(fake_cuda.faulty, k->name) == 0) {
        fake_cuda.fail_at = fake_cuda.n_calls; /* as a device does, all calls after it too */
        fake_cuda.sticky = true;
        return FAILURE;
    }
    uint32_t allowed = 48 << 10;
    for (uint32_t i = 0; i < n_allowances; i++)
        allowed = allowance[i].kernel == kernel ? allowance[i].bytes : allowed;
    if (shared > allowed || grid_x == 0 || grid_y == 0 || grid_y > 65535 ||
        n_threads != k->n_threads || k->args_size > ARGS_MAX) {
        fprintf(stderr, "fake cuda: a launch of %s that a device would refuse\n", k->name);
        return 1;
    }
    n_samplings += kernel == kernel_sample_scan;
    struct stream *to = stream_of(stream);
    struct op *o = append(capturing ? &capturing->end : &to->end, OP_LAUNCH);
    o->from = kernel;
    o->grid = (struct simt_dim){grid_x, grid_y, 1};
    o->shared = shared;
    o->early = early;
    memcpy(o->args, args, k->args_size);
    return 0;
}

static int host_call(void (*fn)(void *ctx), void *ctx, void *stream, const struct cuda_side *side) {
    const struct host_call c = {fn, ctx};
    int r = call_while(true);

    if (r)
        return r;
    if (!side->stream || side->stream == stream || !side->forked || !side->joined)
        refuse("a host call without a second stream");
    struct stream *to = stream_of(stream);
    struct op *o = append(capturing ? &capturing->end : &to->end, OP_FORK);
    memcpy(o->args, &c, sizeof(c));
    fake_cuda.n_host_calls++;
    return 0;
}

static int host_join(void *stream, const struct cuda_side *side) {
    int r = call_while(true);

    if (r)
        return r;
    struct stream *to = stream_of(stream);
    append(capturing ? &capturing->end : &to->end, OP_JOIN);
    return 0;
}

static int capture_begin(void *stream) {
    int r = call();

    if (r) {
        fake_cuda.failed_capture = fake_cuda.n_calls == fake_cuda.fail_at;
        return r;
    }
    capturing = calloc(1, sizeof(*capturing));
    if (!capturing)
        abort();
    capturing->end = &capturing->op;
    return 0;
}

static int graph_free(void *graph) {
    struct graph *g = graph;

    while (g->op) {
        struct op *o = g->op;

        g->op = o->next;
        free(o);
    }
    return free_object(g);
}

static int capture_end(void *stream, void **graph) {
    int r = call_while(true);

    if (!capturing)
        refuse("the end of a capture that has not begun");
    fake_cuda.n_live++;
    *graph = capturing;
    capturing = NULL;
    if (r) {
        graph_free(*graph);
        *graph = NULL;
    } else {
        fake_cuda.n_graphs++;
    }
    return r;
}

static int graph_launch(void *graph, void *stream) {
    int r = call();

    if (r)
        return r;
    for (const struct op *from = ((struct graph *)graph)->op; from; from = from->next) {
        struct op *o = enqueue(stream_of(stream), from->kind);

        o->from = from->from;
        o->grid = from->grid;
        o->shared = from->shared;
        o->early = from->early;
        memcpy(o->args, from->args, sizeof(o->args));
    }
    fake_cuda.n_graph_launches++;
    return 0;
}

static int check_kernel(const void *kernel) {
    int r = call();

    return r ? r : fake_cuda.no_code ? 209 : 0;
}

static const char *text(int error) {
    return error == FAILURE         ? "an illegal memory access was made up"
           : error == OUT_OF_MEMORY ? "out of memory"
                                    : "some error";
}

static const struct cuda_api fake = {
    .count = count,
    .versions = versions,
    .describe = describe,
    .use = use,
    .memory = memory,
    .alloc = alloc,
    .release = release,
    .alloc_host = alloc_host,
    .release_host = release_host,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = free_object,
    .event_record = event_record,
    .event_query = event_query,
    .timer_new = event_new,
    .elapsed = elapsed,
    .event_wait = event_wait,
    .copy = copy,
    .fill = fill,
    .reach = reach,
    .copy_rows = copy_rows,
    .allow_shared = allow_shared,
    .launch = launch,
    .host_call = host_call,
    .host_join = host_join,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .check_kernel = check_kernel,
    .text = text,
};

const struct cuda_api *cuda_api(void) {
    return &fake;
}
