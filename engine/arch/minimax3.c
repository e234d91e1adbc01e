/*
 * minimax3 - the ops of MiniMax M3:
 *
 *   dense layer    QKV ATTEND PROJ  GATE_UP PROJ
 *   other layers   HEAD_INDEX QKV ATTEND PROJ  GATE_UP ROUTE EXPERTS PROJ
 */

#include "engine/arch/minimax3.h"

#include <assert.h>

#include "engine/bind/bind.h"
#include "engine/bind/meta.h"

/* Most positions of a block. */
enum { MINIMAX3_BLOCK = 1024 };

/* Reads the hyperparameters of the indexer. */
static void minimax3_read_indexer(struct binder *b, struct model_shape *s) {
    struct sparse_shape *p = &s->sparse;
    uint32_t n_rot = s->head_dim;

    meta_u32_opt(b, "rope.dimension_count", 2, s->head_dim, &n_rot);
    meta_u32(b, "attention.indexer.head_count", 1, 256, &p->n_head);
    meta_u32(b, "attention.indexer.key_length", 16, 1024, &p->dim);
    meta_u32(b, "attention.indexer.block_size", 1, MINIMAX3_BLOCK, &p->block);
    meta_u32(b, "attention.indexer.top_k", 1, 1u << 20, &p->n_block);
    meta_u32_opt(b, "attention.indexer.local_blocks", 0, p->n_block, &p->n_local);
    p->ratio = 1;
    if (b->r < 0)
        return;
    if (p->n_head != s->n_head_kv)
        bind_refuse(b, "an indexer with %u heads for %u heads of keys is not supported", p->n_head,
                    s->n_head_kv);
    else if (p->dim % 16 || p->dim < n_rot)
        bind_refuse(b,
                    "an indexer with keys of %u values is not supported; a multiple of 16 values, "
                    "of which %u turn, is needed",
                    p->dim, n_rot);
    else if (p->block < 32 || p->block & (p->block - 1))
        bind_refuse(b,
                    "blocks of %u positions are not supported; a power of two from 32 to %u is "
                    "needed",
                    p->block, (unsigned)MINIMAX3_BLOCK);
}

/* Adds the indexer of layer @l. */
static void minimax3_choose(struct binder *b, struct model *m, uint32_t l) {
    struct sparse_shape *p = &m->shape.sparse;
    uint64_t n = m->shape.n_embd;

    model_add(m, &(struct model_op){
                     .kind = OP_HEAD_INDEX,
                     .layer = l,
                     .index = p->n_layer++,
                     .norm = layer_vector(b, l, "attn_norm", n),
                     .w = {layer_matrix(b, l, "indexer.q_proj", n, (uint64_t)p->n_head * p->dim),
                           layer_matrix(b, l, "indexer.k_proj", n, p->dim)},
                     .q_norm = layer_vector(b, l, "indexer.q_norm", p->dim),
                     .k_norm = layer_vector(b, l, "indexer.k_norm", p->dim),
                 });
}

void minimax3_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_op logits;

    assert(m->n_ops == 0);
    minimax3_read_indexer(b, &m->shape);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < m->shape.n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.attn.sparse = i >= m->n_lead;
        if (l.attn.sparse)
            minimax3_choose(b, m, i);
        decoder_block(b, m, d, &l);
    }
    model_add(m, &logits);
}
