#pragma once

/*
 * kernels - what the host and the kernels have in common: the argument of each kernel (one struct),
 * its grid and its address. The contract of a kernel stands with its arguments; the formulas with
 * its code.
 */

#include <stddef.h>
#include <stdint.h>
#include "engine/shared/pages.h"
#include "engine/shared/sampling.h"
#include "engine/shared/tiles.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_THREADS 256u /* threads of a block of every kernel, unless it says otherwise */
#define SAMPLE_THREADS 512u
#define PACK_THREADS 512u
#define PACK_ROWS 8u     /* rows of activations that lie together */
#define MATVEC_ROWS 16u  /* rows of activations that matvec() takes, at most */
#define MATVEC_STAGES 3u /* of a warp's cp.async ring, at most: one is used, the others in flight */
#define MATMUL_COLUMNS 64u /* rows of activations that a block of matmul_wide() takes */
#define WIDE_SLICES 4u
#define WIDE_SLICE_BYTES (MATMUL_COLUMNS * 64u * 2u)

/* -- loading ----------------------------------------------------------------------------------- */

/* One thread block packs one tile; grid: x units, y rows of tiles. */
struct repack_args {
    struct tile_source source; /* row 0: the first row of the first tile */
    uint8_t *tiles;
    uint32_t format, n_units;
    struct repack_found *found;
};

/* Largest scale and first fault that repack() has seen of a tensor so far. */
struct repack_found {
    uint64_t most; /* the largest tile_scale_size(): its bits in single precision */
    uint32_t bad;  /* 1 when a weight does not fit half precision */
};

/* The scales of @n_tiles tiles as the recipe wants them (tile_unit()). A warp a tile; grid: x tiles
 * / 8. */
struct scale_args {
    uint8_t *tiles;
    uint32_t format, n_tiles;
    int unit;
};

/* -- the batch --------------------------------------------------------------------------------- */

/* The results of queries that were split: what they share with others, then each of their own
 * chunks, that of query i of chunk c in partial + c - shared.n_chunks at place i. */
struct attn_merge {
    uint32_t row0, q0, n_q, partial, n_chunks;
    struct attn_shared shared;
    uint32_t item, seq; /* the first of its own items; its sequence */
};

/* A sequence of the batch, as plan reads it. */
struct plan_seq {
    uint32_t row0, n_rows, pos0; /* rows of the batch, position of the first */
    uint32_t page0;              /* first entry of its page table */
    uint32_t state;              /* slot of its state */
    uint32_t before; /* 1: the slot has the hidden state of the position before pos0 (kept.h) */
};

#define PAGE_CLASSES 2u /* KV_GLOBAL, KV_WINDOW */
#define ROPE_PLACES 3u  /* ROPE_AXES */
#define NO_PICTURE UINT32_MAX

/* A step's batch in device memory. All that changes from step to step is here and in the arrays
 * that it points to, so that the same launches, with the same arguments, serve every batch of up to
 * as many rows: a grid may be larger than there are rows, wants or items. */
struct batch_head {
    uint32_t n_rows, n_wants, n_seqs;
    uint32_t n_items, n_wide_items, n_merges; /* written by plan */
    const int32_t *token, *feed;              /* feed >= 0: the token is sampled[feed] */
    const uint32_t *pos;
    /* Rotary positions of the rows by axis (picture_rows.h). */
    const uint32_t *at[ROPE_PLACES];
    /* Rows of pictures in the step: [rows][model_shape.n_picture] values, and for each row of the
     * step its place among them, or NO_PICTURE for a token. NULL: all rows are tokens. */
    const float *picture;
    const uint32_t *picture_row;
    /* Last position of a row's picture, or of a block of drafts, or its own. */
    const uint32_t *last;
    /* By class of pages: the page of the row's position, and the tables. */
    const uint32_t *row_page[PAGE_CLASSES], *page_table[PAGE_CLASSES];
    const uint32_t *row_slot; /* token in the page */
    const uint32_t *row_seq, *want_row;
    const struct plan_seq *seq;
    const struct attn_item *item, *wide_item;
    const struct attn_merge *merge;
};

/* Makes the work list of attention for the batch; item, wide_item and merge have room for it. Grid:
 * 1. */
struct plan_args {
    struct batch_head *batch;
    struct attn_item *item, *wide_item; /* wide: those of more than few queries; NULL: none apart */
    struct attn_merge *merge;
    uint32_t group, n_head_kv, n_multiprocessors, max_partials;
    uint32_t page_tokens; /* 0: nothing is shared */
    /* Queries of a block that has one chunk (ATTN_QUERIES or ATTN_LATENT), that has all chunks
     * (attend_kernel.queries), that has chunks for several sequences (few, or more). */
    uint32_t few, wide, shared;
    uint32_t two_way; /* in some layer rows see keys up to batch_head.last */
};

/* -- rows -------------------------------------------------------------------------------------- */

/* x[row] = scale times the embedding of the row's token, or the first values of the picture's row;
 * grid: rows. */
struct embed_args {
    const struct batch_head *batch;
    struct tile_source table;
    const uint8_t *tiles; /* NULL: the table; else the same in tiles */
    uint32_t format, n_units;
    float inverse;          /* matrix.inverse of the tiles */
    const int32_t *sampled; /* [2][max_wants] tokens of the steps before */
    float *x, scale;        /* x: [rows][n_embd] */
    uint32_t picture_width; /* model_shape.n_picture */
};

/* x += values [first, first + n) of the picture's row, for rows of pictures; grid: rows. */
struct deep_args {
    const struct batch_head *batch;
    float *x; /* [rows][n] */
    uint32_t n, first, picture_width;
};

/* y[i] = rms norm of x[row[i]] times weight, in single precision, or x[row[i]] where there is no
 * weight; grid: n rows; PACK_THREADS threads. */
struct hidden_args {
    const float *x, *weight; /* [rows of x][n], [n] or NULL */
    const uint32_t *row;     /* [rows] of x */
    float *y;                /* [rows][n] */
    uint32_t n;
    float eps;
};

#define ROPE_TABLES 3u

/* cos and sin (times mscale) of every pair at every row's position, and the factor of its queries
 * (struct temper); grid: x rows, y tables. */
struct rope_args {
    const struct batch_head *batch;
    float *temper; /* [rows], or NULL: queries have no factor */
    float slope;
    uint32_t span;
    struct {
        const double *freq;
        const uint8_t *axis; /* [n_pairs] of batch_head.at; NULL: all pairs have the first */
        float *rope;         /* [rows][n_pairs][2] */
        uint32_t n_pairs;
        float mscale;
    } table[ROPE_TABLES];
};

/* From SILU on of two operands: the gates of an FFN (enum glu), and of attention. RELU: max(x,
 * 0)^2, of an FFN without gates. Above GATE: the bits of the limit of GLU_CUT, or with BEHIND that
 * of GLU_SILU. */
enum pack_kind { PACK_PLAIN, PACK_NORM, PACK_RELU, PACK_SILU, PACK_GELU, PACK_CLAMPED, PACK_GATE };
#define PACK_BEHIND 0x80000000u

/* Rows of f32 to the half precision operands of matmul: PLAIN x, NORM rms norm of x times weight,
 * SILU silu(x) * up, GELU and CLAMPED as their enum glu, GATE x * sigmoid(up). A row is multiplied
 * by a power of two that takes its largest magnitude to [2^13, 2^14); scale[row] undoes it.
 * packed: [rows / 8][PACK_PLANES][n_padded / 32][8][32], 32 columns in the order of pack_place();
 * n_padded: a multiple of 64. A second plane (BYTES_FAMILY) has codes of eight bits, 16 bytes for
 * lane t of a row's four: columns 4t .. 4t + 3, 16 + 4t .., then as floats the scale, max / 127 or
 * infinite, and the codes' sum times it.
 * pack: PLAIN and NORM, pack_gated: all others. Grid: rows; PACK_THREADS threads. */
struct pack_args {
    const float *x, *up, *weight;   /* [rows][n], likewise or NULL, [n] or NULL */
    const struct batch_head *batch; /* NULL: as many rows as the grid has */
    uint32_t wanted;                /* the rows that are wanted, not all */
    uint32_t each;                  /* rows of x for each of the batch; 0: 1 */
    uint16_t *packed;
    float *scale; /* [rows] */
    uint32_t kind, n, n_padded;
    uint32_t cores; /* for wgmma: [rows / 128][n_padded / 64][16][4][2][8][8], a copy a slice */
    uint32_t x_stride, up_stride; /* values from a row of x, of up, to the next; 0: n */
    float eps;
};

/* hidden = rms norm of x times weight, with the bits of a pack of NORM; @centred: of x - mean. With
 * @kept also the last @n_kept rows of each sequence, position p at p % n_kept of its slot. Grid:
 * rows; PACK_THREADS threads. */
struct keep_args {
    const struct batch_head *batch;
    const float *x, *weight; /* [rows][n], [n] */
    float *hidden, *kept;    /* [rows][n]; [slots][n_kept][n] or NULL */
    uint32_t n, n_kept, centred;
    float eps;
};

/* pair = (rms norm of x times x_norm, rms norm of h times h_norm), h the hidden state of the
 * position before: of the row before, else what the slot has kept, else zeros; packed. Of hidden
 * states with more values h is the n_x from @part on, and without x that half of pair stays.
 * @keeps: then hidden's last rows are kept as above. Grid: rows; PACK_THREADS threads. */
struct pair_args {
    const struct batch_head *batch;
    const float *x, *hidden, *x_norm, *h_norm; /* [rows][n_x] or NULL, [rows][n], [n_x] twice */
    float *kept, *pair;                        /* [slots][n_kept][n], [rows][2 n_x] */
    uint32_t n, n_kept, keeps, n_x, part;
    float eps;
    struct pack_args pack; /* packs pair */
};

/* Code for compute capability @v / 10 multiplies bytes where it can (weights_bytes.cuh). */
#define BYTES_FAMILY(v) ((v) == 86 || (v) == 89 || (v) >= 120)

/* Returns the place of column @k (0 to 31) among the 32 of a row: lane t of a row's four finds what
 * it needs of both blocks of 16, columns 4t, 4t + 2, 4t + 1, 4t + 3, in 16 bytes. */
MX_FN uint32_t pack_place(uint32_t k) {
    return k % 16 / 4 * 8 + k / 16 * 4 + k % 2 * 2 + k % 4 / 2;
}

/* A product that residual adds up: the sums of the segments as blocks that share them leave them
 * (WIDE_SPLIT_BYTES). y would be these from left to right, times scale[row] and @inverse, plus
 * bias. */
struct left {
    const float *sums; /* NULL: nothing is left, y is there */
    const float *scale, *bias;
    uint32_t n_columns; /* blocks of MATMUL_COLUMNS rows of activations */
    float inverse;
};

/* qk-norm, RoPE, keys and values into their pages; grid: x rows, y (n_head + n_kv) / 8. q is
 * changed in place. v may be k: what the keys are before their norm.
 * holes: instead keys whose score is not finite, whatever the query, and values of zeros; grid: x
 * rows, y n_kv / 8. */
struct store_args {
    const struct batch_head *batch;
    float *q;                     /* [rows][n_head][head_dim] */
    const float *k, *v;           /* [rows][n_head_kv][head_dim] */
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    const float *rope;            /* [rows][n_rot / 2][2]: cos, sin */
    const float *temper;          /* [rows]: queries are multiplied by it; NULL: by 1 */
    uint8_t *pages;               /* pages of the layer */
    uint32_t cls;                 /* class of the pages */
    struct page_shape shape;
    uint32_t n_head, n_rot, neox;
    uint32_t n_kv;   /* heads of keys and values that are stored: all, or 0 */
    uint32_t v_unit; /* values get a norm without weights */
    /* Lengths of the runs of a head that are multiplied by the Hadamard matrix (backend.h), of
     * queries and keys, and of values; 0: none. */
    uint32_t run_k, run_v;
    float eps;
};

/* Latent attention: the last n_rot of a query's @width values turn, in place, and of a row's latent
 * vector k the others get a norm: the key, to its page. Grid: x rows, y (n_head + 1) / 8, rounded
 * up. */
struct latent_args {
    struct store_args store; /* one head of n_rot values behind those with a norm, k_norm */
    uint32_t width;
};

#define LATENT_KEY 576u   /* values of a key of latent attention, at most */
#define LATENT_VALUE 512u /* most values of a latent key that are the value */

/* to = (base + gain t') * scale, t' = t or, with @norm, its rms norm times that; no base: zeros. t
 * is first what is @left, if anything is. Then, where @packs, rows of to are packed. Grid: rows. */
struct residual_args {
    const struct batch_head *batch;
    float *t;                 /* [rows][n] */
    const float *norm, *base; /* [n] or NULL, [rows][n] or NULL */
    struct left left;
    float *to; /* [rows][n]; may be base */
    float gain, scale, eps;
    uint32_t n, packs;
    struct pack_args pack;
};

/* p = (rms norm of p scale times norm + own times the row's token in the table) sqrt(1/2), for each
 * layer n values by themselves; a picture's row has token 0. Grid: x rows, y layers / 8. */
struct layer_input_args {
    const struct batch_head *batch;
    struct tile_source table; /* [tokens][n_layer n] */
    const int32_t *sampled;
    const float *norm; /* [n] */
    float *p;          /* [rows][n_layer][n] */
    uint32_t n, n_layer;
    float scale, own, eps;
};

/* logits = cap(scale logits), cap 0: no cap; grid: x n / CUDA_THREADS, rounded up, y rows. */
struct cap_args {
    const uint32_t *count; /* NULL, or how many rows there are */
    float *logits;         /* [rows][n] */
    uint32_t n;
    float scale, cap;
};

/* o times ln(1 + e^gate), or the sigmoid of the gate: a gate for each of n values of a row, or for
 * as many of them as there are heads; in place; grid: x rows. */
struct soft_gate_args {
    const struct batch_head *batch;
    const float *gate; /* [rows][n_gate] */
    float *o;          /* [rows][n] */
    uint32_t n, n_gate, sigmoid;
};

/* Heads of o times the Hadamard matrix of @run: values as they were before their pages; in place;
 * grid: x rows, y heads / 8, rounded up. */
struct hadamard_args {
    const struct batch_head *batch;
    float *o; /* [rows][n_head][head_dim] */
    uint32_t n_head, head_dim, run;
};

/* A page of all layers, on the device or in pinned host memory; grid: x parts of a page, y
 * layers. */
struct copy_args {
    const uint8_t *from;
    uint8_t *to;
    size_t from_layer, to_layer, page_bytes; /* to the next layer; of a layer: multiples of 16 */
};

/* -- matrices ---------------------------------------------------------------------------------- */

/* A weight matrix, or that of all experts one behind the other, and where its product goes. */
struct matrix {
    const uint8_t *tiles;
    const float *bias;  /* or NULL */
    const float *scale; /* factor of each expert's sums, or NULL */
    const void *grid;   /* tile_grid_of() its type */
    float *y;           /* [rows][n_out] */
    uint32_t format, n_out, n_units, n_row_tiles;
    float inverse; /* 2^-unit, which makes the file's weights of the tiles', times their scale */
    uint32_t stage_bytes, stage_units; /* tile_stage_bytes(), tile_stage_units() */
    /* Beginning of each segment, in units and bytes. */
    uint32_t unit[TILE_SEGMENTS + 1], bytes[TILE_SEGMENTS + 1];
};

/* Fills in what the format and the size of a matrix say of its tiles. */
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

/* y (+)= W x + bias for the matrices, which share x. matvec: up to 8 rows, matvec_16: up to 16;
 * grid x: row tiles of all matrices, or, of one format, fewer: a block takes every gridDim.x'th.
 * matmul_wide: grid x: matmul_wide_blocks(). Shared memory of the largest format. */
struct matmul_args {
    struct matrix m[MATMUL_MATRICES];
    const uint16_t *x;                 /* [n_rows] packed (pack_args) */
    const float *scale;                /* [n_rows] */
    const uint32_t *count;             /* NULL, or how many of n_rows there are */
    uint32_t n_mats, n_rows, n_blocks; /* n_blocks: of 16 columns, in x */
    /* matvec: row tiles of all; the largest tile_stage_bytes(); stages of a ring, 2 or 3 */
    uint32_t n_tiles, stage_bytes, n_stages;
    uint32_t add;
    /* gated: 0, or n_row_tiles of both matrices: m[0].y becomes what @glu, an enum pack_kind, makes
     * of the gate m[0] and the up m[1], which have one format and one grid. In matmul_wide half of
     * each block's rows are of either; nothing is added, nor are segments shared. */
    uint32_t gated, glu;
    /* matmul_wide: a panel is 128 rows of a matrix by 64 of the activations, n_columns of which
     * stand side by side. n_splits: blocks that share the segments of one, a power of two up to
     * TILE_SEGMENTS; beyond 1 the sums of each, WIDE_SPLIT_BYTES for each panel and of arrived,
     * which the last of them adds up to y, or, with @leave, none does. Matrices whose panels are
     * divided have TILE_SEGMENTS units or more. */
    uint32_t n_columns, n_panels, n_splits, leave;
    uint32_t *arrived; /* zeros, and zeros again when it ends */
    float *sums;
};

/* Blocks of matmul_wide. */
MX_FN uint32_t matmul_wide_blocks(const struct matmul_args *a) {
    return a->n_panels * a->n_splits;
}

/* Split-K: room for the sums of the blocks that share a panel's segments, for each segment
 * [MATMUL_COLUMNS][WIDE_OUT] floats. */
#define WIDE_OUT 128u /* rows of the matrix of a panel */
#define WIDE_SUMS (MATMUL_COLUMNS * WIDE_OUT)
#define WIDE_SPLIT_BYTES (TILE_SEGMENTS * WIDE_SUMS * 4u)

/* Bytes of shared memory of matvec; @stage_bytes: the largest of its matrices. */
MX_FN uint32_t matvec_shared(uint32_t stage_bytes, uint32_t n_stages) {
    return CUDA_THREADS / 32 * n_stages * stage_bytes;
}

/* Stages of @slices slices that are held so that weights come as far ahead as @n slices. */
#define SLOTS_AHEAD(slices, n) (((n) + (slices)) / (slices) + 1)
MX_FN uint32_t weight_slots(uint32_t format, uint32_t n) {
    uint32_t slices = tile_k(format) * tile_stage_units(format) / 64; /* slices of a stage */

    return SLOTS_AHEAD(slices, n);
}

#define wide_slots(format) weight_slots(format, WIDE_SLICES - 2)

/* Bytes of shared memory of matmul_wide. */
MX_FN uint32_t wide_shared(uint32_t format) {
    return WIDE_SLICES * WIDE_SLICE_BYTES +
           CUDA_THREADS / 32 * wide_slots(format) * tile_stage_bytes(format);
}

/* Products of rows that are packed as cores (pack_args): matmul_wgmma has 128 rows of activations a
 * panel, matmul_wgmma_64 has 64, as matmul_wide. Dynamic shared memory: wgmma_shared(). */
#define WGMMA_ROWS 128u
#define WGMMA_SLICES(n_rows) ((n_rows) == WGMMA_ROWS ? 5u : 4u)
#define WGMMA_SLICE_BYTES(n_rows) ((n_rows)*64u * 2u)
#define WGMMA_AHEAD 4u /* slices of weights that are under way */
#define wgmma_slots(format) weight_slots(format, WGMMA_AHEAD)

/* Bytes of shared memory of matmul_wgmma (@n rows: WGMMA_ROWS) and matmul_wgmma_64 (64). */
MX_FN uint32_t wgmma_shared(uint32_t n, uint32_t format) {
    return WGMMA_SLICES(n) * WGMMA_SLICE_BYTES(n) +
           CUDA_THREADS / 32 * wgmma_slots(format) * tile_stage_bytes(format);
}

extern const bool matmul_wgmma_built; /* with code for a Hopper */

/* -- experts ----------------------------------------------------------------------------------- */

#define EXPERT_THREADS 128u             /* threads of a block of expert_vec() */
#define EXPERT_ROWS PACK_ROWS           /* pairs that expert_vec() takes at a time */
#define ROUTE_ROWS (CUDA_THREADS / 32u) /* rows of a block of route() */
#define ROUTE_PICKS 32u                 /* experts of a row, at most */
#define ROUTE_EXPERTS 1024u             /* experts, at most */
#define ROUTE_GROUPS 64u                /* groups of experts, at most */

/* Up to so many pairs of a row and an expert that it picked, of one expert: list[expert][first] and
 * those behind it: row ROUTE_PICKS + k for pick k of a row. */
struct expert_item {
    uint32_t expert, first, n;
};

/* In the place of an expert's number on the device: the host has it. */
#define SLOT_HOST UINT32_MAX

/* Slots of a layer for experts that the device has for a time. A step's picks that are in none take
 * those that were picked least recently, as long as there are some that the step has not picked. */
struct expert_slots {
    uint32_t *slot;           /* [n_expert] of each expert, or SLOT_HOST; NULL: no slots */
    uint32_t *expert, *since; /* [n] in each slot; [n] when it was picked, then the time */
    uint32_t n, *n_moves;
    uint32_t (*move)[2]; /* [n] of which the step has *n_moves: an expert and its slot */
    uint64_t *n_missed;  /* picks of experts without a slot are added to it; or NULL */
};

/* Picks experts as engine/experts.c does, with its bits: pair r n_used + k is pick k of row r. What
 * the block that is last makes of all picks: the pairs by expert, and the list of items of up to
 * @columns of them, by expert; of experts that the host has neither. Items and lists have the
 * device's numbers of experts, which are its own in their order. The order of an expert's pairs is
 * any; nothing that is computed of a pair depends on it. Grid: x rows / ROUTE_ROWS. */
struct route_args {
    const struct batch_head *batch;
    const float *logits, *bias; /* [rows][n_expert]; of the choice alone, or NULL */
    uint32_t n_expert, n_used, columns, n_tokens, stride;
    uint32_t gating, normalize, n_group, n_group_used; /* struct expert_rule */
    const int32_t *table, *sampled; /* [n_tokens][n_used] the picks, or NULL; embed_args */
    float in_scale, scale;          /* factor of the logits; factor of the weights */
    const uint32_t *slot;           /* [n_expert] the device's numbers; NULL: it has all of them */
    uint64_t *picks;                /* [n_expert] are added to; or NULL */
    uint32_t *expert;               /* [pairs] */
    float *weight;                  /* [pairs] */
    uint32_t *list;                 /* [n_expert][stride] */
    uint32_t *count; /* [n_expert], then arrived: zeros, and zeros again when it ends */
    struct expert_item *item;
    uint32_t *n_items;
    struct expert_slots slots;
};

/* Copies the matrices of experts to their slots: those of expert e begin at host + e bytes, those
 * of slot s at here + s bytes, multiples of 16. bytes 0: there is none. Grid: any. */
struct bring_args {
    const uint8_t *host[MATMUL_MATRICES];
    uint8_t *here[MATMUL_MATRICES];
    uint32_t bytes[MATMUL_MATRICES];
    const uint32_t (*move)[2], *n_moves;
};

/* Split-K within a block: the segments of a row of tiles that each warp of a team has. */
struct expert_cut {
    uint32_t n_segments;
    uint32_t share[EXPERT_THREADS / 32 + 1]; /* the first segment of each member: 0, 1 or more */
};

/* y[pair] = W[expert] x + bias[expert] for the items: a matrix's tiles and bias are those of expert
 * 0, the others' follow. Row of x: the pair, or its row. The same bits as matmul of the one row.
 * expert_vec: items of up to EXPERT_ROWS pairs; two matrices are a gate and an up, of equal size:
 * m[0].y becomes what @glu, an enum pack_kind, makes of them. A block has @n_teams (1, 2 or
 * 4) of its warps, each with a row tile at a time, whose segments the team's warps share;
 * EXPERT_THREADS threads. Grid x: row tiles of all items / n_teams, or fewer: a block takes every
 * gridDim.x'th. expert_wide: items of up to MATMUL_COLUMNS pairs; grid x: items, or more, y: row
 * tiles / 8 of each matrix. Shared memory: expert_shared(), wide_shared() of the largest format. */
struct expert_args {
    struct matrix m[2];
    const uint16_t *x;                 /* [pairs or rows] packed */
    const float *scale;                /* [pairs or rows] scales of the packed rows */
    uint32_t n_mats, n_blocks, n_used; /* n_blocks: of 16 columns, in x */
    uint32_t n_experts;                /* number of experts */
    uint32_t by_pair, glu;             /* by_pair: a row of x is a pair */
    uint32_t n_teams, stage_bytes;     /* stage_bytes: the largest */
    struct expert_cut cut[2];
    const struct expert_item *item;
    const uint32_t *n_items, *list;
    uint32_t stride;
    const uint32_t *slot;   /* expert_slots.slot: a matrix's tiles are those of slot 0; or NULL */
    const uint8_t *host[2]; /* tiles of experts without a slot, those of expert 0 first */
};

/* Fills in how @n_teams teams of a block share the rows of tiles, and stage_bytes. */
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

/* Bytes of shared memory of expert_vec. */
MX_FN uint32_t expert_shared(uint32_t stage_bytes) {
    return EXPERT_THREADS / 32 * MATVEC_STAGES * stage_bytes;
}

/* The heads of latent attention as experts that all rows pick: pair r n_head + h is head h of row
 * r, and entry i of a head's list is pair i n_head + h, with ROUTE_PICKS as n_used. Makes the items
 * of the batch's rows, head by head. Grid: 1. */
struct heads_args {
    const struct batch_head *batch;
    uint32_t n_head, columns; /* columns: pairs of an item, at most */
    struct expert_item *item;
    uint32_t *n_items;
};

/* Rows of x, their picks and how many rows there are, to memory of the host, which computes those
 * of its experts. Grid: rows; PACK_THREADS threads. */
struct hand_over_args {
    const struct batch_head *batch;
    const float *x;         /* [rows][n] */
    const uint32_t *expert; /* [rows][n_used] */
    uint32_t n, n_used;
    float *host_x;
    uint32_t *host_expert, *host_rows;
};

/* to = x + weight y, pick by pick in their order, or without x; then to += sigmoid(gate norm x)
 * shared; then, where @packs, the row is packed. Grid: rows; PACK_THREADS threads. */
struct combine_args {
    const struct batch_head *batch;
    const float *x;              /* [rows][n_x] */
    float *to;                   /* [rows][n]: columns of x from @first on; may be x */
    const float *y, *host_y;     /* [pairs][n] of the device's experts, of the host's */
    const uint32_t *slot;        /* route_args.slot; NULL: all pairs are in y */
    const float *weight, *weigh; /* weigh: a factor of each expert, or NULL */
    const uint32_t *expert;
    const float *shared;      /* NULL, or [rows][n] of the expert that every row has */
    const float *gate, *norm; /* [n_x] of it; norm may be NULL */
    float eps;
    uint32_t n_x, first, n, n_used, adds, packs; /* adds: x */
    struct pack_args pack;
};

/* -- sampling ---------------------------------------------------------------------------------- */

struct penal { /* a token of prompt or output, once */
    int32_t token;
    uint32_t count; /* in the output */
};

struct bias_entry { /* an engine_bias in the device's layout */
    int32_t token;
    float bias;
};

/* A want of samples and the parameters of its sequence, as struct engine_want and engine_param have
 * them; lists: index of the first, and how many. */
struct sample_want {
    float temperature, top_p, min_p, repetition, presence, frequency;
    uint64_t seed;
    uint32_t choice, out_pos, top_k;
    uint32_t bias0, n_bias, ban0, n_bans, penal0, n_penals;
    int32_t fed; /* index of the sample of the step before that stands in front of the row, or -1 */
    int32_t target; /* >= 0: do not sample, this is the token */
    uint8_t n_top, logprob;
};

/* One of the best tokens. */
struct sample_top {
    int32_t token;
    float logprob;
};

/* Result of a want, as struct engine_out has it. */
struct sample_out {
    int32_t token;
    float logprob;
    uint64_t digest;
    uint32_t n_top;
    struct sample_top top[20];
};

#define SAMPLE_BLOCKS 32u /* most blocks that share a row */
#define SAMPLE_BINS 4096u /* the upper 12 bits of a logit */
#define SAMPLE_LIST 4096u /* tokens that a cut is found among, at most */
#define SAMPLE_TOP 20u

/* The best key so far, and whose it is. */
struct sample_drawn {
    uint64_t key;
    uint32_t id;
};

/* State that the launches of a want hand on. All zero before its first use. */
struct sample_state {
    /* Sums and maxima over the blocks of a launch; the last one takes them. */
    uint64_t best, best_raw, digest, sum, total, n_finite;
    uint32_t n_arrived, n_listed;
    uint64_t bins[SAMPLE_BINS];
    /* From scan: of the processed logits and the others, and whether the token is known. */
    float max, max_raw;
    uint32_t settled;
    /* From weigh. */
    uint32_t bin;
    uint64_t weight, logprob_sum;
    uint64_t tops[SAMPLE_BLOCKS][SAMPLE_TOP];
    struct sample_drawn drawn[SAMPLE_BLOCKS];
    uint64_t list[SAMPLE_LIST];
};

/* Grid: x blocks that share a row, up to SAMPLE_BLOCKS, y wants; SAMPLE_THREADS threads.
 * sample_scan, then sample_weigh and sample_draw where any want needs them (sample_needs()), all
 * with the same grid. */
struct sample_args {
    const struct sample_want *want;
    struct sample_state *state;
    const float *logits; /* [wants][n_vocab] */
    float *z;            /* [wants][n_vocab] logits behind the processors */
    const struct bias_entry *bias;
    const int32_t *ban;
    const struct penal *penal;
    const uint32_t *mask;      /* [masks][mask_words] */
    const int32_t *mask_index; /* [wants]: -1 none */
    const int32_t *fed_from;   /* samples of the step before */
    int32_t *sampled;          /* [wants] */
    struct sample_out *out;
    uint32_t n_vocab, mask_words, digest;
    uint32_t list_max; /* capacity of state.list: SAMPLE_LIST, or less for tests */
};

/* Returns whether top_k can leave any token out. */
MX_FN bool sample_has_top_k(const struct sample_want *w, uint32_t n_vocab) {
    return w->top_k > 0 && w->top_k < n_vocab;
}

enum { SAMPLE_SCORE = 1, SAMPLE_CUT = 2, SAMPLE_WEIGH = 3, SAMPLE_DRAW = 4 };

/* SCORE log probabilities, CUT top_k or top_p: sample_weigh; DRAW: sample_draw. */
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

/* -- addresses: what cuda_api.launch() takes --------------------------------------------------- */

typedef const void *const kernel_address;

/* X(NAME), .. of the kernels without dynamic shared memory. */
#define PLAIN_KERNELS(X)                                                                           \
    X(repack), X(scale_tiles), X(embed), X(deep), X(layer_input), X(rope), X(pack), X(pack_gated), \
        X(hidden), X(keep), X(pair), X(store), X(store_latent), X(holes), X(hadamard),             \
        X(residual), X(soft_gate), X(cap), X(copy_page), X(convolve), X(candidates),               \
        X(choose_candidate), X(chain), X(plan), X(merge), X(list_heads), X(route), X(bring),       \
        X(hand_over), X(combine), X(delta_in), X(delta), X(kda), X(delta_out), X(mamba_in),        \
        X(mamba), X(mamba_out), X(conv), X(conv_keep), X(blend), X(spread), X(turn_heads),         \
        X(mix_norm), X(mix_bend), X(mix_mean), X(ngram_ask), X(ngram_decode), X(ngram_weigh),      \
        X(ngram_add), X(ngram_keep), X(condense), X(keep_rows), X(score_blocks), X(choose_blocks), \
        X(attend_condensed), X(mean_keys), X(attend_sparse), X(attend_sparse_q8),                  \
        X(attend_sparse_q4), X(attend_sparse_q8_q4), X(merge_sparse), X(sample_scan),              \
        X(sample_weigh), X(sample_draw), X(glu), X(gather), X(pack_shares), X(residual_shares),    \
        X(vis_row), X(vis_head), X(vis_attend_64), X(vis_attend_80), X(vis_attend_128)
#define KERNEL_ADDRESS(NAME) kernel_##NAME
extern kernel_address PLAIN_KERNELS(KERNEL_ADDRESS);
extern kernel_address kernel_matvec, kernel_matvec_16; /* matvec_for() */
extern kernel_address kernel_expert_vec, kernel_expert_wide, kernel_matmul_wide,
    kernel_matmul_wgmma, kernel_matmul_wgmma_64;

/* The matvec for so many rows: of up to PACK_ROWS at a time, or of 16. */
static inline const void *matvec_for(uint32_t n_rows) {
    return n_rows > PACK_ROWS ? kernel_matvec_16 : kernel_matvec;
}

#ifdef __cplusplus
}
#endif
