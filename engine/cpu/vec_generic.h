#pragma once

/* The vectors of vec.h in plain C: what the other two must equal. */

#define VEC_TILE 4

typedef struct {
    int32_t v[16];
} vi;
typedef struct {
    float v[16];
} vf;
typedef struct {
    uint8_t v[64];
} vb;

#define EACH(expr)                                                                                 \
    for (int i = 0; i < 16; i++)                                                                   \
        r.v[i] = expr;                                                                             \
    return r
#define EACH_BYTE(expr)                                                                            \
    for (int i = 0; i < 64; i++)                                                                   \
        r.v[i] = (uint8_t)(expr);                                                                  \
    return r

#define I INLINE
/* clang-format off */
I vi vi_set1(int32_t x) { vi r; EACH(x); }
I vi vi_zero(void) { return vi_set1(0); }
I vi vi_add(vi a, vi b) { vi r; EACH(a.v[i] + b.v[i]); }
I vi vi_mul(vi a, vi b) { vi r; EACH(a.v[i] * b.v[i]); }
I vi vi_load_i8(const void *p) { const int8_t *s = p; vi r; EACH(s[i]); }
I vi vi_load_pairs(const void *p) { /* two 16-bit numbers a lane */
    const uint8_t *s = p; vi r; EACH(s[2 * i] | s[2 * i + 1] << 16);
}
I vi vi_dot_pairs(vi acc, vi w, int32_t a) {
    int lo = (int16_t)(a & 0xFFFF), hi = a >> 16;
    vi r; EACH(acc.v[i] + (w.v[i] & 0xFFFF) * lo + (w.v[i] >> 16) * hi);
}
I vi vi_dot6(vi acc, vb w, int32_t a) {
    int8_t x[4]; memcpy(x, &a, 4);
    vi r;
    EACH(acc.v[i] + w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] +
         w.v[4 * i + 3] * x[3]);
}
I vi vi_dot8(vi acc, vb w, int32_t a) { return vi_dot6(acc, w, a); }
I vi vi_dot8_init(int32_t neg128_sum) { return vi_set1(neg128_sum); }

I vf vf_set1(float x) { vf r; EACH(x); }
I vf vf_zero(void) { return vf_set1(0); }
I vf vf_load(const float *p) { vf r; EACH(p[i]); }
I void vf_store(float *p, vf a) { memcpy(p, a.v, sizeof(a.v)); }
I vf vf_load_half(const void *p) {
    uint16_t h[16]; memcpy(h, p, 32);
    vf r; EACH(mx_half_to_float(h[i]));
}
I void vf_store_half(uint16_t *p, vf a) {
    for (int i = 0; i < 16; i++)
        p[i] = mx_float_to_half(a.v[i]);
}
I vf vf_load_bf16(const void *p) {
    uint16_t h[16]; memcpy(h, p, 32);
    vf r; EACH(mx_bf16_to_float(h[i]));
}
I vf vf_of_i(vi a) { vf r; EACH((float)a.v[i]); }
I vf vf_add(vf a, vf b) { vf r; EACH(a.v[i] + b.v[i]); }
I vf vf_sub(vf a, vf b) { vf r; EACH(a.v[i] - b.v[i]); }
I vf vf_mul(vf a, vf b) { vf r; EACH(a.v[i] * b.v[i]); }
I vf vf_div(vf a, vf b) { vf r; EACH(a.v[i] / b.v[i]); }
I vf vf_fma(vf a, vf b, vf c) { vf r; EACH(fmaf(a.v[i], b.v[i], c.v[i])); }
/* The second where one is not a number, as the machines do. */
I vf vf_max(vf a, vf b) { vf r; EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
I vf vf_min(vf a, vf b) { vf r; EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
I vf vf_abs(vf a) { vf r; EACH(mx_float_of(mx_bits_of(a.v[i]) & 0x7FFFFFFFu)); }
I vf vf_neg(vf a) { vf r; EACH(-a.v[i]); }
I vf vf_keep_first(vf a, uint32_t n, vf other) { vf r; EACH((uint32_t)i < n ? a.v[i] : other.v[i]); }
I vf vf_keep_above(vf a, vf x, vf limit) { vf r; EACH(x.v[i] > limit.v[i] ? a.v[i] : 0.0f); }
I vf vf_exp2i(vf n) { vf r; EACH(mx_float_of((uint32_t)((int32_t)n.v[i] + 127) << 23)); }
I void vf_store_i8(int8_t *p, vf a) {
    for (int i = 0; i < 16; i++)
        p[i] = (int8_t)a.v[i];
}
I float vf_reduce_add(vf a) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            a.v[i] += a.v[i + n];
    return a.v[0];
}
I float vf_reduce_max(vf a) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            a.v[i] = a.v[i] > a.v[i + n] ? a.v[i] : a.v[i + n];
    return a.v[0];
}

I vb vb_load(const void *p) { vb r; memcpy(r.v, p, 64); return r; }
I void vb_store(void *p, vb a) { memcpy(p, a.v, 64); }
I vb vb_set1(uint8_t x) { vb r; EACH_BYTE(x); }
I vb vb_and(vb a, vb b) { vb r; EACH_BYTE(a.v[i] & b.v[i]); }
I vb vb_or(vb a, vb b) { vb r; EACH_BYTE(a.v[i] | b.v[i]); }
I vb vb_shr(vb a, unsigned n) { vb r; EACH_BYTE(a.v[i] >> n); }
I vb vb_shl(vb a, unsigned n) { vb r; EACH_BYTE(a.v[i] << n); }
I vb vb_table(const uint8_t table[16]) { vb r; EACH_BYTE(table[i % 16]); }
I vb vb_lookup(vb table, vb index) { vb r; EACH_BYTE(table.v[index.v[i] & 15]); }
/* clang-format on */
#undef I
