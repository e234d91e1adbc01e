#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/util.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/products/kernels_cluster.h"
#include "engine/ops/attention/kernels_attention.h"
#include "tests/engine/cuda/fake_ptx.h"
#include "tests/engine/cuda/fake_streams.h"
#include "tests/engine/cuda/simt.h"
#include "tests/engine/ptx/ptx.h"

#define OUT_OF_MEMORY 2
#define FAILURE 700

/* WEFT_BYTES: the kernels are compiled for a family that multiplies 8-bit codes. */
#ifdef WEFT_BYTES
#define MAJOR 8
#define MINOR 9
#else
#define MAJOR 9
#define MINOR 0
#endif

struct fake_cuda fake_cuda = {.n_devices = 1,
                              .major = MAJOR,
                              .minor = MINOR,
                              .n_multiprocessors = 4,
                              .bytes = (size_t)1 << 32};

struct block { /* header before an allocation */
    size_t n, device, pad[6];
};

/* Kernels that have been loaded on a device, by allow_shared() or by a launch. */
static struct loaded {
    const void *kernel;
    /* bytes of dynamic shared memory that are allowed */
    uint32_t bytes;
    bool by_call;
} loaded[FAKE_DEVICES][160];
static uint32_t n_loaded[FAKE_DEVICES];
static size_t n_used[FAKE_DEVICES];
static bool was_asked[FAKE_DEVICES]; /* free memory was queried */

/* Counts a call of the runtime. @kept: the call is allowed during a capture. Returns 0, or the
 * error with which the test lets it fail. */
static int call_while(bool kept) {
    if (fake_calls_host)
        fake_refuse("a call of the runtime by a function that it calls");
    if (fake_capture && !kept)
        fake_refuse("a call that is not allowed while launches are captured");
    fake_cuda.n_calls++;
    if (fake_cuda.n_calls == fake_cuda.fail_at)
        fake_cuda.failed_capture = fake_capture != NULL;
    if (fake_cuda.fail_at && (fake_cuda.n_calls == fake_cuda.fail_at ||
                              (fake_cuda.sticky && fake_cuda.n_calls > fake_cuda.fail_at)))
        return fake_cuda.error ? fake_cuda.error : FAILURE;
    return 0;
}

static int call(void) {
    return call_while(false);
}

/* Turns off the self-test, timing and steps before the first request, which other tests cover:
 * tests open the device hundreds of times. */
__attribute__((constructor)) static void without_selftest(void) {
    setenv("WEFT_CUDA_CHECK", "0", 0);
    setenv("WEFT_CUDA_TIMES", "0", 0);
    setenv("WEFT_CUDA_WARM", "0", 0);
    setenv("WEFT_CUDA_PACE", "0", 0); /* kernels run while the host polls */
    fake_ptx_open();
    /* Settings for programs that do not know the fake. */
    fake_cuda.faulty = getenv("FAKE_CUDA_FAULTY");
    if (getenv("WEFT_CUDA_FAKE_DEVICES"))
        fake_cuda.n_devices = atoi(getenv("WEFT_CUDA_FAKE_DEVICES"));
    if (getenv("WEFT_CUDA_FAKE_BYTES"))
        fake_cuda.bytes = strtoull(getenv("WEFT_CUDA_FAKE_BYTES"), NULL, 10);
}

/* -- entries of struct cuda_api ---------------------------------------------------------------- */

static int count(int *n) {
    *n = fake_cuda.n_devices;
    return call();
}

static int versions(int *driver, int *runtime) {
    *driver = fake_cuda.driver;
    *runtime = 13000;
    return 0;
}

static int family(void) {
    return fake_cuda.made_for ? fake_cuda.made_for : 10 * fake_cuda.major + fake_cuda.minor;
}

/* Returns the shared memory of a multiprocessor: 100 KiB in the families that multiply bytes. */
static size_t shared_bytes(void) {
    if (BYTES_FAMILY(family()))
        return SIMT_DYNAMIC_LEAST + 1024;
    return SHARED_USED;
}

static int describe(int device, struct cuda_device *out) {
    bool other = fake_cuda.other_kind && device == fake_cuda.n_devices - 1;

    *out = (struct cuda_device){
        .name = "fake device",
        .major = fake_cuda.major,
        .minor = fake_cuda.minor + other,
        .n_multiprocessors = fake_cuda.n_multiprocessors,
        .bytes = fake_cuda.bytes,
        .shared_bytes = shared_bytes(),
        .block_bytes = SIMT_DYNAMIC_MAX,
        .integrated = fake_cuda.integrated,
    };
    snprintf(out->address, sizeof(out->address), "0000:%02x:00.0", 0x17u + (unsigned)device % 8);
    return call();
}

static int use(int device) {
    int r = call_while(true);

    if (device < 0 || device >= fake_cuda.n_devices)
        fake_refuse("a device that is not there");
    if (r == 0) {
        fake_used = device;
        simt_device(device);
    }
    return r;
}

static int memory(size_t *n_free, size_t *n_total) {
    *n_total = fake_cuda.bytes;
    *n_free = fake_cuda.bytes - n_used[fake_used];
    *n_free -= MIN(*n_free, fake_cuda.integrated ? fake_cuda.cached : 0);
    if (fake_cuda.others_stay && fake_cuda.others_stay--)
        *n_free -= fake_cuda.others;
    was_asked[fake_used] = true;
    return call();
}

static uint64_t host_memory(void) {
    return fake_cuda.bytes - n_used[fake_used];
}

#define LARGE (1u << 20)

#define KEPT 16u

/* Freed large blocks, reused for the next one of the same size. Tests that let each call fail open
 * the backend hundreds of times, and would spend most of their time in mmap(). */
static struct block *kept[KEPT];
static uint32_t n_kept;

/* Allocates a block. A large one uses mmap(), so that its pages take no memory before they are
 * written. */
static struct block *block_new(size_t n) {
    size_t all = (sizeof(struct block) + n + 63) / 64 * 64;

    if (n < LARGE)
        return aligned_alloc(64, all);
    for (uint32_t i = 0; i < n_kept; i++)
        if (kept[i]->n == n) {
            struct block *b = kept[i];

            kept[i] = kept[--n_kept];
            return b;
        }
    void *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void block_free(struct block *b) {
    if (b->n < LARGE)
        free(b);
    else if (n_kept < KEPT)
        kept[n_kept++] = b;
    else
        munmap(b, (sizeof(*b) + b->n + 63) / 64 * 64);
}

/* Allocates exactly @n bytes, so that the next byte belongs to no allocation. */
static int alloc_any(void **p, size_t n, enum simt_space space) {
    int r = call();
    struct block *b = NULL;

    if (r)
        return r;
    if ((space == SIMT_DEVICE || fake_cuda.integrated) && n > fake_cuda.bytes - n_used[fake_used])
        return OUT_OF_MEMORY;
    b = block_new(n);
    if (!b)
        return OUT_OF_MEMORY;
    b->n = n;
    b->device = (size_t)fake_used;
    *p = b + 1;
    /* Fills it with NaN, so that a read before the first write has an effect. */
    memset(*p, 0xFF, MIN(n, fake_cuda.idle ? 4096u : LARGE));
    simt_memory_add(*p, n, space);
    ptx_memory_add(*p, n);
    fake_cuda.n_live++;
    return 0;
}

static void count_used(size_t n) {
    fake_cuda.n_bytes += n;
    n_used[fake_used] += n;
    fake_cuda.peak_bytes = MAX(fake_cuda.peak_bytes, fake_cuda.n_bytes);
}

static int alloc(void **d, size_t n) {
    int r = alloc_any(d, n, SIMT_DEVICE);

    if (r == 0)
        count_used(n);
    return r;
}

static int alloc_host(void **p, size_t n) {
    int r = alloc_any(p, n, SIMT_PINNED);

    if (r == 0 && fake_cuda.integrated)
        count_used(n);
    return r;
}

static int release_any(void *p, bool counted) {
    struct block *b = (struct block *)p - 1;

    streams_wait(NULL);
    if (counted) {
        fake_cuda.n_bytes -= b->n;
        n_used[b->device] -= b->n;
    }
    simt_memory_drop(p);
    ptx_memory_drop(p);
    block_free(b);
    fake_cuda.n_live--;
    return 0;
}

static int release_host(void *p) {
    return release_any(p, fake_cuda.integrated);
}

static int release(void *d) {
    return release_any(d, true);
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
    streams_wait(NULL);
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
    s->device = fake_used;
    s->next = fake_streams;
    fake_streams = s;
    return 0;
}

static int stream_free(void *stream) {
    streams_wait(NULL);
    stream_drop(stream);
    return free_object(stream);
}

static int stream_wait(void *stream) {
    struct stream *s = stream;

    streams_wait(s);
    return call();
}

static int event_new(void **e) {
    int r = new_object(e, sizeof(struct event));

    if (r == 0)
        ((struct event *)*e)->device = fake_used;
    return r;
}

static int event_record(void *e, void *stream) {
    struct event *event = e;
    struct stream *s = stream_of(stream);
    int r = call_while(true);

    if (r)
        return r;
    if (event->device != fake_used)
        fake_refuse("an event of another device is recorded");
    event->captured = NULL;
    if (fake_capture) {
        capture_record(event, s);
        return 0;
    }
    stream_enqueue(s, OP_RECORD)->to = e;
    fake_cuda.n_records++;
    event->recorded++;
    event->asked = false;
    event->stream = s;
    return 0;
}

/* A wait for an event that was never recorded has no effect. */
static int event_wait(void *e, void *stream) {
    struct event *event = e;
    struct stream *s = stream_of(stream);
    int r = call_while(true);

    if (r || (event->recorded == 0 && !event->captured))
        return r;
    s->waits = true;
    if (++fake_cuda.n_waits == fake_cuda.forget_wait)
        return 0;
    if (fake_capture)
        return capture_wait(event, s);
    if (event->captured)
        fake_refuse("a wait for an event of a graph, outside of it");
    stream_wait_for(event, s);
    return 0;
}

static int event_query(void *e) {
    struct event *event = e;
    int r = call();

    if (r)
        return r;
    if (event->captured)
        fake_refuse("an event of a graph is asked for");
    if ((streams_hang() && event->device == fake_cuda.hang_device) || !event->asked) {
        event->asked = true;
        return CUDA_NOT_READY;
    }
    streams_drain(NULL, event);
    return 0;
}

static int timer_new(void **e) {
    int r = event_new(e);

    if (r == 0)
        ((struct event *)*e)->has_time = true;
    return r;
}

static int elapsed(void *from, void *to, float *us) {
    const struct event *const ends[2] = {from, to};

    for (int i = 0; i < 2; i++) {
        if (!ends[i]->has_time || ends[i]->recorded == 0)
            fake_refuse("the time of an event that keeps none, or was not recorded");
        if (ends[i]->reached < ends[i]->recorded)
            return CUDA_NOT_READY;
    }
    *us = ((struct event *)to)->at - ((struct event *)from)->at;
    return call();
}

/* Returns true if [p, p + n) does not leave its allocation; memory after an allocation belongs to
 * none. */
static bool is_within(const void *p, size_t n) {
    return simt_memory_space(p) == simt_memory_space((const uint8_t *)p + n - 1);
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
        fake_refuse("a copy in the wrong direction");
    if (!is_within(to, n) || !is_within(from, n))
        fake_refuse("a copy beyond an allocation");
    int device = simt_memory_device(dir == CUDA_TO_DEVICE ? to : from);
    if (device != fake_used)
        fake_refuse("a copy of another device's memory");
    struct op *o = stream_enqueue(stream_of(stream), OP_COPY);
    o->to = to;
    o->from = from;
    o->n = n;
    if (from_space == SIMT_PINNED)
        o->sum = stream_sum(from, n);
    else if (dir == CUDA_TO_DEVICE)
        o->snapshot = memcpy(malloc(n), from, n);
    else
        memset(to, 0xA5, n); /* a read before the copy is waited for must give a wrong result */
    return 0;
}

static int fill(void *d, int byte, size_t n, void *stream) {
    int r = call();

    if (r)
        return r;
    if (simt_memory_device(d) != fake_used)
        fake_refuse("another device's memory is filled");
    if (n > 0 && !is_within(d, n))
        fake_refuse("memory beyond an allocation is filled");
    struct op *o = stream_enqueue(stream_of(stream), OP_FILL);
    o->to = d;
    o->byte = byte;
    o->n = n;
    return 0;
}

static int reach(int device, int other, bool *direct) {
    if (device != fake_used || other == device || other < 0 || other >= fake_cuda.n_devices)
        fake_refuse("a way from a device that is not used, or to none");
    int r = call();
    *direct = r == 0 && !fake_cuda.no_peers;
    simt_reach(device, other, *direct);
    return r;
}

/* Returns the entry of @kernel for the current device, and adds it if there is none. */
static struct loaded *load(const void *kernel) {
    struct loaded *l = loaded[fake_used], *end = l + n_loaded[fake_used];

    while (l < end && l->kernel != kernel)
        l++;
    if (l == end) {
        if (n_loaded[fake_used]++ == ARRAY_SIZE(loaded[0]))
            abort();
        *l = (struct loaded){.kernel = kernel, .bytes = 48 << 10};
    }
    return l;
}

/* Returns the bytes of shared memory that the driver configures for a carve-out of @percent: the
 * next larger size of compute capability 9.0. */
static uint32_t carved_out(int percent) {
    static const uint32_t sizes[] = {0, 8, 16, 32, 64, 100, 132, 164, 196, 228}; /* KiB */
    uint32_t i = 0;

    while (i + 1 < ARRAY_SIZE(sizes) && sizes[i] * 100 < (uint32_t)percent * 228)
        i++;
    return sizes[i] << 10;
}

static bool has_roles(const void *kernel) {
    return kernel == kernel_matmul_roles_24 || kernel == kernel_matmul_roles_32 ||
           kernel == kernel_matmul_roles_48 || kernel == kernel_matmul_roles_64 ||
           kernel == kernel_matmul_roles_96_q4k || kernel == kernel_matmul_roles_128_q4k ||
           kernel == kernel_matmul_roles_96_q5k || kernel == kernel_matmul_roles_128_q5k ||
           kernel == kernel_matmul_roles_96_plain || kernel == kernel_matmul_roles_128_plain;
}

static bool is_attend_wgmma(const struct simt_kernel *k) {
    return strncmp(k->name, "attend_wgmma", 12) == 0;
}

static int allow_shared(const void *kernel, uint32_t bytes) {
    int r = call();

    if (r)
        return r;
    if (bytes < SHARED_USED && carved_out(cuda_carveout(bytes)) != SHARED_USED)
        fake_refuse("a carve-out that the driver rounds to another size");
    bool servers = has_roles(kernel) || kernel == kernel_matvec_cluster ||
                   kernel == kernel_matvec_cluster_16 || kernel == kernel_matmul_wgmma ||
                   kernel == kernel_matmul_wgmma_64 || kernel == kernel_matmul_wgmma_join ||
                   kernel == kernel_attend_latent_bulk || kernel == kernel_attend_latent_bulk_q8 ||
                   kernel == kernel_attend_latent_bulk_q4 || is_attend_wgmma(kernel);
    if (bytes > (servers ? SIMT_DYNAMIC_MAX : SIMT_DYNAMIC_LEAST))
        return 1;
    *load(kernel) = (struct loaded){kernel, bytes, true};
    return 0;
}

/* Ends the process if a launch has to load its kernel after memory was counted: loading takes
 * memory, and makes a capture fail. */
static void look_loaded(const struct simt_kernel *k, const struct loaded *l) {
    if (l->by_call || !was_asked[fake_used])
        return;
    fprintf(stderr, "fake cuda: %s was not loaded before memory was counted\n", k->name);
    abort();
}

static int launch(const void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t n_threads,
                  uint32_t shared, const void *args, uint32_t how, void *stream) {
    bool early = how & LAUNCH_EARLY;
    const struct simt_kernel *k = kernel;
    int r = call_while(true);

    if (r)
        return r;
    if (fake_cuda.fail_at && fake_cuda.n_calls > fake_cuda.fail_at && !fake_cuda.failed_capture)
        fake_refuse("a launch behind a call that failed");
    if (fake_cuda.faulty && strcmp(fake_cuda.faulty, k->name) == 0) {
        fake_cuda.fail_at = fake_cuda.n_calls; /* like a device, which fails all later calls, too */
        fake_cuda.sticky = true;
        return FAILURE;
    }
    if (shared > load(kernel)->bytes || grid_x == 0 || grid_y == 0 || grid_y > 65535 ||
        n_threads != k->n_threads || k->args_size > ARGS_MAX) {
        fprintf(stderr, "fake cuda: a launch of %s that a device would refuse\n", k->name);
        return 1;
    }
    look_loaded(k, load(kernel));
    if (early && fake_cuda.made_for && fake_cuda.made_for < 90)
        fake_refuse("an early launch of code that does not wait for the kernel before");
    if (early && stream_of(stream)->waits)
        fake_refuse("an early launch behind a wait for an event");
    stream_of(stream)->waits = false;
    if (kernel == kernel_sample_scan)
        streams_sampled();
    struct op *o = stream_capture(stream_of(stream), OP_LAUNCH);
    o->from = kernel;
    o->grid = (struct simt_dim){grid_x, grid_y, 1};
    o->shared = shared;
    o->how = how;
    memcpy(o->args, args, k->args_size);
    return 0;
}

static int host_call(void (*fn)(void *ctx), void *ctx, void *stream, const struct cuda_side *side) {
    const struct fake_call c = {fn, ctx};
    int r = call_while(true);

    if (r)
        return r;
    if (!side->stream || side->stream == stream || !side->forked || !side->joined)
        fake_refuse("a host call without a second stream");
    struct op *o = stream_capture(stream_of(stream), OP_FORK);
    memcpy(o->args, &c, sizeof(c));
    fake_cuda.n_host_calls++;
    return 0;
}

static int host_join(void *stream, const struct cuda_side *side) {
    int r = call_while(true);

    if (r)
        return r;
    stream_capture(stream_of(stream), OP_JOIN);
    return 0;
}

static int capture_begin(void *stream) {
    struct stream *s = stream_of(stream);
    int r = call();

    if (r)
        fake_cuda.failed_capture = fake_cuda.n_calls == fake_cuda.fail_at;
    else
        capture_start(s);
    return r;
}

static int graph_free(void *graph) {
    graph_drop(graph);
    return free_object(graph);
}

static int capture_end(void *stream, void **graph) {
    int r = call_while(true);
    struct graph *g;

    if (!fake_capture || fake_capture->first != stream)
        fake_refuse("the end of a capture that has not begun");
    int e = capture_stop(&g);

    e = fake_cuda.no_graphs ? OUT_OF_MEMORY : e;
    fake_cuda.n_live++;
    fake_cuda.n_graphs += !r && !e;
    if (!r && !e)
        stream_enqueue(stream, OP_UPLOAD);
    *graph = r || e ? NULL : g;
    if (r || e)
        graph_free(g);
    return r ? r : e;
}

static int graph_launch(void *graph, void *stream) {
    struct stream *s = stream_of(stream);
    int r = call();

    if (r)
        return r;
    graph_enqueue(graph, s);
    fake_cuda.n_graph_launches++;
    return 0;
}

static int check_kernel(const void *kernel, int *made_for) {
    int r = call();

    *made_for = family();
    return r ? r : fake_cuda.no_code == fake_used + 1 ? 209 : 0;
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
    .host_memory = host_memory,
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
    .timer_new = timer_new,
    .elapsed = elapsed,
    .event_wait = event_wait,
    .copy = copy,
    .fill = fill,
    .reach = reach,
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
