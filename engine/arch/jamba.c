#include "engine/arch/jamba.h"

#include <assert.h>
#include <stdio.h>

#include "engine/bind/meta.h"

/* Reads the sizes of the Mamba-1 layers, bounded so that the number of floats of a state fits into
 * 64 bits. */
static void jamba_read_scan(struct binder *b, struct model_shape *s) {
    uint32_t inner = 0, kernel = 0;

    meta_u32(b, "ssm.conv_kernel", 2, 8, &kernel);
    meta_u32(b, "ssm.inner_size", 16, 1u << 18, &inner);
    meta_u32(b, "ssm.state_size", 4, 1024, &s->scan.n_state);
    meta_u32(b, "ssm.time_step_rank", 1, 1u << 16, &s->scan.n_rank);
    if (b->r < 0)
        return;
    if (inner % 16 || s->scan.n_state % 4)
        bind_refuse(b,
                    "%u channels of Mamba-1 with states of %u are not supported; a multiple of 16 "
                    "and states of a multiple of 4 are needed",
                    inner, s->scan.n_state);
    s->scan.n_part[0] = s->scan.n_rank;
    s->scan.n_part[1] = s->scan.n_part[2] = s->scan.n_state;
    s->state = (struct state_shape){
        .kernel = kernel,
        .n_in = {inner, inner, inner},
        .n_low = s->scan.n_rank + 2 * s->scan.n_state,
        .n_out = inner,
        .n_floats = (uint64_t)(kernel - 1 + s->scan.n_state) * inner,
    };
}

/* Adds x += W (Mamba-1 of norm x). */
static void jamba_scan(struct binder *b, struct model *m, uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t inner = s->state.n_out, n_state = s->scan.n_state, rank = s->scan.n_rank;
    const struct tensor *in = layer_matrix(b, l, "ssm_in", s->n_embd, 2 * inner);

    model_add(m, &(struct model_op){
                     .kind = OP_STATE_IN,
                     .layer = l,
                     .norm = layer_vector(b, l, "attn_norm", s->n_embd),
                     .w = {bind_rows(b, in, 0, inner), bind_rows(b, in, inner, inner)},
                 });
    model_add(
        m, &(struct model_op){
               .kind = OP_SCAN,
               .layer = l,
               .w = {layer_matrix(b, l, "ssm_x", inner, s->state.n_low),
                     layer_matrix(b, l, "ssm_dt", rank, inner)},
               .recurrent.state = m->shape.state.n_layer++,
               .recurrent.conv = layer_matrix(b, l, "ssm_conv1d", s->state.kernel, inner),
               .recurrent.conv_bias = bind_vector(b, BIND_MUST, inner, "blk.%u.ssm_conv1d.bias", l),
               .recurrent.dt = bind_vector(b, BIND_MUST, inner, "blk.%u.ssm_dt.bias", l),
               .recurrent.decay = bind_vectors(b, BIND_MUST, n_state, inner, "blk.%u.ssm_a", l),
               .recurrent.skip = bind_vector(b, BIND_MUST, inner, "blk.%u.ssm_d", l),
               .recurrent.part_norm = {layer_vector(b, l, "ssm_dt_norm", rank),
                                       layer_vector(b, l, "ssm_b_norm", n_state),
                                       layer_vector(b, l, "ssm_c_norm", n_state)},
           });
    decoder_project(b, m, l, ACT_D, inner, "ssm_out", false);
}

/* Returns true if layer @l has a router. */
static bool jamba_has_experts(const struct binder *b, const struct model *m, uint32_t l) {
    char name[48];

    snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", l);
    return m->shape.n_expert && gguf_find(b->file, name);
}

static void jamba_feed(struct binder *b, struct model *m, const struct decoder *d,
                       const struct layer *l) {
    if (jamba_has_experts(b, m, l->index))
        decoder_experts(b, m, d, l->index);
    else
        decoder_ffn(b, m, d, l);
}

void jamba_bind(struct binder *b, struct model *m, const struct decoder *d) {
    jamba_read_scan(b, &m->shape);
    decoder_hybrid(b, m, d, jamba_scan, jamba_feed);
}
