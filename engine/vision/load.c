/* load - finds the tensors of a projector file, checks their shapes against its header and loads
 * them into the backend. Every tensor of the file must be known: a bias that is left out would give
 * rows that are almost right. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "engine/bind/bind.h"
#include "engine/formats/quant.h"
#include "engine/vision/encoder_private.h"

/* Context of loading; the first error is kept in b.r. */
struct loader {
    struct image_encoder *e;
    struct binder b;
    /* old files swap the names ffn_up and ffn_down */
    bool swapped;
};

/* Allocates @n floats that live as long as the encoder; NULL after an error. */
static float *vis_load_own(struct loader *l, size_t n) {
    struct floats *f = NULL;

    if (l->b.r == 0)
        f = malloc(sizeof(*f) + n * sizeof(float));
    if (!f) {
        if (l->b.r == 0)
            l->b.r = -ENOMEM;
        return NULL;
    }
    f->next = l->e->owned;
    l->e->owned = f;
    return f->v;
}

/* Decodes the values of @t to floats. Returns NULL for NULL. */
static float *values(struct loader *l, const struct tensor *t) {
    if (!t)
        return NULL;
    size_t n = (size_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
    float *v = vis_load_own(l, n);

    for (size_t r = 0; v && r < n / t->ne[0]; r++)
        quant_decode_row(t, r, v + r * t->ne[0]);
    return v;
}

static const float *vis_load_vector(struct loader *l, enum bind_need need, uint64_t n,
                                    const char *name) {
    return values(l, bind_vector(&l->b, need, n, "%s", name));
}

/* Returns the address at which the backend's row functions read @n values. Returns NULL for
 * NULL. */
static const float *resident(struct loader *l, const float *v, uint64_t n) {
    const float *out = NULL;

    if (v && l->b.r == 0)
        l->b.r = l->e->ops->vector(l->e->be, v, n, &out, l->b.err);
    return out;
}

/* Loads the norm "@prefix.weight" and, if there is one, "@prefix.bias". */
static struct vis_norm vis_load_norm(struct loader *l, enum bind_need need, uint64_t n,
                                     const char *prefix) {
    char bias[80];

    snprintf(bias, sizeof(bias), "%s.bias", prefix);
    const float *w = values(l, bind_vector(&l->b, need, n, "%s.weight", prefix));
    const float *v = vis_load_vector(l, bind_if(w, BIND_MAY), n, bias);
    return (struct vis_norm){resident(l, w, n), resident(l, v, n)};
}

/* Loads the matrix @t, which may be NULL, into the backend. */
static struct vis_mat *vis_load_into(struct loader *l, const struct tensor *t, const float *bias) {
    struct vis_mat *m = NULL;

    if (t && l->b.r == 0)
        l->b.r = l->e->ops->load(l->e->be, t, bias, &m, l->b.err);
    return m;
}

/* Reads the bounds of product @m, if the file has any beside "@prefix.weight". */
static void find_bounds(struct loader *l, const struct vis_mat *m, const struct tensor *t,
                        const char *prefix) {
    static const char *const ends[] = {"input_min", "input_max", "output_min", "output_max"};
    struct vis_clip clip = {l->e->clips,
                            m,
                            (uint32_t)t->ne[0],
                            (uint32_t)t->ne[1],
                            {-INFINITY, INFINITY, -INFINITY, INFINITY}};
    bool found = false;

    for (int i = 0; i < 4; i++) {
        char name[96];

        snprintf(name, sizeof(name), "%s.%s", prefix, ends[i]);
        const float *v = vis_load_vector(l, BIND_MAY, 1, name);
        found |= v != NULL;
        if (v)
            clip.bound[i] = *v;
    }
    struct vis_clip *k = NULL;

    if (found && l->b.r == 0)
        k = malloc(sizeof(*k));
    if (found && l->b.r == 0 && !k)
        l->b.r = -ENOMEM;
    if (!k)
        return;
    *k = clip;
    l->e->clips = k;
}

/* Binds the matrix "@prefix.weight". A scale beside it, which NVFP4 may have, is refused: backends
 * would ignore it. */
static const struct tensor *vis_load_matrix(struct loader *l, enum bind_need need, uint64_t n_in,
                                            uint64_t n_out, const char *prefix) {
    const struct tensor *t = bind_matrix(&l->b, need, n_in, n_out, "%s.weight", prefix);

    if (!t || !t->scale)
        return t;
    bind_refuse(&l->b, "tensor '%s.scale' is not supported in projectors", prefix);
    return NULL;
}

/* Loads the product of "@prefix.weight" and "@prefix.bias"; NULL: there is none. */
static struct vis_mat *vis_load_linear(struct loader *l, enum bind_need need, uint64_t n_in,
                                       uint64_t n_out, const char *prefix) {
    const struct tensor *t = vis_load_matrix(l, need, n_in, n_out, prefix);
    char bias[80];

    snprintf(bias, sizeof(bias), "%s.bias", prefix);
    struct vis_mat *m = vis_load_into(l, t, vis_load_vector(l, bind_if(t, BIND_MAY), n_out, bias));
    if (m && l->e->p.kind == PROJECTOR_GEMMA4V)
        find_bounds(l, m, t, prefix);
    return m;
}

/* Returns a tensor of the n_out rows of n_in floats at @v, which were computed from others. */
static struct tensor *vis_load_make(struct loader *l, uint64_t n_in, uint64_t n_out, const float *v,
                                    const char *name) {
    struct tensors *t = NULL;

    if (l->b.r == 0)
        t = calloc(1, sizeof(*t));
    if (!t) {
        l->b.r = l->b.r == 0 ? -ENOMEM : l->b.r;
        return NULL;
    }
    t->next = l->e->made;
    l->e->made = t;
    t->t = (struct tensor){
        .name = name,
        .format = tensor_format(TENSOR_F32),
        .n_dims = 2,
        .ne = {n_in, n_out, 1, 1},
        .row_bytes = n_in * sizeof(float),
        .n_bytes = n_in * n_out * sizeof(float),
        .data = (const uint8_t *)v,
    };
    return &t->t;
}

/* Returns the values of the patch kernel @name, [n_embd][3][patch][patch]; NULL: there is none. */
static float *kernel(struct loader *l, bool must, const char *name) {
    const struct projector *p = &l->e->p;
    const struct tensor *t = bind_any(&l->b, name);

    if (l->b.r < 0 || (!t && !must))
        return NULL;
    if (!t || t->ne[0] != p->patch || t->ne[1] != p->patch || t->ne[2] != 3 ||
        t->ne[3] != p->n_embd || t->format->block != 1) {
        bind_refuse(&l->b, "the projector file has no '%s' of %u x %u x 3 x %u", name, p->patch,
                    p->patch, p->n_embd);
        return NULL;
    }
    return values(l, t);
}

/* Loads the products of pixels. Two temporal kernels are added, since a still picture is two equal
 * frames. */
static void load_patch(struct loader *l) {
    const struct projector *p = &l->e->p;
    size_t n_in = (size_t)3 * p->patch * p->patch, n = n_in * p->n_embd;

    if (p->kind == PROJECTOR_GEMMA4UV) {
        l->e->patch_norm[0] = vis_load_norm(l, BIND_MUST, n_in, "v.patch_norm.1");
        l->e->patch_norm[1] = vis_load_norm(l, BIND_MUST, p->n_embd, "v.patch_norm.2");
        l->e->patch_norm[2] = vis_load_norm(l, BIND_MUST, p->n_embd, "v.patch_norm.3");
        l->e->patch = vis_load_linear(l, BIND_MUST, n_in, p->n_embd, "v.patch_embd");
        return;
    }
    float *first = kernel(l, true, "v.patch_embd.weight");
    const float *second = kernel(l, false, "v.patch_embd.weight.1");

    for (size_t i = 0; i < n && second; i++)
        first[i] += second[i];
    const float *bias = vis_load_vector(l, BIND_MAY, p->n_embd, "v.patch_embd.bias");
    l->e->patch =
        vis_load_into(l, vis_load_make(l, n_in, p->n_embd, first, "v.patch_embd.weight"), bias);
}

/* Loads the class embedding, to which the first position of the table @v belongs. */
static void load_class(struct loader *l, const float *v) {
    uint32_t n = l->e->p.n_embd;
    const float *own = vis_load_vector(l, BIND_MUST, n, "v.class_embd");
    float *sum = vis_load_own(l, n);

    for (uint32_t i = 0; i < n && own && v && sum; i++)
        sum[i] = own[i] + v[i];
    l->e->class_row = resident(l, sum, n);
}

/* Loads a convolution over blocks of @side x @side places with @n_from values, which is a product
 * with these values by channel, line and column. */
static struct vis_mat *load_conv(struct loader *l, const char *prefix, uint32_t side,
                                 uint32_t n_from, uint32_t n_out) {
    uint64_t n_in = (uint64_t)n_from * side * side;
    char name[80];

    snprintf(name, sizeof(name), "%s.weight", prefix);
    const struct tensor *t = bind_any(&l->b, name);
    if (l->b.r < 0)
        return NULL;
    if (!t || t->ne[0] != side || t->ne[1] != side || t->ne[2] != n_from || t->ne[3] != n_out ||
        t->format->block != 1) {
        bind_refuse(&l->b, "the projector file has no '%s' of %u x %u x %u x %u", name, side, side,
                    n_from, n_out);
        return NULL;
    }
    snprintf(name, sizeof(name), "%s.bias", prefix);
    const float *bias = vis_load_vector(l, BIND_MAY, n_out, name);
    struct tensor *flat = vis_load_make(l, n_in, n_out, NULL, t->name);
    if (!flat)
        return NULL;
    flat->format = t->format;
    flat->row_bytes = t->n_bytes / n_out;
    flat->n_bytes = t->n_bytes;
    flat->data = t->data;
    return vis_load_into(l, flat, bias);
}

/* Loads a square table of positions, behind that of the class embedding if there is one, or two
 * tables for columns and rows. */
static void vis_load_table(struct loader *l) {
    struct image_encoder *e = l->e;
    const struct projector *p = &e->p;
    bool two = p->kind == PROJECTOR_GEMMA4V || p->kind == PROJECTOR_GEMMA4UV;

    if (p->kind == PROJECTOR_QWEN25VL || p->kind == PROJECTOR_PIXTRAL)
        return;
    const struct tensor *t = bind_any(&l->b, "v.position_embd.weight");
    if (l->b.r < 0 || (!t && p->kind == PROJECTOR_GLM4V)) /* GLM-OCR has none */
        return;
    uint32_t extra = vis_extra(e), n = 0;
    if (t && t->ne[1] <= UINT16_MAX && t->ne[1] > extra)
        n = (uint32_t)t->ne[1] - extra;
    uint32_t root = (uint32_t)lround(sqrt(n));
    bool fits = n > 0 && t->ne[0] == p->n_embd && t->ne[2] == (two ? 2 : 1) && t->ne[3] == 1 &&
                t->format->block == 1 && (two || root * root == n) &&
                (!p->side || root == p->side / p->patch);
    if (!fits) {
        bind_refuse(&l->b, "the projector file has no 'v.position_embd.weight' of the right size");
        return;
    }
    if (two)
        e->n_table = n;
    else
        e->n_table = root;
    const float *v = values(l, t);
    if (extra)
        load_class(l, v);
    if (v)
        e->table =
            resident(l, v + (size_t)extra * p->n_embd, (uint64_t)n * (two ? 2 : 1) * p->n_embd);
}

/* Loads the FFN of layer @i. p->n_ff is the hidden width even if the file swaps the names of up and
 * down. */
static void load_ffn(struct loader *l, uint32_t i, struct vis_layer *y) {
    const struct projector *p = &l->e->p;
    char name[64];

    snprintf(name, sizeof(name), "v.blk.%u.ffn_gate", i);
    y->gate = vis_load_linear(l, BIND_MAY, p->n_embd, p->n_ff, name);
    snprintf(name, sizeof(name), "v.blk.%u.%s", i, l->swapped ? "ffn_down" : "ffn_up");
    y->up = vis_load_linear(l, BIND_MUST, p->n_embd, p->n_ff, name);
    snprintf(name, sizeof(name), "v.blk.%u.%s", i, l->swapped ? "ffn_up" : "ffn_down");
    y->down = vis_load_linear(l, BIND_MUST, p->n_ff, p->n_embd, name);
}

/* Loads what only layers of internvl have: factors of the branches, and in the larger encoder norms
 * of queries and keys over all heads. */
static void load_intern(struct loader *l, uint32_t i, struct vis_layer *y) {
    uint32_t n = l->e->p.n_embd;
    char name[64];

    snprintf(name, sizeof(name), "v.blk.%u.ls1.weight", i);
    y->attn_scale = resident(l, vis_load_vector(l, BIND_MUST, n, name), n);
    snprintf(name, sizeof(name), "v.blk.%u.ls2.weight", i);
    y->ffn_scale = resident(l, vis_load_vector(l, BIND_MUST, n, name), n);
    snprintf(name, sizeof(name), "v.blk.%u.attn_q_norm", i);
    y->wide[0] = vis_load_norm(l, BIND_MAY, n, name);
    snprintf(name, sizeof(name), "v.blk.%u.attn_k_norm", i);
    y->wide[1] = vis_load_norm(l, bind_if(y->wide[0].w, BIND_MUST), n, name);
    if (y->wide[0].w && !y->qkv[1])
        bind_refuse(&l->b, "layer %u has norms of queries and keys, which are in one tensor", i);
}

static void load_layer(struct loader *l, uint32_t i, struct vis_layer *y) {
    static const char *const parts[] = {"q", "k", "v"};
    const struct projector *p = &l->e->p;
    uint32_t n = p->n_embd, dim = n / p->n_head;
    bool gemma4 = p->kind == PROJECTOR_GEMMA4V;
    enum bind_need norms = bind_if(gemma4, BIND_MUST);
    char name[64];

    if (p->kind == PROJECTOR_GLM4V) /* GLM-OCR has them */
        norms = BIND_MAY;

#define NAME(part) (snprintf(name, sizeof(name), "v.blk.%u." part, i), name)
    y->ln1 = vis_load_norm(l, BIND_MUST, n, NAME("ln1"));
    y->ln2 = vis_load_norm(l, BIND_MUST, n, NAME("ln2"));
    y->qkv[0] = vis_load_linear(l, BIND_MAY, n, 3 * n, NAME("attn_qkv"));
    bool apart = !y->qkv[0];
    for (int k = 0; k < 3 && apart; k++) {
        snprintf(name, sizeof(name), "v.blk.%u.attn_%s", i, parts[k]);
        y->qkv[k] = vis_load_linear(l, BIND_MUST, n, n, name);
    }
    y->out = vis_load_linear(l, BIND_MUST, n, n, NAME("attn_out"));
    y->q_norm = vis_load_norm(l, norms, dim, NAME("attn_q_norm"));
    y->k_norm = vis_load_norm(l, bind_if(y->q_norm.w, BIND_MUST), dim, NAME("attn_k_norm"));
    y->attn_post = vis_load_norm(l, bind_if(gemma4, BIND_MUST), n, NAME("attn_post_norm"));
    y->ffn_post = vis_load_norm(l, bind_if(gemma4, BIND_MUST), n, NAME("ffn_post_norm"));
    load_ffn(l, i, y);
    if (p->kind == PROJECTOR_INTERNVL)
        load_intern(l, i, y);
    y->deep_norm = vis_load_norm(l, bind_if(p->n_deep, BIND_MAY), 4 * n,
                                 (snprintf(name, sizeof(name), "v.deepstack.%u.norm", i), name));
    if (!y->deep_norm.w)
        return;
    snprintf(name, sizeof(name), "v.deepstack.%u.fc1", i);
    y->deep_in = vis_load_linear(l, BIND_MUST, 4 * n, l->e->hidden, name);
    snprintf(name, sizeof(name), "v.deepstack.%u.fc2", i);
    y->deep_out = vis_load_linear(l, BIND_MUST, l->e->hidden, p->n_out, name);
#undef NAME
}

/* Loads mm.input_projection of gemma3, which is stored transposed. */
static void vis_load_transposed(struct loader *l) {
    const struct projector *p = &l->e->p;
    const float *v =
        values(l, vis_load_matrix(l, BIND_MUST, p->n_out, p->n_embd, "mm.input_projection"));
    float *t = vis_load_own(l, (size_t)p->n_out * p->n_embd);

    for (size_t o = 0; o < p->n_out && v && t; o++)
        for (size_t i = 0; i < p->n_embd; i++)
            t[o * p->n_embd + i] = v[i * p->n_out + o];
    l->e->mm_out = vis_load_into(
        l, vis_load_make(l, p->n_embd, p->n_out, t, "mm.input_projection.weight"), NULL);
}

/* Returns a row of the text model: @row, or if there is a matrix @t the product of @t and @row plus
 * @bias, normed as hunyuanvl's rows are. NULL after an error. */
static const float *load_frame(struct loader *l, const struct tensor *t, const float *bias,
                               const float *row, const float *norm) {
    uint32_t n = l->e->p.n_out;
    float *out = vis_load_own(l, n);
    CLEANUP(freep) float *weights = malloc(l->e->hidden_next * sizeof(*weights));
    double square = 0;

    if (!weights && l->b.r == 0)
        l->b.r = -ENOMEM;
    for (uint32_t i = 0; i < n && l->b.r == 0; i++) {
        double sum = 0;

        if (t)
            quant_decode_row(t, i, weights);
        else
            sum = (double)row[i];
        for (uint32_t k = 0; t && k < l->e->hidden_next; k++)
            sum += (double)weights[k] * (double)row[k];
        if (bias)
            sum += (double)bias[i];
        out[i] = (float)sum;
        square += sum * sum;
    }
    double scale = 1 / sqrt(square / n + (double)l->e->p.eps);
    for (uint32_t i = 0; i < n && l->b.r == 0; i++)
        out[i] = (float)((double)out[i] * scale * (double)norm[i]);
    return out;
}

/* Loads the projector of hunyuanvl. Its rows around and between lines do not depend on the
 * picture. */
static void load_framed(struct loader *l) {
    struct image_encoder *e = l->e;
    uint32_t n_out = e->p.n_out;

    e->mm_norm = vis_load_norm(l, BIND_MUST, e->p.n_embd, "mm.pre_norm");
    e->merge = load_conv(l, "mm.0", e->p.merge, e->p.n_embd, e->hidden);
    e->mm_in = load_conv(l, "mm.2", 1, e->hidden, e->hidden_next);
    const struct tensor *t = vis_load_matrix(l, BIND_MUST, e->hidden_next, n_out, "mm.model.fc");
    const float *bias = vis_load_vector(l, BIND_MUST, n_out, "mm.model.fc.bias");
    const float *norm = vis_load_vector(l, BIND_MUST, n_out, "mm.post_norm.weight");
    const float *first = vis_load_vector(l, BIND_MUST, n_out, "mm.image_begin");
    const float *newline = vis_load_vector(l, BIND_MUST, e->hidden_next, "v.image_newline");
    const float *last = vis_load_vector(l, BIND_MUST, n_out, "mm.image_end");

    e->mm_out = vis_load_into(l, t, bias);
    e->mm_post.w = resident(l, norm, n_out);
    e->first_row = load_frame(l, NULL, NULL, first, norm);
    e->line_break = load_frame(l, t, bias, newline, norm);
    e->last_row = load_frame(l, NULL, NULL, last, norm);
    bind_ignore(&l->b, "v.view_seperator"); /* between views, which pictures here do not have */
}

/* Loads the projector, which maps rows to those of the text model. */
static void load_merger(struct loader *l) {
    struct image_encoder *e = l->e;
    const struct projector *p = &e->p;
    uint32_t n = p->n_embd, block = n * p->merge * p->merge;

    switch (p->kind) {
    case PROJECTOR_QWEN3VL:
    case PROJECTOR_QWEN25VL:
        e->mm_in = vis_load_linear(l, BIND_MUST, block, e->hidden, "mm.0");
        e->mm_out = vis_load_linear(l, BIND_MUST, e->hidden, p->n_out, "mm.2");
        break;
    case PROJECTOR_GEMMA3:
        e->mm_norm = vis_load_norm(l, BIND_MUST, n, "mm.soft_emb_norm");
        vis_load_transposed(l);
        break;
    case PROJECTOR_GEMMA4V:
        e->std.bias = resident(l, vis_load_vector(l, BIND_MAY, n, "v.std_bias"), n);
        e->std.w =
            resident(l, vis_load_vector(l, bind_if(e->std.bias, BIND_MUST), n, "v.std_scale"), n);
        e->mm_out = vis_load_linear(l, BIND_MUST, n, p->n_out, "mm.input_projection");
        break;
    case PROJECTOR_GEMMA4UV:
        e->mm_out = vis_load_linear(l, BIND_MUST, n, p->n_out, "mm.input_projection");
        break;
    case PROJECTOR_IDEFICS3:
        e->mm_out = vis_load_linear(l, BIND_MUST, block, p->n_out, "mm.model.fc");
        break;
    case PROJECTOR_INTERNVL:
        e->mm_norm = vis_load_norm(l, BIND_MUST, block, "mm.model.mlp.0");
        e->mm_in = vis_load_linear(l, BIND_MUST, block, e->hidden, "mm.model.mlp.1");
        e->mm_out = vis_load_linear(l, BIND_MUST, e->hidden, p->n_out, "mm.model.mlp.3");
        break;
    case PROJECTOR_GLM4V:
        e->merge = load_conv(l, "mm.patch_merger", p->merge, n, p->n_out);
        e->mm_fc = vis_load_linear(l, BIND_MUST, p->n_out, p->n_out, "mm.model.fc");
        e->mm_norm = vis_load_norm(l, BIND_MUST, p->n_out, "mm.post_norm");
        e->mm_gate = vis_load_linear(l, BIND_MUST, p->n_out, e->hidden, "mm.gate");
        e->mm_in = vis_load_linear(l, BIND_MUST, p->n_out, e->hidden, "mm.up");
        e->mm_out = vis_load_linear(l, BIND_MUST, e->hidden, p->n_out, "mm.down");
        break;
    case PROJECTOR_HUNYUANVL:
        load_framed(l);
        break;
    case PROJECTOR_KIMIVL:
        e->mm_norm = vis_load_norm(l, BIND_MUST, n, "mm.input_norm");
        e->mm_in = vis_load_linear(l, BIND_MUST, block, e->hidden, "mm.1");
        e->mm_out = vis_load_linear(l, BIND_MUST, e->hidden, p->n_out, "mm.2");
        break;
    case PROJECTOR_LFM2:
        e->mm_norm = vis_load_norm(l, BIND_MAY, block, "mm.input_norm");
        e->mm_in = vis_load_linear(l, BIND_MUST, block, e->hidden, "mm.1");
        e->mm_out = vis_load_linear(l, BIND_MUST, e->hidden, p->n_out, "mm.2");
        break;
    case PROJECTOR_PIXTRAL:
        e->merge =
            vis_load_linear(l, p->merge > 1 ? BIND_MUST : BIND_MAY, block, n, "mm.patch_merger");
        e->mm_norm = vis_load_norm(l, bind_if(e->merge, BIND_MUST), n, "mm.input_norm");
        e->mm_in = vis_load_linear(l, BIND_MUST, n, e->hidden, "mm.1");
        e->mm_out = vis_load_linear(l, BIND_MUST, e->hidden, p->n_out, "mm.2");
        e->line_break = vis_load_vector(l, BIND_MUST, p->n_out, "v.token_embd.img_break");
        break;
    case PROJECTOR_KINDS:
        break;
    }
}

/* Tokens of marks: MARK_SMALL to MARK_FENCE, NULL: the kind has none, and what surrounds the line
 * and the column of a tile. Line breaks are written as in vocabularies of bytes. */
static const struct mark_tokens {
    const char *text[MARK_TILE], *open, *close;
} mark_tokens[] = {
    [MARKS_PLACE] = {{"<|img_thumbnail|>"}, "<|img_row_", "|>"},
    [MARKS_FENCED] = {{"<global-img>", "\u010A", "\u010A\u010A", "<fake_token_around_image>"},
                      "<row_",
                      ">"},
};

/* Returns the index of the mark whose token is @t, e.g. <|img_row_2_col_1|>; PICTURE_MARKS: none.
 */
static uint32_t find_mark(enum projector_marks marks, struct gguf_str t) {
    const struct mark_tokens *m = &mark_tokens[marks];
    size_t n = strlen(m->open);
    unsigned line, column;
    char text[32] = "", again[48];

    if (t.len >= sizeof(text))
        return PICTURE_MARKS;
    memcpy(text, t.data, t.len);
    for (uint32_t i = 0; i < MARK_TILE; i++)
        if (m->text[i] && strcmp(text, m->text[i]) == 0)
            return i;
    if (t.len < n || sscanf(text + n, "%2u_col_%2u", &line, &column) != 2 || line == 0 ||
        column == 0 || MAX(line, column) > PROJECTOR_TILES_MAX)
        return PICTURE_MARKS;
    snprintf(again, sizeof(again), "%s%u_col_%u%s", m->open, line, column, m->close);
    if (strcmp(text, again))
        return PICTURE_MARKS;
    return MARK_TILE + (line - 1) * PROJECTOR_TILES_MAX + column - 1;
}

/* Takes the rows of marks from the text model's embedding, which has the projector's width. */
static void load_marks(struct loader *l, const struct gguf *text) {
    const struct gguf_array *tokens = NULL;
    const struct tensor *table = NULL;
    struct image_encoder *e = l->e;

    if (text) {
        table = gguf_find(text, "token_embd.weight");
        tokens = gguf_array(text, "tokenizer.ggml.tokens");
    }
    if (e->p.marks == MARKS_NONE || !tokens || !table || gguf_array_type(tokens) != GGUF_STRING ||
        table->ne[0] != e->p.n_out)
        return;
    e->marks = vis_load_own(l, (size_t)PICTURE_MARKS * e->p.n_out);
    for (uint64_t i = 0; i < MIN(gguf_array_n(tokens), table->ne[1]) && e->marks; i++) {
        uint32_t mark = find_mark(e->p.marks, gguf_array_str(tokens, i));

        if (mark == PICTURE_MARKS)
            continue;
        quant_decode_row(table, i, e->marks + (size_t)mark * e->p.n_out);
        e->has_mark[mark] = true;
    }
}

/* Describes a vector of n_embd zeros, which factors of branches need beside them. */
static struct tensor zero_tensor(const struct image_encoder *e) {
    return (struct tensor){
        .name = "zeros",
        .format = tensor_format(TENSOR_F32),
        .n_dims = 1,
        .ne = {e->p.n_embd, 1, 1, 1},
        .row_bytes = e->p.n_embd * sizeof(float),
        .n_bytes = e->p.n_embd * sizeof(float),
    };
}

static const float *load_zeros(struct loader *l) {
    float *v = vis_load_own(l, l->e->p.n_embd);

    if (v)
        memset(v, 0, l->e->p.n_embd * sizeof(*v));
    return resident(l, v, l->e->p.n_embd);
}

/* Loads the tensors of all kinds, in the order of computation. */
static void load_all(struct loader *l) {
    struct image_encoder *e = l->e;
    const struct projector *p = &e->p;
    bool qwen = p->kind == PROJECTOR_QWEN3VL || p->kind == PROJECTOR_QWEN25VL;

    load_patch(l);
    vis_load_table(l);
    if (vis_extra(e))
        e->zeros = load_zeros(l);
    e->pre_ln =
        vis_load_norm(l, bind_if(p->kind == PROJECTOR_PIXTRAL, BIND_MUST), p->n_embd, "v.pre_ln");
    if (p->kind == PROJECTOR_GLM4V)
        e->patch_norm[1] = vis_load_norm(l, BIND_MAY, p->n_embd, "v.norm_embd");
    for (uint32_t i = 0; i < p->n_layer && l->b.r == 0; i++)
        load_layer(l, i, &e->layer[i]);
    bool siglip =
        p->kind == PROJECTOR_GEMMA3 || p->kind == PROJECTOR_LFM2 || p->kind == PROJECTOR_IDEFICS3;
    bool glm4v = p->kind == PROJECTOR_GLM4V;
    bool last = qwen || siglip || glm4v || p->kind == PROJECTOR_KIMIVL;
    e->post_ln = vis_load_norm(l, bind_if(last, BIND_MUST), p->n_embd, "v.post_ln");
    load_merger(l);
    bind_ignore(&l->b, "a."); /* an audio encoder in the same file */
    bind_ignore(&l->b, "mm.a.");
    bind_rest(&l->b);
}

/* Reads the number of outputs of a product, dimension @dim of @name. Returns 0 or -EINVAL. */
static int read_outputs(const struct gguf *file, const char *name, int dim, uint32_t *out,
                        struct err *err) {
    const struct tensor *t = gguf_find(file, name);

    if (!t || t->ne[dim] == 0 || t->ne[dim] > 65536)
        return err_set(err, 0, NULL, "the projector file has no '%s' of the right size", name);
    *out = (uint32_t)t->ne[dim];
    return 0;
}

/* Reads the widths between the products of the merger; 1: there are none. Returns 0 or -EINVAL. */
static int read_hidden(struct image_encoder *e, const struct gguf *file, struct err *err) {
    const char *name = NULL;
    int dim = 1;

    e->hidden = e->hidden_next = 1;
    if (e->p.kind == PROJECTOR_QWEN3VL || e->p.kind == PROJECTOR_QWEN25VL)
        name = "mm.0.weight";
    else if (e->p.kind == PROJECTOR_PIXTRAL || e->p.kind == PROJECTOR_LFM2 ||
             e->p.kind == PROJECTOR_KIMIVL)
        name = "mm.1.weight";
    else if (e->p.kind == PROJECTOR_INTERNVL)
        name = "mm.model.mlp.1.weight";
    else if (e->p.kind == PROJECTOR_GLM4V)
        name = "mm.up.weight";
    if (e->p.kind == PROJECTOR_HUNYUANVL) {
        TRY(read_outputs(file, "mm.2.weight", 3, &e->hidden_next, err));
        name = "mm.0.weight";
        dim = 3;
    }
    if (name)
        TRY(read_outputs(file, name, dim, &e->hidden, err));
    e->in_width =
        MAX(MAX((size_t)e->p.n_embd * e->p.merge * e->p.merge, (size_t)3 * e->p.patch * e->p.patch),
            e->p.n_embd);
    if (e->p.kind == PROJECTOR_GLM4V)
        e->in_width = MAX(e->in_width, e->p.n_out);
    e->in_width = MAX(e->in_width, e->hidden_next);
    e->ffn_width = MAX(e->p.n_ff, e->hidden);
    return 0;
}

/* A buffer of the backend, of @n floats. */
struct buffer {
    float **where;
    size_t n;
};

enum { BUFFERS = 7 };

static void list_buffers(struct image_encoder *e, struct buffer out[BUFFERS]) {
    size_t n = e->max_patches + vis_extra(e), width = e->p.n_embd,
           widest = MAX(e->in_width, e->ffn_width);
    const struct buffer all[BUFFERS] = {
        {&e->x, n * width},
        {&e->o, n * width},
        {&e->qkv, VIS_CHUNK * 3 * width},
        {&e->in, VIS_CHUNK * e->in_width},
        {&e->ffn, VIS_CHUNK * 2 * e->ffn_width},
        {&e->out, VIS_CHUNK * (size_t)e->p.n_out},
        {&e->clipped, e->p.kind == PROJECTOR_GEMMA4V ? VIS_CHUNK * widest : 0},
    };

    memcpy(out, all, sizeof(all));
}

/* Returns the sizes that the backend allocates for. */
static struct vis_sizes vis_load_sizes(const struct image_encoder *e) {
    size_t n = e->max_patches, side = e->p.side, patch = e->p.patch;

    return (struct vis_sizes){
        .max_rows = VIS_CHUNK,
        .max_in = (uint32_t)MAX(e->in_width, e->ffn_width),
        .max_keys = e->max_patches + vis_extra(e),
        .n_head = e->p.n_head,
        .head_dim = e->p.n_embd / e->p.n_head,
        .place_bytes = vis_place_bytes(e),
        .pixel_bytes = MAX(n * patch * patch, side * side) * 3,
    };
}

int vis_fit(struct image_encoder_fit *out, struct image_encoder *e, const struct gguf *file,
            uint32_t n_threads, struct err *err) {
    struct buffer buffers[BUFFERS];
    int r = read_hidden(e, file, err);

    if (r < 0)
        return r;
    const struct vis_sizes sizes = vis_load_sizes(e);
    *out = (struct image_encoder_fit){.buffers = e->ops->open_bytes(&sizes, n_threads)};
    list_buffers(e, buffers);
    for (int i = 0; i < BUFFERS; i++)
        out->buffers += e->ops->buffer_bytes(buffers[i].n);
    for (uint32_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct tensor *t = gguf_tensor(file, i);

        if (strncmp(t->name, "a.", 2) != 0 && strncmp(t->name, "mm.a.", 5) != 0)
            out->weights += e->ops->tensor_bytes(t);
    }
    const struct tensor zeros = zero_tensor(e);
    if (vis_extra(e))
        out->weights += e->ops->tensor_bytes(&zeros);
    return 0;
}

/* Opens the backend with its buffers, and allocates the encoder's own memory. */
static int vis_load_allocate(struct image_encoder *e, const struct image_encoder_opts *opts,
                             struct err *err) {
    const struct vis_sizes sizes = vis_load_sizes(e);
    struct buffer buffers[BUFFERS];

    e->grid.size = sizes.place_bytes;
    e->grid.bytes = malloc(e->grid.size);
    e->layer = calloc(MAX(e->p.n_layer, 1u), sizeof(*e->layer));
    bool there = e->grid.bytes && e->layer;
    int r = 0;

    if (there)
        r = e->ops->open(&e->be, opts, &sizes, err);
    list_buffers(e, buffers);
    for (int i = 0; i < BUFFERS && there && r == 0; i++) {
        *buffers[i].where = e->ops->buffer(e->be, buffers[i].n);
        there = *buffers[i].where != NULL;
    }
    if (there)
        return r;
    err_set(err, 0, NULL, "no memory for pictures of %u rows", e->max_rows);
    return -ENOMEM;
}

int vis_load(struct image_encoder *e, const struct gguf *file, const struct image_encoder_opts *o,
             struct err *err) {
    struct loader l = {.e = e};
    const struct tensor *down = gguf_find(file, "v.blk.0.ffn_down.weight");
    int r = bind_init(&l.b, file, e->p.name, err);

    if (r < 0)
        return r;
    l.swapped = down && down->ne[0] == e->p.n_embd && e->p.n_ff != e->p.n_embd;
    l.b.r = read_hidden(e, file, err);
    if (l.b.r == 0)
        l.b.r = vis_load_allocate(e, o, err);
    if (l.b.r == 0)
        load_all(&l);
    load_marks(&l, o->text);
    vis_frequencies(e);
    r = l.b.r;
    bind_deinit(&l.b);
    return r;
}
