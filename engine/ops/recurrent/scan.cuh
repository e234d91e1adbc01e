#pragma once

/*
 * scan - Mamba-1 (engine/op.h, reference_scan.c). A channel has a step size and decays of its own,
 * and n_state numbers of state, of which each of n_state / 4 lanes keeps four in registers over all
 * rows of the sequence. What a row needs is loaded while the row before it is computed. A single
 * row is bound by the bytes of state and decays; a prompt by the latency of a row: a step from one
 * state to the next, four exponentials in each lane, and a sum over the lanes.
 *
 * scan_in  convolution and activation, one thread for each row and channel
 * scan     norms of B and C, the recurrence, and the gate; it also keeps the inputs of the
 *          convolution
 * scan_heads  one block for each row, where steps and decays are those of heads (PLaMo 2): the
 *          recurrence is then that of Mamba-2, and this kernel computes its inputs from both
 *          products
 *
 * The products of c and of t run between them; the pack of t computes its norm.
 */

#include "engine/ops/recurrent/state.cuh"

DEVICE float input_of(const struct scan_args &a, size_t row, uint32_t c) {
    return a.u[row * a.n + c];
}

ROW_KERNEL(scan_in, struct scan_args, CUDA_THREADS, 2) {
    uint32_t c = blockIdx.y * CUDA_THREADS + threadIdx.x;

    if (c >= a.n)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    float sum = state_convolve(a, seq, r, c) + (a.bias ? a.bias[c] : 0);

    a.c[(size_t)r * (a.n + a.n_behind) + c] = mx_silu(sum);
}

ROW_KERNEL(scan_heads, struct scan_args, CUDA_THREADS, 2) {
    uint32_t warp = threadIdx.x / 32, n = a.n_state;

    if (warp < 2) { /* B, C */
        const float *part = a.low + (size_t)r * (a.n_rank + 2 * n) + warp * n;
        float *to = a.c + (size_t)r * (a.n + a.n_behind) + a.n + warp * n;
        float inverse = inverse_length(part, n, a.eps);

        for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
            to[i] = part[i] * inverse * (warp ? a.out_norm : a.in_norm)[i];
    }
    for (uint32_t h = threadIdx.x; h < a.n_head; h += CUDA_THREADS) {
        size_t at = (size_t)r * a.n_head + h;
        float step = mx_softplus(a.step[at] + a.dt[h]);

        a.mix[2 * at] = mx_expf(step * a.decay[h]);
        a.mix[2 * at + 1] = step;
    }
}

/* Values of a row that a lane needs: of its channel, and four of B and of C before their norms. */
struct ScanRow {
    float x, z, step, in[4], out[4];
};

/* Place of a lane: its channel, and the first of its numbers of state. */
struct ScanPlace {
    uint32_t c, first;
};

/* Loads row @row of the batch. B and C follow t, and need not be aligned. */
DEVICE struct ScanRow scan_load_row(const struct scan_args &a, struct ScanPlace at, uint32_t row) {
    const float *in = a.low + (size_t)row * (a.n_rank + 2 * a.n_state) + a.n_rank + at.first;
    size_t place = (size_t)row * a.n + at.c;
    struct ScanRow v = {a.c[place], a.z[place], a.step[place], {}, {}};

#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        v.in[j] = in[j];
        v.out[j] = in[a.n_state + j];
    }
    return v;
}

/* Returns the sum over the @lanes lanes of a channel, to each of them. */
DEVICE float scan_sum(float v, uint32_t lanes) {
    for (uint32_t m = 1; m < lanes; m *= 2)
        v += lane_xor(v, (int)m);
    return v;
}

/* Replaces the lane's part of B or C by that of its norm times @weight. */
DEVICE void scan_norm(float v[4], const float weight[4], uint32_t lanes, float eps) {
    float sum = 0;

#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        sum = fmaf(v[j], v[j], sum);
    float inverse = 1.0f / sqrtf(scan_sum(sum, lanes) / (float)(4 * lanes) + eps);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        v[j] = v[j] * inverse * weight[j];
}

/* Advances the lane's part of the state, m = e^(step decay) m + step x B. Returns its part of
 * m^T C. */
DEVICE float scan_advance(const struct ScanRow &v, float step, const float decay[4], float m[4]) {
    float sum = 0;

#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        m[j] = fmaf(step * v.x, v.in[j], mx_expf(step * decay[j]) * m[j]);
        sum = fmaf(m[j], v.out[j], sum);
    }
    return sum;
}

/* Lanes behind the last channel compute with its inputs and store nothing. */
KERNEL(scan, struct scan_args, CUDA_THREADS, 3) {
    wait_for_previous();
    uint32_t lanes = a.n_state / 4, c = (blockIdx.y * CUDA_THREADS + threadIdx.x) / lanes;
    float m[4] = {}, decay[4], in_norm[4], out_norm[4];
    bool there = c < a.n;

    if (blockIdx.x >= a.batch->n_seqs)
        return;
    const struct plan_seq seq = a.batch->seq[blockIdx.x];
    const struct ScanPlace at = {there ? c : a.n - 1, threadIdx.x % lanes * 4};
    size_t place = (size_t)at.c * a.n_state + at.first;
    float *state = a.state + seq.state * a.stride + (size_t)(a.n_taps - 1) * a.n + place;
    load_four(a.decay + place, decay);
    load_four(a.in_norm + at.first, in_norm);
    load_four(a.out_norm + at.first, out_norm);
    if (there && seq.pos0 > 0)
        load_four(state, m);
    struct ScanRow next = scan_load_row(a, at, seq.row0);
    for (uint32_t r = 0; r < seq.n_rows; r++) {
        struct ScanRow now = next;

        next = scan_load_row(a, at, seq.row0 + (r + 1 < seq.n_rows ? r + 1 : r));
        scan_norm(now.in, in_norm, lanes, a.eps);
        scan_norm(now.out, out_norm, lanes, a.eps);
        float step = mx_softplus(now.step + a.dt[at.c]);
        float y = scan_sum(scan_advance(now, step, decay, m), lanes);

        if (there && at.first == 0)
            a.out[(size_t)(seq.row0 + r) * a.n + at.c] =
                fmaf(a.skip[at.c], now.x, y) * mx_silu(now.z);
    }
    if (there)
        store_some<4>(state, m);
    state_save_inputs<CUDA_THREADS>(a, seq);
}
