#include "tests/engine/cuda/fake_api.h"

#include <stdio.h>
#include <stdlib.h>
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

enum op_kind { OP_COPY, OP_FILL, OP_LAUNCH, OP_RECORD, OP_CALL, OP_FORK, OP_JOIN };

struct op { /* what has been enqueued and not been done */
    struct op *next;
    enum op_kind kind;
    void *to;
    const void *from;
    void *snapshot; /* of pageable memory, which the runtime copies at once */
    uint64_t sum;   /* of pinned memory */
    size_t n;
    int byte;
    void (*call)(const void *args);
    struct simt_dim grid;
    uint32_t shared;
    bool early;
    _Alignas(16) uint8_t args[ARGS_MAX];
};

struct event {
    float at;                   /* microseconds, when it was reached */
    uint64_t recorded, reached; /* how often */
    bool asked;                 /* not ready is said once */
};

struct block { /* an allocation, with its size in front */
    size_t n, pad[7];
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
static struct op *queue, **queue_end = &queue;

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

/* -- the stream -------------------------------------------------------------------------------- */

static struct op *append(struct op ***end, enum op_kind kind) {
    struct op *o = calloc(1, sizeof(*o));

    if (!o)
        abort();
    o->kind = kind;
    **end = o;
    *end = &o->next;
    return o;
}

static struct op *enqueue(enum op_kind kind) {
    return append(&queue_end, kind);
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

static void run(struct op *o) {
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
        if (fake_cuda.on_launch)
            fake_cuda.on_launch(k->name, fake_cuda.n_launches, o->args);
        if (fake_cuda.order)
            simt_order(fake_cuda.order + fake_cuda.n_launches);
        simt_look(fake_cuda.n_launches / LOOK_LAUNCHES % LOOK_EVERY == 0);
        simt_wgmma_other(fake_cuda.other_wgmma);
        if (!fake_cuda.broken || strcmp(fake_cuda.broken, k->name) != 0)
            simt_launch(k, o->grid, o->shared, o->args);
        break;
    case OP_CALL:
        o->call(o->args);
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

/* Does what is enqueued, up to the last record of @until; NULL: all. */
static void drain(struct event *until) {
    bool any = queue != NULL;

    while (queue && (!until || until->reached < until->recorded)) {
        struct op *o = queue;

        queue = o->next;
        if (!queue)
            queue_end = &queue;
        run(o);
        free(o);
    }
    if (any)
        simt_settled();
}

/* What the kernels compute is checked elsewhere, and what early launch brings: not at each of the
 * hundreds of times that tests open the device. */
__attribute__((constructor)) static void without_selftest(void) {
    setenv("WEFT_CUDA_CHECK", "0", 0);
    setenv("WEFT_CUDA_EARLY", "0", 0);
    fake_cuda.faulty = getenv("FAKE_CUDA_FAULTY"); /* for programs that know nothing of the fake */
}

int fake_call(void) {
    return call();
}

static bool is_hanging(void) {
    return fake_cuda.hang_after && n_samplings >= fake_cuda.hang_after;
}

/* What a device does that never ends its work. */
static void wait_for_all(void) {
    if (is_hanging())
        refuse("a call that waits for a device that hangs");
    drain(NULL);
    run_beside(); /* the other stream; after a failure nothing joins it */
    fake_cuda.beside = false;
}

void fake_enqueue(void (*run)(const void *args), const void *args, size_t n) {
    struct op *o = enqueue(OP_CALL);

    if (n > ARGS_MAX)
        abort();
    o->call = run;
    memcpy(o->args, args, n);
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
    *out = (struct cuda_device){
        .name = "fake device",
        .address = "0000:17:00.0",
        .major = fake_cuda.major,
        .minor = fake_cuda.minor,
        .n_multiprocessors = fake_cuda.n_multiprocessors,
        .bytes = fake_cuda.bytes,
        .shared_bytes = 228 << 10,
    };
    return call();
}

static int use(int device) {
    return call();
}

static int memory(size_t *n_free, size_t *n_total) {
    *n_total = fake_cuda.bytes;
    *n_free = fake_cuda.bytes - fake_cuda.n_bytes;
    if (fake_cuda.others_stay && fake_cuda.others_stay--)
        *n_free -= fake_cuda.others;
    return call();
}

/* Sizes are exact, so that the next byte belongs to no allocation. */
static int alloc_any(void **p, size_t n, enum simt_space space) {
    int r = call();
    struct block *b = NULL;

    if (r)
        return r;
    if (n > fake_cuda.bytes - fake_cuda.n_bytes)
        return OUT_OF_MEMORY;
    b = aligned_alloc(64, (sizeof(*b) + n + 63) / 64 * 64);
    if (!b)
        return OUT_OF_MEMORY;
    b->n = n;
    *p = b + 1;
    memset(*p, 0xFF, n < 1 << 20 ? n : 1 << 20); /* NaN: nothing may be read before it is written */
    simt_memory_add(*p, n, space);
    fake_cuda.n_live++;
    return 0;
}

static int alloc(void **d, size_t n) {
    int r = alloc_any(d, n, SIMT_DEVICE);

    if (r)
        return r;
    fake_cuda.n_bytes += n;
    if (fake_cuda.n_bytes > fake_cuda.peak_bytes)
        fake_cuda.peak_bytes = fake_cuda.n_bytes;
    return 0;
}

static int alloc_host(void **p, size_t n) {
    return alloc_any(p, n, SIMT_PINNED);
}

static int release_host(void *p) {
    wait_for_all();
    simt_memory_drop(p);
    free((struct block *)p - 1);
    fake_cuda.n_live--;
    return 0;
}

static int release(void *d) {
    wait_for_all();
    fake_cuda.n_bytes -= ((struct block *)d - 1)->n;
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
    wait_for_all();
    free(p);
    fake_cuda.n_live--;
    return 0;
}

static int stream_new(void **s) {
    return new_object(s, 1);
}

static int stream_wait(void *s) {
    wait_for_all();
    return call();
}

static int event_new(void **e) {
    return new_object(e, sizeof(struct event));
}

static int event_record(void *e, void *stream) {
    int r = call();

    if (r)
        return r;
    ((struct event *)e)->recorded++;
    ((struct event *)e)->asked = false;
    enqueue(OP_RECORD)->to = e;
    return 0;
}

static int event_query(void *e) {
    struct event *event = e;
    int r = call();

    if (r)
        return r;
    if (is_hanging() || !event->asked) {
        event->asked = true;
        return CUDA_NOT_READY;
    }
    drain(event);
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
    struct op *o = enqueue(OP_COPY);
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
    struct op *o = enqueue(OP_FILL);
    o->to = d;
    o->byte = byte;
    o->n = n;
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
    struct op *o = capturing ? append(&capturing->end, OP_LAUNCH) : enqueue(OP_LAUNCH);
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
    struct op *o = capturing ? append(&capturing->end, OP_FORK) : enqueue(OP_FORK);
    memcpy(o->args, &c, sizeof(c));
    fake_cuda.n_host_calls++;
    return 0;
}

static int host_join(void *stream, const struct cuda_side *side) {
    int r = call_while(true);

    if (r)
        return r;
    (void)(capturing ? append(&capturing->end, OP_JOIN) : enqueue(OP_JOIN));
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
        struct op *o = enqueue(from->kind);

        o->call = from->call;
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
    .stream_free = free_object,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = free_object,
    .event_record = event_record,
    .event_query = event_query,
    .timer_new = event_new,
    .elapsed = elapsed,
    .copy = copy,
    .fill = fill,
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
