/*
 * recurrent - layers with a state: gated delta nets, Kimi delta attention, Mamba-2 (mamba.cuh),
 * Mamba-1 (scan.cuh) and short convolutions. op.h and the reference backend have the formulas. A
 * sequence updates its state token by token in one order, whatever the number of rows: every sum
 * is over a fixed set of values in an order that only the head's size determines, and the state is
 * in single precision. So the result of a row depends neither on other rows of the step nor on how
 * the rows before it were divided into steps.
 *
 *   delta_in   one warp for each head and row: the convolution, then the scaling to unit length.
 *              Rows of the convolution before the step are in the state.
 *   delta      the recurrence. The values of a head are independent, so a block has 32 of them, a
 *              warp eight, four lanes each: a lane keeps every fourth quad of keys of one value in
 *              registers (32 floats for heads of 128) over all rows of the sequence. Inputs of
 *              eight rows are in shared memory, while the next eight are being copied. A single
 *              row is bound by the bytes of the state, read and written once; a prompt by the
 *              latency of a row: two sums over the keys, the second after the first. It also
 *              stores the inputs of the convolution, since delta_in has read the old ones.
 *   kda        the same with a decay for each key
 *   delta_out  one block for each row: the norm of each head and its gate; then packs the row
 *   conv       one thread for each channel and row: a short convolution and its gates
 *   conv_keep  one thread for each channel and sequence: stores inputs for the next rows, after
 *              all rows of this step have read the old ones
 */

#include "engine/ops/recurrent/mamba.cuh"
#include "engine/ops/recurrent/scan.cuh"

/* -- in ---------------------------------------------------------------------------------------- */

/* Computes Kimi's decays and sigmoid(beta) of head @h of row @r, by a warp. */
DEVICE void mix_keys(const struct state_args &a, uint32_t r, uint32_t h) {
    size_t head = (size_t)r * a.n_value_head + h;
    float *keep = a.keep + head * a.dim, by = a.decay[h];

    for (uint32_t i = threadIdx.x % 32; i < a.dim; i += 32) {
        float x = keep[i] + a.dt[h * a.dim + i];

        if (a.lower < 0)
            keep[i] = mx_expf(a.lower * mx_sigmoid(fabsf(by) * x));
        else
            keep[i] = mx_expf(by * mx_softplus(x));
    }
    if (threadIdx.x % 32 == 0) {
        a.mix[head * 2] = 0;
        a.mix[head * 2 + 1] = mx_sigmoid(a.in[3][head]);
    }
}

/* Computes e^g and sigmoid(beta) of value head @h of row @r. */
DEVICE void mix_head(const struct state_args &a, uint32_t r, uint32_t h) {
    uint32_t n = a.n_value_head, per = n / a.n_key_head;
    /* joined: index of beta; alpha follows the group's betas */
    uint32_t at = h / per * 2 * per + h % per;
    const float *both = a.in[2] + (size_t)r * 2 * n + at;
    float beta = a.joined ? both[0] : a.in[2][(size_t)r * n + h];
    float x = (a.joined ? both[per] : a.in[3][(size_t)r * n + h]) + a.dt[h];
    float *mix = a.mix + ((size_t)r * n + h) * 2;

    mix[0] = mx_expf(a.decay[h] * mx_softplus(x));
    mix[1] = mx_sigmoid(beta);
}

ROW_KERNEL(delta_in, struct state_args, CUDA_THREADS, 2) {
    uint32_t lane = threadIdx.x % 32;
    uint32_t h = blockIdx.y * (CUDA_THREADS / 32) + threadIdx.x / 32, n_keys = 2 * a.n_key_head;
    float v[DELTA_DIM / 32], sum = 0, scale = 1;

    if (h >= n_keys + a.n_value_head)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++) {
        uint32_t i = lane + e * 32;

        v[e] = i < a.dim ? mx_silu(state_convolve(a, seq, r, h * a.dim + i)) : 0.0f;
        sum = fmaf(v[e], v[e], sum);
    }
    if (h < n_keys) {
        sum = warp_sum(sum);
        scale = 1.0f / sqrtf(sum + a.unit_eps);
        scale = h < a.n_key_head ? scale / sqrtf((float)a.dim) : scale;
    } else if (a.keep) {
        mix_keys(a, r, h - n_keys);
    } else if (lane == 0) {
        mix_head(a, r, h - n_keys);
    }
#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++)
        if (lane + e * 32 < a.dim)
            a.c[(size_t)r * a.n + h * a.dim + lane + e * 32] = v[e] * scale;
}

/* -- the recurrence ---------------------------------------------------------------------------- */

/* One row: m = keep m + k beta (v - keep m^T k); returns m^T q. */
template <int N>
DEVICE float advance(const struct state_args &a, const struct DeltaRows &rows, uint32_t r, float v,
                     uint32_t head, float (&m)[N]) {
    const float *k = rows.k[r] + threadIdx.x % 4 * 4;
    float s[4] = {0, 0, 0, 0}, keep = rows.mix[r][0];

#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float x[4];

        load_four(k + i * 16, x);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[e] = fmaf(x[e], m[i * 4 + e], s[e]);
    }
    return change_keys(rows, r, keep, rows.mix[r][1] * (v - keep * sum_lanes(s)), m);
}

/* One row: m[i] = keep[i] m[i], then m += k beta (v - m^T k); returns m^T q. */
template <int N>
DEVICE float advance(const struct state_args &a, const struct KdaRows &rows, uint32_t r, float v,
                     uint32_t head, float (&m)[N]) {
    uint32_t at = threadIdx.x % 4 * 4;
    const float *k = rows.k[r] + at, *keep = rows.keep[r] + at;
    float s[4] = {0, 0, 0, 0};

#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float x[4], y[4];

        load_four(k + i * 16, x);
        load_four(keep + i * 16, y);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            m[i * 4 + e] *= y[e];
            s[e] = fmaf(x[e], m[i * 4 + e], s[e]);
        }
    }
    return change_keys(rows, r, 1.0f, rows.mix[r][1] * (v - sum_lanes(s)), m);
}

STATE_KERNEL(delta, struct state_args, struct DeltaRows)
STATE_KERNEL(kda, struct state_args, struct KdaRows)

/* -- out --------------------------------------------------------------------------------------- */

/* Computes norm(out) times the gate of z of head @h of row @r, by a warp. */
DEVICE void gate_head(const struct state_args &a, uint32_t r, uint32_t h) {
    uint32_t lane = threadIdx.x % 32;
    size_t at = ((size_t)r * a.n_value_head + h) * a.dim;
    float v[DELTA_DIM / 32], sum = 0;

#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++) {
        v[e] = lane + e * 32 < a.dim ? a.out[at + lane + e * 32] : 0.0f;
        sum = fmaf(v[e], v[e], sum);
    }
    sum = warp_sum(sum);
    float inverse = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++) {
        uint32_t i = lane + e * 32;

        if (i < a.dim) {
            float z = a.in[1][at + i];

            a.out[at + i] =
                v[e] * inverse * a.norm[i] * ((a.sigmoid ? 1.0f : z) / (1.0f + mx_expf(-z)));
        }
    }
}

ROW_KERNEL(delta_out, struct state_args, PACK_THREADS, 2) {
    SHARED float shared[PACK_SHARED];

    for (uint32_t h = threadIdx.x / 32; h < a.n_value_head; h += PACK_THREADS / 32)
        gate_head(a, r, h);
    sync_block();
    pack_row(a.pack, r, r, shared);
}

/* -- short convolutions ------------------------------------------------------------------------ */

DEVICE float input_of(const struct conv_args &a, size_t row, uint32_t c) {
    return a.in[0][row * a.n + c] * a.in[2][row * a.n + c];
}

ROW_KERNEL(conv, struct conv_args, CUDA_THREADS, 2) {
    uint32_t c = blockIdx.y * CUDA_THREADS + threadIdx.x;

    if (c < a.n)
        a.out[(size_t)r * a.n + c] = a.in[1][(size_t)r * a.n + c] *
                                     state_convolve(a, a.batch->seq[a.batch->row_seq[r]], r, c);
}

KERNEL(conv_keep, struct conv_args, CUDA_THREADS, 2) {
    wait_for_previous();
    if (blockIdx.x < a.batch->n_seqs)
        state_save_inputs<CUDA_THREADS>(a, a.batch->seq[blockIdx.x]);
}
