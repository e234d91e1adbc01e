/*
 * early - decides by a trial whether kernels are launched before the one in front has ended
 * (programmatic dependent launch, cuda_api.launch). That hides the way from one kernel to the next,
 * which is most of a small step. How long the way is, and whether a driver does it in graphs, only
 * the device tells. So a chain of small kernels is timed at open, each of which reads rows that
 * other blocks of the one before have written.
 */

#include "engine/cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHAIN 64u /* kernels; an even number, so that the rows end where they began */
#define RUNS 6u   /* pairs: by chance all early runs are faster once in 64 times */
#define COLUMNS 1024u
#define WARM_UP_NS 50000000 /* a device that was idle needs some 10 ms for its clock */
#define WARM_UP_RUNS 2000u

/* The chain, in the memory that weights will pass through. */
struct chain {
    struct be *b;
    uint32_t n_rows;
    size_t bytes;            /* size of the rows */
    float *rows, *got;       /* pinned: rows before and behind the chain */
    struct hidden_args a[2]; /* from x to y and back: row i becomes the norm of row i + 1 */
    void *graph[2];          /* plain, early */
    void *from, *to;         /* timers */
};

/* Lays out the chain in the loading buffers, about a MiB. Returns 0 or an error of the runtime. */
static int lay_out(struct chain *c) {
    struct be *b = c->b;
    size_t row = COLUMNS * sizeof(float), indices = round_up(c->n_rows * sizeof(uint32_t), 256);
    uint8_t *host = b->load.buffer[0].host, *device = b->load.buffer[0].device;
    float *ones = (float *)(host + 2 * c->bytes);
    uint32_t *next = (uint32_t *)(host + 2 * c->bytes + row);

    c->rows = (float *)host;
    c->got = (float *)(host + c->bytes);
    for (size_t i = 0; i < c->bytes / sizeof(float); i++)
        c->rows[i] = (float)(i % 37) - 18 + (float)(i / COLUMNS % 101);
    for (uint32_t i = 0; i < COLUMNS; i++)
        ones[i] = 1;
    for (uint32_t i = 0; i < c->n_rows; i++)
        next[i] = (i + 1) % c->n_rows;
    for (uint32_t i = 0; i < 2; i++)
        c->a[i] = (struct hidden_args){.x = (float *)(device + i * c->bytes),
                                       .weight = (float *)(device + 2 * c->bytes),
                                       .row = (uint32_t *)(device + 2 * c->bytes + row),
                                       .y = (float *)(device + (1 - i) * c->bytes),
                                       .n = COLUMNS,
                                       .eps = 1e-6f};
    return b->api->copy(device + 2 * c->bytes, ones, row + indices, CUDA_TO_DEVICE, b->stream);
}

/* Appends to be.note. */
static void note(struct be *b, const char *format, ...) {
    size_t at = strlen(b->note), size = sizeof(b->note) - at;
    int n = snprintf(b->note + at, size, "%s", at ? "; " : "");
    va_list args;

    va_start(args, format);
    if ((size_t)n < size)
        vsnprintf(b->note + at + n, size - (size_t)n, format, args);
    va_end(args);
}

/* Captures the launches as a graph. Returns NULL where the runtime makes none. */
static void *capture(const struct chain *c, bool early) {
    struct be *b = c->b;
    void *graph = NULL;
    int e = b->api->capture_begin(b->stream);

    if (e) {
        note(b, "no early launch: %s", b->api->text(e));
        return NULL;
    }
    for (uint32_t i = 0; i < CHAIN && e == 0; i++)
        e = b->api->launch(kernel_hidden, c->n_rows, 1, PACK_THREADS, 0, &c->a[i % 2], early,
                           b->stream);
    int end = b->api->capture_end(b->stream, &graph);
    if (e || end)
        note(b, "no early launch: %s", b->api->text(e ? e : end));
    if (graph && e) {
        b->api->graph_free(graph);
        graph = NULL;
    }
    return graph;
}

/* Runs a graph once; *us: the time it took. The rows that come of it are in c->got. */
static int run(const struct chain *c, void *graph, float *us) {
    const struct cuda_api *api = c->b->api;
    void *stream = c->b->stream, *x = c->b->load.buffer[0].device;
    int e = api->copy(x, c->rows, c->bytes, CUDA_TO_DEVICE, stream);

    e = e ? e : api->event_record(c->from, stream);
    e = e ? e : api->graph_launch(graph, stream);
    e = e ? e : api->event_record(c->to, stream);
    e = e ? e : api->copy(c->got, x, c->bytes, CUDA_TO_HOST, stream);
    e = e ? e : api->stream_wait(stream);
    return e ? e : api->elapsed(c->from, c->to, us);
}

static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Runs both graphs until the device's clock has risen: the way that is timed first would be slower
 * for that alone. The first launch of a graph also uploads it. */
static int warm_up(const struct chain *c) {
    int64_t end = now_ns() + WARM_UP_NS;
    float us;
    int e = 0;

    for (uint32_t i = 0; e == 0 && i < WARM_UP_RUNS; i++) {
        e = run(c, c->graph[i % 2], &us);
        if (i > 0 && now_ns() >= end)
            break;
    }
    return e;
}

/* Runs both ways RUNS times, the plain one first in every other pair. Sets b->ways.early where each
 * early run was faster than the plain run beside it, with the same bits. */
static int compare(struct chain *c) {
    struct be *b = c->b;
    float us[2] = {0, 0}, best[2] = {0, 0};
    float *first = (float *)b->load.buffer[1].host;
    uint32_t n_faster = 0;
    bool same = true;
    int e = warm_up(c);

    for (uint32_t i = 0; i < RUNS && e == 0; i++) {
        uint32_t way = i % 2;

        e = run(c, c->graph[way], &us[way]);
        memcpy(first, c->got, c->bytes);
        e = e ? e : run(c, c->graph[1 - way], &us[1 - way]);
        same = same && memcmp(first, c->got, c->bytes) == 0;
        n_faster += us[1] < us[0];
        for (uint32_t k = 0; k < 2 && e == 0; k++)
            best[k] = i == 0 || us[k] < best[k] ? us[k] : best[k];
    }
    if (e)
        return cuda_check(b, e, "the first kernels launched early");
    b->ways.early = same && n_faster == RUNS;
    if (same)
        note(b, "%s: %u kernels take %.0f us early, %.0f us plain",
             b->ways.early ? "kernels are launched early" : "no early launch", CHAIN,
             (double)best[1], (double)best[0]);
    else
        note(b, "without early launch: other bits than plain launches");
    return 0;
}

static int try_early(struct be *b) {
    struct chain c = {.b = b, .n_rows = (uint32_t)b->device.n_multiprocessors};

    c.bytes = (size_t)c.n_rows * COLUMNS * sizeof(float);
    if (2 * c.bytes + COLUMNS * sizeof(float) + round_up(c.n_rows * 4, 256) > b->load.bytes)
        return 0;
    int e = lay_out(&c);
    e = e ? e : b->api->stream_wait(b->stream);
    e = e ? e : b->api->timer_new(&c.from);
    e = e ? e : b->api->timer_new(&c.to);
    int r = cuda_check(b, e, "cudaEventCreate");
    for (int i = 0; i < 2 && r == 0 && (i == 0 || c.graph[0]); i++)
        c.graph[i] = capture(&c, i == 1);
    if (r == 0 && c.graph[0] && c.graph[1])
        r = compare(&c);
    for (int i = 0; i < 2; i++)
        if (c.graph[i])
            b->api->graph_free(c.graph[i]);
    if (c.from)
        b->api->event_free(c.from);
    if (c.to)
        b->api->event_free(c.to);
    return r;
}

int early_open(struct be *b) {
    const char *said = getenv("WEFT_CUDA_EARLY");
    int r = 0;

    /* Kernels that were compiled for older devices do not wait for the one before. Beside the
     * host's experts a kernel could come up while the host still computes its operands. */
    if (b->device.made_for < 90 || has_host_part(b->shape))
        return 0;
    if (said)
        b->ways.early = strcmp(said, "1") == 0;
    else if (cuda_selftest_wanted())
        r = try_early(b);
    b->ways.wants_early = b->ways.early;
    return r;
}
