#include "engine/arch/gemma3n.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "engine/arch/gemma4.h"
#include "engine/arch/window.h"

/* Numbers of layers where the file has no key for them: those with keys of their own, and those
 * with sparse gates, 95 % of which are zero. */
enum { OWN_KEYS = 20, SPARSE_LAYERS = 10 };
#define SPARSITY 1.6448533535f

/* Hyperparameters that differ by layer. */
struct plan {
    bool in_window[MODEL_LAYERS_MAX];
    uint32_t n_ff[MODEL_LAYERS_MAX];
    float sparsity[MODEL_LAYERS_MAX];
    uint32_t window;
    /* number of first layers with keys of their own; a later layer reads the keys of the last of
     * these that has a window as well, or has none as well */
    uint32_t n_own;
    struct kv_layer kv[MODEL_LAYERS_MAX];
};

/* Reads how many standard deviations above the mean the gates of each layer must be. A share of 0
 * is written as minus infinity. */
static void gemma3n_read_sparsity(struct binder *b, uint32_t n_layer, float *out) {
    static const char key[] = "activation_sparsity_scale";
    bool listed = meta_numbers(b, BIND_MAY, key, GGUF_F32, n_layer, out);

    for (uint32_t l = 0; l < n_layer && b->r == 0; l++) {
        if (!listed)
            out[l] = l < SPARSE_LAYERS ? SPARSITY : 0;
        if (out[l] == -INFINITY)
            out[l] = 0;
        if (!(out[l] >= 0 && out[l] <= 10))
            bind_refuse(b, "'%s' is %g for layer %u, which is out of range", meta_key(b, key).s,
                        (double)out[l], l);
    }
}

static void gemma3n_read_plan(struct binder *b, struct model_shape *s, struct plan *p) {
    uint32_t n = s->n_layer, shared = n > OWN_KEYS ? n - OWN_KEYS : 0, active = 0;

    /* one gate has no standard deviation */
    meta_u32_layers(b, "feed_forward_length", 2, 1u << 20, n, p->n_ff);
    meta_u32(b, "attention.sliding_window", 1, 1u << 26, &p->window);
    window_read(b, n, 5, p->in_window, &p->window);
    gemma3n_read_sparsity(b, n, p->sparsity);
    meta_u32_opt(b, "attention.shared_kv_layers", 0, n, &shared);
    meta_u32(b, "embedding_length_per_layer_input", 1, 1u << 16, &s->n_layer_input);
    s->stream.n = 4;
    meta_u32_opt(b, "altup.num_inputs", 2, OP_MATRICES + 1, &s->stream.n);
    meta_u32_opt(b, "altup.active_idx", 0, 0, &active);
    s->stream.n_low = s->stream.n;
    p->n_own = n - shared;
    window_check_shared(b, p->in_window, p->n_own, shared);
    if (b->r == 0 && s->n_picture)
        bind_refuse(b, "pictures are not supported for %s models", b->arch);
}

/* Adds an op with one matrix for each stream but the first, the parts of tensor @name. */
static void gemma3n_add_ends(struct binder *b, struct model *m, enum op_kind kind,
                             const char *name) {
    uint32_t n = m->shape.n_embd, n_more = m->shape.stream.n - 1;
    const struct tensor *all = bind_matrices(b, BIND_MUST, n, n, n_more, "%s.weight", name);
    struct model_op op = {.kind = kind};

    for (uint32_t i = 0; i < n_more; i++)
        op.w[i] = bind_rows(b, all, (uint64_t)i * n, n);
    model_add(m, &op);
}

/* Adds ALT_PREDICT or ALT_CORRECT of layer @l. */
static void gemma3n_add_update(struct binder *b, struct model *m, enum op_kind kind, uint32_t l) {
    uint64_t e = m->shape.n_embd, n = m->shape.stream.n;
    bool predicts = kind == OP_ALT_PREDICT;

    model_add(m, &(struct model_op){
                     .kind = kind,
                     .layer = l,
                     .norm = layer_vector(b, l, "altup_router_norm", e),
                     .w = {layer_matrix(b, l, "altup_router", e, n)},
                     .weigh = bind_vectors(b, BIND_MUST, n, predicts ? n * n : n,
                                           "blk.%u.altup_%s_coef.weight", l,
                                           predicts ? "predict" : "correct"),
                     .pick_bias = bind_vector(b, predicts ? BIND_NEVER : BIND_MUST, e,
                                              "blk.%u.altup_correct_scale.weight", l),
                 });
}

/* Adds x = (x + b + laurel) / sqrt(2), where b is the output of attention. */
static void gemma3n_add_laurel(struct binder *b, struct model *m, uint32_t l) {
    uint64_t e = m->shape.n_embd;
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.laurel_l.weight", l);
    const struct tensor *found = gguf_find(b->file, name);
    uint64_t rank = found ? found->ne[1] : 1;
    if (b->r == 0 && rank > e)
        bind_refuse(b, "tensor '%s': a rank of %llu is not supported", name,
                    (unsigned long long)rank);
    model_add(m, &(struct model_op){
                     .kind = OP_LAUREL,
                     .layer = l,
                     .q_norm = layer_vector(b, l, "attn_norm", e),
                     .w = {layer_matrix(b, l, "laurel_l", e, rank),
                           layer_matrix(b, l, "laurel_r", rank, e)},
                     .post_norm = layer_vector(b, l, "laurel_post_norm", e),
                 });
    model_add(m, &(struct model_op){.kind = OP_JOIN, .layer = l, .scale = sqrtf(0.5f)});
}

/* Marks keys and values of a layer that reads those of another as ignored. */
static void gemma3n_ignore_keys(struct binder *b, uint32_t l) {
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "blk.%u.attn_k", l);
    bind_ignore(b, prefix);
    snprintf(prefix, sizeof(prefix), "blk.%u.attn_v", l);
    bind_ignore(b, prefix);
}

/* Adds all ops of layer @l. */
static void gemma3n_bind_layer(struct binder *b, struct model *m, const struct decoder *d,
                               struct plan *p, uint32_t l) {
    struct layer layer = decoder_layer(m, l);
    uint32_t source = p->in_window[l] ? p->n_own - 2 : p->n_own - 1;

    assert(d->streams);
    layer.attn = (struct attn){.scale = 1, .window = p->in_window[l] ? p->window : 0};
    layer.rope = p->in_window[l];
    layer.n_ff = p->n_ff[l];
    layer.kv = l < p->n_own ? NULL : &p->kv[source];
    if (layer.kv)
        gemma3n_ignore_keys(b, l);
    gemma3n_add_update(b, m, OP_ALT_PREDICT, l);
    p->kv[l] = decoder_attention(b, m, d, &layer);
    gemma3n_add_laurel(b, m, l);
    uint32_t up = m->n_ops;
    decoder_ffn(b, m, d, &layer);
    if (b->r == 0 && m->r == 0) {
        assert(m->op[up].kind == OP_GATE_UP);
        m->op[up].ffn.sparsity = p->sparsity[l];
    }
    gemma3n_add_update(b, m, OP_ALT_CORRECT, l);
    gemma4_layer_input(b, m, d, l, true);
    model_add(m, &(struct model_op){.kind = OP_HC_OUT, .layer = l});
}

void gemma3n_bind(struct binder *b, struct model *m, const struct decoder *of) {
    struct decoder d = *of;
    struct model_shape *s = &m->shape;
    struct model_op logits;
    struct plan p = {0};

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    gemma3n_read_plan(b, s, &p);
    window_rope(b, s, s->head_dim, 10000);
    decoder_ends(b, m, &d, &logits);
    window_ends(b, m, true, &logits);
    gemma4_input(b, m);
    gemma3n_add_ends(b, m, OP_ALT_BEGIN, "altup_proj");
    d.streams = true; /* layers leave the output of attention in b */
    for (uint32_t l = 0; l < s->n_layer && b->r == 0; l++)
        gemma3n_bind_layer(b, m, &d, &p, l);
    gemma3n_add_ends(b, m, OP_ALT_END, "altup_unembd_proj");
    model_add(m, &logits);
}
