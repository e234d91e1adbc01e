/*
 * kernels - every kernel of the CUDA backend on the device that is there, against double precision,
 * and timed.
 *
 * usage: kernels [--tiny | --bandwidth | --time | --one NAME | --hold | --help]
 * Inputs are random with outliers, outputs are poisoned with NaN before each run. --tiny: small
 * shapes only (the emulator, compute-sanitizer). --bandwidth: prints the GB/s that reading reaches.
 * --time: how long the matrix kernels take over weights that do not fit the cache, beside what
 * reading them takes. --one NAME: a few launches of one kernel on the shapes of an 8B model, for a
 * profiler. --hold: keeps a context until it is ended: others come up faster beside it.
 */

#include <math.h>
#include <string.h>
#include "base/rng.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/kernels.h"
#include "engine/quant.h"
#include "engine/sampler.h"
#include "tests/gpu/bandwidth.h"
#include "tests/gpu/describe.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/report.h"
#include "tests/gpu/sampling.h"

/* Activations: one in a hundred eight times as large. */
static void fill_floats(float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = gauss() * (rng_below(&rng, 100) ? 1.0f : 8.0f);
}

/* Random blocks with scales around 2^-6; every other bit is random. */
static void fill_blocks(const struct tensor_format *f, uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++, p += f->block_bytes) {
        uint32_t at[2] = {0, 0};
        uint16_t h = mx_float_to_half((float)(0.5 + rng_unit(&rng)) * 0x1p-6f);

        if (f->block == 1) {
            float x = gauss();
            uint32_t bits = f->type == TENSOR_F32    ? mx_bits_of(x)
                            : f->type == TENSOR_BF16 ? mx_bits_of(x) >> 16
                                                     : mx_float_to_half(x);
            memcpy(p, &bits, f->block_bytes);
            continue;
        }
        for (uint32_t k = 0; k < f->block_bytes; k++)
            p[k] = (uint8_t)(rng_next(&rng) >> 40);
        switch (f->type) {
        case TENSOR_MXFP4:
            p[0] = (uint8_t)(121 + p[0] % 3);
            continue;
        case TENSOR_NVFP4:
            for (int k = 0; k < 4; k++)
                p[k] = (uint8_t)(p[k] % 0x30); /* some are subnormal */
            continue;
        case TENSOR_Q2_K:
            at[0] = 80, at[1] = 82;
            break;
        case TENSOR_Q3_K:
            at[0] = at[1] = 108;
            break;
        case TENSOR_TQ1_0:
            at[0] = at[1] = 52;
            break;
        case TENSOR_TQ2_0:
            at[0] = at[1] = 64;
            break;
        case TENSOR_IQ1_M: /* a half in four pieces, above the scales */
            for (int k = 0; k < 4; k++)
                p[49 + 2 * k] = (uint8_t)((p[49 + 2 * k] & 0x0F) | (h >> (4 * k) & 15) << 4);
            continue;
        case TENSOR_Q6_K:
            at[0] = at[1] = 208;
            break;
        case TENSOR_Q4_1:
        case TENSOR_Q5_1:
        case TENSOR_Q4_K:
        case TENSOR_Q5_K:
            at[1] = 2;
            break;
        default:
            break;
        }
        memcpy(p + at[0], &h, 2);
        memcpy(p + at[1], &h, 2);
    }
}

/* -- matrices ---------------------------------------------------------------------------------- */

struct weights_on {
    struct matrix m;
    uint32_t n_in;
    struct tile_grids *grids;
    float *value; /* host [n_out][n_in] */
    size_t bytes;
};

static void scale_tiles(struct matrix *m, uint8_t *tiles, float most) {
    uint32_t n = m->n_units * m->n_row_tiles;
    struct scale_args a = {tiles, m->format, n, tile_unit(m->format, most)};

    launch(kernel_scale_tiles, (n + 7) / 8, 1, CUDA_THREADS, &a, "scale_tiles");
    must(api->stream_wait(stream), "scale_tiles");
    m->inverse = tile_power_of_two(-a.unit);
}

static struct weights_on make_weights(enum tensor_type type, uint32_t n_out, uint32_t n_in) {
    const struct tensor_format *f = tensor_format((uint32_t)type);
    size_t row = n_in / f->block * f->block_bytes;
    struct weights_on w = {.n_in = n_in};
    uint8_t *raw = host_new(n_out * row);
    struct repack_found found = {0}, *found_on = device_of(&found, sizeof(found));
    struct blk_grids *grids = device_of(&quant_grids, sizeof(quant_grids));
    struct tile_grids *tile_grids = host_new(sizeof(*tile_grids));

    fill_blocks(f, raw, (size_t)n_out * (n_in / f->block));
    w.value = host_new((size_t)n_out * n_in * sizeof(float));
    quant_decode(type, raw, w.value, (size_t)n_out * n_in);
    tile_grids_fill(tile_grids, &quant_grids);
    w.grids = device_of(tile_grids, sizeof(*tile_grids));
    free(tile_grids);
    w.m = (struct matrix){.format = tile_format_of((uint32_t)type),
                          .n_out = n_out,
                          .grid = tile_grid_of((uint32_t)type, w.grids)};
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
    free(raw);
    return w;
}

static void drop_weights(struct weights_on *w) {
    api->release((void *)w->m.tiles);
    api->release(w->grids);
    free(w->value);
}

struct inputs {
    uint16_t *packed, *cores; /* cores: for wgmma */
    float *scale, *x;         /* x: host */
};

static struct inputs make_inputs(uint32_t n_rows, uint32_t n_in, uint32_t first) {
    struct inputs in = {.x = host_new((size_t)n_rows * n_in * sizeof(float))};
    uint32_t padded = (n_in + 63) / 64 * 64;
    float *x;

    for (uint32_t r = 0; r < n_rows; r++) { /* a row is what its number says */
        rng.state = (first + r) * 77777u + 5;
        fill_floats(in.x + (size_t)r * n_in, n_in);
    }
    x = device_of(in.x, (size_t)n_rows * n_in * sizeof(float));
    in.packed = device_new((size_t)(n_rows + 7) / 8 * 8 * padded * 2);
    in.scale = device_new(n_rows * sizeof(float));
    struct pack_args a = {.x = x,
                          .up = x,
                          .packed = in.packed,
                          .scale = in.scale,
                          .kind = PACK_PLAIN,
                          .n = n_in,
                          .n_padded = padded};
    launch(kernel_pack, n_rows, 1, PACK_THREADS, &a, "pack");
    in.cores = device_new((size_t)(n_rows + 7) / 8 * 8 * padded * 2);
    a.packed = in.cores;
    a.cores = true;
    launch(kernel_pack, n_rows, 1, PACK_THREADS, &a, "pack");
    must(api->stream_wait(stream), "pack");
    api->release(x);
    return in;
}

static void drop_inputs(struct inputs *in) {
    api->release(in->packed);
    api->release(in->cores);
    api->release(in->scale);
    free(in->x);
}

enum kernel { VEC, WIDE, SHARING, CUT, M128, WGMMA, WGMMA_64, WGMMA_SHARING, WGMMA_CUT };

static const char *const kernel_name[] = {"vec",   "wide",     "split",       "cut",      "m128",
                                          "wgmma", "wgmma 64", "wgmma split", "wgmma cut"};

#define SPLITS 4u /* blocks that share the segments */

static bool shares(enum kernel kernel) {
    return kernel == SHARING || kernel == WGMMA_SHARING;
}

/* Blocks that have half of a panel's segments. */
static bool cuts(enum kernel kernel) {
    return kernel == CUT || kernel == WGMMA_CUT;
}

/* What these need beside. Cut are the panels of the last round, or half of a single round's. */
static void divide(struct matmul_args *a, enum kernel kernel) {
    uint32_t n = (a->n_rows + 63) / 64 * ((a->m[0].n_row_tiles + 7) / 8);
    uint32_t most = (uint32_t)device.n_multiprocessors;

    a->n_splits = shares(kernel) ? SPLITS : 1;
    a->n_cut = !cuts(kernel) ? 0 : n > most ? n % most : (n + 1) / 2;
    a->arrived = device_new(n * sizeof(*a->arrived));
    a->sums = device_new(n * WIDE_SPLIT_BYTES);
    must(api->fill(a->arrived, 0, n * sizeof(*a->arrived), stream), "cudaMemset");
}

/* false: the device has no such kernel. */
static bool launch_kernel(enum kernel kernel, struct matmul_args *a) {
    if (kernel == M128)
        return launch_m128(a);
    if (kernel >= WGMMA)
        return launch_wgmma(a, kernel == WGMMA ? WGMMA_ROWS : MATMUL_COLUMNS);
    launch_matmul(a, kernel != VEC);
    return true;
}

/* Likewise. */
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
    if (shares(kernel) || cuts(kernel))
        divide(&a, kernel);
    bool done = launch_kernel(kernel, &a);
    fetch(out, a.m[0].y, bytes);
    api->release(a.m[0].y);
    if (shares(kernel) || cuts(kernel)) {
        api->release(a.arrived);
        api->release(a.sums);
    }
    return done;
}

/* |y - W x| / |W x| in double; beyond @limit the worst elements are said. */
static double error_of(const struct weights_on *w, const struct inputs *in, uint32_t n_rows,
                       const float *y, double limit) {
    double d = 0, norm = 0;
    size_t n = (size_t)n_rows * w->m.n_out;
    float *right = host_new(n * sizeof(*right));

    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t o = 0; o < w->m.n_out; o++) {
            const float *x = in->x + (size_t)r * w->n_in, *v = w->value + (size_t)o * w->n_in;
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

static void check_matrix(enum tensor_type type, uint32_t n_out, uint32_t n_in, uint32_t n_rows) {
    struct weights_on w = make_weights(type, n_out, n_in);
    struct inputs in = make_inputs(n_rows, n_in, 0);
    size_t n = (size_t)n_rows * n_out;
    float *narrow = host_new(n * sizeof(float)), *wide = host_new(n * sizeof(float));
    float *alone = host_new(n_out * sizeof(float));
    uint32_t last = n_rows - 1;
    char name[100], at[60];

    snprintf(at, sizeof(at), "%s %ux%u, %u rows", tensor_format((uint32_t)type)->name, n_out, n_in,
             n_rows);
    multiply(&w, &in, n_rows, WIDE, wide);
    snprintf(name, sizeof(name), "wide %s", at);
    report_check(name, error_of(&w, &in, MIN(n_rows, 4u), wide, 1e-3), 1e-3);
    for (enum kernel k = SHARING; k <= WGMMA_CUT; k++) {
        bool divides = shares(k) || cuts(k);

        if ((divides && w.m.n_units < TILE_SEGMENTS) || !multiply(&w, &in, n_rows, k, narrow))
            continue;
        snprintf(name, sizeof(name), "%s = wide %s", kernel_name[k], at);
        report_check(name, differs(name, narrow, wide, n_rows, n_out), 0);
    }
    if (n_rows <= MATVEC_ROWS) {
        multiply(&w, &in, n_rows, VEC, narrow);
        snprintf(name, sizeof(name), "matvec %s", at);
        report_check(name, error_of(&w, &in, MIN(n_rows, 4u), narrow, 1e-3), 1e-3);
        snprintf(name, sizeof(name), "wide = vec %s", at);
        report_check(name, differs(name, wide, narrow, n_rows, n_out), 0);
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

struct matrix_case {
    enum tensor_type type;
    bool tiny;
};

static void check_type(const void *arg) {
    const struct matrix_case *c = arg;

    open_device();
    check_matrix(c->type, 40, 256, c->tiny ? 10 : 3);
    if (c->type == TENSOR_Q8_0 || c->type == TENSOR_MXFP4)
        check_matrix(c->type, 33, 96, 70);
    /* nine units in eight segments, two blocks */
    if (c->type == TENSOR_Q4_K || c->type == TENSOR_F16 || c->type == TENSOR_IQ2_S)
        check_matrix(c->type, 24, c->type == TENSOR_F16 ? 576 : 2304, 130);
    if (c->tiny)
        return;
    check_matrix(c->type, 200, 4096, 8);
    check_matrix(c->type, 100, 12288, 9);
    check_matrix(c->type, 6160, 1024, 16);
    check_matrix(c->type, 136, 2304, 130);
}

/* The last rows of a matrix of 5 GiB. */
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

static void check_matrices(bool tiny) {
    static const enum tensor_type types[] = {
        TENSOR_F32,   TENSOR_F16,     TENSOR_BF16,   TENSOR_Q4_0,   TENSOR_Q4_1,    TENSOR_Q5_0,
        TENSOR_Q5_1,  TENSOR_Q8_0,    TENSOR_Q2_K,   TENSOR_Q3_K,   TENSOR_Q4_K,    TENSOR_Q5_K,
        TENSOR_Q6_K,  TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4,   TENSOR_NVFP4,
        TENSOR_IQ1_S, TENSOR_IQ1_M,   TENSOR_IQ2_XS, TENSOR_IQ2_S,  TENSOR_IQ3_XXS, TENSOR_IQ3_S,
        TENSOR_TQ1_0, TENSOR_TQ2_0};
    char name[60];

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        snprintf(name, sizeof(name), "matrices %s", tensor_format((uint32_t)types[i])->name);
        report_alone(name, 60, check_type, &(struct matrix_case){types[i], tiny});
    }
    if (!tiny)
        report_alone("weights beyond 4 GiB", 60, check_big, NULL);
}

#include "tests/gpu/last_block.h"

#include "tests/gpu/experts.h"
#include "tests/gpu/recurrent.h"

/* -- attention --------------------------------------------------------------------------------- */

struct attention {
    struct page_shape shape;
    uint32_t group, n_keys, n_rows; /* the last n_rows positions are queries */
    uint32_t window;                /* 0: none, and no sinks */
    uint32_t n_value; /* of latent attention: 512 or less, of keys that are their values; else 0 */
    bool bulk;        /* likewise, by attend_latent_bulk */
    float *q, *k, *v; /* host; k, v: [n_keys][n_head_kv][dim] as the page holds them */
    float *q_on, *turned_on, *sinks, *sinks_on; /* sinks: host; by head */
    uint32_t *table, *table_on;
    uint8_t *pages;
};

/* Writes all keys and values with kernel_store or store_latent; without rotation or norm. */
static void store_keys(struct attention *t) {
    uint32_t n = t->n_keys, n_kv = t->shape.n_head_kv, dim = t->shape.head_dim;
    uint32_t tokens = t->shape.page_tokens, n_pages = (n + tokens - 1) / tokens;
    size_t bytes = (size_t)n * n_kv * dim * sizeof(float);
    uint32_t *page = host_new(n * 4), *slot = host_new(n * 4);
    float one[2] = {1, 0};

    t->table = host_new(n_pages * 4);
    for (uint32_t i = 0; i < n_pages; i++)
        t->table[i] = (i * 7 + 3) % (n_pages * 8 + 1); /* all different */
    for (uint32_t i = 0; i < n; i++) {
        page[i] = t->table[i / tokens];
        slot[i] = i % tokens;
    }
    size_t all = (size_t)(n_pages * 8 + 1) * page_layer_bytes(&t->shape);
    t->pages = device_new(all);
    must(api->fill(t->pages, 0, all, stream), "fill");
    struct batch_head batch = {
        .n_rows = n, .row_page = {device_of(page, n * 4)}, .row_slot = device_of(slot, n * 4)};
    struct store_args a = {
        .batch = device_of(&batch, sizeof(batch)),
        .q = device_new((size_t)n * n_kv * t->group * dim * 4),
        .k = device_of(t->k, bytes),
        .v = device_of(t->v, bytes),
        .rope = device_of(one, 8),
        .pages = t->pages,
        .shape = t->shape,
        .n_head = n_kv * t->group,
        .n_kv = n_kv,
    };
    struct latent_args latent = {a, dim};
    if (t->n_value)
        launch(kernel_store_latent, n, (a.n_head + 8) / 8, CUDA_THREADS, &latent, "store");
    else
        launch(kernel_store, n, (a.n_head + n_kv + 7) / 8, CUDA_THREADS, &a, "store");
    must(api->stream_wait(stream), "store");
    const void *done[] = {a.q, a.k, a.v, a.rope, a.batch, batch.row_page[0], batch.row_slot};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release((void *)done[i]);
    free(page);
    free(slot);
}

/* Rounds k and v as the page does. */
static void round_keys(struct attention *t) {
    size_t n = (size_t)t->n_keys * t->shape.n_head_kv * t->shape.head_dim;
    float *const both[2] = {t->k, t->v};

    for (int w = 0; w < (t->n_value ? 1 : 2); w++)
        for (size_t i = 0; i < n; i += 32) {
            float *x = both[w] + i, max = 0;

            for (int j = 0; j < 32; j++)
                max = fmaxf(max, fabsf(x[j]));
            float d = mx_half_to_float(mx_float_to_half(max / 127.0f));
            for (int j = 0; j < 32; j++)
                x[j] = t->shape.q8 ? d * rintf(x[j] * (127.0f / max))
                                   : mx_half_to_float(mx_float_to_half(x[j]));
        }
}

enum {
    AT_ONCE,
    SPLIT,
    SPLIT_LAST,
    SPLIT_ROWS,
    MANY
}; /* LAST: merged by the last blocks; ROWS: by row; MANY: blocks of many queries */

static void run_attention(struct attention *t, int how, float *out) {
    bool packs = how == SPLIT_LAST || how == SPLIT_ROWS, split = packs || how == SPLIT;
    uint32_t few = t->n_value ? ATTN_LATENT : ATTN_QUERIES;
    uint32_t at_once = attend_kernel_for(&t->shape, how == MANY, t->bulk).queries;
    uint32_t n_kv = t->shape.n_head_kv, dim = t->shape.head_dim, n_queries = t->n_rows * t->group;
    uint32_t n_items = 0, n_merges = 0, n_partials = 0, n_chunks = (t->n_keys - 1) / ATTN_CHUNK + 1;
    uint32_t n_value = t->n_value ? t->n_value : dim, stride = n_value + 4;
    uint32_t n_blocks = (n_queries + ATTN_QUERIES - 1) / ATTN_QUERIES;
    struct attn_item *item = host_new(n_blocks * n_chunks * sizeof(*item));
    struct attn_merge *merge = host_new(n_blocks * sizeof(*merge));
    uint32_t *pos = host_new(t->n_rows * sizeof(*pos));
    size_t bytes = (size_t)n_queries * n_kv * n_value * sizeof(float);

    for (uint32_t r = 0; r < t->n_rows; r++)
        pos[r] = t->n_keys - t->n_rows + r;
    for (uint32_t q0 = 0; q0 < n_queries; q0 += at_once) {
        uint32_t n_q = MIN(n_queries - q0, at_once);

        merge[n_merges++] =
            (struct attn_merge){.q0 = q0, .n_q = n_q, .partial = n_partials, .n_chunks = n_chunks};
        for (uint32_t c = 0; c < (split ? n_chunks : 1); c++)
            item[n_items++] = (struct attn_item){.pos0 = t->n_keys - t->n_rows,
                                                 .q0 = q0,
                                                 .n_q = n_q,
                                                 .chunk = split ? (int32_t)c : -1,
                                                 .n_run = split,
                                                 .partial = n_partials++,
                                                 .n_chunks = n_chunks,
                                                 .merge = n_merges - 1,
                                                 .n_merges = split};
    }
    uint32_t n_wide =
        how == MANY && attend_kernel_for(&t->shape, true, t->bulk).leaves ? n_items : 0;
    if (n_wide && item[n_wide - 1].n_q <= few) /* what is left by the last block */
        n_wide--;
    struct batch_head batch = {
        .n_rows = t->n_rows,
        .n_items = n_items - n_wide,
        .n_wide_items = n_wide,
        .n_merges = n_merges,
        .item = device_of(item + n_wide, (n_items - n_wide) * sizeof(*item)),
        .wide_item = device_of(item, n_wide * sizeof(*item)),
        .merge = device_of(merge, n_merges * sizeof(*merge)),
        .page_table = {t->table_on},
        .pos = device_of(pos, t->n_rows * 4),
    };
    struct attend_args a = {
        .batch = device_of(&batch, sizeof(batch)),
        .q = t->q_on,
        .o = device_new(bytes),
        .partial = device_new((size_t)n_partials * n_kv * few * stride * 4),
        .pages = t->pages,
        .shape = t->shape,
        .n_head = n_kv * t->group,
        .group = t->group,
        .partial_stride = stride,
        .few = few,
        .n_value = n_value,
        .turned = t->turned_on,
        .turned_stride = dim - n_value,
        .scale = 1.0f / sqrtf((float)dim),
        .window = t->window ? t->window : UINT32_MAX,
        .sinks = t->window ? t->sinks_on : NULL,
    };
    struct merge_args m = {a.batch, a.partial, a.o,    a.n_head, n_kv,   t->group,
                           few,     n_value,   stride, a.window, a.sinks};
    size_t n_counts = n_merges * n_kv + t->n_rows;
    uint32_t *counts = device_new(n_counts * 4);
    struct packed_on packed = new_packed(t->n_rows, a.n_head * dim);

    must(api->fill(counts, 0, n_counts * 4, stream), "fill");
    const struct merge_rows_args by_row = {
        m, pack_to(&packed, PACK_PLAIN, a.o, NULL, NULL, a.n_head * dim)};
    if (how == SPLIT_LAST) {
        a.merged = counts;
        a.rows = counts + n_merges * n_kv;
        a.pack = by_row.pack;
    }

    for (int wide = how == MANY; wide >= 0; wide--) {
        struct attend_kernel k = attend_kernel_for(&t->shape, wide, t->bulk);

        must(api->launch(k.kernel, split ? (n_items + 1) / 2 : n_items + 3, n_kv, CUDA_THREADS,
                         k.shared, &a, false, stream),
             "attend");
        if (!k.leaves)
            break;
    }
    if (how == SPLIT)
        launch(kernel_merge, (n_merges + 1) / 2, n_kv, CUDA_THREADS, &m, "merge");
    if (how == SPLIT_ROWS)
        launch(kernel_merge_rows, t->n_rows + 1, 1, PACK_THREADS, &by_row, "merge_rows");
    fetch(out, a.o, bytes);
    if (packs) {
        struct packed_on apart = new_packed(t->n_rows, a.n_head * dim);
        struct pack_args p = pack_to(&apart, PACK_PLAIN, a.o, NULL, NULL, a.n_head * dim);

        launch_pack(&p, t->n_rows);
        report_check(how == SPLIT_LAST ? "last blocks pack what attention gives"
                                       : "rows that are merged are packed",
                     !same_packed(&apart, &packed), 0);
        drop_packed(&apart);
    }
    drop_packed(&packed);
    api->release(counts);
    api->release(a.o);
    api->release(a.partial);
    api->release((void *)a.batch);
    api->release((void *)batch.item);
    api->release((void *)batch.wide_item);
    api->release((void *)batch.pos);
    free(pos);
    api->release((void *)batch.merge);
    free(item);
    free(merge);
}

static double attention_error(const struct attention *t, const float *o, double limit) {
    uint32_t n_kv = t->shape.n_head_kv, dim = t->shape.head_dim, n_head = n_kv * t->group;
    uint32_t n_value = t->n_value ? t->n_value : dim;
    double *p = host_new(t->n_keys * sizeof(double)), d = 0, norm = 0;
    size_t n_values = (size_t)t->n_rows * n_head * n_value;
    float *right = host_new(n_values * sizeof(*right));

    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t h = 0; h < n_head; h++) {
            const float *q = t->q + ((size_t)r * n_head + h) * dim;
            uint32_t n = t->n_keys - t->n_rows + r + 1;
            uint32_t first = t->window && n > t->window ? n - t->window : 0;
            double max = t->window ? (double)t->sinks[h] : -1e30, sum = 0;

            for (uint32_t i = first; i < n; i++) {
                const float *k = t->k + ((size_t)i * n_kv + h / t->group) * dim;

                p[i] = 0;
                for (uint32_t j = 0; j < dim; j++)
                    p[i] += (double)q[j] * (double)k[j] / sqrt(dim);
                max = fmax(max, p[i]);
            }
            for (uint32_t i = first; i < n; i++)
                sum += p[i] = exp(p[i] - max);
            sum += t->window ? exp((double)t->sinks[h] - max) : 0;
            for (uint32_t j = 0; j < n_value; j++) {
                double x = 0;

                for (uint32_t i = first; i < n; i++)
                    x += p[i] / sum * (double)t->v[((size_t)i * n_kv + h / t->group) * dim + j];
                d += pow(x - (double)o[((size_t)r * n_head + h) * n_value + j], 2);
                norm += x * x;
                right[((size_t)r * n_head + h) * n_value + j] = (float)x;
            }
        }
    if (!(sqrt(d / norm) <= limit))
        describe_worst(o, right, n_values, (size_t)n_head * n_value, sqrt(norm / (double)n_values));
    free(right);
    free(p);
    return sqrt(d / norm);
}

/* That rows @o have the bits of @direct. */
static void check_same_bits(const char *what, const struct attention *t, const float *o,
                            const float *direct) {
    char name[100];

    snprintf(name, sizeof(name), "%s: same bits, dim %u, %u keys", what, t->shape.head_dim,
             t->n_keys);
    report_check(name,
                 differs(name, o, direct, t->n_rows,
                         (size_t)t->shape.n_head_kv * t->group * t->shape.head_dim),
                 0);
}

static void check_attention(struct page_shape shape, uint32_t group, uint32_t n_keys,
                            uint32_t n_rows, uint32_t window) {
    struct attention t = {
        .shape = shape, .group = group, .n_keys = n_keys, .n_rows = n_rows, .window = window};
    size_t n_kv = (size_t)n_keys * shape.n_head_kv * shape.head_dim;
    size_t n_q = (size_t)n_rows * shape.n_head_kv * group * shape.head_dim;
    float *direct = host_new(n_q * 4), *split = host_new(n_q * 4), *last = host_new(n_q * 4);
    float *wide = host_new(n_q * 4), *rows = host_new(n_q * 4);
    char name[100];

    t.q = host_new(n_q * 4);
    t.k = host_new(n_kv * 4);
    t.v = host_new(n_kv * 4);
    fill_floats(t.q, n_q);
    fill_floats(t.k, n_kv);
    fill_floats(t.v, n_kv);
    t.sinks = host_new(shape.n_head_kv * group * 4);
    fill_floats(t.sinks, shape.n_head_kv * group);
    t.sinks_on = device_of(t.sinks, shape.n_head_kv * group * 4);
    store_keys(&t);
    round_keys(&t);
    t.q_on = device_of(t.q, n_q * 4);
    t.table_on = device_of(t.table, (n_keys + shape.page_tokens - 1) / shape.page_tokens * 4);
    run_attention(&t, AT_ONCE, direct);
    run_attention(&t, SPLIT, split);
    run_attention(&t, SPLIT_LAST, last);
    run_attention(&t, SPLIT_ROWS, rows);
    run_attention(&t, MANY, wide);
    snprintf(name, sizeof(name), "attention dim %u, group %u, %u keys, %u rows%s%s", shape.head_dim,
             group, n_keys, n_rows, shape.q8 ? ", q8_0" : "", window ? ", window, sinks" : "");
    report_check(name, attention_error(&t, direct, 1e-3), 1e-3);
    check_same_bits("attention split", &t, split, direct);
    check_same_bits("last blocks merge", &t, last, direct);
    check_same_bits("merged by row", &t, rows, direct);
    check_same_bits("attention wide", &t, wide, direct);
    api->release(t.q_on);
    api->release(t.sinks_on);
    api->release(t.table_on);
    api->release(t.pages);
    free(t.sinks);
    free(t.q);
    free(t.k);
    free(t.v);
    free(t.table);
    free(direct);
    free(split);
    free(last);
    free(wide);
    free(rows);
}

struct attention_case {
    struct page_shape shape;
    uint32_t group, n_keys, n_rows, window;
};

static void check_attention_case(const void *arg) {
    const struct attention_case *c = arg;

    open_device();
    check_attention(c->shape, c->group, c->n_keys, c->n_rows, c->window);
}

/* Values at and beyond what half precision holds stay finite in pages of 8 bits, too. */
static void check_large_values(const void *arg) {
    struct attention t = {.shape = {1, 64, 16, true, false}, .group = 2, .n_keys = 40, .n_rows = 2};
    size_t n_kv = (size_t)t.n_keys * 64, n_q = (size_t)t.n_rows * t.group * 64;
    float *o = host_new(n_q * 4);
    double worst = 0;

    open_device();
    t.q = host_new(n_q * 4);
    t.k = host_new(n_kv * 4);
    t.v = host_new(n_kv * 4);
    fill_floats(t.q, n_q);
    fill_floats(t.k, n_kv);
    for (size_t i = 0; i < n_kv; i++)
        t.v[i] = i % 64 < 32 ? 65504.0f : -1e9f;
    store_keys(&t);
    t.q_on = device_of(t.q, n_q * 4);
    t.table_on = device_of(t.table, (t.n_keys + 15) / 16 * 4);
    run_attention(&t, AT_ONCE, o);
    for (size_t i = 0; i < n_q; i++) {
        double d = fabs((double)o[i] / (i % 64 < 32 ? 65504.0 : -65504.0) - 1);

        worst = d <= worst ? worst : d; /* NaN too */
    }
    report_check("q8_0 pages keep the largest values finite", worst, 1e-3);
    void *const done[] = {t.q_on, t.table_on, t.pages};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release(done[i]);
    void *const held[] = {t.q, t.k, t.v, t.table, o};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

#include "tests/gpu/latent.h"
#include "tests/gpu/sharing.h"

static void check_attentions(bool tiny) {
    report_alone("large values, q8_0", 60, check_large_values, NULL);
    for (int q8 = 0; q8 < 2; q8++) {
        const struct attention_case cases[] = {
            {{2, 64, 16, q8, false}, 2, 300, 3, 0},
            {{1, 128, 32, q8, false}, 4, tiny ? 300 : 3000, tiny ? 21 : 5, 0},
            /* The first chunk is behind the window of some rows, some tiles are of all. */
            {{1, 64, 16, q8, false}, 3, 300, 9, 39},
            {{1, 512, 16, q8, false}, 2, tiny ? 280 : 1100, 3, 0},
            {{2, 256, 16, q8, false}, 3, tiny ? 280 : 700, tiny ? 18 : 27, 0},
            {{1, 320, 32, q8, false}, 2, 280, 23, 0},
            {{2, 128, 64, q8, false}, 8, 1025, 40, 0},
            {{1, 96, 32, q8, false}, 20, 513, 2, 0},
            {{8, 64, 32, q8, false}, 8, 4000, 70, 128},
            {{1, 64, 64, q8, false}, 8, 4000, 1, 128},
            {{2, 128, 32, q8, false}, 4, 1030, 40, 600},
            {{1, 256, 32, q8, false}, 4, 800, 5, 100},
        };

        for (size_t i = 0; i < (tiny ? 6 : ARRAY_SIZE(cases)); i++) {
            char name[60];

            snprintf(name, sizeof(name), "attention dim %u, group %u%s%s", cases[i].shape.head_dim,
                     cases[i].group, q8 ? ", q8_0" : "", cases[i].window ? ", window" : "");
            report_alone(name, 60, check_attention_case, &cases[i]);
        }
    }
}

/* -- times ------------------------------------------------------------------------------------- */

/* Bytes per second of reading 1 GiB; the best of nine. */
static double measure_bandwidth(void) {
    size_t bytes = (size_t)1 << 30;
    struct read_args a = {device_new(bytes), bytes, device_new(4)};
    double best = 1e9;

    for (int i = 0; i < 10; i++) {
        double start = report_now();

        for (int k = 0; k < 8; k++)
            launch(kernel_read_all, (uint32_t)device.n_multiprocessors * 8, 1, CUDA_THREADS, &a,
                   "read");
        must(api->stream_wait(stream), "read");
        double took = (report_now() - start) / 8;
        best = i > 0 && took < best ? took : best;
    }
    api->release((void *)a.data);
    api->release(a.out);
    return (double)bytes / best;
}

static void time_name(char name[80], enum tensor_type type, uint32_t n_out, uint32_t n_in,
                      uint32_t n_rows, enum kernel kernel) {
    snprintf(name, 80, "%s %ux%u, %u rows%s%s", tensor_format((uint32_t)type)->name, n_out, n_in,
             n_rows, kernel > WIDE ? ", " : "", kernel > WIDE ? kernel_name[kernel] : "");
}

/* The median of nine rounds over as many copies of the weights as fill 512 MiB. */
static void time_matrix(enum tensor_type type, uint32_t n_out, uint32_t n_in, uint32_t n_rows,
                        enum kernel kernel, double bandwidth) {
    struct weights_on w = make_weights(type, 256, n_in);
    size_t bytes = tile_matrix_bytes(w.m.format, n_out, n_in), one = w.bytes;
    uint32_t n_copies = (uint32_t)(((size_t)512 << 20) / bytes + 2);
    uint8_t *all = device_new(bytes * n_copies), *piece = host_new(one);
    struct inputs in = make_inputs(n_rows, n_in, 0);
    float *y = device_new((size_t)n_rows * n_out * 4);
    double took[9];
    char name[80];

    fetch(piece, w.m.tiles, one);
    for (size_t at = 0; at < bytes * n_copies; at += one)
        must(api->copy(all + at, piece, MIN(one, bytes * n_copies - at), CUDA_TO_DEVICE, stream),
             "copy");
    must(api->stream_wait(stream), "copy");
    /* One launch of them all: the host's own time for each would be as long as a small matrix
     * takes. The first one comes before: a kernel is loaded when it is launched for the first
     * time. */
    void *graph = NULL;
    struct matmul_args a = {.m = {w.m},
                            .x = kernel >= WGMMA ? in.cores : in.packed,
                            .scale = in.scale,
                            .n_mats = 1,
                            .n_rows = n_rows,
                            .n_blocks = n_in / 16,
                            .n_splits = 1};

    a.m[0].y = y;
    a.m[0].n_out = n_out;
    a.m[0].n_row_tiles = n_out / TILE_ROWS;
    if (shares(kernel) || cuts(kernel))
        divide(&a, kernel);
    for (uint32_t c = 0; c <= n_copies; c++) {
        if (c == 1)
            must(api->capture_begin(stream), "capture");
        a.m[0].tiles = all + (c > 0 ? c - 1 : 0) * bytes;
        launch_kernel(kernel, &a);
    }
    must(api->capture_end(stream, &graph), "capture");
    for (int i = 0; i < 9; i++) {
        double start = report_now();

        must(api->graph_launch(graph, stream), "graph");
        must(api->stream_wait(stream), "matmul");
        took[i] = (report_now() - start) / n_copies;
    }
    api->graph_free(graph);
    qsort(took, 9, sizeof(*took), compare_doubles);
    time_name(name, type, n_out, n_in, n_rows, kernel);
    report_time(name, took[4], (double)bytes, bandwidth);
    if (shares(kernel) || cuts(kernel)) {
        api->release(a.arrived);
        api->release(a.sums);
    }
    api->release(all);
    api->release(y);
    free(piece);
    drop_inputs(&in);
    drop_weights(&w);
}

struct time_case {
    enum tensor_type type;
    uint32_t n_out, n_in, n_rows;
    enum kernel kernel;
};

/* The most interesting first: shapes of an 8B model, then formats, then numbers of rows. */
static unsigned time_cases(struct time_case *c) {
    static const enum tensor_type types[] = {TENSOR_Q4_K,   TENSOR_Q6_K, TENSOR_Q8_0,
                                             TENSOR_Q5_K,   TENSOR_Q4_0, TENSOR_IQ4_NL,
                                             TENSOR_IQ4_XS, TENSOR_F16,  TENSOR_MXFP4};
    static const uint32_t few[] = {17, 24, 32, 48};
    static const struct {
        uint32_t n_out, n_in;
    } shapes[] = {{24576, 4096}, {4096, 4096}, {6144, 4096}, {4096, 12288}};
    unsigned n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        c[n++] = (struct time_case){TENSOR_Q4_K, shapes[i].n_out, shapes[i].n_in, 1, VEC};
    c[n++] = (struct time_case){TENSOR_Q6_K, 4096, 12288, 1, VEC};
    c[n++] = (struct time_case){TENSOR_Q6_K, 151936, 4096, 1, VEC};
    for (uint32_t rows = 16; rows <= 512; rows *= 2)
        c[n++] =
            (struct time_case){TENSOR_Q4_K, 24576, 4096, rows, rows > MATVEC_ROWS ? WIDE : VEC};
    for (size_t k = 0; k < ARRAY_SIZE(few); k++) /* blocks are few: how many multiprocessors idle */
        for (size_t i = 1; i < ARRAY_SIZE(shapes); i++)
            for (enum kernel w = WIDE; w <= SHARING; w++)
                c[n++] =
                    (struct time_case){TENSOR_Q4_K, shapes[i].n_out, shapes[i].n_in, few[k], w};
    for (uint32_t rows = 128; rows <= 512 && device.shared_bytes > m128_shared(TILE_Q4_K);
         rows *= 2)
        c[n++] = (struct time_case){TENSOR_Q4_K, 24576, 4096, rows, M128};
    bool wgmma = matmul_wgmma_built && device.major == 9;
    for (uint32_t rows = 128; rows <= 4096 && wgmma; rows *= 2)
        c[n++] = (struct time_case){TENSOR_Q4_K, 24576, 4096, rows, WGMMA};
    for (uint32_t rows = 32; rows <= 64 && wgmma; rows *= 2)
        for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
            c[n++] = (struct time_case){TENSOR_Q4_K, shapes[i].n_out, shapes[i].n_in, rows,
                                        i > 0 ? WGMMA_SHARING : WGMMA_CUT};
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        for (uint32_t rows = i > 0 ? 1 : 8; rows <= 8; rows += 7)
            c[n++] = (struct time_case){types[i], 24576, 4096, rows, VEC};
    return n;
}

enum { TIME_CASES = 64 };

static void time_all(const void *arg, unsigned first) {
    struct time_case cases[TIME_CASES];
    double bandwidth = report_bandwidth();

    (void)arg;
    open_device();
    unsigned n = time_cases(cases);
    if (n >= TIME_CASES)
        abort();
    for (unsigned i = first; i < n; i++) {
        char name[80];

        time_name(name, cases[i].type, cases[i].n_out, cases[i].n_in, cases[i].n_rows,
                  cases[i].kernel);
        report_row(i, 30, name);
        time_matrix(cases[i].type, cases[i].n_out, cases[i].n_in, cases[i].n_rows, cases[i].kernel,
                    bandwidth);
    }
    report_row(TIME_CASES - 1, 60, "times of sampling");
    time_samplings(bandwidth);
}

/* A few launches of @name on the shapes of an 8B model, for a profiler to look at. */
static void launch_one(const char *name) {
    static const struct {
        const char *name;
        enum kernel kernel;
        uint32_t n_rows;
    } products[] = {{"matvec", VEC, 1},
                    {"matmul_wide", WIDE, 64},
                    {"matmul_m128", M128, 512},
                    {"matmul_wgmma_64", WGMMA_SHARING, 64},
                    {"matmul_wgmma", WGMMA, 512}};

    open_device();
    for (size_t i = 0; i < ARRAY_SIZE(products); i++) {
        if (strcmp(name, products[i].name) != 0)
            continue;
        struct weights_on w = make_weights(TENSOR_Q4_K, 6144, 4096);
        struct inputs in = make_inputs(products[i].n_rows, 4096, 0);
        float *out = host_new((size_t)products[i].n_rows * 6144 * sizeof(*out));

        for (int k = 0; k < 3; k++)
            multiply(&w, &in, products[i].n_rows, products[i].kernel, out);
        free(out);
        drop_inputs(&in);
        drop_weights(&w);
        return;
    }
    check_attention((struct page_shape){8, 128, 32, false, false}, 4, 2048, 40,
                    0); /* all of attention */
}

/* Holds a context until it is ended: others are made in less time beside it. */
static void hold(void) {
    open_device();
    printf("held\n");
    fflush(stdout);
    for (;;)
        pause();
}

static void print_bandwidth(const void *arg) {
    open_device();
    double best = measure_bandwidth();

    printf("%.0f\n", best * 1e-9);
    if (report_json())
        fprintf(report_json(), "{\"device\": \"%s\", \"read_gb_s\": %g}\n", device.name,
                best * 1e-9);
}

static void check_sampling_alone(const void *arg) {
    open_device();
    check_sampling(*(const bool *)arg);
}

int main(int argc, char **argv) {
    bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;

    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf("usage: kernels [--tiny | --bandwidth | --time | --one NAME | --hold]\n");
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--bandwidth") == 0) {
        report_alone("bandwidth", 60, print_bandwidth, NULL);
        return report_counts()->n_failed ? 1 : 0;
    }
    if (argc > 1 && strcmp(argv[1], "--hold") == 0)
        hold();
    if (argc > 2 && strcmp(argv[1], "--one") == 0) {
        launch_one(argv[2]);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        report_rows("times", 30, TIME_CASES, time_all, NULL);
        return report_end("times");
    }
    check_matrices(tiny);
    check_attentions(tiny);
    check_latents(tiny);
    check_all_sharing(tiny);
    report_alone("last blocks", 60, check_last_block, &tiny);
    report_alone("experts", 60, check_expert_kernels, &tiny);
    report_alone("delta nets", 60, check_delta_kernels, &tiny);
    report_alone("short convolutions", 60, check_conv_kernels, &tiny);
    report_alone("sampling", 60, check_sampling_alone, &tiny);
    return report_end("kernels");
}
