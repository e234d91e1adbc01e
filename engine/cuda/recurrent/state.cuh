#pragma once

/*
 * state - the common part of delta nets and Mamba-2: the causal convolution of the inputs, and the
 * recurrence over the rows of a sequence on a part of a head's matrix. Args is struct delta_args or
 * mamba_args, with overloads of channels_of(), input_of(), part_of() and advance(). Rows is struct
 * DeltaRows, or KdaRows for Kimi delta attention.
 */

#include "engine/cuda/device.cuh"
#include "engine/cuda/recurrent/kernels_recurrent.h"
#include "engine/cuda/rows/rows.cuh"

struct StatePart;
DEVICE uint32_t channels_of(const struct delta_args &a);
DEVICE uint32_t channels_of(const struct mamba_args &a);
DEVICE float input_of(const struct delta_args &a, size_t row, uint32_t c);
DEVICE float input_of(const struct mamba_args &a, size_t row, uint32_t c);
DEVICE struct StatePart part_of(const struct delta_args &a);
DEVICE struct StatePart part_of(const struct mamba_args &a);

/* Returns the convolution of channel @c at row @r: the sum of taps times the inputs of the last
 * n_taps rows, oldest first. Rows before the batch come from the state; those before the sequence
 * are 0. */
template <class Args>
DEVICE float convolve(const Args &a, const struct plan_seq &seq, uint32_t r, uint32_t c) {
    uint32_t n = channels_of(a), before = a.n_taps - 1, nth = r - seq.row0;
    const float *past = a.state + seq.state * a.stride;
    float sum = 0;

    for (uint32_t j = 0; j <= before; j++) {
        uint32_t k = nth + j;
        float u = k >= before ? input_of(a, r + j - before, c)
                  : seq.pos0  ? past[(size_t)k * n + c]
                              : 0.0f;

        sum = fmaf(a.taps[(size_t)j * n + c], u, sum);
    }
    return sum;
}

struct DeltaRows {
    float q[DELTA_ROWS][DELTA_DIM], k[DELTA_ROWS][DELTA_DIM];
    float v[DELTA_ROWS][DELTA_VALUES], mix[DELTA_ROWS][2];
};

struct KdaRows : DeltaRows {
    float keep[DELTA_ROWS][DELTA_DIM];
};

/* The part of a head that a block computes: up to DELTA_VALUES of its @n_values values, from @first
 * on. q, k and v are the channels at which its queries, keys and values begin. */
struct StatePart {
    uint32_t head, first, n_heads, n_values, q, k, v;
};

/* Returns the block's part, without q, k and v. */
DEVICE struct StatePart part_of_heads(uint32_t n_heads, uint32_t n_values) {
    uint32_t n_parts = (n_values + DELTA_VALUES - 1) / DELTA_VALUES;
    struct StatePart p;

    p.head = blockIdx.y / n_parts;
    p.first = blockIdx.y % n_parts * DELTA_VALUES;
    p.n_heads = n_heads;
    p.n_values = n_values;
    return p;
}

/* Starts to copy rows [row, row + n) of the batch to shared memory: queries, keys, values and
 * mix. */
template <int DIM, class Args>
DEVICE void fetch_rows(const Args &a, const struct StatePart &part, uint32_t row, uint32_t n,
                       struct DeltaRows *to) {
    constexpr uint32_t quads = DIM / 4;
    uint32_t left = part.n_values - part.first, values = left < DELTA_VALUES ? left : DELTA_VALUES;
    const float *from = a.c + (size_t)row * channels_of(a);

    for (uint32_t i = threadIdx.x; i < n * quads; i += DELTA_THREADS) {
        uint32_t r = i / quads, at = i % quads * 4;
        const float *c = from + (size_t)r * channels_of(a) + at;

        copy_async(&to->q[r][at], c + part.q);
        copy_async(&to->k[r][at], c + part.k);
    }
    for (uint32_t i = threadIdx.x; i < n * (values / 4); i += DELTA_THREADS) {
        uint32_t r = i / (values / 4), at = i % (values / 4) * 4;

        copy_async(&to->v[r][at], from + (size_t)r * channels_of(a) + part.v + part.first + at);
    }
    if (threadIdx.x < n * 2)
        copy_async4(&to->mix[threadIdx.x / 2][threadIdx.x % 2],
                    a.mix + ((size_t)(row + threadIdx.x / 2) * part.n_heads + part.head) * 2 +
                        threadIdx.x % 2);
}

template <int DIM, class Args>
DEVICE void fetch_keeps(const Args &a, const struct StatePart &part, uint32_t row, uint32_t n,
                        struct DeltaRows *to) {}

/* Starts to copy the decays of the keys of the rows. */
template <int DIM>
DEVICE void fetch_keeps(const struct delta_args &a, const struct StatePart &part, uint32_t row,
                        uint32_t n, struct KdaRows *to) {
    constexpr uint32_t quads = DIM / 4;

    for (uint32_t i = threadIdx.x; i < n * quads; i += DELTA_THREADS) {
        uint32_t r = i / quads, at = i % quads * 4;

        copy_async(&to->keep[r][at],
                   a.keep + ((size_t)(row + r) * part.n_heads + part.head) * DIM + at);
    }
}

/* Sums over the keys of a value. The keys of a value are divided among four lanes, each with four
 * partial sums; docs/design/cuda.md gives the order of additions. All four lanes get the result. */
DEVICE float sum_lanes(const float s[4]) {
    return warp_sum<4>((s[0] + s[1]) + (s[2] + s[3]));
}

/* Updates the matrix by row @r, m = keep m + k change, and returns m^T q for the lane's value. A
 * lane has a quarter of the keys: 4 of every 16. */
template <int N>
DEVICE float change_keys(const struct DeltaRows &rows, uint32_t r, float keep, float change,
                         float (&m)[N]) {
    const float *k = rows.k[r] + threadIdx.x % 4 * 4, *q = rows.q[r] + threadIdx.x % 4 * 4;
    float s[4] = {0, 0, 0, 0};

#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float x[4], y[4];

        load_four(k + i * 16, x);
        load_four(q + i * 16, y);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            m[i * 4 + e] = fmaf(x[e], change, keep * m[i * 4 + e]);
            s[e] = fmaf(y[e], m[i * 4 + e], s[e]);
        }
    }
    return sum_lanes(s);
}

/* Runs the recurrence over all rows of the block's sequence, for its part of a head. The matrix
 * stays in registers; cp.async copies the next DELTA_ROWS rows while the current ones are
 * computed. */
template <int DIM, class Args, class Rows>
DEVICE void run_head(const Args &a, const struct plan_seq &seq, Rows rows[2]) {
    const struct StatePart part = part_of(a);
    uint32_t lane = threadIdx.x % 32, n_out = part.n_heads * part.n_values;
    float m[DIM / 4];

    uint32_t value = part.first + threadIdx.x / 4; /* the lane's value of the head */
    float *state = a.state + seq.state * a.stride + (size_t)(a.n_taps - 1) * channels_of(a) +
                   (size_t)part.head * part.n_values * DIM + delta_place(DIM, 0, value / 8 * 8) +
                   lane * 4;
    bool there = value < part.n_values; /* uniform within a warp */
#pragma unroll
    for (int i = 0; i < DIM / 4; i++)
        m[i] = 0;
    if (there && seq.pos0 > 0)
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            load_four(state + i * 128, m + i * 4);
    uint32_t n_first = seq.n_rows < DELTA_ROWS ? seq.n_rows : DELTA_ROWS;
    fetch_rows<DIM>(a, part, seq.row0, n_first, &rows[0]);
    fetch_keeps<DIM>(a, part, seq.row0, n_first, &rows[0]);
    copy_commit();
    for (uint32_t first = 0, now = 0; first < seq.n_rows; first += DELTA_ROWS, now ^= 1) {
        uint32_t left = seq.n_rows - first, n = left < DELTA_ROWS ? left : DELTA_ROWS;
        uint32_t next = left - n < DELTA_ROWS ? left - n : DELTA_ROWS;

        fetch_rows<DIM>(a, part, seq.row0 + first + n, next, &rows[now ^ 1]);
        fetch_keeps<DIM>(a, part, seq.row0 + first + n, next, &rows[now ^ 1]);
        copy_commit();
        copy_wait<1>();
        sync_block();
        for (uint32_t r = 0; there && r < n; r++) {
            float out = advance(a, rows[now], r, rows[now].v[r][threadIdx.x / 4], part.head, m);

            if (lane % 4 == 0)
                a.out[(size_t)(seq.row0 + first + r) * n_out + part.head * part.n_values + value] =
                    out;
        }
        sync_block();
    }
    copy_wait<0>();
    if (there)
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            store_some<4>(state + i * 128, m + i * 4);
}

/* Stores the inputs of the last n_taps - 1 rows, which the convolution of the next rows needs. The
 * blocks of a sequence divide the channels. */
template <class Args> DEVICE void keep_inputs(const Args &a, const struct plan_seq &seq) {
    uint32_t n = channels_of(a), before = a.n_taps - 1, n_rows = seq.n_rows;
    float *past = a.state + seq.state * a.stride;

    for (uint32_t c = blockIdx.y * DELTA_THREADS + threadIdx.x; c < n;
         c += gridDim.y * DELTA_THREADS)
        for (uint32_t j = 0; j < before; j++) {
            float u = j + n_rows >= before ? input_of(a, seq.row0 + j + n_rows - before, c)
                      : seq.pos0           ? past[(size_t)(j + n_rows) * n + c]
                                           : 0.0f;

            past[(size_t)j * n + c] = u;
        }
}

/* Runs the recurrence for sequence @seq and keeps the inputs of its convolution. @n_keys, the rows
 * of a head's matrix, is 16, 32, 64 or 128. */
template <class Args, class Rows>
DEVICE void run_sequence(const Args &a, const struct plan_seq &seq, uint32_t n_keys, Rows rows[2]) {
    switch (n_keys) {
    case 16:
        run_head<16>(a, seq, rows);
        break;
    case 32:
        run_head<32>(a, seq, rows);
        break;
    case 64:
        run_head<64>(a, seq, rows);
        break;
    case 128:
        run_head<128>(a, seq, rows);
        break;
    }
    keep_inputs(a, seq);
}

/* Defines the kernel of a recurrence. */
#define STATE_KERNEL(NAME, ARGS, ROWS, N_KEYS)                                                     \
    KERNEL(NAME, ARGS, DELTA_THREADS, 4) {                                                         \
        wait_for_previous();                                                                       \
        SHARED ROWS rows[2];                                                                       \
                                                                                                   \
        if (blockIdx.x < a.batch->n_seqs)                                                          \
            run_sequence(a, a.batch->seq[blockIdx.x], N_KEYS, rows);                               \
    }
