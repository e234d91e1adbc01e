#pragma once

/*
 * rows - what is done to rows of activations. Formulas: engine/reference/ops.c.
 */

#include "engine/cuda/device.cuh"

/* -- operands of matmul ------------------------------------------------------------------------ */

#define PACK_QUADS                                                                                 \
    4 /* fours of columns that a thread keeps in registers: rows of up to 8192 are read once */

/* Columns i .. i + 3; zero beyond the row. */
DEVICE void load_quad(const float *x, uint32_t i, uint32_t n, float v[4]) {
    if (i + 4 <= n && (uintptr_t)(x + i) % 16 == 0) {
        load_four(x + i, v);
        return;
    }
    for (uint32_t j = 0; j < 4; j++)
        v[j] = 0;
    for (uint32_t j = 0; i + j < n && j < 4; j++)
        v[j] = x[i + j];
}

/* 1 / (1 + e^-x), with the bits of engine/reference. */
DEVICE float sigmoid(float x) {
    return 1.0f / (1.0f + mx_expf(-x));
}

/* ln(1 + e^x), with the bits of engine/reference; beyond 20 that is x. */
DEVICE float softplus(float x) {
    return x > 20 ? x : (float)mx_log(1.0 + (double)mx_expf(x));
}

/* Returns glu(g, u) for pack kinds from PACK_SILU on (engine/reference/ops.c). */
DEVICE float gated(uint32_t kind, float g, float u) {
    if (kind == PACK_SILU)
        return mx_silu(g) * u;
    if (kind == PACK_GELU)
        return mx_gelu(g) * u;
    if (kind == PACK_GATE)
        return g * sigmoid(u);
    if (kind > PACK_GATE) {
        float limit = mx_float_of(kind & ~PACK_BEHIND);

        u = u < -limit ? -limit : u < limit ? u : limit;
        g = mx_silu(kind & PACK_BEHIND || g < limit ? g : limit);
        return (g < limit ? g : limit) * u; /* silu(limit) is less */
    }
    g = g < 7 ? g : 7;
    u = u < -7 ? -7 : u < 7 ? u : 7;
    return g / (1.0f + mx_expf(-1.702f * g)) * (u + 1);
}

/* Loads columns i .. i + 3 of a row as they are packed, before a norm. */
DEVICE void load_values(const struct pack_args &a, size_t row, uint32_t i, float v[4]) {
    load_quad(a.x + row * (a.x_stride ? a.x_stride : a.n), i, a.n, v);
    if (a.kind == PACK_RELU)
        for (int j = 0; j < 4; j++)
            v[j] *= fmaxf(v[j], 0);
    if (a.kind >= PACK_SILU) {
        float up[4];

        load_quad(a.up + row * (a.up_stride ? a.up_stride : a.n), i, a.n, up);
        for (int j = 0; j < 4; j++)
            v[j] = gated(a.kind, v[j], up[j]);
    }
}

/* Multiplies columns i .. i + 3, in v, by @inverse and their weights, where the kind is
 * PACK_NORM. */
DEVICE void apply_norm(const struct pack_args &a, uint32_t i, float inverse, float v[4]) {
    float weight[4];

    if (a.kind != PACK_NORM)
        return;
    load_quad(a.weight, i, a.n, weight);
    for (int j = 0; j < 4; j++)
        v[j] = v[j] * inverse * weight[j];
}

/* 2^e, -126 <= e <= 127. */
DEVICE float power_of_two(int e) {
    return mx_float_of((uint32_t)(e + 127) << 23);
}

#ifdef WEFT_BYTES
/* The second plane's 16 bytes of a lane (pack_args), from the eight threads that have the 32
 * columns, four values @v of each; of the first four threads. */
DEVICE struct vec4 pack_codes(const float v[4]) {
    uint32_t codes = 0;
    float max = 0, sum = 0;

    for (int j = 0; j < 4; j++)
        max = fmaxf(max, fabsf(v[j]) <= FLT_MAX ? fabsf(v[j]) : INFINITY);
    for (int m = 1; m < 8; m *= 2)
        max = fmaxf(max, lane_xor(max, m));
    float scale = max / 127.0f, inverse = max > 0 && max <= FLT_MAX ? 127.0f / max : 0;

    for (int j = 0; j < 4; j++) {
        float x = inverse > 0 ? v[j] * inverse : 0;
        float code = fminf(fmaxf(x + TO_INTEGER - TO_INTEGER, -127.0f), 127.0f);

        sum += code;
        codes |= (uint32_t)(uint8_t)(int8_t)code << (8 * j);
    }
    for (int m = 1; m < 8; m *= 2)
        sum += lane_xor(sum, m);
    return {codes, lane_from(codes, threadIdx.x % 32 ^ 4), mx_bits_of(scale),
            mx_bits_of(sum * scale)};
}
#endif

/* Columns i .. i + 3. All lanes of a warp meet, whether they have columns or not: what comes before
 * and behind is not mixed, for which registers would be short behind attention. */
DEVICE void pack_quad(const struct pack_args &a, uint32_t r, uint32_t i, float shrink,
                      const float v[4]) {
    size_t group =
        (size_t)(r / PACK_ROWS) * (a.n_padded / 32) * (PACK_ROWS * PACK_PLANES) + r % PACK_ROWS;
    size_t at = group + (size_t)(i / 32) * PACK_ROWS;

    if (i - threadIdx.x % 32 * 4 >= a.n_padded) /* the warp has none */
        return;
    const float shrunk[4] = {v[0] * shrink, v[1] * shrink, v[2] * shrink, v[3] * shrink};

    if (i < a.n_padded) {
        uint32_t h[2] = {pack_halves(shrunk[0], shrunk[2]), pack_halves(shrunk[1], shrunk[3])};

        if (a.cores) { /* lane i % 16 / 4 of mma has h[0] of a first and h[1] of a second core */
            uint16_t *core = a.packed + (at - r % PACK_ROWS) * 32 + i % 32 / 16 * 128 +
                             r % PACK_ROWS * 8 + i % 16 / 2;

            *(uint32_t *)core = h[0];
            *(uint32_t *)(core + 64) = h[1];
        } else {
            store8(a.packed + at * 32 + pack_place(i % 32), h);
        }
    }
#ifdef WEFT_BYTES
    struct vec4 codes = pack_codes(shrunk);

    if (i < a.n_padded && i % 32 < 16)
        store16(a.packed + (at + a.n_padded / 32 * PACK_ROWS) * 32 + i % 16 / 4 * 8, codes);
#endif
    sync_warp();
}

/* The sum over the block of E values of each thread: as if each were that of a thread of its own,
 * value e of thread t that of thread t + e THREADS. shared: [E THREADS / 32]. */
template <int THREADS, int E> DEVICE float block_sums(const float v[E], float *shared) {
    constexpr int warps = THREADS / 32;

    sync_block();
#pragma unroll
    for (int e = 0; e < E; e++) {
        float sum = v[e];

        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            shared[e * warps + threadIdx.x / 32] = sum;
    }
    sync_block();
    float sum = shared[0];
    for (int i = 1; i < E * warps; i++)
        sum += shared[i];
    return sum;
}

/* Packs row @row as row @r of the operand, by a block of THREADS; shared: [PACK_THREADS / 32]. A
 * thread stands for one of PACK_THREADS, or for several, so that the sum is the same. It has the
 * quads tid, tid + THREADS, ...; the first few stay in registers, the others are read again.
 * load(row, i, v): columns i .. i + 3 before the norm. */
template <int THREADS, class LOAD>
DEVICE void pack_row_of(const struct pack_args &a, uint32_t r, size_t row, float *shared,
                        const LOAD &load) {
    constexpr uint32_t each = PACK_THREADS / THREADS, step = 4 * THREADS, kept = PACK_QUADS * step;
    uint32_t at = 4 * threadIdx.x;
    float v[PACK_QUADS][4], w[4], inverse = 1, max = 0;

#pragma unroll
    for (uint32_t k = 0; k < PACK_QUADS; k++)
        load(row, at + k * step, v[k]);
    if (a.kind == PACK_NORM) {
        float sum[each];

#pragma unroll
        for (uint32_t e = 0; e < each; e++)
            sum[e] = 0;
#pragma unroll
        for (uint32_t k = 0; k < PACK_QUADS; k++)
            for (int j = 0; j < 4; j++)
                sum[k % each] = fmaf(v[k][j], v[k][j], sum[k % each]);
        for (uint32_t i = at + kept; i < a.n; i += each * step)
#pragma unroll
            for (uint32_t e = 0; e < each; e++) {
                load(row, i + e * step, w);
                for (int j = 0; j < 4; j++)
                    sum[e] = fmaf(w[j], w[j], sum[e]);
            }
        inverse = 1.0f / sqrtf(block_sums<THREADS, each>(sum, shared) / (float)a.n + a.eps);
    }
#pragma unroll
    for (uint32_t k = 0; k < PACK_QUADS; k++) {
        apply_norm(a, at + k * step, inverse, v[k]);
        for (int j = 0; j < 4; j++)
            max = fmaxf(max, fabsf(v[k][j]));
    }
    for (uint32_t i = at + kept; i < a.n; i += step) {
        load(row, i, w);
        apply_norm(a, i, inverse, w);
        for (int j = 0; j < 4; j++)
            max = fmaxf(max, fabsf(w[j]));
    }
    max = block_max<THREADS / 32>(max, shared);

    /* Exponent of the largest magnitude; rows of nothing, infinities and NaN are not scaled. */
    int e = (int)(mx_bits_of(max) >> 23) - 127;
    e = max > 0 && max <= FLT_MAX ? (e > -100 ? e : -100) - 13 : 0;
    float shrink = power_of_two(-e);
#pragma unroll
    for (uint32_t k = 0; k < PACK_QUADS; k++)
        pack_quad(a, r, at + k * step, shrink, v[k]);
    for (uint32_t first = kept; first < a.n_padded; first += step) {
        load(row, first + at, w);
        apply_norm(a, first + at, inverse, w);
        pack_quad(a, r, first + at, shrink, w);
    }
    if (threadIdx.x == 0)
        a.scale[r] = power_of_two(e);
    if (a.cores)
        fence_bulk(); /* matmul_wgmma brings them by copies in bulk */
}

/* Packs row @row of a.x, with a.up for kinds of two operands, as row @r. */
template <int THREADS>
DEVICE void pack_row(const struct pack_args &a, uint32_t r, size_t row, float *shared) {
    pack_row_of<THREADS>(a, r, row, shared,
                         [&](size_t from, uint32_t i, float v[4]) { load_values(a, from, i, v); });
}

/* -- products that are left -------------------------------------------------------------------- */

/* Outputs @out .. @out + 3 of row @r, of @n; those beyond are not numbers. */
DEVICE void add_left(const struct left &l, uint32_t r, uint32_t n, uint32_t out, float v[4]) {
    size_t block = (size_t)out / WIDE_OUT * l.n_columns + r / MATMUL_COLUMNS;
    const float *from = l.sums + (block * (TILE_SEGMENTS * WIDE_SUMS) +
                                  r % MATMUL_COLUMNS * WIDE_OUT + out % WIDE_OUT);
    float factor = l.scale[r] * l.inverse;
    struct vec4 u[TILE_SEGMENTS];

#pragma unroll
    for (uint32_t s = 0; s < TILE_SEGMENTS; s++)
        u[s] = load16(from + s * WIDE_SUMS);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float sum = 0;

#pragma unroll
        for (uint32_t s = 0; s < TILE_SEGMENTS; s++) {
            float part = mx_float_of(word_of(u[s], (int)j));

            sum = s ? sum + part : part;
        }
        v[j] = sum * factor;
        if (l.bias && out + j < n)
            v[j] += l.bias[out + j];
    }
}

/* -- what is added to x ------------------------------------------------------------------------ */

/* t of the row, as residual_row() has it; without a norm what it becomes, to a.to. */
template <class LOAD>
DEVICE void load_residual(const struct residual_args &a, uint32_t r, const LOAD &load) {
    size_t at = (size_t)r * a.n;

#pragma unroll 2
    for (uint32_t i = 4 * threadIdx.x; i < a.n; i += 4 * CUDA_THREADS) {
        float v[4], base[4] = {0, 0, 0, 0};

        if (a.base && !a.norm)
            load_quad(a.base + at, i, a.n, base);
        load(i, v);
        for (uint32_t j = 0; j < 4 && i + j < a.n; j++)
            if (a.norm)
                a.t[at + i + j] = v[j];
            else
                a.to[at + i + j] = (base[j] + a.gain * v[j]) * a.scale;
    }
    sync_block();
}

/* Row @r of struct residual_args by CUDA_THREADS threads; @loads: load(i, v) gives columns i .. i +
 * 3 of t, for which a.t is room then. A thread stands for two of PACK_THREADS where sums are made.
 * shared: [PACK_THREADS / 32]. */
template <class LOAD>
DEVICE void residual_row(const struct residual_args &a, uint32_t r, bool loads, float *shared,
                         const LOAD &load) {
    constexpr uint32_t each = PACK_THREADS / CUDA_THREADS;
    size_t at = (size_t)r * a.n;
    float inverse = 1;

    if (loads)
        load_residual(a, r, load);
    if (a.norm) {
        float sum[each] = {};

        for (uint32_t i = threadIdx.x; i < a.n; i += PACK_THREADS)
#pragma unroll
            for (uint32_t e = 0; e < each; e++) {
                float t = i + e * CUDA_THREADS < a.n ? a.t[at + i + e * CUDA_THREADS] : 0;

                sum[e] = fmaf(t, t, sum[e]);
            }
        inverse = 1.0f / sqrtf(block_sums<CUDA_THREADS, each>(sum, shared) / (float)a.n + a.eps);
    }
    for (uint32_t i = threadIdx.x; i < a.n && (a.norm || !loads); i += CUDA_THREADS) {
        float t = a.norm ? a.t[at + i] * inverse * a.norm[i] : a.t[at + i];

        a.to[at + i] = ((a.base ? a.base[at + i] : 0) + a.gain * t) * a.scale;
    }
    if (!a.packs)
        return;
    sync_block();
    pack_row<CUDA_THREADS>(a.pack, r, r, shared);
}

/* -- keys and values --------------------------------------------------------------------------- */

#define HEAD_MAX 512u

/* A page never holds infinities or NaN: a masked key still meets a probability of 0. */
DEVICE float finite_half(float x) {
    return fminf(fmaxf(x, -65504.0f), 65504.0f);
}

/* Returns the factor of the rms norm of @dim values, computed by one warp. */
DEVICE float inverse_length(const struct store_args &a, const float *x, uint32_t dim) {
    uint32_t lane = threadIdx.x % 32;
    float sum = 0;

    for (uint32_t i = lane; i < dim; i += 32)
        sum = fmaf(x[i], x[i], sum);
    sum = warp_sum(sum);
    return 1.0f / sqrtf(sum / (float)dim + a.eps);
}

/* RoPE of the first values of one head (shared), by one warp. */
DEVICE void turn(const struct store_args &a, const float *rope, float *head) {
    for (uint32_t i = threadIdx.x % 32; i < a.n_rot / 2; i += 32) {
        uint32_t i0 = a.neox ? i : 2 * i, i1 = a.neox ? i + a.n_rot / 2 : i0 + 1;
        float c = rope[2 * i], s = rope[2 * i + 1], p0 = head[i0], p1 = head[i1];

        head[i0] = p0 * c - p1 * s;
        head[i1] = p0 * s + p1 * c;
    }
    sync_warp();
}

/* The rms norm and RoPE of one head by one warp: x (device memory, or head) to head (shared). */
DEVICE void rotate_head(const struct store_args &a, const float *x, const float *norm,
                        const float *rope, float *head) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim;
    float inverse = norm ? inverse_length(a, x, dim) : 1;

    for (uint32_t i = lane; i < dim; i += 32)
        head[i] = norm ? x[i] * inverse * norm[i] : x[i];
    sync_warp();
    turn(a, rope, head);
}

/* Multiplies each run of @run values of a head (shared) by the Hadamard matrix, by one warp; a @run
 * of 0 leaves it as it is. */
DEVICE void hadamard_head(float *head, uint32_t dim, uint32_t run) {
    uint32_t lane = threadIdx.x % 32;

    for (uint32_t step = 1; step < run; step *= 2) {
        for (uint32_t i = lane; i < dim / 2; i += 32) {
            uint32_t at = i + (i & ~(step - 1));
            float x = head[at], y = head[at + step];

            head[at] = x + y;
            head[at + step] = x - y;
        }
        sync_warp();
    }
    if (run == 0)
        return;
    float scale = 1.0f / sqrtf((float)run);
    for (uint32_t i = lane; i < dim; i += 32)
        head[i] *= scale;
    sync_warp();
}

/* The largest scale in half precision whose 127-fold is finite there, too: 516 is next, and 127 *
 * 516 rounds to infinity. */
#define Q8_SCALE_MAX 515.5f

/* Rounds 32 values, one of each lane, to codes of Q8_0: -127 to 127 times the scale, max / 127. */
DEVICE float round_to_8(float x, uint16_t *scale) {
    float max = warp_max(fabsf(x)), inverse = max > 0 ? 127.0f / max : 0;

    *scale = (uint16_t)pack_half(fminf(max / 127.0f, Q8_SCALE_MAX));
    return fminf(fmaxf(x * inverse + TO_INTEGER - TO_INTEGER, -127.0f), 127.0f);
}

/* Rounds like round_to_8() to codes of Q4_0, plus 8: the value furthest from 0 is -8 times the
 * scale. */
DEVICE float round_to_4(float x, uint16_t *scale) {
    float high = x, low = x;

    for (int m = 1; m < 32; m *= 2) {
        high = fmaxf(high, lane_xor(high, m));
        low = fminf(low, lane_xor(low, m));
    }
    *scale = (uint16_t)pack_half((high >= -low ? high : low) / -8.0f);
    float step = half_to_float(*scale), inverse = step != 0 ? 1.0f / step : 0;
    return fminf(fmaxf(x * inverse, -8.0f), 7.0f) + TO_INTEGER - TO_INTEGER + 8;
}

/* Writes head @h of keys (PAGE_K) or values (PAGE_V) at token @slot of a page, from @head in shared
 * memory, by one warp. q8_0 and q4_0: 32 values share a scale. */
DEVICE void store_head(const struct store_args &a, uint32_t h, enum page_part part, uint8_t *page,
                       uint32_t slot, const float *head) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim, tokens = a.shape.page_tokens;
    size_t at = page_offset(&a.shape, h, part);
    bool keys = part == PAGE_K;
    uint32_t bits = keys ? a.shape.k_bits : a.shape.v_bits;

    if (bits == 16) {
        uint16_t *to = (uint16_t *)(page + at);

        for (uint32_t i = lane; i < dim; i += 32)
            to[keys ? slot * dim + i : i * tokens + slot] =
                (uint16_t)pack_half(finite_half(head[i]));
        return;
    }
    uint16_t *scales =
        (uint16_t *)(page + page_offset(&a.shape, h, keys ? PAGE_K_SCALES : PAGE_V_SCALES));
    for (uint32_t i = lane, group = 0; group < dim / 32; i += 32, group++) {
        float x = finite_half(head[i]);
        uint16_t scale;

        if (bits == 8) {
            float q = round_to_8(x, &scale);

            page[at + (keys ? slot * dim + i : i * tokens + slot)] = (uint8_t)(int8_t)q;
        } else {
            uint32_t apart = keys ? 4 : 8; /* the numbers of a byte */
            float q = round_to_4(x, &scale), above = lane_xor(q, apart);

            if ((lane & apart) == 0)
                page[at + (keys ? slot * (dim / 2) + page_key_byte(i)
                                : page_value_row(i) * tokens + slot)] = (uint8_t)(q + 16 * above);
        }
        if (lane == 0)
            scales[keys ? slot * (dim / 32) + group : group * tokens + slot] = scale;
    }
}

/* Stores head @h of queries, keys or values of row @r, by one warp; head (shared): [HEAD_MAX] of
 * its own. */
DEVICE void store_part(const struct store_args &a, enum store_part part, uint32_t r, uint32_t h,
                       float *head) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim, n_kv = a.shape.n_head_kv;
    const float *rope = a.rope + (size_t)r * a.n_rot;

    if (part == STORE_Q) {
        float *q = a.q + ((size_t)r * a.n_head + h) * dim;
        float factor = a.temper ? a.temper[r] : 1;

        rotate_head(a, q, a.q_norm, rope, head);
        hadamard_head(head, dim, a.run_k);
        for (uint32_t i = lane; i < dim; i += 32)
            q[i] = head[i] * factor;
        sync_warp(); /* head may be used anew */
        return;
    }
    uint32_t slot = a.batch->row_slot[r];
    uint8_t *page = a.pages + (size_t)a.batch->row_page[a.cls][r] * page_layer_bytes(&a.shape);
    size_t at = ((size_t)r * n_kv + h) * dim;

    if (part == STORE_V) {
        const float *v = a.v + at;
        float inverse = a.v_unit ? inverse_length(a, v, dim) : 1;

        for (uint32_t i = lane; i < dim; i += 32)
            head[i] = v[i] * inverse;
        sync_warp();
        hadamard_head(head, dim, a.run_v);
        store_head(a, h, PAGE_V, page, slot, head);
        sync_warp();
        return;
    }
    rotate_head(a, a.k + at, a.k_norm, rope, head);
    hadamard_head(head, dim, a.run_k);
    store_head(a, h, PAGE_K, page, slot, head);
    sync_warp();
}
