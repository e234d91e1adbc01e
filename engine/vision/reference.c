/* reference - the backend that other backends are judged by: one thread, sums in double, weights
 * decoded when they are needed. */

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/mathx.h"
#include "engine/formats/quant.h"
#include "engine/vision/encoder.h"
#include "engine/vision/host.h"

struct vis_mat {
    struct vis_mat *next;
    const struct tensor *t;
    const float *bias;
};

struct vis_be {
    struct vis_host host;
    struct vis_mat *mats;
    /* [max_in] a decoded row of a matrix */
    float *row;
    /* [max_keys] */
    double *scores;
};

static struct vis_be *vis_ref_close_be(struct vis_be *b) {
    if (!b)
        return NULL;
    for (struct vis_mat *m = b->mats, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    vis_host_close(&b->host);
    free(b->row);
    free(b->scores);
    free(b);
    return NULL;
}

static uint64_t vis_ref_open_bytes(const struct vis_sizes *s, uint32_t n_threads) {
    return vis_host_bytes(s) + s->max_in * sizeof(float) + s->max_keys * sizeof(double);
}

static void vis_ref_each(struct vis_be *b, uint32_t n, vis_row_fn fn, void *ctx) {
    for (uint32_t i = 0; i < n; i++)
        fn(ctx, i);
}

static void vis_ref_norm(const struct vis_be *b, const float *x, const float *w, const float *bias,
                         float eps, uint32_t n, float *y) {
    double mean = 0, square = 0;

    for (uint32_t i = 0; i < n && bias; i++)
        mean += (double)x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
    for (uint32_t i = 0; i < n; i++)
        y[i] = (float)(((double)x[i] - mean) / sqrt(square + (double)eps) * (w ? (double)w[i] : 1) +
                       (bias ? (double)bias[i] : 0));
}

static void vis_ref_act(const struct vis_be *b, enum projector_act act, float *x, const float *up,
                        uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float v = x[i], y;

        if (act == PROJECTOR_GELU)
            y = mx_gelu(v);
        else if (act == PROJECTOR_SILU)
            y = mx_silu(v);
        else if (act == PROJECTOR_GELU_ERF)
            y = mx_gelu_erf(v);
        else
            y = v / (1.0f + mx_expf(-1.702f * v));
        if (up)
            x[i] = y * up[i];
        else
            x[i] = y;
    }
}

static int vis_ref_open_be(struct vis_be **out, const struct image_encoder_opts *opts,
                           const struct vis_sizes *sizes, struct err *err) {
    struct vis_be *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    b->host = (struct vis_host){.each = vis_ref_each, .norm = vis_ref_norm, .act = vis_ref_act};
    b->row = calloc(sizes->max_in, sizeof(*b->row));
    b->scores = calloc(sizes->max_keys, sizeof(*b->scores));
    if (!b->row || !b->scores || vis_host_open(&b->host, sizes) < 0) {
        vis_ref_close_be(b);
        return -ENOMEM;
    }
    *out = b;
    return 0;
}

static int vis_ref_load(struct vis_be *b, const struct tensor *t, const float *bias,
                        struct vis_mat **out, struct err *err) {
    struct vis_mat *m = malloc(sizeof(*m));

    if (!m)
        return -ENOMEM;
    *m = (struct vis_mat){b->mats, t, bias};
    b->mats = *out = m;
    return 0;
}

static double vis_ref_dot(const float *a, const float *b, size_t n) {
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void vis_ref_linear(struct vis_be *b, const struct vis_mat *m, const float *in,
                           uint32_t n_rows, float *out, bool add) {
    size_t n_in = m->t->ne[0], n_out = m->t->ne[1];

    for (size_t o = 0; o < n_out; o++) {
        quant_decode_row(m->t, o, b->row);
        for (uint32_t r = 0; r < n_rows; r++) {
            double y = vis_ref_dot(in + r * n_in, b->row, n_in);

            if (m->bias)
                y += (double)m->bias[o];
            out[r * n_out + o] = (float)(add ? y + (double)out[r * n_out + o] : y);
        }
    }
}

/* Computes one head of one row with the keys [first, end). */
static void attend_row(const struct vis_be *b, const struct vis_attend *a, uint32_t h, uint32_t row,
                       uint32_t first, uint32_t end) {
    size_t dim = b->host.sizes.head_dim, n_embd = b->host.sizes.n_head * dim, stride = 3 * n_embd;
    const float *q = b->host.qkv + row * stride + h * dim, *k = b->host.qkv + n_embd + h * dim;
    float *out = a->out + row * n_embd + h * dim;
    double most = -INFINITY, sum = 0;

    for (uint32_t i = first; i < end; i++) {
        b->scores[i - first] = vis_ref_dot(q, k + i * stride, dim) * (double)a->scale;
        most = MAX(most, b->scores[i - first]);
    }
    for (uint32_t i = 0; i < end - first; i++) {
        b->scores[i] = mx_exp(MAX(b->scores[i] - most, -600.0));
        sum += b->scores[i];
    }
    for (uint32_t d = 0; d < dim; d++) {
        const float *v = k + first * stride + n_embd + d;
        double y = 0;

        for (uint32_t i = 0; i < end - first; i++)
            y += b->scores[i] * (double)v[i * stride];
        out[d] = (float)(y / sum);
    }
}

static void vis_ref_attend(struct vis_be *b, const struct vis_attend *a) {
    for (uint32_t s = 0; s < a->n_segments; s++)
        for (uint32_t r = a->start[s]; r < a->start[s + 1]; r++)
            for (uint32_t h = 0; h < b->host.sizes.n_head; h++)
                attend_row(b, a, h, r, a->start[s], a->start[s + 1]);
}

static void vis_ref_attend_blocks(struct vis_be *b, const struct vis_attend *a, uint32_t first,
                                  uint32_t n) {
    uint32_t each_head = vis_head_blocks(a->n_patches);

    for (uint32_t i = first; i < first + n; i++) {
        uint32_t row = i % each_head * VIS_HEAD_ROWS;

        for (uint32_t r = row; r < MIN(row + VIS_HEAD_ROWS, a->n_patches); r++)
            attend_row(b, a, i / each_head, r, 0, a->n_patches);
    }
}

const struct vis_ops vis_reference = {
    .name = "reference",
    .open = vis_ref_open_be,
    .close = vis_ref_close_be,
    .open_bytes = vis_ref_open_bytes,
    VIS_HOST_OPS,
    .load = vis_ref_load,
    .linear = vis_ref_linear,
    .attend = vis_ref_attend,
    .attend_blocks = vis_ref_attend_blocks,
};
