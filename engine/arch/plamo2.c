#include "engine/arch/plamo2.h"

#include <assert.h>

#include "engine/bind/meta.h"

/* Values of t; no key of the file says how many. */
static uint32_t plamo2_rank(uint32_t n_embd) {
    return MAX(64u, n_embd / 16);
}

/* Reads the sizes of the Mamba layers, bounded so that the number of floats of a state fits into 64
 * bits. */
static void plamo2_read_scan(struct binder *b, struct model_shape *s) {
    uint32_t inner = 0, kernel = 0, n_state = 0, n_head = 0, rank = plamo2_rank(s->n_embd);

    meta_u32(b, "ssm.conv_kernel", 2, 8, &kernel);
    meta_u32(b, "ssm.inner_size", 16, 1u << 18, &inner);
    meta_u32(b, "ssm.state_size", 4, 1024, &n_state);
    meta_u32(b, "ssm.time_step_rank", 1, 4096, &n_head);
    if (b->r < 0)
        return;
    if (inner % n_head || inner / n_head % 16 || n_state % 4)
        bind_refuse(b,
                    "%u channels of Mamba-1 in %u heads with states of %u are not supported; heads "
                    "of a multiple of 16 and states of a multiple of 4 are needed",
                    inner, n_head, n_state);
    s->scan =
        (struct scan_shape){.n_rank = rank, .n_state = n_state, .n_part = {n_state, n_state, rank}};
    s->mamba = (struct mamba_shape){
        .n_head = n_head, .dim = inner / n_head, .n_group = 1, .n_state = n_state};
    s->state = (struct state_shape){
        .kernel = kernel,
        .n_in = {inner, inner, n_head, 2 * inner},
        .n_low = rank + 2 * n_state,
        .n_out = inner,
        .n_floats = (uint64_t)(kernel - 1 + n_state) * inner,
    };
}

/* Binds @n values for each head or channel, whose name has no ".weight". */
static const struct tensor *plamo2_vector(struct binder *b, uint32_t l, const char *name,
                                          uint64_t n) {
    return bind_vector(b, BIND_MUST, n, "blk.%u.%s", l, name);
}

/* Adds x += norm W (Mamba-1 of norm x). */
static void plamo2_scan(struct binder *b, struct model *m, uint32_t l) {
    const struct model_shape *s = &m->shape;
    uint64_t inner = s->state.n_out, n_state = s->scan.n_state, rank = s->scan.n_rank;
    uint64_t heads = s->mamba.n_head;

    assert(b->r < 0 || s->state.n_in[3] == 2 * inner);
    model_add(m, &(struct model_op){
                     .kind = OP_STATE_IN,
                     .layer = l,
                     .state_in.first = 3,
                     .norm = layer_vector(b, l, "attn_norm", s->n_embd),
                     .w = {layer_matrix(b, l, "ssm_in", s->n_embd, 2 * inner)},
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_SCAN,
                     .layer = l,
                     .w = {layer_matrix(b, l, "ssm_x", inner, s->state.n_low),
                           layer_matrix(b, l, "ssm_dt", rank, heads)},
                     .recurrent.by_head = true,
                     .recurrent.state = m->shape.state.n_layer++,
                     .recurrent.conv = layer_matrix(b, l, "ssm_conv1d", s->state.kernel, inner),
                     .recurrent.dt = plamo2_vector(b, l, "ssm_dt.bias", heads),
                     .recurrent.decay = plamo2_vector(b, l, "ssm_a", heads),
                     .recurrent.skip = plamo2_vector(b, l, "ssm_d", heads),
                     .recurrent.part_norm = {plamo2_vector(b, l, "ssm_b_norm", n_state),
                                             plamo2_vector(b, l, "ssm_c_norm", n_state),
                                             plamo2_vector(b, l, "ssm_dt_norm", rank)},
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_PROJ,
                     .layer = l,
                     .in = ACT_D,
                     .w = {layer_matrix(b, l, "ssm_out", inner, s->n_embd)},
                     .post_norm = plamo2_vector(b, l, "post_attention_norm", s->n_embd),
                 });
}

void plamo2_bind(struct binder *b, struct model *m, const struct decoder *d) {
    plamo2_read_scan(b, &m->shape);
    decoder_hybrid(b, m, d, plamo2_scan, decoder_ffn);
}
