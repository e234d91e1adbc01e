#pragma once

/* repeats - detects an output that loops: tokens that repeat one block, or nearly. */

#include <stdbool.h>
#include <stdint.h>

#define REPEATS_MAX 4096u
#define REPEATS_DEFAULT 256u /* tokens: blocks of up to 64; four times as many, 256, and so on */
/* Copies of a block that make a loop: exact ones, or in which a word differs now and then; and
 * copies in which each differs from the one before, as in a numbered list. */
#define REPEATS_COPIES 4u
#define REPEATS_VARIED 16u

/*
 * Returns true if @tokens[0, @n) are a loop: each token but some of the first block is the one that
 * followed the same REPEATS_CONTEXT tokens a quarter of @n before or later (nine of ten tokens), or
 * the one that stands a fixed number of places before, at most a sixteenth of @n (fifteen of
 * sixteen). Tables, code, lists of numbers and refrains have more that is new. A function of the
 * tokens alone. Takes O(n) steps and 17 KiB of stack; @n <= REPEATS_MAX.
 */
#define REPEATS_CONTEXT 3u
bool repeats_loop(const int32_t *tokens, uint32_t n);
