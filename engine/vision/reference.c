#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mathx.h"
#include "engine/quant.h"
#include "engine/vision/encoder.h"
#include "engine/vision/ops.h"

/* The backend that judges: one thread, sums in double, weights decoded when they are needed. */

struct vis_mat {
    struct vis_mat *next;
    const struct tensor *t;
    const float *bias;
};

struct vis_be {
    struct vis_mat *mats;
    float *row;     /* [max_in] of a matrix */
    double *scores; /* [max_keys] */
};

static struct vis_be *close_be(struct vis_be *b) {
    if (!b)
        return NULL;
    for (struct vis_mat *m = b->mats, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    free(b->row);
    free(b->scores);
    free(b);
    return NULL;
}

static int open_be(struct vis_be **out, const struct image_encoder_opts *opts,
                   const struct vis_sizes *sizes, struct err *err) {
    struct vis_be *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    b->row = calloc(sizes->max_in, sizeof(*b->row));
    b->scores = calloc(sizes->max_keys, sizeof(*b->scores));
    if (!b->row || !b->scores) {
        close_be(b);
        return -ENOMEM;
    }
    *out = b;
    return 0;
}

static int load(struct vis_be *b, const struct tensor *t, const float *bias, struct vis_mat **out,
                struct err *err) {
    struct vis_mat *m = malloc(sizeof(*m));

    if (!m)
        return -ENOMEM;
    *m = (struct vis_mat){b->mats, t, bias};
    b->mats = *out = m;
    return 0;
}

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void linear(struct vis_be *b, const struct vis_mat *m, const float *in, size_t in_stride,
                   uint32_t n_rows, float *out, size_t out_stride, bool add) {
    for (uint64_t o = 0; o < m->t->ne[1]; o++) {
        quant_decode_row(m->t, o, b->row);
        for (uint32_t r = 0; r < n_rows; r++) {
            double y = dot(in + r * in_stride, b->row, m->t->ne[0]);

            y += m->bias ? (double)m->bias[o] : 0;
            out[r * out_stride + o] = (float)(add ? y + (double)out[r * out_stride + o] : y);
        }
    }
}

/* One head of one row against the keys [first, end). */
static void attend_row(const struct vis_be *b, const struct vis_attend *a, uint32_t h, uint32_t row,
                       uint32_t first, uint32_t end) {
    size_t n_embd = (size_t)a->n_head * a->head_dim, stride = 3 * n_embd;
    const float *q = a->qkv + row * stride + (size_t)h * a->head_dim;
    float *out = a->out + row * n_embd + (size_t)h * a->head_dim;
    double most = -INFINITY, sum = 0;

    for (uint32_t k = first; k < end; k++) {
        const float *key = a->qkv + k * stride + n_embd + (size_t)h * a->head_dim;

        b->scores[k - first] = dot(q, key, a->head_dim) * (double)a->scale;
        most = MAX(most, b->scores[k - first]);
    }
    for (uint32_t k = 0; k < end - first; k++) {
        b->scores[k] = mx_exp(MAX(b->scores[k] - most, -600.0));
        sum += b->scores[k];
    }
    for (uint32_t i = 0; i < a->head_dim; i++) {
        const float *v = a->qkv + first * stride + 2 * n_embd + (size_t)h * a->head_dim + i;
        double y = 0;

        for (uint32_t k = 0; k < end - first; k++)
            y += b->scores[k] * (double)v[k * stride];
        out[i] = (float)(y / sum);
    }
}

static void attend(struct vis_be *b, const struct vis_attend *a) {
    for (uint32_t s = 0; s < a->n_segments; s++)
        for (uint32_t r = a->start[s]; r < a->start[s + 1]; r++)
            for (uint32_t h = 0; h < a->n_head; h++)
                attend_row(b, a, h, r, a->start[s], a->start[s + 1]);
}

static void attend_head(struct vis_be *b, const struct vis_attend *a, uint32_t head, uint32_t first,
                        uint32_t n) {
    for (uint32_t r = first; r < first + n; r++)
        attend_row(b, a, head, r, a->start[0], a->start[1]);
}

static void each(struct vis_be *b, uint32_t n, vis_row_fn fn, void *ctx) {
    for (uint32_t i = 0; i < n; i++)
        fn(ctx, i);
}

static void norm(const struct vis_be *b, const float *x, const float *w, const float *bias,
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

static void act(const struct vis_be *b, enum projector_act act, float *x, const float *up,
                uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float v = x[i], y = act == PROJECTOR_GELU   ? mx_gelu(v)
                            : act == PROJECTOR_SILU ? mx_silu(v)
                                                    : v / (1.0f + mx_expf(-1.702f * v));

        x[i] = up ? y * up[i] : y;
    }
}

const struct vis_ops vis_reference = {
    .name = "reference",
    .open = open_be,
    .close = close_be,
    .load = load,
    .linear = linear,
    .attend = attend,
    .attend_head = attend_head,
    .each = each,
    .norm = norm,
    .act = act,
};
