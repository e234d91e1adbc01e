#include "engine/vision/host.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/result.h"

static struct vis_host *host(struct vis_be *b) {
    return (struct vis_host *)b;
}

uint64_t vis_host_bytes(const struct vis_sizes *s) {
    return 3ull * s->max_keys * s->n_head * s->head_dim * sizeof(float);
}

int vis_host_open(struct vis_host *h, const struct vis_sizes *sizes) {
    h->sizes = *sizes;
    h->qkv = malloc(MAX(vis_host_bytes(sizes), 1u));
    return enomem_unless(h->qkv);
}

void vis_host_close(struct vis_host *h) {
    for (struct vis_buffer *v = h->buffers, *next; v; v = next) {
        next = v->next;
        free(v);
    }
    free(h->qkv);
}

uint64_t vis_host_buffer_bytes(size_t n) {
    return n * sizeof(float);
}

uint64_t vis_host_tensor_bytes(const struct tensor *t) {
    return t->n_bytes;
}

float *vis_host_buffer(struct vis_be *b, size_t n) {
    struct vis_buffer *v = malloc(sizeof(*v) + n * sizeof(float));

    if (!v)
        return NULL;
    v->next = host(b)->buffers;
    host(b)->buffers = v;
    return v->v;
}

int vis_host_vector(struct vis_be *b, const float *v, size_t n, const float **out,
                    struct err *err) {
    *out = v;
    return 0;
}

const void *vis_host_bring(struct vis_be *b, const void *from, size_t n) {
    return from;
}

const uint8_t *vis_host_pixels(struct vis_be *b, const uint8_t *from, size_t n, uint32_t n_lines,
                               size_t *pitch) {
    return from;
}

/* -- functions of rows ------------------------------------------------------------------------- */

/* Context of functions that work row by row. */
struct rows {
    struct vis_be *b;
    const struct vis_rows *a;
};

static void vis_host_norm_row(const struct rows *c, uint32_t r) {
    const struct vis_rows *a = c->a;
    uint32_t to = r;

    if (a->moves)
        to = a->at.to[a->first + r];
    host(c->b)->norm(c->b, a->in + (size_t)r * a->width, a->w, a->bias, a->eps, a->width,
                     a->out + (size_t)to * a->width);
}

/* Writes the pixels of a patch by channel, line and column, normalised as in training. */
static void patch_row(const struct vis_rows *a, uint32_t r, float *out) {
    uint32_t patch = a->first + r, side = a->side;

    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < side; y++) {
            size_t line = (size_t)a->at.row.of[patch] * side + y;
            const uint8_t *from =
                a->at.pixel + line * a->at.pitch + (size_t)a->at.column.of[patch] * side * 3 + k;

            for (uint32_t x = 0; x < side; x++) {
                float v = ((float)from[3 * (size_t)x] / 255 - a->mean[k]) / a->std[k];

                *out++ = a->twice ? 2 * v - 1 : v;
            }
        }
}

static void position_row(const struct vis_rows *a, uint32_t r, float *out) {
    uint32_t row = a->at.row.of[a->first + r], column = a->at.column.of[a->first + r];
    const struct vis_axis *v = &a->at.row, *u = &a->at.column;
    size_t n = a->width;

    if (a->apart) {
        const float *x = a->in + column * n, *y = a->in + ((size_t)a->n_table + row) * n;

        for (size_t i = 0; i < n; i++)
            out[i] += x[i] + y[i];
        return;
    }
    for (uint32_t s = v->first_tap[row]; s < v->first_tap[row + 1]; s++)
        for (uint32_t t = u->first_tap[column]; t < u->first_tap[column + 1]; t++) {
            const float *from = a->in + ((size_t)v->tap[s].at * a->n_table + u->tap[t].at) * n;
            float w = v->tap[s].weight * u->tap[t].weight;

            for (size_t i = 0; i < n; i++)
                out[i] += w * from[i];
        }
}

/* Writes a row of the text model from the patches of its block: their mean, or all their values. */
static void block_row(const struct vis_rows *a, uint32_t r, float *out) {
    uint32_t merge = a->merge, area = merge * merge, columns = a->at.width / merge;
    uint32_t block = a->first + r, n = a->width;
    uint32_t top = block / columns * merge, left = block % columns * merge;

    for (uint32_t k = 0; k < n && a->kind == VIS_MEAN; k++)
        out[k] = 0;
    for (uint32_t b = 0; b < area; b++) {
        const float *x = a->in + ((size_t)(top + b / merge) * a->at.width + left + b % merge) * n;

        for (uint32_t k = 0; k < n; k++)
            if (a->kind == VIS_MEAN)
                out[k] += x[k] / (float)area;
            else
                out[a->channels ? (size_t)k * area + b : (size_t)b * n + k] = x[k];
    }
}

/* Functions of single values. */
static void value_row(const struct vis_rows *a, const float *in, float *out) {
    for (uint32_t i = 0; i < a->width; i++)
        switch (a->kind) {
        case VIS_ADD:
            out[i] += in[i];
            break;
        case VIS_CLAMP:
            out[i] = MIN(MAX(in[i], a->low), a->high);
            break;
        default: /* VIS_AFFINE */
            out[i] = in[i] * a->factor;
            if (a->w)
                out[i] = (out[i] - a->bias[i]) * a->w[i];
        }
}

static void vis_host_do_row(void *ctx, uint32_t r) {
    const struct rows *c = ctx;
    const struct vis_rows *a = c->a;
    size_t at = (size_t)r * a->width;

    switch (a->kind) {
    case VIS_NORM:
        vis_host_norm_row(c, r);
        return;
    case VIS_ACT:
        assert(a->in == a->out);
        host(c->b)->act(c->b, (enum projector_act)a->act, a->out + at, a->up ? a->up + at : NULL,
                        a->width);
        return;
    case VIS_PATCH:
        patch_row(a, r, a->out + at);
        return;
    case VIS_POSITION:
        position_row(a, r, a->out + at);
        return;
    case VIS_MEAN:
        block_row(a, r, a->out + at);
        return;
    case VIS_BLOCK:
        block_row(a, r, a->out + at * a->merge * a->merge);
        return;
    default:
        value_row(a, a->in + at, a->out + at);
    }
}

void vis_host_rows(struct vis_be *b, const struct vis_rows *a) {
    struct rows c = {b, a};

    host(b)->each(b, a->n, vis_host_do_row, &c);
}

/* -- heads ------------------------------------------------------------------------------------- */

struct heads {
    struct vis_be *b;
    const struct vis_heads *a;
};

/* Rotates (a, b) by cosine and sine. */
static void vis_host_turn(float *a, float *b, const float *cs) {
    float x = *a, y = *b;

    *a = x * cs[0] - y * cs[1];
    *b = x * cs[1] + y * cs[0];
}

/* Rotates a head of @dim values of patch @at. */
static void vis_host_turn_head(const struct vis_heads *a, uint32_t at, uint32_t dim, float *x) {
    uint32_t half = dim / 2, quarter = dim / 4;

    for (uint32_t i = 0; i < half; i++) {
        bool second = i >= quarter, alternate = a->turn == VIS_ALTERNATE;
        uint32_t k = i % quarter;

        if (alternate) {
            second = i % 2;
            k = i / 2;
        }
        const struct vis_axis *axis = second != a->swapped ? &a->at.column : &a->at.row;
        const float *cs = axis->turn + ((size_t)axis->of[at] * quarter + k) * 2;
        if (a->turn == VIS_NEIGHBOURS || alternate)
            vis_host_turn(&x[2 * i], &x[2 * i + 1], cs);
        else if (a->turn == VIS_QUARTERS)
            vis_host_turn(&x[i % quarter + i / quarter * half],
                          &x[i % quarter + i / quarter * half + quarter], cs);
        else
            vis_host_turn(&x[i], &x[i + half], cs);
    }
}

static void do_heads(void *ctx, uint32_t r) {
    const struct heads *c = ctx;
    const struct vis_heads *a = c->a;
    const struct vis_host *h = host(c->b);
    uint32_t n_head = h->sizes.n_head, dim = h->sizes.head_dim, at = a->first + r;
    size_t width = (size_t)n_head * dim;
    float *x = h->qkv + at * 3 * width;

    for (int k = 0; k < 3; k++)
        memcpy(x + k * width, a->in[k] + r * a->stride, width * sizeof(float));
    for (uint32_t i = 0; i < 3 * n_head; i++, x += dim) {
        uint32_t k = i / n_head;

        if (k == 2 ? a->unit : a->w[k] != NULL)
            h->norm(c->b, x, k == 2 ? NULL : a->w[k], k == 2 ? NULL : a->bias[k], a->eps, dim, x);
        if (k < 2 && a->turn != VIS_STAY)
            vis_host_turn_head(a, at, dim, x);
    }
}

void vis_host_heads(struct vis_be *b, const struct vis_heads *a) {
    struct heads c = {b, a};

    assert(a->first + a->n <= host(b)->sizes.max_keys);
    host(b)->each(b, a->n, do_heads, &c);
}

/* -- results ----------------------------------------------------------------------------------- */

void vis_host_get(struct vis_be *b, const float *from, uint32_t n_rows, uint32_t n, float *to,
                  size_t stride) {
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(to + r * stride, from + (size_t)r * n, n * sizeof(float));
}

int vis_host_end(struct vis_be *b) {
    return 0;
}
