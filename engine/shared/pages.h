#pragma once

/*
 * pages - the layout of keys and values in pages of the CUDA backend, and the division of attention
 * into tiles and chunks; for host and device.
 *
 * For each key head, a page of a layer holds the keys [token][dim], then the values transposed,
 * [dim][token]. Both are operands of mma.m16n8k16 in an order in which a lane loads 16 bytes at a
 * time.
 *
 * Q8_0: codes in the same order as bytes, then the scales of the keys [token][dim / 32] and of the
 * values [dim / 32][token].
 *
 * Q4_0: as Q8_0, but a byte holds two codes, each with 8 added, in its lower and its upper half. A
 * byte of keys has values d and d + 4 of eight, so that a lane loads its part of a key as one word.
 * A byte of values has values d and d + 8 of sixteen of the same token, so that no byte is written
 * for two tokens.
 *
 * Latent attention: only the keys and their scales, since the keys are the values too.
 *
 * Attention divides the keys by their absolute positions into chunks of eight tiles of 32 keys. A
 * tile yields a result of its own: (m, l, o), the maximum, the sum of exponentials and the weighted
 * values. Tiles are merged to chunks and chunks to the final result, each from left to right. This
 * merge tree depends only on the position, so every division of the work among blocks gives the
 * same bits.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/mathx.h"

#define ATTN_TILE 32u   /* keys of a tile */
#define ATTN_TILES 8u   /* tiles of a chunk */
#define ATTN_CHUNK 256u /* keys of a chunk */
#define ATTN_QUERIES 16u
/* Queries of a block of attend_wide, for steps with many rows, by the size of the heads. */
#define ATTN_WIDE 128u
#define ATTN_WIDE_256 64u
#define ATTN_WIDE_512 32u
#define ATTN_LATENT 32u /* queries of a block of latent attention */
/* the same in attend_latent_bulk, for blocks that process all chunks */
#define ATTN_LATENT_BULK 48u

/* Parts of a head's page. */
enum page_part { PAGE_K, PAGE_V, PAGE_K_SCALES, PAGE_V_SCALES };

/* Formats of keys and of values: the bits of one (PAGE_BITS), 16 for halves and fewer for codes
 * that share scales, plus a multiple of 32 that tells formats with as many bits apart. */
enum page_format { PAGE_F16 = 16, PAGE_Q8_0 = 8, PAGE_Q4_0 = 4 };
#define PAGE_BITS(format) (31u & (format))

/* Rows of the formats of pages that kernels are made for: KIND gets the kernel's name, the formats
 * of keys and of values, and the remaining arguments. FOR_PAGES() has in addition keys of q8_0 with
 * values of q4_0, since keys need more bits. */
#define FOR_PAGES_ALIKE(KIND, NAME, ...)                                                           \
    KIND(NAME, PAGE_F16, PAGE_F16, ##__VA_ARGS__)                                                  \
    KIND(NAME##_q8, PAGE_Q8_0, PAGE_Q8_0, ##__VA_ARGS__)                                           \
    KIND(NAME##_q4, PAGE_Q4_0, PAGE_Q4_0, ##__VA_ARGS__)
#define FOR_PAGES(KIND, NAME, ...)                                                                 \
    FOR_PAGES_ALIKE(KIND, NAME, ##__VA_ARGS__)                                                     \
    KIND(NAME##_q8_q4, PAGE_Q8_0, PAGE_Q4_0, ##__VA_ARGS__)

/* Shape of the pages of a layer. @k, @v: enum page_format. @latent: values are the first elements
 * of the keys and are not stored separately. */
struct page_shape {
    uint32_t n_head_kv, head_dim, page_tokens;
    uint32_t k, v;
    bool latent;
};

/* Returns the bytes of a head's keys or values in a page, without scales. */
MX_FN size_t page_codes(const struct page_shape *s, uint32_t format) {
    return (size_t)s->page_tokens * s->head_dim / 8 * PAGE_BITS(format);
}

/* Returns the bytes of the scales of a head's keys or values in a page. */
MX_FN size_t page_scales(const struct page_shape *s, uint32_t format) {
    return PAGE_BITS(format) < 16 ? (size_t)s->page_tokens * s->head_dim / 32 * 2 : 0;
}

/* Returns the byte that has value @d of a key of four bits: in its lower half if d % 8 < 4, else in
 * its upper half. */
MX_FN uint32_t page_key_byte(uint32_t d) {
    return d / 8 * 4 + d % 4;
}

/* Returns the row of bytes that has value @d of values of four bits: in the lower halves if d % 16
 * < 8, else in the upper halves. */
MX_FN uint32_t page_value_row(uint32_t d) {
    return d / 16 * 8 + d % 8;
}

/* Returns the bytes of one head's keys and values, including scales, in a page of a layer. */
MX_FN size_t page_head_bytes(const struct page_shape *s) {
    size_t keys = page_codes(s, s->k) + page_scales(s, s->k);

    return s->latent ? keys : keys + page_codes(s, s->v) + page_scales(s, s->v);
}

/* Returns the bytes of a layer in a page. */
MX_FN size_t page_layer_bytes(const struct page_shape *s) {
    return s->n_head_kv * page_head_bytes(s);
}

/* Returns the offset of a part of head @h in the page of a layer. */
MX_FN size_t page_offset(const struct page_shape *s, uint32_t h, enum page_part part) {
    size_t at = h * page_head_bytes(s), keys = page_codes(s, s->k);
    size_t scales = s->latent ? keys : keys + page_codes(s, s->v);

    switch (part) {
    case PAGE_K:
        return at;
    case PAGE_V:
        return at + keys;
    case PAGE_K_SCALES:
        return at + scales;
    default:
        return at + scales + page_scales(s, s->k);
    }
}

/* Returns the key, 0 to 31 of a tile, that column @column of block @block of 8 keys has as the
 * second operand of q k^T. The order makes the result match the next product: after q k^T, lane 4 g
 * + t holds columns 2 t and 2 t + 1 of each block, which are then keys 8 t .. 8 t + 7, the ones
 * whose values it needs as an operand. */
MX_FN uint32_t attn_key_of_column(uint32_t block, uint32_t column) {
    return 8 * (column / 2) + 2 * block + column % 2;
}

/* Partial results of the first n_chunks chunks, which sequences with a common prefix share. Result
 * 0 merges all but the last n_results - 1 of these chunks; each of the others is one chunk. Result
 * r of query i is at partial + r * step, query place + i. */
struct attn_shared {
    uint32_t n_chunks, n_results;
    uint32_t partial, step, place;
};

/* Returns the first shared result that a query needs whose first chunk is @chunk, because of its
 * window. n_results or more: none. */
MX_FN uint32_t attn_first_result(const struct attn_shared *s, uint32_t chunk) {
    /* the number of chunks merged in result 0, minus 1 */
    uint32_t merged = s->n_chunks - s->n_results;

    return chunk > merged ? chunk - merged : 0;
}

/* An item: one thread block's work, queries [q0, q0 + n_q) of a sequence over all chunks or over a
 * run of them. A query is a pair of a row and a head of the group that shares the key head; its
 * number is row * group + head. Consecutive sequences of one row each whose first pages are equal
 * may share the items of their common chunks. Such an item has the rows of all of them, the lowest
 * of their positions as pos0, and that sequence's page0. A place in the buffer of partial results
 * holds @few queries (plan_args.few): query i is at index i % few of place partial + i / few. A run
 * that begins with chunk 0 yields one result, another run one for each chunk. */
struct attn_item {
    /* first row in the batch, and its position */
    uint32_t row0, pos0;
    uint32_t q0, n_q;
    /* first entry of the sequence's page table */
    uint32_t page0;
    /* the first of n_run chunks; or -1: all n_chunks, and the result is final */
    int32_t chunk;
    /* number of chunks of the run; 0 if the result is final */
    uint32_t n_run;
    /* first place of the item's results */
    uint32_t partial;
    /* chunks of the item's longest query */
    uint32_t n_chunks;
    /* for final results: the shared results to continue from; n_chunks 0: none. For others only
     * place is set: of query q0 among those of the item's results. */
    struct attn_shared shared;
    /* the merges that read the results of an item of one chunk, and no merge reads others: the
     * first, and their number (attend_decode) */
    uint32_t merge, n_merges;
};

/* Returns the first key that a query at @pos sees in a layer whose rows see the last @window keys,
 * or with @chunked the keys from the last multiple of @window on. It never falls as @pos rises. */
MX_FN uint32_t attn_first_key(uint32_t pos, uint32_t window, uint32_t chunked) {
    if (chunked)
        return pos - pos % window;
    return pos >= window ? pos - window + 1 : 0;
}
