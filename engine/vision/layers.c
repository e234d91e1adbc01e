#include <assert.h>
#include <math.h>
#include <string.h>
#include "engine/vision/encoder_private.h"

/* The layers of a transformer whose rows all see each other, or those of their window. Products run
 * over chunks of rows, so that buffers stay small and a picture can be left at any chunk. */

/* Context of functions that work row by row. */
struct rows {
    struct image_encoder *e;
    const struct vis_layer *layer;
    const struct vis_norm *norm;
    const float *in;
    float *out;
    uint32_t width, first; /* values of a row; the chunk's first row */
    bool gated;
};

/* Rows that are kept within bounds. */
struct bounding {
    const float *in, *bound;
    float *out;
    size_t in_stride, out_stride;
    uint32_t n;
};

static void bound_row(void *ctx, uint32_t r) {
    const struct bounding *c = ctx;
    const float *in = c->in + r * c->in_stride;
    float *out = c->out + r * c->out_stride;

    for (uint32_t i = 0; i < c->n; i++)
        out[i] = MIN(MAX(in[i], c->bound[0]), c->bound[1]);
}

void vis_linear(struct image_encoder *e, const struct vis_mat *m, const float *in, size_t in_stride,
                uint32_t n_rows, float *out, size_t out_stride, bool add) {
    const struct vis_clip *k = e->clips;

    while (k && k->m != m)
        k = k->next;
    if (!k) {
        e->ops->linear(e->be, m, in, in_stride, n_rows, out, out_stride, add);
        return;
    }
    assert(!add && n_rows <= VIS_CHUNK);
    struct bounding before = {in, k->bound, e->clipped, in_stride, k->n_in, k->n_in};
    struct bounding behind = {out, k->bound + 2, out, out_stride, out_stride, k->n_out};
    e->ops->each(e->be, n_rows, bound_row, &before);
    e->ops->linear(e->be, m, e->clipped, k->n_in, n_rows, out, out_stride, false);
    e->ops->each(e->be, n_rows, bound_row, &behind);
}

static void norm_row(void *ctx, uint32_t r) {
    const struct rows *c = ctx;
    const struct image_encoder *e = c->e;

    e->ops->norm(e->be, c->in + (size_t)r * c->width, c->norm->w, c->norm->bias, e->p.eps, c->width,
                 c->out + (size_t)r * c->width);
}

void vis_norm_rows(struct image_encoder *e, const struct vis_norm *w, const float *x,
                   uint32_t width, uint32_t n, float *y) {
    struct rows c = {.e = e, .norm = w, .in = x, .out = y, .width = width};

    e->ops->each(e->be, n, norm_row, &c);
}

/* x += norm of a branch's row. */
static void add_row(void *ctx, uint32_t r) {
    const struct rows *c = ctx;
    const struct image_encoder *e = c->e;
    float *branch = e->o + (size_t)(c->first + r) * c->width;
    float *x = e->x + (size_t)(c->first + r) * c->width;

    e->ops->norm(e->be, branch, c->norm->w, c->norm->bias, e->p.eps, c->width, branch);
    for (uint32_t i = 0; i < c->width; i++)
        x[i] += branch[i];
}

/* Rows [first, first + n): x += post W in + bias, where W's rows are those of x. */
static void add_branch(struct image_encoder *e, const struct vis_mat *m,
                       const struct vis_norm *post, const float *in, size_t in_stride,
                       uint32_t first, uint32_t n) {
    uint32_t width = e->p.n_embd;
    struct rows c = {.e = e, .norm = post, .width = width, .first = first};

    if (!post->w) {
        vis_linear(e, m, in, in_stride, n, e->x + (size_t)first * width, width, true);
        return;
    }
    /* The rows of o that a branch is made of are not needed behind the product. */
    float *out = e->o + (size_t)first * width;
    if (in == out) {
        memcpy(e->in, in, (size_t)n * width * sizeof(float));
        in = e->in;
    }
    vis_linear(e, m, in, in_stride, n, out, width, false);
    e->ops->each(e->be, n, add_row, &c);
}

/* (a, b) turned by cosine and sine. */
static void turn(float *a, float *b, float c, float s) {
    float x = *a, y = *b;

    *a = x * c - y * s;
    *b = x * s + y * c;
}

/* A head of @dim values: pairs lie beside each other, half a head apart, or half of each half. */
static void turn_head(enum projector_kind kind, const float *cs, uint32_t dim, float *x) {
    uint32_t half = dim / 2, quarter = dim / 4;

    for (uint32_t i = 0; i < half; i++) {
        float c = cs[i], s = cs[half + i];

        if (kind == PROJECTOR_PIXTRAL)
            turn(&x[2 * i], &x[2 * i + 1], c, s);
        else if (kind == PROJECTOR_GEMMA4V)
            turn(&x[i % quarter + i / quarter * half],
                 &x[i % quarter + i / quarter * half + quarter], c, s);
        else
            turn(&x[i], &x[i + half], c, s);
    }
}

/* Norms and rotation of the queries, keys and values of row @r of a chunk. */
static void rotate_row(void *ctx, uint32_t r) {
    const struct rows *c = ctx;
    const struct image_encoder *e = c->e;
    uint32_t n_head = e->p.n_head, dim = e->p.n_embd / n_head, at = c->first + r;
    float *x = e->qkv + (size_t)at * 3 * e->p.n_embd;
    const struct vis_norm *norms[] = {&c->layer->q_norm, &c->layer->k_norm};

    for (uint32_t h = 0; h < 2 * n_head; h++, x += dim) {
        const struct vis_norm *w = norms[h / n_head];

        if (w->w)
            e->ops->norm(e->be, x, w->w, w->bias, e->p.eps, dim, x);
        if (vis_turns(e))
            turn_head(e->p.kind, e->rope + (size_t)at * dim, dim, x);
    }
    for (uint32_t h = 0; h < n_head && e->p.kind == PROJECTOR_GEMMA4V; h++, x += dim)
        e->ops->norm(e->be, x, NULL, NULL, e->p.eps, dim, x);
}

/* The layer under way. */
static const struct vis_layer *layer_of(const struct image_encoder *e) {
    return &e->layer[e->under_way.layer];
}

void vis_qkv(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = layer_of(e);
    uint32_t width = e->p.n_embd;
    float *qkv = e->qkv + (size_t)at * 3 * width;
    struct rows c = {.e = e, .layer = y, .first = at};

    vis_norm_rows(e, &y->ln1, e->x + (size_t)at * width, width, n, e->in);
    for (uint32_t k = 0; k < 3 && y->qkv[k]; k++)
        vis_linear(e, y->qkv[k], e->in, width, n, qkv + k * width, 3ul * width, false);
    e->ops->each(e->be, n, rotate_row, &c);
}

bool vis_whole(const struct image_encoder *e, uint32_t layer) {
    return !e->p.window || !e->p.period || (layer + 1) % e->p.period == 0;
}

uint32_t vis_attend(struct image_encoder *e, uint32_t at, uint32_t n) {
    uint32_t width = e->p.n_embd, all[] = {0, e->grid.n}, dim = width / e->p.n_head;
    bool whole = vis_whole(e, e->under_way.layer);
    const struct vis_attend a = {
        .qkv = e->qkv,
        .n_head = e->p.n_head,
        .head_dim = dim,
        .scale = e->p.kind == PROJECTOR_GEMMA4V ? 1 : 1 / sqrtf((float)dim),
        .n_segments = whole ? 1 : n,
        .start = whole ? all : e->grid.window + at,
        .out = e->o,
    };

    if (!whole) {
        e->ops->attend(e->be, &a);
        return n;
    }
    uint32_t first = at % e->grid.n, rows = MIN(n, e->grid.n - first);
    e->ops->attend_head(e->be, &a, at / e->grid.n, first, rows);
    return rows;
}

void vis_out(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = layer_of(e);

    add_branch(e, y->out, &y->attn_post, e->o + (size_t)at * e->p.n_embd, e->p.n_embd, at, n);
}

/* Hidden values of a row: the gates, then the ups, or the ups alone. */
static void act_row(void *ctx, uint32_t r) {
    const struct rows *c = ctx;
    const struct image_encoder *e = c->e;
    float *h = e->ffn + (size_t)r * 2 * e->ffn_width;

    e->ops->act(e->be, e->p.act, h, c->gated ? h + e->ffn_width : NULL, e->p.n_ff);
}

void vis_ffn(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = layer_of(e);
    uint32_t width = e->p.n_embd;
    size_t stride = 2 * e->ffn_width;
    struct rows c = {.e = e, .gated = y->gate != NULL};

    vis_norm_rows(e, &y->ln2, e->x + (size_t)at * width, width, n, e->in);
    vis_linear(e, y->gate ? y->gate : y->up, e->in, width, n, e->ffn, stride, false);
    if (y->gate)
        vis_linear(e, y->up, e->in, width, n, e->ffn + e->ffn_width, stride, false);
    e->ops->each(e->be, n, act_row, &c);
    add_branch(e, y->down, &y->ffn_post, e->ffn, stride, at, n);
}

/* gelu of the first product's rows. */
static void gelu_row(void *ctx, uint32_t r) {
    const struct rows *c = ctx;

    c->e->ops->act(c->e->be, PROJECTOR_GELU, c->e->ffn + (size_t)r * c->e->hidden, NULL,
                   c->e->hidden);
}

void vis_mlp(struct image_encoder *e, const struct vis_mat *first, const struct vis_mat *second,
             const float *in, uint32_t n_in, uint32_t n_rows, float *out, size_t out_stride) {
    struct rows c = {.e = e};

    assert(n_rows <= VIS_CHUNK);
    vis_linear(e, first, in, n_in, n_rows, e->ffn, e->hidden, false);
    e->ops->each(e->be, n_rows, gelu_row, &c);
    vis_linear(e, second, e->ffn, e->hidden, n_rows, out, out_stride, false);
}

/* Without windows the order of computation is that of the rows. */
void vis_deep(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = layer_of(e);
    uint32_t width = 4 * e->p.n_embd, part = e->under_way.part + 1;
    size_t stride = image_encoder_width(e);

    assert(part <= e->p.n_deep);
    vis_norm_rows(e, &y->deep_norm, e->x + (size_t)at * width, width, n, e->in);
    vis_mlp(e, y->deep_in, y->deep_out, e->in, width, n,
            e->under_way.out + at * stride + (size_t)part * e->p.n_out, stride);
}
