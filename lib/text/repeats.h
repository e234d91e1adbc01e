#pragma once

/* repeats - detects an output that loops: tokens that repeat one block. */

#include <stdint.h>

#define REPEATS_MAX 4096u

/* Returns the smallest period of @tokens[0, @n): the least p > 0 such that each token equals the
 * one p places before it, if there is one. Returns @n if there is no smaller period. Takes O(n)
 * steps; 0 < @n <= REPEATS_MAX. */
uint32_t repeats_period(const int32_t *tokens, uint32_t n);
