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

/* Cosines and sines of a patch: of the pairs that turn by its row, then by its column; gemma4v has
 * them the other way round. */
static void fill_rope(const struct image_encoder *e, uint32_t at, const double *freq[2]) {
    uint32_t dim = e->p.n_embd / e->p.n_head, quarter = dim / 4;
    float *cs = e->rope + (size_t)at * dim;

    for (uint32_t i = 0; i < 2 * quarter; i++) {
        bool by_column = (i >= quarter) != (e->p.kind == PROJECTOR_GEMMA4V);
        uint32_t where = by_column ? e->grid.column[at] : e->grid.row[at];
        double s, c;

        mx_sincos(where * freq[by_column][i % quarter], &s, &c);
        cs[i] = (float)c;
        cs[2 * quarter + i] = (float)s;
    }
}

void vis_place(struct image_encoder *e, const struct picture_layout *l) {
    uint32_t dim = e->p.n_embd / e->p.n_head;
    bool merged = e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL;
    struct vis_grid *g = &e->grid;
    double row[PROJECTOR_HEAD_MAX / 4], column[PROJECTOR_HEAD_MAX / 4];
    const double *freq[] = {row, column};

    g->width = l->width / e->p.patch;
    g->height = l->height / e->p.patch;
    g->n = g->n_windows = 0;
    add_windows(g, e->p.window ? e->p.window : MAX(g->width, g->height), merged ? e->p.merge : 1);
    assert(g->n == g->width * g->height && g->n <= e->max_patches);
    if (e->p.n_layer == 0 || e->p.kind == PROJECTOR_GEMMA3) /* nothing turns */
        return;
    for (uint32_t i = 0; i < dim / 4; i++) {
        row[i] = frequency(e->p.kind, dim, i, false);
        column[i] = frequency(e->p.kind, dim, i, true);
    }
    for (uint32_t i = 0; i < g->n; i++)
        fill_rope(e, i, freq);
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

/* x = norm @which of gemma4uv's patches, whose epsilon no file has. */
static void norm_patch(const struct image_encoder *e, int which, float *x, uint32_t n) {
    const struct vis_norm *w = &e->patch_norm[which];

    e->ops->norm(e->be, x, w->w, w->bias, 1e-5f, n, x);
}

/* Adds positions to row @at of x; pixtral's norm takes their place. */
static void add_position(void *ctx, uint32_t at) {
    const struct image_encoder *e = ctx;
    uint32_t row = e->grid.row[at], column = e->grid.column[at];
    size_t n = e->p.n_embd;
    float *x = e->x + at * n;

    if (e->p.kind == PROJECTOR_QWEN3VL)
        add_between(e, at, x);
    for (size_t i = 0; i < n && e->p.kind == PROJECTOR_GEMMA3; i++)
        x[i] += e->table[((size_t)row * e->n_table + column) * n + i];
    if (e->patch_norm[1].w)
        norm_patch(e, 1, x, e->p.n_embd);
    bool two = e->p.kind == PROJECTOR_GEMMA4V || e->p.kind == PROJECTOR_GEMMA4UV;
    for (size_t i = 0; i < n && two; i++)
        x[i] += e->table[column * n + i] + e->table[((size_t)e->n_table + row) * n + i];
    if (e->patch_norm[2].w)
        norm_patch(e, 2, x, e->p.n_embd);
    if (e->pre_ln.w)
        e->ops->norm(e->be, x, e->pre_ln.w, e->pre_ln.bias, e->p.eps, e->p.n_embd, x);
}

/* The pixels of patch @at, by channel, row and column, as the encoder was trained. */
static void read_patch(const struct image_encoder *e, const struct picture *p, uint32_t at,
                       float *out) {
    uint32_t side = e->p.patch;

    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t y = 0; y < side; y++) {
            size_t row = (size_t)e->grid.row[at] * side + y;
            const uint8_t *from =
                p->rgb + (row * p->width + (size_t)e->grid.column[at] * side) * 3 + c;

            for (uint32_t x = 0; x < side; x++) {
                float v = ((float)from[3 * (size_t)x] / 255 - e->p.mean[c]) / e->p.std[c];

                *out++ = e->p.kind == PROJECTOR_GEMMA4V ? 2 * v - 1 : v;
            }
        }
}

void vis_embed(struct image_encoder *e, const struct picture *p) {
    size_t n_in = (size_t)3 * e->p.patch * e->p.patch, width = e->p.n_embd;

    for (uint32_t at = 0; at < e->grid.n; at += VIS_CHUNK) {
        uint32_t rows = MIN(VIS_CHUNK, e->grid.n - at);

        for (uint32_t r = 0; r < rows; r++)
            read_patch(e, p, at + r, e->in + r * n_in);
        for (uint32_t r = 0; r < rows && e->patch_norm[0].w; r++)
            norm_patch(e, 0, e->in + r * n_in, (uint32_t)n_in);
        vis_linear(e, e->patch, e->in, n_in, rows, e->x + at * width, width, false);
    }
    e->ops->each(e->be, e->grid.n, add_position, e);
}

/* Row of the text model that block @i of patches, in the order of computation, becomes. */
static uint32_t row_of(const struct image_encoder *e, uint32_t i) {
    uint32_t merge = e->p.merge, first = i * merge * merge;

    return e->grid.row[first] / merge * (e->grid.width / merge) + e->grid.column[first] / merge;
}

/* Qwen: blocks of patches lie together, those of windows not in order. */
static void project_blocks(struct image_encoder *e, float *out) {
    uint32_t area = e->p.merge * e->p.merge, block = area * e->p.n_embd, n = e->grid.n / area;
    size_t stride = image_encoder_width(e);

    vis_norm_rows(e, &e->post_ln, e->x, e->p.n_embd, e->grid.n, e->x);
    for (uint32_t i = 0; i < n; i++) /* o: attention is over */
        memcpy(e->o + (size_t)row_of(e, i) * block, e->x + (size_t)i * block,
               block * sizeof(float));
    for (uint32_t at = 0; at < n; at += VIS_CHUNK)
        vis_mlp(e, e->mm_in, e->mm_out, e->o + (size_t)at * block, block, MIN(VIS_CHUNK, n - at),
                out + at * stride, stride);
}

/* Row @i of the text model from the patches of its block, which are in raster order in x: their
 * mean (gemma), or all values, channel by channel (pixtral). */
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
                out[(size_t)k * area + b] = x[k];
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

/* Gemma: means of blocks through one product. */
static void project_means(struct image_encoder *e, const struct picture_layout *l, float *out) {
    uint32_t n = e->p.n_embd;

    if (e->post_ln.w)
        vis_norm_rows(e, &e->post_ln, e->x, n, e->grid.n, e->x);
    for (uint32_t at = 0; at < l->n_rows; at += VIS_CHUNK) {
        uint32_t rows = MIN(VIS_CHUNK, l->n_rows - at);

        for (uint32_t r = 0; r < rows; r++) {
            float *x = e->in + (size_t)r * n;

            gather(e, at + r, true, x);
            if (e->p.kind != PROJECTOR_GEMMA3)
                finish_gemma4(e, x);
            else
                e->ops->norm(e->be, x, e->mm_norm.w, e->mm_norm.bias, e->p.eps, n, x);
        }
        vis_linear(e, e->mm_out, e->in, n, rows, out + (size_t)at * e->p.n_out, e->p.n_out, false);
    }
}

/* Pixtral: line by line, with a break between lines. */
static void project_lines(struct image_encoder *e, const struct picture_layout *l, float *out) {
    uint32_t n = e->p.n_embd, block = e->p.merge * e->p.merge * n;
    size_t n_out = e->p.n_out;

    if (e->mm_norm.w)
        vis_norm_rows(e, &e->mm_norm, e->x, n, e->grid.n, e->x);
    for (uint32_t line = 0; line < l->n_lines; line++) {
        float *to = out + (size_t)line * (l->n_columns + 1) * n_out;

        for (uint32_t at = 0; at < l->n_columns; at += VIS_CHUNK) {
            uint32_t rows = MIN(VIS_CHUNK, l->n_columns - at);

            for (uint32_t r = 0; r < rows; r++)
                gather(e, line * l->n_columns + at + r, false, e->in + (size_t)r * block);
            if (e->merge)
                vis_linear(e, e->merge, e->in, block, rows, e->o, n, false);
            vis_mlp(e, e->mm_in, e->mm_out, e->merge ? e->o : e->in, n, rows, to + at * n_out,
                    n_out);
        }
        if (line + 1 < l->n_lines)
            memcpy(to + l->n_columns * n_out, e->line_break, n_out * sizeof(float));
    }
}

void vis_project(struct image_encoder *e, const struct picture_layout *l, float *out) {
    switch (e->p.kind) {
    case PROJECTOR_QWEN3VL:
    case PROJECTOR_QWEN25VL:
        project_blocks(e, out);
        break;
    case PROJECTOR_GEMMA3:
    case PROJECTOR_GEMMA4V:
    case PROJECTOR_GEMMA4UV:
        project_means(e, l, out);
        break;
    case PROJECTOR_PIXTRAL:
        project_lines(e, l, out);
        break;
    case PROJECTOR_KINDS:
        break;
    }
}
