#include "vision/projector.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Values that files lack: the sizes with which the models were trained. The limits in rows are
 * those of llama.cpp, to which users are accustomed. */
static const struct kind {
    const char *name;
    uint32_t merge, least, most;
    enum picture_filter filter;
    bool positions, fixed;
    enum projector_marks marks;
    /* between the products of the projector */
    enum projector_act merge_act;
} kinds[PROJECTOR_KINDS] = {
    [PROJECTOR_QWEN3VL] = {"qwen3vl_merger", 2, 8, 4096, FILTER_BICUBIC, true, false},
    [PROJECTOR_QWEN25VL] = {"qwen2.5vl_merger", 2, 8, 4096, FILTER_BICUBIC, true, false},
    [PROJECTOR_GEMMA3] = {"gemma3", 4, 0, 0, FILTER_BILINEAR, false, true},
    [PROJECTOR_GEMMA4V] = {"gemma4v", 3, 70, 1120, FILTER_BICUBIC, false, false},
    [PROJECTOR_GEMMA4UV] = {"gemma4uv", 1, 70, 1120, FILTER_BICUBIC, false, false},
    [PROJECTOR_PIXTRAL] = {"pixtral", 1, 8, 1024, FILTER_BICUBIC, false, false},
    [PROJECTOR_LFM2] = {"lfm2", 2, 64, 256, FILTER_BILINEAR, false, false, MARKS_PLACE},
    [PROJECTOR_IDEFICS3] = {"idefics3", 2, 0, 0, FILTER_LANCZOS, false, true, MARKS_FENCED},
    [PROJECTOR_KIMIVL] = {"kimivl", 2, 8, 1024, FILTER_BICUBIC, .merge_act = PROJECTOR_GELU_ERF},
    [PROJECTOR_GLM4V] = {"glm4v", 2, 8, 4096, FILTER_BICUBIC, true, false},
    [PROJECTOR_HUNYUANVL] = {"hunyuanvl", 2, 256, 4096, FILTER_LANCZOS,
                             .merge_act = PROJECTOR_GELU_ERF},
    [PROJECTOR_INTERNVL] = {"internvl", 2, 0, 0, FILTER_BICUBIC, .fixed = true,
                            .merge_act = PROJECTOR_GELU_ERF},
};

const char *projector_kind_name(enum projector_kind kind) {
    assert(kind < PROJECTOR_KINDS);
    return kinds[kind].name;
}

/* Reads keys; the first error is kept in `r`. */
struct reader {
    const struct gguf *file;
    struct err *err;
    int r;
};

/* Reads a required integer of [lo, hi]. */
static uint32_t need(struct reader *d, const char *key, uint32_t lo, uint32_t hi) {
    uint32_t v = 0;

    if (d->r < 0)
        return 0;
    if (gguf_u32(d->file, key, &v) < 0)
        d->r = err_set(d->err, 0, NULL, "the projector file has no '%s'", key);
    else if (v < lo || v > hi)
        d->r = err_set(d->err, 0, NULL, "'%s' is %u, %u to %u are allowed", key, v, lo, hi);
    return v;
}

/* Reads an integer of [lo, hi]; returns @otherwise if the file has none. */
static uint32_t want(struct reader *d, const char *key, uint32_t lo, uint32_t hi,
                     uint32_t otherwise) {
    if (!gguf_has(d->file, key))
        return otherwise;
    return need(d, key, lo, hi);
}

/* Reads three numbers; those of a deviation must not be 0. */
static void read_colours(struct reader *d, const char *key, bool deviation, float out[3]) {
    const struct gguf_array *a = gguf_array(d->file, key);

    if (d->r < 0)
        return;
    if (!a || gguf_array_n(a) != 3 || gguf_array_read(a, GGUF_F32, 0, 3, out) < 3) {
        d->r = err_set(d->err, 0, NULL, "the projector file has no '%s' of three numbers", key);
        return;
    }
    for (uint64_t i = 0; i < 3; i++) {
        if (!(out[i] >= (deviation ? 1e-3f : -10.0f) && out[i] <= 10))
            d->r = err_set(d->err, 0, NULL, "'%s' has the value %g", key, (double)out[i]);
    }
}

/* Finds the kind of the file by its name. Returns 0 or -EINVAL with @err. */
static int find_kind(const struct gguf *file, enum projector_kind *out, struct err *err) {
    struct gguf_str arch, name;
    char known[256] = "", shown[48] = "";

    if (gguf_string(file, "general.architecture", &arch) < 0 || arch.len != 4 ||
        memcmp(arch.data, "clip", 4) != 0)
        return err_set(err, 0, NULL, "the file is no projector: its architecture is not 'clip'");
    if (gguf_string(file, "clip.vision.projector_type", &name) < 0 &&
        gguf_string(file, "clip.projector_type", &name) < 0)
        return err_set(err, 0, NULL, "the projector file has no 'clip.projector_type'");
    for (int i = 0; i < PROJECTOR_KINDS; i++) {
        size_t n = strlen(known);

        if (name.len == strlen(kinds[i].name) && !memcmp(name.data, kinds[i].name, name.len)) {
            *out = (enum projector_kind)i;
            return 0;
        }
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", kinds[i].name);
    }
    for (size_t i = 0; i < MIN(name.len, sizeof(shown) - 1); i++)
        shown[i] = (char)(name.data[i] > 0x20 && name.data[i] < 0x7F ? name.data[i] : '?');
    return err_set(err, 0, NULL, "projectors of kind '%s' are not supported (known: %s)", shown,
                   known);
}

static enum projector_act read_act(const struct gguf *file) {
    bool gelu = false, silu = false;

    gguf_bool(file, "clip.use_gelu", &gelu);
    gguf_bool(file, "clip.use_silu", &silu);
    if (gelu)
        return PROJECTOR_GELU;
    if (silu)
        return PROJECTOR_SILU;
    return PROJECTOR_QUICK_GELU;
}

/* Counts the layers that are followed by a merger of their own (deepstack). */
static uint32_t count_deep(const struct gguf *file, uint32_t n_layer) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_layer; i++) {
        char name[64];

        snprintf(name, sizeof(name), "v.deepstack.%u.fc1.weight", i);
        n += gguf_find(file, name) != NULL;
    }
    return n;
}

/* Reads the sizes of layers; the kind without layers has one head, as wide as a row. */
static void read_layers(struct reader *d, struct projector *p) {
    if (p->kind == PROJECTOR_GEMMA4UV) {
        p->n_head = 1;
        return;
    }
    p->n_ff = need(d, "clip.vision.feed_forward_length", 1, 65536);
    p->n_layer = need(d, "clip.vision.block_count", 1, PROJECTOR_LAYERS_MAX);
    p->n_head = need(d, "clip.vision.attention.head_count", 1, 256);
    if (d->r == 0 && (p->n_embd % (4 * p->n_head) || p->n_embd / p->n_head > PROJECTOR_HEAD_MAX))
        d->r = err_set(d->err, 0, NULL,
                       "%u values in %u heads: their size is no multiple of 4, or above %u",
                       p->n_embd, p->n_head, PROJECTOR_HEAD_MAX);
}

/* Returns the rows of a tile, without its marks. */
static uint32_t tile_rows(const struct projector *p) {
    uint32_t side = p->tile / (p->patch * p->merge);

    return side * side;
}

/* Reads the sizes of tiles. Unless the file has other values, those of lfm2 are 2 to 10 of 512
 * pixels, and those of a kind with an only size 1 to 12 of that. */
static void read_tiles(struct reader *d, struct projector *p) {
    uint32_t align = p->patch * p->merge, least = 1, most = PROJECTOR_TILES_MAX;

    p->tile = p->side;
    if (!p->tile) {
        p->tile = want(d, "clip.vision.preproc_image_size", 1, 4096, 512);
        least = 2;
        most = 10;
    }
    p->least_tiles = want(d, "clip.vision.preproc_min_tiles", 1, PROJECTOR_TILES_MAX, least);
    p->most_tiles = want(d, "clip.vision.preproc_max_tiles", 1, PROJECTOR_TILES_MAX, most);
    if (p->side)
        p->least = p->most = tile_rows(p);
    if (d->r == 0 && p->side * (p->most_tiles + 1) > PICTURE_SIDE_MAX)
        d->r = err_set(d->err, 0, NULL, "%u tiles of %u pixels have more than %u pixels a side",
                       p->most_tiles + 1, p->side, PICTURE_SIDE_MAX);
    if (d->r == 0 && (p->tile % align || p->least_tiles > p->most_tiles))
        d->r = err_set(d->err, 0, NULL,
                       "%u to %u tiles of %u pixels: their side is no multiple of %u, or the "
                       "least number is above the most",
                       p->least_tiles, p->most_tiles, p->tile, align);
}

/* Reads the longer side of idefics3's grids, which is a number of tiles of the only size. */
static void read_longest(struct reader *d, struct projector *p) {
    uint32_t n;

    p->tile = p->side;
    p->longest = need(d, "clip.vision.preproc_image_size", 1, 4096);
    if (d->r < 0)
        return;
    n = p->longest / p->tile;
    if (p->longest % p->tile || n > PROJECTOR_TILES_MAX)
        d->r = err_set(d->err, 0, NULL,
                       "'clip.vision.preproc_image_size' is %u, which is not 1 to %u tiles of %u",
                       p->longest, PROJECTOR_TILES_MAX, p->tile);
    p->least_tiles = n;
    p->most_tiles = n * n;
    p->least = p->most = tile_rows(p);
}

/* Reads the only size of pictures. Pixels at the right and at the bottom that do not fill a patch
 * are left out. */
static void read_side(struct reader *d, struct projector *p) {
    p->side = need(d, "clip.vision.image_size", 1, 4096);
    if (d->r < 0)
        return;
    bool whole = p->side % p->patch == 0 || p->kind == PROJECTOR_IDEFICS3;
    if (!whole || p->side < p->patch * p->merge || p->side / p->patch % p->merge)
        d->r = err_set(d->err, 0, NULL, "'clip.vision.image_size' is %u, no multiple of %u",
                       p->side, p->patch * p->merge);
}

/* Reads the side of the square of patches that becomes a row, which some kinds always have. */
static uint32_t read_merge(struct reader *d, enum projector_kind kind) {
    uint32_t own = kinds[kind].merge;

    switch (kind) {
    case PROJECTOR_PIXTRAL:
    case PROJECTOR_GLM4V:
    case PROJECTOR_HUNYUANVL:
        return want(d, "clip.vision.spatial_merge_size", 1, 4, own);
    case PROJECTOR_GEMMA3:
    case PROJECTOR_GEMMA4V:
    case PROJECTOR_LFM2:
    case PROJECTOR_IDEFICS3:
    case PROJECTOR_INTERNVL:
    case PROJECTOR_KIMIVL:
        return want(d, "clip.vision.projector.scale_factor", 1, 8, own);
    default:
        return own;
    }
}

/* Reads the keys that only some kinds have. */
static void read_special(struct reader *d, struct projector *p) {
    p->merge = read_merge(d, p->kind);
    if (p->kind == PROJECTOR_GEMMA4UV)
        p->patch *= want(d, "clip.vision.projector.scale_factor", 1, 8, 3);
    if (p->kind == PROJECTOR_LFM2)
        read_tiles(d, p);
    if (p->kind == PROJECTOR_QWEN3VL)
        p->n_deep = count_deep(d->file, p->n_layer);
    if (p->kind == PROJECTOR_QWEN25VL && d->r == 0) {
        uint32_t pixels = want(d, "clip.vision.window_size", 1, 4096, 112);

        p->window = MAX(pixels / p->patch / 2, 1u) * 2;
        if (p->window > PROJECTOR_WINDOW_MAX && d->r == 0)
            d->r =
                err_set(d->err, 0, NULL, "windows of %u pixels have a side of more than %u patches",
                        pixels, PROJECTOR_WINDOW_MAX);
        p->period = need(d, "clip.vision.n_wa_pattern", 1, PROJECTOR_LAYERS_MAX);
    }
    if (kinds[p->kind].fixed && d->r == 0)
        read_side(d, p);
    if (p->kind == PROJECTOR_IDEFICS3 && d->r == 0)
        read_longest(d, p);
    if (p->kind == PROJECTOR_INTERNVL && d->r == 0)
        read_tiles(d, p);
}

/* Reads the limits of a picture's pixels, which only narrow those of the kind: memory is planned
 * for these. */
static void read_limits(struct reader *d, struct projector *p) {
    uint32_t align = p->patch * p->merge;

    if (d->r < 0 || p->side || p->tile)
        return;
    uint32_t area = align * align;
    uint32_t most = want(d, "clip.vision.image_max_pixels", 1, INT32_MAX, p->most * area);
    uint32_t least = want(d, "clip.vision.image_min_pixels", 1, INT32_MAX, p->least * area);
    p->most = MAX(MIN(p->most, most / area), 1u);
    p->least = MIN(MAX(least / area, 1u), p->most);
}

int projector_read(struct projector *out, const struct gguf *file, struct err *err) {
    struct projector p = {0};
    struct reader d = {.file = file, .err = err};

    d.r = find_kind(file, &p.kind, err);
    if (d.r < 0)
        return d.r;
    const struct kind *k = &kinds[p.kind];
    p.name = k->name;
    p.least = k->least;
    p.most = k->most;
    p.filter = k->filter;
    p.positions = k->positions;
    p.marks = k->marks;
    p.merge_act = k->merge_act;
    p.act = read_act(file);
    if (p.kind == PROJECTOR_HUNYUANVL) /* whatever the file says, as llama.cpp does */
        p.act = PROJECTOR_GELU;
    p.n_embd = need(&d, "clip.vision.embedding_length", 4, 8192);
    read_layers(&d, &p);
    p.patch = need(&d, "clip.vision.patch_size", 1, 64);
    p.n_out = need(&d, "clip.vision.projection_dim", 1, 65536);
    read_colours(&d, "clip.vision.image_mean", false, p.mean);
    read_colours(&d, "clip.vision.image_std", true, p.std);
    if (d.r == 0 && (gguf_f32(file, "clip.vision.attention.layer_norm_epsilon", &p.eps) < 0 ||
                     !(p.eps > 0 && p.eps < 1)))
        d.r = err_set(err, 0, NULL,
                      "'clip.vision.attention.layer_norm_epsilon' is missing or "
                      "not between 0 and 1");
    if (d.r == 0)
        read_special(&d, &p);
    read_limits(&d, &p);
    if (d.r == 0)
        *out = p;
    return d.r;
}

/* Rounds a side of the picture to a multiple of @align, and at least to @align. */
static float align_side(float x, float align, float (*round_to)(float)) {
    return MAX(align, round_to(x / align) * align);
}

/* Applies llama.cpp's rule for pictures of any size, in its arithmetic: rounds sides to multiples
 * of @align, and scales a picture beyond the limits with its aspect kept. */
static void choose_size(uint32_t width, uint32_t height, float align, float least, float most,
                        struct picture_layout *out) {
    float w = (float)width, h = (float)height;
    float to_w = align_side(w, align, roundf), to_h = align_side(h, align, roundf);

    if (to_w * to_h > most) {
        float by = sqrtf(h * w / most);

        to_w = align_side(w / by, align, floorf);
        to_h = align_side(h / by, align, floorf);
    } else if (to_w * to_h < least) {
        float by = sqrtf(least / (h * w));

        to_w = ceilf(w * by / align) * align;
        to_h = ceilf(h * by / align) * align;
    }
    out->width = (uint32_t)to_w;
    out->height = (uint32_t)to_h;
}

/* A picture in tiles: its grid, and the rows of its small picture. Without lines there are no
 * tiles. */
struct tiling {
    uint32_t n_columns, n_lines;
    /* sides of the small picture in rows */
    uint32_t columns, lines;
};

/* Returns the sides in pixels of the small picture, which may be one of the only size. */
static void small_sides(const struct projector *p, const struct tiling *t, uint32_t *width,
                        uint32_t *height) {
    uint32_t align = p->patch * p->merge;

    *width = *height = p->side;
    if (p->side)
        return;
    *width = t->columns * align;
    *height = t->lines * align;
}

/* Writes the marks of part @i to @a, whose line and column are known. */
static void list_marks(const struct projector *p, const struct tiling *t, uint32_t i,
                       struct picture_part *a) {
    bool small = i == t->n_columns * t->n_lines, fenced = p->marks == MARKS_FENCED;

    if (p->marks == MARKS_NONE || (!fenced && t->n_lines == 0))
        return;
    if (fenced && i > 0 && small)
        a->mark[a->n_marks++] = MARK_END;
    else if (fenced && i > 0 && a->column == 0)
        a->mark[a->n_marks++] = MARK_BREAK;
    if (fenced && i > 0)
        a->mark[a->n_marks++] = MARK_FENCE;
    if (small)
        a->mark[a->n_marks++] = MARK_SMALL;
    else
        a->mark[a->n_marks++] = MARK_TILE + a->line * PROJECTOR_TILES_MAX + a->column;
}

/* Returns the number of rows before the marks of part @i. Fences are before all marks of places but
 * the first, and breaks at the beginning of all lines but the first. */
static uint32_t rows_before(const struct projector *p, const struct tiling *t, uint32_t i) {
    uint32_t n = i * tile_rows(p);

    if (p->marks == MARKS_NONE || i == 0)
        return n;
    if (p->marks == MARKS_PLACE)
        return n + i;
    return n + 2 * i - 1 + (i - 1) / t->n_columns;
}

/* Returns part @i of a picture. */
static struct picture_part part_of(const struct projector *p, const struct tiling *t, uint32_t i) {
    struct picture_part a = {.width = p->tile, .height = p->tile, .first = rows_before(p, t, i)};

    if (t->n_lines) {
        a.line = i / t->n_columns;
        a.column = i % t->n_columns;
    }
    a.top = a.line * p->tile;
    a.left = a.column * p->tile;
    if (a.line == t->n_lines)
        small_sides(p, t, &a.width, &a.height);
    list_marks(p, t, i, &a);
    return a;
}

/* Fills in the sides and the rows of a picture in tiles, and of one without tiles of a kind that
 * has them. */
static void lay_tiles(const struct projector *p, const struct tiling *t,
                      struct picture_layout *out) {
    const struct picture_part last = part_of(p, t, t->n_columns * t->n_lines);

    *out = (struct picture_layout){
        .width = MAX(last.width, t->n_columns * p->tile),
        .height = last.top + last.height,
        .n_columns = t->columns,
        .n_lines = t->lines,
        .n_rows = last.first + last.n_marks + t->columns * t->lines,
    };
    out->n_positions = out->n_rows;
}

/* Chooses the grid of tiles whose aspect ratio is nearest to the picture's; of equally near ones
 * the larger, if the picture has more than half of its pixels. */
static void choose_grid(const struct projector *p, uint32_t width, uint32_t height,
                        uint32_t *n_columns, uint32_t *n_lines) {
    float aspect = (float)width / (float)height, best = INFINITY;
    uint64_t pixels = (uint64_t)width * height, tile = (uint64_t)p->tile * p->tile;

    for (uint32_t n = p->least_tiles; n <= p->most_tiles; n++)
        for (uint32_t w = 1; w <= n; w++) {
            float away = fabsf(aspect - (float)w / (float)(n / w));

            if (n % w || away > best || (away == best && pixels * 2 <= tile * n))
                continue;
            best = away;
            *n_columns = w;
            *n_lines = n / w;
        }
}

/* Returns the number of tiles along @side of a picture whose longer side is enlarged or reduced to
 * p->longest. The shorter one is rounded down to an even number, as in training. */
static uint32_t tiles_along(const struct projector *p, uint32_t side, uint32_t longer) {
    uint64_t pixels = (uint64_t)p->longest * side / longer;

    if (pixels % 2 && pixels < p->longest)
        pixels++;
    return MAX((uint32_t)((pixels + p->tile - 1) / p->tile), 1u);
}

/* Returns true if a picture is so large that it is cut into tiles. @most: rows of the small
 * picture. */
static bool needs_tiles(const struct projector *p, uint32_t width, uint32_t height, uint32_t most) {
    float align = (float)(p->patch * p->merge);
    double pixels =
        (double)align_side((float)width, align, roundf) * align_side((float)height, align, roundf);

    if (p->side)
        return MAX(width, height) > p->side;
    return pixels > 2 * (double)most * (double)align * (double)align;
}

/* Chooses the grid of a picture, if it has one. */
static void choose_tiles(const struct projector *p, uint32_t width, uint32_t height, uint32_t most,
                         struct tiling *t) {
    if (p->longest) {
        t->n_columns = tiles_along(p, width, MAX(width, height));
        t->n_lines = tiles_along(p, height, MAX(width, height));
    } else if (needs_tiles(p, width, height, most)) {
        choose_grid(p, width, height, &t->n_columns, &t->n_lines);
    }
    if (t->n_columns * t->n_lines == 1) /* the small picture shows as much */
        t->n_columns = t->n_lines = 0;
}

void projector_layout(const struct projector *p, uint32_t width, uint32_t height,
                      const struct picture_budget *budget, struct picture_layout *out) {
    uint32_t align = p->patch * p->merge, area = align * align;
    uint32_t least = budget->least ? budget->least : p->least;
    uint32_t most = budget->most ? budget->most : p->most;

    assert(width > 0 && height > 0 && align > 0);
    if (p->side)
        out->width = out->height = p->side;
    else
        choose_size(width, height, (float)align, (float)least * (float)area,
                    (float)most * (float)area, out);
    out->n_columns = out->width / align;
    out->n_lines = out->height / align;
    out->n_rows = projector_rows(p, out->n_columns, out->n_lines);
    out->n_positions = p->positions ? MAX(out->n_columns, out->n_lines) : out->n_rows;
    if (!p->tile)
        return;
    struct tiling t = {.columns = out->n_columns, .lines = out->n_lines};
    if (!budget->whole)
        choose_tiles(p, width, height, most, &t);
    lay_tiles(p, &t, out);
}

/* Returns the most rows of a picture in tiles, of which the small one has at most @most. */
static uint32_t most_tiled_rows(const struct projector *p, uint32_t most, bool whole) {
    struct tiling t = {.columns = most, .lines = 1, .n_lines = 1, .n_columns = p->most_tiles};
    struct picture_layout l;

    if (p->longest)
        t.n_columns = t.n_lines = p->least_tiles;
    if (whole || p->most_tiles == 1)
        t.n_columns = t.n_lines = 0;
    lay_tiles(p, &t, &l);
    return l.n_rows;
}

uint32_t projector_most_rows(const struct projector *p, const struct picture_budget *budget) {
    uint32_t most = budget->most ? budget->most : p->most, align = p->patch * p->merge, best = 0;

    if (p->side)
        most = p->side / align * (p->side / align);
    if (p->tile)
        return most_tiled_rows(p, most, budget->whole);
    if (p->side)
        return most;
    for (uint32_t n = 1; n <= most; n++) { /* number of columns */
        uint32_t n_lines = MIN(most / n, PICTURE_SIDE_MAX / align);

        best = MAX(best, projector_rows(p, n, n_lines));
    }
    return best;
}

/* Computes the tiles of layout @l. Returns false for a layout that projector_layout() does not
 * make. */
static bool find_tiling(const struct projector *p, const struct picture_layout *l,
                        struct tiling *t) {
    uint32_t n = l->n_columns * l->n_lines, width, height;
    struct picture_layout should;

    *t = (struct tiling){.columns = l->n_columns, .lines = l->n_lines};
    if (!p->tile)
        return true;
    small_sides(p, t, &width, &height);
    if (n == 0 || n > l->n_rows || l->height < height || (p->side && n != tile_rows(p)))
        return false;
    t->n_lines = (l->height - height) / p->tile;
    if (t->n_lines && p->side)
        t->n_columns = l->width / p->tile;
    else if (t->n_lines)
        t->n_columns = (l->n_rows - n) / (tile_rows(p) + 1) / t->n_lines;
    if (MAX(t->n_lines, t->n_columns) > PROJECTOR_TILES_MAX || (t->n_lines && !t->n_columns))
        return false;
    lay_tiles(p, t, &should);
    return should.width == l->width && should.height == l->height && should.n_rows == l->n_rows;
}

uint32_t projector_parts(const struct projector *p, const struct picture_layout *l) {
    struct tiling t;

    if (!find_tiling(p, l, &t))
        return 0;
    return t.n_columns * t.n_lines + 1;
}

struct picture_part projector_part(const struct projector *p, const struct picture_layout *l,
                                   uint32_t i) {
    struct tiling t;
    bool ok = find_tiling(p, l, &t);

    assert(ok && i <= t.n_columns * t.n_lines);
    if (!p->tile)
        return (struct picture_part){.width = l->width, .height = l->height};
    return part_of(p, &t, i);
}
