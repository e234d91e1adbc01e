#include "engine/picture_rows.h"

#include <assert.h>

/* Returns row @r of picture @p, whose first row has the rotary position @base. */
static struct picture_row picture_rows_at(const struct engine_picture *p, uint32_t r, uint32_t base,
                                          bool grids) {
    struct picture_row row = {.at = {base + r, base + r, base + r}, .end = p->at + p->n_rows};

    if (grids) {
        row.at[0] = base;
        row.at[1] = base + r / p->n_columns;
        row.at[2] = base + r % p->n_columns;
    }
    if (p->rows)
        row.values = p->rows + (size_t)r * p->width;
    return row;
}

void picture_rows(const struct engine_seq *s, bool grids, struct picture_row *out) {
    const struct engine_picture *p = s->picture, *none = p + s->n_pictures;
    uint32_t moved = 0; /* difference from positions to rotary positions; modulo 2^32 */

    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint32_t pos = s->pos0 + i;

        for (; p != none && pos >= p->at + p->n_rows; p++)
            if (grids)
                moved += p->n_positions - p->n_rows;
        if (p != none && pos >= p->at) {
            out[i] = picture_rows_at(p, pos - p->at, p->at + moved, grids);
            assert(out[i].values);
        } else {
            uint32_t at = pos + moved;

            out[i] = (struct picture_row){.at = {at, at, at}, .end = pos + 1};
        }
    }
}
