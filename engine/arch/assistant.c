/*
 * assistant - pass 1 of a Gemma 4 model from its assistant's file.
 *
 * B is the model's width, E the assistant's width, t the token at position n, and h the model's
 * hidden state of position n - 1, the output of its final norm:
 *
 *   x = pre_projection (sqrt(B) embed(t), h)               embed: the model's embedding
 *   layers like the model's dense layers, of width E, without keys of their own: layers with a
 *     window read the keys and values of the model's last layer but one, other layers those of its
 *     last layer
 *   y = output_norm x,   logits = token_embd y,   h' = post_projection y
 *
 * The next draft is computed from the drafted token and h' in place of t and h. All drafts of a
 * sequence are computed at position n. The model has not computed the key of this position, so the
 * drafts see only the keys before it (attn.before).
 *
 * Assistants of E2B and E4B also have the tensors masked_embd_centroids [C, E] and
 * masked_embd_ordering, which assign each token to one of C clusters: only the tokens of the 32
 * clusters whose centroids have the largest products with y need logits. These tensors are not
 * read, because computing all logits takes less than 2 % of a step, and the best of all tokens is
 * at least as good a draft as the best of some.
 *
 *   pass 0  EMBED .. layers .. KEEP LOGITS
 *   pass 1  EMBED DRAFT_IN  QKV ATTEND PROJ GATE_UP PROJ ..  KEEP LOGITS
 */

#include "engine/arch/assistant.h"

#include <assert.h>
#include <string.h>

#include "engine/arch/gemma4.h"
#include "engine/arch/mtp.h"
#include "engine/arch/window.h"
#include "engine/archs.h"
#include "engine/rope.h"

/* Hyperparameters of the assistant. has and source have an element for layers without a window (0)
 * and one for layers with a window (1). */
struct plan {
    uint32_t n_layer, n_embd;
    uint32_t n_head[MODEL_LAYERS_MAX], n_head_kv[MODEL_LAYERS_MAX], n_ff[MODEL_LAYERS_MAX];
    /* has: the assistant has such layers */
    bool in_window[MODEL_LAYERS_MAX], has[2];
    /* ATTEND ops of the model whose keys they read */
    struct model_op source[2];
};

bool assistant_found(const struct gguf *file) {
    return meta_is_arch(file, ASSISTANT_ARCH);
}

/* Sets p->source to the ATTEND ops of the model's last two layers. */
static void assistant_find_source(struct binder *b, const struct model *m, struct plan *p) {
    uint32_t n = m->shape.n_layer;

    for (uint32_t i = 0; i < m->n_ops; i++)
        if (m->op[i].kind == OP_ATTEND && m->op[i].layer + 2 >= n)
            p->source[m->op[i].layer + 2 == n] = m->op[i];
    if (b->r == 0 &&
        (!p->source[1].attn.window || p->source[0].attn.window || p->source[0].kind != OP_ATTEND))
        bind_refuse(b, "the assistant reads the keys of the model's last two layers, which must "
                       "be one with a window and one without");
}

/* Checks that each layer's heads fit the key heads that it reads, and sets p->has. */
static void check_layers(struct binder *b, struct plan *p) {
    for (uint32_t l = 0; l < p->n_layer && b->r == 0; l++) {
        uint32_t n_kv = p->source[p->in_window[l]].heads.n_kv;

        p->has[p->in_window[l]] = true;
        if (p->n_head_kv[l] != n_kv)
            bind_refuse(b, "layer %u reads %u key heads, and the model has %u", l, p->n_head_kv[l],
                        n_kv);
        else if (p->n_head[l] % n_kv)
            bind_refuse(b, "layer %u: %u heads cannot share %u key heads evenly", l, p->n_head[l],
                        n_kv);
    }
}

/* Reads the hyperparameters of the file, and checks those that must equal the model's. */
static void assistant_read_plan(struct binder *b, const struct model *m, struct plan *p) {
    const struct model_shape *s = &m->shape;
    uint32_t window = 0;
    double eps = (double)s->rms_eps;

    assistant_find_source(b, m, p);
    meta_u32(b, "block_count", 1, MODEL_LAYERS_MAX, &p->n_layer);
    meta_must_be(b, "embedding_length_out", s->n_embd);
    meta_u32(b, "embedding_length", 1, s->n_embd, &p->n_embd);
    meta_must_be(b, "vocab_size", s->n_vocab);
    meta_must_be(b, "attention.key_length", p->source[0].heads.dim);
    meta_must_be(b, "attention.key_length_swa", p->source[1].heads.dim);
    meta_must_be(b, "attention.sliding_window", p->source[1].attn.window);
    meta_f32_opt(b, "attention.layer_norm_rms_epsilon", 0, 0.1, &eps);
    if (b->r == 0 && (float)eps != s->rms_eps)
        bind_refuse(b, "'%s.attention.layer_norm_rms_epsilon' differs from the model's", b->arch);
    meta_u32_layers(b, "attention.head_count", 1, 1u << 12, p->n_layer, p->n_head);
    meta_u32_layers(b, "attention.head_count_kv", 1, 1u << 12, p->n_layer, p->n_head_kv);
    meta_u32_layers(b, "feed_forward_length", 1, 1u << 20, p->n_layer, p->n_ff);
    window_read(b, p->n_layer, p->n_layer, p->in_window, &window);
    check_layers(b, p);
}

/* Returns true if @a and @b rotate heads by the same angles. */
static bool same_rope(const struct rope_set *a, const struct rope_set *b) {
    return a->n_rot == b->n_rot && a->mscale == b->mscale &&
           (!a->n_rot || memcmp(a->freq, b->freq, a->n_rot / 2 * sizeof(*a->freq)) == 0);
}

/* Checks that the assistant's RoPE, which queries get, is that of the model's keys. */
static void check_rope(struct binder *b, const struct model *m, const struct plan *p) {
    for (uint32_t k = 0; k < 2; k++) {
        const struct tensor *divisors = NULL;
        struct rope_set own = {0};

        if (!k)
            divisors = bind_any(b, "rope_freqs.weight");
        if (!p->has[k] || b->r < 0)
            continue;
        rope_read(b,
                  &(struct rope_defaults){.dim = p->source[k].heads.dim,
                                          .context = m->shape.max_context,
                                          .base = 10000,
                                          .suffix = k ? "_swa" : "",
                                          .scaled = !k},
                  divisors, &own);
        if (b->r == 0 && !same_rope(&own, &m->shape.rope[k]))
            bind_refuse(b,
                        "its layers with%s a window have other rotary positions than the "
                        "model's",
                        k ? "" : "out");
        free((void *)own.freq);
    }
}

/* Binds layer @l: attention to the model's keys, and a dense FFN. */
static void assistant_bind_layer(struct binder *b, struct model *own, const struct decoder *d,
                                 const struct plan *p, uint32_t l) {
    const struct model_op *source = &p->source[p->in_window[l]];
    struct layer layer = {
        .index = l,
        .heads = {p->n_head[l], source->heads.n_kv, source->heads.dim},
        .attn = source->attn,
        .rope = p->in_window[l],
        .n_ff = p->n_ff[l],
        .kv = &source->kv,
    };

    assert(source->kind == OP_ATTEND && l < MODEL_LAYERS_MAX);
    layer.attn.before = true;
    decoder_attention(b, own, d, &layer);
    decoder_ffn(b, own, d, &layer);
    gemma4_scale_layer(b, own, l);
}

/* Binds the ops that follow DRAFT_IN, as those of a model of width E. */
static void bind_own(struct binder *b, struct model *own, const struct decoder *d,
                     const struct plan *p, uint64_t n_embd, uint64_t n_vocab) {
    for (uint32_t l = 0; l < p->n_layer && b->r == 0; l++)
        assistant_bind_layer(b, own, d, p, l);
    model_add(own, &(struct model_op){
                       .kind = OP_KEEP,
                       .layer = p->n_layer,
                       .norm = bind_vector(b, BIND_MUST, p->n_embd, "output_norm.weight"),
                       .w = {bind_matrix(b, BIND_MUST, p->n_embd, n_embd,
                                         "nextn.post_projection.weight")},
                   });
    model_add(own, &(struct model_op){
                       .kind = OP_LOGITS,
                       .w = {bind_matrix(b, BIND_MUST, p->n_embd, n_vocab, "token_embd.weight")},
                   });
}

void assistant_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct plan p = {0};
    uint64_t n = m->shape.n_embd;

    if (b->r < 0 || m->r < 0)
        return;
    assistant_read_plan(b, m, &p);
    check_rope(b, m, &p);
    if (b->r < 0)
        return;
    mtp_keep(m, false);
    assert(m->r < 0 || m->op[m->n_ops - 1].kind == OP_LOGITS);
    struct op_run run = {m->n_ops, 0};
    m->pass[PASS_MODEL].run[0].end = run.begin;
    struct model_op embed = m->op[0];
    model_add(m, &embed);
    model_add(m,
              &(struct model_op){
                  .kind = OP_DRAFT_IN,
                  .w = {bind_matrix(b, BIND_MUST, 2 * n, p.n_embd, "nextn.pre_projection.weight")},
              });
    bind_ignore(b, "masked_embd_");
    struct model own = {.arch = ASSISTANT_ARCH, .shape.n_embd = p.n_embd};
    bind_own(b, &own, d, &p, n, m->shape.n_vocab);
    for (uint32_t i = 0; i < own.n_ops; i++)
        model_add(m, &own.op[i]);
    if (m->r >= 0)
        m->r = own.r;
    model_deinit(&own);
    run.end = m->n_ops;
    m->pass[PASS_DRAFT].run[0] = run;
    m->shape.drafts = 1;
    m->shape.borrows = true;
}
