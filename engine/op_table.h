#pragma once

/*
 * op_table - one row for each kind of op: its functions, how refusals name it, and what it costs. A
 * new kind is a comment in op.h, a row here, and its functions in the backends.
 */

#include "engine/backend.h"

/* X(kind, name, feature, cost). The functions of the kind in the backends of host memory are
 * ref_NAME() and ops_NAME(). feature: what models with the op have, for refusals; NULL: every
 * backend computes the op. cost: how op_measure() counts it. */
#define OPS(X)                                                                                     \
    X(EMBED, embed, NULL, rows)                                                                    \
    X(DEEP, deep, "rows of pictures", products)                                                    \
    X(NORM, norm, "norms outside of branches", products)                                           \
    X(LAYER_INPUT, layer_input, "inputs of layers", products)                                      \
    X(QKV, qkv, NULL, products)                                                                    \
    X(KEYS, keys, "multi-token prediction", products)                                              \
    X(HOLES, holes, "multi-token prediction", products)                                            \
    X(ATTEND, attend, NULL, products)                                                              \
    X(GATE, gate, "gated attention", products)                                                     \
    X(PROJ, proj, NULL, products)                                                                  \
    X(JOIN, join, "norms behind branches", products)                                               \
    X(GATE_UP, gate_up, NULL, products)                                                            \
    X(GATE_IN, gate_in, "inputs of layers", products)                                              \
    X(ROUTE, route, "mixtures of experts", products)                                               \
    X(EXPERTS, experts, "mixtures of experts", experts)                                            \
    X(SHARED, shared, "mixtures of experts", products)                                             \
    X(STATE_IN, state_in, "recurrent layers", products)                                            \
    X(DELTA, delta, "gated delta nets", products)                                                  \
    X(KDA, kda, "Kimi delta attention", products)                                                  \
    X(CONV, conv, "short convolutions", products)                                                  \
    X(MAMBA, mamba, "Mamba-2 layers", products)                                                    \
    X(SCAN, scan, "Mamba-1 layers", products)                                                      \
    X(MLA_IN, mla_in, "latent attention", products)                                                \
    X(MLA_Q, mla_q, "latent attention", products)                                                  \
    X(MLA_KV, mla_kv, "latent attention", products)                                                \
    X(MLA_OUT, mla_out, "latent attention", products)                                              \
    X(KEEP, keep, "multi-token prediction", products)                                              \
    X(DRAFT_IN, draft_in, "multi-token prediction", products)                                      \
    X(TAP, tap, "block drafters", products)                                                        \
    X(FUSE, fuse, "block drafters", products)                                                      \
    X(BLOCK_IN, block_in, "block drafters", products)                                              \
    X(BLOCK_OUT, block_out, "block drafters", products)                                            \
    X(SELECT, select, "block drafters", rows)                                                      \
    X(CHAIN, chain, "block drafters", chain)                                                       \
    X(HC_OUT, hc_out, "residual streams", products)                                                \
    X(MIX, mix, "residual streams", products)                                                      \
    X(HC_IN, hc_in, "residual streams", products)                                                  \
    X(ALT_BEGIN, alt_begin, "alternating updates", products)                                       \
    X(ALT_PREDICT, alt_predict, "alternating updates", products)                                   \
    X(ALT_CORRECT, alt_correct, "alternating updates", products)                                   \
    X(ALT_END, alt_end, "alternating updates", products)                                           \
    X(LAUREL, laurel, "alternating updates", products)                                             \
    X(NGRAM, ngram, "tables of n-grams", products)                                                 \
    X(INDEX, index, "sparse attention", products)                                                  \
    X(CSA_IN, csa_in, "compressed keys", products)                                                 \
    X(CSA_KEYS, csa_keys, "drafts behind compressed keys", products)                               \
    X(CSA_Q, csa_q, "compressed keys", products)                                                   \
    X(COMPRESS, compress, "compressed keys", products)                                             \
    X(CSA_INDEX, csa_index, "compressed keys", products)                                           \
    X(CSA_ATTEND, csa_attend, "compressed keys", products)                                         \
    X(CSA_OUT, csa_out, "compressed keys", products)                                               \
    X(LOGITS, logits, NULL, logits)

/* Cost of an op for a row of the batch. */
struct op_cost {
    /* bytes of weights that are read for a token */
    uint64_t read;
    /* values of the widest input of its products */
    uint64_t in;
    /* values of its products that need a buffer */
    uint64_t out;
};

/* Returns the name of a kind, as "gate_up". */
const char *op_name(enum op_kind kind);
/* Returns how refusals name what models with ops of @kind have. */
const char *op_feature(enum op_kind kind);
/* Returns the cost of @op. */
struct op_cost op_measure(const struct model_shape *s, const struct model_op *op);
