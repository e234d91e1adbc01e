/*
 * Tests places of rows among pictures against a naive model, which lays out the whole sequence row
 * by row; any piece must agree with it.
 */

#include <criterion/criterion.h>

#include "base/rng.h"
#include "engine/picture_rows.h"

enum { PICTURES = 5, LONGEST = 600, WIDTH = 3 };

struct scene {
    struct engine_picture picture[PICTURES];
    uint32_t n_pictures, n_rows;
    float values[LONGEST * WIDTH];
    struct picture_row should[LONGEST];
};

static void add_row(struct scene *s, uint32_t t, uint32_t y, uint32_t x, uint32_t k, uint32_t end,
                    const float *values) {
    s->should[s->n_rows++] = (struct picture_row){{t, y, x, k}, end, values};
}

/* Adds a row with the same position on all axes. */
static void add_plain(struct scene *s, uint32_t position, uint32_t end, const float *values) {
    add_row(s, position, position, position, position, end, values);
}

/* Adds row @i of the lines of picture @k, a grid of @columns. */
static void add_grid(struct scene *s, uint32_t k, uint32_t i, uint32_t columns, uint32_t position,
                     uint32_t end, enum picture_places places) {
    const float *values = s->values + s->n_rows * WIDTH;
    uint32_t y = i / columns, x = i % columns;

    if (places == PLACES_GRID)
        add_row(s, position, position + y, position + x, position + i, end, values);
    else if (places == PLACES_FRAMED)
        add_row(s, position + 1 + i, y, x, k, end, values);
    else
        add_plain(s, position + i, end, values);
}

/* Text of 0 to 5 tokens, then a picture, repeatedly; positions advance as the model counts. */
static void fill(struct scene *s, struct rng *rng, enum picture_places places) {
    bool framed = places == PLACES_FRAMED;
    uint32_t position = 0;

    *s = (struct scene){.n_pictures = rng_below(rng, PICTURES + 1)};
    for (uint32_t k = 0; k <= s->n_pictures; k++) {
        for (uint32_t n = rng_below(rng, 6) + (k == s->n_pictures); n > 0; n--, position++)
            add_plain(s, position, s->n_rows + 1, NULL);
        if (k == s->n_pictures)
            return;
        uint32_t lines = 1 + rng_below(rng, 9), columns = 1 + rng_below(rng, 9), at = s->n_rows;
        uint32_t all = (columns + framed) * lines + 2 * framed;
        uint32_t moves = places == PLACES_GRID ? MAX(lines, columns) : all;

        s->picture[k] = (struct engine_picture){.at = at,
                                                .n_rows = all,
                                                .n_columns = columns,
                                                .n_lines = lines,
                                                .n_positions = moves,
                                                .rows = s->values + at * WIDTH,
                                                .width = WIDTH};
        if (framed)
            add_plain(s, position, at + all, s->values + at * WIDTH);
        for (uint32_t i = 0; i < (columns + framed) * lines; i++)
            add_grid(s, k, i, columns + framed, position, at + all, places);
        if (framed)
            add_plain(s, position + all - 1, at + all, s->values + (at + all - 1) * WIDTH);
        position += moves;
    }
}

/* Rows [from, from + n), with the pictures that the contract of engine_seq requires. */
static void check_piece(const struct scene *s, enum picture_places places, uint32_t from,
                        uint32_t n) {
    struct picture_row row[LONGEST];
    struct engine_seq q = {.pos0 = from, .n_rows = n, .picture = s->picture};

    while (q.n_pictures < s->n_pictures && s->picture[q.n_pictures].at < from + n)
        q.n_pictures++;
    picture_rows(&q, places, row);
    for (uint32_t i = 0; i < n; i++) {
        const struct picture_row *is = &row[i], *should = &s->should[from + i];

        for (int k = 0; k < ROPE_AXES; k++)
            cr_expect(is->at[k] == should->at[k], "row %u, axis %d: %u, not %u", from + i, k,
                      is->at[k], should->at[k]);
        cr_expect(is->end == should->end && is->values == should->values, "row %u", from + i);
    }
}

static void check_scenes(enum picture_places places) {
    struct rng rng = {7 + places};
    static struct scene s;

    for (int round = 0; round < 300; round++) {
        fill(&s, &rng, places);
        check_piece(&s, places, 0, s.n_rows);
        for (int k = 0; k < 10; k++) {
            uint32_t from = rng_below(&rng, s.n_rows);

            check_piece(&s, places, from, 1 + rng_below(&rng, s.n_rows - from));
        }
    }
}

Test(picture_rows, any_piece_agrees_with_the_whole_on_grids) {
    check_scenes(PLACES_GRID);
}

Test(picture_rows, any_piece_agrees_with_the_whole_without_grids) {
    check_scenes(PLACES_TEXT);
}

Test(picture_rows, any_piece_agrees_with_the_whole_in_frames) {
    check_scenes(PLACES_FRAMED);
}

/* The first case of a published layout: eight tokens, nine rows of 3 x 3, then text. */
Test(picture_rows, a_grid_moves_the_position_by_its_longer_side) {
    const float values[9 * WIDTH] = {0};
    const struct engine_picture p = {8, 9, 3, 3, 3, values, WIDTH};
    struct engine_seq s = {.pos0 = 8, .n_rows = 10, .n_pictures = 1, .picture = &p};
    struct picture_row row[10];

    picture_rows(&s, PLACES_GRID, row);
    cr_expect(row[5].at[ROPE_TIME] == 8 && row[5].at[ROPE_LINE] == 9);
    cr_expect(row[5].at[ROPE_COLUMN] == 10 && row[5].end == 17);
    cr_expect(row[9].at[ROPE_TIME] == 11 && row[9].at[ROPE_COLUMN] == 11 && row[9].end == 18);
}
