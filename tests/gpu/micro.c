/*
 * micro - measures in a few seconds the properties of a device on which the design of the kernels
 * is based: the pause between two kernels (launched normally and early), the bandwidth of the L2
 * cache, and the rates of the tensor cores; what these reach at best (limits.h); and checks whether
 * wgmma gives the bits of mma.sync at every width.
 */

#include "tests/gpu/micro.h"

#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "base/rng.h"
#include "base/util.h"
#include "engine/cuda/cuda_api.h"
#include "tests/gpu/report.h"

static const struct cuda_api *api;
static struct cuda_device device;
static void *stream;

static void must(int e, const char *what) {
    if (!e)
        return;
    printf("FAILED %s: %s\n", what, api->text(e));
    exit(1);
}

static void open_device(void) {
    api = cuda_api();
    must(api->describe(0, &device), "cudaGetDeviceProperties");
    must(api->use(0), "cudaSetDevice");
    must(api->stream_new(&stream), "cudaStreamCreate");
}

static void *device_new(size_t n) {
    void *d;

    must(api->alloc(&d, n), "cudaMalloc");
    must(api->fill(d, 0, n, stream), "cudaMemset");
    return d;
}

static void launch(const void *kernel, uint32_t blocks, uint32_t threads, const void *args,
                   bool early) {
    must(api->launch(kernel, blocks, 1, threads, 0, args, early, stream), "launch");
}

/* Returns the time in seconds of a graph of @n launches, the fastest of five. */
static double time_launches(const void *kernel, uint32_t blocks, uint32_t threads, const void *args,
                            bool early, uint32_t n) {
    void *graph = NULL;
    double best = 1e9;

    launch(kernel, blocks, threads, args, false); /* the first launch loads the kernel */
    must(api->stream_wait(stream), "kernel");
    must(api->capture_begin(stream), "capture");
    for (uint32_t i = 0; i < n; i++)
        launch(kernel, blocks, threads, args, early);
    must(api->capture_end(stream, &graph), "capture");
    for (int i = 0; i < 5; i++) {
        double start = report_now();

        must(api->graph_launch(graph, stream), "graph");
        must(api->stream_wait(stream), "graph");
        best = fmin(best, report_now() - start);
    }
    api->graph_free(graph);
    return best;
}

/* Returns the time in seconds of a launch with dynamic shared memory, the fastest of five. */
static double time_shared(const void *kernel, uint32_t blocks, uint32_t threads, uint32_t shared,
                          const void *args) {
    double best = 1e9;

    must(api->allow_shared(kernel, shared), "cudaFuncSetAttribute");
    for (int i = 0; i < 6; i++) { /* the first one loads the kernel */
        must(api->stream_wait(stream), "kernel");
        double start = report_now();

        must(api->launch(kernel, blocks, 1, threads, shared, args, 0, stream), "launch");
        must(api->stream_wait(stream), "kernel");
        best = i ? fmin(best, report_now() - start) : best;
    }
    return best;
}

#include "tests/gpu/limits_measure.h"

static void measure_gaps(const void *unused) {
    struct nothing_args a = {NULL};

    (void)unused;
    open_device();
    for (int early = 0; early < 2; early++)
        for (uint32_t all = 0; all < 2; all++) {
            uint32_t blocks = all ? 2 * (uint32_t)device.n_multiprocessors : 1;
            double few = time_launches(kernel_nothing, blocks, 256, &a, early, 64);
            double many = time_launches(kernel_nothing, blocks, 256, &a, early, 1064);
            char name[80];

            snprintf(name, sizeof(name), "an empty kernel of %u blocks in a graph%s", blocks,
                     early ? ", early" : "");
            report_value(name, (many - few) / 1000 * 1e6, "us");
        }
}

static void measure_cache(const void *unused) {
    enum { TIMES = 200 };

    (void)unused;
    open_device();
    for (uint32_t mib = 8; mib <= 32; mib *= 2) {
        uint32_t bytes = mib << 20, blocks = 8 * (uint32_t)device.n_multiprocessors;
        struct reread_args a = {device_new(bytes), bytes, TIMES, device_new(4)};
        double took = time_launches(kernel_reread, blocks, 256, &a, false, 1);
        char name[80];

        snprintf(name, sizeof(name), "reading %u MiB again and again", mib);
        report_value(name, (double)bytes * TIMES / took * 1e-9, "GB/s");
    }
}

static void measure_rates(const void *unused) {
    static const struct {
        const char *name;
        const void *const *kernel;
        /* columns of a product; products of 64 rows at a time */
        uint32_t n, per_warpgroup;
    } rates[] = {
        {"mma.sync m16n8k16", &kernel_mma_rate, 8, 8},
        {"wgmma m64n16k16", &kernel_wgmma_rate_16, 16, 1},
        {"wgmma m64n64k16", &kernel_wgmma_rate_64, 64, 1},
        {"wgmma m64n128k16", &kernel_wgmma_rate_128, 128, 1},
        {"wgmma m64n256k16", &kernel_wgmma_rate_256, 256, 1},
    };
    struct rate_args a = {8192, NULL};

    (void)unused;
    open_device();
    a.out = device_new(4);
    for (size_t i = 0; i < ARRAY_SIZE(rates); i++) {
        uint32_t blocks = (i == 0 ? 4 : 2) * (uint32_t)device.n_multiprocessors;

        if (i > 0 && device.major != 9) {
            report_skipped(rates[i].name, "not a Hopper");
            continue;
        }
        double took = time_launches(*rates[i].kernel, blocks, MICRO_THREADS, &a, false, 1);
        double flop = 2.0 * 64 * 16 * rates[i].n * rates[i].per_warpgroup * a.n * blocks;
        report_value(rates[i].name, flop / took * 1e-12, "TFLOP/s");
    }
}

/* Returns random numbers of half precision whose exponents differ by up to 12, including zeros and
 * subnormal numbers. */
static void *random_halves(struct rng *rng, size_t n) {
    uint16_t *h = calloc(n, sizeof(*h));
    void *d = device_new(n * sizeof(*h));

    for (size_t i = 0; i < n; i++) {
        float x = (float)(rng_unit(rng) * 2 - 1);

        h[i] = rng_below(rng, 64) == 0 ? (uint16_t)rng_below(rng, 1024)
                                       : mx_float_to_half(ldexpf(x, (int)rng_below(rng, 13) - 6));
    }
    must(api->copy(d, h, n * sizeof(*h), CUDA_TO_DEVICE, stream), "copy");
    must(api->stream_wait(stream), "copy");
    free(h);
    return d;
}

static void compare_bits(const void *unused) {
    enum { BLOCKS = 128 };
    static const struct {
        uint32_t n;
        const void *const *kernel;
    } widths[] = {
        {8, &kernel_wgmma_bits_8},   {16, &kernel_wgmma_bits_16},   {32, &kernel_wgmma_bits_32},
        {64, &kernel_wgmma_bits_64}, {128, &kernel_wgmma_bits_128}, {256, &kernel_wgmma_bits_256},
    };
    struct rng rng = {11};

    (void)unused;
    open_device();
    if (device.major != 9) {
        report_skipped("wgmma by bits", "not a Hopper");
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(widths); i++) {
        uint32_t found[2] = {0};
        struct wgmma_bits_args a = {
            .a = random_halves(&rng, (size_t)BLOCKS * 64 * MICRO_K),
            .b = random_halves(&rng, (size_t)BLOCKS * widths[i].n * MICRO_K),
        };
        char name[80];

        /* exchange the offsets of the descriptor only if the result is not the product */
        for (a.swap = 0; a.swap < 2; a.swap++) {
            uint32_t *counts = device_new(sizeof(found));

            a.n_different = counts;
            a.n_wrong = counts + 1;
            launch(*widths[i].kernel, BLOCKS, MICRO_THREADS, &a, false);
            must(api->copy(found, counts, sizeof(found), CUDA_TO_HOST, stream), "copy");
            must(api->stream_wait(stream), "wgmma");
            if (found[1] == 0)
                break;
            report_detail("n %u, offsets %s: %u of %u are not the product", widths[i].n,
                          a.swap ? "swapped" : "as described", found[1], BLOCKS * 64 * widths[i].n);
        }
        snprintf(name, sizeof(name), "wgmma n%u is the product", widths[i].n);
        report_check(name, found[1], 0);
        if (found[1] == 0) {
            snprintf(name, sizeof(name), "wgmma n%u has the bits of mma.sync", widths[i].n);
            report_check(name, found[0], 0);
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf("usage: micro\n");
        return 0;
    }
    report_alone("pauses between kernels", 30, measure_gaps, NULL);
    report_alone("cache", 30, measure_cache, NULL);
    report_alone("tensor cores", 30, measure_rates, NULL);
    report_alone("wgmma by bits", 30, compare_bits, NULL);
    report_alone("limits of the cache", 30, measure_cache_limits, NULL);
    report_alone("limits of wgmma", 30, measure_product_limits, NULL);
    report_alone("limits of clusters", 30, measure_cluster_limits, NULL);
    return report_end("micro");
}
