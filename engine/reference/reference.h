#pragma once

/*
 * reference - the backend with which the other backends are compared. It is plain C, written from
 * the formulas of op_list.h: activations are f32, weights are decoded row by row when they are
 * needed (engine/formats/quant.h), and every sum has one fixed order. Keys and values are rounded
 * to the format of the pages and read back from there, as in every backend. The other backends
 * round differently, so tests compare with tolerances.
 */

#include "base/arena.h"
#include "base/mathx.h"
#include "engine/experts.h"
#include "engine/host.h"
#include "engine/op_table.h"

/* The step. There is one at a time, because ops compute in the caller's thread. */
struct step {
    struct host_step host;
    struct be *be;
};

/* State of the backend. All memory is allocated at open. Row r of a buffer belongs to row r of the
 * batch. */
struct be {
    const struct model_shape *shape;
    struct kv_formats kv_type;
    uint32_t page_tokens, n_pages[KV_CLASSES], n_states;
    struct step step;
    struct sampler sampler;
    float *act[ACT_ROLES];
    /* [max(max_rows, max_wants)][n_embd] */
    float *normed;
    /* [max_rows][widest.kv] keys and values of this step's rows */
    float *kv[2];
    /* [max_rows][widest FFN] */
    float *up;
    /* [n_embd] sum of a row's experts, or another row of scratch memory */
    float *sum;
    /* [row_width] a decoded row of weights; row_width: the longest row of any op */
    float *row;
    size_t row_width;
    /* [2 * widest FFN] of one expert, then its output [n_embd] */
    float *gate;
    /* [max_rows][n_expert], then [n_expert] pick_bias */
    float *router;
    /* [max_rows][n_expert_used] */
    struct expert_pick *pick;
    /* [max_rows][streams][2][n_embd] input of DRAFT_IN; or NULL */
    float *pair;
    /* [query heads of a key head][max_context] */
    float *scores;
    /* [max_wants][n_vocab] */
    float *logits;
    /* [n_rot / 2][cos, sin] of one position */
    double *rope;
    /* Pages of each class. In a page layers are consecutive, each with the keys of all positions,
     * then the values of all positions. */
    uint8_t *pages[KV_CLASSES];
    size_t page_bytes[KV_CLASSES];

    /* Latent attention, else NULL: [max_rows] latent keys, q_rank values, queries of all heads. */
    float *latent, *latent_q, *latent_heads;

    /* Recurrent layers, else NULL. */
    /* [max_rows][heads][2][dim] queries and gates of attention */
    float *gated;
    /* [max_rows][n_in] products of STATE_IN */
    float *in[OP_MATRICES];
    /* [max_rows][n_low]: products of STATE_IN with LOW_DOWN */
    float *between[2];
    /* [channels] result of the convolution of a row */
    float *channel;
    /* [dim] M^T k of a value head */
    float *recall;
    /* [n_states]: [recurrent layers][n_floats], then n_more floats */
    float *state;

    /* Block drafters, else NULL. */
    /* [max_rows][n_taps][n_embd] */
    float *tap;
    /* [max_rows][n_embd] x before BLOCK_IN */
    float *saved;
    /* [max_rows][block_values()] dynamic taps */
    float *dynamic;
    /* [2][block.kernel][n_embd] */
    float *base;
    /* [max_wants + 2][block.rank] g of wants, and scratch memory */
    float *select;
    /* [max_wants][block.top_k] */
    struct block_pick *candidate;

    /* Residual streams, else NULL. */
    /* [max_rows][streams][n_embd] */
    float *mixed, *stream_gate;
    /* [max_rows][stream.n_low] */
    float *low;
    /* weights of the preceding MIX: [max_rows][streams]; of the preceding HC_IN: [max_rows] with
     * [streams] weights and [streams][streams] shares each */
    float *stream_weight;

    /* Sparse attention, else NULL. */
    /* [max_rows] queries of the indexer, and w[1] x of each token, or k of POOL_KEYS, or keys */
    float *index_q, *index_k;
    /* Pooled keys: [max_rows] g and t, and norm(r); [dim] one key */
    float *index_g, *index_t, *index_r, *index_key;
    /* [max_context] */
    float *block_score;
    /* [max_rows][sparse_sets()][seen_words] a bit for each position that a row sees */
    uint32_t *seen;
    uint32_t seen_words;

    /* NULL: keys are not compressed */
    struct ref_compressed *compressed;

    /* owns all buffers */
    struct arena arena;
    /* an allocation of ref_alloc() failed */
    bool no_memory;
};

/* Returns @rows items, at least one, of @size zero bytes, which are valid until the backend closes.
 * Returns NULL and sets b->no_memory if there is no memory. */
void *ref_alloc(struct be *b, size_t rows, size_t size);

/* Returns element @i of @t, which is F32 and need not be aligned. */
float ref_vector_at(const struct tensor *t, size_t i);
/* y = x / sqrt(mean(x^2) + eps) * weight; @weight NULL: 1; y may be x. */
void ref_rms_norm(const float *x, const struct tensor *weight, float eps, size_t n, float *y);
/* x = (x - mean) / sqrt(variance + eps) * norm + bias; @bias NULL: zeros. */
void ref_layer_norm(float *x, const struct tensor *norm, const struct tensor *bias, float eps,
                    size_t n);
/* y[r][o] = W[o] . x[r] + bias[o] for @n_rows rows. */
void ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias, const float *x,
                uint32_t n_rows, float *y);

/* b->normed = the norm with weights op->norm of the rows of ACT_X; without op->norm their
 * copy. */
void ref_norm_rows(struct step *s, const struct model_op *op);

/* b->rope = the cosines and sines of the angles of @s at the position of row @row of the step. */
void ref_set_rope(struct be *b, const struct rope_set *s, uint32_t row);
/* Rotates the pairs of the head @x by the angles in b->rope. */
void ref_rotate(const struct be *b, const struct rope_set *s, float *x);
/* Multiplies @n values of the queries of a row at @pos by their temperature. */
void ref_temper(const struct temper *t, uint32_t pos, float *q, size_t n);
/* Stores b->kv of all rows in the pages of the op. */
void ref_store_rows(struct step *s, const struct model_op *op);

/* Function that computes one row of a recurrent op. @state: the state of the row's sequence in the
 * op's layer. */
typedef void (*ref_state_fn)(struct step *s, const struct model_op *op, uint32_t row, float *state);
/* Calls @fn for each row, the rows of a sequence in their order. Zeroes the states of new sequences
 * before. */
int ref_each_state(struct step *s, const struct model_op *op, ref_state_fn fn);
/* Returns the part of the state of @q at op->more, for ops whose data follow the layers'. */
float *ref_more(const struct be *b, const struct model_op *op, const struct engine_seq *q);
/* b->channel = the convolution of row @r of in[0] and of the rows before it, which are in @past;
 * then shifts the row into @past. @past: [kernel - 1] rows, the oldest first. */
void ref_convolve(struct be *b, const struct model_op *op, uint32_t r, float *past);

/* Advances the state of head @h of Mamba-2, [dim][n_state], by one token with input @x and step
 * @dt, and writes its output @y. @parts: B, then C of all groups. */
void ref_mamba_advance(const struct be *b, const struct model_op *op, uint32_t h, const float *x,
                       const float *parts, float dt, float *state, float *y);

/* gate[i] = glu(gate[i], up[i]) for @n values, as enum glu and @limit say (op.h). */
void ref_glu(enum glu glu, float limit, float *gate, const float *up, size_t n);

/* Functions of be_ops.op, which implement the formulas of op_list.h. */
#define OP(kind, name, feature, cost) int ref_##name(struct step *s, const struct model_op *op);
#include "engine/op_list.h"
#undef OP
/* Allocates the buffers for a block drafter, if the model has one. */
void ref_blocks_alloc(struct be *b, const struct be_opts *o);
/* Allocates the buffers for compressed keys, if the model has them. */
void ref_compressed_open(struct be *b, const struct be_opts *o);
