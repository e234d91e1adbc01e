#include "engine/arch/decoder.h"

#include <assert.h>
#include "engine/bind.h"

void decoder_ends(struct binder *b, struct model *m, struct model_op *logits) {
    const struct model_shape *s = &m->shape;
    const struct tensor *embed =
        bind_matrix(b, BIND_MUST, s->n_embd, s->n_vocab, "token_embd.weight");
    const struct tensor *output = bind_matrix(b, BIND_MAY, s->n_embd, s->n_vocab, "output.weight");

    model_add(m, &(struct model_op){.kind = OP_EMBED, .w = {embed}});
    *logits = (struct model_op){
        .kind = OP_LOGITS,
        .norm = bind_vector(b, BIND_MUST, s->n_embd, "output_norm.weight"),
        .w = {output ? output : embed},
    };
}

void decoder_attention(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t n_q = (uint64_t)s->n_head * s->head_dim, n_kv = (uint64_t)s->n_head_kv * s->head_dim;
    uint64_t n_rows = d->gated ? 2 * n_q : n_q;
    const struct kv_layer kv = model_add_kv(m, KV_GLOBAL);

    model_add(m,
              &(struct model_op){
                  .kind = OP_QKV,
                  .layer = l,
                  .kv = kv,
                  .gated = d->gated,
                  .norm = bind_vector(b, BIND_MUST, s->n_embd, "blk.%u.attn_norm.weight", l),
                  .w = {bind_matrix(b, BIND_MUST, s->n_embd, n_rows, "blk.%u.attn_q.weight", l),
                        bind_matrix(b, BIND_MUST, s->n_embd, n_kv, "blk.%u.attn_k.weight", l),
                        bind_matrix(b, BIND_MUST, s->n_embd, n_kv, "blk.%u.attn_v.weight", l)},
                  .bias = {bind_vector(b, d->qkv_bias, n_rows, "blk.%u.attn_q.bias", l),
                           bind_vector(b, d->qkv_bias, n_kv, "blk.%u.attn_k.bias", l),
                           bind_vector(b, d->qkv_bias, n_kv, "blk.%u.attn_v.bias", l)},
                  .q_norm = bind_vector(b, d->qk_norm, s->head_dim, "blk.%u.attn_q_norm.weight", l),
                  .k_norm = bind_vector(b, d->qk_norm, s->head_dim, "blk.%u.attn_k_norm.weight", l),
              });
    model_add(m, &(struct model_op){
                     .kind = OP_ATTEND, .layer = l, .kv = kv, .attn = {.scale = s->attn_scale}});
    if (d->gated)
        model_add(m, &(struct model_op){.kind = OP_GATE, .layer = l});
    model_add(m,
              &(struct model_op){
                  .kind = OP_PROJ,
                  .layer = l,
                  .in = ACT_O,
                  .w = {bind_matrix(b, BIND_MUST, n_q, s->n_embd, "blk.%u.attn_output.weight", l)},
                  .bias = {bind_vector(b, d->out_bias, s->n_embd, "blk.%u.attn_output.bias", l)},
              });
}

static const struct tensor *ffn_norm(struct binder *b, const struct model *m,
                                     const struct decoder *d, uint32_t l) {
    return bind_vector(b, BIND_MUST, m->shape.n_embd, "blk.%u.%s.weight", l,
                       d->ffn_norm ? d->ffn_norm : "ffn_norm");
}

void decoder_ffn(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    const struct model_shape *s = &m->shape;

    model_add(m,
              &(struct model_op){
                  .kind = OP_GATE_UP,
                  .layer = l,
                  .norm = ffn_norm(b, m, d, l),
                  .w = {bind_matrix(b, BIND_MUST, s->n_embd, s->n_ff, "blk.%u.ffn_gate.weight", l),
                        bind_matrix(b, BIND_MUST, s->n_embd, s->n_ff, "blk.%u.ffn_up.weight", l)},
                  .bias = {bind_vector(b, d->ffn_bias, s->n_ff, "blk.%u.ffn_gate.bias", l),
                           bind_vector(b, d->ffn_bias, s->n_ff, "blk.%u.ffn_up.bias", l)},
              });
    model_add(m,
              &(struct model_op){
                  .kind = OP_PROJ,
                  .layer = l,
                  .in = ACT_H,
                  .w = {bind_matrix(b, BIND_MUST, s->n_ff, s->n_embd, "blk.%u.ffn_down.weight", l)},
                  .bias = {bind_vector(b, d->ffn_bias, s->n_embd, "blk.%u.ffn_down.bias", l)},
              });
}

/* The one expert of all rows, and its gate. */
static void shared_expert(struct binder *b, struct model *m, uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_ff_shared;

    model_add(
        m,
        &(struct model_op){
            .kind = OP_SHARED,
            .layer = l,
            .w = {bind_matrix(b, BIND_MUST, s->n_embd, n, "blk.%u.ffn_gate_shexp.weight", l),
                  bind_matrix(b, BIND_MUST, s->n_embd, n, "blk.%u.ffn_up_shexp.weight", l),
                  bind_matrix(b, BIND_MUST, n, s->n_embd, "blk.%u.ffn_down_shexp.weight", l),
                  bind_matrix(b, BIND_MUST, s->n_embd, 1, "blk.%u.ffn_gate_inp_shexp.weight", l)},
        });
}

void decoder_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_expert;

    assert(n > 0);
    model_add(m,
              &(struct model_op){
                  .kind = OP_ROUTE,
                  .layer = l,
                  .norm = ffn_norm(b, m, d, l),
                  .w = {bind_matrix(b, BIND_MUST, s->n_embd, n, "blk.%u.ffn_gate_inp.weight", l)},
              });
    model_add(m, &(struct model_op){
                     .kind = OP_EXPERTS,
                     .layer = l,
                     .w = {bind_matrices(b, BIND_MUST, s->n_embd, s->n_ff, n,
                                         "blk.%u.ffn_gate_exps.weight", l),
                           bind_matrices(b, BIND_MUST, s->n_embd, s->n_ff, n,
                                         "blk.%u.ffn_up_exps.weight", l),
                           bind_matrices(b, BIND_MUST, s->n_ff, s->n_embd, n,
                                         "blk.%u.ffn_down_exps.weight", l)},
                 });
    if (s->n_ff_shared)
        shared_expert(b, m, l);
}

void decoder_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_op logits;

    assert(m->n_ops == 0);
    decoder_ends(b, m, &logits);
    for (uint32_t l = 0; l < m->shape.n_layer && b->r == 0; l++) {
        decoder_attention(b, m, d, l);
        if (m->shape.n_expert)
            decoder_experts(b, m, d, l);
        else
            decoder_ffn(b, m, d, l);
    }
    model_add(m, &logits);
}
