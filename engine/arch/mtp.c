/*
 * mtp - builds the passes of a model that has blocks of multi-token prediction (MTP).
 *
 * The input of a block at position p consists of the hidden state of p - 1 and the token of p. The
 * block's key and value at p can therefore be computed by the model's own pass: pass 0 computes
 * them for its rows with the op KEYS, without the attention and the FFN of the block. They are
 * stored in the pages like the keys of one more layer, and are shared, copied and rolled back with
 * the other keys. Pass 1 computes the whole block for one row of each sequence.
 *
 *   holes  HOLES EMBED .. layers .. KEEP LOGITS
 *   pass 0       EMBED .. layers .. KEEP LOGITS  EMBED DRAFT_IN KEYS
 *   pass 1                                       EMBED DRAFT_IN KEYS  QKV ATTEND .. KEEP LOGITS
 *
 * If there are several blocks, block k drafts the k-th token from the hidden state of block k - 1.
 * Pass 0 computes the keys of all blocks, the last block first. Pass 1 + k has one row of each
 * sequence; it also computes the keys of that row for the blocks after k, which will attend to it.
 *
 *   pass 0   EMBED .. LOGITS  keys 2  keys 1  keys 0
 *   pass 1                    keys 2  keys 1  keys 0  QKV ATTEND .. LOGITS of block 0
 *   pass 2                    keys 2  keys 1          QKV ATTEND .. LOGITS of block 1
 *
 * While drafts cost more time than they save, pass 0 omits the keys of the blocks and writes
 * placeholders, called holes (HOLES). A hole is recognised by its key, whose scores are never
 * finite, so a page with holes is shared, copied and kept in files like any other page. Attention
 * gives a hole no weight.
 *
 * Latent attention has one op for keys and queries (MLA_KV), so there pass 0 computes both. Blocks
 * with sparse attention (glm5.h) have no holes: an indexer needs the keys of all blocks.
 */

#include "engine/arch/mtp.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mtp_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    const struct layer l = decoder_layer(m, index);

    assert(index >= m->shape.n_layer); /* blocks are numbered after the layers */
    decoder_attention(b, m, d, &l);
    decoder_mlp(b, m, d, &l);
}

void mtp_dense_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    const struct layer l = decoder_layer(m, index);

    decoder_attention(b, m, d, &l);
    decoder_ffn(b, m, d, &l);
}

uint32_t mtp_found(const struct binder *b, const struct model *m) {
    char name[64];
    uint32_t n = 0;

    for (; n < MIN(m->n_mtp, MTP_BLOCKS); n++) {
        snprintf(name, sizeof(name), "blk.%u.nextn.eh_proj.weight", m->shape.n_layer + n);
        if (!gguf_find(b->file, name))
            break;
    }
    return n;
}

/* Splits op @i, a QKV, into KEYS and a QKV that computes only queries. */
static void split_keys(struct model *m, uint32_t i) {
    struct model_op qkv = m->op[i], last = m->op[m->n_ops - 1];

    assert(qkv.kind == OP_QKV);
    if (!qkv.w[2])
        return; /* a tensor is missing, which the binder reports */
    model_add(m, &last);
    if (m->r < 0)
        return;
    memmove(&m->op[i + 2], &m->op[i + 1], (m->n_ops - i - 2) * sizeof(*m->op));
    m->op[i] = qkv;
    m->op[i].kind = OP_KEYS;
    m->op[i].qkv.gated = false;
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

/* Returns the index of the first ATTEND from op @i on, or n_ops. */
static uint32_t find_attend(const struct model *m, uint32_t i) {
    while (i < m->n_ops && m->op[i].kind != OP_ATTEND)
        i++;
    return i;
}

void mtp_begin(struct binder *b, struct model *m, uint32_t k, bool streams) {
    uint64_t n = m->shape.n_embd;
    uint32_t l = m->shape.n_layer + k;
    const struct tensor *own =
        bind_matrix(b, BIND_MAY, n, m->shape.n_vocab, "blk.%u.nextn.embed_tokens.weight", l);
    struct model_op embed = m->op[0];

    if (own)
        embed.w[0] = own;
    model_add(m, &embed);
    model_add(m, &(struct model_op){
                     .kind = OP_DRAFT_IN,
                     .layer = l,
                     .part = k,
                     .keep.streams = streams,
                     .q_norm = layer_vector(b, l, "nextn.enorm", n),
                     .k_norm = layer_vector(b, l, "nextn.hnorm", n),
                     .w = {layer_matrix(b, l, "nextn.eh_proj", 2 * n, n)},
                 });
}

/* Adds the end of block @k: @op, the model's KEEP and LOGITS, with the block's own norm and output
 * matrix where the file has them. */
static void bind_end(struct binder *b, struct model *m, uint32_t k, const struct model_op op[2],
                     enum mtp_norm kind) {
    uint64_t n = m->shape.n_embd;
    uint32_t l = m->shape.n_layer + k;
    const struct tensor *norm;
    struct model_op keep = op[0], logits = op[1];

    if (kind == MTP_NAMED)
        norm = layer_vector(b, l, "layer_output_norm", n);
    else
        norm = bind_vector(b, BIND_MAY, n, "blk.%u.nextn.shared_head_norm.weight", l);
    if (!norm && kind == MTP_LATE)
        norm = bind_vector(b, BIND_MAY, n, "blk.%u.layer_output_norm.weight", l);
    const struct tensor *head =
        bind_matrix(b, BIND_MAY, n, m->shape.n_vocab, "blk.%u.nextn.shared_head_head.weight", l);
    if (norm) {
        *(kind == MTP_LATE ? &logits.norm : &keep.norm) = norm;
        keep.keep.centred = kind == MTP_CENTRED;
    }
    if (head)
        logits.w[0] = head;
    model_add(m, &keep);
    model_add(m, &logits);
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
    if (!late)
        logits.norm = NULL;
    model_add(m, &logits);
}

/* Moves the ops that compute the keys of the @n blocks, [begin[k], keys[k]) for block k, before the
 * other ops of the blocks, those of the last block first, and divides all ops into passes. */
static void mtp_divide(struct model *m, const uint32_t *begin, const uint32_t *keys, uint32_t n) {
    uint32_t first = begin[0], at = first;
    CLEANUP(freep) struct model_op *from = malloc(m->n_ops * sizeof(*from));

    if (!from) {
        m->r = -ENOMEM;
        return;
    }
    memcpy(from, m->op, m->n_ops * sizeof(*from));
    for (uint32_t k = n; k-- > 0;) {
        memcpy(&m->op[at], &from[begin[k]], (keys[k] - begin[k]) * sizeof(*from));
        at += keys[k] - begin[k];
        m->pass[PASS_DRAFT + k].run[0] = (struct op_run){first, at};
    }
    m->pass[PASS_MODEL].run[0].end = at;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t size = begin[k + 1] - keys[k];

        memcpy(&m->op[at], &from[keys[k]], size * sizeof(*from));
        m->pass[PASS_DRAFT + k].run[1] = (struct op_run){at, at + size};
        at += size;
    }
    m->shape.drafts = n;
}

/* Inserts a HOLES op for each block before all other ops: the beginning of PASS_HOLES. */
static void add_holes(struct model *m) {
    uint32_t n = m->shape.drafts, end = m->pass[PASS_DRAFT].run[0].begin;
    struct model_op holes[MTP_BLOCKS];

    for (uint32_t k = 0; k < n; k++) {
        struct model_op *to = &m->op[find_attend(m, m->pass[PASS_DRAFT + k].run[1].begin)];

        assert(to->kind == OP_ATTEND && to->attn.cap == 0 && !to->attn.slope);
        to->attn.holes = true;
        model_add(m, &(struct model_op){
                         .kind = OP_HOLES, .layer = to->layer, .kv = to->kv, .heads = to->heads});
    }
    if (m->r < 0)
        return;
    memcpy(holes, &m->op[m->n_ops - n], n * sizeof(*holes));
    memmove(&m->op[n], m->op, (m->n_ops - n) * sizeof(*m->op));
    memcpy(m->op, holes, n * sizeof(*holes));
    for (uint32_t i = 0; i < 2 * PASSES; i++) {
        struct op_run *run = &m->pass[i / 2].run[i % 2];

        if (run->end > 0) {
            run->begin += n;
            run->end += n;
        }
    }
    m->pass[PASS_HOLES].run[0].end = end + n;
}

void mtp_bind(struct binder *b, struct model *m, const struct decoder *d, block_fn block,
              enum mtp_norm norm) {
    uint32_t n = MAX(mtp_found(b, m), 1u), begin[MTP_BLOCKS + 1], keys[MTP_BLOCKS];

    if (b->r < 0 || m->r < 0)
        return;
    mtp_keep(m, norm == MTP_LATE);
    if (m->r < 0)
        return;
    const struct model_op ends[2] = {m->op[m->n_ops - 2], m->op[m->n_ops - 1]};
    for (uint32_t k = 0; k < n; k++) {
        begin[k] = m->n_ops;
        mtp_begin(b, m, k, false);
        block(b, m, d, m->shape.n_layer + k);
        keys[k] = find_attend(m, begin[k]);
        if (b->r < 0 || m->r < 0)
            return;
        assert(keys[k] > begin[k] + 2 && keys[k] < m->n_ops);
        if (m->op[keys[k] - 1].kind == OP_QKV)
            split_keys(m, keys[k] - 1);
        bind_end(b, m, k, ends, norm);
    }
    begin[n] = m->n_ops;
    if (m->r == 0)
        mtp_divide(m, begin, keys, n);
    if (m->r < 0)
        return;
    if (m->shape.sparse.n_layer) /* holes have no keys by which an indexer could choose */
        m->pass[PASS_HOLES] = m->pass[PASS_MODEL];
    else
        add_holes(m);
}
