#pragma once

/*
 * state - the common part of delta nets and Mamba-2: the causal convolution of the inputs, and the
 * recurrence over the rows of a sequence on a part of a head's matrix. Args is struct state_args,
 * mamba_args or conv_args, with overloads of input_of(); Rows is struct DeltaRows, or KdaRows for
 * Kimi delta attention. advance() has overloads for both.
 */

#include "engine/cuda/device.cuh"
#include "engine/cuda/rows/rows.cuh"
#include "engine/ops/recurrent/kernels_recurrent.h"

/* Returns the input of channel @c at row @row of the batch. Kimi's queries, keys and values are
 * separate products. */
DEVICE float input_of(const struct state_args &a, size_t row, uint32_t c) {
    uint32_t n = a.n_key_head * a.dim;

    if (!a.keep)
        return a.in[0][row * a.n + c];
    if (c < n)
        return a.in[0][row * n + c];
    if (c < 2 * n)
        return a.more[0][row * n + c - n];
    return a.more[1][row * n + c - 2 * n];
}

/* Returns the input of channel @c at row @k of the sequence, counted from n_taps - 1 rows before
 * the step. Rows before the step come from the state; those before the sequence are 0. */
template <class Args>
DEVICE float input_at(const Args &a, const struct plan_seq &seq, uint32_t k, uint32_t c) {
    uint32_t before = a.n_taps - 1;

    if (k >= before)
        return input_of(a, seq.row0 + k - before, c);
    return seq.pos0 ? a.state[seq.state * a.stride + (size_t)k * a.n + c] : 0.0f;
}

/* Returns the convolution of channel @c at row @r: the sum of taps times the inputs of the last
 * n_taps rows, oldest first. */
template <class Args>
DEVICE float state_convolve(const Args &a, const struct plan_seq &seq, uint32_t r, uint32_t c) {
    uint32_t before = a.n_taps - 1;
    float sum = 0;

    for (uint32_t j = 0; j <= before; j++) /* not unrolled */
        sum = fmaf(a.taps[(size_t)j * a.n + c], input_at(a, seq, r - seq.row0 + j, c), sum);
    return sum;
}

/* Stores the inputs of the last n_taps - 1 rows, which the convolution of the next rows needs. The
 * blocks of a sequence, of THREADS threads, divide the channels. */
template <uint32_t THREADS, class Args>
DEVICE void state_save_inputs(const Args &a, const struct plan_seq &seq) {
    for (uint32_t c = blockIdx.y * THREADS + threadIdx.x; c < a.n; c += gridDim.y * THREADS)
        for (uint32_t j = 0; j + 1 < a.n_taps; j++)
            a.state[seq.state * a.stride + (size_t)j * a.n + c] =
                input_at(a, seq, j + seq.n_rows, c);
}

struct DeltaRows {
    float q[DELTA_ROWS][DELTA_DIM], k[DELTA_ROWS][DELTA_DIM];
    float v[DELTA_ROWS][DELTA_VALUES], mix[DELTA_ROWS][2];
};

struct KdaRows : DeltaRows {
    float keep[DELTA_ROWS][DELTA_DIM];
};

/* The part of a head that a block computes: up to DELTA_VALUES of its values, from @first on. q, k
 * and v are the channels at which its queries, keys and values begin. */
struct StatePart {
    uint32_t head, first, q, k, v;
};

/* Returns the block's part. */
DEVICE struct StatePart state_part(const struct state_args &a) {
    uint32_t n_parts = (a.dim + DELTA_VALUES - 1) / DELTA_VALUES, head = blockIdx.y / n_parts;
    uint32_t key_head = a.tiled ? head % a.n_key_head : head / (a.n_value_head / a.n_key_head);

    return {head, blockIdx.y % n_parts * DELTA_VALUES, a.q_at + key_head * a.n_key,
            a.k_at + key_head * a.n_key, a.v_at + head * a.dim};
}

/* Starts to copy rows [row, row + n) of the batch to shared memory: queries, keys, values and
 * mix. */
template <int DIM>
DEVICE void fetch_rows(const struct state_args &a, const struct StatePart &part, uint32_t row,
                       uint32_t n, struct DeltaRows *to) {
    constexpr uint32_t quads = DIM / 4;
    uint32_t left = a.dim - part.first, values = left < DELTA_VALUES ? left : DELTA_VALUES;
    uint32_t stride = a.n + a.n_behind;
    const float *from = a.c + (size_t)row * stride;

    for (uint32_t i = threadIdx.x; i < n * quads; i += DELTA_THREADS) {
        uint32_t r = i / quads, at = i % quads * 4;
        const float *c = from + (size_t)r * stride + at;

        copy_async(&to->q[r][at], c + part.q);
        copy_async(&to->k[r][at], c + part.k);
    }
    for (uint32_t i = threadIdx.x; i < n * (values / 4); i += DELTA_THREADS) {
        uint32_t r = i / (values / 4), at = i % (values / 4) * 4;

        copy_async(&to->v[r][at], from + (size_t)r * stride + part.v + part.first + at);
    }
    if (threadIdx.x < n * 2)
        copy_async4(&to->mix[threadIdx.x / 2][threadIdx.x % 2],
                    a.mix + ((size_t)(row + threadIdx.x / 2) * a.n_value_head + part.head) * 2 +
                        threadIdx.x % 2);
}

template <int DIM>
DEVICE void fetch_keeps(const struct state_args &a, const struct StatePart &part, uint32_t row,
                        uint32_t n, struct DeltaRows *to) {}

/* Starts to copy the decays of the keys of the rows. */
template <int DIM>
DEVICE void fetch_keeps(const struct state_args &a, const struct StatePart &part, uint32_t row,
                        uint32_t n, struct KdaRows *to) {
    constexpr uint32_t quads = DIM / 4;

    for (uint32_t i = threadIdx.x; i < n * quads; i += DELTA_THREADS) {
        uint32_t r = i / quads, at = i % quads * 4;

        copy_async(&to->keep[r][at],
                   a.keep + ((size_t)(row + r) * a.n_value_head + part.head) * DIM + at);
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
    const struct StatePart part = state_part(a);
    uint32_t lane = threadIdx.x % 32, n_out = a.n_value_head * a.dim;
    float m[DIM / 4];

    uint32_t value = part.first + threadIdx.x / 4; /* the lane's value of the head */
    float *state = a.state + seq.state * a.stride + (size_t)(a.n_taps - 1) * a.n +
                   (size_t)part.head * a.dim * DIM + delta_place(DIM, 0, value / 8 * 8) + lane * 4;
    bool there = value < a.dim; /* uniform within a warp */
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
                a.out[(size_t)(seq.row0 + first + r) * n_out + part.head * a.dim + value] = out;
        }
        sync_block();
    }
    copy_wait<0>();
    if (there)
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            store_some<4>(state + i * 128, m + i * 4);
}

/* Runs the recurrence for sequence @seq and keeps the inputs of its convolution. */
template <class Args, class Rows>
DEVICE void run_sequence(const Args &a, const struct plan_seq &seq, Rows rows[2]) {
    switch (a.n_key) {
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
    state_save_inputs<DELTA_THREADS>(a, seq);
}

/* Defines the kernel of a recurrence. */
#define STATE_KERNEL(NAME, ARGS, ROWS)                                                             \
    KERNEL(NAME, ARGS, DELTA_THREADS, 4) {                                                         \
        wait_for_previous();                                                                       \
        SHARED ROWS rows[2];                                                                       \
                                                                                                   \
        if (blockIdx.x < a.batch->n_seqs)                                                          \
            run_sequence(a, a.batch->seq[blockIdx.x], rows);                                       \
    }
