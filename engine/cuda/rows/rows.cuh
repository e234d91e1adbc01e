#pragma once

/*
 * rows - device functions on rows of activations: packing as operands of products, additions to x,
 * keys and values. engine/reference/ops.c has the formulas.
 */

#include "engine/cuda/dry.cuh"
#include "engine/cuda/rows/codes.cuh"

/* Returns the token of row @r; tokens of earlier steps are @sampled. */
DEVICE int32_t rows_token(const struct batch_head *b, const int32_t *sampled, uint32_t r) {
    int32_t feed = b->feed[r];

    return feed >= 0 ? sampled[feed] : b->token[r];
}

/* -- operands of matmul ------------------------------------------------------------------------ */

/* number of threads that pack a row of up to four columns for each of them */
#define SHORT_THREADS 128u
/* KERNEL_ALLOTTED(): 88 registers a thread, with which PACK_THREADS fit beside a block of matvec */
#define PACK_ALLOTTED 736u
#define PACK_SHARED (2 * PACK_THREADS / 32) /* floats of shared memory that pack_row() uses */

/* Loads QUADS groups of four columns, STEP columns apart: i .. i + 3, i + STEP .. i + STEP + 3,
 * ...; zero beyond the row. This is the "order of load_quads()" below. All loads are issued before
 * the first result is used. */
template <uint32_t STEP, int QUADS>
DEVICE void load_quads(const float *x, uint32_t i, uint32_t n, float (&v)[QUADS][4]) {
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++)
        for (int j = 0; j < 4; j++)
            v[k][j] = 0;
    if (n % 4 == 0 && (uintptr_t)x % 16 == 0) {
#pragma unroll
        for (uint32_t k = 0; k < QUADS; k++)
            if (i + k * STEP < n)
                load_four(x + i + k * STEP, v[k]);
    } else {
#pragma unroll
        for (uint32_t k = 0; k < QUADS; k++)
            for (uint32_t j = 0; j < 4; j++)
                if (i + k * STEP + j < n)
                    v[k][j] = x[i + k * STEP + j];
    }
}

/* Returns @x within -@limit .. @limit; @limit for NaN. */
DEVICE float within(float x, float limit) {
    float below = x < limit ? x : limit;

    return x < -limit ? -limit : below;
}

/* Returns glu(g, u) for pack kinds from PACK_SILU on (engine/reference/ops.c). */
DEVICE float gated(uint32_t kind, float g, float u) {
    if (kind == PACK_SILU)
        return mx_silu(g) * u;
    if (kind == PACK_GELU)
        return mx_gelu(g) * u;
    if (kind == PACK_GATE)
        return g * mx_sigmoid(u);
    if (kind > PACK_GATE) {
        float limit = mx_float_of(kind & ~PACK_BEHIND);

        u = within(u, limit);
        g = mx_silu(kind & PACK_BEHIND || g < limit ? g : limit);
        /* the upper limit is applied after silu, since silu(limit) < limit */
        return (g < limit ? g : limit) * u;
    }
    g = g < 7 ? g : 7;
    u = within(u, 7);
    return g / (1.0f + mx_expf(-1.702f * g)) * (u + 1);
}

/* Applies function @kind to gates @v and ups @u, and stores the result in @v. KIND is @kind, except
 * that one KIND stands for all kinds above PACK_GATE, which have limits in @kind. */
template <uint32_t KIND> DEVICE void gate_eight_of(uint32_t kind, const float u[8], float v[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = gated(KIND > PACK_GATE ? kind : KIND, v[j], u[j]);
    }
}

/* Branches once to the code of the kind, which has no further branches. */
DEVICE void gate_eight(uint32_t kind, const float u[8], float v[8]) {
    if (kind == PACK_SILU)
        gate_eight_of<PACK_SILU>(kind, u, v);
    else if (kind == PACK_GELU)
        gate_eight_of<PACK_GELU>(kind, u, v);
    else if (kind == PACK_CLAMPED)
        gate_eight_of<PACK_CLAMPED>(kind, u, v);
    else if (kind == PACK_GATE)
        gate_eight_of<PACK_GATE>(kind, u, v);
    else
        gate_eight_of<PACK_GATE + 1>(kind, u, v);
}

/* Applies the function of a kind below PACK_SILU, which has no gate, to one value. */
DEVICE float pack_activated_value(const struct pack_args &a, float x) {
    if (a.kind == PACK_RELU)
        return x * fmaxf(x, 0);
    if (a.kind == PACK_GELU_ALONE)
        return mx_gelu(x);
    return xielu_at(&a.xielu, x);
}

/* Applies pack_activated_value() to columns in the order of load_quads(), and not to what lies
 * beyond the row: xIELU of 0 is not 0. The arrays are shifted as in gate_quads(). */
template <uint32_t STEP, int QUADS>
DEVICE void activate_quads(const struct pack_args &a, uint32_t i, float (&v)[QUADS][4]) {
#pragma unroll 1
    for (uint32_t k = 0; k < QUADS; k++) {
        float now[4] = {v[0][0], v[0][1], v[0][2], v[0][3]};

#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (i + k * STEP + j < a.n)
                now[j] = pack_activated_value(a, now[j]);
#pragma unroll
        for (int q = 0; q + 1 < QUADS; q++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[q][j] = v[q + 1][j];
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[QUADS - 1][j] = now[j];
    }
}

/* Applies gate_eight() to columns in the order of load_quads(). Each iteration handles the first
 * two groups and shifts the arrays by two places, because registers cannot be indexed: the code
 * exists once instead of unrolled, so fewer instructions must be fetched. */
template <uint32_t STEP, int QUADS>
DEVICE void gate_quads(const struct pack_args &a, uint32_t i, float (&u)[QUADS][4],
                       float (&v)[QUADS][4]) {
    static_assert(QUADS % 2 == 0, "two a round");
#pragma unroll 1
    for (uint32_t k = 0; k < QUADS; k += 2) {
        float now[8] = {v[0][0], v[0][1], v[0][2], v[0][3], v[1][0], v[1][1], v[1][2], v[1][3]};
        const float up[8] = {u[0][0], u[0][1], u[0][2], u[0][3],
                             u[1][0], u[1][1], u[1][2], u[1][3]};

        if (i + k * STEP < a.n)
            gate_eight(a.kind, up, now);
#pragma unroll
        for (int q = 0; q + 2 < QUADS; q++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[q][j] = v[q + 2][j];
                u[q][j] = u[q + 2][j];
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[QUADS - 2 + j / 4][j % 4] = now[j];
    }
}

#ifdef WEFT_BYTES
/* Returns a lane's 16 bytes of the second plane (pack_args). A warp has 128 columns, four a lane in
 * @v, of which those @there exist. Of the eight lanes with 32 columns the first four have valid
 * results. */
DEVICE struct vec4 pack_codes(const float v[4], bool there) {
    uint32_t codes = 0;
    float max = 0, sum = 0;

    for (int j = 0; j < 4; j++)
        max = fmaxf(max, fabsf(v[j]) <= FLT_MAX ? fabsf(v[j]) : INFINITY);
    max = warp_max(there ? max : 0);
    float scale = max / 127.0f, inverse = max > 0 && max <= FLT_MAX ? 127.0f / max : 0;

    for (int j = 0; j < 4; j++) {
        float x = inverse > 0 ? v[j] * inverse : 0;
        float code = fminf(fmaxf(x + TO_INTEGER - TO_INTEGER, -127.0f), 127.0f);

        sum += code;
        codes |= (uint32_t)(uint8_t)(int8_t)code << (8 * j);
    }
    sum = warp_sum<8>(sum) * scale;
    float mean = sum * 0x1p-5f, near = half_to_float((uint16_t)pack_halves(mean, 0));
    uint32_t lane = threadIdx.x % 32, halves = pack_halves(near, mean - near);

    return {codes, lane_from(codes, lane ^ 4), mx_bits_of(lane % 4 == 0 ? scale : sum),
            lane_from(halves, lane % 4 * 8)};
}
#endif

/* Packs columns in the order of load_quads(), multiplied by @shrink. Their row is one of @n_rows
 * that are packed together; @to: its columns from i / 32 * 32 on. Stores halves only if @halves,
 * but always changes @v. */
template <uint32_t STEP, int QUADS>
DEVICE void write_row(uint16_t *to, uint32_t n_rows, uint32_t n_padded, uint32_t i, float shrink,
                      bool halves, float (&v)[QUADS][4]) {
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++)
        for (int j = 0; j < 4; j++)
            v[k][j] *= shrink;
#ifdef WEFT_BYTES
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++) {
        uint32_t at = i + k * STEP;

        if (at - threadIdx.x % 32 * 4 >= n_padded) /* no column of the warp exists */
            continue;
        struct vec4 codes = pack_codes(v[k], at < n_padded);
        if (at < n_padded && at % 32 < 16)
            store16(to + (k * STEP + n_padded) * n_rows + at % 16 / 4 * 8, codes);
        sync_warp();
    }
#endif
    if (!halves)
        return;
    to += pack_place(i % 32);
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++)
        if (i + k * STEP < n_padded) {
            uint32_t h[2] = {pack_halves(v[k][0], v[k][2]), pack_halves(v[k][1], v[k][3])};

            store8(to + k * STEP * n_rows, h);
        }
}

/* halves from those of columns i and i + 2 to those of i + 1 and i + 3 in rows packed for wgmma:
 * element i % 16 / 4 of a lane is in one core matrix, and that of the next column in the next */
#define CORE_NEXT 64u

/* Returns where columns @i and @i + 2 of row @r are in rows of @n columns that are packed for
 * wgmma; @i is a multiple of four. */
DEVICE uint16_t *core_place(uint16_t *packed, uint32_t r, uint32_t n, uint32_t i) {
    return packed + ((size_t)(r / WGMMA_ROWS) * n + i / 64 * 64) * WGMMA_ROWS +
           r % WGMMA_ROWS / PACK_ROWS * 512 + i % 64 / 16 * 128 + r % PACK_ROWS * 8 + i % 16 / 2;
}

/* Packs columns in the order of load_quads(), multiplied by @shrink, in row @r. @end: a.n_padded;
 * 0: nothing is stored. */
template <uint32_t STEP, int QUADS>
DEVICE void write_quads(const struct pack_args &a, uint32_t r, uint32_t end, uint32_t i,
                        float shrink, float (&v)[QUADS][4]) {
    size_t group = (size_t)(r / PACK_ROWS) * (a.n_padded / 32) * (PACK_ROWS * PACK_PLANES);
    uint16_t *to = a.packed + (group + (size_t)(i / 32) * PACK_ROWS + r % PACK_ROWS) * 32;

    write_row<STEP>(to, PACK_ROWS, end, i, shrink, !a.cores, v);
    if (a.cores) {
        to = core_place(a.packed, r, a.n_padded, i);
#pragma unroll
        for (uint32_t k = 0; k < QUADS; k++)
            if (i + k * STEP < end) {
                *(uint32_t *)(to + k * STEP * WGMMA_ROWS) = pack_halves(v[k][0], v[k][2]);
                *(uint32_t *)(to + k * STEP * WGMMA_ROWS + CORE_NEXT) =
                    pack_halves(v[k][1], v[k][3]);
            }
        fence_bulk(); /* matmul_wgmma reads them by bulk copies */
    }
}

/* Place of a row that pack_quads() writes: row @r of the operand of @a. */
struct PackedPlace {
    const struct pack_args &a;
    uint32_t r;

    /* Returns true if the thread calls keep_scale(). */
    MEMBER bool keeps_scale() const {
        return threadIdx.x == 0;
    }
    MEMBER void keep_scale(float scale) const {
        a.scale[r] = scale;
    }
    template <uint32_t STEP, int QUADS>
    MEMBER void write(uint32_t i, float shrink, float (&v)[QUADS][4]) const {
        write_quads<STEP>(a, r, a.n_padded, i, shrink, v);
    }
};

/* Place like the one above, to which only the live pass writes. */
struct DryPlace {
    const struct pack_args &a;
    uint32_t r;
    bool live;

    MEMBER bool keeps_scale() const {
        return threadIdx.x == 0 && live;
    }
    MEMBER void keep_scale(float scale) const {
        a.scale[r] = scale;
    }
    template <uint32_t STEP, int QUADS>
    MEMBER void write(uint32_t i, float shrink, float (&v)[QUADS][4]) const {
        write_quads<STEP>(a, r, live ? a.n_padded : 0, i, shrink, v);
    }
};

/* Returns the sum over the block of E values of each thread, in the same order as if E times as
 * many threads had one value each: value e of thread t counts as that of thread t + e THREADS.
 * shared: [E THREADS / 32], which no thread accesses any more. */
template <int THREADS, int E> DEVICE float first_sums(const float v[E], float *shared) {
    constexpr int warps = THREADS / 32;

#pragma unroll
    for (int e = 0; e < E; e++) {
        float sum = warp_sum(v[e]);

        if (threadIdx.x % 32 == 0)
            shared[e * warps + threadIdx.x / 32] = sum;
    }
    sync_block();
    float sum = shared[0];
#pragma unroll
    for (int i = 1; i < E * warps; i++)
        sum += shared[i];
    return sum;
}

/* Returns the maximum over the block of non-negative values, whose bits have the order of the
 * values. shared: [THREADS / 32], which no thread accesses any more. */
template <int THREADS> DEVICE float first_max(float v, float *shared) {
    constexpr uint32_t warps = THREADS / 32;
    uint32_t most = lanes_max(mx_bits_of(v)), lane = threadIdx.x % 32;

    if (lane == 0)
        shared[threadIdx.x / 32] = mx_float_of(most);
    sync_block();
    return mx_float_of(lanes_max(mx_bits_of(shared[lane % warps])));
}

/* Packs a row to @place, by a block of THREADS threads; shared: [PACK_SHARED], not in use. A
 * thread holds QUADS groups of four columns in registers. If there are fewer threads than
 * PACK_THREADS, each keeps the partial sums of several, so that the result has the same bits; sums
 * of threads that have no columns would be 0. With PARTS, a row may be longer than the registers
 * hold. Then each of the three passes (sum of squares, maximum, packing) goes through the row in
 * parts, alternately forwards and backwards, so that each pass begins with the part that was read
 * last. PACK_NORM needs NORM; its weights are loaded together with the row. load(i, v) sets v to
 * columns from i on, in the order of load_quads(). The passes are one loop: as three, the row's
 * registers are live in each of them, and the instances spill on sm_80. */
template <int THREADS, int QUADS, bool PARTS, bool NORM, class PLACE, class LOAD>
DEVICE void pack_quads_to(const struct pack_args &a, const PLACE &place, float *shared,
                          const LOAD &load) {
    constexpr uint32_t most = PACK_THREADS / THREADS, each = QUADS < most ? QUADS : most,
                       step = 4 * THREADS, span = QUADS * step;
    uint32_t first = 0, last = PARTS ? (a.n_padded - 1) / span * span : 0;
    bool norm = NORM && a.kind == PACK_NORM, sums = norm, packs = false, back = false;
    float v[QUADS][4], sum[each] = {}, inverse = 1, shrink = 1, max = 0;

    static_assert(QUADS % each == 0, "a thread's fours are those of its threads in turn");
    auto ends = [&] { /* ends the pass if this is its last part, else goes on to the next part */
                      bool end = !PARTS || first == (back ? 0 : last);

                      if (!end)
                          first += back ? 0 - span : span;
                      else
                          back = !back;
                      return end;
    };
    for (;;) {
        uint32_t i = first + 4 * threadIdx.x;
        float w[QUADS][4];

        load(i, v);
        if (norm)
            load_quads<step>(a.weight, i, a.n, w);
        if (sums) {
#pragma unroll
            for (int k = 0; k < QUADS; k++)
                for (int j = 0; j < 4; j++)
                    sum[k % each] = fmaf(v[k][j], v[k][j], sum[k % each]);
            if (!ends())
                continue;
            float all = first_sums<THREADS, each>(sum, shared);
            inverse = 1.0f / sqrtf(all / (float)a.n + a.eps);
            sums = false;
        }
        if (norm)
#pragma unroll
            for (int k = 0; k < QUADS; k++)
                for (int j = 0; j < 4; j++)
                    v[k][j] = v[k][j] * inverse * w[k][j];
        if (!packs && a.fixed != 0) {
            packs = true;
            shrink = a.fixed;
            if (place.keeps_scale())
                place.keep_scale(1.0f / a.fixed);
        }
        if (!packs) {
#pragma unroll
            for (int k = 0; k < QUADS; k++)
                for (int j = 0; j < 4; j++)
                    max = fmaxf(max, fabsf(v[k][j]));
            if (!ends())
                continue;
            max = first_max<THREADS>(max, shared + PACK_THREADS / 32);
            packs = true;

            /* e is the exponent of the largest magnitude. Rows that are zero, or contain infinities
             * or NaN, are not scaled. */
            int e = (int)(mx_bits_of(max) >> 23) - 127;
            e = e > -100 ? e : -100;
            e = max > 0 && max <= FLT_MAX ? e - 13 : 0;
            shrink = tile_power_of_two(-e);
            if (place.keeps_scale())
                place.keep_scale(tile_power_of_two(e));
        }
        place.template write<step>(i, shrink, v);
        if (ends())
            return;
    }
}

/* Packs a row as row @r of the operand of @a. */
template <int THREADS, int QUADS, bool PARTS, bool NORM, class LOAD>
DEVICE void pack_quads(const struct pack_args &a, uint32_t r, float *shared, const LOAD &load) {
    pack_quads_to<THREADS, QUADS, PARTS, NORM>(a, PackedPlace{a, r}, shared, load);
}

/* Packs a row to @place: chooses the instance for its length. Each is short, and uses as many
 * registers as the block allows. Some threads alone pack a short row. The others must reach no
 * barrier after this function but end, since barriers do not wait for threads that have ended. */
template <class PLACE, class LOAD>
DEVICE void pack_row_to(const struct pack_args &a, const PLACE &place, float *shared,
                        const LOAD &load) {
    if (a.n_padded <= 4 * SHORT_THREADS) {
        if (threadIdx.x < SHORT_THREADS)
            pack_quads_to<SHORT_THREADS, 1, false, true>(a, place, shared, load);
    } else if (a.n_padded <= 2 * 4 * PACK_THREADS)
        pack_quads_to<PACK_THREADS, 2, false, true>(a, place, shared, load);
    else if (a.kind != PACK_NORM)
        pack_quads_to<PACK_THREADS, 6, true, false>(a, place, shared, load);
    else if (a.n_padded <= 4 * 4 * PACK_THREADS)
        pack_quads_to<PACK_THREADS, 4, false, true>(a, place, shared, load);
    else
        pack_quads_to<PACK_THREADS, 4, true, true>(a, place, shared, load);
}

/* Packs row @row of a.x as row @r, for PACK_PLAIN and PACK_NORM. */
DEVICE void pack_row(const struct pack_args &a, uint32_t r, size_t row, float *shared) {
    const float *x = a.x + row * (a.x_stride ? a.x_stride : a.n);

    pack_row_to(a, PackedPlace{a, r}, shared,
                [&](uint32_t i, auto &v) { load_quads<4 * PACK_THREADS>(x, i, a.n, v); });
}

/* Starts to prefetch the @n weights of a norm, by the block. */
DEVICE void prefetch_weights(const float *weights, uint32_t n) {
    for (uint32_t i = threadIdx.x * 32; weights && i < n; i += CUDA_THREADS * 32)
        prefetch(weights + i);
}

/* -- split-K sums that products have left ------------------------------------------------------ */

/* Adds up the split-K sums of row @r, of @n outputs, in the order of load_quads(). Outputs beyond
 * the row are undefined: other addresses are loaded for them, so that no load depends on a
 * branch. */
template <uint32_t STEP, int QUADS>
DEVICE void add_left(const struct left &l, uint32_t r, uint32_t i, uint32_t n,
                     float (&v)[QUADS][4]) {
    const float *row = l.sums + r / MATMUL_COLUMNS * (size_t)(TILE_SEGMENTS * WIDE_SUMS) +
                       r % MATMUL_COLUMNS * WIDE_OUT;
    float scale = l.scale[r];
    uint32_t other = i < n ? i : 0;

#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++) {
        uint32_t out = i + k * STEP < n ? i + k * STEP : other;
        const float *from = row +
                            (size_t)(out / WIDE_OUT * l.n_columns) * (TILE_SEGMENTS * WIDE_SUMS) +
                            out % WIDE_OUT;

        load_four(from, v[k]);
#pragma unroll
        for (uint32_t s = 1; s < TILE_SEGMENTS; s++) {
            float part[4];

            load_four(from + s * WIDE_SUMS, part);
            for (int j = 0; j < 4; j++)
                v[k][j] += part[j];
        }
    }
    float factor = scale * l.inverse;
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++)
        for (int j = 0; j < 4; j++)
            v[k][j] *= factor;
    if (!l.bias)
        return;
    float bias[QUADS][4];
    load_quads<STEP>(l.bias, i, n, bias);
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++)
        for (int j = 0; j < 4; j++)
            v[k][j] += bias[k][j];
}

/* -- what is added to x ------------------------------------------------------------------------ */

/* Stores columns in the order of load_quads(). */
template <uint32_t STEP, int QUADS>
DEVICE void store_quads(float *x, uint32_t i, uint32_t n, const float (&v)[QUADS][4]) {
    if (n % 4 == 0 && (uintptr_t)x % 16 == 0) {
#pragma unroll
        for (uint32_t k = 0; k < QUADS; k++)
            if (i + k * STEP < n)
                store_some<4>(x + i + k * STEP, v[k]);
    } else {
#pragma unroll
        for (uint32_t k = 0; k < QUADS; k++)
            for (uint32_t j = 0; j < 4; j++)
                if (i + k * STEP + j < n)
                    x[i + k * STEP + j] = v[k][j];
    }
}

/* Computes and stores columns of `to` without a norm, in the order of load_quads(). */
template <uint32_t STEP, int QUADS, class LOAD>
DEVICE void add_quads(const struct residual_args &a, uint32_t r, uint32_t i, const LOAD &load,
                      float (&v)[QUADS][4]) {
    size_t at = (size_t)r * a.n;
    float base[QUADS][4] = {};

    load(i, v);
    if (a.base)
        load_quads<STEP>(a.base + at, i, a.n, base);
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++)
        for (uint32_t j = 0; j < 4; j++)
            v[k][j] = i + k * STEP + j < a.n ? (base[k][j] + a.gain * v[k][j]) * a.scale : 0;
    store_quads<STEP>(a.to + at, i, a.n, v);
}

/* Computes a row of `to` with the norm of t. For the sum, column i belongs to thread i %
 * PACK_THREADS as in pack_row(), so t is exchanged through a.t. */
template <class LOAD>
DEVICE void rows_add_norm(const struct residual_args &a, uint32_t r, bool loads, float *shared,
                          const LOAD &load) {
    constexpr uint32_t each = PACK_THREADS / CUDA_THREADS, step = 4 * CUDA_THREADS;
    size_t at = (size_t)r * a.n;
    float sum[each] = {};

    for (uint32_t i = 4 * threadIdx.x; loads && i < a.n; i += step) {
        float v[1][4];

        load(i, v);
        store_quads<step>(a.t + at, i, a.n, v);
    }
    sync_block();
    for (uint32_t i = threadIdx.x; i < a.n; i += PACK_THREADS)
#pragma unroll
        for (uint32_t e = 0; e < each; e++) {
            float t = i + e * CUDA_THREADS < a.n ? a.t[at + i + e * CUDA_THREADS] : 0;

            sum[e] = fmaf(t, t, sum[e]);
        }
    float all = first_sums<CUDA_THREADS, each>(sum, shared);
    float inverse = 1.0f / sqrtf(all / (float)a.n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS) {
        float t = a.t[at + i] * inverse * a.norm[i];

        a.to[at + i] = ((a.base ? a.base[at + i] : 0) + a.gain * t) * a.scale;
    }
    sync_block();
}

/* Computes row @r of struct residual_args, by CUDA_THREADS threads. load(i, v) sets v to columns of
 * t in the order of load_quads(). If @loads, a.t is scratch memory, else it contains t. The sum of
 * a row of up to 4096 columns stays in registers until it is packed. shared: [PACK_SHARED]. */
template <class LOAD>
DEVICE void residual_row(const struct residual_args &a, uint32_t r, bool loads, float *shared,
                         const LOAD &load) {
    constexpr uint32_t step = 4 * CUDA_THREADS;
    float *to = a.to + (size_t)r * a.n;

    if (a.packs && !a.norm && a.pack.n_padded <= 4 * step) {
        pack_quads<CUDA_THREADS, 4, false, true>(
            a.pack, r, shared, [&](uint32_t i, auto &v) { add_quads<step>(a, r, i, load, v); });
        return;
    }
    if (a.norm)
        rows_add_norm(a, r, loads, shared, load);
    for (uint32_t i = 4 * threadIdx.x; !a.norm && i < a.n; i += 2 * step) {
        float v[2][4];

        add_quads<step>(a, r, i, load, v);
    }
    if (a.packs) /* a thread packs the columns that it has added */
        pack_quads<CUDA_THREADS, 4, true, true>(
            a.pack, r, shared, [&](uint32_t i, auto &v) { load_quads<step>(to, i, a.n, v); });
}

/* -- keys and values --------------------------------------------------------------------------- */

#define HEAD_MAX 512u

/* Clamps to finite halves: pages hold no infinities or NaN (but for the kernel holes), since a
 * masked key is still multiplied by its probability 0. */
DEVICE float finite_half(float x) {
    return fminf(fmaxf(x, -65504.0f), 65504.0f);
}

/* Returns the factor of the rms norm of @n values, computed by one warp. */
DEVICE float inverse_length(const float *x, uint32_t n, float eps) {
    float sum = 0;

    for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
        sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(warp_sum(sum) / (float)n + eps);
}

/* Computes out = norm(x) w + bias by CUDA_THREADS threads: the layer norm if there is a bias, else
 * the rms norm; w NULL: ones. shared: [CUDA_THREADS / 32]. */
DEVICE void norm_by_block(const float *x, const float *w, const float *bias, uint32_t n, float eps,
                          float *out, float *shared) {
    float sum = 0, mean = 0;

    if (bias) {
        for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
            sum += x[i];
        mean = block_sum<CUDA_THREADS / 32>(sum, shared) / (float)n;
    }
    sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        sum = fmaf(x[i] - mean, x[i] - mean, sum);
    float inverse = 1.0f / sqrtf(block_sum<CUDA_THREADS / 32>(sum, shared) / (float)n + eps);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
        float y = (x[i] - mean) * inverse;

        y = w ? y * w[i] : y;
        out[i] = bias ? y + bias[i] : y;
    }
}

/* Rotates pair @i of the first @n_rot values of a head (shared) by an angle, given by cosine and
 * sine. */
DEVICE void turn_pair(uint32_t n_rot, uint32_t neox, uint32_t i, float c, float s, float *head) {
    float *x = head + (neox ? i : 2 * i), *y = x + (neox ? n_rot / 2 : 1), p = *x, q = *y;

    *x = p * c - q * s;
    *y = p * s + q * c;
}

/* Rotates the first values of a head (shared) by RoPE, by one warp. */
DEVICE void rows_turn(const struct store_args &a, const float *rope, float *head) {
    for (uint32_t i = threadIdx.x % 32; i < a.n_rot / 2; i += 32) {
        const float *by = rope + 2 * i;

        turn_pair(a.n_rot, a.neox, i, by[0], by[1], head);
    }
    sync_warp();
}

/* Multiplies each run of @run values of a head (shared) by the normalised Hadamard matrix, by one
 * warp; does nothing if @run is 0. */
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

/* Stores head @h of keys (PAGE_K) or values (PAGE_V) at token @slot of a page, from @head in shared
 * memory, by one warp. In all formats but f16, 32 values share a scale. */
DEVICE void store_head(const struct store_args &a, uint32_t h, enum page_part part, uint8_t *page,
                       uint32_t slot, const float *head) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim, tokens = a.shape.page_tokens;
    size_t at = page_offset(&a.shape, h, part);
    bool keys = part == PAGE_K;
    uint32_t format = keys ? a.shape.k : a.shape.v;

    if (format == PAGE_F16) {
        uint16_t *to = (uint16_t *)(page + at);

        for (uint32_t i = lane; i < dim; i += 32)
            to[keys ? slot * dim + i : i * tokens + slot] =
                (uint16_t)pack_half(finite_half(head[i]));
        return;
    }
    uint16_t *scales =
        (uint16_t *)(page + page_offset(&a.shape, h, keys ? PAGE_K_SCALES : PAGE_V_SCALES));
    for (uint32_t i = lane, group = 0; group < dim / 32; i += 32, group++) {
        uint16_t scale;
        float q = round_to_code(format, finite_half(head[i]), &scale);

        if (PAGE_BITS(format) == 8) {
            page[at + (keys ? slot * dim + i : i * tokens + slot)] = (uint8_t)(int8_t)q;
        } else {
            uint32_t apart = keys ? 4 : 8; /* distance of the two values of a byte */
            float above = lane_xor(q, apart);
            uint32_t byte;

            if (keys)
                byte = slot * (dim / 2) + page_key_byte(i);
            else
                byte = page_value_row(i) * tokens + slot;
            if ((lane & apart) == 0)
                page[at + byte] = (uint8_t)(q + 16 * above);
        }
        if (lane == 0)
            scales[keys ? slot * (dim / 32) + group : group * tokens + slot] = scale;
    }
}

/* Loads values lane, lane + 32, ... of a head; zero beyond it. */
template <int V> DEVICE void load_head(const float *x, uint32_t dim, float v[V]) {
#pragma unroll
    for (uint32_t e = 0; e < V; e++)
        v[e] = threadIdx.x % 32 + 32 * e < dim ? x[threadIdx.x % 32 + 32 * e] : 0;
}

/* Computes inverse_length() of values in the order of load_head(). */
template <int V> DEVICE float inverse_of(const struct store_args &a, const float v[V]) {
    float sum = 0;

#pragma unroll
    for (int e = 0; e < V; e++)
        sum = fmaf(v[e], v[e], sum);
    sum = warp_sum(sum);
    return 1.0f / sqrtf(sum / (float)a.shape.head_dim + a.eps);
}

/* Computes head @h of row @r, by one warp: queries first, then keys with their values. A query is
 * left in @head without its temper factor, which is returned; a key and its value are stored in
 * their page. A head has at most 32 V values; head (shared): as many for this warp. Whatever the
 * preceding product does not write is loaded before it ends, to use the time of waiting. */
template <int V>
DEVICE float store_compute(const struct store_args &a, uint32_t r, uint32_t h, float *head) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim, n_kv = a.shape.n_head_kv;
    bool query = h < a.n_head;
    size_t at = query ? ((size_t)r * a.n_head + h) * dim : ((size_t)r * n_kv + h - a.n_head) * dim;
    const float *norm = query ? a.q_norm : a.k_norm, *rope = a.rope + (size_t)r * a.n_rot;
    float x[V], v[V] = {}, w[V] = {}, turns[V / 2][2] = {}, factor = 1;
    uint32_t slot = 0;
    uint8_t *page = a.pages;

    if (norm)
        load_head<V>(norm, dim, w);
#pragma unroll
    for (uint32_t e = 0; e < V / 2; e++)
        if (lane + 32 * e < a.n_rot / 2)
            load_floats(rope + 2 * (lane + 32 * e), turns[e]);
    if (query) {
        factor = a.temper ? a.temper[r] : 1;
    } else {
        slot = a.batch->row_slot[r];
        page += (size_t)a.batch->row_page[a.cls][r] * page_layer_bytes(&a.shape);
    }
    wait_for_previous();
    load_head<V>((query ? a.q : a.k) + at, dim, x);
    if (!query)
        load_head<V>(a.v + ((size_t)r * n_kv + h - a.n_head) * a.n_value, a.n_value, v);
    float inverse = norm ? inverse_of<V>(a, x) : 1;
#pragma unroll
    for (uint32_t e = 0; e < V; e++)
        if (lane + 32 * e < dim)
            head[lane + 32 * e] = norm && !a.norm_late ? x[e] * inverse * w[e] : x[e] * inverse;
    sync_warp();
#pragma unroll
    for (uint32_t e = 0; e < V / 2; e++) {
        uint32_t i = lane + 32 * e;

        if (i < a.n_rot / 2)
            turn_pair(a.n_rot, a.neox, i, turns[e][0], turns[e][1], head);
    }
    sync_warp();
    if (norm && a.norm_late) {
#pragma unroll
        for (uint32_t e = 0; e < V; e++)
            if (lane + 32 * e < dim)
                head[lane + 32 * e] *= w[e];
        sync_warp();
    }
#pragma unroll 1
    for (bool keys = true;; keys = false) {
        hadamard_head(head, dim, keys ? a.run_k : a.run_v);
        if (query)
            break;
        store_head(a, h - a.n_head, keys ? PAGE_K : PAGE_V, page, slot, head);
        if (!keys)
            break;
        sync_warp();
        inverse = a.v_unit ? inverse_of<V>(a, v) : 1;
#pragma unroll
        for (uint32_t e = 0; e < V; e++)
            if (lane + 32 * e < dim)
                head[lane + 32 * e] = v[e] * inverse;
        sync_warp();
    }
    return factor;
}

/* Stores head @h of row @r as store_compute() computes it, queries in place; head (shared):
 * [HEAD_MAX]. */
template <int V>
DEVICE void store_values(const struct store_args &a, uint32_t r, uint32_t h, float *head) {
    float factor = store_compute<V>(a, r, h, head), *q;

    if (h >= a.n_head)
        return;
    q = a.q + ((size_t)r * a.n_head + h) * a.shape.head_dim;
#pragma unroll
    for (uint32_t i = threadIdx.x % 32; i < 32 * V; i += 32)
        if (i < a.shape.head_dim)
            q[i] = head[i] * factor;
}
