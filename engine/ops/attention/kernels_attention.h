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
    /* a row sees the last @window keys; UINT32_MAX: all */
    uint32_t window;
    /* rows see keys up to batch_head.last */
    uint32_t two_way;
    /* for each head the score of a key without a value, or NULL */
    const float *sinks;
    /* attend_64, attend_128 and merge, up to 16 rows: takes the place of o, [rows][n_head n_value]
     * in halves, as pack() orders them, times the static scale @fixed; or NULL */
    uint16_t *packed;
    /* [rows]: 1 / fixed */
    float *packed_scale;
    float fixed;
};

/* Shared memory of attend_64 and attend_128: values of eight tiles, which the results replace. */
#define ATTEND_SHARED(head) (ATTN_TILES * ATTN_TILE * 2 * (head))

/* Shared memory of attend_wide_64 and attend_wide_128. They process wide_item, all chunks of a
 * sequence or a run that several sequences share, and leave the others to attend_64 and attend_128,
 * which continue from their results. */
#define ATTEND_WIDE_STAGES 3u
#define ATTEND_WIDE_SHARED(head, k_bits, v_bits)                                                   \
    (ATTN_TILE * (((k_bits) < 16 ? 2 : ATTEND_WIDE_STAGES) * ((head) + 32 + (head)) * 2 +          \
                  ((k_bits) < 16 ? ATTEND_WIDE_STAGES *                                            \
                                       ((head) / 8 * ((k_bits) + (v_bits)) + (head) / 32 * 2 * 2)  \
                                 : 0)))

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

/* Declares a kernel for pages of halves, of q8_0 and of q4_0. */
#define ATTEND_ALIKE(NAME)                                                                         \
    extern kernel_address kernel_##NAME, kernel_##NAME##_q8, kernel_##NAME##_q4
/* Declares in addition a kernel for keys of q8_0 and values of q4_0, since keys need more bits. */
#define ATTEND_KERNELS(NAME)                                                                       \
    ATTEND_ALIKE(NAME);                                                                            \
    extern kernel_address kernel_##NAME##_q8_q4

ATTEND_KERNELS(attend_64); /* heads of up to 64 values */
ATTEND_KERNELS(attend_128);
ATTEND_KERNELS(attend_256);
ATTEND_KERNELS(attend_512);
ATTEND_KERNELS(attend_wide_64);
ATTEND_KERNELS(attend_wide_128);
ATTEND_KERNELS(attend_wide_256);
ATTEND_KERNELS(attend_wide_512);
ATTEND_ALIKE(attend_latent);
ATTEND_ALIKE(attend_latent_bulk);
extern const bool attend_latent_built; /* attend_latent_bulk has code for such devices */

/* Returns true if attend_latent_bulk runs on a device. */
static inline bool attend_bulk_runs(const struct cuda_device *d) {
    return attend_latent_built && d->made_for >= 90 && d->made_for < 120 &&
           d->block_bytes >= ATTEND_LATENT_SHARED;
}

/* Returns the number of the pages' format in the order of ATTEND_KERNELS(). */
static inline uint32_t attend_format(const struct page_shape *s) {
    assert(s->k_bits == s->v_bits || (s->k_bits == 8 && s->v_bits == 4 && !s->latent));
    if (s->k_bits != s->v_bits)
        return 3;
    if (s->k_bits == 16)
        return 0;
    return s->k_bits == 8 ? 1 : 2;
}

/* Returns the variant for pages of shape @s. @wide: for steps of many rows; @bulk:
 * attend_latent_bulk, for latent attention. */
static inline struct attend_kernel attend_kernel_for(const struct page_shape *s, bool wide,
                                                     bool bulk) {
#define ATTEND_ALIKE_ROW(NAME) &kernel_##NAME, &kernel_##NAME##_q8, &kernel_##NAME##_q4
#define ATTEND_ROW(NAME)                                                                           \
    { ATTEND_ALIKE_ROW(NAME), &kernel_##NAME##_q8_q4 }
    static kernel_address *const kernel[][4] = {
        ATTEND_ROW(attend_64),
        ATTEND_ROW(attend_128),
        ATTEND_ROW(attend_256),
        ATTEND_ROW(attend_512),
        ATTEND_ROW(attend_wide_64),
        ATTEND_ROW(attend_wide_128),
        ATTEND_ROW(attend_wide_256),
        ATTEND_ROW(attend_wide_512),
        {ATTEND_ALIKE_ROW(attend_latent)},
        {ATTEND_ALIKE_ROW(attend_latent_bulk)},
    };
#undef ATTEND_ROW
#undef ATTEND_ALIKE_ROW
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
        k.shared = (uint32_t)ATTEND_WIDE_SHARED(dim <= 64 ? 64 : 128, s->k_bits, s->v_bits);
    else if (s->latent && bulk)
        k.shared = ATTEND_LATENT_SHARED;
    else if (!s->latent && size < 2)
        k.shared = (uint32_t)ATTEND_SHARED(dim <= 64 ? 64 : 128);
    else if (k.queries > ATTN_QUERIES)
        k.shared = ATTEND_GROUPS_SHARED(dims, k.queries);
    k.kernel = *kernel[row][attend_format(s)];
    return k;
}

#ifdef __cplusplus
}
#endif
