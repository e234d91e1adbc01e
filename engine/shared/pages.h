#pragma once

/*
 * pages - where the CUDA backend keeps keys and values, and how attention walks over them; for host
 * and device.
 *
 * A page of a layer holds, for each key head, the keys [token][dim] and then the values transposed,
 * [dim][token]: both are then operands of mma.m16n8k16 that a lane loads 16 bytes at a time. Q8_0:
 * the codes in the same order as bytes, then the scales of the keys [token][dim / 32] and of the
 * values [dim / 32][token]. Q4_0: likewise, of each byte the lower half the code of one number and
 * the upper half that of another, each 8 more than it is. A byte of keys has numbers d and d + 4 of
 * eight, so that a lane loads what it needs of a key as a word; a byte of values has numbers d and
 * d + 8 of sixteen of one token, so that no byte is written for two tokens. Latent attention: the
 * keys and their scales, which are the values too.
 *
 * Attention goes over tiles of 32 keys, eight of which are a chunk, on absolute positions. A tile's
 * result (m, l, o) (maximum, sum of exponentials, weighted values) is computed on its own; a chunk
 * merges its tiles and the whole merges the chunks, each from left to right. That tree depends on
 * nothing but the position.
 */

#include <stdbool.h>
#include <stddef.h>
#include "base/mathx.h"

#define ATTN_TILE 32u   /* keys */
#define ATTN_TILES 8u   /* tiles of a chunk */
#define ATTN_CHUNK 256u /* keys */
#define ATTN_QUERIES 16u
/* Queries of a block when a step has many rows, by the size of the heads. */
#define ATTN_WIDE 128u
#define ATTN_WIDE_256 64u
#define ATTN_WIDE_512 32u
#define ATTN_LATENT 32u      /* queries of a block of latent attention */
#define ATTN_LATENT_BULK 48u /* in attend_latent_bulk, where it has all chunks */

/* Parts of a head's page. */
enum page_part { PAGE_K, PAGE_V, PAGE_K_SCALES, PAGE_V_SCALES };

/* Bits of a key and of a value: 16 of a half, 8 or 4 of a code of Q8_0 or Q4_0. @latent: values are
 * the first ones of the keys, and have no room of their own. */
struct page_shape {
    uint32_t n_head_kv, head_dim, page_tokens;
    uint32_t k_bits, v_bits;
    bool latent;
};

/* Returns the bytes of a head's numbers of @bits in a page, without their scales. */
MX_FN size_t page_codes(const struct page_shape *s, uint32_t bits) {
    return (size_t)s->page_tokens * s->head_dim / 8 * bits;
}

/* Returns the bytes of the scales of a head's numbers of @bits in a page. */
MX_FN size_t page_scales(const struct page_shape *s, uint32_t bits) {
    return bits < 16 ? (size_t)s->page_tokens * s->head_dim / 32 * 2 : 0;
}

/* Byte of number @d in a key of four bits: in its lower half where the number at place d % 8 of its
 * eight is one of the first four. */
MX_FN uint32_t page_key_byte(uint32_t d) {
    return d / 8 * 4 + d % 4;
}

/* Row of bytes that has number @d of values of four bits: in their lower halves where the number
 * at place d % 16 of its sixteen is one of the first eight. */
MX_FN uint32_t page_value_row(uint32_t d) {
    return d / 16 * 8 + d % 8;
}

/* Returns the bytes of the keys and values, with their scales, that a page of a layer holds of a
 * head. */
MX_FN size_t page_head_bytes(const struct page_shape *s) {
    size_t keys = page_codes(s, s->k_bits) + page_scales(s, s->k_bits);

    return s->latent ? keys : keys + page_codes(s, s->v_bits) + page_scales(s, s->v_bits);
}

/* Returns the bytes of a layer in a page. */
MX_FN size_t page_layer_bytes(const struct page_shape *s) {
    return s->n_head_kv * page_head_bytes(s);
}

/* Returns the offset of a part of head @h in the page of a layer. */
MX_FN size_t page_offset(const struct page_shape *s, uint32_t h, enum page_part part) {
    size_t at = h * page_head_bytes(s), keys = page_codes(s, s->k_bits);
    size_t scales = s->latent ? keys : keys + page_codes(s, s->v_bits);

    return at + (part == PAGE_K          ? 0
                 : part == PAGE_V        ? keys
                 : part == PAGE_K_SCALES ? scales
                                         : scales + page_scales(s, s->k_bits));
}

/* The lanes' share of a tile of 32 keys. As the second operand of q k', lane 4 g + t takes in block
 * j (0..3) the key at place attn_key_of_column(j, g); of the product it then holds columns 2 t and
 * 2 t + 1 of each block, which are keys 8 t .. 8 t + 7: those it needs for the values. */
MX_FN uint32_t attn_key_of_column(uint32_t block, uint32_t column) {
    return 8 * (column / 2) + 2 * block + column % 2;
}

/* Results of chunks [0, n_chunks) of a query, which sequences that begin alike share: the first is
 * that of the first chunks merged, the others are those of the n_results - 1 last chunks. Result r
 * of query i is that of query place + i in partial + r * step. */
struct attn_shared {
    uint32_t n_chunks, n_results;
    uint32_t partial, step, place;
};

/* Returns the first result that matters to a query whose first chunk is @chunk; n_results and more:
 * none of these, but of those behind them. */
MX_FN uint32_t attn_first_result(const struct attn_shared *s, uint32_t chunk) {
    uint32_t merged = s->n_chunks - s->n_results; /* more chunks than results */

    return chunk > merged ? chunk - merged : 0;
}

/* One thread block's work: queries [q0, q0 + n_q) of a sequence over all its chunks, or over some.
 * A query is a row and a head of the group that shares the key head: number row * group + head.
 * Sequences of one row that stand side by side and begin with the same pages may share the items of
 * those chunks: then the rows are theirs, pos0 is the lowest of their positions, page0 its
 * sequence's. What is in partial: index of [few queries], where query i is at i % few behind
 * i / few others. Chunks from 0 on leave one result, others one each. */
struct attn_item {
    uint32_t row0, pos0; /* first row in the batch, and its position */
    uint32_t q0, n_q;
    uint32_t page0;    /* first entry of the sequence's page table */
    int32_t chunk;     /* the first of n_run; or -1: all of n_chunks, and the result is final */
    uint32_t n_run;    /* chunks; 0: final */
    uint32_t partial;  /* first place of its chunks' results; each takes as many as queries need */
    uint32_t n_chunks; /* chunks of the item's longest query */
    struct attn_shared shared; /* final: what it goes on from; n_chunks 0: nothing */
};

/* Returns the first key that a query at @pos sees, of a layer whose rows see the last @window
 * keys. */
MX_FN uint32_t attn_first_key(uint32_t pos, uint32_t window) {
    return pos >= window ? pos - window + 1 : 0;
}
