#pragma once

/* weight_bytes - the memory that the weights of a model will take (weight_bytes.c). */

#include <stdint.h>

struct be;

/* Returns the largest number of @n columns or rows that one rank has (ranks.c). */
uint32_t cuda_rank_share(const struct be *b, uint32_t n);
/* Returns the bytes of all weights on the device, with those of the image encoder and of drafting
 * blocks, whose norms of keys and of hidden states are stored twice. */
uint64_t cuda_weight_bytes(const struct be *b);
/* Returns the bytes in host memory of the tiles of layers whose experts are fetched. */
uint64_t cuda_fetched_bytes(const struct be *b);
