#pragma once

/*
 * head - what a model computes from one vector of a whole text: the classifier of a reranker says
 * how well the text answers a query; an embedding model may have two matrices behind the pooling.
 * They are small, so the host computes them in f32, in a fixed order, for every backend.
 */

#include "base/err.h"
#include "base/gguf.h"

struct binder;

/* Tensors of a model's scoring head; out[0] is NULL if it has none. The score of v is o[0] - o[1],
 * or o[0] if out[1] is NULL, where o[i] = out[i] . tanh(dense v + dense_bias) + out_bias[i];
 * without dense, v replaces tanh(). The softmax of two logits is the sigmoid of their difference,
 * so a score is the logit of a probability. */
struct head_tensors {
    const struct tensor *dense, *dense_bias;
    /* out[i]: one row */
    const struct tensor *out[2], *out_bias;
    /* a pooled vector v becomes wide[1] (wide[0] v); NULL: it stays */
    const struct tensor *wide[2];
};

/* The decoded classifier. Members are NULL for parts that it lacks, and all are NULL without a
 * classifier. */
struct head {
    /* n_mid: length of the vector that out is multiplied by; n_embd without dense */
    uint32_t n_embd, n_mid;
    float *dense, *dense_bias, *out, out_bias, *mid;
    /* the matrices behind the pooling; [n_wide] values between them */
    float *wide[2], *between;
    uint32_t n_wide;
};

/* Finds the head of a model with vectors of @n_embd values, after all other tensors were bound.
 * @output: the matrix of the model's logits, or NULL. Errors stay in the binder. */
void head_bind(struct binder *b, struct head_tensors *out, uint32_t n_embd,
               const struct tensor *output);
/* Returns the bytes that head_init() decodes @t to and keeps. */
uint64_t head_bytes(const struct head_tensors *t);
/* Decodes the tensors. Returns 0 or -ENOMEM; head_deinit() accepts both, and zeros. */
int head_init(struct head *h, const struct head_tensors *t, uint32_t n_embd);
void head_deinit(struct head *h);
/* Returns the score of @v [n_embd]. Not by two threads at once. */
float head_score(struct head *h, const float *v);
/* Applies the matrices behind the pooling, which the model has, to @v [n_embd]. */
void head_widen(struct head *h, float *v);
