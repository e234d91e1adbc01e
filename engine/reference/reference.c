#include "engine/reference/reference.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include "engine/backend.h"

/* Accepts what open_be() left half-built. */
static struct be *close_be(struct be *b) {
    if (!b)
        return NULL;
    for (int i = 0; i < ACT_ROLES; i++)
        free(b->act[i]);
    free(b->normed);
    free(b->kv[0]);
    free(b->kv[1]);
    free(b->up);
    free(b->row);
    free(b->gate);
    free(b->router);
    free(b->pick);
    free(b->scores);
    free(b->logits);
    free(b->rope);
    free(b->pages);
    free(b->gated);
    free(b->u);
    free(b->z);
    free(b->mix[0]);
    free(b->mix[1]);
    free(b->channel);
    free(b->recall);
    free(b->state);
    sampler_deinit(&b->sampler);
    host_step_deinit(&b->step.host);
    free(b);
    return NULL;
}

static float *floats(size_t rows, size_t width) {
    return calloc(MAX(rows, 1), width * sizeof(float));
}

/* What only models with delta nets need. */
static bool alloc_delta(struct be *b, const struct be_opts *o) {
    const struct delta_shape *d = &o->shape->delta;
    size_t n_rows = o->engine->max_rows, inner = (size_t)d->n_value_head * d->dim;

    if (!d->n_layer)
        return true;
    b->act[ACT_D] = floats(n_rows, inner);
    b->gated = floats(n_rows, (size_t)2 * o->shape->n_head * o->shape->head_dim);
    b->u = floats(n_rows, delta_channels(d));
    b->z = floats(n_rows, inner);
    b->mix[0] = floats(n_rows, (size_t)2 * d->n_value_head);
    b->mix[1] = floats(n_rows, (size_t)2 * d->n_value_head);
    b->channel = floats(1, delta_channels(d));
    b->recall = floats(1, d->dim);
    b->state = floats((size_t)o->n_states * d->n_layer, delta_state_floats(d));
    return b->act[ACT_D] && b->gated && b->u && b->z && b->mix[0] && b->mix[1] && b->channel &&
           b->recall && b->state;
}

/* false: out of memory, what there is is freed by close_be(). */
static bool alloc_buffers(struct be *b, const struct be_opts *o) {
    const struct model_shape *s = o->shape;
    const struct engine_opts *e = o->engine;
    size_t n_q = (size_t)s->n_head * s->head_dim, n_kv = (size_t)s->n_head_kv * s->head_dim;
    size_t inner = (size_t)s->delta.n_value_head * s->delta.dim,
           n_ff = MAX(s->n_ff, s->n_ff_shared);
    size_t widest = MAX(MAX(n_q, s->n_embd), MAX(n_ff, inner));

    b->act[ACT_X] = floats(e->max_rows, s->n_embd);
    b->act[ACT_Q] = floats(e->max_rows, n_q);
    b->act[ACT_O] = floats(e->max_rows, n_q);
    b->act[ACT_H] = floats(e->max_rows, s->n_ff);
    b->normed = floats(MAX(e->max_rows, e->max_wants), s->n_embd);
    b->kv[0] = floats(e->max_rows, n_kv);
    b->kv[1] = floats(e->max_rows, n_kv);
    b->up = floats(e->max_rows, n_ff);
    b->row = floats(1, widest);
    b->gate = floats(1, n_ff + s->n_embd);
    b->router = floats(e->max_rows, MAX(s->n_expert, 1));
    b->pick = calloc((size_t)e->max_rows * MAX(s->n_expert_used, 1), sizeof(*b->pick));
    b->scores = floats(s->n_head / s->n_head_kv, e->max_context);
    b->logits = floats(e->max_wants, s->n_vocab);
    b->rope = calloc(s->n_rot, sizeof(double));
    b->pages = calloc(o->n_pages, o->page_bytes);
    for (int i = 0; i <= ACT_H; i++)
        if (!b->act[i])
            return false;
    return alloc_delta(b, o) && b->gate && b->router && b->pick && b->normed && b->kv[0] &&
           b->kv[1] && b->up && b->row && b->scores && b->logits && b->rope && b->pages;
}

static int open_be(struct be **out, const struct be_opts *o, struct err *err) {
    static const struct {
        size_t block, bytes;
    } format[] = {[ENGINE_KV_F16] = {1, 2}, [ENGINE_KV_Q8_0] = {32, 34}, [ENGINE_KV_F32] = {1, 4}};
    enum engine_kv_type type = o->engine->kv_type;
    struct be *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    b->shape = o->shape;
    b->kv_type = type;
    b->page_tokens = o->engine->page_tokens;
    b->n_pages = o->n_pages;
    b->step.be = b;
    b->head_bytes = o->shape->head_dim / format[type].block * format[type].bytes;
    b->token_bytes = o->shape->n_head_kv * b->head_bytes;
    b->layer_bytes = (size_t)o->n_pages * b->page_tokens * 2 * b->token_bytes;
    assert(b->layer_bytes * o->shape->n_kv_layer[KV_GLOBAL] == o->page_bytes * o->n_pages);
    if (!alloc_buffers(b, o) || sampler_init(&b->sampler, o->shape->n_vocab) < 0 ||
        host_step_init(&b->step.host, o) < 0) {
        close_be(b);
        err_set(err, 0, NULL, "out of memory for %u pages and %u rows", o->n_pages,
                o->engine->max_rows);
        return -ENOMEM;
    }
    *out = b;
    return 0;
}

static const char *isa(const struct be *b) {
    return "generic";
}

static uint32_t n_threads(const struct be *b) {
    return 1;
}

static int begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    host_step_begin(&b->step.host, batch);
    *out = &b->step;
    return 0;
}

static int mask(struct step *s, uint32_t want, const uint32_t *bits) {
    host_step_mask(&s->host, want, bits);
    return 0;
}

static int sample(struct step *s) {
    for (uint32_t k = 0; k < s->host.n_scored; k++)
        host_step_sample(&s->host, s->host.scored[k],
                         s->be->logits + (size_t)k * s->be->shape->n_vocab, &s->be->sampler);
    return 0;
}

static int end(struct step *s, struct engine_result *out) {
    host_step_end(&s->host, out);
    return 0;
}

static int copy(struct be *b, const struct engine_copy *c) {
    size_t bytes = b->layer_bytes / b->n_pages;

    assert(c->dir == COPY_D2D && c->src < b->n_pages && c->dst < b->n_pages);
    for (uint32_t l = 0; l < b->shape->n_kv_layer[KV_GLOBAL]; l++) {
        uint8_t *layer = b->pages + l * b->layer_bytes;

        memmove(layer + c->dst * bytes, layer + c->src * bytes, bytes);
    }
    return 0;
}

static int copy_state(struct be *b, uint32_t src, uint32_t dst) {
    const struct delta_shape *d = &b->shape->delta;
    size_t n = d->n_layer * delta_state_floats(d);

    memmove(b->state + dst * n, b->state + src * n, n * sizeof(float));
    return 0;
}

static const float *peek(const struct be *b, uint32_t want) {
    return b->logits + (size_t)b->step.host.logits_of[want] * b->shape->n_vocab;
}

const struct be_ops backend_reference = {
    .abi = BACKEND_ABI,
    .name = "reference",
    .depth = 1,
    .hidden = true,
    .open = open_be,
    .close = close_be,
    .isa = isa,
    .n_threads = n_threads,
    .begin = begin,
    .run =
        {
            [OP_EMBED] = ref_embed,
            [OP_QKV] = ref_qkv,
            [OP_ATTEND] = ref_attend,
            [OP_GATE] = ref_gate,
            [OP_PROJ] = ref_proj,
            [OP_GATE_UP] = ref_gate_up,
            [OP_ROUTE] = ref_route,
            [OP_EXPERTS] = ref_experts,
            [OP_SHARED] = ref_shared,
            [OP_DELTA_IN] = ref_delta_in,
            [OP_DELTA] = ref_delta,
            [OP_LOGITS] = ref_logits,
        },
    .mask = mask,
    .sample = sample,
    .end = end,
    .copy = copy,
    .copy_state = copy_state,
    .peek = peek,
};
