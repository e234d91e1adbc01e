#pragma once

/* times - measures the kernels of products and of sampling, and prints the time of reading their
 * weights or logits beside each time. Part of kernels.c. */

/* Returns the bandwidth of reading 1 GiB in bytes per second, the best of nine runs. */
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

/* Writes the name of a time. */
static void time_name(char name[80], enum tensor_type type, uint32_t n_out, uint32_t n_in,
                      uint32_t n_rows, enum kernel kernel) {
    snprintf(name, 80, "%s %ux%u, %u rows%s%s", tensor_format((uint32_t)type)->name, n_out, n_in,
             n_rows, kernel > WIDE ? ", " : "", kernel > WIDE ? kernel_name[kernel] : "");
}

/* Measures a product: the median of nine rounds over so many copies of the weights that they fill
 * 512 MiB, more than the cache. */
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
    /* Makes one graph of all launches, because the host would take as long for a launch as the
     * device for a small matrix. One launch precedes the graph, because the first launch loads the
     * kernel. */
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
    if (shares(kernel))
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
    if (shares(kernel)) {
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

/* Writes the cases to @c, the most important first: the shapes of an 8B model with one row, then
 * numbers of rows and kernels, then formats. Returns their number, less than TIME_CASES. */
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
    for (size_t k = 0; k < ARRAY_SIZE(few); k++) /* too few blocks for all multiprocessors */
        for (size_t i = 1; i < ARRAY_SIZE(shapes); i++)
            for (enum kernel w = WIDE; w <= SHARING; w++)
                c[n++] =
                    (struct time_case){TENSOR_Q4_K, shapes[i].n_out, shapes[i].n_in, few[k], w};
    bool wgmma = matmul_wgmma_built && device.major == 9;
    for (uint32_t rows = 128; rows <= 4096 && wgmma; rows *= 2)
        c[n++] = (struct time_case){TENSOR_Q4_K, 24576, 4096, rows, WGMMA};
    for (uint32_t rows = 32; rows <= 64 && wgmma; rows *= 2)
        for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
            c[n++] = (struct time_case){TENSOR_Q4_K, shapes[i].n_out, shapes[i].n_in, rows,
                                        i > 0 ? WGMMA_SHARING : WGMMA_64};
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        for (uint32_t rows = i > 0 ? 1 : 8; rows <= 8; rows += 7)
            c[n++] = (struct time_case){types[i], 24576, 4096, rows, VEC};
    return n;
}

enum { TIME_CASES = 96 };

/* Measures the cases from @first on, then sampling. */
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
