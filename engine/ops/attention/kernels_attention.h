#pragma once

/*
 * kernels_attention - arguments, grids and contracts of the kernels of attention, like kernels.h.
 */

#include <assert.h>

#include "engine/cuda/cuda_api.h"
#include "engine/cuda/kernels.h"

/* Argument of the kernels of attention and of merge. Grid: x items, or fewer, since a block takes
 * every gridDim.x-th; y key heads. A partial result is [n_head_kv][few queries] rows of
 * partial_stride floats: o, then m and l; more queries take several. Tiles and chunks that no query
 * of an item sees are skipped, which changes no bit. merge combines the chunks of queries that were
 * split, from the first one that a query sees; grid: x merges, or fewer, y key heads. */
struct attend_args {
    const struct batch_head *batch;
    /* [rows][n_head][head_dim]; with @turned [rows][n_head][n_value] */
    const float *q;
    /* [rows][n_head][n_value] */
    float *o;
    /* [results][n_head_kv][few][partial_stride] */
    float *partial;
    /* pages of the layer: [pages][page_layer_bytes()] */
    const uint8_t *pages;
    struct page_shape shape;
    /* class of the pages */
    uint32_t cls;
    uint32_t n_head, group, partial_stride;
    /* plan_args.few; values of a head's result */
    uint32_t few, n_value;
    /* values of queries after the first n_value; NULL: q has all */
    const float *turned;
    /* values from one query's to the next */
    uint32_t turned_stride;
    /* cap: limit of the scores; 0: none */
    float scale, cap;
    /* placeholder keys of the kernel holes() get no weight */
    uint32_t holes;
    /* arguments of attn_first_key(); window UINT32_MAX: a row sees all keys */
    uint32_t window, chunked;
    /* rows see keys up to batch_head.last */
    uint32_t two_way;
    /* for each head the score of a key without a value, or NULL */
    const float *sinks;
    /* heads of up to 128 values: takes the place of o, [rows][n_head n_value] in halves, as pack()
     * orders them, times the static scale @fixed; or NULL */
    uint16_t *packed;
    /* [rows]: 1 / fixed */
    float *packed_scale;
    float fixed;
    /* pack_args.cores */
    uint32_t cores;
};

/* Argument of attend_decode_64 and attend_decode_128, which compute attention from the products of
 * q, k and v, with the bits of store, attend_64 or attend_128, and merge. `few` is at least the
 * number of queries of a sequence, and a multiple of ATTN_QUERIES; no item is in wide_item. Grid as
 * of the others. store.q is not changed. */
struct decode_args {
    struct attend_args attend;
    struct store_args store;
    /* [merges][n_head_kv]: 0; results of a merge that are there */
    uint32_t *arrived;
};
#define DECODE_QUERIES 128u /* most queries of a key head in a step of these kernels */

/* Shared memory of these and of attend_64 and attend_128: values of eight tiles, which the results
 * replace. */
#define ATTEND_SHARED(head) (ATTN_TILES * ATTN_TILE * 2 * (head))

/* Shared memory of attend_wide_64 and attend_wide_128. They process wide_item, all chunks of a
 * sequence or a run that several sequences share, and leave the others to attend_64 and attend_128,
 * which continue from their results. */
#define ATTEND_WIDE_STAGES 3u
#define ATTEND_WIDE_CODES(head, k, v)                                                              \
    (ATTEND_WIDE_STAGES * ((head) / 8 * (PAGE_BITS(k) + PAGE_BITS(v)) + (head) / 32 * 2 * 2))
#define ATTEND_WIDE_SHARED(head, k, v)                                                             \
    (ATTN_TILE * (((k) != PAGE_F16 ? 2 : ATTEND_WIDE_STAGES) * ((head) + 32 + (head)) * 2 +        \
                  ((k) != PAGE_F16 ? ATTEND_WIDE_CODES(head, k, v) : 0)))

/* Shared memory of attend_wgmma_64 and attend_wgmma_128, which take the place of attend_wide_64 and
 * attend_wide_128 on a Hopper: tiles as halves; chunks and results of each thread. */
#define ATTEND_WGMMA_STAGES 3u
#define ATTEND_WGMMA_SHARED(head)                                                                  \
    (ATTEND_WGMMA_STAGES * ATTN_TILE * 2 * 2 * (head) + ((head) / 8 + 1) * CUDA_THREADS * 16)

/* A variant of attention. */
struct attend_kernel {
    const void *kernel;
    /* bytes of dynamic shared memory */
    uint32_t shared;
    /* most queries of an item that covers all chunks */
    uint32_t queries;
    /* leaves items that are not in wide_item to the variant that is not wide */
    bool leaves;
};

/* Shared memory of attend_latent, attend_wide_256 and attend_wide_512, which process all items.
 * attend_latent: items of up to ATTN_LATENT queries of LATENT_KEY values, with results of
 * LATENT_VALUE; the others: items of up to ATTN_WIDE_256 or ATTN_WIDE_512 queries. */
#define ATTEND_GROUPS_SHARED(head, queries)                                                        \
    (64 + ATTN_CHUNK / 8 * 16 + (queries) * (head)*2 +                                             \
     ATTN_TILES * (queries) * (ATTN_TILE * 2 + 16) + (queries)*8 * 4)

/* Shared memory of attend_latent_bulk, which equals attend_latent with up to ATTN_LATENT_BULK
 * queries, for server devices from compute capability 9.0 on. */
#define ATTEND_LATENT_SHARED (212u << 10)

#ifdef __cplusplus
extern "C" {
#endif

#define ATTEND_DECLARE(NAME, K, V) extern kernel_address kernel_##NAME;
#define ATTEND_ADDRESS(NAME, K, V) &kernel_##NAME,
#define ATTEND_FORMAT(NAME, K, V) {K, V},

FOR_PAGES(ATTEND_DECLARE, attend_64) /* heads of up to 64 values */
FOR_PAGES(ATTEND_DECLARE, attend_128)
FOR_PAGES(ATTEND_DECLARE, attend_decode_64)
FOR_PAGES(ATTEND_DECLARE, attend_decode_128)
FOR_PAGES(ATTEND_DECLARE, attend_256)
FOR_PAGES(ATTEND_DECLARE, attend_512)
FOR_PAGES(ATTEND_DECLARE, attend_wide_64)
FOR_PAGES(ATTEND_DECLARE, attend_wide_128)
FOR_PAGES(ATTEND_DECLARE, attend_wgmma_64)
FOR_PAGES(ATTEND_DECLARE, attend_wgmma_128)
FOR_PAGES(ATTEND_DECLARE, attend_wide_256)
FOR_PAGES(ATTEND_DECLARE, attend_wide_512)
FOR_PAGES_ALIKE(ATTEND_DECLARE, attend_latent)
FOR_PAGES_ALIKE(ATTEND_DECLARE, attend_latent_bulk)
extern const bool attend_latent_built; /* attend_latent_bulk has code for such devices */

/* Returns true if attend_latent_bulk runs on a device. */
static inline bool attend_bulk_runs(const struct cuda_device *d) {
    return attend_latent_built && d->made_for >= 90 && d->made_for < 120 &&
           d->block_bytes >= ATTEND_LATENT_SHARED;
}

/* Formats of keys and values, in the order of FOR_PAGES(). */
static const struct attend_pages {
    uint32_t k, v;
} attend_formats[] = {FOR_PAGES(ATTEND_FORMAT, any)};
#define ATTEND_FORMATS (sizeof(attend_formats) / sizeof(attend_formats[0]))

/* Returns the index in attend_formats[] of the pages' format. */
static inline uint32_t attend_format(const struct page_shape *s) {
    uint32_t i = 0;

    while (i < ATTEND_FORMATS && (attend_formats[i].k != s->k || attend_formats[i].v != s->v))
        i++;
    assert(i < ATTEND_FORMATS && (s->k == s->v || !s->latent));
    return i;
}

/* Returns the variant for pages of shape @s. @wide: for steps of many rows; @bulk:
 * attend_latent_bulk, for latent attention. */
static inline struct attend_kernel attend_kernel_for(const struct page_shape *s, bool wide,
                                                     bool bulk) {
#define ATTEND_ROW(NAME)                                                                           \
    { FOR_PAGES(ATTEND_ADDRESS, NAME) }
    static kernel_address *const kernel[][ATTEND_FORMATS] = {
        ATTEND_ROW(attend_64),
        ATTEND_ROW(attend_128),
        ATTEND_ROW(attend_256),
        ATTEND_ROW(attend_512),
        ATTEND_ROW(attend_wide_64),
        ATTEND_ROW(attend_wide_128),
        ATTEND_ROW(attend_wide_256),
        ATTEND_ROW(attend_wide_512),
        {FOR_PAGES_ALIKE(ATTEND_ADDRESS, attend_latent)},
        {FOR_PAGES_ALIKE(ATTEND_ADDRESS, attend_latent_bulk)},
    };
#undef ATTEND_ROW
    static const uint32_t wide_queries[] = {ATTN_WIDE, ATTN_WIDE, ATTN_WIDE_256, ATTN_WIDE_512};
    uint32_t dim = s->head_dim, size = (dim > 64) + (dim > 128) + (dim > 256);
    uint32_t dims = size == 2 ? 256 : 512, row = wide ? 4 + size : size;
    struct attend_kernel k = {NULL, 0, ATTN_QUERIES, false};

    assert(dim <= (s->latent ? LATENT_KEY : 512));
    if (s->latent) {
        k.queries = bulk && wide ? ATTN_LATENT_BULK : ATTN_LATENT;
        dims = LATENT_KEY;
        row = 8u + bulk;
    } else if (wide) {
        k.queries = wide_queries[size];
    }
    k.leaves = k.queries == ATTN_WIDE;
    if (k.leaves)
        k.shared = (uint32_t)ATTEND_WIDE_SHARED(dim <= 64 ? 64 : 128, s->k, s->v);
    else if (s->latent && bulk)
        k.shared = ATTEND_LATENT_SHARED;
    else if (!s->latent && size < 2)
        k.shared = (uint32_t)ATTEND_SHARED(dim <= 64 ? 64 : 128);
    else if (k.queries > ATTN_QUERIES)
        k.shared = ATTEND_GROUPS_SHARED(dims, k.queries);
    k.kernel = *kernel[row][attend_format(s)];
    return k;
}

/* Returns attend_decode for pages of shape @s, of heads of up to 128 values. */
static inline struct attend_kernel attend_decode_for(const struct page_shape *s) {
    static kernel_address *const kernel[][ATTEND_FORMATS] = {
        {FOR_PAGES(ATTEND_ADDRESS, attend_decode_64)},
        {FOR_PAGES(ATTEND_ADDRESS, attend_decode_128)},
    };
    struct attend_kernel k = attend_kernel_for(s, false, false);

    assert(!s->latent && s->head_dim <= 128);
    k.kernel = *kernel[s->head_dim > 64][attend_format(s)];
    return k;
}

/* Returns attend_wgmma for pages of shape @s, or attend_wide where there is none: for large heads
 * and latent attention. */
static inline struct attend_kernel attend_wgmma_for(const struct page_shape *s, bool bulk) {
    static kernel_address *const kernel[][ATTEND_FORMATS] = {
        {FOR_PAGES(ATTEND_ADDRESS, attend_wgmma_64)},
        {FOR_PAGES(ATTEND_ADDRESS, attend_wgmma_128)},
    };
    struct attend_kernel k = attend_kernel_for(s, true, bulk);

    if (!k.leaves)
        return k;
    k.kernel = *kernel[s->head_dim > 64][attend_format(s)];
    k.shared = (uint32_t)ATTEND_WGMMA_SHARED(s->head_dim <= 64 ? 64 : 128);
    return k;
}

#ifdef __cplusplus
}
#endif
