/*
 * cpu_tiles - kernels of attention. The main one adds a tile of 32 keys and values to the running
 * softmax of up to four queries; cpu.c explains how tiles are combined. The others serve the
 * indexer and compressed keys (engine/ops).
 *
 * Keys are stored transposed in their page, in groups of 16: dimension 0 of the 16 keys, then
 * dimension 1, and so on. A lane of a vector is a key, so a score is summed inside its lane and
 * needs no horizontal sum. Values are stored by position, so for them a lane is a dimension.
 *
 * The state of a query (struct attn_state) is m, l[16] and o. A tile changes it as follows; q is
 * already multiplied by the scale of the scores:
 *
 *   s[key]  = (fma over even d of q[d] k[d]) + (fma over odd d of q[d] k[d])
 *             q8_0, q4_0: the sum for each block of 32 d, multiplied by the block's scale and added
 *             up by fma
 *             then, where the op has them: -1e30 for a hole, whose score is not finite (it has no
 *             weight beside the query's own key); -inf for a hidden key; the soft cap; fma(-slope,
 *             distance, s)
 *   m'      = max(m, s); c = exp(m - m'); p = exp(s - m')
 *   l[lane] = fma(l[lane], c, p[lane]) + p[16 + lane]
 *   o[d]    = o[d] c, then fma(p[key], v[key][d], o[d]) key by key
 *             (q8_0, q4_0: p[key] times the scale)
 *
 * Even and odd dimensions are two independent chains of fma, whose latencies overlap. The order
 * above is the same for every instruction set (vec.h) and for any number of queries, so the bits of
 * a result do not depend on either. Queries that go through a tile together share the loads and
 * conversions of its keys and values.
 *
 * Keys before t->first and from t->n on are not visible: their score is -inf whatever the page
 * holds there, and their values are not read.
 */

#include <assert.h>

#include "engine/ops/attention/cpu_formats.h"

#define MAX_QUERIES 4

/* Computes the dot products of @n queries and 32 keys over dimensions [d0, d1); s[c][g] has those
 * of query c with group g of 16 keys. */
INLINE void dot_block(enum engine_kv_type type, const struct attn_tile *t, const float *q,
                      uint32_t stride, int n, uint32_t d0, uint32_t d1, vf s[MAX_QUERIES][2]) {
    vf odd[MAX_QUERIES][2];
    uint32_t d = d0;

    UNROLL
    for (int c = 0; c < n; c++)
        s[c][0] = s[c][1] = odd[c][0] = odd[c][1] = vf_zero();
    for (; d + 2 <= d1; d += 2) {
        vf a[2], b[2];
        const float *x = q + (size_t)d * stride;

        load_k(type, t->k[0], d, a);
        load_k(type, t->k[1], d, b);
        UNROLL
        for (int c = 0; c < n; c++) {
            s[c][0] = vf_fma(vf_set1(x[c]), a[0], s[c][0]);
            s[c][1] = vf_fma(vf_set1(x[c]), b[0], s[c][1]);
            odd[c][0] = vf_fma(vf_set1(x[stride + (uint32_t)c]), a[1], odd[c][0]);
            odd[c][1] = vf_fma(vf_set1(x[stride + (uint32_t)c]), b[1], odd[c][1]);
        }
    }
    if (d < d1) { /* an odd head size, which only f16 permits */
        UNROLL
        for (int c = 0; c < n; c++)
            for (int g = 0; g < 2; g++)
                s[c][g] = vf_fma(vf_set1(q[(size_t)d * stride + (uint32_t)c]),
                                 vf_load_half(t->k[g] + (size_t)d * LANES * 2), s[c][g]);
    }
    UNROLL
    for (int c = 0; c < n; c++)
        for (int g = 0; g < 2; g++)
            s[c][g] = vf_add(s[c][g], odd[c][g]);
}

/* Computes the scores of @n queries: s[c][0] those of the first 16 keys of the tile, s[c][1] those
 * of the last 16. */
INLINE void scores(const struct kv_view *v, enum engine_kv_type type, const struct attn_tile *t,
                   const float *q, uint32_t stride, int n, vf s[MAX_QUERIES][2]) {
    if (type == ENGINE_KV_F16) {
        dot_block(type, t, q, stride, n, 0, v->head_dim, s);
        return;
    }
    UNROLL
    for (int c = 0; c < n; c++)
        s[c][0] = s[c][1] = vf_zero();
    for (uint32_t b = 0; b < v->head_dim / 32; b++) {
        vf part[MAX_QUERIES][2];

        dot_block(type, t, q, stride, n, 32 * b, 32 * b + 32, part);
        for (int g = 0; g < 2; g++) {
            vf scale =
                vf_load_half(t->k[g] + kv_codes(type, LANES * v->head_dim) + (size_t)b * LANES * 2);
            UNROLL
            for (int c = 0; c < n; c++)
                s[c][g] = vf_fma(scale, part[c][g], s[c][g]);
        }
    }
}

/* Updates the softmax of query @c with its scores: sets p[32], the weights of the keys, and returns
 * the factor by which earlier weighted values must be multiplied. */
INLINE float cpu_attention_weigh(vf s0, vf s1, const struct attn_tile *t, int c,
                                 struct attn_state *st, float *p) {
    static const float lane[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf lowest = vf_set1(-INFINITY), hole = vf_set1(-1e30F);

    /* s + (s - s) is s if s is finite, else NaN, which vf_max() replaces. The score of a hole is a
     * finite number, so that the softmax of a tile of holes only is defined. */
    if (t->holes) {
        s0 = vf_max(vf_add(s0, vf_sub(s0, s0)), hole);
        s1 = vf_max(vf_add(s1, vf_sub(s1, s1)), hole);
    }
    if (t->hide) {
        s0 = vf_add(s0, vf_load(t->hide));
        s1 = vf_add(s1, vf_load(t->hide + LANES));
    }
    if (t->cap != 0) {
        s0 = vf_soft_cap(s0, t->cap);
        s1 = vf_soft_cap(s1, t->cap);
    }
    if (t->alibi) {
        vf away = vf_sub(vf_load(lane), vf_set1(t->at[c])), slope = vf_set1(-t->slope[c]);

        s0 = vf_fma(slope, vf_abs(away), s0);
        s1 = vf_fma(slope, vf_abs(vf_add(away, vf_set1(16.0f))), s1);
    }
    if (t->n < 32) {
        s0 = vf_keep_first(s0, t->n < LANES ? t->n : LANES, lowest);
        s1 = vf_keep_first(s1, t->n < LANES ? 0 : t->n - LANES, lowest);
    }
    if (t->first > 0) {
        s0 = vf_keep_first(lowest, t->first < LANES ? t->first : LANES, s0);
        s1 = vf_keep_first(lowest, t->first < LANES ? 0 : t->first - LANES, s1);
    }
    float tile_max = vf_reduce_max(vf_max(s0, s1)), m = st->m > tile_max ? st->m : tile_max;
    float before = mx_expf(st->m - m);
    vf p0 = vf_exp(vf_sub(s0, vf_set1(m))), p1 = vf_exp(vf_sub(s1, vf_set1(m)));

    st->m = m;
    vf_store(p, p0);
    vf_store(p + LANES, p1);
    vf_store(st->l, vf_add(vf_fma(vf_load(st->l), vf_set1(before), p0), p1));
    return before;
}

/* Adds the values of a tile for @n queries, key by key: o = o * before, then o += p v, for @n_vec
 * vectors of dimensions from @d on. */
INLINE void cpu_attention_add_values(const struct kv_view *v, enum engine_kv_type type,
                                     const struct attn_tile *t, int n, int n_vec, uint32_t d,
                                     float p[MAX_QUERIES][32], const float *before,
                                     struct attn_state *const *st) {
    vf o[MAX_QUERIES][4];

    UNROLL
    for (int c = 0; c < n; c++)
        UNROLL
    for (int i = 0; i < n_vec; i++)
        o[c][i] = vf_mul(vf_load(st[c]->o + d + LANES * i), vf_set1(before[c]));
    for (uint32_t j = t->first; j < t->n; j++) {
        vf x[4], scale[4];

        UNROLL
        for (int i = 0; i < n_vec; i++) {
            x[i] = load_v(v, type, t, j, d + LANES * (uint32_t)i, i % 2);
            if (type != ENGINE_KV_F16) {
                uint16_t h;

                memcpy(&h,
                       t->v_scale[j / LANES] +
                           ((j % LANES) * (v->value_dim / 32) + (d + LANES * (uint32_t)i) / 32) * 2,
                       2);
                scale[i] = vf_set1(mx_half_to_float(h));
            }
        }
        UNROLL
        for (int c = 0; c < n; c++)
            UNROLL
        for (int i = 0; i < n_vec; i++) {
            vf w = vf_set1(p[c][j]);

            o[c][i] = vf_fma(type != ENGINE_KV_F16 ? vf_mul(w, scale[i]) : w, x[i], o[c][i]);
        }
    }
    UNROLL
    for (int c = 0; c < n; c++)
        UNROLL
    for (int i = 0; i < n_vec; i++)
        vf_store(st[c]->o + d + LANES * i, o[c][i]);
}

/* Does what cpu_attention_add_values() does for the last dimensions, from @d on, of a head whose
 * size is not a multiple of 16, which only f16 permits. */
static void add_tail(const struct kv_view *v, const struct attn_tile *t, int n, uint32_t d,
                     float p[MAX_QUERIES][32], const float *before, struct attn_state *const *st) {
    for (int c = 0; c < n; c++)
        for (uint32_t i = d; i < v->value_dim; i++) {
            float o = st[c]->o[i] * before[c];

            for (uint32_t j = t->first; j < t->n; j++) {
                uint16_t h;

                memcpy(&h, t->v[j / LANES] + ((j % LANES) * v->value_dim + i) * 2, 2);
                o = fmaf(p[c][j], mx_half_to_float(h), o);
            }
            st[c]->o[i] = o;
        }
}

/* Weights of a tile's keys for each query, and the factors of earlier values. */
struct weights_of_tile {
    float p[MAX_QUERIES][32], before[MAX_QUERIES];
};

/* Computes the scores and weights of a tile, for constant @type and @n. */
INLINE void keys_n(const struct kv_view *v, enum engine_kv_type type, const struct attn_tile *t,
                   const float *q, uint32_t stride, int n, struct attn_state *const *st,
                   struct weights_of_tile *w) {
    vf s[MAX_QUERIES][2];

    scores(v, type, t, q, stride, n, s);
    for (int c = 0; c < n; c++)
        w->before[c] = cpu_attention_weigh(s[c][0], s[c][1], t, c, st[c], w->p[c]);
}

/* Adds the values of a tile, 64, 32 or 16 dimensions at a time, for constant @type and @n. */
INLINE void values_n(const struct kv_view *v, enum engine_kv_type type, const struct attn_tile *t,
                     int n, struct attn_state *const *st, struct weights_of_tile *w) {
    float(*p)[32] = w->p;
    const float *before = w->before;
    uint32_t d = 0;

    for (; d + 4 * LANES <= v->value_dim; d += 4 * LANES)
        cpu_attention_add_values(v, type, t, n, 4, d, p, before, st);
    if (type != ENGINE_KV_F16 && d < v->value_dim) /* one block is left */
        cpu_attention_add_values(v, type, t, n, 2, d, p, before, st), d += 2 * LANES;
    for (; d + LANES <= v->value_dim; d += LANES)
        cpu_attention_add_values(v, type, t, n, 1, d, p, before, st);
    if (d < v->value_dim)
        add_tail(v, t, n, d, p, before, st);
}

void CPU_NAME(kv_write)(const struct kv_view *v, uint8_t *k_head, uint8_t *v_head, uint32_t slot,
                        const float *k, const float *val) {
    write_key[v->type.k](v, k_head + slot / LANES * v->k_group, slot % LANES, k);
    write_value[v->type.v](v, v_head, slot, val);
}

void CPU_NAME(attend)(const struct kv_view *v, const struct attn_tile *t, const float *q,
                      uint32_t stride, uint32_t n, struct attn_state *const *state) {
    struct weights_of_tile w;

/* A chain of conditions: with a switch four queries on keys and values of q8_0 took 8 % longer (gcc
 * 12). F32 has no pages here. */
#define KEYS(name, ...)                                                                            \
    if (v->type.k == ENGINE_KV_##name)                                                             \
        keys_n(v, ENGINE_KV_##name, t, q, stride, n_now, state, &w);                               \
    else
#define VALUES(name, ...)                                                                          \
    if (v->type.v == ENGINE_KV_##name)                                                             \
        values_n(v, ENGINE_KV_##name, t, n_now, state, &w);                                        \
    else
#define CASE(n_queries)                                                                            \
    do {                                                                                           \
        const int n_now = n_queries;                                                               \
                                                                                                   \
        KEYS(F16) KV_CODED(KEYS) assert(false);                                                    \
        VALUES(F16) KV_CODED(VALUES) assert(false);                                                \
    } while (0)
#ifdef VEC_PLAIN
    CASE((int)n);
#else
    if (n == 1)
        CASE(1);
    else if (n == 2)
        CASE(2);
    else if (n == 3)
        CASE(3);
    else
        CASE(4);
#endif
}

void CPU_NAME(index_scores)(const float *q, uint32_t n_head, uint32_t dim, const uint8_t *keys,
                            uint32_t n, float *score) {
    for (uint32_t i = 0; i < n; i++, keys += 2 * (size_t)dim) {
        float sum = 0;

        for (uint32_t h = 0; h < n_head; h++) {
            vf z = vf_zero();

            for (uint32_t d = 0; d < dim; d += LANES)
                z = vf_fma(vf_load(q + (size_t)h * dim + d), vf_load_half(keys + 2 * (size_t)d), z);
            float one = vf_reduce_add(z);
            sum += one > 0 ? one : 0;
        }
        score[i] = sum;
    }
}

void CPU_NAME(halves)(const uint8_t *x, float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i += LANES)
        vf_store(y + i, vf_load_half(x + 2 * (size_t)i));
}

/* Computes the scores of @n heads, at most 4 and a constant, with one key. */
INLINE void dots_n(const float *q, int n, uint32_t dim, const float *key, float scale, float *score,
                   size_t stride) {
    vf z[4];

    UNROLL
    for (int h = 0; h < n; h++)
        z[h] = vf_zero();
    for (uint32_t d = 0; d < dim; d += LANES) {
        vf k = vf_load(key + d);

        UNROLL
        for (int h = 0; h < n; h++)
            z[h] = vf_fma(vf_load(q + (size_t)h * dim + d), k, z[h]);
    }
    UNROLL
    for (int h = 0; h < n; h++)
        score[(size_t)h * stride] = vf_reduce_add(z[h]) * scale;
}

void CPU_NAME(dots)(const float *q, uint32_t n_head, uint32_t dim, const float *const *key,
                    uint32_t n, float scale, float *score, size_t stride) {
    uint32_t h = 0;

    for (; h + 4 <= n_head; h += 4)
        for (uint32_t i = 0; i < n; i++)
            dots_n(q + (size_t)h * dim, 4, dim, key[i], scale, score + h * stride + i, stride);
    for (; h < n_head; h++)
        for (uint32_t i = 0; i < n; i++)
            dots_n(q + (size_t)h * dim, 1, dim, key[i], scale, score + h * stride + i, stride);
}

/* Adds the weighted keys for dimensions @d to @d + 15 of @n heads, at most 4 and a constant. */
INLINE void weigh_n(const float *weight, size_t stride, int n, uint32_t dim,
                    const float *const *key, uint32_t n_key, uint32_t d, float *o) {
    vf z[4];

    UNROLL
    for (int h = 0; h < n; h++)
        z[h] = vf_load(o + (size_t)h * dim + d);
    for (uint32_t i = 0; i < n_key; i++) {
        vf k = vf_load(key[i] + d);

        UNROLL
        for (int h = 0; h < n; h++)
            z[h] = vf_fma(vf_set1(weight[(size_t)h * stride + i]), k, z[h]);
    }
    UNROLL
    for (int h = 0; h < n; h++)
        vf_store(o + (size_t)h * dim + d, z[h]);
}

void CPU_NAME(weigh_keys)(const float *weight, size_t stride, uint32_t n_head, uint32_t dim,
                          const float *const *key, uint32_t n, float *o) {
    uint32_t h = 0;

    for (; h + 4 <= n_head; h += 4)
        for (uint32_t d = 0; d < dim; d += LANES)
            weigh_n(weight + h * stride, stride, 4, dim, key, n, d, o + (size_t)h * dim);
    for (; h < n_head; h++)
        for (uint32_t d = 0; d < dim; d += LANES)
            weigh_n(weight + h * stride, stride, 1, dim, key, n, d, o + (size_t)h * dim);
}

/* With M = max(a.m, b.m), multiplies l and o of @a by exp(a.m - M) and adds those of @b, multiplied
 * by exp(b.m - M), by fma. */
void CPU_NAME(attend_merge)(struct attn_state *a, const struct attn_state *b, uint32_t head_dim) {
    float m = a->m > b->m ? a->m : b->m, ca = mx_expf(a->m - m), cb = mx_expf(b->m - m);

    a->m = m;
    for (uint32_t i = 0; i < LANES; i++)
        a->l[i] = fmaf(b->l[i], cb, a->l[i] * ca);
    for (uint32_t i = 0; i < head_dim; i++)
        a->o[i] = fmaf(b->o[i], cb, a->o[i] * ca);
}

/* With M = max(a.m, sink), multiplies l and o by exp(a.m - M) and adds exp(sink - M) to l. */
void CPU_NAME(attend_sink)(struct attn_state *a, float sink, uint32_t head_dim) {
    float m = a->m > sink ? a->m : sink, c = mx_expf(a->m - m);

    a->m = m;
    for (uint32_t i = 0; i < LANES; i++)
        a->l[i] *= c;
    a->l[0] += mx_expf(sink - m);
    for (uint32_t i = 0; i < head_dim; i++)
        a->o[i] *= c;
}

void CPU_NAME(attend_finish)(const struct attn_state *a, float *out, uint32_t head_dim) {
    float inverse = 1.0f / vf_reduce_add(vf_load(a->l));

    for (uint32_t i = 0; i < head_dim; i++)
        out[i] = a->o[i] * inverse;
}
