/*
 * matmul_launch - launches the kernels of matmul.cu with the right grid and shared memory, and
 * prepares all kernels at load.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"
#include "engine/cuda/products/kernels_norm.h"
#include "engine/cuda/products/kernels_roles.h"
#include "engine/cuda/products/matvec_way.h"
#include "engine/ops/attention/kernels_attention.h"

/* Allows the attention kernels for this engine's pages as much dynamic shared memory as their
 * launches need. */
static int load_attention(struct be *b) {
    static const uint32_t dims[] = {64, 128, 256, 512}; /* the largest of each kernel */

    b->attention.bulk = b->shape->mla.rank && attend_bulk_runs(&b->about.device);
    for (uint32_t i = 0; i < 2 * ARRAY_SIZE(dims); i++) {
        const struct heads h = {
            .n = 1, .n_kv = 1, .dim = b->shape->mla.rank ? b->shape->head_dim : dims[i / 2]};
        struct page_shape page = cuda_page_shape(b, &h);

        for (uint32_t bulk = 0; bulk <= b->attention.bulk; bulk++) {
            struct attend_kernel k = attend_kernel_for(&page, i % 2, bulk);

            TRY(cuda_check(b, b->api->allow_shared(k.kernel, k.shared), "cudaFuncSetAttribute"));
        }
        if (i >= 4 || b->shape->mla.rank)
            continue;
        if (b->attention.decode == WAY_ON) {
            struct attend_kernel k = attend_decode_for(&page);

            TRY(cuda_check(b, b->api->allow_shared(k.kernel, k.shared), "cudaFuncSetAttribute"));
        }
        if (b->attention.wgmma == WAY_ON) {
            struct attend_kernel k = attend_wgmma_for(&page, false);

            TRY(cuda_check(b, b->api->allow_shared(k.kernel, k.shared), "cudaFuncSetAttribute"));
        }
    }
    return 0;
}

/* Allows the kernels with roles of more than 64 rows the shared memory of their rings. */
static int load_wide_roles(struct be *b) {
    uint32_t formats;

    for (uint32_t n = 96; n <= WGMMA_ROWS; n += 32)
        for (uint32_t f = 0; f < TILE_FORMATS; f++) {
            const void *kernel = roles_wide_for(n, f, &formats);
            int e = 0;

            if (kernel)
                e = b->api->allow_shared(kernel, ROLES_SHARED);
            TRY(cuda_check(b, e, "cudaFuncSetAttribute"));
        }
    return 0;
}

/* Allows the kernels with roles, if they run, the shared memory of their rings. */
static int load_roles(struct be *b) {
    uint32_t columns;

    if (b->products.roles != WAY_ON)
        return 0;
    for (uint32_t n = 1; n <= MATMUL_COLUMNS; n = columns + 1) {
        int e = b->api->allow_shared(roles_for(n, &columns), ROLES_SHARED);

        TRY(cuda_check(b, e, "cudaFuncSetAttribute"));
    }
    return load_wide_roles(b);
}

/* Allows matvec_cluster, if it runs, its shared memory. */
static int load_cluster(struct be *b) {
    uint32_t most = MIN(CLUSTER_SHARED, (uint32_t)b->about.device.block_bytes);
    bool has_clusters = b->about.device.major >= 9 && b->about.device.made_for >= 90;

    b->products.cluster = way_if(has_clusters && cuda_asks("CLUSTER"));
    if (b->products.cluster != WAY_ON)
        return 0;
    for (uint32_t n = PACK_ROWS; n <= MATVEC_ROWS; n += PACK_ROWS) {
        int e = b->api->allow_shared(cluster_for(n), most);

        TRY(cuda_check(b, e, "cudaFuncSetAttribute"));
    }
    return 0;
}

#define AHEAD_MOST 64u /* MiB, of the 72 of the largest L2 cache of the family */

/* Returns the bytes of the next product that matvec prefetches: WEFT_CUDA_AHEAD, in MiB. */
static uint32_t load_ahead_bytes(const struct cuda_device *d) {
    const char *said = getenv("WEFT_CUDA_AHEAD");

    if (!said || d->made_for != 89)
        return 0;
    return (uint32_t)MIN(strtoul(said, NULL, 10), AHEAD_MOST) << 20;
}

/* Allows each kernel as much dynamic shared memory as the largest format needs. Kernels without
 * dynamic shared memory are named as well: then no launch has to load them, and all kernels agree
 * on how a multiprocessor's memory is divided into cache and shared memory (api.c), which can only
 * change while no block runs there. WEFT_CUDA_WGMMA=0: be.products.wgmma is off;
 * WEFT_CUDA_ROLES=1, WEFT_CUDA_CLUSTER=1, WEFT_CUDA_DRY=1: be.products.roles, cluster, dry are
 * on; WEFT_CUDA_ATTEND_WGMMA=1: be.attention.wgmma is. */
int cuda_load_kernels(struct be *b) {
    uint32_t narrow = 0, norm = 0, expert = 0, wide = 0, wgmma = 0, wgmma_64 = 0, join = 0;

    if (BYTES_FAMILY(b->about.device.made_for))
        b->products.planes = 2;
    else
        b->products.planes = 1;
    for (uint32_t f = 0; f < TILE_FORMATS; f++) {
        narrow = MAX(narrow, matvec_shared(tile_stage_bytes(f), MATVEC_STAGES));
        norm =
            MAX(norm, matvec_norm_most(&b->about.device, tile_stage_bytes(f), b->products.planes));
        expert = MAX(expert, expert_shared(tile_stage_bytes(f)));
        wide = MAX(wide, wide_shared(f));
        wgmma = MAX(wgmma, wgmma_shared(WGMMA_ROWS, f));
        wgmma_64 = MAX(wgmma_64, wgmma_shared(MATMUL_COLUMNS, f));
        join = MAX(join, wgmma_join_shared(f));
    }
    bool has_wgmma = matmul_wgmma_built && b->about.device.major == 9 &&
                     b->about.device.minor == 0 && b->about.device.shared_bytes > wgmma &&
                     cuda_wants("WGMMA");
    b->products.wgmma = b->products.join = way_if(has_wgmma);
    b->products.roles = way_if(has_wgmma && cuda_asks("ROLES"));
    b->attention.wgmma = way_if(has_wgmma && cuda_asks("ATTEND_WGMMA"));
    b->products.ahead = load_ahead_bytes(&b->about.device);
    b->products.dry = way_if(b->about.device.made_for == 90 && cuda_asks("DRY"));
#define WITHOUT_SHARED(NAME)                                                                       \
    { kernel_##NAME, 0 }
    const struct {
        const void *kernel;
        uint32_t bytes;
    } kernels[] = {{kernel_matmul_wgmma, wgmma},     {kernel_matmul_wgmma_64, wgmma_64},
                   {kernel_matmul_wgmma_join, join}, {kernel_matvec, narrow},
                   {kernel_matvec_16, narrow},       {kernel_matvec_dry, narrow},
                   {kernel_matvec_16_dry, narrow},   {kernel_matvec_norm, norm},
                   {kernel_matmul_wide, wide},       {kernel_expert_vec, expert},
                   {kernel_expert_wide, wide},       PLAIN_KERNELS(WITHOUT_SHARED)};
#undef WITHOUT_SHARED

    for (size_t i = has_wgmma ? 0 : 3; i < ARRAY_SIZE(kernels); i++) {
        int e = b->api->allow_shared(kernels[i].kernel, kernels[i].bytes);

        TRY(cuda_check(b, e, "cudaFuncSetAttribute"));
    }
    TRY(load_roles(b));
    TRY(load_cluster(b));
    return load_attention(b);
}

bool wgmma_handles(const struct be *b, uint32_t n_rows) {
    return b->products.wgmma == WAY_ON && n_rows > MATVEC_ROWS;
}

struct matmul_args cuda_matmul_args(const struct weights *w, const struct operand *x, bool add) {
    struct matmul_args a = {
        .x = x->packed,
        .scale = x->scale,
        .count = x->count,
        .n_mats = w->n_mats,
        .n_rows = x->n_rows,
        .n_blocks = (uint32_t)round_up(w->n_in, 64) / 16,
        .add = add,
        .n_splits = 1,
    };

    assert(w->n_mats > 0 && w->n_mats <= ARRAY_SIZE(a.m));
    /* kernels have offsets in the rows of matvec (two planes) and in a row of tiles in 32 bits */
    assert((uint64_t)a.n_blocks * 16 * MATVEC_ROWS * 2 * sizeof(uint16_t) <= UINT32_MAX);
    for (uint32_t i = 0; i < w->n_mats; i++) {
        assert((uint64_t)w->m[i].n_units * tile_bytes(w->m[i].format) <= UINT32_MAX);
        assert(w->m[i].tiles && w->m[i].y &&
               w->m[i].n_units == tile_units(w->m[i].format, w->n_in));
        a.m[i] = w->m[i];
        a.stage_bytes = MAX(a.stage_bytes, w->m[i].stage_bytes);
        a.n_tiles += w->m[i].n_row_tiles;
    }
    memcpy(a.ahead, w->ahead, sizeof(a.ahead));
    return a;
}

bool cuda_are_alike(const struct matrix *gate, const struct matrix *up) {
    return gate->format == up->format && gate->grid == up->grid && gate->n_out == up->n_out;
}

/* Returns true if all matrices have one format. */
static bool is_uniform(const struct matmul_args *a) {
    for (uint32_t i = 1; i < a->n_mats; i++)
        if (a->m[i].format != a->m[0].format)
            return false;
    return true;
}

/* Returns the bytes of the rows that each block packs; 0: none. */
static uint32_t own_bytes(const struct be *b, const struct matmul_args *a,
                          const struct pack_args *norm) {
    if (!norm)
        return 0;
    return matvec_norm_bytes(a->n_rows, norm->n_padded, b->products.planes);
}

bool cuda_matvec_packs(uint32_t n_rows, const struct pack_args *norm) {
    return n_rows <= MATVEC_NORM_ROWS && norm->n_padded <= MATVEC_NORM_COLUMNS;
}

/* A block can only have tiles of one format: if the formats differ, each block has one row tile. */
int cuda_matvec(struct be *b, const struct matmul_args *a, const struct pack_args *norm) {
    assert(a->n_rows <= MATVEC_ROWS && a->gated < a->n_tiles);
    assert(!a->gated || (a->n_mats == 2 && cuda_are_alike(&a->m[0], &a->m[1])));
    struct matvec_way way = matvec_way(&b->about.device, a->n_rows, a->stage_bytes,
                                       a->n_tiles - a->gated, own_bytes(b, a, norm));
    struct launch l = {matvec_for(a->n_rows),
                       is_uniform(a) ? way.n_blocks : a->n_tiles,
                       1,
                       CUDA_THREADS,
                       "matvec",
                       way.shared};
    struct matvec_norm_args args = {.product = *a};

    args.product.n_stages = way.n_stages;
    if (b->products.dry == WAY_ON) {
        l.kernel = matvec_dry_for(a->n_rows);
        l.what = "matvec_dry";
    }
    if (!norm)
        return cuda_launch(b, &l, &args.product, sizeof(args.product));
    assert(cuda_matvec_packs(a->n_rows, norm) && norm->n_padded == a->n_blocks * 16);
    args.norm = *norm;
    l.kernel = kernel_matvec_norm;
    l.what = "matvec_norm";
    return cuda_launch(b, &l, &args, sizeof(args));
}

bool cuda_cluster_fits(const struct be *b, const struct matmul_args *a) {
    return a->n_rows >= MATVEC_CLUSTER_LEAST && a->n_rows <= MATVEC_ROWS && cluster_fits(a) &&
           cluster_way(&b->about.device, a).n_blocks > 0;
}

int cuda_matvec_cluster(struct be *b, const struct matmul_args *a) {
    struct matvec_way way = cluster_way(&b->about.device, a);
    struct launch l = {cluster_for(a->n_rows), way.n_blocks,     1,
                       CUDA_THREADS,           "matvec_cluster", way.shared};
    struct matmul_args args = *a;

    assert(cuda_cluster_fits(b, a));
    args.n_stages = way.n_stages;
    return cuda_launch(b, &l, &args, sizeof(args));
}

int cuda_multiply_few(struct be *b, const struct matmul_args *a, const struct pack_args *norm) {
    if (!norm && b->products.cluster == WAY_ON && cuda_cluster_fits(b, a))
        return cuda_matvec_cluster(b, a);
    return cuda_matvec(b, a, norm);
}

/* Returns the number of blocks of WIDE_OUT rows of all matrices. */
static uint32_t tile_groups(const struct weights *w) {
    uint32_t groups = 0;

    for (uint32_t i = 0; i < w->n_mats; i++)
        groups += (w->m[i].n_out + WIDE_OUT - 1) / WIDE_OUT;
    return groups;
}

uint32_t cuda_panels(const struct weights *w, uint32_t n_rows) {
    return (n_rows + MATMUL_COLUMNS - 1) / MATMUL_COLUMNS * tile_groups(w);
}

/* Returns true if the segments may be shared by blocks: each multiprocessor then has at least one
 * part of a panel, and the sums of all segments, which are written and read once, stay in the L2
 * cache. */
bool cuda_can_split(const struct be *b, const struct weights *w, uint32_t n_rows) {
    uint32_t n_panels = cuda_panels(w, n_rows);
    bool fits = b->products.split == WAY_ON &&
                n_panels <= (uint32_t)b->about.device.n_multiprocessors &&
                n_panels * (size_t)WIDE_SPLIT_BYTES <= b->attention.partial_bytes;

    for (uint32_t i = 0; i < w->n_mats; i++)
        fits = fits && w->m[i].n_units >= TILE_SEGMENTS;
    return fits;
}

/* Returns true if a product of gate and up by @n_splits blocks can combine them. */
static bool wide_gates(const struct weights *w, uint32_t n_splits) {
    return n_splits == 1 && cuda_are_alike(&w->m[0], &w->m[1]);
}

/* Returns the argument of matmul_wide and matmul_wgmma for panels of @block_rows rows
 * (MATMUL_COLUMNS or WGMMA_ROWS). */
static struct matmul_args wide_args(struct be *b, const struct weights *w, const struct operand *x,
                                    bool add, uint32_t block_rows, uint32_t n_splits) {
    struct matmul_args a = cuda_matmul_args(w, x, add);
    uint32_t columns = (x->n_rows + block_rows - 1) / block_rows;

    assert(n_splits > 0 && TILE_SEGMENTS % n_splits == 0);
    assert(n_splits == 1 || (block_rows == MATMUL_COLUMNS && cuda_can_split(b, w, x->n_rows)));
    a.n_splits = n_splits;
    a.n_columns = columns;
    a.arrived = b->products.arrived;
    a.sums = b->attention.partial;
    a.leave = x->leaves && n_splits > 1;
    assert(!x->leaves || w->n_mats == 1);
    if (x->gates) {
        assert(w->n_mats == 2 && !add);
        if (wide_gates(w, n_splits))
            a.gated = w->m[0].n_row_tiles;
        else
            a.gated = 0;
        a.glu = x->glu;
    }
    if (a.gated && x->halves) {
        a.packed = x->halves;
        a.packed_scale = x->halves_scale;
        a.fixed = x->fixed;
    }
    uint32_t groups =
        a.gated ? (w->m[0].n_out + WIDE_OUT / 2 - 1) / (WIDE_OUT / 2) : tile_groups(w);
    a.n_panels = groups * columns;
    return a;
}

bool cuda_roles_fit(const struct weights *w, uint32_t n_rows) {
    uint32_t formats;
    bool fit = true;

    for (uint32_t i = 0; i < w->n_mats && n_rows > MATMUL_COLUMNS; i++)
        fit = fit && roles_wide_for(n_rows, w->m[i].format, &formats);
    return fit;
}

/* Returns the rows of activations of a panel of matmul_roles for more than 64 rows. */
static uint32_t roles_wide_rows(uint32_t n_rows) {
    return n_rows > 96 ? WGMMA_ROWS : 96;
}

uint32_t cuda_roles_panels(const struct weights *w, uint32_t n_rows) {
    struct matmul_args a = {.n_mats = w->n_mats, .n_rows = n_rows};

    for (uint32_t i = 0; i < w->n_mats; i++)
        a.m[i].n_row_tiles = w->m[i].n_row_tiles;
    if (n_rows > MATMUL_COLUMNS)
        return roles_wide_panels(&a, roles_wide_rows(n_rows));
    return roles_panels(&a);
}

/* Moves the matrices that one kernel of panels of @n rows can multiply, the first of @rest among
 * them, from @rest to @w, in their order. Returns the kernel and sets its formats. */
static const void *roles_move_alike(struct weights *w, struct weights *rest, uint32_t n,
                                    uint32_t *formats) {
    const void *kernel = roles_wide_for(n, rest->m[0].format, formats);
    uint32_t n_left = 0;

    assert(kernel);
    w->n_mats = 0;
    for (uint32_t i = 0; i < rest->n_mats; i++)
        if (*formats >> rest->m[i].format & 1)
            w->m[w->n_mats++] = rest->m[i];
        else
            rest->m[n_left++] = rest->m[i];
    rest->n_mats = n_left;
    return kernel;
}

/* Computes a product of more than 64 rows by warps with roles: a launch for each set of formats. It
 * has at most a block for each multiprocessor, or one cluster; blocks take one panel after the
 * other. */
static int cuda_matmul_roles_wide(struct be *b, const struct weights *w, const struct operand *x,
                                  bool add, struct product_way way) {
    uint32_t n = roles_wide_rows(way.block_rows == WGMMA_ROWS ? WGMMA_ROWS : x->n_rows);
    struct launch l = {.grid_y = 1, .n_threads = ROLES_WIDE_THREADS, .what = "matmul_roles"};
    struct weights rest = *w, some = *w;
    struct operand apart = *x;
    uint32_t most = (uint32_t)b->about.device.n_multiprocessors / ROLES_CLUSTER, formats = 0;

    most = MAX(most, 1u);
    assert(way.n_splits == 1 || x->n_rows <= WGMMA_ROWS);
    while (rest.n_mats > 0) {
        l.kernel = roles_move_alike(&some, &rest, n, &formats);
        apart.gates = x->gates && some.n_mats == w->n_mats;
        struct matmul_args a = wide_args(b, &some, &apart, add, MATMUL_COLUMNS, way.n_splits);

        a.n_panels = roles_wide_clusters(&a, n);
        l.grid_x = MIN(a.n_panels * a.n_splits, most) * ROLES_CLUSTER;
        l.shared = roles_wide_shared(n, formats);
        TRY(cuda_launch(b, &l, &a, sizeof(a)));
    }
    return 0;
}

/* Computes the product by warps with roles. */
static int cuda_matmul_roles(struct be *b, const struct weights *w, const struct operand *x,
                             bool add, struct product_way way) {
    assert(x->cores && b->products.roles == WAY_ON);
    if (x->n_rows > MATMUL_COLUMNS)
        return cuda_matmul_roles_wide(b, w, x, add, way);
    struct matmul_args a = wide_args(b, w, x, add, MATMUL_COLUMNS, way.n_splits);
    struct launch l = {.grid_y = 1, .n_threads = ROLES_THREADS, .what = "matmul_roles"};
    uint32_t columns;

    l.kernel = roles_for(x->n_rows, &columns);
    for (uint32_t i = 0; i < w->n_mats; i++)
        l.shared = MAX(l.shared, roles_shared(columns, w->m[i].format));
    a.n_panels = roles_panels(&a);
    l.grid_x = a.n_panels * a.n_splits;
    return cuda_launch(b, &l, &a, sizeof(a));
}

/* A multiprocessor runs one block of wgmma at a time. */
int cuda_matmul_wide(struct be *b, const struct weights *w, const struct operand *x, bool add,
                     struct product_way way) {
    if (way.roles)
        return cuda_matmul_roles(b, w, x, add, way);
    struct matmul_args a = wide_args(b, w, x, add, way.block_rows, way.n_splits);
    bool whole = way.block_rows == WGMMA_ROWS;
    const void *kernel = kernel_matmul_wide;
    uint32_t shared = 0;

    assert(x->cores ? b->products.wgmma == WAY_ON : !whole);
    assert(whole || way.block_rows == MATMUL_COLUMNS);
    assert(!way.joins || (x->cores && !x->gates && way.n_splits == WGMMA_JOIN));
    a.leave = a.leave && !way.joins;
    if (way.joins)
        kernel = kernel_matmul_wgmma_join;
    else if (x->cores)
        kernel = whole ? kernel_matmul_wgmma : kernel_matmul_wgmma_64;
    for (uint32_t i = 0; i < w->n_mats; i++) {
        uint32_t format = w->m[i].format, bytes = wide_shared(format);

        if (way.joins)
            bytes = wgmma_join_shared(format);
        else if (x->cores)
            bytes = wgmma_shared(way.block_rows, format);
        shared = MAX(shared, bytes);
    }
    struct launch l = {.kernel = kernel,
                       .grid_x = a.n_panels * a.n_splits,
                       .grid_y = 1,
                       .n_threads = CUDA_THREADS,
                       .what = x->cores ? "matmul_wgmma" : "matmul_wide",
                       .shared = shared};
    return cuda_launch(b, &l, &a, sizeof(a));
}

bool product_is_narrow(const struct be *b, const struct operand *x) {
    return !x->cores && x->n_rows <= MATVEC_ROWS && b->products.matvec == WAY_ON;
}

bool product_gates(const struct be *b, const struct weights *w, const struct operand *x) {
    if (!x->gates || product_is_narrow(b, x))
        return false;
    return wide_gates(w, product_chosen(b, w, x).n_splits);
}

bool product_packs(const struct be *b, const struct weights *w, const struct operand *x) {
    return x->halves && product_gates(b, w, x);
}

struct left product_left(const struct be *b, const struct weights *w, const struct operand *x) {
    if (!x->leaves || product_is_narrow(b, x))
        return (struct left){0};
    struct product_way way = product_chosen(b, w, x);
    if (way.n_splits == 1 || way.joins)
        return (struct left){0};
    return (struct left){.sums = b->attention.partial,
                         .scale = x->scale,
                         .bias = w->m[0].bias,
                         .n_columns = (x->n_rows + way.block_rows - 1) / way.block_rows,
                         .inverse = w->m[0].inverse};
}

int cuda_matmul(struct be *b, const struct weights *w, const struct operand *x, bool add) {
    struct product_way way;

    if (product_is_narrow(b, x)) {
        struct matmul_args a = cuda_matmul_args(w, x, add);

        return cuda_multiply_few(b, &a, x->norm);
    }
    assert(!x->norm);
    TRY(product_choose(b, w, x, add, &way));
    return cuda_matmul_wide(b, w, x, add, way);
}
