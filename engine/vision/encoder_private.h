#pragma once

/*
 * encoder_private - an opened image encoder, and the functions that its files share: load.c finds
 * the tensors, layers.c computes the layers that all kinds have, kinds.c the steps before and after
 * these layers, and steps.c calls them in order.
 */

#include "engine/vision/encoder.h"
#include "engine/vision/ops.h"

#define VIS_CHUNK 512u /* rows of a product: their activations stay in a cache */

struct vis_norm { /* in the backend's memory; w NULL: there is none */
    const float *w, *bias;
};

struct vis_layer {
    struct vis_norm ln1, ln2, q_norm, k_norm, attn_post, ffn_post;
    /* norms of queries and keys over all heads together */
    struct vis_norm wide[2];
    /* factors of the branches, [n_embd]; NULL: there are none */
    const float *attn_scale, *ffn_scale;
    /* the second NULL: the first computes all three */
    struct vis_mat *qkv[3];
    struct vis_mat *out, *gate, *up, *down;
    /* The merger of a layer with deepstack; deep_norm.w NULL: the layer has none. */
    struct vis_norm deep_norm;
    struct vis_mat *deep_in, *deep_out;
};

/* Bounds of a product: smallest and largest input, smallest and largest output. */
struct vis_clip {
    struct vis_clip *next;
    const struct vis_mat *m;
    uint32_t n_in, n_out;
    float bound[4];
};

/* Positions of the patches of a picture, in the order in which they are computed. */
struct vis_grid {
    /* n: rows that attend, the patches and vis_extra() */
    uint32_t n, height, width;
    /* [n] */
    uint32_t *row, *column;
    /* [n_windows + 1] first patch of each window; one window: full attention */
    uint32_t n_windows, *window;
    /* most patches of a window */
    uint32_t longest;
    /* memory of these arrays: @size bytes, @used of them in use */
    uint8_t *bytes;
    size_t size, used;
    /* addresses for the backend */
    struct vis_places at;
    /* the backend's copy of window */
    const uint32_t *start;
};

/* Passes over a picture. A pass goes over independent units: patches, unless stated otherwise. QKV
 * to DEEP are repeated for each layer. */
enum vis_stage {
    /* x of patches from the pixels, positions included */
    VIS_EMBED,
    /* queries, keys and values of patches, normed and rotated */
    VIS_QKV,
    /* windows; or, without windows, blocks of rows of one head after the other */
    VIS_ATTEND,
    /* x += projection of the output of attention */
    VIS_OUT,
    /* x += FFN */
    VIS_FFN,
    /* blocks of patches: a part of the rows for the text model */
    VIS_DEEP,
    /* blocks of patches, in order of computation: normed and moved to raster order */
    VIS_ARRANGE,
    /* rows for the text model, without line breaks */
    VIS_PROJECT,
    VIS_STAGES
};

/* The current picture; an rgb of NULL means no picture. */
struct vis_cursor {
    const uint8_t *rgb;
    struct picture_layout whole;
    float *rows;
    /* the current part */
    uint32_t tile, n_parts;
    struct picture_layout l;
    /* first pixels of the part; pitch: bytes from a line to the next */
    const uint8_t *pixels;
    size_t pitch;
    float *out;
    enum vis_stage stage;
    /* part: number of complete DEEP parts */
    uint32_t layer, part;
    /* completed units of the stage */
    uint32_t at;
    /* multiply-adds */
    uint64_t left;
};

/* Invariant: the buffers have room for max_patches. */
struct image_encoder {
    struct projector p;
    const struct vis_ops *ops;
    struct vis_be *be;
    /* n_table: positions of the table */
    uint32_t max_patches, max_rows, n_table;
    /* [p.n_layer] */
    struct vis_layer *layer;
    struct vis_mat *patch, *merge, *mm_in, *mm_out;
    /* glm4v: behind merge, and the gate beside mm_in */
    struct vis_mat *mm_fc, *mm_gate;
    struct vis_norm patch_norm[3], pre_ln, post_ln, mm_norm, mm_post, std;
    /* In the backend's memory; zeros: [n_embd]. */
    const float *table, *class_row, *zeros;
    /* rows of the text model, in the memory of the host */
    const float *line_break, *first_row, *last_row;
    /* Rows of marks, [PICTURE_MARKS][p.n_out]. NULL without a text model. */
    float *marks;
    bool has_mark[PICTURE_MARKS];
    /* outputs of mm_in; of hunyuanvl of merge, and those of mm_in */
    uint32_t hidden, hidden_next;

    struct floats {
        struct floats *next;
        float v[];
    } * owned; /* vectors and matrices computed from tensors */
    struct tensors {
        struct tensors *next;
        struct tensor t;
    } * made;

    struct vis_clip *clips;

    /* frequencies of pairs that turn by the row and by the column */
    double freq[2][PROJECTOR_HEAD_MAX / 4];
    struct vis_grid grid;
    /* Buffers of the backend: rows of all patches, [max_patches][n_embd], and of a chunk,
     * [VIS_CHUNK] of the widest input, [2] of [VIS_CHUNK][widest hidden], [VIS_CHUNK][n_out]. */
    float *x, *o;
    float *qkv, *in, *ffn, *out;
    /* [VIS_CHUNK][widest input of a product] */
    float *clipped;
    size_t in_width, ffn_width;
    struct vis_cursor under_way;
};

/* Allocates the buffers; finds, checks and loads all tensors. Returns 0 or -errno. */
int vis_load(struct image_encoder *e, const struct gguf *file,
             const struct image_encoder_opts *opts, struct err *err);

/* Answers image_encoder_fit() for an encoder whose header and max_patches are known. */
int vis_fit(struct image_encoder_fit *out, struct image_encoder *e, const struct gguf *file,
            uint32_t n_threads, struct err *err);

/* steps.c: implement image_encoder_begin(), _step() and _work(). */
void vis_begin(struct image_encoder *e, const uint8_t *rgb, const struct picture_layout *l,
               float *out);
int vis_step(struct image_encoder *e, uint64_t work, uint64_t *left);
uint64_t vis_work(const struct image_encoder *e, const struct picture_layout *l);

/* Returns the number of rows that attend behind the patches: the class embedding of internvl. */
static inline uint32_t vis_extra(const struct image_encoder *e) {
    return e->p.kind == PROJECTOR_INTERNVL;
}
/* Fills e->freq. */
void vis_frequencies(struct image_encoder *e);
/* Returns the most bytes of e->grid. */
size_t vis_place_bytes(const struct image_encoder *e);
/* Fills e->grid for the current part, and copies the grid and the pixels to the backend. */
void vis_place(struct image_encoder *e);
/* Returns true if queries and keys are rotated by the position of their patch. */
bool vis_has_rope(const struct image_encoder *e);
/* Returns true if layer @layer has full attention among all patches. */
bool vis_full_attention(const struct image_encoder *e, uint32_t layer);

/* Compute the stages for units [at, at + n) of the current picture; each stage but ATTEND takes at
 * most VIS_CHUNK units. PROJECT returns the number of computed units, which is smaller when a line
 * ends earlier. */
void vis_embed(struct image_encoder *e, uint32_t at, uint32_t n);
void vis_qkv(struct image_encoder *e, uint32_t at, uint32_t n);
void vis_attend(struct image_encoder *e, uint32_t at, uint32_t n);
void vis_out(struct image_encoder *e, uint32_t at, uint32_t n);
void vis_ffn(struct image_encoder *e, uint32_t at, uint32_t n);
void vis_deep(struct image_encoder *e, uint32_t at, uint32_t n);
void vis_arrange(struct image_encoder *e, uint32_t at, uint32_t n);
uint32_t vis_project(struct image_encoder *e, uint32_t at, uint32_t n);

/* Computes x = act(x), or act(x) up, for @n rows. */
void vis_activate(struct image_encoder *e, enum projector_act kind, float *x, const float *up,
                  uint32_t width, uint32_t n);
/* Computes at most VIS_CHUNK rows of the text model, second act(first in) with p.merge_act, to
 * @out, @stride values apart. */
void vis_mlp(struct image_encoder *e, const struct vis_mat *first, const struct vis_mat *second,
             const float *in, uint32_t n_rows, float *out, size_t stride);
/* Computes out = W in, rows of the width n_out, with the same limits, into the memory of the
 * host. */
void vis_linear_to_host(struct image_encoder *e, const struct vis_mat *m, const float *in,
                        uint32_t n_rows, float *out, size_t stride);
/* Computes ops.linear and applies the product's bounds. Products that add to their output have no
 * bounds. */
void vis_linear(struct image_encoder *e, const struct vis_mat *m, const float *in, uint32_t n_rows,
                float *out, bool add);
/* Computes y = norm x for @n rows; y may be x. */
void vis_norm_rows(struct image_encoder *e, const struct vis_norm *w, const float *x,
                   uint32_t width, float eps, uint32_t n, float *y);
