/*
 * vision - the kernels of image encoders other than products: functions of rows, and bidirectional
 * attention among patches. A row's result depends only on the row and, in attention, on its
 * segment, not on the number of rows of a launch.
 */

#include "engine/cuda/rows/rows.cuh"
#include "engine/cuda/vision/kernels_vision.h"

#define WARPS (CUDA_THREADS / 32)

/* -- functions of rows: formulas in engine/vision/host.c --------------------------------------- */

DEVICE float activated(uint32_t act, float x) {
    if (act == VIS_GELU)
        return mx_gelu(x);
    if (act == VIS_SILU)
        return mx_silu(x);
    if (act == VIS_GELU_ERF)
        return mx_gelu_erf(x);
    return x / (1.0f + mx_expf(-1.702f * x));
}

/* Returns value @i of a patch's pixels, ordered by channel, line and column, normalised. */
DEVICE float pixel_value(const struct vis_rows &a, uint32_t patch, uint32_t i) {
    uint32_t side = a.side, k = i / (side * side), y = i / side % side, x = i % side;
    size_t line = (size_t)a.at.row.of[patch] * side + y;
    size_t column = (size_t)a.at.column.of[patch] * side + x;
    float v = ((float)a.at.pixel[line * a.at.pitch + column * 3 + k] / 255 - a.mean[k]) / a.std[k];

    return a.twice ? 2 * v - 1 : v;
}

/* Returns @x plus value @i of the position embedding of a patch at (@row, @column): one table row
 * for each axis (apart), or a bilinear interpolation between table rows by the taps of both
 * axes. */
DEVICE float positioned(const struct vis_rows &a, uint32_t row, uint32_t column, uint32_t i,
                        float x) {
    const struct vis_axis &v = a.at.row, &u = a.at.column;

    if (a.apart)
        return x +
               (a.in[(size_t)column * a.width + i] + a.in[((size_t)a.n_table + row) * a.width + i]);
    for (uint32_t s = v.first_tap[row]; s < v.first_tap[row + 1]; s++)
        for (uint32_t t = u.first_tap[column]; t < u.first_tap[column + 1]; t++)
            x += v.tap[s].weight * u.tap[t].weight *
                 a.in[((size_t)v.tap[s].at * a.n_table + u.tap[t].at) * a.width + i];
    return x;
}

/* Gathers the patches of block @block into one row: their mean (VIS_MEAN) or all their values. */
DEVICE void gather_values(const struct vis_rows &a, uint32_t block, float *out) {
    uint32_t merge = a.merge, area = merge * merge, columns = a.at.width / merge, n = a.width;
    uint32_t top = block / columns * merge, left = block % columns * merge;

    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
        float sum = 0;

        for (uint32_t b = 0; b < area; b++) {
            size_t patch = (size_t)(top + b / merge) * a.at.width + left + b % merge;
            float x = a.in[patch * n + i];

            if (a.kind == VIS_MEAN)
                sum += x / (float)area;
            else
                out[a.channels ? (size_t)i * area + b : (size_t)b * n + i] = x;
        }
        if (a.kind == VIS_MEAN)
            out[i] = sum;
    }
}

KERNEL(vis_row, struct vis_rows, CUDA_THREADS, 4) {
    wait_for_previous();
    SHARED float shared[WARPS];
    uint32_t r = blockIdx.x, at = a.first + r;
    const float *in = a.in + (size_t)r * a.width;
    float *out = a.out + (size_t)(a.moves ? a.at.to[at] : r) * a.width;

    if (a.kind == VIS_NORM) {
        norm_by_block(in, a.w, a.bias, a.width, a.eps, out, shared);
        return;
    }
    if (a.kind == VIS_MEAN || a.kind == VIS_BLOCK) {
        gather_values(
            a, at, a.kind == VIS_MEAN ? out : out + (size_t)r * a.width * (a.merge * a.merge - 1));
        return;
    }
    for (uint32_t i = threadIdx.x; i < a.width; i += CUDA_THREADS)
        switch (a.kind) {
        case VIS_ADD:
            out[i] += in[i];
            break;
        case VIS_CLAMP:
            out[i] = fminf(fmaxf(in[i], a.low), a.high);
            break;
        case VIS_ACT: {
            float y = activated(a.act, in[i]);

            out[i] = a.up ? y * a.up[(size_t)r * a.width + i] : y;
            break;
        }
        case VIS_AFFINE: {
            float y = in[i] * a.factor;

            out[i] = a.w ? (y - a.bias[i]) * a.w[i] : y;
            break;
        }
        case VIS_PATCH:
            out[i] = pixel_value(a, at, i);
            break;
        default: /* VIS_POSITION */
            out[i] = positioned(a, a.at.row.of[at], a.at.column.of[at], i, out[i]);
        }
}

/* -- heads ------------------------------------------------------------------------------------- */

/* Normalises a head in shared memory, by one warp: layer norm if there is a bias, else RMS norm. */
DEVICE void norm_head(const float *w, const float *bias, float eps, uint32_t dim, float *head) {
    uint32_t lane = threadIdx.x % 32;
    float sum = 0, mean = 0;

    if (bias) {
        for (uint32_t i = lane; i < dim; i += 32)
            sum += head[i];
        mean = warp_sum(sum) / (float)dim;
    }
    sum = 0;
    for (uint32_t i = lane; i < dim; i += 32)
        sum = fmaf(head[i] - mean, head[i] - mean, sum);
    float inverse = 1.0f / sqrtf(warp_sum(sum) / (float)dim + eps);
    for (uint32_t i = lane; i < dim; i += 32)
        head[i] = (head[i] - mean) * inverse * (w ? w[i] : 1) + (bias ? bias[i] : 0);
    sync_warp();
}

/* Rotates the pairs of a head of patch @at in shared memory, by one warp: half of the pairs by the
 * patch's row, the others by its column. */
DEVICE void vision_turn_head(const struct vis_heads &a, uint32_t at, uint32_t dim, float *head) {
    uint32_t half = dim / 2, quarter = dim / 4;

    for (uint32_t i = threadIdx.x % 32; i < half; i += 32) {
        bool second = i >= quarter, alternate = a.turn == VIS_ALTERNATE;
        uint32_t x = i, apart = half, k = i % quarter;

        if (alternate) {
            second = i % 2;
            k = i / 2;
        }
        const struct vis_axis &axis = second != a.swapped ? a.at.column : a.at.row;
        const float *cs = axis.turn + ((size_t)axis.of[at] * quarter + k) * 2;
        if (a.turn == VIS_NEIGHBOURS || alternate) {
            x = 2 * i;
            apart = 1;
        } else if (a.turn == VIS_QUARTERS) {
            x = i % quarter + i / quarter * half;
            apart = quarter;
        }
        float p = head[x], q = head[x + apart];

        head[x] = p * cs[0] - q * cs[1];
        head[x + apart] = p * cs[1] + q * cs[0];
    }
    sync_warp();
}

KERNEL(vis_head, struct vis_head_args, CUDA_THREADS, 4) {
    wait_for_previous();
    SHARED float heads[WARPS][VIS_WIDEST];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.x;
    uint32_t h = blockIdx.y * WARPS + warp, n_head = a.to.n_head, dim = a.to.dim;

    if (h >= 3 * n_head)
        return;
    uint32_t part = h / n_head, at = a.of.first + r;
    const float *in = a.of.in[2], *w = NULL, *bias = NULL;
    float *head = heads[warp];
    if (part == 0) {
        in = a.of.in[0];
        w = a.of.w[0];
        bias = a.of.bias[0];
    } else if (part == 1) {
        in = a.of.in[1];
        w = a.of.w[1];
        bias = a.of.bias[1];
    }
    for (uint32_t i = lane; i < dim; i += 32)
        head[i] = in[r * a.of.stride + (size_t)(h % n_head) * dim + i];
    sync_warp();
    if (part == 2 ? a.of.unit : w != NULL)
        norm_head(w, bias, a.of.eps, dim, head);
    if (part < 2 && a.of.turn != VIS_STAY)
        vision_turn_head(a.of, at, dim, head);
    uint16_t *to = a.to.half + ((size_t)h * a.to.max_keys + at) * a.to.padded;
    for (uint32_t i = lane; i < a.to.padded; i += 32)
        to[i] = i < dim ? (uint16_t)pack_half(finite_half(head[i])) : 0;
}

/* -- attention --------------------------------------------------------------------------------- */

/*
 * Flash attention. A warp holds 16 queries in registers. The four warps of a block iterate over the
 * keys of the segment in tiles of 32, which cp.async fetches one tile ahead into a ring of two.
 *
 * With s = scale log2(e) q k, the running values are m, the largest s so far, l, the sum of 2^(s -
 * m), and o, the sum of 2^(s - m) v. A tile that raises m rescales l and o by 2^(old m - new m).
 * The result is o / l. Queries, keys, values and probabilities have half precision, sums single
 * precision.
 *
 * The bound is the tensor cores or the L2 cache: a tile of heads of 64 values is 8 KiB for 64
 * queries.
 */

#define KEYS 32u

/* A tile of keys and values. Rows are padded by 16 bytes so that eight of them lie in different
 * banks. */
template <uint32_t D> struct alignas(16) Tile { uint16_t key[KEYS][D + 8], value[KEYS][D + 8]; };

/* Queries, keys and values of one head, and the segment's patches [start, end). */
struct Segment {
    const uint16_t *q, *k, *v;
    uint32_t start, end;
};

template <uint32_t D> DEVICE void fetch_keys(const struct Segment &s, uint32_t first, Tile<D> &to) {
    constexpr uint32_t pieces = KEYS * (D / 8); /* copies of 16 bytes */

    for (uint32_t i = threadIdx.x; i < 2 * pieces; i += VIS_THREADS) {
        bool values = i >= pieces;
        uint32_t key = i % pieces / (D / 8), d = i % (D / 8) * 8;
        uint16_t *at = values ? &to.value[key][d] : &to.key[key][d];

        if (first + key < s.end)
            copy_async(at, (values ? s.v : s.k) + (size_t)(first + key) * D + d);
        else
            store16(at, {0, 0, 0, 0});
    }
    copy_commit();
}

/* Running values of queries g and g + 8 of the warp, where g = lane / 4; see above. l covers only
 * the lane's own keys until store_head_sums(). */
template <uint32_t D> struct Sums { float m[2], l[2], o[D / 8][4]; };

/* Updates the running values with a tile, of which the first @n_keys keys exist. */
template <uint32_t D>
DEVICE void vision_add_keys(const uint32_t q[D / 16][4], const Tile<D> &tile, uint32_t n_keys,
                            float scale, Sums<D> &r) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float c[4][4];
    uint32_t h[2][4];

#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (uint32_t b = 0; b < D / 16; b++) {
            const uint16_t *k = &tile.key[8 * j + g][16 * b + 2 * t];
            uint32_t k0 = *(const uint32_t *)k, k1 = *(const uint32_t *)(k + 8);

            if (b == 0)
                mma_first(c[j], q[b][0], q[b][1], q[b][2], q[b][3], k0, k1);
            else
                mma(c[j], q[b][0], q[b][1], q[b][2], q[b][3], k0, k1);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float max = r.m[i];

#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            float &s = c[j / 2][2 * i + j % 2];

            s = 8 * (j / 2) + 2 * t + j % 2 < n_keys ? s * scale : -INFINITY;
            max = fmaxf(max, s);
        }
        max = warp_max<4>(max);
        float shrink = exp2_fast(r.m[i] - max), sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float p0 = exp2_fast(c[j][2 * i] - max), p1 = exp2_fast(c[j][2 * i + 1] - max);

            sum += p0 + p1;
            h[i][j] = pack_halves(p0, p1);
        }
        r.m[i] = max;
        r.l[i] = fmaf(r.l[i], shrink, sum);
#pragma unroll
        for (uint32_t b = 0; b < D / 8; b++) {
            r.o[b][2 * i] *= shrink;
            r.o[b][2 * i + 1] *= shrink;
        }
    }
#pragma unroll
    for (uint32_t b = 0; b < D / 8; b++) {
        struct vec4 v = load_transposed(&tile.value[lane][8 * b]);

        mma(r.o[b], h[0][0], h[1][0], h[0][1], h[1][1], v.x, v.y);
        mma(r.o[b], h[0][2], h[1][2], h[0][3], h[1][3], v.z, v.w);
    }
}

/* Stores o / l of queries @row and @row + 8, unless they are at @end or later. */
template <uint32_t D>
DEVICE void store_head_sums(const struct vis_attend_args &a, uint32_t head, uint32_t row,
                            uint32_t end, const Sums<D> &r) {
    uint32_t t = threadIdx.x % 4, dim = a.from.dim;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = warp_sum<4>(r.l[i]);

        if (row + 8 * i >= end)
            continue;
        float *to = a.out + ((size_t)(row + 8 * i) * a.from.n_head + head) * dim;
#pragma unroll
        for (uint32_t b = 0; b < D / 8; b++) {
            float two[2] = {r.o[b][2 * i] / sum, r.o[b][2 * i + 1] / sum};

            if (8 * b + 2 * t < dim)
                store_some<2>(to + 8 * b + 2 * t, two);
        }
    }
}

template <uint32_t D> DEVICE void attend_rows(const struct vis_attend_args &a, Tile<D> ring[2]) {
    uint32_t u = a.first + blockIdx.x, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t head = a.start ? blockIdx.y : u / a.n_blocks, block = u % a.n_blocks;
    size_t plane = (size_t)a.from.max_keys * D;
    const uint16_t *q = a.from.half + head * plane;
    struct Segment s = {q, q + a.from.n_head * plane, q + 2 * a.from.n_head * plane, 0,
                        a.n_patches};

    if (a.start) {
        s.start = a.start[u / a.n_blocks];
        s.end = a.start[u / a.n_blocks + 1];
    }
    uint32_t first = s.start + block * VIS_HEAD_ROWS;
    if (first >= s.end)
        return;
    uint32_t row = first + threadIdx.x / 32 * 16 + g, w[D / 16][4];
    fetch_keys<D>(s, s.start, ring[0]);
    /* A block's last queries may lie past the segment's end: they read its last row, and
     * store_head_sums() skips them. */
    const uint16_t *q0 = s.q + (size_t)(row < s.end ? row : s.end - 1) * D + 2 * t;
    const uint16_t *q1 = s.q + (size_t)(row + 8 < s.end ? row + 8 : s.end - 1) * D + 2 * t;
#pragma unroll
    for (uint32_t b = 0; b < D / 16; b++) {
        w[b][0] = *(const uint32_t *)(q0 + 16 * b);
        w[b][1] = *(const uint32_t *)(q1 + 16 * b);
        w[b][2] = *(const uint32_t *)(q0 + 16 * b + 8);
        w[b][3] = *(const uint32_t *)(q1 + 16 * b + 8);
    }
    Sums<D> r = {{-INFINITY, -INFINITY}, {0, 0}, {}};
    for (uint32_t key = s.start, i = 0; key < s.end; key += KEYS, i++) {
        if (key + KEYS < s.end) {
            fetch_keys<D>(s, key + KEYS, ring[(i + 1) % 2]);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        sync_block();
        vision_add_keys<D>(w, ring[i % 2], s.end - key, a.scale, r);
        sync_block();
    }
    store_head_sums<D>(a, head, row, s.end, r);
}

#define ATTEND(D, blocks)                                                                          \
    KERNEL(vis_attend_##D, struct vis_attend_args, VIS_THREADS, blocks) {                          \
        wait_for_previous();                                                                       \
        SHARED Tile<D> ring[2];                                                                    \
        attend_rows<D>(a, ring);                                                                   \
    }

ATTEND(64, 3)
ATTEND(80, 3)
ATTEND(128, 2)
