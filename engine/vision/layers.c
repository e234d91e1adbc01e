/* layers - transformer layers with attention among all patches or within windows. Products run over
 * chunks of rows, so that buffers stay small and a picture can be suspended after any chunk. */

#include <assert.h>
#include <math.h>

#include "engine/vision/encoder_private.h"

/* Limits the values of rows to the bounds of a product. */
static void clamp(struct image_encoder *e, const float *in, const float bound[2], uint32_t width,
                  uint32_t n, float *out) {
    const struct vis_rows a = {.kind = VIS_CLAMP,
                               .n = n,
                               .width = width,
                               .in = in,
                               .out = out,
                               .low = bound[0],
                               .high = bound[1]};

    e->ops->rows(e->be, &a);
}

void vis_linear(struct image_encoder *e, const struct vis_mat *m, const float *in, uint32_t n_rows,
                float *out, bool add) {
    const struct vis_clip *k = e->clips;

    assert(n_rows <= VIS_CHUNK);
    while (k && k->m != m)
        k = k->next;
    if (!k) {
        e->ops->linear(e->be, m, in, n_rows, out, add);
        return;
    }
    assert(!add);
    clamp(e, in, k->bound, k->n_in, n_rows, e->clipped);
    e->ops->linear(e->be, m, e->clipped, n_rows, out, false);
    clamp(e, out, k->bound + 2, k->n_out, n_rows, out);
}

void vis_norm_rows(struct image_encoder *e, const struct vis_norm *w, const float *x,
                   uint32_t width, float eps, uint32_t n, float *y) {
    const struct vis_rows a = {.kind = VIS_NORM,
                               .n = n,
                               .width = width,
                               .in = x,
                               .w = w->w,
                               .bias = w->bias,
                               .eps = eps,
                               .out = y};

    e->ops->rows(e->be, &a);
}

/* Multiplies @n rows of e->in by factors of their values. */
static void vis_scale(struct image_encoder *e, const float *scale, uint32_t n) {
    const struct vis_rows a = {.kind = VIS_AFFINE,
                               .n = n,
                               .width = e->p.n_embd,
                               .in = e->in,
                               .w = scale,
                               .bias = e->zeros,
                               .factor = 1,
                               .out = e->in};

    e->ops->rows(e->be, &a);
}

/* Adds a branch to rows [first, first + n): x += post (W in + bias), or scale (W in + bias). */
static void vis_add_branch(struct image_encoder *e, const struct vis_mat *m,
                           const struct vis_norm *post, const float *scale, const float *in,
                           uint32_t first, uint32_t n) {
    uint32_t width = e->p.n_embd;
    struct vis_rows sum = {
        .kind = VIS_ADD, .n = n, .width = width, .in = e->in, .out = e->x + (size_t)first * width};

    if (!post->w && !scale) {
        vis_linear(e, m, in, n, sum.out, true);
        return;
    }
    assert(in != e->in);
    vis_linear(e, m, in, n, e->in, false);
    if (post->w)
        vis_norm_rows(e, post, e->in, width, e->p.eps, n, e->in);
    else
        vis_scale(e, scale, n);
    e->ops->rows(e->be, &sum);
}

/* Returns the current layer. */
static const struct vis_layer *vis_current_layer(const struct image_encoder *e) {
    return &e->layer[e->under_way.layer];
}

/* Returns how pairs of a head turn. */
static enum vis_turn turn_of(const struct image_encoder *e) {
    if (!vis_has_rope(e))
        return VIS_STAY;
    if (e->p.kind == PROJECTOR_PIXTRAL)
        return VIS_NEIGHBOURS;
    if (e->p.kind == PROJECTOR_KIMIVL)
        return VIS_ALTERNATE;
    if (e->p.kind == PROJECTOR_GEMMA4V)
        return VIS_QUARTERS;
    return VIS_HALVES;
}

void vis_qkv(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = vis_current_layer(e);
    uint32_t width = e->p.n_embd;
    bool apart = y->qkv[1] != NULL, gemma4 = e->p.kind == PROJECTOR_GEMMA4V;
    struct vis_heads a = {
        .stride = apart ? width : 3ul * width,
        .n = n,
        .first = at,
        .w = {y->q_norm.w, y->k_norm.w},
        .bias = {y->q_norm.bias, y->k_norm.bias},
        .unit = gemma4,
        .swapped = gemma4 || e->p.kind == PROJECTOR_KIMIVL,
        .turn = turn_of(e),
        .eps = e->p.eps,
        .at = e->grid.at,
    };

    vis_norm_rows(e, &y->ln1, e->x + (size_t)at * width, width, e->p.eps, n, e->in);
    for (uint32_t k = 0; k < 3; k++) {
        float *to = e->qkv + k * (apart ? VIS_CHUNK : 1ul) * width;

        if (y->qkv[k])
            vis_linear(e, y->qkv[k], e->in, n, to, false);
        if (k < 2 && y->wide[k].w)
            vis_norm_rows(e, &y->wide[k], to, width, e->p.eps, n, to);
        a.in[k] = to;
    }
    e->ops->heads(e->be, &a);
}

bool vis_full_attention(const struct image_encoder *e, uint32_t layer) {
    return !e->p.window || !e->p.period || (layer + 1) % e->p.period == 0;
}

void vis_attend(struct image_encoder *e, uint32_t at, uint32_t n) {
    float dim = (float)(e->p.n_embd / e->p.n_head);
    const struct vis_attend a = {
        .scale = e->p.kind == PROJECTOR_GEMMA4V ? 1 : 1 / sqrtf(dim),
        .out = e->o,
        .n_segments = n,
        .longest = e->grid.longest,
        .start = e->grid.start + at,
        .n_patches = e->grid.n,
    };

    if (vis_full_attention(e, e->under_way.layer))
        e->ops->attend_blocks(e->be, &a, at, n);
    else
        e->ops->attend(e->be, &a);
}

void vis_out(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = vis_current_layer(e);

    vis_add_branch(e, y->out, &y->attn_post, y->attn_scale, e->o + (size_t)at * e->p.n_embd, at, n);
}

void vis_activate(struct image_encoder *e, enum projector_act kind, float *x, const float *up,
                  uint32_t width, uint32_t n) {
    const struct vis_rows a = {.kind = VIS_ACT,
                               .act = (enum vis_act)kind,
                               .n = n,
                               .width = width,
                               .in = x,
                               .up = up,
                               .out = x};

    e->ops->rows(e->be, &a);
}

void vis_ffn(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = vis_current_layer(e);
    uint32_t width = e->p.n_embd;
    float *up = NULL;

    if (y->gate)
        up = e->ffn + VIS_CHUNK * e->ffn_width;
    vis_norm_rows(e, &y->ln2, e->x + (size_t)at * width, width, e->p.eps, n, e->in);
    vis_linear(e, y->gate ? y->gate : y->up, e->in, n, e->ffn, false);
    if (up)
        vis_linear(e, y->up, e->in, n, up, false);
    vis_activate(e, e->p.act, e->ffn, up, e->p.n_ff, n);
    vis_add_branch(e, y->down, &y->ffn_post, y->ffn_scale, e->ffn, at, n);
}

void vis_linear_to_host(struct image_encoder *e, const struct vis_mat *m, const float *in,
                        uint32_t n_rows, float *out, size_t stride) {
    vis_linear(e, m, in, n_rows, e->out, false);
    e->ops->get(e->be, e->out, n_rows, e->p.n_out, out, stride);
}

void vis_mlp(struct image_encoder *e, const struct vis_mat *first, const struct vis_mat *second,
             const float *in, uint32_t n_rows, float *out, size_t stride) {
    vis_linear(e, first, in, n_rows, e->ffn, false);
    vis_activate(e, e->p.merge_act, e->ffn, NULL, e->hidden, n_rows);
    vis_linear_to_host(e, second, e->ffn, n_rows, out, stride);
}

/* Without windows the order of computation is that of rows. */
void vis_deep(struct image_encoder *e, uint32_t at, uint32_t n) {
    const struct vis_layer *y = vis_current_layer(e);
    uint32_t width = 4 * e->p.n_embd, part = e->under_way.part + 1;
    size_t stride = image_encoder_width(e);

    assert(part <= e->p.n_deep);
    vis_norm_rows(e, &y->deep_norm, e->x + (size_t)at * width, width, e->p.eps, n, e->in);
    vis_mlp(e, y->deep_in, y->deep_out, e->in, n,
            e->under_way.out + at * stride + (size_t)part * e->p.n_out, stride);
}
