#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mathx.h"
#include "engine/vision/encoder_private.h"

/* Differences between the kinds: the order of patches, positions, and the way to the text model's
 * rows. */

/* Adds the patches of a block of merge x merge at (@row, @column), in raster order. */
static void add_block(struct vis_grid *g, uint32_t row, uint32_t column, uint32_t side) {
    for (uint32_t y = 0; y < side; y++)
        for (uint32_t x = 0; x < side; x++) {
            g->row[g->n] = row + y;
            g->column[g->n++] = column + x;
        }
}

/* Adds windows of @side patches, cut from the top left, each block by block. */
static void add_windows(struct vis_grid *g, uint32_t side, uint32_t merge) {
    for (uint32_t y = 0; y < g->height; y += side)
        for (uint32_t x = 0; x < g->width; x += side) {
            g->window[g->n_windows++] = g->n;
            for (uint32_t v = y; v < MIN(y + side, g->height); v += merge)
                for (uint32_t u = x; u < MIN(x + side, g->width); u += merge)
                    add_block(g, v, u, merge);
        }
    g->window[g->n_windows] = g->n;
}

/* Frequency @i of a half of a head of @dim values that turns by one coordinate. */
static double frequency(enum projector_kind kind, uint32_t dim, uint32_t i, bool by_column) {
    if (kind == PROJECTOR_PIXTRAL) /* even ones for rows, odd ones for columns */
        return mx_pow(10000, -2.0 * (2 * i + by_column) / dim);
    return mx_pow(kind == PROJECTOR_GEMMA4V ? 100 : 10000, -4.0 * i / dim);
}

bool vis_turns(const struct image_encoder *e) {
    return e->p.n_layer && e->p.kind != PROJECTOR_GEMMA3 && e->p.kind != PROJECTOR_LFM2;
}

void vis_frequencies(struct image_encoder *e) {
    uint32_t dim = e->p.n_embd / e->p.n_head;

    for (uint32_t i = 0; i < dim / 4 && vis_turns(e); i++)
        for (int by_column = 0; by_column < 2; by_column++)
            e->freq[by_column][i] = frequency(e->p.kind, dim, i, by_column);
}

/* Cosines and sines of a patch: of the pairs that turn by its row, then by its column; gemma4v has
 * them the other way round. */
static void fill_rope(const struct image_encoder *e, uint32_t at) {
    uint32_t dim = e->p.n_embd / e->p.n_head, quarter = dim / 4;
    float *cs = e->rope + (size_t)at * dim;

    for (uint32_t i = 0; i < 2 * quarter; i++) {
        bool by_column = (i >= quarter) != (e->p.kind == PROJECTOR_GEMMA4V);
        uint32_t where = by_column ? e->grid.column[at] : e->grid.row[at];
        double s, c;

        mx_sincos(where * e->freq[by_column][i % quarter], &s, &c);
        cs[i] = (float)c;
        cs[2 * quarter + i] = (float)s;
    }
}

void vis_place(struct image_encoder *e, const struct picture_layout *l) {
    bool merged = e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL;
    struct vis_grid *g = &e->grid;

    g->width = l->width / e->p.patch;
    g->height = l->height / e->p.patch;
    g->n = g->n_windows = 0;
    add_windows(g, e->p.window ? e->p.window : MAX(g->width, g->height), merged ? e->p.merge : 1);
    assert(g->n == g->width * g->height && g->n <= e->max_patches);
}

/* The two places of a table of @n_table that coordinate @i of @n reads, corners aligned, and how
 * much of the second. */
struct between {
    uint32_t low, high;
    float part;
};

static struct between place_in(uint32_t i, uint32_t n, uint32_t n_table) {
    double at = n > 1 ? (double)i * (n_table - 1) / (n - 1) : 0;
    uint32_t low = MIN((uint32_t)at, n_table - 1);

    return (struct between){low, MIN(low + 1, n_table - 1), (float)(at - low)};
}

/* x of a patch += its row of the square table, interpolated. */
static void add_between(const struct image_encoder *e, uint32_t at, float *x) {
    struct between v = place_in(e->grid.row[at], e->grid.height, e->n_table);
    struct between u = place_in(e->grid.column[at], e->grid.width, e->n_table);
    size_t n = e->p.n_embd, line = e->n_table * n;
    const float *a = e->table + v.low * line, *b = e->table + v.high * line;

    for (size_t i = 0; i < n; i++) {
        float left = a[u.low * n + i] * (1 - v.part) + b[u.low * n + i] * v.part;
        float right = a[u.high * n + i] * (1 - v.part) + b[u.high * n + i] * v.part;

        x[i] += left * (1 - u.part) + right * u.part;
    }
}

/* Weight of place @j of a table of @n_table for coordinate @i of @n: a triangle around the
 * coordinate's middle, widened where the table is larger. */
static double triangle(uint32_t i, uint32_t n, uint32_t j, uint32_t n_table) {
    double scale = (double)n_table / n, away = j + 0.5 - (i + 0.5) * scale;

    return MAX(0.0, 1 - fabs(away) / MAX(scale, 1.0));
}

/* The places of a table that coordinate @i of @n reads, and the sum of their weights. */
struct span {
    uint32_t first, end;
    double sum;
};

static struct span span_of(uint32_t i, uint32_t n, uint32_t n_table) {
    struct span s = {n_table, 0, 0};

    for (uint32_t j = 0; j < n_table; j++) {
        double w = triangle(i, n, j, n_table);

        s.first = w > 0 ? MIN(s.first, j) : s.first;
        s.end = w > 0 ? j + 1 : s.end;
        s.sum += w;
    }
    return s;
}

/* x of a patch += its row of the square table, resized by a triangle filter. */
static void add_resized(const struct image_encoder *e, uint32_t at, float *x) {
    uint32_t row = e->grid.row[at], column = e->grid.column[at], n_table = e->n_table;
    struct span v = span_of(row, e->grid.height, n_table);
    struct span u = span_of(column, e->grid.width, n_table);
    size_t n = e->p.n_embd;

    for (uint32_t a = v.first; a < v.end; a++)
        for (uint32_t b = u.first; b < u.end; b++) {
            double w = triangle(row, e->grid.height, a, n_table) / v.sum *
                       triangle(column, e->grid.width, b, n_table) / u.sum;

            for (size_t i = 0; i < n; i++)
                x[i] += (float)w * e->table[((size_t)a * n_table + b) * n + i];
        }
}

/* x = norm @which of gemma4uv's patches, whose epsilon no file has. */
static void norm_patch(const struct image_encoder *e, int which, float *x, uint32_t n) {
    const struct vis_norm *w = &e->patch_norm[which];

    e->ops->norm(e->be, x, w->w, w->bias, 1e-5f, n, x);
}

/* Units of a stage, and the first of them. */
struct units {
    struct image_encoder *e;
    uint32_t at;
};

/* Adds positions to row @i of the units' x, where pixtral has a norm, and makes its rotation. */
static void add_position(void *ctx, uint32_t i) {
    const struct units *u = ctx;
    const struct image_encoder *e = u->e;
    uint32_t at = u->at + i;
    uint32_t row = e->grid.row[at], column = e->grid.column[at];
    size_t n = e->p.n_embd;
    float *x = e->x + at * n;

    if (e->p.kind == PROJECTOR_QWEN3VL)
        add_between(e, at, x);
    if (e->p.kind == PROJECTOR_LFM2)
        add_resized(e, at, x);
    for (size_t i = 0; i < n && e->p.kind == PROJECTOR_GEMMA3; i++)
        x[i] += e->table[((size_t)row * e->n_table + column) * n + i];
    if (e->patch_norm[1].w)
        norm_patch(e, 1, x, e->p.n_embd);
    bool two = e->p.kind == PROJECTOR_GEMMA4V || e->p.kind == PROJECTOR_GEMMA4UV;
    for (size_t i = 0; i < n && two; i++)
        x[i] += e->table[column * n + i] + e->table[((size_t)e->n_table + row) * n + i];
    if (e->patch_norm[2].w)
        norm_patch(e, 2, x, e->p.n_embd);
    if (vis_turns(e))
        fill_rope(e, at);
    if (e->pre_ln.w)
        e->ops->norm(e->be, x, e->pre_ln.w, e->pre_ln.bias, e->p.eps, e->p.n_embd, x);
}

/* The pixels of patch @i of the units, by channel, row and column, as the encoder was trained. */
static void read_patch(void *ctx, uint32_t i) {
    const struct units *u = ctx;
    const struct image_encoder *e = u->e;
    const struct vis_cursor *c = &e->under_way;
    uint32_t side = e->p.patch, n_in = 3 * side * side, at = u->at + i;
    float *first = e->in + (size_t)i * n_in, *out = first;

    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < side; y++) {
            size_t row = (size_t)e->grid.row[at] * side + y;
            const uint8_t *from =
                c->pixels + row * c->pitch + (size_t)e->grid.column[at] * side * 3 + k;

            for (uint32_t x = 0; x < side; x++) {
                float v = ((float)from[3 * (size_t)x] / 255 - e->p.mean[k]) / e->p.std[k];

                *out++ = e->p.kind == PROJECTOR_GEMMA4V ? 2 * v - 1 : v;
            }
        }
    if (e->patch_norm[0].w)
        norm_patch(e, 0, first, n_in);
}

void vis_embed(struct image_encoder *e, uint32_t at, uint32_t n) {
    uint32_t width = e->p.n_embd, n_in = 3 * e->p.patch * e->p.patch;
    struct units u = {e, at};

    e->ops->each(e->be, n, read_patch, &u);
    vis_linear(e, e->patch, e->in, n_in, n, e->x + (size_t)at * width, width, false);
    e->ops->each(e->be, n, add_position, &u);
}

/* Row of the text model that block @i of patches, in the order of computation, becomes. */
static uint32_t row_of(const struct image_encoder *e, uint32_t i) {
    uint32_t merge = e->p.merge, first = i * merge * merge;

    return e->grid.row[first] / merge * (e->grid.width / merge) + e->grid.column[first] / merge;
}

/* Qwen: patches of a block lie together, those of windows not in order; o gets them as rows. The
 * others stay where they are, in raster order. */
static void arrange_block(void *ctx, uint32_t i) {
    const struct units *u = ctx;
    struct image_encoder *e = u->e;
    uint32_t block = u->at + i, area = e->p.merge * e->p.merge, n = e->p.n_embd;
    bool merged = e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL;
    const struct vis_norm *w = e->p.kind == PROJECTOR_PIXTRAL ? &e->mm_norm : &e->post_ln;
    float *x = e->x + (size_t)block * area * n;
    float *to = merged ? e->o + (size_t)row_of(e, block) * area * n : x;

    for (uint32_t k = 0; k < area && w->w; k++)
        e->ops->norm(e->be, x + (size_t)k * n, w->w, w->bias, e->p.eps, n, to + (size_t)k * n);
}

void vis_arrange(struct image_encoder *e, uint32_t at, uint32_t n) {
    struct units u = {e, at};

    e->ops->each(e->be, n, arrange_block, &u);
}

/* Row @i of the text model from the patches of its block, which are in raster order in x: their
 * mean (gemma), or all values, patch by patch (lfm2) or channel by channel (pixtral). */
static void gather(const struct image_encoder *e, uint32_t i, bool mean, float *out) {
    uint32_t merge = e->p.merge, n = e->p.n_embd, columns = e->grid.width / merge;
    uint32_t top = i / columns * merge, left = i % columns * merge, area = merge * merge;

    for (uint32_t k = 0; k < n && mean; k++)
        out[k] = 0;
    for (uint32_t b = 0; b < area; b++) {
        const float *x = e->x + ((size_t)(top + b / merge) * e->grid.width + left + b % merge) * n;

        for (uint32_t k = 0; k < n; k++)
            if (mean)
                out[k] += x[k] / (float)area;
            else
                out[e->p.kind == PROJECTOR_LFM2 ? (size_t)b * n + k : (size_t)k * area + b] = x[k];
    }
}

/* gemma4v: the mean times the root of the width, then by deviation; then, of gemma4uv too, rms. */
static void finish_gemma4(const struct image_encoder *e, float *x) {
    float root = sqrtf((float)e->p.n_embd);

    for (uint32_t k = 0; k < e->p.n_embd && e->p.kind == PROJECTOR_GEMMA4V; k++) {
        x[k] *= root;
        if (e->std.w)
            x[k] = (x[k] - e->std.bias[k]) * e->std.w[k];
    }
    e->ops->norm(e->be, x, NULL, NULL, e->p.eps, e->p.n_embd, x);
}

/* Row @i of the units before the product: the mean of its block, finished. */
static void mean_row(void *ctx, uint32_t i) {
    const struct units *u = ctx;
    const struct image_encoder *e = u->e;
    uint32_t n = e->p.n_embd;
    float *x = e->in + (size_t)i * n;

    gather(e, u->at + i, true, x);
    if (e->p.kind != PROJECTOR_GEMMA3)
        finish_gemma4(e, x);
    else
        e->ops->norm(e->be, x, e->mm_norm.w, e->mm_norm.bias, e->p.eps, n, x);
}

/* Row @i of the units before the products: all values of its block; lfm2's may have a norm, whose
 * epsilon no file has. */
static void block_row(void *ctx, uint32_t i) {
    const struct units *u = ctx;
    const struct image_encoder *e = u->e;
    uint32_t n = e->p.merge * e->p.merge * e->p.n_embd;
    float *x = e->in + (size_t)i * n;

    gather(e, u->at + i, false, x);
    if (e->p.kind == PROJECTOR_LFM2 && e->mm_norm.w)
        e->ops->norm(e->be, x, e->mm_norm.w, e->mm_norm.bias, 1e-5f, n, x);
}

/* Pixtral: rows of one line, behind the last of which there is a break between lines. */
static uint32_t project_line(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct picture_layout *l = &e->under_way.l;
    uint32_t width = e->p.n_embd, line = at / l->n_columns, column = at % l->n_columns;
    uint32_t rows = MIN(n, l->n_columns - column);
    size_t n_out = e->p.n_out;
    float *to = e->under_way.out + (at + line) * n_out;
    struct units u = {e, at};

    e->ops->each(e->be, rows, block_row, &u);
    if (e->merge)
        vis_linear(e, e->merge, e->in, e->p.merge * e->p.merge * width, rows, e->o, width, false);
    vis_mlp(e, e->mm_in, e->mm_out, e->merge ? e->o : e->in, width, rows, to, n_out);
    if (column + rows == l->n_columns && line + 1 < l->n_lines)
        memcpy(to + rows * n_out, e->line_break, n_out * sizeof(float));
    return rows;
}

uint32_t vis_project(struct image_encoder *e, uint32_t at, uint32_t n) {
    uint32_t block = e->p.merge * e->p.merge * e->p.n_embd;
    size_t stride = image_encoder_width(e);
    float *to = e->under_way.out + at * stride;
    struct units u = {e, at};

    if (e->p.kind == PROJECTOR_PIXTRAL)
        return project_line(e, at, n);
    if (e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL) {
        vis_mlp(e, e->mm_in, e->mm_out, e->o + (size_t)at * block, block, n, to, stride);
        return n;
    }
    if (e->p.kind == PROJECTOR_LFM2) {
        e->ops->each(e->be, n, block_row, &u);
        vis_mlp(e, e->mm_in, e->mm_out, e->in, block, n, to, stride);
        return n;
    }
    e->ops->each(e->be, n, mean_row, &u);
    vis_linear(e, e->mm_out, e->in, e->p.n_embd, n, to, stride, false);
    return n;
}
