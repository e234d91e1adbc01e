/*
 * ops - the ops of a step that have no file of their own; op_list.h has their formulas. An op is a
 * few rounds of the thread pool: its input rows are normed and converted to activations
 * (ops_prepare()), multiplied by its matrices (matmul_run()), and the results are finished row by
 * row (each_row()).
 */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/cpu/state.h"
#include "engine/formats/quant.h"

/* Rows on which a function runs, and its context; a function reads only some of the members. */
struct rows {
    struct step *step;
    const struct weights *w;
    const struct model_op *op;
    /* prepare_row(): the input, rows of n_in values, in_stride floats apart */
    const float *in;
    size_t in_stride;
    /* DRAFT_IN: number of the first line; a line is a row or a stream of a row */
    uint32_t first;
    /* acts: a bit for each enum acts_kind that rows are converted to */
    uint32_t n, n_in, acts;
    /* row i is the row of the i-th want with logits */
    bool wanted;
};

typedef void (*row_fn)(const struct rows *r, uint32_t row, uint32_t thread);

/* Context of ops_do_row(). */
struct row_run {
    const struct rows *rows;
    row_fn fn;
};

/* Implements each_fn. */
static void ops_do_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct row_run *run = ctx;

    run->fn(run->rows, row, thread);
}

void be_each(struct be *b, uint32_t n, each_fn fn, void *ctx) {
    if (n > 2) {
        pool_each(b->pool, n, fn, ctx);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        fn(ctx, i, 0);
}

/* Calls @fn for each row. */
static void each_row(const struct rows *r, row_fn fn) {
    struct row_run run = {r, fn};

    be_each(r->step->be, r->n, ops_do_row, &run);
}

/* Calls @fn for each row of the step. Returns 0. */
static int each_row_of(struct step *s, const struct model_op *op, row_fn fn) {
    const struct rows r = {.step = s, .w = op->weights, .op = op, .n = s->n_rows};

    each_row(&r, fn);
    return 0;
}

/* Computes n_rot / 2 cosines, then n_rot / 2 sines, of the positions @at[ROPE_AXES]. */
static void fill_set(const struct rope_set *set, const uint32_t *at, float *cs) {
    uint32_t half = set->n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        double s, c;

        mx_sincos((double)at[set->axis ? set->axis[i] : ROPE_TIME] * set->freq[i], &s, &c);
        cs[i] = (float)c * set->mscale;
        cs[half + i] = (float)s * set->mscale;
    }
}

void be_fill_rope(const struct rope_set *set, uint32_t pos, float *cs) {
    const uint32_t at[ROPE_AXES] = {pos, pos, pos, pos};

    fill_set(set, at, cs);
}

/* Computes the cosines and sines of a row's positions for all rope sets. */
static void fill_rope(const struct rows *r, uint32_t row, uint32_t thread) {
    for (uint8_t k = 0; k < ROPE_SETS; k++)
        fill_set(&r->step->be->shape.rope[k], r->step->host.row[row].at,
                 be_rope_row(r->step->be, row, k));
}

int ops_begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct step *s = &b->step;
    struct rows r = {.step = s, .n = batch->n_rows};

    assert(batch->n_rows <= b->max_rows && batch->n_wants <= b->max_wants);
    host_step_begin(&s->host, batch);
    s->n_rows = batch->n_rows;
    s->narrowed = false;
    each_row(&r, fill_rope);
    *out = s;
    return 0;
}

/* Returns row @row of the activations of a role. */
static float *ops_act_row(const struct be *b, enum act_role role, uint32_t row) {
    return b->act[role] + row * b->act_width[role];
}

/* Returns true if the rows of the wants can be moved to the front one by one: they ascend, and are
 * not all rows. */
static bool ops_wants_ascend(const struct engine_batch *b) {
    for (uint32_t i = 1; i < b->n_wants; i++)
        if (b->want[i].row <= b->want[i - 1].row)
            return false;
    return b->n_wants < b->n_rows;
}

/* Keeps the first row of a step without wants, because a product has at least one. */
void ops_narrow(struct step *s) {
    static const enum act_role roles[] = {ACT_X, ACT_O, ACT_H, ACT_D, ACT_B};
    const struct engine_batch *batch = s->host.batch;

    if (!ops_wants_ascend(batch))
        return;
    for (size_t k = 0; k < ARRAY_SIZE(roles); k++) {
        size_t n = s->be->act_width[roles[k]] * sizeof(float);

        for (uint32_t i = 0; i < batch->n_wants && n; i++)
            memmove(ops_act_row(s->be, roles[k], i),
                    ops_act_row(s->be, roles[k], batch->want[i].row), n);
    }
    s->n_rows = MAX(batch->n_wants, 1);
    s->narrowed = true;
}

/* Returns the row of the activations that want @want reads. */
static uint32_t ops_row_of(const struct step *s, uint32_t want) {
    if (s->narrowed)
        return want;
    return s->host.batch->want[want].row;
}

/* Computes x of a row (OP_EMBED). */
static void embed_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct engine_batch *batch = r->step->host.batch;
    float *x = ops_act_row(r->step->be, ACT_X, row);

    const struct tensor *t = &r->op->weights->embedding;
    const float *values = r->step->host.row[row].values;

    if (values) {
        memcpy(x, values, t->ne[0] * sizeof(*x));
        return;
    }
    assert((uint32_t)batch->token[row] < t->ne[1]);
    quant_decode_row(t, (uint32_t)batch->token[row], x);
    for (uint32_t i = 0; i < t->ne[0]; i++)
        x[i] *= r->op->scale;
    const float *more[] = {r->w->positions, r->w->token_type};
    if (more[0])
        more[0] += r->step->host.row_pos[row] * t->ne[0];
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < t->ne[0] && more[k]; i++)
            x[i] += more[k][i];
}

void ops_store(struct step *s, struct matmul mm, float *out, size_t stride) {
    mm.mode = MATMUL_STORE;
    mm.out[0] = out;
    mm.out_stride[0] = stride;
    matmul_run(s->be->pool, &mm, 1);
}

void ops_store_each(struct step *s, struct matmul mm, float *const *out) {
    mm.mode = MATMUL_STORE;
    for (uint32_t i = 0; i < mm.n_mats; i++) {
        mm.out[i] = out[i];
        mm.out_stride[i] = mm.m[i]->n_out;
    }
    matmul_run(s->be->pool, &mm, 1);
}

int ops_embed(struct step *s, const struct model_op *op) {
    return each_row_of(s, op, embed_row);
}

/* Adds the op's part of a picture's row to x (OP_DEEP). */
static void deep_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    const float *values = r->step->host.row[row].values;
    uint32_t n = b->shape.n_embd;
    float *x = ops_act_row(b, ACT_X, row);

    for (uint32_t i = 0; i < n && values; i++)
        x[i] += values[(size_t)r->op->part * n + i];
}

int ops_deep(struct step *s, const struct model_op *op) {
    bool any = false;

    for (uint32_t i = 0; i < s->host.batch->n_seqs; i++)
        any |= s->host.batch->seq[i].n_pictures > 0;
    return any ? each_row_of(s, op, deep_row) : 0;
}

/* Applies a layer norm to x, or an RMS norm (OP_NORM). */
static void ops_norm_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    float *x = ops_act_row(b, ACT_X, row);

    if (r->op->norm && !r->op->rms)
        b->kernels->layer_norm(x, r->w->norm, r->w->norm_bias, b->shape.n_embd, b->shape.rms_eps);
    else
        b->kernels->norm(x, r->w->norm, x, b->shape.n_embd, b->shape.rms_eps);
}

int ops_norm(struct step *s, const struct model_op *op) {
    return each_row_of(s, op, ops_norm_row);
}

/* Computes x = norm x and stores it as the row's hidden state, unless ops_keep() has stored a
 * product. With op->streams, stores the streams and leaves x unchanged. */
static void ops_keep_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = r->op->width;
    uint32_t n_hidden = r->step->host.n_hidden;
    float *x = ops_act_row(b, ACT_X, row), *hidden = r->step->host.hidden + (size_t)row * n_hidden;

    if (r->op->keep.streams) {
        memcpy(hidden, ops_act_row(b, ACT_S, row), n_hidden * sizeof(*hidden));
        return;
    }
    if (r->op->keep.centred)
        b->kernels->layer_norm(x, r->w->norm, NULL, n, b->shape.rms_eps);
    else if (r->w->norm)
        b->kernels->norm(x, r->w->norm, x, n, b->shape.rms_eps);
    if (!r->w->n_mats)
        memcpy(hidden, x, n * sizeof(*x));
}

/* Finishes p of a row: scales and norms the product, and adds the token's row (OP_LAYER_INPUT). */
static void finish_input_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    const struct model_shape *m = &b->shape;
    const struct tensor *t = &r->w->embedding;
    const struct host_step *host = &r->step->host;
    uint32_t token = host->row[row].values ? 0 : (uint32_t)host->batch->token[row];
    uint32_t n = m->n_layer_input;
    float *own = b->row + thread * b->row_width, *p = ops_act_row(b, ACT_P, row);
    float scale = 1.0f / sqrtf((float)m->n_embd), weight = sqrtf((float)n), half = sqrtf(0.5f);

    assert(token < t->ne[1] && t->ne[0] == n * m->n_layer);
    quant_decode_row(t, token, own);
    for (uint32_t l = 0; l < m->n_layer; l++, p += n, own += n) {
        for (uint32_t i = 0; i < n; i++)
            p[i] *= scale;
        b->kernels->norm(p, r->w->post_norm, p, n, m->rms_eps);
        for (uint32_t i = 0; i < n; i++)
            p[i] = (p[i] + weight * own[i]) * half;
    }
}

void ops_norm_input(const struct be *b, const struct weights *w, const float *x, float *y,
                    uint32_t n) {
    if (!b->shape.layer_norm) {
        b->kernels->norm(x, w->norm, y, n, b->shape.rms_eps);
        return;
    }
    memcpy(y, x, n * sizeof(*y));
    b->kernels->layer_norm(y, w->norm, w->norm_bias, n, b->shape.rms_eps);
}

/* Norms a row, if the op has a norm, and converts it to each format of activations in r->acts. */
static void prepare_row(const struct rows *r, uint32_t row, uint32_t thread) {
    struct be *b = r->step->be;
    uint32_t from = row;

    if (r->wanted)
        from = ops_row_of(r->step, r->step->host.scored[row]);
    const float *x = r->in + from * r->in_stride;

    if (r->w->norm) {
        float *y = b->row + thread * b->row_width;

        ops_norm_input(b, r->w, x, y, r->n_in);
        x = y;
    }
    for (uint32_t kind = 0; kind < ACTS_KINDS; kind++)
        if (r->acts & 1u << kind)
            b->kernels->acts_store[kind](x, r->n_in,
                                         b->acts[kind] + row * acts_bytes(kind, r->n_in, 1));
}

/* Does what ops_prepare() does, for the rows of @r. */
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

struct matmul ops_prepare_row(struct step *s, const struct weights *w, const float *in) {
    struct rows r = {.step = s, .w = w, .in = in, .n = 1};

    return prepare_all(&r, 0, 1);
}

struct matmul ops_prepare(struct step *s, const struct weights *w, uint32_t first, uint32_t n_mats,
                          enum act_role in) {
    const struct be *b = s->be;

    assert(b->act_width[in] >= w->m[first].n_in);
    return ops_prepare_rows(s, w, first, n_mats, b->act[in], b->act_width[in]);
}

struct matmul ops_prepare_wanted(struct step *s, const struct weights *w) {
    struct rows r = {
        .step = s,
        .w = w,
        .in = s->be->act[ACT_X],
        .in_stride = s->be->act_width[ACT_X],
        .n = s->host.n_scored,
        .wanted = true,
    };

    return prepare_all(&r, 0, 1);
}

/* Prepares all of the op's matrices. */
static struct matmul ops_prepare_all(struct step *s, enum act_role in, const struct weights *w) {
    return ops_prepare(s, w, 0, w->n_mats, in);
}

int ops_keep(struct step *s, const struct model_op *op) {
    assert(!op->w[0] || !op->keep.centred);
    if (op->w[0]) /* preparing the product norms its input; ops_keep_row() then norms x */
        ops_store(s, ops_prepare_all(s, ACT_X, op->weights), s->host.hidden, s->host.n_hidden);
    return each_row_of(s, op, ops_keep_row);
}

/* y = the RMS norm of x with weights @norm; NULL: y = x. */
static void ops_norm_or_copy(const struct be *b, const float *x, const float *norm, float *y,
                             uint32_t n) {
    if (norm)
        b->kernels->norm(x, norm, y, n, b->shape.rms_eps);
    else
        memcpy(y, x, n * sizeof(*y));
}

/* Returns the number of lines of a row for DRAFT_IN: one, or one for each stream. */
static uint32_t n_lines(const struct be *b, const struct model_op *op) {
    return op->keep.streams ? b->shape.stream.n : 1;
}

/* Computes line @i of the input of DRAFT_IN's product: the norm of x, then the norm of the hidden
 * state, or of the line's stream of it, of the preceding position. */
static void pair_line(const struct rows *r, uint32_t i, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = b->shape.n_embd, of = n_lines(b, r->op), row = (r->first + i) / of;
    const float *before = host_step_before(&r->step->host, row);
    float *to = b->pair + (size_t)i * 2 * n;

    assert(r->w->m[0].n_in == 2 * n);
    ops_norm_or_copy(b, ops_act_row(b, ACT_X, row), r->w->q_norm, to, n);
    if (before)
        ops_norm_or_copy(b, before + (size_t)((r->first + i) % of) * n, r->w->k_norm, to + n, n);
    else
        memset(to + n, 0, n * sizeof(*to));
}

/* Computes at most max_rows lines at a time, because the buffers have room for these. */
int ops_draft_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n = b->shape.n_embd, end = s->n_rows * n_lines(b, op), part;
    float *to = b->act[op->keep.streams ? ACT_S : ACT_X];

    assert(op->w[0]->ne[1] == b->act_width[ACT_X] || !op->keep.streams);
    for (uint32_t i = 0; i < end; i += part) {
        part = MIN(end - i, b->max_rows);
        struct rows r = {.step = s, .w = op->weights, .op = op, .first = i, .n = part};

        each_row(&r, pair_line);
        r.in = b->pair;
        r.in_stride = (size_t)2 * n;
        ops_store(s, prepare_all(&r, 0, 1), to + i * b->act_width[ACT_X], b->act_width[ACT_X]);
    }
    return 0;
}

int ops_layer_input(struct step *s, const struct model_op *op) {
    ops_store(s, ops_prepare(s, op->weights, 0, 1, ACT_X), s->be->act[ACT_P],
              s->be->act_width[ACT_P]);
    return each_row_of(s, op, finish_input_row);
}

/* Applies the norm, of each head or of all heads together, and RoPE to the heads at @x. @cs:
 * cosines and sines of the row. */
static void ops_finish_heads(const struct be *b, const struct model_op *op, float *x,
                             uint32_t n_heads, const float *norm, const float *cs) {
    if (norm && op->qkv.norm_all)
        b->kernels->norm(x, norm, x, n_heads * op->heads.dim, b->shape.rms_eps);
    for (uint32_t h = 0; h < n_heads; h++, x += op->heads.dim) {
        if (norm && !op->qkv.norm_all && !op->qkv.norm_late)
            b->kernels->norm(x, norm, x, op->heads.dim, b->shape.rms_eps);
        b->kernels->rope(x, cs, b->shape.rope[op->rope].n_rot, b->shape.rope_type);
        if (norm && op->qkv.norm_late)
            b->kernels->norm(x, norm, x, op->heads.dim, b->shape.rms_eps);
        if (norm && op->qkv.norm_each)
            norm += op->heads.dim;
    }
}

uint8_t *be_keys(const struct step *s, const struct model_op *op, uint32_t row) {
    uint32_t page = host_page(&s->host, op->kv.cls, row, s->host.row_pos[row]);

    return be_page(s->be, op->kv.cls, page) +
           kv_bytes_both(s->be->kv_type, op->kv.at * s->be->page_tokens);
}

/* Stores the keys and values of a row in their page. */
static void write_kv(const struct rows *r, uint32_t row) {
    const struct be *b = r->step->be;
    const struct heads *h = &r->op->heads;
    const struct kv_view view = be_view(b, h);
    const float *k = b->k + (size_t)row * h->n_kv * h->dim;
    const float *v = b->v + (size_t)row * h->n_kv * view.value_dim;
    uint32_t pos = r->step->host.row_pos[row];
    uint8_t *keys = be_keys(r->step, r->op, row);
    uint8_t *values = keys + h->n_kv * view.k_head;

    for (uint32_t i = 0; i < h->n_kv; i++, k += h->dim, v += view.value_dim)
        b->kernels->kv_write(&view, keys + i * view.k_head, values + i * view.v_head,
                             pos % view.page_tokens, k, v);
}

/* Finishes the keys and values of a row (norms, RoPE, Hadamard product), and stores them in their
 * page. */
static void ops_store_row(const struct rows *r, uint32_t row, const float *cs) {
    const struct be *b = r->step->be;
    const struct heads *h = &r->op->heads;
    size_t width = (size_t)h->n_kv * h->dim, v_width = (size_t)h->n_kv * heads_value(h);
    float *k = b->k + row * width, *v = b->v + row * v_width;
    struct hadamard_runs runs = hadamard_runs(&b->shape, b->kv_type, h->dim);

    if (r->w->n_mats == 2 && r->op->kind == OP_QKV)
        memcpy(v, k, width * sizeof(*v));
    ops_finish_heads(b, r->op, k, h->n_kv, r->w->k_norm, cs);
    for (uint32_t i = 0; i < h->n_kv && r->op->qkv.v_unit; i++)
        b->kernels->norm(v + i * h->dim, NULL, v + i * h->dim, h->dim, b->shape.rms_eps);
    if (runs.k)
        b->kernels->hadamard(k, (uint32_t)width, runs.k);
    if (runs.v)
        b->kernels->hadamard(v, (uint32_t)v_width, runs.v);
    write_kv(r, row);
}

void ops_temper(const struct temper *t, uint32_t pos, float *q, uint32_t n) {
    if (t->slope == 0)
        return;
    float factor = temper_at(t, pos);

    for (uint32_t i = 0; i < n; i++)
        q[i] *= factor;
}

/* Finishes the queries of a row of QKV, and its keys and values if the op has any. A row writes
 * only to its own position in the pages. */
static void finish_qkv_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    const struct heads *heads = &r->op->heads;
    const float *cs = be_rope_row(b, row, r->op->rope);
    uint32_t dim = heads->dim;

    for (uint32_t h = 0; r->op->qkv.gated && h < heads->n; h++)
        memcpy(ops_act_row(b, ACT_Q, row) + (size_t)h * dim,
               b->gated + ((size_t)row * heads->n + h) * 2 * dim, dim * sizeof(float));
    float *q = ops_act_row(b, ACT_Q, row);
    ops_finish_heads(b, r->op, q, heads->n, r->w->q_norm, cs);
    ops_temper(&r->op->qkv.temper, r->step->host.row_pos[row], q, heads->n * dim);
    uint32_t run = hadamard_runs(&b->shape, b->kv_type, dim).k;
    if (run)
        b->kernels->hadamard(q, heads->n * dim, run);
    if (r->w->n_mats > 1)
        ops_store_row(r, row, cs);
}

int ops_qkv(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t kv_width = (size_t)op->heads.n_kv * op->heads.dim;

    assert(!op->qkv.gated || b->gated);
    assert(kv_width <= b->shape.widest.kv && op->heads.n * op->heads.dim <= b->shape.widest.q);
    struct matmul mm = ops_prepare_all(s, ACT_X, op->weights);

    mm.mode = MATMUL_STORE;
    mm.out[0] = op->qkv.gated ? b->gated : b->act[ACT_Q];
    mm.out[1] = b->k;
    mm.out[2] = b->v;
    mm.out_stride[0] = op->qkv.gated ? op->weights->m[0].n_out : b->act_width[ACT_Q];
    mm.out_stride[1] = kv_width;
    mm.out_stride[2] = (size_t)op->heads.n_kv * heads_value(&op->heads);
    matmul_run(b->pool, &mm, 1);
    return each_row_of(s, op, finish_qkv_row);
}

/* Finishes and stores the keys and values of a row (OP_KEYS). */
static void finish_keys_row(const struct rows *r, uint32_t row, uint32_t thread) {
    ops_store_row(r, row, be_rope_row(r->step->be, row, r->op->rope));
}

int ops_keys(struct step *s, const struct model_op *op) {
    ops_store_each(s, ops_prepare_all(s, ACT_X, op->weights), (float *[]){s->be->k, s->be->v});
    return each_row_of(s, op, finish_keys_row);
}

/* Writes a hole to the page of a row's position (OP_HOLES). An infinity in the key makes its score
 * infinite or NaN, whatever the query. The value is 0, because it is added with weight 0 and must
 * be finite. */
static void hole_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    const struct heads *h = &r->op->heads;
    size_t width = (size_t)h->n_kv * h->dim, v_width = (size_t)h->n_kv * heads_value(h);

    memset(b->k + row * width, 0, width * sizeof(*b->k));
    memset(b->v + row * v_width, 0, v_width * sizeof(*b->v));
    for (uint32_t i = 1; i <= h->n_kv; i++)
        b->k[row * width + (size_t)i * h->dim - 1] = INFINITY;
    write_kv(r, row);
}

int ops_holes(struct step *s, const struct model_op *op) {
    return each_row_of(s, op, hole_row);
}

int ops_attend(struct step *s, const struct model_op *op) {
    attend_run(s, op);
    return 0;
}

/* Multiplies o by the sigmoid of the gates that ops_qkv() stored. */
static void gate_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = r->op->heads.n, dim = r->op->heads.dim;

    for (uint32_t h = 0; h < n; h++)
        b->kernels->gate(ops_act_row(b, ACT_O, row) + (size_t)h * dim,
                         b->gated + (((size_t)row * n + h) * 2 + 1) * dim, dim);
}

/* Multiplies o by the softplus or sigmoid of its gates, which ops_gate() has stored in ACT_Q in
 * place of the queries. */
static void soft_gate_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = r->op->heads.n * r->op->heads.dim, per = n / r->w->m[0].n_out;

    assert(per * r->w->m[0].n_out == n);
    const float *gate = ops_act_row(b, ACT_Q, row);
    float *o = ops_act_row(b, ACT_O, row);

    for (uint32_t i = 0; i < n; i += per) {
        float by;

        if (r->op->sigmoid)
            by = mx_sigmoid(gate[i / per]);
        else
            by = mx_softplus(gate[i / per]);
        for (uint32_t j = i; j < i + per; j++)
            o[j] *= by;
    }
}

int ops_gate(struct step *s, const struct model_op *op) {
    assert(op->w[0] || s->be->gated);
    if (op->w[0])
        ops_store(s, ops_prepare_all(s, ACT_X, op->weights), s->be->act[ACT_Q],
                  s->be->act_width[ACT_Q]);
    return each_row_of(s, op, op->w[0] ? soft_gate_row : gate_row);
}

/* Applies the op's post_norm, if it has one, to b. */
static void norm_branch_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    float *t = ops_act_row(b, ACT_B, row);
    float eps = r->op->post_eps > 0 ? r->op->post_eps : b->shape.rms_eps;

    if (r->w && r->w->post_norm)
        b->kernels->norm(t, r->w->post_norm, t, r->op->width, eps);
}

/* Computes x = (x + gain post_norm(b)) scale. */
static void join_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    float *x = ops_act_row(b, ACT_X, row);
    const float *t = ops_act_row(b, ACT_B, row);

    norm_branch_row(r, row, thread);
    for (uint32_t i = 0; i < r->op->width; i++)
        x[i] = (x[i] + r->op->gain * t[i]) * r->op->scale;
}

int ops_proj(struct step *s, const struct model_op *op) {
    struct matmul mm = ops_prepare_all(s, op->in, op->weights);
    bool added = !op->branch && !op->weights->post_norm && op->scale == 1 && op->gain == 1;

    assert(op->in == ACT_O || op->in == ACT_H || op->in == ACT_D);
    mm.mode = added ? MATMUL_ADD : MATMUL_STORE;
    mm.out[0] = s->be->act[added ? ACT_X : ACT_B];
    mm.out_stride[0] = s->be->act_width[ACT_X];
    matmul_run(s->be->pool, &mm, 1);
    if (added || (op->branch && !op->weights->post_norm))
        return 0;
    return each_row_of(s, op, op->branch ? norm_branch_row : join_row);
}

int ops_join(struct step *s, const struct model_op *op) {
    return each_row_of(s, op, join_row);
}

/* Applies GELU or xIELU to h of an FFN without an up matrix. */
static void ungated_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = r->w->m[0].n_out;
    float *h = ops_act_row(b, ACT_H, row);

    if (r->op->ffn.glu == GLU_GELU)
        b->kernels->gelu(h, n);
    for (uint32_t i = 0; i < n && r->op->ffn.glu == GLU_XIELU; i++)
        h[i] = xielu_at(&r->op->ffn.xielu, h[i]);
}

/* Computes h of an FFN with sparse gates from its gates, in h, and its up values. */
static void sparse_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = r->w->m[0].n_out;
    float *h = ops_act_row(b, ACT_H, row);
    double sum = 0, squares = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)h[i];
    double mean = sum / n;
    for (uint32_t i = 0; i < n; i++)
        squares += ((double)h[i] - mean) * ((double)h[i] - mean);
    float least = (float)(mean + (double)r->op->ffn.sparsity * sqrt(squares / (n - 1)));
    for (uint32_t i = 0; i < n; i++)
        h[i] = MAX(h[i] - least, 0);
    b->kernels->glu[r->op->ffn.glu](h, b->up + (size_t)row * b->act_width[ACT_H], h, n);
}

/* Computes the gates and the up values apart, because a gate depends on all gates of its row. */
static int sparse_gate_up(struct step *s, const struct model_op *op) {
    struct matmul mm = ops_prepare_all(s, ACT_X, op->weights);
    struct be *b = s->be;

    assert(mm.n_mats == 2 && b->up && mm.m[0]->n_out > 1);
    mm.mode = MATMUL_STORE;
    mm.out[0] = b->act[ACT_H];
    mm.out[1] = b->up;
    mm.out_stride[0] = mm.out_stride[1] = b->act_width[ACT_H];
    matmul_run(b->pool, &mm, 1);
    return each_row_of(s, op, sparse_row);
}

int ops_gate_up(struct step *s, const struct model_op *op) {
    if (op->ffn.sparsity > 0)
        return sparse_gate_up(s, op);
    struct matmul mm = ops_prepare_all(s, ACT_X, op->weights);
    bool gated = op->weights->n_mats == 2;

    assert(gated || op->ffn.glu == GLU_GELU || op->ffn.glu == GLU_XIELU);
    mm.mode = gated ? MATMUL_GLU : MATMUL_STORE;
    mm.glu = op->ffn.glu;
    mm.limit = op->ffn.limit;
    mm.out[0] = s->be->act[ACT_H];
    mm.out_stride[0] = s->be->act_width[ACT_H];
    matmul_run(s->be->pool, &mm, 1);
    return gated ? 0 : each_row_of(s, op, ungated_row);
}

/* Computes h = glu(h, the layer's part of p). */
static void gate_in_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = b->shape.n_layer_input;

    assert(r->op->layer < b->shape.n_layer && r->w->m[0].n_out == n);
    float *h = ops_act_row(b, ACT_H, row);

    b->kernels->glu[r->op->ffn.glu](h, ops_act_row(b, ACT_P, row) + (size_t)r->op->layer * n, h, n);
}

int ops_gate_in(struct step *s, const struct model_op *op) {
    ops_store(s, ops_prepare_all(s, ACT_X, op->weights), s->be->act[ACT_H],
              s->be->act_width[ACT_H]);
    return each_row_of(s, op, gate_in_row);
}

/* Writes the normed x of a want's row to its result, if the want is WANT_HIDDEN. */
static void write_hidden(const struct rows *r, uint32_t want, uint32_t thread) {
    struct be *b = r->step->be;
    const struct engine_want *w = &r->step->host.batch->want[want];

    if (w->what != WANT_HIDDEN)
        return;
    const float *x = ops_act_row(b, ACT_X, ops_row_of(r->step, want));
    float *to = host_step_vector(&r->step->host, want);
    if (r->w && r->w->norm)
        ops_norm_input(b, r->w, x, to, b->shape.n_embd);
    else
        memcpy(to, x, b->shape.n_embd * sizeof(*to));
}

/* Multiplies logits by the scale, then applies the cap, if any. */
static void finish_logits_row(const struct rows *r, uint32_t row, uint32_t thread) {
    const struct be *b = r->step->be;
    uint32_t n = b->shape.n_vocab;
    float *logits = b->logits + (size_t)row * n;

    for (uint32_t i = 0; i < n; i++)
        logits[i] *= r->op->scale;
    if (r->op->cap)
        b->kernels->soft_cap(logits, n, r->op->cap);
}

/* Computes logits for the scored wants, which do not include those of WANT_HIDDEN. */
int ops_logits(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct rows hidden = {.step = s, .w = w, .n = s->host.batch->n_wants};

    assert(w || s->host.n_scored == 0);
    if (s->host.n_scored < hidden.n)
        each_row(&hidden, write_hidden);
    if (s->host.n_scored == 0)
        return 0;
    ops_store(s, ops_prepare_wanted(s, w), s->be->logits, s->be->shape.n_vocab);
    struct rows finished = {.step = s, .op = op, .n = s->host.n_scored};
    if (op->cap || op->scale != 1)
        each_row(&finished, finish_logits_row);
    return 0;
}

int ops_mask(struct step *s, uint32_t want, const uint32_t *bits) {
    host_step_mask(&s->host, want, bits);
    return 0;
}

/* Samples the @i-th want with logits, with the sampler of this thread. */
static void sample_want(const struct rows *r, uint32_t i, uint32_t thread) {
    struct be *b = r->step->be;

    host_step_sample(&r->step->host, r->step->host.scored[i],
                     b->logits + (size_t)i * b->shape.n_vocab, &b->samplers[thread]);
}

int ops_sample(struct step *s) {
    struct row_run run = {&(struct rows){.step = s}, sample_want};

    pool_each(s->be->pool, s->host.n_scored, ops_do_row, &run);
    return 0;
}

int ops_end(struct step *s, struct engine_result *out) {
    assert(s->host.batch); /* between begin and end */
    host_step_end(&s->host, out);
    return 0;
}
