#include "engine/model.h"

#include <assert.h>
#include <errno.h>

#include "base/mathx.h"
#include "engine/bind/bind.h"
#include "engine/op_table.h"

void model_add(struct model *m, const struct model_op *op) {
    assert((unsigned)op->kind < OP_KINDS && !op->weights);
    if (m->r < 0)
        return;
    if (!ARRAY_GROW(m->op, m->n_ops, m->capacity, 64)) {
        m->r = -ENOMEM;
        return;
    }
    m->op[m->n_ops] = *op;
    if (op->scale == 0)
        m->op[m->n_ops].scale = 1;
    if (op->gain == 0)
        m->op[m->n_ops].gain = 1;
    if (op->width == 0)
        m->op[m->n_ops].width = m->shape.n_embd;
    m->op[m->n_ops].n_used = m->shape.n_expert_used;
    m->n_ops++;
}

struct kv_layer model_add_kv(struct model *m, uint8_t cls, const struct heads *h) {
    struct model_shape *s = &m->shape;

    assert(cls < KV_CLASSES && h->n_kv > 0 && h->dim > 0);
    struct kv_layer kv = {.layer = s->n_kv_layer[cls]++, .cls = cls, .at = s->n_kv_values[cls]};
    s->n_kv_values[cls] += 2ull * h->n_kv * h->dim;
    return kv;
}

void model_join_windows(struct model *m) {
    struct model_shape *s = &m->shape;

    for (uint32_t i = 0; i < m->n_ops; i++) {
        struct kv_layer *kv = &m->op[i].kv;

        if (kv->cls != KV_WINDOW)
            continue;
        *kv = (struct kv_layer){.layer = s->n_kv_layer[KV_GLOBAL] + kv->layer,
                                .cls = KV_GLOBAL,
                                .at = s->n_kv_values[KV_GLOBAL] + kv->at};
    }
    s->n_kv_layer[KV_GLOBAL] += s->n_kv_layer[KV_WINDOW];
    s->n_kv_values[KV_GLOBAL] += s->n_kv_values[KV_WINDOW];
    s->n_kv_layer[KV_WINDOW] = 0;
    s->n_kv_values[KV_WINDOW] = 0;
    s->window = 0;
}

void model_measure(struct model *m) {
    struct model_shape *s = &m->shape;

    s->op = m->op;
    s->n_ops = m->n_ops;
    s->n_ff = s->window = 0;
    s->two_way = s->sparse_gates = false;
    for (uint32_t i = 0; i < m->n_ops; i++) {
        const struct model_op *op = &m->op[i];
        const struct heads *h = &op->heads;

        if ((op->kind == OP_GATE_UP || op->kind == OP_GATE_IN) && op->w[0])
            s->n_ff = MAX(s->n_ff, (uint32_t)op->w[0]->ne[1]);
        s->sparse_gates |= op->kind == OP_GATE_UP && op->ffn.sparsity > 0;
        if (op->kind != OP_ATTEND && op->kind != OP_CSA_ATTEND)
            continue;
        assert(h->dim > 0 && h->n_kv > 0 && h->n % h->n_kv == 0);
        if (op->kind == OP_ATTEND) {
            s->widest.group = MAX(s->widest.group, h->n / h->n_kv);
            assert(op->kv.cls == KV_GLOBAL || op->attn.window > 0);
            s->two_way |= op->attn.two_way;
            if (op->kv.cls == KV_WINDOW)
                s->window = MAX(s->window, op->attn.window);
        }
        s->widest.q = MAX(s->widest.q, h->n * h->dim);
        s->widest.kv = MAX(s->widest.kv, h->n_kv * h->dim);
        s->widest.head = MAX(s->widest.head, h->dim);
        s->widest.group = MAX(s->widest.group, 1u);
        s->widest.n_kv = MAX(s->widest.n_kv, h->n_kv);
    }
}

void model_deinit(struct model *m) {
    free(m->op);
    views_free(m->views);
    free(m->slopes);
    free(m->host_experts);
    for (int i = 0; i < ROPE_SETS; i++) {
        free((void *)m->shape.rope[i].freq);
        free((void *)m->shape.rope[i].axis);
    }
    *m = (struct model){0};
}

/* Returns the bytes of an op's matrices, for progress reports. */
static uint64_t model_bytes(const struct model_op *op) {
    uint64_t n = 0;

    for (int i = 0; i < OP_MATRICES; i++)
        if (op->w[i])
            n += op->w[i]->n_bytes;
    return n;
}

/* Returns the name of a feature that an op needs and the backend lacks, or NULL. */
static const char *model_lacks(const struct model *m, const struct be_ops *ops,
                               const struct model_op *op) {
    if (!ops->op[op->kind])
        return op_feature(op->kind);
    return be_lacks(ops, &m->shape, op);
}

int model_check(const struct model *m, const struct be_ops *ops, struct err *err) {
    for (uint32_t i = 0; i < m->n_ops; i++) {
        const char *what = model_lacks(m, ops, &m->op[i]);

        if (what && ops->one && !model_lacks(m, ops->one, &m->op[i]))
            return err_set(err, 0, "devices",
                           "the %s backend does not divide %s between devices, and this %s model "
                           "has them: name one device, or use --backend cpu",
                           ops->name, what, m->arch);
        if (what)
            return err_set(err, 0, NULL,
                           "the %s backend does not compute %s, which this %s model has; use "
                           "--backend cpu",
                           ops->name, what, m->arch);
    }
    return 0;
}

/* Ops are loaded in the order in which they run; progress counts bytes. */
int model_load(struct model *m, const struct be_ops *ops, struct be *be,
               const struct engine_opts *opts, struct err *err) {
    uint64_t total = 0, done = 0;
    int r = 0;

    for (uint32_t i = 0; i < m->n_ops; i++)
        total += model_bytes(&m->op[i]);
    for (uint32_t i = 0; i < m->n_ops && r == 0; i++) {
        struct model_op *op = &m->op[i];

        if (!op_has_weights(op))
            continue;
        uint32_t same = op_weights_of(m->op, i);
        if (same != i) {
            op->weights = m->op[same].weights;
            done += model_bytes(op);
            continue;
        }
        if (ops->load)
            r = ops->load(be, op, &op->weights, err);
        done += model_bytes(op);
        if (r == 0 && opts->progress)
            opts->progress(opts->progress_ctx, "loading weights", (double)done / (double)total);
    }
    return r;
}

int model_forward(const struct model *m, const struct be_ops *ops, struct step *s, uint32_t pass,
                  uint64_t *progress) {
    int r = 0;

    assert(pass < PASSES && m->pass[pass].run[0].begin < m->pass[pass].run[0].end);
    for (int k = 0; k < 2; k++)
        for (uint32_t i = m->pass[pass].run[k].begin; i < m->pass[pass].run[k].end && r == 0; i++) {
            if (m->op[i].links.narrows)
                ops->narrow(s);
            r = ops->op[m->op[i].kind]->run(s, &m->op[i]);
            if (progress)
                __atomic_fetch_add(progress, 1, __ATOMIC_RELAXED);
        }
    return r;
}
