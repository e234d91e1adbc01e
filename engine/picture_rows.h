#pragma once

/*
 * picture_rows - how pictures change the rows of a sequence: their rotary positions, the values
 * that replace a token's embedding, and how far a row sees inside its picture.
 *
 * The result follows from all pictures before a row, not from the rows of a step. So a chunked
 * prompt, a prefix hit and a resumed sequence have the same positions.
 */

#include "engine/types.h"

/* Axes of rotary positions (M-RoPE, Wang et al. 2024, "Qwen2-VL"). PICTURE: of PLACES_FRAMED. */
enum { ROPE_TIME, ROPE_LINE, ROPE_COLUMN, ROPE_PICTURE, ROPE_AXES };

struct picture_row {
    /* rotary positions; the same on all axes for text */
    uint32_t at[ROPE_AXES];
    /* position after the row's picture; for text, after the row itself */
    uint32_t end;
    /* values of a picture's row; NULL: the row is a token */
    const float *values;
};

/* Fills out[0 .. s->n_rows). */
void picture_rows(const struct engine_seq *s, enum picture_places places, struct picture_row *out);
