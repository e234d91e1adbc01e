#include "engine/bind.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int bind_init(struct binder *b, const struct gguf *file, struct model *m, struct err *err) {
    *b = (struct binder){.file = file, .model = m, .err = err};
    b->used = calloc(gguf_n_tensors(file) + 1, sizeof(*b->used));
    return b->used ? 0 : -ENOMEM;
}

void bind_deinit(struct binder *b) {
    free(b->used);
    b->used = NULL;
}

/* The tensor, counted as used; NULL when it is absent or something failed before. */
static const struct tensor *take_named(struct binder *b, enum bind_need need, const char *name) {
    if (b->r < 0 || need == BIND_NEVER)
        return NULL;
    const struct tensor *t = gguf_find(b->file, name);
    if (t) {
        bool *used = &b->used[t - gguf_tensor(b->file, 0)];

        if (!*used) {
            b->model->weight_bytes += t->n_bytes;
            b->model->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        }
        *used = true;
    } else if (need == BIND_MUST) {
        b->r = err_set(b->err, 0, NULL, "the model file has no tensor '%s', which %s models need",
                       name, b->model->arch->name);
    }
    return t;
}

static const struct tensor *take(struct binder *b, enum bind_need need, const char *fmt,
                                 va_list ap) {
    char name[96];

    vsnprintf(name, sizeof(name), fmt, ap);
    return take_named(b, need, name);
}

static bool has_shape(struct binder *b, const struct tensor *t, uint64_t n0, uint64_t n1,
                      uint64_t n2) {
    if (t->ne[0] == n0 && t->ne[1] == n1 && t->ne[2] == n2 && t->ne[3] == 1)
        return true;
    b->r = err_set(
        b->err, 0, NULL,
        "tensor '%s' is %llu x %llu x %llu x %llu, the hyperparameters say %llu x %llu x %llu",
        t->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
        (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], (unsigned long long)n0,
        (unsigned long long)n1, (unsigned long long)n2);
    return false;
}

const struct tensor *bind_matrix(struct binder *b, enum bind_need need, uint64_t n_in,
                                 uint64_t n_out, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    const struct tensor *t = take(b, need, fmt, ap);
    va_end(ap);
    return t && has_shape(b, t, n_in, n_out, 1) ? t : NULL;
}

const struct tensor *bind_matrices(struct binder *b, enum bind_need need, uint64_t n_in,
                                   uint64_t n_out, uint64_t n, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    const struct tensor *t = take(b, need, fmt, ap);
    va_end(ap);
    return t && has_shape(b, t, n_in, n_out, n) ? t : NULL;
}

const struct tensor *bind_vector(struct binder *b, enum bind_need need, uint64_t n, const char *fmt,
                                 ...) {
    va_list ap;

    va_start(ap, fmt);
    const struct tensor *t = take(b, need, fmt, ap);
    va_end(ap);
    if (!t || !has_shape(b, t, n, 1, 1))
        return NULL;
    if (t->format->type != TENSOR_F32) {
        b->r = err_set(b->err, 0, NULL, "tensor '%s' has type %s, only F32 is supported there",
                       t->name, t->format->name);
        return NULL;
    }
    return t;
}

const struct tensor *bind_any(struct binder *b, const char *name) {
    return take_named(b, BIND_MAY, name);
}

void bind_ends(struct binder *b) {
    struct model *m = b->model;
    const struct model_shape *s = &m->shape;
    const struct tensor *embed =
        bind_matrix(b, BIND_MUST, s->n_embd, s->n_vocab, "token_embd.weight");
    const struct tensor *output = bind_matrix(b, BIND_MAY, s->n_embd, s->n_vocab, "output.weight");

    m->op[0].tensors = (struct op_tensors){.kind = OP_EMBED, .w = {embed}};
    m->op[1].tensors = (struct op_tensors){
        .kind = OP_LOGITS,
        .norm = bind_vector(b, BIND_MUST, s->n_embd, "output_norm.weight"),
        .w = {output ? output : embed},
    };
}

static void bind_attention(struct binder *b, uint32_t l, const struct bind_dense *d) {
    struct model *m = b->model;
    const struct model_shape *s = &m->shape;
    uint64_t n_q = (uint64_t)s->n_head * s->head_dim, n_kv = (uint64_t)s->n_head_kv * s->head_dim;

    model_layer_op(m, l, L_QKV)->tensors = (struct op_tensors){
        .kind = OP_QKV,
        .layer = l,
        .norm = bind_vector(b, BIND_MUST, s->n_embd, "blk.%u.attn_norm.weight", l),
        .w = {bind_matrix(b, BIND_MUST, s->n_embd, n_q, "blk.%u.attn_q.weight", l),
              bind_matrix(b, BIND_MUST, s->n_embd, n_kv, "blk.%u.attn_k.weight", l),
              bind_matrix(b, BIND_MUST, s->n_embd, n_kv, "blk.%u.attn_v.weight", l)},
        .bias = {bind_vector(b, d->qkv_bias, n_q, "blk.%u.attn_q.bias", l),
                 bind_vector(b, d->qkv_bias, n_kv, "blk.%u.attn_k.bias", l),
                 bind_vector(b, d->qkv_bias, n_kv, "blk.%u.attn_v.bias", l)},
        .q_norm = bind_vector(b, d->qk_norm, s->head_dim, "blk.%u.attn_q_norm.weight", l),
        .k_norm = bind_vector(b, d->qk_norm, s->head_dim, "blk.%u.attn_k_norm.weight", l),
    };
    model_layer_op(m, l, L_ATTN_OUT)->tensors = (struct op_tensors){
        .kind = OP_PROJ,
        .layer = l,
        .w = {bind_matrix(b, BIND_MUST, n_q, s->n_embd, "blk.%u.attn_output.weight", l)},
        .bias = {bind_vector(b, d->out_bias, s->n_embd, "blk.%u.attn_output.bias", l)},
    };
}

static void bind_ffn(struct binder *b, uint32_t l, const struct bind_dense *d) {
    struct model *m = b->model;
    const struct model_shape *s = &m->shape;

    model_layer_op(m, l, L_GATE_UP)->tensors = (struct op_tensors){
        .kind = OP_GATE_UP,
        .layer = l,
        .norm = bind_vector(b, BIND_MUST, s->n_embd, "blk.%u.ffn_norm.weight", l),
        .w = {bind_matrix(b, BIND_MUST, s->n_embd, s->n_ff, "blk.%u.ffn_gate.weight", l),
              bind_matrix(b, BIND_MUST, s->n_embd, s->n_ff, "blk.%u.ffn_up.weight", l)},
        .bias = {bind_vector(b, d->ffn_bias, s->n_ff, "blk.%u.ffn_gate.bias", l),
                 bind_vector(b, d->ffn_bias, s->n_ff, "blk.%u.ffn_up.bias", l)},
    };
    model_layer_op(m, l, L_DOWN)->tensors = (struct op_tensors){
        .kind = OP_PROJ,
        .layer = l,
        .w = {bind_matrix(b, BIND_MUST, s->n_ff, s->n_embd, "blk.%u.ffn_down.weight", l)},
        .bias = {bind_vector(b, d->ffn_bias, s->n_embd, "blk.%u.ffn_down.bias", l)},
    };
}

static void bind_experts(struct binder *b, uint32_t l) {
    struct model *m = b->model;
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_expert;

    model_layer_op(m, l, L_ROUTE)->tensors = (struct op_tensors){
        .kind = OP_ROUTE,
        .layer = l,
        .norm = bind_vector(b, BIND_MUST, s->n_embd, "blk.%u.ffn_norm.weight", l),
        .w = {bind_matrix(b, BIND_MUST, s->n_embd, n, "blk.%u.ffn_gate_inp.weight", l)},
    };
    model_layer_op(m, l, L_EXPERTS)->tensors = (struct op_tensors){
        .kind = OP_EXPERTS,
        .layer = l,
        .w = {bind_matrices(b, BIND_MUST, s->n_embd, s->n_ff, n, "blk.%u.ffn_gate_exps.weight", l),
              bind_matrices(b, BIND_MUST, s->n_embd, s->n_ff, n, "blk.%u.ffn_up_exps.weight", l),
              bind_matrices(b, BIND_MUST, s->n_ff, s->n_embd, n, "blk.%u.ffn_down_exps.weight", l)},
    };
}

void bind_dense_layers(struct binder *b, const struct bind_dense *d) {
    for (uint32_t l = 0; l < b->model->shape.n_layer && b->r == 0; l++) {
        bind_attention(b, l, d);
        if (b->model->shape.n_expert)
            bind_experts(b, l);
        else
            bind_ffn(b, l, d);
    }
}

void bind_rest(struct binder *b) {
    for (uint64_t i = 0; i < gguf_n_tensors(b->file) && b->r == 0; i++)
        if (!b->used[i])
            b->r = err_set(b->err, 0, NULL, "tensor '%s' is not known in %s models",
                           gguf_tensor(b->file, i)->name, b->model->arch->name);
}
