#include "engine/arch/apertus.h"

#include <assert.h>
#include <math.h>

#include "base/mathx.h"
#include "base/util.h"

/* Reads a number for each layer. The keys do not begin with the name of the architecture. */
static void apertus_numbers(struct binder *b, const char *key, uint32_t n, float *out) {
    const struct gguf_array *a = b->r < 0 ? NULL : gguf_array(b->file, key);

    if (b->r < 0)
        return;
    if (!a || gguf_array_read(a, GGUF_F32, 0, n, out) != n) {
        bind_refuse(b, "'%s' has no number for some layers", key);
        return;
    }
    for (uint32_t l = 0; l < n; l++)
        if (!(fabsf(out[l]) <= 1e3f))
            bind_refuse(b, "'%s' is %g for layer %u, which is out of range", key, (double)out[l],
                        l);
}

void apertus_bind(struct binder *b, struct model *m, const struct decoder *d) {
    static const char *const keys[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
    float v[ARRAY_SIZE(keys)][MODEL_LAYERS_MAX];

    assert(m->shape.n_layer <= MODEL_LAYERS_MAX && d->glu == GLU_XIELU);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        apertus_numbers(b, keys[i], m->shape.n_layer, v[i]);
    decoder_bind(b, m, d);
    for (uint32_t i = 0; i < m->n_ops && b->r == 0 && m->r == 0; i++) {
        struct model_op *op = &m->op[i];
        uint32_t l = op->layer;

        if (op->kind != OP_GATE_UP)
            continue;
        op->ffn.xielu = (struct xielu){
            .square = mx_softplus(v[0][l]),
            .below = v[2][l] + mx_softplus(v[1][l]),
            .linear = v[2][l],
            .limit = v[3][l],
        };
    }
}
