#include "engine/arch/lfm2.h"

#include <assert.h>

#include "engine/bind/meta.h"

/* Adds x += W (short convolution of norm x). */
static void bind_conv(struct binder *b, struct model *m, uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t n = s->n_embd;

    assert(s->state.kernel >= 2 && n % 16 == 0);
    const struct tensor *in = layer_matrix(b, l, "shortconv.in_proj", n, 3 * n);

    model_add(m,
              &(struct model_op){
                  .kind = OP_STATE_IN,
                  .layer = l,
                  .norm = layer_vector(b, l, "attn_norm", n),
                  .w = {bind_rows(b, in, 0, n), bind_rows(b, in, n, n), bind_rows(b, in, 2 * n, n)},
              });
    model_add(m, &(struct model_op){
                     .kind = OP_CONV,
                     .layer = l,
                     .recurrent.state = m->shape.state.n_layer++,
                     .recurrent.conv = layer_matrix(b, l, "shortconv.conv", s->state.kernel, n),
                 });
    decoder_project(b, m, l, ACT_D, n, "shortconv.out_proj", false);
}

void lfm2_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    uint32_t n_kv[MODEL_LAYERS_MAX], window = 0, n = s->n_embd;
    struct model_op logits;

    assert(m->n_ops == 0);
    s->state.kernel = 3;
    meta_u32_opt(b, "shortconv.l_cache", 2, 8, &s->state.kernel);
    meta_u32_layers(b, "attention.head_count_kv", 0, s->n_head, s->n_layer, n_kv);
    if (d->windowed)
        meta_u32_opt(b, "attention.sliding_window", 0, 1u << 26, &window);
    if (b->r == 0 && n % 16)
        bind_refuse(b, "'%s.embedding_length' is %u, not a multiple of 16", b->arch, n);
    s->state.n_in[0] = s->state.n_in[1] = s->state.n_in[2] = s->state.n_out = n;
    s->state.n_floats = (uint64_t)(s->state.kernel - 1) * n;
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.heads.n_kv = n_kv[i];
        l.attn.window = window;
        if (n_kv[i] == 0)
            bind_conv(b, m, i);
        else
            decoder_attention(b, m, d, &l);
        decoder_mlp(b, m, d, &l);
    }
    model_add(m, &logits);
}
