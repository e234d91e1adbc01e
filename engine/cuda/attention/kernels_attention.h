#pragma once

/*
 * kernels_attention - argument, grid and contract of the kernels of attention, as kernels.h.
 */

#include <assert.h>
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/kernels.h"

/* Grid: x items, or fewer: a block takes every gridDim.x'th; y key heads. A partial result is
 * [n_head_kv][few queries] rows of partial_stride floats: o, then m and l; of more queries it takes
 * as many as they need. Tiles and chunks that none of an item's queries sees are left out, which
 * changes no bit.
 * merge: the chunks of queries that were split, from the first one that a query sees; grid: x
 * merges, or fewer, y key heads. */
struct attend_args {
    const struct batch_head *batch;
    const float *q;       /* [rows][n_head][head_dim]; with @turned [rows][n_head][n_value] */
    float *o;             /* [rows][n_head][n_value] */
    float *partial;       /* [results][n_head_kv][few][partial_stride] */
    const uint8_t *pages; /* pages of the layer: [pages][page_layer_bytes()] */
    struct page_shape shape;
    uint32_t cls; /* class of the pages */
    uint32_t n_head, group, partial_stride;
    uint32_t few, n_value;  /* plan_args.few; values of a head's result */
    const float *turned;    /* the values of queries behind the first n_value, or NULL: q has all */
    uint32_t turned_stride; /* from a query's to the next */
    float scale, cap;       /* cap: of scores, 0: none */
    uint32_t holes;         /* keys of the kernel holes() weigh nothing */
    uint32_t window;        /* a row sees the last so many keys; UINT32_MAX: all */
    uint32_t two_way;       /* rows see keys up to batch_head.last */
    const float *sinks;     /* by head, the score of a key without a value; NULL: there is none */
};

/* attend_64 and attend_128: values of eight tiles, where their results are left. */
#define ATTEND_SHARED(head) (ATTN_TILES * ATTN_TILE * 2 * (head))

/* attend_wide_64 and attend_wide_128 take wide_item, all chunks of a sequence or some that several
 * share, and leave the others to attend_64 and attend_128, which go on from what these left. Their
 * shared memory: */
#define ATTEND_WIDE_STAGES 3u
#define ATTEND_WIDE_SHARED(head, k_bits, v_bits)                                                   \
    (ATTN_TILE * (((k_bits) < 16 ? 2 : ATTEND_WIDE_STAGES) * ((head) + 32 + (head)) * 2 +          \
                  ((k_bits) < 16 ? ATTEND_WIDE_STAGES *                                            \
                                       ((head) / 8 * ((k_bits) + (v_bits)) + (head) / 32 * 2 * 2)  \
                                 : 0)))

/* A variant of attention. */
struct attend_kernel {
    const void *kernel;
    uint32_t shared;  /* bytes, of the launch */
    uint32_t queries; /* most queries of an item that has all chunks */
    bool leaves;      /* items that are not in wide_item to the variant that is not wide */
};

/* attend_latent: items of up to ATTN_LATENT queries of LATENT_KEY values, the results of
 * LATENT_VALUE. attend_wide_256, attend_wide_512: all items, of up to ATTN_WIDE_256, ATTN_WIDE_512
 * queries. Their shared memory: */
#define ATTEND_GROUPS_SHARED(head, queries)                                                        \
    (64 + ATTN_CHUNK / 8 * 16 + (queries) * (head)*2 +                                             \
     ATTN_TILES * (queries) * (ATTN_TILE * 2 + 16) + (queries)*8 * 4)

/* attend_latent_bulk: as attend_latent, of up to ATTN_LATENT_BULK queries, on servers' devices from
 * compute capability 9.0 on. */
#define ATTEND_LATENT_SHARED (212u << 10)

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel for pages of halves, and those for pages of q8_0 and of q4_0. */
#define ATTEND_ALIKE(NAME)                                                                         \
    extern kernel_address kernel_##NAME, kernel_##NAME##_q8, kernel_##NAME##_q4
/* A kernel for keys of q8_0 and values of q4_0, besides: keys bear four bits less well. */
#define ATTEND_KERNELS(NAME)                                                                       \
    ATTEND_ALIKE(NAME);                                                                            \
    extern kernel_address kernel_##NAME##_q8_q4

ATTEND_KERNELS(attend_64); /* heads of up to 64 */
ATTEND_KERNELS(attend_128);
ATTEND_KERNELS(attend_256);
ATTEND_KERNELS(attend_512);
ATTEND_KERNELS(attend_wide_64);
ATTEND_KERNELS(attend_wide_128);
ATTEND_KERNELS(attend_wide_256);
ATTEND_KERNELS(attend_wide_512);
ATTEND_ALIKE(attend_latent);
ATTEND_ALIKE(attend_latent_bulk);
extern const bool attend_latent_built; /* attend_latent_bulk, with code for such devices */

/* Returns true if attend_latent_bulk runs on a device. */
static inline bool attend_bulk_runs(const struct cuda_device *d) {
    return attend_latent_built && d->made_for >= 90 && d->made_for < 120 &&
           d->block_bytes >= ATTEND_LATENT_SHARED;
}

/* @wide: for steps of many rows; @bulk: attend_latent_bulk, of latent attention. */
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
    bool alike = s->k_bits == s->v_bits;
    uint32_t pages = !alike ? 3 : s->k_bits == 16 ? 0 : s->k_bits == 8 ? 1 : 2;
    uint32_t dim = s->head_dim, size = dim <= 64 ? 0 : dim <= 128 ? 1 : dim <= 256 ? 2 : 3;
    struct attend_kernel k = {NULL, 0, ATTN_QUERIES, false};

    assert(alike || (s->k_bits == 8 && s->v_bits == 4 && !s->latent));
    assert(dim <= (s->latent ? LATENT_KEY : 512));
    if (s->latent)
        k.queries = bulk && wide ? ATTN_LATENT_BULK : ATTN_LATENT;
    else if (wide)
        k.queries = size < 2 ? ATTN_WIDE : size == 2 ? ATTN_WIDE_256 : ATTN_WIDE_512;
    k.leaves = k.queries == ATTN_WIDE;
    if (k.leaves)
        k.shared = (uint32_t)ATTEND_WIDE_SHARED(dim <= 64 ? 64 : 128, s->k_bits, s->v_bits);
    else if (s->latent && bulk)
        k.shared = ATTEND_LATENT_SHARED;
    else if (!s->latent && size < 2)
        k.shared = (uint32_t)ATTEND_SHARED(dim <= 64 ? 64 : 128);
    else if (k.queries > ATTN_QUERIES)
        k.shared = ATTEND_GROUPS_SHARED(s->latent ? LATENT_KEY : size == 2 ? 256 : 512, k.queries);
    k.kernel = *kernel[s->latent ? 8u + bulk : wide ? 4 + size : size][pages];
    return k;
}

#ifdef __cplusplus
}
#endif
