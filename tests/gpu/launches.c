#include "tests/gpu/launches.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/products/kernels_norm.h"

struct launches weft_launches;

static bool launch_begins(const struct launch_record *r, const char *start) {
    return strncmp(r->name, start, strlen(start)) == 0;
}

/* Returns the bytes that the blocks of matvec_norm read beside the weights: each the rows of x and
 * the weights of their norm. */
static uint64_t launch_norm_bytes(const struct launch_record *r) {
    struct matvec_norm_args a;

    memcpy(&a, r->args, sizeof(a));
    return (uint64_t)r->grid_x * (a.product.n_rows + 1) * a.norm.n * sizeof(float);
}

/* Computes what a product reads. Each block of matvec reads all activations for each of its row
 * tiles; each block of the other kernels reads the activations of its panel once. */
static void launch_note_product(struct launch_record *r) {
    struct matmul_args a;
    uint64_t tiles = 0, row_bytes, block_rows;

    memcpy(&a, r->args, sizeof(a));
    for (uint32_t i = 0; i < a.n_mats && i < MATMUL_MATRICES; i++) {
        uint32_t n_out = a.m[i].n_row_tiles * TILE_ROWS;

        r->weight_bytes += tile_matrix_bytes(a.m[i].format, n_out, a.n_blocks * 16);
        tiles += a.m[i].n_row_tiles;
    }
    for (uint32_t i = 0; i < MATMUL_MATRICES && launch_begins(r, "matvec"); i++)
        r->ahead_bytes += a.ahead[i].bytes;
    r->n_rows = a.n_rows;
    r->n_in = a.n_blocks * 16;
    r->n_splits = MAX(a.n_splits, 1u);
    row_bytes = (uint64_t)a.n_blocks * 16 * 2;
    if (strcmp(r->name, "matvec_norm") == 0) {
        r->read_bytes = r->weight_bytes + launch_norm_bytes(r);
        return;
    }
    if (launch_begins(r, "matvec_cluster")) { /* each block reads its segment of the rows once */
        r->read_bytes = r->weight_bytes + r->grid_x * a.n_rows * row_bytes / TILE_SEGMENTS;
        return;
    }
    if (launch_begins(r, "matvec")) {
        r->read_bytes = r->weight_bytes + tiles * a.n_rows * row_bytes;
        return;
    }
    block_rows = strcmp(r->name, "matmul_wgmma") == 0 ? WGMMA_ROWS : MATMUL_COLUMNS;
    /* the weights are read once for each column of panels */
    r->read_bytes = r->weight_bytes * a.n_columns +
                    (uint64_t)a.n_panels * MIN(block_rows, a.n_rows) * row_bytes;
}

static int launch_and_note(const void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t n_threads,
                           uint32_t shared, const void *args, uint32_t how, void *stream) {
    struct launches *l = &weft_launches;
    size_t n;

    l->stream = stream;
    if (l->on && l->n++ < LAUNCHES_MAX) {
        struct launch_record *r = &l->record[l->n - 1];

        *r = (struct launch_record){.kernel = kernel,
                                    .grid_x = grid_x,
                                    .grid_y = grid_y,
                                    .n_threads = n_threads,
                                    .shared = shared,
                                    .how = how};
        launch_describe(kernel, r->name, &n, &r->n_registers);
        assert(n <= sizeof(r->args));
        memcpy(r->args, args, n);
        if (launch_begins(r, "matvec") || launch_begins(r, "matmul"))
            launch_note_product(r);
    }
    return l->api->launch(kernel, grid_x, grid_y, n_threads, shared, args, how, stream);
}

const struct cuda_api *cuda_api(void) {
    static struct cuda_api noting;

    weft_launches.api = runtime_api();
    noting = *weft_launches.api;
    noting.launch = launch_and_note;
    return &noting;
}
