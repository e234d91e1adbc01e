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
} kinds[PROJECTOR_KINDS] = {
    [PROJECTOR_QWEN3VL] = {"qwen3vl_merger", 2, 8, 4096, FILTER_BICUBIC, true, false},
    [PROJECTOR_QWEN25VL] = {"qwen2.5vl_merger", 2, 8, 4096, FILTER_BICUBIC, true, false},
    [PROJECTOR_GEMMA3] = {"gemma3", 4, 0, 0, FILTER_BILINEAR, false, true},
    [PROJECTOR_GEMMA4V] = {"gemma4v", 3, 70, 1120, FILTER_BICUBIC, false, false},
    [PROJECTOR_GEMMA4UV] = {"gemma4uv", 1, 70, 1120, FILTER_BICUBIC, false, false},
    [PROJECTOR_PIXTRAL] = {"pixtral", 1, 8, 1024, FILTER_BICUBIC, false, false},
    [PROJECTOR_LFM2] = {"lfm2", 2, 64, 256, FILTER_BILINEAR, false, false},
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

/* Reads the sizes of tiles: 512 pixels, and 2 to 10 tiles, unless the file has other values. */
static void read_tiles(struct reader *d, struct projector *p) {
    uint32_t align = p->patch * p->merge;

    p->tile = want(d, "clip.vision.preproc_image_size", 1, 4096, 512);
    p->least_tiles = want(d, "clip.vision.preproc_min_tiles", 1, PROJECTOR_TILES_MAX, 2);
    p->most_tiles =
        want(d, "clip.vision.preproc_max_tiles", 1, PROJECTOR_TILES_MAX, PROJECTOR_TILES_MAX);
    if (d->r == 0 && (p->tile % align || p->least_tiles > p->most_tiles))
        d->r = err_set(d->err, 0, NULL,
                       "%u to %u tiles of %u pixels: their side is no multiple of %u, or the "
                       "least number is above the most",
                       p->least_tiles, p->most_tiles, p->tile, align);
}

/* Reads the keys that only some kinds have. */
static void read_special(struct reader *d, struct projector *p) {
    p->merge = kinds[p->kind].merge;
    if (p->kind == PROJECTOR_PIXTRAL)
        p->merge = want(d, "clip.vision.spatial_merge_size", 1, 4, p->merge);
    if (p->kind == PROJECTOR_GEMMA3 || p->kind == PROJECTOR_GEMMA4V || p->kind == PROJECTOR_LFM2)
        p->merge = want(d, "clip.vision.projector.scale_factor", 1, 8, p->merge);
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
    if (!kinds[p->kind].fixed || d->r < 0)
        return;
    p->side = need(d, "clip.vision.image_size", 1, 4096);
    if (d->r == 0 && p->side % (p->patch * p->merge))
        d->r = err_set(d->err, 0, NULL, "'clip.vision.image_size' is %u, no multiple of %u",
                       p->side, p->patch * p->merge);
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
    p.act = read_act(file);
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

/* Returns the rows of a tile, with its mark. */
static uint32_t tile_rows(const struct projector *p) {
    uint32_t side = p->tile / (p->patch * p->merge);

    return side * side + 1;
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

/* Adds a grid of tiles to the layout of the small picture, if the picture is large enough. */
static void add_tiles(const struct projector *p, uint32_t width, uint32_t height, uint64_t most,
                      struct picture_layout *l) {
    float align = (float)(p->patch * p->merge);
    double pixels =
        (double)align_side((float)width, align, roundf) * align_side((float)height, align, roundf);
    uint32_t n_columns = 0, n_lines = 0;

    if (pixels <= 2 * (double)most)
        return;
    choose_grid(p, width, height, &n_columns, &n_lines);
    l->width = MAX(l->width, n_columns * p->tile);
    l->height += n_lines * p->tile;
    l->n_positions = l->n_rows += n_columns * n_lines * tile_rows(p) + 1;
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
    out->n_rows = out->n_columns * out->n_lines;
    out->n_positions = p->positions ? MAX(out->n_columns, out->n_lines) : out->n_rows;
    if (p->kind == PROJECTOR_PIXTRAL) /* one row for each break between lines */
        out->n_positions = out->n_rows += out->n_lines - 1;
    if (p->tile && !budget->whole)
        add_tiles(p, width, height, (uint64_t)most * area, out);
}

uint32_t projector_most_rows(const struct projector *p, const struct picture_budget *budget) {
    uint32_t most = budget->most ? budget->most : p->most, align = p->patch * p->merge, best = 0;

    if (p->side)
        return p->side / align * (p->side / align);
    for (uint32_t n = 1; p->kind == PROJECTOR_PIXTRAL && n <= most; n++) { /* number of columns */
        uint32_t n_lines = MIN(most / n, PICTURE_SIDE_MAX / align);

        best = MAX(best, n * n_lines + n_lines - 1);
    }
    if (p->kind == PROJECTOR_PIXTRAL)
        return best;
    return most + (p->tile && !budget->whole ? p->most_tiles * tile_rows(p) + 1 : 0);
}

/* Computes the grid of tiles of layout @l and the pixels of its small picture; *@n_lines 0: it has
 * no tiles. Returns false for a layout that projector_layout() does not make. */
static bool grid_of(const struct projector *p, const struct picture_layout *l, uint32_t *n_columns,
                    uint32_t *n_lines, uint32_t *width, uint32_t *height) {
    uint32_t align = p->patch * p->merge, n = l->n_rows - l->n_columns * l->n_lines;

    *width = l->n_columns * align;
    *height = l->n_lines * align;
    *n_columns = *n_lines = 0;
    if (!p->tile || n == 0)
        return true;
    *n_lines = (l->height - *height) / p->tile;
    *n_columns = *n_lines ? (n - 1) / tile_rows(p) / *n_lines : 0;
    return l->height > *height && *n_lines <= PROJECTOR_TILES_MAX &&
           *n_columns <= PROJECTOR_TILES_MAX && *n_lines * p->tile + *height == l->height &&
           *n_columns * *n_lines * tile_rows(p) + 1 == n && *n_columns > 0 &&
           l->width == MAX(*width, *n_columns * p->tile);
}

uint32_t projector_parts(const struct projector *p, const struct picture_layout *l) {
    uint32_t n_columns, n_lines, width, height;

    if (!grid_of(p, l, &n_columns, &n_lines, &width, &height))
        return 0;
    return n_columns * n_lines + 1;
}

struct picture_part projector_part(const struct projector *p, const struct picture_layout *l,
                                   uint32_t i) {
    uint32_t n_columns, n_lines, width, height;
    bool ok = grid_of(p, l, &n_columns, &n_lines, &width, &height);

    assert(ok && n_lines && i <= n_columns * n_lines);
    struct picture_part a = {.line = i / n_columns, .column = i % n_columns};
    bool tile = a.line < n_lines;
    a.top = a.line * p->tile;
    a.left = a.column * p->tile;
    a.width = tile ? p->tile : width;
    a.height = tile ? p->tile : height;
    a.mark = i * tile_rows(p);
    return a;
}
