#pragma once

/*
 * encoder_private - an opened image encoder, and the parts that its files share: load.c finds the
 * tensors, layers.c has the layers that all kinds have in common, kinds.c what is before and behind
 * them.
 */

#include "engine/vision/encoder.h"
#include "engine/vision/ops.h"

#define VIS_CHUNK 512u /* rows of a product: their activations stay in a cache */

struct vis_norm { /* w NULL: there is none */
    const float *w, *bias;
};

struct vis_layer {
    struct vis_norm ln1, ln2, q_norm, k_norm, attn_post, ffn_post;
    struct vis_mat *qkv[3]; /* the second NULL: the first gives all three */
    struct vis_mat *out, *gate, *up, *down;
    /* The merger of a layer with deepstack; deep_norm.w NULL: the layer has none. */
    struct vis_norm deep_norm;
    struct vis_mat *deep_in, *deep_out;
};

/* Bounds of the input and of the output of a product: least, most, least, most. */
struct vis_clip {
    struct vis_clip *next;
    const struct vis_mat *m;
    uint32_t n_in, n_out;
    float bound[4];
};

/* Places of the patches of a picture, in the order in which they are computed. */
struct vis_grid {
    uint32_t n, height, width;   /* patches */
    uint32_t *row, *column;      /* [n] */
    uint32_t n_windows, *window; /* [n_windows + 1] first patches; one window: all see all */
};

/* Invariant: the buffers have room for max_patches. */
struct image_encoder {
    struct projector p;
    const struct vis_ops *ops;
    struct vis_be *be;
    uint32_t max_patches, max_rows, n_table; /* n_table: places of the table of positions */
    struct vis_layer *layer;                 /* [p.n_layer] */
    struct vis_mat *patch, *merge, *mm_in, *mm_out;
    struct vis_norm patch_norm[3], pre_ln, post_ln, mm_norm, std;
    const float *table, *line_break;
    uint32_t hidden; /* of mm_in's rows */

    struct floats {
        struct floats *next;
        float v[];
    } * owned; /* vectors and matrices that were made of tensors */
    struct tensors {
        struct tensors *next;
        struct tensor t;
    } * made;

    struct vis_clip *clips;

    struct vis_grid grid;
    float *x, *qkv, *o; /* [max_patches][n_embd, 3 n_embd, n_embd] */
    float *in, *ffn;    /* [VIS_CHUNK][widest input], [VIS_CHUNK][2][widest hidden] */
    float *clipped;     /* [VIS_CHUNK][widest input of a product] */
    float *rope;        /* [max_patches][head_dim]: cosines of a head's pairs, then sines */
    size_t in_width, ffn_width;
};

/* Allocates the buffers; finds, checks and loads all tensors. 0 or -errno. */
int vis_load(struct image_encoder *e, const struct gguf *file,
             const struct image_encoder_opts *opts, struct err *err);

/* x of all patches from the pixels, positions included. */
void vis_embed(struct image_encoder *e, const struct picture *p);
/* Fills e->grid and e->rope for @l. */
void vis_place(struct image_encoder *e, const struct picture_layout *l);
/* x through all layers; rows of deepstack go to their parts of @out. */
void vis_layers(struct image_encoder *e, float *out);
/* Rows for the text model from x. */
void vis_project(struct image_encoder *e, const struct picture_layout *l, float *out);

/* Row r of @out = second gelu(first in), in at @in + r * n_in; at most VIS_CHUNK rows. */
void vis_mlp(struct image_encoder *e, const struct vis_mat *first, const struct vis_mat *second,
             const float *in, uint32_t n_in, uint32_t n_rows, float *out, size_t out_stride);
/* ops.linear with the product's bounds, which products that are added to have not. */
void vis_linear(struct image_encoder *e, const struct vis_mat *m, const float *in, size_t in_stride,
                uint32_t n_rows, float *out, size_t out_stride, bool add);
/* y = norm x for @n rows. */
void vis_norm_rows(struct image_encoder *e, const struct vis_norm *w, const float *x,
                   uint32_t width, uint32_t n, float *y);
