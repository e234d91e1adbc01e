#pragma once

/*
 * reference - the backend that judges the others: plain C, f32 activations, one thread, every sum
 * in one fixed order. Weights are decoded row by row when they are needed (engine/quant). Keys and
 * values are rounded to the page's format and read back from it, as everywhere.
 */

#include "engine/experts.h"
#include "engine/host.h"

/* One at a time: ops compute at once, in the caller's thread. */
struct step {
    struct host_step host;
    struct be *be;
};

/* Everything is allocated at open. Row r of an activation belongs to row r of the batch; pages
 * hold the keys and values of all layers, layer by layer. */
struct be {
    const struct model_shape *shape;
    enum engine_kv_type kv_type;
    uint32_t page_tokens, n_pages;
    struct step step;
    struct sampler sampler;
    float *act[ACT_ROLES];
    float *normed;            /* [max(max_rows, max_wants)][n_embd] */
    float *kv[2];             /* [max_rows][n_head_kv * head_dim], of this step's rows */
    float *up;                /* [max_rows][n_ff] */
    float *row;               /* a decoded row of weights */
    float *gate;              /* [n_ff] of one expert, then its output [n_embd] */
    float *router;            /* [max_rows][n_expert] */
    struct expert_pick *pick; /* [max_rows][n_expert_used] */
    float *scores;            /* [heads of a key head][max_context] */
    float *logits;            /* [max_wants][n_vocab] */
    double *rope;             /* [n_rot / 2][cos, sin] of one position */
    /* A page of a layer: page_tokens keys, then as many values, each n_head_kv heads of
     * @head_bytes. */
    uint8_t *pages;
    size_t head_bytes, token_bytes, layer_bytes;
};

/* The ops of the table, as backend.h describes them. */
int ref_embed(struct step *s, const struct model_op *op);
/* Keys and values go to the pages rounded to their format, and attend() reads them from there. */
int ref_qkv(struct step *s, const struct model_op *op);
/* A row at a time: all scores of a key head's queries, softmax, weighted values, over [0,
 * position]. */
int ref_attend(struct step *s, const struct model_op *op);
int ref_proj(struct step *s, const struct model_op *op);
int ref_gate_up(struct step *s, const struct model_op *op);
int ref_route(struct step *s, const struct model_op *op);
/* Row by row: decodes the picked experts' matrices anew for each row, in the order of its picks. */
int ref_experts(struct step *s, const struct model_op *op);
int ref_logits(struct step *s, const struct model_op *op);
