#pragma once

/*
 * last_block - what the last blocks of matvec and attention do, against the kernels that do it
 * otherwise: by bits, again and again with the same counts. Part of kernels.c.
 */

struct packed_on { /* rows on the device */
    uint16_t *packed;
    float *scale;
    size_t rows, columns; /* rounded up */
};

static struct packed_on new_packed(uint32_t n_rows, uint32_t n) {
    struct packed_on p = {.rows = (n_rows + 7) / 8 * 8, .columns = (n + 63) / 64 * 64};

    p.packed = device_new(p.rows * p.columns * 2);
    p.scale = device_new(p.rows * 4);
    return p;
}

static void drop_packed(struct packed_on *p) {
    api->release(p->packed);
    api->release(p->scale);
}

static bool same_on_device(const void *a, const void *b, size_t n) {
    uint8_t *x = host_new(n), *y = host_new(n);

    fetch(x, a, n);
    fetch(y, b, n);
    bool same = memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

static bool same_packed(const struct packed_on *a, const struct packed_on *b) {
    return same_on_device(a->packed, b->packed, a->rows * a->columns * 2) &&
           same_on_device(a->scale, b->scale, a->rows * 4);
}

static struct pack_args pack_to(const struct packed_on *p, enum pack_kind kind, const float *x,
                                const float *up, const float *weight, uint32_t n) {
    return (struct pack_args){.x = x,
                              .up = up,
                              .weight = weight,
                              .packed = p->packed,
                              .scale = p->scale,
                              .kind = kind,
                              .n = n,
                              .n_padded = (uint32_t)p->columns,
                              .eps = 1e-6f};
}

static void launch_pack(const struct pack_args *a, uint32_t n_rows) {
    launch(kernel_pack, n_rows, 1, PACK_THREADS, a, "pack");
}

/* Rows times @n matrices side by side. */
static struct matmul_args args_for(const struct inputs *in, uint32_t n_rows, uint32_t n_in,
                                   const struct weights_on *w, float *const y[], uint32_t n) {
    struct matmul_args a = {.x = in->packed,
                            .scale = in->scale,
                            .n_mats = n,
                            .n_rows = n_rows,
                            .n_blocks = (n_in + 63) / 64 * 4};

    for (uint32_t i = 0; i < n; i++) {
        a.m[i] = w[i].m;
        a.m[i].y = y[i];
        a.n_tiles += w[i].m.n_row_tiles;
        a.stage_bytes = MAX(a.stage_bytes, tile_stage_bytes(w[i].m.format));
    }
    return a;
}

static void launch_matvec(const struct matmul_args *a) {
    uint32_t tiles = a->n_tiles - a->gated;

    must(api->launch(matvec_for(a->n_rows), MIN(tiles, 2 * (uint32_t)device.n_multiprocessors), 1,
                     CUDA_THREADS, matvec_shared(a->stage_bytes), a, false, stream),
         "matvec");
}

/* silu(gate) up, and a projection with the norm behind it. */
static void check_packing(enum tensor_type type, uint32_t n_in, uint32_t n_out, uint32_t n_rows) {
    struct weights_on w[2] = {make_weights(type, n_out, n_in),
                              make_weights(TENSOR_Q6_K, n_out, n_in)};
    struct inputs in = make_inputs(n_rows, n_in, 3);
    size_t n = (size_t)n_rows * n_out;
    float *x = host_new(n * 4), *weight = host_new(n_out * 4);
    float *y[2] = {device_new(n * 4), device_new(n * 4)}, *h = device_new(n * 4);
    struct packed_on apart = new_packed(n_rows, n_out), last = new_packed(n_rows, n_out);
    uint32_t zero = 0, *arrived = device_of(&zero, 4), wrong = 0, wrong_norm = 0;
    char name[100];

    fill_floats(x, n);
    fill_floats(weight, n_out);
    float *weight_on = device_of(weight, n_out * 4);
    struct matmul_args a = args_for(&in, n_rows, n_in, w, y, 2);
    struct pack_args silu = pack_to(&apart, PACK_SILU, y[0], y[1], NULL, n_out);
    launch_matvec(&a);
    launch_pack(&silu, n_rows);
    a.gated = w[0].m.n_row_tiles;
    a.glu = PACK_SILU;
    a.m[0].y = h;
    a.finish = FINISH_PACK;
    a.arrived = arrived;
    a.pack = pack_to(&last, PACK_PLAIN, h, NULL, NULL, n_out);
    for (int i = 0; i < 20; i++) {
        must(api->fill(last.packed, 0xFF, last.rows * last.columns * 2, stream), "fill");
        launch_matvec(&a);
        wrong += !same_packed(&apart, &last);
    }
    for (int i = 0; i < 20; i++) {
        struct matmul_args p = args_for(&in, n_rows, n_in, w + 1, y, 1);
        struct pack_args norm = pack_to(&apart, PACK_NORM, y[0], NULL, weight_on, n_out);

        must(api->copy(y[0], x, n * 4, CUDA_TO_DEVICE, stream), "copy");
        must(api->copy(h, x, n * 4, CUDA_TO_DEVICE, stream), "copy");
        p.add = true;
        launch_matvec(&p);
        launch_pack(&norm, n_rows);
        p.m[0].y = h;
        p.finish = FINISH_PACK;
        p.arrived = arrived;
        p.pack = pack_to(&last, PACK_NORM, h, NULL, weight_on, n_out);
        launch_matvec(&p);
        wrong_norm += !same_packed(&apart, &last) || !same_on_device(y[0], h, n * 4);
    }
    snprintf(name, sizeof(name), "last block packs silu(gate) up: %u, %u rows", n_out, n_rows);
    report_check(name, wrong, 0);
    snprintf(name, sizeof(name), "last block packs a norm: %u, %u rows", n_out, n_rows);
    report_check(name, wrong_norm, 0);
    drop_packed(&apart);
    drop_packed(&last);
    drop_inputs(&in);
    for (int i = 0; i < 2; i++) {
        drop_weights(&w[i]);
        api->release(y[i]);
    }
    api->release(h);
    api->release(arrived);
    api->release(weight_on);
    free(x);
    free(weight);
}

/* q k v with heads rotated and stored. */
static void check_storing(bool q8, uint32_t n_in, uint32_t n_rows) {
    struct page_shape shape = {2, 64, 16, q8, false};
    uint32_t n_head = 6, wide[3] = {n_head * 64, 2 * 64, 2 * 64}, pos[16], page[16], slot[16];
    struct weights_on w[3];
    struct inputs in = make_inputs(n_rows, n_in, 9);
    float *y[2][3], rope[16 * 64], norm[64];
    size_t bytes = 4 * page_layer_bytes(&shape);
    uint32_t zeros[10] = {0}, *arrived = device_of(zeros, sizeof(zeros)), wrong = 0;
    uint8_t *pages[2] = {device_new(bytes), device_new(bytes)};
    char name[100];

    fill_floats(rope, 16 * 64);
    fill_floats(norm, 64);
    for (uint32_t r = 0; r < n_rows; r++) {
        pos[r] = r + 7;
        page[r] = 3 - pos[r] / 16;
        slot[r] = pos[r] % 16;
    }
    for (int i = 0; i < 3; i++) {
        w[i] = make_weights(i == 2 ? TENSOR_Q6_K : TENSOR_Q4_K, wide[i], n_in);
        for (int k = 0; k < 2; k++)
            y[k][i] = device_new((size_t)n_rows * wide[i] * 4);
    }
    struct batch_head batch = {.n_rows = n_rows,
                               .row_page = {device_of(page, n_rows * 4)},
                               .row_slot = device_of(slot, n_rows * 4)};
    struct store_args s = {.batch = device_of(&batch, sizeof(batch)),
                           .q_norm = device_of(norm, sizeof(norm)),
                           .rope = device_of(rope, sizeof(rope)),
                           .shape = shape,
                           .n_head = n_head,
                           .n_kv = shape.n_head_kv,
                           .n_rot = 64,
                           .neox = true,
                           .eps = 1e-6f};
    s.k_norm = s.q_norm;
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 2; k++) {
            struct matmul_args a = args_for(&in, n_rows, n_in, w, y[k], 3);

            must(api->fill(pages[k], 0, bytes, stream), "fill");
            s.q = y[k][0];
            s.k = y[k][1];
            s.v = y[k][2];
            s.pages = pages[k];
            a.finish = k ? FINISH_STORE : FINISH_NONE;
            a.arrived = arrived;
            a.store = s;
            launch_matvec(&a);
            if (k == 0)
                launch(kernel_store, n_rows, 1, CUDA_THREADS, &s, "store");
        }
        wrong += !same_on_device(pages[0], pages[1], bytes) ||
                 !same_on_device(y[0][0], y[1][0], (size_t)n_rows * wide[0] * 4);
    }
    snprintf(name, sizeof(name), "last blocks store heads: %u rows%s", n_rows, q8 ? ", q8_0" : "");
    report_check(name, wrong, 0);
    const void *done[] = {s.batch,        s.q_norm, s.rope,   batch.row_page[0],
                          batch.row_slot, pages[0], pages[1], arrived};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release((void *)done[i]);
    for (int i = 0; i < 3; i++) {
        drop_weights(&w[i]);
        api->release(y[0][i]);
        api->release(y[1][i]);
    }
    drop_inputs(&in);
}

static void check_last_block(const void *arg) {
    bool tiny = *(const bool *)arg;

    open_device();
    check_packing(TENSOR_Q4_K, 256, 80, 3);
    check_storing(false, 256, 5);
    if (tiny)
        return;
    check_storing(true, 4096, 16);
    check_packing(TENSOR_Q4_K, 4096, 12288, 1);
    check_packing(TENSOR_Q4_K, 4096, 4096, 4);
    check_packing(TENSOR_Q8_0, 1024, 9000, 16);
}
