#include "engine/arch/llama4.h"

#include <assert.h>

#include "engine/arch/window.h"

/* Files have no keys for these: every fourth layer has no rotary positions, chunks have 8192
 * positions, and a query's factor is 1 + 0.1 ln(1 + floor((position + 1) / 8192)). */
enum { PLAIN_PERIOD = 4, CHUNK = 8192, TEMPER_SPAN = 8192, TEMPER_AHEAD = 1 };
#define TEMPER_SLOPE 0.1f

/* number of experts of Maverick, whose queries and keys have no norms */
enum { MAVERICK_EXPERTS = 128 };

/* Sets what differs from a plain decoder in the ops from @first on, which are those of a layer;
 * @plain: one without rotary positions. */
static void llama4_finish(struct binder *b, struct model *m, uint32_t first, bool plain) {
    bool normed = !plain && m->shape.n_expert != MAVERICK_EXPERTS;

    for (uint32_t i = first; i < m->n_ops && b->r == 0 && m->r == 0; i++) {
        struct model_op *op = &m->op[i];

        if (op->kind == OP_QKV && normed) {
            op->q_norm = op->k_norm = bind_ones(b, op->heads.dim);
            op->qkv.norm_late = true;
        }
        if (op->kind == OP_QKV && plain)
            op->qkv.temper = (struct temper){TEMPER_SLOPE, TEMPER_SPAN, TEMPER_AHEAD};
        if (op->kind == OP_ATTEND)
            op->attn.chunked = op->attn.window > 0;
        if (op->kind == OP_EXPERTS)
            op->ffn.early = true;
    }
}

void llama4_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    bool in_chunk[MODEL_LAYERS_MAX];
    uint32_t chunk = CHUNK, every = 1;
    struct model_op logits;

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    window_read(b, s->n_layer, PLAIN_PERIOD, in_chunk, &chunk);
    meta_u32(b, "interleave_moe_layer_step", 1, s->n_layer, &every);
    if (b->r == 0 && chunk == 0)
        bind_refuse(b, "%s models without chunks of attention are not supported", b->arch);
    s->gating = GATING_SIGMOID;
    m->n_ff_common = s->n_ff_expert;
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);
        bool plain = (i + 1) % PLAIN_PERIOD == 0;
        uint32_t first = m->n_ops;

        l.attn.window = in_chunk[i] ? chunk : 0;
        l.rope = plain; /* set 1 is empty */
        decoder_attention(b, m, d, &l);
        if ((i + 1) % every == 0)
            decoder_experts(b, m, d, i);
        else
            decoder_ffn(b, m, d, &l);
        llama4_finish(b, m, first, plain);
    }
    model_add(m, &logits);
}
