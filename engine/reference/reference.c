#include "engine/reference/reference.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/sparse.h"

/* Implements be_ops.close; accepts a backend that ref_open_be() left half-built. */
static struct be *ref_close_be(struct be *b) {
    if (!b)
        return NULL;
    arena_deinit(&b->arena);
    sampler_deinit(&b->sampler);
    host_step_deinit(&b->step.host);
    free(b);
    return NULL;
}

void *ref_alloc(struct be *b, size_t rows, size_t size) {
    void *p = arena_alloc_array(&b->arena, MAX(rows, 1), MAX(size, 1));

    b->no_memory |= !p;
    return p;
}

/* Returns @rows rows of @width zeros, like ref_alloc(). */
static float *floats(struct be *b, size_t rows, size_t width) {
    return ref_alloc(b, rows, width * sizeof(float));
}

/* Allocates the buffers of recurrent layers, if the model has any. */
static void alloc_states(struct be *b, const struct be_opts *o) {
    const struct state_shape *t = &o->shape->state;
    size_t n_rows = o->engine->max_rows;

    if (!t->n_layer)
        return;
    b->gated = floats(b, n_rows, (size_t)2 * o->shape->widest.q);
    for (int i = 0; i < OP_MATRICES; i++)
        b->in[i] = floats(b, n_rows, t->n_in[i]);
    for (size_t i = 0; i < ARRAY_SIZE(b->between); i++)
        b->between[i] = floats(b, n_rows, t->n_low);
    b->channel = floats(b, 1, t->n_in[0]);
    b->recall = floats(b, 1, o->shape->delta.dim);
    b->state = floats(b, o->n_states, state_floats(t));
}

/* Allocates the buffers of latent attention, if the model has it. */
static void alloc_latent(struct be *b, const struct be_opts *o) {
    const struct model_shape *s = o->shape;
    const struct mla_shape *a = &s->mla;
    size_t n_rows = o->engine->max_rows;

    if (!a->rank)
        return;
    b->latent = floats(b, n_rows, s->head_dim);
    b->latent_q = floats(b, n_rows, a->q_rank);
    b->latent_heads = floats(b, n_rows, (size_t)s->n_head * (a->n_nope + s->head_dim - a->rank));
}

/* Allocates the buffers of residual streams and of sparse attention, if the model has them. */
static void alloc_streams(struct be *b, const struct be_opts *o) {
    const struct model_shape *s = o->shape;
    const struct sparse_shape *p = &s->sparse;
    size_t n_rows = o->engine->max_rows, width = (size_t)s->stream.n * s->n_embd;

    b->seen_words = sparse_words(o->engine->max_context);
    if (s->stream.n) {
        b->mixed = floats(b, n_rows, width);
        b->stream_gate = floats(b, n_rows, width);
        b->low = floats(b, n_rows, s->stream.n_low);
        b->stream_weight = floats(b, n_rows, (size_t)s->stream.n * (s->stream.n + 1));
    }
    if (!p->n_layer)
        return;
    b->index_q = floats(b, n_rows, (size_t)p->n_head * p->dim);
    b->index_k = floats(b, n_rows, p->dim);
    b->index_g = floats(b, n_rows, p->dim);
    b->index_t = floats(b, n_rows, p->n_head);
    b->index_r = floats(b, n_rows, s->mla.q_rank);
    b->index_key = floats(b, 1, p->dim);
    b->block_score = floats(b, 1, o->engine->max_context);
    b->seen = ref_alloc(b, n_rows * sparse_sets(p), b->seen_words * sizeof(*b->seen));
}

/* Allocates all buffers, or sets b->no_memory. */
static void alloc_buffers(struct be *b, const struct be_opts *o) {
    const struct model_shape *s = o->shape;
    const struct engine_opts *e = o->engine;
    size_t n_q = s->widest.q, n_kv = s->widest.kv, n_in = (size_t)s->n_layer * s->n_layer_input;
    size_t n_ff = MAX(MAX(s->n_ff, s->n_ff_expert), s->n_ff_shared);
    size_t widest = MAX(MAX(MAX(n_q, s->n_embd), MAX(n_ff, s->state.n_out)),
                        MAX(n_in, (size_t)s->n_head * s->mla.n_value));

    b->row_width = MAX(MAX(widest, s->mla.n_nope), MAX(s->mla.q_rank, s->mla.rank));
    b->row_width = MAX(b->row_width, MAX((size_t)s->stream.n * s->n_embd, s->sparse.dim));
    b->row_width = MAX(b->row_width, MAX(s->stream.n_low, s->compressed.q_rank));
    b->row_width = MAX(b->row_width, s->scan.n_rank);
    if (s->drafts) {
        b->row_width = MAX(b->row_width, MAX(2ul, s->n_taps) * s->n_embd);
        b->pair = floats(b, e->max_rows, 2ul * hidden_width(s));
    }

    b->act[ACT_X] = floats(b, e->max_rows, s->n_embd);
    b->act[ACT_Q] = floats(b, e->max_rows, n_q);
    b->act[ACT_O] = floats(b, e->max_rows, n_q);
    b->act[ACT_H] = floats(b, e->max_rows, s->n_ff);
    b->act[ACT_D] =
        floats(b, e->max_rows, MAX(MAX(s->state.n_out, s->n_head * s->mla.n_value), s->n_latent));
    b->act[ACT_B] = floats(b, e->max_rows, s->n_embd);
    b->act[ACT_P] = floats(b, e->max_rows, n_in);
    b->act[ACT_S] = floats(b, e->max_rows, (size_t)s->stream.n * s->n_embd);
    b->normed = floats(b, MAX(e->max_rows, e->max_wants), s->n_embd);
    b->kv[0] = floats(b, e->max_rows, n_kv);
    b->kv[1] = floats(b, e->max_rows, n_kv);
    b->up = floats(b, e->max_rows, n_ff);
    b->sum = floats(b, 1, s->n_embd);
    b->row = floats(b, 1, b->row_width);
    b->gate = floats(b, 1, 2 * n_ff + s->n_embd);
    b->router = floats(b, e->max_rows + 1, s->n_expert);
    b->pick = ref_alloc(b, e->max_rows, s->n_expert_used * sizeof(*b->pick));
    b->scores = floats(b, s->widest.group, e->max_context);
    b->logits = floats(b, e->max_wants, s->n_vocab);
    b->rope = ref_alloc(b, s->widest.head, sizeof(double));
    for (int i = 0; i < KV_CLASSES; i++)
        b->pages[i] = ref_alloc(b, b->n_pages[i] + 1u, b->page_bytes[i]);
    ref_blocks_alloc(b, o);
    alloc_states(b, o);
    alloc_latent(b, o);
    alloc_streams(b, o);
    ref_compressed_open(b, o);
}

/* Implements be_ops.open. */
static int ref_open_be(struct be **out, const struct be_opts *o, struct err *err) {
    struct be *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    b->shape = o->shape;
    b->kv_type = o->engine->kv_type;
    b->page_tokens = o->engine->page_tokens;
    b->n_pages[KV_GLOBAL] = o->n_pages;
    b->n_pages[KV_WINDOW] = o->n_windows;
    b->n_states = o->n_states;
    b->step.be = b;
    for (int i = 0; i < KV_CLASSES; i++)
        b->page_bytes[i] = page_size(o->shape, (uint8_t)i, b->kv_type, b->page_tokens);
    assert(b->page_bytes[KV_GLOBAL] == o->page_bytes && o->engine->max_context > 0);
    arena_init(&b->arena, SIZE_MAX);
    alloc_buffers(b, o);
    if (b->no_memory || sampler_init(&b->sampler, o->shape->n_vocab) < 0 ||
        host_step_init(&b->step.host, o) < 0) {
        ref_close_be(b);
        err_set(err, 0, NULL, "out of memory for %u pages and %u rows", o->n_pages,
                o->engine->max_rows);
        return -ENOMEM;
    }
    *out = b;
    return 0;
}

static const char *ref_isa(const struct be *b) {
    return "generic";
}

static uint32_t ref_n_threads(const struct be *b) {
    return 1;
}

static int ref_begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    host_step_begin(&b->step.host, batch);
    *out = &b->step;
    return 0;
}

static int mask(struct step *s, uint32_t want, const uint32_t *bits) {
    host_step_mask(&s->host, want, bits);
    return 0;
}

static int ref_sample(struct step *s) {
    assert(s->host.batch); /* between begin and end */
    for (uint32_t k = 0; k < s->host.n_scored; k++)
        host_step_sample(&s->host, s->host.scored[k],
                         s->be->logits + (size_t)k * s->be->shape->n_vocab, &s->be->sampler);
    return 0;
}

static int ref_end(struct step *s, struct engine_result *out) {
    host_step_end(&s->host, out);
    return 0;
}

static int ref_copy(struct be *b, const struct engine_copy *c) {
    size_t n = b->page_bytes[c->cls];
    uint8_t *pages = b->pages[c->cls];

    assert(c->dir == COPY_D2D && c->src < b->n_pages[c->cls] && c->dst < b->n_pages[c->cls]);
    memmove(pages + c->dst * n, pages + c->src * n, n);
    return 0;
}

static int copy_state(struct be *b, uint32_t src, uint32_t dst) {
    size_t n = state_floats(&b->shape->state);

    assert(src < b->n_states && dst < b->n_states);
    memmove(b->state + dst * n, b->state + src * n, n * sizeof(float));
    return 0;
}

static const float *ref_peek(const struct be *b, uint32_t want) {
    assert(want < b->step.host.max_wants);
    return b->logits + (size_t)b->step.host.logits_of[want] * b->shape->n_vocab;
}

#define OP(kind, name, feature, cost) [OP_##kind] = &(const struct op_code){.run = ref_##name},

static const struct op_code *const ref_ops[OP_KINDS] = {
#include "engine/op_list.h"
};

#undef OP

const struct be_ops backend_reference = {
    .abi = BACKEND_ABI,
    .name = "reference",
    .depth = 1,
    .hidden = true,
    .open = ref_open_be,
    .close = ref_close_be,
    .isa = ref_isa,
    .n_threads = ref_n_threads,
    .begin = ref_begin,
    .op = ref_ops,
    .mask = mask,
    .sample = ref_sample,
    .end = ref_end,
    .copy = ref_copy,
    .copy_state = copy_state,
    .peek = ref_peek,
};
