/*
 * gemma4 - the ops of Gemma 4. Layers with a window and layers without one have heads of different
 * sizes. A layer is attention and a dense FFN with a norm before and after each; the larger model
 * has experts beside the dense FFN; E2B and E4B add the per-layer inputs:
 *
 *   QKV ATTEND PROJ  GATE_UP PROJ                       dense
 *   QKV ATTEND PROJ  GATE_UP PROJ ROUTE EXPERTS JOIN    with experts
 *   QKV ATTEND PROJ  GATE_UP PROJ  GATE_IN PROJ         with per-layer inputs (LAYER_INPUT)
 *
 * In E2B and E4B the last layers have no keys of their own and read those of earlier layers.
 */

#include "engine/arch/gemma4.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/arch/window.h"

/* Hyperparameters that differ by layer. */
struct plan {
    uint32_t n_head[MODEL_LAYERS_MAX], n_head_kv[MODEL_LAYERS_MAX], n_ff[MODEL_LAYERS_MAX];
    bool in_window[MODEL_LAYERS_MAX];
    /* dim, window_dim: head sizes without and with a window */
    uint32_t window, dim, window_dim;
    /* number of first layers with keys of their own; a later layer reads the keys of the last of
     * these that has a window as well, or has none as well */
    uint32_t n_own;
    /* place of the keys of each layer */
    struct kv_layer kv[MODEL_LAYERS_MAX];
};

/* Reads the hyperparameters that differ by layer, and checks that heads share key heads evenly and
 * that the last two layers with keys of their own are one with a window and one without. */
static void gemma4_read_plan(struct binder *b, struct model_shape *s, struct plan *p) {
    uint32_t value_dim, shared = 0;

    p->dim = p->window_dim = s->head_dim;
    meta_u32_layers(b, "attention.head_count", 1, 1u << 12, s->n_layer, p->n_head);
    meta_u32_layers(b, "attention.head_count_kv", 1, 1u << 12, s->n_layer, p->n_head_kv);
    meta_u32_layers(b, "feed_forward_length", 1, 1u << 20, s->n_layer, p->n_ff);
    window_read(b, s->n_layer, 6, p->in_window, &p->window);
    meta_u32_opt(b, "attention.key_length_swa", 2, 1024, &p->window_dim);
    value_dim = p->window_dim;
    meta_u32_opt(b, "attention.value_length_swa", 2, 1024, &value_dim);
    meta_u32_opt(b, "attention.shared_kv_layers", 0, s->n_layer, &shared);
    meta_u32_opt(b, "embedding_length_per_layer_input", 0, 1u << 16, &s->n_layer_input);
    p->n_own = s->n_layer - shared;
    decoder_check_heads(b, s->n_layer, p->n_head, p->n_head_kv);
    if (b->r == 0 && (value_dim != p->window_dim || p->window_dim % 2))
        bind_refuse(
            b,
            "keys of %u and values of %u numbers in windows are not supported; both must be equal",
            p->window_dim, value_dim);
    window_check_shared(b, p->in_window, p->n_own, shared);
}

/* Returns the layer whose keys layer @l reads. */
static uint32_t gemma4_source(const struct plan *p, uint32_t l) {
    assert(l < p->n_own || p->n_own >= 2);
    if (l < p->n_own)
        return l;
    if (p->in_window[l])
        return p->n_own - 2;
    return p->n_own - 1;
}

/* Returns true for E2B and E4B, in which a row of a picture does not see the picture's later rows.
 * Only their width distinguishes their files from those of the other models. */
static bool gemma4_is_small(const struct model_shape *s) {
    return s->n_embd == 1536 || s->n_embd == 2560;
}

/* Returns layer @l for decoder_attention() and decoder_ffn(). */
static struct layer gemma4_layer(const struct model *m, struct plan *p, uint32_t l) {
    struct layer layer = decoder_layer(m, l);

    layer.heads =
        (struct heads){.n = p->n_head[l], .n_kv = p->n_head_kv[gemma4_source(p, l)], .dim = p->dim};
    layer.attn = (struct attn){.scale = 1};
    if (p->in_window[l]) {
        layer.heads.dim = p->window_dim;
        layer.attn.window = p->window;
        layer.attn.two_way = m->shape.n_picture && !gemma4_is_small(&m->shape);
    }
    layer.rope = p->in_window[l];
    layer.n_ff = p->n_ff[l];
    if (l >= p->n_own)
        layer.kv = &p->kv[gemma4_source(p, l)];
    return layer;
}

/* Adds x += norm(norm(dense FFN) + norm(experts)). Both branches have a norm of their own before
 * them too. The router's norm has the weights ffn_gate_inp.scale, and its logits are divided by
 * sqrt(n_embd). */
static void bind_experts(struct binder *b, struct model *m, const struct decoder *d,
                         const struct layer *layer) {
    const struct model_shape *s = &m->shape;
    struct decoder dense = *d;
    uint32_t l = layer->index, n = s->n_expert, n_ff = s->n_ff_expert, e = s->n_embd;

    dense.ffn_post_norm = "post_ffw_norm_1";
    decoder_ffn(b, m, &dense, layer);
    if (m->r == 0)
        m->op[m->n_ops - 1].branch = true;
    model_add(m, &(struct model_op){
                     .kind = OP_ROUTE,
                     .layer = l,
                     .scale = 1.0f / sqrtf((float)e),
                     .norm = bind_vector(b, BIND_MUST, e, "blk.%u.ffn_gate_inp.scale", l),
                     .w = {layer_matrix(b, l, "ffn_gate_inp", e, n)},
                 });
    const struct tensor *down = layer_matrices(b, l, "ffn_down_exps", n_ff, e, n);
    bool weighed = down && down->scale; /* the tensor has the factor of each expert already */
    model_add(m, &(struct model_op){
                     .kind = OP_EXPERTS,
                     .layer = l,
                     .ffn.glu = d->glu,
                     .ffn.joined = true,
                     .branch = true,
                     .norm = layer_vector(b, l, "pre_ffw_norm_2", e),
                     .post_norm = layer_vector(b, l, "post_ffw_norm_2", e),
                     .w = {layer_matrices(b, l, "ffn_gate_up_exps", e, 2ull * n_ff, n), NULL, down},
                     .weigh = bind_vector(b, bind_if(!weighed, BIND_MAY), n,
                                          "blk.%u.ffn_down_exps.scale", l),
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_JOIN,
                     .layer = l,
                     .post_norm = layer_vector(b, l, "post_ffw_norm", e),
                 });
}

void gemma4_input(struct binder *b, struct model *m) {
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_layer_input, all = n * s->n_layer;

    model_add(m,
              &(struct model_op){
                  .kind = OP_LAYER_INPUT,
                  .w = {bind_matrix(b, BIND_MUST, s->n_embd, all, "per_layer_model_proj.weight"),
                        bind_matrix(b, BIND_MUST, all, s->n_vocab, "per_layer_token_embd.weight")},
                  .post_norm = bind_vector(b, BIND_MUST, n, "per_layer_proj_norm.weight"),
              });
}

void gemma4_layer_input(struct binder *b, struct model *m, const struct decoder *d, uint32_t l,
                        bool branch) {
    uint32_t e = m->shape.n_embd, n = m->shape.n_layer_input;

    model_add(m, &(struct model_op){
                     .kind = OP_GATE_IN,
                     .layer = l,
                     .ffn.glu = d->glu,
                     .w = {layer_matrix(b, l, "inp_gate", e, n)},
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_PROJ,
                     .layer = l,
                     .in = ACT_H,
                     .branch = branch,
                     .w = {layer_matrix(b, l, "proj", n, e)},
                     .post_norm = layer_vector(b, l, "post_norm", e),
                 });
}

void gemma4_scale_layer(struct binder *b, struct model *m, uint32_t l) {
    const struct tensor *t = bind_vector(b, BIND_MAY, 1, "blk.%u.layer_output_scale.weight", l);
    float scale;

    if (!t || m->r < 0)
        return;
    memcpy(&scale, t->data, sizeof(scale));
    if (b->r == 0 && !(fabsf(scale) > 0 && isfinite(scale)))
        bind_refuse(b, "tensor '%s' is %g; it must be finite and not 0", t->name, (double)scale);
    else
        m->op[m->n_ops - 1].scale = scale;
}

/* Adds all ops of layer @l, and sets p->kv[l]. */
static void gemma4_bind_layer(struct binder *b, struct model *m, const struct decoder *d,
                              struct plan *p, uint32_t l) {
    const struct layer layer = gemma4_layer(m, p, l);

    assert(layer.heads.n % layer.heads.n_kv == 0);
    p->kv[l] = decoder_attention(b, m, d, &layer);
    if (m->shape.n_expert)
        bind_experts(b, m, d, &layer);
    else
        decoder_ffn(b, m, d, &layer);
    if (m->shape.n_layer_input)
        gemma4_layer_input(b, m, d, l, false);
    gemma4_scale_layer(b, m, l);
}

void gemma4_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    struct model_op logits;
    struct plan p = {0};

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    gemma4_read_plan(b, s, &p);
    window_rope(b, s, p.window_dim, 10000);
    decoder_ends(b, m, d, &logits);
    window_ends(b, m, true, &logits);
    if (b->r == 0 && s->n_layer_input)
        gemma4_input(b, m);
    for (uint32_t l = 0; l < s->n_layer && b->r == 0; l++)
        gemma4_bind_layer(b, m, d, &p, l);
    model_add(m, &logits);
}
