#pragma once

/*
 * telltale_block - the block of multi-token prediction of an engine without a model: the data that
 * pass 0 leaves for each position, and the data that pass 1 needs for drafts. Private to the
 * tell-tale engine.
 *
 * A key of the block is made of the hidden state of the position before and the token; the hidden
 * state is the hash of what was read. A slot has the hidden states of its sequence's last
 * positions. If the state of the previous position is missing, as behind a prefix hit, 0 replaces
 * it: such a key is worse, but belongs to no other text. A step may leave holes instead of keys.
 */

#include "tests/support/telltale_text.h"

#define BLOCK_KEPT 34u /* number of positions; as ENGINE_KEPT */
#define BLOCK_HOLE 1u  /* value of a missing key, which is not read */

struct block_slot {
    uint64_t hidden[BLOCK_KEPT];
    /* the position behind it; 0: none */
    uint32_t of[BLOCK_KEPT];
};

/* Returns the hidden state of position @pos; 0: it is missing. */
static inline uint64_t block_hidden(const struct block_slot *k, uint32_t pos) {
    return k->of[pos % BLOCK_KEPT] == pos + 1 ? k->hidden[pos % BLOCK_KEPT] : 0;
}

static inline void block_keep(struct block_slot *k, uint32_t pos, uint64_t hidden) {
    k->hidden[pos % BLOCK_KEPT] = hidden;
    k->of[pos % BLOCK_KEPT] = pos + 1;
}

/* Returns the key of a position with @token; @before: the hidden state of the position before, 0 if
 * it is missing. */
static inline uint64_t block_key(uint64_t before, int32_t token) {
    return text_mix(before, (uint64_t)(uint32_t)token + 7);
}

/* Returns true if @c holds the right key of a position with @token after hash @before. */
static inline bool block_is_key(const struct cell *c, uint64_t before, int32_t token) {
    return c->block == block_key(before, token) || c->block == block_key(0, token);
}
