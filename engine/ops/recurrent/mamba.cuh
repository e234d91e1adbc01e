#pragma once

/*
 * mamba - Mamba-2 (engine/op.h, reference_mamba.c) with the functions of delta nets: rows of
 * the sequence in shared memory, a head's matrix in registers, four lanes for each value.
 *
 * mamba_in   convolution and activation, one thread for each row and channel; the first threads of
 *            a row also compute its heads' step sizes dt
 * mamba      the recurrence, with C as queries, B as keys and x as values; it also keeps the inputs
 *            of the convolution
 * mamba_out  gate, group norm and packing of a row: one block for each row, one warp for each group
 */

#include "engine/ops/recurrent/state.cuh"

/* Selects functions of Mamba-2. */
struct mamba_args : state_args {};

DEVICE float input_of(const struct mamba_args &a, size_t row, uint32_t c) {
    return a.in[0][row * a.n + c];
}

ROW_KERNEL(mamba_in, struct mamba_args, CUDA_THREADS, 2) {
    uint32_t c = blockIdx.y * CUDA_THREADS + threadIdx.x;

    if (c >= a.n)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    a.c[(size_t)r * a.n + c] = mx_silu(state_convolve(a, seq, r, c) + (a.bias ? a.bias[c] : 0));
    if (c < a.n_value_head) {
        float dt = mx_softplus(a.in[2][(size_t)r * a.n_value_head + c] + a.dt[c]);
        float *mix = a.mix + ((size_t)r * a.n_value_head + c) * 2;

        mix[0] = mx_expf(dt * a.decay[c]);
        mix[1] = dt;
    }
}

/* Advances the state by one row, m = e^(dt A) m + B dt x; returns m^T C + D x. */
template <int N>
DEVICE float advance(const struct mamba_args &a, const struct DeltaRows &rows, uint32_t r, float x,
                     uint32_t head, float (&m)[N]) {
    return fmaf(a.skip[head], x, change_keys(rows, r, rows.mix[r][0], rows.mix[r][1] * x, m));
}

STATE_KERNEL(mamba, struct mamba_args, struct DeltaRows)

/* Computes norm(out silu(z)) of the @n values from @at on, or out silu(z) if the layer has no norm,
 * by one warp. */
DEVICE void gate_group(const struct mamba_args &a, size_t row, uint32_t at, uint32_t n) {
    float *out = a.out + row + at;

    for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
        out[i] *= mx_silu(a.in[1][row + at + i]);
    if (!a.norm)
        return;
    float inverse = inverse_length(out, n, a.eps);
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
        out[i] = out[i] * inverse * a.norm[at + i];
}

ROW_KERNEL(mamba_out, struct mamba_args, PACK_THREADS, 2) {
    SHARED float shared[PACK_SHARED];
    uint32_t inner = a.n_value_head * a.dim, n = inner / a.n_key_head;

    for (uint32_t g = threadIdx.x / 32; g < a.n_key_head; g += PACK_THREADS / 32)
        gate_group(a, (size_t)r * inner, g * n, n);
    sync_block();
    pack_row(a.pack, r, r, shared);
}
