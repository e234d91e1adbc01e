/*
 * The ops of the reference backend, written from the formulas of backend.h. A dot
 * product is summed in sixteen lanes, element i in lane i % 16, and the lanes pairwise; everything
 * else in index order. Nothing depends on the other rows of the batch.
 */

#include "engine/reference/reference.h"

#include <assert.h>
#include <string.h>
#include "base/mathx.h"
#include "engine/quant.h"

#define LANES 16

float ref_dot(const float *a, const float *b, size_t n) {
    float lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        lane[i % LANES] += a[i] * b[i];
    for (size_t w = LANES / 2; w > 0; w /= 2)
        for (size_t j = 0; j < w; j++)
            lane[j] += lane[j + w];
    return lane[0];
}

float ref_vector_at(const struct tensor *t, size_t i) {
    float f;

    memcpy(&f, t->data + 4 * i, 4);
    return f;
}

void ref_rms_norm(const float *x, const struct tensor *weight, float eps, size_t n, float *y) {
    float scale = 1.0f / sqrtf(ref_dot(x, x, n) / (float)n + eps);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * scale * ref_vector_at(weight, i);
}

void ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias, const float *x,
                uint32_t n_rows, bool add, float *y) {
    size_t n_in = w->ne[0], n_out = w->ne[1];

    assert(x != y && n_in > 0);
    for (size_t o = 0; o < n_out; o++) {
        float plus = bias ? ref_vector_at(bias, o) : 0;

        quant_decode_row(w, o, b->row);
        for (uint32_t r = 0; r < n_rows; r++) {
            float v = ref_dot(b->row, x + r * n_in, n_in) + plus;

            y[r * n_out + o] = add ? y[r * n_out + o] + v : v;
        }
    }
}

int ref_embed(struct step *s, const struct model_op *op) {
    const struct engine_batch *batch = s->host.batch;
    uint32_t n = s->be->shape->n_embd;

    assert(op->w[0]->ne[0] == n && batch->n_rows > 0);
    for (uint32_t r = 0; r < batch->n_rows; r++)
        quant_decode_row(op->w[0], (uint64_t)batch->token[r], s->be->act[ACT_X] + (size_t)r * n);
    return 0;
}

/* -- keys and values --------------------------------------------------------------------------- */

/* Q8_0: d = max|x| / 127 in half precision, each value rounded to the nearest multiple of it. */
static void store_q8(const float *x, size_t n, uint8_t *dst) {
    for (size_t i = 0; i < n; i += 32, dst += 34) {
        float max = 0;

        for (size_t j = 0; j < 32; j++)
            max = fabsf(x[i + j]) > max ? fabsf(x[i + j]) : max;
        uint16_t d = mx_float_to_half(max / 127.0f);
        float inverse = max > 0 ? 127.0f / max : 0;
        memcpy(dst, &d, 2);
        for (size_t j = 0; j < 32; j++) { /* adding 1.5 * 2^23 rounds to an integer, ties to even */
            float q = x[i + j] * inverse + 12582912.0f - 12582912.0f;

            q = q >= -127 ? q : -127; /* NaN too */
            dst[2 + j] = (uint8_t)(int8_t)(q <= 127 ? q : 127);
        }
    }
}

static void store_head(enum engine_kv_type type, const float *x, size_t n, uint8_t *dst) {
    if (type == ENGINE_KV_F32) {
        memcpy(dst, x, n * sizeof(*x));
    } else if (type == ENGINE_KV_Q8_0) {
        store_q8(x, n, dst);
    } else {
        for (size_t i = 0; i < n; i++) {
            uint16_t h = mx_float_to_half(x[i]);

            memcpy(dst + 2 * i, &h, 2);
        }
    }
}

static void load_head(enum engine_kv_type type, const uint8_t *src, size_t n, float *x) {
    static const enum tensor_type as[] = {
        [ENGINE_KV_F16] = TENSOR_F16, [ENGINE_KV_Q8_0] = TENSOR_Q8_0, [ENGINE_KV_F32] = TENSOR_F32};

    quant_decode(as[type], src, x, n);
}

/* Where head 0 of the key (@which 0) or value (1) of position @pos of row @row's sequence lies. */
static uint8_t *slot_of(struct step *s, uint32_t layer, uint32_t row, uint32_t pos, int which) {
    const struct be *b = s->be;
    size_t page = host_page(&s->host, row, pos);

    assert(page < b->n_pages && layer < b->shape->n_kv_layer[KV_GLOBAL]);
    return b->pages + layer * b->layer_bytes +
           ((page * 2 + (size_t)which) * b->page_tokens + pos % b->page_tokens) * b->token_bytes;
}

static void store_rows(struct step *s, const struct kv_layer *kv) {
    const struct be *b = s->be;
    size_t dim = b->shape->head_dim;

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++)
        for (int which = 0; which < 2; which++) {
            uint8_t *dst = slot_of(s, kv->layer, r, s->host.row_pos[r], which);
            const float *x = b->kv[which] + r * b->shape->n_head_kv * dim;

            for (uint32_t h = 0; h < b->shape->n_head_kv; h++)
                store_head(b->kv_type, x + h * dim, dim, dst + h * b->head_bytes);
        }
}

/* -- q, k and v -------------------------------------------------------------------------------- */

static void set_rope(struct be *b, uint32_t pos) {
    for (uint32_t i = 0; i < b->shape->n_rot / 2; i++)
        mx_sincos(pos * b->shape->rope_freq[i], &b->rope[2 * i + 1], &b->rope[2 * i]);
}

/* Rotates the pairs of one head by the angles of b->rope. */
static void rotate_head(const struct be *b, float *x) {
    const struct model_shape *s = b->shape;
    bool norm = s->rope == ROPE_NORM;

    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        float c = (float)b->rope[2 * i] * s->rope_mscale;
        float d = (float)b->rope[2 * i + 1] * s->rope_mscale;
        float *p0 = norm ? x + 2 * i : x + i, *p1 = norm ? p0 + 1 : p0 + s->n_rot / 2;
        float a = *p0, e = *p1;

        *p0 = a * c - e * d;
        *p1 = a * d + e * c;
    }
}

/* qk-norm and RoPE of the heads of one row. */
static void finish_heads(const struct be *b, float *x, uint32_t n_heads,
                         const struct tensor *norm) {
    size_t dim = b->shape->head_dim;

    for (uint32_t h = 0; h < n_heads; h++) {
        if (norm)
            ref_rms_norm(x + h * dim, norm, b->shape->rms_eps, dim, x + h * dim);
        rotate_head(b, x + h * dim);
    }
}

/* The queries of row @row, of which b->gated has each head's in front of its gate. */
static void take_queries(struct be *b, uint32_t row) {
    size_t dim = b->shape->head_dim, n = b->shape->n_head;

    for (size_t h = row * n; h < (row + 1) * n; h++)
        memcpy(b->act[ACT_Q] + h * dim, b->gated + 2 * h * dim, dim * sizeof(float));
}

/* All rows through one matrix at a time: a row of weights is decoded once a step. */
int ref_qkv(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t n_rows = s->host.batch->n_rows;
    float *to[3] = {op->gated ? b->gated : b->act[ACT_Q], b->kv[0], b->kv[1]};

    assert(op->norm && op->w[0] && op->w[1] && op->w[2]);
    for (uint32_t r = 0; r < n_rows; r++)
        ref_rms_norm(b->act[ACT_X] + (size_t)r * m->n_embd, op->norm, m->rms_eps, m->n_embd,
                     b->normed + (size_t)r * m->n_embd);
    for (int i = 0; i < 3; i++)
        ref_linear(b, op->w[i], op->bias[i], b->normed, n_rows, false, to[i]);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (op->gated)
            take_queries(b, r);
        set_rope(b, s->host.row_pos[r]);
        finish_heads(b, b->act[ACT_Q] + (size_t)r * m->n_head * m->head_dim, m->n_head, op->q_norm);
        finish_heads(b, to[1] + (size_t)r * m->n_head_kv * m->head_dim, m->n_head_kv, op->k_norm);
    }
    store_rows(s, &op->kv);
    return 0;
}

/* -- attention --------------------------------------------------------------------------------- */

static void softmax(float *x, uint32_t n) {
    float max = x[0], sum = 0;

    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = mx_expf(x[i] - max);
        sum += x[i];
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* The query heads of key head @kvh for one row: q and o point to the first of them. */
static void attend_group(struct step *s, uint32_t row, uint32_t kvh, uint32_t layer, float scale,
                         const float *q, float *o) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t group = m->n_head / m->n_head_kv, n = s->host.row_pos[row] + 1, dim = m->head_dim;
    float *kv = b->row;

    for (uint32_t p = 0; p < n; p++) {
        load_head(b->kv_type, slot_of(s, layer, row, p, 0) + kvh * b->head_bytes, dim, kv);
        for (uint32_t g = 0; g < group; g++)
            b->scores[(size_t)g * n + p] = ref_dot(q + (size_t)g * dim, kv, dim) * scale;
    }
    memset(o, 0, (size_t)group * dim * sizeof(*o));
    for (uint32_t g = 0; g < group; g++)
        softmax(b->scores + (size_t)g * n, n);
    for (uint32_t p = 0; p < n; p++) {
        load_head(b->kv_type, slot_of(s, layer, row, p, 1) + kvh * b->head_bytes, dim, kv);
        for (uint32_t g = 0; g < group; g++) {
            float weight = b->scores[(size_t)g * n + p];

            for (uint32_t d = 0; d < dim; d++)
                o[(size_t)g * dim + d] += weight * kv[d];
        }
    }
}

int ref_attend(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    const struct model_shape *m = b->shape;
    size_t width = (size_t)m->n_head * m->head_dim;
    size_t group_width = width / m->n_head_kv;

    assert(op->attn.window == 0 && op->kv.cls == KV_GLOBAL);
    for (uint32_t r = 0; r < s->host.batch->n_rows; r++)
        for (uint32_t h = 0; h < m->n_head_kv; h++)
            attend_group(s, r, h, op->kv.layer, op->attn.scale,
                         b->act[ACT_Q] + r * width + h * group_width,
                         b->act[ACT_O] + r * width + h * group_width);
    return 0;
}

int ref_gate(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t dim = b->shape->head_dim, n = (size_t)s->host.batch->n_rows * b->shape->n_head;

    for (size_t h = 0; h < n; h++)
        for (size_t i = 0; i < dim; i++)
            b->act[ACT_O][h * dim + i] *= ref_sigmoid(b->gated[(2 * h + 1) * dim + i]);
    return 0;
}

/* -- the rest ---------------------------------------------------------------------------------- */

int ref_proj(struct step *s, const struct model_op *op) {
    struct be *b = s->be;

    assert(op->in == ACT_O || op->in == ACT_H || op->in == ACT_D);
    ref_linear(b, op->w[0], op->bias[0], b->act[op->in], s->host.batch->n_rows, true,
               b->act[ACT_X]);
    return 0;
}

/* h takes the gate's place. */
int ref_gate_up(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t n_rows = s->host.batch->n_rows;
    float *gate = b->act[ACT_H];

    for (uint32_t r = 0; r < n_rows; r++)
        ref_rms_norm(b->act[ACT_X] + (size_t)r * m->n_embd, op->norm, m->rms_eps, m->n_embd,
                     b->normed + (size_t)r * m->n_embd);
    ref_linear(b, op->w[0], op->bias[0], b->normed, n_rows, false, gate);
    ref_linear(b, op->w[1], op->bias[1], b->normed, n_rows, false, b->up);
    for (size_t i = 0; i < (size_t)n_rows * m->n_ff; i++)
        gate[i] = mx_silu(gate[i]) * b->up[i];
    return 0;
}

/* Rows are normed once; experts() finds them in b->normed. */
int ref_route(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t n_rows = s->host.batch->n_rows;

    for (uint32_t r = 0; r < n_rows; r++)
        ref_rms_norm(b->act[ACT_X] + (size_t)r * m->n_embd, op->norm, m->rms_eps, m->n_embd,
                     b->normed + (size_t)r * m->n_embd);
    ref_linear(b, op->w[0], NULL, b->normed, n_rows, false, b->router);
    for (uint32_t r = 0; r < n_rows; r++)
        experts_pick(b->router + (size_t)r * m->n_expert, m->n_expert, m->n_expert_used,
                     m->expert_scale, b->pick + (size_t)r * m->n_expert_used);
    return 0;
}

/* out[o] = row o of matrix @e of @w times x. */
static void multiply_expert(struct be *b, const struct tensor *w, uint32_t e, const float *x,
                            float *out) {
    for (uint64_t o = 0; o < w->ne[1]; o++) {
        quant_decode_row(w, e * w->ne[1] + o, b->row);
        out[o] = ref_dot(b->row, x, w->ne[0]);
    }
}

/* x += sum of p e(y), added pick by pick: other orders than the CPU backend's, judged by
 * tolerance. */
int ref_experts(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    float *gate = b->gate, *out = b->gate + m->n_ff;

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        const float *y = b->normed + (size_t)r * m->n_embd;
        float *to = b->act[ACT_X] + (size_t)r * m->n_embd;

        for (uint32_t k = 0; k < m->n_expert_used; k++) {
            const struct expert_pick *p = &b->pick[(size_t)r * m->n_expert_used + k];

            assert(p->expert < m->n_expert);
            multiply_expert(b, op->w[0], p->expert, y, gate);
            multiply_expert(b, op->w[1], p->expert, y, b->up);
            for (uint32_t i = 0; i < m->n_ff; i++)
                gate[i] = mx_silu(gate[i]) * b->up[i];
            multiply_expert(b, op->w[2], p->expert, gate, out);
            for (uint32_t i = 0; i < m->n_embd; i++)
                to[i] += p->weight * out[i];
        }
    }
    return 0;
}

/* y is still what route() left in b->normed. */
int ref_shared(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    float *gate = b->gate, *out = b->gate + m->n_ff_shared, weight;

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        const float *y = b->normed + (size_t)r * m->n_embd;

        multiply_expert(b, op->w[0], 0, y, gate);
        multiply_expert(b, op->w[1], 0, y, b->up);
        for (uint32_t i = 0; i < m->n_ff_shared; i++)
            gate[i] = mx_silu(gate[i]) * b->up[i];
        multiply_expert(b, op->w[2], 0, gate, out);
        multiply_expert(b, op->w[3], 0, y, &weight);
        for (uint32_t i = 0; i < m->n_embd; i++)
            b->act[ACT_X][(size_t)r * m->n_embd + i] += ref_sigmoid(weight) * out[i];
    }
    return 0;
}

/* Hidden vectors end at the norm, straight to their results. */
int ref_logits(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->host.batch;
    uint32_t n = b->shape->n_embd;

    for (uint32_t i = 0; i < batch->n_wants; i++) {
        bool hidden = batch->want[i].what == WANT_HIDDEN;
        float *to =
            hidden ? host_step_vector(&s->host, i) : b->normed + (size_t)s->host.logits_of[i] * n;

        ref_rms_norm(b->act[ACT_X] + (size_t)batch->want[i].row * n, op->norm, b->shape->rms_eps, n,
                     to);
    }
    ref_linear(b, op->w[0], op->bias[0], b->normed, s->host.n_scored, false, b->logits);
    return 0;
}
