/*
 * mtp - how a model with a block becomes two passes.
 *
 * The block's input at position p is made of the hidden state of p - 1 and the token of p, so its
 * key and value at p follow from the model's own pass up to there: that pass computes them of its
 * rows, with an op for them alone (KEYS), and neither attention nor the FFN of the block. They
 * lie in the pages like those of one layer more, and are shared, copied and taken back with these.
 * Pass 1 is the whole block of one row for each sequence.
 *
 *   holes  HOLES EMBED .. layers .. KEEP LOGITS
 *   pass 0       EMBED .. layers .. KEEP LOGITS  EMBED DRAFT_IN KEYS
 *   pass 1                                       EMBED DRAFT_IN KEYS  QKV ATTEND .. KEEP LOGITS
 *
 * Where the block is not going to draft for a while pass 0 has holes in the place of its keys. A
 * page tells which of its keys are holes, so it may be shared, copied and kept in files
 * like all others: a hole's score is not finite, whatever the query is, and weighs nothing.
 *
 * Latent attention makes keys and queries together; there pass 0 computes both.
 */

#include "engine/arch/mtp.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void mtp_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    const struct layer l = decoder_layer(m, index);

    assert(index >= m->shape.n_layer); /* behind the layers */
    decoder_attention(b, m, d, &l);
    decoder_mlp(b, m, d, &l);
}

bool mtp_found(const struct binder *b, const struct model *m) {
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.nextn.eh_proj.weight", m->shape.n_layer);
    return m->n_mtp > 0 && gguf_find(b->file, name);
}

/* Op @i, which is QKV, becomes KEYS and then what is left of QKV. */
static void split_keys(struct model *m, uint32_t i) {
    struct model_op qkv = m->op[i], last = m->op[m->n_ops - 1];

    assert(qkv.kind == OP_QKV);
    if (!qkv.w[2])
        return; /* a tensor is missing: the binder knows */
    model_add(m, &last);
    if (m->r < 0)
        return;
    memmove(&m->op[i + 2], &m->op[i + 1], (m->n_ops - i - 2) * sizeof(*m->op));
    m->op[i] = qkv;
    m->op[i].kind = OP_KEYS;
    m->op[i].gated = false;
    m->op[i].q_norm = NULL;
    m->op[i].w[0] = qkv.w[1];
    m->op[i].w[1] = qkv.w[2];
    m->op[i].w[2] = NULL;
    m->op[i].bias[0] = qkv.bias[1];
    m->op[i].bias[1] = qkv.bias[2];
    m->op[i].bias[2] = NULL;
    qkv.k_norm = qkv.w[1] = qkv.w[2] = qkv.bias[1] = qkv.bias[2] = NULL;
    m->op[i + 1] = qkv;
}

/* Puts the op that makes holes where op @attend reads keys in front of all others. */
static void add_holes(struct model *m, uint32_t attend, uint32_t end) {
    struct model_op *to = &m->op[attend], first = {.kind = OP_HOLES};

    assert(to->kind == OP_ATTEND && to->attn.cap == 0 && !to->attn.slope && !m->pass[0].begin);
    to->attn.holes = true;
    first.layer = to->layer;
    first.kv = to->kv;
    first.heads = to->heads;
    model_add(m, &first);
    if (m->r < 0)
        return;
    first = m->op[m->n_ops - 1];
    memmove(&m->op[1], m->op, (m->n_ops - 1) * sizeof(*m->op));
    m->op[0] = first;
    for (int i = 0; i < 2; i++) {
        m->pass[i].begin++;
        m->pass[i].end++;
    }
    m->pass[PASS_HOLES].end = end + 1;
}

/* The first op from @i on that is attention. */
static uint32_t find_attend(const struct model *m, uint32_t i) {
    while (i < m->n_ops && m->op[i].kind != OP_ATTEND)
        i++;
    return i;
}

/* x = what the block begins with */
static void bind_in(struct binder *b, struct model *m, uint32_t l) {
    uint64_t n = m->shape.n_embd;
    const struct tensor *own =
        bind_matrix(b, BIND_MAY, n, m->shape.n_vocab, "blk.%u.nextn.embed_tokens.weight", l);
    struct model_op embed = m->op[0];

    embed.w[0] = own ? own : embed.w[0];
    model_add(m, &embed);
    model_add(m, &(struct model_op){
                     .kind = OP_DRAFT_IN,
                     .layer = l,
                     .q_norm = bind_vector(b, BIND_MUST, n, "blk.%u.nextn.enorm.weight", l),
                     .k_norm = bind_vector(b, BIND_MUST, n, "blk.%u.nextn.hnorm.weight", l),
                     .w = {bind_matrix(b, BIND_MUST, 2 * n, n, "blk.%u.nextn.eh_proj.weight", l)},
                 });
}

void mtp_keep(struct model *m, bool late) {
    struct model_op *last = &m->op[m->n_ops - 1], logits = *last;

    assert(logits.kind == OP_LOGITS && m->op[0].kind == OP_EMBED);
    *last = (struct model_op){.kind = OP_KEEP,
                              .layer = m->shape.n_layer,
                              .norm = late ? NULL : logits.norm,
                              .width = logits.width,
                              .scale = 1,
                              .gain = 1};
    logits.norm = late ? logits.norm : NULL;
    model_add(m, &logits);
}

void mtp_bind(struct binder *b, struct model *m, const struct decoder *d, block_fn block,
              enum mtp_norm norm) {
    uint64_t n = m->shape.n_embd;
    uint32_t l = m->shape.n_layer;
    bool late = norm == MTP_LATE;

    if (b->r < 0 || m->r < 0)
        return;
    mtp_keep(m, late);
    if (m->r < 0)
        return;
    struct model_op keep = m->op[m->n_ops - 2], logits = m->op[m->n_ops - 1];
    const struct tensor *own_norm =
        bind_vector(b, BIND_MAY, n, "blk.%u.nextn.shared_head_norm.weight", l);
    const struct tensor *own_head =
        bind_matrix(b, BIND_MAY, n, m->shape.n_vocab, "blk.%u.nextn.shared_head_head.weight", l);

    m->pass[1].begin = m->n_ops;
    bind_in(b, m, l);
    uint32_t first = m->n_ops;
    block(b, m, d, l);
    uint32_t attend = find_attend(m, first);
    if (b->r < 0 || m->r < 0)
        return;
    assert(attend > first && attend < m->n_ops);
    m->pass[0].end = attend;
    if (m->op[attend - 1].kind == OP_QKV)
        split_keys(m, attend - 1);
    if (own_norm) {
        *(late ? &logits.norm : &keep.norm) = own_norm;
        keep.centred = norm == MTP_CENTRED;
    }
    model_add(m, &keep);
    logits.w[0] = own_head ? own_head : logits.w[0];
    model_add(m, &logits);
    m->pass[1].end = m->n_ops;
    if (m->r == 0)
        add_holes(m, find_attend(m, first), m->pass[1].begin);
    m->shape.drafts = true;
}
