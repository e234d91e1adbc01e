#pragma once

/*
 * head - the classifier of a reranker, which computes from a hidden vector how well a text answers
 * a query. It is small, so it is computed here in f32, in one order, for vectors of every backend.
 */

#include "base/err.h"
#include "base/gguf.h"

struct binder;

/* Tensors of a model's scoring head; out[0] is NULL where it has none. The score of v is o[0] -
 * o[1], or o[0] without out[1], where o[i] = out[i] . tanh(dense v + dense_bias) + out_bias[i];
 * without dense, v itself takes the place of tanh(). The softmax of two logits is the sigmoid of
 * their difference, so a score is the logit of a probability. */
struct head_tensors {
    const struct tensor *dense, *dense_bias;
    const struct tensor *out[2], *out_bias; /* out[i]: one row */
};

/* The decoded classifier; NULL: parts that it lacks; all are NULL without a classifier. */
struct head {
    uint32_t n_embd, n_mid; /* n_mid: length of the vector that out is multiplied by; n_embd without
                             * dense */
    float *dense, *dense_bias, *out, out_bias, *mid;
};

/* Finds the head of a model with vectors of @n_embd among the tensors of its file, whose other
 * tensors have been bound; @output: the matrix of its logits, or NULL. Errors stay in the
 * binder. */
void head_bind(struct binder *b, struct head_tensors *out, uint32_t n_embd,
               const struct tensor *output);
/* Decodes the tensors. Returns 0 or -ENOMEM; head_deinit() accepts both, and zeros. */
int head_init(struct head *h, const struct head_tensors *t, uint32_t n_embd);
void head_deinit(struct head *h);
/* Returns the score of @v [n_embd]. Not by two threads at once. */
float head_score(struct head *h, const float *v);
