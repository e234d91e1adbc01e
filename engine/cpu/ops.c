#include "engine/cpu/state.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include "base/mathx.h"
#include "engine/quant.h"

/*
 * The ops of a step, each a few forks of the pool: the input rows normed and rounded (prepare), the
 * product (matmul.c), what follows row by row.
 */

/* What is done row by row. */
struct rows {
    struct step *step;
    const struct weights *w;
    const struct model_op *op;
    const float *in;
    size_t in_stride;
    uint32_t n, n_in, acts; /* acts: bit per enum acts_kind into which it goes */
    bool wanted;            /* row i is that of the i-th want with logits */
    _Atomic uint32_t next;
};

typedef void (*row_fn)(const struct rows *r, uint32_t row, uint32_t thread);

struct row_run {
    struct rows *rows;
    row_fn fn;
};

static void do_rows(void *ctx, uint32_t thread) {
    const struct row_run *run = ctx;
    uint32_t i;

    while ((i = atomic_fetch_add(&run->rows->next, 1)) < run->rows->n)
        run->fn(run->rows, i, thread);
}

/* One or two rows are done here: waking the other threads would take longer. */
static void each_row(struct rows *r, row_fn fn) {
    struct row_run run = {r, fn};

    atomic_store(&r->next, 0);
    if (r->n <= 2)
        do_rows(&run, 0);
    else
        pool_run(r->step->be->pool, do_rows, &run);
}

static void fill_rope(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct model_shape *shape = &r->step->be->shape;
    uint32_t half = shape->n_rot / 2;
    float *cs = r->step->be->rope + (size_t)row * shape->n_rot;

    for (uint32_t i = 0; i < half; i++) {
        double s, c;

        mx_sincos((double)r->step->host.row_pos[row] * shape->rope_freq[i], &s, &c);
        cs[i] = (float)c * shape->rope_mscale;
        cs[half + i] = (float)s * shape->rope_mscale;
    }
}

int ops_begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct step *s = &b->step;
    struct rows r = {.step = s, .n = batch->n_rows};

    assert(batch->n_rows <= b->max_rows && batch->n_wants <= b->max_wants);
    host_step_begin(&s->host, batch);
    s->n_rows = batch->n_rows;
    attend_begin(s);
    each_row(&r, fill_rope);
    *out = s;
    return 0;
}

static float *act_row(const struct be *b, enum act_role role, uint32_t row) {
    return b->act[role] + row * b->act_width[role];
}

static void embed_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct engine_batch *batch = r->step->host.batch;
    float *x = act_row(r->step->be, ACT_X, row);

    const struct tensor *t = &r->op->weights->embedding;

    assert((uint32_t)batch->token[row] < t->ne[1]);
    quant_decode_row(t, (uint32_t)batch->token[row], x);
}

int ops_embed(struct step *s, const struct model_op *op) {
    struct rows r = {.step = s, .op = op, .n = s->n_rows};

    each_row(&r, embed_row);
    return 0;
}

/* Norms a row, when the op has a norm, and stores it in every form that its matrices want. */
static void prepare_row(const struct rows *r, uint32_t row, uint32_t thread) {
    struct be *b = r->step->be;
    const struct host_step *host = &r->step->host;
    uint32_t from = r->wanted ? host->batch->want[host->scored[row]].row : row;
    const float *x = r->in + from * r->in_stride;
    uint32_t tile = row / TILE_MAX, width = tile_width(MIN(r->n - tile * TILE_MAX, TILE_MAX));

    if (r->w->norm) {
        float *y = b->row + thread * b->row_width;

        b->kernels->norm(x, r->w->norm, y, r->n_in, b->shape.rms_eps);
        x = y;
    }
    for (uint32_t kind = 0; kind < ACTS_KINDS; kind++)
        if (r->acts & 1u << kind)
            b->kernels->acts_store[kind](x, r->n_in,
                                         b->acts[kind] + tile * acts_bytes(kind, r->n_in, TILE_MAX),
                                         width, row % TILE_MAX);
}

/* As ops_prepare() has it: @r says which rows. */
static struct matmul prepare_all(struct rows *r, uint32_t first, uint32_t n_mats) {
    struct be *b = r->step->be;
    struct matmul mm = {
        .kernels = b->kernels,
        .n_mats = n_mats,
        .n_rows = r->n,
        .scratch = b->scratch,
    };

    assert(n_mats > 0 && first + n_mats <= r->w->n_mats);
    assert(r->n <= MAX(b->max_rows, b->max_wants));
    r->n_in = r->w->m[first].n_in;
    for (uint32_t i = 0; i < n_mats; i++) {
        mm.m[i] = &r->w->m[first + i];
        r->acts |= 1u << panel_infos[mm.m[i]->format].acts;
    }
    each_row(r, prepare_row);
    for (uint32_t i = 0; i < ACTS_KINDS; i++)
        mm.acts[i] = b->acts[i];
    return mm;
}

struct matmul ops_prepare_rows(struct step *s, const struct weights *w, uint32_t first,
                               uint32_t n_mats, const float *in, size_t stride) {
    struct rows r = {.step = s, .w = w, .in = in, .in_stride = stride, .n = s->n_rows};

    return prepare_all(&r, first, n_mats);
}

struct matmul ops_prepare(struct step *s, const struct weights *w, uint32_t first, uint32_t n_mats,
                          enum act_role in) {
    const struct be *b = s->be;

    assert(b->act_width[in] == w->m[first].n_in);
    return ops_prepare_rows(s, w, first, n_mats, b->act[in], b->act_width[in]);
}

/* All of the op's matrices. */
static struct matmul prepare(struct step *s, enum act_role in, const struct weights *w) {
    return ops_prepare(s, w, 0, w->n_mats, in);
}

/* Per head: norm, rotation. */
static void finish_heads(const struct be *b, float *x, uint32_t n_heads, const float *norm,
                         const float *cs) {
    for (uint32_t h = 0; h < n_heads; h++, x += b->shape.head_dim) {
        if (norm)
            b->kernels->norm(x, norm, x, b->shape.head_dim, b->shape.rms_eps);
        b->kernels->rope(x, cs, b->shape.n_rot, b->shape.rope);
    }
}

/* After the product: heads normed and rotated, keys and values into their page. A row writes
 * its own slots only. */
static void finish_qkv_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    const struct model_shape *m = &b->shape;
    const struct kv_view *view = &b->view;
    const float *cs = b->rope + (size_t)row * m->n_rot;
    size_t kv_width = (size_t)m->n_head_kv * m->head_dim;
    float *k = b->k + row * kv_width, *v = b->v + row * kv_width;
    uint32_t pos = r->step->host.row_pos[row], page = host_page(&r->step->host, row, pos);
    uint8_t *layer = b->kv + page * b->page_bytes + r->op->kv.layer * b->layer_bytes;
    uint8_t *values = layer + m->n_head_kv * view->k_head;

    assert(page < b->n_pages);
    for (uint32_t h = 0; r->op->gated && h < m->n_head; h++)
        memcpy(act_row(b, ACT_Q, row) + (size_t)h * m->head_dim,
               b->gated + ((size_t)row * m->n_head + h) * 2 * m->head_dim,
               m->head_dim * sizeof(float));
    finish_heads(b, act_row(b, ACT_Q, row), m->n_head, r->w->q_norm, cs);
    finish_heads(b, k, m->n_head_kv, r->w->k_norm, cs);
    for (uint32_t h = 0; h < m->n_head_kv; h++)
        b->kernels->kv_write(view, layer + h * view->k_head, values + h * view->v_head,
                             pos % view->page_tokens, k + h * m->head_dim, v + h * m->head_dim);
}

int ops_qkv(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t kv_width = (size_t)b->shape.n_head_kv * b->shape.head_dim;
    struct matmul mm = prepare(s, ACT_X, op->weights);
    struct rows r = {.step = s, .w = op->weights, .op = op, .n = s->n_rows};

    assert(op->kv.cls == KV_GLOBAL);
    mm.mode = MATMUL_STORE;
    mm.out[0] = op->gated ? b->gated : b->act[ACT_Q];
    mm.out[1] = b->k;
    mm.out[2] = b->v;
    mm.out_stride[0] = op->weights->m[0].n_out;
    mm.out_stride[1] = mm.out_stride[2] = kv_width;
    matmul_run(b->pool, &mm, 1);
    each_row(&r, finish_qkv_row);
    return 0;
}

int ops_attend(struct step *s, const struct model_op *op) {
    assert(op->attn.window == 0 && op->kv.cls == KV_GLOBAL);
    attend_run(s, op);
    return 0;
}

/* The gates are where ops_qkv() left them. */
static void gate_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = b->shape.n_head, dim = b->shape.head_dim;

    for (uint32_t h = 0; h < n; h++)
        b->kernels->gate(act_row(b, ACT_O, row) + (size_t)h * dim,
                         b->gated + (((size_t)row * n + h) * 2 + 1) * dim, dim);
}

int ops_gate(struct step *s, const struct model_op *op) {
    struct rows r = {.step = s, .op = op, .n = s->n_rows};

    assert(s->be->gated);
    each_row(&r, gate_row);
    return 0;
}

int ops_proj(struct step *s, const struct model_op *op) {
    struct matmul mm = prepare(s, op->in, op->weights);

    assert(op->in == ACT_O || op->in == ACT_H || op->in == ACT_D);
    mm.mode = MATMUL_ADD;
    mm.out[0] = s->be->act[ACT_X];
    mm.out_stride[0] = s->be->act_width[ACT_X];
    matmul_run(s->be->pool, &mm, 1);
    return 0;
}

int ops_gate_up(struct step *s, const struct model_op *op) {
    struct matmul mm = prepare(s, ACT_X, op->weights);

    assert(op->weights->n_mats == 2);
    mm.mode = MATMUL_SILU;
    mm.out[0] = s->be->act[ACT_H];
    mm.out_stride[0] = s->be->act_width[ACT_H];
    matmul_run(s->be->pool, &mm, 1);
    return 0;
}

/* The final norm's output of a row, where that is what is wanted. */
static void put_hidden(const struct rows *r, uint32_t want, uint32_t thread) {
    struct be *b = r->step->be;
    const struct engine_want *w = &r->step->host.batch->want[want];

    if (w->what == WANT_HIDDEN)
        b->kernels->norm(act_row(b, ACT_X, w->row), r->w->norm,
                         host_step_vector(&r->step->host, want), b->shape.n_embd, b->shape.rms_eps);
}

/* Hidden vectors do not go through the matrix: their wants are not among the scored ones. */
int ops_logits(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct rows hidden = {.step = s, .w = w, .n = s->host.batch->n_wants};

    assert(w->norm);
    if (s->host.n_scored < hidden.n)
        each_row(&hidden, put_hidden);
    if (s->host.n_scored == 0)
        return 0;
    struct rows scored = {
        .step = s,
        .w = w,
        .in = s->be->act[ACT_X],
        .in_stride = s->be->act_width[ACT_X],
        .n = s->host.n_scored,
        .wanted = true,
    };
    struct matmul mm = prepare_all(&scored, 0, 1);

    mm.mode = MATMUL_STORE;
    mm.out[0] = s->be->logits;
    mm.out_stride[0] = s->be->shape.n_vocab;
    matmul_run(s->be->pool, &mm, 1);
    return 0;
}

int ops_mask(struct step *s, uint32_t want, const uint32_t *bits) {
    host_step_mask(&s->host, want, bits);
    return 0;
}

static void sample_want(const struct rows *r, uint32_t i, uint32_t thread) {
    struct be *b = r->step->be;

    host_step_sample(&r->step->host, r->step->host.scored[i],
                     b->logits + (size_t)i * b->shape.n_vocab, &b->samplers[thread]);
}

int ops_sample(struct step *s) {
    struct row_run run = {&(struct rows){.step = s, .n = s->host.n_scored}, sample_want};

    if (s->host.n_scored <= 1)
        do_rows(&run, 0);
    else
        pool_run(s->be->pool, do_rows, &run);
    return 0;
}

int ops_end(struct step *s, struct engine_result *out) {
    assert(s->host.batch); /* between begin and end */
    host_step_end(&s->host, out);
    return 0;
}
