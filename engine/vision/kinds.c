/* kinds - what differs between kinds of encoders: the order of patches, positions, and the mapping
 * to rows of the text model. */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/vision/encoder_private.h"

#define TABLE_MAX 256u /* positions of a side of a square table (load.c) */

/* Adds the patches of a block of merge x merge at (@row, @column), in raster order. */
static void vis_add_block(struct vis_grid *g, uint32_t row, uint32_t column, uint32_t side) {
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
                    vis_add_block(g, v, u, merge);
            g->longest = MAX(g->longest, g->n - g->window[g->n_windows - 1]);
        }
    g->window[g->n_windows] = g->n;
}

/* Adds the row of the class embedding, which has no place in the picture. */
static void vis_add_class(struct vis_grid *g) {
    assert(g->n_windows == 1);
    g->row[g->n] = g->column[g->n] = 0;
    g->window[1] = ++g->n;
    g->longest++;
}

/* Returns frequency @i of the half of a head of @dim values that turns by one coordinate. */
static double frequency(enum projector_kind kind, uint32_t dim, uint32_t i, bool by_column) {
    if (kind == PROJECTOR_PIXTRAL) /* even ones for rows, odd ones for columns */
        return mx_pow(10000, -2.0 * (2 * i + by_column) / dim);
    return mx_pow(kind == PROJECTOR_GEMMA4V ? 100 : 10000, -4.0 * i / dim);
}

bool vis_has_rope(const struct image_encoder *e) {
    switch (e->p.kind) {
    case PROJECTOR_GEMMA3:
    case PROJECTOR_LFM2:
    case PROJECTOR_IDEFICS3:
    case PROJECTOR_INTERNVL:
    case PROJECTOR_HUNYUANVL:
        return false;
    default:
        return e->p.n_layer > 0;
    }
}

void vis_frequencies(struct image_encoder *e) {
    uint32_t dim = e->p.n_embd / e->p.n_head;

    for (uint32_t i = 0; i < dim / 4 && vis_has_rope(e); i++)
        for (int by_column = 0; by_column < 2; by_column++)
            e->freq[by_column][i] = frequency(e->p.kind, dim, i, by_column);
}

/* Takes @n values of four bytes of the grid's memory. */
static void *vis_alloc(struct vis_grid *g, size_t n) {
    void *at = g->bytes + g->used;

    g->used += n * 4;
    assert(g->used <= g->size);
    return at;
}

/* Adds the two positions of a table of @n_table around place @at of [0, n_table). */
static void add_linear(double at, uint32_t n_table, struct vis_tap *tap, uint32_t *n_taps) {
    uint32_t low = MIN((uint32_t)at, n_table - 1);
    float part = (float)(at - low);

    tap[(*n_taps)++] = (struct vis_tap){low, 1 - part};
    tap[(*n_taps)++] = (struct vis_tap){MIN(low + 1, n_table - 1), part};
}

/* Returns the place of coordinate @i of @n in a table, whose corners are those of the picture. */
static double place_aligned(uint32_t i, uint32_t n, uint32_t n_table) {
    if (n == 1)
        return 0;
    return (double)i * (n_table - 1) / (n - 1);
}

/* Returns the place of the middle of coordinate @i in a table that is scaled to @n and a tenth, as
 * the maker's code has it; 0 beyond the table's border. */
static double place_hunyuanvl(uint32_t i, uint32_t n, uint32_t n_table) {
    return MAX((i + 0.5) * n_table / (n + 0.1) - 0.5, 0.0);
}

/* Returns the weight of position @j of a table of @n_table for coordinate @i of @n: a triangle
 * around the coordinate's middle, widened if the table is larger (antialiasing). */
static double triangle(uint32_t i, uint32_t n, uint32_t j, uint32_t n_table) {
    double scale = (double)n_table / n, away = j + 0.5 - (i + 0.5) * scale;

    return MAX(0.0, 1 - fabs(away) / MAX(scale, 1.0));
}

/* The positions of a table that coordinate @i of @n reads, and the sum of their weights. */
struct span {
    uint32_t first, end;
    double sum;
};

static struct span span_of(uint32_t i, uint32_t n, uint32_t n_table) {
    struct span s = {n_table, 0, 0};

    for (uint32_t j = 0; j < n_table; j++) {
        double w = triangle(i, n, j, n_table);

        if (w > 0) {
            s.first = MIN(s.first, j);
            s.end = j + 1;
        }
        s.sum += w;
    }
    return s;
}

/* Returns Keys' cubic kernel with a = -3/4, as PyTorch interpolates. */
static double keys(double x) {
    const double a = -0.75;

    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

/* Adds four taps around the middle of coordinate @i of @n, without antialiasing; positions beyond
 * the table's borders are those of the borders. */
static void add_cubic(uint32_t i, uint32_t n, uint32_t n_table, struct vis_tap *tap,
                      uint32_t *n_taps) {
    double at = (i + 0.5) * n_table / n - 0.5;
    int first = (int)floor(at) - 1;

    for (int k = first; k < first + 4; k++) {
        uint32_t place = (uint32_t)MIN(MAX(k, 0), (int)n_table - 1);

        tap[(*n_taps)++] = (struct vis_tap){place, (float)keys(at - k)};
    }
}

/* Adds taps for the positions of a table that coordinate @i of @n reads. */
static void add_taps(const struct image_encoder *e, uint32_t i, uint32_t n, struct vis_tap *tap,
                     uint32_t *n_taps) {
    if (e->p.side) { /* the table is as large as the picture */
        tap[(*n_taps)++] = (struct vis_tap){i, 1};
    } else if (e->p.kind == PROJECTOR_QWEN3VL) {
        add_linear(place_aligned(i, n, e->n_table), e->n_table, tap, n_taps);
    } else if (e->p.kind == PROJECTOR_HUNYUANVL) {
        add_linear(place_hunyuanvl(i, n, e->n_table), e->n_table, tap, n_taps);
    } else if (e->p.kind == PROJECTOR_KIMIVL || e->p.kind == PROJECTOR_GLM4V) {
        add_cubic(i, n, e->n_table, tap, n_taps);
    } else if (e->p.kind == PROJECTOR_LFM2) {
        struct span v = span_of(i, n, e->n_table);

        for (uint32_t k = v.first; k < v.end; k++)
            tap[(*n_taps)++] = (struct vis_tap){k, (float)(triangle(i, n, k, e->n_table) / v.sum)};
    }
}

/* Returns the most taps of @n coordinates: four, or LFM2's, which cover twice the table's part of a
 * coordinate, or two positions, plus one. */
static size_t most_taps(size_t n) {
    return 4 * n + 2 * (size_t)TABLE_MAX;
}

/* Fills in rotations and taps of the @n coordinates of an axis. */
static void fill_axis(struct image_encoder *e, bool by_column, uint32_t n, struct vis_axis *axis) {
    uint32_t quarter = vis_has_rope(e) ? e->p.n_embd / e->p.n_head / 4 : 0, n_taps = 0;
    float *turn = vis_alloc(&e->grid, (size_t)n * quarter * 2);
    uint32_t *first = vis_alloc(&e->grid, n + 1ul);
    struct vis_tap *tap = (struct vis_tap *)(e->grid.bytes + e->grid.used);

    for (uint32_t at = 0; at < n; at++) {
        for (uint32_t i = 0; i < quarter; i++) {
            double s, c;

            mx_sincos(at * e->freq[by_column][i], &s, &c);
            *turn++ = (float)c;
            *turn++ = (float)s;
        }
        first[at] = n_taps;
        add_taps(e, at, n, tap, &n_taps);
        assert(n_taps <= most_taps(n));
    }
    first[n] = n_taps;
    *axis =
        (struct vis_axis){by_column ? e->grid.column : e->grid.row, turn - (size_t)n * quarter * 2,
                          first, vis_alloc(&e->grid, 2ul * n_taps)};
}

/* Returns the row of the text model for block @i of patches, in order of computation. */
static uint32_t vis_row_of(const struct image_encoder *e, uint32_t i) {
    uint32_t merge = e->p.merge, first = i * merge * merge;

    return e->grid.row[first] / merge * (e->grid.width / merge) + e->grid.column[first] / merge;
}

/* Rows and columns together are at most one more than the patches. */
size_t vis_place_bytes(const struct image_encoder *e) {
    size_t n = e->max_patches + vis_extra(e),
           quarter = vis_has_rope(e) ? e->p.n_embd / e->p.n_head / 4 : 0;
    size_t sides = n + 1;

    return 4 * (3 * n + n + 1 + sides * quarter * 2 + sides + 2 +
                2 * (most_taps(sides) + most_taps(0)));
}

/* Returns the backend's address of the grid's data at @p. */
static const void *there(const struct vis_grid *g, const uint8_t *base, const void *p) {
    return base + ((const uint8_t *)p - g->bytes);
}

/* Copies the grid to the backend. */
static void vis_bring(struct image_encoder *e) {
    struct vis_grid *g = &e->grid;
    const uint8_t *base = e->ops->bring(e->be, g->bytes, g->used);
    struct vis_axis *axes[] = {&g->at.row, &g->at.column};

    g->at.to = there(g, base, g->at.to);
    g->start = there(g, base, g->window);
    for (int i = 0; i < 2; i++) {
        axes[i]->of = there(g, base, axes[i]->of);
        axes[i]->turn = there(g, base, axes[i]->turn);
        axes[i]->first_tap = there(g, base, axes[i]->first_tap);
        axes[i]->tap = there(g, base, axes[i]->tap);
    }
}

void vis_place(struct image_encoder *e) {
    const struct vis_cursor *c = &e->under_way;
    bool merged = e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL;
    uint32_t merge = merged ? e->p.merge : 1, area = e->p.merge * e->p.merge;
    struct vis_grid *g = &e->grid;

    g->width = c->l.width / e->p.patch;
    g->height = c->l.height / e->p.patch;
    size_t n = (size_t)g->width * g->height + vis_extra(e);
    assert(n <= e->max_patches + vis_extra(e));
    g->n = g->n_windows = g->longest = 0;
    g->used = 0;
    g->row = vis_alloc(g, n);
    g->column = vis_alloc(g, n);
    uint32_t *to = vis_alloc(g, n);
    g->window = vis_alloc(g, n + 1);
    add_windows(g, e->p.window ? e->p.window : MAX(g->width, g->height), merge);
    if (vis_extra(e))
        vis_add_class(g);
    assert(g->n == n);
    for (uint32_t i = 0; i < n && merged; i++)
        to[i] = vis_row_of(e, i / area) * area + i % area;
    fill_axis(e, false, g->height, &g->at.row);
    fill_axis(e, true, g->width, &g->at.column);
    g->at.to = to;
    g->at.width = g->width;
    vis_bring(e);
    g->at.pitch = c->pitch;
    g->at.pixel =
        e->ops->pixels(e->be, c->pixels, (size_t)c->l.width * 3, c->l.height, &g->at.pitch);
}

/* Applies norm @which of gemma4uv, whose epsilon files do not have, or of glm4v to @n patches, if
 * it has weights. */
static void norm_patches(struct image_encoder *e, int which, float *x, uint32_t width, uint32_t n) {
    float eps = 1e-5f;

    if (e->p.kind == PROJECTOR_GLM4V)
        eps = e->p.eps;
    if (e->patch_norm[which].w)
        vis_norm_rows(e, &e->patch_norm[which], x, width, eps, n, x);
}

/* Returns the arguments of a row function for the patches from @at on. */
static struct vis_rows of_patches(const struct image_encoder *e, enum vis_row_kind kind,
                                  uint32_t at, uint32_t n) {
    return (struct vis_rows){
        .kind = kind, .n = n, .first = at, .width = e->p.n_embd, .at = e->grid.at};
}

/* Writes the class embedding behind the patches. */
static void copy_class(struct image_encoder *e) {
    const struct vis_rows a = {.kind = VIS_AFFINE,
                               .n = 1,
                               .width = e->p.n_embd,
                               .in = e->class_row,
                               .factor = 1,
                               .out = e->x + (size_t)(e->grid.n - 1) * e->p.n_embd};

    e->ops->rows(e->be, &a);
}

void vis_embed(struct image_encoder *e, uint32_t at, uint32_t n) {
    uint32_t width = e->p.n_embd, n_in = 3 * e->p.patch * e->p.patch;
    bool two = e->p.kind == PROJECTOR_GEMMA4V || e->p.kind == PROJECTOR_GEMMA4UV;
    bool late = two || e->p.kind == PROJECTOR_GLM4V;
    float *x = e->x + (size_t)at * width;
    struct vis_rows read = of_patches(e, VIS_PATCH, at, n);
    struct vis_rows position = of_patches(e, VIS_POSITION, at, n);

    read.width = n_in;
    read.side = e->p.patch;
    read.twice = e->p.kind == PROJECTOR_GEMMA4V;
    read.out = e->in;
    memcpy(read.mean, e->p.mean, sizeof(read.mean));
    memcpy(read.std, e->p.std, sizeof(read.std));
    e->ops->rows(e->be, &read);
    norm_patches(e, 0, e->in, n_in, n);
    vis_linear(e, e->patch, e->in, n, x, false);
    position.in = e->table;
    position.n_table = e->n_table;
    position.apart = two;
    position.out = x;
    if (e->table && !late)
        e->ops->rows(e->be, &position);
    norm_patches(e, 1, x, width, n);
    if (e->table && late)
        e->ops->rows(e->be, &position);
    norm_patches(e, 2, x, width, n);
    if (e->pre_ln.w)
        vis_norm_rows(e, &e->pre_ln, x, width, e->p.eps, n, x);
    if (e->class_row && at == 0)
        copy_class(e);
}

/* Applies the final norm to blocks [at, at + n). Qwen computes patches by windows and blocks; their
 * rows are moved to o in raster order of the blocks. Other kinds are in raster order already. */
void vis_arrange(struct image_encoder *e, uint32_t at, uint32_t n) {
    uint32_t area = e->p.merge * e->p.merge;
    bool merged = e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL;
    bool early = e->p.kind == PROJECTOR_PIXTRAL || e->p.kind == PROJECTOR_HUNYUANVL;
    const struct vis_norm *w = early ? &e->mm_norm : &e->post_ln;
    struct vis_rows a = of_patches(e, VIS_NORM, at * area, n * area);

    a.in = e->x + (size_t)at * area * e->p.n_embd;
    a.w = w->w;
    a.bias = w->bias;
    a.eps = e->p.eps;
    a.moves = merged;
    if (merged)
        a.out = e->o;
    else
        a.out = e->x + (size_t)at * area * e->p.n_embd;
    if (w->w)
        e->ops->rows(e->be, &a);
}

/* Writes all values of blocks [at, at + n) to e->in; lfm2 may have a norm, and internvl and kimivl,
 * for each patch, have one, whose epsilon files do not have. */
static void gather_blocks(struct image_encoder *e, uint32_t at, uint32_t n) {
    struct vis_rows a = of_patches(e, VIS_BLOCK, at, n);

    a.merge = e->p.merge;
    a.channels = e->p.kind == PROJECTOR_PIXTRAL || e->p.kind == PROJECTOR_GLM4V ||
                 e->p.kind == PROJECTOR_HUNYUANVL;
    a.in = e->x;
    a.out = e->in;
    e->ops->rows(e->be, &a);
    if (a.channels || !e->mm_norm.w)
        return;
    uint32_t width = e->p.n_embd, rows = n * e->p.merge * e->p.merge;
    if (e->p.kind != PROJECTOR_KIMIVL) {
        width *= e->p.merge * e->p.merge;
        rows = n;
    }
    vis_norm_rows(e, &e->mm_norm, e->in, width, 1e-5f, rows, e->in);
}

/* Writes the means of blocks to e->in. gemma4v: times the root of the width, then normalised by
 * mean and deviation; gemma4v and gemma4uv: then an RMS norm. */
static void gather_means(struct image_encoder *e, uint32_t at, uint32_t n) {
    static const struct vis_norm plain = {0};
    struct vis_rows a = of_patches(e, VIS_MEAN, at, n);

    a.merge = e->p.merge;
    a.in = e->x;
    a.out = e->in;
    e->ops->rows(e->be, &a);
    if (e->p.kind == PROJECTOR_GEMMA4V) {
        a.kind = VIS_AFFINE;
        a.in = e->in;
        a.factor = sqrtf((float)e->p.n_embd);
        a.w = e->std.w;
        a.bias = e->std.bias;
        e->ops->rows(e->be, &a);
    }
    vis_norm_rows(e, e->p.kind == PROJECTOR_GEMMA3 ? &e->mm_norm : &plain, e->in, e->p.n_embd,
                  e->p.eps, n, e->in);
}

/* Pixtral: projects rows of one line; a line break follows every line but the last. */
static uint32_t project_line(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct picture_layout *l = &e->under_way.l;
    uint32_t line = at / l->n_columns, column = at % l->n_columns;
    uint32_t rows = MIN(n, l->n_columns - column);
    size_t n_out = e->p.n_out;
    float *to = e->under_way.out + (at + line) * n_out;

    gather_blocks(e, at, rows);
    if (e->merge)
        vis_linear(e, e->merge, e->in, rows, e->o, false);
    vis_mlp(e, e->mm_in, e->mm_out, e->merge ? e->o : e->in, rows, to, n_out);
    if (column + rows == l->n_columns && line + 1 < l->n_lines)
        memcpy(to + rows * n_out, e->line_break, n_out * sizeof(float));
    return rows;
}

/* glm4v: a convolution over blocks, a product with a norm behind it, and an FFN. Its norm is that
 * of the maker's code, whose epsilon files do not have. */
static void project_glm4v(struct image_encoder *e, uint32_t at, uint32_t n, float *to,
                          size_t stride) {
    float *up = e->ffn + VIS_CHUNK * e->ffn_width;
    uint32_t width = e->p.n_out;

    gather_blocks(e, at, n);
    vis_linear(e, e->merge, e->in, n, e->out, false);
    vis_linear(e, e->mm_fc, e->out, n, e->in, false);
    vis_norm_rows(e, &e->mm_norm, e->in, width, 1e-5f, n, e->in);
    vis_activate(e, PROJECTOR_GELU_ERF, e->in, NULL, width, n);
    vis_linear(e, e->mm_gate, e->in, n, e->ffn, false);
    vis_linear(e, e->mm_in, e->in, n, up, false);
    vis_activate(e, e->p.act, e->ffn, up, e->hidden, n);
    vis_linear_to_host(e, e->mm_out, e->ffn, n, to, stride);
}

/* Copies a row of the text model. */
static void vis_copy_row(const struct image_encoder *e, const float *row, float *to) {
    memcpy(to, row, e->p.n_out * sizeof(*to));
}

/* hunyuanvl: projects rows of one line by a convolution over blocks, two products and a norm. Each
 * line is followed by a break, and all of them are between a first and a last row. */
static uint32_t project_framed(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct picture_layout *l = &e->under_way.l;
    uint32_t line = at / l->n_columns, column = at % l->n_columns;
    uint32_t rows = MIN(n, l->n_columns - column);
    size_t n_out = e->p.n_out;
    float *to = e->under_way.out + (1 + at + line) * n_out, *end = to + rows * n_out;

    if (at == 0)
        vis_copy_row(e, e->first_row, e->under_way.out);
    gather_blocks(e, at, rows);
    vis_linear(e, e->merge, e->in, rows, e->ffn, false);
    vis_activate(e, e->p.merge_act, e->ffn, NULL, e->hidden, rows);
    vis_linear(e, e->mm_in, e->ffn, rows, e->in, false);
    vis_linear(e, e->mm_out, e->in, rows, e->out, false);
    vis_norm_rows(e, &e->mm_post, e->out, e->p.n_out, e->p.eps, rows, e->out);
    e->ops->get(e->be, e->out, rows, e->p.n_out, to, n_out);
    if (column + rows < l->n_columns)
        return rows;
    vis_copy_row(e, e->line_break, end);
    if (line + 1 == l->n_lines)
        vis_copy_row(e, e->last_row, end + n_out);
    return rows;
}

uint32_t vis_project(struct image_encoder *e, uint32_t at, uint32_t n) {
    uint32_t block = e->p.merge * e->p.merge * e->p.n_embd;
    size_t stride = image_encoder_width(e);
    float *to = e->under_way.out + at * stride;

    if (e->p.kind == PROJECTOR_PIXTRAL)
        return project_line(e, at, n);
    if (e->p.kind == PROJECTOR_HUNYUANVL)
        return project_framed(e, at, n);
    if (e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL) {
        vis_mlp(e, e->mm_in, e->mm_out, e->o + (size_t)at * block, n, to, stride);
    } else if (e->p.kind == PROJECTOR_GLM4V) {
        project_glm4v(e, at, n, to, stride);
    } else if (e->mm_in) {
        gather_blocks(e, at, n);
        vis_mlp(e, e->mm_in, e->mm_out, e->in, n, to, stride);
    } else if (e->p.kind == PROJECTOR_IDEFICS3) {
        gather_blocks(e, at, n);
        vis_linear_to_host(e, e->mm_out, e->in, n, to, stride);
    } else {
        gather_means(e, at, n);
        vis_linear_to_host(e, e->mm_out, e->in, n, to, stride);
    }
    return n;
}
