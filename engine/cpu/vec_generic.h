#pragma once

/*
 * vec_generic - the vectors of vec.h in plain C, with the vector types of GCC and Clang. The other
 * implementations must give the same bits. Operations without an operator call functions that loop
 * over the lanes; these are not inlined, which keeps the code small.
 */

#define VEC_TILE 4

typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef float vf __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(64)));

#define LANE_BY_LANE static __attribute__((noinline, unused)) void

/* c = fma(a, b, c) */
LANE_BY_LANE fma_lanes(const vf *a, const vf *b, vf *c) {
    for (int i = 0; i < 16; i++)
        (*c)[i] = fmaf((*a)[i], (*b)[i], (*c)[i]);
}

/* out = the 16 numbers of half precision at @p */
LANE_BY_LANE half_lanes(const uint16_t *p, vf *out) {
    for (int i = 0; i < 16; i++)
        (*out)[i] = mx_half_to_float(p[i]);
}

#define I INLINE
/* clang-format off */
I vi vi_set1(int32_t x) { return x - (vi){0}; }
I vi vi_zero(void) { return (vi){0}; }
I vi vi_add(vi a, vi b) { return a + b; }
I vi vi_mul(vi a, vi b) { return a * b; }
I vi vi_load_i8(const void *p) {
    typedef int8_t v16 __attribute__((vector_size(16)));
    v16 v; memcpy(&v, p, 16);
    return __builtin_convertvector(v, vi);
}
I vi vi_low4(vi a) { return (vi)((vu)a << 28) >> 28; }
I vi vi_high4(vi a) { return a >> 4; }
I vi vi_load_pairs(const void *p) {
    typedef uint16_t v16 __attribute__((vector_size(32)));
    v16 v; memcpy(&v, p, 32);
    vi x = __builtin_convertvector(v, vi);
    return (x & 255) | (x >> 8) << 16;
}
I vi vi_dot_pairs(vi acc, vi w, int32_t a) {
    return acc + (w & 0xFFFF) * (int16_t)(a & 0xFFFF) + (w >> 16) * (a >> 16);
}
I vi vi_dot6(vi acc, vb w, int32_t a) {
    vi v = (vi)w;
    int8_t x[4]; memcpy(x, &a, 4);
    return acc + (v & 255) * x[0] + (v >> 8 & 255) * x[1] + (v >> 16 & 255) * x[2] +
           (v >> 24 & 255) * x[3];
}
I vi vi_dot8(vi acc, vb w, int32_t a) { return vi_dot6(acc, w, a); }
I vi vi_dot8_init(int32_t neg128_sum) { return vi_set1(neg128_sum); }

/* Addresses of loads and stores need not be aligned. Stores of half precision round to nearest,
 * ties to even. */
I vf vf_zero(void) { return (vf){0}; }
I vf vf_set1(float x) { return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
I vf vf_load(const float *p) { vf r; memcpy(&r, p, 64); return r; }
I void vf_store(float *p, vf a) { memcpy(p, &a, 64); }
I vf vf_swap(vf a, int step) {
    vf r;
    for (int i = 0; i < 16; i++)
        r[i] = a[i ^ step];
    return r;
}
I vf vf_load_half(const void *p) {
    uint16_t h[16]; memcpy(h, p, 32);
    vf r; half_lanes(h, &r);
    return r;
}
I void vf_store_half(uint16_t *p, vf a) {
    for (int i = 0; i < 16; i++)
        p[i] = mx_float_to_half(a[i]);
}
I vf vf_load_bf16_low(const void *p) { vu v; memcpy(&v, p, 64); return (vf)(v << 16); }
I vf vf_load_bf16_high(const void *p) { vu v; memcpy(&v, p, 64); return (vf)(v & 0xFFFF0000u); }
/* Computes 2^(e - 128), whose exponent may be too small for a normal float, as the product of
 * 2^(floor(e / 2) - 64) and 2^(ceil(e / 2) - 64). */
I vf vf_load_e8m0_half(const void *p) {
    typedef uint8_t v16 __attribute__((vector_size(16)));
    v16 v; memcpy(&v, p, 16);
    vu e = __builtin_convertvector(v, vu), a = e >> 1, b = e - a;
    return (vf)((a + 63) << 23) * (vf)((b + 63) << 23);
}
I vf vf_load_ue4m3_half(const void *p) {
    uint8_t v[16]; memcpy(v, p, 16);
    uint16_t h[16];
    for (int i = 0; i < 16; i++)
        h[i] = (uint16_t)(v[i] << 7);
    vf r; half_lanes(h, &r);
    return r * 128.0f;
}
I vf vf_load_e4m3(const uint8_t *p, int k) {
    vf r;
    for (int i = 0; i < 16; i++)
        r[i] = mx_e4m3_to_float(p[i / 4 * 16 + i % 4 * 2 + k / 2 * 8 + k % 2]);
    return r;
}
I vf vf_of_i(vi a) { return __builtin_convertvector(a, vf); }
I vf vf_add(vf a, vf b) { return a + b; }
I vf vf_sub(vf a, vf b) { return a - b; }
I vf vf_mul(vf a, vf b) { return a * b; }
I vf vf_div(vf a, vf b) { return a / b; }
I vf vf_fma(vf a, vf b, vf c) { fma_lanes(&a, &b, &c); return c; }
/* Returns @a in the lanes of @which that are -1, and @b in those that are 0. */
I vf choose(vi which, vf a, vf b) { return (vf)((which & (vi)a) | (~which & (vi)b)); }
I vf vf_max(vf a, vf b) { return choose(a > b, a, b); }
I vf vf_min(vf a, vf b) { return choose(a < b, a, b); }
I vf vf_abs(vf a) { return (vf)((vi)a & INT32_MAX); }
I vf vf_neg(vf a) { return -a; }
I vf vf_keep_first(vf a, uint32_t n, vf other) {
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return choose(lane < (int32_t)n, a, other);
}
I vf vf_keep_above(vf a, vf x, vf limit) { return choose(x > limit, a, vf_zero()); }
I vf vf_exp2i(vf n) { return (vf)((__builtin_convertvector(n, vi) + 127) << 23); }
I void vf_store_i8(int8_t *p, vf a) {
    for (int i = 0; i < 16; i++)
        p[i] = (int8_t)a[i];
}
I float vf_reduce_add(vf a) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            a[i] += a[i + n];
    return a[0];
}
I float vf_reduce_max(vf a) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            a[i] = a[i] > a[i + n] ? a[i] : a[i + n];
    return a[0];
}

/* Loads, stores and operations of 64 bytes. Addresses need not be aligned. */
I vb vb_load(const void *p) { vb r; memcpy(&r, p, 64); return r; }
I void vb_store(void *p, vb a) { memcpy(p, &a, 64); }
I vb vb_set1(uint8_t x) { return x - (vb){0}; }
I vb vb_and(vb a, vb b) { return a & b; }
I vb vb_or(vb a, vb b) { return a | b; }
I vb vb_shr(vb a, int n) { return (vb)((vu)a >> n); }
I vb vb_shl(vb a, int n) { return (vb)((vu)a << n); }
I vb vb_table(const uint8_t table[16]) {
    vb r;
    for (int i = 0; i < 64; i++)
        r[i] = table[i % 16];
    return r;
}
I vb vb_lookup(vb table, vb index) {
    vb r;
    for (int i = 0; i < 64; i++)
        r[i] = table[index[i] & 15];
    return r;
}
/* clang-format on */
#undef I

INLINE void vb_iq2(const uint8_t *index, const uint8_t *sign, uint8_t *out) {
    vb s = vb_load(sign), v;

    for (int j = 0; j < 8; j++) {
        vb minus = -(s >> j & 1);

        for (int i = 0; i < 64; i++)
            v[i] = cpu_iq2_grid[j][index[i]];
        /* 128 - v, which is 64 minus the value, where minus is set; else v */
        vb_store(out + 64 * j, (v ^ minus) + (minus & 129));
    }
}
