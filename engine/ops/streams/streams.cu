/*
 * streams - the kernels of kernels_streams.h; alt.cuh has some of them. Each thread sums fixed
 * elements, then the threads' sums are added in a fixed order, so the result of a row depends only
 * on the row.
 *
 * mix_norm      one block for each stream of a row
 * mix_bend      one block for each row
 * mix_mean      one thread for each column of a row
 * ngram_ask     one thread for each sequence
 * ngram_decode  one block for each row
 * ngram_weigh   one block for each stream of a row
 * ngram_add     one thread for each channel of a row
 * ngram_keep    one thread for each channel of a sequence; a launch of its own, since all rows of
 *               the step must have read the old state
 */

#include "engine/ops/streams/alt.cuh"

#define WARPS (CUDA_THREADS / 32)
#define STATE 16u /* equals NGRAM_STATE */

/* -- mixes ------------------------------------------------------------------------------------- */

ROW_KERNEL(mix_norm, struct mix_args, CUDA_THREADS, 2) {
    SHARED float shared[WARPS];
    size_t at = ((size_t)r * a.n_stream + blockIdx.y) * a.n;

    norm_by_block(a.s + at, a.norm + (size_t)blockIdx.y * a.n, NULL, a.n, a.eps, a.f + at, shared);
}

ROW_KERNEL(mix_bend, struct mix_args, CUDA_THREADS, 2) {
    float part = 1.0f / (float)a.n_stream;

    float *low = a.low + (size_t)r * a.n_low, *weight = a.weight + (size_t)r * a.n_stream;
    for (uint32_t i = threadIdx.x; i < a.n_low; i += CUDA_THREADS)
        low[i] = mx_silu(low[i] * part);
    if (a.weight && threadIdx.x < a.n_stream)
        weight[threadIdx.x] = 2 * mx_sigmoid(weight[threadIdx.x] * part);
}

ROW_KERNEL(mix_mean, struct mix_args, CUDA_THREADS, 2) {
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x;
    float sum = 0;

    if (i >= a.n)
        return;
    for (uint32_t j = 0; j < a.n_stream; j++) {
        size_t at = ((size_t)r * a.n_stream + j) * a.n + i;

        sum = fmaf(a.f[at], mx_sigmoid(a.gate[at]), sum);
    }
    a.x[(size_t)r * a.n + i] = sum / (float)a.n_stream;
    a.b[(size_t)r * a.n + i] = 0;
}

/* -- the table of n-grams ---------------------------------------------------------------------- */

KERNEL(ngram_ask, struct ngram_ask_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t i = blockIdx.x * CUDA_THREADS + threadIdx.x;

    if (i >= a.batch->n_seqs)
        return;
    const struct plan_seq seq = a.batch->seq[i];
    const float *state = a.state + seq.state * a.stride;
    int32_t feed = a.batch->feed[seq.row0];
    for (uint32_t k = 0; k < NGRAM_KNOWN; k++)
        a.known[i].last[k] = seq.pos0 ? state[k] : 0;
    a.known[i].fed = feed >= 0 ? a.sampled[feed] : -1;
}

ROW_KERNEL(ngram_decode, struct ngram_args, CUDA_THREADS, 2) {
    uint32_t width = a.table.n_in;

    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.e[(size_t)r * a.n + i] = tile_value_at(&a.table, r * a.n_rows + i / width, i % width);
}

/* Returns the weight of the value, from @z, the scaled product of key and query. */
DEVICE float ngram_weight(float z) {
    float root = sqrtf(fmaxf(fabsf(z), 1e-6f));

    float signed_root = z > 0 ? root : 0.0f;

    return mx_sigmoid(z < 0 ? -root : signed_root);
}

ROW_KERNEL(ngram_weigh, struct ngram_args, CUDA_THREADS, 2) {
    SHARED float shared[WARPS];
    uint32_t first = blockIdx.y * a.n;
    float k = 0, q = 0, z = 0, sum = 0;

    size_t at = (size_t)r * a.n_stream * a.n + first;
    const float *s = a.s + at, *value = a.value + (size_t)r * a.n;
    float *c = a.c + at;
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS) {
        k = fmaf(c[i], c[i], k);
        q = fmaf(s[i], s[i], q);
    }
    k = 1.0f / sqrtf(block_sum<WARPS>(k, shared) / (float)a.n + a.eps);
    q = 1.0f / sqrtf(block_sum<WARPS>(q, shared) / (float)a.n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        z = fmaf(c[i] * k * a.k_norm[first + i], s[i] * q * a.q_norm[first + i], z);
    float by = ngram_weight(block_sum<WARPS>(z, shared) / sqrtf((float)a.n));
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS) {
        float v = by * value[i];

        a.v[at + i] = v;
        sum = fmaf(v, v, sum);
    }
    sum = 1.0f / sqrtf(block_sum<WARPS>(sum, shared) / (float)a.n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        c[i] = by * value[i] * sum * a.c_norm[first + i];
}

/* Returns the input of channel @i of the convolution at row @k of the sequence, counted from
 * (n_taps - 1) apart rows before the step. */
DEVICE float ngram_input(const struct ngram_args &a, const struct plan_seq &seq, uint32_t k,
                         uint32_t i) {
    uint32_t before = (a.n_taps - 1) * a.apart;
    size_t width = (size_t)a.n * a.n_stream;

    if (k >= before)
        return a.c[(seq.row0 + k - before) * width + i];
    return seq.pos0 ? a.state[seq.state * a.stride + STATE + k * width + i] : 0.0f;
}

ROW_KERNEL(ngram_add, struct ngram_args, CUDA_THREADS, 2) {
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x, width = a.n * a.n_stream;
    float sum = 0;

    if (i >= width)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    for (uint32_t j = 0; j < a.n_taps; j++)
        sum = fmaf(a.taps[(size_t)j * width + i],
                   ngram_input(a, seq, r - seq.row0 + j * a.apart, i), sum);
    size_t at = (size_t)r * width + i;
    a.s[at] += a.v[at] + mx_silu(sum);
}

/* Updates the last tokens in the state, by one thread; equals ngram_keep() of engine/ngram.c. */
DEVICE void streams_save_tokens(const struct ngram_args &a, const struct plan_seq &seq,
                                float *last) {
    float next[NGRAM_KNOWN] = {};

    for (uint32_t k = 0; k + 1 < a.apart && k < NGRAM_KNOWN; k++) {
        uint32_t row = seq.row0 + seq.n_rows - 1 - k;

        if (k >= seq.n_rows)
            next[k] = k < seq.pos0 + seq.n_rows ? last[k - seq.n_rows] : (float)a.eos;
        else
            next[k] = (float)rows_token(a.batch, a.sampled, row);
    }
    for (uint32_t k = 0; k < NGRAM_KNOWN; k++)
        last[k] = next[k];
}

KERNEL(ngram_keep, struct ngram_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x, before = (a.n_taps - 1) * a.apart;
    size_t width = (size_t)a.n * a.n_stream;

    if (blockIdx.x >= a.batch->n_seqs || i >= width)
        return;
    const struct plan_seq seq = a.batch->seq[blockIdx.x];
    float *state = a.state + seq.state * a.stride;
    for (uint32_t k = 0; k < before; k++)
        state[STATE + k * width + i] = ngram_input(a, seq, k + seq.n_rows, i);
    if (i == 0)
        streams_save_tokens(a, seq, state);
}
