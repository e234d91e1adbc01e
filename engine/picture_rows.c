#include "engine/picture_rows.h"

#include <assert.h>

/* Sets all rotary positions of @row to @at. */
static void picture_rows_set(struct picture_row *row, uint32_t at) {
    for (int k = 0; k < ROPE_AXES; k++)
        row->at[k] = at;
}

/* Returns row @r of picture @p, which is number @i and whose first row has the rotary position
 * @base. */
static struct picture_row picture_rows_at(const struct engine_picture *p, uint32_t i, uint32_t r,
                                          uint32_t base, enum picture_places places) {
    struct picture_row row = {.end = p->at + p->n_rows};

    picture_rows_set(&row, base + r);
    if (places == PLACES_GRID) {
        row.at[ROPE_TIME] = base;
        row.at[ROPE_LINE] = base + r / p->n_columns;
        row.at[ROPE_COLUMN] = base + r % p->n_columns;
    } else if (places == PLACES_FRAMED && r > 0 && r < p->n_rows - 1) {
        row.at[ROPE_LINE] = (r - 1) / (p->n_columns + 1);
        row.at[ROPE_COLUMN] = (r - 1) % (p->n_columns + 1);
        row.at[ROPE_PICTURE] = i;
    }
    if (p->rows)
        row.values = p->rows + (size_t)r * p->width;
    return row;
}

void picture_rows(const struct engine_seq *s, enum picture_places places, struct picture_row *out) {
    uint32_t k = 0;     /* picture of the row or behind it */
    uint32_t moved = 0; /* difference from positions to rotary positions; modulo 2^32 */

    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct engine_picture *p = s->picture;
        uint32_t pos = s->pos0 + i;

        for (; k < s->n_pictures && pos >= p[k].at + p[k].n_rows; k++)
            if (places == PLACES_GRID)
                moved += p[k].n_positions - p[k].n_rows;
        if (k < s->n_pictures && pos >= p[k].at) {
            out[i] = picture_rows_at(&p[k], k, pos - p[k].at, p[k].at + moved, places);
            assert(out[i].values);
        } else {
            out[i] = (struct picture_row){.end = pos + 1};
            picture_rows_set(&out[i], pos + moved);
        }
    }
}
