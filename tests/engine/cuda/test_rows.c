/*
 * Tests the rows that pack() and residual() write (engine/cuda/rows, on the emulator), bit by bit
 * against sums in the order of docs/design/cuda.md, for row lengths of every instance, aligned and
 * not.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "engine/op.h"
#include "tests/engine/cuda/simt.h"

enum { MOST = 27000, ROWS = 3 };

static float x[ROWS * MOST], up[ROWS * MOST], weight[MOST], got[ROWS * MOST], want[MOST];
static uint16_t packed[WGMMA_ROWS * (MOST + 64)] __attribute__((aligned(16)));
static float scale[8], t[ROWS * MOST];

static const uint32_t lengths[] = {2,    63,   64,   100,  512,   516,   2048,  4096, 4100,
                                   5001, 8192, 8196, 9003, 12288, 12292, 14336, 26000};
static const uint32_t kinds[] = {PACK_PLAIN, PACK_NORM, PACK_RELU,    PACK_GELU_ALONE, PACK_XIELU,
                                 PACK_SILU,  PACK_GELU, PACK_CLAMPED, PACK_GATE};
static const struct xielu xielu = {0.75f, 1.25f, 0.5f, -1e-6f};

static void fill(float *to, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        to[i] = ((float)(seed >> 40) / 0x1p23f - 1) * (i % 97 == 5 ? 20 : 1);
    }
}

/* Returns the sum over 512 threads, each with its own squares in @part. */
static float tree(float part[512]) {
    float sum = 0;

    for (uint32_t w = 0; w < 16; w++) {
        for (uint32_t m = 1; m < 32; m *= 2)
            for (uint32_t i = 0; i < 32; i += 2 * m)
                part[32 * w + i] += part[32 * w + i + m];
        sum = w ? sum + part[32 * w] : part[0];
    }
    return sum;
}

static float inverse_of(const float *v, uint32_t n, uint32_t run) {
    float part[512] = {0};

    for (uint32_t i = 0; i < n; i++)
        part[i / run % 512] = fmaf(v[i], v[i], part[i / run % 512]);
    return 1.0f / sqrtf(tree(part) / (float)n + 1e-6f);
}

static float gated_value(uint32_t kind, float g, float u) {
    switch (kind) {
    case PACK_RELU:
        return g * (g > 0 ? g : 0);
    case PACK_GELU_ALONE:
        return mx_gelu(g);
    case PACK_XIELU:
        return xielu_at(&xielu, g);
    case PACK_SILU:
        return mx_silu(g) * u;
    case PACK_GELU:
        return mx_gelu(g) * u;
    case PACK_GATE:
        return g * (1.0f / (1.0f + mx_expf(-u)));
    case PACK_CLAMPED:
        g = fminf(g, 7);
        u = fminf(fmaxf(u, -7), 7);
        return g / (1.0f + mx_expf(-1.702f * g)) * (u + 1);
    default:
        return g;
    }
}

/* Checks row @r of the packed rows against the n values in want. */
static void check_row(const struct pack_args *a, uint32_t r, const char *what) {
    float max = 0;

    for (uint32_t i = 0; i < a->n; i++)
        max = fmaxf(max, fabsf(want[i]));
    int e = ilogbf(max) - 13;
    cr_assert_eq(scale[r], ldexpf(1, e), "%s, %u columns", what, a->n);
    for (uint32_t i = 0; i < a->n_padded; i++) {
        uint32_t k = i % 32;
        size_t block = (size_t)(i / 32) * 8 * 32;
        size_t core = (size_t)(i / 64) * 64 * WGMMA_ROWS + i % 64 / 16 * 128 + k % 2 * 64;
        size_t at =
            a->cores ? core + r * 8 + k % 16 / 4 * 2 + k % 4 / 2 : block + r * 32 + pack_place(k);
        uint16_t half = mx_float_to_half(i < a->n ? ldexpf(want[i], -e) : 0);

        cr_assert_eq(packed[at], half, "%s, column %u of %u, row %u: %x, not %x", what, i, a->n, r,
                     packed[at], half);
    }
}

static void check_pack(uint32_t kind, uint32_t n, uint32_t cores, uint32_t gap) {
    struct pack_args a = {.x = x,
                          .up = up,
                          .weight = kind == PACK_NORM ? weight : NULL,
                          .packed = packed,
                          .scale = scale,
                          .kind = kind,
                          .n = n,
                          .n_padded = (uint32_t)round_up(n, 64),
                          .cores = cores,
                          .x_stride = n + gap,
                          .up_stride = n + gap,
                          .eps = 1e-6f,
                          .xielu = xielu};
    char what[32];

    memset(packed, 0xFF, sizeof(packed));
    snprintf(what, sizeof(what), "kind %u, gap %u", kind, gap);
    if (kind < PACK_RELU)
        simt_launch(kernel_pack, (struct simt_dim){ROWS, 1, 1}, 0, &a);
    else if (kind < PACK_SILU)
        simt_launch(kernel_pack_activated, (struct simt_dim){ROWS, 1, 1}, 0, &a);
    else
        simt_launch(kernel_pack_gated, (struct simt_dim){ROWS, 1, 1}, 0, &a);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *row = x + r * (n + gap);
        float inverse = kind == PACK_NORM ? inverse_of(row, n, 4) : 1;

        for (uint32_t i = 0; i < n; i++)
            want[i] = kind == PACK_NORM ? row[i] * inverse * weight[i]
                                        : gated_value(kind, row[i], up[r * (n + gap) + i]);
        check_row(&a, r, what);
    }
}

Test(cuda_rows, packed_rows_have_the_bits_of_the_order) {
    fill(x, ROWS * MOST, 1);
    fill(up, ROWS * MOST, 2);
    fill(weight, MOST, 3);
    for (uint32_t k = 0; k < ARRAY_SIZE(kinds); k++)
        for (uint32_t i = 0; i < ARRAY_SIZE(lengths); i++)
            check_pack(kinds[k], lengths[i], i % 2, i % 3 == 1 ? 1 : 0);
}

/* Llama 4's factor, which grows at the last position of a span. */
Test(cuda_rows, factors_of_queries_are_those_of_the_host) {
    static const uint32_t pos[] = {0, 8190, 8191, 8192, 16382, 16383, 100000};
    const struct temper by = {.slope = 0.1f, .span = 8192, .ahead = 1};
    const struct batch_head batch = {.n_rows = ARRAY_SIZE(pos), .pos = pos};
    float factor[ARRAY_SIZE(pos)];
    struct rope_args a = {
        .batch = &batch, .temper = factor, .slope = by.slope, .span = by.span, .ahead = by.ahead};

    simt_launch(kernel_rope, (struct simt_dim){ARRAY_SIZE(pos), 1, 1}, 0, &a);
    for (uint32_t i = 0; i < ARRAY_SIZE(pos); i++)
        cr_expect_eq(factor[i], temper_at(&by, pos[i]), "position %u", pos[i]);
    cr_expect(factor[1] == 1 && factor[2] > 1);
}

/* to = (base + gain t) scale, with t or its norm; packed after the next norm. */
static void check_residual(uint32_t n, bool norm, bool packs) {
    static const struct batch_head batch = {.n_rows = ROWS};
    struct residual_args a = {
        .batch = &batch,
        .t = t,
        .norm = norm ? up : NULL,
        .base = x,
        .to = got,
        .gain = 0.75f,
        .scale = 1.25f,
        .eps = 1e-6f,
        .n = n,
        .packs = packs,
        .pack = {.x = got,
                 .weight = weight,
                 .packed = packed,
                 .scale = scale,
                 .kind = PACK_NORM,
                 .n = n,
                 .n_padded = (uint32_t)round_up(n, 64),
                 .eps = 1e-6f},
    };

    simt_launch(kernel_residual, (struct simt_dim){ROWS + 1, 1, 1}, 0, &a);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *row = got + r * n, *tr = t + r * n;
        float inverse = norm ? inverse_of(tr, n, 1) : 1;

        for (uint32_t i = 0; i < n; i++) {
            float v = norm ? tr[i] * inverse * up[i] : tr[i];

            cr_assert_eq(row[i], (x[r * n + i] + 0.75f * v) * 1.25f, "column %u of %u", i, n);
        }
        inverse = inverse_of(row, n, 4);
        for (uint32_t i = 0; i < n && packs; i++)
            want[i] = row[i] * inverse * weight[i];
        if (packs)
            check_row(&a.pack, r, "residual");
    }
}

Test(cuda_rows, sums_have_the_bits_of_the_order) {
    fill(x, ROWS * MOST, 4);
    fill(t, ROWS * MOST, 5);
    fill(up, MOST, 6);
    fill(weight, MOST, 7);
    for (uint32_t i = 0; i < ARRAY_SIZE(lengths); i++)
        for (uint32_t how = 0; how < 4; how++)
            check_residual(lengths[i], how & 1, how & 2);
}

/* Sums of segments from left to right, times both factors, plus the bias. */
Test(cuda_rows, what_is_left_is_added_from_left_to_right) {
    static const struct batch_head batch = {.n_rows = ROWS};
    enum { N = 200, BLOCKS = (N + WIDE_OUT - 1) / WIDE_OUT };
    static float left[BLOCKS * TILE_SEGMENTS * WIDE_SUMS], factor[ROWS] = {0.5f, 3, 0.25f};
    const struct residual_args a = {
        .batch = &batch,
        .t = t,
        .left = {.sums = left, .scale = factor, .bias = weight, .n_columns = 1, .inverse = 2},
        .base = x,
        .to = got,
        .gain = 1,
        .scale = 1,
        .n = N,
    };

    fill(left, ARRAY_SIZE(left), 8);
    fill(x, ROWS * N, 9);
    fill(weight, N, 10);
    simt_launch(kernel_residual, (struct simt_dim){ROWS, 1, 1}, 0, &a);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < N; i++) {
            const float *from =
                left + i / WIDE_OUT * TILE_SEGMENTS * WIDE_SUMS + r * WIDE_OUT + i % WIDE_OUT;
            float sum = from[0];

            for (uint32_t s = 1; s < TILE_SEGMENTS; s++)
                sum += from[s * WIDE_SUMS];
            cr_assert_eq(got[r * N + i], x[r * N + i] + (sum * (factor[r] * 2) + weight[i]),
                         "row %u, column %u", r, i);
        }
}

/* The norm of a head, then the rotation of its pairs by the row's angles. */
static void store_reference(const struct store_args *a, const float *from, const float *norm,
                            const float *rope, float *to) {
    uint32_t dim = a->shape.head_dim, half = a->n_rot / 2;
    float lane[32] = {0};

    for (uint32_t i = 0; i < dim; i++)
        lane[i % 32] = fmaf(from[i], from[i], lane[i % 32]);
    for (uint32_t m = 1; m < 32; m *= 2)
        for (uint32_t i = 0; i < 32; i += 2 * m)
            lane[i] += lane[i + m];
    float inverse = 1.0f / sqrtf(lane[0] / (float)dim + a->eps);
    for (uint32_t i = 0; i < dim; i++)
        to[i] = norm ? from[i] * inverse * norm[i] : from[i];
    for (uint32_t i = 0; i < half; i++) {
        uint32_t i0 = a->neox ? i : 2 * i, i1 = a->neox ? i + half : i0 + 1;
        float c = rope[2 * i], s = rope[2 * i + 1], p0 = to[i0], p1 = to[i1];

        to[i0] = p0 * c - p1 * s;
        to[i1] = p0 * s + p1 * c;
    }
}

/* Values of @n_value numbers; the rest of @dim is zeros in the page. */
static void check_store(uint32_t dim, uint32_t n_value, uint32_t n_rot, bool norm) {
    enum { HEADS = 3, KV = 2, TOKENS = 16 };
    static uint16_t pages[2 * KV * 2 * TOKENS * 512];
    static float k[ROWS * KV * 512], v[ROWS * KV * 512], q[ROWS * HEADS * 512];
    static const float temper[ROWS] = {1, 1.5f, 0.5f};
    static const uint32_t page[ROWS] = {1, 1, 0}, slot[ROWS] = {3, 15, 0};
    const struct batch_head batch = {.n_rows = ROWS, .row_page = {page}, .row_slot = slot};
    const struct store_args a = {
        .batch = &batch,
        .q = got,
        .k = k,
        .v = v,
        .q_norm = norm ? weight : NULL,
        .k_norm = norm ? weight + 1 : NULL,
        .rope = up,
        .temper = norm ? temper : NULL,
        .pages = (uint8_t *)pages,
        .shape =
            {.n_head_kv = KV, .head_dim = dim, .page_tokens = TOKENS, .k = PAGE_F16, .v = PAGE_F16},
        .n_head = HEADS,
        .n_rot = n_rot,
        .neox = norm,
        .n_value = n_value,
        .n_kv = KV,
        .eps = 1e-6f,
    };

    fill(q, ROWS * HEADS * dim, dim);
    fill(k, ROWS * KV * dim, dim + 1);
    fill(v, ROWS * KV * dim, dim + 2);
    memcpy(got, q, sizeof(q));
    simt_launch(kernel_store, (struct simt_dim){ROWS, 1, 1}, 0, &a);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *rope = up + r * n_rot;

        for (uint32_t h = 0; h < HEADS; h++) {
            size_t at = (r * HEADS + h) * dim;

            store_reference(&a, q + at, a.q_norm, rope, want);
            for (uint32_t i = 0; i < dim; i++)
                cr_assert_eq(got[at + i], want[i] * (norm ? temper[r] : 1), "query, %u of %u", i,
                             dim);
        }
        for (uint32_t h = 0; h < KV; h++) {
            const uint16_t *to = pages + (page[r] * KV + h) * 2 * TOKENS * dim;
            const float *values = v + (r * KV + h) * n_value;

            store_reference(&a, k + (r * KV + h) * dim, a.k_norm, rope, want);
            for (uint32_t i = 0; i < dim; i++) {
                cr_assert_eq(to[slot[r] * dim + i], mx_float_to_half(want[i]), "key, %u of %u", i,
                             dim);
                float value = i < n_value ? values[i] : 0;
                cr_assert_eq(to[TOKENS * dim + i * TOKENS + slot[r]], mx_float_to_half(value));
            }
        }
    }
}

Test(cuda_rows, stored_heads_have_the_bits_of_the_order) {
    static const uint32_t dims[] = {8, 64, 96, 128, 136, 256, 512};

    fill(up, ROWS * 512, 11);
    fill(weight, 513, 12);
    for (uint32_t i = 0; i < ARRAY_SIZE(dims); i++)
        for (uint32_t norm = 0; norm < 2; norm++) {
            check_store(dims[i], dims[i], dims[i], norm);
            check_store(dims[i], dims[i] / 2, dims[i] / 2, norm);
            check_store(dims[i], dims[i], 0, norm);
        }
}
