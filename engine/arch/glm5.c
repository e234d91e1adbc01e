/*
 * glm5 - the ops of GLM-5.3-Flash. A layer consists of two branches between HC_IN, which forms the
 * branch's input from the residual streams, and HC_OUT, which adds its output to them. The first
 * branch is Kimi delta attention or sparse latent attention:
 *
 *   HC_IN  STATE_IN .. KDA PROJ                                                    HC_OUT
 *   HC_IN  MLA_IN [POOL_KEYS POOL_INDEX] MLA_Q MLA_KV ATTEND MLA_OUT PROJ          HC_OUT
 *   HC_IN  GATE_UP PROJ [ROUTE EXPERTS]                                            HC_OUT
 *
 * A layer without an indexer of its own sees the keys that the last indexer before it chose.
 */

#include "engine/arch/glm5.h"

#include <assert.h>
#include <stdio.h>

#include "engine/arch/bailing3.h"
#include "engine/arch/deepseek2.h"
#include "engine/arch/limits.h"
#include "engine/arch/streams.h"
#include "engine/sparse.h"

/* Added under the root of the lengths of queries and keys, and the epsilon of the indexer's norm
 * where the file names none: constants of the published model. */
#define GLM5_UNIT_EPS 1e-6f
#define GLM5_INDEX_EPS 1e-6

/* Reads the hyperparameters of the indexer. */
static void glm5_read_indexer(struct binder *b, struct model_shape *s) {
    struct sparse_shape *p = &s->sparse;
    double eps = GLM5_INDEX_EPS;
    const char *tail = "attention.indexer.kpool_select_tail";
    uint32_t budget = 0;
    bool sees_tail = true;

    meta_u32(b, "attention.indexer.head_count", 1, 256, &p->n_head);
    meta_u32(b, "attention.indexer.key_length", 16, 1024, &p->dim);
    meta_u32(b, "attention.indexer.top_k", 1, 1u << 26, &budget);
    meta_u32(b, "attention.indexer.kpool", 2, 16, &p->ratio);
    meta_f32_opt(b, "attention.layer_norm_epsilon", 0, 0.1, &eps);
    gguf_bool(b->file, meta_key(b, tail).s, &sees_tail);
    if (b->r < 0)
        return;
    if (p->ratio & (p->ratio - 1) || p->dim % 16 || budget % p->ratio || budget < p->ratio)
        bind_refuse(b,
                    "an indexer with keys of %u values for %u tokens in blocks of %u is not "
                    "supported; a multiple of 16 values, a power of two up to 16, and whole "
                    "blocks are needed",
                    p->dim, budget, p->ratio);
    else if (!sees_tail)
        bind_refuse(b, "'%s' is false, which is not supported", meta_key(b, tail).s);
    else if (!s->mla.q_rank)
        bind_refuse(b, "'%s' is 0, which is not supported", meta_key(b, "attention.q_lora_rank").s);
    if (eps <= 0)
        eps = GLM5_INDEX_EPS;
    p->eps = (float)eps;
    p->n_block = budget / MAX(p->ratio, 1u);
}

/* Adds the indexer of layer @l (decoder_mixer). */
static void glm5_choose(struct binder *b, struct model *m, uint32_t l) {
    struct sparse_shape *p = &m->shape.sparse;
    uint64_t n = m->shape.n_embd, rank = m->shape.mla.q_rank;
    const struct model_op keys = {
        .kind = OP_POOL_KEYS,
        .layer = l,
        .index = p->n_layer,
        .more = m->shape.state.n_more,
        .norm = layer_vector(b, l, "attn_norm", n),
        .w = {layer_matrix(b, l, "indexer.attn_k", n, p->dim),
              layer_matrix(b, l, "indexer_compressor_gate", n, p->dim),
              layer_matrix(b, l, "indexer.proj", n, p->n_head)},
        .weigh = layer_matrix(b, l, "indexer_compressor_ape", p->dim, p->ratio),
        .k_norm = layer_vector(b, l, "indexer.k_norm", p->dim),
        .norm_bias = bind_vector(b, BIND_MUST, p->dim, "blk.%u.indexer.k_norm.bias", l),
    };

    model_add(m, &keys);
    model_add(m,
              &(struct model_op){
                  .kind = OP_POOL_INDEX,
                  .layer = l,
                  .index = p->n_layer++,
                  .norm = layer_vector(b, l, "attn_q_a_norm", rank),
                  .w = {layer_matrix(b, l, "indexer.attn_q_b", rank, (uint64_t)p->n_head * p->dim)},
              });
    m->shape.state.n_more += 2ull * pool_rows(&m->shape, &keys) * p->dim;
}

/* Sees the keys that the last indexer chose (decoder_mixer). The file may have an indexer for the
 * layer, which is not used. */
static void glm5_share(struct binder *b, struct model *m, uint32_t l) {
    char prefix[32];

    if (!m->shape.sparse.n_layer)
        bind_refuse(b, "layer %u has no indexer, and no layer before it has one", l);
    snprintf(prefix, sizeof(prefix), "blk.%u.indexer", l);
    bind_ignore(b, prefix);
}

/* Sets the limits of the activations of layer @l in the ops from @first on. */
static void glm5_limit(struct model *m, uint32_t first, const struct limits *limits, uint32_t l) {
    limits_set(m, first, limits, l);
    for (uint32_t i = first; i < m->n_ops; i++) {
        struct model_op *op = &m->op[i];

        if ((op->kind == OP_GATE_UP || op->kind == OP_EXPERTS) && op->ffn.limit > 0)
            op->ffn.glu = GLU_CUT;
    }
}

/* Reads all hyperparameters that other models do not have, and the key heads of layers. */
static void glm5_read(struct binder *b, struct model *m, uint32_t n_kv[MODEL_LAYERS_MAX]) {
    const struct kda_rules rules = {.own_bound = true, .plain = true, .eps = GLM5_UNIT_EPS};

    bailing3_read(b, m, m->shape.n_layer + m->n_mtp, &rules, n_kv);
    glm5_read_indexer(b, &m->shape);
    streams_read(b, &m->shape.stream);
    if (b->r == 0 && m->shape.n_picture)
        bind_refuse(b, "pictures are not supported for %s models", b->arch);
}

void glm5_bind(struct binder *b, struct model *m, const struct decoder *d) {
    uint32_t n_kv[MODEL_LAYERS_MAX], n = m->shape.n_layer;
    bool own[MODEL_LAYERS_MAX];
    struct limits limits;
    struct model_op logits;

    assert(m->n_ops == 0);
    glm5_read(b, m, n_kv);
    limits_read(b, n, &limits);
    bool listed = meta_numbers(b, BIND_MAY, "attention.indexer.types", GGUF_BOOL, n, own);
    decoder_ends(b, m, d, &logits);
    streams_add_out(m, 0, true);
    for (uint32_t i = 0; i < n && b->r == 0; i++) {
        const struct layer l = decoder_layer(m, i);
        const struct latent latent = {.choose = listed && !own[i] ? glm5_share : glm5_choose};

        streams_add_branch(b, m, i, "attn");
        if (n_kv[i] > 0)
            deepseek2_attention(b, m, i, &latent);
        else
            bailing3_kda(b, m, i, true);
        streams_add_out(m, i, false);
        streams_add_branch(b, m, i, "ffn");
        uint32_t first = m->n_ops;
        decoder_mlp(b, m, d, &l);
        glm5_limit(m, first, &limits, i);
        streams_add_out(m, i, false);
    }
    if (b->r == 0 && (!m->shape.state.n_layer || !m->shape.sparse.n_layer))
        bind_refuse(b, "all layers are of one kind: %s models have both kinds", b->arch);
    model_add(m, &(struct model_op){.kind = OP_HC_MEAN, .layer = n});
    model_add(m, &logits);
}

void glm5_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    const struct layer l = decoder_layer(m, index);
    struct limits limits;

    if (b->r < 0)
        return;
    limits_read(b, index + 1, &limits);
    if (b->r < 0)
        return;
    deepseek2_attention(b, m, index, &(struct latent){.choose = glm5_choose});
    uint32_t first = m->n_ops;
    decoder_mlp(b, m, d, &l);
    glm5_limit(m, first, &limits, index);
}
