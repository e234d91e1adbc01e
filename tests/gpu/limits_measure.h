#pragma once

/* limits_measure - measures what a Hopper can do at best, by the kernels of limits.cu. Part of
 * micro.c. */

#include "tests/gpu/limits.h"

#define LIMIT_RING (2 * LIMIT_STAGES * LIMIT_CHUNK)

/* Returns false, and says so, if the device has no clusters and no wgmma. */
static bool limits_run_here(const char *what) {
    if (device.major == 9)
        return true;
    report_skipped(what, "not a Hopper");
    return false;
}

/* Reads 8 and 32 MiB of the L2 cache by one block on each multiprocessor. Multicast: bytes that
 * arrive in shared memory, of which the cache delivers a half or a quarter. */
static void measure_cache_limits(const void *unused) {
    static const struct {
        const char *name;
        const void *const *kernel;
        uint32_t cluster;
    } ways[] = {{"bulk copies", &kernel_limit_bulk_1, 1},
                {"bulk copies to 2 blocks", &kernel_limit_bulk_2, 2},
                {"bulk copies to 4 blocks", &kernel_limit_bulk_4, 4},
                {"coalesced loads", &kernel_limit_loads, 0}};
    enum { TIMES = 400 };

    (void)unused;
    open_device();
    for (size_t i = 0; i < ARRAY_SIZE(ways) && limits_run_here("limits of the cache"); i++)
        for (uint32_t mib = 8; mib <= 32; mib *= 4) {
            uint32_t blocks = (uint32_t)device.n_multiprocessors / 4 * 4;
            bool loads = ways[i].cluster == 0;
            struct limit_read_args a = {device_new((size_t)mib << 20), device_new(4096), mib << 20,
                                        loads ? 40 : TIMES};
            char name[80];

            blocks = loads ? 8 * blocks : blocks;
            double took =
                time_shared(*ways[i].kernel, blocks, LIMIT_THREADS, loads ? 0 : LIMIT_RING, &a);
            double bytes = (double)blocks * LIMIT_STAGES * LIMIT_CHUNK * TIMES;
            snprintf(name, sizeof(name), "%u MiB of the L2 cache by %s", mib, ways[i].name);
            report_value(name, (loads ? (double)a.bytes * a.n_times : bytes) / took * 1e-9, "GB/s");
        }
}

/* Returns the sums of block 0 after @n groups, for the caller to free. */
static float *limit_sums(const void *kernel, uint32_t shared, uint32_t width, uint32_t n) {
    size_t bytes = (size_t)128 * width / 2 * sizeof(float);
    float *sums = calloc(1, bytes);
    struct limit_rate_args a = {device_new(bytes), n};

    time_shared(kernel, 1, 256, shared, &a);
    must(api->copy(sums, a.out, bytes, CUDA_TO_HOST, stream), "copy");
    must(api->stream_wait(stream), "wgmma");
    return sums;
}

/* Measures wgmma of random halves without waiting for the last group, by one block and by two on a
 * multiprocessor, and compares A from registers with A from shared memory bit for bit. */
static void measure_product_limits(const void *unused) {
    static const struct {
        uint32_t n;
        const void *const *registers, *const *shared;
    } widths[] = {{64, &kernel_limit_registers_64, &kernel_limit_shared_64},
                  {128, &kernel_limit_registers_128, &kernel_limit_shared_128}};
    char name[80];

    (void)unused;
    open_device();
    for (size_t i = 0; i < ARRAY_SIZE(widths) && limits_run_here("limits of wgmma"); i++) {
        const void *kernels[2] = {*widths[i].registers, *widths[i].shared};
        uint32_t n = widths[i].n, shared = LIMIT_STEPS * (n + 64) * 32;
        float *sums[2];

        for (uint32_t k = 0; k < 4; k++) {
            struct limit_rate_args a = {device_new((size_t)128 * n / 2 * sizeof(float)), 40000};
            uint32_t each = k / 2 + 1, blocks = each * (uint32_t)device.n_multiprocessors;
            double took = time_shared(kernels[k % 2], blocks, 256, shared, &a);
            double flop = 2.0 * 64 * 16 * n * LIMIT_STEPS * a.n * 2 * blocks;

            snprintf(name, sizeof(name), "wgmma n%u, random, A from %s, %u blocks", n,
                     k % 2 ? "shared memory" : "registers", each);
            report_value(name, flop / took * 1e-12, "TFLOP/s");
        }
        for (uint32_t k = 0; k < 2; k++)
            sums[k] = limit_sums(kernels[k], shared, n, 7);
        snprintf(name, sizeof(name), "wgmma n%u: A from shared memory has the bits of registers",
                 n);
        report_check(name, memcmp(sums[0], sums[1], (size_t)128 * n / 2 * sizeof(float)) != 0, 0);
        free(sums[0]);
        free(sums[1]);
    }
}

/* Measures a meeting of the blocks of a cluster, and reading another block's shared memory. */
static void measure_cluster_limits(const void *unused) {
    static const struct {
        const char *name;
        const void *const *kernel;
        uint32_t shared;
    } ways[] = {{"a meeting of a cluster of 2", &kernel_limit_meet_2, 0},
                {"a meeting of a cluster of 8", &kernel_limit_meet_8, 0},
                {"reading another block's shared memory", &kernel_limit_far, LIMIT_CHUNK}};

    (void)unused;
    open_device();
    for (size_t i = 0; i < ARRAY_SIZE(ways) && limits_run_here("limits of clusters"); i++) {
        uint32_t blocks = (uint32_t)device.n_multiprocessors / 8 * 8;
        struct limit_meet_args few = {device_new(4096), 2000}, many = {few.out, 12000};
        double took = time_shared(*ways[i].kernel, blocks, LIMIT_THREADS, ways[i].shared, &many) -
                      time_shared(*ways[i].kernel, blocks, LIMIT_THREADS, ways[i].shared, &few);
        double each = took / (many.n - few.n);

        if (ways[i].shared)
            report_value(ways[i].name, blocks * (double)LIMIT_CHUNK / each * 1e-9, "GB/s");
        else
            report_value(ways[i].name, each * 1e6, "us");
    }
}
