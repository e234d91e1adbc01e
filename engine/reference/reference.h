#pragma once

/*
 * reference - the backend that judges the others: plain C, f32 activations, one thread, every sum
 * in one fixed order. Weights are decoded row by row when they are needed (engine/quant). Keys and
 * values are rounded to the page's format and read back from it, as everywhere.
 */

#include "base/mathx.h"
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
    float *up;                /* [max_rows][n_ff or n_ff_shared] */
    float *row;               /* a decoded row of weights */
    float *gate;              /* [n_ff or n_ff_shared] of one expert, then its output [n_embd] */
    float *router;            /* [max_rows][n_expert] */
    struct expert_pick *pick; /* [max_rows][n_expert_used] */
    float *scores;            /* [heads of a key head][max_context] */
    float *logits;            /* [max_wants][n_vocab] */
    double *rope;             /* [n_rot / 2][cos, sin] of one position */
    /* A page of a layer: page_tokens keys, then as many values, each n_head_kv heads of
     * @head_bytes. */
    uint8_t *pages;
    size_t head_bytes, token_bytes, layer_bytes;

    /* Of models with delta nets, else NULL. */
    float *gated;   /* [max_rows][n_head][2][head_dim] queries and gates of attention */
    float *u, *z;   /* [max_rows][channels], [max_rows][n_value_head * dim] */
    float *mix[2];  /* [max_rows][2 * n_value_head] raw betas and alphas */
    float *channel; /* [channels] after the convolution */
    float *recall;  /* [dim] of a value head */
    /* [n_states][layers of delta nets]: kernel - 1 rows of u, the oldest first; then M of each
     * value head, [key][value]. */
    float *state;
};

/* What the files of this backend share. A dot product is summed in sixteen lanes, element i in lane
 * i % 16, and the lanes pairwise. */
float ref_dot(const float *a, const float *b, size_t n);
/* The values of a norm or a bias: F32, not necessarily aligned. */
float ref_vector_at(const struct tensor *t, size_t i);
/* y = x / sqrt(mean(x^2) + eps) * weight; y may be x. */
void ref_rms_norm(const float *x, const struct tensor *weight, float eps, size_t n, float *y);
/* y[r][o] = W[o] . x[r] + bias[o] for @n_rows rows; added to y when @add. */
void ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias, const float *x,
                uint32_t n_rows, bool add, float *y);

static inline float ref_sigmoid(float x) {
    return 1.0f / (1.0f + mx_expf(-x));
}

/* The ops of the table, as backend.h describes them. */
int ref_embed(struct step *s, const struct model_op *op);
/* Keys and values go to the pages rounded to their format, and attend() reads them from there. */
int ref_qkv(struct step *s, const struct model_op *op);
/* A row at a time: all scores of a key head's queries, softmax, weighted values, over [0,
 * position]. */
int ref_attend(struct step *s, const struct model_op *op);
int ref_gate(struct step *s, const struct model_op *op);
int ref_proj(struct step *s, const struct model_op *op);
int ref_gate_up(struct step *s, const struct model_op *op);
int ref_route(struct step *s, const struct model_op *op);
/* Row by row: decodes the picked experts' matrices anew for each row, in the order of its picks. */
int ref_experts(struct step *s, const struct model_op *op);
int ref_shared(struct step *s, const struct model_op *op);
int ref_delta_in(struct step *s, const struct model_op *op);
/* Token by token. */
int ref_delta(struct step *s, const struct model_op *op);
int ref_logits(struct step *s, const struct model_op *op);
