#pragma once

/*
 * picture_rows - positions of a sequence's rows among its pictures: rotary positions, the values of
 * a row instead of a token's embedding, and how far a row sees inside its picture.
 *
 * Everything follows from all pictures before a row, not from the rows of a step: a prompt in
 * pieces, a prefix that was found and a resumed sequence have the same positions.
 */

#include "engine/types.h"

/* Axes of rotary positions (M-RoPE, Wang et al. 2024, "Qwen2-VL"). */
enum { ROPE_TIME, ROPE_LINE, ROPE_COLUMN, ROPE_AXES };

struct picture_row {
    uint32_t at[ROPE_AXES]; /* rotary positions; the same on all axes for text */
    uint32_t end; /* behind the last position of the row's picture; of text, behind its own */
    const float *values; /* values of a picture's row; NULL: the row is a token's */
};

/* Fills out[0 .. s->n_rows). Without @grids a row's rotary position is its place in the
 * sequence. */
void picture_rows(const struct engine_seq *s, bool grids, struct picture_row *out);
