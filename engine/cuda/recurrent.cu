/*
 * recurrent - layers with a state: gated delta nets and short convolutions. The formulas are those
 * of engine/backend.h and engine/reference/{delta,conv}.c. A sequence goes through its state token
 * by token in one order, at any number of rows: every sum is over a fixed set of values in an order
 * that the head's size alone decides, and the state is kept in single precision, so what a row gets
 * depends neither on what else is in the step nor on how the rows before it were divided into
 * steps.
 *
 * delta_in   a warp a head and row: the convolution, then the head's length. Of the rows that the
 *            convolution goes back to, those before the step are in the state.
 * delta      the recurrence. Values of a head do not see each other, so a block has 32 of them, a
 *            warp eight, four lanes a value: a lane has each fourth quad of keys of one value in
 *            registers (32 where heads have 128), all rows of the sequence long. What a row brings
 *            is in shared memory, eight rows at a time, while the next eight are on their way. A
 *            row alone is bound by the bytes of the state, read once and written once; a prompt by
 *            the latency of a row: two sums over the keys, of which the second waits for the first.
 *            It also keeps the inputs of the convolution: the rows that need the old ones have
 *            taken them.
 * delta_out  a block a row: the norm of each head and its gate, then the row is packed
 * conv       a thread a channel and row: a short convolution and its gates
 * conv_keep  a thread a channel and sequence: what the next rows go back to, when all rows of this
 *            step have taken what lay there
 */

#include "engine/cuda/device.cuh"
#include "engine/cuda/rows.cuh"

DEVICE uint32_t channels_of(const struct delta_args &a) {
    return a.dim * (2 * a.n_key_head + a.n_value_head);
}

/* -- in ---------------------------------------------------------------------------------------- */

/* Channel @c of row @r, convolved: from row @nth - n_taps + 1 of the sequence on, oldest first. */
DEVICE float convolve(const struct delta_args &a, const struct plan_seq &seq, uint32_t r,
                      uint32_t c) {
    uint32_t n = channels_of(a), before = a.n_taps - 1, nth = r - seq.row0;
    const float *past = a.state + seq.state * a.stride;
    float sum = 0;

    for (uint32_t j = 0; j <= before; j++) {
        uint32_t k = nth + j;
        float u = k >= before ? a.in[0][(size_t)(r + j - before) * n + c]
                  : seq.pos0  ? past[(size_t)k * n + c]
                              : 0.0f;

        sum = fmaf(a.taps[(size_t)j * n + c], u, sum);
    }
    return sum;
}

/* e^g and sigmoid(beta) of value head @h of row @r. */
DEVICE void mix_head(const struct delta_args &a, uint32_t r, uint32_t h) {
    uint32_t n = a.n_value_head, per = n / a.n_key_head;
    uint32_t at = h / per * 2 * per + h % per; /* joined: of the beta; the alpha is behind */
    const float *both = a.in[2] + (size_t)r * 2 * n + at;
    float beta = a.joined ? both[0] : a.in[2][(size_t)r * n + h];
    float x = (a.joined ? both[per] : a.in[3][(size_t)r * n + h]) + a.dt[h];
    float softplus = x > 20 ? x : (float)mx_log(1.0 + (double)mx_expf(x));
    float *mix = a.mix + ((size_t)r * n + h) * 2;

    mix[0] = mx_expf(a.decay[h] * softplus);
    mix[1] = sigmoid(beta);
}

KERNEL(delta_in, struct delta_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, lane = threadIdx.x % 32;
    uint32_t h = blockIdx.y * (CUDA_THREADS / 32) + threadIdx.x / 32, n_keys = 2 * a.n_key_head;
    float v[DELTA_DIM / 32], sum = 0, scale = 1;

    if (r >= a.batch->n_rows || h >= n_keys + a.n_value_head)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++) {
        uint32_t i = lane + e * 32;

        v[e] = i < a.dim ? mx_silu(convolve(a, seq, r, h * a.dim + i)) : 0.0f;
        sum = fmaf(v[e], v[e], sum);
    }
    if (h < n_keys) {
        for (int m = 1; m < 32; m *= 2)
            sum += lane_xor(sum, m);
        scale = 1.0f / sqrtf(sum + a.eps);
        scale = h < a.n_key_head ? scale / sqrtf((float)a.dim) : scale;
    } else if (lane == 0) {
        mix_head(a, r, h - n_keys);
    }
#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++)
        if (lane + e * 32 < a.dim)
            a.c[(size_t)r * channels_of(a) + h * a.dim + lane + e * 32] = v[e] * scale;
}

/* -- the recurrence ---------------------------------------------------------------------------- */

struct DeltaRows {
    float q[DELTA_ROWS][DELTA_DIM], k[DELTA_ROWS][DELTA_DIM];
    float v[DELTA_ROWS][DELTA_VALUES], mix[DELTA_ROWS][2];
};

/* What a block is about. */
struct DeltaPart {
    uint32_t head, key_head, first; /* of the values */

    __device__ __forceinline__ void start(const struct delta_args &a) {
        uint32_t n_parts = (a.dim + DELTA_VALUES - 1) / DELTA_VALUES;

        head = blockIdx.y / n_parts;
        first = blockIdx.y % n_parts * DELTA_VALUES;
        key_head = a.tiled ? head % a.n_key_head : head / (a.n_value_head / a.n_key_head);
    }
};

/* Starts to bring rows [row, row + n) of the batch. */
DEVICE void fetch_rows(const struct delta_args &a, const struct DeltaPart &part, uint32_t row,
                       uint32_t n, struct DeltaRows *to) {
    uint32_t quads = a.dim / 4, values = a.dim < DELTA_VALUES ? a.dim : DELTA_VALUES;
    const float *from = a.c + (size_t)row * channels_of(a);

    for (uint32_t i = threadIdx.x; i < n * quads; i += DELTA_THREADS) {
        uint32_t r = i / quads, at = i % quads * 4;
        const float *q = from + (size_t)r * channels_of(a) + part.key_head * a.dim + at;

        copy_async(&to->q[r][at], q);
        copy_async(&to->k[r][at], q + a.n_key_head * a.dim);
    }
    for (uint32_t i = threadIdx.x; i < n * (values / 4); i += DELTA_THREADS) {
        uint32_t r = i / (values / 4), at = i % (values / 4) * 4;

        copy_async(&to->v[r][at], from + (size_t)r * channels_of(a) +
                                      (2 * a.n_key_head + part.head) * a.dim + part.first + at);
    }
    if (threadIdx.x < n * 2)
        copy_async4(&to->mix[threadIdx.x / 2][threadIdx.x % 2],
                    a.mix + ((size_t)(row + threadIdx.x / 2) * a.n_value_head + part.head) * 2 +
                        threadIdx.x % 2);
}

DEVICE float sum_lanes(const float s[4]) {
    float sum = (s[0] + s[1]) + (s[2] + s[3]);

    sum += lane_xor(sum, 1);
    return sum + lane_xor(sum, 2);
}

DEVICE void load_four(const float *p, float v[4]) {
    struct vec4 u = load16(p);

    v[0] = mx_float_of(u.x);
    v[1] = mx_float_of(u.y);
    v[2] = mx_float_of(u.z);
    v[3] = mx_float_of(u.w);
}

/* One row: m = keep m + k beta (v - keep m^T k); returns m^T q. */
template <int DIM>
DEVICE float advance(const struct DeltaRows &rows, uint32_t r, float v, float m[DIM / 4]) {
    const float *k = rows.k[r] + threadIdx.x % 4 * 4, *q = rows.q[r] + threadIdx.x % 4 * 4;
    float s[4] = {0, 0, 0, 0}, keep = rows.mix[r][0];

#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        float x[4];

        load_four(k + i * 16, x);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[e] = fmaf(x[e], m[i * 4 + e], s[e]);
    }
    float change = rows.mix[r][1] * (v - keep * sum_lanes(s));
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
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

/* All rows of the block's sequence through its part of the head's matrix. */
template <int DIM>
DEVICE void run_head(const struct delta_args &a, const struct plan_seq &seq,
                     struct DeltaRows rows[2]) {
    uint32_t lane = threadIdx.x % 32, n_out = a.n_value_head * DIM;
    float m[DIM / 4];
    struct DeltaPart part;

    part.start(a);
    uint32_t value = part.first + threadIdx.x / 4; /* of the head */
    float *state = a.state + seq.state * a.stride + (size_t)(a.n_taps - 1) * channels_of(a) +
                   (size_t)part.head * DIM * DIM + delta_place(DIM, 0, value / 8 * 8) + lane * 4;
    bool there = value < DIM; /* the same for a warp */
#pragma unroll
    for (int i = 0; i < DIM / 4; i++)
        m[i] = 0;
    if (there && seq.pos0 > 0)
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            load_four(state + i * 128, m + i * 4);
    fetch_rows(a, part, seq.row0, seq.n_rows < DELTA_ROWS ? seq.n_rows : DELTA_ROWS, &rows[0]);
    copy_commit();
    for (uint32_t first = 0, now = 0; first < seq.n_rows; first += DELTA_ROWS, now ^= 1) {
        uint32_t left = seq.n_rows - first, n = left < DELTA_ROWS ? left : DELTA_ROWS;
        uint32_t next = left - n < DELTA_ROWS ? left - n : DELTA_ROWS;

        fetch_rows(a, part, seq.row0 + first + n, next, &rows[now ^ 1]);
        copy_commit();
        copy_wait<1>();
        sync_block();
        for (uint32_t r = 0; there && r < n; r++) {
            float out = advance<DIM>(rows[now], r, rows[now].v[r][threadIdx.x / 4], m);

            if (lane % 4 == 0)
                a.out[(size_t)(seq.row0 + first + r) * n_out + part.head * DIM + value] = out;
        }
        sync_block();
    }
    copy_wait<0>();
    if (there)
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            struct vec4 v = {mx_bits_of(m[i * 4]), mx_bits_of(m[i * 4 + 1]),
                             mx_bits_of(m[i * 4 + 2]), mx_bits_of(m[i * 4 + 3])};

            store16(state + i * 128, v);
        }
}

/* What the convolution of the next rows goes back to, of the block's share of the channels. */
DEVICE void keep_inputs(const struct delta_args &a, const struct plan_seq &seq) {
    uint32_t n = channels_of(a), before = a.n_taps - 1, n_rows = seq.n_rows;
    float *past = a.state + seq.state * a.stride;

    for (uint32_t c = blockIdx.y * DELTA_THREADS + threadIdx.x; c < n;
         c += gridDim.y * DELTA_THREADS)
        for (uint32_t j = 0; j < before; j++) {
            float u = j + n_rows >= before
                          ? a.in[0][(size_t)(seq.row0 + j + n_rows - before) * n + c]
                      : seq.pos0 ? past[(size_t)(j + n_rows) * n + c]
                                 : 0.0f;

            past[(size_t)j * n + c] = u;
        }
}

KERNEL(delta, struct delta_args, DELTA_THREADS, 4) {
    wait_for_previous();
    SHARED struct DeltaRows rows[2];

    if (blockIdx.x >= a.batch->n_seqs)
        return;
    const struct plan_seq seq = a.batch->seq[blockIdx.x];
    switch (a.dim) {
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

/* -- out --------------------------------------------------------------------------------------- */

/* norm(out) silu(z) of head @h of row @r, by a warp. */
DEVICE void gate_head(const struct delta_args &a, uint32_t r, uint32_t h) {
    uint32_t lane = threadIdx.x % 32;
    size_t at = ((size_t)r * a.n_value_head + h) * a.dim;
    float v[DELTA_DIM / 32], sum = 0;

#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++) {
        v[e] = lane + e * 32 < a.dim ? a.out[at + lane + e * 32] : 0.0f;
        sum = fmaf(v[e], v[e], sum);
    }
    for (int m = 1; m < 32; m *= 2)
        sum += lane_xor(sum, m);
    float inverse = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
#pragma unroll
    for (uint32_t e = 0; e < DELTA_DIM / 32; e++) {
        uint32_t i = lane + e * 32;

        if (i < a.dim)
            a.out[at + i] = v[e] * inverse * a.norm[i] * mx_silu(a.in[1][at + i]);
    }
}

KERNEL(delta_out, struct delta_args, PACK_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[PACK_THREADS / 32];
    uint32_t r = blockIdx.x;

    if (r >= a.batch->n_rows)
        return;
    for (uint32_t h = threadIdx.x / 32; h < a.n_value_head; h += PACK_THREADS / 32)
        gate_head(a, r, h);
    sync_block();
    pack_row<PACK_THREADS>(a.pack, r, r, shared);
}

/* -- short convolutions ------------------------------------------------------------------------ */

/* What goes into the convolution of channel @c, at row @k of the sequence, counted from n_taps - 1
 * rows before the step. */
DEVICE float conv_input(const struct conv_args &a, const struct plan_seq &seq, uint32_t k,
                        uint32_t c) {
    uint32_t before = a.n_taps - 1;
    size_t at = (size_t)(seq.row0 + k - before) * a.n + c;

    if (k >= before)
        return a.in[0][at] * a.in[2][at];
    return seq.pos0 ? a.state[seq.state * a.stride + (size_t)k * a.n + c] : 0.0f;
}

KERNEL(conv, struct conv_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, c = blockIdx.y * CUDA_THREADS + threadIdx.x;
    float sum = 0;

    if (r >= a.batch->n_rows || c >= a.n)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    for (uint32_t j = 0; j < a.n_taps; j++)
        sum = fmaf(a.taps[(size_t)j * a.n + c], conv_input(a, seq, r - seq.row0 + j, c), sum);
    a.out[(size_t)r * a.n + c] = a.in[1][(size_t)r * a.n + c] * sum;
}

KERNEL(conv_keep, struct conv_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t c = blockIdx.y * CUDA_THREADS + threadIdx.x;

    if (blockIdx.x >= a.batch->n_seqs || c >= a.n)
        return;
    const struct plan_seq seq = a.batch->seq[blockIdx.x];
    for (uint32_t j = 0; j + 1 < a.n_taps; j++)
        a.state[seq.state * a.stride + (size_t)j * a.n + c] = conv_input(a, seq, j + seq.n_rows, c);
}
