/* rows - kernels for one row: norms, RoPE, Hadamard products, activation functions, gates, and the
 * store of keys and values to a page. Values beyond the last whole vector are copied to a vector
 * that is filled up with zeros (`tail`). */

#include "engine/cpu/kernels.h"

/* Computes the sum of squares by lanes: lane i adds values i, i + 16, ... by fma, and
 * vf_reduce_add() adds the lanes. */
void CPU_NAME(rows_norm)(const float *x, const float *w, float *y, uint32_t n, float eps) {
    uint32_t whole = n / LANES * LANES;
    vf sum = vf_zero();
    float tail[LANES] = {0};

    for (uint32_t i = 0; i < whole; i += LANES) {
        vf v = vf_load(x + i);

        sum = vf_fma(v, v, sum);
    }
    if (n > whole) {
        memcpy(tail, x + whole, (n - whole) * sizeof(float));
        sum = vf_fma(vf_load(tail), vf_load(tail), sum);
    }
    float scale = 1.0f / sqrtf(vf_reduce_add(sum) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * (w ? w[i] : 1.0f);
}

/* Computes the mean first, then the sum of squares of the differences from it, both by lanes as
 * rows_norm() does. */
void CPU_NAME(rows_layer_norm)(float *x, const float *w, const float *bias, uint32_t n, float eps) {
    uint32_t whole = n / LANES * LANES;
    vf sum = vf_zero(), square = vf_zero();
    float tail[LANES] = {0};

    for (uint32_t i = 0; i < whole; i += LANES)
        sum = vf_add(sum, vf_load(x + i));
    if (n > whole) {
        memcpy(tail, x + whole, (n - whole) * sizeof(float));
        sum = vf_add(sum, vf_load(tail));
    }
    float mean = vf_reduce_add(sum) / (float)n;
    for (uint32_t i = 0; i < n; i++)
        x[i] -= mean;
    for (uint32_t i = 0; i < whole; i += LANES)
        square = vf_fma(vf_load(x + i), vf_load(x + i), square);
    if (n > whole) {
        memcpy(tail, x + whole, (n - whole) * sizeof(float));
        square = vf_fma(vf_load(tail), vf_load(tail), square);
    }
    float scale = 1.0f / sqrtf(vf_reduce_add(square) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        x[i] = fmaf(x[i] * scale, w[i], bias ? bias[i] : 0.0f);
}

/* Rotates (a, b) by the angle with cosine c and sine s. */
INLINE void rows_rotate(float *a, float *b, float c, float s) {
    float x = *a, y = *b;

    *a = fmaf(x, c, -(y * s));
    *b = fmaf(x, s, y * c);
}

void CPU_NAME(rows_rope)(float *restrict x, const float *restrict cs, uint32_t n_rot,
                         enum rope_type type) {
    uint32_t half = n_rot / 2;

    if (type == ROPE_NORM)
        for (uint32_t i = 0; i < half; i++)
            rows_rotate(&x[2 * i], &x[2 * i + 1], cs[i], cs[half + i]);
    else
        for (uint32_t i = 0; i < half; i++)
            rows_rotate(&x[i], &x[half + i], cs[i], cs[half + i]);
}

/* Returns the butterfly of lanes that are @step (1, 2, 4 or 8) apart: the sum in the lower lane of
 * a pair, lower minus upper in the upper lane. The multiplication by 1 or -1 is exact. */
INLINE vf rows_cross(vf x, int step) {
    static const float sign[4][LANES] = {
        {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
        {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
        {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
        {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
    };
    int row = __builtin_ctz((unsigned)step);

    return vf_fma(vf_load(sign[row]), x, vf_swap(x, step));
}

/* Fast Walsh-Hadamard transform: the first four rounds of butterflies are inside vectors, the other
 * rounds between vectors. The last round multiplies by 1 / sqrt(run). */
void CPU_NAME(rows_hadamard)(float *x, uint32_t n, uint32_t run) {
    vf scale = vf_set1(1.0f / sqrtf((float)run));

    for (uint32_t i = 0; i < n; i += LANES) {
        vf v = rows_cross(rows_cross(rows_cross(rows_cross(vf_load(x + i), 1), 2), 4), 8);

        vf_store(x + i, v);
    }
    for (uint32_t step = LANES; step < run; step *= 2)
        for (uint32_t i = 0; i < n; i += 2 * step)
            for (uint32_t j = i; j < i + step; j += LANES) {
                vf a = vf_load(x + j), b = vf_load(x + j + step);
                vf sum = vf_add(a, b), rest = vf_sub(a, b);

                vf_store(x + j, step == run / 2 ? vf_mul(sum, scale) : sum);
                vf_store(x + j + step, step == run / 2 ? vf_mul(rest, scale) : rest);
            }
}

/* silu_mul() to silu_cut() compute the functions of enum glu by lane; op.h has the formulas. */
INLINE vf silu_mul(vf g, vf u) {
    vf sigmoid = vf_add(vf_set1(1.0f), vf_exp(vf_neg(g)));

    return vf_mul(vf_div(g, sigmoid), u);
}

INLINE vf gelu_mul(vf g, vf u) {
    vf cube = vf_mul(vf_mul(vf_mul(vf_set1(0.044715f), g), g), g);
    vf e = vf_exp(vf_mul(vf_set1(-1.5957691216057308f), vf_add(g, cube)));

    return vf_mul(vf_div(g, vf_add(vf_set1(1.0f), e)), u);
}

INLINE vf clamped_mul(vf g, vf u) {
    vf x = vf_min(g, vf_set1(7.0f)), y = vf_max(vf_min(u, vf_set1(7.0f)), vf_set1(-7.0f));
    vf e = vf_exp(vf_mul(vf_set1(-1.702f), x));

    return vf_mul(vf_div(x, vf_add(vf_set1(1.0f), e)), vf_add(y, vf_set1(1.0f)));
}

INLINE vf silu_limited(vf g, vf u, vf limit) {
    return vf_mul(vf_min(silu_mul(g, vf_set1(1.0f)), limit),
                  vf_max(vf_min(u, limit), vf_neg(limit)));
}

INLINE vf silu_cut(vf g, vf u, vf limit) {
    return silu_mul(vf_min(g, limit), vf_max(vf_min(u, limit), vf_neg(limit)));
}

/* Defines rows_@name(): @out = @value, an expression of x and y, which are vectors of @a and @b. */
#define DEFINE_ROWS(name, params, a, b, out, value)                                                \
    void CPU_NAME(rows_##name) params {                                                            \
        uint32_t i = 0;                                                                            \
        float tail[2][LANES] = {{0}};                                                              \
                                                                                                   \
        for (; i + LANES <= n; i += LANES) {                                                       \
            vf x = vf_load((a) + i), y = vf_load((b) + i);                                         \
                                                                                                   \
            (void)y;                                                                               \
            vf_store((out) + i, value);                                                            \
        }                                                                                          \
        if (i < n) {                                                                               \
            memcpy(tail[0], (a) + i, (n - i) * sizeof(float));                                     \
            memcpy(tail[1], (b) + i, (n - i) * sizeof(float));                                     \
            vf x = vf_load(tail[0]), y = vf_load(tail[1]);                                         \
                                                                                                   \
            (void)y;                                                                               \
            vf_store(tail[0], value);                                                              \
            memcpy((out) + i, tail[0], (n - i) * sizeof(float));                                   \
        }                                                                                          \
    }

#define GLU_PARAMS (const float *g, const float *u, float *h, uint32_t n)
#define LIMITED_PARAMS (const float *g, const float *u, float *h, uint32_t n, float limit)

DEFINE_ROWS(silu_mul, GLU_PARAMS, g, u, h, silu_mul(x, y))
DEFINE_ROWS(gelu_mul, GLU_PARAMS, g, u, h, gelu_mul(x, y))
DEFINE_ROWS(clamped_mul, GLU_PARAMS, g, u, h, clamped_mul(x, y))
DEFINE_ROWS(silu_limited, LIMITED_PARAMS, g, u, h, silu_limited(x, y, vf_set1(limit)))
DEFINE_ROWS(silu_cut, LIMITED_PARAMS, g, u, h, silu_cut(x, y, vf_set1(limit)))
DEFINE_ROWS(gelu, (float *v, uint32_t n), v, v, v, gelu_mul(x, vf_set1(1.0f)))
DEFINE_ROWS(soft_cap, (float *v, uint32_t n, float cap), v, v, v, vf_soft_cap(x, cap))
/* o sigmoid(g) */
DEFINE_ROWS(gate, (float *o, const float *g, uint32_t n), o, g, o,
            vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_neg(y)))))

/* Computes the maximum and the sum by lanes, which are then folded by halves. */
float CPU_NAME(rows_exps)(float *x, uint32_t n, float scale) {
    vf most = vf_load(x), sum = vf_zero(), by = vf_set1(scale);

    for (uint32_t i = LANES; i < n; i += LANES)
        most = vf_max(most, vf_load(x + i));
    most = vf_set1(vf_reduce_max(most));
    for (uint32_t i = 0; i < n; i += LANES) {
        vf e = vf_exp(vf_mul(vf_sub(vf_load(x + i), most), by));

        vf_store(x + i, e);
        sum = vf_add(sum, e);
    }
    return vf_reduce_add(sum);
}

void CPU_NAME(rows_relu_mul)(const float *g, const float *u, float *h, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        h[i] = (g[i] > 0.0f ? g[i] : 0.0f) * u[i];
}

void CPU_NAME(rows_add_scaled)(float *acc, const float *x, float w, uint32_t n) {
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(acc + i, vf_fma(vf_set1(w), vf_load(x + i), vf_load(acc + i)));
    for (; i < n; i++)
        acc[i] = fmaf(w, x[i], acc[i]);
}

/* Quantises a block of 32 values to int8 (Q8_0). Returns the scale in half precision. */
static uint16_t quantize32(const float *x, int8_t *q) {
    vf most = vf_max(vf_abs(vf_load(x)), vf_abs(vf_load(x + LANES)));
    uint16_t d = mx_float_to_half(vf_reduce_max(most) / 127.0f);
    float scale = mx_half_to_float(d);
    vf inverse = vf_set1(scale > 0.0f ? 1.0f / scale : 0.0f), limit = vf_set1(127.0f);

    for (int i = 0; i < 32; i += LANES) {
        vf v = vf_max(vf_min(vf_mul(vf_load(x + i), inverse), limit), vf_neg(limit));

        vf_store_i8(q + i, vf_round(v));
    }
    return d;
}

/* Quantises a block of 32 values to codes from -8 to 7 (Q4_0), one in each byte. Returns the scale
 * in half precision: the value with the largest magnitude divided by -8. */
static uint16_t quantize32_4(const float *x, int8_t *q) {
    vf a = vf_load(x), b = vf_load(x + LANES);
    float high = vf_reduce_max(vf_max(a, b)), low = vf_reduce_max(vf_max(vf_neg(a), vf_neg(b)));
    uint16_t d = mx_float_to_half((high >= low ? high : -low) / -8.0f);
    float scale = mx_half_to_float(d);
    vf inverse = vf_set1(scale != 0.0f ? 1.0f / scale : 0.0f);

    for (int i = 0; i < 32; i += LANES) {
        vf v = vf_max(vf_min(vf_mul(vf_load(x + i), inverse), vf_set1(7.0f)), vf_set1(-8.0f));

        vf_store_i8(q + i, vf_round(v));
    }
    return d;
}

/* Returns a byte with the lower four bits of two numbers. */
static uint8_t join4(int8_t low, int8_t high) {
    return (uint8_t)((low & 15) | (high & 15) << 4);
}

/* Writes key @lane of a group of 16 keys as Q4_0. The group has codes [head_dim / 2][16 keys],
 * where byte i of a key has dimensions 2i and 2i + 1, then scales [head_dim / 32][16 keys]. */
static void key_q4(const struct kv_view *v, uint8_t *k_group, uint32_t lane, const float *k) {
    uint8_t *scale = k_group + (size_t)LANES * v->head_dim / 2;

    for (uint32_t b = 0; b < v->head_dim / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32_4(k + 32 * b, q);

        memcpy(scale + (b * LANES + lane) * 2, &d, 2);
        for (uint32_t i = 0; i < 32; i += 2)
            k_group[(32 * b + i) / 2 * LANES + lane] = join4(q[i], q[i + 1]);
    }
}

/* Writes the value of position @slot as Q4_0. The kv head has codes [page_tokens][head_dim / 2],
 * where a byte has dimensions i and i + 16 of a block, then scales [page_tokens][head_dim / 32]. */
static void value_q4(const struct kv_view *v, uint8_t *v_head, uint32_t slot, const float *val) {
    uint32_t hd = v->head_dim;
    uint8_t *row = v_head + (size_t)slot * hd / 2;
    uint8_t *scale = v_head + (size_t)v->page_tokens * hd / 2 + (size_t)slot * (hd / 32) * 2;

    for (uint32_t b = 0; b < hd / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32_4(val + 32 * b, q);

        memcpy(scale + 2 * b, &d, 2);
        for (uint32_t i = 0; i < LANES; i++)
            row[b * LANES + i] = join4(q[i], q[i + LANES]);
    }
}

/* Writes a key as Q8_0: codes [head_dim][16 keys], then scales as in key_q4(). */
static void key_q8(const struct kv_view *v, uint8_t *k_group, uint32_t lane, const float *k) {
    uint8_t *scale = k_group + (size_t)LANES * v->head_dim;

    for (uint32_t b = 0; b < v->head_dim / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32(k + 32 * b, q);

        memcpy(scale + (b * LANES + lane) * 2, &d, 2);
        for (uint32_t i = 0; i < 32; i++)
            k_group[(32 * b + i) * LANES + lane] = (uint8_t)q[i];
    }
}

/* Writes a value as Q8_0: codes [page_tokens][head_dim], then scales as in value_q4(). */
static void value_q8(const struct kv_view *v, uint8_t *v_head, uint32_t slot, const float *val) {
    uint32_t hd = v->head_dim;
    uint8_t *scale = v_head + (size_t)v->page_tokens * hd + (size_t)slot * (hd / 32) * 2;

    for (uint32_t b = 0; b < hd / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32(val + 32 * b, q);

        memcpy(scale + 2 * b, &d, 2);
        memcpy(v_head + (size_t)slot * hd + 32 * b, q, 32);
    }
}

/* Rounds @n values, at most 16, to half precision. */
static void halves(const float *x, uint32_t n, uint16_t half[LANES]) {
    float part[LANES] = {0};

    memcpy(part, x, n * sizeof(float));
    vf_store_half(half, vf_load(part));
}

/* Writes a key in half precision: [head_dim][16 keys]. */
static void key_f16(const struct kv_view *v, uint8_t *k_group, uint32_t lane, const float *k) {
    for (uint32_t d = 0; d < v->head_dim; d += LANES) {
        uint32_t n = v->head_dim - d < LANES ? v->head_dim - d : LANES;
        uint16_t half[LANES];

        halves(k + d, n, half);
        for (uint32_t i = 0; i < n; i++)
            memcpy(k_group + ((d + i) * LANES + lane) * 2, &half[i], 2);
    }
}

/* Writes a value in half precision: [page_tokens][head_dim]. */
static void value_f16(const struct kv_view *v, uint8_t *v_head, uint32_t slot, const float *val) {
    uint32_t hd = v->head_dim;

    for (uint32_t d = 0; d < hd; d += LANES) {
        uint32_t n = hd - d < LANES ? hd - d : LANES;
        uint16_t half[LANES];

        halves(val + d, n, half);
        memcpy(v_head + ((size_t)slot * hd + d) * 2, half, 2 * n);
    }
}

/* Functions by enum engine_kv_type. */
static void (*const write_key[])(const struct kv_view *v, uint8_t *k_group, uint32_t lane,
                                 const float *k) = {key_f16, key_q8, key_q4};
static void (*const write_value[])(const struct kv_view *v, uint8_t *v_head, uint32_t slot,
                                   const float *val) = {value_f16, value_q8, value_q4};

void CPU_NAME(kv_write)(const struct kv_view *v, uint8_t *k_head, uint8_t *v_head, uint32_t slot,
                        const float *k, const float *val) {
    write_key[v->type.k](v, k_head + slot / LANES * v->k_group, slot % LANES, k);
    write_value[v->type.v](v, v_head, slot, val);
}
