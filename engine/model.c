#include "engine/model.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

void model_add(struct model *m, const struct model_op *op) {
    assert((unsigned)op->kind < OP_KINDS && !op->weights);
    if (m->r < 0)
        return;
    if (m->n_ops == m->capacity) {
        uint32_t n = m->capacity ? 2 * m->capacity : 64;
        struct model_op *more = realloc(m->op, n * sizeof(*more));

        if (!more) {
            m->r = -ENOMEM;
            return;
        }
        m->op = more;
        m->capacity = n;
    }
    m->op[m->n_ops++] = *op;
}

struct kv_layer model_add_kv(struct model *m, uint8_t cls) {
    assert(cls < KV_CLASSES);
    return (struct kv_layer){.layer = m->shape.n_kv_layer[cls]++, .cls = cls};
}

void model_deinit(struct model *m) {
    free(m->op);
    free((void *)m->shape.rope_freq);
    *m = (struct model){0};
}

static uint64_t bytes_of(const struct model_op *op) {
    uint64_t n = 0;

    for (int i = 0; i < OP_MATRICES; i++)
        n += op->w[i] ? op->w[i]->n_bytes : 0;
    return n;
}

static int check_kinds(const struct model *m, const struct be_ops *ops, struct err *err) {
    static const char *const part[OP_KINDS] = {
        [OP_GATE] = "gated attention",        [OP_ROUTE] = "mixtures of experts",
        [OP_EXPERTS] = "mixtures of experts", [OP_SHARED] = "mixtures of experts",
        [OP_DELTA_IN] = "gated delta nets",   [OP_DELTA] = "gated delta nets",
    };

    for (uint32_t i = 0; i < m->n_ops; i++) {
        enum op_kind kind = m->op[i].kind;

        if (ops->run[kind])
            continue;
        assert(part[kind]);
        return err_set(err, 0, NULL,
                       "the %s backend does not compute %s, which %s models have: the cpu backend "
                       "does",
                       ops->name, part[kind], m->arch);
    }
    return 0;
}

/* Ops in the order in which they run; progress is by bytes. */
int model_load(struct model *m, const struct be_ops *ops, struct be *be,
               const struct engine_opts *opts, struct err *err) {
    uint64_t total = 0, done = 0;
    int r = check_kinds(m, ops, err);

    for (uint32_t i = 0; i < m->n_ops; i++)
        total += bytes_of(&m->op[i]);
    for (uint32_t i = 0; i < m->n_ops && r == 0; i++) {
        struct model_op *op = &m->op[i];

        if (!op->w[0] && !op->conv)
            continue;
        r = ops->load ? ops->load(be, op, &op->weights, err) : 0;
        done += bytes_of(op);
        if (r == 0 && opts->progress)
            opts->progress(opts->progress_ctx, "loading weights", (double)done / (double)total);
    }
    return r;
}

int model_forward(const struct model *m, const struct be_ops *ops, struct step *s) {
    int r = 0;

    for (uint32_t i = 0; i < m->n_ops && r == 0; i++)
        r = ops->run[m->op[i].kind](s, &m->op[i]);
    return r;
}
