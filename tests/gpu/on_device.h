#pragma once

/* on_device - memory and launches on the device for checks. An error ends the process, in which
 * only one group of checks runs (report.h). */

#include "base/rng.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/products/kernels_norm.h"
#include "engine/cuda/products/kernels_roles.h"
#include "engine/cuda/products/matvec_way.h"
#include "engine/ops/attention/kernels_attention.h"
#include "tests/gpu/report.h"

static const struct cuda_api *api;
static struct cuda_device device;
static void *stream;
static struct rng rng = {1};

/* Returns a random number with an approximately normal distribution of variance 1. */
static float gauss(void) {
    return (float)(rng_unit(&rng) + rng_unit(&rng) + rng_unit(&rng) + rng_unit(&rng) - 2) * 1.73f;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Ends the process if @e is an error of CUDA. */
static void must(int e, const char *what) {
    if (!e)
        return;
    printf("FAILED %s: %s\n", what, api->text(e));
    exit(1);
}

/* Returns @n bytes of device memory, filled with NaN. */
static void *device_new(size_t n) {
    void *d;

    must(api->alloc(&d, n + 64), "cudaMalloc");
    must(api->fill(d, 0xFF, n, stream), "cudaMemset");
    return d;
}

/* Returns a copy of @n bytes in device memory. */
static void *device_of(const void *host, size_t n) {
    void *d = device_new(n);

    must(api->copy(d, host, n, CUDA_TO_DEVICE, stream), "copy to the device");
    must(api->stream_wait(stream), "copy to the device");
    return d;
}

/* Copies @n bytes from the device, after all launches have ended. */
static void fetch(void *host, const void *d, size_t n) {
    must(api->copy(host, d, n, CUDA_TO_HOST, stream), "copy from the device");
    must(api->stream_wait(stream), "kernel");
}

static void launch(const void *kernel, uint32_t x, uint32_t y, uint32_t threads, const void *args,
                   const char *what) {
    must(api->launch(kernel, x, y, threads, 0, args, false, stream), what);
}

/* Sets the number of panels, of @block_rows rows each. */
static void count_panels(struct matmul_args *a, uint32_t block_rows) {
    a->n_columns = (a->n_rows + block_rows - 1) / block_rows;
    a->n_panels = a->n_columns * ((a->m[0].n_row_tiles + 7) / 8);
}

/* Computes y = W x by matmul_wide, divided as @a says, or by matvec. */
static void launch_matmul(struct matmul_args *a, bool wide) {
    uint32_t tiles = a->m[0].n_row_tiles, f = a->m[0].format;

    a->stage_bytes = tile_stage_bytes(f);
    a->n_tiles = tiles;
    count_panels(a, MATMUL_COLUMNS);
    if (wide) {
        must(api->launch(kernel_matmul_wide, a->n_panels * a->n_splits, 1, CUDA_THREADS,
                         wide_shared(f), a, false, stream),
             "matmul_wide");
    } else {
        struct matvec_way way = matvec_way(&device, a->n_rows, a->stage_bytes, tiles, 0);

        a->n_stages = way.n_stages;
        must(api->launch(matvec_for(a->n_rows), way.n_blocks, 1, CUDA_THREADS, way.shared, a, false,
                         stream),
             "matvec");
    }
}

/* Computes y = W x by matvec_dry. */
static void launch_dry(struct matmul_args *a) {
    uint32_t stage = tile_stage_bytes(a->m[0].format), tiles = a->m[0].n_row_tiles;
    struct matvec_way way = matvec_way(&device, a->n_rows, stage, tiles, 0);

    a->stage_bytes = stage;
    a->n_tiles = tiles;
    a->n_stages = way.n_stages;
    must(api->launch(matvec_dry_for(a->n_rows), way.n_blocks, 1, CUDA_THREADS, way.shared, a, false,
                     stream),
         "matvec_dry");
}

/* Computes y = W x by wgmma, from rows that are packed for it, with @block_rows rows for each
 * block. Returns false if the device or this program does not have the kernel. */
static bool launch_wgmma(struct matmul_args *a, uint32_t block_rows) {
    uint32_t bytes = wgmma_shared(block_rows, a->m[0].format);

    if (!matmul_wgmma_built || device.major != 9 || device.shared_bytes <= bytes)
        return false;
    count_panels(a, block_rows);
    must(api->launch(block_rows == WGMMA_ROWS ? kernel_matmul_wgmma : kernel_matmul_wgmma_64,
                     a->n_panels * a->n_splits, 1, CUDA_THREADS, bytes, a, false, stream),
         "matmul_wgmma");
    return true;
}

/* Computes y = W x by matmul_wgmma_join; returns as launch_wgmma(). */
static bool launch_join(struct matmul_args *a) {
    uint32_t bytes = wgmma_join_shared(a->m[0].format);

    if (!matmul_wgmma_built || device.major != 9 || device.shared_bytes <= bytes)
        return false;
    count_panels(a, MATMUL_COLUMNS);
    must(api->launch(kernel_matmul_wgmma_join, a->n_panels * WGMMA_JOIN, 1, CUDA_THREADS, bytes, a,
                     false, stream),
         "matmul_wgmma_join");
    return true;
}

/* Samples @n wants that need the same kernels as @w. */
static void launch_sampling(const struct sample_args *a, const struct sample_want *w, uint32_t n,
                            uint32_t n_blocks) {
    uint32_t needs = sample_needs(w, a->n_vocab);

    launch(kernel_sample_scan, n_blocks, n, SAMPLE_THREADS, a, "sample_scan");
    if (needs & SAMPLE_WEIGH)
        launch(kernel_sample_weigh, n_blocks, n, SAMPLE_THREADS, a, "sample_weigh");
    if (needs & SAMPLE_DRAW)
        launch(kernel_sample_draw, n_blocks, n, SAMPLE_THREADS, a, "sample_draw");
}

/* Allows a kernel @bytes of shared memory. An error is only printed, because launches of other
 * kernels do not fail. */
static void allow_shared(const void *kernel, uint32_t bytes, const char *name) {
    int e = api->allow_shared(kernel, bytes);

    if (e)
        printf("%s may not have %u bytes of shared memory: %s\n", name, bytes, api->text(e));
}

static void allow_all_shared(void) {
    uint32_t wgmma = 0, wgmma_64 = 0, join = 0, narrow = 0, norm = 0, expert = 0, wide = 0;
    uint32_t n_planes = BYTES_FAMILY(device.made_for) ? 2 : 1;

    for (uint32_t f = 0; f < TILE_FORMATS; f++) {
        wgmma = MAX(wgmma, wgmma_shared(WGMMA_ROWS, f));
        wgmma_64 = MAX(wgmma_64, wgmma_shared(MATMUL_COLUMNS, f));
        join = MAX(join, wgmma_join_shared(f));
        narrow = MAX(narrow, matvec_shared(tile_stage_bytes(f), MATVEC_STAGES));
        norm = MAX(norm, matvec_norm_most(&device, tile_stage_bytes(f), n_planes));
        expert = MAX(expert, expert_shared(tile_stage_bytes(f)));
        wide = MAX(wide, wide_shared(f));
    }
    if (matmul_wgmma_built && device.major == 9) {
        allow_shared(kernel_matmul_wgmma, wgmma, "matmul_wgmma");
        allow_shared(kernel_matmul_wgmma_64, wgmma_64, "matmul_wgmma_64");
        allow_shared(kernel_matmul_wgmma_join, join, "matmul_wgmma_join");
        for (uint32_t n = 24, columns; n <= 64; n = columns + 1)
            allow_shared(roles_for(n, &columns), ROLES_SHARED, "matmul_roles");
        for (uint32_t f = 0, formats; f < TILE_FORMATS; f++)
            for (uint32_t n = 96; n <= WGMMA_ROWS && roles_wide_for(n, f, &formats); n += 32)
                allow_shared(roles_wide_for(n, f, &formats), ROLES_SHARED, "matmul_roles");
    }
    bool bulk = attend_bulk_runs(&device);
    for (int i = 0; i < 20 + 4 * bulk; i++) {
        struct page_shape s = {
            1, 64u << i / 4 % 4, 16, attend_formats[i % 4].k, attend_formats[i % 4].v, i / 4 >= 4};

        if (s.latent && s.k != s.v)
            continue;
        struct attend_kernel k = attend_kernel_for(&s, true, i / 4 > 4);
        struct attend_kernel few = attend_kernel_for(&s, false, i / 4 > 4);

        allow_shared(k.kernel, k.shared, s.latent ? "attend_latent" : "attend_wide");
        allow_shared(few.kernel, few.shared, "attend");
        if (s.latent || s.head_dim > 128)
            continue;
        few = attend_decode_for(&s);
        allow_shared(few.kernel, few.shared, "attend_decode");
        k = attend_wgmma_for(&s, false);
        if (matmul_wgmma_built && device.major == 9)
            allow_shared(k.kernel, k.shared, "attend_wgmma");
    }
    for (uint32_t n = PACK_ROWS; n <= MATVEC_ROWS; n += PACK_ROWS)
        allow_shared(cluster_for(n), MIN(CLUSTER_SHARED, (uint32_t)device.block_bytes),
                     "matvec_cluster");
    allow_shared(kernel_matvec, narrow, "matvec");
    allow_shared(kernel_matvec_16, narrow, "matvec_16");
    allow_shared(kernel_matvec_dry, narrow, "matvec_dry");
    allow_shared(kernel_matvec_16_dry, narrow, "matvec_16_dry");
    allow_shared(kernel_matvec_norm, norm, "matvec_norm");
    allow_shared(kernel_matmul_wide, wide, "matmul_wide");
    allow_shared(kernel_expert_vec, expert, "expert_vec");
    allow_shared(kernel_expert_wide, wide, "expert_wide");
}

/* Opens the device, once in a process. */
static void open_device(void) {
    int n = 0;

    if (stream)
        return;
    api = cuda_api();
    must(api->count(&n), "cudaGetDeviceCount");
    must(api->describe(0, &device), "cudaGetDeviceProperties");
    must(api->use(0), "cudaSetDevice");
    must(api->check_kernel(kernel_matvec, &device.made_for), "cudaFuncGetAttributes");
    must(api->stream_new(&stream), "cudaStreamCreate");
    allow_all_shared();
}

/* Returns @n zeroed bytes. */
static void *host_new(size_t n) {
    void *p = calloc(1, n);

    if (!p)
        abort();
    return p;
}
