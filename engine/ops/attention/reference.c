/*
 * reference - queries, keys and values, and attention to them, in the reference backend.
 */

#include "engine/reference/reference.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/formats/quant.h"

/* -- keys and values --------------------------------------------------------------------------- */

/* Stores @n values as Q8_0: the scale max|x| / 127 in half precision, and codes x (127 / max|x|),
 * rounded to the nearest integer. */
static void store_q8(const float *x, size_t n, uint8_t *dst) {
    for (size_t i = 0; i < n; i += 32, dst += 34) {
        float max = 0;

        for (size_t j = 0; j < 32; j++)
            max = MAX(fabsf(x[i + j]), max);
        uint16_t d = mx_float_to_half(max / 127.0f);
        float inverse = 0;

        if (max > 0)
            inverse = 127.0f / max;
        memcpy(dst, &d, 2);
        for (size_t j = 0; j < 32; j++) { /* adding 1.5 * 2^23 rounds to an integer, ties to even */
            float q = x[i + j] * inverse + 12582912.0f - 12582912.0f;

            if (!(q >= -127)) /* NaN becomes -127 */
                q = -127;
            dst[2 + j] = (uint8_t)(int8_t)MIN(q, 127);
        }
    }
}

/* Stores @n values as Q4_0: the scale d, the value with the largest magnitude divided by -8, in
 * half precision, and codes x / d, rounded to the nearest integer from -8 to 7. */
static void store_q4(const float *x, size_t n, uint8_t *dst) {
    for (size_t i = 0; i < n; i += 32, dst += 18) {
        float high = x[i], low = x[i], code[32];

        for (size_t j = 0; j < 32; j++) {
            high = MAX(x[i + j], high);
            low = MIN(x[i + j], low);
        }
        float most = low;
        if (high >= -low)
            most = high;
        uint16_t d = mx_float_to_half(most / -8.0f);
        float step = mx_half_to_float(d), inverse = 0;

        if (step != 0)
            inverse = 1.0f / step;
        memcpy(dst, &d, 2);
        for (size_t j = 0; j < 32; j++) {
            float q = x[i + j] * inverse;

            if (!(q >= -8)) /* NaN becomes -8 */
                q = -8;
            q = MIN(q, 7);
            code[j] = q + 12582912.0f - 12582912.0f + 8;
        }
        for (size_t j = 0; j < 16; j++)
            dst[2 + j] = (uint8_t)((uint8_t)code[j] | (uint8_t)code[j + 16] << 4);
    }
}

static void store_f32(const float *x, size_t n, uint8_t *dst) {
    memcpy(dst, x, n * sizeof(*x));
}

/* Functions by enum engine_kv_type. */
static void (*const store_head[])(const float *x, size_t n, uint8_t *dst) = {
    [ENGINE_KV_F16] = host_store_halves,
    [ENGINE_KV_Q8_0] = store_q8,
    [ENGINE_KV_Q4_0] = store_q4,
    [ENGINE_KV_F32] = store_f32,
};

/* Returns the address of the key (@which 0) or value (1) of a head at position @pos of row @row. */
static uint8_t *ref_slot(struct step *s, const struct model_op *op, uint32_t row, uint32_t pos,
                         uint32_t head, int which) {
    const struct be *b = s->be;
    size_t page = host_page(&s->host, op->kv.cls, row, pos), dim = op->heads.dim, keys = 0;

    if (which) {
        keys = kv_bytes(b->kv_type.k, b->page_tokens * op->heads.n_kv * dim);
        dim = heads_value(&op->heads);
    }
    assert(page < b->n_pages[op->kv.cls] && head < op->heads.n_kv);
    return b->pages[op->kv.cls] + page * b->page_bytes[op->kv.cls] +
           kv_bytes_both(b->kv_type, op->kv.at * b->page_tokens) + keys +
           kv_bytes(which ? b->kv_type.v : b->kv_type.k,
                    (pos % b->page_tokens * op->heads.n_kv + head) * dim);
}

void ref_store_rows(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    size_t dim[2] = {op->heads.dim, heads_value(&op->heads)}, n = op->heads.n_kv;

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++)
        for (uint32_t h = 0; h < n; h++)
            for (int which = 0; which < 2; which++)
                store_head[which ? b->kv_type.v : b->kv_type.k](
                    b->kv[which] + (r * n + h) * dim[which], dim[which],
                    ref_slot(s, op, r, s->host.row_pos[r], h, which));
}

/* Multiplies each run of @run values of @x, if @run is not 0, by the Hadamard matrix (shape.h). */
static void hadamard(float *x, size_t n, uint32_t run) {
    float scale = 0;

    if (run)
        scale = 1.0f / sqrtf((float)run);
    for (uint32_t step = 1; step < run; step *= 2)
        for (size_t i = 0; i < n; i++)
            if (!(i & step)) {
                float a = x[i], b = x[i + step];

                x[i] = a + b;
                x[i + step] = a - b;
            }
    for (size_t i = 0; i < n && run; i++)
        x[i] *= scale;
}

/* -- q, k and v -------------------------------------------------------------------------------- */

void ref_set_rope(struct be *b, const struct rope_set *s, uint32_t row) {
    const uint32_t *at = b->step.host.row[row].at;

    for (uint32_t i = 0; i < s->n_rot / 2; i++)
        mx_sincos(at[s->axis ? s->axis[i] : ROPE_TIME] * s->freq[i], &b->rope[2 * i + 1],
                  &b->rope[2 * i]);
}

void ref_rotate(const struct be *b, const struct rope_set *s, float *x) {
    bool norm = b->shape->rope_type == ROPE_NORM;

    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        float c = (float)b->rope[2 * i] * s->mscale;
        float d = (float)b->rope[2 * i + 1] * s->mscale;
        float *p0 = norm ? x + 2 * i : x + i, *p1 = norm ? p0 + 1 : p0 + s->n_rot / 2;
        float a = *p0, e = *p1;

        *p0 = a * c - e * d;
        *p1 = a * d + e * c;
    }
}

/* Applies qk-norm and RoPE to the @n heads of one row. */
static void ref_finish_heads(const struct be *b, const struct model_op *op, float *x, uint32_t n,
                             const struct tensor *norm) {
    size_t dim = op->heads.dim;
    struct tensor own = norm ? *norm : (struct tensor){0};

    if (norm && op->qkv.norm_all)
        ref_rms_norm(x, norm, b->shape->rms_eps, n * dim, x);
    for (uint32_t h = 0; h < n; h++) {
        if (norm && !op->qkv.norm_all && !op->qkv.norm_late)
            ref_rms_norm(x + h * dim, &own, b->shape->rms_eps, dim, x + h * dim);
        if (norm && op->qkv.norm_each)
            own.data = (const uint8_t *)own.data + dim * sizeof(float);
        ref_rotate(b, &b->shape->rope[op->rope], x + h * dim);
        if (norm && op->qkv.norm_late)
            ref_rms_norm(x + h * dim, norm, b->shape->rms_eps, dim, x + h * dim);
    }
}

/* Copies the queries of row @row from b->gated, where each head's query precedes its gate. */
static void ref_copy_queries(struct be *b, const struct heads *heads, uint32_t row) {
    size_t dim = heads->dim, n = heads->n;

    for (size_t h = row * n; h < (row + 1) * n; h++)
        memcpy(b->act[ACT_Q] + h * dim, b->gated + 2 * h * dim, dim * sizeof(float));
}

/* Multiplies the keys and values of all rows by their Hadamard matrices, and stores them. */
static void store_heads(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    struct hadamard_runs runs = hadamard_runs(b->shape, b->kv_type, op->heads.dim);
    size_t n = (size_t)s->host.batch->n_rows * op->heads.n_kv;

    hadamard(b->kv[0], n * op->heads.dim, runs.k);
    hadamard(b->kv[1], n * heads_value(&op->heads), runs.v);
    ref_store_rows(s, op);
}

void ref_temper(const struct temper *t, uint32_t pos, float *q, size_t n) {
    if (t->slope == 0)
        return;
    float factor = temper_at(t, pos);

    for (size_t i = 0; i < n; i++)
        q[i] *= factor;
}

int ref_qkv(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct heads *h = &op->heads;
    uint32_t n_rows = s->host.batch->n_rows;
    size_t kv_width = (size_t)h->n_kv * h->dim;
    float *to[3] = {op->qkv.gated ? b->gated : b->act[ACT_Q], b->kv[0], b->kv[1]};
    struct hadamard_runs runs = hadamard_runs(b->shape, b->kv_type, h->dim);

    assert(op->w[0] && (op->w[1] || !op->w[2]));
    ref_norm_rows(s, op);
    for (int i = 0; i < 3 && op->w[i]; i++)
        ref_linear(b, op->w[i], op->bias[i], b->normed, n_rows, to[i]);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (op->qkv.gated)
            ref_copy_queries(b, h, r);
        ref_set_rope(b, &b->shape->rope[op->rope], r);
        float *q = b->act[ACT_Q] + (size_t)r * h->n * h->dim;
        ref_finish_heads(b, op, q, h->n, op->q_norm);
        ref_temper(&op->qkv.temper, s->host.row_pos[r], q, (size_t)h->n * h->dim);
        hadamard(q, (size_t)h->n * h->dim, runs.k);
        if (!op->w[1])
            continue;
        if (!op->w[2])
            memcpy(to[2] + r * kv_width, to[1] + r * kv_width, kv_width * sizeof(float));
        ref_finish_heads(b, op, to[1] + r * kv_width, h->n_kv, op->k_norm);
        for (uint32_t i = 0; i < h->n_kv && op->qkv.v_unit; i++) {
            float *v = to[2] + r * kv_width + (size_t)i * h->dim;

            ref_rms_norm(v, NULL, b->shape->rms_eps, h->dim, v);
        }
    }
    if (op->w[1])
        store_heads(s, op);
    return 0;
}

int ref_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_rows = s->host.batch->n_rows;
    size_t width = (size_t)op->heads.n_kv * op->heads.dim;

    ref_norm_rows(s, op);
    for (int i = 0; i < 2; i++)
        ref_linear(b, op->w[i], op->bias[i], b->normed, n_rows, b->kv[i]);
    for (uint32_t r = 0; r < n_rows; r++) {
        ref_set_rope(b, &b->shape->rope[op->rope], r);
        ref_finish_heads(b, op, b->kv[0] + r * width, op->heads.n_kv, op->k_norm);
    }
    store_heads(s, op);
    return 0;
}

int ref_holes(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    size_t n_keys = (size_t)s->host.batch->n_rows * op->heads.n_kv, dim = op->heads.dim;

    memset(b->kv[0], 0, n_keys * dim * sizeof(float));
    memset(b->kv[1], 0, n_keys * dim * sizeof(float));
    for (size_t i = 1; i <= n_keys; i++)
        b->kv[0][i * dim - 1] = INFINITY;
    ref_store_rows(s, op);
    return 0;
}

/* -- attention --------------------------------------------------------------------------------- */

/* Applies softmax to x. @sink: score of a key without a value; NULL: none. */
static void softmax(float *x, uint32_t n, const float *sink) {
    float max = sink ? *sink : x[0], sum = 0;

    for (uint32_t i = 0; i < n; i++)
        max = MAX(x[i], max);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = mx_expf(x[i] - max);
        sum += x[i];
    }
    if (sink)
        sum += mx_expf(*sink - max);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* Returns the bits of the positions that key head @kvh of row @row sees in sparse attention. */
static const uint32_t *ref_sparse_bits(const struct be *b, uint32_t row, uint32_t kvh) {
    size_t set = row;

    if (b->shape->sparse.block)
        set = (size_t)row * b->shape->sparse.n_head + kvh;
    return b->seen + set * b->seen_words;
}

/* Computes attention of the query heads that share key head @kvh, for one row: all scores, their
 * softmax, then the weighted values. @q and @o: the first of these heads. */
static void attend_group(struct step *s, const struct model_op *op, uint32_t row, uint32_t kvh,
                         const float *q, float *o) {
    struct be *b = s->be;
    uint32_t group = op->heads.n / op->heads.n_kv, pos = s->host.row_pos[row];
    uint32_t end = pos + !op->attn.before, reach = op->attn.reach;
    if (op->attn.whole)
        end = host_end(&s->host, row);
    else if (op->attn.two_way)
        end = s->host.row[row].end;
    if (reach)
        end = MIN(end, pos + reach + 1);
    uint32_t first = attn_first(&op->attn, pos);
    uint32_t n = end - first, dim = op->heads.dim, n_value = heads_value(&op->heads);
    float *kv = b->row;
    const uint32_t *seen = NULL;

    if (op->attn.sparse)
        seen = ref_sparse_bits(b, row, kvh);
    for (uint32_t p = 0; p < n; p++) {
        quant_decode(kv_types[b->kv_type.k].tensor, ref_slot(s, op, row, first + p, kvh, 0), kv,
                     dim);
        for (uint32_t g = 0; g < group; g++) {
            float z = host_dot(q + (size_t)g * dim, kv, dim) * op->attn.scale;

            if (op->attn.holes && !isfinite(z))
                z = -1e30F;
            if (op->attn.sparse && !(seen[p / 32] >> p % 32 & 1))
                z = -INFINITY;
            if (op->attn.cap)
                z = mx_soft_cap(z, op->attn.cap);
            if (op->attn.slope)
                z -= op->attn.slope[kvh * group + g] * fabsf((float)pos - (float)(first + p));
            b->scores[(size_t)g * n + p] = z;
        }
    }
    memset(o, 0, (size_t)group * n_value * sizeof(*o));
    for (uint32_t g = 0; g < group; g++) {
        float sink = 0;

        if (op->sinks)
            sink = ref_vector_at(op->sinks, kvh * group + g);
        softmax(b->scores + (size_t)g * n, n, op->sinks ? &sink : NULL);
    }
    for (uint32_t p = 0; p < n; p++) {
        quant_decode(kv_types[b->kv_type.v].tensor, ref_slot(s, op, row, first + p, kvh, 1), kv,
                     n_value);
        for (uint32_t g = 0; g < group; g++) {
            float weight = b->scores[(size_t)g * n + p];

            for (uint32_t d = 0; d < n_value; d++)
                o[(size_t)g * n_value + d] += weight * kv[d];
        }
    }
    hadamard(o, (size_t)group * n_value, hadamard_runs(b->shape, b->kv_type, dim).v);
}

int ref_attend(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    size_t n = op->heads.n_kv, group = op->heads.n / n;

    for (size_t r = 0; r < s->host.batch->n_rows; r++)
        for (uint32_t h = 0; h < n; h++)
            attend_group(s, op, (uint32_t)r, h, b->act[ACT_Q] + (r * n + h) * group * op->heads.dim,
                         b->act[ACT_O] + (r * n + h) * group * heads_value(&op->heads));
    return 0;
}
