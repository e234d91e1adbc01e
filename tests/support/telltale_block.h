#pragma once

/*
 * telltale_block - the block of multi-token prediction of an engine without a model: what pass 0
 * leaves of each position for it, and what must be there when pass 1 drafts. Private to the
 * tell-tale engine.
 *
 * A key of the block is made of the hidden state of the position before and the token; the hidden
 * state is the hash of what was read. A slot has the hidden states of its sequence's last
 * positions. Where the one before is not there, as behind a prefix hit, nothing stands in its
 * place: such a key is not the best, but no other text's. A step may leave holes instead of keys.
 */

#include "tests/support/telltale_text.h"

#define BLOCK_KEPT 34u /* positions; as ENGINE_KEPT */
#define BLOCK_HOLE 1u  /* in the place of a key: it is not read */

struct block_slot {
    uint64_t hidden[BLOCK_KEPT];
    uint32_t of[BLOCK_KEPT]; /* the position behind it; 0: none */
};

/* Of position @pos; 0: it is not there. */
static inline uint64_t block_hidden(const struct block_slot *k, uint32_t pos) {
    return k->of[pos % BLOCK_KEPT] == pos + 1 ? k->hidden[pos % BLOCK_KEPT] : 0;
}

static inline void block_keep(struct block_slot *k, uint32_t pos, uint64_t hidden) {
    k->hidden[pos % BLOCK_KEPT] = hidden;
    k->of[pos % BLOCK_KEPT] = pos + 1;
}

/* The key of a position with @token; @before: the hidden state of the position before, 0 where it
 * is not there. */
static inline uint64_t block_key(uint64_t before, int32_t token) {
    return text_mix(before, (uint64_t)(uint32_t)token + 7);
}

/* Whether @c holds the right key of a position with @token, behind which the hash was @before. */
static inline bool block_is_key(const struct cell *c, uint64_t before, int32_t token) {
    return c->block == block_key(before, token) || c->block == block_key(0, token);
}
