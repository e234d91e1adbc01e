#pragma once

/* repeats - finds out whether tokens are one block over and over: an output that loops. */

#include <stdint.h>

#define REPEATS_MAX 4096u

/* Returns the smallest period of @tokens[0, @n): the least p > 0 such that each token equals the
 * one p places before it, as far as there is one. @n: no smaller one. Takes O(n) steps; 0 < @n <=
 * REPEATS_MAX. */
uint32_t repeats_period(const int32_t *tokens, uint32_t n);
