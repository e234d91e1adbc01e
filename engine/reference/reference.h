#pragma once

/*
 * reference - the backend with which the others are compared: plain C, f32 activations, one thread,
 * every sum in one fixed order. Weights are decoded row by row when they are needed (engine/quant).
 * Keys and values are rounded to the page's format and read back from it, as everywhere.
 */

#include "base/arena.h"
#include "base/mathx.h"
#include "engine/experts.h"
#include "engine/host.h"

/* The step; there is one at a time, because ops compute at once, in the caller's thread. */
struct step {
    struct host_step host;
    struct be *be;
};

/* Everything is allocated at open. Row r of an activation belongs to row r of the batch; pages
 * hold the keys and values of all layers, layer by layer. */
struct be {
    const struct model_shape *shape;
    struct kv_formats kv_type;
    uint32_t page_tokens, n_pages[KV_CLASSES], n_states;
    struct step step;
    struct sampler sampler;
    float *act[ACT_ROLES];
    float *normed; /* [max(max_rows, max_wants)][n_embd] */
    float *kv[2];  /* [max_rows][widest.kv], of this step's rows */
    float *up;     /* [max_rows][widest FFN] */
    float *sum;    /* [n_embd] of a row's experts */
    float *row;    /* [row_width] a decoded row of weights: the longest of any op */
    size_t row_width;
    float *gate;              /* [2 * widest FFN] of one expert, then its output [n_embd] */
    float *router;            /* [max_rows][n_expert], then pick_bias */
    struct expert_pick *pick; /* [max_rows][n_expert_used] */
    float *pair;              /* [max_rows][streams][2][n_embd] that DRAFT_IN multiplies; or NULL */
    float *scores;            /* [heads of a key head][max_context] */
    float *logits;            /* [max_wants][n_vocab] */
    double *rope;             /* [n_rot / 2][cos, sin] of one position */
    /* Layers are consecutive in a page: page_tokens keys, then as many values. */
    uint8_t *pages[KV_CLASSES];
    size_t page_bytes[KV_CLASSES];

    /* For models with latent attention, else NULL: [max_rows] latent keys, q_rank values, heads'
     * queries. */
    float *latent, *latent_q, *latent_heads;

    /* For models with recurrent layers, else NULL. */
    float *gated;           /* [max_rows][heads][2][dim] queries and gates of attention */
    float *in[OP_MATRICES]; /* [max_rows][n_in] of STATE_IN */
    float *channel;         /* [channels] after the convolution */
    float *recall;          /* [dim] of a value head */
    float *state;           /* [n_states]: [recurrent layers][n_floats], then state.n_more */

    /* For block drafters, else NULL. */
    float *tap;                   /* [max_rows][n_taps][n_embd] */
    float *saved;                 /* [max_rows][n_embd] */
    float *dynamic;               /* [max_rows][block_values()] */
    float *base;                  /* [2][block.kernel][n_embd] */
    float *select;                /* [max_wants + 2][block.rank] */
    struct block_pick *candidate; /* [max_wants][block.top_k] */

    /* For models with residual streams, else NULL. */
    float *mixed, *stream_gate; /* [max_rows][streams][n_embd] */
    float *low;                 /* [max_rows][stream.n_low] */
    float *stream_weight;       /* [max_rows][streams] of the MIX or BLEND before; of BLEND then
                                   [max_rows][streams][streams] */

    /* For models with sparse attention, else NULL. */
    float *index_q, *index_k; /* [max_rows] the indexer's queries and keys of tokens */
    float *block_score;       /* [max_context] */
    uint32_t *seen;           /* [max_rows][seen_words] bits of the keys that a row sees */
    uint32_t seen_words;

    struct ref_condensed *condensed; /* NULL: keys are not condensed */

    struct arena arena; /* owns all buffers */
    bool no_memory;     /* an allocation of ref_alloc() failed */
};

/* Returns @rows, one at least, of @size zero bytes until the backend closes, or NULL with
 * b->no_memory. */
void *ref_alloc(struct be *b, size_t rows, size_t size);

/* Functions that the files of this backend share. A dot product is summed in sixteen lanes, element
 * i in lane i % 16, and then the lanes pairwise. */
float ref_dot(const float *a, const float *b, size_t n);
/* Returns the values of a norm or a bias: F32, not necessarily aligned. */
float ref_vector_at(const struct tensor *t, size_t i);
/* y = x / sqrt(mean(x^2) + eps) * weight; y may be x. */
void ref_rms_norm(const float *x, const struct tensor *weight, float eps, size_t n, float *y);
/* y[r][o] = W[o] . x[r] + bias[o] for @n_rows rows. */
void ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias, const float *x,
                uint32_t n_rows, float *y);

/* y = op->norm of the rows of ACT_X, to b->normed; without a norm a copy of the rows. */
void ref_norm_rows(struct step *s, const struct model_op *op);

/* b->rope = the angles of @s at row @row of the step; rotates the pairs of a head by them. */
void ref_set_rope(struct be *b, const struct rope_set *s, uint32_t row);
void ref_rotate(const struct be *b, const struct rope_set *s, float *x);
/* b->kv of all rows to the pages of the op. */
void ref_store_rows(struct step *s, const struct model_op *op);

/* A recurrent op, token by token: @fn for each row with the state of its sequence in the op's
 * layer. */
typedef void (*ref_state_fn)(struct step *s, const struct model_op *op, uint32_t row, float *state);
int ref_each_state(struct step *s, const struct model_op *op, ref_state_fn fn);
/* Returns the part of the sequence's state that is the op's, of NGRAM and INDEX. */
float *ref_more(const struct be *b, const struct model_op *op, const struct engine_seq *q);
/* b->channel = the convolution of row @r of in[0] with earlier rows, the last of which are in
 * @past; then appends the row to @past. */
void ref_convolve(struct be *b, const struct model_op *op, uint32_t r, float *past);

/* ln(1 + e^x); x itself above 20, where it differs by less than 1e-8. */
static inline float ref_softplus(float x) {
    return x > 20 ? x : (float)mx_log(1.0 + (double)mx_expf(x));
}

/* 1 / (1 + e^-x) */
static inline float ref_sigmoid(float x) {
    return 1.0f / (1.0f + mx_expf(-x));
}

/* glu of op.h, of @n gates and ups; the gates' place is taken. */
void ref_glu(enum glu glu, float limit, float *gate, const float *up, size_t n);

/* The ops of the table, as op.h describes them. */
int ref_embed(struct step *s, const struct model_op *op);
int ref_deep(struct step *s, const struct model_op *op);
int ref_layer_input(struct step *s, const struct model_op *op);
/* Keys and values go to the pages rounded to their format, and attend() reads them from there. */
int ref_qkv(struct step *s, const struct model_op *op);
int ref_keys(struct step *s, const struct model_op *op);
int ref_holes(struct step *s, const struct model_op *op);
int ref_norm(struct step *s, const struct model_op *op);
int ref_keep(struct step *s, const struct model_op *op);
int ref_draft_in(struct step *s, const struct model_op *op);
int ref_tap(struct step *s, const struct model_op *op);
int ref_fuse(struct step *s, const struct model_op *op);
int ref_block_in(struct step *s, const struct model_op *op);
int ref_block_out(struct step *s, const struct model_op *op);
int ref_select(struct step *s, const struct model_op *op);
int ref_chain(struct step *s, const struct model_op *op);
/* Allocates the buffers for a block drafter, if it is one. */
void ref_blocks_alloc(struct be *b, const struct be_opts *o);
/* A row at a time: all scores of a key head's queries, softmax, weighted values, over the keys of
 * the window up to the row's position. */
int ref_attend(struct step *s, const struct model_op *op);
int ref_gate(struct step *s, const struct model_op *op);
int ref_proj(struct step *s, const struct model_op *op);
int ref_join(struct step *s, const struct model_op *op);
int ref_gate_up(struct step *s, const struct model_op *op);
int ref_gate_in(struct step *s, const struct model_op *op);
int ref_route(struct step *s, const struct model_op *op);
/* Row by row: decodes the picked experts' matrices anew for each row, in the order of its picks. */
int ref_experts(struct step *s, const struct model_op *op);
int ref_shared(struct step *s, const struct model_op *op);
int ref_state_in(struct step *s, const struct model_op *op);
/* Token by token; a state has M of each value head, [key][value]. */
int ref_kda(struct step *s, const struct model_op *op);
int ref_delta(struct step *s, const struct model_op *op);
int ref_conv(struct step *s, const struct model_op *op);
/* Token by token; a state has M of each head. */
int ref_mamba(struct step *s, const struct model_op *op);
int ref_mla_in(struct step *s, const struct model_op *op);
int ref_mla_q(struct step *s, const struct model_op *op);
int ref_mla_kv(struct step *s, const struct model_op *op);
int ref_mla_out(struct step *s, const struct model_op *op);
int ref_spread(struct step *s, const struct model_op *op);
int ref_mix(struct step *s, const struct model_op *op);
int ref_ngram(struct step *s, const struct model_op *op);
int ref_index(struct step *s, const struct model_op *op);
int ref_blend(struct step *s, const struct model_op *op);
/* Allocates the buffers for condensed keys, if the model has them. */
void ref_condensed_open(struct be *b, const struct be_opts *o);
int ref_lean_in(struct step *s, const struct model_op *op);
int ref_lean_keys(struct step *s, const struct model_op *op);
int ref_lean_q(struct step *s, const struct model_op *op);
int ref_condense(struct step *s, const struct model_op *op);
int ref_pick(struct step *s, const struct model_op *op);
int ref_lean_attend(struct step *s, const struct model_op *op);
int ref_lean_out(struct step *s, const struct model_op *op);
int ref_logits(struct step *s, const struct model_op *op);
