/* rows - kernels for one row: norms, RoPE, Hadamard products, activation functions, gates. Values
 * beyond the last whole vector are copied to a vector
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
