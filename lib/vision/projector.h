#pragma once

/*
 * projector - reads the header of a projector file (mmproj): a GGUF file with an image encoder and
 * the layers that map its rows to the width of a text model. The header gives the size of the
 * encoder's pictures and the number of rows that the text model gets for a picture.
 */

#include <stdbool.h>

#include "base/gguf.h"
#include "vision/resize.h"

/* Kinds of projectors, by clip.projector_type. */
enum projector_kind {
    /* qwen3vl_merger: Qwen3-VL, Qwen 3.5 to 3.8 */
    PROJECTOR_QWEN3VL,
    /* qwen2.5vl_merger */
    PROJECTOR_QWEN25VL,
    PROJECTOR_GEMMA3,
    PROJECTOR_GEMMA4V,
    /* Gemma 4 without layers: each patch is a row */
    PROJECTOR_GEMMA4UV,
    /* Mistral 3 */
    PROJECTOR_PIXTRAL,
    /* LFM2-VL: large pictures in tiles */
    PROJECTOR_LFM2,
    /* SmolVLM, Granite Docling: all pictures in tiles */
    PROJECTOR_IDEFICS3,
    /* InternVL: pictures larger than a tile in tiles */
    PROJECTOR_INTERNVL,
    /* Kimi-VL: MoonViT */
    PROJECTOR_KIMIVL,
    /* GLM-4.1V, 4.5V, 4.6V, GLM-OCR */
    PROJECTOR_GLM4V,
    /* HunyuanOCR, HunyuanVL */
    PROJECTOR_HUNYUANVL,
    PROJECTOR_KINDS
};

/* PROJECTOR_GELU_ERF: no file names it; only projectors have it. */
enum projector_act { PROJECTOR_GELU, PROJECTOR_SILU, PROJECTOR_QUICK_GELU, PROJECTOR_GELU_ERF };

/* Tokens of the text model that precede the rows of each part of a picture in tiles. */
enum projector_marks {
    MARKS_NONE,
    /* the place of the part; a picture without tiles has none */
    MARKS_PLACE,
    /* as in idefics3: a fence and the place, behind the break between lines of tiles */
    MARKS_FENCED
};

#define PROJECTOR_LAYERS_MAX 128u
#define PROJECTOR_HEAD_MAX 512u  /* most values of a head */
#define PROJECTOR_WINDOW_MAX 32u /* most patches of a window's side; Qwen2.5-VL has 8 */

/* Fields of a file, in the ranges that projector_read() checks. */
struct projector {
    enum projector_kind kind;
    /* name of the kind */
    const char *name;
    /* width of the encoder's rows and of its FFN */
    uint32_t n_embd, n_ff;
    /* with layers, n_embd / n_head: a multiple of 4, at most HEAD_MAX */
    uint32_t n_layer, n_head;
    /* side of a patch in pixels */
    uint32_t patch;
    /* side, in patches, of the square that becomes one row */
    uint32_t merge;
    /* side of the only size in pixels, which tiles have too if there are any; 0: any size */
    uint32_t side;
    /* width of the text model's rows */
    uint32_t n_out;
    /* number of further parts of a row, each as wide (deepstack) */
    uint32_t n_deep;
    /* window: side of a window in patches, 0: none; every period-th layer has no window */
    uint32_t window, period;
    /* limits of the rows per picture; in tiles: of the whole picture */
    uint32_t least, most;
    /* side of a tile in pixels; 0: there are no tiles */
    uint32_t tile;
    uint32_t least_tiles, most_tiles;
    /* longer side in pixels that the grid of tiles of each picture has; 0: the aspect decides */
    uint32_t longest;
    enum projector_marks marks;
    /* activation of the FFNs, and between the products of the projector */
    enum projector_act act, merge_act;
    enum picture_filter filter;
    /* M-RoPE: a picture advances the position by its longer side in rows */
    bool positions;
    float eps, mean[3], std[3];
};

/* Returns true if all pictures have the same rows: one size, without tiles. */
static inline bool projector_is_fixed(const struct projector *p) {
    return p->side && !p->tile;
}
/* Returns the rows of a picture without tiles whose grid is @n_columns x @n_lines: pixtral adds
 * breaks between lines, and hunyuanvl one behind each line, and a first and a last row. */
static inline uint32_t projector_rows(const struct projector *p, uint32_t n_columns,
                                      uint32_t n_lines) {
    uint32_t n = n_columns * n_lines;

    if (p->kind == PROJECTOR_PIXTRAL)
        return n + n_lines - 1;
    if (p->kind == PROJECTOR_HUNYUANVL)
        return n + n_lines + 2;
    return n;
}
/* Returns the kind as in clip.projector_type. */
const char *projector_kind_name(enum projector_kind kind);

/* Reads and checks the header. Returns 0, or -EINVAL with @err if the file is no projector or of an
 * unknown kind, or a key is missing or out of range. */
int projector_read(struct projector *out, const struct gguf *file, struct err *err);

/* Layout of a picture for the encoder and for the text model. A picture in tiles is enlarged to a
 * grid of tiles; a second copy, as small as a picture without tiles, lies below the grid at the
 * left. In the text model's input marks, which are rows as well, precede the rows of each tile and
 * of the small copy. */
struct picture_layout {
    /* in pixels */
    uint32_t width, height;
    /* grid of rows for the text model, without line breaks; in tiles: of the small picture */
    uint32_t n_columns, n_lines;
    /* rows for the text model, including projector_rows() and marks */
    uint32_t n_rows;
    /* positions by which the text model advances */
    uint32_t n_positions;
};

/* Limits on n_rows that a request or an option gives; 0: the projector's own. */
struct picture_budget {
    uint32_t least, most;
    /* the picture is never divided into tiles */
    bool whole;
};

/* Computes the layout of a picture of @width x @height pixels, at least 1 x 1. */
void projector_layout(const struct projector *p, uint32_t width, uint32_t height,
                      const struct picture_budget *budget, struct picture_layout *out);

/* Returns an upper bound of n_rows of the pictures that the encoder takes, including tiles, marks
 * and line breaks. */
uint32_t projector_most_rows(const struct projector *p, const struct picture_budget *budget);

/* most tiles of a side: models have tokens for the marks of no more */
#define PROJECTOR_TILES_MAX 12u

/* Marks: of the small picture, of the break between lines of tiles, of that between the tiles and
 * the small picture, the fence, and from MARK_TILE on those of tiles by line and column. */
enum { MARK_SMALL, MARK_BREAK, MARK_END, MARK_FENCE, MARK_TILE };
#define PICTURE_MARKS (MARK_TILE + PROJECTOR_TILES_MAX * PROJECTOR_TILES_MAX)

/* A part of a picture that is encoded alone: tile (line, column) of the grid, or behind the tiles
 * the small picture, whose `line` is the number of lines. A picture that is not in tiles has only
 * the latter. */
struct picture_part {
    uint32_t line, column;
    /* in pixels */
    uint32_t top, left, width, height;
    /* row of its first mark; its own rows follow the last one */
    uint32_t first;
    uint32_t n_marks, mark[3];
};

/* Returns the number of parts; 0 for a layout that @p does not make. */
uint32_t projector_parts(const struct projector *p, const struct picture_layout *l);
/* Returns part @i of a picture whose number of parts is not 0. */
struct picture_part projector_part(const struct projector *p, const struct picture_layout *l,
                                   uint32_t i);
