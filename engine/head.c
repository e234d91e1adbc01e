#include "engine/head.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathx.h"
#include "base/result.h"
#include "base/try.h"
#include "engine/bind/bind.h"
#include "engine/formats/quant.h"
#include "engine/host.h"

/* Returns true if the file says, by its type of pooling or by its name, that the model is a
 * reranker. */
static bool is_reranker(const struct binder *b) {
    static const char *const keys[] = {"general.name", "general.basename", "general.finetune"};
    struct gguf_str s;
    uint32_t pooling;
    char key[96];

    snprintf(key, sizeof(key), "%s.pooling_type", b->arch);
    if (gguf_u32(b->file, key, &pooling) == 0 && pooling == 4)
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        if (gguf_string(b->file, keys[i], &s) == 0)
            for (size_t at = 0; at + 6 <= s.len; at++)
                if (strncasecmp(s.data + at, "rerank", 6) == 0)
                    return true;
    return false;
}

/* Returns the row of @t of the token whose text is @text; NULL: there is none. */
static const struct tensor *head_row(struct binder *b, const struct tensor *t, const char *text) {
    const struct gguf_array *tokens = gguf_array(b->file, "tokenizer.ggml.tokens");

    if (!tokens || gguf_array_type(tokens) != GGUF_STRING)
        return NULL;
    for (uint64_t i = 0; i < gguf_array_n(tokens) && i < t->ne[1]; i++) {
        struct gguf_str s = gguf_array_str(tokens, i);

        if (s.len == strlen(text) && memcmp(s.data, text, s.len) == 0)
            return bind_rows(b, t, i, 1);
    }
    return NULL;
}

/* Qwen's rerankers answer with a word, and files of them may have no classifier of their own. */
static void bind_words(struct binder *b, struct head_tensors *h, const struct tensor *output) {
    if (strcmp(b->arch, "qwen3") != 0 || !output || !is_reranker(b))
        return;
    h->out[0] = head_row(b, output, "yes");
    h->out[1] = head_row(b, output, "no");
    if (!h->out[1])
        h->out[0] = NULL;
}

/* Binds the matrices behind the pooling, which have no biases and no activation between them. */
static void bind_wide(struct binder *b, struct head_tensors *h, uint32_t n) {
    const struct tensor *first = bind_any(b, "dense_2.weight");

    if (!first)
        return;
    h->wide[0] = bind_matrix(b, BIND_MUST, n, first->ne[1], "dense_2.weight");
    h->wide[1] = bind_matrix(b, BIND_MUST, first->ne[1], n, "dense_3.weight");
}

void head_bind(struct binder *b, struct head_tensors *h, uint32_t n, const struct tensor *output) {
    const struct tensor *dense = bind_any(b, "cls.weight"), *out = bind_any(b, "cls.output.weight");
    const struct tensor *only = dense;

    if (out)
        only = out;
    if (b->r < 0)
        return;
    bind_wide(b, h, n);
    if (!only) {
        bind_words(b, h, output);
        return;
    }
    h->dense_bias = bind_vector(b, BIND_MAY, dense ? dense->ne[1] : n, "cls.bias");
    h->dense = bind_matrix(b, BIND_MAY, n, dense ? dense->ne[1] : n, "cls.weight");
    uint64_t width = n;

    if (out && dense)
        width = dense->ne[1];
    bind_matrix(b, BIND_MAY, width, out ? out->ne[1] : 1, "cls.output.weight");
    h->out_bias = bind_vector(b, BIND_MAY, only->ne[1], "cls.output.bias");
    if (b->r < 0 || only->ne[1] > 2 || (only->ne[1] == 2 && strcmp(b->arch, "qwen3") != 0))
        return; /* a classifier with another number of classes */
    for (uint32_t i = 0; i < only->ne[1]; i++)
        h->out[i] = bind_rows(b, only, i, 1);
    if (!out) { /* the head is a single matrix */
        h->out_bias = h->dense_bias;
        h->dense = h->dense_bias = NULL;
    }
}

/* Returns the decoded values of @t, which the caller frees; NULL: no memory, or @t is NULL. */
static float *head_decode(const struct tensor *t) {
    if (!t)
        return NULL;
    float *v = calloc(t->ne[0], t->ne[1] * sizeof(*v));

    for (uint64_t i = 0; i < t->ne[1] && v; i++)
        quant_decode_row(t, i, v + i * t->ne[0]);
    return v;
}

uint64_t head_bytes(const struct head_tensors *t) {
    const struct tensor *const kept[] = {t->wide[0], t->wide[1], t->dense, t->dense_bias,
                                         t->out[0]};
    uint64_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        if (kept[i])
            n += kept[i]->ne[0] * kept[i]->ne[1] * sizeof(float);
    return n;
}

/* Decodes the matrices behind the pooling. Returns 0 or -ENOMEM. */
static int head_init_wide(struct head *h, const struct head_tensors *t) {
    if (!t->wide[0])
        return 0;
    h->n_wide = (uint32_t)t->wide[0]->ne[1];
    h->between = calloc(h->n_wide, sizeof(*h->between));
    for (int i = 0; i < 2; i++)
        h->wide[i] = head_decode(t->wide[i]);
    return enomem_unless(h->between && h->wide[0] && h->wide[1]);
}

int head_init(struct head *h, const struct head_tensors *t, uint32_t n_embd) {
    *h = (struct head){.n_embd = n_embd, .n_mid = n_embd};
    TRY(head_init_wide(h, t));
    if (!t->out[0])
        return 0;
    h->n_mid = (uint32_t)t->out[0]->ne[0];
    assert(t->dense ? t->dense->ne[1] == h->n_mid : h->n_mid == n_embd);
    h->mid = calloc(h->n_mid, sizeof(*h->mid));
    h->out = head_decode(t->out[0]);
    h->dense = head_decode(t->dense);
    h->dense_bias = head_decode(t->dense_bias);
    float *no = head_decode(t->out[1]), *bias = head_decode(t->out_bias);
    bool ok = h->mid && h->out && (h->dense || !t->dense) && (h->dense_bias || !t->dense_bias) &&
              (no || !t->out[1]) && (bias || !t->out_bias);
    for (uint32_t i = 0; i < h->n_mid && ok && no; i++)
        h->out[i] -= no[i];
    if (ok && bias)
        h->out_bias = no ? bias[0] - bias[1] : bias[0];
    free(no);
    free(bias);
    return enomem_unless(ok);
}

void head_deinit(struct head *h) {
    free(h->dense);
    free(h->dense_bias);
    free(h->out);
    free(h->mid);
    free(h->wide[0]);
    free(h->wide[1]);
    free(h->between);
    *h = (struct head){0};
}

void head_widen(struct head *h, float *v) {
    assert(h->wide[0] && h->wide[1]);
    for (uint32_t i = 0; i < h->n_wide; i++)
        h->between[i] = host_dot(h->wide[0] + (size_t)i * h->n_embd, v, h->n_embd);
    for (uint32_t i = 0; i < h->n_embd; i++)
        v[i] = host_dot(h->wide[1] + (size_t)i * h->n_wide, h->between, h->n_wide);
}

/* Returns tanh(z). A vector may have a NaN, which mx_exp() does not take. */
static float head_tanh(double z) {
    if (isnan(z))
        return (float)z;
    double e = mx_exp(-2 * fmin(fmax(z, -40), 40));
    return (float)((1 - e) / (1 + e));
}

float head_score(struct head *h, const float *v) {
    for (uint32_t i = 0; i < h->n_mid && h->dense; i++) {
        float x = host_dot(h->dense + (size_t)i * h->n_embd, v, h->n_embd);

        if (h->dense_bias)
            x += h->dense_bias[i];
        h->mid[i] = head_tanh((double)x);
    }
    return host_dot(h->out, h->dense ? h->mid : v, h->n_mid) + h->out_bias;
}
