#include "engine/arch/decoder.h"

#include <assert.h>
#include <stdio.h>

#include "engine/bind/bind.h"
#include "engine/bind/meta.h"

#define NO_LAYER UINT32_MAX

/* Binds the weights of a norm before a branch or before the logits, blk.@l.NAME, or NAME if @l is
 * NO_LAYER. */
static const struct tensor *weighted_norm(struct binder *b, const struct model *m,
                                          const struct decoder *d, enum bind_need need, uint32_t l,
                                          const char *name) {
    uint32_t n = m->shape.n_embd;

    if (d->plain_norm)
        return bind_ones(b, n);
    if (l == NO_LAYER)
        return bind_vector(b, need, n, "%s.weight", name);
    return bind_vector(b, need, n, "blk.%u.%s.weight", l, name);
}

void decoder_ends(struct binder *b, struct model *m, const struct decoder *d,
                  struct model_op *logits) {
    const struct model_shape *s = &m->shape;

    assert(m->n_ops == 0);
    const struct tensor *embed =
        bind_matrix(b, BIND_MUST, s->n_embd, s->n_vocab, "token_embd.weight");
    const struct tensor *output = bind_matrix(b, BIND_MAY, s->n_embd, s->n_vocab, "output.weight");

    model_add(m, &(struct model_op){.kind = OP_EMBED, .w = {embed}, .scale = m->scale.embedding});
    *logits = (struct model_op){
        .kind = OP_LOGITS,
        .norm = weighted_norm(b, m, d, bind_if(!d->streams, BIND_MUST), NO_LAYER,
                              d->final_norm ? d->final_norm : "output_norm"),
        .norm_bias = bind_vector(b, d->norm_bias, s->n_embd, "output_norm.bias"),
        .w = {output ? output : embed},
        .bias = {bind_vector(b, d->output_bias, s->n_vocab, "output.bias")},
        .scale = m->scale.logits,
    };
}

struct layer decoder_layer(const struct model *m, uint32_t index) {
    const struct model_shape *s = &m->shape;

    return (struct layer){
        .index = index,
        .heads = {s->n_head, s->n_head_kv, s->head_dim, s->value_dim},
        .attn = {.scale = s->attn_scale},
        .n_ff = s->n_ff,
    };
}

/* Binds the norm after a branch. Returns NULL if @name is NULL: branches have no such norm. */
static const struct tensor *post_norm(struct binder *b, const struct model *m,
                                      const struct decoder *d, const char *name, uint32_t l) {
    if (!name)
        return NULL;
    if (d->bare_post_norms)
        return bind_vector(b, BIND_MUST, m->shape.n_embd, "blk.%u.%s", l, name);
    return layer_vector(b, l, name, m->shape.n_embd);
}

void decoder_project(struct binder *b, struct model *m, uint32_t l, enum act_role in, uint64_t n_in,
                     const char *name, bool branch) {
    model_add(m, &(struct model_op){
                     .kind = OP_PROJ,
                     .layer = l,
                     .in = in,
                     .branch = branch,
                     .gain = m->scale.residual,
                     .w = {layer_matrix(b, l, name, n_in, m->shape.n_embd)},
                 });
}

void decoder_check_heads(struct binder *b, uint32_t n, const uint32_t *n_head,
                         const uint32_t *n_kv) {
    for (uint32_t l = 0; l < n && b->r == 0; l++)
        if (n_head[l] % n_kv[l])
            bind_refuse(b, "layer %u: %u heads cannot share %u key heads evenly", l, n_head[l],
                        n_kv[l]);
}

/* Returns true if a layer has q, k and v in one tensor: in all files, or in this one. */
static bool has_fused_qkv(const struct binder *b, const struct decoder *d, uint32_t l) {
    char name[48];

    snprintf(name, sizeof(name), "blk.%u.attn_qkv.weight", l);
    return d->fused_qkv || (d->may_fuse_qkv && gguf_find(b->file, name));
}

/* Divides attn_qkv, and its bias if there is one, among @n_q values of queries, @n_k of keys and
 * @n_v of values. */
static void split_qkv(struct binder *b, const struct decoder *d, struct model_op *qkv, uint64_t n_q,
                      uint64_t n_k, uint64_t n_v) {
    const struct tensor *all = layer_matrix(b, qkv->layer, "attn_qkv", qkv->width, n_q + n_k + n_v);
    const struct tensor *bias =
        bind_vector(b, d->qkv_bias, n_q + n_k + n_v, "blk.%u.attn_qkv.bias", qkv->layer);

    qkv->w[0] = bind_rows(b, all, 0, n_q);
    qkv->w[1] = bind_rows(b, all, n_q, n_k);
    qkv->w[2] = bind_rows(b, all, n_q + n_k, n_v);
    qkv->bias[0] = bind_values(b, bias, 0, n_q);
    qkv->bias[1] = bind_values(b, bias, n_q, n_k);
    qkv->bias[2] = bind_values(b, bias, n_q + n_k, n_v);
}

/* Binds the weights of the norm of @n heads of @dim values. */
static const struct tensor *heads_norm(struct binder *b, const struct decoder *d,
                                       enum bind_need need, uint64_t n, uint64_t dim, uint32_t l,
                                       const char *name) {
    if (d->norm_each)
        return bind_flat(b, bind_vectors(b, need, dim, n, "blk.%u.%s.weight", l, name));
    return bind_vector(b, need, d->norm_all ? n * dim : dim, "blk.%u.%s.weight", l, name);
}

/* Adds o = attention(qkv(norm x)). Returns the place of the keys. */
static struct kv_layer attention_in(struct binder *b, struct model *m, const struct decoder *d,
                                    const struct layer *layer) {
    const struct model_shape *s = &m->shape;
    const struct heads *h = &layer->heads;
    uint64_t n_q = (uint64_t)h->n * h->dim, n_k = (uint64_t)h->n_kv * h->dim;
    uint64_t n_v = (uint64_t)h->n_kv * heads_value(h), n_rows = n_q;
    uint32_t l = layer->index;
    uint8_t cls = KV_GLOBAL;

    if (layer->attn.window)
        cls = KV_WINDOW;
    if (d->gated)
        n_rows = 2 * n_q;
    if (b->r == 0 && (h->n_kv == 0 || h->n % h->n_kv))
        bind_refuse(b, "%u heads cannot share %u key heads evenly", h->n, h->n_kv);
    if (b->r < 0)
        return (struct kv_layer){0};
    assert(h->n > 0 && h->dim > 0 && layer->rope < ROPE_SETS);
    assert(!layer->kv || layer->kv->cls == cls);
    const struct kv_layer kv = layer->kv ? *layer->kv : model_add_kv(m, cls, h);
    bool fused = has_fused_qkv(b, d, l);
    enum bind_need own = bind_if(!layer->kv && !fused, BIND_MUST), v = own;
    enum bind_need bias = bind_if(!fused, d->qkv_bias);

    if (own && d->v_unit)
        v = BIND_MAY;
    struct model_op qkv = {
        .kind = OP_QKV,
        .layer = l,
        .width = s->n_embd,
        .kv = kv,
        .heads = *h,
        .rope = layer->rope,
        .qkv.gated = d->gated,
        .qkv.v_unit = d->v_unit,
        .qkv.norm_all = d->norm_all,
        .qkv.norm_each = d->norm_each,
        .qkv.norm_late = d->norm_late,
        .qkv.temper = m->temper,
        .norm = weighted_norm(b, m, d, bind_if(!d->unnormed, BIND_MUST), l, "attn_norm"),
        .norm_bias = bind_vector(b, d->norm_bias, s->n_embd, "blk.%u.attn_norm.bias", l),
        .w = {bind_matrix(b, bind_if(!fused, BIND_MUST), s->n_embd, n_rows, "blk.%u.attn_q.weight",
                          l),
              bind_matrix(b, own, s->n_embd, n_k, "blk.%u.attn_k.weight", l),
              bind_matrix(b, v, s->n_embd, n_v, "blk.%u.attn_v.weight", l)},
        .bias = {bind_vector(b, bias, n_rows, "blk.%u.attn_q.bias", l),
                 bind_vector(b, bias, n_k, "blk.%u.attn_k.bias", l),
                 bind_vector(b, bias, n_v, "blk.%u.attn_v.bias", l)},
        .q_norm = heads_norm(b, d, d->qk_norm, h->n, h->dim, l, "attn_q_norm"),
        .k_norm =
            heads_norm(b, d, bind_if(!layer->kv, d->qk_norm), h->n_kv, h->dim, l, "attn_k_norm"),
    };
    if (fused)
        split_qkv(b, d, &qkv, n_q, n_k, n_v);
    model_add(m, &qkv);
    model_add(m, &(struct model_op){
                     .kind = OP_ATTEND,
                     .layer = l,
                     .kv = kv,
                     .heads = *h,
                     .attn = layer->attn,
                     .sinks = bind_vector(b, d->sinks, h->n, "blk.%u.attn_sinks.weight", l),
                 });
    if (d->soft_gate || d->sigmoid_gate) { /* attn_gate has a row for each value or for each head */
        char name[64];

        snprintf(name, sizeof(name), "blk.%u.attn_gate.weight", l);
        const struct tensor *found = gguf_find(b->file, name);
        uint64_t n_gates = h->n;

        if (found && found->ne[1] == n_q)
            n_gates = n_q;
        model_add(m, &(struct model_op){
                         .kind = OP_GATE,
                         .sigmoid = d->sigmoid_gate,
                         .layer = l,
                         .heads = *h,
                         .norm = layer_vector(b, l, "attn_norm", s->n_embd),
                         .w = {layer_matrix(b, l, "attn_gate", s->n_embd, n_gates)},
                     });
    }
    if (d->gated)
        model_add(m, &(struct model_op){.kind = OP_GATE, .layer = l, .heads = *h});
    return kv;
}

/* Adds x += Wo o, or with @branch b = Wo o. */
static void attention_out(struct binder *b, struct model *m, const struct decoder *d,
                          const struct layer *layer, bool branch) {
    uint32_t l = layer->index, n_embd = m->shape.n_embd;
    uint64_t n_o = (uint64_t)layer->heads.n * heads_value(&layer->heads);
    float gain = m->scale.residual;

    if (layer->gain)
        gain = layer->gain;
    model_add(m, &(struct model_op){
                     .kind = OP_PROJ,
                     .layer = l,
                     .in = ACT_O,
                     .branch = branch,
                     .gain = gain,
                     .w = {layer_matrix(b, l, "attn_output", n_o, n_embd)},
                     .bias = {bind_vector(b, d->out_bias, n_embd, "blk.%u.attn_output.bias", l)},
                     .post_norm = post_norm(b, m, d, d->attn_post_norm, l),
                     .post_eps = d->post_eps,
                 });
}

struct kv_layer decoder_attention(struct binder *b, struct model *m, const struct decoder *d,
                                  const struct layer *layer) {
    struct kv_layer kv = attention_in(b, m, d, layer);

    if (b->r == 0)
        attention_out(b, m, d, layer, d->streams);
    return kv;
}

/* Returns the name of the norm before FFNs. */
static const char *ffn_norm_name(const struct decoder *d) {
    if (d->parallel)
        return "attn_norm";
    if (!d->ffn_norm)
        return "ffn_norm";
    return d->ffn_norm;
}

/* Binds the norm before a layer's FFN. Returns NULL if layers have no such norm. */
static const struct tensor *ffn_norm(struct binder *b, const struct model *m,
                                     const struct decoder *d, uint32_t l) {
    if (d->bare_ffn_norm)
        return bind_vector(b, BIND_MUST, m->shape.n_embd, "blk.%u.%s", l, ffn_norm_name(d));
    return weighted_norm(b, m, d, bind_if(!d->unnormed, BIND_MUST), l, ffn_norm_name(d));
}

/* Binds the bias of that norm. */
static const struct tensor *ffn_norm_bias(struct binder *b, const struct model *m,
                                          const struct decoder *d, uint32_t l) {
    return bind_vector(b, d->norm_bias, m->shape.n_embd, "blk.%u.%s.bias", l, ffn_norm_name(d));
}

/* Sets the matrices of an FFN without a gate matrix: max(up x, 0)^2 takes the up product as the
 * gate, too; GELU and xIELU have no up value. */
static void ffn_ungated(struct model_op *up, enum glu glu) {
    up->w[0] = up->w[1];
    up->bias[0] = up->bias[1];
    if (glu == GLU_RELU)
        return;
    up->w[1] = NULL;
    up->bias[1] = NULL;
}

/* Adds h = glu(gate y, up y), y = norm x. */
static void ffn_in(struct binder *b, struct model *m, const struct decoder *d,
                   const struct layer *layer) {
    const struct model_shape *s = &m->shape;
    uint32_t l = layer->index, n = layer->n_ff;

    assert(n > 0);
    enum bind_need apart = bind_if(!d->fused_ffn, BIND_MUST);
    enum bind_need gate = bind_if(!d->no_gate, apart);
    struct model_op up = {
        .kind = OP_GATE_UP,
        .layer = l,
        .ffn.glu = d->glu,
        .norm = ffn_norm(b, m, d, l),
        .norm_bias = ffn_norm_bias(b, m, d, l),
        .w = {bind_matrix(b, gate, s->n_embd, n, "blk.%u.ffn_gate.weight", l),
              bind_matrix(b, apart, s->n_embd, n, "blk.%u.ffn_up.weight", l)},
        .bias = {bind_vector(b, bind_if(gate, d->ffn_bias), n, "blk.%u.ffn_gate.bias", l),
                 bind_vector(b, d->ffn_bias, n, "blk.%u.ffn_up.bias", l)},
    };
    if (d->no_gate)
        ffn_ungated(&up, d->glu);
    if (d->fused_ffn) {
        const struct tensor *both = layer_matrix(b, l, "ffn_up", s->n_embd, 2ull * n);

        up.w[0] = bind_rows(b, both, 0, n);
        up.w[1] = bind_rows(b, both, n, n);
    }
    model_add(m, &up);
}

/* Returns true if branches of layer @l go to residual streams behind an HC_IN. MTP blocks have
 * none. */
static bool has_branches(const struct model *m, uint32_t l) {
    return m->shape.stream.rounds > 0 && l < m->shape.n_layer;
}

/* Adds x += down h. */
static void ffn_out(struct binder *b, struct model *m, const struct decoder *d,
                    const struct layer *layer) {
    const struct model_shape *s = &m->shape;
    uint32_t l = layer->index, n = layer->n_ff;

    model_add(m, &(struct model_op){
                     .kind = OP_PROJ,
                     .layer = l,
                     .in = ACT_H,
                     .branch = has_branches(m, l),
                     .gain = m->scale.residual,
                     .w = {layer_matrix(b, l, "ffn_down", n, s->n_embd)},
                     .bias = {bind_vector(b, d->ffn_bias, s->n_embd, "blk.%u.ffn_down.bias", l)},
                     .post_norm = post_norm(b, m, d, d->ffn_post_norm, l),
                     .post_eps = d->post_eps,
                 });
}

void decoder_ffn(struct binder *b, struct model *m, const struct decoder *d,
                 const struct layer *layer) {
    ffn_in(b, m, d, layer);
    ffn_out(b, m, d, layer);
}

/* Adds a shared expert whose output is multiplied by a gate (SHARED). */
static void shared_expert(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_ff_shared;

    assert(n > 0 && (m->r < 0 || m->op[m->n_ops - 1].kind == OP_EXPERTS));
    model_add(m, &(struct model_op){
                     .kind = OP_SHARED,
                     .layer = l,
                     .branch = d->streams,
                     .w = {layer_matrix(b, l, "ffn_gate_shexp", s->n_embd, n),
                           layer_matrix(b, l, "ffn_up_shexp", s->n_embd, n),
                           layer_matrix(b, l, "ffn_down_shexp", n, s->n_embd),
                           layer_matrix(b, l, "ffn_gate_inp_shexp", s->n_embd, 1)},
                 });
}

/* Adds the gate and up products of a shared expert whose output has no gate. It is computed as a
 * dense FFN: decoder_experts() adds its down product after the experts. */
static void common_in(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    uint64_t n_embd = m->shape.n_embd, n = m->n_ff_common;
    const struct tensor *up = layer_matrix(b, l, "ffn_up_shexp", n_embd, n);
    const struct tensor *gate = up;

    if (!d->no_gate)
        gate = layer_matrix(b, l, "ffn_gate_shexp", n_embd, n);
    model_add(m, &(struct model_op){
                     .kind = OP_GATE_UP,
                     .layer = l,
                     .ffn.glu = d->glu,
                     .norm = ffn_norm(b, m, d, l),
                     .norm_bias = ffn_norm_bias(b, m, d, l),
                     .w = {gate, up},
                 });
}

/* Adds the choice of experts. */
static void route_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    uint64_t n_embd = m->shape.n_embd, n = m->shape.n_expert;

    const struct tensor *latent = NULL;

    if (m->shape.n_latent)
        latent = layer_matrix(b, l, "ffn_latent_down", n_embd, m->shape.n_latent);
    model_add(m, &(struct model_op){
                     .kind = OP_ROUTE,
                     .layer = l,
                     .norm = ffn_norm(b, m, d, l),
                     .norm_bias = ffn_norm_bias(b, m, d, l),
                     .w = {layer_matrix(b, l, "ffn_gate_inp", n_embd, n), latent},
                     .bias = {bind_vector(b, d->expert_bias, n, "blk.%u.ffn_gate_inp.bias", l)},
                     .pick_bias = bind_vector(b, d->pick_bias, n, "blk.%u.exp_probs_b.bias", l),
                 });
}

/* Adds x += the sum of the picked experts, or b += it with @branch. */
static void sum_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t l,
                        bool branch) {
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_expert, n_ff = s->n_ff_expert, width = s->n_embd;

    assert(n > 0);
    if (s->n_latent)
        width = s->n_latent;
    const struct tensor *both = bind_matrices(b, bind_if(d->streams, BIND_MAY), width, 2 * n_ff, n,
                                              "blk.%u.ffn_gate_up_exps.weight", l);
    enum bind_need apart = bind_if(!both, BIND_MUST);
    const struct tensor *up =
        bind_matrices(b, apart, width, n_ff, n, "blk.%u.ffn_up_exps.weight", l);
    const struct tensor *gate = up;
    bool no_up = d->no_gate && d->glu != GLU_RELU;
    if (!d->no_gate)
        gate = bind_matrices(b, apart, width, n_ff, n, "blk.%u.ffn_gate_exps.weight", l);
    model_add(
        m,
        &(struct model_op){
            .kind = OP_EXPERTS,
            .layer = l,
            .branch = branch,
            .post_norm = post_norm(b, m, d, branch ? NULL : d->ffn_post_norm, l),
            .ffn.joined = both != NULL,
            .ffn.latent = s->n_latent > 0,
            .ffn.glu = d->glu,
            .w = {both ? both : gate, no_up ? NULL : up,
                  layer_matrices(b, l, "ffn_down_exps", n_ff, width, n)},
            .bias = {bind_vectors(b, d->expert_bias, n_ff, n, "blk.%u.ffn_gate_exps.bias", l),
                     bind_vectors(b, d->expert_bias, n_ff, n, "blk.%u.ffn_up_exps.bias", l),
                     bind_vectors(b, d->expert_bias, s->n_embd, n, "blk.%u.ffn_down_exps.bias", l)},
        });
}

void decoder_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    /* A norm of the sum of both outputs needs the sum apart from x, as a branch does. */
    bool joins = (d->ffn_post_norm || has_branches(m, l)) && m->n_ff_common;

    if (m->n_ff_common)
        common_in(b, m, d, l);
    if (joins)
        decoder_project(b, m, l, ACT_H, m->n_ff_common, "ffn_down_shexp", true);
    route_experts(b, m, d, l);
    sum_experts(b, m, d, l, d->streams || has_branches(m, l) || joins);
    if (m->shape.n_latent)
        decoder_project(b, m, l, ACT_D, m->shape.n_latent, "ffn_latent_up", false);
    if (m->shape.n_ff_shared)
        shared_expert(b, m, d, l);
    if (has_branches(m, l))
        return;
    if (joins)
        model_add(m, &(struct model_op){.kind = OP_JOIN,
                                        .layer = l,
                                        .post_norm = post_norm(b, m, d, d->ffn_post_norm, l)});
    else if (m->n_ff_common)
        decoder_project(b, m, l, ACT_H, m->n_ff_common, "ffn_down_shexp", false);
}

/* Returns true if the layer has experts in place of a dense FFN. */
static bool has_experts(const struct model *m, const struct layer *l) {
    return m->shape.n_expert && l->index >= m->n_lead;
}

void decoder_mlp(struct binder *b, struct model *m, const struct decoder *d,
                 const struct layer *l) {
    if (has_experts(m, l))
        decoder_experts(b, m, d, l->index);
    else
        decoder_ffn(b, m, d, l);
}

/* Adds b = Wo o + the sum of the picked experts, then x += b + the output of the shared expert. */
static void parallel_experts(struct binder *b, struct model *m, const struct decoder *d,
                             const struct layer *layer) {
    uint32_t l = layer->index, n_embd = m->shape.n_embd, n = m->n_ff_common;

    if (n)
        common_in(b, m, d, l);
    attention_out(b, m, d, layer, true);
    route_experts(b, m, d, l);
    sum_experts(b, m, d, l, true);
    model_add(m, &(struct model_op){.kind = OP_JOIN, .layer = l});
    if (n)
        model_add(m, &(struct model_op){
                         .kind = OP_PROJ,
                         .layer = l,
                         .in = ACT_H,
                         .gain = d->halves ? 0.5f : 0,
                         .w = {layer_matrix(b, l, "ffn_down_shexp", n, n_embd)},
                     });
}

/* Adds x += Wo attention(qkv(y)) + down glu(gate y, up y), y = norm x. */
static void parallel_layer(struct binder *b, struct model *m, const struct decoder *d,
                           const struct layer *layer) {
    attention_in(b, m, d, layer);
    if (b->r < 0)
        return;
    /* h and the picks of experts are computed before x changes */
    if (has_experts(m, layer)) {
        parallel_experts(b, m, d, layer);
        return;
    }
    ffn_in(b, m, d, layer);
    attention_out(b, m, d, layer, false);
    ffn_out(b, m, d, layer);
}

void decoder_block(struct binder *b, struct model *m, const struct decoder *d,
                   const struct layer *layer) {
    if (d->parallel) {
        parallel_layer(b, m, d, layer);
        return;
    }
    decoder_attention(b, m, d, layer);
    decoder_mlp(b, m, d, layer);
}

/* Reads how often the layers run, and whether x gets the last norm between two runs. */
static uint32_t read_loops(struct binder *b, const struct model *m, bool *normed) {
    uint32_t n = 1;

    meta_u32_opt(b, "num_loops", 1, MODEL_LAYERS_MAX / m->shape.n_layer, &n);
    *normed = !meta_bool(b, "skip_loop_final_norm");
    return n;
}

/* Adds all layers once. */
static void bind_layers(struct binder *b, struct model *m, const struct decoder *d) {
    for (uint32_t i = 0; i < m->shape.n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.rope = d->plain_period && (i + 1) % d->plain_period == 0; /* set 1 is empty */
        decoder_block(b, m, d, &l);
        if ((i + 2) * m->shape.n_embd <= m->shape.n_picture)
            model_add(m, &(struct model_op){.kind = OP_DEEP, .layer = i, .part = i + 1});
    }
}

void decoder_hybrid(struct binder *b, struct model *m, const struct decoder *d,
                    decoder_mixer *mixer, decoder_feed *feed) {
    struct model_shape *s = &m->shape;
    uint32_t n_kv[MODEL_LAYERS_MAX];
    struct model_op logits;

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    meta_u32_layers(b, "attention.head_count_kv", 0, s->n_head, s->n_layer, n_kv);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.heads.n_kv = n_kv[i];
        if (n_kv[i] == 0)
            mixer(b, m, i);
        else
            decoder_attention(b, m, d, &l);
        feed(b, m, d, &l);
    }
    model_add(m, &logits);
}

void decoder_bind(struct binder *b, struct model *m, const struct decoder *d) {
    uint32_t n_loops = 1;
    bool normed = false;
    struct model_op logits;

    assert(m->n_ops == 0);
    decoder_ends(b, m, d, &logits);
    if (d->loops)
        n_loops = read_loops(b, m, &normed);
    bind_layers(b, m, d);
    for (uint32_t i = 1; i < n_loops && b->r == 0; i++) {
        if (normed)
            model_add(m, &(struct model_op){
                             .kind = OP_NORM, .layer = 0, .norm = logits.norm, .rms = true});
        bind_layers(b, m, d);
    }
    model_add(m, &logits);
}
