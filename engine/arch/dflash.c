/*
 * dflash - pass 1 of a model from the file of a block drafter (DFlash, 2026).
 *
 * The drafter reads the inputs of some layers of the model. Let f be these inputs of a position,
 * concatenated. Each layer of the drafter has a key and a value for every position that the model
 * has computed:
 *
 *   g = fc f,   y = enc.output_norm g,   k = rope(attn_k_norm(attn_k y)),   v = attn_v y
 *
 * A block consists of the newest token, at position n, which the model has not computed yet, and of
 * mask tokens at the positions after it. The rows of a block attend to all keys before n and, in
 * both directions, to the keys of the block. The logits at position n + i, i > 0, predict the token
 * at that position.
 *
 * There are two variants. DFlash2 has convolutions over the block before and after each branch, and
 * a selector of tokens (BLOCK_IN, BLOCK_OUT, SELECT). DSpark adds a product of two matrices, which
 * depends on the previous token, to the logits (CHAIN), and its logits at n + i may predict the
 * token after that position (first_draft). Its estimate of whether a token will be accepted is not
 * read.
 *
 *   pass 0  EMBED .. TAP .. TAP .. LOGITS  FUSE KEYS KEYS ..
 *   pass 1  EMBED  QKV ATTEND PROJ GATE_UP PROJ ..  LOGITS
 *
 * Pass 1 writes the block's own keys to the pages, at the positions of the block; pass 0 overwrites
 * them when it computes these positions. Layers of the drafter with a window have all their keys in
 * the pages of KV_GLOBAL, like its other layers.
 */

#include "engine/arch/dflash.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/gemma4.h"
#include "engine/arch/window.h"
#include "engine/archs.h"
#include "engine/rope.h"

enum { TAPS_MAX = 32 };
#define CHAIN_TABLE "markov_w1.weight"

/* Hyperparameters of the drafter. */
struct plan {
    uint32_t n_layer, n_ff, window;
    struct heads heads;
    bool in_window[MODEL_LAYERS_MAX];
    /* scale of scores and of the embedding; cap of logits */
    float scale, embedding_scale, cap;
    /* layers of the model whose inputs are read */
    uint32_t n_taps, tap[TAPS_MAX];
    uint32_t n_block, mask, first_draft;
    bool causal;
    enum glu glu;
    struct block_shape block;
};

bool dflash_found(const struct gguf *file) {
    return meta_is_arch(file, DFLASH_ARCH);
}

/* Refuses models with which a drafter cannot work, and a drafter whose vocabulary is not the
 * model's. */
static void check_model(struct binder *b, const struct model *m) {
    const char *what = NULL;

    if (m->shape.stream.n)
        what = "residual streams";
    else if (m->shape.rope_type != ROPE_NEOX)
        what = "rotary positions of neighbours";
    else if (m->op[m->n_ops - 1].kind != OP_LOGITS)
        what = "no logits";
    if (b->r == 0 && what)
        bind_refuse(b, "a block drafter for %s, which has %s, is not supported", m->arch, what);
    if (b->r == 0 && gguf_find(b->file, "d2t"))
        bind_refuse(b, "a block drafter with a vocabulary of its own (tensor 'd2t') is not "
                       "supported");
}

/* Reads the numbers of the model's layers whose inputs are read, in the order in which FUSE
 * multiplies them. The number of layers stands for the output of the last layer. */
static void read_taps(struct binder *b, const struct model *m, struct plan *p) {
    const struct gguf_array *a = gguf_array(b->file, DFLASH_ARCH ".target_layers");
    uint64_t n = 0;

    if (a && gguf_array_type(a) != GGUF_STRING)
        n = gguf_array_n(a);
    if (b->r == 0 && (n == 0 || n > TAPS_MAX))
        bind_refuse(b, "'" DFLASH_ARCH ".target_layers' has %llu layers; 1 to %d are needed",
                    (unsigned long long)n, TAPS_MAX);
    for (uint32_t i = 0; i < n && b->r == 0; i++) {
        uint32_t v;

        if (gguf_array_read(a, GGUF_U32, i, 1, &v) < 1 || v < 1 || v > m->shape.n_layer)
            bind_refuse(b, "the drafter reads the input of layer %g, and the model has %u layers",
                        gguf_array_num(a, i), m->shape.n_layer);
        else
            p->tap[p->n_taps++] = v;
    }
}

/* Reads the mask token, which stands for the tokens of a block that are to be drafted. */
static void read_mask(struct binder *b, const struct model *m, struct plan *p) {
    uint32_t v;

    if (b->r < 0)
        return;
    if (gguf_u32(b->file, "tokenizer.ggml.mask_token_id", &v) < 0 || v >= m->shape.n_vocab)
        bind_refuse(
            b, "the drafter's file names no token of the model as 'tokenizer.ggml.mask_token_id'");
    else
        p->mask = v;
}

/* Reads the activation function of the FFNs; the default is silu. */
static void read_glu(struct binder *b, struct plan *p) {
    char act[32] = "";

    meta_string(b, "hidden_act", act, sizeof(act));
    if (strncmp(act, "gelu", 4) == 0)
        p->glu = GLU_GELU;
    else
        p->glu = GLU_SILU;
    if (b->r == 0 && act[0] && p->glu == GLU_SILU && strcmp(act, "silu") != 0)
        bind_refuse(b, "'" DFLASH_ARCH ".hidden_act' is '%s'; silu and gelu are supported", act);
}

/* Reads the sizes of the convolutions and the selector, if the file has those of DFlash2. */
static void read_block(struct binder *b, const struct model *m, struct plan *p) {
    struct block_shape *s = &p->block;

    if (!gguf_find(b->file, "selector_hidden.weight"))
        return;
    meta_u32(b, "conv_kernel_size", 1, 8, &s->kernel);
    meta_u32(b, "conv_group_size", 1, m->shape.n_embd, &s->group);
    meta_u32(b, "selector_rank", 1, 4096, &s->rank);
    meta_u32(b, "selector_top_k", 1, MIN(64, m->shape.n_vocab), &s->top_k);
    if (b->r == 0 && m->shape.n_embd % s->group)
        bind_refuse(b, "%u channels in groups of %u are not supported", m->shape.n_embd, s->group);
}

/* Reads the rank of CHAIN and the first draft, if the file has the table of DSpark. */
static void read_chain(struct binder *b, struct plan *p) {
    const struct tensor *table = gguf_find(b->file, CHAIN_TABLE);
    bool anchor = true;

    p->first_draft = 1;
    if (b->r < 0 || !table)
        return;
    if (p->block.rank || table->ne[0] > 4096) {
        bind_refuse(b, "a block drafter with a Markov head of rank %llu%s is not supported",
                    (unsigned long long)table->ne[0], p->block.rank ? " and a selector" : "");
        return;
    }
    gguf_bool(b->file, DFLASH_ARCH ".sample_from_anchor", &anchor);
    p->first_draft = !anchor;
    p->block.rank = (uint32_t)table->ne[0];
}

/* Reads and checks all hyperparameters of the drafter. */
static void dflash_read_plan(struct binder *b, const struct model *m, struct plan *p) {
    const struct model_shape *s = &m->shape;
    double eps = (double)s->rms_eps, scale = 0, embedding = 1, cap = 0, logits = 1;
    uint32_t n_value, window = 0;

    check_model(b, m);
    meta_u32(b, "block_count", 1, MODEL_LAYERS_MAX, &p->n_layer);
    meta_must_be(b, "embedding_length", s->n_embd);
    meta_must_be(b, "vocab_size", s->n_vocab);
    meta_u32(b, "feed_forward_length", 1, 1u << 20, &p->n_ff);
    meta_u32(b, "attention.head_count", 1, 1u << 12, &p->heads.n);
    p->heads.n_kv = p->heads.n;
    meta_u32_opt(b, "attention.head_count_kv", 1, p->heads.n, &p->heads.n_kv);
    meta_u32(b, "attention.key_length", 2, 1024, &p->heads.dim);
    n_value = p->heads.dim;
    meta_u32_opt(b, "attention.value_length", 1, 1024, &n_value);
    meta_u32(b, "block_size", 2, ENGINE_DRAFT_MAX, &p->n_block);
    meta_f32_opt(b, "attention.layer_norm_rms_epsilon", 0, 0.1, &eps);
    meta_f32_opt(b, "attention.scale", 0, 1e3, &scale);
    meta_f32_opt(b, "embedding_scale", 0, 1e6, &embedding);
    meta_f32_opt(b, "final_logit_softcapping", 0, 1e6, &cap);
    meta_f32_opt(b, "logit_scale", 0, 1e6, &logits);
    gguf_bool(b->file, DFLASH_ARCH ".attention.causal", &p->causal);
    if (gguf_array(b->file, DFLASH_ARCH ".attention.sliding_window_pattern"))
        window_read(b, p->n_layer, p->n_layer, p->in_window, &window);
    read_taps(b, m, p);
    read_mask(b, m, p);
    read_glu(b, p);
    read_block(b, m, p);
    read_chain(b, p);
    if (b->r < 0)
        return;
    p->window = window;
    p->embedding_scale = (float)embedding;
    p->cap = (float)cap;
    if (scale > 0)
        p->scale = (float)scale;
    else
        p->scale = 1 / sqrtf((float)p->heads.dim);
    if ((float)eps != s->rms_eps)
        bind_refuse(b,
                    "'" DFLASH_ARCH ".attention.layer_norm_rms_epsilon' differs from the model's");
    else if (p->heads.n % p->heads.n_kv || p->heads.dim % 2 || n_value != p->heads.dim)
        bind_refuse(b,
                    "%u heads of %u and %u values with %u key heads are not supported; key "
                    "heads that divide the heads and one even number of values are needed",
                    p->heads.n, p->heads.dim, n_value, p->heads.n_kv);
    else if (logits != 1)
        bind_refuse(b, "'" DFLASH_ARCH ".logit_scale' is not supported");
}

/* Moves the last op to index @at. */
static void move_last(struct model *m, uint32_t at) {
    struct model_op last = m->op[m->n_ops - 1];

    if (m->r < 0)
        return;
    memmove(&m->op[at + 1], &m->op[at], (m->n_ops - 1 - at) * sizeof(last));
    m->op[at] = last;
}

/* Returns @name if the first layer has a tensor of this name, else NULL. */
static const char *if_there(const struct binder *b, const char *name) {
    char full[64];

    snprintf(full, sizeof(full), "blk.0.%s.weight", name);
    if (gguf_find(b->file, full))
        return name;
    return NULL;
}

/* Binds the base taps of a convolution of layer @l, [side][tap][channel], as one row. */
static const struct tensor *bind_base(struct binder *b, const struct plan *p, uint64_t n,
                                      const char *part, uint32_t l) {
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.%s_conv_base", l, part);
    const struct tensor *t = bind_any(b, name);
    if (b->r < 0)
        return NULL;
    if (!t || t->ne[0] != n || t->ne[1] != p->block.kernel || t->ne[2] != 2 || t->ne[3] != 1 ||
        t->format->block != 1) {
        bind_refuse(b, "the file has no tensor '%s' of %llu x %u x 2 values", name,
                    (unsigned long long)n, p->block.kernel);
        return NULL;
    }
    struct tensor flat = *t;
    flat.ne[1] *= flat.ne[2];
    flat.ne[2] = 1;
    return bind_flat(b, &flat);
}

/* Adds convolutions of the input and of the output of the branch whose ops begin at @first and end
 * with the last op. BLOCK_IN takes over the norm before the branch, BLOCK_OUT the norm after it. */
static void dflash_convolve(struct binder *b, struct model *m, const struct plan *p,
                            const char *part, uint32_t l, uint32_t first) {
    uint64_t n = m->shape.n_embd;

    if (b->r < 0 || m->r < 0)
        return;
    const struct tensor *base = bind_base(b, p, n, part, l);
    struct model_op *last = &m->op[m->n_ops - 1];
    struct model_op in = {
        .kind = OP_BLOCK_IN,
        .layer = l,
        .norm = m->op[first].norm,
        .weigh = base,
        .w = {bind_matrix(b, BIND_MUST, n, 2ull * p->block.kernel * (n / p->block.group),
                          "blk.%u.%s_conv_proj.weight", l, part)},
    };
    struct model_op out = {
        .kind = OP_BLOCK_OUT, .layer = l, .weigh = base, .post_norm = last->post_norm};

    assert(last->kind == OP_PROJ && last->scale == 1);
    last->branch = true;
    last->post_norm = NULL;
    m->op[first].norm = NULL;
    model_add(m, &out);
    model_add(m, &in);
    move_last(m, first);
}

/* Adds layer @l of the drafter. */
static void dflash_bind_layer(struct binder *b, struct model *m, const struct plan *p, uint32_t l) {
    const struct decoder d = {
        .qk_norm = BIND_MUST,
        .sinks = BIND_MAY,
        .glu = p->glu,
        .attn_post_norm = if_there(b, "post_attention_norm"),
        .ffn_post_norm = if_there(b, "post_ffw_norm"),
    };
    struct layer layer = {
        .index = l,
        .heads = p->heads,
        .attn = {.scale = p->scale, .whole = !p->causal},
        .rope = ROPE_DRAFT,
        .n_ff = p->n_ff,
    };

    uint32_t first = m->n_ops;
    decoder_attention(b, m, &d, &layer);
    for (uint32_t i = m->n_ops; i-- > 0 && p->in_window[l];)
        if (m->op[i].kind == OP_ATTEND) {
            m->op[i].attn.window = p->window; /* the keys stay in KV_GLOBAL */
            break;
        }
    if (p->block.kernel)
        dflash_convolve(b, m, p, "attn", l, first);
    first = m->n_ops;
    decoder_ffn(b, m, &d, &layer);
    if (p->block.kernel)
        dflash_convolve(b, m, p, "ffn", l, first);
    gemma4_scale_layer(b, m, l);
}

/* Adds pass 1 without the keys of pass 0: the embedding (the drafter's, or else the model's), the
 * layers and the logits. */
static void dflash_bind_block(struct binder *b, struct model *m, const struct plan *p) {
    uint64_t n = m->shape.n_embd, n_vocab = m->shape.n_vocab;
    const struct model_op of_model = m->op[m->n_ops - 1];
    const struct tensor *embed = bind_matrix(b, BIND_MAY, n, n_vocab, "token_embd.weight");
    const struct tensor *output = bind_matrix(b, BIND_MAY, n, n_vocab, "output.weight");

    model_add(m, &(struct model_op){.kind = OP_EMBED,
                                    .w = {embed ? embed : m->op[0].w[0]},
                                    .scale = p->embedding_scale});
    for (uint32_t l = 0; l < p->n_layer && b->r == 0; l++)
        dflash_bind_layer(b, m, p, l);
    const struct tensor *norm = bind_vector(b, BIND_MUST, n, "output_norm.weight");
    uint32_t rank = p->block.rank;
    model_add(m, &(struct model_op){
                     .kind = OP_LOGITS,
                     .norm = norm,
                     .w = {output ? output : of_model.w[0]},
                     .cap = p->cap,
                 });
    if (p->block.top_k)
        model_add(m,
                  &(struct model_op){
                      .kind = OP_SELECT,
                      .norm = norm,
                      .w = {bind_matrix(b, BIND_MUST, n, rank, "selector_hidden.weight"),
                            bind_matrix(b, BIND_MUST, rank, n_vocab, "selector_predecessor.weight"),
                            bind_matrix(b, BIND_MUST, rank, n_vocab, "selector_successor.weight")},
                  });
    if (rank == 0 || p->block.top_k)
        return;
    model_add(m, &(struct model_op){
                     .kind = OP_CHAIN,
                     .w = {bind_matrix(b, BIND_MUST, rank, n_vocab, "markov_w2.weight"),
                           bind_matrix(b, BIND_MUST, rank, n_vocab, CHAIN_TABLE)},
                 });
    bind_ignore(b, "conf_proj.");
}

/* Inserts FUSE and the KEYS of each layer, which belong to pass 0, before the ops of pass 1, which
 * begin at @at. Returns the index at which pass 1 then begins. */
static uint32_t bind_keys(struct binder *b, struct model *m, const struct plan *p, uint32_t at) {
    uint64_t n = m->shape.n_embd;
    const struct tensor *norm = bind_vector(b, BIND_MUST, n, "enc.output_norm.weight");

    model_add(m,
              &(struct model_op){.kind = OP_FUSE,
                                 .w = {bind_matrix(b, BIND_MUST, p->n_taps * n, n, "fc.weight")}});
    move_last(m, at++);
    for (uint32_t i = at; i < m->n_ops && m->r == 0; i++) {
        const struct model_op qkv = m->op[i];

        if (qkv.kind != OP_QKV)
            continue;
        model_add(m, &(struct model_op){
                         .kind = OP_KEYS,
                         .layer = qkv.layer,
                         .kv = qkv.kv,
                         .heads = qkv.heads,
                         .rope = qkv.rope,
                         .norm = norm,
                         .k_norm = qkv.k_norm,
                         .w = {qkv.w[1], qkv.w[2]},
                     });
        move_last(m, at++);
        i++;
    }
    return at;
}

/* Returns the index of the op before which x is the input of layer @l: the first op of the layer,
 * or @end, that of LOGITS. */
static uint32_t dflash_input(const struct model *m, uint32_t l, uint32_t end) {
    uint32_t i = 1;

    while (i < end && (m->op[i].layer != l || m->op[i].kind == OP_LAYER_INPUT))
        i++;
    return i;
}

void dflash_bind(struct binder *b, struct model *m) {
    struct plan p = {0};
    uint32_t at = m->n_ops, logits = m->n_ops - 1;

    if (b->r < 0 || m->r < 0)
        return;
    dflash_read_plan(b, m, &p);
    rope_read(b,
              &(struct rope_defaults){.dim = p.heads.dim,
                                      .context = m->shape.max_context,
                                      .base = 10000,
                                      .suffix = "",
                                      .scaled = true},
              bind_any(b, "rope_freqs.weight"), &m->shape.rope[ROPE_DRAFT]);
    if (b->r < 0)
        return;
    m->scale.residual = 0; /* the drafter's ops have no factors; the model's have theirs already */
    m->temper.slope = 0;
    dflash_bind_block(b, m, &p);
    if (b->r < 0 || m->r < 0)
        return;
    at = bind_keys(b, m, &p, at);
    for (uint32_t i = logits + 1; i < m->n_ops; i++)
        m->op[i].layer += m->shape.n_layer; /* numbered after the model's layers */
    for (uint32_t i = 0; i < p.n_taps && m->r == 0; i++) {
        uint32_t to = dflash_input(m, p.tap[i], logits);

        model_add(m, &(struct model_op){.kind = OP_TAP, .layer = p.tap[i], .part = i});
        move_last(m, to);
        logits++;
        at++;
    }
    m->pass[PASS_MODEL].run[0].end = at;
    m->pass[PASS_DRAFT].run[0] = (struct op_run){at, m->n_ops};
    m->shape.drafts = 1;
    m->shape.n_taps = p.n_taps;
    m->shape.n_block = p.n_block;
    m->shape.first_draft = p.first_draft;
    m->shape.mask_token = (int32_t)p.mask;
    m->shape.block = p.block;
}
