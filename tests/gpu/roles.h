#pragma once

/* roles - checks matmul_roles bit for bit against matmul_wgmma_64: all formats and numbers of rows,
 * with gates, with shared segments, and the sums that are left to residual(). Part of kernels.c. */

#define ROLES_GRID 2u /* clusters of a product of more than 64 rows */

/* A product of one or two matrices with the same rows. */
struct roles_case {
    const struct weights_on *w;
    uint32_t n_mats, n_rows, n_splits;
    bool gated, leaves;
};

/* Returns the number of panels of @tiles row tiles of the matrices of @a. */
static uint32_t roles_count(const struct matmul_args *a, uint32_t tiles) {
    uint32_t n = 0;

    if (a->gated)
        return (a->gated + tiles / 2 - 1) / (tiles / 2);
    for (uint32_t i = 0; i < a->n_mats; i++)
        n += (a->m[i].n_row_tiles + tiles - 1) / tiles;
    return n;
}

/* Launches the kernel with roles of more than 64 rows; a block takes several panels. Returns false
 * if there is none for the formats. */
static bool roles_launch_wide(struct matmul_args *a) {
    uint32_t n = a->n_rows > 96 ? WGMMA_ROWS : 96, formats = 0;
    const void *kernel = roles_wide_for(n, a->m[0].format, &formats);

    for (uint32_t i = 0; i < a->n_mats; i++)
        if (!(formats >> a->m[i].format & 1))
            return false;
    a->n_panels = roles_wide_clusters(a, n);
    uint32_t grid = MIN(a->n_panels * a->n_splits, ROLES_GRID) * ROLES_CLUSTER;
    must(api->launch(kernel, grid, 1, ROLES_WIDE_THREADS, roles_wide_shared(n, formats), a, false,
                     stream),
         "matmul_roles");
    return true;
}

/* Launches the kernel with roles, or matmul_wgmma_64. Returns false if there is none. */
static bool roles_launch(struct matmul_args *a, bool roles) {
    uint32_t columns = MATMUL_COLUMNS, shared = 0;
    const void *kernel = kernel_matmul_wgmma_64;

    if (roles && a->n_rows > MATMUL_COLUMNS)
        return roles_launch_wide(a);
    if (roles)
        kernel = roles_for(a->n_rows, &columns);
    a->n_panels = roles ? roles_panels(a) : roles_count(a, 8) * a->n_columns;
    for (uint32_t i = 0; i < a->n_mats; i++) {
        uint32_t f = a->m[i].format;

        shared = MAX(shared, roles ? roles_shared(columns, f) : wgmma_shared(columns, f));
    }
    must(api->launch(kernel, a->n_panels * a->n_splits, 1, roles ? ROLES_THREADS : CUDA_THREADS,
                     shared, a, false, stream),
         roles ? "matmul_roles" : "matmul_wgmma_64");
    return true;
}

/* Computes the results, or with c.leaves the sums of the segments, to @out. Returns their
 * number, or 0 if no kernel with roles has the formats. */
static size_t roles_multiply(const struct roles_case *c, const struct inputs *in, bool roles,
                             float *out) {
    struct matmul_args a = {.x = in->cores,
                            .scale = in->scale,
                            .n_mats = c->n_mats,
                            .n_rows = c->n_rows,
                            .n_blocks = (c->w->n_in + 63) / 64 * 4,
                            .n_columns = (c->n_rows + MATMUL_COLUMNS - 1) / MATMUL_COLUMNS,
                            .n_splits = c->n_splits,
                            .gated = c->gated ? c->w->m.n_row_tiles : 0,
                            .glu = PACK_SILU,
                            .leave = c->leaves};
    uint32_t n_y = c->gated ? 1 : c->n_mats, groups = 0;
    size_t n = 0, bytes;

    for (uint32_t i = 0; i < c->n_mats; i++) {
        a.m[i] = c->w[i].m;
        a.m[i].y = device_new((size_t)c->n_rows * a.m[i].n_out * sizeof(float));
        groups += (a.m[i].n_row_tiles + 7) / 8 * a.n_columns;
    }
    bytes = groups * WIDE_SPLIT_BYTES;
    a.sums = device_new(bytes);
    a.arrived = device_new(groups * sizeof(*a.arrived));
    must(api->fill(a.arrived, 0, groups * sizeof(*a.arrived), stream), "cudaMemset");
    must(api->fill(a.sums, 0, bytes, stream), "cudaMemset");
    bool done = roles_launch(&a, roles);

    for (uint32_t i = 0; i < n_y && done && !c->leaves; i++) {
        fetch(out + n, a.m[i].y, (size_t)c->n_rows * a.m[i].n_out * sizeof(float));
        n += (size_t)c->n_rows * a.m[i].n_out;
    }
    if (c->leaves && done) {
        fetch(out, a.sums, bytes);
        n = bytes / sizeof(float);
    }
    for (uint32_t i = 0; i < c->n_mats; i++)
        api->release(a.m[i].y);
    api->release(a.sums);
    api->release(a.arrived);
    return n;
}

/* Clears the sums of rows and outputs that do not exist, which kernels may leave as they are. The
 * matrix has a panel for each 64 rows. */
static void roles_clear_sums(const struct roles_case *c, float *sums, size_t n) {
    size_t columns = (c->n_rows + MATMUL_COLUMNS - 1) / MATMUL_COLUMNS;

    for (size_t i = 0; i < n; i++) {
        size_t panel = i / (TILE_SEGMENTS * WIDE_SUMS);
        size_t out = panel / columns * WIDE_OUT + i % WIDE_OUT;
        size_t row = panel % columns * MATMUL_COLUMNS + i % WIDE_SUMS / WIDE_OUT;

        if (row >= c->n_rows || out >= c->w->m.n_out)
            sums[i] = 0;
    }
}

static void roles_check(const char *what, const struct roles_case *c, const struct inputs *in) {
    size_t most = (size_t)2 * 8 * WIDE_SPLIT_BYTES / sizeof(float), n;
    float *got = host_new(most * sizeof(float)), *want = host_new(most * sizeof(float));
    char name[100];

    n = roles_multiply(c, in, true, got);
    if ((n > 0 && roles_multiply(c, in, false, want) != n) || n > most)
        abort();
    if (c->leaves) {
        roles_clear_sums(c, got, n);
        roles_clear_sums(c, want, n);
    }
    snprintf(name, sizeof(name), "roles = wgmma 64, %s, %u rows, %u blocks%s%s", what, c->n_rows,
             c->n_splits, c->gated ? ", gates" : "", c->leaves ? ", sums" : "");
    if (n > 0)
        report_check(name, differs(name, got, want, 1, (uint32_t)n), 0);
    free(got);
    free(want);
}

/* 15 rows of tiles are a panel and a part of one; nine units in eight segments are uneven. */
static void roles_check_two(struct weights_on w[2], const char *what, uint32_t n_rows) {
    struct inputs in = make_inputs(n_rows, 2304, 0);

    if (in.cores) {
        roles_check(what, &(struct roles_case){w, 1, n_rows, 1, false, false}, &in);
        roles_check(what, &(struct roles_case){w, 2, n_rows, n_rows > 128 ? 1 : 4, false, false},
                    &in);
        if (n_rows <= WGMMA_ROWS)
            roles_check(what, &(struct roles_case){w, 1, n_rows, 8, false, true}, &in);
        roles_check(what, &(struct roles_case){w, 2, n_rows, 1, true, false}, &in);
    }
    drop_inputs(&in);
    drop_weights(&w[0]);
    drop_weights(&w[1]);
}

static void roles_check_type(enum tensor_type type, uint32_t n_rows) {
    struct weights_on w[] = {make_weights(type, 232, 2304), make_weights(type, 232, 2304)};

    roles_check_two(w, tensor_format((uint32_t)type)->name, n_rows);
}

/* Two matrices of different formats, the second smaller; and one of fewer units than segments. */
static void roles_check_others(uint32_t n_rows) {
    struct weights_on two[] = {make_weights(TENSOR_Q4_K, 216, 2048),
                               make_weights(TENSOR_Q6_K, 40, 2048)};
    struct weights_on small = make_weights(TENSOR_Q8_0, 24, 320);
    struct inputs in = make_inputs(n_rows, 2048, 0), few = make_inputs(n_rows, 320, 0);
    uint32_t splits = n_rows > WGMMA_ROWS ? 1 : 2;

    if (in.cores) {
        roles_check("Q4_K and Q6_K", &(struct roles_case){two, 2, n_rows, splits, false, false},
                    &in);
        roles_check("five units", &(struct roles_case){&small, 1, n_rows, 1, false, false}, &few);
    }
    drop_inputs(&in);
    drop_inputs(&few);
    drop_weights(&two[0]);
    drop_weights(&two[1]);
    drop_weights(&small);
}

/* A tiny run has one of the first four and one of the next four, or all eight for Q4_K. */
static const uint32_t roles_rows[] = {17, 32, 41, 64, 96, 200, 65, 128, 24, 25, 48, 49, 97, 129};

static void roles_check_one(const void *arg) {
    const struct matrix_case *c = arg;

    open_device();
    if (!matmul_wgmma_built || device.major != 9)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(roles_rows); i++)
        if (!c->tiny || (i < 8 && (i % 4 == (uint32_t)c->type % 4 || c->type == TENSOR_Q4_K)))
            roles_check_type(c->type, roles_rows[i]);
    if (c->type == TENSOR_Q4_K) {
        roles_check_others(33);
        roles_check_others(130);
    }
}

static void roles_check_groups(const void *arg) {
    open_device();
    for (uint32_t n_rows = 17; n_rows <= 41 && matmul_wgmma_built; n_rows += 12) {
        struct weights_on w[] = {make_groups(TILE_G4, 232, 2304), make_groups(TILE_G4, 232, 2304)};

        roles_check_two(w, "groups", n_rows);
    }
}

static void check_roles(bool tiny) {
    char name[60];

    for (size_t i = 0; i < ARRAY_SIZE(matrix_types); i++) {
        snprintf(name, sizeof(name), "roles %s", tensor_format((uint32_t)matrix_types[i])->name);
        report_alone(name, 60, roles_check_one, &(struct matrix_case){matrix_types[i], tiny});
    }
    report_alone("roles of groups", 60, roles_check_groups, NULL);
}
