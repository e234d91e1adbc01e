/*
 * cpu_rows - kernels of recurrent layers: the convolution of a row, and the update of a
 * head's state by a row. The formulas are those of OP_DELTA, OP_KDA, OP_MAMBA and OP_SCAN
 * (op_list.h).
 *
 * A head's state is a matrix M[dim of keys][dim of values]. Its columns, one for each value, do not
 * depend on each other, so a lane owns a column: 16 columns of the state are [dim][16] floats, and
 * each element of a key is broadcast to all lanes. A sum over the elements of a key has four parts,
 * element i in part i % 4, which are added as (0 + 1) + (2 + 3). The four chains of fma hide each
 * other's latency, and the order of a sum depends only on the size of the head.
 *
 * All rows of a sequence update 16 columns before the next 16 are begun. This part of the state, 8
 * KiB where dim is 128, stays in the first-level cache.
 *
 * The chunked forms of these recurrences, which compute several tokens at once by matrix products,
 * are not used: they round differently depending on where a chunk begins.
 */

#include "engine/cpu/kernels.h"

/* Adds the taps in their order, tap 0 (the oldest row) first. */
void CPU_NAME(convolve)(const float *w, const float *const *u, uint32_t kernel, const float *bias,
                        bool silu, float *c, uint32_t n) {
    vf one = vf_set1(1.0f);

    for (uint32_t i = 0; i < n; i += LANES) {
        vf sum = vf_zero();

        for (uint32_t j = 0; j < kernel; j++)
            sum = vf_fma(vf_load(w + (size_t)j * n + i), vf_load(u[j] + i), sum);
        if (bias)
            sum = vf_add(sum, vf_load(bias + i));
        if (silu)
            sum = vf_div(sum, vf_add(one, vf_exp(vf_neg(sum))));
        vf_store(c + i, sum);
    }
}

/* Computes the sum of squares by lanes as rows_norm() does. */
void CPU_NAME(delta_unit)(float *x, uint32_t n, float eps, float scale) {
    vf sum = vf_zero();

    for (uint32_t i = 0; i < n; i += LANES)
        sum = vf_fma(vf_load(x + i), vf_load(x + i), sum);
    vf by = vf_set1(scale / sqrtf(vf_reduce_add(sum) + eps));
    for (uint32_t i = 0; i < n; i += LANES)
        vf_store(x + i, vf_mul(vf_load(x + i), by));
}

/* Advances 16 columns of a delta net's state, from value @first on, by one row. @m: [dim][16]. The
 * first pass computes known = e^g M^T k, the second pass M = e^g M + k change and M^T q. @kda: each
 * element of the key has its own e^g, which the first pass multiplies by the key. */
INLINE void advance16(bool kda, const struct delta_head *h, uint32_t row, uint32_t first,
                      float *m) {
    const float *k = h->k + row * h->stride, *q = h->q + row * h->stride;
    const float *keeps = h->keep + row * (kda ? h->keep_stride : h->mix_stride);
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    vf keep = vf_set1(keeps[0]);

    for (uint32_t i = 0; i < h->dim; i += 4) {
        UNROLL
        for (uint32_t j = 0; j < 4; j++)
            sum[j] = vf_fma(vf_set1(kda ? k[i + j] * keeps[i + j] : k[i + j]),
                            vf_load(m + (i + j) * LANES), sum[j]);
    }
    vf known = vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
    if (!kda)
        known = vf_mul(keep, known);
    vf v = vf_load(h->v + row * h->stride + first);
    vf change = vf_mul(vf_set1(h->beta[row * h->mix_stride]), vf_sub(v, known));
    for (int j = 0; j < 4; j++)
        sum[j] = vf_zero();
    for (uint32_t i = 0; i < h->dim; i += 4) {
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            float *at = m + (i + j) * LANES;
            vf by = kda ? vf_set1(keeps[i + j]) : keep;
            vf now = vf_fma(vf_set1(k[i + j]), change, vf_mul(by, vf_load(at)));

            vf_store(at, now);
            sum[j] = vf_fma(vf_set1(q[i + j]), now, sum[j]);
        }
    }
    vf_store(h->out + row * h->out_stride + first,
             vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

void CPU_NAME(delta_advance)(const struct delta_head *h, float *m) {
    for (uint32_t first = 0; first < h->dim; first += LANES)
        for (uint32_t row = 0; row < h->n_rows; row++)
            advance16(false, h, row, first, m + (size_t)first * h->dim);
}

void CPU_NAME(kda_advance)(const struct delta_head *h, float *m) {
    for (uint32_t first = 0; first < h->dim; first += LANES)
        for (uint32_t row = 0; row < h->n_rows; row++)
            advance16(true, h, row, first, m + (size_t)first * h->dim);
}

void CPU_NAME(kda_keep)(const float *x, const float *dt, float by, float lower, float *keep,
                        uint32_t n) {
    vf one = vf_set1(1.0f);

    for (uint32_t i = 0; i < n; i += LANES) {
        vf at = vf_mul(vf_set1(by), vf_add(vf_load(x + i), vf_load(dt + i)));
        vf sigmoid = vf_div(one, vf_add(one, vf_exp(vf_neg(at))));

        vf_store(keep + i, vf_exp(vf_mul(vf_set1(lower), sigmoid)));
    }
}

/* Advances 16 columns of a state of Mamba-2, from value @first on, by one row. @m:
 * [n_state][16]. */
INLINE void mamba16(const struct mamba_head *h, uint32_t row, uint32_t first, float *m) {
    const float *in = h->in + row * h->part_stride, *out = h->out + row * h->part_stride;
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    vf keep = vf_set1(h->keep[row * h->mix_stride]), x = vf_load(h->x + row * h->stride + first);
    vf add = vf_mul(vf_set1(h->dt[row * h->mix_stride]), x);

    for (uint32_t j = 0; j < h->n_state; j += 4) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            float *at = m + (size_t)(j + i) * LANES;
            vf now = vf_fma(vf_set1(in[j + i]), add, vf_mul(keep, vf_load(at)));

            vf_store(at, now);
            sum[i] = vf_fma(vf_set1(out[j + i]), now, sum[i]);
        }
    }
    vf y = vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
    vf_store(h->y + row * h->y_stride + first, vf_fma(vf_set1(h->skip), x, y));
}

void CPU_NAME(mamba_advance)(const struct mamba_head *h, float *m) {
    for (uint32_t first = 0; first < h->dim; first += LANES)
        for (uint32_t row = 0; row < h->n_rows; row++)
            mamba16(h, row, first, m + (size_t)first * h->n_state);
}

/* Each channel has a decay for each value of its row, e^(step decay). */
void CPU_NAME(scan_advance)(const struct scan_channels *h, float *m) {
    vf skip = vf_load(h->skip);

    for (uint32_t row = 0; row < h->n_rows; row++) {
        const float *in = h->in + row * h->part_stride, *out = h->out + row * h->part_stride;
        vf x = vf_load(h->x + row * h->stride), step = vf_load(h->step + row * h->step_stride);
        vf add = vf_mul(step, x), sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};

        for (uint32_t j = 0; j < h->n_state; j += 4) {
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                size_t at = (size_t)(j + i) * LANES;
                vf keep = vf_exp(vf_mul(step, vf_load(h->decay + at)));
                vf now = vf_fma(vf_set1(in[j + i]), add, vf_mul(keep, vf_load(m + at)));

                vf_store(m + at, now);
                sum[i] = vf_fma(vf_set1(out[j + i]), now, sum[i]);
            }
        }
        vf y = vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
        vf_store(h->y + row * h->y_stride, vf_fma(skip, x, y));
    }
}
