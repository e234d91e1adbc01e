#pragma once

/*
 * last_block - heads that the last blocks of matvec store, against the kernel store(): by bits,
 * again and again with the same counts. Part of kernels.c.
 */

static bool same_on_device(const void *a, const void *b, size_t n) {
    uint8_t *x = host_new(n), *y = host_new(n);

    fetch(x, a, n);
    fetch(y, b, n);
    bool same = memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
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
            a.stores = k > 0;
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
    check_storing(false, 256, 5);
    if (tiny)
        return;
    check_storing(true, 4096, 16);
}
