#pragma once

/* products_duo - checks matvec_duo bit for bit against matvec: all formats and numbers of rows,
 * matrices with an odd row tile, gates, rows that are packed, several matrices. Part of
 * kernels.c. */

/* A product of @n_mats matrices with the same rows, of which @count exist. */
struct duo_case {
    const struct weights_on *w;
    uint32_t n_mats, n_rows, count;
    bool gated, packs;
};

/* Launches the product as on two multiprocessors, so that blocks have several duos; on all, if a
 * block of this format has no room beside another one. */
static void duo_launch(struct matmul_args *a, bool duo) {
    struct cuda_device d = device;
    bool uniform = true;

    d.n_multiprocessors = 2;
    a->n_panels = matvec_duos(a);
    for (uint32_t i = 0; i < a->n_mats; i++) {
        a->stage_bytes = MAX(a->stage_bytes, tile_stage_bytes(a->m[i].format));
        a->n_tiles += a->m[i].n_row_tiles;
        uniform = uniform && a->m[i].format == a->m[0].format;
    }
    uint32_t n = duo ? a->n_panels : a->n_tiles - a->gated;
    struct matvec_way way = matvec_way(&d, a->n_rows, a->stage_bytes, n, 0);

    if (duo)
        way = matvec_duo_way(&d, a->n_rows, a->stage_bytes, n);
    if (way.n_blocks == 0)
        way = matvec_duo_way(&device, a->n_rows, a->stage_bytes, n);
    a->n_stages = way.n_stages;
    const void *kernel = duo ? matvec_duo_for(a->n_rows) : matvec_for(a->n_rows);
    must(api->launch(kernel, uniform ? way.n_blocks : n, 1, CUDA_THREADS, way.shared, a, false,
                     stream),
         duo ? "matvec_duo" : "matvec");
}

/* Computes the results to @out. Returns their bytes. */
static size_t duo_multiply(const struct duo_case *c, const struct inputs *in, bool duo,
                           uint8_t *out) {
    struct matmul_args a = {.x = in->packed,
                            .scale = in->scale,
                            .count = device_of(&c->count, sizeof(c->count)),
                            .n_mats = c->n_mats,
                            .n_rows = c->n_rows,
                            .n_blocks = (c->w->n_in + 63) / 64 * 4,
                            .n_splits = 1,
                            .gated = c->gated ? c->w->m.n_row_tiles : 0,
                            .glu = PACK_SILU,
                            .fixed = 0.5f};
    uint32_t n_y = c->gated ? 1 : c->n_mats;
    size_t n = 0, bytes[MATMUL_MATRICES];

    for (uint32_t i = 0; i < c->n_mats; i++) {
        a.m[i] = c->w[i].m;
        bytes[i] = (size_t)(c->packs ? MATVEC_ROWS : c->n_rows) * a.m[i].n_out * sizeof(float);
        a.m[i].y = device_new(bytes[i]);
        must(api->fill(a.m[i].y, 0xFF, bytes[i], stream), "cudaMemset");
    }
    if (c->packs) {
        a.packed = (uint16_t *)a.m[0].y;
        a.packed_scale = a.m[1].y;
    }
    duo_launch(&a, duo);
    for (uint32_t i = 0; i < (c->packs ? 2 : n_y); n += bytes[i++])
        fetch(out + n, a.m[i].y, bytes[i]);
    for (uint32_t i = 0; i < c->n_mats; i++)
        api->release(a.m[i].y);
    api->release((void *)a.count);
    return n;
}

static void duo_check(const char *what, const struct duo_case *c, const struct inputs *in) {
    size_t most = (size_t)3 * MATVEC_ROWS * 512 * sizeof(float), n;
    uint8_t *got = host_new(most), *want = host_new(most);
    char name[100];

    snprintf(name, sizeof(name), "duo = vec, %s, %u of %u rows, %u matrices%s%s", what, c->count,
             c->n_rows, c->n_mats, c->gated ? ", gates" : "", c->packs ? ", packed" : "");
    n = duo_multiply(c, in, true, got);
    if (duo_multiply(c, in, false, want) != n || n > most)
        abort();
    report_check(name, differs(name, (float *)got, (float *)want, 1, (uint32_t)n / 4), 0);
    free(got);
    free(want);
}

/* Nine row tiles are four duos and a row tile. @n_in: nine units in eight segments are uneven, five
 * leave warps without a segment. @all: also three matrices, and rows that are packed. */
static void duo_check_type(enum tensor_type type, uint32_t n_rows, uint32_t n_in, bool all) {
    const char *what = tensor_format((uint32_t)type)->name;
    struct weights_on w[] = {make_weights(type, 136, n_in), make_weights(type, 136, n_in),
                             make_weights(type, 64, n_in), make_weights(type, 64, n_in)};
    struct inputs in = make_inputs(n_rows, n_in, 0);

    duo_check(what, &(struct duo_case){w, 1, n_rows, n_rows, false, false}, &in);
    duo_check(what, &(struct duo_case){w, 2, n_rows, n_rows, true, false}, &in);
    if (all) {
        duo_check(what, &(struct duo_case){w, 3, n_rows, n_rows - 1, false, false}, &in);
        duo_check(what, &(struct duo_case){w + 2, 2, n_rows, n_rows, true, true}, &in);
    }
    drop_inputs(&in);
    for (size_t i = 0; i < ARRAY_SIZE(w); i++)
        drop_weights(&w[i]);
}

/* Matrices of two formats: a block has one duo. */
static void duo_check_mixed(uint32_t n_rows) {
    struct weights_on w[] = {make_weights(TENSOR_Q4_K, 56, 2048),
                             make_weights(TENSOR_Q8_0, 40, 2048)};
    struct inputs in = make_inputs(n_rows, 2048, 0);

    duo_check("Q4_K and Q8_0", &(struct duo_case){w, 2, n_rows, n_rows, false, false}, &in);
    drop_inputs(&in);
    drop_weights(&w[0]);
    drop_weights(&w[1]);
}

static void duo_check_one(const void *arg) {
    static const uint32_t rows[] = {3, 8, 9, 16};
    const struct matrix_case *c = arg;

    open_device();
    if (BYTES_FAMILY(device.made_for))
        return;
    uint32_t k = MAX(tile_k(tile_format_of((uint32_t)c->type)), 256u);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (!c->tiny || i == (uint32_t)c->type % 4 || c->type == TENSOR_Q4_K)
            duo_check_type(c->type, rows[i], (i < 2 ? 9 : 5) * k,
                           !c->tiny || c->type == TENSOR_Q4_K);
    if (c->type == TENSOR_Q4_K)
        duo_check_mixed(5);
}

static void check_duos(bool tiny) {
    char name[60];

    for (size_t i = 0; i < ARRAY_SIZE(matrix_types); i++) {
        snprintf(name, sizeof(name), "duos %s", tensor_format((uint32_t)matrix_types[i])->name);
        report_alone(name, 60, duo_check_one, &(struct matrix_case){matrix_types[i], tiny});
    }
}
