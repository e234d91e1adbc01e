/*
 * deepseek4 - the ops of DeepSeek-V4-Flash. A layer consists of two branches between HC_IN, which
 * forms the branch's input from the residual streams, and HC_OUT, which adds its output to them:
 *
 *   HC_IN  CSA_IN CSA_Q [COMPRESS [COMPRESS CSA_INDEX]] CSA_ATTEND CSA_OUT .. PROJ   HC_OUT
 *   HC_IN  [GATE_UP PROJ: the shared expert] ROUTE EXPERTS                                 HC_OUT
 *
 * Layers have short blocks of positions, whose compressed keys an indexer picks, long blocks, all
 * of whose compressed keys are seen, or no blocks. The MTP block is one more layer without blocks.
 */

#include "engine/arch/deepseek4.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/mtp.h"
#include "engine/arch/streams.h"
#include "engine/bind/meta.h"
#include "engine/compressed.h"
#include "engine/rope.h"

/* Hyperparameters that differ by layer, or that are not in the shape. */
struct plan {
    /* positions of a block; 0: the layer has no blocks */
    uint32_t block[MODEL_LAYERS_MAX];
    /* number of first layers whose experts are picked by a table */
    uint32_t n_table;
    /* values of a group of heads after its output projection */
    uint32_t n_out;
    /* limits of the activations of experts and of the shared expert; 0: no limit */
    float limit, shared_limit;
};

/* Reads the block sizes of @n layers. The layers from @n_layer on are MTP blocks, which must have
 * the size 0. The file's array may be longer. */
static void read_blocks(struct binder *b, uint32_t n_layer, uint32_t n, uint32_t *out) {
    const char *key = "attention.compress_ratios";
    bool any = false;

    meta_numbers(b, BIND_MUST, key, GGUF_U32, n, out);
    for (uint32_t l = 0; l < n && b->r == 0; l++) {
        uint32_t v = out[l];

        if (v != 0 && (l >= n_layer || (v != BLOCK_SHORT && v != BLOCK_LONG)))
            bind_refuse(b, "'%s' is %u for layer %u; only 0%s supported", meta_key(b, key).s, v, l,
                        l < n_layer ? ", 4 and 128 are" : " is");
        any |= v != 0;
    }
    if (b->r == 0 && !any)
        bind_refuse(b, "'%s' is 0 for all layers, which is not supported", meta_key(b, key).s);
}

/* Reads a limit of activations, which must be the same for all layers. Returns @otherwise if the
 * file has no such key; 0: no limit. */
static float read_limit(struct binder *b, const char *key, uint32_t n_layer, float otherwise) {
    double v = (double)otherwise;
    float limit[MODEL_LAYERS_MAX];

    if (!meta_numbers(b, BIND_MAY, key, GGUF_F32, n_layer, limit)) {
        meta_f32_opt(b, key, 0, 1e6, &v);
        return (float)v;
    }
    bool fits = limit[0] >= 0 && limit[0] <= 1e6f;

    for (uint32_t l = 1; l < n_layer && fits; l++)
        fits = limit[l] == limit[0];
    if (!fits)
        bind_refuse(b, "'%s' must be one limit, the same for all layers", meta_key(b, key).s);
    return limit[0];
}

/* Reads RoPE of layers with blocks (set 1), which have a base of their own and the frequencies of
 * YaRN, but not its factor of magnitudes. */
static void read_rope(struct binder *b, struct model_shape *s) {
    double base = 160000;
    uint32_t n_rot = s->head_dim;

    meta_u32_opt(b, "rope.dimension_count", 2, s->head_dim, &n_rot);
    meta_f32_opt(b, "attention.compress_rope_freq_base", 1.5, 1e12, &base);
    rope_read(b,
              &(struct rope_defaults){.dim = n_rot,
                                      .context = s->max_context,
                                      .base = base,
                                      .suffix = "_compressed",
                                      .scaled = true},
              NULL, &s->rope[1]);
    s->rope[1].mscale = 1;
}

/* Corrects the number of layers: some files count their last layers as MTP blocks although they
 * have the tensors of ordinary layers. */
static void count_layers(const struct gguf *file, struct model *m) {
    char layer[48], block[48];

    snprintf(layer, sizeof(layer), "blk.%u.attn_norm.weight", m->shape.n_layer);
    snprintf(block, sizeof(block), "blk.%u.nextn.enorm.weight", m->shape.n_layer);
    if (m->n_mtp && gguf_find(file, layer) && !gguf_find(file, block)) {
        m->shape.n_layer += m->n_mtp;
        m->n_mtp = 0;
    }
}

/* Reads the plan of @n layers, the last of which may be the MTP block. */
static void deepseek4_read_plan(struct binder *b, const struct model_shape *s, uint32_t n,
                                struct plan *p) {
    meta_u32(b, "attention.output_lora_rank", 1, 1u << 16, &p->n_out);
    meta_u32_opt(b, "hash_layer_count", 0, s->n_layer, &p->n_table);
    read_blocks(b, s->n_layer, n, p->block);
    p->limit = read_limit(b, "swiglu_clamp_exp", n, 0);
    p->shared_limit = read_limit(b, "swiglu_clamp_shexp", n, p->limit);
}

/* Reads and checks all hyperparameters of the model. */
static void deepseek4_read_all(struct binder *b, struct model_shape *s, struct plan *p) {
    struct compressed_shape *c = &s->compressed;
    uint32_t func;

    meta_u32(b, "attention.sliding_window", 1, 4096, &c->window);
    meta_u32(b, "attention.q_lora_rank", 1, 1u << 16, &c->q_rank);
    meta_u32(b, "attention.output_group_count", 1, 256, &c->n_group);
    meta_u32(b, "attention.indexer.head_count", 1, 256, &c->n_index);
    meta_u32(b, "attention.indexer.key_length", 16, 1024, &c->index_dim);
    meta_u32(b, "attention.indexer.top_k", 1, 1u << 20, &c->n_block);
    meta_u32(b, "expert_gating_func", 4, 4, &func);
    meta_refuse_other(b, "leading_dense_block_count", 0);
    s->gating = GATING_ROOT;
    deepseek4_read_plan(b, s, s->n_layer, p);
    streams_read(b, &s->stream);
    read_rope(b, s);
    if (b->r < 0)
        return;
    if (s->n_head_kv != 1 || s->head_dim % 16 || c->index_dim % 16 || s->n_head % c->n_group ||
        s->rope[1].n_rot > c->index_dim)
        bind_refuse(b,
                    "%u heads of %u values in %u groups with %u key heads and an indexer of %u "
                    "values are not supported; one key head, groups of equal size and multiples "
                    "of 16 values, of which the indexer turns all of RoPE's, are needed",
                    s->n_head, s->head_dim, c->n_group, s->n_head_kv, c->index_dim);
    if (b->r == 0 && s->n_picture)
        bind_refuse(b, "pictures are not supported for %s models", b->arch);
    s->state = (struct state_shape){
        .n_out = c->n_group * p->n_out,
        .n_floats = (uint64_t)c->window * s->head_dim,
    };
}

static const struct tensor *attn_norm(struct binder *b, const struct model *m, uint32_t l) {
    return layer_vector(b, l, "attn_norm", m->shape.n_embd);
}

/* Adds a COMPRESS of layer @l: keys of @dim values for blocks of @block positions, from the tensors
 * whose names begin with @what. Returns the op's first_value. */
static uint64_t add_compress(struct binder *b, struct model *m, uint32_t l, uint32_t block,
                             uint32_t dim, const char *what) {
    struct model_shape *s = &m->shape;
    bool is_short = block == BLOCK_SHORT;
    uint64_t width = is_short ? 2ull * dim : dim, n_kept = is_short ? 2 * block : block;
    uint64_t *n_values = is_short ? &s->compressed.n_short : &s->compressed.n_long;
    uint64_t first = *n_values;

    model_add(
        m, &(struct model_op){
               .kind = OP_COMPRESS,
               .layer = l,
               .rope = 1,
               .csa.block = block,
               .csa.first_value = first,
               .more = s->state.n_more,
               .norm = attn_norm(b, m, l),
               .w = {bind_matrix(b, BIND_MUST, s->n_embd, width, "blk.%u.%s_kv.weight", l, what),
                     bind_matrix(b, BIND_MUST, s->n_embd, width, "blk.%u.%s_gate.weight", l, what)},
               .weigh = bind_matrix(b, BIND_MUST, width, block, "blk.%u.%s_ape.weight", l, what),
               .k_norm = bind_vector(b, BIND_MUST, dim, "blk.%u.%s_norm.weight", l, what),
           });
    *n_values += dim;
    s->state.n_more += 2 * n_kept * width;
    return first;
}

/* Adds the indexer of layer @l: the keys of its short blocks, and CSA_INDEX. */
static void add_csa_index(struct binder *b, struct model *m, uint32_t l) {
    const struct compressed_shape *c = &m->shape.compressed;
    uint64_t first = add_compress(b, m, l, BLOCK_SHORT, c->index_dim, "indexer_compressor");

    model_add(m, &(struct model_op){
                     .kind = OP_CSA_INDEX,
                     .layer = l,
                     .rope = 1,
                     .csa.block = BLOCK_SHORT,
                     .csa.first_value = first,
                     .w = {layer_matrix(b, l, "indexer.attn_q_b", c->q_rank,
                                        (uint64_t)c->n_index * c->index_dim)},
                 });
}

/* Adds the output projection of attention: one for each group of heads, then one for all. */
static void deepseek4_add_output(struct binder *b, struct model *m, const struct plan *p,
                                 uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint32_t n_group = s->compressed.n_group;
    uint64_t n_q = (uint64_t)s->n_head * s->head_dim, n_out = (uint64_t)n_group * p->n_out;
    const struct tensor *all = layer_matrix(b, l, "attn_output_a", n_q / n_group, n_out);

    for (uint32_t i = 0; i < n_group; i++)
        model_add(m, &(struct model_op){
                         .kind = OP_CSA_OUT,
                         .layer = l,
                         .part = i,
                         .w = {bind_rows(b, all, (uint64_t)i * p->n_out, p->n_out)},
                     });
    decoder_project(b, m, l, ACT_D, n_out, "attn_output_b", true);
}

/* Adds the attention of layer @l. */
static void deepseek4_add_attention(struct binder *b, struct model *m, const struct plan *p,
                                    uint32_t l) {
    struct model_shape *s = &m->shape;
    const struct compressed_shape *c = &s->compressed;
    uint32_t block = p->block[l];
    uint8_t rope = block > 0;
    bool drafts = l >= s->n_layer;
    const struct model_op keys = {.kind = OP_CSA_KEYS, .layer = l, .more = s->state.n_more};
    uint64_t first = 0, n_q = (uint64_t)s->n_head * s->head_dim;
    enum bind_need index = bind_if(block == BLOCK_SHORT, BIND_MUST);

    model_add(
        m, &(struct model_op){
               .kind = OP_CSA_IN,
               .layer = l,
               .rope = rope,
               .norm = attn_norm(b, m, l),
               .w = {layer_matrix(b, l, "attn_q_a", s->n_embd, c->q_rank),
                     layer_matrix(b, l, "attn_kv", s->n_embd, s->head_dim),
                     bind_matrix(b, index, s->n_embd, c->n_index, "blk.%u.indexer.proj.weight", l)},
               .q_norm = layer_vector(b, l, "attn_q_a_norm", c->q_rank),
               .k_norm = layer_vector(b, l, "attn_kv_a_norm", s->head_dim),
           });
    if (drafts) { /* the MTP block's window follows the layers' data in the state */
        model_add(m, &keys);
        s->state.n_more += (uint64_t)window_rows(s, &keys) * s->head_dim;
    }
    model_add(m, &(struct model_op){
                     .kind = OP_CSA_Q,
                     .layer = l,
                     .rope = rope,
                     .w = {layer_matrix(b, l, "attn_q_b", c->q_rank, n_q)},
                 });
    if (block)
        first = add_compress(b, m, l, block, s->head_dim, "attn_compressor");
    if (block == BLOCK_SHORT)
        add_csa_index(b, m, l);
    model_add(m, &(struct model_op){
                     .kind = OP_CSA_ATTEND,
                     .layer = l,
                     .rope = rope,
                     .csa.block = block,
                     .csa.first_value = first,
                     .csa.state = drafts ? 0 : s->state.n_layer++,
                     .more = keys.more,
                     .heads = {s->n_head, 1, s->head_dim},
                     .sinks = layer_vector(b, l, "attn_sinks", s->n_head),
                 });
    deepseek4_add_output(b, m, p, l);
}

/* Binds the table of layer @l that has the experts of each token, and checks its entries. */
static const struct tensor *bind_picks(struct binder *b, const struct model_shape *s, uint32_t l) {
    const struct tensor *t =
        bind_table(b, s->n_expert_used, s->n_vocab, "blk.%u.ffn_gate_tid2eid.weight", l);

    for (uint64_t i = 0; t && i < t->ne[0] * t->ne[1]; i++) {
        int32_t v;

        memcpy(&v, t->data + 4 * i, 4);
        if (v >= 0 && (uint32_t)v < s->n_expert)
            continue;
        bind_refuse(b, "tensor '%s' has expert %d of %u", t->name, v, s->n_expert);
        return NULL;
    }
    return t;
}

/* Adds b = the output of the shared expert, then b += the outputs of the picked experts. */
static void deepseek4_add_experts(struct binder *b, struct model *m, const struct plan *p,
                                  uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_expert, n_ff = s->n_ff_expert, n_all = m->n_ff_common;
    bool by_token = l < p->n_table;
    const struct tensor *norm = layer_vector(b, l, "ffn_norm", s->n_embd);

    if (n_all) {
        model_add(m, &(struct model_op){
                         .kind = OP_GATE_UP,
                         .layer = l,
                         .ffn.glu = p->shared_limit > 0 ? GLU_CUT : GLU_SILU,
                         .ffn.limit = p->shared_limit,
                         .norm = norm,
                         .w = {layer_matrix(b, l, "ffn_gate_shexp", s->n_embd, n_all),
                               layer_matrix(b, l, "ffn_up_shexp", s->n_embd, n_all)},
                     });
        decoder_project(b, m, l, ACT_H, n_all, "ffn_down_shexp", true);
    }
    model_add(m, &(struct model_op){
                     .kind = OP_ROUTE,
                     .layer = l,
                     .norm = norm,
                     .picks = by_token ? bind_picks(b, s, l) : NULL,
                     .w = {layer_matrix(b, l, "ffn_gate_inp", s->n_embd, n)},
                     .pick_bias = bind_vector(b, bind_if(!by_token, BIND_MUST), n,
                                              "blk.%u.exp_probs_b.bias", l),
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_EXPERTS,
                     .layer = l,
                     .branch = true,
                     .ffn.glu = p->limit > 0 ? GLU_CUT : GLU_SILU,
                     .ffn.limit = p->limit,
                     .w = {layer_matrices(b, l, "ffn_gate_exps", s->n_embd, n_ff, n),
                           layer_matrices(b, l, "ffn_up_exps", s->n_embd, n_ff, n),
                           layer_matrices(b, l, "ffn_down_exps", n_ff, s->n_embd, n)},
                 });
}

static void add_layer(struct binder *b, struct model *m, const struct plan *p, uint32_t l) {
    streams_add_branch(b, m, l, "attn");
    deepseek4_add_attention(b, m, p, l);
    streams_add_out(m, l, false);
    streams_add_branch(b, m, l, "ffn");
    deepseek4_add_experts(b, m, p, l);
    streams_add_out(m, l, false);
}

void deepseek4_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    struct plan p = {0};
    struct model_op logits;

    assert(m->n_ops == 0);
    count_layers(b->file, m);
    deepseek4_read_all(b, s, &p);
    decoder_ends(b, m, d, &logits);
    streams_add_out(m, 0, true);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++)
        add_layer(b, m, &p, i);
    streams_add_in(b, m, s->n_layer, "output_hc", true);
    model_add(m, &logits);
}

/* -- the MTP block ----------------------------------------------------------------------------- */

/* Adds the end of MTP block @l: @end, the last HC_IN, KEEP and LOGITS of the model, with the
 * block's own tensors where the file has them. */
static void add_draft_out(struct binder *b, struct model *m, uint32_t l,
                          const struct model_op end[3]) {
    uint64_t n = m->shape.n_embd;
    const struct tensor *norm =
        bind_vector(b, BIND_MAY, n, "blk.%u.nextn.shared_head_norm.weight", l);
    const struct tensor *head =
        bind_matrix(b, BIND_MAY, n, m->shape.n_vocab, "blk.%u.nextn.shared_head_head.weight", l);
    struct model_op logits = end[2];
    char name[40], own[64];

    snprintf(name, sizeof(name), "blk.%u.nextn.hc_head", l);
    snprintf(own, sizeof(own), "%s_fn.weight", name);
    if (gguf_find(b->file, own))
        streams_add_in(b, m, l, name, true);
    else
        model_add(m, &end[0]);
    if (norm)
        logits.norm = norm;
    if (head)
        logits.w[0] = head;
    model_add(m, &end[1]);
    model_add(m, &logits);
}

/* Divides the ops into passes. The MTP block begins at op @begin; pass 0 computes its ops up to
 * CSA_KEYS, and the draft pass all of them. */
static void deepseek4_divide(struct model *m, uint32_t begin) {
    uint32_t queries = begin;

    while (m->op[queries].kind != OP_CSA_Q)
        queries++;
    m->pass[PASS_MODEL].run[0].end = queries;
    m->pass[PASS_HOLES] = m->pass[PASS_MODEL];
    m->pass[PASS_DRAFT].run[0] = (struct op_run){begin, queries};
    m->pass[PASS_DRAFT].run[1] = (struct op_run){queries, m->n_ops};
    m->shape.drafts = 1;
    m->shape.keeps_streams = true;
}

void deepseek4_block(struct binder *b, struct model *m) {
    uint32_t l = m->shape.n_layer, begin;
    struct plan p = {0};

    if (b->r < 0 || m->r < 0)
        return;
    deepseek4_read_plan(b, &m->shape, l + 1, &p);
    mtp_keep(m, true);
    if (b->r < 0 || m->r < 0)
        return;
    m->op[m->n_ops - 2].keep.streams = true;
    const struct model_op end[3] = {m->op[m->n_ops - 3], m->op[m->n_ops - 2], m->op[m->n_ops - 1]};
    begin = m->n_ops;
    mtp_begin(b, m, 0, true);
    add_layer(b, m, &p, l);
    add_draft_out(b, m, l, end);
    if (b->r == 0 && m->r == 0)
        deepseek4_divide(m, begin);
}
