#pragma once

/*
 * kernels - the interface between the host and the kernels: the argument of each kernel (one
 * struct), its grid and its address. The contract of a kernel is the comment of its argument; its
 * formulas are with its code.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/formats/tiles.h"
#include "engine/shared/pages.h"
#include "engine/shared/sampling.h"
#include "engine/shared/xielu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RANKS 8u          /* most devices that share a model */
#define CUDA_THREADS 256u /* threads of a block of every kernel, unless it says otherwise */
#define SAMPLE_THREADS 512u
#define PACK_THREADS 512u
#define PACK_ROWS 8u    /* rows of activations that are packed together */
#define MATVEC_ROWS 16u /* most rows of activations of matvec() */
/* most stages of a warp's cp.async ring: one is used, the others are in flight */
#define MATVEC_STAGES 3u
#define MATMUL_COLUMNS 64u /* rows of activations of a block of matmul_wide() */
#define WIDE_SLICES 4u
#define WIDE_SLICE_BYTES (MATMUL_COLUMNS * 64u * 2u)

/* -- loading ----------------------------------------------------------------------------------- */

/* Argument of repack(). One thread block packs one tile; grid: x units, y rows of tiles. */
struct repack_args {
    /* row 0: the first row of the first tile */
    struct tile_source source;
    uint8_t *tiles;
    uint32_t format, n_units;
    struct repack_found *found;
};

/* Largest scale and first fault that repack() has found in a tensor so far. */
struct repack_found {
    /* the largest tile_scale_size(), as the bits of a float */
    uint64_t most;
    /* 1 if a weight does not fit half precision */
    uint32_t bad;
};

/* Multiplies the scales of @n_tiles tiles by 2^unit (tile_unit()). One warp for each tile; grid: x
 * tiles / 8. */
struct scale_args {
    uint8_t *tiles;
    uint32_t format, n_tiles;
    int unit;
};

/* -- the batch --------------------------------------------------------------------------------- */

/* The merge of the partial results of split queries: of the chunks that they share with others,
 * then of their own chunks; the result of query i for chunk c is query i of partial result partial
 * + c - shared.n_chunks. */
struct attn_merge {
    uint32_t row0, q0, n_q, partial, n_chunks;
    struct attn_shared shared;
    /* its first own item; its sequence */
    uint32_t item, seq;
};

/* A sequence of the batch, input of plan(). */
struct plan_seq {
    /* rows of the batch, position of the first */
    uint32_t row0, n_rows, pos0;
    /* first entry of its page table */
    uint32_t page0;
    /* slot of its state */
    uint32_t state;
    /* 1: the slot keeps the hidden state of position pos0 - 1 (kept.h) */
    uint32_t before;
};

#define PAGE_CLASSES 2u /* KV_GLOBAL, KV_WINDOW */
#define ROPE_PLACES 4u  /* ROPE_AXES */
#define NO_PICTURE UINT32_MAX

/* A step's batch in device memory. All that changes from step to step is here and in the arrays
 * that it points to, so a recorded graph serves every batch of up to as many rows: a grid may
 * exceed the number of rows, wants or items. */
struct batch_head {
    uint32_t n_rows, n_wants, n_seqs;
    /* written by plan */
    uint32_t n_items, n_wide_items, n_merges;
    /* feed >= 0: the token is sampled[feed] */
    const int32_t *token, *feed;
    const uint32_t *pos;
    /* Rotary positions of the rows, by axis (picture_rows.h). */
    const uint32_t *at[ROPE_PLACES];
    /* Rows of pictures in the step: [rows][model_shape.n_picture] values, and for each row of the
     * step its index among them, or NO_PICTURE for a token. NULL: all rows are tokens. */
    const float *picture;
    const uint32_t *picture_row;
    /* Last position that each row sees: of its picture, of its block of drafts, or its own. */
    const uint32_t *last;
    /* By class of pages: the page of each row's position, and the page tables. */
    const uint32_t *row_page[PAGE_CLASSES], *page_table[PAGE_CLASSES];
    /* index of the row's position in its page */
    const uint32_t *row_slot;
    const uint32_t *row_seq, *want_row;
    const struct plan_seq *seq;
    const struct attn_item *item, *wide_item;
    const struct attn_merge *merge;
};

/* Makes the work list of attention for the batch (plan.cu); item, wide_item and merge have room for
 * it. Grid: 1. */
struct plan_args {
    struct batch_head *batch;
    /* wide_item: items of more than `few` queries; NULL: they are in item */
    struct attn_item *item, *wide_item;
    struct attn_merge *merge;
    uint32_t group, n_head_kv, n_multiprocessors, max_partials;
    /* 0: nothing is shared */
    uint32_t page_tokens;
    /* Queries of a block with one chunk (ATTN_QUERIES or ATTN_LATENT), with all chunks
     * (attend_kernel.queries), and with chunks for several sequences (`few`, or more). */
    uint32_t few, wide, shared;
    /* A block of few queries goes over all chunks of its sequence if that takes at most 1 / part of
     * a multiprocessor's share of the work. */
    uint32_t part;
    /* A sequence of one row that has more chunks of its own is split. */
    uint32_t long_chunks;
    /* Time of a chunk for a block of many queries, in times of one for a block of few. */
    uint32_t wide_worth;
    /* in some layer, rows see keys up to batch_head.last */
    uint32_t two_way;
};

/* -- rows -------------------------------------------------------------------------------------- */

/* Computes x[row] = scale times the embedding of the row's token, or the first values of the
 * picture's row; grid: rows. */
struct embed_args {
    const struct batch_head *batch;
    struct tile_source table;
    /* the table as tiles; NULL: `table` has the rows */
    const uint8_t *tiles;
    uint32_t format, n_units;
    /* matrix.inverse of the tiles */
    float inverse;
    /* [2][max_wants] tokens of the steps before */
    const int32_t *sampled;
    /* x: [rows][n_embd] */
    float *x, scale;
    /* model_shape.n_picture */
    uint32_t picture_width;
};

/* Adds values [first, first + n) of the picture's row to x, for rows of pictures; grid: rows. */
struct deep_args {
    const struct batch_head *batch;
    /* [rows][n] */
    float *x;
    uint32_t n, first, picture_width;
};

#define ROPE_TABLES 3u

/* Computes cos and sin (times mscale) of every pair at every row's position, and the factor of the
 * row's queries (struct temper); grid: x rows, y tables. */
struct rope_args {
    const struct batch_head *batch;
    /* [rows], or NULL: queries have no factor */
    float *temper;
    float slope;
    uint32_t span, ahead;
    struct {
        const double *freq;
        /* [n_pairs] index into batch_head.at; NULL: 0 for all pairs */
        const uint8_t *axis;
        /* [rows][n_pairs][2] */
        float *rope;
        uint32_t n_pairs;
        float mscale;
    } table[ROPE_TABLES];
};

/* Function that a pack applies. SILU and those after it have two operands: the gates of an FFN
 * (enum glu) and of attention. RELU, max(x, 0)^2, GELU_ALONE and XIELU have one, for an FFN without
 * gates. Bits above PACK_GATE hold the limit of GLU_CUT, or with PACK_BEHIND that of GLU_SILU. */
enum pack_kind {
    PACK_PLAIN,
    PACK_NORM,
    PACK_RELU,
    PACK_GELU_ALONE,
    PACK_XIELU,
    PACK_SILU,
    PACK_GELU,
    PACK_CLAMPED,
    PACK_GATE
};
#define PACK_BEHIND 0x80000000u

/* Packs rows of f32 to half precision operands of matrix products: PLAIN x, NORM rms norm of x
 * times weight, SILU silu(x) * up, GELU and CLAMPED like their enum glu, GATE x * sigmoid(up). A
 * row is multiplied by a power of two that takes its largest magnitude to [2^13, 2^14); scale[row]
 * undoes it. packed: [rows / 8][PACK_PLANES][n_padded / 32][8][32], 32 columns in the order of
 * pack_place(); n_padded is a multiple of 64. The second plane (BYTES_FAMILY) has 8-bit codes, 16
 * bytes for lane t of a row's four: columns 4t .. 4t + 3, 16 + 4t .. 16 + 4t + 3; then as a float
 * the scale of 128 columns (max / 127, or infinite) if t is 0, else the scaled sum of the 32 codes;
 * then two halves whose sum is the mean of the t-th 32 of the 128 columns. Kernels: pack and
 * pack_dry for PLAIN and NORM, pack_activated for kinds of one operand, pack_gated for the others.
 * Grid: rows; PACK_THREADS threads. */
struct pack_args {
    /* [rows][n], likewise or NULL, [n] or NULL */
    const float *x, *up, *weight;
    /* NULL: the grid has one block for each row */
    const struct batch_head *batch;
    /* not 0: only rows with wants */
    uint32_t wanted;
    /* rows of x for each row of the batch; 0: 1 */
    uint32_t each;
    uint16_t *packed;
    /* [rows] */
    float *scale;
    uint32_t kind, n, n_padded;
    /* for wgmma: [rows / 128][n_padded / 64][16][4][2][8][8], one bulk copy for each slice */
    uint32_t cores;
    /* values from a row of x or up to the next; 0: n */
    uint32_t x_stride, up_stride;
    float eps;
    /* power of two by which rows are multiplied (bounds.h); 0: that of each row's largest value */
    float fixed;
    /* of XIELU */
    struct xielu xielu;
    /* pack_dry: [n], which no kernel changes */
    const float *settled;
};

/* Replaces the gates g of a row by max(g - (mean + sparsity deviation), 0), with the mean and the
 * standard deviation of a sample of the row's gates. Grid: rows. */
struct thin_args {
    const struct batch_head *batch;
    /* [rows][n] */
    float *gate;
    uint32_t n;
    float sparsity;
};

/* Computes hidden = rms norm of x times weight, with the bits of a NORM pack; @centred: of x -
 * mean, plus @bias if there is one; without weight a copy of x. With @kept also stores the last
 * @n_kept rows of each sequence, position p at index p % n_kept of its slot. Grid: rows;
 * PACK_THREADS threads. */
struct keep_args {
    /* not read if `row` is set */
    const struct batch_head *batch;
    /* [rows][n], [n] or NULL */
    const float *x, *weight, *bias;
    /* the row of x for each row of hidden; NULL: the same row */
    const uint32_t *row;
    /* [rows][n]; [slots][n_kept][n] or NULL */
    float *hidden, *kept;
    uint32_t n, n_kept, centred;
    float eps;
};

/* Computes and packs pair = (rms norm of x times x_norm, rms norm of h times h_norm), where h is
 * the hidden state of the position before: that of the row before, else the one kept in the slot,
 * else zeros. If hidden states have more than n_x values, h is the n_x from @part on. x NULL: that
 * half of pair is unchanged. @keeps: afterwards the last rows of hidden are kept as in keep_args.
 * Grid: rows; PACK_THREADS threads. */
struct pair_args {
    const struct batch_head *batch;
    /* [rows][n_x] or NULL, [rows][n], [n_x] twice */
    const float *x, *hidden, *x_norm, *h_norm;
    /* [slots][n_kept][n], [rows][2 n_x] */
    float *kept, *pair;
    uint32_t n, n_kept, keeps, n_x, part;
    float eps;
    /* packs pair */
    struct pack_args pack;
};

/* Code for compute capability @v / 10 multiplies 8-bit codes where the format allows it
 * (weights_bytes.cuh). */
#define BYTES_FAMILY(v) ((v) == 86 || (v) == 89 || (v) >= 120)

/* Returns the index of column @k (0 to 31) among the 32 packed columns of a row: lane t of a row's
 * four finds its columns of both blocks of 16, 4t, 4t + 2, 4t + 1, 4t + 3, in 16 bytes. */
MX_FN uint32_t pack_place(uint32_t k) {
    return k % 16 / 4 * 8 + k / 16 * 4 + k % 2 * 2 + k % 4 / 2;
}

/* A product whose split-K sums residual() adds up: sums as the blocks left them (WIDE_SPLIT_BYTES).
 * The product is their sum from left to right, times scale[row] and @inverse, plus bias. */
struct left {
    /* NULL: y is complete */
    const float *sums;
    const float *scale, *bias;
    /* blocks of MATMUL_COLUMNS rows of activations */
    uint32_t n_columns;
    float inverse;
};

/* Applies qk-norm and RoPE, and stores keys and values in their pages; grid: x rows, y (n_head +
 * n_kv) / 8. q is changed in place. v may be k: the values are then the keys before their norm.
 * Kernel store_latent: applies RoPE to the last n_rot of a query's @width values, in place, and to
 * those of the row's latent vector k; the other values of k get the norm k_norm. k is stored in its
 * page as the key. The temper factor multiplies both parts of a query: those values and @latent;
 * grid: x rows, y (n_head + 1) / 8, rounded up.
 * Kernel holes: stores keys whose score is not finite for any query, and zeros as values; grid: x
 * rows, y n_kv / 8. */
struct store_args {
    const struct batch_head *batch;
    /* [rows][n_head][head_dim] */
    float *q;
    /* [rows][n_head_kv][head_dim], and of values n_value in place of head_dim */
    const float *k, *v;
    /* [head_dim] or NULL */
    const float *q_norm, *k_norm;
    /* [rows][n_rot / 2][2]: cos, sin; store_latent: NULL: no rotation */
    const float *rope;
    /* [rows]: factor of the queries; NULL: 1 */
    const float *temper;
    /* store_latent: [rows][n_head][head_dim - n_rot], the queries' part for latent vectors */
    float *latent;
    /* pages of the layer */
    uint8_t *pages;
    /* class of the pages */
    uint32_t cls;
    struct page_shape shape;
    uint32_t n_head, n_rot, neox;
    /* values of a value; the page has zeros behind them */
    uint32_t n_value;
    /* heads of keys and values that are stored: all, or 0 */
    uint32_t n_kv;
    /* values get a norm without weights */
    uint32_t v_unit;
    /* q_norm and k_norm multiply after RoPE, which does not change the length of a head */
    uint32_t norm_late;
    /* Lengths of the runs of a head that are multiplied by the Hadamard matrix (shape.h), of
     * queries and keys, and of values; 0: none. */
    uint32_t run_k, run_v;
    /* store_latent: values of a query */
    uint32_t width;
    float eps;
};

#define LATENT_KEY 576u   /* values of a key of latent attention, at most */
#define LATENT_VALUE 512u /* most values of a latent key that are the value */

/* Computes to = (base + gain t') * scale, where t' = t or, with @norm, its rms norm times @norm;
 * base NULL: zeros. If @left has sums, t is computed from them first. With @packs, rows of `to` are
 * packed. Grid: rows. */
struct residual_args {
    const struct batch_head *batch;
    /* [rows][n] */
    float *t;
    /* [n] or NULL, [rows][n] or NULL */
    const float *norm, *base;
    struct left left;
    /* [rows][n]; may be base */
    float *to;
    float gain, scale, eps;
    uint32_t n, packs;
    struct pack_args pack;
};

/* Computes p = (rms norm of p scale times norm + own times the token's row of the table) sqrt(1/2),
 * where the norm is over the n values of each layer; a picture's row has token 0. Grid: x rows, y
 * layers / 8. */
struct layer_input_args {
    const struct batch_head *batch;
    /* [tokens][n_layer n] */
    struct tile_source table;
    const int32_t *sampled;
    /* [n] */
    const float *norm;
    /* [rows][n_layer][n] */
    float *p;
    uint32_t n, n_layer;
    float scale, own, eps;
};

/* Computes logits = cap(scale logits); cap 0: no cap. Grid: x n / CUDA_THREADS, rounded up, y
 * rows. */
struct cap_args {
    /* number of rows, or NULL */
    const uint32_t *count;
    /* [rows][n] */
    float *logits;
    uint32_t n;
    float scale, cap;
};

/* Multiplies o by ln(1 + e^gate), or by the sigmoid of the gate, in place; a row has a gate for
 * each of n values or for each head. Grid: x rows. */
struct soft_gate_args {
    const struct batch_head *batch;
    /* [rows][n_gate] */
    const float *gate;
    /* [rows][n] */
    float *o;
    uint32_t n, n_gate, sigmoid;
};

/* Multiplies the heads of o by the Hadamard matrix of @run, in place, which undoes the rotation of
 * the values in pages. Grid: x rows, y heads / 8, rounded up. */
struct hadamard_args {
    const struct batch_head *batch;
    /* [rows][n_head][head_dim] */
    float *o;
    uint32_t n_head, head_dim, run;
};

/* Copies a page of all layers, on the device or in pinned host memory; grid: x parts of a page, y
 * layers. */
struct copy_args {
    const uint8_t *from;
    uint8_t *to;
    /* bytes from a layer to the next; bytes of a layer's page: multiples of 16 */
    size_t from_layer, to_layer, page_bytes;
};

/* -- matrices ---------------------------------------------------------------------------------- */

/* A weight matrix, or the matrices of all experts one after the other, and the destination of its
 * product. */
struct matrix {
    const uint8_t *tiles;
    /* or NULL */
    const float *bias;
    /* factor of each expert's sums, or NULL */
    const float *scale;
    /* tile_grid_of() of its type */
    const void *grid;
    /* [rows][n_out] */
    float *y;
    uint32_t format, n_out, n_units, n_row_tiles;
    /* 2^-unit times the tensor's scale: from weights of tiles to those of the file */
    float inverse;
    /* tile_stage_bytes(), tile_stage_units() */
    uint32_t stage_bytes, stage_units;
    /* Start of each segment, in units and in bytes. */
    uint32_t unit[TILE_SEGMENTS + 1], bytes[TILE_SEGMENTS + 1];
};

/* Fills in the members that follow from format and size. */
MX_FN void matrix_cut(struct matrix *m, uint32_t n_in) {
    m->n_units = tile_units(m->format, n_in);
    m->n_row_tiles = (m->n_out + TILE_ROWS - 1) / TILE_ROWS;
    m->stage_bytes = tile_stage_bytes(m->format);
    m->stage_units = tile_stage_units(m->format);
    for (uint32_t s = 0; s <= TILE_SEGMENTS; s++) {
        m->unit[s] = tile_segment(m->n_units, s);
        m->bytes[s] = m->unit[s] * tile_bytes(m->format);
    }
}

#define MATMUL_MATRICES 4 /* most matrices of a launch */

/* The first @bytes of a matrix's tiles. */
struct ahead {
    const uint8_t *tiles;
    uint32_t bytes;
};

/* Computes y (+)= W x + bias for matrices that share x. matvec: up to 8 rows, matvec_16: up to 16,
 * and the same with a dry run, matvec_dry and matvec_16_dry (dry.cuh); grid x: row tiles of all
 * matrices, or fewer if all have one format: a block takes every gridDim.x-th. matmul_wide: grid x:
 * n_panels n_splits. Dynamic shared memory: that of the largest format. */
struct matmul_args {
    struct matrix m[MATMUL_MATRICES];
    /* [n_rows] packed (pack_args) */
    const uint16_t *x;
    /* [n_rows] */
    const float *scale;
    /* how many of n_rows exist, or NULL: all */
    const uint32_t *count;
    /* n_blocks: of 16 columns, in x */
    uint32_t n_mats, n_rows, n_blocks;
    /* matvec: row tiles of all matrices; the largest tile_stage_bytes(); stages of a ring, 2 or
     * 3 */
    uint32_t n_tiles, stage_bytes, n_stages;
    uint32_t add;
    /* gated: 0, or n_row_tiles of gate m[0] and up m[1], which have one format and size: m[0].y =
     * the function @glu (enum pack_kind) of both. In matmul_wide each has half of a block's rows;
     * `add` and split-K are not supported then. */
    uint32_t gated, glu;
    /* With gates: instead of m[0].y, packs its rows times the power of two @fixed, for a product by
     * the same kind of kernel; n_out is a multiple of 64. packed NULL: not. */
    uint16_t *packed;
    /* [n_rows] of packed */
    float *packed_scale;
    float fixed;
    /* matmul_wide: a panel is 128 rows of a matrix by 64 rows of activations; n_columns panels
     * cover the activations. n_splits: blocks that share the segments of a panel, a power of two up
     * to TILE_SEGMENTS. If it is above 1, each panel needs WIDE_SPLIT_BYTES of @sums and an element
     * of @arrived; the last block adds up y, or, with @leave, none does. Matrices with shared
     * segments have at least TILE_SEGMENTS units. */
    uint32_t n_columns, n_panels, n_splits, leave;
    /* zero before and after the kernel */
    uint32_t *arrived;
    float *sums;
    /* matvec: what blocks prefetch to the L2 cache at their ends (prefetch_ahead()) */
    struct ahead ahead[MATMUL_MATRICES];
};

/* Split-K: sums of a panel, [MATMUL_COLUMNS][WIDE_OUT] floats for each segment. */
#define WIDE_OUT 128u /* rows of the matrix in a panel */
#define WIDE_SUMS (MATMUL_COLUMNS * WIDE_OUT)
#define WIDE_SPLIT_BYTES (TILE_SEGMENTS * WIDE_SUMS * 4u)

/* Returns the bytes of dynamic shared memory of matvec; @stage_bytes: the largest of its
 * matrices. */
MX_FN uint32_t matvec_shared(uint32_t stage_bytes, uint32_t n_stages) {
    return CUDA_THREADS / 32 * n_stages * stage_bytes;
}

/* Number of stages, of @slices slices each, of a ring that holds weights @n slices ahead. */
#define SLOTS_AHEAD(slices, n) (((n) + (slices)) / (slices) + 1)
MX_FN uint32_t weight_slots(uint32_t format, uint32_t n) {
    uint32_t slices = tile_k(format) * tile_stage_units(format) / 64; /* slices of a stage */

    return SLOTS_AHEAD(slices, n);
}

#define wide_slots(format) weight_slots(format, WIDE_SLICES - 2)

/* Returns the bytes of dynamic shared memory of matmul_wide. */
MX_FN uint32_t wide_shared(uint32_t format) {
    return WIDE_SLICES * WIDE_SLICE_BYTES +
           CUDA_THREADS / 32 * wide_slots(format) * tile_stage_bytes(format);
}

/* Products of rows that are packed as core matrices (pack_args.cores): matmul_wgmma has panels of
 * 128 rows of activations, matmul_wgmma_64 of 64 like matmul_wide. Dynamic shared memory:
 * wgmma_shared(). */
#define WGMMA_ROWS 128u
#define WGMMA_SLICES(n_rows) ((n_rows) == WGMMA_ROWS ? 5u : 4u)
#define WGMMA_SLICE_BYTES(n_rows) ((n_rows)*64u * 2u)
#define WGMMA_AHEAD 4u /* slices by which copies of weights are ahead */
#define wgmma_slots(format) weight_slots(format, WGMMA_AHEAD)

/* Bytes of shared memory of matmul_wgmma (@n rows: WGMMA_ROWS) and matmul_wgmma_64 (64). */
MX_FN uint32_t wgmma_shared(uint32_t n, uint32_t format) {
    return WGMMA_SLICES(n) * WGMMA_SLICE_BYTES(n) +
           CUDA_THREADS / 32 * wgmma_slots(format) * tile_stage_bytes(format);
}

/* matmul_wgmma_join computes the products of matmul_wgmma_64 by clusters of WGMMA_JOIN blocks, one
 * for each panel, which add up its segments in their shared memory. Grid x: panels WGMMA_JOIN;
 * n_splits is WGMMA_JOIN. Dynamic shared memory: wgmma_join_shared() of the largest format. */
#define WGMMA_JOIN 4u
#define WGMMA_JOIN_BASE 128u /* bytes of the barriers in front */

/* Returns the bytes of dynamic shared memory of matmul_wgmma_join: those of the ring or, later, of
 * the sums that other blocks send. */
MX_FN uint32_t wgmma_join_shared(uint32_t format) {
    uint32_t ring = wgmma_shared(MATMUL_COLUMNS, format);
    uint32_t sums = TILE_SEGMENTS / WGMMA_JOIN * WIDE_SUMS * 4; /* a quarter of all segments */

    return WGMMA_JOIN_BASE + (ring < sums ? sums : ring);
}

/* matmul_roles_N computes the products of matmul_wide for up to N rows that are packed as core
 * matrices: panels of ROLES_OUT rows of a matrix, with gates half as many of each. ROLES_THREADS
 * threads: ROLES_GROUPS groups of 128 multiply, the last group copies. Grid x: panels n_splits; the
 * sums of shared segments are those of matmul_wide's panels. Dynamic shared memory: roles_shared()
 * of the largest format. */
#define ROLES_GROUPS 3u
#define ROLES_TILES (ROLES_GROUPS * 4u)
#define ROLES_OUT (ROLES_TILES * 16u)
#define ROLES_THREADS ((ROLES_GROUPS + 1) * 128u)
#define ROLES_STAGES 7u           /* most stages of the ring */
#define ROLES_SHARED (194u << 10) /* bytes of a ring, at most: see SHARED_USED */
#define ROLES_WIDE_TILES 8u       /* row tiles of a panel of matmul_roles_96 and _128 */

/* Returns the number of tiles of a row of tiles in a stage, 64 to 256 columns. */
MX_FN uint32_t roles_units(uint32_t format) {
    return tile_k(format) == 256 ? 1 : tile_stage_units(format);
}

/* Returns the bytes of a stage: slices of @n rows of the activations, then a row of tiles for each
 * warp. */
MX_FN uint32_t roles_stage_bytes(uint32_t n, uint32_t format) {
    uint32_t units = roles_units(format), tiles = ROLES_TILES;

    if (n > MATMUL_COLUMNS)
        tiles = ROLES_WIDE_TILES;
    return units * (tile_k(format) * n * 2 + tiles * tile_bytes(format));
}

/* Returns the number of stages of the ring. */
MX_FN uint32_t roles_stages(uint32_t n, uint32_t format) {
    uint32_t most = ROLES_SHARED / roles_stage_bytes(n, format);

    return most < ROLES_STAGES ? most : ROLES_STAGES;
}

/* Returns the bytes of dynamic shared memory of matmul_roles_@n. */
MX_FN uint32_t roles_shared(uint32_t n, uint32_t format) {
    return roles_stages(n, format) * roles_stage_bytes(n, format);
}

/* Returns the number of panels of a product, from its matrices and a.gated. */
MX_FN uint32_t roles_panels(const struct matmul_args *a) {
    uint32_t n = 0;

    if (a->gated)
        return (a->gated + ROLES_TILES / 2 - 1) / (ROLES_TILES / 2);
    for (uint32_t i = 0; i < a->n_mats; i++)
        n += (a->m[i].n_row_tiles + ROLES_TILES - 1) / ROLES_TILES;
    return n;
}

/* matmul_roles_96_* and matmul_roles_128_*, for the formats in their names, have panels of WIDE_OUT
 * rows of a matrix, with gates half as many of each, by 96 or 128 rows of activations: the first up
 * to 96 rows, the second for any number. ROLES_WIDE_THREADS threads: two groups of 128 multiply,
 * the last one copies. Grid x: parts (panels n_splits), or fewer: a block takes every gridDim.x-th.
 * Up to 128 rows may share segments; n_columns is that of matmul_wide, where the sums are. Dynamic
 * shared memory: roles_wide_shared(). */
#define ROLES_WIDE_THREADS 384u
#define ROLES_WIDE_BARRIERS 8u /* of each kind, for stages of the ring or halves of them */
#define ROLES_EXCHANGED 4u     /* sums of a thread that meet their gates or ups at a time */
#define ROLES_EXCHANGE_BYTES (ROLES_EXCHANGED * 256u * 4u)
/* bytes of the ring, at most */
#define ROLES_WIDE_ROOM (ROLES_SHARED - ROLES_EXCHANGE_BYTES - 2u * 8u * ROLES_WIDE_BARRIERS)

/* Returns the number of barriers of a stage: one for each half of a tile of 256 columns. */
MX_FN uint32_t roles_wide_barriers(uint32_t format) {
    return tile_k(format) == 256 ? 2 : 1;
}

/* Returns the number of columns of panels of @n rows. */
MX_FN uint32_t roles_columns(uint32_t n_rows, uint32_t n) {
    return (n_rows + n - 1) / n;
}

/* Returns the number of panels of a product with @n rows of each, from its matrices, their rows,
 * and a.gated. */
MX_FN uint32_t roles_wide_panels(const struct matmul_args *a, uint32_t n) {
    uint32_t half = ROLES_WIDE_TILES / 2, across = 0;

    if (a->gated)
        return (a->gated + half - 1) / half * roles_columns(a->n_rows, n);
    for (uint32_t i = 0; i < a->n_mats; i++)
        across += (a->m[i].n_row_tiles + ROLES_WIDE_TILES - 1) / ROLES_WIDE_TILES;
    return across * roles_columns(a->n_rows, n);
}

/* Sets of formats that these kernels multiply, a bit for each: those that files mix. With more of
 * them ptxas spills registers. */
#define ROLES_Q4K (1u << TILE_Q4_K | 1u << TILE_Q6_K)
#define ROLES_Q5K (1u << TILE_Q5_K | 1u << TILE_Q6_K)
#define ROLES_PLAIN (1u << TILE_F16 | 1u << TILE_Q8_0)

/* Returns the bytes of dynamic shared memory of a kernel for @formats, one of the sets. The ring
 * has stages of the largest format, and as many as all of them allow. */
MX_FN uint32_t roles_wide_shared(uint32_t n, uint32_t formats) {
    uint32_t bytes = 0, stages = ROLES_WIDE_BARRIERS;

    for (uint32_t f = 0; f < TILE_FORMATS; f++)
        if (formats >> f & 1) {
            uint32_t of_barriers = ROLES_WIDE_BARRIERS / roles_wide_barriers(f);
            uint32_t stage = roles_stage_bytes(n, f);

            bytes = stage > bytes ? stage : bytes;
            stages = of_barriers < stages ? of_barriers : stages;
        }
    if (stages * bytes > ROLES_WIDE_ROOM)
        stages = ROLES_WIDE_ROOM / bytes;
    return stages * bytes + (ROLES_SHARED - ROLES_WIDE_ROOM);
}

extern const bool matmul_wgmma_built; /* with code for a Hopper */

/* -- experts ----------------------------------------------------------------------------------- */

#define EXPERT_THREADS 128u             /* threads of a block of expert_vec() */
#define EXPERT_ROWS PACK_ROWS           /* pairs that expert_vec() takes at a time */
#define ROUTE_ROWS (CUDA_THREADS / 32u) /* rows of a block of route() */
#define ROUTE_PICKS 32u                 /* experts of a row, at most */
#define ROUTE_EXPERTS 1024u             /* experts, at most */
#define ROUTE_GROUPS 64u                /* groups of experts, at most */

/* An item of work: @n pairs of a row and an expert that it picked, all of one expert, from
 * list[expert][first] on. An entry of the list is row * ROUTE_PICKS + k for pick k of a row. */
struct expert_item {
    uint32_t expert, first, n;
};

/* Replaces an expert's number on the device: the expert is on the host. */
#define SLOT_HOST UINT32_MAX

/* Slots of a layer for fetched experts: a cache with least-recently-used eviction. A step's picks
 * that have no slot take the slots that were picked least recently, as long as there are slots that
 * this step has not picked. */
struct expert_slots {
    /* [n_expert] slot of each expert, or SLOT_HOST; NULL: no slots */
    uint32_t *slot;
    /* [n] expert in each slot; [n + 1] time at which each was picked, then the current time */
    uint32_t *expert, *since;
    uint32_t n, *n_moves;
    /* [n] experts to be fetched by this step, *n_moves of them, with their slots */
    uint32_t (*move)[2];
    /* count of picks of experts without a slot, or NULL */
    uint64_t *n_missed;
};

/* Picks experts like engine/experts.c, with the same bits. Pair r n_used + k is pick k of row r.
 * The last block makes from all picks the list of pairs of each expert, and the items of up to
 * @columns pairs, ordered by expert; both omit experts on the host and use the device's numbers of
 * experts, which keep the experts' order. The order of an expert's pairs is arbitrary, and no
 * result depends on it. Grid: x rows / ROUTE_ROWS. */
struct route_args {
    const struct batch_head *batch;
    /* [rows][n_expert]; [n_expert] for the choice only, or NULL */
    const float *logits, *bias;
    uint32_t n_expert, n_used, columns, n_tokens, stride;
    /* struct expert_rule */
    uint32_t gating, normalize, n_group, n_group_used;
    /* [n_tokens][n_used] fixed picks by token, or NULL; as in embed_args */
    const int32_t *table, *sampled;
    /* factors of the logits and of the weights */
    float in_scale, scale;
    /* [n_expert] numbers of experts on the device; NULL: it has all experts */
    const uint32_t *slot;
    /* [n_expert] counts of picks, or NULL */
    uint64_t *picks;
    /* [pairs] */
    uint32_t *expert;
    /* [pairs] */
    float *weight;
    /* [n_expert][stride] */
    uint32_t *list;
    /* [n_expert], then blocks that arrived: zero before and after the kernel */
    uint32_t *count;
    struct expert_item *item;
    uint32_t *n_items;
    struct expert_slots slots;
};

/* Fetches experts to their slots: the matrices of expert e are at host + e bytes, those of slot s
 * at here + s bytes; bytes is a multiple of 16, 0: no matrix. Grid: any. */
struct bring_args {
    const uint8_t *host[MATMUL_MATRICES];
    uint8_t *here[MATMUL_MATRICES];
    uint32_t bytes[MATMUL_MATRICES];
    const uint32_t (*move)[2], *n_moves;
};

/* Split-K within a block: the segments of a row of tiles of each warp of a team. */
struct expert_cut {
    uint32_t n_segments;
    /* first segment of each warp; a warp has any number of them, also none */
    uint32_t share[EXPERT_THREADS / 32 + 1];
};

/* Computes y[pair] = W[expert] x + bias[expert] for the items, or of weight[pair] x. Tiles and
 * bias of a matrix are those of expert 0; the others follow. A row of x belongs to a pair or to
 * the pair's row. Same bits as matmul of that row.
 * expert_vec: items of up to EXPERT_ROWS pairs. Two matrices are gate and up, of equal size: m[0].y
 * = the function @glu (enum pack_kind) of both. The warps of a block form @n_teams teams (1, 2 or
 * 4); a team computes one row tile at a time, and its warps share the segments. EXPERT_THREADS
 * threads; grid x: row tiles of all items / n_teams, or fewer: a block takes every gridDim.x-th.
 * expert_wide: items of up to MATMUL_COLUMNS pairs; grid x: items, or more, y: row tiles / 8 of
 * each matrix. Dynamic shared memory: expert_shared(), wide_shared() of the largest format. */
struct expert_args {
    struct matrix m[2];
    /* [pairs or rows] packed */
    const uint16_t *x;
    /* [pairs or rows] scales of the packed rows */
    const float *scale;
    /* n_blocks: of 16 columns, in x */
    uint32_t n_mats, n_blocks, n_used;
    /* number of experts */
    uint32_t n_experts;
    /* by_pair: a row of x is a pair */
    uint32_t by_pair, glu;
    /* stage_bytes: the largest */
    uint32_t n_teams, stage_bytes;
    struct expert_cut cut[2];
    const struct expert_item *item;
    const uint32_t *n_items, *list;
    uint32_t stride;
    /* [pairs] factors of the rows of x, or NULL */
    const float *weight;
    /* expert_slots.slot: a matrix's tiles are those of slot 0; or NULL */
    const uint32_t *slot;
    /* tiles of experts without a slot, those of expert 0 first */
    const uint8_t *host[2];
    /* expert_vec: the items were there before the kernel in front was launched (cuda_settle()), and
     * every expert's weights stay where they are, so weights are fetched before the wait */
    uint32_t settled;
};

/* Fills in n_teams, cut and stage_bytes for @n_teams teams per block. */
MX_FN void expert_cut_rows(struct expert_args *a, uint32_t n_teams) {
    uint32_t size = EXPERT_THREADS / 32 / n_teams;

    a->n_teams = n_teams;
    a->stage_bytes = 0;
    for (uint32_t i = 0; i < a->n_mats; i++) {
        const struct matrix *m = &a->m[i];
        struct expert_cut *c = &a->cut[i];

        c->n_segments = m->n_units < TILE_SEGMENTS ? m->n_units : TILE_SEGMENTS;
        for (uint32_t rank = 0; rank <= size; rank++)
            c->share[rank] = (rank * c->n_segments + size - 1) / size; /* the first has one */
        a->stage_bytes = a->stage_bytes < m->stage_bytes ? m->stage_bytes : a->stage_bytes;
    }
}

/* Returns the bytes of dynamic shared memory of expert_vec. */
MX_FN uint32_t expert_shared(uint32_t stage_bytes) {
    return EXPERT_THREADS / 32 * MATVEC_STAGES * stage_bytes;
}

/* Lists the heads of latent attention as experts that all rows pick: pair r n_head + h is head h of
 * row r, and entry i of a head's list is pair i n_head + h, with ROUTE_PICKS as n_used. Makes the
 * items of the batch's rows, head by head. Grid: 1. */
struct heads_args {
    const struct batch_head *batch;
    /* columns: most pairs of an item */
    uint32_t n_head, columns;
    struct expert_item *item;
    uint32_t *n_items;
};

/* Copies rows of x, their picks and the number of rows to host memory, for the experts on the host.
 * Grid: rows; PACK_THREADS threads. */
struct hand_over_args {
    const struct batch_head *batch;
    /* [rows][n] */
    const float *x;
    /* [rows][n_used] */
    const uint32_t *expert;
    const float *weight;
    uint32_t n, n_used;
    float *host_x, *host_weight;
    uint32_t *host_expert, *host_rows;
};

/* Computes to = x + the sum of weight y in the order of the picks (without x unless @adds), then
 * adds sigmoid(gate norm x) shared; with @packs, packs the row. Grid: rows; PACK_THREADS
 * threads. */
struct combine_args {
    const struct batch_head *batch;
    /* [rows][n_x] */
    const float *x;
    /* [rows][n]: columns of x from @first on; may be x */
    float *to;
    /* [pairs][n] results of the device's and of the host's experts */
    const float *y, *host_y;
    /* route_args.slot; NULL: all results are in y */
    const uint32_t *slot;
    /* weight: NULL: 1; weigh: a factor for each expert, or NULL */
    const float *weight, *weigh;
    const uint32_t *expert;
    /* [rows][n] result of the shared expert, or NULL */
    const float *shared;
    /* [n_x] gate and norm of the shared expert; norm may be NULL */
    const float *gate, *norm;
    float eps;
    /* adds: x is added */
    uint32_t n_x, first, n, n_used, adds, packs;
    struct pack_args pack;
};

/* -- sampling ---------------------------------------------------------------------------------- */

struct penal { /* a token of prompt or output, once */
    int32_t token;
    /* in the output */
    uint32_t count;
};

struct bias_entry { /* an engine_bias in the device's layout */
    int32_t token;
    float bias;
};

/* A want and the sampling parameters of its sequence, as in engine_want and engine_param; a list is
 * the index of its first element and its length. */
struct sample_want {
    float temperature, top_p, min_p, repetition, presence, frequency;
    uint64_t seed;
    uint32_t choice, out_pos, top_k;
    uint32_t bias0, n_bias, ban0, n_bans, penal0, n_penals;
    /* index of the previous step's sample that precedes the row, or -1 */
    int32_t fed;
    /* >= 0: the token is given, and nothing is sampled */
    int32_t target;
    uint8_t n_top, logprob;
};

/* One of the best tokens. */
struct sample_top {
    int32_t token;
    float logprob;
};

/* Result of a want, as in struct engine_out. */
struct sample_out {
    int32_t token;
    float logprob;
    uint64_t digest;
    uint32_t n_top;
    struct sample_top top[20];
};

#define SAMPLE_BLOCKS 32u /* most blocks that share a row of logits */
#define SAMPLE_BINS 4096u /* the upper 12 bits of a logit */
#define SAMPLE_LIST 4096u /* most tokens among which a cut (top_k, top_p) is found */
#define SAMPLE_TOP 20u

/* The best key so far, and its token. */
struct sample_drawn {
    uint64_t key;
    uint32_t id;
};

/* State of a want between its launches. All zero before the first use. */
struct sample_state {
    /* Sums and maxima over the blocks of a launch; the last block reads them. */
    uint64_t best, best_raw, digest, sum, total, n_finite;
    uint32_t n_arrived, n_listed;
    uint64_t bins[SAMPLE_BINS];
    /* Written by sample_scan: maxima of the processed and of the raw logits, and whether the token
     * is known. */
    float max, max_raw;
    uint32_t settled;
    /* Written by sample_weigh. */
    uint32_t bin;
    uint64_t weight, logprob_sum;
    uint64_t tops[SAMPLE_BLOCKS][SAMPLE_TOP];
    struct sample_drawn drawn[SAMPLE_BLOCKS];
    uint64_t list[SAMPLE_LIST];
};

/* Argument of sample_scan, then of sample_weigh and sample_draw if any want needs them
 * (sample_needs()), all with the same grid: x blocks that share a row, up to SAMPLE_BLOCKS, y
 * wants; SAMPLE_THREADS threads. */
struct sample_args {
    const struct sample_want *want;
    struct sample_state *state;
    /* [wants][n_vocab] */
    const float *logits;
    /* [wants][n_vocab] logits after the processors */
    float *z;
    const struct bias_entry *bias;
    const int32_t *ban;
    const struct penal *penal;
    /* [masks][mask_words] */
    const uint32_t *mask;
    /* [wants]: index of a mask; -1: none */
    const int32_t *mask_index;
    /* samples of the previous step */
    const int32_t *fed_from;
    /* [wants] */
    int32_t *sampled;
    struct sample_out *out;
    uint32_t n_vocab, mask_words, digest;
    /* capacity of state.list: SAMPLE_LIST, or less for tests */
    uint32_t list_max;
};

/* Returns true if top_k excludes any token. */
MX_FN bool sample_has_top_k(const struct sample_want *w, uint32_t n_vocab) {
    return w->top_k > 0 && w->top_k < n_vocab;
}

enum { SAMPLE_SCORE = 1, SAMPLE_CUT = 2, SAMPLE_WEIGH = 3, SAMPLE_DRAW = 4 };

/* Returns the work that a want needs: SCORE (log probabilities) and CUT (top_k or top_p) by
 * sample_weigh, DRAW by sample_draw. */
MX_FN uint32_t sample_needs(const struct sample_want *w, uint32_t n_vocab) {
    bool draws = w->target < 0 && w->temperature >= SAMP_T_MIN;
    uint32_t needs = 0;

    if (w->logprob || w->n_top)
        needs |= SAMPLE_SCORE;
    if (draws)
        needs |= SAMPLE_DRAW;
    if (draws && (w->top_p < 1 || sample_has_top_k(w, n_vocab)))
        needs |= SAMPLE_CUT;
    return needs;
}

/* How a kernel is launched, as a sum. LAUNCH_EARLY: its blocks may start while the previous kernel
 * still runs, for which it waits itself (device.cuh). LAUNCH_LATE: it lets the next kernel start
 * only where it waits, not where it begins. */
enum launch_how { LAUNCH_EARLY = 1, LAUNCH_LATE = 2 };

/* -- addresses: what cuda_api.launch() takes --------------------------------------------------- */

typedef const void *const kernel_address;

#define PLAIN_OF_PAGES(NAME, K, V, X) X(NAME),
/* X(NAME), .. of the kernels without dynamic shared memory. */
#define PLAIN_KERNELS(X)                                                                           \
    X(repack), X(scale_tiles), X(embed), X(deep), X(layer_input), X(rope), X(pack), X(pack_dry),   \
        X(pack_activated), X(pack_gated), X(keep), X(pair), X(store), X(store_latent), X(holes),   \
        X(hadamard), X(residual), X(soft_gate), X(thin_gates), X(cap), X(copy_page), X(convolve),  \
        X(candidates), X(choose_candidate), X(chain), X(plan), X(merge), X(list_heads), X(route),  \
        X(bring), X(hand_over), X(combine), X(delta_in), X(delta), X(kda), X(delta_out),           \
        X(mamba_in), X(mamba), X(mamba_out), X(conv), X(conv_keep), X(scan_in), X(scan),           \
        X(scan_heads), X(hc_in), X(hc_out), X(turn_heads), X(mix_norm), X(mix_bend), X(mix_mean),  \
        X(alt_begin), X(alt_predict), X(alt_correct), X(alt_end), X(laurel), X(ngram_ask),         \
        X(ngram_decode), X(ngram_weigh), X(ngram_add), X(ngram_keep), X(compress), X(keep_rows),   \
        X(score_blocks), X(score_heads), X(choose_blocks), X(attend_compressed), X(mean_keys),     \
        FOR_PAGES(PLAIN_OF_PAGES, attend_sparse, X)                                                \
            FOR_PAGES_ALIKE(PLAIN_OF_PAGES, attend_sparse_latent, X) X(merge_sparse),              \
        X(hc_mean), X(sample_scan), X(sample_weigh), X(sample_draw), X(glu), X(gather),            \
        X(pack_shares), X(residual_shares), X(vis_row), X(vis_head), X(vis_attend_64),             \
        X(vis_attend_80), X(vis_attend_128)
#define KERNEL_ADDRESS(NAME) kernel_##NAME
extern kernel_address PLAIN_KERNELS(KERNEL_ADDRESS);
extern kernel_address kernel_matvec, kernel_matvec_16; /* matvec_for() */
extern kernel_address kernel_matvec_dry, kernel_matvec_16_dry;
extern kernel_address kernel_expert_vec, kernel_expert_wide, kernel_matmul_wide,
    kernel_matmul_wgmma, kernel_matmul_wgmma_64, kernel_matmul_wgmma_join, kernel_matmul_roles_24,
    kernel_matmul_roles_32, kernel_matmul_roles_48, kernel_matmul_roles_64;

/* Returns the kernel for up to 64 rows, and in *columns its number of rows. */
static inline const void *roles_for(uint32_t n_rows, uint32_t *columns) {
    const void *const kernels[] = {kernel_matmul_roles_24, kernel_matmul_roles_32,
                                   kernel_matmul_roles_48, kernel_matmul_roles_64};
    static const uint32_t sizes[] = {24, 32, 48, 64};
    uint32_t i = 0;

    while (i < 3 && sizes[i] < n_rows)
        i++;
    *columns = sizes[i];
    return kernels[i];
}

extern kernel_address kernel_matmul_roles_96_q4k, kernel_matmul_roles_128_q4k,
    kernel_matmul_roles_96_q5k, kernel_matmul_roles_128_q5k, kernel_matmul_roles_96_plain,
    kernel_matmul_roles_128_plain;

/* Returns the kernel of panels of @n rows, 96 or 128, for a matrix of format @format, and all its
 * formats in *formats. NULL: there is none. */
static inline const void *roles_wide_for(uint32_t n, uint32_t format, uint32_t *formats) {
    const struct {
        uint32_t formats;
        const void *kernel[2];
    } sets[] = {
        {ROLES_Q4K, {kernel_matmul_roles_96_q4k, kernel_matmul_roles_128_q4k}},
        {ROLES_Q5K, {kernel_matmul_roles_96_q5k, kernel_matmul_roles_128_q5k}},
        {ROLES_PLAIN, {kernel_matmul_roles_96_plain, kernel_matmul_roles_128_plain}},
    };

    for (uint32_t i = 0; i < sizeof(sets) / sizeof(*sets); i++)
        if (sets[i].formats >> format & 1) {
            *formats = sets[i].formats;
            return sets[i].kernel[n > 96];
        }
    return NULL;
}

/* Returns the matvec kernel for @n_rows rows: up to PACK_ROWS, or up to 16. */
static inline const void *matvec_for(uint32_t n_rows) {
    return n_rows > PACK_ROWS ? kernel_matvec_16 : kernel_matvec;
}

/* Returns the one with a dry run. */
static inline const void *matvec_dry_for(uint32_t n_rows) {
    return n_rows > PACK_ROWS ? kernel_matvec_16_dry : kernel_matvec_dry;
}

#ifdef __cplusplus
}
#endif
