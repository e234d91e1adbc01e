/* Tests that products of a row have the same bits whichever kernel computes them: matvec,
 * matmul_wide and matmul_wgmma, in steps of 1 to 2,048 rows, with and without split-K; and that the
 * way that is fastest on the device is used. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

enum { OWN = 33, COMPANY = 32, MOST_ROWS = 2048 };

static struct driver_seq *subject;
static uint64_t digest[OWN]; /* of its rows */

static void keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    if (s == subject)
        digest[pos] = out->digest;
}

/* Counts launches of products with more than a few rows: with split-K, and with sums left to
 * residual; with glu(gate, up) as epilogue, by matmul_wide and by wgmma; by wgmma with 64 rows in a
 * block, and with 128; by warps with roles, and with glu(gate, up). Those of few rows by clusters,
 * with gates, and those by matvec. */
static uint32_t n_split, n_left, n_gated[2], n_wgmma[2], n_roles, n_roles_gated;
static uint32_t n_cluster, n_cluster_gated, n_matvec;

static void count_products(const char *kernel, uint64_t number, void *args) {
    bool wgmma_64 = strcmp(kernel, "matmul_wgmma_64") == 0;

    if (wgmma_64 || strcmp(kernel, "matmul_wide") == 0) {
        n_split += ((const struct matmul_args *)args)->n_splits > 1;
        n_left += ((const struct matmul_args *)args)->leave;
    }
    bool wgmma = strncmp(kernel, "matmul_wgmma", 12) == 0;
    if (wgmma || strcmp(kernel, "matmul_wide") == 0)
        n_gated[wgmma] += ((const struct matmul_args *)args)->gated > 0;
    if (strncmp(kernel, "matmul_roles", 12) == 0) {
        const struct matmul_args *a = args;

        n_roles++;
        n_roles_gated += a->gated > 0;
        n_split += a->n_splits > 1;
        n_left += a->leave;
    }
    if (strncmp(kernel, "matvec_cluster", 14) == 0) {
        n_cluster++;
        n_cluster_gated += ((const struct matmul_args *)args)->gated > 0;
    } else if (strncmp(kernel, "matvec", 6) == 0) {
        n_matvec++;
    }
    n_wgmma[0] += wgmma_64;
    n_wgmma[1] += strcmp(kernel, "matmul_wgmma") == 0;
}

static struct driver_seq *add(struct driver *d, uint32_t n, uint64_t seed) {
    struct rng r = {seed};
    int32_t tokens[OWN];

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)rng_below(&r, d->info->n_vocab);
    struct driver_seq *s = driver_add(d, tokens, n, 1, NULL);
    cr_assert(s != NULL);
    return s;
}

/* The subject's prompt in steps of @n_rows; if it has fewer rows, in one step with other
 * prompts. */
static void run_rows(struct driver *d, uint32_t n_rows) {
    struct driver_part part[2 + MOST_ROWS / COMPANY];
    uint32_t n = 0;

    memset(digest, 0, sizeof(digest));
    subject = add(d, OWN, 8);
    subject->every_row = true;
    for (uint32_t left = MAX(n_rows, OWN) - OWN, k; left > 0; left -= k) {
        k = MIN(left, COMPANY);
        part[n] = (struct driver_part){add(d, k, 50 + n), k};
        n++;
    }
    part[n] = (struct driver_part){subject, OWN};
    if (n_rows < OWN)
        driver_prefill(d, subject, n_rows);
    else
        driver_step(d, part, n + 1);
    for (uint32_t i = 0; i <= n; i++)
        driver_drop(d, part[i].seq);
}

static void open_with(struct driver *d, const char *path, const char *wgmma,
                      int n_multiprocessors) {
    struct driver_opts o = {.backend = "cuda",
                            .path = path,
                            .n_pages = 300,
                            .max_rows = MOST_ROWS,
                            .max_wants = OWN + MOST_ROWS / COMPANY + 1,
                            .max_seqs = MOST_ROWS / COMPANY + 2,
                            .on_out = keep};
    struct err err = {0};

    setenv("WEFT_CUDA_WGMMA", wgmma, 1);
    fake_find()->n_multiprocessors = n_multiprocessors;
    fake_find()->on_launch = count_products;
    cr_assert(driver_open(d, &o, &err) == 0, "%s", err.message);
    n_roles = n_roles_gated = n_cluster = n_cluster_gated = n_matvec = 0;
    n_split = n_left = n_gated[0] = n_gated[1] = n_wgmma[0] = n_wgmma[1] = 0;
}

static void write_model(char path[64], uint32_t n_ff) {
    struct tiny_model m = {.type = TENSOR_Q8_0,
                           .n_layer = 1,
                           .n_embd = 64,
                           .n_ff = n_ff,
                           .n_vocab = 40,
                           .n_head = 1,
                           .n_head_kv = 1,
                           .head_dim = 32};

    tiny_model_temp(&m, path);
}

/* If a product has too few blocks for the device, several blocks share its segments (split-K). */
Test(cuda_products, shared_segments_are_the_same) {
    static const struct {
        const char *wgmma;
        int n_multiprocessors;
        uint32_t chunk, n_split, n_wgmma;
    } ways[] = {{"0", 132, 11, 0, 0},
                {"0", 1, OWN, 0, 0},
                {"0", 132, OWN, 1, 0},
                {"1", 1, OWN, 0, 5},
                {"1", 132, OWN, 1, 5}};
    uint64_t first[OWN];
    char path[64];

    write_model(path, 2048);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct driver d;

        open_with(&d, path, ways[i].wgmma, ways[i].n_multiprocessors);
        run_rows(&d, ways[i].chunk);
        driver_close(&d);
        cr_expect(n_split == ways[i].n_split, "way %zu: %u", i, n_split);
        cr_expect(n_wgmma[0] == ways[i].n_wgmma, "way %zu: %u", i, n_wgmma[0]);
        if (i == 0)
            memcpy(first, digest, sizeof(digest));
        cr_expect(memcmp(first, digest, sizeof(digest)) == 0, "way %zu", i);
    }
    unlink(path);
}

/* Returns a model of architecture @arch with one layer and 640 columns. */
static struct tiny_model one_layer_model(const char *arch) {
    return (struct tiny_model){.arch = arch,
                               .type = TENSOR_Q8_0,
                               .n_layer = 1,
                               .n_embd = 640,
                               .n_ff = 640,
                               .n_vocab = 40,
                               .n_head = 10,
                               .n_head_kv = 1,
                               .head_dim = 64};
}

/* If blocks share the segments of attention's output or of down, residual adds them up: with
 * biases, with norms after branches and without. */
Test(cuda_products, what_blocks_leave_is_added_up_behind) {
    static const struct {
        const char *name;
        /* gemma4's first layer has heads of half the size */
        uint32_t n_left;
    } archs[] = {{"qwen2", 2}, {"gemma4", 1}};
    /* The first case in steps of few rows, the second without. */
    static const char *const wgmma[] = {"0", "0", "0", "1"}, *const fuse[] = {"0", "0", "16384",
                                                                              "16384"};

    for (size_t k = 0; k < ARRAY_SIZE(archs); k++) {
        struct tiny_model m = one_layer_model(archs[k].name);
        uint64_t first[OWN];
        char path[64];

        tiny_model_temp(&m, path);
        for (size_t i = 0; i < ARRAY_SIZE(wgmma); i++) {
            struct driver d;

            setenv("WEFT_CUDA_FUSE", fuse[i], 1);
            open_with(&d, path, wgmma[i], 132);
            run_rows(&d, i ? OWN : 11);
            driver_close(&d);
            cr_expect(n_left == (i > 1 ? archs[k].n_left : 0), "%s, way %zu: %u", m.arch, i,
                      n_left);
            cr_expect(i > 1 ? n_gated[i == 3] > 0 : n_gated[0] == 0, "%s, way %zu", m.arch, i);
            if (i == 0)
                memcpy(first, digest, sizeof(digest));
            cr_expect(first[0] && memcmp(first, digest, sizeof(digest)) == 0, "%s, way %zu", m.arch,
                      i);
        }
        unlink(path);
    }
}

/* Warps with roles (WEFT_CUDA_ROLES=1) compute all products of 17 rows and more. */
Test(cuda_products, warps_with_roles_give_the_same_bits) {
    static const char *const archs[] = {"qwen2", "gemma4"};
    static const uint32_t sizes[] = {OWN, 17, 65, 97, 129};

    setenv("WEFT_CUDA_FUSE", "16384", 1);
    for (size_t k = 0; k < ARRAY_SIZE(archs); k++) {
        struct tiny_model m = one_layer_model(archs[k]);
        uint64_t first[OWN];
        char path[64];

        tiny_model_temp(&m, path);
        for (size_t i = 0; i <= ARRAY_SIZE(sizes); i++) {
            bool roles = i > 0, shares = roles && sizes[i - 1] <= 128;
            struct driver d;

            setenv("WEFT_CUDA_ROLES", i > 0 ? "1" : "0", 1);
            open_with(&d, path, "1", 132);
            run_rows(&d, i > 0 ? sizes[i - 1] : OWN);
            driver_close(&d);
            cr_expect_eq(n_roles > 0, roles, "%s, %zu: %u", m.arch, i, n_roles);
            cr_expect(!roles || n_roles_gated > 0, "%s, %zu", m.arch, i);
            cr_expect(!shares || (n_split > 0 && n_left > 0), "%s, %zu: %u, %u, %u", m.arch, i,
                      n_split, n_left, n_roles_gated);
            cr_expect(!roles || n_wgmma[0] + n_wgmma[1] == 0, "%s, %zu", m.arch, i);
            if (i == 0)
                memcpy(first, digest, sizeof(digest));
            cr_expect(first[0] && memcmp(first, digest, sizeof(digest)) == 0, "%s, %zu", m.arch, i);
        }
        unlink(path);
    }
    unsetenv("WEFT_CUDA_ROLES");
}

/* Clusters (WEFT_CUDA_CLUSTER=1) compute the products of 3 to 16 rows: in steps of 5, 8 and 16 rows
 * all but those of the rest of the prompt, in steps of 2 none. */
Test(cuda_products, rows_in_clusters_give_the_same_bits) {
    static const uint32_t sizes[] = {11, 3, 5, 8, 16, 2};
    uint64_t first[OWN];
    char path[64];

    write_model(path, 2048);
    setenv("WEFT_CUDA_FUSE", "1", 1);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        bool clusters = i > 0 && sizes[i] > 2;
        struct driver d;

        setenv("WEFT_CUDA_CLUSTER", i > 0 ? "1" : "0", 1);
        open_with(&d, path, "1", 4);
        run_rows(&d, sizes[i]);
        driver_close(&d);
        cr_expect_eq(n_cluster > 0, clusters, "%u rows: %u", sizes[i], n_cluster);
        cr_expect_eq(n_cluster_gated > 0, clusters, "%u rows: %u", sizes[i], n_cluster_gated);
        cr_expect(sizes[i] != 3 || n_matvec == 0, "%u", n_matvec);
        if (i == 0)
            memcpy(first, digest, sizeof(digest));
        cr_expect(first[0] && memcmp(first, digest, sizeof(digest)) == 0, "%u rows", sizes[i]);
    }
    unsetenv("WEFT_CUDA_CLUSTER");
    unlink(path);
}

/* More than 64 rows: gates and ups with formats of two kernels take two launches, and formats that
 * no kernel has stay with matmul_wgmma. */
Test(cuda_products, roles_of_many_rows_have_kernels_for_some_formats) {
    static const struct {
        enum tensor_type type, up;
        bool roles;
    } cases[] = {{TENSOR_Q8_0, TENSOR_Q4_K, true}, {TENSOR_Q4_0, TENSOR_Q4_0, false}};
    static const uint32_t sizes[] = {OWN, 97, 129};

    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        struct tiny_model m = {.arch = "qwen2",
                               .type = cases[k].type,
                               .up = cases[k].up,
                               .n_layer = 1,
                               .n_embd = 768,
                               .n_ff = 768,
                               .n_vocab = 40,
                               .n_head = 12,
                               .n_head_kv = 1,
                               .head_dim = 64};
        uint64_t first[OWN];
        char path[64];

        tiny_model_temp(&m, path);
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
            struct driver d;

            setenv("WEFT_CUDA_ROLES", i > 0 ? "1" : "0", 1);
            open_with(&d, path, "1", 132);
            run_rows(&d, sizes[i]);
            driver_close(&d);
            bool all = i > 0 && cases[k].roles;
            cr_expect(n_roles > 1 || !all, "%zu, %zu: %u", k, i, n_roles);
            cr_expect_eq(n_roles_gated, 0);
            cr_expect_eq(n_wgmma[0] + n_wgmma[1] > 0, !all, "%zu, %zu", k, i);
            if (i == 0)
                memcpy(first, digest, sizeof(digest));
            cr_expect(first[0] && memcmp(first, digest, sizeof(digest)) == 0, "%zu, %zu", k, i);
        }
        unlink(path);
    }
    unsetenv("WEFT_CUDA_ROLES");
}

Test(cuda_products, rows_are_the_same_in_steps_of_every_size) {
    static const uint32_t sizes[] = {8, 16, 17, 64, 65, 129, MOST_ROWS};
    uint64_t alone[OWN];
    struct driver d;
    char path[64];

    write_model(path, 96);
    open_with(&d, path, "0", 4);
    run_rows(&d, 1);
    driver_close(&d);
    memcpy(alone, digest, sizeof(digest));
    cr_expect(alone[0] != 0);
    open_with(&d, path, "1", 4);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        run_rows(&d, sizes[i]);
        for (uint32_t p = 0; p < OWN; p++)
            cr_expect(digest[p] == alone[p], "%u rows, position %u", sizes[i], p);
    }
    driver_close(&d);
    cr_expect(n_wgmma[0] > 0 && n_wgmma[1] > 0, "%u, %u", n_wgmma[0], n_wgmma[1]);
    /* Steps of 8 and 16 rows use none, steps of 17 rows the first one. */
    cr_expect(n_gated[1] == ARRAY_SIZE(sizes) - 2, "%u", n_gated[1]);
    unlink(path);
}

/* A device on which panels of @fast_rows rows are fast if @fast_splits blocks share one, in a
 * cluster with @joins. */
static struct product_times {
    uint32_t fast_rows, fast_splits;
    bool joins;
    /* launches of products of many rows */
    uint32_t n_fast, n_slow;
} device;

static bool is_fast(const char *kernel, const struct matmul_args *a) {
    uint32_t rows = strcmp(kernel, "matmul_wgmma") == 0 ? 128 : 64;
    bool joins = strcmp(kernel, "matmul_wgmma_join") == 0;

    return rows == device.fast_rows && a->n_splits == device.fast_splits && joins == device.joins;
}

static float us_of_products(const char *kernel, const void *args) {
    if (strncmp(kernel, "matmul", 6) != 0)
        return 1;
    return is_fast(kernel, args) ? 90 : 100;
}

static void count_fast(const char *kernel, uint64_t number, void *args) {
    if (strncmp(kernel, "matmul", 6) != 0)
        return;
    if (is_fast(kernel, args))
        device.n_fast++;
    else
        device.n_slow++;
}

/* The first step of each size times every way; later steps use the fastest, with the same bits. o
 * and down have too few columns for split-K. */
Test(cuda_products, the_fastest_way_is_taken) {
    static const struct {
        const char *wgmma, *times;
        /* of the second step's five products */
        uint32_t n_rows, fast_rows, fast_splits, n_fast;
        bool joins;
    } cases[] = {
        {"0", "1", OWN, 64, 1, 5, false}, {"0", "1", OWN, 64, 8, 3, false},
        {"1", "1", OWN, 64, 4, 3, false}, {"1", "1", OWN, 64, 4, 2, true}, /* not of gates */
        {"1", "1", 65, 64, 4, 2, true},   {"1", "1", 65, 128, 1, 5, false},
        {"1", "0", OWN, 128, 1, 0, false}};
    struct tiny_model m = {.type = TENSOR_Q8_0,
                           .n_layer = 1,
                           .n_embd = 512,
                           .n_ff = 64,
                           .n_vocab = 40,
                           .n_head = 2,
                           .n_head_kv = 1,
                           .head_dim = 64};
    uint64_t first[OWN];
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->us_of = us_of_products;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint64_t n_graphs = fake_find()->n_graph_launches;
        uint32_t n_timed = 0;
        struct driver d;

        device =
            (struct product_times){cases[i].fast_rows, cases[i].fast_splits, cases[i].joins, 0, 0};
        setenv("WEFT_CUDA_TIMES", cases[i].times, 1);
        open_with(&d, path, cases[i].wgmma, 132);
        fake_find()->on_launch = count_fast;
        for (int step = 0; step < 2; step++) {
            device.n_fast = device.n_slow = 0;
            run_rows(&d, cases[i].n_rows);
            if (step == 0)
                n_timed = device.n_fast + device.n_slow;
            if (step == 0 && i == 0)
                memcpy(first, digest, sizeof(digest));
            cr_expect(first[0] && memcmp(first, digest, sizeof(digest)) == 0, "%zu, %d", i, step);
        }
        driver_close(&d);
        uint32_t n = device.n_fast + device.n_slow;
        bool timed = cases[i].times[0] == '1';
        cr_expect(fake_find()->n_graph_launches > n_graphs, "%zu: trials are no part of graphs", i);
        cr_expect(timed ? n_timed > 2 * n : n_timed == n, "%zu: %u, then %u", i, n_timed, n);
        cr_expect(device.n_fast == cases[i].n_fast, "%zu: %u of %u", i, device.n_fast, n);
    }
    fake_find()->us_of = NULL;
    unlink(path);
}

/* If clusters share the segments of attention's output and of down, nothing is left to residual. */
Test(cuda_products, clusters_leave_no_sums_behind) {
    struct tiny_model m = one_layer_model("qwen2");
    uint64_t first[OWN];
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->us_of = us_of_products;
    for (int joins = 0; joins < 2; joins++) {
        struct driver d;

        device = (struct product_times){64, 4, joins, 0, 0};
        setenv("WEFT_CUDA_TIMES", "1", 1);
        open_with(&d, path, "1", 132);
        run_rows(&d, OWN); /* times them */
        n_left = n_split = 0;
        run_rows(&d, OWN);
        driver_close(&d);
        cr_expect_eq(n_left, joins ? 0 : 2);
        if (!joins)
            memcpy(first, digest, sizeof(digest));
        cr_expect(first[0] && memcmp(first, digest, sizeof(digest)) == 0, "%d", joins);
    }
    fake_find()->us_of = NULL;
    unlink(path);
}

/* The steps before the first request time the products and record the graphs: the first step of a
 * request is as the second one, with the bits of a device that was not warmed up. */
Test(cuda_products, a_device_that_serves_neither_times_nor_records) {
    static const uint32_t sizes[] = {1, 16, OWN, 65};
    struct tiny_model m = {.type = TENSOR_Q8_0,
                           .n_layer = 1,
                           .n_embd = 512,
                           .n_ff = 64,
                           .n_vocab = 40,
                           .n_head = 2,
                           .n_head_kv = 1,
                           .head_dim = 64};
    uint64_t cold[ARRAY_SIZE(sizes)][OWN];
    struct driver d;
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->us_of = us_of_products;
    setenv("WEFT_CUDA_TIMES", "1", 1);
    for (int warm = 0; warm < 2; warm++) {
        device = (struct product_times){64, 4, false, 0, 0};
        setenv("WEFT_CUDA_WARM", warm ? "1" : "0", 1);
        fake_find()->idle = true; /* what is timed need not be computed */
        open_with(&d, path, "1", 132);
        fake_find()->idle = false;
        fake_find()->on_launch = count_fast;
        uint64_t n_graphs = fake_find()->n_graphs;
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
            uint32_t n[2];

            for (int step = 0; step < 2; step++) {
                device.n_fast = device.n_slow = 0;
                run_rows(&d, sizes[i]);
                n[step] = device.n_fast + device.n_slow;
            }
            if (!warm)
                memcpy(cold[i], digest, sizeof(digest));
            cr_expect(memcmp(cold[i], digest, sizeof(digest)) == 0, "%u rows", sizes[i]);
            cr_expect(!warm || n[0] == n[1], "%u rows: %u, then %u", sizes[i], n[0], n[1]);
            cr_expect(sizes[i] != OWN || device.n_fast == 3, "%u", device.n_fast);
        }
        cr_expect((fake_find()->n_graphs == n_graphs) == warm, "%d", warm);
        driver_close(&d);
    }
    fake_find()->us_of = NULL;
    unlink(path);
}
