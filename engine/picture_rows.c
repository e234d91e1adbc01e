#include "engine/picture_rows.h"

#include <assert.h>

/* Returns row @r of picture @p, whose first row has the rotary position @base. */
static struct picture_row picture_rows_at(const struct engine_picture *p, uint32_t r, uint32_t base,
                                          bool grids) {
    uint32_t line = grids ? r / p->n_columns : r, column = grids ? r % p->n_columns : r;

    return (struct picture_row){
        .at = {grids ? base : base + r, base + line, base + column},
        .end = p->at + p->n_rows,
        .values = p->rows ? p->rows + (size_t)r * p->width : NULL,
    };
}

void picture_rows(const struct engine_seq *s, bool grids, struct picture_row *out) {
    const struct engine_picture *p = s->picture, *none = p + s->n_pictures;
    uint32_t moved = 0; /* difference from positions to rotary positions; modulo 2^32 */

    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint32_t pos = s->pos0 + i;

        for (; p != none && pos >= p->at + p->n_rows; p++)
            moved += grids ? p->n_positions - p->n_rows : 0;
        if (p != none && pos >= p->at) {
            out[i] = picture_rows_at(p, pos - p->at, p->at + moved, grids);
            assert(out[i].values);
        } else {
            uint32_t at = pos + moved;

            out[i] = (struct picture_row){.at = {at, at, at}, .end = pos + 1};
        }
    }
}
