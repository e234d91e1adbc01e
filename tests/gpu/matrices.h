#pragma once

/* matrices - checks every kernel of products with every format of weights against double precision,
 * and the kernels bit for bit against each other. Part of kernels.c. */

/* A matrix on the device. value: its weights on the host, [n_out][n_in]. */
struct weights_on {
    struct matrix m;
    uint32_t n_in;
    struct tile_grids *grids;
    float *value;
    size_t bytes;
};

static void scale_tiles(struct matrix *m, uint8_t *tiles, float most) {
    uint32_t n = m->n_units * m->n_row_tiles;
    struct scale_args a = {tiles, m->format, n, tile_unit(m->format, most)};

    launch(kernel_scale_tiles, (n + 7) / 8, 1, CUDA_THREADS, &a, "scale_tiles");
    must(api->stream_wait(stream), "scale_tiles");
    m->inverse = tile_power_of_two(-a.unit);
}

/* Returns the matrix of the blocks @raw, repacked into tiles of @format by the kernels that load a
 * model. */
static struct weights_on make_tiles(enum tensor_type type, enum tile_format format,
                                    const uint8_t *raw, uint32_t n_out, uint32_t n_in) {
    const struct tensor_format *f = tensor_format((uint32_t)type);
    size_t row = n_in / f->block * f->block_bytes;
    struct weights_on w = {.n_in = n_in};
    struct repack_found found = {0}, *found_on = device_of(&found, sizeof(found));
    struct blk_grids *grids = device_of(&quant_grids, sizeof(quant_grids));
    struct tile_grids *tile_grids = host_new(sizeof(*tile_grids));

    w.value = host_new((size_t)n_out * n_in * sizeof(float));
    quant_decode(type, raw, w.value, (size_t)n_out * n_in);
    tile_grids_fill(tile_grids, &quant_grids);
    w.grids = device_of(tile_grids, sizeof(*tile_grids));
    free(tile_grids);
    w.m = (struct matrix){
        .format = format, .n_out = n_out, .grid = tile_grid_of((uint32_t)type, w.grids)};
    matrix_cut(&w.m, n_in);
    w.bytes = tile_matrix_bytes(w.m.format, n_out, n_in);
    uint8_t *tiles = device_new(w.bytes);
    uint8_t *on = device_of(raw, n_out * row);
    struct repack_args a = {
        .source = {on, grids, row, (uint32_t)type, f->block, f->block_bytes, n_out, n_in},
        .tiles = tiles,
        .format = w.m.format,
        .n_units = w.m.n_units,
        .found = found_on};
    launch(kernel_repack, w.m.n_units, w.m.n_row_tiles, CUDA_THREADS, &a, "repack");
    fetch(&found, found_on, sizeof(found));
    report_check("repack finds no infinity", found.bad, 0);
    scale_tiles(&w.m, tiles, mx_float_of((uint32_t)found.most));
    w.m.tiles = tiles;
    api->release(on);
    api->release(found_on);
    api->release(grids);
    return w;
}

/* Returns a random matrix. */
static struct weights_on make_weights(enum tensor_type type, uint32_t n_out, uint32_t n_in) {
    const struct tensor_format *f = tensor_format((uint32_t)type);
    size_t n = (size_t)n_out * (n_in / f->block);
    uint8_t *raw = host_new(n * f->block_bytes);

    fill_blocks(f, raw, n);
    struct weights_on w = make_tiles(type, tile_format_of((uint32_t)type), raw, n_out, n_in);
    free(raw);
    return w;
}

/* Returns a matrix of 4-bit codes, of which each 64 columns have a scale and a zero point, in tiles
 * of G4 or of Q5_0. The shape determines the weights. Scales differ by a factor of up to 192: of
 * smaller ones Q5_0 rounds the product with 16. */
static struct weights_on make_groups(enum tile_format format, uint32_t n_out, uint32_t n_in) {
    const struct tensor_format *f = tensor_format(TENSOR_Q5_0);
    size_t n = (size_t)n_out * (n_in / f->block);
    uint8_t *raw = host_new(n * f->block_bytes), *b = raw;

    rng.state = n_out + (uint64_t)n_in * 1000;
    fill_blocks(f, raw, n);
    for (size_t i = 0; i < n; i += 2) {
        uint32_t zero = rng_below(&rng, 17);
        uint16_t d = (uint16_t)(blk_u16(b) - (rng_below(&rng, 7) << 10));

        memcpy(b, &d, 2);
        memcpy(b + f->block_bytes, &d, 2);
        for (uint32_t k = 0; k < 2; k++, b += f->block_bytes) {
            uint8_t code[32];

            for (uint32_t j = 0; j < 32; j++)
                code[j] = (uint8_t)(rng_below(&rng, 16) + 16 - zero);
            memset(b + 2, 0, 4);
            for (uint32_t j = 0; j < 32; j++)
                b[2 + j / 8] |= (uint8_t)(code[j] >> 4 << j % 8);
            for (uint32_t j = 0; j < 16; j++)
                b[6 + j] = (uint8_t)((code[j] & 15) | code[j + 16] << 4);
        }
    }
    struct weights_on w = make_tiles(TENSOR_Q5_0, format, raw, n_out, n_in);
    free(raw);
    return w;
}

static void drop_weights(struct weights_on *w) {
    api->release((void *)w->m.tiles);
    api->release(w->grids);
    free(w->value);
}

/* Rows of activations: packed on the device, in another layout for wgmma (cores), and on the host:
 * x, and what the codes of devices that multiply bytes stand for (coded; otherwise NULL). */
struct inputs {
    uint16_t *packed, *cores;
    float *scale, *x, *coded;
};

/* Returns the number of planes of packed rows. */
static uint32_t planes(void) {
    return BYTES_FAMILY(device.made_for) ? 2 : 1;
}

/* Returns whether the device multiplies codes of eight bits by weights of @type. */
static bool multiplies_codes(enum tensor_type type) {
    return planes() == 2 && BYTES_FORMAT(tile_format_of((uint32_t)type));
}

/* Returns the largest relative error of a product with weights of @type: activations have eight
 * bits or half precision. */
static double limit_of(enum tensor_type type) {
    return multiplies_codes(type) ? 2.5e-2 : 1e-3;
}

/* Rounds a row of @n values to codes of eight bits, with a scale for 128 columns (pack_args). */
static void code_row(const float *x, uint32_t n, float *to) {
    for (uint32_t k = 0; k < n; k += 128) {
        uint32_t end = MIN(k + 128, n);
        float most = 0;

        for (uint32_t i = k; i < end; i++)
            most = fmaxf(most, fabsf(x[i]));
        for (uint32_t i = k; i < end; i++)
            to[i] = most > 0 ? rintf(x[i] * (127 / most)) * (most / 127) : 0;
    }
}

static struct inputs make_inputs(uint32_t n_rows, uint32_t n_in, uint32_t first) {
    struct inputs in = {.x = host_new((size_t)n_rows * n_in * sizeof(float))};
    uint32_t padded = (n_in + 63) / 64 * 64;
    float *x;

    for (uint32_t r = 0; r < n_rows; r++) { /* a row depends only on its number */
        rng.state = (first + r) * 77777u + 5;
        fill_floats(in.x + (size_t)r * n_in, n_in);
    }
    if (planes() == 2)
        in.coded = host_new((size_t)n_rows * n_in * sizeof(float));
    for (uint32_t r = 0; in.coded && r < n_rows; r++)
        code_row(in.x + (size_t)r * n_in, n_in, in.coded + (size_t)r * n_in);
    x = device_of(in.x, (size_t)n_rows * n_in * sizeof(float));
    in.packed = device_new((size_t)(n_rows + 7) / 8 * 8 * padded * 2 * planes());
    in.scale = device_new(n_rows * sizeof(float));
    struct pack_args a = {.x = x,
                          .up = x,
                          .packed = in.packed,
                          .scale = in.scale,
                          .kind = PACK_PLAIN,
                          .n = n_in,
                          .n_padded = padded};
    launch(kernel_pack, n_rows, 1, PACK_THREADS, &a, "pack");
    if (planes() == 1) { /* devices that multiply bytes do not use wgmma */
        in.cores = device_new((size_t)(n_rows + 127) / WGMMA_ROWS * WGMMA_ROWS * padded * 2);
        a.packed = in.cores;
        a.cores = true;
        launch(kernel_pack, n_rows, 1, PACK_THREADS, &a, "pack");
    }
    must(api->stream_wait(stream), "pack");
    api->release(x);
    return in;
}

static void drop_inputs(struct inputs *in) {
    api->release(in->packed);
    if (in->cores)
        api->release(in->cores);
    api->release(in->scale);
    free(in->x);
    free(in->coded);
}

enum kernel { VEC, DRY, WIDE, SHARING, WGMMA, WGMMA_64, WGMMA_SHARING, WGMMA_JOINING };

static const char *const kernel_name[] = {"vec",   "dry",      "wide",        "split",
                                          "wgmma", "wgmma 64", "wgmma split", "wgmma join"};

#define SPLITS 4u /* blocks that share the segments of a product */

/* Returns true if several blocks share the segments of a product. */
static bool shares(enum kernel kernel) {
    return kernel == SHARING || kernel >= WGMMA_SHARING;
}

/* Sets the members that kernels need that share segments. */
static void divide(struct matmul_args *a, enum kernel kernel) {
    uint32_t n = (a->n_rows + 63) / 64 * ((a->m[0].n_row_tiles + 7) / 8);

    a->n_splits = SPLITS;
    a->arrived = device_new(n * sizeof(*a->arrived));
    a->sums = device_new(n * WIDE_SPLIT_BYTES);
    must(api->fill(a->arrived, 0, n * sizeof(*a->arrived), stream), "cudaMemset");
}

/* Launches a kernel. Returns false if the device does not have it. */
static bool launch_kernel(enum kernel kernel, struct matmul_args *a) {
    if (kernel == WGMMA_JOINING)
        return launch_join(a);
    if (kernel >= WGMMA)
        return launch_wgmma(a, kernel == WGMMA ? WGMMA_ROWS : MATMUL_COLUMNS);
    if (kernel == DRY)
        launch_dry(a);
    else
        launch_matmul(a, kernel != VEC);
    return true;
}

/* Multiplies @n_rows rows by a matrix: out[row][n_out]. Returns false if the device does not have
 * the kernel. */
static bool multiply(const struct weights_on *w, const struct inputs *in, uint32_t n_rows,
                     enum kernel kernel, float *out) {
    size_t bytes = (size_t)n_rows * w->m.n_out * sizeof(float);
    struct matmul_args a = {.m = {w->m},
                            .x = kernel >= WGMMA ? in->cores : in->packed,
                            .scale = in->scale,
                            .n_mats = 1,
                            .n_rows = n_rows,
                            .n_blocks = (w->n_in + 63) / 64 * 4,
                            .n_splits = 1};

    a.m[0].y = device_new(bytes);
    if (shares(kernel))
        divide(&a, kernel);
    bool done = launch_kernel(kernel, &a);
    fetch(out, a.m[0].y, bytes);
    api->release(a.m[0].y);
    if (shares(kernel)) {
        api->release(a.arrived);
        api->release(a.sums);
    }
    return done;
}

/* Returns |y - W x| / |W x| of rows @from, computed in double precision; describes the worst
 * elements if that is more than @limit. */
static double error_of(const struct weights_on *w, const float *from, uint32_t n_rows,
                       const float *y, double limit) {
    double d = 0, norm = 0;
    size_t n = (size_t)n_rows * w->m.n_out;
    float *right = host_new(n * sizeof(*right));

    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t o = 0; o < w->m.n_out; o++) {
            const float *x = from + (size_t)r * w->n_in, *v = w->value + (size_t)o * w->n_in;
            double sum = 0;

            for (uint32_t k = 0; k < w->n_in; k++)
                sum += (double)v[k] * (double)x[k];
            d += pow(sum - (double)y[(size_t)r * w->m.n_out + o], 2);
            norm += sum * sum;
            right[(size_t)r * w->m.n_out + o] = (float)sum;
        }
    if (!(sqrt(d / norm) <= limit))
        describe_worst(y, right, n, w->m.n_out, sqrt(norm / (double)n));
    free(right);
    return sqrt(d / norm);
}

/* Checks all kernels with a matrix, and that the last row alone has the bits that it has among the
 * other rows. */
static void check_matrix(enum tensor_type type, uint32_t n_out, uint32_t n_in, uint32_t n_rows) {
    struct weights_on w = make_weights(type, n_out, n_in);
    struct inputs in = make_inputs(n_rows, n_in, 0);
    size_t n = (size_t)n_rows * n_out;
    float *narrow = host_new(n * sizeof(float)), *wide = host_new(n * sizeof(float));
    float *alone = host_new(n_out * sizeof(float));
    uint32_t last = n_rows - 1;
    double limit = limit_of(type);
    char name[100], at[60];

    snprintf(at, sizeof(at), "%s %ux%u, %u rows", tensor_format((uint32_t)type)->name, n_out, n_in,
             n_rows);
    multiply(&w, &in, n_rows, WIDE, wide);
    snprintf(name, sizeof(name), "wide %s", at);
    report_check(name, error_of(&w, in.x, MIN(n_rows, 4u), wide, limit), limit);
    if (multiplies_codes(type)) {
        snprintf(name, sizeof(name), "wide, of codes, %s", at);
        report_check(name, error_of(&w, in.coded, MIN(n_rows, 4u), wide, 1e-3), 1e-3);
    }
    for (enum kernel k = SHARING; k <= WGMMA_JOINING; k++) {
        if ((shares(k) && w.m.n_units < TILE_SEGMENTS) || !multiply(&w, &in, n_rows, k, narrow))
            continue;
        snprintf(name, sizeof(name), "%s = wide %s", kernel_name[k], at);
        report_check(name, differs(name, narrow, wide, n_rows, n_out), 0);
    }
    if (n_rows <= MATVEC_ROWS) {
        multiply(&w, &in, n_rows, VEC, narrow);
        snprintf(name, sizeof(name), "matvec %s", at);
        report_check(name, error_of(&w, in.x, MIN(n_rows, 4u), narrow, limit), limit);
        snprintf(name, sizeof(name), "wide = vec %s", at);
        report_check(name, differs(name, wide, narrow, n_rows, n_out), 0);
    }
    if (n_rows <= MATVEC_ROWS && device.made_for == 90) {
        multiply(&w, &in, n_rows, DRY, narrow);
        snprintf(name, sizeof(name), "dry = wide %s", at);
        report_check(name, differs(name, narrow, wide, n_rows, n_out), 0);
    }
    struct inputs one = make_inputs(1, n_in, last);
    multiply(&w, &one, 1, VEC, alone);
    snprintf(name, sizeof(name), "row alone %s", at);
    report_check(name, differs(name, wide + (size_t)last * n_out, alone, 1, n_out), 0);
    drop_inputs(&one);
    drop_inputs(&in);
    drop_weights(&w);
    free(narrow);
    free(wide);
    free(alone);
}

/* Computes a product from rows of f32 on the device, by pack and matvec or by matvec_norm: @n_rows
 * rows of which @count exist. */
static void multiply_norm(const struct weights_on *w, const struct pack_args *norm, uint32_t n_rows,
                          const uint32_t *count, bool own, float *out) {
    size_t bytes = (size_t)n_rows * w->m.n_out * sizeof(float);
    struct matvec_norm_args a = {.product = {.m = {w->m},
                                             .x = norm->packed,
                                             .scale = norm->scale,
                                             .count = count,
                                             .n_mats = 1,
                                             .n_rows = n_rows,
                                             .n_blocks = norm->n_padded / 16,
                                             .n_splits = 1},
                                 .norm = *norm};

    a.product.m[0].y = device_new(bytes);
    must(api->fill(a.product.m[0].y, 0xFF, bytes, stream), "cudaMemset");
    if (!own) {
        launch(kernel_pack, n_rows, 1, PACK_THREADS, norm, "pack");
        launch_matmul(&a.product, false);
    } else {
        uint32_t packed = matvec_norm_bytes(n_rows, norm->n_padded, planes());
        uint32_t stage = tile_stage_bytes(w->m.format), tiles = w->m.n_row_tiles;
        struct matvec_way way = matvec_way(&device, n_rows, stage, tiles, packed);

        a.product.stage_bytes = stage;
        a.product.n_tiles = tiles;
        a.product.n_stages = way.n_stages;
        a.product.x = NULL;
        a.product.scale = a.norm.scale = NULL;
        a.norm.packed = NULL;
        must(api->launch(kernel_matvec_norm, way.n_blocks, 1, CUDA_THREADS, way.shared, &a, false,
                         stream),
             "matvec_norm");
    }
    fetch(out, a.product.m[0].y, bytes);
    api->release(a.product.m[0].y);
}

/* Checks that matvec_norm has the bits of pack and matvec: norms of one row and of two, rows that
 * do not exist, rows without a norm, and static scales. */
static void check_own_rows_of(const struct weights_on *w, const char *what) {
    static const struct {
        uint32_t n_rows, count, kind;
        float fixed;
    } cases[] = {{1, 1, PACK_NORM, 0},  {2, 2, PACK_NORM, 0}, {2, 1, PACK_NORM, 0},
                 {2, 2, PACK_PLAIN, 0}, {1, 1, PACK_NORM, 4}, {2, 2, PACK_NORM, 0.5f}};
    uint32_t n_out = w->m.n_out, n_in = w->n_in, padded = (n_in + 63) / 64 * 64;
    float *x = host_new(3 * n_in * sizeof(float)), *two[2];

    for (uint32_t i = 0; i < 2; i++)
        two[i] = host_new(2 * n_out * sizeof(float));
    rng.state = n_in;
    fill_floats(x, 3 * n_in);
    x[n_in + 1] *= 1000; /* the rows have different scales */
    float *on = device_of(x, 3 * n_in * sizeof(float));
    struct pack_args norm = {.x = on,
                             .weight = on + 2 * n_in,
                             .packed = device_new((size_t)8 * padded * 2 * planes()),
                             .scale = device_new(2 * sizeof(float)),
                             .n = n_in,
                             .n_padded = padded,
                             .eps = 1e-5f};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint32_t *count = device_of(&cases[i].count, sizeof(uint32_t));
        char name[100];

        snprintf(name, sizeof(name), "matvec_norm %s %ux%u, case %zu", what, n_out, n_in, i);
        norm.kind = cases[i].kind;
        norm.fixed = cases[i].fixed;
        for (uint32_t own = 0; own < 2; own++)
            multiply_norm(w, &norm, cases[i].n_rows, count, own, two[own]);
        report_check(name, differs(name, two[1], two[0], cases[i].count, n_out), 0);
        api->release(count);
    }
    api->release(norm.packed);
    api->release(norm.scale);
    api->release(on);
    free(two[0]);
    free(two[1]);
    free(x);
}

static void check_own_rows(enum tensor_type type, uint32_t n_out, uint32_t n_in) {
    struct weights_on w = make_weights(type, n_out, n_in);

    check_own_rows_of(&w, tensor_format((uint32_t)type)->name);
    drop_weights(&w);
}

/* Checks a matrix of groups in all kernels: the bits are those of its weights in tiles of Q5_0. */
static void check_groups(uint32_t n_out, uint32_t n_in, uint32_t n_rows) {
    struct inputs in = make_inputs(n_rows, n_in, 0);
    size_t n = (size_t)n_rows * n_out;
    float *own = host_new(n * sizeof(float)), *five = host_new(n * sizeof(float));
    double limit = limit_of(TENSOR_Q5_0);
    struct weights_on w[] = {make_groups(TILE_G4, n_out, n_in),
                             make_groups(TILE_Q5_0, n_out, n_in)};
    char name[100], at[60];

    snprintf(at, sizeof(at), "groups %ux%u, %u rows", n_out, n_in, n_rows);
    for (enum kernel k = VEC; k <= WGMMA_JOINING; k++) {
        bool few = k == VEC || k == DRY;

        if (few && (n_rows > MATVEC_ROWS || (k == DRY && device.made_for != 90)))
            continue;
        if (shares(k) && w->m.n_units < TILE_SEGMENTS)
            continue;
        if (!multiply(&w[0], &in, n_rows, k, own) || !multiply(&w[1], &in, n_rows, k, five))
            continue;
        snprintf(name, sizeof(name), "%s as in Q5_0, %s", kernel_name[k], at);
        report_check(name, differs(name, own, five, n_rows, n_out), 0);
    }
    multiply(&w[0], &in, n_rows, WIDE, own);
    snprintf(name, sizeof(name), "wide %s", at);
    report_check(name, error_of(w, in.x, MIN(n_rows, 4u), own, limit), limit);
    check_own_rows_of(w, "groups");
    drop_weights(&w[0]);
    drop_weights(&w[1]);
    drop_inputs(&in);
    free(own);
    free(five);
}

/* 33 outputs are no whole rows of tiles; 9 units are no multiple of the segments. */
static void check_all_groups(const void *arg) {
    open_device();
    check_groups(40, 256, 1);
    check_groups(33, 576, 10);
    check_groups(40, 192, 70);
    check_groups(24, 576, 130);
    if (*(const bool *)arg)
        return;
    check_groups(200, 4096, 8);
    check_groups(6160, 1024, 16);
    check_groups(136, 2304, 130);
    check_groups(512, 11008, 300);
}

struct matrix_case {
    enum tensor_type type;
    bool tiny;
};

static void check_type(const void *arg) {
    const struct matrix_case *c = arg;

    open_device();
    check_matrix(c->type, 40, 256, c->tiny ? 10 : 3);
    check_own_rows(c->type, 40, 256);
    if (c->type == TENSOR_Q8_0 || c->type == TENSOR_MXFP4) {
        check_matrix(c->type, 33, 96, 70);
        check_own_rows(c->type, 33, 96);
    }
    /* nine units in eight segments, and rows for two blocks */
    if (c->type == TENSOR_Q4_K || c->type == TENSOR_F16 || c->type == TENSOR_IQ2_S)
        check_matrix(c->type, 24, c->type == TENSOR_F16 ? 576 : 2304, 130);
    /* the longest rows */
    if (c->type == TENSOR_Q4_K || c->type == TENSOR_Q6_K)
        check_own_rows(c->type, 24, MATVEC_NORM_COLUMNS);
    if (c->tiny)
        return;
    check_matrix(c->type, 200, 4096, 8);
    check_matrix(c->type, 100, 12288, 9);
    check_matrix(c->type, 6160, 1024, 16);
    check_matrix(c->type, 136, 2304, 130);
}

/* Checks the last rows of a matrix of 5 GiB against those rows as a matrix of their own. */
static void check_beyond_4g(const void *arg) {
    enum { N_IN = 16384, N_OUT = 163840 };
    struct weights_on w = make_weights(TENSOR_F16, TILE_ROWS, N_IN), all = w;
    struct inputs in = make_inputs(20, N_IN, 0);
    size_t bytes = tile_matrix_bytes(TILE_F16, N_OUT, N_IN), n = (size_t)20 * N_OUT;
    uint8_t *tiles = device_new(bytes), *piece = host_new(w.bytes);
    float *few = host_new(20 * TILE_ROWS * sizeof(float)), *many = host_new(n * sizeof(float));
    uint32_t wrong = 0;

    fetch(piece, w.m.tiles, w.bytes);
    must(api->fill(tiles, 0, bytes, stream), "fill");
    must(api->copy(tiles + bytes - w.bytes, piece, w.bytes, CUDA_TO_DEVICE, stream), "copy");
    all.m.tiles = tiles;
    all.m.n_out = N_OUT;
    all.m.n_row_tiles = N_OUT / TILE_ROWS;
    for (int wide = 0; wide < 2; wide++) {
        uint32_t n_rows = wide ? 20 : 16;

        multiply(&w, &in, n_rows, wide ? WIDE : VEC, few);
        multiply(&all, &in, n_rows, wide ? WIDE : VEC, many);
        for (uint32_t i = 0; i < n_rows * TILE_ROWS; i++)
            wrong +=
                few[i] != many[(size_t)(i / TILE_ROWS + 1) * N_OUT - TILE_ROWS + i % TILE_ROWS];
    }
    report_check("weights beyond 4 GiB", wrong, 0);
}

static void check_big(const void *arg) {
    open_device();
    check_beyond_4g(arg);
}

/* Checks a launch of matvec with matrices of two formats, a block for each row tile, bit for bit
 * against each matrix alone. On Ada it prefetches all of both. */
static void check_two_formats(const void *arg) {
    static const enum tensor_type types[] = {TENSOR_Q4_K, TENSOR_Q6_K};
    const uint32_t n_in = 2048, n_rows = 3;

    open_device();
    struct inputs in = make_inputs(n_rows, n_in, 0);
    struct weights_on w[2];
    struct matmul_args a = {.x = in.packed,
                            .scale = in.scale,
                            .n_mats = 2,
                            .n_rows = n_rows,
                            .n_blocks = n_in / 16,
                            .n_splits = 1};

    for (int i = 0; i < 2; i++) {
        w[i] = make_weights(types[i], i ? 24 : 40, n_in);
        a.m[i] = w[i].m;
        a.m[i].y = device_new((size_t)n_rows * w[i].m.n_out * sizeof(float));
        a.n_tiles += w[i].m.n_row_tiles;
        a.stage_bytes = MAX(a.stage_bytes, tile_stage_bytes(w[i].m.format));
        a.ahead[i] = (struct ahead){w[i].m.tiles, (uint32_t)w[i].bytes};
    }
    struct matvec_way way = matvec_way(&device, n_rows, a.stage_bytes, a.n_tiles, 0);
    a.n_stages = way.n_stages;
    must(api->launch(kernel_matvec, a.n_tiles, 1, CUDA_THREADS, way.shared, &a, false, stream),
         "matvec");
    for (int i = 0; i < 2; i++) {
        size_t n = (size_t)n_rows * w[i].m.n_out;
        float *beside = host_new(n * sizeof(float)), *alone = host_new(n * sizeof(float));

        fetch(beside, a.m[i].y, n * sizeof(float));
        multiply(&w[i], &in, n_rows, VEC, alone);
        report_check("two formats", differs("two formats", beside, alone, n_rows, w[i].m.n_out), 0);
        api->release(a.m[i].y);
        drop_weights(&w[i]);
        free(beside);
        free(alone);
    }
    drop_inputs(&in);
}

static const enum tensor_type matrix_types[] = {
    TENSOR_F32,   TENSOR_F16,     TENSOR_BF16,   TENSOR_Q4_0,   TENSOR_Q4_1,    TENSOR_Q5_0,
    TENSOR_Q5_1,  TENSOR_Q8_0,    TENSOR_Q2_K,   TENSOR_Q3_K,   TENSOR_Q4_K,    TENSOR_Q5_K,
    TENSOR_Q6_K,  TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4,   TENSOR_NVFP4,
    TENSOR_IQ1_S, TENSOR_IQ1_M,   TENSOR_IQ2_XS, TENSOR_IQ2_S,  TENSOR_IQ3_XXS, TENSOR_IQ3_S,
    TENSOR_TQ1_0, TENSOR_TQ2_0};

static void check_matrices(bool tiny) {
    char name[60];

    for (size_t i = 0; i < ARRAY_SIZE(matrix_types); i++) {
        snprintf(name, sizeof(name), "matrices %s", tensor_format((uint32_t)matrix_types[i])->name);
        report_alone(name, 60, check_type, &(struct matrix_case){matrix_types[i], tiny});
    }
    report_alone("matrices Q4_K, Q6_K", 60, check_two_formats, NULL);
    report_alone("matrices of groups", 60, check_all_groups, &tiny);
    if (!tiny)
        report_alone("weights beyond 4 GiB", 60, check_big, NULL);
}
