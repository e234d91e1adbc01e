#pragma once

/* clusters - checks matvec_cluster bit for bit against matvec: all formats and numbers of rows,
 * with gates, with residuals, with matrices of two formats. Part of kernels.c. */

#include "tests/gpu/matrices.h"

/* A product of matrices with as many columns. */
struct clusters_case {
    const struct weights_on *w;
    uint32_t n_mats, n_rows;
    bool gated, add;
};

static void clusters_launch(struct matmul_args *a, bool cluster) {
    struct matvec_way way;
    bool same = a->m[0].format == a->m[a->n_mats - 1].format;

    if (cluster) {
        way = cluster_way(&device, a);
    } else {
        way = matvec_way(&device, a->n_rows, a->stage_bytes, a->n_tiles - a->gated, 0);
        way.n_blocks = same ? way.n_blocks : a->n_tiles;
    }
    a->n_stages = way.n_stages;
    must(api->launch(cluster ? cluster_for(a->n_rows) : matvec_for(a->n_rows), way.n_blocks, 1,
                     CUDA_THREADS, way.shared, a, false, stream),
         cluster ? "matvec_cluster" : "matvec");
}

/* Computes the results to @out and returns their number. */
static size_t clusters_multiply(const struct clusters_case *c, const struct inputs *in,
                                bool cluster, float *out) {
    struct matmul_args a = {.x = in->packed,
                            .scale = in->scale,
                            .n_mats = c->n_mats,
                            .n_rows = c->n_rows,
                            .n_blocks = (c->w->n_in + 63) / 64 * 4,
                            .n_splits = 1,
                            .add = c->add,
                            .gated = c->gated ? c->w->m.n_row_tiles : 0,
                            .glu = PACK_SILU};
    size_t n = 0;

    for (uint32_t i = 0; i < c->n_mats; i++) {
        size_t bytes = (size_t)c->n_rows * c->w[i].m.n_out * sizeof(float);

        a.m[i] = c->w[i].m;
        a.m[i].y = device_new(bytes);
        a.n_tiles += a.m[i].n_row_tiles;
        a.stage_bytes = MAX(a.stage_bytes, tile_stage_bytes(a.m[i].format));
        must(api->fill(a.m[i].y, 0, bytes, stream), "cudaMemset");
    }
    clusters_launch(&a, cluster);
    for (uint32_t i = 0; i < (c->gated ? 1 : c->n_mats); i++) {
        fetch(out + n, a.m[i].y, (size_t)c->n_rows * a.m[i].n_out * sizeof(float));
        n += (size_t)c->n_rows * a.m[i].n_out;
    }
    for (uint32_t i = 0; i < c->n_mats; i++)
        api->release(a.m[i].y);
    return n;
}

static void clusters_check(const char *what, const struct clusters_case *c,
                           const struct inputs *in) {
    size_t most = 0, n;
    char name[100];

    for (uint32_t i = 0; i < c->n_mats; i++)
        most += (size_t)c->n_rows * c->w[i].m.n_out;
    float *got = host_new(most * sizeof(float)), *want = host_new(most * sizeof(float));
    n = clusters_multiply(c, in, true, got);
    if (clusters_multiply(c, in, false, want) != n)
        abort();
    snprintf(name, sizeof(name), "cluster = matvec, %s, %u rows, %u matrices%s%s", what, c->n_rows,
             c->n_mats, c->gated ? ", gates" : "", c->add ? ", added" : "");
    report_check(name, differs(name, got, want, 1, (uint32_t)n), 0);
    free(got);
    free(want);
}

/* 15 row tiles are a cluster's eight and a part of eight; nine units in eight segments are
 * uneven. */
static void clusters_check_two(struct weights_on w[2], const char *what, uint32_t n_rows) {
    struct inputs in = make_inputs(n_rows, 2304, 0);

    clusters_check(what, &(struct clusters_case){w, 1, n_rows, false, true}, &in);
    clusters_check(what, &(struct clusters_case){w, 2, n_rows, false, false}, &in);
    clusters_check(what, &(struct clusters_case){w, 2, n_rows, true, false}, &in);
    drop_inputs(&in);
    drop_weights(&w[0]);
    drop_weights(&w[1]);
}

static void clusters_check_type(enum tensor_type type, uint32_t n_rows) {
    struct weights_on w[] = {make_weights(type, 232, 2304), make_weights(type, 232, 2304)};

    clusters_check_two(w, tensor_format((uint32_t)type)->name, n_rows);
}

/* Returns true if the kernels have clusters: those of a device from compute capability 9.0 on, and
 * those of the emulator. */
static bool clusters_run(void) {
#ifdef WEFT_BYTES
    return true; /* as sm_120, though gpu_kernels_bytes is emulated as 8.9 */
#else
    return device.made_for >= 90;
#endif
}

static void clusters_check_groups(const void *arg) {
    open_device();
    for (uint32_t n_rows = 5; n_rows <= 13 && clusters_run(); n_rows += 8) {
        struct weights_on w[] = {make_groups(TILE_G4, 232, 2304), make_groups(TILE_G4, 232, 2304)};

        clusters_check_two(w, "groups", n_rows);
    }
}

/* Two matrices of different formats; fewer units than segments; more row tiles than blocks. */
static void clusters_check_others(uint32_t n_rows, bool tiny) {
    struct weights_on two[] = {make_weights(TENSOR_Q4_K, 256, 2048),
                               make_weights(TENSOR_Q6_K, 128, 2048)};
    struct weights_on small = make_weights(TENSOR_Q8_0, 24, 320);
    struct weights_on tall = make_weights(TENSOR_Q4_K, tiny ? 2048 : 16384, 512);
    struct inputs in = make_inputs(n_rows, 2048, 0), few = make_inputs(n_rows, 320, 0);
    struct inputs low = make_inputs(n_rows, 512, 0);
    int n = device.n_multiprocessors;

    clusters_check("Q4_K and Q6_K", &(struct clusters_case){two, 2, n_rows, false, false}, &in);
    clusters_check("five units", &(struct clusters_case){&small, 1, n_rows, false, false}, &few);
    if (tiny)
        device.n_multiprocessors = 8; /* several row tiles for each cluster */
    clusters_check("tall", &(struct clusters_case){&tall, 1, n_rows, false, false}, &low);
    device.n_multiprocessors = n;
    drop_inputs(&in);
    drop_inputs(&few);
    drop_inputs(&low);
    drop_weights(&two[0]);
    drop_weights(&two[1]);
    drop_weights(&small);
    drop_weights(&tall);
}

/* A few row tiles, for every number of rows. */
static void clusters_check_few(uint32_t n_rows) {
    struct weights_on w = make_weights(TENSOR_Q4_K, 40, 2304);
    struct inputs in = make_inputs(n_rows, 2304, 0);

    clusters_check("Q4_K, 3 tiles", &(struct clusters_case){&w, 1, n_rows, false, false}, &in);
    drop_inputs(&in);
    drop_weights(&w);
}

/* With @tiny one number of rows for each format, and all of them for Q4_K. */
static void clusters_check_one(const void *arg) {
    const struct matrix_case *c = arg;
    uint32_t n_counts = MATVEC_ROWS - MATVEC_CLUSTER_LEAST + 1;

    open_device();
    for (uint32_t i = 0; i < n_counts && clusters_run(); i++) {
        uint32_t n_rows = MATVEC_CLUSTER_LEAST + i;

        if (!c->tiny || i == (uint32_t)c->type % n_counts)
            clusters_check_type(c->type, n_rows);
        if (c->type != TENSOR_Q4_K)
            continue;
        clusters_check_few(n_rows);
        if (!c->tiny || n_rows == 5 || n_rows == 13)
            clusters_check_others(n_rows, c->tiny);
    }
}

static void check_clusters(bool tiny) {
    char name[60];

    for (size_t i = 0; i < ARRAY_SIZE(matrix_types); i++) {
        snprintf(name, sizeof(name), "clusters %s", tensor_format((uint32_t)matrix_types[i])->name);
        report_alone(name, 120, clusters_check_one, &(struct matrix_case){matrix_types[i], tiny});
    }
    report_alone("clusters of groups", 120, clusters_check_groups, NULL);
}
